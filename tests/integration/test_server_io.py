#!/usr/bin/python3
"""What the server's own room promises beside the protocol: slow readers, slow watchers, its other socket, its end.

    test_server_io.py BIN_DIR [NAME ...]
"""
import contextlib
import os
import re
import signal
import socket
import subprocess
import threading
import time

import grpc

from ampd_testing import (Api, CALL_TIMEOUT_S, Code, DIE_WITH_PARENT, HEALTH_SERVING, OpenStream, PATIENCE, block_message, check_rich,
                          common, crc32c, eventually, free_port, pack, params, Refusal, refused, run, spec, start_and_fail)

# 48 blocks of fp16, 6 MiB: more than the connection takes while nobody reads.
LARGE = [("w", [48 * 65536])]


def large_model(context, server):
    return context.model("large", server, parameters=LARGE, tensors={"w": [1.0] * LARGE[0][1][0]})


def other_channel(server, **options):
    """A connection of its own, with small windows: what is not read stays at the server."""
    return grpc.insecure_channel(f"127.0.0.1:{server.port}", options=[
        ("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1),
        ("grpc.http2.lookahead_bytes", 65535), ("grpc.http2.bdp_probe", 0), *options.items()])


def quick_steps(worker, value):
    """A function that makes a step. The gradient is packed once, and of each version the header alone is read: on a busy machine
    what Python takes for the rest is longer than readers may stand."""
    messages = worker.blocks({"w": [value] * LARGE[0][1][0]})
    trailer = params.PushRequest(trailer=params.PushTrailer())

    def step():
        made = worker.api.Push([worker.push_header(), *messages, trailer]).result.step
        worker.step = made + 1
        worker.header = next(worker.api.start("Pull", model="large", epoch=1, step=worker.step).call).header
        return made
    return step


def test_a_slow_reader_holds_no_update_up_and_gets_no_mixed_block(context):
    server = context.server()
    test_model = large_model(context, server)
    worker = test_model.worker()
    worker.pull()
    quick_step = quick_steps(worker, float(worker.header.scale))
    with other_channel(server) as channel:
        slow = Api(channel).start("Pull", model="large", latest=True)
        header = slow.next().header
        assert (header.version, header.block_count) == (0, 48)
        for step in range(1, 4):
            began = time.monotonic()
            assert quick_step() == step
            assert time.monotonic() - began < CALL_TIMEOUT_S, "a step took as long as a deadline"
        blocks, error = 0, None
        try:
            for answer in slow.call:
                if answer.crc32c == crc32c(answer.data):
                    assert answer.data == answer.data[:2] * (len(answer.data) // 2), f"block {answer.index} is mixed"
                    blocks += 1
        except grpc.RpcError as raised:
            error = Refusal(raised)
        assert error is not None and (error.code, error.reason) == (Code.ABORTED, "PULL_OUTRUN"), (blocks, str(error))
        check_rich(error)
        assert blocks < 48
    assert server.terminate() == 0


class Valve:
    """Between a client and the server: bytes of the server pass up to a number, the others wait in the server's socket."""

    def __init__(self, port):
        self.port_behind, self.allowed, self.changed = port, 0, threading.Condition()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.behind = self.front = None
        threading.Thread(target=self._serve, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.allow(1 << 40)
        self.listener.close()
        self.cut()

    def _serve(self):
        try:
            self.front, _ = self.listener.accept()
        except OSError:
            return  # closed before anybody came
        self.behind = socket.socket()
        self.behind.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.behind.connect(("127.0.0.1", self.port_behind))
        threading.Thread(target=self._copy, args=(self.front, self.behind, False), daemon=True).start()
        self._copy(self.behind, self.front, True)

    def _copy(self, source, target, metered):
        try:
            while True:
                with self.changed:
                    while metered and self.allowed <= 0:
                        self.changed.wait()
                data = source.recv(min(self.allowed, 65536) if metered else 65536)
                self.allowed -= len(data) if metered else 0
                if not data:
                    break
                target.sendall(data)
        except OSError:
            pass  # the other side is gone
        self.cut()

    def allow(self, size):
        with self.changed:
            self.allowed += size
            self.changed.notify_all()

    def cut(self):
        """Ends both connections."""
        for end in (self.front, self.behind):
            with contextlib.suppress(OSError, AttributeError):
                end.shutdown(socket.SHUT_RDWR)


def unlimited_channel(valve):
    """Through a valve, with large windows: what does not pass waits in sockets and behind them, not for a window."""
    return grpc.insecure_channel(f"127.0.0.1:{valve.port}", options=[
        ("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1),
        ("grpc.http2.lookahead_bytes", 1 << 24), ("grpc.http2.bdp_probe", 0)])


def read_until_revoked(call, versions):
    """Reads a pull to its end: (blocks whose checksum is right, whether one was wrong, how it ended)."""
    good, wrong, refusal = 0, False, None
    try:
        header = call.next().header
        for answer in call.call:
            if answer.crc32c == crc32c(answer.data):
                assert answer.data == versions[header.version] * (len(answer.data) // 2), f"block {answer.index} is mixed"
                good += 1
            else:
                wrong = True
    except grpc.RpcError as raised:
        refusal = Refusal(raised)
    return good, wrong, refusal


def test_a_copy_is_taken_back_wherever_its_readers_sockets_stopped(context):
    """Windows without end, and sockets that stop: at the header, in the first block, in one that is half sent, later."""
    server = context.server()
    test_model = large_model(context, server)
    worker = test_model.worker()
    worker.pull()
    quick_step = quick_steps(worker, 1024.0)
    versions = {version: pack(common.DTYPE_F16, [1.0 - 0.5 * version]) for version in range(4)}
    with contextlib.ExitStack() as stack:
        pulls = []
        for size in (200, 40000, 200000, 1000000, 2500000):
            valve = stack.enter_context(Valve(server.port))
            valve.allow(size)
            channel = stack.enter_context(unlimited_channel(valve))
            pulls.append((valve, Api(channel).start("Pull", model="large", latest=True)))
        for valve, _ in pulls:
            eventually(lambda valve=valve: valve.allowed <= 0, "the reader has stopped")
        pulls[1][0].cut()  # its connection is lost with a block half sent
        for step in range(1, 4):
            assert quick_step() == step
        for valve, _ in pulls:
            valve.allow(1 << 40)
        for at, (_, call) in enumerate(pulls):
            good, wrong, refusal = read_until_revoked(call, versions)
            assert good < 48 and refusal is not None, (at, good, wrong, str(refusal))
            if at == 1:
                assert refusal.code == Code.UNAVAILABLE, refusal
                continue
            assert (refusal.code, refusal.reason) == (Code.ABORTED, "PULL_OUTRUN"), (at, good, wrong, str(refusal))
            assert wrong, f"reader {at} was revoked between two blocks"
    assert server.terminate() == 0


class Reader:
    """Pulls the latest version over and over through a valve, and judges each answer."""

    def __init__(self, server):
        self.valve, self.whole, self.outrun, self.wrong, self.fault = Valve(server.port), 0, 0, 0, None
        self.stopping = threading.Event()
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self):
        versions = {version: pack(common.DTYPE_F16, [1.0 - 0.5 * version]) for version in range(64)}
        try:
            with unlimited_channel(self.valve) as channel:
                while not self.stopping.is_set():
                    call = Api(channel).start("Pull", model="large", latest=True, timeout_s=60)
                    good, wrong, refusal = read_until_revoked(call, versions)
                    if refusal is None:
                        assert good == 48 and not wrong, f"OK after {good} good blocks"
                        self.whole += 1
                    else:
                        assert (refusal.code, refusal.reason) == (Code.ABORTED, "PULL_OUTRUN"), refusal
                        self.outrun += 1
                        self.wrong += wrong
        except Exception as error:  # told by stop()
            self.fault = error

    def stop(self):
        self.stopping.set()
        self.valve.allow(1 << 40)
        self.thread.join(CALL_TIMEOUT_S)
        assert not self.thread.is_alive(), "a reader hangs"
        assert self.fault is None, f"a reader: {self.fault}"


def test_readers_go_on_while_their_copy_is_taken_back_under_them(context):
    """ThreadSanitizer sees who reads and writes the copy here, with AMPD_ISA=ref: it does not see the stores of vectors."""
    server = context.server()
    test_model = large_model(context, server)
    worker = test_model.worker()
    worker.pull()
    readers = [Reader(server) for _ in range(3)]
    done = threading.Event()

    def trickle():
        while not done.wait(0.001):
            for reader in readers:
                reader.valve.allow(20000)

    threading.Thread(target=trickle, daemon=True).start()
    quick_step = quick_steps(worker, 1024.0)
    step = 0
    while step < 60 and (step < 12 or not all(reader.outrun for reader in readers)):
        step += 1
        assert quick_step() == step
    done.set()
    for reader in readers:
        reader.stop()
        with reader.valve:
            pass
    assert sum(reader.outrun for reader in readers) > 0, "no reader was slow enough"
    assert server.terminate() == 0


def test_pushes_that_come_before_the_update_has_read_the_last_ones_are_taken_whole(context):
    """No pull in between: blocks of a step arrive while the update still reads those of the step before."""
    server = context.server("--compute-threads", "1")
    test_model = large_model(context, server)
    worker = test_model.worker()
    worker.pull()
    size = LARGE[0][1][0]
    for step in range(1, 9):
        result = worker.push({"w": [1024.0 * (step % 3)] * size})
        assert (result.step, result.verdict, result.norm) == (step, common.VERDICT_APPLIED, step % 3 * size ** 0.5), result
    header, tensors = worker.pull()
    assert (header.version, set(tensors["w"])) == (8, {1.0 - 0.5 * sum(step % 3 for step in range(1, 9))})
    assert server.terminate() == 0


def test_models_can_be_deleted_while_their_checkpoints_are_written(context):
    """The thread that writes gives a part up while the loop hears of earlier blocks: one for ThreadSanitizer."""
    server, blocks, zeros = context.server(), 16, bytes(65536 * 4)
    for turn in range(6):
        test_model = context.model(f"brief-{turn}", server, parameters=[("w", [blocks * 65536])], load=False,
                                   checkpoint_every=1)
        test_model.api.Load([params.LoadRequest(header=params.LoadHeader(model=test_model.name))] + [
            block_message(params.LoadRequest, index, zeros) for index in range(blocks)])
        worker = test_model.worker()
        worker.header = next(worker.api.start("Pull", model=test_model.name, epoch=worker.epoch, step=1).call).header
        trailer = params.PushRequest(trailer=params.PushTrailer(absent=[0]))
        assert worker.api.Push([worker.push_header(), trailer]).result.step == 1
        test_model.api.DeleteModel(model=test_model.name, force=True)
    eventually(lambda: not list((server.data_dir / "models").iterdir()), "no file is left")
    assert server.terminate() == 0


def test_a_slow_watcher_gets_every_row_once_and_in_order(context):
    server = context.server()
    test_model = context.model("watched", server)
    worker = test_model.worker()
    with other_channel(server) as channel:
        watch = Api(channel).start("WatchSteps", model="watched", from_step=1, timeout_s=60)
        for _ in range(120):
            worker.train({"w": [1.0] * 4})
        rows = [watch.next().row for _ in range(120)]
        watch.cancel()
    steps = [row.step for row in rows if row.verdict == common.VERDICT_APPLIED]
    assert steps == list(range(1, 121)), steps


def test_the_unix_socket_in_the_data_directory_serves_the_same(context):
    server = context.server()
    context.model("here", server)
    path = server.data_dir / "ampd.sock"
    if len(str(path)) > 107:
        print(f"SKIPPED: {path} is too long for a socket")
        return
    with grpc.insecure_channel(f"unix:{path}") as channel:
        assert Api(channel).health() == HEALTH_SERVING
        assert Api(channel).GetModel(model="here").status.state == common.MODEL_STATE_WAITING
    server.restart_after_kill()  # leaves the file of the socket behind
    with grpc.insecure_channel(f"unix:{path}") as channel:
        assert Api(channel).GetModel(model="here").status.epoch == 2
    assert server.terminate() == 0
    assert not path.exists()


def test_a_socket_that_a_killed_server_has_left_makes_way_and_that_of_a_living_one_does_not(context):
    folder = context.server().data_dir.parent
    path = folder / "left.sock"
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(path))
    left.listen()
    arguments = ["--data-dir", folder / "of-the-socket", "--listen", f"unix:{path}"]
    code, lines = start_and_fail(context.bin_dir, *arguments)
    assert code == 1 and "end what listens there" in lines[-1], (code, lines)
    left.close()  # the file stays
    assert path.exists()
    with subprocess.Popen([*DIE_WITH_PARENT, context.bin_dir / "ampd", *arguments], stdin=subprocess.DEVNULL,
                          stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        with grpc.insecure_channel(f"unix:{path}") as channel:
            grpc.channel_ready_future(channel).result(timeout=CALL_TIMEOUT_S)
            assert Api(channel).health() == HEALTH_SERVING
        process.terminate()
    assert not path.exists()


def test_a_connection_that_stays_does_not_hold_the_end_up(context):
    server = context.server()
    worker = context.model("ended", server, world_size=2).worker("w0", rank=0)
    stream = OpenStream(worker.api, "Push", [worker.push_header(scale_id=1)])
    watch = worker.api.start("WatchSteps", model="ended")
    server.process.send_signal(signal.SIGTERM)
    for answer in (stream.result, watch.next):
        refusal = refused(answer, Code.UNAVAILABLE, "DRAINING")
        assert refusal.retry_ms, refusal
    stream.end()
    assert server.process.wait(60) == 0


def test_a_stream_cut_in_the_middle_of_a_block_goes_on_by_another(context):
    server = context.server()
    test_model = context.model("cut", server, parameters=[("w", [2 * 65536])],
                               tensors={"w": [1.0] * (2 * 65536)})
    worker = test_model.worker()
    worker.pull()
    gradient = {"w": [1024.0] * (2 * 65536)}
    header, first, second, trailer = worker.push_messages(gradient)
    for _ in range(3):
        with other_channel(server) as channel:
            stream = OpenStream(Api(channel), "Push", [header, first])
            while worker.present() != {0}:
                time.sleep(0.001)
            stream.cancel()

    def push_the_rest():
        try:
            return worker.api.Push([header, second, trailer]).result
        except grpc.RpcError as error:  # the last stream came behind it, on a connection of its own
            assert Refusal(error).reason == "REPLACED", Refusal(error)

    result = eventually(push_the_rest, "the rest of the push is taken")
    assert (result.step, result.verdict, result.norm) == (1, common.VERDICT_APPLIED, (2 * 65536) ** 0.5), result


MIB = 1 << 20
MIB_ELEMENTS = [("w", [MIB])]  # 12 MiB with SGD, one worker and fp16: master, two casts, one slot; and 0.5 for a checkpoint


def figures(text):
    """The numbers of a sentence that can be bytes of a model."""
    return [int(word) for word in re.findall(r"\d+", text) if int(word) >= MIB]


def test_a_model_beyond_the_memory_bound_is_refused_with_both_figures(context):
    server = context.server("--memory-max", "32M")
    api = Api(server.channel)
    refusal = refused(lambda: api.CreateModel(spec=spec("huge", [("w", [16 * MIB])])), Code.RESOURCE_EXHAUSTED, "NO_MEMORY",
                      words="huge")
    assert 32 * MIB in figures(refusal.text), refusal
    assert max(figures(refusal.text)) >= 16 * 12 * MIB, refusal  # what it needs
    context.model("first", server, parameters=MIB_ELEMENTS, tensors={"w": [1.0] * MIB})
    context.model("second", server, parameters=MIB_ELEMENTS, load=False)
    refusal = refused(lambda: api.CreateModel(spec=spec("third", MIB_ELEMENTS)), Code.RESOURCE_EXHAUSTED, "NO_MEMORY")
    assert len(figures(refusal.text)) >= 2 and 32 * MIB in figures(refusal.text), refusal
    assert api.CreateModel(spec=spec("second", MIB_ELEMENTS)).created is False
    assert api.CreateModel(spec=spec("small")).created is True
    assert server.terminate() == 0


def test_the_bound_is_a_share_of_the_machine_unless_it_is_given(context):
    def bound(*options):
        server = context.server(*options)
        assert server.terminate() == 0
        return int(re.search(r" memory_max=(\d+) ", server.log())[1])

    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert MIB <= bound() <= machine * 3 // 4
    for text, size in (("1G", 1 << 30), ("3M", 3 << 20), ("5000K", 5000 << 10), ("12345678", 12345678)):
        assert bound("--memory-max", text) == size, text
    assert bound("--memory-max", "75%") == bound() == 3 * bound("--memory-max", "25%")


def test_the_smallest_model_fits_into_the_least_memory_bound(context):
    server = context.server("--memory-max", "2M")
    tiny = spec("tiny", [("w", [1])], world_size=1, cast_dtype=common.DTYPE_F32)
    assert Api(server.channel).CreateModel(spec=tiny).created
    assert server.terminate() == 0


def test_a_memory_bound_that_is_no_number_of_bytes_or_too_low_is_a_usage_error(context):
    for text in ("", "0", "1", "2097151", "2047K", "0G", "-1", "1.5G", "1T", "G", "1GB", " 1", "99999999999999999999", "18446744073709551615G",
                 "0%", "101%", "%", "50 %", "5%%"):
        code, lines = start_and_fail(context.bin_dir, "--data-dir", context.folder(), f"--memory-max={text}")
        assert code == 2 and len(lines) == 1 and "--memory-max" in lines[0], (text, code, lines)


def test_times_of_connections_are_read_or_refused(context):
    for option in ("keepalive-time", "keepalive-timeout", "min-ping-interval", "max-connection-idle",
                   "max-connection-age", "max-connection-age-grace", "worker-lease"):
        for text in ("", "5", "0s", "-1s", "1w", "s", "1 s", "1.5s", "99999999999999h"):
            code, lines = start_and_fail(context.bin_dir, "--data-dir", context.folder(), f"--{option}={text}")
            assert code == 2 and len(lines) == 1 and f"--{option} " in lines[0], (option, text, code, lines)
    server = context.server("--keepalive-time", "90m", "--keepalive-timeout=20s", "--min-ping-interval=1500ms",
                            "--max-connection-age", "100ms", "--max-connection-age-grace=2h", "--max-connection-idle", "1d")
    # With grpc's own retries, which other tests do without: a call that it has not begun when the connection is of age fails else.
    server.close_channel()
    server.channel = grpc.insecure_channel(f"127.0.0.1:{server.port}")
    api = context.model("aged", server, load=False).api
    until = time.monotonic() + 1
    while time.monotonic() < until:  # over some ten connections, none of which is missed
        # On a busy machine a connection may be of age before grpc has used it: only who waits for the next one has no error.
        api.GetModel(model="aged", wait_for_ready=True)


def test_a_grace_for_connections_that_never_get_old_is_refused(context):
    code, lines = start_and_fail(context.bin_dir, "--data-dir", context.folder(), "--max-connection-age-grace=1m")
    assert code == 2 and len(lines) == 1 and "--max-connection-age-grace needs --max-connection-age," in lines[0], (code, lines)


def test_a_client_may_ask_every_few_seconds_whether_its_connection_lives(context):
    """Over one on which nothing else is said; the fourth PING in 5 min was once too many."""
    server = context.server()
    context.model("quiet", server)
    channel = other_channel(server, **{"grpc.keepalive_time_ms": 6000, "grpc.http2.max_pings_without_data": 0})
    with contextlib.closing(channel):
        watch = Api(channel).start("WatchSteps", timeout_s=28, model="quiet")
        refused(watch.all, Code.DEADLINE_EXCEEDED, rich=False)


def test_a_server_that_was_stopped_for_longer_than_a_lease_ends_none_whose_worker_went_on(context):
    """KeepAlive has come meanwhile, and is read before the lease counts as ended."""
    lease_s = 4 * PATIENCE
    server = context.server("--worker-lease", f"{lease_s}s")
    worker = context.model("stopped", server).worker()
    worker.pull()
    over = threading.Event()

    def keep_alive():
        while not over.wait(lease_s / 4):
            worker.api.KeepAlive(**worker.identity())
    alive = threading.Thread(target=keep_alive)
    alive.start()
    try:
        time.sleep(lease_s / 2)
        server.process.send_signal(signal.SIGSTOP)
        time.sleep(3 * lease_s)
        server.process.send_signal(signal.SIGCONT)
        time.sleep(lease_s / 2)  # for who would end it only now
        assert worker.push({"w": [1024.0] * 4}).verdict == common.VERDICT_APPLIED
    finally:
        over.set()
        alive.join()
    assert "has ended" not in server.log(), server.log()[-1500:]
    eventually(lambda: "the lease of rank 0" in server.log(), "the lease of who is silent ends")


def test_a_server_that_was_stopped_for_longer_than_a_lease_ends_none_whose_worker_waits(context):
    """A call that is open renews the lease: its connection answers a PING before the lease counts as ended."""
    lease_s = 12  # the time from one look at the call to the next is longer than what the clock is set back by
    server = context.server("--worker-lease", f"{lease_s}s")
    worker = context.model("stopped", server).worker()
    worker.pull()
    watch = worker.api.start("WatchSteps", timeout_s=5 * lease_s, **worker.identity())
    time.sleep(lease_s / 6)
    server.process.send_signal(signal.SIGSTOP)
    time.sleep(lease_s + 2)  # later than the lease's end by so much that it counts as a stop
    server.process.send_signal(signal.SIGCONT)
    time.sleep(lease_s / 4)  # for who would end it only now
    assert "has ended" not in server.log(), server.log()[-1500:]
    assert worker.push({"w": [1024.0] * 4}).verdict == common.VERDICT_APPLIED
    watch.call.cancel()


def test_a_stored_model_that_does_not_fit_ends_the_start_and_is_kept(context):
    server = context.server("--memory-max", "64M")
    test_model = context.model("kept", server, parameters=MIB_ELEMENTS, tensors={"w": [1.0] * MIB})
    assert server.terminate() == 0
    code, lines = start_and_fail(context.bin_dir, "--data-dir", server.data_dir, "--listen", "127.0.0.1:0",
                                 "--memory-max", "12M")
    assert code == 1, (code, lines)
    for word in ("ampd: ", "kept", "--memory-max", str(12 * MIB)):
        assert word in lines[-1], (word, lines)
    assert any("kept" in line and len(figures(line)) >= 2 for line in lines[:-1]), lines
    server.start()
    header, tensors = test_model.reconnect().latest()
    assert (header.version, set(tensors["w"])) == (0, {1.0})
    assert server.terminate() == 0


def test_standard_streams_that_are_closed_are_no_other_file(context):
    """The first numbers would be those of the loop's own files, and the log would be written into them."""
    port = free_port()
    process = subprocess.Popen([*DIE_WITH_PARENT, "/bin/sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh", context.bin_dir / "ampd",
                                "--data-dir", context.folder(), "--listen", f"127.0.0.1:{port}", "--metrics-listen", "none"])
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            grpc.channel_ready_future(channel).result(CALL_TIMEOUT_S)
        links = [os.readlink(f"/proc/{process.pid}/fd/{number}") for number in range(3)]
        process.terminate()
        assert process.wait(CALL_TIMEOUT_S) == 0 and links == ["/dev/null"] * 3, (process.returncode, links)
    finally:
        process.kill()
        process.wait()


if __name__ == "__main__":
    run(globals())
