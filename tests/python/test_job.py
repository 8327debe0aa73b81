"""A job with numpy alone: parameters, pushes, verdicts, and sentences for what is wrong."""
from python_testing import PATIENCE, ROOT, eventually, raises, run, told  # (first: it finds the package)

import contextlib
import gc
import logging
import math
import os
import re
import signal
import tempfile
import threading
import time
import weakref
from unittest import mock

import ampd
import ampd.testing
import numpy
from ampd import _client, job as jobs, spec


def line(server, name="line", **options):
    values = {"w": numpy.zeros((2, 3), numpy.float32), "b": numpy.ones(5, numpy.float32)}
    options = {"optimizer": ampd.SGD(lr=0.5), "cast": "float32", "max_steps": 5, **options}
    return ampd.join(server.endpoint, name, values, **options)


def test_a_loop_trains_to_the_end_and_values_are_exact():
    with ampd.testing.server() as server, line(server) as job:
        for step in job.steps():
            step.push("w", numpy.full((2, 3), step.scale, numpy.float32))
            result = step.end()
            assert result.applied and not result.skipped and result.step == step.number
        assert job.pull() == 5
        assert (job.parameters["w"] == -2.5).all() and (job.parameters["b"] == 1).all()
        assert job.copies == 0


def test_the_loop_ends_a_step_that_its_body_has_not_ended():
    with ampd.testing.server() as server, line(server) as job:
        assert [step.number for step in job.steps()] == [1, 2, 3, 4, 5]


def test_views_outlive_the_job_and_are_read_only():
    with ampd.testing.server() as server:
        with line(server) as job:
            job.begin()
            view = job.parameters["b"]
        assert (view == 1).all()
        raises(ValueError, lambda: view.__setitem__(0, 2.0))


def test_an_overflow_names_the_parameter_and_is_explained_in_words():
    with ampd.testing.server() as server, line(server, cast="float16", max_steps=1) as job:
        step = job.begin()
        step.push("w", numpy.full((2, 3), numpy.inf, numpy.float16))
        step.push("b", numpy.zeros(5, numpy.float16))
        result = step.end()
        assert result.skipped and result.new_scale == result.scale / 2
        assert [(one.parameter, one.rank, one.inf_count) for one in result.overflows] == [("w", 0, 6)]
        assert "w" in result.explain() and "Inf" in result.explain(), result.explain()


def test_a_job_knows_whether_memory_is_shared_and_the_log_says_why_not():
    lines, handler, log = [], logging.Handler(), logging.getLogger("ampd")
    handler.emit = lambda record: lines.append(record.getMessage())
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    for options, listen, shared in ((), "unix", True), (("--shared-memory", "off"), "unix", False), ((), "tcp", False):
        lines.clear()
        with tempfile.TemporaryDirectory() as folder:
            address = f"unix:{folder}/socket" if listen == "unix" else "127.0.0.1:0"
            with ampd.testing.server(options=options, listen=address) as server, line(server) as job:
                assert not job.shares_memory
                job.begin()
                assert job.shares_memory == shared, (options, listen)
                told = [text for text in lines if "no memory is shared" in text]
                assert len(told) == (listen == "unix" and not shared), (options, listen, lines)
    log.removeHandler(handler)
    log.setLevel(logging.NOTSET)


class SharedMemory(jobs.Memory):
    """Memory for parameters that is told, as that of a CUDA device is, of what is shared with a server."""

    stays_shared = True
    mappings: dict = {}

    def mapped(self, address, size, width, writable):
        assert address not in self.mappings
        self.mappings[address] = (size, width, writable)

    def unmapped(self):
        self.mappings.clear()


@contextlib.contextmanager
def memory_stays_shared():
    memory, jobs.Memory = jobs.Memory, SharedMemory
    try:
        yield SharedMemory.mappings
    finally:
        jobs.Memory = memory
    assert not SharedMemory.mappings


def push_ones(job, step):
    for name, one in job.parameters.items():
        step.push(name, numpy.full(one.shape, step.scale, numpy.float32))
    return step.end()


def test_parameters_that_stay_in_shared_memory_are_copied_when_they_are_read():
    first = {"w": numpy.arange(70000, dtype=numpy.float32), "b": numpy.ones(3, numpy.float32)}
    for listen in "unix", "tcp":
        with tempfile.TemporaryDirectory() as folder, memory_stays_shared() as mappings:
            address = f"unix:{folder}/socket" if listen == "unix" else "127.0.0.1:0"
            with ampd.testing.server(listen=address) as server, ampd.join(
                    server.endpoint, "m", first, optimizer=ampd.SGD(lr=1), cast="float32", max_steps=3) as job:
                for step in job.steps():
                    widths = sorted((width, writable) for _, width, writable in mappings.values())
                    assert widths == ([(4, False), (4, False), (4, True)] if listen == "unix" else []), widths
                    value = job.parameters["w"]
                    assert numpy.array_equal(value, first["w"] - step.number + 1), (listen, step.number)
                    place = value.ctypes.data
                    assert not any(at <= place < at + size for at, (size, _, _) in mappings.items())
                    push_ones(job, step)
                    assert numpy.array_equal(job.parameters["b"], first["b"] - step.number + 1)
                parameters = job.parameters  # once
                held = parameters["w"]
                job.pull()
                assert numpy.array_equal(parameters["w"], first["w"] - 3)
            assert numpy.array_equal(held, first["w"] - 3), listen


