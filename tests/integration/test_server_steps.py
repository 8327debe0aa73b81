#!/usr/bin/python3
"""The step protocol over the wire: what repeated and stray calls get, pulls that wait, ranks and incarnations.

    test_server_steps.py BIN_DIR [NAME ...]

Arithmetic and history: test_server_results.py. Crashes, drain and start: test_server_restart.py.
"""
from ampd_testing import (Code, HELD_S, OpenStream, block_message, common, eventually, grpc, held, load_messages, model,
                          one, params, refused, run, together, two)

APPLIED, OVERFLOW = common.VERDICT_APPLIED, common.VERDICT_SKIPPED_OVERFLOW
ONES = {"w": [1024.0] * 4}  # a scaled gradient: 1 after unscaling
THREE_BLOCKS = [("big", [2, 65536]), ("tail", [5])]
BIG = {"big": [0.0] * 131072, "tail": [1024.0] * 5}


# ---- STEP: what a repeated or stray Push gets ----

def test_a_cut_push_goes_on_where_it_was(context):
    worker = one(context, parameters=THREE_BLOCKS)
    blocks = worker.blocks(BIG)
    assert worker.present() == set()
    stream = OpenStream(worker.api, "Push", [worker.push_header(), blocks[2], blocks[0]])
    eventually(lambda: worker.present() == {0, 2}, "blocks 0 and 2 are present")
    assert not worker.push_state().complete
    stream.cancel()
    result = worker.api.Push([worker.push_header(), blocks[1]]).result
    assert (result.step, result.verdict, result.norm) == (1, APPLIED, 5 ** 0.5), result
    state = worker.push_state()
    assert state.complete and worker.present() == {0, 1, 2}


def test_a_quorum_decides_without_the_slow_one_and_tells_it_so(context):
    late = common.VERDICT_LATE
    fast, slow = context.model(world_size=2, sync_mode=model.SYNC_MODE_QUORUM, quorum=1,
                               parameters=THREE_BLOCKS).workers(2)
    fast.pull(), slow.pull()
    stream = OpenStream(slow.api, "Push", [slow.push_header(), slow.blocks(BIG)[0]])
    eventually(lambda: slow.present() == {0}, "the slow one has begun")
    result = fast.api.Push([fast.push_header(), *fast.blocks(BIG)]).result
    assert (result.step, result.verdict, result.norm) == (1, APPLIED, 5 ** 0.5), result
    assert stream.result().result.verdict == late  # in the middle of its push
    stream.end()
    assert slow.api.Push([slow.push_header(), *slow.blocks(BIG)]).result.verdict == late  # and when it comes again
    slow.step = 2
    slow.pull()
    result = slow.api.Push([slow.push_header(), *slow.blocks(BIG)]).result
    assert (result.step, result.verdict) == (2, APPLIED), result


def test_a_new_push_takes_over_from_one_that_still_streams(context):
    worker = one(context, parameters=THREE_BLOCKS)
    blocks = worker.blocks(BIG)
    old = OpenStream(worker.api, "Push", [worker.push_header(), blocks[0]])
    eventually(lambda: worker.present() == {0}, "block 0 is present")
    assert worker.api.Push([worker.push_header(), blocks[1], blocks[2]]).result.verdict == APPLIED
    # The older stream was revoked, or it got the result like every stream of this push.
    try:
        assert old.result().result.step == 1
    except grpc.RpcError as error:
        assert error.code() == Code.ABORTED, error
    old.end()


def test_a_block_counts_once_however_often_it_comes(context):
    worker = one(context)
    block = worker.blocks(ONES)[0]
    result = worker.api.Push([worker.push_header(), block, block, block]).result
    assert (result.verdict, result.norm) == (APPLIED, 2.0)
    assert worker.model.latest()[1]["w"] == (0.5, 1.5, 2.5, 3.5)


