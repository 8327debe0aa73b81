"""The answers of a server as plain dataclasses: times are datetimes in UTC, durations are in seconds, enums are words.

A list of any of them makes a pandas.DataFrame."""
from __future__ import annotations

import dataclasses
import datetime

from ampd import _messages, spec
from ampd._client import in_own_names, struct

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)


@dataclasses.dataclass(frozen=True)
class WorkerStatus:
    """A worker of a model. Counts are since the server started."""

    name: str
    rank: int
    live: bool                  # its lease has not ended
    lease_left: float           # seconds
    last_step: int              # of the last push that counted; 0: none
    pushes: int
    overflow_pushes: int        # of these, with an Inf or a NaN of its own
    blocks_present: int         # of the open step, that have come from it
    blocks_wanted: int          # of the open step
    straggles: bool             # all others have waited for it, for most of each of the last 8 steps
    nonfinite: bool             # its last 5 pushes had Inf or NaN while at least half of the workers had none
    quarantined: bool           # steps go on without it
    join_time: datetime.datetime | None
    peer: str                   # address that it joined from
    joins: int
    replacements: int
    leaves: int
    fences: int                 # calls refused, as of an old holder of the rank
    slow_steps: int             # in which all others waited for it, for most of the step and at least 0.2 s
    slow_time: float            # seconds that they waited in those


@dataclasses.dataclass(frozen=True)
class ModelStatus:
    """How a model stands."""

    name: str
    state: str                  # "created", "loading", "waiting", "running", "stalled" or "done"
    waiting_for: str            # one sentence: what it waits for; "": nothing
    epoch: int
    step: int                   # the open step, or the next one
    attempted: int              # decided steps
    applied: int                # of these, applied
    skipped: int                # of these, skipped
    version: int                # newest complete version of the parameters
    durable_step: int           # last step that survives a crash; 0: only the initial values do
    scale: float                # loss scale
    scale_id: int
    scaler: str                 # policy: "dynamic", "static", "none", ...
    growth_tracker: int         # clean steps counted towards the next growth
    consecutive_overflows: int
    total_overflows: int
    learning_rate: float        # base rate of the next verdict; 0: the workers give it
    unstable: bool              # max_consecutive_overflows in a row are reached
    frozen: bool                # floor_policy "freeze" or "fail": no step before an operator acts
    recovering: bool            # the server has just started: `state` is what it may have been
    world_size: int
    parameter_count: int
    element_count: int
    block_count: int
    optimizer: str
    cast: str                   # dtype of what is pulled
    memory_bytes: int
    base_epoch: int             # epoch and last step of the checkpoint that the epoch began from
    base_step: int
    create_time: datetime.datetime | None
    workers: tuple[WorkerStatus, ...]  # by rank; of Server.model and Server.status


@dataclasses.dataclass(frozen=True)
class Shard:
    """A process that owns some blocks of every model."""

    index: int
    endpoint: str


@dataclasses.dataclass(frozen=True)
class ServerStatus:
    """How the process at the address stands, and its models."""

    version: str
    server_time: datetime.datetime | None
    uptime: float               # seconds
    fence: int                  # boot counter, or etcd revision of the shard's lock
    boot_id: str
    shard: int                  # index of the one that answers
    shard_count: int
    draining: bool
    isa: str                    # kernels in use
    trouble: str                # one sentence: what is wrong; "": nothing
    descriptors: int            # open in its process; 0: not known
    descriptors_max: int
    models: tuple[ModelStatus, ...]
    shards: tuple[Shard, ...]


@dataclasses.dataclass(frozen=True)
class ShardStatus:
    """A shard as the cluster sees it, or a process that waits for a place (`state` "standby", without an index)."""

    index: int | None
    endpoint: str
    state: str                  # "up", "leaving", "left", "down", "standby"; "unknown": shard 0 could not be asked
    since: datetime.datetime | None = None
    fence: int | None = None
    block_count: int = 0
    decided_step: int | None = None   # of the model that was asked for
    applied_step: int | None = None
    behind_models: int | None = None  # models whose last decided step it has not applied yet
    awaited_models: int | None = None
    trouble: str = ""


