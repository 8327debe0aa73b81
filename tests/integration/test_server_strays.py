#!/usr/bin/python3
"""Workers that come twice, go silent or write on, and gradients that are nothing but wrong: one verdict, nothing mixed.

    test_server_strays.py BIN_DIR [NAME ...]
"""
import math
import threading
import time

from ampd_testing import (PATIENCE, Api, Code, OpenStream, block_message, common, eventually, held, load_messages,
                          model, pack, params, refused, run)
from test_server_workers import Relay

APPLIED, OVERFLOW = common.VERDICT_APPLIED, common.VERDICT_SKIPPED_OVERFLOW
INF, NAN = math.inf, math.nan
F16, BF16, F32 = common.DTYPE_F16, common.DTYPE_BF16, common.DTYPE_F32
THREE_BLOCKS = [("big", [131072]), ("tail", [5])]
GOOD = {"big": [0.0] * 131072, "tail": [1024.0] * 5}
LEASE_S = 3 * PATIENCE
LEASE = f"{LEASE_S}s"


def silent_in_a_push(context):
    """(the silent worker, its stream with Inf in its last block, its other blocks, the other worker, its push)"""
    server = context.server("--worker-lease", LEASE)
    test_model = context.model("silent", server, parameters=THREE_BLOCKS, world_size=2)
    gone, there = test_model.workers(2)
    for worker in (gone, there):
        worker.pull()
    blocks = gone.blocks({"big": [0.0] * 131072, "tail": [INF] * 5})
    relay = Relay(server.port)
    stream = OpenStream(Api(relay.channel), "Push", [gone.push_header(), blocks[2]])
    eventually(lambda: gone.present() == {2}, "the last block is present")
    pushed = there.start_push(GOOD)
    relay.hold()

    def over():
        there.api.KeepAlive(**there.identity())  # of the other one
        return not test_model.status().workers[gone.rank].live

    eventually(over, "the lease of the silent worker has ended")
    assert not gone.api.KeepAlive(**gone.identity()).incarnation_valid and not pushed.done()
    relay.release()
    return gone, stream, blocks[:2], there, pushed


def test_a_lease_that_ends_in_the_middle_of_a_push_leaves_nothing_of_it_after_a_join(context):
    gone, stream, rest, _, pushed = silent_in_a_push(context)
    gone.join()
    refused(stream.result, Code.ABORTED, "FENCED")
    stream.send(*rest)
    stream.end()
    assert gone.present() == set()
    assert gone.push(GOOD).verdict == APPLIED
    assert pushed.result().result.verdict == APPLIED


def test_a_push_that_outlives_its_lease_counts_whole_and_the_next_one_needs_a_join(context):
    """The open step expects that incarnation still, and nobody else has its rank: its gradient is as good as any."""
    gone, stream, rest, there, pushed = silent_in_a_push(context)
    stream.send(*rest)
    stream.end()
    result = stream.result().result
    assert (result.step, result.verdict) == (1, OVERFLOW) and pushed.result().result == result, result
    there.step = gone.step = 2
    there.pull()
    gone.header = there.header
    refused(lambda: gone.start_push(GOOD).result(), Code.ABORTED, "FENCED")
    gone.join()
    pushed = there.start_push(GOOD)
    assert gone.push(GOOD).verdict == APPLIED and pushed.result().result.verdict == APPLIED


def test_an_elder_that_writes_without_pause_mixes_nothing_into_its_successors_push(context):
    """The older life of a worker sends Inf again and again while the newer ones push; no step sees any of it."""
    worker = context.model(parameters=THREE_BLOCKS).worker()
    for life in range(5):
        worker.pull()
        poison = worker.blocks({"big": [INF] * 131072, "tail": [INF] * 5})
        stop = threading.Event()

        def write(header=worker.push_header()):
            yield header
            while not stop.is_set():
                yield poison[0]
                yield poison[1]

        elder = worker.api.start("Push", write())
        eventually(lambda: worker.present() == {0, 1}, "the elder's blocks are present")
        worker.join()
        result = worker.push(GOOD)
        assert (result.step, result.verdict) == (life + 1, APPLIED), result
        stop.set()
        refused(elder.result, Code.ABORTED)
    assert worker.model.latest()[1]["tail"] == tuple(index + 1 - 0.5 * 5 for index in range(5))


LOAD_LEASE_S = 2 * LEASE_S  # a load and its checkpoint are to fit into one


