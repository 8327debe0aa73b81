"""cluster_rows.py: one shard beside two, each with one compute thread on a core of its own.

    cluster_apply    from the verdict to the version that is complete on all shards: AdamW, 64 M parameters of fp16 copies
    cluster_step     a whole step of one worker (wait for the apply before, pull, push, verdict), 32 M parameters; each shard
                     is a host of its own (network namespace) with a link of 1 Gb/s each way (tc tbf), the worker's link has
                     no limit. Needs root

ours is the cluster of two, the peer that of one; GB/s of fp16 parameters (cluster_step: pulled and pushed once each).
"""
import os
import socket
import subprocess
import time

from sides import MIB, START_S, Ampd, Skipped

APPLY_SIZE = 2 * 64 * MIB
STEP_SIZE = 2 * 32 * MIB
LINK = "1gbit"
# A bucket must hold what passes in a timer's tick; a packet that waits longer than the latency is dropped, as a switch would.
BURST, LATENCY = "1mb", "50ms"
COMMAND_S = 10


def free_ports(count):
    """So many different ports, which nobody uses now."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


class Shards(Ampd):
    """So many shards on loopback; shard k has core k."""

    def __init__(self, programs, size, what, shards):
        super().__init__(programs, size, what)
        self.shards = shards

    def addresses(self):
        return ["127.0.0.1:%d" % port for port in free_ports(self.shards)]

    def inside(self, _shard):
        """What comes before the command of a shard, or of the worker (None)."""
        return []

    def start(self):
        addresses = self.addresses()
        for shard, address in enumerate(addresses):
            listed = ["--peers", ",".join(addresses), "--shard", str(shard)] if self.shards > 1 else []
            beyond = [] if address.startswith("127.") else ["--insecure"]
            server = self.spawn(shard, *self.inside(shard), self.program("ampd"), "--listen", address, "--data-dir",
                                os.path.join(self.folder, "data-%d" % shard), "--compute-threads", "1", *listed, *beyond)
            self.await_shard(server, address)
        return self.spawn(None, *self.inside(None), self.program("bench_pushpull"), self.direction, addresses[0],
                          str(self.size))

    def await_shard(self, server, address):
        """Until it listens; whether the cluster is ready, the worker finds out."""
        ready = [*self.inside(None), self.program("ampctl"), "--endpoint", address, "status"]
        deadline = time.monotonic() + START_S
        while subprocess.run(ready, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode != 0:
            if server.poll() is not None or time.monotonic() > deadline:
                self.fail("a shard did not start")
            time.sleep(0.05)


class Hosts(Shards):
    """The same, each shard behind a link with a limit; the worker is on the host that they all hang on."""

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
        """The bridge is in the worker's namespace, where no filter of the machine's looks at what passes."""
        if os.geteuid() != 0:
            raise Skipped("network namespaces need root")
        worker = self.space("w")
        self.command("ip", "-n", worker, "link", "add", "br0", "type", "bridge")
        self.command("ip", "-n", worker, "addr", "add", self.net + ".9/24", "dev", "br0")
        self.command("ip", "-n", worker, "link", "set", "br0", "up")
        return [self.host(worker, shard) for shard in range(self.shards)]

    def host(self, worker, shard):
        """A namespace on the bridge, both directions of its link limited where they leave."""
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
    ("cluster_apply", (Shards, APPLY_SIZE, "apply", 2), ((Shards, APPLY_SIZE, "apply", 1),), 1.7, True),
    ("cluster_step", (Hosts, STEP_SIZE, "step", 2), ((Hosts, STEP_SIZE, "step", 1),), 1.4, True),
)
