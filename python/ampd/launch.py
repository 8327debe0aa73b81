"""Starts the workers of a job on this machine, and an ampd for them:

    python3 -m ampd.launch -n 4 train.py --lr 0.1           an ampd of their own, gone at the end
    python3 -m ampd.launch -n 4 --data-dir D -m package.train
    python3 -m ampd.launch -n 4 --endpoint HOST:PORT train.py     an ampd that runs; also by AMPD_ENDPOINT

Each worker has RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE and AMPD_ENDPOINT in its environment, which
`ampd.join(None, ...)` reads, and MASTER_ADDR and MASTER_PORT for a script that still calls torch's init_process_group.
What the workers write is shown line by line with "[rank] " in front; a progress bar, which writes over its line, is
shown every 10 s.

When a worker fails the others get SIGTERM, and what is left after --grace seconds SIGKILL; the exit code is that of the
first that failed, 128 + N where signal N ended it. Ctrl-C is passed on to the workers, then the ampd ends: code 130. A
second Ctrl-C kills.
"""
from __future__ import annotations

import argparse
import collections
import contextlib
import math
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator

from ampd import errors
from ampd._progress import LINE_EVERY_S
from ampd.testing import Server, die_with_parent

GRACE_S = 10.0        # between SIGTERM, or a Ctrl-C that was passed on, and SIGKILL
POLL_S = 0.02         # between looks at who has ended
DRAIN_S = 5.0         # for the last output of a worker that has ended
LINE_MAX = 64 << 10   # bytes; a longer line is shown in parts
OWN_OPTIONS = ("--data-dir", "--listen", "--log-level", "--log-format")  # of ampd; its address is read from its log
WORKERS_MAX = 256     # ranks of a model
NOBODY_READS = 128 + signal.SIGPIPE
_LINE_END = re.compile(rb"\r?\n|\r(?=[^\n])")  # what comes behind the last \r decides of what kind it is


def on_signal(number: int, handler) -> None:
    """Not where it was ignored before: by nohup, or by a shell whose job is in the background."""
    if signal.getsignal(number) != signal.SIG_IGN:
        signal.signal(number, handler)


class Output:
    """Where the workers' lines go: whole lines, one after the other."""

    def __init__(self):
        self.broken = False  # nobody reads it any more
        self._turn = threading.Lock()

    def write(self, stream, line: bytes) -> None:
        with self._turn:
            try:
                stream.write(line)
                stream.flush()
            except OSError:
                self.broken = True

    def say(self, text: str) -> None:
        self.write(sys.stderr.buffer, b"ampd.launch: %s\n" % text.encode())


def lines(source, clock=time.monotonic) -> Iterator[bytes]:
    """What is written to a pipe, as lines. Of those that a carriage return begins anew, as a progress bar does, one is
    shown each LINE_EVERY_S, as ampd.progress has it where there is no terminal, and the last one."""
    rest, shown = b"", -math.inf
    while chunk := source.read1(LINE_MAX):
        rest, begin = rest + chunk, 0
        for end in _LINE_END.finditer(rest):
            line, begin = rest[begin:end.start()], end.end()
            if end[0].endswith(b"\n"):
                yield line
            elif line.strip() and (now := clock()) - shown >= LINE_EVERY_S:
                shown = now
                yield line
        rest = rest[begin:]
        if len(rest) >= LINE_MAX:
            yield rest
            rest = b""
    if rest:
        yield rest.rstrip(b"\r")


