"""A server as its operator sees it: how models stand, what became of their steps, checkpoints, and the loss scale.

    with ampd.connect("127.0.0.1:7420") as server:
        for row in server.watch("net"):
            print(row.step, row.verdict, row.scale)
"""
from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Iterator

import numpy

from ampd import _checkpoint, _files, _messages, _rows, errors, spec
from ampd._client import Client, endpoint_of, log, milliseconds
from ampd._rows import (CheckpointInfo, Contributor, Explanation, GroupSpecification, HistoryRow,  # noqa: F401
                        ModelSpecification, ModelStatus, OverflowRow, ReplayedStep, ServerStatus, Shard, ShardStatus,
                        WorkerStatus)
from ampd._watch import Watch

SLOW_S = 3  # seconds that a wait for a checkpoint lasts before it is logged
PAGE_ROWS = 1000  # the most that a server gives at once


def connect(endpoint: str | None = None, **connection) -> "Server":
    """Connects to a server, or to one of a cluster, whose shard 0 answers for all. `endpoint` None: AMPD_ENDPOINT of
    the environment, else 127.0.0.1:7420. `connection` is as for ampd.join: cacert, cert, key, server_name, token_file,
    token_over_plaintext, connect_timeout, reconnect_timeout, call_timeout (in seconds)."""
    Client.refuse_options("ampd.connect", connection)
    return Server(Client(endpoint_of(endpoint), **connection))


