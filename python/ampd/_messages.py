"""The messages of proto/ampd/v1 and the methods that they belong to, made from messages.binpb by Python's protobuf."""
from __future__ import annotations

import functools
import pathlib

try:
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    from google.protobuf.message import DecodeError
except ImportError as _error:
    raise ImportError("what ampd reads of a server needs protobuf for Python (%s); install the package "
                      "python3-protobuf, or protobuf of PyPI" % _error) from None

from ampd import errors

FILE = pathlib.Path(__file__).parent / "messages.binpb"
_SERVICES = ("ParameterService", "ScaleService", "AdminService")


@functools.lru_cache(maxsize=None)
def _pool() -> descriptor_pool.DescriptorPool:
    # A pool of its own: a program may have made classes of the same .proto files for itself.
    pool = descriptor_pool.DescriptorPool()
    for one in descriptor_pb2.FileDescriptorSet.FromString(FILE.read_bytes()).file:
        pool.Add(one)
    return pool


def _class_of(descriptor):
    if hasattr(message_factory, "GetMessageClass"):  # protobuf 4.22 and later
        return message_factory.GetMessageClass(descriptor)
    return message_factory.MessageFactory(_pool()).GetPrototype(descriptor)


@functools.lru_cache(maxsize=None)
def _methods() -> dict:
    return {method.name: ("/%s/%s" % (service.full_name, method.name), _class_of(method.input_type),
                          _class_of(method.output_type))
            for service in (_pool().FindServiceByName("ampd.v1." + name) for name in _SERVICES)
            for method in service.methods}


def request(method: str, **fields) -> tuple[str, bytes]:
    """(path, bytes) of a call. None is for a field that is not given; a nested message is a dict."""
    path, kind, _ = _methods()[method]
    made = kind()
    _fill(made, fields)
    return path, made.SerializeToString()


def _fill(message, fields: dict) -> None:
    for name, value in fields.items():
        if value is None:
            continue
        try:
            if isinstance(value, dict):
                getattr(message, name).SetInParent()
                _fill(getattr(message, name), value)
            elif isinstance(value, (list, tuple)):
                getattr(message, name).extend(value)
            else:
                setattr(message, name, value)
        except (TypeError, ValueError, OverflowError):
            raise errors.InvalidArgument("%s is %.80r; give %s" % (name, value, _kind_of(message, name))) from None


def _kind_of(message, name: str) -> str:
    field = message.DESCRIPTOR.fields_by_name[name]
    if field.cpp_type == field.CPPTYPE_STRING:
        return "a string"
    if field.cpp_type in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64):
        return "a whole number, 0 or above"
    return "a number"


def answer(method: str, data: bytes):
    """The message that a method has answered with."""
    made = _methods()[method][2]()
    try:
        made.ParseFromString(data)
    except DecodeError:
        raise errors.Internal("the answer to %s, %d bytes, is not the message that this package knows; is it an ampd "
                              "of another version?" % (method, len(data))) from None
    return made


# ---- enums as words ----

def _prefix(enum) -> str:
    return enum.values_by_number[0].name[:-len("UNSPECIFIED")]


def word(enum, number: int) -> str | None:
    """"skipped_overflow" of VERDICT_SKIPPED_OVERFLOW; None of what is not given."""
    if number == 0:
        return None
    value = enum.values_by_number.get(number)
    return value.name[len(_prefix(enum)):].lower() if value is not None else "unknown"


def number(enum_name: str, given: str, what: str) -> int:
    """The other way round."""
    enum = _pool().FindEnumTypeByName("ampd.v1." + enum_name)
    words = {word(enum, value.number): value.number for value in enum.values if value.number != 0}
    if given not in words:
        raise errors.InvalidArgument("%s is %r; give one of %s" % (what, given, ", ".join(words)))
    return words[given]
