#!/usr/bin/python3
"""Memory shared with workers of the same host: training ends in the bytes of any other way, also where servers and
workers are killed, steps are skipped, decided without a worker or rolled back; and everything that was lent comes back.

    test_server_shared.py BIN_DIR [NAME ...]     AMPD_ROUNDS of the environment: how many kills of each kind (1);
                                                 AMPD_SEED: of the moments; AMPD_STEPS: of each run (6)

./test.sh --long shared has 300 kills.
"""
import os
import pathlib
import random
import re
import time
from types import SimpleNamespace

import ampd_testing
from ampd_testing import PATIENCE, Code, eventually, metric, refused, run, spec
from page_testing import ask, page_server
from shared_testing import (APPLIED, LATE, OVERFLOW, OWN, ROLLED_BACK, SHARED_CB, SIZES, SLOT, STREAM, TIMEOUT_S, Run,
                            holdings, mapped)
from test_server_shards import Cluster

ROUNDS = int(os.environ.get("AMPD_ROUNDS", "1"))
SEED = int(os.environ.get("AMPD_SEED", str(random.SystemRandom().randrange(1 << 30))))
ampd_testing.RUN_TIMEOUT_S += 60 * ROUNDS * PATIENCE
BLOCKS = 8
SLOT_BYTES = 2 << 20  # what a slot takes: its 8 blocks of 128 KiB, rounded up to a huge page


def workers(context, address, name, world, **keys):
    """keys of one rank alone: r1_pause."""
    def of(rank):
        own = {key[3:]: value for key, value in keys.items() if key.startswith(f"r{rank}_")}
        return {**{key: value for key, value in keys.items() if not re.match(r"r\d_", key)}, **own}
    return [Run(context, address, name, rank=rank, world=world, **of(rank)) for rank in range(world)]


def trained(context, address, name, world=1, shared=None, **keys):
    """(sum, step -> what was seen) of workers that agree in both."""
    runs = [worker.end() for worker in workers(context, address, name, world, **keys)]
    first = runs[0]
    for worker in runs:
        assert worker.sum == first.sum and worker.seen == first.seen, (worker.seen, first.seen)
        assert all(step.still for step in worker.steps), "the parameters changed under a step in hand"
        assert shared is None or worker.shared == [shared] * len(worker.steps), (name, worker.shared)
    return first.sum, first.seen


def by_every_way(context, clusters, key, world, **keys):
    """The same model by TCP, by unix sockets, and in shared memory, on one shard and on three."""
    server, one, three = clusters
    wanted = trained(context, f"127.0.0.1:{server.port}", f"{key}-tcp", world, shared=False, **keys)
    beside = f"unix:{server.data_dir}/ampd.sock"
    ways = [("sock", beside, SLOT, True), ("sock-own", beside, OWN, True)]
    for count, cluster in (("1", one), ("3", three)):
        address = cluster.addresses[0]
        ways += [(f"unix-{count}", address, STREAM, False), (f"slot-{count}", address, SLOT, True),
                 (f"own-{count}", address, OWN, True), (f"cb-{count}", address, SHARED_CB, True)]
    for way, address, more, shared in ways:
        got = trained(context, address, f"{key}-{way}", world, shared=shared, **keys, **more)
        assert got == wanted, f"{key}, {way}, {world} workers: {got}, wanted {wanted}"


def clusters_of(context):
    return context.server(), Cluster(context, 1), Cluster(context, 3)


def check_dtype(context, dtype):
    clusters = clusters_of(context)
    for world in (1, 2, 4):
        by_every_way(context, clusters, f"{dtype}-{world}", world, dtype=dtype, absent=1)


def test_f16_gradients_end_in_the_same_bytes_by_every_way(context):
    check_dtype(context, "f16")


def test_bf16_gradients_end_in_the_same_bytes_by_every_way(context):
    check_dtype(context, "bf16")


def test_f32_gradients_end_in_the_same_bytes_by_every_way(context):
    check_dtype(context, "f32")


def test_every_dtype_of_the_parameters_can_be_shared(context):
    clusters = clusters_of(context)
    for cast in ("bf16", "f32"):
        by_every_way(context, clusters, cast, 2, cast=cast, dtype="bf16")
    by_every_way(context, clusters, "turns", 2, dtype="f16,f32")


def test_small_models_have_less_blocks_than_shards(context):
    clusters = clusters_of(context)
    by_every_way(context, clusters, "tiny", 2, sizes=[1])
    by_every_way(context, clusters, "page", 2, sizes=[64, 1, 2047, 70000])


