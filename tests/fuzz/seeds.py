#!/usr/bin/python3
"""seeds.py OUT: writes the first inputs of the fuzz targets to OUT/<target>/, from which corpora grew (docs/fuzzing.md).

HTTP/2 frames built by hand: whole calls of each kind, and one input for each row of the attack table. What libFuzzer finds
from them is worth more than they are; they only save it the search for the preface, for HPACK and for the paths.
"""
import base64
import gzip
import os
import random
import struct
import sys

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
END_STREAM, END_HEADERS, ACK, PADDED, PRIO = 1, 4, 1, 8, 32


def frame(kind, flags, stream, body=b""):
    return struct.pack(">I", len(body))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + body


def literal(name, value, index=False):
    """A field without Huffman; with incremental indexing or without."""
    name, value = name.encode(), value if isinstance(value, bytes) else value.encode()
    size = bytes((len(value),)) if len(value) < 127 else b"\x7f" + put(len(value) - 127)
    return bytes((0x40 if index else 0, len(name))) + name + size + value


def request(path, *more, index=True, content="application/grpc"):
    block = b"\x83\x86" + literal(":path", path, index) + literal(":authority", "x", index)
    block += literal("te", "trailers", index) + literal("content-type", content, index)
    return block + b"".join(literal(n, v) for n, v in more)


def message(body, flag=0):
    return struct.pack(">BI", flag, len(body)) + body


def call(stream, path, body, *more, end=True):
    return frame(HEADERS, END_HEADERS, stream, request(path, *more)) + frame(DATA, END_STREAM if end else 0, stream, body)


SETTINGS_FRAME = frame(SETTINGS, 0, 0, struct.pack(">HIHI", 4, 1 << 20, 5, 1 << 16))
SETTINGS_ACK = frame(SETTINGS, ACK, 0)
HELLO = PREFACE + SETTINGS_FRAME + SETTINGS_ACK
ANSWER_HEAD = b"\x88" + literal("content-type", "application/grpc", True)


def act(what, size=0):
    return what * 8 + size


def script(*steps):
    return bytes((len(steps),)) + bytes(steps)


