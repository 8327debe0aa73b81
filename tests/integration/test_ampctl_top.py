#!/usr/bin/python3
"""ampctl top on a terminal of the test's own, a pty whose screen pyte draws; and one table where there is none.

    test_ampctl_top.py BIN_DIR [NAME ...]
"""
import csv
import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading

from ampd_testing import CALL_TIMEOUT_S, DIE_WITH_PARENT, eventually, run

try:
    import pyte
except ImportError:
    pyte = None

COLUMNS, LINES = 140, 20


class Terminal:
    """ampctl top with a terminal of its own."""

    def __init__(self, context, server, *options, columns=COLUMNS, lines=LINES):
        self.screen = pyte.Screen(columns, lines)
        self.stream = pyte.ByteStream(self.screen)
        self.main, other = pty.openpty()
        self._set_size(columns, lines)
        command = [*DIE_WITH_PARENT, context.bin_dir / "ampctl", "-e", f"unix:{server.data_dir / 'ampd.sock'}", "top",
                   "--interval", "0.2", *options]
        self.process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, start_new_session=True,
                                        env=dict(os.environ, TERM="xterm", LC_ALL="C.UTF-8"))
        os.close(other)
        context._own.append(self)

    def _set_size(self, columns, lines):
        fcntl.ioctl(self.main, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def resize(self, columns, lines):
        self.screen.resize(lines, columns)
        self.screen.reset()
        self._set_size(columns, lines)
        self.process.send_signal(signal.SIGWINCH)

    def type(self, text):
        os.write(self.main, text.encode())

    def read(self):
        """Takes what has come; the lines of the screen."""
        while select.select([self.main], [], [], 0)[0]:
            try:
                self.stream.feed(os.read(self.main, 65536))
            except OSError:  # the other end is closed
                break
        return [line.rstrip() for line in self.screen.display]

    def shows(self, what, condition=None):
        """Waits until the screen has the text, or the condition of its lines holds; the lines."""
        condition = condition or (lambda lines: any(what in line for line in lines))
        try:
            return eventually(lambda: (lambda lines: lines if condition(lines) else None)(self.read()), what)
        except AssertionError as error:
            raise AssertionError(f"{what}: the screen is\n" + "\n".join(self.read())) from error

    def wait(self):
        self.read()
        return self.process.wait(CALL_TIMEOUT_S)

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.main)


def names(lines):
    """The models on the screen, from above."""
    return [line.split()[0] for line in lines[3:] if line]


def row(lines, name):
    return next((line for line in lines[3:] if line.startswith(name + " ")), "")


def steps(worker, *values):
    for value in values:
        worker.pull()
        worker.push({"w": [value] * 4})


def skipped_without_pyte():
    if pyte is None:
        print("SKIPPED: the screen: no pyte (package python3-pyte)")
    return pyte is None


def test_the_screen_follows_a_model_that_trains(context):
    if skipped_without_pyte():
        return
    server = context.server()
    worker = context.model("alpha", server).worker()
    steps(worker, 1.0)
    terminal = Terminal(context, server)
    lines = terminal.shows("alpha")
    assert lines[0].startswith("ampd 0.") and "1 of 1 models, by name   ? for help" in lines[0], lines
    assert lines[2].split() == "MODEL STATE STEP STEPS/S SCALE SKIPPED WORKERS WAITS FOR".split(), lines
    assert re.match(r"alpha +running +2 +(-|0\.0) .* 1024 +\S* +0\.0% +1/1", row(lines, "alpha")), lines
    done = threading.Event()

    def train():
        while not done.is_set():
            steps(worker, float("inf"), 1.0)

    trainer = threading.Thread(target=train)
    trainer.start()
    try:
        terminal.shows("a rate", lambda lines: re.match(r"alpha +running +\d+ +[1-9]\d*\.\d ", row(lines, "alpha")))
        lines = terminal.shows("sparklines", lambda lines: re.search("[\u2581-\u2588]{2}", row(lines, "alpha")))
        assert float(re.search(r"([\d.]+)%", row(lines, "alpha"))[1]) > 20, lines
    finally:
        done.set()
        trainer.join()
    terminal.shows("it stands still", lambda lines: re.match(r"alpha +running +\d+ +0\.0 ", row(lines, "alpha")))
    terminal.type("q")
    assert terminal.wait() == 0


