#!/usr/bin/python3
"""Drives echo_server by Debian's grpcio: grpcio_echo.py ECHO_SERVER PROTO_DIR [--quick].

Exit code 0: all passed; 1: a check failed; 77: grpcio is not here.
"""
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

try:
    import grpc
    import google.protobuf  # noqa: F401  (needed by the generated code)
except ImportError as error:
    print("SKIPPED: %s (package python3-grpcio)" % error)
    sys.exit(77)

SERVER, PROTO_DIR = sys.argv[1], sys.argv[2]
QUICK = "--quick" in sys.argv
BULK = (8 if QUICK else 64) << 20
CHUNK = 1 << 20


def generate(directory):
    here = os.path.dirname(os.path.abspath(__file__))
    subprocess.check_call(["protoc", "-I", here, "-I", PROTO_DIR, "--python_out=" + directory, "echo.proto",
                           "grpc/health/v1/health.proto"])
    # grpc/ of the generated code would hide the grpc package itself.
    os.rename(os.path.join(directory, "grpc"), os.path.join(directory, "generated"))
    sys.path.insert(0, directory)
    sys.path.insert(0, os.path.join(directory, "generated", "health", "v1"))


TEMP = tempfile.TemporaryDirectory()
generate(TEMP.name)
import echo_pb2  # noqa: E402
import health_pb2  # noqa: E402

IDENTITY = {"request_serializer": lambda m: m.SerializeToString()}


def table():
    poly, rows = 0x82F63B78, []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (poly if value & 1 else 0)
        rows.append(value)
    return rows


TABLE = table()


def crc32c(data, crc=0):
    crc ^= 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


class Stub:
    def __init__(self, channel):
        def make(kind, name, request, response, service="ampd.test.v1.Echo"):
            return getattr(channel, kind)("/%s/%s" % (service, name), request_serializer=request.SerializeToString,
                                          response_deserializer=response.FromString)
        p = echo_pb2
        self.unary = make("unary_unary", "Unary", p.Payload, p.Payload)
        self.missing = make("unary_unary", "Missing", p.Payload, p.Payload)
        self.nowhere = make("unary_unary", "Nowhere", p.Payload, p.Payload)
        self.no_service = make("unary_unary", "Unary", p.Payload, p.Payload, "no.such.Service")
        self.collect = make("stream_unary", "Collect", p.Payload, p.Summary)
        self.hold = make("stream_unary", "Hold", p.Payload, p.Summary)
        self.repeat = make("unary_stream", "Repeat", p.RepeatRequest, p.Payload)
        self.chat = make("stream_stream", "Chat", p.Payload, p.Payload)
        self.fail = make("unary_stream", "Fail", p.FailRequest, p.Payload)
        self.sleep = make("unary_unary", "Sleep", p.SleepRequest, p.Payload)
        self.count = make("unary_unary", "Count", p.Payload, p.Counters)
        self.unary_as_stream = make("stream_unary", "Unary", p.Payload, p.Payload)
        h = health_pb2
        self.check = make("unary_unary", "Check", h.HealthCheckRequest, h.HealthCheckResponse, "grpc.health.v1.Health")
        self.list = make("unary_unary", "List", h.HealthListRequest, h.HealthListResponse, "grpc.health.v1.Health")
        self.watch = make("unary_stream", "Watch", h.HealthCheckRequest, h.HealthCheckResponse,
                          "grpc.health.v1.Health")