def server_seeds():
    """Choices, script, bytes of a client."""
    zipped = gzip.compress(b"\x01" + b"zeros" * 100)
    yield "kinds", HELLO + b"".join(
        call(1 + 2 * i, "/t.T/" + name, message(b"\x00hello") * count)
        for i, (name, count) in enumerate((("Unary", 1), ("Up", 3), ("Down", 1), ("Both", 2), ("Bits", 2), ("None", 1))))
    for mood in range(16):
        body = message(bytes((mood, 5)) + b"abc")
        yield "mood%d" % mood, HELLO + call(1, "/t.T/Both", body, end=False) + call(3, "/t.T/Bits", body) + \
            call(5, "/t.T/Down", body) + frame(DATA, END_STREAM, 1, body) + frame(WINDOW, 0, 0, struct.pack(">I", 1 << 20))
    yield "metadata", HELLO + call(1, "/t.T/Unary", message(b"x"), ("x-text", "\x01echo"), ("x-data-bin", "AAEC,AwQ="),
                                   ("grpc-timeout", "100m"), ("grpc-accept-encoding", "identity, gzip"), ("cookie", "a=b"))
    yield "refused", HELLO + call(1, "/t.T/Unary", message(b"x"), ("x-refuse", "go away"))
    yield "gzip", HELLO + call(1, "/t.T/Bits", message(zipped, 1) * 2, ("grpc-encoding", "gzip")) + \
        call(3, "/t.T/Unary", message(gzip.compress(bytes(100000)), 1), ("grpc-encoding", "gzip"),
             ("grpc-accept-encoding", "gzip")) + call(5, "/t.T/Unary", message(zipped, 1)) + \
        call(7, "/t.T/Both", message(b"\x01" + bytes(1999)), ("grpc-accept-encoding", "gzip"))
    bomb = message(gzip.compress(bytes(4000)), 1)
    yield "bombs", HELLO + call(1, "/t.T/Bits", bomb * 30, ("grpc-encoding", "gzip"))
    yield "proto", HELLO + frame(HEADERS, END_HEADERS, 1, request("/t.T/Unary", content="application/grpc+proto")) + \
        frame(DATA, END_STREAM, 1, message(b"x"))
    yield "slow", HELLO + call(1, "/t.T/Up", message(bytes(4000))[:20], end=False) + call(3, "/t.T/Unary", b"", end=False)
    yield "paused", HELLO + call(1, "/t.T/Bits", message(b"\x04") + message(bytes(1000)) * 3) + call(3, "/t.T/Up", message(b"\x04") * 400)
    yield "services", HELLO + call(1, "/grpc.health.v1.Health/Check", message(b"\x0a\x03t.T")) + \
        call(3, "/grpc.health.v1.Health/Watch", message(b"\x0a\x00")) + call(5, "/grpc.health.v1.Health/List", message(b"")) + \
        call(7, "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
             message(sub(7, b"")) + message(sub(4, b"ampd.v1.GetScaleRequest")) + message(sub(3, b"none.proto")) +
             message(sub(5, sub(1, b"x"))) + message(sub(6, b"x")) + message(sub(1, b"host"))) + \
        call(9, "/grpc.health.v1.Health/Check", message(b"\x0a\x03t.X")) + call(11, "/grpc.health.v1.Health/Watch", message(sub(1, b"?"))) + \
        call(13, "/grpc.health.v1.Health/Check", message(b"\xff"))
    yield "descriptors", HELLO + frame(WINDOW, 0, 0, struct.pack(">I", 1 << 20)) + \
        call(1, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
             message(sub(3, b"ampd/v1/parameter_service.proto")) * 12 + message(b"\xff"))
    yield "unwatched", HELLO + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 0)) + \
        call(1, "/grpc.health.v1.Health/Watch", message(sub(1, b"t.T"))) + frame(WINDOW, 0, 0, struct.pack(">I", 9)) * 20
    bad = (("/t.T/Missing", ()), ("t.T/Unary", ()), ("/t.T/Unary", (("grpc-timeout", "1x"),)),
           ("/t.T/Unary", (("grpc-timeout", "99999999H"),)), ("/t.T/Unary", (("grpc-encoding", "br"),)),
           ("/t.T/Unary", (("x-data-bin", "****"),)), ("/t.T/Unary", (("grpc-timeout", "0n"),)))
    yield "bad", HELLO + b"".join(call(1 + 2 * i, path, message(b"x"), *more) for i, (path, more) in enumerate(bad))
    yield "method", HELLO + frame(HEADERS, 5, 1, b"\x82\x86" + literal(":path", "/t.T/Unary") + literal(":authority", "x")) + \
        frame(HEADERS, 5, 3, b"\x83\x86" + literal(":path", "/t.T/Unary") + literal(":authority", "x") +
              literal("content-type", "application/json")) + frame(HEADERS, 5, 5, request("/t.T/Unary")) + \
        call(7, "/t.T/Unary", message(b"a") + message(b"b")) + call(9, "/t.T/Up", b"\x02\x00\x00\x00\x01x") + \
        call(11, "/t.T/Up", struct.pack(">BI", 0, 1 << 24)) + call(13, "/t.T/Up", message(b"cut")[:6])
    block = request("/t.T/Unary")
    yield "continuation", HELLO + frame(HEADERS, 0, 1, block[:9]) + frame(CONTINUATION, 0, 1, block[9:30]) + \
        frame(CONTINUATION, END_HEADERS, 1, block[30:]) + frame(DATA, END_STREAM | PADDED, 1, b"\x03" + message(b"x") + bytes(3))
    yield "priority", HELLO + frame(HEADERS, END_HEADERS | PRIO | PADDED, 1, b"\x02" + bytes(4) + b"\x10" + block + bytes(2)) + \
        frame(PRIORITY, 0, 3, bytes(5)) * 8
    yield "trailers", HELLO + call(1, "/t.T/Both", message(b"\x01x"), end=False) + frame(HEADERS, 5, 1, literal("x-t", "v"))
    yield "flood_ping", HELLO + frame(PING, 0, 0, bytes(8)) * 12
    yield "flood_settings", HELLO + SETTINGS_FRAME * 12
    yield "flood_reset", HELLO + b"".join(call(i, "/t.T/Both", b"", end=False) + frame(RST, 0, i, bytes(3) + b"\x08")
                                          for i in range(1, 31, 2))
    yield "flood_empty", HELLO + call(1, "/t.T/Up", b"", end=False) + frame(DATA, 0, 1) * 8
    yield "flood_continuation", HELLO + frame(HEADERS, 0, 1, block) + frame(CONTINUATION, 0, 1) * 8
    yield "flood_window", HELLO + frame(WINDOW, 0, 0, struct.pack(">I", 1)) * 60
    yield "flood_unknown", HELLO + frame(77, 0, 0) * 60
    yield "flood_streams", HELLO + b"".join(call(i, "/t.T/Both", b"", end=False) for i in range(1, 81, 2))
    yield "bomb_fields", HELLO + frame(HEADERS, 5, 1, block + literal("x-a", "b", True) + b"\xbe" * 60)
    yield "bomb_bytes", HELLO + b"".join(frame(HEADERS, 5, i, block + literal("x-a", "b" * 120) * 9) for i in (1, 3))
    yield "faults", HELLO + b"".join(call(i, "/t.T/Both", b"", end=False) + frame(WINDOW, 0, i, bytes(4))
                                     for i in range(1, 31, 2))
    yield "goaway", HELLO + call(1, "/t.T/Both", message(b"\x01x"), end=False) + frame(GOAWAY, 0, 0, bytes(8) + b"debug")
    yield "priority_update", HELLO + frame(16, 0, 0, struct.pack(">I", 1) + b"u=1,i") + call(1, "/t.T/Unary", message(b"x"))
    yield "http1", b"GET / HTTP/1.1\r\n\r\n"
    yield "no_settings", PREFACE + frame(PING, 0, 0, bytes(8))


