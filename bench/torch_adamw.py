#!/usr/bin/python3
"""torch_adamw.py ELEMENTS THREADS: torch's side of the rows kernels_torch_: for each line on stdin makes one step and
prints its seconds.

A step is what a training loop with a loss scale does with fp16 gradients and fp32 masters: unscale to fp32, isfinite,
clip by the global norm, AdamW, the next fp16 copy. The parameters are several tensors of 4 Mi elements, as in a model.
Before the first line it times the forms of AdamW (a loop over tensors, foreach, and fused if this torch has it for
CPUs), chooses the fastest, and prints it on stderr. Exits with 77 if there is no torch.
"""
import sys
import time

try:
    import torch
except ImportError as error:
    print("SKIPPED: %s (section [torch] of deploy/packages.txt)" % error)
    sys.exit(77)

TENSOR = 4 << 20
SCALE = 1024.0
MAX_NORM = 1e9
TRIALS = 2


def forms():
    """The keyword arguments for AdamW that this torch supports, by the name of the form."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    for name, options in (("loop", {"foreach": False}), ("foreach", {"foreach": True}), ("fused", {"fused": True})):
        try:
            parameter.grad = torch.zeros(1)
            torch.optim.AdamW([parameter], **options).step()
            yield name, options
        except (TypeError, RuntimeError):
            pass


class Model:
    def __init__(self, elements):
        torch.manual_seed(1)
        sizes = [TENSOR] * (elements // TENSOR)
        self.masters = [torch.nn.Parameter(torch.randn(n) * 0.02) for n in sizes]
        self.halves = [(torch.randn(n) * 0.001 * SCALE).half() for n in sizes]
        self.copies = [torch.empty(n, dtype=torch.float16) for n in sizes]
        for master in self.masters:
            master.grad = torch.zeros_like(master)

    def step(self, optimizer):
        for master, half in zip(self.masters, self.halves):
            master.grad.copy_(half)
            master.grad.mul_(1 / SCALE)
        finite = all(bool(torch.isfinite(master.grad).all()) for master in self.masters)
        if not finite:
            sys.exit("torch_adamw.py: a gradient is not finite")
        torch.nn.utils.clip_grad_norm_(self.masters, MAX_NORM)
        optimizer.step()
        with torch.no_grad():
            for copy, master in zip(self.copies, self.masters):
                copy.copy_(master)


def timed(model, optimizer):
    begin = time.perf_counter()
    model.step(optimizer)
    return time.perf_counter() - begin


def fastest(model):
    best = None
    for name, options in forms():
        optimizer = torch.optim.AdamW(model.masters, lr=3e-4, **options)
        seconds = min(timed(model, optimizer) for _ in range(1 + TRIALS))
        print("# torch %s, AdamW %s: %.0f ms" % (torch.__version__, name, seconds * 1e3), file=sys.stderr, flush=True)
        if best is None or seconds < best[0]:
            best = seconds, name, options
    return best[1], best[2]


def main():
    elements, threads = int(sys.argv[1]), int(sys.argv[2])
    torch.set_num_threads(threads)
    model = Model(elements)
    name, options = fastest(model)
    optimizer = torch.optim.AdamW(model.masters, lr=3e-4, **options)
    print("ready %s" % name, flush=True)
    for _ in sys.stdin:
        print("%.9f" % timed(model, optimizer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
