#!/usr/bin/python3
"""What the server tells of its past, and what an operator asks of it: ExplainStep, ReplayPolicy, ListCheckpoints, pages past
the end, Drain, SetLogLevel, watches that end, ranks that are missing, a full disk.

    test_server_history.py BIN_DIR [NAME ...]
"""
import math
import signal
import threading

from ampd_testing import (Api, Code, admin, common, eventually, found, model, one, refused, run, spec, together)
from small_disk import fill_disk, small_disk
from test_server_shards import Cluster, Job

APPLIED, OVERFLOW = common.VERDICT_APPLIED, common.VERDICT_SKIPPED_OVERFLOW
INF, NAN = math.inf, math.nan
SMALL_DISK_KIB = 640   # the store's files when they are new take half of it


def train(worker, verdicts):
    """A step for each character: '.' is applied, 'X' overflows."""
    for verdict in verdicts:
        worker.pull()
        worker.push({"w": [INF if verdict == "X" else 0.0] * 4})


# ---- ExplainStep ----

def test_explain_names_worker_parameter_kind_and_place(context):
    first, second = context.model(world_size=2, parameters=[("a", [4]), ("b", [8])]).workers(2)
    for worker in (first, second):
        worker.pull()
    clean = {"a": [0.0] * 4, "b": [0.0] * 8}
    together([first, second], [clean, {"a": [0.0] * 4, "b": [1.0, 512.0, INF, 2.0, NAN, -INF, 0.0, 0.0]}])
    for worker in (first, second):
        worker.pull()
    together([first, second], [clean, clean])
    name, api = first.model.name, first.api
    told = api.ExplainStep(model=name, step=1)
    assert (told.row.epoch, told.row.step, told.row.verdict, told.row.old_scale, told.row.record.scale) == \
        (1, 1, OVERFLOW, 1024.0, 512.0), told
    assert [(c.rank, c.worker_name, c.weight, c.incarnation.counter > 0) for c in told.contributors] == \
        [(0, "w0", 1.0, True), (1, "w1", 1.0, True)]
    row, = told.overflows
    assert (row.parameter, row.parameter_index, row.source, row.rank, row.worker_name, row.inf_count, row.nan_count,
            row.first_index, row.largest_finite) == ("b", 1, common.OVERFLOW_SOURCE_WORKER, 1, "w1", 2, 1, 2, 512.0), row
    assert row.decide_time == told.row.decide_time and row.decide_time.nanos % 1000 == 0
    assert (told.overflow_totals.rows, told.overflow_totals.inf_count, told.overflow_totals.nan_count) == (1, 2, 1)
    for words in ("worker w1 (rank 1)", "2 Inf and 1 NaN in b", "index 2", "512", "shrank from 1024 to 512"):
        assert words in told.explanation, (words, told.explanation)
    clean_step = api.ExplainStep(model=name, epoch=1, step=2)
    assert clean_step.row.verdict == APPLIED and not clean_step.overflows and not clean_step.HasField("overflow_totals")
    assert "was applied" in clean_step.explanation and "stayed at 512" in clean_step.explanation


def test_who_has_taken_a_rank_since_is_not_blamed(context):
    server = context.server()
    test_model = context.model("m", server, world_size=2, durability=model.DURABILITY_STEP)
    first, second = test_model.workers(2)
    for worker in (first, second):
        worker.pull()
    result = together([first, second], [{"w": [1.0] * 4}, {"w": [INF] * 4}])[0]
    assert [row.worker_name for row in result.overflows] == ["w1"], result

    def named():
        told = test_model.api.ExplainStep(model="m", step=1)
        listed = test_model.api.ListOverflows(model="m").rows
        watched = test_model.api.start("WatchSteps", model="m", from_step=1)
        rows = watched.next().overflows
        watched.cancel()
        assert [row.worker_name for row in rows] == [row.worker_name for row in told.overflows], (rows, told)
        assert [row.worker_name for row in rows] == [row.worker_name for row in listed], (rows, listed)
        return [each.worker_name for each in told.contributors], [row.worker_name for row in rows], told.explanation

    second.join()  # the same worker, under a new incarnation
    assert named()[:2] == (["w0", "w1"], ["w1"]), named()
    server.kill()
    server.start()
    test_model.reconnect()
    eventually(lambda: not test_model.status().recovering, "the end of recovery")
    assert named()[:2] == (["w0", ""], [""]), named()  # of the incarnation before the one that is stored
    first.join()
    assert named()[:2] == (["w0", ""], [""]), named()
    test_model.api.EvictWorker(model="m", rank=0)
    test_model.worker("innocent", rank=0)
    assert named()[:2] == (["", ""], [""]) and "innocent" not in named()[2], named()


