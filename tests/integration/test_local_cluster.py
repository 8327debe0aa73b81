#!/usr/bin/python3
"""deploy/local-cluster.sh: a cluster on this machine comes up, trains, survives what happens to its processes, and goes.

    test_local_cluster.py BIN_DIR [NAME ...]
"""
import contextlib
import json
import os
import shutil
import subprocess

import urllib.parse

import ampd_testing
from ampd_testing import PATIENCE, ROOT, eventually, run

SCRIPT = ROOT / "deploy" / "local-cluster.sh"
UP_TIMEOUT_S, DOWN_TIMEOUT_S, TRAIN_TIMEOUT_S = 120 * PATIENCE, 60 * PATIENCE, 300 * PATIENCE
FAILOVER_STEPS = 600  # so that training goes on while a shard is killed and comes back


class LocalCluster:
    """`hold`: the cluster lives as long as this process, whatever becomes of it."""

    def __init__(self, context, *options):
        self.folder, self.bin_dir = context.folder(), context.bin_dir
        self.holder = subprocess.Popen(
            [SCRIPT, "hold", "--dir", self.folder, "--bin", context.bin_dir, *options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8")
        said = ""
        for line in self.holder.stdout:
            said += line
            if line == "ready\n":
                break
        assert said.endswith("ready\n"), said
        self.said = said

    def call(self, *arguments, check=True, timeout_s=DOWN_TIMEOUT_S):
        command, *rest = arguments
        at = rest.index("--") if "--" in rest else len(rest)
        done = subprocess.run([SCRIPT, command, *rest[:at], "--dir", self.folder, *rest[at:]], timeout=timeout_s,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8")
        assert not check or done.returncode == 0, f"{arguments}: {done.returncode}: {done.stdout}"
        return done.stdout

    def status(self):
        """name -> (pid or None, address)"""
        rows = [line.split() for line in self.call("status").splitlines()]
        return {name: (None if pid == "-" else int(pid), address) for name, pid, address in rows}

    def ampctl(self, node, *arguments):
        address = self.status()[node][1]
        return json.loads(self.call("exec", "operator", "--", self.bin_dir / "ampctl", "--endpoint", address, *arguments,
                                    "-o", "json"))

    def http(self, address, path):
        """The body of a page, fetched from inside the cluster's network."""
        code = f"import urllib.request as u; print(u.urlopen('http://{address}{path}', timeout=20).read().decode())"
        return self.call("exec", "operator", "--", "/usr/bin/python3", "-c", code)

    def end(self):
        """The standard input ends: the exit code of the script."""
        self.holder.stdin.close()
        self.holder.stdout.read()
        return self.holder.wait(DOWN_TIMEOUT_S)

    def stop(self):
        if self.holder.poll() is None:
            self.end()


def is_running(pid):
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            return ") Z" not in stat.read()
    return False


def namespaces():
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return set()
    listed = subprocess.run(["ip", "netns", "list"], stdout=subprocess.PIPE, encoding="utf-8", timeout=20)
    return {line.split()[0] for line in listed.stdout.splitlines()}


def prefix_of(folder):
    """What the names of a cluster's namespaces begin with: other tests have some of their own meanwhile."""
    return "ac" + subprocess.run(["cksum"], input=str(folder), capture_output=True, encoding="utf-8", check=True).stdout.split()[0]


def check_that_nothing_is_left(cluster, before):
    pids = [pid for pid, _ in cluster.status().values() if pid is not None]
    prefix = next(line.split("=", 1)[1] for line in (cluster.folder / "cluster.env").read_text().splitlines()
                  if line.startswith("prefix="))
    assert prefix == prefix_of(cluster.folder)
    assert cluster.end() == 0
    # Killed they are; one that waits for the disk in the kernel, as etcd does, is gone when that has answered.
    eventually(lambda: not [pid for pid in pids if is_running(pid)], "no process goes on", DOWN_TIMEOUT_S)
    assert not [name for name in namespaces() - before if name.startswith(prefix)]


def test_two_shards_train_while_a_worker_and_a_shard_are_killed(context):
    before = namespaces()
    cluster = LocalCluster(context, "--etcd", "0", "--shards", "2", "--workers", "2", "--digits", f"--steps={FAILOVER_STEPS}",
                           "--digits", "--checkpoint-every=20")
    context._own.append(cluster)
    first = cluster.status()
    assert set(first) >= {"ampd0", "ampd1", "worker0", "worker1"} and all(pid for pid, _ in first.values()), first
    eventually(lambda: "model=digits" in (cluster.folder / "ampd0.log").read_text(), "the model is there", TRAIN_TIMEOUT_S)
    for name in ("worker0", "ampd1"):
        cluster.call("kill", name)
        eventually(lambda: cluster.status()[name][0] is None, f"{name} is gone")
        cluster.call("start", name)
    assert "runs already" in cluster.call("start", "ampd0", check=False)  # a worker may have ended: its model may be done
    if "prometheus" in first:
        query = urllib.parse.quote('sum(up{job="ampd"})')
        page = f"/api/v1/query?query={query}"
        eventually(lambda: '"2"]' in cluster.http(first["prometheus"][1], page), "Prometheus sees both shards", UP_TIMEOUT_S)
    eventually(lambda: not any(cluster.status()[f"worker{i}"][0] for i in range(2)), "the workers have ended", TRAIN_TIMEOUT_S)
    results = [(cluster.folder / f"worker{i}.log").read_text() for i in range(2)]
    assert f"after {FAILOVER_STEPS} steps" in results[0], results[0][-500:]
    assert cluster.ampctl("ampd0", "status")["models"][0]["state"].lower().endswith("done")
    check_that_nothing_is_left(cluster, before)


def result_of(text):
    """What the workers have learned: the line without who printed it."""
    return next(line for line in text.splitlines() if line.startswith("digits: "))


def test_a_standby_takes_the_place_of_a_shard_that_is_killed(context):
    """With etcd, as in containers: training goes on with it, the killed one stands by then, and the result is that of one shard
    that is left alone."""
    if shutil.which("etcd") is None:
        print("SKIPPED: no etcd (package etcd-server)")
        return
    before = namespaces()
    digits = ["--digits", f"--steps={FAILOVER_STEPS}", "--digits", "--checkpoint-every=20"]
    cluster = LocalCluster(context, "--workers", "2", "--no-prometheus", *digits)
    context._own.append(cluster)
    first = cluster.status()
    assert set(first) == {"etcd0", "etcd1", "etcd2", "ampd0", "ampd1", "ampd2", "standby0", "worker0", "worker1"}, first

    def step():
        with contextlib.suppress(AssertionError):
            return cluster.ampctl("ampd1", "status")["models"][0]["step"]
        return 0
    eventually(lambda: int(step()) > 40, "it trains", TRAIN_TIMEOUT_S)
    cluster.call("kill", "ampd0")
    eventually(lambda: "filled by another shard" in (cluster.folder / "standby0.log").read_text(), "the standby has a place",
               UP_TIMEOUT_S)
    at = int(step())
    goal = min(at + 20, FAILOVER_STEPS)  # the standby may have taken them nearly to the end when it is seen
    eventually(lambda: int(step()) >= goal, "it goes on without ampd0", TRAIN_TIMEOUT_S)
    cluster.call("start", "ampd0")
    eventually(lambda: "this process stands by" in (cluster.folder / "ampd0.log").read_text().rsplit('msg="listening"', 1)[-1],
               "the one that was killed stands by", UP_TIMEOUT_S)
    eventually(lambda: not any(cluster.status()[f"worker{i}"][0] for i in range(2)), "the workers have ended", TRAIN_TIMEOUT_S)
    learned = (cluster.folder / "worker0.log").read_text()
    check_that_nothing_is_left(cluster, before)
    alone = subprocess.run([SCRIPT, "run", "--dir", context.folder(), "--bin", context.bin_dir, "--etcd", "0", "--shards", "1",
                            "--workers", "2", "--no-prometheus", *digits], timeout=TRAIN_TIMEOUT_S, stdin=subprocess.DEVNULL,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8")
    assert alone.returncode == 0 and result_of(learned) == result_of(alone.stdout), (learned[-500:], alone.stdout)


def test_a_run_with_etcd_ends_with_0_and_leaves_nothing(context):
    if shutil.which("etcd") is None:
        print("SKIPPED: no etcd (package etcd-server)")
        return
    before, folder = namespaces(), context.folder()
    done = subprocess.run([SCRIPT, "run", "--dir", folder, "--bin", context.bin_dir, "--no-prometheus", "--digits", "--steps=20"],
                          timeout=TRAIN_TIMEOUT_S, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          encoding="utf-8")
    assert done.returncode == 0 and "after 20 steps" in done.stdout, done.stdout
    assert not list(folder.glob("*.pid"))
    assert not [name for name in namespaces() - before if name.startswith(prefix_of(folder))]


def test_a_run_on_loopback_ends_with_0_and_leaves_nothing(context):
    folder = context.folder()
    done = subprocess.run([SCRIPT, "run", "--dir", folder, "--bin", context.bin_dir, "--etcd", "0", "--loopback", "--shards",
                           "1", "--workers", "1", "--no-prometheus", "--digits", "--steps=20"], timeout=TRAIN_TIMEOUT_S,
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8")
    assert done.returncode == 0 and "after 20 steps" in done.stdout, done.stdout
    assert not list(folder.glob("*.pid"))
    ended = subprocess.Popen(["/bin/true"])
    ended.wait()
    (folder / "worker0.pid").write_text(f"{ended.pid} \n")  # of a worker that had ended before its start could be read
    listed = subprocess.run([SCRIPT, "status", "--dir", folder], timeout=DOWN_TIMEOUT_S, check=True, stdin=subprocess.DEVNULL,
                            stdout=subprocess.PIPE, encoding="utf-8")
    assert "\nworker0 - " in listed.stdout, listed.stdout


def test_down_drains_so_that_the_next_up_goes_on_with_the_last_step(context):
    folder = context.folder()

    def call(*words):
        done = subprocess.run([SCRIPT, words[0], "--dir", folder, *words[1:]], timeout=UP_TIMEOUT_S, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8")
        assert done.returncode == 0, f"{words}: {done.returncode}: {done.stdout}"
        return done.stdout

    def attempted():
        address = next(line.split()[2] for line in call("status").splitlines() if line.startswith("ampd0 "))
        done = subprocess.run([context.bin_dir / "ampctl", "--endpoint", address, "status", "-o", "json"], capture_output=True,
                              timeout=DOWN_TIMEOUT_S, check=True)
        return max((int(model.get("attempted", 0)) for model in json.loads(done.stdout).get("models", [])), default=0)

    before = 0
    for _ in range(2):
        try:
            call("up", "--bin", context.bin_dir, "--etcd", "0", "--loopback", "--shards", "1", "--workers", "1", "--no-prometheus",
                 "--digits", "--steps=1000000", "--digits", "--checkpoint-every=1000000")
            assert attempted() >= before, "decided steps are gone"
            before = eventually(lambda seen=before: attempted() > seen + 20 and attempted(), "it trains", TRAIN_TIMEOUT_S)
        finally:
            call("down")
        assert 'msg="drained"' in (folder / "ampd0.log").read_text()
    assert not list(folder.glob("*.pid"))


def test_a_second_run_in_the_same_directory_goes_on_with_its_data_and_logs(context):
    """Members of etcd know each other by their addresses, on loopback by their ports."""
    if shutil.which("etcd") is None:
        print("SKIPPED: no etcd (package etcd-server)")
        return
    folder, said, logs = context.folder(), [], {}
    for _ in range(2):
        done = subprocess.run([SCRIPT, "run", "--dir", folder, "--bin", context.bin_dir, "--loopback", "--shards", "2", "--workers",
                               "1", "--no-prometheus", "--digits", "--steps=20"], timeout=TRAIN_TIMEOUT_S, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8")
        assert done.returncode == 0 and done.stdout.count("digits: ") == 1, done.stdout
        said.append(done.stdout)
        for path, text in logs.items():
            now = path.read_bytes()
            assert now.startswith(text) and len(now) > len(text), f"{path.name}: {len(text)} bytes, then {len(now)}"
        logs = {path: path.read_bytes() for path in folder.glob("*.log")}
    assert said[0] == said[1] and {path.name for path in logs} >= {"etcd0.log", "ampd0.log", "worker0.log"}, (said, logs.keys())
    for options in (["--etcd", "1"], ["--etcd", "3", "--rate", "1gbit"]):
        done = subprocess.run([SCRIPT, "up", "--dir", folder, "--bin", context.bin_dir, *options], timeout=DOWN_TIMEOUT_S,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")
        assert done.returncode == 1 and done.stderr.count("\n") == 1, done
        assert done.stderr.startswith("local-cluster: ") and ("--dir" in done.stderr or "--rate" in done.stderr), done


def test_every_process_of_a_large_cluster_is_known_by_its_name(context):
    folder = context.folder()
    folder.mkdir()
    (folder / "cluster.env").write_text("prefix=none mode=loopback port_base=20000 shards=64 standbys=8 workers=64 etcds=7 prometheus=1\n")
    for name in ("etcd0", "ampd2", "ampd63", "worker63") * 10:
        done = subprocess.run([SCRIPT, "exec", name, "--dir", folder, "--", "true"], timeout=DOWN_TIMEOUT_S, capture_output=True)
        assert done.returncode == 0, (name, done)
    done = subprocess.run([SCRIPT, "exec", "ampd64", "--dir", folder, "--", "true"], timeout=DOWN_TIMEOUT_S, capture_output=True)
    assert done.returncode == 1 and done.stderr == b"local-cluster: there is no ampd64 in this cluster\n", done


def test_wrong_use_is_told_and_starts_nothing(context):
    folder = context.folder()
    for arguments in ([], ["grow"], ["up", "--shards", "0"], ["up", "--shards"], ["up", "--workers", "x"], ["start"],
                      ["up", "--nothing"]):
        done = subprocess.run([SCRIPT, *arguments], timeout=DOWN_TIMEOUT_S, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")
        assert done.returncode == 2 and done.stderr.startswith("local-cluster: "), (arguments, done)
        assert done.stderr.count("\n") == 1 and done.stderr.endswith("; see --help\n"), (arguments, done)
    for arguments in (["down", "--dir", folder], ["up", "--dir", folder, "--bin", folder]):
        done = subprocess.run([SCRIPT, *arguments], timeout=DOWN_TIMEOUT_S, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")
        assert done.returncode == 1 and done.stderr.startswith("local-cluster: "), (arguments, done)
    assert not folder.exists()


if __name__ == "__main__":
    run(globals())
