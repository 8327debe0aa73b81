#!/usr/bin/python3
"""ampd over TLS: tokens, client certificates, what SIGHUP changes while a model trains, and the commands of the document.

    test_server_tls.py BIN_DIR [NAME ...]
"""
import os
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # handshakes that fail are meant to
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys

from ampd_testing import (CALL_TIMEOUT_S, ROOT, Api, Code, eventually, free_port, grpc, refused, run, scales, start_and_fail,
                          DIE_WITH_PARENT)
from auth_testing import (Authority, TlsServer, TokenFile, api_with, command, hang_up, never_ready, ready,
                          replace_pair)

DOCUMENT = ROOT / "docs" / "security.md"
TRAIN_S = 400         # the document trains; with ThreadSanitizer, beside other work, each step takes seconds
RELOAD_STEPS = 40     # training goes on for so many steps between two changes
TRAINING_STEPS = 100000   # more than the test waits for; the workers are ended when it has seen enough


def authority(context):
    context.count += 1
    return Authority(context.work / f"authority-{context.count}")


def served_certificate(port):
    """The certificate that a new connection gets."""
    setup = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    setup.check_hostname, setup.verify_mode = False, ssl.CERT_NONE
    setup.set_alpn_protocols(["h2"])
    with socket.create_connection(("127.0.0.1", port), CALL_TIMEOUT_S) as plain:
        with setup.wrap_socket(plain) as connection:
            assert connection.selected_alpn_protocol() == "h2"
            return ssl.DER_cert_to_PEM_cert(connection.getpeercert(binary_form=True))


# ---- the document ----

def shell_blocks():
    """Those of etcd's own program are in test_server_etcd.py."""
    blocks = re.findall(r"^```sh\n(.*?)^```", DOCUMENT.read_text(), re.M | re.S)
    return [block for block in blocks if not block.startswith("etcdctl ")]


def test_the_commands_of_the_document_work_as_printed(context):
    folder = context.work / "document"
    folder.mkdir()
    port = str(free_port())
    environment = dict(os.environ, PATH=f"{context.bin_dir}:{os.environ['PATH']}")
    blocks = [block.replace(":7420", ":" + port) for block in shell_blocks()]
    servers = [block for block in blocks if block.startswith("ampd ")]
    assert len(blocks) == 6 and len(servers) == 1, blocks
    server, printed = None, ""
    try:
        for block in blocks:
            if block in servers:
                server = subprocess.Popen([*DIE_WITH_PARENT, "sh", "-c", "exec " + block], cwd=folder, env=environment,
                                          stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                                          stderr=subprocess.PIPE)
                eventually(lambda: subprocess.run(
                    ["ampctl", "--endpoint", f"tls://localhost:{port}", "--cacert", "ca.crt", "ready"], cwd=folder,
                    env=environment, check=False, capture_output=True, timeout=CALL_TIMEOUT_S).returncode == 0, "ready")
                continue
            done = subprocess.run(["sh", "-ec", "umask 077\n" + block], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=TRAIN_S, encoding="utf-8", check=False)
            assert done.returncode == 0, f"{block}\nended with {done.returncode}:\n{done.stdout}"
            printed += done.stdout
        assert "after 20 steps" in printed, printed
    finally:
        if server is not None:
            server.send_signal(signal.SIGTERM)
            said = server.communicate(timeout=60)[1].decode()
    # Another ampd of this machine may have the port of metrics, which is of no matter here.
    warned = [line for line in said.splitlines() if "level=warn" in line and 'msg="the HTTP port cannot be opened' not in line]
    assert server.returncode == 0 and not warned, said
    modes = {path.name: path.stat().st_mode & 0o077 for path in folder.glob("*.*")}
    assert not any(modes.values()), modes


# ---- who gets in ----

def test_grpcio_trains_over_tls_with_a_token(context):
    tokens = TokenFile(context)
    operator, worker = tokens.new("operator"), tokens.new("worker")
    server = TlsServer(context, authority(context), "--token-file", tokens.path)
    refused(Api(server.channel).GetStatus, Code.UNAUTHENTICATED, "TOKEN_MISSING")
    server.channel = server.connect(token=worker)
    model = context.model("over-tls", server=server)
    one = model.worker()
    assert [one.train({"w": [1.0] * 4}).step for _ in range(3)] == [1, 2, 3]
    refused(lambda: model.api.Checkpoint(model="over-tls"), Code.PERMISSION_DENIED, "ROLE_REQUIRED")
    with server.connect(token=operator) as channel:
        Api(channel).Checkpoint(model="over-tls", no_wait=True)


