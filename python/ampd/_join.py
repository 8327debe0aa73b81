"""ampd.join: creates the model or finds it, gives it its first values, and joins it as a worker."""
from __future__ import annotations

import contextlib
import operator
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence

import numpy

from ampd import errors, spec
from ampd import job as jobs
from ampd._client import RECONNECT_S, Client, endpoint_of, shown, utf8
from ampd._library import ffi, lib

_NAME_BYTES_MAX = 127      # of a worker
RECOVERING_PAUSE_S = 0.1   # between two looks whether a model has come back


def _from_environment(name: str, given: int | None) -> int | None:
    if given is not None or not os.environ.get(name):
        return given
    try:
        return int(os.environ[name])
    except ValueError:
        raise errors.InvalidArgument("the environment variable %s is %r; set it to a number, or unset it"
                                     % (name, os.environ[name])) from None


def _count(name: str, given: int | None, least: int) -> int | None:
    """What is given, or what the environment has for it: a whole number."""
    found = _from_environment(name.upper(), given)
    with contextlib.suppress(TypeError):
        if found is None or operator.index(found) >= least:
            return found
    raise errors.InvalidArgument("%s is %s; give a whole number, %d or above" % (name, shown(found), least))


def _place_of(name: str) -> str:
    """Where an argument goes that torch's optimizers, schedulers and scaler have; "": nowhere."""
    name = {"learning_rate": "lr"}.get(name, name)
    for part, kinds in (("optimizer", (spec.AdamW, *spec.Optimizer.__args__)), ("schedule", spec.Schedule.__args__),
                        ("scaler", spec.Scaler.__args__)):
        for kind in kinds:
            if name in kind.__dataclass_fields__:
                return "; give %s=ampd.%s(%s=...)" % (part, kind.__name__, name)
    return ""


def _is_module(model) -> bool:
    # Whoever has a module has imported torch.
    return "torch" in sys.modules and isinstance(model, sys.modules["torch"].nn.Module)


def _values_of(model) -> tuple[list[tuple[str, tuple[int, ...]]], Callable[[], list]]:
    """(names and shapes, what gives the first values)"""
    if _is_module(model):
        from ampd import module
        return module.shapes(model), lambda: module.initial_values(model)
    if isinstance(model, Mapping):
        arrays = {name: jobs.array_of("the value of %s" % name, value) for name, value in model.items()}
        for name, array in arrays.items():
            # Numbers that are written out have no dtype: [1, 2] are as good as [1.0, 2.0].
            if array.dtype.kind not in ("f" if hasattr(model[name], "dtype") else "fiu") or array.size == 0:
                raise errors.InvalidArgument("the value of %s is an array of %s with %d elements, and what is trained "
                                             "has floating-point numbers; convert it to float32, or leave it out"
                                             % (name, array.dtype, array.size))
        return ([(name, array.shape) for name, array in arrays.items()],
                lambda: [numpy.ascontiguousarray(array, numpy.float32) for array in arrays.values()])
    raise errors.InvalidArgument("model is a %s; give a torch module, or a dict from names to arrays"
                                 % type(model).__name__)


def _exists(client: Client, name: str) -> bool:
    from ampd import server
    try:
        server.Server(client).model(name)
    except errors.NotFound:
        return False
    return True


def _has_values(client: Client, name: str) -> bool:
    """The model goes on from what it has. While it is recovering nobody knows that yet: it is waited for."""
    from ampd import server
    until = time.monotonic() + (client.options["reconnect_timeout"] or RECONNECT_S)
    while (status := server.Server(client).model(name)).recovering and time.monotonic() < until:
        time.sleep(RECOVERING_PAUSE_S)
    return not status.recovering and status.state not in ("created", "loading")


def _create(client: Client, model: spec.Model, restore) -> None:
    made, kept = model.to_library()
    if restore is not None and not _exists(client, model.name):
        from ampd import _files
        _files.refuse_unfit(restore, model)
    client.call(lib.ampclient_create, client.handle, made, ffi.NULL)
    del kept


def _check(name: str, rank: int | None, world_size: int | None, worker_name: str | None) -> None:
    """What would be refused when the model has been made already, and so would leave one that nobody wants."""
    if rank is None and worker_name is None:
        raise errors.InvalidArgument("this worker has no name: give rank or worker_name, or set RANK in the "
                                     "environment")
    if worker_name is not None and len(utf8(worker_name, "worker_name")) > _NAME_BYTES_MAX:
        raise errors.InvalidArgument("worker_name is longer than %d bytes; give a shorter one" % _NAME_BYTES_MAX)
    if rank is not None and world_size is not None and not 0 <= rank < world_size:
        raise errors.InvalidArgument("rank is %d and world_size %d; ranks of %s are 0 to %d"
                                     % (rank, world_size, name, world_size - 1))


def _give_values(client: Client, name: str, values: Callable[[], list], restore) -> None:
    if restore is None:
        jobs.load(client, name, values())
        return
    if _has_values(client, name):
        return
    from ampd import _files
    try:
        _files.load(client, name, restore, full=True)
    except errors.Error as error:
        if _files.HAS_VALUES not in str(error):  # else another one has loaded them in between
            raise


