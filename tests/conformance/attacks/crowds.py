#!/usr/bin/python3
"""Many connections that together take what one may not: places, memory of unfinished messages, time to inflate. Against ampd.

    crowds.py BIN_DIR [NAME ...]      AMPD_TEST_LONG=1 of the environment: as many as a server takes
"""
import collections
import gzip
import os
import pathlib
import re
import socket
import ssl
import struct
import sys
import threading
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "integration"))
from ampd_testing import CALL_TIMEOUT_S, PATIENCE, Api, eventually, model, params, run, scales, spec  # noqa: E402
from auth_testing import Authority, TlsServer, TokenFile, command  # noqa: E402

LONG = bool(os.environ.get("AMPD_TEST_LONG"))
PLACES = 256                 # arpc_limits.unadmitted
LEAST_S = 1.1                # unadmitted_least_ms
CONNECTIONS = 1024 if LONG else 300  # without a call
ADDRESSES = range(2, 19)  # 127.0.0.2 and so on
OWN = 1                   # 127.0.0.1: that of the honest client, which a NAT may share with others
HONEST_S = 1.0 * PATIENCE
PUSHED_OUT_S = min(5 * PATIENCE, 20)  # before the 30 s are over that everybody has
STREAMS = 250
SETTLE = 50  # looks at the memory, one each 20 ms: all that was sent has come then
HALVES = 64 if LONG else 16  # connections with unfinished messages
GROWTH_MAX = 64 << 20
QUARANTINE = 512 << 20       # what a sanitizer keeps of freed memory
UNFINISHED = 32 << 20        # arpc_limits.unfinished
BURST = 16 << 20             # inflated_burst and inflated_per_s
BOMB = 890 << 10             # nearly the largest that CreateModel takes
BOMBERS = 64 if LONG else 20
READERS = 16 if LONG else 2  # connections that read histories
ROWS = 1000
DATA, HEADERS, SETTINGS, GOAWAY, WINDOW_UPDATE = 0, 1, 4, 7, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
FRAME_MAX = 16384
FRESH_S = 0.15  # HTTP_FRESH_MS
METRICS_PORT = re.compile(r"metrics and health\" address=127\.0\.0\.1:(\d+)")
METRIC = re.compile(r'^ampd_client_abuses_total\{cause="(\w+)"\} (\d+)', re.M)


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + payload


def length(size):
    """An integer of HPACK with a prefix of seven bits, below 16511."""
    return bytes((size,)) if size < 127 else bytes((127, (size - 127) % 128 | 128, (size - 127) // 128))


def field(name, value):
    return b"\0" + length(len(name)) + name + length(len(value)) + value


def request(stream, path, *fields):
    """HEADERS of a call, nothing of it in HPACK's table."""
    block = b"".join([field(b":method", b"POST"), field(b":scheme", b"https"), field(b":path", path.encode()),
                      field(b":authority", b"x"), field(b"te", b"trailers"), field(b"content-type", b"application/grpc"),
                      *fields])
    return frame(HEADERS, END_HEADERS, stream, block)


def data(stream, payload, end=False):
    parts = [payload[at:at + FRAME_MAX] for at in range(0, len(payload), FRAME_MAX)] or [b""]
    return b"".join(frame(DATA, END_STREAM if end and part is parts[-1] else 0, stream, part) for part in parts)


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(SETTINGS, 0, 0) + frame(SETTINGS, ACK, 0)
WIDE = PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 30)) + frame(WINDOW_UPDATE, 0, 0, struct.pack(">I", 1 << 30))
WATCH = PREFACE + request(1, "/grpc.health.v1.Health/Watch") + data(1, bytes(5), end=True)


def connect(port, address):
    return socket.create_connection(("127.0.0.1", port), CALL_TIMEOUT_S, (f"127.0.0.{address}", 0))


def unadmitted(port, address, setup):
    """A TLS connection with one watch of the health; None: it was not let in."""
    plain = connect(port, address)
    try:
        connection = setup.wrap_socket(plain)
        connection.sendall(WATCH)
        return connection
    except OSError:
        plain.close()
        return None


def kinds(text):
    """The types of the frames in what a server has sent."""
    at, found = 0, []
    while at + 9 <= len(text):
        found.append(text[at + 3])
        at += 9 + int.from_bytes(text[at:at + 3], "big")
    return found


def unverified():
    setup = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    setup.check_hostname, setup.verify_mode = False, ssl.CERT_NONE
    setup.set_alpn_protocols(["h2"])
    return setup


def rss(server):
    with open(f"/proc/{server.process.pid}/status", encoding="ascii") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmRSS"))


