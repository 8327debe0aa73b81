"""Memory that a CUDA device copies from and to without a detour: the job's own, and what it shares with servers on its
host. There a pull moves no byte but from the server's copy to the device, and a push none but from the device to the
server."""
from __future__ import annotations

import contextlib

import torch

from ampd import errors
from ampd._client import log

_ALIGN = 64
_PORTABLE, _READ_ONLY = 1, 8  # flags of cudaHostRegister


class PinnedMemory:
    """Memory for parameters that come as bytes."""

    in_place = False

    def __init__(self, size: int):
        self.tensor = torch.empty(size + _ALIGN, dtype=torch.uint8, pin_memory=True)
        self.buffer = self.tensor.numpy()
        if self.buffer.ctypes.data % _ALIGN != 0:  # pinned memory begins at a page
            raise errors.Internal("pinned memory is not aligned; use pin_memory=False")


class PinnedSharedMemory(PinnedMemory):
    """The same, and memory that is shared with servers is pinned as long as it is mapped. One that cannot be stays as
    it is: the driver copies by a detour then."""

    in_place = True

    def __init__(self, size: int):
        super().__init__(size)
        #: Bytes of an element of gradients that may be written where the server reads them; 0: none may.
        self.slot_width = 0
        self._pinned: set[int] = set()
        self._told = False

    def mapped(self, address: int, size: int, width: int, writable: bool) -> None:
        flags = _PORTABLE if writable else _PORTABLE | _READ_ONLY
        problem = _problem(torch.cuda.cudart().cudaHostRegister(address, size, flags))
        if problem is None:
            self._pinned.add(address)
            if writable:
                self.slot_width = width
        elif not self._told:
            self._told = True
            log.warning("shared memory cannot be pinned for the device, so copies are slower: %s; pin_memory=False "
                        "leaves it alone", problem)

    def unmapped(self, address: int) -> None:
        """It goes, and all that was mapped with it. Copies from and to it have ended (Module.settle)."""
        self.slot_width = 0
        if address in self._pinned:
            self._pinned.remove(address)
            problem = _problem(torch.cuda.cudart().cudaHostUnregister(address))
            if problem is not None:
                log.warning("shared memory stays pinned: %s", problem)


def _problem(code) -> str | None:
    """What the runtime's code says, or None. torch's enumeration has not all of them."""
    if int(code) == 0:
        return None
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device="cuda")  # the runtime keeps the error for whoever asks next, which is a kernel's start
    return "CUDA's error %d" % int(code)
