#!/usr/bin/python3
"""make_bindings.py ROOT OUT: ampd/_bindings.py, the C declarations of client/ampclient.h as cffi reads them.

In cffi's ABI mode the result is nothing but Python: no compiler is needed where it is installed. It is made from the
header at each build, so that the two cannot drift. The C compiler is asked to preprocess; $CC names another one.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import cffi

# cffi knows their types; what is left of them is not for it.
STANDARD_HEADERS = ("stdarg.h", "stdbool.h", "stddef.h", "stdint.h")
KEPT = re.compile(r"^(enum|struct)\b|\bampclient_\w+\s*\(")


def preprocessed(root):
    with tempfile.TemporaryDirectory() as empty:
        for name in STANDARD_HEADERS:
            (pathlib.Path(empty) / name).touch()
        return subprocess.run([os.environ.get("CC", "cc"), "-E", "-P", "-nostdinc", "-isystem", empty, "-I", root,
                               "-D__attribute__(x)=", str(pathlib.Path(root) / "client" / "ampclient.h")],
                              check=True, stdout=subprocess.PIPE, encoding="utf-8", timeout=60).stdout


def declarations(text):
    """Those at the top: each ends with a semicolon, or with the brace of an inline function."""
    begin = depth = 0
    for at, char in enumerate(text):
        depth += (char == "{") - (char == "}")
        if depth == 0 and (char == ";" or char == "}" and "(" in text[begin:text.index("{", begin)]):
            yield text[begin:at + 1].strip()
            begin = at + 1


def main():
    root, out = sys.argv[1], pathlib.Path(sys.argv[2])
    kept = [one for one in declarations(preprocessed(root)) if KEPT.search(one) and not one.startswith("static")]
    maker = cffi.FFI()
    maker.cdef("\n".join(kept))
    maker.set_source("ampd._bindings", None)
    with tempfile.TemporaryDirectory() as folder:
        made = pathlib.Path(maker.compile(tmpdir=folder)).read_text(encoding="utf-8")
    if not out.exists() or out.read_text(encoding="utf-8") != made:
        out.write_text(made, encoding="utf-8")


if __name__ == "__main__":
    main()