def test_what_stayed_in_shared_memory_is_there_after_the_job():
    with memory_stays_shared(), tempfile.TemporaryDirectory() as folder, \
            ampd.testing.server(listen=f"unix:{folder}/socket") as server:
        with ampd.join(server.endpoint, "m", {"w": numpy.zeros(3, numpy.float32)}, cast="float32",
                       optimizer=ampd.SGD(lr=1)) as job:
            step = job.begin()
            held = job.parameters["w"]
            push_ones(job, step)
            job.begin()
        assert held.tolist() == [-1, -1, -1]


def test_an_interrupt_while_memory_is_mapped_is_raised_by_the_call_and_nothing_is_left():
    class Interrupted(SharedMemory):
        def mapped(self, *mapping):
            super().mapped(*mapping)
            raise KeyboardInterrupt("the user has pressed a key")

    with memory_stays_shared(), tempfile.TemporaryDirectory() as folder, \
            ampd.testing.server(listen=f"unix:{folder}/socket") as server:
        jobs.Memory = Interrupted
        with line(server) as job:
            raises(KeyboardInterrupt, job.begin)
            push_ones(job, job.begin())
            assert job.parameters["w"].shape == (2, 3)


def test_parameters_that_were_written_over_in_shared_memory_are_not_given():
    with memory_stays_shared(), tempfile.TemporaryDirectory() as folder, \
            ampd.testing.server(listen=f"unix:{folder}/socket") as server, \
            line(server, checkpoint_every=1) as job:
        for _ in range(3):
            push_ones(job, job.begin())
        step = job.begin()
        eventually(lambda: any(one.step == 2 for one in job.server.checkpoints("line")))
        job.server.rollback("line", 2)
        assert step.end().verdict == "rolled_back"
        raises(ampd.WrongState, lambda: job.parameters["w"], "in the server's memory", "job.pull()")
        job.pull()
        assert job.parameters["w"].shape == (2, 3)


def test_parameters_of_a_worker_whose_rank_was_taken_are_not_given_from_shared_memory():
    with memory_stays_shared(), tempfile.TemporaryDirectory() as folder, \
            ampd.testing.server(listen=f"unix:{folder}/socket") as server, contextlib.ExitStack() as stack:
        first = line(server)
        stack.callback(first.leave)
        step = first.begin()
        with line(server) as second:
            for _ in range(2):
                push_ones(second, second.begin())
            raises(ampd.RankTaken, step.end)
            raises(ampd.WrongState, lambda: first.parameters["w"], "in the server's memory")


def test_a_join_that_is_refused_makes_no_model():
    with ampd.testing.server() as server, tempfile.TemporaryDirectory() as folder:
        raises(ampd.InvalidArgument, lambda: line(server, rank=5, world_size=2), "rank is 5", "line are 0 to 1")
        with open(f"{folder}/file", "wb") as file:
            file.write(b"no checkpoint")
        raises(ampd.DataLoss, lambda: line(server, restore=f"{folder}/file"), "no safetensors file")
        raises(ampd.NotFound, lambda: line(server, restore=f"{folder}/none"), f"{folder}/none")
        with ampd.connect(server.endpoint) as api:
            assert [model.name for model in api.models()] == []
        with line(server) as job:
            job.begin()
        with line(server, restore=f"{folder}/none") as job:  # it goes on from what it has
            job.begin()


def test_bfloat16_is_pushed_as_bits():
    with ampd.testing.server() as server, line(server, cast="bfloat16") as job:
        step = job.begin()
        assert job.parameters["b"].dtype == numpy.uint16 and (job.parameters["b"] == 0x3F80).all()
        raises(ampd.InvalidArgument, lambda: step.push("b", numpy.zeros(5, numpy.uint16)), "uint16", "bfloat16")
        step.push("b", ampd.to_bfloat16(numpy.ones(5)), dtype="bfloat16")
        assert step.end().applied
        job.begin()
        assert (job.parameters["b"] == 0x3F00).all()


def test_a_gradient_in_the_other_byte_order_is_converted_by_one_copy():
    with ampd.testing.server() as server, line(server) as job:
        step = job.begin()
        step.push("b", numpy.ones(5, numpy.dtype(numpy.float32).newbyteorder("S")))
        assert step.end().applied and job.copies == 1
        job.begin()
        assert (job.parameters["b"] == 0.5).all()


