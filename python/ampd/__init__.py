"""ampd: train with an ampd server from Python. docs/python.md has every name and a first step.

    import torch, ampd
    job = ampd.join("127.0.0.1:7420", "net", Net(), optimizer=ampd.AdamW(lr=1e-3), max_steps=1000)
    for step in ampd.progress(job.steps()):
        step.backward(loss_of(job, step))
        result = step.end()
"""
from __future__ import annotations

import typing

from ampd._files import read_safetensors
from ampd._join import join
from ampd._library import __version__
from ampd._progress import progress
from ampd.errors import (AlreadyExists, Cancelled, DataLoss, Denied, Error, Internal, InvalidArgument, NotFound,
                         OutOfMemory, RankTaken, ResourceExhausted, Timeout, Unavailable, Unstable, WrongState)
from ampd.job import Job, Overflow, Result, to_bfloat16
from ampd.spec import (SGD, Adagrad, Adam, AdamW, Constant, Cosine, DynamicScaler, Group, Lion, NoScaler, RMSprop,
                       StaticScaler, Step, Worker)

__all__ = ["SGD", "Adagrad", "Adam", "AdamW", "AlreadyExists", "Cancelled", "Constant", "Cosine", "DataLoss", "Denied",
           "DynamicScaler", "Error", "GradScaler", "Group", "Internal", "InvalidArgument", "Job", "Lion", "NoScaler",
           "NotFound", "Optimizer", "OutOfMemory", "Overflow", "RMSprop", "RankTaken", "ResourceExhausted",
           "Result", "StaticScaler", "Step", "Timeout", "Unavailable", "Unstable", "Worker", "WrongState",
           "__version__", "join", "progress", "read_safetensors", "to_bfloat16"]

_OF_SERVER = ("CheckpointInfo", "Contributor", "Explanation", "GroupSpecification", "HistoryRow", "ModelSpecification",
              "ModelStatus", "OverflowRow", "ReplayedStep", "Server", "ServerStatus", "Shard", "ShardStatus", "Watch",
              "WorkerStatus", "connect")
__all__ += _OF_SERVER
if typing.TYPE_CHECKING:
    from ampd.amp import GradScaler, Optimizer
    from ampd.server import (CheckpointInfo, Contributor, Explanation, GroupSpecification, HistoryRow,
                             ModelSpecification, ModelStatus, OverflowRow, ReplayedStep, Server, ServerStatus, Shard,
                             ShardStatus, Watch, WorkerStatus, connect)


def __getattr__(name: str):
    # What needs torch or protobuf, or is needed by few.
    if name in ("GradScaler", "Optimizer"):
        from ampd import amp
        return getattr(amp, name)
    if name in _OF_SERVER:
        from ampd import server
        return getattr(server, name)
    if name == "testing":
        import ampd.testing
        return ampd.testing
    raise AttributeError("module 'ampd' has no attribute %r" % name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