def test_steps_that_are_not_there_are_told_from_those_to_come(context):
    worker = one(context)
    train(worker, "..")
    name, api = worker.model.name, worker.api
    refused(lambda: api.ExplainStep(model=name, step=3), Code.OUT_OF_RANGE, "STEP_NOT_DECIDED", "step 3 has not")
    refused(lambda: api.ExplainStep(model=name, step=0), Code.INVALID_ARGUMENT, "INVALID_FIELD", "count from 1")
    refused(lambda: api.ExplainStep(model=name, epoch=9, step=1), Code.NOT_FOUND, "STEP_NOT_FOUND", "epoch")


def test_a_step_stands_in_one_epoch_and_is_explained_in_each(context):
    server = context.server()
    test_model = context.model("again", server, checkpoint_every=2)
    worker = test_model.worker()
    train(worker, "..X")   # a checkpoint after step 2
    eventually(lambda: len(worker.api.ListCheckpoints(model="again").checkpoints) == 2, "the checkpoint of step 2")
    server.restart_after_kill()
    worker = test_model.reconnect().worker()
    train(worker, ".")
    api = worker.api
    assert (api.ExplainStep(model="again", step=2).row.epoch, api.ExplainStep(model="again", step=2).row.superseded) == \
        (1, False)
    stands = api.ExplainStep(model="again", step=3)
    assert (stands.row.epoch, stands.row.verdict, stands.row.superseded) == (2, APPLIED, False), stands
    gone = api.ExplainStep(model="again", epoch=1, step=3)
    assert (gone.row.verdict, gone.row.superseded, len(gone.overflows)) == (OVERFLOW, True, 1), gone
    assert gone.overflows[0].superseded


# ---- ReplayPolicy ----

def replayed(api, size=1000, **fields):
    """All rows, the number of pages, and the last page."""
    rows, token, pages = [], "", 0
    while pages == 0 or token:
        page = api.ReplayPolicy(page_token=token, page_size=size, **fields)
        rows, token, pages = rows + list(page.rows), page.next_page_token, pages + 1
    return rows, pages, page


def test_the_models_own_policy_replays_to_the_stored_scales(context):
    scaler = model.ScalerSpec(init_scale=1024.0, growth_interval=3)
    worker = one(context, scaler=scaler)
    train(worker, "....XX...X......")
    rows, pages, page = replayed(worker.api, model=worker.model.name, scaler=scaler)
    assert [row.step for row in rows] == list(range(1, 17)) and pages == 1
    assert all(row.stored_scale == row.replayed_scale and not row.uncertain for row in rows), rows
    assert (page.differing_steps, page.uncertain_steps) == (0, 0) and page.final_scale == rows[-1].stored_scale
    assert "cannot be known" in page.note