class Server:
    """A server over one connection: made by ampd.connect, or a job's own (Job.server). A context manager."""

    def __init__(self, client: Client, *, joined: str | None = None):
        self.client = client
        self._joined = joined  # the model that a job on the same connection works on

    # ---- how things stand ----

    def models(self) -> Iterator[ModelStatus]:
        """An iterator of all models by name; without their workers, which `model` returns."""
        for page in self._pages("ListModels"):
            yield from (_rows.model(one) for one in page.models)

    def model(self, name: str) -> ModelStatus:
        """How a model stands, with its workers. Shard 0 of a cluster knows the workers, other shards do not."""
        found = self._ask("GetStatus", model=name).models
        if not name or not found:
            raise errors.NotFound("there is no model %r; see models() for what there is" % name)
        return _rows.model(found[0])

    def status(self) -> ServerStatus:
        """How the process at the address stands, and all its models with their workers."""
        return _rows.server(self._ask("GetStatus"))

    def cluster(self, model: str | None = None) -> list[ShardStatus]:
        """The shards, and processes that stand by; with a model how far each shard is with it."""
        answer = self._ask("GetCluster", model=model)
        return ([_rows.shard(one, model is not None) for one in answer.shards]
                + [ShardStatus(None, one.endpoint, "standby") for one in answer.standbys])

    def specification(self, name: str) -> ModelSpecification:
        """What a model is, with all defaults filled in: parameters, groups, optimizer, schedule, scaler, ..."""
        return _rows.specification(self._ask("GetModel", model=name).spec)

    # ---- what has been ----

    def history(self, model: str, *, from_step: int | None = None, to_step: int | None = None,
                epoch: int | None = None, verdicts: Iterable[str | None] = (), only_changes: bool = False,
                include_superseded: bool = False, newest_first: bool = False) -> Iterator[HistoryRow]:
        """One row for each decided step, oldest first, and between them new epochs and scales that were set by hand.

        `from_step` counts by the `step` of a row; `to_step` includes what operators did after that step.
        `verdicts`: only these ("applied", "skipped_overflow", "skipped_empty", and None for what operators did and for
        epochs); `only_changes`: only rows after which the scale differs; `epoch`: only this one;
        `include_superseded`: also what was rolled back later."""
        words = [verdicts] if isinstance(verdicts, str) else verdicts
        wanted = [_messages.number("Verdict", one, "a verdict") if one is not None else 0 for one in words]
        pages = self._pages("ListScaleHistory", model=model, from_step=from_step, to_step=to_step, epoch=epoch,
                            verdicts=wanted, only_changes=only_changes, include_superseded=include_superseded,
                            newest_first=newest_first)
        return (_rows.history(row) for page in pages for row in page.rows)

    def overflows(self, model: str, *, from_step: int | None = None, to_step: int | None = None,
                  epoch: int | None = None, parameter: str | None = None, rank: int | None = None,
                  source: str | None = None, include_superseded: bool = False,
                  newest_first: bool = False) -> Iterator[OverflowRow]:
        """One row for each parameter and worker with an Inf or a NaN. `source`: only "worker", "sum" or "range"."""
        where = None if source is None else _messages.number("OverflowSource", source, "source")
        pages = self._pages("ListOverflows", model=model, from_step=from_step, to_step=to_step, epoch=epoch,
                            parameter=parameter, rank=rank, source=where, include_superseded=include_superseded,
                            newest_first=newest_first)
        return (_rows.overflow(row) for page in pages for row in page.rows)

    def explain(self, model: str, step: int, *, epoch: int | None = None) -> Explanation:
        """All that is known about a decided step; `.text` says it in words."""
        return _rows.explanation(self._ask("ExplainStep", model=model, step=step, epoch=epoch))

    def replay(self, model: str, scaler: spec.Scaler = spec.DynamicScaler(), *, from_step: int | None = None,
               to_step: int | None = None, epoch: int | None = None) -> Iterator[ReplayedStep]:
        """The stored verdicts under another scaler. Which steps would have overflowed under its scales cannot be
        known: those where it matters are `uncertain`."""
        pages = self._pages("ReplayPolicy", model=model, scaler=_rows.scaler_message(scaler), from_step=from_step,
                            to_step=to_step, epoch=epoch)
        return (_rows.replayed(row) for page in pages for row in page.rows)

    def watch(self, model: str, *, from_step: int | None = None) -> Watch:
        """Rows of the history as they are decided from now on; with `from_step` the stored ones from there on first.
        Ends when the model is done, or by `close`. A `from_step` behind the model's last one is refused.

        It has a connection of its own. A server that is lost is waited for (reconnect_timeout, 10 minutes if not
        given), and what was decided meanwhile comes then: no row is left out, but for steps that were rolled back
        meanwhile, or comes twice. After a crash or a rollback steps may come again, in a higher epoch."""
        _messages.request("WatchSteps", from_step=from_step)  # a step that cannot be is refused here, not by the thread
        about = self._ask("GetModel", model=model)
        if from_step is not None and 0 < about.spec.max_steps < from_step:
            raise errors.error_of("ERANGE", "there will be no step %d, as %s ends with step %d; give a from_step up to "
                                  "that" % (from_step, model, about.spec.max_steps))
        return Watch(self.client, model, from_step, about)

    # ---- the loss scale ----

    def scaler_state(self, name: str) -> dict:
        """As torch's GradScaler.state_dict."""
        record = self._ask("GetScale", model=name).record
        scaler = self._ask("GetModel", model=name).spec.scaler
        return {"scale": record.scale, "growth_factor": scaler.growth_factor, "backoff_factor": scaler.backoff_factor,
                "growth_interval": scaler.growth_interval, "_growth_tracker": record.growth_tracker}

    def set_scale(self, model: str, scale: float, reason: str = "") -> int:
        """Sets the loss scale. Returns the first step that uses it; the open one goes on as it is. Done once, also
        where it has to be sent again."""
        return self._ask("SetScale", model=model, scale=scale, reason=reason, request_id=_request_id()).from_step

    def reset_scale(self, model: str, reason: str = "") -> int:
        """Puts the scaler back to its start. Returns the first step that uses its scale."""
        return self._ask("ResetScale", model=model, reason=reason, request_id=_request_id()).from_step

    def set_learning_rate(self, model: str, learning_rate: float, reason: str = "") -> int:
        """Sets the base learning rate, from which the schedule goes on. Returns the first step that uses it.
        Checkpoints keep it, so a rollback brings back the one of then. With schedule=ampd.Worker() the workers give
        it, and this is refused."""
        return self._ask("SetLearningRate", model=model, learning_rate=learning_rate, reason=reason,
                         request_id=_request_id()).from_step

    # ---- checkpoints ----

    def checkpoint(self, model: str) -> CheckpointInfo:
        """Writes a checkpoint, and waits for it. It is made after the next decided step; at once where the last one has
        one already, or no step is to be decided soon: the model is done, or its workers have left."""
        self._refuse_endless_wait(model)
        slow = threading.Timer(SLOW_S, log.warning, (
            "%s: its checkpoint has not been made in %g s; it waits for the next decided step, or until the leases of "
            "workers that ended without job.leave() are over", model, SLOW_S))
        slow.daemon = True
        slow.start()
        try:
            return _rows.checkpoint(self._ask("Checkpoint", model=model).checkpoint)
        finally:
            slow.cancel()

    def checkpoints(self, model: str, *, min_scale: float | None = None) -> Iterator[CheckpointInfo]:
        """All checkpoints, newest first; `min_scale`: only those whose loss scale is at least this."""
        for page in self._pages("ListCheckpoints", model=model, min_scale=min_scale):
            yield from (_rows.checkpoint(one) for one in page.checkpoints)

    def rollback(self, model: str, step: int | None = None, *, epoch: int | None = None,
                 reason: str = "") -> tuple[int, int]:
        """Puts a model back to a checkpoint: the newest, or the newest of `step` (and of `epoch`). Workers go on from
        there by themselves. Returns the new epoch, and the step that is next."""
        found = self._find(model, step, epoch)
        answer = self._ask("Rollback", model=model, epoch=found.epoch, step=found.step, reason=reason,
                           request_id=_request_id())
        return answer.epoch, answer.step

    def masters(self, model: str, step: int | None = None, *, epoch: int | None = None) -> dict[str, numpy.ndarray]:
        """name -> float32 array: the masters of the newest state, which a checkpoint is made of first (`checkpoint`
        says when it waits); with `step` (and `epoch`) those of a checkpoint that is there.

        Takes an operator's rights. From several shards each is asked at its own address; one that is lost is waited for
        (reconnect_timeout), and one that sends nothing for call_timeout is a Timeout."""
        found = self.checkpoint(model) if step is None and epoch is None else self._find(model, step, epoch)
        return _checkpoint.masters(self.client, model, found.epoch, found.step)

    def export(self, model: str, path, *, values_only: bool = False, step: int | None = None, epoch: int | None = None,
               overwrite: bool = False) -> None:
        """Writes a checkpoint (the newest, or that of `step` and `epoch`) as one safetensors file: all that training
        goes on from, or with `values_only` the fp32 parameters by their names (ampd.read_safetensors, or
        safetensors.torch). The same bytes whatever the number of shards. Takes an operator's rights, and the program
        ampctl."""
        _files.export(self.client, model, path, values_only=values_only, step=step, epoch=epoch, overwrite=overwrite)

    def load(self, model: str, path, *, full: bool = False) -> None:
        """Gives a model that was created and has no values yet those of a safetensors file; with `full` all of one that
        `export` has written: moments, loss scale, user states, and training goes on after its step, bit by bit. See
        ampd.join(restore=...). Takes a worker's rights, and the program ampctl."""
        _files.load(self.client, model, path, full=full)

    # ---- the rest ----

    def delete(self, model: str, *, force: bool = False) -> None:
        """Deletes a model with its history and checkpoints. `force`: also while workers are joined. If the
        connection is lost meanwhile, the call is made again, and NotFound may mean that the first one deleted it."""
        self._ask("DeleteModel", model=model, force=force)

    def drain(self, grace: float | None = None) -> None:
        """Ends the process at the address: it writes checkpoints, refuses new work, and gives calls under way `grace`
        seconds (10). Returns at once, also where the process is ending already. If nothing answers (Unavailable), it is
        not tried again: that might end another process that has come in its place."""
        try:
            self._ask("Drain", grace_ms=None if grace is None else milliseconds(grace, "grace", least=0))
        except errors.Unavailable as error:
            if error.reason != "DRAINING":
                raise

    def close(self) -> None:
        """Ends the connection. Of a job's own server that is left to Job.leave. May be called again."""
        if self._joined is None:
            self.client.close()

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *what) -> None:
        self.close()

    def __repr__(self):
        return self.client.__repr__().replace("ampd client of", "ampd server")

    # ---- calls ----

    def _ask(self, method: str, **fields):
        return _messages.answer(method, self.client.ask(*_messages.request(method, **fields)))

    def _pages(self, method: str, **fields) -> Iterator:
        token = None
        while token != "":
            try:
                page = self._ask(method, page_size=PAGE_ROWS, page_token=token, **fields)
            except errors.InvalidArgument as error:
                if error.reason == "PAGE_PAST_END":  # nothing has been decided there yet
                    return
                raise
            yield page
            token = page.next_page_token

    def _find(self, model: str, step: int | None, epoch: int | None) -> CheckpointInfo:
        fits: Callable[[CheckpointInfo], bool] = lambda one: step in (None, one.step) and epoch in (None, one.epoch)
        found = next((one for one in self.checkpoints(model) if fits(one)), None)
        if found is None:
            raise errors.NotFound("%s has no checkpoint%s%s; see checkpoints(%r) for what there is"
                                  % (model, "" if step is None else " of step %s" % step,
                                     "" if epoch is None else " of epoch %s" % epoch, model))
        return found

    def _refuse_endless_wait(self, model: str) -> None:
        """The checkpoint would wait for a step that the job on this same connection is to end: for ever."""
        if self._joined != model:
            return
        status = self.model(model)
        if status.state != "running" or status.frozen:
            return
        newest = next(self.checkpoints(model), None)
        if newest is None or (newest.epoch, newest.step) != (status.epoch, status.step - 1):
            raise errors.WrongState(
                "a checkpoint of %s is made when step %d has ended, which this job is to end itself; ask when the "
                "model is done, or behind job.leave(): ampd.connect(%r).masters(%r), or use what is there: "
                "masters(%r, step) of one of checkpoints(%r), or the cast values by state_dict(masters=False)"
                % (model, status.step, self.client.endpoint, model, model, model))


def _request_id() -> str:
    return "python-" + secrets.token_hex(12)
