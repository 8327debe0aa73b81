#!/usr/bin/python3
"""What goes wrong between the processes of a cluster is told within seconds, by the one that is still there: in the status, in the log, in
the metrics that the alerts of deploy/prometheus ask for; and no longer than it is so.

    test_server_noticed.py BIN_DIR [NAME ...]
"""
import os
import re
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request

import etcd_testing
from ampd_testing import PATIENCE, Code, eventually, grpc, refused, run, spec
from small_disk import fill_disk, small_disk
from test_server_shards import WORLD, Cluster, Job

LONGEST_LEASE = "60s"  # longer is refused; however slow the machine is
NEARLY_FULL = ["--checkpoint-disk-share", "1"]  # of any disk more is in use

NOTICED_S = 10 * PATIENCE  # by then; beside it, what a busy machine takes to answer
BUSY_S = 10 * PATIENCE
SMALL_DISK_KIB = 1024
METRICS = ["--metrics-listen", "127.0.0.1:0"]


def get(log, path):
    """(status, text) of the HTTP port that the log names last."""
    port = re.findall(r"metrics and health\" address=127\.0\.0\.1:(\d+)", log)[-1]
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def metric(log, name):
    """Of a sample with its labels; None: it is not there."""
    found = re.search(rf"^{re.escape(name)} (\S+)$", get(log, "/metrics")[1], re.MULTILINE)
    return float(found[1]) if found else None


def soon(condition, what):
    began = time.monotonic()
    eventually(condition, what, NOTICED_S + BUSY_S)
    took = time.monotonic() - began
    if took > NOTICED_S:
        print(f"{what}: after {took:.1f} s; is the machine busy?")


def trouble_of(api):
    """In the status, or in the refusal of a process that waits."""
    try:
        return api.GetStatus().trouble
    except grpc.RpcError as error:
        return error.details()


def cluster_with_a_model(context):
    cluster = Cluster(context, 3, options=METRICS)
    job = Job(cluster)
    workers = [job.join(rank) for rank in range(WORLD)]
    job.train(workers, 1, 2)
    return cluster, job, workers


def test_shard_0_tells_within_seconds_of_a_shard_that_has_gone_without_a_word(context):
    """As when the network between the two is cut: nothing comes any more, and nobody closes the connection."""
    cluster, job, workers = cluster_with_a_model(context)
    up = 'ampd_shard_session_up{shard="1"}'
    assert metric(cluster.log(0), up) == 1 and cluster.api(0).GetStatus().trouble == ""
    cluster.processes[1].send_signal(signal.SIGSTOP)
    try:
        soon(lambda: not cluster.api(0).GetCluster().shards[1].up, "shard 0 knows that shard 1 is gone")
        answer = cluster.api(2).GetCluster()
        assert [shard.up for shard in answer.shards] == [True, False, True] and "shard 1" in answer.trouble, answer
        status = cluster.api(0).GetStatus()
        assert cluster.addresses[1] in status.trouble, status.trouble
        assert status.models[0].waiting_for == f"a session with shard 1 at {cluster.addresses[1]}", status
        assert metric(cluster.log(0), up) == 0 and metric(cluster.log(0), 'ampd_shard_session_up{shard="2"}') == 1
        said = [line for line in cluster.log(0).splitlines() if "the session is over" in line]
        assert len(said) == 1 and "shard=1" in said[0] and "PING" in said[0], said
    finally:
        cluster.processes[1].send_signal(signal.SIGCONT)
    soon(lambda: metric(cluster.log(0), up) == 1, "the session is back")
    soon(lambda: not cluster.api(0).GetStatus().trouble, "nothing is missing any more")
    soon(lambda: not cluster.api(0).GetStatus().models[0].waiting_for, "the model waits for nothing")
    assert len(job.train(workers, 3, 4)) == 2


