#!/usr/bin/python3
"""What ampctl and ampd say of themselves: --help, manual pages and bash's completion have the same verbs and options,
and a wrong one names the one that was meant. No server is needed.

    test_ampctl_usage.py BUILD_DIR [NAME ...]
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

BUILD = pathlib.Path(sys.argv[1]).resolve()
BIN, SHARE = BUILD / "bin", BUILD / "share"
ARGP = {"--help", "--usage", "--version"}  # argp's own
WIDTH = 79  # of a terminal, as argp assumes it


def run(*command, code=0, **environ):
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", timeout=60,
                          check=False, env=dict(os.environ, LC_ALL="C.UTF-8", COLUMNS="80", **environ))
    assert done.returncode == code, f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout if code == 0 else done.stderr


def ampctl(*arguments, code=0):
    return run(BIN / "ampctl", *arguments, code=code)


def name_of(line):
    """The verb that a line begins with: small letters, before arguments and what it does."""
    return re.split(r" {2,}| \[| [A-Z]", line.strip())[0]


def verbs():
    """The lines of the list, as (name, summary)."""
    listed = re.search(r"^Verbs:\n((?:  .*\n)+)", ampctl("--help"), re.M)[1]
    return [(name_of(line), line) for line in listed.splitlines()]


def options_of(text):
    """The long options that a --help or a part of a manual page tells of, each on a line of its own."""
    return set(re.findall(r"^ {2,}(?:-., )?(--[a-z][a-z0-9-]*)", text, re.M)) - ARGP


def sections(page, indent):
    """heading -> text of a part of a page's VERBS."""
    found, name = {}, None
    for line in page.split("\nVERBS\n")[1].splitlines():
        if re.match(r"^ {%d}\S" % indent, line):
            name = name_of(line)
            found[name] = ""
        elif re.match(r"^\S", line):
            break
        elif name is not None:
            found[name] += line + "\n"
    return found


def completed(program, *words, **environ):
    """What bash offers for the last of the words."""
    script = ('source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _"$1"; '
              'printf "%s\\n" "${COMPREPLY[@]}"')
    return set(run("bash", "-c", script, "bash", SHARE / "bash-completion" / "completions" / program, program, *words,
                   **environ).splitlines()) - {""}


def page(name):
    file = SHARE / "man" / f"man{name[-1]}" / name
    if shutil.which("scdoc") is None and not file.exists():
        return None
    assert file.exists(), f"{file} was not built"
    return run("man", "--no-hyphenation", "-l", file) if shutil.which("man") else run("mandoc", "-T", "utf8", file)


# ---- tests ----

def test_help_fits_a_terminal_and_names_each_verb_once():
    names = [name for name, _ in verbs()]
    assert len(names) > 15 and len(set(names)) == len(names), names
    for _, line in verbs():
        assert re.match(r"  \S.*?  +\S", line) and len(line) <= WIDTH, line
    for name in names:
        text = ampctl(*name.split(), "--help")
        usage, rest = text.split("\n", 1)
        assert usage.startswith(f"Usage: ampctl {name} "), usage
        examples = re.search(r"\nExamples:\n((?:  ampctl .*\n)+)\n", rest)
        assert examples and rest.index("Examples:") < rest.index("--help"), text
        assert all(f"ampctl {name}" in line or line.startswith("  ampctl ") for line in examples[1].splitlines()), text
        assert "--endpoint=" not in text, f"{name} --help has an option of all verbs"
        assert ampctl("help", *name.split()) == text


def test_examples_are_what_the_verb_takes():
    """The verb and the options of each are known; what is not would be told before --help is."""
    for name, _ in verbs():
        text = ampctl(*name.split(), "--help")
        for line in re.search(r"\nExamples:\n((?:  .*\n)+)\n", text)[1].splitlines():
            words = re.split(r" (?:&&|>|&) ?", line.strip().removesuffix(" &"))[0]
            words = [word.strip('"') for word in re.findall(r'"[^"]*"|\S+', words)]
            assert words[0] == "ampctl", line
            told = run("bash", "-c", '"$@" --help', "bash", BIN / "ampctl", *words[1:])
            assert told.startswith("Usage: ampctl "), line


def test_each_option_of_help_is_in_the_manual_page_and_in_the_completion():
    manual = page("ampctl.1")
    common = options_of(ampctl("--help"))
    assert {"--endpoint", "--output", "--timeout", "--token-file"} <= common, common
    assert common <= completed("ampctl", "--") and {"history", "checkpoint", "scale"} <= completed("ampctl", "")
    told = sections(manual, 3) if manual else {}
    assert manual is None or common == options_of(manual.split("\nVERBS\n")[0]), common
    for name, _ in verbs():
        own = options_of(ampctl(*name.split(), "--help"))
        assert completed("ampctl", *name.split(), "--") == own | common | {"--help"}, name
        if manual:
            assert options_of(told[name]) == own, (name, own, options_of(told[name]))
    assert manual is None or set(told) == {name for name, _ in verbs()}
    if manual is None:
        print("SKIPPED: the manual page: no scdoc (package scdoc)")


