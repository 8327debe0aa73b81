"""libampclient, found and loaded: `lib` has its functions, `ffi` its types.

It is looked for where AMPD_LIBRARY says (a file or a folder), beside this file, and where the system has its libraries.
"""
from __future__ import annotations

import os
import pathlib

from ampd._bindings import ffi
from ampd._version import __version__

NAME = "libampclient.so.0"


def _candidates() -> list[str]:
    given = os.environ.get("AMPD_LIBRARY", "")
    if given:
        return [str(pathlib.Path(given) / NAME) if os.path.isdir(given) else given]
    beside = pathlib.Path(__file__).parent / NAME
    return [str(beside)] * beside.exists() + [NAME]


def _load():
    said = []
    for name in _candidates():
        try:
            return ffi.dlopen(name), name
        except OSError as error:
            said.append(str(error))
    raise ImportError("ampd needs %s and cannot load it (%s); install the package libampclient0, or let AMPD_LIBRARY "
                      "name the file" % (NAME, "; ".join(said)))


def _check(name: str, version: str) -> None:
    if version.split(".")[:2] != __version__.split(".")[:2]:
        raise ImportError("ampd %s needs %s of the same version, and %s is %s; install packages of one version"
                          % (__version__, NAME, name, version))


lib, path = _load()
_check(path, ffi.string(lib.ampclient_version()).decode())

# "ENOTFOUND" by its number.
CODES = {number: name[len("AMP_"):] for number, name in ffi.typeof("enum amp_err").elements.items()}


def text(pointer) -> str:
    """A string of the library's."""
    return ffi.string(pointer).decode("utf-8", "replace") if pointer != ffi.NULL else ""


def address_of(pointer) -> int:
    return int(ffi.cast("uintptr_t", pointer))
