#!/usr/bin/python3
"""torch_curves.py CURVES: 1,000 steps of a logistic regression with each optimizer that PyTorch has, beside PyTorch's.

CURVES is the program tests/kernels/curves. Both take the gradient in double and round it to fp32; what is left of a
difference is that of the optimizers. A loss may differ by 2^-17 of itself, 64 roundings of fp32: torch rounds after
each operation, and a thousand steps add up. Exits with 1 if a curve differs, with 77 if there is no torch.
"""
import os
import subprocess
import sys
import tempfile

try:
    import numpy
    import torch
except ImportError as error:
    print("SKIPPED: torch curves: %s (section [torch] of deploy/packages.txt)" % error)
    sys.exit(77)

ROWS, COLUMNS, STEPS = 512, 48, 1000
TOLERANCE = 2.0 ** -17

# name, the library's optimizer, torch's class, lr, weight decay, momentum, nesterov, centered
CASES = (
    ("sgd", "sgd", torch.optim.SGD, 0.5, 0, 0, False, False),
    ("sgd, momentum and decay", "sgd", torch.optim.SGD, 0.05, 1e-3, 0.9, False, False),
    ("sgd, nesterov", "sgd", torch.optim.SGD, 0.05, 0, 0.9, True, False),
    ("adam", "adam", torch.optim.Adam, 1e-2, 0, 0, False, False),
    ("adam, decay", "adam", torch.optim.Adam, 1e-2, 1e-2, 0, False, False),
    ("adamw", "adamw", torch.optim.AdamW, 1e-2, 1e-2, 0, False, False),
    ("adagrad, decay", "adagrad", torch.optim.Adagrad, 0.1, 1e-3, 0, False, False),
    ("rmsprop", "rmsprop", torch.optim.RMSprop, 1e-3, 0, 0, False, False),
    ("rmsprop, momentum and decay", "rmsprop", torch.optim.RMSprop, 1e-4, 1e-3, 0.9, False, False),
    ("rmsprop, centered", "rmsprop", torch.optim.RMSprop, 1e-3, 0, 0, False, True),
)


def ours(program, path, optimizer, *values):
    arguments = [program, path, str(ROWS), str(COLUMNS), str(STEPS), optimizer]
    arguments += [str(int(value)) if isinstance(value, bool) else repr(value) for value in values]
    out = subprocess.run(arguments, check=True, stdout=subprocess.PIPE, timeout=120).stdout
    return numpy.array([float(line) for line in out.split()])


def theirs(x, y, kind, lr, decay, momentum, nesterov, centered):
    w = torch.zeros(COLUMNS, dtype=torch.float32, requires_grad=True)
    options = {"lr": lr, "weight_decay": decay}
    if momentum:
        options["momentum"] = momentum
    if nesterov:
        options["nesterov"] = True
    if centered:
        options["centered"] = True
    optimizer = kind([w], **options)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.softplus(-y * (x @ w.double()), threshold=1000).mean()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    return numpy.array(losses)


def main():
    random = numpy.random.default_rng(2026)
    x = random.standard_normal((ROWS, COLUMNS))
    y = numpy.where(x @ random.standard_normal(COLUMNS) + 4 * random.standard_normal(ROWS) > 0, 1.0, -1.0)
    torch.set_num_threads(1)
    broken = 0
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "data")
        with open(path, "wb") as file:
            file.write(x.tobytes() + y.tobytes())
        for name, optimizer, kind, *values in CASES:
            mine = ours(sys.argv[1], path, optimizer, *values)
            other = theirs(torch.from_numpy(x), torch.from_numpy(y), kind, *values)
            worst = float(numpy.max(numpy.abs(mine - other) / other))
            good = len(mine) == STEPS and worst <= TOLERANCE and mine[-1] < 0.9 * mine[0]
            print("%s %s: loss %.6f to %.6f, torch's %.6f, largest relative difference %.2g"
                  % ("[       OK ]" if good else "[  FAILED  ]", name, mine[0], mine[-1], other[-1], worst))
            broken += not good
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
