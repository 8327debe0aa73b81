#!/usr/bin/python3
"""deploy/up.sh cluster --kill, with a docker that only pretends: what it says while it builds and when the killed one is back,
that no image is left without a name, that a port in use is told before the build, and that a second one leaves the first one's
containers alone. (tests/containers runs it with the real one.)

    test_up.py
"""
import http.server
import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD_S = 12  # longer than progress_s of up.sh
LOOKS = 3     # at the killed container until it is healthy
TIMEOUT_S = 120

# Of both names, `docker` and `docker-compose`. Each call is a line of `calls`; the workers train until the killed one is back.
FAKE = f"""#!/usr/bin/python3
import os, pathlib, sys, time
folder, name, words = pathlib.Path(__file__).parent, os.path.basename(sys.argv[0]), sys.argv[1:]
text = " ".join([name, *words])
calls = folder / "calls"
before = calls.read_text() if calls.exists() else ""
calls.write_text(before + text + "\\n")
started = "docker-compose start" in before
looks = before.count("inspect --format {{{{.State.Status}}}}{{{{with") if started else 0
if name == "docker" and words[0] == "compose":
    sys.exit(1)
elif name == "docker-compose":
    words = words[4:]  # --project-name NAME --file FILE
    calls.write_text(before + " ".join([name, *words]) + "\\n")
    if words[0] == "build":
        print("Step 7/9 : RUN a compiler\\x1b[2J that takes long", flush=True)
        time.sleep({BUILD_S})
    elif words[0] == "up":
        open(folder / "up", "w").close()
elif words[0] == "images":
    print("fedcba\\nabcdef")
elif words[0] == "ps":
    service = text.rsplit("service=", 1)
    print("c-" + service[1] if len(service) == 2 else "Up 5 s (healthy)\\n" * 4)
elif words[0] == "exec":
    print("shard,address,state,trouble\\n0,ampd0:7420,up,\\n1,ampd1:7420,up,\\n2,ampd2:7420,up,\\n,standby:7420,standby,")
elif words[0] == "logs":
    print(f"step {{30 * before.count('docker logs')}}\\ndigits: test accuracy 1")
elif words[0] == "inspect" and "ExitCode" in text:
    print(0)
elif words[0] == "inspect" and "with" in text:
    print("running healthy" if looks >= {LOOKS} else "running starting")
elif words[0] == "inspect":
    print("exited" if looks > {LOOKS} and "worker" in text else "running")
"""


class Ready(http.server.BaseHTTPRequestHandler):
    """Prometheus, which listens once the containers were started."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


def refused(script, name, port, environment):
    """It ends because the port that `name` names is in use."""
    done = subprocess.run(script, env=dict(environment, **{name: str(port)}), timeout=TIMEOUT_S, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8")
    assert done.returncode == 1 and f"port {port} " in done.stdout and name in done.stdout, f"a port in use: {done.stdout}"


def second_is_refused(environment, calls):
    """It ends at once, and takes nothing down."""
    before = calls.read_text()
    done = subprocess.run([ROOT / "deploy" / "up.sh", "cluster"], env=environment, timeout=TIMEOUT_S, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8")
    assert done.returncode == 1 and "another deploy/up.sh" in done.stdout, f"beside another one: {done.stdout}"
    assert "docker-compose down" not in calls.read_text()[len(before):], "it takes down what is not its own"


def wait_for_build(process, calls):
    """Its last act before the containers; it takes BUILD_S."""
    until = time.monotonic() + TIMEOUT_S
    while not calls.exists() or "docker-compose build" not in calls.read_text():
        assert process.poll() is None and time.monotonic() < until, "it does not build"
        time.sleep(0.05)


def serve(server, started):
    """Listens and answers once the containers are started."""
    open(started, encoding="utf-8").close()
    server.server_activate()
    server.serve_forever()


def main():
    prometheus = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ready, bind_and_activate=False)
    with tempfile.TemporaryDirectory(prefix="ampd-up-") as name, prometheus as server, socket.socket() as used, socket.socket() as free:
        folder = pathlib.Path(name)
        for program in ("docker", "docker-compose"):
            (folder / program).write_text(FAKE)
            (folder / program).chmod(0o755)
        os.mkfifo(folder / "up")
        server.server_bind()
        used.bind(("127.0.0.1", 0))
        used.listen()
        free.bind(("127.0.0.1", 0))
        environment = dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}", PROMETHEUS_PORT=str(server.server_port),
                           AMPD_PORT=str(free.getsockname()[1]), TMPDIR=name)
        environment.pop("UP_IMAGES", None)
        refused([ROOT / "deploy" / "up.sh"], "AMPD_PORT", used.getsockname()[1], environment)
        refused([ROOT / "deploy" / "up.sh", "cluster"], "PROMETHEUS_PORT", used.getsockname()[1], environment)
        assert "build" not in (folder / "calls").read_text(), "it builds before it says that the port is in use"
        (folder / "calls").unlink()
        threading.Thread(target=serve, args=(server, folder / "up"), daemon=True).start()
        with subprocess.Popen([ROOT / "deploy" / "up.sh", "cluster", "--kill", "ampd1"], env=environment, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8") as process:
            try:
                wait_for_build(process, folder / "calls")
                second_is_refused(environment, folder / "calls")
                output, _ = process.communicate(timeout=TIMEOUT_S)
            finally:
                process.kill()
        calls = (folder / "calls").read_text().splitlines()
    said = output.splitlines()
    print(output)
    assert process.returncode == 0, process.returncode
    building = [line for line in said if line.startswith("up: building for ")]
    assert building and building[0].endswith("RUN a compiler[2J that takes long"), "it says nothing while it builds"
    back = [at for at, line in enumerate(said) if line.startswith("up: ampd1 is back after ")]
    assert len(back) == 1 and "starting ampd1 again" in said[back[0] - 1], "it does not say when the killed one is back"
    at = calls.index("docker tag fedcba ampd-build:local")  # the newest: the next build begins with it
    assert calls[at + 1] == "docker image prune --force --filter label=ampd.image", calls[at:at + 2]
    assert calls.index("docker-compose build") < at < calls.index("docker-compose up --detach --no-build")


if __name__ == "__main__":
    try:
        main()
    except (AssertionError, ValueError, subprocess.SubprocessError) as failure:
        sys.exit(f"FAILED: {failure}")
