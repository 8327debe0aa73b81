#!/usr/bin/python3
"""torch_charlm.py: the model of examples/charlm in PyTorch, from the same first values, on the same batches.

    torch_charlm.py curves CHARLM [STEPS]   trains with the program CHARLM in f32, bf16 and f16, and with torch in
                                            fp32, which leaves out the steps that CHARLM has skipped; compares the mean
                                            loss of the last tenth of the steps (1,000). Exits with 1 if one is too far
                                            off
    torch_charlm.py serve CHARLM            for each line on stdin one training step in fp32 on one thread, and its
                                            seconds, for bench/run.sh

CHARLM writes the first values into a file, with its --initial. AdamW is the fastest form that this torch has for CPUs.
Exits with 77 if there is no torch.
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import time

try:
    import numpy
    import torch
    from torch.nn import functional
except ImportError as error:
    print("SKIPPED: %s (section [torch] of deploy/packages.txt)" % error)
    sys.exit(77)

TEXT = pathlib.Path(__file__).resolve().parent.parent / "examples" / "charlm" / "opticks.txt"
# The sizes that CHARLM has without options (examples/charlm/main.c, charlm.h).
LAYERS, HEADS, CONTEXT, SEQUENCES = 4, 4, 128, 8
LR, WEIGHT_DECAY, CLIP_NORM = 1e-3, 0.01, 1.0
# precision, CHARLM's options, seeds, and how far the mean losses may be apart, as the mean over the seeds. By the
# rounding of bf16 a run takes a course of its own, sometimes a little above and sometimes a little below torch's: so
# there are three seeds. f16 begins with a scale that overflows.
CURVES = (("f32", (), (1,), 0.01), ("f16", ("--scale", "16777216"), (1,), 0.02), ("bf16", (), (1, 2, 3), 0.02))
TRIALS = 5
MASK64 = (1 << 64) - 1


def mix(x):
    """splitmix64, as in examples/charlm/text.c."""
    x = (x + 0x9e3779b97f4a7c15) & MASK64
    x = ((x ^ (x >> 30)) * 0xbf58476d1ce4e5b9) & MASK64
    x = ((x ^ (x >> 27)) * 0x94d049bb133111eb) & MASK64
    return x ^ (x >> 31)


class Text:
    def __init__(self):
        self.characters = torch.from_numpy(numpy.fromfile(TEXT, dtype=numpy.uint8).astype(numpy.int64))
        self.train_count = len(self.characters) // 10 * 9

    def batch(self, seed, step):
        """Inputs and targets of a step; steps count from 0."""
        places = [mix((mix(seed) + step * SEQUENCES + i) & MASK64) % (self.train_count - CONTEXT)
                  for i in range(SEQUENCES)]
        return (torch.stack([self.characters[p:p + CONTEXT] for p in places]),
                torch.stack([self.characters[p + 1:p + 1 + CONTEXT] for p in places]))


def read_initial(path):
    """The parameters by name."""
    head, _, values = path.read_bytes().partition(b"\n\n")
    values, parameters, at = numpy.frombuffer(values, dtype=numpy.float32), {}, 0
    for line in head.decode().split("\n"):
        name, rows, columns = line.split()
        shape = (int(rows), int(columns)) if columns != "0" else (int(rows),)
        count = int(numpy.prod(shape))
        parameters[name] = torch.nn.Parameter(torch.from_numpy(values[at:at + count].copy()).view(shape))
        at += count
    return parameters


class Model:
    def __init__(self, parameters):
        self.parameters = parameters
        self.hidden = torch.triu(torch.ones(CONTEXT, CONTEXT, dtype=torch.bool), 1)

    def linear(self, name, x):
        return functional.linear(x, self.parameters[name + ".weight"], self.parameters[name + ".bias"])

    def norm(self, name, x):
        return functional.layer_norm(x, x.shape[-1:], self.parameters[name + ".weight"],
                                     self.parameters[name + ".bias"], 1e-5)

    def attention(self, name, x):
        batch, context, width = x.shape
        q, k, v = (part.view(batch, context, HEADS, width // HEADS).transpose(1, 2)
                   for part in self.linear(name + ".qkv", x).split(width, 2))
        scores = q @ k.transpose(-2, -1) * (width // HEADS) ** -0.5
        shares = functional.softmax(scores.masked_fill(self.hidden, float("-inf")), -1)
        return self.linear(name + ".projection", (shares @ v).transpose(1, 2).reshape(batch, context, width))

    def loss(self, inputs, targets):
        own = self.parameters
        x = functional.embedding(inputs, own["embedding.tokens"]) + own["embedding.positions"]
        for layer in range(LAYERS):
            block = "blocks.%d." % layer
            x = x + self.attention(block + "attention", self.norm(block + "ln1", x))
            up = functional.gelu(self.linear(block + "mlp.up", self.norm(block + "ln2", x)), approximate="tanh")
            x = x + self.linear(block + "mlp.down", up)
        logits = functional.linear(self.norm("head.ln", x), own["head.weight"])
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]), targets.view(-1))


class Training:
    def __init__(self, initial, options, seed=1):
        self.text, self.step, self.seed = Text(), 0, seed
        self.model = Model(read_initial(initial))
        self.values = list(self.model.parameters.values())
        self.optimizer = torch.optim.AdamW(self.values, lr=LR, weight_decay=WEIGHT_DECAY, **options)

    def one_step(self, skip=False):
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.model.loss(*self.text.batch(self.seed, self.step))
        self.step += 1
        if not skip:
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.values, CLIP_NORM)
            self.optimizer.step()
        return loss.item()

    def seconds(self):
        begin = time.perf_counter()
        self.one_step()
        return time.perf_counter() - begin


def run_charlm(charlm, *options):
    subprocess.run([charlm, "--local", "--text", TEXT, "--quiet", *options], stdout=subprocess.DEVNULL, check=True)


def fastest(initial):
    best = None
    for name, options in (("loop", {"foreach": False}), ("foreach", {"foreach": True}), ("fused", {"fused": True})):
        try:
            training = Training(initial, options)
            seconds = min(training.seconds() for _ in range(1 + TRIALS))
        except (TypeError, RuntimeError):
            continue  # this torch has not this form
        print("# torch %s, AdamW %s: %.1f ms" % (torch.__version__, name, seconds * 1e3), file=sys.stderr, flush=True)
        if best is None or seconds < best[0]:
            best = seconds, options
    return best[1]


def serve(charlm, folder):
    run_charlm(charlm, "--steps", "1", "--initial", folder / "initial")
    training = Training(folder / "initial", fastest(folder / "initial"))
    print("ready", flush=True)
    for _ in sys.stdin:
        print("%.9f" % training.seconds(), flush=True)
    return 0


class Curves:
    """The losses of each step, ours and torch's; torch's are kept for all precisions that skip the same steps."""

    def __init__(self, charlm, folder, steps):
        self.charlm, self.folder, self.steps = charlm, folder, steps
        self.options, self.known = None, {}

    def torch(self, seed, skipped):
        initial = self.folder / "initial"
        self.options = self.options or fastest(initial)
        if (seed, skipped) not in self.known:
            training = Training(initial, self.options, seed)
            self.known[seed, skipped] = [training.one_step(step in skipped) for step in range(self.steps)]
        return numpy.array(self.known[seed, skipped])

    def apart(self, precision, options, seed):
        """How far the mean losses of the last tenth are apart."""
        run_charlm(self.charlm, "--precision", precision, "--seed", str(seed), "--steps", str(self.steps),
                   "--log", self.folder / "log", "--initial", self.folder / "initial", *options)
        rows, last = numpy.loadtxt(self.folder / "log"), self.steps // 10
        skipped = frozenset(numpy.flatnonzero(rows[:, 4]).tolist())
        ours, theirs = rows[-last:, 1], self.torch(seed, skipped)[-last:]
        print("%s, seed %d: loss %.4f, torch %.4f over the last %d of %d steps, %.4f apart; single steps at most %.1e; "
              "%d skipped" % (precision, seed, ours.mean(), theirs.mean(), last, self.steps,
                              ours.mean() - theirs.mean(), abs(ours - theirs).max(), len(skipped)), flush=True)
        return abs(ours.mean() - theirs.mean())


def compare(charlm, folder, steps):
    curves, failed = Curves(charlm, folder, steps), 0
    for precision, options, seeds, limit in CURVES:
        apart = sum(curves.apart(precision, options, seed) for seed in seeds) / len(seeds)
        failed |= apart > limit
        print("%s: %.4f apart, at most %.2f: %s" % (precision, apart, limit, "short" if apart > limit else "ok"),
              flush=True)
    return int(failed)


def main():
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    if len(sys.argv) < 3 or sys.argv[1] not in ("curves", "serve"):
        print(__doc__, file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="charlm-torch-") as folder:
        if sys.argv[1] == "serve":
            return serve(sys.argv[2], pathlib.Path(folder))
        return compare(sys.argv[2], pathlib.Path(folder), int(sys.argv[3]) if len(sys.argv) > 3 else 1000)


if __name__ == "__main__":
    sys.exit(main())
