"""What a model is: optimizers, schedules, scalers, groups. Names and defaults are torch's where torch has them.

Every value is checked by the server, which names what it refuses.
"""
from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar

from ampd import errors
from ampd._client import milliseconds, put, shown, utf8
from ampd._library import ffi, lib


# ---- optimizers ----

class _Optimizer:
    def __new__(cls, *given, **values):
        """Refuses parameters, and what torch's optimizers have and these have not, with where it goes."""
        if given and isinstance(given[0], (Iterator, list, tuple, dict)):
            raise errors.InvalidArgument("ampd.%s(lr=...) takes no parameters; ampd.join has the module" % cls.__name__)
        unknown = values.keys() - {one.name for one in dataclasses.fields(cls)}
        if unknown:
            raise errors.InvalidArgument("ampd.%s has no %s; leave it out"
                                         % (cls.__name__, ", ".join(sorted(unknown))))
        return super().__new__(cls)


@dataclasses.dataclass(frozen=True)
class SGD(_Optimizer):
    """torch.optim.SGD."""

    kind: ClassVar[str] = "sgd"
    lr: float = 0.01
    momentum: float = 0.0
    dampening: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def _put(self, spec) -> None:
        spec.optimizer = lib.AMPCLIENT_SGD
        _put(spec, self, "lr", "momentum", "dampening", "nesterov")


@dataclasses.dataclass(frozen=True)
class Adam(_Optimizer):
    """torch.optim.Adam: weight decay is added to the gradient."""

    kind: ClassVar[str] = "adam"
    lr: float = 0.001
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def _put(self, spec) -> None:
        spec.optimizer = lib.AMPCLIENT_ADAM
        _put_betas(spec, self.betas)
        _put(spec, self, "lr", "eps")


@dataclasses.dataclass(frozen=True)
class AdamW(Adam):
    """torch.optim.AdamW: weight decay is apart from the gradient."""

    kind: ClassVar[str] = "adamw"
    weight_decay: float = 0.01

    def _put(self, spec) -> None:
        super()._put(spec)
        spec.optimizer = lib.AMPCLIENT_ADAMW


@dataclasses.dataclass(frozen=True)
class Adagrad(_Optimizer):
    """torch.optim.Adagrad."""

    kind: ClassVar[str] = "adagrad"
    lr: float = 0.01
    lr_decay: float = 0.0
    eps: float = 1e-10
    weight_decay: float = 0.0

    def _put(self, spec) -> None:
        spec.optimizer = lib.AMPCLIENT_ADAGRAD
        _put(spec, self, "lr", "lr_decay", "eps")


@dataclasses.dataclass(frozen=True)
class RMSprop(_Optimizer):
    """torch.optim.RMSprop. With `centered` momentum is 0."""

    kind: ClassVar[str] = "rmsprop"
    lr: float = 0.01
    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0
    momentum: float = 0.0
    centered: bool = False

    def _put(self, spec) -> None:
        spec.optimizer = lib.AMPCLIENT_RMSPROP
        _put(spec, self, "lr", "alpha", "eps", "momentum", "centered")


@dataclasses.dataclass(frozen=True)
class Lion(_Optimizer):
    """Lion (Chen and others, 2023), with decoupled weight decay."""

    kind: ClassVar[str] = "lion"
    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0

    def _put(self, spec) -> None:
        spec.optimizer = lib.AMPCLIENT_LION
        _put_betas(spec, self.betas)
        _put(spec, self, "lr")


# ---- schedules of the learning rate ----

@dataclasses.dataclass(frozen=True)
class Constant:
    """The same at each applied step, after `warmup` of them that rise to it. All schedules count applied steps."""

    kind: ClassVar[str] = "constant"
    warmup: int = 0

    def _put(self, spec) -> None:
        _put(spec, self, warmup="warmup_steps")
        spec.schedule = lib.AMPCLIENT_LINEAR_WARMUP if spec.warmup_steps else lib.AMPCLIENT_CONSTANT


