#!/usr/bin/python3
"""What the server computes and remembers, over the wire: optimizers bit by bit, dtypes, absent parameters, overflows,
history, checkpoints, status.

    test_server_results.py BIN_DIR [NAME ...]

The arithmetic here is docs/numerics.md in plain Python, whose float is binary64.
"""
import contextlib
import json
import math
import random
import re
import struct

import ampd_testing
from ampd_testing import (Api, Code, admin, block_message, common, eventually, f32, held, model, one, pack, params, refused,
                          run, scales, together, two, unpack)
from formulas import Adam, AdamW, Double, Sgd, adagrad, lion, rmsprop
from shared_testing import TRAILER, Attachment, connect, placed

APPLIED, OVERFLOW, EMPTY = common.VERDICT_APPLIED, common.VERDICT_SKIPPED_OVERFLOW, common.VERDICT_SKIPPED_EMPTY
F32, F16, BF16 = common.DTYPE_F32, common.DTYPE_F16, common.DTYPE_BF16
SGD, ADAMW = model.OPTIMIZER_KIND_SGD, model.OPTIMIZER_KIND_ADAMW
ADAM, ADAGRAD = model.OPTIMIZER_KIND_ADAM, model.OPTIMIZER_KIND_ADAGRAD
RMSPROP, LION = model.OPTIMIZER_KIND_RMSPROP, model.OPTIMIZER_KIND_LION
INF, NAN = math.inf, math.nan
ONES = {"w": [1024.0] * 4}


# ---- docs/numerics.md ----

def mean_gradient(pushed, weights, scale):
    """pushed: one list of values by worker, as they travelled."""
    factor = f32(1.0 / (scale * sum(weights)))
    out = []
    for column in zip(*pushed):
        total = f32(weights[0] * column[0])
        for weight, value in zip(weights[1:], column[1:]):
            total = f32(total + f32(weight * value))
        out.append(f32(total * factor))
    return out


def squares(values):
    """Of one segment: 16 lanes, then a fold by halves."""
    lanes = [0.0] * 16
    for i, value in enumerate(values):
        lanes[i % 16] += value * value
    for half in (8, 4, 2, 1):
        for j in range(half):
            lanes[j] = lanes[j] + lanes[j + half]
    return lanes[0]


def clip_coefficient(norm, max_norm):
    return f32(min(1.0, max_norm / (norm + 1e-6)))


def travelled(dtype, values):
    """What arrives of values sent in a dtype."""
    return unpack(dtype, pack(dtype, values))


def check_training(context, make_reference, optimizer, steps=6, max_norm=None, workers=2, size=200):
    """Random gradients of two workers in other dtypes; masters (cast f32, so that they can be seen) are bitwise those of
    the formulas."""
    rng = random.Random(20240607)
    values = [rng.uniform(-1, 1) for _ in range(size - 3)] + [0.0, 0.0, 1e-20]
    fields = {"clip": model.ClipSpec(max_norm=max_norm)} if max_norm else {}
    test_model = context.model(parameters=[("w", [size])], tensors={"w": [f32(v) for v in values]}, world_size=workers,
                               cast_dtype=F32, optimizer=optimizer, **fields)
    crew, reference = test_model.workers(workers), make_reference(values)
    for step in range(steps):
        dtypes = [(F16, BF16, F32)[(step + r) % 3] for r in range(workers)]
        sent = [[rng.gauss(0, 1) * 10 ** rng.uniform(-3, 3) for _ in range(size)] for _ in range(workers)]
        for worker in crew:
            worker.pull()
        calls = [w.start_push({"w": values}, dtype=d) for w, values, d in zip(crew, sent, dtypes)]
        result = [call.result().result for call in calls][0]
        for worker in crew:
            worker.step += 1
        gradient = mean_gradient([travelled(d, values) for d, values in zip(dtypes, sent)], [1.0] * workers, 1024.0)
        norm = math.sqrt(squares(gradient))
        coefficient = clip_coefficient(norm, f32(max_norm)) if max_norm else 1.0  # max_norm travels as float
        assert (result.verdict, result.norm, list(result.clip_coefficients)) == (APPLIED, norm, [coefficient]), \
            (step, result, norm, coefficient)
        reference.apply(gradient, coefficient)
        got = test_model.latest()[1]["w"]
        differing = [(i, a, b) for i, (a, b) in enumerate(zip(got, reference.p)) if a != b]
        assert not differing, f"step {step + 1}: {len(differing)} of {size} differ, first {differing[0]}"
    return test_model


# ---- optimizers ----

def test_sgd_is_the_formula_bit_by_bit(context):
    check_training(context, lambda v: Sgd(v, 0.1), model.OptimizerSpec(kind=SGD, learning_rate=0.1))


def test_sgd_with_momentum_dampening_and_decay_is_the_formula_bit_by_bit(context):
    check_training(context, lambda v: Sgd(v, 0.05, 0.9, 0.25, 0.001),
                   model.OptimizerSpec(kind=SGD, learning_rate=0.05, momentum=0.9, dampening=0.25, weight_decay=0.001))


def test_sgd_with_nesterov_is_the_formula_bit_by_bit(context):
    check_training(context, lambda v: Sgd(v, 0.05, 0.9, nesterov=True),
                   model.OptimizerSpec(kind=SGD, learning_rate=0.05, momentum=0.9, nesterov=True))


