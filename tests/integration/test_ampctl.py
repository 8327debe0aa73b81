#!/usr/bin/python3
"""ampctl against a real ampd that two workers have trained on: every verb, every form of output, every exit code.

    test_ampctl.py BIN_DIR
"""
import csv
import datetime
import io
import json
import os
import pathlib
import pty
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree

BIN = pathlib.Path(sys.argv[1]).resolve()
STEPS = 24
TIMEOUT_S = 60
TRAIN_S = 400  # with ThreadSanitizer, beside other work, each step takes seconds
UNREACHABLE = "127.0.0.1:1"   # nothing listens there, and no test could
DEADLINE_EXCEEDED = 64 + 4
NOT_FOUND = 64 + 5
OUT_OF_RANGE = 64 + 11
UNAVAILABLE = 64 + 14


def start_ampd(folder):
    log = folder / "ampd.log"
    with open(log, "w", encoding="utf-8") as out:
        ampd = subprocess.Popen([BIN / "ampd", "--data-dir", folder / "data", "--listen", "127.0.0.1:0"],
                                stdout=out, stderr=out)
    deadline = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline and ampd.poll() is None:
        match = re.search(r"127\.0\.0\.1:([1-9]\d*)", log.read_text())
        if match:
            return ampd, f"127.0.0.1:{match[1]}"
        time.sleep(0.02)
    raise AssertionError("ampd did not start:\n" + log.read_text())


def train(endpoint):
    workers = []
    for rank in range(2):
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE="2")
        workers.append(subprocess.Popen([BIN / "digits", "--connect", endpoint, "--steps", str(STEPS), "--quiet"],
                                        env=environment, stdout=subprocess.DEVNULL))
    codes = [worker.wait(TRAIN_S) for worker in workers]
    assert codes == [0, 0], f"the workers ended with {codes}"


class Ampctl:
    def __init__(self, endpoint):
        self.endpoint = endpoint

    def __call__(self, *arguments, code=0, endpoint=None, env=None):
        """Its stdout; stderr is in self.stderr."""
        command = [BIN / "ampctl", "--endpoint", endpoint or self.endpoint, *arguments]
        if env is not None:
            command = [BIN / "ampctl", *arguments]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=TIMEOUT_S,
                              encoding="utf-8", check=False, env=dict(os.environ, LC_ALL="C.UTF-8", **(env or {})))
        self.stderr = done.stderr
        assert done.returncode == code, f"{arguments}: exit code {done.returncode}, not {code}\n{done.stdout}{done.stderr}"
        return done.stdout

    def json(self, *arguments):
        return json.loads(self("-o", "json", *arguments))


def ready_has_the_exit_codes_of_pg_isready(ampctl):
    assert "accepting" in ampctl("ready")
    assert ampctl.json("ready") == {"ready": True, "status": "accepting"}
    assert "no response" in ampctl("ready", code=2, endpoint=UNREACHABLE)
    ampctl("ready", "superfluous", code=3)
    ampctl("ready", code=3, endpoint="nonsense")
    ampctl("--timeout", "soon", "ready", code=3)


def the_address_comes_from_the_environment_too(ampctl):
    assert ampctl.endpoint in ampctl("ready", env={"AMPCTL_ENDPOINTS": ampctl.endpoint})
    assert ampctl("models", env={"AMPCTL_ENDPOINTS": f"{UNREACHABLE},{ampctl.endpoint}"})


def status_and_models_show_the_model_as_it_stands(ampctl):
    status = ampctl.json("status")
    assert [row["name"] for row in status["models"]] == ["digits"] and status["server"]["draining"] is False
    used, most = status["server"]["descriptors"], status["server"]["descriptors_max"]
    assert 5 < used < most and f" of {most} descriptors\n" in ampctl("status")
    row = ampctl.json("models")["rows"][0]
    assert row["state"] == "done" and row["applied"] + row["skipped"] == row["attempted"] == STEPS
    assert isinstance(row["step"], int) and row["cast"] == "f16" and row["world_size"] == 2
    assert "digits" in ampctl("models") and "rank-1" in ampctl("status", "digits")
    optimizer = ampctl.json("status", "digits")["models"][0]["specification"]["optimizer"]
    lines = [line.split(maxsplit=1) for line in ampctl("status", "digits").splitlines()]
    assert f"kind {optimizer['kind']}, learning_rate {optimizer['learning_rate']:g}, " in dict(lines)["optimizer"] + ", ", lines
    assert {"schedule", "clip", "scaler", "steps", "checkpoints"} <= dict(lines).keys(), lines


