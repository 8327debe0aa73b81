"""python_rows.py: what the Python package costs beside the C client it is made of (bench_pushpull.c, python_steps.py).

    python_step   milliseconds of a whole step of 64 MiB of fp16 by Python, beside the same in C; the goal is a limit
    python_small  microseconds of a step of ten small tensors by Python, beside the same in C; the ratio column has the
                  difference in microseconds, and the goal is a limit of that
"""
import os
import statistics
import sys
import time

from sides import MIB, Ampd, Failed

PAIRS, WARM_UPS = 20, 3
LARGE, SMALL = 64 * MIB, 10 * 2048
SMALL_GOAL_US = 200
APPLY_S = 0.2  # longer than the apply that the other side has left behind


class CStep(Ampd):
    """Milliseconds of a step by libampclient."""

    limits, unit = True, "step"

    def __init__(self, programs, size, mode):
        super().__init__(programs, size, mode)
        self.amount = 1

    def round(self):
        time.sleep(APPLY_S)
        return self.size / super().round() / 1e6


class PythonStep(CStep):
    """The same by the package."""

    def worker(self):
        package = os.path.join(os.path.dirname(os.path.abspath(self.programs)), "python")
        if not os.path.exists(os.path.join(package, "ampd", "_bindings.py")):
            raise Failed("no package in %s; build it first" % package)
        return ("env", "PYTHONPATH=" + package, "/usr/bin/python3",
                os.path.join(os.path.dirname(os.path.abspath(__file__)), "python_steps.py"))


def small(programs, name):
    with PythonStep(programs, SMALL, "steps") as ours, CStep(programs, SMALL, "steps") as peer:
        for _ in range(WARM_UPS):
            ours.round(), peer.round()
        rounds = [(ours.round() * 1e3, peer.round() * 1e3) for _ in range(PAIRS)]
    differences = [python - c for python, c in rounds]
    difference = statistics.median(differences)
    medians = [statistics.median(values) for values in zip(*rounds)]
    print("\t".join((name, "%.0f" % medians[0], "%.0f" % medians[1], "%.0f" % difference, str(SMALL_GOAL_US),
                     "ok" if difference <= SMALL_GOAL_US else "short")), flush=True)
    print("# %s: %d pairs, difference %.0f to %.0f us" % (name, PAIRS, min(differences), max(differences)),
          file=sys.stderr)


PAIRS_ROWS = (("python_step", (PythonStep, LARGE, "run"), ((CStep, LARGE, "run"),), 1.02, False),)
ROWS = (("python_small", small),)
