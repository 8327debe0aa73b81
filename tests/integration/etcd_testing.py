"""An etcd of one member as a process, or of several, and a cluster of ampd whose shards find each other in it.

Where there is no etcd, importing this prints SKIPPED and ends with 77.
"""
import re
import shutil
import signal
import socket
import subprocess
import sys
import time

import ampd_testing
from ampd_testing import CALL_TIMEOUT_S, PATIENCE, Api, eventually, grpc

PROGRAM = shutil.which("etcd")
if PROGRAM is None:
    print(f"SKIPPED: {ampd_testing.FILE}: no etcd (package etcd-server)")
    sys.exit(77)

START_TIMEOUT_S = CALL_TIMEOUT_S
LEASE_S = 4 * PATIENCE  # with 2 s, the shortest that etcd has, a busy machine cost processes their places
LOST = 4     # exit code of a process that is no shard any more


class Etcd:
    """On a free port of loopback, and on that one again after a restart. With `pair` (certificate, key) it speaks TLS."""

    name, peers = "default", {"default": "http://127.0.0.1:1"}
    listen_peer = "http://127.0.0.1:0"

    def __init__(self, context, pair=None, options=()):
        self.folder, self.port, self.process = context.folder(), 0, None
        self.scheme = "https" if pair else "http"
        self.options = [*(("--cert-file", pair[0], "--key-file", pair[1]) if pair else ()), *options]
        self.folder.mkdir()
        context._own.append(self)
        self.start()

    def start(self):
        self.launch()
        self.await_start()

    def launch(self):
        with open(self.folder / "log", "wb") as out:
            self.process = subprocess.Popen(
                [*ampd_testing.DIE_WITH_PARENT, PROGRAM, "--data-dir", self.folder / "data",
                 "--listen-client-urls", f"{self.scheme}://127.0.0.1:{self.port}", "--advertise-client-urls", f"{self.scheme}://127.0.0.1:1",
                 "--name", self.name, "--listen-peer-urls", self.listen_peer, "--initial-advertise-peer-urls", self.peers[self.name],
                 "--initial-cluster", ",".join(f"{name}={url}" for name, url in self.peers.items()),
                 "--unsafe-no-fsync", *self.options],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out)

    def log(self):
        return (self.folder / "log").read_text(errors="replace")

    def await_start(self):
        serves = re.compile(r"serving (?:insecure )?client requests on 127\.0\.0\.1:(\d+)")
        eventually(lambda: serves.search(self.log()), "etcd serves", START_TIMEOUT_S)
        self.port = int(serves.search(self.log())[1])

    @property
    def endpoints(self):
        return f"127.0.0.1:{self.port}"

    def kill(self):
        self.process.kill()
        self.process.wait()

    def wipe(self):
        """It must not run."""
        shutil.rmtree(self.folder / "data")

    def stop(self):
        if self.process.poll() is None:
            self.kill()


class Member(Etcd):
    """One of several; the others start at the same time."""

    def __init__(self, context, name, peers, pair, options):
        self.name, self.peers, self.listen_peer = name, peers, peers[name]
        super().__init__(context, pair, options)

    def start(self):
        self.launch()


class Members:
    """An etcd of `count` members; with `pair` they speak TLS and show it to each other, and `authority` is the file they know each
    other by."""

    def __init__(self, context, count, pair=None, authority=None, options=()):
        ports = []
        for _ in range(count):
            with socket.socket() as taken:
                taken.bind(("127.0.0.1", 0))
                ports.append(taken.getsockname()[1])
        self.scheme = "https" if pair else "http"
        peers = {f"m{i}": f"{self.scheme}://127.0.0.1:{port}" for i, port in enumerate(ports)}
        secure = ["--peer-cert-file", pair[0], "--peer-key-file", pair[1], "--peer-trusted-ca-file", authority,
                  "--peer-client-cert-auth"] if pair else []
        self.members = [Member(context, name, peers, pair, [*secure, *options]) for name in peers]
        for member in self.members:
            member.await_start()

    @property
    def endpoints(self):
        return ",".join(member.endpoints for member in self.members)

    def leader(self):
        """By the highest term of which a member has said that it leads."""
        led = re.compile(r"became leader at term (\d+)")
        return max(self.members, key=lambda member: max(map(int, led.findall(member.log())), default=0))


