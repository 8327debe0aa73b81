#!/usr/bin/python3
"""CreateModel over the wire: what a specification may say, which field a refusal names, and when two are the same.

    test_server_specs.py BIN_DIR [NAME ...]
"""
import math
import time

import ampd_testing
from ampd_testing import (Code, grpc, model, params, Refusal, refused, run, spec)

NAN, INF = math.nan, math.inf
SGD, ADAMW = model.OPTIMIZER_KIND_SGD, model.OPTIMIZER_KIND_ADAMW
ADAGRAD, RMSPROP = model.OPTIMIZER_KIND_ADAGRAD, model.OPTIMIZER_KIND_RMSPROP


def optimizer(**fields):
    return {"optimizer": model.OptimizerSpec(**fields)}


def adamw(**fields):
    return optimizer(kind=ADAMW, **fields)


def sgd(**fields):
    return optimizer(kind=SGD, **fields)


def scaler(**fields):
    return {"scaler": model.ScalerSpec(**fields)}


def schedule(kind, **fields):
    return {"schedule": model.ScheduleSpec(kind=kind, **fields)}


def clip(**fields):
    return {"clip": model.ClipSpec(**fields)}


def groups(*fields):
    return {"groups": [model.ParameterGroup(**group) for group in fields]}


def parameters(*named_shapes):
    return {"parameters": named_shapes}


def check_kept(wanted, kept, path):
    """Every field that was given is in the answer with its value; what was not given may have been filled in."""
    for field, value in wanted.ListFields():
        other, place = getattr(kept, field.name), f"{path}.{field.name}"
        if field.label != field.LABEL_REPEATED:
            value, other = [value], [other]
        assert len(value) == len(other), f"{place}: {len(value)} were given, {len(other)} are there"
        for one, two in zip(value, other):
            if field.type == field.TYPE_MESSAGE:
                check_kept(one, two, place)
            else:
                assert one == two, f"{place}: {one!r} was given, {two!r} is there"


def check_table(context, rows):
    """Each row: (what, fields of the specification, the word that the refusal must have). All rows are tried."""
    api = context.model(load=False).api
    wrong, name = [], f"refused-{context.count}"
    for at, (what, fields, word) in enumerate(rows):
        # A name of its own for each, so that one that is taken by mistake does not hide the next.
        request = params.CreateModelRequest(spec=spec(**{"name": f"{name}-{at}", **fields}))
        try:
            refused(lambda r=request: api.CreateModel(r), Code.INVALID_ARGUMENT, words=word)
        except AssertionError as error:
            wrong.append(f"{what}: {error}")
    assert not wrong, f"{len(wrong)} of {len(rows)}:\n    " + "\n    ".join(line.replace("\n", " ") for line in wrong)
    assert not [status.name for status in api.ListModels(page_size=1000).models if status.name.startswith(name)]


def test_a_name_that_cannot_be_a_file_is_refused(context):
    check_table(context, [
        ("empty", {"name": ""}, "name"),
        ("leading dot", {"name": ".hidden"}, "name"),
        ("a path", {"name": "a/b"}, "name"),
        ("the folder above", {"name": ".."}, "name"),
        ("a space", {"name": "a b"}, "name"),
        ("not ASCII", {"name": "modèle"}, "name"),
        ("128 bytes", {"name": "n" * 128}, "name"),
        ("70000 bytes", {"name": "n" * 70000}, "name"),
    ])


def test_parameters_out_of_bounds_are_refused(context):
    check_table(context, [
        ("none", parameters(), "parameters"),
        ("no name", parameters(("", [4])), "name"),
        ("a '#'", parameters(("a#m", [4])), "name"),
        ("an '@'", parameters(("a@0:4", [4])), "name"),
        ("128 bytes of name", parameters(("p" * 128, [4])), "name"),
        ("two of one name", parameters(("a", [4]), ("b", [4]), ("a", [8])), ("parameters", "a")),
        ("an extent of 0", parameters(("a", [4, 0])), "shape"),
        ("more than 2^36 elements", parameters(("a", [(1 << 36) + 1])), "shape"),
        ("a product that overflows", parameters(("a", [1 << 40, 1 << 40])), "shape"),
        ("a product that wraps to 0", parameters(("a", [1 << 32, 1 << 32])), "shape"),
        ("nine extents", parameters(("a", [1] * 9)), "shape"),
        ("2^36 in one and more in another", parameters(("a", [1 << 36]), ("b", [4])), "parameters"),
        ("8193 of them", parameters(*((f"p{i}", [1]) for i in range(8193))), "parameters"),
        ("a group that is not there", parameters(model.ParameterSpec(name="a", shape=[4], group=1)), "group"),
        ("17 groups", groups(*({} for _ in range(17))), "groups"),
    ])


