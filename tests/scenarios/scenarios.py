#!/usr/bin/python3
"""Golden transcripts: what a client says and what ampd answers, call by call, one file per RPC.

    scenarios.py BIN_DIR [RPC ...]             runs each scenario and compares its transcript with RPC.txt
    scenarios.py BIN_DIR --update [RPC ...]    writes the transcripts anew, to be reviewed as a diff

A transcript has the fields of requests and answers but those that differ from run to run (VOLATILE). Tensors are shown as
their first values. A status that is not OK is shown with its reason, the model's place and its text.
"""
import contextlib
import pathlib
import re
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "integration"))
UPDATE = "--update" in sys.argv
sys.argv = [argument for argument in sys.argv if argument != "--update"]
import ampd_testing  # noqa: E402
from ampd_testing import METHODS, Refusal, common, eventually, grpc, model, params, peer, scales  # noqa: E402
from google.protobuf import text_format  # noqa: E402

VOLATILE = {"server_time", "since", "uptime_ms", "boot_id", "create_time", "decide_time", "join_time", "lease_left_ms", "endpoint",
            "peer", "isa", "version_text", "memory_bytes", "crc32c", "next_page_token", "page_token", "descriptors", "descriptors_max",
            "times"}
VALUES_SHOWN = 6
INF = float("inf")


def _stable(message):
    """A copy without volatile fields, and the values of its tensor as a comment."""
    shown = type(message)()
    shown.CopyFrom(message)

    def clean(part):
        for field, value in part.ListFields():
            peer_address = field.name == "actor" and ":" in value
            server_version = field.name == "version" and field.type == field.TYPE_STRING
            if field.name in VOLATILE or peer_address or server_version:
                part.ClearField(field.name)
            elif field.type == field.TYPE_MESSAGE:
                for item in (value if field.label == field.LABEL_REPEATED else [value]):
                    clean(item)

    clean(shown)
    return shown


class Transcript:
    """What was said so far, as lines."""

    def __init__(self, server):
        self.server, self.lines = server, []
        self.dtype = common.DTYPE_F32  # of the blocks that come next

    def note(self, text):
        self.lines.append(f"# {text}")

    def say(self, mark, message):
        shown, tensor = _stable(message), None
        if shown.DESCRIPTOR.fields_by_name.get("data") is not None and shown.data:
            is_file = "ReadCheckpoint" in shown.DESCRIPTOR.name
            values = [] if is_file else ampd_testing.unpack(self.dtype, shown.data)
            tensor = f"data: {len(shown.data)} bytes" if is_file else f"data: {len(values)} x {common.Dtype.Name(self.dtype)[6:].lower()}: " + " ".join(
                f"{value:g}" for value in values[:VALUES_SHOWN]) + (" ..." if len(values) > VALUES_SHOWN else "")
            shown.ClearField("data")
        if shown.DESCRIPTOR.fields_by_name.get("header") is not None and shown.HasField("header"):
            if "dtype" in shown.header.DESCRIPTOR.fields_by_name:
                self.dtype = shown.header.dtype
        lines = text_format.MessageToString(shown).splitlines() + ([tensor] if tensor else [])
        self.lines += [f"{mark} {line}" for line in lines] or [f"{mark} (nothing)"]

    def refused(self, error):
        refusal = Refusal(error)
        place = "".join(f" {key}={refusal.metadata[key]}" for key in ("epoch", "step") if key in refusal.metadata)
        text = re.sub(r"127\.0\.0\.1:\d+, \d+ s ago", "ADDRESS, a moment ago", refusal.text)
        self.lines.append(f"! {refusal.code.name} {refusal.reason}{place}: {text}")

    def call(self, name, request=None, wait=True, **fields):
        """Says a call and what came back; the answer, or None where it was refused. wait=False: the call under way."""
        path, request_type, _ = METHODS[name]
        requests = request if isinstance(request, list) else [request if request is not None else request_type(**fields)]
        self.lines.append(f"{path.rsplit('.', 1)[-1]}")
        self.dtype = common.DTYPE_F32
        for message in requests:
            self.say(">", message)
        api = ampd_testing.Api(self.server.channel)
        started = api.start(name, request if isinstance(request, list) else requests[0])
        return self.answer(started) if wait else started

    def answer(self, started):
        self.dtype = common.DTYPE_F32
        answers = []
        try:
            if isinstance(started, ampd_testing.Answers):
                for message in started.call:
                    self.say("<", message)
                    answers.append(message)
                self.lines.append("< (end)")
                return answers
            answers = started.result()
            self.say("<", answers)
            return answers
        except grpc.RpcError as error:
            self.refused(error)
            return None

    def text(self):
        return "\n".join(self.lines) + "\n"


