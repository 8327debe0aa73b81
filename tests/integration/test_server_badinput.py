#!/usr/bin/python3
"""Calls that are wrong, over the wire: the status, a sentence that names the field, and a step that is untouched.

    test_server_badinput.py BIN_DIR [NAME ...]

After each wrong call a normal step must still run and give the expected bits. CreateModel: test_server_specs.py.
"""
import math

from ampd_testing import (Code, OpenStream, block_message, check_sentence, common, load_messages, model, params,
                          pack, peer, refused, run, scales)

INVALID, F16, F32 = Code.INVALID_ARGUMENT, common.DTYPE_F16, common.DTYPE_F32
WEIGHTS = (1.0, 2.0, 3.0, 4.0)
# Two blocks: the first is full, the second has 64 elements.
TWO_BLOCKS = [("big", [65536]), ("tail", [5])]


def fresh(context, **fields):
    """A loaded model and its one worker, with step 1 open."""
    test_model = context.model(**fields)
    worker = test_model.worker()
    worker.pull()
    return test_model, worker


def check_untouched(worker):
    """Step 1 is still open and nothing of a wrong call is in it: a push of ones moves each weight by -0.5, exactly."""
    header, tensors = worker.pull()
    assert (header.step, header.version, header.scale) == (1, 0, 1024.0), header
    assert tensors["w"] == WEIGHTS, tensors
    result = worker.push({"w": [1024.0] * 4})
    assert (result.step, result.verdict, result.norm, result.new_scale) == (1, common.VERDICT_APPLIED, 2.0, 1024.0), result
    header, tensors = worker.pull()
    assert tensors["w"] == tuple(value - 0.5 for value in WEIGHTS), tensors
    assert len(worker.model.step_rows()) == 1 and not worker.api.ListOverflows(model=worker.model.name).rows


def check_pushes(context, rows):
    """Each row: (what, messages by worker, code, words). All are tried on one model, whose step goes on after."""
    _, worker = fresh(context)
    wrong = []
    for what, messages, code, words in rows(worker):
        try:
            refused(lambda m=messages: worker.api.Push(list(m)), code, words=words)
        except AssertionError as error:
            wrong.append(f"{what}: {error}")
    assert not wrong, f"{len(wrong)}:\n    " + "\n    ".join(wrong)
    check_untouched(worker)


def gradient(worker):
    """The block that the good push sends later: what a refused call has brought whole stays, and counts once."""
    return worker.blocks({"w": [1024.0] * 4})[0]


def test_an_unknown_model_is_not_found_by_any_call(context):
    api = context.model().api
    header = params.PushRequest(header=params.PushHeader(model="nobody", epoch=1, step=1, dtype=F16))
    calls = [*((name, {"model": "nobody"}) for name in
               ("GetModel", "KeepAlive", "Leave", "GetPushState", "GetScale", "ListScaleHistory", "ListOverflows",
                "WatchSteps", "ExplainStep", "ReplayPolicy", "ListCheckpoints", "Checkpoint", "GetStatus")),
             ("Join", {"model": "nobody", "worker_name": "a"}), ("Pull", {"model": "nobody", "latest": True}),
             ("Load", {"request": [params.LoadRequest(header=params.LoadHeader(model="nobody"))]}),
             ("Push", {"request": [header]})]
    for name, fields in calls:
        refused(lambda n=name, f=fields: getattr(api, n)(**f), Code.NOT_FOUND, "MODEL_NOT_FOUND", "nobody")


def test_a_push_for_an_unknown_model_is_answered_before_its_body(context):
    api = context.model().api
    header = params.PushRequest(header=params.PushHeader(model="nobody", epoch=1, step=1, dtype=F16))
    stream = OpenStream(api, "Push", [header])
    refused(stream.result, Code.NOT_FOUND, "MODEL_NOT_FOUND")
    stream.end()


