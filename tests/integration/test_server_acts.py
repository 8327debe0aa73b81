#!/usr/bin/python3
"""What operators do to a model: SetScale, ResetScale, SetLearningRate, Rollback, DeleteModel, by RPC and by ampctl; and the rules of a step that
only a server shows: shrink, the floor, clipping by group.

    test_server_acts.py BIN_DIR [NAME ...]
"""
import csv
import io
import json
import math
import os
import pty
import subprocess
import threading

from ampd_testing import PATIENCE, Code, common, eventually, model, refused, run, scales, together

APPLIED, OVERFLOW = common.VERDICT_APPLIED, common.VERDICT_SKIPPED_OVERFLOW
INF = math.inf
RATE = scales.HISTORY_KIND_LEARNING_RATE_SET
SET, RESET, EPOCH = scales.HISTORY_KIND_SCALE_SET, scales.HISTORY_KIND_SCALE_RESET, scales.HISTORY_KIND_EPOCH


def step(worker, value=0.0):
    """One pull and push of one value; the StepResult."""
    worker.pull()
    return worker.push({"w": [value] * 4})


def ampctl(context, server, *arguments, code=0):
    done = subprocess.run([context.bin_dir / "ampctl", "--endpoint", f"127.0.0.1:{server.port}", *arguments], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, encoding="utf-8", timeout=60, check=False,
                          env=dict(os.environ, LC_ALL="C.UTF-8"))
    assert done.returncode == code, f"{arguments}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout if code == 0 else done.stderr


# ---- SetScale, ResetScale ----

def test_a_scale_set_by_hand_is_that_of_the_next_step_and_in_the_history(context):
    worker = context.model().worker()
    worker.pull()
    api, name = worker.api, worker.model.name
    answer = api.SetScale(model=name, scale=64.0, reason="the loss spikes")
    assert (answer.record.scale, answer.record.scale_id, answer.from_step) == (64.0, 2, 2), answer
    result = worker.push({"w": [INF] * 4})
    assert (result.verdict, result.old_scale, result.new_scale) == (OVERFLOW, 1024.0, 64.0), result
    header, _ = worker.pull()
    assert (header.scale, header.scale_id) == (64.0, 2), header
    assert worker.push({"w": [0.0] * 4}).new_scale == 64.0
    answer = api.ResetScale(model=name)
    assert (answer.record.scale, answer.record.attempted) == (1024.0, 2)
    rows = [row for row in worker.model.history() if row.kind in (SET, RESET)]
    assert [(row.kind, row.step, row.from_step, row.old_scale, row.record.scale, row.reason) for row in rows] == \
        [(SET, 1, 2, 1024.0, 64.0, "the loss spikes"), (RESET, 3, 4, 64.0, 1024.0, "")], rows
    assert all(row.actor and row.HasField("decide_time") for row in rows), rows
    assert api.GetScale(model=name).record.scale == 1024.0


def test_a_request_is_done_once_also_after_a_restart(context):
    server = context.server()
    test_model = context.model("once", server)
    worker = test_model.worker()
    first = test_model.api.SetScale(model="once", scale=64.0, request_id="r-1")
    assert test_model.api.SetScale(model="once", scale=64.0, request_id="r-1") == first
    assert len([row for row in test_model.history() if row.kind == SET]) == 1
    refused(lambda: test_model.api.SetScale(model="once", scale=32.0, request_id="r-1"), Code.INVALID_ARGUMENT,
            "REQUEST_ID_USED", "r-1")
    refused(lambda: test_model.api.SetScale(model="once", scale=32.0, request_id="server/1/1"), Code.INVALID_ARGUMENT,
            "INVALID_FIELD", "server/")
    step(worker)
    rolled = test_model.api.Rollback(model="once", epoch=1, step=0, request_id="r-2", reason="again")
    assert (rolled.epoch, rolled.step) == (2, 1), rolled
    server.restart_after_kill()
    test_model.reconnect()
    eventually(lambda: not test_model.status().recovering, "the end of recovery")
    assert test_model.api.Rollback(model="once", epoch=1, step=0, request_id="r-2") == rolled
    refused(lambda: test_model.api.SetScale(model="once", scale=64.0, request_id="r-1"), Code.FAILED_PRECONDITION,
            "ACT_LOST", "rolled back")


def test_what_cannot_be_a_scale_is_refused(context):
    test_model = context.model()
    api, name = test_model.api, test_model.name
    for wrong in (0.0, -1.0, 0.5, 2.0 ** 25, INF, math.nan):
        refused(lambda s=wrong: api.SetScale(model=name, scale=s), Code.INVALID_ARGUMENT, "INVALID_FIELD", "scale")
    refused(lambda: api.SetScale(model="nobody", scale=8.0), Code.NOT_FOUND, "MODEL_NOT_FOUND", "nobody")
    assert api.GetScale(model=name).record.scale_id == 1