class Process:
    """One ampd of a cluster, on a unix socket."""

    before = ()  # words in front of its command

    def __init__(self, cluster, name, options):
        self.cluster, self.name, self.options = cluster, name, options
        self.address = f"unix:{cluster.folder}/{name}.sock"
        self.log_path = cluster.folder / f"{name}.log"
        self.process = self.channel = None
        self.start()

    def start(self):
        cluster = self.cluster
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [*ampd_testing.DIE_WITH_PARENT, *self.before, cluster.program, "--data-dir", cluster.folder / self.name,
                 "--listen", self.address, "--cluster", cluster.url, "--shards", str(cluster.count),
                 "--cluster-lease", f"{LEASE_S}s", *self.options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.channel = grpc.insecure_channel(self.address, options=ampd_testing.CHANNEL_OPTIONS)

    def api(self):
        return Api(self.channel)

    def log(self):
        return self.log_path.read_text(errors="replace")

    def says(self, text, times=1):
        eventually(lambda: self.log().count(text) >= times, f"{self.name} says {text}", START_TIMEOUT_S)

    def serves(self):
        grpc.channel_ready_future(self.channel).result(timeout=START_TIMEOUT_S)
        eventually(lambda: self.api().health() == ampd_testing.HEALTH_SERVING, f"{self.name} serves", START_TIMEOUT_S)

    def shard(self):
        return self.api().GetStatus().shard

    def fence(self):
        return self.api().GetStatus().fence

    def send(self, number):
        self.process.send_signal(number)

    def kill(self):
        self.process.kill()
        self.wait()

    def wait(self):
        code = self.process.wait(CALL_TIMEOUT_S)
        self.channel.close()
        return code

    def terminate(self):
        self.send(signal.SIGTERM)
        return self.wait()


class Cluster:
    """`count` shards, each a process "pK"; with `fixed` each is told its index."""

    def __init__(self, context, count, fixed=True, etcd=None, name="c", options=(), healthy=True):
        self.program, self.count, self.name = context.bin_dir / "ampd", count, name
        self.folder, self.etcd = context.folder(), etcd or Etcd(context)
        self.folder.mkdir()
        self.url = f"{'etcds' if self.etcd.scheme == 'https' else 'etcd'}://{self.etcd.endpoints}/{name}"
        self.options, self.processes = list(options), []
        context._own.append(self)
        for k in range(count):
            self.add(["--shard", str(k)] if fixed else [])
        if healthy:
            self.wait_until_healthy()

    def add(self, options=()):
        process = Process(self, f"p{len(self.processes)}", [*self.options, *options])
        self.processes.append(process)
        return process

    def wait_until_healthy(self):
        """Every shard has a process that serves."""
        def all_serve():
            found = set()
            for process in self.processes:
                try:
                    if process.process.poll() is None and process.api().health() == ampd_testing.HEALTH_SERVING:
                        found.add(process.shard())
                except grpc.RpcError:
                    pass
            return found == set(range(self.count))
        eventually(all_serve, "all shards serve", START_TIMEOUT_S)

    def of(self, k):
        """The process that is shard k now."""
        said = []
        for process in self.processes:
            try:
                shard = process.shard() if process.process.poll() is None else "ended"
                if shard == k:
                    return process
                said.append(f"{process.name}: {shard}")
            except grpc.RpcError as error:
                said.append(f"{process.name}: {error.code().name} {error.details()}")
        raise AssertionError(f"nobody is shard {k}: {said}")

    def api(self, k):
        return self.of(k).api()

    def log(self, k):
        return self.processes[k].log()

    def stop(self):
        for process in self.processes:
            if process.process.poll() is None:
                process.kill()


def wait_s(seconds):
    """Lets time pass that has to."""
    time.sleep(seconds)
