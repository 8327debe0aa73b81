#!/usr/bin/python3
"""What a cluster must bear without a hand: an etcd that is slow, a disk that is, clocks that are an hour apart, a place that is held
by another version. (Two that claim one shard, a shard that was stopped past its lease, an etcd that is gone or wiped: test_server_cluster.py;
full disks: test_cluster_faults.py.)

    test_cluster_badinput.py BIN_DIR [NAME ...]
"""
import asyncio
import re
import shutil
import subprocess
import threading
import time

import ampd_testing
from ampd_testing import eventually, run
from etcd_testing import LEASE_S, LOST, Cluster, Etcd, Process, wait_s
from test_server_cluster import new_job, resume, trained
from test_server_shards import STEPS, WORLD, Job, undisturbed

HOUR_S = 3600
SYNC_S = 0.1 * LEASE_S  # of which a store takes 14 to be made: longer than the lease


class SlowEtcd:
    """Between the shards and an etcd: each byte comes so much later than it was sent."""

    def __init__(self, context):
        self.etcd, self.delay_s, self.scheme = Etcd(context), 0.0, "http"
        self.loop, started = asyncio.new_event_loop(), threading.Event()

        async def listen():
            self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0)
            self.endpoints = f"127.0.0.1:{self.server.sockets[0].getsockname()[1]}"
            started.set()
            await asyncio.Event().wait()

        def loop_main():
            asyncio.set_event_loop(self.loop)
            self.task = self.loop.create_task(listen())
            try:
                self.loop.run_until_complete(self.task)
            except asyncio.CancelledError:
                pass

        self.thread = threading.Thread(target=loop_main, daemon=True)
        self.thread.start()
        assert started.wait(10)
        context._own.append(self)

    async def serve(self, reader, writer):
        try:
            other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self.etcd.port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(self.pass_on(reader, other_writer), self.pass_on(other_reader, writer))

    async def pass_on(self, reader, writer):
        """In order, and each as late as it is to be."""
        queue, last = asyncio.Queue(), 0.0

        async def read():
            data = b"-"
            while data:
                try:
                    data = await reader.read(1 << 16)
                except OSError:
                    data = b""
                queue.put_nowait((time.monotonic() + self.delay_s, data))

        reading = asyncio.ensure_future(read())
        while True:
            at, data = await queue.get()
            last = max(last, at)
            await asyncio.sleep(max(0.0, last - time.monotonic()))
            try:
                if not data:
                    break
                writer.write(data)
                await writer.drain()
            except OSError:
                break
        reading.cancel()
        writer.close()

    def stop(self):
        self.loop.call_soon_threadsafe(self.task.cancel)
        self.thread.join()


def test_an_etcd_that_is_slow_costs_nothing_and_one_that_is_too_slow_is_as_good_as_gone(context):
    expected = undisturbed(context)
    etcd = SlowEtcd(context)
    cluster = Cluster(context, 2, etcd=etcd)
    job = Job(cluster)
    etcd.delay_s = 0.25
    wait_s(3 * LEASE_S)
    assert [got for got, _ in job.train([job.join(rank) for rank in range(WORLD)], 1, 3)] == [got for got, _ in expected[:3]]
    assert all(process.process.poll() is None for process in cluster.processes)
    eventually(lambda: cluster.api(0).GetModel(model="m").status.durable_step == 2, "step 2 is durable")
    etcd.delay_s = 2.0 * LEASE_S
    assert [process.wait() for process in cluster.processes] == [LOST, LOST]
    for process in cluster.processes:
        process.start()
        process.says("trying again", 2)  # and goes on asking
        assert process.process.poll() is None
    etcd.delay_s = 0.0
    cluster.wait_until_healthy()
    resume(job, expected)


class SlowProcess(Process):
    """What it syncs is on its disk SYNC_S later."""

    def __init__(self, cluster, name, options, shim):
        self.before = ("/usr/bin/env", f"LD_PRELOAD={shim}", f"SLOW_SYNC_MS={round(SYNC_S * 1000)}")
        super().__init__(cluster, name, options)


