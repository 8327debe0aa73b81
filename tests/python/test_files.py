"""Checkpoints as files: out of one server and into another, by Python."""
from python_testing import PACKAGE, PATIENCE, eventually, folder, needs, raises, run, told  # noqa: F401 (is first)

import contextlib
import dataclasses
import itertools
import json
import pathlib
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import unittest.mock

import ampd
import ampd.testing
import numpy

needs("google.protobuf")

LOADS = """
import sys
sys.path.insert(0, sys.argv[1])
import ampd, numpy
ampd.join(sys.argv[2], "m", {"w": numpy.ones(1 << 22, numpy.float32), "b": numpy.ones(5, numpy.float32)},
          optimizer=ampd.SGD(0.1))
"""
RELAYED = 1 << 20  # bytes: less than those values
LEASE_S = 30       # the default of --worker-lease


@contextlib.contextmanager
def stuck(endpoint, others=0):
    """An address of the server behind which no byte of one connection goes further once RELAYED have come to it; and so
    many others after it, whose bytes do."""
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as sockets:
        host, port = endpoint.split(":")

        def relay():
            for most in (RELAYED, *[sys.maxsize] * others):
                here = sockets.enter_context(listener.accept()[0])
                there = sockets.enter_context(socket.create_connection((host, int(port))))
                gone = threading.Event()
                pump(there, here, sys.maxsize, gone)
                pump(here, there, most, gone)
            ended.wait()

        def pump(source, to, most, gone):
            def run():
                left = most
                with contextlib.suppress(OSError):  # an end was closed
                    while left > 0 and (data := source.recv(min(left, 1 << 16))) and not gone.is_set():
                        to.sendall(data)
                        left -= len(data)
                    if left == 0:
                        gone.set()
            threading.Thread(target=run, daemon=True).start()

        ended = threading.Event()
        threading.Thread(target=relay, daemon=True).start()
        try:
            yield "127.0.0.1:%d" % listener.getsockname()[1]
        finally:
            ended.set()


def values():
    return {"w": numpy.arange(6, dtype=numpy.float32).reshape(2, 3), "b": numpy.ones(5, numpy.float32)}


def join(server, **options):
    return ampd.join(server.endpoint, "m", values(), optimizer=ampd.AdamW(lr=0.1), cast="float16", **options)


def train(job, last):
    """Up to this step; step 3 overflows. Returns the first step."""
    first = None
    for step in job.steps():
        first = first or step.number
        for name, array in job.parameters.items():
            step.push(name, numpy.full(array.shape, numpy.inf if step.number == 3 else step.number, numpy.float16))
        step.end()
        if step.number == last:
            break
    return first


def exported(place):
    """The file of step 2 of a model on a server of its own."""
    file = pathlib.Path(place) / "checkpoint"
    with ampd.testing.server() as other:
        with join(other) as job:
            train(job, 2)
        with ampd.connect(other.endpoint) as operator:
            operator.checkpoint("m")
            operator.export("m", file)
    return file


def test_a_model_that_is_restored_elsewhere_ends_with_the_same_bytes():
    with folder() as name:
        files = [pathlib.Path(name) / one for one in ("moved", "stayed", "ended")]
        with ampd.testing.server() as server, ampd.testing.cluster(3) as other:
            with join(server, max_steps=9) as job:
                train(job, 5)
            with ampd.connect(server.endpoint) as operator:
                operator.checkpoint("m")
                operator.export("m", files[0])
            with join(server, max_steps=9) as job:
                train(job, 9)
            with ampd.connect(server.endpoint) as operator:
                assert operator.checkpoint("m").step == 9
                operator.export("m", files[1], values_only=True)
            with join(other, max_steps=9, restore=files[0]) as job:
                assert train(job, 9) == 6
            with ampd.connect(other.endpoint) as operator:
                assert operator.checkpoint("m").step == 9
                operator.export("m", files[2], values_only=True)
                assert [row.skipped for row in operator.history("m") if row.kind == "step"] == [False] * 4
        assert files[1].read_bytes() == files[2].read_bytes()
        read = ampd.read_safetensors(files[1])
        assert sorted(read) == ["b", "w"] and read["w"].shape == (2, 3) and read["w"].dtype == numpy.float32