def test_plaintext_and_tls_do_not_mix(context):
    tokens = TokenFile(context)
    token = tokens.client_file(tokens.new("read"))
    server = TlsServer(context, authority(context), "--token-file", tokens.path)
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        never_ready(channel)
    _, said = command(context.bin_dir, "ampctl", "-t", "2", "-e", f"127.0.0.1:{server.port}", "--token-file", token,
                      "models", code=64 + 14)
    assert "uses TLS" in said and "give --cacert" in said, said
    _, said = command(context.bin_dir, "digits", "--connect", f"127.0.0.1:{server.port}", "--steps", "5", code=1,
                      env=dict(os.environ, RANK="0", WORLD_SIZE="1"))
    assert "uses TLS: connect with TLS" in said and "start the server" not in said, said
    plain = context.server()
    _, said = command(context.bin_dir, "ampctl", "-t", "2", "-e", f"tls://127.0.0.1:{plain.port}", "models", code=64 + 14)
    assert "TLS" in said, said
    eventually(lambda: "TLS handshakes failed" in server.log(), "the log tells of it")


def test_a_worker_says_at_once_what_has_to_be_corrected(context):
    """And not "within 10000 ms", nor that the server be started: another try would end in the same way."""
    server, plain, other = TlsServer(context, authority(context)), context.server(), authority(context)
    one = authority(context)
    asking = TlsServer(context, one, "--trusted-ca-file", one.cert, "--client-cert-auth", "--client-cert-role", "worker",
                       shown=one.client("worker"))

    def shown(cert, key):
        return {"AMPD_CACERT": one.cert, "AMPD_CERT": cert, "AMPD_KEY": key}

    for port, words, given in ((plain.port, "does not use TLS: connect without it", {}),
                               (server.port, "is not signed by an authority that is trusted here", {"AMPD_CACERT": other.cert}),
                               (server.port, "connect by such a name", {"AMPD_CACERT": server.authority.cert,
                                                                        "AMPD_SERVER_NAME": "ampd.elsewhere"}),
                               (asking.port, "does not trust the authority of", shown(*other.client("worker"))),
                               (asking.port, "whose extended key usage has clientAuth", shown(*one.server())),
                               (asking.port, "it has expired", shown(*one.issue("w", "extendedKeyUsage=clientAuth", -1)))):
        _, said = command(context.bin_dir, "digits", "--connect", f"tls://127.0.0.1:{port}", "--steps", "5", code=1,
                          env=dict(os.environ, RANK="0", WORLD_SIZE="1", **given))
        assert "No connection to" in said and words in said and "start the server" not in said, said


def test_ampctl_believes_only_the_right_server(context):
    tokens = TokenFile(context)
    token = tokens.client_file(tokens.new("read"))
    server, other = TlsServer(context, authority(context), "--token-file", tokens.path), authority(context)
    endpoint = f"tls://127.0.0.1:{server.port}"
    command(context.bin_dir, "ampctl", "-e", endpoint, "--cacert", server.authority.cert, "--token-file", token, "models")
    for options in (("--cacert", other.cert), (), ("--cacert", server.authority.cert, "--server-name", "ampd.elsewhere")):
        _, said = command(context.bin_dir, "ampctl", "-t", "2", "-e", endpoint, *options, "--token-file", token, "models",
                          code=64 + 14)
        assert "certificate" in said, said
    command(context.bin_dir, "ampctl", "-e", f"127.0.0.1:{server.port}", "--cacert", "/nowhere", "models", code=1)


def test_client_certificates_have_the_role_of_their_line(context):
    one = authority(context)
    tokens = TokenFile(context)
    tokens.add("cert operator ops.example")
    tokens.add("cert worker Trainer of Digits")
    reader = tokens.new("read")
    named, by_name, unknown = one.client("x", "DNS:ops.example"), one.client("Trainer of Digits"), one.client("nobody")
    foreign = authority(context).client("Trainer of Digits")
    server = TlsServer(context, one, "--trusted-ca-file", one.cert, "--client-cert-auth", "--token-file", tokens.path,
                       shown=unknown)
    refused(Api(server.channel).GetStatus, Code.UNAUTHENTICATED, "CERTIFICATE_UNKNOWN")
    api_with(server.channel, reader).GetStatus()  # a certificate to connect, a token to say who
    operator, worker = Api(ready(server.connect(named))), Api(ready(server.connect(by_name)))
    refused(lambda: operator.Checkpoint(model="none"), Code.NOT_FOUND)
    refused(lambda: worker.Checkpoint(model="none"), Code.PERMISSION_DENIED, "ROLE_REQUIRED", "Trainer of Digits")
    worker.GetStatus()
    refused(api_with(worker.channel, "wrong" * 8).GetStatus, Code.UNAUTHENTICATED, "TOKEN_UNKNOWN")
    server.shown = (None, None)
    never_ready(server.connect())
    never_ready(server.connect(foreign))
    endpoint = ("-t", "2", "-e", f"127.0.0.1:{server.port}", "--cacert", one.cert)
    command(context.bin_dir, "ampctl", *endpoint, "--cert", by_name[0], "--key", by_name[1], "models")
    command(context.bin_dir, "ampctl", *endpoint, "models", code=64 + 14)
    command(context.bin_dir, "ampctl", *endpoint, "--cert", by_name[0], "models", code=2)