@dataclasses.dataclass(frozen=True)
class Step:
    """Times `gamma` every `step_size` applied steps, as torch.optim.lr_scheduler.StepLR."""

    kind: ClassVar[str] = "step"
    step_size: int
    gamma: float = 0.1
    warmup: int = 0

    def _put(self, spec) -> None:
        spec.schedule = lib.AMPCLIENT_STEP
        _put(spec, self, step_size="step_every", gamma="step_factor", warmup="warmup_steps")


@dataclasses.dataclass(frozen=True)
class Cosine:
    """Half a cosine down to `min_lr` at applied step `total`, after `warmup` steps that rise."""

    kind: ClassVar[str] = "cosine"
    total: int
    warmup: int = 0
    min_lr: float = 0.0

    def _put(self, spec) -> None:
        spec.schedule = lib.AMPCLIENT_COSINE
        _put(spec, self, total="total_steps", warmup="warmup_steps", min_lr="lr_min")


@dataclasses.dataclass(frozen=True)
class Worker:
    """Each step's rate is what the workers give (Job.set_learning_rate, or ampd.Optimizer's param_groups with a
    scheduler of torch); all of a step must give the same."""

    kind: ClassVar[str] = "worker"

    def _put(self, spec) -> None:
        spec.schedule = lib.AMPCLIENT_WORKER


# ---- loss scalers ----

@dataclasses.dataclass(frozen=True)
class DynamicScaler:
    """torch's GradScaler. `policy` names another dynamic one: "megatron", "deepspeed", "deepspeed_consecutive",
    "apex_hysteresis", "paddle"; those take `hysteresis` overflows to shrink."""

    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    min_scale: float = 1.0
    max_scale: float = 2.0 ** 24
    policy: str = "dynamic"
    hysteresis: int = 2

    def _put(self, spec) -> None:
        spec.scaler = _choice("scaler policy", self.policy, _POLICIES)
        _put(spec, self, "init_scale", "growth_factor", "backoff_factor", "growth_interval", "min_scale", "max_scale",
             "hysteresis")


@dataclasses.dataclass(frozen=True)
class StaticScaler:
    """Always `scale`; a step with an Inf or a NaN is skipped."""

    policy: ClassVar[str] = "static"
    scale: float = 65536.0

    def _put(self, spec) -> None:
        spec.scaler = lib.AMPCLIENT_SCALER_STATIC
        _put(spec, self, scale="init_scale")
        spec.min_scale, spec.max_scale = min(spec.init_scale, 1.0), max(spec.init_scale, 2.0 ** 24)


@dataclasses.dataclass(frozen=True)
class NoScaler:
    """A scale of 1, as bf16 needs; a step with an Inf or a NaN is skipped all the same."""

    policy: ClassVar[str] = "none"

    def _put(self, spec) -> None:
        spec.scaler = lib.AMPCLIENT_SCALER_NONE


Optimizer = SGD | Adam | AdamW | Adagrad | RMSprop | Lion
Schedule = Constant | Step | Cosine | Worker
Scaler = DynamicScaler | StaticScaler | NoScaler

_POLICIES = {"dynamic": lib.AMPCLIENT_SCALER_DYNAMIC, "megatron": lib.AMPCLIENT_SCALER_MEGATRON,
             "deepspeed": lib.AMPCLIENT_SCALER_DEEPSPEED,
             "deepspeed_consecutive": lib.AMPCLIENT_SCALER_DEEPSPEED_CONSECUTIVE,
             "apex_hysteresis": lib.AMPCLIENT_SCALER_APEX_HYSTERESIS, "paddle": lib.AMPCLIENT_SCALER_PADDLE}


# ---- parameters ----

_GROUPS_MAX = 16
_NAME_BYTES_MAX = 127


