#!/usr/bin/python3
"""ampctl backup and restore: the bytes of a checkpoint on any number of shards, nothing of a wrong backup, and kills.

    test_ampctl_backup.py BIN_DIR [NAME ...]

AMPD_ROUNDS: kills while a model trains and is backed up; 3. AMPD_SEED: their moments.
"""
import ctypes
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import threading
import time

from ampd_testing import CALL_TIMEOUT_S, eventually, grpc, run, spec
from auth_testing import TokenFile
from test_server_full import HALF, ctl, goes_on, header_of, trained
from test_server_reshard import Told
from test_server_shards import START_TIMEOUT_S, STEPS, WORLD, Cluster

ROUNDS = int(os.environ.get("AMPD_ROUNDS", "3"))
HASH_TAIL = len(',\n  "hash": "') + 32 + len('"\n}\n')


def start(context, endpoint, *arguments):
    return subprocess.Popen([context.bin_dir / "ampctl", "-e", endpoint, *map(str, arguments)],
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")


def backed_up(context, count, **fields):
    """A cluster that has trained, and its backup: (cluster, job, the folder, the bytes of its checkpoint)."""
    cluster, job = trained(context, count, **fields)
    folder, whole = cluster.folder / "backup", cluster.folder / "whole"
    ctl(context, cluster, "backup", folder)
    ctl(context, cluster, "checkpoint", "export", "m", whole)
    return cluster, job, folder, whole.read_bytes()


def exported(context, cluster, name="again"):
    path = cluster.folder / name
    ctl(context, cluster, "checkpoint", "export", "m", path)
    return path.read_bytes()


def manifest_of(folder):
    return json.loads((folder / "manifest.json").read_bytes())


class Hash128(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


XXHASH = ctypes.CDLL("libxxhash.so.0")
XXHASH.XXH3_128bits.restype = Hash128
XXHASH.XXH3_128bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]


def xxh128(data):
    value = XXHASH.XXH3_128bits(data, len(data))
    return f"{value.high:016x}{value.low:016x}"


def models_of(cluster):
    return [one.name for one in cluster.api(0).ListModels().models]


def test_a_restored_model_has_the_bytes_of_the_checkpoint_on_any_number_of_shards(context):
    for count, counts in ((1, (1, 3)), (3, (2,))):
        stays, job, folder, whole = backed_up(context, count, **HALF)
        assert (folder / "models/m/checkpoint.safetensors").read_bytes() == whole
        was = stays.api(0).GetModel(model="m")
        expected = goes_on(context, stays, job)
        for other in counts:
            cluster = Cluster(context, other)
            row = json.loads(ctl(context, cluster, "-o", "json", "restore", folder))["rows"][0]
            assert (row["model"], row["step"], row["tensors"]) == ("m", STEPS, 9), row
            assert exported(context, cluster) == whole, f"{count} -> {other}: other bytes"
            now = cluster.api(0).GetModel(model="m")
            assert now.spec == was.spec, f"{count} -> {other}: {now.spec}"
            assert now.status.scale == was.status.scale and now.status.step == STEPS + 1, now.status
            there = Told(cluster, load=False, **HALF)
            assert goes_on(context, cluster, there) == expected, f"{count} -> {other}: other bytes later"


def test_the_manifest_says_what_the_backup_holds(context):
    cluster, job, folder, whole = backed_up(context, 2)
    said = manifest_of(folder)
    version = cluster.api(0).GetStatus().version
    assert (said["format"], said["server"], said["ampctl"]) == (1, version, version), said
    [one] = said["models"]
    metadata = header_of(folder / "models/m/checkpoint.safetensors")[0]["__metadata__"]
    assert one["name"] == "m" and one["specification"]["optimizer"]["kind"] == "adamw" and one["parameters"] == 3, one
    checkpoint = one["checkpoint"]
    assert (checkpoint["epoch"], checkpoint["step"], checkpoint["decided_step"]) == (1, STEPS, STEPS), checkpoint
    assert checkpoint["version"] == int(metadata["version"]), (checkpoint, metadata)
    assert [state["size"] for state in checkpoint["user_states"]] == \
        [len(job.user_state(rank, STEPS)) for rank in range(WORLD)], checkpoint
    scale = cluster.api(0).GetScale(model="m").record
    for name, value in checkpoint["scale"].items():
        assert getattr(scale, name) == value, (name, value, scale)
    assert set(one["files"]) == {path.name for path in (folder / "models/m").iterdir()}
    for name, file in one["files"].items():
        assert file["size"] == (folder / "models/m" / name).stat().st_size, name
    rows = json.loads((folder / "models/m/history.json").read_text())["rows"]
    assert [row["step"] for row in rows if row.get("verdict")] == list(range(1, STEPS + 1)), rows
    rows = json.loads((folder / "models/m/overflows.json").read_text())["rows"]
    assert [(row["step"], row["parameter"]) for row in rows] == [(4, "tail")], rows
    text = (folder / "manifest.json").read_bytes()
    assert said["hash"] == xxh128(text[:-HASH_TAIL])
    for name, file in one["files"].items():
        assert file["hash"] == xxh128((folder / "models/m" / name).read_bytes()), name


def test_all_models_are_backed_up_and_one_of_them_can_be_restored(context):
    cluster, job = trained(context, 1)
    api, folder, one = cluster.api(0), cluster.folder / "all", cluster.folder / "one"
    ctl(context, cluster, "delete", "m", "--force")  # a fresh server of two models
    api.CreateModel(spec=spec("empty"))
    loaded = Told(cluster, name="loaded")
    eventually(lambda: api.ListCheckpoints(model="loaded").checkpoints, "its values are a checkpoint")
    ctl(context, cluster, "backup", folder)
    rows = {row["name"]: row["checkpoint"] for row in manifest_of(folder)["models"]}
    assert rows["empty"] is None and rows["loaded"]["step"] == 0 and len(rows) == 2, rows
    ctl(context, cluster, "backup", one, "empty")
    assert [row["name"] for row in manifest_of(one)["models"]] == ["empty"]
    there = Cluster(context, 2)
    said = ctl(context, there, "restore", folder, "other", code=1)
    assert "the backup has no model other" in said, said
    ctl(context, there, "restore", folder, "loaded")
    assert models_of(there) == ["loaded"]
    said = ctl(context, there, "restore", folder, code=1)
    assert "loaded exists already" in said and "nothing was restored" in said, said
    assert models_of(there) == ["loaded"], "a part of a backup was restored"
    ctl(context, there, "restore", folder, "empty")
    assert there.api(0).GetModel(model="empty").spec == api.GetModel(model="empty").spec
    ctl(context, there, "checkpoint", "export", "loaded", there.folder / "now")
    assert (there.folder / "now").read_bytes() == (folder / "models/loaded/checkpoint.safetensors").read_bytes()
    assert loaded.layout.block_count > 0 and job.name == "m"


def test_a_restore_that_fails_at_the_second_model_says_which_are_there(context):
    cluster = Cluster(context, 1)
    folder = cluster.folder / "two"
    for name in ("first", "second"):
        cluster.api(0).CreateModel(spec=spec(name))
    ctl(context, cluster, "backup", folder)
    tokens = TokenFile(context)
    token = tokens.client_file(tokens.new("worker", "ann", "--models", "1"))
    there = context.server("--token-file", tokens.path)
    done = start(context, f"127.0.0.1:{there.port}", "--token-file", token, "restore", folder)
    rows, said = done.communicate(timeout=START_TIMEOUT_S)
    assert done.returncode == 72 and "first" in rows and "second" not in rows, (done.returncode, rows, said)
    assert "token ann is 1 model" in said, said
    assert "1 of the 2 models are restored and stay, second is not" in said, said


def with_hash(text):
    """A manifest whose hash is right again."""
    body = text[:-HASH_TAIL]
    return body + f',\n  "hash": "{xxh128(body)}"\n}}\n'.encode()


def damages(folder):
    """name -> (what is done to a copy of the folder, a word of the sentence)"""
    text = (folder / "manifest.json").read_bytes()
    checkpoint, history = "models/m/checkpoint.safetensors", "models/m/history.json"

    def flip(name, at):
        def act(copy):
            data = bytearray((copy / name).read_bytes())
            data[at] ^= 1
            (copy / name).write_bytes(bytes(data))
        return act

    def put(name, data):
        return lambda copy: (copy / name).write_bytes(data)

    def lose(name):
        return lambda copy: (copy / name).unlink()

    def cut(name):
        return lambda copy: os.truncate(copy / name, (copy / name).stat().st_size - 1)

    whole = (folder / checkpoint).read_bytes()
    made = {
        "a bit of the tensors": (flip(checkpoint, -5000), "it is damaged"),
        "a bit of its header": (flip(checkpoint, 20), "it is damaged"),
        "a bit of the specification": (flip("models/m/specification.pb", 5), "it is damaged"),
        "a bit of the history": (flip(history, 9), "it is damaged"),
        "a file cut off": (cut(checkpoint), "it is damaged"),
        "a file that is longer": (put(checkpoint, whole + b"\0"), "it is damaged"),
        "an empty file": (put(checkpoint, b""), "it is damaged"),
        "no checkpoint": (lose(checkpoint), "No such file"),
        "no specification": (lose("models/m/specification.pb"), "No such file"),
        "no history": (lose(history), "No such file"),
        "no manifest": (lose("manifest.json"), "incomplete"),
        "the manifest cut off": (cut("manifest.json"), "damaged or cut off"),
        "an empty manifest": (put("manifest.json", b""), "damaged or cut off"),
        "another step in the manifest": (put("manifest.json", text.replace(b'"step": 6', b'"step": 5')),
                                         "damaged or cut off"),
        "a folder in place of a file": (lambda copy: ((copy / checkpoint).unlink(), (copy / checkpoint).mkdir()),
                                        "not a file"),
    }
    for at in [0, len(text) - 1, len(text) - 20, *random.Random(7).sample(range(len(text)), 20)]:
        made[f"bit of the manifest at {at}"] = (flip("manifest.json", at), "damaged or cut off")
    made["a later format"] = (put("manifest.json", with_hash(text.replace(b'"format": 1', b'"format": 2'))),
                              "format 2, and this ampctl reads 1")
    made["a name that leads elsewhere"] = (
        put("manifest.json", with_hash(text.replace(b'"name": "m"', b'"name": "../m"'))), "of a backup")
    made["a file that lies elsewhere"] = (
        put("manifest.json", with_hash(text.replace(b'"history.json"', b'"../../../history.json"'))), "of a backup")
    return made


def test_a_wrong_backup_is_refused_before_anything_is_created(context):
    _, _, folder, whole = backed_up(context, 1)
    cluster = Cluster(context, 2)
    copy = folder.with_name("copy")
    for name, (act, word) in damages(folder).items():
        shutil.copytree(folder, copy)
        act(copy)
        said = ctl(context, cluster, "restore", copy, code=1)
        assert word in said and said.count("\n") == 1, (name, said)
        assert models_of(cluster) == [], name
        shutil.rmtree(copy)
    said = ctl(context, cluster, "restore", copy, code=1)
    assert "No such file" in said, said
    shutil.copytree(folder, folder.with_name("x.partial"))  # killed between the manifest and the name
    said = ctl(context, cluster, "restore", folder.with_name("x.partial"), code=1)
    assert "was not finished" in said, said
    assert models_of(cluster) == []
    ctl(context, cluster, "restore", folder)
    assert exported(context, cluster) == whole


def test_a_model_that_is_there_is_refused_and_left_as_it_is(context):
    stays, job, folder, _ = backed_up(context, 1)
    job.train([job.join(rank) for rank in range(WORLD)], STEPS + 1, STEPS + 1)
    said = ctl(context, stays, "restore", folder, code=1)
    assert "m exists already, and is left as it is" in said, said
    assert stays.api(0).GetModel(model="m").status.scale.attempted == STEPS + 1


def test_a_folder_that_is_there_is_left_as_it_is(context):
    cluster, _, folder, _ = backed_up(context, 1)
    before = (folder / "manifest.json").read_bytes()
    said = ctl(context, cluster, "backup", folder, code=1)
    assert "it exists; name another folder" in said, said
    assert (folder / "manifest.json").read_bytes() == before
    assert "incomplete" in ctl(context, cluster, "backup", cluster.folder / "x.partial", code=2)
    other = cluster.folder / "mine.partial"
    other.mkdir()
    (other / "letters").write_text("dear")
    said = ctl(context, cluster, "backup", cluster.folder / "mine", code=1)
    assert "it holds files that belong to no backup" in said and (other / "letters").read_text() == "dear", said
    (other / "letters").unlink()
    (other / "models" / "private").mkdir(parents=True)
    (other / "models" / "private" / "thesis").write_text("years")
    said = ctl(context, cluster, "backup", cluster.folder / "mine", code=1)
    assert "it holds files that belong to no backup" in said, said
    assert (other / "models" / "private" / "thesis").exists()
    said = ctl(context, cluster, "backup", cluster.folder / "none", "other", code=64 + 5)
    assert "other" in said and not (cluster.folder / "none.partial").exists(), said
    bare = Cluster(context, 1)
    said = ctl(context, bare, "backup", bare.folder / "none", code=1)
    assert "no models" in said, said


def test_a_backup_that_is_stopped_or_fails_leaves_nothing(context):
    cluster, _ = trained(context, 3)
    folder, partial = cluster.folder / "backup", cluster.folder / "backup.partial"
    cluster.processes[1].send_signal(signal.SIGSTOP)
    for number in signal.SIGINT, signal.SIGTERM, signal.SIGHUP, 0:  # 0: its time is over
        first = start(context, cluster.addresses[0], "-t", "60" if number else "1", "backup", folder)
        eventually(lambda: list(partial.glob("models/m/checkpoint.safetensors.*/part-1")), "a part is waited for")
        first.send_signal(number)
        _, said = first.communicate(timeout=CALL_TIMEOUT_S)
        assert first.returncode > 0 and "ampctl: backup: " in said, (number, said)
        assert not partial.exists() and not folder.exists(), (number, said)
    cluster.processes[1].send_signal(signal.SIGCONT)


def test_a_backup_that_is_killed_leaves_what_the_next_one_replaces(context):
    cluster, _ = trained(context, 3)
    folder, partial = cluster.folder / "backup", cluster.folder / "backup.partial"
    cluster.processes[1].send_signal(signal.SIGSTOP)
    first = start(context, cluster.addresses[0], "backup", folder)
    eventually(lambda: list(partial.glob("models/m/checkpoint.safetensors.*/part-1")), "the second part is waited for")
    said = ctl(context, cluster, "backup", folder, code=1)
    assert "another backup is written there" in said, said
    first.kill()
    first.communicate(timeout=CALL_TIMEOUT_S)
    cluster.processes[1].send_signal(signal.SIGCONT)
    assert partial.is_dir() and not folder.exists()
    there = Cluster(context, 1)
    said = ctl(context, there, "restore", partial, code=1)
    assert "was not finished" in said, said
    partial.rename(cluster.folder / "renamed")
    said = ctl(context, there, "restore", cluster.folder / "renamed", code=1)
    assert "incomplete" in said and models_of(there) == [], said
    (cluster.folder / "renamed").rename(partial)
    cluster.wait_until_healthy()
    ctl(context, cluster, "backup", folder)
    assert not partial.exists()
    assert not list(folder.glob("models/m/*.*.*")), "something of the first one is left"
    ctl(context, there, "restore", folder)
    assert exported(context, there) == exported(context, cluster)


class SlowLink:
    """A port before a server, through which `rate` bytes a second come to it."""

    def __init__(self, port, rate):
        self.to, self.rate, self.listener = port, rate, socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near = self.listener.accept()[0]
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self.to))
            threading.Thread(target=self._copy, args=(near, far, self.rate), daemon=True).start()
            threading.Thread(target=self._copy, args=(far, near, None), daemon=True).start()

    @staticmethod
    def _copy(source, target, rate):
        try:
            while data := source.recv(16384):
                target.sendall(data)
                if rate is not None:
                    time.sleep(len(data) / rate)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def test_a_restore_that_is_cut_off_says_what_to_do(context):
    _, _, folder, whole = backed_up(context, 1)
    server = context.server()
    link, direct = SlowLink(server.port, len(whole) / 60), f"127.0.0.1:{server.port}"

    def restore(endpoint, *options):
        done = start(context, endpoint, *options, "restore", folder)
        return done.communicate(timeout=CALL_TIMEOUT_S)[1], done.returncode

    said, code = restore(f"127.0.0.1:{link.port}", "-t", "2")
    assert code == 64 + 4 and 'm was created, and has no values yet: "ampctl delete m"' in said, (code, said)
    said, code = restore(direct)
    assert code == 1 and "m exists already" in said, said
    assert start(context, direct, "delete", "m").wait(CALL_TIMEOUT_S) == 0
    assert restore(direct) == ("", 0)
    path = folder.with_name("now")
    assert start(context, direct, "checkpoint", "export", "m", path).wait(CALL_TIMEOUT_S) == 0
    assert path.read_bytes() == whole
    link.listener.close()


