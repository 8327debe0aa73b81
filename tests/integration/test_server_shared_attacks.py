#!/usr/bin/python3
"""Memory shared with a worker that means harm: what it may do to descriptors, slots, nonces and streams, drawn by
chance, while an honest worker trains beside it and ends in the same bytes as without.

    test_server_shared_attacks.py BIN_DIR [NAME ...]     AMPD_ACTIONS of the environment: how many (300); AMPD_SEED
    test_server_shared_attacks.py --long [BIN_DIR]       10,000 actions

BIN_DIR of --long is by default that of the release build.
"""
import contextlib
import ctypes
import fcntl
import math
import mmap
import os
import pathlib
import platform
import random
import select
import signal
import socket
import struct
import subprocess
import sys
import threading
import time

LONG = "--long" in sys.argv
if LONG:
    sys.argv = [word for word in sys.argv if word != "--long"]
    if len(sys.argv) == 1:
        sys.argv.append(str(pathlib.Path(__file__).resolve().parents[2] / "build" / "release" / "bin"))

import ampd_testing  # noqa: E402
from ampd_testing import (CALL_TIMEOUT_S, DIE_WITH_PARENT, PATIENCE, Api, Code, OpenStream, Refusal,  # noqa: E402
                          block_message, common, eventually, grpc, params, refused, run, spec)
from shared_testing import (F_ADD_SEALS, TRAILER, Attachment, answered, connect, guest, holdings,  # noqa: E402
                            memory_left, placed)