def test_a_model_without_values_cannot_be_trained(context):
    test_model = context.model(load=False)
    worker = test_model.worker()
    refused(lambda: worker.api.Pull(model=test_model.name, latest=True), Code.FAILED_PRECONDITION, words="load")
    refused(lambda: worker.api.Checkpoint(model=test_model.name), Code.FAILED_PRECONDITION, words="load")
    refused(lambda: worker.api.Push([worker.push_header(epoch=1, step=1, scale_id=1)]), Code.FAILED_PRECONDITION)
    test_model.load()
    check_untouched(worker)


def test_a_wrong_header_of_a_push_is_refused(context):
    def rows(worker):
        def row(what, code=INVALID, words=(), **over):
            return what, [worker.push_header(**over), gradient(worker)], code, words

        yield row("no dtype", words="dtype", dtype=0)
        yield row("a reserved dtype", words="dtype", dtype=4)
        yield row("an unknown dtype", words="dtype", dtype=77)
        yield row("a rank out of range", words="rank", rank=1)
        yield row("a rank far out of range", words="rank", rank=0xFFFFFFFF)
        yield row("weight 2 under EQUAL", words="weight", weight=2.0)
        yield row("weight 0 under EQUAL", words="weight", weight=0.0)
        yield row("weight NaN", words="weight", weight=math.nan)
        yield row("a learning rate though the schedule is not WORKER", words="learning_rate", learning_rate=0.1)
        yield row("user state of 64 KiB and 1", words="user_state", user_state=bytes(65537))
        yield row("no model", Code.NOT_FOUND, words="model", model="")
        yield row("a model of 128 bytes", words="model", model="m" * 128)
        yield row("a later epoch", Code.FAILED_PRECONDITION, words="epoch", epoch=9)
        yield row("another scale id", Code.FAILED_PRECONDITION, words="scale", scale_id=99)
        yield row("a much later step", Code.FAILED_PRECONDITION, words="step", step=5)
        yield row("step 0", Code.ABORTED, words="step", step=0)
        yield row("epoch 0", Code.ABORTED, words="epoch", epoch=0)

    check_pushes(context, rows)


def test_a_wrong_block_of_a_push_is_refused(context):
    def rows(worker):
        data = gradient(worker).data
        half = data[:64]

        def row(what, words, message, code=INVALID):
            return what, [worker.push_header(), message], code, words

        def block(index=0, bytes_=data, **over):
            return block_message(params.PushRequest, index, bytes_, **over)

        yield row("an index out of range", "index", block(1))
        yield row("an index far out of range", "index", block(0xFFFFFFFF))
        yield row("no index", "index", block(index=None))
        yield row("no checksum", "crc32c", block(crc32c=None))
        yield row("half of the elements", "data", block(bytes_=half))
        yield row("the size of another dtype", "data", block(bytes_=pack(F32, [1.0] * 64)))
        yield row("a byte too many", "data", block(bytes_=data + b"\0"))
        yield row("a byte too few", "data", block(bytes_=data[:-1]))
        yield row("no data", "data", block(bytes_=b""))
        yield row("a full block, though the last is short", "data", block(bytes_=bytes(131072)))
        yield row("a wrong checksum", "block", block(crc32c=1), Code.DATA_LOSS)

    check_pushes(context, rows)


def test_a_push_out_of_order_is_refused(context):
    def rows(worker):
        block, header = gradient(worker), worker.push_header()
        trailer = params.PushRequest(trailer=params.PushTrailer())
        both = worker.push_header()
        both.MergeFrom(block)
        late = gradient(worker)
        late.trailer.SetInParent()
        yield "nothing at all", [], INVALID, "header"
        yield "a block before the header", [block, header], INVALID, "header"
        yield "a trailer before the header", [trailer], INVALID, "header"
        yield "two headers", [header, header, block], INVALID, "header"
        yield "header and block in one message", [both], INVALID, ()
        yield "block and trailer in one message", [header, late], INVALID, ()
        yield "an empty message", [header, params.PushRequest(), block], INVALID, ()
        yield "a block after the trailer", [header, trailer, block], INVALID, "trailer"
        yield "two trailers", [header, block, trailer, trailer], INVALID, "trailer"
        yield "bytes that are no message", [header, b"\xff\xff\xff\xff"], INVALID, ()
        yield "bytes that are no header", [b"\x0a\x05abc"], INVALID, ()
        yield "a message that is cut", [header, block.SerializeToString()[:-3]], INVALID, ()
        twice = params.PushRequest(index=0).SerializeToString() + block.SerializeToString()
        yield "a field twice in one message", [header, twice], INVALID, "index"

    check_pushes(context, rows)


