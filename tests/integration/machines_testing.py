"""Machines for the runbooks of docs/runbooks.md: each has files and a name of its own, and a `systemctl` that runs ampd as
deploy/systemd/ampd.service says, or the instance prod of ampd@.service, and etcd as Debian's package does.

A block of commands runs on a machine as printed: but paths lead into the machine's folder, and addresses (ampd1:7420) are free
ports of loopback, since all machines are this one. Where ampd is an instance, the document's names give way to those that it tells.
"""
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import ampd_testing
from ampd_testing import ROOT

if shutil.which("etcd") is None or shutil.which("etcdctl") is None:
    print(f"SKIPPED: {ampd_testing.FILE}: no etcd or no etcdctl (packages etcd-server, etcd-client)")
    sys.exit(77)

INSTANCE = "ampd@prod"
UNITS = {name: (ROOT / "deploy" / "systemd" / f"{name.removesuffix('prod')}.service").read_text().replace("%i", "prod")
         for name in ("ampd", INSTANCE)}
BLOCK_TIMEOUT_S = 300
STOP_TIMEOUT_S = 90   # TimeoutStopSec of the unit
OWN = ["/var/lib/ampd", "/var/lib/ampd-prod", "/var/lib/etcd", "/etc/ampd", "/etc/default", "/usr/bin"]  # each machine has its own
SHARED = "/srv"                                                      # all machines see it

# Tells the test what is wanted, and ends as it says.
SYSTEMCTL = """#!/usr/bin/python3 -ES
import socket, sys
with socket.socket(socket.AF_UNIX) as wire:
    wire.connect({path!r})
    wire.sendall(chr(0).join(sys.argv[1:]).encode())
    wire.shutdown(socket.SHUT_WR)
    code, _, text = b"".join(iter(lambda: wire.recv(4096), b"")).decode().partition(" ")
print(text, end="")
sys.exit(int(code))
"""


def of_unit(key, unit="ampd"):
    return re.search(rf"^{key}=(.*)$", UNITS[unit], re.M)[1]


def names_of_the_instance():
    """Pairs of the document: what its blocks have, and what takes its place."""
    text = (ROOT / "docs" / "runbooks.md").read_text()
    return re.findall(r"^  \| `(\S+)`[^|]* \| `(\S+)`", text, re.M)


def said_for_the_instance(block):
    for old, new in names_of_the_instance():
        block = re.sub(rf"(?<![\w/-]){old}(?![\w{'-' if '/' in old else '/-'}])", new, block)
    return block


class Service:
    """A unit of one machine: Type=notify, Restart=on-failure."""

    restart_s = float(of_unit("RestartSec"))
    final_codes = {0, *map(int, of_unit("RestartPreventExitStatus").split())}
    burst, burst_s = int(of_unit("StartLimitBurst")), float(of_unit("StartLimitIntervalSec"))

    def __init__(self, machine, name):
        self.machine, self.name, self.process, self.thread = machine, name, None, None
        self.wanted, self.ready, self.over, self.starts = False, threading.Event(), threading.Event(), []
        self.status, self.code, self.log_path = "", None, machine.root / f"{name}.log"
        self.address = f"@ampd-test-{os.getpid()}-{machine.lab.folder.name}-{machine.name}-{name}"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self.socket.bind("\0" + self.address[1:])
        self.lock = threading.Lock()
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        while True:
            for line in self.socket.recv(4096).decode().splitlines():
                if line == "READY=1":
                    self.ready.set()
                elif line.startswith("STATUS="):
                    self.status = line[7:]

    def command(self):
        if self.name == "etcd":
            return ["etcd"]
        line = of_unit("ExecStart", self.name).replace("${STATE_DIRECTORY}", f"/var/lib/{of_unit('StateDirectory', self.name)}")
        assert line.count(" $AMPD_OPTIONS") == 1
        settings = self.settings()
        options = settings.read_text().partition("AMPD_OPTIONS=")[2] if settings.exists() else ""
        return self.machine.lab.here(line, self.machine).replace("$AMPD_OPTIONS", options).split()

    def settings(self):
        path = "/etc/default/etcd" if self.name == "etcd" else of_unit("EnvironmentFile", self.name).removeprefix("-")
        return self.machine.path(path)

    def environment(self):
        settings = self.settings()
        lines = settings.read_text().splitlines() if settings.exists() else []
        given = dict(line.split("=", 1) for line in lines if "=" in line and line[0] != "#")
        return {**os.environ, **self.of_the_unit(), **given, "NOTIFY_SOCKET": self.address}

    def of_the_unit(self):
        name, value = of_unit("Environment").split("=", 1)
        return {name: self.machine.path(value)} if self.name == "ampd" else {}

    def supervise(self):
        while True:
            self.starts.append(time.monotonic())
            with self.lock, open(self.log_path, "ab") as log:
                if not self.wanted:
                    break
                self.process = subprocess.Popen([*ampd_testing.DIE_WITH_PARENT, *self.command()], stdin=subprocess.DEVNULL, stdout=log,
                                                stderr=log, env=self.environment())
            self.code = self.process.wait()
            self.ready.clear()
            if not self.wanted or self.code in self.final_codes or self.is_tired():
                break
            time.sleep(self.restart_s)
        self.over.set()

    def is_tired(self):
        """Started so often that it is left alone, until systemctl reset-failed."""
        return len([start for start in self.starts if start > time.monotonic() - self.burst_s]) >= self.burst

    def start(self, block):
        if self.thread is None or self.over.is_set():
            if self.is_tired():
                return f"1 {self.name}.service: Start request repeated too quickly.\n"
            self.wanted, self.status = True, ""
            self.over.clear()
            self.ready.clear()
            self.thread = threading.Thread(target=self.supervise, daemon=True)
            self.thread.start()
        while block and not self.ready.wait(0.05):
            if self.over.is_set():
                return f"1 Job for {self.name}.service failed, code {self.code}\n"
        return "0 "

    def end(self, number):
        with self.lock:
            self.wanted = False
            if self.process is not None and self.process.poll() is None:
                self.process.send_signal(number)
        if self.thread is not None:
            assert self.over.wait(STOP_TIMEOUT_S), f"{self.name} of {self.machine.name} goes on"
        return "0 "

    def run(self, words):
        options = [word for word in words if word.startswith("-")]
        verb, *_ = [word for word in words if not word.startswith("-")]
        assert set(options) <= {"--no-block", "-p", "--value"}, words
        if verb in ("stop", "restart"):
            self.end(signal.SIGTERM)
        if verb in ("start", "restart"):
            return self.start("--no-block" not in options)
        if verb == "reset-failed":
            self.starts = []
        if verb in ("stop", "reset-failed"):
            return "0 "
        assert verb == "show" and words[1] == "-p", words
        value = {"StatusText": self.status, "ExecMainStatus": self.code or 0}[words[2]]
        return f"0 {value}\n" if "--value" in options else f"0 {words[2]}={value}\n"

    def log(self):
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""