SCRIPTS = (b"\0", script(1, 3, 4, 5), script(act(0, 6), act(3), act(9, 4), act(4, 4), act(10), act(12)),
           script(act(0, 6), act(2, 5), act(14, 5), act(12), act(0, 5)), script(act(1, 6), act(13, 5), act(9, 5), act(11)),
           script(act(0, 7), act(16), act(5), act(0), act(7)), script(act(24, 6), act(25, 5), act(26, 5), act(8), act(8)),
           script(act(0, 6), act(18, 5), act(19, 5), act(7)), script(act(17, 6), act(6, 2), act(8)),
           script(act(6), act(6), act(6), act(9)), script(act(22, 6), act(2, 5), act(10, 6), act(9)))


def answer(stream, body=message(b"\x00an answer"), status=b"0", *more):
    out = frame(HEADERS, END_HEADERS, stream, ANSWER_HEAD + b"".join(literal(n, v) for n, v in more))
    if body:
        out += frame(DATA, 0, stream, body)
    return out + frame(HEADERS, 5, stream, literal("grpc-status", status))


def only(stream, status, *more):
    return frame(HEADERS, 5, stream, ANSWER_HEAD + literal("grpc-status", status) + b"".join(literal(n, v) for n, v in more))


def client_seeds():
    """What a server says; calls are on streams 1, 3, 5, 7."""
    hello = SETTINGS_FRAME + SETTINGS_ACK
    yield "answers", hello + b"".join(answer(i) for i in (1, 3, 5, 7))
    for mood in range(1, 11):
        yield "mood%d" % mood, hello + b"".join(answer(i, message(bytes((mood, 7)) + b"abc") * 2) for i in (1, 3, 5, 7)) + \
            frame(WINDOW, 0, 0, struct.pack(">I", 1 << 20))
    yield "statuses", hello + only(1, "5", ("grpc-message", "not%20there%"), ("grpc-status-details-bin", "CAUSBHRleHQ")) + \
        only(3, "14", ("grpc-retry-pushback-ms", "10")) + only(5, "99") + only(7, "8", ("x-data-bin", "AAEC"), ("x-text", "a"))
    yield "http", hello + b"".join(frame(HEADERS, 5, i, s) for i, s in
                                   ((1, b"\x8d"), (3, b"\x8e"), (5, literal(":status", "503")), (7, b"\x88")))
    for status in ("400", "401", "403", "429", "204", "999", "abc"):
        yield "http" + status, hello + frame(HEADERS, 5, 1, literal(":status", status)) + \
            frame(HEADERS, 5, 3, literal(":status", status) + literal("content-type", "text/plain"))
    details = base64.b64encode(rpc_status()).rstrip(b"=")
    yield "details", hello + only(1, "5", ("grpc-status-details-bin", details)) + \
        only(3, "14", ("grpc-status-details-bin", details), ("grpc-retry-pushback-ms", "-1")) + \
        only(7, "14", ("grpc-retry-pushback-ms", "7"))
    yield "interim", hello + frame(HEADERS, END_HEADERS, 1, literal(":status", "100")) + answer(1) + \
        frame(HEADERS, END_HEADERS, 3, b"\x88" + literal("content-type", "text/html")) + frame(DATA, END_STREAM, 3, b"<html>")
    yield "gzip", hello + answer(1, message(gzip.compress(b"\x00zipped"), 1), b"0", ("grpc-encoding", "gzip")) + \
        answer(3, message(gzip.compress(bytes(60000)), 1), b"0", ("grpc-encoding", "gzip")) + answer(5, message(b"x", 1))
    yield "resets", hello + b"".join(frame(RST, 0, i, struct.pack(">I", code)) for i, code in ((1, 7), (3, 8), (5, 11), (7, 2)))
    yield "goaway", hello + answer(1) + frame(GOAWAY, 0, 0, struct.pack(">II", 3, 0)) + hello + answer(1) + answer(3)
    yield "too_many_pings", hello + frame(GOAWAY, 0, 0, struct.pack(">II", 0, 11) + b"too_many_pings") + hello + answer(1)
    yield "push", hello + frame(PUSH, END_HEADERS, 1, struct.pack(">I", 2) + request("/a"))
    yield "windows", frame(SETTINGS, 0, 0, struct.pack(">HI", 4, 5)) + SETTINGS_ACK + \
        b"".join(frame(WINDOW, 0, i, struct.pack(">I", 300)) for i in (0, 3, 3, 7, 7)) + answer(3) + answer(7)
    yield "few_streams", frame(SETTINGS, 0, 0, struct.pack(">HI", 3, 1)) + SETTINGS_ACK + answer(1) + answer(3)
    yield "no_message", hello + only(1, "0") + answer(3, message(b"a") * 2) + answer(5, b"\0\0\0\0\x09cut") + \
        frame(DATA, END_STREAM, 7, b"")
    yield "large", hello + answer(1, struct.pack(">BI", 0, 100000)) + answer(3, message(bytes(3000)))
    yield "metadata", hello + answer(1, message(b"x"), b"0", *[("x-text", "v" * 100)] * 12)
    yield "ping", hello + frame(PING, 0, 0, bytes(8)) * 10 + frame(PING, ACK, 0, b"keepaliv")


