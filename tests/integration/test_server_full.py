#!/usr/bin/python3
"""Checkpoints that leave a server as one file: the values alone for other programs, or all that training goes on from.

    test_server_full.py BIN_DIR [NAME ...]
"""
import ctypes
import json
import math
import struct
import subprocess

from ampd_testing import (CALL_TIMEOUT_S, Code, block_message, common, eventually, model, params, refused, run,
                          spec)
from test_server_reshard import MORE, Told, history
from test_server_shards import PARAMETERS, START_TIMEOUT_S, STEPS, WORLD, Cluster, values_of

try:
    import torch
except ImportError:
    torch = None


def ctl(context, cluster, *arguments, code=0):
    """stdout; with a code: stderr."""
    done = subprocess.run([context.bin_dir / "ampctl", "-e", cluster.addresses[-1], *map(str, arguments)],
                          capture_output=True, encoding="utf-8", timeout=CALL_TIMEOUT_S, check=False)
    assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stderr


def header_of(path):
    """(the JSON of the header, the data)"""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + length]), data[8 + length:]


def trained(context, count, **fields):
    """A model whose last step is a checkpoint: (its cluster, its job)."""
    cluster = Cluster(context, count)
    job = Told(cluster, **fields)
    job.train([job.join(rank) for rank in range(WORLD)], 1, STEPS)
    ctl(context, cluster, "checkpoint", "m")
    return cluster, job


def test_an_export_of_values_has_the_parameters_alone_for_any_program(context):
    files = []
    for count in (1, 3):
        cluster, _ = trained(context, count)
        whole, values = cluster.folder / "whole", cluster.folder / "values"
        ctl(context, cluster, "checkpoint", "export", "m", whole, "--full")
        told = ctl(context, cluster, "checkpoint", "export", "m", values, "--values-only")
        assert f"step {STEPS} of epoch 1, 3 tensors" in told, told
        header, data = header_of(values)
        full, all_data = header_of(whole)
        assert {name: header[name]["shape"] for name in header if name != "__metadata__"} == dict(PARAMETERS), header
        for name, _ in PARAMETERS:
            begin, end = header[name]["data_offsets"]
            first, last = full[name]["data_offsets"]
            assert header[name]["dtype"] == "F32" and data[begin:end] == all_data[first:last], name
        files.append((values.read_bytes(), whole.read_bytes()))
        said = ctl(context, cluster, "checkpoint", "export", "m", values, "--values-only", "--full", code=2)
        assert "give one of them" in said, said
    assert files[0] == files[1], "the number of shards shows in the files"
    if torch is None:
        print("SKIPPED: load_state_dict: no PyTorch (package python3-torch)")
        return
    header, data = header_of(values)
    tensors = {name: torch.frombuffer(bytearray(data[slice(*header[name]["data_offsets"])]), dtype=torch.float32)
               .reshape(shape) for name, shape in PARAMETERS}
    module = torch.nn.Module()
    for name, shape in PARAMETERS:
        module.register_parameter(name, torch.nn.Parameter(torch.zeros(shape)))
    told = module.load_state_dict(tensors, strict=True)
    assert not told.missing_keys and not told.unexpected_keys, told
    assert all(torch.equal(module.get_parameter(name), tensors[name]) for name, _ in PARAMETERS)


HALF = {"cast_dtype": common.DTYPE_F16}
LAST = STEPS + MORE


def goes_on(context, cluster, job, first=STEPS + 1):
    """Trains to step LAST: the bytes of the export."""
    path = cluster.folder / "last"
    workers = [job.join(rank) for rank in range(WORLD)]
    assert [joined.step for joined in workers] == [first] * WORLD, workers
    job.train(workers, first, LAST)
    ctl(context, cluster, "checkpoint", "m")  # with durability: step the last one may be durable without it
    ctl(context, cluster, "checkpoint", "export", "m", path)
    return path.read_bytes()


def moved(context, path, count, options=(), **fields):
    """A server with as many shards that has taken the file: (its cluster, its job)."""
    cluster = Cluster(context, count, options=options)
    job = Told(cluster, load=False, **fields)
    told = ctl(context, cluster, "checkpoint", "import", "m", path, "--full")
    assert f"9 tensors of {path} loaded; it goes on after step {STEPS}" in told, told
    return cluster, job


def started_again(cluster, job):
    """Killed and started: on the checkpoint that the import has written."""
    for k in range(cluster.count):
        cluster.kill(k)
    for k in range(cluster.count):
        cluster.start(k)
    cluster.wait_until_healthy()
    eventually(lambda: not cluster.api(0).GetModel(model=job.name).status.recovering, "the model is back",
               START_TIMEOUT_S)


