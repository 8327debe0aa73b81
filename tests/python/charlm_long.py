"""examples/python/charlm.py beside plain PyTorch in fp32, and with a server and a worker that are killed.

    charlm_long.py BUILD/python [curves] [kills]

curves: 500 steps for each cast, with one worker and with two (whose gradients are averaged), against torch's AdamW with
the same first values, batches, schedule and clipping, which leaves out the steps that ampd has skipped. The mean losses
of the last fifth of the steps may be LIMITS apart, in the mean over the seeds.
kills: ten runs of 60 steps with two workers that share memory with the server, in each of which the server and a worker
get SIGKILL at random moments; the export at the end has the bytes of the undisturbed run, which is by TCP. AMPD_SEED
gives the moments of an earlier call.

Exits with 1 if anything is not so. test_charlm.py has short forms of both.
"""
from python_testing import PACKAGE, PATIENCE, ROOT, folder, needs  # (first: it finds the package)

needs("torch", "google.protobuf")

import contextlib
import functools
import importlib.util
import math
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time

import ampd.testing
import torch

EXAMPLE = ROOT / "examples" / "python" / "charlm.py"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(PACKAGE), "OMP_NUM_THREADS": "1"}
RUN_TIMEOUT_S = 1500
LR, WEIGHT_DECAY, CLIP_NORM, WARMUP, BATCH = 1e-3, 0.1, 1.0, 50, 8  # of the example
SCALE = 2.0 ** 24  # so high that the first steps really overflow in float16
# cast, seeds
CURVES = (("float32", (1,)), ("float16", (1,)), ("bfloat16", (1,)))
LIMITS = {"float32": 0.01, "float16": 0.01, "bfloat16": 0.01}
STEPS, KILL_STEPS, KILL_RUNS = 500, 60, 10


def load_example():
    loader = importlib.util.spec_from_file_location("charlm", EXAMPLE)
    module = importlib.util.module_from_spec(loader)
    loader.loader.exec_module(module)
    return module


# ---- curves ----

def rows(log):
    """step -> (loss, whether it was skipped): of a step that came again the last one."""
    lines = (line.split() for line in log.read_text().splitlines())
    return {int(number): (float(loss), skipped == "1") for number, loss, skipped in lines}


def by_ampd(made, ranks, steps, *options):
    """The rows of a run with workers and a server of its own."""
    log = pathlib.Path(made) / "log"
    log.unlink(missing_ok=True)
    done = subprocess.run([sys.executable, "-B", "-m", "ampd.launch", "-n", str(ranks), EXAMPLE, "--steps", str(steps),
                           "--log", log, *options], env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, encoding="utf-8", timeout=RUN_TIMEOUT_S * PATIENCE, check=False)
    assert done.returncode == 0, (done.returncode, done.stdout[-2000:])
    found = rows(log)
    assert sorted(found) == list(range(1, steps + 1)), sorted(found)
    return found


def learning_rate(steps):
    """What LambdaLR multiplies with at an applied step from 0."""
    warmup = min(WARMUP, steps // 4)

    def factor(applied):
        if applied < warmup:
            return (applied + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * min(1, (applied - warmup) / (steps - warmup))))
    return factor


@functools.lru_cache(maxsize=None)
def by_torch(ranks, steps, skipped, seed, batch):
    """The losses of rank 0's batches."""
    charlm = load_example()
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model = charlm.GPT()
    kinds = [[one for one in model.parameters() if (one.dim() > 1) == decays] for decays in (True, False)]
    optimizer = torch.optim.AdamW([{"params": kinds[0], "weight_decay": WEIGHT_DECAY},
                                   {"params": kinds[1], "weight_decay": 0.0}], lr=LR)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, learning_rate(steps))
    losses = []
    for number in range(1, steps + 1):
        optimizer.zero_grad(set_to_none=True)
        for rank in range(ranks):
            loss = model(*charlm.batch(seed, number, rank, batch))
            (loss / ranks).backward()
            if rank == 0:
                losses.append(loss.item())
        if number not in skipped:
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
            optimizer.step()
            schedule.step()
    return losses


