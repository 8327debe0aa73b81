#!/usr/bin/python3
"""Memory shared with workers where something is short or out of reach: descriptors, sizes of files, a folder, and the
slots of workers that were replaced and are still there.

    test_server_shared_limits.py BIN_DIR [NAME ...]
"""
import contextlib
import ctypes
import itertools
import os
import pathlib
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import ampd_testing
from ampd_testing import CALL_TIMEOUT_S, DIE_WITH_PARENT, Api, Code, common, eventually, metric, refused, run, spec
from shared_testing import SLOT, Attachment, Run, answered, connect, guest, holdings, mapped, memory_left
from test_server_shards import Cluster

METRICS = ("--metrics-listen", "127.0.0.1:0")
PR_SET_THP_DISABLE = 41
SPARE = 64  # arpc_limits.spare_descriptors
BLOCKED_S = 2  # for so long the server is watched


def numbers(pid):
    return sorted(int(name) for name in os.listdir(f"/proc/{pid}/fd"))


def processor_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def unix(server):
    return f"unix:{server.data_dir}/ampd.sock"


def test_a_server_without_descriptors_waits_for_one_and_does_nothing_meanwhile(context):
    server = context.server()
    pid = server.process.pid
    open_ones = numbers(pid)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (open_ones[-1] + 1, 1024))
    links = []
    for _ in range(open_ones[-1] + 3 - len(open_ones)):  # more than there is room for: nobody accepts the last
        links.append(socket.socket(socket.AF_UNIX))
        links[-1].connect(f"{server.data_dir}/memory.sock")
    time.sleep(BLOCKED_S + 1)  # longer than a guest may stay
    begun = processor_seconds(pid)
    time.sleep(BLOCKED_S)
    took = processor_seconds(pid) - begun
    assert took < BLOCKED_S / 2, f"{took} s of processor time in {BLOCKED_S} s"
    for link in links:
        link.close()
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (1024, 1024))
    eventually(lambda: Run(context, unix(server), "m", steps=2, **SLOT).end().shared == [True, True],
               "memory is shared again")
    assert server.terminate() == 0


def test_copies_and_slots_leave_the_descriptors_that_storage_needs(context):
    server = context.server()
    pid = server.process.pid
    early = Run(context, unix(server), "early", steps=4, pause="1:begin", **SLOT)
    early.wait_until_paused()
    early.kill()
    Api(server.channel).EvictWorker(model="early", rank=0)
    taken = set(numbers(pid))
    first = next(number for number in itertools.count() if number not in taken)
    most = first + SPARE if first > SPARE else 2 * first  # so that all from the first free one on are kept back
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, 1024))
    for model in ("early", "late"):  # one has its copies, the other one has none
        worker = Run(context, unix(server), model, steps=4, **SLOT).end()
        assert not any(worker.shared), (model, worker.shared)
        worker.complainer.join(ampd_testing.CALL_TIMEOUT_S)
        assert any("are kept for storage" in line or model == "late" for line in worker.err), worker.err
    assert "are kept for storage" in server.log()
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (1024, 1024))
    assert Run(context, unix(server), "m", steps=2, **SLOT).end().shared == [True, True]
    assert server.terminate() == 0


def test_a_limit_of_file_sizes_is_no_end_of_the_server(context):
    server = context.server()
    api, elements = Api(server.channel), 16 << 20
    resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (8 << 20, resource.RLIM_INFINITY))
    api.CreateModel(spec=spec("m", [("w", [elements])], world_size=1))  # its copies are no files then
    assert server.process.poll() is None
    api.DeleteModel(model="m", force=True)
    assert server.terminate() == 0


def test_a_worker_whose_predecessors_are_stopped_shares_memory(context):
    server = context.server()
    api, stopped = Api(server.channel), []
    for _ in range(3):
        worker = Run(context, unix(server), "m", steps=3, pause="1:begin", **SLOT)
        worker.wait_until_paused()
        worker.process.send_signal(signal.SIGSTOP)
        stopped.append(worker)
        api.EvictWorker(model="m", rank=0)
    worker = Run(context, unix(server), "m", steps=3, **SLOT).end()
    assert worker.shared == [True] * 3, worker.err
    for worker in stopped:
        worker.process.send_signal(signal.SIGCONT)
        worker.kill()
    eventually(lambda: holdings(server.process.pid)[1] == 0, "no slot is held")
    assert server.terminate() == 0