def test_another_policy_replays_in_pages_as_in_one(context):
    worker = one(context, scaler=model.ScalerSpec(init_scale=1024.0, growth_interval=3))
    verdicts = "....XX...X......"
    train(worker, verdicts)
    name, api = worker.model.name, worker.api
    other = model.ScalerSpec(policy=common.SCALER_POLICY_MEGATRON, init_scale=4096.0, growth_interval=2, hysteresis=2)
    scale, tracker, left, expected, before = 4096.0, 0, 2, [], []
    for verdict in verdicts:
        before.append(scale)
        if verdict == "X":
            tracker = 0
            scale, left = (scale, left - 1) if left > 1 else (scale / 2, left)
        else:
            tracker += 1
            if tracker == 2:
                scale, tracker, left = scale * 2, 0, 2
        expected.append(scale)
    rows, _, page = replayed(api, model=name, scaler=other)
    assert [row.replayed_scale for row in rows] == expected, [row.replayed_scale for row in rows]
    stored = [row.stored_scale for row in rows]
    assert page.differing_steps == sum(a != b for a, b in zip(stored, expected))
    old = [1024.0] + stored[:-1]
    uncertain = [(b > o) if v == "." else (b < o) for v, b, o in zip(verdicts, before, old)]
    assert [row.uncertain for row in rows] == uncertain and page.uncertain_steps == sum(uncertain) > 0
    for size in (1, 3, 7, 16):
        again, pages, _ = replayed(api, size, model=name, scaler=other)
        assert again == rows and pages == math.ceil(16 / size), size
    part, _, _ = replayed(api, model=name, scaler=other, from_step=5, to_step=6)
    assert [(row.step, row.replayed_scale) for row in part] == [(5, 4096.0), (6, 2048.0)]


def test_a_replay_of_a_wrong_policy_is_refused(context):
    worker = one(context)
    train(worker, "..")
    name, api = worker.model.name, worker.api
    refused(lambda: api.ReplayPolicy(model=name), Code.INVALID_ARGUMENT, "INVALID_FIELD", "scaler")
    for scaler, words in ((model.ScalerSpec(policy=77), "policy"), (model.ScalerSpec(init_scale=0.0), "init_scale"),
                          (model.ScalerSpec(init_scale=2.0 ** 30), "init_scale"),
                          (model.ScalerSpec(growth_factor=1.0), "growth_factor"),
                          (model.ScalerSpec(backoff_factor=NAN), "backoff_factor")):
        refused(lambda s=scaler: api.ReplayPolicy(model=name, scaler=s), Code.INVALID_ARGUMENT, words=words)
    for fields, words in (({"page_token": "1.2.0"}, "page_token"), ({"page_size": 1001}, "page_size"),
                          ({"from_step": 3, "to_step": 2}, "to_step")):
        refused(lambda f=fields: api.ReplayPolicy(model=name, scaler=model.ScalerSpec(), **f), Code.INVALID_ARGUMENT,
                words=words)
    refused(lambda: api.ReplayPolicy(model=name, scaler=model.ScalerSpec(), from_step=9), Code.OUT_OF_RANGE,
            "PAGE_PAST_END")


# ---- pages ----

def test_a_page_past_the_end_is_out_of_range(context):
    worker = one(context)
    train(worker, "..X")
    name, api = worker.model.name, worker.api
    for ask in (api.ListScaleHistory, api.ListOverflows):
        refused(lambda a=ask: a(model=name, from_step=4), Code.OUT_OF_RANGE, "PAGE_PAST_END", "step 4")
        refused(lambda a=ask: a(model=name, page_token="1.99.0"), Code.OUT_OF_RANGE, "PAGE_PAST_END", "page_token")
        for token in ("1.2", "nonsense", "1.2.3.4", "-1.0.0"):
            refused(lambda a=ask, t=token: a(model=name, page_token=t), Code.INVALID_ARGUMENT, "INVALID_FIELD", "page_token")
    # What only a filter has left empty is no error.
    assert not api.ListScaleHistory(model=name, from_step=3, verdicts=[APPLIED]).rows
    assert not api.ListOverflows(model=name, to_step=2).rows
    assert not api.ListScaleHistory(model=name, to_step=0, from_step=0, verdicts=[APPLIED]).rows
    untrained = context.model()
    assert not untrained.api.ListScaleHistory(model=untrained.name, from_step=1, verdicts=[APPLIED]).rows
    assert not untrained.api.ListOverflows(model=untrained.name).rows


# ---- checkpoints ----

