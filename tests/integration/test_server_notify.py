#!/usr/bin/python3
"""What a service manager hears of ampd (sd_notify), and the unit file that says how to run it.

    test_server_notify.py BIN_DIR [NAME ...]
"""
import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time

from ampd_testing import Api, CALL_TIMEOUT_S, HEALTH_SERVING, ROOT, run
from etcd_testing import Cluster

UNIT = ROOT / "deploy" / "systemd" / "ampd.service"
INSTANCE = UNIT.with_name("ampd@.service")
DRAIN_MS, GRACE_MS = (int(re.search(rf"#define {name}\s+(\d+)", (ROOT / "server/io/process/drain.c").read_text())[1])
                      for name in ("DRAIN_MS", "GRACE_MS"))
# Of one that runs beside others: comments aside, nothing else is different.
OWN_OF_AN_INSTANCE = {"Description", "Environment", "EnvironmentFile", "ExecStart", "StateDirectory"}


class Manager:
    """A service manager's socket; `address` is what NOTIFY_SOCKET says."""

    def __init__(self, address):
        self.address = str(address)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self.socket.bind("\0" + self.address[1:] if self.address.startswith("@") else self.address)
        self.socket.settimeout(CALL_TIMEOUT_S)

    def __enter__(self):
        os.environ["NOTIFY_SOCKET"] = self.address  # servers are started from here
        return self

    def __exit__(self, *_):
        del os.environ["NOTIFY_SOCKET"]
        self.socket.close()

    def next(self, key):
        """The first datagram that has the key: its keys and values."""
        while True:
            lines = dict(line.split("=", 1) for line in self.socket.recv(4096).decode().splitlines())
            if key in lines:
                return lines


def test_a_service_manager_hears_ready_when_calls_are_served(context):
    folder = context.folder()
    folder.mkdir()
    for address in (folder / "notify", f"@ampd-test-{os.getpid()}-{folder.name}"):
        with Manager(address) as manager:
            server = context.server()
            ready = manager.next("READY")
            assert ready["READY"] == "1" and ready["STATUS"] == "serving", ready
            assert Api(server.channel).health() == HEALTH_SERVING
            server.process.send_signal(signal.SIGHUP)
            reloading = manager.next("RELOADING")
            assert abs(int(reloading["MONOTONIC_USEC"]) / 1e6 - time.monotonic()) < CALL_TIMEOUT_S, reloading
            assert manager.next("READY")["READY"] == "1"
            server.process.send_signal(signal.SIGTERM)
            assert manager.next("STOPPING")["STOPPING"] == "1"
            assert server.wait() == 0


@contextlib.contextmanager
def a_call(server):
    """A call that lasts, so that the grace of a drain does."""
    ended = threading.Event()
    held = server.channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
    call = held(iter(lambda: ended.wait(CALL_TIMEOUT_S), True))
    try:
        yield
    finally:
        ended.set()
        call.cancel()


def test_a_service_manager_gives_a_drain_all_of_its_time(context):
    """TimeoutStopSec counts from its signal on, and --drain-time may be longer."""
    folder = context.folder()
    folder.mkdir()
    with Manager(folder / "notify") as manager:
        server = context.server("--drain-time", "5m")
        with a_call(server):
            server.process.send_signal(signal.SIGTERM)
            extended_us = int(manager.next("STOPPING")["EXTEND_TIMEOUT_USEC"])
            assert 5 * 60000 < extended_us / 1000 <= 5 * 60000 + 30000, extended_us
        assert server.wait() == 0


def test_a_service_manager_hears_of_the_end_at_its_own_signal_and_not_at_a_call_of_Drain(context):
    """After STOPPING systemd would take its SIGTERM for sent: `systemctl stop` would wait for all of the call's grace."""
    folder = context.folder()
    folder.mkdir()
    with Manager(folder / "notify") as manager:
        server, drain_ms = context.server("--drain-time", "5m"), 5 * 60000 + GRACE_MS
        manager.next("READY")
        with a_call(server):
            Api(server.channel).Drain(grace_ms=120000)
            status = manager.next("STATUS")
            assert status == {"STATUS": "draining: writing the last checkpoints"}, status
            server.process.send_signal(signal.SIGTERM)
            extended_us = int(manager.next("STOPPING")["EXTEND_TIMEOUT_USEC"])
            assert drain_ms < extended_us / 1000 <= drain_ms + 30000, extended_us
        assert server.wait() == 0


