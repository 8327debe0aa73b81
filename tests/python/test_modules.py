"""What programs do with a torch module beside training it, and what interrupts a step."""
from python_testing import eventually, needs, raises, run, told  # (first: it finds the package)

needs("torch", "google.protobuf")

import contextlib
import copy
import dataclasses
import gc
import io
import logging
import os
import pickle
import signal
import threading
import time
import warnings
import weakref
from unittest import mock

import ampd
import ampd.testing
import torch
from torch.utils.checkpoint import checkpoint
from ampd import _client, _messages, module


def new_net():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


def loss_of(net):
    return net(torch.ones(3, 4, dtype=net[0].weight.dtype)).square().mean()


def joined(server, net, **options):
    options = {"optimizer": ampd.SGD(0.1), "cast": "float32", "max_steps": 100, **options}
    return ampd.join(server.endpoint, "net", net, **options)


def train(job, net, steps=1):
    for _ in range(steps):
        step = job.begin()
        step.backward(loss_of(net))
        assert step.end().applied
    job.pull()


def is_as_pulled(job, net):
    return all((torch.from_numpy(job.parameters[name].copy()).to(one.dtype) == one).all()
               for name, one in net.named_parameters())


# ---- modules ----

def test_a_module_that_went_to_shared_memory_is_pulled_into_all_the_same():
    net = new_net()
    with ampd.testing.server() as server, joined(server, net) as job:
        train(job, net)
        net.share_memory()
        before = net[0].weight.detach().clone()
        train(job, net)
        assert not torch.equal(before, net[0].weight) and is_as_pulled(job, net)


def test_a_module_that_went_to_shared_memory_and_then_to_another_dtype_is_pulled_into():
    net = new_net()
    with ampd.testing.server() as server, joined(server, net) as job:
        train(job, net)
        net.share_memory().bfloat16()
        train(job, net)
        assert is_as_pulled(job, net)


def test_a_module_that_goes_to_another_dtype_and_back_between_steps_is_pushed():
    net = new_net()
    with ampd.testing.server() as server, joined(server, net) as job:
        for _ in range(2):
            step = job.begin()
            step.backward(loss_of(net))
            assert step.end().norm > 0
            net.bfloat16().float()


def test_what_a_forked_child_writes_stays_its_own():
    net = new_net()
    with ampd.testing.server() as server, joined(server, net) as job:
        train(job, net)
        before = net[0].weight.detach().clone()
        child = os.fork()
        if child == 0:
            with torch.no_grad():
                net[0].weight.fill_(9)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert torch.equal(before, net[0].weight)
        train(job, net)
        assert is_as_pulled(job, net)


def test_a_forked_child_is_told_that_it_has_no_connection():
    net = new_net()
    with ampd.testing.server() as server, joined(server, net) as job:
        step = job.begin()
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            try:
                for call in (job.status, job.begin, step.end, lambda: step.backward(loss_of(net))):
                    raises(ampd.WrongState, call, "forked", "make another one here")
                job.leave()
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        step.backward(loss_of(net))
        assert step.end().applied


def test_a_parameter_without_elements_is_left_as_it_is():
    class Net(torch.nn.Linear):
        def __init__(self):
            super().__init__(4, 2)
            self.extra = torch.nn.Parameter(torch.empty(0, 2))  # a list that is empty with these settings

        def forward(self, x):
            return torch.cat([super().forward(x), self.extra])

    torch.manual_seed(3)
    net, alone = Net(), Net()
    alone.load_state_dict(net.state_dict())
    optimizer = torch.optim.SGD(alone.parameters(), 0.1)
    with ampd.testing.server() as server, told() as said, joined(server, net, max_steps=6) as job:
        for step in job.steps():
            x = torch.full((3, 4), float(step.number))
            optimizer.zero_grad()
            alone(x).square().mean().backward()
            optimizer.step()
            step.backward(net(x).square().mean())
            if step.number == 3:
                step.end()
                break
        job.pull()
        assert list(job.parameters) == ["weight", "bias"] and said == [], (job.parameters, said)
        ours = ampd.Optimizer(job)
        x = torch.ones(3, 4)
        for one, its in ((net, ours), (alone, optimizer)):
            its.zero_grad()
            one(x).square().mean().backward()
            its.step()
        assert set(job.state_dict(masters=False)) == set(net.state_dict())
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(net.parameters(), alone.parameters()))


