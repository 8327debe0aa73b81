#!/usr/bin/python3
"""Models that real workers train on one, two, three and four shards, and that are taken to another number of shards on the way:
bitwise the same last checkpoint. Workers share memory with the shards, and send bytes to one shard alone, for comparison.

    test_server_sizes.py BIN_DIR [NAME ...]      AMPD_LARGE=1 of the environment: also a model of 50 million parameters
"""
import os
import shutil
import subprocess
import time

import ampd_testing
from ampd_testing import DIE_WITH_PARENT, PATIENCE, common, eventually, run
from shared_testing import holdings
from test_server_reshard import again, history, same, shared
from test_server_shards import START_TIMEOUT_S, Cluster

WORLD = 2
LARGE = bool(os.environ.get("AMPD_LARGE"))
WORKERS_TIMEOUT_S = 300 * PATIENCE  # of one run; on an idle machine the large one takes half a minute
EXPORT_TIMEOUT_S = 300   # 600 MB of the large one
ELSEWHERE = ((2, 3), (4, 1))  # 2 and 3 for a part of the steps; from the first to the last 2 only with AMPD_LARGE
SHARDS_MAX = 64  # IO_CLUSTER_SHARDS_MAX of the server, AMPCLIENT_SHARDS_MAX of the client; most of them have no block of digits
FOUND = {}  # what a job ends with on one shard, by its name


class Digits:
    """examples/digits; 120 steps, the first of which overflow."""

    model, steps, every, middle = "digits", 120, 20, 40

    def command(self, bin_dir, address, _rank, _last):
        return [bin_dir / "digits", "--connect", address, "--steps", str(self.steps), "--checkpoint-every", str(self.every),
                "--quiet"]


class Large:
    """crash_worker (tests/crash/worker.c) with 50,659,659 parameters: AdamW, clipped by norm; steps 4 and 8 overflow."""

    model, steps, every, middle = "large", 9, 5, 5

    def command(self, bin_dir, address, rank, last):
        return [bin_dir.parent / "tests" / "crash" / "crash_worker", address, self.model, str(rank), str(WORLD), str(self.steps),
                str(self.every), "checkpoint", "large", str(last)]


def start(context, cluster, job, last=0):
    """The workers as processes, each with a file of what it says; `last`: a step after which they end."""
    workers = []
    for rank in range(WORLD):
        said = open(cluster.folder / f"worker-{rank}-{last}", "w+b")
        command = job.command(context.bin_dir, cluster.addresses[rank % cluster.count], rank, last)
        workers.append((subprocess.Popen([*DIE_WITH_PARENT, *command], stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                                         env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(WORLD)}), said))
    return workers


def await_slots(cluster):
    """Each worker has a slot of each shard."""
    def lent():
        return [holdings(process.pid)[1] for process in cluster.processes]
    eventually(lambda: lent() == [WORLD] * cluster.count, "memory of all shards is shared with all workers", WORKERS_TIMEOUT_S)


def finish(workers):
    codes = [process.wait(WORKERS_TIMEOUT_S) for process, _ in workers]
    for _, said in workers:
        said.seek(0)
    assert codes == [0] * WORLD, [said.read()[-1000:] for _, said in workers]
    for _, said in workers:
        said.close()


def status(cluster, job):
    models = [found for found in cluster.api(0).ListModels().models if found.name == job.model]
    return cluster.api(0).GetModel(model=job.model).status if models else None


def durable(cluster, job, step):
    eventually(lambda: status(cluster, job).durable_step == step, f"step {step} is durable")


def ended(cluster, job):
    durable(cluster, job, job.steps)
    eventually(lambda: status(cluster, job).state == common.MODEL_STATE_DONE, "the model is done")
    record = status(cluster, job).scale
    assert record.attempted == job.steps and record.total_overflows > 0, record


def export(context, cluster, job, name):
    """The newest checkpoint as one file, outside of the cluster's folder."""
    file = context.work / f"{cluster.folder.name}-{name}.safetensors"
    subprocess.run([context.bin_dir / "ampctl", "-e", cluster.addresses[0], "checkpoint", "export", job.model, file], check=True,
                   timeout=EXPORT_TIMEOUT_S, capture_output=True)
    return file


