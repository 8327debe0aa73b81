"""The wheel: it is built without a network, holds the package and nothing else, and works in a venv."""
from python_testing import PACKAGE, ROOT, Skip, folder, needs, run  # noqa: F401 (first: it finds the package)

import hashlib
import os
import pathlib
import re
import subprocess
import sys
import zipfile

needs("setuptools", "wheel")

STEP_TIMEOUT_S = 300
# Whatever else may lie in this environment: only what is asked for is seen.
CLEAN = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_", "AMPD_"))}

IN_A_VENV = """
import importlib.metadata, pathlib, sys
import ampd, ampd.testing
assert str(pathlib.Path(ampd.__file__)).startswith(sys.prefix + "/"), ampd.__file__
assert importlib.metadata.version("ampd") == ampd.__version__
with ampd.testing.server() as server, ampd.join(server.endpoint, "m", {"w": ampd_values}, cast="float32",
                                                optimizer=ampd.SGD(lr=0.5), max_steps=1) as job:
    for step in job.steps():
        step.push("w", ampd_values)
        assert step.end().applied
print(ampd.__version__)
""".replace("ampd_values", "__import__('numpy').ones(3, 'float32')")


def said(*command, **environment):
    done = subprocess.run([str(part) for part in command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          encoding="utf-8", env={**CLEAN, **environment}, timeout=STEP_TIMEOUT_S)
    assert done.returncode == 0, done.stdout
    return done.stdout.strip()


def project_version():
    return re.search(r"^project\(ampd VERSION ([0-9.]+) ", (ROOT / "CMakeLists.txt").read_text(), re.MULTILINE)[1]


def wheel(out, **environment):
    name = said(sys.executable, "-B", ROOT / "python" / "make_wheel.py", PACKAGE, out, **environment)
    assert name == f"ampd-{project_version()}-py3-none-any.whl", name
    return pathlib.Path(out) / name


def test_it_holds_the_package_and_nothing_else():
    with folder() as out, zipfile.ZipFile(wheel(out)) as made:
        names = set(made.namelist())
        sources = {f"ampd/{file.name}" for file in (ROOT / "python" / "ampd").glob("*.py")}
        ours = {name for name in names if ".dist-info/" not in name}
        assert ours >= sources | {"ampd/_bindings.py", "ampd/_version.py", "ampd/py.typed", "ampd/messages.binpb"}, ours
        assert all(name.endswith(".py") for name in ours - {"ampd/py.typed", "ampd/messages.binpb"}), ours
        metadata = made.read(f"ampd-{project_version()}.dist-info/METADATA").decode()
        for needed in ("cffi", "numpy", "protobuf"):
            assert f"\nRequires-Dist: {needed} " in metadata, metadata
        for name in names:
            for path in (ROOT, PACKAGE, out, pathlib.Path.home()):
                assert f"{path}/".encode() not in made.read(name), (name, path)


def test_the_same_package_gives_the_same_bytes():
    hashes = set()
    for _ in range(2):
        with folder() as out:
            hashes.add(hashlib.sha256(wheel(out, SOURCE_DATE_EPOCH="1700000000").read_bytes()).hexdigest())
    assert len(hashes) == 1, hashes


def test_it_trains_in_a_venv_with_the_library_that_the_environment_names():
    with folder() as out:
        python = pathlib.Path(out) / "venv" / "bin" / "python"
        try:
            said(sys.executable, "-m", "venv", "--system-site-packages", python.parents[1])
        except AssertionError as error:
            if "ensurepip is not available" in str(error):
                raise Skip("there is no ensurepip (package python3-venv)") from None
            raise
        said(python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", wheel(out))
        version = said(python, "-B", "-c", IN_A_VENV, AMPD_LIBRARY=str(PACKAGE / "ampd" / "libampclient.so.0"),
                       AMPD_BIN=str(PACKAGE.parent / "bin"))
        assert version == project_version(), version


run(globals())