def test_gradients_are_converted_by_one_copy_each_into_the_dtype_that_is_asked_for():
    near = numpy.float32(1) + numpy.float32(2.0 ** -9)  # exact in float16; 1 in bfloat16
    with ampd.testing.server() as server:
        for name, dtype, value, other in (("half", "float16", near, 2.0 ** 17), ("brain", "bfloat16", 1, None),
                                          ("single", numpy.float32, near, None)):
            with line(server, name, gradients=dtype) as job:
                step = job.begin()
                step.push("w", numpy.full((3, 2), near, numpy.float64 if name == "half" else numpy.float32).T)
                step.push("b", ampd.to_bfloat16(numpy.ones(5)), dtype="bfloat16")
                assert step.end().applied and job.copies == (1 if dtype == "bfloat16" else 2), (dtype, job.copies)
                step = job.begin()
                assert (job.parameters["w"] == -numpy.float32(value) / 2).all(), (dtype, job.parameters["w"])
                assert (job.parameters["b"] == 0.5).all()
                if other is not None:
                    step.push("w", numpy.full((2, 3), other, numpy.float32))
                    assert step.end().skipped
        raises(ampd.InvalidArgument, lambda: line(server, "m", gradients="int8"), "int8", "bfloat16")
        raises(ampd.NotFound, lambda: ampd.join(server.endpoint, "m"), "m")  # it was not made


def test_what_is_wrong_gets_a_sentence():
    with ampd.testing.server() as server, line(server) as job:
        step = job.begin()
        raises(ampd.InvalidArgument, lambda: step.push("w", numpy.zeros((3, 2), numpy.float32)), "(3, 2)", "(2, 3)")
        raises(ampd.InvalidArgument, lambda: step.push("w", numpy.zeros((2, 3))), "float64", "gradients=\"float32\"")
        raises(ampd.NotFound, lambda: step.push("v", numpy.zeros(3, numpy.float32)), "'v'", "w, b")
        raises(ampd.InvalidArgument, lambda: ampd.join(server.endpoint, "with a space", {"w": numpy.zeros(1)}), "name")
        raises(ampd.AlreadyExists, lambda: line(server, max_steps=6), "max_steps")
        raises(ampd.InvalidArgument, lambda: line(server, "m", cast="float8"), "float8", "bfloat16")
        raises(ampd.InvalidArgument, lambda: line(server, "m", on_loss="cry"), "on_loss", "shrink")
        raises(ampd.InvalidArgument, lambda: line(server, "m", optimizer=ampd.SGD(lr=-1.0)), "lr is -1.0", "above 0")
        raises(ampd.NotFound, lambda: ampd.join(server.endpoint, "nobody"), "nobody")
        raises(ampd.InvalidArgument, lambda: line(server, "m", optimizer="adam"), "optimizer", "'adam'", "ampd.AdamW")
        raises(ampd.InvalidArgument, lambda: line(server, "m", optimizer=ampd.AdamW), "optimizer", "AdamW'", "ampd.SGD")
        raises(ampd.InvalidArgument, lambda: line(server, "m", schedule="cosine"), "schedule", "ampd.Cosine")
        raises(ampd.InvalidArgument, lambda: line(server, "m", scaler=numpy.zeros(99)), "scaler", "a ndarray")
        raises(ampd.InvalidArgument, lambda: line(server, "m", max_steps=1e3), "max_steps", "1000.0", "whole number")
        raises(ampd.InvalidArgument, lambda: line(server, "m", keep_last=-1), "keep_last", "-1", "whole number")
        raises(ampd.InvalidArgument, lambda: ampd.join("m", numpy.zeros((9, 9))), "name", "a ndarray")
        raises(TypeError, lambda: line(server, "m", learning_rate=1), "ampd.join()", "learning_rate")
        raises(TypeError, lambda: ampd.connect(server.endpoint, timeout=1), "ampd.connect()", "timeout")
        raises(ampd.InvalidArgument, lambda: job.set_user_state("epoch 3"), "'epoch 3'", "bytes")
        step.push("w", numpy.zeros((2, 3), numpy.float32))
        raises(ampd.WrongState, lambda: step.push("w", numpy.zeros((2, 3), numpy.float32)), "parameter w was pushed")
        raises(ampd.InvalidArgument, lambda: step.push("b", numpy.zeros(5, numpy.float16)), "parameter b:", "one dtype")
        step.end()
        raises(ampd.WrongState, lambda: job.push("b", numpy.zeros(5, numpy.float32)), "job.begin()")
        with line(server, "early", max_steps=1) as early:
            raises(ampd.WrongState, lambda: early.parameters, "job.begin()", "job.pull()")
        job.leave()
        raises(ampd.WrongState, job.begin, "left")