def test_a_wrong_trailer_is_refused(context):
    def rows(worker):
        yield "a missing block whose parameter is not absent", [worker.push_header()], INVALID, ("w", "absent")
        for what, absent in (("an index out of range", [1]), ("an index twice", [0, 0]),
                             ("more than there are", [0, 1, 2]), ("far out of range", [0xFFFFFFFF])):
            trailer = params.PushRequest(trailer=params.PushTrailer(absent=absent))
            yield what, [worker.push_header(), gradient(worker), trailer], INVALID, "absent"

    check_pushes(context, rows)


def test_absent_parameters_must_rise(context):
    _, worker = fresh(context, parameters=[("w", [4]), ("b", [4])])
    trailer = params.PushRequest(trailer=params.PushTrailer(absent=[1, 0]))
    refused(lambda: worker.api.Push([worker.push_header(), trailer]), INVALID, words="absent")
    assert worker.push({"w": [1024.0] * 4, "b": [0.0] * 4}).verdict == common.VERDICT_APPLIED


def test_a_block_may_carry_its_data_first(context):
    _, worker = fresh(context)
    block = worker.blocks({"w": [1024.0] * 4})[0]
    swapped = (params.PushRequest(data=block.data).SerializeToString()
               + params.PushRequest(crc32c=block.crc32c).SerializeToString()
               + params.PushRequest(index=0).SerializeToString())
    result = worker.api.Push([worker.push_header(), swapped]).result
    assert (result.verdict, result.norm) == (common.VERDICT_APPLIED, 2.0)


def test_unknown_fields_are_passed_over(context):
    _, worker = fresh(context)
    unknown = b"\xfa\x07\x03xyz"  # field 127, three bytes
    messages = [worker.push_header().SerializeToString() + unknown, unknown + gradient(worker).SerializeToString()]
    assert worker.api.Push(messages).result.verdict == common.VERDICT_APPLIED
    request = params.GetModelRequest(model=worker.model.name).SerializeToString() + unknown
    assert worker.api.GetModel(request).spec.name == worker.model.name


def test_a_wrong_block_does_not_lose_the_blocks_before_it(context):
    _, worker = fresh(context, parameters=TWO_BLOCKS)
    good, bad = worker.blocks({"big": [0.0] * 65536, "tail": [1024.0] * 5})
    bad.crc32c ^= 1
    refused(lambda: worker.api.Push([worker.push_header(), good, bad]), Code.DATA_LOSS, "BLOCK_CHECKSUM", "1")
    assert worker.present() == {0}
    bad.crc32c ^= 1
    assert worker.api.Push([worker.push_header(), bad]).result.norm == math.sqrt(5.0)


def test_a_message_over_the_limit_is_refused(context):
    _, worker = fresh(context)
    api = worker.api
    limits = [(lambda: api.GetScale(model="m" * 65600)), (lambda: api.KeepAlive(model="m" * 65600)),
              (lambda: api.Push([worker.push_header(), params.PushRequest(data=bytes(1 << 20))])),
              (lambda: api.Push([params.PushRequest(header=params.PushHeader(user_state=bytes((1 << 20) + 1)))])),
              (lambda: api.Load([params.LoadRequest(data=bytes((1 << 20) + 1))])),
              (lambda: api.CreateModel(spec=model.ModelSpec(name="m" * ((1 << 20) + 1))))]
    for call in limits:
        check_sentence(refused(call, Code.RESOURCE_EXHAUSTED, rich=False))
    check_untouched(worker)


def test_bytes_that_are_no_message_are_refused(context):
    _, worker = fresh(context)
    names = ["CreateModel", "GetModel", "ListModels", "Join", "KeepAlive", "Leave", "GetPushState", "GetScale", "Pull",
             "ListScaleHistory", "ListOverflows", "WatchSteps", "ExplainStep", "ReplayPolicy",
             "ListCheckpoints", "Drain", "SetLogLevel", "GetStatus", "Checkpoint"]
    for name in names:
        for garbage in (b"\xff\xff\xff\xff", b"\x0a\x7fshort", b"\x0b", b"\x07"):
            refused(lambda n=name, g=garbage: getattr(worker.api, n)(g), INVALID, "INVALID_FIELD")
    check_untouched(worker)


