#!/usr/bin/python3
"""The life of the process: kill -9 and restart, SIGTERM and drain, and starts that cannot succeed.

    test_server_restart.py BIN_DIR [NAME ...]
"""
import contextlib
import math
import os
import signal
import socket
import sqlite3
import subprocess
import time
from pathlib import Path

from ampd_testing import (CALL_TIMEOUT_S, DIE_WITH_PARENT, Code, HEALTH_SERVING, Api, OpenStream, Refusal, common,
                          eventually, foreign, found, grpc, load_messages, model, params, refused, run, scales,
                          start_and_fail, together)

APPLIED, OVERFLOW = common.VERDICT_APPLIED, common.VERDICT_SKIPPED_OVERFLOW
INF = math.inf


def momentum():
    """A model with a moment, exact arithmetic, and a scale that moves: all of its state is seen in later steps."""
    return {"optimizer": model.OptimizerSpec(kind=model.OPTIMIZER_KIND_SGD, learning_rate=0.5, momentum=0.5),
            "scaler": model.ScalerSpec(init_scale=1024.0, growth_interval=2), "cast_dtype": common.DTYPE_F32}


def gradient_of(step, rank=0):
    """Data as a function of the step number; step 4 overflows."""
    return {"w": [INF if step == 4 else float(step + rank), 1.0, -float(step), 0.5]}


def run_steps(worker, last, **fields):
    """Trains up to and with `last`; (step, verdict, norm, new scale) of each."""
    told = []
    while worker.step <= last:
        result = worker.train(gradient_of(worker.step), **fields)
        told.append((result.step, result.verdict, result.norm, result.new_scale))
    return told


def state_of(test_model):
    """Everything about the model that training depends on."""
    header, tensors = test_model.latest()
    record = test_model.api.GetScale(model=test_model.name).record
    record.scale_id = 0
    return header.version, tensors, record


def test_after_a_kill_training_goes_on_from_the_last_checkpoint(context):
    server = context.server()
    undisturbed = context.model("undisturbed", server, **momentum())
    told = run_steps(undisturbed.worker(), 9)
    expected = state_of(undisturbed)

    test_model = context.model("killed", server, checkpoint_every=3, **momentum())
    worker = test_model.worker()
    before = run_steps(worker, 8, user_state=b"")
    assert before == told[:8]
    eventually(lambda: test_model.status().durable_step == 6, "step 6 is durable")
    server.restart_after_kill()
    test_model.reconnect()
    status = test_model.status()
    assert (status.epoch, status.step, status.durable_step) == (2, 7, 6), status
    assert test_model.api.GetModel(model="killed").spec == test_model.spec
    old = worker.incarnation
    worker.join()
    assert (worker.epoch, worker.step, worker.rank, worker.joined.restored_step) == (2, 7, 0, 6), worker.joined
    assert worker.incarnation.fence > old.fence
    assert run_steps(worker, 9) == told[6:]
    assert state_of(test_model) == expected
    status = test_model.status()
    assert (status.base_epoch, status.base_step) == (1, 6), status


def test_forgiveness_that_was_spent_is_spent_after_a_restart(context):
    """The policies that forgive: the counter is in the checkpoint, so that the trace goes on as if nothing had been."""
    server = context.server()
    for policy, golden in ((common.SCALER_POLICY_MEGATRON, [64, 64, 64, 32, 16]),
                           (common.SCALER_POLICY_DEEPSPEED, [64, 64, 64, 32, 16]),
                           (common.SCALER_POLICY_PADDLE, [64, 64, 64, 32, 32])):
        test_model = context.model(f"forgiving-{policy}", server, checkpoint_every=3, scaler=model.ScalerSpec(
            policy=policy, init_scale=64.0, growth_interval=100))
        worker, got = test_model.worker(), []
        for step in range(1, 6):
            if step == 4:
                eventually(lambda m=test_model: m.status().durable_step == 3, "step 3 is durable")
                server.restart_after_kill()
                test_model.reconnect()
                worker.join()
                assert worker.step == 4 and test_model.api.GetScale(model=test_model.name).record.hysteresis_left == 1
            worker.pull()
            got.append(worker.push({"w": [INF if step >= 3 else 0.0] * 4}).new_scale)
        assert got == golden, (policy, got)