def test_the_slots_of_a_deleted_model_are_given_back_while_its_worker_is_still_there(context):
    server = context.server("--memory-max", "1G")
    pid, api = server.process.pid, Api(server.channel)
    before = memory_left(api)
    deleted = Run(context, unix(server), "m", steps=3, pause="1:begin", **SLOT)
    deleted.wait_until_paused()
    assert holdings(pid)[1] == 1
    api.DeleteModel(model="m", force=True)
    eventually(lambda: holdings(pid)[1] == 0, "the slot is given back")
    assert memory_left(api) == before
    assert Run(context, unix(server), "m", steps=3, **SLOT).end().shared == [True] * 3  # another of that name
    deleted.kill()
    assert server.terminate() == 0


class Other:
    """Another process that may do what workers may, and names an incarnation."""

    def __init__(self, address, incarnation, shard=0, model="m"):
        self.api, self.shard, self.incarnation, self.model = Api(connect(address)), shard, incarnation, model

    def identity(self):
        return {"model": self.model, "rank": 0, "incarnation": self.incarnation, "shard": self.shard}

    def refused(self, reason):
        call = self.api.start("AttachMemory", **self.identity(), dtype=common.DTYPE_F16, seals=True)
        refused(call.next, Code.ABORTED, reason)


@contextlib.contextmanager
def small_pages():
    """Processes that are started meanwhile get no huge pages, as with a kernel that has none for shared memory."""
    libc = ctypes.CDLL(None)
    assert libc.prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0) == 0
    try:
        yield
    finally:
        libc.prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0)


def test_the_pages_of_a_large_slot_are_not_freed_by_the_loop(context):
    """Of 4 KiB each, they take it about a millisecond for 4 MiB, in which nothing else is served. So do copies'."""
    with small_pages():
        server = context.server("--memory-max", "4G")
    pid, api = server.process.pid, Api(server.channel)
    before = memory_left(api)
    api.CreateModel(spec=spec("m", [("w", [1 << 26])], world_size=1))
    joined = Api(connect(unix(server))).Join(model="m", rank=0, worker_name="w", instance=1)
    attachment = Attachment(Other(unix(server), joined.incarnation), fetch=False, dtype=common.DTYPE_F32)

    def times():
        loop = processor_seconds(f"{pid}/task/{pid}")
        return loop, processor_seconds(pid) - loop
    begun = times()
    attachment.end()
    eventually(lambda: holdings(pid)[1:] == (0, 2, 0), "the slot is given back")

    def threads_took_most():
        loop, others = (now - then for now, then in zip(times(), begun))
        return others > loop
    eventually(threads_took_most, "other threads have taken more time than the loop")
    api.DeleteModel(model="m", force=True)
    eventually(lambda: holdings(pid)[1:] == (0, 0, 0), "the copies are given back")
    assert memory_left(api) == before
    assert server.terminate() == 0


def test_who_has_not_joined_attaches_nothing_and_ends_no_attachment(context):
    server = context.server()
    api = Api(server.channel)
    worker = Run(context, unix(server), "m", steps=6, pause="3:begin", **SLOT)
    worker.wait_until_paused()
    shown = api.GetStatus(model="m").models[0].workers[0].incarnation  # without its secret
    for counter in (0, shown.counter, shown.counter + 1, 1 << 62):
        stranger = Other(unix(server), common.Incarnation(fence=shown.fence, counter=counter))
        for _ in range(2):
            stranger.refused("FENCED")
    worker.go_on()
    worker.end()
    assert worker.shared == [True] * 6, (worker.shared, worker.err)
    Other(unix(server), shown).refused("FENCED")  # it has left
    eventually(lambda: holdings(server.process.pid)[1] == 0, "no slot is held")
    assert server.terminate() == 0


def test_no_descriptors_are_given_of_a_model_that_was_deleted_meanwhile(context):
    server = context.server()
    api = Api(server.channel)
    api.CreateModel(spec=spec("m", [("w", [1])], world_size=1))
    joined = Api(connect(unix(server))).Join(model="m", rank=0, worker_name="w", instance=1)
    attachment = Attachment(Other(unix(server), joined.incarnation), fetch=False)
    api.DeleteModel(model="m", force=True)
    with guest(attachment.answer.socket) as link:
        link.sendall(attachment.nonce)
        assert answered(link) == []
    refused(attachment.call.next, Code.NOT_FOUND, "MODEL_NOT_FOUND")
    assert server.terminate() == 0