class Machine:
    def __init__(self, lab, name):
        self.lab, self.name, self.root = lab, name, lab.folder / name
        for folder in OWN:
            self.path(folder).mkdir(parents=True)
        self.path("/var/lib/ampd").chmod(0o700)
        self.path("/var/lib/ampd-prod").chmod(0o700)
        (self.root / "bin").mkdir()
        self.services = {unit: Service(self, unit) for unit in (lab.unit, "etcd")}
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.root / "systemctl"))
        self.listener.listen()
        threading.Thread(target=self.serve, daemon=True).start()
        self.tool("systemctl", SYSTEMCTL.format(path=str(self.root / "systemctl")))
        self.tool("hostname", f"#!/bin/sh\necho {name}\n")

    def tool(self, name, text):
        (self.root / "bin" / name).write_text(text)
        (self.root / "bin" / name).chmod(0o755)

    def path(self, path):
        return self.root / path.lstrip("/")

    def serve(self):
        while True:
            wire, _ = self.listener.accept()
            threading.Thread(target=self.answer, args=(wire,), daemon=True).start()

    def answer(self, wire):
        with wire:
            words = b"".join(iter(lambda: wire.recv(4096), b"")).decode().split("\0")
            try:
                answer = self.services[words[-1]].run(words[:-1])
            except Exception as error:  # the commands are wrong, which their block is to show
                answer = f"1 systemctl {words}: {error!r}\n"
            wire.sendall(answer.encode())

    def install(self, bin_dir):
        for program in ("ampd", "ampctl"):
            shutil.copy(bin_dir / program, self.path("/usr/bin") / program)
        conf = subprocess.run([bin_dir / "ampd", "--usage-as=conf"], check=True, stdout=subprocess.PIPE).stdout
        self.path("/etc/ampd/ampd.conf").write_bytes(conf)

    def run(self, block):
        """The output of commands; they must succeed."""
        text = self.lab.here(said_for_the_instance(block) if self.lab.unit == INSTANCE else block, self)
        environment = {**os.environ, "PATH": f"{self.root / 'bin'}:{self.path('/usr/bin')}:{os.environ['PATH']}"}
        done = subprocess.run(["sh", "-euc", text], cwd=self.root, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=BLOCK_TIMEOUT_S, encoding="utf-8", check=False)
        assert done.returncode == 0, f"on {self.name}: {block}\nended with {done.returncode}:\n{done.stdout}\n{self.lab.logs()}"
        return done.stdout

    @property
    def ampd(self):
        return self.services[self.lab.unit]

    @property
    def etcd(self):
        return self.services["etcd"]


class Lab:
    """Machines by name, and their addresses."""

    def __init__(self, context, names, unit="ampd"):
        self.context, self.folder, self.ports, self.machines, self.unit = context, context.folder(), {}, {}, unit
        self.folder.mkdir()
        (self.folder / "srv").mkdir()
        context._own.append(self)
        self.add(names)

    def add(self, names):
        for name in names:
            self.machines[name] = Machine(self, name)
            for port in (2379, 2380) if name.startswith("etcd") else (7420,):
                with socket.socket() as taken:
                    taken.bind(("127.0.0.1", 0))
                    self.ports[f"{name}:{port}"] = taken.getsockname()[1]

    def here(self, text, machine):
        """What is printed, for this machine."""
        text = re.sub("|".join(rf"(?<![\w/.]){path}(?![\w-])" for path in OWN), lambda match: str(machine.path(match[0])), text)
        text = re.sub(rf"(?<![\w/.]){SHARED}/", f"{self.folder}/srv/", text)
        return re.sub(r"\b\w+:\d{4}\b", lambda match: f"127.0.0.1:{self.ports[match[0]]}" if match[0] in self.ports else match[0], text)

    def write(self, machine, path, text):
        self.machines[machine].path(path).write_text(self.here(text, self.machines[machine]))

    def address(self, *names):
        return ",".join(f"127.0.0.1:{self.ports[f'{name}:7420']}" for name in names)

    def logs(self):
        return "\n".join(f"--- {service.name} of {machine.name}, {service.code}:\n{service.log()[-2500:]}"
                         for machine in self.machines.values() for service in machine.services.values() if service.log())

    def stop(self):
        for machine in self.machines.values():
            for service in machine.services.values():
                service.end(signal.SIGKILL)
