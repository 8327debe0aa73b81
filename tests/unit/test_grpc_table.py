#!/usr/bin/python3
"""docs/grpc.md against the tree: every file that it names is there, and every test that it names is written and run.

    test_grpc_table.py SOURCE_DIR
"""
import pathlib
import re
import sys

QUOTED = re.compile(r"`([^`]+)`")
# Not tests: what stands in backquotes in the last column is a test or a file.
TEST = re.compile(r"[a-z][a-z0-9_]{8,}")
PATH = re.compile(r"(rpc|tests|docs|server)/[\w./]+")


def tests_of(source):
    """Names of tests: in C listed in a main beside their definition, in Python found by their head."""
    names = set()
    for path in (source / "tests").rglob("*.c"):
        text = path.read_text()
        for name in re.findall(r"(\w+)\(void \*\*state\)", text):
            if len(re.findall(rf"\b{name}\b", text)) > 1:
                names.add(name)
    for path in (source / "tests").rglob("*.py"):
        names.update(re.findall(r"def (test_\w+)\(", path.read_text()))
    return names


def main(source):
    page = (source / "docs/grpc.md").read_text()
    tests, wrong, rows = tests_of(source), [], 0
    for line in page.splitlines():
        paths = [text for text in QUOTED.findall(line) if PATH.fullmatch(text)]
        wrong += [f"no file {path}" for path in paths if not (source / path).exists()]
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if not line.startswith("| ") or len(cells) != 3 or cells[0] == "what":
            continue
        rows += 1
        proofs = QUOTED.findall(cells[2])
        if not proofs:
            wrong.append(f"no test: {cells[0]}")
        wrong += [f"no test {name}" for name in proofs if TEST.fullmatch(name) and name not in tests]
        wrong += [f"neither test nor file: {name}" for name in proofs if not TEST.fullmatch(name) and not PATH.fullmatch(name)]
    if rows < 40:
        wrong.append(f"only {rows} rows were found: has the form of the tables changed?")
    print("\n".join(wrong) if wrong else f"{rows} rows hold")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