def test_a_model_that_was_moved_trains_on_to_the_same_bytes(context):
    """Step 4 was skipped: scale, counts and step differ, as moments and user states do, from those of a new model."""
    stays, job = trained(context, 1, **HALF)
    path = stays.folder / "whole"
    ctl(context, stays, "checkpoint", "export", "m", path, "--full")
    assert header_of(path)[0]["__metadata__"]["optimizer"] == "adamw"
    expected = goes_on(context, stays, job)
    rows = history(context, stays)
    for count in (1, 3):
        cluster, there = moved(context, path, count, **HALF)
        status = cluster.api(0).GetModel(model="m").status
        scale = status.scale
        assert (status.epoch, status.step, scale.attempted, scale.skipped) == (2, STEPS + 1, STEPS, 1), status
        assert status.durable_step == STEPS, status
        again = cluster.folder / "again"
        ctl(context, cluster, "checkpoint", "export", "m", again)
        assert again.read_bytes() == path.read_bytes(), f"{count} shards: another checkpoint than was imported"
        assert goes_on(context, cluster, there) == expected, f"{count} shards: other bytes {MORE} steps later"
        got = history(context, cluster)
        assert [row["step"] for row in got] == list(range(STEPS + 1, LAST + 1)), got
        assert "the model came from elsewhere" in ctl(context, cluster, "history", "m"), got
        for was, now in zip(rows[STEPS:], got):
            assert all(was[key] == now[key] for key in ("scale", "verdict", "version")), (was, now)


def test_a_model_of_three_shards_goes_on_on_one_and_after_kills(context):
    for durability in (model.DURABILITY_CHECKPOINT, model.DURABILITY_STEP):
        fields = {**HALF, "durability": durability}
        stays, job = trained(context, 3, **fields)
        path = stays.folder / "whole"
        ctl(context, stays, "checkpoint", "export", "m", path)
        expected = goes_on(context, stays, job)
        cluster, there = moved(context, path, 1, **fields)
        started_again(cluster, there)
        workers = [there.join(rank) for rank in range(WORLD)]
        there.train(workers, STEPS + 1, STEPS + 2)
        eventually(lambda: cluster.api(0).GetModel(model="m").status.durable_step >= STEPS + 2, "a later step is there")
        started_again(cluster, there)
        assert goes_on(context, cluster, there, STEPS + 3) == expected, durability
        assert cluster.end() == [0], cluster.log(0)[-1500:]


def test_a_moved_model_may_have_another_number_of_workers(context):
    stays, _ = trained(context, 1)
    path = stays.folder / "whole"
    ctl(context, stays, "checkpoint", "export", "m", path)
    for world in (1, 3):
        cluster, there = moved(context, path, 2, world_size=world)
        joined = [there.join(rank) for rank in range(world)]
        assert [one.step for one in joined] == [STEPS + 1] * world, joined
        assert joined[0].user_state == there.user_state(0, STEPS)
        assert joined[-1].user_state == (b"" if world == 3 else joined[0].user_state)


def test_a_model_that_was_moved_keeps_the_rate_that_an_operator_has_set(context):
    stays = Cluster(context, 2)
    job = Told(stays)
    workers = [job.join(rank) for rank in range(WORLD)]
    job.train(workers, 1, 2)
    ctl(context, stays, "set-lr", "m", "0.03125")
    job.train(workers, 3, STEPS)
    ctl(context, stays, "checkpoint", "m")
    path, folder = stays.folder / "whole", stays.folder / "kept"
    ctl(context, stays, "checkpoint", "export", "m", path, "--full")
    assert "learning_rate_bits" in header_of(path)[0]["__metadata__"]
    ctl(context, stays, "backup", folder)
    expected = goes_on(context, stays, job)
    cluster, there = moved(context, path, 1)
    assert cluster.api(0).GetModel(model="m").status.learning_rate == 0.03125
    assert goes_on(context, cluster, there) == expected
    restored = Cluster(context, 3)
    ctl(context, restored, "restore", folder)
    started_again(restored, job)
    assert restored.api(0).GetModel(model="m").status.learning_rate == 0.03125
    assert goes_on(context, restored, Told(restored, load=False)) == expected
    without = trained(context, 1)[0]  # as it was before there were any
    ctl(context, without, "checkpoint", "export", "m", path, "--full", "--force")
    assert "learning_rate_bits" not in header_of(path)[0]["__metadata__"]


