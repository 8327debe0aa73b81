"""A cluster of ampd with three etcd, each process in a namespace of its own (fault_network.py), tended as systemd would: what ends
with a code that its unit starts again is started again. And the workers, with the times of their verdicts.
"""
import datetime
import json
import os
import signal
import subprocess
import threading
import time

import ampd_testing
from ampd_testing import DIE_WITH_PARENT, PATIENCE, Api, eventually, grpc
from etcd_testing import LOST, PROGRAM
from fault_network import Disk

PORT, ETCD_PORT, ETCD_PEER_PORT = 7420, 2379, 2380
START_TIMEOUT_S = 90 * PATIENCE
CALL_S = 3 * PATIENCE            # a question to a process that may be cut off
AGAIN_S = 0.5         # from the end of a process to its start
LOOK_S = 0.05
ELECTION_MS, ELECTION_SHORT_MS, LEASE_SHORT_S = 1000, 400, 3  # etcd's default; for leases of up to so long
DISK_SIZE = "64m"
ROLLED_BACK = 5       # a push whose step is no more: no verdict
RESTARTED = (LOST, 1)  # as deploy/systemd does


class Etcd:
    """Three members; one may be away. An election takes up to twice the time it is given, and must be over within the lease."""

    def __init__(self, network, folder, election_ms, count=3):
        self.election_ms, self.names = election_ms, [f"etcd{i}" for i in range(count)]
        self.folder, self.network = folder, network
        self.hosts = [network.add(name, 1 + i) for i, name in enumerate(self.names)]
        self.endpoints = ",".join(f"{host}:{ETCD_PORT}" for host in self.hosts)
        self.processes = [None] * count
        for i in range(count):
            self.start(i)

    def start(self, i):
        members = ",".join(f"{name}=http://{host}:{ETCD_PEER_PORT}" for name, host in zip(self.names, self.hosts))
        client, peer = (f"http://{self.hosts[i]}:{port}" for port in (ETCD_PORT, ETCD_PEER_PORT))
        with open(self.folder / f"{self.names[i]}.log", "ab") as log:
            self.processes[i] = subprocess.Popen(
                [*DIE_WITH_PARENT, *self.network.inside(self.names[i]), PROGRAM, "--name", self.names[i], "--data-dir",
                 self.folder / self.names[i], "--initial-cluster", members, "--listen-client-urls", client,
                 "--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                 "--election-timeout", str(self.election_ms), "--heartbeat-interval", str(self.election_ms // 10),
                 "--pre-vote", "--unsafe-no-fsync"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self, i):
        self.processes[i].kill()
        self.processes[i].wait()

    def leader(self):
        """The index of the member that leads, as soon as one does: there may be an election."""
        found = []
        eventually(lambda: found or found.extend(self._leaders()), "etcd has a leader", START_TIMEOUT_S)
        return found[0]

    def _leaders(self):
        done = subprocess.run(["etcdctl", "--endpoints", self.endpoints, "-w", "json", "endpoint", "status"], check=False, timeout=CALL_S * 10,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env={**os.environ, "ETCDCTL_API": "3"})
        rows = json.loads(done.stdout or b"[]") or []  # without those that do not answer; 0 is left out
        leaders = {row["Endpoint"] for row in rows if row["Status"].get("leader") == row["Status"]["header"]["member_id"]}
        return [i for i, endpoint in enumerate(self.endpoints.split(",")) if endpoint in leaders]

    def stop(self):
        for process in self.processes:
            process.kill()
            process.wait()


class Process:
    """One ampd: its place in the network, a small disk of its own, and what keeps it running."""

    def __init__(self, cluster, name, number, options=(), environment=None):
        self.cluster, self.name, self.options = cluster, name, options
        self.environment = {**os.environ, **(environment or {})}
        self.address = f"{cluster.network.add(name, number)}:{PORT}"
        self.disk = Disk(cluster.folder / name, DISK_SIZE)
        self.log_path = cluster.folder / f"{name}.log"
        self.codes, self.held = [], False  # held: whoever injects a fault starts it again
        self.lock, self.due = threading.Lock(), None
        self.channel = grpc.insecure_channel(self.address, options=ampd_testing.CHANNEL_OPTIONS)
        self.start()

    def start(self):
        cluster = self.cluster
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [*DIE_WITH_PARENT, *cluster.network.inside(self.name), cluster.program, "--data-dir", self.disk.path / "data",
                 "--listen", self.address, "--insecure", "--metrics-listen", "none", "--cluster", cluster.url, "--shards",
                 str(cluster.count), "--cluster-lease", f"{cluster.lease_s}s", "--checkpoint-dir", cluster.checkpoints.path / "c",
                 *cluster.options, *self.options], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment)

    def tend(self):
        """Starts it again a while after its end. By the one thread that looks after all."""
        with self.lock:
            code = self.process.poll()
            if code is None or self.held:
                return
            if self.due is None:
                self.codes.append(code)
                self.due = time.monotonic() + AGAIN_S if code in (*RESTARTED, -signal.SIGKILL) else float("inf")
            if time.monotonic() >= self.due:
                self.due = None
                self.start()

    def api(self):
        return Api(self.channel)

    def log(self):
        return self.log_path.read_text(errors="replace")

    def restores(self):
        """(when it took a place, in seconds of the clock of the day, and how long it took from there until it served)"""
        times, taken = [], None
        for line in self.log().splitlines():
            at = datetime.datetime.fromisoformat(line[3:29]).replace(tzinfo=datetime.timezone.utc).timestamp() if line.startswith("ts=") else 0
            if 'msg="holding a place"' in line:
                taken = at
            elif 'msg="serving"' in line and taken is not None:
                times.append((taken, at - taken))
                taken = None
        return times

    def status(self):
        """None: it cannot be asked now."""
        try:
            return self.api().GetStatus(timeout_s=CALL_S)
        except grpc.RpcError:
            return None

    def serves(self):
        try:
            return self.api().health(timeout_s=CALL_S) == ampd_testing.HEALTH_SERVING
        except grpc.RpcError:
            return False

    def send(self, number):
        self.process.send_signal(number)


