"""Training loops with a torch module: job.steps(), and torch.cuda.amp's way by ampd.Optimizer and ampd.GradScaler."""
from python_testing import needs, raises, run, told  # (first: it finds the package)

needs("torch", "google.protobuf")

import contextlib
import copy
import gc
import threading
import warnings
import weakref

import ampd
import ampd.testing
import torch
from torch.nn.utils.stateless import functional_call

STEPS = 6
DTYPES = (torch.float32, torch.float16, torch.bfloat16)


def new_net(dtype=torch.float32):
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)).to(dtype)


def batch(number):
    return torch.randn(16, 4, generator=torch.Generator().manual_seed(number))


def loss_of(net, number, rank=0):
    x = batch(number + 1000 * rank)
    values = {name: one.float() for name, one in net.named_parameters()}  # CPUs compute nothing in float16
    y = functional_call(net, values, x)
    return (y - torch.stack([x[:, 0] * x[:, 1], x[:, 2] + 1], 1)).square().mean()


def joined(server, name, net, **options):
    options = {"optimizer": ampd.SGD(0.1, 0.9), "cast": "float32", "max_steps": STEPS, **options}
    return ampd.join(server.endpoint, name, net, **options)


def by_steps(server, name, net, loss=loss_of, **options):
    """Trains by job.steps(), and returns the results."""
    with joined(server, name, net, **options) as job:
        results = []
        for step in job.steps():
            step.backward(loss(net, step.number))
            results.append(step.end())
        job.pull()
        return results


def same(net, other):
    mine, its = net.state_dict(), other.state_dict()
    return mine.keys() == its.keys() and all(torch.equal(mine[name], its[name]) for name in mine)


# ---- job.steps() ----

def test_a_module_of_the_casts_dtype_has_the_memory_of_the_job_and_nothing_is_copied():
    with ampd.testing.server() as server:
        for dtype in DTYPES:
            net = new_net(dtype)
            first = [one.detach().clone() for one in net.parameters()]
            with joined(server, str(dtype).rpartition(".")[2], net, cast=dtype) as job:
                for step in job.steps():
                    for name, one in net.named_parameters():
                        assert one.data_ptr() == job.parameters[name].ctypes.data and one.dtype == dtype
                    step.backward(loss_of(net, step.number))
                    step.end()
                    assert all(one.grad is None for one in net.parameters())
                job.pull()
                assert job.copies == 0, dtype
            assert not any(torch.equal(one, before) for one, before in zip(net.parameters(), first))
            assert loss_of(net, 1) < 10  # the values are there, also after the job


def test_a_module_of_another_dtype_is_copied_into_and_that_counts_as_a_conversion():
    with ampd.testing.server() as server:
        net = new_net()
        with joined(server, "net", net, cast="bfloat16") as job:
            for step in job.steps():
                for name, one in net.named_parameters():
                    assert torch.equal(one, torch.from_dlpack(job.parameters.dlpack(name)).float())
                with step.autocast():
                    loss = loss_of(net, step.number)
                step.backward(loss)
            assert job.copies == 0