def test_adamw_is_the_formula_bit_by_bit(context):
    check_training(context, lambda v: AdamW(v, 0.001), None)


def test_adamw_with_other_values_is_the_formula_bit_by_bit(context):
    check_training(context, lambda v: AdamW(v, 0.02, 0.8, 0.95, 1e-6, 0.1),
                   model.OptimizerSpec(kind=ADAMW, learning_rate=0.02, beta1=0.8, beta2=0.95, epsilon=1e-6, weight_decay=0.1))


def test_adam_with_coupled_decay_is_the_formula_bit_by_bit(context):
    check_training(context, lambda v: Adam(v, 0.001, weight_decay=0.0), model.OptimizerSpec(kind=ADAM))
    check_training(context, lambda v: Adam(v, 0.01, 0.8, 0.95, 1e-6, 0.1),
                   model.OptimizerSpec(kind=ADAM, learning_rate=0.01, beta1=0.8, beta2=0.95, epsilon=1e-6, weight_decay=0.1))


def test_adagrad_is_the_formula_bit_by_bit(context):
    check_training(context, lambda v: Double(v, adagrad(0.01, 0.0)), model.OptimizerSpec(kind=ADAGRAD))
    check_training(context, lambda v: Double(v, adagrad(0.05, 0.1, 1e-8), 0.01),
                   model.OptimizerSpec(kind=ADAGRAD, learning_rate=0.05, learning_rate_decay=0.1, epsilon=1e-8, weight_decay=0.01))


def test_rmsprop_is_the_formula_bit_by_bit(context):
    check_training(context, lambda v: Double(v, rmsprop(0.01)), model.OptimizerSpec(kind=RMSPROP))
    check_training(context, lambda v: Double(v, rmsprop(0.02, 0.9, 1e-6, momentum=0.9), 0.01),
                   model.OptimizerSpec(kind=RMSPROP, learning_rate=0.02, alpha=0.9, epsilon=1e-6, momentum=0.9, weight_decay=0.01))
    check_training(context, lambda v: Double(v, rmsprop(0.02, 0.9, centered=True)),
                   model.OptimizerSpec(kind=RMSPROP, learning_rate=0.02, alpha=0.9, centered=True))


def test_lion_is_the_formula_bit_by_bit(context):
    check_training(context, lambda v: Double(v, lion(1e-4, 0.9, 0.99, 0.0)), model.OptimizerSpec(kind=LION))
    check_training(context, lambda v: Double(v, lion(0.01, 0.8, 0.95, 0.1)),
                   model.OptimizerSpec(kind=LION, learning_rate=0.01, beta1=0.8, beta2=0.95, weight_decay=0.1))


def test_a_clipped_norm_is_the_formula_bit_by_bit(context):
    check_training(context, lambda v: Sgd(v, 0.5), model.OptimizerSpec(kind=SGD, learning_rate=0.5), max_norm=0.7)
    check_training(context, lambda v: AdamW(v, 0.001), None, max_norm=0.5, workers=1)


def test_values_are_clipped_before_the_norm(context):
    worker = one(context, clip=model.ClipSpec(value=0.5))
    result = worker.push({"w": [1024.0, -2048.0, 256.0, 0.0]})
    assert result.norm == math.sqrt(0.25 + 0.25 + 0.0625), result.norm
    assert worker.model.latest()[1]["w"] == (0.75, 2.25, 2.875, 4.0)


def test_the_schedule_counts_applied_steps(context):
    worker = one(context, schedule=model.ScheduleSpec(kind=model.SCHEDULE_KIND_LINEAR_WARMUP, warmup_steps=4))
    rates = []
    for values in ([1024.0] * 4, [INF] * 4, [512.0] * 4, [512.0] * 4, [512.0] * 4, [512.0] * 4):
        worker.pull()
        rates.append(worker.push({"w": values}).learning_rate)
    assert rates == [0.125, 0.0, 0.25, 0.375, 0.5, 0.5], rates
    assert worker.model.latest()[1]["w"] == (-0.75, 0.25, 1.25, 2.25)


def test_the_rate_of_workers_is_that_of_the_step(context):
    first, second = two(context, schedule=model.ScheduleSpec(kind=model.SCHEDULE_KIND_WORKER), cast_dtype=F32,
                        parameters=(("w", [4]), model.ParameterSpec(name="b", shape=[1], group=1)),
                        groups=[model.ParameterGroup(), model.ParameterGroup(learning_rate_factor=0.5)])
    values, rates = {"w": [1.0, 2.0, 3.0, 4.0], "b": [1.0]}, []
    for rate, sent in ((0.1, 1024.0), (0.05, 1024.0), (0.05, INF), (1 / 3, 512.0), (0.0, 1024.0)):
        for worker in (first, second):
            worker.pull()
        results = together([first, second], {"w": [sent] * 4, "b": [sent]}, learning_rate=rate)
        assert results[0] == results[1], results
        rates.append(results[0].learning_rate)
        if sent != INF:  # the second overflow-free value halves the gradient, not the scale
            g = f32(2 * sent * f32(1 / (2 * results[0].old_scale)))
            values = {"w": [f32(v - rate * g) for v in values["w"]], "b": [f32(v - rate * 0.5 * g) for v in values["b"]]}
    assert rates == [0.1, 0.05, 0.0, 1 / 3, 0.0], rates
    assert {name: list(got) for name, got in first.model.latest()[1].items()} == values
    assert [row.learning_rate for row in first.model.step_rows()] == rates