class Cluster:
    """`count` shards and `standbys` more, any process any shard, with a directory of checkpoints that all share."""

    def __init__(self, network, folder, program, count=3, standbys=1, lease_s=5, options=(), environments=()):
        folder.mkdir(parents=True, exist_ok=True)
        self.network, self.folder, self.program, self.count, self.lease_s = network, folder, program, count, lease_s
        self.options, self.etcd = list(options), Etcd(network, folder, ELECTION_MS if lease_s > LEASE_SHORT_S else ELECTION_SHORT_MS)
        self.url = f"etcd://{self.etcd.endpoints}/c"
        self.checkpoints = Disk(folder / "checkpoints", DISK_SIZE)
        self.processes, self.ended = [], threading.Event()
        for i in range(count + standbys):
            self.processes.append(Process(self, f"p{i}", 20 + i, environment=environments[i] if environments else None))
        self.thread = threading.Thread(target=self._tend, daemon=True)
        self.thread.start()
        self.wait_until_whole()

    def _tend(self):
        while not self.ended.wait(LOOK_S):
            for process in self.processes:
                process.tend()

    @property
    def addresses(self):
        return ",".join(process.address for process in self.processes)

    def owners(self):
        """shard -> the process that serves it."""
        found = {}
        for process in self.processes:
            if process.process.poll() is None and process.serves():
                status = process.status()
                if status is not None:
                    found[status.shard] = process
        return found

    def of(self, shard):
        return eventually(lambda: self.owners().get(shard), f"somebody is shard {shard}", START_TIMEOUT_S)

    def is_whole(self):
        """Every shard is served, and every other process stands by."""
        owners = self.owners()
        others = [process for process in self.processes if process not in owners.values()]
        return set(owners) == set(range(self.count)) and all(
            process.process.poll() is None and is_standing_by(process) for process in others)

    def wait_until_whole(self):
        try:
            eventually(self.is_whole, "every shard is served and all others stand by", START_TIMEOUT_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.tails()}") from None

    def restore_s(self, since):
        """The longest restore of a process that took a place after that time."""
        return max((seconds for process in self.processes for at, seconds in process.restores() if at >= since), default=0.0)

    def tails(self):
        return "\n".join(f"-- {process.name}, ended with {process.codes}\n{process.log()[-2500:]}" for process in self.processes)

    def stop(self):
        self.ended.set()
        self.thread.join()
        for process in self.processes:
            process.channel.close()
            process.process.kill()
            process.process.wait()
            process.disk.close()
        self.checkpoints.close()
        self.etcd.stop()