def test_the_history_keeps_what_was_rolled_back(context):
    server = context.server()
    test_model = context.model("history", server, checkpoint_every=3, **momentum())
    worker = test_model.worker()
    run_steps(worker, 5)
    eventually(lambda: test_model.status().durable_step == 3, "step 3 is durable")
    server.restart_after_kill()
    test_model.reconnect()
    worker.join()
    run_steps(worker, 6)
    standing = [(row.epoch, row.step) for row in test_model.step_rows()]
    assert standing == [(1, 1), (1, 2), (1, 3), (2, 4), (2, 5), (2, 6)], standing
    everything = test_model.step_rows(include_superseded=True)
    assert sorted((row.epoch, row.step, row.superseded) for row in everything) == \
        [(1, 1, False), (1, 2, False), (1, 3, False), (1, 4, True), (1, 5, True), (2, 4, False), (2, 5, False),
         (2, 6, False)]
    assert [(row.epoch, row.step) for row in test_model.step_rows(epoch=2)] == [(2, 4), (2, 5), (2, 6)]
    rows = [(row.epoch, row.step) for row in worker.api.ListOverflows(model="history").rows]
    assert rows == [(2, 4)], rows
    rows = worker.api.ListOverflows(model="history", include_superseded=True).rows
    assert sorted((row.epoch, row.step, row.superseded) for row in rows) == [(1, 4, True), (2, 4, False)]
    begins = [row for row in test_model.history(epoch=2) if row.kind == scales.HISTORY_KIND_EPOCH]
    assert [(row.parent_epoch, row.base_epoch, row.base_step, row.parent_step) for row in begins] == [(1, 1, 3, 5)], begins
    assert begins[0].step == 4 and begins[0].reason


def test_calls_of_the_older_epoch_are_aborted(context):
    server = context.server()
    test_model = context.model("epochs", server)
    worker = test_model.worker()
    worker.pull()
    old = worker.identity()
    server.restart_after_kill()
    test_model.reconnect()
    where = {"epoch": 2, "step": 1}
    answer = worker.api.KeepAlive(**old)
    assert (answer.epoch, answer.step, answer.incarnation_valid) == (2, 1, False), answer
    ones = worker.push_messages({"w": [1024.0] * 4})
    refused(lambda: worker.api.Push(ones), Code.ABORTED, metadata=where)
    refused(lambda: worker.pull(), Code.ABORTED, metadata=where)
    refused(lambda: worker.push_state(), Code.ABORTED, metadata=where)
    incarnation = worker.incarnation
    worker.join()
    refused(lambda: worker.push_state(incarnation=incarnation), Code.ABORTED, "FENCED", metadata=where)
    assert worker.pull(have_version=params.HeldVersion(epoch=1, version=0))[1] is not None
    assert worker.push({"w": [1024.0] * 4}).verdict == APPLIED


def test_blocks_of_the_older_life_do_not_count(context):
    server = context.server()
    test_model = context.model("staged", server)
    worker = test_model.worker()
    worker.pull()
    stream = OpenStream(worker.api, "Push", [worker.push_header(), *worker.blocks({"w": [INF] * 4})])
    eventually(lambda: worker.present() == {0}, "the block is present")
    server.kill()
    stream.end()
    server.start()
    test_model.reconnect()
    worker.join()
    assert worker.present() == set()
    assert worker.train({"w": [1.0] * 4}).verdict == APPLIED
    assert test_model.latest()[1]["w"] == (0.5, 1.5, 2.5, 3.5)


def test_user_state_of_the_restored_step_comes_back_with_join(context):
    server = context.server()
    test_model = context.model("state", server, world_size=2, checkpoint_every=2)
    workers = test_model.workers(2)
    assert [worker.joined.user_state for worker in workers] == [b"", b""]
    for step in (1, 2, 3):
        for worker in workers:
            worker.pull()
        calls = [worker.start_push({"w": [0.0] * 4}, user_state=b"%d of %s" % (step, worker.name.encode()) * 100)
                 for worker in workers]
        for call, worker in zip(calls, workers):
            worker.step = call.result().result.step + 1
    eventually(lambda: test_model.status().durable_step == 2, "step 2 is durable")
    server.restart_after_kill()
    test_model.reconnect()
    for worker in workers:
        worker.join()
        assert worker.joined.user_state == b"2 of %s" % worker.name.encode() * 100, worker.joined.user_state[:40]
        assert worker.joined.step == 3


