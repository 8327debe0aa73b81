#!/usr/bin/python3
"""A long job: two shards and two workers, killed now and then, watched all the time.

    soak.py BUILD_DIR [SECONDS [KILL_EVERY_S]]     3600 and 60 where they are not given
    soak.py BUILD_DIR goodput                      what is left of the steps where a process dies every eleven seconds

Each KILL_EVERY_S seconds one process gets kill -9, workers in turns, and each EIGHTH time a shard, though none in the
second half of the time, so that one life of each is long; it is started again at once. A checkpoint is taken each
CHECKPOINT_EVERY steps. Each SAMPLE_S seconds a viewer asks for the status and the newest history, as a page does. At
the end
  - the exported checkpoint is byte for byte that of a run of as many steps without kills and viewers;
  - the history of every shard has no gap, and each row follows from the one before (scaler.py);
  - within each life of a shard that is long enough its memory, from SETTLED_S seconds on, when the caches of its store
    are full, grows by less than GROWTH_MIB an hour, and descriptors and threads do not grow;
  - the data directory without its history is as large as after the first tenth of the time, when as many checkpoints as
    are kept were there, and the history takes less than ROW_BYTES a step.
The rates of the first and the last tenth of the time are printed and not judged: other programs may share the machine.

`goodput` prints the steps a second of a job that is killed, beside those of one that is not, in turns: 7.8 failures a
day, which 16,384 GPUs had (Llama 3), a thousand times as fast.
"""
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "integration"))
import ampd_testing  # noqa: E402  (says SKIPPED where grpcio is missing)
import scaler  # noqa: E402

MODEL, WORLD, SHARDS, STEPS_MAX = "soak", 2, 2, 1000000000
CHECKPOINT_EVERY, PAUSE_MS = 500, 20  # so that a run without kills, which does not pause, takes a fraction of the time
SAMPLE_S, EIGHTH, SETTLED_S = 5, 8, 600
SETTLED_CHECKPOINTS = 6  # more than are kept
GROWTH_MIB = 1.0       # an hour
ROW_BYTES = 400        # of history a step and shard, with its indexes
END_TIMEOUT_S = 120
MIB = 1 << 20
# Eleven seconds are a day / 7.8 / 1000. A step computes for 50 ms.
GOODPUT_TURNS, GOODPUT_S, GOODPUT_KILL_EVERY_S, GOODPUT_PAUSE_MS = 2, 45, 11.08, 50
GOODPUT_WARM_UP, GOODPUT_LOOK_S = 20, 0.25  # steps; seconds


def memory_of(pid):
    """Bytes of anonymous memory: files that are mapped, and what workers share, are not its own."""
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return 0


def size_of(folder, history):
    """Bytes of its store without its log, whose size is bounded, if `history`; else of all but the store."""
    total = 0
    for path in folder.rglob("*"):
        try:
            of_store = path.name == "ampd.db" if history else not path.name.startswith("ampd.db")
            if path.is_file() and of_store:
                total += path.stat().st_size
        except FileNotFoundError:
            pass  # a checkpoint that was removed meanwhile
    return total