def test_a_lazy_module_is_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net = torch.nn.LazyLinear(2)
    with ampd.testing.server() as server:
        raises(ampd.InvalidArgument, lambda: joined(server, net), "lazy", "weight", "call the module once")


def test_values_that_are_loaded_between_join_and_the_first_step_are_told_once_to_be_replaced():
    pretrained = {name: torch.full_like(one, 0.3) for name, one in new_net().state_dict().items()}
    cases = (("copied", "float16", pretrained, 1), ("pulled-into", "float32", pretrained, 1),
             ("equal", "float16", new_net().state_dict(), 0), ("equal-too", "float32", new_net().state_dict(), 0))
    with ampd.testing.server() as server:
        for case, cast, state, lines in cases:
            net = new_net()
            with told() as said, ampd.join(server.endpoint, case, net, cast=cast) as job:
                net.load_state_dict(state)
                for _ in range(2):
                    step = job.begin()
                    step.backward(loss_of(net))
                    assert step.end().applied
                job.pull()
            assert len(said) == lines and all("parameter 0.weight" in one and "before ampd.join" in one
                                              for one in said), (case, said)


def test_values_that_are_loaded_after_a_second_join_of_the_same_module_are_told_to_be_replaced():
    net = new_net()
    with ampd.testing.server() as server:
        with ampd.join(server.endpoint, "first", net) as before:
            before.pull()
        with told() as said, ampd.join(server.endpoint, "second", net) as job:
            net.load_state_dict({name: torch.full_like(one, 0.3) for name, one in net.state_dict().items()})
            job.pull()
        assert len(said) == 1 and "before ampd.join" in said[0], said
        del before


def test_values_that_another_model_has_pulled_before_the_first_step_are_told_of_nothing():
    net = new_net()
    with ampd.testing.server() as server, told() as said, joined(server, net) as first, \
            ampd.join(server.endpoint, "other", net, cast="float32") as second:
        train(first, net)
        second.pull()
        assert said == [], said


