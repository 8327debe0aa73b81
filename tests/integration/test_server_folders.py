#!/usr/bin/python3
"""Directories that others have been at: pipes and links in the place of files, modes, a damaged database, one that cannot be written.

    test_server_folders.py BIN_DIR [NAME ...]
"""
import contextlib
import os
import pathlib
import shutil
import sqlite3
import subprocess
from concurrent.futures import ThreadPoolExecutor

import ampd_testing
from ampd_testing import Api, Code, eventually, grpc, model, refused, run
from small_disk import small_disk
from test_server_restart import check_start, momentum, run_steps

LISTEN = ["--listen", "127.0.0.1:0"]
NOBODY = 65534


def trained(context, steps=4):
    """(server, model, worker) with checkpoints of steps 2 and 4; the server is killed, so that the log has rows, too."""
    server = context.server()
    test_model = context.model("m", server, checkpoint_every=2, **momentum())
    worker = test_model.worker()
    told = run_steps(worker, steps)
    eventually(lambda: test_model.status().durable_step == steps, "the last step is durable")
    server.kill()
    return server, test_model, worker, told


def test_a_pipe_in_the_place_of_a_checkpoint_holds_nobody(context):
    server, test_model, worker, told = trained(context)
    newest = ampd_testing.found(server.data_dir, "models/m/**/*.safetensors")[-1]
    newest.unlink()
    os.mkfifo(newest)
    server.start()
    test_model.reconnect()
    worker.join()
    assert (worker.epoch, worker.step) == (2, 3), worker.joined
    assert run_steps(worker, 4) == told[2:]


def joins(worker):
    try:
        worker.join()
        return True
    except grpc.RpcError as error:
        assert error.code() == Code.UNAVAILABLE, error
        return False


def test_a_checkpoint_that_is_a_link_is_waited_for_and_not_followed(context):
    server, test_model, worker, _ = trained(context)
    newest = ampd_testing.found(server.data_dir, "models/m/**/*.safetensors")[-1]
    elsewhere = newest.rename(context.folder())
    newest.symlink_to(elsewhere)
    server.start()
    test_model.reconnect()
    eventually(lambda: "it is a symbolic link" in server.log(), "the log names the link")
    newest.unlink()
    elsewhere.rename(newest)
    eventually(lambda: joins(worker), "the file itself is taken")
    assert worker.step == 5, worker.joined


def test_a_link_in_the_data_directory_leads_to_no_file_that_is_written(context):
    folder, precious = context.folder(), context.folder()
    folder.mkdir(mode=0o700)
    precious.write_text("precious\n")
    for name in ("LOCK", "VERSION", "ampd.db", "ampd.db-wal", "ampd.db-shm", "ampd.db-journal"):
        for make in (lambda link: link.symlink_to(precious), os.mkfifo):
            link = folder / name
            link.unlink(missing_ok=True)
            make(link)
            words = [str(link), "regular file" if link.is_fifo() else "symbolic link"]
            check_start(context, 3, words, "--data-dir", folder, *LISTEN)
            link.unlink()
    assert precious.read_text() == "precious\n"
    link = context.folder()
    link.symlink_to(folder)  # the directory itself may be on another disk
    assert context.server(data_dir=link).terminate() == 0


def test_a_data_directory_that_every_user_can_write_to_is_refused(context):
    folder = context.folder()
    folder.mkdir()
    folder.chmod(0o777)
    check_start(context, 3, [str(folder), "every user", "chmod o-w"], "--data-dir", folder, *LISTEN)
    assert not list(folder.iterdir())
    for mode in (0o1777, 0o2775, 0o755, 0o750, 0o700):
        folder.chmod(mode)
        server = context.server(data_dir=folder)
        assert server.terminate() == 0 and "others can change" not in server.log(), oct(mode)