def test_a_full_export_is_still_one_of_first_values(context):
    stays, _ = trained(context, 1)
    path = stays.folder / "whole"
    ctl(context, stays, "checkpoint", "export", "m", path)
    cluster = Cluster(context, 1)
    job = Told(cluster, load=False)
    assert "3 tensors" in ctl(context, cluster, "checkpoint", "import", "m", path)
    assert job.join(0).step == 1


def test_a_file_that_does_not_fit_is_refused_with_a_sentence(context):
    stays, _ = trained(context, 1)
    path, bad = stays.folder / "whole", stays.folder / "bad"
    ctl(context, stays, "checkpoint", "export", "m", path)
    ctl(context, stays, "checkpoint", "export", "m", stays.folder / "values", "--values-only")
    cluster = Cluster(context, 2)
    Told(cluster, load=False)
    whole = path.read_bytes()
    length = 8 + struct.unpack("<Q", whole[:8])[0]
    flipped = bytearray(whole)
    flipped[-5000] ^= 1
    lied = whole[:length].replace(b'"version":"5"', b'"version":"6"') + whole[length:]
    assert lied != whole

    def plain(head):
        text = json.dumps({"line": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, **head}).encode()
        return struct.pack("<Q", len(text)) + text + bytes(4)

    for content, word in ((b"", "shorter than a header"), (whole[:100], "header's length"),
                          (whole[:-1], "not as long as the header says"), (bytes(flipped), "hash of tensor"),
                          (lied, "header's hash does not match"),
                          ((stays.folder / "values").read_bytes(), "has values alone, without moments; leave --full"),
                          (plain({}), "not a checkpoint of ampd, and --full loads no other file; leave --full out"),
                          (plain({"__metadata__": {"format": "pt"}}), "not a checkpoint of ampd, and --full")):
        bad.write_bytes(content)
        said = ctl(context, cluster, "checkpoint", "import", "m", bad, "--full", code=1)
        assert word in said and str(bad) in said, (said, word)
    said = ctl(context, cluster, "checkpoint", "import", "m", stays.folder / "none", "--full", code=1)
    assert "none" in said, said
    said = ctl(context, cluster, "checkpoint", "import", "m", stays.folder, "--full", code=1)
    assert "not a file" in said, said
    link = stays.folder / "link"
    link.symlink_to(path)
    ctl(context, cluster, "checkpoint", "import", "m", link, "--full")
    said = ctl(context, cluster, "checkpoint", "import", "m", path, "--full", code=1)
    assert "has values already" in said, said


def test_a_model_with_another_specification_is_refused_with_a_sentence(context):
    stays, _ = trained(context, 1)
    path = stays.folder / "whole"
    ctl(context, stays, "checkpoint", "export", "m", path)
    cluster = Cluster(context, 1)

    def said(name, code=1, parameters=None, **fields):
        fields = {"world_size": WORLD, "cast_dtype": common.DTYPE_F32, **fields}
        cluster.api(0).CreateModel(spec=spec(name, parameters or PARAMETERS, **fields))
        return ctl(context, cluster, "checkpoint", "import", name, path, "--full", code=code)

    adamw = model.OptimizerSpec(kind=model.OPTIMIZER_KIND_ADAMW)
    told = said("adam", optimizer=model.OptimizerSpec(kind=model.OPTIMIZER_KIND_ADAM))
    assert "those of adamw, and adam is trained with adam; create it with adamw" in told, told
    told = said("sgd", optimizer=model.OptimizerSpec(kind=model.OPTIMIZER_KIND_SGD))
    assert "does not belong to the model" in told and "the moments of another optimizer" in told, told
    told = said("shape", optimizer=adamw, parameters=[("big", [150000]), ("line", [8]), ("tail", [60000])])
    assert '"line" has another type, shape' in told, told
    told = said("name", optimizer=adamw, parameters=[("big", [150000]), ("lime", [7]), ("tail", [60000])])
    assert "does not belong to the model" in told, told
    told = said("more", optimizer=adamw, parameters=[*PARAMETERS, ("bias", [3])])
    assert '"bias" is not whole' in told, told
    told = said("scale", code=64 + 3, optimizer=adamw, scaler=model.ScalerSpec(init_scale=8, max_scale=16))
    assert "state.record: scale is" in told and "create the model with the scaler" in told, told
    assert cluster.api(0).GetModel(model="scale").status.epoch == 1


