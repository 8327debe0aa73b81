#!/usr/bin/python3
"""A model on another number of shards: the same bits, the same history, also when the start is killed half-way.

    test_server_reshard.py BIN_DIR [NAME ...]
"""
import filecmp
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading

import ampd_testing
from ampd_testing import eventually, grpc, model, run
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "crash"))
from failpoints import Failpoints, named_in_the_sources  # noqa: E402
from test_server_shards import START_TIMEOUT_S, STEPS, WORLD, Cluster, Job

MORE = 4  # steps after


class Told(Job):
    """Workers that push a state of their own with each step."""

    def user_state(self, rank, step):
        return f"rank {rank} after step {step}".encode() * (rank + 1)


def shared(folder):
    return ["--checkpoint-dir", folder / "shared"]


def ctl(context, cluster, *arguments):
    done = subprocess.run([context.bin_dir / "ampctl", "-e", cluster.addresses[0], *arguments], capture_output=True,
                          text=True, timeout=60)
    assert done.returncode == 0, (arguments, done.stderr)
    return done.stdout


def export(context, cluster, name):
    """The newest checkpoint as one file."""
    file = cluster.folder / f"{name}.safetensors"
    ctl(context, cluster, "checkpoint", "export", "m", file)
    return file


def history(context, cluster, name="m"):
    rows = json.loads(ctl(context, cluster, "history", name, "-o", "json"))["rows"]
    return [row for row in rows if row.get("verdict")]


def begin(context, count, **fields):
    """A cluster that has trained and has been ended, with its exported last checkpoint and its history."""
    folder = context.folder()
    folder.mkdir()
    cluster = Cluster(context, count, folder, shared(folder))
    job = Told(cluster, checkpoint_every=4, **fields)
    job.train([job.join(rank) for rank in range(WORLD)], 1, STEPS)
    rows = history(context, cluster)
    assert cluster.end() == [0] * count, [cluster.log(k)[-1500:] for k in range(count)]
    return cluster, rows


def again(context, cluster, count):
    """The same data directories and files, and another number of shards."""
    return Cluster(context, count, cluster.folder, shared(cluster.folder), ["--epoch-above", "1"])


def taken_up(cluster, **fields):
    """The job on a cluster that was made from another one."""
    job = Told(cluster, load=False, checkpoint_every=4, **fields)
    eventually(lambda: not cluster.api(0).GetModel(model="m").status.recovering, "the model is back", START_TIMEOUT_S)
    return job


def expected_after(context, **fields):
    """The exports of one shard that is never disturbed: after STEPS, and after MORE."""
    folder = context.folder()
    folder.mkdir()
    cluster = Cluster(context, 1, folder)
    job = Told(cluster, checkpoint_every=2, **fields)
    workers = [job.join(rank) for rank in range(WORLD)]
    files = []
    for first, last in ((1, STEPS), (STEPS + 1, STEPS + MORE)):
        job.train(workers, first, last)
        eventually(lambda: cluster.api(0).GetModel(model="m").status.durable_step == last, f"step {last} is durable")
        files.append(export(context, cluster, f"step-{last}"))
    return files


def same(a, b, what):
    assert filecmp.cmp(a, b, shallow=False), f"{what}: other bytes"


def check_onto(context, count, others, expected, **fields):
    """From `count` shards onto the others in turn; the first of them trains on."""
    cluster, rows = begin(context, count, **fields)
    for turn, other in enumerate(others):
        cluster = again(context, cluster, other)
        job = taken_up(cluster, **fields)
        what = f"from {count} onto {others[:turn + 1]}"
        same(export(context, cluster, f"taken-{turn}"), expected[min(turn, 1)], what)
        assert history(context, cluster) == rows, f"{what}: another history"
        if turn == 0:
            workers = [job.join(rank) for rank in range(WORLD)]
            assert [w.user_state for w in workers] == [job.user_state(w.rank, STEPS) for w in workers], workers
            job.train(workers, STEPS + 1, STEPS + MORE)
            rows = history(context, cluster)
            assert [int(row["step"]) for row in rows] == list(range(1, STEPS + MORE + 1)), rows
        assert cluster.end() == [0] * other, [cluster.log(k)[-1500:] for k in range(other)]
    same(export(context, again(context, cluster, others[-1]), "last"), expected[1], f"from {count} onto {others}, trained on")