def test_shared_parameters_are_one_parameter_with_the_sum_of_gradients():
    class Tied(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.table = torch.nn.Embedding(10, 4)
            self.out = torch.nn.Linear(4, 10, bias=False)
            self.out.weight = self.table.weight

        def forward(self, rows):
            return self.out(self.table(rows))

    torch.manual_seed(4)
    net, rows = Tied(), torch.arange(10)
    alone = copy.deepcopy(net)
    optimizer = torch.optim.SGD(alone.parameters(), lr=0.1)
    for _ in range(STEPS):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(alone(rows), rows).backward()
        optimizer.step()
    with ampd.testing.server() as server:
        by_steps(server, "tied", net, lambda net, _: torch.nn.functional.cross_entropy(net(rows), rows),
                 optimizer=ampd.SGD(0.1))
        assert net.out.weight is net.table.weight
        assert torch.allclose(net.table.weight, alone.table.weight, rtol=0, atol=1e-6)
        with joined(server, "tied", net, optimizer=ampd.SGD(0.1)) as job:
            assert job.pull() == STEPS and list(job.parameters) == ["table.weight"]
            state = job.state_dict(masters=False)
            assert set(state) == {"table.weight", "out.weight"} and torch.equal(state["out.weight"], net.out.weight)


def test_frozen_parameters_are_no_part_of_the_model():
    net = new_net()
    net[0].weight.requires_grad_(False)
    before = net[0].weight.clone()
    with ampd.testing.server() as server:
        with joined(server, "frozen", net) as job:
            for step in job.steps():
                step.backward(loss_of(net, step.number))
            assert list(job.parameters) == ["0.bias", "2.weight", "2.bias"]
            assert set(job.state_dict(masters=False)) == set(net.state_dict())
        assert torch.equal(net[0].weight, before)
        for one in net.parameters():
            one.requires_grad_(False)
        raises(ampd.InvalidArgument, lambda: joined(server, "all", net), "nothing is to be trained; call ")


def test_a_parameter_that_is_frozen_between_two_steps_stays_as_it_is_until_it_is_trained_again():
    net = new_net()
    with ampd.testing.server() as server, joined(server, "net", net, max_steps=3) as job:
        seen = []
        for step in job.steps():
            seen.append(net[0].weight.detach().clone())
            net[0].weight.requires_grad_(step.number != 2)
            step.backward(loss_of(net, step.number))
            assert step.end().applied
        job.pull()
        assert not torch.equal(seen[0], seen[1]) and torch.equal(seen[1], seen[2])
        assert not torch.equal(seen[2], net[0].weight)


def test_a_parameter_that_is_unfrozen_after_join_is_told_once_not_to_be_trained():
    def by_optimizer(job, net):
        optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
        while not optimizer.done:
            net[0].weight.requires_grad_(optimizer.number > 2)
            scaler.scale(loss_of(net, optimizer.number)).backward()
            scaler.step(optimizer)
            optimizer.zero_grad()

    def by_step(job, net):
        for step in job.steps():
            net[0].weight.requires_grad_(step.number > 2)
            step.backward(loss_of(net, step.number))

    with ampd.testing.server() as server:
        for loop in (by_optimizer, by_step):
            net = new_net()
            net[0].weight.requires_grad_(False)
            for steps, lines in ((2, 0), (4, 1)):
                with joined(server, "%s%d" % (loop.__name__, steps), net, max_steps=steps) as job, told() as said:
                    loop(job, net)
                assert len(said) == lines and all(" 0.weight is not trained" in one for one in said), said


def test_a_parameter_without_a_gradient_in_a_step_stays_as_it_is():
    net = new_net()
    with ampd.testing.server() as server, joined(server, "net", net, max_steps=2) as job:
        step = job.begin()
        before = [one.detach().clone() for one in net.parameters()]
        step.backward(net[0](batch(1)).square().mean())  # the last layer has no part in it
        assert step.end().applied
        job.begin()
        changed = [not torch.equal(one, was) for one, was in zip(net.parameters(), before)]
        assert changed == [True, True, False, False], changed


def test_a_gradient_that_is_not_contiguous_is_copied_and_counted():
    with ampd.testing.server() as server:
        nets = []
        for layout in (torch.contiguous_format, torch.channels_last):
            torch.manual_seed(5)
            net = torch.nn.Conv2d(3, 4, 2).to(memory_format=layout)
            x = torch.randn(2, 3, 5, 5)
            with joined(server, "contiguous" if not nets else "channels", net, cast="float16") as job:
                for step in job.steps():
                    step.backward(net(x).square().mean())
                assert job.copies == (0 if not nets else STEPS), job.copies
                nets.append(net)
                job.pull()
        assert all(torch.allclose(one, other, atol=1e-3) for one, other in zip(nets[0].parameters(),
                                                                               nets[1].parameters()))


def test_gradients_are_pushed_in_the_dtype_that_is_asked_for():
    with ampd.testing.server() as server:
        for dtype in DTYPES:
            net, other = new_net(), new_net()
            optimizer = torch.optim.SGD(other.parameters(), 0.1, 0.9)
            with joined(server, str(dtype).rpartition(".")[2], net, gradients=dtype) as job:
                for step in job.steps():
                    optimizer.zero_grad()
                    loss_of(other, step.number).backward()
                    for one in other.parameters():
                        one.grad = one.grad.to(dtype).float()
                    optimizer.step()
                    step.backward(loss_of(net, step.number))
                    assert all(one.grad.dtype == torch.float32 for one in net.parameters())
                    assert step.end().applied
                job.pull()
                assert job.copies == (0 if dtype == torch.float32 else STEPS * 4), (dtype, job.copies)
            assert all(torch.allclose(one, its, rtol=0, atol=1e-5) for one, its in zip(net.parameters(),
                                                                                       other.parameters())), dtype


def test_float16_gradients_of_a_float32_module_overflow():
    net = new_net()
    with ampd.testing.server() as server, joined(server, "net", net, cast="float16", gradients="float16", max_steps=40,
                                                 scaler=ampd.DynamicScaler(init_scale=2.0 ** 24)) as job:
        results = []
        for step in job.steps():
            step.backward(loss_of(net, step.number))
            results.append(step.end())
        assert results[0].skipped and results[0].overflows and results[-1].applied, results


def test_accumulated_backwards_are_added_up():
    whole, parts = new_net(), new_net()
    with ampd.testing.server() as server:
        by_steps(server, "whole", whole, lambda net, number: loss_of(net, number) + loss_of(net, number, 1))
        with joined(server, "parts", parts, accumulate=2) as job:
            for step in job.steps():
                step.backward(loss_of(parts, step.number))
                assert all(one.grad is None for one in parts.parameters())
                step.backward(loss_of(parts, step.number, 1))
                assert step.end().applied
            job.pull()
            assert job.copies == 0
    assert all(torch.allclose(one, other, rtol=0, atol=1e-6) for one, other in zip(whole.parameters(),
                                                                                   parts.parameters()))


def test_a_second_backward_without_accumulate_is_refused_with_a_sentence():
    net = new_net()
    with ampd.testing.server() as server, joined(server, "net", net) as job:
        step = job.begin()
        step.backward(loss_of(net, 1))
        raises(ampd.WrongState, lambda: step.backward(loss_of(net, 2)), "accumulate", "parameter 2.")


def test_a_gradient_that_another_loss_has_left_is_told_once():
    net = new_net()
    with ampd.testing.server() as server, told() as lines:
        for name, wanted, options in (("left", 1, {}), ("left-in-parts", 1, {"accumulate": 2}), ("cleared", 0, {})):
            lines.clear()
            with joined(server, name, net, **options) as job:
                for step in job.steps():
                    if step.number % 2 == 0:  # as a GAN's generator does, whose loss goes through the discriminator
                        loss_of(net, 9).backward()
                    if name == "cleared":
                        net.zero_grad(set_to_none=True)
                    step.backward(loss_of(net, step.number))
            assert [line.partition(", which")[0] for line in lines] == [
                "%s: parameter 0.weight had a gradient before step.backward" % name] * wanted, lines


def test_two_losses_of_different_parameters_are_told_of_nothing():
    pair = torch.nn.ModuleList([new_net(), new_net()])
    with ampd.testing.server() as server, told() as lines, joined(server, "pair", pair, max_steps=2) as job:
        for step in job.steps():
            for net in pair:
                step.backward(loss_of(net, step.number))
        assert lines == []


def test_a_loss_that_is_no_tensor_and_one_of_a_step_that_has_ended_are_refused():
    net = new_net()
    with ampd.testing.server() as server, joined(server, "m", net) as job:
        first = job.begin()
        raises(ampd.InvalidArgument, lambda: first.backward(3.0), "the loss is 3.0", "tensor")
        first.backward(loss_of(net, 1))
        assert first.end().applied
        second = job.begin()
        raises(ampd.WrongState, lambda: first.backward(loss_of(net, 2)), "step 1 is over")
        second.backward(loss_of(net, 2))
        assert second.end().applied


def test_a_module_that_goes_to_another_dtype_after_join_trains_on():
    for cast, first, later in (("float32", torch.float32, torch.bfloat16), ("bfloat16", torch.bfloat16, torch.float32),
                               ("float32", torch.bfloat16, torch.float32)):
        with ampd.testing.server() as server:
            still = new_net(first)
            by_steps(server, "still", still, cast=cast, scaler=ampd.NoScaler())
            net = new_net(first)
            with joined(server, "moved", net, cast=cast, scaler=ampd.NoScaler()) as job:
                for step in job.steps():
                    for name, one in net.named_parameters():
                        bits = torch.from_dlpack(job.parameters.dlpack(name))
                        assert torch.equal(one, bits.to(one.dtype)), (cast, first, step.number, name)
                    if step.number in (2, 4):
                        net.to(later if step.number == 2 else first)
                    step.backward(loss_of(net, step.number))
                    assert step.end().norm > 0, (cast, first, step.number)


def test_a_step_without_a_gradient_and_one_that_is_not_ended_are_told_once():
    net = new_net()
    with ampd.testing.server() as server, joined(server, "net", net) as job:
        with told() as lines:
            for step in job.steps():
                loss_of(net, step.number).backward()
                if step.number == 2:
                    break
            job.begin().end()
        assert len(lines) == 2, lines
        assert "step 1" in lines[0] and "step.backward(loss)" in lines[0], lines
        assert "step 2" in lines[1] and "step.end()" in lines[1] and "interrupted" in lines[1], lines


def test_a_model_that_is_done_already_is_told():
    with ampd.testing.server() as server:
        with told() as lines:
            by_steps(server, "net", new_net())
        assert not lines, lines
        with told() as lines:
            assert by_steps(server, "net", new_net()) == []
        assert len(lines) == 1 and "delete" in lines[0], lines


def test_a_step_with_an_inf_is_skipped_and_leaves_the_values():
    net = new_net()
    with ampd.testing.server() as server, joined(server, "net", net, cast="float16", max_steps=2) as job:
        step = job.begin()
        before = copy.deepcopy(net)
        step.backward(loss_of(net, 1) * float("inf"))
        result = step.end()
        assert result.skipped and result.new_scale == result.scale / 2 and result.overflows
        job.begin()
        assert same(net, before)


def test_state_dicts_load_into_the_module():
    with ampd.testing.server() as server:
        for dtype in DTYPES:
            net, other = new_net(dtype), new_net(dtype)
            with joined(server, str(dtype).rpartition(".")[2], net, cast=dtype) as job:
                for step in job.steps():
                    state = job.state_dict(masters=False)  # in a step: its values
                    assert all(torch.equal(state[name], one.float()) for name, one in net.named_parameters())
                    step.backward(loss_of(net, step.number))
                state = job.state_dict(masters=False)
                other.load_state_dict(state)
                assert same(net, other) and all(one.dtype == torch.float32 for one in state.values())
                net.load_state_dict(state)
                assert same(net, other)
                other.load_state_dict(job.state_dict())
                assert same(net, other)


def test_a_module_that_is_not_the_models_gets_a_sentence():
    with ampd.testing.server() as server, joined(server, "net", new_net()):
        wider = torch.nn.Sequential(torch.nn.Linear(4, 9))
        raises(ampd.AlreadyExists, lambda: joined(server, "net", wider), "net")
        with joined(server, "arrays", {"weight": torch.zeros(2, 2).numpy()}) as job:
            step = job.begin()
            raises(ampd.WrongState, lambda: step.backward(torch.zeros(())), "no torch module")


def test_values_may_be_tensors_of_any_kind_but_without_values():
    net = new_net(torch.bfloat16)
    with ampd.testing.server() as server:
        with joined(server, "dict", dict(net.named_parameters())) as job:
            job.begin()
            assert all((torch.from_numpy(job.parameters[name]) == one).all() for name, one in net.named_parameters())
        net[2].to_empty(device="meta")
        raises(ampd.InvalidArgument, lambda: joined(server, "meta", net), "parameter 2.weight is on the meta device")
        raises(ampd.InvalidArgument, lambda: joined(server, "meta", {"w": net[2].weight}), "the value of w", "meta")


def test_gradients_in_float64_are_converted_where_a_dtype_is_asked_for():
    net = new_net(torch.float64)
    with ampd.testing.server() as server:
        with joined(server, "single", net, gradients=torch.float32, max_steps=1) as job:
            for step in job.steps():
                step.backward(loss_of(net, 1).double())
                assert step.end().applied and job.copies == 4
        with joined(server, "plain", net) as job:
            step = job.begin()
            raises(ampd.InvalidArgument, lambda: step.backward(loss_of(net, 1).double()), "float64", "gradients=")


def test_a_job_and_its_module_are_freed():
    with ampd.testing.server() as server:
        net = new_net()
        job = joined(server, "net", net)
        for step in job.steps():
            step.backward(loss_of(net, step.number))
        job.leave()
        alive, memory = weakref.ref(job), weakref.ref(job.memory.buffer)
        del job, step
        gc.collect()
        assert alive() is None and memory() is not None  # the module's values
        loss_of(net, 1).backward()
        assert net[0].weight.grad is not None
        del net
        gc.collect()
        assert memory() is None


# ---- several workers ----

def workers(server, name, ranks=2, **options):
    """(nets, results of each rank): each worker is a thread with a connection of its own."""
    nets, results, failures = [new_net() for _ in range(ranks)], [None] * ranks, []

    def work(rank):
        try:
            results[rank] = by_steps(server, name, nets[rank], lambda net, number: loss_of(net, number, rank),
                                     rank=rank, world_size=ranks, **options)
        except BaseException as error:  # told by the test
            failures.append(error)

    threads = [threading.Thread(target=work, args=(rank,), daemon=True) for rank in range(ranks)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(120)
    assert not failures and not any(one.is_alive() for one in threads), failures
    return nets, results


def test_two_workers_have_the_same_values_and_train_on_the_mean():
    alone = new_net()
    with ampd.testing.server() as server:
        nets, results = workers(server, "two")
        assert same(*nets) and results[0] == results[1]
        by_steps(server, "alone", alone, lambda net, number: (loss_of(net, number) + loss_of(net, number, 1)) / 2)
    assert all(torch.allclose(one, other, rtol=0, atol=1e-6) for one, other in zip(nets[0].parameters(),
                                                                                   alone.parameters()))


def test_weights_count_where_weighting_is_pushed():
    nets, alone = [new_net(), new_net()], new_net()
    with ampd.testing.server() as server:
        def options(rank):
            return {"rank": rank, "world_size": 2, "weighting": "pushed"}

        with joined(server, "two", nets[0], **options(0)) as one, joined(server, "two", nets[1], **options(1)) as other:
            one.set_weight(3)
            for number in range(1, STEPS + 1):
                steps = [one.begin(), other.begin()]
                for rank, step in enumerate(steps):
                    step.backward(loss_of(nets[rank], number, rank))
                ends = threading.Thread(target=steps[1].end)
                ends.start()
                assert steps[0].end().applied
                ends.join(60)
            one.pull()
        by_steps(server, "alone", alone, lambda net, number: loss_of(net, number) * 0.75 + loss_of(net, number, 1) / 4)
    assert all(torch.allclose(one, other, rtol=0, atol=1e-6) for one, other in zip(nets[0].parameters(),
                                                                                   alone.parameters()))


def test_a_step_ends_with_a_quorum_and_the_other_is_late():
    nets = [new_net(), new_net()]
    with ampd.testing.server() as server:
        options = {"world_size": 2, "quorum": 1}
        with joined(server, "two", nets[0], rank=0, **options) as fast, \
                joined(server, "two", nets[1], rank=1, **options) as slow:
            late = slow.begin()
            late.backward(loss_of(nets[1], 1, 1))
            for step in fast.steps():
                step.backward(loss_of(nets[0], step.number))
                assert step.end().applied
            result = late.end()
            assert result.verdict == "late" and not result.applied and "too late" in result.explain(), result
            assert slow.begin() is None and fast.pull() == slow.pull() == STEPS
    assert same(*nets)


# ---- torch.cuda.amp's way ----

def by_scaler(server, name, net, between=lambda optimizer, scaler: None, **options):
    """The loop of ampd/amp.py, with something between backward and step. Returns what step returned."""
    applied = []
    with joined(server, name, net, **options) as job:
        optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
        number = 0
        while not optimizer.done:
            number += 1
            optimizer.zero_grad()
            loss = loss_of(net, number)
            scaler.scale(loss).backward()
            between(optimizer, scaler)
            applied.append(scaler.step(optimizer))
            scaler.update()
        assert number == STEPS
        raises(ampd.WrongState, optimizer.step, "done")
    return applied


def test_the_loop_with_a_scaler_gives_the_values_of_steps():
    with ampd.testing.server() as server:
        for cast in ("float32", "float16", "bfloat16"):
            mine, its = new_net(), new_net()
            by_steps(server, "steps-" + cast, its, cast=cast)
            assert by_scaler(server, "scaler-" + cast, mine, cast=cast) == [True] * STEPS
            assert same(mine, its), cast  # the last step's too: no pull of one's own


def test_the_loss_is_told_by_itself_as_the_sum_of_what_was_scaled():
    with ampd.testing.server() as server:
        net = new_net()
        with joined(server, "steps", net, max_steps=2) as job:
            losses = []
            for step in job.steps():
                loss = loss_of(net, step.number)
                losses.append(loss.item())
                step.backward(loss)
            assert [row.loss for row in job.server.history("steps") if row.kind == "step"] == losses
        net = new_net()
        with joined(server, "scaler", net, max_steps=3) as job:
            optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
            losses = []
            for number in range(1, 4):
                halves = [loss_of(net, number) / 2, loss_of(net, number + 7) / 2]
                losses.append(torch.tensor(sum(one.item() for one in halves)).item())  # in float
                for one in scaler.scale(halves):
                    one.backward()
                if number == 3:
                    job.tell_loss(losses[-1] + 1)
                scaler.step(optimizer)
            rows = [row for row in job.server.history("scaler") if row.kind == "step"]
            assert [row.loss for row in rows[:2]] == losses[:2] and abs(rows[2].loss - losses[2] - 1) < 1e-6, rows


def test_unscaled_gradients_can_be_clipped_as_with_torch():
    mine, its = new_net(), new_net()
    norms = []

    def clip(optimizer, scaler):
        scaler.unscale_(optimizer)
        norms.append(torch.nn.utils.clip_grad_norm_(mine.parameters(), 0.5).item())
        raises(ampd.WrongState, lambda: scaler.unscale_(optimizer), "already")

    with ampd.testing.server() as server:
        results = by_steps(server, "steps", its, cast="float16", clip_norm=0.5)
        by_scaler(server, "scaler", mine, clip, cast="float16")
    assert all(abs(norm - one.norm) < 1e-5 * norm for norm, one in zip(norms, results)), (norms, results)
    assert min(one.clip for one in results) < 1
    assert all(torch.allclose(one, other, rtol=0, atol=1e-3) for one, other in zip(mine.parameters(), its.parameters()))


def test_gradients_in_float16_and_scales_that_are_no_power_of_two_are_not_unscaled():
    with ampd.testing.server() as server:
        half = new_net(torch.float16)
        with joined(server, "half", half, cast="float16", scaler=ampd.StaticScaler(1024.0)) as job:
            optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
            scaler.scale(loss_of(half, 1)).backward()
            raises(ampd.WrongState, lambda: scaler.unscale_(optimizer), "float16", "clip_norm")
            assert scaler.step(optimizer) and not optimizer.unscaled
        net = new_net()
        with joined(server, "odd", net, scaler=ampd.StaticScaler(1000.0)) as job:
            optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
            assert scaler.get_scale() == 1000
            raises(ampd.WrongState, lambda: scaler.unscale_(optimizer), "power of two", "clip_norm")


def test_a_batch_that_is_dropped_behind_unscale_leaves_nothing():
    net = new_net()
    with ampd.testing.server() as server, joined(server, "net", net) as job:
        optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
        scaler.scale(loss_of(net, 1)).backward()
        scaler.unscale_(optimizer)
        optimizer.zero_grad()
        scaler.scale(loss_of(net, 1)).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1e9).item()
        assert scaler.step(optimizer) and abs(optimizer.result.norm - norm) < 1e-5 * norm
        optimizer.zero_grad()
        scaler.scale(loss_of(net, 1)).backward()
        scaler.unscale_(optimizer)
        optimizer.zero_grad()
        scaler.scale(loss_of(net, 1)).backward()
        assert scaler.step(optimizer) and optimizer.result.norm < 2 * norm  # not times the scale once more


def test_the_loss_of_a_batch_that_is_dropped_is_not_told():
    with ampd.testing.server() as server:
        net = new_net()
        with joined(server, "net", net, max_steps=2) as job:
            optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
            while not optimizer.done:
                scaler.scale(loss_of(net, 1) * float("nan")).backward()
                optimizer.zero_grad(set_to_none=True)
                scaled = scaler.scale(loss_of(net, 2) * 0 + 0.5)
                optimizer.zero_grad(set_to_none=True)  # no gradient has come of it yet
                scaled.backward()
                assert scaler.step(optimizer)
            assert [row.loss for row in job.server.history("net") if row.kind == "step"] == [0.5, 0.5]


def test_a_batch_that_is_dropped_behind_unscale_by_the_modules_zero_grad_leaves_nothing_behind_update():
    net = new_net()
    with ampd.testing.server() as server, joined(server, "net", net) as job:
        optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
        for unscales in (True, False):
            scaler.scale(loss_of(net, 1)).backward()
            scaler.unscale_(optimizer)
            norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1e9).item()
            net.zero_grad()
            scaler.update()
            scaler.scale(loss_of(net, 1)).backward()
            if unscales:
                scaler.unscale_(optimizer)
            assert scaler.step(optimizer) and abs(optimizer.result.norm - norm) < 1e-5 * norm, optimizer.result


