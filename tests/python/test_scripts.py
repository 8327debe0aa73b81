"""Scripts of torch that were moved to ampd: what docs/python.md says of them, and what a message says."""
from python_testing import ROOT, eventually, needs, raises, run, told  # (first: it finds the package)

needs("torch", "google.protobuf")

import contextlib
import copy
import gc
import pickle
import random
import re
import signal
from concurrent import futures
from unittest import mock

import ampd
import ampd.job
import ampd.module
import ampd.testing
import torch

STEPS = 4


def new_net():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


def loss_of(net, number):
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(number))
    return (net(x) - x[:, :2]).square().mean()


def joined(server, name, net, **options):
    options = {"optimizer": ampd.SGD(0.1), "cast": "float32", "max_steps": STEPS, **options}
    return ampd.join(server.endpoint, name, net, **options)


def train(job, net, scales=True, until=STEPS):
    optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
    while not optimizer.done and optimizer.number <= until:
        loss = loss_of(net, optimizer.number)
        optimizer.zero_grad()
        (scaler.scale(loss) if scales else loss).backward()
        optimizer.step()
        assert optimizer.result.applied and all(one.grad is None for one in net.parameters())


def test_a_loss_that_was_not_scaled_is_told_once_where_there_is_a_scale():
    with ampd.testing.server() as server:
        for name, scaler, scales, lines in (("forgotten", None, False, 1), ("scaled", None, True, 0),
                                            ("none", ampd.NoScaler(), False, 0)):
            net = new_net()
            with told() as said, joined(server, name, net, cast="float16", scaler=scaler) as job:
                train(job, net, scales)
            assert len(said) == lines and all("step 1 was not given to GradScaler.scale" in one for one in said), said


def test_values_that_a_program_writes_into_parameters_are_told_once():
    with ampd.testing.server() as server, told() as said:
        for name, before, lines in (("before", True, 0), ("behind", False, 1)):
            net, state = new_net(), new_net().state_dict()
            if before:
                net.load_state_dict(state)
            said.clear()
            with joined(server, name, net) as job:
                job.pull()
                if not before:
                    net.load_state_dict(state)
                train(job, net, until=1)  # the next pull has undone it
                assert not said, said
                optimizer = ampd.Optimizer(job)
                said.clear()  # of the step that is begun again
                for _ in range(2):
                    if not before:
                        net.load_state_dict(state)
                    ampd.GradScaler(job).scale(loss_of(net, 2)).backward()
                    optimizer.step()
            assert len(said) == lines and all("parameter 0.weight" in one and "before ampd.join" in one
                                              for one in said), said


def test_values_that_are_written_back_are_told_of_nothing_where_the_module_has_a_copy_of_what_was_pulled():
    with ampd.testing.server() as server:
        for cast, back, lines in (("float16", True, 0), ("float16", False, 1), ("float32", True, 1)):
            net = new_net()
            with told() as said, joined(server, "%s-%s" % (cast, back), net, cast=cast) as job:
                optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
                while not optimizer.done:
                    kept = copy.deepcopy(net.state_dict())  # an evaluation with averages, for example
                    net.load_state_dict(new_net().state_dict())
                    if back:
                        net.load_state_dict(kept)
                    scaler.scale(loss_of(net, optimizer.number)).backward()
                    scaler.step(optimizer)
            assert len(said) == lines and all("has written to" in one for one in said), (cast, back, said)


def test_a_pull_for_an_evaluation_in_a_step_is_refused_with_what_to_do():
    net = new_net()
    with ampd.testing.server() as server, joined(server, "net", net) as job:
        step = job.begin()
        raises(ampd.WrongState, job.pull, "step 1 is in hand", "evaluate with those", "step.end()")
        step.backward(loss_of(net, 1))
        assert step.end().applied and job.pull() == 1


def test_a_saved_module_that_is_loaded_before_join_brings_its_buffers_and_the_server_the_parameters():
    with ampd.testing.server() as server, told() as said:
        net, whole = new_net(), new_net()
        with joined(server, "cut", net, checkpoint_every=1) as job:
            train(job, net, until=2)
            saved = copy.deepcopy(net.state_dict())
        again = new_net()
        again.load_state_dict(saved)
        with torch.no_grad():
            again[0].weight.fill_(9)  # of another moment than the buffers
        with joined(server, "cut", again, checkpoint_every=1) as job:
            train(job, again)
        with joined(server, "whole", whole, checkpoint_every=1) as job:
            train(job, whole)
        assert said == []
    mine, its = again.state_dict(), whole.state_dict()
    assert all(torch.equal(mine[name], its[name]) for name in its), (mine, its)


