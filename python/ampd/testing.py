"""For tests of one's own: an ampd on a free port, in a folder that goes with it.

    with ampd.testing.server() as server:
        job = ampd.join(server.endpoint, "net", Net(), ...)
"""
from __future__ import annotations

import contextlib
import ctypes
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence

from ampd import errors

START_S = 60.0   # far longer than a start takes, for a machine that does much else
STOP_S = 30.0
_LOG = ("--log-format", "text", "--log-level", "info")  # behind all options: the last flag wins
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def program(name: str = "ampd") -> str:
    """The path of a program of ampd: in the folder that AMPD_BIN names, beside a build's package, or in PATH."""
    built = pathlib.Path(__file__).resolve().parents[2] / "bin" / name
    given = os.environ.get("AMPD_BIN")
    found = str(pathlib.Path(given) / name) if given else str(built) if built.exists() else shutil.which(name)
    if found is None or not os.path.exists(found):
        raise errors.NotFound("there is no program %s%s; install the package ampd, or let AMPD_BIN name its folder"
                              % (name, " in " + given if given else ""), code="ENOTFOUND")
    return found


def _environment() -> dict[str, str]:
    """An ampd's: of the names that begin with AMPD_ it reads AMPD_ISA, and one for each of its options. Those are for
    this process's own clients, or for another ampd."""
    return {name: value for name, value in os.environ.items() if name == "AMPD_ISA" or not name.startswith("AMPD_")}


def die_with_parent() -> None:
    """In a child, before it executes: it ends when this process does, however that ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Server:
    """One process of ampd. `endpoint` is for ampd.join and ampd.connect. `data_dir` is by default in `folder`. It is
    killed when the thread that has started it ends, as its process does. It has no options but these, whatever the
    environment says; its log is always text from level info on, since the address that it listens at is read there."""

    def __init__(self, folder: os.PathLike, options: Sequence[str] = (), listen: str = "127.0.0.1:0",
                 data_dir: os.PathLike | None = None):
        self.folder, self.options, self._listen = pathlib.Path(folder), list(options), listen
        self.data_dir = pathlib.Path(data_dir) if data_dir is not None else self.folder / "data"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log_path = self.folder / "log"
        self.process: subprocess.Popen | None = None
        self.endpoint = ""
        self.start()

    def start(self) -> None:
        """Starts it, after kill or stop again on its data and at its address; returns when it listens."""
        begin = self.log_path.stat().st_size if self.log_path.exists() else 0
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [program(), "--data-dir", str(self.data_dir), "--listen", self._listen, "--metrics-listen",
                 "none", *self.options, *_LOG], env=_environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                preexec_fn=die_with_parent, start_new_session=True)  # Ctrl-C is this process's, which ends it in order
        try:
            self.endpoint = self._listen = self._listening_at(begin)
        except BaseException:
            self.kill()
            raise

    def _listening_at(self, begin: int) -> str:
        until = time.monotonic() + START_S
        while not (found := re.search(r'msg="listening" address=(\S+)', self._written(begin))):
            if self.process.poll() is not None or time.monotonic() > until:
                raise errors.Internal("ampd did not start: %s" % self._written(begin).strip()[-500:])
            time.sleep(0.01)
        return found[1]

    def log(self) -> str:
        """All that it has written."""
        return self._written(0)

    def _written(self, begin: int) -> str:
        """What is in the log behind so many bytes."""
        return self.log_path.read_bytes()[begin:].decode(errors="replace") if self.log_path.exists() else ""

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> int:
        """Ends it in order. Returns its exit code."""
        self.process.terminate()
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.process.returncode

    def __repr__(self):
        return "<ampd at %s, %s>" % (self.endpoint, "ended" if self.process.poll() is not None else "running")


@contextlib.contextmanager
def server(*, options: Sequence[str] = (), listen: str = "127.0.0.1:0") -> Iterator[Server]:
    """An ampd, ended and removed with the block. `options` are ampd's own, but for its log (ampd.testing.Server);
    `listen` may be unix:/PATH."""
    with tempfile.TemporaryDirectory(prefix="ampd-") as folder:
        made = Server(folder, options, listen)
        try:
            yield made
        finally:
            if made.process.poll() is None:
                made.stop()


class Cluster:
    """`shards` processes that find each other by a fixed list of unix sockets; `endpoint` is of shard 0."""

    def __init__(self, folder: os.PathLike, shards: int, options: Sequence[str] = ()):
        folder = pathlib.Path(folder)
        addresses = ["unix:%s" % (folder / ("s%d" % k)) for k in range(shards)]
        self.servers: list[Server] = []
        try:
            for k, address in enumerate(addresses):
                peers = ["--peers", ",".join(addresses), "--shard", str(k)]
                self.servers.append(Server(folder / str(k), [*peers, *options], address))
        except BaseException:
            self.stop()
            raise
        self.endpoint = self.servers[0].endpoint

    def stop(self) -> None:
        for one in self.servers:
            if one.process.poll() is None:
                one.process.terminate()
        for one in self.servers:
            one.stop()


@contextlib.contextmanager
def cluster(shards: int, *, options: Sequence[str] = ()) -> Iterator[Cluster]:
    """A cluster, ended and removed with the block."""
    with tempfile.TemporaryDirectory(prefix="ampd-") as folder:
        made = Cluster(folder, shards, options)
        try:
            yield made
        finally:
            made.stop()
