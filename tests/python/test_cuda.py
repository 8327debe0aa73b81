"""Modules on a CUDA device: parameters come from pinned memory, gradients go by one copy. Skipped without a device."""
from python_testing import FILE, needs, run  # (first: it finds the package)

import sys

import ampd
import ampd.testing

needs("torch")
import torch  # noqa: E402

if not torch.cuda.is_available():
    print("SKIPPED: %s: no CUDA device (or a torch without CUDA)" % FILE)
    sys.exit(77)

STEPS = 20


def train(server, name, device, **options):
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).to(device)
    x = torch.randn(32, 8, generator=torch.Generator().manual_seed(2)).to(device)
    with ampd.join(server.endpoint, name, net, optimizer=ampd.SGD(lr=0.1), max_steps=STEPS, **options) as job:
        for step in job.steps():
            step.backward((net(x) - x.sum(1, keepdim=True)).square().mean())
            assert step.end().applied
        job.pull()
        return [value.detach().cpu() for value in net.parameters()], job.copies


def test_a_device_trains_as_the_processor_does():
    with ampd.testing.server() as server:
        ours, copies = train(server, "cuda", "cuda", cast="float32")
        theirs, _ = train(server, "cpu", "cpu", cast="float32")
    assert copies == 0
    assert all(torch.allclose(one, other, rtol=0, atol=1e-5) for one, other in zip(ours, theirs))


def test_gradients_are_added_up_on_a_device():
    with ampd.testing.server() as server:
        torch.manual_seed(1)
        net = torch.nn.Linear(4, 1).to("cuda")
        x = torch.ones(1, 4, device="cuda")
        with ampd.join(server.endpoint, "sum", net, optimizer=ampd.SGD(lr=1.0), cast="float32", accumulate=2) as job:
            step, before = job.begin(), None
            before = net.weight.detach().clone()
            step.backward(net(x).sum())
            step.backward(net(x).sum() * 2)
            assert step.end().applied
            job.pull()
            assert torch.equal(net.weight.detach(), before - 3)


run(globals())
