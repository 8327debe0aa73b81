"""For training loops of one's own: torch.cuda.amp's GradScaler and torch's Optimizer, with the server behind them.

    job = ampd.join("127.0.0.1:7420", "net", net, optimizer=ampd.AdamW(lr=1e-3))
    optimizer, scaler = ampd.Optimizer(job), ampd.GradScaler(job)
    for x, y in data:
        optimizer.zero_grad()
        loss = loss_of(net(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)     # pushes the gradients, waits for the verdict, pulls the next parameters
        scaler.update()
"""
from __future__ import annotations

import math
import warnings
import weakref
from collections.abc import Iterable

import torch

from ampd import errors, module
from ampd._client import shown
from ampd.job import Job, number_of

_DONE = "the model %s is done: its max_steps are reached; end the loop when optimizer.done is true"


def _refuse_other(what: str, job, given: tuple, values: dict, remedy: str) -> None:
    """What torch's is made with, in place of a job or behind it."""
    if not isinstance(job, Job):
        raise errors.InvalidArgument("%s is made with %s; give it what ampd.join returns, which has the optimizer and "
                                     "the scaler of the model" % (what, shown(job)))
    if given or values:
        raise errors.InvalidArgument("%s has no %s: that is the model's; give ampd.join %s"
                                     % (what, ", ".join([*map(shown, given), *values]), remedy))