def test_base_rates_of_groups_may_differ_by_rounding_but_no_more():
    net = new_net()
    groups = [ampd.Group(["2.bias"], lr_factor=3)]
    with ampd.testing.server() as server, joined(server, "net", net, optimizer=ampd.SGD(lr=0.1), groups=groups,
                                                 schedule=ampd.Worker()) as job:
        optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
        assert 0.1 * 3 / 3 != 0.1
        scaler.scale(loss_of(net, 1)).backward()
        assert scaler.step(optimizer)
        optimizer.param_groups[0]["lr"] *= 1.01
        scaler.scale(loss_of(net, 1)).backward()
        raises(ampd.InvalidArgument, lambda: scaler.step(optimizer), "base rates")


def test_a_rate_that_the_server_does_not_use_is_told_once():
    with ampd.testing.server() as server:
        for schedule, lines in ((ampd.Constant(), 1), (ampd.Worker(), 0)):
            net = new_net()
            with told() as said, joined(server, schedule.kind, net, schedule=schedule) as job:
                optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
                scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
                while not optimizer.done:
                    optimizer.zero_grad()
                    scaler.scale(loss_of(net, optimizer.number)).backward()
                    scaler.step(optimizer)
                    assert not said or optimizer.result.step > 2
                    scheduler.step()
            assert len(said) == lines and all("schedule=ampd.Worker()" in one for one in said), said