TIMES = ("apply_us", "pull_us", "wait_us", "push_us", "vote_us")


def history_says_where_the_time_of_a_step_went(ampctl):
    rows = [row for row in ampctl.json("history", "digits")["rows"] if row["kind"] == "step"]
    at_us = [int(datetime.datetime.fromisoformat(row["time"]).timestamp() * 1e6 + 0.5) for row in rows]
    assert [rows[0][name] for name in TIMES] == [None] * 5  # nothing was decided before it
    for row, before_us, decided_us in zip(rows[1:], at_us, at_us[1:]):
        assert sum(row[name] for name in TIMES) == decided_us - before_us, row
    assert all(sum(row[name] for row in rows[1:]) > 0 for name in TIMES[:4]), rows  # a vote may be there with the push
    table = csv.DictReader(ampctl("-o", "csv", "history", "digits").splitlines())
    assert table.fieldnames[-6:] == [*TIMES, "old_learning_rate"]
    told = [[line[name] for name in TIMES] for line in table if line["kind"] == "step"]
    assert told == [["" if row[name] is None else str(row[name]) for name in TIMES] for row in rows]
    assert "US" not in ampctl("history", "digits").splitlines()[0]
    explained = ampctl.json("explain", "digits", str(rows[1]["step"]))
    assert [explained["row"][name] for name in TIMES] == [rows[1][name] for name in TIMES], explained


def history_has_a_row_for_each_step_in_either_direction(ampctl):
    rows = [row for row in ampctl.json("history", "digits")["rows"] if row["kind"] == "step"]
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    for row in rows:
        halved = row["verdict"] == "skipped_overflow"
        assert row["scale"] == (row["old_scale"] / 2 if halved else row["old_scale"]) and row["contributors"] == 2
        assert (row["inf_count"] + row["nan_count"] > 0) == halved
        assert row["loss_workers"] == 2 and row["metrics"] == {}
    assert 2 < rows[0]["loss"] < 3 and rows[-1]["loss"] < rows[0]["loss"], rows  # about ln 10: it knows no digit yet
    table = ampctl("history", "digits").splitlines()
    assert "LOSS" in table[0] and "%#.6g" % rows[0]["loss"] in "\n".join(table), table
    newest = [row for row in ampctl.json("history", "digits", "--newest-first")["rows"] if row["kind"] == "step"]
    assert newest == rows[::-1]


def filters_narrow_the_rows(ampctl):
    steps = [row["step"] for row in ampctl.json("history", "digits", "--from", "5", "--to", "9")["rows"]
             if row["kind"] == "step"]
    assert steps == [5, 6, 7, 8, 9]
    assert len(ampctl.json("history", "digits", "--limit", "3")["rows"]) == 3
    skipped = ampctl.json("history", "digits", "--skipped")["rows"]
    assert skipped and all(row["verdict"].startswith("skipped") for row in skipped)
    others = ampctl.json("history", "digits", "--actions")["rows"]
    assert others == [row for row in ampctl.json("history", "digits")["rows"] if row["kind"] != "step"] != []
    both = ampctl.json("history", "digits", "--actions", "--skipped")["rows"]
    assert [row for row in both if row not in others] == skipped, both
    assert ampctl.json("history", "digits", "--epoch", "99")["rows"] == []


def overflows_name_parameter_and_worker(ampctl):
    skipped = {row["step"] for row in ampctl.json("history", "digits", "--skipped")["rows"]}
    rows = ampctl.json("overflows", "digits")["rows"]
    assert {row["step"] for row in rows} == skipped
    for row in rows:
        assert row["parameter"] and row["source"] == "worker" and row["worker"] == f"rank-{row['rank']}"
    assert {row["rank"] for row in ampctl.json("overflows", "digits", "--rank", "1")["rows"]} <= {1}
    one = ampctl.json("overflows", "digits", "--parameter", rows[0]["parameter"])["rows"]
    assert one and {row["parameter"] for row in one} == {rows[0]["parameter"]}
    assert rows[0]["parameter"] in ampctl("overflows", "digits")


