#!/usr/bin/python3
"""pairs.py BIN [NAME]: measures each row side by side with its peer and prints it, tab-separated:

    name  ours  peer  ratio  goal  ok|short

ours and peer are medians in GB/s (10^9 bytes), ratio is the median of the ratios of the pairs. A row is `ok` when that
median meets the goal; the confidence interval and the CPU time go to stderr. BIN holds the programs. NAME picks rows by a
part of their name; rows marked as calibration run only so. The exit code says whether it could be measured, not how well.
Rows that a program measures by itself (bench_kernels, bench_grad) are run from here too, and print themselves.

Both sides speak one protocol: a server program on the first core, a client program on the second; for each line that
the client gets on stdin it moves the bytes once and prints the seconds it took. So two sides are alive at the same time
and take turns, A B A B, and a change of the machine's speed meets both.
"""
import contextlib
import os
import random
import select
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

PAIRS = 15
WARM_UPS = 3
MIB = 1 << 20
# A side that takes longer to start, or for one round, has failed.
START_S = 120
ROUND_S = 60
# Fixed, so that a list of ratios always gives the same interval.
BOOTSTRAP_SEED = 1
BOOTSTRAP_DRAWS = 2000


class Failed(Exception):
    pass


class Skipped(Exception):
    """The peer cannot run here; the text is the reason."""


