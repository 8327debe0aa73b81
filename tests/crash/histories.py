#!/usr/bin/python3
"""Linearizability: operators and readers ask all the time while workers train and processes die, and afterwards every
answer must have a place in one order.

    histories.py BUILD_DIR [SECONDS [COUNT [SEED]]]     once, for ten seconds, where they are not given

Two shards and two workers (soak.py); one of the four is killed every now and then, and started again at once. Meanwhile
threads read the scale, the model, the newest history and the newest parameters, watch the steps, have checkpoints
taken, and set the scale, with a request id that is sent again until it is answered. Of each request the times of its
sending and its answer are kept. The order is that of the history: by epoch and step, and of what says which scale the
open step has, by the scale's id; of parameters by epoch and version. Then
  - no answer is older than one that somebody had before it was asked for;
  - every scale that was read stands in the history at the step that was read with it;
  - every scale that was set has one row, and what was not answered has at most one; a row is superseded only where a
    later epoch begins before it;
  - no epoch begins before a checkpoint that was told to be there;
  - the watcher was told every step that stands since it began, in the order of the history, and none that has no row;
  - the steps of both shards are the same.
The history is read from the store, which has the row of a step a moment before the model goes on to the next one. With
durability `step`, which every second seed has, nothing that was answered is superseded. The seed is printed.
"""
import pathlib
import random
import shutil
import sys
import tempfile
import threading
import time

from soak import MODEL, Job, ampd_testing

grpc = ampd_testing.grpc

PAUSE_MS, KILL_S, CHECKPOINT_EVERY = 2, (0.3, 1.2), 20
CHECKPOINT_PAUSE_S = 0.1
SCALE_SET, STEP, EPOCH = 3, 1, 2  # HistoryKind
ASK_S, AGAIN_S, END_S, WATCH_AGAIN = 2, 0.01, 60, 200  # WATCH_AGAIN: steps, more than CHECKPOINT_EVERY
AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.CANCELLED)


class Client(threading.Thread):
    """One that asks shard 0 until it is told to stop. Its answers: (sent at, answered at, position, what)."""

    def __init__(self, job, ended):
        super().__init__(daemon=True)
        self.job, self.ended = job, ended
        self.channel, self.api = job.api()
        self.answers, self.error = [], None

    def run(self):
        try:
            while not self.ended.is_set():
                self.ask()
        except Exception as error:  # pylint: disable=broad-except
            self.error = error
        self.channel.close()

    def call(self, name, **fields):
        """None: nobody answered."""
        try:
            return getattr(self.api, name)(timeout_s=ASK_S, **fields)
        except grpc.RpcError as error:
            if error.code() not in AWAY:
                raise AssertionError(f"{name}: {ampd_testing.Refusal(error)}") from None
            time.sleep(AGAIN_S)
            return None


class Reader(Client):
    def __init__(self, job, ended, kind):
        super().__init__(job, ended)
        self.kind = kind

    def ask(self):
        sent = time.monotonic()
        answer = self.call(self.kind, model=MODEL)
        if answer is None:
            return
        status = answer.status if self.kind == "GetModel" else answer
        record = status.scale if self.kind == "GetModel" else answer.record
        if self.kind == "GetModel" and status.recovering:
            return  # what it says may be outdated, as it says
        position = (status.epoch, status.step, record.scale_id)
        self.answers.append((sent, time.monotonic(), position, (self.kind, record.scale)))


class Puller(Client):
    """The newest parameters, of a shard: only what they are of."""

    def ask(self):
        sent = time.monotonic()
        call = self.api.start("Pull", model=MODEL, latest=True, block_count=1, timeout_s=ASK_S)
        try:
            header = call.next().header
        except grpc.RpcError as error:
            if error.code() not in AWAY:
                raise AssertionError(f"Pull: {ampd_testing.Refusal(error)}") from None
            time.sleep(AGAIN_S)
            return
        finally:
            call.cancel()
        self.answers.append((sent, time.monotonic(), (header.epoch, header.version), ("Pull", header.scale)))


class Checkpointer(Client):
    """Has checkpoints taken. An answer: (epoch, step) of one that was told to be there."""

    def ask(self):
        answer = self.call("Checkpoint", model=MODEL)
        if answer is not None:
            self.answers.append((answer.checkpoint.epoch, answer.checkpoint.step))
        time.sleep(CHECKPOINT_PAUSE_S)


