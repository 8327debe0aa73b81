#!/usr/bin/python3
"""The tables of docs/ are those of the files that they come from; and each table that differs is noticed.
What docs/adding.md says that a field and an RPC touch is there, and no more than is promised.
The rows of proto/spec_fields.def are the fields of proto/ampd/v1/model.proto, with their types, presence and words.

    test_docs_tables.py SOURCE_DIR
"""
import fnmatch
import os
import pathlib
import re
import shutil
import sys
import tempfile

sys.dont_write_bytecode = True


MESSAGES = {"optimizer": "OptimizerSpec", "schedule": "ScheduleSpec", "clip": "ClipSpec", "scaler": "ScalerSpec",
            "model": "ModelSpec"}
PARTS = ("name", "parameters", "groups", "optimizer", "schedule", "clip", "scaler")  # of ModelSpec: no rows
LINE = re.compile(r"^  (optional |repeated )?(\w+) (\w+) = \d+;\s*(?://\s*(.*))?$", re.M)


def short_name(enum, number):
    """The name of a number, without what all names of the enum begin with."""
    full = next(full for full, of in enum.items() if of == number)
    return full[len(os.path.commonprefix(list(enum))):]


def schema(source):
    """(part, field) -> (type or "choice", optional, meaning), and the defaults' names of the choices."""
    text = (source / "proto/ampd/v1/model.proto").read_text()
    common = (source / "proto/ampd/v1/common.proto").read_text()
    enums = {name: dict(re.findall(r"(\w+) = (\d+);", body))
             for name, body in re.findall(r"^enum (\w+) \{(.*?)^\}", text + common, re.M | re.S)}
    for part, message in MESSAGES.items():
        body = re.search(rf"^message {message} \{{(.*?)^\}}", text, re.M | re.S)[1]
        for rule, kind, field, words in LINE.findall(body):
            if part != "model" or field not in PARTS:
                yield (part, field), ("choice" if kind in enums else kind, rule == "optional ", words), enums.get(kind)


def wrong_fields(source, fields):
    """What differs between the rows and the schema."""
    rows = {(part, field): (kind, optional, meaning) for part, field, kind, optional, _, meaning, _, _ in fields}
    defaults = {(part, field): default for part, field, _, _, default, _, _, _ in fields}
    there = set()
    for key, told, enum in schema(source):
        there.add(key)
        name, default = ".".join(key), defaults.get(key, "").rstrip("f")
        if rows.get(key) != told:
            yield f"{name} is {rows.get(key)} in spec_fields.def and {told} in model.proto"
        elif enum and f"default {short_name(enum, default)}" not in told[2]:
            yield f"{name}: the default {default} is not what its meaning says: {told[2]}"
        elif not enum and default != "0" and not re.search(rf"default {re.escape(default)}\b", told[2]):
            yield f"{name}: the default {default} is not in its meaning: {told[2]}"
    yield from (f"{'.'.join(key)} is no field of model.proto" for key in rows if key not in there)
    header = (source / "client/ampclient.h").read_text()
    spec = re.search(r"^struct ampclient_spec \{(.*?)^\};", header, re.M | re.S)[1]
    yield from (f"{name} is no field of struct ampclient_spec" for *_, name in fields
                if not re.search(rf"\b{name}[,;]", spec))


MOST_FILES = {"a new field of a specification": 4, "a new RPC": 8, "a new call of the store": 5}
STAT = re.compile(r"^ (\S+) +\| +\d+ [+-]+$", re.M)


def wrong_changes(source):
    """What of the changes that docs/adding.md shows is not so."""
    page = (source / "docs/adding.md").read_text()
    for change, most in MOST_FILES.items():
        row = re.search(rf"^\| {change}.*$", page, re.M)[0]
        named = re.findall(r"`((?:client|docs|proto|server|storage|tests)/[\w./*-]*)`", row)
        shown = STAT.findall(re.search(rf"^{change}[^|]*?```\n(.*?)```", page, re.M | re.S)[1])
        if not 0 < len(shown) <= most:
            yield f"{change} touches {len(shown)} files, and may touch {most}"
        for path in shown:
            if not any(path.startswith(name) if name.endswith("/") else fnmatch.fnmatch(path, name) for name in named):
                yield f"{change}: {path} is not in its row"
            if not (source / path).exists() and not path.startswith("tests/scenarios/"):
                yield f"{change}: there is no {path}"


def main(source):
    sys.path.insert(0, str(source / "scripts"))
    import docs_tables
    if docs_tables.main(False, source) != 0:
        return 1
    fields = list(docs_tables.fields(source))
    wrong = [*wrong_fields(source, fields), *wrong_changes(source)]
    if wrong or len(fields) < 45:
        print("\n".join(wrong), len(fields))
        return 1
    with tempfile.TemporaryDirectory() as folder:
        copy = pathlib.Path(folder)
        for name in ("docs", "proto", "rpc"):
            shutil.copytree(source / name, copy / name)
        for name, (page, _) in docs_tables.TABLES.items():
            text = (copy / page).read_text()
            before, after = text.split(f"<!-- table {name}", 1)
            (copy / page).write_text(before + f"<!-- table {name}" + after.replace("\n| `", "\n| `x", 1))
            if docs_tables.main(False, copy) != 1:
                print(f"a changed table {name} was not noticed")
                return 1
            docs_tables.main(True, copy)
            if (copy / page).read_text() != text:
                print(f"--update does not mend the table {name}")
                return 1
    print(f"{len(docs_tables.TABLES)} tables hold")
    return 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
