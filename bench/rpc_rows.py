"""rpc_rows.py: the rows rpc_ of bench/run.sh: calls, bulk transfer and idle connections, beside grpc++, nghttpd and
plain sockets.

    rpc_unary_p50_ns, _p99_ns    nanoseconds of a call, median and 99th percentile; the goal is the most
    rpc_rate                     thousands of calls a second; the goal is the least
    rpc_push_, rpc_pull_         GB/s of a transfer of 64 MiB; the goal is the least
    rpc_idle_kib                 KiB of the server's memory for an idle connection; the goal is the most
"""
import os
import re
import shutil
import socket
import subprocess
import sys
import time

from sides import MIB, ROUND_S, START_S, Ampd, Failed, Pump, Side, Skipped, UnixPump, many_files

# 64,000 calls in 16 rounds.
UNARY_CALLS = 4000
RATE_CALLS = 40000
PATH = "/ampd.test.v1.Echo/Unary"


class Echo(Side):
    """The echo server of the conformance tests, which uses only rpc/."""

    def serve(self, *options):
        server = self.spawn(0, self.program("echo_server"), self.address(), *options)
        port = int(self.line(server, START_S).split()[1])
        return server, "127.0.0.1:%d" % port if port > 0 else self.address()

    def address(self):
        return "127.0.0.1:0"


class OneByOne:
    """In front of a Side: one call after another. Nanoseconds of the median, or of the 99th percentile."""

    limits, unit = True, "million calls"
    more = ()  # arguments of the Side

    def __init__(self, programs, which):
        super().__init__(programs, UNARY_CALLS, *self.more)
        self.which = which
        self.amount = UNARY_CALLS / 1e6

    def round(self):
        self.client.stdin.write(b"\n")
        return float(self.line(self.client, ROUND_S).split()[self.which]) * 1e9


class Unary(OneByOne, Echo):
    """Calls on one connection (rpc_unary.c)."""

    def start(self):
        return self.spawn(1, self.program("rpc_unary"), self.serve()[1], str(UNARY_CALLS))


class Exchange(OneByOne, Pump):
    """
    The bytes of a call there and back over plain TCP (tcp_pump.c): each end waits for them in epoll_wait, reads them,
    and writes. Nothing that can have a second connection does less.
    """

    more = ("echo",)


class Grpcpp(Side):
    """A server by grpcpp_peer.cc, with the callback API of grpc++ or the blocking one."""

    def __init__(self, programs, size, what, unix=False, api="callback"):
        super().__init__(programs, size)
        self.what, self.unix, self.api = what, unix, api

    def name(self):
        return "grpc++ %s %s" % (self.api, "unix" if self.unix else "tcp")

    def start(self):
        if not os.access(os.path.join(self.programs, "grpcpp_peer"), os.X_OK):
            raise Skipped("grpc++ is not here (package libgrpc++-dev)")
        address = "unix:" + os.path.join(self.folder, "socket") if self.unix else "127.0.0.1:0"
        mode = ("sync",) if self.api == "sync" else ()
        server = self.spawn(0, self.program("grpcpp_peer"), "serve", address, *mode)
        port = self.line(server, START_S).split()[1]
        target = address if self.unix else "127.0.0.1:" + port
        return self.spawn(1, self.program("grpcpp_peer"), self.what, target, str(self.size))


class GrpcppUnary(OneByOne, Grpcpp):
    more = ("unary",)


class Loaded(Echo):
    """h2load, 8 connections with 32 streams each, against a server: thousands of answers a second."""

    unit = "million calls"

    def __init__(self, programs):
        super().__init__(programs, RATE_CALLS)
        self.amount = RATE_CALLS / 1e6

    def start(self):
        if shutil.which("h2load") is None:
            raise Skipped("h2load is not here (package nghttp2-client)")
        self.body = os.path.join(self.folder, "body")
        with open(self.body, "wb") as file:
            file.write(b"\0\0\0\0\4\x08\1\x10\2")
        self.target = self.serve_load()
        return None

    def serve_load(self):
        return self.serve()[1]

    def round(self):
        command = ["taskset", "-c", str(max(os.sched_getaffinity(0))), "h2load", "-c8", "-m32", "-n", str(RATE_CALLS),
                   "-d", self.body, "-H", "content-type: application/grpc", "-H", "te: trailers",
                   "http://%s%s" % (self.target, PATH)]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=ROUND_S, check=False)
        text = done.stdout.decode()
        rate = re.search(r"finished in .*, ([0-9.]+) req/s", text)
        if rate is None or "%d succeeded" % RATE_CALLS not in text or "status codes: %d 2xx" % RATE_CALLS not in text:
            raise Failed("h2load: not every call was answered\n%s" % text[-1000:])
        return float(rate.group(1)) / 1e3


class Nghttpd(Loaded):
    """nghttpd with one thread: it reads the same request, and answers with as many bytes from a file that it keeps
    open."""

    def serve_load(self):
        nghttpd = shutil.which("nghttpd", path=os.environ.get("PATH", "") + ":/usr/sbin")
        if nghttpd is None:
            raise Skipped("nghttpd is not here (package nghttp2-server)")
        page = os.path.join(self.folder, "docs" + PATH)
        os.makedirs(os.path.dirname(page))
        shutil.copy(self.body, page)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.spawn(0, nghttpd, "--no-tls", "-a", "127.0.0.1", "-d", os.path.join(self.folder, "docs"), str(port))
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    return "127.0.0.1:%d" % port
            time.sleep(0.05)
        raise Failed("nghttpd does not listen")