# ---- SetLearningRate ----

SGD = model.OptimizerSpec(kind=model.OPTIMIZER_KIND_SGD, learning_rate=1.0)


def latest(test_model):
    _, tensors = test_model.latest()
    return tensors["w"][0]


def test_a_rate_set_by_hand_is_that_of_the_open_step_and_in_the_history(context):
    test_model = context.model(optimizer=SGD, schedule=model.ScheduleSpec(kind=model.SCHEDULE_KIND_STEP, step_size=2, gamma=0.5))
    worker = test_model.worker()
    first = latest(test_model)
    assert step(worker, 1024.0).learning_rate == 1.0
    assert test_model.status().learning_rate == 1.0
    worker.pull()
    answer = test_model.api.SetLearningRate(model=test_model.name, learning_rate=0.25, reason="it oscillates")
    assert (answer.learning_rate, answer.from_step) == (0.25, 2), answer
    assert test_model.status().learning_rate == 0.25
    assert worker.push({"w": [1024.0] * 4}).learning_rate == 0.25
    assert step(worker, 1024.0).learning_rate == 0.125  # the schedule goes on
    assert first - latest(test_model) == 1 + 0.25 + 0.125
    rows = [row for row in test_model.history() if row.kind == RATE]
    assert [(row.step, row.from_step, row.learning_rate, row.old_learning_rate, row.reason, row.old_scale, row.record.scale)
            for row in rows] == [(2, 2, 0.25, 1.0, "it oscillates", 1024.0, 1024.0)], rows
    assert all(row.actor and row.HasField("decide_time") for row in rows), rows


def test_a_rate_that_was_set_outlives_a_kill_with_durability_step(context):
    server = context.server()
    test_model = context.model("lasting", server, optimizer=SGD, durability=model.DURABILITY_STEP)
    worker = test_model.worker()
    start = latest(test_model)
    step(worker, 1024.0)
    first = test_model.api.SetLearningRate(model="lasting", learning_rate=0.25, request_id="r-1")
    server.restart_after_kill()
    test_model.reconnect()
    eventually(lambda: not test_model.status().recovering, "the end of recovery")
    assert (test_model.status().epoch, test_model.status().learning_rate) == (1, 0.25)
    assert test_model.api.SetLearningRate(model="lasting", learning_rate=0.25, request_id="r-1") == first
    assert [row.old_learning_rate for row in test_model.history() if row.kind == RATE] == [1.0]
    refused(lambda: test_model.api.SetLearningRate(model="lasting", learning_rate=0.5, request_id="r-1"), Code.INVALID_ARGUMENT,
            "REQUEST_ID_USED", "r-1")
    worker = test_model.worker()
    assert step(worker, 1024.0).learning_rate == 0.25
    assert start - latest(test_model) == 1.25


def test_a_rollback_brings_the_rate_of_its_checkpoint_back(context):
    test_model = context.model("back", optimizer=SGD, checkpoint_every=1, keep_last=8)
    api, worker = test_model.api, test_model.worker()
    step(worker)
    api.SetLearningRate(model="back", learning_rate=0.5)
    step(worker)
    api.SetLearningRate(model="back", learning_rate=0.25, request_id="late")
    step(worker)
    eventually(lambda: test_model.status().durable_step == 3, "the checkpoint of step 3")
    for to, rate in ((2, 0.5), (1, 1.0)):
        epoch = max(one.epoch for one in api.ListCheckpoints(model="back").checkpoints if one.step == to)
        api.Rollback(model="back", epoch=epoch, step=to)
        assert test_model.status().learning_rate == rate
        assert step(test_model.worker()).learning_rate == rate
        refused(lambda: api.SetLearningRate(model="back", learning_rate=0.25, request_id="late"), Code.FAILED_PRECONDITION, "ACT_LOST",
                "learning rate")


def test_what_cannot_be_a_rate_is_refused(context):
    test_model = context.model()
    api, name = test_model.api, test_model.name
    for wrong in (0.0, -1.0, 1e39, INF, math.nan):
        refused(lambda r=wrong: api.SetLearningRate(model=name, learning_rate=r), Code.INVALID_ARGUMENT, "INVALID_FIELD", "learning_rate")
    refused(lambda: api.SetLearningRate(model="nobody", learning_rate=1.0), Code.NOT_FOUND, "MODEL_NOT_FOUND", "nobody")
    told = context.model(schedule=model.ScheduleSpec(kind=model.SCHEDULE_KIND_WORKER))
    refused(lambda: told.api.SetLearningRate(model=told.name, learning_rate=1.0), Code.FAILED_PRECONDITION, "WORKERS_GIVE_RATE",
            "in the workers")
    assert told.status().learning_rate == 0
    done = context.model(max_steps=1)
    step(done.worker())
    eventually(lambda: done.status().state == common.MODEL_STATE_DONE, "the end of the model")
    refused(lambda: done.api.SetLearningRate(model=done.name, learning_rate=1.0), Code.FAILED_PRECONDITION, "MODEL_DONE")


