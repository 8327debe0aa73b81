#!/usr/bin/python3
"""ReadCheckpoint, and ampctl checkpoint export and import: one safetensors file whose bytes do not depend on the shards.

    test_server_files.py BIN_DIR [NAME ...]
"""
import concurrent.futures
import contextlib
import json
import os
import struct
import subprocess

import ampd_testing
from ampd_testing import CALL_TIMEOUT_S, PATIENCE, Code, common, eventually, grpc, model, refused, run
from test_server_shards import PARAMETERS, SIZES, STEPS, WORLD, Cluster, Job, values_of

F32 = common.DTYPE_F32


def both(context, address, *arguments, code=0):
    """(stdout, stderr)"""
    done = subprocess.run([context.bin_dir / "ampctl", "--endpoint", address, *map(str, arguments)], timeout=CALL_TIMEOUT_S,
                          capture_output=True, encoding="utf-8", check=False)
    assert done.returncode in (code if isinstance(code, tuple) else (code,)), (arguments, done.returncode, done.stdout, done.stderr)
    return done.stdout, done.stderr


def ampctl(context, address, *arguments, code=0):
    return both(context, address, *arguments, code=code)[0 if code == 0 else 1]


def header_of(data):
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + length]), data[8 + length:]


def write_safetensors(path, tensors):
    """tensors: name -> (dtype, shape, bytes)"""
    header, data = {}, b""
    for name, (dtype, shape, content) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(content)]}
        data += content
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def trained(context, count):
    cluster = Cluster(context, count)
    job = Job(cluster)
    job.train([job.join(rank) for rank in range(WORLD)], 1, STEPS)
    eventually(lambda: cluster.api(0).GetModel(model="m").status.durable_step == STEPS, "the last step is durable")
    return cluster


def test_an_export_has_the_same_bytes_whatever_the_number_of_shards(context):
    files = []
    for count in (1, 2, 3):
        cluster = trained(context, count)
        path = cluster.folder / "m.safetensors"
        # Any shard leads to all of them.
        told = ampctl(context, cluster.addresses[count - 1], "checkpoint", "export", "m", path)
        assert f"step {STEPS} of epoch 1, 9 tensors" in told, told
        files.append(path.read_bytes())
        assert sorted(p.name for p in cluster.folder.iterdir() if p.name.startswith("m.safe")) == ["m.safetensors"]
        if count == 1:
            own = list((cluster.folder / "data-0").glob(f"models/m/checkpoints/step-{STEPS:010}/*"))
            assert [one.read_bytes() for one in own] == files
            header, _ = header_of(files[0])
            assert {name: header[name]["shape"] for name in SIZES} == dict(PARAMETERS)
    assert files[1] == files[0] and files[2] == files[0]


def test_an_older_step_is_exported_by_its_number_and_an_existing_file_is_kept(context):
    cluster = trained(context, 2)
    path, older = cluster.folder / "new", cluster.folder / "old"
    steps = [info.step for info in cluster.api(0).ListCheckpoints(model="m").checkpoints]
    assert all(info.parts == 2 for info in cluster.api(1).ListCheckpoints(model="m").checkpoints)
    assert len(steps) > 1
    ampctl(context, cluster.addresses[0], "checkpoint", "export", "m", path)
    ampctl(context, cluster.addresses[0], "checkpoint", "export", "m", older, "--step", steps[1], "--epoch", 1)
    assert header_of(older.read_bytes())[0]["__metadata__"]["step"] == str(steps[1])
    said = ampctl(context, cluster.addresses[0], "checkpoint", "export", "m", older, code=1)
    assert "exists" in said and "--force" in said, said
    ampctl(context, cluster.addresses[0], "checkpoint", "export", "m", older, "--force")
    assert older.read_bytes() == path.read_bytes()
    link = cluster.folder / "link"
    link.symlink_to(older)
    for special in (link, cluster.folder):
        said = ampctl(context, cluster.addresses[0], "checkpoint", "export", "m", special, "--force", code=1)
        assert "not a regular file" in said, said
    assert link.is_symlink() and older.read_bytes() == path.read_bytes()
    for arguments, word in ((("m", path.with_name("x"), "--step", 77), "step 77"), (("nobody", path.with_name("x")), "nobody")):
        said = ampctl(context, cluster.addresses[0], "checkpoint", "export", *arguments, code=64 + 5)
        assert word in said, said
    said = ampctl(context, cluster.addresses[0], "checkpoint", "export", "m", "/nowhere/x", code=1)
    assert "/nowhere/x" in said, said
    ampctl(context, cluster.addresses[0], "checkpoint", "export", "m", code=2)
    assert not path.with_name("x").exists()