ACTIONS = int(os.environ.get("AMPD_ACTIONS", "10000" if LONG else "300"))
SEED = int(os.environ.get("AMPD_SEED", str(random.SystemRandom().randrange(1 << 30))))
PER_STEP = 5
STEPS = max(2, ACTIONS // PER_STEP)
ampd_testing.RUN_TIMEOUT_S += ACTIONS * PATIENCE // 2
SIZES = [70000, 3, 100000]
BLOCKS, ELEMENTS = 3, 70016 + 64 + 100032
BLOCK_BYTES = 65536 * 2
F16, F32 = common.DTYPE_F16, common.DTYPE_F32
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.mmap.restype = ctypes.c_size_t
F_SEAL_WRITE, PUNCH = 8, 3  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
HUGE_PAGE, MAP_FIXED, MADV_COLLAPSE = 2 << 20, 16, 25
SYS_USERFAULTFD, UFFDIO_API, UFFDIO_REGISTER = 323, 0xC018AA3F, 0xC020AA00
WORKERS_STAY = ["--worker-lease", "10m"]
DONE_OR_HELD_S = 0.02


def gradient(step):
    """The bytes of the slot: what the attacker owes in this step."""
    return struct.pack("<H", 0x3000 | step % 4 * 100) * ELEMENTS


class Member:
    """A rank of a model, by grpcio over the unix socket."""

    def __init__(self, address, model, rank):
        self.address, self.model, self.rank, self.channel = address, model, rank, None
        self.join()

    def join(self):
        """By a new connection: who cancels many calls is sent away by the server, with all that it has attached."""
        if self.channel is not None:
            self.channel.close()
        self.channel = connect(self.address)
        self.api = Api(self.channel)
        joined = self.api.Join(model=self.model, rank=self.rank, worker_name=f"rank-{self.rank}", instance=7)
        self.incarnation, self.epoch, self.step = joined.incarnation, joined.epoch, joined.step
        self.attached = None

    def identity(self):
        return {"model": self.model, "rank": self.rank, "incarnation": self.incarnation}

    def attach(self):
        self.attached = Attachment(self)
        self.attached.slot[:len(gradient(0))] = gradient(self.step)

    def pull(self, **over):
        fields = {**self.identity(), "epoch": self.epoch, "step": self.step, "in_memory": True, **over}
        answers = self.api.Pull(**{key: value for key, value in fields.items() if value is not None})
        self.scale_id, self.version = answers[0].header.scale_id, answers[0].header.version
        return answers

    def header(self, **over):
        fields = {**self.identity(), "epoch": self.epoch, "step": self.step, "dtype": F16, "scale_id": self.scale_id,
                  **over}
        return params.PushRequest(header=params.PushHeader(**fields))

    def blocks(self):
        data = gradient(self.step)
        return [block_message(params.PushRequest, index, data[index * BLOCK_BYTES:(index + 1) * BLOCK_BYTES])
                for index in range(BLOCKS)]

    def close(self):
        if self.attached is not None:
            self.attached.end()
        self.channel.close()


class Scene:
    """A server, an honest worker and the attacker as the two ranks of a model, and a model that nobody else is in."""

    def __init__(self, context, server, name, steps, draw):
        self.context, self.server, self.name, self.draw = context, server, name, draw
        self.address = f"unix:{server.data_dir}/ampd.sock"
        self.api = Api(server.channel)
        self.honest = self.worker(name, rank=0, world=2, steps=steps, place="slot")
        eventually(lambda: self._has_worker(name), "the model is there")
        self.attacker = Member(self.address, name, 1)
        self.api.CreateModel(spec=spec(f"{name}-prey", [("w", [ELEMENTS])], world_size=2))
        self.raw = f"{name}-raw"
        self.api.CreateModel(spec=spec(self.raw, [("w", [ELEMENTS])]))
        zeros = bytes(65536 * 4)
        self.api.Load([params.LoadRequest(header=params.LoadHeader(model=f"{name}-prey"))] + [
            block_message(params.LoadRequest, index, zeros[:min(65536, ELEMENTS - index * 65536) * 4])
            for index in range(BLOCKS)])
        self.prey, self.other = Member(self.address, f"{name}-prey", 0), Member(self.address, f"{name}-prey", 1)
        self.kept, self.idle, self.stopping = [], [], False
        self.scribbler = threading.Thread(target=self._scribble, daemon=True)
        self.scribbler.start()

    def _has_worker(self, name):
        try:
            return len(self.api.GetModel(model=name).status.workers) > 0
        except grpc.RpcError:
            return False

    def worker(self, name, **keys):
        program = self.context.bin_dir.parent / "tests" / "integration" / "shared_worker"
        words = [f"{key}={value}" for key, value in {"sizes": ",".join(map(str, SIZES)), **keys}.items()]
        with open(self.said(name), "w", encoding="utf-8") as out:  # a pipe would be full in the end
            return subprocess.Popen([*DIE_WITH_PARENT, program, self.address, name, *words], stdin=subprocess.PIPE,
                                    stdout=out, encoding="utf-8")

    def said(self, name):
        return self.server.data_dir.with_name(f"{self.server.data_dir.name}-{name}.out")

    def _scribble(self):
        """Into slots of incarnations that are gone, on and on."""
        while not self.stopping:
            for slot in list(self.kept):
                slot[:] = os.urandom(256) * (len(slot) // 256)
            time.sleep(0.002)

    def keep(self, attachment):
        self.kept = [*self.kept[-5:], attachment.slot]

    def end(self):
        """The honest worker's lines."""
        self.stopping = True
        self.scribbler.join(CALL_TIMEOUT_S)
        assert self.honest.wait(CALL_TIMEOUT_S) == 0, self.honest.returncode
        for link in self.idle:
            link.close()
        self.attacker.close()
        self.prey.close()
        self.other.close()
        return self.said(self.name).read_text(encoding="utf-8").splitlines()

    def socket_path(self):
        return str(self.server.data_dir / "memory.sock")

    def connected(self):
        return guest(self.socket_path())


# ---- actions ----

def fails(function, *arguments):
    """By the kernel's word."""
    try:
        function(*arguments)
    except (PermissionError, OSError) as error:
        return error
    raise AssertionError(f"{function} of {arguments} was allowed")


def libc(name, *arguments):
    if getattr(LIBC, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), name)


def fallocate(fd, mode, offset, size):
    libc("fallocate", fd, mode, ctypes.c_long(offset), ctypes.c_long(size))


def resize(scene):
    for fd in scene.attacker.attached.fds:
        size = os.fstat(fd).st_size
        for wanted in (0, 1, size - 1, size + 1, size + 4096, 1 << 40):
            fails(os.ftruncate, fd, wanted)
        fails(fallocate, fd, 0, size, 4096)
        fails(fcntl.fcntl, fd, F_ADD_SEALS, F_SEAL_WRITE)


def write_copies(scene):
    attached = scene.attacker.attached
    for fd, copy in zip(attached.fds[:2], attached.copies):
        fails(mmap.mmap, fd, attached.answer.copy_bytes)
        fails(os.pwrite, fd, b"x" * 64, 0)
        fails(fallocate, fd, PUNCH, 0, 4096)
        with contextlib.suppress(OSError):
            again = os.open(f"/proc/self/fd/{fd}", os.O_RDWR)
            fails(mmap.mmap, again, 4096)
            fails(os.pwrite, again, b"x", 0)
            os.close(again)
        fails(copy.madvise, 9)  # MADV_REMOVE
        with contextlib.suppress(OSError):
            os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_TRUNC)
            raise AssertionError("the copy could be truncated")