def test_a_module_whose_parameters_are_shards_is_refused():
    class FullyShardedDataParallel(torch.nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    class DTensor(torch.Tensor):
        pass

    with ampd.testing.server() as server:
        raises(ampd.InvalidArgument,
               lambda: joined(server, torch.nn.Sequential(FullyShardedDataParallel(new_net()))),
               "module 0 is a FullyShardedDataParallel", "each worker has all of it")
        net = new_net()
        net[2].bias = torch.nn.Parameter(torch.zeros(2).as_subclass(DTensor))
        raises(ampd.InvalidArgument, lambda: joined(server, net), "parameter 2.bias is a DTensor",
               "each worker has all of it")
        with ampd.connect(server.endpoint) as operator:
            assert list(operator.models()) == []


def test_a_gradient_that_is_a_view_of_the_other_sign_is_pushed_as_it_is():
    with ampd.testing.server() as server:
        found = []
        for make in (lambda one: torch.ones_like(one), lambda one: torch._neg_view(-torch.ones_like(one))):
            net = new_net()
            with ampd.join(server.endpoint, "m%d" % len(found), net, optimizer=ampd.SGD(0.1), cast="float32") as job:
                optimizer = ampd.Optimizer(job)
                for one in net.parameters():
                    one.grad = make(one)
                optimizer.step()
                found.append(net[0].weight.detach().clone())
        assert torch.equal(*found)


def test_a_first_pull_in_inference_mode_leaves_a_module_that_can_be_trained():
    net = new_net()
    with ampd.testing.server() as server, joined(server, net) as job:
        with torch.inference_mode():
            job.pull()
            loss_of(net)
        train(job, net)


def test_complex_parameters_are_refused():
    net = torch.nn.Linear(2, 2, dtype=torch.complex64)
    with ampd.testing.server() as server:
        raises(ampd.InvalidArgument, lambda: joined(server, net), "parameter weight is complex", "two parameters")


def test_a_function_that_gives_no_gradient_leaves_its_parameter_as_it_is():
    class Nothing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            return x * 1

        @staticmethod
        def backward(ctx, gradient):
            return gradient, None

    net = new_net()
    before = net[2].bias.detach().clone()
    with ampd.testing.server() as server, joined(server, net) as job:
        step = job.begin()
        step.backward(Nothing.apply(net[0](torch.ones(3, 4)), net[2].bias).square().mean())
        assert step.end().applied
        job.pull()
        assert torch.equal(before, net[2].bias)


def test_extra_state_of_a_module_is_in_its_state_dict():
    class Counting(torch.nn.Linear):
        def get_extra_state(self):
            return {"seen": [1, 2]}

        def set_extra_state(self, state):
            self.seen = state["seen"]

    net = Counting(2, 2)
    with ampd.testing.server() as server, joined(server, net) as job:
        state = job.state_dict(masters=False)
        net.load_state_dict(state)
        assert net.seen == [1, 2]


def test_gradients_of_two_dtypes_are_refused_with_the_option_that_converts():
    net = new_net()
    net[2].half()
    with ampd.testing.server() as server, joined(server, net) as job:
        step = job.begin()
        loss = net[0].weight.sum() + net[2].weight.float().sum()
        raises(ampd.InvalidArgument, lambda: step.backward(loss), "use one dtype", "gradients=")


def test_gradients_in_float16_without_a_loss_scale_are_told_once():
    with ampd.testing.server() as server:
        for cast, gradients, scaler, half, lines in (("bfloat16", "float16", None, False, 1),
                                                     ("float32", "float16", None, False, 1),
                                                     ("float32", None, None, True, 1),
                                                     ("bfloat16", "float16", ampd.DynamicScaler(), False, 0),
                                                     ("float16", "float16", None, False, 0),
                                                     ("bfloat16", None, None, False, 0)):
            net, name = new_net(), "-".join(map(str, (cast, gradients, half, lines)))
            with told() as said, ampd.join(server.endpoint, name, net, cast=cast, gradients=gradients, scaler=scaler,
                                           max_steps=2) as job:
                if half:
                    net.half()
                for step in job.steps():
                    step.backward(sum(one.sum() for one in net.parameters()) / 8)
            assert len(said) == lines and all("loss scale of 1" in one and "scaler=ampd.DynamicScaler()" in one
                                              for one in said), (name, said)


def by_segments(net, reentrant):
    """The loss of a network that is run twice, with both runs computed again in backward."""
    x = torch.ones(3, 4, requires_grad=True)
    for _ in range(2):
        x = checkpoint(lambda x: torch.tanh(net(x)), x, use_reentrant=reentrant)
    return x.square().mean()


def test_gradients_of_segments_that_are_computed_again_are_counted_once_or_refused():
    plain = torch.nn.Linear(4, 4)
    first = copy.deepcopy(plain.state_dict())
    x = torch.ones(3, 4)
    torch.tanh(plain(torch.tanh(plain(x)))).square().mean().backward()
    with ampd.testing.server() as server:
        for name, reentrant, accumulate in (("once", False, 1), ("sum", True, 2), ("again", True, 1), ("all", True, 1)):
            net = torch.nn.Linear(4, 4)
            net.load_state_dict(first)
            with ampd.join(server.endpoint, name, net, optimizer=ampd.SGD(1.0), cast="float32", max_steps=1,
                           accumulate=accumulate) as job:
                if name == "all":
                    optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
                    scaler.scale(by_segments(net, reentrant)).backward()
                    assert scaler.step(optimizer)
                else:
                    step = job.begin()
                    if name == "again":
                        raises(ampd.WrongState, lambda: step.backward(by_segments(net, reentrant)), "accumulate")
                        raises(ampd.WrongState, step.end, "begin it again")
                        continue
                    step.backward(by_segments(net, reentrant))
                    assert step.end().applied
                job.pull()
                for key, one in net.named_parameters():
                    wanted = first[key] - plain.get_parameter(key).grad
                    assert torch.allclose(one, wanted, rtol=0, atol=1e-6), (name, key, one, wanted)


@contextlib.contextmanager
def hooks_that_a_parameter_keeps():
    """As torch's are since 2.1."""
    def kept(parameter, hook):
        node = parameter.expand_as(parameter).grad_fn.next_functions[0][0]
        parameter.hooks = [*getattr(parameter, "hooks", []), (node, node.register_hook(hook))]
        return mock.Mock(remove=parameter.hooks.clear)

    with mock.patch.object(module, "_POST_ACCUMULATE", True), \
            mock.patch.object(torch.nn.Parameter, "register_post_accumulate_grad_hook", kept, create=True):
        yield


def test_hooks_that_a_parameter_keeps_go_with_the_job_and_keep_none_alive():
    with hooks_that_a_parameter_keeps(), ampd.testing.server() as server:
        net = new_net()
        for leaves in (True, True, False):
            job = joined(server, net)
            train(job, net)
            assert len(net[0].weight.hooks) == 1
            if leaves:
                job.leave()
                assert net[0].weight.hooks == []
            alive = weakref.ref(job)
            del job
            gc.collect()
            assert alive() is None
        loss_of(net).backward()  # by hooks of nobody


# ---- steps ----

class Failing(torch.autograd.Function):
    """Fails in backward, behind those that come later in the module."""

    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        raise RuntimeError("out of memory")


def test_a_step_whose_backward_fails_is_never_half_applied():
    net = new_net()
    with ampd.testing.server() as server, joined(server, net, max_steps=2) as job:
        step = job.begin()
        before = net[2].weight.detach().clone()
        try:
            step.backward(net[2](net[1](Failing.apply(net[0](torch.ones(3, 4))))).square().mean())
            raise AssertionError("it did not fail")
        except RuntimeError as error:
            assert "out of memory" in str(error)
        raises(ampd.WrongState, step.end, "backward of step 1 failed", "job.begin()")
        numbers = []
        for step in job.steps():
            numbers.append(step.number)
            if len(numbers) == 1:
                try:
                    step.backward(net[2](net[1](Failing.apply(net[0](torch.ones(3, 4))))).square().mean())
                except RuntimeError:
                    assert torch.equal(before, net[2].weight)
                    continue
            step.backward(loss_of(net))
        assert numbers == [1, 1, 2], numbers


def test_a_step_whose_backward_fails_is_begun_again_under_a_line_of_progress():
    net = new_net()
    with ampd.testing.server() as server, joined(server, net, max_steps=3) as job:
        numbers = []
        for step in ampd.progress(job.steps(), file=io.StringIO()):
            numbers.append(step.number)
            loss = loss_of(net)
            with contextlib.suppress(RuntimeError):
                step.backward(loss if numbers != [1, 2] else Failing.apply(loss))
        assert numbers == [1, 2, 2, 3], numbers


def test_what_a_call_has_said_is_not_written_over_by_a_signal_handler_before_it_is_taken():
    net, text = new_net(), ampd._client.text
    with ampd.testing.server() as server, joined(server, net) as job:
        def in_between(characters):  # as a handler may run; a line of the log comes from the client's own thread
            return job.status() if threading.current_thread() is threading.main_thread() else text(characters)

        with mock.patch("ampd._client.text", side_effect=in_between):
            raises(ampd.WrongState, lambda: job.server.model("nobody"), "in a signal handler")
        raises(ampd.NotFound, lambda: job.server.model("nobody"), "nobody")


def test_a_handler_of_the_log_that_calls_a_server_is_refused_at_once():
    net, told = new_net(), []
    with ampd.testing.server() as server, ampd.connect(server.endpoint) as other:

        class Asks(logging.Handler):
            def emit(self, record):
                try:
                    told.append(other.status())
                except ampd.WrongState as error:
                    told.append(str(error))

        handler, before = Asks(), logging.getLogger("ampd").level
        logging.getLogger("ampd").addHandler(handler)
        logging.getLogger("ampd").setLevel(logging.INFO)
        try:
            with joined(server, net) as job:
                train(job, net)
                assert eventually(lambda: told), "nothing was told of the join"
        finally:
            logging.getLogger("ampd").removeHandler(handler)
            logging.getLogger("ampd").setLevel(before)
        assert all("a handler of the logger ampd may not call" in text for text in told), told
        assert other.status() is not None


def test_a_handler_of_the_log_cannot_leave_a_job():
    net, said = new_net(), []
    with ampd.testing.server() as server, joined(server, net) as job:

        class Leaves(logging.Handler):
            def emit(self, record):
                try:
                    job.leave()
                except ampd.WrongState as error:
                    said.append(str(error))

        handler, before = Leaves(), logging.getLogger("ampd").level
        logging.getLogger("ampd").addHandler(handler)
        logging.getLogger("ampd").setLevel(logging.INFO)
        try:
            with ampd.join(server.endpoint, "other", new_net(), optimizer=ampd.SGD(0.1)):
                assert eventually(lambda: said), "nothing was told of the join"
        finally:
            logging.getLogger("ampd").removeHandler(handler)
            logging.getLogger("ampd").setLevel(before)
        assert all("a handler of the logger ampd may not call" in text for text in said), said
        train(job, net)


def test_a_handler_of_the_log_may_close_its_connection():
    took = []
    with ampd.testing.server() as server:

        class Closes(logging.Handler):
            def emit(self, record):
                began = time.monotonic()
                for one in list(_client._open):
                    one.close()
                took.append(time.monotonic() - began)

        handler, before = Closes(), logging.getLogger("ampd").level
        logging.getLogger("ampd").addHandler(handler)
        logging.getLogger("ampd").setLevel(logging.INFO)
        try:
            with contextlib.suppress(ampd.Error):
                joined(server, new_net()).begin()
            assert eventually(lambda: took), "nothing was told of the join"
        finally:
            logging.getLogger("ampd").removeHandler(handler)
            logging.getLogger("ampd").setLevel(before)
        assert max(took) < 5, took
        assert eventually(lambda: not list(_client._open))


def test_a_connection_that_is_closed_on_its_own_thread_ends_at_once():
    net = new_net()
    with ampd.testing.server() as server, joined(server, net) as job:
        train(job, net)
        client, began = _client.Client(server.endpoint), time.monotonic()
        with contextlib.suppress(ampd.Error):
            client.stream(*_messages.request("WatchSteps", model="net", from_step=1), lambda data: client.close())
        assert eventually(lambda: client not in _client._open) and time.monotonic() - began < 5


def test_a_signal_handler_cannot_leave_under_a_call_that_waits():
    net = new_net()
    with ampd.testing.server() as server, joined(server, net, world_size=2, rank=0) as job:
        caught = []

        def leave(number, frame):
            try:
                job.leave()
            except ampd.WrongState as error:
                caught.append(str(error))
                raise

        before = signal.signal(signal.SIGUSR1, leave)
        try:
            threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGUSR1)).start()
            raises(ampd.WrongState, job.begin, "waits; in a signal handler raise SystemExit")
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert len(caught) == 1 and job.rank == 0
        job.status()  # nothing is broken