CLIENT_SCRIPTS = (b"\0", script(1, 3, 4, 5), script(act(0, 6), act(3), act(9, 4), act(10), act(14, 4), act(12)),
                  script(act(24, 6), act(26, 5), act(27, 5), act(31, 5)), script(act(17, 6), act(25, 5), act(20), act(21)),
                  script(act(20, 6), act(20, 5), act(28, 5), act(5), act(6), act(7)),
                  script(act(2, 6), act(1, 5), act(16, 5), act(13), act(9), act(11)),
                  script(act(0, 6), act(18, 5), act(19, 5), act(5), act(21), act(8)))


def frame_seeds():
    zipped = gzip.compress(b"hello " * 50)
    yield "plain", script(1, 2, 3) + message(b"") + message(b"hello") + message(b"x" * 300)
    yield "gzip", script(3, 4) + message(zipped, 1) + message(zipped, 1)
    yield "bomb", b"\0" + message(gzip.compress(bytes(100000)), 1)
    yield "names", b"\0" + message(b"\x1f\x8b\x08\x1e" + bytes(6) + b"\x02\x00ab" + b"name\0comment\0" + b"\0\0" + zipped[10:], 1)
    yield "broken", script(2) + message(zipped[:-3] + b"abc", 1) + message(zipped + b"more", 1) + message(b"raw", 1)
    yield "cut", script(1) + message(b"hello", 2)[:7]


