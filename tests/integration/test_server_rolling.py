#!/usr/bin/python3
"""The trainer of docs/grpc.md, two processes of Debian's grpcio, while the two shards of a model are restarted.

    test_server_rolling.py BIN_DIR [NAME ...]
"""
import filecmp
import functools
import re
import signal
import subprocess
import threading

from ampd_testing import CALL_TIMEOUT_S, eventually, run
from etcd_testing import Cluster
from test_server_grpcurl import from_python, start_trainer, trainer_folder

STEPS = 40
APART = 5  # steps between two restarts
TRAIN_S = 4 * CALL_TIMEOUT_S


class Trainer:
    """One process; `said` has the line of each step, of which a later one must not differ."""

    def __init__(self, context, folder, rank):
        self.said, self.rest, self.process = {}, [], start_trainer(folder, RANK=str(rank), WORLD_SIZE="2")
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()
        context._own.append(self)

    def read(self):
        for line in self.process.stdout:
            step = re.match(r"step (\d+): ", line)
            if line.startswith(("trying again: UNAVAILABLE, ", "trying again: ABORTED, ")):
                continue
            if step is None or self.said.setdefault(int(step[1]), line) != line:
                self.rest.append(line)

    def await_step(self, step):
        eventually(lambda: max(self.said, default=0) >= step or self.process.poll() is not None, f"step {step}",
                   TRAIN_S)
        assert self.process.poll() is None, self.rest

    def end(self):
        code = self.process.wait(TRAIN_S)
        self.thread.join()
        assert (code, self.rest) == (0, []), (code, self.rest, self.said)

    def stop(self):
        if self.process.poll() is None:
            self.process.kill()


def trained(context, durability, restarts):
    """The lines of the steps, and the last checkpoint. Of `restarts` each has a signal for either shard, or 0."""
    cluster = Cluster(context, 2)
    lines, trainer, _, _ = from_python()
    folder = trainer_folder(context, lines, trainer, {
        "127.0.0.1:7420": cluster.of(1).address, "STEPS = \"python\", 20": f"STEPS = \"python\", {STEPS}",
        "SECONDS = 0.1 ": "SECONDS = 0.02 ", "learning_rate=0.5": "learning_rate=0.0625",
        "=model.DURABILITY_STEP": f"=model.{durability}"})
    workers = [Trainer(context, folder, rank) for rank in range(2)]
    for number, signals in enumerate(restarts):
        for worker in workers:
            worker.await_step((number + 1) * APART)
        shards = [process for process, sent in zip(cluster.processes, signals) if sent]
        for process, sent in zip(cluster.processes, signals):
            if sent:
                process.send(sent)
        for process, sent in zip(shards, filter(None, signals)):
            assert process.wait() == (0 if sent == signal.SIGTERM else -sent), process.log()[-2000:]
            process.start()
    for worker in workers:
        worker.end()
    cluster.wait_until_healthy()
    assert cluster.api(0).Checkpoint(model="python").checkpoint.step == STEPS
    made = folder / "export"
    endpoint = cluster.of(1).address
    subprocess.run([context.bin_dir / "ampctl", "--endpoint", endpoint, "checkpoint", "export", "python", made],
                   check=True, timeout=CALL_TIMEOUT_S, capture_output=True)
    said = workers[0].said | workers[1].said
    assert all(worker.said.items() <= said.items() for worker in workers), [worker.said for worker in workers]
    return said, made


@functools.cache
def undisturbed(context):
    said, made = trained(context, "DURABILITY_STEP", [])
    assert sorted(said) == list(range(1, STEPS + 1)), said
    return said, made


def check(context, durability, restarts):
    said, made = trained(context, durability, restarts)
    expected, export = undisturbed(context)
    assert said.items() <= expected.items(), (said, expected)
    assert filecmp.cmp(made, export, shallow=False), "the export is another one than that of a run without restarts"


TERM, KILL = signal.SIGTERM, signal.SIGKILL


def test_the_trainer_in_the_docs_gets_the_same_bits_through_a_rolling_restart_and_kills(context):
    check(context, "DURABILITY_STEP", [(TERM, 0), (0, TERM), (KILL, 0), (0, KILL), (KILL, KILL)])


def test_the_trainer_in_the_docs_gets_the_same_bits_through_rollbacks(context):
    check(context, "DURABILITY_CHECKPOINT", [(TERM, 0), (0, TERM), (KILL, 0), (0, KILL)])


if __name__ == "__main__":
    run(globals())
