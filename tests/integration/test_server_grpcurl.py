#!/usr/bin/python3
"""ampd as other programs see it: grpcurl with no .proto at hand, and the lines for Python and Go in docs/grpc.md.

    test_server_grpcurl.py BIN_DIR [NAME ...]
"""
import importlib.util
import json
import os
import subprocess
import sys
import threading

from auth_testing import Authority, TlsServer, TokenFile
from ampd_testing import CALL_TIMEOUT_S, PATIENCE, PROTO, ROOT, Api, MessageToDict, block_message, common, grpc, pack, params, run

FETCH = ROOT / "tests" / "conformance" / "fetch.sh"
FETCH_TIMEOUT_S = 600
GRPCURL = None


def fetch(tool):
    """The path of the tool, or None and the reason has been printed."""
    try:
        done = subprocess.run(["sh", FETCH, tool], stdout=subprocess.PIPE, encoding="utf-8", timeout=FETCH_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        print(f"SKIPPED: test_server_grpcurl: {tool} was not built within {FETCH_TIMEOUT_S} s")
        return None
    text = done.stdout.strip()
    if done.returncode == 0:
        return text
    assert done.returncode == 77, f"fetch.sh ended with {done.returncode}: {text}"
    print(f"SKIPPED: test_server_grpcurl: {text.removeprefix('SKIPPED: ')}")
    return None


def grpcurl(context, *arguments, data=None, fails=False):
    """The output of one call of the shared server."""
    command = [GRPCURL, "-plaintext", "-max-time", str(CALL_TIMEOUT_S), "-format-error"]
    if data is not None:
        command += ["-d", "@"]
    done = subprocess.run([*command, f"127.0.0.1:{context.shared.port}", *arguments], input=data or "",
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=2 * CALL_TIMEOUT_S, encoding="utf-8")
    assert (done.returncode != 0) == fails, f"grpcurl {arguments} ended with {done.returncode}: {done.stdout}"
    return done.stdout


def call(context, method, request, **fields):
    """The answer of a method as a dictionary; `request` is one message or a list of them."""
    messages = request if isinstance(request, list) else [request]
    return json.loads(grpcurl(context, f"ampd.v1.{method}", data="\n".join(map(json.dumps, messages)), **fields))


# ---- Python: needs no grpcurl ----

def from_python():
    """The stubs and a first call, the trainer, the functions for several parameters, and the lines over TLS, of
    docs/grpc.md#from-python."""
    section = (ROOT / "docs" / "grpc.md").read_text().split("## From Python\n")[1]
    install, lines = section.split("```sh\n")[1].split("```")[0].split("\n", 1)
    assert install.startswith("apt-get install "), install
    trainer, several, secure = (part.split("```")[0] for part in section.split("```python\n")[1:])
    return lines, trainer, several, secure


def trainer_folder(context, lines, trainer, replaced):
    """A folder with the stubs and the trainer, in which each key of `replaced` has its value."""
    for given, wanted in replaced.items():
        assert trainer.count(given) == 1, given
        trainer = trainer.replace(given, wanted)
    folder = context.folder()
    folder.mkdir()
    (folder / "proto").symlink_to(PROTO)
    (folder / "trainer.py").write_text(trainer)
    subprocess.run(["bash", "-e"], input=lines.split("PYTHONPATH=")[0], cwd=folder, timeout=60, encoding="utf-8", check=True)
    return folder


def start_trainer(folder, **environment):
    return subprocess.Popen([sys.executable, "trainer.py"], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            env={**os.environ, "PYTHONPATH": "build/python", **environment}, encoding="utf-8")


def test_the_lines_for_python_in_the_docs_run_word_for_word(context):
    lines = from_python()[0]
    assert lines.count("127.0.0.1:7420") == 1, lines
    folder = context.folder()
    folder.mkdir()
    (folder / "proto").symlink_to(PROTO)
    done = subprocess.run(["bash", "-e"], input=lines.replace("127.0.0.1:7420", f"127.0.0.1:{context.shared.port}"),
                          cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, encoding="utf-8")
    assert done.returncode == 0 and "shard_count: 1" in done.stdout, done.stdout


def test_the_trainer_in_the_docs_trains_with_steps_of_three_leases(context):
    lease_s = 3 * PATIENCE
    server = context.server("--worker-lease", f"{lease_s}s")
    lines, trainer, _, _ = from_python()
    folder = trainer_folder(context, lines, trainer, {
        "127.0.0.1:7420": f"127.0.0.1:{server.port}", "STEPS = \"python\", 20": "STEPS = \"python\", 3",
        "SECONDS = 0.1 ": f"SECONDS = {3 * lease_s} "})
    both = [start_trainer(folder, RANK=rank, WORLD_SIZE="2") for rank in "01"]
    said = [worker.communicate(timeout=300 * PATIENCE)[0] for worker in both]
    assert [worker.returncode for worker in both] == [0, 0], said
    for text in said:
        assert [line.split(":")[0] for line in text.splitlines()] == [f"step {number}" for number in range(1, 4)], said
    assert "lease" not in server.log().split("listening", 1)[-1], server.log()


def test_the_trainer_in_the_docs_trains_over_tls_with_a_token(context):
    tokens = TokenFile(context)
    token = tokens.new("worker")
    server = TlsServer(context, Authority(context.work / "authority"), "--token-file", tokens.path)
    lines, trainer, _, secure = from_python()
    folder = trainer_folder(context, lines, trainer, {
        "\n\n\ndef crc32c": f"\n{secure}\n\ndef crc32c", "127.0.0.1:7420": f"localhost:{server.port}",
        "grpc.insecure_channel(address, PINGS)": "grpc.secure_channel(address, CREDENTIALS, PINGS)",
        "STEPS = \"python\", 20": "STEPS = \"python\", 3"})
    (folder / "ca.crt").write_bytes(server.authority.cert.read_bytes())
    (folder / "trainer.token").write_text(token + "\n")
    worker = start_trainer(folder)
    said = worker.communicate(timeout=300)[0]
    assert worker.returncode == 0 and said.count("VERDICT_APPLIED") == 3, said


SEVERAL = """
import grpc
from ampd.v1 import model_pb2
from ampd.v1.parameter_service_pb2_grpc import ParameterServiceStub

shapes = [(301, 333), (5,), ()]  # two blocks, of which the second is short
channel = grpc.insecure_channel("127.0.0.1:7420")
api, firsts = ParameterServiceStub(channel), [numpy.random.default_rng(1).standard_normal(shape) for shape in shapes]
api.CreateModel(params.CreateModelRequest(spec=model_pb2.ModelSpec(
    name="odd", parameters=[model_pb2.ParameterSpec(name=f"p{i}", shape=shape) for i, shape in enumerate(shapes)],
    optimizer=model_pb2.OptimizerSpec(kind=model_pb2.OPTIMIZER_KIND_SGD, learning_rate=0.5), world_size=1,
    scaler=model_pb2.ScalerSpec(init_scale=1024))))
assert not load(api, "odd", firsts).already_loaded
joined = api.Join(params.JoinRequest(model="odd", rank=0))
for step in range(1, 4):
    place = dict(model="odd", rank=0, incarnation=joined.incarnation, epoch=joined.epoch, step=step)
    header, tensors = pull(api, place, shapes)
    for tensor, first in zip(tensors, firsts, strict=True):
        assert numpy.allclose(tensor, first * 0.5 ** min(step - 1, 1), atol=0.01), (step, tensor, first)
    gradients = [tensor.astype("f4") * header.scale for tensor in tensors]
    if step == 2:
        gradients[1][3] = 1e9
    push(api, place, header, gradients, 0.25)
print_history(channel, "odd")
"""


def test_the_functions_for_several_parameters_in_the_docs_train_them_and_show_the_history(context):
    if importlib.util.find_spec("crc32c") is None or importlib.util.find_spec("numpy") is None:
        print("SKIPPED: docs/grpc.md: no python3-crc32c or python3-numpy")
        return
    lines, _, several, _ = from_python()
    folder = trainer_folder(context, lines, several + SEVERAL, {"127.0.0.1:7420": f"127.0.0.1:{context.shared.port}"})
    trained = start_trainer(folder)
    said = trained.communicate(timeout=CALL_TIMEOUT_S)[0]
    assert trained.returncode == 0, said
    first, second, why, third = [line for line in said.splitlines() if line]
    assert first == "1 VERDICT_APPLIED 1024.0 -> 1024.0 loss 0.25", said
    assert second == "2 VERDICT_SKIPPED_OVERFLOW 1024.0 -> 512.0 loss 0.25", said
    assert "had 1 Inf and 0 NaN in p1, the first at index 3" in why, said
    assert third == "3 VERDICT_APPLIED 512.0 -> 512.0 loss 0.25", said


def test_the_lines_for_go_in_the_docs_make_its_stubs(context):
    plugins = [fetch(tool) for tool in ("protoc-gen-go", "protoc-gen-go-grpc")]
    if None in plugins:
        return
    section = (ROOT / "docs" / "grpc.md").read_text().split("## From Go\n")[1]
    lines = [line for line in section.split("```sh\n")[1].split("```")[0].splitlines() if line.startswith(("packages=", "protoc "))]
    assert len(lines) == 2, section
    folder = context.folder()
    folder.mkdir()
    done = subprocess.run(["bash", "-e"], input="\n".join([f"proto={PROTO}", *lines]), cwd=folder, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, encoding="utf-8", timeout=CALL_TIMEOUT_S,
                          env={**os.environ, "PATH": ":".join([os.path.dirname(plugins[0]), os.environ["PATH"]])})
    assert done.returncode == 0, done.stdout
    assert "func NewAdminServiceClient(" in (folder / "ampdv1" / "admin_service_grpc.pb.go").read_text()
    assert "\npackage ampdv1\n" in (folder / "ampdv1" / "common.pb.go").read_text()


def test_the_unix_socket_serves_too(context):
    with grpc.insecure_channel(f"unix:{context.shared.data_dir / 'ampd.sock'}") as channel:
        assert Api(channel).GetStatus().shard_count == 1


def test_who_asks_the_reflection_for_much_before_he_reads_has_every_answer(context):
    symbol, asked, count = b"ampd.v1.ParameterService", threading.Event(), 1000

    def questions():
        for _ in range(count):
            yield b"\x22" + bytes([len(symbol)]) + symbol  # file_containing_symbol
        asked.set()

    call = context.shared.channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
    answers = call(questions(), timeout=CALL_TIMEOUT_S)
    assert asked.wait(CALL_TIMEOUT_S)
    sizes = [len(answer) for answer in answers]
    assert len(sizes) == count and min(sizes) == max(sizes), (len(sizes), set(sizes))
    assert sum(sizes) > 4 << 20, sizes[0]  # far more than is kept for who does not read


# ---- grpcurl ----

def test_grpcurl_lists_the_services_and_methods(context):
    listed = grpcurl(context, "list").split()
    for service in ("ampd.v1.ParameterService", "ampd.v1.ScaleService", "ampd.v1.AdminService", "grpc.health.v1.Health",
                    "grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection"):
        assert service in listed, listed
    assert set(grpcurl(context, "list", "ampd.v1.ParameterService").split()) == {
        f"ampd.v1.ParameterService.{name}" for name in
        ("CreateModel", "GetModel", "ListModels", "DeleteModel", "Join", "KeepAlive", "Leave", "Load", "Pull", "Push",
         "GetPushState", "AttachMemory")}


def test_grpcurl_describes_what_the_schema_has(context):
    assert "rpc Push ( stream .ampd.v1.PushRequest ) returns ( .ampd.v1.PushResponse );" in \
        grpcurl(context, "describe", "ampd.v1.ParameterService")
    assert "SCALER_POLICY_DYNAMIC = 1;" in grpcurl(context, "describe", "ampd.v1.ScalerPolicy")
    for proto in (PROTO / "ampd" / "v1").glob("*.proto"):
        for line in proto.read_text().splitlines():
            if line.startswith("message "):
                name = line.split()[1]
                assert f"message {name} {{" in grpcurl(context, "describe", f"ampd.v1.{name}"), name
                break  # one of each file
    assert "Symbol not found" in grpcurl(context, "describe", "ampd.v1.Nothing", fails=True)


def test_grpcurl_checks_health(context):
    for service in ("", "ampd.v1.ParameterService"):
        answer = json.loads(grpcurl(context, "grpc.health.v1.Health/Check", data=json.dumps({"service": service})))
        assert answer == {"status": "SERVING"}, answer


def test_grpcurl_trains_a_step_from_json(context):
    spec = {"name": "json", "worldSize": 1, "parameters": [{"name": "w", "shape": [4]}],
            "optimizer": {"kind": "OPTIMIZER_KIND_SGD", "learningRate": 0.5}, "scaler": {"initScale": 1024}}
    answer = call(context, "ParameterService/CreateModel", {"spec": spec})
    assert answer["created"] and answer["spec"]["scaler"]["growthInterval"] == 2000, answer
    assert "created" not in call(context, "ParameterService/CreateModel", {"spec": spec})
    block = block_message(params.LoadRequest, 0, pack(common.DTYPE_F32, [1.0, 2.0, 3.0, 4.0] + [0.0] * 60))

    assert call(context, "ParameterService/Load", [{"header": {"model": "json"}}, MessageToDict(block)]) == {}
    joined = call(context, "ParameterService/Join", {"model": "json", "workerName": "curl"})
    assert joined["worldSize"] == 1 and joined["step"] == "1", joined
    data = pack(common.DTYPE_F16, [float("inf"), 0.0, 0.0, 0.0] + [0.0] * 60)
    header = {"model": "json", "epoch": 1, "step": 1, "incarnation": joined["incarnation"], "scaleId": 1,
              "dtype": "DTYPE_F16"}
    pushed = call(context, "ParameterService/Push",
                  [{"header": header}, MessageToDict(block_message(params.PushRequest, 0, data))])["result"]
    assert (pushed["verdict"], pushed["oldScale"], pushed["newScale"]) == ("VERDICT_SKIPPED_OVERFLOW", 1024, 512), pushed
    record = call(context, "ScaleService/GetScale", {"model": "json"})["record"]
    assert record["scale"] == 512 and record["skipped"] == "1", record
    rows = call(context, "ScaleService/ListOverflows", {"model": "json"})["rows"]
    assert (rows[0]["parameter"], rows[0]["workerName"], rows[0]["infCount"]) == ("w", "curl", "1"), rows
    status = call(context, "AdminService/GetStatus", {})
    assert "json" in [found["name"] for found in status["models"]], status


def test_grpcurl_shows_the_reason_of_an_error(context):
    refusal = grpcurl(context, "ampd.v1.ScaleService/GetScale", data=json.dumps({"model": "nobody"}), fails=True)
    for part in ("MODEL_NOT_FOUND", "nobody", '"code": 5'):
        assert part in refusal, refusal


if __name__ == "__main__":
    GRPCURL = fetch("grpcurl")
    run({name: value for name, value in globals().items() if GRPCURL is not None or "grpcurl" not in name})
