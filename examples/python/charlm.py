#!/usr/bin/python3
"""Trains a small GPT on a book, character by character, with PyTorch: the model of examples/charlm.

    ampd --data-dir D & examples/python/charlm.py            a worker alone, with a server at 127.0.0.1:7420
    python3 -m ampd.launch -n 2 examples/python/charlm.py    two workers, and an ampd for them
"""
import argparse
import os
import pathlib

import ampd
import numpy
import torch
from torch import nn
from torch.nn import functional

LAYERS, HEADS, WIDTH, CONTEXT, TOKENS = 4, 4, 128, 128, 128
BYTES = numpy.fromfile(pathlib.Path(__file__).parents[1] / "charlm" / "opticks.txt", numpy.uint8)
BYTES = BYTES[:len(BYTES) // 10 * 9 + 1]  # the last tenth is not trained on
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.projection = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.register_buffer("later", torch.ones(CONTEXT, CONTEXT, dtype=torch.bool).triu(1), persistent=False)

    def attention(self, x):
        q, k, v = (part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).split(WIDTH, 2))
        scores = q @ k.transpose(2, 3) * (WIDTH // HEADS) ** -0.5
        shares = scores.masked_fill(self.later, float("-inf")).softmax(3)
        return self.projection((shares @ v).transpose(1, 2).flatten(2))

    def forward(self, x):
        x = x + self.attention(self.ln1(x))
        return x + self.down(functional.gelu(self.up(self.ln2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(TOKENS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.ln, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, TOKENS, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1:  # smaller where it is added to what the layers hand on (GPT-2)
                adds = name.endswith(("projection.weight", "down.weight"))
                nn.init.normal_(parameter, std=0.02 / (2 * LAYERS) ** 0.5 if adds else 0.02)

    def forward(self, x, y):
        scores = self.head(self.ln(self.blocks(self.tokens(x) + self.positions.weight)))
        return functional.cross_entropy(scores.flatten(0, 1).float(), y.flatten())


def batch(seed, number, rank, count):
    """A function of the step and the rank alone: a step that is done again has the same characters."""
    random = numpy.random.default_rng([seed, number, rank])
    rows = numpy.stack([BYTES[at:at + CONTEXT + 1] for at in random.integers(0, len(BYTES) - CONTEXT, count)])
    rows = torch.from_numpy(rows.astype(numpy.int64)).to(DEVICE)
    return rows[:, :-1], rows[:, 1:]


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000, metavar="N")
    parser.add_argument("--batch", type=int, default=8, metavar="N", help="sequences a step and worker (8)")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="of the first values and the batches (1)")
    parser.add_argument("--cast", choices=("float16", "bfloat16", "float32"), default="float16",
                        help="what is pulled and pushed")
    parser.add_argument("--scale", type=float, default=65536, metavar="S", help="the first loss scale, with float16")
    parser.add_argument("--checkpoint-every", type=int, default=100, metavar="N", help="steps (100)")
    parser.add_argument("--save", metavar="FILE", help="the trained module's state_dict, by torch.save")
    parser.add_argument("--log", metavar="FILE", help="rank 0 adds a line a step: number, loss, 1 if it was skipped")
    return parser.parse_args()


def main():
    options = parse()
    torch.manual_seed(options.seed)
    model = GPT().to(DEVICE)
    job = ampd.join(None, "charlm", model, optimizer=ampd.AdamW(lr=1e-3, weight_decay=0.1),
                    schedule=ampd.Cosine(warmup=min(50, options.steps // 4), total=options.steps), clip_norm=1.0,
                    scaler=ampd.DynamicScaler(init_scale=options.scale) if options.cast == "float16" else None,
                    cast=options.cast, gradients=options.cast, no_decay=lambda name, p: p.dim() <= 1,
                    max_steps=options.steps, checkpoint_every=options.checkpoint_every)
    with job, open(options.log if options.log and job.rank == 0 else os.devnull, "a", buffering=1) as log:
        for step in ampd.progress(job.steps()):
            x, y = batch(options.seed, step.number, job.rank, options.batch)
            with step.autocast():
                loss = model(x, y)
            step.backward(loss)
            if step.number in (1, options.steps):
                print("step %d: loss %.4f" % (step.number, loss.item()))
            result = step.end()
            if result.skipped:
                print(result.explain())
            print(step.number, loss.item(), int(result.skipped), file=log)
        if options.save and job.rank == 0:
            torch.save(job.state_dict(), options.save)
            print("saved to %s" % options.save)


if __name__ == "__main__":
    main()
