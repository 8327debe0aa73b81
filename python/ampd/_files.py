"""Checkpoints as files: fetched and loaded by the program ampctl, which verifies every hash; and safetensors, read."""
from __future__ import annotations

import json
import operator
import os
import pathlib
import re
import signal
import struct
import subprocess

import numpy

from ampd import errors, spec
from ampd._client import Client, in_own_names, log, shown, utf8
from ampd.testing import program

_DTYPES = {"F64": numpy.float64, "F32": numpy.float32, "F16": numpy.float16, "BF16": numpy.uint16, "I64": numpy.int64,
           "I32": numpy.int32, "I16": numpy.int16, "I8": numpy.int8, "U64": numpy.uint64, "U32": numpy.uint32,
           "U16": numpy.uint16, "U8": numpy.uint8, "BOOL": numpy.bool_}
_HEADER_BYTES_MAX = 64 << 20     # as storage/checkpoint.h has it
_WRONG_USE = 2                   # exit code of ampctl where an argument is wrong
_OF_RPC = 64                     # exit codes of ampctl above it are the status of a call that failed
_CODES = {3: "EINVAL", 4: "EDEADLINE", 5: "ENOTFOUND", 6: "EEXIST", 7: "EDENIED", 8: "EEXHAUSTED", 9: "ESTATE",
          14: "EUNAVAILABLE", 15: "EDATALOSS", 16: "EUNAUTHENTICATED"}
HAS_VALUES = "has values already"  # in what load says where the model keeps those that it has
_VALUES = "give ampd.join, without restore, a model that has its values (ampd.read_safetensors)"
_HERE = {"give --force": "give overwrite=True",   # what is called otherwise here
         "checkpoint export: ": "", "checkpoint import: ": "",
         "leave --full out to load them": "load them with ampd.connect(...).load(), or export all of the checkpoint"}


