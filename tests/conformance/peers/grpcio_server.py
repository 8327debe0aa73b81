#!/usr/bin/python3
"""grpcio_server.py: ampd.test.v1.Echo on Debian's grpcio, for our client. Prints "port N"; ends with SIGTERM."""
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent import futures

try:
    import grpc
    import google.protobuf  # noqa: F401  (needed by the generated code)
except ImportError as error:
    print("SKIPPED: %s (package python3-grpcio)" % error)
    sys.exit(77)

HERE = os.path.dirname(os.path.abspath(__file__))
TEMP = tempfile.TemporaryDirectory()
subprocess.check_call(["protoc", "-I", os.path.dirname(HERE), "--python_out=" + TEMP.name, "echo.proto"])
sys.path.insert(0, TEMP.name)
import echo_pb2 as echo  # noqa: E402

PATTERN = bytes(i % 251 for i in range(4 << 20))


def unary(request, context):
    metadata = context.invocation_metadata()
    initial = tuple((key, value) for key, value in metadata if key == "x-echo-initial")
    context.send_initial_metadata(initial)
    context.set_trailing_metadata(tuple((key, value) for key, value in metadata if key == "x-echo-trailing-bin"))
    return request


def collect(requests, _context):
    summary = echo.Summary()
    for request in requests:
        summary.messages += 1
        summary.bytes += len(request.data)
    return summary


def repeat(request, _context):
    for _ in range(request.messages):
        yield echo.Payload(data=PATTERN[:request.size])


def chat(requests, _context):
    yield from requests


def fail(request, context):
    for _ in range(request.after):
        yield echo.Payload()
    code = next(code for code in grpc.StatusCode if code.value[0] == request.code)
    context.abort(code, request.message)


def sleep(request, context):
    until = time.monotonic() + request.ms / 1000
    while time.monotonic() < until and context.is_active():
        time.sleep(0.01)
    return echo.Payload()


ROWS = {
    "Unary": (grpc.unary_unary_rpc_method_handler, unary, echo.Payload),
    "Collect": (grpc.stream_unary_rpc_method_handler, collect, echo.Payload),
    "Repeat": (grpc.unary_stream_rpc_method_handler, repeat, echo.RepeatRequest),
    "Chat": (grpc.stream_stream_rpc_method_handler, chat, echo.Payload),
    "Fail": (grpc.unary_stream_rpc_method_handler, fail, echo.FailRequest),
    "Sleep": (grpc.unary_unary_rpc_method_handler, sleep, echo.SleepRequest),
}


def main():
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=16),
                         options=[("grpc.max_receive_message_length", -1), ("grpc.so_reuseport", 0)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(
        "ampd.test.v1.Echo",
        {name: make(behaviour, request.FromString, lambda m: m.SerializeToString())
         for name, (make, behaviour, request) in ROWS.items()}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    print("port %d" % port, flush=True)
    signal.sigwait([signal.SIGTERM])
    server.stop(0).wait()


main()
