#!/usr/bin/python3
"""How a cluster ends, and how its shards are restarted one by one: no decided step is lost, whatever the order.

    test_server_leave.py BIN_DIR [NAME ...]
"""
import subprocess

import ampd_testing
from ampd_testing import DIE_WITH_PARENT, PATIENCE, Code, common, eventually, grpc, refused, run, scales
from test_server_shards import START_TIMEOUT_S, WORLD, Cluster, Job

SHARDS = 3
TRAINING_STEPS = 2000    # more than go on while all shards are restarted
BETWEEN_STEPS = 60       # decided between two restarts
NEVER = "1000000"        # checkpoint_every: only a drain cuts
END_TIMEOUT_S = 60 * PATIENCE
ALONE_S = 30             # the bound of ampd's own waits, and more


class Training:
    """Workers with libampclient, as processes, on a cluster."""

    def __init__(self, context, cluster, steps=TRAINING_STEPS, durability="checkpoint"):
        self.cluster = cluster
        program = context.bin_dir.parent / "tests" / "crash" / "crash_worker"
        self.said = [open(cluster.folder / f"worker-{rank}", "w+b") for rank in range(WORLD)]
        endpoints = ",".join(cluster.addresses)
        self.workers = [subprocess.Popen([*DIE_WITH_PARENT, program, endpoints, "m", str(rank), str(WORLD), str(steps), NEVER,
                                          durability], stdin=subprocess.DEVNULL, stdout=self.said[rank], stderr=self.said[rank])
                        for rank in range(WORLD)]

    def alive(self):
        return [worker.poll() for worker in self.workers]

    def status(self):
        return self.cluster.api(0).GetModel(model="m").status

    def until_steps(self, count):
        """At least so many steps are decided; how many."""
        def far_enough():
            assert all(code in (None, 0) for code in self.alive()), self.output()
            try:
                attempted = self.status().scale.attempted
            except grpc.RpcError:  # not created yet
                return None
            return attempted if attempted >= count else None
        return eventually(far_enough, f"{count} steps are decided", START_TIMEOUT_S)

    def output(self):
        for file in self.said:
            file.seek(0)
        return [file.read()[-800:] for file in self.said]

    def end(self):
        codes = [worker.wait(END_TIMEOUT_S * 5) for worker in self.workers]
        assert codes == [0] * WORLD, self.output()
        assert self.status().state == common.MODEL_STATE_DONE


def leave(cluster, k):
    """SIGTERM; it ends in order."""
    cluster.processes[k].terminate()
    code = cluster.processes[k].wait(END_TIMEOUT_S)
    cluster.channels[k].close()
    assert code == 0, cluster.log(k)[-2000:]


def exported(context, cluster, name):
    file = cluster.folder / name
    done = subprocess.run([context.bin_dir / "ampctl", "--endpoint", cluster.addresses[0], "checkpoint", "export", "m", file],
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=END_TIMEOUT_S,
                          check=False)
    assert done.returncode == 0, done.stdout
    return file.read_bytes()


def step_rows(cluster):
    rows, token = [], ""
    while True:
        page = cluster.api(0).ListScaleHistory(model="m", page_size=1000, page_token=token)
        rows += [row for row in page.rows if row.kind == scales.HISTORY_KIND_STEP]
        token = page.next_page_token
        if not token:
            return rows


def no_step_was_lost(cluster, steps):
    rows = step_rows(cluster)
    assert not [row.step for row in rows if row.superseded], "steps were decided and lost"
    assert [row.step for row in rows] == list(range(1, steps + 1))


def undisturbed(context, steps=TRAINING_STEPS):
    cluster = Cluster(context, SHARDS)
    training = Training(context, cluster, steps)
    training.end()
    return exported(context, cluster, "undisturbed")