def test_a_loop_that_is_interrupted_anywhere_and_run_again_ends_with_the_same_bytes():
    def run_once(job, net, interrupted):
        optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
        while not optimizer.done:
            try:
                try:
                    if interrupted:
                        armed.append(True)
                        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.0003, 0.006))
                    while (number := optimizer.number) is not None:
                        loss = loss_of(net, number)
                        optimizer.zero_grad()
                        scaler.scale(loss).backward()
                        scaler.step(optimizer)
                finally:
                    armed.clear()
            except KeyboardInterrupt:
                interrupts.append(optimizer.number)
            except ampd.WrongState as error:
                assert "compute it again" in str(error) or "is done" in str(error), error

    def interrupt(number, frame):
        if armed:
            raise KeyboardInterrupt

    armed, interrupts, nets = [], [], []
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with ampd.testing.server() as server:
            for name in ("whole", "cut"):
                torch.manual_seed(3)
                nets.append(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2)))
                with joined(server, name, nets[-1], cast="float16", max_steps=30) as job:
                    run_once(job, nets[-1], name == "cut")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupts and all(torch.equal(one, other) for one, other in zip(nets[0].parameters(),
                                                                            nets[1].parameters())), interrupts


def test_the_loop_over_a_data_loader_in_the_docs_has_each_steps_data_through_restarts_and_rollbacks():
    page = (ROOT / "docs" / "python.md").read_text()
    loop = re.search(r"```python\n(while not optimizer.done:\n    epoch = .*?)```", page, re.DOTALL)[1]
    nets, data = [], [(torch.full((1,), float(i)), 0) for i in range(6)]

    class Rolled(ampd.Optimizer):
        """At one step of it an operator puts the model back, at another one its script ends."""

        def step(self):
            if self.number == at.get("ends"):
                raise SystemExit
            super().step()
            if self.number == at.get("rolls", 0):
                del at["rolls"]
                self.job.server.rollback(self.job.name, 4)

    def loss_of(made, y):
        return made.square().mean()

    with ampd.testing.server() as server:
        for name, changes in (("whole", [{}]), ("cut", [{"ends": 3}, {"ends": 9}, {"rolls": 10, "ends": 16}, {}])):
            for at in changes:
                torch.manual_seed(3)
                model, sampler = torch.nn.Linear(1, 2), torch.utils.data.DistributedSampler(data, 1, 0, seed=5)
                loader = torch.utils.data.DataLoader(data, sampler=sampler)
                with joined(server, name, model, max_steps=18, checkpoint_every=1, keep_last=18,
                            optimizer=ampd.SGD(1e-3)) as job, contextlib.suppress(SystemExit):
                    exec(loop, {"optimizer": Rolled(job), "scaler": ampd.GradScaler(job), "loader": loader,
                                "sampler": sampler, "model": model, "loss_of": loss_of})
            nets.append(model)
    assert all(torch.equal(one, other) for one, other in zip(nets[0].parameters(), nets[1].parameters()))


def test_parameters_in_the_place_of_their_names_are_refused_with_what_to_give():
    net = new_net()
    with ampd.testing.server() as server:
        for options in ({"groups": [ampd.Group(net[0].parameters())]}, {"no_decay": [net[0].bias]}):
            raises(ampd.InvalidArgument, lambda options=options: joined(server, "net", net, **options), "a Parameter",
                   "give names of parameters, as named_parameters() has them")


def test_parts_with_an_optimizer_each_and_one_loss_train_as_in_torch():
    alone = new_net()
    theirs = [torch.optim.SGD(alone[:2].parameters(), lr=0.1), torch.optim.AdamW(alone[2:].parameters(), lr=0.01)]
    for number in range(1, STEPS + 1):
        for one in theirs:
            one.zero_grad()
        loss_of(alone, number).backward()
        for one in theirs:
            one.step()
    with ampd.testing.server() as server, contextlib.ExitStack() as stack, told() as said:
        net = new_net()
        parts = (("first", net[:2], ampd.SGD(0.1)), ("last", net[2:], ampd.AdamW(lr=0.01)))
        jobs = [stack.enter_context(joined(server, name, part, optimizer=optimizer, scaler=ampd.NoScaler()))
                for name, part, optimizer in parts]
        ours = [ampd.Optimizer(job) for job in jobs]
        while not ours[0].done:
            loss_of(net, ours[0].number).backward()
            for one in ours:
                one.step()
        assert said == []
    assert all(torch.allclose(one, other, rtol=0, atol=1e-6) for one, other in zip(net.parameters(),
                                                                                   alone.parameters()))


