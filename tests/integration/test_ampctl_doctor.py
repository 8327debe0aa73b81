#!/usr/bin/python3
"""ampctl doctor against real servers: what is in order, and each thing that may be wrong, with what to do about it.

    test_ampctl_doctor.py BIN_DIR [NAME ...]
"""
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import time

from ampd_testing import CALL_TIMEOUT_S, PATIENCE, Api, eventually, run
from small_disk import fill_disk, small_disk
from auth_testing import Authority, TlsServer, TokenFile
from etcd_testing import PROGRAM as ETCD
from etcd_testing import Cluster as EtcdCluster
from test_server_shards import Cluster

CHECKS = ["endpoint", "tls", "token", "serving", "versions", "clock", "descriptors", "models", "disk", "etcd", "shards",
          "ports"]
SMALL_DISK_KIB = 2048


def doctor(context, endpoint, *options, code=0, env=None):
    """check -> [(verdict, text), ...] in their order."""
    done = subprocess.run([context.bin_dir / "ampctl", "-t", "5", "-o", "json", "-e", endpoint, "doctor", *options],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", timeout=CALL_TIMEOUT_S,
                          check=False, env=dict(os.environ, **(env or {})))
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    assert done.stderr == "", done.stderr
    found = {}
    for row in json.loads(done.stdout)["rows"]:
        found.setdefault(row["check"], []).append((row["verdict"], row["text"]))
    return found


def wrong(found):
    """The check that is wrong, and its text; there is one alone."""
    texts = [(check, text) for check, lines in found.items() for verdict, text in lines if verdict == "wrong"]
    assert len(texts) == 1, texts
    return texts[0]


def address(server):
    return f"127.0.0.1:{server.port}"


def test_a_sound_server_has_a_line_for_each_check(context):
    model = context.model()
    found = doctor(context, address(context.shared))
    assert list(found) == CHECKS and all(verdict == "ok" for [(verdict, _)] in found.values()), found
    assert found["token"][0][1] == "a caller without a token has the role operator"
    assert "ampctl 0" in found["versions"][0][1] and found["models"][0][1].startswith("1, of which 1 waits"), found
    assert model.api.GetStatus().server_time.seconds > 0
    command = [context.bin_dir / "ampctl", "-e", address(context.shared), "doctor"]
    text = subprocess.run(command, check=True, timeout=60, stdout=subprocess.PIPE, encoding="utf-8").stdout
    assert [line.split()[:2] for line in text.splitlines()] == [["ok", check] for check in CHECKS]


def test_without_a_server_there_is_one_line_that_says_so(context):
    assert wrong(doctor(context, "127.0.0.1:1", code=1)) == \
        ("endpoint", "cannot connect to 127.0.0.1:1: connection refused; start ampd there, or name another address "
                     "with --endpoint")


def test_a_server_that_stands_still_is_told(context):
    server = context.server()
    server.process.send_signal(signal.SIGSTOP)
    check, text = wrong(doctor(context, address(server), "-t", "0.5", code=1))
    server.process.send_signal(signal.SIGCONT)
    assert check == "endpoint" and "within 0.5 s; see whether a firewall" in text, text


def test_a_token_has_its_role_and_a_wrong_one_a_remedy(context):
    tokens = TokenFile(context)
    files = {role: tokens.client_file(tokens.new(role)) for role in ("read", "worker", "operator", "peer")}
    server = context.server("--token-file", tokens.path)
    for role in ("read", "worker", "operator"):
        found = doctor(context, address(server), "--token-file", files[role])
        assert found["token"] == [("ok", f"the token has the role {role}")], found
    check, text = wrong(doctor(context, address(server), "--token-file", files["peer"], code=1))
    assert check == "token" and "role read, worker or operator is needed" in text, text
    check, text = wrong(doctor(context, address(server), code=1))
    assert check == "token" and "give --token-file" in text, text
    unknown = tokens.client_file("ampd_" + "x" * 40)
    check, text = wrong(doctor(context, address(server), "--token-file", unknown, code=1))
    assert check == "token" and "ampctl token new" in text and "x" * 40 not in text, text


def test_tls_that_does_not_fit_is_told(context):
    context.count += 1
    authority = Authority(context.work / f"authority-{context.count}")
    context.count += 1
    other = Authority(context.work / f"authority-{context.count}")
    server = TlsServer(context, authority, "--insecure")
    found = doctor(context, f"tls://{address(server)}", "--cacert", authority.cert)
    assert list(found) == CHECKS and "the connection is TLS" in found["tls"][0][1], found
    check, text = wrong(doctor(context, f"tls://{address(server)}", "--cacert", other.cert, code=1))
    assert check == "tls" and "certificate" in text and "see --cacert and --server-name" in text, text
    check, text = wrong(doctor(context, address(server), code=1))
    assert check == "tls" and text.endswith("; give --cacert, the certificate of its authority"), text
    check, text = wrong(doctor(context, f"tls://{address(context.shared)}", code=1))
    assert check == "tls" and "does not use TLS" in text, text


