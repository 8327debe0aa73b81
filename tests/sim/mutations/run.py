#!/usr/bin/python3
"""run.py [--check] [--seeds N] [--build DIR] [--jobs N] [NAME...]: does the simulator see each mutation?

A mutation is a patch that takes one rule away. Its head says what it does, which rule of tests/model it is (if it is one
of those), and which invariant is expected to break:

    Takes away: a newer incarnation opens the step again
    Rule: NO_REOPEN
    Invariant: progress

What the simulator cannot draw (two models in one process, a call of an operator) a unit test has to see, which is named instead:

    Test: test_core_waits: a_rank_that_left_a_shrinking_model_stalls_nobody

Each is applied to a copy of the files that it changes, compiled with the flags of the build, and linked with everything
else as it is. Then seeds run from 1 on until one fails, without the core's own invariants. One line for each: the mutation, the invariant, the seed. Exit
status 1 if one is not caught within N seeds (20,000), or by another invariant, or if it does not apply or compile. A seed that fails
without the mutation, too, does not count.

--check applies the patches alone (patch --dry-run): they must keep up with the sources.
"""
import argparse
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.abspath(os.path.join(HERE, "..", "..", ".."))
SEEDS = 20000
TIMEOUT_S = 900  # 20,000 seeds take a minute on a core; a mutation may make them ten times slower
BROKEN = re.compile(r"^seed (\d+), .*broken invariant ([\w-]+):", re.M)
ASSERT = re.compile(r"^(\S+):\d+: broken invariant: (.*)$", re.M)
SEED = re.compile(r"^sim: seed (\d+)$", re.M)


class Mutation:
    def __init__(self, path):
        self.name = os.path.basename(path)[: -len(".patch")]
        self.path = path
        with open(path, encoding="utf-8") as file:
            text = file.read()
        self.files = re.findall(r"^\+\+\+ b/(\S+)", text, re.M)
        head = text[: text.index("--- a/")]
        field = re.search(r"^Invariant: (.*)$", head, re.M)
        self.invariants = field.group(1).split(" or ") if field else []
        field = re.search(r"^Test: (\w+): (\w+)$", head, re.M)
        self.test = field.groups() if field else None

    def applies(self):
        done = subprocess.run(["patch", "-p1", "--dry-run", "--force", "--fuzz=2", "-i", self.path], cwd=ROOT,
                              capture_output=True, text=True, check=False)
        return None if done.returncode == 0 else done.stdout.strip()


def commands(build):
    """Source, relative to the root -> its compiler command; not that of the crash suite, which compiles some once more."""
    with open(os.path.join(build, "compile_commands.json"), encoding="utf-8") as file:
        rows = json.load(file)
    return {os.path.relpath(row["file"], ROOT): row for row in rows if "AMPD_FAILPOINTS" not in row["command"]}


def output_of(row):
    words = shlex.split(row["command"])
    return words[words.index("-o") + 1]