def test_a_push_whose_rate_is_another_than_that_of_a_whole_one_is_refused(context):
    first, second = two(context, schedule=model.ScheduleSpec(kind=model.SCHEDULE_KIND_WORKER), cast_dtype=F32)
    waits = held(first.start_push(ONES, learning_rate=0.25))
    for rate in (0.5, math.nextafter(0.25, 1)):
        refusal = refused(lambda r=rate: second.push(ONES, learning_rate=r), Code.INVALID_ARGUMENT, "LEARNING_RATE",
                          words="learning_rate")
        assert all(word in refusal.text for word in (f"{rate:.17g} of rank 1", "0.25 of rank 0")), refusal.text
    assert not waits.done() and second.present() == set()
    result = second.push(ONES, learning_rate=0.25)
    assert waits.result().result == result and (result.verdict, result.learning_rate) == (APPLIED, 0.25), result
    assert first.model.latest()[1]["w"] == (0.75, 1.75, 2.75, 3.75)


def test_a_push_must_name_a_rate_with_the_schedule_worker(context):
    worker = one(context, schedule=model.ScheduleSpec(kind=model.SCHEDULE_KIND_WORKER))
    refused(lambda: worker.push(ONES), Code.INVALID_ARGUMENT, "LEARNING_RATE", words="schedule WORKER")
    for rate in (NAN, INF, -INF, -1.0, 1e39):
        refused(lambda r=rate: worker.push(ONES, learning_rate=r), Code.INVALID_ARGUMENT, "LEARNING_RATE", words="finite")
    assert worker.push(ONES, learning_rate=0.5).verdict == APPLIED


def check_orders(context, attach):
    """Eight workers, first to last and last to first; (norms and clip coefficients, parameters) of both.
    attach: after each join; what it returns makes the messages of a push."""
    rng = random.Random(77)
    sent = [[[rng.gauss(0, 1) * 10 ** rng.uniform(-3, 3) for _ in range(50)] for _ in range(8)] for _ in range(4)]
    seen = []
    for order in (1, -1):
        test_model = context.model(parameters=[("w", [50])], world_size=8, cast_dtype=F32, optimizer=None,
                                   clip=model.ClipSpec(max_norm=0.25))
        crew, results = test_model.workers(8), []
        messages = [attach(worker) for worker in crew]
        for gradients in sent:
            for worker in crew:
                worker.pull()
            calls = []
            for worker, push, values in list(zip(crew, messages, gradients))[::order]:
                calls.append(worker.api.start("Push", push({"w": values})))
                eventually(lambda w=worker, c=calls[-1]: c.done() or w.push_state().complete, "the push is complete")
                worker.step += 1
            results.append(calls[0].result().result)
        seen.append(([(r.norm, list(r.clip_coefficients)) for r in results], test_model.latest()[1]))
    assert seen[0] == seen[1]
    return seen


def in_blocks(worker):
    return lambda tensors: worker.push_messages(tensors, dtype=F32)


def test_the_order_of_arrival_changes_no_bit(context):
    check_orders(context, in_blocks)


def test_the_order_of_arrival_changes_no_bit_in_shared_memory(context):
    """A placed block is refused where no slot is attached, so that none can have come another way."""
    with connect(f"unix:{context.shared.data_dir}/ampd.sock") as channel, contextlib.ExitStack() as until_the_end:
        def in_a_slot(worker):
            worker.model.api = Api(channel)
            attached = Attachment(worker, dtype=F32)
            until_the_end.callback(attached.end)

            def messages(tensors):
                data = b"".join(worker.model.layout.blocks(F32, tensors))
                attached.slot[:len(data)] = data
                return [worker.push_header(dtype=F32), placed(0, 1), TRAILER]
            return messages
        assert check_orders(context, in_a_slot) == check_orders(context, in_blocks)


# ---- dtypes ----

def test_each_dtype_is_pushed_and_pulled_as_it_is(context):
    for cast in (F16, BF16, F32):
        for push in (F16, BF16, F32):
            worker = one(context, cast_dtype=cast)
            assert worker.header.dtype == cast
            assert worker.push({"w": [1024.0, -2048.0, 0.0, 512.0]}, dtype=push).norm == math.sqrt(5.25)
            assert worker.pull()[1]["w"] == (0.5, 3.0, 3.0, 3.75)


def test_a_pull_is_rounded_to_nearest_even(context):
    values = [1.0 + 2.0 ** -11, 1.0 + 3 * 2.0 ** -11, 65519.0, 65520.0, -65520.0, 2.0 ** -25, 3 * 2.0 ** -26, -1e-9]
    half = [1.0, 1.0 + 2.0 ** -9, 65504.0, INF, -INF, 0.0, 2.0 ** -24, -0.0]
    test_model = context.model(parameters=[("w", [8])], tensors={"w": values})
    assert [math.copysign(1, a) * abs(a) for a in test_model.latest()[1]["w"]] == half
    assert math.copysign(1, test_model.latest()[1]["w"][7]) == -1
    values = [1.0 + 2.0 ** -8, 1.0 + 3 * 2.0 ** -8, 3.38e38, -1e-40]
    brain = context.model(parameters=[("w", [4])], cast_dtype=BF16, tensors={"w": values})
    assert brain.latest()[1]["w"][:2] == (1.0, 1.0 + 2.0 ** -6) and brain.latest()[1]["w"] == travelled(BF16, values)


