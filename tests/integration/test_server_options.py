#!/usr/bin/python3
"""Where options come from, on a real ampd: file, environment, command line; what ampctl config says, and SIGHUP.

    test_server_options.py BIN_DIR [NAME ...]
"""
import json
import os
import re
import signal
import subprocess

import ampd_testing
from ampd_testing import CALL_TIMEOUT_S, DIE_WITH_PARENT, eventually, run


def ampctl(context, server, *arguments, code=0):
    done = subprocess.run([context.bin_dir / "ampctl", "--endpoint", f"127.0.0.1:{server.port}", *arguments],
                          capture_output=True, text=True, timeout=CALL_TIMEOUT_S, check=False)
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stderr


def shown(context, server):
    """What ampctl config has: {option: (value, where)}."""
    rows = json.loads(ampctl(context, server, "-o", "json", "config"))
    return {row["option"]: (row["value"], row["where"]) for row in rows}


def options_of_help(context):
    text = subprocess.run([context.bin_dir / "ampd", "--help"], capture_output=True, text=True, timeout=CALL_TIMEOUT_S,
                          check=True).stdout
    return set(re.findall(r"--([a-z][a-z-]+)", re.sub(r"^ {20,}.*$", "", text, flags=re.MULTILINE)))


class environment:
    """Names of the environment while a server starts."""

    def __init__(self, **names):
        self.names = names

    def __enter__(self):
        os.environ.update(self.names)

    def __exit__(self, *_):
        for name in self.names:
            del os.environ[name]


def conf(context, text):
    path = context.work / "ampd.conf"
    path.write_text(text)
    return path


def test_kernels_that_the_processor_lacks_are_refused_by_the_variables_name(context):
    for isa, words in ("mmx", 'unknown instruction set "mmx": this processor has '), \
                      ("neon" if os.uname().machine == "x86_64" else "avx2", "this processor has no "):
        done = subprocess.run([context.bin_dir / "ampd", "--data-dir", context.work / "data"], capture_output=True,
                              text=True, timeout=CALL_TIMEOUT_S, check=False, env={**os.environ, "AMPD_ISA": isa})
        assert done.returncode == 2 and done.stderr.startswith(f"ampd: AMPD_ISA: {words}"), done.stderr
        assert ", ref" in done.stderr and not (context.work / "data").exists(), done.stderr


def test_each_value_is_shown_with_the_place_it_comes_from(context):
    path = conf(context, "worker-lease: 41s\nkeepalive-time: 1h\nmax-connection-idle: 2m\n")
    with environment(AMPD_KEEPALIVE_TIME="3h", AMPD_MAX_CONNECTION_IDLE="4m"):
        server = context.server("--config", str(path), "--max-connection-idle", "6m")
    found = shown(context, server)
    assert found["worker-lease"] == ("41s", f"{path}:1"), found["worker-lease"]
    assert found["keepalive-time"] == ("3h", "AMPD_KEEPALIVE_TIME"), found["keepalive-time"]
    assert found["max-connection-idle"] == ("6m", "--max-connection-idle"), found["max-connection-idle"]
    assert found["keepalive-timeout"] == ("20s", "default"), found["keepalive-timeout"]
    assert set(found) == options_of_help(context) - {"help", "usage", "version"}, set(found) ^ options_of_help(context)
    assert ampctl(context, server, "-o", "csv", "config", "worker-lease").split() == [
        "option,value,where,reloads", f"worker-lease,41s,{path}:1,false"]
    assert "no option" in ampctl(context, server, "config", "lease", code=2)
    for wrong in ("worker-leese", "WORKER-LEASE", "worker_lease"):
        assert f'"{wrong}"; did you mean worker-lease?' in ampctl(context, server, "config", wrong, code=2), wrong
    only = ampctl(context, server, "config", "--set").splitlines()
    assert len(only) == 1 + 6, only  # and the data directory, the address, the file
    assert server.terminate() == 0


def test_a_path_that_is_not_utf_8_is_shown_as_far_as_it_can_be(context):
    server = context.server(data_dir=context.folder().with_name(os.fsdecode(b"caf\xe9")))
    assert shown(context, server)["data-dir"][0].endswith("/caf?")