def bulk(direction):
    """
    The rows of one direction, 64 MiB of fp16 each: a model of one parameter, ampd's checks and staging included. Over
    TCP each of the two grpc++ servers has a row of its own; over a unix socket the better one is the peer. The bound
    of the row over a unix socket, and of the row beside the pump, is a socket alone, from array to array.
    """
    size = 64 * MIB
    push = direction == "push"
    grpcpp = 1.5 if push else 1.1
    return (
        ("rpc_%s_pump" % direction, (Ampd, size, direction), ((Pump, size, direction),), 0.75 if push else 0.80, False,
         ((Pump, size, direction, "arrays"), None)),
        ("rpc_%s_grpcpp_callback" % direction, (Ampd, size, direction),
         ((Grpcpp, size, direction, False, "callback"),), grpcpp, False),
        ("rpc_%s_grpcpp_blocking" % direction, (Ampd, size, direction),
         ((Grpcpp, size, direction, False, "sync"),), grpcpp, False),
        ("rpc_%s_unix_grpcpp" % direction, (Ampd, size, direction, True),
         tuple((Grpcpp, size, direction, True, api) for api in ("callback", "sync")), 1.5, False,
         ((UnixPump, size, direction, "arrays"), None)),
    )


# As ROWS of pairs.py.
PAIRS = (
    ("rpc_unary_p50_ns", (Unary, 0), ((GrpcppUnary, 0),), 0.5, False, ((Exchange, 0), None)),
    ("rpc_unary_p99_ns", (Unary, 1), ((GrpcppUnary, 1),), 0.5, False, ((Exchange, 1), None)),
    ("rpc_rate", (Loaded,), ((Nghttpd,),), 0.8, False),
    *bulk("push"),
    *bulk("pull"),
)

# ---- idle connections ----

IDLE_CONNECTIONS = 10000
IDLE_LIMIT_KIB = 40.0
SETTINGS = b"\0\0\0\4\0\0\0\0\0"
SETTINGS_ACK = b"\0\0\0\4\1\0\0\0\0"


def literal(name, value):
    """A header field without indexing (HPACK)."""
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def call_frames():
    """An empty unary call as stream 1."""
    block = b"\x83\x86" + literal(b":path", PATH.encode()) + literal(b":authority", b"x") + \
        literal(b"content-type", b"application/grpc") + literal(b"te", b"trailers")
    return b"\0" + len(block).to_bytes(2, "big") + b"\1\4\0\0\0\1" + block + b"\0\0\5\0\1\0\0\0\1" + bytes(5)


def call_once(peer):
    """Sends the preface and one call, and reads its answer up to the trailers, as any client does before it is idle."""
    peer.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SETTINGS + call_frames())
    data, ended = b"", False
    while not ended:
        got = peer.recv(4096)
        if not got:
            raise Failed("a connection was closed while it made its call")
        data += got
        while len(data) >= 9 and len(data) >= 9 + int.from_bytes(data[:3], "big"):
            kind, flags = data[3], data[4]
            if kind == 4 and flags & 1 == 0:
                peer.sendall(SETTINGS_ACK)
            ended = ended or (kind == 1 and flags & 1 != 0)
            data = data[9 + int.from_bytes(data[:3], "big"):]


class Idle(Echo):
    """A server that accepts many connections from one address; its resident memory is measured."""

    def start(self):
        limits = ["%s=%d" % (name, 2 * IDLE_CONNECTIONS) for name in ("connections", "connections_per_address")]
        self.server, self.target = self.serve(*limits)
        return None

    def kib(self):
        with open("/proc/%d/status" % self.server.pid, encoding="ascii") as file:
            return int(re.search(r"VmRSS:\s*(\d+) kB", file.read()).group(1))


def measure_idle(programs, name):
    many_files()
    host, port = None, None
    with Idle(programs, IDLE_CONNECTIONS) as side:
        host, port = side.target.rsplit(":", 1)
        peers = []
        try:
            # The memory that the first call allocates once for all is not counted for the connections.
            for count in (1, IDLE_CONNECTIONS):
                before = side.kib()
                for _ in range(count):
                    peers.append(socket.create_connection((host, int(port)), timeout=ROUND_S))
                    call_once(peers[-1])
            each = (side.kib() - before) / IDLE_CONNECTIONS
        finally:
            for peer in peers:
                peer.close()
    verdict = "ok" if each <= IDLE_LIMIT_KIB else "short"
    print("%s\t%.1f\t-\t-\t%.2f\t%s" % (name, each, IDLE_LIMIT_KIB, verdict), flush=True)
    print("# %s: %d connections, each after one call" % (name, IDLE_CONNECTIONS), file=sys.stderr)


# name, and the function that measures and prints it: (programs, name)
MEMORY = (("rpc_idle_kib", measure_idle),)