def test_the_largest_count_of_parameters_and_a_scalar_are_taken(context):
    many = context.model(parameters=[(f"p{i}", [1]) for i in range(8192)], load=False)
    assert len(many.spec.parameters) == 8192 and many.status().block_count == 8
    scalar = context.model(parameters=[("s", [])], tensors={"s": [3.0]})
    assert scalar.latest()[1] == {"s": (3.0,)} and scalar.status().element_count == 1


def test_optimizer_values_out_of_range_are_refused(context):
    check_table(context, [
        *((f"learning_rate {v}", sgd(learning_rate=v), "learning_rate") for v in (NAN, INF, -INF, -1.0, 0.0, 5e-324, 1e-46)),
        *((f"beta1 {v}", adamw(beta1=v), "beta1") for v in (NAN, -0.1, 1.0, 2.0)),
        *((f"beta2 {v}", adamw(beta2=v), "beta2") for v in (NAN, -0.1, 1.0, INF)),
        *((f"{name} {v} of SGD, which has none", sgd(**{name: v}), name)
          for name in ("beta1", "beta2", "alpha") for v in (NAN, INF)),
        *((f"epsilon {v}", adamw(epsilon=v), "eps") for v in (NAN, -1e-8, 0.0, 1.5, 2.0 ** -101)),
        *((f"weight_decay {v}", adamw(weight_decay=v), "weight_decay") for v in (NAN, INF, -0.1)),
        *((f"weight_decay {v} of SGD", sgd(weight_decay=v), "weight_decay") for v in (NAN, INF, -0.1)),
        *((f"momentum {v}", sgd(momentum=v), "momentum") for v in (NAN, -0.1, 1.0)),
        *((f"dampening {v}", sgd(momentum=0.9, dampening=v), "dampening") for v in (NAN, -0.1, 1.1)),
        ("nesterov without momentum", sgd(nesterov=True), "nesterov"),
        ("nesterov with dampening", sgd(nesterov=True, momentum=0.9, dampening=0.5), "nesterov"),
        *((f"alpha {v}", optimizer(kind=RMSPROP, alpha=v), "alpha") for v in (NAN, -0.1, 1.0)),
        *((f"momentum {v} of RMSPROP", optimizer(kind=RMSPROP, momentum=v), "momentum") for v in (NAN, -0.1, 1.0)),
        *((f"learning_rate_decay {v}", optimizer(kind=ADAGRAD, learning_rate_decay=v), "learning_rate_decay")
          for v in (NAN, INF, -0.1)),
        ("an unknown kind", optimizer(kind=99), "kind"),
        *((f"learning_rate_factor {v}", groups({"learning_rate_factor": v}), "learning_rate_factor")
          for v in (NAN, INF, -1.0)),
        *((f"weight_decay {v} of a group", groups({"weight_decay": v}), "weight_decay") for v in (NAN, INF, -1.0)),
        *((f"max_norm {v} of a group", {**groups({"max_norm": v}), **clip(scope=model.CLIP_SCOPE_GROUP, max_norm=1.0)},
           "max_norm") for v in (NAN, 0.0, -1.0)),
    ])


def test_schedule_and_clip_values_out_of_range_are_refused(context):
    step, cosine = model.SCHEDULE_KIND_STEP, model.SCHEDULE_KIND_COSINE
    check_table(context, [
        ("an unknown kind", schedule(99), "kind"),
        ("STEP without step_size", schedule(step), "step_size"),
        *((f"gamma {v}", schedule(step, step_size=1, gamma=v), "gamma") for v in (NAN, INF, 1e300, 0.0, -1.0)),
        ("COSINE without total_steps", schedule(cosine), "total_steps"),
        ("COSINE with total_steps in the warm-up", schedule(cosine, warmup_steps=10, total_steps=10), "total_steps"),
        ("a warm-up of schedule WORKER", schedule(model.SCHEDULE_KIND_WORKER, warmup_steps=3), "warmup_steps"),
        *((f"min_learning_rate {v}", schedule(cosine, total_steps=10, min_learning_rate=v), "min_learning_rate")
          for v in (NAN, INF, -1.0)),
        *((f"clip value {v}", clip(value=v), "clip") for v in (NAN, INF, 0.0, -1.0)),
        *((f"max_norm {v}", clip(max_norm=v), "max_norm") for v in (NAN, INF, 0.0, -1.0)),
        ("an unknown scope", clip(scope=99), "scope"),
    ])


