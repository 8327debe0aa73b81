"""Schedulers of torch behind ampd.Optimizer: the rate of each step, also after a restart, a rollback and late steps."""
from python_testing import eventually, needs, raises, run, told  # (first: it finds the package)

needs("torch", "google.protobuf")

import warnings

import ampd
import ampd.testing
import torch

STEPS = 4


def new_net():
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))


def loss_of(net, number):
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(number))
    return (net(x) - x[:, :2]).square().mean()


def joined(server, name, net, **options):
    options = {"optimizer": ampd.SGD(0.1), "cast": "float32", "max_steps": STEPS, **options}
    return ampd.join(server.endpoint, name, net, **options)


def scheduler_of(optimizer, kind):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # torch's of a step() whose optimizer has made none
        return (torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5) if kind == "step"
                else torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=10))


def rates_until(server, name, last, kind, saved=None):
    """(the rates of the steps up to `last`, what is saved then): of a script that loads what it has saved."""
    rates, options = [], {"schedule": ampd.Worker(), "optimizer": ampd.SGD(0.1, momentum=0.5)}
    with joined(server, name, new_net(), max_steps=6, no_decay=["0.bias"], **options) as job:
        optimizer = ampd.Optimizer(job)
        scheduler = scheduler_of(optimizer, kind)
        if saved is not None:
            optimizer.load_state_dict(saved["optimizer"])
            scheduler.load_state_dict(saved["scheduler"])
        while not optimizer.done and optimizer.number <= last:
            loss_of(job.module.module, optimizer.number).backward()
            optimizer.step()
            scheduler.step(*[1.0] * (kind == "plateau"))
            rates.append(job.server.explain(name, optimizer.result.step).row.learning_rate)
        return rates, {"optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict()}


def test_a_script_that_loads_its_saved_state_goes_on_with_the_rate_of_its_scheduler():
    with ampd.testing.server() as server:
        for kind in ("step", "plateau"):
            whole, _ = rates_until(server, "whole-" + kind, 6, kind)
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # all that was saved is as the server has it: nothing to say
                first, saved = rates_until(server, "parts-" + kind, 3, kind)
                second, _ = rates_until(server, "parts-" + kind, 6, kind, saved)
            assert len(set(whole)) > 2 and first + second == whole, (kind, first, second, whole)


def test_a_scheduler_that_a_rollback_has_left_ahead_is_told_once():
    with ampd.testing.server() as server, ampd.connect(server.endpoint) as side:
        for name, schedule, lines in (("worker", ampd.Worker(), 1), ("server", ampd.Constant(), 0)):
            net = new_net()
            options = {"schedule": schedule, "checkpoint_every": 1, "keep_last": 9}
            with told() as said, joined(server, name, net, **options) as job:
                optimizer = ampd.Optimizer(job)
                verdicts = []
                while not optimizer.done:
                    if len(verdicts) in (2, 4):
                        assert eventually(lambda: any(one.step == 1 for one in side.checkpoints(name)))
                        side.rollback(name, 1)
                    loss_of(net, optimizer.number).backward()
                    optimizer.step()
                    verdicts.append(optimizer.result.verdict)
            assert verdicts.count("rolled_back") == 2, verdicts
            found = [one for one in said if "a scheduler of torch" in one]
            assert len(found) == lines and all("step 2" in one and "optimizer.number" in one for one in found), said


def test_a_scheduler_that_the_steps_of_a_quorum_have_left_behind_is_told():
    options = {"schedule": ampd.Worker(), "world_size": 2, "quorum": 1}
    with ampd.testing.server() as server, told() as said:
        with joined(server, "net", new_net(), rank=0, **options) as fast, \
                joined(server, "net", new_net(), rank=1, **options) as slow:
            ours, other = ampd.Optimizer(fast), ampd.Optimizer(slow)
            train_to = {ours: 4, other: 2}  # step 4 is in hand on rank 0, when rank 1 hands in step 1
            for optimizer, number in train_to.items():
                while optimizer.number < number:
                    loss_of(optimizer.job.module.module, optimizer.number).backward()
                    optimizer.step()
            assert other.result.verdict == "late" and other.number == 4
    found = [one for one in said if "a scheduler of torch" in one]
    assert len(found) == 1 and "step 4 has begun after step 1" in found[0], said


def rates_of_applied_until(server, name, last):
    """The rates of the applied steps up to `last`, of which 2 and 3 overflow, in a script that calls its scheduler
    behind applied steps alone."""
    rates, net = [], new_net()
    with joined(server, name, net, cast="float16", max_steps=6, schedule=ampd.Worker()) as job:
        optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
        scheduler = scheduler_of(optimizer, "step")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            for _ in range(job.status().applied):
                scheduler.step()
        while not optimizer.done and optimizer.number <= last:
            before, factor = scaler.get_scale(), float("inf") if optimizer.number in (2, 3) else 1.0
            scaler.scale(loss_of(net, optimizer.number) * factor).backward()
            scaler.step(optimizer)
            scaler.update()
            if before <= scaler.get_scale():
                scheduler.step()
                rates.append(job.server.explain(name, optimizer.result.step).row.learning_rate)
    return rates


def test_a_script_that_leaves_its_scheduler_out_of_skipped_steps_goes_on_with_its_rate():
    with ampd.testing.server() as server:
        whole = rates_of_applied_until(server, "whole", 6)
        assert whole == [0.1, 0.1, 0.05, 0.05], whole
        parts = [rates_of_applied_until(server, "parts", last) for last in (3, 4, 6)]
        assert sum(parts, []) == whole and all(parts), parts


def test_a_saved_state_of_another_step_or_of_other_groups_is_told():
    with ampd.testing.server() as server, joined(server, "net", new_net(), schedule=ampd.Worker()) as job:
        optimizer = ampd.Optimizer(job)
        saved = optimizer.state_dict()
        for factor in (float("inf"), 1.0):
            (loss_of(job.module.module, optimizer.number) * factor).backward()
            optimizer.step()
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            optimizer.load_state_dict(saved)
        words = "each earlier step: 2 (of a script that leaves out skipped steps: 1)"
        assert len(said) == 1, [str(one.message) for one in said]
        assert "step 1, and step 3" in str(said[0].message) and words in str(said[0].message), said[0].message
        raises(ampd.InvalidArgument, lambda: optimizer.load_state_dict({**saved, "param_groups": []}), "groups", words)


run(globals())
