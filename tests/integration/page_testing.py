"""What the tests of the page share: a server with a port for HTTP, requests, events, and a history of any length."""
import contextlib
import http.client
import json
import math
import random
import re
import socket
import sqlite3
import time

from ampd_testing import CALL_TIMEOUT_S, Api, Layout, common, eventually, load_messages, model, params, spec

STRAGGLER_STEPS, STRAGGLER_MS = 8, 200  # AMPD_STRAGGLER_STEPS and _MS
METRICS_PORT = re.compile(r"metrics and health\" address=[\d.]+:(\d+)")


def http_port(server):
    return int(METRICS_PORT.findall(server.log())[-1])  # of its last start


def page_server(context, *options, listen="127.0.0.1:0"):
    """A server with a free port for HTTP, which is its `http_port`."""
    server = context.server("--metrics-listen", listen, *options)
    server.http_port = http_port(server)
    return server


def get(server, path, headers=None, method="GET", host="127.0.0.1", source=""):
    """(status, headers, text). source: this machine's address to ask from, as which the system chooses one."""
    connection = http.client.HTTPConnection(host, server.http_port, timeout=CALL_TIMEOUT_S, source_address=(source, 0))
    with contextlib.closing(connection):
        connection.request(method, path, headers=headers or {})
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()


def ask(server, path, headers=None):
    """What an answer says; it is to be one."""
    status, _, text = get(server, path, headers)
    assert status == 200, (path, status, text)
    return json.loads(text)


def straggle(server, workers):
    """Trains the server's one model until the second of two workers is known as slow."""
    def long_awaited():
        made, = ask(server, "/api/status")["models"]
        return made["awaited_ms"] > max(STRAGGLER_MS, made["open_ms"] / 2)

    for _ in range(STRAGGLER_STEPS):
        for worker in workers:
            worker.pull()
        first = workers[0].start_push({"w": [1.0] * 4})
        eventually(long_awaited, "rank 1 is awaited for most of the step")
        workers[1].push({"w": [1.0] * 4})
        workers[0].step = first.result().result.step + 1


class Events:
    """An event stream, read piece by piece."""

    def __init__(self, server, path="/api/events", headers=None):
        self.connection = http.client.HTTPConnection("127.0.0.1", server.http_port, timeout=CALL_TIMEOUT_S)
        self.connection.request("GET", path, headers=headers or {})
        self.answer = self.connection.getresponse()
        self.status = self.answer.status

    def next(self):
        """(event, data); None: the stream has ended."""
        event = data = None
        while line := self.answer.readline():
            line = line.decode().rstrip("\n")
            if line.startswith("event: "):
                event = line[len("event: "):]
            elif line.startswith("data: "):
                data = json.loads(line[len("data: "):])
            elif not line and event is not None:
                return event, data
        return None

    def until(self, wanted):
        """The data of the next event of this name."""
        until = time.monotonic() + CALL_TIMEOUT_S
        while time.monotonic() < until:
            found = self.next()
            assert found is not None, f"the stream ended before {wanted}"
            if found[0] == wanted:
                return found[1]
        raise AssertionError(f"no event {wanted}")

    def close(self):
        self.connection.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def scaler(**fields):
    return model.ScalerSpec(init_scale=65536.0, **fields)


def loaded_at(server, name, step, scale=65536.0, skipped=0, growth_tracker=0, **fields):
    """A model that goes on after `step`, as one does that comes from elsewhere: its history below is empty."""
    api = Api(server.channel)
    made = api.CreateModel(spec=spec(name, **fields)).spec
    layout = Layout(made)
    record = common.ScaleRecord(policy=made.scaler.policy, scale=scale, scale_id=9, growth_tracker=growth_tracker,
                                hysteresis_left=1, total_overflows=skipped, attempted=step,
                                steps_since_overflow=step if skipped == 0 else 5, applied=step - skipped,
                                skipped=skipped)
    tensors = {n: [0.5] * size for n, size in zip(layout.names, layout.sizes)}
    api.Load(list(load_messages(layout, name, tensors, load=7, state=params.LoadState(
        step=step, version=step - skipped, record=record))))
    return made


COLUMNS = ("model_id,epoch,step,sequence,kind,parent_epoch,parent_step,verdict,tries,contributors_hash,contributors,"
           "scale,scale_id,after_scale,after_scale_id,growth_tracker,hysteresis_left,consecutive_overflows,"
           "total_overflows,steps_since_overflow,attempted,applied,skipped,coefficient,norm,clip,lr,version,"
           "overflow_params,inf_total,"
           "nan_total,rows_count,durable_step,cut,superseded,at_us,loss_workers,loss,"
           "apply_us,pull_us,wait_us,push_us,vote_us").split(",")