@dataclasses.dataclass(frozen=True)
class HistoryRow:
    """A decided step (`kind` "step"), or what came between two: "epoch", "scale_set", "scale_reset",
    "learning_rate_set", "evicted"."""

    epoch: int
    step: int                   # other kinds than "step": the step that follows
    kind: str
    verdict: str | None         # "applied", "skipped_overflow" or "skipped_empty"
    old_scale: float
    scale: float                # after the row
    old_scale_id: int
    scale_id: int
    version: int                # of the parameters, after
    norm: float                 # of the unscaled mean gradient before clipping; 0 when skipped
    learning_rate: float        # 0 when skipped; of "learning_rate_set" the one that was set
    old_learning_rate: float | None  # "learning_rate_set": the one before; None: not known
    clip: float                 # coefficient, the smallest over the groups; 0 when skipped
    contributors: int           # workers whose gradients counted
    loss: float | None          # mean over the workers that sent one, weighted as their gradients; None: nobody did
    loss_workers: int           # how many sent one
    metrics: dict[str, float] = dataclasses.field(hash=False)  # likewise, by their names
    overflow_rows: int          # pairs of parameter and worker with an overflow
    inf_count: int
    nan_count: int
    growth_tracker: int
    consecutive_overflows: int
    time: datetime.datetime | None
    superseded: bool            # rolled back later
    apply_us: int | None        # where the time since the decision before went, in microseconds: until the new version
    pull_us: int | None         # could be pulled; until the last worker had pulled;
    wait_us: int | None         # until the first push began: the workers computed;
    push_us: int | None         # until the last one was whole;
    vote_us: int | None         # until the decision. They add up to that time. None: not known
    parent_epoch: int | None    # "epoch": the one before
    base_epoch: int | None      # "epoch": epoch and last step of the checkpoint that it began from
    base_step: int | None
    from_step: int | None       # "scale_set", "scale_reset": first step that uses the scale; "learning_rate_set": whose
                                # verdict takes the rate; "evicted": that opens behind it
    rank: int | None            # "evicted": whose worker
    actor: str                  # who asked, or "server"
    reason: str

    @property
    def applied(self) -> bool:
        return self.verdict == "applied"

    @property
    def skipped(self) -> bool:
        return self.verdict is not None and self.verdict.startswith("skipped")


@dataclasses.dataclass(frozen=True)
class OverflowRow:
    """A parameter in which values were found that are not finite, or out of range, and whose they were."""

    epoch: int
    step: int
    parameter: str
    parameter_index: int
    source: str                 # "worker", "sum" (every worker's was finite), "range" (out of the optimizer's range)
    rank: int | None            # with "worker"
    worker: str                 # its name; "": not known any more
    inf_count: int
    nan_count: int
    first_index: int
    largest_finite: float
    time: datetime.datetime | None
    superseded: bool


@dataclasses.dataclass(frozen=True)
class Contributor:
    """A worker's part in a step."""

    rank: int
    worker: str
    weight: float


@dataclasses.dataclass(frozen=True)
class Explanation:
    """All that is known about a step. print() shows its text."""

    text: str                   # in words: whose gradient, which parameter, what the scale does, what to do
    row: HistoryRow
    contributors: tuple[Contributor, ...]
    overflows: tuple[OverflowRow, ...]  # up to 1000

    def __str__(self):
        return self.text


@dataclasses.dataclass(frozen=True)
class ReplayedStep:
    """A step under another scaler."""

    epoch: int
    step: int
    verdict: str                # as it was
    stored_scale: float         # after the step, as it was
    replayed_scale: float       # after the step, under the other scaler
    uncertain: bool             # under the other scale the verdict might have been another


@dataclasses.dataclass(frozen=True)
class CheckpointInfo:
    """A checkpoint that all shards hold."""

    model: str
    epoch: int                  # in which it was cut
    step: int                   # last step in it; 0: the initial values
    version: int
    applied: int
    scale: float                # 0: not known
    size_bytes: int             # of the answering shard's file
    manifest_hash: str
    create_time: datetime.datetime | None
    parts: int                  # files, one a shard
    path: str                   # its folder, relative to the directory of checkpoints


