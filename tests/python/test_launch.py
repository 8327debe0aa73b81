"""python3 -m ampd.launch: workers with ranks, an ampd for them, and how all of it ends."""
from python_testing import PACKAGE, PATIENCE, Skip, folder, run  # noqa: F401 (first: it finds the package)

import contextlib
import os
import pathlib
import re
import signal
import subprocess
import sys
import unittest.mock

import ampd
import ampd.launch
import ampd.testing

LIMIT_S = 60 * PATIENCE
TRAIN = """
import os, pathlib, signal, sys
import ampd, numpy
steps, here, first = int(sys.argv[1]), pathlib.Path(__file__).parent, 0
with ampd.join(None, "line", {"w": numpy.zeros(1000)}, optimizer=ampd.AdamW(lr=0.1), max_steps=steps) as job:
    for step in job.steps():
        first = first or step.number
        if sys.argv[2:] == [str(step.number)] and job.rank == 1 and not (here / "killed").exists():
            (here / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        random = numpy.random.default_rng([step.number, job.rank])
        step.push("w", (step.scale * random.normal(0, 1e-3, 1000)).astype(numpy.float16))
        assert step.end().applied
    job.pull()
    print("from step", first, "of", job.world_size)
    (here / ("bytes-%d" % job.rank)).write_bytes(job.parameters["w"].tobytes())
"""
FAIL = """
import os, sys, time
print("rank", os.environ["RANK"], flush=True)
if os.environ["RANK"] == "1":
    sys.exit(3)
time.sleep(600)
"""


@contextlib.contextmanager
def script(text):
    with folder() as made:
        path = pathlib.Path(made) / "script.py"
        path.write_text(text)
        yield path


