#!/usr/bin/python3
"""What an operator is told about the shards of a cluster, from any one of them, when all are there and when one is not.

    test_server_members.py BIN_DIR [NAME ...]
"""
import csv
import io
import json
import subprocess

from ampd_testing import Code, eventually, refused, run, spec
from small_disk import fill_disk, small_disk
from test_server_leave import leave
from test_server_peers import Secure, ends, tokens_of
from test_server_shards import START_TIMEOUT_S, WORLD, Cluster, Job

SHARDS = 3
SMALL_DISK_KIB = 640   # the store's files when they are new take half of it


def cluster_of(context, count=SHARDS):
    cluster = Cluster(context, count)
    job = Job(cluster, checkpoint_every=1000)
    job.train([job.join(rank) for rank in range(WORLD)], 1, 3)
    return cluster, job


def ampctl(context, cluster, k, *arguments, code=0):
    done = subprocess.run([context.bin_dir / "ampctl", "--endpoint", cluster.addresses[k], *arguments], stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60, check=False, encoding="utf-8")
    assert done.returncode == code, done
    return done


def test_every_shard_tells_what_shard_0_knows(context):
    cluster, job = cluster_of(context)
    eventually(lambda: not [s for s in cluster.api(0).GetCluster(model="m").shards if s.applied_step != 3], "step 3 is applied")
    blocks = {shard.index: shard.block_count for shard in job.shards()}
    for k in range(SHARDS):
        answer = cluster.api(k).GetCluster(model="m")
        assert (answer.shard, answer.shard_count, answer.trouble) == (0, SHARDS, ""), answer
        assert [shard.index for shard in answer.shards] == list(range(SHARDS))
        for shard in answer.shards:
            assert shard.endpoint == cluster.addresses[shard.index] and shard.up and not shard.leaving, shard
            assert shard.fence == 1 and shard.since.seconds > 0 and shard.block_count == blocks[shard.index], shard
            assert (shard.decided_step, shard.applied_step, shard.behind_models) == (3, 3, 0), shard
    everything = cluster.api(1).GetCluster()
    assert [shard.block_count for shard in everything.shards] == [blocks[k] for k in range(SHARDS)]
    assert not [shard for shard in everything.shards if shard.decided_step]
    own = cluster.api(2).GetCluster(local=True)
    assert own.shard == 2 and own.shards[2].up and own.shards[0].up and not own.shards[1].up, own
    refused(lambda: cluster.api(1).GetCluster(model="none"), Code.NOT_FOUND, "MODEL_NOT_FOUND")


def test_a_lost_shard_is_named(context):
    cluster, _ = cluster_of(context)
    cluster.kill(1)
    eventually(lambda: not cluster.api(2).GetCluster().shards[1].up, "shard 1 is known to be gone")
    answer = cluster.api(2).GetCluster()
    assert [shard.up for shard in answer.shards] == [True, False, True] and not answer.shards[1].leaving, answer
    assert "shard 1" in answer.trouble and cluster.addresses[1] in answer.trouble, answer.trouble
    out = ampctl(context, cluster, 0, "status").stdout
    assert f"trouble: no session with shard 1 at {cluster.addresses[1]}" in out, out
    cluster.start(1)
    cluster.wait_until_healthy()
    eventually(lambda: cluster.api(0).GetCluster().shards[1].up, "shard 1 is back")
    again = cluster.api(0).GetCluster()
    assert again.shards[1].fence == 2 and again.trouble == "", again
    assert "trouble" not in ampctl(context, cluster, 0, "status").stdout