def test_checkpoints_are_listed_newest_first_with_their_scale(context):
    worker = one(context, checkpoint_every=2, keep_last=10)
    name, api = worker.model.name, worker.api
    train(worker, "..X.X.XX")
    eventually(lambda: len(api.ListCheckpoints(model=name).checkpoints) == 5, "checkpoints 0, 2, 4, 6, 8")
    found = list(api.ListCheckpoints(model=name).checkpoints)
    assert [(c.model, c.epoch, c.step, c.applied, c.version, c.scale) for c in found] == \
        [(name, 1, 8, 4, 4, 64.0), (name, 1, 6, 4, 4, 256.0), (name, 1, 4, 3, 3, 512.0), (name, 1, 2, 2, 2, 1024.0),
         (name, 1, 0, 0, 0, 1024.0)], found
    for info in found:
        assert info.size_bytes > 0 and info.parts == 1 and len(info.manifest_hash) == 32, info
        files = list((worker.model.server.data_dir / info.path).iterdir())
        assert sum(file.stat().st_size for file in files) == info.size_bytes, info
        assert info.create_time.nanos % 1000 == 0 and info.create_time.seconds > 0
    assert api.Checkpoint(model=name).checkpoint == found[0]
    paged, token = [], ""
    while not paged or token:
        page = api.ListCheckpoints(model=name, page_size=2, page_token=token)
        paged, token = paged + list(page.checkpoints), page.next_page_token
    assert paged == found
    api.Rollback(model=name, epoch=1, step=6)
    api.SetScale(model=name, scale=32.0)  # that of the next step, not of the file
    assert api.Checkpoint(model=name).checkpoint == found[1]


def test_the_latest_checkpoint_whose_scale_was_at_least_x_is_found(context):
    worker = one(context, checkpoint_every=2, keep_last=10)
    name, api = worker.model.name, worker.api
    train(worker, "..X.X.XX")
    eventually(lambda: len(api.ListCheckpoints(model=name).checkpoints) == 5, "checkpoints 0, 2, 4, 6, 8")
    for least, step in ((1.0, 8), (64.0, 8), (65.0, 6), (512.0, 4), (1024.0, 2)):
        page = api.ListCheckpoints(model=name, min_scale=least, page_size=1)
        assert [c.step for c in page.checkpoints] == [step] and page.checkpoints[0].scale >= least, (least, page)
    assert [c.step for c in api.ListCheckpoints(model=name, min_scale=512.0).checkpoints] == [4, 2, 0]
    assert not api.ListCheckpoints(model=name, min_scale=2048.0).checkpoints
    refused(lambda: api.ListCheckpoints(model=name, min_scale=NAN), Code.INVALID_ARGUMENT, "INVALID_FIELD", "min_scale")
    refused(lambda: api.ListCheckpoints(model=name, page_token="x"), Code.INVALID_ARGUMENT, "INVALID_FIELD", "page_token")


# ---- the operator ----

def test_drain_writes_checkpoints_and_ends_the_process(context):
    server = context.server()
    worker = context.model("drained", server).worker()
    train(worker, "..X")
    other = Api(server.connect())
    other.GetScale(model="drained")
    refused(lambda: worker.api.Drain(grace_ms=3600001), Code.INVALID_ARGUMENT, "INVALID_FIELD", "grace_ms")
    assert worker.api.Drain(grace_ms=500) == admin.DrainResponse()
    assert server.process.wait(60) == 0, server.log()[-2000:]
    assert 'cause="Drain by 127.0.0.1' in server.log() and "grace_ms=500" in server.log()
    server.start()
    assert Api(server.channel).GetModel(model="drained").status.step == 4


def test_a_signal_cuts_the_grace_of_a_drain_short_and_ends_in_order(context):
    server = context.server()
    worker = context.model("hurried", server).worker()
    train(worker, ".")
    idle = server.connect()
    Api(idle).GetScale(model="hurried")
    held = idle.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
    ended = threading.Event()
    begun = held(iter(lambda: ended.wait(60), True))   # a call that stays open
    worker.api.Drain(grace_ms=600000)
    eventually(lambda: "msg=\"drained\"" in server.log(), "the core is drained")
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(60) == 0, server.log()[-2000:]
    ended.set()
    begun.cancel()


