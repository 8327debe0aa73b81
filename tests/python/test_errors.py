"""What errors say: the remedy, in the names that a user of the package has, and before anything is made."""
from python_testing import ROOT, folder, raises, run, told  # noqa: F401 (first: it finds the package)

import dataclasses
import inspect
import pathlib
import re

import ampd
import ampd.testing
import numpy
from ampd import _client, errors, spec

OPTIMIZERS = [ampd.SGD(0.1), ampd.SGD(0.1, momentum=0.9), ampd.Adam(0.1), ampd.AdamW(0.1), ampd.Adagrad(0.1),
              ampd.RMSprop(0.1), ampd.RMSprop(0.1, momentum=0.9), ampd.RMSprop(0.1, centered=True), ampd.Lion(0.1)]


def values():
    return {"w": numpy.ones((2, 3), numpy.float32), "b": numpy.ones(5, numpy.float32)}


def join(server, name="m", model=None, **options):
    return ampd.join(server.endpoint, name, model if model is not None else values(), **options)


def exported(server, file, optimizer, **options):
    """The file of a model of one step."""
    with join(server, "from-" + file.name, optimizer=optimizer, max_steps=1) as job:
        for step in job.steps():
            for name, array in job.parameters.items():
                step.push(name, numpy.ones(array.shape, numpy.float16))
    with ampd.connect(server.endpoint) as operator:
        operator.checkpoint(job.name)
        operator.export(job.name, file, **options)
    return file


def names(server):
    with ampd.connect(server.endpoint) as operator:
        return {one.name for one in operator.models()}


# ---- remedies ----

def test_the_remedy_is_behind_the_last_semicolon_outside_of_parentheses():
    for text, remedy in (("it is 0; give 1", "give 1"), ("a is there; wait; or end it.", "or end it"),
                         ("none answered (a: refused; b: timed out); start one.", "start one"),
                         ("no token; send one (by a file (or; two); or not)", "send one (by a file (or; two); or not)"),
                         ("it is :(; smile", "smile"), ("none answered (a; b)", "see the text")):
        assert errors.Error(text).remedy == remedy, (text, errors.Error(text).remedy)


def test_what_python_adds_to_a_sentence_is_in_its_remedy_too():
    with ampd.testing.server() as server, join(server, cast="float32") as job:
        step = job.begin()
        step.push("w", numpy.ones((2, 3), numpy.float32))
        error = raises(ampd.InvalidArgument, lambda: step.push("b", numpy.ones(5, numpy.float16)), "parameter b")
        assert error.remedy == "use one dtype, or give ampd.join gradients=, which converts", error.remedy


def test_a_parameter_whose_name_is_not_possible_is_named():
    with ampd.testing.server() as server:
        for name in ("block." * 30 + "weight", "a#b", "a@b", ""):
            raises(ampd.InvalidArgument, lambda name=name: ampd.join(server.endpoint, "m", {"w": [0.0], name: [0.0]}),
                   "the parameter %r has a name of %d bytes" % (name, len(name)), "otherwise")


def test_what_a_timeout_has_seen_last_is_no_remedy():
    with ampd.testing.server() as server, ampd.join(server.endpoint, "m", {"w": [0.0]}, rank=1, world_size=2,
                                                    step_timeout=0.5) as job:
        error = raises(ampd.Timeout, job.begin, "; last: ")  # rank 0 never comes
        assert error.remedy == ampd.Timeout.remedy, error.remedy


def test_a_call_without_a_token_is_told_what_gives_one():
    with folder() as place:
        file = pathlib.Path(place) / "tokens"
        file.write_text("token operator somebody %s\n" % ("0" * 64))
        file.chmod(0o600)
        with ampd.testing.server(options=["--token-file=%s" % file]) as server:
            error = raises(ampd.Denied, lambda: ampd.connect(server.endpoint).status(), "token_file")
            assert error.remedy.startswith("send a token") and "token_file" in error.remedy, error.remedy


def test_a_file_that_is_not_there_is_told_with_its_path():
    for option, endpoint in (("token_file", "127.0.0.1:1"), ("cacert", "tls://127.0.0.1:1")):
        error = raises(ampd.NotFound, lambda: ampd.connect(endpoint, **{option: "/nowhere/file"}), "/nowhere/file")
        assert error.remedy == "correct its path", error.remedy
    assert "models()" not in errors.error_of("ENOTFOUND", "there is no such thing").remedy