def guarded(context):
    """A TLS server that asks for tokens, and how a worker calls it."""
    authority, tokens = Authority(context.work / f"authority-{context.count}"), TokenFile(context)
    token = tokens.client_file(tokens.new("worker"))
    server = TlsServer(context, authority, "--token-file", tokens.path, "--metrics-listen", "127.0.0.1:0")
    endpoint = ("ampctl", "--endpoint", f"tls://localhost:{server.port}", "--cacert", authority.cert, "--token-file", token)

    def call():
        """A new process, its connection and its call: in seconds."""
        began = time.monotonic()
        command(context.bin_dir, *endpoint, "status")
        return time.monotonic() - began
    return server, call


def abuses(server):
    """The counts of ampd_client_abuses_total by cause; a scrape may be as old as FRESH_S."""
    time.sleep(FRESH_S)
    address = "127.0.0.1:" + METRICS_PORT.search(server.log())[1]
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=CALL_TIMEOUT_S) as answer:
        return collections.Counter({cause: int(count) for cause, count in METRIC.findall(answer.read().decode())})


def test_connections_without_a_call_that_was_let_in_keep_no_worker_out(context):
    server, call = guarded(context)
    call()
    setup = unverified()
    crowd = [unadmitted(server.port, ADDRESSES[index % len(ADDRESSES)], setup) for index in range(CONNECTIONS)]
    slowest = max(call() for _ in range(5))
    print(f"{CONNECTIONS} connections, {sum(map(bool, crowd))} of them let in; the slowest call: {slowest:.3f} s", flush=True)
    assert slowest < HONEST_S, f"a call took {slowest:.2f} s beside {CONNECTIONS} connections without one"
    counts = abuses(server)
    assert counts["unadmitted"] > 0 and counts["connections"] == 0, counts
    for connection in filter(None, crowd):
        connection.close()


def test_as_many_addresses_as_places_keep_no_worker_out(context):
    server, call = guarded(context)
    crowd = [socket.create_connection(("127.0.0.1", server.port), CALL_TIMEOUT_S, (f"127.0.{1 + index // 200}.{1 + index % 200}", 0))
             for index in range(PLACES)]
    assert max(call() for _ in range(5)) < HONEST_S
    assert abuses(server)["unadmitted"] > 0  # all places were taken
    for connection in crowd:
        connection.close()


def test_a_crowd_that_comes_back_as_often_as_it_is_ended_keeps_no_worker_out(context):
    server, call = guarded(context)
    setup, over = unverified(), threading.Event()

    def come_back(address):
        kept = []
        while not over.is_set():
            kept.append(unadmitted(server.port, address, setup))
            if len(kept) > CONNECTIONS // len(ADDRESSES):
                oldest = kept.pop(0)
                if oldest is not None:
                    oldest.close()
        for connection in filter(None, kept):
            connection.close()
    threads = [threading.Thread(target=come_back, args=(address,)) for address in ADDRESSES]
    for thread in threads:
        thread.start()
    try:
        eventually(lambda: abuses(server)["unadmitted"] > 0, "the places are taken")
        times = [call() for _ in range(5)]
    finally:
        over.set()
        for thread in threads:
            thread.join()
    print(f"calls took {[round(each, 3) for each in times]} s", flush=True)
    assert sorted(times)[2] < HONEST_S


def test_who_shares_the_address_of_a_crowd_gets_in_and_the_oldest_is_told_that_it_goes(context):
    server, call = guarded(context)
    setup = unverified()
    crowd = [unadmitted(server.port, OWN, setup) for _ in range(PLACES)]
    time.sleep(LEAST_S)
    assert call() < HONEST_S
    crowd += [unadmitted(server.port, OWN, setup) for _ in range(3)]  # what the test's start has left open may be older than the crowd
    crowd[0].settimeout(PUSHED_OUT_S)
    assert GOAWAY in kinds(b"".join(iter(lambda: crowd[0].recv(65536), b"")))
    for connection in filter(None, crowd):
        connection.close()


def growth_max(context):
    sanitized = b"__asan_init" in (context.bin_dir / "ampd").read_bytes()
    return GROWTH_MAX + (QUARANTINE if sanitized else 0)


def grown(server, first):
    """What `HALVES` connections that send `first` and wait let the server's memory grow by, at most, and what it has ended."""
    Api(server.channel).GetStatus()
    before, most = rss(server), 0
    connections = []
    for index in range(HALVES):
        connections.append(connect(server.port, ADDRESSES[index % 4]))
        connections[-1].settimeout(CALL_TIMEOUT_S)
        connections[-1].sendall(first)
        most = max(most, rss(server))
    for _ in range(SETTLE):
        most = max(most, rss(server))
        assert Api(server.channel).GetStatus().version
        time.sleep(0.02)
    counts = abuses(server)
    for connection in connections:
        connection.close()
    return most - before, counts