def test_the_first_bytes_of_a_block_are_those_that_count(context):
    worker = one(context, parameters=THREE_BLOCKS)
    blocks = worker.blocks(BIG)
    stream = OpenStream(worker.api, "Push", [worker.push_header(), blocks[2]])
    eventually(lambda: worker.present() == {2}, "block 2 is present")
    stream.cancel()
    other = worker.blocks({"tail": [float("inf")] * 5})[2]
    result = worker.api.Push([worker.push_header(), other, blocks[0], blocks[1]]).result
    assert (result.verdict, result.norm) == (APPLIED, 5 ** 0.5), result


def test_a_push_of_the_next_step_is_held_until_it_opens(context):
    first, second = two(context)
    one_done = first.start_push(ONES)
    ahead = held(first.start_push(ONES, step=2))
    assert not one_done.done()
    assert second.push(ONES).step == 1 and one_done.result().result.step == 1
    held(ahead)  # now for want of the other worker
    assert second.push(ONES).step == 2
    result = ahead.result().result
    assert (result.step, result.verdict, result.version) == (2, APPLIED, 2)
    assert second.model.latest()[1]["w"] == (0.0, 1.0, 2.0, 3.0)


def test_a_held_push_ends_with_its_deadline_and_leaves_nothing(context):
    first, second = two(context)
    refused(lambda: first.start_push(ONES, step=2, timeout_s=HELD_S).result(), Code.DEADLINE_EXCEEDED, rich=False)
    refused(lambda: first.start_push(ONES, timeout_s=HELD_S).result(), Code.DEADLINE_EXCEEDED, rich=False)
    eventually(lambda: first.push_state().complete, "the push of step 1 is complete")
    result = second.push(ONES)
    assert (result.step, result.verdict) == (1, APPLIED)
    # An empty push asks for the result of the one whose caller gave up.
    assert first.api.Push([first.push_header()]).result == result


def test_a_repeated_push_of_the_last_step_gets_its_result_unread(context):
    first, second = two(context)
    results = together([first, second], ONES)
    assert results[0] == results[1]
    for worker, result in zip((first, second), results):
        stream = OpenStream(worker.api, "Push", [worker.push_header(step=1)])
        assert stream.result().result == result  # the stream has not ended
        stream.end()
        again = worker.api.Push([worker.push_header(step=1), *worker.blocks({"w": [float("nan")] * 4})]).result
        assert again == result
    assert first.model.latest()[0].version == 1


def test_a_push_of_an_older_step_is_aborted(context):
    worker = one(context)
    for _ in range(3):
        worker.push(ONES)
        worker.pull()
    for step in (1, 2):
        refused(lambda s=step: worker.api.Push(worker.push_messages(ONES, step=s)), Code.ABORTED, "STALE_STEP",
                metadata={"epoch": 1, "step": 4})
    assert worker.push(ONES).step == 4


def test_a_later_step_and_another_scale_id_are_refused(context):
    worker = one(context)
    scale_id = worker.header.scale_id
    refused(lambda: worker.api.Push(worker.push_messages(ONES, step=3)), Code.FAILED_PRECONDITION, words="step",
            metadata={"epoch": 1, "step": 1})
    for other in (scale_id + 1, 0):
        refused(lambda o=other: worker.api.Push(worker.push_messages(ONES, scale_id=o)), Code.FAILED_PRECONDITION,
                words="scale")
    assert worker.push(ONES).verdict == APPLIED


def test_the_scale_id_of_the_step_before_an_overflow_is_refused(context):
    worker = one(context)
    old = worker.header.scale_id
    result = worker.push({"w": [float("inf")] * 4})
    assert (result.verdict, result.old_scale_id) == (OVERFLOW, old) and result.new_scale_id > old
    refused(lambda: worker.api.Push(worker.push_messages(ONES, scale_id=old)), Code.FAILED_PRECONDITION, words="scale")
    header, tensors = worker.pull()
    assert (header.scale, header.scale_id, tensors["w"]) == (512.0, result.new_scale_id, (1.0, 2.0, 3.0, 4.0))
    assert worker.push({"w": [512.0] * 4}).norm == 2.0