def test_a_step_that_unscale_has_seen_to_overflow_is_skipped_whatever_is_made_of_its_gradients():
    def clip_values(net):
        torch.nn.utils.clip_grad_value_(net.parameters(), 0.5)

    def clip_norm(net):  # a NaN goes to all
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)

    with ampd.testing.server() as server:
        for act in (clip_values, clip_norm, torch.nn.Module.zero_grad):
            for value in (float("inf"), float("nan")):
                net = new_net()
                with joined(server, "%s-%s" % (act.__name__, value), net, cast="float16") as job:
                    optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
                    scaler.scale(loss_of(net, 1)).backward()
                    net[3].weight.grad[1, 2] = value
                    scaler.unscale_(optimizer)
                    act(net)
                    assert scaler.step(optimizer) is False, (act, value)
                    found = [(one.parameter, one.inf_count + one.nan_count, one.first_index)
                             for one in optimizer.result.overflows]
                    assert found == [("3.weight", 1, 10)], (act, value, found)
                    scaler.update()
                    scaler.scale(loss_of(net, 1)).backward()
                    scaler.unscale_(optimizer)
                    assert scaler.step(optimizer)


def test_gradients_that_are_changed_behind_unscale_are_told_once_where_there_are_other_workers():
    def clip(net):
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1e-3)

    def replace(net):
        net[3].bias.grad = net[3].bias.grad.clamp(-1e-3, 1e-3)

    def look(net):
        torch.stack([one.grad.norm() for one in net.parameters()]).norm()

    def train(job, net, act):
        optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
        while not optimizer.done:
            scaler.scale(loss_of(net, 2 * optimizer.number + job.rank)).backward()
            scaler.unscale_(optimizer)
            act(net)
            scaler.step(optimizer)
            scaler.update()

    with ampd.testing.server() as server:
        for act, workers, lines in ((clip, 2, 2), (replace, 2, 2), (look, 2, 0), (clip, 1, 0)):
            nets = [new_net() for _ in range(workers)]
            with told() as said, contextlib.ExitStack() as stack, futures.ThreadPoolExecutor(workers) as pool:
                jobs = [stack.enter_context(joined(server, "%s-%d" % (act.__name__, workers), net, cast="float16",
                                                   scaler=ampd.DynamicScaler(init_scale=1024.0), rank=rank,
                                                   world_size=workers)) for rank, net in enumerate(nets)]
                list(pool.map(train, jobs, nets, [act] * workers))
            assert len(said) == lines and all("behind unscale_" in one and "clip_norm=" in one and
                                              "optimizer.result.norm" in one for one in said), (act, workers, said)


def test_unscale_before_there_is_a_gradient_is_refused():
    net = new_net()
    with ampd.testing.server() as server, joined(server, "net", net, cast="float16") as job:
        optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
        raises(ampd.WrongState, lambda: scaler.unscale_(optimizer), "no gradient to unscale in step 1", "backward()")
        scaler.scale(loss_of(net, 1)).backward()
        assert scaler.step(optimizer) and optimizer.result.norm < 100


def test_a_sparse_gradient_is_refused_by_unscale_too():
    net = torch.nn.Embedding(4, 2, sparse=True)
    with ampd.testing.server() as server, joined(server, "net", net, cast="float16") as job:
        optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
        scaler.scale(net(torch.arange(2)).sum()).backward()
        for call in (scaler.unscale_, scaler.step):
            raises(ampd.InvalidArgument, lambda call=call: call(optimizer), "weight is sparse", "sparse=True")


def test_a_script_that_compares_the_scale_around_update_sees_a_skipped_step():
    net = new_net()
    with ampd.testing.server() as server, joined(server, "net", net, cast="float16", max_steps=3) as job:
        optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
        for factor, updates in ((float("inf"), True), (1.0, True), (1.0, False)):
            scale = scaler.get_scale()
            scaler.scale(loss_of(net, 1) * factor).backward()
            applied = scaler.step(optimizer)
            assert scaler.get_scale() == scale
            if updates:
                scaler.update()
                assert (scaler.get_scale() < scale) == (not applied) == (factor != 1.0)


