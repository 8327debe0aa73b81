#!/usr/bin/python3
"""Compression, keepalive and connection age as Debian's grpcio sees them: grpcio_life.py ECHO_SERVER PROTO_DIR.

Exit code 0: all passed; 1: a check failed; 77: grpcio is not here.
"""
import collections
import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import unittest

import grpcio_echo as echo  # skips where grpcio is not here

grpc, echo_pb2 = echo.grpc, echo.echo_pb2
Code = grpc.StatusCode
PATIENCE = int(os.environ.get("AMPD_TEST_PATIENCE", "1"))
TIMEOUT_S = 60 * PATIENCE


class Relay:
    """Forwards one connection and counts what the server sends."""

    def __init__(self, port):
        self.received = 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.target = "127.0.0.1:%d" % self.listener.getsockname()[1]
        threading.Thread(target=self.serve, args=(port,), daemon=True).start()

    def serve(self, port):
        client, _ = self.listener.accept()
        with self.listener, client, socket.create_connection(("127.0.0.1", port)) as server:
            back = threading.Thread(target=self.pump, args=(client, server, False), daemon=True)
            back.start()
            self.pump(server, client, True)
            back.join()

    def pump(self, source, sink, count):
        with contextlib.suppress(OSError):
            for data in iter(lambda: source.recv(65536), b""):
                self.received += len(data) if count else 0
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


class SlowRelay(Relay):
    """Forwards FAST bytes as they come, and then PIECE bytes every PAUSE_S."""
    FAST, PIECE, PAUSE_S = 16 << 20, 16384, 0.1

    def pump(self, source, sink, count):
        if not count:
            super().pump(source, sink, count)
            return
        with contextlib.suppress(OSError):
            for data in iter(lambda: source.recv(self.PIECE), b""):
                sink.sendall(data)
                self.received += len(data)
                if self.received > self.FAST:
                    time.sleep(self.PAUSE_S)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


class SlowUpload(Relay):
    """Forwards what the client sends by PIECE bytes every PAUSE_S."""
    PIECE, PAUSE_S = 4096, 0.02

    def pump(self, source, sink, count):
        if count:
            super().pump(source, sink, count)
            return
        with contextlib.suppress(OSError):
            for data in iter(lambda: source.recv(self.PIECE), b""):
                sink.sendall(data)
                time.sleep(self.PAUSE_S)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


class PingRelay(Relay):
    """Counts the server's keepalive PINGs, and forwards the answers to them or does not."""
    OPAQUE = b"keepaliv"  # ping_alive of rpc/h2/life.c
    ANSWER = bytes([0, 0, 8, 6, 1, 0, 0, 0, 0]) + OPAQUE  # a whole frame; it comes in one piece

    def __init__(self, port, answers):
        self.pings, self.answers = 0, answers
        super().__init__(port)

    def pump(self, source, sink, count):
        with contextlib.suppress(OSError):
            for data in iter(lambda: source.recv(65536), b""):
                self.pings += data.count(self.OPAQUE) if count else 0
                sink.sendall(data if count or self.answers else data.replace(self.ANSWER, b""))
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


