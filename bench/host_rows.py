"""host_rows.py: workers and their server on one host, by shared memory.

64 M parameters, AdamW, fp16, one worker (bench_pushpull.c); server and workers on all cores, as they are run. Both
sides of a row take turns (sides.py: they start twice). The first WARM_UPS rounds of each after a start (of a round of
`run`, six steps; else one step) touch memory for the first time, the slots, the copies and the page tables, and are not
counted; all others are.

    host_step      milliseconds of a whole step, beside the bound: the bytes that the worker's writing, the server's
                   taking away, the vote and the apply move, at the speed of a copy by two threads in the same run; the
                   goal is a limit
    host_step_tcp  milliseconds of a whole step, beside the same over TCP; the goal is a limit. Where TCP is so fast
                   that the bound of host_step is more than half of its time, the goal is that (sides.bounded_goal)
    host_push      milliseconds from the gradient to the verdict, beside the same over TCP
    host_begin     microseconds of step_begin when the version is there: the parameters are mapped; beside the same over
                   a unix socket without shared memory
    host_bytes     GB/s of what a step moves, both ways: the bytes of the gradient and of the parameters, by the time
                   of step_begin, of a version that is there, and of push and step_end to the verdict, SGD; beside the
                   same over TCP. On both sides backward has written the gradient where ampclient_gradient says, which
                   is not in the time. The ratio is that of GB/s, ours to the peer's; the goal is the least
    host_bytes_copied  the same where the gradient lies in memory of the worker's own and ampclient_push copies it
    host_two, _four    milliseconds of a whole step of two and of four workers, each a process (bench_checkpoint.c, 64
                   parameters), beside the same over TCP: from the common start to the last one's verdict
    host_memory_2, _4  bytes of memory a parameter that the server holds with two and with four workers, more than
                   before the model was there, the most of all steps after the first: its own pages and all pages of
                   memory that it shares, each once, mapped by it or not. Beside docs/cluster-cost.md: 12 of
                   masters and moments, 2 x 2 of cast copies, 2 W of staging, 2 W of the slots that the workers map,
                   and from three workers on 4 of the sum; the goal is a limit. No checkpoint is cut

Beside torch on the CPU in one process (offload: unscale, isfinite, clip, AdamW by its fused form where this torch has
it for CPUs, half) are kernels_torch_1t and _2t of pairs.py, which have the same arithmetic without a transport.
"""
import os
import re
import statistics
import sys
import time

from sides import MIB, START_S, Ampd, Side, bounded_goal, in_turns, reaches_bound

ELEMENTS = 64 << 20
# Of each parameter: read and written by the worker (2 + 2), read and written by the server (2 + 2), and what the vote
# and the apply of AdamW move with one worker (pairs.py, STEP_BYTES).
BYTES_EACH = 4 + 4 + 30
PAIRS, WARM_UPS = 12, 6
APPLY_S = 0.3  # longer than an apply of 64 M parameters
STEP_GOAL, TCP_GOAL, BYTES_GOAL = 1.25, 0.5, 5.0
# Steps, of which the memory is looked at after each; the most that it may be beside what the formula says.
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
    """So many workers, a process each, which push the same parameters and so make one step together."""

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
        """Bytes: its own pages, and those of the memory that it has descriptors of, whoever has mapped it."""
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
    """The memory of this machine."""

    def start(self):
        return self.spawn(None, self.program("bench_copy"), str(self.size))

    def ms(self):
        """Milliseconds that a copy takes for the bytes that a step moves."""
        return BYTES_EACH * ELEMENTS / (2 * self.round()) / 1e6


def row(name, ours, peer, ratios, goal, shown="%.1f", least=False, reaches=False):
    """`least`: the goal is the least that the ratio may be, else the most. `reaches`: it is enough beside its bound."""
    ratio = statistics.median(ratios)
    good = reaches or goal is None or (ratio >= goal if least else ratio <= goal)
    verdict = "info" if goal is None else "ok" if good else "short"
    print("\t".join((name, shown % statistics.median(ours), shown % statistics.median(peer), "%.3f" % ratio,
                     "-" if goal is None else "%.2f" % goal, verdict)), flush=True)
    print("# %s: %d pairs, ratio %.2f to %.2f" % (name, len(ratios), min(ratios), max(ratios)), file=sys.stderr)


def measure(*makers, take=lambda side: side.ms()):
    """What `take` gives of the sides that these make: a list of each. Their rests let the apply of another one end."""
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
