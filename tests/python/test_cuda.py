"""Modules on a CUDA device: parameters come from pinned memory, gradients go by one copy; where memory is shared with
the server, from and into that. Without a device the processor stands in for one."""
from python_testing import FILE, eventually, needs, raises, run, told  # (first: it finds the package)

import concurrent.futures
import contextlib
import ctypes
import tempfile
import warnings
from unittest import mock

import ampd
import ampd.testing

needs("torch")
import torch  # noqa: E402

from ampd import module, pinned  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
STEPS = 20


class StandIn:
    """The processor in the place of a device, so that all is run but the device's own copies."""

    def __init__(self):
        self.pinned = {}
        module.on_device = lambda tensor: True
        torch.cuda.cudart = torch.cuda.current_stream = lambda *_: self
        torch.cuda.device = contextlib.nullcontext
        self.empty, torch.empty = torch.empty, self.without_pins

    def without_pins(self, *size, pin_memory=False, **options):
        assert not pin_memory or options["device"] == "cpu"  # torch's default may be the device, which has none
        return self.empty(*size, **options)

    def cudaHostRegister(self, address, size, flags):
        if address < 65536 or address in self.pinned:
            return 1
        ctypes.string_at(address, size)  # it is mapped
        self.pinned[address] = size
        return 0

    def cudaHostUnregister(self, address):
        ctypes.string_at(address, self.pinned.pop(address))
        return 0

    def record_event(self):
        return self

    def query(self):
        return False

    def synchronize(self):
        pass


if DEVICE == "cpu":
    print("SKIPPED: %s: no CUDA device (or a torch without CUDA)" % FILE, flush=True)
    STAND_IN = StandIn()
EVENT = torch.cuda.Event if DEVICE == "cuda" else StandIn


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
        ours, copies = train(server, "device", DEVICE, cast="float32")
        theirs, _ = train(server, "cpu", "cpu", cast="float32")
    assert copies == 0
    assert all(torch.allclose(one, other, rtol=0, atol=1e-5) for one, other in zip(ours, theirs))


def test_gradients_are_added_up_on_a_device():
    with ampd.testing.server() as server:
        torch.manual_seed(1)
        net = torch.nn.Linear(4, 1).to(DEVICE)
        x = torch.ones(1, 4, device=DEVICE)
        with ampd.join(server.endpoint, "sum", net, optimizer=ampd.SGD(lr=1.0), cast="float32", accumulate=2) as job:
            step, before = job.begin(), None
            before = net.weight.detach().clone()
            step.backward(net(x).sum())
            step.backward(net(x).sum() * 2)
            assert step.end().applied
            job.pull()
            assert torch.equal(net.weight.detach(), before - 3)


def loop(server, net, backward, **options):
    """One step of torch's way whose gradients `backward(scaled loss)` makes. The tensors that went to the server."""
    net, sent = net.to(DEVICE), []
    with ampd.join(server.endpoint, "loop", net, max_steps=1, **options) as job:
        optimizer, scaler, push_at = ampd.Optimizer(job), ampd.GradScaler(job), job.module._push_at
        job.module._push_at = lambda index, gradient: (sent.append(gradient), push_at(index, gradient))
        backward(scaler.scale(net(torch.ones(2, 4, device=DEVICE)).square().sum()))
        graph = net.weight.grad.grad_fn
        scaler.unscale_(optimizer)
        assert net.weight.grad.grad_fn is graph
        scaler.step(optimizer)
        assert optimizer.result.applied
    return sent


def test_gradients_that_have_a_graph_are_sent_without_it():
    with ampd.testing.server() as server:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's, of the cycle that is made
            sent = loop(server, torch.nn.Linear(4, 3), lambda loss: loss.backward(create_graph=True), cast="float16")
        assert len(sent) == 2 and not any(one.requires_grad for one in sent), sent


