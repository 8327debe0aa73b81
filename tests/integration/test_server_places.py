#!/usr/bin/python3
"""A process with the wrong directory, an empty one, or for another number of shards: nothing is served, begun or lost by that, a
sentence says what to do, and the right directory serves what it held.

    test_server_places.py BIN_DIR [NAME ...]
"""
import filecmp
import os
import shutil
import signal
import subprocess
import unittest.mock

import ampd_testing
from ampd_testing import PATIENCE, Code, common, eventually, held, model, refused, run
from etcd_testing import LEASE_S, Cluster, wait_s
from test_server_shards import STEPS, WORLD, Job
from test_server_shards import Cluster as ListCluster

USAGE = 2  # exit code
STEP_TIMEOUT_S = 300 * PATIENCE


def shared(context):
    return ["--checkpoint-dir", context.folder()]


def train(cluster, first=1, last=STEPS, **fields):
    """A model with checkpoints, of which the last step is one."""
    job = Job(cluster, **fields)
    job.train([job.join(rank) for rank in range(WORLD)], first, last)
    eventually(lambda: cluster.api(0).GetModel(model="m").status.durable_step == last, f"step {last} is durable", STEP_TIMEOUT_S)
    return job


def export(context, cluster, name):
    path = cluster.folder / f"{name}.safetensors"
    eventually(lambda: not cluster.api(0).GetModel(model="m").status.recovering, "the model is back", STEP_TIMEOUT_S)
    subprocess.run([context.bin_dir / "ampctl", "--endpoint", cluster.of(0).address, "checkpoint", "export", "m", path], check=True,
                   timeout=STEP_TIMEOUT_S, capture_output=True)
    return path


def begin(context, count, **options):
    """(cluster, the export of its model), which is ended."""
    cluster = Cluster(context, count, **options)
    train(cluster)
    before = export(context, cluster, "before")
    end(cluster)
    return cluster, before


def end(cluster):
    for process in cluster.processes:
        if process.process.poll() is None:
            process.send(15)
    for process in cluster.processes:
        if process.process.returncode is None:
            assert process.wait() == 0, process.log()[-1500:]


def start(cluster, processes=None):
    for process in processes or cluster.processes:
        process.start()


def check(context, cluster, before):
    """As before, also its history, and it trains on."""
    cluster.wait_until_healthy()
    assert filecmp.cmp(export(context, cluster, "after"), before, shallow=False), "other bytes than before"
    rows = cluster.api(0).ListScaleHistory(model="m", page_size=1000).rows
    assert [row.step for row in rows if row.verdict != 0 and not row.superseded] == list(range(1, STEPS + 1))
    job = Job(cluster, load=False)
    workers = [job.join(rank) for rank in range(WORLD)]
    assert [worker.step for worker in workers] == [STEPS + 1] * WORLD
    job.train(workers, STEPS + 1, STEPS + 1)


def last_line(process):
    """That says why it has ended."""
    return [line for line in process.log().splitlines() if "level=error" in line or line.startswith("ampd:")][-1]


def test_a_cluster_on_another_number_of_shards_is_refused_and_going_back_costs_nothing(context):
    cluster, before = begin(context, 2, fixed=False, options=shared(context))
    for other in (3, 1):
        cluster.count = other
        extra = [cluster.add()] if other == 3 else []  # with an empty directory
        start(cluster, cluster.processes[:2])
        for process in cluster.processes[:2] + extra:
            assert process.wait() == USAGE, process.log()[-1500:]
            said = last_line(process)
            assert "2 shards" in said and "--shards 2" in said and f"was started for {other}" in said, said
            assert "docs/runbooks.md says how the number is changed" in said, said
        if extra:
            assert "c/who/shards" in last_line(extra[0]) and "--cluster name" in last_line(extra[0]), last_line(extra[0])
        cluster.processes = cluster.processes[:2]
    cluster.count = 2
    start(cluster)
    check(context, cluster, before)