def test_ampctl_sets_a_rate_and_shows_it(context):
    test_model = context.model("shown", context.server(), max_steps=2)
    worker = test_model.worker()
    step(worker)
    shown = json.loads(ampctl(context, test_model.server, "status", "shown", "-o", "json"))["models"][0]
    assert (shown["learning_rate"], shown["learning_rate_set"]) == (0.5, None), shown
    assert ", learning_rate 0.5, " in ampctl(context, test_model.server, "status", "shown")
    for none in ("5e-324", "1e-46"):  # 0 as fp32
        said = ampctl(context, test_model.server, "set-lr", "shown", none, code=64 + 3)
        assert "give a number from 1.4013e-45 to 3.40282e+38" in said, said
    said = json.loads(ampctl(context, test_model.server, "set-lr", "shown", "0.25", "--reason", "why not", "-o", "json"))
    said = said[0] if isinstance(said, list) else said
    assert (said["learning_rate"], said["from_step"]) == (0.25, 2), said
    shown = json.loads(ampctl(context, test_model.server, "status", "shown", "-o", "json"))
    [shown] = shown["models"]
    assert shown["learning_rate"] == shown["learning_rate_set"] == 0.25, shown
    assert shown["specification"]["optimizer"]["learning_rate"] == 0.5, shown
    shown = ampctl(context, test_model.server, "status", "shown")
    assert ", learning_rate 0.5 (now 0.25, set by an operator), " in shown, shown
    rows = [row for row in csv.DictReader(io.StringIO(ampctl(context, test_model.server, "history", "shown", "-o", "csv")))
            if row["kind"] == "learning_rate_set"]
    assert [(float(row["learning_rate"]), float(row["old_learning_rate"])) for row in rows] == [(0.25, 0.5)], rows
    shown = ampctl(context, test_model.server, "history", "shown")
    assert "learning_rate_set" in shown and "0.25, was 0.5 " in shown, shown
    [acted] = [row for row in test_model.history() if row.kind == RATE]
    assert acted.actor and [(row["actor"], row["reason"]) for row in rows] == [(acted.actor, "why not")], rows
    heading, *lines = shown.splitlines()
    assert heading.split()[-3:] == ["TIME", "ACTOR", "REASON"], heading
    ends = {line.split()[2]: line[heading.index("ACTOR"):].split(maxsplit=1) for line in lines}
    assert ends["learning_rate_set"] == [acted.actor, "why not"] and ends["step"] == ["-", "-"], shown
    step(worker)
    watched = ampctl(context, test_model.server, "watch", "shown", "--from", "1")  # to the end of the model
    assert " learning rate 0.25, was 0.5\n" in watched and watched.count("learning rate") == 1, watched
    assert "above 0" in ampctl(context, test_model.server, "set-lr", "shown", "0", code=2)


# ---- EvictWorker ----

def evictions(test_model):
    return [row for row in test_model.history() if row.kind == scales.HISTORY_KIND_EVICTED]


def test_an_evicted_worker_is_refused_and_the_others_go_on_without_it(context):
    test_model = context.model(world_size=2, on_loss=model.ON_LOSS_SHRINK)
    first, second = test_model.workers(2)
    step(first)  # the first step had opened before the second worker came; the next one has both
    second.step = first.step
    for worker in (first, second):
        worker.pull()
    together([first, second], {"w": [0.0] * 4})
    test_model.api.EvictWorker(model=test_model.name, rank=1, reason="its GPU is broken")
    [row] = evictions(test_model)
    assert (row.rank, row.step, row.reason, row.contributors) == (1, 3, "its GPU is broken", 0), row
    assert row.actor and row.HasField("decide_time") and row.old_scale == row.record.scale, row
    [status] = [worker for worker in test_model.status().workers if worker.rank == 1]
    assert not status.live and status.lease_left_ms == 0, status
    refused(lambda: step(second), Code.ABORTED, "RANK_TAKEN", ("rank 1 was evicted by an operator", "start the worker"))
    kept = test_model.api.KeepAlive(**second.identity())
    assert not kept.incarnation_valid and "evicted" in kept.taken_by, kept
    for value in (1.0, INF, 0.0):  # the first one alone
        step(first, value)
    rows = test_model.step_rows()[1:]
    assert [row.contributors for row in rows] == [2, 1, 1, 1] and rows[2].verdict == OVERFLOW, rows
    other = test_model.worker("another", rank=1)  # the rank is free, without `replace`
    assert other.rank == 1 and other.incarnation != second.incarnation
    assert "rank 1 (w1) is evicted by" in test_model.server.log()


