"""host_rows.py: a worker and its server on one host, by shared memory.

64 M parameters, AdamW, fp16, one worker (bench_pushpull.c); server and worker on all cores, as they are run. The first
steps, which touch the memory for the first time, are not counted.

    host_step      milliseconds of a whole step, beside the bound: the bytes that the worker's writing, the server's
                   taking away, the vote and the apply move, at the speed of a copy by two threads in the same run; the
                   goal is a limit
    host_step_tcp  milliseconds of a whole step, beside the same over TCP; the goal is a limit
    host_push      milliseconds from the gradient to the verdict, beside the same over TCP
    host_begin     microseconds of step_begin when the version is there: the parameters are mapped; beside the same over
                   a unix socket without shared memory
"""
import os
import statistics
import sys
import time

from sides import MIB, Ampd, Side

ELEMENTS = 64 << 20
# Of each parameter: read and written by the worker (2 + 2), read and written by the server (2 + 2), and what the vote
# and the apply of AdamW move with one worker (pairs.py, STEP_BYTES).
BYTES_EACH = 4 + 4 + 30
PAIRS, WARM_UPS = 12, 6
APPLY_S = 0.3  # longer than an apply of 64 M parameters
STEP_GOAL, TCP_GOAL = 1.25, 0.5


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
        return self.spawn(None, *self.worker(), self.direction, endpoint, str(self.size))

    def ms(self):
        return self.size / self.round() / 1e6


class Copy(Side):
    """The memory of this machine."""

    def start(self):
        return self.spawn(None, self.program("bench_copy"), str(self.size))

    def traffic(self):
        """GB/s, each byte read and written."""
        return 2 * self.round()


def row(name, ours, peer, ratios, goal, shown="%.1f"):
    ratio = statistics.median(ratios)
    verdict = "info" if goal is None else "ok" if ratio <= goal else "short"
    print("\t".join((name, shown % statistics.median(ours), shown % statistics.median(peer), "%.2f" % ratio,
                     "-" if goal is None else "%.2f" % goal, verdict)), flush=True)
    print("# %s: %d pairs, ratio %.2f to %.2f" % (name, len(ratios), min(ratios), max(ratios)), file=sys.stderr)


def rested(function):
    """Its value when the apply that the side before has left behind is over."""
    time.sleep(APPLY_S)
    return function()


def measure(first, second):
    """Values of two functions in turns."""
    for _ in range(WARM_UPS):
        first(), second()
    return list(zip(*((rested(first), rested(second)) for _ in range(PAIRS))))


def step(programs, name):
    with Host(programs, "run", "shared") as ours, Copy(programs, 1024 * MIB) as copy:
        times, speeds = measure(ours.ms, copy.traffic)
    bounds = [BYTES_EACH * ELEMENTS / speed / 1e6 for speed in speeds]
    print("# %s: copies of two threads move %.1f GB/s" % (name, statistics.median(speeds)), file=sys.stderr)
    row(name, times, bounds, [time / bound for time, bound in zip(times, bounds)], STEP_GOAL)


def beside(mode, other, goal, scale=1.0):
    def run(programs, name):
        with Host(programs, mode, "shared") as ours, Host(programs, mode, other) as peer:
            times, others = measure(ours.ms, peer.ms)
        row(name, [time * scale for time in times], [time * scale for time in others],
            [time / peer for time, peer in zip(times, others)], goal)

    return run


ROWS = (("host_step", step), ("host_step_tcp", beside("run", "tcp", TCP_GOAL)),
        ("host_push", beside("push", "tcp", None)), ("host_begin", beside("begin", "unix", None, 1e3)))
