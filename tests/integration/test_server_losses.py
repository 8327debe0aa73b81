#!/usr/bin/python3
"""Loss and metrics: what workers tell with their pushes is in the row of the step, and stays there.

    test_server_losses.py BIN_DIR [NAME ...]
"""
import csv
import io
import json
import math
import os
import re
import sqlite3
import subprocess

from ampd_testing import PATIENCE, Code, common, eventually, params, refused, run, scales
from test_server_shards import Cluster

APPLIED, OVERFLOW = common.VERDICT_APPLIED, common.VERDICT_SKIPPED_OVERFLOW
INF, NAN = math.inf, math.nan
TIMEOUT_S = 60 * PATIENCE


def told(loss=None, **metrics):
    trailer = params.PushTrailer(metrics=[common.Metric(name=name, value=value) for name, value in metrics.items()])
    if loss is not None:
        trailer.loss = loss
    return trailer


def start(worker, trailer, value=0.0):
    """A push with this trailer; None: with none, as a client sends that does not know of losses."""
    messages = [worker.push_header(), *worker.blocks({"w": [value] * 4})]
    if trailer is not None:
        messages.append(params.PushRequest(trailer=trailer))
    return worker.api.start("Push", messages)


def step(workers, trailers, value=0.0):
    for worker in workers:
        worker.pull()
    calls = [start(worker, trailer, value) for worker, trailer in zip(workers, trailers)]
    results = [call.result().result for call in calls]
    for worker, result in zip(workers, results):
        worker.step = result.step + 1
    return results[0].verdict