def small(name, **fields):
    """Four weights and a bias, SGD with rate 0.5, scale 1024: arithmetic that can be done by hand."""
    return ampd_testing.spec(name, [("w", [2, 2]), ("b", [])], **{"cast_dtype": common.DTYPE_F32, **fields})


class Trainer:
    """A worker of a small model whose calls are not part of the transcript, unless it is asked for them."""

    def __init__(self, transcript, name, load=True, **fields):
        self.transcript = transcript
        self.model = ampd_testing.TestModel(transcript.server, name, [("w", [2, 2]), ("b", [])], load=load,
                                            **{"cast_dtype": common.DTYPE_F32, **fields})
        self.worker = self.model.worker("first", rank=0) if load else None

    def step(self, value=1.0, **fields):
        return self.worker.train({"w": [value] * 4, "b": [0.5]}, dtype=common.DTYPE_F32, **fields)

    def durable(self, step):
        eventually(lambda: self.model.status().durable_step == step, f"step {step} is durable")

    def messages(self, value=1024.0, **header):
        return self.worker.push_messages({"w": [value] * 4, "b": [512.0]}, dtype=common.DTYPE_F32, **header)


# ---- ParameterService ----

def scenario_CreateModel(t):
    t.call("CreateModel", spec=small("m"))
    t.note("the same specification once more, then another one under the same name")
    t.call("CreateModel", spec=small("m"))
    t.call("CreateModel", spec=small("m", world_size=2))
    t.note("values that make no sense are named")
    t.call("CreateModel", spec=small("n", optimizer=model.OptimizerSpec(learning_rate=float("nan"))))
    t.call("CreateModel", spec=small("n", sync_mode=model.SYNC_MODE_QUORUM, quorum=2))


def scenario_GetModel(t):
    trainer = Trainer(t, "m")
    trainer.step()
    trainer.model.latest()
    t.call("GetModel", model="m")
    t.call("GetModel", model="unknown")


def scenario_ListModels(t):
    for name in ("b", "a", "c"):
        Trainer(t, name, load=False)
    first = t.call("ListModels", page_size=2)
    t.note("the next page")
    t.call("ListModels", page_size=2, page_token=first.next_page_token)
    t.call("ListModels", page_size=1001)


def scenario_DeleteModel(t):
    Trainer(t, "m")
    t.note("a worker holds a lease")
    t.call("DeleteModel", model="m")
    t.call("DeleteModel", model="m", force=True)
    t.call("GetModel", model="m")


def scenario_Join(t):
    trainer = Trainer(t, "m", load=False, world_size=2)
    trainer.model.load()
    t.call("Join", model="m", worker_name="first")
    t.note("a known name gets its rank back, and a new incarnation")
    t.call("Join", model="m", worker_name="first")
    t.call("Join", model="m", rank=0, worker_name="other")
    t.call("Join", model="m", rank=1, world_size=3)
    t.call("Join", model="m", rank=1)
    t.call("Join", model="m", worker_name="one too many")


def scenario_KeepAlive(t):
    worker = Trainer(t, "m").worker
    answer = t.server_api.KeepAlive(**worker.identity())
    assert 0 < answer.lease_ms <= 30000
    t.note("an incarnation that never was")
    t.call("KeepAlive", model="m", rank=0, incarnation=common.Incarnation(fence=worker.incarnation.fence, counter=9))
    t.call("KeepAlive", model="unknown", rank=0, incarnation=worker.incarnation)


def scenario_Leave(t):
    worker = Trainer(t, "m").worker
    t.call("Leave", **worker.identity())
    t.note("the rank is free")
    joined = t.call("Join", model="m", worker_name="second")
    t.call("Leave", **worker.identity())
    assert joined.rank == 0


