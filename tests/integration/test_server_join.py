#!/usr/bin/python3
"""A shard of a list whose disk is lost, and what the others may do meanwhile: shard 0 away, one that says nothing, a wrong one.

    test_server_join.py BIN_DIR [NAME ...]
"""
import concurrent.futures
import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import threading

import ampd_testing
from ampd_testing import Code, eventually, grpc, peer, refused, run
from test_server_shards import FORMAT, START_TIMEOUT_S, STEPS, WORLD, Cluster, Job


def says(cluster, k, text):
    eventually(lambda: text in cluster.log(k), f"shard {k} says {text}:\n{cluster.log(k)[-2000:]}", START_TIMEOUT_S)


def new_job(cluster):
    """A model, once all shards have told what they hold."""
    jobs = []

    def made():
        try:
            jobs.append(Job(cluster))
        except grpc.RpcError as error:
            assert error.code() == Code.UNAVAILABLE, error
        return jobs
    return eventually(made, "a model can be made", START_TIMEOUT_S)[0]


def test_an_empty_store_waits_for_shard_0_which_alone_knows_how_often_it_booted(context):
    """A store that shard 1 had filled would begin to count at 1, and shard 0 refuse it start after start."""
    folder = context.folder()
    folder.mkdir()
    cluster = Cluster(context, 3, folder, ["--checkpoint-dir", folder / "shared"])
    for _ in range(2):  # boots of shard 2, so that another one's count would be lower
        cluster.kill(2)
        cluster.start(2)
        cluster.wait_until_healthy()
    job = new_job(cluster)
    workers = [job.join(rank) for rank in range(WORLD)]
    job.train(workers, 1, 2)
    eventually(lambda: cluster.api(0).GetModel(model="m").status.durable_step == 2, "step 2 is durable")
    cluster.kill(0)
    cluster.kill(2)
    shutil.rmtree(folder / "data-2")
    cluster.start(2, ["--epoch-above", "9"])
    says(cluster, 2, "the store is not filled yet")
    cluster.start(0)
    cluster.wait_until_healthy()
    assert "the store was filled by another shard" in cluster.log(2)
    eventually(lambda: not cluster.api(0).GetModel(model="m").status.recovering, "the model is back", START_TIMEOUT_S)
    workers = [job.join(rank) for rank in range(WORLD)]
    assert len(job.train(workers, workers[0].step, workers[0].step)) == 1


def test_a_process_of_before_takes_no_checkpoint_of_its_successor_away(context):
    """Files of a shard lie where another process has held its place since: a catalogue of before does not name them."""
    folder = context.folder()
    folder.mkdir()
    cluster = Cluster(context, 2, folder, ["--checkpoint-dir", folder / "shared"])
    job = Job(cluster)

    def status():
        return cluster.api(0).GetModel(model="m").status

    def train(first, last):
        eventually(lambda: not status().recovering, "the model is back", START_TIMEOUT_S)
        workers = [job.join(rank) for rank in range(WORLD)]
        assert workers[0].step == first, workers[0].step
        job.train(workers, first, last)
        eventually(lambda: status().durable_step == last, f"step {last} is durable")

    train(1, 2)
    cluster.kill(1)
    (folder / "data-1").rename(folder / "before")
    cluster.start(1, ["--epoch-above", "5"])
    cluster.wait_until_healthy()
    train(3, 4)
    parts = ampd_testing.found(folder, "shared/models/m/checkpoints/step-*4/shard-*-of-2.safetensors")
    assert len(parts) == 2, parts
    cluster.kill(1)
    (folder / "data-1").rename(folder / "after")
    (folder / "before").rename(folder / "data-1")
    cluster.start(1)
    says(cluster, 0, "has that place: refused")
    cluster.processes[1].wait(START_TIMEOUT_S)
    assert all(part.exists() for part in parts), "its part of the newest checkpoint is gone"
    (folder / "data-1").rename(folder / "before")
    (folder / "after").rename(folder / "data-1")
    cluster.start(1)
    cluster.wait_until_healthy()
    train(5, 6)


def test_a_signal_that_comes_while_it_starts_ends_it(context):
    """It was sent before the loop's first turn, in which the place in the list is taken: the server runs on for nobody."""
    folder = context.folder()
    folder.mkdir()
    # Blocked and pending signals go through exec.
    signalled = ("import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); "
                 "os.kill(os.getpid(), signal.SIGTERM); os.execv(sys.argv[1], sys.argv[1:])")
    for k in range(2):
        done = subprocess.run(
            [*ampd_testing.DIE_WITH_PARENT, sys.executable, "-c", signalled, context.bin_dir / "ampd", "--data-dir",
             folder / f"data-{k}", "--listen", f"unix:{folder}/s{k}", "--metrics-listen", "127.0.0.1:0", "--shard", str(k),
             "--peers", f"unix:{folder}/s0,unix:{folder}/s1"], stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=60)
        assert done.returncode == 0, (k, done.returncode, done.stderr[-2000:])


