"""The dynamic loss scaler once more, from its description (shared by nobody), and the rules of a history that it follows.

The description: after `growth_interval` applied steps in a row the scale grows by `growth_factor`; a step with an overflow
is skipped and shrinks it by `backoff_factor`; it stays within [min_scale, max_scale]; its id rises whenever its bits change.
"""
import struct

STEP, EPOCH = 1, 2                             # HistoryKind
APPLIED, SKIPPED_OVERFLOW, SKIPPED_EMPTY = 1, 2, 3  # Verdict
FIELDS = ("scale", "scale_id", "growth_tracker", "consecutive_overflows", "total_overflows", "steps_since_overflow",
          "attempted", "applied", "skipped")


def f32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def first(spec):
    """The record before the first step."""
    return dict.fromkeys(FIELDS, 0) | {"scale": f32(spec.init_scale), "scale_id": 1}


def follow(spec, before, verdict):
    """The record after a step with this verdict."""
    after = dict(before)
    after["attempted"] += 1
    wish = before["scale"]
    if verdict == APPLIED:
        after["applied"] += 1
        after["consecutive_overflows"] = 0
        after["steps_since_overflow"] += 1
        after["growth_tracker"] += 1
        if after["growth_tracker"] == spec.growth_interval:
            after["growth_tracker"] = 0
            wish = f32(wish * spec.growth_factor)
    else:
        after["skipped"] += 1
    if verdict == SKIPPED_OVERFLOW:
        after["total_overflows"] += 1
        after["consecutive_overflows"] += 1
        after["steps_since_overflow"] = 0
        after["growth_tracker"] = 0
        wish = f32(wish * spec.backoff_factor)
    after["scale"] = min(max(wish, spec.min_scale), spec.max_scale)
    after["scale_id"] += after["scale"] != before["scale"]
    return after


def record_of(row):
    return {name: getattr(row.record, name) for name in FIELDS}


def check_history(spec, rows, shards=1):
    """All rows, also the superseded ones: each epoch begins at its base, has no gap, and every row follows from the one
    before it by the policy. Returns the steps that stand, in order, as (step, verdict).

    A single shard has a row for every epoch. Where there are several, one may have died before it had stored an epoch that
    another one has; then no worker was told of it, and the next one has a higher number."""
    steps = {(row.epoch, row.step): row for row in rows if row.kind == STEP}
    epochs = {row.epoch: row for row in rows if row.kind == EPOCH}
    assert len(steps) == sum(row.kind == STEP for row in rows), "a step has two rows in one epoch"
    assert shards > 1 or sorted(epochs) == list(range(1, len(epochs) + 1)), f"epochs {sorted(epochs)}"
    assert {epoch for epoch, _ in steps} <= set(epochs), f"steps of other epochs than {sorted(epochs)}"
    records = {}  # (epoch, step) -> the record after it, also of steps that an epoch took over from an older one

    def record_at(epoch, step):
        if step == 0:
            return first(spec)
        while (epoch, step) not in steps:
            begins = epochs[epoch]
            assert begins.base_step >= step, f"epoch {epoch} has no row of step {step}"
            epoch = begins.base_epoch
        return records[epoch, step]

    for epoch, begins in sorted(epochs.items()):
        own = sorted(step for of, step in steps if of == epoch)
        assert own == list(range(begins.base_step + 1, begins.base_step + 1 + len(own))), \
            f"epoch {epoch} begins after step {begins.base_step} and has rows of {own}"
        for step in own:
            row = steps[epoch, step]
            before = record_at(epoch, step - 1)
            expected = follow(spec, before, row.verdict)
            assert record_of(row) == expected, f"({epoch}, {step}): {record_of(row)}, by the policy {expected}"
            assert (row.old_scale, row.old_scale_id) == (before["scale"], before["scale_id"]), f"({epoch}, {step})"
            assert row.version == expected["applied"], f"({epoch}, {step}): version {row.version}"
            records[epoch, step] = expected
    standing = sorted((row.step, row.verdict) for row in steps.values() if not row.superseded)
    assert [step for step, _ in standing] == list(range(1, len(standing) + 1)), f"the steps that stand: {standing}"
    return standing
