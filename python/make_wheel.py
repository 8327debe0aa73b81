#!/usr/bin/python3
"""make_wheel.py [--metadata] BUILD/python OUT: the wheel of the Python package, or its metadata alone.

The wheel is made with the setuptools at hand, from a copy of the built package without the link to the library, and its
name is printed. With SOURCE_DATE_EPOCH two of them are the same bytes. --metadata puts what importlib.metadata reads
into the folder OUT instead, which is named ampd-VERSION.dist-info; nothing is printed.
"""
import contextlib
import io
import logging
import os
import pathlib
import shutil
import sys
import tempfile

from setuptools import build_meta

HERE = pathlib.Path(__file__).resolve().parent
METADATA = ("METADATA", "top_level.txt")


def stage(package, folder):
    """What setuptools sees: it writes beside what it reads, and takes what it finds there into the next wheel."""
    shutil.copy(HERE / "pyproject.toml", folder)
    shutil.copy(HERE.parent / "LICENSE", folder)
    (folder / "ampd").mkdir()
    for file in sorted((package / "ampd").iterdir()):
        if file.is_file() and not file.is_symlink():
            (folder / "ampd" / file.name).write_bytes(file.read_bytes())


def make(build, out):
    """What build_meta's function of that name has made, from a stage that is gone when it returns."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            logging.basicConfig(stream=said)
            return getattr(build_meta, build)(str(out))
    except BaseException:
        print(said.getvalue(), file=sys.stderr)
        raise


def main():
    arguments = sys.argv[1:]
    only_metadata = arguments[:1] == ["--metadata"]
    if len(arguments) != 2 + only_metadata:
        sys.exit(f"usage: {pathlib.Path(__file__).name} [--metadata] BUILD/python OUT")
    package, out = (pathlib.Path(name).resolve() for name in arguments[-2:])
    out.mkdir(parents=True, exist_ok=True)
    os.umask(0o022)
    with tempfile.TemporaryDirectory(prefix="ampd-wheel-") as folder:
        stage(package, pathlib.Path(folder))
        os.chdir(folder)
        if only_metadata:
            made = pathlib.Path(folder) / make("prepare_metadata_for_build_wheel", folder)
            if made.name != out.name:
                sys.exit(f"{out} should be named {made.name}")
            for name in METADATA:
                shutil.copy(made / name, out)
        else:
            print(make("build_wheel", out))
        os.chdir("/")


if __name__ == "__main__":
    main()