def test_the_scale_of_a_step_that_was_rolled_back_stays_until_update():
    net = new_net()
    with ampd.testing.server() as server, joined(server, "net", net, cast="float16", checkpoint_every=1) as job:
        optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
        scale = scaler.get_scale()
        for verdict in ("applied", "rolled_back"):
            scaler.scale(loss_of(net, 1)).backward()
            if verdict == "rolled_back":
                assert eventually(lambda: any(one.step == 1 for one in job.server.checkpoints("net")))
                job.server.rollback("net", 1)
            scaler.step(optimizer)
            assert (optimizer.result.verdict, scaler.get_scale()) == (verdict, scale)
            scaler.update()


def test_a_step_that_is_cut_off_behind_its_verdict_can_be_called_again():
    net = new_net()
    with ampd.testing.server() as server, joined(server, "net", net) as job:
        optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
        call, end = job.client.call, ampd.job.lib.ampclient_step_end

        def cut_off(function, *arguments, **options):
            call(function, *arguments, **options)
            if function == end:
                raise KeyboardInterrupt  # as Python does when a signal has come while the library waited

        for number in (1, 2):
            scaler.scale(loss_of(net, number)).backward()
            with mock.patch.object(job.client, "call", cut_off), contextlib.suppress(KeyboardInterrupt):
                scaler.step(optimizer)
                raise AssertionError("nothing was cut off")
            assert scaler.step(optimizer) and optimizer.result.step == number == optimizer.number - 1


def test_the_last_pull_comes_where_it_was_cut_off_by_the_next_call():
    net, whole = new_net(), new_net()

    def cut_off(function, *arguments, **options):
        if function == ampd.job.lib.ampclient_pull:
            raise KeyboardInterrupt
        return call(function, *arguments, **options)

    with ampd.testing.server() as server:
        with joined(server, "whole", whole, max_steps=2) as job:
            train(job, whole)
        for name, again in (("step", lambda optimizer, scaler: optimizer.step()),
                            ("scale", lambda optimizer, scaler: scaler.scale(loss_of(net, 3))),
                            ("optimizer", lambda optimizer, scaler: ampd.Optimizer(optimizer.job))):
            net.load_state_dict(new_net().state_dict())
            with joined(server, name, net, max_steps=2) as job:
                train(job, net, until=1)
                optimizer, scaler, call = ampd.Optimizer(job), ampd.GradScaler(job), job.client.call
                scaler.scale(loss_of(net, 2)).backward()
                with mock.patch.object(job.client, "call", cut_off), contextlib.suppress(KeyboardInterrupt):
                    scaler.step(optimizer)
                    raise AssertionError("nothing was cut off")
                assert optimizer.result.step == 2 and not optimizer.done
                with contextlib.suppress(ampd.WrongState):  # the model is done
                    again(optimizer, scaler)
                assert name == "optimizer" or optimizer.done
                assert all(torch.equal(one, other) for one, other in zip(net.parameters(), whole.parameters())), name


def test_an_optimizer_in_whose_place_another_one_was_made_says_so():
    net = new_net()
    with ampd.testing.server() as server, joined(server, "net", net) as job:
        before, optimizer = ampd.Optimizer(job), ampd.Optimizer(job)
        loss_of(net, 1).backward()
        raises(ampd.WrongState, before.step, "another ampd.Optimizer", "one of a job")
        optimizer.step()
        assert optimizer.result.applied


def test_a_scaler_that_is_not_enabled_is_for_a_model_without_a_scale():
    with ampd.testing.server() as server:
        nets, net = [], new_net()
        with joined(server, "scaled", net, cast="float16") as job:
            raises(ampd.InvalidArgument, lambda: ampd.GradScaler(job, enabled=False), "scaled has a loss scale",
                   "scaler=ampd.NoScaler()")
            raises(ampd.InvalidArgument, lambda: ampd.GradScaler(job, init_scale=1024.0, enabled=True), "init_scale",
                   "scaler=ampd.DynamicScaler(")
        for enabled in (True, False):
            nets.append(new_net())
            with joined(server, "plain-%s" % enabled, nets[-1]) as job:
                optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job, enabled=enabled)
                assert scaler.is_enabled() == enabled and scaler.get_scale() == 1
                assert bool(scaler.state_dict()) == enabled
                while not optimizer.done:
                    scaler.scale(loss_of(nets[-1], 1)).backward()
                    scaler.unscale_(optimizer)
                    if not enabled:
                        scaler.unscale_(optimizer)  # it does nothing, as torch's
                        scaler.load_state_dict({})
                    assert scaler.step(optimizer)
                    scaler.update()
        assert all(torch.equal(one, other) for one, other in zip(nets[0].parameters(), nets[1].parameters()))