@dataclasses.dataclass(frozen=True)
class Group:
    """Parameters with values of their own: those whose names are in `parameters`, or for which it says true.
    `lr_factor` is times the learning rate (0 freezes them); `clip_norm` holds with clip_scope="group", and 0 is that of
    the model. A parameter is in the first group that has it, and each group has to have one. Without a `weight_decay`
    of its own it is two groups where `no_decay` has a part of it."""

    parameters: Iterable[str] | Callable[[str], bool]
    name: str = ""
    lr_factor: float | None = None
    weight_decay: float | None = None
    clip_norm: float = 0.0

    def _members(self, what: str, names: Sequence[str]) -> set[str]:
        if callable(self.parameters):
            return {name for name in names if self.parameters(name)}
        return named(what, self.parameters, names)


@dataclasses.dataclass(frozen=True)
class Parameter:
    """One parameter of a model: its name, its shape, and the group that it is in."""

    name: str
    shape: tuple[int, ...]
    group: int = 0


def named(what: str, given, names: Sequence[str]) -> set[str]:
    """The names of parameters that the caller has given, each of which there is."""
    try:
        found = {given} if isinstance(given, str) else set(given)
    except TypeError:
        raise errors.InvalidArgument("%s has %s; give names of parameters, or a function" % (what, shown(given))
                                     ) from None
    for one in found - set(names):
        if not isinstance(one, str):
            raise errors.InvalidArgument("%s has %s; give names of parameters, as named_parameters() has them, or a "
                                         "function" % (what, shown(one)))
        near = difflib.get_close_matches(str(one), names, 1, 0)
        raise errors.InvalidArgument("%s has %s, and the model has no such parameter; the nearest name is %s"
                                     % (what, shown(one), repr(near[0]) if near else "none"))
    return found


def grouped(shapes: Sequence[tuple[str, tuple[int, ...]]], groups: Sequence[Group],
            no_decay: set[str], decays: bool) -> tuple[list[Parameter], list[Group]]:
    """Parameters with the index of their group, and the groups: the first that has it; else one of those without. What
    does not decay is a group of its own, in those that are given only if the optimizer `decays`."""
    made = list(groups) if isinstance(groups, Iterable) else [groups]
    for group in made:
        if not isinstance(group, Group):
            raise errors.InvalidArgument("groups has %s; give ampd.Group(...)" % shown(group))
    if not made and not no_decay:
        return [Parameter(name, shape) for name, shape in shapes], []
    names = [name for name, _ in shapes]
    members = [group._members("groups[%d]" % i, names) for i, group in enumerate(made)]
    made.append(Group((), "default"))  # what no other has

    def choose(name):
        """(which group, whether in the part of it that does not decay)"""
        found = next((i for i, one in enumerate(members) if name in one), len(members))
        splits = made[found].weight_decay is None and (decays or found == len(members))
        return found, name in no_decay and splits

    chosen = [choose(name) for name in names]
    for i in set(range(len(members))) - {group for group, _ in chosen}:
        raise errors.InvalidArgument("groups[%d] gets no parameter: it is for none, or each is in a group before it; "
                                     "correct its parameters, or leave it out" % i)
    used = sorted(set(chosen))
    if len(used) > _GROUPS_MAX:
        raise errors.InvalidArgument("there are %d groups with those that no_decay divides, and at most %d are "
                                     "possible; give some of them a weight_decay, or fewer groups"
                                     % (len(used), _GROUPS_MAX))

    def part(group, still):
        whole = made[group]
        if not still:
            return whole
        name = whole.name if group < len(members) else ""
        if name and (group, False) in used:
            name += "_no_decay"
        return dataclasses.replace(whole, name=name or "no_decay", weight_decay=0.0)

    return ([Parameter(name, shape, used.index(group)) for (name, shape), group in zip(shapes, chosen)],
            [part(*one) for one in used])


# ---- as the library has it ----

_CASTS = {"float16": lib.AMP_F16, "bfloat16": lib.AMP_BF16, "float32": lib.AMP_F32}
_SHORT = {"fp16": "float16", "half": "float16", "f16": "float16", "bf16": "bfloat16", "fp32": "float32",
          "f32": "float32"}
