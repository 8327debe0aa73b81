#!/usr/bin/python3
"""What a server does on disks that are full, nearly full, or do not answer.

    test_server_disk.py BIN_DIR [NAME ...]
"""
import contextlib
import re
import signal
import sqlite3
import time
from pathlib import Path

from ampd_testing import (Api, CALL_TIMEOUT_S, eventually, found, held, load_messages, model, PATIENCE, run,
                          Server, spec, start_and_fail)
from small_disk import fill_disk, small_disk


DRAIN_S = 20 * PATIENCE


class Hanging(Server):
    """Its disk does not answer once it is asked how much room it has."""

    def __init__(self, context, *options):
        shim = context.bin_dir.parent / "tests" / "integration" / "libhanging_statvfs.so"
        self.before = ["/usr/bin/env", f"LD_PRELOAD={shim}"]
        super().__init__(context.bin_dir, context.folder(), *options)


class Shimmed(Server):
    """Its disk fails in the way of the shim while the file `flag` is there."""

    def __init__(self, context, shim, variable, *options, settings=()):
        folder = context.folder()
        self.flag = folder.with_name(folder.name + ".flag")
        library = context.bin_dir.parent / "tests" / "integration" / f"lib{shim}.so"
        self.before = ["/usr/bin/env", f"LD_PRELOAD={library}", f"{variable}={self.flag}", *settings]
        super().__init__(context.bin_dir, folder, *options)
        context._own.append(self)

    def is_silent(self, api, what):
        eventually(lambda: f"{self.data_dir} has not answered for " in api.GetStatus().trouble, "the status says it")
        assert f"and {what} waits for it" in api.GetStatus().trouble, api.GetStatus().trouble

    def goes_on(self, api):
        self.flag.unlink()
        eventually(lambda: api.GetStatus().trouble == "", "the trouble has ended")


