"""What the tests of the Python package share: a runner with cmocka's output, and a reason where a test cannot run.

A test file begins with `from python_testing import run`, has functions test_<sentence>(), and ends with
`run(globals())`. It is called with the folder of the built package:

    test_job.py BUILD/python [NAME ...]      only the tests whose names contain one of NAME

Exit code 0: all passed; 1: one failed; 77: nothing could run. A run that hangs is ended with a traceback.
"""
import contextlib
import faulthandler
import logging
import os
import pathlib
import sys
import tempfile
import time
import traceback

FILE = pathlib.Path(sys.argv[0]).name
RUN_TIMEOUT_S = 840
PATIENCE = int(os.environ.get("AMPD_TEST_PATIENCE", "1"))

if len(sys.argv) < 2:
    sys.exit(f"usage: {FILE} BUILD/python [NAME ...]")
PACKAGE = pathlib.Path(sys.argv[1]).resolve()
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(PACKAGE))
for name in ("RANK", "WORLD_SIZE", "AMPD_LIBRARY", "AMPD_BIN", "AMPD_ENDPOINT"):
    os.environ.pop(name, None)
os.environ.setdefault("OMP_NUM_THREADS", "1")


class Skip(Exception):
    """A test that cannot run here, and why."""


def needs(*modules):
    """Ends the file where one of these is missing."""
    for module in modules:
        try:
            __import__(module)
        except ImportError as error:
            print(f"SKIPPED: {FILE}: {error} (package python3-{module})")
            sys.exit(77)


needs("cffi", "numpy")


def raises(kind, function, *words):
    """The exception, whose sentence has each of the words, and is one."""
    try:
        function()
    except kind as error:
        sentence = str(error)
        assert "\n" not in sentence and len(sentence) > 10, sentence
        for word in words:
            assert word in sentence, (word, sentence)
        return error
    raise AssertionError(f"nothing was raised, and {kind.__name__} should have been")


def eventually(condition, timeout_s=30):
    """Waits until it is true; false: it never was."""
    until = time.monotonic() + timeout_s * PATIENCE
    while not (done := condition()) and time.monotonic() < until:
        time.sleep(0.01)
    return done


def _run_one(name, function):
    print(f"[ RUN      ] {name}", flush=True)
    try:
        function()
    except Skip as reason:
        print(f"SKIPPED: {FILE} {name}: {reason}", flush=True)
        return True
    except BaseException as error:  # whatever a test raises has failed it
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if str(ROOT) in frame.filename]
        place = " < ".join(f"{pathlib.Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames))
        print(f"[  ERROR   ] {place}: {type(error).__name__}: {error}\n[  FAILED  ] {name}", flush=True)
        return False
    print(f"[       OK ] {name}", flush=True)
    return True


@contextlib.contextmanager
def told():
    """The warnings of the logger `ampd` in the block."""
    lines, log = [], logging.getLogger("ampd")
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())
    log.addHandler(handler)
    try:
        yield lines
    finally:
        log.removeHandler(handler)


def run(module_globals):
    """Runs the tests of a file, and ends the process."""
    faulthandler.dump_traceback_later(RUN_TIMEOUT_S * min(PATIENCE, 2), exit=True)
    tests = [(name[len("test_"):], test) for name, test in module_globals.items() if name.startswith("test_")]
    chosen = [(name, test) for name, test in tests
              if not sys.argv[2:] or any(part in name for part in sys.argv[2:])]
    failed = sum(not _run_one(name, test) for name, test in chosen)
    if failed:
        print(f"{failed} of {len(chosen)} failed")
    sys.exit(failed > 0)


def folder():
    """A temporary folder, as a context manager."""
    return tempfile.TemporaryDirectory(prefix="ampd-python-")