def test_a_data_directory_that_cannot_be_read_does_not_count_as_one_without_data(context):
    """It may have data of another number of shards."""
    shim = context.bin_dir.parent / "tests" / "integration" / "libfailing_readdir.so"
    folder = context.folder()
    done = subprocess.run(["/usr/bin/env", f"LD_PRELOAD={shim}", context.bin_dir / "ampd", "--data-dir", folder, "--listen",
                           "127.0.0.1:0", "--metrics-listen", "none", "--cluster", "etcd://127.0.0.1:1/c", "--shards", "2"],
                          capture_output=True, timeout=10 * PATIENCE, encoding="utf-8")
    assert done.returncode == 1 and f"cannot read {folder}" in done.stderr, done


def test_an_empty_directory_is_filled_by_the_shard_that_is_there_and_one_that_is_not_is_no_address(context):
    cluster, before = begin(context, 3, options=shared(context))
    shutil.rmtree(cluster.folder / "p0")
    first, second, third = cluster.processes
    start(cluster, [first, third])
    first.says("the store was filled by another shard\" shard=2")
    assert "unix:/path is expected" not in first.log(), first.log()  # of an address that there is none of
    start(cluster, [second])
    check(context, cluster, before)


def test_data_of_another_number_of_shards_are_known_where_etcd_has_lost_all(context):
    cluster, before = begin(context, 2, options=shared(context))
    cluster.etcd.kill()
    cluster.etcd.wipe()
    cluster.etcd.start()
    cluster.count = 3
    start(cluster)
    for k, process in enumerate(cluster.processes):
        assert process.wait() == USAGE, process.log()[-1500:]
        said = last_line(process)
        assert f"/p{k}/shard-{k}-of-2" in said and "--shards 2" in said and "--data-dir" in said, said
    cluster.count = 2
    start(cluster)
    check(context, cluster, before)


def test_a_cluster_without_models_may_have_another_number_of_shards(context):
    """Those that it had are deleted."""
    cluster = Cluster(context, 2, fixed=False, options=shared(context))
    train(cluster)
    cluster.api(0).DeleteModel(model="m", force=True)
    end(cluster)
    cluster.count = 3
    cluster.add()
    start(cluster, cluster.processes[:2])
    cluster.wait_until_healthy()
    train(cluster)


def put_aside(cluster):
    for process in cluster.processes:
        (cluster.folder / process.name).rename(cluster.folder / f"{process.name}-mounted")


def bring_back(cluster):
    for process in cluster.processes:
        (cluster.folder / process.name).rename(cluster.folder / f"{process.name}-empty-{len(list(cluster.folder.iterdir()))}")
        (cluster.folder / f"{process.name}-mounted").rename(cluster.folder / process.name)


def check_empty_ones_stand_by(context, cluster, before):
    """They say why, and go on saying it: no place is taken."""
    files = ampd_testing.found(cluster.folder.parent, "**/*.safetensors")
    put_aside(cluster)
    start(cluster)
    for process in cluster.processes:
        process.says("directory: this process stands by")
    wait_s(LEASE_S)
    for process in cluster.processes:
        said = [line for line in process.log().splitlines() if "directory: this process stands by" in line][-1]
        assert process.process.poll() is None, process.log()[-1500:]
        assert f"/{process.name}/shard-" in said and "mounted" in said and "bring" in said and "etcd" in said, said
        assert "holding a place" not in process.log().rsplit('msg="listening"', 1)[-1]
        refused(process.api().ListModels, Code.UNAVAILABLE, "STANDBY", [f"/{process.name}/shard-", "mounted"])
    end(cluster)
    bring_back(cluster)
    assert files and ampd_testing.found(cluster.folder.parent, "**/*.safetensors") == files
    start(cluster)
    check(context, cluster, before)


def test_empty_directories_of_a_cluster_that_has_models_are_refused(context):
    for options in ((), shared(context)):
        cluster, before = begin(context, 2, options=options)
        check_empty_ones_stand_by(context, cluster, before)


def test_an_empty_directory_of_the_only_shard_is_refused(context):
    cluster, before = begin(context, 1)
    check_empty_ones_stand_by(context, cluster, before)