def test_all_that_torchs_scaler_has_is_there():
    names = {name for name in dir(torch.cuda.amp.GradScaler) if not name.startswith("_")}
    assert names <= set(dir(ampd.GradScaler)), names - set(dir(ampd.GradScaler))
    net = new_net()
    with ampd.testing.server() as server, joined(server, "net", net, cast="float16",
                                                 scaler=ampd.DynamicScaler(growth_interval=100)) as job:
        optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
        for name, value in (("growth_factor", 2.0), ("backoff_factor", 0.5), ("growth_interval", 100)):
            assert getattr(scaler, "get_" + name)() == value
            getattr(scaler, "set_" + name)(value)
            raises(ampd.WrongState, lambda name=name: getattr(scaler, "set_" + name)(3), "%s of net" % name,
                   "DynamicScaler(%s=3)" % name)
        for wrong in (3.0, "loss"):
            raises(ampd.InvalidArgument, lambda wrong=wrong: scaler.scale(wrong), repr(wrong), "give a tensor")
        assert optimizer.number == 1


def test_a_rate_that_is_no_number_is_refused_as_such_and_the_step_goes_on():
    net = new_net()
    with ampd.testing.server() as server, joined(server, "net", net, groups=[ampd.Group(["0.bias"], lr_factor=2.0)],
                                                 schedule=ampd.Worker()) as job:
        optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
        given = [group["lr"] for group in optimizer.param_groups]
        loss_of(net, 1).backward()
        for wrong, words in ((float("nan"), "A learning rate of nan"), (float("inf"), "A learning rate of inf"),
                             (None, "is None"), ("a", "is 'a'"), (torch.ones(2), "is tensor([1., 1.])")):
            for changed in (optimizer.param_groups[:1], optimizer.param_groups):
                for group, rate in zip(optimizer.param_groups, given):
                    group["lr"] = wrong if group in changed else rate
                raises(ampd.InvalidArgument, optimizer.step, words, "give ")
        for group, rate in zip(optimizer.param_groups, given):
            group["lr"] = rate
        optimizer.step()
        assert optimizer.result.applied
        for wrong in ("large", torch.ones(2)):
            raises(ampd.InvalidArgument, lambda wrong=wrong: scaler.update(wrong), "the scale is", "give one number")


def test_what_torchs_optimizers_and_scaler_are_made_with_is_refused_with_where_it_goes():
    net = new_net()
    for make in (ampd.GradScaler, ampd.Optimizer):
        for given, values in (((), {}), (("cuda",), {}), ((), {"device": "cuda"}), ((), {"init_scale": 2.0}),
                              ((net.parameters(), 0.1), {}), ((net.parameters(),), {"lr": 0.1})):
            raises(ampd.InvalidArgument, lambda make=make, given=given, values=values: make(*given, **values),
                   "ampd.%s is made with" % make.__name__, "give it what ampd.join returns")
    for make in (ampd.SGD, ampd.Adam, ampd.AdamW, ampd.Adagrad, ampd.RMSprop, ampd.Lion):
        for given, values in ((net.parameters(), {"lr": 0.1}), (net.parameters(), {}), (list(net.parameters()), {})):
            raises(ampd.InvalidArgument, lambda make=make, given=given, values=values: make(given, **values),
                   "ampd.%s(lr=" % make.__name__, "ampd.join has the module")
        raises(ampd.InvalidArgument, lambda make=make: make(lr=0.1, amsgrad=True, fused=True), "no amsgrad, fused",
               "leave it out")
        assert pickle.loads(pickle.dumps(make(0.1))) == copy.deepcopy(make(0.1)) == make(lr=0.1)
    with ampd.testing.server() as server, joined(server, "net", net) as job:
        for make in (ampd.GradScaler, ampd.Optimizer):
            raises(ampd.InvalidArgument, lambda make=make: make(job, 0.1), "0.1", "ampd.join")
        raises(ampd.InvalidArgument, lambda: ampd.Optimizer(job, lr=0.1), "no lr", "ampd.join optimizer=")


