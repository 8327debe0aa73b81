"""Optimizers, clipping, schedules and groups beside torch's: 50 steps of a small module, over each kind of connection.

The module and its batches are the same on both sides. The difference of a parameter is the largest of its elements'
differences over its largest magnitude, after the 50 steps. From torch in float64 it is at most 1e-6 for every
parameter. From torch in float32, which is itself up to 1.2e-6 from torch in float64 (AdamW), it is at most twice that:
torch rounds several times in a step, and ampd once from double (docs/numerics.md). Torch has no Lion: it is a few lines
here.
"""
from python_testing import folder, needs, raises, run  # (first: it finds the package)

needs("torch")

import copy
import functools
import math
import os
import subprocess

import ampd
import ampd.testing
import torch
from torch.optim import lr_scheduler

STEPS = 50
TOLERANCES = {torch.float64: 1e-6, torch.float32: 2e-6}


class Net(torch.nn.Module):
    """A network, and a table that makes the model three blocks of 65536 elements, one for each of three shards.

    The table is drawn to a value that it does not reach, so that none of its gradients is a sum near zero. The first
    bits of such a sum differ after a difference of one rounding, and Adam takes it for as good as any other gradient:
    torch's own results in float32 and float64 are then 2e-3 apart. Nor is a gradient the same in all steps: its
    variance, which RMSprop divides by if `centered`, would be a difference near zero."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(330, 400) * 0.05)
        self.inner = torch.nn.Linear(5, 16)
        self.outer = torch.nn.Linear(16, 3)

    def forward(self, inputs):
        return self.outer(torch.tanh(self.inner(inputs)))


@functools.cache
def first_net():
    torch.manual_seed(1)
    return Net()


@functools.cache
def batch(number):
    return torch.randn(32, 5, generator=torch.Generator().manual_seed(number))


def loss_of(net, number):
    inputs = batch(number).to(net.table.dtype)
    wanted = torch.stack([inputs[:, 0] * inputs[:, 1], inputs[:, 2:].sum(1), 2 - inputs[:, 4]], 1)
    return (net(inputs) - wanted).square().mean() + (net.table - 3).square().mean() * (500 + 500 * (number % 3))


class Lion(torch.optim.Optimizer):
    """Chen and others, 2023, algorithm 2."""

    def __init__(self, params, lr, betas, weight_decay):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for one in group["params"]:
                m = self.state[one].setdefault("m", torch.zeros_like(one))
                update = torch.sign(beta1 * m + (1 - beta1) * one.grad)
                one.sub_(group["lr"] * (update + group["weight_decay"] * one))
                m.mul_(beta2).add_(one.grad, alpha=1 - beta2)


def largest_difference(net, other):
    return max(((one.detach() - two.detach()).abs().max() / two.abs().max()).item()
               for one, two in zip(net.parameters(), other.parameters()))


class Case:
    """An optimizer on both sides: `options` are join's, and `clip`, `schedule` and `groups` what they are in torch."""

    def __init__(self, ours, theirs, options=None, *, clip=None, schedule=None, groups=None):
        self.ours, self.theirs, self.options = ours, theirs, options or {}
        self.clip, self.schedule, self.groups = clip, schedule, groups
        self.first = None

    @functools.cache
    def expected(self, dtype):
        net = copy.deepcopy(first_net()).to(dtype)
        optimizer = self.theirs(self.groups(net) if self.groups else net.parameters())
        schedule = self.schedule(optimizer) if self.schedule else None
        for number in range(1, STEPS + 1):
            optimizer.zero_grad()
            loss_of(net, number).backward()
            if self.clip:
                self.clip(net.parameters())
            optimizer.step()
            if schedule:
                schedule.step()
        return net

    def trained(self, endpoint, name, connection):
        net = copy.deepcopy(first_net())
        with ampd.join(endpoint, name, net, optimizer=self.ours, cast="float32", max_steps=STEPS,
                       **self.options, **connection) as job:
            for step in job.steps():
                step.backward(loss_of(net, step.number))
                assert step.end().applied
            job.pull()
            assert job.copies == 0
        return net

    def differences(self, endpoint, name, connection):
        """From torch, by the dtype that torch computes in."""
        got = self.trained(endpoint, name, connection)
        self.first = self.first or got  # the others' bits are its bits, whatever lies between
        assert all(torch.equal(one, other) for one, other in zip(got.parameters(), self.first.parameters())), name
        return {dtype: largest_difference(got, self.expected(dtype)) for dtype in TOLERANCES}


def grouped(net):
    """torch's side of GROUPED: biases and the norm do not decay, the table has half the rate."""
    still = [one for one in net.parameters() if one.ndim == 1]
    return [{"params": [net.table], "lr": 0.005, "weight_decay": 0.1}, {"params": still, "weight_decay": 0.0},
            {"params": [net.inner.weight, net.outer.weight]}]


GROUPED = {"groups": [ampd.Group(["table"], "table", lr_factor=0.5, weight_decay=0.1)],
           "no_decay": lambda name, parameter: parameter.ndim == 1}


def closed_form(factor):
    """A schedule of torch whose rate after k steps is the base times factor(k)."""
    return lambda optimizer: lr_scheduler.LambdaLR(optimizer, factor)


def half_a_cosine(k):
    """From 1 down to 0.1 after 30 steps, behind a warm-up of 10."""
    return (k + 1) / 10 if k < 10 else 0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * min(1, (k - 10) / 30)))


