#!/usr/bin/python3
"""durability STEP with real processes: what was answered is there after kill -9, in the same epoch and bit for bit.

    test_server_journal.py BIN_DIR [NAME ...]

AMPD_TEST_KILLS=N kills that often right after an answered push, instead of 12 times.
"""
import concurrent.futures
import contextlib
import glob
import math
import os
import random
import shutil
import sqlite3

from ampd_testing import Api, Code, common, eventually, found, model, refused, run
from small_disk import fill_disk, small_disk

INF = math.inf
KILLS = int(os.environ.get("AMPD_TEST_KILLS", "12"))


def durable(**fields):
    """A model with both moments of its optimizer, a scale that moves, and a journal."""
    return {"durability": model.DURABILITY_STEP, "checkpoint_every": 5, "cast_dtype": common.DTYPE_F32,
            "scaler": model.ScalerSpec(init_scale=1024.0, growth_interval=2, max_scale=4096.0), **fields}


def gradient_of(step):
    """Data as a function of the step number; each seventh step overflows."""
    return {"w": [INF if step % 7 == 0 else float(step % 5), 1.0, -float(step % 3), 0.5]}


def state_of(test_model):
    header, tensors = test_model.latest()
    record = test_model.api.GetScale(model=test_model.name).record
    record.scale_id = 0
    return header.version, tensors, record


def key(result):
    return result.step, result.verdict, result.norm, result.new_scale, result.version


def test_every_answered_step_is_there_after_a_kill(context):
    """A kill right after the answer of a push, again and again: the step, its row and its result are there."""
    rng = random.Random(int(os.environ.get("AMPD_TEST_SEED", "1")))
    server = context.server()
    test_model = context.model("killed", server, **durable())
    worker, told = test_model.worker(), []
    for _ in range(KILLS):
        for _ in range(rng.randrange(1, 4)):
            result = worker.train(gradient_of(worker.step))
            assert result.durable_step == result.step, result
            told.append(key(result))
        server.restart_after_kill()
        test_model.reconnect()
        status = test_model.status()
        assert (status.epoch, status.step, status.durable_step) == (1, told[-1][0] + 1, told[-1][0]), status
        again = worker.push(gradient_of(told[-1][0]), step=told[-1][0])  # the answer may have been lost
        assert key(again) == told[-1], (key(again), told[-1])
        worker.step = told[-1][0] + 1
        assert test_model.step_rows(newest_first=True, page_size=1)[0].step == told[-1][0]
    undisturbed = context.model("undisturbed", server, **durable())
    twin = undisturbed.worker()
    while twin.step <= told[-1][0]:
        assert key(twin.train(gradient_of(twin.step))) == told[twin.step - 2]
    assert state_of(test_model) == state_of(undisturbed)
    steps = [row.step for first in range(1, told[-1][0] + 1, 500)
             for row in test_model.step_rows(from_step=first, to_step=first + 499, page_size=1000)]
    assert steps == list(range(1, told[-1][0] + 1))


def test_a_file_system_without_fallocate_is_good_enough(context):
    with small_disk(context.folder(), 0, "ramfs") as disk:
        if disk is None:
            return
        server = context.server(data_dir=disk / "data")
        test_model = context.model("plain", server, **durable())
        worker = test_model.worker()
        for _ in range(5):
            worker.train(gradient_of(7))  # skipped, so that the slots are without a gradient and too small for the next ones
        eventually(lambda: "step=5 bytes" in server.log(), "checkpoint 5 is there")
        for step in range(6, 9):
            server.restart_after_kill()
            test_model.reconnect()
            assert (test_model.status().epoch, test_model.status().step) == (1, step), test_model.status()
            worker.train(gradient_of(1))


