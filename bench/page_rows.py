"""page_rows.py: what it costs a training that people look at its page: ten viewers (page_viewers.py) beside none.

    page_step    milliseconds of a whole step of 64 MiB of fp16; the goal is a limit
    page_small   microseconds of a step of ten small tensors, a thousand a second: as many rows to tell of as can be

A viewer reads the history and then hears the model's events, as the page does. Both servers are alive all the time, and
their workers take turns.
"""
import os
import re
import time

from sides import MIB, START_S, Ampd

LARGE, SMALL = 64 * MIB, 10 * 2048
VIEWERS = 10
GOAL = 1.02
APPLY_S = 0.2  # longer than the apply that the other side has left behind


class Alone(Ampd):
    """A training at which nobody looks. What a round gives: milliseconds of a step, or microseconds of a small one."""

    limits, unit = True, "step"
    viewers = 0

    def __init__(self, programs, size, mode):
        super().__init__(programs, size, mode)
        self.amount = 1
        self.per_s = 1e3 if size == LARGE else 1e6

    def start(self):
        endpoint = self.endpoint()
        server = self.spawn(0, self.program("ampd"), "--data-dir", os.path.join(self.folder, "data"), "--listen",
                            endpoint, "--metrics-listen", "127.0.0.1:0")
        self.await_ready(server, endpoint)
        worker = self.spawn(1, *self.worker(), self.direction, endpoint, str(self.size))
        with open(os.path.join(self.folder, "log"), encoding="utf-8", errors="replace") as log:
            port = re.search(r'metrics and health" address=127\.0\.0\.1:(\d+)', log.read())[1]
        if self.viewers > 0:
            script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "page_viewers.py")
            self.line(self.spawn(1, "/usr/bin/python3", script, port, str(self.viewers)), START_S)
        return worker

    def round(self):
        time.sleep(APPLY_S)
        return self.size / super().round() / 1e9 * self.per_s


class Viewed(Alone):
    viewers = VIEWERS


PAIRS_ROWS = (("page_step", (Viewed, LARGE, "run"), ((Alone, LARGE, "run"),), GOAL, True),
              ("page_small", (Viewed, SMALL, "steps"), ((Alone, SMALL, "steps"),), GOAL, True))