def put(value):
    out = b""
    while value > 127:
        out += bytes((value & 127 | 128,))
        value >>= 7
    return out + bytes((value,))


def sub(tag, body):
    return put(tag << 3 | 2) + put(len(body)) + body


def block_seeds():
    def piece(*parts):
        body = b"".join(parts)
        return struct.pack(">H", len(body)) + body
    index, crc, data = b"\x10" + put(70000), b"\x1d" + struct.pack("<I", 0xe3069283), sub(15, b"123456789")
    header = piece(sub(1, b"\x0a\x01m"))
    for choices in range(4):
        steps = script(1, 3, 4) + bytes((choices,))
        yield "order%d" % choices, steps + header + piece(index, crc, data) + piece(crc, index, data) + piece(sub(4, b"\x0a\x01\x05"))
        yield "early%d" % choices, steps + header + piece(data, index, crc) + piece(index, data, crc)
        yield "unknown%d" % choices, steps + header + piece(b"\x28\x7f", index, b"\x35abcd", crc, b"\x31abcdefgh", sub(9, b"z"), data)
    yield "twice", b"\0\0" + header + piece(index, index, crc, data)
    yield "trailer", b"\0\0" + header + piece(sub(4, b"")) + piece(index, crc, data)
    yield "trailers", b"\0\0" + header + piece(sub(4, b"a")) + piece(sub(4, b"b"))
    yield "early_trailer", b"\0\0" + piece(sub(4, b"a"))
    yield "large", b"\0\0" + header + piece(index, crc, b"\x7a" + put(1 << 19), bytes(99))
    yield "varint", b"\0\0" + header + piece(b"\x10" + b"\xff" * 9 + b"\x02", crc, data)
    yield "first", b"\0\0" + piece(index, crc, data)
    yield "wire", b"\0\0" + header + piece(b"\x15abcd")
    yield "empty", b"\0\0" + header + piece(index, crc, sub(15, b""))


