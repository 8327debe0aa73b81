"""The fp32 masters in a checkpoint: each shard's file is read as it comes, and what is not a master is passed over.

A file is in the safetensors format (storage/checkpoint.h): 8 bytes with the size of the header, the header in JSON, the
tensors. A master has the parameter's name; moments and user states have a "#" in theirs. What a shard's border cuts
is one-dimensional there: "name@first:end".
"""
from __future__ import annotations

import json
import re
import struct
import time

import numpy

from ampd import _messages, errors
from ampd._client import CALL_S, RECONNECT_S, Client, log
from ampd.job import elements

_BLOCK_BYTES = 262144            # of ReadCheckpoint
_HEADER_BYTES_MAX = 64 << 20     # as storage/checkpoint.h has it
_RETRY_PAUSE_S = 0.2             # between two tries to read from a shard that cannot be reached
_PART = re.compile(r"([^#@]+)(?:@(\d+):(\d+))?\Z")

try:  # what a disk has changed is found where this is installed
    from xxhash import xxh3_128 as _hash
except ImportError:
    _hash = None

try:  # it is checked where it is cheap; TCP and TLS have checksums of their own
    from google_crc32c import value as _crc32c
except ImportError:
    try:
        from crc32c import crc32c as _crc32c
    except ImportError:
        _crc32c = None


class _Part:
    """One shard's file on its way. `take` gets the messages of ReadCheckpoint, on the library's thread."""

    def __init__(self, shard: int, parts: int, arrays: dict):
        self.shard, self.parts, self.arrays = shard, parts, arrays
        self.size: int | None = None
        self.taken = 0                  # bytes
        self.head: bytearray | None = bytearray()  # until the header is whole
        self.wanted: list[tuple[int, int, memoryview, str, str]] = []  # (begin, end, where to, name, hash), rising
        self.masters: list[tuple[str, int, int]] = []  # (name, first element, end)

    def _damaged(self, what: str) -> errors.DataLoss:
        return errors.DataLoss("the checkpoint that shard %d sends is damaged: %s; try again, or use another one"
                               % (self.shard, what))

    def take(self, data: bytes) -> None:
        message = _messages.answer("ReadCheckpoint", data)
        if message.HasField("header"):
            if (message.header.shard, message.header.parts) != (self.shard, self.parts):
                raise errors.Unavailable(
                    "the process at the address of shard %d of %d says that it is shard %d of %d; try again"
                    % (self.shard, self.parts, message.header.shard, message.header.parts))
            self.size = message.header.size_bytes
            return
        block = message.data
        if (self.size is None or message.index != self.taken // _BLOCK_BYTES
                or len(block) != min(_BLOCK_BYTES, self.size - self.taken)):
            raise self._damaged("block %d is not the one that follows" % message.index)
        if _crc32c is not None and _crc32c(block) != message.crc32c:
            raise self._damaged("block %d was damaged on its way here" % message.index)
        begin, self.taken = self.taken, self.taken + len(block)
        if self.head is not None:
            self._take_header(block)
        else:
            self._copy(begin, block)

    def _take_header(self, block: bytes) -> None:
        self.head += block
        if len(self.head) < 8:
            return
        size = struct.unpack("<Q", self.head[:8])[0]
        if size > min(_HEADER_BYTES_MAX, self.size - 8):
            raise self._damaged("its header would have %d bytes" % size)
        if len(self.head) < 8 + size:
            return
        head, self.head = self.head, None
        try:
            tensors = json.loads(head[8:8 + size])
            for name, one in tensors.items():
                if name != "__metadata__" and "#" not in name:
                    self._place(name, one, 8 + size, tensors["__metadata__"]["hash:" + name])
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self._damaged("its header is not that of a checkpoint") from None
        self.wanted.sort(key=lambda one: one[0])
        self._copy(0, head)

    def _place(self, name: str, tensor: dict, base: int, told: str) -> None:
        found = _PART.match(name)
        array = self.arrays.get(found[1]) if found else None
        if array is None:
            raise self._damaged("the model has no parameter %.80r" % name)
        first, end = (int(found[2]), int(found[3])) if found[2] else (0, array.size)
        shape = [end - first] if found[2] else list(array.shape)
        begin, stop = tensor["data_offsets"]
        fits = tensor["dtype"] == "F32" and tensor["shape"] == shape and 0 <= first <= end <= array.size
        if not fits or stop - begin != 4 * (end - first) or not 0 <= begin <= stop <= self.size - base:
            raise self._damaged("%.80r has not the shape of the parameter" % name)
        view = memoryview(array.reshape(-1)[first:end].view(numpy.uint8))
        self.wanted.append((base + begin, base + stop, view, name, told))
        self.masters.append((found[1], first, end))

    def _copy(self, begin: int, block: bytes) -> None:
        end = begin + len(block)
        while self.wanted and self.wanted[0][0] < end:
            first, stop, view, name, told = self.wanted[0]
            low, high = max(first, begin), min(stop, end)
            view[low - first:high - first] = block[low - begin:high - begin]
            if stop > end:
                return
            if _hash is not None and _hash(view).hexdigest() != told:
                raise self._damaged("%.80r is not what was written" % name)
            self.wanted.pop(0)

    def check_end(self) -> None:
        if self.size is None or self.taken != self.size or self.head is not None:
            raise self._damaged("%d of %s bytes have come" % (self.taken, self.size))