def start(*arguments, program=("-m", "ampd.launch"), env=None, **options):
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE), "PYTHONDONTWRITEBYTECODE": "1", **(env or {})}
    return subprocess.Popen([sys.executable, *program, *map(str, arguments)], env=environment,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", **options)


def launch(*arguments, code=0, **options):
    """(stdout, stderr)"""
    with start(*arguments, **options) as process:
        try:
            said = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
    assert process.returncode == code, (process.returncode, *said)
    return said


def server_is_gone(said):
    endpoint = re.search(r"ampd is at (\S+)", said)[1]
    try:
        ampd.join(endpoint, "line", connect_timeout=0.2)
    except ampd.Unavailable:
        return True
    return False


def test_two_workers_train_to_the_end_and_each_line_has_its_rank():
    with script(TRAIN) as path:
        out, said = launch("-n", 2, path, 5)
        assert sorted(out.splitlines()) == ["[0] from step 1 of 2", "[1] from step 1 of 2"], out
        assert (path.parent / "bytes-0").read_bytes() == (path.parent / "bytes-1").read_bytes()
        assert server_is_gone(said), said


def test_a_server_that_runs_is_used_and_stays():
    with script(TRAIN) as path, ampd.testing.server() as server:
        _, said = launch("-n", 2, "--endpoint", server.endpoint, path, 3)
        assert said == "", said
        with ampd.join(server.endpoint, "line", rank=0) as job:
            assert job.pull() == 3


def test_a_server_that_the_environment_names_is_used_and_told_but_not_where_one_is_to_be_started():
    with script(TRAIN) as path, ampd.testing.server() as server:
        with unittest.mock.patch.dict(os.environ, AMPD_ENDPOINT=server.endpoint):
            _, said = launch("-n", 2, path, 3)
            assert said == f"ampd.launch: the ampd of AMPD_ENDPOINT is used: {server.endpoint}\n", said
            for option in (f"--data-dir={path.parent}/data", "--server-option=--worker-lease=5s"):
                _, said = launch("-n", 2, option, path, 3)
                assert "ampd is at " in said and server.endpoint not in said, said
        with ampd.join(server.endpoint, "line", rank=0) as job:
            assert job.pull() == 3


def test_an_operators_script_finds_the_server_too():
    with script("import ampd\nwith ampd.connect() as server:\n    print(len(list(server.models())))\n") as path:
        out, _ = launch(path)
        assert out == "[0] 0\n", out


def test_a_data_directory_stays_and_a_second_run_goes_on_there():
    with script(TRAIN) as path:
        data = path.parent / "data"
        launch("-n", 2, "--data-dir", data, path, 6, 4, code=128 + 9)
        assert "listening" in (data / "log").read_text()
        out, _ = launch("-n", 2, "--data-dir", data, path, 6, 4)
        assert out.count("from step 4 of 2") == 2, out


SLOW_DRAIN = """#!/bin/bash
setpriv --pdeathsig KILL %s "$@" &
trap 'sleep 2; kill -TERM $!; wait $!; touch %s; exit 0' TERM
trap 'exit 1' INT
wait $!
"""
STOPS_SOON = ("-c", "import sys, ampd.testing\nampd.testing.STOP_S = 0.1\nimport ampd.launch\n"
              "sys.exit(ampd.launch.main())")


def test_an_ampd_whose_data_stay_has_all_the_time_that_it_takes_to_drain():
    with script(TRAIN) as path:
        programs, mark = path.parent / "bin", path.parent / "drained"
        programs.mkdir()
        ampd_of_the_test = programs / "ampd"
        ampd_of_the_test.write_text(SLOW_DRAIN % (ampd.testing.program(), mark))
        ampd_of_the_test.chmod(0o755)
        how = {"program": STOPS_SOON, "env": {"AMPD_BIN": str(programs)}}
        launch("-n", 2, "--data-dir", path.parent / "data", path, 6, **how)
        assert mark.exists()
        ampd_of_the_test.write_text((SLOW_DRAIN % (ampd.testing.program(), mark)).replace("exit 0", "exit 3"))
        _, said = launch("-n", 2, "--data-dir", path.parent / "data", path, 6, **how)
        assert "ampd ended with code 3, perhaps without its last checkpoints; its log is " in said, said


def test_a_killed_worker_comes_back_with_its_rank_and_the_bytes_are_the_same():
    with script(TRAIN) as path:
        launch("-n", 2, path, 8)
        wanted = (path.parent / "bytes-0").read_bytes()
        out, said = launch("-n", 2, "--restarts", 1, path, 8, 4)
        assert "rank 1 ended by SIGKILL; it is started again, 1 of 1 times" in said, said
        assert len(wanted) == 2000
        assert [(path.parent / ("bytes-%d" % rank)).read_bytes() for rank in range(2)] == [wanted, wanted]
        assert sorted(out.splitlines()) == ["[0] from step 1 of 2", "[1] from step 4 of 2"], out


def test_a_failing_worker_ends_all_and_its_code_is_returned():
    with script(FAIL) as path:
        out, said = launch("-n", 3, path, code=3)
        assert "[1] rank 1" in out and "rank 1 ended with code 3; the others are ended" in said, (out, said)
        assert server_is_gone(said), said
        _, said = launch("-n", 2, "--restarts", 2, path, code=3)
        assert said.count("started again") == 2, said


def test_a_worker_that_does_not_want_to_end_is_killed():
    with script(FAIL.replace("import os", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\nimport os")
                .replace('== "1":', '== "1":\n    time.sleep(0.5)')) as path:
        launch("-n", 2, "--grace", 0.2, path, code=3)


def test_a_signal_that_ends_a_worker_is_told_as_shells_do():
    with script("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n") as path:
        _, said = launch(path, code=128 + 11)
        assert "rank 0 ended by SIGSEGV\n" in said, said


def test_ctrl_c_ends_all_in_order():
    waits = TRAIN.replace("for step", "print('joined', flush=True)\n    if job.rank == 0: signal.pause()\n    for step")
    with script(waits.replace("with ampd", "try:\n  with ampd").replace("\n    ", "\n      ")
                + "except KeyboardInterrupt:\n    print(repr(job))\n    sys.exit(1)\n") as path:
        with start("-n", 2, path, 5) as process:
            lines = {process.stdout.readline() for _ in range(2)}
            assert lines == {"[0] joined\n", "[1] joined\n"}, lines
            process.send_signal(signal.SIGINT)
            out, said = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 130, (process.returncode, out, said)
        assert len(re.findall(r"\[\d\] <ampd job line: .* left", out)) == 2, (out, said)
        assert server_is_gone(said), said


def test_sigterm_ends_all():
    with script("import time\nprint('runs', flush=True)\ntime.sleep(600)\n") as path:
        with start("-n", 2, path) as process:
            process.stdout.readline(), process.stdout.readline()
            process.terminate()
            process.communicate(timeout=LIMIT_S)
        assert process.returncode == 128 + 15, process.returncode


def test_what_a_worker_leaves_behind_ends_with_it():
    with script("import subprocess\nprint(subprocess.Popen(['sleep', '600']).pid)\n") as path:
        out, _ = launch(path)
        left = pathlib.Path("/proc", out.split()[1], "stat")
        # Whoever inherits it may not have taken its exit code yet.
        assert not left.exists() or left.read_text().split()[2] == "Z", left.read_text()


def test_a_server_that_ends_ends_all():
    with script("import os, signal, subprocess, time\nprint('runs', flush=True)\ntime.sleep(600)\n") as path:
        with start("--data-dir", path.parent / "data", path) as process:
            process.stdout.readline()
            os.kill(int((path.parent / "data" / "LOCK").read_text()), signal.SIGKILL)
            _, said = process.communicate(timeout=LIMIT_S)
            last = (path.parent / "data" / "log").read_text().splitlines()[-1]
        assert process.returncode == 1 and f"ampd ended; the last line of its log: {last}\n" in said, said


def test_a_signal_that_was_ignored_before_ends_nothing():
    for number in (signal.SIGHUP, signal.SIGTERM):
        with script(f"import os\nos.kill(os.getppid(), {int(number)})\nprint('goes on')\n") as path:
            launch(path, code=128 + number)
            out, _ = launch(path, preexec_fn=lambda: signal.signal(number, signal.SIG_IGN))  # nohup does so
            assert out == "[0] goes on\n", out


def test_a_parent_that_ignores_the_end_of_its_children_takes_nothing_from_the_launcher():
    with script("import sys\nprint('ends')\nsys.exit(3)\n") as path:
        out, said = launch(path, code=3, preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
        assert out == "[0] ends\n" and "rank 0 ended with code 3\n" in said, (out, said)


def test_nobody_who_reads_ends_all():
    with script("import time\nfor i in range(60000):\n    print(i, flush=True)\n    time.sleep(0.01)\n") as path:
        with start(path) as process:
            process.stdout.readline()
            process.stdout.close()
            process.wait(LIMIT_S)
            process.stderr.read()
        assert process.returncode == 128 + 13, process.returncode


def test_lines_come_when_they_are_written_and_arguments_are_the_scripts():
    with script("import os, sys\nprint(sys.argv[1:], end='')\nsys.stderr.write('w\\xe4hrend\\n\\nx')\n"
                "print(*(os.environ[name] for name in ('LOCAL_RANK', 'WORLD_SIZE', 'LOCAL_WORLD_SIZE')))\n") as path:
        out, said = launch("-n", 1, path, "-n", "7", "--help", "--", "--endpoint")
        assert out == "[0] ['-n', '7', '--help', '--', '--endpoint']0 1 1\n", out
        assert said.splitlines()[1:] == ["[0] w\xe4hrend", "[0] ", "[0] x"], said
        out, _ = launch("-n", 1, "-m", "script", "-m", "x", cwd=path.parent)
        assert out == "[0] ['-m', 'x']0 1 1\n", out


def test_a_script_that_still_has_a_process_group_of_torch_makes_it():
    try:
        import torch.distributed  # noqa: F401
    except ImportError as error:
        raise Skip(error) from None
    of_another_job = {"MASTER_ADDR": "192.0.2.1", "MASTER_PORT": "1"}
    with script("import datetime, torch, torch.distributed as group\n"
                "group.init_process_group('gloo', timeout=datetime.timedelta(seconds=30))\n"
                "sum = torch.tensor([1.0 + group.get_rank()])\ngroup.all_reduce(sum)\nprint(sum.item())\n") as path:
        for environment in ({}, of_another_job):
            with unittest.mock.patch.dict(os.environ, environment):
                out, _ = launch("-n", 3, path)
            assert sorted(out.splitlines()) == ["[0] 6.0", "[1] 6.0", "[2] 6.0"], out


def test_a_progress_bar_that_writes_over_itself_is_shown_while_it_moves():
    with script("import pathlib, sys, time\nseen, until = pathlib.Path(sys.argv[1]), time.monotonic() + 20\n"
                "print('\\r 0%\\r10%', end='', flush=True)\n"
                "while not seen.exists() and time.monotonic() < until:\n    time.sleep(0.01)\n"
                "print('\\r20%\\r30%', end=' seen\\n' if seen.exists() else '')\n") as path:
        with start("-n", 1, path, path.parent / "seen") as process:
            first = process.stdout.readline()
            (path.parent / "seen").touch()
            out, said = process.communicate(timeout=LIMIT_S)
    assert first == "[0]  0%\n" and out.endswith("[0] 30% seen\n"), (first, out, said)


def test_of_what_is_written_over_a_line_is_shown_each_ten_seconds_and_the_last_one():
    chunks = [b"a\r\nb\r", b"\nc", b"\r1", b"\r2\r", b"3\r  \r4\n\n", b"5\r", b"6\r7", b"\r8\r"]
    now = iter(range(0, 1000, 4))
    source = unittest.mock.Mock(read1=lambda size: chunks.pop(0) if chunks else b"")
    assert list(ampd.launch.lines(source, lambda: next(now))) == [b"a", b"b", b"c", b"3", b"4", b"", b"7", b"8"]


def test_what_is_wrong_gets_a_sentence():
    with script("") as path:
        for arguments, words in ((("-n", "two", path), "'two' is not a number from 1"),
                                 (("-n", "0", path), "'0' is not a number from 1"),
                                 (("-n", "257", path), "'257' is not a number from 1 to 256"),
                                 (("--restarts", "-1", path), "'-1' is not a number from 0"),
                                 (("--grace", "soon", path), "'soon' is not a number of seconds"),
                                 ((), "a script is missing"), (("-m",), "a script is missing"),
                                 (("nowhere.py",), "there is no file nowhere.py"),
                                 (("--ranks", "2", path), "unrecognized arguments: --ranks"),
                                 (("--server-option", "--worker-lease=2s", path), "write --server-option=--name=VALUE"),
                                 (("--endpoint", "a:1", "--data-dir", "d", path), "leave out --endpoint"),
                                 (("--server-option=--listen=:1", path), "--listen is set by the launcher"),
                                 (("--server-option=--log-format=json", path), "--log-format is set by the launcher"),
                                 (("--endpoint", "a:1", "--server-option=-v", path), "leave out --endpoint")):
            out, said = launch(*arguments, code=2)
            assert out == "" and words in said and said.count("\n") == 1, (arguments, said)
        _, said = launch("--server-option=--no-such", path, code=1)
        assert "ampd did not start" in said and "--no-such" in said, said


def test_an_option_for_the_server_reaches_it():
    with script("") as path:
        data = path.parent / "data"
        launch("--data-dir", data, "--server-option=--metrics-listen=127.0.0.1:0", path)
        assert "metrics" in (data / "log").read_text(), (data / "log").read_text()


def test_options_of_another_server_in_the_environment_do_not_reach_the_one_that_is_started():
    other = {"AMPD_TOKEN_FILE": "/nowhere", "AMPD_CONFIG": "/nowhere", "AMPD_LOG_FORMAT": "json",
             "AMPD_LOG_LEVEL": "warn", "AMPD_ISA": "none"}
    with script(TRAIN) as path, unittest.mock.patch.dict(os.environ, other):
        _, said = launch(path, 1, code=1)
        assert "unknown instruction set" in said, said  # the name of no option
        del os.environ["AMPD_ISA"]
        launch(path, 1)


def test_a_server_whose_log_would_have_another_form_is_recognised_when_it_listens():
    with ampd.testing.server(options=["--log-level=error", "--log-format=json"]) as server:
        assert 'msg="listening"' in server.log()


def test_a_server_that_has_written_more_than_ascii_is_recognised_when_it_is_started_again():
    with ampd.testing.server() as server:
        server.kill()
        with open(server.log_path, "ab") as log:
            log.write("\xe4".encode() * 100000)
        server.start()
        with ampd.connect(server.endpoint) as operator:
            assert operator.status().models == ()


run(globals())
