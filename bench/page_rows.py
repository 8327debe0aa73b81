"""page_rows.py: what viewers of the page cost a training. Ours: with ten viewers (page_viewers.py); peer: with none.

    page_step    milliseconds of a whole step of 64 MiB of fp16
    page_small   microseconds of a step of ten small tensors, with a thousand steps a second and so as many new rows for
                 the viewers as there can be
    page_cpu     microseconds of processor time of the server for such a small step, which other work on the machine
                 does not change

The goals are the most. A viewer reads the history and then receives the model's events, as the page does. Both sides
are the same server: two servers differ by more than the goal allows, because of where their memory is. The viewers
come and go; each pair is a turn with them and one without, in either order. A turn is TURN_S seconds of steps one after
another: viewers get events once a second, so that two of these times are well within a turn.
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
    """A training, and the program of its viewers, at first with none."""

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
        """Seconds of processor time of all threads of the server."""
        folder = "/proc/%d/task" % self.server.pid
        total = 0
        for thread in os.listdir(folder):
            with open(os.path.join(folder, thread, "schedstat"), encoding="ascii") as file:
                total += int(file.read().split()[0])
        return total / 1e9

    def turn(self, count):
        """A turn with `count` viewers: seconds of a step, and seconds of the server's processor time for a round."""
        self.viewers(count)
        steps, before, until = [], self.server_s(), time.monotonic() + TURN_S
        while time.monotonic() < until:
            steps.append(self.size / self.round() / 1e9)
        return statistics.mean(steps), (self.server_s() - before) / len(steps)


measured = {}


def pairs(programs, size, mode):
    """The results of the turns of each pair: with viewers, without."""
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
    """The function that prints a row from result `which` (0 or 1) of the turns."""
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