def test_a_server_at_every_address_of_its_host_is_asked_at_none_that_its_certificate_lacks(context):
    context.count += 1
    authority = Authority(context.work / f"authority-{context.count}")
    server = TlsServer(context, authority, "--insecure", "--listen", "0.0.0.0:0")
    found = doctor(context, f"tls://{address(server)}", "--cacert", authority.cert)
    assert found["ports"] == [("ok", "one shard, reached where it was asked for")], found


def test_a_clock_that_is_off_is_told(context):
    shim = context.bin_dir.parent / "tests" / "integration" / "libshifted_clock.so"
    if not shim.exists():
        print("SKIPPED: the clock: libshifted_clock.so was not built")
        return
    found = doctor(context, address(context.shared), code=1, env={"LD_PRELOAD": str(shim), "SHIFTED_CLOCK_S": "3600"})
    check, text = wrong(found)
    assert check == "clock" and text.startswith("the server's clock is 3"), text
    assert "behind this one; synchronise" in text, text


def test_descriptors_are_few_above_nine_tenths_of_the_limit(context):
    server = context.server()
    _, hard = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
    used, seen = descriptors_of(context, server)[1], set()
    for limit in range(used + 1, used + used // 4):
        resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (limit, hard))
        verdict, used, most = descriptors_of(context, server)
        assert most == limit and verdict == ("wrong" if 10 * used > 9 * most else "ok"), (verdict, used, most)
        seen.add(verdict)
    assert seen == {"ok", "wrong"}


def descriptors_of(context, server):
    """(verdict, how many are open, how many may be)"""
    done = subprocess.run([context.bin_dir / "ampctl", "-o", "json", "-e", address(server), "doctor"],
                          stdout=subprocess.PIPE, timeout=CALL_TIMEOUT_S, check=False)
    [row] = [row for row in json.loads(done.stdout)["rows"] if row["check"] == "descriptors"]
    return row["verdict"], *map(int, re.findall(r"\d+", row["text"]))


def test_a_model_that_overflows_again_and_again_is_told(context):
    server = context.server()
    worker = context.model("net", server, max_consecutive_overflows=2).worker()
    for _ in range(2):
        worker.pull()
        worker.push({"w": [float("inf")] * 4})
    check, text = wrong(doctor(context, address(server), code=1))
    assert (check, text) == ("models", "net overflows in step after step; see ampctl explain net 2")


def test_a_model_that_waits_for_a_worker_for_long_is_told(context):
    """Both for one whose lease has ended, and for one that never came; not at once, and not where nobody is held up."""
    server = context.server("--worker-lease", f"{3 * PATIENCE}s")
    api = Api(server.channel)
    pair = context.model("pair", server, world_size=2)
    context.model("idle", server, world_size=2)
    for worker in pair.workers(2):
        worker.pull()
    eventually(lambda: "whose lease" in status_of("pair", api).waiting_for, "the leases end")
    alone = context.model("alone", server, world_size=2).worker("c", rank=1)
    watch = api.start("WatchSteps", model="alone", rank=1, incarnation=alone.incarnation)  # which keeps its lease
    assert doctor(context, address(server))["models"] == [("ok", "3, of which 3 wait for somebody")]
    for name in ("pair", "alone"):
        eventually(lambda name=name: status_of(name, api).waiting_ms, f"{name} has waited for 10 s")
    told = dict(text.split(" ", 1) for verdict, text in doctor(context, address(server), code=1)["models"]
                if verdict == "wrong")
    assert sorted(told) == ["alone", "pair"], told
    remedy = r's; start that worker, with that rank; "ampctl evict %s RANK" frees .* --on-loss shrink goes on .* ' \
             r'"ampctl delete %s --force" ends .*'
    gone = r"waits for rank 0 \(w0\), rank 1 \(w1\) of 2, whose lease has ended, for \d\d "
    assert re.fullmatch(gone + remedy % ("pair", "pair"), told["pair"]), told
    assert re.fullmatch(r"waits for rank 0 of 2 to join, for \d\d " + remedy % ("alone", "alone"), told["alone"]), told
    watch.cancel()


def status_of(name, api):
    return next(model for model in api.GetStatus().models if model.name == name)