def test_an_older_incarnation_is_aborted(context):
    worker = one(context)
    old = worker.incarnation
    worker.join()
    for function in (lambda: worker.api.Push(worker.push_messages(ONES, incarnation=old)),
                     lambda: worker.push_state(incarnation=old),
                     lambda: worker.api.Leave(model=worker.model.name, rank=0, incarnation=old)):
        refused(function, Code.ABORTED, "FENCED", metadata={"epoch": 1, "step": 1})
    assert worker.push(ONES).verdict == APPLIED


def test_a_newer_incarnation_starts_its_push_anew(context):
    worker = one(context, parameters=THREE_BLOCKS)
    blocks = worker.blocks({"big": [0.0] * 131072, "tail": [float("inf")] * 5})
    stream = OpenStream(worker.api, "Push", [worker.push_header(), blocks[2], blocks[1]])
    eventually(lambda: worker.present() == {1, 2}, "blocks 1 and 2 are present")
    worker.join()
    refused(stream.result, Code.ABORTED, "FENCED")
    stream.end()
    assert worker.present() == set() and not worker.push_state().complete
    result = worker.push(BIG)
    assert (result.step, result.verdict, result.norm) == (1, APPLIED, 5 ** 0.5), result


def test_a_complete_push_of_an_older_incarnation_does_not_count(context):
    first, second = two(context)
    gone = first.start_push({"w": [float("inf")] * 4})
    eventually(lambda: first.push_state().complete, "the first push is complete")
    first.join()
    results = together([first, second], ONES)
    assert (results[0].step, results[0].verdict) == (1, APPLIED) and results[0] == results[1]
    refused(gone.result, Code.ABORTED, "FENCED")


def test_other_ranks_keep_their_blocks_when_one_joins_again(context):
    first, second = two(context, parameters=THREE_BLOCKS)
    pushed = first.start_push(BIG)
    eventually(lambda: first.push_state().complete, "the first push is complete")
    second.join()
    assert first.present() == {0, 1, 2}
    assert second.push(BIG).verdict == APPLIED and pushed.result().result.norm == 5 ** 0.5


def test_a_bad_checksum_costs_that_block_alone(context):
    worker = one(context, parameters=THREE_BLOCKS)
    blocks = worker.blocks(BIG)
    wrong = block_message(params.PushRequest, 1, blocks[1].data, crc32c=blocks[1].crc32c ^ 0x80000000)
    for _ in range(3):
        refused(lambda: worker.api.Push([worker.push_header(), blocks[0], blocks[2], wrong]), Code.DATA_LOSS,
                "BLOCK_CHECKSUM", "1", metadata={"epoch": 1, "step": 1})
        assert worker.present() == {0, 2}
    assert worker.api.Push([worker.push_header(), blocks[1]]).result.verdict == APPLIED


def test_the_state_of_a_push_is_told_for_the_present_step_only(context):
    worker = one(context)
    worker.push(ONES)
    worker.push(ONES)
    assert worker.present() == set()
    assert worker.push_state(step=2).complete
    refused(lambda: worker.push_state(step=1), Code.ABORTED, "STALE_STEP", metadata={"epoch": 1, "step": 3})
    refused(lambda: worker.push_state(step=9), (Code.ABORTED, Code.FAILED_PRECONDITION))
    refused(lambda: worker.push_state(epoch=9), (Code.ABORTED, Code.FAILED_PRECONDITION))


# ---- STEP: Pull ----

def test_a_pull_waits_until_all_ranks_have_joined(context):
    test_model = context.model(world_size=2)
    first = test_model.worker("w0")
    refused(lambda: first.api.Pull(model=test_model.name, step=1, timeout_s=HELD_S), Code.DEADLINE_EXCEEDED, rich=False)
    assert test_model.status().state == common.MODEL_STATE_WAITING
    waiting = first.api.start("Pull", model=test_model.name, epoch=1, step=1)
    test_model.worker("w1")
    header, tensors = test_model.read_pull(waiting.all())
    assert (header.step, header.version, header.epoch, tensors["w"]) == (1, 0, 1, (1.0, 2.0, 3.0, 4.0))
    assert test_model.status().state == common.MODEL_STATE_RUNNING


