#!/usr/bin/python3
"""Histories whose beginnings go by --history-rows and --history-age: what stays, and what is told of the rest.

    test_server_retention.py BIN_DIR [NAME ...]
"""
import json
import math
import re
import signal
import sqlite3
import subprocess
import urllib.request

import ampd_testing
from ampd_testing import Code, eventually, metric, model, refused, run, scales, start_and_fail
from etcd_testing import Cluster
from test_server_cluster import resume, trained
from test_server_shards import Job, undisturbed

HTTP = ("--metrics-listen", "127.0.0.1:0")
CHECKPOINT_EVERY = 10
STEPS, KEPT = 120, 50


def train(worker, steps, overflow_at=()):
    for step in steps:
        worker.pull()
        worker.push({"w": [math.inf if step in overflow_at else 0.25] * 4})


def kept_are(test_model, first, last):
    """The steps of the history, once it has no others."""
    eventually(lambda: [row.step for row in test_model.step_rows(page_size=1000)] == list(range(first, last + 1)),
               f"the history has the steps {first} to {last}")


def page(server, path):
    port = re.search(r"metrics and health\" address=127\.0\.0\.1:(\d+)", server.log())[1]
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/{path}", timeout=ampd_testing.CALL_TIMEOUT_S) as answer:
        return json.load(answer)


def test_a_long_run_keeps_the_newest_steps_and_goes_on_after_a_kill(context):
    path = context.folder().with_name("retention.conf")
    path.write_text(f"history-rows: {KEPT}\n")
    server = context.server(*HTTP, "--config", str(path))
    kept = context.model("kept", server, checkpoint_every=CHECKPOINT_EVERY, durability=model.DURABILITY_STEP)
    worker, api = kept.worker(), kept.api
    train(worker, range(1, 6), overflow_at=(3,))
    acted = api.SetScale(model="kept", scale=64.0, request_id="r-1")
    train(worker, range(6, STEPS + 1))
    first = STEPS - KEPT + 1
    kept_are(kept, first, STEPS)
    assert metric(server, "ampd_history_removed_rows_total") == STEPS - KEPT

    words = f"begins with step {first}"
    scaler = model.ScalerSpec(init_scale=1024.0)
    for ask in (lambda: api.ExplainStep(model="kept", step=3),
                lambda: api.ListScaleHistory(model="kept", from_step=1, to_step=3),
                lambda: api.ListOverflows(model="kept", from_step=3, to_step=9),
                lambda: api.ReplayPolicy(model="kept", scaler=scaler),
                lambda: api.ReplayPolicy(model="kept", scaler=scaler, from_step=first - 1)):
        refused(ask, Code.OUT_OF_RANGE, "HISTORY_GONE", words)
    assert len(api.ReplayPolicy(model="kept", scaler=scaler, from_step=first, page_size=1000).rows) == KEPT
    acts = [(row.kind, row.from_step) for row in kept.history(to_step=first - 1)
            if row.kind != scales.HISTORY_KIND_EPOCH]
    assert acts == [(scales.HISTORY_KIND_SCALE_SET, acted.from_step)], acts

    drawn = page(server, "history?model=kept")
    assert (min(drawn["curves"]["scale"][0]), drawn["rows"]) == (first, KEPT), drawn
    told = page(server, f"step?model=kept&step={STEPS}")   # the policies go on from what the first row says
    assert told["replayed_from"] == first + 1 and told["policies"], told
    assert page(server, f"step?model=kept&step={first}")["policies"] == []

    scale, (_, tensors) = api.GetScale(model="kept"), kept.latest()
    server.restart_after_kill()
    kept.reconnect()
    api = kept.api
    eventually(lambda: api.health() == ampd_testing.HEALTH_SERVING, "it serves")
    assert api.GetScale(model="kept").record == scale.record and kept.latest()[1] == tensors
    assert api.SetScale(model="kept", scale=64.0, request_id="r-1") == acted
    train(kept.worker(), range(STEPS + 1, STEPS + 4))
    last = STEPS + 3
    kept_are(kept, last - KEPT + 1, last)

    path.write_text("history-rows: 20\n")
    server.process.send_signal(signal.SIGHUP)
    kept_are(kept, last - 19, last)
    assert 'option=history-rows was="50" is="20"' in server.log(), server.log()
    command = [context.bin_dir / "ampctl", "-e", f"127.0.0.1:{server.port}", "-o", "csv", "history", "kept"]
    table = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert len([line for line in table.splitlines() if f",{last}," in line]) == 1, table
    assert server.terminate() == 0