def test_several_restarts_raise_the_epoch_and_keep_the_files(context):
    server = context.server()
    test_model = context.model("often", server, checkpoint_every=2, **momentum())
    worker = test_model.worker()
    seen = []
    for life in range(1, 5):
        assert (worker.epoch, worker.joined.epoch) == (life, life), worker.joined
        run_steps(worker, 2 * life + 1)
        eventually(lambda s=2 * life: test_model.status().durable_step == s, f"step {2 * life} is durable")
        seen.append((worker.incarnation.fence, worker.incarnation.counter))
        server.restart_after_kill()
        test_model.reconnect()
        worker.join()
        assert worker.step == 2 * life + 1
    assert seen == sorted(set(seen)), seen
    assert worker.api.GetStatus().fence == 5


def test_models_without_values_and_done_models_survive(context):
    server = context.server()
    empty = context.model("empty", server, load=False)
    done = context.model("done", server, max_steps=1)
    worker = done.worker()
    worker.train({"w": [1.0] * 4})
    eventually(lambda: done.status().state == common.MODEL_STATE_DONE and done.status().durable_step == 1, "it is DONE")
    half = context.model("half", server, load=False, parameters=[("w", [65536]), ("v", [4])])

    messages = list(load_messages(half.layout, "half", {"w": [1.0] * 65536, "v": [2.0] * 4}))
    stream = OpenStream(half.api, "Load", messages[:2])
    eventually(lambda: half.status().state == common.MODEL_STATE_LOADING, "a Load is under way")
    server.kill()
    stream.end()
    server.start()
    for test_model in (empty, done, half):
        test_model.reconnect()
    assert [m.name for m in empty.api.ListModels().models] == ["done", "empty", "half"]
    assert empty.status().state == half.status().state == common.MODEL_STATE_CREATED
    empty.load()
    assert empty.latest()[1]["w"] == (1.0, 2.0, 3.0, 4.0)
    assert not half.api.Load(messages).already_loaded
    assert done.status().state == common.MODEL_STATE_DONE
    assert done.latest()[1]["w"] == (0.5, 1.5, 2.5, 3.5)
    worker.join()
    refused(lambda: worker.api.Push(worker.push_messages({"w": [1024.0] * 4}, step=2)), Code.FAILED_PRECONDITION,
            "MODEL_DONE")


def test_a_damaged_checkpoint_is_passed_over_for_the_one_before(context):
    server = context.server()
    test_model = context.model("damaged", server, checkpoint_every=2, **momentum())
    worker = test_model.worker()
    told = run_steps(worker, 4)
    eventually(lambda: test_model.status().durable_step == 4, "step 4 is durable")
    server.kill()
    newest = found(server.data_dir, "models/damaged/**/*.safetensors")[-1]
    raw = bytearray(newest.read_bytes())
    raw[-3] ^= 0x10
    newest.write_bytes(raw)
    server.start()
    test_model.reconnect()
    worker.join()
    assert (worker.epoch, worker.step) == (2, 3), worker.joined
    assert run_steps(worker, 4) == told[2:]


def test_what_a_kill_cut_off_is_removed_at_the_start_whatever_its_step(context):
    server = context.server()
    for name in ("some", "none"):
        test_model = context.model(name, server, checkpoint_every=2, **momentum())
        run_steps(test_model.worker(), 2 if name == "some" else 1)
    eventually(lambda: found(server.data_dir, "models/some/**/*.safetensors"), "a checkpoint is there")
    server.kill()
    cut_off, complete = [], []
    for name in ("some", "none"):
        for step in (0, 7):
            folder = server.data_dir / "models" / name / "checkpoints" / f"step-{step:010}"
            folder.mkdir(parents=True, exist_ok=True)
            cut_off.append(folder / "shard-0-of-1.safetensors.tmp")
            complete.append(folder / "shard-0-of-1.safetensors")
            cut_off[-1].write_bytes(b"x")
    for path in complete[1:]:  # the first is older than the catalogue's and not in it
        path.write_bytes(b"x")
    server.start()
    assert not any(path.exists() for path in cut_off), cut_off
    assert all(path.exists() for path in complete[1:]), complete