def test_a_rate_and_a_weight_that_the_model_does_not_take_are_refused_at_once_and_the_step_goes_on():
    with ampd.testing.server() as server:
        with line(server) as job:
            for step in job.steps():
                for function, name in ((job.set_learning_rate, "schedule=ampd.Worker()"),
                                       (job.set_weight, 'weighting="pushed"')):
                    raises(ampd.WrongState, lambda: function(0.5), "line", name)
                assert push_ones(job, step).applied
        raises(ampd.WrongState, lambda: job.set_weight(0.5), "left")
        with line(server, "taken", schedule=ampd.Worker(), weighting="pushed") as job:
            for step in job.steps():
                job.set_learning_rate(0.5)
                job.set_weight(0.5)
                assert push_ones(job, step).applied


def test_sentences_of_the_library_name_what_python_has():
    with ampd.testing.server() as server, line(server) as job:
        raises(ampd.WrongState, lambda: job.tell_loss(1.0), "job.begin()")
        push_ones(job, job.begin())
        said = raises(ampd.WrongState, lambda: job.tell_metric("accuracy", 1.0), "job.begin()")
        assert "ampclient" not in str(said) + said.remedy, said
        with line(server, "by-rate", schedule=ampd.Worker()) as other:
            said = raises(ampd.InvalidArgument, lambda: push_ones(other, other.begin()), "schedule=ampd.Worker()")
            assert "job.set_learning_rate" in said.remedy, said.remedy


def test_short_words_for_dtypes_are_those_dtypes():
    words = {"fp16": "float16", "half": "float16", "f16": "float16", "bf16": "bfloat16", "fp32": "float32",
             "f32": "float32"}
    with ampd.testing.server() as server:
        for short, word in words.items():
            with line(server, "of-" + short, cast=short, gradients=short) as job:
                push_ones(job, job.begin())
                assert job.cast == word and job.copies == (0 if word == "float32" else 2)
                assert job.server.specification(job.name).cast == word


def given_fields():
    """struct ampclient_spec's names of the numbers for which the library has a default in place of 0."""
    rows = re.findall(r"AMPD_SPEC_NUMBER\((.*?)\)\n", (ROOT / "proto/spec_fields.def").read_text(), re.S)
    return {row[2] for row in (re.split(r",\s*", row) for row in rows) if row[4] == "GIVEN"}


def test_a_number_that_would_be_the_default_in_its_place_is_refused_by_name():
    assert spec.WITH_DEFAULT == given_fields() - {"checkpoint_every", "beta1", "beta2"}
    header = (ROOT / "client/ampclient.h").read_text()
    assert "AMPCLIENT_CHECKPOINT_ON_DEMAND UINT64_MAX" in header and spec.ON_DEMAND == 2 ** 64 - 1
    assert re.search(r"AMPCLIENT_BETA_ZERO +\(-1e-300\)", header) and spec.BETA_ZERO == -1e-300
    zeros = [({"optimizer": ampd.SGD(lr=0)}, "lr is 0"), ({"optimizer": ampd.AdamW(eps=0.0)}, "eps is 0"),
             ({"optimizer": ampd.RMSprop(alpha=0)}, "alpha is 0"), ({"schedule": ampd.Step(3, gamma=0)}, "gamma is 0"),
             ({"scaler": ampd.StaticScaler(0)}, "scale is 0")]
    zeros += [({"scaler": ampd.DynamicScaler(**{name: 0})}, f"{name} is 0")
              for name in ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "min_scale",
                           "max_scale", "hysteresis")]
    zeros += [({name: 0}, f"{name} is 0") for name in ("keep_last", "max_consecutive_overflows", "min_workers",
                                                       "accumulate", "world_size")]
    with ampd.testing.server() as server, ampd.connect(server.endpoint) as operator:
        for options, words in zeros:
            raises(ampd.InvalidArgument, lambda: line(server, **options), words, "; give a")
        for options, words in (({"scaler": ampd.StaticScaler(1e-50)}, "scale is 1e-50"),
                               ({"clip_value": 1e-50}, "clip_value is 1e-50"),
                               ({"clip_norm": 1e-50}, "clip_norm is 1e-50"),
                               ({"groups": [ampd.Group(["w"], clip_norm=1e-50)]}, "clip_norm is 1e-50")):
            raises(ampd.InvalidArgument, lambda: line(server, **options), words, "is rounded to 0")
        for seconds in (0, 1e-9, -1, math.inf, math.nan, "60"):
            raises(ampd.InvalidArgument, lambda: line(server, loss_timeout=seconds), "loss_timeout is", "0.001 or more")
        for seconds in (0, 1e-9, math.nan, "60"):
            raises(ampd.InvalidArgument, lambda: ampd.connect(server.endpoint, call_timeout=seconds), "call_timeout is")
        assert list(operator.models()) == []


def test_checkpoint_every_0_makes_checkpoints_on_demand_and_at_the_end_alone():
    with ampd.testing.server() as server, ampd.connect(server.endpoint) as operator:
        with line(server, checkpoint_every=0, max_steps=130) as job:
            for step in job.steps():
                step.end()
                if step.number == 120:
                    break
            assert [one.step for one in operator.checkpoints("line")] == [0]
            for _ in job.steps():
                pass
        assert operator.specification("line").checkpoint_every == 0
        line(server, checkpoint_every=0, max_steps=130).leave()  # the same model
        assert eventually(lambda: [one.step for one in operator.checkpoints("line")] == [130, 0])


