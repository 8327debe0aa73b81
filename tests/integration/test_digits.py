#!/usr/bin/python3
"""The digits job with real processes: accuracy, equal bits over runs, and after processes were killed with -9.

    test_digits.py BIN_DIR              one short run of each kind
    test_digits.py BIN_DIR --long       5 seeds, bf16 and fp32 beside them, 10 kills of ampd, 10 kills of a worker

Prints one line a test as cmocka does. The seed of the instants is printed; AMPD_TEST_SEED=N repeats them.
"""
import filecmp
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RUN = ROOT / "examples" / "digits" / "run.sh"
RESULT = re.compile(r"digits: test accuracy (\d\.\d+) after (\d+) steps(?: \((\d+) applied, (\d+) skipped\), "
                    r"final scale (\S+))?")
RUN_TIMEOUT_S = 300


class Run:
    """One finished run of the job."""

    def __init__(self, folder, output, seconds):
        match = RESULT.search(output)
        assert match, f"no result line in:\n{output[-2000:]}"
        self.folder, self.output, self.seconds = folder, output, seconds
        self.accuracy, self.steps = float(match[1]), int(match[2])
        self.applied, self.skipped = (int(match[3]), int(match[4])) if match[3] else (self.steps, 0)

    def checkpoint(self):
        """The newest checkpoint file."""
        files = sorted((self.folder / "data").glob("**/step-*/shard-*.safetensors"))
        assert files, f"no checkpoint below {self.folder}"
        return files[-1]