def test_a_checkpoint_directory_that_every_user_can_write_to_is_warned_of(context):
    folder = context.folder()
    folder.mkdir()
    folder.chmod(0o777)
    server = context.server("--checkpoint-dir", folder)
    assert "others can change the checkpoint directory" in server.log(), server.log()
    assert "others can change the data directory" not in server.log(), server.log()


def test_a_copy_of_a_data_directory_beside_the_original_is_kept_from_its_checkpoints(context):
    """It would sweep the part that the original writes, and write over its checkpoints: the copy's LOCK is another one."""
    checkpoints, copy = context.folder(), context.folder()
    options = ["--checkpoint-dir", checkpoints]
    server = context.server(*options)
    test_model = context.model("m", server, checkpoint_every=2, **momentum())
    run_steps(test_model.worker(), 4)
    eventually(lambda: test_model.status().durable_step == 4, "the last step is durable")
    shutil.copytree(server.data_dir, copy, ignore=shutil.ignore_patterns("*.sock"))
    part = checkpoints / "models" / "m" / "checkpoints" / "step-0000000006" / "shard-0-of-1.safetensors.tmp"
    part.parent.mkdir()
    part.touch()  # as the original writes it
    for _ in range(2):
        check_start(context, 3, [str(checkpoints), f"process {server.process.pid}", "another --checkpoint-dir"],
                    "--data-dir", copy, *options, *LISTEN)
        assert part.exists()
        server.restart_after_kill()
        part.parent.mkdir(exist_ok=True)
        part.touch()
    assert server.terminate() == 0
    assert context.server(*options, data_dir=copy).terminate() == 0
    assert not part.exists()


def test_a_checkpoint_directory_that_cannot_be_locked_is_warned_of(context):
    folder = context.folder()
    (folder / "LOCK.shard-0-of-1").mkdir(parents=True)
    server = context.server("--checkpoint-dir", folder)
    assert "another server at this checkpoint directory would not be noticed" in server.log(), server.log()
    assert server.terminate() == 0


# ---- a damaged database ----

def overwrite(path, at, data):
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


