"""What the tests of shared memory share: a worker in Python that attaches it, and what a process holds of it."""
import fcntl
import mmap
import os
import pathlib
import re
import socket
import struct
import subprocess
import threading

import ampd_testing
from ampd_testing import (CALL_TIMEOUT_S, CHANNEL_OPTIONS, DIE_WITH_PARENT, PATIENCE, Code, Refusal, common, eventually,
                          grpc, params, refused, spec)

APPLIED, OVERFLOW, LATE, ROLLED_BACK = 1, 2, 4, 5  # verdicts
STEPS = int(os.environ.get("AMPD_STEPS", "6"))
TIMEOUT_S = 120 * PATIENCE
# Several small ones in one block, some that straddle two and three, one that is a block, and an end within a block.
SIZES = [70000, 3, 5, 200000, 131072, 65536, 1, 10000]
SLOT = {"place": "slot"}                   # gradients written where the server reads them
OWN = {"place": "own", "values": "own"}    # copied there, and the parameters copied from there
SHARED_CB = {"place": "slot", "values": "shared"}  # both stay there, though it has memory for parameters
STREAM = {"share": 0}

F_ADD_SEALS, F_SEAL_FUTURE_WRITE = 1033, 16

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


def answered(link):
    """The descriptors that come, if any; they are closed."""
    try:
        byte, fds, _, _ = socket.recv_fds(link, 1, 3)
    except ConnectionError:
        return []
    for fd in fds:
        os.close(fd)
    return fds


class Attachment:
    """A call of AttachMemory that is open, and what came of it; the member has an api and an identity()."""

    def __init__(self, member, fetch=True, patient=True, dtype=common.DTYPE_F16, seal=True):
        self.api, self.member, self.dtype, self.sealed = member.api, member, dtype, seal
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
                                   dtype=self.dtype, seals=True)
        try:
            self.answer = self.call.next()
        except grpc.RpcError as error:
            assert Refusal(error).code == Code.RESOURCE_EXHAUSTED, str(error)
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
        if self.sealed:
            self.seal()

    def seal(self):
        fcntl.fcntl(self.fds[2], F_ADD_SEALS, F_SEAL_FUTURE_WRITE)

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


def mapped(worker, what):
    """Bytes of the memfd in the worker."""
    total = 0
    for line in pathlib.Path(f"/proc/{worker.process.pid}/maps").read_text().splitlines():
        if f"memfd:{what}" in line:
            first, last = line.split()[0].split("-")
            total += int(last, 16) - int(first, 16)
    return total


def memory_left(api):
    """Bytes of --memory-max that nothing has taken; the refusal of the largest model that there may be tells them."""
    too_large = spec("too-large", [("w", [(1 << 36) - 65536])])
    refusal = refused(lambda: api.CreateModel(spec=too_large), Code.RESOURCE_EXHAUSTED, "NO_MEMORY")
    return int(re.search(r"but (\d+) are left", refusal.text)[1])


class Step:
    def __init__(self, line):
        words = line.split()
        self.number, self.verdict, self.saw = int(words[1]), int(words[3]), words[5]
        self.still, self.shared = words[7] == "1", words[9] == "1"


class Run:
    """A shared_worker, and what it says."""

    def __init__(self, context, address, name, rank=0, world=1, steps=STEPS, sizes=None, **keys):
        program = context.bin_dir.parent / "tests" / "integration" / "shared_worker"
        sizes = ",".join(map(str, sizes or SIZES))
        words = {"rank": rank, "world": world, "steps": steps, "sizes": sizes, **keys}
        self.process = subprocess.Popen(
            [*DIE_WITH_PARENT, program, address, name, *[f"{key}={value}" for key, value in words.items()]],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", cwd="/")
        self.steps, self.sum, self.err = [], None, []
        self.listener = threading.Thread(target=self._listen, daemon=True)
        self.complainer = threading.Thread(target=lambda: self.err.extend(self.process.stderr), daemon=True)
        self.paused = threading.Event()
        self.listener.start()
        self.complainer.start()

    def _listen(self):
        for line in self.process.stdout:
            if line == "paused\n":
                self.paused.set()
            elif line.startswith("step"):
                self.steps.append(Step(line))
            else:
                self.sum = line.split()[1]

    def wait_until_paused(self):
        eventually(lambda: self.paused.is_set() or self.process.poll() is not None, "it pauses", TIMEOUT_S)
        assert self.process.poll() is None, f"it ended: {''.join(self.err)}"

    def wait_for_steps(self, count):
        eventually(lambda: len(self.steps) >= count or self.process.poll() is not None, f"{count} steps", TIMEOUT_S)

    def go_on(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self, code=0):
        assert self.process.wait(TIMEOUT_S) == code, f"{self.process.returncode}: {''.join(self.err)[-2000:]}"
        self.listener.join(TIMEOUT_S)
        return self

    def kill(self):
        self.process.kill()
        self.process.wait(TIMEOUT_S)
        self.listener.join(TIMEOUT_S)

    @property
    def verdicts(self):
        return [step.verdict for step in self.steps]

    @property
    def shared(self):
        return [step.shared for step in self.steps]

    @property
    def seen(self):
        """step -> sum of the parameters that it saw, where it counted"""
        return {step.number: step.saw for step in self.steps if step.verdict in (APPLIED, OVERFLOW)}
