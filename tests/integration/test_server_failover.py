#!/usr/bin/python3
"""The owner of shard 0 is killed again and again while libampclient trains; a standby takes its place each time, from an empty
directory of its own and the shared checkpoints. How long the worker waits is measured and printed; what it ends with is bitwise
what a run without kills ends with.

    test_server_failover.py BIN_DIR [NAME ...]      AMPD_KILLS of the environment: how many kills (1)
"""
import filecmp
import os
import shutil
import statistics
import subprocess
import threading
import time

from ampd_testing import DIE_WITH_PARENT, eventually, run
from etcd_testing import Cluster

KILLS = int(os.environ.get("AMPD_KILLS", "1"))
LEASE_S = 5
STEPS_EACH = 60           # between two kills, so that each begins with a model that runs
STEPS = 200 * (KILLS + 2)  # rolled back at most CHECKPOINT_EVERY at a time
CHECKPOINT_EVERY = 20
STEP_TIMEOUT_S = 120
WORLD = 1


class Worker:
    """crash_worker (tests/crash/worker.c): a line for each step that it has the verdict of."""

    def __init__(self, bin_dir, address, steps):
        self.times, self.process = [], subprocess.Popen(
            [*DIE_WITH_PARENT, bin_dir.parent / "tests" / "crash" / "crash_worker", address, "m", "0", str(WORLD), str(steps),
             str(CHECKPOINT_EVERY), "checkpoint"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        for _ in self.process.stdout:
            self.times.append(time.monotonic())

    def await_steps(self, count):
        wanted = len(self.times) + count
        eventually(lambda: len(self.times) >= wanted or self.process.poll() is not None, "steps go on", STEP_TIMEOUT_S)
        assert len(self.times) >= wanted, self.process.stderr.read().decode()

    def end(self):
        code = self.process.wait(STEP_TIMEOUT_S)
        self.thread.join()
        assert code == 0, self.process.stderr.read().decode()


def export(cluster, bin_dir, name):
    path = cluster.folder / name
    subprocess.run([bin_dir / "ampctl", "--endpoint", cluster.of(1).address, "checkpoint", "export", "m", path], check=True,
                   timeout=STEP_TIMEOUT_S, capture_output=True)
    return path


def new_cluster(context, shards):
    return Cluster(context, shards, fixed=False, options=["--checkpoint-dir", context.folder(), "--cluster-lease",
                                                          f"{LEASE_S}s"])


def test_a_standby_takes_over_shard_0_and_steps_go_on(context):
    cluster = new_cluster(context, 3)
    standby = cluster.add()
    standby.says("this process stands by")
    worker, waits = Worker(context.bin_dir, cluster.of(2).address, STEPS), []
    for _ in range(KILLS):
        worker.await_steps(STEPS_EACH)
        lost = cluster.of(0)
        killed = time.monotonic()
        lost.kill()
        before = len(worker.times)
        worker.await_steps(2)  # one may have been under way
        waits.append(max(b - a for a, b in zip([killed, *worker.times[before:]], worker.times[before:])))
        assert cluster.of(0) is standby
        shutil.rmtree(cluster.folder / lost.name)
        lost.start()
        eventually(lambda: lost.process.poll() is None and "this process stands by" in lost.log().rsplit('msg="listening"', 1)[-1],
                   "it stands by", STEP_TIMEOUT_S)
        standby = lost
    worker.end()
    print(f"{KILLS} kills of shard 0, lease {LEASE_S} s: the worker waited {min(waits):.2f} to {max(waits):.2f} s, "
          f"median {statistics.median(waits):.2f}; all: {' '.join(f'{wait:.2f}' for wait in waits)}")
    undisturbed = new_cluster(context, 3)
    Worker(context.bin_dir, undisturbed.of(0).address, STEPS).end()
    assert filecmp.cmp(export(cluster, context.bin_dir, "export"), export(undisturbed, context.bin_dir, "export"),
                       shallow=False), "the export is another one than that of a run without kills"


if __name__ == "__main__":
    run(globals())