def test_a_damaged_database_ends_the_start_with_3_and_what_helps(context):
    server, _, _, _ = trained(context)
    assert server.start().terminate() == 0  # the log is in the database
    database = server.data_dir / "ampd.db"
    whole = database.read_bytes()
    size = len(whole)
    assert size > 4 * 4096
    damages = {"its header": lambda: overwrite(database, 0, b"\xa5" * 100),
               "all but its header": lambda: overwrite(database, 4096, os.urandom(size - 4096)),
               "the first page behind its header": lambda: overwrite(database, 100, b"\xa5" * 3996),
               "its second half, cut off": lambda: os.truncate(database, size // 2 // 4096 * 4096),
               "its end, cut off in a page": lambda: os.truncate(database, 4096 * 2 + 1000),
               "all of it, cut off": lambda: os.truncate(database, 0)}
    for what, damage in damages.items():
        database.write_bytes(whole)
        damage()
        code, lines = ampd_testing.start_and_fail(context.bin_dir, "--data-dir", server.data_dir, *LISTEN)
        said = lines[-1] if lines else ""
        assert code == 3 and str(database) in said and "is damaged" in said and "from a copy" in said, (what, code, lines)
    database.write_bytes(whole)
    server.start()
    assert [m.name for m in Api(server.channel).ListModels().models] == ["m"]


def test_a_log_whose_database_was_cut_off_is_not_removed(context):
    server, _, _, _ = trained(context)
    database, log = server.data_dir / "ampd.db", server.data_dir / "ampd.db-wal"
    whole = log.read_bytes()
    assert len(whole) > 0
    os.truncate(database, 0)
    check_start(context, 3, [str(database), "is damaged"], "--data-dir", server.data_dir, *LISTEN)
    assert log.read_bytes() == whole


def test_a_log_whose_database_is_missing_is_not_removed(context):
    """As where the database alone was lost, or left out of a copy: the newest rows are in the log."""
    server, _, _, _ = trained(context)
    database, log = server.data_dir / "ampd.db", server.data_dir / "ampd.db-wal"
    whole = log.read_bytes()
    kept = database.rename(server.data_dir / "kept.db")
    check_start(context, 3, [str(database), "is damaged", "it is missing"], "--data-dir", server.data_dir, *LISTEN)
    assert log.read_bytes() == whole and not database.exists()
    kept.rename(database)
    server.start()
    assert [m.name for m in Api(server.channel).ListModels().models] == ["m"]


def test_a_database_from_before_its_log_is_refused(context):
    """As where it alone was brought back from a copy: pages that were written in between would be missing."""
    server = context.server()
    test_model = context.model("m", server)
    worker, database = test_model.worker(), server.data_dir / "ampd.db"
    copies = []
    for _ in range(2):
        for _ in range(400):
            worker.train({"w": [1.0] * 4})
        assert server.terminate() == 0  # the log is in the database
        copies.append(shutil.copy(database, context.folder()))
        server.start()
        test_model.reconnect()
        worker.join()
    worker.train({"w": [1.0] * 4})
    server.kill()
    log = server.data_dir / "ampd.db-wal"
    whole = log.read_bytes()
    shutil.copy(copies[0], database)
    check_start(context, 3, [str(database), "is damaged", "its log"], "--data-dir", server.data_dir, *LISTEN)
    assert log.read_bytes() == whole
    shutil.copy(copies[1], database)
    server.start()
    test_model.reconnect()
    assert [row.step for row in test_model.step_rows(page_size=1000)] == list(range(1, 801))


def test_damage_that_is_found_while_it_runs_ends_with_3(context):
    server, test_model, _, _ = trained(context)
    server.start()
    test_model.reconnect()
    database = server.data_dir / "ampd.db"
    with sqlite3.connect(database) as connection:  # a change by another hand: pages in memory count no more
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        connection.execute(f"PRAGMA user_version = {version}")
        connection.commit()
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    overwrite(database, 4096, b"\xa5" * (database.stat().st_size - 4096))
    test_model.api.start("DeleteModel", model=test_model.name, force=True)
    assert server.process.wait(60) == 3, server.log()[-1500:]
    assert "is damaged" in server.log() and "from a copy" in server.log(), server.log()[-1500:]
    server.close_channel()


# ---- a checkpoint directory that cannot be written ----

def test_a_checkpoint_directory_that_is_no_directory_or_below_none_is_refused(context):
    file = context.folder()
    file.write_text("a file")
    for path in (file, file / "below", context.folder() / "nowhere" / "deep"):
        check_start(context, 3, [str(path)], "--data-dir", context.folder(), "--checkpoint-dir", path, *LISTEN)


def as_nobody(context, *arguments):
    """ampd as a user for whom modes count: a copy, since the way to the programs may be closed to others."""
    command, program = [*ampd_testing.DIE_WITH_PARENT], shutil.copy(context.bin_dir / "ampd", context.folder())
    if os.geteuid() == 0:
        command += ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    done = subprocess.run([*command, program, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, timeout=60, encoding="utf-8")
    return done.returncode, done.stderr.splitlines()


def test_a_checkpoint_directory_that_cannot_be_written_is_noticed_at_the_start(context):
    folder, data = context.folder(), context.folder()
    folder.mkdir(mode=0o755)
    data.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(data, NOBODY, NOBODY)
        context.work.chmod(0o755)
    else:
        folder.chmod(0o555)
    code, lines = as_nobody(context, "--data-dir", data, "--checkpoint-dir", folder, *LISTEN)
    assert code == 3 and len(lines) == 1, (code, lines)
    assert str(folder) in lines[0] and "cannot be written" in lines[0] and "mounted" in lines[0], lines
    server = context.server("--checkpoint-dir", folder) if os.geteuid() == 0 else None
    assert server is None or [path.name for path in folder.iterdir()] == ["LOCK.shard-0-of-1"], "a file of the trial is left"


class OfNobody(ampd_testing.Server):
    """For which modes count, whoever runs the tests."""

    before = ("setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups") if os.geteuid() == 0 else ()


@contextlib.contextmanager
def of_nobody(context, *options):
    folder, data = context.folder(), context.folder()
    folder.mkdir()
    data.mkdir(mode=0o700)
    shutil.copy(context.bin_dir / "ampd", folder)
    if os.geteuid() == 0:
        os.chown(data, NOBODY, NOBODY)
        context.work.chmod(0o755)
    server = OfNobody(folder, data, *options)
    try:
        yield server
    finally:
        server.stop()


def test_a_file_of_the_store_that_another_user_has_ends_the_start_with_3(context):
    with of_nobody(context) as server:
        context.model("m", server).worker().train({"w": [1.0] * 4})
        server.kill()
        for name in ("ampd.db", "ampd.db-wal", "ampd.db-shm"):
            for mode in (0o400, 0):
                (server.data_dir / name).chmod(mode)
                code, lines = as_nobody(context, "--data-dir", server.data_dir, *LISTEN)
                said = f"cannot open {server.data_dir / name}: Permission denied; see that it belongs to ampd's user"
                assert code == 3 and lines[-1:] == [f"ampd: {said}"], (name, code, lines)
                (server.data_dir / name).chmod(0o600)
        server.start()


def test_a_directory_of_one_model_that_cannot_be_written_holds_that_model_alone(context):
    """As where files of it were brought back as root."""
    for durability, below in ((model.DURABILITY_CHECKPOINT, "checkpoints"), (model.DURABILITY_STEP, "journal/shard-0-of-1")):
        with of_nobody(context) as server:
            test_model = context.model("m", server, checkpoint_every=1, durability=durability)
            others, worker = context.model("other", server).worker(), test_model.worker()
            path = server.data_dir / "models" / "m" / below
            path.chmod(0o555)
            worker.pull()
            push = worker.start_push({"w": [1.0] * 4})
            text = eventually(lambda: test_model.api.GetStatus().trouble, "the directory is told")
            assert str(path) in text and "Permission denied" in text and "user" in text, text
            others.train({"w": [1.0] * 4})
            others.api.Checkpoint(model="other")
            assert test_model.status().durable_step == 0
            path.chmod(0o755)
            assert push.result().result.step == 1
            eventually(lambda: test_model.status().durable_step == 1, "the step is durable")
            assert test_model.api.GetStatus().trouble == ""
            assert server.terminate() == 0


def test_a_model_whose_journal_cannot_be_made_is_created_once_it_can(context):
    """It waits alone: the others train on, and one that waits can be deleted."""
    with of_nobody(context) as server:
        worker = context.model("m", server, durability=model.DURABILITY_STEP).worker()
        api = worker.api
        path = server.data_dir / "models"
        path.chmod(0o555)
        with ThreadPoolExecutor(1) as executor:
            creating = executor.submit(context.model, "other", server, durability=model.DURABILITY_STEP)
            text = eventually(lambda: api.GetStatus().trouble, "the directory is told")
            assert str(path) in text and "Permission denied" in text and "user" in text, text
            for _ in range(3):
                worker.train({"w": [1.0] * 4})
            api.DeleteModel(model="other")
            refused(creating.result, Code.NOT_FOUND, "MODEL_NOT_FOUND")
            assert [one.name for one in api.ListModels().models] == ["m"]
            creating = executor.submit(context.model, "other", server, durability=model.DURABILITY_STEP)
            eventually(lambda: api.GetStatus().trouble, "the directory is told again")
            path.chmod(0o755)
            creating.result(timeout=20).worker().train({"w": [1.0] * 4})
        assert server.terminate() == 0


def test_a_model_whose_directory_cannot_be_read_at_a_start_is_waited_for_alone(context):
    for durability in (model.DURABILITY_CHECKPOINT, model.DURABILITY_STEP):
        with of_nobody(context) as server:
            test_model = context.model("m", server, checkpoint_every=1, durability=durability)
            worker, others = test_model.worker(), context.model("other", server).worker()
            worker.train({"w": [1.0] * 4})
            eventually(lambda: test_model.status().durable_step == 1, "the step is durable")
            server.kill()
            path = server.data_dir / "models" / "m"
            path.chmod(0)
            server.start()
            test_model.reconnect()
            others.model.reconnect()
            others.join()
            others.train({"w": [1.0] * 4})
            assert test_model.status().recovering
            refused(worker.join, Code.UNAVAILABLE, "RECOVERING", ["may not be read by ampd's user"])
            path.chmod(0o700)
            eventually(lambda: not test_model.status().recovering, "the model is back")
            worker.join()
            worker.train({"w": [1.0] * 4})
            assert server.terminate() == 0


def test_a_read_only_mount_is_noticed_at_the_start(context):
    """In a mount namespace of its own; where that is not allowed, the mode says the same."""
    folder = context.folder()
    folder.mkdir()
    script = f'mount --bind "{folder}" "{folder}" && mount -o remount,bind,ro "{folder}" && exec "$@"'
    data = context.folder()
    unshare = ["unshare", "--mount", "--map-root-user", "sh", "-c"] if os.geteuid() != 0 else ["unshare", "--mount", "sh", "-c"]
    if subprocess.run([*unshare, script, "sh", "true"], stderr=subprocess.DEVNULL, check=False).returncode != 0:
        print("no mount namespace here")
        return
    done = subprocess.run([*unshare, script, "sh", pathlib.Path(context.bin_dir) / "ampd", "--data-dir", data,
                           "--checkpoint-dir", folder, *LISTEN], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, timeout=60, encoding="utf-8", check=False)
    assert done.returncode == 3 and "Read-only file system" in done.stderr and str(folder) in done.stderr, done


def test_a_checkpoint_directory_that_becomes_read_only_is_waited_for(context):
    """As where its file system was mounted again after an error: who uses no checkpoint goes on."""
    with small_disk(context.folder(), 8 * 1024) as disk:
        if disk is None:
            return
        server = context.server("--checkpoint-dir", disk)
        test_model = context.model("m", server, checkpoint_every=1)
        other, worker = context.model("other", server).worker(), test_model.worker()
        worker.train({"w": [1.0] * 4})
        eventually(lambda: test_model.status().durable_step == 1, "the step is durable")
        # Only the new mount is read-only: the old one has a file that is open for writing.
        over = [["mount", "--bind", disk, disk], ["mount", "-o", "remount,bind,ro", disk]]
        for command in over:
            subprocess.run(command, check=True)
        try:
            worker.train({"w": [1.0] * 4})
            text = eventually(lambda: test_model.api.GetStatus().trouble, "the directory is told")
            assert str(disk) in text and "Read-only file system; mount its disk for writing" in text, text
            other.train({"w": [1.0] * 4})
            assert test_model.status().durable_step == 1
        finally:
            subprocess.run(["umount", disk], check=True)
        eventually(lambda: test_model.status().durable_step == 2, "the step is durable")
        assert test_model.api.GetStatus().trouble == "" and server.terminate() == 0


def test_a_refusal_that_names_a_path_that_is_not_utf_8_has_its_details(context):
    folder = context.folder().with_name(os.fsdecode(b"caf\xe9"))
    file = folder / "models" / "m" / "checkpoints" / "step-0000000004" / "shard-0-of-1.safetensors"
    file.parent.mkdir(0o700, parents=True)
    file.touch()
    server = context.server("--checkpoint-dir", folder)
    refused(lambda: context.model("m", server), Code.FAILED_PRECONDITION, "CHECKPOINTS_EXIST", ["/caf? (models/m"])


if __name__ == "__main__":
    run(globals())