def test_a_master_beyond_the_cast_is_reported(context):
    worker = one(context, tensors={"w": [1.0, 65504.0, 1.0, -65504.0]})
    worker.push({"w": [0.0, -1024.0 * 60, 0.0, 1024.0 * 60]})
    header, tensors = worker.pull()
    assert tensors["w"] == (1.0, INF, 1.0, -INF), tensors  # 65534 rounds to Inf
    result = worker.push({"w": [0.0] * 4})
    assert [(w.parameter, w.parameter_index, w.count) for w in result.range_warnings] == [("w", 0, 2)], result


def test_gradients_smaller_than_half_precision_count(context):
    worker = one(context, cast_dtype=F32)
    assert worker.push({"w": [2.0 ** -24, -(2.0 ** -24), 2.0 ** -14, 0.0]}).norm > 0
    assert worker.model.latest()[1]["w"][0] == f32(1 - 0.5 * 2.0 ** -34)


# ---- absent parameters ----

AB = {"parameters": [("a", [4]), ("b", [4])], "tensors": {"a": [1.0] * 4, "b": [2.0] * 4}}


def push_in_order(pushes):
    """Starts the pushes one after another, each once the one before is complete; all get the same result."""
    calls = []
    for worker, tensors, absent in pushes:
        calls.append(worker.start_push(tensors, absent=absent))
        if len(calls) < len(pushes):
            eventually(lambda w=worker: w.push_state().complete, "the push is complete")
    results = [call.result().result for call in calls]
    assert results[0] == results[1]
    return results[0]


def check_absent(context, garbage):
    """Worker 0 sends other bytes than zeros for `a` and lists it absent: they count as zeros, in whichever order."""
    for order in (1, -1):
        first, second = two(context, **AB)
        pushes = [(first, {"a": garbage, "b": [4096.0] * 4}, [0]), (second, {"a": [2048.0] * 4, "b": [0.0] * 4}, [])]
        result = push_in_order(pushes[::order])
        assert (result.verdict, result.norm) == (APPLIED, math.sqrt(20.0)), (order, result)
        assert second.model.latest()[1] == {"a": (0.5,) * 4, "b": (1.0,) * 4}


def test_a_parameter_absent_from_one_worker_counts_as_zero(context):
    check_absent(context, [1024.0] * 4)


def test_a_nan_in_an_absent_parameter_is_none_of_the_step(context):
    check_absent(context, [NAN] * 4)


def test_a_parameter_absent_from_all_is_not_touched(context):
    fields = {"momentum": 0.5, "learning_rate": 0.5, "weight_decay": 0.5}
    first, second = two(context, **AB, optimizer=model.OptimizerSpec(kind=SGD, **fields), cast_dtype=F32)
    a, b = Sgd([1.0] * 4, 0.5, 0.5, 0, 0.5), Sgd([2.0] * 4, 0.5, 0.5, 0, 0.5)
    for absent in ([], [0], [0], [1], [0, 1], []):
        for worker in (first, second):
            worker.pull()
        result = together([first, second], {"a": [1024.0] * 4, "b": [2048.0] * 4}, absent=absent)[0]
        for index, (reference, value) in enumerate(((a, 1.0), (b, 2.0))):
            if index not in absent:
                reference.apply([value] * 4)
        present = [value * value * 4 for index, value in ((0, 1.0), (1, 2.0)) if index not in absent]
        assert result.verdict == APPLIED and result.norm == math.sqrt(sum(present)), (absent, result)
        assert first.model.latest()[1] == {"a": tuple(a.p), "b": tuple(b.p)}, absent


def test_a_wholly_absent_block_need_not_travel(context):
    test_model = context.model(parameters=[("a", [65536]), ("b", [4])], tensors={"a": [1.0] * 65536, "b": [2.0] * 4})
    worker = test_model.worker()
    worker.pull()
    messages = worker.push_messages({"b": [1024.0] * 4}, absent=[0])
    del messages[1]  # block 0
    result = worker.api.Push(messages).result
    assert (result.verdict, result.norm) == (APPLIED, 2.0)
    tensors = test_model.latest()[1]
    assert tensors["b"] == (1.5,) * 4 and set(tensors["a"]) == {1.0}


def test_pad_elements_are_ignored(context):
    worker = one(context)
    data = pack(F16, [1024.0] * 4 + [NAN] * 60)
    result = worker.api.Push([worker.push_header(), block_message(params.PushRequest, 0, data)]).result
    assert (result.verdict, result.norm) == (APPLIED, 2.0), result
    answers = worker.api.Pull(model=worker.model.name, step=2)
    assert unpack(F16, answers[1].data) == (0.5, 1.5, 2.5, 3.5) + (0.0,) * 60


# ---- weights ----

def test_pushed_weights_weigh_the_mean(context):
    first, second = two(context, weighting=model.WEIGHTING_PUSHED)
    call = first.start_push({"w": [1024.0] * 4}, weight=1.0)
    result = second.push({"w": [5120.0] * 4}, weight=3.0)
    assert call.result().result == result and result.norm == 8.0, result  # (1 + 3 * 5) / 4 each
    assert second.model.latest()[1]["w"] == (-1.0, 0.0, 1.0, 2.0)