def is_standing_by(process):
    """Since its last start."""
    return "this process stands by" in process.log().rsplit('msg="listening"', 1)[-1]


class Workers:
    """crash_worker, once for each rank: when each had the verdict of which step."""

    def __init__(self, network, bin_dir, folder, addresses, world, last_path, every, durability="checkpoint", number=100):
        program = bin_dir.parent / "tests" / "crash" / "crash_worker"
        self.last_path, self.verdicts, self.processes, self.threads = last_path, [], [], []
        self.errors = [folder / f"worker{rank}.err" for rank in range(world)]
        for rank in range(world):
            if network is not None:
                network.add(f"worker{rank}", number + rank)
            inside = network.inside(f"worker{rank}") if network is not None else ()
            with open(self.errors[rank], "wb") as errors:
                self.processes.append(subprocess.Popen(
                    [*DIE_WITH_PARENT, *inside, program, addresses, "m", str(rank), str(world), "0", str(every), durability,
                     "small", f"@{last_path}"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors))
            self.verdicts.append([])
            self.threads.append(threading.Thread(target=self._read, args=(rank,), daemon=True))
            self.threads[-1].start()

    def _read(self, rank):
        for line in self.processes[rank].stdout:
            epoch, step, verdict, *_ = map(int, line.split())
            if verdict != ROLLED_BACK:
                self.verdicts[rank].append((time.monotonic(), epoch, step))

    def fine(self):
        codes = [process.poll() for process in self.processes]
        assert not any(codes), f"workers ended with {codes}: {[path.read_text(errors='replace')[-600:] for path in self.errors]}"

    def decided(self):
        """The highest step that a worker had the verdict of."""
        return max((verdicts[-1][2] for verdicts in self.verdicts if verdicts), default=0)

    def await_verdicts(self, count, timeout_s, since=None):
        """So many more at each worker than there were; or than there were at a time."""
        def there(rank):
            return len(self.verdicts[rank]) if since is None else sum(at <= since for at, _, _ in self.verdicts[rank])
        wanted = [there(rank) + count for rank in range(len(self.verdicts))]

        def came():
            self.fine()
            return all(len(verdicts) >= count_of for verdicts, count_of in zip(self.verdicts, wanted))
        eventually(came, f"{count} steps are decided", timeout_s)

    def longest_wait(self, began):
        """Between two verdicts at one worker, the later of them after `began`."""
        return max((b - a for verdicts in self.verdicts for (a, _, _), (b, _, _) in zip(verdicts, verdicts[1:]) if b > began),
                   default=0.0)

    def end_after(self, step):
        part = self.last_path.with_suffix(".part")
        part.write_text(str(step))
        part.rename(self.last_path)

    def wait(self, timeout_s):
        codes = [process.wait(timeout_s) for process in self.processes]
        for thread in self.threads:
            thread.join()
        assert not any(codes), f"workers ended with {codes}: {[path.read_text(errors='replace')[-600:] for path in self.errors]}"

    def stop(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
