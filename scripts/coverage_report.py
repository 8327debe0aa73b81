#!/usr/bin/python3
"""coverage_report.py --build BUILD [OPTION]... FOLDER...: adds up gcov's counts by file; scripts/coverage.sh runs it.

Objects' counts (.gcno, .gcda) are taken from the build folder. A line or branch that is in several objects (a header's)
is covered if any of them covers it. Exit code 1 if a bound of --lines, --taken or --branches does not hold, or an
exclusion of scripts/coverage_excluded.txt is not needed.
"""
import argparse
import json
import os
import re
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
EXCLUDED = "scripts/coverage_excluded.txt"


def gcov(tool, objects, without):
    """Yields gcov's JSON of each object file's notes below `objects`, but for the folders `without`."""
    notes = [os.path.join(folder, name) for folder, _, names in os.walk(objects) for name in names
             if name.endswith(".gcno") and folder not in without]
    for at in range(0, len(notes), 64):
        out = subprocess.run([tool, "--json-format", "--stdout", "--branch-probabilities"] + notes[at:at + 64],
                             check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
        for line in out.splitlines():
            if line.strip():
                yield json.loads(line)


class File:
    def __init__(self, path):
        self.path = path
        with open(os.path.join(ROOT, path), encoding="utf-8") as source:
            self.text = source.read().split("\n")
        self.lines = {}     # number -> count
        self.branches = {}  # (number, function, index) -> count
        self.asserts = self.lines_of_asserts()

    def lines_of_asserts(self):
        """A broken invariant, or memory that is out for a promise, ends the process: the other branch of these is none
        that a test can take."""
        found, depth = set(), 0
        for number, text in enumerate(self.text, 1):
            if depth == 0 and not re.match(r"\s*AMP_(ASSERT|NEED)\(", text):
                continue
            found.add(number)
            depth += text.count("(") - text.count(")")
        return found

    def add(self, line):
        number = line["line_number"]
        self.lines[number] = self.lines.get(number, 0) + line["count"]
        if number in self.asserts:
            return
        for i, branch in enumerate(line["branches"]):
            key = (number, line.get("function_name", ""), i)
            self.branches[key] = self.branches.get(key, 0) + branch["count"]

    def exclude(self, text, kind):
        """Drops what is not covered in the lines with this text; returns whether there was any."""
        numbers = {n for n, line in enumerate(self.text, 1) if line.strip() == text}
        of = self.lines if kind == "line" else self.branches
        gone = [key for key in of if (key if kind == "line" else key[0]) in numbers and of[key] == 0]
        for key in gone:
            del of[key]
        return len(gone) > 0


def read(objects, folders, files):
    for tool, folder, only in objects:
        for unit in gcov(tool, folder, {other for _, other, _ in objects if other != folder}):
            for part in unit["files"]:
                path = os.path.relpath(os.path.realpath(os.path.join(unit["current_working_directory"], part["file"])),
                                       os.path.realpath(ROOT))
                wanted = path == only if only else any(path.startswith(folder + "/") for folder in folders)
                if not wanted or path.startswith("build/"):
                    continue
                file = files.setdefault(path, None) or File(path)
                files[path] = file
                for line in part["lines"]:
                    file.add(line)


def exclude(files, folders):
    """Rows: path | line or branch | text of the line | reason. Returns the number of rows that are wrong."""
    wrong = 0
    with open(os.path.join(ROOT, EXCLUDED), encoding="utf-8") as rows:
        for number, row in enumerate(rows, 1):
            if not row.strip() or row.startswith("#"):
                continue
            path, kind, rest = (part.strip() for part in row.split(" | ", 2))
            text, reason = (part.strip() for part in rest.rsplit(" | ", 1))
            if not any(path.startswith(folder + "/") for folder in folders):
                continue
            if kind not in ("line", "branch") or not reason or path not in files or not files[path].exclude(text, kind):
                print("%s:%d: excludes nothing: %s | %s" % (EXCLUDED, number, path, text))
                wrong += 1
    return wrong


def percent(part, whole):
    return 100.0 * part / whole if whole else 100.0


def row(name, lines, branches, note=""):
    hit_lines, hit_branches = sum(c > 0 for c in lines), sum(c > 0 for c in branches)
    print("%-32s lines %5d of %5d %6.1f %%   branches %5d of %5d %6.1f %%%s" %
          (name, hit_lines, len(lines), percent(hit_lines, len(lines)), hit_branches, len(branches),
           percent(hit_branches, len(branches)), "   " + note if note else ""))
    return percent(hit_lines, len(lines)), percent(hit_branches, len(branches))


def missing(file):
    for number in sorted(n for n, count in file.lines.items() if count == 0):
        print("    %s:%d: not run: %s" % (file.path, number, file.text[number - 1].strip()))
    for number in sorted({key[0] for key, count in file.branches.items() if count == 0 and file.lines.get(key[0])}):
        print("    %s:%d: a branch not taken: %s" % (file.path, number, file.text[number - 1].strip()))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", required=True)
    parser.add_argument("--objects", nargs=3, action="append", default=[], metavar=("GCOV", "FOLDER", "FILE"))
    parser.add_argument("--apart", nargs=2, action="append", default=[], metavar=("FILE", "REASON"))
    parser.add_argument("--lines", type=float, default=0)
    parser.add_argument("--taken", type=float, default=0)
    parser.add_argument("--branches", action="append", default=[])
    parser.add_argument("--missing", action="store_true")
    parser.add_argument("folders", nargs="+")
    options = parser.parse_args()

    files, apart = {}, dict(options.apart)
    read([("gcov", options.build, None)] + options.objects, options.folders, files)
    broken = exclude(files, options.folders)
    total_lines, total_branches = [], []
    for path in sorted(files):
        file = files[path]
        lines, branches = list(file.lines.values()), list(file.branches.values())
        if path in apart:
            row(path, lines, branches, apart[path])
            continue
        row(path, lines, branches)
        total_lines += lines
        total_branches += branches
        if options.missing:
            missing(file)
    for path in options.branches:
        if path not in files or any(count == 0 for count in files[path].branches.values()):
            print("coverage: not every branch of %s is covered" % path)
            broken += 1
    for path in apart:
        if path not in files:
            print("%-32s not measured" % path)
    lines, taken = row("all of " + " ".join(options.folders), total_lines, total_branches)
    if lines < options.lines:
        print("coverage: %.1f %% of the lines, %.1f %% are asked for" % (lines, options.lines))
        broken += 1
    if taken < options.taken:
        print("coverage: %.1f %% of the branches, %.1f %% are asked for" % (taken, options.taken))
        broken += 1
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