class Worker:
    """One process, in a session of its own: a Ctrl-C of the terminal is the launcher's, and what it starts ends with
    it."""

    def __init__(self, rank: int, command: list[str], environment: dict[str, str], output: Output):
        self.rank, self.restarts = rank, 0
        self._command, self._output = command, output
        self._environment = {**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}
        self.start()

    def start(self) -> None:
        self.code: int | None = None
        self._process = subprocess.Popen(self._command, env=self._environment, stdin=subprocess.DEVNULL,
                                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
                                         preexec_fn=die_with_parent)
        self._readers = [threading.Thread(target=self._forward, args=pair, daemon=True)
                         for pair in ((self._process.stdout, sys.stdout.buffer),
                                      (self._process.stderr, sys.stderr.buffer))]
        for one in self._readers:
            one.start()

    def _forward(self, source, target) -> None:
        with source:
            for line in lines(source):
                self._output.write(target, b"[%d] %s\n" % (self.rank, line))

    def has_ended(self) -> bool:
        """Also takes the rest of its output."""
        if self.code is not None:
            return True
        # Not reaped yet, so that the number of its session is still its own.
        if os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return False
        self.signal(signal.SIGKILL)  # to what it has left behind
        self.code = self._process.wait()
        for one in self._readers:
            one.join(DRAIN_S)
        return True

    def signal(self, number: int) -> None:
        if self.code is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    @property
    def exit_code(self) -> int:
        return self.code if self.code >= 0 else 128 - self.code

    def __str__(self):
        how = "with code %d" % self.code if self.code >= 0 else "by %s" % signal.Signals(-self.code).name
        return "rank %d ended %s" % (self.rank, how)


class Launch:
    """The workers of one job, until all have ended."""

    def __init__(self, options, output: Output, server: Server | None, environment: dict[str, str]):
        self.options, self.output, self.server = options, output, server
        self._asked: collections.deque[int] = collections.deque()  # signals that this process got
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            on_signal(number, lambda number, frame: self._asked.append(number))
        self.workers = [Worker(rank, options.command, environment, output) for rank in range(options.workers)]

    def run(self) -> int:
        """The exit code."""
        while True:
            if self._asked:
                number = self._asked.popleft()
                return self._end(number, 128 + number)
            ended = [one.has_ended() for one in self.workers]
            failed = next((one for one in self.workers if one.code not in (None, 0)), None)
            if failed is not None and failed.restarts == self.options.restarts:
                self.output.say("%s%s" % (failed, "" if all(ended) else "; the others are ended"))
                return self._end(signal.SIGTERM, failed.exit_code)
            if failed is not None:
                failed.restarts += 1
                self.output.say("%s; it is started again, %d of %d times"
                                % (failed, failed.restarts, self.options.restarts))
                failed.start()
            elif all(ended):
                return 0
            elif self.output.broken:
                return self._end(signal.SIGTERM, NOBODY_READS)
            elif self.server is not None and self.server.process.poll() is not None:
                lines = self.server.log().splitlines() or ["none"]
                self.output.say("ampd ended; the last line of its log: %s" % lines[-1])
                return self._end(signal.SIGTERM, 1)
            time.sleep(POLL_S)

    def _end(self, number: int, code: int) -> int:
        """Ends all workers, first by this signal. Returns the code."""
        until = time.monotonic() + self.options.grace
        for one in self.workers:
            one.signal(number)
        while not all([one.has_ended() for one in self.workers]):
            if self._asked or time.monotonic() > until:
                for one in self.workers:
                    one.signal(signal.SIGKILL)
            time.sleep(POLL_S)
        return code


# ---- the command line ----

class Parser(argparse.ArgumentParser):
    def error(self, message):
        if message.endswith("expected one argument") and "--server-option" in message:
            message += "; write --server-option=--name=VALUE"
        self.exit(2, "ampd.launch: %s; see python3 -m ampd.launch --help\n" % message)


def _number(least: int, most: float = math.inf):
    def read(text: str) -> int:
        if not text.isascii() or not text.isdigit() or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError("%r is not a number from %d%s"
                                             % (text, least, " to %d" % most if most < math.inf else ""))
        return int(text)
    return read


def _seconds(text: str) -> float:
    try:
        if 0 <= float(text) < float("inf"):
            return float(text)
    except ValueError:
        pass
    raise argparse.ArgumentTypeError("%r is not a number of seconds" % text)