def test_a_start_waits_for_its_disk_longer_than_its_lease_and_keeps_its_place(context):
    """On an empty directory, which is filled, and on one of before, which is set aside: a dozen syncs one after the other."""
    expected = undisturbed(context)
    shim = context.bin_dir.parent / "tests" / "integration" / "libslow_sync.so"
    cluster = Cluster(context, 0, fixed=False, options=["--checkpoint-dir", context.folder()])
    cluster.count = 2

    def add():
        cluster.processes.append(SlowProcess(cluster, f"p{len(cluster.processes)}", cluster.options, shim))
        return cluster.processes[-1]

    for _ in range(cluster.count):
        add()
    cluster.wait_until_healthy()
    job = new_job(cluster)
    trained(job, 1, 3)
    eventually(lambda: cluster.api(0).GetModel(model="m").status.durable_step == 2, "step 2 is durable")
    standby, lost = add(), cluster.of(1)
    standby.says("this process stands by")
    for turn in range(2):
        lost.kill()
        standby.serves()
        assert standby.shard() == 1
        if turn == 0:
            lost.start()
            lost.says("this process stands by")
        standby, lost = lost, standby
    assert "the old data directory was renamed" in lost.log()
    resume(job, expected)
    for process in cluster.processes:
        assert "not a shard any more" not in process.log(), process.log()[-2000:]


def test_a_disk_that_is_slow_when_the_copy_takes_its_place_ends_nothing(context):
    """The other shard has said everything by then: that it is silent means nothing."""
    cluster = Cluster(context, 2, fixed=False, options=["--checkpoint-dir", context.folder()])
    job = new_job(cluster)
    trained(job, 1, 3)
    eventually(lambda: cluster.api(0).GetModel(model="m").status.durable_step == 2, "step 2 is durable")
    shim = context.bin_dir.parent / "tests" / "integration" / "libslow_rename.so"
    standby = SlowProcess(cluster, "slow", cluster.options, shim)
    cluster.processes.append(standby)
    standby.says("this process stands by")
    cluster.of(1).kill()
    standby.serves()
    assert standby.shard() == 1 and "the store was filled by another shard" in standby.log()


class ShiftedProcess(Process):
    """Its clock of the day is so many seconds ahead."""

    def __init__(self, cluster, name, options, shim, seconds):
        self.before = ("/usr/bin/env", f"LD_PRELOAD={shim}", f"SHIFTED_CLOCK_S={seconds}")
        super().__init__(cluster, name, options)


def test_clocks_that_are_an_hour_apart_change_nothing(context):
    """Neither who holds a place, nor leases of workers, nor a bit; times in histories are those of shard 0."""
    shim = context.bin_dir.parent / "tests" / "integration" / "libshifted_clock.so"
    expected = undisturbed(context)
    cluster = Cluster(context, 0, fixed=False, options=["--checkpoint-dir", context.folder()])
    cluster.count = 3
    for i, seconds in enumerate((0, HOUR_S, -HOUR_S, 2 * HOUR_S)):
        cluster.processes.append(ShiftedProcess(cluster, f"p{i}", cluster.options, shim, seconds))
    eventually(lambda: any("this process stands by" in process.log() for process in cluster.processes), "one stands by", 60)
    cluster.wait_until_healthy()
    said = [re.search(r"ts=(\S+)Z", process.log())[1] for process in cluster.processes]
    assert len({text[:13] for text in said}) >= 3, said  # hours
    job = new_job(cluster)
    trained(job, 1, 3)
    eventually(lambda: cluster.api(0).GetModel(model="m").status.durable_step == 2, "step 2 is durable")
    for k in (1, 0):
        lost = cluster.of(k)
        lost.kill()
        eventually(lambda: k in served(cluster), f"another process is shard {k}", 60)
        cluster.wait_until_healthy()
        lost.start()
        lost.says("this process stands by")
    resume(job, expected)
    assert STEPS == len(expected)


def served(cluster):
    found = set()
    for process in cluster.processes:
        try:
            if process.process.poll() is None and process.api().health() == ampd_testing.HEALTH_SERVING:
                found.add(process.shard())
        except ampd_testing.grpc.RpcError:
            pass
    return found


def test_a_place_that_another_version_holds_ends_who_comes_later(context):
    etcd = Etcd(context)
    if shutil.which("etcdctl") is None:
        print("    without etcdctl (package etcd-client) nothing is tried")
        return
    subprocess.run(["etcdctl", "--endpoints", f"127.0.0.1:{etcd.port}", "put", "ampd/c/who/shard-0", "99 2 0 127.0.0.1:1"], check=True,
                   timeout=60, capture_output=True, env={"ETCDCTL_API": "3", "PATH": "/usr/bin:/bin"})
    cluster = Cluster(context, 0, fixed=False, etcd=etcd)
    cluster.count = 2
    process = cluster.add()
    assert process.wait() == 2, process.log()
    assert "another version of ampd" in process.log(), process.log()


if __name__ == "__main__":
    run(globals())