def test_strings_beyond_their_bounds_are_refused_with_the_field(context):
    _, worker = fresh(context)
    api = worker.api
    long, zero, no_utf8 = b"\x0a\x80\x01" + b"m" * 128, b"\x0a\x03a\0b", b"\x0a\x02\xc3\x28"
    for raw in (long, zero, no_utf8):
        for name in ("GetModel", "Join", "GetScale", "Checkpoint", "GetPushState"):
            refused(lambda n=name, r=raw: getattr(api, n)(r), INVALID, "INVALID_FIELD", "model")
    refused(lambda: api.Join(model=worker.model.name, worker_name="n" * 128), INVALID, words="worker_name")
    refused(lambda: api.ListScaleHistory(model=worker.model.name, page_token="t" * 192), INVALID, words="page_token")


def test_a_unary_call_has_exactly_one_message(context):
    _, worker = fresh(context)
    request = scales.GetScaleRequest(model=worker.model.name)
    for messages in ([], [request, request]):
        refused(lambda m=messages: worker.api.GetScale(m), Code.UNIMPLEMENTED, rich=False)


def test_worker_calls_with_a_wrong_rank_or_world_are_refused(context):
    test_model, worker = fresh(context)
    api, name = worker.api, test_model.name
    for call in ("KeepAlive", "Leave"):
        refused(lambda c=call: getattr(api, c)(model=name, rank=1, incarnation=worker.incarnation), INVALID, words="rank")
    refused(lambda: worker.push_state(rank=1), INVALID, words="rank")
    refused(lambda: api.Join(model=name, worker_name="x", world_size=2), INVALID, words="world_size")
    refused(lambda: api.Join(model=name, worker_name="x", rank=1), INVALID, words="rank")
    named = refused(lambda: api.Join(model=name, worker_name="n" * 128), INVALID, words="worker_name")
    assert named.field == "worker_name", named.field
    refused(lambda: api.Join(model=name), INVALID, words="worker_name")
    check_untouched(worker)


def test_a_pull_must_say_what_it_wants(context):
    test_model, worker = fresh(context)
    api, name = worker.api, test_model.name
    refused(lambda: api.Pull(model=name), INVALID, words="latest")
    refused(lambda: api.Pull(model=name, step=1, latest=True), INVALID, words="latest")
    refused(lambda: api.Pull(model=name, step=1, version=0), INVALID, words="version")
    refused(lambda: api.Pull(model=name, latest=True, first_block=2), INVALID, words="first_block")
    refused(lambda: api.Pull(model=name, latest=True, block_count=2), INVALID, words="block_count")
    refused(lambda: api.Pull(model=name, latest=True, shard=1), INVALID, words="shard")
    assert refused(lambda: api.Pull(model=name, latest=True, rank=1), INVALID, "INVALID_FIELD", "rank").field == "rank"
    refused(lambda: api.Pull(model=name, version=7), (Code.FAILED_PRECONDITION, Code.ABORTED), words="version")
    refused(lambda: api.Pull(model=name, latest=True, epoch=9), Code.FAILED_PRECONDITION, words="epoch")
    check_untouched(worker)


def test_history_calls_with_wrong_pages_or_filters_are_refused(context):
    test_model, worker = fresh(context)
    api, name = worker.api, test_model.name
    for call in ("ListScaleHistory", "ListOverflows"):
        ask = getattr(api, call)
        refused(lambda a=ask: a(model=name, page_size=1001), INVALID, words="page_size")
        refused(lambda a=ask: a(model=name, page_token="no token of yours"), INVALID, words="page_token")
    refused(lambda: api.ListScaleHistory(model=name, verdicts=[99]), INVALID, words="verdicts")
    refused(lambda: api.ListScaleHistory(model=name, verdicts=[1] * 5), INVALID, words="verdicts")
    refused(lambda: api.ListOverflows(model=name, source=99), INVALID, words="source")
    check_untouched(worker)