_SYNC = {"wait": lib.AMPCLIENT_WAIT, "shrink": lib.AMPCLIENT_SHRINK}
_DURABILITY = {"checkpoint": lib.AMPCLIENT_DURABILITY_CHECKPOINT, "step": lib.AMPCLIENT_DURABILITY_STEP}
_SCOPES = {"global": lib.AMPCLIENT_CLIP_GLOBAL, "group": lib.AMPCLIENT_CLIP_GROUP}
_WEIGHTING = {"equal": lib.AMPCLIENT_EQUAL, "pushed": lib.AMPCLIENT_PUSHED}
_OVERFLOW = {"report": lib.AMPCLIENT_CAST_REPORT, "saturate": lib.AMPCLIENT_CAST_SATURATE}
_FLOOR = {"clamp": lib.AMPCLIENT_FLOOR_CLAMP, "freeze": lib.AMPCLIENT_FLOOR_FREEZE, "fail": lib.AMPCLIENT_FLOOR_FAIL}


def dtype_name(dtype) -> str:
    """"float16", "bfloat16" or "float32" of one of torch's, numpy's or the string itself, which may be a short word."""
    name = str(dtype).rpartition(".")[2] if not isinstance(dtype, type) else dtype.__name__
    name = _SHORT.get(name, name)
    if name not in _CASTS:
        raise errors.InvalidArgument("the dtype %s is not possible; give float16, bfloat16 or float32" % (dtype,))
    return name


def dtype_of(dtype) -> int:
    return _CASTS[dtype_name(dtype)]


def _choice(what: str, word: str, choices: dict):
    if not isinstance(word, str) or word not in choices:
        raise errors.InvalidArgument("%s is %s; give one of %s" % (what, shown(word), ", ".join(choices)))
    return choices[word]


# Those whose 0 means the default to the library: GIVEN in proto/spec_fields.def. The 0 of others of these is a value
# here, and has a number of its own there: of checkpoint_every ON_DEMAND, of a beta BETA_ZERO.
WITH_DEFAULT = frozenset({
    "lr", "eps", "alpha", "step_factor", "init_scale", "growth_factor", "backoff_factor",
    "growth_interval", "hysteresis", "min_scale", "max_scale", "loss_timeout_ms", "min_workers",
    "max_consecutive_overflows", "keep_last"})
ON_DEMAND = 2 ** 64 - 1  # AMPCLIENT_CHECKPOINT_ON_DEMAND
BETA_ZERO = -1e-300  # AMPCLIENT_BETA_ZERO


def _put_one(spec, field: str, value, name: str) -> None:
    put(spec, field, value, name, above_zero=field in WITH_DEFAULT)


def _put(spec, values, *fields: str, **renamed: str) -> None:
    """Attributes of `values` into the fields of the same names, and of those behind "="."""
    for name, field in {**dict(zip(fields, fields)), **renamed}.items():
        _put_one(spec, field, getattr(values, name), name)


def _put_betas(spec, betas) -> None:
    try:
        first, second = betas
    except (TypeError, ValueError):
        raise errors.InvalidArgument("betas is %s; give two numbers" % shown(betas)) from None
    for at, (field, value) in enumerate((("beta1", first), ("beta2", second))):
        _put_one(spec, field, value, "betas[%d]" % at)
        if getattr(spec, field) == 0:
            setattr(spec, field, BETA_ZERO)


def refuse_other(what: str, value, kinds) -> None:
    if not isinstance(value, kinds):
        raise errors.InvalidArgument("the %s is %s; give one of %s" % (
            what, shown(value), ", ".join("ampd.%s(...)" % kind.__name__ for kind in kinds.__args__)))