def begin(context, count, *options):
    folder = context.folder()
    folder.mkdir()
    return Cluster(context, count, folder, [*shared(folder), *options])


def over(context, cluster, *files):
    """Ends the cluster in order, and lets go of what takes space."""
    assert cluster.end() == [0] * cluster.count, [cluster.log(k)[-1500:] for k in range(cluster.count)]
    shutil.rmtree(cluster.folder)
    for file in files:
        if file not in FOUND.values():
            file.unlink()


def on(context, job, count, *options):
    """What the job ends with on so many shards."""
    cluster = begin(context, count, *options)
    began = time.monotonic()
    workers = start(context, cluster, job)
    if not options:
        await_slots(cluster)
    finish(workers)
    print(f"    {job.model} on {count} shard{'s' if count > 1 else ''}: {time.monotonic() - began:.1f} s", flush=True)
    ended(cluster, job)
    return cluster, export(context, cluster, job, "last")


def expected(context, job):
    if job.model not in FOUND:
        cluster, FOUND[job.model] = on(context, job, 1, "--shared-memory", "off")
        over(context, cluster)
    return FOUND[job.model]


def check_every_count(context, job, counts=(1, 2, 3, 4) if LARGE else (1, 3)):
    want = expected(context, job)
    for count in counts:
        cluster, have = on(context, job, count)
        same(have, want, f"{job.model} on {count} shards")
        over(context, cluster, have)


def continued(context, job, cluster, count):
    """On so many shards from here; at the same step, with the same history."""
    step, rows = status(cluster, job).scale.attempted, history_of(context, cluster, job)
    assert cluster.end() == [0] * cluster.count, [cluster.log(k)[-1500:] for k in range(cluster.count)]
    other = again(context, cluster, count)
    eventually(lambda: not status(other, job).recovering, "the model is back", START_TIMEOUT_S)
    assert status(other, job).scale.attempted == step and history_of(context, other, job) == rows
    return other


def history_of(context, cluster, job):
    return history(context, cluster, job.model)


def check_ends(context, job, cluster, what):
    finish(start(context, cluster, job))
    ended(cluster, job)
    have = export(context, cluster, job, "last")
    same(have, expected(context, job), what)
    over(context, cluster, have)


def test_digits_ends_with_one_checkpoint_on_whatever_number_of_shards(context):
    check_every_count(context, Digits())


def test_digits_ends_with_one_checkpoint_on_as_many_shards_as_there_may_be(context):
    check_every_count(context, Digits(), (SHARDS_MAX,))


def test_digits_goes_on_on_another_number_of_shards(context):
    """The workers are killed on the way, the shards drained; others of both go on."""
    job = Digits()
    for before, after in ELSEWHERE:
        cluster = begin(context, before)
        workers = start(context, cluster, job)
        eventually(lambda: (found := status(cluster, job)) and found.scale.attempted >= job.middle, "it has trained for a while")
        for process, said in workers:
            process.kill()
            process.wait()
            said.close()
        assert status(cluster, job).scale.attempted < job.steps, "it was done before the workers were killed"
        cluster = continued(context, job, cluster, after)
        check_ends(context, job, cluster, f"from {before} shards onto {after}")


if LARGE:
    def test_50_million_parameters_end_with_one_checkpoint_on_one_to_four_shards(context):
        check_every_count(context, Large())

    def test_50_million_parameters_go_on_on_another_number_of_shards(context):
        """What is taken up is what was left, and what it ends with is what one shard ends with."""
        job = Large()
        for before, after in ELSEWHERE:
            cluster = begin(context, before)
            finish(start(context, cluster, job, job.middle))
            durable(cluster, job, job.middle)
            left = export(context, cluster, job, "left")
            began = time.monotonic()
            cluster = continued(context, job, cluster, after)
            print(f"    from {before} shards onto {after}: {time.monotonic() - began:.1f} s", flush=True)
            taken = export(context, cluster, job, "taken")
            same(taken, left, f"from {before} shards onto {after}, taken up")
            left.unlink()
            taken.unlink()
            check_ends(context, job, cluster, f"from {before} shards onto {after}")


if __name__ == "__main__":
    ampd_testing.RUN_TIMEOUT_S = 3000 if LARGE else ampd_testing.RUN_TIMEOUT_S
    run(globals())