class Lister(Client):
    def ask(self):
        sent = time.monotonic()
        page = self.call("ListScaleHistory", model=MODEL, page_size=3, newest_first=True)
        if page is None or not page.rows:
            return
        row = page.rows[0]
        self.answers.append((sent, time.monotonic(), after(row), ("ListScaleHistory", row.record.scale)))


class Setter(Client):
    """Sets scales that nobody else sets."""

    def __init__(self, job, ended, number):
        super().__init__(job, ended)
        self.number, self.count = number, 0
        self.unanswered = None  # the id of the request that was not answered at the end

    def ask(self):
        self.count += 1
        name, scale = f"{self.number}-{self.count}", float(1024 + self.number + 4 * (self.count % 1000))
        sent = time.monotonic()
        self.unanswered = name
        while not self.ended.is_set():
            try:
                answer = self.call("SetScale", model=MODEL, scale=scale, reason=name, request_id=name)
            except AssertionError as error:
                if "ACT_LOST" not in str(error):
                    raise
                answer = "lost"
            if answer is not None:
                self.unanswered = None
                self.answers.append((sent, time.monotonic(), answer, name))
                break
        time.sleep(0.02)


class Watcher(Client):
    """Where a stream breaks it begins anew some steps before: an epoch may have begun there."""

    def __init__(self, job, ended):
        super().__init__(job, ended)
        self.rows, self.known = [], set()

    def ask(self):
        from_step = max(1, self.rows[-1].step - WATCH_AGAIN) if self.rows else 1
        try:
            for message in self.api.start("WatchSteps", model=MODEL, timeout_s=ASK_S, from_step=from_step).call:
                key = (message.row.kind, *after(message.row))
                if key not in self.known:
                    self.known.add(key)
                    self.rows.append(message.row)
        except grpc.RpcError as error:
            if error.code() not in AWAY:
                raise AssertionError(f"WatchSteps: {ampd_testing.Refusal(error)}") from None
            time.sleep(AGAIN_S)


def after(row):
    """The position that a row leaves behind: epoch, the next step, id of the scale."""
    return row.epoch, row.step + (row.kind == STEP), row.record.scale_id


def known_from(position, what):
    """What others must have heard of when this was answered."""
    return (position[0], position[1] - 1) if what[0] == "ListScaleHistory" else position


def check_real_time(answers):
    """No answer is older than what somebody knew when it was asked for."""
    ends = sorted((answered, known_from(position, what), what) for _, answered, position, what in answers)
    best, seen, late = (0,), None, 0
    for sent, _, position, what in sorted(answers):
        while late < len(ends) and ends[late][0] < sent:
            if ends[late][1] > best:
                best, seen = ends[late][1], ends[late][2]
            late += 1
        assert position >= best, f"{what} answered {position}, when {seen} had answered {best}"


def check_scales(answers, rows):
    """Each scale that was read is one that the history has at that position."""
    held = {}
    for row in rows:
        held.setdefault(after(row), set()).add(row.record.scale)
    missing = [(position, what) for _, _, position, what in answers if what[1] not in held.get(position, ())]
    assert not missing, f"{len(missing)} of {len(answers)} answers stand in no row; the first: {missing[0]}"


def check_sets(setters, rows):
    by_name = {}
    for row in rows:
        if row.kind == SCALE_SET:
            by_name.setdefault(row.reason, []).append(row)
    begins = [(row.epoch, row.base_step) for row in rows if row.kind == EPOCH]
    lost = 0
    for setter in setters:
        for _, _, answer, name in setter.answers:
            found = by_name.pop(name, [])
            assert len(found) == 1 or (answer == "lost" and not found), f"{name} was answered and has {len(found)} rows"
            assert answer == "lost" or (found[0].record.scale_id, found[0].from_step) == (
                answer.record.scale_id, answer.from_step), f"{name}: {answer}, and the row {found[0]}"
            for row in found:
                lost += row.superseded
                assert not row.superseded or any(epoch > row.epoch and base < row.step for epoch, base in begins), \
                    f"{name} is superseded by no epoch"
        if setter.unanswered is not None:
            assert len(by_name.pop(setter.unanswered, [])) <= 1, f"{setter.unanswered} was done twice"
    assert not by_name, f"rows of requests that nobody made: {list(by_name)}"
    return lost


