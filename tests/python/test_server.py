"""A server as its operator sees it from Python: status, history, watches, checkpoints, and the loss scale."""
from python_testing import PATIENCE, Skip, eventually, folder, needs, raises, run  # noqa: F401 (it finds the package)

import concurrent.futures
import contextlib
import dataclasses
import datetime
import gc
import json
import logging
import math
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from unittest import mock

needs("google.protobuf")

import ampd
import ampd.testing
import numpy
from ampd import _watch

SHAPES = {"w": (2, 3), "b": (5,)}
GRADIENT = 0.5  # of each element; float16 has it times 65536
MOVED = 0.25    # by each step with SGD's rate of 0.5


def join(server, name="line", shapes=SHAPES, **options):
    values = {one: numpy.arange(math.prod(shape), dtype=numpy.float32).reshape(shape) for one, shape in shapes.items()}
    options = {"optimizer": ampd.SGD(lr=0.5), "cast": "float32", "max_steps": 5, **options}
    return ampd.join(server.endpoint, name, values, **options)


def train(job, steps=None, overflows=()):
    """Ends so many steps, or all, with gradients of GRADIENT. Those in `overflows` have an Inf."""
    for step in job.steps():
        for name, array in job.parameters.items():
            value = numpy.inf if step.number in overflows else step.scale * GRADIENT
            step.push(name, numpy.full(array.shape, value, array.dtype))
        step.end()
        if steps is not None:
            steps -= 1
            if steps == 0:
                return