def test_certificates_without_a_line_have_the_common_role(context):
    one = authority(context)
    server = TlsServer(context, one, "--trusted-ca-file", one.cert, "--client-cert-role", "worker")
    refused(Api(server.channel).GetStatus, Code.UNAUTHENTICATED, "TOKEN_MISSING")  # without --client-cert-auth one may come
    with server.connect(one.client("anybody")) as channel:
        Api(ready(channel)).GetStatus()
        refused(lambda: Api(channel).Checkpoint(model="none"), Code.PERMISSION_DENIED, "ROLE_REQUIRED")


def test_files_that_do_not_fit_are_refused_at_start(context):
    one = authority(context)
    cert, key = one.server()
    other_key = one.server()[1]
    junk = context.work / "junk.pem"
    junk.write_text("nothing\n")
    for pair, word in (((cert, other_key), "key"), ((junk, key), "junk.pem"), ((cert, junk), "junk.pem")):
        code, lines = start_and_fail(context.bin_dir, "--data-dir", context.folder(), "--listen", "127.0.0.1:0",
                                     "--cert-file", pair[0], "--key-file", pair[1])
        assert code == 2 and len(lines) == 1 and word in lines[0], (code, lines)


# ---- SIGHUP ----

class Training:
    """Two digits workers that train over TLS with a token, until they are ended."""

    def __init__(self, context, server, token_file):
        self.server, self.processes = server, []
        for rank in range(2):
            environment = dict(os.environ, RANK=str(rank), WORLD_SIZE="2", AMPD_CACERT=str(server.authority.cert),
                               AMPD_TOKEN_FILE=str(token_file))
            self.processes.append(subprocess.Popen(
                [*DIE_WITH_PARENT, context.bin_dir / "digits", "--connect", f"localhost:{server.port}", "--steps", str(TRAINING_STEPS),
                 "--hidden", "32", "--batch", "16", "--checkpoint-every", "1000000", "--quiet"], env=environment,
                stdout=subprocess.DEVNULL, stderr=subprocess.PIPE))

    def attempted(self, api):
        for process in self.processes:
            assert process.poll() is None, f"a worker ended: {process.stderr.read().decode()}"
        return api.GetModel(model="digits").status.scale.attempted

    def goes_on(self, api):
        """Some more steps are decided."""
        from_step = self.attempted(api)
        eventually(lambda: self.attempted(api) >= from_step + RELOAD_STEPS, f"training goes on after step {from_step}")

    def end(self):
        for process in self.processes:
            process.kill()
            process.communicate(timeout=CALL_TIMEOUT_S)


def test_a_client_that_trains_takes_new_certificates_for_its_next_connection(context):
    one, two = authority(context), authority(context)
    folder = context.work / "mutual"
    folder.mkdir()
    files = {name: folder / name for name in ("ca.crt", "server.crt", "server.key", "client.crt", "client.key")}

    def use(issuer):
        replace_pair(files["server.crt"], files["server.key"], issuer.server())
        replace_pair(files["client.crt"], files["client.key"], issuer.client("trainer"))
        files["ca.crt"].write_bytes(issuer.cert.read_bytes())

    use(one)
    server = TlsServer(context, one, "--trusted-ca-file", files["ca.crt"], "--client-cert-auth", "--client-cert-role",
                       "worker", "--listen", f"127.0.0.1:{free_port()}", pair=(files["server.crt"], files["server.key"]),
                       shown=(files["client.crt"], files["client.key"]))
    environment = dict(os.environ, RANK="0", WORLD_SIZE="1", AMPD_CACERT=str(files["ca.crt"]),
                       AMPD_CERT=str(files["client.crt"]), AMPD_KEY=str(files["client.key"]))
    worker = subprocess.Popen(
        [*DIE_WITH_PARENT, context.bin_dir / "digits", "--connect", f"127.0.0.1:{server.port}", "--steps", str(TRAINING_STEPS), "--hidden",
         "32", "--batch", "16", "--checkpoint-every", "20", "--quiet"], env=environment, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE)

    def steps():
        assert worker.poll() is None, f"the worker ended: {worker.stderr.read().decode()}"
        return Api(server.channel).GetModel(model="digits").status.scale.attempted

    try:
        eventually(lambda: created(Api(server.channel)), "the worker has made its model")
        eventually(lambda: steps() > RELOAD_STEPS, "it trains")
        server.kill()
        use(two)  # nothing that the old authority has signed is good for the new server
        server.authority = two
        server.start()
        before = steps()
        eventually(lambda: steps() >= before + RELOAD_STEPS, "it goes on with the new certificates")
    finally:
        worker.kill()
        worker.communicate(timeout=CALL_TIMEOUT_S)


