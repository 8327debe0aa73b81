#!/usr/bin/python3
"""Workers and their leases, on real sockets: who waits keeps its lease as long as its connection lives, on any shard; who computes sends
KeepAlive; two processes under one rank do not take it from each other for ever.

    test_server_workers.py BIN_DIR [NAME ...]
"""
import socket
import threading
import time

import ampd_testing
from ampd_testing import Api, Code, OpenStream, common, eventually, grpc, params, refused, run, scales
from test_server_shards import Cluster, Job

LEASE_S = 4.0 * ampd_testing.PATIENCE
LEASE = f"{int(LEASE_S * 1000)}ms"
GRADIENT = {"w": [1.0] * 4}


class Relay:
    """A connection to a server that can be held: both ends keep it open, and no byte comes through. As of a process that is stopped."""

    def __init__(self, port):
        self.port, self.flows, self.sockets = port, threading.Event(), []
        self.flows.set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()
        self.channel = grpc.insecure_channel("127.0.0.1:%d" % self.listener.getsockname()[1],
                                             options=ampd_testing.CHANNEL_OPTIONS)

    def _accept(self):
        while True:
            try:
                near = self.listener.accept()[0]
            except OSError:
                return
            far = socket.create_connection(("127.0.0.1", self.port))
            self.sockets += [near, far]
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source, target):
        try:
            while data := source.recv(65536):
                self.flows.wait()
                target.sendall(data)
        except OSError:
            pass

    def hold(self):
        self.flows.clear()

    def release(self):
        self.flows.set()

    def close(self):
        self.channel.close()
        self.release()
        for end in (self.listener, *self.sockets):
            end.close()


