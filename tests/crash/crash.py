#!/usr/bin/python3
"""Real processes under kill -9: at every failpoint of the server, and at random moments of the server and its workers.

    crash.py BUILD_DIR [SETTING]              a handful of both
    crash.py BUILD_DIR [SETTING] --long       three kills at every failpoint, and at random 60 in each phase of a step

Each of it with one shard and with two, with a checkpoint now and then and with every step durable; SETTING is a part of
the name of one of these, or of one with three shards ("3_shards"), which are run only when they are named. A run is one ampd with failpoints per shard and two workers, each restarted as soon as it is
gone. The run without kills and each fourth one after it send bytes; in the others memory is shared, but for the few steps
that come right after a kill. When the model is done, its last checkpoint is byte for byte that of a run without kills; its history on every shard
is without gap, each row recomputed from the one before (scaler.py); and what a worker was told to be durable stands. The
seed is printed; AMPD_TEST_SEED=N repeats the orders, though not the instants of the system.
"""
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "integration"))
import ampd_testing  # noqa: E402  (says SKIPPED where grpcio is missing)
import scaler  # noqa: E402
from failpoints import Failpoints, named_in_the_sources  # noqa: E402

MODEL, WORLD, STEPS, CHECKPOINT_EVERY = "crash", 2, 40, 4
PAUSE_US = 400      # longest wait at a failpoint: so long that a kill finds each phase, so short that a step takes 10 ms
RUN_TIMEOUT_S = 600  # of one run, with its kills
REACH_S = 0.4       # a place that was not passed by then may be one of the start: the shard is killed to begin anew,
REACH_MAX_S = 5     # once steps have been answered, or after this
PHASES = ("push", "vote", "persist", "apply", "checkpoint")
HANDFUL, LONG_EACH = 3, 60  # kills at failpoints in the plain run; kills in each phase in the long one
# Passed when an operator acts: on a model of its own, so that the one under training goes its way.
ACTS = {"persist.act", "persist.delete", "persist.deleting", "delete.unstored", "journal.closed"}
SPARE = "spare"
LATE, ROLLED_BACK = 4, 5  # of a push whose step was decided with what the rank had pushed before; of a step that is no more
# Passed by a start alone, be it another shard's.
AT_START = {"persist.fence", "journal.open", "journal.read", "journal.replay", "journal.replayed", "journal.reapplied", "journal.held",
            "journal.adopt", "journal.adopted"}
# Passed by a start after a death at that place: a vote that has no verdict yet.
AFTER = {"journal.held": "journal.told"}
IN_VAIN_MAX = 3  # runs in a row that end before a place was passed


class Setting:
    """How a run is set up."""

    def __init__(self, shards, durability):
        self.shards, self.durability = shards, durability
        self.name = f"{shards}_shard{'s' if shards > 1 else ''}_durable_by_{durability}"
        self.phases = PHASES + (("journal",) if durability == "step" else ())
        # Passed at the beginning of a run, and later never, or, where a machine is quick, not before the model is done: each of
        # its kills needs a new run.
        self.once = {"persist.model", "persist.worker", "journal.made"}

    def places(self):
        """The failpoints that a run can pass."""
        elsewhere = ("takeup.", "refill.")  # test_server_reshard.py, test_server_failover.py
        names = {name for name in named_in_the_sources() if not name.startswith(elsewhere)}
        if self.shards == 1:  # nobody's fence but the own is stored, and that at the start; no mark before a model goes
            names -= {name for name in names if name.startswith("peer.")} | {"persist.fence", "persist.deleting", "checkpoint.parts"}
        if self.durability == "checkpoint":
            names -= {name for name in names if name.startswith("journal.")} - {"journal.closed"}
        return names - self.seldom()

    def seldom(self):
        """Places that a run can pass, and not be made to: where each step is durable, only the loss of what was before the
        first checkpoint begins an epoch."""
        return {"persist.epoch"} if self.durability == "step" else set()


