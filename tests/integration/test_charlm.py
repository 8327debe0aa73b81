#!/usr/bin/python3
"""The language model with real processes: it learns in f16 from a scale that overflows, and a killed server changes
nothing.

    test_charlm.py BIN_DIR

Prints one line a test as cmocka does.
"""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
RUN = ROOT / "examples" / "charlm" / "run.sh"
OPTIONS = ("--precision", "f16", "--scale", "16777216", "--steps", "60", "--batch", "2", "--checkpoint-every", "20")
RESULT = re.compile(r"charlm: validation loss (\S+) after (\d+) steps \((\d+) applied, (\d+) skipped\)")
RUN_TIMEOUT_S = 300


class Run:
    """One finished run of run.sh."""

    def __init__(self, bin_dir, folder, *options):
        self.folder = folder
        done = subprocess.run([RUN, "--bin", bin_dir, "--dir", folder, *OPTIONS, *options], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, encoding="utf-8", timeout=RUN_TIMEOUT_S, check=False)
        self.output = done.stdout
        assert done.returncode == 0, f"exit code {done.returncode}:\n{self.output[-2000:]}"
        match = RESULT.search(self.output)
        assert match, f"no result line in:\n{self.output[-2000:]}"
        self.loss, self.steps, self.applied, self.skipped = float(match[1]), *map(int, match.groups()[1:])

    def parameters(self):
        return (self.folder / "parameters.safetensors").read_bytes()

    def digest(self):
        return re.search(r"^charlm: parameters ([0-9a-f]{64})$", self.output, re.MULTILINE)[1]

    def rows(self):
        """Of each step the last row: one that was rolled back has two."""
        rows = [line.split("\t") for line in (self.folder / "steps.tsv").read_text().splitlines()]
        return {int(row[0]): row[1:] for row in rows}


def it_learns(run):
    assert run.steps == 60 and run.applied + run.skipped == 60, run.output
    rows = run.rows()
    assert sorted(rows) == list(range(1, 61)), sorted(rows)
    assert float(rows[1][0]) > 4.5, rows[1]  # ln(128) is 4.85
    assert run.loss < 3.0, run.loss


def skipped_steps_name_their_parameters(run):
    assert run.skipped >= 1, run.output
    assert sum(int(row[3]) for row in run.rows().values()) == run.skipped
    assert re.search(r"^  \S+ of (rank-\d|the sum): \d+ Inf, \d+ NaN$", run.output, re.MULTILINE), run.output


def it_writes(run):
    text = run.output.split("final scale", 1)[1].split("\n", 1)[1].split("charlm: parameters")[0]
    assert len(text) == len("The Rays of Light ") + 50 + 1, repr(text)


def same_after_a_kill(run, killed):
    assert "ampd was killed after" in killed.output and "rolled back" in killed.output, killed.output
    assert killed.parameters() == run.parameters(), "the parameters differ"
    assert killed.rows() == run.rows(), "the losses differ"


def same_after_another_run(run, again):
    """In the folder of a run that is over nothing is left to do but to validate."""
    assert again.loss == run.loss and "a step took" not in again.output, again.output
    assert again.digest() == run.digest(), "the parameters differ"


class Server:
    """ampd on the data of a run."""

    def __init__(self, bin_dir, folder, port=0):
        log = folder / "ampd.log"
        with log.open("w") as out:
            self.process = subprocess.Popen([bin_dir / "ampd", "--data-dir", folder / "data", "--listen",
                                             f"127.0.0.1:{port}", "--metrics-listen", "none"], stdout=out, stderr=out)
        wait_for(lambda: 'msg="listening"' in log.read_text() or self.process.poll() is not None, "ampd listens")
        match = re.search(r'msg="listening".*127\.0\.0\.1:(\d+)', log.read_text())
        assert match, log.read_text()
        self.port = int(match[1])

    def kill(self):
        self.process.kill()
        self.process.wait()


def wait_for(condition, what):
    end_s = time.monotonic() + RUN_TIMEOUT_S
    while not condition():
        assert time.monotonic() < end_s, f"in {RUN_TIMEOUT_S} s it has not come to pass that {what}"
        time.sleep(0.01)


