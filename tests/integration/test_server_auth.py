#!/usr/bin/python3
"""Tokens, roles and users of the unix socket, on a real ampd: who is let in, who is not, and what SIGHUP changes.

    test_server_auth.py BIN_DIR [NAME ...]
"""
import datetime
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import threading

import ampd_testing
from ampd_testing import (CALL_TIMEOUT_S, CHANNEL_OPTIONS, METHODS, Api, Code, Refusal, admin, eventually, grpc, refused,
                          run, spec, start_and_fail, DIE_WITH_PARENT)
from auth_testing import ROLES, TokenFile, WithToken, api_with, command, hang_up, methods_def


DEPLOY = pathlib.Path(__file__).resolve().parents[2] / "deploy"
FLOOD = 10000
FLOOD_IN_FLIGHT = 200
NOBODY = 65534


def tokens_and_server(context):
    """(token file, server on plaintext loopback, role -> token)."""
    tokens = TokenFile(context)
    by_role = {role: tokens.new(role) for role in ROLES}
    return tokens, context.server("--token-file", tokens.path), by_role


def memory_kib(server, what="VmRSS"):
    status = open(f"/proc/{server.process.pid}/status", encoding="ascii").read()
    return int(re.search(rf"{what}:\s+(\d+)", status)[1])


def under_sanitizer(server):
    """AddressSanitizer maps terabytes, and keeps freed memory for a while."""
    return memory_kib(server, "VmSize") > 1 << 32


# ---- roles ----

def harmless_request(method):
    """What is asked for without a field; nobody may end this server."""
    if method in ("Load", "Push"):
        return ([],)
    return (admin.DrainRequest(grace_ms=2 ** 40),) if method == "Drain" else ()


def test_each_role_may_call_what_methods_def_says_and_nothing_else(context):
    _, server, by_role = tokens_and_server(context)
    ladder = ("read", "worker", "operator")
    rows = list(methods_def())
    assert {row[1] for row in rows} == set(METHODS), "methods.def and the schema differ"
    pairs = 0
    for _, method, needed, peers_too in rows:
        for role in (*ROLES, None):
            api = api_with(server.channel, by_role.get(role))
            code = Code.OK
            try:
                started = api.start(method, *harmless_request(method))
                started.all() if hasattr(started, "all") else started.result()
            except grpc.RpcError as error:
                refusal, code = Refusal(error), error.code()
            if role is None:
                expected = code == Code.UNAUTHENTICATED and refusal.reason == "TOKEN_MISSING"
            elif role == needed or (role == "peer" and peers_too) or (role in ladder and needed in ladder and ladder.index(role) > ladder.index(needed)):
                expected = code not in (Code.UNAUTHENTICATED, Code.PERMISSION_DENIED, Code.UNIMPLEMENTED)
            else:
                expected = (code == Code.PERMISSION_DENIED and refusal.reason == "ROLE_REQUIRED"
                            and f"/{method} needs the role {needed}" in refusal.text)
            assert expected, f"{role} calls {method}, which needs {needed}: {code}"
            pairs += 1
    assert pairs == len(rows) * 5