def test_empty_directories_that_were_started_twice_begin_no_cluster_either(context):
    """What they were the first time was no shard: the fence of a place that was never served is not in their stores."""
    cluster = Cluster(context, 2)
    train(cluster)
    before = export(context, cluster, "before")
    lost, other = cluster.processes
    lost.kill()
    other.kill()
    put_aside(cluster)
    for _ in range(2):
        start(cluster)
        for process in cluster.processes:
            process.says("directory: this process stands by")
        for process in cluster.processes:
            process.kill()
    bring_back(cluster)
    start(cluster)
    check(context, cluster, before)


def test_the_only_shard_is_not_taken_over_by_a_process_without_its_data(context):
    """With and without the checkpoints where both can read them: it would begin an empty cluster. It stands by as long as it takes, also
    where it is started first."""
    for options in ((), shared(context)):
        cluster = Cluster(context, 1, options=options)
        train(cluster)
        before = export(context, cluster, "before")
        owner, standby = cluster.processes[0], cluster.add()
        standby.says("this process stands by")
        owner.kill()
        standby.says("directory: this process stands by")
        said = [line for line in standby.log().splitlines() if "directory: this process stands by" in line][-1]
        assert "/p1/shard-0-of-1 has no model" in said and "bring back its directory" in said and "who/last-0" in said, said
        standby.kill()
        standby.start()
        standby.says("directory: this process stands by", 2)
        owner.start()
        check(context, cluster, before)
        assert standby.process.poll() is None and standby.terminate() == 0, standby.log()[-1500:]


def test_data_of_before_of_the_only_shard_stand_by_until_an_operator_says_otherwise(context):
    """By the key that the sentence names."""
    cluster = Cluster(context, 1, options=shared(context))
    train(cluster, 1, 2)
    stale = cluster.processes[0]
    assert stale.terminate() == 0
    newer = cluster.add(["--shard", "0"])
    shutil.copytree(cluster.folder / "p0", cluster.folder / "copy", ignore=shutil.ignore_patterns("*.sock"))
    newer.says("directory: this process stands by")
    newer.kill()
    shutil.rmtree(cluster.folder / newer.name)
    (cluster.folder / "copy").rename(cluster.folder / newer.name)
    newer.start()
    newer.serves()
    Job(cluster, name="other").load()
    newer.kill()
    stale.start()
    stale.says("directory: this process stands by")
    assert "p0/shard-0-of-1 does not have the last data of shard 0" in stale.log(), stale.log()[-1500:]
    subprocess.run(["etcdctl", f"--endpoints={cluster.etcd.endpoints}", "del", "ampd/c/who/last-0"], check=True, timeout=60,
                   capture_output=True)
    stale.serves()
    assert [model.name for model in stale.api().ListModels().models] == ["m"]


def test_copies_of_before_stand_by_while_etcd_knows_newer_data_and_each_names_its_own_directory(context):
    """As of a backup that is put back while etcd's keys of the cluster are still there; without them it is served."""
    cluster, before = begin(context, 2, fixed=False)
    held = {process: next((cluster.folder / process.name).glob("shard-*-of-2")).name for process in cluster.processes}
    for process in cluster.processes:
        shutil.copytree(cluster.folder / process.name, cluster.folder / f"{process.name}-copy", ignore=shutil.ignore_patterns("*.sock"))
    start(cluster)
    cluster.wait_until_healthy()  # under higher fences
    end(cluster)
    for process in cluster.processes:
        shutil.rmtree(cluster.folder / process.name)
        (cluster.folder / f"{process.name}-copy").rename(cluster.folder / process.name)
    start(cluster)
    for process in cluster.processes:
        process.says(f"{process.name}/{held[process]} does not have the last data of shard {held[process].split('-')[1]}")
    end(cluster)
    subprocess.run(["etcdctl", f"--endpoints={cluster.etcd.endpoints}", "del", "--prefix", "ampd/c/"], check=True, timeout=60,
                   capture_output=True)
    start(cluster)
    check(context, cluster, before)


