"""ampd as what is attacked: a process with a loaded model, and calls that are valid gRPC and mean harm (row 25)."""
import os
import pathlib
import signal
import shutil
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "integration"))
import ampd_testing as ampd  # noqa: E402  (ends this process with 77 where grpcio or protoc are missing)
from ampd_testing import admin, common, model, params, scales  # noqa: E402

MODEL = "attacked"  # rows.c knows it
BLOCKS = 64
# malloc gives back what is freed: pages that it keeps are no leak, but would look like one.
os.environ.update(MALLOC_MMAP_THRESHOLD_="32768", MALLOC_TRIM_THRESHOLD_="65536")
HONEST_CALL = "/ampd.v1.ParameterService/ListModels"


class Ampd:
    """The same as attacks.Server."""

    honest = [HONEST_CALL]
    name = "ampd"

    def __init__(self, binaries, core=None):
        self.folder = tempfile.mkdtemp(prefix="ampd-attacks-")
        before = os.sched_getaffinity(0)
        if core is not None:
            os.sched_setaffinity(0, {int(core)})
        try:
            self.server = ampd.Server(pathlib.Path(binaries), pathlib.Path(self.folder) / "data")
        finally:
            os.sched_setaffinity(0, before)
        self.process, self.port = self.server.process, str(self.server.port)
        api = ampd.Api(self.server.channel)
        api.CreateModel(spec=ampd.spec(MODEL, (("w", [BLOCKS * ampd.BLOCK_ELEMENTS]),)))
        api.Load(list(zeros()))
        api.ListScaleHistory(model=MODEL)  # the store's reader opens its files with the first read, which an attack may be
        self.server.close_channel()

    def memory_kib(self):
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.server.wait()
        text = self.server.log()
        shutil.rmtree(self.folder, ignore_errors=True)
        return code, text


def zeros():
    yield params.LoadRequest(header=params.LoadHeader(model=MODEL))
    data = bytes(4 * ampd.BLOCK_ELEMENTS)
    for index in range(BLOCKS):
        yield ampd.block_message(params.LoadRequest, index, data)


def calls():
    """Shapes beyond all memory, ids that do not exist, a poisoned scale, history without end: a line of a row's file each."""
    parameter, scale = "/ampd.v1.ParameterService/", "/ampd.v1.ScaleService/"
    push = params.PushRequest(header=params.PushHeader(model=MODEL, epoch=1, step=1, rank=7, scale_id=99,
                                                       dtype=common.DTYPE_F16))
    giant = ampd.spec("giant", (("w", [1 << 40, 1 << 20]),))
    odd = ampd.spec("odd", scaler=model.ScalerSpec(init_scale=float("nan")))
    rows = [
        (parameter + "CreateModel", params.CreateModelRequest(spec=giant)),
        (parameter + "CreateModel", params.CreateModelRequest(spec=odd)),
        (parameter + "GetModel", params.GetModelRequest(model="x" * 60)),
        (parameter + "Join", params.JoinRequest(model=MODEL, worker_name="x", rank=1 << 30)),
        (parameter + "Push", push),
        (parameter + "Pull", params.PullRequest(model=MODEL, latest=True, first_block=1 << 31)),
        (parameter + "GetPushState", params.GetPushStateRequest(model=MODEL, epoch=1 << 60)),
        (scale + "SetScale", scales.SetScaleRequest(model=MODEL, scale=float("nan"))),
        ("/ampd.v1.AdminService/SetLearningRate", admin.SetLearningRateRequest(model=MODEL, learning_rate=float("nan"))),
        (scale + "ListScaleHistory", scales.ListScaleHistoryRequest(model=MODEL, page_size=1000000)),
        (scale + "ExplainStep", scales.ExplainStepRequest(model=MODEL, step=1 << 50)),
        ("/ampd.v1.AdminService/GetStatus", admin.GetStatusRequest()),
    ]
    return "".join(f"{path} {message.SerializeToString().hex() or '-'}\n" for path, message in rows)


def quarantined(server):
    """Where steps may do without a worker, they go on without one that pushes NaN for ever. A text if they do not."""
    shrinking = ampd.TestModel(server, "shrinking", world_size=2, on_loss=model.ON_LOSS_SHRINK, min_workers=1)
    honest = shrinking.worker("honest", rank=0)
    if honest.train({"w": [1.0] * 4}).verdict != common.VERDICT_APPLIED:
        return "the first step was not applied"
    attacker = shrinking.worker("attacker", rank=1)
    honest.train({"w": [1.0] * 4})  # it was open when the attacker came
    attacker.step = honest.step
    for _ in range(8):
        honest.pull(), attacker.pull()
        ampd.together([honest, attacker], [{"w": [1.0] * 4}, {"w": [float("nan")] * 4}])
    if honest.train({"w": [1.0] * 4}).verdict != common.VERDICT_APPLIED:
        return "the steps did not go on without the attacker"
    try:
        shrinking.worker("attacker", rank=1)
    except ampd.grpc.RpcError as error:
        return "" if "join again in" in error.details() else error.details()
    return "the attacker was let in again"


def nan_for_ever(binaries):
    """A worker that pushes nothing but NaN: each step is skipped and blamed on it, and other models go on. A text if not."""
    target = Ampd(binaries)
    target.server.channel = target.server.connect()
    try:
        poisoned = ampd.TestModel(target.server, "poisoned")
        honest = ampd.TestModel(target.server, "honest")
        attacker, worker = poisoned.worker("attacker"), honest.worker("worker")
        skipped = 0
        for _ in range(12):
            result = attacker.train({"w": [float("nan")] * 4})
            skipped += result.verdict == common.VERDICT_SKIPPED_OVERFLOW
            if worker.train({"w": [1.0] * 4}).verdict != common.VERDICT_APPLIED:
                return "the honest model's step was not applied"
        rows = poisoned.api.ListOverflows(model="poisoned").rows
        blamed = {row.rank for row in rows}
        _, tensors = poisoned.latest()
        if skipped != 12 or blamed != {0} or list(tensors["w"]) != poisoned.initial["w"]:
            return f"skipped {skipped} of 12, blamed {blamed}, values {tensors}"
        return quarantined(target.server)
    finally:
        target.server.close_channel()
        target.end()
