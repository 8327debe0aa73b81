#!/usr/bin/python3
"""Real processes under kill -9: at every failpoint of the server, and at random moments of the server and its workers.

    crash.py BUILD_DIR              a handful of both
    crash.py BUILD_DIR --long       three kills at every failpoint, 300 at random: 60 in each phase of a step

A run is an ampd with failpoints and two workers, each restarted as soon as it is gone. When the model is done, its last
checkpoint is byte for byte that of a run without kills, and its history without gap, each row recomputed from the one
before (scaler.py). The seed is printed; AMPD_TEST_SEED=N repeats the orders, though not the instants of the system.
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
PAUSE_US = 400       # longest wait at a failpoint: so long that a kill finds each phase, so short that a step takes 10 ms
RUN_TIMEOUT_S = 240  # of one run, with its kills
REACH_S = 0.4        # a place that was not passed by then may be one of the start: the server is killed to begin anew
PHASES = ("receive", "vote", "persist", "apply", "checkpoint")
# With one shard nobody's fence but the own is stored, and that at the start; and a model is deleted without a mark before.
NEVER = {"persist.fence", "persist.deleting"}
# Passed when an operator acts: on a model of its own, so that the one under training goes its way.
ACTS = {"persist.act", "persist.delete", "delete.unstored"}
SPARE = "spare"
# Passed once in the life of a data directory: each of its kills needs a new run.
ONCE = {"persist.model"}


class Run:
    """One server and its workers on a new data directory."""

    def __init__(self, build, work, number, seed, pause_us=PAUSE_US):
        self.build, self.folder = build, work / f"run-{number}"
        self.folder.mkdir()
        self.failpoints = Failpoints(self.folder / "failpoints", seed, pause_us)
        self.data = self.folder / "data"
        self.log = open(self.folder / "ampd.log", "ab")
        self.said = [open(self.folder / f"worker-{rank}.txt", "ab") for rank in range(WORLD)]
        self.until = time.monotonic() + RUN_TIMEOUT_S
        self.server, self.workers, self.done = None, [None] * WORLD, [False] * WORLD

    def begin(self):
        self.start_server()
        for rank in range(WORLD):
            self.start_worker(rank)
        return self

    def start_server(self):
        """No code of Python's runs between fork and exec, where grpc's threads would be missing: the programs themselves see
        to it that they end with this one."""
        environment = {**os.environ, "AMPD_FAILPOINTS_FILE": str(self.failpoints.path)}
        self.server = subprocess.Popen(
            [self.build / "tests" / "crash" / "ampd_crash", "--data-dir", self.data, "--listen", "127.0.0.1:0",
             "--compute-threads", "2"], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=environment)

    def start_worker(self, rank):
        self.workers[rank] = subprocess.Popen(
            [self.build / "tests" / "crash" / "crash_worker", f"unix:{self.data}/ampd.sock", MODEL, str(rank), str(WORLD),
             str(STEPS), str(CHECKPOINT_EVERY), "checkpoint"], stdin=subprocess.DEVNULL, stdout=self.said[rank],
            stderr=self.said[rank])

    def tail(self):
        texts = [(self.folder / name).read_text(errors="replace")[-1500:]
                 for name in ("ampd.log", *(f"worker-{rank}.txt" for rank in range(WORLD)))]
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
        code = self.server.poll()
        assert code in (None, -9), f"ampd ended with {code}:\n{self.tail()}"
        if code == -9:
            self.start_server()
        return not all(self.done)

    def kill_at(self, name, count):
        """The server dies at that place. False: the model was done before."""
        if name in ACTS:
            return self.kill_at_act(name)
        self.failpoints.kill_at(name, count)
        anew_at = time.monotonic() + (0 if name.startswith(("start.", "restore.")) else REACH_S)
        while self.server.poll() is None:
            if not self.tend():
                self.failpoints.kill_at("", 1)
                return False
            if time.monotonic() > anew_at:
                anew_at = time.monotonic() + REACH_S
                self.failpoints.kill_at(name, 1)
                self.server.kill()
                self.server.wait()
                self.tend()
            time.sleep(0.001)
        self.failpoints.kill_at("", 1)
        self.tend()
        return True

    def connect(self):
        return ampd_testing.grpc.insecure_channel(f"unix:{self.data}/ampd.sock", options=ampd_testing.CHANNEL_OPTIONS)

    def act(self):
        """Makes a model, sets its scale and deletes it. False: the server went away meanwhile."""
        self.channel = self.connect()  # what TestModel asks a server for
        try:
            model = ampd_testing.TestModel(self, SPARE)
            model.api.SetScale(model=SPARE, scale=2048.0)
            model.api.DeleteModel(model=SPARE, force=True)
            return True
        except ampd_testing.grpc.RpcError as error:
            codes = ampd_testing.Code
            assert error.code() in (codes.UNAVAILABLE, codes.CANCELLED, codes.NOT_FOUND, codes.ABORTED), \
                str(ampd_testing.Refusal(error))
            return False
        finally:
            self.channel.close()

    def kill_at_act(self, name):
        """The server dies in the middle of an operator's act, which is then done by asking again. False: the model was done."""
        self.failpoints.kill_at(name, 1)
        while not self.failpoints.has_killed():
            self.act()
            if not self.tend() and not self.failpoints.has_killed():
                self.failpoints.kill_at("", 1)
                return False
        self.failpoints.kill_at("", 1)
        while not self.act():
            self.tend()
            time.sleep(0.01)
        assert not (self.data / "models" / SPARE).exists(), f"{SPARE} was deleted, and left files"
        return True

    def kill_in(self, phase, victim, rng):
        """Waits for a random occurrence of the phase, a random while more, and kills. The phases that the server was in
        then, or None: the model was done before."""
        aim = self.failpoints.entered(phase) + rng.randrange(1, 9 if phase != "checkpoint" else 4)
        while self.failpoints.entered(phase) < aim or not self.failpoints.is_inside(phase) or self.server.poll() is not None:
            if not self.tend():
                return None
            time.sleep(0.00005)
        time.sleep(rng.random() * 0.0002)
        process = self.server if victim == "server" else self.workers[int(victim[-1])]
        if process.poll() is not None:
            return set()  # it ended by itself in between
        process.kill()
        inside = self.failpoints.inside() if victim != "server" else None
        process.wait()
        inside = self.failpoints.inside() if inside is None else inside
        self.tend()
        return inside

    def finish(self):
        """Runs to the end. (bytes of the last checkpoint, history's rows, specification)"""
        while self.tend():
            time.sleep(0.002)
        channel = self.connect()
        ampd_testing.grpc.channel_ready_future(channel).result(timeout=60)
        api = ampd_testing.Api(channel)
        spec = api.GetModel(model=MODEL).spec
        rows = list(api.ListScaleHistory(model=MODEL, include_superseded=True, page_size=1000).rows)
        channel.close()
        self.server.terminate()
        assert self.server.wait(60) == 0, f"ampd did not end well:\n{self.tail()}"
        files = sorted(self.data.glob("models/*/checkpoints/step-*/shard-*.safetensors"))
        assert files and files[-1].parent.name == f"step-{STEPS:010}", files
        return files[-1].read_bytes(), rows, spec

    def close(self):
        for process in (self.server, *self.workers):
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()
        for file in (self.log, *self.said):
            file.close()
        self.failpoints.close()