def test_a_limit_of_the_server_is_no_lack_of_memory_here():
    with ampd.testing.server(options=["--memory-max=4M"]) as server:
        values = {"w": numpy.zeros(1 << 20, numpy.float32)}
        error = raises(ampd.ResourceExhausted, lambda: ampd.join(server.endpoint, "m", values, optimizer=ampd.SGD()),
                       "--memory-max")
        assert not isinstance(error, MemoryError) and issubclass(ampd.OutOfMemory, ampd.ResourceExhausted)


def test_whatever_cannot_be_is_an_error_of_ampd_and_makes_no_model():
    bad = [({"optimizer": kind}, "is") for kind in (
        ampd.SGD(momentum="x"), ampd.Adam(weight_decay="x"), ampd.Adam(betas=0.9), ampd.Adam(betas=(0.9,)),
        ampd.Lion(betas=("x", 0.9)), ampd.SGD(lr=10 ** 400))]
    bad += [({"schedule": one}, "warmup is -1") for one in (ampd.Constant(-1), ampd.Step(3, warmup=-1),
                                                            ampd.Cosine(9, warmup=-1))]
    bad += [({"schedule": ampd.Step(1.5)}, "step_size is 1.5"), ({"schedule": ampd.Cosine("x")}, "total is 'x'"),
            ({"scaler": ampd.StaticScaler("x")}, "scale is 'x'"), ({"accumulate": -1}, "accumulate is -1"),
            ({"scaler": ampd.DynamicScaler(policy=[])}, "scaler policy is []"), ({"on_loss": []}, "on_loss is []"),
            ({"accumulate": "x"}, "accumulate is 'x'"), ({"accumulate": 1.5}, "accumulate is 1.5"),
            ({"world_size": 2 ** 32 + 1}, "world_size"), ({"world_size": -1}, "world_size is -1"),
            ({"rank": -1}, "rank is -1"), ({"rank": "x"}, "rank is 'x'"), ({"clip_norm": "x"}, "clip_norm is 'x'"),
            ({"clip_norm": None}, "clip_norm is None"), ({"max_steps": numpy.float32(2.5)}, "max_steps"),
            ({"replace": "x"}, "replace is 'x'", "True or False"), ({"worker_name": 3}, "worker_name is 3"),
            ({"token_file": 3}, "token_file is 3"), ({"worker_name": "x" * 128}, "worker_name is longer than 127"),
            ({"worker_name": "\ud800"}, "worker_name is ", "UTF-8"), ({"world_size": 2}, "this worker has no name")]
    bad += [({"groups": [ampd.Group(["w"], **{name: "x"})]}, name + " is 'x'")
            for name in ("clip_norm", "lr_factor", "weight_decay")]
    with ampd.testing.server() as server, ampd.connect(server.endpoint) as operator:
        for options, *words in bad:
            raises(ampd.InvalidArgument, lambda: line(server, **options), *words)
        raises(ampd.InvalidArgument, lambda: ampd.join(server.endpoint, "line", world_size=2 ** 32 + 1), "world_size")
        ragged = {"w": [[1.0], [2.0, 3.0]]}
        raises(ampd.InvalidArgument, lambda: ampd.join(server.endpoint, "line", ragged), "the value of w is a list")
        assert list(operator.models()) == []
        with line(server) as job:
            raises(ampd.InvalidArgument, lambda: job.set_weight("x"), "the weight is 'x'")
            raises(ampd.InvalidArgument, lambda: job.set_weight(1e-50), "the weight is 1e-50, which is rounded to 0")
            job.begin()
            raises(ampd.InvalidArgument, lambda: job.push("b", [[1.0], [2.0, 3.0]]), "the gradient of b is a list")
            raises(ampd.InvalidArgument, lambda: job.set_learning_rate("x"), "the learning rate is 'x'")
        for scaler in ("x", None, ampd.StaticScaler("x"), ampd.StaticScaler(0), ampd.DynamicScaler(growth_interval=-1)):
            raises(ampd.InvalidArgument, lambda: operator.replay("line", scaler), " is ", "; give")
        for seconds in (-1, math.inf, "x"):
            raises(ampd.InvalidArgument, lambda: operator.drain(seconds), "grace is", "0 or more")
        raises(ampd.InvalidArgument, lambda: operator.set_scale("line", 10 ** 400), "scale is")