class Shard:
    """One ampd, and what it held at each sample of each life."""

    def __init__(self, job, index):
        self.job, self.index, self.data = job, index, job.folder / f"data-{index}"
        self.log_path = job.folder / f"ampd-{index}.log"
        self.lives, self.process = [], None

    def start(self):
        addresses = self.job.addresses
        options = ["--peers", ",".join(addresses), "--shard", str(self.index), "--listen", addresses[self.index]]
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [*ampd_testing.DIE_WITH_PARENT, self.job.build / "bin" / "ampd", "--data-dir", self.data,
                 "--metrics-listen", "none", *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.lives.append((time.monotonic(), []))

    def sample(self):
        proc = pathlib.Path(f"/proc/{self.process.pid}")
        began, samples = self.lives[-1]
        try:
            held = [len(os.listdir(proc / what)) for what in ("fd", "task")]
            samples.append((time.monotonic() - began, memory_of(self.process.pid), *held))
        except FileNotFoundError:
            pass  # it was killed


class Job:
    """The shards and their workers. Without pauses and kills it is what the other one is compared with."""

    def __init__(self, build, folder, pause_ms, last=None, checkpoint_every=CHECKPOINT_EVERY, durability="checkpoint"):
        self.build, self.folder, self.pause_ms = build, folder, pause_ms
        self.checkpoint_every, self.durability = checkpoint_every, durability
        folder.mkdir()
        self.last_path = folder / "last"
        if last is not None:
            self.last_path.write_text(f"{last}\n")
        self.addresses = [f"unix:{folder}/s{k}" for k in range(SHARDS)]
        self.shards = [Shard(self, k) for k in range(SHARDS)]
        self.workers = [None] * WORLD
        self.kills = 0
        for shard in self.shards:
            shard.start()
        for rank in range(WORLD):
            self.start_worker(rank)

    def start_worker(self, rank):
        with open(self.folder / f"worker-{rank}.txt", "ab") as said:
            self.workers[rank] = subprocess.Popen(
                [*ampd_testing.DIE_WITH_PARENT, self.build / "tests" / "crash" / "crash_worker", self.addresses[0],
                 MODEL, str(rank), str(WORLD), str(STEPS_MAX), str(self.checkpoint_every), self.durability, "small",
                 f"@{self.last_path}", str(self.pause_ms)], stdin=subprocess.DEVNULL, stdout=said, stderr=said)

    def tend(self):
        for rank, worker in enumerate(self.workers):
            assert worker.poll() in (None, 0, -9), f"worker {rank} ended with {worker.poll()}: {self.tails()}"
            if worker.poll() == -9:
                self.start_worker(rank)
        for shard in self.shards:
            code = shard.process.poll()
            assert code in (None, -9), f"ampd {shard.index} ended with {code}: {self.tails()}"
            if code == -9:
                shard.start()

    def kill_one(self, shards=True):
        self.kills += 1
        if self.kills % EIGHTH == 0 and shards:
            process = self.shards[self.kills // EIGHTH % SHARDS].process
        else:
            process = self.workers[self.kills % WORLD]
        process.kill()
        process.wait()
        self.tend()

    def tails(self):
        said = [path for path in sorted(self.folder.glob("*.*")) if path.suffix in (".log", ".txt")]
        return "\n".join(path.read_text(errors="replace")[-1500:] for path in said)

    def api(self, index=0):
        channel = ampd_testing.grpc.insecure_channel(self.addresses[index], options=ampd_testing.CHANNEL_OPTIONS)
        return channel, ampd_testing.Api(channel)

    def look(self):
        """As a viewer does. The newest step, or None while a shard is away."""
        steps = []
        for shard in self.shards:
            channel, api = self.api(shard.index)
            try:
                api.GetStatus()
                api.ListScaleHistory(model=MODEL, page_size=200, newest_first=True)
                steps.append(api.GetModel(model=MODEL).status.step)
            except ampd_testing.grpc.RpcError:
                pass
            finally:
                channel.close()
            shard.sample()
        return max(steps) if len(steps) == len(self.shards) else None

    def newest(self):
        """The newest step, as soon as all shards answer."""
        while (step := self.look()) is None:
            self.tend()
            time.sleep(0.1)
        return step

    def await_step(self, step):
        until = time.monotonic() + END_TIMEOUT_S
        while self.newest() < step:
            assert time.monotonic() < until, f"no step {step} after {END_TIMEOUT_S} s: {self.tails()}"
            time.sleep(0.1)

    def end_after(self, step):
        """The workers end with the verdict of this step, which must be to come."""
        temporary = self.folder / "last-"
        temporary.write_text(f"{step}\n")
        temporary.rename(self.last_path)
        self.end(END_TIMEOUT_S)

    def end(self, timeout_s):
        until = time.monotonic() + timeout_s
        while any(worker.poll() is None for worker in self.workers):
            assert time.monotonic() < until, f"not done after {timeout_s} s: {self.tails()}"
            self.tend()
            time.sleep(0.05)

    def exported(self):
        path = self.folder / "exported.safetensors"
        ctl = [self.build / "bin" / "ampctl", "--endpoint", self.addresses[0], "checkpoint"]
        subprocess.run([*ctl, MODEL], check=True, timeout=END_TIMEOUT_S, stdout=subprocess.DEVNULL)
        subprocess.run([*ctl, "export", MODEL, path], check=True, timeout=END_TIMEOUT_S, stdout=subprocess.DEVNULL)
        return path.read_bytes()

    def rows(self, index=0):
        """The whole history of a shard, superseded rows too."""
        channel, api = self.api(index)
        rows, token = [], ""
        while True:
            page = api.ListScaleHistory(model=MODEL, include_superseded=True, page_size=1000, page_token=token)
            rows, token = rows + list(page.rows), page.next_page_token
            if not token:
                channel.close()
                return rows

    def standing(self):
        """The steps that stand, which all shards agree on."""
        found = []
        for shard in self.shards:
            channel, api = self.api(shard.index)
            found.append(scaler.check_history(api.GetModel(model=MODEL).spec.scaler, self.rows(shard.index), SHARDS))
            channel.close()
        assert all(steps == found[0] for steps in found), "the shards have different histories"
        return found[0]

    def close(self):
        for process in [*self.workers, *(shard.process for shard in self.shards)]:
            if process is not None and process.poll() is None:
                process.kill()
                process.wait()


def check_lives(shard):
    """What each long life of a shard held, from SETTLED_S on."""
    for began, samples in shard.lives:
        del began
        settled = [sample for sample in samples if sample[0] >= SETTLED_S]
        if len(settled) < 2 or settled[-1][0] - settled[0][0] < SETTLED_S:
            continue
        third = max(1, len(settled) // 3)
        first = min(memory for _, memory, _, _ in settled[:third])
        last = min(memory for _, memory, _, _ in settled[-third:])
        hours = (settled[-1][0] - settled[0][0]) / 3600 * 2 / 3  # between the middles of the thirds
        growth = (last - first) / MIB / hours
        files, threads = [min(s[k] for s in settled[-third:]) - max(s[k] for s in settled[:third]) for k in (2, 3)]
        print(f"shard {shard.index}, a life of {samples[-1][0]:.0f} s: {first / MIB:.1f} MiB at first, "
              f"{last / MIB:.1f} at last, {growth:+.2f} MiB an hour; descriptors {settled[0][2]}, {settled[-1][2]}; "
              f"threads {settled[0][3]}, {settled[-1][3]}", flush=True)
        assert growth < GROWTH_MIB, "its memory grows"
        assert files <= 0 and threads <= 0, "its descriptors or threads grow"


def train(job, seconds, kill_every_s, look_every_s=SAMPLE_S):
    """For so long. (step at each sample; sizes of the files after the first tenth, None if the time was too short)"""
    began = killed = time.monotonic()
    steps, early = [], None
    while time.monotonic() - began < seconds:
        job.tend()
        step = job.look()
        if step is not None:
            steps.append((time.monotonic() - began, step))
        settled = step is not None and step >= SETTLED_CHECKPOINTS * CHECKPOINT_EVERY
        if early is None and settled and time.monotonic() - began > seconds / 10:
            early = [size_of(shard.data, False) for shard in job.shards]
        if time.monotonic() - killed >= kill_every_s:
            killed = time.monotonic()
            job.kill_one(shards=killed - began < seconds / 2)
        time.sleep(look_every_s)
    return steps, early


def rate(steps, first, last):
    part = [sample for sample in steps if first <= sample[0] <= last]
    return (part[-1][1] - part[0][1]) / (part[-1][0] - part[0][0]) if len(part) > 1 else 0.0


def soak(build, work, seconds, kill_every_s):
    job = Job(build, work / "job", PAUSE_MS)
    try:
        steps, early = train(job, seconds, kill_every_s)
        last = job.newest() + 200
        job.end_after(last)
        late = [size_of(shard.data, False) for shard in job.shards]
        history = [size_of(shard.data, True) for shard in job.shards]
        print(f"{job.kills} kills in {seconds} s; {last} steps, {rate(steps, 0, seconds / 10):.0f} a second in the "
              f"first tenth, {rate(steps, seconds * 0.9, seconds):.0f} in the last", flush=True)
        early = early or late
        print(f"files, MiB, after a tenth and at last: {[round(x / MIB, 1) for x in early]}, "
              f"{[round(x / MIB, 1) for x in late]}; history, bytes a step: {[round(x / last) for x in history]}",
              flush=True)
        for shard in job.shards:
            check_lives(shard)
        standing = job.standing()
        exported = job.exported()
        assert all(x <= y * 1.1 + MIB for x, y in zip(late, early)), "the data directory grows"
        assert all(x / last < ROW_BYTES for x in history), "the history takes more than it should"
    finally:
        job.close()
    began = time.monotonic()
    other = Job(build, work / "undisturbed", 0, last)
    try:
        other.end(seconds + END_TIMEOUT_S)
        print(f"undisturbed: {last} steps in {time.monotonic() - began:.0f} s", flush=True)
        assert other.standing() == standing, "the steps that stand differ from those of a run without kills"
        assert other.exported() == exported, "the checkpoint differs from that of a run without kills"
    finally:
        other.close()


def goodput(build, work):
    """Half of the turns begin with the job that is killed."""
    shares = []
    for turn in range(GOODPUT_TURNS):
        rates = {}
        for kills in ((False, True), (True, False))[turn % 2]:
            job = Job(build, work / f"goodput-{turn}-{kills}", GOODPUT_PAUSE_MS)
            try:
                job.await_step(GOODPUT_WARM_UP)
                steps, _ = train(job, GOODPUT_S, GOODPUT_KILL_EVERY_S if kills else GOODPUT_S, GOODPUT_LOOK_S)
                rates[kills] = rate(steps, 0, GOODPUT_S)
            finally:
                job.close()
        shares.append(rates[True] / rates[False])
        print(f"{rates[True]:.2f} steps a second with kills, {rates[False]:.2f} without: {shares[-1]:.4f}", flush=True)
    print(f"goodput: {statistics.median(shares):.4f}", flush=True)


def main():
    build = pathlib.Path(sys.argv[1]).resolve()
    work = pathlib.Path(tempfile.mkdtemp(prefix="ampd-soak-"))
    if sys.argv[2:] == ["goodput"]:
        goodput(build, work)
        shutil.rmtree(work)
        return
    seconds = float(sys.argv[2]) if len(sys.argv) > 2 else 3600.0
    kill_every_s = float(sys.argv[3]) if len(sys.argv) > 3 else 60.0
    soak(build, work, seconds, kill_every_s)
    shutil.rmtree(work)  # a failure leaves it
    print("ok")


if __name__ == "__main__":
    main()
