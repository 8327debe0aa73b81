#!/usr/bin/python3
"""Shards whose places are kept in etcd: who is which, what a lost place ends, and an etcd that is away or has lost all.

    test_server_cluster.py BIN_DIR [NAME ...]
"""
import csv
import io
import os
import shutil
import signal
import sqlite3
import subprocess
import time

import ampd_testing
from ampd_testing import PATIENCE, Code, eventually, grpc, metric, refused, run
from etcd_testing import LEASE_S, LOST, Cluster, Etcd, wait_s
from test_server_shards import STEPS, WORLD, Job, stranger_as_shard_1, undisturbed


LONG_LEASE = f"{min(20 * PATIENCE, 60)}s"  # nothing waits for its end; the longest that there is


def trained(job, first, last):
    return [result for result, _ in job.train([job.join(rank) for rank in range(WORLD)], first, last)]


def new_job(cluster):
    """A model, once all shards have told what they hold."""
    def made():
        try:
            return Job(cluster)
        except grpc.RpcError as error:
            if error.code() != Code.UNAVAILABLE:
                raise
            return None
    jobs = []
    eventually(lambda: jobs or (job := made()) is not None and jobs.append(job) is None, "a model can be made", 60)
    return jobs[0]


def resume(job, expected):
    """All ranks join again, and train to the end; the results are those of a run in which nothing happened."""
    def joined():
        try:
            return [job.join(rank) for rank in range(WORLD)]
        except grpc.RpcError:
            return None
    eventually(lambda: joined() is not None, "the ranks can join", 60)
    workers = joined()
    first = workers[0].step
    got = job.train(workers, first, STEPS)
    for step, (want, have) in enumerate(zip(expected[first - 1:], got), first):
        assert want == have, f"step {step}"


def start_again(cluster):
    for process in cluster.processes:
        if process.process.poll() is not None:
            process.start()
    cluster.wait_until_healthy()


def test_any_process_is_any_shard_and_the_bits_are_those_of_one(context):
    expected = undisturbed(context)
    cluster = Cluster(context, 3, fixed=False, options=["--metrics-listen", "127.0.0.1:0"])
    standby = cluster.add()
    standby.says("this process stands by")
    assert sorted(process.shard() for process in cluster.processes[:3]) == [0, 1, 2]
    assert standby.api().health() != ampd_testing.HEALTH_SERVING
    refused(lambda: standby.api().ListModels(), Code.UNAVAILABLE, "STANDBY")
    first = cluster.of(0).address
    refused(lambda: standby.api().GetStatus(), Code.UNAVAILABLE, "STANDBY", ["stands by", f"shard 0, at {first}"])
    done = subprocess.run([context.bin_dir / "ampctl", "-e", standby.address, "status"], capture_output=True, text=True,
                          timeout=60, check=False)
    assert done.returncode == 0 and "stands by" in done.stderr and f"shard 0, at {first}" in done.stderr, done
    assert "shard 0 of 3" in done.stdout, done
    done = subprocess.run([context.bin_dir / "ampctl", "-e", cluster.of(1).address, "cluster", "-o", "csv"],
                          capture_output=True, text=True, timeout=60, check=True)
    rows = list(csv.DictReader(io.StringIO(done.stdout)))
    assert [row["state"] for row in rows] == ["up", "up", "up", "standby"], done
    assert rows[3]["address"] == standby.address and rows[3]["shard"] == "", done
    assert metric(standby, "ampd_shard") == -1 and metric(standby, "ampd_cluster_lease_left_seconds") == 0
    left = metric(cluster.of(1), "ampd_cluster_lease_left_seconds")
    assert 0 < left <= LEASE_S, left
    job = Job(cluster)
    assert [shard.endpoint for shard in job.shards()] == [cluster.of(k).address for k in range(3)]
    got = job.train([job.join(rank) for rank in range(WORLD)], 1, STEPS)
    for step, (want, have) in enumerate(zip(expected, got), 1):
        assert want == have, f"step {step}"
    assert standby.terminate() == 0, standby.log()[-1500:]


