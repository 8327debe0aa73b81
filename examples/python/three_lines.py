#!/usr/bin/python3
"""A script with torch's GradScaler and autocast, before and after. Three lines change, marked [1] to [3]; not the loop.
A fourth one, [4], is for runs that are started again: they go on at the step that the model is at, with its data.

    examples/python/three_lines.py --plain                        before: torch alone
    ampd --data-dir D & examples/python/three_lines.py            after, with a server at 127.0.0.1:7420
    python3 -m ampd.launch -n 2 examples/python/three_lines.py    after, with two workers
"""
import os
import sys

import torch
from torch import nn
from torch.nn import functional

import ampd

STEPS = 100
device = "cuda" if torch.cuda.is_available() else "cpu"
half = torch.float16 if device == "cuda" else torch.bfloat16  # CPUs' autocast of torch has bfloat16 alone

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
if "--plain" in sys.argv:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.cuda.amp.GradScaler(enabled=device == "cuda")
    numbers = range(1, STEPS + 1)
else:
    job = ampd.join(None, "three-lines", model, optimizer=ampd.AdamW(lr=1e-2), cast=half, max_steps=STEPS)   # [1]
    optimizer = ampd.Optimizer(job)                                                                          # [2]
    scaler = ampd.GradScaler(job)                                                                            # [3]
    numbers = iter(lambda: optimizer.number, None)  # until optimizer.done                                   # [4]

rank = int(os.environ.get("RANK", 0))
for number in numbers:
    torch.manual_seed(1 + rank * STEPS + number)  # each worker and each step has its data, also after a crash
    x = torch.randn(64, 16, device=device)
    y = x.square().mean(1, keepdim=True)
    optimizer.zero_grad()
    with torch.autocast(device, half):
        prediction = model(x)
    loss = functional.mse_loss(prediction.float(), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    if number in (1, STEPS):
        print("step %d: loss %.4f" % (number, loss.item()))