def test_the_blocks_of_a_stream_are_the_file(context):
    cluster = trained(context, 2)
    for k in range(2):
        answers = cluster.api(k).ReadCheckpoint(model="m", epoch=1, step=STEPS)
        header, blocks = answers[0].header, answers[1:]
        own = next((cluster.folder / f"data-{k}").glob(f"models/m/checkpoints/step-{STEPS:010}/*")).read_bytes()
        assert (header.size_bytes, header.shard, header.parts) == (len(own), k, 2), header
        if k == 0:  # what a list tells is the size of the file of the shard that answers
            assert cluster.api(k).ListCheckpoints(model="m").checkpoints[0].size_bytes == len(own)
        assert [block.index for block in blocks] == list(range(-(-len(own) // 262144)))
        assert all(len(block.data) == 262144 for block in blocks[:-1]) and b"".join(block.data for block in blocks) == own
        assert all(block.crc32c == ampd_testing.crc32c(block.data) for block in blocks)


def test_a_dropped_or_unknown_checkpoint_is_not_found(context):
    cluster = trained(context, 1)
    api = cluster.api(0)
    for epoch, step in ((1, 77), (2, STEPS), (0, 0)):
        refusal = refused(lambda e=epoch, s=step: api.ReadCheckpoint(model="m", epoch=e, step=s), Code.NOT_FOUND)
        assert "ListCheckpoints" in refusal.text, refusal
    for path in (cluster.folder / "data-0").glob(f"models/m/checkpoints/step-{STEPS:010}/*"):
        with open(path, "r+b") as file:
            file.truncate(path.stat().st_size - 1)
    refusal = refused(lambda: api.ReadCheckpoint(model="m", epoch=1, step=STEPS), Code.DATA_LOSS)
    assert "bytes" in refusal.text, refusal


def test_streams_that_nobody_reads_are_sixteen_at_most(context):
    cluster = trained(context, 1)
    api, request = cluster.api(0), ampd_testing.admin.ReadCheckpointRequest(model="m", epoch=1, step=STEPS)
    # Without this a client on a quick connection may take the whole file unasked.
    options = [*ampd_testing.CHANNEL_OPTIONS, ("grpc.http2.bdp_probe", 0)]
    slow = ampd_testing.Api(grpc.insecure_channel(cluster.addresses[0], options=options))
    unread = [slow.start("ReadCheckpoint", request) for _ in range(16)]
    for one in unread:
        next(iter(one.call))  # the header: the file is open; the rest is more than a client takes unasked
    refused(lambda: api.ReadCheckpoint(model="m", epoch=1, step=STEPS), Code.RESOURCE_EXHAUSTED)
    for one in unread:
        one.call.cancel()
    def works():
        try:
            return len(api.ReadCheckpoint(model="m", epoch=1, step=STEPS)) > 1
        except grpc.RpcError:
            return False
    eventually(works, "the places are free again")


def test_a_flipped_bit_in_a_file_never_reaches_an_export(context):
    cluster = trained(context, 2)
    for path in (cluster.folder / "data-1").glob(f"models/m/checkpoints/step-{STEPS:010}/*"):
        data = bytearray(path.read_bytes())
        data[-5] ^= 16
        path.write_bytes(data)
    out = cluster.folder / "m.safetensors"
    said = ampctl(context, cluster.addresses[0], "checkpoint", "export", "m", out, code=1)
    assert "checkpoint part-1" in said, said
    assert [p.name for p in cluster.folder.iterdir() if p.name.startswith("m.safe")] == []


class Between:
    """Passes calls on to a server, and what ReadCheckpoint answers through `change`, a function of message and index."""

    def __init__(self, address, change):
        self.channel, self.change = grpc.insecure_channel(address, options=ampd_testing.CHANNEL_OPTIONS), change
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(4))
        self.server.add_generic_rpc_handlers((self,))
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def service(self, details):
        if not details.method.endswith("/ReadCheckpoint"):
            return grpc.unary_unary_rpc_method_handler(
                lambda request, _: self.channel.unary_unary(details.method)(request, timeout=CALL_TIMEOUT_S))

        def read(request, _):
            answers = self.channel.unary_stream(details.method)(request, timeout=CALL_TIMEOUT_S)
            for i, data in enumerate(answers):
                message = ampd_testing.admin.ReadCheckpointResponse.FromString(data)
                self.change(message, i)
                yield message.SerializeToString()

        return grpc.unary_stream_rpc_method_handler(read)

    def stop(self):
        self.server.stop(None)
        self.channel.close()


def leftovers(path):
    return sorted(p.name for p in path.parent.iterdir() if p.name.startswith(path.name))


def test_a_file_that_comes_during_an_export_is_kept(context):
    cluster = trained(context, 1)
    path = cluster.folder / "m.safetensors"
    between = Between(cluster.addresses[0], lambda message, i: path.write_text("mine") if i == 1 else None)
    said = ampctl(context, between.address, "checkpoint", "export", "m", path, code=1)
    assert "exists" in said and "--force" in said, said
    assert path.read_text() == "mine" and leftovers(path) == ["m.safetensors"]
    ampctl(context, between.address, "checkpoint", "export", "m", path, "--force")
    assert path.stat().st_size > 1000
    between.stop()


def test_a_server_that_announces_more_than_a_model_can_have_is_not_believed(context):
    cluster = trained(context, 1)
    path = cluster.folder / "m.safetensors"

    def lie(message, index):
        if index == 0:
            message.header.size_bytes = 1 << 40

    between = Between(cluster.addresses[0], lie)
    said = ampctl(context, between.address, "checkpoint", "export", "m", path, code=1)
    assert "announces 1099511627776 bytes" in said, said
    assert leftovers(path) == []
    between.stop()


def test_what_a_hanging_disk_was_given_stays_until_the_end_of_an_export(context):
    cluster = trained(context, 1)
    path = cluster.folder / "m.safetensors"
    shim = context.bin_dir.parent / "tests" / "integration" / "libhanging_write.so"
    command = [context.bin_dir / "ampctl", "--endpoint", cluster.addresses[0], "checkpoint", "export", "m", path]
    done = subprocess.run(command, timeout=CALL_TIMEOUT_S, capture_output=True, encoding="utf-8", check=False,
                          env={**os.environ, "LD_PRELOAD": str(shim)})
    assert done.returncode != 0 and "does not answer" in done.stderr, done
    assert "the bytes are there" in done.stderr, done
    assert not path.exists()


def test_values_are_loaded_when_the_shards_have_told_that_they_have_none(context):
    """Until then shard 0 does not know, and who takes what it says for values leaves a model that nobody loads."""
    cluster = trained(context, 2)
    path = cluster.folder / "m.safetensors"
    ampctl(context, cluster.addresses[0], "checkpoint", "export", "m", path)
    Job(cluster, name="again", load=False)
    cluster.kill(0)
    cluster.kill(1)
    cluster.start(0)
    grpc.channel_ready_future(cluster.channels[0]).result(timeout=CALL_TIMEOUT_S)
    eventually(lambda: cluster.api(0).GetModel(model="again").status.recovering, "shard 0 waits for shard 1")
    importing = subprocess.Popen([context.bin_dir / "ampctl", "--endpoint", cluster.addresses[0], "checkpoint", "import",
                                  "again", path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8")
    with contextlib.suppress(subprocess.TimeoutExpired):  # it must not be over by then
        raise AssertionError(f"the import ended with {importing.wait(2)}: {importing.stdout.read()}")
    cluster.start(1)
    said = importing.communicate(timeout=CALL_TIMEOUT_S)[0]
    assert importing.returncode == 0, said
    status = cluster.api(0).GetModel(model="again").status
    assert status.state == common.MODEL_STATE_WAITING and not status.recovering, status


def test_an_import_ends_at_its_timeout_when_a_shard_is_gone(context):
    cluster = Cluster(context, 2)
    Job(cluster, load=False)
    path = cluster.folder / "first"
    write_safetensors(path, {name: ("F16", [size], bytes(2 * size)) for name, size in SIZES.items()})
    cluster.kill(1)
    said = ampctl(context, cluster.addresses[0], "--timeout", "2", "checkpoint", "import", "m", path, code=(64 + 4, 64 + 14))
    assert said.splitlines()[-1].startswith("ampctl: checkpoint import:"), said  # above it: what the library does meanwhile


def half(values):
    return struct.pack(f"<{len(values)}e", *values)


def test_values_of_a_foreign_file_are_loaded_whatever_their_type(context):
    for count in (1, 2):
        cluster = Cluster(context, count)
        job = Job(cluster, load=False, world_size=1)
        values = {name: values_of(name, 3) for name in SIZES}
        path = cluster.folder / "first.safetensors"
        write_safetensors(path, {
            "line": ("F64", [7], struct.pack("<7d", *values["line"])),
            "extra": ("I8", [2], b"ab"),
            "tail": ("BF16", [60000], b"".join(struct.pack("<f", value)[2:] for value in values["tail"])),
            "big": ("F16", [150000], half(values["big"]))})
        told = ampctl(context, cluster.addresses[0], "checkpoint", "import", "m", path)
        assert "3 tensors" in told and "1 others" in told, told
        _, pulled = job.pull(job.join(0), 1)
        values["tail"] = [struct.unpack("<f", b"\0\0" + struct.pack("<f", value)[2:])[0] for value in values["tail"]]
        assert pulled == b"".join(job.layout.blocks(F32, values)), "other values than the file's"
        said = ampctl(context, cluster.addresses[0], "checkpoint", "import", "m", path, code=1)
        assert "has values already" in said, said


def test_an_exported_file_is_the_start_of_another_model(context):
    cluster = trained(context, 2)
    path = cluster.folder / "m.safetensors"
    ampctl(context, cluster.addresses[0], "checkpoint", "export", "m", path)
    other = Job(cluster, name="again", load=False, world_size=1)
    told = ampctl(context, cluster.addresses[1], "checkpoint", "import", "again", path)
    assert "3 tensors" in told and "6 others" in told, told
    _, pulled = other.pull(other.join(0), 1)
    header, data = header_of(path.read_bytes())
    begin, end = header["line"]["data_offsets"]
    assert data[begin:end] in pulled


def test_files_that_do_not_fit_are_refused_with_what_is_wrong(context):
    cluster = Cluster(context, 1)
    Job(cluster, load=False, world_size=1)
    path = cluster.folder / "bad"
    good = {"big": ("F16", [150000], bytes(300000)), "line": ("F32", [7], bytes(28)), "tail": ("F16", [60000], bytes(120000))}
    write_safetensors(path, good)
    whole = path.read_bytes()
    length = struct.unpack("<Q", whole[:8])[0]
    cases = [(b"", "empty"), (b"abc", "safetensors"), (struct.pack("<Q", 1 << 60) + b"{}", "safetensors"),
             (struct.pack("<Q", 2) + b"[]", "JSON"), (struct.pack("<Q", 2) + b"{}", "no tensor"),
             (whole[:8 + length + 10], "cut off"), (whole + b"x", "cut off"), (whole[:8 + length // 2], "safetensors")]
    for change, word in (({"line": ("F32", [8], bytes(32))}, "shape"), ({"line": ("F32", [7], bytes(24))}, "within"), ({"line": ("F32", [7], bytes(4))}, "within"),
                         ({"line": ("I32", [7], bytes(28))}, "I32"), ({"line": ("F32", [7, 1], bytes(28))}, "[7, 1] in the file, [7] in the model"),
                         ({"line": ("F64", [7], struct.pack("<7d", *[1e300] * 7))}, "beyond the range of F32")):
        write_safetensors(path, {**good, **change})
        cases.append((path.read_bytes(), word))
    for content, word in cases:
        path.write_bytes(content)
        said = ampctl(context, cluster.addresses[0], "checkpoint", "import", "m", path, code=1)
        assert word in said and str(path) in said, (said, word)
    text = json.dumps({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]},
                       "b": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(8))
    assert "overlap" in ampctl(context, cluster.addresses[0], "checkpoint", "import", "m", path, code=1)
    said = ampctl(context, cluster.addresses[0], "checkpoint", "import", "m", cluster.folder / "none", code=1)
    assert "No such file" in said, said


def test_a_model_is_created_from_a_foreign_file_with_its_values(context):
    for count in (1, 2):
        cluster = Cluster(context, count)
        address, path = cluster.addresses[0], cluster.folder / "foreign.safetensors"
        weight = [i / 8 for i in range(6)]
        write_safetensors(path, {"layer.weight": ("F16", [2, 3], struct.pack("<6e", *weight)),
                                 "layer.bias": ("F64", [3], struct.pack("<3d", 1, 2, 3)),
                                 "seen": ("I64", [], bytes(8)),
                                 "temperature": ("F32", [], struct.pack("<f", 0.5))})
        options = ("--workers", "2", "--optimizer", "sgd", "--lr", "0.5", "--clip-norm", "1", "--max-steps", "9", "--cast", "bf16",
                   "--on-loss", "shrink", "--durability", "step", "--growth-interval", "4")
        told = ampctl(context, address, "create", "foreign", path, *options)
        assert told == "foreign: created, 3 parameters, with the values of the file; 1 other tensor ignored\n", told
        about = cluster.api(0).GetModel(model="foreign")
        assert [(p.name, list(p.shape)) for p in about.spec.parameters] == [
            ("layer.weight", [2, 3]), ("layer.bias", [3]), ("temperature", [])], about.spec.parameters
        spec = about.spec
        assert (spec.world_size, spec.optimizer.kind, spec.optimizer.learning_rate, spec.clip.max_norm, spec.max_steps) == (
            2, model.OPTIMIZER_KIND_SGD, 0.5, 1, 9), spec
        assert (spec.cast_dtype, spec.on_loss, spec.durability, spec.scaler.growth_interval) == (
            common.DTYPE_BF16, model.ON_LOSS_SHRINK, model.DURABILITY_STEP, 4), spec
        told = ampctl(context, address, "create", "foreign", path, *options)
        assert "existed" in told and "keep the values" in told, told
        told = ampctl(context, address, "create", "foreign", path, *options, "--empty")
        assert "existed" in told and "whose values, if it has any, stay as they are" in told, told
        said = ampctl(context, address, "create", "foreign", path, "--workers", "3", code=64 + 6)
        assert "foreign" in said, said
        ampctl(context, address, "checkpoint", "foreign")
        out = cluster.folder / "out.safetensors"
        ampctl(context, address, "checkpoint", "export", "foreign", out)
        header, data = header_of(out.read_bytes())
        begin, end = header["layer.weight"]["data_offsets"]
        assert data[begin:end] == struct.pack("<6f", *weight)
        told = ampctl(context, address, "create", "again", out)
        assert "3 parameters" in told, told


def test_a_model_that_was_left_without_values_gets_them_from_the_same_command(context):
    cluster = Cluster(context, 1)
    path = cluster.folder / "foreign.safetensors"
    write_safetensors(path, {"w": ("F32", [2], struct.pack("<2f", 1, 2))})
    assert "without values" in ampctl(context, cluster.addresses[0], "create", "m", path, "--empty")
    told = json.loads(ampctl(context, cluster.addresses[0], "-o", "json", "create", "m", path))
    assert told == {"model": "m", "created": False, "parameters": 1, "loaded": 1, "others": 0}, told


def test_a_model_whose_values_are_refused_is_told_to_exist_and_takes_a_mended_file(context):
    cluster = Cluster(context, 1)
    path = cluster.folder / "foreign.safetensors"
    options = ("--schedule", "step", "--step-every", "5", "--step-factor", "0.5", "--workers", "1")
    write_safetensors(path, {"w": ("F32", [2], struct.pack("<2f", 1, float("nan")))})
    said = ampctl(context, cluster.addresses[0], "create", "m", path, *options, code=64 + 3)
    assert "Inf or NaN" in said and "m exists and has no values" in said, said
    write_safetensors(path, {"w": ("F32", [2], struct.pack("<2f", 1, 2))})
    assert "with the values" in ampctl(context, cluster.addresses[0], "create", "m", path, *options)
    schedule = cluster.api(0).GetModel(model="m").spec.schedule
    assert (schedule.kind, schedule.step_size, schedule.gamma) == (model.SCHEDULE_KIND_STEP, 5, 0.5), schedule


def test_a_file_or_an_option_that_makes_no_model_is_named(context):
    cluster = Cluster(context, 1)
    path = cluster.folder / "bad.safetensors"
    for tensors, word in (({"n": ("I8", [2], b"ab")}, "no tensor of F32"),
                          ({"w": ("F32", [1] * 9, bytes(4))}, "9 dimensions"),
                          ({"w": ("F32", [0], b"")}, "extent")):
        write_safetensors(path, tensors)
        said = ampctl(context, cluster.addresses[0], "create", "m", path, code=1)
        assert word in said and str(path) in said, (said, word)
    for option, value in (("--optimizer", "adamv"), ("--lr", "fast"), ("--workers", "-1"), ("--init-scale", "1e60"),
                          ("--cast", "f8"), ("--workers", "4294967296"), ("--lr", "0"), ("--keep-last", "0")):
        said = ampctl(context, cluster.addresses[0], "create", "m", path, option, value, code=2)
        assert option in said and value in said, said


def test_an_option_of_create_that_would_go_unheard_is_refused_and_one_that_is_missing_named(context):
    cluster = Cluster(context, 1)
    path = cluster.folder / "w.safetensors"
    write_safetensors(path, {"w": ("F32", [2], struct.pack("<2f", 1, 2))})
    for options, words in (("--momentum 0.9", ("--momentum", "--optimizer adamw", "--optimizer sgd or rmsprop")),
                           ("--optimizer sgd --beta1 0.5", ("--beta1", "--optimizer sgd", "adamw, adam or lion")),
                           ("--optimizer lion --eps 1e-6", ("--eps", "--optimizer lion", "adagrad")),
                           ("--step-every 5", ("--step-every", "--schedule constant", "--schedule step")),
                           ("--schedule cosine --total-steps 9 --step-factor 0.5", ("--step-factor", "cosine")),
                           ("--schedule linear_warmup --warmup-steps 3 --lr-min 0.1", ("--lr-min", "linear-warmup")),
                           ("--scaler static --growth-interval 5", ("--growth-interval", "--scaler static")),
                           ("--schedule worker --lr 0.1", ("--lr", "--schedule worker")),
                           ("--schedule worker --warmup-steps 3", ("--warmup-steps", "--schedule worker")),
                           ("--schedule cosine", ("--schedule cosine needs --total-steps",)),
                           ("--schedule step", ("--schedule step needs --step-every",))):
        said = ampctl(context, cluster.addresses[0], "create", "m", path, *options.split(), code=2)
        assert all(word in said for word in words), (options, said)
    ampctl(context, cluster.addresses[0], "create", "rated", path, "--schedule", "worker")
    assert cluster.api(0).GetModel(model="rated").spec.schedule.kind == model.SCHEDULE_KIND_WORKER
    said = ampctl(context, cluster.addresses[0], "status", "rated")
    assert "kind worker" in said and "learning_rate" not in said, said  # workers have it
    ampctl(context, cluster.addresses[0], "create", "gan", path, *"--optimizer adam --beta1 0 --beta2 0.9".split())
    optimizer = cluster.api(0).GetModel(model="gan").spec.optimizer
    assert (optimizer.HasField("beta1"), optimizer.beta1, optimizer.beta2) == (True, 0, 0.9), optimizer
    assert "beta1 0," in ampctl(context, cluster.addresses[0], "status", "gan").replace("\n", ","), optimizer
    # Names as docs/scalers.md and `ampctl status` have them, or with hyphens.
    for name, spelled in (("a", "deepspeed_consecutive"), ("b", "deepspeed-consecutive")):
        ampctl(context, cluster.addresses[0], "create", name, path, "--scaler", spelled, "--growth-interval", "5")
        assert cluster.api(0).GetModel(model=name).spec.scaler.policy == common.SCALER_POLICY_DEEPSPEED_CONSECUTIVE


def test_export_and_import_print_the_form_that_was_asked_for(context):
    cluster = trained(context, 1)
    path = cluster.folder / "m.safetensors"
    told = json.loads(ampctl(context, cluster.addresses[0], "-o", "json", "checkpoint", "export", "m", path))
    assert told == {"file": str(path), "model": "m", "epoch": 1, "step": STEPS, "decided_step": STEPS, "tensors": 9}, told
    strange = f"{cluster.folder}/caf\udce9"  # a byte that is no UTF-8: it was made, and the exit code said otherwise
    told = json.loads(ampctl(context, cluster.addresses[0], "-o", "json", "checkpoint", "export", "m", strange))
    assert told["file"] == f"{cluster.folder}/caf?" and os.path.exists(strange), told
    Job(cluster, name="again", load=False, world_size=1)
    lines = ampctl(context, cluster.addresses[0], "checkpoint", "import", "again", path, "-o", "csv").splitlines()
    assert lines == ["model,file,tensors,others", f"again,{path},3,6"], lines


def without_workers(context, count, *options):
    """A model whose steps 1 to 3 are decided and in no checkpoint, and its workers; what they would pull next is kept."""
    cluster = Cluster(context, count, options=options)
    job = Job(cluster, checkpoint_every=1000)
    workers = [job.join(rank) for rank in range(WORLD)]
    job.train(workers, 1, 3)
    _, bytes_of_3 = job.pull(workers[0], 4)
    starts = {name: 4 * start for name, start in zip(job.layout.names, job.layout.starts)}
    cluster.values = {name: bytes_of_3[starts[name]:starts[name] + 4 * size] for name, size in SIZES.items()}
    return cluster, workers


def check_export_of_step_3(context, cluster):
    path = cluster.folder / "exported"
    told = json.loads(ampctl(context, cluster.addresses[0], "-o", "json", "checkpoint", "export", "m", path))
    assert (told["step"], told["decided_step"]) == (3, 3), told
    header, data = header_of(path.read_bytes())
    assert header["__metadata__"]["step"] == "3", header["__metadata__"]
    for name, values in cluster.values.items():
        begin, end = header[name]["data_offsets"]
        assert data[begin:end] == values, f"{name} has other values than those that were applied last"


def test_the_last_step_can_be_exported_when_all_workers_have_left(context):
    for count in (1, 2):
        cluster, workers = without_workers(context, count)
        for joined in workers:
            cluster.api(0).Leave(model="m", rank=joined.rank, incarnation=joined.incarnation)
        address, first = cluster.addresses[0], cluster.folder / "first"
        told, said = both(context, address, "checkpoint", "export", "m", first)
        assert "m, step 0 of epoch 1" in told, told
        assert "the checkpoint of step 0, and m is at step 3;" in said and '"ampctl checkpoint m"' in said, said
        assert "is at step" not in both(context, address, "checkpoint", "export", "m", first, "--force", "--step", 0)[1]
        rows = json.loads(ampctl(context, address, "-o", "json", "checkpoint", "m"))["rows"]
        assert [row["step"] for row in rows] == [3], rows
        assert "is at step" not in both(context, address, "checkpoint", "export", "m", first, "--force")[1]
        check_export_of_step_3(context, cluster)


def test_a_checkpoint_that_waits_for_workers_comes_when_their_leases_have_ended(context):
    for count in (1, 2):
        cluster, _ = without_workers(context, count, "--worker-lease", f"{6 * PATIENCE}s")
        rows = json.loads(ampctl(context, cluster.addresses[0], "-o", "json", "checkpoint", "m"))["rows"]
        assert [row["step"] for row in rows] == [3], rows
        check_export_of_step_3(context, cluster)


def test_what_was_meant_or_is_missing_is_named(context):
    cluster = trained(context, 1)
    said = ampctl(context, cluster.addresses[0], "checkpoint", "exprot", "m", code=2)
    assert "export" in said and "exprot" in said, said
    said = ampctl(context, cluster.addresses[0], "checkpoint", "export", "m", cluster.folder / "x", "--epoch=9", code=64 + 5)
    assert "of epoch 9" in said and "ampctl checkpoints m" in said, said


def test_an_act_that_reached_nobody_is_not_called_perhaps_done(context):
    for act in (("scale", "set", "m", "8"), ("rollback", "m", "1", "--epoch", "1")):
        said = ampctl(context, f"unix:{context.work}/nobody", *act, code=64 + 14)
        assert "start the server" in said and "may have been done" not in said, said


if __name__ == "__main__":
    run(globals())