def text_seeds():
    def kind(number, text):
        return bytes((number,)) + (text if isinstance(text, bytes) else text.encode())
    for i, text in enumerate(("1H", "99999999H", "100m", "5S", "7u", "8n", "3M", "000000001S")):
        yield "timeout%d" % i, kind(0, text)
    yield "percent", kind(1, b"\0a text: \xc3\xa4 \xe2\x82\xac \xf0\x9f\x98\x80 100% %41%zz\n")
    yield "percent_cut", kind(1, b"\x90\xc3\xa4\xc3\xa4\xc3\xa4")
    yield "base64", kind(2, "AAECAwQFBgc=")
    yield "base64_2", kind(2, "AAECAwQ")
    yield "metadata", kind(3, b"x-data-bin\0AAEC,AwQ=,\0x-text\0a value\0grpc-status\0" b"0\0te\0trailers\0X-Upper\0v\0x-list\0identity, gzip\0x-s\0" b"16\0")
    for i, text in enumerate(("127.0.0.1:7420", "[::1]:80,host:65535", "unix:/run/ampd.sock", "a:1,b:2,unix:/x", "host:99999", ":1")):
        yield "address%d" % i, kind(4, text)
    digest = "0123456789abcdef" * 4
    yield "tokens", kind(5, "# callers\ntoken worker trainer %s expires=2027-01-31\ntoken operator alice %s expires=2028-02-29T23:59:59Z\n"
                         "cert peer ampd-1.example\nuid read *\nuid worker 1000\n" % (digest, digest[::-1]))
    token = "token worker t %s " % digest.upper()
    bad = ("token worker t 123", "token worker t " + "g" * 64, "uid read 4294967295", "cert boss x", "uid read 1 2", "token peer", "cert peer ",
           "uid read x", "what", "a\x01b", "a\0b", token, token + "x", token + "expires=2027-01-32", token + "expires=1969-01-01",
           token + "expires=2027-02-29", token + "expires=2027-01-01T24:00:00Z", token + "expires=2027-01-31 more", "cert read a \t",
           token + "\n" + token, "cert peer a b\ncert read a b", "uid read *\nuid peer *", "uid worker 7\nuid read 7\n", "cert peer " + "n" * 300)
    for i, text in enumerate(bad):
        yield "tokens%d" % i, kind(5, text)
    yield "spec", kind(6, spec())
    yield "shape", kind(6, "[64,512,1]")
    yield "checkpoint", bytes((7, 4)) + header(4)
    yield "checkpoint_plain", bytes((7, 0)) + header(0)
    for i, (old, new) in enumerate((("ampd/1", "ampd/2"), ("ampd/1", "ampd/0"), ("ampd/1", "x"), ('"step":"1"', '"step":""'),
                                    ('"step":"1"', '"step":"-1"'), ('"step":"1"', '"step":"18446744073709551616"'),
                                    ('"growth_tracker":"1"', '"growth_tracker":"4294967296"'), ('"scale_bits":"1199570944"', '"scale_bits":"0"'),
                                    ('"world_size":"1"', '"world_size":"9999999"'), ('"world_size":"1"', '"world_size":"0"'),
                                    ('"F32"', '"F16"'), ("[2,3]", "[3,2]"), ("[0,12]", "[0,12,1]"), ("[0,12]", "[-1,12]"), ("[12,36]", "[8,32]"),
                                    ("[4]", "[0]"), ("[4]", '["x"]'), ("00" * 16, "0g" * 16), ("00" * 16, "00"), ('"b":', '"c":'))):
        yield "checkpoint%d" % i, bytes((7, 4)) + header(4).replace(old.encode(), new.encode(), 1)
    for i, (old, new) in enumerate((('"optimizer":1', '"optimizer":-1'), ('"nesterov":true', '"nesterov":1'), ('"lr":0.5', '"lr":"x"'),
                                    ('"name":"g"', '"name":7'), ('"lr":0.5', '"lr":1e300'), ('"max_steps":1', '"max_steps":-1'),
                                    ('"name":"g"', '"name":"%s"' % ("g" * 300)), ('"groups":[', '"groups":[1,'))):
        yield "spec%d" % i, kind(6, spec().replace(old, new, 1))


def spec():
    numbers = ("optimizer schedule warmup_steps total_steps step_every world_size sync quorum on_loss loss_timeout_ms min_workers weighting "
               "cast cast_overflow max_steps checkpoint_every keep_last durability max_consecutive_overflows floor_policy scaler_policy "
               "scaler_growth_interval scaler_hysteresis").split()
    reals = ("lr beta1 beta2 eps weight_decay momentum dampening step_factor lr_min clip_value clip_max_norm scaler_init_scale scaler_growth_factor "
             "scaler_backoff_factor scaler_min_scale scaler_max_scale").split()
    fields = ['"%s":1' % n for n in numbers] + ['"%s":0.5' % n for n in reals] + ['"nesterov":true', '"weight_decay_set":false']
    return "{" + ",".join(fields) + ',"groups":[{"name":"g","lr_scale":0.5,"weight_decay_set":true,"weight_decay":0.5}]}'