def halves(path, size, sent, start=b""):
    """250 calls, each with a message that claims `size` bytes, of which `sent` come."""
    body = b"\0" + struct.pack(">I", size) + start + bytes(sent - len(start))
    return PREFACE + b"".join(request(2 * i + 1, path) + data(2 * i + 1, body) for i in range(STREAMS))


def test_unfinished_messages_of_many_connections_take_little_memory(context):
    """Small methods have small messages; a large one is collected here, a block that is out of order in its reader."""
    part = params.PushRequest(data=bytes(200000)).SerializeToString()[:5]
    rows = {"GetModel": halves("/ampd.v1.ParameterService/GetModel", 4096, 4000),
            "CreateModel": halves("/ampd.v1.ParameterService/CreateModel", BOMB, 60000),
            "Push": halves("/ampd.v1.ParameterService/Push", 200005, 60000, part)}
    for name, first in rows.items():
        growth, counts = grown(context.server("--metrics-listen", "127.0.0.1:0"), first)
        print(f"{name}: {HALVES} connections x {STREAMS} half messages: {growth >> 20} MiB, {counts['unfinished']} ended", flush=True)
        assert growth < growth_max(context), f"{name}: the memory grew by {growth >> 20} MiB"
        assert counts["unfinished"] > 0 or HALVES * len(first) < UNFINISHED, name


def test_calls_that_wait_take_a_small_part_beside_the_tensors(context):
    """Loads of one model, of which all but the first wait, each with a part of its first block."""
    server = context.server("--metrics-listen", "127.0.0.1:0", "--memory-max", "128M")  # an eighth of it for those that wait
    context.model("m", server, load=False)
    text = params.LoadRequest(header=params.LoadHeader(model="m")).SerializeToString()
    message = b"\0" + struct.pack(">I", len(text)) + text + b"\0" + struct.pack(">I", 200000)
    first = PREFACE + b"".join(request(2 * i + 1, "/ampd.v1.ParameterService/Load") + data(2 * i + 1, message + bytes(60000))
                               for i in range(STREAMS))
    growth, counts = grown(server, first)
    print(f"Load: {HALVES} connections x {STREAMS} that wait: {growth >> 20} MiB, {counts['waiting']} ended", flush=True)
    assert growth < growth_max(context) and counts["waiting"] > 0


def test_calls_that_send_nothing_take_a_small_part_beside_the_tensors(context):
    """Each with nearly as much metadata as one may have, which is kept of it."""
    server = context.server("--metrics-listen", "127.0.0.1:0", "--memory-max", "128M")
    metadata = field(b"authorization", b"v" * 7000)
    first = PREFACE + b"".join(request(2 * i + 1, "/ampd.v1.ParameterService/Push", metadata) for i in range(STREAMS))
    growth, counts = grown(server, first)
    print(f"Push: {HALVES} connections x {STREAMS} that send nothing: {growth >> 20} MiB, {counts['open']} ended", flush=True)
    assert growth < growth_max(context) and counts["open"] > 0


def asked(path, message, start=PREFACE):
    """250 whole calls."""
    body = b"\0" + struct.pack(">I", message.ByteSize()) + message.SerializeToString()
    return start + b"".join(request(2 * i + 1, path) + data(2 * i + 1, body, end=True) for i in range(STREAMS))


def test_answers_that_nobody_reads_take_little_memory(context):
    """Each is of nearly the largest size that a specification has."""
    large = spec("m", [(f"p{index:099}", [1]) for index in range(8000)])
    for name, start in {"little window": PREFACE, "every window": WIDE}.items():
        server = context.server("--metrics-listen", "127.0.0.1:0", "--memory-max", "256M")  # a sixteenth of it for answers
        Api(server.channel).CreateModel(spec=large)
        growth, counts = grown(server, asked("/ampd.v1.ParameterService/GetModel", params.GetModelRequest(model="m"), start))
        print(f"{HALVES} connections x {STREAMS} answers, {name}: {growth >> 20} MiB, {counts['unsent']} ended", flush=True)
        assert growth < growth_max(context) and counts["unsent"] > 0  # without a bound it is 500 MiB


def test_questions_about_a_step_take_little_memory_while_they_wait(context):
    server = context.server("--metrics-listen", "127.0.0.1:0")
    context.model("m", server)
    growth, _ = grown(server, asked("/ampd.v1.ScaleService/ExplainStep", scales.ExplainStepRequest(model="m", step=1)))
    print(f"ExplainStep: {HALVES} connections x {STREAMS} questions: {growth >> 20} MiB", flush=True)
    assert growth < growth_max(context) - GROWTH_MAX + HALVES * STREAMS * 6144