def test_a_shard_that_was_stopped_for_three_seconds_keeps_its_session(context):
    cluster, job, workers = cluster_with_a_model(context)
    for _ in range(5):
        began, told = time.monotonic(), len(cluster.log(0))
        cluster.processes[1].send_signal(signal.SIGSTOP)
        time.sleep(3)
        cluster.processes[1].send_signal(signal.SIGCONT)
        cluster.api(1).GetStatus()  # from here on it can answer a PING, too
        if time.monotonic() - began < 3.5:
            break
        soon(lambda: not cluster.api(0).GetStatus().trouble, "nothing is missing any more")
    else:
        print("SKIPPED: a shard that was stopped for three seconds: this machine is so busy that it said nothing for longer")
        return
    assert len(job.train(workers, 3, 4)) == 2
    time.sleep(3)  # for who would give it up only now
    assert "session is over" not in cluster.log(0)[told:], cluster.log(0)[-1500:]


def test_the_full_disk_of_another_shard_is_seen_from_every_shard(context):
    folder = context.folder()
    with small_disk(folder / "data-1", SMALL_DISK_KIB) as disk:
        if disk is None:
            return
        cluster = Cluster(context, 3, folder=folder, options=METRICS)
        ballast = fill_disk(disk)
        late = cluster.api(0).start("CreateModel", spec=spec("late"))
        for k in range(3):
            soon(lambda: cluster.api(k).GetCluster().shards[1].trouble, f"shard {k} tells of the full disk of shard 1")
            answer = cluster.api(k).GetCluster()
            assert "full" in answer.shards[1].trouble and answer.trouble.startswith("shard 1: "), answer
            assert answer.shards[1].up and not answer.shards[0].trouble and not answer.shards[2].trouble, answer
        assert cluster.api(0).GetStatus().trouble.startswith("shard 1: ")
        assert "another shard reports a problem" in cluster.log(0)
        assert [metric(cluster.log(k), "ampd_storage_trouble") for k in range(3)] == [0, 1, 0]
        ballast.unlink()
        late.result()
        soon(lambda: not cluster.api(2).GetCluster().shards[1].trouble, "the trouble is over")
        assert cluster.api(0).GetCluster().trouble == "" and metric(cluster.log(1), "ampd_storage_trouble") == 0
        assert cluster.end() == [0, 0, 0]


def test_a_shard_that_answers_for_itself_says_of_whom_it_knows_nothing(context):
    cluster = Cluster(context, 3)
    assert [shard.unknown for shard in cluster.api(0).GetCluster().shards] == [False, False, False]
    own = cluster.api(2).GetCluster(local=True)
    assert [(shard.up, shard.unknown) for shard in own.shards] == [(True, False), (False, True), (True, False)], own


def test_standbys_are_counted_and_named_and_have_no_session_that_is_down(context):
    cluster = etcd_testing.Cluster(context, 2, fixed=False, options=METRICS)
    first = cluster.of(0)
    assert metric(first.log(), "ampd_standbys") == 0 and not cluster.api(0).GetCluster().standbys
    standby = cluster.add()
    standby.says("this process stands by")
    soon(lambda: metric(first.log(), "ampd_standbys") == 1, "there is a standby")
    for k in range(2):
        assert [one.endpoint for one in cluster.api(k).GetCluster().standbys] == [standby.address]
    soon(lambda: metric(standby.log(), "ampd_standbys") == 1, "the standby has heard of itself")
    page = get(standby.log(), "/metrics")[1]
    assert "ampd_shard_session_up{" not in page, page
    standby.kill()
    soon(lambda: metric(first.log(), "ampd_standbys") == 0, "the standby is gone")
    assert not cluster.api(0).GetCluster().standbys