def the_picture_fits_and_marks_skipped_steps(ampctl):
    lines = ampctl("history", "digits", "--plot").splitlines()
    skipped = len(ampctl.json("history", "digits", "--skipped")["rows"])
    assert lines[0] == f"loss scale over {STEPS} steps, {skipped} skipped (x)"
    assert sum(line.count("x") for line in lines[1:]) == skipped and max(map(len, lines)) < 80
    assert "2^24" in lines[1] and "\x1b" not in "".join(lines)


def the_picture_has_colours_on_a_terminal_unless_no_color_says_something(ampctl):
    for no_color, coloured in ((None, True), ("", True), ("1", False)):
        environment = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
        environment.update({} if no_color is None else {"NO_COLOR": no_color})
        ours, terminal = pty.openpty()
        subprocess.run([BIN / "ampctl", "-e", ampctl.endpoint, "history", "digits", "--plot"], env=environment,
                       stdout=terminal, timeout=TIMEOUT_S, check=True)
        picture = os.read(ours, 1 << 16)  # less than a terminal keeps
        os.close(terminal)
        os.close(ours)
        assert (b"\x1b[" in picture) == coloured, (no_color, picture)


def the_picture_is_an_svg_file_too(ampctl):
    skipped = len(ampctl.json("history", "digits", "--skipped")["rows"])
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "scale.svg"
        assert ampctl("history", "digits", "--svg", file) == ""
        assert file.read_text(encoding="utf-8") == ampctl("history", "digits", "--svg", "-")
        root = xml.etree.ElementTree.parse(file).getroot()
        ampctl("history", "digits", "--svg", file / "nowhere", code=1)
        assert "cannot be written: Not a directory" in ampctl.stderr, ampctl.stderr
    name = "{http://www.w3.org/2000/svg}"
    paths = {path.get("class"): path.get("d") for path in root.iter(f"{name}path")}
    assert root.tag == f"{name}svg" and paths["skipped"].count("M") == skipped and paths["scale"].count("H") == STEPS, paths
    texts = [text.text for text in root.iter(f"{name}text")]
    assert f"digits: loss scale over {STEPS} steps, {skipped} skipped" in texts and f"step {STEPS}" in texts, texts


def the_picture_of_the_newest_steps_goes_from_the_oldest_of_them_on(ampctl):
    words = ("history", "digits", "--newest-first", "--limit", "5")
    steps = [row["step"] for row in ampctl.json(*words)["rows"]]
    assert steps == list(range(STEPS, STEPS - 5, -1)), steps
    lines = ampctl(*words, "--plot").splitlines()
    assert lines[0].startswith("loss scale over 5 steps, "), lines
    assert lines[-1].split() == [str(STEPS - 4), str(STEPS), "step"], lines
    drawn = xml.etree.ElementTree.fromstring(ampctl(*words, "--svg", "-"))
    texts = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {str(STEPS - 4), f"step {STEPS}"} <= set(texts), texts
    assert ampctl("history", "digits", "--newest-first", "--plot") == ampctl("history", "digits", "--plot")


def a_watch_whose_output_cannot_be_written_says_so_and_nothing_else(ampctl):
    for form in ("table", "json", "csv"):
        with open("/dev/full", "w", encoding="utf-8") as full:
            done = subprocess.run([BIN / "ampctl", "-e", ampctl.endpoint, "-o", form, "watch", "digits", "--from", "1"],
                                  stdout=full, stderr=subprocess.PIPE, timeout=TIMEOUT_S, encoding="utf-8", check=False)
        assert done.returncode == 1, done
        assert done.stderr == "ampctl: the output could not be written; is the disk full?\n", done.stderr


def a_watch_whose_reader_has_gone_ends_as_every_verb_does(ampctl):
    for form in ("table", "json", "csv"):
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run([BIN / "ampctl", "-e", ampctl.endpoint, "-o", form, "watch", "digits", "--from", "1"],
                              stdout=write, stderr=subprocess.PIPE, timeout=TIMEOUT_S, encoding="utf-8", check=False)
        os.close(write)
        assert (done.returncode, done.stderr) == (-signal.SIGPIPE, ""), (form, done)