def compile_one(row, source, tree, out):
    """The file of the copy, with the copy's headers before the tree's."""
    words = shlex.split(row["command"])
    while words[0].endswith("ccache"):
        words = words[1:]
    at = words.index("-o")
    words[at + 1] = out
    words[words.index("-c") + 1] = os.path.join(tree, source)
    words[1:1] = ["-w", "-Wno-error", "-I" + tree]
    done = subprocess.run(words, cwd=row["directory"], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else done.stderr


def link_words(mutation, rows, build, sources, objects, program):
    """How the program is linked: the simulator, or the unit test that the mutation names, with the mutated objects before the rest."""
    if mutation.test is None:
        rest = [os.path.join(build, output_of(row)) for file, row in rows.items()
                if file.startswith("tests/sim/") and file not in sources]
        archives = ["server/core/libampd_core.a", "client/core/libampclient_core.a", "amp/libamp.a",
                    "base/libamp_base.a"]
        words = ["cc", "-o", program] + objects + rest + [os.path.join(build, a) for a in archives]
        return words + ["-lxxhash", "-lisal", "-lm", "-lpthread"]
    target = "tests/unit/" + mutation.test[0]
    done = subprocess.run(["ninja", "-C", build, "-t", "commands", target], capture_output=True, text=True, check=True)
    words = shlex.split(done.stdout.strip().splitlines()[-1].split("&&")[1])
    at = words.index("-o")
    words[at + 1] = program
    return words[:at] + objects + words[at:]


def build_mutant(mutation, rows, build, tree):
    """Path of the program, or None and what went wrong."""
    for file in mutation.files:
        os.makedirs(os.path.dirname(os.path.join(tree, file)), exist_ok=True)
        subprocess.run(["cp", os.path.join(ROOT, file), os.path.join(tree, file)], check=True)
    done = subprocess.run(["patch", "-p1", "--force", "--fuzz=2", "-i", mutation.path], cwd=tree, capture_output=True,
                          text=True, check=False)
    if done.returncode != 0:
        return None, done.stdout
    sources = sorted(file for file in mutation.files if file.endswith(".c"))
    if any(file.endswith(".h") for file in mutation.files):
        sources = sorted(file for file in rows if re.match(r"(server/core|client/core|tests/sim)/\w+\.c$", file))
        for file in sources:  # #include "x.h" looks beside the source first: all of them stand in the copy
            target = os.path.join(tree, file)
            if not os.path.exists(target):
                os.makedirs(os.path.dirname(target), exist_ok=True)
                os.symlink(os.path.join(ROOT, file), target)
    objects = []
    for i, source in enumerate(sources):
        objects.append(os.path.join(tree, "%d.o" % i))
        error = compile_one(rows[source], source, tree, objects[-1])
        if error:
            return None, error
    program = os.path.join(tree, "program")
    words = link_words(mutation, rows, build, sources, objects, program)
    done = subprocess.run(words, cwd=build, capture_output=True, text=True, check=False)
    return (program, None) if done.returncode == 0 else (None, done.stderr)


def verdict(program, seeds, first=1):
    """(invariant, seed, what was said), or (None, None, why)."""
    try:
        done = subprocess.run([program, "--oracle", "--seeds", str(seeds), "--first", str(first)], capture_output=True,
                              text=True, errors="replace", timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return None, None, "no end after %d s" % TIMEOUT_S
    if done.returncode == 0:
        return None, None, "not caught within %d seeds" % seeds
    broken = BROKEN.search(done.stderr)
    if broken:
        return broken.group(2), broken.group(1), done.stderr.splitlines()[0]
    asserted = ASSERT.search(done.stderr)
    seed = SEED.search(done.stderr)
    if asserted and seed:
        return "core-assert", seed.group(1), "%s: %s" % (asserted.group(1), asserted.group(2))
    return None, None, "status %d: %s" % (done.returncode, done.stderr[-300:])


def caught(program, build, seeds):
    """As verdict; a seed that fails without the mutation, too, is passed over."""
    first = 1
    while first <= seeds:
        invariant, seed, said = verdict(program, seeds - first + 1, first)
        if invariant is None:
            return None, None, said if first == 1 else said + ", from %d on" % first
        if verdict(os.path.join(build, "bin", "sim"), 1, seed)[0] is None:
            return invariant, seed, said
        first = int(seed) + 1
    return None, None, "not caught within %d seeds" % seeds


def seen_by_its_test(mutation, program):
    """The named test fails with the mutation. Without it it passes, as all unit tests do."""
    try:
        done = subprocess.run([program], capture_output=True, text=True, errors="replace", timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return False, "%-28s no end of its test after %d s" % (mutation.name, TIMEOUT_S)
    test = mutation.test[1]
    out = done.stdout + done.stderr
    ended = re.search(r"^\[ RUN +\] %s$" % test, out, re.M) and not re.search(r"^\[ +OK \] %s$" % test, out, re.M)
    seen = done.returncode != 0 and ended
    return bool(seen), "%-28s %s" % (mutation.name, test if seen else "not seen by " + test)


def run(mutation, rows, build, seeds):
    with tempfile.TemporaryDirectory(prefix="mutation-") as tree:
        program, error = build_mutant(mutation, rows, build, tree)
        if error:
            return False, "%-28s does not build: %s" % (mutation.name, error)
        if mutation.test is not None:
            return seen_by_its_test(mutation, program)
        invariant, seed, said = caught(program, build, seeds)
    if invariant is None:
        return False, "%-28s %s" % (mutation.name, said)
    right = invariant in mutation.invariants
    return right, "%-28s %-14s seed %-6s%s" % (mutation.name, invariant, seed, "" if right else
                                               " expected %s: %s" % (" or ".join(mutation.invariants), said))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--build", default=os.path.join(ROOT, "build", "release"))
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("names", nargs="*")
    arguments = parser.parse_args()
    paths = sorted(os.path.join(HERE, name) for name in os.listdir(HERE) if name.endswith(".patch"))
    mutations = [m for m in map(Mutation, paths) if not arguments.names or m.name in arguments.names]
    if not mutations:
        sys.exit("mutations: none of that name")
    failed = 0
    if arguments.check:
        for mutation in mutations:
            error = mutation.applies() or ("" if mutation.invariants or mutation.test
                                           else "its head names neither an invariant nor a test")
            if error:
                failed += 1
                print("%s: %s" % (mutation.name, error))
        print("mutations: %d patches, %d do not apply" % (len(mutations), failed))
        sys.exit(1 if failed else 0)
    build = os.path.abspath(arguments.build)
    rows = commands(build)
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for good, line in pool.map(lambda m: run(m, rows, build, arguments.seeds), mutations):
            failed += 0 if good else 1
            print(line, flush=True)
    print("mutations: %d, %d not caught as expected" % (len(mutations), failed))
    sys.exit(1 if failed else 0)


main()
