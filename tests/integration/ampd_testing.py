"""What the tests of the server share: the process, the messages, a worker, exact arithmetic, and a runner of tests.

A test file ends with `ampd_testing.run(__doc__, tests)`; it is called with the folder of the built programs:

    test_server_steps.py BIN_DIR [NAME ...]      only the tests whose names contain one of NAME

Output is that of cmocka. Exit code 0: all passed; 1: one failed; 77: nothing could run. Every call has a deadline, and a
run that hangs all the same is ended with a traceback after RUN_TIMEOUT_S.
"""
import contextlib
import faulthandler
import functools
import glob
import math
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROTO = ROOT / "proto"
FILE = pathlib.Path(sys.argv[0]).name

# Servers are forked and executed at once. gRPC's own handlers of fork have waited for its threads without end, and crashed.
os.environ["GRPC_ENABLE_FORK_SUPPORT"] = "0"
try:
    import grpc
    from google.protobuf.json_format import MessageToDict  # noqa: F401  (for the tests)
    from google.protobuf.message import Message
except ImportError as error:
    print(f"SKIPPED: {FILE}: {error} (package python3-grpcio)")
    sys.exit(77)
if shutil.which("protoc") is None:
    print(f"SKIPPED: {FILE}: no protoc (package protobuf-compiler)")
    sys.exit(77)

# How many times slower than an ordinary machine this one is; test.sh measures it. Leases and deadlines of tests are that many times
# longer: else a process that gets no processor for a while loses a lease that the test wants it to keep.
PATIENCE = int(os.environ.get("AMPD_TEST_PATIENCE", "1"))
CALL_TIMEOUT_S = 60 * PATIENCE          # of a call that is answered at once; generous, since two cores run other tests meanwhile
RUN_TIMEOUT_S = 1680                    # of a whole file, for a hang; ctest ends it after 1,800 s
HELD_S = 0.4          # how long a call is watched that is to be held
BLOCK_ELEMENTS = 65536
ALIGN_ELEMENTS = 64
INSTANCE = 1           # of all workers of a test: one that joins again takes nothing from another process

# google.rpc.Status and its details, by the numbers of googleapis; the names differ so that nothing clashes.
FOREIGN_PROTO = """
syntax = "proto3";
package ampd_testing;
message Any { string type_url = 1; bytes value = 2; }
message Status { int32 code = 1; string message = 2; repeated Any details = 3; }
message ErrorInfo { string reason = 1; string domain = 2; map<string, string> metadata = 3; }
message Duration { int64 seconds = 1; int32 nanos = 2; }
message RetryInfo { Duration retry_delay = 1; }
message FieldViolation { string field = 1; string description = 2; }
message BadRequest { repeated FieldViolation field_violations = 1; }
message HealthCheckRequest { string service = 1; }
message HealthCheckResponse { int32 status = 1; }
"""
HEALTH_SERVING = 1


def _generate():
    """The modules of ampd.v1 and FOREIGN_PROTO, made by protoc into a folder that goes with the process."""
    folder = tempfile.TemporaryDirectory(prefix="ampd-stubs-")
    (pathlib.Path(folder.name) / "foreign.proto").write_text(FOREIGN_PROTO)
    files = sorted(str(path.relative_to(PROTO)) for path in (PROTO / "ampd" / "v1").glob("*.proto"))
    subprocess.run(["protoc", f"-I{PROTO}", f"-I{folder.name}", f"--python_out={folder.name}", "foreign.proto", *files],
                   check=True, timeout=60)
    sys.path.insert(0, folder.name)
    return folder


_STUBS = _generate()
import foreign_pb2 as foreign  # noqa: E402
from ampd.v1 import admin_service_pb2 as admin  # noqa: E402
from ampd.v1 import common_pb2 as common  # noqa: E402
from ampd.v1 import model_pb2 as model  # noqa: E402
from ampd.v1 import parameter_service_pb2 as params  # noqa: E402
from ampd.v1 import peer_service_pb2 as peer  # noqa: E402
from ampd.v1 import scale_service_pb2 as scales  # noqa: E402

