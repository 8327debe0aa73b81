#!/usr/bin/python3
"""Schedule WORKER: two programs with libampclient name the learning rate of each step; two shards.

    test_server_rates.py BIN_DIR [NAME ...]
"""
import select
import struct
import subprocess

from ampd_testing import DIE_WITH_PARENT, PATIENCE, f32, run, scales
from test_server_shards import Cluster

ELEMENTS = 70001  # of rates_worker.c, whose gradients are ones
TIMEOUT_S = 60 * PATIENCE


class RatesWorker:
    def __init__(self, context, cluster, name):
        program = context.bin_dir.parent / "tests" / "integration" / "rates_worker"
        command = [*DIE_WITH_PARENT, program, cluster.addresses[0], "m", name]
        with open(cluster.folder / f"worker-{name}.log", "wb") as log:  # it joins again where its step was refused
            self.process = subprocess.Popen(command, text=True, bufsize=1, stdin=subprocess.PIPE,
                                            stdout=subprocess.PIPE, stderr=log)

    def step(self, rate):
        self.process.stdin.write(f"{rate}\n")
        return self

    def said(self):
        return self.process.stdout.readline().strip()

    def end(self):
        rest, _ = self.process.communicate(timeout=TIMEOUT_S)
        return self.process.returncode, rest


def test_two_programs_name_the_rate_of_each_step(context):
    cluster = Cluster(context, 2)
    api = cluster.api(0)
    first, second = RatesWorker(context, cluster, "a"), RatesWorker(context, cluster, "b")
    for rate in (0.1, 0.05):
        first.step(rate), second.step(rate)
        assert {first.said(), second.said()} == {f"step {1 if rate == 0.1 else 2} verdict 1"}
    first.step(0.05), second.step(0.07)  # step 3: whose push is whole first waits for the other one
    refused = select.select([first.process.stdout, second.process.stdout], [], [], TIMEOUT_S)[0]
    assert len(refused) == 1
    loser, last = (first, 0.07) if refused[0] is first.process.stdout else (second, 0.05)
    said = loser.said()
    assert "0.070000000000000007 of rank" in said and "0.050000000000000003 of rank" in said, said
    assert loser.step("none").said() == said  # what was given stays
    loser.step(last)
    assert first.said() == second.said() == "step 3 verdict 1"
    assert first.end() == second.end() == (0, "")

    rows = [row for row in api.ListScaleHistory(model="m").rows if row.kind == scales.HISTORY_KIND_STEP]
    assert [row.learning_rate for row in rows] == [0.1, 0.05, last], rows
    value = 0.0
    for rate in (0.1, 0.05, last):
        value = f32(value - rate)
    blocks = b"".join(answer.data for k in range(2) for answer in
                      list(cluster.api(k).Pull(model="m", latest=True, shard=k))[1:])
    assert set(struct.unpack(f"<{ELEMENTS}f", blocks[:4 * ELEMENTS])) == {value}


def test_a_program_that_gives_no_rate_is_told_so(context):
    cluster = Cluster(context, 2)
    first, second = RatesWorker(context, cluster, "a"), RatesWorker(context, cluster, "b")
    assert "schedule WORKER" in first.step("none").said()
    first.step(0.25), second.step(0.25)
    assert first.said() == second.said() == "step 1 verdict 1"
    assert first.end() == second.end() == (0, "")


if __name__ == "__main__":
    run(globals())
