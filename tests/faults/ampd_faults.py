#!/usr/bin/python3
"""A real ampd whose n-th allocation or n-th call to the disk fails, over one RPC of each kind.

    ampd_faults.py BUILD_DIR [CASE ...]           a sample of n
    ampd_faults.py BUILD_DIR --long [CASE ...]    n = 1, 2, ... until nothing failed, once and from there on, each errno

Each time the server either answers with a clear status and goes on, or ends with a sentence, and a new one holds all that
was answered; what is answered is right; the same call without the fault succeeds. Memory: ours, nghttp2's and SQLite's.
Disk: open, write, sync, rename, truncate, unlink, mkdir. Output is that of cmocka.
"""
import errno
import itertools
import mmap
import os
import pathlib
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "integration"))
LONG = "--long" in sys.argv
ARGUMENTS = [argument for argument in sys.argv[1:] if argument != "--long"]
sys.argv = [sys.argv[0], *ARGUMENTS]
import ampd_testing  # noqa: E402  (says SKIPPED where grpcio is missing)
from ampd_testing import Api, Code, Refusal, common, eventually, grpc, model, scales  # noqa: E402

# tests/faults/faults.h
OURS, SQLITE = 1, 2
OPEN, WRITE, SYNC, RENAME, TRUNCATE, UNLINK, MKDIR = 4, 8, 16, 32, 64, 128, 256
MEMORY, DISK = OURS | SQLITE, OPEN | WRITE | SYNC | RENAME | TRUNCATE | UNLINK | MKDIR
WHAT_AT, CAUSE_AT, FOREVER_AT, HALF_AT, LEFT_AT, SEEN_AT, FAILED_AT, DIR_AT, LAST_AT, SPEED_AT, SIZE = (
    0, 4, 8, 12, 16, 24, 32, 40, 296, 332, 336)

# How calls fail: (name, classes, errno, all later ones too).
MODES = [("memory once", MEMORY, 0, False), ("memory from there on", MEMORY, 0, True),
         ("EIO once", DISK, errno.EIO, False), ("disk full once", DISK, errno.ENOSPC, False),
         ("disk full from there on", DISK, errno.ENOSPC, True), ("EIO from there on", DISK, errno.EIO, True)]
SHORT_MODES = ("memory once", "EIO once", "disk full from there on")
FIRST, STEP = (1, 41) if not LONG else (1 << 30, 1)  # of a sample: all n up to FIRST, then each STEP-th

CALL_S = 20          # a call that is not answered by then hangs
FAILED_FOR_S = 0.05  # so long "from there on" lasts after the first failure
# What a call under a fault may be answered with: never DEADLINE_EXCEEDED, which is a hang, and never UNKNOWN.
CODES = {Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE, Code.INTERNAL, Code.ABORTED, Code.CANCELLED}
VOLATILE = {"server_time", "uptime_ms", "lease_left_ms", "memory_bytes", "decide_time", "next_page_token", "delay",
            "boot_id", "endpoint", "lease_ms", "join_time", "pushes", "last_step", "trouble", "descriptors", "descriptors_max",
            "peer", "joins", "replacements", "leaves", "fences", "slow_steps", "slow_ms"}


class Orders:
    """The file that is shared with the server."""

    def __init__(self, path):
        path.write_bytes(bytes(SIZE))
        with open(path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), SIZE)
        struct.pack_into("<I", self.memory, SPEED_AT, 100)

    def only_below(self, folder):
        self.memory[DIR_AT:DIR_AT + 256] = str(folder).encode().ljust(256, b"\0")

    def arm(self, what, n, forever, cause):
        struct.pack_into("<I", self.memory, WHAT_AT, 0)
        struct.pack_into("<iII", self.memory, CAUSE_AT, cause, forever, 0)
        struct.pack_into("<qQQ", self.memory, LEFT_AT, n - 1, 0, 0)
        struct.pack_into("<I", self.memory, WHAT_AT, what)

    def disarm(self):
        struct.pack_into("<I", self.memory, WHAT_AT, 0)
        return self.failed()

    def failed(self):
        return struct.unpack_from("<Q", self.memory, FAILED_AT)[0]

    def seen(self):
        return struct.unpack_from("<Q", self.memory, SEEN_AT)[0]

    def last(self):
        return self.memory[LAST_AT:LAST_AT + 32].split(b"\0")[0].decode()


