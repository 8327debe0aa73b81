#!/usr/bin/python3
"""Models whose workers, real processes, come, leave, are killed and are replaced while two shards train them: who contributed to
each step is in the history, and from that the parameters are computed again, to the bit.

    test_server_elastic.py BIN_DIR [NAME ...]
"""
import signal
import struct
import subprocess

from ampd_testing import DIE_WITH_PARENT, PATIENCE, common, eventually, f32, run, scales
from formulas import Sgd
from test_server_shards import START_TIMEOUT_S, Cluster

WORLD = 4
LEASE = f"{4 * PATIENCE}s"  # a worker that is killed is given up after that
STEPS = 5              # at the least, in each way of being
SCALE, PERIOD, ELEMENTS, RATE = 1024.0, 5, 70001, 0.5  # of elastic_worker.c
TIMEOUT_S = 60 * PATIENCE


class Team:
    """The workers of a model by their names."""

    def __init__(self, context, on_loss, world=WORLD, min_workers=1):
        self.context, self.on_loss, self.world, self.min_workers = context, on_loss, world, min_workers
        self.cluster = Cluster(context, 2, options=["--worker-lease", LEASE])
        self.program = context.bin_dir.parent / "tests" / "integration" / "elastic_worker"
        self.workers, self.count = {}, 0

    def start(self, name, how="new"):
        self.count += 1
        said = open(self.cluster.folder / f"worker-{self.count}-{name}", "w+", encoding="utf-8")
        address = self.cluster.addresses[self.count % 2]
        self.workers[name] = (subprocess.Popen(
            [*DIE_WITH_PARENT, self.program, address, "m", name, str(self.world), self.on_loss, str(self.min_workers), how],
            stdin=subprocess.DEVNULL, stdout=said, stderr=said), said)

    def kill(self, name):
        """It cannot say good-bye."""
        process, said = self.workers.pop(name)
        process.kill()
        process.wait(TIMEOUT_S)
        said.close()

    def refused(self, name, how, word):
        """It ends by itself, with that word."""
        self.start(name, how)
        process, said = self.workers.pop(name)
        code = process.wait(TIMEOUT_S)
        with said:
            said.seek(0)
            text = said.read()
        assert code == 1 and word in text, (code, text)

    def leave(self, *names):
        """In order, after the step in hand."""
        for name in names:
            self.workers[name][0].send_signal(signal.SIGTERM)
        for name in names:
            process, said = self.workers.pop(name)
            code = process.wait(TIMEOUT_S)
            with said:
                said.seek(0)
                assert code == 0, said.read()[-1000:]

    def status(self):
        return self.cluster.api(0).GetModel(model="m").status

    def rows(self):
        """Of the steps, in order."""
        api, rows, token = self.cluster.api(0), [], ""
        while True:
            page = api.ListScaleHistory(model="m", page_size=1000, page_token=token)
            rows += [row for row in page.rows if row.kind == scales.HISTORY_KIND_STEP]
            token = page.next_page_token
            if not token:
                return rows

    def decided(self):
        api = self.cluster.api(0)
        return self.status().scale.attempted if any(m.name == "m" for m in api.ListModels().models) else 0

    def trains(self, *names):
        """From now on, some steps with exactly these contribute."""
        first = self.decided() + 1

        def seen():
            last = self.decided()
            together = 0
            for step in range(last, max(first, last - 2 * STEPS) - 1, -1):
                together += sorted(self.contributors(step).values()) == sorted(names)
            return together >= STEPS
        eventually(seen, f"{', '.join(names)} train", START_TIMEOUT_S)

    def contributors(self, step):
        """rank -> name"""
        told = self.cluster.api(0).ExplainStep(model="m", step=step)
        assert told.row.contributors == len(told.contributors) > 0, told
        return {contributor.rank: contributor.worker_name for contributor in told.contributors}

    def check(self):
        """History without a gap, each step by at least min_workers of different ranks; the parameters are what follows from it.
        How many contributed to the steps, in order, without repetitions."""
        rows, counts = self.rows(), []
        assert [row.step for row in rows] == list(range(1, len(rows) + 1)) and {row.epoch for row in rows} == {1}, rows
        optimizer = Sgd([0.0] * PERIOD, RATE)
        for row in rows:
            ranks = sorted(self.contributors(row.step))
            assert row.verdict == common.VERDICT_APPLIED and row.record.scale == SCALE, row
            assert len(ranks) >= self.min_workers if self.on_loss == "shrink" else len(ranks) == self.world, row
            factor = f32(1 / (SCALE * len(ranks)))
            sums = [sum((rank + 1) * (1 + (row.step + e) % PERIOD) / 8 * SCALE for rank in ranks) for e in range(PERIOD)]
            optimizer.apply([f32(value * factor) for value in sums])
            counts += [len(ranks)] if counts[-1:] != [len(ranks)] else []
        assert self.latest(len(rows)) == struct.pack(f"<{ELEMENTS}f", *(optimizer.p[e % PERIOD] for e in range(ELEMENTS)))
        return counts

    def latest(self, version):
        """The parameters of both shards, as bytes."""
        blocks = {}
        for shard in self.cluster.api(0).GetModel(model="m").shards:
            def pull(k=shard.index):
                answers = self.cluster.api(k).Pull(model="m", latest=True, shard=k)
                return answers if answers[0].header.version == version else None
            blocks.update({answer.index: answer.data for answer in eventually(pull, f"version {version}")[1:]})
        return b"".join(blocks[index] for index in sorted(blocks))[:4 * ELEMENTS]