def test_health_is_open_and_reflection_needs_read(context):
    _, server, by_role = tokens_and_server(context)
    assert Api(server.channel).health() == 1
    for version in ("v1", "v1alpha"):
        def reflect(channel):
            call = channel.stream_stream(f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo")
            return list(call(iter([b"\x3a\x00"]), timeout=CALL_TIMEOUT_S))  # list_services = ""

        refused(lambda: reflect(server.channel), Code.UNAUTHENTICATED, "TOKEN_MISSING")
        refused(lambda: reflect(WithToken(server.channel, "Bearer " + by_role["peer"])), Code.PERMISSION_DENIED)
        answers = reflect(WithToken(server.channel, "Bearer " + by_role["read"]))
        assert b"ampd.v1.ParameterService" in answers[0]


# ---- tokens that are wrong ----

def test_wrong_tokens_are_refused_for_their_reason_and_never_shown(context):
    tokens = TokenFile(context)
    good = tokens.new("operator", "good")
    expired = tokens.new("operator", "old", "--expires", "2020-01-01")
    later = tokens.new("operator", "later", "--expires", "2999-12-31T23:59:59Z")
    server = context.server("--token-file", tokens.path, "--log-level", "debug")
    api_with(server.channel, good).GetStatus()
    api_with(server.channel, later).GetStatus()
    cases = [("TOKEN_MALFORMED", good), ("TOKEN_MALFORMED", "Basic " + good), ("TOKEN_MALFORMED", "Bearer x"),
             ("TOKEN_MALFORMED", "Bearer " + "a" * 1025), ("TOKEN_MALFORMED", "Bearer " + "a" * 6000),
             ("TOKEN_MALFORMED", f"Bearer {good} {good}"), ("TOKEN_UNKNOWN", "Bearer " + "a" * 1024),
             ("TOKEN_UNKNOWN", f"Bearer {good}x"), ("TOKEN_UNKNOWN", f"Bearer {good[:-1]}"),
             ("TOKEN_UNKNOWN", "Bearer " + good.swapcase()), ("TOKEN_EXPIRED", f"Bearer {expired}")]
    for reason, value in cases:
        refusal = refused(Api(WithToken(server.channel, value)).GetStatus, Code.UNAUTHENTICATED, reason)
        assert good[5:] not in refusal.text and expired[5:] not in refusal.text, refusal
    refused(Api(WithToken(server.channel, f"Bearer {good}", f"Bearer {good}")).GetStatus, Code.UNAUTHENTICATED,
            "TOKEN_MALFORMED")
    code, lines = server.terminate(), server.log()
    assert code == 0
    for token in (good, expired, later):
        assert token[5:] not in lines and token.swapcase()[5:] not in lines, "a token is in the log"


def test_ten_thousand_wrong_tokens_are_counted_and_fill_no_log(context):
    _, server, by_role = tokens_and_server(context)
    wrong = [WithToken(server.channel, f"Bearer {'wrong-token-number'}-{i % 997}") for i in range(997)]
    path, request_type, response_type = METHODS["GetStatus"]
    request = request_type()
    api_with(server.channel, by_role["read"]).GetStatus()
    refused(Api(wrong[0]).GetStatus, Code.UNAUTHENTICATED, "TOKEN_UNKNOWN")
    before, codes, waiting = memory_kib(server), set(), []
    calls = [channel.unary_unary(path, request_serializer=request_type.SerializeToString,
                                 response_deserializer=response_type.FromString) for channel in wrong]
    for i in range(FLOOD - 1):
        waiting.append(calls[i % len(calls)].future(request, timeout=CALL_TIMEOUT_S))
        if len(waiting) == FLOOD_IN_FLIGHT:
            codes |= {call.code() for call in waiting}
            waiting = []
            api_with(server.channel, by_role["read"]).GetStatus()  # those who may go on meanwhile
    codes |= {call.code() for call in waiting}
    assert codes == {Code.UNAUTHENTICATED}, codes
    grown = memory_kib(server) - before
    assert grown < 4096 or under_sanitizer(server), f"{grown} KiB more after {FLOOD} wrong tokens"
    assert server.terminate() == 0
    lines = [line for line in server.log().splitlines() if "refused" in line]
    assert 2 <= len(lines) <= 12, f"{len(lines)} lines about {FLOOD} refusals"
    counted = sum(int(re.search(r"(?:count|calls)=(\d+)", line)[1]) for line in lines)
    assert counted == FLOOD, f"{counted} of {FLOOD} were counted:\n" + "\n".join(lines)


# ---- SIGHUP ----

def test_a_removed_token_is_refused_from_the_next_call_on_the_same_connection(context):
    tokens, server, by_role = tokens_and_server(context)
    api = api_with(server.channel, by_role["worker"])
    model = context.model("kept", server=_As(server, by_role["worker"]))
    worker = model.worker()
    watch = api.start("WatchSteps", model="kept")
    assert worker.train({"w": [1.0] * 4}).step == 1
    watch.next()
    tokens.remove("worker")
    hang_up(server, "token file reloaded")
    refused(lambda: api.GetModel(model="kept"), Code.UNAUTHENTICATED, "TOKEN_UNKNOWN")
    # A stream that it has begun ends; and another token goes on with the same worker.
    refused(watch.next, Code.UNAUTHENTICATED, "TOKEN_UNKNOWN")
    fresh = tokens.new("worker", "second")
    hang_up(server, "token file reloaded")
    model.api = api_with(server.channel, fresh)
    assert worker.train({"w": [1.0] * 4}).step == 2
    with server.connect() as other:
        watch = api_with(other, fresh).start("WatchSteps", model="kept", from_step=2)
        assert watch.next().row.step == 2
        hang_up(server, "token file reloaded")  # nothing has changed for it
        worker.train({"w": [1.0] * 4})
        assert watch.next().row.step == 3
        watch.cancel()


def unsent(channel, token, path, first=()):
    """A stream of requests that has begun with those, and goes on when the event is set; (the call, the event)."""
    more = threading.Event()

    def requests():
        yield from first
        more.wait(CALL_TIMEOUT_S)

    call = channel.stream_stream(path)(requests(), timeout=CALL_TIMEOUT_S, metadata=(("authorization", f"Bearer {token}"),))
    return call, more


def test_streams_that_have_said_little_end_with_their_token_too(context):
    tokens, server, by_role = tokens_and_server(context)
    reflection, said_some = unsent(server.channel, by_role["worker"],
                                   "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", [b""])
    next(reflection)
    push, said_nothing = unsent(server.channel, by_role["worker"], METHODS["Push"][0])
    api_with(server.channel, by_role["read"]).GetStatus()  # which came behind them on the connection
    tokens.remove("worker")
    hang_up(server, "open calls were ended")
    assert "are no longer allowed\" count=2" in server.log(), server.log()
    for call, event in ((reflection, said_some), (push, said_nothing)):
        refused(lambda call=call: next(call), Code.UNAUTHENTICATED)
        event.set()


def test_streams_end_when_their_token_has_had_its_time(context):
    tokens = TokenFile(context)
    ends = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=5)
    old = tokens.new("worker", "old", "--expires", ends.strftime("%Y-%m-%dT%H:%M:%SZ"))
    lasting = tokens.new("worker", "lasting")
    server = context.server("--token-file", tokens.path)
    model = context.model("kept", server=_As(server, lasting))
    watch, other = (api_with(server.channel, token).start("WatchSteps", model="kept") for token in (old, lasting))
    refused(watch.next, Code.UNAUTHENTICATED, "TOKEN_EXPIRED")
    assert datetime.datetime.now(datetime.timezone.utc) >= ends - datetime.timedelta(seconds=1)
    assert model.worker().train({"w": [1.0] * 4}).step == 1
    assert other.next().row.step == 1
    other.cancel()


