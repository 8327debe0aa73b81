#!/usr/bin/python3
"""Faults that are drawn by a seed, one after the other, under a cluster that trains with `on_loss: wait`: three etcd, three shards,
a standby and two workers, each in a network namespace of its own. It ends with the bits of a run in which nothing happened, with
one history on all shards, and no worker has waited longer for a verdict than it takes to find a loss and to restore.

    test_cluster_faults.py BIN_DIR [NAME ...]     of the environment: AMPD_FAULTS, how many (a handful); AMPD_TEST_SEED;
                                                  AMPD_DURABILITY, checkpoint or step

A fault is injected when so many steps are decided after the one before; it is mended after a while or so many steps more. What
the seed draws is the same each time, what the system makes of it is not.
"""
import fault_network

fault_network.go_inside()

import filecmp  # noqa: E402
import os  # noqa: E402
import pathlib  # noqa: E402
import random  # noqa: E402
import signal  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402

import ampd_testing  # noqa: E402
from ampd_testing import PATIENCE, ROOT, eventually, run  # noqa: E402
from fault_cluster import AGAIN_S, START_TIMEOUT_S, Cluster, Workers  # noqa: E402
from fault_network import Network  # noqa: E402

sys.path.insert(0, str(ROOT / "tests" / "crash"))
import scaler  # noqa: E402

LONG = "AMPD_FAULTS" in os.environ
SEED = int(os.environ.get("AMPD_TEST_SEED", "1"))
HANDFUL = ("kill", "stop_long", "cut_both", "lose_one", "kill_etcd", "fill_disk")
LEASE_S = 5 if LONG else 4 * PATIENCE  # with the shortest one of etcd, 2 s, a busy machine costs a process its place
WORLD, SHARDS, CHECKPOINT_EVERY = 2, 3, 20
STEP_TIMEOUT_S = 150 * PATIENCE
# A wait for a verdict: until a loss is found (the lease), a process is started and has restored its shard (from when it takes the place
# until it serves; it reads its part and, in an empty directory, the history of the others), and so much more.
SLACK_S = 5.0 * PATIENCE
LOSS = 0.05  # of packets
MEND_AFTER_STEPS = 60
NOTICED_S = 20.0 * PATIENCE  # a full disk is, by then
BUSY_STEP_S = 0.1 * PATIENCE     # on a busy machine
HELD_S = 1.0  # how long it is watched that no step is decided


class Bench:
    """What a fault acts on."""

    def __init__(self, network, cluster, workers):
        self.network, self.cluster, self.workers = network, cluster, workers

    def pass_time(self, seconds, steps=None):
        """Until the time is over or so many steps are decided."""
        until, wanted = time.monotonic() + seconds, None if steps is None else self.workers.decided() + steps
        while time.monotonic() < until and (wanted is None or self.workers.decided() < wanted):
            self.workers.fine()
            time.sleep(0.01)


# ---- faults: each is drawn with its numbers, then injected and mended; returns what it adds to the longest wait ----

def kill(bench, rng):
    victim, pause = bench.cluster.of(rng.randrange(SHARDS)), rng.choice([0, 0, LEASE_S + 1])
    victim.held = True
    victim.process.kill()
    victim.process.wait()
    victim.codes.append(-signal.SIGKILL)
    bench.pass_time(pause)
    victim.start()
    victim.held = False
    return f"{victim.name}, started again after {pause} s", 0.0


def _stop(bench, rng, seconds):
    victim = bench.cluster.of(rng.randrange(SHARDS))
    victim.send(signal.SIGSTOP)
    bench.pass_time(seconds)
    victim.send(signal.SIGCONT)
    return f"{victim.name} for {seconds:.1f} s", min(seconds, LEASE_S)


def stop_short(bench, rng):
    return _stop(bench, rng, rng.uniform(0.2, 0.8) * LEASE_S)


def stop_long(bench, rng):
    return _stop(bench, rng, LEASE_S + rng.uniform(1, 4))


def _cut(bench, rng, directions):
    victim = bench.cluster.of(rng.randrange(SHARDS))
    seconds = rng.choice([rng.uniform(0.2, 0.8) * LEASE_S, LEASE_S + rng.uniform(1, 4)])
    bench.network.cut(victim.name, directions)
    bench.pass_time(seconds)
    bench.network.mend(victim.name)
    return f"{victim.name} for {seconds:.1f} s", min(seconds, LEASE_S)


def cut_in(bench, rng):
    return _cut(bench, rng, ("in",))


def cut_out(bench, rng):
    return _cut(bench, rng, ("out",))


def cut_both(bench, rng):
    return _cut(bench, rng, ("in", "out"))


def _lose(bench, names):
    for name in names:
        bench.network.lose(name, LOSS)
    bench.pass_time(2 * LEASE_S, MEND_AFTER_STEPS)
    for name in names:
        bench.network.mend(name)
    return ", ".join(names), 0.0


def lose_one(bench, rng):
    return _lose(bench, [bench.cluster.of(rng.randrange(SHARDS)).name])