def test_each_guess_of_an_incarnation_is_counted_whichever_call_it_comes_by(context):
    server = context.server(*METRICS)
    worker = Run(context, unix(server), "m", steps=2, pause="1:begin", **SLOT)
    worker.wait_until_paused()
    guess = Api(server.channel).GetStatus(model="m").models[0].workers[0].incarnation  # without its secret
    Other(unix(server), guess).refused("FENCED")
    over_tcp, identity = Api(server.channel), {"model": "m", "rank": 0, "incarnation": guess}
    for in_memory in (False, True):
        refused(lambda: over_tcp.Pull(**identity, epoch=1, step=1, in_memory=in_memory), Code.ABORTED, "FENCED")
    assert not over_tcp.KeepAlive(**identity).incarnation_valid
    assert metric(server, "ampd_model_fences_total{[^}]*}") == 4
    worker.go_on()
    worker.end()
    assert worker.shared == [True] * 2
    assert server.terminate() == 0


def test_on_another_shard_no_incarnation_that_no_step_lists_ends_an_attachment_of_one_that_is_listed(context):
    cluster = Cluster(context, 2)
    worker = Run(context, cluster.addresses[0], "m", steps=6, pause="3:begin", **SLOT)
    worker.wait_until_paused()
    shown = cluster.api(0).GetStatus(model="m").models[0].workers[0].incarnation
    address = cluster.addresses[1]
    newer = common.Incarnation(fence=shown.fence + 1, counter=1)
    strangers = [Attachment(Other(address, newer, 1), fetch=False) for _ in range(3)]
    eventually(lambda: sum(each.call.call.is_active() for each in strangers) == 1, "one of them is left")
    assert strangers[-1].call.call.is_active()
    Other(address, common.Incarnation(fence=shown.fence, counter=0), 1).refused("FENCED")
    worker.go_on()
    worker.end()
    assert worker.shared == [True] * 6, (worker.shared, worker.err)
    assert cluster.end() == [0, 0]


def test_a_worker_short_of_descriptors_sends_bytes_says_so_and_keeps_none(context):
    server = context.server()
    paused = Run(context, unix(server), "m", steps=3, pause="3:ended", **SLOT)
    paused.wait_until_paused()
    count = len(numbers(paused.process.pid))
    paused.go_on()
    paused.end()
    for free in (2, 3):  # the socket, and one descriptor or two
        worker = Run(context, unix(server), f"m-{free}", steps=4, files=count + free, pause="4:ended", **SLOT)
        worker.wait_until_paused()
        pid = worker.process.pid
        kept = [fd for fd in numbers(pid) if "memfd" in os.readlink(f"/proc/{pid}/fd/{fd}")]
        worker.go_on()
        worker.end()
        worker.complainer.join(ampd_testing.CALL_TIMEOUT_S)
        assert not kept and not any(worker.shared), (free, kept, worker.shared)
        assert any("Too many open files); raise" in line for line in worker.err), worker.err
    assert server.terminate() == 0


# Connects so many times, each as soon as there is room, and says nothing on any of these connections.
CROWD = """
import socket, sys, threading
def stay():
    link = socket.socket(socket.AF_UNIX)
    link.connect(sys.argv[1])
    link.recv(1)
threads = [threading.Thread(target=stay) for _ in range(int(sys.argv[2]))]
for thread in threads:
    thread.start()
print("here", flush=True)
for thread in threads:
    thread.join()
"""


