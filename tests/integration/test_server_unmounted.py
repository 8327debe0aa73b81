#!/usr/bin/python3
"""A checkpoint directory that is not mounted at a start, or at several, with processes that are killed at random meanwhile; mounted
again, every model is what it was, to the byte, and every file is there.

    test_server_unmounted.py BIN_DIR [NAME ...]     AMPD_ROUNDS of the environment: how many times (2); AMPD_SEED: the first draw
"""
import filecmp
import hashlib
import json
import os
import random
import secrets
import subprocess
import time

import ampd_testing
from ampd_testing import Code, eventually, grpc, model, run
from test_server_shards import START_TIMEOUT_S, WORLD, Cluster, Job

ROUNDS = int(os.environ.get("AMPD_ROUNDS", "2"))
SEED = int(os.environ.get("AMPD_SEED", str(secrets.randbits(32))))
MODELS = {"m": model.DURABILITY_CHECKPOINT, "s": model.DURABILITY_STEP}


def status(cluster, name):
    return cluster.api(0).GetModel(model=name).status


def back(cluster, name):
    eventually(lambda: not status(cluster, name).recovering, f"{name} is back", START_TIMEOUT_S)


def ctl(context, cluster, *arguments):
    done = subprocess.run([context.bin_dir / "ampctl", "-e", cluster.addresses[0], *arguments], capture_output=True, text=True,
                          timeout=START_TIMEOUT_S, check=False)
    assert done.returncode == 0, (arguments, done.stderr)
    return done.stdout


def train(cluster, job, steps):
    """From where it is, with a checkpoint of each step."""
    back(cluster, job.name)
    workers = [job.join(rank) for rank in range(WORLD)]
    last = workers[0].step + steps - 1
    job.train(workers, workers[0].step, last)
    eventually(lambda: status(cluster, job.name).durable_step == last, f"step {last} is durable", START_TIMEOUT_S)


def history(context, cluster, name):
    rows = json.loads(ctl(context, cluster, "history", name, "-o", "json"))["rows"]
    return [row for row in rows if row.get("verdict")]


def files(folder):
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).digest()
            for path in ampd_testing.found(folder, "**/*.safetensors")}


def start(cluster, draw):
    for k in draw.sample(range(cluster.count), cluster.count):
        cluster.start(k)


def end(cluster, draw):
    """In any order, each killed or ended as an operator does."""
    for k in draw.sample(range(cluster.count), cluster.count):
        if draw.random() < 0.5:
            cluster.kill(k)
        else:
            cluster.processes[k].terminate()
    for k, process in enumerate(cluster.processes):
        if process.returncode is None:
            process.wait(2 * START_TIMEOUT_S)
            cluster.channels[k].close()


def is_refused(cluster, name):
    """Whether shard 0 says of the model why it cannot be served."""
    try:
        cluster.api(0).Join(model=name, rank=0)
    except grpc.RpcError as error:
        assert error.code() == Code.UNAVAILABLE, error
        return "mounted" in (error.details() or "") and "checkpoint directory" in error.details()
    raise AssertionError(f"{name} is served without its checkpoints")


def without_it(cluster, draw):
    """A time without the directory, with kills in it; most often until it is said what is missing."""
    start(cluster, draw)
    for _ in range(draw.randrange(3)):
        time.sleep(draw.random())
        k = draw.randrange(cluster.count)
        cluster.kill(k)
        cluster.start(k)
    if draw.random() < 0.7:
        grpc.channel_ready_future(cluster.channels[0]).result(timeout=START_TIMEOUT_S)
        for name in MODELS:
            eventually(lambda n=name: is_refused(cluster, n), f"it is said that {name} lacks its checkpoints", START_TIMEOUT_S)
    for k in range(cluster.count):
        cluster.kill(k)


def check_unmounted(context, count):
    print(f"AMPD_SEED={SEED}")
    folder, draw = context.folder(), random.Random(f"{SEED} {count}")
    folder.mkdir()
    mounted, away, empty = folder / "checkpoints", folder / "away", 0
    cluster = Cluster(context, count, folder, ["--checkpoint-dir", mounted])
    jobs = [Job(cluster, name=name, durability=durability, checkpoint_every=1) for name, durability in MODELS.items()]
    for _ in range(ROUNDS):
        for job in jobs:
            train(cluster, job, draw.randrange(1, 5))
        before = {name: history(context, cluster, name) for name in MODELS}
        for name in MODELS:
            ctl(context, cluster, "checkpoint", "export", name, folder / f"{name}-before", "--force")
        end(cluster, draw)
        there = files(mounted)
        mounted.rename(away)
        mounted.mkdir()
        for _ in range(draw.randrange(1, 3)):
            without_it(cluster, draw)
        assert files(mounted) == {}
        empty += 1
        mounted.rename(folder / f"empty-{empty}")
        away.rename(mounted)
        start(cluster, draw)
        cluster.wait_until_healthy()
        for name in MODELS:
            back(cluster, name)
            ctl(context, cluster, "checkpoint", "export", name, folder / f"{name}-after", "--force")
            assert filecmp.cmp(folder / f"{name}-before", folder / f"{name}-after", shallow=False), f"{name}: other bytes"
            assert history(context, cluster, name) == before[name], f"{name}: another history"
        assert files(mounted) == there


def test_a_checkpoint_directory_that_was_not_mounted_costs_one_shard_nothing(context):
    check_unmounted(context, 1)


def test_a_checkpoint_directory_that_was_not_mounted_costs_three_shards_nothing(context):
    check_unmounted(context, 3)


if __name__ == "__main__":
    run(globals())
