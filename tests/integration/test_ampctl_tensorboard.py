#!/usr/bin/python3
"""ampctl tensorboard against a real ampd: its event files are read back by a parser of this file's own, made by protoc
from the schema that TensorFlow publishes (tensorflow/core/util/event.proto and what it needs), and compared with the
history.

    test_ampctl_tensorboard.py BIN_DIR [NAME ...]
"""
import importlib
import json
import math
import os
import pathlib
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading

import ampd_testing
from ampd_testing import CALL_TIMEOUT_S, common, crc32c, eventually, f32, params, run
from test_server_shards import WORLD, Cluster, Job

# The fields that any reader needs, with TensorFlow's numbers.
SCHEMA = """
syntax = "proto3";
package tensorflow;
message SessionLog {
  enum SessionStatus { STATUS_UNSPECIFIED = 0; START = 1; STOP = 2; CHECKPOINT = 3; }
  SessionStatus status = 1;
}
message TensorShapeProto { message Dim { int64 size = 1; string name = 2; } repeated Dim dim = 2; }
message TensorProto { int32 dtype = 1; TensorShapeProto tensor_shape = 2; repeated bytes string_val = 8; }
message SummaryMetadata {
  message PluginData { string plugin_name = 1; bytes content = 2; }
  PluginData plugin_data = 1;
}
message Summary {
  message Value {
    string tag = 1;
    oneof value { float simple_value = 2; TensorProto tensor = 8; }
    SummaryMetadata metadata = 9;
  }
  repeated Value value = 1;
}
message Event {
  double wall_time = 1;
  int64 step = 2;
  oneof what { string file_version = 3; Summary summary = 5; SessionLog session_log = 7; }
}
"""
DT_STRING = 7
TIMES = ("apply", "pull", "wait", "push", "vote")
INF = math.inf


def load_schema():
    with tempfile.TemporaryDirectory(prefix="tfevents-") as folder:
        (pathlib.Path(folder) / "tfevents.proto").write_text(SCHEMA)
        subprocess.run(["protoc", f"-I{folder}", f"--python_out={folder}", "tfevents.proto"], check=True, timeout=60)
        sys.path.insert(0, folder)
        return importlib.import_module("tfevents_pb2")


tfevents = load_schema()


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(path):
    """The events of a file; what is cut off at its end is left out, as TensorBoard does."""
    data, at = path.read_bytes(), 0
    while len(data) - at >= 12:
        size, crc = struct.unpack_from("<QI", data, at)
        assert crc == masked(data[at:at + 8]), f"{path}: the checksum of a length, at {at}"
        if len(data) - at < size + 16:
            return
        event = data[at + 12:at + 12 + size]
        assert struct.unpack_from("<I", data, at + 12 + size)[0] == masked(event), f"{path}: a checksum, at {at}"
        yield tfevents.Event.FromString(event)
        at += size + 16


def shown(folder):
    """tag -> step -> (value, wall_time), as TensorBoard has it: files by name; a START drops what was at its step or
    later."""
    tags = {}
    for path in sorted(folder.glob("*tfevents*")):
        events = list(records(path))
        assert not events or events[0].file_version == "brain.Event:2", path
        for event in events[1:]:
            assert event.WhichOneof("what") in ("summary", "session_log") and event.wall_time > 1.7e9, event
            if event.session_log.status == tfevents.SessionLog.START:
                for steps in tags.values():
                    for step in [step for step in steps if step >= event.step]:
                        del steps[step]
            for value in event.summary.value:
                steps = tags.setdefault(value.tag, {})
                assert event.step not in steps, f"{value.tag} has step {event.step} twice"
                if value.WhichOneof("value") == "tensor":
                    assert value.tensor.dtype == DT_STRING and value.metadata.plugin_data.plugin_name == "text", value
                    assert [dim.size for dim in value.tensor.tensor_shape.dim] == [1], value
                    steps[event.step] = (value.tensor.string_val[0].decode(), event.wall_time)
                else:
                    steps[event.step] = (value.simple_value, event.wall_time)
    return tags