def test_who_may_attach_nothing_keeps_nobody_from_memory(context):
    """Each of the places for guests is theirs for two seconds: together they would have all for longer than a call."""
    server = context.server()
    Api(server.channel).CreateModel(spec=spec("m", [("w", [1])], world_size=1))
    joined = Api(connect(unix(server))).Join(model="m", rank=0, worker_name="w", instance=1)
    attachment = Attachment(Other(unix(server), joined.incarnation), fetch=False)
    crowd = subprocess.Popen([*DIE_WITH_PARENT, sys.executable, "-c", CROWD, attachment.answer.socket,
                              str(8 * CALL_TIMEOUT_S)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                             encoding="utf-8")
    assert crowd.stdout.readline() == "here\n"
    attachment.fetch()
    attachment.end()
    crowd.kill()
    crowd.communicate()
    assert server.terminate() == 0


@contextlib.contextmanager
def crowded(path, count):
    """So many connections of this process to the socket, all the time; nothing is said on any of them."""
    leaving = threading.Event()

    def stay():
        while not leaving.is_set():
            with contextlib.suppress(OSError), guest(path) as link:
                link.recv(1)
    threads = [threading.Thread(target=stay) for _ in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        leaving.set()
        for thread in threads:
            thread.join()


@contextlib.contextmanager
def awaited_and_crowded(context, count):
    """A server whose memory socket is crowded by a process that has a call which waits for its descriptors."""
    server = context.server()
    Api(server.channel).CreateModel(spec=spec("idle", [("w", [1])], world_size=1))
    joined = Api(connect(unix(server))).Join(model="idle", rank=0, worker_name="w", instance=1)
    attachment = Attachment(Other(unix(server), joined.incarnation, model="idle"), fetch=False)
    with crowded(attachment.answer.socket, count):
        yield server
    attachment.end()
    assert server.terminate() == 0


def test_a_worker_that_fetches_nothing_keeps_no_other_one_from_memory(context):
    """Its connections would each have a place for two seconds, so that others came too late behind so many."""
    with awaited_and_crowded(context, 32) as server:
        assert Run(context, unix(server), "m", steps=2, **SLOT).end().shared == [True] * 2


def test_a_signal_while_a_worker_waits_to_be_connected_ends_no_attempt(context):
    """More wait than the queue of the socket takes. A process that is stopped and goes on has its connect(2) end."""
    with awaited_and_crowded(context, 160) as server:
        worker = Run(context, unix(server), "m", steps=2, **SLOT)
        for _ in range(25):  # some while it begins, the last ones while it waits
            worker.process.send_signal(signal.SIGSTOP)
            worker.process.send_signal(signal.SIGCONT)
            time.sleep(0.02)
        assert worker.end().shared == [True] * 2, worker.err


def test_where_a_wider_slot_has_no_room_the_narrower_one_is_kept(context):
    sizes, slots = [20 * 65536], {"narrow": 4 << 20, "wide": 6 << 20}  # what they take
    with_room = context.server("--memory-max", "1G")
    wanted = Run(context, f"127.0.0.1:{with_room.port}", "m", steps=6, sizes=sizes, dtype="f32").end()
    needed = (1 << 30) - memory_left(Api(with_room.channel))
    for width, slot in slots.items():
        server = context.server("--memory-max", str(needed + slot), *METRICS)
        worker = Run(context, unix(server), "m", steps=6, sizes=sizes, dtype="f32", pause="3:half", **SLOT)
        worker.wait_until_paused()
        assert mapped(worker, "ampd-slot") == sizes[0] * (2 if width == "narrow" else 4), width
        worker.go_on()
        worker.end()
        assert worker.shared == [True] * 6, (width, worker.shared, worker.err)
        assert (worker.sum, worker.seen) == (wanted.sum, wanted.seen), width
        asked = metric(server, 'grpc_server_started_total{[^}]*"AttachMemory"[^}]*}')
        assert asked <= 4, f"{width}: {asked} calls: the first, the wider one, perhaps that again, and the first again"
        assert server.terminate() == 0


def copies_of(pid):
    """Inodes of the copies that the server has mapped."""
    lines = pathlib.Path(f"/proc/{pid}/maps").read_text(encoding="utf-8").splitlines()
    return {line.split()[4] for line in lines if "memfd:ampd-copy" in line}


def test_a_rollback_keeps_the_copies_that_no_worker_can_have_mapped(context):
    server = context.server()
    worker = Run(context, f"127.0.0.1:{server.port}", "m", steps=6, journal=1, pause="5:half")
    worker.wait_until_paused()
    before = copies_of(server.process.pid)
    Api(server.channel).Rollback(model="m", epoch=1, step=2)
    assert len(before) == 2 and copies_of(server.process.pid) == before
    worker.go_on()
    worker.end()
    assert server.terminate() == 0


def test_a_rollback_without_descriptors_waits_for_them_and_memory_is_shared_on(context):
    server = context.server()
    pid = server.process.pid
    worker = Run(context, unix(server), "m", steps=8, journal=1, pause="4:half", **SLOT)
    worker.wait_until_paused()
    eventually(lambda: 'msg="written" model=m step=2' in server.log(), "no file is open that closes soon")
    taken = set(numbers(pid))
    first = next(number for number in itertools.count() if number not in taken)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (first + SPARE if first > SPARE else 2 * first, 1024))
    call = Api(server.channel).start("Rollback", model="m", epoch=1, step=2)
    eventually(lambda: "there is no memory to restore m in" in server.log() or call.done(), "it is tried")
    assert not call.done() and "are kept for storage" in server.log()
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (1024, 1024))
    call.result(timeout=CALL_TIMEOUT_S)
    worker.go_on()
    worker.end()
    assert worker.shared[-2:] == [True] * 2, (worker.shared, worker.err)
    assert server.terminate() == 0