def test_a_standby_takes_the_place_of_a_process_that_was_killed(context):
    cluster = Cluster(context, 3, fixed=False)
    standby = cluster.add()
    standby.says("this process stands by")
    for k in (1, 0):
        lost = cluster.of(k)
        fence = lost.fence()
        lost.kill()
        standby.serves()
        assert standby.shard() == k and standby.fence() > fence
        for process in cluster.processes:  # all tell where it is now
            if process.process.poll() is None:
                eventually(lambda p=process: p.api().GetStatus().shards[k].endpoint == standby.address, "the new address is told")
        lost.start()
        lost.says("this process stands by")
        standby = lost
    cluster.wait_until_healthy()
    assert trained(new_job(cluster), 1, 2)  # over the new sessions


def stored_fence(process):
    """(counter, boot id) that the store of a shard has of itself."""
    shard = process.shard()
    path = process.cluster.folder / process.name / f"shard-{shard}-of-{process.cluster.count}" / "ampd.db"
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return connection.execute("SELECT counter, boot_id FROM fences WHERE shard = ?", (shard,)).fetchone()
    finally:
        connection.close()


def steps_of(cluster, name):
    """The steps of shard 0's history that still count, in its order."""
    rows = cluster.of(0).api().ListScaleHistory(model=name, page_size=1000).rows
    return [row.step for row in rows if row.verdict != 0 and not row.superseded]


def test_a_standby_goes_on_from_the_shared_checkpoints_where_a_lost_shard_was(context):
    """It has nothing of its own: its store is another shard's, its part of the model the lost one's file."""
    expected = undisturbed(context)
    cluster = Cluster(context, 3, fixed=False, options=["--checkpoint-dir", context.folder()])
    standby = cluster.add()
    standby.says("this process stands by")
    for k in (1, 0):
        job = Job(cluster, name=f"m{k}")
        trained(job, 1, 3)
        eventually(lambda: cluster.api(0).GetModel(model=job.name).status.durable_step == 2, "step 2 is durable")
        lost = cluster.of(k)
        lost.kill()
        standby.serves()
        assert standby.shard() == k
        standby.says("the store was filled by another shard")
        cluster.wait_until_healthy()
        resume(job, expected)
        counted = steps_of(cluster, job.name)
        assert sorted(set(counted)) == list(range(1, STEPS + 1)), counted
        lost.start()
        lost.says("this process stands by")
        standby = lost


def test_a_shard_that_comes_back_takes_its_place_again(context):
    expected = undisturbed(context)
    cluster = Cluster(context, 2)
    for lost in (1, 0):
        job = Job(cluster, name=f"m{lost}")
        trained(job, 1, 3)
        eventually(lambda: cluster.api(0).GetModel(model=job.name).status.durable_step == 2, "step 2 is durable")
        epoch = cluster.api(0).GetModel(model=job.name).status.epoch
        cluster.processes[lost].kill()
        cluster.processes[lost].start()
        cluster.wait_until_healthy()
        resume(job, expected)
        assert cluster.api(0).GetModel(model=job.name).status.epoch > epoch


def test_a_process_that_is_started_again_takes_its_own_place_at_once(context):
    """It need not wait for the lease of the one before it, which is gone, since the directory is not locked; under a higher fence."""
    cluster = Cluster(context, 2, options=["--cluster-lease", LONG_LEASE])
    for process in cluster.processes:
        fence, listened = process.fence(), process.log().count("holding a place")
        process.kill()
        began = time.monotonic()
        process.start()
        process.says("holding a place", listened + 1)
        took = time.monotonic() - began
        assert took < float(LONG_LEASE[:-1]) / 3, took
        process.serves()
        assert process.fence() > fence
    cluster.wait_until_healthy()
    assert trained(new_job(cluster), 1, 2)