def test_a_scaler_of_a_model_without_a_loss_scale_is_told_once_what_autocast_in_float16_needs():
    with ampd.testing.server() as server:
        for cast, scaler, enabled, lines in (("float32", None, True, 1), ("float32", None, False, 0),
                                             ("float32", ampd.DynamicScaler(), True, 0), ("bfloat16", None, True, 0)):
            net = torch.nn.Linear(4, 3).to(DEVICE)
            with told() as said, ampd.join(server.endpoint, "%s-%s-%d" % (cast, enabled, lines), net, cast=cast,
                                           scaler=scaler) as job:
                for _ in range(2):
                    ampd.GradScaler(job, enabled=enabled)
            assert len(said) == lines and all("scaler=ampd.DynamicScaler()" in one for one in said), (cast, said)


def one_step(server, name, disturb):
    """The weight behind a step whose gradients are all on their way when `disturb(job, step)` is called."""
    torch.manual_seed(1)
    net = torch.nn.Linear(4, 3).to(DEVICE)
    with ampd.join(server.endpoint, name, net, optimizer=ampd.SGD(lr=1.0), cast="float32", max_steps=1) as job:
        for step in job.steps():
            with mock.patch.object(EVENT, "query", lambda event: False):
                step.backward(net(torch.ones(2, 4, device=DEVICE)).square().sum())
            assert len(job.module._staged) == 2
            disturb(job, step)
        job.pull()
        return [one.detach().cpu() for one in net.parameters()]


def test_an_end_that_is_interrupted_while_it_waits_for_a_gradient_can_be_called_again_and_loses_none():
    def interrupt(job, step):
        with mock.patch.object(EVENT, "synchronize", side_effect=KeyboardInterrupt("while it waits")):
            raises(KeyboardInterrupt, step.end)
        assert step.end().applied

    with ampd.testing.server() as server:
        undisturbed = one_step(server, "m", lambda job, step: step.end())
        assert equal([one_step(server, "interrupted", interrupt)], [undisturbed])


def test_a_step_that_could_not_push_a_gradient_when_it_was_ended_is_not_applied_without_it():
    begun = []

    def fail(job, step):
        begun.append(step.number)
        if len(begun) == 1:
            with mock.patch.object(job, "push_at", side_effect=ampd.ResourceExhausted("there is no memory; free some")):
                raises(ampd.ResourceExhausted, step.end)
            raises(ampd.WrongState, step.end, "a push of its gradients", "job.begin()")

    with ampd.testing.server() as server:
        assert equal([one_step(server, "failed", fail)], [one_step(server, "m", lambda job, step: step.end())])
    assert begun == [1, 1]


@contextlib.contextmanager
def beside(**options):
    with tempfile.TemporaryDirectory() as folder, \
            ampd.testing.server(listen=f"unix:{folder}/socket", **options) as server:
        yield server