class _As:
    """A server as TestModel sees it, with a token in each call."""

    def __init__(self, server, token):
        self.server, self.channel = server, WithToken(server.channel, f"Bearer {token}")


def test_a_file_that_cannot_be_used_leaves_the_old_rules(context):
    tokens, server, by_role = tokens_and_server(context)
    api, good = api_with(server.channel, by_role["read"]), tokens.path.read_text()
    faults = [lambda: tokens.put(good + "nonsense\n"), lambda: tokens.put(good + "token read x " + by_role["read"] + "\n"),
              lambda: tokens.path.chmod(0o620), tokens.path.unlink, lambda: tokens.put("x" * 600000),
              lambda: (tokens.path.unlink(), os.mkfifo(tokens.path, 0o600))]
    for fault in faults:
        fault()
        hang_up(server, "the token file could not be reloaded")
        api.GetStatus()
        tokens.path.unlink(missing_ok=True)
        tokens.put(good)
    assert by_role["read"] not in server.log(), "a token that was pasted into the file is in the log"
    tokens.put("# nobody\n")
    hang_up(server, "the token file has no rule in it")
    refused(api.GetStatus, Code.UNAUTHENTICATED, "TOKEN_UNKNOWN")


def test_sighup_without_files_changes_nothing(context):
    server = context.server()
    hang_up(server, "nothing to reload")
    Api(server.channel).GetStatus()
    assert server.terminate() == 0


