#!/usr/bin/python3
"""Shards that ask each other who they are: tokens, TLS and certificates between them, what is wrong with them, and SIGHUP.

    test_server_peers.py BIN_DIR [NAME ...]
"""
import os
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # handshakes that fail are meant to
import shutil
import signal
import subprocess
import sys

import ampd_testing
from ampd_testing import Api, eventually, grpc, run
from auth_testing import Authority, TokenFile, WithToken, replace_pair
from etcd_testing import wait_s
from test_server_shards import START_TIMEOUT_S, WORLD, Cluster, Job

PORT = 7420
CLUSTERS = [0]
BOTH_USAGES = "extendedKeyUsage=serverAuth,clientAuth"


def host():
    """A loopback address that no other run has: the ports of a cluster must be known before it starts."""
    CLUSTERS[0] += 1
    pid = os.getpid()
    return f"127.{64 + CLUSTERS[0]}.{pid // 250 % 250}.{1 + pid % 250}"


class Secure(Cluster):
    """A cluster on TCP; `options` are those of every shard, `own` (k) -> those of one."""

    def __init__(self, context, count=2, options=(), own=lambda k: (), authority=None, token=None, shown=None, name=None,
                 peers=None, healthy=True):
        self.program, self.count, self.options, self.own = context.bin_dir / "ampd", count, list(options), own
        self.authority, self.token, self.shown = authority, token, shown or (None, None)
        self.folder = context.folder()
        self.folder.mkdir()
        name = name or host()
        self.addresses = [f"{name}:{PORT + k}" for k in range(count)]
        self.peers = peers or ",".join(self.addresses)
        self.processes, self.channels = [None] * count, [None] * count
        context._own.append(self)
        for k in range(count):
            self.start(k)
            grpc.channel_ready_future(self.channels[k]).result(timeout=START_TIMEOUT_S)
        if healthy:  # no shard serves before all have met
            self.wait_until_healthy()

    def start(self, k):
        with open(self.folder / f"log-{k}", "ab") as log:
            self.processes[k] = subprocess.Popen(
                [*ampd_testing.DIE_WITH_PARENT, self.program, "--data-dir", self.folder / f"data-{k}", "--listen",
                 self.addresses[k], "--peers", self.peers, "--shard", str(k), *self.options, *self.own(k)],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.channels[k] = self.connect(k)

    def connect(self, k):
        if self.authority is None:
            return grpc.insecure_channel(self.addresses[k], options=ampd_testing.CHANNEL_OPTIONS)
        cert, key = self.shown
        credentials = grpc.ssl_channel_credentials(self.authority.cert.read_bytes(), key and key.read_bytes(),
                                                   cert and cert.read_bytes())
        return grpc.secure_channel(self.addresses[k], credentials, options=ampd_testing.CHANNEL_OPTIONS)

    def api(self, k):
        return Api(WithToken(self.channels[k], f"Bearer {self.token}") if self.token else self.channels[k])

    def says(self, k, *words):
        """Shard k's log has a line with all of the words."""
        eventually(lambda: any(all(word in line for word in words) for line in self.log(k).splitlines()),
                   f"shard {k} says {words}:\n{self.log(k)[-3000:]}", START_TIMEOUT_S)

    def hang_up(self, k, line):
        before = self.log(k).count(line)
        self.processes[k].send_signal(signal.SIGHUP)
        eventually(lambda: self.log(k).count(line) > before, f"shard {k} says {line!r}:\n{self.log(k)[-2000:]}")


def authority(context):
    context.count += 1
    return Authority(context.work / f"authority-{context.count}")


def tokens_of(context):
    """(token file, a worker's token, a file with a peer's)"""
    tokens = TokenFile(context)
    return tokens, tokens.new("operator"), tokens.client_file(tokens.new("peer"))


def trains(cluster, steps=2, name="m"):
    """The cluster takes a model, and its steps are decided on all shards."""
    job = Job(cluster, name)
    assert len(job.train([job.join(rank) for rank in range(WORLD)], 1, steps)) == steps
    return job


def ends(cluster):
    assert cluster.end() == [0] * cluster.count, [cluster.log(k)[-1500:] for k in range(cluster.count)]


# ---- it works ----

def test_a_token_between_shards_without_tls(context):
    tokens, token, peer = tokens_of(context)
    cluster = Secure(context, 3, ["--token-file", tokens.path, "--peer-token-file", peer], token=token)
    trains(cluster)
    ends(cluster)


def one_sided(context, count=2):
    tokens, token, peer = tokens_of(context)
    issuer, name = authority(context), host()
    pair = issuer.issue("ampd", f"subjectAltName=IP:{name}\nextendedKeyUsage=serverAuth")
    cluster = Secure(context, count, ["--cert-file", pair[0], "--key-file", pair[1], "--peer-trusted-ca-file", issuer.cert,
                                      "--token-file", tokens.path, "--peer-token-file", peer],
                     authority=issuer, token=token, name=name)
    return cluster, tokens


def test_tls_of_servers_alone_and_a_token(context):
    cluster, _ = one_sided(context)
    trains(cluster)
    ends(cluster)


def mutual(context, issuer, name, *options, usages=BOTH_USAGES, healthy=True):
    pair = issuer.issue("ampd", f"subjectAltName=IP:{name}\n{usages}")
    return Secure(context, 2, ["--cert-file", pair[0], "--key-file", pair[1], "--trusted-ca-file", issuer.cert, *options],
                  authority=issuer, shown=issuer.client("trainer"), name=name, healthy=healthy)


def test_certificates_alone_with_a_common_role_and_a_line_for_shards(context):
    """The server's own certificate is what it shows to other shards."""
    tokens = TokenFile(context)
    tokens.add("cert peer ampd")
    cluster = mutual(context, authority(context), host(), "--client-cert-auth", "--client-cert-role", "worker",
                     "--token-file", tokens.path)
    trains(cluster)
    ends(cluster)


def test_a_certificate_of_its_own_for_shards(context):
    """--peer-cert-file, where the server's is for servers alone; all certificates without a line are shards."""
    issuer, tokens, name = authority(context), TokenFile(context), host()
    tokens.add("cert operator trainer")
    peer = issuer.client("shard")
    cluster = mutual(context, issuer, name, "--client-cert-role", "peer", "--token-file", tokens.path, "--peer-cert-file",
                     peer[0], "--peer-key-file", peer[1], usages="extendedKeyUsage=serverAuth")
    trains(cluster)
    ends(cluster)


def test_libampclient_trains_on_a_cluster_with_tls_and_tokens(context):
    cluster, tokens = one_sided(context, 3)
    program = context.bin_dir.parent / "tests" / "crash" / "crash_worker"
    environment = dict(os.environ, AMPD_CACERT=str(cluster.authority.cert),
                       AMPD_TOKEN_FILE=str(tokens.client_file(tokens.new("worker"))))
    cluster.hang_up(0, "token file reloaded")
    cluster.hang_up(1, "token file reloaded")
    cluster.hang_up(2, "token file reloaded")
    said = [open(cluster.folder / f"worker-{rank}", "w+b") for rank in range(WORLD)]
    workers = [subprocess.Popen([*ampd_testing.DIE_WITH_PARENT, program, cluster.addresses[1], "m", str(rank), str(WORLD), "20",
                                 "4", "checkpoint"], env=environment, stdin=subprocess.DEVNULL, stdout=said[rank],
                                stderr=said[rank]) for rank in range(WORLD)]
    codes = [worker.wait(60) for worker in workers]
    for file in said:
        file.seek(0)
    assert codes == [0] * WORLD, [file.read()[-600:] for file in said]
    out = subprocess.run([context.bin_dir / "ampctl", "--endpoint", cluster.addresses[2], "--cacert", cluster.authority.cert,
                          "--token-file", tokens.client_file(cluster.token), "checkpoint", "export", "m",
                          cluster.folder / "m.safetensors"], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                         stderr=subprocess.STDOUT, timeout=60, check=False, encoding="utf-8")
    assert out.returncode == 0 or "shard 0" in out.stdout, out.stdout
    ends(cluster)


# ---- it does not ----

def test_a_wrong_token_is_told_on_both_sides_and_can_be_mended(context):
    tokens, token, peer = tokens_of(context)
    wrong = tokens.client_file("no-shard-has-this-token")
    options = ["--token-file", tokens.path]
    cluster = Secure(context, 2, options, own=lambda k: ["--peer-token-file", wrong if k == 1 else peer], token=token,
                     healthy=False)
    cluster.says(1, "no session with shard 0", cluster.addresses[0], "UNAUTHENTICATED", "token")
    cluster.says(0, "calls were refused", "TOKEN_UNKNOWN", "PeerService/Session")
    assert "no-shard-has" not in cluster.log(0) + cluster.log(1), "a token is in the log"
    for k in range(2):
        cluster.api(k).GetStatus()
    tokens.replace(wrong, peer.read_text().strip())
    cluster.hang_up(1, "token for other shards reloaded")
    cluster.wait_until_healthy()
    trains(cluster)
    assert cluster.log(1).count("no session with shard 0") <= 3, cluster.log(1)
    ends(cluster)


def test_a_token_of_another_role_is_told_on_both_sides(context):
    tokens, token, _ = tokens_of(context)
    worker = tokens.client_file(tokens.new("worker"))
    cluster = Secure(context, 2, ["--token-file", tokens.path, "--peer-token-file", worker], token=token,
                     healthy=False)
    cluster.says(1, "no session with shard 0", "PERMISSION_DENIED", "needs the role peer")
    cluster.says(0, "calls were refused", "ROLE_REQUIRED")
    ends(cluster)


def test_sessions_that_are_refused_again_and_again_are_told_once_in_ten_seconds(context):
    """By a shard that asks who calls, and by a process that is not shard 0: in the lists of these two, each has the other one there."""
    tokens, token, _ = tokens_of(context)
    worker = tokens.client_file(tokens.new("worker"))
    refused = Secure(context, 2, ["--token-file", tokens.path, "--peer-token-file", worker], token=token, healthy=False)
    name = host()
    crossed = Secure(context, 2, ["--shard", "1"], name=name, healthy=False,
                     own=lambda k: ["--peers", f"{name}:{PORT + 1 - k},{name}:{PORT + k}"])
    refused.says(1, "no session with shard 0", "needs the role peer")
    for k in range(2):
        crossed.says(k, "no session with shard 0", "this is not shard 0")
    wait_s(4)
    assert refused.log(1).count("needs the role peer") <= 2, refused.log(1)
    for k in range(2):
        assert crossed.log(k).count("this is not shard 0") <= 2, crossed.log(k)
    ends(refused)


def test_a_wrong_authority_is_told_on_both_sides(context):
    tokens, token, peer = tokens_of(context)
    issuer, other, name = authority(context), authority(context), host()
    pair = issuer.issue("ampd", f"subjectAltName=IP:{name}\n{BOTH_USAGES}")
    cluster = Secure(context, 2, ["--cert-file", pair[0], "--key-file", pair[1], "--token-file", tokens.path,
                                  "--peer-token-file", peer],
                     own=lambda k: ["--peer-trusted-ca-file", other.cert if k == 1 else issuer.cert],
                     authority=issuer, token=token, name=name, healthy=False)
    cluster.says(1, "no session with shard 0", "not signed by an authority that is trusted here")
    cluster.says(0, "TLS handshakes failed")
    ends(cluster)


def test_a_certificate_of_another_authority_is_told_on_both_sides(context):
    issuer, other, name = authority(context), authority(context), host()
    pair, stranger = issuer.issue("ampd", f"subjectAltName=IP:{name}\n{BOTH_USAGES}"), other.client("shard")
    cluster = Secure(context, 2, ["--cert-file", pair[0], "--key-file", pair[1], "--trusted-ca-file", issuer.cert,
                                  "--client-cert-role", "peer"],
                     own=lambda k: ["--peer-cert-file", stranger[0], "--peer-key-file", stranger[1]] if k == 1 else [],
                     authority=issuer, shown=issuer.client("trainer"), name=name, healthy=False)
    cluster.says(0, "TLS handshakes failed", "not signed by an authority that is trusted here")
    cluster.says(1, "no session with shard 0", cluster.addresses[0])
    ends(cluster)


def test_a_server_certificate_that_shards_cannot_show_is_warned_of(context):
    issuer, name = authority(context), host()
    cluster = mutual(context, issuer, name, "--client-cert-role", "peer", usages="extendedKeyUsage=serverAuth", healthy=False)
    cluster.says(1, "is not meant for a client", "clientAuth")
    cluster.says(0, "TLS handshakes failed", "is not meant for a client")
    ends(cluster)


def test_plaintext_does_not_meet_tls(context):
    """Shard 1 was given no certificate: it says so, and shard 0 too."""
    tokens, token, peer = tokens_of(context)
    issuer, name = authority(context), host()
    pair = issuer.issue("ampd", f"subjectAltName=IP:{name}\n{BOTH_USAGES}")
    tls = ["--cert-file", pair[0], "--key-file", pair[1], "--peer-trusted-ca-file", issuer.cert]

    class Mixed(Secure):
        def connect(self, k):
            return super().connect(k) if k == 0 else grpc.insecure_channel(self.addresses[k],
                                                                           options=ampd_testing.CHANNEL_OPTIONS)

    cluster = Mixed(context, 2, ["--token-file", tokens.path, "--peer-token-file", peer],
                    own=lambda k: tls if k == 0 else [], authority=issuer, token=token, name=name, healthy=False)
    cluster.says(1, "no session with shard 0", cluster.addresses[0])
    cluster.says(0, "TLS handshakes failed")
    ends(cluster)


# ---- SIGHUP ----

def test_certificates_are_replaced_by_sighup(context):
    """Everything is signed by another authority afterwards: a running shard must have read it to meet a new shard 0."""
    issuers, name, folder = [authority(context), authority(context)], host(), context.work / "replaced"
    folder.mkdir()
    cert, key, trusted = folder / "ampd.crt", folder / "ampd.key", folder / "ca.crt"

    def use(issuer):
        replace_pair(cert, key, issuer.issue("ampd", f"subjectAltName=IP:{name}\n{BOTH_USAGES}"))
        trusted.write_bytes(issuer.cert.read_bytes())
        return issuer.client("trainer")

    tokens = TokenFile(context)
    tokens.add("cert peer ampd")
    shown = use(issuers[0])
    cluster = Secure(context, 2, ["--cert-file", cert, "--key-file", key, "--trusted-ca-file", trusted, "--client-cert-auth",
                                  "--client-cert-role", "worker", "--token-file", tokens.path],
                     authority=issuers[0], shown=shown, name=name)
    trains(cluster, name="first")
    cluster.shown, cluster.authority = use(issuers[1]), issuers[1]
    for k in range(2):
        cluster.hang_up(k, "certificates for other shards reloaded")
        assert "certificates reloaded" in cluster.log(k)
    assert "session is over" not in cluster.log(1), "a session that is there goes on"
    cluster.kill(0)
    cluster.start(0)
    cluster.channels[1].close()
    cluster.channels[1] = cluster.connect(1)
    cluster.wait_until_healthy()
    trains(cluster, name="second")
    ends(cluster)


def test_a_session_whose_token_was_taken_back_ends_with_sighup(context):
    tokens, token, peer = tokens_of(context)
    cluster = Secure(context, 2, ["--token-file", tokens.path, "--peer-token-file", peer], token=token)
    trains(cluster, name="first")
    tokens.remove("peer")
    cluster.hang_up(0, "open calls were ended")
    cluster.says(1, "no session with shard 0", "UNAUTHENTICATED")
    tokens.replace(peer, tokens.new("peer", "another"))
    cluster.hang_up(0, "token file reloaded")
    cluster.hang_up(1, "token for other shards reloaded")
    trains(cluster, name="second")
    ends(cluster)


def test_files_that_cannot_be_used_leave_what_was_in_use(context):
    tokens, token, peer = tokens_of(context)
    cluster = Secure(context, 2, ["--token-file", tokens.path, "--peer-token-file", peer], token=token)
    good = peer.read_text()
    for fault in (lambda: peer.write_text("short\n"), lambda: (peer.unlink(), os.mkfifo(peer)), peer.unlink):
        fault()
        cluster.hang_up(1, "the token for other shards could not be reloaded")
        peer.unlink(missing_ok=True)
        peer.write_text(good)
    cluster.kill(0)  # the session begins anew, with the token that shard 1 had
    cluster.start(0)
    cluster.wait_until_healthy()
    trains(cluster)
    ends(cluster)


# ---- options ----

def test_options_that_do_not_fit_are_refused_at_start(context):
    tokens, _, peer = tokens_of(context)
    issuer = authority(context)
    cert, key = issuer.server()
    tls = ["--cert-file", cert, "--key-file", key]
    local, remote = ["--peers", "127.0.0.1:1,127.0.0.1:2", "--shard", "0"], ["--peers", "10.0.0.1:1,10.0.0.2:2", "--shard", "0"]
    empty = context.work / "empty-token"
    empty.write_text("\n")
    folder = context.folder()
    for arguments, *words in (
            (["--peer-token-file", peer], "--peers"),
            ([*local, "--token-file", tokens.path], "--peer-token-file"),
            ([*local, *tls, "--token-file", tokens.path], "--peer-token-file"),
            ([*local, "--peer-cert-file", cert], "--peer-key-file"),
            ([*local, "--peer-cert-file", cert, "--peer-key-file", key], "--cert-file"),
            ([*local, "--peer-trusted-ca-file", issuer.cert], "--cert-file"),
            (["--peers", "unix:/a,unix:/b", "--shard", "0", *tls], "unix socket"),
            ([*remote, "--token-file", tokens.path, "--peer-token-file", peer], "--insecure"),
            ([*local, "--token-file", tokens.path, "--peer-token-file", "/nowhere"], "/nowhere"),
            ([*local, "--token-file", tokens.path, "--peer-token-file", empty], str(empty), "one token"),
            ([*local, *tls, "--peer-cert-file", cert, "--peer-key-file", issuer.key], "is not the key of"),
            ([*local, *tls, "--peer-trusted-ca-file", "/nowhere"], "/nowhere")):
        code, lines = ampd_testing.start_and_fail(context.bin_dir, "--data-dir", folder, "--listen", "127.0.0.1:0", *arguments)
        assert code == 2 and len(lines) == 1 and all(word in lines[0] for word in words), (arguments, code, lines)
    assert not folder.exists()


def test_a_client_sends_its_token_to_no_shard_elsewhere_in_plaintext(context):
    """The first endpoint is this machine; where the other shards are, the server says."""
    tokens, token, peer = tokens_of(context)
    cluster = Secure(context, 1, ["--token-file", tokens.path, "--peer-token-file", peer, "--insecure"], token=token,
                     peers="10.255.255.1:7420,10.255.255.2:7420", healthy=False)
    program = context.bin_dir.parent / "tests" / "crash" / "crash_worker"
    done = subprocess.run([program, cluster.addresses[0], "m", "0", "1", "4", "2", "checkpoint"],
                          env=dict(os.environ, AMPD_TOKEN_FILE=str(tokens.client_file(token))), stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60, check=False, encoding="utf-8")
    assert done.returncode != 0 and "unencrypted" in done.stdout and "10.255.255.1" in done.stdout, done


if __name__ == "__main__":
    if shutil.which("openssl") is None:
        print("SKIPPED: test_server_peers: no openssl (package openssl)")
        sys.exit(77)
    run(globals())