class Optimizer(torch.optim.Optimizer):
    """torch's Optimizer, whose step() is the verdict of the server. The first step begins when it is made.

    `param_groups` are the model's groups: `lr` (that of the specification times `lr_factor`), `weight_decay`,
    `clip_norm`. They are for reading: the server has the values. With the schedule ampd.Worker() alone `lr` is what
    each step uses, so that torch's lr_scheduler work; all groups have the same rate then, times their `lr_factor`."""

    def __init__(self, job=None, *given, **values):
        _refuse_other("ampd.Optimizer", job, given, values, "optimizer=ampd.AdamW(...)")
        if job.module is None:
            raise errors.WrongState("this job has no torch module; give ampd.join one")
        self.job = job
        job.how_to_push = "call scaler.scale(loss).backward() before the optimizer's step"
        self.result = None
        self.unscaled: dict = {}  # torch's count of writes to each gradient, by parameter, as unscale_ has left it
        self._overflowed: list = []  # (parameter, its gradient as unscale_ has found it): with an Inf or a NaN
        self.current = None
        self._left = False  # the step was handed in, and the next one has not begun: a call of step() was cut off
        super().__init__(self._groups(), {"lr": 0.0})
        self._fixed = set(self.param_groups[0])  # what a scheduler of torch adds is its own
        self._given = {name: self._of_groups(name) for name in ("lr", "weight_decay", "clip_norm", "lr_factor")}
        self._begin()
        job.optimizer = weakref.ref(self)

    def _groups(self) -> list[dict]:
        by_group: dict[int, dict] = {}
        model = self.job.server.specification(self.job.name)
        self._gives_rate = model.schedule.kind == "worker"
        self._has_one_scale = model.scaler.policy == "static"
        for one in model.parameters:
            group = model.groups[one.group]
            row = by_group.setdefault(one.group, {
                "params": [], "name": group.name, "lr": model.optimizer.lr * group.lr_factor,
                "lr_factor": group.lr_factor, "weight_decay": group.weight_decay, "clip_norm": group.clip_norm})
            row["params"].append(self.job.module._parameters[one.name])
        return [by_group[index] for index in sorted(by_group)]

    def _of_groups(self, name: str) -> list:
        return [group[name] for group in self.param_groups]

    def _begin(self) -> None:
        before, begun = self.number, self.job.begin()
        if begun is None:
            self.job.pull()  # what the last step made, for an evaluation; cut off, the next call comes here again
        self.current, self._left = begun, False
        self.unscaled.clear()
        self._overflowed.clear()
        if begun is not None and before is not None and self._gives_rate:
            self._tell_out_of_step(before)

    def _tell_out_of_step(self, before: int) -> None:
        """Of a rollback, and of steps that others have decided without this worker: no scheduler knows of them."""
        if self.current.rolled_back or self.number > before + 1:
            self.job._warn_once("rates", "%s: step %d has begun after step %d, and a scheduler of torch, which counts "
                                "calls, has the rates of others; end the workers and start them again (if the rates "
                                "are computed from optimizer.number, all is well)", self.job.name, self.number, before)

    def begin_if_left(self) -> None:
        """Where a step() was cut off by a Timeout or Ctrl-C, and is not called again, its step is begun anew."""
        if self._left or (self.current is not None and self.current.broken):
            self._begin()

    def add_param_group(self, param_group) -> None:
        if self.current is not None:
            raise errors.WrongState("the groups are the model's, which the server has; give ampd.join groups= and all "
                                    "parameters")
        super().add_param_group(param_group)

    @property
    def done(self) -> bool:
        """The model's max_steps are done: no further step."""
        return self.current is None

    @property
    def number(self) -> int | None:
        """Of the step in hand, from 1: what its data are to depend on. None: the model is done."""
        return None if self.current is None else self.current.number

    def step(self, closure=None):
        """Pushes .grad of all parameters, waits for the verdict and pulls. Returns the closure's loss, as torch does;
        `result` has the verdict. After a Timeout or Ctrl-C while it waits it can be called again, for the same step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if self.current is None:
            raise errors.WrongState(_DONE % self.job.name)
        if self.job.optimizer() is not self:
            raise errors.WrongState("another ampd.Optimizer was made of %s after this one, and has the step in hand; "
                                    "use that one: make only one of a job, for all of its parameters" % self.job.name)
        if self.current.broken:
            raise errors.WrongState("step %d was interrupted, or has failed, while its gradients were scaled or handed "
                                    "in; call zero_grad() and compute them again" % self.current.number)
        if not self._left:
            self._hand_in()
        self.result = self.current.end()
        self._begin()
        return loss

    def _hand_in(self) -> None:
        if self._gives_rate:
            self.job.set_learning_rate(self._rate())
        self._tell_changed()
        self._tell_unscaled()
        try:
            if self.unscaled:
                self._scale_again()
                self.unscaled.clear()
            self.job.module.push_all()
            self._left = True
        except BaseException:
            self.current.broken = True
            raise

    def _tell_changed(self) -> None:
        """Of values of param_groups that are for reading alone."""
        for name, given in self._given.items():
            if given == self._of_groups(name):
                continue
            if name != "lr":
                self.job._warn_once(name, "%s: %s of param_groups was changed, which the server does not use: it is "
                                    "fixed with the model; give ampd.join groups=[ampd.Group(..., %s=...)]",
                                    self.job.name, name, name)
            elif not self._gives_rate:
                self.job._warn_once(name, "%s: an lr of param_groups was changed, which the server does not use: the "
                                    "model has a schedule of its own; for a scheduler of torch give ampd.join "
                                    "schedule=ampd.Worker()", self.job.name)

    def _tell_unscaled(self) -> None:
        """Of gradients whose loss GradScaler.scale has not multiplied: the server divides them all the same."""
        step, parameters = self.current, self.job.module._parameters.values()
        model, scale = GradScaler._scaled_by or (None, None)
        if self._has_one_scale and scale == step.scale and model != self.job.name:
            return  # one loss of several models, scaled for another one of them
        if step.scale != 1 and not step.scaled and any(one.grad is not None for one in parameters):
            self.job._warn_once("unscaled", "%s: the loss of step %d was not given to GradScaler.scale, and its "
                                "gradients are divided by %.9g; call scaler.scale(loss).backward() with a scaler of "
                                "this job, or make the model with scaler=ampd.NoScaler() (if the loss was multiplied "
                                "by the scale otherwise, all is well)", self.job.name, step.number, step.scale)

    def zero_grad(self, *args, **kwargs) -> None:
        """As torch's; of a batch that is dropped nothing stays, nor its loss. Where a step() was cut off, the next one
        is not begun here: the loss may have been computed already, of the parameters that there are now."""
        if self.current is not None and self.current.broken:
            self._begin()
        if self.current is not None:
            self.current.losses.clear()
        super().zero_grad(*args, **kwargs)
        self.unscaled.clear()

    def _rate(self) -> float:
        rates = [number_of(group["lr"], "an lr of param_groups") / group["lr_factor"] for group in self.param_groups
                 if group["lr_factor"] > 0]
        for one in rates:
            if not math.isfinite(one):
                return one  # set_learning_rate says that it is not possible
        # Not exactly one: 0.1 * 3 / 3 is not 0.1, and a scheduler rounds the rate of each group.
        if not rates or not all(math.isclose(rate, rates[0], rel_tol=1e-9) for rate in rates):
            raise errors.InvalidArgument("the groups have the base rates %s, and a step has one, times each lr_factor; "
                                         "give a scheduler a rate for each group: its own times the group's lr_factor"
                                         % ", ".join("%r" % rate for rate in sorted(set(rates))))
        return rates[0]

    @torch.no_grad()
    def _scale_again(self) -> None:
        """If unscale_ found an overflow, only those gradients are sent, as it found them: the step is skipped whatever
        a clipping has made of an Inf, and no parameter is named to which a clipping has spread a NaN."""
        if self._overflowed:
            super().zero_grad(set_to_none=True)
            for parameter, found in self._overflowed:
                parameter.grad = found
            return
        if self.job.world_size > 1:
            self._tell_own_clip()
        for parameter in self.job.module._parameters.values():
            if parameter.grad is not None:
                parameter.grad.mul_(self.current.scale)  # a power of two (unscale_): exact but for what overflows

    def _tell_own_clip(self) -> None:
        """Of gradients that the program has changed behind unscale_, most likely to clip them."""
        found = next((name for name, one in self.job.module._parameters.items() if one.grad is not None
                      and self.unscaled.get(one, one.grad._version) != one.grad._version), None)
        if found is not None:
            self.job._warn_once("own clip", "%s: the gradient of parameter %s was changed behind unscale_, where it is "
                                "this worker's own; with DistributedDataParallel it is the mean of all workers, whose "
                                "norm is smaller: clip the mean by ampd.join(..., clip_norm=...), and read its norm in "
                                "optimizer.result.norm (if the module is still wrapped in DistributedDataParallel, "
                                "all is well)", self.job.name, found)

    def __getstate__(self) -> dict:
        return self.__dict__  # with the job, which refuses to be copied; torch's state would be one without a job

    def state_dict(self) -> dict:
        """The step that is next, and with the schedule ampd.Worker() what a scheduler of torch goes on from; moments
        and masters are the server's (ampctl checkpoint export --full)."""
        made = {"step": self.number, "model": self.job.name}
        if self._gives_rate:
            made["param_groups"] = [{name: value for name, value in group.items()
                                     if name == "lr" or name not in self._fixed} for group in self.param_groups]
        return made

    def load_state_dict(self, state_dict) -> None:
        """With the schedule ampd.Worker() takes the rates of a state_dict() of its own; all else is on the server. Of
        another state nothing is taken, and that is said."""
        if not self._gives_rate or not {"step", "model", "param_groups"} <= set(state_dict):
            warnings.warn("ampd.Optimizer: the state is on the server, and was not changed; ampctl checkpoint import "
                          "--full brings one in", stacklevel=2)
            return
        groups, step, current = state_dict["param_groups"], state_dict["step"], self.current
        anew = "make a new scheduler" if current is None else (
            "call step() of a new scheduler once for each earlier step: %d (of a script that leaves out skipped steps: "
            "%d)" % (current.number - 1, current.version))
        if len(groups) != len(self.param_groups):
            raise errors.InvalidArgument("the state has the rates of %d groups, and %s has %d groups; %s"
                                         % (len(groups), self.job.name, len(self.param_groups), anew))
        if current is not None and step != current.number:
            warnings.warn("ampd.Optimizer: the rates that were loaded are those of step %s, and step %d is in hand; "
                          "load neither these nor a scheduler's, and %s" % (step, current.number, anew), stacklevel=2)
        for group, saved in zip(self.param_groups, groups):
            group.update(saved)


