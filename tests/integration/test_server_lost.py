#!/usr/bin/python3
"""All places of a cluster lost at once: by a power cut, by an etcd that revokes all leases, by an etcd that has lost its data. A standby
without data of a shard, or with data of before, is there first each time. Nobody does anything but what a service manager does: a
process that has ended with code 1 or 4 is started again. The model is back in time, with the same bytes, and trains on.

    test_server_lost.py BIN_DIR [NAME ...]      AMPD_ROUNDS of the environment: how often each (1)
"""
import filecmp
import os
import shutil
import signal
import subprocess
import time

import ampd_testing
from ampd_testing import PATIENCE, Code, eventually, grpc, refused, run
from etcd_testing import Cluster, Etcd, Members, wait_s
from test_server_noticed import METRICS, get
from test_server_shards import WORLD, Job

ROUNDS = int(os.environ.get("AMPD_ROUNDS", "1"))
ampd_testing.RUN_TIMEOUT_S += 90 * ROUNDS
BACK_S = 30 * PATIENCE         # from the loss until the model can be trained on
LEASE_S = 4 * PATIENCE         # longer than an election of etcd's
STEPS_EACH = 2      # a round; the last of them has a checkpoint
RESTART_S = 1       # as deploy/systemd/ampd.service has it
OTHERS_FIRST_S = max(5, LEASE_S)  # for so long a place is left to others where etcd has lost its data
BETWEEN_S = 0.6     # from the start of one process to that of the next: more than who has no data lets others go first
SHARDS = 3