T, of = torch.optim, functools.partial
SGD = of(T.SGD, lr=0.05, weight_decay=0.01)
MOMENTUM = of(SGD, momentum=0.9)
ADAMW = of(T.AdamW, lr=0.01, weight_decay=0.05)
RMSPROP = of(T.RMSprop, lr=0.002, weight_decay=0.01)
OUR_MOMENTUM, OUR_ADAMW = ampd.SGD(0.05, 0.9, weight_decay=0.01), ampd.AdamW(0.01, weight_decay=0.05)

CASES = {
    "sgd": Case(ampd.SGD(0.05, weight_decay=0.01), SGD),
    "momentum": Case(ampd.SGD(0.05, 0.9, 0.1, 0.01), of(MOMENTUM, dampening=0.1)),
    "nesterov": Case(ampd.SGD(0.05, 0.9, weight_decay=0.01, nesterov=True), of(MOMENTUM, nesterov=True)),
    "adam": Case(ampd.Adam(0.01, weight_decay=0.01), of(T.Adam, lr=0.01, weight_decay=0.01)),
    "adam-beta1-0": Case(ampd.Adam(0.01, (0, 0.9)), of(T.Adam, lr=0.01, betas=(0, 0.9))),
    "adamw": Case(ampd.AdamW(0.01, (0.8, 0.99), weight_decay=0.05), of(ADAMW, betas=(0.8, 0.99))),
    "adagrad": Case(ampd.Adagrad(0.05, 0.01, weight_decay=0.01),
                    of(T.Adagrad, lr=0.05, lr_decay=0.01, weight_decay=0.01)),
    "rmsprop": Case(ampd.RMSprop(0.002, weight_decay=0.01), RMSPROP),
    "rmsprop-momentum": Case(ampd.RMSprop(0.002, 0.9, weight_decay=0.01, momentum=0.8),
                             of(RMSPROP, alpha=0.9, momentum=0.8)),
    "rmsprop-centered": Case(ampd.RMSprop(0.002, 0.9, weight_decay=0.01, centered=True),
                             of(RMSPROP, alpha=0.9, centered=True)),
    "lion": Case(ampd.Lion(0.001, (0.9, 0.98), 0.1), of(Lion, lr=0.001, betas=(0.9, 0.98), weight_decay=0.1)),
    "clip-norm": Case(OUR_MOMENTUM, MOMENTUM, {"clip_norm": 0.5},
                      clip=of(torch.nn.utils.clip_grad_norm_, max_norm=0.5)),
    "clip-value": Case(OUR_MOMENTUM, MOMENTUM, {"clip_value": 0.01},
                       clip=of(torch.nn.utils.clip_grad_value_, clip_value=0.01)),
    "warmup": Case(OUR_ADAMW, ADAMW, {"schedule": ampd.Constant(warmup=20)},
                   schedule=closed_form(lambda k: min(1, (k + 1) / 20))),
    "step": Case(OUR_ADAMW, ADAMW, {"schedule": ampd.Step(15, 0.3)},
                 schedule=of(lr_scheduler.StepLR, step_size=15, gamma=0.3)),
    "cosine": Case(OUR_ADAMW, ADAMW, {"schedule": ampd.Cosine(STEPS, min_lr=0.001)},
                   schedule=of(lr_scheduler.CosineAnnealingLR, T_max=STEPS, eta_min=0.001)),
    "cosine-warmup": Case(OUR_ADAMW, ADAMW, {"schedule": ampd.Cosine(40, warmup=10, min_lr=0.001)},
                          schedule=closed_form(half_a_cosine)),
    "groups": Case(OUR_ADAMW, ADAMW, GROUPED, groups=grouped),
}


# Over connections that carry the same bytes as others: one of each kind of what a step does. AMPD_TEST_LONG: all.
SOME = CASES if os.environ.get("AMPD_TEST_LONG") else ["momentum", "adamw", "clip-norm", "cosine-warmup", "groups"]


def cases_are_torchs(endpoint, names=CASES, **connection):
    said = []
    for name in names:
        case = CASES[name]
        found = case.differences(endpoint, name, connection)
        said.append("%s %s" % (name, " ".join("%.1e" % one for one in found.values())))
        assert all(one <= TOLERANCES[dtype] for dtype, one in found.items()), (name, found)
    print("  from torch in float64, in float32: " + ", ".join(said), flush=True)


def test_no_two_cases_are_the_same():
    nets = [case.expected(torch.float64) for case in CASES.values()]
    for at, net in enumerate(nets):
        assert all(largest_difference(net, other) > 1e-4 for other in nets[:at]), list(CASES)[at]


def test_optimizers_are_torchs_over_tcp():
    with ampd.testing.server() as server:
        cases_are_torchs(server.endpoint, SOME)


def test_every_optimizer_is_torchs_over_a_unix_socket():
    with folder() as path, ampd.testing.server(listen=f"unix:{path}/socket") as server:
        assert server.endpoint.startswith("unix:")
        cases_are_torchs(server.endpoint)


def test_optimizers_are_torchs_over_tls():
    with folder() as path:
        cert, key = os.path.join(path, "server.crt"), os.path.join(path, "server.key")
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes",
                        "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
                        "-keyout", key, "-out", cert], check=True, capture_output=True, timeout=60)
        with ampd.testing.server(options=["--cert-file", cert, "--key-file", key]) as server:
            raises(ampd.Unavailable, lambda: ampd.join(server.endpoint, "sgd", first_net(), connect_timeout=0.5))
            cases_are_torchs(server.endpoint, SOME, cacert=cert)


def test_every_optimizer_is_torchs_on_three_shards():
    with ampd.testing.cluster(3) as cluster:
        cases_are_torchs(cluster.endpoint)


run(globals())