def lose_all(bench, rng):
    del rng
    return _lose(bench, [name for name in bench.network.hosts if not name.startswith("worker")])


def kill_etcd(bench, rng):
    member, seconds = rng.randrange(3), rng.uniform(0.5, 2) * LEASE_S
    bench.cluster.etcd.kill(member)
    bench.pass_time(seconds)
    bench.cluster.etcd.start(member)
    return f"member {member} for {seconds:.1f} s", 0.0


def cut_etcd(bench, rng):
    member, seconds = rng.randrange(3), rng.uniform(0.5, 2) * LEASE_S
    bench.network.cut(f"etcd{member}")
    bench.pass_time(seconds)
    bench.network.mend(f"etcd{member}")
    return f"member {member} for {seconds:.1f} s", 0.0


def kill_beside_etcd(bench, rng):
    """A member of etcd is away when a shard is lost: the others are a majority."""
    member = rng.randrange(3)
    bench.cluster.etcd.kill(member)
    bench.pass_time(rng.uniform(0, 2))  # also during an election
    what, length = kill(bench, rng)
    bench.pass_time(LEASE_S)
    bench.cluster.etcd.start(member)
    return f"{what}, without member {member} of etcd", length


def _fill(bench, disk, name, rng):
    """The store goes on in the room that its log has; the time counts from when there is none left."""
    seconds, owners = rng.uniform(1, LEASE_S + 2), bench.cluster.owners().values()
    began, noticed = time.monotonic(), False
    disk.fill()
    while not noticed and time.monotonic() < began + NOTICED_S:
        noticed = any("full" in getattr(owner.status(), "trouble", "") for owner in owners)
    bench.pass_time(seconds)
    disk.free()
    return f"of {name} for {seconds:.1f} s{'' if noticed else ', which nobody noticed'}", seconds


def fill_disk(bench, rng):
    victim = bench.cluster.of(rng.randrange(SHARDS))
    return _fill(bench, victim.disk, victim.name, rng)


def fill_checkpoints(bench, rng):
    return _fill(bench, bench.cluster.checkpoints, "the checkpoints", rng)


FAULTS = {function.__name__: function for function in (
    kill, stop_short, stop_long, cut_in, cut_out, cut_both, lose_one, lose_all, kill_etcd, cut_etcd, kill_beside_etcd, fill_disk, fill_checkpoints)}


def schedule():
    """(name, seed of its numbers), each kind as often as any other."""
    count, rng = int(os.environ.get("AMPD_FAULTS", len(HANDFUL))), random.Random(SEED)
    names = []
    while len(names) < count:
        kinds = list(FAULTS if LONG else HANDFUL)
        rng.shuffle(kinds)
        names += kinds
    return [(name, rng.getrandbits(32)) for name in names[:count]]


# ---- what must hold ----

def rows_of(process):
    rows, token = [], ""
    while True:
        page = process.api().ListScaleHistory(model="m", include_superseded=True, page_size=1000, page_token=token)
        rows, token = rows + list(page.rows), page.next_page_token
        if not token:
            return rows


def check_histories(cluster, last):
    """Of every shard: no gap, each row follows from the one before it, and the steps that stand are the same on all."""
    owners = cluster.owners()
    spec = owners[0].api().GetModel(model="m").spec.scaler
    found = [scaler.check_history(spec, rows_of(owners[k]), SHARDS) for k in range(SHARDS)]
    assert len(found[0]) == last, f"{len(found[0])} steps stand, {last} were made"
    assert all(steps == found[0] for steps in found), "the shards have different histories"


def check_told(workers, cluster):
    """The last verdict that a worker was told of a step is of an epoch in which every shard has that step."""
    rows = rows_of(cluster.of(0))
    stands = {row.step: row.epoch for row in rows if row.kind == scaler.STEP and not row.superseded}
    for verdicts in workers.verdicts:
        told = {step: epoch for _, epoch, step in verdicts}
        assert set(told) == set(stands), f"steps that one was told alone: {set(told) ^ set(stands)}"
        assert all(told[step] <= stands[step] for step in told)


def export(bin_dir, inside, address, path):
    subprocess.run([*inside, bin_dir / "ampctl", "--endpoint", address, "checkpoint", "export", "m", path], check=True,
                   timeout=STEP_TIMEOUT_S, capture_output=True)
    return path


def finish(workers, api, last, timeout_s=STEP_TIMEOUT_S):
    workers.end_after(last)
    workers.wait(timeout_s)
    eventually(lambda: api().GetModel(model="m").status.durable_step >= last, f"step {last} is durable", STEP_TIMEOUT_S)


def undisturbed(context, last, durability):
    """Where one shard ends after so many steps."""
    server, folder = context.server(), context.folder()
    folder.mkdir()
    workers = Workers(None, context.bin_dir, folder, f"127.0.0.1:{server.port}", WORLD, folder / "last", CHECKPOINT_EVERY, durability)
    context._own.append(workers)
    finish(workers, lambda: ampd_testing.Api(server.channel), last, STEP_TIMEOUT_S + last * BUSY_STEP_S)
    return export(context.bin_dir, (), f"127.0.0.1:{server.port}", folder / "export")