def test_each_option_of_ampd_is_in_its_manual_page_and_in_its_completion():
    manual, own = page("ampd.8"), options_of(run(BIN / "ampd", "--help"))
    assert len(own) > 25 and "--data-dir" in own and "--usage-as" not in own
    assert completed("ampd", "--") == own | {"--help"}
    if manual is None:
        print("SKIPPED: the manual page: no scdoc (package scdoc)")
    else:
        assert options_of(manual) == own, options_of(manual) ^ own


def test_completion_knows_verbs_of_two_words_and_values():
    assert completed("ampctl", "his") == {"history"} and completed("ampctl", "-e", "h:1", "sc") == {"scale"}
    assert completed("ampctl", "scale", "") == {"set", "reset"}
    nobody = ("-e", "127.0.0.1", ":", "1")  # whose models could be offered too
    assert completed("ampctl", *nobody, "checkpoint", "") == {"export", "import"}, "checkpoint is a verb by itself, too"
    assert completed("ampctl", "--output", "") == {"table", "json", "csv"}
    assert completed("ampctl", "-o", "") == completed("ampctl", "status", "-o", "") == {"table", "json", "csv"}
    assert completed("ampctl", "log-level", "") == {"debug", "info", "warn", "error"}
    assert completed("ampctl", "token", "new", "") == {"read", "worker", "operator", "peer"}
    assert completed("ampctl", "-o", "json", "token", "new", "--append", "f", "w") == {"worker"}
    assert completed("ampctl", "history", "--epoch", "") == set(), "a number is not completed"
    assert completed("ampctl", "history", "m", "--pl") == {"--plot"}
    assert str(BIN / "ampctl") in completed("ampctl", "history", "m", "--svg", str(BIN / "ampc"))
    assert completed("ampd", "--shared-memory", "") == {"on", "off"}