SHARES = (0.09, 0.07, 0.6, 0.21)  # of a step's time: apply, pull, wait, push; vote has the rest


def split(step_us):
    """Of a step that stood still the workers computed for so long."""
    apply, pull, wait, push = (int(min(step_us, 5e5) * share) for share in SHARES)
    wait += max(0, step_us - 500000)
    return {"apply_us": apply, "pull_us": pull, "wait_us": wait, "push_us": push,
            "vote_us": step_us - apply - pull - wait - push}


def history(rows, seed=1, seconds=0.35, skipped=(), interval=1500, losses=True):
    """Rows 1 to `rows` as training with a dynamic scale leaves them: dicts of the columns that differ. Steps of
    `skipped` are skipped, and whichever come where the scale has grown too high. Ends now."""
    draw = random.Random(seed)
    scale, tracker, applied, overflows, made = 65536.0, 0, 0, 0, []
    now_us = int(time.time() * 1e6)
    at_us, times = now_us, []
    for step in range(rows, 0, -1):
        slow = 1.35 if rows * 0.55 < step < rows * 0.72 else 1.0
        times.append(at_us)
        at_us -= int(1e6 * seconds * slow * (0.93 + 0.14 * draw.random() + (2.5 if draw.random() < 0.002 else 0)))
    times.reverse()
    for step in range(1, rows + 1):
        over = step in skipped or scale > 2 ** 18 and draw.random() < 0.02 or draw.random() < 1 / 30000
        before = scale
        if over:
            scale, tracker, overflows = scale / 2, 0, overflows + 1
        else:
            tracker, applied = tracker + 1, applied + 1
            if tracker == interval:
                scale, tracker = scale * 2, 0
        warm = min(1.0, step / (0.02 * rows + 1))
        norm = (0.6 + 5.5 * math.exp(-step / (rows * 0.08))) * math.exp(draw.gauss(0, 0.16))
        rate = 3e-4 * warm * 0.5 * (1 + math.cos(math.pi * step / (rows * 1.1)))
        made.append({"step": step, "verdict": 2 if over else 1, "scale": before, "after_scale": scale,
                     "growth_tracker": tracker, "consecutive_overflows": int(over), "total_overflows": overflows,
                     "attempted": step, "applied": applied, "skipped": overflows, "norm": 0.0 if over else norm,
                     "clip": 0.0 if over else min(1.0, 1.0 / norm), "lr": 0.0 if over else rate, "version": applied,
                     "overflow_params": int(over) * 2, "inf_total": int(over) * 18, "nan_total": int(over) * 3,
                     "rows_count": int(over) * 2, "at_us": times[step - 1], "loss_workers": int(losses), "loss":
                     (2.1 + 8.5 * math.exp(-step / (rows * 0.12))) * math.exp(draw.gauss(0, 0.02)) if losses else None,
                     **split(times[step - 1] - times[step - 2] if step > 1 else 0)})
    return made


def put_history(server, name, made):
    """Writes rows of `history` below the first step of a model that was loaded behind them. The skipped steps."""
    fixed = {"epoch": 1, "sequence": 0, "kind": 1, "parent_epoch": 0, "parent_step": 0, "tries": 1,
             "contributors_hash": 0, "contributors": b"", "scale_id": 1, "after_scale_id": 1, "hysteresis_left": 1,
             "steps_since_overflow": 0, "coefficient": 1.0, "durable_step": 0, "cut": 0, "superseded": 0}
    with contextlib.closing(sqlite3.connect(server.data_dir / "ampd.db", timeout=60)) as store, store:
        fixed["model_id"], = store.execute("SELECT id FROM models WHERE name=?", (name,)).fetchone()
        store.executemany(f"INSERT INTO steps({','.join(COLUMNS)}) VALUES({','.join('?' * len(COLUMNS))})",
                          ([{**fixed, **row}[column] for column in COLUMNS] for row in made))
        skipped = [row["step"] for row in made if row["verdict"] == 2]
        store.executemany("INSERT INTO overflows VALUES(?,1,?,?,?,?,?,?,?,?)",
                          [(fixed["model_id"], step, at, at, 1, 16 if at else 2, 3 * at, 4 * at + 1, 60000.0 + at)
                           for step in skipped for at in (0, 1)])
    return skipped


@contextlib.contextmanager
def raw(server, data=b"", receive_bytes=None):
    with contextlib.closing(socket.socket()) as connection:
        if receive_bytes is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        connection.settimeout(CALL_TIMEOUT_S)
        connection.connect(("127.0.0.1", server.http_port))
        connection.sendall(data)
        yield connection