def test_fewer_shards_have_the_bits_of_more(context):
    expected = expected_after(context)
    check_onto(context, 4, [1], expected)
    check_onto(context, 3, [2, 1], expected)


def test_more_shards_have_the_bits_of_fewer(context):
    """New shards have empty data directories, which the others fill."""
    expected = expected_after(context)
    check_onto(context, 2, [3, 1], expected)
    check_onto(context, 1, [4], expected)


def test_a_shard_that_has_lost_its_disk_is_filled_by_the_others(context):
    """Shard 1, then the coordinator: the checkpoint that existed is gone back to, and the history has no gap."""
    expected = expected_after(context)
    folder = context.folder()
    folder.mkdir()
    cluster = Cluster(context, 2, folder, shared(folder))
    job = Told(cluster, checkpoint_every=2)
    workers = [job.join(rank) for rank in range(WORLD)]
    job.train(workers, 1, STEPS + 1)
    for turn, lost in enumerate((1, 0)):
        eventually(lambda: cluster.api(0).GetModel(model="m").status.durable_step == STEPS, f"step {STEPS} is durable")
        before = history(context, cluster)
        cluster.kill(lost)
        shutil.rmtree(folder / f"data-{lost}")
        epoch = 3 + 10 * turn
        cluster.start(lost, ["--epoch-above", str(epoch)])
        cluster.wait_until_healthy()
        eventually(lambda: cluster.api(0).GetModel(model="m").status.epoch == epoch + 1 and
                   not cluster.api(0).GetModel(model="m").status.recovering, f"epoch {epoch + 1}", START_TIMEOUT_S)
        same(export(context, cluster, f"without-{lost}"), expected[0], f"shard {lost} lost its disk")
        assert history(context, cluster) == [row for row in before if int(row["step"]) <= STEPS], f"shard {lost}"
        workers = [job.join(rank) for rank in range(WORLD)]
        assert [(w.step, w.user_state) for w in workers] == [(STEPS + 1, job.user_state(w.rank, STEPS)) for w in workers]
        job.train(workers, STEPS + 1, STEPS + 1)
    job.train(workers, STEPS + 2, STEPS + MORE)
    eventually(lambda: cluster.api(0).GetModel(model="m").status.durable_step == STEPS + MORE, "the last step is durable")
    same(export(context, cluster, "last"), expected[1], "both lost their disks")
    assert [int(row["step"]) for row in history(context, cluster)] == list(range(1, STEPS + MORE + 1))


def test_an_empty_store_does_not_join_by_itself(context):
    """Nor does one whose part is not there, nor a data directory of before."""
    folder = context.folder()
    folder.mkdir()
    cluster = Cluster(context, 2, folder, shared(folder))
    job = Told(cluster, checkpoint_every=2)
    workers = [job.join(rank) for rank in range(WORLD)]
    job.train(workers, 1, 4)
    eventually(lambda: cluster.api(0).GetModel(model="m").status.durable_step == 4, "step 4 is durable")
    assert cluster.end() == [0, 0]
    shutil.copytree(folder / "data-1", folder / "kept", ignore=shutil.ignore_patterns("*.sock"))
    shutil.rmtree(folder / "data-1")
    (folder / "data-0" / "LOCK").unlink()
    cluster = Cluster.__new__(Cluster)
    cluster.__dict__.update(program=context.bin_dir / "ampd", count=2, options=shared(folder), folder=folder,
                            addresses=[f"unix:{folder}/s{k}" for k in range(2)], processes=[None] * 2, channels=[None] * 2)
    context._own.append(cluster)
    cluster.start(0)
    cluster.start(1)
    eventually(lambda: "has that place: refused" in cluster.log(0) or "does not know the model" in cluster.log(0),
               "the empty one is refused", START_TIMEOUT_S)
    cluster.kill(1)
    shutil.rmtree(folder / "data-1")
    cluster.start(1, ["--epoch-above", "1"])
    cluster.wait_until_healthy()
    same(export(context, cluster, "joined"), export(context, cluster, "again"), "the same checkpoint")
    workers = [job.join(rank) for rank in range(WORLD)]
    assert [w.step for w in workers] == [5] * WORLD, workers
    job.cluster = cluster
    job.train(workers, 5, 6)
    eventually(lambda: cluster.api(0).GetModel(model="m").status.durable_step == 6, "step 6 is durable")
    cluster.kill(1)
    shutil.rmtree(folder / "data-1")
    shutil.copytree(folder / "kept", folder / "data-1")
    cluster.start(1)
    eventually(lambda: "has that place: refused" in cluster.log(0), "a process of before is refused", START_TIMEOUT_S)


