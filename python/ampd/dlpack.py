"""DLPack: tensors of any library as gradients, and parameters as tensors of any library, without a copy.

    step.push("w", tensor)                                    # torch's, JAX's, ... on the CPU, bfloat16 too
    w = torch.from_dlpack(job.parameters.dlpack("w"))         # at the same address, bfloat16 too

Capsules are those of DLPack before 1.0 ("dltensor"), which every library gives when nothing else is asked for.
"""
from __future__ import annotations

import ctypes

import numpy

from ampd import errors

_CPU = 1
_FLOAT, _BFLOAT = 2, 4
_KINDS = {0: "int", 1: "uint", _FLOAT: "float", _BFLOAT: "bfloat", 5: "complex", 6: "bool"}
_DTYPES = {(_FLOAT, 32): (numpy.dtype(numpy.float32), None), (_FLOAT, 16): (numpy.dtype(numpy.float16), None),
           (_BFLOAT, 16): (numpy.dtype(numpy.uint16), "bfloat16"),
           (_FLOAT, 64): (numpy.dtype(numpy.float64), None)}  # which ampd.join gradients= may convert
_NAME = b"dltensor"


class _Tensor(ctypes.Structure):
    """struct DLTensor, which struct DLManagedTensor begins with."""

    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
                ("dimensions", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


# A prototype of our own: argument types set on ctypes.pythonapi's function would hold for every other user of it.
_pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi))


def _content(capsule) -> _Tensor:
    """What a capsule has: valid as long as the capsule is, if nobody takes it."""
    return _Tensor.from_address(_pointer_of(capsule, _NAME))


def _no_device(device: int) -> errors.InvalidArgument:
    return errors.InvalidArgument("the tensor is on a device of DLPack's type %d, and gradients are pushed from the "
                                  "CPU; copy it there first" % device)


class _Lent:
    """What a numpy array keeps, and by it the tensor: a capsule that nobody takes releases its tensor when it goes."""

    def __init__(self, capsule, content: _Tensor, dtype: numpy.dtype):
        self._capsule = capsule
        shape = tuple(content.shape[:content.dimensions])
        strides = None
        if content.strides:  # NULL: contiguous
            strides = tuple(stride * dtype.itemsize for stride in content.strides[:content.dimensions])
        self.__array_interface__ = {"version": 3, "typestr": dtype.str, "shape": shape, "strides": strides,
                                    "data": ((content.data or 0) + content.byte_offset, True)}


def array_of(tensor) -> tuple[numpy.ndarray, str | None]:
    """(a read-only array of the tensor's memory, "bfloat16" if it has the bits of those, else None).

    The array may be strided. The tensor stays alive as long as it."""
    kind = type(tensor).__name__
    if hasattr(tensor, "__dlpack_device__"):
        device = int(tensor.__dlpack_device__()[0])
        if device != _CPU:
            raise _no_device(device)
    try:
        capsule = tensor.__dlpack__()
        content = _content(capsule)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise errors.InvalidArgument("the %s gives no capsule of DLPack: %s"
                                     % (kind, str(error).partition("\n")[0])) from error
    if content.device_type != _CPU:
        raise _no_device(content.device_type)
    dtype, word = _DTYPES.get((content.code, content.bits), (None, None))
    if dtype is None or content.lanes != 1:
        raise errors.InvalidArgument("the %s is of %s%d%s; give float16, bfloat16 or float32" % (
            kind, _KINDS.get(content.code, "DLPack's dtype %d of bits " % content.code), content.bits,
            "x%d" % content.lanes if content.lanes != 1 else ""))
    if 0 in content.shape[:content.dimensions]:  # there may be no address
        return numpy.empty(tuple(content.shape[:content.dimensions]), dtype), word
    return numpy.asarray(_Lent(capsule, content, dtype)), word


class Tensor:
    """A parameter as it was last pulled, for from_dlpack of any library: a view, which the next pull changes.

    It may outlive the job. DLPack before 1.0 cannot say that it is read-only; what is written there is gone with the
    next version, and no other worker sees it."""

    def __init__(self, array: numpy.ndarray, dtype: str):
        self._array = array  # writable, since numpy gives no capsule of others
        self.dtype = dtype
        self.shape = array.shape

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """numpy's capsule, which releases the memory from any thread, and at the end of the interpreter leaves it."""
        if dl_device is not None and int(dl_device[0]) != _CPU:
            raise BufferError("a parameter of ampd is on the CPU; copy it to another device by its own library")
        capsule = (self._array.copy() if copy else self._array).__dlpack__()
        if self.dtype == "bfloat16":  # numpy has none, and has made a capsule of uint16
            _content(capsule).code = _BFLOAT
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return (_CPU, 0)

    def __repr__(self):
        return "<ampd tensor of %s, %s>" % (self.dtype, "x".join(map(str, self.shape)) or "one value")