def standard_streams_that_are_closed_are_no_other_file(ampctl):
    """The first numbers would be those of its connection."""
    told = ampctl("models")
    for closed in ("0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"):
        for words, code in ((("models",), 0), (("explain", "nosuch", "1"), NOT_FOUND)):
            done = subprocess.run(["/bin/sh", "-c", f'exec "$@" {closed}', "sh", BIN / "ampctl", "-e", ampctl.endpoint, *words],
                                  stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=TIMEOUT_S, encoding="utf-8", check=False)
            assert done.returncode == code, (closed, done)
            assert done.stdout == ("" if "1>&-" in closed or code != 0 else told), (closed, done)


def a_reason_that_is_not_utf_8_is_refused_by_its_option(ampctl):
    for verb in (("scale", "reset", "digits"), ("set-lr", "digits", "0.5"), ("rollback", "digits", "1")):
        for option in ("--reason", "--request-id"):
            for wrong in (b"caf\xe9", b"\xff", b"\xed\xa0\x80"):
                ampctl(*verb, option, os.fsdecode(wrong), code=2)
                assert f"{option} is not UTF-8; " in ampctl.stderr, ampctl.stderr


def an_option_of_ampd_that_there_is_not_is_wrong_use(ampctl):
    for form in ("table", "json", "csv"):
        assert ampctl("-o", form, "config", "nope", code=2) == ""
        assert ampctl.stderr == 'ampctl: ampd has no option "nope"; ampctl config shows all of them\n', ampctl.stderr


def watch_of_a_model_that_is_done_ends(ampctl):
    rows = [json.loads(line) for line in ampctl("-o", "json", "watch", "digits", "--from", "1").splitlines()]
    assert [row["step"] for row in rows if row["kind"] == "step"] == list(range(1, STEPS + 1))
    [heading] = ampctl("watch", "digits").splitlines()
    assert heading.startswith(" EPOCH     STEP VERDICT"), heading
    lines = ampctl("watch", "digits", "--from", "1").splitlines()
    assert lines[0].split()[-2:] == ["DONE", "LEFT"] and lines[-1].split()[-2:] == ["100%", "0:00:00"], lines
    steps = [line.split() for line in lines[1:] if "applied" in line or "skipped" in line]
    assert len(steps) == STEPS and steps[0][-2:] == [f"{100 / STEPS:.0f}%", "-"], steps[0]
    assert all(re.fullmatch(r"0:\d\d:\d\d", words[-1]) for words in steps[1:]), steps
    for form in ("table", "json", "csv"):
        assert ampctl("-o", form, "watch", "digits", "--from", "99999", code=OUT_OF_RANGE) == ""
        assert f"there will be no step 99999; digits ends with step {STEPS}\n" in ampctl.stderr, ampctl.stderr


def explain_names_worker_parameter_and_reason(ampctl):
    found = ampctl.json("overflows", "digits")["rows"][0]
    told = ampctl.json("explain", "digits", str(found["step"]))
    assert told["row"]["verdict"] == "skipped_overflow" and len(told["contributors"]) == 2
    assert found in told["overflows"]
    for words in (found["worker"], found["parameter"], str(found["first_index"]), "shrank"):
        assert words in told["explanation"], (words, told["explanation"])
    assert told["explanation"] in ampctl("explain", "digits", str(found["step"]))
    ampctl("explain", "digits", str(STEPS + 1), code=OUT_OF_RANGE)
    newest = max(row["step"] for row in ampctl.json("history", "digits", "--skipped")["rows"])
    assert ampctl("explain", "digits") == ampctl("explain", "digits", str(newest))
    ampctl("explain", "digits", "--epoch", "99", code=NOT_FOUND)
    assert "the history of digits has no skipped step; name the step to explain" in ampctl.stderr, ampctl.stderr
    ampctl("explain", code=2)


