#!/usr/bin/python3
"""test_amp_dlpack.py BRIDGE.so: tensors of NumPy and of PyTorch in and out of amp/, by their own DLPack capsules.

Whichever of the two is missing is told as SKIPPED; exit code 77 if both are.
"""
import ctypes
import gc
import sys
import traceback
import weakref

F32, F16, BF16, F64 = 1, 2, 3, 4
EINVAL = -1
CPU = (1, 0)

try:
    import numpy
except ImportError:
    numpy = None
    print("SKIPPED: test_amp_dlpack.py: no NumPy (package python3-numpy)")
try:
    import torch
except ImportError:
    torch = None
    print("SKIPPED: test_amp_dlpack.py: no PyTorch (package python3-torch)")
if numpy is None:  # PyTorch's values are compared by way of it
    sys.exit(77)

bridge = ctypes.CDLL(sys.argv[1])
bridge.bridge_import_bytes.restype = ctypes.c_size_t
python = ctypes.pythonapi
python.PyCapsule_New.restype = ctypes.py_object
python.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
python.PyCapsule_GetPointer.restype = ctypes.c_void_p
python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
python.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]

# What a capsule is called while it owns its tensor, and after someone took it: kept alive, since no one copies them.
OWNED, TAKEN = ctypes.c_char_p(b"dltensor"), ctypes.c_char_p(b"used_dltensor")


class View(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("count", ctypes.c_size_t), ("dtype", ctypes.c_int),
                ("id", ctypes.c_uint64), ("version", ctypes.c_uint64)]


class Import(ctypes.Structure):
    _fields_ = [("view", View), ("read_only", ctypes.c_bool), ("managed", ctypes.c_void_p), ("legacy", ctypes.c_void_p)]


assert ctypes.sizeof(Import) == bridge.bridge_import_bytes()


def take(tensor):
    """The tensor's capsule as ours, as a receiver takes it: (code, import, capsule)."""
    capsule, taken = tensor.__dlpack__(), Import()
    code = bridge.bridge_import(ctypes.c_void_p(python.PyCapsule_GetPointer(capsule, OWNED)), ctypes.byref(taken), None)
    if code == 0:
        python.PyCapsule_SetName(capsule, TAKEN)
    return code, taken, capsule


class Ours:
    """Memory of ours as a producer that NumPy and PyTorch can ask."""

    def __init__(self, address, count, dtype, shape):
        view, out = View(address, count, dtype, 0, 0), ctypes.c_void_p()
        sizes = (ctypes.c_int64 * len(shape))(*shape)
        code = bridge.bridge_export(ctypes.byref(view), sizes, ctypes.c_size_t(len(shape)), ctypes.byref(out), None)
        assert code == 0, code
        self.capsule = python.PyCapsule_New(out, OWNED, None)

    def __dlpack__(self, stream=None):
        return self.capsule

    def __dlpack_device__(self):
        return CPU


def numpy_arrays_are_taken_without_a_copy_and_given_back():
    for dtype, ours in (("float16", F16), ("float32", F32), ("float64", F64)):
        array = numpy.arange(12, dtype=dtype).reshape(3, 4)
        alive = weakref.ref(array)
        code, taken, capsule = take(array)
        assert code == 0, code
        assert (taken.view.data, taken.view.count, taken.view.dtype) == (array.ctypes.data, 12, ours)
        del array, capsule
        gc.collect()
        assert alive() is not None, "the array went although amp/ has it"
        bridge.bridge_release(ctypes.byref(taken))
        gc.collect()
        assert alive() is None, "the array was not given back"


def numpy_arrays_that_do_not_fit_stay_with_numpy():
    for array in (numpy.zeros((4, 6), "float32")[:, ::2], numpy.zeros((4, 6), "float32").T, numpy.arange(5)):
        code, taken, capsule = take(array)
        assert code == EINVAL and taken.legacy is None, code
        # Nothing was taken: another receiver may still have it.
        holder = type("Holder", (), {"__dlpack__": lambda self, c=capsule: c, "__dlpack_device__": lambda self: CPU})()
        assert numpy.shares_memory(numpy.from_dlpack(holder), array)