def test_scaler_values_out_of_range_are_refused(context):
    check_table(context, [
        ("an unknown policy", scaler(policy=99), "policy"),
        *((f"init_scale {v}", scaler(init_scale=v), "init_scale") for v in (NAN, INF, 0.0, -1.0)),
        ("init_scale above max_scale", scaler(init_scale=2.0 ** 25), "init_scale"),
        ("init_scale below min_scale", scaler(init_scale=0.5), "init_scale"),
        *((f"growth_factor {v}", scaler(growth_factor=v), "growth_factor") for v in (NAN, INF, 1.0, 0.0, -2.0)),
        *((f"backoff_factor {v}", scaler(backoff_factor=v), "backoff_factor") for v in (NAN, 0.0, 1.0, 2.0, -0.5)),
        ("growth_interval 0", scaler(growth_interval=0), "growth_interval"),
        ("hysteresis 0", scaler(hysteresis=0), "hysteresis"),
        *((f"min_scale {v}", scaler(min_scale=v), "min_scale") for v in (NAN, INF, 0.0, -1.0)),
        *((f"max_scale {v}", scaler(max_scale=v), "max_scale") for v in (NAN, INF, 0.0)),
        ("max_scale below min_scale", scaler(min_scale=8.0, max_scale=4.0, init_scale=8.0), "max_scale"),
    ])


def test_step_rules_out_of_range_are_refused(context):
    check_table(context, [
        ("world_size 0", {"world_size": 0}, "world_size"),
        ("world_size 257", {"world_size": 257}, "world_size"),
        ("quorum with SYNC", {"quorum": 1}, "quorum"),
        ("loss_timeout_ms 0", {"loss_timeout_ms": 0}, "loss_timeout_ms"),
        ("loss_timeout_ms above 2^40", {"loss_timeout_ms": (1 << 40) + 1}, "loss_timeout_ms"),
        ("min_workers 0", {"min_workers": 0}, "min_workers"),
        ("min_workers above world_size", {"min_workers": 2}, "min_workers"),
        ("max_consecutive_overflows 0", {"max_consecutive_overflows": 0}, "max_consecutive_overflows"),
        ("keep_last 0", {"keep_last": 0}, "keep_last"),
        *((f"{field} beyond the store", {field: number}, field) for number in (2 ** 63 - 1, 2 ** 63, 2 ** 64 - 1)
          for field in ("checkpoint_every", "keep_every", "max_steps")),
        *((f"an unknown {field}", {field: 99}, field) for field in
          ("sync_mode", "on_loss", "weighting", "cast_dtype", "cast_overflow", "floor_policy", "durability")),
    ])


def test_a_request_without_specification_is_refused(context):
    api = context.model(load=False).api
    refused(lambda: api.CreateModel(params.CreateModelRequest()), Code.INVALID_ARGUMENT, words="spec")


def test_reserved_numbers_are_refused(context):
    api = context.model(load=False).api
    for fields in (*(optimizer(kind=kind) for kind in range(7, 16)), {"sync_mode": 3}, {"sync_mode": 4}, {"on_loss": 3}):
        refused(lambda f=fields: api.CreateModel(spec=spec("reserved", **f)), Code.UNIMPLEMENTED, "RESERVED_VALUE")
    for fields in (optimizer(kind=16), {"sync_mode": 8}, {"cast_dtype": 4}):
        refused(lambda f=fields: api.CreateModel(spec=spec("reserved", **f)), Code.INVALID_ARGUMENT, "INVALID_SPEC")
    refused(lambda: api.GetModel(model="reserved"), Code.NOT_FOUND, "MODEL_NOT_FOUND")


