#!/usr/bin/python3
"""deploy/up.sh cluster --kill, with a docker that only pretends: what it says while it builds and when the killed one is back,
that no image is left without a name, and that a port in use is told before the build. (tests/containers runs it with the real one.)

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
    """Prometheus."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


def main():
    with tempfile.TemporaryDirectory(prefix="ampd-up-") as name, http.server.ThreadingHTTPServer(("127.0.0.1", 0), Ready) as server:
        folder = pathlib.Path(name)
        for program in ("docker", "docker-compose"):
            (folder / program).write_text(FAKE)
            (folder / program).chmod(0o755)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        environment = dict(os.environ, PATH=f"{folder}:{os.environ['PATH']}", PROMETHEUS_PORT=str(server.server_port), TMPDIR=name)
        environment.pop("UP_IMAGES", None)
        refused = subprocess.run([ROOT / "deploy" / "up.sh"], env=dict(environment, AMPD_PORT=str(server.server_port)), timeout=TIMEOUT_S,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8")
        assert refused.returncode == 1 and "AMPD_PORT" in refused.stdout, f"a port in use: {refused.stdout}"
        assert "build" not in (folder / "calls").read_text(), "it builds before it says that the port is in use"
        (folder / "calls").unlink()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            environment["AMPD_PORT"] = str(free.getsockname()[1])
        done = subprocess.run([ROOT / "deploy" / "up.sh", "cluster", "--kill", "ampd1"], env=environment, timeout=TIMEOUT_S,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8")
        server.shutdown()
        calls = (folder / "calls").read_text().splitlines()
    said = done.stdout.splitlines()
    print(done.stdout)
    assert done.returncode == 0, done.returncode
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