class Shard:
    """One ampd with failpoints; a restart keeps its data directory."""

    def __init__(self, run, index, seed, pause_us):
        self.run, self.index = run, index
        self.failpoints = Failpoints(run.folder / f"failpoints-{index}", seed, pause_us)
        self.data = run.folder / f"data-{index}"
        self.log_path = run.folder / f"ampd-{index}.log"
        self.log = open(self.log_path, "ab")
        self.process = None

    def start(self):
        """No code of Python's runs between fork and exec, where grpc's threads would be missing: the programs themselves see
        to it that they end with this one."""
        options, addresses = ["--listen", "127.0.0.1:0"], self.run.addresses
        if len(addresses) > 1:
            options = ["--listen", addresses[self.index], "--peers", ",".join(addresses), "--shard", str(self.index)]
        options += [] if self.run.shares else ["--shared-memory", "off"]
        environment = {**os.environ, "AMPD_FAILPOINTS_FILE": str(self.failpoints.path)}
        self.process = subprocess.Popen(
            [self.run.build / "tests" / "crash" / "ampd_crash", "--data-dir", self.data, "--compute-threads", "2", *options],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=environment)

    def kill(self):
        self.process.kill()
        self.process.wait()

    def last_part(self):
        """The bytes of its part of the last checkpoint."""
        files = ampd_testing.found(self.data, f"models/{MODEL}/checkpoints/step-*/shard-*.safetensors")
        assert files and files[-1].parent.name == f"step-{STEPS:010}", files
        return files[-1].read_bytes()

    def close(self):
        if self.process is not None and self.process.poll() is None:
            self.kill()
        self.log.close()
        self.failpoints.close()


