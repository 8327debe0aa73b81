"""checkpoint_rows.py: what checkpoints in the background cost a training. One run of about a minute and a half.

64 M parameters, AdamW, fp16, one worker that computes for a second in each step (bench_checkpoint.c). Two models on one
server take turns in windows of ten steps: "with" has a checkpoint in the middle of each of its windows, "without" has
none.

    storage_checkpoint_share    milliseconds of a step, the mean of the windows. Ours: with checkpoints; peer: without;
                                ratio: what a checkpoint every ten steps adds, as a share of a step
    storage_stall_share         milliseconds for which an apply waited for the checkpoint's writer, by the server's log,
                                the longest of all checkpoints. Peer: a step without; ratio: the share of it
"""
import re
import statistics
import sys

from sides import Ampd, Failed, START_S

ELEMENTS = 64 << 20
COMPUTE_MS = 1000
EVERY = 10
# Windows of each model. The first steps of both are not counted: they touch memory for the first time (the server's,
# and with the first checkpoint the page cache's), and they shift the checkpoints into the middle of the windows.
WINDOWS = 2
FIRST = 15
COST_MAX, STALL_MAX = 0.035, 0.05

measured = {}


class Checkpoints(Ampd):
    """A server on all cores, as it is used, and its worker."""

    def __init__(self, programs):
        super().__init__(programs, ELEMENTS, "with", unix=True)

    def start(self):
        endpoint = self.endpoint()
        ampd = self.spawn(None, self.program("ampd"), "--listen", endpoint, "--data-dir", self.folder + "/data")
        self.await_ready(ampd, endpoint)
        return self.spawn(None, self.program("bench_checkpoint"), endpoint, str(ELEMENTS), str(COMPUTE_MS), str(EVERY))

    def step(self, which):
        self.client.stdin.write(which.encode() + b"\n")
        return float(self.line(self.client, START_S))

    def log(self):
        with open(self.folder + "/log", encoding="utf-8", errors="replace") as log:
            return log.read()


def run(programs):
    with Checkpoints(programs) as side:
        warm = [side.step("with") for _ in range(FIRST)]
        side.step("without")
        side.step("without")
        times = {"with": [], "without": []}
        for _ in range(WINDOWS):
            for which in times:
                times[which] += [side.step(which) for _ in range(EVERY)]
        log = side.log()
    written = len(re.findall(r'component=checkpoint msg="written" model=with step=[1-9]', log))
    stalls = [int(ms) for ms in re.findall(r"apply waited (\d+) ms for checkpoint", log)]
    if written < WINDOWS + 1:
        raise Failed("%d checkpoints were written, %d are expected" % (written, WINDOWS + 1))
    measured["with"], measured["without"] = statistics.mean(times["with"]), statistics.mean(times["without"])
    measured["stall"] = max(stalls, default=0) / 1000
    print("# %d checkpoints; first steps, ms: %s; steps with: %s; without: %s; apply waited, ms: %s" % (
        written, *(" ".join("%.0f" % (s * 1000) for s in some) for some in (warm, *times.values())),
        stalls or "never"), file=sys.stderr)


def row(name, ours, peer, ratio, goal):
    print("\t".join((name, "%.1f" % (ours * 1000), "%.1f" % (peer * 1000), "%.4f" % ratio, "%.3f" % goal,
                     "ok" if ratio <= goal else "short")), flush=True)


def cost(programs, name):
    if not measured:
        run(programs)
    row(name, measured["with"], measured["without"], measured["with"] / measured["without"] - 1, COST_MAX)


def stall(programs, name):
    if not measured:
        run(programs)
    row(name, measured["stall"], measured["without"], measured["stall"] / measured["without"], STALL_MAX)


ROWS = (("storage_checkpoint_share", cost), ("storage_stall_share", stall))