def scenario_Load(t):
    trainer = Trainer(t, "m", load=False)
    messages = list(ampd_testing.load_messages(trainer.model.layout, "m", trainer.model.initial))
    t.note("nothing but a header")
    t.call("Load", messages[:1])
    t.note("a block whose checksum does not match")
    t.call("Load", [messages[0], params.LoadRequest(index=0, crc32c=1, data=messages[1].data)])
    t.call("Load", messages)
    t.note("a second loader is late")
    t.call("Load", messages)


def scenario_Pull(t):
    trainer = Trainer(t, "m")
    t.call("Pull", model="m", epoch=1, step=1)
    trainer.step()
    trainer.model.latest()
    t.call("Pull", model="m", latest=True)
    t.note("a client that has that version")
    t.call("Pull", model="m", epoch=1, step=2, have_version=params.HeldVersion(epoch=1, version=1))
    t.note("the past, the future, another epoch, nothing asked for")
    t.call("Pull", model="m", epoch=1, step=1)
    t.call("Pull", model="m", epoch=1, step=4)
    t.call("Pull", model="m", epoch=2, step=1)
    t.call("Pull", model="m")


def scenario_Push(t):
    trainer = Trainer(t, "m")
    trainer.worker.pull()
    t.call("Push", trainer.messages(user_state=b"position 7"))
    t.note("the same push once more: its stored result")
    t.call("Push", trainer.messages())
    trainer.worker.step = 2
    trainer.worker.pull()
    t.note("an overflow is a result")
    t.call("Push", trainer.messages(INF))
    t.note("the past, the future, another epoch, a wrong scale id")
    t.call("Push", trainer.messages(step=1))
    t.call("Push", trainer.messages(step=5))
    t.call("Push", trainer.messages(step=3, epoch=2))
    t.call("Push", trainer.messages(step=3, scale_id=1))
    t.note("an incarnation that a newer Join has ended, a wrong weight, a damaged block")
    before = trainer.worker.incarnation
    trainer.worker.join()
    trainer.worker.pull()
    t.call("Push", trainer.messages(incarnation=before))
    t.call("Push", trainer.messages(weight=2.0))
    t.call("Push", [trainer.worker.push_header(dtype=common.DTYPE_F32),
                    params.PushRequest(index=0, crc32c=7, data=trainer.messages()[1].data)])
    t.note("a block that neither comes nor is absent; then the whole push")
    messages = trainer.messages()
    t.call("Push", [messages[0], params.PushRequest(trailer=params.PushTrailer(absent=[1]))])
    t.call("Push", messages)


def scenario_GetPushState(t):
    worker = Trainer(t, "m", world_size=2).worker
    second = worker.model.worker("second", rank=1)
    worker.pull()
    t.call("GetPushState", **worker.identity(), epoch=1, step=1)
    held = worker.start_push({"w": [1.0] * 4, "b": [1.0]}, dtype=common.DTYPE_F32)
    eventually(lambda: worker.push_state().complete, "the push is complete")
    t.note("its push has come, that of the other worker has not")
    t.call("GetPushState", **worker.identity(), epoch=1, step=1)
    t.call("GetPushState", **second.identity(), epoch=1, step=1)
    t.call("GetPushState", **worker.identity(), epoch=1, step=2)
    held.cancel()


def scenario_AttachMemory(t):
    worker = Trainer(t, "m").worker
    t.note("not by a unix socket")
    t.call("AttachMemory", **worker.identity(), dtype=common.DTYPE_F16)
    t.call("AttachMemory", **worker.identity())
    t.note("and so there is nothing to read or to place")
    t.call("Pull", **worker.identity(), step=1, in_memory=True)


# ---- ScaleService ----

def overflow_at(trainer, steps, last):
    for step in range(1, last + 1):
        trainer.step(INF if step in steps else float(step))


def scenario_GetScale(t):
    trainer = Trainer(t, "m", scaler=model.ScalerSpec(init_scale=1024.0, growth_interval=2))
    t.call("GetScale", model="m")
    overflow_at(trainer, {3}, 3)
    t.call("GetScale", model="m")
    t.call("GetScale", model="unknown")


def scenario_SetScale(t):
    trainer = Trainer(t, "m")
    trainer.step()
    t.call("SetScale", model="m", scale=256.0, reason="an experiment")
    trainer.step()
    trainer.step()
    t.call("GetScale", model="m")
    t.call("SetScale", model="m", scale=float("nan"))
    t.call("SetScale", model="m", scale=2.0 ** 30)