def test_threads_and_shards_change_no_bit(context):
    """Four workers, whose pushes come in any order. test_server_results forces orders of arrival."""
    cluster = Cluster(context, 1, options=["--compute-threads", "1", "--shared-memory", "off"])
    wanted = trained(context, cluster.addresses[0], "m", 4, shared=False, dtype="f16,f32", overflow=3)
    for shards, threads in ((1, 1), (1, 4), (2, 2), (3, 1), (4, 4)):
        cluster = Cluster(context, shards, options=["--compute-threads", str(threads)])
        for name, way in (("slot", SLOT), ("own", OWN))[:1 + (shards == 4)]:
            got = trained(context, cluster.addresses[-1], name, 4, shared=True, dtype="f16,f32", overflow=3, **way)
            assert got == wanted, f"{shards} shards, {threads} threads each, {name}: {got}, wanted {wanted}"
        assert cluster.end() == [0] * shards


def test_a_server_can_be_told_not_to_share(context):
    wanted = trained(context, f"127.0.0.1:{context.shared.port}", "shared", 2)
    server = context.server("--shared-memory", "off")
    assert not (server.data_dir / "memory.sock").exists()
    got = trained(context, f"unix:{server.data_dir}/ampd.sock", "off", 2, shared=False, **SLOT)
    assert got == wanted
    worker = Run(context, f"unix:{server.data_dir}/ampd.sock", "said").end()
    worker.complainer.join(TIMEOUT_S)
    said = [line for line in worker.err if "no memory is shared" in line]
    assert len(said) == 1 and "this server shares no memory" in said[0], worker.err
    assert server.terminate() == 0


def test_the_data_directory_may_be_named_from_where_the_server_is(context):
    folder = context.folder()
    server = context.server(data_dir=pathlib.Path(os.path.relpath(folder)))
    trained(context, f"unix:{folder}/ampd.sock", "m", 2, shared=True, **SLOT)
    assert server.terminate() == 0


# ---- steps that are not as usual ----

def test_overflows_skip_the_same_steps(context):
    clusters = clusters_of(context)
    by_every_way(context, clusters, "overflow", 2, overflow=3, steps=10)
    worker = Run(context, clusters[1].addresses[0], "alone", overflow=3, steps=10, **SLOT).end()
    assert worker.verdicts == [OVERFLOW if step % 3 == 0 else APPLIED for step in range(1, 11)], worker.verdicts


def test_pulls_of_evaluation_come_between(context):
    clusters = clusters_of(context)
    by_every_way(context, clusters, "evaluate", 2, evaluate=1)


def late_ones(context, address, name, shared, **keys):
    """With a quorum of one: rank 0 trains steps 1 to 5, rank 1, late, the others. The sum, and what counted."""
    pauses = {"r1_pause": "1:begin", "r0_pause": "1:begin,6:begin"}
    first, second = workers(context, address, name, 2, quorum=1, steps=12, **pauses, **keys)
    first.wait_until_paused()
    second.wait_until_paused()  # both have begun step 1
    first.paused.clear()
    first.go_on()
    first.wait_until_paused()
    second.go_on()
    second.end()
    first.go_on()
    first.end()
    assert first.verdicts[:5] == [APPLIED] * 5 and second.verdicts[0] == LATE, (first.verdicts, second.verdicts)
    assert second.verdicts[1:] == [APPLIED] * 7 and first.verdicts[5:] == [LATE], (first.verdicts, second.verdicts)
    assert first.sum == second.sum and set(first.shared + second.shared) == {shared}
    return first.sum, {**first.seen, **second.seen}


def test_a_worker_that_is_late_for_a_quorum_changes_nothing(context):
    server, cluster = context.server(), Cluster(context, 3)
    wanted = late_ones(context, f"127.0.0.1:{server.port}", "late-tcp", False)
    for name, address in (("late-1", f"unix:{server.data_dir}/ampd.sock"), ("late-3", cluster.addresses[0])):
        assert late_ones(context, address, name, True, **SLOT) == wanted, name
        assert late_ones(context, address, f"{name}-own", True, **OWN) == wanted, name
        assert late_ones(context, address, f"{name}-cb", True, **SHARED_CB) == wanted, name