def replay_of_its_own_policy_differs_nowhere(ampctl):
    history = [row for row in ampctl.json("history", "digits")["rows"] if row["kind"] == "step"]
    rows = ampctl.json("replay", "digits", "--policy", "static", "--init-scale", "1024")["rows"]
    assert [row["stored_scale"] for row in rows] == [row["scale"] for row in history]
    assert {row["replayed_scale"] for row in rows} == {1024.0} and "cannot be known" in ampctl.stderr
    ampctl("replay", "digits", "--policy", "none-such", code=2)


def checkpoints_are_listed_and_the_latest_of_a_scale_is_found(ampctl):
    rows = ampctl.json("checkpoints", "digits")["rows"]
    assert rows and rows == sorted(rows, key=lambda row: -row["step"])
    best = max(row["scale"] for row in rows)
    latest = ampctl.json("checkpoints", "digits", "--latest", "--min-scale", str(best))["rows"]
    assert latest == [row for row in rows if row["scale"] >= best][:1]
    assert len(rows[0]["manifest_hash"]) == 32


def csv_has_the_rows_of_json(ampctl):
    text = ampctl("-o", "csv", "history", "digits")
    rows, wanted = list(csv.DictReader(io.StringIO(text))), ampctl.json("history", "digits")["rows"]
    assert [int(row["step"]) for row in rows] == [row["step"] for row in wanted]
    assert [float(row["scale"]) for row in rows] == [row["scale"] for row in wanted]
    assert [float(row["loss"]) if row["loss"] else None for row in rows] == [row["loss"] for row in wanted]
    for arguments in (("overflows", "digits"), ("checkpoints", "digits"), ("models",), ("replay", "digits"), ("status",),
                      ("watch", "digits", "--from", "1")):
        assert len(list(csv.reader(io.StringIO(ampctl("-o", "csv", *arguments))))) > 1, arguments


def the_level_of_the_log_is_changed(ampctl):
    assert ampctl.json("log-level", "error") == {"old_level": "info", "level": "error"}
    assert ampctl.json("config", "log-level")[0]["value"] == "error"
    assert ampctl("log-level", "info") == "was error, is info\n"
    assert ampctl.json("config", "log-level")[0]["where"] == "default"
    ampctl("log-level", "loud", code=2)


def watch_shows_stored_steps_line_by_line(ampctl):
    command = [BIN / "ampctl", "--endpoint", ampctl.endpoint, "-o", "json", "watch", "digits", "--from", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, encoding="utf-8") as watch:
        rows = []
        while not rows or rows[-1]["step"] < STEPS:
            rows.append(json.loads(watch.stdout.readline()))
        watch.terminate()
    assert [row["step"] for row in rows if row["kind"] == "step"] == list(range(1, STEPS + 1))
    assert all(row["overflows"] for row in rows if row["verdict"] == "skipped_overflow")


def checkpoint_answers_with_the_one_that_exists(ampctl):
    rows = ampctl.json("checkpoint", "digits")["rows"]
    assert rows[0]["model"] == "digits" and rows[0]["step"] == STEPS


def wrong_use_ends_with_2_and_a_failed_call_with_64_and_its_status(ampctl):
    for arguments in ((), ("nonsense",), ("history",), ("history", "digits", "--from", "x"),
                      ("history", "digits", "--limit", "0"), ("-o", "xml", "models"), ("models", "one")):
        assert ampctl(*arguments, code=2) == "" and ampctl.stderr
    assert ampctl("history", "none", code=NOT_FOUND) == "" and "none" in ampctl.stderr
    assert ampctl("-o", "json", "overflows", "none", code=NOT_FOUND) == ""
    ampctl("models", code=UNAVAILABLE, endpoint=UNREACHABLE)
    assert "connection refused; start the server, or name it with --endpoint" in ampctl.stderr, ampctl.stderr
    ampctl("models", code=UNAVAILABLE, endpoint="no-such-host.invalid:1")
    assert "no-such-host.invalid" in ampctl.stderr and "start the server" not in ampctl.stderr, ampctl.stderr


def a_server_that_does_not_answer_is_named_with_what_to_do(ampctl):
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel connects, and nobody reads
        endpoint = f"127.0.0.1:{silent.getsockname()[1]}"
        for verb, code in (("models", DEADLINE_EXCEEDED), ("ready", 2)):
            ampctl("-t", "0.3", verb, code=code, endpoint=endpoint)
            assert f"{verb}: {endpoint} has not answered within 0.3 s; " in ampctl.stderr, ampctl.stderr
            assert "--timeout" in ampctl.stderr, ampctl.stderr