class Run:
    """The shards and their workers on new data directories."""

    def __init__(self, build, work, number, setting, rng, pause_us=PAUSE_US):
        self.build, self.folder, self.setting, self.rng = build, work / f"run-{number}", setting, rng
        self.shares = number % 4 != 1
        self.folder.mkdir()
        self.addresses = [f"unix:{self.folder}/s{k}" for k in range(setting.shards)]
        self.shards = [Shard(self, k, rng.getrandbits(63), pause_us) for k in range(setting.shards)]
        if setting.shards == 1:
            self.addresses = [f"unix:{self.shards[0].data}/ampd.sock"]
        self.said = [open(self.folder / f"worker-{rank}.txt", "ab") for rank in range(WORLD)]
        self.until = time.monotonic() + RUN_TIMEOUT_S
        self.workers, self.done = [None] * WORLD, [False] * WORLD

    def begin(self):
        for shard in self.shards:
            shard.start()
        for rank in range(WORLD):
            self.start_worker(rank)
        return self

    def start_worker(self, rank):
        self.workers[rank] = subprocess.Popen(
            [self.build / "tests" / "crash" / "crash_worker", self.addresses[0], MODEL, str(rank), str(WORLD), str(STEPS),
             str(CHECKPOINT_EVERY), self.setting.durability], stdin=subprocess.DEVNULL, stdout=self.said[rank],
            stderr=self.said[rank])

    def tail(self):
        texts = [path.read_text(errors="replace")[-1500:]
                 for path in (*(shard.log_path for shard in self.shards),
                              *(self.folder / f"worker-{rank}.txt" for rank in range(WORLD)))]
        return "\n--\n".join(texts)

    def tend(self):
        """Restarts what was killed. False once all workers have ended well: the model is done."""
        assert time.monotonic() < self.until, f"not done after {RUN_TIMEOUT_S} s:\n{self.tail()}"
        for rank, worker in enumerate(self.workers):
            code = worker.poll()
            if code is None or self.done[rank]:
                continue
            assert code in (0, -9), f"worker {rank} ended with {code}:\n{self.tail()}"
            self.done[rank] = code == 0
            if code != 0:
                self.start_worker(rank)
        for shard in self.shards:
            code = shard.process.poll()
            assert code in (None, -9), f"ampd {shard.index} ended with {code}:\n{self.tail()}"
            if code == -9:
                shard.start()
        return not all(self.done)

    def order(self, shards, name, count):
        for shard in shards:
            shard.failpoints.kill_at(name, count)

    def kill_at(self, name, count, whichever=False):
        """A shard dies at that place: one that is drawn, or whichever passes it. False: the model was done before."""
        if name in ACTS:
            return self.kill_at_act(name)
        if name in AFTER and not self.kill_at(AFTER[name], count):
            return False
        wanted, tries = [self.rng.choice(self.shards)], 0
        if name in self.setting.once or name in AFTER or whichever:
            wanted, count = self.shards, 1
        self.order(wanted, name, count)
        at_start = name.startswith(("start.", "restore.")) or name in AT_START
        began = time.monotonic() - (REACH_MAX_S if at_start else 0)
        answered = self.answered()
        while not any(shard.failpoints.has_killed() for shard in wanted):
            if not self.tend():
                self.order(self.shards, "", 1)
                return False
            waited = time.monotonic() - began
            patience = 2 ** min(tries, 6)  # a busy machine may take longer to come to the place than to each next kill
            if self.answered() == 0 and waited < 2 * REACH_MAX_S:
                pass  # there may be no model yet: a start would pass no such place, and the steps be over before the next
            elif waited > REACH_MAX_S * patience or (waited > REACH_S * patience and self.answered() > answered + 2):
                began, answered = time.monotonic(), self.answered()
                wanted, tries = wanted if tries == 0 else self.shards, tries + 1
                self.order(wanted, name, 1)
                for shard in wanted:
                    shard.kill()
                self.tend()
            time.sleep(0.001)
        self.order(self.shards, "", 1)
        self.tend()
        return True

    def answered(self):
        """How often a push was answered, by all shards."""
        return sum(shard.failpoints.entered("answer") for shard in self.shards)

    def connect(self):
        return ampd_testing.grpc.insecure_channel(self.addresses[0], options=ampd_testing.CHANNEL_OPTIONS)

    def act(self):
        """Makes a model, sets its scale and deletes it. False: a shard went away meanwhile."""
        channel = self.connect()
        api = ampd_testing.Api(channel)

        def call(name, **fields):
            started = api.start(name, **fields)
            while not started.done():  # it may wait for a shard that is to be restarted
                self.tend()
                time.sleep(0.001)
            started.result()

        try:
            call("CreateModel", spec=ampd_testing.spec(SPARE))
            call("SetScale", model=SPARE, scale=2048.0)
            call("DeleteModel", model=SPARE, force=True)
            return True
        except ampd_testing.grpc.RpcError as error:
            codes = ampd_testing.Code
            assert error.code() in (codes.UNAVAILABLE, codes.CANCELLED, codes.NOT_FOUND, codes.ABORTED), \
                str(ampd_testing.Refusal(error))
            return False
        finally:
            channel.close()

    def kill_at_act(self, name):
        """A shard dies in the middle of an operator's act, which is then done by asking again. False: the model was done."""
        def has_killed():
            return any(shard.failpoints.has_killed() for shard in self.shards)

        self.order(self.shards, name, 1)
        while not has_killed():
            self.act()
            if not self.tend() and not has_killed():
                self.order(self.shards, "", 1)
                return False
        self.order(self.shards, "", 1)
        while not self.act():
            self.tend()
            time.sleep(0.01)
        for shard in self.shards:
            assert not (shard.data / "models" / SPARE).exists(), f"{SPARE} was deleted, and left files"
        return True

    def kill_in(self, phase, victim):
        """Waits for a random occurrence of the phase on a shard, a random while more, and kills. The phases that the shard
        was in then, or None: the model was done before."""
        shard = self.rng.choice(self.shards)
        points = shard.failpoints
        aim = points.entered(phase) + self.rng.randrange(1, 9 if phase != "checkpoint" else 4)
        while points.entered(phase) < aim or not points.is_inside(phase) or shard.process.poll() is not None:
            if not self.tend():
                return None
            time.sleep(0.00005)
        time.sleep(self.rng.random() * 0.0002)
        process = shard.process if victim == "server" else self.workers[int(victim[-1])]
        if process.poll() is not None:
            return set()  # it ended by itself in between
        process.kill()
        inside = points.inside() if victim != "server" else None
        process.wait()
        inside = points.inside() if inside is None else inside
        self.tend()
        return inside

    def answers(self):
        """What the workers were told: (epoch, step, verdict, last durable step, whether memory was shared)."""
        told = []
        for rank in range(WORLD):
            for line in (self.folder / f"worker-{rank}.txt").read_text(errors="replace").splitlines():
                words = line.split()
                if len(words) == 5 and all(word.isdigit() for word in words):
                    told.append(tuple(map(int, words)))
        return told

    def rows_of(self, shard):
        channel = ampd_testing.grpc.insecure_channel(self.addresses[shard.index], options=ampd_testing.CHANNEL_OPTIONS)
        ampd_testing.grpc.channel_ready_future(channel).result(timeout=60)
        api = ampd_testing.Api(channel)
        rows = list(api.ListScaleHistory(model=MODEL, include_superseded=True, page_size=1000).rows)
        spec = api.GetModel(model=MODEL).spec
        channel.close()
        return spec, rows

    def finish(self):
        """Runs to the end. (the parts of the last checkpoint, the steps that stand)"""
        while self.tend():
            time.sleep(0.002)
        standing = None
        for shard in self.shards:
            spec, rows = self.rows_of(shard)
            found = scaler.check_history(spec.scaler, rows, len(self.shards))
            assert standing in (None, found), f"shard {shard.index} has another history"
            standing = found
            check_answers(self.setting, self.answers(), rows)
        for shard in self.shards:  # shard 0 first: its last checkpoint needs the others
            shard.process.terminate()
            assert shard.process.wait(60) == 0, f"ampd did not end well:\n{self.tail()}"
        return [shard.last_part() for shard in self.shards], standing

    def close(self):
        for process in self.workers:
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
        for shard in self.shards:
            shard.close()
        for file in self.said:
            file.close()


