"""charlm_rows.py: the language model of examples/charlm: a training step on one thread, and what a server adds to it.

    charlm_torch    steps a second in fp32. Peer: PyTorch, eager (torch_charlm.py), with the same values and batches
    charlm_bf16     steps a second in bf16. Peer: ours in fp32. Skipped if the processor cannot multiply bf16
    charlm_f16      the same in f16, which this processor and its libraries may have to widen; no goal
    charlm_share    milliseconds of the client's calls in a step (begin and pull, push, end and wait), and of the whole
                    step, for one of two workers in bf16 and their server, all on this machine. No goal, since with
                    fewer cores than processes they wait for each other
"""
import os
import re
import subprocess
import sys
import tempfile

from sides import Failed, START_S, Side, Skipped

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SHARE_STEPS = 300
TIMES = re.compile(r"a step took ([0-9.]+) ms; of it ([0-9.]+) to begin and pull, ([0-9.]+) to push, "
                   r"([0-9.]+) to end and wait")


class Step(Side):
    """Our steps a second (bench_charlm.c)."""

    unit = "step"

    def __init__(self, programs, precision):
        super().__init__(programs, 1)
        self.precision, self.amount = precision, 1

    def name(self):
        return self.precision

    def command(self):
        return [self.program("bench_charlm"), os.path.join(ROOT, "examples", "charlm", "opticks.txt"), self.precision]

    def start(self):
        if self.precision == "bf16" and not multiplies_bf16():
            raise Skipped("this processor does not multiply bf16 (avx512_bf16, amx_bf16)")
        process = self.spawn(0, *self.command())
        answer = self.line(process, START_S)
        if answer.startswith("SKIPPED: "):
            raise Skipped(answer[len("SKIPPED: "):].strip())
        return process

    def round(self):
        return super().round() * 1e9


class Torch(Step):
    """PyTorch's steps a second."""

    def command(self):
        return ["/usr/bin/python3", os.path.join(ROOT, "bench", "torch_charlm.py"), "serve", self.program("charlm")]


def multiplies_bf16():
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as cpu:
        return re.search(r"^flags\s*:.* (avx512_bf16|amx_bf16)\b", cpu.read(), re.MULTILINE) is not None


def share(programs, name):
    with tempfile.TemporaryDirectory(prefix="ampd-bench.") as folder:
        command = [os.path.join(ROOT, "examples", "charlm", "run.sh"), "--bin", programs, "--dir", folder,
                   "--precision", "bf16", "--steps", str(SHARE_STEPS), "--write", "0", "--quiet"]
        done = subprocess.run(command, stdout=subprocess.PIPE, timeout=START_S, check=False, encoding="utf-8")
    match = TIMES.search(done.stdout)
    if done.returncode != 0 or match is None:
        raise Failed("%s ended with %d" % (" ".join(command), done.returncode))
    step, begin, push, end = map(float, match.groups())
    print("\t".join((name, "%.1f" % (begin + push + end), "%.1f" % step, "%.3f" % ((begin + push + end) / step), "-",
                     "info")), flush=True)
    print("# %s: ms of a step: begin and pull %.1f, push %.1f, end and wait %.1f" % (name, begin, push, end),
          file=sys.stderr)


PAIRS = (
    ("charlm_torch", (Step, "f32"), ((Torch, "f32"),), 1.0, False),
    ("charlm_bf16", (Step, "bf16"), ((Step, "f32"),), 1.3, False),
    ("charlm_f16", (Step, "f16"), ((Step, "f32"),), None, False),
)
ROWS = (("charlm_share", share),)