def test_an_eviction_says_nothing_about_the_scale(context):
    """The open step's verdict moves the policy as if nothing had been done; a scale that is set is not lost behind it."""
    test_model = context.model(world_size=2, on_loss=model.ON_LOSS_SHRINK)
    first, second = test_model.workers(2)
    for worker in (first, second):
        worker.pull()
    for rank in (1, 1):  # behind the same step twice; the second time nobody holds it
        test_model.api.EvictWorker(model=test_model.name, rank=rank)
    assert first.push({"w": [INF] * 4}).new_scale == 512.0
    test_model.api.EvictWorker(model=test_model.name, rank=1)
    test_model.api.SetScale(model=test_model.name, scale=64.0)
    test_model.api.EvictWorker(model=test_model.name, rank=1)
    first.pull()
    assert first.push({"w": [0.0] * 4}).new_scale == 64.0
    assert len(evictions(test_model)) == 4, evictions(test_model)


def test_an_eviction_is_done_once_also_after_a_restart(context):
    server = context.server()
    test_model = context.model("once", server, world_size=2, on_loss=model.ON_LOSS_SHRINK, durability=model.DURABILITY_STEP)
    first, second = test_model.workers(2)
    for worker in (first, second):
        worker.pull()
    together([first, second], {"w": [0.0] * 4})
    for _ in range(2):
        test_model.api.EvictWorker(model="once", rank=1, request_id="r-1")
    refused(lambda: test_model.api.EvictWorker(model="once", rank=0, request_id="r-1"), Code.INVALID_ARGUMENT, "REQUEST_ID_USED")
    server.restart_after_kill()
    test_model.reconnect()
    eventually(lambda: not test_model.status().recovering, "the end of recovery")
    test_model.api.EvictWorker(model="once", rank=1, request_id="r-1")
    refused(lambda: test_model.api.EvictWorker(model="once", rank=0, request_id="r-1"), Code.INVALID_ARGUMENT, "REQUEST_ID_USED")
    assert [row.rank for row in evictions(test_model)] == [1]
    assert [worker.live for worker in test_model.status().workers if worker.rank == 1] == [False], test_model.status()
    refused(lambda: step(second), Code.ABORTED, "FENCED", "join again")
    again = test_model.worker("w1", rank=1)  # it may: the request that evicted the one before does not evict this one
    test_model.api.EvictWorker(model="once", rank=1, request_id="r-1")
    assert test_model.api.KeepAlive(**again.identity()).incarnation_valid


def test_what_cannot_be_evicted_is_refused(context):
    test_model = context.model()
    api, name = test_model.api, test_model.name
    refused(lambda: api.EvictWorker(model=name, rank=1), Code.INVALID_ARGUMENT, "RANK", "world_size")
    refused(lambda: api.EvictWorker(model="nobody", rank=0), Code.NOT_FOUND, "MODEL_NOT_FOUND", "nobody")
    refused(lambda: api.EvictWorker(model=name, rank=0, request_id="server/1"), Code.INVALID_ARGUMENT, "INVALID_FIELD")
    assert not evictions(test_model)
    done = context.model(max_steps=1)
    step(done.worker())
    eventually(lambda: done.status().state == common.MODEL_STATE_DONE, "the model is done")
    refused(lambda: done.api.EvictWorker(model=done.name, rank=0), Code.FAILED_PRECONDITION, "MODEL_DONE")