def validates_after_a_kill(bin_dir, run):
    """The worker is stopped where it has pulled and gathers next; meanwhile the server is killed and started again."""
    server = Server(bin_dir, run.folder)
    shim = bin_dir.parent / "tests" / "integration" / "libstopping_pull.so"
    worker = subprocess.Popen(["/usr/bin/env", f"LD_PRELOAD={shim}", bin_dir / "charlm", "--connect",
                               f"127.0.0.1:{server.port}", "--units", *OPTIONS],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8",
                              env={**os.environ, "RANK": "0", "WORLD_SIZE": "2"})
    stat = pathlib.Path(f"/proc/{worker.pid}/stat")
    try:
        wait_for(lambda: stat.read_text().rpartition(")")[2].split()[0] in "TZ", "the worker has pulled")
        server.kill()
        server = Server(bin_dir, run.folder, server.port)
        worker.send_signal(signal.SIGCONT)
        output, _ = worker.communicate(timeout=RUN_TIMEOUT_S)
    finally:
        worker.kill()
        server.kill()
    match = RESULT.search(output)
    assert worker.returncode == 0 and match and float(match[1]) == run.loss, f"exit code {worker.returncode}: {output}"


def leaves_nothing(bin_dir, folder):
    folder.mkdir()
    for options, code in ((("--steps", "1", "--write", "0"), 0), (("--heads", "3"), 1)):
        done = subprocess.run([RUN, "--bin", bin_dir, "--batch", "2", *options], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, encoding="utf-8", timeout=RUN_TIMEOUT_S, check=False,
                              env={**os.environ, "TMPDIR": str(folder)})
        assert done.returncode == code, f"exit code {done.returncode}:\n{done.stdout[-2000:]}"
        left = list(folder.iterdir())
        assert len(left) == code, left
        assert code == 0 or f"what the run left is in {left[0]}\n" in done.stdout, done.stdout


def wrong_options_are_named(bin_dir):
    for options, text in (
            (("--scale", "4"), "--scale does nothing without a scaler"),
            (("--scaler", "none", "--precision", "f16", "--scale", "4"), "--scale does nothing without a scaler"),
            (("--heads", "3"), "--width is 128, must be a multiple of --heads, 3"),
            (("--steps", "0"), '--steps: "0" is not a number from 1 to 10000000'),
            (("--write", "-1"), '--write: "-1" is not a number from 0 to 1000000'),
            (("--units",), "--units needs a server")):
        done = subprocess.run([bin_dir / "charlm", "--local", *options], stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, encoding="utf-8", timeout=RUN_TIMEOUT_S, check=False)
        assert done.returncode == 2 and text in done.stdout, f"{options}: {done.returncode}: {done.stdout}"


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
        except (AssertionError, subprocess.SubprocessError, OSError) as error:
            print(f"[  ERROR   ] {type(error).__name__}: {error}\n[  FAILED  ] {name}", flush=True)
            self.failed += 1
            return None


def main():
    bin_dir = pathlib.Path(sys.argv[1]).resolve()
    work = pathlib.Path(tempfile.mkdtemp(prefix="ampd-charlm-"))
    suite = Suite()
    suite.test("wrong_options_are_named", wrong_options_are_named, bin_dir)
    suite.test("without_dir_a_run_leaves_nothing_but_after_a_failure", leaves_nothing, bin_dir, work / "tmp")
    run = suite.test("a_run_in_f16_ends_with_a_result", Run, bin_dir, work / "run", "--write", "50")
    if run is not None:
        suite.test("it_learns", it_learns, run)
        suite.test("skipped_steps_name_their_parameters", skipped_steps_name_their_parameters, run)
        suite.test("it_writes_as_many_characters_as_it_is_told", it_writes, run)
        killed = suite.test("a_run_whose_server_is_killed_ends_with_a_result", Run, bin_dir, work / "killed",
                            "--write", "0", "--kill")
        if killed is not None:
            suite.test("a_killed_server_changes_no_loss_and_no_byte_of_the_parameters", same_after_a_kill, run, killed)
        units = suite.test("a_run_by_units_whose_server_is_killed_ends_with_a_result", Run, bin_dir, work / "units",
                           "--write", "50", "--kill", "--units")
        if units is not None:
            suite.test("units_and_a_killed_server_change_no_loss_and_no_byte_of_the_parameters", same_after_a_kill, run,
                       units)
            suite.test("it_writes_the_same_with_units", it_writes, units)
            suite.test("a_server_killed_between_the_last_pull_and_the_units_keeps_no_worker_from_its_result",
                       validates_after_a_kill, bin_dir, units)
        again = suite.test("another_run_in_its_folder_ends_with_a_result", Run, bin_dir, work / "run", "--write", "0")
        if again is not None:
            suite.test("another_run_in_its_folder_ends_with_the_same_parameters", same_after_another_run, run, again)
    if suite.failed:
        print(f"what the runs left is in {work}")
        sys.exit(1)
    shutil.rmtree(work)


if __name__ == "__main__":
    main()