class GradScaler:
    """torch.cuda.amp.GradScaler's names and meanings; the scale is the server's, one for all workers. What torch's is
    made with (`init_scale`, ...) is the model's: ampd.join has it as scaler=ampd.DynamicScaler(...). `enabled` False
    is for a model without a scale, and refused for others, whose gradients the server divides by theirs."""

    _scaled_by: tuple[str, float] | None = None  # the model, and its scale, that a loss was scaled for last

    def __init__(self, job=None, *given, enabled: bool = True, **values):
        _refuse_other("ampd.GradScaler", job, given, values, "scaler=ampd.DynamicScaler(...)")
        self.job, self._enabled = job, enabled
        self._scale_of_step: float | None = None  # from step() until update(), as torch has it
        model = job.server.specification(job.name)
        if not enabled and model.scaler.policy != "none":
            raise errors.InvalidArgument("enabled is False, and %s has a loss scale, by which the server divides; give "
                                         "ampd.join scaler=ampd.NoScaler()" % job.name)
        if enabled and model.scaler.policy == "none" and model.cast == "float32" and self._may_compute_in_float16():
            job._warn_once("no scale", "%s: the model has no loss scale, and ampd.GradScaler multiplies by 1; for "
                           "autocast in float16 give ampd.join scaler=ampd.DynamicScaler() (with bfloat16, or without "
                           "autocast, all is well)", job.name)

    def _may_compute_in_float16(self) -> bool:
        """autocast's dtype is not known here. CPUs of this torch have none in float16."""
        return self.job.module is not None and any(map(module.on_device, self.job.module._parameters.values()))

    def _refuse_foreign(self, optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            raise errors.InvalidArgument("the optimizer is %s; give ampd.Optimizer(job)" % shown(optimizer))
        if optimizer.job is not self.job:
            raise errors.InvalidArgument("the optimizer is that of %s, and this scaler has the scale of %s; each model "
                                         "has its own: make an ampd.GradScaler(job) of each job"
                                         % (optimizer.job.name, self.job.name))

    def _step(self):
        step = self.job._step
        if step is None and self.job.done:
            raise errors.WrongState(_DONE % self.job.name)
        if step is None:
            raise errors.WrongState("no step has begun; make ampd.Optimizer(job) first")
        return step

    def scale(self, outputs):
        """outputs (a tensor, or an iterable of them) times the scale of the step in hand. The sum of all that are one
        number, and had a backward, is sent as the loss of the step when it ends, unless job.tell_loss has set one."""
        optimizer, place = self.job.optimizer(), self.job._place
        computed_for = (place.step, place.version)
        if optimizer is not None:
            # Not a step whose begin was cut off: the module may have a part of its parameters.
            if optimizer.current is not None:
                computed_for = (optimizer.current.number, optimizer.current.version)
            optimizer.begin_if_left()
        step = self._step()
        if (step.number, step.version) != computed_for:
            raise errors.WrongState("step %d has begun since this was computed for step %d; compute it again for that "
                                    "one" % (step.number, computed_for[0]))
        step.scaled, self._scale_of_step, GradScaler._scaled_by = True, None, (self.job.name, step.scale)
        if isinstance(outputs, torch.Tensor):
            scaled = outputs * step.scale
            if outputs.numel() == 1 and scaled.requires_grad:
                loss = outputs.detach()
                scaled.register_hook(lambda _: step.losses.append(loss))  # a loss that is dropped counts for nothing
            return scaled
        if isinstance(outputs, str) or not isinstance(outputs, Iterable):
            raise errors.InvalidArgument("what is to be scaled is %s; give a tensor, or an iterable of tensors"
                                         % shown(outputs))
        made = [self.scale(one) for one in outputs]
        return type(outputs)(made) if isinstance(outputs, (list, tuple)) else made

    @torch.no_grad()
    def unscale_(self, optimizer: Optimizer) -> None:
        """Divides .grad by the scale, for a look at this worker's own gradients or a clip of them; step() multiplies it
        back. The mean of several workers is formed on the server: ampd.join clip_norm= clips that one.
        Only for scales that are powers of two, so that both are exact, and as in torch not for gradients in float16."""
        self._refuse_foreign(optimizer)
        if not self._enabled:
            return
        if optimizer.unscaled:
            raise errors.WrongState("unscale_() has already been called for this step")
        if optimizer._left:
            raise errors.WrongState("the gradients of step %d have been handed in; call step() again, which waits for "
                                    "its verdict" % optimizer.number)
        step = self._step()
        scale = step.scale
        if math.frexp(scale)[0] != 0.5:
            raise errors.WrongState("the scale %.9g is no power of two; clip on the server instead (clip_norm=...)"
                                    % scale)
        for name, one in self.job.module._parameters.items():
            module.refuse_sparse(name, one.grad)
        found = [one for one in self.job.module._parameters.values() if one.grad is not None]
        if not found:
            raise errors.WrongState("there is no gradient to unscale in step %d; call scaler.scale(loss).backward() "
                                    "first" % step.number)
        if any(one.grad.dtype == torch.float16 for one in found):
            raise errors.WrongState("a gradient in float16 would lose what is small without its scale; clip on the "
                                    "server instead (clip_norm=...)")
        try:
            # Read together: each of a device's by itself would be waited for.
            finite = torch.stack([torch.isfinite(one.grad).all().to(found[0].device) for one in found]).tolist()
            optimizer._overflowed = [(one, one.grad.clone()) for one, good in zip(found, finite) if not good]
            for one in found:
                one.grad.mul_(1.0 / scale)
            optimizer.unscaled = {one: one.grad._version for one in found}
        except BaseException:
            step.broken = True
            raise

    def step(self, optimizer: Optimizer, *args, **kwargs) -> bool:
        """Pushes, and waits for the verdict. True: the step was applied; False: it was not, and
        optimizer.result.verdict says whether it was skipped on every worker, or late or rolled back for this one."""
        self._refuse_foreign(optimizer)
        ending = optimizer.current
        optimizer.step(*args, **kwargs)
        self._scale_of_step = ending.scale  # the result of a step that was late or rolled back has none
        return optimizer.result.applied

    def update(self, new_scale=None) -> None:
        """The server has updated the scale with its verdict; `new_scale` sets it (an operator's act). As in torch a
        batch that was unscaled and dropped leaves nothing behind it."""
        optimizer = self.job.optimizer()
        if optimizer is not None:
            optimizer.unscaled.clear()
        self._scale_of_step = None
        if new_scale is not None:
            self.job.server.set_scale(self.job.name, number_of(new_scale, "the scale"), reason="GradScaler.update")

    def get_scale(self) -> float:
        """Of the step in hand; when the model is done, what its last step left. As in torch, between step()
        and update() it is still that of the step that has ended."""
        if self._scale_of_step is not None:
            return self._scale_of_step
        return self.job.status().scale if self.job.done else self._step().scale

    def is_enabled(self) -> bool:
        return self._enabled

    def get_growth_factor(self) -> float:
        return self._value("growth_factor")

    def set_growth_factor(self, new_factor: float) -> None:
        self._refuse_another("growth_factor", new_factor)

    def get_backoff_factor(self) -> float:
        return self._value("backoff_factor")

    def set_backoff_factor(self, new_factor: float) -> None:
        self._refuse_another("backoff_factor", new_factor)

    def get_growth_interval(self) -> int:
        return self._value("growth_interval")

    def set_growth_interval(self, new_interval: int) -> None:
        self._refuse_another("growth_interval", new_interval)

    def _value(self, name: str):
        return self.job.server.scaler_state(self.job.name)[name]

    def _refuse_another(self, name: str, value) -> None:
        if value != self._value(name):
            raise errors.WrongState("the %s of %s is %s, and a specification is fixed; make a model of another name "
                                    "with scaler=ampd.DynamicScaler(%s=%s)"
                                    % (name, self.job.name, self._value(name), name, shown(value)))

    def state_dict(self) -> dict:
        """As torch's: scale, growth_factor, backoff_factor, growth_interval, _growth_tracker; not enabled: empty."""
        return self.job.server.scaler_state(self.job.name) if self._enabled else {}

    def load_state_dict(self, state_dict) -> None:
        """Does nothing, and says so: the state is on the server."""
        if self._enabled:
            warnings.warn("ampd.GradScaler: the scale is the server's, and was not changed; set_scale of ampd.connect "
                          "sets it", stacklevel=2)