def test_a_join_with_restore_goes_on_where_the_model_has_values():
    with folder() as name, ampd.testing.server() as server:
        file = pathlib.Path(name) / "checkpoint"
        with join(server) as job:
            train(job, 2)
        with ampd.connect(server.endpoint) as operator:
            operator.checkpoint("m")
            operator.export("m", file)
        with join(server) as job:
            train(job, 4)
        with join(server, restore=file) as job:
            assert job.begin().number == 5


def test_a_join_with_restore_loads_where_a_loader_hangs():
    many = {"w": numpy.ones(1 << 22, numpy.float32), "b": numpy.ones(5, numpy.float32)}
    lease_s = 4 * min(PATIENCE, 2)  # below message_window_ms, which ends a stream that stands still (LOAD_BROKEN)
    with folder() as name, ampd.testing.server(options=[f"--worker-lease={lease_s}s"]) as server:
        file = pathlib.Path(name) / "checkpoint"
        with ampd.testing.server() as other:
            with ampd.join(other.endpoint, "m", many, optimizer=ampd.SGD(0.1)) as job:
                train(job, 2)
            with ampd.connect(other.endpoint) as operator:
                operator.checkpoint("m")
                operator.export("m", file)
        with stuck(server.endpoint) as endpoint, ampd.connect(server.endpoint) as operator:
            with subprocess.Popen([sys.executable, "-B", "-c", LOADS, PACKAGE, endpoint]) as hangs:
                try:
                    assert eventually(lambda: [one.state for one in operator.status().models] == ["loading"])
                    with ampd.join(server.endpoint, "m", many, optimizer=ampd.SGD(0.1), restore=file,
                                   step_timeout=60 * PATIENCE) as job:
                        assert job.begin().number == 3
                    reasons = [row.reason for row in operator.history("m") if row.kind == "epoch"]
                    assert reasons[1:2] == ["LOAD_ENDED"], reasons
                finally:
                    hangs.kill()


def test_a_connection_that_is_gone_without_a_word_is_given_up_within_a_lease():
    """As one that a NAT has forgotten."""
    many = {"w": numpy.ones(1 << 22, numpy.float32)}
    with ampd.testing.server() as server, stuck(server.endpoint, others=5) as endpoint:
        begun = time.monotonic()
        with ampd.join(endpoint, "m", many, optimizer=ampd.SGD(0.1)):
            assert time.monotonic() - begun < LEASE_S * PATIENCE


def recovering_at_first():
    """A model is recovering when it is looked at for the first times."""
    from ampd import server as servers
    model, times = servers.Server.model, itertools.count()

    def recovers(self, name):
        found = model(self, name)
        return dataclasses.replace(found, state="waiting", recovering=True) if next(times) < 4 else found

    return unittest.mock.patch.object(servers.Server, "model", recovers)


def test_a_join_with_restore_loads_where_a_load_has_just_broken_off():
    with folder() as name, ampd.testing.server() as server:
        file = exported(name)
        with recovering_at_first(), join(server, restore=file, step_timeout=20) as job:
            assert job.begin().number == 3


def test_a_join_with_restore_needs_no_file_where_a_model_that_recovers_has_values():
    with folder() as name, ampd.testing.server() as server:
        with join(server, durability="step") as job:
            train(job, 2)
        with recovering_at_first(), join(server, durability="step", restore=pathlib.Path(name) / "gone") as job:
            assert job.begin().number == 3


def test_a_join_with_restore_goes_on_with_values_that_come_before_its_own():
    from ampd import _files
    load = _files.load
    with folder() as name, ampd.testing.server() as server:
        file = exported(name)

        def load_after_another(*arguments, **options):
            load(*arguments, **options)
            load(*arguments, **options)

        with unittest.mock.patch.object(_files, "load", load_after_another), join(server, restore=file) as job:
            assert job.begin().number == 3


def test_a_process_that_ignores_the_end_of_its_children_is_told_so_and_not_that_all_went_well():
    with ampd.testing.server() as server, ampd.connect(server.endpoint) as operator:
        before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        try:
            raises(ampd.WrongState, lambda: operator.export("nobody", "/nowhere"), "SIGCHLD", "SIG_DFL")
        finally:
            signal.signal(signal.SIGCHLD, before)