def test_a_pull_of_the_next_step_waits_for_its_parameters(context):
    worker = one(context)
    waiting = worker.api.start("Pull", model=worker.model.name, epoch=1, step=2)
    refused(lambda: worker.api.Pull(model=worker.model.name, step=2, timeout_s=HELD_S), Code.DEADLINE_EXCEEDED,
            rich=False)
    worker.push(ONES)
    header, tensors = worker.model.read_pull(waiting.all())
    assert (header.step, header.version, tensors["w"]) == (2, 1, (0.5, 1.5, 2.5, 3.5)), (header, tensors)


def test_pulls_of_other_steps_and_versions_are_refused(context):
    worker = one(context)
    for _ in range(3):
        worker.push(ONES)
        worker.pull()
    where = {"epoch": 1, "step": 4}
    for step in (1, 3):
        refused(lambda s=step: worker.pull(s), Code.ABORTED, "STALE_STEP", metadata=where)
    refused(lambda: worker.pull(version=0), Code.ABORTED, metadata=where, words="version")
    refused(lambda: worker.pull(6), Code.FAILED_PRECONDITION, words="step", metadata=where)
    refused(lambda: worker.pull(epoch=2), Code.FAILED_PRECONDITION, words="epoch", metadata=where)
    header, tensors = worker.pull(version=3)
    assert (header.version, tensors["w"]) == (3, (-0.5, 0.5, 1.5, 2.5))
    assert worker.pull(latest=True)[1] == tensors and worker.pull(4)[1] == tensors


def test_a_version_that_is_there_is_not_sent_again(context):
    worker = one(context)
    have = params.HeldVersion(epoch=1, version=0)
    header, tensors = worker.pull(have_version=have)
    assert header.unchanged and header.block_count == 0 and tensors is None, header
    worker.push({"w": [float("inf")] * 4})
    header, tensors = worker.pull(have_version=have)
    assert (header.step, header.unchanged, tensors, header.scale) == (2, True, None, 512.0), header
    worker.push({"w": [512.0] * 4})
    header, tensors = worker.pull(have_version=have)
    assert (header.step, header.version, header.unchanged, tensors["w"]) == (3, 1, False, (0.5, 1.5, 2.5, 3.5)), header
    other_epoch = params.HeldVersion(epoch=2, version=1)
    assert not worker.pull(have_version=other_epoch)[0].unchanged


def test_a_pull_can_be_for_some_blocks(context):
    worker = one(context, parameters=THREE_BLOCKS)
    answers = worker.api.Pull(model=worker.model.name, latest=True, first_block=1, block_count=1)
    assert (answers[0].header.first_block, answers[0].header.block_count) == (1, 1), answers[0]
    assert [answer.index for answer in answers[1:]] == [1] and len(answers[1].data) == 131072
    answers = worker.api.Pull(model=worker.model.name, latest=True, first_block=2)
    assert [answer.index for answer in answers[1:]] == [2] and len(answers[1].data) == 128


def test_100_pulls_at_once_get_the_same_bytes(context):
    worker = one(context, parameters=THREE_BLOCKS)
    calls = [worker.api.start("Pull", model=worker.model.name, latest=True) for _ in range(100)]
    first = calls[0].all()
    assert len(first) == 4
    for call in calls[1:]:
        assert call.all() == first


def test_a_reader_that_is_too_slow_is_told_so(context):
    """A pull of 32 MiB that is not read, while two steps are applied: its copy is needed again."""
    blocks, data = 128, bytes(4 * 65536)
    test_model = context.model(load=False, parameters=[("big", [blocks, 65536])], cast_dtype=common.DTYPE_F32)
    block = block_message(params.LoadRequest, 0, data)
    messages = [params.LoadRequest(index=index, crc32c=block.crc32c, data=data) for index in range(blocks)]
    test_model.api.Load([params.LoadRequest(header=params.LoadHeader(model=test_model.name)), *messages])
    worker = test_model.worker()
    slow = worker.api.start("Pull", model=test_model.name, epoch=1, step=1)
    header = slow.next().header
    assert (header.version, header.block_count) == (0, blocks), header
    for step in (1, 2, 3):
        push = params.PushHeader(**worker.identity(), epoch=1, step=step, scale_id=1, dtype=common.DTYPE_F16)
        absent = params.PushTrailer(absent=[0])
        result = worker.api.Push([params.PushRequest(header=push), params.PushRequest(trailer=absent)]).result
        assert (result.step, result.verdict, result.version) == (step, APPLIED, step), result
    refused(slow.all, Code.ABORTED, "PULL_OUTRUN", metadata={"epoch": 1})


