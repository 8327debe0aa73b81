"""host_rows.py: workers and their server on one host, with shared memory.

64 M parameters, AdamW, fp16, one worker (bench_pushpull.c); server and workers on all cores, as they are used. Both
sides of a row take turns (sides.py: they start twice). The first WARM_UPS rounds of each side after a start touch
memory for the first time (slots, copies and page tables) and do not count; a round of `run` is six steps, else one.

    row                ours; peer; goal
    host_step          milliseconds of a whole step. Peer: a bound, which is the bytes that the worker's writing, the
                       server's reading, the vote and the apply move, at the speed of a copy by two threads in the same
                       run. The goal is the most
    host_step_tcp      milliseconds of a whole step. Peer: the same over TCP. The goal is the most; if TCP is so fast
                       that the bound of host_step is more than half of its time, it is that of the bound
                       (sides.bounded_goal)
    host_push          milliseconds from the gradient to the verdict. Peer: the same over TCP. No goal
    host_begin         microseconds of step_begin with a complete version, which maps the parameters. Peer: the same
                       over a unix socket without shared memory. No goal
    host_bytes         GB/s of both transfers of a step: the bytes of the gradient and of the parameters, divided by the
                       time of step_begin, with a complete version, and of push and step_end up to the verdict, SGD.
                       Peer: the same over TCP. On both sides backward has written the gradient where
                       ampclient_gradient says, outside the time. The goal is the least
    host_bytes_copied  the same with a gradient in the worker's own memory, which ampclient_push copies. No goal
    host_two, _four    milliseconds of a whole step of two and of four workers, each a process (bench_checkpoint.c, 64
                       parameters), from the common start to the last verdict. Peer: the same over TCP. No goal
    host_memory_2, _4  bytes of memory a parameter that the server has with two and with four workers, without what it
                       had before the model was created, the most of all steps after the first: its own pages and all
                       pages of memory that it shares, each once, mapped by it or not. Peer: the formula of
                       docs/cluster-cost.md: 12 of masters and moments, 2 x 2 of cast copies, 2 W of staging, 2 W of the
                       slots that the workers map, and from three workers on 4 of the sum. The goal is the most. No
                       checkpoint is taken

The comparison with torch on the CPU in one process (offload: unscale, isfinite, clip, AdamW in its fused form if this
torch has it for CPUs, half) is kernels_torch_1t and _2t in pairs.py, with the same arithmetic and without a transport.
"""
import os
import re
import statistics
import sys
import time

from sides import MIB, START_S, Ampd, Side, bounded_goal, in_turns, reaches_bound

ELEMENTS = 64 << 20
# Bytes that are moved for each parameter: read and written by the worker (2 + 2), read and written by the server
# (2 + 2), and moved by the vote and the apply of AdamW with one worker (pairs.py, STEP_BYTES).
BYTES_EACH = 4 + 4 + 30
PAIRS, WARM_UPS = 12, 6
APPLY_S = 0.3  # longer than an apply of 64 M parameters
STEP_GOAL, TCP_GOAL, BYTES_GOAL = 1.25, 0.5, 5.0
# The number of steps after each of which the memory is read; the most that its ratio to the formula may be.
MEMORY_STEPS, MEMORY_LIMIT = 6, 1.10
CHECKPOINT_NEVER = 1000000000


class Host(Ampd):
    """A step by one transport: "shared", "unix" or "tcp"."""

    limits, unit = True, "step"

    def __init__(self, programs, mode, transport):
        super().__init__(programs, 2 * ELEMENTS, mode, unix=transport != "tcp")
        self.transport, self.amount = transport, 1

    def name(self):
        return self.transport

    def start(self):
        endpoint = self.endpoint()
        options = [] if self.transport == "shared" else ["--shared-memory", "off"]
        server = self.spawn(None, self.program("ampd"), "--data-dir", os.path.join(self.folder, "data"), "--listen",
                            endpoint, *options)
        self.await_ready(server, endpoint)
        return self.work(server, endpoint)

    def work(self, _server, endpoint):
        return self.spawn(None, *self.worker(), self.direction, endpoint, str(self.size))

    def ms(self):
        return self.size / self.round() / 1e6


class Several(Host):
    """Several workers, each a process, which push the same parameters and so make each step together."""

    def __init__(self, programs, workers, transport):
        super().__init__(programs, "with", transport)
        self.workers = workers

    def work(self, server, endpoint):
        self.server, self.before = server, self.held(server)
        self.ranks = [self.spawn(None, self.program("bench_checkpoint"), endpoint, str(ELEMENTS), "0",
                                 str(CHECKPOINT_NEVER), str(self.workers), str(rank)) for rank in range(self.workers)]
        return self.ranks[0]

    def ms(self):
        began = time.monotonic()
        for rank in self.ranks:
            rank.stdin.write(b"with\n")
        for rank in self.ranks:
            self.line(rank, START_S)
        return (time.monotonic() - began) * 1e3

    @staticmethod
    def held(server):
        """Bytes of the server's own pages and of the memory for which it has descriptors, mapped by it or not."""
        with open("/proc/%d/status" % server.pid, encoding="ascii") as status:
            fields = dict(re.findall(r"(Rss\w+):\s+(\d+) kB", status.read()))
        shared = {}
        folder = "/proc/%d/fd" % server.pid
        for fd in os.listdir(folder):
            path = os.path.join(folder, fd)
            if os.readlink(path).startswith("/memfd:"):
                found = os.stat(path)
                shared[found.st_ino] = 512 * found.st_blocks
        return 1024 * (int(fields["RssAnon"]) + int(fields["RssFile"])) + sum(shared.values())

    def bytes_each(self):
        return (self.held(self.server) - self.before) / ELEMENTS