def test_a_job_in_what_is_copied_or_saved_is_refused_by_its_name():
    net = new_net()
    with ampd.testing.server() as server, joined(server, "net", net) as job:
        net.job = job
        for copied in (copy.deepcopy, pickle.dumps):
            for what in (net, job, ampd.GradScaler(job), ampd.Optimizer(job)):
                raises(ampd.WrongState, lambda copied=copied, what=what: copied(what), "the job net", "keep it outside")
        del net.job
        assert torch.equal(copy.deepcopy(net)[0].weight, net[0].weight)


def test_a_loss_that_a_scaler_has_scaled_is_refused_by_what_scales_it_too():
    with ampd.testing.server() as server:
        for name, scaler in (("scaled", ampd.DynamicScaler()), ("plain", ampd.NoScaler())):
            net = new_net()
            with joined(server, name, net, scaler=scaler) as job:
                own = ampd.GradScaler(job)
                for step in job.steps():
                    if step.scale != 1:
                        raises(ampd.InvalidArgument, lambda step=step: step.backward(own.scale(loss_of(net, 1))),
                               "GradScaler.scale", "give it the loss itself")
                        step.backward(loss_of(net, step.number))
                    else:
                        step.backward(own.scale(loss_of(net, step.number)))
                    assert step.end().applied and step.result.norm < 100, step.result
                assert step.number == STEPS


def test_a_parameter_that_was_replaced_or_came_after_join_is_told_as_such():
    def replace(net):
        net[0].weight = torch.nn.Parameter(net[0].weight.detach().clone())

    def add(net):
        net.append(torch.nn.Linear(2, 2))

    with ampd.testing.server() as server:
        for act, name in ((replace, "0.weight"), (torch.nn.utils.weight_norm, "weight_g"), (add, "4.weight")):
            net = torch.nn.Linear(4, 2) if name == "weight_g" else new_net()
            with told() as said, joined(server, act.__name__, net) as job:
                act(net)
                for step in job.steps():
                    step.backward(loss_of(net, step.number))
            assert len(said) == 1 and "parameter %s is not trained" % name in said[0] and "replaced" in said[0], said


def test_the_server_of_a_job_that_has_left_names_the_connection_that_has_it():
    net = new_net()
    with ampd.testing.server() as server:
        with joined(server, "net", net) as job:
            for step in job.steps():
                step.backward(loss_of(net, step.number))
        for call in (job.state_dict, job.status, step.result.explain, lambda: job.server):
            error = raises(ampd.WrongState, call, "this job has left net")
            assert error.remedy == "ampd.connect(%r) has what job.server has: masters('net')" % server.endpoint, error
        raises(ampd.WrongState, lambda: job.state_dict(masters=False), "this job has left net")
        with ampd.connect(server.endpoint) as operator:
            assert operator.masters("net").keys() == dict(net.named_parameters()).keys()


def test_a_loss_that_the_scaler_of_another_model_has_scaled_by_the_same_fixed_scale_is_told_of_nothing():
    for scaler, lines in ((ampd.StaticScaler(1024.0), 0), (ampd.DynamicScaler(init_scale=1024.0), 1)):
        with ampd.testing.server() as server, contextlib.ExitStack() as stack, told() as said:
            net = new_net()
            jobs = [stack.enter_context(joined(server, name, part, scaler=scaler))
                    for name, part in (("first", net[:2]), ("last", net[2:]))]
            optimizers, first = [ampd.Optimizer(job) for job in jobs], ampd.GradScaler(jobs[0])
            while not optimizers[0].done:
                first.scale(loss_of(net, optimizers[0].number)).backward()
                for one in optimizers:
                    one.step()
        assert len(said) == lines and all("last: the loss of step 1 was not given" in one for one in said), said


def test_a_loss_that_is_not_scaled_after_one_that_was_is_told_with_a_fixed_scale_too():
    for kind in (ampd.StaticScaler(1024.0), ampd.DynamicScaler(init_scale=1024.0)):
        net = new_net()
        with ampd.testing.server() as server, joined(server, "net", net, scaler=kind) as job, told() as said:
            optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
            while not optimizer.done:
                loss = loss_of(net, optimizer.number)
                (scaler.scale(loss) if optimizer.number == 1 else loss).backward()
                optimizer.step()
        assert len(said) == 1 and "the loss of step 2 was not given" in said[0], said


