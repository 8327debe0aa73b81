#!/usr/bin/python3
"""An ampd client in another language: one worker pushes a gradient with an Inf, the scale halves, the step is skipped.

    examples/overflow.py [HOST:PORT]        (Debian: apt-get install python3-grpcio protobuf-compiler)
    examples/overflow.py --cacert ca.crt --token-file alice.token HOST:PORT

The messages are made from proto/ by protoc into a temporary folder; the calls are plain gRPC.
"""
import argparse
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import threading

try:
    import grpc
except ImportError:
    sys.exit("overflow.py needs grpcio: apt-get install python3-grpcio protobuf-compiler, "
             "and run it with /usr/bin/python3")

PROTO = pathlib.Path(__file__).resolve().parent.parent / "proto"


def load_messages():
    """The modules of ampd.v1, generated from the schema."""
    folder = tempfile.TemporaryDirectory()
    files = sorted(str(path.relative_to(PROTO)) for path in (PROTO / "ampd" / "v1").glob("*.proto"))
    subprocess.run(["protoc", f"-I{PROTO}", f"--python_out={folder.name}", *files], check=True)
    sys.path.insert(0, folder.name)
    from ampd.v1 import common_pb2, model_pb2, parameter_service_pb2, scale_service_pb2
    return folder, common_pb2, model_pb2, parameter_service_pb2, scale_service_pb2


_FOLDER, common, model, params, scales = load_messages()


class Service:
    """Calls of one service by name: Service(channel, "ParameterService", params).Join(...)."""

    def __init__(self, channel, name, module):
        self.channel, self.name, self.module = channel, name, module

    def __getattr__(self, method):
        request = getattr(self.module, method + "Request")
        response = getattr(self.module, method + "Response")
        kind = {"Push": self.channel.stream_unary, "Load": self.channel.stream_unary,
                "Pull": self.channel.unary_stream}.get(method, self.channel.unary_unary)
        call = kind(f"/ampd.v1.{self.name}/{method}", request.SerializeToString, response.FromString)
        return lambda message: call(message, timeout=30, wait_for_ready=True)