def check_checkpoints(answers, rows):
    """No later epoch begins before a checkpoint that somebody was told of."""
    begins = [(row.epoch, row.base_step) for row in rows if row.kind == EPOCH]
    for told_epoch, told_step in answers:
        before = [(epoch, base) for epoch, base in begins if epoch > told_epoch and base < told_step]
        assert not before, f"checkpoint ({told_epoch}, {told_step}) was told, and these began before it: {before}"


def check_watched(watched, rows):
    told = [(row.epoch, row.step) for row in watched if row.kind == STEP]
    assert told == sorted(told), "the steps were not told in their order"
    known = {(row.epoch, row.step): row.superseded for row in rows if row.kind == STEP}
    assert set(told) <= set(known), f"told, and in no history: {sorted(set(told) - set(known))[:3]}"
    stand = {key for key, superseded in known.items() if not superseded and told[0] <= key <= told[-1]}
    assert stand <= set(told), f"these stand, and were not told: {sorted(stand - set(told))[:3]}"


def record(build, work, seconds, seed):
    rng, ended = random.Random(seed), threading.Event()
    durability = ("checkpoint", "step")[seed % 2]
    job = Job(build, work / "job", PAUSE_MS, None, CHECKPOINT_EVERY, durability)
    try:
        job.await_step(2)
        setters = [Setter(job, ended, number) for number in (1, 2)]
        readers = [Reader(job, ended, kind) for kind in ("GetScale", "GetScale", "GetModel")] + [Lister(job, ended)]
        puller, checkpointer = Puller(job, ended), Checkpointer(job, ended)
        watcher = Watcher(job, ended)
        clients = [*setters, *readers, puller, checkpointer, watcher]
        for client in clients:
            client.start()
        until, kills = time.monotonic() + seconds, 0
        while time.monotonic() < until:
            time.sleep(rng.uniform(*KILL_S))
            victim = rng.choice([*job.workers, *(shard.process for shard in job.shards)])
            victim.kill()
            victim.wait()
            job.tend()
            kills += 1
        ended.set()
        for client in clients:
            client.join(END_S)
            assert client.error is None, f"{type(client).__name__}: {client.error}"
        job.end_after(job.newest() + 50)
        rows = job.rows()
        answers = [answer for reader in readers for answer in reader.answers]
        positions = {name: after(row) for row in rows if row.kind == SCALE_SET for name in [row.reason]}
        acts = [(sent, done, positions[name], ("SetScale", name)) for setter in setters
                for sent, done, answer, name in setter.answers if answer != "lost"]
        check_real_time([(sent, done, position[:2], what) for sent, done, position, what in answers + acts])
        check_real_time([answer for answer in answers if answer[3][0] != "ListScaleHistory"])
        check_real_time(puller.answers)
        check_scales(answers, rows)
        lost = check_sets(setters, rows)
        assert durability == "checkpoint" or lost == 0, f"{lost} scales were answered, and taken back"
        check_checkpoints(checkpointer.answers, rows)
        check_watched(watcher.rows, rows)
        standing = [[(row.step, row.verdict, row.record.scale, row.record.scale_id) for row in job.rows(k)
                     if row.kind == STEP and not row.superseded] for k in range(len(job.shards))]
        assert standing[1:] == standing[:-1], "the shards have different histories"
        print(f"durability {durability}: {kills} kills, {len(answers)} reads, {len(puller.answers)} pulls, "
              f"{len(checkpointer.answers)} checkpoints taken, "
              f"{len(acts)} scales set, {lost} lost with their steps, {len(watcher.rows)} rows watched, "
              f"{len(rows)} in the history", flush=True)
    finally:
        ended.set()
        job.close()


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 10.0
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 1
    first = int(sys.argv[4]) if len(sys.argv) > 4 else random.SystemRandom().getrandbits(31)
    for seed in range(first, first + count):
        print(f"seed {seed}", flush=True)
        work = pathlib.Path(tempfile.mkdtemp(prefix="ampd-histories-"))
        record(build, work, seconds, seed)
        shutil.rmtree(work)  # a failure leaves it
    print("ok")


if __name__ == "__main__":
    main()
