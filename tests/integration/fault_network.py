"""Network namespaces joined by a bridge, one for each process, and what can happen to their links and disks.

`go_inside()`, before anything else is imported: the program runs itself once more in namespaces of its own, of the network and
of mounts. What it makes there goes with its last process, whatever becomes of it. Where that is not possible, it prints
SKIPPED with the reason and ends with 77.
"""
import os
import pathlib
import shutil
import subprocess
import sys

INSIDE = "AMPD_FAULTS_INSIDE"
NETNS = pathlib.Path("/run/netns")
TOOLS = {"etcdctl": "etcd-client", "ip": "iproute2", "iptables": "iptables", "unshare": "util-linux", "nsenter": "util-linux", "mount": "mount"}
OUTSIDE = ("unshare", "--mount", "--net", "--propagation", "private")
COMMAND_TIMEOUT_S = 60
BALLAST = "ballast"
CHUNK, LAST_CHUNK = 1 << 20, 4096  # of the ballast: the last ones leave no page


def _skip(why):
    print(f"SKIPPED: {pathlib.Path(sys.argv[0]).name}: {why}")
    sys.exit(77)


def go_inside():
    if INSIDE in os.environ:
        return
    missing = sorted({package for tool, package in TOOLS.items() if shutil.which(tool) is None})
    if os.geteuid() != 0:
        _skip("only root can make network namespaces")
    if missing:
        _skip(f"packages are missing: {' '.join(missing)}")
    probe = "ip link add name bridge type bridge && iptables -A INPUT -m statistic --mode random --probability 0.5 -j DROP"
    done = subprocess.run([*OUTSIDE, "sh", "-c", probe], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=COMMAND_TIMEOUT_S, encoding="utf-8")
    if done.returncode != 0:
        print(done.stdout.strip()[-200:])
        _skip("no namespaces with iptables can be made here")
    os.environ[INSIDE] = "1"
    sys.stdout.flush()
    os.execvp(OUTSIDE[0], [*OUTSIDE, sys.executable, "-B", *sys.argv])


def call(*words):
    done = subprocess.run([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=COMMAND_TIMEOUT_S, encoding="utf-8")
    assert done.returncode == 0, f"{' '.join(map(str, words))}: {done.stdout}"
    return done.stdout


class Network:
    """This process is on the bridge, at .254; each name has a namespace and the address that it was given."""

    NET = "10.78.0"

    def __init__(self):
        NETNS.mkdir(exist_ok=True)
        call("mount", "-t", "tmpfs", "none", NETNS)  # names of the machine's own are not touched
        call("ip", "link", "set", "lo", "up")
        call("ip", "link", "add", "name", "bridge", "type", "bridge")
        call("ip", "address", "add", f"{self.NET}.254/24", "dev", "bridge")
        call("ip", "link", "set", "bridge", "up")
        self.hosts = {}

    def add(self, name, number):
        """The address."""
        host = self.hosts[name] = f"{self.NET}.{number}"
        call("ip", "netns", "add", name)
        call("ip", "link", "add", "eth0", "netns", name, "type", "veth", "peer", "name", name)
        call("ip", "link", "set", name, "master", "bridge", "up")
        call("ip", "-n", name, "link", "set", "lo", "up")
        call("ip", "-n", name, "address", "add", f"{host}/24", "dev", "eth0")
        call("ip", "-n", name, "link", "set", "eth0", "up")
        return host

    @staticmethod
    def inside(name):
        """The words in front of a command that is to run there; the process is the command's own."""
        return ("nsenter", f"--net={NETNS / name}", "--")

    def _rule(self, name, *words):
        call("ip", "netns", "exec", name, "iptables", "-w", "-A", *words)

    def cut(self, name, directions=("in", "out")):
        """Nothing reaches it, or nothing leaves it, or both."""
        if "in" in directions:
            self._rule(name, "INPUT", "-i", "eth0", "-j", "DROP")
        if "out" in directions:
            self._rule(name, "OUTPUT", "-o", "eth0", "-j", "DROP")

    def cut_from(self, name, other):
        """Between these two, both ways; both speak with all others."""
        for chain, side in (("INPUT", "-s"), ("OUTPUT", "-d")):
            self._rule(name, chain, side, self.hosts[other], "-j", "DROP")

    def lose(self, name, share):
        """So many of the packets that reach it are lost, and of those that leave it."""
        for chain in ("INPUT", "OUTPUT"):
            self._rule(name, chain, "-m", "statistic", "--mode", "random", "--probability", str(share), "-j", "DROP")

    def stop(self):
        """Makes room for another one."""
        for name in self.hosts:
            call("ip", "link", "del", name)
            call("ip", "netns", "del", name)
        call("ip", "link", "del", "bridge")
        call("umount", "--lazy", NETNS)

    def mend(self, name):
        call("ip", "netns", "exec", name, "iptables", "-w", "-F")


class Disk:
    """A small file system of its own."""

    def __init__(self, path, size):
        self.path = path
        path.mkdir(parents=True)
        call("mount", "-t", "tmpfs", "-o", f"size={size}", "none", path)

    def fill(self):
        """To the last page."""
        fd = os.open(self.path / BALLAST, os.O_WRONLY | os.O_CREAT)
        try:
            for size in (CHUNK, LAST_CHUNK):
                try:
                    while True:
                        os.write(fd, bytes(size))
                except OSError as error:
                    assert error.errno == 28, error  # ENOSPC
        finally:
            os.close(fd)

    def free(self):
        (self.path / BALLAST).unlink()

    def close(self):
        """What was on it is gone."""
        call("umount", "--lazy", self.path)