def test_a_restore_may_take_longer_than_a_call_that_moves_no_tensors(context):
    """Such a call has 10 s. The same holds for checkpoint import and create."""
    _, _, folder, whole = backed_up(context, 1)
    file, path, values = folder / "models/m/checkpoint.safetensors", folder.with_name("slow"), 840000
    server = context.server()
    direct = f"127.0.0.1:{server.port}"
    assert start(context, direct, "create", "imported", file, "--empty").wait(CALL_TIMEOUT_S) == 0
    links = [SlowLink(server.port, size / 12) for size in (len(whole), values, values)]
    verbs = (["restore", folder], ["create", "created", file], ["checkpoint", "import", "imported", file])
    began = time.monotonic()
    calls = [start(context, f"127.0.0.1:{link.port}", *verb) for link, verb in zip(links, verbs)]
    for call in calls:
        _, said = call.communicate(timeout=2 * CALL_TIMEOUT_S)
        assert call.returncode == 0, said
        assert time.monotonic() - began > 10, "it did not go through the slow link"
    assert start(context, direct, "checkpoint", "export", "m", path).wait(CALL_TIMEOUT_S) == 0
    assert path.read_bytes() == whole
    for link in links:
        link.listener.close()


class Training(threading.Thread):
    """Steps of a job until it is stopped, through kills of its shards."""

    def __init__(self, job):
        super().__init__(daemon=True)
        self.job, self.stopped, self.steps = job, False, 0

    def run(self):
        while not self.stopped:
            try:
                workers = [self.job.join(rank) for rank in range(WORLD)]
                while not self.stopped:
                    self.job.train(workers, workers[0].step, workers[0].step)
                    self.steps += 1
                    for joined in workers:
                        joined.step += 1
            except (grpc.RpcError, AssertionError, ValueError):  # a shard is away, or its channel closed
                time.sleep(0.05)

    def end(self):
        self.stopped = True
        self.join(2 * CALL_TIMEOUT_S)
        assert not self.is_alive(), "the training hangs"