def test_the_level_of_the_log_changes_at_once(context):
    server = context.server("--log-level", "info")
    worker = context.model("quiet", server, checkpoint_every=1).worker()
    api = worker.api

    def lines_of_a_step():
        """How many lines the log gets of a step with a checkpoint."""
        before, step = server.log().count("component=checkpoint"), worker.step
        train(worker, ".")
        eventually(lambda: api.ListCheckpoints(model="quiet").checkpoints[0].step == step, "the checkpoint exists")
        return server.log().count("component=checkpoint") - before

    assert lines_of_a_step() > 0
    assert api.SetLogLevel(level=admin.LOG_LEVEL_ERROR).old_level == admin.LOG_LEVEL_INFO
    assert lines_of_a_step() == 0
    assert api.SetLogLevel(level=admin.LOG_LEVEL_DEBUG).old_level == admin.LOG_LEVEL_ERROR
    assert lines_of_a_step() > 0
    for level in (0, 5):
        refused(lambda l=level: api.SetLogLevel(level=l), Code.INVALID_ARGUMENT, "INVALID_FIELD", "level")
    assert api.SetLogLevel(level=admin.LOG_LEVEL_INFO).old_level == admin.LOG_LEVEL_DEBUG


# ---- how it stands ----

def test_a_watch_ends_when_its_model_is_done(context):
    worker = one(context, max_steps=3)
    name, api = worker.model.name, worker.api
    stored, new = (api.start("WatchSteps", model=name, **fields) for fields in ({"from_step": 1}, {}))
    api.GetScale(model=name)
    train(worker, ".X.")
    assert [answer.row.step for answer in stored.all()] == [1, 2, 3]
    assert [answer.row.step for answer in new.all()][-1] == 3
    eventually(lambda: worker.model.status().state == common.MODEL_STATE_DONE, "the model is done")
    assert api.start("WatchSteps", model=name).all() == []
    assert [answer.row.step for answer in api.start("WatchSteps", model=name, from_step=2).all()] == [2, 3]


def test_a_model_that_waits_names_the_ranks_that_are_missing(context):
    test_model = context.model(world_size=4)
    assert test_model.status().waiting_for == "rank 0, rank 1, rank 2, rank 3 of 4 to join"
    test_model.worker("b", rank=1)
    assert test_model.status().waiting_for == "rank 0, rank 2, rank 3 of 4 to join"
    worker = one(context)
    train(worker, ".")
    assert worker.model.status().waiting_for == ""
    worker.api.Leave(**worker.identity())
    assert worker.model.status().waiting_for == "rank 0 of 1 to join"
    wide = context.model(world_size=12).status().waiting_for
    assert wide.endswith("rank 7 and 4 more of 12 to join"), wide


def test_a_full_disk_is_told_by_the_status_until_there_is_space(context):
    with small_disk(context.folder(), SMALL_DISK_KIB) as disk:
        if disk is None:
            return
        server = context.server(data_dir=disk / "data")
        api = Api(server.channel)
        assert api.GetStatus().trouble == ""
        ballast = fill_disk(disk)
        call = api.start("CreateModel", spec=spec("late"))
        eventually(lambda: api.GetStatus().trouble, "the full disk is told")
        trouble = api.GetStatus().trouble
        assert "full" in trouble or "space" in trouble, trouble
        ballast.unlink()
        assert call.result().created
        eventually(lambda: api.GetStatus().trouble == "", "the trouble has ended")
        assert server.terminate() == 0