def test_what_comes_later_is_refused_as_reserved_or_kept(context):
    """A value of the schema is either served, and then the specification says so, or refused: never dropped."""
    api = context.model(load=False).api
    wrong, later = [], [{"on_loss": model.ON_LOSS_SHRINK},
             {"floor_policy": model.FLOOR_POLICY_FREEZE}, {"floor_policy": model.FLOOR_POLICY_FAIL},
             {"durability": model.DURABILITY_STEP}, {"weighting": model.WEIGHTING_PUSHED},
             {"cast_overflow": model.CAST_OVERFLOW_SATURATE}, {"keep_every": 7},
             schedule(model.SCHEDULE_KIND_WORKER), clip(max_norm=1.0, scope=model.CLIP_SCOPE_GROUP),
             {**groups({"name": "g", "max_norm": 2.0}), **clip(scope=model.CLIP_SCOPE_GROUP)}, groups({"name": "embedding", "learning_rate_factor": 0.0}),
             sgd(learning_rate=0.1), adamw(beta1=0.0, beta2=0.0, weight_decay=0.0),
             optimizer(kind=RMSPROP, alpha=0.5, centered=True), optimizer(kind=RMSPROP, alpha=0.0),
             optimizer(kind=RMSPROP, momentum=0.5, centered=True), optimizer(kind=ADAGRAD, learning_rate_decay=0.25),
             optimizer(kind=model.OPTIMIZER_KIND_ADAM, epsilon=0.5), optimizer(kind=model.OPTIMIZER_KIND_LION, beta2=0.5)]
    for at, fields in enumerate(later):
        wanted = spec(f"later-{at}", **fields)
        try:
            kept = api.CreateModel(spec=wanted).spec
        except grpc.RpcError as error:
            refusal = Refusal(error)
            if (refusal.code, refusal.reason) != (Code.UNIMPLEMENTED, "RESERVED_VALUE"):
                wrong.append(f"{fields}: {refusal}")
            continue
        try:
            check_kept(wanted, kept, "spec")
        except AssertionError as error:
            wrong.append(str(error))
    assert not wrong, "\n    ".join(line.replace("\n", " ") for line in wrong)


def test_every_scaler_policy_is_taken_and_kept(context):
    api = context.model(load=False).api
    for policy in range(1, 9):
        wanted = spec(f"policy-{policy}", **scaler(policy=policy, hysteresis=3, growth_interval=5))
        check_kept(wanted, api.CreateModel(spec=wanted).spec, "spec")


def test_the_answer_has_all_defaults(context):
    made = context.model(load=False, optimizer=None, scaler=None).spec
    o, s = made.optimizer, made.scaler
    assert (o.kind, o.learning_rate, o.beta1, o.beta2, o.epsilon, o.weight_decay) == \
        (ADAMW, 0.001, 0.9, 0.999, 1e-8, 0.01), o
    assert (s.policy, s.init_scale, s.growth_factor, s.backoff_factor, s.growth_interval, s.hysteresis, s.min_scale,
            s.max_scale) == (1, 65536.0, 2.0, 0.5, 2000, 2, 1.0, 2.0 ** 24), s
    assert (made.sync_mode, made.on_loss, made.loss_timeout_ms, made.min_workers, made.weighting, made.cast_dtype,
            made.cast_overflow, made.floor_policy, made.max_consecutive_overflows, made.max_steps, made.checkpoint_every,
            made.keep_last, made.durability) == (1, 1, 600000, 1, 1, 2, 1, 1, 50, 0, 100, 3, 1), made
    assert made.schedule.kind == model.SCHEDULE_KIND_CONSTANT and len(made.groups) == 1


def test_the_same_specification_finds_the_model(context):
    first = context.model(load=False, optimizer=None, scaler=None)
    api, sparse = first.api, spec(first.name, optimizer=None, scaler=None)
    for again in (sparse, first.spec):
        answer = api.CreateModel(spec=again)
        assert not answer.created and answer.spec == first.spec, answer
    full = spec("full-first", optimizer=None, scaler=None)
    full.CopyFrom(first.spec)
    full.name = "full-first"
    assert api.CreateModel(spec=full).created
    assert not api.CreateModel(spec=spec("full-first", optimizer=None, scaler=None)).created
    assert api.GetModel(model=first.name).spec == first.spec