def test_the_first_model_that_was_never_stored_holds_nothing_up(context):
    """etcd is told of models before a store is; directories that the shards served from last are right, also without any."""
    cluster = Cluster(context, 1)
    end(cluster)
    subprocess.run(["etcdctl", f"--endpoints={cluster.etcd.endpoints}", "put", "ampd/c/who/shards", "1"], check=True, timeout=60,
                   capture_output=True)
    start(cluster)
    cluster.wait_until_healthy()
    train(cluster)


def files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in ampd_testing.found(folder, "**/*.safetensors")}


def check_list(context, cluster, before, name):
    """As before, by a list of shards."""
    path = cluster.folder / name
    eventually(lambda: not cluster.api(0).GetModel(model="m").status.recovering, "the model is back", STEP_TIMEOUT_S)
    subprocess.run([context.bin_dir / "ampctl", "--endpoint", cluster.addresses[0], "checkpoint", "export", "m", path], check=True,
                   timeout=STEP_TIMEOUT_S, capture_output=True)
    assert before is None or filecmp.cmp(path, before, shallow=False), f"{name}: other bytes"
    return path


def test_empty_data_directories_beside_checkpoints_take_none_of_them_away(context):
    """Also of another number of shards; and no model of a name of theirs is made, which would write over them."""
    for count, others in ((1, (1, 2)), (2, (2, 3, 1))):
        folder = context.folder()
        folder.mkdir()
        checkpoints = folder / "checkpoints"
        options = ["--checkpoint-dir", checkpoints]
        cluster = ListCluster(context, count, folder, options)
        train(cluster)
        before = check_list(context, cluster, None, "before")
        assert cluster.end() == [0] * count
        there = files(checkpoints)
        for k in range(count):
            (folder / f"data-{k}").rename(folder / f"kept-{k}")
        for turn, other in enumerate(others):
            cluster = ListCluster(context, other, folder, options)
            assert not cluster.api(0).ListModels().models
            refused(lambda: Job(cluster), Code.FAILED_PRECONDITION, "CHECKPOINTS_EXIST", [str(checkpoints), "--data-dir", "mounted"])
            Job(cluster, name="other").load()
            eventually(lambda: cluster.api(0).GetModel(model="other").status.durable_step == 0, "it has a checkpoint")
            assert cluster.end() == [0] * other
            assert {name: data for name, data in files(checkpoints).items() if "/m/" in name} == there
            cluster = ListCluster(context, other, folder, options)  # a start sweeps
            cluster.api(0).DeleteModel(model="other", force=True)
            assert cluster.end() == [0] * other
            assert files(checkpoints) == there
            for k in range(other):
                (folder / f"data-{k}").rename(folder / f"empty-{turn}-{k}")
        for k in range(count):
            (folder / f"kept-{k}").rename(folder / f"data-{k}")
        check_list(context, ListCluster(context, count, folder, options), before, "after")


def test_a_file_that_an_interrupted_deletion_cannot_remove_is_in_the_way_of_its_name_only(context):
    """The other deletions are completed, and no mark is left that would count the name as free."""
    folder = context.folder()
    checkpoints = folder / "checkpoints"
    names = [f"deleted-{i}" for i in range(5)]
    for name in names:
        file = checkpoints / "models" / name / "checkpoints" / "step-0000000001" / "shard-0-of-2.safetensors"
        file.parent.mkdir(0o700, parents=True)
        file.touch()
        (checkpoints / "models" / name / "shard-0-of-2.deleted").touch()
    stays = ampd_testing.found(checkpoints, "models/deleted-2/**/*.safetensors")[0]
    stays.unlink()
    stays.mkdir()  # no file, so that it cannot be removed like one
    cluster = ListCluster(context, 2, folder, ["--checkpoint-dir", checkpoints])
    eventually(lambda: ampd_testing.found(checkpoints, "models/**/shard-*") == [stays], "nothing else is left")
    assert "could not be removed; remove it by hand" in cluster.log(0) and str(stays) in cluster.log(0), cluster.log(0)
    refused(lambda: Job(cluster, name="deleted-2"), Code.FAILED_PRECONDITION, "CHECKPOINTS_EXIST", [stays.name])
    Job(cluster, name="deleted-3")
    assert cluster.end() == [0, 0]