def test_moments_of_centered_rmsprop_are_told_from_those_of_another(context):
    stays, _ = trained(context, 1)
    values, whole = stays.folder / "values", stays.folder / "rmsprop"
    ctl(context, stays, "checkpoint", "export", "m", values, "--values-only")
    for name, fields in (("centered", {"centered": True}), ("momentum", {"momentum": 0.9}),
                         ("again", {"centered": True})):
        optimizer = model.OptimizerSpec(kind=model.OPTIMIZER_KIND_RMSPROP, **fields)
        stays.api(0).CreateModel(spec=spec(name, PARAMETERS, world_size=WORLD, cast_dtype=common.DTYPE_F32,
                                           optimizer=optimizer))
    ctl(context, stays, "checkpoint", "import", "centered", values)
    eventually(lambda: stays.api(0).ListCheckpoints(model="centered").checkpoints, "its values are in a checkpoint")
    ctl(context, stays, "checkpoint", "export", "centered", whole)
    said = ctl(context, stays, "checkpoint", "import", "momentum", whole, "--full", code=1)
    assert "those of rmsprop that is centered, and the model's is not" in said, said
    ctl(context, stays, "checkpoint", "import", "again", whole, "--full")


def test_a_checkpoint_of_sgd_without_moments_is_told_from_values_alone(context):
    stays, _ = trained(context, 1)
    values, whole = stays.folder / "values", stays.folder / "sgd"
    ctl(context, stays, "checkpoint", "export", "m", values, "--values-only")
    for name, kind in (("sgd", model.OPTIMIZER_KIND_SGD), ("adam", model.OPTIMIZER_KIND_ADAM)):
        stays.api(0).CreateModel(spec=spec(name, PARAMETERS, world_size=WORLD, cast_dtype=common.DTYPE_F32,
                                           optimizer=model.OptimizerSpec(kind=kind)))
    ctl(context, stays, "checkpoint", "import", "sgd", values)
    eventually(lambda: stays.api(0).ListCheckpoints(model="sgd").checkpoints, "its values are in a checkpoint")
    ctl(context, stays, "checkpoint", "export", "sgd", whole)
    said = ctl(context, stays, "checkpoint", "import", "adam", whole, "--full", code=1)
    assert "those of sgd, and adam is trained with adam; create it with sgd" in said, said


def full_load(cluster, planes, states=(), **fields):
    record = common.ScaleRecord(scale=512, scale_id=2, hysteresis_left=2, attempted=3, applied=2, skipped=1)
    fields = {"step": 3, "version": 2, "record": record, **fields}
    header = params.LoadHeader(model="m", load=7, state=params.LoadState(**fields))
    messages = [params.LoadRequest(header=header)]
    messages += [block_message(params.LoadRequest, plane * len(planes[0]) + index, data)
                 for plane, all_of in enumerate(planes) for index, data in enumerate(all_of)]
    messages += [block_message(params.LoadRequest, 3 * len(planes[0]) + rank, data) for rank, data in states]
    return cluster.api(0).Load(messages)


def test_the_moment_of_squares_of_rmsprop_is_m_and_its_v_may_be_below_0(context):
    cluster = Cluster(context, 1)
    optimizer = model.OptimizerSpec(kind=model.OPTIMIZER_KIND_RMSPROP, momentum=0.9)
    job = Told(cluster, load=False, optimizer=optimizer)
    blocks = job.layout.blocks(common.DTYPE_F32, {name: values_of(name, 0) for name, _ in PARAMETERS})
    zeros = [bytes(len(block)) for block in blocks]
    negative = [*zeros[:-1], struct.pack("<f", -1e-9) + zeros[-1][4:]]
    refused(lambda: full_load(cluster, (blocks, negative, zeros)), Code.INVALID_ARGUMENT, "INVALID_TENSOR",
            "of m is below 0")
    assert not full_load(cluster, (blocks, zeros, negative)).already_loaded


