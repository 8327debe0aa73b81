"""A model of torch, joined to a server at 127.0.0.1:7420: prints "applied" when its first step is."""
import ampd
import torch

net = torch.nn.Linear(4, 1)
with ampd.join("127.0.0.1:7420", "first", net, optimizer=ampd.SGD(lr=0.1), max_steps=1) as job:
    for step in job.steps():
        step.backward(net(torch.ones(2, 4)).sum())
        print("applied" if step.end().applied else "skipped")