def half_push(scene, ranges):
    """Of the attacker, by a connection of its own, and given up: its end could make the step's push complete."""
    member = scene.attacker
    with connect(scene.address) as channel:
        api = Api(channel)
        stream = OpenStream(api, "Push", [member.header(), *ranges])
        time.sleep(scene.draw.random() * 0.01)
        stream.cancel()
        # Answered behind it on its connection: the server reads no more for it, and the slot may change. Now and then
        # grpc resets a stream that it has not begun, for which the server ends the connection; that is as good.
        try:
            api.GetPushState(**member.identity(), epoch=member.epoch, step=member.step)
        except grpc.RpcError as error:
            assert Refusal(error).code == Code.UNAVAILABLE, Refusal(error)


def punch(scene):
    """Nobody can once the slot is sealed, nor open it for writing anew. One that is not, or lacks pages, is lost."""
    member, attached = scene.attacker, scene.attacker.attached
    fails(fallocate, attached.fds[2], PUNCH, 0, 4096)
    fails(attached.slot.madvise, 9)  # MADV_REMOVE
    fails(os.pwrite, attached.fds[2], b"x", 0)
    fails(mmap.mmap, attached.fds[2], 4096)
    attached.end()
    member.attached = attached = Attachment(member, seal=False)
    if scene.draw.random() < 0.5:
        fallocate(attached.fds[2], PUNCH, 4096 * scene.draw.randrange(attached.answer.slot_bytes // 4096), 4096)
        attached.seal()
    half_push(scene, [placed(0, 1)])
    attached.end()
    member.attach()


def flags(scene):
    for fd in scene.attacker.attached.fds:
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND | os.O_NONBLOCK | os.O_DIRECT)
        os.lseek(fd, scene.draw.randrange(1 << 40), os.SEEK_SET)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with contextlib.suppress(OSError):
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)


BAD_PUSHES = {
    "range": lambda m, first: [m.header(), placed(first, 4)],
    "beyond": lambda m, first: [m.header(), placed(BLOCKS + 1, 0)],
    "far": lambda m, first: [m.header(), placed((1 << 32) - 1, (1 << 32) - 1)],
    "at end": lambda m, first: [m.header(), placed(BLOCKS, 1)],
    "before header": lambda m, first: [placed(0, 1), m.header()],
    "after trailer": lambda m, first: [m.header(), placed(0, BLOCKS), TRAILER, placed(first % BLOCKS, 1)],
    "rank": lambda m, first: [m.header(rank=5), placed(0, 1)],
    "other rank": lambda m, first: [m.header(rank=1), placed(0, 1)],
    "incarnation": lambda m, first: [m.header(incarnation={"fence": m.incarnation.fence, "counter": 1 << 40}),
                                     placed(0, 1)],
    "two in one": lambda m, first: [m.header(), placed(0, 1).SerializeToString() + m.blocks()[0].SerializeToString()],
    "beside trailer": lambda m, first: [m.header(), placed(0, 1).SerializeToString() + TRAILER.SerializeToString()],
    "no range": lambda m, first: [m.header(), b"\x2a\x03\x08\xff\xff"],
    "long": lambda m, first: [m.header(), b"\x2a\x80\x80\x80\x10" + bytes(100)],
    "wide": lambda m, first: [m.header(dtype=F32, step=m.step), placed(2, 1)],
}


def bad_push(scene):
    """To the model that nobody needs: each is refused."""
    prey = scene.prey
    kind = scene.draw.choice(list(BAD_PUSHES))
    messages = BAD_PUSHES[kind](prey, scene.draw.randrange(1 << 16))
    call = prey.api.start("Push", messages)
    try:
        answer = call.result(timeout=CALL_TIMEOUT_S)
    except grpc.RpcError as error:
        refusal = Refusal(error)
        codes = (Code.INVALID_ARGUMENT, Code.ABORTED, Code.FAILED_PRECONDITION, Code.UNAVAILABLE)
        assert refusal.code in codes, f"{kind}: {refusal}"
        return
    raise AssertionError(f"{kind}: {answer}")