def test_a_deletion_that_cannot_be_marked_goes_on_without_its_mark(context):
    folder = context.folder()
    folder.mkdir()
    checkpoints = folder / "checkpoints"
    cluster = ListCluster(context, 2, folder, ["--checkpoint-dir", checkpoints])
    train(cluster)
    mark = checkpoints / "models/m/shard-0-of-2.deleted"
    mark.mkdir()  # no file, so that it cannot be made like one
    cluster.api(0).DeleteModel(model="m", force=True)
    assert ampd_testing.found(checkpoints, "models/**/*.safetensors") == []
    assert "could not be removed; remove it by hand" in cluster.log(0) and str(mark) in cluster.log(0), cluster.log(0)
    mark.rmdir()
    train(cluster)
    assert cluster.end() == [0, 0]


def test_a_checkpoint_directory_that_does_not_answer_holds_up_a_deletion_and_no_verdict(context):
    """As where the server of a network file system is gone. The status names that directory."""
    folder = context.folder()
    folder.mkdir()
    checkpoints, flag = folder / "checkpoints", folder / "flag"
    shim = context.bin_dir.parent / "tests" / "integration" / "libhanging_sync.so"
    preload = {"LD_PRELOAD": str(shim), "HANG_WHILE": str(flag), "HANG_BELOW": str(checkpoints / "models" / "gone")}
    with unittest.mock.patch.dict(os.environ, preload):
        cluster = ListCluster(context, 2, folder, ["--checkpoint-dir", checkpoints])
    job = Job(cluster, checkpoint_every=1000)
    Job(cluster, name="gone")
    eventually(lambda: cluster.api(0).GetModel(model="gone").status.state == common.MODEL_STATE_WAITING, "it has values")
    ranks = [job.join(rank) for rank in range(WORLD)]
    flag.touch()
    call = held(cluster.api(0).start("DeleteModel", model="gone", force=True))
    job.train(ranks, 1, 3)
    eventually(lambda: f"{checkpoints} has not answered for " in cluster.api(1).GetStatus().trouble, "the status says it")
    assert not call.done()
    flag.unlink()
    call.result()
    assert ampd_testing.found(checkpoints, "models/gone") == []
    job.train(ranks, 4, 4)
    assert cluster.end() == [0, 0]


def test_a_data_directory_of_before_takes_no_newer_checkpoint_away(context):
    """Of one shard, which has nobody to tell it: its catalogue does not name them, that of the right directory does."""
    folder = context.folder()
    folder.mkdir()
    options = ["--checkpoint-dir", folder / "checkpoints"]
    cluster = ListCluster(context, 1, folder, options)
    train(cluster, 1, 2)
    assert cluster.end() == [0]
    shutil.copytree(folder / "data-0", folder / "older", ignore=shutil.ignore_patterns("*.sock"))
    cluster = ListCluster(context, 1, folder, options)
    job = Job(cluster, load=False)
    job.train([job.join(rank) for rank in range(WORLD)], 3, STEPS)
    eventually(lambda: cluster.api(0).GetModel(model="m").status.durable_step == STEPS, "it is durable")
    before = check_list(context, cluster, None, "before")
    assert cluster.end() == [0]
    there = files(folder / "checkpoints")
    (folder / "data-0").rename(folder / "right")
    (folder / "older").rename(folder / "data-0")
    ListCluster(context, 1, folder, options).kill(0)
    assert files(folder / "checkpoints") == there
    (folder / "data-0").rename(folder / "older")
    (folder / "right").rename(folder / "data-0")
    check_list(context, ListCluster(context, 1, folder, options), before, "after")


class OtherRun(Job):
    """With the same specification and the same steps."""

    def user_state(self, rank, step):
        return b"other"