def scenario_ResetScale(t):
    trainer = Trainer(t, "m", scaler=model.ScalerSpec(init_scale=1024.0, growth_interval=1))
    trainer.step()
    t.call("ResetScale", model="m", reason="a new data set")
    trainer.step()
    trainer.step()
    t.call("GetScale", model="m")


def scenario_ListScaleHistory(t):
    trainer = Trainer(t, "m", scaler=model.ScalerSpec(init_scale=1024.0, growth_interval=2))
    overflow_at(trainer, {3}, 4)
    t.call("ListScaleHistory", model="m")
    t.note("only what moved the scale, newest first")
    t.call("ListScaleHistory", model="m", only_changes=True, newest_first=True)
    t.note("the first page of one row each")
    t.call("ListScaleHistory", model="m", page_size=1)
    t.call("ListScaleHistory", model="m", from_step=9)
    t.call("ListScaleHistory", model="m", page_size=5000)


def scenario_ListOverflows(t):
    trainer = Trainer(t, "m")
    overflow_at(trainer, {2}, 2)
    trainer.worker.pull()
    trainer.worker.push({"w": [1.0, INF, float("nan"), -3.0], "b": [-INF]}, dtype=common.DTYPE_F32)
    t.call("ListOverflows", model="m")
    t.note("of one parameter")
    t.call("ListOverflows", model="m", parameter="b")
    t.call("ListOverflows", model="m", from_step=9)


def scenario_ExplainStep(t):
    trainer = Trainer(t, "m")
    overflow_at(trainer, {2}, 2)
    t.call("ExplainStep", model="m", step=1)
    t.call("ExplainStep", model="m", step=2)
    t.call("ExplainStep", model="m", step=3)
    t.call("ExplainStep", model="m", step=1, epoch=4)


def scenario_WatchSteps(t):
    trainer = Trainer(t, "m", max_steps=2)
    overflow_at(trainer, {2}, 2)
    trainer.durable(2)
    t.note("the model is done after two steps, and so is the watch")
    t.call("WatchSteps", model="m", from_step=1)
    t.call("WatchSteps", model="unknown")


def scenario_ReplayPolicy(t):
    trainer = Trainer(t, "m", scaler=model.ScalerSpec(init_scale=1024.0, growth_interval=2))
    overflow_at(trainer, {3}, 5)
    t.call("ReplayPolicy", model="m", scaler=model.ScalerSpec(init_scale=1024.0, growth_interval=1))
    t.call("ReplayPolicy", model="m", scaler=model.ScalerSpec(init_scale=float("inf")))


# ---- AdminService ----

def scenario_GetStatus(t):
    Trainer(t, "m", world_size=2)
    t.note("one of two workers has joined")
    t.call("GetStatus")
    t.call("GetStatus", model="unknown")


def scenario_GetCluster(t):
    Trainer(t, "m").step()
    eventually(lambda: t.server_api.GetCluster(model="m").shards[0].applied_step == 1, "the step is applied")
    t.note("a cluster of one shard")
    t.call("GetCluster")
    t.call("GetCluster", model="m")
    t.call("GetCluster", model="unknown")


def scenario_Checkpoint(t):
    trainer = Trainer(t, "m")
    trainer.step()
    started = t.call("Checkpoint", wait=False, model="m")
    t.server_api.GetScale(model="m")  # what was sent before has arrived
    t.note("it is cut after the step that is open now")
    trainer.step()
    t.answer(started)
    t.note("nothing was decided since: at once")
    t.call("Checkpoint", model="m")
    t.note("its worker has left, and no verdict would come: the last step, at once")
    trainer.step()
    t.server_api.Leave(**trainer.worker.identity())
    t.call("Checkpoint", model="m")
    t.note("without values there is nothing to write")
    Trainer(t, "empty", load=False)
    t.call("Checkpoint", model="empty")


def scenario_ListCheckpoints(t):
    trainer = Trainer(t, "m", checkpoint_every=1, keep_last=2)
    overflow_at(trainer, {3}, 3)
    trainer.durable(3)
    eventually(lambda: len(t.server_api.ListCheckpoints(model="m").checkpoints) == 2, "the older ones are gone")
    t.call("ListCheckpoints", model="m")
    t.note("the latest whose scale was at least 1024")
    t.call("ListCheckpoints", model="m", min_scale=1024.0, page_size=1)
    t.call("ListCheckpoints", model="m", min_scale=float("nan"))