def test_weight_0_needs_no_blocks_and_all_0_is_an_empty_step(context):
    first, second = two(context, weighting=model.WEIGHTING_PUSHED)
    call = first.api.start("Push", [first.push_header(weight=0.0)])
    result = second.push(ONES, weight=2.0)
    assert call.result().result == result and (result.verdict, result.norm) == (APPLIED, 2.0), result
    first.step = 2
    calls = [worker.api.start("Push", [worker.push_header(weight=0.0)]) for worker in (first, second)]
    for call in calls:
        result = call.result().result
        assert (result.verdict, result.old_scale, result.new_scale, result.version) == (EMPTY, 1024.0, 1024.0, 1), result
    record = first.api.GetScale(model=first.model.name).record
    assert (record.attempted, record.applied, record.skipped, record.total_overflows) == (2, 1, 1, 0), record


# ---- overflows and the scale ----

def test_an_overflow_names_worker_parameter_and_place(context):
    parameters = [("a", [2, 40]), ("b", [7])]
    first, second = two(context, parameters=parameters, tensors={"a": [1.0] * 80, "b": [1.0] * 7})
    bad = {"a": [3.0] * 79 + [INF], "b": [0.0, NAN, -INF, NAN, -65504.0, 1.0, 2.0]}
    call = first.start_push({"a": [1.0] * 80, "b": [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, INF]})
    result = second.push(bad)
    assert call.result().result == result
    assert (result.verdict, result.old_scale, result.new_scale, result.applied, result.version, result.norm) == \
        (OVERFLOW, 1024.0, 512.0, 0, 0, 0.0), result
    assert list(result.clip_coefficients) == [] and result.consecutive_overflows == 1
    rows = [(r.parameter, r.parameter_index, r.rank, r.worker_name, r.inf_count, r.nan_count, r.first_index,
             r.largest_finite, r.source, r.epoch, r.step) for r in result.overflows]
    assert rows == [("a", 0, 1, "w1", 1, 0, 79, 3.0, 1, 1, 1), ("b", 1, 0, "w0", 1, 0, 6, 0.0, 1, 1, 1),
                    ("b", 1, 1, "w1", 1, 2, 1, 65504.0, 1, 1, 1)], rows
    totals = result.overflow_totals
    assert (totals.rows, totals.inf_count, totals.nan_count) == (3, 3, 2), totals
    stored = first.api.ListOverflows(model=first.model.name).rows
    assert [(r.parameter, r.rank, r.inf_count, r.nan_count, r.first_index, r.largest_finite) for r in stored] == \
        [(r.parameter, r.rank, r.inf_count, r.nan_count, r.first_index, r.largest_finite) for r in result.overflows]
    assert all(r.HasField("decide_time") and not r.superseded for r in stored)


def test_every_dtype_finds_inf_and_nan(context):
    for dtype in (F16, BF16, F32):
        worker = one(context)
        for bad in (INF, -INF, NAN):
            worker.pull()
            result = worker.push({"w": [0.0, 0.0, bad, 0.0]}, dtype=dtype)
            row = result.overflows[0]
            assert (result.verdict, row.first_index, row.inf_count + row.nan_count) == (OVERFLOW, 2, 1), result
        assert worker.model.latest()[1]["w"] == (1.0, 2.0, 3.0, 4.0)


def test_a_sum_that_overflows_is_nobodys(context):
    first, second = two(context)
    results = together([first, second], {"w": [0.0, 3e38, 0.0, 0.0]}, dtype=F32)
    rows = [(r.parameter, r.source, r.HasField("rank"), r.inf_count, r.first_index) for r in results[0].overflows]
    assert results[0].verdict == OVERFLOW and rows == [("w", common.OVERFLOW_SOURCE_SUM, False, 1, 1)], results[0]


def test_a_gradient_whose_square_leaves_the_range_is_an_overflow(context):
    scale_1 = model.ScalerSpec(init_scale=1.0)
    worker = one(context, optimizer=None, scaler=scale_1)
    result = worker.push({"w": [0.0, 0.0, 0.0, 1e19]}, dtype=F32)
    rows = [(r.parameter, r.source, r.inf_count, r.first_index) for r in result.overflows]
    assert result.verdict == OVERFLOW and rows == [("w", common.OVERFLOW_SOURCE_RANGE, 1, 3)], result
    assert result.new_scale == 1.0  # the floor
    below = 2.0 ** 62
    assert worker.push({"w": [0.0, 0.0, 0.0, below]}, dtype=F32).verdict == APPLIED


def test_only_the_first_64_rows_are_listed_and_all_are_counted(context):
    names = [f"p{i:03}" for i in range(100)]
    worker = one(context, parameters=[(name, [1]) for name in names])
    result = worker.push({name: [INF] for name in names})
    assert [row.parameter for row in result.overflows] == names[:64]
    assert (result.overflow_totals.rows, result.overflow_totals.inf_count) == (100, 100)