STAGES = ["", "models/m/specification.pb", "models/m/*/part-0", "models/m/*/part-1", "models/m/*/models",
          "models/m/history.json", "models/m/overflows.json", "manifest.json"]


def killed_in_the_middle(context, cluster, folder, random_):
    """A shard or ampctl is killed once a file is there, or has just been. Whether the backup was whole before."""
    partial, stage = folder.with_name(folder.name + ".partial"), random_.choice(STAGES)
    victim = random_.randrange(cluster.count + 1)
    backup = start(context, cluster.addresses[0], "-t", "30", "backup", folder)
    while backup.poll() is None and not (list(partial.glob(stage)) if stage else partial.exists()):
        time.sleep(0.0005)
    if victim == cluster.count:
        backup.kill()
        backup.communicate(timeout=CALL_TIMEOUT_S)
        return folder.exists()
    cluster.kill(victim)
    _, said = backup.communicate(timeout=2 * CALL_TIMEOUT_S)
    assert folder.exists() == (backup.returncode == 0), said
    assert backup.returncode == 0 or "ampctl: backup: " in said, said
    cluster.start(victim)
    cluster.wait_until_healthy()
    eventually(lambda: not cluster.api(0).GetModel(model="m").status.recovering, "the model is back", START_TIMEOUT_S)
    return folder.exists()


