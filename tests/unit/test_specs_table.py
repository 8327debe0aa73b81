#!/usr/bin/python3
"""Pages against the sources. docs/specs.md: each row has its C and its tests, and every name in it is there.
docs/scalers.md: its golden traces are those that the unit test runs. README.md and every page: files that they name, and link to, are there.
tests/specs/: a program for each specification, with public headers of amp/ alone, and enough checks in all.

    test_specs_table.py SOURCE_DIR
"""
import pathlib
import re
import sys

NAME = re.compile(r"`(?:struct |enum )?([A-Za-z_0-9]+)`")
PATH = re.compile(r"`([a-z_0-9]+/[A-Za-z_0-9/.]+)`")

# In backquotes: a file or folder of the tree, "*" for any; with <...> or NAME in it, it is to be made.
TREE = re.compile(r"`((?:amp|base|bench|client|cmake|deploy|docs|examples|proto|rpc|scripts|server|storage|tests)/[\w./*-]+)`")
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")

# Checks that tests/specs/ has at least, and what it may include: no header that amp/CMakeLists.txt does not install.
SPEC_CHECKS_MIN = 150
PRIVATE = re.compile(r'#include "(?!amp/|tests/specs/|base/err)|#include "amp/(?:kernels/\w+|given|cast_cache|fp_env|scaler_fields)\.h"')


def rows(page):
    """(section, cells) of each row of the tables with three columns."""
    section = ""
    for line in page.splitlines():
        if line.startswith("## "):
            section = line[3:]
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| ") and len(cells) == 3 and cells[2].strip(" |") != "tests":
            yield section, [cell.strip(" |") for cell in cells]


def traces(source):
    """What is wrong with the golden traces of docs/scalers.md."""
    page = (source / "docs/scalers.md").read_text()
    written = {name: numbers.split() for name, numbers in re.findall(r"^(\w+) +((?:\d+ ?){21})$", page, re.M)}
    test = (source / "tests/unit/scaler_traces.h").read_text()
    run = {name.lower(): re.findall(r"\d+", numbers)
           for name, numbers in re.findall(r"\{AMP_SCALER_(\w+),\s*\{([\d,\s]+)\}\}", test)}
    if len(run) < 7:
        return [f"scalers.md: only {len(run)} traces were found in the test"]
    return [f"scalers.md: the trace of {name} differs" for name in sorted(run | written)
            if run.get(name) != written.get(name)]


def named_files(source):
    """What is named and not there, in README.md and docs/."""
    wrong = []
    for page in [source / "README.md", *sorted((source / "docs").glob("*.md"))]:
        text = page.read_text()
        wrong += [f"{page.name}: no file {name}" for name in TREE.findall(text)
                  if "NAME" not in name and not any(source.glob(name))]
        wrong += [f"{page.name}: a link to nothing: {to}" for to in LINK.findall(text) if not (page.parent / to).exists()]
    return wrong


def from_the_texts(source):
    """What is wrong with the checks that are written from the specifications' texts."""
    programs = {path.stem[len("test_spec_"):]: path.read_text() for path in (source / "tests/specs").glob("test_spec_*.c")}
    built = set((source / "tests/specs/CMakeLists.txt").read_text().replace(")", " ").split())
    checks = sum(text.count("cmocka_unit_test(") for text in programs.values())
    wrong = [f"tests/specs: {name} is not built" for name in sorted(programs) if name not in built]
    wrong += [f"tests/specs: {name} includes a header that is not public" for name, text in sorted(programs.items())
              if PRIVATE.search(text)]
    if len(programs) < 5 or checks < SPEC_CHECKS_MIN:
        wrong.append(f"tests/specs: {len(programs)} programs with {checks} checks, fewer than 5 with {SPEC_CHECKS_MIN}")
    return wrong


def main(source):
    page = (source / "docs/specs.md").read_text()
    headers = "\n".join(path.read_text() for path in (source / "amp").glob("*.h"))
    # Listed in a main: a test that is written and not run does not count.
    tests = {name for path in (source / "tests/unit").glob("test_amp_*.c")
             for name in re.findall(r"cmocka_unit_test(?:_setup_teardown)?\((\w+)", path.read_text())}
    wrong, seen = [], 0
    for section, (what, c, held) in rows(page):
        seen += 1
        row = f"{section}: {what[:60]}"
        if not c or not held:
            wrong.append(f"{row}: an empty cell")
        wrong += [f"{row}: no header of amp/ has {name}" for name in NAME.findall(c)
                  if not re.search(rf"\b{name}\b", headers)]
        wrong += [f"{row}: no test {name}" for name in NAME.findall(held) if name not in tests]
        paths = PATH.findall(c + held)
        wrong += [f"{row}: no file {path}" for path in paths if not (source / path).exists()]
        if not NAME.findall(c) and not paths:
            wrong.append(f"{row}: no C")
        if not NAME.findall(held) and not paths and "all of the file" not in held:
            wrong.append(f"{row}: no test")
    if seen < 100:
        wrong.append(f"only {seen} rows were found: has the form of the tables changed?")
    wrong += traces(source) + from_the_texts(source) + named_files(source)
    print("\n".join(wrong) if wrong else f"{seen} rows hold")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