def test_a_copy_of_a_data_directory_takes_no_place_from_a_process_that_lives(context):
    """It names the lease of that process, but its lock is another one."""
    cluster = Cluster(context, 2, options=["--cluster-lease", LONG_LEASE])
    fences = [process.fence() for process in cluster.processes]
    shutil.copytree(cluster.folder / "p1", cluster.folder / "p2", ignore=shutil.ignore_patterns("*.sock"))
    assert (cluster.folder / "p2" / "LEASE").read_text() == (cluster.folder / "p1" / "LEASE").read_text()
    copy = cluster.add(["--shard", "1"])
    copy.says(f"shard 1 is held by {cluster.processes[1].address}")
    assert "is ended" not in copy.log()
    wait_s(2)
    assert [process.fence() for process in cluster.processes[:2]] == fences
    copy.kill()
    for text in ("", "0", "x" * 500, "7fffffffffffffff", "ffffffffffffffff 0 0 0\n"):  # what no process has written
        (cluster.folder / "p2" / "LEASE").write_text(text)
        before = copy.log().count("shard 1 is held by")
        copy.start()
        copy.says("shard 1 is held by", before + 1)
        copy.kill()
    assert trained(new_job(cluster), 1, 2)


def test_of_two_processes_for_one_shard_one_waits(context):
    cluster = Cluster(context, 2, options=["--checkpoint-dir", context.folder()])
    second = cluster.add(["--shard", "1"])
    second.says(f"shard 1 is held by {cluster.processes[1].address}")
    wait_s(2 * LEASE_S)
    assert trained(new_job(cluster), 1, 2)
    assert second.api().health() != ampd_testing.HEALTH_SERVING
    assert cluster.processes[1].terminate() == 0
    second.serves()  # at once: the place was given back
    assert second.shard() == 1


def test_a_process_that_is_stopped_past_its_lease_ends_when_it_wakes(context):
    for k in (1, 0):
        cluster = Cluster(context, 2)
        standby = cluster.add()
        standby.says("this process stands by")
        stopped = cluster.processes[k]
        stopped.send(signal.SIGSTOP)
        standby.serves()
        assert standby.shard() == k
        call = stopped.api().start("ListModels")  # waits in its socket
        stopped.send(signal.SIGCONT)
        refused(call.result, Code.UNAVAILABLE, rich=False)
        assert stopped.wait() == LOST, stopped.log()[-1500:]
        assert "is not a shard any more" in stopped.log()
        assert trained(new_job(cluster), 1, 2)


def test_no_two_processes_have_the_fence_of_another_one(context):
    """Also where an etcd that has lost all comes to the same revision again: the id of a lease is part of it."""
    cluster = Cluster(context, 2)
    first = stored_fence(cluster.processes[1])
    assert cluster.processes[1].terminate() == 0
    cluster.processes[1].start()
    cluster.wait_until_healthy()
    second = stored_fence(cluster.processes[1])
    assert any(first[1]) and any(second[1]) and first[1] != second[1] and second[0] > first[0], (first, second)


def test_a_shard_that_a_stranger_has_shut_out_is_back_under_a_higher_fence(context):
    cluster = Cluster(context, 2)
    job = new_job(cluster)
    shut_out = cluster.processes[1]
    above = shut_out.fence() + 2**39
    stranger_as_shard_1(cluster.processes[0].channel, above)
    assert shut_out.wait() == LOST
    shut_out.start()  # as a service manager does
    cluster.wait_until_healthy()
    assert shut_out.fence() > above
    assert len(trained(job, 1, 2)) == 2


def test_a_process_whose_lease_ends_while_its_store_is_filled_ends_too(context):
    cluster = Cluster(context, 2)
    for process in cluster.processes:
        process.kill()
    lone = cluster.processes[1]
    lone.name = "p1-new"
    lone.start()
    lone.says("the data directory is empty: the other shards are asked", 2)  # it was so at the beginning, too
    cluster.etcd.kill()
    assert lone.wait() == LOST, lone.log()[-1500:]
    assert "is not a shard any more" in lone.log()