def test_a_step_that_has_not_been_is_not_found():
    with ampd.testing.server() as server, ampd.connect(server.endpoint) as operator:
        raises(ampd.NotFound, lambda: operator.explain("nobody", 1), "ampd.connect(...).models()")
        with join(server):
            pass
        error = raises(ampd.NotFound, lambda: operator.explain("m", 99), "99")
        assert error.reason == "STEP_NOT_DECIDED" and "models()" not in error.remedy, error.remedy


# ---- names ----

def fields():
    """Of proto/spec_fields.def, as sentences of the server call them."""
    rows = re.findall(r"AMPD_SPEC_(?:NUMBER|CHOICE)\((\w+), (\w+), ", (ROOT / "proto/spec_fields.def").read_text())
    return [field if part == "MODEL" else "%s.%s" % (part.lower(), field) for part, field in rows if part.isupper()]


def test_each_field_of_a_specification_is_called_as_the_argument():
    arguments = set(inspect.signature(ampd.join).parameters)
    parts = {"optimizer": spec.Optimizer, "schedule": spec.Schedule, "scaler": spec.Scaler}
    for part, kinds in parts.items():
        arguments |= {"%s.%s" % (part, one.name) for kind in kinds.__args__ for one in dataclasses.fields(kind)}
    found = fields()
    assert len(found) > 40, found
    for field in found:
        ours = _client.in_own_names("%s: it is 0" % field).partition(":")[0]
        assert re.sub(r"\[\d\]| \(.*\)$", "", ours) in arguments | {"sync_mode"}, (field, ours)


def test_sentences_about_a_specification_have_the_names_of_arguments():
    with ampd.testing.server() as server:
        for options, words in (
                ({"schedule": ampd.Cosine(total=5, warmup=9)}, ["schedule.total ", "schedule.warmup"]),
                ({"schedule": ampd.Step(0)}, ["schedule.step_size is 0"]),
                ({"schedule": ampd.Cosine(total=5, min_lr=-1)}, ["schedule.min_lr"]),
                ({"scaler": ampd.DynamicScaler(init_scale=2.0 ** 30)}, ["scaler.init_scale", "[1, 16777216]"]),
                ({"scaler": ampd.StaticScaler(-4)}, ["scale is -4"]),
                ({"optimizer": ampd.SGD(lr=-1)}, ["lr is -1"]),
                ({"optimizer": ampd.Adam(lr=1e-60)}, ["optimizer.lr: 1e-60"]),
                ({"optimizer": ampd.Adam(betas=(1.5, 0.9))}, ["betas[0] is 1.5"]),
                ({"clip_norm": -1}, ["clip_norm: -1"]), ({"clip_value": -1}, ["clip_value: -1"]),
                ({"groups": [ampd.Group("w", clip_norm=1)]}, ["groups: clip_norm", 'clip_scope="group"'])):
            raises(ampd.InvalidArgument, lambda: join(server, **options), *words)
        assert names(server) == set()
        with join(server, optimizer=ampd.SGD(0.1)):
            raises(ampd.AlreadyExists, lambda: join(server, optimizer=ampd.SGD(0.2)), "optimizer.lr is 0.1 there")


def test_an_argument_of_torchs_optimizer_is_told_where_it_goes():
    for name, place in (("lr", "optimizer=ampd.AdamW(lr=...)"), ("learning_rate", "optimizer=ampd.AdamW(lr=...)"),
                        ("momentum", "optimizer=ampd.SGD(momentum=...)"), ("gamma", "schedule=ampd.Step(gamma=...)"),
                        ("init_scale", "scaler=ampd.DynamicScaler(init_scale=...)"), ("max_step", None)):
        error = raises(TypeError, lambda: ampd.join("127.0.0.1:1", "m", values(), **{name: 1}), repr(name))
        assert str(error).endswith("; give " + place if place else "'max_step'"), error


def test_what_a_model_waits_for_and_why_it_is_unstable_is_told_in_the_names_of_python():
    with ampd.testing.server() as server, ampd.connect(server.endpoint) as operator:
        with join(server, rank=1, world_size=2):
            assert operator.model("m").waiting_for == "its first values, which rank 0 gives as it joins"
        with join(server, "floor", floor_policy="fail", max_consecutive_overflows=1,
                  scaler=ampd.DynamicScaler(init_scale=1)) as job:
            step = job.begin()
            step.push("b", numpy.full(5, numpy.inf, numpy.float16))
            step.end()
            raises(ampd.Unstable, job.begin, "why by ampd.connect(...).explain(model, step)")


# ---- what cannot be trained ----

def test_lines_of_the_log_have_the_names_of_python_too():
    with told() as said:
        line = _client.ffi.new("char[]", b"m: rank 1 waits, as the model waits for a Load of the initial values")
        _client._log(_client.ffi.NULL, _client.lib.AMPCLIENT_LOG_WARN, line)
    assert said == ["m: rank 1 waits, as the model waits for its first values, which rank 0 gives as it "
                    "joins"], said