def apart(made, cast, ranks, seed=1, steps=STEPS, batch=BATCH):
    """(how far the means over the last fifth are apart, how many steps were skipped)"""
    begun = time.monotonic()
    options = {"--cast": cast, "--seed": seed, "--scale": SCALE, "--batch": batch}
    ours = by_ampd(made, ranks, steps, *(str(word) for pair in options.items() for word in pair))
    skipped = frozenset(number for number, (_, skip) in ours.items() if skip)
    last = slice(steps - steps // 5, steps)
    mine, its = [ours[number][0] for number in range(1, steps + 1)], by_torch(ranks, steps, skipped, seed, batch)
    means = [sum(losses[last]) / (steps // 5) for losses in (mine, its)]
    print("%s, %d workers, seed %d: loss %.4f, torch %.4f over the last %d of %d steps, %+.5f apart; single steps at "
          "most %.1e; %d skipped; %.0f s" % (
              cast, ranks, seed, *means, steps // 5, steps, means[0] - means[1],
              max(abs(a - b) for a, b in zip(mine, its)), len(skipped), time.monotonic() - begun), flush=True)
    return abs(means[0] - means[1]), len(skipped)


def curves():
    failed = False
    with folder() as made:
        for cast, seeds in CURVES:
            for ranks in (1, 2):
                results = [apart(made, cast, ranks, seed) for seed in seeds]
                mean = sum(one for one, _ in results) / len(results)
                skips = all(skipped > 0 for _, skipped in results) == (cast == "float16")
                ok = mean <= LIMITS[cast] and skips
                failed |= not ok
                print("%s, %d workers: %.5f apart, at most %.2f: %s" % (
                    cast, ranks, mean, LIMITS[cast], "ok" if ok else "short" if skips else "short: what was skipped"),
                    flush=True)
    return not failed


# ---- kills ----

def slots_of(pid):
    """Memory that the process has lent to workers: a descriptor for each."""
    names = []
    for link in pathlib.Path("/proc/%d/fd" % pid).iterdir():
        with contextlib.suppress(FileNotFoundError):
            names.append(os.readlink(link))
    return sum("ampd-slot" in name for name in names)


class Run:
    """Two workers under ampd.launch, and a server of its own; each may be killed in the middle. By a unix socket the
    workers share memory with the server, by TCP they do not; `slots` says how many of them have, at the most."""

    def __init__(self, made, name, steps, unix):
        self.folder, self.steps, self.slots = pathlib.Path(made) / name, steps, 0
        self.folder.mkdir()
        self.log, self.said = self.folder / "steps", self.folder / "said"
        self.server = ampd.testing.Server(self.folder / "server")
        endpoint = "unix:%s/ampd.sock" % self.server.data_dir if unix else self.server.endpoint
        with open(self.said, "wb") as said:
            self.process = subprocess.Popen(
                [sys.executable, "-B", "-m", "ampd.launch", "-n", "2", "--restarts", "1", "--endpoint", endpoint,
                 EXAMPLE, "--steps", str(steps), "--batch", "2", "--scale", str(SCALE),
                 "--checkpoint-every", "20", "--log", self.log, "--save", self.folder / "charlm.pt"], env=ENVIRONMENT,
                stdin=subprocess.DEVNULL, stdout=said, stderr=said, preexec_fn=ampd.testing.die_with_parent)
        self.begun = time.monotonic()

    def ended_steps(self):
        """How many steps rank 0 has ended, rolled back ones too."""
        return self.log.read_bytes().count(b"\n") if self.log.exists() else 0

    def wait_for(self, steps, seconds):
        """Until so many steps are ended, and then so long."""
        until = time.monotonic() + RUN_TIMEOUT_S * PATIENCE
        while self.ended_steps() < steps and self.process.poll() is None:
            assert time.monotonic() < until, self.said.read_text()
            self.slots = max(self.slots, slots_of(self.server.process.pid))
            time.sleep(0.005)
        time.sleep(seconds)

    def kill_server(self, pause):
        self.server.kill()
        time.sleep(pause)
        self.server.start()

    def kill_worker(self, rank):
        """By SIGKILL; false: it was not there."""
        for one in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                parent = int((one / "stat").read_text().rpartition(")")[2].split()[1])
                if parent == self.process.pid and b"RANK=%d" % rank in (one / "environ").read_bytes().split(b"\0"):
                    os.kill(int(one.name), signal.SIGKILL)
                    return True
        return False

    def finish(self):
        """(the export of ampctl, the file of the example): bytes."""
        try:
            code = self.process.wait(RUN_TIMEOUT_S * PATIENCE)
            assert code == 0, (code, self.said.read_text()[-2000:])
            export = self.folder / "export.safetensors"
            subprocess.run([ampd.testing.program("ampctl"), "--endpoint", self.server.endpoint, "checkpoint", "export",
                            "charlm", export], check=True, capture_output=True, timeout=60 * PATIENCE)
            return export.read_bytes(), (self.folder / "charlm.pt").read_bytes()
        finally:
            self.process.kill()
            self.server.kill()


def undisturbed(made, steps):
    """(bytes, rows, seconds to the first step, seconds of a step)"""
    run = Run(made, "undisturbed", steps, unix=False)
    run.wait_for(1, 0)
    first = time.monotonic()
    run.wait_for(steps, 0)
    each = (time.monotonic() - first) / (steps - 1)
    found = run.finish()
    assert run.slots == 0, run.slots
    assert any(skipped for _, skipped in rows(run.log).values())
    return found, rows(run.log), first - run.begun, each


def killed(made, name, steps, wanted, seed):
    """A run whose server and one of whose workers are killed. What differs; "" where all is the same."""
    values, losses, first, each = wanted
    draw = random.Random(seed)
    # Within a step, or before the first one; the last ones would often be over by then.
    events = [(draw.randrange(steps - 2), draw.random(), who) for who in ("server", "worker")]
    events = sorted((number, part * (each if number > 0 else first), who) for number, part, who in events)
    rank, pause, missed = draw.randrange(2), draw.uniform(0, 1), False
    run = Run(made, name, steps, unix=True)
    try:
        for number, seconds, who in events:
            run.wait_for(number, seconds)
            if who == "server":
                run.kill_server(pause)
            else:
                missed = not run.kill_worker(rank)
        run.wait_for(steps, 0)
    except BaseException:
        run.process.kill()
        raise
    found, said = run.finish(), run.said.read_text()
    again = re.findall(r"rank (\d) ended by SIGKILL; it is started again", said)
    print("seed %s: %s, rank %d; %srolled back, %d steps ended by rank 0; %.0f s" % (
        seed, ", ".join("%s after step %d + %.3f s" % (who, number, seconds) for number, seconds, who in events), rank,
        "" if "is over; join again" in said else "not ", run.ended_steps(), time.monotonic() - run.begun), flush=True)
    if missed or again != [str(rank)]:
        return "no worker was killed: %s" % said[-1000:]
    if run.slots == 0:
        return "no memory was shared"
    differ = [what for what, one, other in zip(("the export", "the saved module"), found, values) if one != other]
    if run.log.exists() and any(losses[number] != row for number, row in rows(run.log).items()):
        differ.append("losses")
    return " and ".join(differ)


def kills():
    seed, failed = int(os.environ.get("AMPD_SEED") or random.SystemRandom().randrange(10 ** 9)), 0
    print("kills: AMPD_SEED=%d" % seed, flush=True)
    with folder() as made:
        wanted = undisturbed(made, KILL_STEPS)
        print("undisturbed: %d bytes, %d skipped; %.1f s to the end of the first step, then %.3f s a step" % (
            len(wanted[0][0]), sum(skipped for _, skipped in wanted[1].values()), *wanted[2:]), flush=True)
        for number in range(KILL_RUNS):
            differs = killed(made, str(number), KILL_STEPS, wanted, seed + number)
            failed += differs != ""
            print("run %d: %s" % (number + 1, "differs: " + differs if differs else "the same bytes"), flush=True)
    print("kills: %d of %d runs with the same bytes" % (KILL_RUNS - failed, KILL_RUNS), flush=True)
    return failed == 0


def main():
    chosen = sys.argv[2:] or ["curves", "kills"]
    return int(not all([{"curves": curves, "kills": kills}[name]() for name in chosen]))


if __name__ == "__main__":
    sys.exit(main())
