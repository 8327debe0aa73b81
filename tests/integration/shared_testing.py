"""What the tests of shared memory share: a worker in Python that attaches it, and what a process holds of it."""
import mmap
import os
import pathlib
import re
import socket
import struct

import ampd_testing
from ampd_testing import (CALL_TIMEOUT_S, CHANNEL_OPTIONS, Code, Refusal, common, eventually, grpc, params, refused,
                          spec)

TRAILER = params.PushRequest(trailer=params.PushTrailer())


def placed(first, count):
    return params.PushRequest(placed={"first": first, "count": count})


def connect(address):
    return grpc.insecure_channel(address, options=CHANNEL_OPTIONS)


def guest(path):
    """A connection to the socket; it waits where others wait to be accepted, as Python's own timeout would not."""
    link = socket.socket(socket.AF_UNIX)
    for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        link.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", CALL_TIMEOUT_S, 0))
    link.connect(path)
    return link


class Attachment:
    """A call of AttachMemory that is open, and what came of it; the member has an api and an identity()."""

    def __init__(self, member, fetch=True, patient=True, dtype=common.DTYPE_F16):
        self.api, self.member, self.dtype = member.api, member, dtype
        if patient:  # those before it may still be ending
            eventually(self._begin, "there is room for an attachment")
        else:
            assert self._begin(), "there is no room"
        self.fds, self.copies, self.slot = [], [], None
        if fetch:
            self.fetch()

    def _begin(self):
        # It stays open as long as the slot is wanted, and that may be all the run.
        self.call = self.api.start("AttachMemory", timeout_s=ampd_testing.RUN_TIMEOUT_S, **self.member.identity(),
                                   dtype=self.dtype)
        try:
            self.answer = self.call.next()
        except grpc.RpcError as error:
            assert Refusal(error).code == Code.RESOURCE_EXHAUSTED, Refusal(error)
            return False
        return True

    @property
    def nonce(self):
        return struct.pack("<QQ", self.answer.nonce_low, self.answer.nonce_high)

    def fetch(self):
        with guest(self.answer.socket) as link:
            link.sendall(self.nonce)
            byte, self.fds, _, _ = socket.recv_fds(link, 1, 3)
        assert byte == b"\1" and len(self.fds) == 3, (byte, self.fds)
        self.copies = [mmap.mmap(fd, self.answer.copy_bytes, prot=mmap.PROT_READ) for fd in self.fds[:2]]
        self.slot = mmap.mmap(self.fds[2], self.answer.slot_bytes)

    def end(self):
        """The call; mappings stay as long as somebody has them."""
        self.call.cancel()
        for fd in self.fds:
            os.close(fd)
        self.fds = []


def holdings(pid):
    """(descriptors, of them slots; memfds that are mapped, of them slots)"""
    names = []
    for link in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        try:
            names.append(os.readlink(link))
        except FileNotFoundError:
            continue
    maps = [line for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines() if "memfd:" in line]
    return (len(names), sum("ampd-slot" in name for name in names),
            len(maps), sum("ampd-slot" in line for line in maps))


def memory_left(api):
    """Bytes of --memory-max that nothing has taken; the refusal of the largest model that there may be tells them."""
    too_large = spec("too-large", [("w", [(1 << 36) - 65536])])
    refusal = refused(lambda: api.CreateModel(spec=too_large), Code.RESOURCE_EXHAUSTED, "NO_MEMORY")
    return int(re.search(r"but (\d+) are left", refusal.text)[1])