def crc32c(data):
    """CRC32C, bit by bit: short and slow, enough for an example."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def keep_alive(service, joined, over):
    """Renews the lease, three times while it runs: a worker that computes for longer than that makes no other call."""
    while not over.wait(joined.lease_ms / 3000):
        try:
            service.KeepAlive(params.KeepAliveRequest(model="hello", rank=joined.rank, incarnation=joined.incarnation))
        except grpc.RpcError:
            pass  # the next call of main says what is wrong


def push(service, joined, pulled, elements, values):
    """Pushes one fp16 block whose first values are given; the rest is zero. Returns the StepResult."""
    data = struct.pack(f"<{elements}e", *values, *([0.0] * (elements - len(values))))

    def requests():
        yield params.PushRequest(header=params.PushHeader(
            model="hello", epoch=pulled.epoch, step=pulled.step, rank=joined.rank, incarnation=joined.incarnation,
            scale_id=pulled.scale_id, dtype=common.DTYPE_F16))
        yield params.PushRequest(index=0, crc32c=crc32c(data), data=data)
        yield params.PushRequest(trailer=params.PushTrailer())

    return service.Push(requests()).result


def pull(service, joined, step):
    """The header of the parameters that `step` computes on, and the first parameters."""
    answers = list(service.Pull(params.PullRequest(model="hello", epoch=joined.epoch, step=step)))
    first = struct.unpack_from("<4e", answers[1].data) if len(answers) > 1 else None
    return answers[0].header, first


class SendToken(grpc.UnaryUnaryClientInterceptor, grpc.StreamUnaryClientInterceptor,
                grpc.UnaryStreamClientInterceptor):
    """Adds the token to each call. (grpcio's own access_token_call_credentials do the same, but over TLS only.)"""

    def __init__(self, token):
        self.metadata = [("authorization", "Bearer " + token)]

    def intercept(self, call, details, request):
        return call(CallDetails(details, self.metadata), request)

    intercept_unary_unary = intercept_stream_unary = intercept_unary_stream = intercept


class CallDetails(grpc.ClientCallDetails):
    def __init__(self, details, metadata):
        self.method, self.timeout, self.credentials = details.method, details.timeout, details.credentials
        self.wait_for_ready = details.wait_for_ready
        self.metadata = (details.metadata or []) + metadata


def connect(options):
    """A channel: TLS if there are authorities for the server's certificate, and with the token in each call."""
    def content(path):
        return pathlib.Path(path).read_bytes() if path else None

    if options.cacert:
        name = [("grpc.ssl_target_name_override", options.server_name)] if options.server_name else []
        credentials = grpc.ssl_channel_credentials(content(options.cacert), content(options.key), content(options.cert))
        channel = grpc.secure_channel(options.address, credentials, name)
    else:
        if options.token_file and not options.address.startswith(("127.", "localhost:", "unix:", "[::1]")):
            sys.exit("the token would go to another machine unencrypted; connect with --cacert")
        channel = grpc.insecure_channel(options.address)
    if options.token_file:
        token = content(options.token_file).decode().strip()
        channel = grpc.intercept_channel(channel, SendToken(token))
    return channel


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("address", nargs="?", default="127.0.0.1:7420", metavar="HOST:PORT")
    parser.add_argument("--cacert", metavar="FILE", help="TLS, with a server certificate by these authorities")
    parser.add_argument("--cert", metavar="FILE", help="TLS, with this client certificate")
    parser.add_argument("--key", metavar="FILE", help="the private key of --cert")
    parser.add_argument("--server-name", metavar="NAME", help="whom the server's certificate is for, if not HOST")
    parser.add_argument("--token-file", metavar="FILE", help="send the token in this file")
    options = parser.parse_args()
    if ":" not in options.address:
        parser.error(f"\"{options.address}\" is not HOST:PORT")
    return options


def main():
    options = parse_options()
    address, channel = options.address, connect(options)
    try:
        grpc.channel_ready_future(channel).result(timeout=5)
    except grpc.FutureTimeoutError:
        sys.exit(f"no server at {address}; start one: ampd --data-dir D --listen {address}")
    service = Service(channel, "ParameterService", params)

    spec = model.ModelSpec(name="hello", parameters=[model.ParameterSpec(name="w", shape=[4])], world_size=1,
                           optimizer=model.OptimizerSpec(kind=model.OPTIMIZER_KIND_SGD, learning_rate=0.5),
                           scaler=model.ScalerSpec(init_scale=1024.0))
    created = service.CreateModel(params.CreateModelRequest(spec=spec))
    print(f"model hello: {'created' if created.created else 'was there'}, "
          f"state {common.ModelState.Name(created.state)}")

    # A block is 65536 elements of the flat space; this model's only block has 64 (each parameter is padded to 64).
    values = struct.pack("<64f", 1.0, 2.0, 3.0, 4.0, *([0.0] * 60))
    service.Load(iter([params.LoadRequest(header=params.LoadHeader(model="hello")),
                       params.LoadRequest(index=0, crc32c=crc32c(values), data=values)]))
    joined = service.Join(params.JoinRequest(model="hello", worker_name="python", instance=random.getrandbits(64)))
    over = threading.Event()
    threading.Thread(target=keep_alive, args=(service, joined, over), daemon=True).start()
    step = joined.step

    header, weights = pull(service, joined, step)
    print(f"step {header.step}: scale {header.scale:g}, parameters {weights}")
    result = push(service, joined, header, 64, [float("inf"), 0.0, 0.0, 0.0])
    print(f"step {result.step}: pushed an Inf: {common.Verdict.Name(result.verdict)}, "
          f"scale {result.old_scale:g} -> {result.new_scale:g}")
    for row in result.overflows:
        print(f"  parameter {row.parameter}, worker {row.worker_name}: {row.inf_count} Inf, first at {row.first_index}")
    assert result.verdict == common.VERDICT_SKIPPED_OVERFLOW
    assert result.new_scale == max(result.old_scale / 2, 1.0)  # 1 is the floor, met when this has run ten times

    header, weights_after = pull(service, joined, step + 1)
    print(f"step {header.step}: scale {header.scale:g}, parameters {weights_after}")
    assert weights_after == weights
    result = push(service, joined, header, 64, [header.scale] * 4)
    print(f"step {result.step}: pushed ones: {common.Verdict.Name(result.verdict)}, norm {result.norm:g}")
    assert result.verdict == common.VERDICT_APPLIED and result.norm == 2.0

    header, weights_after = pull(service, joined, step + 2)
    print(f"step {header.step}: parameters {weights_after}")
    assert weights_after == tuple(value - 0.5 for value in weights)
    record = Service(channel, "ScaleService", scales).GetScale(scales.GetScaleRequest(model="hello")).record
    print(f"scale {record.scale:g}: {record.applied} applied, {record.skipped} skipped")
    over.set()
    service.Leave(params.LeaveRequest(model="hello", rank=joined.rank, incarnation=joined.incarnation))


if __name__ == "__main__":
    try:
        main()
    except grpc.RpcError as error:
        sys.exit(f"overflow.py: {error.code().name}: {error.details()}")
    except OSError as error:
        sys.exit(f"overflow.py: {error}")