def stable(message):
    """The text of an answer without what differs from call to call."""
    shown = type(message)()
    shown.CopyFrom(message)

    def clean(part):
        for field, value in part.ListFields():
            if field.name in VOLATILE:
                part.ClearField(field.name)
            elif field.type == field.TYPE_MESSAGE:
                for item in (value if field.label == field.LABEL_REPEATED else [value]):
                    clean(item)

    clean(shown)
    return str(shown)


class FaultyServer(ampd_testing.Server):
    """An ampd_faults; it says what it ended with."""

    def __init__(self, build, folder):
        self.orders = Orders(folder / "orders")
        os.environ["AMPD_FAULTS_FILE"] = str(folder / "orders")
        programs = folder / "bin"
        programs.mkdir()
        (programs / "ampd").symlink_to(build / "tests" / "faults" / "ampd_faults")
        self.orders.only_below(folder / "data")
        self.ends = 0
        super().__init__(programs, folder / "data", "--compute-threads", "1")

    def start(self):
        """No code of Python's runs between fork and exec, where grpc's threads would be missing: the program sees to it
        itself that it does not outlive the test."""
        began_at = self.log_path.stat().st_size if self.log_path.exists() else 0
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [self.program, "--data-dir", self.data_dir, "--listen", "127.0.0.1:0", *self.options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.port = self._wait_for_port(began_at)
        self.channel = self.connect()
        grpc.channel_ready_future(self.channel).result(timeout=self.START_TIMEOUT_S)
        eventually(lambda: Api(self.channel).health() == ampd_testing.HEALTH_SERVING, "the server is healthy")
        return self

    def may_end(self):
        until = time.monotonic() + 0.2
        while self.process.poll() is None and time.monotonic() < until:
            time.sleep(0.002)

    def ended(self):
        """Whether the process is gone; then with a sentence and an exit code of its own, and a new one runs."""
        if self.process.poll() is None:
            return False
        code, last = self.process.wait(), self.log().splitlines()[-3:]  # another thread's line may come behind it
        assert code == 1, f"ampd ended with {code}: {last}"
        words = ("ending", "this process ends", "ampd: ")
        assert any(word in line for line in last for word in words), f"no sentence: {last}"
        self.close_channel()
        self.ends += 1
        self.start()
        return True


class World:
    """A server, a model under training, and what is known of it."""

    def __init__(self, build, folder, **fields):
        self.server = FaultyServer(build, folder)
        self.count = 0
        self.model = ampd_testing.TestModel(self.server, "m", checkpoint_every=1000000, **fields)
        self.weights = list(self.model.initial["w"])
        self.worker = self.model.worker("a")
        self.step(1.0)
        self.step(float("inf"))
        self.checkpoint()

    @property
    def api(self):
        return Api(self.server.channel)

    def name(self):
        self.count += 1
        return f"new-{self.count}"

    def step(self, value):
        """A step that cannot fail: an Inf is skipped."""
        self.worker.pull()
        result = self.push(value).result()
        return self.decided(value, result.result)

    def push(self, value):
        return self.worker.start_push({"w": [value * self.worker.header.scale] * 4}, timeout_s=CALL_S)

    def decided(self, value, result):
        applied = value != float("inf")
        assert result.step == self.worker.step, f"step {self.worker.step} was answered as {result.step}"
        assert (result.verdict == common.VERDICT_APPLIED) == applied, result
        self.worker.step += 1
        if applied:
            self.weights = [weight - 0.5 * value for weight in self.weights]
        return result

    def checkpoint(self):
        """One is cut after the step that is open; at once, if nothing was decided since the last one."""
        call = self.api.start("Checkpoint", model="m", timeout_s=CALL_S)
        until = time.monotonic() + 0.03
        while not call.done() and time.monotonic() < until:
            time.sleep(0.001)
        if not call.done():
            self.step(1.0)
        return call.result()

    def again(self):
        """After a new start: a new epoch from the last checkpoint. The worker is told what it is at."""
        self.model.reconnect()
        self.worker.join()

    def check(self):
        """The weights are those of the steps that were answered."""
        _, tensors = self.model.latest()
        assert list(tensors["w"]) == self.weights, f"weights {tensors['w']}, expected {self.weights}"

    def history_is_whole(self):
        """No gap and no double in any epoch."""
        rows = self.model.history(include_superseded=True, page_size=1000)
        steps = [(row.epoch, row.step) for row in rows if row.kind == scales.HISTORY_KIND_STEP]
        assert len(steps) == len(set(steps)), f"a step has two rows: {steps}"
        for (epoch, step), (next_epoch, next_step) in zip(steps, steps[1:]):
            assert epoch != next_epoch or next_step == step + 1, f"after step {step} of epoch {epoch} comes {next_step}"


class Case:
    """One kind of RPC. `begin` starts the call; `answered` looks at its answer; `repair` brings a call that failed to its
    end and looks at what is there."""

    durable = False  # whether what was answered is still so after a new start

    def __init__(self, world):
        self.world = world

    def prepare(self):
        pass

    def begin(self):
        raise NotImplementedError

    def answered(self, answer):
        pass

    def repair(self, ended):
        self.answered(self.begin().result())

    def done(self):
        """After each run, when all is well again."""


class Read(Case):
    """A call that changes nothing: what is answered is what was answered before."""

    rpc, fields = None, {}

    def prepare(self):
        self.expected = stable(self.begin().result())

    def begin(self):
        return self.world.api.start(self.rpc, timeout_s=CALL_S, **self.fields)

    def answered(self, answer):
        assert stable(answer) == self.expected, f"another answer:\n{stable(answer)}\nexpected:\n{self.expected}"

    def repair(self, ended):
        if ended:
            self.prepare()
        super().repair(ended)


def reads(rpc, **fields):
    return type(rpc, (Read,), {"rpc": rpc, "fields": fields})


class CreateModel(Case):
    durable = True

    def prepare(self):
        self.name = self.world.name()

    def begin(self):
        return self.world.api.start("CreateModel", spec=ampd_testing.spec(self.name), timeout_s=CALL_S)

    def answered(self, answer):
        assert self.world.api.GetModel(model=self.name).spec == answer.spec

    def done(self):
        self.world.api.DeleteModel(model=self.name, force=True)


class DeleteModel(CreateModel):
    def prepare(self):
        super().prepare()
        self.world.api.CreateModel(spec=ampd_testing.spec(self.name))

    def begin(self):
        return self.world.api.start("DeleteModel", model=self.name, force=True, timeout_s=CALL_S)

    def answered(self, answer):
        try:
            self.world.api.GetModel(model=self.name)
        except grpc.RpcError as error:
            if error.code() != Code.NOT_FOUND:
                raise  # it may have ended by now: what was deleted is purged after the answer
        else:
            raise AssertionError("a model that was deleted is there")

    def repair(self, ended):
        try:
            self.begin().result()
        except grpc.RpcError as error:
            assert error.code() == Code.NOT_FOUND, Refusal(error)
        self.answered(None)

    def done(self):
        pass


class Load(CreateModel):
    durable = False

    def prepare(self):
        self.name = self.world.name()
        self.model = ampd_testing.TestModel(self.world.server, self.name, load=False)

    def begin(self):
        messages = list(ampd_testing.load_messages(self.model.layout, self.name, self.model.initial))
        return self.world.api.start("Load", messages, timeout_s=CALL_S)

    def answered(self, answer):
        _, tensors = self.model.reconnect().latest()
        assert list(tensors["w"]) == self.model.initial["w"], tensors

    def repair(self, ended):
        try:
            self.begin().result()
        except grpc.RpcError as error:  # the first try was done after all
            assert error.code() in (Code.FAILED_PRECONDITION, Code.ALREADY_EXISTS), Refusal(error)
        self.answered(None)


class Join(Case):
    def begin(self):
        return self.world.api.start("Join", model="m", worker_name="a", timeout_s=CALL_S)

    def answered(self, answer):
        assert answer.rank == 0
        self.world.worker.join()

    def done(self):
        self.world.step(1.0)
        self.world.check()


class Leave(Join):
    def begin(self):
        return self.world.api.start("Leave", timeout_s=CALL_S, **self.world.worker.identity())

    def answered(self, answer):
        self.world.worker.join()

    def repair(self, ended):
        self.world.worker.join()


class InThread:
    """What a function does, as a future."""

    def __init__(self, function):
        self.outcome = None

        def run():
            try:
                self.outcome = (function(), None)
            except Exception as error:  # result() raises it
                self.outcome = (None, error)

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()

    def done(self):
        return not self.thread.is_alive()

    def result(self):
        self.thread.join(2 * CALL_S)
        assert self.done(), "a stream has no end"
        if self.outcome[1] is not None:
            raise self.outcome[1]
        return self.outcome[0]


class Pull(Case):
    def begin(self):
        answers = self.world.api.start("Pull", model="m", latest=True, timeout_s=CALL_S)
        return InThread(answers.all)

    def answered(self, answer):
        _, tensors = self.world.model.read_pull(answer)
        assert list(tensors["w"]) == self.world.weights, f"{tensors['w']} was pulled, expected {self.world.weights}"


class Push(Case):
    value = 1.0

    def prepare(self):
        self.world.worker.pull()

    def begin(self):
        return self.world.push(self.value)

    def answered(self, answer):
        self.world.decided(self.value, answer.result)

    def repair(self, ended):
        if not ended:
            super().repair(ended)
            return
        self.world.step(self.value)

    def done(self):
        self.world.check()
        if self.world.worker.step % 16 == 0:  # so that what is lost at a new start is little
            self.world.checkpoint()


class PushInf(Push):
    value = float("inf")


class SetScale(Case):
    def prepare(self):
        self.id = f"set-{self.world.name()}"
        self.scale = 2.0 ** (5 + self.world.count % 8)

    def begin(self):
        return self.world.api.start("SetScale", model="m", scale=self.scale, reason=self.id, request_id=self.id,
                                    timeout_s=CALL_S)

    def answered(self, answer):
        assert self.world.api.GetScale(model="m").record.scale == self.scale

    def repair(self, ended):
        if ended:  # the act was taken back with the step before it, or not: another one
            self.prepare()
        super().repair(ended)

    def done(self):
        rows = [row for row in self.world.model.history(include_superseded=True, newest_first=True, page_size=50)
                if row.reason == self.id]
        assert len(rows) <= 2, f"request {self.id} has {len(rows)} rows"
        self.world.step(1.0)
        self.world.check()


class SetLearningRate(SetScale):
    """To that of the specification, so that the parameters become what they are expected to."""

    def begin(self):
        return self.world.api.start("SetLearningRate", model="m", learning_rate=0.5, reason=self.id, request_id=self.id,
                                    timeout_s=CALL_S)

    def answered(self, answer):
        assert answer.learning_rate == 0.5 and answer.from_step > 0, answer
        assert any(row.reason == self.id and row.kind == scales.HISTORY_KIND_LEARNING_RATE_SET
                   for row in self.world.model.history(newest_first=True, page_size=50)), self.id


class ResetScale(SetScale):
    def begin(self):
        return self.world.api.start("ResetScale", model="m", reason=self.id, request_id=self.id, timeout_s=CALL_S)

    def answered(self, answer):
        assert self.world.api.GetScale(model="m").record.scale == 1024.0


class Checkpoint(Case):
    """It is asked for, and the step that it is cut after is pushed."""

    class Both:
        def __init__(self, checkpoint, push):
            self.checkpoint, self.push = checkpoint, push

        def done(self):
            return self.checkpoint.done() and self.push.done()

        def result(self):
            return self.push.result(), self.checkpoint.result()

    def prepare(self):
        self.world.worker.pull()

    def begin(self):
        call = self.world.api.start("Checkpoint", model="m", timeout_s=CALL_S)
        return self.Both(call, self.world.push(1.0))

    def answered(self, answer):
        step = self.world.decided(1.0, answer[0].result).step
        if answer[1].checkpoint.step < step:  # it came after the push
            return
        assert self.world.model.status().durable_step >= step, "what was answered is not durable"

    def repair(self, ended):
        if not ended:
            self.world.decided(1.0, self.world.push(1.0).result().result)
        self.world.checkpoint()
        durable = self.world.worker.step - 1
        assert self.world.model.status().durable_step >= durable - 1, "what was answered is not durable"

    def done(self):
        self.world.check()


class Rollback(Case):
    """To the checkpoint that was taken just before a step, which it takes back."""

    def prepare(self):
        world = self.world
        world.checkpoint()
        self.at = world.api.ListCheckpoints(model="m", page_size=1).checkpoints[0]
        self.weights, self.id = list(world.weights), f"back-{world.name()}"
        world.step(1.0)

    def begin(self):
        return self.world.api.start("Rollback", model="m", epoch=self.at.epoch, step=self.at.step, reason="a test",
                                    request_id=self.id, timeout_s=CALL_S)

    def answered(self, answer):
        self.world.weights = list(self.weights)
        eventually(lambda: self.world.model.status().epoch >= answer.epoch, "the new epoch is there")
        self.world.again()
        self.world.check()

    def done(self):
        self.world.step(1.0)
        self.world.check()


class Health(Case):
    def begin(self):
        check = self.world.server.channel.unary_unary(
            "/grpc.health.v1.Health/Check", request_serializer=lambda request: request.SerializeToString(),
            response_deserializer=ampd_testing.foreign.HealthCheckResponse.FromString)
        return check.future(ampd_testing.foreign.HealthCheckRequest(), timeout=CALL_S)

    def answered(self, answer):
        assert answer.status == ampd_testing.HEALTH_SERVING


class WatchSteps(Case):
    def begin(self):
        answers = self.world.api.start("WatchSteps", model="m", from_step=1, timeout_s=CALL_S)

        def first():
            try:
                return [answers.next() for _ in range(2)]
            finally:
                answers.cancel()

        return InThread(first)

    def answered(self, answer):
        assert [message.row.step for message in answer] == [1, 2], answer


CASES = [
    CreateModel, DeleteModel, Load, Join, reads("KeepAlive"), Leave, Pull, Push, PushInf, reads("GetPushState"),
    reads("GetModel", model="m"), reads("ListModels"), reads("GetScale", model="m"), SetScale, ResetScale,
    SetLearningRate,
    reads("ListScaleHistory", model="m", page_size=3), reads("ListOverflows", model="m", page_size=3),
    reads("ExplainStep", model="m", step=2, epoch=1), WatchSteps,
    reads("ReplayPolicy", model="m", scaler=model.ScalerSpec(init_scale=64.0)), reads("GetStatus"), Checkpoint,
    reads("ListCheckpoints", model="m"), Rollback, reads("SetLogLevel", level=ampd_testing.admin.LOG_LEVEL_INFO), Health]


def of_the_worker(case):
    """KeepAlive and GetPushState name the worker of the moment."""
    if isinstance(case, Read) and case.rpc in ("KeepAlive", "GetPushState"):
        worker = case.world.worker
        case.fields = {**worker.identity(), **({"epoch": worker.epoch, "step": worker.step}
                                               if case.rpc == "GetPushState" else {})}


def wait(world, call, forever):
    """The answer or the error of a call; faults from there on end a moment after the first."""
    orders, until, since = world.server.orders, time.monotonic() + CALL_S, None
    while forever and not call.done() and world.server.process.poll() is None and time.monotonic() < until:
        if since is None and orders.failed() > 0:
            since = time.monotonic()
        if since is not None and since + FAILED_FOR_S < time.monotonic():
            break
        time.sleep(0.001)
    if forever:
        orders.disarm()
    try:
        return call.result(), None
    except grpc.RpcError as error:
        return None, error


def settle(world, case, answer):
    """What was answered is so. If the server ended, before the answer or after it, a new one goes on."""
    ended = world.server.ended()
    if answer is not None and not ended:
        try:
            case.answered(answer)
            return
        except grpc.RpcError as error:
            refusal = Refusal(error)
            if refusal.code != Code.UNAVAILABLE or refusal.reason:
                raise
            world.server.may_end()
            ended = world.server.ended()
            if not ended:  # the connection alone went, for want of memory: the next call makes a new one
                case.answered(answer)
                return
    if ended:
        recover(world)
    of_the_worker(case)
    if answer is not None and case.durable:
        case.answered(answer)
    else:
        case.repair(ended)


def prepare(case):
    of_the_worker(case)
    case.prepare()


def finish(world, case, answer):
    settle(world, case, answer)
    case.done()


def bring_to_end(case):
    of_the_worker(case)
    case.repair(True)
    case.done()


def unless_it_ended(world, function, then):
    """A server that has answered may end a moment later, when what failed was behind the answer: then a new one goes on."""
    try:
        function()
    except grpc.RpcError as error:
        refusal = Refusal(error)
        if refusal.code != Code.UNAVAILABLE or refusal.reason:
            raise
        world.server.may_end()
        if not world.server.ended():
            raise
        recover(world)
        then()


def one_run(world, case, mode, n):
    """False: nothing failed."""
    name, what, cause, forever = mode
    unless_it_ended(world, lambda: prepare(case), lambda: prepare(case))
    world.server.orders.arm(what, n, forever, cause)
    began = time.monotonic()
    answer, error = wait(world, case.begin(), forever)
    took = time.monotonic() - began
    failed = world.server.orders.disarm()
    where = f"{type(case).__name__}, {name}, n = {n} ({world.server.orders.last()})"
    try:
        assert took < CALL_S / 2, f"the call took {took:.1f} s"
        if error is not None:
            refusal = Refusal(error)
            assert failed > 0, f"refused without a fault: {refusal}"
            assert refusal.code in CODES, f"no clear status: {refusal}"
            assert refusal.text, f"no text: {refusal}"
            if refusal.code == Code.UNAVAILABLE and not refusal.reason:  # a process that ends closes its connections first
                world.server.may_end()
        unless_it_ended(world, lambda: finish(world, case, answer), lambda: bring_to_end(case))
    except (AssertionError, grpc.RpcError, OSError) as raised:
        text = str(Refusal(raised)) if isinstance(raised, grpc.RpcError) else str(raised)
        raise AssertionError(f"{where}: {text}\n{world.server.log()[-1500:]}") from raised
    return failed > 0


def recover(world):
    """A new process goes on at the last checkpoint, by a higher epoch; the weights are the checkpoint's."""
    world.again()
    _, tensors = world.model.latest()
    world.weights = list(tensors["w"])


def run_case(build, work, kind):
    """All modes of one case on one server; the number of runs in which something failed, and of ends."""
    folder = work / kind.__name__
    folder.mkdir()
    world = World(build, folder)
    case, runs = kind(world), 0
    try:
        for mode in MODES:
            if not LONG and mode[0] not in SHORT_MODES:
                continue
            for n in itertools.chain(range(1, FIRST + 1), itertools.count(FIRST + STEP // 2, STEP)):
                if not one_run(world, case, mode, n):
                    break
                runs += 1
        world.history_is_whole()
        world.step(1.0)
        world.check()
        world.checkpoint()
        world.step(float("inf"))
        kept = [list(world.weights), world.model.status().durable_step]
        world.server.kill()
        world.server.start()
        recover(world)
        assert [world.weights, world.model.status().base_step] == kept, (world.weights, kept)
        world.history_is_whole()
        code = world.server.terminate()
        assert code == 0, f"ampd ended with {code}"
    finally:
        world.server.stop()
    return runs, world.server.ends


def start_once(server, mode, n):
    """Starts a server under a fault, until it serves or ends. False: nothing failed."""
    name, what, cause, forever = mode
    orders, at = server.orders, server.log_path.stat().st_size
    orders.arm(what, n, forever, cause)
    with open(server.log_path, "ab") as log:
        server.process = subprocess.Popen([server.program, "--data-dir", server.data_dir, "--listen", "127.0.0.1:0"],
                                          stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def served_or_ended():
        if orders.failed() > 0 and forever:
            orders.disarm()  # with the first failure behind it and a few more
        return 'msg="serving"' in server.log_path.read_text()[at:] or server.process.poll() is not None

    eventually(served_or_ended, f"a start serves or ends, {name}, n = {n}")
    failed = orders.disarm()
    if server.process.poll() is None:
        server.process.send_signal(signal.SIGTERM)
    code, said = server.process.wait(CALL_S), server.log_path.read_text()[at:].splitlines()
    assert code in (0, 1) and said, f"start, {name}, n = {n} ({orders.last()}): ended with {code}: {said[-3:]}"
    assert code == 0 or len(said[-1].split()) > 3, f"start, {name}, n = {n}: no sentence: {said}"
    return failed > 0


def run_starts(build, work, _):
    """A data directory with a model and a checkpoint, opened again and again; in the end all of it is there."""
    folder, runs = work / "Start", 0
    folder.mkdir()
    world = World(build, folder)
    world.checkpoint()
    world.step(float("inf"))  # it is decided after the checkpoint, and changes no weight
    weights = list(world.weights)
    try:
        assert world.server.terminate() == 0
        for mode in MODES:
            if not LONG and mode[0] not in SHORT_MODES:
                continue
            # Thousands of allocations: of those behind the first 300 each 11th.
            first, step = (300, 11) if LONG else (FIRST, 4 * STEP)
            for n in itertools.chain(range(1, first + 1), itertools.count(first + step, step)):
                if not start_once(world.server, mode, n):
                    break
                runs += 1
        world.server.start()
        world.model.reconnect()
        recover(world)
        assert world.weights == weights, (world.weights, weights)
        world.history_is_whole()
        assert world.server.terminate() == 0
    finally:
        world.server.stop()
    return runs, runs


class Start:
    """Not an RPC, but what comes before the first."""


def main():
    build = pathlib.Path(ARGUMENTS[0]).resolve()
    chosen = [kind for kind in [*CASES, Start] if len(ARGUMENTS) < 2 or kind.__name__ in ARGUMENTS[1:]]
    work, broken = pathlib.Path(tempfile.mkdtemp(prefix="ampd-faults-")), 0
    for kind in chosen:
        began = time.monotonic()
        print(f"[ RUN      ] {kind.__name__}_survives_each_fault", flush=True)
        try:
            runs, ends = (run_starts if kind is Start else run_case)(build, work, kind)
            print(f"{kind.__name__}: {runs} runs with a fault, {ends} ends of the server, {time.monotonic() - began:.1f} s")
            print(f"[       OK ] {kind.__name__}_survives_each_fault", flush=True)
        except Exception as error:  # whatever a case raises has failed it
            broken += 1
            text = str(Refusal(error)) if isinstance(error, grpc.RpcError) else f"{type(error).__name__}: {error}"
            print(f"[  ERROR   ] {text}\n[  FAILED  ] {kind.__name__}_survives_each_fault", flush=True)
    if broken:
        print(f"{broken} of {len(chosen)} failed; what they left is in {work}")
        return 1
    shutil.rmtree(work)
    return 0


if __name__ == "__main__":
    sys.exit(main())