def test_who_is_waited_for_is_named(context):
    if skipped_without_pyte():
        return
    server = context.server()
    test_model = context.model("pair", server, world_size=2)
    first = test_model.worker("a", rank=0)
    terminal = Terminal(context, server)
    lines = terminal.shows("pair")
    assert re.search(r"1/2  .*rank 1", row(lines, "pair")), lines
    second = test_model.worker("b", rank=1)
    for worker in (first, second):
        worker.pull()
    call = first.start_push({"w": [0.0] * 4})
    terminal.shows("rank 1 (b): 0 of 1 blocks")
    second.push({"w": [0.0] * 4})
    call.result()


def test_80_columns_show_whole_numbers_and_who_is_waited_for(context):
    if skipped_without_pyte():
        return
    server = context.server()
    test_model = context.model("pair", server, world_size=2)
    test_model.api.SetScale(model="pair", scale=16777216.0)
    alive = test_model.worker("a", rank=0)
    terminal = Terminal(context, server, columns=80)
    lines = terminal.shows("a screen", lambda lines: re.search(
        r" 2\^24 .* 1/2  rank 1 of 2 to join", row(lines, "pair")))
    assert lines[0].endswith("? help") or lines[0].endswith("? for help"), lines

    def time_is_told(lines):
        alive.api.KeepAlive(**alive.identity())
        return re.search(r" 1/2  1\d s, rank 1 of", row(lines, "pair"))

    lines = terminal.shows("the time", time_is_told)
    assert re.fullmatch(r"pair waits for rank 1 of 2 to join, for \d+ s", lines[1]), lines
    terminal.type("?")
    terminal.shows("q      ends")
    terminal.type("x")
    terminal.shows("the models again", lambda lines: names(lines) == ["pair"])


def test_keys_sort_filter_and_help(context):
    if skipped_without_pyte():
        return
    server = context.server()
    for name, scale in (("beta", 64.0), ("alpha", 1024.0), ("gamma", 8.0)):
        test_model = context.model(name, server)
        test_model.api.SetScale(model=name, scale=scale)
    terminal = Terminal(context, server)
    terminal.shows("by name", lambda lines: names(lines) == ["alpha", "beta", "gamma"])
    terminal.type("r")
    terminal.shows("reversed", lambda lines: names(lines) == ["gamma", "beta", "alpha"] and "reversed" in lines[0])
    terminal.type("rss")
    terminal.shows("by scale", lambda lines: names(lines) == ["alpha", "beta", "gamma"] and "by scale" in lines[0])
    terminal.type("s/et")
    terminal.shows("models with: et_")
    terminal.type("\r")
    terminal.shows("the filter", lambda lines: names(lines) == ["beta"] and '1 of 3 models with "et"' in lines[0])
    terminal.type("?")
    terminal.shows("q      ends")
    terminal.type("?")
    terminal.shows("the models again", lambda lines: names(lines) == ["beta"])
    terminal.type("\x1b")
    terminal.shows("no filter", lambda lines: len(names(lines)) == 3)
    terminal.type("/betq\x7fa\r")  # q is a letter there
    terminal.shows("a letter taken back", lambda lines: names(lines) == ["beta"])
    terminal.type("q")
    assert terminal.wait() == 0