def texts_of_others_do_nothing_to_a_terminal(ampctl):
    """The reason of an act is anybody's; and an error quotes what it was asked for."""
    hostile, shown = "\x1b[31mred\x9b0m\nforged\x7f, \u00fc", "\\u001b[31mred\\u009b0m\\nforged\\u007f, \u00fc"
    with tempfile.NamedTemporaryFile(suffix=".safetensors") as file:
        head = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
        file.write(len(head).to_bytes(8, "little") + head + bytes(4))
        file.flush()
        ampctl("create", "other", file.name)
    ampctl("scale", "reset", "other", "--reason", hostile)
    for form in ("table", "csv"):
        text = ampctl("-o", form, "history", "other", "--newest-first", "--limit", "1")
        assert shown in text and not re.search("[\x00-\x09\x0b\x0c\x0e-\x1f\x7f-\x9f]", text), text
        assert len(text.splitlines()) == 2, text
    assert ampctl.json("history", "other", "--newest-first", "--limit", "1")["rows"][0]["reason"] == hostile
    ampctl("status", hostile, code=NOT_FOUND)
    assert shown in ampctl.stderr and ampctl.stderr.count("\n") == 1, ampctl.stderr


def drain_ends_the_server_in_order(ampctl):
    """The last one; main looks at the exit code."""
    ampctl("drain", "--grace", "4000", code=2)
    assert ampctl("drain", "--grace", "1") == "draining\n"


TESTS = (
    ready_has_the_exit_codes_of_pg_isready, the_address_comes_from_the_environment_too,
    status_and_models_show_the_model_as_it_stands, history_says_where_the_time_of_a_step_went,
    history_has_a_row_for_each_step_in_either_direction,
    filters_narrow_the_rows, overflows_name_parameter_and_worker, the_picture_fits_and_marks_skipped_steps,
    the_picture_has_colours_on_a_terminal_unless_no_color_says_something,
    the_picture_is_an_svg_file_too, the_picture_of_the_newest_steps_goes_from_the_oldest_of_them_on,
    a_watch_whose_output_cannot_be_written_says_so_and_nothing_else,
    a_watch_whose_reader_has_gone_ends_as_every_verb_does,
    standard_streams_that_are_closed_are_no_other_file,
    a_reason_that_is_not_utf_8_is_refused_by_its_option, an_option_of_ampd_that_there_is_not_is_wrong_use,
    watch_shows_stored_steps_line_by_line, watch_of_a_model_that_is_done_ends,
    explain_names_worker_parameter_and_reason, replay_of_its_own_policy_differs_nowhere,
    checkpoints_are_listed_and_the_latest_of_a_scale_is_found, csv_has_the_rows_of_json, the_level_of_the_log_is_changed,
    checkpoint_answers_with_the_one_that_exists,
    wrong_use_ends_with_2_and_a_failed_call_with_64_and_its_status,
    a_server_that_does_not_answer_is_named_with_what_to_do, texts_of_others_do_nothing_to_a_terminal,
    drain_ends_the_server_in_order,
)


def main():
    failed = 0
    with tempfile.TemporaryDirectory(prefix="ampctl-") as folder:
        ampd, endpoint = start_ampd(pathlib.Path(folder))
        try:
            train(endpoint)
            for test in TESTS:
                print(f"[ RUN      ] {test.__name__}", flush=True)
                try:
                    test(Ampctl(endpoint))
                    print(f"[       OK ] {test.__name__}", flush=True)
                except (AssertionError, KeyError, ValueError, OSError, subprocess.SubprocessError) as error:
                    print(f"[  ERROR   ] {type(error).__name__}: {error}\n[  FAILED  ] {test.__name__}", flush=True)
                    failed += 1
        finally:
            ampd.terminate()
            code = ampd.wait(TIMEOUT_S)
    if code != 0:
        print(f"ampd ended with {code} after SIGTERM")
    sys.exit(1 if failed or code != 0 else 0)


if __name__ == "__main__":
    main()
