"""cluster_rows.py: two shards (ours) beside one (the peer), each shard with one compute thread on a core of its own.

    cluster_apply    from the verdict until the version is complete on all shards: AdamW, 64 M parameters with fp16
                     copies. The bound is the ratio of two cores and one without a server: the library's apply and
                     checksums by two threads, beside one, over the same arrays (where one core uses all of the memory's
                     bandwidth, a second one adds nothing)
    cluster_step     a whole step of one worker (wait for the apply before, pull, push, verdict), 32 M parameters. Each
                     shard is a host of its own (a network namespace) with a link of 1 Gb/s in each direction (tc tbf);
                     the worker's link has no limit. Needs root

The figures of these are GB/s of fp16 parameters (cluster_step: pulled and pushed once each).

    cluster_scale_wW_kK    W workers and K shards with such links: milliseconds of a step. Peer: what the cost model of
                           docs/cluster-cost.md predicts. Needs root
"""
import os
import socket
import statistics
import subprocess
import sys
import time

from sides import MIB, START_S, Ampd, Kernels, Skipped

APPLY_SIZE = 2 * 64 * MIB
STEP_SIZE = 2 * 32 * MIB
LINK = "1gbit"
# The bucket must hold the bytes that pass in one tick of the timer; a packet that waits longer than the latency is
# dropped, as by a switch.
BURST, LATENCY = "1mb", "50ms"
COMMAND_S = 10


def free_ports(count):
    """`count` different ports that are not in use now."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


class Shards(Ampd):
    """A number of shards on loopback; shard k runs on core k."""

    def __init__(self, programs, size, what, shards):
        super().__init__(programs, size, what)
        self.shards = shards

    def addresses(self):
        return ["127.0.0.1:%d" % port for port in free_ports(self.shards)]

    def inside(self, _shard):
        """The words before the command of a shard, or of the worker (None)."""
        return []

    def start(self):
        addresses = self.addresses()
        for shard, address in enumerate(addresses):
            listed = ["--peers", ",".join(addresses), "--shard", str(shard)] if self.shards > 1 else []
            beyond = [] if address.startswith("127.") else ["--insecure"]
            server = self.spawn(shard, *self.inside(shard), self.program("ampd"), "--listen", address, "--data-dir",
                                os.path.join(self.folder, "data-%d" % shard), "--compute-threads", "1",
                                *listed, *beyond)
            self.await_shard(server, address)
        return self.spawn(None, *self.inside(None), self.program("bench_pushpull"), self.direction, addresses[0],
                          str(self.size))

    def await_shard(self, server, address):
        """Waits until the shard listens; the worker finds out when the cluster is ready."""
        ready = [*self.inside(None), self.program("ampctl"), "--endpoint", address, "status"]
        deadline = time.monotonic() + START_S
        while subprocess.run(ready, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode != 0:
            if server.poll() is not None or time.monotonic() > deadline:
                self.fail("a shard did not start")
            time.sleep(0.05)


class Hosts(Shards):
    """Shards behind links with a limit each; the worker is on the host to which all links lead."""

    used = 0  # networks of this process

    def __init__(self, programs, size, what, shards):
        super().__init__(programs, size, what, shards)
        Hosts.used += 1
        self.prefix = "ab%d-%d" % (os.getpid() % 10000, Hosts.used)
        self.net = "10.213.%d" % Hosts.used
        self.amount = 2 * size / 1e9

    def round(self):
        return 2 * super().round()

    def command(self, *words):
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, timeout=COMMAND_S)
        if done.returncode != 0:
            raise Skipped("%s: %s" % (" ".join(words), done.stdout.decode(errors="replace").strip()))

    def space(self, name):
        self.command("ip", "netns", "add", self.prefix + name)
        self.command("ip", "-n", self.prefix + name, "link", "set", "lo", "up")
        return self.prefix + name

    def addresses(self):
        """Creates the worker's namespace with the bridge, in which no firewall of the machine looks at the packets."""
        if os.geteuid() != 0:
            raise Skipped("network namespaces need root")
        worker = self.space("w")
        self.command("ip", "-n", worker, "link", "add", "br0", "type", "bridge")
        self.command("ip", "-n", worker, "addr", "add", self.net + ".9/24", "dev", "br0")
        self.command("ip", "-n", worker, "link", "set", "br0", "up")
        return [self.host(worker, shard) for shard in range(self.shards)]

    def host(self, worker, shard):
        """Creates a namespace with a link to the bridge; each direction of the link is limited at its sender."""
        space, link, address = self.space(str(shard)), "shard%d" % shard, "%s.%d" % (self.net, 10 + shard)
        self.command("ip", "-n", worker, "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", space)
        self.command("ip", "-n", worker, "link", "set", link, "master", "br0", "up")
        self.command("ip", "-n", space, "addr", "add", address + "/24", "dev", "eth0")
        self.command("ip", "-n", space, "link", "set", "eth0", "up")
        for where, device in ((worker, link), (space, "eth0")):
            self.command("tc", "-n", where, "qdisc", "add", "dev", device, "root", "tbf", "rate", LINK, "burst", BURST,
                         "latency", LATENCY)
        return address + ":7420"

    def inside(self, shard):
        return ["ip", "netns", "exec", "%s%s" % (self.prefix, "w" if shard is None else shard)]

    def __exit__(self, *what):
        super().__exit__(*what)
        for name in ("w", *map(str, range(self.shards))):
            subprocess.run(["ip", "netns", "del", self.prefix + name], stderr=subprocess.DEVNULL, check=False)


