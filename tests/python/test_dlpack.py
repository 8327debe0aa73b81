"""Tensors as gradients and parameters as tensors, by DLPack: the same memory, bfloat16 too, and for how long."""
from python_testing import PACKAGE, Skip, raises, run  # noqa: F401 (first: it finds the package)

import gc
import subprocess
import sys
import weakref

import ampd
import ampd.dlpack
import ampd.testing
import numpy

try:
    import torch
except ImportError:
    torch = None

DTYPES = ("float32", "float16", "bfloat16")


def needs_torch():
    if torch is None:
        raise Skip("no PyTorch (package python3-torch)")


def joined(server, cast="float32", name="line", **options):
    values = {"w": numpy.arange(6, dtype=numpy.float32).reshape(2, 3), "b": numpy.ones(5, numpy.float32)}
    return ampd.join(server.endpoint, name, values, cast=cast, optimizer=ampd.SGD(lr=1.0), max_steps=5, **options)


class Wrapped:
    """A producer that is told what to answer, over another one's capsule."""

    def __init__(self, tensor, device=(1, 0), **fields):
        self.tensor, self.device, self.fields = tensor, device, fields

    def __dlpack__(self):
        capsule = self.tensor.__dlpack__()
        for field, value in self.fields.items():
            setattr(ampd.dlpack._content(capsule), field, value)
        return capsule

    def __dlpack_device__(self):
        return self.device


# ---- tensors as gradients ----

def test_a_tensor_is_pushed_without_a_copy_in_each_dtype():
    needs_torch()
    with ampd.testing.server() as server:
        for dtype in DTYPES:
            with joined(server, dtype, name=dtype, scaler=ampd.NoScaler()) as job:
                step = job.begin()
                step.push("w", torch.full((2, 3), 2.0, dtype=getattr(torch, dtype)))
                step.push("b", torch.full((5,), 0.5, dtype=getattr(torch, dtype)))
                assert step.end().applied and job.copies == 0
                job.begin()
                b = torch.from_dlpack(job.parameters.dlpack("b"))
                assert b.dtype == getattr(torch, dtype) and (b == 0.5).all(), b


def test_an_array_of_a_tensor_has_its_address_and_keeps_it():
    needs_torch()
    for dtype in DTYPES:
        tensor = torch.arange(6).reshape(2, 3).to(getattr(torch, dtype))
        array, word = ampd.dlpack.array_of(tensor)
        assert array.ctypes.data == tensor.data_ptr() and array.shape == (2, 3) and array.flags.c_contiguous
        assert word == ("bfloat16" if dtype == "bfloat16" else None)
        assert array.dtype == (numpy.uint16 if word else dtype) and not array.flags.writeable
        del tensor
        gc.collect()
        torch.full((2, 3), 9, dtype=getattr(torch, dtype))  # would take the memory, had it been freed
        as_float = (array.astype(numpy.uint32) << 16).view(numpy.float32) if word else array.astype(numpy.float32)
        assert as_float.flatten().tolist() == [0, 1, 2, 3, 4, 5]


def test_the_tensor_is_released_with_the_last_array_of_it():
    owner = numpy.zeros((2, 3), numpy.float32)
    alive = weakref.ref(owner)
    array, _ = ampd.dlpack.array_of(owner)
    view = array[1:]
    del owner, array
    gc.collect()
    assert alive() is not None
    del view
    gc.collect()
    assert alive() is None


def test_strides_and_offsets_are_heeded_and_a_copy_is_counted():
    base = numpy.arange(24, dtype=numpy.float32).reshape(4, 6)
    for view in (base[1:, 2:], base.T, base[::2, ::-1], base[:, :1], base[3, 5:].reshape(()), base[0:0]):
        array, _ = ampd.dlpack.array_of(view)
        assert array.shape == view.shape and (array == view).all(), view
        assert view.size == 0 or array.ctypes.data == view.ctypes.data
    shifted, _ = ampd.dlpack.array_of(Wrapped(base[0, :2], byte_offset=8))
    assert shifted.tolist() == [2, 3]
    with ampd.testing.server() as server, joined(server) as job:
        step = job.begin()
        step.push("w", Wrapped(base[:3, :2].T))
        assert job.copies == 1
        assert step.end().applied
        job.begin()
        assert (job.parameters["w"] == numpy.arange(6).reshape(2, 3) - base[:3, :2].T).all()