def test_a_name_that_no_parameter_has_is_refused_with_the_nearest_one():
    with ampd.testing.server() as server, ampd.connect(server.endpoint) as operator:
        def refused(*words, **options):
            values = {"weight": numpy.zeros(3), "bias": numpy.zeros(1)}
            raises(ampd.InvalidArgument, lambda: ampd.join(server.endpoint, "line", values, **options), *words)

        refused("no_decay has 'bais'", "'bias'", no_decay=["bias", "bais"])
        refused("no_decay has 'wieght'", "'weight'", no_decay="wieght")
        refused("no_decay has 3", no_decay=3)
        refused("groups[1] has 'wieght'", "'weight'", groups=[ampd.Group(["bias"]), ampd.Group({"wieght"})])
        refused("groups[0] has 3", groups=[ampd.Group(3)])
        refused("groups[0] gets no parameter", groups=[ampd.Group(lambda name: name.startswith("layer"))])
        refused("groups[0] gets no parameter", groups=[ampd.Group([])])
        refused("groups[1] gets no parameter", groups=[ampd.Group("bias"), ampd.Group(lambda name: name == "bias")])
        refused("groups has 'bias'", "ampd.Group", groups=["bias"])
        assert list(operator.models()) == []
        with line(server, groups=[ampd.Group(iter(["b"]), "one")], no_decay=lambda name, value: value.ndim > 4):
            assert [one.name for one in operator.specification("line").groups] == ["one", "default"]


def test_a_step_that_is_begun_again_has_nothing_of_what_was_pushed_before():
    for listen in ("127.0.0.1:0", "unix:{}/socket"):
        with tempfile.TemporaryDirectory() as folder, ampd.testing.server(listen=listen.format(folder)) as server, \
                line(server, cast="float16") as job:
            job.begin().push("w", numpy.full((2, 3), numpy.inf, numpy.float16))
            job.push("b", numpy.ones(5, numpy.float16))
            assert eventually(lambda: job.status().workers[0].blocks_present == 1)  # both are in one
            step = job.begin()
            assert step.number == 1
            step.push("b", numpy.full(5, step.scale / 64, numpy.float16))
            result = step.end()
            assert result.applied, result
            job.begin()
            assert (job.parameters["w"] == 0).all() and (job.parameters["b"] == numpy.float16(1 - 0.5 / 64)).all()


def test_a_parameter_of_a_group_without_a_decay_of_its_own_has_none_where_no_decay_says_so():
    values = {name: numpy.zeros(3 if name.endswith("b") else (3, 3)) for name in "in.w in.b out.w out.b b".split()}
    groups = [ampd.Group(lambda name: name.startswith("in"), "in", lr_factor=0.5),
              ampd.Group(["out.w", "out.b"], "out", weight_decay=0.25), ampd.Group(["b"], "bias")]
    with ampd.testing.server() as server, ampd.connect(server.endpoint) as operator:
        with ampd.join(server.endpoint, "net", values, optimizer=ampd.AdamW(weight_decay=0.125), groups=groups,
                       no_decay=lambda name, value: value.ndim == 1):
            made = [(one.name, one.lr_factor, one.weight_decay) for one in operator.specification("net").groups]
    assert made == [("in", 0.5, 0.125), ("in_no_decay", 0.5, 0.0), ("out", 1.0, 0.25), ("bias", 1.0, 0.0)], made
    many = [ampd.Group(lambda name, i=i: name.startswith("%d." % i), lr_factor=1 + i) for i in range(9)]
    values = {"%d.%s" % (i, name): numpy.zeros((2,) * n) for i in range(9) for n, name in ((1, "b"), (2, "w"))}
    with ampd.testing.server() as server, ampd.connect(server.endpoint) as operator:
        def net(optimizer):
            return ampd.join(server.endpoint, "many", values, optimizer=optimizer, groups=many,
                             no_decay=lambda name, value: value.ndim == 1)

        raises(ampd.InvalidArgument, lambda: net(ampd.AdamW()), "18 groups", "at most 16")
        assert list(operator.models()) == []
        with net(ampd.SGD()):  # which has no decay to be without
            assert len(operator.specification("many").groups) == 9


def test_a_parameter_without_dimensions_is_trained_in_every_dtype():
    for cast in ("float32", "float16", "bfloat16"):
        with ampd.testing.server() as server, ampd.join(
                server.endpoint, "dot", {"t": numpy.float32(1.0)}, optimizer=ampd.SGD(lr=0.5), cast=cast,
                scaler=ampd.NoScaler(), gradients=cast, max_steps=1) as job:
            step = job.begin()
            step.push("t", numpy.ones((), numpy.float32))
            assert step.end().applied
            state = job.state_dict(masters=False)
        assert state["t"].shape == () and state["t"] == 0.5, (cast, state)


def test_a_connection_is_closed_beside_a_call_that_waits_in_another_thread():
    with ampd.testing.server() as server:
        first = line(server, world_size=2, rank=0)
        raised = []

        def wait():
            try:
                first.begin().end()  # the other worker never comes
            except ampd.Error as error:
                raised.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        assert eventually(lambda: first.client._calling)
        began = time.monotonic()
        first.client.close()
        waiting.join()
        assert time.monotonic() - began < 5 * PATIENCE and len(raised) == 1, raised
        raises(ampd.WrongState, first.pull, "is closed")