def test_a_drain_that_waits_for_the_disk_says_so_and_ends_when_there_is_space(context):
    with small_disk(context.folder(), SMALL_DISK_KIB) as disk:
        if disk is None:
            return
        server = context.server(data_dir=disk / "data")
        api = Api(server.channel)
        ballast = fill_disk(disk)
        call = api.start("CreateModel", spec=spec("late"))
        eventually(lambda: api.GetStatus().trouble, "the full disk is told")
        server.process.send_signal(signal.SIGTERM)
        eventually(lambda: log_lines(server, "the drain waits for the disk", "a second signal ends", "why="), "the log says it")
        ballast.unlink()
        call.exception()
        assert server.wait() == 0


def log_lines(server, *words):
    return [line for line in server.log().splitlines() if all(word in line for word in words)]


def test_the_log_has_skips_with_their_blame_and_when_a_model_is_done(context):
    server = context.server()
    worker = context.model(server=server, max_steps=30).worker()
    train(worker, "." + "X" * 20 + "." * 9)
    name = f"model={worker.model.name} "
    eventually(lambda: log_lines(server, name.strip(), "done: max_steps are decided", "step=30"), "the model is done")
    skip, = log_lines(server, name, "step skipped")   # of twenty within ten seconds
    assert "level=info" in skip and " step=2 " in skip and " parameter=w rank=0 worker=a inf=4 nan=0 " in skip, skip
    assert " scale=1024 next_scale=512 suppressed=0" in skip and " level=debug" not in server.log(), skip


def test_at_debug_the_log_has_what_is_decided_of_each_step(context):
    server = context.server("--log-level", "debug")
    worker = context.model(server=server, max_steps=2).worker()
    train(worker, ".X")
    eventually(lambda: log_lines(server, "done: max_steps"), "the model is done")
    told = [line.split('msg="')[1].split('"')[0] for line in log_lines(server, "level=debug component=core")]
    assert told == [line for step, scale, verdict in ((1, 1024, "APPLIED"), (2, 1024, "SKIPPED_OVERFLOW")) for line in (
        f"step {step} is open, try 0, for ranks 0, at scale {scale}", f"step {step} is closed, try 0, with ranks 0",
        f"shard 0 has voted on step {step}, try 0", f"step {step} is decided: {verdict}")], told


def test_a_disk_that_the_next_checkpoint_would_fill_is_told_before_it_is_full(context):
    path = context.folder().with_name("share.conf")
    path.write_text("checkpoint-disk-share: 1\n")   # of any disk more is in use
    server = context.server("--config", str(path))
    worker = context.model(server=server).worker()
    train(worker, ".")
    worker.api.Checkpoint(model=worker.model.name)
    eventually(lambda: worker.api.GetStatus().trouble, "the share is told")
    trouble = worker.api.GetStatus().trouble
    for words in (worker.model.name, str(server.data_dir), "beyond checkpoint-disk-share, 1 %", "bytes are free", "keep_last"):
        assert words in trouble, (words, trouble)
    assert len(log_lines(server, "level=warn", "the disk is nearly full")) == 1, server.log()
    path.write_text("checkpoint-disk-share: 100\n")
    server.process.send_signal(signal.SIGHUP)
    eventually(lambda: worker.api.GetStatus().trouble == "", "the share that SIGHUP has brought counts")
    assert log_lines(server, "the disk has room again") and server.terminate() == 0


def test_a_checkpoint_in_a_directory_that_shards_share_is_told_with_all_its_parts(context):
    with small_disk(context.folder(), 10 * 1024) as disk:
        if disk is None:
            return
        cluster = Cluster(context, 2, options=["--checkpoint-dir", disk / "shared", "--checkpoint-disk-share", "45"])
        Job(cluster)
        api = cluster.api(0)
        eventually(lambda: len(found(disk, "shared/**/*.safetensors")) == 2, "a quarter of the disk is in use")
        eventually(lambda: api.GetStatus().trouble, "both parts of the next one are counted")
        part = found(disk, "shared/**/shard-0-of-2.safetensors")[0].stat().st_size
        assert f"the next checkpoint of m, {2 * part} bytes, would fill the disk" in api.GetStatus().trouble, api.GetStatus()
        assert cluster.end() == [0, 0]


if __name__ == "__main__":
    run(globals())