# ---- STEP: Join ----

def test_a_known_name_gets_its_rank_back_with_a_higher_incarnation(context):
    first, second = two(context)
    seen = [first.incarnation, second.incarnation]
    for worker, rank in ((second, 1), (first, 0), (second, 1)):
        worker.join(rank=None)
        assert worker.rank == rank
        seen.append(worker.incarnation)
    order = [(incarnation.fence, incarnation.counter) for incarnation in seen]
    assert order == sorted(set(order)), order
    joined = first.joined
    assert (joined.world_size, joined.lease_ms, joined.epoch, joined.step, joined.block_elements) == \
        (2, 30000, 1, 1, 65536), joined
    assert joined.spec == first.model.spec and len(joined.shards) == 1
    assert (joined.shards[0].index, joined.shards[0].first_block, joined.shards[0].block_count) == (0, 0, 1), joined.shards


def test_a_new_name_gets_its_rank_or_the_lowest_free_one(context):
    test_model = context.model(world_size=4)
    assert [test_model.worker("a", rank=2).rank, test_model.worker("b").rank, test_model.worker("c").rank,
            test_model.worker("d").rank] == [2, 0, 1, 3]
    for fields in ({}, {"rank": 1}, {"replace": True}, {"rank": 1, "replace": True}):
        refused(lambda f=fields: test_model.api.Join(model=test_model.name, worker_name="e", **f),
                Code.FAILED_PRECONDITION, "NO_FREE_RANK")
    assert {status.rank: status.name for status in test_model.status().workers} == {0: "b", 1: "c", 2: "a", 3: "d"}


def test_a_worker_without_a_name_is_called_by_its_rank(context):
    test_model = context.model(world_size=3)
    worker = test_model.worker(name=None, rank=1, world_size=3)
    assert worker.rank == 1
    again = test_model.worker("rank-1")
    assert again.rank == 1 and again.incarnation.counter > worker.incarnation.counter
    refused(lambda: test_model.api.Join(model=test_model.name, worker_name="x", world_size=2), Code.INVALID_ARGUMENT,
            words="world_size")


def test_a_rank_that_was_given_back_is_free_again(context):
    first, second = two(context)
    second.api.Leave(**second.identity())
    refused(lambda: second.api.Push(second.push_messages(ONES)), Code.ABORTED, "FENCED")
    third = first.model.worker("third")
    assert third.rank == 1
    third.pull()
    results = together([first, third], ONES)
    assert results[0].verdict == APPLIED and results[0].step == 1


def test_keep_alive_tells_whether_the_incarnation_holds(context):
    worker = one(context)
    answer = worker.api.KeepAlive(**worker.identity())
    assert answer.incarnation_valid and (answer.epoch, answer.step) == (1, 1), answer
    assert 29000 < answer.lease_ms <= 30000 and answer.state == common.MODEL_STATE_RUNNING, answer
    old = worker.incarnation
    worker.join()
    answer = worker.api.KeepAlive(model=worker.model.name, rank=0, incarnation=old)
    assert not answer.incarnation_valid and answer.lease_ms == 0, answer


# ---- Load ----