def test_a_job_that_a_handler_of_the_log_drops_keeps_its_gradients_until_the_library_has_let_go_of_them():
    with ampd.testing.server() as server:
        dropped, gradient, alive = [line(server)], numpy.ones(5, numpy.float32), []
        dropped[0].begin().push("b", gradient)
        turn, gradient = dropped[0].client._turn, weakref.ref(gradient)

        class Drops(logging.Handler):
            def emit(self, record):
                with turn:  # its connection cannot be closed yet
                    dropped.clear()
                    gc.collect()
                    alive.append(gradient() is not None)

        handler, log = Drops(), logging.getLogger("ampd")
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        try:
            with line(server, "other"):
                assert eventually(lambda: alive), "nothing was told of the join"
        finally:
            log.removeHandler(handler)
            log.setLevel(logging.NOTSET)
        assert alive[0] and eventually(lambda: gc.collect() >= 0 and gradient() is None)


def test_no_call_of_another_thread_uses_the_model_of_a_job_that_leaves():
    used, said = [], []

    def beside(use):
        """A thread that has so long to use a model that it may never use."""
        def run():
            try:
                used.append(use())
            except ampd.WrongState as error:
                said.append(str(error))

        thread = threading.Thread(target=run)
        thread.start()
        thread.join(0.3)
        return thread

    with ampd.testing.server() as server:
        job, other = line(server), line(server, name="other")
        close, model = other.client.close, other.model
        threads = []

        def close_later():
            threads.append(beside(lambda: other.client.call(lambda model: 0, model)))
            close()

        with mock.patch.object(other.client, "close", close_later):
            other.leave()
        with job.client._turn:
            threads.append(beside(lambda: job.shares_memory))
            job.leave()
        for one in threads:
            one.join()
        assert used == [] and len(said) == 2 and all("is closed" in text for text in said), (used, said)


def test_an_interrupt_while_user_state_is_given_back_is_raised_by_the_call():
    take = mock.Mock(return_value=None)
    with ampd.testing.server() as server, mock.patch.object(jobs.Job, "_take_state", take):
        with line(server, checkpoint_every=2) as job:
            for _, step in zip(range(3), job.steps()):
                step.end()
            assert eventually(lambda: job.status().durable_step == 2)
            server.kill()
            server.start()
            take.side_effect = KeyboardInterrupt("the user has pressed a key")
            raises(KeyboardInterrupt, job.begin)
            assert job.begin().number == 3


def test_a_step_that_has_ended_writes_nothing_into_the_next_one():
    with ampd.testing.server() as server, line(server, cast="float16") as job:
        first = job.begin()
        first.push("b", numpy.full(5, numpy.inf, numpy.float16))
        result = first.end()
        assert result.skipped
        for _ in range(2):
            step = job.begin()  # the second time it is begun again
            for act in (lambda: first.push("b", numpy.ones(5, numpy.float16)), lambda: first.tell_loss(1.0),
                        lambda: first.tell_metric("m", 1.0)):
                raises(ampd.WrongState, act, "step 1 is over")
            assert first.end() is result
        again = job.begin()
        raises(ampd.WrongState, lambda: step.push("b", numpy.ones(5, numpy.float16)), "step 2 is over")
        raises(ampd.WrongState, step.end, "step 2 is over")
        assert again.end().applied
        assert next(job.server.history("line", from_step=2)).loss is None


def test_a_server_that_is_not_there_is_told_with_the_remedy():
    error = raises(ampd.Unavailable, lambda: ampd.join("127.0.0.1:1", "m", connect_timeout=0.2), "127.0.0.1:1")
    assert error.code == "EUNAVAILABLE" and "start the server" in error.remedy, error.remedy
    assert isinstance(error, ConnectionError)


def test_ctrl_c_ends_a_wait_at_once_and_the_rank_is_given_back():
    with ampd.testing.server() as server:
        job = line(server, world_size=2, rank=0)
        try:
            with job:
                threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
                began = time.monotonic()
                job.begin()  # rank 1 is never there
            raise AssertionError("nothing was interrupted")
        except KeyboardInterrupt:
            took = time.monotonic() - began
        assert took < 10 * PATIENCE, took
        assert "left" in repr(job)
        with line(server, world_size=2, rank=0, worker_name="another") as other:
            assert other.rank == 0


@contextlib.contextmanager
def stopped_before_memory_is_attached(**options):
    """A job over a unix socket whose server is stopped before its first step, where the client asks for memory."""
    with tempfile.TemporaryDirectory() as folder, \
            ampd.testing.server(listen=f"unix:{folder}/socket") as server, line(server, **options) as job:
        os.kill(server.process.pid, signal.SIGSTOP)
        try:
            yield job
        finally:
            os.kill(server.process.pid, signal.SIGCONT)


def test_ctrl_c_ends_a_step_that_waits_for_shared_memory_at_once():
    with stopped_before_memory_is_attached() as job:
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        began = time.monotonic()
        try:
            job.begin()
            raise AssertionError("nothing was interrupted")
        except KeyboardInterrupt:
            assert time.monotonic() - began < 4.8  # the client waits for memory for 5 s