def test_pages_of_the_history_that_nobody_reads_take_little_memory(context):
    """An answer takes a tenth of the rows that it was made of."""
    server = context.server("--metrics-listen", "127.0.0.1:0", "--memory-max", "256M")  # a sixteenth of it for answers
    worker = context.model("m", server).worker()
    for _ in range(ROWS):
        worker.train({"w": [0.0] * 4})
    first = asked("/ampd.v1.ScaleService/ListScaleHistory", scales.ListScaleHistoryRequest(model="m", page_size=ROWS))
    growth, counts = grown(server, first)
    print(f"ListScaleHistory: {HALVES} connections x {STREAMS} pages: {growth >> 20} MiB, {counts['unsent']} ended", flush=True)
    assert growth < growth_max(context)


def bombard(port, address, message, counts):
    """Sends the message on 16 streams; adds to counts what became of them, by grpc-status."""
    with connect(port, address) as connection:
        connection.settimeout(CALL_TIMEOUT_S)
        body = b"\1" + struct.pack(">I", len(message)) + message
        packed = field(b"grpc-encoding", b"gzip")
        connection.sendall(PREFACE + b"".join(
            request(2 * i + 1, "/ampd.v1.ParameterService/CreateModel", packed) + data(2 * i + 1, body, end=True) for i in range(16)))
        text = b""
        while kinds(text).count(HEADERS) < 16:
            more = connection.recv(65536)
            if not more:
                break
            text += more
        counts.append(kinds(text).count(HEADERS))


def test_messages_that_inflate_are_paid_for_by_their_address(context):
    server = context.server("--metrics-listen", "127.0.0.1:0")
    large = model.ModelSpec(name="m", parameters=[model.ParameterSpec(name="p" * 100, shape=[1])] * 9000)
    message = gzip.compress(params.CreateModelRequest(spec=large).SerializeToString()[:BOMB - 1000], 9)
    answered, began = [], time.monotonic()
    for _ in range(BOMBERS):
        bombard(server.port, ADDRESSES[0], message, answered)
    took = time.monotonic() - began
    refused = abuses(server)["inflated"]
    served = sum(answered) - refused
    print(f"{BOMBERS} connections x 16 messages of {len(message)} bytes: {served} inflated, {refused} refused, {took:.2f} s", flush=True)
    assert sum(answered) == 16 * BOMBERS
    assert served <= 1.1 * (BURST + BURST * took) / (BOMB - 1000 - 16 * len(message)) + 2, (served, refused, took)
    # Another address is not asked to pay.
    bombard(server.port, ADDRESSES[1], message, answered)
    assert abuses(server)["inflated"] <= refused + 1


def read_all(port, first):
    """Has all calls answered."""
    with connect(port, ADDRESSES[0]) as connection:
        connection.settimeout(CALL_TIMEOUT_S)
        connection.sendall(first)
        text, answers = bytearray(), 0
        while answers < STREAMS:
            text += connection.recv(1 << 20)
            at = 0
            while at + 9 <= len(text) and at + 9 + int.from_bytes(text[at:at + 3], "big") <= len(text):
                answers += text[at + 3] == HEADERS and bool(text[at + 4] & END_STREAM)
                at += 9 + int.from_bytes(text[at:at + 3], "big")
            del text[:at]


def test_a_crowd_that_reads_the_history_keeps_nobody_else_from_it(context):
    server = context.server()
    worker = context.model("m", server).worker()
    for _ in range(ROWS):
        worker.train({"w": [0.0] * 4})
    first = asked("/ampd.v1.ScaleService/ListScaleHistory", scales.ListScaleHistoryRequest(model="m", page_size=ROWS), WIDE)
    crowd = [threading.Thread(target=read_all, args=(server.port, first)) for _ in range(READERS)]
    began, slowest, api = time.monotonic(), 0, Api(server.channel)
    for thread in crowd:
        thread.start()
    while any(thread.is_alive() for thread in crowd):
        asked_at = time.monotonic()
        api.ListScaleHistory(model="m", page_size=1)
        slowest = max(slowest, time.monotonic() - asked_at)
        time.sleep(0.02)
    total = time.monotonic() - began
    print(f"the slowest page beside {READERS * STREAMS} others: {slowest:.3f} s of {total:.3f} s", flush=True)
    assert slowest < total / 4, (slowest, total)


if __name__ == "__main__":
    run(globals())
