#!/usr/bin/python3
"""Units: a worker that gathers, releases and scatters them trains to the same bytes as one that holds the whole model,
on one shard and on two, also where servers are killed in the middle of a step; and it holds no more than those in use.

    test_units.py BIN_DIR [NAME ...]
    test_units.py --big [BIN_DIR]     512 MiB of fp16 parameters in a worker that may have 192 MiB

BIN_DIR of --big is by default that of the release build.
"""
import pathlib
import subprocess
import sys

BIG = "--big" in sys.argv
if BIG:
    sys.argv = [sys.argv[0], *[word for word in sys.argv[1:] if word != "--big"]]
    if len(sys.argv) == 1:
        sys.argv.append(str(pathlib.Path(__file__).resolve().parents[2] / "build" / "release" / "bin"))

from ampd_testing import DIE_WITH_PARENT, PATIENCE, run  # noqa: E402
from test_server_shards import Cluster  # noqa: E402

TIMEOUT_S = 120 * PATIENCE * (5 if BIG else 1)
BLOCK_BYTES = 65536 * 2   # of the parameters' fp16
EDGE_BYTES = 65536 * 4    # of a block that two units share
STEPS = 5
PARAMETERS, ELEMENTS = 16, 524309  # 16 MiB; no parameter ends where a block does
APPLIED, ROLLED_BACK = 1, 5