def test_a_step_waits_for_shared_memory_no_longer_than_for_the_step():
    with stopped_before_memory_is_attached(step_timeout=0.5) as job:
        began = time.monotonic()
        raises(ampd.Timeout, job.begin)
        assert time.monotonic() - began < 4.8  # the client waits for memory for 5 s if it may


def test_a_worker_of_a_deleted_model_takes_nothing_of_it_for_the_new_one():
    def first_worker(server, value):
        return ampd.join(server.endpoint, "line", {"w": numpy.full(3, value, numpy.float32)}, cast="float32",
                         optimizer=ampd.SGD(lr=1), rank=0, world_size=2, quorum=1)

    with ampd.testing.server() as server:
        before = first_worker(server, 1)
        job = ampd.join(server.endpoint, "line", rank=1, world_size=2)
        step = job.begin()
        before.server.delete("line", force=True)
        before.client.close()
        with first_worker(server, 5):
            step.push("w", numpy.full(3, 100, numpy.float32))
            assert step.end().verdict == "rolled_back"
            step = job.begin()
            assert step.number == 1 and job.parameters["w"].tolist() == [5, 5, 5]
            step.push("w", numpy.ones(3, numpy.float32))
            assert step.end().applied
            job.begin()
            assert job.parameters["w"].tolist() == [4, 4, 4]
            job.leave()


def test_a_cluster_of_which_a_shard_does_not_start_leaves_no_process():
    started = []

    class Server(ampd.testing.Server):
        def _listening_at(self, begin):
            started.append(self)
            if len(started) == 2:
                raise KeyboardInterrupt("while the second one starts")
            return super()._listening_at(begin)

    with mock.patch.object(ampd.testing, "Server", Server):
        raises(KeyboardInterrupt, ampd.testing.cluster(3).__enter__)
    assert [one.process.poll() is None for one in started] == [False, False]


def test_ctrl_c_ends_the_search_for_a_server():
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    began = time.monotonic()
    try:
        ampd.join("127.0.0.1:1", "m", connect_timeout=60)
        raise AssertionError("nothing was interrupted")
    except KeyboardInterrupt:
        assert time.monotonic() - began < 5 * PATIENCE


def test_user_state_comes_back_where_a_checkpoint_is_gone_on_from():
    with ampd.testing.server() as server:
        with line(server, checkpoint_every=2) as job:
            for number, step in zip(range(3), job.steps()):
                job.set_user_state(b"after %d" % step.number)
                step.end()
            # The checkpoint of step 2 is written while step 3 goes on.
            assert eventually(lambda: job.status().durable_step == 2)
            server.kill()
            server.start()
            step = job.begin()
            assert (step.number, step.user_state, step.rolled_back) == (3, b"after 2", True), step.user_state


def test_a_begin_that_is_cut_off_keeps_what_the_step_goes_on_from():
    with ampd.testing.server() as server, line(server, checkpoint_every=2) as job:
        for number, step in zip(range(3), job.steps()):
            job.set_user_state(b"after %d" % step.number)
            step.end()
        assert eventually(lambda: job.status().durable_step == 2)
        server.kill()
        server.start()
        call = job.client.call

        def cut_off(function, *arguments, **options):
            call(function, *arguments, **options)
            raise KeyboardInterrupt

        with mock.patch.object(job.client, "call", cut_off), contextlib.suppress(KeyboardInterrupt):
            job.begin()
            raise AssertionError("nothing was cut off")
        step = job.begin()
        assert (step.number, step.user_state, step.rolled_back) == (3, b"after 2", True), step.user_state
        step = job.begin()
        assert (step.number, step.user_state, step.rolled_back) == (3, None, False), step.user_state


def test_accumulated_pushes_are_added_up():
    with ampd.testing.server() as server, line(server, accumulate=2) as job:
        step = job.begin()
        step.push("b", numpy.full(5, 1, numpy.float32))
        step.push("b", numpy.full(5, 3, numpy.float32))
        assert step.end().applied
        job.begin()
        assert (job.parameters["b"] == -1).all()


def test_a_job_that_is_dropped_while_a_call_does_not_end_keeps_its_gradients_until_it_is_closed():
    with ampd.testing.server() as server, mock.patch.object(_client, "CLOSE_WAIT_S", 0.1):
        job, gradient = line(server), numpy.ones(5, numpy.float32)
        job.begin().push("b", gradient)
        client, gradient, held, ends = job.client, weakref.ref(gradient), threading.Event(), threading.Event()

        def call():
            with client._turn:
                held.set()
                ends.wait()

        thread = threading.Thread(target=call, daemon=True)
        thread.start()
        held.wait()
        with told() as lines:
            del job
            gc.collect()
        assert gradient() is not None and len(lines) == 1 and "does not end" in lines[0], lines
        ends.set()
        thread.join()
        client.close()
        gc.collect()
        assert gradient() is None


run(globals())
