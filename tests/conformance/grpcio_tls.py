#!/usr/bin/python3
"""TLS with others: echo_server with Debian's grpcio and `openssl s_client`, and echo_call with a server of grpcio.

grpcio_tls.py ECHO_SERVER ECHO_CALL. Exit code 0: all passed; 1: a check failed; 77: grpcio or openssl is not here.
"""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
from concurrent import futures

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # it would print each handshake that is meant to fail
try:
    import grpc
except ImportError as error:
    print("SKIPPED: grpcio_tls: %s (package python3-grpcio)" % error)
    sys.exit(77)
if shutil.which("openssl") is None:
    print("SKIPPED: grpcio_tls: openssl is not here (package openssl)")
    sys.exit(77)

SERVER, CALL = sys.argv[1], sys.argv[2]
TEMP = tempfile.TemporaryDirectory()
ECHO = "/ampd.test.v1.Echo/"
CHUNK = 1 << 20
BULK = 16


def certificates(name):
    folder = os.path.join(TEMP.name, name)
    os.mkdir(folder)
    subprocess.check_call(["sh", os.path.join(os.path.dirname(os.path.abspath(__file__)), "certificates.sh"), folder])
    return folder


OURS, OTHERS = certificates("ours"), certificates("others")


def path(folder, name):
    return os.path.join(folder, name)


def read(folder, name):
    with open(path(folder, name), "rb") as file:
        return file.read()


def varint(value):
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def payload(data):
    return b"\x0a" + varint(len(data)) + data


class Echo:
    """echo_server, and channels to it."""

    def __init__(self, *files):
        self.process = subprocess.Popen([SERVER, "127.0.0.1:0", *files], stdout=subprocess.PIPE, text=True)
        self.port = self.process.stdout.readline().split()[1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout=60)
        self.process.stdout.close()
        assert code == 0, "echo_server ended with %d" % code

    def channel(self, ca, own=None):
        key, chain = (read(own, "client.key"), read(own, "client.pem")) if own else (None, None)
        credentials = grpc.ssl_channel_credentials(read(ca, "ca.pem"), key, chain)
        return grpc.secure_channel("127.0.0.1:" + self.port, credentials,
                                   options=[("grpc.max_receive_message_length", -1)])

    def reload(self):
        self.process.send_signal(signal.SIGHUP)
        return self.process.stdout.readline().strip()


class GrpcioClient(unittest.TestCase):
    def hello(self, channel):
        return channel.unary_unary(ECHO + "Unary")(payload(b"hello"), timeout=60)

    def refused(self, channel):
        with self.assertRaises(grpc.RpcError) as caught:
            self.hello(channel)
        self.assertEqual(caught.exception.code(), grpc.StatusCode.UNAVAILABLE)

    def test_calls_and_streams_over_tls(self):
        with Echo(path(OURS, "server.pem"), path(OURS, "server.key")) as echo, echo.channel(OURS) as channel:
            self.assertEqual(self.hello(channel), payload(b"hello"))
            chunk = payload(bytes(CHUNK))
            summary = channel.stream_unary(ECHO + "Collect")((chunk for _ in range(BULK)), timeout=60)
            self.assertIn(b"\x08" + varint(BULK) + b"\x10" + varint(BULK * CHUNK), summary)
            request = b"\x08" + varint(BULK) + b"\x10" + varint(CHUNK)
            want = payload(bytes(i % 251 for i in range(CHUNK)))
            got = list(channel.unary_stream(ECHO + "Repeat")(request, timeout=60))
            self.assertEqual((len(got), set(got)), (BULK, {want}))

    def test_clients_need_a_certificate_of_the_authority(self):
        with Echo(path(OURS, "server.pem"), path(OURS, "server.key"), path(OURS, "ca.pem")) as echo:
            with echo.channel(OURS, OURS) as channel:
                self.assertEqual(self.hello(channel), payload(b"hello"))
            for own in (None, OTHERS):
                with echo.channel(OURS, own) as channel:
                    self.refused(channel)

    def test_an_unknown_authority_and_plaintext_are_unavailable(self):
        with Echo(path(OURS, "server.pem"), path(OURS, "server.key")) as echo:
            with echo.channel(OTHERS) as channel:
                self.refused(channel)
            with grpc.insecure_channel("127.0.0.1:" + echo.port) as channel:
                self.refused(channel)
            with echo.channel(OURS) as channel:
                self.assertEqual(self.hello(channel), payload(b"hello"))

    def test_a_reload_while_a_stream_goes_on(self):
        live = path(TEMP.name, "live")
        shutil.copytree(OURS, live)
        with Echo(path(live, "server.pem"), path(live, "server.key")) as echo, echo.channel(OURS) as old:
            stream = old.unary_stream(ECHO + "Repeat")(b"\x08" + varint(64) + b"\x10" + varint(CHUNK), timeout=60)
            next(stream)
            os.truncate(path(live, "server.pem"), 100)
            self.assertIn("live/server.pem cannot be used", echo.reload())
            for name in ("server.pem", "server.key"):
                shutil.copy(path(OTHERS, name), path(live, name))
            self.assertEqual(echo.reload(), "reloaded")
            with echo.channel(OTHERS) as new:
                self.assertEqual(self.hello(new), payload(b"hello"))
            self.assertEqual(sum(1 for _ in stream), 63)
            self.assertEqual(self.hello(old), payload(b"hello"))