class Suite:
    def __init__(self, build, seed):
        self.build, self.rng = build, random.Random(seed)
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="ampd-crash-"))
        self.runs, self.reference, self.steps, self.passed = 0, None, None, {}
        self.kills = 0

    def run(self, during=None):
        """One run, checked at its end; `during(run)` does the killing."""
        self.runs += 1
        run = Run(self.build, self.work, self.runs, self.rng.getrandbits(63))
        try:
            value = during(run) if during is not None else run.begin()
            checkpoint, rows, spec = run.finish()
            standing = scaler.check_history(spec.scaler, rows)
            for name, count in run.failpoints.passed().items():
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

    def at_failpoints(self, orders):
        """`orders` is a list of (place, count); several to a run."""
        orders = list(orders)

        def kill_some(run):
            first = orders[0]
            if first[0] in ONCE:
                run.failpoints.kill_at(*first)
            run.begin()
            for _ in range(6):
                if not orders or (orders[0][0] in ONCE and orders[0] is not first):
                    return
                if not run.kill_at(*orders[0]):
                    return
                self.kills += 1
                orders.pop(0)

        while orders:
            left = len(orders)
            self.run(kill_some)
            assert len(orders) < left, f"no run passed {orders[0][0]}"

    def at_random(self, each, per_run=8):
        """At least `each` kills in every phase; prints how many there were."""
        counts = dict.fromkeys(PHASES, 0)
        outside = victims = 0

        def kill_some(run):
            nonlocal outside, victims
            run.begin()
            for _ in range(per_run):
                phase = min(PHASES, key=lambda name: (counts[name], self.rng.random()))
                if counts[phase] >= each:
                    return
                victim = self.rng.choice(["server", "server", "worker-0", "worker-1"])
                inside = run.kill_in(phase, victim, self.rng)
                if inside is None:
                    return
                self.kills += 1
                victims += victim == "server"
                found = [name for name in ((phase,) if phase in inside else PHASES) if name in inside]
                if found:
                    counts[min(found, key=counts.get)] += 1
                else:
                    outside += 1

        while min(counts.values()) < each:
            assert sum(counts.values()) + outside < 10 * each * len(PHASES), f"the phases are not found: {counts}"
            self.run(kill_some)
        print(f"    {sum(counts.values())} kills by phase {counts}, {outside} between phases, {victims} of the server")


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
    wanted, passed = named_in_the_sources() - NEVER, {name for name in suite.passed if not name.endswith(".done")}
    assert wanted == passed, f"not passed: {sorted(wanted - passed)}; not in the sources: {sorted(passed - wanted)}"
    assert len(wanted) >= 15


def main():
    build, long = pathlib.Path(sys.argv[1]).resolve(), "--long" in sys.argv
    seed = int(os.environ.get("AMPD_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"seed {seed}")
    suite = Suite(build, seed)
    good = test("a_run_without_kills_is_the_reference", suite.run)
    places = sorted(named_in_the_sources() - NEVER)
    if long:
        orders = [(place, 1 if place in ONCE else suite.rng.randrange(1, 4)) for place in places for _ in range(3)]
    else:
        orders = [(place, 1) for place in suite.rng.sample(places, 5)]
    suite.rng.shuffle(orders)
    good = good and test(f"{len(orders)}_kills_at_failpoints_change_no_bit", suite.at_failpoints, orders)
    good = good and test(f"{60 * 5 if long else 5}_kills_at_random_change_no_bit", suite.at_random, 60 if long else 1)
    if long:
        good = test("every_failpoint_was_passed", every_place_is_known, suite) and good
    print(f"{suite.kills} kills in {suite.runs} runs, {len(places)} failpoints, seed {seed}")
    if not good:
        print(f"what the runs left is in {suite.work}")
        sys.exit(1)
    shutil.rmtree(suite.work)


if __name__ == "__main__":
    main()