class Job:
    """Starts runs below one temporary folder."""

    def __init__(self, bin_dir, work):
        self.bin_dir, self.work, self.count = bin_dir, work, 0

    def start(self, *options):
        self.count += 1
        folder = self.work / f"run-{self.count}"
        folder.mkdir()
        out = open(folder / "output.txt", "w+", encoding="utf-8")
        process = subprocess.Popen([RUN, "--bin", self.bin_dir, "--dir", folder, "--port", "0", *options],
                                   stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
        return process, folder, out

    @staticmethod
    def finish(process, folder, out, began):
        try:
            code = process.wait(RUN_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise AssertionError(f"the run did not end within {RUN_TIMEOUT_S} s; see {folder}") from None
        seconds = time.monotonic() - began
        out.seek(0)
        output = out.read()
        out.close()
        log = (folder / "ampd.log").read_text(errors="replace")[-2000:] if (folder / "ampd.log").exists() else ""
        assert code == 0, f"exit code {code}:\n{output[-2000:]}\nampd.log:\n{log}"
        return Run(folder, output, seconds)

    def run(self, *options):
        began = time.monotonic()
        return self.finish(*self.start(*options), began)

    def run_with_kill(self, who, after_s, *options):
        """A run in which `who` (ampd, worker-0, worker-1) gets SIGKILL after so many seconds."""
        began = time.monotonic()
        process, folder, out = self.start(*options)
        pid_file = folder / f"{who}.pid"
        time.sleep(after_s)
        killed = False
        if process.poll() is None and pid_file.exists():
            try:
                os.kill(int(pid_file.read_text()), signal.SIGKILL)
                killed = True
            except ProcessLookupError:
                pass
        return self.finish(process, folder, out, began), killed

    def local(self, *options):
        began = time.monotonic()
        done = subprocess.run([self.bin_dir / "digits", "--local", "--quiet", *options], stdout=subprocess.PIPE,
                              timeout=RUN_TIMEOUT_S, check=True, encoding="utf-8")
        return Run(None, done.stdout, time.monotonic() - began)

    def ask(self, folder, *command):
        """What ampctl says (as JSON) of an ampd started anew on the data of a finished run."""
        log = open(folder / "ask.log", "w+", encoding="utf-8")
        ampd = subprocess.Popen([self.bin_dir / "ampd", "--data-dir", folder / "data", "--listen", "127.0.0.1:0"],
                                stderr=log, stdout=log)
        try:
            for _ in range(1200):
                match = re.search(r"127\.0\.0\.1:(\d+)", (folder / "ask.log").read_text())
                if match and match[1] != "0":
                    break
                time.sleep(0.05)
            assert match, "ampd did not print its address"
            done = subprocess.run([self.bin_dir / "ampctl", "--endpoint", f"127.0.0.1:{match[1]}", "-o", "json",
                                   *command], stdout=subprocess.PIPE, timeout=60, check=True, encoding="utf-8")
            return json.loads(done.stdout)
        finally:
            ampd.terminate()
            code = ampd.wait(60)
            log.close()
        assert code == 0, f"ampd ended with {code} after SIGTERM"


SHORT = ("--steps", "60", "--checkpoint-every", "20", "--quiet")
FULL = ("--steps", "300", "--quiet")


def epochs(job, run):
    """The highest epoch in the history."""
    return max(int(row["epoch"]) for row in job.ask(run.folder, "history", "digits")["rows"])


def check_overflows(job, run):
    """Each skipped step has its rows, with parameter, worker and Inf count."""
    assert run.skipped >= 1, "no step was skipped"
    history = job.ask(run.folder, "history", "digits")["rows"]
    skipped = {int(row["step"]) for row in history if row["kind"] == "step" and row["verdict"] == "skipped_overflow"}
    assert len(skipped) == run.skipped, f"history has {len(skipped)} skipped steps, the run {run.skipped}"
    rows = job.ask(run.folder, "overflows", "digits")["rows"]
    assert {int(row["step"]) for row in rows} == skipped
    for row in rows:
        assert row["parameter"] and (row["worker"] or row["source"] != "worker")
        assert int(row["inf_count"]) + int(row["nan_count"]) > 0, row


def equal(run, reference):
    assert run.checkpoint().name == reference.checkpoint().name
    assert run.checkpoint().parent.name == reference.checkpoint().parent.name
    assert filecmp.cmp(run.checkpoint(), reference.checkpoint(), shallow=False), \
        f"{run.checkpoint()} differs from {reference.checkpoint()}"


class Suite:
    """Runs named tests and counts."""

    def __init__(self):
        self.failed = 0

    def test(self, name, function, *arguments):
        print(f"[ RUN      ] {name}", flush=True)
        try:
            value = function(*arguments)
            print(f"[       OK ] {name}", flush=True)
            return value
        except (AssertionError, subprocess.SubprocessError, OSError, KeyError, ValueError) as error:
            print(f"[  ERROR   ] {type(error).__name__}: {error}\n[  FAILED  ] {name}", flush=True)
            self.failed += 1
            return None


def every_instruction_set(job, reference, options):
    """Server and workers with each kernel variant that this processor has: one checkpoint."""
    chosen, done = os.environ.pop("AMPD_ISA", None), []
    try:
        for isa in ("ref", "avx2", "avx512", "neon"):
            os.environ["AMPD_ISA"] = isa
            try:
                job.local("--steps", "1")
            except subprocess.CalledProcessError:
                continue  # not on this processor
            equal(job.run(*options), reference)
            done.append(isa)
    finally:
        os.environ.pop("AMPD_ISA")
        if chosen is not None:
            os.environ["AMPD_ISA"] = chosen
    assert "ref" in done, done
    print(f"    equal with {', '.join(done)}")


def kills(suite, job, reference, rng, options, count):
    """`count` runs with a killed server and as many with a killed worker; all end with the reference's bits."""

    def killed_run(who):
        seconds = reference.seconds
        for _ in range(10):  # on a busy machine no run is as long as another, and a kill may come before or after all of it
            after = seconds * rng.uniform(0.15, 0.85)
            run, killed = job.run_with_kill(who, after, *options)
            equal(run, reference)
            counts = killed and (who != "ampd" or epochs(job, run) > 1)
            shutil.rmtree(run.folder)
            if counts:
                break
            seconds = seconds * 1.5 if killed else run.seconds
        assert counts, "ten times the run was over before the kill, or the epoch has not risen"
        print(f"    {who} killed after {after:.2f} s of about {seconds:.2f} s")

    for i in range(count):
        suite.test(f"a_run_whose_server_was_killed_ends_with_the_same_checkpoint_{i + 1}", killed_run, "ampd")
    for i in range(count):
        suite.test(f"a_run_whose_worker_was_killed_ends_with_the_same_checkpoint_{i + 1}", killed_run,
                   f"worker-{rng.randrange(2)}")


def short(suite, job, rng):
    reference = suite.test("a_short_run_in_fp16_ends_with_a_result", job.run, *SHORT)
    if reference is None:
        return
    suite.test("each_skipped_step_has_its_overflow_rows", check_overflows, job, reference)
    suite.test("a_second_run_ends_with_the_same_checkpoint", lambda: equal(job.run(*SHORT), reference))
    suite.test("every_instruction_set_ends_with_the_same_checkpoint", every_instruction_set, job, reference, SHORT)
    suite.test("a_short_run_in_bf16_ends_with_a_result", job.run, *SHORT, "--dtype", "bf16")
    suite.test("a_short_run_in_fp32_ends_with_a_result", job.run, *SHORT, "--dtype", "f32")
    suite.test("a_run_without_a_server_ends_with_a_result", job.local, "--steps", "60")
    suite.test("what_must_be_at_least_1_is_refused_as_0", refuses, job)
    suite.test("without_dir_a_run_leaves_nothing_but_after_a_failure", leaves_nothing, job)
    kills(suite, job, reference, rng, SHORT, 1)


def refuses(job):
    """The server would take its own default in place of a 0."""
    for option in ("--steps", "--hidden", "--batch", "--checkpoint-every"):
        done = subprocess.run([job.bin_dir / "digits", option, "0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              encoding="utf-8", timeout=RUN_TIMEOUT_S, check=False)
        assert done.returncode == 2 and "must be at least 1" in done.stdout, (option, done)


def leaves_nothing(job):
    folder = job.work / "tmp"
    folder.mkdir()
    for options, code in ((("--steps", "2"), 0), (("--checkpoint-every", "9999999"), 2)):
        done = subprocess.run([RUN, "--bin", job.bin_dir, "--port", "0", *options], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, encoding="utf-8", timeout=RUN_TIMEOUT_S, check=False,
                              env={**os.environ, "TMPDIR": str(folder)})
        assert done.returncode == code, f"exit code {done.returncode}:\n{done.stdout[-2000:]}"
        left = list(folder.iterdir())
        assert len(left) == (code != 0), left
        assert code == 0 or f"what the run left is in {left[0]}\n" in done.stdout, done.stdout


def mean_of(runs):
    return sum(run.accuracy for run in runs) / len(runs)


def long(suite, job, rng):
    seeds = [str(seed) for seed in range(1, 6)]
    fp16 = [job.run(*FULL, "--seed", seed) for seed in seeds]
    bf16 = [job.run(*FULL, "--seed", seed, "--dtype", "bf16") for seed in seeds]
    local = [job.local("--steps", "300", "--seed", seed) for seed in seeds]
    for name, runs in (("fp16", fp16), ("bf16", bf16), ("fp32 local", local)):
        print(f"{name}: accuracy {' '.join(f'{run.accuracy:.3f}' for run in runs)}, mean {mean_of(runs):.4f}, "
              f"skipped {[run.skipped for run in runs]}, seconds {[round(run.seconds, 1) for run in runs]}")

    def accurate():
        assert mean_of(fp16) >= 0.960 and min(run.accuracy for run in fp16) >= 0.950

    def close():
        means = [mean_of(runs) for runs in (fp16, bf16, local)]
        assert max(means) - min(means) <= 0.015, means

    suite.test("fp16_over_5_seeds_reaches_0.960_in_the_mean_and_0.950_each", accurate)
    suite.test("the_means_of_fp16_bf16_and_local_fp32_lie_within_0.015", close)
    for i, run in enumerate(fp16):
        suite.test(f"each_skipped_step_has_its_overflow_rows_{i + 1}", check_overflows, job, run)
    suite.test("a_second_run_ends_with_the_same_checkpoint",
               lambda: equal(job.run(*FULL, "--seed", "1"), fp16[0]))
    kills(suite, job, fp16[0], rng, (*FULL, "--seed", "1"), 10)


def main():
    bin_dir = pathlib.Path(sys.argv[1]).resolve()
    seed = int(os.environ.get("AMPD_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"seed {seed}")
    suite = Suite()
    work = pathlib.Path(tempfile.mkdtemp(prefix="ampd-digits-"))
    (long if "--long" in sys.argv else short)(suite, Job(bin_dir, work), random.Random(seed))
    if suite.failed:
        print(f"what the runs left is in {work}")
        sys.exit(1)
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