# Start 1024, growth interval 4, hysteresis 2: the scale after each step, as the policies' originals move it.
TRACE = "......XXX..X........."
GOLDEN = {
    common.SCALER_POLICY_DYNAMIC: [1024] * 3 + [2048] * 3 + [1024, 512] + [256] * 3 + [128] * 4 + [256] * 4 + [512] * 2,
    common.SCALER_POLICY_MEGATRON:
        [1024] * 3 + [2048] * 4 + [1024] + [512] * 3 + [256] * 4 + [512] * 4 + [1024] * 2,
    common.SCALER_POLICY_DEEPSPEED: [1024] * 4 + [2048] * 3 + [1024] + [512] * 3 + [256] * 5 + [512] * 4 + [1024],
    common.SCALER_POLICY_DEEPSPEED_CONSECUTIVE:
        [1024] * 4 + [2048] * 3 + [1024] + [512] * 8 + [1024] * 4 + [2048],
    common.SCALER_POLICY_APEX_HYSTERESIS: [1024] * 3 + [2048] * 4 + [1024] + [512] * 7 + [1024] * 4 + [2048] * 2,
    common.SCALER_POLICY_PADDLE: [1024] * 3 + [2048] * 4 + [1024] * 8 + [2048] * 4 + [4096] * 2,
}


def test_the_scale_of_every_policy_follows_its_golden_trace(context):
    for policy, golden in GOLDEN.items():
        worker = one(context, scaler=model.ScalerSpec(policy=policy, init_scale=1024.0, growth_interval=4))
        assert worker.model.spec.scaler.policy == policy
        got = []
        for mark in TRACE:
            worker.pull()
            got.append(worker.push({"w": [INF if mark == "X" else 0.0] * 4}).new_scale)
        assert got == golden, (policy, got)
        rows = worker.model.step_rows()
        assert [row.record.scale for row in rows] == golden
        assert [row.step for row in rows] == list(range(1, len(TRACE) + 1))
        assert [row.old_scale for row in rows] == [1024] + golden[:-1]
        for before, after in zip(rows, rows[1:]):
            assert after.old_scale_id == before.record.scale_id
            assert (after.record.scale_id > before.record.scale_id) == (after.record.scale != before.record.scale)
        record = worker.api.GetScale(model=worker.model.name)
        assert record.record == rows[-1].record and (record.epoch, record.step) == (1, len(TRACE) + 1)
        assert record.record.policy == policy
        assert (record.record.attempted, record.record.applied, record.record.skipped, record.record.total_overflows,
                record.record.steps_since_overflow) == (21, 17, 4, 4, 9), record


def test_the_scale_stays_within_floor_and_cap(context):
    worker = one(context, scaler=model.ScalerSpec(init_scale=8.0, min_scale=4.0, max_scale=16.0, growth_interval=1))
    got = []
    for bad in (0, 0, 0, 1, 1, 1, 1, 0):
        worker.pull()
        got.append(worker.push({"w": [INF if bad else 0.0] * 4}).new_scale)
    assert got == [16.0, 16.0, 16.0, 8.0, 4.0, 4.0, 4.0, 8.0], got


def test_a_static_scale_never_moves(context):
    for policy, scale in ((common.SCALER_POLICY_STATIC, 128.0), (common.SCALER_POLICY_NONE, 1.0)):
        fields = {"init_scale": scale} if policy == common.SCALER_POLICY_STATIC else {}
        worker = one(context, scaler=model.ScalerSpec(policy=policy, growth_interval=1, **fields))
        for bad in (0.0, INF, 0.0, NAN):
            worker.pull()
            result = worker.push({"w": [bad] * 4})
            assert (result.old_scale, result.new_scale, result.new_scale_id) == (scale, scale, result.old_scale_id), result


def test_many_overflows_in_a_row_are_unstable(context):
    worker = one(context, max_consecutive_overflows=3)
    told = []
    for bad in (INF, INF, INF, INF, 0.0):
        worker.pull()
        result = worker.push({"w": [bad] * 4})
        told.append((result.consecutive_overflows, result.unstable))
    assert told == [(1, False), (2, False), (3, True), (4, True), (0, False)], told


# ---- history ----

def history_model(context):
    """30 steps: every fifth overflows, alternately in a and b."""
    worker = one(context, parameters=[("a", [4]), ("b", [4])])
    for step in range(1, 31):
        worker.pull()
        bad = "a" if step % 10 else "b"
        worker.push({bad: [INF] * 4} if step % 5 == 0 else {"a": [0.0] * 4})
    return worker


def pages(ask, **fields):
    """All rows over all pages, and the number of pages."""
    rows, token, count = [], "", 0
    while count == 0 or token:
        page = ask(page_token=token, **fields)
        rows, token, count = rows + list(page.rows), page.next_page_token, count + 1
        assert count <= 100
    return rows, count


def test_history_comes_in_pages_with_filters(context):
    worker = history_model(context)
    name, ask = worker.model.name, worker.api.ListScaleHistory
    everything = worker.model.history()
    assert [row.kind for row in everything].count(scales.HISTORY_KIND_EPOCH) == 1, everything
    assert everything[0].kind == scales.HISTORY_KIND_EPOCH and everything[0].epoch == 1
    assert [row.step for row in everything[1:]] == list(range(1, 31))
    for size, count in ((7, 5), (31, 1), (1, 31), (1000, 1)):
        rows, got = pages(ask, model=name, page_size=size)
        assert rows == list(everything) and got == count, (size, got, len(rows))
    newest, _ = pages(ask, model=name, page_size=4, newest_first=True)
    assert newest == list(reversed(everything))

    def steps(**fields):
        return [row.step for row in pages(ask, model=name, page_size=3, **fields)[0]
                if row.kind == scales.HISTORY_KIND_STEP]

    assert steps(from_step=11, to_step=14) == [11, 12, 13, 14]
    assert steps(from_step=28) == [28, 29, 30] and steps(to_step=2) == [1, 2]
    assert steps(verdicts=[OVERFLOW]) == [5, 10, 15, 20, 25, 30]
    assert steps(verdicts=[OVERFLOW], newest_first=True, to_step=20) == [20, 15, 10, 5]
    assert steps(only_changes=True) == [5, 10, 15, 20, 25, 30]
    assert steps(verdicts=[APPLIED, EMPTY], to_step=6) == [1, 2, 3, 4, 6]
    assert steps(epoch=1) == list(range(1, 31)) and steps(epoch=2) == []