def test_an_etcd_that_does_not_answer_is_named_and_no_longer_than_it_is_so(context):
    cluster = etcd_testing.Cluster(context, 2, fixed=False, options=[*METRICS, "--cluster-lease", LONGEST_LEASE])
    standby = cluster.add()
    standby.says("this process stands by")
    first = cluster.of(0)
    assert metric(first.log(), "ampd_etcd_up") == 1 and metric(standby.log(), "ampd_etcd_up") == 1
    assert get(standby.log(), "/readyz") == (503, "standby: this process waits for a place in its cluster\n")
    assert get(standby.log(), "/readyz?standbyok") == (200, "ok\n"), "it could take a place"
    assert get(standby.log(), "/readyz?standbyok&verbose")[1].endswith("readyz check passed\n")
    cluster.etcd.kill()
    for process in (first, standby):
        soon(lambda p=process: metric(p.log(), "ampd_etcd_up") == 0, f"{process.name} knows that etcd is away")
    code, text = get(standby.log(), "/readyz")
    assert code == 503 and text.startswith("etcd cannot be asked: etcd at "), text
    assert get(standby.log(), "/readyz?standbyok") == (503, text), "it could not take one now"
    refused(lambda: standby.api().GetStatus(), Code.UNAVAILABLE, "STANDBY", ["etcd cannot be asked"])
    assert get(first.log(), "/readyz") == (200, "ok\n"), "it serves until its lease has run out"
    answer = first.api().GetCluster()
    assert answer.trouble.startswith("etcd cannot be asked: ") and first.api().GetStatus().trouble == answer.trouble, answer
    cluster.etcd.start()
    for process in (first, standby):
        soon(lambda p=process: metric(p.log(), "ampd_etcd_up") == 1, f"{process.name} knows that etcd is back")
    soon(lambda: first.api().GetStatus().trouble == "", "no shard tells of trouble any more")
    assert "waits for a place" in get(standby.log(), "/readyz")[1], get(standby.log(), "/readyz")


def test_a_disk_that_is_nearly_full_hides_neither_etcd_nor_a_missing_shard(context):
    """It may be so for weeks, and nothing waits for it."""
    cluster = etcd_testing.Cluster(context, 2, options=[*NEARLY_FULL, "--cluster-lease", LONGEST_LEASE])
    Job(cluster)  # whose first values are a checkpoint
    first, other = cluster.processes
    for process in (first, other):
        soon(lambda p=process: "would fill the disk" in p.api().GetStatus().trouble, f"{process.name} tells of its disk")
    soon(lambda: "would fill the disk" in first.api().GetCluster().shards[1].trouble, "shard 1 has told shard 0")
    other.send(signal.SIGSTOP)
    soon(lambda: "no session with shard 1" in first.api().GetStatus().trouble, "the missing shard is named all the same")
    other.send(signal.SIGCONT)
    soon(lambda: "would fill the disk" in first.api().GetStatus().trouble, "the shard is back")
    cluster.etcd.kill()
    soon(lambda: "etcd cannot be asked" in first.api().GetStatus().trouble, "etcd is named all the same")
    soon(lambda: all("etcd cannot be asked" in shard.trouble for shard in first.api().GetCluster(local=True).shards),
         "and of both shards")
    cluster.etcd.start()
    soon(lambda: "would fill the disk" in first.api().GetStatus().trouble, "etcd is back")


def test_the_directory_of_checkpoints_that_is_nearly_full_hides_no_shards_full_disk(context):
    folder = context.folder()
    with small_disk(folder / "data-2", SMALL_DISK_KIB) as disk:
        if disk is None:
            return
        cluster = Cluster(context, 3, folder=folder, options=[*NEARLY_FULL, "--checkpoint-dir", folder / "checkpoints"])
        Job(cluster)
        soon(lambda: "would fill the disk" in cluster.api(1).GetStatus().trouble, "shard 1 tells of the directory")
        soon(lambda: "would fill the disk" in cluster.api(0).GetStatus().trouble, "and so does shard 0")
        ballast = fill_disk(disk)
        late = cluster.api(0).start("CreateModel", spec=spec("late"))
        soon(lambda: cluster.api(0).GetStatus().trouble.startswith("shard 2: "), "the full disk is told all the same")
        ballast.unlink()
        late.result()
        soon(lambda: "would fill the disk" in cluster.api(0).GetStatus().trouble, "there is room again")
        assert cluster.end() == [0, 0, 0]


