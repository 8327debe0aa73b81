#!/usr/bin/python3
"""docs_tables.py [--update] [ROOT]: the tables in docs/ that come from a file of the code, between <!-- table NAME -->
and <!-- end -->.

Prints each page whose table is another one, and exits with 1 if there is any; --update writes them.
"""
import pathlib
import re
import sys


def rows_of(root, path, macro):
    """The arguments of each row of a .def file. A text may be in several pieces, as in C."""
    text = re.sub(r"/\*.*?\*/", "", (root / path).read_text(), flags=re.S)
    text = re.sub(r"^#.*?(?<!\\\\)$", "", text, flags=re.M | re.S)
    for start in re.finditer(rf"^{macro}\(", text, re.M):
        arguments, depth, at = [""], 1, start.end()
        while depth:
            piece = re.compile(r'"(?:[^"\\]|\\.)*"|.', re.S).match(text, at)[0]
            at += len(piece)
            depth += (piece == "(") - (piece == ")")
            if piece == "," and depth == 1:
                arguments.append("")
            elif depth:
                arguments[-1] += piece
        yield [argument.strip() for argument in arguments]


def roles(root):
    """Which role may call what."""
    calls = {"ANYONE": [], "WORKER": [], "OPERATOR": [], "PEER": ["PeerService"]}
    for row in rows_of(root, "proto/methods.def", "AMPD_METHOD"):
        role, name = row[7], row[1]
        if role == "ANYONE_OR_PEER":
            calls["PEER"].append(name)
            role = "ANYONE"
        if role != "PEER":
            calls[role].append(name)
        else:
            assert row[0] == "PeerService", f"{name} is for peers and in {row[0]}"
    yield "| role | may call |"
    yield "|---|---|"
    yield f"| `read` | {', '.join(calls['ANYONE'])}, reflection |"
    yield f"| `worker` | the same, and {', '.join(calls['WORKER'])} |"
    yield f"| `operator` | the same, and {', '.join(calls['OPERATOR'])} |"
    yield f"| `peer` | {' and '.join(calls['PEER'])}: other shards of the cluster |"


def text_of(argument):
    """A text of C, of one or several pieces."""
    return "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', argument)).replace('\\"', '"')


TYPES = {"F64": "double", "F32": "float", "U64": "uint64", "U32": "uint32", "RANKS": "uint32", "BOOL": "bool"}


def values_of(root, enum):
    """(short name, what the schema says of it) of each value of an enum, as in "SGD" of OPTIMIZER_KIND_SGD; `enum` as
    in optimizer_kind."""
    text = "".join((root / "proto/ampd/v1" / name).read_text() for name in ("common.proto", "model.proto"))
    found = re.findall(rf"^  {enum.upper()}_(\w+) = [1-9]\d*;(?:\s*// (.*))?$", text, re.M)
    assert found, f"the schema has no value of {enum}"
    return found


def fields(root):
    """(part, field, type, optional, default, meaning, option, name in C) of all rows of spec_fields.def, in order."""
    text = (root / "proto/spec_fields.def").read_text()
    for macro, part, field in re.findall(r"^(AMPD_SPEC_(?:NUMBER|CHOICE))\((\w+), (\w+),", text, re.M):
        row = next(row for row in rows_of(root, "proto/spec_fields.def", macro) if row[:2] == [part, field])
        option = re.match(r"OPTION\((.*)\)$", row[-2], re.S)
        yield (part.lower(), field, TYPES[row[3]] if macro.endswith("NUMBER") else "choice",
               macro.endswith("NUMBER") and row[4] != "PLAIN", row[5], text_of(row[-1]),
               re.match(r'"([^"]*)"', option[1])[1] if option else "", row[2])


def specification(root):
    """The fields of a specification, those of the model itself last."""
    yield "| field | type | meaning | `ampctl create` | in C |"
    yield "|---|---|---|---|---|"
    enums = {row[:2]: row[3] for row in map(tuple, rows_of(root, "proto/spec_fields.def", "AMPD_SPEC_CHOICE"))}
    for part, field, kind, _, _, meaning, option, name in sorted(fields(root), key=lambda row: row[0] == "model"):
        if kind == "choice":
            names = (f"`{value}`" for value, _ in values_of(root, enums[part.upper(), field]))
            meaning += f"; one of {', '.join(names)}"
        option = f"`--{option}`" if option else ""
        yield f"| `{'' if part == 'model' else part + '.'}{field}` | {kind} | {meaning} | {option} | `{name}` |"


def choices(root):
    """What the choices in a specification mean, those of the model itself last."""
    yield "| field | choice | meaning |"
    yield "|---|---|---|"
    rows = rows_of(root, "proto/spec_fields.def", "AMPD_SPEC_CHOICE")
    for part, field, _, enum, *_ in sorted(rows, key=lambda row: row[0] == "MODEL"):
        for value, meaning in values_of(root, enum):
            if meaning:
                yield f"| `{'' if part == 'MODEL' else part.lower() + '.'}{field}` | `{value}` | {meaning} |"


def causes(root):
    """Why the server ends or refuses connections and calls."""
    yield "| cause | meaning |"
    yield "|---|---|"
    for cause, meaning in re.findall(r'X\([A-Z_]+, "(\w+)",\s+"([^"]+)"\)', (root / "rpc/arpc_limits.h").read_text()):
        yield f"| `{cause}` | {meaning} |"


TABLES = {"roles": ("docs/security.md", roles), "causes": ("docs/security.md", causes),
          "specification": ("docs/specification.md", specification), "choices": ("docs/specification.md", choices)}


def main(update, root):
    stale = []
    for name, (page, table) in TABLES.items():
        text = (root / page).read_text()
        frame = re.compile(rf"(<!-- table {name}[^\n]*-->\n).*?(\n<!-- end -->)", re.S)
        if not frame.search(text):
            sys.exit(f"{page} has no place for the table {name}")
        new = frame.sub(lambda found, made=table: found[1] + "\n" + "\n".join(made(root)) + "\n" + found[2], text)
        if new != text:
            stale.append(page)
            if update:
                (root / page).write_text(new)
    for page in stale:
        said = "written" if update else "a table is not that of the file it comes from: scripts/docs_tables.py --update"
        print(f"{page}: {said}")
    return 1 if stale and not update else 0


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "--update"]
    root = pathlib.Path(arguments[0] if arguments else pathlib.Path(__file__).parent.parent)
    sys.exit(main("--update" in sys.argv, root))