def test_a_checkpoint_that_nothing_needs_and_that_cannot_be_removed_ends_nothing(context):
    server = context.server()
    test_model = context.model("kept", server, checkpoint_every=1, keep_last=2, **momentum())
    worker = test_model.worker()
    run_steps(worker, 2)
    eventually(lambda: test_model.status().durable_step == 2, "step 2 is durable")
    first = found(server.data_dir, "models/kept/**/*.safetensors")[-1]  # that of step 2
    first.unlink()
    first.mkdir()  # no file, so that it cannot be removed like one
    run_steps(worker, 5)
    eventually(lambda: "could not be removed; a start tries again once" in server.log(), "it is tried")
    run_steps(worker, 6)
    eventually(lambda: test_model.status().durable_step == 6, "training goes on")
    server.kill()
    server.start()
    test_model.reconnect()
    assert "could not be removed; remove it by hand" in server.log(), server.log()[-2000:]
    first.rmdir()


def checkpoint_of(test_model, worker, step):
    """Trains up to and with `step`, of which there is a checkpoint then."""
    run_steps(worker, step - 1)
    test_model.api.Checkpoint(model=test_model.name, no_wait=True)
    run_steps(worker, step)
    eventually(lambda: test_model.status().durable_step == step, f"step {step} is durable")


def test_a_void_checkpoint_that_cannot_be_removed_is_tried_by_the_start_that_finds_a_later_one(context):
    server = context.server()
    test_model = context.model("rolled", server, **momentum())
    worker = test_model.worker()
    checkpoint_of(test_model, worker, 2)
    checkpoint_of(test_model, worker, 4)
    void = server.data_dir / "models/rolled/checkpoints/step-0000000004/shard-0-of-1.safetensors"
    void.unlink()
    void.mkdir()  # no file, so that it cannot be removed like one
    test_model.api.Rollback(model="rolled", epoch=1, step=2)
    eventually(lambda: "could not be removed; a start tries again once there is a checkpoint of a later step" in server.log(),
               "it is tried")
    server.restart_after_kill()
    assert "remove it by hand" not in server.log(), "a start has tried without a later one"
    test_model.reconnect()
    eventually(lambda: not test_model.status().recovering, "the end of recovery")
    worker.join()
    checkpoint_of(test_model, worker, 6)
    server.restart_after_kill()
    assert "could not be removed; remove it by hand" in server.log(), server.log()[-2000:]
    void.rmdir()


def test_a_model_with_a_file_that_cannot_be_removed_is_deleted_and_ends_nothing(context):
    server = context.server()
    test_model = context.model("gone", server, checkpoint_every=1, keep_last=2, **momentum())
    worker = test_model.worker()
    run_steps(worker, 2)
    eventually(lambda: test_model.status().durable_step == 2, "step 2 is durable")
    eventually(lambda: len(found(server.data_dir, "models/gone/**/*.safetensors")) == 2, "that of step 0 is removed")
    first = found(server.data_dir, "models/gone/**/*.safetensors")[0]
    first.unlink()
    first.mkdir()  # no file, so that it cannot be removed like one
    worker.api.DeleteModel(model="gone", force=True)
    assert "could not be removed; remove it by hand" in server.log(), server.log()[-2000:]
    assert found(server.data_dir, "models/gone/**/*.safetensors") == [first]
    run_steps(context.model("other", server, **momentum()).worker(), 1)
    server.kill()
    server.start()
    first.rmdir()


# ---- drain ----

def test_sigterm_drains_and_a_restart_goes_on_with_the_next_step(context):
    server = context.server()
    undisturbed = context.model("undisturbed", server, **momentum())
    told = run_steps(undisturbed.worker(), 7)
    expected = state_of(undisturbed)
    test_model = context.model("drained", server, **momentum())  # a checkpoint every 100 steps: only the drain writes one
    worker = test_model.worker()
    assert run_steps(worker, 5) == told[:5]
    assert server.terminate() == 0, server.log()[-2000:]
    server.start()
    test_model.reconnect()
    worker.join()
    assert (worker.epoch, worker.step, worker.joined.restored_step) == (2, 6, 5), worker.joined
    assert run_steps(worker, 7) == told[5:]
    assert state_of(test_model) == expected
    assert [(row.epoch, row.step) for row in test_model.step_rows()] == [(1, s) for s in range(1, 6)] + [(2, 6), (2, 7)]