def test_a_load_that_falls_silent_gives_way_within_two_leases_to_one_that_waits(context):
    """Its connection lives and answers PINGs; one of the two sends the same block again now and then."""
    server = context.server("--worker-lease", f"{LOAD_LEASE_S}s")
    for repeats in (False, True):
        test_model = context.model(f"silent-{repeats}", server, load=False, parameters=THREE_BLOCKS)
        messages = list(load_messages(test_model.layout, test_model.name, {"big": [1.0] * 131072, "tail": [2.0] * 5}))
        silent = OpenStream(test_model.api, "Load", messages[:2] if repeats else messages[:1])
        eventually(lambda m=test_model: m.status().state == common.MODEL_STATE_LOADING, "a Load is under way")
        began = time.monotonic()
        waits = held(test_model.api.start("Load", messages))
        while repeats and not waits.done() and time.monotonic() - began < 10 * LOAD_LEASE_S:
            silent.send(messages[1])
            time.sleep(LOAD_LEASE_S / 10)
        assert not waits.result().already_loaded
        assert time.monotonic() - began < 2 * LOAD_LEASE_S
        refused(silent.result, Code.UNAVAILABLE, "RECOVERING")
        silent.end()
        assert test_model.latest()[1]["tail"] == (2.0,) * 5
        assert "LOAD_ENDED" in str(test_model.history()), test_model.history()


def test_a_load_whose_blocks_come_slowly_is_left_to_its_end(context):
    server = context.server("--worker-lease", f"{LOAD_LEASE_S}s")
    test_model = context.model("slow", server, load=False, parameters=THREE_BLOCKS)
    messages = list(load_messages(test_model.layout, test_model.name, {"big": [1.0] * 131072, "tail": [2.0] * 5}))
    slow = OpenStream(test_model.api, "Load", messages[:1])
    eventually(lambda: test_model.status().state == common.MODEL_STATE_LOADING, "a Load is under way")
    waits = held(test_model.api.start("Load", messages))
    for message in messages[1:]:
        time.sleep(LOAD_LEASE_S / 2)
        slow.send(message)
    slow.end()
    assert not slow.result().already_loaded and waits.result().already_loaded


def test_gradients_of_nothing_but_nan_are_an_overflow_of_every_element(context):
    worker = context.model(parameters=[("w", [3, 5]), ("b", [])]).worker()
    scale = 1024.0
    for dtype in (F16, BF16, F32):
        worker.pull()
        result = worker.push({"w": [NAN] * 15, "b": [NAN]}, dtype=dtype)
        assert (result.verdict, result.old_scale, result.new_scale) == (OVERFLOW, scale, scale / 2), result
        rows = [(r.parameter, r.inf_count, r.nan_count, r.first_index, r.largest_finite) for r in result.overflows]
        assert rows == [("w", 0, 15, 0, 0.0), ("b", 0, 1, 0, 0.0)], rows
        scale /= 2
    header, tensors = worker.model.latest()
    assert (header.version, tensors["w"], tensors["b"]) == (0, tuple(float(i + 1) for i in range(15)), (1.0,))
    assert worker.train({"w": [1.0] * 15, "b": [1.0]}).verdict == APPLIED


def test_a_finite_gradient_whose_unscaled_value_is_not_finite_is_an_overflow(context):
    """The scale is below 1, so that unscaling makes the sum larger."""
    small = model.ScalerSpec(init_scale=2.0 ** -20, min_scale=2.0 ** -30)
    worker = context.model(scaler=small).worker()
    worker.pull()
    result = worker.push({"w": [0.0, 1e35, 0.0, -1.0]}, dtype=F32)
    rows = [(r.parameter, r.source, r.HasField("rank"), r.inf_count, r.first_index) for r in result.overflows]
    assert (result.verdict, rows) == (OVERFLOW, [("w", common.OVERFLOW_SOURCE_SUM, False, 1, 1)]), result
    assert worker.model.latest()[1]["w"] == (1.0, 2.0, 3.0, 4.0)


def test_a_push_of_another_epoch_is_refused_whichever_way_it_lies(context):
    server = context.server()
    worker = context.model("epochs", server).worker()
    worker.pull()
    server.restart_after_kill()
    worker.model.reconnect()
    worker.join()
    worker.pull()
    push = {"w": [1024.0] * 4}
    refused(lambda: worker.start_push(push, epoch=1).result(), Code.ABORTED, metadata={"epoch": 2, "step": 1})
    refused(lambda: worker.start_push(push, epoch=3).result(), Code.FAILED_PRECONDITION, "EPOCH_AHEAD")
    assert worker.push(push).verdict == APPLIED


def test_a_block_in_another_dtype_than_the_header_says_is_refused(context):
    worker = context.model().worker()
    worker.pull()
    data = pack(F32, [1.0] * 64)
    refused(lambda: worker.api.Push([worker.push_header(dtype=F16), block_message(params.PushRequest, 0, data)]),
            Code.INVALID_ARGUMENT, words="data")
    assert worker.push({"w": [1024.0] * 4}).verdict == APPLIED


if __name__ == "__main__":
    run(globals())
