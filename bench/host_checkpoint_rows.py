"""host_checkpoint_rows.py: steps without compute while a checkpoint is written, a worker and its server on one host.

64 M parameters, AdamW, fp16, one worker over shared memory (bench_checkpoint.c), a checkpoint every 40 steps; server
and worker on all cores, as they are run.

    host_checkpoint         milliseconds of a step, median: while a checkpoint is written, beside the steps that follow
                            until the next one; the median of the checkpoints' ratios, the goal is a limit
    host_checkpoint_mean    the same with the mean of the former: one of them waits until the writer is nearly through,
                            which a median does not show
    host_checkpoint_memory  the same mean with --checkpoint-memory 100, where every block can be saved

Counted as "while" are the steps that begin after the answer to the step that is the checkpoint, and before the server's
log says "written". Not counted are the first steps after the load, until the first checkpoint behind it is written and
EVERY steps have passed: they touch memory for the first time.
"""
import datetime
import re
import statistics
import sys
import time

from checkpoint_rows import Checkpoints, ELEMENTS
from sides import Failed

EVERY, CHECKPOINTS, NOT_COUNTED = 40, 7, 1
GOAL = 1.4

measured = {}


class OneModel(Checkpoints):
    """Given a number of workers, here one, bench_checkpoint has the model with checkpoints alone."""

    options = ()

    def start(self):
        endpoint = self.endpoint()
        ampd = self.spawn(None, self.program("ampd"), "--listen", endpoint, "--data-dir", self.folder + "/data",
                          *self.options)
        self.await_ready(ampd, endpoint)
        return self.spawn(None, self.program("bench_checkpoint"), endpoint, str(ELEMENTS), "0", str(EVERY), "1", "0")

    def written(self):
        """When each checkpoint was, by its step."""
        found = re.findall(r'ts=(\S+) \S+ component=checkpoint msg="written" model=with step=(\d+)', self.log())
        return {int(step): datetime.datetime.fromisoformat(ts.replace("Z", "+00:00")).timestamp() for ts, step in found}


class WithMemory(OneModel):
    options = ("--checkpoint-memory", "100")


def run(programs, model):
    with model(programs) as side:
        steps = [(time.time(), side.step("with")) for _ in range(EVERY * (CHECKPOINTS + 1))]
        written = side.written()
    rounds = []
    for cut in range(EVERY * (1 + NOT_COUNTED), EVERY * (CHECKPOINTS + 1), EVERY):
        if cut not in written:
            raise Failed("checkpoint %d was not written in time" % cut)
        later = steps[cut:cut + EVERY]
        during = [seconds for begin, seconds in later if begin < written[cut]]
        rest = statistics.median(seconds for begin, seconds in later if begin >= written[cut])
        rounds.append((written[cut] - later[0][0], during, rest))
    measured[model] = rounds
    print("# checkpoints, seconds each: %s; steps meanwhile, ms: %s; median of the others, ms: %s" % (
        " ".join("%.2f" % took for took, _, _ in rounds),
        "; ".join(" ".join("%.0f" % (s * 1000) for s in during) for _, during, _ in rounds),
        " ".join("%.0f" % (rest * 1000) for _, _, rest in rounds)), file=sys.stderr)


def row(average, model):
    def print_row(programs, name):
        if model not in measured:
            run(programs, model)
        pairs = [(average(during), rest) for _, during, rest in measured[model]]
        ratio = statistics.median(during / rest for during, rest in pairs)
        ours, peer = (statistics.median(values) * 1000 for values in zip(*pairs))
        print("\t".join((name, "%.1f" % ours, "%.1f" % peer, "%.2f" % ratio, "%.2f" % GOAL,
                         "ok" if ratio <= GOAL else "short")), flush=True)

    return print_row


ROWS = (("host_checkpoint", row(statistics.median, OneModel)),
        ("host_checkpoint_mean", row(statistics.mean, OneModel)),
        ("host_checkpoint_memory", row(statistics.mean, WithMemory)))