def test_an_etcd_that_is_away_for_less_than_the_lease_costs_nothing(context):
    """A long lease: on a busy machine a step and the start of etcd take seconds."""
    cluster = Cluster(context, 2, options=["--cluster-lease", f"{15 * PATIENCE}s", "--worker-lease", "10m"])
    job = Job(cluster)
    workers = [job.join(rank) for rank in range(WORLD)]
    expected = [result for result, _ in undisturbed(context)]
    got = [result for result, _ in job.train(workers, 1, 2)]
    cluster.etcd.kill()
    got += [result for result, _ in job.train(workers, 3, 3)]
    cluster.etcd.start()
    wait_s(15 * PATIENCE)
    got += [result for result, _ in job.train(workers, 4, STEPS)]
    assert got == expected
    assert all(process.process.poll() is None for process in cluster.processes)


def test_an_etcd_that_is_away_for_longer_ends_the_shards_and_they_come_back(context):
    expected = undisturbed(context)
    cluster = Cluster(context, 2)
    standby = cluster.add()
    standby.says("this process stands by")
    job = Job(cluster)
    trained(job, 1, 3)
    eventually(lambda: cluster.api(0).GetModel(model="m").status.durable_step == 2, "step 2 is durable")
    cluster.etcd.kill()
    assert [process.wait() for process in cluster.processes[:2]] == [LOST, LOST]
    assert standby.process.poll() is None
    assert standby.terminate() == 0
    for process in cluster.processes[:2]:
        process.start()
        process.says("trying again")
        asked = process.log().count("no lease, trying again")
        wait_s(3)
        assert process.log().count("no lease, trying again") <= asked + 1, "a line for each of five tries a second"
    cluster.etcd.start()
    cluster.wait_until_healthy()
    resume(job, expected)


def test_a_wiped_etcd_ends_the_shards_and_they_go_on_under_higher_fences(context):
    expected = undisturbed(context)
    cluster = Cluster(context, 2)
    job = Job(cluster)
    for _ in range(8):  # so that the revision is well above that of a new etcd
        cluster.processes[1].terminate()
        cluster.processes[1].start()
        cluster.wait_until_healthy()
    trained(job, 1, 3)
    eventually(lambda: cluster.api(0).GetModel(model="m").status.durable_step == 2, "step 2 is durable")
    fences = [process.fence() for process in cluster.processes]
    epoch = cluster.api(0).GetModel(model="m").status.epoch
    cluster.etcd.kill()
    cluster.etcd.wipe()
    cluster.etcd.start()
    assert [process.wait() for process in cluster.processes] == [LOST, LOST], cluster.log(0)[-1500:]
    start_again(cluster)
    assert all(process.fence() > max(fences) for process in cluster.processes)
    resume(job, expected)
    assert cluster.api(0).GetModel(model="m").status.epoch > epoch


def test_the_highest_epoch_of_a_model_that_was_deleted_outlives_all_data_directories(context):
    cluster = Cluster(context, 2)
    Job(cluster)
    for _ in range(2):  # a restart is lost memory, and a new epoch
        cluster.processes[1].terminate()
        cluster.processes[1].start()
        cluster.wait_until_healthy()
        eventually(lambda: not cluster.api(0).GetModel(model="m").status.recovering, "the model has recovered")
    before = cluster.api(0).GetModel(model="m").status.epoch
    assert before >= 3
    cluster.api(0).DeleteModel(model="m", force=True)
    for process in cluster.processes:
        process.terminate()
        process.name += "-new"
        process.start()
    cluster.wait_until_healthy()
    Job(cluster)
    assert cluster.api(0).GetModel(model="m").status.epoch == before + 1


def test_a_process_that_does_not_fit_the_cluster_is_refused(context):
    cluster = Cluster(context, 2)
    other = Cluster.__new__(Cluster)
    other.__dict__.update(cluster.__dict__, count=3, folder=context.folder())
    other.folder.mkdir()
    other.processes = []
    process = other.add()
    assert process.wait() == 2
    assert "has 2 shards" in process.log() and "--shards" in process.log(), process.log()
    cluster.wait_until_healthy()