def odd_push(scene):
    """Allowed, but odd: what is taken is right all the same."""
    firsts = [scene.draw.randrange(BLOCKS + 1) for _ in range(scene.draw.randrange(1, 6))]
    half_push(scene, [placed(first, scene.draw.randrange(BLOCKS - first + 1)) for first in firsts])


def placed_in_a_load(scene):
    header = params.LoadRequest(header=params.LoadHeader(model=scene.raw))
    refused(lambda: scene.api.Load([header, placed(0, 1).SerializeToString()]), Code.INVALID_ARGUMENT, "INVALID_FIELD",
            "placed")


def without_attachment(scene):
    prey = scene.prey
    if prey.attached is not None:
        prey.attached.end()
        prey.attached = None
    eventually(lambda: not_attached(prey), "the slot is gone")
    if not present(prey):  # else there may be nothing to be read, or the step's pushes are of another dtype
        refused(lambda: prey.api.Push([prey.header(), placed(0, 1)]), (Code.UNAVAILABLE, Code.INVALID_ARGUMENT))


def present(member):
    return member.api.GetPushState(**member.identity(), epoch=member.epoch, step=member.step).present


def not_attached(member):
    try:
        member.pull()
    except grpc.RpcError as error:
        return Refusal(error).reason == "NOT_ATTACHED"
    return False


def bad_pull(scene):
    member = scene.attacker
    over = scene.draw.choice([{"step": None, "latest": True}, {"step": None, "version": member.version}, {"rank": None},
                              {"rank": 0}, {"rank": 9}, {"incarnation": common.Incarnation(fence=1, counter=1)},
                              {"first_block": 77}, {"block_count": 77}, {"epoch": 99}, {"latest": True},
                              {"model": "none"}])
    fields = {**member.identity(), "epoch": member.epoch, "step": member.step, "in_memory": True, **over}
    refused(lambda: member.api.Pull(**{key: value for key, value in fields.items() if value is not None}),
            (Code.INVALID_ARGUMENT, Code.UNAVAILABLE, Code.ABORTED, Code.NOT_FOUND, Code.FAILED_PRECONDITION))


def odd_pull(scene):
    """Parts of it, twice, given up."""
    member = scene.attacker
    first = scene.draw.randrange(BLOCKS)
    answers = member.pull(first_block=first, block_count=1)
    assert [(a.placed.first, a.placed.count) for a in answers[1:]] == [(first, 1)], answers
    with connect(scene.address) as channel:
        for step in (member.step, member.step + 1):
            Api(channel).start("Pull", **member.identity(), epoch=member.epoch, step=step, in_memory=True).cancel()
    held = sum(a.placed.count for a in member.pull(have_version={"epoch": member.epoch, "version": member.version})[1:])
    assert held == 0


def bytes_of_a_pull(scene):
    """The copy holds what a stream brings."""
    member = scene.attacker
    answers = member.pull(in_memory=False)
    copy = member.attached.copies[member.version % 2]
    for answer in answers[1:]:
        assert copy[answer.index * BLOCK_BYTES:][:len(answer.data)] == answer.data, "the copy differs"


def attach_often(scene):
    """More often than there may be at once: the oldest ends, and the newest has its slot."""
    made = [Attachment(scene.prey, scene.draw.random() < 0.5) for _ in range(12)]
    eventually(lambda: sum(attachment.call.call.is_active() for attachment in made) == 2, "two are left")
    assert made[-1].call.call.is_active()
    scene.other.join()  # another process may have taken its rank (die)
    Attachment(scene.other).end()  # the other rank finds room
    for attachment in made:
        attachment.end()
    Attachment(scene.prey).end()


def bad_attach(scene):
    over = scene.draw.choice([{"dtype": 0}, {"dtype": 99}, {"dtype": 4}, {"rank": 2}, {"rank": (1 << 32) - 1},
                              {"shard": 1}, {"model": "none"}, {"model": ""}, {"seals": False}])
    fields = {**scene.prey.identity(), "dtype": F16, "seals": True}
    with contextlib.suppress(StopIteration):
        call = scene.prey.api.start("AttachMemory", **{**fields, **over})
        refused(call.next, (Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.FAILED_PRECONDITION), rich=False)
    with grpc.insecure_channel(f"127.0.0.1:{scene.server.port}") as channel:  # of another host, for all that it knows
        refused(Api(channel).start("AttachMemory", **fields).next, Code.FAILED_PRECONDITION)


OTHER_PROCESS = ("import socket,sys; s=socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.settimeout(20); "
                 "s.sendall(bytes.fromhex(sys.argv[2])); b,f,_,_=socket.recv_fds(s,1,3); sys.exit(len(f))")