def test_an_operator_rolls_back_in_the_middle_of_a_step(context):
    cluster = Cluster(context, 3)
    for point in ("begin", "half", "pushed", "ended") if ROUNDS > 1 else ("half", "ended"):
        for way, more in (("slot", SLOT), ("own", OWN))[:1 + (ROUNDS > 1)]:
            wanted = trained(context, cluster.addresses[0], f"{way}-{point}-wanted", 2, steps=8, **STREAM)
            pair = workers(context, cluster.addresses[0], f"{way}-{point}", 2, steps=8, pause=f"5:{point}", **more)
            for worker in pair:
                worker.wait_until_paused()
            cluster.api(0).Rollback(model=f"{way}-{point}", epoch=1, step=2)
            for worker in pair:
                worker.go_on()
            for worker in pair:
                worker.end()
                assert (worker.sum, worker.seen) == wanted, (point, way, worker.verdicts, worker.seen, wanted)
                assert worker.shared[-2:] == [True, True], (point, way, worker.shared)


def test_a_rollback_that_comes_to_nothing_changes_nothing_for_workers_that_share_memory(context):
    """One shard cannot use the checkpoint, and others have it in memory by then: all go back to where they were."""
    cluster = Cluster(context, 3, options=("--metrics-listen", "127.0.0.1:0"))
    for way, more in (("slot", SLOT), ("own", OWN)):
        wanted = trained(context, cluster.addresses[0], f"{way}-wanted", 2, steps=8, journal=1, **STREAM)
        pair = workers(context, cluster.addresses[0], way, 2, steps=8, journal=1, pause="5:half", **more)
        for worker in pair:
            worker.wait_until_paused()
        eventually(lambda: all(any(one.step == 4 for one in cluster.api(k).ListCheckpoints(model=way).checkpoints)
                               for k in range(3)), "each has a newer one, from which it comes back")
        damaged, = (cluster.folder / "data-1" / "models" / way).rglob("step-0000000002/shard-1-of-3.safetensors")
        damaged.write_bytes(damaged.read_bytes()[:-1] + b"?")
        for _ in range(2):  # memory of the second may lie where that of before the first did
            refused(lambda: cluster.api(0).Rollback(model=way, epoch=1, step=2), Code.DATA_LOSS, "CHECKPOINT_DAMAGED")
            eventually(lambda: not any(cluster.api(k).GetModel(model=way).status.recovering for k in range(3)),
                       "the memory is back")
        for worker in pair:
            worker.go_on()
        for worker in pair:
            worker.end()
            assert (worker.sum, worker.seen) == wanted, (way, worker.verdicts, worker.seen, wanted)
            assert worker.verdicts == [APPLIED] * 8, (way, worker.verdicts)
            assert worker.shared[-2:] == [True, True], (way, worker.shared)
    for k in range(3):  # a refusal tells gRPC not to repeat the call; one is ended when another shard has refused first
        refusals = metric(SimpleNamespace(log=lambda: cluster.log(k)),
                          'grpc_server_handled_total{[^}]*"Pull"[^}]*"Unavailable"[^}]*}')
        assert refusals <= 4, f"shard {k}: {refusals} refused pulls of two workers, twice"


# ---- widths ----

def test_wider_gradients_get_wider_slots_at_the_next_step(context):
    server, cluster = context.server(), Cluster(context, 3)
    for dtype in ("f16", "bf16"):
        wanted = trained(context, f"127.0.0.1:{server.port}", f"wide-{dtype}", steps=9, dtype=dtype, wide=4)
        for shards, address in ((1, f"unix:{server.data_dir}/ampd.sock"), (3, cluster.addresses[0])):
            for way, more in (("slot", SLOT), ("own", OWN), ("cb", SHARED_CB)):
                worker = Run(context, address, f"{dtype}-{way}-{shards}", steps=9, dtype=dtype, wide=4, pause="6:half",
                             **more)
                worker.wait_until_paused()
                assert mapped(worker, "ampd-slot") == BLOCKS * 65536 * 4, mapped(worker, "ampd-slot")
                assert mapped(worker, "ampd-copy") == 2 * BLOCKS * 65536 * 2, mapped(worker, "ampd-copy")
                worker.go_on()
                worker.end()
                assert (worker.sum, worker.seen) == wanted and all(worker.shared), (worker.seen, wanted, worker.shared)


# ---- kills ----