def test_the_loss_of_a_batch_that_had_no_backward_is_not_told():
    net = new_net()
    with ampd.testing.server() as server, joined(server, "net", net, cast="float16", max_steps=2) as job:
        optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
        losses = []
        while not optimizer.done:
            scaler.scale(loss_of(net, 1) * float("nan"))  # and the program looks at it, and takes another batch
            if optimizer.number == 2:
                optimizer.zero_grad()
            loss = loss_of(net, 2)
            losses.append(loss.item())
            scaler.scale(loss).backward()
            assert scaler.step(optimizer)
        assert [row.loss for row in job.server.history("net") if row.kind == "step"] == losses


def test_gradients_that_are_changed_behind_a_backward_that_has_sent_them_are_told_once():
    def clip(net):
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.01)

    def replace(net):
        net[0].weight.grad = net[0].weight.grad.clamp(-0.01, 0.01)

    def other_loss(net):
        loss_of(net, 9).backward()

    def clear(net):
        net.zero_grad(set_to_none=True)

    with ampd.testing.server() as server:
        for act, accumulate, lines in ((clip, 1, 1), (replace, 1, 1), (other_loss, 1, 1), (clear, 1, 0), (clip, 2, 0)):
            net = new_net()
            with told() as said, joined(server, "%s-%d" % (act.__name__, accumulate), net,
                                        accumulate=accumulate) as job:
                for step in job.steps():
                    net.zero_grad(set_to_none=True)
                    step.backward(loss_of(net, step.number))
                    act(net)
            assert len(said) == lines and all("the gradient of parameter " in one and "clip_norm=" in one
                                              for one in said), (act, said)


def test_a_value_of_param_groups_that_the_server_does_not_use_is_told_once():
    with ampd.testing.server() as server:
        for name, lines in (("weight_decay", 1), ("clip_norm", 1), ("max_momentum", 0)):
            net = new_net()
            with told() as said, joined(server, name, net, schedule=ampd.Worker()) as job:
                optimizer = ampd.Optimizer(job)
                while not optimizer.done:  # as a schedule of the decay does
                    for group in optimizer.param_groups:
                        group[name] = 0.1 * optimizer.number
                    loss_of(net, optimizer.number).backward()
                    optimizer.step()
            assert len(said) == lines and all(name + " of param_groups" in one and "ampd.Group(" in one
                                              for one in said), said


def test_a_training_that_is_ended_early_gets_its_masters_behind_leave_as_the_refusal_says():
    with ampd.testing.server() as server:
        net = new_net()
        with joined(server, "net", net, max_steps=0) as job:
            train(job, net, until=2)
            error = raises(ampd.WrongState, job.state_dict, "step 3", "job.leave()", server.endpoint)
            assert "masters('net')" in error.remedy, error.remedy
            expected = job.state_dict(masters=False)
        with ampd.connect(server.endpoint) as side:
            for name, array in side.masters("net").items():
                assert (torch.from_numpy(array) == expected[name]).all(), name


def test_a_number_that_is_told_behind_the_last_step_of_an_optimizer_is_refused_with_where_it_goes():
    with ampd.testing.server() as server, joined(server, "net", new_net()) as job:
        train(job, job.module.module)
        for tell in (lambda: job.tell_loss(1.0), lambda: job.tell_metric("accuracy", 1.0)):
            raises(ampd.WrongState, tell, "no step has begun", "job.begin()", "ampd.Optimizer before its step()")


def test_a_loss_of_values_that_the_next_ones_have_replaced_is_refused_as_in_torch():
    def second_loss(net, begin, end):
        begin()
        first, second = loss_of(net, 1), loss_of(net, 2)
        end(first)
        begin()
        raises(RuntimeError, second.backward, "modified by an inplace operation")

    for kind, cast in (("the memory itself", "float32"), ("a copy", "bfloat16")):
        with ampd.testing.server() as server:
            net = new_net()
            with joined(server, "steps", net, cast=cast) as job:
                second_loss(net, job.begin, lambda loss: (job._step.backward(loss), job._step.end()))
            net = new_net()
            with joined(server, "optimizer", net, cast=cast) as job:
                optimizer = ampd.Optimizer(job)
                second_loss(net, lambda: None, lambda loss: (loss.backward(), optimizer.step()))
    net = new_net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    second_loss(net, optimizer.zero_grad, lambda loss: (loss.backward(), optimizer.step()))


def test_a_loss_of_a_step_that_is_begun_again_with_the_same_values_is_taken():
    with ampd.testing.server() as server:
        for cast in ("float32", "bfloat16"):
            net = new_net()
            with joined(server, cast, net, cast=cast) as job:
                job.begin()
                loss = loss_of(net, 1)
                step = job.begin()
                step.backward(loss)
                assert step.end().applied