def check(folder, test_model):
    """Every step that stands, each of its scalars, and nothing else."""
    tags, rows = shown(folder), test_model.step_rows(page_size=1000)
    applied = [row for row in rows if row.verdict == common.VERDICT_APPLIED]
    skipped = [row for row in rows if row.verdict != common.VERDICT_APPLIED]

    def expected(chosen, value):
        return {row.step: (f32(value(row)), row.decide_time.ToMicroseconds() / 1e6) for row in chosen}

    assert tags["ampd/scale"] == expected(rows, lambda row: row.old_scale), tags["ampd/scale"]
    assert tags["ampd/epoch"] == expected(rows, lambda row: row.epoch)
    assert tags["ampd/skipped"] == expected(rows, lambda row: row.verdict != common.VERDICT_APPLIED)
    for tag, value in (("ampd/norm", lambda row: row.norm), ("ampd/clip", lambda row: row.clip_coefficient),
                       ("ampd/learning_rate", lambda row: row.learning_rate)):
        assert tags.get(tag, {}) == expected(applied, value), (tag, tags.get(tag))
    timed = [row for row in rows if row.HasField("times")]
    for part in TIMES:
        wanted = expected(timed, lambda row, part=part: getattr(row.times, f"{part}_us") / 1e6)
        assert tags.get(f"ampd/time/{part}", {}) == wanted, part
    assert tags.get("ampd/loss", {}) == expected([row for row in rows if row.HasField("loss")], lambda row: row.loss)
    metrics = {metric.name for row in rows for metric in row.metrics}
    for name in metrics:
        wanted = {row.step: metric.value for row in rows for metric in row.metrics if metric.name == name}
        assert {step: value for step, (value, _) in tags[f"ampd/metrics/{name}"].items()} == wanted, (name, wanted)
    told = tags.get("ampd/explanation", {})
    assert sorted(told) == [row.step for row in skipped]
    for step, (text, _) in told.items():
        assert text == test_model.api.ExplainStep(model=test_model.name, step=step).explanation
    assert set(tags) <= {"ampd/model", "ampd/epoch", "ampd/scale", "ampd/skipped", "ampd/norm", "ampd/clip",
                         "ampd/learning_rate", "ampd/loss", "ampd/explanation",
                         *(f"ampd/time/{part}" for part in TIMES),
                         *(f"ampd/metrics/{name}" for name in metrics)}, sorted(tags)
    return rows


def command(context, test_model, folder, *options, endpoint=None):
    return [context.bin_dir / "ampctl", "--endpoint", endpoint or f"127.0.0.1:{test_model.server.port}", "-o", "json",
            "tensorboard", test_model.name, "--logdir", folder, *options]


def write(context, test_model, folder, *options, code=0, endpoint=None):
    """What the command says, on stdout as an object; on stderr where it fails."""
    done = subprocess.run(command(context, test_model, folder, *options, endpoint=endpoint), stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, encoding="utf-8", timeout=CALL_TIMEOUT_S, check=False,
                          env=dict(os.environ, LC_ALL="C.UTF-8"))
    assert done.returncode == code, f"exit code {done.returncode}\n{done.stdout}{done.stderr}"
    return json.loads(done.stdout) if code == 0 else done.stderr


def has_steps(folder, count):
    return folder.exists() and len(shown(folder).get("ampd/scale", ())) == count


def steps(worker, *values):
    for value in values:
        worker.pull()
        worker.push({"w": [value] * 4})


def test_every_scalar_is_that_of_the_history_and_a_skipped_step_is_explained(context):
    test_model = context.model()
    folder = context.work / "every"
    steps(test_model.worker(), 1.0, INF, 0.3, INF, INF, 7.0)
    said = write(context, test_model, folder)
    assert said == {"model": test_model.name, "written": 6, "step": 6}, said
    check(folder, test_model)
    assert "Inf" in shown(folder)["ampd/explanation"][2][0]
    text = shown(folder)["ampd/model"][0][0]
    assert re.fullmatch(re.escape(test_model.name) + r", created 20\d\d-\d\d-\d\dT[\d:.]+Z", text), text