def header(user_state):
    numbers = ("step version scale_id growth_tracker hysteresis_left consecutive_overflows total_overflows steps_since_overflow "
               "attempted applied skipped").split()
    digest = "00" * 16
    meta = ['"%s":"1"' % n for n in numbers] + ['"format":"ampd/1"', '"scale_bits":"1199570944"', '"world_size":"1"']
    at, tensors = 0, []
    for name, shape, size in (("b", "[3]", 12), ("w", "[2,3]", 24), ("w#m", "[2,3]", 24), ("w#v", "[2,3]", 24)):
        tensors.append('"%s":{"dtype":"F32","shape":%s,"data_offsets":[%d,%d]}' % (name, shape, at, at + size))
        meta.append('"hash:%s":"%s"' % (name, digest))
        at += size
    if user_state:
        tensors.append('"user_state#0":{"dtype":"U8","shape":[%d],"data_offsets":[%d,%d]}' % (user_state, at, at + user_state))
        meta.append('"hash:user_state#0":"%s"' % digest)
    return ('{"__metadata__":{%s},%s}' % (",".join(meta), ",".join(tensors))).encode()


def rpc_status():
    """A google.rpc.Status with one of each detail."""
    def any_of(name, inner):
        return sub(3, sub(1, b"type.googleapis.com/google.rpc." + name) + sub(2, inner))
    return b"\x08\x05" + sub(2, b"text") + \
        any_of(b"ErrorInfo", sub(1, b"REASON") + sub(2, b"ampd") + sub(3, sub(1, b"k") + sub(2, b"v"))) + \
        any_of(b"RetryInfo", sub(1, b"\x08\x01\x10\x80\x94\xeb\xdc\x03")) + \
        any_of(b"BadRequest", sub(1, sub(1, b"a.b") + sub(2, b"bad")))


def message_seeds():
    """One for each message, of fields that many of them have; the fuzzer finds the rest by the codec's comparisons."""
    body = b"\x0a\x06digits\x12\x02w0\x18\x03\x20\x01"
    for which in range(64):
        yield "text%d" % which, bytes((which,)) + body
        yield "nested%d" % which, bytes((which,)) + sub(1, sub(1, b"digits") + sub(2, sub(1, b"w") + sub(2, b"\x40\x80\x04")) + b"\x20\x02")
    status = rpc_status()
    files = sub(1, sub(1, b"a.proto") + sub(2, b"p.q") + sub(4, sub(1, b"M") + sub(2, sub(1, b"f")) + sub(4, sub(1, b"E") + sub(2, sub(1, b"V")))) +
                sub(6, sub(1, b"S") + sub(2, sub(1, b"R"))))
    for which in range(64):
        yield "status%d" % which, bytes((which,)) + status
        yield "files%d" % which, bytes((which,)) + b"p.q.M.E.V\0" + files


