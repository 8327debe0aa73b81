"""python_rows.py: what the Python package (python_steps.py) costs beside the C client that it uses (bench_pushpull.c).

    python_step   milliseconds of a whole step of 64 MiB of fp16. Peer: the same in C. The goal is the most
    python_small  microseconds of a step of ten small tensors. Peer: the same in C. The column ratio has the difference
                  in microseconds, and the goal is the most that this may be
    python_cuda   milliseconds of a whole step of a torch module on a CUDA device, 64 M parameters, fp16, AdamW, in
                  pinned shared memory. Peer: the same over TCP. The goal is the most. It is run by sys.executable,
                  which needs a torch with CUDA, and is skipped if there is no device
"""
import os
import statistics
import sys
import time

import host_rows
from sides import MIB, START_S, Ampd, Failed, Skipped, in_turns

PAIRS, WARM_UPS = 20, 3
LARGE, SMALL = 64 * MIB, 10 * 2048
SMALL_GOAL_US = 200
APPLY_S = 0.2  # longer than the apply that the other side has left behind


class CStep(Ampd):
    """Milliseconds of a step by libampclient in C."""

    limits, unit = True, "step"

    def __init__(self, programs, size, mode):
        super().__init__(programs, size, mode)
        self.amount = 1

    def round(self):
        time.sleep(APPLY_S)
        return self.size / super().round() / 1e6


class PythonStep(CStep):
    """Milliseconds of a step by the Python package."""

    def worker(self):
        return python_with_package(self.programs, "/usr/bin/python3", "python_steps.py")


class CudaStep(host_rows.Host):
    """Milliseconds of a step on a CUDA device, over "shared" memory or "tcp"."""

    def __init__(self, programs, transport):
        super().__init__(programs, "run", transport)

    def worker(self):
        return python_with_package(self.programs, sys.executable, "python_cuda.py")

    def work(self, server, endpoint):
        process = super().work(server, endpoint)
        answer = self.line(process, START_S)
        if answer.startswith("SKIPPED: "):
            raise Skipped(answer[len("SKIPPED: "):].strip())
        return process


def python_with_package(programs, python, script):
    package = os.path.join(os.path.dirname(os.path.abspath(programs)), "python")
    if not os.path.exists(os.path.join(package, "ampd", "_bindings.py")):
        raise Failed("no package in %s; build it first" % package)
    path = os.pathsep.join([package, *filter(None, [os.environ.get("PYTHONPATH")])])
    return ("env", "PYTHONPATH=" + path, python, os.path.join(os.path.dirname(os.path.abspath(__file__)), script))


def cuda(programs, name):
    times, others = host_rows.measure(lambda: CudaStep(programs, "shared"), lambda: CudaStep(programs, "tcp"))
    host_rows.row(name, times, others, [time / other for time, other in zip(times, others)],
                  host_rows.TCP_GOAL)


def small(programs, name):
    rounds, _, _ = in_turns((lambda: PythonStep(programs, SMALL, "steps"), lambda: CStep(programs, SMALL, "steps")),
                            PAIRS, WARM_UPS, lambda side: side.round() * 1e3)
    differences = [python - c for python, c in rounds]
    difference = statistics.median(differences)
    medians = [statistics.median(values) for values in zip(*rounds)]
    print("\t".join((name, "%.0f" % medians[0], "%.0f" % medians[1], "%.0f" % difference, str(SMALL_GOAL_US),
                     "ok" if difference <= SMALL_GOAL_US else "short")), flush=True)
    print("# %s: %d pairs, difference %.0f to %.0f us" % (name, PAIRS, min(differences), max(differences)),
          file=sys.stderr)


PAIRS_ROWS = (("python_step", (PythonStep, LARGE, "run"), ((CStep, LARGE, "run"),), 1.02, False),)
ROWS = (("python_small", small), ("python_cuda", cuda))