def numpy_scalars_and_empty_arrays_are_taken():
    for array, count in ((numpy.array(3, "float32"), 1), (numpy.zeros((3, 0), "float16"), 0)):
        code, taken, _ = take(array)
        assert code == 0 and taken.view.count == count, code
        bridge.bridge_release(ctypes.byref(taken))


def numpy_takes_ours_and_gives_it_back_once():
    data = numpy.arange(6, dtype="float32")
    before = bridge.bridge_released()
    array = numpy.from_dlpack(Ours(data.ctypes.data, 6, F32, (2, 3)))
    assert array.shape == (2, 3) and array.dtype == "float32" and array.ctypes.data == data.ctypes.data
    assert (array == data.reshape(2, 3)).all()
    assert bridge.bridge_released() == before
    del array
    gc.collect()
    assert bridge.bridge_released() == before + 1


def any_bits(count):
    return numpy.random.default_rng(7).integers(0, 2**32, count, dtype="uint32").view("float32")


def numpy_casts_to_f16_as_amp_does():
    source = any_bits(100_003)
    code, taken, _ = take(source)
    assert code == 0, code
    ours = numpy.zeros(source.size, "float16")
    assert bridge.bridge_cast(ctypes.byref(taken), F16, ours.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(ours.nbytes),
                              None) == 0
    bridge.bridge_release(ctypes.byref(taken))
    with numpy.errstate(over="ignore", invalid="ignore"):
        theirs = source.astype("float16")
    nan = numpy.isnan(source)
    assert (ours.view("uint16")[~nan] == theirs.view("uint16")[~nan]).all()
    assert (ours.view("uint16")[nan] == 0x7e00).all()


def torch_tensors_of_every_float_dtype_are_taken_and_given_back():
    for dtype, ours in ((torch.float16, F16), (torch.bfloat16, BF16), (torch.float32, F32), (torch.float64, F64)):
        tensor = torch.arange(10, dtype=torch.float32).to(dtype).reshape(2, 5)
        users = tensor.storage()._use_count() if hasattr(tensor.storage(), "_use_count") else None
        code, taken, capsule = take(tensor)
        assert code == 0, code
        assert (taken.view.data, taken.view.count, taken.view.dtype) == (tensor.data_ptr(), 10, ours)
        bridge.bridge_release(ctypes.byref(taken))
        del capsule
        assert users is None or tensor.storage()._use_count() == users
        assert tensor.float().flatten().tolist() == list(range(10))


def torch_takes_ours_and_gives_it_back_once():
    data = numpy.array([0x3f80, 0xc000, 0x7f80], "uint16")
    before = bridge.bridge_released()
    tensor = torch.from_dlpack(Ours(data.ctypes.data, 3, BF16, (3, 1)))
    assert tensor.dtype == torch.bfloat16 and tuple(tensor.shape) == (3, 1) and tensor.data_ptr() == data.ctypes.data
    assert tensor.flatten().tolist() == [1.0, -2.0, float("inf")]
    assert bridge.bridge_released() == before
    del tensor
    gc.collect()
    assert bridge.bridge_released() == before + 1


def torch_casts_to_f16_and_bf16_as_amp_does():
    source = torch.from_numpy(any_bits(100_003))
    nan = torch.isnan(source).numpy()
    for dtype, ours_dtype, quiet in ((torch.float16, F16, 0x7e00), (torch.bfloat16, BF16, 0x7fc0)):
        code, taken, _ = take(source)
        assert code == 0, code
        ours = numpy.zeros(len(source), "uint16")
        assert bridge.bridge_cast(ctypes.byref(taken), ours_dtype, ours.ctypes.data_as(ctypes.c_void_p),
                                  ctypes.c_size_t(ours.nbytes), None) == 0
        bridge.bridge_release(ctypes.byref(taken))
        theirs = source.to(dtype).view(torch.int16).numpy().view("uint16")
        assert (ours[~nan] == theirs[~nan]).all()
        assert (ours[nan] == quiet).all()


def main():
    failed = 0
    for name, test in list(globals().items()):
        if not name.startswith("numpy_") and not (torch is not None and name.startswith("torch_")):
            continue
        print(f"[ RUN      ] {name}", flush=True)
        try:
            test()
        except Exception:  # noqa: BLE001  a test may fail in any way
            traceback.print_exc()
            failed += 1
            print(f"[  FAILED  ] {name}", flush=True)
        else:
            print(f"[       OK ] {name}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
