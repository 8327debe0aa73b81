#!/usr/bin/python3
"""Several shards as processes: sessions between them, one verdict, the bits of one shard, and what a lost one does.

    test_server_shards.py BIN_DIR [NAME ...]
"""
import functools
import math
import re
import subprocess
import time

import ampd_testing
from ampd_testing import (CALL_TIMEOUT_S, PATIENCE, Api, Code, OpenStream, block_message, check_rich, common,
                          eventually, grpc, model, params, refused, run, spec, scales)

APPLIED, OVERFLOW = common.VERDICT_APPLIED, common.VERDICT_SKIPPED_OVERFLOW
F32 = common.DTYPE_F32
INF = math.inf
PARAMETERS = [("big", [150000]), ("line", [7]), ("tail", [60000])]
SIZES = {"big": 150000, "line": 7, "tail": 60000}
WORLD, STEPS = 2, 6
START_TIMEOUT_S = 120 * PATIENCE  # a busy machine with a slow disk
TRAIN_S = 400 * PATIENCE  # with ThreadSanitizer, beside other work, each step takes seconds
WORKERS_STAY = ["--worker-lease", "10m"]  # a Job says nothing between two calls, which may take longer than the lease's 30 s
HELLO = 18  # of enum ampd_message_type


def peer_format():
    """AMPD_PEER_FORMAT: a number, and one for each row of proto/spec_fields.def beyond some."""
    number, rows = re.search(r"AMPD_PEER_FORMAT = (\d+) - (\d+)", (ampd_testing.ROOT / "server/io/base/peer_bytes.h").read_text()).groups()
    have = re.findall(r"^AMPD_SPEC_(?:NUMBER|CHOICE)\(", (ampd_testing.ROOT / "proto/spec_fields.def").read_text(), re.M)
    return int(number) + len(have) - int(rows)


FORMAT = peer_format()