def ampctl(endpoint, *words):
    done = subprocess.run([ampd.testing.program("ampctl"), "--endpoint", endpoint, *words], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, encoding="utf-8", timeout=60 * PATIENCE, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


def steps_of(rows):
    return [row.step for row in rows if row.kind == "step"]


def interrupted_after(seconds, function):
    """How long it took from Ctrl-C until KeyboardInterrupt was raised."""
    threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    try:
        function()
    except KeyboardInterrupt:
        return time.monotonic() - began - seconds
    raise AssertionError("nothing was interrupted")


# ---- status ----

@contextlib.contextmanager
def slow_way_to(server, bytes_each_ms):
    """The address of a way to the server which lets so many bytes through, and as many as there are back."""
    def carry(source, target, pace):
        with contextlib.suppress(OSError):
            while piece := source.recv(16 * bytes_each_ms):
                target.sendall(piece)
                time.sleep(len(piece) / pace / 1e3 if pace else 0)
            target.shutdown(socket.SHUT_WR)

    def accept():
        with contextlib.suppress(OSError):
            while True:
                near, far = listener.accept()[0], socket.create_connection(address(server))
                for pair in ((near, far, bytes_each_ms), (far, near, 0)):
                    threading.Thread(target=carry, args=pair, daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield "127.0.0.1:%d" % listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


def address(server):
    host, port = server.endpoint.rsplit(":", 1)
    return host, int(port)


def test_values_may_take_longer_than_a_call_over_a_slow_network():
    limit, values = 3.0 * PATIENCE, {"w": numpy.zeros(16 << 20, numpy.float32)}
    pace = int(values["w"].nbytes / (1e3 * limit + 3e3))  # three seconds longer
    with ampd.testing.server() as server, slow_way_to(server, pace) as endpoint:
        began = time.monotonic()
        with ampd.join(endpoint, "large", values, cast="float16", max_steps=1, call_timeout=limit) as job:
            assert job.status().state == "running" and time.monotonic() - began > limit


def test_models_and_their_workers_are_told_in_words():
    with ampd.testing.server() as server, ampd.connect(server.endpoint) as operator:
        assert list(operator.models()) == []
        with join(server, cast="float16", world_size=2, rank=1, worker_name="left"):
            status = operator.model("line")
            assert (status.state, status.step, status.cast, status.optimizer) == ("created", 1, "float16", "sgd")
            assert "first values" in status.waiting_for and status.scale == 65536 and status.scaler == "dynamic"
            assert [(one.name, one.rank, one.live) for one in status.workers] == [("left", 1, True)]
            assert status.workers[0].lease_left > 0
            assert datetime.datetime.now(datetime.timezone.utc) - status.create_time < datetime.timedelta(minutes=5)
        assert [(one.name, one.workers) for one in operator.models()] == [("line", ())]
        told = operator.status()
        assert told.version == ampd.__version__ and told.shard_count == 1 and told.models[0].name == "line"
        assert [one.index for one in told.shards] == [0] and told.uptime >= 0 and not told.draining
        assert [one.state for one in operator.cluster()] == ["up"]
        assert repr(operator) == "<ampd server %s>" % server.endpoint
    assert "closed" in repr(operator)
    raises(ampd.WrongState, lambda: operator.model("line"), "closed")


def test_all_models_are_told_page_by_page():
    with ampd.testing.server() as server, ampd.connect(server.endpoint) as operator:
        for number in range(7):
            join(server, "m%d" % number).leave()
        kept, ampd.server.PAGE_ROWS = ampd.server.PAGE_ROWS, 3
        try:
            assert [one.name for one in operator.models()] == ["m%d" % number for number in range(7)]
        finally:
            ampd.server.PAGE_ROWS = kept


def test_a_specification_has_the_classes_and_values_that_join_was_given():
    optimizers = [ampd.SGD(lr=0.1, momentum=0.9, nesterov=True), ampd.Adam(betas=(0.8, 0.95)), ampd.AdamW(lr=3e-4),
                  ampd.Adagrad(lr_decay=0.5), ampd.RMSprop(alpha=0.9, centered=True), ampd.Lion()]
    schedules = [ampd.Constant(), ampd.Constant(3), ampd.Step(5, 0.25, 2), ampd.Cosine(100, 10, 1e-5), ampd.Worker()]
    scalers = [ampd.DynamicScaler(growth_interval=7), ampd.DynamicScaler(policy="megatron", hysteresis=3),
               ampd.StaticScaler(128.0), ampd.NoScaler()]
    with ampd.testing.server() as server, ampd.connect(server.endpoint) as operator:
        for at, optimizer in enumerate(optimizers):
            schedule, scaler = schedules[at % len(schedules)], scalers[at % len(scalers)]
            join(server, "m%d" % at, optimizer=optimizer, schedule=schedule, scaler=scaler, cast="bfloat16").leave()
            found = operator.specification("m%d" % at)
            assert (found.optimizer, found.schedule, found.scaler) == (optimizer, schedule, scaler), found
            assert (found.cast, found.world_size, found.max_steps, found.quorum) == ("bfloat16", 1, 5, 0)
        assert [(one.name, one.shape, one.group) for one in found.parameters] == [("w", (2, 3), 0), ("b", (5,), 0)]
        assert (found.optimizer.kind, found.loss_timeout, found.clip_norm) == ("lion", 600.0, 0.0)
        join(server, "g", optimizer=ampd.AdamW(lr=0.25), no_decay={"b"}, clip_norm=2.0, clip_scope="group",
             groups=[ampd.Group({"w"}, "slow", lr_factor=0.5, clip_norm=1.0)]).leave()
        found = operator.specification("g")
        groups = {one.name: found.groups[one.group] for one in found.parameters}
        assert groups["w"] == ampd.GroupSpecification("slow", 0.5, 0.01, 1.0), groups
        assert groups["b"] == ampd.GroupSpecification("no_decay", 1.0, 0.0, 2.0), groups
        assert found.clip_scope == "group"


def test_what_is_not_there_or_cannot_be_gets_a_sentence():
    with ampd.testing.server() as server, ampd.connect(server.endpoint) as operator:
        for function in (operator.model, operator.specification, operator.scaler_state, operator.checkpoint,
                         operator.masters, operator.rollback, operator.delete, operator.reset_scale, operator.watch,
                         lambda name: list(operator.history(name)), lambda name: list(operator.overflows(name)),
                         lambda name: list(operator.checkpoints(name)), lambda name: list(operator.replay(name)),
                         lambda name: operator.explain(name, 1), lambda name: operator.set_scale(name, 2.0),
                         lambda name: operator.set_learning_rate(name, 2.0)):
            raises(ampd.NotFound, lambda: function("nobody"), "nobody")
        with join(server) as job:
            assert list(operator.history("line", from_step=9)) == []
            train(job)
        raises(ampd.InvalidArgument, lambda: list(operator.history("line", verdicts=["good"])), "applied")
        raises(ampd.InvalidArgument, lambda: list(operator.history("line", from_step=-1)), "from_step", "-1")
        raises(ampd.InvalidArgument, lambda: list(operator.history("line", from_step="one")), "whole number")
        raises(ampd.InvalidArgument, lambda: operator.model(3), "string")
        raises(ampd.NotFound, lambda: operator.model(""), "models()")
        raises(ampd.InvalidArgument, lambda: list(operator.overflows("line", source="sea")), "worker", "range")
        raises(ampd.Error, lambda: operator.explain("line", 99), "99")
        raises(ampd.NotFound, lambda: operator.rollback("line", 99), "99", "checkpoints")
        raises(ampd.WrongState, lambda: operator.set_scale("line", 2.0), "done")
    raises(ampd.Unavailable, lambda: ampd.connect(server.endpoint, connect_timeout=0.2), "start the server")


def test_a_connect_tries_for_as_long_as_it_says():
    began = time.monotonic()
    raises(ampd.Unavailable, lambda: ampd.connect("127.0.0.1:1", connect_timeout=1.5), "within 1500 ms")
    assert time.monotonic() - began > 1.3


# ---- history ----

def test_history_comes_in_pages_and_has_every_step_once():
    with ampd.testing.server() as server, ampd.connect(server.endpoint) as operator:
        with join(server, max_steps=2300, checkpoint_every=0) as job:
            train(job)
        rows = list(operator.history("line"))
        assert steps_of(rows) == list(range(1, 2301))
        assert steps_of(operator.history("line", newest_first=True)) == list(range(2300, 0, -1))
        assert steps_of(operator.history("line", from_step=1100, to_step=2200)) == list(range(1100, 2201))
        last = rows[-1]
        assert last.applied and last.version == 2300 and last.contributors == 1 and last.learning_rate == 0.5
        assert last.time.tzinfo is datetime.timezone.utc and rows[0].time <= last.time
        assert abs(last.norm - GRADIENT * 11 ** 0.5) < 1e-9, last.norm
        split = (last.apply_us, last.pull_us, last.wait_us, last.push_us, last.vote_us)
        assert sum(split) * datetime.timedelta(microseconds=1) == last.time - rows[-2].time, split
        assert rows[0].vote_us is None
        flat = dataclasses.asdict(last)  # as pandas.DataFrame(list of rows) takes them
        assert flat.pop("metrics") == {} and last.loss is None and last.loss_workers == 0
        assert all(isinstance(value, (int, float, str, datetime.datetime, type(None))) for value in flat.values())


def test_overflows_are_told_filtered_explained_and_replayed():
    with ampd.testing.server() as server, ampd.connect(server.endpoint) as operator:
        with join(server, cast="float16", max_steps=6) as job:
            train(job, overflows=(2, 5))
        assert steps_of(operator.history("line", verdicts=["skipped_overflow"])) == [2, 5]
        assert steps_of(operator.history("line", verdicts="applied")) == [1, 3, 4, 6]
        assert steps_of(operator.history("line", only_changes=True)) == [2, 5]
        row = next(operator.history("line", from_step=2))
        assert (row.skipped, row.old_scale, row.scale, row.inf_count, row.overflow_rows) == (True, 65536, 32768, 11, 2)
        found = list(operator.overflows("line"))
        assert [(one.step, one.parameter, one.rank, one.inf_count, one.source) for one in found] == [
            (2, "w", 0, 6, "worker"), (2, "b", 0, 5, "worker"), (5, "w", 0, 6, "worker"), (5, "b", 0, 5, "worker")]
        assert [one.step for one in operator.overflows("line", parameter="b", newest_first=True)] == [5, 2]
        assert list(operator.overflows("line", rank=0, source="sum")) == []
        told = operator.explain("line", 2)
        assert "Inf" in told.text and str(told) == told.text and told.row.step == 2
        assert [(one.rank, one.weight) for one in told.contributors] == [(0, 1.0)] and len(told.overflows) == 2
        replayed = list(operator.replay("line", ampd.DynamicScaler(init_scale=1024.0, backoff_factor=0.25)))
        assert [one.replayed_scale for one in replayed] == [1024, 256, 256, 256, 64, 64]
        assert [one.stored_scale for one in replayed] == [65536, 32768, 32768, 32768, 16384, 16384]
        assert {one.replayed_scale for one in operator.replay("line", ampd.NoScaler())} == {1.0}


# ---- the loss scale ----

def test_the_scale_is_set_and_reset_and_both_are_in_the_history():
    with ampd.testing.server() as server, ampd.connect(server.endpoint) as operator:
        with join(server, cast="float16", max_steps=0) as job:
            train(job, 2)
            state = operator.scaler_state("line")
            assert state == {"scale": 65536.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 2000,
                             "_growth_tracker": 2}
            since = operator.set_scale("line", 256, reason="by hand")
            train(job, 2)
            assert operator.scaler_state("line")["scale"] == 256.0
            operator.reset_scale("line")
            train(job, 2)
            assert operator.scaler_state("line")["scale"] == 65536.0
        acts = [row for row in operator.history("line") if row.kind.startswith("scale")]
        assert [(row.kind, row.scale, row.reason) for row in acts] == [("scale_set", 256.0, "by hand"),
                                                                      ("scale_reset", 65536.0, "")]
        assert acts[0].from_step == since and acts[0].verdict is None
        raises(ampd.InvalidArgument, lambda: operator.set_scale("line", math.inf), "scale")


def test_the_learning_rate_is_set_by_hand():
    with ampd.testing.server() as server, ampd.connect(server.endpoint) as operator:
        with join(server, max_steps=0) as job:
            train(job, 2)
            since = operator.set_learning_rate("line", 0.5, reason="by hand")
            assert since == 3 and operator.model("line").learning_rate == 0.5
            train(job, 1)
        rows = list(operator.history("line"))
        assert [row.learning_rate for row in rows if row.kind == "step"][-1] == 0.5
        acts = [row for row in rows if row.kind == "learning_rate_set"]
        told = [(row.learning_rate, row.from_step, row.reason, row.verdict) for row in acts]
        assert told == [(0.5, 3, "by hand", None)]
        assert list(operator.history("line", verdicts=[None])) == [rows[0], *acts]
        assert acts[0].old_learning_rate == rows[1].learning_rate > 0 and rows[1].old_learning_rate is None
        raises(ampd.InvalidArgument, lambda: operator.set_learning_rate("line", math.inf), "learning_rate")


def test_an_eviction_is_in_the_history_with_its_rank():
    with ampd.testing.server() as server, ampd.connect(server.endpoint) as operator:
        with join(server, max_steps=0) as job:
            train(job, 2)
        subprocess.run([ampd.testing.program("ampctl"), "--endpoint", server.endpoint, "evict", "line", "0", "--reason",
                        "slow"], stdout=subprocess.DEVNULL, check=True)
        rows = list(operator.history("line"))
        [row] = [row for row in rows if row.kind == "evicted"]
        assert (row.rank, row.reason, row.verdict) == (0, "slow", None) and row.from_step >= row.step == 3, row
        assert all(row.rank is None for row in rows if row.kind != "evicted")


# ---- checkpoints ----

def test_a_model_goes_back_to_a_checkpoint():
    with ampd.testing.server() as server, ampd.connect(server.endpoint) as operator:
        with join(server, max_steps=0, checkpoint_every=0) as job:
            train(job, 3)
        made = operator.checkpoint("line")
        assert (made.model, made.step, made.epoch, made.parts) == ("line", 3, 1, 1) and made.size_bytes > 0
        assert operator.checkpoint("line") == made
        assert [one.step for one in operator.checkpoints("line")] == [3, 0]
        assert operator.rollback("line", 0, reason="try again") == (2, 1)
        assert [one.step for one in operator.checkpoints("line")] == [0]
        assert operator.model("line").epoch == 2
        assert steps_of(operator.history("line")) == []
        rows = list(operator.history("line", include_superseded=True))
        assert steps_of(rows) == [1, 2, 3] and all(row.superseded for row in rows if row.kind == "step")
        begun = [row for row in rows if row.kind == "epoch"][-1]
        assert (begun.epoch, begun.parent_epoch, begun.base_step, begun.reason) == (2, 1, 0, "try again")
        with join(server, max_steps=0, checkpoint_every=0) as job:
            train(job, 1)
        assert operator.rollback("line")[0] == 3


def test_a_model_is_deleted():
    with ampd.testing.server() as server, ampd.connect(server.endpoint) as operator:
        job = join(server)
        job.begin()
        raises(ampd.WrongState, lambda: operator.delete("line"), "force")
        operator.delete("line", force=True)
        raises(ampd.NotFound, job.leave, "line")
        assert list(operator.models()) == []


def exported(endpoint, model):
    """name -> array of what ampctl exports."""
    with folder() as place:
        path = pathlib.Path(place) / "file"
        ampctl(endpoint, "checkpoint", "export", model, str(path))
        data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    tensors = json.loads(data[8:8 + size])
    found = {}
    for name, one in tensors.items():
        if name != "__metadata__" and "#" not in name:
            begin, end = (8 + size + at for at in one["data_offsets"])
            found[name] = numpy.frombuffer(data[begin:end], numpy.float32).reshape(one["shape"])
    return found


def assert_equal(found, wanted):
    assert list(found) and sorted(found) == sorted(wanted)
    for name, array in found.items():
        assert array.dtype == numpy.float32 and array.shape == wanted[name].shape, name
        assert array.tobytes() == wanted[name].tobytes(), name


# Several blocks of 65536 elements, so that a border of shards is within a parameter; and more than one of 256 KiB.
LARGE = {"big": (700, 300), "one": (), "b": (5,), "long": (100000,)}


def test_masters_of_one_and_of_three_shards_are_what_ampctl_exports():
    for place in (ampd.testing.server(), ampd.testing.cluster(3)):
        with place as server, ampd.connect(server.endpoint) as operator:
            with join(server, shapes=LARGE, optimizer=ampd.AdamW(lr=0.1), cast="float16") as job:
                train(job)
                assert_equal(job.state_dict(), operator.masters("line"))
            masters = operator.masters("line")
            assert list(masters) == list(LARGE)
            assert_equal(masters, exported(server.endpoint, "line"))
            first = operator.masters("line", 0)
            assert (first["long"] == numpy.arange(100000)).all() and first["one"] == 0


def test_masters_that_the_disk_has_changed_are_not_given():
    try:
        import xxhash  # noqa: F401
    except ImportError:
        raise Skip("hashes of checkpoints are not looked at (package python3-xxhash)") from None
    with ampd.testing.server() as server, ampd.connect(server.endpoint) as operator:
        with join(server) as job:
            train(job)
        step = next(operator.checkpoints("line")).step
        files = sorted(server.data_dir.rglob("shard-0-of-1.safetensors"))
        for path in files:
            data = bytearray(path.read_bytes())
            size = int.from_bytes(data[:8], "little")
            first = json.loads(data[8:8 + size])["b"]["data_offsets"][0]
            data[8 + size + first] ^= 1
            path.write_bytes(data)
        raises(ampd.DataLoss, lambda: operator.masters("line", step), "'b' is not what was written")


@contextlib.contextmanager
def first_way_from(server, most, cut):
    """The address of a way to the server, whose first connection lets so many bytes back through: then it is `cut`, or
    nothing more comes. Others let all through."""
    def carry(source, target, left):
        with contextlib.suppress(OSError):
            while left > 0 and (piece := source.recv(1 << 16)):
                target.sendall(piece)
                left -= len(piece)
            if cut or left > 0:
                source.shutdown(socket.SHUT_RDWR)
                target.shutdown(socket.SHUT_RDWR)

    def accept():
        left = most
        with contextlib.suppress(OSError):
            while True:
                near, far = listener.accept()[0], socket.create_connection(address(server))
                kept.extend((near, far))
                threading.Thread(target=carry, args=(near, far, sys.maxsize), daemon=True).start()
                threading.Thread(target=carry, args=(far, near, left), daemon=True).start()
                left = sys.maxsize

    kept = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield "127.0.0.1:%d" % listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        for one in kept:
            one.close()


def test_masters_that_cease_to_come_are_a_timeout_and_are_read_again_where_the_connection_is_lost():
    with ampd.testing.server() as server:
        with join(server, shapes={"w": (1 << 20,)}) as job:
            train(job, 1)
        with ampd.connect(server.endpoint) as operator:
            expected = operator.masters("line")
        for cut in (False, True):
            with first_way_from(server, 1 << 20, cut) as endpoint:
                with ampd.connect(endpoint, call_timeout=2.0 * PATIENCE) as operator:
                    if cut:
                        assert_equal(operator.masters("line"), expected)
                    else:
                        raises(ampd.Timeout, lambda: operator.masters("line"), "shard 0", "of its 4", "call_timeout")


def test_masters_are_made_while_others_train():
    with ampd.testing.server() as server, ampd.connect(server.endpoint) as operator:
        with join(server, max_steps=0, checkpoint_every=0) as job:
            train(job, 1)
            found = []
            asking = threading.Thread(target=lambda: found.append(operator.masters("line")))
            asking.start()
            while asking.is_alive():
                train(job, 1)
            asking.join()
        step = next(operator.checkpoints("line")).step
        assert step >= 2 and (found[0]["b"] == numpy.arange(5) - MOVED * step).all(), (step, found)


def test_a_job_is_told_at_once_that_a_checkpoint_would_wait_for_itself():
    with ampd.testing.server() as server, join(server, checkpoint_every=2) as job:
        train(job, 3)
        raises(ampd.WrongState, job.state_dict, "step 4", "masters=False")
        assert (job.state_dict(masters=False)["b"] == numpy.arange(5) - MOVED * 3).all()
        assert eventually(lambda: job.status().durable_step == 2)
        assert (job.server.masters("line", 2)["b"] == numpy.arange(5) - MOVED * 2).all()
        train(job, 1)
        assert eventually(lambda: job.status().durable_step == 4)
        assert (job.state_dict()["b"] == numpy.arange(5) - MOVED * 4).all()
        job.server.close()  # does nothing to the job
        train(job)


# ---- watch ----

def test_a_checkpoint_that_waits_for_a_step_says_so():
    lines = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())
    logging.getLogger("ampd").addHandler(handler)
    with ampd.testing.server() as server, join(server) as job, ampd.connect(server.endpoint) as other:
        train(job, steps=1)
        waiting = threading.Thread(target=lambda: other.checkpoint("line"))
        waiting.start()
        assert eventually(lambda: lines), "silence"
        assert waiting.is_alive() and lines[0].startswith("line: its checkpoint") and "job.leave()" in lines[0], lines
        train(job)
        waiting.join()
        other.checkpoint("line")  # at once
    logging.getLogger("ampd").removeHandler(handler)
    assert len(lines) == 1, lines


def test_a_watch_has_each_step_of_a_training_and_ends_with_it():
    with ampd.testing.server() as server, ampd.connect(server.endpoint) as operator:
        with join(server, cast="float16", max_steps=40) as job:
            train(job, 10)
            with operator.watch("line") as new, operator.watch("line", from_step=8) as stored:
                trains = threading.Thread(target=train, args=(job,), kwargs={"overflows": (20,)})
                trains.start()
                rows = list(new)
                assert steps_of(stored) == list(range(8, 41))
                trains.join()
        assert steps_of(rows) == list(range(11, 41))
        assert [row.step for row in rows if row.skipped] == [20]
        assert rows == list(operator.history("line", from_step=11))
        assert list(new) == [] and "ended" in repr(new)
        assert list(operator.watch("line")) == []


def test_a_watch_from_a_step_behind_the_last_one_is_refused_as_ampctl_does():
    with ampd.testing.server() as server, ampd.connect(server.endpoint) as operator:
        with join(server, max_steps=4) as job:
            for _ in range(2):  # before the end, and after it
                error = raises(ampd.InvalidArgument, lambda: operator.watch("line", from_step=5), "no step 5", "step 4")
                assert error.code == "ERANGE"
                raises(ampd.InvalidArgument, lambda: operator.watch("line", from_step=-1), "from_step is -1")
                train(job)
        assert steps_of(operator.watch("line", from_step=4)) == [4] and watch_threads() == []


def watched_over_crashes(**options):
    """All rows that a watch has told, and the whole history. The server is killed twice."""
    with ampd.testing.server() as server, ampd.connect(server.endpoint) as operator:
        with join(server, max_steps=30, **options) as job, operator.watch("line") as watch:
            rows = []
            for steps in (12, 3):
                train(job, steps)
                decided = list(operator.history("line"))[-1]
                while not rows or rows[-1] != decided:
                    rows.append(next(watch))
                server.kill()
                server.start()
            train(job)
            rows += watch
        return rows, list(operator.history("line", include_superseded=True))


def test_a_watch_goes_on_over_crashes_of_the_server():
    rows, history = watched_over_crashes(durability="step")
    assert steps_of(rows) == list(range(1, 31)) and {row.epoch for row in rows} == {1}
    rows, history = watched_over_crashes(checkpoint_every=5)
    assert {row.epoch for row in rows} == {1, 2, 3}
    # As in the history, but that nobody knew then what would be rolled back; epoch 1 began before the watch did.
    assert rows == [dataclasses.replace(row, superseded=False) for row in history[1:]]


def test_a_watch_tells_of_a_rollback():
    with ampd.testing.server() as server, ampd.connect(server.endpoint) as operator:
        with join(server, max_steps=4, checkpoint_every=0) as job, operator.watch("line") as watch:
            train(job, 3)
            rows = [next(watch) for _ in range(3)]  # what is rolled back before the watch has it is left out
            operator.rollback("line", 0)
            train(job)
            places = [(row.epoch, row.kind, row.step) for row in [*rows, *watch]]
        assert places == [(1, "step", 1), (1, "step", 2), (1, "step", 3), (2, "epoch", 1), (2, "step", 1),
                          (2, "step", 2), (2, "step", 3), (2, "step", 4)], places


def test_a_reader_that_is_slow_misses_nothing():
    kept, _watch.QUEUE_ROWS_MAX = _watch.QUEUE_ROWS_MAX, 8
    try:
        with ampd.testing.server() as server, ampd.connect(server.endpoint) as operator:
            with join(server, max_steps=100, cast="float16") as job, operator.watch("line") as watch:
                train(job, 50)
                operator.set_scale("line", 4.0)
                operator.reset_scale("line")
                train(job)
                rows = list(watch)
            assert rows == [row for row in operator.history("line") if row.kind != "epoch"]
            assert steps_of(rows) == list(range(1, 101)) and len(rows) == 102
    finally:
        _watch.QUEUE_ROWS_MAX = kept


def watch_threads():
    return [one for one in threading.enumerate() if one.name.startswith("ampd-watch")]


def test_ctrl_c_close_and_oblivion_end_a_watch_at_once():
    with ampd.testing.server() as server, ampd.connect(server.endpoint) as operator, join(server) as job:
        job.begin()
        took = interrupted_after(0.5, lambda: list(operator.watch("line")))
        assert took < 5 and watch_threads() == [], (took, watch_threads())
        watch = operator.watch("line")
        assert len(watch_threads()) == 1
        began = time.monotonic()
        watch.close()
        assert time.monotonic() - began < 5 and watch_threads() == []
        operator.watch("line")
        gc.collect()
        assert eventually(lambda: watch_threads() == [])
        server.kill()
        server.start()
        watch = operator.watch("line")
        server.kill()
        took = interrupted_after(0.5, lambda: list(watch))
        assert took < 5 and watch_threads() == [], took
        server.start()


def test_a_close_by_another_thread_or_a_signal_handler_ends_the_reader():
    with ampd.testing.server() as server, ampd.connect(server.endpoint) as operator, join(server) as job:
        train(job, 2)
        for close_by in (lambda watch: threading.Timer(0.3, watch.close).start(),
                         lambda watch: signal.setitimer(signal.ITIMER_REAL, 0.3)):
            watch = operator.watch("line", from_step=1)
            before = signal.signal(signal.SIGALRM, lambda *_: watch.close())
            try:
                close_by(watch)
                assert steps_of(watch) == [1, 2] and list(watch) == []
            finally:
                signal.signal(signal.SIGALRM, before)
            assert eventually(lambda: watch_threads() == [])


def test_a_program_may_end_with_a_watch_open():
    program = ("import sys; sys.path.insert(0, sys.argv[1]); import ampd; "
               "watch = ampd.connect(sys.argv[2]).watch('line', from_step=1); print(next(watch).kind)")
    with ampd.testing.server() as server, join(server) as job:
        train(job, 1)
        began = time.monotonic()
        done = subprocess.run([sys.executable, "-c", program, str(pathlib.Path(ampd.__file__).parents[1]),
                               server.endpoint], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
                              timeout=60 * PATIENCE, check=False)
        assert (done.returncode, done.stdout) == (0, "step\n"), done
        assert time.monotonic() - began < 5 * PATIENCE


def test_a_watch_of_a_lost_server_gives_up_in_time_and_of_a_deleted_model_at_once():
    with ampd.testing.server() as server, ampd.connect(server.endpoint, reconnect_timeout=0.5) as operator:
        join(server, max_steps=0).leave()
        watch = operator.watch("line")
        operator.delete("line")
        raises(ampd.NotFound, lambda: next(watch), "line")
        join(server, max_steps=0).leave()
        watch = operator.watch("line")
        server.kill()
        raises(ampd.Unavailable, lambda: next(watch))
        assert list(watch) == []


def test_a_watch_of_a_model_that_stays_in_recovery_ends_and_says_what_it_waits_for():
    def recovers(self, client, method, **fields):
        answer = ask(self, client, method, **fields)
        if method == "GetModel":
            answer.status.recovering, answer.status.waiting_for = True, "an operator's help: a disk is gone"
        return answer

    ask = _watch._Stream._ask
    with ampd.testing.server() as server, ampd.connect(server.endpoint, reconnect_timeout=0.5) as operator, \
            mock.patch.object(_watch._Stream, "_ask", recovers):
        with join(server, max_steps=0) as job:
            train(job, 1)
        watch = operator.watch("line", from_step=1)
        assert next(watch).step == 1
        server.kill()
        server.start()
        error = raises(ampd.Unavailable, lambda: next(watch), "line is recovering", "a disk is gone")
        assert error.reason == "RECOVERING"


# ---- who may ----

def token(path, role):
    done = subprocess.run([ampd.testing.program("ampctl"), "token", "new", role, role, "--append", str(path)],
                          stdout=subprocess.PIPE, encoding="utf-8", timeout=60 * PATIENCE, check=True)
    own = path.with_name(role)
    own.write_text(done.stdout)
    own.chmod(0o600)
    return own


def test_a_token_to_read_may_watch_and_may_not_set_the_scale():
    with folder() as place:
        tokens = pathlib.Path(place) / "tokens"
        files = {role: token(tokens, role) for role in ("read", "worker", "operator")}
        with ampd.testing.server(options=["--token-file", str(tokens)]) as server:
            raises(ampd.Denied, lambda: ampd.connect(server.endpoint).status())
            with join(server, token_file=files["worker"]) as job:
                with ampd.connect(server.endpoint, token_file=files["read"]) as reader:
                    watch = reader.watch("line")
                    train(job)
                    assert steps_of(watch) == [1, 2, 3, 4, 5] and reader.explain("line", 1).row.applied
                    error = raises(ampd.Denied, lambda: reader.set_scale("line", 2.0), "operator")
                    assert (error.code, error.reason) == ("EDENIED", "ROLE_REQUIRED")
                    raises(ampd.Denied, lambda: reader.masters("line"), "operator")
                raises(ampd.Denied, job.state_dict, "operator", "state_dict(masters=False)")
                assert (job.state_dict(masters=False)["b"] == numpy.arange(5) - MOVED * 5).all()
            with ampd.connect(server.endpoint, token_file=files["operator"]) as operator:
                assert (operator.masters("line")["b"] == numpy.arange(5) - MOVED * 5).all()


# ---- a cluster ----

def test_a_cluster_is_operated_through_any_shard():
    with ampd.testing.cluster(3) as cluster, ampd.connect(cluster.servers[2].endpoint) as operator:
        with join(cluster, shapes=LARGE) as job, operator.watch("line") as watch:
            train(job)
            assert steps_of(watch) == [1, 2, 3, 4, 5]
        shards = operator.cluster("line")
        assert [(one.index, one.state, one.decided_step) for one in shards] == [(k, "up", 5) for k in range(3)]
        assert [one.endpoint for one in shards] == [one.endpoint for one in cluster.servers]
        assert all(one.decided_step is None for one in operator.cluster())
        assert_equal(operator.masters("line"), exported(cluster.endpoint, "line"))
        assert operator.status().shard_count == 3 and operator.model("line").state == "done"


def test_a_value_that_one_shard_refuses_ends_the_load_at_once_with_its_sentence():
    with ampd.testing.cluster(2) as cluster:
        for name in "big", "long":  # of which the first shard has one, the second the other
            values = {one: numpy.zeros(200000, numpy.float32) for one in ("big", "long")}
            values[name][100000] = numpy.nan
            began = time.monotonic()
            raises(ampd.InvalidArgument, lambda: ampd.join(cluster.endpoint, name, values, call_timeout=100 * PATIENCE),
                   name, "give finite ones")
            assert time.monotonic() - began < 50 * PATIENCE


# ---- the rest ----

def test_a_server_drains():
    with ampd.testing.server() as server:
        with ampd.connect(server.endpoint) as operator:
            operator.drain(grace=0.1)
        server.process.wait(60 * PATIENCE)
        assert server.process.returncode == 0


def test_a_drain_is_asked_for_once_and_is_done_where_the_server_is_ending():
    from ampd import errors

    def ending(method, request):
        raise errors.error_of("EUNAVAILABLE", "the server is ending; connect again", "DRAINING")

    with ampd.testing.server() as server, ampd.connect(server.endpoint, reconnect_timeout=60) as operator:
        server.kill()
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            asked = pool.submit(operator.drain)
            eventually(asked.done, 3)
            server.start()  # another process in the place of the one that was to end
            raises(ampd.Unavailable, asked.result)
        with mock.patch.object(operator.client, "ask", ending):
            operator.drain()
        assert not operator.status().draining


def test_the_history_has_the_losses_that_were_told():
    with ampd.testing.server() as server, join(server, max_steps=6) as job:
        raises(ampd.WrongState, lambda: job.tell_loss(1), "no step has begun")
        for step in job.steps():
            for name, array in job.parameters.items():
                step.push(name, numpy.zeros(array.shape, array.dtype))
            if step.number == 1:
                step.loss = numpy.float32(0.5)  # as for a line of progress
            elif step.number == 2:
                step.loss = 0.5
                step.tell_loss(numpy.array([0.25]))  # which goes before
                step.tell_metric("accuracy", 0.75)
                step.tell_metric("größe", numpy.inf)
            elif step.number == 3:
                job.tell_loss(math.nan)
            elif step.number == 4:
                job.tell_loss(1e300)  # beyond float
            elif step.number == 5:
                step.loss = numpy.zeros(3)  # which is told once to be none, and costs no step
        rows = [row for row in job.server.history(job.name) if row.kind == "step"]
        raises(ampd.WrongState, lambda: job.tell_metric("accuracy", 1), "no step has begun")
        raises(ampd.InvalidArgument, lambda: job.tell_loss("much"), "one number")
        raises(ampd.InvalidArgument, lambda: job.tell_metric("a=b", 1), "1 to 32 bytes")
    assert [row.loss for row in rows[:2]] == [0.5, 0.25] and math.isnan(rows[2].loss), rows
    assert [row.loss for row in rows[3:]] == [math.inf, None, None] and rows[4].metrics == {}
    assert [row.loss_workers for row in rows] == [1, 1, 1, 1, 0, 0]
    assert rows[1].metrics == {"accuracy": 0.75, "größe": math.inf}
    assert len({row for row in rows}) == 6  # they can be kept in a set


def test_without_protobuf_a_sentence_names_the_package():
    program = ("import sys; sys.path.insert(0, sys.argv[1]); sys.modules['google.protobuf'] = None; import ampd\n"
               "try: ampd.connect\nexcept ImportError as error: print(error)")
    done = subprocess.run([sys.executable, "-c", program, str(pathlib.Path(ampd.__file__).parents[1])],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", timeout=60 * PATIENCE,
                          check=False)
    assert done.returncode == 0 and "python3-protobuf" in done.stdout and "Traceback" not in done.stdout, done


def test_every_name_of_the_package_is_there():
    for name in ampd.__all__:
        if name not in ("GradScaler", "Optimizer"):  # those take torch
            assert getattr(ampd, name) is not None
    assert set(ampd.__all__) <= set(dir(ampd))  # what completion offers
    assert ampd.testing.server


run(globals())