@dataclasses.dataclass(frozen=True)
class Model:
    """A whole specification. Times are in seconds."""

    name: str
    parameters: Sequence[Parameter]
    world_size: int
    optimizer: Optimizer
    schedule: Schedule
    scaler: Scaler
    groups: Sequence[Group]
    cast: object
    clip_norm: float
    clip_value: float
    clip_scope: str
    max_steps: int
    checkpoint_every: int
    keep_last: int
    keep_every: int
    quorum: int
    on_loss: str
    min_workers: int
    loss_timeout: float
    weighting: str
    durability: str
    cast_overflow: str
    floor_policy: str
    max_consecutive_overflows: int

    def to_library(self):
        """(struct ampclient_spec *, what has to stay alive with it)"""
        spec = ffi.new("struct ampclient_spec *")
        spec.size = ffi.sizeof("struct ampclient_spec")
        kept = [ffi.new("char[]", utf8(self.name, "the name of the model"))]
        spec.name = kept[0]
        _put(spec, self, "world_size")
        self._put_parameters(spec, kept)
        self._put_groups(spec, kept)
        refuse_other("optimizer", self.optimizer, Optimizer)
        refuse_other("schedule", self.schedule, Schedule)
        refuse_other("scaler", self.scaler, Scaler)
        self.optimizer._put(spec)
        spec.weight_decay_set = True
        _put(spec, self.optimizer, "weight_decay")
        self.schedule._put(spec)
        self.scaler._put(spec)
        _put(spec, self, "clip_value", "max_steps", "checkpoint_every", "keep_last", "keep_every", "quorum",
             "min_workers", "max_consecutive_overflows", clip_norm="clip_max_norm")
        if spec.checkpoint_every == 0:
            spec.checkpoint_every = ON_DEMAND
        _put_one(spec, "loss_timeout_ms", milliseconds(self.loss_timeout, "loss_timeout"), "loss_timeout")
        spec.sync = lib.AMPCLIENT_QUORUM if self.quorum else lib.AMPCLIENT_SYNC
        spec.cast = dtype_of(self.cast)
        spec.on_loss = _choice("on_loss", self.on_loss, _SYNC)
        spec.durability = _choice("durability", self.durability, _DURABILITY)
        spec.clip_scope = _choice("clip_scope", self.clip_scope, _SCOPES)
        spec.weighting = _choice("weighting", self.weighting, _WEIGHTING)
        spec.cast_overflow = _choice("cast_overflow", self.cast_overflow, _OVERFLOW)
        spec.floor_policy = _choice("floor_policy", self.floor_policy, _FLOOR)
        return spec, kept

    def _put_parameters(self, spec, kept: list) -> None:
        array = ffi.new("struct ampclient_parameter_spec[]", max(1, len(self.parameters)))
        kept.append(array)
        for place, parameter in zip(array, self.parameters):
            name = utf8(parameter.name, "the name of a parameter")
            if not 1 <= len(name) <= _NAME_BYTES_MAX or b"#" in name or b"@" in name:
                raise errors.InvalidArgument("the parameter %r has a name of %d bytes, and names have 1 to %d without "
                                             "\"#\" and \"@\"; name the parts of the module otherwise"
                                             % (parameter.name, len(name), _NAME_BYTES_MAX))
            kept.append(ffi.new("char[]", name))
            if len(parameter.shape) > 8:
                raise errors.InvalidArgument("parameter %r has %d dimensions; at most 8 are possible"
                                             % (parameter.name, len(parameter.shape)))
            place.name, place.dimensions, place.group = kept[-1], len(parameter.shape), parameter.group
            for at, extent in enumerate(parameter.shape):
                place.shape[at] = extent
        spec.parameters, spec.parameters_count = array, len(self.parameters)

    def _put_groups(self, spec, kept: list) -> None:
        if not self.groups:
            return
        array = ffi.new("struct ampclient_group_spec[]", len(self.groups))
        kept.append(array)
        for place, group in zip(array, self.groups):
            kept.append(ffi.new("char[]", utf8(group.name, "the name of a group")))
            place.name = kept[-1]
            _put(place, group, clip_norm="clip_max_norm")
            if group.lr_factor is not None:
                place.lr_factor_set = True
                _put(place, group, "lr_factor")
            if group.weight_decay is not None:
                place.weight_decay_set = True
                _put(place, group, "weight_decay")
        spec.groups, spec.groups_count = array, len(self.groups)