def test_without_shard_0_a_shard_tells_what_it_knows(context):
    cluster, _ = cluster_of(context)
    cluster.kill(0)
    eventually(lambda: cluster.api(1).GetCluster().shard == 1, "shard 1 answers itself", START_TIMEOUT_S)
    answer = cluster.api(1).GetCluster()
    assert answer.shards[1].up and not answer.shards[0].up, answer
    assert "shard 0" in answer.trouble and cluster.addresses[0] in answer.trouble, answer.trouble
    out = ampctl(context, cluster, 1, "cluster")
    assert "down" in out.stdout and "shard 0 was not asked" in out.stderr and "trouble" in out.stderr, out
    rows = list(csv.DictReader(io.StringIO(ampctl(context, cluster, 1, "cluster", "-o", "csv").stdout)))
    assert [row["state"] for row in rows] == ["down", "up", "unknown"], rows
    assert not any(rows[2][column] for column in ("since", "fence", "behind", "awaited")) and rows[2]["blocks"], rows


def test_a_shard_that_left_in_order_is_told_from_a_lost_one(context):
    cluster, _ = cluster_of(context)
    leave(cluster, 2)
    shard = eventually(lambda: next((s for s in cluster.api(0).GetCluster().shards if not s.up), None), "shard 2 is gone")
    assert shard.index == 2 and shard.leaving, shard
    rows = json.loads(ampctl(context, cluster, 1, "cluster", "-o", "json").stdout)["shards"]
    assert [row["state"] for row in rows] == ["up", "up", "left"], rows


def test_ampctl_cluster_prints_tables_json_and_csv(context):
    cluster, job = cluster_of(context)
    table = ampctl(context, cluster, 2, "cluster").stdout
    assert all(word in table for word in ("SHARD", "ADDRESS", "SINCE", "BLOCKS", *cluster.addresses)), table
    told = json.loads(ampctl(context, cluster, 2, "cluster", "m", "-o", "json").stdout)
    assert told["told_by"] == 0 and [row["decided_step"] for row in told["shards"]] == [3] * SHARDS, told
    rows = list(csv.DictReader(io.StringIO(ampctl(context, cluster, 1, "cluster", "m", "-o", "csv").stdout)))
    assert [row["shard"] for row in rows] == ["0", "1", "2"] and rows[0]["lag"] in ("0", "1"), rows
    assert sum(int(row["blocks"]) for row in rows) == job.layout.block_count
    assert "shard 0, at " + cluster.addresses[0] in ampctl(context, cluster, 1, "status").stderr


def fill_and_look(context, cluster, disk):
    ballast = fill_disk(disk)
    call = cluster.api(0).start("CreateModel", spec=spec("late"))

    def rows():
        return list(csv.DictReader(io.StringIO(ampctl(context, cluster, 0, "cluster", "-o", "csv").stdout)))
    eventually(lambda: rows()[1]["trouble"], "shard 0 tells of it")
    assert "full" in rows()[1]["trouble"] and rows()[0]["trouble"] == "" and rows()[1]["state"] == "up", rows()
    for verb, stream in (("cluster", "stderr"), ("status", "stdout")):
        assert "trouble: shard 1: " in getattr(ampctl(context, cluster, 0, verb), stream)
    ballast.unlink()
    assert call.result().created
    eventually(lambda: not rows()[1]["trouble"], "it is over")
    assert cluster.end() == [0, 0]


def test_ampctl_cluster_shows_at_shard_0_the_full_disk_of_another(context):
    folder = context.folder()
    with small_disk(folder / "data-1", SMALL_DISK_KIB) as disk:
        if disk is None:
            return
        cluster = Cluster(context, 2, folder=folder)
        try:
            fill_and_look(context, cluster, disk)
        finally:
            cluster.stop()


def test_what_only_shard_0_does_is_refused_with_its_address(context):
    cluster, _ = cluster_of(context, 2)
    refusal = refused(lambda: cluster.api(1).SetScale(model="m", scale=8.0), Code.UNAVAILABLE, "NOT_COORDINATOR")
    assert cluster.addresses[0] in refusal.text, refusal


def test_a_shard_asks_shard_0_with_its_own_token(context):
    tokens, token, peer = tokens_of(context)
    reader = tokens.new("read")
    cluster = Secure(context, 2, ["--token-file", tokens.path, "--peer-token-file", peer], token=token)
    cluster.token = reader
    assert cluster.api(1).GetCluster().shard == 0
    ends(cluster)


if __name__ == "__main__":
    run(globals())