def test_two_clusters_in_one_etcd_know_nothing_of_each_other(context):
    etcd = Etcd(context)
    first, second = Cluster(context, 2, etcd=etcd, name="a"), Cluster(context, 2, etcd=etcd, name="a2")
    assert trained(Job(first), 1, 1)
    assert not second.api(0).ListModels().models


def test_a_directory_of_checkpoints_is_one_clusters(context):
    shared, etcd = context.folder(), Etcd(context)
    Cluster(context, 2, etcd=etcd, name="a", options=["--checkpoint-dir", shared])
    url = f"etcd://127.0.0.1:{etcd.port}/b"
    code, lines = ampd_testing.start_and_fail(context.bin_dir, "--data-dir", context.folder(), "--cluster", url, "--shards", "2",
                                              "--checkpoint-dir", shared)
    assert code == 3 and '"a"' in lines[-1] and "/CLUSTER" in lines[-1], (code, lines)


def test_a_client_follows_shards_to_other_addresses(context):
    """A real one, with the library: each shard comes back elsewhere while it trains."""
    cluster = Cluster(context, 2)
    program = context.bin_dir / "digits"
    command = [*ampd_testing.DIE_WITH_PARENT, program, "--connect", cluster.processes[0].address, "--steps", "300",
               "--checkpoint-every", "20", "--data", ampd_testing.ROOT / "examples" / "digits" / "digits.csv"]
    log = cluster.folder / "worker.log"
    with open(log, "wb") as out:
        worker = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                                  env={**os.environ, "RANK": "0", "WORLD_SIZE": "1"})
    try:
        for k in (1, 0):
            def trains():
                models = cluster.api(0).ListModels().models
                return models and not models[0].recovering and models[0].step >= (50 if k == 1 else 150)
            eventually(trains, "it trains", 120)
            process = cluster.processes[k]
            process.kill()
            process.address = f"unix:{cluster.folder}/elsewhere-{k}.sock"
            process.start()
            cluster.wait_until_healthy()
        assert worker.wait(240) == 0, log.read_text()[-2000:]
    finally:
        worker.kill()
        worker.wait()


def test_options_of_a_cluster_are_checked(context):
    folder = context.folder()
    url = "etcd://127.0.0.1:1/c"
    for arguments, word in (
            (["--cluster", url], "--shards"), (["--cluster", "127.0.0.1:1/c", "--shards", "2"], "etcd://"),
            (["--cluster", "etcd://127.0.0.1:1", "--shards", "2"], "name"), (["--cluster", url, "--shards", "0"], "--shards"),
            (["--cluster", url, "--shards", "65"], "--shards"), (["--cluster", url, "--shards", "2", "--shard", "2"], "--shard"),
            (["--cluster", url, "--shards", "2", "--peers", "a:1,b:1"], "--peers"), (["--shards", "2"], "--cluster"),
            (["--advertise", "a:1"], "--cluster"), (["--cluster", url, "--shards", "2", "--advertise", "0.0.0.0:1"], "--advertise"),
            (["--cluster", url, "--shards", "2", "--listen", "0.0.0.0:0", "--insecure"], "--advertise"),
            (["--cluster", url, "--shards", "2", "--listen", "unix:ampd.sock"], "--advertise"),
            (["--cluster", f"etcd://{','.join(['127.0.0.1:1'] * 9)}/c", "--shards", "2"], "at most 8"),
            (["--cluster", url, "--shards", "2", "--cluster-lease", "100ms"], "--cluster-lease"),
            (["--cluster", url, "--shards", "2", "--cluster-lease", "1999ms"], "from 2s, which an election of etcd"),
            (["--cluster-lease", "5s"], "--cluster")):
        for more in ((), ("--check-config",)):
            code, lines = ampd_testing.start_and_fail(context.bin_dir, "--data-dir", folder, *arguments, *more)
            assert code == 2 and len(lines) == 1 and word in lines[0], (arguments, code, lines)
    assert not folder.exists()


if __name__ == "__main__":
    run(globals())