def ampctl(context, server, *arguments):
    command = [context.bin_dir / "ampctl", "--endpoint", f"127.0.0.1:{server.port}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def watched(context, server, *arguments):
    """What a watch shows of the first three steps: a line each, behind the titles."""
    command = [context.bin_dir / "ampctl", "--endpoint", f"127.0.0.1:{server.port}", *arguments, "--from", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:
        text = "".join(watch.stdout.readline() for _ in range(4))
        watch.terminate()
    return text


def short(row):
    """(loss, who told it, {metric: (value, who told it)}); a loss as text, for NaN is not itself."""
    return (repr(row.loss) if row.HasField("loss") else None, row.loss_workers,
            {one.name: (one.value, one.workers) for one in row.metrics})


def test_the_row_has_the_mean_of_what_workers_tell(context):
    workers = context.model(world_size=3).workers(3)
    model = workers[0].model
    assert step(workers, [told(3.0, accuracy=0.5), None, told(5.0, accuracy=0.25, depth=7.0)]) == APPLIED
    assert step(workers, [None, told(), None]) == APPLIED
    assert step(workers, [told(1.0), told(INF), told(2.0)], INF) == OVERFLOW
    assert step(workers, [told(1.0), told(NAN), None]) == APPLIED
    wanted = [("4.0", 2, {"accuracy": (0.375, 2), "depth": (7.0, 1)}), (None, 0, {}), ("inf", 3, {}), ("nan", 2, {})]
    assert [short(row) for row in model.step_rows()] == wanted
    watched = model.api.start("WatchSteps", model=model.name, from_step=1)
    rows = []
    while len(rows) < 4:
        row = watched.next().row
        rows += [row] if row.kind == scales.HISTORY_KIND_STEP else []
    watched.cancel()
    assert [short(row) for row in rows] == wanted
    assert short(model.api.ExplainStep(model=model.name, step=3).row) == wanted[2]


def test_ampctl_shows_numbers_that_are_none_in_json(context):
    workers = context.model(world_size=2).workers(2)
    model = workers[0].model
    step(workers, [told(0.1, **{"a b": 0.5}), told(0.2)])
    step(workers, [told(NAN), told(2.0, low=-INF)])
    step(workers, [None, None])
    server = model.server
    rows = [row for row in json.loads(ampctl(context, server, "-o", "json", "history", model.name))["rows"]
            if row["kind"] == "step"]
    mean = (common.Metric(value=0.1).value + common.Metric(value=0.2).value) / 2
    assert rows[0]["loss"] == common.Metric(value=mean).value and rows[0]["metrics"] == {"a b": 0.5}
    assert [row["loss"] for row in rows[1:]] == ["NaN", None] and rows[1]["metrics"] == {"low": "-Infinity"}
    assert [row["loss_workers"] for row in rows] == [2, 2, 0]
    for text in (ampctl(context, server, "-o", "csv", "history", model.name),
                 watched(context, server, "-o", "csv", "watch", model.name)):
        table = [row for row in csv.DictReader(io.StringIO(text)) if row["kind"] == "step"]
        assert [row["metrics"] for row in table] == ["a b=0.5", "low=-Infinity", ""], table
        assert float(table[0]["loss"]) == rows[0]["loss"] and [row["loss"] for row in table[1:]] == ["NaN", ""], table
    shown = ampctl(context, server, "history", model.name)
    assert "LOSS" in shown and "METRICS" in shown and "low=-Infinity" in shown, shown
    lines = watched(context, server, "watch", model.name).splitlines()
    assert lines[0].split()[-1] == "LOSS" and lines[3].endswith(" -"), lines
    assert re.search(r" 0\.150000 a b=0\.5$", lines[1]), lines


def test_metrics_that_are_none_are_refused_and_the_push_goes_on(context):
    worker = context.model().worker()
    worker.pull()
    for trailer, words in ((told(**{"": 1.0}), "1 to 32 bytes"), (told(**{"a=b": 1.0}), "1 to 32 bytes"),
                           (told(**{"a\n": 1.0}), "1 to 32 bytes"),
                           (params.PushTrailer(metrics=[common.Metric(name="x")] * 2), "x comes twice")):
        refused(lambda trailer=trailer: start(worker, trailer).result(), Code.INVALID_ARGUMENT, "METRIC", (words,))
    for trailer in (told(**{"x" * 33: 1.0}), told(**{f"m{i}": 1.0 for i in range(9)})):
        refused(lambda trailer=trailer: start(worker, trailer).result(), Code.INVALID_ARGUMENT)
    assert step([worker], [told(2.0, **{"x" * 32: 1.0})]) == APPLIED
    assert short(worker.model.step_rows()[0]) == ("2.0", 1, {"x" * 32: (1.0, 1)})


def test_a_killed_server_has_its_rows_and_the_vote_of_the_open_step(context):
    durability = {"durability": 2}  # STEP
    server = context.server()
    test_model = context.model("losses", server, world_size=2, **durability)
    workers = test_model.workers(2)
    step(workers, [told(3.0, accuracy=0.5), told(NAN)])
    for worker in workers:
        worker.pull()
    call = start(workers[0], told(5.0))
    eventually(lambda: workers[0].push_state().complete, "the push of rank 0 is whole")
    server.restart_after_kill()
    test_model.reconnect()
    call.cancel()
    wanted = [("nan", 2, {"accuracy": (0.5, 1)})]
    assert [short(row) for row in test_model.step_rows()] == wanted
    for worker in workers:
        worker.pull()
    calls = [start(worker, trailer) for worker, trailer in zip(workers, [told(7.0), told(9.0)])]
    assert {call.result().result.verdict for call in calls} == {APPLIED}
    server.restart_after_kill()
    test_model.reconnect()
    assert [short(row) for row in test_model.step_rows()] == [*wanted, ("8.0", 2, {})]


def test_a_data_directory_of_before_is_taken_up(context):
    server = context.server()
    test_model = context.model("old", server)
    worker = test_model.worker()
    step([worker], [told(3.0)])
    server.terminate()
    with sqlite3.connect(server.data_dir / "ampd.db") as database:
        database.execute("DROP INDEX notable")
        for column in ("loss", "loss_workers", "metrics", "apply_us", "pull_us", "wait_us", "push_us", "vote_us",
                       "after_lr"):
            database.execute(f"ALTER TABLE steps DROP COLUMN {column}")
        database.execute("PRAGMA user_version=4")
    database.close()
    server.start()
    server.connect()
    test_model.reconnect()
    assert [short(row) for row in test_model.step_rows()] == [(None, 0, {})]
    worker.join()
    step([worker], [told(4.0)])
    assert [short(row) for row in test_model.step_rows()] == [(None, 0, {}), ("4.0", 1, {})]


def test_a_c_worker_tells_its_loss_and_every_shard_stores_it(context):
    cluster = Cluster(context, 2)
    command = [context.bin_dir / "digits", "--connect", cluster.addresses[0], "--steps", "8", "--quiet"]
    workers = [subprocess.Popen(command, env=dict(os.environ, RANK=str(rank), WORLD_SIZE="2"),
                                stdout=subprocess.DEVNULL) for rank in range(2)]
    assert [worker.wait(TIMEOUT_S) for worker in workers] == [0, 0]
    rows = [[row for row in cluster.api(k).ListScaleHistory(model="digits").rows
             if row.kind == scales.HISTORY_KIND_STEP] for k in range(2)]
    assert len(rows[0]) == 8 and {row.loss_workers for row in rows[0]} == {2}
    assert 2 < rows[0][0].loss < 3, rows[0][0]  # about ln 10: it knows no digit yet
    assert [short(row) for row in rows[1]] == [short(row) for row in rows[0]]


if __name__ == "__main__":
    run(globals())