def test_calls_that_wait_are_told_of_the_drain(context):
    server = context.server()
    first, second = context.model("waits", server, world_size=2).workers(2)
    for worker in (first, second):
        worker.pull()
    alone = context.model("alone", server, world_size=2).worker("only")
    pushed = first.start_push({"w": [1024.0] * 4})
    eventually(lambda: first.push_state().complete, "the push is complete")
    ahead = first.start_push({"w": [1024.0] * 4}, step=2)
    pull = first.api.start("Pull", model="waits", epoch=1, step=2)
    barrier = first.api.start("Pull", model="alone", epoch=1, step=1)
    watch = first.api.start("WatchSteps", model="waits", from_step=1)
    first.api.GetScale(model="waits")  # what was sent before has arrived
    server.process.send_signal(signal.SIGTERM)
    for wait in (pushed.result, ahead.result, pull.all, barrier.all):
        refusal = refused(wait, Code.UNAVAILABLE, "DRAINING")
        assert refusal.retry_ms is not None and refusal.retry_ms > 0, refusal
    try:
        watch.all()
    except grpc.RpcError as error:
        assert error.code() == Code.UNAVAILABLE, error
    assert server.wait() == 0, server.log()[-2000:]
    server.start()
    for worker in (first, second):
        worker.model.reconnect()
        worker.join()
        assert (worker.epoch, worker.step) == (2, 1)
    for worker in (first, second):
        worker.pull()
    assert together([first, second], {"w": [1024.0] * 4})[0].verdict == APPLIED
    assert alone.model.reconnect().status().step == 1


def test_a_call_while_the_server_drains_is_unavailable(context):
    """Calls are made without pause around a SIGTERM: each gets its answer or UNAVAILABLE, and the server ends with 0."""
    server = context.server()
    worker = context.model("busy", server).worker()
    refusals, answers = [], 0
    for i in range(2000):
        if i == 50:
            server.process.send_signal(signal.SIGTERM)
        try:
            worker.api.GetScale(model="busy")
            answers += 1
        except grpc.RpcError as error:
            refusals.append(Refusal(error))
            if server.process.poll() is not None:
                break
    assert answers >= 50 and refusals and all(refusal.code == Code.UNAVAILABLE for refusal in refusals), \
        [str(refusal) for refusal in refusals[:3]]
    told = [refusal for refusal in refusals if refusal.status is not None]
    assert all(refusal.reason == "DRAINING" and refusal.retry_ms for refusal in told), [str(r) for r in told[:3]]
    assert server.wait() == 0, server.log()[-2000:]


def test_health_turns_before_the_server_ends(context):
    server = context.server()
    api = Api(server.channel)
    assert api.health() == HEALTH_SERVING
    watch = server.channel.unary_stream("/grpc.health.v1.Health/Watch", request_serializer=lambda m: m.SerializeToString(),
                                        response_deserializer=foreign.HealthCheckResponse.FromString)
    seen = watch(foreign.HealthCheckRequest(), timeout=20)
    assert next(seen).status == HEALTH_SERVING
    server.process.send_signal(signal.SIGTERM)
    assert next(seen).status != HEALTH_SERVING
    assert server.wait() == 0


def test_sigint_drains_too(context):
    server = context.server()
    server.process.send_signal(signal.SIGINT)
    assert server.wait() == 0


def test_a_start_that_waits_for_its_store_ends_at_once_at_a_signal(context):
    server = context.server()
    assert server.terminate() == 0
    with contextlib.closing(sqlite3.connect(server.data_dir / "ampd.db", isolation_level=None)) as held:
        held.execute("PRAGMA locking_mode=EXCLUSIVE")
        held.execute("BEGIN EXCLUSIVE")
        for number in (signal.SIGINT, signal.SIGTERM):
            with subprocess.Popen([*DIE_WITH_PARENT, context.bin_dir / "ampd", "--data-dir", server.data_dir, "--listen",
                                   "127.0.0.1:0"], stderr=subprocess.PIPE, encoding="utf-8") as process:
                opened = Path(f"/proc/{process.pid}/fd")
                eventually(lambda: any("ampd.db" in str(one.resolve()) for one in opened.iterdir()), "the store is opened")
                process.send_signal(number)
                assert process.wait(CALL_TIMEOUT_S) == 0
                assert process.stderr.read() == "ampd: signal, ending before it has begun to serve\n"
    assert server.start().terminate() == 0