def test_a_shard_that_waits_for_others_is_not_ready(context):
    folder = context.folder()
    folder.mkdir()
    with Manager(folder / "notify") as manager:
        log = open(folder / "log", "wb")
        process = subprocess.Popen(
            ["/usr/bin/setpriv", "--pdeathsig", "KILL", "--", context.bin_dir / "ampd", "--data-dir", folder / "data",
             "--listen", f"unix:{folder}/s0", "--metrics-listen", "none", "--shard", "0", "--peers",
             f"unix:{folder}/s0,unix:{folder}/s1"], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        with log:
            try:
                status = manager.next("STATUS")
                assert "READY" not in status and status["STATUS"].startswith("starting"), status
                process.send_signal(signal.SIGTERM)
                lines = manager.next("STOPPING")
                assert "READY" not in lines, lines
            finally:
                process.kill()
                process.wait()


def test_a_process_that_stands_by_is_ready_and_reads_its_files_anew(context):
    cluster = Cluster(context, 1)
    with Manager(cluster.folder / "notify") as manager:
        standby = cluster.add()
        ready = manager.next("READY")
        assert "this process stands by" in ready["STATUS"], ready
        assert standby.api().health() != HEALTH_SERVING
        standby.process.send_signal(signal.SIGHUP)
        assert manager.next("RELOADING")["RELOADING"] == "1"
        assert manager.next("READY")["READY"] == "1"


def test_a_manager_that_is_not_there_or_does_not_read_changes_nothing(context):
    folder = context.folder()
    folder.mkdir()
    for address in ("", "x", "relative", "/" + "x" * 200, str(folder / "nobody")):
        os.environ["NOTIFY_SOCKET"] = address
        try:
            server = context.server()
        finally:
            del os.environ["NOTIFY_SOCKET"]
        assert server.terminate() == 0
    with Manager(folder / "full") as manager, contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as own:
        own.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            for _ in range(100000):
                own.sendto(b"X=1\n", manager.address)
        server = context.server()
        server.process.send_signal(signal.SIGHUP)
        assert server.terminate() == 0


def test_the_units_are_as_systemd_wants_them(context):
    if shutil.which("systemd-analyze") is None:
        print("SKIPPED: test_server_notify: no systemd-analyze (package systemd)")
        return
    folder = context.folder()
    folder.mkdir()
    for source in (UNIT, INSTANCE):
        unit = folder / source.name.replace("@.", "@prod.")
        unit.write_text(source.read_text().replace("/usr/bin/ampd", str(context.bin_dir / "ampd")))
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], timeout=CALL_TIMEOUT_S, encoding="utf-8",
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        assert done.returncode == 0 and unit.name not in done.stdout, done.stdout
        done = subprocess.run(["systemd-analyze", "security", "--offline=yes", "--no-pager", unit], timeout=CALL_TIMEOUT_S,
                              encoding="utf-8", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        level = re.search(r"Overall exposure level for ampd\S*\.service: ([0-9.]+)", done.stdout)
        assert level is not None, done.stdout[-500:]
        assert float(level[1]) <= 2.0, f"exposure {level[1]} of {unit.name}: a line of hardening is gone"


def test_the_units_run_nothing_that_a_small_Debian_lacks(_context):
    """kill is in a package of its own, procps."""
    for unit in (UNIT, INSTANCE):
        programs = {line.split("=", 1)[1].split()[0] for line in lines_of(unit) if line.startswith("Exec")}
        assert programs <= {"/usr/bin/ampd", "/bin/sh"}, (unit.name, programs)


def lines_of(unit):
    return [line for line in unit.read_text().splitlines() if line and line[0] != "#"]


def test_the_unit_of_instances_is_the_other_one_but_for_names(_context):
    def shared(unit):
        return [line for line in lines_of(unit) if line.split("=", 1)[0] not in OWN_OF_AN_INSTANCE]

    assert shared(UNIT) == shared(INSTANCE)
    own = [line for line in lines_of(INSTANCE) if line.split("=", 1)[0] in OWN_OF_AN_INSTANCE]
    assert own and all("%i" in line for line in own), own


def test_an_etcd_of_the_machine_is_stopped_after_ampd(_context):
    """Without etcd a shard has no lease, and a drain writes no last checkpoint."""
    for unit in (UNIT, INSTANCE):
        after, = (line for line in lines_of(unit) if line.startswith("After="))
        assert "etcd.service" in after.partition("=")[2].split(), (unit.name, after)


def test_the_example_of_a_cluster_is_a_good_configuration(context):
    done = subprocess.run([context.bin_dir / "ampd", "--config", UNIT.with_name("cluster.conf"), "--data-dir", "/var/lib/ampd-prod",
                           "--check-config"], timeout=CALL_TIMEOUT_S, encoding="utf-8", stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout


def test_no_option_gives_an_instance_the_file_of_another(_context):
    """Of two that are given ampd takes the last one."""
    line, = (line.partition("=")[2] for line in lines_of(INSTANCE) if line.startswith("ExecStart="))
    assert re.fullmatch(r"/usr/bin/ampd \$AMPD_OPTIONS --config \S+%i\.conf --data-dir \$\{STATE_DIRECTORY\}", line), line


def test_whoever_stops_a_server_waits_longer_than_a_drain_may_take(_context):
    """Its grace included."""
    for path, pattern in (("deploy/systemd/ampd.service", r"^TimeoutStopSec=(\d+)$"), ("docker-compose.yml", r"^ +stop_grace_period: (\d+)s$"),
                          ("deploy/cluster.yml", r"^ +stop_grace_period: (\d+)s$"),
                          ("deploy/kubernetes/base/statefulset.yaml", r"^ +terminationGracePeriodSeconds: (\d+)$")):
        found_s, = re.findall(pattern, (ROOT / path).read_text(), re.M)
        assert int(found_s) * 1000 > DRAIN_MS + GRACE_MS, path


if __name__ == "__main__":
    run(globals())