def test_a_file_with_six_faults_names_all_of_them_with_their_lines(context):
    path = conf(context, "listen: 127.0.0.1:0\nlog-level: loud\nworker-lease: 5x\nworker-leese: 5s\nlisten: a:1\n"
                         "shards: 900\nconfig: other.conf\n")
    for more in ((), ("--check-config",)):
        code, lines = ampd_testing.start_and_fail(context.bin_dir, "--data-dir", str(context.work / "none"), "--config",
                                                  str(path), *more)
        assert code == 2 and len(lines) == 7, lines
        wanted = ((2, "--log-level"), (3, "--worker-lease"), (4, "did you mean worker-lease?"),
                  (5, "listen is already given in line 1"), (6, "--shards"), (7, "only on the command line"))
        for line, (at, word) in zip(lines, wanted):
            assert f"{path}:{at}: " in line and word in line, line
        assert lines[-1].endswith("; how the options go together is checked when each is right"), lines
    assert not (context.work / "none").exists()
    path.write_text("log-level: debug\n")
    done = subprocess.run([*DIE_WITH_PARENT, context.bin_dir / "ampd", "--data-dir", context.work / "none", "--config",
                           path, "--check-config"], capture_output=True, text=True, timeout=CALL_TIMEOUT_S, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ampd: the options are good\n", "")
    assert not (context.work / "none").exists()


def test_check_config_looks_at_the_instruction_set_of_the_environment_too(context):
    done = subprocess.run([*DIE_WITH_PARENT, context.bin_dir / "ampd", "--data-dir", context.work / "none",
                           "--check-config"], env=dict(os.environ, AMPD_ISA="avx9"), capture_output=True, text=True,
                          timeout=CALL_TIMEOUT_S, check=False)
    assert done.returncode == 2 and "AMPD_ISA" in done.stderr and "good" not in done.stdout, done


def test_an_address_that_no_socket_can_have_is_refused_with_the_options(context):
    for listen in ("unix:", "unix:/" + 107 * "x", ":7420", "localhost:70000"):
        code, lines = ampd_testing.start_and_fail(context.bin_dir, "--data-dir", str(context.work / "none"), "--listen",
                                                  listen, "--check-config")
        assert code == 2 and f"--listen {listen[:30]}" in lines[0], lines
        assert "give HOST:PORT with a port of 0 to 65535, or unix:PATH of at most 107 bytes" in lines[0], lines


def test_every_value_in_the_example_file_is_taken(context):
    text = subprocess.run([context.bin_dir / "ampd", "--usage-as=conf"], capture_output=True, text=True, check=True,
                          timeout=CALL_TIMEOUT_S).stdout
    values = [line for line in re.findall(r"^#([a-z-]+: .+)$", text, re.MULTILINE)
              if not line.startswith("cluster-lease: ")]  # is for a --cluster alone
    assert "worker-lease: 30s" in values and len(values) > 15, values
    path = conf(context, "\n".join([*values, f"data-dir: {context.work / 'none'}\n"]))
    code, lines = ampd_testing.start_and_fail(context.bin_dir, "--check-config", "--config", str(path))
    assert code == 0, lines


def test_an_error_about_the_token_file_says_where_the_option_is_from(context):
    """AMPD_TOKEN_FILE of a client, which has a token in it, is also ampd's option."""
    token = context.work / "root.token"
    token.write_text(64 * "a" + "\n")
    token.chmod(0o600)
    path = conf(context, f"token-file: {token}\n")
    listen = ("--data-dir", str(context.work / "none"), "--listen", "127.0.0.1:0", "--metrics-listen", "none")
    with environment(AMPD_TOKEN_FILE=str(token)):
        by_environment = ampd_testing.start_and_fail(context.bin_dir, *listen)
    for (code, lines), source in ((by_environment, " (token-file is from the environment, AMPD_TOKEN_FILE)"),
                                  (ampd_testing.start_and_fail(context.bin_dir, *listen, "--config", str(path)),
                                   f" (token-file is from {path}:1)"),
                                  (ampd_testing.start_and_fail(context.bin_dir, *listen, "--token-file", token), "")):
        assert code == 2 and "begins with token, cert or uid, or with # if it is a comment" in lines[-1], lines
        assert lines[-1].endswith(f"ampctl token new ROLE NAME --append FILE writes one{source}"), lines


def test_sighup_takes_a_level_and_names_what_waits_for_the_next_start(context):
    path = conf(context, "log-level: info\nworker-lease: 40s\n")
    server = context.server("--config", str(path))
    path.write_text("log-level: debug\nworker-lease: 50s\n")
    server.process.send_signal(signal.SIGHUP)
    eventually(lambda: 'msg="changed" option=log-level was="info" is="debug"' in server.log(), "the level is taken")
    eventually(lambda: 'option=worker-lease is="40s" will_be="50s"' in server.log(), "what waits is told")
    found = shown(context, server)
    assert found["log-level"][0] == "debug" and found["worker-lease"][0] == "40s", found
    assert "level=debug" in server.log() or ampctl(context, server, "log-level", "info").startswith("was debug")
    path.write_text("log-level: what\n")
    server.process.send_signal(signal.SIGHUP)
    eventually(lambda: "the options could not be reloaded" in server.log(), "the fault is told")
    assert f"{path}:1" in server.log()
    assert server.terminate() == 0


def test_lines_of_the_log_can_be_json(context):
    server = context.server("--log-format", "json")
    assert server.terminate() == 0
    lines = [json.loads(line) for line in server.log().splitlines()]
    assert len(lines) >= 3 and all({"ts", "level", "component", "msg"} <= set(line) for line in lines), lines
    assert lines[0]["compute_threads"] >= 1


def test_a_server_that_may_run_on_some_processors_has_so_many_compute_threads(context):
    mine = os.sched_getaffinity(0)
    for processors in mine, {min(mine)}:
        os.sched_setaffinity(0, processors)
        try:
            server = context.server("--log-format", "json")
        finally:
            os.sched_setaffinity(0, mine)
        assert json.loads(server.log().splitlines()[0])["compute_threads"] == len(processors)
        assert server.terminate() == 0


def test_a_start_with_too_few_descriptors_says_to_raise_their_limit(context):
    """Whichever socket, thread or port it is that finds none."""
    def started(descriptors):
        """What stopped it, or None."""
        command = [*DIE_WITH_PARENT, "/bin/sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh",
                   context.bin_dir / "ampd", "--data-dir", context.folder(), "--listen", "127.0.0.1:0",
                   "--metrics-listen", "127.0.0.1:0"]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "msg=serving" in line or 'msg="serving"' in line:
                process.terminate()
        return None if process.wait(CALL_TIMEOUT_S) == 0 else lines[-1]
    least = 13  # for the store's own files
    told = []
    while (said := started(least + len(told))) is not None:
        told.append(said)
    assert told and all(line.startswith("ampd: ") and "ulimit -n" in line for line in told), told
    assert any("cannot listen on" in line for line in told) and any("--metrics-listen" in line for line in told), told


run(globals())