def test_rows_of_the_history_are_whole(context):
    first, second = two(context, clip=model.ClipSpec(max_norm=1.0))
    together([first, second], ONES)
    for worker in (first, second):
        worker.pull()
    together([first, second], {"w": [INF, 0.0, 0.0, 0.0]})
    applied, skipped = first.model.step_rows()
    assert (applied.epoch, applied.step, applied.verdict, applied.version, applied.norm, applied.learning_rate,
            applied.clip_coefficient, applied.contributors, applied.superseded) == \
        (1, 1, APPLIED, 1, 2.0, 0.5, clip_coefficient(2.0, 1.0), 2, False), applied
    assert (skipped.step, skipped.verdict, skipped.version, skipped.norm, skipped.learning_rate, skipped.clip_coefficient,
            skipped.contributors, skipped.old_scale, skipped.record.scale) == (2, OVERFLOW, 1, 0, 0, 0, 2, 1024.0, 512.0)
    assert (skipped.overflow_totals.rows, skipped.overflow_totals.inf_count) == (2, 2)
    assert 0 < applied.decide_time.ToNanoseconds() <= skipped.decide_time.ToNanoseconds()
    assert applied.decide_time.nanos % 1000 == 0


def test_overflows_come_in_pages_with_filters(context):
    worker = history_model(context)
    name, ask = worker.model.name, worker.api.ListOverflows

    def found(**fields):
        return [(row.step, row.parameter) for row in pages(ask, model=name, page_size=2, **fields)[0]]

    all_rows = [(5, "a"), (10, "b"), (15, "a"), (20, "b"), (25, "a"), (30, "b")]
    assert found() == all_rows and found(newest_first=True) == all_rows[::-1]
    assert found(parameter="b") == all_rows[1::2]
    refused(lambda: found(parameter="none"), Code.NOT_FOUND, words="none")
    assert found(rank=0) == all_rows and found(rank=1) == []
    assert found(from_step=10, to_step=20) == all_rows[1:4]
    assert found(source=common.OVERFLOW_SOURCE_WORKER) == all_rows and found(source=common.OVERFLOW_SOURCE_SUM) == []
    assert found(epoch=1) == all_rows and found(epoch=3) == []


def test_watched_steps_come_as_they_are_decided(context):
    worker = one(context)
    name = worker.model.name
    worker.push(ONES)
    new_only = worker.api.start("WatchSteps", model=name)
    stored_too = worker.api.start("WatchSteps", model=name, from_step=1)
    assert stored_too.next().row.step == 1
    worker.pull()
    # A watch that only wants new rows has begun when the server has answered a later call of this connection.
    worker.api.GetScale(model=name)
    worker.push({"w": [INF, NAN, 0.0, 0.0]})
    for watch in (stored_too, new_only):
        answer = watch.next()
        assert (answer.row.step, answer.row.verdict, answer.state) == (2, OVERFLOW, common.MODEL_STATE_RUNNING), answer
        assert [(r.parameter, r.inf_count, r.nan_count) for r in answer.overflows] == [("w", 1, 1)]
    for step in range(3, 20):
        worker.pull()
        worker.push({"w": [0.0] * 4})
        assert stored_too.next().row.step == step
    assert [new_only.next().row.step for _ in range(3, 20)] == list(range(3, 20))
    stored_too.cancel()
    new_only.cancel()
    past = worker.api.start("WatchSteps", model=name, from_step=15)
    assert [past.next().row.step for _ in range(15, 20)] == list(range(15, 20))
    past.cancel()


# ---- checkpoints and status ----

def read_safetensors(path):
    """name -> (dtype, shape, values) and the metadata."""
    raw = path.read_bytes()
    size = struct.unpack_from("<Q", raw)[0]
    header = json.loads(raw[8:8 + size])
    metadata = header.pop("__metadata__", {})
    body, tensors = raw[8 + size:], {}
    for name, about in header.items():
        start, end = about["data_offsets"]
        tensors[name] = (about["dtype"], about["shape"], struct.unpack(f"<{(end - start) // 4}f", body[start:end]))
    return tensors, metadata