def inject(bench, number, name, seed):
    """One fault; the longest wait."""
    rng, workers = random.Random(seed), bench.workers
    workers.await_verdicts(rng.randrange(10, 40), STEP_TIMEOUT_S)
    began, day = time.monotonic(), time.time()
    what, length = FAULTS[name](bench, rng)
    workers.await_verdicts(5, STEP_TIMEOUT_S)
    restore = bench.cluster.restore_s(day)
    wait, bound = workers.longest_wait(began), max(LEASE_S + AGAIN_S + restore, length) + SLACK_S
    print(f"    fault {number}, seed {seed}: {name} {what}: waited {wait:.2f} s, restore {restore:.2f}, bound {bound:.1f}; "
          f"step {workers.decided()}", flush=True)
    bench.cluster.wait_until_whole()
    return name, wait, bound


def run_faults(context, network, durability, faults):
    cluster = Cluster(network, context.folder(), context.bin_dir / "ampd", SHARDS, 1, LEASE_S)
    context._own.insert(0, cluster)
    workers = Workers(network, context.bin_dir, cluster.folder, cluster.addresses, WORLD, cluster.folder / "last",
                      CHECKPOINT_EVERY, durability)
    context._own.insert(0, workers)
    bench, waits = Bench(network, cluster, workers), []
    try:
        for number, (name, seed) in enumerate(faults, 1):
            waits.append(inject(bench, number, name, seed))
        last = (workers.decided() + 20 * CHECKPOINT_EVERY) // CHECKPOINT_EVERY * CHECKPOINT_EVERY
        finish(workers, lambda: cluster.of(0).api(), last)
        check_histories(cluster, last)
        check_told(workers, cluster)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{cluster.tails()}") from error
    late = [(name, wait, bound) for name, wait, bound in waits if wait > bound]
    print(f"    {len(faults)} faults in {last} steps, durability {durability}, lease {LEASE_S} s: the longest wait was "
          f"{max(wait for _, wait, _ in waits):.2f} s; ends of processes: {[process.codes for process in cluster.processes]}")
    ended = export(context.bin_dir, (), cluster.of(0).address, cluster.folder / "export")
    assert filecmp.cmp(ended, undisturbed(context, last, durability), shallow=False), "other bits than without faults"
    assert not late, f"waits beyond their bounds: {late}"


def new_network(context):
    network = Network()
    context._own.append(network)  # ended after all that is in it
    return network


def test_when_etcds_leader_is_cut_off_every_shard_keeps_its_place(context):
    """A member that it has left asks it on for longer than a lease lasts (7 s); the others have a leader within two."""
    network = new_network(context)
    cluster = Cluster(network, context.folder(), context.bin_dir / "ampd", SHARDS, 1, lease_s=5 * PATIENCE)
    context._own.insert(0, cluster)
    for _ in range(1 if not LONG else 3):
        leader = cluster.etcd.leader()
        network.cut(f"etcd{leader}")
        time.sleep(9 * PATIENCE)  # in which a lease would end
        network.mend(f"etcd{leader}")
        assert not any(process.codes for process in cluster.processes), cluster.tails()
    cluster.wait_until_whole()


def test_a_full_disk_of_one_shard_is_told_and_holds_all_up_until_there_is_room(context):
    network = new_network(context)
    cluster = Cluster(network, context.folder(), context.bin_dir / "ampd", SHARDS, 0, LEASE_S)
    context._own.insert(0, cluster)
    workers = Workers(network, context.bin_dir, cluster.folder, cluster.addresses, WORLD, cluster.folder / "last", CHECKPOINT_EVERY)
    context._own.insert(0, workers)
    for shard in (1, 0):
        workers.await_verdicts(10, STEP_TIMEOUT_S)
        victim = cluster.of(shard)
        victim.disk.fill()
        eventually(lambda: "full" in victim.api().GetStatus().trouble, "the shard says that its disk is full", STEP_TIMEOUT_S)
        time.sleep(HELD_S)
        before = workers.decided()
        time.sleep(HELD_S)
        assert workers.decided() == before, "steps go on though a shard stores none"
        print(f"    {victim.api().GetStatus().trouble}")
        victim.disk.free()
        eventually(lambda: not victim.api().GetStatus().trouble, "the trouble is over", STEP_TIMEOUT_S)
    workers.await_verdicts(10, STEP_TIMEOUT_S)
    last = (workers.decided() + 10 * CHECKPOINT_EVERY) // CHECKPOINT_EVERY * CHECKPOINT_EVERY
    finish(workers, lambda: cluster.of(0).api(), last)
    check_histories(cluster, last)
    assert not any(process.codes for process in cluster.processes)


def test_faults_of_processes_links_disks_and_etcd_leave_no_trace(context):
    print(f"    seed {SEED} (AMPD_TEST_SEED)", flush=True)
    run_faults(context, new_network(context), os.environ.get("AMPD_DURABILITY", "checkpoint"), schedule())


if __name__ == "__main__":
    run(globals())