# As in pairs.py; only when asked for.
PAIRS = (
    ("cluster_apply", (Shards, APPLY_SIZE, "apply", 2), ((Shards, APPLY_SIZE, "apply", 1),), 1.7, True,
     tuple((Kernels, APPLY_SIZE, APPLY_SIZE // 2, threads, "apply") for threads in (2, 1))),
    ("cluster_step", (Hosts, STEP_SIZE, "step", 2), ((Hosts, STEP_SIZE, "step", 1),), 1.4, True),
)


# ---- the cost model (docs/cluster-cost.md) ----

SCALE_ELEMENTS = 32 << 20
SCALE_STEPS, SCALE_WARM_UPS = 7, 2
# The payload of a link in bytes a second: 1,448 bytes of a TCP segment in a frame of 1,514.
LINK_BYTES_S = 125e6 * 1448 / 1514
NEVER = "1000000000"

apply_s = {}


class Workers(Hosts):
    """W workers on one host without a limit: a step ends when the last of them has its verdict."""

    def __init__(self, programs, shards, workers):
        super().__init__(programs, 2 * SCALE_ELEMENTS, "with", shards)
        self.workers = workers

    def program(self, name):
        return super().program("bench_checkpoint" if name == "bench_pushpull" else name)

    def spawn(self, core, *command):
        """Starts a worker for each rank in place of the one bench_pushpull that the base class would start."""
        if not any(part.endswith("/bench_checkpoint") for part in command):
            return super().spawn(core, *command)
        at = command[-2]
        self.ranks = [super(Workers, self).spawn(
            None, *self.inside(None), self.program("bench_checkpoint"), at, str(SCALE_ELEMENTS), "0", NEVER,
            str(self.workers), str(rank)) for rank in range(self.workers)]
        return self.ranks[0]

    def step_s(self):
        began = time.monotonic()
        for rank in self.ranks:
            rank.stdin.write(b"with\n")
        for rank in self.ranks:
            self.line(rank, START_S)
        return time.monotonic() - began


def measured_apply_s(programs):
    """Seconds of the apply of one element by one shard on one core, measured as in cluster_apply."""
    if not apply_s:
        with Shards(programs, APPLY_SIZE, "apply", 1) as side:
            rates = [side.round() for _ in range(SCALE_WARM_UPS + SCALE_STEPS)][SCALE_WARM_UPS:]
        apply_s["one"] = 2 / (statistics.median(rates) * 1e9)
    return apply_s["one"]


def scale(programs, name):
    """Measures cluster_scale_wW_kK: milliseconds of a step, beside those of the cost model."""
    workers, shards = (int(part[1:]) for part in name.split("_")[-2:])
    each = measured_apply_s(programs)
    cores = min(shards, len(os.sched_getaffinity(0)))
    moved = workers * 2 * SCALE_ELEMENTS / shards / LINK_BYTES_S
    predicted = 2 * moved + SCALE_ELEMENTS * each / cores
    with Workers(programs, shards, workers) as side:
        steps = [side.step_s() for _ in range(SCALE_WARM_UPS + SCALE_STEPS)][SCALE_WARM_UPS:]
    middle = statistics.median(steps)
    print("\t".join((name, "%.0f" % (middle * 1000), "%.0f" % (predicted * 1000), "%.2f" % (middle / predicted), "-",
                     "info")), flush=True)
    print("# %s: steps, ms: %s; model: push %.0f, apply %.0f, pull %.0f" % (
        name, " ".join("%.0f" % (s * 1000) for s in steps), moved * 1000, SCALE_ELEMENTS * each / cores * 1000,
        moved * 1000), file=sys.stderr)


ROWS = tuple(("cluster_scale_w%d_k%d" % (workers, shards), scale) for workers in (1, 2) for shards in (1, 2, 4))