class Cluster:
    """K processes of one cluster, on unix sockets."""

    def __init__(self, context, count, folder=None, options=(), new=()):
        """In the folder of another cluster: on its data directories. `options` are for each of the processes, `new` for those
        that have none yet."""
        self.program, self.count, self.options = context.bin_dir / "ampd", count, list(options)
        self.folder = context.folder() if folder is None else folder
        self.folder.mkdir(exist_ok=folder is not None)
        self.addresses = [f"unix:{self.folder}/s{k}" for k in range(count)]
        self.processes, self.channels = [None] * count, [None] * count
        context._own.append(self)
        for k in range(count):
            self.start(k, () if (self.folder / f"data-{k}").exists() else new)
        self.wait_until_healthy()

    def start(self, k, options=()):
        (self.folder / f"s{k}").unlink(missing_ok=True)
        cluster = ["--peers", ",".join(self.addresses), "--shard", str(k)] if self.count > 1 else []
        with open(self.folder / f"log-{k}", "ab") as log:
            self.processes[k] = subprocess.Popen(
                [*ampd_testing.DIE_WITH_PARENT, self.program, "--data-dir", self.folder / f"data-{k}", "--listen", self.addresses[k], *WORKERS_STAY, *cluster, *self.options,
                 *options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.channels[k] = grpc.insecure_channel(self.addresses[k], options=ampd_testing.CHANNEL_OPTIONS)

    def wait_until_healthy(self):
        try:
            for k in range(self.count):
                grpc.channel_ready_future(self.channels[k]).result(timeout=START_TIMEOUT_S)
                eventually(lambda: self.api(k).health() == ampd_testing.HEALTH_SERVING, f"shard {k} serves", START_TIMEOUT_S)
        except (AssertionError, grpc.FutureTimeoutError) as error:
            said = "\n".join(f"--- shard {k}, {process.poll()}:\n{self.log(k)[-3000:]}" for k, process in enumerate(self.processes))
            raise AssertionError(f"{error!r}; the processes have said\n{said}") from error

    def api(self, k):
        return Api(self.channels[k])

    def kill(self, k):
        self.processes[k].kill()
        self.processes[k].wait()
        self.channels[k].close()

    def end(self):
        """SIGTERM to all; the exit codes."""
        for process in self.processes:
            process.terminate()
        return [process.wait(60) for process in self.processes]

    def stop(self):
        for k, process in enumerate(self.processes):
            if process.poll() is None:
                self.kill(k)

    def log(self, k):
        return (self.folder / f"log-{k}").read_text(errors="replace")


def values_of(name, seed):
    """Values of a tensor that differ from place to place."""
    return [((i * 7919 + seed * 104729) % 1009) / 256 - 2 for i in range(SIZES[name])]


@functools.lru_cache(maxsize=64)  # most tests send the same ones, which take a tenth of a second to make
def block_messages(kind, seed, scale=1.0, overflow=False):
    """The blocks of values_of, as messages."""
    tensors = {name: [value * scale for value in values_of(name, seed)] for name in SIZES}
    if overflow:
        tensors["tail"][-1] = INF
    blocks = ampd_testing.Layout(spec("any", PARAMETERS)).blocks(F32, tensors)
    return [block_message(kind, index, data) for index, data in enumerate(blocks)]


class Job:
    """A model on a cluster, and workers that speak with every shard."""

    def __init__(self, cluster, name="m", load=True, **fields):
        self.cluster, self.name = cluster, name
        fields = {"world_size": WORLD, "cast_dtype": F32, "checkpoint_every": 2, **fields}
        fields.setdefault("optimizer", model.OptimizerSpec(kind=model.OPTIMIZER_KIND_ADAMW, learning_rate=0.125))
        fields.setdefault("clip", model.ClipSpec(max_norm=1.0))
        self.spec = cluster.api(0).CreateModel(spec=spec(name, PARAMETERS, **fields)).spec
        self.layout = ampd_testing.Layout(self.spec)
        if load:
            self.load()

    def user_state(self, rank, step):
        return b""

    def rate(self, rank, step):
        """Of a push; None: the model has a schedule of its own."""
        return None

    def shards(self):
        return self.cluster.api(0).GetModel(model=self.name).shards

    def all(self, calls):
        """The answers of calls that were begun on every shard."""
        return [call.result() for call in calls]

    def load(self, number=7):
        blocks = block_messages(params.LoadRequest, 0)

        def messages(shard):
            header = params.LoadRequest(header=params.LoadHeader(model=self.name, shard=shard.index, load=number))
            return [header, *blocks[shard.first_block:shard.first_block + shard.block_count]]

        shards = self.shards()
        for shard in shards:  # a shard hears of a model a moment after it was created
            eventually(lambda s=shard: any(m.name == self.name for m in self.cluster.api(s.index).ListModels().models),
                       f"shard {shard.index} has the model")
        return self.all([self.cluster.api(shard.index).start("Load", messages(shard)) for shard in shards])

    def join(self, rank):
        return self.cluster.api(0).Join(model=self.name, rank=rank)

    def pull(self, joined, step):
        """(header, the blocks of all shards)"""
        headers, blocks = [], {}
        for shard in joined.shards:
            answers = self.cluster.api(shard.index).Pull(model=self.name, epoch=joined.epoch, step=step, shard=shard.index)
            headers.append(answers[0].header)
            blocks.update({answer.index: answer.data for answer in answers[1:]})
        agreed = [(h.epoch, h.step, h.version, h.scale, h.scale_id) for h in headers]
        assert len(set(agreed)) == 1, agreed
        assert sorted(blocks) == list(range(self.layout.block_count)), sorted(blocks)
        return headers[0], b"".join(blocks[index] for index in sorted(blocks))

    def start_push(self, joined, step, header, overflow=False, shards=None):
        """One push to each shard; the calls."""
        blocks, calls = block_messages(params.PushRequest, step * WORLD + joined.rank + 1, header.scale, overflow), []
        for shard in joined.shards if shards is None else [joined.shards[k] for k in shards]:
            push = params.PushHeader(model=self.name, epoch=joined.epoch, step=step, rank=joined.rank,
                                     incarnation=joined.incarnation, scale_id=header.scale_id, dtype=F32, shard=shard.index,
                                     user_state=self.user_state(joined.rank, step), learning_rate=self.rate(joined.rank, step))
            messages = [params.PushRequest(header=push), *blocks[shard.first_block:shard.first_block + shard.block_count],
                        params.PushRequest(trailer=params.PushTrailer())]
            calls.append(self.cluster.api(shard.index).start("Push", messages))
        return calls

    def train(self, workers, first, last):
        """Steps first to last by all workers, step 4 with an overflow: (result, pulled bytes) of each."""
        told = []
        for step in range(first, last + 1):
            pulled = [self.pull(joined, step) for joined in workers]
            calls = [call for joined, (header, _) in zip(workers, pulled)
                     for call in self.start_push(joined, step, header, overflow=step == 4 and joined.rank == 1)]
            results = [answer.result for answer in self.all(calls)]
            assert all(result == results[0] for result in results), results
            result = common.StepResult()
            result.CopyFrom(results[0])
            result.ClearField("durable_step")  # how far the disk is, is of no bit
            result.ClearField("epoch")
            for row in result.overflows:
                row.ClearField("epoch")
                row.ClearField("worker_name")  # given where there is one shard
            told.append((result, pulled[0][1]))
        return told


@functools.cache
def undisturbed(context):
    """What one shard says and sends; always the same."""
    cluster = Cluster(context, 1)
    job = Job(cluster)
    told = job.train([job.join(rank) for rank in range(WORLD)], 1, STEPS)
    cluster.stop()
    return told


def test_ampctl_evict_knows_who_held_the_rank_whichever_shard_it_asks(context):
    cluster = Cluster(context, 2)
    Job(cluster)
    cluster.api(0).Join(model="m", worker_name="w1", rank=1, instance=ampd_testing.INSTANCE)
    for nobody in (False, True):
        done = subprocess.run([context.bin_dir / "ampctl", "-e", cluster.addresses[1], "evict", "m", "1"], timeout=60,
                              capture_output=True, encoding="utf-8", check=True)
        assert ("nobody held rank 1 of m" in done.stderr) == nobody and "asking elsewhere" in done.stderr, done.stderr


def test_two_and_three_shards_give_the_bits_of_one(context):
    expected = undisturbed(context)
    assert [result.verdict for result, _ in expected] == [APPLIED] * 3 + [OVERFLOW] + [APPLIED] * 2
    for count in (2, 3):
        cluster = Cluster(context, count)
        job = Job(cluster)
        shards = job.shards()
        assert [shard.index for shard in shards] == list(range(count))
        assert [shard.endpoint for shard in shards] == cluster.addresses
        assert sum(shard.block_count for shard in shards) == job.layout.block_count
        got = job.train([job.join(rank) for rank in range(WORLD)], 1, STEPS)
        for step, (want, have) in enumerate(zip(expected, got), 1):
            assert want[0] == have[0], f"{count} shards, step {step}: {have[0]}, on one shard {want[0]}"
            assert want[1] == have[1], f"{count} shards, step {step}: other parameters"
        assert cluster.end() == [0] * count, [cluster.log(k)[-1500:] for k in range(count)]


class RateJob(Job):
    """Schedule WORKER; `rates` has the one of a (rank, step) that is not that of the others."""

    def __init__(self, cluster, **fields):
        super().__init__(cluster, schedule=model.ScheduleSpec(kind=model.SCHEDULE_KIND_WORKER), **fields)
        self.rates = {}

    def rate(self, rank, step):
        return self.rates.get((rank, step), 0.1 / step)


def rated(cluster, **fields):
    job = RateJob(cluster, **fields)
    return job, [job.join(rank) for rank in range(WORLD)]


def test_the_rates_of_workers_give_the_same_bits_on_three_shards(context):
    job, workers = rated(Cluster(context, 1))
    expected = job.train(workers, 1, STEPS)
    assert [result.learning_rate for result, _ in expected] == [0.1, 0.1 / 2, 0.1 / 3, 0.0, 0.1 / 5, 0.1 / 6]
    job, workers = rated(Cluster(context, 3))
    assert job.train(workers, 1, STEPS) == expected


def test_a_rate_that_differs_is_refused_on_all_shards(context):
    cluster = Cluster(context, 3)
    job, workers = rated(cluster)
    headers = [job.pull(joined, 1)[0] for joined in workers]
    waiting = job.start_push(workers[0], 1, headers[0])
    eventually(lambda: all(cluster.api(k).GetPushState(model="m", epoch=1, step=1, rank=0, shard=k,
                                                       incarnation=workers[0].incarnation).complete for k in range(3)),
               "the pushes of rank 0 are whole")
    job.rates[1, 1] = 0.25
    for call in job.start_push(workers[1], 1, headers[1]):
        refusal = refused(call.result, Code.INVALID_ARGUMENT, "LEARNING_RATE", words="0.25 of rank 1")
        assert "0.10000000000000001 of rank 0" in refusal.text, refusal
    assert not any(call.done() for call in waiting)
    job.rates.clear()
    results = [answer.result for answer in job.all(job.start_push(workers[1], 1, headers[1]) + waiting)]
    assert all((result.verdict, result.learning_rate) == (APPLIED, 0.1) for result in results), results


def test_the_rate_of_a_step_outlives_kill_9_with_durability_step(context):
    """Of shard 0, then of another one."""
    job, workers = rated(Cluster(context, 1))
    expected = job.train(workers, 1, STEPS)
    cluster = Cluster(context, 3)
    job, workers = rated(cluster, durability=model.DURABILITY_STEP, checkpoint_every=100)
    assert job.train(workers, 1, 2) == expected[:2]
    for lost in (0, 2):
        cluster.kill(lost)
        cluster.start(lost)
        cluster.wait_until_healthy()
        eventually(lambda: all(not cluster.api(k).GetModel(model="m").status.recovering for k in range(3)),
                   "all shards go on", START_TIMEOUT_S)
        step = 3 if lost == 0 else 4
        assert cluster.api(0).GetModel(model="m").status.epoch == 1
        workers = [job.join(rank) for rank in range(WORLD)]
        assert job.train(workers, step, step) == expected[step - 1:step]
    assert job.train(workers, 5, STEPS) == expected[4:]


def test_a_rate_set_by_hand_has_the_same_bits_on_two_shards_and_outlives_kill_9(context):
    """Of shard 0, then of the other, with durability STEP: a killed process keeps what has no step yet."""
    told = []
    for count in (1, 2):
        cluster = Cluster(context, count)
        job = Job(cluster, durability=model.DURABILITY_STEP)
        workers = [job.join(rank) for rank in range(WORLD)]
        bits = job.train(workers, 1, 2)
        for step, rate in ((3, 0.5), (5, 0.0625)):
            answer = cluster.api(0).SetLearningRate(model="m", learning_rate=rate, request_id=f"r-{rate}")
            assert (answer.learning_rate, answer.from_step) == (rate, step), answer
            if count == 2:
                killed = 0 if step == 3 else 1
                cluster.kill(killed)
                cluster.start(killed)
                cluster.wait_until_healthy()
                eventually(lambda c=cluster: all(not c.api(k).GetModel(model="m").status.recovering for k in range(2)),
                           "both shards go on", START_TIMEOUT_S)
                workers = [job.join(rank) for rank in range(WORLD)]
                assert workers[0].epoch == 1
            assert cluster.api(0).SetLearningRate(model="m", learning_rate=rate, request_id=f"r-{rate}") == answer
            bits += job.train(workers, step, step + 1)
        told.append(bits)
        for k in range(count):
            rows = cluster.api(k).ListScaleHistory(model="m").rows
            assert [row.learning_rate for row in rows if row.kind == scales.HISTORY_KIND_LEARNING_RATE_SET] == [0.5, 0.0625], rows
    assert [result.learning_rate for result, _ in told[0]] == [0.125, 0.125, 0.5, 0.0, 0.0625, 0.0625]
    assert told[0] == told[1]


def test_a_shard_that_was_killed_comes_back_and_the_bits_are_the_same(context):
    """With the coordinator, and with another one: the epoch rises, and training goes on from a checkpoint that all hold."""
    expected = undisturbed(context)
    for lost in (1, 0):
        cluster = Cluster(context, 2)
        job = Job(cluster)
        workers = [job.join(rank) for rank in range(WORLD)]
        assert [w[0] for w in job.train(workers, 1, 3)] == [w[0] for w in expected[:3]]
        eventually(lambda: cluster.api(0).GetModel(model="m").status.durable_step == 2, "step 2 is durable")
        cluster.kill(lost)
        cluster.start(lost)
        cluster.wait_until_healthy()
        eventually(lambda: all(cluster.api(k).GetModel(model="m").status.epoch == 2 and
                               not cluster.api(k).GetModel(model="m").status.recovering for k in range(2)),
                   "both shards are in epoch 2", START_TIMEOUT_S)
        workers = [job.join(rank) for rank in range(WORLD)]
        assert [(joined.epoch, joined.step) for joined in workers] == [(2, 3)] * WORLD, workers
        got = job.train(workers, 3, STEPS)
        for step, (want, have) in enumerate(zip(expected[2:], got), 3):
            assert want == have, f"shard {lost} was lost; step {step} differs"


def trained_in_c(context, count, endpoint=0, kill=None, share=True):
    """The last parameters of a job whose workers are programs with libampclient, bytes by block; `kill`: a shard that is
    killed on the way. With `share` memory is shared with all shards, but for the steps right after a kill."""
    program = context.bin_dir.parent / "tests" / "crash" / "crash_worker"
    cluster = Cluster(context, count, options=["--shared-memory", "on" if share else "off"])
    said = [open(cluster.folder / f"worker-{rank}", "w+b") for rank in range(WORLD)]
    workers = [subprocess.Popen([*ampd_testing.DIE_WITH_PARENT, program, cluster.addresses[endpoint], "m", str(rank), str(WORLD), "40", "4", "checkpoint"],
                                stdin=subprocess.DEVNULL, stdout=said[rank], stderr=said[rank]) for rank in range(WORLD)]
    api = cluster.api(0)
    if kill is not None:
        def far_enough():
            models = api.ListModels().models
            return models and models[0].durable_step >= 8
        eventually(far_enough, "step 8 is durable", START_TIMEOUT_S)
        cluster.kill(kill)
        cluster.start(kill)
    codes = [worker.wait(TRAIN_S) for worker in workers]
    for file in said:
        file.seek(0)
    said = [file.read() for file in said]
    assert codes == [0] * WORLD, [text[-600:] for text in said]
    sharing = [line.endswith(b" 1") for text in said for line in text.splitlines()]
    assert sum(sharing) >= 40 * WORLD // 2 if kill is not None else sharing == [share] * 40 * WORLD, said
    api = cluster.api(0)
    found = api.GetModel(model="m")
    assert found.status.state == common.MODEL_STATE_DONE and found.status.scale.attempted == 40, found.status
    assert (found.status.epoch > 1) == (kill is not None), found.status
    for k in range(1, count):
        other = cluster.api(k).GetModel(model="m").status
        assert (other.state, other.durable_step, other.waiting_for) == (common.MODEL_STATE_DONE, 40, ""), (k, other)
    blocks = {}
    for shard in found.shards:
        answers = eventually(lambda s=shard: (lambda got: got if got[0].header.version == found.status.applied else None)(
            cluster.api(s.index).Pull(model="m", latest=True, shard=s.index)), "the last version")
        blocks.update({answer.index: answer.data for answer in answers[1:]})
    return blocks


def test_a_job_in_c_trains_on_every_shard_from_any_endpoint(context):
    """With three shards and two blocks one shard has none of them: it votes at once."""
    expected = trained_in_c(context, 1, share=False)
    assert sorted(expected) == [0, 1]
    assert trained_in_c(context, 2) == expected
    assert trained_in_c(context, 3, endpoint=2) == expected


def test_a_job_in_c_goes_on_when_a_shard_is_killed(context):
    expected = trained_in_c(context, 1, share=False)
    for lost in (0, 1):
        assert trained_in_c(context, 2, kill=lost) == expected, f"shard {lost} was lost"


def test_a_step_waits_for_all_shards(context):
    cluster = Cluster(context, 2)
    job = Job(cluster, world_size=1)
    joined = job.join(0)
    header, _ = job.pull(joined, 1)
    first = job.start_push(joined, 1, header, shards=[0])[0]
    eventually(lambda: cluster.api(0).GetPushState(model="m", epoch=1, step=1, rank=0, incarnation=joined.incarnation,
                                                   shard=0).complete, "the push to shard 0 is complete")
    ampd_testing.held(first)
    second = job.start_push(joined, 1, header, shards=[1])[0]
    assert first.result().result == second.result().result
    assert first.result().result.verdict == APPLIED


def test_a_watch_ends_when_a_model_of_two_shards_is_done(context):
    """No record of shard 0 makes it so: what does is the word of the last shard whose store knows the checkpoint's parts."""
    cluster = Cluster(context, 2)
    job = Job(cluster, max_steps=2)
    watch = cluster.api(0).start("WatchSteps", model="m", from_step=1)
    job.train([job.join(rank) for rank in range(WORLD)], 1, 2)
    assert [answer.row.step for answer in watch.all()] == [1, 2]


def test_a_model_that_one_shard_has_no_memory_for_leaves_nothing_behind(context):
    cluster = Cluster(context, 2)
    cluster.kill(1)
    cluster.start(1, ["--memory-max", "2M"])
    cluster.wait_until_healthy()
    for _ in range(2):  # the name is free again
        refusal = refused(lambda: eventually(lambda: create_unless_away(cluster), "an answer"), Code.RESOURCE_EXHAUSTED,
                          "NO_MEMORY", words="shard 1 cannot make m")
        assert str(2 << 20) in refusal.text, refusal
    for k in (1, 0):
        cluster.kill(k)
    for k in (0, 1):
        cluster.start(k)
    cluster.wait_until_healthy()
    eventually(lambda: all(not cluster.api(k).ListModels().models for k in range(2)), "nothing of it is left")
    assert create_unless_away(cluster).created
    assert cluster.api(0).DeleteModel(model="m") is not None
    assert cluster.end() == [0, 0]


def create_unless_away(cluster):
    """CreateModel; None: it is to be made again."""
    try:
        return cluster.api(0).CreateModel(spec=spec("m", PARAMETERS, world_size=WORLD))
    except grpc.RpcError as error:
        if error.code() != Code.UNAVAILABLE:
            raise
        return None


def test_a_call_for_another_shard_is_refused_with_both_indexes(context):
    cluster = Cluster(context, 2)
    job = Job(cluster)
    joined = job.join(0)
    refusal = refused(lambda: cluster.api(1).Pull(model="m", epoch=1, step=1, shard=0), Code.INVALID_ARGUMENT)
    assert "shard 1 of 2" in refusal.text, refusal
    refused(lambda: cluster.api(0).GetPushState(model="m", epoch=1, step=1, rank=0, incarnation=joined.incarnation,
                                                shard=1), Code.INVALID_ARGUMENT)


def test_a_stranger_in_a_session_is_refused_and_disturbs_nobody(context):
    cluster = Cluster(context, 2)
    job = Job(cluster)
    session = cluster.channels[0].stream_stream("/ampd.v1.PeerService/Session",
                                                request_serializer=ampd_testing._bytes_of,
                                                response_deserializer=ampd_testing.peer.SessionResponse.FromString)
    Envelope, Trouble = ampd_testing.peer.Envelope, ampd_testing.peer.ShardTrouble
    for envelope in (None, Trouble(text="of nobody"), Envelope(), Envelope(format=99, sender=1, shard_count=2),
                     Envelope(format=FORMAT, sender=1, shard_count=3), Envelope(format=FORMAT, sender=7, shard_count=2),
                     Envelope(format=FORMAT, sender=0, shard_count=2), Envelope(format=FORMAT, sender=1, receiver=1, shard_count=2),
                     Envelope(format=FORMAT, sender=1, shard_count=2, part=3, part_count=4),
                     Envelope(format=FORMAT, sender=1, shard_count=2, part_count=100000)):
        request = ampd_testing.peer.SessionRequest(**{"trouble" if isinstance(envelope, Trouble) else "envelope": envelope})
        try:
            list(session(iter([request]), timeout=CALL_TIMEOUT_S))
            raise AssertionError(f"taken: {envelope}")
        except grpc.RpcError as error:
            check_rich(ampd_testing.Refusal(error))
            assert error.code() in (Code.INVALID_ARGUMENT, Code.FAILED_PRECONDITION), error
    workers = [job.join(rank) for rank in range(WORLD)]
    assert len(job.train(workers, 1, 2)) == 2


def test_a_load_that_is_silent_on_one_of_two_shards_gives_way_to_one_that_waits(context):
    job = Job(Cluster(context, 2, options=["--worker-lease", f"{6 * PATIENCE}s"]), load=False)
    shards = job.shards()
    eventually(lambda: any(m.name == job.name for m in job.cluster.api(1).ListModels().models), "shard 1 has the model")
    header = params.LoadHeader(model=job.name, shard=0, load=99)
    silent = OpenStream(job.cluster.api(0), "Load", [params.LoadRequest(header=header)])
    eventually(lambda: job.cluster.api(0).GetStatus().models[0].state == common.MODEL_STATE_LOADING, "it loads")
    began = time.monotonic()
    job.load()
    assert time.monotonic() - began < 12 * PATIENCE and len(shards) == 2  # two leases
    refused(silent.result, Code.UNAVAILABLE, "RECOVERING")
    silent.end()
    workers = [job.join(rank) for rank in range(WORLD)]
    assert len(job.train(workers, 1, 2)) == 2


def stranger_as_shard_1(channel, number):
    """Says HELLO to shard 0 with this fence, as who has the role peer can, and goes."""
    session = channel.stream_stream("/ampd.v1.PeerService/Session", request_serializer=ampd_testing._bytes_of,
                                    response_deserializer=ampd_testing.peer.SessionResponse.FromString)
    fence = ampd_testing.peer.Fence(number=number, boot_id_low=1, boot_id_high=2)
    hello = ampd_testing.peer.Envelope(format=FORMAT, sender=1, shard_count=2, sender_fence=fence, message=HELLO)
    try:
        list(session(iter([ampd_testing.peer.SessionRequest(envelope=hello)]), timeout=CALL_TIMEOUT_S))
    except grpc.RpcError as error:
        # The shard itself has come back; or shard 0 had something to say, and found the session at its end.
        assert error.code() in (Code.ABORTED, Code.CANCELLED, Code.UNAVAILABLE), error
        assert "too many bytes" not in error.details(), error


def test_a_stranger_with_the_highest_fence_disturbs_nobody(context):
    cluster = Cluster(context, 2)
    job = Job(cluster)
    stranger_as_shard_1(cluster.channels[0], 2**64 - 1)
    eventually(lambda: "too far above 1" in cluster.log(0), "the fence is refused")
    cluster.wait_until_healthy()
    workers = [job.join(rank) for rank in range(WORLD)]
    assert len(job.train(workers, 1, 2)) == 2
    assert all(process.poll() is None for process in cluster.processes)


def test_a_shard_that_a_stranger_has_shut_out_is_back_by_the_option_that_its_log_names(context):
    cluster = Cluster(context, 2)
    job = Job(cluster)
    above = 2**40
    stranger_as_shard_1(cluster.channels[0], above)
    for _ in range(2):  # and started again it is still shut out
        assert cluster.processes[1].wait(CALL_TIMEOUT_S) == 1
        assert f"--fence-above {above} " in cluster.log(1)
        cluster.start(1)
    assert cluster.processes[1].wait(CALL_TIMEOUT_S) == 1
    cluster.start(1, ["--fence-above", str(2**50)])  # a number that was typed wrongly
    eventually(lambda: f"--fence-above {above}," in cluster.log(0), "the leap is refused, with the right one")
    cluster.kill(1)
    cluster.start(1, ["--fence-above", str(above)])
    cluster.wait_until_healthy()
    workers = [job.join(rank) for rank in range(WORLD)]
    assert len(job.train(workers, 1, 2)) == 2
    cluster.kill(1)
    cluster.start(1)  # without the option, which has done what it is for
    cluster.wait_until_healthy()


def test_an_idle_session_is_asked_whether_it_lives_and_stays(context):
    """Longer than it takes four PINGs, of which a client that sends them so often may send two."""
    cluster = Cluster(context, 2)
    time.sleep(9)
    assert "PING" not in cluster.log(0) and "session is over" not in cluster.log(1), cluster.log(1)[-1500:]
    Job(cluster, world_size=1)


def test_options_of_a_cluster_are_checked(context):
    folder = context.folder()
    for arguments, word in (
            (["--shard", "0"], "--peers"), (["--peers", "a:1"], "--peers"), (["--peers", "a:1,,b:2", "--shard", "0"], "--peers"),
            (["--peers", "a:1,b:2"], "--shard"), (["--peers", "a:1,b:2", "--shard", "2"], "--shard"),
            (["--peers", "a:1,b", "--shard", "0"], "--peers: b: give HOST:PORT"),
            (["--peers", "a:1,b:70000", "--shard", "0"], "--peers: b:70000: give HOST:PORT"),
            (["--peers", "a:1,b:2", "--shard", "x"], "--shard"), (["--fence-above", "3"], "--peers"),
            (["--peers", "a:1,b:2", "--shard", "0", "--fence-above", "x"], "--fence-above"),
            (["--peers", "a:1,b:2", "--shard", "0", "--token-file", "/nowhere"], "--peers")):
        code, lines = ampd_testing.start_and_fail(context.bin_dir, "--data-dir", folder, *arguments)
        assert code == 2 and len(lines) == 1 and word in lines[0], (arguments, code, lines)
    assert not folder.exists()


def status_of(api):
    """Of the model; None where the process does not listen yet, or has not read its store."""
    try:
        return api.GetModel(model="m").status
    except grpc.RpcError:
        return None


def test_shards_wait_for_one_another_whichever_starts_first(context):
    cluster = Cluster(context, 2)
    Job(cluster)
    assert cluster.end() == [0, 0], [cluster.log(k)[-1500:] for k in range(2)]
    cluster.start(1)
    # Alone it cannot know what the model is at.
    assert eventually(lambda: status_of(cluster.api(1)), "shard 1 has read its store", START_TIMEOUT_S).recovering
    cluster.start(0)
    cluster.wait_until_healthy()
    eventually(lambda: not cluster.api(1).GetModel(model="m").status.recovering, "shard 1 has recovered")


def test_a_scale_is_not_told_before_the_model_is_back(context):
    """Until then shard 0 knows that of the checkpoint alone."""
    cluster = Cluster(context, 2)
    job = Job(cluster)
    job.train([job.join(rank) for rank in range(WORLD)], 1, 3)
    before = cluster.api(0).GetScale(model="m")
    for k in (0, 1):
        cluster.kill(k)
    cluster.start(0)
    assert eventually(lambda: status_of(cluster.api(0)), "shard 0 has read its store", START_TIMEOUT_S).recovering
    refused(lambda: cluster.api(0).GetScale(model="m"), Code.UNAVAILABLE, "RECOVERING", ["m", "again"])
    cluster.start(1)
    cluster.wait_until_healthy()
    eventually(lambda: not cluster.api(0).GetModel(model="m").status.recovering, "the model is back")
    assert cluster.api(0).GetScale(model="m").epoch == before.epoch + 1


if __name__ == "__main__":
    run(globals())