def test_a_tensor_with_torchs_negative_bit_is_pushed_with_its_sign():
    needs_torch()
    tensor = (torch.arange(5.0) * 1j).conj().imag
    assert tensor.is_neg()
    with ampd.testing.server() as server, joined(server, scaler=ampd.NoScaler()) as job:
        step = job.begin()
        step.push("b", tensor)
        assert step.end().applied and job.copies == 1
        job.begin()
        assert (job.parameters["b"] == 1 + numpy.arange(5)).all(), job.parameters["b"]


def test_float64_of_another_library_is_converted_as_numpys_is_where_a_dtype_is_asked_for():
    with ampd.testing.server() as server:
        for tensor in (numpy.full(5, 0.5), Wrapped(numpy.full(5, 0.5))):
            with joined(server, name=type(tensor).__name__) as job:
                raises(ampd.InvalidArgument, lambda job=job, tensor=tensor: job.begin().push("b", tensor), "float64",
                       'ampd.join gradients="float32"')
            with joined(server, name=type(tensor).__name__ + "-converted", scaler=ampd.NoScaler(),
                        gradients="float32") as job:
                step = job.begin()
                step.push("b", tensor)
                assert step.end().applied and job.copies == 1
                job.begin()
                assert (job.parameters["b"] == 0.5).all()


def test_masked_arrays_are_refused_as_a_mask_would_be_lost():
    masked = numpy.ma.masked_array(numpy.ones(5, numpy.float32), mask=[0, 1, 0, 0, 0])
    with ampd.testing.server() as server:
        raises(ampd.InvalidArgument, lambda: ampd.join(server.endpoint, "masked", {"b": masked}),
               "the value of b is a masked array", "filled(0)")
        with joined(server, scaler=ampd.NoScaler()) as job:
            step = job.begin()
            raises(ampd.InvalidArgument, lambda: step.push("b", masked), "the gradient of b is a masked array",
                   "filled(0)")
            step.push("b", masked.filled(0))
            assert step.end().applied
            job.begin()
            assert job.parameters["b"].tolist() == [0, 1, 0, 0, 0]


def test_what_cannot_be_pushed_gets_a_sentence():
    array = numpy.zeros(5, numpy.float32)
    with ampd.testing.server() as server, joined(server) as job:
        step = job.begin()

        def refused(tensor, *words):
            raises(ampd.InvalidArgument, lambda: step.push("b", tensor), *words)

        refused(Wrapped(array, device=(2, 0)), "type 2", "CPU")
        refused(Wrapped(array, device_type=10), "type 10", "CPU")
        refused(Wrapped(numpy.zeros(5)), "float64", "bfloat16")
        refused(Wrapped(numpy.zeros(5, numpy.uint16)), "uint16")
        refused(Wrapped(array, lanes=4), "float32x4")
        refused(Wrapped(numpy.zeros(4, numpy.float32)), "(4,)", "(5,)")
        array.flags.writeable = False  # numpy gives no capsule of such
        refused(Wrapped(array), "no capsule")
        if torch is not None:
            refused(torch.zeros(5, requires_grad=True), "detach()")
            refused(torch.zeros(5, dtype=torch.int32), "int32")
        assert job.copies == 0


# ---- parameters as tensors ----

def test_a_parameter_is_a_tensor_at_the_same_address_in_each_dtype():
    needs_torch()
    with ampd.testing.server() as server:
        for dtype in DTYPES:
            with joined(server, dtype, name=dtype, scaler=ampd.NoScaler()) as job:
                step = job.begin()
                exported = job.parameters.dlpack("w")
                w = torch.from_dlpack(exported)
                assert w.dtype == getattr(torch, dtype) and tuple(w.shape) == (2, 3) and str(dtype) in repr(exported)
                assert w.data_ptr() == job.parameters["w"].ctypes.data
                assert torch.utils.dlpack.from_dlpack(exported.__dlpack__()).data_ptr() == w.data_ptr()
                assert w.float().flatten().tolist() == [0, 1, 2, 3, 4, 5]
                step.push("w", torch.ones_like(w))
                step.end()
                job.begin()
                assert w.float().flatten().tolist() == [-1, 0, 1, 2, 3, 4]  # the next pull comes to the same place
                assert not job.parameters["w"].flags.writeable and job.copies == 0


