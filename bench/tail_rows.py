"""tail_rows.py: the slowest steps of a long job beside its median step.

    tail_step    milliseconds that one in a thousand of STEPS steps takes longer than: AdamW, 4 M parameters, fp16, one
                 worker that shares memory with its server, no checkpoint. Peer: the median of the same steps. The goal
                 is the most
    tail_pause   the same for a program that computes for as long as the median step takes and waits for nobody: what
                 the machine alone does to one in a thousand. No goal

The last row is the floor of the first: a step has two processes, which both must run.
"""
import statistics
import sys
import time

from sides import MIB, ROUND_S, Ampd

SIZE, STEPS, WARM_UPS = 8 * MIB, 10000, 100
WORST = 0.999
GOAL = 3.0

median_s = []  # of tail_step, for tail_pause


def tail(seconds):
    """(the time that all but 1 - WORST take at most, the median)"""
    return sorted(seconds)[int(WORST * len(seconds))], statistics.median(seconds)


class Step(Ampd):
    """A round is one step; its time."""

    def round(self):
        self.client.stdin.write(b"\n")
        return float(self.line(self.client, ROUND_S))


def step(programs, name):
    with Step(programs, SIZE, "step", unix=True) as side:
        for _ in range(WARM_UPS):
            side.round()
        seconds = [side.round() for _ in range(STEPS)]
    worst, median = tail(seconds)
    median_s[:] = [median]
    ratio = worst / median
    slowest = " ".join("%.1f" % (x * 1e3) for x in sorted(seconds)[-10:])
    print("# %s: the slowest ten, ms: %s" % (name, slowest), file=sys.stderr)
    print("%s\t%.2f\t%.2f\t%.2f\t%.2f\t%s" % (name, worst * 1e3, median * 1e3, ratio, GOAL,
                                             "ok" if ratio <= GOAL else "short"), flush=True)


def pause(programs, name):
    del programs
    wanted, seconds = median_s[0] if median_s else 0.003, []
    for _ in range(STEPS):
        began, turns = time.perf_counter(), 0
        while turns < 100 or time.perf_counter() - began < wanted:
            turns += 1
        seconds.append(time.perf_counter() - began)
    worst, median = tail(seconds)
    print("%s\t%.2f\t%.2f\t%.2f\t-\tinfo" % (name, worst * 1e3, median * 1e3, worst / median), flush=True)


ROWS = (("tail_step", step), ("tail_pause", pause))