def restarted(context, durability, order):
    """The export of a job during which each shard was ended and started again."""
    cluster = Cluster(context, SHARDS)
    training = Training(context, cluster, durability=durability)
    decided = 0
    for k in order:
        decided = training.until_steps(decided + BETWEEN_STEPS)
        leave(cluster, k)
        cluster.start(k)
        cluster.wait_until_healthy()
    training.until_steps(decided + BETWEEN_STEPS)
    assert None in training.alive(), "the training was over before all shards were restarted"
    training.end()
    no_step_was_lost(cluster, TRAINING_STEPS)
    result = exported(context, cluster, "restarted")
    assert cluster.end() == [0] * SHARDS, [cluster.log(k)[-1500:] for k in range(SHARDS)]
    return result


def test_a_rolling_restart_loses_no_step_and_no_bit(context):
    expected = undisturbed(context)
    assert restarted(context, "checkpoint", (1, 0, 2)) == expected
    assert restarted(context, "step", (2, 1, 0)) == expected


def test_all_shards_may_be_ended_at_once_and_in_any_order(context):
    """And what was decided is there when they start again."""
    for order in ((0, 1, 2), (2, 1, 0), None):
        cluster = Cluster(context, SHARDS)
        job = Job(cluster, checkpoint_every=1000)
        job.train([job.join(rank) for rank in range(WORLD)], 1, 5)
        for k in order or ():
            leave(cluster, k)
        if order is None:
            for process in cluster.processes:
                process.terminate()
            codes = [process.wait(END_TIMEOUT_S) for process in cluster.processes]
            assert codes == [0] * SHARDS, [cluster.log(k)[-1500:] for k in range(SHARDS)]
        for k in range(SHARDS):
            cluster.start(k)
        cluster.wait_until_healthy()
        eventually(lambda: not job.cluster.api(0).GetModel(model="m").status.recovering, "the model is back", START_TIMEOUT_S)
        joined = [job.join(rank) for rank in range(WORLD)]
        assert [one.step for one in joined] == [6] * WORLD, (order, joined)
        assert len(job.train(joined, 6, 7)) == 2


def test_while_a_shard_is_gone_workers_wait_and_are_told(context):
    cluster = Cluster(context, 2)
    job = Job(cluster, checkpoint_every=1000)
    workers = [job.join(rank) for rank in range(WORLD)]
    job.train(workers, 1, 3)
    header, _ = job.pull(workers[0], 4)
    waiting = job.start_push(workers[0], 4, header, shards=[1])[0]
    leave(cluster, 1)
    refused(waiting.result, Code.UNAVAILABLE, "DRAINING")
    status = cluster.api(0).GetModel(model="m").status
    assert status.scale.attempted == 3 and status.durable_step == 3, status
    cluster.start(1)
    cluster.wait_until_healthy()
    eventually(lambda: cluster.api(0).GetModel(model="m").status.epoch == 2, "a new epoch", START_TIMEOUT_S)
    workers = [job.join(rank) for rank in range(WORLD)]
    assert [one.step for one in workers] == [4] * WORLD
    job.train(workers, 4, 5)


def test_a_shard_that_finds_nobody_ends_all_the_same(context):
    """Shard 0 was killed; and shard 0 lacks a shard that was killed."""
    for killed, ended in ((0, 1), (1, 0)):
        cluster = Cluster(context, 2)
        job = Job(cluster, checkpoint_every=1000)
        job.train([job.join(rank) for rank in range(WORLD)], 1, 3)
        cluster.kill(killed)
        cluster.processes[ended].terminate()
        assert cluster.processes[ended].wait(ALONE_S) == 0, cluster.log(ended)[-1500:]
        assert "steps since the last checkpoint may come again" in cluster.log(ended)


def test_ampctl_drain_ends_any_shard(context):
    cluster = Cluster(context, 2)
    job = Job(cluster, checkpoint_every=1000)
    job.train([job.join(rank) for rank in range(WORLD)], 1, 3)
    for k in (1, 0):
        done = subprocess.run([context.bin_dir / "ampctl", "--endpoint", cluster.addresses[k], "drain"],
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=END_TIMEOUT_S, check=False)
        assert done.returncode == 0, done.stdout
        assert cluster.processes[k].wait(END_TIMEOUT_S) == 0, cluster.log(k)[-1500:]
    for k in range(2):
        cluster.start(k)
    cluster.wait_until_healthy()
    assert job.join(0).step == 4


if __name__ == "__main__":
    run(globals())
