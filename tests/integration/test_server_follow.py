#!/usr/bin/python3
"""A worker of libampclient finds the processes that are the shards now: past a standby, past one that is stopped, past one that came
back as something else; and so does ampctl.

    test_server_follow.py BIN_DIR [NAME ...]
"""
import pathlib
import signal
import subprocess
import time

from ampd_testing import CALL_TIMEOUT_S, PATIENCE, Code, admin, eventually, grpc, refused, run
from test_server_failover import LEASE_S, Worker, new_cluster

STEPS = 1_000_000         # more than there is time for
# Leases are of the time that a cluster gives them by itself: a process lives through stalls of nine tenths of it. Two shards that
# lose a shorter one to a busy machine, on which etcd may stand still for two seconds, are more than one standby is for.
#
# The worker waits for the lease, 6 s for a connection that is silent, and a restore. Who does not leave such a connection waits until
# a call ends by its own deadline, which is a minute: any bound below that tells the one from the other.
STOPPED_S = 50
COMMAND_S = 60
UNAVAILABLE = 64 + 14


def started(context, first=None):
    """(cluster, standby, worker) that trains; the worker is given this process's address before that of a shard."""
    cluster = new_cluster(context, 3, LEASE_S)
    standby = cluster.add()
    standby.says("this process stands by")
    addresses = f"{standby.address},{cluster.of(1).address}" if first == "standby" else cluster.of(1).address
    worker = Worker(context.bin_dir, addresses, STEPS)
    context._own.append(worker)
    worker.await_steps(30)
    return cluster, standby, worker


def test_a_worker_that_is_sent_to_a_standby_goes_to_the_next_address(context):
    started(context, first="standby")


def test_a_worker_leaves_a_process_that_is_stopped(context):
    """Nobody closes the connection to it: the kernel goes on answering in its name."""
    for shard in (2, 0):
        cluster, standby, worker = started(context)
        stopped = cluster.of(shard)
        stopped.send(signal.SIGSTOP)
        began = time.monotonic()
        worker.await_steps(30)
        waited = time.monotonic() - began
        print(f"    shard {shard} stopped, lease {LEASE_S} s: 30 steps after {waited:.2f} s")
        assert waited < STOPPED_S, waited
        assert standby.shard() == shard
        stopped.kill()
        worker.stop()


def test_a_worker_leaves_a_process_that_came_back_to_stand_by(context):
    """At the same address, before anybody has its place: what connects there is told to go elsewhere."""
    for shard in (2, 0):
        cluster, standby, worker = started(context)
        lost = cluster.of(shard)
        lost.kill()
        standby.serves()
        lost.start()
        lost.says("all 3 shards are held; this process stands by")
        worker.await_steps(30)
        assert standby.shard() == shard
        worker.stop()


def test_calls_for_a_shard_that_is_elsewhere_are_told_to_be_made_again(context):
    cluster = new_cluster(context, 2, LEASE_S)
    api = cluster.api(1)
    eventually(lambda: api.GetStatus().shards[0].endpoint == cluster.of(0).address, "shard 0 is known")
    refused(lambda: api.Pull(model="m", latest=True, shard=0), Code.UNAVAILABLE, "SHARD_MOVED", ("shard 1", "GetStatus"))
    refused(lambda: api.Pull(model="m", latest=True, shard=2), Code.INVALID_ARGUMENT, "INVALID_FIELD", "shard")