def peer_seeds():
    """Zeros of every length that a short message has, for each type; records; what a cluster keeps in etcd, and an answer of it."""
    for which in range(1, 33):
        for size in (0, 4, 8, 16, 24, 40, 64, 200, 1000):
            yield "zeros%d-%d" % (which, size), bytes((which,)) + bytes(size)
    record = lambda body: struct.pack("<I", len(body)) + body  # noqa: E731
    for kind in range(1, 7):
        for size in (0, 8, 24, 60, 300):
            yield "item%d-%d" % (kind, size), b"\x40" + record(struct.pack("<I", kind) + bytes(size))
    yield "items", b"\x40" + record(struct.pack("<I", 1) + bytes(28)) + record(struct.pack("<I", 6)) + b"\xff\xff\xff\xff"
    header = sub(1, b"\x08\x01\x10\x02\x18\x07\x20\x03")
    key = sub(1, b"ampd/x/who/0") + b"\x10\x05\x18\x07\x20\x01" + sub(5, b"1 3 0 127.0.0.1:7420") + b"\x30\x09"
    for which in range(65, 70):
        yield "etcd%d" % which, bytes((which,)) + header + sub(2, key) + b"\x20\x01"
        yield "etcd_event%d" % which, bytes((which,)) + header + b"\x10\x01" + sub(11, b"\x08\x01" + sub(2, key) + sub(3, key))
        yield "etcd_txn%d" % which, bytes((which,)) + header + b"\x10\x01" + sub(3, sub(1, header + sub(2, key)))
    for i, text in enumerate((b"1 3 0 127.0.0.1:7420", b"1 3 18446744073709551616 a:1", b"2 x", b"1 3 5 [::1]:80", b"1 0 0 unix:/x", b"1 3 0 ")):
        yield "entry%d" % i, b"\x46" + text
    for i, text in enumerate((b"0", b"9223372036854775807", b"9223372036854775808", b"99999999999999999999", b"1 ", b"")):
        yield "number%d" % i, b"\x47" + text


def core_seeds():
    """Programs (core.c, one_thing): models of each kind that train, with one thing between the steps; and drawn ones."""
    def thing(case, shard=0, rank=0, number=0, *more):
        return bytes((case << 2 | rank << 1 | shard, number) + more)
    push = thing(7, 0, 0, 0, 3) + thing(0)
    between = [b"", thing(7, 0, 0, 0, 255), thing(13) + thing(0), thing(14, 1, 0, 0, 1), thing(15, 0, 0, 0, 4), thing(15, 0, 0, 0, 3),
               thing(16, 0, 1) + thing(16, 0, 0), thing(16, 1, 1) + thing(0) + thing(16, 1, 0), thing(8, 1, 1, 0, 0) + thing(9, 0, 0, 9, 1) + thing(10, 0, 0, 9)]
    between += [thing(11, 0, 0, 0, act, 1, epoch, step) for act in range(4) for epoch in (0, 1) for step in (0, 2)]
    between += [thing(12, shard, 0, 0, ask, 1, 1) for ask in range(6) for shard in (0, 1)]
    between += [thing(2, 0, 0, 0, which, head, 0) for which in range(16) for head in (0, 1, 2, 4)]
    between += [thing(4, shard, 0, 0, kind, 0, 1, 0, 0, 2) for kind in range(32) for shard in (0, 1)]
    for how in (0, 1, 2, 4, 8, 16, 32, 48, 64, 127):
        yield "steps%d" % how, bytes((1, how)) + push * 5
        for i, what in enumerate(between if how in (0, 16, 36) else between[how % 7::7]):
            yield "between%d-%d" % (how, i), bytes((1, how)) + push * 2 + what + thing(1) + thing(1, 1) + thing(6, 0, 0, 0, 3, 1, 0) + push * 2
    draws = random.Random(17)
    for i in range(100):
        yield "drawn%d" % i, bytes((1, draws.randrange(128))) + push + bytes(draws.randrange(256) for _ in range(draws.randrange(20, 300)))


def write(out, target, name, data):
    os.makedirs(os.path.join(out, target), exist_ok=True)
    with open(os.path.join(out, target, name), "wb") as file:
        file.write(data)


def main():
    out = sys.argv[1]
    for target, seeds, scripts in (("http2_server", server_seeds, SCRIPTS), ("http2_client", client_seeds, CLIENT_SCRIPTS)):
        for name, data in seeds():
            for i, steps in enumerate(scripts):
                for choices in (0, 1, 2 + 4 + 8 + 16, 255):
                    write(out, target, "%s-%d-%d" % (name, i, choices), bytes((choices,)) + steps + data)
    for target, seeds in (("grpc_frame", frame_seeds), ("block_reader", block_seeds), ("text", text_seeds), ("messages", message_seeds), ("peer", peer_seeds), ("core", core_seeds)):
        for name, data in seeds():
            write(out, target, name, data)


if __name__ == "__main__":
    main()