def test_the_screen_shows_other_models_by_keys_and_takes_a_new_size(context):
    if skipped_without_pyte():
        return
    server = context.server()
    for number in range(12):
        context.model(f"model-{number:02}", server)
    terminal = Terminal(context, server, columns=100, lines=8)
    lines = terminal.shows("model-04")
    assert len(names(lines)) == 5 and len(lines) == 8, lines
    for key, first in (("\x1bOB", 1), ("\x1b[6~", 6), ("\x1bOA", 5)):  # as an xterm sends arrows and pages
        terminal.type(key)
        terminal.shows(f"from the model {first} on", lambda lines, first=first: (
            names(lines) == [f"model-{first + at:02}" for at in range(5)]
            and f"models {first + 1} to {first + 5} of 12" in lines[1]))
    for columns, rows in ((60, 6), (150, 30), (20, 2), (140, 20)):
        terminal.resize(columns, rows)
        wanted = min(12, rows - 3)
        lines = terminal.shows(f"{columns} x {rows}", lambda lines, wanted=wanted: (
            len(names(lines)) == max(wanted, 0) and lines[0].startswith("ampd")))
        assert len(lines) == rows and all(len(line) <= columns for line in lines), lines
    terminal.type("q")
    assert terminal.wait() == 0


def test_a_server_that_is_away_stands_on_the_screen(context):
    if skipped_without_pyte():
        return
    server = context.server()
    context.model("alpha", server)
    terminal = Terminal(context, server)
    terminal.shows("alpha")
    server.kill()
    lines = terminal.shows("no answer: ")
    assert names(lines) == ["alpha"], lines
    server.start()
    terminal.shows("an answer", lambda lines: names(lines) == ["alpha"] and lines[1] == "")
    terminal.type("q")
    assert terminal.wait() == 0


def test_without_a_terminal_it_is_one_table(context):
    server = context.server()
    worker = context.model("alpha", server).worker()
    steps(worker, 1.0, float("inf"))
    command = [context.bin_dir / "ampctl", "-e", f"127.0.0.1:{server.port}"]

    def ask(*words):
        return subprocess.run([*command, *words, "--interval", "0.1"], stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, encoding="utf-8", timeout=CALL_TIMEOUT_S, check=True).stdout

    text = ask("top")
    assert text.split("\n")[1].split()[:4] == ["alpha", "running", "3", "0"] and "\x1b" not in text, text
    [found] = json.loads(ask("-o", "json", "top"))["rows"]
    assert (found["name"], found["steps_per_second"]) == ("alpha", 0.0), found
    assert (found["scale"], found["skipped"]) == (512.0, 1), found
    [found] = csv.DictReader(io.StringIO(ask("-o", "csv", "top")))
    assert (found["name"], found["workers"], found["world_size"]) == ("alpha", "1", "1"), found
    server.kill()
    assert subprocess.run([*command, "top"], capture_output=True, timeout=60, check=False).returncode == 64 + 14


def test_a_watch_has_its_heading_at_once_and_says_whom_it_waits_for_once(context):
    server = context.server()
    test_model = context.model("pair", server, world_size=2)
    alive = test_model.worker("a", rank=0)
    command = [*DIE_WITH_PARENT, context.bin_dir / "ampctl", "-e", f"127.0.0.1:{server.port}", "watch", "pair"]
    errors = context.work / "watch-errors"
    with errors.open("w") as told, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=told,
                                                    encoding="utf-8") as watch:
        assert watch.stdout.readline().split()[:3] == ["EPOCH", "STEP", "VERDICT"]
        assert errors.read_text() == ""

        def says():
            alive.api.KeepAlive(**alive.identity())
            return errors.read_text()

        said = eventually(says, "it says whom it waits for")
        assert re.fullmatch(r"ampctl: watch: no step has been decided for 10 s; the model waits for rank 1 of 2 to join"
                            r"(, for \d+ s)?\n", said), said
        both = [alive, test_model.worker("b", rank=1)]
        for worker in both:
            worker.pull()
        call = both[0].start_push({"w": [1.0] * 4})
        both[1].push({"w": [1.0] * 4})
        call.result()
        assert watch.stdout.readline().split()[1:3] == ["1", "applied"]
        assert errors.read_text() == said, "once in a wait"
        watch.terminate()


if __name__ == "__main__":
    run(globals())