class Side:
    """A server and its client, pinned, with a folder of their own."""

    def __init__(self, programs, size):
        self.programs, self.size = programs, size
        self.processes = []

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="ampd-bench.")
        try:
            self.client = self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.stdin.close()
            process.terminate()
            try:
                process.wait(timeout=ROUND_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def spawn(self, core, *command):
        """On one core, or with None on all."""
        cores = sorted(os.sched_getaffinity(0))
        core = ",".join(map(str, cores)) if core is None else cores[min(core, len(cores) - 1)]
        with open(os.path.join(self.folder, "log"), "ab") as log:
            process = subprocess.Popen(["taskset", "-c", str(core), *command], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, stderr=log, bufsize=0)
        self.processes.append(process)
        return process

    def program(self, name):
        path = os.path.join(self.programs, name)
        if not os.access(path, os.X_OK):
            raise Failed("no program %s; build it first" % path)
        return path

    def fail(self, what):
        with open(os.path.join(self.folder, "log"), encoding="utf-8", errors="replace") as log:
            raise Failed("%s\n%s" % (what, "".join(log.readlines()[-10:])))

    def line(self, process, timeout_s):
        """One line of a process, unbuffered on our side, so that select tells the truth."""
        ready, _, _ = select.select([process.stdout], [], [], timeout_s)
        text = process.stdout.readline() if ready else b""
        if not text:
            self.fail("%s gave no answer" % os.path.basename(process.args[3]))
        return text.decode()

    def round(self):
        """Moves the bytes once: GB/s."""
        self.client.stdin.write(b"\n")
        return self.size / float(self.line(self.client, ROUND_S)) / 1e9

    def cpu_s(self):
        total = 0
        for process in self.processes:
            with open("/proc/%d/stat" % process.pid, encoding="ascii") as file:
                fields = file.read().rsplit(")", 1)[1].split()
            total += int(fields[11]) + int(fields[12])
        return total / os.sysconf("SC_CLK_TCK")


class Pump(Side):
    """A raw TCP connection on loopback whose receiver touches every byte (tcp_pump.c)."""

    def __init__(self, programs, size, direction):
        super().__init__(programs, size)
        self.direction = direction

    def start(self):
        pump = self.program("tcp_pump")
        port = self.line(self.spawn(0, pump, "serve"), START_S).split()[1]
        return self.spawn(1, pump, self.direction, port, str(self.size))


class Ampd(Side):
    """A model of one parameter, pushed to or pulled from a real ampd by libampclient (bench_pushpull.c)."""

    def __init__(self, programs, size, direction):
        super().__init__(programs, size)
        self.direction = direction

    def start(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            endpoint = "127.0.0.1:%d" % probe.getsockname()[1]
        server = self.spawn(0, self.program("ampd"), "--data-dir", os.path.join(self.folder, "data"),
                            "--listen", endpoint)
        self.await_ready(server, endpoint)
        return self.spawn(1, self.program("bench_pushpull"), self.direction, endpoint, str(self.size))

    def await_ready(self, server, endpoint):
        ready = [self.program("ampctl"), "--endpoint", endpoint, "ready"]
        deadline = time.monotonic() + START_S
        while subprocess.run(ready, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode != 0:
            if server.poll() is not None or time.monotonic() > deadline:
                self.fail("ampd did not become ready")
            time.sleep(0.05)


class Kernels(Side):
    """Vote and apply of one worker's gradient by the library alone (bench_kernels.c); size: elements times bytes."""

    def __init__(self, programs, size, elements, threads):
        super().__init__(programs, size)
        self.arguments = [str(elements), str(threads)]
        self.core = 0 if threads == 1 else None

    def command(self):
        return [self.program("bench_kernels"), "--serve"]

    def start(self):
        process = self.spawn(self.core, *self.command(), *self.arguments)
        answer = self.line(process, START_S)
        if answer.startswith("SKIPPED: "):
            raise Skipped(answer[len("SKIPPED: "):].strip())
        return process


class Torch(Kernels):
    """The same by PyTorch (torch_adamw.py), with as many threads."""

    def command(self):
        return ["/usr/bin/python3", os.path.join(os.path.dirname(os.path.abspath(__file__)), "torch_adamw.py")]


# Vote and apply of one worker: 30 bytes an element, and together more than 2 GB of arrays.
STEP_ELEMENTS = 128 * MIB
STEP_BYTES = 30 * STEP_ELEMENTS

# name, (ours, its arguments), (peer, its arguments), goal, whether it is only a calibration of the harness
ROWS = (
    ("push_f16_64mib", (Ampd, 64 * MIB, "push"), (Pump, 64 * MIB, "push"), 0.75, False),
    ("pull_f16_64mib", (Ampd, 64 * MIB, "pull"), (Pump, 64 * MIB, "pull"), 0.75, False),
    ("kernels_torch_1t", (Kernels, STEP_BYTES, STEP_ELEMENTS, 1), (Torch, STEP_BYTES, STEP_ELEMENTS, 1), 5.0, False),
    ("kernels_torch_2t", (Kernels, STEP_BYTES, STEP_ELEMENTS, 2), (Torch, STEP_BYTES, STEP_ELEMENTS, 2), 5.0, False),
    # The peer against itself: how far from 1 the noise of this machine takes a ratio.
    ("noise_push_64mib", (Pump, 64 * MIB, "push"), (Pump, 64 * MIB, "push"), 0.95, True),
    ("noise_pull_64mib", (Pump, 64 * MIB, "pull"), (Pump, 64 * MIB, "pull"), 0.95, True),
)


def interval(values):
    """95 % of the medians of resampled lists."""
    draw = random.Random(BOOTSTRAP_SEED)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(BOOTSTRAP_DRAWS))
    return medians[int(0.025 * BOOTSTRAP_DRAWS)], medians[int(0.975 * BOOTSTRAP_DRAWS)]


def measure(programs, name, ours, peer, goal):
    with contextlib.ExitStack() as stack:
        a = stack.enter_context(ours[0](programs, *ours[1:]))
        b = stack.enter_context(peer[0](programs, *peer[1:]))
        for _ in range(WARM_UPS):
            a.round(), b.round()
        cpu = a.cpu_s(), b.cpu_s()
        pairs = [(a.round(), b.round()) for _ in range(PAIRS)]
        cpu = a.cpu_s() - cpu[0], b.cpu_s() - cpu[1]
        moved = PAIRS * a.size / 1e9
    ratios = [x / y for x, y in pairs]
    ratio = statistics.median(ratios)
    print("%s\t%.2f\t%.2f\t%.2f\t%.2f\t%s" % (
        name, statistics.median(x for x, _ in pairs), statistics.median(y for _, y in pairs), ratio, goal,
        "ok" if ratio >= goal else "short"), flush=True)
    print("# %s: %d pairs, ratio %.2f to %.2f, 95 %% of its median %.2f to %.2f; CPU s/GB ours %.2f, peer %.2f" % (
        (name, PAIRS, min(ratios), max(ratios)) + interval(ratios) + (cpu[0] / moved, cpu[1] / moved)),
        file=sys.stderr)


def own_rows(programs):
    """Rows that programs measure by themselves: (name, command, added environment)."""
    programs = os.path.abspath(programs)
    kernels = os.path.join(programs, "bench_kernels")
    try:
        names = subprocess.run([kernels, "--list"], stdout=subprocess.PIPE, check=True, timeout=START_S).stdout
    except OSError as problem:
        raise Failed("%s; build it first" % problem) from problem
    for name in names.decode().split():
        yield name, [kernels, name], {}
    guard = [os.path.join(programs, "bench_grad"), "examples/digits/digits.csv"]
    yield "kernels_guard_share", guard, {}
    yield "kernels_guard_share_ref", guard, {"AMPD_ISA": "ref"}


def run_own(name, command, environment):
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    try:
        done = subprocess.run(command, cwd=root, env=dict(os.environ, **environment), timeout=START_S, check=False)
    except subprocess.TimeoutExpired as problem:
        raise Failed("it took more than %d s" % START_S) from problem
    if done.returncode != 0:
        raise Failed("%s ended with %d" % (" ".join(command), done.returncode))


def main():
    if not 2 <= len(sys.argv) <= 3:
        print("usage: pairs.py BIN [NAME]", file=sys.stderr)
        return 2
    programs, wanted = sys.argv[1], sys.argv[2] if len(sys.argv) == 3 else ""
    try:
        rows = [(name, not calibrates, measure, (programs, name, ours, peer, goal))
                for name, ours, peer, goal, calibrates in ROWS]
        rows += [(own[0], True, run_own, own) for own in own_rows(programs)]
    except Failed as problem:
        print("bench: %s" % problem, file=sys.stderr)
        return 1
    chosen = [row for row in rows if wanted in row[0] and (wanted or row[1])]
    if not chosen:
        print("bench: no row has \"%s\" in its name; there are: %s" % (wanted, ", ".join(row[0] for row in rows)),
              file=sys.stderr)
        return 2
    failed = 0
    for name, _, run, arguments in chosen:
        try:
            run(*arguments)
        except Skipped as reason:
            print("%s\t-\t-\t-\t-\tskipped: %s" % (name, reason), flush=True)
        except Failed as problem:
            print("bench: %s could not be measured: %s" % (name, problem), file=sys.stderr)
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main())