class Manager:
    """Starts a process again that has ended with code 1 or 4, whenever it looks. (No thread of its own: a process goes with the
    thread that has started it.)"""

    def __init__(self, cluster):
        self.cluster, self.restarts, self.due = cluster, 0, {}
        self.order = []  # of processes: each is started so much later than the one before

    def look(self):
        for process in self.cluster.processes:
            code = process.process.poll()
            assert code not in (2, 3), f"{process.name} ended with {code}: {process.log()[-1500:]}"
            if code in (1, 4):
                turn = self.order.index(process) if process in self.order else 0
                self.due.setdefault(process, time.monotonic() + RESTART_S + turn * BETWEEN_S)
            else:
                self.due.pop(process, None)
            if process in self.due and time.monotonic() >= self.due[process]:
                del self.due[process]
                self.restarts += 1
                process.start()

    def wait_until_ended(self, lives):
        """Until each of those that have lost their places has heard of it and ended: until then it serves, as if all were back."""
        until = time.monotonic() + BACK_S
        while any(life.poll() is None for life in lives):
            assert time.monotonic() < until, "a process serves on that has lost its place"
            self.look()
            wait_s(0.05)

    def wait_s(self, seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.look()
            wait_s(0.05)


def new_cluster(context, etcd=None, shards=SHARDS, standbys=1, options=()):
    """Shards and standbys, which have one directory of checkpoints, and a model with two steps."""
    cluster = Cluster(context, shards, fixed=False, etcd=etcd,
                      options=["--checkpoint-dir", context.folder(), "--cluster-lease", f"{LEASE_S}s", *options])
    for _ in range(standbys):
        cluster.add().says("this process stands by")
    train(cluster, 1, Job(cluster))
    return cluster


def train(cluster, first, job=None):
    """STEPS_EACH steps, which are durable then; the next step."""
    job = job or Job(cluster, load=False)
    workers = [job.join(rank) for rank in range(WORLD)]
    assert [worker.step for worker in workers] == [first] * WORLD, workers
    last = first + STEPS_EACH - 1
    job.train(workers, first, last)
    eventually(lambda: cluster.api(0).GetModel(model="m").status.durable_step == last, f"step {last} is durable")
    return last + 1


def export(cluster, name):
    path = cluster.folder / f"{name}.safetensors"
    path.unlink(missing_ok=True)
    done = subprocess.run([cluster.program.parent / "ampctl", "--endpoint", cluster.of(0).address, "checkpoint", "export", "m", path],
                          stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return path


def is_back(cluster):
    """Every shard has a process that serves, and the model could be trained."""
    shards = set()
    try:
        for process in cluster.processes:
            if process.process.poll() is None and process.api().health(timeout_s=1) == ampd_testing.HEALTH_SERVING:
                shards.add(process.api().GetStatus(timeout_s=1).shard)
        if shards != set(range(cluster.count)):
            return False
        return not any(cluster.of(k).api().GetModel(model="m", timeout_s=1).status.recovering for k in range(cluster.count))
    except (grpc.RpcError, AssertionError, ValueError):  # one that has just gone; a channel that is closed
        return False


def check_back(cluster, manager, lost_at, step):
    """In time; and the bytes, the history and the next steps are what they were to be. The next step."""
    told = "\n".join
    while not is_back(cluster):
        waited = time.monotonic() - lost_at
        assert waited < BACK_S, f"not back after {waited:.1f} s:\n" + told(
            f"{process.name} ({process.process.poll()}): {process.log()[-1200:]}" for process in cluster.processes)
        manager.wait_s(0.05)
    took = time.monotonic() - lost_at
    assert filecmp.cmp(export(cluster, "after"), cluster.folder / "before.safetensors", shallow=False), "other bytes than before"
    rows = cluster.api(0).ListScaleHistory(model="m", page_size=1000).rows
    assert [row.step for row in rows if row.verdict != 0 and not row.superseded] == list(range(1, step))
    return took, train(cluster, step)


def lives_of(cluster):
    """The processes that are the shards now, as they run: one that is started again is another one."""
    return [cluster.of(k).process for k in range(cluster.count)]


def standby_of(cluster):
    """The process that is no shard."""
    serving = [cluster.of(k) for k in range(SHARDS)]
    return next(process for process in cluster.processes if process not in serving)


def tell(what, times, manager):
    print(f"{what}, {len(times)} rounds: back after {min(times):.1f} to {max(times):.1f} s, {manager.restarts} restarts", flush=True)


def power_cut(cluster):
    """Of all machines; who stood by, and who was a shard, in their order."""
    standby, shards = standby_of(cluster), [cluster.of(k) for k in range(SHARDS)]
    for process in cluster.processes:
        process.kill()
    cluster.etcd.kill()
    return standby, shards


def revoke_all(etcd):
    client = ["etcdctl", f"--endpoints={etcd.endpoints}", "lease"]
    environment = dict(os.environ, ETCDCTL_API="3")
    listed = subprocess.run([*client, "list"], env=environment, capture_output=True, encoding="utf-8", timeout=60, check=True)
    for lease in listed.stdout.split("\n")[1:]:
        if lease.strip():
            subprocess.run([*client, "revoke", lease.strip()], env=environment, capture_output=True, timeout=60, check=False)


def test_all_places_lost_at_once_with_a_standby_started_first(context):
    """Its directory is empty, or every third time what it has of when it was a shard; leases have ended, or run still."""
    cluster, step, times = new_cluster(context), 1 + STEPS_EACH, []
    manager = Manager(cluster)
    for turn in range(ROUNDS):
        export(cluster, "before")
        standby, shards = power_cut(cluster)
        if turn % 3 != 2:
            shutil.rmtree(cluster.folder / standby.name)
        cluster.etcd.start()
        wait_s(0 if turn % 2 else LEASE_S + 1)
        lost_at = time.monotonic()
        standby.start()
        manager.wait_s(1)
        for process in shards[turn % SHARDS:] + shards[:turn % SHARDS]:
            manager.wait_s(BETWEEN_S)
            process.start()
        took, step = check_back(cluster, manager, lost_at, step)
        times.append(took)
        if turn % 3 == 1:  # so that the next standby has data of before
            lost = cluster.of(turn % SHARDS)
            lost.kill()
            eventually(lambda: is_back(cluster), "the standby has taken over")
            lost.start()
    tell("all places lost at once", times, manager)


def test_an_etcd_leader_that_is_stopped_and_resumes(context):
    """It revokes all leases that it believes to have ended, though the others have renewed them; and where it did not do that, it is
    done in its place."""
    etcd = Members(context, 3)
    cluster, step, times = new_cluster(context, etcd), 1 + STEPS_EACH, []
    manager, revoked_by_hand = Manager(cluster), 0
    for turn in range(ROUNDS):
        export(cluster, "before")
        shards = [cluster.of(k) for k in range(SHARDS)]
        manager.order = shards[turn % SHARDS:] + shards[:turn % SHARDS]
        leader = etcd.leader()
        leader.process.send_signal(signal.SIGSTOP)
        manager.wait_s(2 * LEASE_S)
        leader.process.send_signal(signal.SIGCONT)
        lost_at = time.monotonic()
        before = manager.restarts
        manager.wait_s(LEASE_S)  # what it does, it does at once
        if manager.restarts == before:  # it learned of the new leader first
            revoked_by_hand += 1
            lives = lives_of(cluster)
            revoke_all(etcd)
            lost_at = time.monotonic()
            manager.wait_until_ended(lives)
        took, step = check_back(cluster, manager, lost_at, step)
        times.append(took)
    tell(f"etcd's leader was stopped, leases revoked by it {ROUNDS - revoked_by_hand} times", times, manager)


def test_etcds_data_lost_after_a_failover(context):
    """The process that was the shard before is there first, or never was away; who has been it since is there a little later."""
    cluster, step, times = new_cluster(context), 1 + STEPS_EACH, []
    manager = Manager(cluster)
    for turn in range(ROUNDS):
        stale = cluster.of(turn % SHARDS)
        stale.kill()
        eventually(lambda: is_back(cluster), "the standby has taken over")
        step = train(cluster, step)
        stale.start()
        export(cluster, "before")
        if turn % 2 == 0:
            _, shards = power_cut(cluster)
            cluster.etcd.wipe()
            cluster.etcd.start()
            lost_at = time.monotonic()
            for process in [stale, *shards]:
                process.start()
                manager.wait_s(1)
        else:
            stale.says("this process stands by")
            lives = lives_of(cluster)
            cluster.etcd.kill()
            cluster.etcd.wipe()
            lost_at = time.monotonic()
            cluster.etcd.start()
            manager.wait_until_ended(lives)
        took, step = check_back(cluster, manager, lost_at, step)
        times.append(took)
    tell("etcd's data lost", times, manager)


def test_etcds_data_lost_of_a_cluster_without_models(context):
    """The new etcd counts from 1, and gives fences above those that the empty stores have had."""
    for shards in (1, 2):
        cluster = Cluster(context, shards, healthy=False)
        for _ in range(5):  # each takes some revisions of etcd
            for process in cluster.processes:
                eventually(lambda p=process: "holding a place" in p.log(), "it has a place", BACK_S)
                process.kill()
                process.log_path.unlink()
                process.start()
        cluster.wait_until_healthy()
        before = [process.fence() for process in cluster.processes]
        for process in cluster.processes:
            process.kill()
        cluster.etcd.kill()
        cluster.etcd.wipe()
        cluster.etcd.start()
        for process in cluster.processes:
            process.start()
        cluster.wait_until_healthy()
        assert all(process.fence() > fence for process, fence in zip(cluster.processes, before)), before


def test_etcds_data_lost_while_as_many_empty_standbys_wait(context):
    """They are there before the shards are started again, and know that there are data: they have seen it in etcd."""
    for shards in (1, 2):
        cluster, step, times = new_cluster(context, shards=shards, standbys=shards), 1 + STEPS_EACH, []
        manager = Manager(cluster)
        for _ in range(ROUNDS):
            export(cluster, "before")
            lives = lives_of(cluster)
            cluster.etcd.kill()
            cluster.etcd.wipe()
            cluster.etcd.start()
            lost_at = time.monotonic()
            manager.wait_until_ended(lives)
            took, step = check_back(cluster, manager, lost_at, step)
            times.append(took)
        tell(f"etcd's data lost, {shards} shards with empty standbys", times, manager)


def lose_all_but_standbys(cluster):
    """etcd's data are lost while all shards are down; the shards' processes."""
    shards = [cluster.of(k) for k in range(cluster.count)]
    cluster.etcd.kill()
    for process in shards:
        process.kill()
    cluster.etcd.wipe()
    cluster.etcd.start()
    return shards


def train_beyond_a_copy(cluster, step):
    """The standby has a copy of the only shard's directory, after which STEPS_EACH steps follow; the next step."""
    owner, standby = cluster.processes
    assert standby.terminate() == 0 and owner.terminate() == 0
    shutil.rmtree(cluster.folder / standby.name)
    shutil.copytree(cluster.folder / owner.name, cluster.folder / standby.name)
    owner.start()
    cluster.wait_until_healthy()
    step = train(cluster, step)
    standby.log_path.unlink()
    standby.start()
    standby.says("this process stands by")
    return step


def test_etcds_data_lost_while_standbys_remember_data_that_come_much_later(context):
    """Empty standbys, as many as shards, and one with a copy of before: none begins a cluster or ends, and each says what would do."""
    for shards, copies in ((1, False), (2, False), (1, True)):
        cluster, step = new_cluster(context, shards=shards, standbys=shards), 1 + STEPS_EACH
        if copies:
            step = train_beyond_a_copy(cluster, step)
        export(cluster, "before")
        owners = lose_all_but_standbys(cluster)
        standbys = [process for process in cluster.processes if process not in owners]
        for standby in standbys:
            standby.says("to go on without")
            assert "etcd has lost its data" in standby.log(), standby.log()[-1500:]
            assert "start this process again" in standby.log() if shards == 1 else "start all processes again" in standby.log()
        wait_s(OTHERS_FIRST_S + 3)
        assert [standby.process.poll() for standby in standbys] == [None] * shards, [standby.log()[-1500:] for standby in standbys]
        lost_at = time.monotonic()
        for process in owners:
            process.start()
        check_back(cluster, Manager(cluster), lost_at, step)


def test_an_older_copy_goes_on_without_the_newer_data_when_it_is_started_again_as_it_says(context):
    """etcd has lost its data, and the process that had the last ones is gone for good."""
    cluster = new_cluster(context, shards=1)
    export(cluster, "before")
    train_beyond_a_copy(cluster, 1 + STEPS_EACH)
    _, standby = cluster.processes
    lose_all_but_standbys(cluster)
    standby.says("to go on without it, with what is here, start this process again")
    assert standby.terminate() == 0
    standby.start()
    check_back(cluster, Manager(cluster), time.monotonic(), 1 + STEPS_EACH)


def test_a_shard_that_waits_for_the_others_after_etcds_loss_says_for_which_and_is_not_ready(context):
    """It holds its place, and neither stands by nor is one to call."""
    cluster, step = new_cluster(context, shards=2, standbys=0, options=METRICS), 1 + STEPS_EACH
    export(cluster, "before")
    first, second = lose_all_but_standbys(cluster)
    lost_at = time.monotonic()
    first.start()
    first.says("before shard 1 has a process")
    code, text = get(first.log(), "/readyz?standbyok")
    assert code == 503 and "before shard 1 has a process" in text, (code, text)
    refusal = refused(lambda: first.api().GetStatus(), Code.UNAVAILABLE, "STANDBY", ["before shard 1 has a process"])
    assert "coordinator" not in refusal.metadata, refusal
    second.start()
    check_back(cluster, Manager(cluster), lost_at, step)


def test_data_that_come_too_late_to_an_etcd_that_has_lost_all_say_so(context):
    """An empty process was there before: an operator decides."""
    cluster, step = new_cluster(context, shards=1, standbys=0), 1 + STEPS_EACH
    export(cluster, "before")
    late, = cluster.processes
    assert late.terminate() == 0
    late.start()  # under a fence that is above the first ones of a new etcd
    cluster.wait_until_healthy()
    late.kill()
    cluster.etcd.kill()
    cluster.etcd.wipe()
    cluster.etcd.start()
    empty = cluster.add()
    empty.serves()
    late.start()
    late.says("came too late")
    said = [line for line in late.log().splitlines() if "came too late" in line][-1]
    assert f"served by {empty.address}" in said and "p0/shard-0-of-1" in said and "end that process" in said, said
    assert empty.terminate() == 0
    check_back(cluster, Manager(cluster), time.monotonic(), step)


def test_the_newest_data_of_all_shards_gone_for_good(context):
    """Those of before say what would do, and with that go on."""
    cluster = new_cluster(context, shards=2, standbys=2)
    export(cluster, "before")
    older = [cluster.of(k) for k in range(2)]
    for process in older:
        process.kill()
        eventually(lambda: is_back(cluster), "a standby has taken over")
    train(cluster, 1 + STEPS_EACH)
    for process in cluster.processes:
        if process not in older:
            process.kill()
    cluster.processes = older
    wait_s(LEASE_S + 1)  # both leases have ended: else the other place seems held by somebody who could fill this one, and is asked
    for k, process in enumerate(older):
        process.start()
        process.says(f"/{process.name}/shard-{k}-of-2 does not have the last data of shard {k}")
        assert "delete ampd/c/who/last-k in etcd of each shard k that has no process" in process.log(), process.log()[-1500:]
    for k in range(2):
        subprocess.run(["etcdctl", f"--endpoints={cluster.etcd.endpoints}", "del", f"ampd/c/who/last-{k}"], check=True, timeout=60,
                       capture_output=True)
    lost_at, manager = time.monotonic(), Manager(cluster)
    while not is_back(cluster):
        assert time.monotonic() - lost_at < BACK_S, [process.log()[-1500:] for process in older]
        manager.wait_s(0.05)
    assert filecmp.cmp(export(cluster, "after"), cluster.folder / "before.safetensors", shallow=False), "other bytes than before"


if __name__ == "__main__":
    run(globals())
