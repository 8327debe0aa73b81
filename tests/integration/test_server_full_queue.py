#!/usr/bin/python3
"""A connection that many pulls of a slow client have filled: what else is asked on it is answered all the same.

    test_server_full_queue.py BIN_DIR [NAME ...]
"""
import contextlib
import pathlib
import struct
import sys

from ampd_testing import BLOCK_ELEMENTS, CALL_TIMEOUT_S, params, run, scales

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "conformance" / "attacks"))
from crowds import DATA, END_STREAM, HEADERS, PREFACE, connect, data, frame, request  # noqa: E402

WINDOW_UPDATE = 8
BLOCKS, NAMES = 9, 4000
PULLS = 100      # each queues 1 MiB, and the connection takes 64
LARGE = 400000   # bytes of the answer of GetModel, at least
PARAMETERS, SCALES = "/ampd.v1.ParameterService/", "/ampd.v1.ScaleService/"
WINDOW = 65535   # of a connection, at first
STEPS = 20
PULL, OTHER = 1, 2 * PULLS + 1  # streams


def call(stream, path, message):
    text = message.SerializeToString()
    return request(stream, path) + data(stream, b"\0" + struct.pack(">I", len(text)) + text, end=True)


def window(stream, size):
    return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", size))


class Reader:
    """What comes on each stream of a connection."""

    def __init__(self, connection):
        self.connection, self.text, self.data, self.ended = connection, b"", {}, set()

    def read_until(self, condition):
        while not condition():
            more = self.connection.recv(1 << 20)
            assert more, "the server closed the connection"
            self.text += more
            while len(self.text) >= 9 and len(self.text) >= 9 + int.from_bytes(self.text[:3], "big"):
                size, kind, flags = int.from_bytes(self.text[:3], "big"), self.text[3], self.text[4]
                stream, payload = int.from_bytes(self.text[5:9], "big"), self.text[9:9 + size]
                self.text = self.text[9 + size:]
                if kind == DATA:
                    self.data[stream] = self.data.get(stream, b"") + payload
                if kind in (DATA, HEADERS) and flags & END_STREAM:
                    self.ended.add(stream)

    def messages(self, stream):
        text, count = self.data.get(stream, b""), 0
        while len(text) >= 5:
            text = text[5 + int.from_bytes(text[1:5], "big"):]
            count += 1
        return count


@contextlib.contextmanager
def filled(context, server):
    """(connection, reader): the pulls wait for windows, and more than the connection may queue for them."""
    names = [(f"p{index:099}", [1]) for index in range(NAMES)]
    context.model("m", server, parameters=[("w", [BLOCKS * BLOCK_ELEMENTS]), *names])
    pull = params.PullRequest(model="m", latest=True)
    with connect(server.port, 1) as connection:
        connection.settimeout(CALL_TIMEOUT_S)
        connection.sendall(PREFACE + b"".join(call(PULL + 2 * i, PARAMETERS + "Pull", pull) for i in range(PULLS)))
        reader = Reader(connection)
        reader.read_until(lambda: sum(map(len, reader.data.values())) >= WINDOW)
        yield connection, reader


def test_a_large_answer_comes_beside_pulls_that_fill_the_connection(context):
    server = context.server()
    with filled(context, server) as (connection, reader):
        connection.sendall(call(OTHER, PARAMETERS + "GetModel", params.GetModelRequest(model="m")) +
                           window(0, 1 << 30) + window(OTHER, 1 << 30))
        reader.read_until(lambda: OTHER in reader.ended)
        size = len(reader.data.get(OTHER, b""))
        assert size > LARGE, size


def test_a_watch_goes_on_beside_pulls_that_fill_the_connection(context):
    server = context.server()
    worker = context.model("small", server).worker()
    for _ in range(STEPS):
        worker.train({"w": [0.0] * 4})
    with filled(context, server) as (connection, reader):
        connection.sendall(call(OTHER, SCALES + "WatchSteps", scales.WatchStepsRequest(model="small", from_step=1)) +
                           window(0, 1 << 30) + window(OTHER, 1 << 30))
        reader.read_until(lambda: OTHER in reader.ended or reader.messages(OTHER) >= STEPS)
        assert OTHER not in reader.ended, f"the watch ended after {reader.messages(OTHER)} rows"


if __name__ == "__main__":
    run(globals())
