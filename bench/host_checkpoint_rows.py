"""host_checkpoint_rows.py: steps without compute while a checkpoint is written, with a worker and its server on one
host.

64 M parameters, AdamW, fp16, one worker over shared memory (bench_checkpoint.c), a checkpoint every 80 steps; server
and worker on all cores, as they are used. Ours are the steps while a checkpoint is written, the peer those after it
until the next one, OTHERS_MIN at least; ratio is the median over the checkpoints, and the goal is the most.

    host_checkpoint         milliseconds of a step, the median of both
    host_checkpoint_mean    the same with the mean of ours: one of these steps waits until the writer is nearly
                            finished, which a median does not show
    host_checkpoint_memory  the same mean with --checkpoint-memory 100, with which the server has memory to save every
                            block before the step overwrites it

The two means have a bound. A step overwrites every block, and cannot end before the blocks that cannot be saved are on
the disk. The bound of that step is the time in which a plain writer writes them (dd past the page cache, into allocated
space, without a sync; the fastest of four runs between checkpoints); the bound of all other steps is a step without a
checkpoint.

Steps count as "while a checkpoint is written" if they begin after the answer to the checkpoint's step and before the
server's log says "written". The first steps after the load do not count, until the first checkpoint after it is written
and EVERY further steps have passed: they touch memory for the first time.
"""
import datetime
import os
import re
import statistics
import subprocess
import sys
import time

from checkpoint_rows import Checkpoints, ELEMENTS
from sides import Failed, bounded_goal, reaches_bound

EVERY, CHECKPOINTS, NOT_COUNTED = 80, 7, 1
OTHERS_MIN = 20  # of the steps until the next checkpoint
GOAL = 1.4
SAVED = 0.08  # of the blocks, unless --checkpoint-memory says another share
BYTES = ELEMENTS * 12  # a master and two moments each
PIECES = (2 << 20, 8 << 20) * 2  # of the bare writer, in turns

measured = {}


class OneModel(Checkpoints):
    """A worker that has only the model with checkpoints: bench_checkpoint does so if a number of workers is given."""

    options, saved = (), SAVED

    def start(self):
        endpoint = self.endpoint()
        ampd = self.spawn(None, self.program("ampd"), "--listen", endpoint, "--data-dir", self.folder + "/data",
                          *self.options)
        self.await_ready(ampd, endpoint)
        return self.spawn(None, self.program("bench_checkpoint"), endpoint, str(ELEMENTS), "0", str(EVERY), "1", "0")

    def written(self):
        """The time of each checkpoint, by its step."""
        found = re.findall(r'ts=(\S+) \S+ component=checkpoint msg="written" model=with step=(\d+)', self.log())
        return {int(step): datetime.datetime.fromisoformat(ts.replace("Z", "+00:00")).timestamp() for ts, step in found}


class WithMemory(OneModel):
    options, saved = ("--checkpoint-memory", "100"), 1.0


def bare_write(folder, piece):
    """Seconds in which the plain writer writes the bytes of a checkpoint."""
    path = os.path.join(folder, "bare")
    with open(path, "wb") as file:
        os.posix_fallocate(file.fileno(), 0, BYTES)
    command = ["dd", "if=/dev/zero", "of=" + path, "bs=%d" % piece, "count=%d" % (BYTES // piece), "oflag=direct",
               "conv=notrunc"]
    begin = time.monotonic()
    subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    taken = time.monotonic() - begin
    os.unlink(path)
    return taken


def run(programs, model):
    with model(programs) as side:
        steps, bare = [], {}
        for cut in range(0, EVERY * (CHECKPOINTS + 1), EVERY):
            steps += [(time.time(), side.step("with")) for _ in range(EVERY - 1)]
            bare[cut] = min(bare_write(side.folder, piece) for piece in PIECES)
            steps.append((time.time(), side.step("with")))
        written = side.written()
    rounds = []
    for cut in range(EVERY * (1 + NOT_COUNTED), EVERY * (CHECKPOINTS + 1), EVERY):
        if cut not in written:
            raise Failed("checkpoint %d was not written in time" % cut)
        later = steps[cut:cut + EVERY]
        during = [seconds for begin, seconds in later if begin < written[cut]]
        others = [seconds for begin, seconds in later if begin >= written[cut]]
        if len(others) < OTHERS_MIN:
            raise Failed("only %d steps were made between checkpoint %d and the next" % (len(others), cut))
        rest = statistics.median(others)
        waits = max(rest, (1 - model.saved) * bare[cut])
        bound = (waits + (len(during) - 1) * rest) / len(during)
        rounds.append((written[cut] - later[0][0], during, rest, bound))
    measured[model] = rounds
    print("# checkpoints, seconds each: %s; steps meanwhile, ms: %s; median of the others, ms: %s" % (
        " ".join("%.2f" % took for took, *_ in rounds),
        "; ".join(" ".join("%.0f" % (s * 1000) for s in during) for _, during, *_ in rounds),
        " ".join("%.0f" % (rest * 1000) for _, _, rest, _ in rounds)), file=sys.stderr)


def row(average, model):
    def print_row(programs, name):
        if model not in measured:
            run(programs, model)
        pairs = [(average(during), rest) for _, during, rest, _ in measured[model]]
        goal, reaches = GOAL, False
        if average is statistics.mean:
            goal = bounded_goal(name, GOAL, [bound / rest for *_, rest, bound in measured[model]], limits=True)
            of_bound = [average(during) / bound for _, during, _, bound in measured[model]]
            reaches = reaches_bound(name, of_bound, limits=True)
        ratio = statistics.median(during / rest for during, rest in pairs)
        ours, peer = (statistics.median(values) * 1000 for values in zip(*pairs))
        print("\t".join((name, "%.1f" % ours, "%.1f" % peer, "%.2f" % ratio, "%.2f" % goal,
                         "ok" if reaches or ratio <= goal else "short")), flush=True)

    return print_row


ROWS = (("host_checkpoint", row(statistics.median, OneModel)),
        ("host_checkpoint_mean", row(statistics.mean, OneModel)),
        ("host_checkpoint_memory", row(statistics.mean, WithMemory)))