def test_what_workers_tell_of_a_step_is_drawn_where_they_told_it(context):
    test_model = context.model()
    worker = test_model.worker()
    for value, loss, metrics in ((1.0, 2.5, {"acc": 0.25}), (INF, INF, {}), (0.5, None, {"acc": 0.5, "top 5": 0.75})):
        worker.pull()
        trailer = params.PushTrailer(metrics=[common.Metric(name=name, value=told) for name, told in metrics.items()])
        if loss is not None:
            trailer.loss = loss
        messages = [worker.push_header(), *worker.blocks({"w": [value] * 4}), params.PushRequest(trailer=trailer)]
        worker.step = worker.api.start("Push", messages).result().result.step + 1
    folder = context.work / "told"
    write(context, test_model, folder)
    check(folder, test_model)
    tags = shown(folder)
    assert {step: value for step, (value, _) in tags["ampd/loss"].items()} == {1: 2.5, 2: INF}
    assert {step: value for step, (value, _) in tags["ampd/metrics/top 5"].items()} == {3: 0.75}


def test_a_second_run_goes_on_behind_the_first(context):
    test_model = context.model()
    folder = context.work / "second"
    worker = test_model.worker()
    assert write(context, test_model, folder)["written"] == 0
    steps(worker, 1.0, INF)
    assert write(context, test_model, folder)["written"] == 2
    assert write(context, test_model, folder)["written"] == 0
    assert len(list(folder.iterdir())) == 2, "a run without a step makes no file"
    steps(worker, 0.5, INF, 0.25)
    assert write(context, test_model, folder) == {"model": test_model.name, "written": 3, "step": 5}
    check(folder, test_model)


def test_the_folders_above_are_made(context):
    test_model = context.model()
    steps(test_model.worker(), 1.0)
    folder = context.work / "above" / "and" / "folder"
    assert write(context, test_model, folder)["written"] == 1
    assert len(list(folder.iterdir())) == 1
    assert write(context, test_model, f"{folder}//deeper/")["written"] == 1, "slashes too many do no harm"


