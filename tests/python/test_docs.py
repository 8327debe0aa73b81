"""docs/python.md has every public name."""
from python_testing import ROOT, needs, run  # (first: it finds the package)

import inspect

import ampd

needs("google.protobuf", "torch")
TEXT = (ROOT / "docs" / "python.md").read_text()


def missing(names):
    return [name for name in names if not name.startswith("_") and name not in TEXT]


def test_each_name_of_the_package_is_in_the_documents():
    assert not missing(ampd.__all__), missing(ampd.__all__)


def test_each_method_of_a_job_and_of_a_server_is_in_the_documents():
    inside = {"client", "close", "cast", "in_hand", "push_at", "tensor"}  # what modules share with each other
    for kind in (ampd.Job, ampd.Server):
        names = missing(set(dir(kind)) - inside)
        assert not names, (kind, names)


def test_each_argument_of_join_is_in_the_documents():
    names = missing(inspect.signature(ampd.join).parameters)
    assert not names, names


run(globals())