def leave_free(disk, size):
    with open(disk / "ballast", "wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free - size)


def third_vote_without_room(test_model, disk):
    """The push of step 3, whose vote finds no room on the disk."""
    worker, gradient = test_model.worker(), {"w": [1.0] * (1 << 18)}
    leave_free(disk, (2 << 20) + (640 << 10))  # two votes of 1 MiB, and rows
    for _ in range(2):
        worker.train(gradient)
    worker.pull()
    push = worker.start_push(gradient)
    eventually(lambda: "slot-002: the disk is full" in test_model.api.GetStatus().trouble, "the third one finds no room")
    return push


def test_a_vote_that_finds_no_room_waits_for_a_checkpoint_and_holds_up_no_other_model(context):
    with small_disk(context.folder(), 12 * 1024) as disk, small_disk(context.folder(), 8 * 1024) as checkpoints:
        if disk is None:
            return
        server = context.server("--checkpoint-dir", checkpoints, data_dir=disk / "data")
        small = context.model("small", server, **durable(checkpoint_every=8)).worker()
        for step in range(1, 9):
            small.train(gradient_of(1))
        eventually(lambda: "model=small step=8 bytes" in server.log(), "the slots of small are free")
        test_model = context.model("large", server, parameters=[("w", [1 << 18])], **durable(checkpoint_every=2))
        ballast = fill_disk(checkpoints)
        push = third_vote_without_room(test_model, disk)
        for step in range(9, 15):
            small.train(gradient_of(step))
        assert not push.done()
        ballast.unlink()  # so that the checkpoint of step 2 is written
        assert push.result().result.step == 3
        assert len(found(disk, "data/models/large/journal/*/slot-*")) < 4
        eventually(lambda: test_model.api.GetStatus().trouble == "", "the trouble has ended")
        server.restart_after_kill()
        assert test_model.reconnect().status().step == 4
        assert server.terminate() == 0


@contextlib.contextmanager
def without_room(context):
    """(server, model, the push of step 3), whose vote finds no room on the disk; None where nothing can be mounted."""
    with small_disk(context.folder(), 12 * 1024) as disk, small_disk(context.folder(), 8 * 1024) as checkpoints:
        if disk is None:
            yield None
            return
        server = context.server("--checkpoint-dir", checkpoints, data_dir=disk / "data")
        test_model = context.model("large", server, parameters=[("w", [1 << 18])], **durable(checkpoint_every=2))
        fill_disk(checkpoints)
        yield server, test_model, third_vote_without_room(test_model, disk)
        # What may still be said: that the next checkpoint would fill the other disk.
        eventually(lambda: "the disk is full" not in test_model.api.GetStatus().trouble, "the trouble has ended")
        assert server.terminate() == 0


def test_a_model_whose_vote_finds_no_room_can_be_deleted_to_make_some(context):
    with without_room(context) as made:
        if made is None:
            return
        server, test_model, push = made
        test_model.api.DeleteModel(model="large", force=True)
        refused(push.result, Code.NOT_FOUND, "MODEL_NOT_FOUND")
        assert found(server.data_dir, "models/large/**/slot-*") == []


def test_a_model_whose_vote_finds_no_room_can_be_rolled_back(context):
    with without_room(context) as made:
        if made is None:
            return
        _, test_model, push = made
        assert test_model.api.Rollback(model="large", epoch=1, step=0).epoch == 2
        refused(push.result, Code.UNAVAILABLE, "RECOVERING")


def test_the_journal_is_pruned_by_checkpoints(context):
    server = context.server()
    test_model = context.model("pruned", server, **durable(checkpoint_every=2))
    worker = test_model.worker()
    for step in range(1, 41):
        worker.train(gradient_of(step))
    slots = glob.glob(str(server.data_dir / "models" / "pruned" / "journal" / "*" / "slot-*"))
    assert 0 < len(slots) <= 12, slots


def test_a_damaged_journal_takes_the_model_back_to_its_checkpoint(context):
    """Never a wrong load: the steps that cannot be had again are told to be rolled back, by a higher epoch."""
    server = context.server()
    test_model = context.model("damaged", server, **durable(checkpoint_every=4))
    worker = test_model.worker()
    for step in range(1, 7):
        worker.train(gradient_of(step))
    eventually(lambda: [c for c in test_model.api.ListCheckpoints(model="damaged").checkpoints if c.step == 4],
               "checkpoint 4 is there")
    server.kill()
    for path in glob.glob(str(server.data_dir / "models" / "damaged" / "journal" / "*" / "slot-*")):
        with open(path, "r+b") as file:
            file.seek(-1, os.SEEK_END)
            last = file.read(1)
            file.seek(-1, os.SEEK_END)
            file.write(bytes([last[0] ^ 1]))
    server.start()
    test_model.reconnect()
    status = test_model.status()
    assert (status.epoch, status.step) == (2, 5), status
    refused(lambda: worker.push(gradient_of(6), step=6), Code.ABORTED)
    assert "cannot be brought back" in server.log()


def test_a_journal_that_cannot_be_read_now_is_read_later_and_no_step_is_lost(context):
    """The disk refuses one slot: the model waits, with its name in the log, and goes on in its epoch when it can be read."""
    server = context.server()
    test_model = context.model("unread", server, **durable(checkpoint_every=100))
    worker = test_model.worker()
    told = [key(worker.train(gradient_of(step))) for step in range(1, 5)]
    server.kill()
    slot = sorted(glob.glob(str(server.data_dir / "models" / "unread" / "journal" / "*" / "slot-*")))[1]
    os.rename(slot, slot + ".away")
    os.mkdir(slot)  # what is no file is not opened

    def mend():
        eventually(lambda: server.log().count(f"cannot open {slot}: it is not a regular file") >= 2, "it was tried twice")
        os.rmdir(slot)
        os.rename(slot + ".away", slot)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        mended = pool.submit(mend)
        server.start()  # to which a model that waits for its disk belongs
        mended.result()
    assert "cannot be brought back" not in server.log()
    test_model.reconnect()
    eventually(lambda: test_model.status().state == common.MODEL_STATE_RUNNING, "the model goes on")
    status = test_model.status()
    assert (status.epoch, status.step) == (1, 5), status
    assert key(worker.push(gradient_of(4), step=4)) == told[-1]
    worker.train(gradient_of(5))


# ---- deletion ----

def two_models(context, server):
    """Models "kept" and "gone", with votes in both journals; the worker of "kept", and the api."""
    for name in ("gone", "kept"):
        worker = context.model(name, server, **durable(checkpoint_every=100)).worker()
        for step in range(1, 4):
            worker.train(gradient_of(step))
    return worker, worker.api


def stay(server):
    """A slot of "gone" becomes a directory that is not empty, which nobody removes like a file; its path."""
    slot = found(server.data_dir, "models/gone/journal/shard-0-of-1/slot-*")[1]
    slot.unlink()
    slot.mkdir()
    (slot / "file").touch()
    return slot


def create_is_refused(context, server):
    """With the directory that is in the way."""
    refused(lambda: context.model("gone", server, **durable()), Code.FAILED_PRECONDITION, "JOURNAL_EXISTS",
            [f"{server.data_dir}/models/gone/journal", "move or remove that directory", "another name"])


def test_a_model_whose_journal_cannot_be_removed_is_deleted_and_ends_nothing(context):
    """Its name is refused to a model with a journal, which could take the old votes for its own, until that is gone."""
    server = context.server()
    worker, api = two_models(context, server)
    slot = stay(server)
    api.DeleteModel(model="gone", force=True)
    assert "could not be removed; remove it by hand" in server.log() and str(slot) in server.log(), server.log()[-2000:]
    assert found(server.data_dir, "models/gone/journal/*/*") == [slot]
    worker.train(gradient_of(4))
    create_is_refused(context, server)
    server.restart_after_kill()
    api = Api(server.channel)
    assert [m.name for m in api.ListModels().models] == ["kept"]
    create_is_refused(context, server)
    context.model("gone", server)  # it needs no journal
    api.DeleteModel(model="gone", force=True)
    create_is_refused(context, server)
    shutil.rmtree(server.data_dir / "models" / "gone" / "journal")
    for _ in range(3):  # a journal that can be removed is not in the way
        context.model("gone", server, **durable()).worker().train(gradient_of(1))
        api.DeleteModel(model="gone", force=True)
        assert not (server.data_dir / "models" / "gone").exists()


def test_a_start_goes_on_with_a_deletion_whose_journal_cannot_be_removed(context):
    """Whether a kill came before the store had deleted the model, or after that."""
    for deletion in ("deletion=1", "deletion=2,name=name||'/'||id"):
        server = context.server()
        two_models(context, server)
        slot = stay(server)
        server.kill()
        with sqlite3.connect(next(server.data_dir.glob("*.db"))) as connection:
            connection.execute(f"UPDATE models SET {deletion} WHERE name='gone'")
        connection.close()
        server.start()
        eventually(lambda: [m.name for m in Api(server.channel).ListModels().models] == ["kept"], "it is deleted")
        assert found(server.data_dir, "models/gone/journal/*/*") == [slot]
        create_is_refused(context, server)


def test_a_start_goes_on_with_a_deletion_whose_journal_cannot_be_looked_at(context):
    server = context.server()
    two_models(context, server)
    server.kill()
    with sqlite3.connect(next(server.data_dir.glob("*.db"))) as connection:
        connection.execute("UPDATE models SET deletion=1 WHERE name='gone'")
    connection.close()
    journal = server.data_dir / "models" / "gone" / "journal"
    shutil.rmtree(journal)
    journal.touch()  # no directory
    server.start()
    eventually(lambda: [m.name for m in Api(server.channel).ListModels().models] == ["kept"], "it is deleted")
    create_is_refused(context, server)


if __name__ == "__main__":
    run(globals())