def test_a_process_that_has_a_place_and_waits_for_the_other_shards_says_so(context):
    """As the first process of a new cluster: it does not stand by, and nobody else is shard 0."""
    cluster = etcd_testing.Cluster(context, 0, options=METRICS)
    cluster.count = 2
    first = cluster.add()
    wanted = "it has the place of shard 0, and asks the others for what its data directory lacks; shard 1: no process holds shard 1"
    soon(lambda: wanted in trouble_of(first.api()), "the refusal says it")
    assert get(first.log(), "/readyz") == (503, wanted + "\n")
    cluster.add()
    cluster.wait_until_healthy()


def test_why_shard_0_was_missing_is_not_told_of_the_address_where_it_is_now(context):
    cluster = etcd_testing.Cluster(context, 2)
    first, other = cluster.processes
    first.kill()
    soon(lambda: f"no session with shard 0 at {first.address}: cannot connect" in other.api().GetStatus().trouble, "it says why")
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connects, and says nothing
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        first.options += ["--advertise", address]
        first.start()
        trouble = eventually(lambda: next((text for text in [other.api().GetStatus().trouble] if address in text), None),
                             "shard 0 is elsewhere")
        assert trouble == f"no session with shard 0 at {address}; no step is decided without it", trouble


def test_an_etcd_that_takes_no_writes_is_named_and_no_longer_than_it_is_so(context):
    """Its own disk quota is used up: it answers reads, and keeps leases alive."""
    etcd = etcd_testing.Etcd(context, options=["--quota-backend-bytes", str(512 << 10)])
    cluster = etcd_testing.Cluster(context, 1, fixed=False, etcd=etcd, options=METRICS)

    def etcdctl(*arguments):
        return subprocess.run(["etcdctl", "--endpoints", etcd.endpoints, *arguments], capture_output=True, text=True,
                              timeout=BUSY_S, check=False, env={**os.environ, "ETCDCTL_API": "3"})

    eventually(lambda: etcdctl("put", "other", "x" * 60000).returncode != 0, "etcd takes nothing more")
    first, waits = cluster.of(0), cluster.add()
    create = first.api().start("CreateModel", spec=spec("m"), timeout_s=6 * NOTICED_S)
    for api in (first.api(), waits.api()):
        soon(lambda a=api: "database space exceeded" in trouble_of(a), "it is told that etcd takes no writes")
    assert trouble_of(first.api()).startswith("etcd cannot be written to: ")
    assert "etcd grants no lease: " in trouble_of(waits.api())
    assert get(waits.log(), "/readyz?standbyok")[0] == 503, "it could not take a place"
    revision = re.search(r'"revision":(\d+)', etcdctl("get", "other", "-w", "json").stdout)[1]
    for arguments in (["compact", revision], ["defrag"], ["alarm", "disarm"]):
        assert etcdctl(*arguments).returncode == 0, arguments
    create.result()  # the model is made
    soon(lambda: trouble_of(first.api()) == "", "no trouble is told any more")
    waits.says("this process stands by")
    assert get(waits.log(), "/readyz?standbyok") == (200, "ok\n")


def test_an_etcd_that_has_gone_without_a_word_is_noticed_whatever_the_lease(context):
    cluster = etcd_testing.Cluster(context, 1, fixed=False, options=[*METRICS, "--cluster-lease", "60s"])
    first = cluster.of(0)
    cluster.etcd.process.send_signal(signal.SIGSTOP)
    try:
        soon(lambda: metric(first.log(), "ampd_etcd_up") == 0, "etcd is known to be away")
        assert "etcd cannot be asked" in first.api().GetStatus().trouble
    finally:
        cluster.etcd.process.send_signal(signal.SIGCONT)
    soon(lambda: metric(first.log(), "ampd_etcd_up") == 1, "etcd is known to be back")


if __name__ == "__main__":
    run(globals())