def test_a_checkpoint_is_a_safetensors_file_of_the_masters(context):
    server = context.server()
    test_model = context.model("ckpt", server, parameters=[("w", [2, 2]), ("v", [3])], optimizer=None,
                               tensors={"w": [1.0, 2.0, 3.0, 4.0], "v": [5.0, 6.0, 7.0]})
    worker = test_model.worker()
    worker.pull()
    assert worker.api.Checkpoint(model="ckpt").checkpoint.step == 0  # nothing has been decided since Load
    worker.push({"w": [1024.0] * 4, "v": [-1024.0] * 3})
    # Step 2 is open, so the checkpoint is cut at its verdict.
    asked = held(worker.api.start("Checkpoint", model="ckpt"))
    worker.pull()
    worker.push({"w": [2048.0] * 4, "v": [INF] * 3})
    info = asked.result().checkpoint
    assert (info.model, info.epoch, info.step, info.version, info.applied, info.scale, info.parts) == \
        ("ckpt", 1, 2, 1, 1, 512.0, 1), info
    assert re.fullmatch("[0-9a-f]{32}", info.manifest_hash) and info.HasField("create_time"), info
    folder = server.data_dir / info.path
    assert folder.name == "step-0000000002"
    files = list(folder.iterdir())
    assert [path.name for path in files] == ["shard-0-of-1.safetensors"], files
    assert files[0].stat().st_size == info.size_bytes
    tensors, _ = read_safetensors(files[0])
    assert sorted(tensors) == ["v", "v#m", "v#v", "w", "w#m", "w#v"], sorted(tensors)
    w, v = AdamW([1.0, 2.0, 3.0, 4.0], 0.001), AdamW([5.0, 6.0, 7.0], 0.001)
    w.apply([1.0] * 4)
    v.apply([-1.0] * 3)
    for name, shape, reference in (("w", [2, 2], w), ("v", [3], v)):
        for suffix, values in (("", reference.p), ("#m", reference.m), ("#v", reference.v)):
            assert tensors[name + suffix] == ("F32", shape, tuple(values)), (name + suffix, tensors[name + suffix])
    assert test_model.status().durable_step == 2
    again = worker.api.Checkpoint(model="ckpt").checkpoint
    assert (again.step, again.manifest_hash) == (2, info.manifest_hash)


def test_equal_states_give_equal_files(context):
    files = []
    for _ in range(2):
        server = context.server()
        workers = context.model("same", server, world_size=2, checkpoint_every=2, max_steps=4).workers(2)
        for step in range(1, 5):
            for worker in workers:
                worker.pull()
            together(workers, {"w": [INF if step == 2 else 256.0 * step] * 4})
        eventually(lambda w=workers[0]: w.model.status().durable_step == 4, "the last checkpoint exists")
        found = ampd_testing.found(server.data_dir, "models/same/**/*.safetensors")
        assert [path.parent.name for path in found][-2:] == ["step-0000000002", "step-0000000004"], found
        files.append([path.read_bytes() for path in found])
        context.end_test()
    assert files[0] == files[1]


def test_checkpoints_are_cut_at_steps_and_the_oldest_go(context):
    server = context.server()
    worker = context.model("kept", server, checkpoint_every=2, keep_last=2).worker()
    for step in range(1, 10):
        worker.pull()
        worker.push({"w": [INF if step % 3 == 0 else 0.0] * 4})
    eventually(lambda: worker.model.status().durable_step == 8, "step 8 is durable")

    def folders():
        return [path.name for path in ampd_testing.found(server.data_dir, "models/kept/**/step-*")]

    eventually(lambda: folders() == ["step-0000000006", "step-0000000008"], "the two newest are left")
    assert worker.api.Checkpoint(model="kept", no_wait=True) == admin.CheckpointResponse()


def test_status_tells_how_server_models_and_workers_stand(context):
    server = context.server()
    first = context.model("one", server, world_size=2).worker("w0")
    empty = context.model("two", server, load=False)
    status = first.api.GetStatus()
    assert re.fullmatch(r"\d+\.\d+\.\d+", status.version) and re.fullmatch("[0-9a-f]{32}", status.boot_id), status
    assert (status.fence, status.shard, status.shard_count, status.draining) == (1, 0, 1, False), status
    assert status.isa in ("reference", "avx2", "avx512", "neon") and status.HasField("server_time")
    assert [found.name for found in status.models] == ["one", "two"] and len(status.shards) == 1
    assert first.api.GetStatus(model="two").models[0].name == "two"
    one_status = status.models[0]
    assert (one_status.state, one_status.epoch, one_status.step, one_status.world_size, one_status.parameter_count,
            one_status.element_count, one_status.block_count) == (common.MODEL_STATE_WAITING, 1, 1, 2, 1, 4, 1)
    assert len(one_status.waiting_for.split()) > 2, one_status.waiting_for
    assert empty.status().state == common.MODEL_STATE_CREATED
    second = first.model.worker("w1")
    first.pull()
    second.pull()
    together([first, second], [{"w": [INF] * 4}, {"w": [0.0] * 4}])
    got = first.model.status()
    assert (got.state, got.step, got.applied, got.version, got.waiting_for) == (common.MODEL_STATE_RUNNING, 2, 0, 0, "")
    assert got.scale.scale == 512.0 and got.memory_bytes > 0 and got.optimizer == SGD and got.cast_dtype == F16
    told = [(w.name, w.rank, w.live, w.pushes, w.overflow_pushes, w.last_step) for w in got.workers]
    assert told == [("w0", 0, True, 1, 1, 1), ("w1", 1, True, 1, 0, 1)], told
    assert all(0 < w.lease_left_ms <= 30000 and w.HasField("join_time") for w in got.workers)


def test_health_is_told_for_the_server_and_its_services(context):
    api = context.model().api
    for service in ("", "ampd.v1.ParameterService", "ampd.v1.ScaleService", "ampd.v1.AdminService"):
        assert api.health(service) == 1, service
    refused(lambda: api.health("no.Such"), Code.NOT_FOUND, rich=False)


if __name__ == "__main__":
    run(globals())