def killed_at(program, cluster, points, place):
    """Starts one shard on the data of shard 0, which the failpoint kills."""
    points.kill_at(place, 1)
    done = subprocess.run([*ampd_testing.DIE_WITH_PARENT, program, "--data-dir", cluster.folder / "data-0", "--listen",
                           f"unix:{cluster.folder}/s9", *shared(cluster.folder)], capture_output=True, text=True,
                          timeout=60, env={**os.environ, "AMPD_FAILPOINTS_FILE": str(points.path)})
    assert done.returncode == -signal.SIGKILL, (place, done)


def test_a_start_that_is_killed_half_way_begins_again(context):
    """At each of its failpoints."""
    program = context.bin_dir.parent / "tests" / "crash" / "ampd_crash"
    if not program.exists():
        print("SKIPPED: no server with failpoints in this build")
        return
    cluster, rows = begin(context, 2)
    before = export(context, again(context, cluster, 2), "before")
    for process in context._own.pop().processes:
        process.terminate()
        process.wait(60)
    points = Failpoints(cluster.folder / "failpoints", 1, 0)
    for place in sorted(name for name in named_in_the_sources() if name.startswith("takeup.")):
        killed_at(program, cluster, points, place)
        # Two shards can still go on, too, and find their parts.
        same(export(context, again(context, cluster, 2), f"still-{place}"), before, f"killed at {place}, two shards again")
        assert context._own.pop().end() == [0, 0]
    points.close()
    last = again(context, cluster, 1)
    same(export(context, last, "after"), before, "killed at each failpoint")
    assert history(context, last) == rows


def test_a_start_that_is_killed_leaves_no_journal_of_another_number_of_shards(context):
    program = context.bin_dir.parent / "tests" / "crash" / "ampd_crash"
    if not program.exists():
        print("SKIPPED: no server with failpoints in this build")
        return
    fields = {"durability": model.DURABILITY_STEP}
    cluster, rows = begin(context, 2, **fields)
    journal = cluster.folder / "data-0" / "models" / "m" / "journal"
    before = export(context, again(context, cluster, 2), "before")
    assert context._own.pop().end() == [0, 0] and list(journal.iterdir()) == [journal / "shard-0-of-2"]
    points = Failpoints(cluster.folder / "failpoints", 1, 0)
    for place in ("takeup.adopt", "takeup.adopted"):
        killed_at(program, cluster, points, place)
        assert not journal.exists(), place
    points.close()
    last = again(context, cluster, 1)
    same(export(context, last, "after"), before, "killed before and after the checkpoint was adopted")
    assert history(context, last) == rows