def test_an_epoch_whose_steps_are_gone_is_no_beginning(context):
    server = context.server("--history-rows", "6")
    again = context.model("again", server, checkpoint_every=4)
    train(again.worker(), range(1, 11))
    eventually(lambda: again.status().durable_step == 8, "step 8 is durable")
    server.restart_after_kill()
    again.reconnect()
    api = again.api
    eventually(lambda: api.health() == ampd_testing.HEALTH_SERVING, "it serves")
    train(again.worker(), range(9, 15))
    kept_are(again, 9, 14)   # all steps of the second epoch, which begins behind step 8 of the first
    assert {row.epoch for row in again.step_rows()} == {2}
    scaler = model.ScalerSpec(init_scale=1024.0)
    for ask in (lambda: api.ReplayPolicy(model="again", scaler=scaler), lambda: api.ExplainStep(model="again", step=8),
                lambda: api.ReplayPolicy(model="again", scaler=scaler, epoch=1),
                lambda: api.ExplainStep(model="again", step=8, epoch=1)):
        refused(ask, Code.OUT_OF_RANGE, "HISTORY_GONE", "begins with step 9")
    assert len(api.ReplayPolicy(model="again", scaler=scaler, epoch=2).rows) == 6   # that epoch is whole
    assert len(api.ReplayPolicy(model="again", scaler=scaler, from_step=9).rows) == 6


def test_steps_that_are_too_old_go_but_the_newest(context):
    server = context.server("--history-age", "1ms")
    aged = context.model("aged", server)
    worker = aged.worker()
    train(worker, range(1, 8))
    kept_are(aged, 7, 7)
    api = aged.api
    refused(lambda: api.ExplainStep(model="aged", step=6), Code.OUT_OF_RANGE, "HISTORY_GONE", "begins with step 7")
    train(worker, range(8, 9))
    kept_are(aged, 8, 8)

    checkpoint = api.start("Checkpoint", model="aged")
    train(worker, range(9, 10))
    checkpoint.result()
    train(worker, range(10, 11))
    kept_are(aged, 10, 10)   # none up to the checkpoint's: a backup has that one, and what is left of the history
    folder = context.folder()
    subprocess.run([context.bin_dir / "ampctl", "-e", f"127.0.0.1:{server.port}", "backup", folder], check=True)
    rows = [json.loads(path.read_text())["rows"] for path in folder.rglob("history.json")]
    assert [[row["kind"] for row in written] for written in rows] == [["epoch"]], rows


def test_all_history_is_kept_where_nothing_is_said(context):
    server = context.server(*HTTP, "--history-age", "0", "--history-rows", "0")
    whole = context.model("whole", server)
    train(whole.worker(), range(1, 4))
    assert [row.step for row in whole.step_rows()] == [1, 2, 3]
    assert metric(server, "ampd_history_removed_rows_total") == 0


def test_limits_that_make_no_sense_are_refused(context):
    for option, text in (("history-rows", "-1"), ("history-rows", "5d"), ("history-age", "5"), ("history-age", "1w")):
        code, lines = start_and_fail(context.bin_dir, "--data-dir", context.folder(), f"--{option}={text}")
        assert code == 2 and len(lines) == 1 and f"--{option} {text}" in lines[0], (option, text, code, lines)


def stored_steps(process):
    """The steps that the store of a shard has."""
    path = process.cluster.folder / process.name / f"shard-{process.shard()}-of-{process.cluster.count}" / "ampd.db"
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return [row[0] for row in connection.execute(
            "SELECT step FROM steps WHERE kind = 1 AND superseded = 0 ORDER BY epoch, step")]
    finally:
        connection.close()


def test_a_lost_shard_is_filled_from_one_whose_history_begins_late(context):
    expected = undisturbed(context)
    cluster = Cluster(context, 2, fixed=False, options=["--checkpoint-dir", context.folder(), "--history-rows", "2"])
    standby = cluster.add()
    standby.says("this process stands by")
    job = Job(cluster, name="m")
    trained(job, 1, 5)
    eventually(lambda: cluster.api(0).GetModel(model="m").status.durable_step == 4, "step 4 is durable")
    for k in (0, 1):
        eventually(lambda: stored_steps(cluster.of(k)) == [4, 5], f"shard {k} has the newest steps")
    lost = cluster.of(1)
    lost.kill()
    standby.serves()
    assert standby.shard() == 1
    standby.says("the store was filled by another shard")
    assert "the row before it is missing" not in standby.log(), standby.log()
    cluster.wait_until_healthy()
    resume(job, expected)
    for k in (0, 1):
        eventually(lambda: stored_steps(cluster.of(k)) == [5, 6], f"shard {k} has the newest steps")


if __name__ == "__main__":
    run(globals())