def _connect(client: Client, endpoint: str) -> Client:
    """The same connection to another address."""
    if client.endpoint.startswith("tls://") and not endpoint.startswith("unix:"):
        endpoint = "tls://" + endpoint
    return Client(endpoint, **client.options)


def _about(client: Client, model: str):
    return _messages.answer("GetModel", client.ask(*_messages.request("GetModel", model=model)))


def _read(client: Client, path: str, request: bytes, part: _Part) -> None:
    silence_s = client.options["call_timeout"] or CALL_S
    try:
        client.stream(path, request, part.take, silence_s)
    except errors.Cancelled:
        if client.stopping:
            raise
        raise errors.Timeout("shard %d has sent %d of its %s bytes of the checkpoint, and then nothing for %g s; see "
                             "whether the disk with its checkpoints answers, or raise call_timeout"
                             % (part.shard, part.taken, part.size or "unknown", silence_s)) from None
    part.check_end()


def _read_part(client: Client, model: str, path: str, request: bytes, shard: int, arrays: dict) -> _Part:
    """Begun again where the connection is lost: for reconnect_timeout, which begins anew when more has come than
    before."""
    most, lost = 0, None
    while True:
        shards = _about(client, model).shards  # by now another process may have its place
        part = _Part(shard, len(shards), arrays)
        try:
            if len(shards) == 1:
                _read(client, path, request, part)
            else:
                with _connect(client, shards[shard].endpoint) as other:
                    _read(other, path, request, part)
            return part
        except errors.Unavailable as error:
            if lost is None or part.taken > most:
                log.warning("%s: shard %d's part of the checkpoint is read again: %s", model, shard, error)
                most, lost = part.taken, time.monotonic()
            if time.monotonic() - lost > (client.options["reconnect_timeout"] or RECONNECT_S):
                raise
            time.sleep(_RETRY_PAUSE_S)


def masters(client: Client, model: str, epoch: int, step: int) -> dict[str, numpy.ndarray]:
    """name -> float32 array, in the order of the specification."""
    about = _about(client, model)
    arrays = {one.name: numpy.empty(tuple(one.shape), numpy.float32) for one in about.spec.parameters}
    ranges: dict[str, list] = {name: [] for name in arrays}
    path, request = _messages.request("ReadCheckpoint", model=model, epoch=epoch, step=step)
    for shard in range(len(about.shards)):
        part = _read_part(client, model, path, request, shard, arrays)
        for name, first, end in part.masters:
            ranges[name].append((first, end))
    for name, found in ranges.items():
        at = 0
        for first, end in sorted(found):
            at = end if first == at else -1
        if at != elements(arrays[name].shape):
            raise errors.DataLoss("the checkpoint of step %d of %s lacks a part of %s; use another one"
                                  % (step, model, name))
    return arrays
