"""examples/python: each runs alone with a server, and with two workers under ampd.launch."""
from python_testing import PACKAGE, PATIENCE, ROOT, Skip, folder, run  # noqa: F401 (first: it finds the package)

import importlib.util
import os
import pathlib
import re
import subprocess
import sys

import ampd.testing

EXAMPLES = ROOT / "examples" / "python"
LIMIT_S = 120 * PATIENCE


def output(*command, code=0, **environment):
    """(stdout, stderr) of Python with this package."""
    done = subprocess.run([sys.executable, "-B", *map(str, command)], stdin=subprocess.DEVNULL, capture_output=True,
                          env={**os.environ, "PYTHONPATH": str(PACKAGE), **environment}, timeout=LIMIT_S,
                          encoding="utf-8")
    assert done.returncode == code, (command, done.returncode, done.stdout, done.stderr)
    return done.stdout, done.stderr


def launch(name, *arguments):
    return output("-m", "ampd.launch", "-n", 2, EXAMPLES / name, *arguments)


def alone(name, *arguments):
    with ampd.testing.server() as server:
        return output(EXAMPLES / name, *arguments, AMPD_ENDPOINT=server.endpoint)


def needs_torch():
    if importlib.util.find_spec("torch") is None:
        raise Skip("no torch (package python3-torch)")


def losses(said, rank=""):
    return [float(loss) for loss in re.findall(r"^%sstep \d+: loss (\S+)$" % re.escape(rank), said, re.M)]


def accuracy(said, rank=""):
    return float(re.search(r"^%saccuracy (\S+) on 360 digits" % re.escape(rank), said, re.M)[1])


# ---- digits ----

def test_digits_are_read_by_a_network_that_one_worker_trained():
    out, said = alone("digits.py")
    assert accuracy(out) > 0.9, out
    assert "step 200/200  loss 0." in said, said


def test_digits_are_read_by_a_network_that_two_workers_trained():
    out, _ = launch("digits.py")
    assert accuracy(out, "[0] ") == accuracy(out, "[1] ") > 0.9, out


# ---- overflow ----

def test_the_overflow_is_shown_each_time_it_is_run():
    with ampd.testing.server() as server:
        for scale in (1024, 512):
            out, _ = output(EXAMPLES / "overflow.py", AMPD_ENDPOINT=server.endpoint)
            for line in (f"pushed an Inf: skipped_overflow, scale {scale} -> {scale // 2}",
                         "parameter w, worker rank-0: 1 Inf, first at 0", "pushed ones: applied, norm 2"):
                assert line in out, (line, out)


def test_the_overflow_of_the_last_worker_is_seen_by_both():
    out, _ = launch("overflow.py")
    for rank in "01":
        assert f"[{rank}]   parameter w, worker rank-1: 1 Inf, first at 0" in out, out
        assert re.search(r"^\[%s\] step 3: scale 512, parameters \[0\.5 1\.5 2\.5 3\.5\]$" % rank, out, re.M), out


def openssl(made, line):
    subprocess.run(["openssl", *line.split()], cwd=made, check=True, stdout=subprocess.DEVNULL,
                   stderr=subprocess.DEVNULL)


def test_an_example_works_over_tls_with_a_token_from_the_environment():
    with folder() as made:
        made = pathlib.Path(made)
        openssl(made, "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 30 -subj /CN=ampd "
                      "-addext subjectAltName=DNS:localhost -keyout server.key -out server.crt")
        (made / "trainer.token").touch(0o600)
        token = subprocess.run([ampd.testing.program("ampctl"), "token", "new", "worker", "trainer", "--append",
                                made / "tokens"], capture_output=True, check=True).stdout
        (made / "trainer.token").write_bytes(token)
        options = [f"--cert-file={made}/server.crt", f"--key-file={made}/server.key", f"--token-file={made}/tokens"]
        with ampd.testing.server(options=options) as server:
            endpoint = server.endpoint.replace("127.0.0.1", "localhost")
            out, _ = output(EXAMPLES / "overflow.py", AMPD_ENDPOINT=endpoint, AMPD_CACERT=f"{made}/server.crt",
                            AMPD_TOKEN_FILE=f"{made}/trainer.token")
            assert "pushed ones: applied, norm 2" in out, out
            output(EXAMPLES / "overflow.py", AMPD_ENDPOINT=endpoint, AMPD_CACERT=f"{made}/server.crt", code=1)


# ---- with torch ----

def test_the_language_model_learns_with_two_workers():
    needs_torch()
    out, said = launch("charlm.py", "--steps", 20, "--batch", 2)
    for rank in ("[0] ", "[1] "):
        first, last = losses(out, rank)
        assert 4.5 < first < 5.2 and last < first - 1, out
    assert "[0] step 20/20  loss " in said and "[1] step" not in said, said


def test_the_language_model_is_saved_as_torch_loads_it():
    needs_torch()
    with folder() as made:
        file = pathlib.Path(made) / "charlm.pt"
        out, _ = alone("charlm.py", "--steps", 2, "--batch", 2, "--cast", "bfloat16", "--save", file)
        assert f"saved to {file}" in out, out
        seen, _ = output("-c", "import sys, torch; state = torch.load(sys.argv[1]); "
                         "print(len(state), state['head.weight'].dtype, tuple(state['head.weight'].shape))", file)
        assert seen == "53 torch.float32 (128, 128)\n", seen


def test_three_lines_change_and_the_loss_falls_before_and_after():
    needs_torch()
    text = (EXAMPLES / "three_lines.py").read_text()
    assert [text.count(f"# [{number}]\n") for number in (1, 2, 3)] == [1, 1, 1]
    plain, _ = output(EXAMPLES / "three_lines.py", "--plain", AMPD_ENDPOINT="127.0.0.1:1")
    one, _ = alone("three_lines.py")
    two, _ = launch("three_lines.py")
    for said in (losses(plain), losses(one), losses(two, "[0] "), losses(two, "[1] ")):
        assert len(said) == 2 and said[1] < said[0] / 3, (plain, one, two)
    assert losses(one)[0] == losses(plain)[0] == losses(two, "[0] ")[0], (plain, one, two)


def test_three_lines_that_are_run_again_have_nothing_left_to_do():
    needs_torch()
    with ampd.testing.server() as server:
        for count in (2, 0):
            out, _ = output(EXAMPLES / "three_lines.py", AMPD_ENDPOINT=server.endpoint)
            assert len(losses(out)) == count, out


run(globals())