def test_attempts_that_take_long_are_few(context):
    """Wider gradients want new slots: one shard makes its own slowly, and in vain: the other has no descriptor."""
    cluster = Cluster(context, 2, options=METRICS)
    slow, short = (process.pid for process in cluster.processes)
    worker = Run(context, cluster.addresses[0], "m", wide=2, steps=12, pace=100, pause="2:ended", **SLOT)
    worker.wait_until_paused()
    # The descriptor of the old slot and those below are kept back.
    first = next(fd for fd in numbers(short) if "ampd-slot" in os.readlink(f"/proc/{short}/fd/{fd}"))
    resource.prlimit(short, resource.RLIMIT_NOFILE, (first + SPARE if first > SPARE else 2 * first, 1024))
    os.kill(slow, signal.SIGSTOP)
    worker.go_on()
    time.sleep(3)  # the pause is ten times as long as the attempt took, and so much longer than the steps that are left
    os.kill(slow, signal.SIGCONT)
    worker.end()
    asked = metric(SimpleNamespace(log=lambda: cluster.log(0)), 'grpc_server_started_total{[^}]*"AttachMemory"[^}]*}')
    assert asked == 2 and worker.shared == [True] * 2 + [False] * 10, (asked, worker.shared, worker.err)
    assert cluster.end() == [0, 0]


def test_attempts_of_a_worker_without_descriptors_are_few_where_a_slot_takes_long(context):
    """Each has the server fill a slot in vain. It has no descriptor for the socket, or for what comes by it."""
    for free in (0, 1):
        server = context.server(*METRICS)
        worker = Run(context, unix(server), "m", wide=2, steps=12, pace=100, pause="2:ended", **SLOT)
        worker.wait_until_paused()
        taken = set(numbers(worker.process.pid))
        first = next(number for number in itertools.count() if number not in taken)
        resource.prlimit(worker.process.pid, resource.RLIMIT_NOFILE, (first + free, 1024))
        os.kill(server.process.pid, signal.SIGSTOP)
        worker.go_on()
        time.sleep(2)  # the pause is ten times as long as the attempt took
        os.kill(server.process.pid, signal.SIGCONT)
        worker.end()
        asked = metric(server, 'grpc_server_started_total{[^}]*"AttachMemory"[^}]*}')
        assert asked == 2 and worker.shared == [True] * 2 + [False] * 10, (free, asked, worker.shared, worker.err)
        assert server.terminate() == 0


def test_a_worker_that_cannot_reach_the_socket_does_not_ask_again_and_again(context):
    """Each time the server would make a slot."""
    server = context.server(*METRICS)
    (server.data_dir / "memory.sock").unlink()
    worker = Run(context, unix(server), "m", steps=12, pace=100, **SLOT).end()
    asked = metric(server, 'grpc_server_started_total{[^}]*"AttachMemory"[^}]*}')
    worker.complainer.join(ampd_testing.CALL_TIMEOUT_S)
    assert asked == 1 and not any(worker.shared), (asked, worker.shared)
    assert any("No such file" in line for line in worker.err), worker.err
    assert server.terminate() == 0


def test_a_step_begun_again_pulls_no_memory_of_the_incarnation_before(context):
    """The server would refuse that, and the worker would pull again after a pause."""
    server = context.server(*METRICS)
    worker = Run(context, unix(server), "m", steps=5, again=3, **SLOT).end()
    assert worker.shared == [True, True, False, True, True], (worker.shared, worker.err)
    refusals = metric(server, 'grpc_server_handled_total{[^}]*"Pull"[^}]*"Unavailable"[^}]*}')
    assert refusals == 0, f"{refusals} pulls were refused"
    assert server.terminate() == 0


def test_accumulated_gradients_of_sixteen_bits_lie_in_the_slot_too(context):
    """Their sums are of fp32, and the slot is as wide from the second step on."""
    server = context.server(*METRICS)
    elements, steps = 1000000, 6
    worker = Run(context, unix(server), "m", steps=steps, sizes=[elements], accumulate=2, **SLOT).end()
    assert worker.shared == [True] * steps
    received = metric(server, "ampd_received_bytes_total")
    assert received < 4 * elements * 3, f"{received} bytes, of which the first values are {4 * elements}"
    assert server.terminate() == 0


run(globals())