def check_answers(setting, told, rows):
    """What was told to be durable has its row, with the same verdict, and was never taken back."""
    assert setting.durability != "step" or not any(verdict == ROLLED_BACK for _, _, verdict, *_ in told), told
    told = [answer[:4] for answer in told if answer[2] != ROLLED_BACK]
    by_key = {(row.epoch, row.step): row for row in rows if row.kind == scaler.STEP}
    durable = {}
    for epoch, step, _, last in told:
        assert setting.durability != "step" or last >= step, f"step {step} was answered, durable is {last}"
        durable[epoch] = max(durable.get(epoch, 0), last)
    for epoch, step, verdict, _ in told:
        row = by_key.get((epoch, step))
        assert row is not None and verdict in (row.verdict, LATE), f"({epoch}, {step}) was answered {verdict}, and has {row}"
        assert step > durable[epoch] or not row.superseded, f"({epoch}, {step}) was durable, and was taken back"


class Suite:
    def __init__(self, build, setting, rng):
        self.build, self.setting, self.rng = build, setting, rng
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="ampd-crash-"))
        self.runs, self.reference, self.steps, self.passed = 0, None, None, {}
        self.kills = self.kills_sharing = 0
        self.told = self.told_sharing = 0  # verdicts to workers of runs in which memory is shared, and while it was

    def run(self, during=None):
        """One run, checked at its end; `during(run)` does the killing."""
        self.runs += 1
        run = Run(self.build, self.work, self.runs, self.setting, self.rng)
        kills = self.kills
        try:
            value = during(run) if during is not None else run.begin()
            checkpoint, standing = run.finish()
            self.count_shared(run, self.kills - kills)
            for shard in run.shards:
                for name, count in shard.failpoints.passed().items():
                    self.passed[name] = self.passed.get(name, 0) + count
        finally:
            run.close()
        if self.reference is None:
            self.reference, self.steps = checkpoint, standing
            verdicts = {verdict for _, verdict in standing}
            assert len(standing) == STEPS and verdicts >= {scaler.APPLIED, scaler.SKIPPED_OVERFLOW}, standing
        assert standing == self.steps, f"{run.folder}: the steps that stand differ from those without kills"
        assert checkpoint == self.reference, f"{run.folder}: the last checkpoint differs from that without kills"
        shutil.rmtree(run.folder)
        return value

    def count_shared(self, run, kills):
        sharing = [answer[4] for answer in run.answers()]
        if not run.shares:
            assert not any(sharing), f"{run.folder}: memory was shared"
            return
        assert sum(sharing) > len(sharing) / 2, f"{run.folder}: memory was shared at {sum(sharing)} of {len(sharing)} verdicts"
        self.kills_sharing += kills
        self.told += len(sharing)
        self.told_sharing += sum(sharing)

    def at_failpoints(self, orders):
        """`orders` is a list of (place, count); several to a run."""
        orders = list(orders)

        def kill_some(run):
            first = orders[0]
            if first[0] in self.setting.once:
                run.order(run.shards, *first)
            run.begin()
            for _ in range(6):
                if not orders or (orders[0][0] in self.setting.once and orders[0] is not first):
                    return
                if not run.kill_at(*orders[0], in_vain > 0):  # there are places that one shard alone passes
                    return
                self.kills += 1
                orders.pop(0)

        in_vain = 0
        while orders:
            left = len(orders)
            self.run(kill_some)
            in_vain = in_vain + 1 if len(orders) == left else 0
            assert in_vain < IN_VAIN_MAX, f"no run passed {orders[0][0]}"

    def at_random(self, each, per_run=8):
        """At least `each` kills in every phase; prints how many there were."""
        counts = dict.fromkeys(self.setting.phases, 0)
        outside = victims = 0

        def kill_some(run):
            nonlocal outside, victims
            run.begin()
            for _ in range(per_run):
                phase = min(counts, key=lambda name: (counts[name], self.rng.random()))
                if counts[phase] >= each:
                    return
                victim = self.rng.choice(["server", "server", "worker-0", "worker-1"])
                inside = run.kill_in(phase, victim)
                if inside is None:
                    return
                self.kills += 1
                victims += victim == "server"
                found = [name for name in ((phase,) if phase in inside else counts) if name in inside]
                if found:
                    counts[min(found, key=counts.get)] += 1
                else:
                    outside += 1

        while min(counts.values()) < each:
            assert sum(counts.values()) + outside < 10 * each * len(counts), f"the phases are not found: {counts}"
            self.run(kill_some)
        print(f"    {sum(counts.values())} kills by phase {counts}, {outside} between phases, {victims} of a server")