def test_a_loop_that_is_started_again_goes_on_with_the_number_and_the_rate_of_its_step():
    def run_until(end, name, net, lines):
        with joined(server, name, net, schedule=ampd.Worker()) as job:
            optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
            scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
            for _ in range(optimizer.number - 1):
                scheduler.step()
            for number in iter(lambda: optimizer.number, end):
                optimizer.zero_grad()
                scaler.scale(loss_of(net, number)).backward()
                lines.append((number, optimizer.param_groups[0]["lr"]))
                scaler.step(optimizer)
                scheduler.step()

    with ampd.testing.server() as server, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, of a scheduler before the first step
        cut, whole, again, once = new_net(), new_net(), [], []
        run_until(4, "cut", cut, again)
        run_until(None, "cut", cut, again)
        run_until(None, "whole", whole, once)
        assert again == once == [(number, 0.1 * 0.5 ** (number - 1)) for number in range(1, STEPS + 1)], again
        assert same(cut, whole)


def test_a_skipped_step_returns_false_and_leaves_the_values():
    net = new_net()
    with ampd.testing.server() as server, joined(server, "net", net, cast="float16") as job:
        optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
        before, scale = copy.deepcopy(net), scaler.get_scale()
        for unscaled in (False, True):
            scaler.scale(loss_of(net, 1) * float("inf")).backward()
            if unscaled:
                scaler.unscale_(optimizer)
            assert scaler.step(optimizer) is False and optimizer.result.skipped
            scaler.update()
            assert same(net, before)
        assert scaler.get_scale() == scale / 4
        scaler.scale(loss_of(net, 1)).backward()
        assert scaler.step(optimizer) is True and not same(net, before)