class Echo(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = subprocess.Popen([SERVER], stdout=subprocess.PIPE, text=True)
        cls.target = "127.0.0.1:" + cls.server.stdout.readline().split()[1]
        cls.channel = grpc.insecure_channel(cls.target, options=[("grpc.max_receive_message_length", -1)])
        cls.stub = Stub(cls.channel)

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()
        if cls.server.poll() is None:
            cls.server.send_signal(signal.SIGTERM)
        cls.server.stdout.close()
        assert cls.server.wait(timeout=60) == 0, "echo_server ended with %d" % cls.server.returncode

    def status(self, call, *args, **kwargs):
        with self.assertRaises(grpc.RpcError) as caught:
            result = call(*args, timeout=60, **kwargs)
            if not isinstance(result, (echo_pb2.Payload, echo_pb2.Summary)):
                list(result)
        return caught.exception

    def test_unary_messages_come_back(self):
        for size in (0, 1, 5, 16383, 16384, 65536, 1 << 20, 3 << 20):
            data = os.urandom(size)
            self.assertEqual(self.stub.unary(echo_pb2.Payload(data=data), timeout=60).data, data)

    def test_metadata_comes_back_in_order_and_binary_too(self):
        metadata = (("x-echo-initial", "one"), ("x-echo-initial", "two"), ("x-echo-trailing-bin", b"\x00\xff\xab"),
                    ("x-dropped", "three"))
        _, call = self.stub.unary.with_call(echo_pb2.Payload(), metadata=metadata, timeout=60)
        initial = [value for key, value in call.initial_metadata() if key == "x-echo-initial"]
        trailing = [value for key, value in call.trailing_metadata() if key == "x-echo-trailing-bin"]
        self.assertEqual(initial, ["one", "two"])
        self.assertEqual(trailing, [b"\x00\xff\xab"])

    def test_unknown_methods_and_services_and_rows_without_handler_are_unimplemented(self):
        for call in (self.stub.missing, self.stub.nowhere, self.stub.no_service):
            self.assertEqual(self.status(call, echo_pb2.Payload()).code(), grpc.StatusCode.UNIMPLEMENTED)

    def test_status_and_message_arrive_whatever_they_contain(self):
        text = "\t\r\n line %41 \u00fc \u4e16\u754c \U0001f600 end"
        for code in range(1, 17):
            error = self.status(self.stub.fail, echo_pb2.FailRequest(code=code, message=text))
            self.assertEqual((error.code().value[0], error.details()), (code, text))

    def test_status_after_messages_arrives_after_them(self):
        call = self.stub.fail(echo_pb2.FailRequest(code=10, message="late", after=3), timeout=60)
        got = []
        with self.assertRaises(grpc.RpcError) as caught:
            for message in call:
                got.append(message)
        self.assertEqual((len(got), caught.exception.code()), (3, grpc.StatusCode.ABORTED))

    def test_details_hold_the_whole_status(self):
        error = self.status(self.stub.fail, echo_pb2.FailRequest(code=9, message="no", reason="MODEL_DONE", retry_ms=1500))
        details = dict(error.trailing_metadata())["grpc-status-details-bin"]
        for part in (b"\x08\x09", b"MODEL_DONE", b"ampd", b"google.rpc.ErrorInfo", b"google.rpc.RetryInfo", b"key",
                     b"value"):
            self.assertIn(part, details)

    def test_a_message_over_the_row_limit_is_refused_by_its_prefix(self):
        error = self.status(self.stub.unary, echo_pb2.Payload(data=bytes(5 << 20)))
        self.assertEqual(error.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)

    def test_unary_with_no_or_two_messages_is_unimplemented(self):
        for messages in ([], [echo_pb2.Payload(), echo_pb2.Payload()]):
            error = self.status(self.stub.unary_as_stream, iter(messages))
            self.assertEqual(error.code(), grpc.StatusCode.UNIMPLEMENTED)

    def test_client_stream_of_64_mib_arrives(self):
        chunk = os.urandom(1 << 10) * (CHUNK >> 10)
        count = BULK // CHUNK
        start = time.monotonic()
        summary = self.stub.collect((echo_pb2.Payload(data=chunk) for _ in range(count)), timeout=60)
        print("grpcio pushes %d MiB in %.3f s" % (BULK >> 20, time.monotonic() - start))
        self.assertEqual((summary.messages, summary.bytes), (count, BULK))

    def test_client_stream_checksum(self):
        chunks = [os.urandom(size) for size in (0, 1, 70000, 16384, 3)]
        summary = self.stub.collect((echo_pb2.Payload(data=chunk) for chunk in chunks), timeout=60)
        self.assertEqual(summary.bytes, sum(map(len, chunks)))
        self.assertEqual(summary.crc32c, crc32c(b"".join(chunks)))

    def test_server_stream_of_64_mib_arrives(self):
        pattern = bytes(i % 251 for i in range(CHUNK))
        start = time.monotonic()
        count = 0
        for message in self.stub.repeat(echo_pb2.RepeatRequest(messages=BULK // CHUNK, size=CHUNK), timeout=60):
            self.assertEqual(message.data, pattern)
            count += 1
        print("grpcio pulls %d MiB in %.3f s" % (BULK >> 20, time.monotonic() - start))
        self.assertEqual(count, BULK // CHUNK)

    def test_many_small_messages_keep_their_order(self):
        sent = [b"%d" % i for i in range(2000)]
        got = [m.data for m in self.stub.chat((echo_pb2.Payload(data=d) for d in sent), timeout=60)]
        self.assertEqual(got, sent)

    def test_chat_goes_back_and_forth(self):
        go = threading.Semaphore(1)

        def requests():
            for i in range(20):
                go.acquire()
                yield echo_pb2.Payload(data=b"%d" % i)

        for i, message in enumerate(self.stub.chat(requests(), timeout=60)):
            self.assertEqual(message.data, b"%d" % i)
            go.release()

    def test_deadline_is_told_to_both_sides(self):
        before = self.stub.count(echo_pb2.Payload(), timeout=60).cancelled
        for timeout in (0.2, 1, 5, 25):  # on a busy machine it may pass before the server has heard of the call
            with self.assertRaises(grpc.RpcError) as caught:
                self.stub.sleep(echo_pb2.SleepRequest(ms=60000), timeout=timeout)
            self.assertEqual(caught.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED)
            time.sleep(0.2)
            if self.stub.count(echo_pb2.Payload(), timeout=60).cancelled > before:
                return
        self.fail("the handler was not told")

    def test_cancel_is_told_to_the_handler(self):
        before = self.stub.count(echo_pb2.Payload(), timeout=60).cancelled
        call = self.stub.sleep.future(echo_pb2.SleepRequest(ms=60000), timeout=60)
        self.wait_for(lambda c: c.open >= 2)  # the sleeper, and Count itself
        call.cancel()
        self.wait_for(lambda c: c.cancelled > before)

    def test_cancel_after_the_first_response(self):
        before = self.stub.count(echo_pb2.Payload(), timeout=60).cancelled
        call = self.stub.repeat(echo_pb2.RepeatRequest(messages=1 << 40, size=1000), timeout=60)
        next(iter(call))
        call.cancel()
        self.wait_for(lambda c: c.cancelled > before)

    def wait_for(self, condition):
        for _ in range(3000):
            if condition(self.stub.count(echo_pb2.Payload(), timeout=60)):
                return
            time.sleep(0.02)
        self.fail("the handler was not told")

    def test_a_held_call_does_not_block_others(self):
        chunk = bytes(1 << 20)
        count = 4 if QUICK else 24
        held = [self.stub.hold.future((echo_pb2.Payload(data=chunk) for _ in range(count)), timeout=60)
                for _ in range(4)]
        self.assertEqual(self.stub.unary(echo_pb2.Payload(data=b"through"), timeout=60).data, b"through")
        for call in held:
            self.assertEqual(call.result().bytes, count << 20)

    def test_100_concurrent_calls(self):
        calls = [(i, self.stub.unary.future(echo_pb2.Payload(data=b"%d" % i * 1000), timeout=60)) for i in range(100)]
        for i, call in calls:
            self.assertEqual(call.result().data, b"%d" % i * 1000)

    def test_100_concurrent_sleepers_share_one_connection(self):
        start = time.monotonic()
        calls = [self.stub.sleep.future(echo_pb2.SleepRequest(ms=300), timeout=60) for _ in range(100)]
        for call in calls:
            call.result()
        self.assertGreaterEqual(time.monotonic() - start, 0.3)

    def test_health(self):
        h = health_pb2
        serving = h.HealthCheckResponse.SERVING
        for name in ("", "ampd.test.v1.Echo"):
            self.assertEqual(self.stub.check(h.HealthCheckRequest(service=name), timeout=60).status, serving)
        with self.assertRaises(grpc.RpcError) as caught:
            self.stub.check(h.HealthCheckRequest(service="nobody"), timeout=60)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.NOT_FOUND)
        statuses = self.stub.list(h.HealthListRequest(), timeout=60).statuses
        self.assertEqual({k: v.status for k, v in statuses.items()}, {"": serving, "ampd.test.v1.Echo": serving})
        watch = self.stub.watch(h.HealthCheckRequest(service="nobody"), timeout=60)
        self.assertEqual(next(iter(watch)).status, h.HealthCheckResponse.SERVICE_UNKNOWN)
        watch.cancel()

    def test_large_metadata_is_refused(self):
        error = self.status(self.stub.unary, echo_pb2.Payload(), metadata=(("x-big", "v" * 9000),))
        self.assertEqual(error.code(), grpc.StatusCode.RESOURCE_EXHAUSTED)


class Drain(unittest.TestCase):
    def test_drain_turns_health_finishes_calls_and_ends(self):
        server = subprocess.Popen([SERVER], stdout=subprocess.PIPE, text=True)
        channel = grpc.insecure_channel("127.0.0.1:" + server.stdout.readline().split()[1])
        stub = Stub(channel)
        watch = iter(stub.watch(health_pb2.HealthCheckRequest(), timeout=60))
        self.assertEqual(next(watch).status, health_pb2.HealthCheckResponse.SERVING)
        sleeper = stub.sleep.future(echo_pb2.SleepRequest(ms=600), timeout=60)
        while stub.count(echo_pb2.Payload(), timeout=60).open < 2:  # the sleeper, and Count itself
            time.sleep(0.02)
        server.send_signal(signal.SIGTERM)
        self.assertEqual(next(watch).status, health_pb2.HealthCheckResponse.NOT_SERVING)
        sleeper.result()
        self.assertEqual(server.wait(timeout=60), 0)
        server.stdout.close()
        channel.close()


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