def _no_decay(model, no_decay, names: Sequence[str]) -> set[str]:
    if no_decay is None:
        return set()
    if not callable(no_decay):
        return spec.named("no_decay", no_decay, names)
    if _is_module(model):
        from ampd import module
        return {name for name, one in module.trained(model).items() if no_decay(name, one)}
    return {name for name in names if no_decay(name, jobs.array_of("the value of %s" % name, model[name]))}


def join(endpoint: str | None, name: str, model=None, *, optimizer: spec.Optimizer | None = None,
         schedule: spec.Schedule = spec.Constant(), scaler: spec.Scaler | None = None,
         groups: Sequence[spec.Group] = (), no_decay=None, cast="float16", clip_norm: float = 0.0,
         clip_value: float = 0.0, clip_scope: str = "global", max_steps: int = 0, checkpoint_every: int = 100,
         keep_last: int = 3, keep_every: int = 0, quorum: int = 0, on_loss: str = "wait", min_workers: int = 1,
         loss_timeout: float = 600.0, weighting: str = "equal", durability: str = "checkpoint",
         cast_overflow: str = "report", floor_policy: str = "clamp", max_consecutive_overflows: int = 50,
         rank: int | None = None, world_size: int | None = None, worker_name: str | None = None,
         replace: bool = False, take_back: bool = False, accumulate: int = 1, gradients=None,
         restore: os.PathLike | str | None = None, pin_memory: bool = True, **connection) -> jobs.Job:
    """Joins the model `name` as a worker, and returns the ampd.Job.

    `endpoint` is HOST:PORT, unix:/PATH, or with tls:// in front. None: AMPD_ENDPOINT of the environment, which
    `python3 -m ampd.launch` sets, else 127.0.0.1:7420.

    `model` is a torch module, or a dict from names to arrays: the model is made from it, or found if it was made with
    the same specification, and gets its first values from rank 0 (who loads first wins). None: it is there already.
    `rank` and `world_size` are by default RANK and WORLD_SIZE of the environment, as torchrun sets them; else one
    worker alone.

    `cast` is the dtype of what is pulled. The scaler is by default a DynamicScaler for float16, and none for others.
    `no_decay` is a set of names or a function (name, parameter) -> bool: those have no weight decay, if they are not in
    a Group that has one of its own. `quorum`: a step ends with the gradients of so many workers. `accumulate`:
    pushes of each parameter a step, which are added up.
    `gradients`: the dtype in which gradients are pushed, each converted by one copy where it has another; by default
    they go as they are.
    `restore`: a file of Server.export (or `ampctl checkpoint export`): a model that has no values yet gets all of it in
    place of first values, and goes on after its step. All else is as in docs/specification.md; times are in seconds.
    `pin_memory`: with a module on a CUDA device, memory that it is copied from and to is pinned, also what is shared
    with a server on this host.
    `connection`: cacert, cert, key, server_name, token_file, token_over_plaintext, connect_timeout, reconnect_timeout,
    call_timeout, step_timeout.
    """
    rank, world_size = _count("rank", rank, 0), _count("world_size", world_size, 1)
    if rank is None and worker_name is None and world_size in (None, 1):
        rank = 0
    world_size = world_size if world_size is not None else 1 if model is not None else None
    Client.refuse_options("ampd.join", connection, _place_of)
    utf8(name, "the name of the model")
    code = None if gradients is None else spec.dtype_of(gradients)
    options, kept = jobs.join_options(rank, world_size, worker_name, replace, take_back, accumulate)
    client = Client(endpoint_of(endpoint), **connection)
    try:
        if model is not None:
            shapes, values = _values_of(model)
            excluded = _no_decay(model, no_decay, [one for one, _ in shapes])
            parameters, made = spec.grouped(shapes, groups, excluded,
                                            getattr(optimizer or spec.AdamW(), "weight_decay", 0) != 0)
            _check(name, rank, world_size, worker_name)
            if scaler is None:
                scaler = spec.DynamicScaler() if spec.dtype_name(cast) == "float16" else spec.NoScaler()
            loads = rank in (None, 0)
            if restore is not None and not loads and not os.path.exists(restore):
                restore = None  # this rank's machine need not have the file
            _create(client, spec.Model(
                name=name, parameters=parameters, world_size=world_size, optimizer=optimizer or spec.AdamW(),
                schedule=schedule, scaler=scaler, groups=made, cast=cast, clip_norm=clip_norm, clip_value=clip_value,
                clip_scope=clip_scope, max_steps=max_steps, checkpoint_every=checkpoint_every, keep_last=keep_last,
                keep_every=keep_every, quorum=quorum, on_loss=on_loss, min_workers=min_workers,
                loss_timeout=loss_timeout, weighting=weighting, durability=durability, cast_overflow=cast_overflow,
                floor_policy=floor_policy, max_consecutive_overflows=max_consecutive_overflows), restore)
            if loads:
                _give_values(client, name, values, restore)
        memory = None
        if _is_module(model):
            from ampd import module
            memory = module.memory_for(model, pin_memory=pin_memory)
        job = jobs.Job(client, name, options, max_steps=max_steps, memory=memory, gradients=code)
        del kept
        if _is_module(model):
            job.module = module.Module(job, model, pin_memory=pin_memory)
        return job
    except BaseException:
        client.close()
        raise