def test_a_call_to_a_wrong_process_is_not_made_again_there(context):
    """gRPC's retries would go there thrice more, half a second apart: the trailer says no, and no RetryInfo asks to wait."""
    cluster = new_cluster(context, 2, LEASE_S)
    standby = cluster.add()
    standby.says("this process stands by")
    api = cluster.api(1)
    eventually(lambda: api.GetStatus().shards[0].endpoint == cluster.of(0).address, "shard 0 is known")
    for reason, call in (("STANDBY", standby.api().GetStatus), ("SHARD_MOVED", lambda: api.Pull(model="m", latest=True, shard=0)),
                         ("NOT_COORDINATOR", lambda: api.Checkpoint(model="m"))):
        assert refused(call, Code.UNAVAILABLE, reason).retry_ms is None, reason
        try:
            call()
        except grpc.RpcError as error:
            assert ("grpc-retry-pushback-ms", "-1") in [tuple(pair) for pair in error.trailing_metadata()], reason
    # A worker's first call: through the standby it takes no longer than the pause of the library.
    began = time.monotonic()
    first = Worker(context.bin_dir, cluster.of(1).address, STEPS)
    first.await_steps(1)
    straight_s = time.monotonic() - began
    first.await_steps(5)
    first.stop()
    began = time.monotonic()
    second = Worker(context.bin_dir, f"{standby.address},{cluster.of(1).address}", STEPS)
    context._own.append(second)
    second.await_steps(1)
    took_s = time.monotonic() - began
    print(f"    the first step through a standby: {took_s:.2f} s, without one {straight_s:.2f} s")
    assert took_s < straight_s + 1.5 * PATIENCE, (took_s, straight_s)


def test_a_channel_of_grpc_goes_past_a_standby_where_it_asks_for_the_health(context):
    """With the service config of docs/grpc.md. Without it a channel stays with the first address that takes its connection."""
    cluster = new_cluster(context, 1, LEASE_S)
    standby = cluster.add()
    standby.says("this process stands by")
    target = f"{standby.address},{cluster.of(0).address.removeprefix('unix:')}"
    page = (pathlib.Path(__file__).parents[2] / "docs" / "grpc.md").read_text(encoding="utf-8")
    config = next(line.strip() for line in page.splitlines() if "healthCheckConfig" in line)

    def status(channel):
        return channel.unary_unary("/ampd.v1.AdminService/GetStatus", admin.GetStatusRequest.SerializeToString)(
            admin.GetStatusRequest(), timeout=CALL_TIMEOUT_S, wait_for_ready=True)

    with grpc.insecure_channel(target) as plain, grpc.insecure_channel(target, [("grpc.service_config", config)]) as channel:
        for _ in range(10):
            refused(lambda: status(plain), Code.UNAVAILABLE, "STANDBY")
            status(channel)
        cluster.of(0).kill()
        standby.serves()
        status(channel)


def ampctl(context, endpoints, *arguments, code=0):
    """Its stdout and stderr."""
    done = subprocess.run([context.bin_dir / "ampctl", "--endpoint", endpoints, "--timeout", str(COMMAND_S), *arguments],
                          capture_output=True, encoding="utf-8", timeout=2 * COMMAND_S, check=False)
    assert done.returncode == code, (arguments, done)
    return done.stdout, done.stderr


def test_ampctl_goes_on_to_shard_0_from_a_standby_and_from_another_shard(context):
    cluster, standby, worker = started(context)
    worker.stop()
    one = cluster.of(1).address
    # The address of a standby or of another shard alone, and before others of which none is that of shard 0.
    for endpoints in (standby.address, one, f"{standby.address},{one}", f"{one},{standby.address}"):
        out, said = ampctl(context, endpoints, "-o", "csv", "scale", "set", "m", "1024")
        assert out.count("\n") == 2 and "asking elsewhere: this " in said, (endpoints, out, said)
    assert "stands by" in ampctl(context, standby.address, "status")[1]
    # What is meant for one process is not done to another.
    for arguments in (("drain",), ("log-level", "debug"), ("cluster", "--local")):
        out, said = ampctl(context, f"{standby.address},{one}", *arguments, code=UNAVAILABLE)
        assert out == "" and "stands by" in said and "going on" not in said, said
    assert all(process.process.poll() is None for process in cluster.processes)


def test_ampctl_with_the_address_of_before_works_after_a_failover(context):
    cluster, standby, worker = started(context)
    lost = cluster.of(0)
    lost.kill()
    standby.serves()
    lost.start()
    lost.says("all 3 shards are held; this process stands by")
    worker.await_steps(30)
    worker.stop()
    for arguments in (("models",), ("history", "m", "--limit", "3"), ("explain", "m", "1"), ("cluster",)):
        assert ampctl(context, lost.address, *arguments)[0] != "", arguments


if __name__ == "__main__":
    run(globals())