def test_a_shard_that_says_nothing_is_given_up_for_a_while(context):
    """It takes the call and lives, as one whose disk hangs does. Whoever waits for it ends when told to."""
    folder = context.folder()
    folder.mkdir()
    over = threading.Event()

    class Silent(grpc.GenericRpcHandler):
        def service(self, details):
            def answer(request, call):
                over.wait(60)
                return iter(())
            return grpc.unary_stream_rpc_method_handler(answer) if details.method.endswith("/FetchRows") else None

    silent = grpc.server(concurrent.futures.ThreadPoolExecutor(4), handlers=[Silent()])
    silent.add_insecure_port(f"unix:{folder}/s1")
    silent.start()
    with open(folder / "log-0", "wb") as log:
        process = subprocess.Popen(
            [*ampd_testing.DIE_WITH_PARENT, context.bin_dir / "ampd", "--data-dir", folder / "data-0", "--listen",
             f"unix:{folder}/s0", "--metrics-listen", "127.0.0.1:0", "--peers", f"unix:{folder}/s0,unix:{folder}/s1", "--shard", "0",
             "--epoch-above", "1"],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        eventually(lambda: "it has been silent for too long" in (folder / "log-0").read_text(), "it is given up", START_TIMEOUT_S)
        process.terminate()
        assert process.wait(60) == 0, (folder / "log-0").read_text()
    finally:
        process.kill()
        process.wait()
        over.set()
        silent.stop(None)


def test_rows_are_those_of_the_shard_that_was_asked(context):
    cluster = Cluster(context, 2)
    envelope = {"format": FORMAT, "shard_count": 2, "sender": 1}
    assert cluster.api(0).FetchRows(envelope=peer.Envelope(receiver=0, **envelope))
    refused(lambda: cluster.api(0).FetchRows(envelope=peer.Envelope(receiver=1, **envelope)), Code.UNAVAILABLE, "SHARD_MOVED")


def lengthen_catalogue(cluster, k, first):
    """What keep_every leaves of a long run, in a store that nobody has open: older than what is there, and more than 4 MiB."""
    with contextlib.closing(sqlite3.connect(cluster.folder / f"data-{k}" / "ampd.db")) as store, store:
        number, = store.execute("SELECT id FROM models WHERE name='m'").fetchone()
        store.executemany(
            "INSERT INTO checkpoints(model_id,epoch,step,version,file,size_bytes,manifest,at_us,void,scale,parts)"
            " VALUES(?,1,?,?,?,1,zeroblob(16),1,0,1,zeroblob(1024))",
            ((number, step, step, f"models/m/checkpoints/step-{step:010}/shard-{k}-of-2.safetensors")
             for step in range(first, first + 4500)))


def test_a_catalogue_that_is_longer_than_a_message_is_told(context):
    """By SYNC, and to a shard whose store is lost."""
    folder = context.folder()
    folder.mkdir()
    cluster = Cluster(context, 2, folder, ["--checkpoint-dir", folder / "shared"])
    job = Job(cluster)

    def train(first, last):
        eventually(lambda: not cluster.api(0).GetModel(model="m").status.recovering, "the model is back", START_TIMEOUT_S)
        job.train([job.join(rank) for rank in range(WORLD)], first, last)
        eventually(lambda: cluster.api(0).GetModel(model="m").status.durable_step == last, f"step {last} is durable")

    train(1, 2)
    cluster.kill(1)  # for epoch 2, whose checkpoints are newer
    cluster.start(1)
    cluster.wait_until_healthy()
    train(3, 4)
    for k in range(2):
        cluster.kill(k)
        lengthen_catalogue(cluster, k, 5)
    for k in range(2):
        cluster.start(k)
    cluster.wait_until_healthy()
    train(5, 6)
    for k in range(2):
        cluster.kill(k)
    lengthen_catalogue(cluster, 0, 10000)
    shutil.rmtree(folder / "data-1")
    cluster.start(0)
    cluster.start(1, ["--epoch-above", "9"])
    cluster.wait_until_healthy()
    assert "the store was filled by another shard" in cluster.log(1)
    train(7, 8)


class Teller(grpc.GenericRpcHandler):
    """In the place of shard 0: says what it is given to whoever asks for rows."""

    def __init__(self, address, messages):
        self.messages, self.asked = messages, 0
        self.server = grpc.server(concurrent.futures.ThreadPoolExecutor(4), handlers=[self])
        self.server.add_insecure_port(address)
        self.server.start()

    def service(self, details):
        def answer(request, call):
            self.asked += 1
            return iter(self.messages)
        return grpc.unary_stream_rpc_method_handler(answer) if details.method.endswith("/FetchRows") else None


def test_a_file_of_a_checkpoint_is_no_path_to_elsewhere(context):
    """What another shard says of its files goes into this one's catalogue, out of which files are removed."""
    cluster = Cluster(context, 2)
    job = new_job(cluster)
    job.train([job.join(rank) for rank in range(WORLD)], 1, 2)
    eventually(lambda: cluster.api(0).GetModel(model="m").status.durable_step == 2, "step 2 is durable")
    envelope = peer.Envelope(format=FORMAT, shard_count=2, sender=1, receiver=0)
    told = list(cluster.channels[0].unary_stream("/ampd.v1.PeerService/FetchRows")(
        peer.SessionRequest(envelope=envelope).SerializeToString()))
    name = b"models/m/checkpoints/step-0000000002/shard-0-of-2.safetensors"
    assert any(name in message for message in told)
    assert cluster.end() == [0, 0]
    shutil.rmtree(cluster.folder / "data-1")
    own = b"/shard-1-of-2.safetensors"
    away = b"../../elsewhere".ljust(len(name) - len(own), b"/") + own
    teller = Teller(cluster.addresses[0], [message.replace(name, away) for message in told])
    try:
        cluster.start(1, ["--epoch-above", "9"])
        says(cluster, 1, "a checkpoint of m has no file's name")
        teller.messages = told
        says(cluster, 1, "the store was filled by another shard")
    finally:
        teller.server.stop(None)


def test_a_part_that_is_damaged_is_passed_over_for_the_one_before_also_by_who_was_filled(context):
    folder = context.folder()
    folder.mkdir()
    cluster = Cluster(context, 2, folder, ["--checkpoint-dir", folder / "checkpoints"])
    job = Job(cluster, checkpoint_every=1)
    job.train([job.join(rank) for rank in range(WORLD)], 1, STEPS)
    eventually(lambda: cluster.api(0).GetModel(model="m").status.durable_step == STEPS, "the last step is durable")
    cluster.kill(1)
    part, = ampd_testing.found(folder, f"checkpoints/**/step-*{STEPS}/shard-1-of-2.safetensors")
    data = bytearray(part.read_bytes())
    data[100] ^= 1  # in its header
    part.write_bytes(data)
    shutil.rmtree(folder / "data-1")
    cluster.start(1, ["--epoch-above", "1"])
    eventually(lambda: (status := cluster.api(0).GetModel(model="m").status).epoch == 2 and not status.recovering,
               f"an epoch begins: {cluster.log(0)[-2000:]}")
    assert job.join(0).step == STEPS and cluster.end() == [0, 0]


def test_a_part_that_cannot_be_read_holds_one_model_alone_also_where_its_shard_was_filled(context):
    """The first is what a disk with a bad sector says (EIO), the second a folder that was brought back as another user's."""
    folder = context.folder()
    folder.mkdir()
    cluster = Cluster(context, 2, folder, ["--checkpoint-dir", folder / "checkpoints"])
    jobs = [Job(cluster, name=name, checkpoint_every=1) for name in ("m", "other")]
    if os.geteuid() == 0:  # for whom modes are to count, too
        cluster.program = folder / "ampd"
        cluster.program.write_text("#!/bin/sh\nexec setpriv --bounding-set=-dac_override,-dac_read_search "
                                   f'"{context.bin_dir / "ampd"}" "$@"\n')
        cluster.program.chmod(0o755)

    def recovering(name):
        return cluster.api(0).GetModel(model=name).status.recovering

    def linked(part):
        away = part.rename(folder / "away")
        part.symlink_to(away)

    def closed(part):
        part.parent.chmod(0)

    def back(part):
        part.parent.chmod(0o700)
        if part.is_symlink():
            (folder / "away").rename(part)

    for turn, spoil in enumerate((linked, closed)):
        first, last = 1 + turn * STEPS, (1 + turn) * STEPS
        for job in jobs:
            job.train([job.join(rank) for rank in range(WORLD)], first, last)
            eventually(lambda n=job.name: cluster.api(0).GetModel(model=n).status.durable_step == last, "the last step is durable")
        cluster.kill(1)
        part, = ampd_testing.found(folder, f"checkpoints/models/m/**/step-{last:010}/shard-1-of-2.safetensors")
        spoil(part)
        shutil.rmtree(folder / "data-1")
        cluster.start(1, ["--epoch-above", str(9 * (turn + 1))])
        cluster.wait_until_healthy()
        eventually(lambda: not recovering("other"), "the other model is back", START_TIMEOUT_S)
        says(cluster, 1, f"checkpoint {last} of m")
        assert recovering("m")
        back(part)
        eventually(lambda: not recovering("m"), "the model is back", START_TIMEOUT_S)
        assert jobs[0].join(0).step == last + 1
        newest = cluster.api(1).ListCheckpoints(model="m").checkpoints[-1]
        assert len(cluster.api(1).ReadCheckpoint(model="m", epoch=newest.epoch, step=newest.step)) > 1
    assert cluster.end() == [0, 0]


if __name__ == "__main__":
    run(globals())