def bad_nonce(scene):
    way = scene.draw.choice(["wrong", "short", "pieces", "twice", "other process", "long", "with descriptors", "none",
                             "late"])
    own = Attachment(scene.prey, fetch=False) if way in ("twice", "other process", "late", "pieces") else None
    with contextlib.suppress(BrokenPipeError), scene.connected() as link:
        if way == "wrong":
            link.sendall(scene.draw.randbytes(16))
        elif way == "short":
            link.sendall(scene.draw.randbytes(scene.draw.randrange(1, 16)))
        elif way == "long":
            link.sendall(scene.draw.randbytes(100000))
        elif way == "pieces":
            with contextlib.suppress(ConnectionError):
                for byte in own.nonce:
                    link.sendall(bytes([byte]))
        elif way == "with descriptors":
            with open("/dev/null", "rb") as file:
                socket.send_fds(link, [scene.draw.randbytes(16)], [file.fileno()] * 16)
        elif way == "twice":
            own.fetch()
            link.sendall(own.nonce)
        elif way == "other process":
            words = [OTHER_PROCESS, scene.socket_path(), own.nonce.hex()]
            code = subprocess.run(["/usr/bin/python3", "-S", "-E", "-c", *words], timeout=CALL_TIMEOUT_S).returncode
            assert code == 0, f"{code} descriptors were given to another process"
            own.fetch()
        elif way == "late":
            own.call.cancel()
            Attachment(scene.prey).end()
            link.sendall(own.nonce)
        if way not in ("none", "other process"):
            got = answered(link)  # pieces may have come together
            assert got == [] or way == "pieces", f"a nonce ({way}) was taken"
    if own is not None:
        own.end()


def crowd(scene):
    """A hundred that connect and say nothing; who comes behind them is served."""
    links = []
    for _ in range(100):
        link = socket.socket(socket.AF_UNIX)
        link.setblocking(False)
        try:
            link.connect(scene.socket_path())
            links.append(link)
        except BlockingIOError:
            link.close()
            break
    for link in links:
        link.close()
    Attachment(scene.prey).end()


def stay(scene):
    """Connects and never says anything: is sent away."""
    if len(scene.idle) < 3:
        scene.idle.append(scene.connected())
        return
    link = scene.idle.pop(0)
    with link:
        assert answered(link) == []


def die(scene):
    """With a connection of its own, at any point."""
    point = scene.draw.randrange(6)
    member = Member(scene.address, scene.prey.model, 1)
    member.scale_id = 0
    attached = Attachment(member, fetch=point > 0)
    stream = None
    if point > 1:
        member.pull()
        messages = [member.header(), placed(0, 2), TRAILER][:point - 1]
        stream = OpenStream(member.api, "Push", messages)
        time.sleep(scene.draw.random() * 0.005)
        if point == 5:
            stream.end()
    if point > 0:
        scene.keep(attached)
    member.channel.close()
    attached.end()
    if stream is not None:
        stream.end()  # its thread waits, and holds the connection


