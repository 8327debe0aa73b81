#!/usr/bin/python3
"""What the page says of disks: how full one is, and what helps where a directory or a disk is in trouble.

    test_page_disk.py BIN_DIR [NAME ...]
"""
import time

from ampd_testing import PATIENCE, Api, eventually, found, run
from page_testing import Events, ask, http_port, page_server
from small_disk import fill_disk, small_disk
from test_server_disk import Shimmed
from test_server_folders import of_nobody

SMALL_DISK_KIB = 4096
LOOK_S = 5.0            # LOOK_MS of disk_share.c


def disk_of(status):
    return status["disk_size"], status["disk_free"]


def test_the_disk_is_known_at_once(context):
    server = page_server(context)
    began = time.monotonic()
    size, free = eventually(lambda: any(found := disk_of(ask(server, "/api/status"))) and found, "the disk is known")
    assert size > free > 0 and time.monotonic() - began < LOOK_S * PATIENCE - 0.5, (size, free)


def test_a_page_that_is_open_sees_the_disk_of_the_checkpoints_fill_though_no_step_is_taken(context):
    """While a checkpoint waits for room there."""
    with small_disk(context.folder(), SMALL_DISK_KIB) as disk:
        if disk is None:
            return
        server = page_server(context, "--checkpoint-dir", disk)
        worker = context.model("m", server).worker()
        worker.train({"w": [1.0] * 4})
        size, _ = eventually(lambda: any(found := disk_of(ask(server, "/api/status"))) and found, "the disk is known")
        assert size <= SMALL_DISK_KIB << 10
        with Events(server) as events:
            ballast = fill_disk(disk)
            call = worker.api.start("Checkpoint", model="m")
            eventually(lambda: "full" in worker.api.GetStatus().trouble, "the checkpoint waits for room")
            eventually(lambda: events.until("status")["disk_free"] == 0, "the page sees that the disk is full")
        assert not call.done()
        ballast.unlink()
        call.result()
        context.end_test()


def test_a_disk_that_is_nearly_full_is_told_once(context):
    server = page_server(context, "--checkpoint-disk-share", "1")   # of any disk more is in use
    worker = context.model("m", server).worker()
    worker.train({"w": [1.0] * 4})
    worker.api.Checkpoint(model="m")
    eventually(lambda: worker.api.GetStatus().trouble, "the share is told")
    troubles = ask(server, "/api/status")["troubles"]
    assert [trouble["text"] for trouble in troubles] == [worker.api.GetStatus().trouble], troubles


def trouble_of(server, word):
    """(text, remedy) of the one trouble, once it has the word."""
    def told():
        return next((one for one in ask(server, "/api/status")["troubles"] if word in one["text"]), None)

    trouble = eventually(told, f"a trouble with {word}")
    return trouble["text"], trouble["remedy"]


def test_a_denied_directory_and_a_silent_disk_are_not_said_to_need_room(context):
    """Their texts say what helps."""
    with of_nobody(context, "--metrics-listen", "127.0.0.1:0") as server:
        server.http_port = http_port(server)
        worker = context.model("m", server, checkpoint_every=1).worker()
        path = server.data_dir / "models" / "m" / "checkpoints"
        path.chmod(0o555)
        worker.train({"w": [1.0] * 4})
        denied = trouble_of(server, "Permission denied")
        path.chmod(0o755)
    server = Shimmed(context, "hanging_sync", "HANG_WHILE", "--metrics-listen", "127.0.0.1:0")
    server.http_port = http_port(server)
    context.model("m", server)
    server.flag.touch()
    Api(server.channel).start("SetScale", model="m", scale=512.0)
    silent = trouble_of(server, "has not answered")
    server.flag.unlink()
    assert "ampd's user" in denied[0] and "can be reached" in silent[0], (denied, silent)
    assert "room" not in denied[1] + silent[1], (denied, silent)


def test_no_model_is_said_to_go_on_by_itself_that_needs_its_shard_started_again(context):
    server = page_server(context)
    worker = context.model("m", server).worker()
    worker.train({"w": [1.0] * 4})
    worker.api.Checkpoint(model="m")
    server.kill()
    whole = {path: path.read_bytes() for path in found(server.data_dir, "models/m/**/*.safetensors")}
    for turn in range(2):
        for path, data in whole.items():
            path.write_bytes(data * turn)
        server.start()
        server.http_port = http_port(server)
        if turn == 0:
            text, remedy = trouble_of(server, "start the shard again")
            assert "by itself" not in remedy and "docs/operations.md" in remedy, (text, remedy)
            server.kill()
    eventually(lambda: ask(server, "/api/status")["troubles"] == [], "the model is back")


if __name__ == "__main__":
    run(globals())