def _ampctl(client: Client, *arguments: str) -> None:
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        raise errors.WrongState("this process ignores SIGCHLD, so how ampctl ends would not be known; call "
                                "signal.signal(signal.SIGCHLD, signal.SIG_DFL) before")
    command = [program("ampctl"), "--endpoint", client.endpoint]
    for name in ("cacert", "cert", "key", "server_name", "token_file"):
        if client.options.get(name) is not None:
            command += ["--%s" % name.replace("_", "-"), os.fspath(client.options[name])]
    if client.options.get("token_over_plaintext"):
        command.append("--token-over-plaintext")
    done = subprocess.run([*command, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, encoding="utf-8", errors="replace", check=False)
    said = [_in_own_names(line) for line in done.stderr.strip().splitlines()]
    if done.returncode == _WRONG_USE and said:  # behind it stands where there is help
        raise errors.error_of("EINVAL", said[0])
    if done.returncode != 0:
        raise errors.error_of(_CODES.get(done.returncode - _OF_RPC, "EIO"), said[-1] if said else
                              "ampctl ended with %d; see the server's log" % done.returncode)
    for line in said:
        log.warning("%s", line)


def _in_own_names(line: str) -> str:
    sentence = in_own_names(line.removeprefix("ampctl: "))
    for there, here in _HERE.items():
        sentence = sentence.replace(there, here)
    return re.sub(r'run "ampctl checkpoint (\S+)"', r'call checkpoint("\1")', sentence)


def _whole(what: str, value) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise errors.InvalidArgument("%s is %s; give a whole number" % (what, shown(value))) from None


def export(client: Client, model: str, path: os.PathLike, *, values_only: bool, step: int | None, epoch: int | None,
           overwrite: bool) -> None:
    options = ["--values-only"] * values_only + ["--force"] * overwrite
    options += ["--step=%d" % _whole("step", step)] if step is not None else []
    options += ["--epoch=%d" % _whole("epoch", epoch)] if epoch is not None else []
    utf8(model, "the name of the model")
    _ampctl(client, "checkpoint", "export", *options, "--", model, os.fspath(path))


def load(client: Client, model: str, path: os.PathLike, *, full: bool) -> None:
    _header(path)  # a sentence for a file that is not there
    _ampctl(client, "checkpoint", "import", *["--full"] * full, "--", model, os.fspath(path))


def _header(path: os.PathLike) -> tuple[bytes, numpy.ndarray]:
    """The header of a safetensors file, and the bytes behind it, mapped."""
    try:
        size = pathlib.Path(path).stat().st_size
        with open(path, "rb") as file:
            head = file.read(8)
            length = struct.unpack("<Q", head)[0] if len(head) == 8 else size
            if length > min(_HEADER_BYTES_MAX, size - 8):
                raise errors.DataLoss("%s is no safetensors file, or is cut off; export it again" % os.fspath(path))
            header = file.read(length)
        data = numpy.memmap(path, numpy.uint8, "r")[8 + length:] if size > 8 + length else numpy.empty(0, numpy.uint8)
    except OSError as error:
        kind = errors.NotFound if isinstance(error, FileNotFoundError) else errors.InvalidArgument
        raise kind("%s cannot be read: %s; give the path of an exported checkpoint"
                   % (os.fspath(path), error.strerror)) from None
    return header, data


def _damaged(path: os.PathLike) -> errors.DataLoss:
    return errors.DataLoss("%s has a header that is not that of a safetensors file, or is cut off; export it again"
                           % os.fspath(path))


def read_safetensors(path: os.PathLike) -> dict[str, numpy.ndarray]:
    """name -> array of the tensors of a safetensors file, mapped and read-only; bfloat16 as its bits. Of an exported
    checkpoint the parameters alone: moments and user states have a "#" in their names."""
    header, data = _header(path)
    try:
        tensors = {name: one for name, one in json.loads(header).items() if name != "__metadata__" and "#" not in name}
        other = next((name for name, one in tensors.items() if one["dtype"] not in _DTYPES), None)
        if other is None:
            return {name: data[slice(*one["data_offsets"])].view(_DTYPES[one["dtype"]]).reshape(one["shape"])
                    for name, one in tensors.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _damaged(path) from None
    raise errors.InvalidArgument("%s has the tensor %s in %s, which numpy does not have; convert it to F32 before"
                                 % (os.fspath(path), other, tensors[other]["dtype"]))


def refuse_unfit(path: os.PathLike, model: spec.Model) -> None:
    """Refuses a file that `load` would refuse in full, by its header: while the model has not been made, which would
    then be there without values, in the way of the next try."""
    program("ampctl")  # it has to be there
    header, _ = _header(path)
    try:
        tensors = json.loads(header)
        about = tensors.pop("__metadata__", {})
        shapes = {name: tuple(one["shape"]) for name, one in tensors.items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise _damaged(path) from None
    wrong = _unfit(about, shapes, model)
    if wrong is not None:
        raise errors.InvalidArgument("%s cannot be restored as %s: %s" % (os.fspath(path), model.name, wrong))


def _moments(optimizer) -> int:
    """How many tensors a full checkpoint has besides each parameter."""
    least = {"sgd": 0, "rmsprop": 1, "adagrad": 1, "lion": 1, "adam": 2, "adamw": 2}[optimizer.kind]
    return least + (getattr(optimizer, "momentum", 0) != 0 or getattr(optimizer, "centered", False))


def _unfit(about: dict, shapes: dict, model: spec.Model) -> str | None:
    """Why a full checkpoint with these tensors cannot become this model."""
    if about.get("format") != "ampd/1":
        return "it is not a checkpoint of ampd; " + _VALUES
    wanted = {one.name: tuple(one.shape) for one in model.parameters}
    for name in [*wanted, *(one for one in shapes if "#" not in one)]:
        if wanted.get(name) != shapes.get(name):
            return ("parameter %s has shape %s there, and %s here; give the model that it is of"
                    % (name, shapes.get(name, "none"), wanted.get(name, "none")))
    had, has = about.get("optimizer"), model.optimizer
    if had not in (None, has.kind):
        return ("its moments are those of %s, and the model has %s; give ampd.join optimizer=ampd.%s(...)"
                % (had, has.kind, {one.kind: one.__name__ for one in spec.Optimizer.__args__}.get(had, had)))
    moments = sum("%s#%s" % (next(iter(wanted)), one) in shapes for one in "mv")
    if moments == 0 and _moments(has) > 0 and had is None:
        return "it has values alone, without moments; export all of the checkpoint, or " + _VALUES
    centered = about.get("centered")
    if moments != _moments(has) or (centered is not None and (centered == "1") != getattr(has, "centered", False)):
        return ("its moments are those of another %s (momentum, centered); give ampd.join the optimizer that the model "
                "of the file had" % has.kind)
    return None