def rewrite(scene):
    """While the server reads: whatever comes of it, it is the prey's."""
    prey = scene.prey
    if prey.attached is None:
        prey.attach()
    call = prey.api.start("Push", [prey.header(), placed(0, BLOCKS), TRAILER])
    for _ in range(20):
        prey.attached.slot[:] = scene.draw.randbytes(256) * (prey.attached.answer.slot_bytes // 256)
    with contextlib.suppress(PermissionError):
        fallocate(prey.attached.fds[2], PUNCH, 0, prey.attached.answer.slot_bytes)
    with contextlib.suppress(grpc.RpcError, grpc.FutureTimeoutError):
        call.result(timeout=DONE_OR_HELD_S)
    call.cancel()


def join_again(scene):
    """A new incarnation trains on, while the old slot is still written."""
    member = scene.attacker
    old, old_channel = member.attached, member.channel
    old_identity = member.identity()
    if scene.draw.random() < 0.5:
        old.end()
    member.channel = None
    member.join()
    member.attach()
    member.pull()
    refused(lambda: member.api.Pull(**old_identity, epoch=member.epoch, step=member.step, in_memory=True),
            (Code.ABORTED, Code.UNAVAILABLE))
    scene.keep(old)
    old.end()
    old_channel.close()


def stop_another(scene):
    """A worker of a model of its own is stopped, goes on, and perhaps is killed."""
    name = f"side-{scene.draw.randrange(1 << 40)}"
    point = scene.draw.choice(["begin", "half", "pushed", "ended"])
    worker = scene.worker(name, steps=3, place="slot", pause=f"2:{point}")
    eventually(lambda: "paused" in scene.said(name).read_text(encoding="utf-8") or worker.poll() is not None, "a pause")
    worker.send_signal(signal.SIGSTOP)
    time.sleep(0.02)
    worker.send_signal(signal.SIGCONT)
    if scene.draw.random() < 0.5:
        worker.kill()
    worker.communicate("\n", timeout=CALL_TIMEOUT_S)
    scene.api.DeleteModel(model=name, force=True)


OFTEN = [resize, write_copies, punch, flags, bad_push, bad_push, odd_push, placed_in_a_load, without_attachment,
         bad_pull, bad_pull, odd_pull, bytes_of_a_pull, attach_often, bad_attach, bad_nonce, bad_nonce, crowd, die, die,
         rewrite, join_again]
SELDOM = [stay, stop_another]


# ---- the loop ----

TIMES = {}  # of actions, in s


def one_step(scene, actions):
    member = scene.attacker
    answers = member.pull()
    got = sum(answer.placed.count for answer in answers[1:])
    assert got == BLOCKS or scene.attacker.step == 1, answers
    scene.prey.pull(in_memory=False)
    for number in range(actions):
        action = scene.draw.choice(SELDOM if scene.draw.random() < 0.02 else OFTEN)
        scene.last = f"step {member.step}, action {number}: {action.__name__}"
        began = time.monotonic()
        action(scene)
        TIMES.setdefault(action.__name__, []).append(time.monotonic() - began)
        if member.attached is not None:
            member.attached.slot[:len(gradient(0))] = gradient(member.step)
    by_stream = actions > 0 and scene.draw.random() < 0.1
    blocks = member.blocks() if by_stream else [placed(0, BLOCKS)]
    scene.last = f"step {member.step}: the push"
    def push():
        return member.api.start("Push", [member.header(), *blocks, TRAILER])
    call = push()
    if actions > 0 and scene.draw.random() < 0.5:  # what is complete stays as it was read
        eventually(lambda: call.done() or complete(member), "the push is complete")
        member.attached.slot[:] = b"\xff" * member.attached.answer.slot_bytes
    if actions > 0:
        if scene.prey.attached is not None:
            scene.prey.attached.end()
        move_on(scene)
    try:
        result = call.result(timeout=CALL_TIMEOUT_S).result
    except grpc.RpcError as error:  # an odd push of another connection was behind it
        assert "taken over" in Refusal(error).text, Refusal(error)
        member.attached.slot[:len(gradient(0))] = gradient(member.step)
        result = push().result(timeout=CALL_TIMEOUT_S).result
    assert result.verdict == common.VERDICT_APPLIED, result
    member.step = result.step + 1
    member.attached.slot[:len(gradient(0))] = gradient(member.step)


def move_on(scene):
    """The prey's step is decided: what it has placed counts, as far as it is whole."""
    empty = params.PushRequest(trailer=params.PushTrailer(absent=[0]))
    calls = []
    for member in (scene.prey, scene.other):
        member.join()
        member.pull(in_memory=False)
        calls.append(member.api.start("Push", [member.header(), empty]))
    for member, call in zip((scene.prey, scene.other), calls):
        member.step = call.result().result.step + 1


def complete(member):
    try:
        return member.api.GetPushState(**member.identity(), epoch=member.epoch, step=member.step).complete
    except grpc.RpcError:
        return True  # decided


def descriptors(server):
    """What the server has open, in order, but gRPC's connections, which the foreign library closes when it likes."""
    own = pathlib.Path("/proc/net/unix").read_text(encoding="utf-8").splitlines()
    guests = {line.split()[6] for line in own if line.endswith(str(server.data_dir / "memory.sock"))}
    names = []
    for link in pathlib.Path(f"/proc/{server.process.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            name = os.readlink(link)
            if name[8:-1] in guests:
                names.append("memory.sock")
            elif not name.startswith("socket:"):
                names.append(name)
    return sorted(names)


def held(server):
    """What an attack may not leave behind: descriptors, memfds that are mapped, and bytes that count as taken."""
    _, _, mapped, _ = holdings(server.process.pid)
    return {"descriptors": descriptors(server), "mapped": mapped, "left": memory_left(Api(server.channel))}


def await_return(server, before):
    until = time.monotonic() + CALL_TIMEOUT_S
    while (now := held(server)) != before:
        differs = {key: (before[key], now[key]) for key in before if before[key] != now[key]}
        assert time.monotonic() < until, f"before the first worker, and now: {differs}"
        time.sleep(0.05)


def play(context, server, name, steps, actions, draw):
    """The honest worker's lines after so many steps."""
    scene = Scene(context, server, name, steps, draw)
    scene.attacker.attach()
    scene.last = ""
    try:
        for step in range(steps):
            one_step(scene, actions)
    except Exception as error:
        code = server.process.poll()
        said = server.log()[-1500:] if code is not None else ""
        raise AssertionError(f"{scene.last}: {error!r}; the server: {code}\n{said}") from error
    lines = [line.partition(" epoch ")[0] for line in scene.end()]  # the second model begins above the first one's
    for model in (name, f"{name}-prey", f"{name}-raw"):
        scene.api.DeleteModel(model=model, force=True)
    return lines


def test_whatever_one_worker_does_the_honest_one_ends_in_the_same_bytes(context):
    print(f"seed {SEED}, {ACTIONS} actions in {STEPS} steps", flush=True)
    server = context.server(*WORKERS_STAY)
    before = held(server)
    assert before["mapped"] == 0 and not any("memfd" in name for name in before["descriptors"]), before
    wanted = play(context, server, "wanted", STEPS, 0, random.Random(SEED))
    await_return(server, before)
    got = play(context, server, "attacked", STEPS, PER_STEP, random.Random(SEED))
    assert len(wanted) == STEPS + 1 and got == wanted, [pair for pair in zip(got, wanted) if pair[0] != pair[1]][:3]
    await_return(server, before)
    print(f"as before: {len(before['descriptors'])} descriptors, {before['left']} bytes left, no memfd", flush=True)
    assert server.terminate() == 0, server.log()[-3000:]
    for name, times in sorted(TIMES.items(), key=lambda row: -sum(row[1])):
        print(f"{name}: {len(times)} times, {sum(times):.2f} s, at the most {max(times):.3f} s", flush=True)


# ---- alone ----

def alone(context, elements=16 * 65536):
    """A worker of a model of its own, with fp32 parameters that are zero, so that each step can be read from them."""
    server = context.server(*WORKERS_STAY)
    test_model = context.model("m", server=server, parameters=[("w", [elements])], load=False, cast_dtype=F32)
    zeros = bytes(65536 * 4)
    test_model.api.Load([params.LoadRequest(header=params.LoadHeader(model="m"))] + [
        block_message(params.LoadRequest, index, zeros) for index in range(elements // 65536)])
    return server, Member(f"unix:{server.data_dir}/ampd.sock", "m", 0)


def test_a_verdict_and_its_bytes_are_of_one_read(context):
    """The slot flips between 1 and Inf, or 1 and 2, while the server reads it."""
    server, member = alone(context)
    member.attached = Attachment(member)
    slot, blocks = member.attached.slot, len(member.attached.slot) // BLOCK_BYTES
    seen = {}
    before = [0.0] * (blocks * 65536)
    for turn in range(24):
        member.pull()
        other = 0x7C00 if turn % 2 else 0x4000
        pages = [struct.pack("<H", value) * (len(slot) // 2) for value in (0x3C00, other)]
        slot[:] = pages[0]
        flipping = threading.Event()

        def flip():
            while not flipping.is_set():
                slot[:] = pages[1]
                slot[:] = pages[0]
        thread = threading.Thread(target=flip)
        thread.start()
        try:
            result = member.api.Push([member.header(), placed(0, blocks), TRAILER]).result
        finally:
            flipping.set()
            thread.join()
        seen[result.verdict] = seen.get(result.verdict, 0) + 1
        member.step = result.step + 1
        answers = member.pull()
        copy = struct.unpack(f"<{blocks * 65536}f", member.attached.copies[member.version % 2][:])
        if result.verdict == common.VERDICT_APPLIED:
            one = 0.5 / result.old_scale
            allowed = {one} if turn % 2 else {one, 2 * one}
            steps = {was - now for was, now in zip(before, copy)}
            assert steps <= allowed, (steps, allowed)
            norm = math.sqrt(math.fsum(((was - now) / 0.5) ** 2 for was, now in zip(before, copy)))
            assert math.isclose(result.norm, norm, rel_tol=1e-12), (turn, result.norm, norm)
        else:
            assert turn % 2 and copy == tuple(before), (turn, result)
        assert answers[0].header.scale > 0
        before = list(copy)
    print(f"verdicts: {seen}", flush=True)
    assert server.terminate() == 0


def test_a_push_may_come_before_the_last_one_is_applied(context):
    """Who does not wait for its parameters places blocks that are not free yet: they are read when they are."""
    server, member = alone(context, 64 * 65536)
    member.attached = Attachment(member)
    member.attached.slot[:] = struct.pack("<H", 0x3C00) * (64 * 65536)
    member.pull()
    for _ in range(30):
        result = member.api.Push([member.header(), placed(0, 64), TRAILER]).result
        assert result.verdict == common.VERDICT_APPLIED
        member.step, member.scale_id = result.step + 1, result.new_scale_id
    member.pull()
    copy = struct.unpack(f"<{64 * 65536}f", member.attached.copies[member.version % 2][:])
    assert set(copy) == {copy[0]} and copy[0] != 0, set(copy)
    assert server.terminate() == 0


@contextlib.contextmanager
def stuck_write(fd):
    """A write(2) to the file that holds the kernel's lock of it, and waits for a page of its source."""
    faults = LIBC.syscall(SYS_USERFAULTFD, os.O_CLOEXEC | os.O_NONBLOCK) if platform.machine() == "x86_64" else -1
    if faults < 0:
        return (yield print("without a write, since this process may not use userfaultfd"))
    source = mmap.mmap(-1, 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(source))
    fcntl.ioctl(faults, UFFDIO_API, bytearray(struct.pack("QQQ", 0xAA, 0, 0)))
    fcntl.ioctl(faults, UFFDIO_REGISTER, bytearray(struct.pack("QQQQ", address, 4096, 1, 0)))
    writer = threading.Thread(target=LIBC.pwrite, args=(fd, ctypes.c_void_p(address), ctypes.c_size_t(1), 0))
    writer.start()
    try:
        assert select.select([faults], [], [], CALL_TIMEOUT_S)[0]
        yield
        assert writer.is_alive()
    finally:
        os.close(faults)
        writer.join()


def test_who_holds_the_lock_of_a_slot_holds_up_nobody(context):
    """A server that waited for it would be still for as long as the worker likes, and could not even be killed."""
    server, member = alone(context)
    member.attached = Attachment(member, seal=False)
    member.pull()
    with stuck_write(member.attached.fds[2]):
        refused(lambda: member.api.Push([member.header(), placed(0, 1)]), Code.UNAVAILABLE, "NOT_ATTACHED")
        member.attached = Attachment(member)
        assert member.api.Push([member.header(), placed(0, 16), TRAILER]).result.verdict == common.VERDICT_APPLIED
    assert server.terminate() == 0, server.log()[-2000:]


def test_pages_behind_the_end_of_a_slot_do_not_stand_for_one_that_was_taken_out(context):
    """A huge page that the kernel makes of the last pages would have some behind the end."""
    server, member = alone(context, 33 * 65536)
    attached = member.attached = Attachment(member, seal=False)
    member.pull()
    room = LIBC.mmap(None, 2 * HUGE_PAGE, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    place = ctypes.c_size_t(room + -room % HUGE_PAGE)
    LIBC.mmap(place, HUGE_PAGE, mmap.PROT_WRITE, mmap.MAP_SHARED | MAP_FIXED, attached.fds[2], 2 * HUGE_PAGE)
    LIBC.madvise(place, HUGE_PAGE, MADV_COLLAPSE)
    fallocate(attached.fds[2], PUNCH, 4096, 4096)
    attached.seal()
    refused(lambda: member.api.Push([member.header(), placed(0, 1)]), Code.UNAVAILABLE, "NOT_ATTACHED")


def test_a_server_with_memory_attached_ends_orderly(context):
    server, member = alone(context)
    attached = Attachment(member)
    waiting = socket.socket(socket.AF_UNIX)
    waiting.connect(attached.answer.socket)
    assert server.terminate() == 0, server.log()[-2000:]
    attached.slot[:] = b"\1" * len(attached.slot)  # nobody's, but there
    assert not (server.data_dir / "memory.sock").exists()


run({"test_whatever_one_worker_does_the_honest_one_ends_in_the_same_bytes":
     test_whatever_one_worker_does_the_honest_one_ends_in_the_same_bytes} if LONG else globals())
