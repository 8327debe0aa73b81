"""Pinned memory, which a CUDA device copies from and to by DMA: the job's own, and what is shared with servers on its
host. With the latter a pull is one copy, from the server's memory to the device, and a push is one copy back."""
from __future__ import annotations

import contextlib

import torch

from ampd import errors
from ampd._client import log
from ampd.job import ALIGN, Memory

_PORTABLE, _READ_ONLY = 1, 8  # flags of cudaHostRegister


class PinnedMemory(Memory):
    """For parameters that come as bytes. Also pins shared memory as long as it is mapped; what cannot be pinned is used
    all the same, and the driver copies through a buffer of its own."""

    stays_shared = True

    def __init__(self, device: torch.device):
        self.device = device
        self._pinned: set[int] = set()
        self._told = False

    def open(self, size: int) -> None:
        with torch.cuda.device(self.device):
            self.tensor = torch.empty(size + ALIGN, dtype=torch.uint8, device="cpu", pin_memory=True)
        self.buffer = self.tensor.numpy()
        if self.buffer.ctypes.data % ALIGN != 0:  # pinned memory begins at a page
            raise errors.Internal("pinned memory is not aligned; use pin_memory=False")

    def mapped(self, address: int, size: int, width: int, writable: bool) -> None:
        flags = _PORTABLE if writable else _PORTABLE | _READ_ONLY
        self._pinned.add(address)  # before it is: an interrupt may come in between
        with torch.cuda.device(self.device):  # else the first device gets a context for it
            problem = self._problem(torch.cuda.cudart().cudaHostRegister(address, size, flags))
        if problem is None:
            if writable:
                self.slot_width = width
            return
        self._pinned.remove(address)
        if not self._told:
            self._told = True
            log.warning("shared memory cannot be pinned for the device, so copies are slower: %s; pin_memory=False "
                        "leaves it alone", problem)

    def unmapped(self) -> None:
        """All mappings end together: this is called for each, and the first call does it all. No device copies from or
        to them now."""
        self.slot_width = 0
        with torch.cuda.device(self.device):
            for address in list(self._pinned):
                problem = self._problem(torch.cuda.cudart().cudaHostUnregister(address))
                self._pinned.remove(address)
                if problem is not None:
                    log.warning("shared memory stays pinned: %s", problem)

    def _problem(self, code) -> str | None:
        """What the runtime's code says, or None. torch's enumeration has not all of them."""
        if int(code) == 0:
            return None
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device=self.device)  # the runtime keeps the error for whoever asks next: a kernel's start
        return "CUDA's error %d" % int(code)