def created(api):
    try:
        return bool(api.ListModels().models)
    except grpc.RpcError:
        return False


def test_files_of_certificates_that_are_no_files_hold_nobody_up(context):
    signed_by = context.work / "authorities.crt"
    shutil.copy(authority(context).cert, signed_by)
    server = TlsServer(context, authority(context), "--trusted-ca-file", signed_by, "--client-cert-role", "worker")
    before = served_certificate(server.port)
    faults = [lambda path: os.mkfifo(path, 0o600), lambda path: path.mkdir(), lambda path: path.symlink_to("/dev/zero"),
              lambda path: path.write_text("x" * (5 << 20)), lambda path: None]
    for path in (server.cert, server.key, signed_by):
        good = path.read_bytes()
        for fault in faults:
            path.unlink()
            fault(path)
            hang_up(server, "the certificates could not be reloaded; the old ones stay in force")
            line = [line for line in server.log().splitlines() if "certificates could not be reloaded" in line][-1]
            assert str(path) in line and ("not a regular file" in line or "No such file" in line), line
            assert served_certificate(server.port) == before
            path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
            path.write_bytes(good)
            path.chmod(0o600)
    hang_up(server, "certificates reloaded")


def test_tokens_and_certificates_are_replaced_while_a_model_trains(context):
    tokens = TokenFile(context)
    watcher, first = tokens.new("operator"), tokens.new("worker", "first")
    file = tokens.client_file(first)
    server = TlsServer(context, authority(context), "--token-file", tokens.path)
    api = api_with(server.channel, watcher)
    training = Training(context, server, file)
    try:
        eventually(lambda: created(api), "the workers have made their model")
        training.goes_on(api)
        before = served_certificate(server.port)

        replace_pair(server.cert, server.key, server.authority.server())
        hang_up(server, "certificates reloaded")
        assert served_certificate(server.port) != before
        training.goes_on(api)

        second = tokens.new("worker", "second")
        hang_up(server, "token file reloaded")
        tokens.replace(file, second)
        tokens.remove("first")  # at once: calls that have the old token yet are refused, and tried again
        hang_up(server, "token file reloaded")
        refused(api_with(server.channel, first).GetStatus, Code.UNAUTHENTICATED, "TOKEN_UNKNOWN")
        training.goes_on(api)

        server.cert.write_text("nothing\n")
        tokens.put("nothing\n")
        hang_up(server, "the certificates could not be reloaded")
        assert "the token file could not be reloaded" in server.log()
        with server.connect(token=watcher) as channel:
            Api(ready(channel)).GetStatus()
        training.goes_on(api)
        last = training.attempted(api)
    finally:
        training.end()
    status = api.GetModel(model="digits").status
    assert status.epoch == 1, f"epoch {status.epoch}: a step was lost"
    # No step was tried twice, left out, or decided without both workers.
    rows, page = [], api.ListScaleHistory(model="digits", page_size=1000)
    while True:
        rows += [row for row in page.rows if row.kind == scales.HISTORY_KIND_STEP]
        if not page.next_page_token or len(rows) >= last:
            break
        page = api.ListScaleHistory(model="digits", page_size=1000, page_token=page.next_page_token)
    assert [row.step for row in rows[:last]] == list(range(1, last + 1))
    assert {row.contributors for row in rows[:last]} == {2}


if __name__ == "__main__":
    if shutil.which("openssl") is None:
        print("SKIPPED: test_server_tls: no openssl (package openssl)")
        sys.exit(77)
    run(globals())
