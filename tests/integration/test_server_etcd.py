#!/usr/bin/python3
"""An etcd that speaks TLS and asks who calls: certificates, users with passwords and roles, what is wrong with them, and shards
that speak TLS and show tokens to one another while their places are in it.

    test_server_etcd.py BIN_DIR [NAME ...]
"""
import os
os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # handshakes that fail are meant to
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time

import ampd_testing
from ampd_testing import PATIENCE, eventually, grpc, run
from auth_testing import WithToken
from etcd_testing import START_TIMEOUT_S, Cluster, Etcd, Members, Process, wait_s
from test_server_cluster import new_job, resume, trained
from test_server_peers import BOTH_USAGES, authority, host, tokens_of
from test_server_shards import WORLD, undisturbed

DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs" / "security.md"
USER, PASSWORD = "ampd", "correct horse: battery"
TOKEN_S = 2  # of a token that nobody uses
READWRITE = 2
LONG_LEASE = f"{15 * PATIENCE}s"  # on a busy machine etcd needs seconds to start


# ---- etcd's users, by its own calls ----

def field(number, value):
    """A field of a message: bytes or text, or a number below 128."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    data = value.encode() if isinstance(value, str) else value
    return bytes([number << 3 | 2, len(data)]) + data


def ask(etcd, method, *fields):
    channel = grpc.insecure_channel(f"127.0.0.1:{etcd.port}")
    try:
        channel.unary_unary(f"/etcdserverpb.Auth/{method}")(b"".join(fields), timeout=START_TIMEOUT_S)
    finally:
        channel.close()


def allow(etcd, prefix):
    """USER may read and write below the prefix alone."""
    ask(etcd, "UserAdd", field(1, USER), field(2, PASSWORD))
    ask(etcd, "RoleAdd", field(1, "shards"))
    end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    ask(etcd, "RoleGrantPermission", field(1, "shards"), field(2, field(1, READWRITE) + field(2, prefix) + field(3, end)))
    ask(etcd, "UserGrantRole", field(1, USER), field(2, "shards"))


def allow_as_documented(etcd, prefix):
    """The same by the commands of docs/security.md; the password, which etcdctl asks for at a terminal, is given with the name."""
    block, = (block for block in re.findall(r"^```sh\n(.*?)^```", DOCUMENT.read_text(), re.M | re.S) if block.startswith("etcdctl "))
    commands = block.replace("user add ampd", f"user add '{USER}:{PASSWORD}'").replace("ampd/NAME/", prefix)
    assert commands.count(prefix) == 1 and commands.count(PASSWORD) == 1, commands
    environment = dict(os.environ, ETCDCTL_API="3", ETCDCTL_ENDPOINTS=f"127.0.0.1:{etcd.port}")
    done = subprocess.run(["sh", "-ec", commands], env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, timeout=START_TIMEOUT_S, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stdout


def with_users(context, prefix="ampd/c/", make=allow):
    """An etcd that knows root and USER."""
    etcd = Etcd(context, options=["--auth-token-ttl", str(TOKEN_S), "--bcrypt-cost", "4"])  # else a password takes a busy machine long
    make(etcd, prefix)
    ask(etcd, "UserAdd", field(1, "root"), field(2, PASSWORD))
    ask(etcd, "RoleAdd", field(1, "root"))
    ask(etcd, "UserGrantRole", field(1, "root"), field(2, "root"))
    ask(etcd, "AuthEnable")
    return etcd


def user_file(context, text=f"{USER}:{PASSWORD}\n", path=None):
    context.count += 1
    path = path or context.work / f"user-{context.count}"
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.rename(path)
    return path


def train_on(cluster, expected):
    """A model, and three steps of it, whose results are those of a run of one shard."""
    job = new_job(cluster)
    assert trained(job, 1, 3) == [result for result, _ in expected[:3]]
    return job


def check_held(cluster):
    """Longer than the lease: who could not speak with etcd meanwhile is no shard any more."""
    wait_s(int(LONG_LEASE[:-1]) + 2)
    assert all(process.process.poll() is None for process in cluster.processes), [p.log()[-1500:] for p in cluster.processes]


def check_no_secret(cluster):
    for process in cluster.processes:
        assert "horse" not in process.log(), process.log()[-1000:]


# ---- TLS ----

def pair_of(issuer):
    return issuer.issue("etcd", f"subjectAltName=IP:127.0.0.1\n{BOTH_USAGES}")  # its gateway calls itself with it


def test_an_etcd_with_tls(context):
    """--etcd-cacert alone; its certificate is looked at."""
    issuer = authority(context)
    etcd = Etcd(context, pair_of(issuer))
    cluster = Cluster(context, 2, etcd=etcd, options=["--etcd-cacert", issuer.cert])
    train_on(cluster, undisturbed(context))
    other = authority(context)
    stranger = Process(cluster, "other", ["--etcd-cacert", other.cert])
    cluster.processes.append(stranger)
    stranger.says("etcd cannot be asked, trying again")
    assert "not signed by an authority that is trusted" in stranger.log(), stranger.log()[-1500:]
    plain = Cluster.__new__(Cluster)
    plain.__dict__.update(cluster.__dict__, url=cluster.url.replace("etcds", "etcd"), processes=[])
    context._own.append(plain)
    plain.processes.append(Process(plain, "plain", []))
    plain.processes[0].says("etcd cannot be asked, trying again")
    assert [process.terminate() for process in (stranger, *cluster.processes[:2])] == [0] * 3


def test_an_etcd_that_wants_certificates(context):
    """And a new authority by SIGHUP: both the etcd and what is shown to it are of another one then."""
    issuers, folder = [authority(context), authority(context)], context.work / "etcd-files"
    folder.mkdir()
    names = [folder / name for name in ("ca.crt", "shard.crt", "shard.key", "etcd.crt", "etcd.key")]

    def use(issuer):
        for name, source in zip(names, (issuer.cert, *issuer.client("shard"), *pair_of(issuer))):
            fresh = name.with_suffix(".new")
            fresh.write_bytes(source.read_bytes())
            fresh.rename(name)

    use(issuers[0])
    ca, cert, key = names[:3]
    etcd = Etcd(context, names[3:], ["--client-cert-auth", "--trusted-ca-file", ca])
    cluster = Cluster(context, 2, etcd=etcd, options=["--etcd-cacert", ca, "--etcd-cert", cert, "--etcd-key", key,
                                                      "--cluster-lease", LONG_LEASE])
    nobody = Process(cluster, "nobody", ["--etcd-cacert", ca])
    cluster.processes.append(nobody)
    nobody.says("etcd cannot be asked, trying again")
    expected = undisturbed(context)
    job = train_on(cluster, expected)
    use(issuers[1])
    for process in cluster.processes[:2]:
        process.send(signal.SIGHUP)
        process.says("certificates for etcd reloaded")
    etcd.kill()
    etcd.start()
    check_held(cluster)
    resume(job, expected)
    assert [process.terminate() for process in cluster.processes] == [0] * 3


def test_members_that_want_certificates_one_of_which_goes_in_a_step(context):
    """The leader, to whom the leases are bound: the step is decided, and a shard that is lost after it gives way to a standby."""
    expected = undisturbed(context)
    issuer = authority(context)
    cert, key = issuer.client("shard")
    etcd = Members(context, 3, pair_of(issuer), issuer.cert, ["--client-cert-auth", "--trusted-ca-file", issuer.cert])
    cluster = Cluster(context, 2, fixed=False, etcd=etcd,
                      options=["--etcd-cacert", issuer.cert, "--etcd-cert", cert, "--etcd-key", key, "--checkpoint-dir",
                               context.folder(), "--cluster-lease", f"{4 * PATIENCE}s"])
    standby = cluster.add()
    standby.says("this process stands by")
    job = new_job(cluster)
    workers = [job.join(rank) for rank in range(WORLD)]
    job.train(workers, 1, 2)
    headers = [job.pull(joined, 3)[0] for joined in workers]
    calls = job.start_push(workers[0], 3, headers[0])
    etcd.leader().kill()
    calls += job.start_push(workers[1], 3, headers[1])
    decided = job.all(calls)
    assert all(answer.result == decided[0].result for answer in decided)
    eventually(lambda: cluster.api(0).GetModel(model="m").status.durable_step == 2, "step 2 is durable")
    lost = cluster.of(1)
    lost.kill()
    standby.serves()
    assert standby.shard() == 1
    cluster.wait_until_healthy()
    resume(job, expected)
    assert [process.terminate() for process in cluster.processes if process is not lost] == [0, 0]


# ---- users ----

def test_a_user_with_a_password(context):
    """Tokens that have run out, and those that an etcd which was started anew does not know, are asked for again."""
    expected = undisturbed(context)
    etcd = with_users(context)
    cluster = Cluster(context, 2, fixed=False, etcd=etcd, options=["--etcd-user-file", user_file(context),
                                                                   "--cluster-lease", LONG_LEASE])
    standby = cluster.add()
    standby.says("this process stands by")
    job = train_on(cluster, expected)
    wait_s(3 * TOKEN_S)
    etcd.kill()
    etcd.start()
    check_held(cluster)
    resume(job, expected)
    check_no_secret(cluster)
    assert [process.terminate() for process in (standby, *cluster.processes[:2])] == [0] * 3


def test_a_wrong_password_is_told_and_can_be_mended(context):
    etcd, path = with_users(context), user_file(context, f"{USER}:wrong\n")
    cluster = Cluster(context, 2, etcd=etcd, options=["--etcd-user-file", path], healthy=False)
    for process in cluster.processes:
        process.says("authentication failed, invalid user ID or password")
    user_file(context, path=path)
    cluster.wait_until_healthy()
    train_on(cluster, undisturbed(context))
    check_no_secret(cluster)


def test_the_commands_of_the_document_give_a_user_what_it_needs(context):
    etcd = with_users(context, make=allow_as_documented)
    cluster = Cluster(context, 2, etcd=etcd, options=["--etcd-user-file", user_file(context)])
    assert [process.terminate() for process in cluster.processes] == [0, 0]


def test_nobody_where_a_user_is_wanted_and_one_without_the_rights(context):
    etcd = with_users(context, prefix="ampd/other/")
    cluster = Cluster(context, 1, etcd=etcd, healthy=False)
    cluster.processes[0].says("user name is empty")
    cluster.processes.append(Process(cluster, "other", ["--etcd-user-file", user_file(context)]))
    cluster.processes[1].says("permission denied")
    assert [process.terminate() for process in cluster.processes] == [0, 0]


def test_a_user_where_nobody_is_asked_is_warned_of(context):
    cluster = Cluster(context, 2, options=["--etcd-user-file", user_file(context)])
    assert "etcd does not require authentication" in cluster.log(0)
    train_on(cluster, undisturbed(context))


# ---- between the shards, too ----

def test_shards_with_tls_and_tokens_whose_places_are_in_etcd(context):
    """A killed one gives way to a standby, whose address nobody knew before: sessions are made with TLS and the token there, too."""
    expected = undisturbed(context)
    tokens, token, peer = tokens_of(context)
    issuer, name = authority(context), host()
    pair = issuer.issue("ampd", f"subjectAltName=IP:{name}\n{BOTH_USAGES}")
    shown = issuer.issue("shard", "extendedKeyUsage=clientAuth")
    etcd = Etcd(context)
    cluster = Cluster.__new__(Cluster)
    cluster.__dict__.update(program=context.bin_dir / "ampd", count=2, name="c", folder=context.folder(), etcd=etcd,
                            url=f"etcd://127.0.0.1:{etcd.port}/c", processes=[])
    cluster.folder.mkdir()
    context._own.append(cluster)
    options = ["--cert-file", pair[0], "--key-file", pair[1], "--trusted-ca-file", issuer.cert, "--client-cert-role", "read",
               "--token-file", tokens.path, "--peer-token-file", peer, "--peer-cert-file", shown[0], "--peer-key-file", shown[1],
               "--peer-trusted-ca-file", issuer.cert, "--checkpoint-dir", context.folder()]

    class Secure(Process):
        def start(self):
            super().start()
            self.channel.close()
            self.channel = grpc.secure_channel(self.address, grpc.ssl_channel_credentials(issuer.cert.read_bytes()),
                                               options=ampd_testing.CHANNEL_OPTIONS)
            grpc.channel_ready_future(self.channel).result(timeout=START_TIMEOUT_S)  # a handshake goes on while somebody waits

        def api(self):
            return ampd_testing.Api(WithToken(self.channel, f"Bearer {token}"))

    def add():
        number = len(cluster.processes)
        process = Secure.__new__(Secure)
        process.cluster, process.name, process.channel = cluster, f"p{number}", None
        process.address, process.log_path = f"{name}:{7420 + number}", cluster.folder / f"p{number}.log"
        process.options = ["--listen", process.address, *options]
        process.start()
        cluster.processes.append(process)
        return process

    add()
    add()
    cluster.wait_until_healthy()
    standby = add()
    standby.says("this process stands by")
    job = train_on(cluster, expected)
    eventually(lambda: cluster.api(0).GetModel(model="m").status.durable_step == 2, "step 2 is durable")
    for k in (1, 0):
        lost = cluster.of(k)
        killed_s = time.time()
        lost.kill()
        standby.serves()
        assert standby.shard() == k
        since = standby.api().GetCluster(local=True).shards[k].since
        assert since.ToMicroseconds() / 1e6 > killed_s, (since, killed_s)  # not since the process stands by
        cluster.wait_until_healthy()
        before = lost.log().count("this process stands by")
        lost.start()
        lost.says("this process stands by", before + 1)
        standby = lost
    resume(job, expected)
    said = "".join(process.log() for process in cluster.processes)
    assert "UNAUTHENTICATED" not in said and "PERMISSION_DENIED" not in said, said[-3000:]


# ---- options ----

def test_options_that_do_not_fit_are_refused_at_start(context):
    issuer, user = authority(context), user_file(context)
    cert, key = issuer.client("shard")
    folder, empty = context.folder(), user_file(context, "nobody\n")
    plain, tls = ["--cluster", "etcd://127.0.0.1:1/c", "--shards", "2"], ["--cluster", "etcds://127.0.0.1:1/c", "--shards", "2"]
    remote = ["--cluster", "etcd://10.0.0.1:1/c", "--shards", "2"]
    for arguments, *words in (
            (["--etcd-cacert", issuer.cert], "--cluster"), (["--etcd-user-file", user], "--cluster"),
            ([*plain, "--etcd-cacert", issuer.cert], "etcds://"), ([*plain, "--etcd-cert", cert, "--etcd-key", key], "etcds://"),
            ([*tls, "--etcd-cert", cert], "--etcd-key"), ([*tls, "--etcd-key", key], "--etcd-cert"),
            ([*remote, "--etcd-user-file", user], "etcds://", "--insecure"),
            ([*tls, "--etcd-cacert", "/nowhere"], "/nowhere"), ([*tls, "--etcd-cert", "/nowhere", "--etcd-key", key], "/nowhere"),
            ([*tls, "--etcd-user-file", "/nowhere"], "/nowhere"), ([*tls, "--etcd-user-file", empty], str(empty), "NAME:PASSWORD"),
            (["--cluster", "https://127.0.0.1:1/c", "--shards", "2"], "etcds://")):
        code, lines = ampd_testing.start_and_fail(context.bin_dir, "--data-dir", folder, *arguments)
        assert code == 2 and len(lines) == 1 and all(word in lines[0] for word in words), (arguments, code, lines)
    assert not folder.exists()


def test_checking_the_options_opens_no_file(context):
    """At a start with --check-config, and at SIGHUP, when the file of etcd's user may be on its way."""
    user, config = user_file(context), context.folder()
    config.write_text("log-level: info\n", encoding="utf-8")
    cluster = Cluster(context, 1, options=["--etcd-user-file", user, "--config", config])
    user.unlink()
    code, lines = ampd_testing.start_and_fail(context.bin_dir, "--data-dir", context.folder(), "--cluster", cluster.url,
                                              "--shards", "1", "--etcd-user-file", user, "--check-config")
    assert (code, lines) == (0, []), (code, lines)
    config.write_text("log-level: debug\n", encoding="utf-8")
    cluster.of(0).send(signal.SIGHUP)
    eventually(lambda: 'option=log-level was="info" is="debug"' in cluster.log(0), "the level has changed")


if __name__ == "__main__":
    if shutil.which("openssl") is None:
        print("SKIPPED: test_server_etcd: no openssl (package openssl)")
        sys.exit(77)
    run(globals())