def test_a_second_loader_waits_and_finds_the_model_loaded(context):
    test_model = context.model(load=False)
    messages = list(load_messages(test_model.layout, test_model.name, {"w": [1.0, 2.0, 3.0, 4.0]}))
    other = list(load_messages(test_model.layout, test_model.name, {"w": [9.0] * 4}))
    first = OpenStream(test_model.api, "Load", messages[:1])
    eventually(lambda: test_model.status().state == common.MODEL_STATE_LOADING, "a Load is under way")
    second = held(test_model.api.start("Load", other))
    first.send(messages[1])
    first.end()
    assert not first.result().already_loaded and second.result().already_loaded
    late = OpenStream(test_model.api, "Load", other[:1])
    assert late.result().already_loaded  # without its body
    late.end()
    header, tensors = test_model.latest()
    assert (header.version, tensors["w"]) == (0, (1.0, 2.0, 3.0, 4.0))
    assert test_model.status().state == common.MODEL_STATE_WAITING


def test_a_loader_that_goes_makes_room_for_the_next(context):
    test_model = context.model(load=False, parameters=THREE_BLOCKS)
    messages = list(load_messages(test_model.layout, test_model.name, {"big": [1.0] * 131072, "tail": [2.0] * 5}))
    first = OpenStream(test_model.api, "Load", messages[:2])
    eventually(lambda: test_model.status().state == common.MODEL_STATE_LOADING, "a Load is under way")
    second = held(test_model.api.start("Load", messages))
    first.cancel()
    assert not second.result().already_loaded
    assert test_model.latest()[1]["tail"] == (2.0,) * 5


# ---- the end of a model ----

def test_a_model_is_done_after_max_steps(context):
    worker = one(context, max_steps=2)
    worker.push({"w": [float("inf")] * 4})
    worker.pull()
    last = worker.push({"w": [512.0] * 4})
    assert (last.step, last.verdict) == (2, APPLIED)
    eventually(lambda: worker.model.status().state == common.MODEL_STATE_DONE, "the model is DONE")
    refused(lambda: worker.api.Push(worker.push_messages({"w": [512.0] * 4})), Code.FAILED_PRECONDITION, "MODEL_DONE")
    refused(lambda: worker.pull(3), Code.FAILED_PRECONDITION, "MODEL_DONE")
    header, tensors = worker.pull(latest=True)
    assert (header.version, tensors["w"]) == (1, (0.5, 1.5, 2.5, 3.5))
    assert worker.api.Push([worker.push_header(step=2)]).result == last
    assert worker.api.KeepAlive(**worker.identity()).state == common.MODEL_STATE_DONE
    assert worker.model.status().durable_step == 2


def test_a_push_ahead_of_the_last_step_is_told_that_the_model_is_done(context):
    first, second = two(context, max_steps=1)
    ahead = held(first.start_push(ONES, step=2))
    waiting = first.api.start("Pull", model=first.model.name, epoch=1, step=2)
    together([first, second], ONES)
    refused(ahead.result, Code.FAILED_PRECONDITION, "MODEL_DONE")
    refused(waiting.all, Code.FAILED_PRECONDITION, "MODEL_DONE")


def test_a_stalled_model_names_the_rank_and_goes_on_when_it_is_back(context):
    """With the shortest loss_timeout and a rank that has left, so that no lease has to run out first."""
    first, second = two(context, loss_timeout_ms=1)
    second.api.Leave(**second.identity())
    refused(lambda: first.push(ONES), Code.UNAVAILABLE, "MODEL_STALLED", "rank 1")
    assert first.model.status().state == common.MODEL_STATE_STALLED
    assert first.pull(latest=True)[1]["w"] == (1.0, 2.0, 3.0, 4.0)
    second.join(rank=None)
    second.pull()
    results = together([first, second], ONES)
    assert (results[0].step, results[0].verdict) == (1, APPLIED), results[0]


def test_many_small_steps_of_two_workers_agree(context):
    workers = two(context)
    for step in range(1, 41):
        results = together(workers, [{"w": [1024.0] * 4}, {"w": [3072.0] * 4}])
        assert results[0] == results[1] and results[0].step == step and results[0].norm == 4.0, results
        headers = [worker.pull()[0] for worker in workers]
        assert headers[0] == headers[1]
    assert workers[0].model.latest()[1]["w"] == (-39.0, -38.0, -37.0, -36.0)
    rows = workers[0].model.step_rows()
    assert [row.step for row in rows] == list(range(1, 41))


if __name__ == "__main__":
    run(globals())