def test_gradients_of_several_backwards_are_added_up_by_torch_before_a_step():
    mine, its = new_net(), new_net()
    with ampd.testing.server() as server:
        by_steps(server, "steps", its, lambda net, number: loss_of(net, number) + loss_of(net, number, 1))
        with joined(server, "scaler", mine) as job:
            optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
            for number in range(1, STEPS + 1):
                for rank in range(2):
                    scaler.scale(loss_of(mine, number, rank)).backward()
                assert scaler.step(optimizer)
    assert all(torch.allclose(one, other, rtol=0, atol=1e-6) for one, other in zip(mine.parameters(), its.parameters()))


def test_what_torch_asks_of_an_optimizer_and_a_scaler_is_answered():
    net = new_net()
    with ampd.testing.server() as server, joined(
            server, "net", net, optimizer=ampd.AdamW(0.01, weight_decay=0.1), cast="float16",
            groups=[ampd.Group(["2.bias"], "last", lr_factor=0.5)],
            no_decay=lambda name, one: one.ndim == 1) as job:
        optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
        rows = [(group["name"], group["lr"], group["weight_decay"], len(group["params"]))
                for group in optimizer.param_groups]
        assert sorted(rows) == [("default", 0.01, 0.1, 2), ("last", 0.005, 0.0, 1), ("no_decay", 0.01, 0.0, 1)], rows
        assert optimizer.step(lambda: scaler.scale(loss_of(net, 1)).backward() or 1.5) == 1.5
        assert optimizer.result.applied and optimizer.state_dict() == {"step": 2, "model": "net"}
        assert set(scaler.state_dict()) == {"scale", "growth_factor", "backoff_factor", "growth_interval",
                                            "_growth_tracker"}
        pair = scaler.scale([torch.ones(2), torch.ones(())])
        assert [one.max().item() for one in pair] == [scaler.get_scale()] * 2 and scaler.is_enabled()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            optimizer.load_state_dict({})
            scaler.load_state_dict({})
        assert len(caught) == 2 and all("server" in str(one.message) for one in caught)
        state = job.state_dict(masters=False)  # a step is always in hand here
        assert all(torch.equal(state[name], one) for name, one in net.named_parameters())


