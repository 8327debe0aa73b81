"""memory_row.py: the memory of a server during a training, as the kernel counts it.

    storage_memory    bytes a parameter of the server's process, without what it had before the model was created, the
                      most of all steps: 64 M parameters, AdamW, fp16, two workers, two checkpoints in the background.
                      Peer: the formula 12 + 2 x 2 + 4 W, for masters and moments, two cast copies, and a gradient in
                      fp16 of each worker twice: in its slot of shared memory, which the server has mapped, and taken
                      out of it. The goal is the most
"""
import re
import sys

from sides import Failed, START_S
from checkpoint_rows import Checkpoints, ELEMENTS

WORKERS = 2
STEPS = 8
EVERY = 3
PLAIN = 12 + 2 * 2 + 4 * WORKERS
LIMIT = 1.10


class Memory(Checkpoints):
    """A server on all cores, and one worker for each rank."""

    def start(self):
        self.at = self.endpoint()
        self.ampd = self.spawn(None, self.program("ampd"), "--listen", self.at, "--data-dir", self.folder + "/data")
        self.await_ready(self.ampd, self.at)
        self.before = self.resident()
        self.workers = [self.spawn(None, self.program("bench_checkpoint"), self.at, str(ELEMENTS), "0", str(EVERY),
                                   str(WORKERS), str(rank)) for rank in range(WORKERS)]
        return self.workers[0]

    def resident(self):
        with open("/proc/%d/status" % self.ampd.pid, encoding="ascii") as status:
            return int(re.search(r"VmHWM:\s+(\d+) kB", status.read()).group(1)) * 1024

    def step_all(self):
        for worker in self.workers:
            worker.stdin.write(b"with\n")
        for worker in self.workers:
            self.line(worker, START_S)


def run(programs, name):
    with Memory(programs) as side:
        for _ in range(STEPS):
            side.step_all()
        each = (side.resident() - side.before) / ELEMENTS
        written = len(re.findall(r'component=checkpoint msg="written" model=with step=[1-9]', side.log()))
    if written == 0:
        raise Failed("no checkpoint was written")
    print("# %d steps, %d checkpoints; %.1f MB before the model" % (STEPS, written, side.before / 1e6), file=sys.stderr)
    print("\t".join((name, "%.2f" % each, "%.2f" % PLAIN, "%.3f" % (each / PLAIN), "%.2f" % LIMIT,
                     "ok" if each / PLAIN <= LIMIT else "short")), flush=True)


ROWS = (("storage_memory", run),)
