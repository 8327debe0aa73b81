"""sides.py: the sides of a measurement: each is a server program on the first core and a client program on the second.

For each line on its stdin the client moves its bytes once, or makes its calls, and prints the seconds that this took.
So several sides run at the same time and take turns, A B A B, and a change of the machine's speed affects all of them;
then all are started again in the opposite order.
"""
import contextlib
import os
import random
import resource
import select
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time

# A side that takes longer to start, or for one round, has failed.
START_S = 120
ROUND_S = 60
MIB = 1 << 20
# Fixed, so that a list of ratios always gives the same interval.
BOOTSTRAP_SEED = 1
BOOTSTRAP_DRAWS = 2000


def interval(values):
    """The 95 % confidence interval of the median, by the bootstrap: the medians of resampled lists."""
    draw = random.Random(BOOTSTRAP_SEED)
    medians = sorted(statistics.median(draw.choices(values, k=len(values))) for _ in range(BOOTSTRAP_DRAWS))
    return medians[int(0.025 * BOOTSTRAP_DRAWS)], medians[int(0.975 * BOOTSTRAP_DRAWS)]


def in_turns(makers, rounds, warm_ups, take=lambda side: side.round(), rest_s=0):
    """
    Calls `take` for each side in turns. Returns a list of `rounds` lists of results, in the order of `makers`, which
    make the sides; the CPU seconds of each side; and the sides, which have ended. A side that starts last gets memory
    that is up to a twentieth slower, so half of the rounds are measured after a start in the opposite order, and in
    that order. `rest_s`: seconds of rest before each round that counts.
    """
    values, cpu = [], [0] * len(makers)
    for half, step in ((rounds - rounds // 2, 1), (rounds // 2, -1)):
        with contextlib.ExitStack() as stack:
            sides = [make() for make in makers]
            order = list(range(len(sides)))[::step]
            for i in order:
                stack.enter_context(sides[i])
            for _ in range(warm_ups):
                for i in order:
                    take(sides[i])
            before = [side.cpu_s() for side in sides]
            for _ in range(half):
                taken = {}
                for i in order:
                    time.sleep(rest_s)
                    taken[i] = take(sides[i])
                values.append([taken[i] for i in range(len(sides))])
            cpu = [spent + side.cpu_s() - then for spent, side, then in zip(cpu, sides, before)]
    return values, cpu, sides


# The part of a bound, measured in the same run, that a row must reach.
OF_BOUND = 0.95


def bounded_goal(name, goal, ratios, limits=False):
    """
    The goal of a row with a bound: the given one, or what the bound allows if that is less (`limits`: more). `ratios`
    are those of bound and peer. The far end of their interval counts, so that the noise of a busy machine, with its
    wide interval, makes no goal easier.
    """
    low, high = interval(ratios)
    left = max(goal, low / OF_BOUND) if limits else min(goal, OF_BOUND * high)
    print("# %s: bound %.2f, 95 %% of it %.2f to %.2f; goal %.2f, with %.2f of the bound %.2f" % (
        name, statistics.median(ratios), low, high, goal, OF_BOUND, left), file=sys.stderr)
    return left


def reaches_bound(name, ratios, limits=False):
    """
    Whether a row reaches OF_BOUND of its bound; `ratios` are those of ours and the bound, pair by pair. Unlike a
    comparison of two ratios to the peer, these do not contain the differences between the peer's rounds.
    """
    ratio = statistics.median(ratios)
    print("# %s: beside the bound %.3f, 95 %% of it %.3f to %.3f; %.2f is asked" % (
        (name, ratio) + interval(ratios) + (1 / OF_BOUND if limits else OF_BOUND,)), file=sys.stderr)
    return ratio <= 1 / OF_BOUND if limits else ratio >= OF_BOUND


class Failed(Exception):
    pass


class Skipped(Exception):
    """The peer cannot run here; the text is the reason."""


def many_files():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class Side:
    """A server and its client, pinned, with a folder of their own."""

    # Whether the result of a round is a time, so that less is better; else it is a rate.
    limits = False
    # The unit of `amount`, which is what one round moves; for the figure of CPU time.
    unit = "GB"

    def __init__(self, programs, size):
        self.programs, self.size = programs, size
        self.amount = size / 1e9
        self.processes = []

    def name(self):
        return type(self).__name__

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
        """Starts a program on one core, or with None on all, with the highest limit of open files that is allowed."""
        cores = sorted(os.sched_getaffinity(0))
        core = ",".join(map(str, cores)) if core is None else cores[min(core, len(cores) - 1)]
        with open(os.path.join(self.folder, "log"), "ab") as log:
            process = subprocess.Popen(["taskset", "-c", str(core), *command], stdin=subprocess.PIPE,
                                       stdout=subprocess.PIPE, stderr=log, bufsize=0, preexec_fn=many_files)
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
        """Reads one line of a process without a buffer of our own, so that select sees all that is left to read."""
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


class Kernels(Side):
    """
    Vote and apply of one worker's gradient by the library alone, or `work` of it (bench_kernels.c --serve); size:
    elements times bytes.
    """

    def __init__(self, programs, size, elements, threads, *work):
        super().__init__(programs, size)
        self.arguments = [str(elements), str(threads), *work]
        self.core = 0 if threads == 1 else None

    def command(self):
        return [self.program("bench_kernels"), "--serve"]

    def start(self):
        process = self.spawn(self.core, *self.command(), *self.arguments)
        answer = self.line(process, START_S)
        if answer.startswith("SKIPPED: "):
            raise Skipped(answer[len("SKIPPED: "):].strip())
        return process


class Pump(Side):
    """
    A raw TCP connection on loopback whose receiver touches every byte (tcp_pump.c). With "arrays" from one of the bytes
    into another: less than any push or pull must do.
    """

    def __init__(self, programs, size, direction, *arrays):
        super().__init__(programs, size)
        self.direction, self.arrays = direction, arrays

    def start(self):
        pump = self.program("tcp_pump")
        port = self.line(self.spawn(0, pump, "serve"), START_S).split()[1]
        return self.spawn(1, pump, self.direction, port, str(self.size), *self.arrays)


class UnixPump(Pump):
    """Pump over a unix socket."""

    def start(self):
        pump, address = self.program("tcp_pump"), "unix:" + os.path.join(self.folder, "socket")
        self.line(self.spawn(0, pump, "serve", address), START_S)
        return self.spawn(1, pump, self.direction, address, str(self.size), *self.arrays)


class Ampd(Side):
    """A model of one parameter, pushed to or pulled from a real ampd by libampclient (bench_pushpull.c)."""

    def __init__(self, programs, size, direction, unix=False):
        super().__init__(programs, size)
        self.direction, self.unix = direction, unix

    def endpoint(self):
        if self.unix:
            return "unix:" + os.path.join(self.folder, "socket")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return "127.0.0.1:%d" % probe.getsockname()[1]

    def start(self):
        endpoint = self.endpoint()
        server = self.spawn(0, self.program("ampd"), "--data-dir", os.path.join(self.folder, "data"),
                            "--listen", endpoint)
        self.await_ready(server, endpoint)
        return self.spawn(1, *self.worker(), self.direction, endpoint, str(self.size))

    def worker(self):
        return (self.program("bench_pushpull"),)

    def await_ready(self, server, endpoint):
        ready = [self.program("ampctl"), "--endpoint", endpoint, "ready"]
        deadline = time.monotonic() + START_S
        while subprocess.run(ready, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode != 0:
            if server.poll() is not None or time.monotonic() > deadline:
                self.fail("ampd did not become ready")
            time.sleep(0.05)