def test_a_checkpoint_that_finds_no_room_keeps_no_other_model_from_the_disk(context):
    mib = 1 << 20
    with small_disk(context.folder(), 8 * 1024) as disk:
        if disk is None:
            return
        server = context.server(data_dir=disk / "data")
        context.model("middle", server, parameters=[("w", [mib])], load=False).load({"w": [0.0] * mib})  # 4 MiB
        large = context.model("large", server, parameters=[("w", [mib * 5 // 4])], load=False)
        load = large.api.start("Load", list(load_messages(large.layout, "large", {"w": [0.0] * (mib * 5 // 4)})))
        eventually(lambda: large.api.GetStatus().trouble, "the full disk is told")
        small = context.model("small", server)
        worker = small.worker()
        for _ in range(2):
            worker.train({"w": [1.0] * 4})
        small.api.Checkpoint(model="small")
        assert small.api.Rollback(model="small", epoch=1, step=0).step == 1
        header, tensors = small.latest()
        assert (header.version, list(tensors["w"])) == (0, small.initial["w"]), (header, tensors)
        assert not load.done() and "full" in large.api.GetStatus().trouble
        large.api.DeleteModel(model="middle")
        load.result()
        assert large.api.GetStatus().trouble == ""
        assert sorted(path.name for path in (server.data_dir / "models").iterdir()) == ["large", "small"]
        assert server.terminate() == 0


def push_without_room(worker):
    """One whose verdict finds no room on the full disk of the store: pages that it has already may take some rows."""
    for _ in range(100):
        worker.pull()
        push = worker.start_push({"w": [1.0] * 4})
        eventually(lambda p=push: "full" in worker.api.GetStatus().trouble or p.done(),
                   "an answer, or none for a lack of room")
        if not push.done():
            break
        worker.step += 1
    return push


def test_a_start_on_a_full_disk_says_what_helps(context):
    """On a new data directory, and on one of before; alone, and as a shard of a list."""
    with small_disk(context.folder(), 2 * 1024) as disk:
        if disk is None:
            return
        addresses = [f"unix:{context.folder()}.{k}" for k in range(2)]
        for turn in range(2):
            ballast = fill_disk(disk)
            for options in (["--listen", "127.0.0.1:0"],
                            ["--listen", addresses[0], "--peers", ",".join(addresses), "--shard", "0"]):
                code, lines = start_and_fail(context.bin_dir, "--data-dir", disk / "data", *options)
                assert code == 1, (turn, code, lines)
                assert lines[-1].endswith("full; make room on it, and start ampd again"), (turn, lines)
            ballast.unlink()
            server = context.server(data_dir=disk / "data")
            assert [one.name for one in Api(server.channel).ListModels().models] == ["m"] * turn
            context.model(f"m{turn or ''}", server).worker().train({"w": [1.0] * 4})
            server.kill()


def test_a_model_can_be_deleted_to_make_room_for_the_store(context):
    """While a verdict waits for room, and where the deletion itself is the first that finds none."""
    with small_disk(context.folder(), 6 * 1024) as disk:
        if disk is None:
            return
        server = context.server(data_dir=disk / "data")
        for name in ("first", "second"):
            test_model = context.model(name, server, parameters=[("w", [1 << 18])], load=False)
            test_model.load({"w": [0.0] * (1 << 18)})  # 1 MiB
        worker = context.model("m", server).worker()
        fill_disk(disk)
        worker.pull()
        worker.api.DeleteModel(model="first", force=True)
        fill_disk(disk)
        push = push_without_room(worker)
        worker.api.DeleteModel(model="second", force=True)
        assert push.result().result.step == worker.step
        assert "is full" not in worker.api.GetStatus().trouble and found(server.data_dir, "models/**/*second*") == []
        server.restart_after_kill()
        assert [one.name for one in Api(server.channel).ListModels().models] == ["m"]
        assert server.terminate() == 0


def test_a_model_whose_journal_fills_the_disk_of_the_store_can_be_deleted_to_make_room(context):
    """Its checkpoints are in another directory, where a deletion makes none."""
    with small_disk(context.folder(), 8 * 1024) as disk:
        if disk is None:
            return
        server = context.server("--checkpoint-dir", context.folder(), data_dir=disk / "data")
        gone = context.model("gone", server, parameters=[("w", [1 << 18])], durability=model.DURABILITY_STEP).worker()
        for _ in range(2):
            gone.train({"w": [1.0] * (1 << 18)})
        worker = context.model("m", server).worker()
        fill_disk(disk)
        push = push_without_room(worker)
        worker.api.DeleteModel(model="gone", force=True)
        assert push.result().result.step == worker.step
        assert "is full" not in worker.api.GetStatus().trouble and found(server.data_dir, "models/**/*gone*") == []
        assert server.terminate() == 0


def test_a_store_that_another_process_holds_costs_a_model_no_file_before_it_is_deleted(context):
    """Only a full disk does, where its files may be all that makes room: a crash then leaves the model without them."""
    server = context.server()
    worker = context.model("m", server).worker()
    context.model("gone", server)
    with contextlib.closing(sqlite3.connect(server.data_dir / "ampd.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        worker.pull()
        push = worker.start_push({"w": [1.0] * 4})
        eventually(lambda: "another process holds" in worker.api.GetStatus().trouble, "the status says it")
        call = held(worker.api.start("DeleteModel", model="gone", force=True))
        assert found(server.data_dir, "models/gone/**/*.safetensors") != []
    assert push.result().result.step == 1
    call.result()
    assert found(server.data_dir, "models/gone") == [] and server.terminate() == 0


def waits_for(server, number):
    """Whether a signal is pending."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"^ShdPnd:\s*(\w+)$", status, re.M)[1], 16) >> number - 1 & 1


def test_a_disk_that_does_not_answer_ends_the_drain_in_time_or_at_a_second_signal(context):
    servers = [Hanging(context, "--drain-time", f"{DRAIN_S}s") for _ in range(3)]
    context._own += servers
    for server in servers:
        eventually(lambda s=server: "the disk hangs" in s.log(), "the disk hangs", CALL_TIMEOUT_S)
    began = time.monotonic()
    told, by_call, waits = servers
    by_call_api = Api(by_call.channel)
    by_call_api.Drain()
    for server in (told, waits):
        server.process.send_signal(signal.SIGTERM)
    for server in servers:
        eventually(lambda s=server: "drained" in s.log().splitlines()[-1], "the core is drained")
    time.sleep(2)  # the grace is over
    by_call.process.send_signal(signal.SIGTERM)  # its first one
    by_call.process.send_signal(signal.SIGHUP)
    eventually(lambda: not waits_for(by_call, signal.SIGTERM), "the signal is taken: the next one is one more")
    time.sleep(0.5)
    assert [server.process.poll() for server in servers] == [None] * 3
    for server in (told, by_call):
        server.process.send_signal(signal.SIGTERM)
        assert server.wait() == 1, server.log()
        assert server.log().splitlines()[-1] == "ampd: second signal, ending at once", server.log()
    assert waits.process.wait(CALL_TIMEOUT_S) == 1, waits.log()
    assert DRAIN_S < time.monotonic() - began < DRAIN_S + 20 * PATIENCE, waits.log()
    assert waits.log().splitlines()[-1].startswith("ampd: the drain took too long, ending"), waits.log()


def test_a_drain_waits_for_its_last_checkpoint_as_long_as_drain_time_says(context):
    """Of two servers SIGHUP gives one more time than its disk then takes."""
    files, servers = [context.folder().with_suffix(".conf") for _ in range(2)], []
    for file in files:
        file.write_text("drain-time: 1s\n")
        servers.append(Shimmed(context, "hanging_sync", "HANG_WHILE", "--config", file))
    files[1].write_text("drain-time: 5m\n")
    servers[1].process.send_signal(signal.SIGHUP)
    eventually(lambda: 'option=drain-time was="1s" is="5m"' in servers[1].log(), "the time is taken")
    for server in servers:
        context.model("m", server).worker().train({"w": [1.0] * 4})
        server.flag.touch()
        server.process.send_signal(signal.SIGTERM)
    assert servers[0].wait() == 1, servers[0].log()
    last = servers[0].log().splitlines()[-1]
    assert 'msg="the drain took too long, ending"' in last and "raise --drain-time" in last, last
    assert servers[1].process.poll() is None, servers[1].log()
    servers[1].flag.unlink()
    assert servers[1].wait() == 0, servers[1].log()
    written = [len(found(server.data_dir, "models/**/step-*1/*.safetensors")) for server in servers]
    assert written == [0, 1], written


def test_a_second_signal_ends_a_drain_that_waits_for_a_disk(context):
    server = Shimmed(context, "hanging_sync", "HANG_WHILE")
    api, worker = Api(server.channel), context.model("m", server).worker()
    worker.train({"w": [1.0] * 4})
    server.flag.touch()
    checkpoint = api.start("Checkpoint", model="m")
    server.is_silent(api, "the file of a checkpoint")
    server.process.send_signal(signal.SIGTERM)
    eventually(lambda: "the drain waits for the disk" in server.log(), "so says the drain")
    server.process.send_signal(signal.SIGTERM)
    assert server.wait() == 1 and 'msg="second signal, ending at once"' in server.log(), server.log()
    checkpoint.cancel()
    server.flag.unlink()
    server.start()
    assert Api(server.channel).GetModel(model="m").status.epoch == 2


def test_a_disk_that_does_not_answer_is_told_until_it_does(context):
    server = Shimmed(context, "hanging_sync", "HANG_WHILE")
    api, worker = Api(server.channel), context.model("m", server).worker()
    worker.train({"w": [1.0] * 4})
    server.flag.touch()
    call = api.start("SetScale", model="m", scale=512.0)
    server.is_silent(api, "the store")
    assert not call.done()
    server.goes_on(api)
    call.result()
    worker.train({"w": [1.0] * 4})
    server.flag.touch()
    call = api.start("Checkpoint", model="m")
    server.is_silent(api, "the file of a checkpoint")
    server.process.send_signal(signal.SIGTERM)
    eventually(lambda: "the drain waits for the disk" in server.log(), "so says the drain")
    server.flag.unlink()
    assert server.wait() == 0 and server.log().count("a disk does not answer") == 2, server.log()


def test_no_verdict_waits_until_the_journal_of_a_deleted_model_is_removed(context):
    """Which may be many large files."""
    server = Shimmed(context, "hanging_sync", "HANG_WHILE", settings=["HANG_BELOW=/slot-"])
    worker = context.model("m", server).worker()
    context.model("gone", server, durability=model.DURABILITY_STEP).worker().train({"w": [1.0] * 4})
    server.flag.touch()
    call = held(worker.api.start("DeleteModel", model="gone", force=True))
    for _ in range(3):
        worker.train({"w": [1.0] * 4})
    assert not call.done() and len(found(server.data_dir, "models/gone/journal/**/slot-*")) == 1
    server.goes_on(worker.api)
    call.result()
    assert found(server.data_dir, "models/gone") == [] and server.terminate() == 0


def test_a_checkpoint_on_a_disk_that_does_not_answer_keeps_nobody_from_the_history(context):
    server = Shimmed(context, "hanging_sync", "HANG_WHILE")
    test_model, api = context.model("m", server), Api(server.channel)
    test_model.worker().train({"w": [1.0] * 4})
    api.Checkpoint(model="m")
    newest = api.ListCheckpoints(model="m").checkpoints[-1]
    server.flag.touch()
    reading = api.start("ReadCheckpoint", model="m", epoch=newest.epoch, step=newest.step)
    assert [row.step for row in test_model.step_rows()] == [1]
    server.is_silent(api, "an export of a checkpoint or a new model")
    server.goes_on(api)
    assert len(reading.all()) > 1 and server.terminate() == 0


def test_a_creation_on_a_disk_that_does_not_answer_keeps_nobody_from_the_history(context):
    """It looks for files of an earlier model of its name."""
    server = Shimmed(context, "hanging_sync", "HANG_WHILE", settings=["HANG_BELOW=models/new"])
    test_model, api = context.model("m", server), Api(server.channel)
    test_model.worker().train({"w": [1.0] * 4})
    server.flag.touch()
    call, gone = (held(api.start("CreateModel", spec=spec(name, [("w", [4])]))) for name in ("new", "newer"))
    assert [row.step for row in test_model.step_rows()] == [1]
    gone.cancel()
    server.is_silent(api, "an export of a checkpoint or a new model")
    server.goes_on(api)
    assert call.result().created
    assert [one.name for one in api.ListModels().models] == ["m", "new"] and server.terminate() == 0


def test_a_drain_does_not_blame_a_disk_that_is_nearly_full(context):
    """Its last checkpoint takes a while, and nothing waits for room."""
    server = Shimmed(context, "hanging_sync", "HANG_WHILE", "--checkpoint-disk-share", "1")
    api, worker = Api(server.channel), context.model("m", server).worker()
    eventually(lambda: "would fill the disk" in api.GetStatus().trouble, "the disk is nearly full")
    worker.train({"w": [1.0] * 4})
    server.flag.touch()
    server.process.send_signal(signal.SIGTERM)
    time.sleep(2)
    server.flag.unlink()
    assert server.wait() == 0 and "the drain waits for the disk" not in server.log(), server.log()


def test_a_removal_that_waits_for_room_is_told_until_there_is_some(context):
    server = Shimmed(context, "full_unlink", "FULL_WHILE")
    api = Api(server.channel)
    context.model("m", server)
    server.flag.touch()
    call = api.start("DeleteModel", model="m", force=True)
    eventually(lambda: "shard-0-of-1.safetensors: the disk is full" in api.GetStatus().trouble, "the status says it")
    assert not call.done()
    server.goes_on(api)
    call.result()
    assert found(server.data_dir, "models/**/*") == [] and server.terminate() == 0


if __name__ == "__main__":
    run(globals())
