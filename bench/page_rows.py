"""page_rows.py: what it costs a training that people look at its page: ten viewers (page_viewers.py) beside none.

    page_step    milliseconds of a whole step of 64 MiB of fp16; the goal is a limit
    page_small   microseconds of a step of ten small tensors, a thousand a second: as many rows to tell of as can be
    page_cpu     microseconds of the server's processors for one of those; other work of the machine does not change it

A viewer reads the history and then hears the model's events, as the page does. It is one server: two differ by more
than is asked here, by where their memory lies. The viewers come and go, and each pair is a turn with them and one
without, in either order. A turn is TURN_S of one step after another: viewers hear something each second after the first
of them came, so that two ticks lie well within it.
"""
import os
import re
import statistics
import sys
import time

from sides import MIB, START_S, Ampd, interval

LARGE, SMALL = 64 * MIB, 10 * 2048
VIEWERS = 10
TURN_S, SETTLE_S = 2.0, 0.5  # the latter for what the coming and going itself takes
PAIRS = 40
WARM_UPS = 3
SMALL_STEPS = 200  # STEPS of bench_pushpull.c
GOAL = 1.02


class Training(Ampd):
    """A training, and a program for its viewers, who are none at first."""

    def start(self):
        endpoint = self.endpoint()
        self.server = self.spawn(0, self.program("ampd"), "--data-dir", os.path.join(self.folder, "data"), "--listen",
                                 endpoint, "--metrics-listen", "127.0.0.1:0")
        self.await_ready(self.server, endpoint)
        worker = self.spawn(1, *self.worker(), self.direction, endpoint, str(self.size))
        with open(os.path.join(self.folder, "log"), encoding="utf-8", errors="replace") as log:
            port = re.search(r'metrics and health" address=127\.0\.0\.1:(\d+)', log.read())[1]
        script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "page_viewers.py")
        self.page = self.spawn(1, "/usr/bin/python3", script, port)
        return worker

    def viewers(self, count):
        try:
            self.page.stdin.write(b"%d\n" % count)
        except BrokenPipeError:
            self.fail("page_viewers.py has ended")
        self.line(self.page, START_S)
        time.sleep(SETTLE_S)

    def server_s(self):
        """The processor time of all of the server's threads."""
        folder = "/proc/%d/task" % self.server.pid
        total = 0
        for thread in os.listdir(folder):
            with open(os.path.join(folder, thread, "schedstat"), encoding="ascii") as file:
                total += int(file.read().split()[0])
        return total / 1e9

    def turn(self, count):
        """Seconds of a step, and of the server's processors for a round, with so many viewers."""
        self.viewers(count)
        steps, before, until = [], self.server_s(), time.monotonic() + TURN_S
        while time.monotonic() < until:
            steps.append(self.size / self.round() / 1e9)
        return statistics.mean(steps), (self.server_s() - before) / len(steps)


measured = {}


def pairs(programs, size, mode):
    """What the turns of each pair gave: with viewers, without."""
    if size not in measured:
        with Training(programs, size, mode) as side:
            for _ in range(WARM_UPS):
                side.round()
            turned = []
            for pair in range(PAIRS):
                turns = {count: side.turn(count) for count in ((0, VIEWERS), (VIEWERS, 0))[pair % 2]}
                turned.append((turns[VIEWERS], turns[0]))
            measured[size] = turned
    return measured[size]


def row(size, mode, which, per_s):
    """`which` of what a turn gives."""
    def print_row(programs, name):
        values = [(viewed[which], alone[which]) for viewed, alone in pairs(programs, size, mode)]
        ours, peer = (statistics.median(side) * per_s for side in zip(*values))
        ratios = [viewed / alone for viewed, alone in values]
        ratio = statistics.median(ratios)
        print("%s\t%.1f\t%.1f\t%.3f\t%.2f\t%s" % (name, ours, peer, ratio, GOAL, "ok" if ratio <= GOAL else "short"),
              flush=True)
        print("# %s: %d pairs, ratio %.3f to %.3f, 95 %% of its median %.3f to %.3f" % (
            (name, PAIRS, min(ratios), max(ratios)) + interval(ratios)), file=sys.stderr)

    return print_row


ROWS = (("page_step", row(LARGE, "run", 0, 1e3)),
        ("page_small", row(SMALL, "steps", 0, 1e6)),
        ("page_cpu", row(SMALL, "steps", 1, 1e6 / SMALL_STEPS)))