def test_the_data_of_another_run_of_a_model_are_not_mixed_with_those_of_this_one(context):
    clusters = []
    for kind in (Job, OtherRun):
        cluster = ListCluster(context, 2)
        job = kind(cluster)
        job.train([job.join(rank) for rank in range(WORLD)], 1, STEPS)
        eventually(lambda api=cluster.api(0): api.GetModel(model="m").status.durable_step == STEPS, "it is durable", STEP_TIMEOUT_S)
        assert cluster.end() == [0, 0]
        clusters.append(cluster)
    folder = clusters[0].folder
    (folder / "data-1").rename(folder / "kept")
    shutil.copytree(clusters[1].folder / "data-1", folder / "data-1", ignore=shutil.ignore_patterns("*.sock"))
    mixed = ListCluster(context, 2, folder)
    refused(lambda: mixed.api(0).Join(model="m", rank=0), Code.UNAVAILABLE, "RECOVERING", ["another model under the name m"])
    assert "is of another run of the model" in mixed.log(0), mixed.log(0)[-2000:]
    assert mixed.end() == [0, 0]
    shutil.rmtree(folder / "data-1")
    (folder / "kept").rename(folder / "data-1")
    right = ListCluster(context, 2, folder, ["--fence-above", "2"])  # the other data have been started twice, too
    eventually(lambda: not right.api(0).GetModel(model="m").status.recovering, "the model is back", STEP_TIMEOUT_S)
    assert right.api(0).Join(model="m", rank=0).step == STEPS + 1
    assert right.end() == [0, 0]


def is_durable(cluster, step):
    eventually(lambda: cluster.api(0).GetModel(model="m").status.durable_step == step, f"step {step} is durable", STEP_TIMEOUT_S)


def test_a_copy_of_before_of_one_shard_takes_nothing_back_that_was_durable(context):
    """As a snapshot of its disk that was taken while the same processes ran: in the same epoch, under the same fence."""
    for old, restarted, durability in ((1, (0, 1), model.DURABILITY_CHECKPOINT), (1, (1,), model.DURABILITY_CHECKPOINT),
                                       (0, (0,), model.DURABILITY_CHECKPOINT), (0, (0, 1), model.DURABILITY_CHECKPOINT),
                                       (1, (0, 1), model.DURABILITY_STEP)):
        cluster = ListCluster(context, 2)
        data, copy, right = (cluster.folder / name for name in (f"data-{old}", "copy", "right"))
        job = Job(cluster, checkpoint_every=1, durability=durability)
        workers = [job.join(rank) for rank in range(WORLD)]
        job.train(workers, 1, 2)
        is_durable(cluster, 2)
        cluster.processes[old].send_signal(signal.SIGSTOP)
        shutil.copytree(data, copy, ignore=shutil.ignore_patterns("*.sock"))
        cluster.processes[old].send_signal(signal.SIGCONT)
        for step in range(3, STEPS + 1):  # the row of the last one says that others are durable
            job.train(workers, step, step)
            is_durable(cluster, step)
        for k in restarted:
            cluster.kill(k)
        data.rename(right)
        copy.rename(data)
        for k in restarted:
            cluster.start(k)
        said = [f"shard {old} has a data directory from before checkpoint ", "bring back the right one"]
        eventually(lambda c=cluster, words=said[0]: words in c.log(0), "the log says which it is", STEP_TIMEOUT_S)
        refused(lambda c=cluster: c.api(0).Join(model="m", rank=0), Code.UNAVAILABLE, "RECOVERING", said)
        cluster.kill(old)
        data.rename(copy)
        right.rename(data)
        cluster.start(old, ["--fence-above", "2"])  # the copy was started, too
        cluster.wait_until_healthy()
        eventually(lambda c=cluster: not c.api(0).GetModel(model="m").status.recovering, "the model is back", STEP_TIMEOUT_S)
        assert job.join(0).step == STEPS + 1 and cluster.api(0).GetModel(model="m").status.durable_step == STEPS
        assert cluster.end() == [0, 0]


def test_a_cluster_on_etcd_goes_on_with_another_number_of_shards_from_a_list(context):
    """As the refusal and docs/cluster.md say."""
    cluster, before = begin(context, 2, options=shared(context))
    folder = context.folder()
    folder.mkdir()
    for k in range(2):
        (cluster.folder / f"p{k}" / f"shard-{k}-of-2").rename(folder / f"data-{k}")
    check_list(context, ListCluster(context, 3, folder, cluster.options, ["--epoch-above", "1"]), before, "after")


if __name__ == "__main__":
    run(globals())