def computes(worker, seconds):
    """A forward pass of that time: nothing is sent but KeepAlive."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        assert worker.api.KeepAlive(**worker.identity()).incarnation_valid
        time.sleep(LEASE_S / 4)


def rows(test_model):
    return {worker.rank: worker for worker in test_model.status().workers}


def test_a_worker_that_waits_for_a_slow_one_keeps_its_lease(context):
    """The fast one waits in Push, then in Pull, each time for twice the lease and more; it never sends KeepAlive."""
    test_model = context.model("slow", context.server("--worker-lease", LEASE), world_size=2)
    fast, slow = test_model.workers(2)
    for step in range(1, 4):
        fast.step = slow.step = step
        waits = fast.api.start("Pull", model="slow", epoch=fast.epoch, step=step, rank=fast.rank,
                               incarnation=fast.incarnation)
        for worker in (fast, slow):
            worker.pull()
        for _ in waits.call:
            pass
        pushed = fast.start_push(GRADIENT)
        ahead = fast.api.start("Pull", model="slow", epoch=fast.epoch, step=step + 1, rank=fast.rank,
                               incarnation=fast.incarnation)
        computes(slow, 2.4 * LEASE_S)
        slow.push(GRADIENT)
        assert pushed.result().result.verdict == common.VERDICT_APPLIED
        ahead.cancel()
    assert all(row.live and row.joins == 1 and row.fences == 0 for row in rows(test_model).values()), rows(test_model)


def test_a_worker_that_watches_keeps_its_lease_and_one_that_does_nothing_does_not(context):
    test_model = context.model("watch", context.server("--worker-lease", LEASE), world_size=3)
    watches, silent, plain = test_model.workers(3)
    stream = watches.api.start("WatchSteps", model="watch", rank=watches.rank, incarnation=watches.incarnation)
    other = plain.api.start("WatchSteps", model="watch")  # of nobody
    eventually(lambda: not rows(test_model)[silent.rank].live, "the lease of the silent worker has ended")
    time.sleep(LEASE_S)
    assert rows(test_model)[watches.rank].live and not rows(test_model)[plain.rank].live
    for call in (stream, other):
        call.cancel()
    eventually(lambda: not rows(test_model)[watches.rank].live, "the lease of who watches no more has ended")
    error = refused(silent.push_state, Code.ABORTED, "FENCED", words="KeepAlive")
    assert "join again" in error.text, error


def test_a_worker_that_is_stopped_loses_its_lease_with_its_calls_open(context):
    server = context.server("--worker-lease", LEASE)
    test_model = context.model("stopped", server, world_size=2)
    stopped, waits = test_model.workers(2)
    relay = Relay(server.port)
    stream = OpenStream(Api(relay.channel), "Push", [])
    for worker in (stopped, waits):
        worker.pull()
    stream.send(stopped.push_header())
    pushed = waits.start_push(GRADIENT)
    computes(waits, 2 * LEASE_S)
    assert rows(test_model)[stopped.rank].live  # its connection answers
    relay.hold()
    began = time.monotonic()
    eventually(lambda: not rows(test_model)[stopped.rank].live, "the lease of the stopped worker has ended")
    assert time.monotonic() - began < 3 * LEASE_S
    assert rows(test_model)[waits.rank].live and not pushed.done()
    relay.release()
    stream.cancel()
    relay.close()


def test_a_worker_that_waits_on_another_shard_alone_keeps_its_lease(context):
    cluster = Cluster(context, 2, options=["--worker-lease", LEASE])
    job = Job(cluster)
    joined = [job.join(rank) for rank in range(job.spec.world_size)]
    job.pull(joined[0], 1)
    waits = cluster.api(1).start("Pull", model=job.name, epoch=joined[0].epoch, step=2, shard=1, rank=0,
                                 incarnation=joined[0].incarnation)
    status = lambda: {worker.rank: worker.live for worker in cluster.api(0).GetModel(model=job.name).status.workers}  # noqa: E731
    eventually(lambda: not status()[1], "the lease of the silent worker has ended")
    time.sleep(LEASE_S)
    assert status()[0], status()
    waits.cancel()
    eventually(lambda: not status()[0], "the lease of who waits no more has ended")


def test_no_call_can_be_made_in_the_name_of_another_worker(context):
    """Status and history tell its rank and its number, but not the random number that Join has given it."""
    test_model = context.model("names")
    worker = test_model.worker()
    worker.train(GRADIENT)
    worker.pull()
    seen = [rows(test_model)[0].incarnation]
    seen += [row.incarnation for row in worker.api.ExplainStep(model="names", step=1).contributors]
    for incarnation in seen:
        assert (incarnation.fence, incarnation.counter, incarnation.boot_id) == (
            worker.incarnation.fence, worker.incarnation.counter, 0), incarnation
    for boot_id in (0, worker.incarnation.boot_id + 1, worker.incarnation.boot_id ^ 1 << 60):
        forged = common.Incarnation(fence=worker.incarnation.fence, counter=worker.incarnation.counter, boot_id=boot_id)
        name = {"model": "names", "rank": 0, "incarnation": forged}
        refused(lambda f=forged: worker.push(GRADIENT, incarnation=f), Code.ABORTED, "FENCED")
        refused(lambda f=forged: worker.push_state(incarnation=f), Code.ABORTED, "FENCED")
        refused(lambda n=name: worker.api.Pull(latest=True, **n), Code.ABORTED, "FENCED")
        refused(lambda n=name: worker.api.Leave(**n), Code.ABORTED, "FENCED")
        assert not worker.api.KeepAlive(**name).incarnation_valid
    assert worker.push(GRADIENT).verdict == common.VERDICT_APPLIED


def test_two_processes_under_one_rank_end_with_a_sentence(context):
    """Both would go on for ever by joining again: the older one is told to stop, and the log has a line or two."""
    server = context.server()
    test_model = context.model("twice", server)
    older = test_model.worker("rank-0", rank=0, instance=111)
    newer = test_model.worker("rank-0", rank=0, instance=222)
    for _ in range(20):
        error = refused(older.push_state, Code.ABORTED, "RANK_TAKEN", words="rank-0")
    assert "two workers run under one rank" in error.text and "127.0.0.1:" in error.text, error
    told = older.api.KeepAlive(**older.identity())
    assert not told.incarnation_valid and "rank 0 was taken by rank-0" in told.taken_by, told
    for _ in range(3):
        assert newer.train(GRADIENT).verdict == common.VERDICT_APPLIED
    assert newer.api.KeepAlive(**newer.identity()).taken_by == ""
    row = rows(test_model)[0]
    assert (row.joins, row.replacements, row.fences, row.leaves) == (2, 1, 20, 0) and row.peer, row
    eventually(lambda: "20 refused calls" in server.log(), "what was left out of the log is told")
    lines = [line for line in server.log().splitlines() if "rank 0" in line]
    assert len(lines) == 2, lines  # the older one's Join, and what came within ten seconds of it


if __name__ == "__main__":
    run(globals())