@dataclasses.dataclass(frozen=True)
class GroupSpecification:
    """A group of parameters, with what holds for it."""

    name: str
    lr_factor: float
    weight_decay: float
    clip_norm: float            # with clip_scope "group"; 0: none


@dataclasses.dataclass(frozen=True)
class ModelSpecification:
    """What a model is, with all defaults filled in, named as in ampd.join."""

    name: str
    parameters: tuple[spec.Parameter, ...]
    groups: tuple[GroupSpecification, ...]
    optimizer: spec.Optimizer   # its `kind` is "sgd", "adamw", ...
    schedule: spec.Schedule     # its `kind` is "constant", "step", "cosine" or "worker"
    scaler: spec.Scaler
    cast: str
    world_size: int
    max_steps: int              # 0: endless
    checkpoint_every: int       # 0: only on demand
    keep_last: int
    keep_every: int
    clip_norm: float            # 0: off
    clip_value: float           # 0: off
    clip_scope: str
    quorum: int                 # 0: a step needs all workers
    on_loss: str
    min_workers: int
    loss_timeout: float
    weighting: str
    durability: str
    cast_overflow: str
    floor_policy: str
    max_consecutive_overflows: int


# ---- from messages ----

_DTYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32"}


def _value(message, name: str):
    field = message.DESCRIPTOR.fields_by_name[name]
    value = getattr(message, name)
    if field.enum_type is not None:
        said = _messages.word(field.enum_type, value)
        return _DTYPES.get(said, said) if field.enum_type.name == "Dtype" else said
    if field.message_type is not None and field.message_type.name == "Timestamp":
        if not message.HasField(name):
            return None
        return _EPOCH + datetime.timedelta(seconds=value.seconds, microseconds=value.nanos // 1000)
    if field.has_presence and not message.HasField(name):
        return None
    return value


def _take(kind, message, **given):
    """A dataclass of the fields that the message has by the same names, and of those that are given."""
    names = [field.name for field in dataclasses.fields(kind) if field.name not in given]
    return kind(**{name: _value(message, name) for name in names}, **given)


def worker(message) -> WorkerStatus:
    return _take(WorkerStatus, message, lease_left=message.lease_left_ms / 1000, slow_time=message.slow_ms / 1000)


def model(message) -> ModelStatus:
    record = message.scale
    return _take(ModelStatus, message, waiting_for=in_own_names(message.waiting_for), scale=record.scale,
                 scale_id=record.scale_id, scaler=_value(record, "policy"), attempted=record.attempted,
                 skipped=record.skipped, growth_tracker=record.growth_tracker,
                 consecutive_overflows=record.consecutive_overflows, total_overflows=record.total_overflows,
                 cast=_value(message, "cast_dtype"), workers=tuple(worker(one) for one in message.workers))


def server(message) -> ServerStatus:
    return _take(ServerStatus, message, uptime=message.uptime_ms / 1000,
                 models=tuple(model(one) for one in message.models),
                 shards=tuple(_take(Shard, one) for one in message.shards))


def shard(message, with_model: bool) -> ShardStatus:
    common = {"index": message.index, "endpoint": message.endpoint, "block_count": message.block_count}
    if message.unknown:
        return ShardStatus(state="unknown", **common)
    state = {(True, True): "leaving", (True, False): "left", (False, True): "up", (False, False): "down"}
    steps = {} if with_model else {"decided_step": None, "applied_step": None}
    return _take(ShardStatus, message, state=state[message.leaving, message.up], **steps)


def history(message) -> HistoryRow:
    record, totals = message.record, message.overflow_totals
    kind = _value(message, "kind")
    of_epoch, by_hand = kind == "epoch", kind not in ("step", "epoch")
    times = {name: getattr(message.times, name) if message.HasField("times") else None
             for name in ("apply_us", "pull_us", "wait_us", "push_us", "vote_us")}
    return _take(HistoryRow, message, scale=record.scale, scale_id=record.scale_id, clip=message.clip_coefficient,
                 metrics={one.name: one.value for one in message.metrics}, **times,
                 overflow_rows=totals.rows, inf_count=totals.inf_count, nan_count=totals.nan_count,
                 growth_tracker=record.growth_tracker, consecutive_overflows=record.consecutive_overflows,
                 time=_value(message, "decide_time"), parent_epoch=message.parent_epoch if of_epoch else None,
                 base_epoch=message.base_epoch if of_epoch else None,
                 base_step=message.base_step if of_epoch else None, from_step=message.from_step if by_hand else None,
                 rank=message.rank if kind == "evicted" else None,
                 old_learning_rate=message.old_learning_rate or None)


def overflow(message) -> OverflowRow:
    return _take(OverflowRow, message, worker=message.worker_name, time=_value(message, "decide_time"))


def explanation(message) -> Explanation:
    return Explanation(message.explanation, history(message.row),
                       tuple(_take(Contributor, one, worker=one.worker_name) for one in message.contributors),
                       tuple(overflow(one) for one in message.overflows))


def replayed(message) -> ReplayedStep:
    return _take(ReplayedStep, message)


def checkpoint(message) -> CheckpointInfo:
    return _take(CheckpointInfo, message)


# ---- specifications ----

def _optimizer(message) -> spec.Optimizer:
    kind = {one.kind: one for one in (spec.SGD, spec.Adam, spec.AdamW, spec.Adagrad, spec.RMSprop, spec.Lion)}.get(
        _value(message, "kind"), spec.AdamW)
    renamed = {"lr": "learning_rate", "eps": "epsilon", "lr_decay": "learning_rate_decay"}
    values = {field.name: _value(message, renamed.get(field.name, field.name))
              for field in dataclasses.fields(kind) if field.name != "betas"}
    if message.HasField("beta1"):
        values["betas"] = (message.beta1, message.beta2)
    return kind(**{name: value for name, value in values.items() if value is not None})


def _schedule(message) -> spec.Schedule:
    kind = _value(message, "kind")
    if kind == "worker":
        return spec.Worker()
    if kind == "step":
        return spec.Step(message.step_size, message.gamma, message.warmup_steps)
    if kind == "cosine":
        return spec.Cosine(message.total_steps, message.warmup_steps, message.min_learning_rate)
    return spec.Constant(message.warmup_steps)


def _scaler(message) -> spec.Scaler:
    policy = _value(message, "policy")
    if policy == "none":
        return spec.NoScaler()
    if policy == "static":
        return spec.StaticScaler(message.init_scale)
    return _take(spec.DynamicScaler, message)


def specification(message) -> ModelSpecification:
    optimizer = _optimizer(message.optimizer)
    clip_norm = message.clip.max_norm if message.clip.HasField("max_norm") else 0.0

    def group(one):
        factor, decay, norm = (_value(one, name) for name in ("learning_rate_factor", "weight_decay", "max_norm"))
        return GroupSpecification(one.name, 1.0 if factor is None else factor,
                                  optimizer.weight_decay if decay is None else decay,
                                  clip_norm if norm is None else norm)

    return _take(ModelSpecification, message, optimizer=optimizer, schedule=_schedule(message.schedule),
                 scaler=_scaler(message.scaler), cast=_value(message, "cast_dtype"), clip_norm=clip_norm,
                 parameters=tuple(spec.Parameter(one.name, tuple(one.shape), one.group) for one in message.parameters),
                 groups=tuple(group(one) for one in message.groups) or (
                     GroupSpecification("", 1.0, optimizer.weight_decay, clip_norm),),
                 clip_value=message.clip.value if message.clip.HasField("value") else 0.0,
                 clip_scope=_value(message.clip, "scope") or "global", loss_timeout=message.loss_timeout_ms / 1000)


_SCALER_NUMBERS = ("init_scale", "growth_factor", "backoff_factor", "growth_interval", "hysteresis", "min_scale",
                   "max_scale")


def scaler_message(scaler) -> dict:
    """A scaler of the specification as ReplayPolicy takes it."""
    spec.refuse_other("scaler", scaler, spec.Scaler)
    made = struct("ampclient_spec")
    scaler._put(made)
    numbers = {field: getattr(made, field) for field in _SCALER_NUMBERS}
    return {"policy": made.scaler, **{field: value for field, value in numbers.items() if value != 0}}