def shared(server, name, *, width=4, in_slot=True, in_copy=True, steps=8, **options):
    """Trains with memory that is shared. The parameters that every step saw, and those at the end."""
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(300, 700), torch.nn.Tanh(), torch.nn.Linear(700, 1)).to(DEVICE)
    x = torch.randn(32, 300, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    seen = []
    with ampd.join(server.endpoint, name, net, optimizer=ampd.SGD(lr=0.01), max_steps=steps, **options) as job:
        for step in job.steps():
            assert job.shares_memory and (job._pulled_at != job._memory_at) == in_copy
            seen.append([value.detach().cpu().clone() for value in net.parameters()])
            brought = [torch.from_dlpack(job.parameters.dlpack(key)).float() for key, _ in net.named_parameters()]
            assert all(torch.equal(one, two.float()) for one, two in zip(brought, seen[-1])), step.number
            step.backward((net(x) - x.sum(1, keepdim=True)).square().mean())
            assert step.end().applied
            # In the first step a slot has the cast's width; where that is not the gradients', it is mapped anew.
            first = 4 if job.cast == "float32" else 2
            assert job.memory.slot_width == (0 if not in_slot else first if step.number == 1 else width)
            assert bool(job.module._places) == (in_slot and (step.number > 1 or first == width))
        job.pull()
        seen.append([value.detach().cpu().clone() for value in net.parameters()])
    return seen


def equal(one, two):
    return all(torch.equal(a, b) for left, right in zip(one, two) for a, b in zip(left, right))


def test_shared_memory_is_copied_from_and_to_by_the_device_and_ends_in_the_same_bytes():
    with beside() as server:
        ours = shared(server, "shared", cast="float32")
        staged = shared(server, "staged", cast="float32", pin_memory=False, in_slot=False, in_copy=False)
    with ampd.testing.cluster(2) as cluster:
        two = shared(cluster, "two", cast="float32")
    assert equal(ours, staged) and equal(ours, two)


def test_wider_gradients_than_the_cast_get_a_place_in_shared_memory_from_the_second_step_on():
    with beside() as server:
        ours = shared(server, "wide", cast="float16")
        staged = shared(server, "staged", cast="float16", pin_memory=False, in_slot=False, in_copy=False)
        bits = shared(server, "bits", cast="bfloat16")
        staged_bits = shared(server, "staged-bits", cast="bfloat16", pin_memory=False, in_slot=False, in_copy=False)
    assert equal(ours, staged) and equal(bits, staged_bits)


def test_memory_that_cannot_be_pinned_is_told_once_and_leaves_the_device_alone():
    with told() as said:
        memory = pinned.PinnedMemory(torch.device(DEVICE))
        for _ in range(2):
            memory.mapped(4096, 4096, 4, True)  # nothing is there
            assert torch.ones(3, device=DEVICE).sum().item() == 3
        assert memory.slot_width == 0 and len(said) == 1 and "cannot be pinned" in said[0], said
        memory.unmapped()


def test_where_a_model_goes_on_without_a_worker_its_parameters_come_to_memory_of_the_process():
    with beside() as server:
        seen = shared(server, "quorum", cast="float32", quorum=1, in_copy=False)
        assert equal(seen, shared(server, "all", cast="float32"))


def test_what_was_pinned_is_unpinned_before_it_is_unmapped():
    with beside() as server:
        shared(server, "left", cast="float16")
        net = torch.nn.Linear(3, 2).to(DEVICE)
        job = ampd.join(server.endpoint, "closed", net, optimizer=ampd.SGD(lr=0.01))
        job.begin()
        assert len(job.memory._pinned) == 3
        job.client.close()
        assert not job.memory._pinned
    if DEVICE == "cpu":
        assert not STAND_IN.pinned


def test_what_was_pulled_last_stays_after_a_leave_also_where_the_others_go_on_at_once():
    with beside() as server, ampd.connect(server.endpoint) as watch:
        nets = [torch.nn.Linear(300, 200).to(DEVICE) for _ in range(2)]
        x = torch.ones(1, 300, device=DEVICE)
        jobs = [ampd.join(server.endpoint, "m", net, optimizer=ampd.SGD(lr=1.0), rank=rank, world_size=2,
                          on_loss="shrink") for rank, net in enumerate(nets)]

        def step(rank):
            begun = jobs[rank].begin()
            begun.backward(nets[rank](x).sum())
            return begun.end()

        def steps_until_both_count(rank):  # the first step may have begun with one of them alone
            counted = 0
            while counted < 2:
                number = step(rank).step
                counted = next(row.contributors for row in watch.history("m", from_step=number) if row.kind == "step")

        with concurrent.futures.ThreadPoolExecutor() as threads:
            list(threads.map(steps_until_both_count, (0, 1)))
            version = watch.model("m").version
            other = threads.submit(step, 1)
            assert eventually(lambda: watch.model("m").workers[1].blocks_present == 1)
            values = [jobs[0]._pulled_at, ctypes.string_at(jobs[0]._pulled_at, jobs[0]._memory_size)]
            assert values[0] != jobs[0]._memory_at
            bring = jobs[0]._bring

            def bring_late():
                eventually(lambda: watch.model("m").version > version, 2)  # the server writes over what was pulled
                bring()

            jobs[0]._bring = bring_late
            jobs[0].leave()
            assert other.result().applied
        assert ctypes.string_at(jobs[0]._memory_at, jobs[0]._memory_size) == values[1]
        jobs[1].leave()


def test_evaluations_after_each_other_see_their_own_version():
    with beside() as server:
        net = torch.nn.Linear(4096, 2048, bias=False).to(DEVICE)
        x = torch.ones(1, 4096, device=DEVICE)
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
        net = torch.nn.Linear(300, 200).to(DEVICE)
        x = torch.ones(1, 300, device=DEVICE)
        try:
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
        finally:
            made.stop()


run(globals())