def test_what_an_export_is_asked_for_is_whole_and_what_it_has_to_say_is_logged():
    with folder() as name, ampd.testing.server() as server, ampd.connect(server.endpoint) as operator:
        file = pathlib.Path(name) / "checkpoint"
        with join(server, checkpoint_every=2) as job:
            train(job, 3)
            assert eventually(lambda: any(one.step == 2 for one in operator.checkpoints("m")))
            with told() as lines:
                operator.export("m", file)
            assert len(lines) == 1 and "this is the checkpoint of step 2, and m is at step 3" in lines[0], lines
            assert 'call checkpoint("m") and export again' in lines[0], lines
        for step in (-1, 1.5, "1"):
            error = raises(ampd.InvalidArgument, lambda step=step: operator.export("m", file, step=step), "step")
            assert "Try" not in str(error), error
        for model in ("x" * 200, "", "a\0b"):
            error = raises(ampd.InvalidArgument, lambda model=model: operator.export(model, file))
            assert "Try" not in str(error), error


def test_what_is_wrong_with_a_file_is_told_in_a_sentence():
    with folder() as name, ampd.testing.server() as server:
        file, damaged = pathlib.Path(name) / "checkpoint", pathlib.Path(name) / "damaged"
        with join(server) as job:
            train(job, 1)
        with ampd.connect(server.endpoint) as operator:
            operator.checkpoint("m")
            operator.export("m", file)
            raises(ampd.Error, lambda: operator.export("m", file), "exists", "give overwrite=True")
            operator.export("m", file, overwrite=True)
            raises(ampd.NotFound, lambda: operator.export("nobody", damaged), "nobody",
                   "ampd.connect(...).models() lists")
            raises(ampd.Error, lambda: operator.load("m", file, full=True), "values")
            nowhere = pathlib.Path(name) / "no" / "file"
            raises(ampd.NotFound, lambda: operator.load("m", nowhere), str(nowhere), "give the path")
            error = raises(ampd.Error, lambda: operator.export("m", nowhere), str(nowhere))
            assert "checkpoint export" not in str(error), error
            values_alone = pathlib.Path(name) / "values"
            operator.export("m", values_alone, values_only=True)
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        damaged.write_bytes(data)
        with ampd.testing.server() as other:
            raises(ampd.Error, lambda: join(other, restore=damaged), "damaged")
            with ampd.connect(other.endpoint) as operator:
                raises(ampd.Error, lambda: operator.load("m", values_alone, full=True), "without moments",
                       "connect(...).load()")
        damaged.write_bytes(data[:100])
        raises(ampd.DataLoss, lambda: ampd.read_safetensors(damaged), "cut off")


def safetensors(path, tensors):
    """A file of tensors of four elements: name -> (dtype, bytes)."""
    header, at, data = {}, 0, b""
    for name, (dtype, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": [4], "data_offsets": [at, at + len(content)]}
        at, data = at + len(content), data + content
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_whole_numbers_of_a_safetensors_file_are_read_and_a_dtype_that_numpy_lacks_is_named():
    kinds = {"I8": numpy.int8, "I16": numpy.int16, "I32": numpy.int32, "I64": numpy.int64, "U8": numpy.uint8,
             "U16": numpy.uint16, "U32": numpy.uint32, "U64": numpy.uint64}
    with folder() as name:
        file = pathlib.Path(name) / "values"
        safetensors(file, {dtype: (dtype, numpy.arange(4, dtype=kind).tobytes()) for dtype, kind in kinds.items()})
        found = ampd.read_safetensors(file)
        assert {dtype: one.dtype for dtype, one in found.items()} == kinds
        assert all(one.tolist() == [0, 1, 2, 3] for one in found.values())
        safetensors(file, {"w": ("F32", bytes(16)), "eight": ("F8_E4M3", bytes(4))})
        raises(ampd.InvalidArgument, lambda: ampd.read_safetensors(file), "eight", "F8_E4M3")


run(globals())