def test_ampctl_evict_says_so_where_nobody_held_the_rank(context):
    context.model("m", world_size=3).worker("w1", rank=1)
    again = ("--request-id", "e-1")  # whose answer was lost, and who is told to ask again like this
    for rank, held, *more in (("0", False), ("1", True, *again), ("1", True, *again), ("1", False)):
        done = subprocess.run([context.bin_dir / "ampctl", "-e", f"127.0.0.1:{context.shared.port}", "evict", "m", rank, *more],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", timeout=60, check=True)
        assert done.stdout.splitlines()[1].split() == ["m", rank], done.stdout
        nobody = f"ampctl: evict: nobody held rank {rank} of m; only the history has a row of it\n"
        assert done.stderr == ("" if held else nobody), done.stderr


def test_ampctl_evict_of_a_worker_whose_lease_has_ended_does_not_say_that_nobody_held_the_rank(context):
    """It is told to stop when it comes back."""
    server = context.server("--worker-lease", "3s")
    worker = context.model("m", server, world_size=2).worker("w1", rank=1)
    eventually(lambda: not any(one.live for one in worker.model.status().workers), "its lease has ended")
    done = subprocess.run([context.bin_dir / "ampctl", "-e", f"127.0.0.1:{server.port}", "evict", "m", "1"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", timeout=60, check=True)
    assert "evicted" in worker.api.KeepAlive(**worker.identity()).taken_by
    assert done.stderr == "", done.stderr


def test_ampctl_evicts(context):
    server = context.server()
    test_model = context.model("net", server, world_size=2, on_loss=model.ON_LOSS_SHRINK, max_steps=2)
    worker, _ = test_model.workers(2)
    told = json.loads(ampctl(context, server, "-o", "json", "evict", "net", "1", "--reason", "slow", "--request-id", "e-1"))
    assert told == {"model": "net", "rank": 1, "request_id": "e-1"}, told
    rows = json.loads(ampctl(context, server, "-o", "json", "history", "net"))["rows"]
    [row] = [row for row in rows if row["kind"] == "evicted"]
    assert (row["rank"], row["reason"], row["verdict"]) == (1, "slow", None) and row["actor"], row
    told = ampctl(context, server, "-o", "csv", "history", "net")
    assert [row["rank"] for row in csv.DictReader(io.StringIO(told))] == ["", "1"], told
    heading, *lines = ampctl(context, server, "history", "net").splitlines()
    assert [line[:heading.index(" RANK") + 5].split()[-1] for line in lines] == ["-", "1"], (heading, lines)
    for wrong in (("evict",), ("evict", "net"), ("evict", "net", "x"), ("evict", "net", "1", "2"), ("evict", "net", "4294967296")):
        ampctl(context, server, *wrong, code=2)
    assert "world_size" in ampctl(context, server, "evict", "net", "7", code=64 + 3)
    step(worker)
    ampctl(context, server, "evict", "net", "1")
    step(worker)
    watched = ampctl(context, server, "watch", "net", "--from", "1")  # to the end of the model
    assert [line.endswith(" rank 1") for line in watched.splitlines() if " evicted " in line] == [True], watched
    assert watched.count(" rank ") == 1, watched


# ---- Rollback ----

def test_workers_go_on_from_the_checkpoint_under_the_new_epoch(context):
    test_model = context.model(world_size=2, checkpoint_every=2)
    workers = test_model.workers(2)
    first = []
    for at in range(5):
        for worker in workers:
            worker.pull()
        if at == 2:
            first = test_model.latest()[1]
        together(workers, {"w": [float(at)] * 4})
    api, name = test_model.api, test_model.name
    eventually(lambda: len(api.ListCheckpoints(model=name).checkpoints) == 3, "the checkpoints")
    push = workers[0].start_push({"w": [0.0] * 4}, step=6)
    rolled = api.Rollback(model=name, epoch=1, step=2, reason="diverged")
    assert (rolled.epoch, rolled.step) == (2, 3), rolled
    refused(push.result, (Code.UNAVAILABLE, Code.ABORTED))
    refused(lambda: workers[1].start_push({"w": [0.0] * 4}, step=6).result(), Code.ABORTED, "ROLLED_BACK", "epoch 2",
            metadata={"epoch": 2, "step": 3})
    answer = api.KeepAlive(**workers[0].identity())
    assert (answer.epoch, answer.step, answer.incarnation_valid) == (2, 3, False), answer
    for worker in workers:
        worker.join()
        assert (worker.epoch, worker.step) == (2, 3)
    for worker in workers:
        worker.pull()
    assert test_model.latest()[1] == first
    together(workers, {"w": [1.0] * 4})
    row, = [row for row in test_model.history(epoch=2) if row.kind == EPOCH]
    assert (row.parent_epoch, row.parent_step, row.base_epoch, row.base_step, row.reason) == (1, 5, 1, 2, "diverged"), row
    assert row.actor not in ("", "server")
    assert [(c.epoch, c.step) for c in api.ListCheckpoints(model=name).checkpoints] == [(1, 2), (1, 0)]
    refused(lambda: api.Rollback(model=name, epoch=1, step=4), Code.NOT_FOUND, "CHECKPOINT_NOT_FOUND", "step 4")


def test_files_above_the_checkpoint_of_a_rollback_go_and_their_steps_are_written_again(context):
    server = context.server()
    test_model = context.model("net", server, checkpoint_every=2)
    worker = test_model.worker()
    folder = server.data_dir / "models" / "net" / "checkpoints"

    def steps():
        return sorted(int(path.name.removeprefix("step-")) for path in folder.iterdir())

    def train(count, value):
        for _ in range(count):
            worker.train({"w": [value] * 4})

    train(5, 1.0)
    eventually(lambda: test_model.status().durable_step == 4 and steps() == [0, 2, 4], "three checkpoints")
    first = {step: next((folder / f"step-{step:010}").iterdir()).read_bytes() for step in (2, 4)}
    test_model.api.Rollback(model="net", epoch=1, step=2)
    eventually(lambda: steps() == [0, 2], "the file of step 4 is removed")
    worker.join()
    assert (worker.epoch, worker.step) == (2, 3)
    train(2, 2.0)
    eventually(lambda: test_model.status().durable_step == 4, "step 4 is there again")
    assert steps() == [0, 2, 4]
    assert next((folder / "step-0000000002").iterdir()).read_bytes() == first[2]
    assert next((folder / "step-0000000004").iterdir()).read_bytes() != first[4]
    tensors = test_model.latest()[1]
    server.restart_after_kill()
    test_model.reconnect()
    assert (test_model.status().durable_step, test_model.latest()[1]) == (4, tensors)
    assert steps() == [0, 2, 4]


def test_a_watch_goes_on_over_a_rollback(context):
    worker = context.model(checkpoint_every=1).worker()
    step(worker)
    name = worker.model.name
    eventually(lambda: len(worker.api.ListCheckpoints(model=name).checkpoints) == 2, "the checkpoint of step 1")
    watch = worker.api.start("WatchSteps", model=name, from_step=1)
    assert watch.next().row.step == 1
    worker.api.SetScale(model=name, scale=8.0)
    assert watch.next().row.kind == SET
    worker.api.Rollback(model=name, epoch=1, step=1)
    row = watch.next().row
    assert (row.kind, row.epoch, row.base_step) == (EPOCH, 2, 1), row
    watch.cancel()


def test_a_watch_of_new_rows_has_the_acts_behind_the_newest_step_and_not_those_before_it_began(context):
    worker = context.model(checkpoint_every=1).worker()
    step(worker)
    name = worker.model.name
    worker.api.SetScale(model=name, scale=4.0)
    watch = worker.api.start("WatchSteps", model=name)
    worker.api.GetScale(model=name)  # once it is answered, the watch has begun; where, its first read may still look for
    seen = threading.Event()

    def act():
        scale = 8.0
        while not seen.is_set():
            worker.api.SetScale(model=name, scale=scale)
            scale += 1.0

    acting = threading.Thread(target=act)
    acting.start()
    row = watch.next().row
    seen.set()
    acting.join()
    assert row.kind == SET and row.step == 2 and row.record.scale >= 8.0, row
    watch.cancel()


# ---- DeleteModel ----

def test_a_deleted_model_is_gone_with_its_files_and_its_name_is_free(context):
    server = context.server()
    test_model = context.model("gone", server, checkpoint_every=1)
    worker = test_model.worker()
    for _ in range(3):
        step(worker)
    api = test_model.api
    refused(lambda: api.DeleteModel(model="gone"), Code.FAILED_PRECONDITION, "MODEL_IN_USE", "rank 0")
    watch = api.start("WatchSteps", model="gone", from_step=1)
    watch.next()  # it is open
    worker.pull()
    pull = api.start("Pull", model="gone", epoch=1, step=5)
    api.DeleteModel(model="gone", force=True)
    refused(pull.all, Code.NOT_FOUND, "MODEL_NOT_FOUND", "deleted")
    refused(watch.all, Code.NOT_FOUND, "MODEL_NOT_FOUND", "deleted")
    assert not api.ListModels().models and not api.GetStatus().models
    refused(lambda: api.GetModel(model="gone"), Code.NOT_FOUND, "MODEL_NOT_FOUND")
    refused(lambda: api.DeleteModel(model="gone"), Code.NOT_FOUND, "MODEL_NOT_FOUND")
    assert not (server.data_dir / "models" / "gone").exists()
    again = context.model("gone", server)
    fresh = again.worker()
    assert (fresh.epoch, fresh.step) == (2, 1)  # above those of the deleted model
    assert step(fresh).verdict == APPLIED
    server.restart_after_kill()
    again.reconnect()
    eventually(lambda: not again.status().recovering, "the end of recovery")
    assert [m.name for m in again.api.ListModels().models] == ["gone"]
    assert {row.epoch for row in again.history()} <= {2, 3}


def test_a_model_whose_workers_have_left_needs_no_force(context):
    worker = context.model().worker()
    worker.api.Leave(**worker.identity())
    worker.api.DeleteModel(model=worker.model.name)
    refused(lambda: worker.api.GetScale(model=worker.model.name), Code.NOT_FOUND, "MODEL_NOT_FOUND")


# ---- lists ----

def test_rows_from_a_step_on_are_all_that_tell_that_step_or_a_later_one(context):
    server = context.server()
    worker = context.model("acted", server, checkpoint_every=1).worker()
    api, name = worker.api, "acted"

    def all_rows(size=1000, **fields):
        rows, token = [], ""
        while True:
            page = api.ListScaleHistory(model=name, page_size=size, page_token=token, **fields)
            rows, token = rows + list(page.rows), page.next_page_token
            if token == "":
                return rows

    def check():
        for old in (False, True):
            every = all_rows(include_superseded=old)
            for first in range(1, max(row.step for row in every) + 1):
                wanted = [row for row in every if row.step >= first]
                for size in (1000, 1):
                    assert all_rows(size, include_superseded=old, from_step=first) == wanted, first
                    assert all_rows(size, include_superseded=old, from_step=first, newest_first=True) == wanted[::-1], first
                shown = json.loads(ampctl(context, server, "-o", "json", "history", name, "--from", str(first),
                                          *["--all"] * old))["rows"]
                assert [(row["epoch"], row["step"]) for row in shown] == [(row.epoch, row.step) for row in wanted], shown
            refused(lambda every=every: api.ListScaleHistory(model=name, from_step=max(row.step for row in every) + 1),
                    Code.OUT_OF_RANGE, "PAGE_PAST_END")

    check()  # the beginning of the first epoch alone
    for number in range(1, 4):
        step(worker)
        api.SetScale(model=name, scale=64.0 * number)
        api.SetLearningRate(model=name, learning_rate=0.5 / number)
        check()
    eventually(lambda: 3 in [one.step for one in api.ListCheckpoints(model=name).checkpoints], "the checkpoints")
    api.Rollback(model=name, epoch=1, step=2)
    check()
    assert not api.ListScaleHistory(model=name, to_step=0).rows
    behind = [row.kind for row in api.ListScaleHistory(model=name, to_step=1).rows if row.step == 2]
    assert behind == [SET, RATE], behind  # to_step names a step: what was done behind it is there


# ---- ampctl ----

def test_ampctl_does_all_of_it(context):
    server = context.server()
    worker = context.model("mine", server, checkpoint_every=1).worker()
    for _ in range(2):
        step(worker)
    eventually(lambda: len(worker.api.ListCheckpoints(model="mine").checkpoints) == 3, "the checkpoints")
    told = json.loads(ampctl(context, server, "-o", "json", "scale", "set", "mine", "64", "--reason", "a try",
                             "--request-id", "r-1"))
    assert (told["scale"], told["from_step"], told["request_id"]) == (64.0, 4, "r-1"), told
    assert "64" in ampctl(context, server, "scale", "set", "mine", "64", "--request-id", "r-1")
    row, = csv.DictReader(io.StringIO(ampctl(context, server, "-o", "csv", "scale", "reset", "mine"), newline=""))
    assert (row["model"], float(row["scale"])) == ("mine", 1024.0), row
    history = json.loads(ampctl(context, server, "-o", "json", "history", "mine"))["rows"]
    assert [(r["kind"], r["reason"], r["from_step"]) for r in history if r["kind"].startswith("scale")] == \
        [("scale_set", "a try", 4), ("scale_reset", None, 4)], history
    assert "INVALID" not in ampctl(context, server, "scale", "set", "mine", "0", code=64 + 3)
    told = json.loads(ampctl(context, server, "-o", "json", "rollback", "mine", "1", "--reason", "back"))
    assert (told["epoch"], told["step"]) == (2, 2), told
    assert "ampctl checkpoints" in ampctl(context, server, "rollback", "mine", "7", code=64 + 5)
    worker.join()
    assert "rank 0" in ampctl(context, server, "delete", "mine", code=64 + 9)
    assert "mine" in ampctl(context, server, "-o", "csv", "delete", "mine", "--force")
    for wrong in (("scale",), ("scale", "grow", "mine"), ("scale", "set", "mine"), ("scale", "reset", "mine", "8"),
                  ("scale", "set", "mine", "x"), ("rollback", "mine"), ("rollback", "mine", "1", "2"), ("delete",),
                  ("delete", "a", "b"), ("scale", "set", "mine", "8", "--reason", "x" * 300)):
        assert ampctl(context, server, *wrong, code=2), wrong


def test_at_a_terminal_a_model_is_deleted_only_after_its_name_was_typed_again(context):
    server = context.server()
    context.model("mine", server).worker()
    for typed, *options, code, said in (("other", "--force", 1, "nothing was deleted"), ("", 1, "nothing was deleted"),
                                        ("mine", 64 + 9, "rank 0"), ("mine", "--force", 0, "Type its name"),
                                        (None, "--force", "--yes", 64 + 5, "mine")):
        screen, terminal = pty.openpty()
        process = subprocess.Popen([context.bin_dir / "ampctl", "--endpoint", f"127.0.0.1:{server.port}", "delete", "mine",
                                    *options], stdin=terminal, stdout=subprocess.DEVNULL, stderr=terminal)
        os.close(terminal)
        if typed is not None:
            os.write(screen, f"{typed}\n".encode())
        shown = b""
        try:
            while more := os.read(screen, 4096):
                shown += more
        except OSError:  # the other end is closed
            pass
        os.close(screen)
        assert process.wait(timeout=60) == code and said in shown.decode(), (typed, options, shown)


# ---- the floor ----

def test_a_model_that_freezes_at_its_floor_goes_on_when_its_scale_is_set(context):
    fields = {"floor_policy": model.FLOOR_POLICY_FREEZE, "max_consecutive_overflows": 2,
              "scaler": model.ScalerSpec(init_scale=2.0, min_scale=1.0)}
    test_model = context.model(**fields)
    worker = test_model.worker()
    assert not step(worker, INF).frozen
    result = step(worker, INF)
    assert (result.frozen, result.unstable, result.failed, result.new_scale) == (True, True, False, 1.0), result
    refused(worker.pull, Code.FAILED_PRECONDITION, "MODEL_FROZEN", ("w", "set or reset"))
    status = test_model.status()
    assert status.frozen and "operator" in status.waiting_for, status
    assert test_model.api.GetScale(model=test_model.name).frozen
    assert test_model.api.Checkpoint(model=test_model.name).checkpoint.step == 2
    test_model.api.SetScale(model=test_model.name, scale=1.0)
    assert not test_model.status().frozen
    assert step(worker).verdict == APPLIED


def test_a_model_that_fails_at_its_floor_names_the_parameters(context):
    test_model = context.model(floor_policy=model.FLOOR_POLICY_FAIL, max_consecutive_overflows=1,
                               scaler=model.ScalerSpec(init_scale=1.0, min_scale=1.0))
    worker = test_model.worker()
    result = step(worker, INF)
    assert result.failed and not result.frozen, result
    refused(worker.pull, Code.FAILED_PRECONDITION, "MODEL_UNSTABLE", "overflowing: w")


# ---- shrink ----

def test_a_step_goes_on_without_a_worker_that_is_lost(context):
    server = context.server("--worker-lease", f"{4 * PATIENCE}s")
    test_model = context.model("few", server, world_size=2, on_loss=model.ON_LOSS_SHRINK)
    first = test_model.worker("w0", rank=0)
    second = test_model.worker("w1", rank=1)
    for worker in (first, second):
        worker.step = test_model.status().step
        worker.pull()
    together([first, second], {"w": [1024.0] * 4})
    before = test_model.latest()[1]["w"][0]
    first.pull()
    push = first.start_push({"w": [1024.0] * 4}, timeout_s=60)  # the other one says nothing more: its lease ends

    def answered():  # who waits keeps its own lease; else both may end at once, and too few are left
        first.api.KeepAlive(**first.identity())
        return push.done()
    eventually(answered, "the answer of the step without rank 1")
    result = push.result().result
    row = test_model.step_rows()[-1]
    assert (result.verdict, row.contributors) == (APPLIED, 1), row
    assert test_model.latest()[1]["w"][0] < before


# ---- clipping by group ----

def test_each_group_is_clipped_by_its_own_norm(context):
    groups = [model.ParameterGroup(name="a", max_norm=1.0), model.ParameterGroup(name="b")]
    test_model = context.model(parameters=[("a", [4]), model.ParameterSpec(name="b", shape=[4], group=1)], groups=groups,
                               clip=model.ClipSpec(max_norm=100.0, scope=model.CLIP_SCOPE_GROUP))
    worker = test_model.worker()
    header, _ = worker.pull()
    result = worker.push({"a": [2.0 * header.scale] * 4, "b": [3.0 * header.scale] * 4})
    assert abs(result.norm - math.sqrt(16 + 36)) < 1e-9, result
    assert [round(c, 5) for c in result.clip_coefficients] == [0.25, 1.0], result
    row = test_model.step_rows()[-1]
    assert round(row.clip_coefficient, 5) == 0.25, row


if __name__ == "__main__":
    run(globals())