class Copy(Side):
    """The speed of this machine's memory (bench_copy.c)."""

    def start(self):
        return self.spawn(None, self.program("bench_copy"), str(self.size))

    def ms(self):
        """Milliseconds in which a copy moves as many bytes as a step."""
        return BYTES_EACH * ELEMENTS / (2 * self.round()) / 1e6


def row(name, ours, peer, ratios, goal, shown="%.1f", least=False, reaches=False):
    """Prints a row. `least`: the goal is the least ratio, else the most. `reaches`: it is ok by its bound."""
    ratio = statistics.median(ratios)
    good = reaches or goal is None or (ratio >= goal if least else ratio <= goal)
    verdict = "info" if goal is None else "ok" if good else "short"
    print("\t".join((name, shown % statistics.median(ours), shown % statistics.median(peer), "%.3f" % ratio,
                     "-" if goal is None else "%.2f" % goal, verdict)), flush=True)
    print("# %s: %d pairs, ratio %.2f to %.2f" % (name, len(ratios), min(ratios), max(ratios)), file=sys.stderr)


def measure(*makers, take=lambda side: side.ms()):
    """The results of `take` for each side, as one list a side. The rest before a round lets another's apply end."""
    return list(zip(*in_turns(makers, PAIRS, WARM_UPS, take, APPLY_S)[0]))


def copy(programs):
    return Copy(programs, 1024 * MIB)


def step(programs, name):
    times, bounds = measure(lambda: Host(programs, "run", "shared"), lambda: copy(programs))
    print("# %s: copies of two threads move %.1f GB/s" % (
        name, BYTES_EACH * ELEMENTS / statistics.median(bounds) / 1e6), file=sys.stderr)
    row(name, times, bounds, [time / bound for time, bound in zip(times, bounds)], STEP_GOAL)


def step_tcp(programs, name):
    times, others, bounds = measure(lambda: Host(programs, "run", "shared"), lambda: Host(programs, "run", "tcp"),
                                    lambda: copy(programs))
    goal = bounded_goal(name, TCP_GOAL, [bound / other for bound, other in zip(bounds, others)], limits=True)
    reaches = reaches_bound(name, [time / bound for time, bound in zip(times, bounds)], limits=True)
    row(name, times, others, [time / other for time, other in zip(times, others)], goal, reaches=reaches)


def beside(mode, other, goal, scale=1.0):
    def run(programs, name):
        times, others = measure(lambda: Host(programs, mode, "shared"), lambda: Host(programs, mode, other))
        row(name, [time * scale for time in times], [time * scale for time in others],
            [time / peer for time, peer in zip(times, others)], goal)

    return run


def moved(mode, goal):
    def run(programs, name):
        rates = measure(lambda: Host(programs, mode, "shared"), lambda: Host(programs, mode, "tcp"),
                        take=lambda side: 2 * side.round())
        row(name, *rates, [rate / other for rate, other in zip(*rates)], goal, "%.2f", least=True)

    return run


def several(workers):
    def run(programs, name):
        times, others = measure(lambda: Several(programs, workers, "shared"), lambda: Several(programs, workers, "tcp"))
        row(name, times, others, [time / peer for time, peer in zip(times, others)], None)

    return run


def memory(workers):
    plain = 12 + 2 * 2 + 2 * workers + 2 * workers + (4 if workers >= 3 else 0)

    def run(programs, name):
        with Several(programs, workers, "shared") as side:
            side.ms()
            each = []
            for _ in range(MEMORY_STEPS):
                side.ms()
                each.append(side.bytes_each())
            before = side.before
        print("# %s: after each step: %s; %.1f MB before the model" % (
            name, " ".join("%.2f" % held for held in each), before / 1e6), file=sys.stderr)
        row(name, [max(each)], [plain], [max(each) / plain], MEMORY_LIMIT, "%.2f")

    return run


ROWS = (("host_step", step), ("host_step_tcp", step_tcp),
        ("host_push", beside("push", "tcp", None)), ("host_begin", beside("begin", "unix", None, 1e3)),
        ("host_bytes", moved("place", BYTES_GOAL)), ("host_bytes_copied", moved("move", None)),
        ("host_two", several(2)), ("host_four", several(4)), ("host_memory_2", memory(2)), ("host_memory_4", memory(4)))