def test_a_sighup_while_ampd_starts_waits_until_it_has_started(context):
    folder, log_path = context.folder(), context.work / "starting.log"
    with open(log_path, "w", encoding="utf-8") as log:
        ampd = subprocess.Popen([*DIE_WITH_PARENT, context.bin_dir / "ampd", "--data-dir", folder, "--listen", "127.0.0.1:0"],
                                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        while not folder.exists():  # the first thing that it makes, long after it holds signals back
            assert ampd.poll() is None, f"ampd ended with {ampd.returncode}"
        ampd.send_signal(signal.SIGHUP)
        eventually(lambda: "nothing to reload" in log_path.read_text(), "the signal is heard later")
    finally:
        ampd.terminate()
        assert ampd.wait(CALL_TIMEOUT_S) == 0


# ---- the unix socket ----

def test_users_of_the_socket_are_known_by_the_kernel(context):
    tokens = TokenFile(context)
    tokens.new("operator")
    server = context.server("--token-file", tokens.path)
    path = server.data_dir / "ampd.sock"
    if len(str(path)) > 107:
        print(f"SKIPPED: {path} is too long for a socket")
        return
    with grpc.insecure_channel(f"unix:{path}") as channel:  # ampd's own user
        Api(channel).GetStatus()
        refused(lambda: Api(channel).Checkpoint(model="none"), Code.NOT_FOUND)
    refused(Api(server.channel).GetStatus, Code.UNAUTHENTICATED, "TOKEN_MISSING")
    tokens.add(f"uid read {os.getuid()}")
    hang_up(server, "token file reloaded")
    with grpc.insecure_channel(f"unix:{path}") as channel:
        Api(channel).GetStatus()
        refused(lambda: Api(channel).Checkpoint(model="none"), Code.PERMISSION_DENIED, "ROLE_REQUIRED")


def test_other_users_of_the_socket_have_the_role_of_their_line(context):
    if os.getuid() != 0:
        print("SKIPPED: test_server_auth: only root can call as another user")
        return
    tokens = TokenFile(context)
    server = context.server("--token-file", tokens.path)
    path = server.data_dir / "ampd.sock"
    ampctl = context.work / "ampctl-of-others"
    shutil.copy(context.bin_dir / "ampctl", ampctl)
    for reachable in (context.work, server.data_dir, ampctl):
        reachable.chmod(0o755)

    def status(code):
        return command(context.work, ampctl.name, "--endpoint", f"unix:{path}", "status", code=code, user=NOBODY,
                       group=NOBODY, cwd="/")[1]

    assert f"the user {NOBODY}" in status(64 + 16)
    tokens.add(f"uid peer {NOBODY}")
    hang_up(server, "token file reloaded")
    assert "needs the role read" in status(64 + 7)
    tokens.put(f"uid read *\nuid operator {NOBODY + 1}\n")
    hang_up(server, "token file reloaded")
    status(0)


def test_a_unix_socket_can_be_all_that_is_listened_on(context):
    tokens = TokenFile(context)
    path = context.work / "alone.sock"
    for options, mode in ((("--token-file", tokens.path), 0o666), ((), None)):
        with open(context.work / "alone.log", "w+", encoding="utf-8") as log:
            ampd = subprocess.Popen([*DIE_WITH_PARENT, context.bin_dir / "ampd", "--data-dir", context.folder(), "--listen", f"unix:{path}",
                                     *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
            try:
                with grpc.insecure_channel(f"unix:{path}", options=CHANNEL_OPTIONS) as channel:
                    grpc.channel_ready_future(channel).result(timeout=CALL_TIMEOUT_S)
                    Api(channel).GetStatus()
                if mode is not None:  # who may call is decided by the rules, so that anybody may connect
                    assert path.stat().st_mode & 0o777 == mode
                else:  # nobody is asked, so that only ampd's own user may connect
                    assert path.stat().st_mode & 0o022 == 0
                log.seek(0)
                assert f"address=unix:{path} " in log.read()
            finally:
                ampd.terminate()
                assert ampd.wait(CALL_TIMEOUT_S) == 0
        path.unlink(missing_ok=True)


# ---- programs and options ----

def test_a_container_whose_ampd_has_its_tokens_by_the_environment_is_healthy(context):
    tokens, server, _ = tokens_and_server(context)
    environment = {"AMPD_TOKEN_FILE": str(tokens.path), "AMPCTL_ENDPOINTS": f"127.0.0.1:{server.port}",
                   "PATH": f"{context.bin_dir}:{os.environ['PATH']}"}
    check = json.loads(re.search(r"^HEALTHCHECK .*\n +CMD (.*)$", (DEPLOY / "Dockerfile").read_text(), re.M)[1])
    check[check.index("--endpoint") + 1] = environment["AMPCTL_ENDPOINTS"]
    command(context.bin_dir, *check, env=environment)
    [_, line] = json.loads(re.search(r"^ +test: (.*)$", (DEPLOY / "cluster.yml").read_text(), re.M)[1])
    command(pathlib.Path("/bin"), "sh", "-c", line, env=environment)


def test_ampctl_makes_tokens_and_sends_them(context):
    tokens, server, by_role = tokens_and_server(context)
    endpoint, file = f"127.0.0.1:{server.port}", tokens.client_file(by_role["read"])
    _, said = command(context.bin_dir, "ampctl", "-e", endpoint, "models", code=64 + 16)
    assert "--token-file" in said
    command(context.bin_dir, "ampctl", "-e", endpoint, "--token-file", file, "models")
    command(context.bin_dir, "ampctl", "-e", endpoint, "models", env=dict(os.environ, AMPD_TOKEN_FILE=str(file)))
    _, said = command(context.bin_dir, "ampctl", "-e", endpoint, "checkpoint", "m", "--token-file", file, code=64 + 7)
    assert "the role read" in said and "needs the role operator" in said
    command(context.bin_dir, "ampctl", "-e", endpoint, "ready")  # health asks for no token
    _, said = command(context.bin_dir, "ampctl", "-e", "192.0.2.1:7420", "--token-file", file, "models", code=2)
    assert "unencrypted" in said and by_role["read"] not in said
    made = json.loads(command(context.bin_dir, "ampctl", "-o", "json", "token", "new", "worker", "w")[0])
    tokens.add(made["line"])
    hang_up(server, "token file reloaded")
    refused(lambda: api_with(server.channel, made["token"]).Checkpoint(model="m"), Code.PERMISSION_DENIED)
    for wrong in (("new", "admin", "x"), ("new", "read"), ("new", "read", "two words"), ("make", "read", "x"),
                  ("new", "read", "x", "--expires", "soon"), ("new", "read", "x", "--models", "0"),
                  ("new", "read", "x", "--models", "2K"), ("new", "read", "x", "--memory", "much")):
        command(context.bin_dir, "ampctl", "token", *wrong, code=2)


def test_ampctl_writes_no_line_that_ampd_refuses(context):
    """One such line takes the whole file out of force, with what was revoked in it."""
    tokens = TokenFile(context)
    for option, values in (("--expires", ("2027-02-30", "2027-01-31T25:61:61Z", "1960-01-01", "2027-1-31", "")),
                           ("--models", ("18446744073709551616", "0" * 21 + "1", "-1", "")),
                           ("--memory", ("99999999999G", "17179869184G", "1T", "0G"))):
        for value in values:
            _, said = command(context.bin_dir, "ampctl", "token", "new", "read", "x", option, value, "--append",
                              tokens.path, code=2)
            assert f'{option} is "{value}"; give ' in said, said
    for name in (b"caf\xe9", "\u009b".encode(), "\u202e".encode(), b"a b", b'"', b"\\"):
        _, said = command(context.bin_dir, "ampctl", "token", "new", "read", name, "--append", tokens.path, code=2)
        assert "a name is UTF-8 text without spaces, quotes, " in said, said
    assert tokens.path.read_text() == ""
    token, _ = command(context.bin_dir, "ampctl", "-o", "json", "token", "new", "read", "zo\u00eb")
    assert token.isascii() and " zo\u00eb " in json.loads(token)["line"], token
    most = tokens.new("read", "n" * 255, "--expires", "9999-12-31T23:59:59Z", "--models", "18446744073709551615",
                      "--memory", "18014398509481983K")
    _, said = command(context.bin_dir, "ampctl", "token", "new", "read", "old", "--expires", "2020-02-29", "--append",
                      tokens.path)
    assert "--expires 2020-02-29 has passed" in said, said
    server = context.server("--token-file", tokens.path)
    api_with(server.channel, most).GetStatus()


def test_the_models_of_a_token_s_name_are_within_its_quota(context):
    tokens, server, _ = tokens_and_server(context)

    first, rotated = tokens.new("worker", "ann", "--models", "2", "--memory", "1G"), tokens.new("worker", "ann")
    bob, operator = tokens.new("worker", "bob", "--memory", "2K"), tokens.new("operator", "boss")
    hang_up(server, "token file reloaded")

    def create(token, name):
        return api_with(server.channel, token).CreateModel(spec=spec(name)).created

    assert create(first, "a1") and create(rotated, "a2")
    words = ("token ann is 2 models", "models=")
    for token in (first, rotated):
        refused(lambda t=token: create(t, "a3"), Code.RESOURCE_EXHAUSTED, "QUOTA_MODELS", words)
    assert not create(first, "a1")
    words_of_bob = ("token bob is 2048 bytes", "b1", ": let an operator raise memory=")  # who has no model to delete
    refused(lambda: create(bob, "b1"), Code.RESOURCE_EXHAUSTED, "QUOTA_MEMORY", words_of_bob)
    assert create(operator, "o1")
    server.restart_after_kill()
    eventually(lambda: api_with(server.channel, operator).health() == ampd_testing.HEALTH_SERVING, "it serves")
    refused(lambda: create(rotated, "a3"), Code.RESOURCE_EXHAUSTED, "QUOTA_MODELS", words)
    api_with(server.channel, operator).DeleteModel(model="a1")
    assert create(rotated, "a3")
    refused(lambda: create(first, "a4"), Code.RESOURCE_EXHAUSTED, "QUOTA_MODELS", words)


def test_the_log_names_the_token_by_which_a_server_is_drained(context):
    tokens = TokenFile(context)
    operator = tokens.new("operator", "boss")
    server = context.server("--token-file", tokens.path)
    api_with(server.channel, operator).Drain(grace_ms=500)
    assert server.process.wait(60) == 0, server.log()[-2000:]
    assert 'cause="Drain by token boss"' in server.log(), server.log()[-2000:]


def test_the_token_of_the_document_s_shell_commands_is_one(context):
    tokens = TokenFile(context)
    token = subprocess.run("openssl rand -hex 32", shell=True, check=True, stdout=subprocess.PIPE, encoding="ascii").stdout
    line = subprocess.run("tr -d '\\n' | sha256sum", shell=True, check=True, stdout=subprocess.PIPE, encoding="ascii",
                          input=token).stdout
    tokens.add(f"token read shell {line.split()[0]}")
    server = context.server("--token-file", tokens.path)
    api_with(server.channel, token.strip()).GetStatus()


def test_libampclient_tells_that_the_token_is_wrong_and_ends(context):
    tokens, server, _ = tokens_and_server(context)
    environment = dict(os.environ, RANK="0", WORLD_SIZE="1", AMPD_TOKEN_FILE=str(tokens.client_file("x" * 40)))
    _, said = command(context.bin_dir, "digits", "--connect", f"127.0.0.1:{server.port}", "--steps", "5", code=1,
                      env=environment)
    assert "not in the server's token file" in said and "x" * 40 not in said, said


def test_options_that_do_not_fit_are_refused_at_start(context):
    tokens = TokenFile(context)
    loose = TokenFile(context)
    loose.path.chmod(0o666)
    bad = TokenFile(context)
    bad.put("token read x 1234\n")
    swapped = TokenFile(context)  # the file that a client has, with its token
    swapped.put("x" * 40 + "\n")
    cases = [(("--listen", "0.0.0.0:0"), ("--cert-file", "--insecure")),
             (("--listen", "0.0.0.0:0", "--token-file", tokens.path), ("--cert-file",)),
             (("--cert-file", "c"), ("--key-file",)), (("--key-file", "k"), ("--cert-file",)),
             (("--client-cert-auth",), ("--trusted-ca-file",)), (("--trusted-ca-file", "x"), ("--cert-file",)),
             (("--token-file", "/nowhere/tokens"), ("/nowhere/tokens", "No such file", "correct the path")),
             (("--token-file", context.work), ("not a file",)), (("--token-file", loose.path), ("chmod go-w",)),
             (("--token-file", bad.path), ("line 1", "SHA-256")),
             (("--token-file", swapped.path), ("line 1", "ampctl token new ROLE NAME --append FILE")),
             (("--cert-file", "/nowhere/c", "--key-file", "/nowhere/k"), ("/nowhere/",))]
    code, lines = start_and_fail(context.bin_dir, "--data-dir", context.folder(), "--listen", "no-such-host.invalid:0")
    assert code == 2 and "cannot listen on no-such-host.invalid:0" in lines[0] and "loopback" not in lines[0], lines
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, lines = start_and_fail(context.bin_dir, "--data-dir", context.folder(), "--listen", address, "--metrics-listen", "none")
        assert code == 1 and address in lines[-1] and "end what listens there" in lines[-1], (code, lines)
    code, lines = start_and_fail(context.bin_dir, "--data-dir", tokens.path, "--listen", "127.0.0.1:0")
    assert code == 3 and f"data directory {tokens.path} is not a directory" in lines[-1], (code, lines)
    code, lines = start_and_fail(context.bin_dir, "--data-dir", context.folder(), "--listen", "127.0.0.1:0",
                                 "--checkpoint-dir", tokens.path)
    assert code != 0 and f"checkpoint directory {tokens.path} is not a directory" in lines[-1], (code, lines)
    for options, words in cases:
        code, lines = start_and_fail(context.bin_dir, "--data-dir", context.folder(), "--listen", "127.0.0.1:0", *options)
        assert code == 2 and len(lines) == 1, (options, code, lines)
        for word in words:
            assert word in lines[0], (options, word, lines)


def test_insecure_is_allowed_and_warned_of(context):
    server = context.server("--listen", "0.0.0.0:0", "--insecure")
    assert "level=warn" in server.log() and "--insecure: everybody who reaches this address" in server.log()


if __name__ == "__main__":
    run(globals())