def test_a_full_load_that_makes_no_sense_is_refused_and_leaves_the_model_to_the_next_one(context):
    cluster = Cluster(context, 1)
    job = Told(cluster, load=False)
    blocks = job.layout.blocks(common.DTYPE_F32, {name: values_of(name, 0) for name, _ in PARAMETERS})
    zeros = [bytes(len(block)) for block in blocks]

    def load(planes=(blocks, zeros, zeros), states=(), **fields):
        return full_load(cluster, planes, states, **fields)

    invalid = Code.INVALID_ARGUMENT
    refused(lambda: load(record=None), invalid, "INVALID_FIELD", "state.record")
    refused(lambda: load(step=4), invalid, "INVALID_FIELD", "3 steps, 2 of them applied")
    refused(lambda: load(planes=(blocks, zeros)), Code.FAILED_PRECONDITION, "INCOMPLETE_LOAD", "in the moments")
    no_number = [struct.pack("<f", math.nan) + zeros[0][4:], *zeros[1:]]
    refused(lambda: load(planes=(blocks, zeros, no_number)), invalid, "INVALID_TENSOR", "moments have NaN")
    negative = [*zeros[:-1], struct.pack("<f", -1e-9) + zeros[-1][4:]]  # as with m and v swapped
    refused(lambda: load(planes=(blocks, zeros, negative)), invalid, "INVALID_TENSOR", "of v is below 0")
    refused(lambda: load(states=[(WORLD, b"x")]), invalid, "INVALID_TENSOR", "user state of rank 2")
    refused(lambda: load(states=[(0, bytes(65537))]), invalid, "INVALID_TENSOR", "65537 bytes")
    refused(lambda: load(planes=(blocks, zeros, [*zeros[:-1], b"four"])), invalid, "INVALID_TENSOR", "4 bytes")
    assert not load(planes=(blocks, negative, zeros), states=[(1, b"seen 40")]).already_loaded
    joined = [job.join(rank) for rank in range(WORLD)]
    assert [(one.step, one.user_state) for one in joined] == [(4, b""), (4, b"seen 40")], joined
    result = job.train(joined, 4, 4)[0][0]
    assert (result.verdict, result.old_scale, result.version) == (common.VERDICT_SKIPPED_OVERFLOW, 512, 2), result


class Full(ctypes.Structure):
    """struct ampclient_full"""
    _fields_ = [("size", ctypes.c_size_t), ("step", ctypes.c_uint64), ("version", ctypes.c_uint64),
                ("values", ctypes.c_void_p), ("m", ctypes.c_void_p), ("v", ctypes.c_void_p),
                ("parameters_count", ctypes.c_uint32), ("scale", ctypes.c_float), ("scale_id", ctypes.c_uint64),
                ("growth_tracker", ctypes.c_uint32), ("hysteresis_left", ctypes.c_uint32),
                ("consecutive_overflows", ctypes.c_uint32), ("total_overflows", ctypes.c_uint64),
                ("steps_since_overflow", ctypes.c_uint64), ("attempted", ctypes.c_uint64),
                ("applied", ctypes.c_uint64), ("skipped", ctypes.c_uint64), ("user_states", ctypes.c_void_p),
                ("user_states_sizes", ctypes.c_void_p), ("user_states_count", ctypes.c_uint32)]


def test_a_program_in_another_language_moves_a_model_with_the_library_alone(context):
    try:
        library = ctypes.CDLL(context.bin_dir.parent / "client" / "io" / "libampclient.so")
    except OSError as error:  # a sanitizer's, which must be loaded first
        print(f"SKIPPED: {error}")
        return
    stays, job = trained(context, 1, **HALF)
    path = stays.folder / "whole"
    ctl(context, stays, "checkpoint", "export", "m", path)
    expected = goes_on(context, stays, job)
    header, data = header_of(path)
    about, kept = header["__metadata__"], []

    def arrays(names):
        """char *[] of the tensors."""
        buffers = [ctypes.create_string_buffer(data[slice(*header[name]["data_offsets"])]) for name in names]
        array = (ctypes.c_void_p * len(names))(*map(ctypes.addressof, buffers))
        kept.extend((array, *buffers))
        return ctypes.addressof(array)

    states = [f"user_state#{rank}" for rank in range(WORLD)]
    sizes = (ctypes.c_uint32 * WORLD)(*(header[name]["shape"][0] for name in states))
    full = Full(size=ctypes.sizeof(Full), parameters_count=len(PARAMETERS), scale=float(about["scale"]),
                values=arrays([name for name, _ in PARAMETERS]), m=arrays([name + "#m" for name, _ in PARAMETERS]),
                v=arrays([name + "#v" for name, _ in PARAMETERS]), user_states=arrays(states),
                user_states_sizes=ctypes.addressof(sizes), user_states_count=WORLD)
    for name, kind in Full._fields_:
        if name in about and name != "scale":
            setattr(full, name, kind(int(about[name])))
    cluster = Cluster(context, 2)
    there = Told(cluster, load=False, **HALF)
    library.ampclient_error_text.restype = ctypes.c_char_p
    client, already = ctypes.c_void_p(), ctypes.c_bool(True)
    assert library.ampclient_connect(cluster.addresses[1].encode(), None, ctypes.byref(client), None) == 0
    code = library.ampclient_load_full(client, b"m", ctypes.byref(full), ctypes.byref(already))
    assert code == 0 and not already.value, library.ampclient_error_text(client)
    assert library.ampclient_load_full(client, b"m", ctypes.byref(full), ctypes.byref(already)) == 0 and already.value
    library.ampclient_close(client)
    assert goes_on(context, cluster, there) == expected


if __name__ == "__main__":
    run(globals())