def test_a_value_that_is_not_supported_is_told_as_such_and_not_as_a_method_that_is_missing():
    with ampd.testing.server() as server:
        error = raises(ampd.InvalidArgument, lambda: join(
            server, optimizer=ampd.RMSprop(0.1, centered=True, momentum=0.9)), "centered")
        assert "CreateModel" not in str(error) and error.reason == "RESERVED_VALUE", error


def test_integers_and_truth_values_are_no_parameters():
    given = [numpy.arange(3), numpy.int32(3), numpy.ones(3, bool), [True, False]]
    try:
        import torch
        given += [torch.arange(3), torch.ones(3, dtype=torch.bool)]
    except ImportError:
        pass
    with ampd.testing.server() as server:
        for one in given:
            raises(ampd.InvalidArgument, lambda: join(server, model={"w": one}), "the value of w", "floating-point")
        model = {"w": numpy.full(2, 1 / 3), "b": [1, 2]}
        with join(server, model=model, optimizer=ampd.SGD(0.1), cast="float32") as job:
            job.pull()
            assert (job.parameters["w"] == numpy.float32(1 / 3)).all() and (job.parameters["b"] == [1, 2]).all()


# ---- files ----

def test_a_file_that_does_not_fit_leaves_no_model_behind():
    with folder() as place, ampd.testing.server() as server, ampd.testing.server() as other:
        adam, momentum, alone, damaged = (pathlib.Path(place) / one for one in ("adam", "momentum", "alone", "damaged"))
        exported(server, adam, ampd.AdamW(0.1))
        exported(server, momentum, ampd.SGD(0.1, momentum=0.9))
        exported(server, alone, ampd.AdamW(0.1), values_only=True)
        damaged.write_bytes(adam.read_bytes()[:100])
        one_more = {**values(), "c": numpy.ones(2, numpy.float32)}
        reshaped = {**values(), "w": numpy.ones((3, 2), numpy.float32)}
        for file, model, optimizer, kind, words in (
                (adam, None, ampd.SGD(0.1), ampd.InvalidArgument, ["moments are those of adamw", "ampd.AdamW(...)"]),
                (momentum, None, ampd.SGD(0.1), ampd.InvalidArgument, ["another sgd", "momentum"]),
                (alone, None, ampd.AdamW(0.1), ampd.InvalidArgument, ["without moments", "read_safetensors"]),
                (adam, one_more, ampd.AdamW(0.1), ampd.InvalidArgument, ["parameter c has shape none there", "(2,)"]),
                (adam, reshaped, ampd.AdamW(0.1), ampd.InvalidArgument, ["w has shape (2, 3) there, and (3, 2) here"]),
                (damaged, None, ampd.AdamW(0.1), ampd.DataLoss, ["cut off"]),
                (pathlib.Path(place), None, ampd.AdamW(0.1), ampd.InvalidArgument, [place, "directory"]),
                (place + "/nothing", None, ampd.AdamW(0.1), ampd.NotFound, [place + "/nothing", "give the path"])):
            error = raises(kind, lambda: join(other, model=model, optimizer=optimizer, restore=file), *words)
            assert not isinstance(error, OSError) and error.remedy.startswith("give ") or kind is ampd.DataLoss \
                or "export all" in error.remedy, error.remedy
            assert names(other) == set(), (file, optimizer)
        with join(other, optimizer=ampd.AdamW(0.1), restore=adam) as job:
            assert job.begin().number == 2


def test_a_file_of_each_optimizer_fits_its_own_alone():
    with folder() as place, ampd.testing.server() as server, ampd.testing.server() as other:
        for number, optimizer in enumerate(OPTIMIZERS):
            file = exported(server, pathlib.Path(place) / str(number), optimizer)
            with join(other, "m%d" % number, optimizer=optimizer, restore=file) as job:
                assert job.begin().number == 2
            for one in OPTIMIZERS:
                if one != optimizer:
                    raises(ampd.InvalidArgument, lambda: join(other, "other", optimizer=one, restore=file), "moments")
        assert "other" not in names(other)


def test_another_rank_needs_no_file():
    with folder() as place, ampd.testing.server() as server:
        file = exported(server, pathlib.Path(place) / "file", ampd.SGD(0.1))
        with ampd.testing.server() as other:
            options = {"optimizer": ampd.SGD(0.1), "world_size": 2}
            with join(other, rank=1, restore=place + "/nothing", **options), \
                    join(other, rank=0, restore=file, **options) as job:
                assert job.begin().number == 2


run(globals())