class Run:
    """A units_worker, and what it says."""

    def __init__(self, context, cluster, name, how, unit="1", parameters=PARAMETERS, elements=ELEMENTS, limit_mib=0,
                 pause=0, journal=False, rank=0, world=1):
        program = context.bin_dir.parent / "tests" / "integration" / "units_worker"
        self.process = subprocess.Popen(
            [*DIE_WITH_PARENT, program, cluster.addresses[0], name, how, str(parameters), str(elements), unit,
             str(STEPS), str(limit_mib), str(pause)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8",
            env={"RANK": str(rank), "WORLD_SIZE": str(world), **({"UNITS_JOURNAL": "1"} if journal else {})})

    def wait_until_paused(self):
        """The lines before."""
        lines = []
        for line in self.process.stdout:
            if line == "paused\n":
                return lines
            lines.append(line)
        raise AssertionError(f"it ended: {lines}, {self.process.stderr.read()}")

    def go_on(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self):
        """(verdicts in order, last line)"""
        out, err = self.process.communicate(timeout=TIMEOUT_S)
        assert self.process.returncode == 0, err[-2000:]
        lines = out.splitlines()
        verdicts = [int(line.split("verdict ")[1].split(",")[0]) for line in lines if line.startswith("step")]
        return verdicts, lines[-1].split()

    def fails(self):
        """What it says of that."""
        _, err = self.process.communicate(timeout=TIMEOUT_S)
        assert self.process.returncode == 1, self.process.returncode
        return err


def whole(context, cluster, **options):
    """The sum over the parameters of a worker that holds all."""
    verdicts, last = Run(context, cluster, "whole", "whole", **options).end()
    assert verdicts == [APPLIED] * STEPS, verdicts
    return last[1]


def blocks_of(elements):
    """At the most, of a parameter."""
    return -(-elements // 65536) + 1


def check_same(context, shards):
    cluster = Cluster(context, shards)
    wanted = whole(context, cluster)
    verdicts, last = Run(context, cluster, "units", "units").end()
    assert verdicts == [APPLIED] * STEPS and last[1] == wanted, (verdicts, last, wanted)
    # The unit in use and the one that is fetched; the two borders of the one that is scattered.
    assert 0 < int(last[3]) <= 2 * blocks_of(ELEMENTS) * BLOCK_BYTES + 2 * EDGE_BYTES, last
    # Units of several parameters that lie apart: many pulls, and borders that wait long for their other half.
    verdicts, last = Run(context, cluster, "apart", "units", unit="apart4").end()
    assert verdicts == [APPLIED] * STEPS and last[1] == wanted, (verdicts, last, wanted)


def check_hooks(context, shards):
    cluster = Cluster(context, shards)
    wanted = whole(context, cluster)
    verdicts, last = Run(context, cluster, "hooks", "hooks", unit="2").end()
    assert verdicts == [APPLIED] * STEPS and last[1] == wanted, (verdicts, last, wanted)


def test_units_train_to_the_bytes_of_a_worker_that_holds_all(context):
    check_same(context, 1)


def test_so_they_do_on_two_shards(context):
    check_same(context, 2)


def test_the_hooks_of_fsdp_train_to_the_same_bytes_on_any_number_of_shards(context):
    check_hooks(context, 1)
    check_hooks(context, 3)


def check_killed(context, shards, killed, journal):
    """Half of step 3 is scattered when the server ends, and nobody has it then."""
    cluster = Cluster(context, shards)
    wanted = whole(context, cluster)
    worker = Run(context, cluster, "units", "units", pause=3, journal=journal)
    lines = worker.wait_until_paused()
    assert len(lines) == 2, lines
    cluster.kill(killed)
    cluster.start(killed)
    worker.go_on()
    verdicts, last = worker.end()
    assert verdicts[0] == ROLLED_BACK and verdicts.count(APPLIED) >= STEPS - 2, verdicts
    assert last[1] == wanted and int(last[5]) >= 1, (last, wanted)


def test_a_server_killed_in_the_middle_of_a_step_takes_none_of_the_bytes(context):
    check_killed(context, 1, 0, False)


def test_with_a_journal_the_step_in_hand_alone_is_computed_again(context):
    check_killed(context, 1, 0, True)


def test_one_of_two_shards_is_killed(context):
    check_killed(context, 2, 1, False)


def test_one_worker_with_units_and_one_that_holds_all_train_together(context):
    """What the one scatters again, after a kill, counts once: the other one would see it."""
    cluster = Cluster(context, 2)

    def pair(name, hows, **options):
        return [Run(context, cluster, name, how, rank=rank, world=2, journal=True, **options)
                for rank, how in enumerate(hows)]

    wanted = [worker.end()[1][1] for worker in pair("whole", ("whole", "whole"))]
    workers = pair("mixed", ("units", "whole"), pause=3)
    for worker in workers:
        worker.wait_until_paused()
    cluster.kill(1)  # it has the second half of the model, which backward scatters first
    cluster.start(1)
    for worker in workers:
        worker.go_on()
    ends = [worker.end() for worker in workers]
    assert [last[1] for _, last in ends] == wanted and len(set(wanted)) == 1, (ends, wanted)
    applied = [APPLIED] * (STEPS - 2)
    assert [verdicts for verdicts, _ in ends] == [[ROLLED_BACK, *applied], applied], ends


def under_sanitizer(context):
    """Its shadow is memory that no limit of this size allows."""
    program = (context.bin_dir / "ampd").read_bytes()
    return b"__asan_init" in program or b"__tsan_init" in program


def test_a_limit_that_ends_the_one_lets_the_other_train(context):
    """Three quarters of the model's bytes, with what a process has anyway."""
    if under_sanitizer(context):
        print("SKIPPED: test_units.py: a limit of memory: a sanitizer's shadow is larger than it")
        return
    cluster = Cluster(context, 1)
    wanted = whole(context, cluster, parameters=64)
    limit = {"limit_mib": 48, "parameters": 64}  # 64 MiB of parameters, and as much of gradients
    said = Run(context, cluster, "whole-limited", "whole", **limit).fails()
    assert "memory" in said, said
    verdicts, last = Run(context, cluster, "units", "units", **limit).end()
    assert verdicts == [APPLIED] * STEPS and last[1] == wanted, (verdicts, last, wanted)


def big(context):
    """512 MiB of fp16 parameters in 32 units of 16 MiB."""
    cluster = Cluster(context, 2)
    size = {"parameters": 64, "elements": 4194317, "unit": "2"}
    wanted = whole(context, cluster, **size)
    cluster.api(0).DeleteModel(model="whole", force=True)  # 3 GiB of the servers
    said = Run(context, cluster, "whole-limited", "whole", limit_mib=192, **size).fails()
    assert "memory" in said, said
    cluster.api(0).DeleteModel(model="whole-limited", force=True)
    worker = Run(context, cluster, "units", "units", limit_mib=192, **size)
    verdicts, last = worker.end()
    print(f"512 MiB of parameters, RLIMIT_DATA 192 MiB: sum {last[1]} (whole: {wanted}), "
          f"at the most {int(last[3]) >> 20} MiB held", flush=True)
    assert verdicts == [APPLIED] * STEPS and last[1] == wanted, (verdicts, last, wanted)


run({"test_512_MiB_of_parameters_train_in_a_worker_of_192_MiB": big} if BIG else globals())