def test(name, function, *arguments):
    print(f"[ RUN      ] {name}", flush=True)
    began = time.monotonic()
    try:
        function(*arguments)
    except (AssertionError, OSError, subprocess.SubprocessError, ampd_testing.grpc.RpcError) as error:
        print(f"[  ERROR   ] {type(error).__name__}: {error}\n[  FAILED  ] {name}", flush=True)
        return False
    print(f"[       OK ] {name} ({time.monotonic() - began:.1f} s)", flush=True)
    return True


def every_place_is_known(suite):
    """Each name in the sources was passed, and each that was passed is in the sources."""
    wanted, passed = suite.setting.places(), {name for name in suite.passed if not name.endswith(".done")}
    passed -= suite.setting.seldom()
    assert wanted == passed, f"not passed: {sorted(wanted - passed)}; not in the sources: {sorted(passed - wanted)}"
    assert len(wanted) >= 15


def crash(build, setting, rng, long):
    """All kills of one setting. True if no bit changed."""
    suite, places = Suite(build, setting, rng), sorted(setting.places())
    began = time.monotonic()
    good = test(f"{setting.name}_a_run_without_kills_is_the_reference", suite.run)
    if long:
        orders = [(place, 1 if place in setting.once else rng.randrange(1, 4)) for place in places for _ in range(3)]
    else:
        orders = [(place, 1) for place in rng.sample(places, HANDFUL)]
    rng.shuffle(orders)
    each = LONG_EACH if long else 1
    good = good and test(f"{setting.name}_{len(orders)}_kills_at_failpoints_change_no_bit", suite.at_failpoints, orders)
    good = good and test(f"{setting.name}_{each * len(setting.phases)}_kills_at_random_change_no_bit", suite.at_random, each)
    if long:
        good = test(f"{setting.name}_every_failpoint_was_passed", every_place_is_known, suite) and good
    print(f"{setting.name}: {suite.kills} kills in {suite.runs} runs, {suite.kills_sharing} of them where memory is shared "
          f"({suite.told_sharing} of {suite.told} verdicts); {len(places)} failpoints, {time.monotonic() - began:.0f} s", flush=True)
    if good:
        shutil.rmtree(suite.work)
    else:
        print(f"what the runs left is in {suite.work}")
    return good


def main():
    build, long = pathlib.Path(sys.argv[1]).resolve(), "--long" in sys.argv
    seed = int(os.environ.get("AMPD_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
    only = ([word for word in sys.argv[2:] if word != "--long"] or [""])[0]
    print(f"seed {seed}")
    counts = (3,) if only.startswith("3_shards") else (1, 2)
    settings = [Setting(shards, durability) for shards in counts for durability in ("checkpoint", "step")]
    good = [crash(build, setting, random.Random(f"{seed} {setting.name}"), long)
            for setting in settings if only in setting.name]
    sys.exit(0 if good and all(good) else 1)


if __name__ == "__main__":
    main()