class OpensslClient(unittest.TestCase):
    def s_client(self, echo, *args):
        done = subprocess.run(["openssl", "s_client", "-connect", "127.0.0.1:" + echo.port, "-CAfile",
                               path(OURS, "ca.pem"), "-verify_return_error", *args],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
                              timeout=60, check=False)
        return done.stdout + done.stderr

    def test_versions_and_protocols(self):
        with Echo(path(OURS, "server.pem"), path(OURS, "server.key")) as echo:
            for version, name in (("-tls1_2", "TLSv1.2"), ("-tls1_3", "TLSv1.3")):
                out = self.s_client(echo, version, "-alpn", "h2")
                self.assertIn("ALPN protocol: h2", out)
                self.assertIn(name, out)
                self.assertIn("Verify return code: 0 (ok)", out)
                self.assertIn("Compression: NONE", out)
                self.assertNotIn("Post-Handshake New Session Ticket", out)
            for args in ((), ("-alpn", "http/1.1")):
                self.assertIn("alert no application protocol", self.s_client(echo, *args))
            out = self.s_client(echo, "-tls1_1", "-cipher", "DEFAULT@SECLEVEL=0", "-alpn", "h2")
            self.assertIn("alert protocol version", out)
            out = self.s_client(echo, "-tls1_2", "-cipher", "ECDHE-ECDSA-AES128-SHA", "-alpn", "h2")
            self.assertIn("handshake failure", out)


class GrpcioServer(unittest.TestCase):
    """Our client with it."""

    @classmethod
    def setUpClass(cls):
        def repeat(request, _):
            assert request == b"\x08" + varint(BULK) + b"\x10" + varint(CHUNK)
            return (payload(bytes(CHUNK)) for _ in range(BULK))

        cls.server = grpc.server(futures.ThreadPoolExecutor(max_workers=4),
                                 options=[("grpc.max_receive_message_length", -1)])
        cls.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("ampd.test.v1.Echo", {
            "Unary": grpc.unary_unary_rpc_method_handler(lambda request, _: request),
            "Collect": grpc.stream_unary_rpc_method_handler(lambda requests, _: b"%d" % sum(map(len, requests))),
            "Repeat": grpc.unary_stream_rpc_method_handler(repeat),
        }),))
        pair = ((read(OURS, "server.key"), read(OURS, "server.pem")),)
        cls.open_port = cls.server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials(pair))
        cls.closed_port = cls.server.add_secure_port(
            "127.0.0.1:0", grpc.ssl_server_credentials(pair, read(OURS, "ca.pem"), True))
        cls.plain_port = cls.server.add_insecure_port("127.0.0.1:0")
        cls.server.start()

    @classmethod
    def tearDownClass(cls):
        cls.server.stop(None).wait()

    def call(self, port, mib, *files):
        done = subprocess.run([CALL, "127.0.0.1:%d" % port, str(mib), *files], capture_output=True, text=True,
                              timeout=60, check=False)
        self.assertEqual(done.stderr, "")
        return done.stdout.splitlines()[-1]

    def test_calls_and_streams_over_tls(self):
        self.assertEqual(self.call(self.open_port, 0, path(OURS, "ca.pem")), "status 0: ")
        self.assertEqual(self.call(self.open_port, BULK, path(OURS, "ca.pem")), "status 0: ")

    def test_a_certificate_is_shown_to_a_server_that_demands_one(self):
        own = (path(OURS, "client.pem"), path(OURS, "client.key"))
        self.assertEqual(self.call(self.closed_port, 0, path(OURS, "ca.pem"), *own), "status 0: ")
        self.assertRegex(self.call(self.closed_port, 0, path(OURS, "ca.pem")), "status 14: .*certificate")

    def test_servers_that_do_not_fit_are_told_apart(self):
        self.assertRegex(self.call(self.open_port, 0, path(OTHERS, "ca.pem")),
                         "status 14: .*is not signed by an authority that is trusted here")
        self.assertRegex(self.call(self.plain_port, 0, path(OURS, "ca.pem")),
                         "status 14: .*(does not use TLS|closed the connection)")
        self.assertRegex(self.call(self.open_port, 0), "status 14: ")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=1)