def test_completion_offers_each_word_that_an_option_of_few_words_takes():
    refused = {("ampctl", "create", "m", "/dev/null", f"--{name}"): r"give one of: (.*)"
               for name in ("optimizer", "schedule", "cast", "on-loss", "durability")}
    refused["ampd", "--data-dir", "d", "--log-level"] = r"give (.*)"
    for words, told in refused.items():
        done = subprocess.run([BIN / words[0], *words[1:], "?"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE,
                              timeout=60, encoding="utf-8")
        takes = set(re.split(r"[, ]+(?:or )?", re.search(told, done.stderr)[1].removesuffix(" (see ampd --help)")))
        assert len(takes) > 1 and completed(*words, "") == takes, (words, takes)
    assert completed("ampctl", "create", "m", "f", "--optimizer", "ad") == {"adam", "adamw", "adagrad"}
    assert completed("ampd", "--client-cert-role", "") == {"read", "worker", "operator", "peer"}


def test_completion_offers_files_only_where_one_is_wanted():
    program = str(BIN / "ampctl")
    for words in (("create", "m"), ("checkpoint", "export", "m"), ("-o", "json", "checkpoint", "import", "--full", "m"),
                  ("backup",), ("restore",), ("tensorboard", "m", "--logdir")):
        assert program in completed("ampctl", *words, str(BIN / "ampc")), words
    for words in (("create",), ("status",), ("history", "m"), ("config",), ("log-level",), ("token", "new", "read"),
                  ("backup", "dir"), ("rollback", "m"), ("doctor",), ("checkpoint", "export"), ("checkpoint", "m")):
        assert completed("ampctl", *words, str(BIN / "ampc")) == set(), words


def test_completion_offers_the_models_of_the_server_and_runs_nothing_that_is_in_their_names():
    with tempfile.TemporaryDirectory() as folder:
        fake, marker, asked = (pathlib.Path(folder) / name for name in ("ampctl", "marker", "asked"))
        fake.write_text("#!/bin/sh\necho \"$@\" > '%s'\nprintf 'name,state\\r\\ndigits,running\\r\\n"
                        "dim,running\\r\\n$(touch %s),running\\r\\nmnist,done\\r\\n'\n" % (asked, marker))
        fake.chmod(0o755)
        path = {"PATH": folder + ":" + os.environ["PATH"]}
        assert completed("ampctl", "history", "di", **path) == {"digits", "dim"}
        assert completed("ampctl", "backup", "dir", "m", **path) == {"mnist"}
        assert completed("ampctl", "checkpoint", "im", **path) == {"import"}
        assert completed("ampctl", "checkpoint", "di", **path) == {"digits", "dim"}
        assert len(completed("ampctl", "status", "", **path)) == 4 and not marker.exists()
        # As bash takes it apart.
        words = ("-e", "h", ":", "1", "--token-file", "=", "t", "scale", "set", "mn")
        assert completed("ampctl", *words, **path) == {"mnist"}
        assert asked.read_text() == "-e h:1 --token-file t --output csv --timeout 1 models\n"
        assert completed("ampctl", "history", "m", "mn", **path) == set(), "one model is enough"
    assert completed("ampctl", "-e", "127.0.0.1:1", "history", "", PATH=str(BIN) + ":" + os.environ["PATH"]) == set()


def test_a_wrong_verb_or_option_names_the_one_that_was_meant():
    for words, meant in ((("histroy",), '"history"'), (("stat",), '"status"'), (("checkpoint-s",), '"checkpoints"'),
                         (("scale", "rest"), '"scale reset"'), (("scale",), '"scale set"'),
                         (("token", "now"), '"token new"'), (("logs-level", "info"), '"log-level"')):
        error = ampctl(*words, code=2)
        assert f"did you mean {meant}?" in error and error.count("\n") == 1, error
    for words, meant in ((("history", "m", "--plto"), "--plot"), (("--endpiont", "h:1", "models"), "--endpoint"),
                         (("history", "--form=3", "m"), "--from"),
                         (("create", "m", "f", "--optimiser", "sgd"), "--optimizer"),
                         (("models", "--ouput", "json"), "--output"), (("history", "m", "--PLOT"), "--plot")):
        error = ampctl(*words, code=2)
        assert f"did you mean {meant}?" in error and error.count("\n") == 1, error
    assert "did you mean" not in ampctl("stop", code=2) + ampctl("stop", "digits", code=2)
    assert ampctl("xyzzy", code=2) == 'ampctl: there is no verb "xyzzy". See ampctl --help\n'
    assert "did you mean" not in ampctl("xyzzy", code=2) + ampctl("history", "m", "--xyzzy", code=2)
    error = run(BIN / "ampd", "--data-dri", "x", code=2)
    assert "there is no option --data-dri; did you mean --data-dir?" in error and error.count("\n") == 1, error
    assert "ampctl ready: there is no option --sson" in ampctl("ready", "--sson", code=3)


def test_an_unknown_option_of_the_configuration_file_is_told_with_one_hint():
    with tempfile.NamedTemporaryFile("w", suffix=".conf", encoding="ascii") as file:
        file.write("xyzzy: x\n")
        file.flush()
        error = run(BIN / "ampd", "--config", file.name, code=2)
    assert error == f"ampd: {file.name}:1: ampd has no option xyzzy (see ampd --help)\n", error


def test_values_that_look_like_options_are_left_alone():
    assert "--nonsense" not in ampctl("--timeout", "--nonsense", "models", code=2).split("is \"--nonsense\"")[0]
    assert "there is no option" not in ampctl("history", "--", "--xyzzy", "m", code=2)
    assert "ambiguous" in ampctl("models", "--token", code=2)


def test_a_negative_number_is_an_argument():
    for words in (("m", "-1"), ("-1", "m"), ("m", "--reason", "why", "-1.5e3"), ("m", "-1", "--reason=why"),
                  ("-o", "json", "m", "-2")):
        error = ampctl("set-lr", *words, code=2)
        assert re.search(r'the learning rate is "(-[12].*|m)"; give a number above 0', error), (words, error)
    assert 'step is "-1"' in ampctl("rollback", "m", "-1", code=2).lower()
    assert '--growth-factor is "-2"' not in ampctl("set-lr", "m", "-2", code=2)
    assert "invalid option" in ampctl("models", "-x", code=2)


def test_what_is_said_of_an_unknown_option_is_a_sentence():
    assert "there is no option --wrld. See ampctl create --help\n" in ampctl("create", "m", "f", "--wrld", code=2)
    assert "there is no option --wrld. See ampctl --help\n" in ampctl("--wrld", "models", code=2)


def test_options_have_the_names_that_pytorch_has_for_them():
    """What comes after them is refused, and they are not."""
    for name in ("f16", "fp16", "float16", "half", "bf16", "bfloat16", "f32", "fp32", "float32"):
        error = ampctl("create", "m", "/nowhere", "--cast", name, "--world-size", "2", code=1)
        assert "/nowhere" in error, error
    assert "f32 f16 bf16" in ampctl("create", "m", "/nowhere", "--cast", "f8", code=2)
    assert "--workers is" in ampctl("create", "m", "/nowhere", "--world-size", "many", code=2)
    assert ampctl("replay", "m", "--scaler", "what", code=2) == ampctl("replay", "m", "--policy", "what", code=2)


def test_a_number_that_fp32_has_as_zero_or_infinity_is_refused():
    for option in ("--init-scale", "--clip-norm"):
        for number in ("1e-50", "1e39"):
            error = ampctl("create", "m", "f", option, number, code=2)
            assert f'{option} is "{number}"; give a number within the range of fp32\n' in error, error


def test_a_number_that_is_too_large_is_refused_with_the_greatest_and_none_is_cut():
    for greatest, uses in ((2**32 - 1, (("overflows", "m", "--rank"), ("replay", "m", "--hysteresis"),
                                        ("replay", "m", "--growth-interval"), ("evict", "m"))),
                           (2**63 - 1, (("create", "m", "f", "--max-steps"), ("explain", "m"), ("rollback", "m"),
                                        ("history", "m", "--from"), ("history", "m", "--to"),
                                        ("history", "m", "--epoch"), ("history", "m", "--limit"),
                                        ("replay", "m", "--from"), ("replay", "m", "--to"),
                                        ("explain", "m", "1", "--epoch"), ("watch", "m", "--from"),
                                        ("checkpoint", "export", "m", "f", "--step"))),
                           (3600, (("drain", "--grace"),))):
        for words in uses:
            for number in (greatest + 1, 2**64, 2**64 + 1, -1, "1e3"):
                option = words[-1] if words[-1].startswith("--") else None
                # behind --, -1 is an argument, not an option
                given = words if option else (words[0], "--", *words[1:])
                error = ampctl(*given, str(number), code=2)
                name = option or ("RANK" if words[0] == "evict" else "STEP")
                assert f'{name} is "{number}"; give a number from 0 to {greatest}\n' in error, error


def test_steps_in_the_wrong_order_are_refused_with_the_options_names():
    for verb in ("history", "overflows", "replay"):
        error = ampctl(verb, "m", "--from", "590", "--to", "580", code=2)
        assert f"ampctl {verb}: --to 580 is before --from 590; give the first step as --from\n" in error, error


def test_a_number_of_workers_is_refused_with_the_bounds_that_a_model_has():
    for number in ("two", "0", "257", str(2**32 + 1), str(2**64 + 1), "-1", "1.5", ""):
        error = ampctl("create", "m", "f", "--workers", number, code=2)
        assert f'--workers is "{number}"; give a number from 1 to 256\n' in error, error


def test_manual_pages_are_clean():
    """What is left are the empty paragraphs that scdoc itself writes, which no reader sees."""
    if shutil.which("mandoc") is None:
        print("SKIPPED: no mandoc (package mandoc)")
        return
    files = sorted((SHARE / "man").glob("man*/*"))
    assert [file.name for file in files] == ["ampctl.1", "libampclient.3", "ampd.conf.5",
                                              "ampd.8"], files
    done = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", *files], stdout=subprocess.PIPE, encoding="utf-8",
                          timeout=60, check=False)
    bad = [line for line in done.stdout.splitlines() if "WARNING: skipping paragraph macro: PP" not in line]
    assert not bad, "\n".join(bad)