def check_rounds(context, shards, what, journal, **more):
    """Kills at moments drawn by chance; everything ends in the bytes of an undisturbed run without shared memory."""
    draw = random.Random(f"{SEED}-{shards}-{what}-{journal}")
    print(f"seed {SEED}", flush=True)
    cluster = Cluster(context, shards)
    keys = {"steps": 30 if what == "server" else 16, "journal": int(journal), "pace": 20, **more}
    wanted = trained(context, cluster.addresses[0], "wanted", 2, shared=False, **{**keys, "pace": 0, **STREAM})
    sharing = 0  # kills at moments at which a slot was lent
    for turn in range(ROUNDS):
        pair = workers(context, cluster.addresses[0], f"m{turn}", 2, **keys)
        pair[0].wait_for_steps(draw.randrange(10))
        time.sleep(draw.random() * 0.06)
        killed = draw.randrange(shards if what == "server" else 2)
        sharing += holdings(cluster.processes[killed if what == "server" else 0].pid)[1] > 0
        if what == "server":
            cluster.kill(killed)
            cluster.start(killed)
        else:
            pair[killed].kill()
            pair[killed] = Run(context, cluster.addresses[0], f"m{turn}", rank=killed, world=2, **keys)
        for worker in pair:
            worker.end()
            assert worker.sum == wanted[0], (turn, worker.sum, wanted)
            bad = {step: saw for step, saw in worker.seen.items() if wanted[1][step] != saw}
            assert not bad and worker.shared[-2:] == [True, True][:len(worker.shared)], (turn, bad, worker.shared)
        cluster.api(0).DeleteModel(model=f"m{turn}", force=True)
    print(f"{ROUNDS} kills of a {what}, {shards} shards; a slot was lent at {sharing} of them", flush=True)
    assert sharing > 0 or ROUNDS < 5
    assert cluster.end() == [0] * shards


def test_a_killed_server_takes_no_bytes_and_shares_again(context):
    check_rounds(context, 1, "server", False, **SLOT)
    check_rounds(context, 1, "server", True, **OWN)


def test_a_killed_shard_takes_no_bytes_and_shares_again(context):
    check_rounds(context, 3, "server", True, **SLOT)


def test_a_killed_worker_takes_no_bytes_and_shares_again(context):
    check_rounds(context, 1, "worker", False, **SLOT)
    check_rounds(context, 3, "worker", False, **OWN)


def test_a_server_that_ends_orderly_shares_again_when_it_is_back(context):
    cluster = Cluster(context, 1)
    wanted = trained(context, cluster.addresses[0], "wanted", 2, **STREAM)
    for name, way in (("slot", SLOT), ("cb", SHARED_CB)):
        pair = workers(context, cluster.addresses[0], name, 2, pause="3:half", **way)
        for worker in pair:
            worker.wait_until_paused()
        assert cluster.end() == [0]
        cluster.start(0)
        for worker in pair:
            worker.go_on()
        for worker in pair:
            worker.end()
            assert (worker.sum, worker.seen) == wanted and worker.shared[-2:] == [True, True], (worker.seen,
                                                                                                  worker.shared)


def test_a_server_that_is_stopped_for_a_while_ends_no_worker(context):
    """At the moment of the attachment, longer than a worker waits for it; and in the middle of a push."""
    server = context.server()
    address = f"unix:{server.data_dir}/ampd.sock"
    wanted = trained(context, address, "wanted", **STREAM)
    for point, seconds in (("3:half", 1), ("3:ended", 7)):
        worker = Run(context, address, f"m-{point[2:]}", pause=point, dtype="f16", **SLOT)
        worker.wait_until_paused()
        server.process.send_signal(ampd_testing.signal.SIGSTOP)
        worker.go_on()
        time.sleep(seconds)
        server.process.send_signal(ampd_testing.signal.SIGCONT)
        worker.end()
        assert (worker.sum, worker.seen) == wanted, (point, worker.verdicts)
    # Wider gradients have come in step 2: it attaches anew when it begins step 3.
    wanted = trained(context, address, "wanted-wide", wide=2, **STREAM)
    worker = Run(context, address, "m-wide", pause="2:ended", wide=2, **SLOT)
    worker.wait_until_paused()
    server.process.send_signal(ampd_testing.signal.SIGSTOP)
    worker.go_on()
    time.sleep(8)
    server.process.send_signal(ampd_testing.signal.SIGCONT)
    worker.end()
    assert (worker.sum, worker.seen) == wanted, (worker.verdicts, worker.shared)


# ---- what is lent comes back ----