def scenario_ReadCheckpoint(t):
    trainer = Trainer(t, "m", checkpoint_every=1)
    overflow_at(trainer, set(), 1)
    trainer.durable(1)
    t.call("ReadCheckpoint", model="m", epoch=1, step=1)
    t.call("ReadCheckpoint", model="m", epoch=1, step=7)


def scenario_Rollback(t):
    trainer = Trainer(t, "m", checkpoint_every=1)
    overflow_at(trainer, set(), 2)
    trainer.durable(2)
    t.call("Rollback", model="m", epoch=1, step=1, reason="the data of step 2 were wrong")
    t.call("Rollback", model="m", epoch=1, step=7)
    t.call("ListScaleHistory", model="m", include_superseded=True)


def scenario_SetLearningRate(t):
    trainer = Trainer(t, "m")
    trainer.step()
    t.call("SetLearningRate", model="m", learning_rate=0.25, reason="an experiment")
    trainer.step()
    t.call("ListScaleHistory", model="m")
    t.call("SetLearningRate", model="m", learning_rate=0.0)


def scenario_EvictWorker(t):
    Trainer(t, "m").step()
    t.call("EvictWorker", model="m", rank=0, reason="its GPU is broken")
    t.call("EvictWorker", model="m", rank=1)
    t.call("ListScaleHistory", model="m")


def scenario_Drain(t):
    trainer = Trainer(t, "m")
    trainer.step()
    t.call("Drain", grace_ms=3600001)
    t.call("Drain", grace_ms=100)
    assert t.server.wait() == 0
    t.note("the process has ended with 0; started again it goes on where it was")
    t.server.start()
    t.call("Join", model="m", worker_name="first")


def scenario_SetLogLevel(t):
    level = ampd_testing.admin
    t.call("SetLogLevel", level=level.LOG_LEVEL_WARN)
    t.call("SetLogLevel", level=level.LOG_LEVEL_INFO)
    t.call("SetLogLevel")


def scenario_GetConfig(t):
    answer = ampd_testing.Api(t.server.channel).GetConfig()
    assert {value.name: value.where for value in answer.values}["data-dir"] == "--data-dir"
    t.lines.append("AdminService/GetConfig")
    t.say(">", METHODS["GetConfig"][1]())
    for value in list(answer.values):
        if value.name not in ("log-level", "worker-lease"):
            answer.values.remove(value)
    t.say("<", answer)
    t.note("of the others each has its value, too")


# ---- PeerService: of the shards alone ----

def scenario_Session(t):
    t.call("Session", [peer.SessionRequest(envelope=peer.Envelope(sender=1))])


def scenario_FetchRows(t):
    t.call("FetchRows", envelope=peer.Envelope(sender=1))


def run_scenario(context, name, function):
    with contextlib.ExitStack() as stack:
        stack.callback(context.end_test)
        transcript = Transcript(context.server())
        transcript.server_api = ampd_testing.Api(transcript.server.channel)
        function(transcript)
    path, got = HERE / f"{name}.txt", transcript.text()
    if UPDATE:
        path.write_text(got)
        return
    expected = path.read_text() if path.exists() else ""
    for number, (want, have) in enumerate(zip(expected.splitlines(), got.splitlines()), 1):
        assert want == have, f"{path.name}:{number}: {have!r}, in the transcript {want!r} (--update writes it anew)"
    assert expected == got, f"{path.name}: {len(got.splitlines())} lines, {len(expected.splitlines())} in the transcript"


def every_rpc_has_a_transcript(context):
    named = {name[len("scenario_"):] for name in globals() if name.startswith("scenario_")}
    assert named == set(METHODS), f"without a scenario: {set(METHODS) - named}; of no RPC: {named - set(METHODS)}"
    files = {path.stem for path in HERE.glob("*.txt")} - {"CMakeLists"}
    assert files == named, f"files: {files ^ named}"


def tests():
    def of(name, function):
        return lambda context: run_scenario(context, name, function)

    found = {f"test_{name[9:]}_is_as_in_its_transcript": of(name[9:], function) for name, function in globals().items()
             if name.startswith("scenario_")}
    return {**found, "test_every_rpc_has_a_transcript": every_rpc_has_a_transcript}


if __name__ == "__main__":
    ampd_testing.run(tests())