def test_install_puts_pages_and_completion_where_they_are_looked_for():
    target = BUILD / "usage-install"
    shutil.rmtree(target, ignore_errors=True)
    run("cmake", "--install", BUILD, "--prefix", target)
    wanted = ["share/bash-completion/completions/ampctl", "share/bash-completion/completions/ampd",
              "share/doc/ampd/docs/security.md"]
    if shutil.which("scdoc"):
        wanted += ["share/man/man1/ampctl.1", "share/man/man8/ampd.8", "share/man/man3/libampclient.3"]
    missing = [name for name in wanted if not (target / name).is_file()]
    shutil.rmtree(target)
    assert not missing, missing


def main():
    failed = 0
    for name, test in [(name, value) for name, value in globals().items() if name.startswith("test_")]:
        if sys.argv[2:] and not any(part in name for part in sys.argv[2:]):
            continue
        print(f"[ RUN      ] {name[5:]}", flush=True)
        try:
            test()
            print(f"[       OK ] {name[5:]}", flush=True)
        except (AssertionError, KeyError, TypeError, ValueError, OSError, subprocess.SubprocessError) as error:
            print(f"[  ERROR   ] {type(error).__name__}: {error}\n[  FAILED  ] {name[5:]}", flush=True)
            failed += 1
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