def test_steps_that_only_the_journal_of_one_shard_has_are_kept(context):
    """Made from two, it is killed before its next checkpoint: two and three are refused, and one goes on with every step."""
    fields = {"durability": model.DURABILITY_STEP}
    expected = expected_after(context)
    cluster, _ = begin(context, 2, **fields)
    one = again(context, cluster, 1)
    job = taken_up(one, **fields)
    job.train([job.join(rank) for rank in range(WORLD)], STEPS + 1, STEPS + 1)
    rows = history(context, one)
    one.kill(0)
    for count in (2, 3):
        peers = ",".join(f"unix:{cluster.folder}/s{k}" for k in range(count))
        code, lines = ampd_testing.start_and_fail(context.bin_dir, "--data-dir", cluster.folder / "data-0", "--listen",
                                                  f"unix:{cluster.folder}/s0", "--peers", peers, "--shard", "0", *shared(cluster.folder))
        assert code == 3 and f"step {STEPS + 1} " in lines[-1] and "journal of 1 shard(s), and in no checkpoint; start ampd without --peers" in lines[-1], (code, lines)
    one = again(context, cluster, 1)
    job = taken_up(one, **fields)
    assert history(context, one) == rows and int(rows[-1]["step"]) == STEPS + 1, rows
    job.train([job.join(rank) for rank in range(WORLD)], STEPS + 2, STEPS + MORE)
    assert one.end() == [0], one.log(0)[-1500:]
    shutil.rmtree(cluster.folder / "data-1")  # of before
    two = again(context, cluster, 2)
    taken_up(two, **fields)
    same(export(context, two, "last"), expected[1], "onto one, killed, and onto two again")


def test_files_of_a_deletion_that_is_killed_half_way_go_with_the_next_start(context):
    """The shard has forgotten the model by then, and the directory of its files is not its own."""
    program = context.bin_dir.parent / "tests" / "crash" / "ampd_crash"
    if not program.exists():
        print("SKIPPED: no server with failpoints in this build")
        return
    folder = context.folder()
    folder.mkdir()
    cluster = Cluster(context, 2, folder, shared(folder))
    points = Failpoints(folder / "failpoints", 1, 0)
    os.environ["AMPD_FAILPOINTS_FILE"], calm = str(points.path), cluster.program

    def delete():
        try:
            cluster.api(0).DeleteModel(model="m", force=True)
        except grpc.RpcError:
            pass  # it waits for the shard, or its server has ended

    def start(k):
        cluster.start(k)
        cluster.wait_until_healthy()

    for victim in (1, 0):
        cluster.kill(victim)
        cluster.program = program
        start(victim)
        job = Job(cluster)
        job.train([job.join(rank) for rank in range(WORLD)], 1, 2)
        eventually(lambda: cluster.api(0).GetModel(model="m").status.durable_step == 2, "step 2 is durable")
        points.kill_at("delete.unstored", 1)
        call = threading.Thread(target=delete)
        call.start()
        assert cluster.processes[victim].wait(START_TIMEOUT_S) == -signal.SIGKILL, cluster.log(victim)[-1500:]
        cluster.channels[victim].close()
        assert ampd_testing.found(folder, f"shared/models/m/checkpoints/step-*/shard-{victim}-of-2.safetensors")
        cluster.program = calm
        start(victim)
        call.join()
        eventually(lambda: not any(cluster.api(k).ListModels().models for k in range(2)), "the model is gone", START_TIMEOUT_S)
        eventually(lambda: not (folder / "shared/models/m").exists(), f"its files are gone, shard {victim}", START_TIMEOUT_S)
    del os.environ["AMPD_FAILPOINTS_FILE"]
    points.close()


def test_a_start_without_all_parts_is_refused_and_nothing_is_lost(context):
    """Where they are not, and where one is damaged: the text says what to do, and the number before goes on."""
    cluster, rows = begin(context, 2)
    before = export(context, again(context, cluster, 2), "before")
    assert context._own.pop().end() == [0, 0]
    data = cluster.folder / "data-0"
    code, lines = ampd_testing.start_and_fail(context.bin_dir, "--data-dir", data)
    assert code == 3 and "--checkpoint-dir" in lines[-1] and "2 shards" in lines[-1], (code, lines)
    part = ampd_testing.found(cluster.folder, "shared/models/m/checkpoints/step-*/shard-1-of-2.safetensors")[-1]
    kept = part.read_bytes()
    part.write_bytes(kept[:-9] + bytes([kept[-9] ^ 1]) + kept[-8:])
    code, lines = ampd_testing.start_and_fail(context.bin_dir, "--data-dir", data, *shared(cluster.folder))
    assert code == 3 and "shard-1-of-2" in lines[-1], (code, lines)
    part.write_bytes(kept)
    assert export(context, again(context, cluster, 2), "after").read_bytes() == before.read_bytes()


if __name__ == "__main__":
    run(globals())