def test_a_run_that_was_cut_off_at_any_byte_is_gone_on_behind(context):
    test_model = context.model()
    folder = context.work / "cut"
    steps(test_model.worker(), 1.0, INF, 2.0)
    write(context, test_model, folder)
    [first] = folder.glob("*tfevents*")
    whole = first.read_bytes()
    for size in sorted({0, 5, 12, 20, len(whole) // 3, len(whole) // 2, len(whole) - 50, len(whole) - 1}):
        for other in folder.glob("*tfevents*"):
            other.unlink()
        first.write_bytes(whole[:size])
        write(context, test_model, folder)
        check(folder, test_model)


def test_a_rollback_drops_the_steps_that_came_to_nothing(context):
    test_model = context.model()
    folder = context.work / "rolled"
    worker = test_model.worker()
    steps(worker, 1.0, 2.0)
    test_model.api.Checkpoint(model=test_model.name, no_wait=True)
    steps(worker, 3.0)
    eventually(lambda: test_model.api.ListCheckpoints(model=test_model.name).checkpoints[0].step == 3, "a checkpoint")
    steps(worker, INF, INF, 4.0)
    write(context, test_model, folder)
    rolled = test_model.api.Rollback(model=test_model.name, epoch=1, step=3)
    said = write(context, test_model, folder)
    assert (said["written"], said["step"]) == (0, 3), said
    check(folder, test_model)
    worker.join()
    assert (worker.epoch, worker.step) == (rolled.epoch, 4)
    steps(worker, 5.0, INF)
    assert write(context, test_model, folder)["written"] == 2
    rows = check(folder, test_model)
    assert [row.epoch for row in rows] == [1, 1, 1, 2, 2], rows
    test_model.api.Rollback(model=test_model.name, epoch=1, step=3)
    worker.join()
    steps(worker, *[1.0] * 5)  # beyond what the folder has, before it is looked at again
    assert write(context, test_model, folder)["written"] == 5
    assert [row.epoch for row in check(folder, test_model)] == [1, 1, 1, 3, 3, 3, 3, 3]


def test_follow_writes_each_step_until_the_model_is_done(context):
    test_model = context.model(max_steps=6)
    folder = context.work / "follow"
    worker = test_model.worker()
    steps(worker, 1.0)
    follow = command(context, test_model, folder, "--follow")
    with subprocess.Popen(follow, stdout=subprocess.PIPE, encoding="utf-8") as follower:
        killer = threading.Timer(CALL_TIMEOUT_S, follower.kill)
        killer.start()
        for count, value in ((1, None), (2, INF), (3, 2.0), (4, INF)):
            if value is not None:
                steps(worker, value)
            eventually(lambda wanted=count: has_steps(folder, wanted), f"step {count}")
        steps(worker, 3.0, 4.0)
        said = json.loads(follower.communicate(timeout=CALL_TIMEOUT_S)[0])
        killer.cancel()
    assert follower.returncode == 0 and said["step"] == 6, said
    check(folder, test_model)


def test_follow_ends_where_the_model_is_made_again_and_mixes_no_steps(context):
    first = context.model("again", max_steps=6)
    folder = context.work / "again"
    steps(first.worker(), 1.0, INF)
    with subprocess.Popen(command(context, first, folder, "--follow"), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          encoding="utf-8") as follower:
        killer = threading.Timer(CALL_TIMEOUT_S, follower.kill)
        killer.start()
        eventually(lambda: has_steps(folder, 2), "two steps")
        os.kill(follower.pid, signal.SIGSTOP)  # so that both happen between two looks
        first.api.DeleteModel(model="again", force=True)
        steps(context.model("again", max_steps=6).worker(), *[1.0] * 6)
        os.kill(follower.pid, signal.SIGCONT)
        _, said = follower.communicate(timeout=CALL_TIMEOUT_S)
        killer.cancel()
    assert follower.returncode == 1 and "has the events of again, created" in said, (follower.returncode, said)
    assert has_steps(folder, 2), "a step of another model was written"


def socket_of(server):
    """The port of a restarted server is another one: the socket in its folder is not."""
    return f"unix:{server.data_dir / 'ampd.sock'}"


def test_follow_goes_on_after_the_server_was_killed(context):
    server = context.server()
    test_model = context.model("follow-restart", server, max_steps=4, durability=ampd_testing.model.DURABILITY_STEP)
    folder = context.work / "restart"
    worker = test_model.worker()
    steps(worker, 1.0, INF)
    follow = command(context, test_model, folder, "--follow", endpoint=socket_of(server))
    with subprocess.Popen(follow, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8") as follower:
        killer = threading.Timer(CALL_TIMEOUT_S, follower.kill)
        killer.start()
        eventually(lambda: has_steps(folder, 2), "two steps")
        server.kill()
        assert "tensorboard:" in follower.stderr.readline()
        server.start()
        test_model.reconnect()
        eventually(lambda: not test_model.status().recovering, "the end of recovery")
        worker.join()
        steps(worker, 2.0, 3.0)
        said, more = follower.communicate(timeout=CALL_TIMEOUT_S)
        killer.cancel()
    assert follower.returncode == 0 and json.loads(said)["step"] == 4 and more == "", (said, more)
    check(folder, test_model)


def test_follow_says_why_it_ends_after_the_server_was_away(context):
    server = context.server()
    test_model = context.model("lost", server)
    folder = context.work / "lost"
    steps(test_model.worker(), 1.0)
    follow = command(context, test_model, folder, "--follow", endpoint=socket_of(server))
    with subprocess.Popen(follow, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8") as follower:
        killer = threading.Timer(CALL_TIMEOUT_S, follower.kill)
        killer.start()
        eventually(lambda: has_steps(folder, 1), "a step")
        server.kill()
        assert "tensorboard:" in follower.stderr.readline()
        shutil.rmtree(server.data_dir)
        server.start()
        _, said = follower.communicate(timeout=CALL_TIMEOUT_S)
        killer.cancel()
    assert follower.returncode == 69 and said.startswith("ampctl: tensorboard: model: there is none named lost"), \
        (follower.returncode, said)


def test_any_shard_goes_on_with_the_folder_of_another(context):
    cluster = Cluster(context, 2)
    job = Job(cluster, "spread")
    folder = context.work / "spread"
    workers = [job.join(rank) for rank in range(WORLD)]
    written = []
    for last, endpoint in ((2, cluster.addresses[0]), (4, cluster.addresses[1]), (6, cluster.addresses[0])):
        job.train(workers, last - 1, last)

        def reached(last=last, endpoint=endpoint):
            said = write(context, job, folder, endpoint=endpoint)
            written.append(said["written"])
            return said["step"] == last

        eventually(reached, f"step {last} is written")
    assert sum(written) == 6 and has_steps(folder, 6), written


def test_a_folder_that_cannot_be_gone_on_with_says_why(context):
    test_model, other = context.model(), context.model()
    steps(test_model.worker(), 1.0)
    folder = context.work / "refused"
    write(context, test_model, folder)
    error = write(context, other, folder, code=1)
    assert f"has the events of {test_model.name}, created" in error and "give another folder" in error, error
    [file] = folder.glob("*tfevents*")
    data = bytearray(file.read_bytes())
    data[20] ^= 1
    file.write_bytes(data)
    assert f"{file.name} is damaged at byte 0; move it away" in write(context, test_model, folder, code=1)
    file.unlink()
    foreign = folder / "events.out.tfevents.1700000000.host"
    foreign.write_bytes(b"")
    assert "is another program's; give a folder of its own" in write(context, test_model, folder, code=1)
    foreign.unlink()
    file.write_bytes(b"\0" * 100)
    assert "is damaged at byte 0" in write(context, test_model, folder, code=1)
    in_the_way = context.work / "in-the-way"
    in_the_way.write_bytes(b"")
    error = write(context, test_model, in_the_way / "such" / "runs", code=1)
    assert f"{in_the_way}/such cannot be made: " in error and error.count("\n") == 1, error
    assert "too long" in write(context, test_model, "a/" * 3000, code=1)
    bare = subprocess.run([context.bin_dir / "ampctl", "tensorboard", "m"], stderr=subprocess.PIPE, encoding="utf-8",
                          timeout=60, check=False)
    assert bare.returncode == 2 and "--logdir is missing" in bare.stderr, bare.stderr


def test_a_folder_that_cannot_be_listed_does_not_count_as_empty(context):
    """Its steps would be written once more."""
    test_model = context.model()
    steps(test_model.worker(), 1.0)
    folder = context.work / "unlisted"
    write(context, test_model, folder)
    shim = context.bin_dir.parent / "tests" / "integration" / "libfailing_readdir.so"
    done = subprocess.run(["/usr/bin/env", f"LD_PRELOAD={shim}", *command(context, test_model, folder)],
                          capture_output=True, encoding="utf-8", timeout=CALL_TIMEOUT_S, check=False)
    assert done.returncode == 1 and f"{folder} cannot be read: " in done.stderr, done
    assert has_steps(folder, 1)


def test_two_at_once_do_not_write_to_one_folder(context):
    test_model = context.model()
    worker = test_model.worker()
    steps(worker, 1.0)
    folder = context.work / "locked"
    with subprocess.Popen(command(context, test_model, folder, "--follow"), stdout=subprocess.DEVNULL) as follower:
        eventually(lambda: has_steps(folder, 1), "the first step")
        assert "another ampctl writes to" in write(context, test_model, folder, code=1)
        follower.kill()


def test_steps_whose_rows_limits_have_removed_stay_and_the_next_run_goes_on_behind_them(context):
    server = context.server("--history-rows", "3")
    test_model = context.model("kept", server, checkpoint_every=2)
    folder = context.work / "trimmed"
    worker = test_model.worker()
    steps(worker, 1.0, 0.5)
    assert write(context, test_model, folder)["written"] == 2
    steps(worker, *[0.25] * 8)
    eventually(lambda: test_model.step_rows()[0].step > 3, "the first rows are removed")
    assert write(context, test_model, folder)["step"] == 10
    drawn = sorted(shown(folder)["ampd/scale"])
    assert drawn[:2] == [1, 2] and drawn[2] > 3 and drawn[2:] == list(range(drawn[2], 11)), drawn


def test_a_rollback_behind_what_limits_have_removed_drops_the_steps_that_came_to_nothing_alone(context):
    """Whether the step that the folder ends with has no row, that of another epoch, or one that was removed since."""
    server = context.server("--history-rows", "3")
    for name, more in (("none", 0), ("other", 8), ("removed", 14)):
        test_model = context.model(name, server, checkpoint_every=4, keep_last=10)
        folder = context.work / f"behind-{name}"
        worker = test_model.worker()
        for _ in range(5):
            steps(worker, 1.0, 0.5)
            write(context, test_model, folder)
        assert has_steps(folder, 10)
        eventually(lambda model=test_model: model.step_rows()[0].step > 4, "the first rows are removed")
        eventually(lambda model=test_model: any(checkpoint.step == 4 for checkpoint in model.api.ListCheckpoints(
            model=model.name).checkpoints), "a checkpoint")
        test_model.api.Rollback(model=name, epoch=1, step=4)
        worker.join()
        steps(worker, *[0.25] * more)
        end = 4 + more
        if more > 0:
            eventually(lambda model=test_model, end=end: model.step_rows()[0].step == end - 2, "rows are removed")
        assert write(context, test_model, folder)["step"] == end
        left = [*range(1, 5), *(range(end - 2, end + 1) if more > 0 else ())]
        assert sorted(shown(folder)["ampd/scale"]) == left, (name, sorted(shown(folder)["ampd/scale"]))
        assert write(context, test_model, folder)["written"] == 0
        steps(worker, 1.0)
        assert write(context, test_model, folder)["written"] == 1


def test_steps_stay_where_limits_have_removed_all_rows(context):
    server = context.server("--history-age", f"{5 * ampd_testing.PATIENCE}s")
    test_model = context.model("aged", server, checkpoint_every=2)
    folder = context.work / "aged"
    worker = test_model.worker()
    steps(worker, 1.0, 0.5)
    assert write(context, test_model, folder)["written"] == 2
    eventually(lambda: test_model.status().durable_step == 2, "step 2 is durable")
    server.restart_after_kill()  # the newest row is kept: now it is that of an epoch
    test_model.reconnect()
    eventually(lambda: not test_model.step_rows(), "all rows of steps are removed")
    assert write(context, test_model, folder) == {"model": "aged", "written": 0, "step": 2}
    worker.join()
    steps(worker, 0.25)
    assert write(context, test_model, folder)["written"] == 1
    assert sorted(shown(folder)["ampd/scale"]) == [1, 2, 3]


def test_a_history_of_several_pages_is_whole(context):
    test_model = context.model()
    folder = context.work / "pages"
    worker = test_model.worker()
    for number in range(1100):
        steps(worker, 0.001 * number)
    assert write(context, test_model, folder)["written"] == 1100
    tags = shown(folder)
    assert sorted(tags["ampd/norm"]) == list(range(1, 1101))


if __name__ == "__main__":
    run(globals())