def subsequence(wanted, counts):
    found = iter(counts)
    return all(count in found for count in wanted)


def test_a_model_grows_and_shrinks_with_its_workers(context):
    team = Team(context, "shrink")
    team.start("a")
    team.trains("a")
    team.start("b")
    team.trains("a", "b")
    team.start("c")
    team.start("d")
    team.trains("a", "b", "c", "d")
    team.kill("b")
    team.kill("d")
    team.trains("a", "c")
    team.start("e", "replace")  # a rank of one of them
    team.trains("a", "c", "e")
    team.start("d")  # its own: the lower one was free
    team.trains("a", "c", "d", "e")
    team.leave("c")
    team.trains("a", "d", "e")
    team.start("f")  # the one that was given back
    team.trains("a", "d", "e", "f")
    team.leave("e", "f")
    team.trains("a", "d")
    team.leave("a", "d")
    counts = team.check()
    assert subsequence([1, 2, 4, 2, 3, 4, 3, 4, 2], counts), counts


def test_a_model_stands_still_while_too_few_workers_are_left(context):
    team = Team(context, "shrink", min_workers=2)
    team.start("a")
    eventually(lambda: team.decided() == 0 and [w for w in team.status().workers if w.name == "a"]
               if team.cluster.api(0).ListModels().models else False, "a has joined")
    team.start("b")
    team.trains("a", "b")
    team.kill("b")
    stands = "1 more of rank 1 (b), rank 2, rank 3 of 4, since a step needs 2 workers"
    eventually(lambda: team.status().waiting_for.startswith(stands), "the model waits")  # then since how many seconds
    at = team.decided()
    team.start("b")
    team.trains("a", "b")
    assert team.decided() > at
    team.leave("a")
    team.kill("b")  # waits for a second one, and would go on to
    assert set(team.check()) == {2}


def test_another_worker_takes_the_place_of_one_that_was_killed(context):
    """`on_loss` WAIT: each step has all ranks, and none is lost or counted twice."""
    team = Team(context, "wait", world=3)
    for name in ("a", "b", "c"):
        team.start(name)
    team.trains("a", "b", "c")
    for lost, new in (("b", "d"), ("a", "e"), ("d", "b")):
        team.kill(lost)
        team.refused(new, "new", "no rank")  # who asks for no lost one's gets none, also when the lease has ended
        at = team.decided()
        while True:  # as a supervisor starts it again, until the lease has ended
            team.start(new, "replace")
            process, said = team.workers[new]
            eventually(lambda: process.poll() is not None or team.decided() > at + 1, f"{new} is refused, or trains")
            if process.poll() is None:
                break
            with said:
                said.seek(0)
                assert "lease" in said.read()
        there = sorted(team.workers)
        team.trains(*there)
        team.refused(lost, "new", "no rank")  # it is another's now
    names = sorted(team.workers)
    for name in names:
        team.workers[name][0].send_signal(signal.SIGTERM)
    eventually(lambda: any(team.workers[name][0].poll() is not None for name in names), "one has left")
    for name in names:  # one that had begun another step waits for those that have left
        team.kill(name)
    assert team.check() == [3]


def test_of_two_workers_under_one_rank_the_later_one_trains_and_the_other_one_says_why_it_ends(context):
    team = Team(context, "wait", world=2)
    team.start("a")
    team.start("b")
    team.trains("a", "b")
    older, said = team.workers.pop("a")
    team.start("a")  # another process, under the same name and so the same rank
    code = older.wait(TIMEOUT_S)
    with said:
        said.seek(0)
        last = said.read().splitlines()[-1]
    assert code == 1 and "two workers run under one rank" in last, (code, last)
    team.trains("a", "b")
    row = next(row for row in team.status().workers if row.name == "a")
    assert (row.joins, row.replacements) == (2, 1) and row.fences <= 10, row

    def told():
        """A line of a rank is at most ten seconds late."""
        lines = [line for line in team.cluster.log(0).splitlines() if f"rank {row.rank} (a" in line]
        return lines if any("another process" in line for line in lines) else None
    assert len(eventually(told, "the log has a line on it")) <= 10
    team.kill("a")
    team.kill("b")
    team.check()


if __name__ == "__main__":
    run(globals())
