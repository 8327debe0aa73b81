"""Modules on a CUDA device: parameters come from pinned memory, gradients go by one copy; where memory is shared with
the server, from and into that. Skipped without a device."""
from python_testing import FILE, needs, run  # (first: it finds the package)

import contextlib
import logging
import sys
import tempfile

import ampd
import ampd.testing

needs("torch")
import torch  # noqa: E402

if not torch.cuda.is_available():
    print("SKIPPED: %s: no CUDA device (or a torch without CUDA)" % FILE)
    sys.exit(77)

from ampd.pinned import PinnedSharedMemory  # noqa: E402

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


@contextlib.contextmanager
def beside(**options):
    with tempfile.TemporaryDirectory() as folder, \
            ampd.testing.server(listen=f"unix:{folder}/socket", **options) as server:
        yield server


def shared(server, name, *, width, in_slot=True, steps=8, **options):
    """Trains with memory that is shared. The parameters that every step saw, and those at the end."""
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(300, 700), torch.nn.Tanh(), torch.nn.Linear(700, 1)).to("cuda")
    x = torch.randn(32, 300, generator=torch.Generator().manual_seed(2)).to("cuda")
    seen = []
    with ampd.join(server.endpoint, name, net, optimizer=ampd.SGD(lr=0.01), max_steps=steps, **options) as job:
        for step in job.steps():
            assert job.shares_memory
            seen.append([value.detach().cpu().clone() for value in net.parameters()])
            brought = [torch.from_dlpack(job.parameters.dlpack(key)).float() for key, _ in net.named_parameters()]
            assert all(torch.equal(one, two.float()) for one, two in zip(brought, seen[-1])), step.number
            step.backward((net(x) - x.sum(1, keepdim=True)).square().mean())
            assert step.end().applied
            # In the first step a slot has the cast's width; where that is not the gradients', it is mapped anew.
            if job.memory.in_place:
                assert job.memory.slot_width == (width if step.number > 1 else 4 if job.cast == "float32" else 2)
            assert bool(job.module._places) == (in_slot and step.number >= (1 if job.cast == "float32" else 2))
        job.pull()
        seen.append([value.detach().cpu().clone() for value in net.parameters()])
    return seen


def equal(one, two):
    return all(torch.equal(a, b) for left, right in zip(one, two) for a, b in zip(left, right))


def test_shared_memory_is_copied_from_and_to_by_the_device_and_ends_in_the_same_bytes():
    with beside() as server:
        ours = shared(server, "shared", width=4, cast="float32")
        staged = shared(server, "staged", width=4, cast="float32", pin_memory=False, in_slot=False)
    with ampd.testing.cluster(2) as cluster:
        two = shared(cluster, "two", width=4, cast="float32")
    assert equal(ours, staged) and equal(ours, two)


def test_wider_gradients_than_the_cast_get_a_place_in_shared_memory_from_the_second_step_on():
    with beside() as server:
        ours = shared(server, "wide", width=4, cast="float16")
        staged = shared(server, "staged", width=4, cast="float16", pin_memory=False, in_slot=False)
        bits = shared(server, "bfloat16", width=4, cast="bfloat16")
    assert equal(ours, staged) and len(bits) == 9


def test_memory_that_cannot_be_pinned_is_told_once_and_leaves_the_device_alone():
    told, log = [], logging.getLogger("ampd")
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())
    log.addHandler(handler)
    memory = PinnedSharedMemory(64)
    for _ in range(2):
        memory.mapped(4096, 4096, 4, True)  # nothing is there
        assert torch.ones(3, device="cuda").sum().item() == 3
    assert memory.slot_width == 0 and len(told) == 1 and "cannot be pinned" in told[0], told
    memory.unmapped(4096)
    log.removeHandler(handler)


def test_a_quorum_leaves_parameters_in_memory_of_the_process():
    with beside() as server:
        seen = shared(server, "quorum", width=4, cast="float32", quorum=1, in_slot=False)
        assert equal(seen, shared(server, "all", width=4, cast="float32"))


def test_evaluations_after_each_other_see_their_own_version():
    with beside() as server:
        net = torch.nn.Linear(4096, 2048, bias=False).to("cuda")
        x = torch.ones(1, 4096, device="cuda")
        with ampd.join(server.endpoint, "m", net, optimizer=ampd.SGD(lr=1.0), cast="float32", max_steps=6) as job:
            sums = []
            for step in job.steps():
                before = net(x).sum()  # not waited for
                step.backward(net(x).sum())
                step.end()
                job.pull()
                sums.append((before, net(x).sum()))
            # The gradient of each element is 1.
            assert all(abs(one.item() - two.item() - 4096 * 2048) < 4096 for one, two in sums), sums


def test_a_server_that_ends_and_comes_back_is_shared_with_again():
    with tempfile.TemporaryDirectory() as folder:
        made = ampd.testing.Server(f"{folder}/data", [], f"unix:{folder}/socket")
        torch.manual_seed(1)
        net = torch.nn.Linear(300, 200).to("cuda")
        x = torch.ones(1, 300, device="cuda")
        with ampd.join(made.endpoint, "m", net, optimizer=ampd.SGD(lr=1.0), cast="float32", max_steps=12,
                       durability="step") as job:
            first = net.weight.detach().clone()
            for step in job.steps():
                if step.number == 5:
                    made.stop()
                    made.start()
                step.backward(net(x).sum())
                assert step.end().applied
            assert job.shares_memory and job.memory.slot_width == 4
            job.pull()
            assert (first - net.weight - 12).abs().max().item() < 1e-4
        made.stop()


run(globals())