def test_descriptors_and_memory_come_back(context):
    cluster = Cluster(context, 3)
    trained(context, cluster.addresses[0], "m", 2, steps=2, **SLOT)
    cluster.api(0).DeleteModel(model="m", force=True)
    pids = [process.pid for process in cluster.processes]
    eventually(lambda: [holdings(pid)[2] for pid in pids] == [0] * 3, "no memory is mapped")
    before = [holdings(pid) for pid in pids]
    for turn in range(3):
        pair = workers(context, cluster.addresses[0], f"m{turn}", 2, pause="4:half", wide=2, steps=6,
                       **(SLOT, OWN, STREAM)[turn])
        for worker in pair:
            worker.wait_until_paused()
        # Two workers' slots, and the two copies, each mapped once.
        wanted = [(2, 4, 2) if turn < 2 else (0, 2, 0)] * 3
        eventually(lambda: [holdings(pid)[1:] for pid in pids] == wanted, f"turn {turn}: held is {wanted}")
        for worker in pair:
            worker.kill() if turn == 1 else worker.go_on()
        for worker in pair:
            turn == 1 or worker.end()
        cluster.api(0).DeleteModel(model=f"m{turn}", force=True)
        eventually(lambda: [holdings(pid) for pid in pids] == before,
                   f"turn {turn}: {[holdings(pid) for pid in pids]} are {before}")
    assert cluster.end() == [0] * 3


def test_where_one_shard_does_not_share_no_slot_of_the_others_is_held(context):
    cluster = Cluster(context, 3)
    wanted = trained(context, cluster.addresses[0], "wanted", **STREAM)
    cluster.kill(2)
    cluster.start(2, ("--shared-memory", "off"))
    cluster.wait_until_healthy()
    worker = Run(context, cluster.addresses[0], "m", pause="3:half", **SLOT)
    worker.wait_until_paused()
    eventually(lambda: [holdings(process.pid)[1] for process in cluster.processes] == [0, 0, 0], "no slot is held")
    worker.go_on()
    worker.end()
    assert (worker.sum, worker.seen) == wanted and not any(worker.shared), worker.shared


def test_a_metric_and_the_page_tell_the_bytes_of_all_slots(context):
    server = page_server(context)
    assert metric(server, "ampd_shared_slots_bytes") == 0
    worker = Run(context, f"unix:{server.data_dir}/ampd.sock", "m", pause="3:half", **SLOT)
    worker.wait_until_paused()
    # What is asked for again within a second is answered as before.
    eventually(lambda: metric(server, "ampd_shared_slots_bytes") == SLOT_BYTES, "the slot is told")
    counted = ask(server, "/api/status")["totals"]["memory_counted"]
    worker.go_on()
    worker.end()
    eventually(lambda: metric(server, "ampd_shared_slots_bytes") == 0, "the slot is gone")
    eventually(lambda: ask(server, "/api/status")["totals"]["memory_counted"] == counted - SLOT_BYTES, "not counted")
    assert server.terminate() == 0


def needed(context):
    """Bytes of the model on one server."""
    server = context.server("--memory-max", "4M")
    parameters = [(f"w{p}", [size]) for p, size in enumerate(SIZES)]
    refusal = refused(lambda: ampd_testing.Api(server.channel).CreateModel(spec=spec("m", parameters, world_size=2)),
                      Code.RESOURCE_EXHAUSTED)
    server.kill()
    return int(re.search(r"(\d+) bytes", refusal.text)[1])


def test_slots_count_against_the_memory_that_there_may_be(context):
    """With room for the model and one slot, one of two workers shares; with none, none does."""
    bytes_of_model, slot = needed(context), SLOT_BYTES
    wanted = trained(context, f"127.0.0.1:{context.shared.port}", "counted", 2)
    for room, sharing in ((0, 0), (slot, 1), (2 * slot - 1, 1), (2 * slot, 2)):
        server = context.server("--memory-max", str(bytes_of_model + room))
        address = f"unix:{server.data_dir}/ampd.sock"
        for name in ("a", "b"):  # what the first ones have had is there again
            pair = [worker.end() for worker in workers(context, address, name, 2, **SLOT)]
            assert [(worker.sum, worker.seen) for worker in pair] == [wanted] * 2, (room, pair[0].seen, wanted)
            assert sum(all(worker.shared) for worker in pair) == sharing, (room, [worker.shared for worker in pair])
            ampd_testing.Api(server.channel).DeleteModel(model=name, force=True)
        assert server.terminate() == 0


run(globals())