def parse(argv: list[str] | None):
    """The options, with `command`: what a worker executes."""
    parser = Parser(prog="python3 -m ampd.launch", description=__doc__, allow_abbrev=False,
                    formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--workers", type=_number(1, WORKERS_MAX), default=1, metavar="N",
                        help="how many workers (1)")
    parser.add_argument("-m", "--module", action="store_true", help="the script names a module, as for python -m")
    parser.add_argument("--endpoint", metavar="E",
                        help="an ampd that runs already (AMPD_ENDPOINT of the environment, if neither --data-dir nor "
                        "--server-option is given); without it one is started")
    parser.add_argument("--data-dir", metavar="D",
                        help="the data directory of the ampd that is started: it is kept, with ampd's log in it, and a "
                        "later run continues from it")
    parser.add_argument("--server-option", action="append", default=[], metavar="OPT",
                        help="an option for the ampd that is started, which takes no options from the environment: "
                        "--server-option=--worker-lease=5s; may be repeated")
    parser.add_argument("--restarts", type=_number(0), default=0, metavar="N",
                        help="start a worker that failed again, with its rank, so many times (0)")
    parser.add_argument("--grace", type=_seconds, default=GRACE_S, metavar="S",
                        help="seconds between SIGTERM and SIGKILL (%g)" % GRACE_S)
    parser.add_argument("script", nargs="?", help="the script, followed by its arguments")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.script is None:
        parser.error("a script is missing, or a module with -m")
    if not options.module and not os.path.exists(options.script):
        parser.error("there is no file %s" % options.script)
    if options.endpoint is not None and (options.data_dir is not None or options.server_option):
        parser.error("--data-dir and --server-option are for an ampd that is started; leave out --endpoint, or them")
    for option in options.server_option:
        if option.startswith(OWN_OPTIONS):
            parser.error("%s is set by the launcher; leave it out, or start an ampd yourself and give --endpoint"
                         % option.partition("=")[0])
    options.from_environment = options.endpoint is None and options.data_dir is None and not options.server_option
    if options.from_environment:
        options.endpoint = os.environ.get("AMPD_ENDPOINT") or None
    options.command = [sys.executable, *["-m"] * options.module, options.script, *options.arguments]
    return options


def _environment(options, endpoint: str) -> dict[str, str]:
    made = {**os.environ, "AMPD_ENDPOINT": endpoint, "WORLD_SIZE": str(options.workers),
            "LOCAL_WORLD_SIZE": str(options.workers)}
    with socket.create_server(("127.0.0.1", 0)) as free:  # the port is rank 0's, as soon as torch asks for it
        made.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free.getsockname()[1]))
    made.setdefault("PYTHONUNBUFFERED", "1")  # a line is shown when it is written
    if options.workers > 1:
        made.setdefault("OMP_NUM_THREADS", "1")  # as torchrun: not each worker a thread for each core
    if options.endpoint is None and not options.server_option:
        for name in ("CACERT", "CERT", "KEY", "SERVER_NAME", "TOKEN_FILE"):  # of another server
            made.pop("AMPD_" + name, None)
    return made


def _drain(server: Server, output: Output) -> None:
    """Ends an ampd whose data stay: it has all the time that it takes for its last checkpoints (--drain-time). Another
    signal ends it at once."""
    if server.process.poll() is not None:
        return
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        on_signal(number, lambda number, frame: server.process.terminate())
    server.process.terminate()
    if server.process.wait() != 0:
        output.say("ampd ended with code %d, perhaps without its last checkpoints; its log is %s"
                   % (server.process.returncode, server.log_path))


def _start_server(options, output: Output, stack: contextlib.ExitStack) -> Server:
    folder = options.data_dir
    if folder is None:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="ampd-launch-"))
    server = Server(folder, options.server_option, data_dir=pathlib.Path(folder))
    stack.callback(server.stop)
    if options.data_dir is not None:
        stack.callback(_drain, server, output)  # before that
    return server


def main(argv: list[str] | None = None) -> int:
    options, output = parse(argv), Output()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a parent may have ignored it: exit codes would be gone
    on_signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # until there are workers
    try:
        with contextlib.ExitStack() as stack:
            server = None if options.endpoint is not None else _start_server(options, output, stack)
            endpoint = server.endpoint if server is not None else options.endpoint
            if server is not None:
                output.say("ampd is at %s" % endpoint)
            elif options.from_environment:
                output.say("the ampd of AMPD_ENDPOINT is used: %s" % endpoint)
            return Launch(options, output, server, _environment(options, endpoint)).run()
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except (errors.Error, OSError) as error:
        output.say(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