# ---- starts that cannot succeed ----

def check_start(context, code, words, *arguments):
    """One line on stderr that holds the words, and the exit code."""
    got, lines = start_and_fail(context.bin_dir, *arguments)
    assert got == code, f"exit code {got}, not {code}: {lines}"
    assert len(lines) == 1, f"{len(lines)} lines on stderr: {lines}"
    for word in words:
        assert word in lines[0], f"{word!r} is not in {lines[0]!r}"


def test_a_second_server_on_a_data_directory_names_the_first(context):
    server = context.server()
    check_start(context, 3, [str(server.process.pid), str(server.data_dir)], "--data-dir", server.data_dir, "--listen",
                "127.0.0.1:0")
    assert Api(server.channel).health() == HEALTH_SERVING


def test_a_bad_flag_is_a_usage_error(context):
    folder = context.folder()
    for arguments in (["--no-such-flag"], ["--data-dir", folder, "--listen", "nonsense"],
                      ["--data-dir", folder, "--listen", "127.0.0.1:99999"], ["--data-dir", folder, "stray"],
                      ["--data-dir"], []):
        check_start(context, 2, [], *arguments)
    assert not folder.exists()


def test_a_used_port_is_a_failure_that_names_it(context):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        check_start(context, 1, [str(port)], "--data-dir", context.folder(), "--listen", f"127.0.0.1:{port}")


def test_listening_beyond_loopback_needs_to_be_asked_for(context):
    code, lines = start_and_fail(context.bin_dir, "--data-dir", context.folder(), "--listen", "0.0.0.0:0")
    assert code in (1, 2) and len(lines) == 1 and "--insecure" in lines[0], (code, lines)


def test_newer_formats_are_refused_and_left_alone(context):
    server = context.server()
    context.model("kept", server)
    assert server.terminate() == 0
    database = next(server.data_dir.glob("*.db"))
    listen = ["--data-dir", server.data_dir, "--listen", "127.0.0.1:0"]
    with sqlite3.connect(database) as connection:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        connection.execute(f"PRAGMA user_version = {version + 1}")
    connection.close()
    check_start(context, 3, [str(version + 1)], *listen)
    with sqlite3.connect(database) as connection:
        assert connection.execute("PRAGMA user_version").fetchone()[0] == version + 1
        connection.execute(f"PRAGMA user_version = {version}")
    connection.close()
    marker = server.data_dir / "VERSION"
    text = marker.read_text()
    marker.write_text("9\n")
    check_start(context, 3, ["9"], *listen)
    marker.write_text(text)
    server.start()
    assert [m.name for m in Api(server.channel).ListModels().models] == ["kept"]


def test_a_data_directory_that_cannot_be_used_is_refused(context):
    blocked = context.folder()
    blocked.write_text("a file")
    check_start(context, 3, [str(blocked)], "--data-dir", blocked, "--listen", "127.0.0.1:0")
    check_start(context, 3, ["nowhere"], "--data-dir", context.folder() / "nowhere" / "deep", "--listen", "127.0.0.1:0")


def test_a_unix_socket_in_a_directory_that_is_not_there_is_refused(context):
    socket = context.folder() / "nowhere" / "socket"
    check_start(context, 1, [f"unix:{socket}: no such file or directory; make the directory"], "--data-dir",
                context.folder(), "--listen", f"unix:{socket}")


def test_a_lock_goes_with_its_process(context):
    server = context.server()
    pid = server.process.pid
    server.kill()
    assert not os.path.exists(f"/proc/{pid}")
    server.start()
    began = time.monotonic()
    assert Api(server.channel).GetStatus().uptime_ms <= (time.monotonic() - began) * 1000 + 60000


if __name__ == "__main__":
    run(globals())
