#!/usr/bin/python3
"""The owner of shard 0 is killed again and again while libampclient trains; a standby takes its place each time, from an empty
directory of its own, or one of when it was the shard before, and the shared checkpoints. How long the worker waits is measured and
printed; what it ends with is bitwise what a run without kills ends with. And what must not be served, deleted or lost then.

    test_server_failover.py BIN_DIR [NAME ...]      AMPD_KILLS of the environment: how many kills (1)
"""
import filecmp
import os
import pathlib
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time

from ampd_testing import DIE_WITH_PARENT, PATIENCE, eventually, run
from etcd_testing import Cluster, wait_s
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "crash"))
from failpoints import Failpoints, named_in_the_sources  # noqa: E402

KILLS = int(os.environ.get("AMPD_KILLS", "1"))
LEASE_S = 5 * PATIENCE
STEPS_EACH = 60           # between two kills, so that each begins with a model that runs
STEPS = 200 * (KILLS + 2)  # rolled back at most CHECKPOINT_EVERY at a time
CHECKPOINT_EVERY = 20
STEP_TIMEOUT_S = 300 * PATIENCE
END_TIMEOUT_S = 400 * PATIENCE      # of all steps that are left, on a busy machine
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

    def stop(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        code = self.process.wait(END_TIMEOUT_S)
        self.thread.join()
        assert code == 0, self.process.stderr.read().decode()


def export(cluster, bin_dir, name):
    path = cluster.folder / name
    subprocess.run([bin_dir / "ampctl", "--endpoint", cluster.of(1).address, "checkpoint", "export", "m", path], check=True,
                   timeout=STEP_TIMEOUT_S, capture_output=True)
    return path


def new_cluster(context, shards, lease_s=LEASE_S, fixed=False):
    """Its shards have one directory of checkpoints."""
    return Cluster(context, shards, fixed=fixed, options=["--checkpoint-dir", context.folder(), "--cluster-lease",
                                                          f"{lease_s}s"])


def stands_by(process):
    """Since its last start."""
    eventually(lambda: process.process.poll() is None and
               "this process stands by" in process.log().rsplit('msg="listening"', 1)[-1], "it stands by", STEP_TIMEOUT_S)


def set_aside(cluster, process):
    """The directories that ampd has put aside for this process."""
    return sorted(path.name for path in (cluster.folder / process.name).glob("shard-*.stale-*"))


def check_bits(context, cluster, shards=3):
    undisturbed = new_cluster(context, shards)
    Worker(context.bin_dir, undisturbed.of(0).address, STEPS).end()
    assert filecmp.cmp(export(cluster, context.bin_dir, "export"), export(undisturbed, context.bin_dir, "export"),
                       shallow=False), "the export is another one than that of a run without kills"


def test_a_standby_takes_over_shard_0_and_steps_go_on(context):
    """Every other time it has a directory of that shard of before, of when it was the shard; else none at all."""
    cluster = new_cluster(context, 3)
    standby = cluster.add()
    standby.says("this process stands by")
    worker, waits = Worker(context.bin_dir, cluster.of(2).address, STEPS), []
    for kill in range(KILLS):
        worker.await_steps(STEPS_EACH)
        lost = cluster.of(0)
        killed = time.monotonic()
        lost.kill()
        before = len(worker.times)
        worker.await_steps(2)  # one may have been under way
        waits.append(max(b - a for a, b in zip([killed, *worker.times[before:]], worker.times[before:])))
        assert cluster.of(0) is standby
        if kill % 2 == 0:
            shutil.rmtree(cluster.folder / lost.name)
        lost.start()
        stands_by(lost)
        standby = lost
    worker.end()
    print(f"{KILLS} kills of shard 0, lease {LEASE_S} s: the worker waited {min(waits):.2f} to {max(waits):.2f} s, "
          f"median {statistics.median(waits):.2f}; all: {' '.join(f'{wait:.2f}' for wait in waits)}")
    check_bits(context, cluster)


def test_a_directory_of_before_is_set_aside_and_filled_anew(context):
    """Each of two processes takes over from the other, on what it has of the time when it was the shard before."""
    cluster = new_cluster(context, 3, 2)
    first = cluster.of(0)
    second = cluster.add()
    second.says("this process stands by")
    worker, lost, standby = Worker(context.bin_dir, cluster.of(2).address, STEPS), first, second
    for turn in range(3):
        worker.await_steps(STEPS_EACH)
        lost.kill()
        worker.await_steps(2 * CHECKPOINT_EVERY)  # so that there is a checkpoint of the new epoch
        assert cluster.of(0) is standby
        assert len(set_aside(cluster, standby)) == (1 if turn > 0 else 0), set_aside(cluster, standby)
        if turn == 2:
            break
        lost.start()
        stands_by(lost)
        lost, standby = standby, lost
    assert "the old data directory was renamed" in first.log() and "the old data directory was renamed" in second.log()
    worker.end()
    check_bits(context, cluster)


def test_a_process_that_did_not_take_over_leaves_the_one_before_as_it_was(context):
    """It claims the place, finds no checkpoint of the shard, and ends: what the one before has is still what counts."""
    cluster = Cluster(context, 2)  # each has its checkpoints in its own directory
    lost = cluster.processes[1]
    worker = Worker(context.bin_dir, cluster.of(0).address, STEPS)
    worker.await_steps(STEPS_EACH)
    lost.kill()
    other = cluster.add(["--shard", "1"])
    assert other.wait() == 3 and "--checkpoint-dir" in other.log(), other.log()[-1500:]
    lost.start()
    cluster.wait_until_healthy()
    assert "the other shards hold nothing that this one lacks" in lost.log(), lost.log()[-2500:]
    assert set_aside(cluster, lost) == []
    worker.end()
    check_bits(context, cluster, 2)


def test_what_is_of_before_is_not_served_where_nobody_has_more(context):
    """The other shard has lost its disk, and the process that was the shard last is gone: that is said, and nothing is lost."""
    cluster = new_cluster(context, 2, 2, fixed=True)
    lost, other = cluster.processes
    worker = Worker(context.bin_dir, other.address, STEPS)
    worker.await_steps(STEPS_EACH)
    standby = cluster.add(["--shard", "0"])
    standby.says("this process stands by")
    lost.kill()
    worker.await_steps(2 * CHECKPOINT_EVERY)
    assert cluster.of(0) is standby
    worker.process.kill()
    standby.kill()
    other.says(f'msg="a shard has no process" shard=0 address={standby.address}')  # its lease is over: nobody could fill another
    other.kill()
    shutil.rmtree(cluster.folder / other.name)
    other.start()
    other.says("has no model, but cluster c has models")
    lost.start()
    lost.says("does not have the last data of shard 0")
    assert "bring back its directory" in lost.log() and lost.process.poll() is None, lost.log()[-1500:]
    assert set_aside(cluster, lost) == []
    standby.start()  # whose data count: it fills the other one
    cluster.wait_until_healthy()
    Worker(context.bin_dir, cluster.of(0).address, STEPS).end()
    check_bits(context, cluster, 2)


def test_a_process_with_data_of_one_shard_begins_no_new_cluster_as_another(context):
    """It finds a place free of which it has nothing, and the other shards are new: that a model is missing is known to it."""
    cluster = new_cluster(context, 2, 2, fixed=True)
    kept, gone = cluster.processes
    worker = Worker(context.bin_dir, gone.address, STEPS)
    worker.await_steps(STEPS_EACH)
    worker.process.kill()
    for process in (kept, gone):
        process.kill()
    shutil.rmtree(cluster.folder / gone.name)
    options = kept.options
    kept.options, gone.options = gone.options, options  # each as the other one
    wait_s(LEASE_S)  # no shard is there by then
    gone.start()
    kept.start()
    for process in (kept, gone):
        process.says("has no model, but cluster c has models")
        assert "bring back its directory" in process.log() and process.process.poll() is None, process.log()[-1500:]


def test_models_that_were_deleted_meanwhile_do_not_come_back(context):
    cluster = new_cluster(context, 3, 2)
    lost = cluster.of(1)
    standby = cluster.add()
    standby.says("this process stands by")
    Worker(context.bin_dir, cluster.of(2).address, 2 * CHECKPOINT_EVERY).end()
    lost.kill()
    standby.serves()
    eventually(lambda: not cluster.of(0).api().GetModel(model="m").status.recovering, "the model is back", STEP_TIMEOUT_S)
    subprocess.run([context.bin_dir / "ampctl", "--endpoint", cluster.of(0).address, "delete", "--force", "m"], check=True,
                   timeout=STEP_TIMEOUT_S, capture_output=True)
    lost.start()
    stands_by(lost)
    standby.kill()
    lost.serves()
    assert lost.shard() == 1 and len(set_aside(cluster, lost)) == 1
    cluster.wait_until_healthy()
    assert not [model for k in range(3) for model in cluster.of(k).api().ListModels().models]


def test_a_start_that_is_killed_while_it_is_filled_begins_again(context):
    """At each of its failpoints: also when the data of before are set aside and nothing is there in their place yet."""
    program = context.bin_dir.parent / "tests" / "crash" / "ampd_crash"
    if not program.exists():
        print("SKIPPED: no server with failpoints in this build")
        return
    cluster = new_cluster(context, 2, 2, fixed=True)
    lost = cluster.processes[1]
    worker = Worker(context.bin_dir, cluster.of(0).address, STEPS)
    worker.await_steps(STEPS_EACH)
    standby = cluster.add(["--shard", "1"])
    standby.says("this process stands by")
    lost.kill()
    worker.await_steps(2 * CHECKPOINT_EVERY)
    standby.kill()
    points = Failpoints(cluster.folder / "failpoints", 1, 0)
    places = sorted(name for name in named_in_the_sources() if name.startswith("refill."))
    os.environ["AMPD_FAILPOINTS_FILE"], calm = str(points.path), cluster.program
    for turn, place in enumerate(places):
        points.kill_at(place, 1)
        cluster.program = program
        lost.start()
        assert lost.wait() == -signal.SIGKILL, (place, lost.log()[-1500:])
        assert len(set_aside(cluster, lost)) == 1, (place, set_aside(cluster, lost))
        assert (cluster.folder / lost.name / "shard-1-of-2" / "ampd.db").exists() == (turn > 0), place
    del os.environ["AMPD_FAILPOINTS_FILE"]
    points.close()
    cluster.program = calm
    lost.start()
    cluster.wait_until_healthy()
    assert len(set_aside(cluster, lost)) == 1
    worker.end()
    check_bits(context, cluster, 2)


if __name__ == "__main__":
    run(globals())