Code = grpc.StatusCode
STREAMED_REQUEST = {"Load", "Push"}
STREAMED_RESPONSE = {"Pull", "WatchSteps", "FetchRows", "ReadCheckpoint", "AttachMemory"}


# ---- bits ----

def _crc_table():
    rows = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        rows.append(value)
    return rows


_CRC_TABLE = _crc_table()


@functools.lru_cache(maxsize=64)  # tests send the same block many times, and a byte takes a while here
def crc32c(data):
    crc, table = 0xFFFFFFFF, _CRC_TABLE
    for byte in data:
        crc = (crc >> 8) ^ table[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


with contextlib.suppress(ImportError):  # python3-crc32c, a thousand times as fast
    from crc32c import crc32c  # noqa: F811


def f32(value):
    """The value rounded once to binary32, ties to even; beyond its range Inf."""
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def bf16_bits(value):
    """The upper half of binary32, rounded to nearest even."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    if math.isnan(value):
        return 0x7FC0
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) & 0xFFFF


def pack(dtype, values):
    """Little-endian bytes of the values in a wire dtype."""
    values = list(values)
    if dtype == common.DTYPE_F32:
        return struct.pack(f"<{len(values)}f", *values)
    if dtype == common.DTYPE_F16:
        return struct.pack(f"<{len(values)}e", *values)
    return struct.pack(f"<{len(values)}H", *map(bf16_bits, values))


def unpack(dtype, data):
    if dtype == common.DTYPE_F32:
        return struct.unpack(f"<{len(data) // 4}f", data)
    if dtype == common.DTYPE_F16:
        return struct.unpack(f"<{len(data) // 2}e", data)
    halves = struct.unpack(f"<{len(data) // 2}H", data)
    return struct.unpack(f"<{len(halves)}f", b"".join(struct.pack("<I", half << 16) for half in halves))


class Layout:
    """The flat space of a specification: parameters in order, each padded to 64 elements, cut into blocks."""

    def __init__(self, spec):
        self.names = [parameter.name for parameter in spec.parameters]
        self.sizes = [math.prod(parameter.shape) for parameter in spec.parameters]
        self.starts, self.elements = [], 0
        for size in self.sizes:
            self.starts.append(self.elements)
            self.elements += -(-size // ALIGN_ELEMENTS) * ALIGN_ELEMENTS
        self.block_count = -(-self.elements // BLOCK_ELEMENTS)

    def flat(self, tensors):
        """All elements; a missing parameter and pads are zero. `tensors`: name -> values."""
        out = [0.0] * self.elements
        for name, values in tensors.items():
            at = self.names.index(name)
            assert len(values) == self.sizes[at], f"{name} has {self.sizes[at]} elements, not {len(values)}"
            out[self.starts[at]:self.starts[at] + len(values)] = values
        return out

    def blocks(self, dtype, tensors):
        """The bytes of each block."""
        flat = self.flat(tensors)
        return [pack(dtype, flat[at:at + BLOCK_ELEMENTS]) for at in range(0, len(flat), BLOCK_ELEMENTS)]

    def tensors(self, dtype, blocks):
        """name -> values of the blocks (a mapping from index to bytes) of the whole model."""
        assert sorted(blocks) == list(range(self.block_count)), f"blocks {sorted(blocks)} of {self.block_count}"
        flat = [value for index in sorted(blocks) for value in unpack(dtype, blocks[index])]
        assert len(flat) == self.elements, f"{len(flat)} elements came, {self.elements} are in the model"
        return {name: tuple(flat[start:start + size])
                for name, start, size in zip(self.names, self.starts, self.sizes)}


# ---- the process ----

# Nothing outlives a test that is ended. A program sees to it, not code of Python's between fork and exec: with that Python
# forks, which gRPC's threads do not survive every time; without it it need not.
DIE_WITH_PARENT = ("/usr/bin/setpriv", "--pdeathsig", "KILL", "--")


CHANNEL_OPTIONS = [
    ("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1), ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 50), ("grpc.max_reconnect_backoff_ms", 200),
    ("grpc.use_local_subchannel_pool", 1)]


class Server:
    """One ampd on a data directory; a restart keeps the directory and takes a new port."""

    START_TIMEOUT_S = CALL_TIMEOUT_S
    before = ()  # words in front of its command

    def __init__(self, bin_dir, data_dir, *options):
        self.program, self.data_dir, self.options = bin_dir / "ampd", data_dir, options
        self.process = self.channel = self.port = None
        self.log_path = data_dir.with_name(data_dir.name + ".log")
        self.start()

    def start(self):
        began_at = self.log_path.stat().st_size if self.log_path.exists() else 0
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [*DIE_WITH_PARENT, *self.before, self.program, "--data-dir", self.data_dir, "--listen", "127.0.0.1:0", *self.options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.port = self._wait_for_port(began_at)
        self.channel = self.connect()
        grpc.channel_ready_future(self.channel).result(timeout=self.START_TIMEOUT_S)
        # A server that has just started makes its models ready first, and says so by its health.
        eventually(lambda: Api(self.channel).health() == HEALTH_SERVING, "the server is healthy", self.START_TIMEOUT_S)
        return self

    def connect(self):
        """A channel of its own connection."""
        return grpc.insecure_channel(f"127.0.0.1:{self.port}", options=CHANNEL_OPTIONS)

    def _wait_for_port(self, began_at):
        until = time.monotonic() + self.START_TIMEOUT_S
        while time.monotonic() < until:
            said = self.log_path.read_bytes()[began_at:].decode(errors="replace")
            for match in re.finditer(r"(?:127\.0\.0\.1|0\.0\.0\.0):(\d+)", said):
                if int(match[1]) != 0:
                    return int(match[1])
            assert self.process.poll() is None, f"ampd ended with {self.process.returncode}:\n{said[-1500:]}"
            time.sleep(0.01)
        raise AssertionError(f"ampd did not say where it listens:\n{said[-1500:]}")

    def log(self):
        return self.log_path.read_text(errors="replace")

    def close_channel(self):
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def kill(self):
        """kill -9; nothing is flushed."""
        self.process.kill()
        self.process.wait(CALL_TIMEOUT_S)
        self.close_channel()

    def terminate(self):
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self):
        code = self.process.wait(CALL_TIMEOUT_S)
        self.close_channel()
        return code

    def restart_after_kill(self):
        self.kill()
        return self.start()

    def stop(self):
        """Ends the process at the end of a test; one that ended by itself has failed."""
        if self.process.poll() is None:
            self.kill()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_and_fail(bin_dir, *arguments):
    """An ampd that is to end at once: (exit code, lines on stderr)."""
    done = subprocess.run([*DIE_WITH_PARENT, bin_dir / "ampd", *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, timeout=60, encoding="utf-8")
    return done.returncode, done.stderr.splitlines()


# ---- calls ----

def _method_rows():
    """name -> (path, request type, response type) of every method, read from the descriptors."""
    rows = {}
    for module in (params, scales, admin, peer):
        for service in module.DESCRIPTOR.services_by_name.values():
            for method in service.methods:
                rows[method.name] = (f"/{service.full_name}/{method.name}",
                                     getattr(module, method.input_type.name), getattr(module, method.output_type.name))
    return rows


METHODS = _method_rows()


def _bytes_of(request):
    return request.SerializeToString() if isinstance(request, Message) else request


class Answers:
    """A server stream under way: read it with `next` or `all`, end it with `cancel`."""

    def __init__(self, call):
        self.call = call

    def next(self):
        return next(self.call)

    def all(self):
        return list(self.call)

    def cancel(self):
        self.call.cancel()


class Api:
    """Calls by name: api.Join(model="m", worker_name="w").

    A request is given by its fields, as one message, or as raw bytes; a client stream as a list of messages or bytes. A
    server stream is returned as a list. `timeout_s` is the deadline, `wait_for_ready` gRPC's. `start(name, ...)` does not
    wait: it returns a grpc future, or Answers for a server stream.
    """

    def __init__(self, channel):
        self.channel = channel

    def start(self, name, request=None, timeout_s=CALL_TIMEOUT_S, wait_for_ready=None, **fields):
        path, request_type, response_type = METHODS[name]
        streamed = name in STREAMED_REQUEST
        if request is None and not streamed:
            request = request_type(**fields)
        kind = (f"{'stream' if streamed or isinstance(request, list) else 'unary'}_"
                f"{'stream' if name in STREAMED_RESPONSE else 'unary'}")
        call = getattr(self.channel, kind)(path, request_serializer=_bytes_of,
                                           response_deserializer=response_type.FromString)
        if streamed or isinstance(request, list):
            request = iter(request)
        # Not every channel of ours knows it.
        options = {} if wait_for_ready is None else {"wait_for_ready": wait_for_ready}
        if name in STREAMED_RESPONSE:
            return Answers(call(request, timeout=timeout_s, **options))
        return call.future(request, timeout=timeout_s, **options)

    def __getattr__(self, name):
        if name not in METHODS:
            raise AttributeError(name)

        def call(request=None, timeout_s=CALL_TIMEOUT_S, wait_for_ready=None, **fields):
            started = self.start(name, request, timeout_s, wait_for_ready, **fields)
            return started.all() if isinstance(started, Answers) else started.result()

        return call

    def health(self, service="", timeout_s=CALL_TIMEOUT_S):
        check = self.channel.unary_unary("/grpc.health.v1.Health/Check", request_serializer=_bytes_of,
                                         response_deserializer=foreign.HealthCheckResponse.FromString)
        return check(foreign.HealthCheckRequest(service=service), timeout=timeout_s).status


class Refusal:
    """A status that is not OK, taken apart."""

    def __init__(self, error):
        self.code, self.text = error.code(), error.details() or ""
        self.reason, self.domain, self.metadata, self.retry_ms, self.status = "", "", {}, None, None
        self.field = None  # of a BadRequest
        raw = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")
        if raw is None:
            return
        self.status = foreign.Status.FromString(raw)
        for detail in self.status.details:
            kind = detail.type_url.rsplit("/", 1)[-1]
            if kind == "google.rpc.ErrorInfo":
                info = foreign.ErrorInfo.FromString(detail.value)
                self.reason, self.domain, self.metadata = info.reason, info.domain, dict(info.metadata)
            elif kind == "google.rpc.RetryInfo":
                delay = foreign.RetryInfo.FromString(detail.value).retry_delay
                self.retry_ms = delay.seconds * 1000 + delay.nanos / 1e6
            elif kind == "google.rpc.BadRequest":
                self.field = foreign.BadRequest.FromString(detail.value).field_violations[0].field

    def __str__(self):
        return f"{self.code.name} {self.reason or '(no reason)'} {self.metadata}: {self.text!r}"


def check_rich(refusal):
    """Every error of the package: a sentence, and the same in details with an ErrorInfo."""
    assert refusal.status is not None, f"no grpc-status-details-bin: {refusal}"
    assert refusal.status.code == refusal.code.value[0], f"the details say code {refusal.status.code}: {refusal}"
    assert refusal.status.message == refusal.text, f"the details say {refusal.status.message!r}: {refusal}"
    assert refusal.domain == "ampd", f"domain {refusal.domain!r}: {refusal}"
    assert re.fullmatch(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)*", refusal.reason), f"reason {refusal.reason!r}: {refusal}"
    check_sentence(refusal)


def check_sentence(refusal):
    text = refusal.text
    assert len(text.split()) >= 3 and text.isprintable() and len(text) <= 600, f"no sentence: {refusal}"


def refused(function, code, reason=None, words=(), rich=True, metadata=None):
    """Calls, and checks that the call is refused: with this code, reason, these words in the text. The Refusal."""
    try:
        answer = function()
    except grpc.RpcError as error:
        refusal = Refusal(error)
    else:
        raise AssertionError(f"was not refused with {code.name}; the answer: {str(answer)[:300]}")
    codes = code if isinstance(code, tuple) else (code,)
    assert refusal.code in codes, f"expected {'/'.join(c.name for c in codes)}, got {refusal}"
    if rich:
        check_rich(refusal)
    assert reason is None or refusal.reason == reason, f"expected reason {reason}, got {refusal}"
    for word in (words,) if isinstance(words, str) else words:
        assert word in refusal.text, f"{word!r} is not in the text: {refusal}"
    for key, value in (metadata or {}).items():
        assert refusal.metadata.get(key) == str(value), f"metadata {key} is not {value}: {refusal}"
    return refusal


def metric(process, name):
    """Of its HTTP port."""
    port = re.search(r"metrics and health\" address=127\.0\.0\.1:(\d+)", process.log())[1]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=CALL_TIMEOUT_S) as answer:
        return float(re.search(rf"^{name} (\S+)$", answer.read().decode(), re.MULTILINE)[1])


def eventually(condition, what, timeout_s=CALL_TIMEOUT_S, pause_s=0.01):
    """Asks until the condition holds; its value."""
    until = time.monotonic() + timeout_s
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < until, f"still not so: {what}"
        time.sleep(pause_s)


def found(folder, pattern):
    """The paths below the folder that match, in order. A server may remove some meanwhile: pathlib's own glob then fails."""
    return [folder / path for path in sorted(glob.glob(pattern, root_dir=folder, recursive=True))]


def held(call):
    """The call is not answered meanwhile."""
    done = threading.Event()
    call.add_done_callback(lambda _: done.set())
    if done.wait(HELD_S):
        raise AssertionError(f"was not held: {call.exception() or call.result()}")
    return call


# ---- models and workers ----

def spec(name, parameters=(("w", [4]),), **fields):
    """A specification whose arithmetic is exact: SGD with rate 0.5, scale 1024. Every field can be given."""
    values = {"world_size": 1, "optimizer": model.OptimizerSpec(kind=model.OPTIMIZER_KIND_SGD, learning_rate=0.5),
              "scaler": model.ScalerSpec(init_scale=1024.0)}
    values.update(fields)
    made = model.ModelSpec(name=name, **{key: value for key, value in values.items() if value is not None})
    for parameter in parameters:
        made.parameters.append(parameter if isinstance(parameter, model.ParameterSpec) else
                               model.ParameterSpec(name=parameter[0], shape=parameter[1]))
    return made


def block_message(kind, index, data, /, **over):
    """A PushRequest or LoadRequest with one block; a field given as None is left out."""
    fields = {"index": index, "crc32c": crc32c(data), "data": data, **over}
    return kind(**{key: value for key, value in fields.items() if value is not None})


def load_messages(layout, name, tensors, **header):
    yield params.LoadRequest(header=params.LoadHeader(model=name, **header))
    for index, data in enumerate(layout.blocks(common.DTYPE_F32, tensors)):
        yield block_message(params.LoadRequest, index, data)


class TestModel:
    """A model that has been created; by default also loaded, each value of `w` its index + 1."""

    __test__ = False

    def __init__(self, server, name, parameters=(("w", [4]),), tensors=None, load=True, **fields):
        self.server, self.name = server, name
        self.api = Api(server.channel)
        self.spec = self.api.CreateModel(spec=spec(name, parameters, **fields)).spec
        self.layout = Layout(self.spec)
        self.initial = tensors or {n: [float(i + 1) for i in range(size)]
                                   for n, size in zip(self.layout.names, self.layout.sizes)}
        if load:
            self.load()

    def reconnect(self):
        """After a restart of the server."""
        self.api = Api(self.server.channel)
        return self

    def load(self, tensors=None):
        return self.api.Load(list(load_messages(self.layout, self.name, tensors or self.initial)))

    def worker(self, name="a", **join):
        return Worker(self, name, **join)

    def workers(self, count):
        return [self.worker(f"w{rank}", rank=rank) for rank in range(count)]

    def latest(self):
        """(header, name -> values) of the newest complete version, once every decided step is in it: a push is answered
        by the verdict, before it is applied."""
        applied = self.api.GetScale(model=self.name).record.applied

        def pull():
            header, tensors = self.read_pull(self.api.Pull(model=self.name, latest=True))
            return (header, tensors) if header.version >= applied else None

        return eventually(pull, f"version {applied} is complete")

    def read_pull(self, answers):
        header = answers[0].header
        assert answers[0].HasField("header") and not any(answer.HasField("header") for answer in answers[1:])
        blocks = {}
        for answer in answers[1:]:
            assert answer.index not in blocks, f"block {answer.index} came twice"
            assert answer.crc32c == crc32c(answer.data), f"the checksum of block {answer.index} is wrong"
            blocks[answer.index] = answer.data
        assert len(blocks) == header.block_count, f"{len(blocks)} blocks came, {header.block_count} were announced"
        return header, (self.layout.tensors(header.dtype, blocks) if blocks else None)

    def history(self, **fields):
        return self.api.ListScaleHistory(model=self.name, **fields).rows

    def step_rows(self, **fields):
        return [row for row in self.history(**fields) if row.kind == scales.HISTORY_KIND_STEP]

    def status(self):
        return self.api.GetModel(model=self.name).status


class Worker:
    """One worker of a model. `epoch`, `step` and `scale_id` follow what the server answers; all can be overridden."""

    def __init__(self, test_model, name="a", **join):
        self.model, self.name = test_model, name
        self.join(**join)

    @property
    def api(self):
        return self.model.api

    def join(self, **fields):
        fields = {"model": self.model.name, "worker_name": self.name, "instance": INSTANCE, **fields}
        self.joined = self.api.Join(**{key: value for key, value in fields.items() if value is not None})
        self.rank, self.incarnation = self.joined.rank, self.joined.incarnation
        self.epoch, self.step = self.joined.epoch, self.joined.step
        return self

    def identity(self):
        return {"model": self.model.name, "rank": self.rank, "incarnation": self.incarnation}

    def pull(self, step=None, **fields):
        """(header, name -> values, or None where no blocks came)."""
        fields = {"model": self.model.name, "epoch": self.epoch, "step": step or self.step, **fields}
        if "latest" in fields or "version" in fields:
            del fields["step"]
        header, tensors = self.model.read_pull(self.api.Pull(**fields))
        self.header = header
        return header, tensors

    def push_header(self, **over):
        fields = {**self.identity(), "epoch": self.epoch, "step": self.step, "dtype": common.DTYPE_F16}
        if "scale_id" not in over:
            fields["scale_id"] = self.header.scale_id
        fields.update(over)
        return params.PushRequest(header=params.PushHeader(**fields))

    def blocks(self, tensors, dtype=common.DTYPE_F16):
        return [block_message(params.PushRequest, index, data)
                for index, data in enumerate(self.model.layout.blocks(dtype, tensors))]

    def push_messages(self, tensors, absent=(), **header):
        """Header, all blocks, trailer."""
        dtype = header.get("dtype", common.DTYPE_F16)
        return [self.push_header(**header), *self.blocks(tensors, dtype),
                params.PushRequest(trailer=params.PushTrailer(absent=absent))]

    def start_push(self, tensors, timeout_s=CALL_TIMEOUT_S, **fields):
        return self.api.start("Push", self.push_messages(tensors, **fields), timeout_s)

    def push(self, tensors, **fields):
        """Pushes the gradients (scaled) and moves on to the next step. The StepResult."""
        result = self.start_push(tensors, **fields).result().result
        self.step = result.step + 1
        return result

    def train(self, tensors, **fields):
        """Pull, then push of the *unscaled* gradients; the StepResult."""
        header, _ = self.pull()
        return self.push({name: [value * header.scale for value in values] for name, values in tensors.items()},
                         **fields)

    def push_state(self, **over):
        fields = {**self.identity(), "epoch": self.epoch, "step": self.step, **over}
        return self.api.GetPushState(**fields)

    def present(self, **over):
        """The set of blocks that need not be sent again."""
        return {index for part in self.push_state(**over).present for index in range(part.first, part.first + part.count)}


def one(context, **fields):
    """The worker of a new model, in its first step."""
    worker = context.model(**fields).worker()
    worker.pull()
    return worker


def two(context, **fields):
    """The two workers of a new model, in their first step."""
    workers = context.model(world_size=2, **fields).workers(2)
    for worker in workers:
        worker.pull()
    return workers


def together(workers, tensors, **fields):
    """All workers push at once; the StepResults by rank."""
    calls = [worker.start_push(tensors[at] if isinstance(tensors, list) else tensors, **fields)
             for at, worker in enumerate(workers)]
    results = [call.result().result for call in calls]
    for worker, result in zip(workers, results):
        worker.step = result.step + 1
    return results


class OpenStream:
    """A client stream that the test writes piece by piece and never has to end."""

    def __init__(self, api, name, messages=(), timeout_s=CALL_TIMEOUT_S):
        self.waiting, self.ended, self.changed = list(messages), False, threading.Condition()
        self.call = api.start(name, self, timeout_s)

    def __iter__(self):
        return self

    def __next__(self):
        with self.changed:
            while not self.waiting and not self.ended:
                self.changed.wait(CALL_TIMEOUT_S)
            if self.waiting:
                return self.waiting.pop(0)
            raise StopIteration

    def send(self, *messages):
        with self.changed:
            self.waiting.extend(messages)
            self.changed.notify()

    def end(self):
        with self.changed:
            self.ended = True
            self.changed.notify()
        return self

    def cancel(self):
        self.call.cancel()
        self.end()

    def result(self):
        return self.call.result()


# ---- running tests ----

class Context:
    """What a test gets: the folder of programs, a server that the tests of the file share, and fresh ones."""

    def __init__(self, bin_dir, work):
        self.bin_dir, self.work, self.count = bin_dir, work, 0
        self._shared, self._own = None, []

    def folder(self):
        self.count += 1
        return self.work / f"data-{self.count}"

    @property
    def shared(self):
        if self._shared is None or self._shared.process.poll() is not None:
            self._shared = Server(self.bin_dir, self.folder())
        return self._shared

    def server(self, *options, data_dir=None):
        """A server of the test's own, ended with the test."""
        server = Server(self.bin_dir, data_dir or self.folder(), *options)
        self._own.append(server)
        return server

    def model(self, name=None, server=None, **fields):
        self.count += 1
        return TestModel(server or self.shared, name or f"model-{self.count}", **fields)

    def end_test(self):
        for server in self._own:
            server.stop()
        self._own = []
        if self._shared is not None:
            code = self._shared.process.poll()
            assert code is None, f"the shared server ended with {code}:\n{self._shared.log()[-2000:]}"

    def close(self):
        self.end_test()
        if self._shared is not None:
            code = self._shared.terminate()
            assert code == 0, f"the shared server ended with {code}:\n{self._shared.log()[-2000:]}"


def _run_one(name, function, *arguments):
    """True if it passed."""
    print(f"[ RUN      ] {name}", flush=True)
    try:
        function(*arguments)
    except Exception as error:  # whatever a test raises has failed it
        if isinstance(error, grpc.RpcError):
            text = str(Refusal(error))
        else:
            text = f"{type(error).__name__}: {error}"
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(str(ROOT))]
        place = " < ".join(f"{pathlib.Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames))
        print(f"[  ERROR   ] {place}: {text}\n[  FAILED  ] {name}", flush=True)
        return False
    print(f"[       OK ] {name}", flush=True)
    return True


def tests_of(module_globals):
    """The functions of a file whose names begin with test_, in their order, by name without it."""
    return [(name[len("test_"):], value) for name, value in module_globals.items() if name.startswith("test_")]


def run(module_globals):
    """Runs the tests of a file on the programs of sys.argv[1], and ends the process."""
    if len(sys.argv) < 2:
        sys.exit(f"usage: {FILE} BIN_DIR [NAME ...]")
    faulthandler.dump_traceback_later(RUN_TIMEOUT_S, exit=True)
    bin_dir, wanted = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:]
    chosen = [(name, test) for name, test in tests_of(module_globals)
              if not wanted or any(part in name for part in wanted)]
    work = pathlib.Path(tempfile.mkdtemp(prefix="ampd-server-"))
    context, failed = Context(bin_dir, work), 0
    for name, test in chosen:
        failed += not _run_one(name, _with_end, context, test)
    failed += not _run_one(f"{pathlib.Path(FILE).stem}_ends_its_server_with_0", context.close)
    if failed:
        print(f"{failed} of {len(chosen)} failed; what they left is in {work}")
        sys.exit(1)
    shutil.rmtree(work)


def _with_end(context, test):
    with contextlib.ExitStack() as stack:
        stack.callback(context.end_test)
        test(context)