def test_a_loop_inside_of_autocast_computes_with_the_values_of_each_step():
    losses = []
    for whole in (False, True):
        with ampd.testing.server() as server:
            net = new_net()
            with joined(server, "net", net, cast="bfloat16") as job, contextlib.ExitStack() as stack:
                if whole:
                    stack.enter_context(torch.autocast("cpu", torch.bfloat16))
                for step in job.steps():
                    with step.autocast():
                        step.backward(loss_of(net, step.number))
                    losses.append(step.loss.item())
    assert losses[:STEPS] == losses[STEPS:], losses


def test_a_parameter_that_is_in_two_models_is_told_once():
    def by_optimizers(jobs, losses):
        optimizers = [ampd.Optimizer(job) for job in jobs]
        while not optimizers[0].done:
            for optimizer, loss in zip(optimizers, losses):
                optimizer.zero_grad()
                loss().backward()
                optimizer.step()

    def by_steps(jobs, losses):
        for _ in range(STEPS):
            for step, loss in [(job.begin(), loss) for job, loss in zip(jobs, losses)]:
                step.backward(loss())
                step.end()

    with ampd.testing.server() as server:
        for loop in (by_optimizers, by_steps):
            trunk, x = torch.nn.Linear(4, 4), torch.ones(3, 4)
            actor, critic = (torch.nn.ModuleList([trunk, torch.nn.Linear(4, 1)]) for _ in range(2))
            losses = [lambda net=net: net[1](net[0](x)).square().mean() for net in (actor, critic)]
            with told() as said, joined(server, "actor-" + loop.__name__, actor) as first, \
                    joined(server, "critic-" + loop.__name__, critic) as second:
                loop([first, second], losses)
            assert 1 <= len(said) <= 2 and "parameter 0.weight is in the model critic" in said[0], said


def test_of_a_job_that_is_gone_nobody_remembers_what_it_pulled_into():
    gc.collect()  # of the jobs before it
    before = len(ampd.module._pulled_last)
    with ampd.testing.server() as server:
        for name in ("first", "second"):
            net = new_net()
            with joined(server, name, net) as job:
                step = job.begin()
                assert len(ampd.module._pulled_last) == before + len(list(net.parameters()))
                step.backward(net(torch.ones(3, 4)).sum())
                step.end()
            del job, step, net
            gc.collect()
            assert len(ampd.module._pulled_last) == before


def test_a_module_that_is_joined_again_under_another_name_is_told_of_nothing():
    net = new_net()
    with ampd.testing.server() as server, told() as said:
        before = joined(server, "first", net)
        train(before, net, until=2)
        with joined(server, "second", net) as job:
            train(job, net)
        before.leave()
        assert said == []


def test_parameters_that_share_memory_are_told_once():
    def tied_by_a_view(net):
        net[1].weight = torch.nn.Parameter(net[0].weight.t())

    def tied_by_data(net):
        net[1].weight.data = net[0].weight.data.t()

    def tied(net):
        net[1].weight = net[0].weight

    def flat(net):  # next to each other, as those of an LSTM on a device
        both = torch.zeros(32)
        net[0].weight.data, net[1].weight.data = both[:16].view(4, 4), both[16:].view(4, 4)

    with ampd.testing.server() as server:
        for tie, lines in ((tied_by_a_view, 1), (tied_by_data, 1), (tied, 0), (flat, 0)):
            net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
            tie(net)
            for _ in range(2):  # the second time it has been pulled into
                with told() as said, joined(server, tie.__name__, net) as job:
                    job.pull()
                assert len(said) == lines and all("0.weight and 1.weight share memory" in one for one in said), said
                lines = 0


def test_two_losses_of_one_graph_are_added_up_where_it_is_retained():
    def losses_of(net):
        y = net(torch.ones(3, 4))
        return y.square().mean(), y.sum()

    alone = torch.nn.Linear(4, 2)
    net = copy.deepcopy(alone)
    sum(losses_of(alone)).backward()
    with ampd.testing.server() as server, joined(server, "net", net, accumulate=2, max_steps=1) as job:
        for step in job.steps():
            first, second = losses_of(net)
            step.backward(first, retain_graph=True)
            step.backward(second)
            assert step.end().applied
        job.pull()
    for one, other in zip(net.parameters(), alone.parameters()):
        assert torch.allclose(one, other - 0.1 * other.grad, rtol=0, atol=1e-6)


run(globals())