def test_a_result_can_be_copied_and_pickled():
    net = new_net()
    with ampd.testing.server() as server, joined(server, net) as job:
        step = job.begin()
        step.backward(loss_of(net))
        result = step.end()
        assert dataclasses.asdict(result)["step"] == 1
        copied = pickle.loads(pickle.dumps(result))
        assert copied == result and copied.applied
        raises(ampd.WrongState, copied.explain, "copy", "explain")
        assert result.explain()


# ---- the optimizer of torch's way ----

def interrupted_in_its_end(optimizer, scaler):
    """scaler.step with a Ctrl-C while it waits for the verdict."""
    end = optimizer.current.end

    def end_with_ctrl_c():
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
        return end()

    optimizer.current.end = end_with_ctrl_c
    try:
        scaler.step(optimizer)
        raise AssertionError("nothing was interrupted")
    except KeyboardInterrupt:
        optimizer.current.end = end


@contextlib.contextmanager
def interrupted_at_the_second_gradient():
    """Ctrl-C where gradients are multiplied."""
    multiply, done = torch.Tensor.mul_, []

    def mul_(gradient, factor):
        if done:
            raise KeyboardInterrupt("between two gradients")
        done.append(gradient)
        return multiply(gradient, factor)

    with mock.patch.object(torch.Tensor, "mul_", mul_):
        yield