def test_an_optimizer_wants_a_module_and_a_scaler_a_step():
    with ampd.testing.server() as server, joined(server, "line", {"w": torch.zeros(3).numpy()}) as job:
        raises(ampd.WrongState, lambda: ampd.Optimizer(job), "no torch module")
        raises(ampd.WrongState, lambda: ampd.GradScaler(job).scale(torch.ones(())), "ampd.Optimizer")
        net = new_net()
        theirs = torch.optim.SGD(net.parameters(), lr=1.0)
        raises(ampd.InvalidArgument, lambda: ampd.Optimizer(net.parameters()), "generator", "ampd.join")
        raises(ampd.InvalidArgument, lambda: ampd.GradScaler(theirs), "SGD", "ampd.join")
        raises(ampd.InvalidArgument, lambda: ampd.GradScaler(job).step(theirs), "SGD", "ampd.Optimizer(job)")
        assert same(net, new_net())


def test_a_scaler_of_another_model_is_refused():
    nets = {"generator": new_net(), "discriminator": new_net()}
    with ampd.testing.server() as server, contextlib.ExitStack() as stack:
        jobs = {name: stack.enter_context(joined(server, name, net)) for name, net in nets.items()}
        scaler, optimizer = ampd.GradScaler(jobs["generator"]), ampd.Optimizer(jobs["discriminator"])
        for call in (scaler.step, scaler.unscale_):
            raises(ampd.InvalidArgument, lambda call=call: call(optimizer), "that of discriminator",
                   "the scale of generator", "of each job")
        assert optimizer.number == 1


def test_a_loop_that_goes_on_behind_the_end_is_told_so_and_has_the_last_scale():
    net = new_net()
    with ampd.testing.server() as server, joined(server, "net", net, cast="float16", max_steps=1) as job:
        optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
        scaler.scale(loss_of(net, 1) * float("inf")).backward()
        assert not scaler.step(optimizer) and optimizer.done
        scaler.update()
        assert scaler.get_scale() == optimizer.result.new_scale == 32768
        raises(ampd.WrongState, lambda: scaler.scale(loss_of(net, 2)), "max_steps", "optimizer.done")


run(globals())