def restored(context, folder, count):
    """What is in the folder is the checkpoint's bytes on another cluster, too."""
    there = Cluster(context, count)
    ctl(context, there, "restore", folder)
    assert exported(context, there) == (folder / "models/m/checkpoint.safetensors").read_bytes()
    there.stop()


def test_backups_while_a_model_trains_are_whole_or_not_there_after_kills(context):
    seed = int(os.environ.get("AMPD_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"seed {seed}, {ROUNDS} rounds (AMPD_SEED, AMPD_ROUNDS)", flush=True)
    random_, whole = random.Random(seed), 0
    cluster = Cluster(context, 2)
    job = Told(cluster, checkpoint_every=1, **HALF)
    training = Training(job)
    training.start()
    try:
        eventually(lambda: training.steps >= 2, "it trains", START_TIMEOUT_S)
        ctl(context, cluster, "backup", cluster.folder / "first")
        for turn in range(ROUNDS):
            folder, steps = cluster.folder / f"round-{turn}", training.steps
            if killed_in_the_middle(context, cluster, folder, random_):
                whole += 1
            else:
                said = ctl(context, cluster, "restore", folder, code=1)
                assert "No such file" in said, said
                ctl(context, cluster, "backup", folder)
            assert not folder.with_name(folder.name + ".partial").exists()
            restored(context, folder, 1 + turn % 3)
            eventually(lambda: training.steps > steps, "it trains on", START_TIMEOUT_S)  # noqa: B023
            shutil.rmtree(folder)
    finally:
        training.end()
    restored(context, cluster.folder / "first", 1)
    print(f"{whole} of {ROUNDS} backups were whole before the kill; {training.steps} steps", flush=True)


if __name__ == "__main__":
    run(globals())