def test_gradients_of_which_an_interrupt_has_left_some_unscaled_are_not_pushed():
    net = new_net()
    with ampd.testing.server() as server, joined(server, net) as job:
        optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)

        def backward():
            scaler.scale(loss_of(net)).backward()

        backward()
        assert scaler.step(optimizer)
        for act in (lambda: scaler.unscale_(optimizer), lambda: scaler.step(optimizer)):
            backward()
            if optimizer.number == 3:
                scaler.unscale_(optimizer)
            with interrupted_at_the_second_gradient():
                raises(KeyboardInterrupt, act)
            raises(ampd.WrongState, lambda: scaler.step(optimizer), "zero_grad()", "compute them again")
            optimizer.zero_grad()
            backward()
            scaler.unscale_(optimizer)
            norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1e9).item()
            assert scaler.step(optimizer) and abs(optimizer.result.norm - norm) < 1e-5 * norm, optimizer.result


def interrupted_pull(net, job):
    """(optimizer, scaler) after a step whose parameters have come in part."""
    optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
    scaler.scale(loss_of(net)).backward()
    with mock.patch.object(job.module, "_take_pulled", side_effect=KeyboardInterrupt("while it copies")):
        raises(KeyboardInterrupt, lambda: scaler.step(optimizer))
    return optimizer, scaler


def test_a_loss_of_parameters_that_have_come_in_part_is_not_scaled():
    net = new_net()
    with ampd.testing.server() as server, joined(server, net) as job:
        optimizer, scaler = interrupted_pull(net, job)
        raises(ampd.WrongState, lambda: scaler.scale(loss_of(net)), "compute it again")
        scaler.scale(loss_of(net)).backward()
        assert scaler.step(optimizer)