def test_another_specification_is_refused_with_the_field(context):
    two = (("w", [4]), ("v", [8]))
    first = context.model(parameters=two, load=False, max_steps=7)
    changes = [
        ("optimizer.kind", {"optimizer": model.OptimizerSpec(kind=ADAMW, learning_rate=0.5)}),
        ("optimizer.learning_rate", {"optimizer": model.OptimizerSpec(kind=SGD, learning_rate=0.25)}),
        ("optimizer.momentum", {"optimizer": model.OptimizerSpec(kind=SGD, learning_rate=0.5, momentum=0.5)}),
        ("schedule.warmup_steps", {"schedule": model.ScheduleSpec(warmup_steps=3)}),
        ("clip.max_norm", {"clip": model.ClipSpec(max_norm=1.0)}),
        ("clip.value", {"clip": model.ClipSpec(value=1.0)}),
        ("world_size", {"world_size": 2}),
        ("loss_timeout_ms", {"loss_timeout_ms": 1000}),
        ("weighting", {"weighting": model.WEIGHTING_PUSHED}),
        ("cast_dtype", {"cast_dtype": 3}),
        ("cast_overflow", {"cast_overflow": model.CAST_OVERFLOW_SATURATE}),
        ("scaler.policy", scaler(policy=2, init_scale=1024.0)),
        ("scaler.init_scale", scaler(init_scale=2048.0)),
        ("scaler.growth_interval", scaler(init_scale=1024.0, growth_interval=3)),
        ("max_consecutive_overflows", {"max_consecutive_overflows": 3}),
        ("max_steps", {"max_steps": 8}),
        ("checkpoint_every", {"checkpoint_every": 3}),
        ("keep_last", {"keep_last": 9}),
        ("groups", groups({}, {})),
        ("learning_rate_factor", groups({"learning_rate_factor": 0.5})),
        ("parameters", parameters(("w", [4]))),
        ("parameters", parameters(("w", [4]), ("u", [8]))),
        ("v is [8] there and [2, 4] here", parameters(("w", [4]), ("v", [2, 4]))),
        ("parameters", parameters(("v", [8]), ("w", [4]))),
    ]
    for field, fields in changes:
        changed = spec(first.name, **{"parameters": two, "max_steps": 7, **fields})
        refused(lambda c=changed: first.api.CreateModel(spec=c), Code.ALREADY_EXISTS, "MODEL_EXISTS",
                (field, first.name))
    changed = spec(first.name, parameters=two, max_steps=7, weighting=model.WEIGHTING_PUSHED)
    refused(lambda: first.api.CreateModel(spec=changed), Code.ALREADY_EXISTS, words="weighting is EQUAL there and PUSHED here")
    assert first.api.GetModel(model=first.name).spec == first.spec


def test_models_are_listed_by_name_in_pages(context):
    server = context.server()
    names = [f"m-{i:02}" for i in range(7)]
    for name in reversed(names):
        context.model(name, server, load=False)
    api = context.model("m-00", server, load=False).api
    assert [status.name for status in api.ListModels().models] == names
    got, token, pages = [], "", 0
    while pages == 0 or token:
        page = api.ListModels(page_size=3, page_token=token)
        got, token, pages = got + [status.name for status in page.models], page.next_page_token, pages + 1
    assert got == names and pages == 3, (got, pages)
    refused(lambda: api.ListModels(page_size=1001), Code.INVALID_ARGUMENT, words="page_size")
    for token in ("no token", "m-03", "models/", "models/no name"):
        assert refused(lambda t=token: api.ListModels(page_token=t), Code.INVALID_ARGUMENT, "INVALID_FIELD",
                       "page_token").field == "page_token"


def test_a_model_tells_when_it_was_made(context):
    server = context.server()
    before = time.time()
    api = context.model("timed", server, load=False).api
    made = api.GetModel(model="timed").status.create_time
    assert before - 1 <= made.seconds + made.nanos / 1e9 <= time.time() + 1, made
    assert api.ListModels().models[0].create_time == made


def test_checkpoint_every_0_cuts_on_demand_and_at_the_end_alone(context):
    server = context.server()
    test_model = context.model("demand", server, checkpoint_every=0, max_steps=130)
    assert test_model.spec.HasField("checkpoint_every") and test_model.spec.checkpoint_every == 0
    worker = test_model.worker()
    for _ in range(120):
        worker.train({"w": [1.0] * 4})
    assert test_model.status().durable_step == 0
    waiting = test_model.api.start("Checkpoint", model="demand")
    ampd_testing.eventually(lambda: waiting.done() or worker.train({"w": [1.0] * 4}), "it is cut on demand")
    assert waiting.result().checkpoint.step > 120
    server.terminate()
    test_model.server.start()
    test_model.reconnect()
    assert test_model.api.GetModel(model="demand").spec.checkpoint_every == 0
    again = test_model.api.CreateModel(spec=spec("demand", checkpoint_every=0, max_steps=130))
    assert not again.created


if __name__ == "__main__":
    run(globals())