class Life(unittest.TestCase):
    def serve(self, *settings):
        self.server = server = subprocess.Popen([echo.SERVER, "127.0.0.1:0", *settings], stdout=subprocess.PIPE, text=True)

        def end():
            server.send_signal(signal.SIGTERM)
            server.stdout.close()
            self.assertEqual(server.wait(timeout=60), 0)

        self.addCleanup(end)
        return int(server.stdout.readline().split()[1])

    def stub(self, target, compression=None, **options):
        options = [("grpc." + key.replace("__", "."), value) for key, value in options.items()]
        channel = grpc.insecure_channel(target if isinstance(target, str) else "127.0.0.1:%d" % target,
                                        options=[("grpc.max_receive_message_length", -1), *options],
                                        compression=compression)
        self.addCleanup(channel.close)
        return echo.Stub(channel)

    def refused(self, call, request):
        with self.assertRaises(grpc.RpcError) as caught:
            call(request, timeout=TIMEOUT_S)
        return caught.exception

    # ---- compression ----

    def test_compressed_requests_of_every_kind_are_read(self):
        stub = self.stub(self.serve(), grpc.Compression.Gzip)
        for data in (b"", b"x", bytes(1 << 20), os.urandom(1 << 20), b"abc" * 100000):
            self.assertEqual(stub.unary(echo_pb2.Payload(data=data), timeout=TIMEOUT_S).data, data)
        chunks = [bytes(70000), b"", os.urandom(3000), b"text " * 1000]
        payloads = [echo_pb2.Payload(data=chunk) for chunk in chunks]
        summary = stub.collect(iter(payloads), timeout=TIMEOUT_S)
        self.assertEqual((summary.messages, summary.bytes), (4, sum(map(len, chunks))))
        self.assertEqual(summary.crc32c, echo.crc32c(b"".join(chunks)))
        self.assertEqual([m.data for m in stub.chat(iter(payloads), timeout=TIMEOUT_S)], chunks)
        held = stub.hold(iter(payloads), timeout=TIMEOUT_S)  # paused for a while
        self.assertEqual((held.messages, held.crc32c), (4, summary.crc32c))

    def test_a_message_that_inflates_beyond_the_limit_is_resource_exhausted(self):
        stub = self.stub(self.serve(), grpc.Compression.Gzip)
        # Compressing takes a busy machine seconds, in which the client would not begin HTTP/2: the server gives it five.
        stub.unary(echo_pb2.Payload(), timeout=TIMEOUT_S)
        error = self.refused(stub.unary, echo_pb2.Payload(data=bytes(200 << 20)))
        self.assertEqual(error.code(), Code.RESOURCE_EXHAUSTED)
        self.assertIn("once it is inflated", error.details())

    def test_deflate_is_unimplemented(self):
        stub = self.stub(self.serve(), grpc.Compression.Deflate)
        self.assertEqual(self.refused(stub.unary, echo_pb2.Payload(data=bytes(9000))).code(), Code.UNIMPLEMENTED)

    def test_answers_are_compressed_only_where_the_server_does_it(self):
        for settings, most in (((), None), (("compress=1",), 50000)):
            relay = Relay(self.serve(*settings))
            stub = self.stub(relay.target)
            data = b"The same again. " * 60000
            self.assertEqual(stub.unary(echo_pb2.Payload(data=data), timeout=TIMEOUT_S).data, data)
            noise = os.urandom(5000)
            self.assertEqual(stub.unary(echo_pb2.Payload(data=noise), timeout=TIMEOUT_S).data, noise)
            if most is None:
                self.assertGreater(relay.received, len(data))
            else:
                self.assertLess(relay.received, most)

    # ---- keepalive ----

    PINGING = {"keepalive_time_ms": 200, "keepalive_permit_without_calls": 1, "http2__max_pings_without_data": 0,
               "http2__min_time_between_pings_ms": 200}

    def test_pings_as_often_as_allowed_keep_a_connection(self):
        stub = self.stub(self.serve("min_ping_interval_ms=20"), **self.PINGING)
        stub.sleep(echo_pb2.SleepRequest(ms=2000), timeout=TIMEOUT_S)

    def test_pings_more_often_than_allowed_end_it(self):
        stub = self.stub(self.serve("min_ping_interval_ms=60000"), **self.PINGING)
        # It takes four PINGs; a call that is not cut is OK in the end.
        self.assertEqual(self.refused(stub.sleep, echo_pb2.SleepRequest(ms=30000)).code(), Code.UNAVAILABLE)
        stub.unary(echo_pb2.Payload(), timeout=TIMEOUT_S)  # on a new connection

    def test_a_client_that_works_is_not_counted(self):
        stub = self.stub(self.serve("min_ping_interval_ms=60000"), **self.PINGING)
        until = time.monotonic() + 2
        while time.monotonic() < until:
            stub.unary(echo_pb2.Payload(data=b"x"), timeout=TIMEOUT_S)
            time.sleep(0.02)

    KEEPALIVE = "keepalive_ms=100", f"keepalive_timeout_ms={4000 * PATIENCE}"

    def test_the_servers_pings_are_answered(self):
        relay = PingRelay(self.serve(*self.KEEPALIVE), True)
        self.stub(relay.target).sleep(echo_pb2.SleepRequest(ms=6000 * PATIENCE), timeout=TIMEOUT_S)
        self.assertGreater(relay.pings, 1)

    def test_a_client_whose_answers_to_pings_do_not_come_is_given_up(self):
        relay = PingRelay(self.serve(*self.KEEPALIVE), False)
        error = self.refused(self.stub(relay.target).sleep, echo_pb2.SleepRequest(ms=30000))
        self.assertEqual((error.code(), relay.pings), (Code.UNAVAILABLE, 1))

    def test_a_slow_network_is_not_taken_for_a_client_that_does_not_read(self):
        """The socket is writable again when a third of its buffer is free, which takes longer than write_stall_ms."""
        relay = SlowRelay(self.serve("write_stall_ms=3000"))  # the kernels may be a second without progress
        stream = self.stub(relay.target, http2__lookahead_bytes=1 << 26).repeat(
            echo_pb2.RepeatRequest(messages=400, size=100000), timeout=TIMEOUT_S)
        until = None
        for _ in stream:
            if relay.received > relay.FAST:
                until = until or time.monotonic() + 8
                if time.monotonic() > until:
                    break
        self.assertTrue(until)
        self.assertTrue(stream.is_active())
        stream.cancel()

    def test_a_reader_that_takes_nothing_is_told_so(self):
        stream = self.stub(self.serve("write_stall_ms=1000")).repeat(
            echo_pb2.RepeatRequest(messages=100, size=1 << 20), timeout=TIMEOUT_S)
        next(stream)
        time.sleep(8)
        with self.assertRaises(grpc.RpcError) as caught:
            collections.deque(stream, maxlen=0)
        self.assertEqual(caught.exception.code(), Code.UNAVAILABLE)
        self.assertIn("the answer was taken at less than 1024 bytes a second", caught.exception.details())

    def test_a_server_that_was_stopped_reads_what_came_meanwhile_before_it_calls_it_late(self):
        relay = SlowUpload(self.serve("message_window_ms=3000"))
        data = bytes(1 << 20)  # takes five seconds
        call = self.stub(relay.target).unary.future(echo_pb2.Payload(data=data), timeout=TIMEOUT_S)
        time.sleep(1)
        self.assertFalse(call.done())
        self.server.send_signal(signal.SIGSTOP)
        time.sleep(8)
        self.server.send_signal(signal.SIGCONT)
        self.assertEqual(call.result().data, data)

    # ---- age ----

    def test_the_end_of_an_old_connection_is_not_noticed(self):
        stub = self.stub(self.serve("max_age_ms=200"))
        long = stub.sleep.future(echo_pb2.SleepRequest(ms=1500), timeout=TIMEOUT_S)
        stream = stub.repeat(echo_pb2.RepeatRequest(messages=200, size=100000), timeout=TIMEOUT_S)
        received = threading.Thread(target=lambda: self.assertEqual(sum(1 for _ in stream), 200))
        received.start()
        until = time.monotonic() + 2
        calls = 0
        while time.monotonic() < until:
            self.assertEqual(stub.unary(echo_pb2.Payload(data=b"x"), timeout=TIMEOUT_S).data, b"x")
            calls += 1
        received.join(TIMEOUT_S)
        long.result()
        print("%d calls over some ten connections" % calls)

    def test_a_call_longer_than_age_and_grace_is_cut(self):
        stub = self.stub(self.serve("max_age_ms=200", "max_age_grace_ms=200"))
        self.assertEqual(self.refused(stub.sleep, echo_pb2.SleepRequest(ms=15000)).code(), Code.UNAVAILABLE)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
