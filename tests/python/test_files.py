"""Checkpoints as files: out of one server and into another, by Python."""
from python_testing import folder, needs, raises, run  # noqa: F401 (first: it finds the package)

import pathlib

import ampd
import ampd.testing
import numpy

needs("google.protobuf")


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
            raises(ampd.NotFound, lambda: operator.export("nobody", damaged), "nobody")
            raises(ampd.Error, lambda: operator.load("m", file, full=True), "values")
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        damaged.write_bytes(data)
        with ampd.testing.server() as other:
            raises(ampd.Error, lambda: join(other, restore=damaged), "damaged")
            raises(ampd.Error, lambda: join(other, restore=name + "/nothing"), "nothing")
        damaged.write_bytes(data[:100])
        raises(ampd.DataLoss, lambda: ampd.read_safetensors(damaged), "cut off")


run(globals())