def test_a_loss_from_before_zero_grad_of_parameters_that_have_come_in_part_is_not_scaled():
    net = new_net()
    with ampd.testing.server() as server, joined(server, net) as job:
        optimizer, scaler = interrupted_pull(net, job)
        loss = loss_of(net)
        optimizer.zero_grad()
        raises(ampd.WrongState, lambda: scaler.scale(loss), "compute it again")
        scaler.scale(loss_of(net)).backward()
        assert scaler.step(optimizer) and optimizer.result.step == 2


def test_gradients_that_were_handed_in_are_not_changed_by_a_loop_that_goes_on_after_an_interrupt():
    net = new_net()
    with ampd.testing.server() as server, joined(server, net, world_size=2, rank=0) as job, \
            joined(server, new_net(), world_size=2, rank=1):
        optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
        scaler.scale(loss_of(net)).backward()
        gradients = [one.grad for one in net.parameters()]
        before = [one.clone() for one in gradients]
        interrupted_in_its_end(optimizer, scaler)
        for zero in (net.zero_grad, optimizer.zero_grad):
            zero(set_to_none=False)
            (loss_of(net) * 2).backward()
        assert all(torch.equal(one, was) for one, was in zip(gradients, before))


def test_an_optimizer_goes_on_after_a_step_that_was_interrupted():
    net = new_net()
    with ampd.testing.server() as server, joined(server, net, world_size=2, rank=0, max_steps=3) as job:
        other, turn = joined(server, new_net(), world_size=2, rank=1, max_steps=3), threading.Semaphore(0)

        def steps_of_the_other():
            for step in other.steps():
                turn.acquire()
                step.backward(loss_of(other.module.module))

        thread = threading.Thread(target=steps_of_the_other, daemon=True)
        thread.start()
        optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
        for again in ("step", "all", "never"):  # what is called after Ctrl-C
            optimizer.zero_grad()
            scaler.scale(loss_of(net)).backward()
            if again != "never":
                interrupted_in_its_end(optimizer, scaler)
                raises(ampd.WrongState, lambda: scaler.unscale_(optimizer), "have been handed in", "step() again")
            if again == "all":
                optimizer.zero_grad()
                scaler.scale(loss_of(net)).backward()
            turn.release()
            assert scaler.step(optimizer), optimizer.result
        assert optimizer.result.step == 3 and optimizer.done
        assert eventually(lambda: not thread.is_alive())
        other.leave()


def test_a_loss_of_parameters_that_a_step_has_replaced_is_not_scaled():
    net = new_net()
    with ampd.testing.server() as server, joined(server, net) as job:
        optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
        scaler.scale(loss_of(net)).backward()
        with mock.patch.object(job, "begin", side_effect=KeyboardInterrupt("while it waits for the next step")):
            raises(KeyboardInterrupt, lambda: scaler.step(optimizer))
        raises(ampd.WrongState, lambda: scaler.scale(loss_of(net)), "step 2", "compute it again")
        scaler.scale(loss_of(net)).backward()
        assert scaler.step(optimizer) and optimizer.result.step == 2


def test_a_loss_of_a_step_that_was_skipped_is_not_scaled_for_the_next_one():
    net = new_net()
    with ampd.testing.server() as server, joined(server, net) as job:
        optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
        scaler.scale(loss_of(net) * float("inf")).backward()
        with mock.patch.object(job, "begin", side_effect=KeyboardInterrupt("while it waits for the next step")):
            raises(KeyboardInterrupt, lambda: scaler.step(optimizer))
        assert optimizer.number == 1  # whose data the loop takes
        raises(ampd.WrongState, lambda: scaler.scale(loss_of(net)), "step 2 has begun", "step 1; compute it again")
        scaler.scale(loss_of(net)).backward()
        assert scaler.step(optimizer) and optimizer.result.step == 2


def test_an_optimizers_groups_are_the_models_and_a_scaler_wants_ampds_optimizer():
    net = new_net()
    with ampd.testing.server() as server, joined(server, net) as job:
        optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
        more = {"params": [torch.nn.Parameter(torch.ones(2))]}
        raises(ampd.WrongState, lambda: optimizer.add_param_group(more), "groups=")
        other = torch.optim.SGD(net.parameters(), 0.1)
        raises(ampd.InvalidArgument, lambda: scaler.unscale_(other), "ampd.Optimizer(job)")


run(globals())