def test_numpy_takes_a_parameter_too():
    with ampd.testing.server() as server, joined(server, "float16") as job:
        job.begin()
        array = numpy.from_dlpack(job.parameters.dlpack("w"))
        assert array.ctypes.data == job.parameters["w"].ctypes.data and array.dtype == numpy.float16
        raises(ampd.NotFound, lambda: job.parameters.dlpack("v"), "'v'", "w, b")


def test_what_newer_libraries_ask_for_is_answered():
    with ampd.testing.server() as server, joined(server, "bfloat16") as job:
        job.begin()
        exported = job.parameters.dlpack("b")
        for asked in ({}, {"stream": None}, {"max_version": (1, 0), "dl_device": None, "copy": None},
                      {"max_version": (1, 1), "dl_device": (1, 0), "copy": False}):
            capsule = exported.__dlpack__(**asked)
            assert ampd.dlpack._content(capsule).data == job.parameters["b"].ctypes.data
        capsule = exported.__dlpack__(copy=True)
        copied = ampd.dlpack._content(capsule)
        assert copied.data != job.parameters["b"].ctypes.data and copied.code == 4
        raises(BufferError, lambda: exported.__dlpack__(dl_device=(2, 0)), "CPU")
        assert exported.__dlpack_device__() == (1, 0)


def test_a_tensor_outlives_the_job_and_releases_the_memory_at_last():
    needs_torch()
    with ampd.testing.server() as server:
        job = joined(server, "bfloat16")
        job.begin()
        w = torch.from_dlpack(job.parameters.dlpack("w"))
        memory = weakref.ref(job.memory)
        mapped = weakref.ref(job.memory.buffer)
        job.leave()
        del job
        gc.collect()
        assert memory() is None and mapped() is not None
        assert w.float().flatten().tolist() == [0, 1, 2, 3, 4, 5]
        w.fill_(7)  # it is memory of its own now
        del w
        gc.collect()
        assert mapped() is None


def test_a_capsule_that_nobody_takes_releases_the_memory():
    with ampd.testing.server() as server:
        job = joined(server)
        job.begin()
        capsule, mapped = job.parameters.dlpack("w").__dlpack__(), weakref.ref(job.memory.buffer)
        job.leave()
        del job
        gc.collect()
        assert mapped() is not None
        del capsule
        gc.collect()
        assert mapped() is None


def test_a_tensor_may_be_alive_at_the_end_of_the_interpreter():
    needs_torch()
    program = """
import sys
sys.path.insert(0, sys.argv[1])
import ampd, numpy, threading, torch
job = ampd.join(sys.argv[2], "line", {"w": numpy.arange(6, dtype=numpy.float32)}, cast="bfloat16", max_steps=5)
step = job.begin()
w = torch.from_dlpack(job.parameters.dlpack("w"))
step.push("w", torch.ones_like(w))
cycle = [w, job.parameters.dlpack("w").__dlpack__()]
cycle.append(cycle)
torch.kept = w                       # goes after what belongs to this file
if sys.argv[3] == "thread":          # the last holder may be another thread
    threading.Thread(target=lambda held: None, args=(w,)).start()
if sys.argv[3] == "left":
    job.leave()
print("ended", float(w.float().sum()))
"""
    with ampd.testing.server() as server:
        for how in ("left", "joined", "thread"):
            command = [sys.executable, "-B", "-X", "faulthandler", "-c", program, str(PACKAGE), server.endpoint, how]
            done = subprocess.run(command, capture_output=True, timeout=120, encoding="utf-8", check=False)
            assert done.returncode == 0 and done.stdout == "ended 15.0\n", (how, done.returncode, done.stderr)


run(globals())