def test_a_shard_that_is_missing_is_told(context):
    cluster = Cluster(context, 3)
    found = doctor(context, cluster.addresses[0])
    assert found["shards"] == [("ok", "3 of 3 are there")] and len(found["ports"]) == 3, found
    cluster.kill(1)
    eventually(lambda: not cluster.api(0).GetCluster().shards[1].up, "shard 0 notices")
    found = doctor(context, cluster.addresses[0], code=1)
    told = [text for verdict, text in found["shards"] if verdict == "wrong"]
    assert len(told) == 1 and "shard 1 is not there; start its ampd at" in told[0], found
    assert len(found["ports"]) == 2, found


def test_an_etcd_that_is_away_is_told(context):
    if shutil.which(ETCD) is None:
        print("SKIPPED: etcd: no etcd (package etcd-server)")
        return
    cluster = EtcdCluster(context, 1, options=["--cluster-lease", "60s"])  # the server stays while it is asked
    endpoint = cluster.processes[0].address
    assert doctor(context, endpoint)["etcd"][0][0] == "ok"
    cluster.etcd.process.send_signal(signal.SIGSTOP)
    try:
        eventually(lambda: "etcd" in cluster.processes[0].api().GetStatus().trouble, "the server notices")
        found = doctor(context, endpoint, code=1)
        told = [text for verdict, text in found["etcd"] if verdict == "wrong"]
        assert len(told) == 1 and "see whether etcd runs (etcdctl endpoint health)" in told[0], found
    finally:
        cluster.etcd.process.send_signal(signal.SIGCONT)


def test_a_standby_tells_of_the_cluster_and_with_no_shard_left_why_it_accepts_nothing(context):
    if shutil.which(ETCD) is None:
        print("SKIPPED: etcd: no etcd (package etcd-server)")
        return
    cluster = EtcdCluster(context, 2)
    standby = cluster.add()
    standby.says("this process stands by")
    times = []
    for _ in range(3):
        began = time.monotonic()
        assert told_by(context, standby).startswith("ampctl: status: asking elsewhere: ")
        times.append(time.monotonic() - began)
    assert min(times) < 1 * PATIENCE, times
    found = doctor(context, standby.address)
    # The time is that of one answer, without the way from the standby to a shard: else the clock is off by half of it.
    took_ms = float(re.fullmatch(r".* answers in ([0-9.]+) ms", found["endpoint"][0][1])[1])
    assert took_ms < 1000 * PATIENCE, found["endpoint"]
    cluster.etcd.process.send_signal(signal.SIGSTOP)  # nothing takes the shard's place while it is asked
    cluster.processes[1].process.kill()
    eventually(lambda: not cluster.processes[0].api().GetCluster().shards[1].up, "shard 0 notices")
    found = doctor(context, cluster.processes[0].address, code=1)
    assert found["shards"] == [("wrong", "shard 1 is not there; one that stands by takes its place when the lease is "
                                         f"over; or start its ampd at {cluster.processes[1].address}")], found
    cluster.processes[0].process.wait(60)
    eventually(lambda: "etcd cannot be asked" in told_by(context, standby), "the standby notices")
    assert told_by(context, standby).count("asking elsewhere: ") == 1, "the same is said once"
    check, text = wrong(doctor(context, standby.address, code=1))
    assert check == "serving" and text.startswith("this process is not a shard yet: etcd cannot be asked: "), text
    assert text.endswith("; see whether etcd runs (etcdctl endpoint health) and can be reached from there"), text
    cluster.etcd.process.send_signal(signal.SIGCONT)


def told_by(context, process):
    return subprocess.run([context.bin_dir / "ampctl", "-e", process.address, "status"], stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, encoding="utf-8", timeout=60, check=False).stderr


def test_a_full_disk_is_told(context):
    with small_disk(context.folder(), SMALL_DISK_KIB) as disk:
        if disk is None:
            return
        server = context.server(data_dir=disk / "data")
        model = context.model("net", server)
        ballast = fill_disk(disk)
        call = model.api.start("SetScale", model="net", scale=64.0)
        eventually(lambda: model.api.GetStatus().trouble, "the server notices")
        check, text = wrong(doctor(context, address(server), code=1))
        assert check == "disk" and "full" in text and "see its disk (df)" in text, text
        ballast.unlink()
        call.result()
        eventually(lambda: doctor_is_well(context, server), "the trouble is over")
        context.end_test()


def doctor_is_well(context, server):
    return subprocess.run([context.bin_dir / "ampctl", "-e", address(server), "doctor"], stdout=subprocess.DEVNULL,
                          timeout=60, check=False).returncode == 0


if __name__ == "__main__":
    run(globals())