def test_a_wrong_load_is_refused_and_a_right_one_still_counts(context):
    test_model = context.model(parameters=TWO_BLOCKS, load=False)
    api, layout = test_model.api, test_model.layout
    values = {"big": [1.0] * 65536, "tail": list(range(5))}
    header, first, second = list(load_messages(layout, test_model.name, values))
    wrong_crc = block_message(params.LoadRequest, 1, second.data, crc32c=5)
    nan = layout.blocks(F32, {"tail": [0.0, 1.0, math.nan, 3.0, 4.0]})[1]
    inf = layout.blocks(F32, {"tail": [0.0, 1.0, 2.0, math.inf, 4.0]})[1]
    rows = [
        ("nothing at all", [], INVALID, "header"),
        ("no header", [first], INVALID, "header"),
        ("two headers", [header, header], INVALID, "header"),
        ("an index out of range", [header, block_message(params.LoadRequest, 2, second.data)], INVALID, "index"),
        ("a block that is too long", [header, block_message(params.LoadRequest, 1, second.data + bytes(4))], INVALID, "data"),
        ("a block that is too short", [header, block_message(params.LoadRequest, 0, first.data[:-4])], INVALID, "data"),
        ("no checksum", [header, block_message(params.LoadRequest, 0, first.data, crc32c=None)], INVALID, "crc32c"),
        ("no index", [header, block_message(params.LoadRequest, 0, first.data, index=None)], INVALID, "index"),
        ("a wrong checksum", [header, first, wrong_crc], Code.DATA_LOSS, "block"),
        ("a NaN", [header, first, block_message(params.LoadRequest, 1, nan)], INVALID, ("tail", "2")),
        ("an Inf", [header, first, block_message(params.LoadRequest, 1, inf)], INVALID, ("tail", "3")),
        ("bytes that are no message", [header, b"\xff\xff"], INVALID, ()),
        ("a block is missing", [header, first], Code.FAILED_PRECONDITION, "block"),
        ("all are missing", [header], Code.FAILED_PRECONDITION, "block"),
    ]
    wrong = []
    for what, messages, code, words in rows:
        try:
            refused(lambda m=messages: api.Load(m), code, words=words)
        except AssertionError as error:
            wrong.append(f"{what}: {error}")
    assert not api.Load([header, second, first]).already_loaded
    assert test_model.latest()[1] == {"big": (1.0,) * 65536, "tail": (0.0, 1.0, 2.0, 3.0, 4.0)}
    assert not wrong, f"{len(wrong)} of {len(rows)}:\n    " + "\n    ".join(wrong)


def test_methods_of_later_versions_are_unimplemented(context):
    api = context.model().api
    for path in ("/ampd.v1.ParameterService/NoSuch", "/no.Such/Thing"):
        call = api.channel.unary_unary(path, request_serializer=bytes, response_deserializer=bytes)
        refused(lambda c=call: c(b"", timeout=10), Code.UNIMPLEMENTED, rich=False)


def test_a_session_with_a_server_that_has_no_other_shards_is_refused(context):
    session = context.model().api.channel.stream_stream(
        "/ampd.v1.PeerService/Session", request_serializer=peer.SessionRequest.SerializeToString,
        response_deserializer=peer.SessionResponse.FromString)
    refused(lambda: list(session(iter([peer.SessionRequest()]), timeout=10)), Code.UNAVAILABLE, "NO_COORDINATOR")


def test_errors_about_a_model_tell_where_it_is(context):
    _, worker = fresh(context)
    worker.push({"w": [1024.0] * 4})
    worker.pull()
    wrong = worker.push_header(step=9)
    refused(lambda: worker.api.Push([wrong]), Code.FAILED_PRECONDITION, metadata={"epoch": 1, "step": 2})
    refused(lambda: worker.api.Pull(model=worker.model.name, step=1), Code.ABORTED, "STALE_STEP",
            metadata={"epoch": 1, "step": 2})


if __name__ == "__main__":
    run(globals())
