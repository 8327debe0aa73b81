#!/usr/bin/python3
"""The runbooks of docs/runbooks.md, run as printed: each block on the machines that its first line names. Afterwards the
model has the bits of a run without them, its history has no gap, and training goes on.

    test_server_runbooks.py BIN_DIR [NAME ...]
"""
import contextlib
import filecmp
import json
import pathlib
import re
import shutil
import signal
import sqlite3
import subprocess
import time

from ampd_testing import DIE_WITH_PARENT, PATIENCE, ROOT, eventually, run
from machines_testing import INSTANCE, Lab

DATA_DIR = 3     # exit code
RETURN_S = 30 * PATIENCE    # within which the cluster is back, as the document says
DOCUMENT = ROOT / "docs" / "runbooks.md"
STEP_TIMEOUT_S = 300 * PATIENCE
STEPS = 100000   # more than are done
CHECKPOINT_EVERY = 10
ROLLED_BACK = 5  # of the worker: the step had no verdict
PAUSE_MS = 20    # of the worker in each step: what takes seconds is not to be thousands of steps
VERSION = re.search(r"^project\(ampd VERSION (\S+) ", (ROOT / "CMakeLists.txt").read_text(), re.M)[1].encode()
LATER = VERSION[:-1] + b"9"
SHARDS = ["ampd1", "ampd2"]
STANDBY = "ampd3"
ETCD = """ETCD_NAME={name}
ETCD_DATA_DIR=/var/lib/etcd/default
ETCD_LISTEN_CLIENT_URLS=http://{name}:2379
ETCD_ADVERTISE_CLIENT_URLS=http://{name}:2379
ETCD_LISTEN_PEER_URLS=http://{name}:2380
ETCD_INITIAL_ADVERTISE_PEER_URLS=http://{name}:2380
ETCD_INITIAL_CLUSTER={members}
"""


# ---- the document ----

def runbooks():
    """{title: {where: commands}}, in order; `where` is the block's first line."""
    found = {}
    for section in DOCUMENT.read_text().split("\n## ")[1:]:
        title, text = section.split("\n", 1)
        blocks = [block.split("\n", 1) for block in re.findall(r"^```sh\n# (.*?)^```", text, re.M | re.S)]
        found[title] = dict(blocks)
        assert len(found[title]) == len(blocks) == text.count("```sh"), f"{title}: two blocks begin alike, or one does not say where"
    return found


def runbook(title):
    return runbooks()[title]


def test_another_number_of_shards_is_written_in_each_form_of_the_options(context):
    """In /etc/default/ampd, and in /etc/ampd/ampd.conf, which is treated in the same way."""
    block, = (block for block in runbook("Another number of shards").values() if "sed -i" in block)
    line, = (line for line in block.splitlines() if line.startswith("sed -i"))
    file = context.folder()
    for form in ("AMPD_OPTIONS=--shards {} --listen ampd1:7422", "AMPD_OPTIONS=--listen ampd1:7422 --shards={}", "AMPD_SHARDS={}",
                 "listen: ampd1:7422\nshards: {}"):
        file.write_text(form.format(2) + "\n")
        subprocess.run(["bash", "-ec", "OLD=2 NEW=3\n" + line.replace("/etc/default/ampd", f"'{file}'")], check=True, timeout=10)
        assert file.read_text() == form.format(3) + "\n", file.read_text()


def options_of_the_document():
    """AMPD_OPTIONS of ampd1."""
    line, = re.findall(r"^    (AMPD_OPTIONS=--listen ampd1:7420 .*)$", DOCUMENT.read_text(), re.M)
    return line


# ---- the cluster ----

def configure(lab, name, etcd=("etcd1",)):
    """What the test adds: a short lease, for its own time's sake, and no port that another test may have."""
    options = options_of_the_document().replace("ampd1:7420", f"{name}:7420").replace("etcd1:2379", ",".join(f"{e}:2379" for e in etcd))
    options += f" --cluster-lease {4 * PATIENCE}s --metrics-listen none"
    if lab.unit == INSTANCE:
        lab.write(name, "/etc/ampd/prod.conf", "".join(f"{key}: {value}\n" for key, value in re.findall(r"--(\S+) (\S+)", options)))
    else:
        lab.write(name, "/etc/default/ampd", f"{options}\n")


def begin(context, *more, unit="ampd"):
    """The cluster of the document, and machines that nothing runs on yet."""
    lab = Lab(context, ["etcd1", *SHARDS, STANDBY, *more], unit)
    for machine in lab.machines.values():
        machine.install(context.bin_dir)
    etcd = [name for name in lab.machines if name.startswith("etcd")]
    for name in etcd:
        lab.write(name, "/etc/default/etcd", ETCD.format(name=name, members=",".join(f"{member}=http://{member}:2380" for member in etcd)))
        lab.machines[name].run("systemctl start --no-block etcd")
    eventually(lambda: all(lab.machines[name].etcd.ready.is_set() for name in etcd), "etcd serves", STEP_TIMEOUT_S)
    for name in [*SHARDS, STANDBY]:
        configure(lab, name, etcd)
        lab.machines[name].run("systemctl start --no-block ampd")
    await_serving(lab, 2)
    return lab


def serving(lab):
    """The machines whose process is a shard, by index."""
    found = {}
    for name, machine in lab.machines.items():
        said = machine.ampd.log().rsplit('msg="listening"', 1)[-1]
        place = re.findall(r'msg="holding a place".* shard=(\d+)', said)
        if machine.ampd.ready.is_set() and machine.ampd.status == "serving":  # else it stands by
            found[int(place[-1])] = name
    return found


def await_serving(lab, count):
    return eventually(lambda: (lambda found: found if sorted(found) == list(range(count)) else None)(serving(lab)),
                      f"{count} shards serve; {lab.logs()}", STEP_TIMEOUT_S)


def in_order(lab):
    """(standbys, shards): the shards with shard 0 last."""
    found = serving(lab)
    shards = [found[k] for k in sorted(found, reverse=True)]
    return [name for name in [*SHARDS, STANDBY] if name not in shards], shards


def on_each(lab, block, names):
    for name in names:
        lab.machines[name].run(block)


class Worker:
    """crash_worker (tests/crash/worker.c), until it is told to end."""

    def __init__(self, context, lab, names):
        context.count += 1
        self.last, self.out = lab.folder / f"last-{context.count}", lab.folder / f"worker-{context.count}"
        with open(self.out, "wb") as out:
            self.process = subprocess.Popen(
                [*DIE_WITH_PARENT, context.bin_dir.parent / "tests" / "crash" / "crash_worker", lab.address(*names), "m", "0", "1",
                 str(STEPS), str(CHECKPOINT_EVERY), "checkpoint", "small", f"@{self.last}", str(PAUSE_MS)], stdout=out, stderr=out)
        context._own.append(self)

    def steps(self):
        """Those that it has the verdict of, once for each time."""
        lines = [line.split() for line in self.out.read_text().splitlines() if re.fullmatch(r"\d+( \d+){4}", line)]
        return [int(step) for _, step, verdict, *_ in lines if int(verdict) != ROLLED_BACK]

    def await_steps(self, count):
        wanted = len(self.steps()) + count
        eventually(lambda: len(self.steps()) >= wanted or self.process.poll() is not None, "steps go on", STEP_TIMEOUT_S)
        assert len(self.steps()) >= wanted, self.out.read_text()[-1500:]

    def end(self):
        """Its last step."""
        self.last.write_text("1")
        assert self.process.wait(STEP_TIMEOUT_S) == 0, self.out.read_text()[-1500:]
        return self.steps()[-1]

    def stop(self):
        self.process.kill()
        self.process.wait()


# ---- afterwards ----

def ctl(context, address, *arguments):
    done = subprocess.run([context.bin_dir / "ampctl", "-e", address, *arguments], capture_output=True, text=True,
                          timeout=STEP_TIMEOUT_S, check=False)
    assert done.returncode == 0, (arguments, done.stderr)
    return done.stdout


def export(context, address, step, path):
    eventually(lambda: any(row["step"] == step for row in json.loads(ctl(context, address, "checkpoints", "m", "-o", "json"))["rows"]),
               f"step {step} is a checkpoint", STEP_TIMEOUT_S)
    path.unlink(missing_ok=True)
    ctl(context, address, "checkpoint", "export", "m", path, "--step", str(step))
    return path


def check(context, address, last, work):
    """The history up to step `last`, and the last checkpoint, are those of one ampd that nothing has happened to."""
    rows = json.loads(ctl(context, address, "history", "m", "-o", "json"))["rows"]
    steps = [int(row["step"]) for row in rows if row.get("verdict") and not row.get("superseded")]
    assert steps == list(range(1, last + 1)), steps
    step = last - last % CHECKPOINT_EVERY
    server = context.server()
    subprocess.run([*DIE_WITH_PARENT, context.bin_dir.parent / "tests" / "crash" / "crash_worker", f"127.0.0.1:{server.port}", "m", "0",
                    "1", str(STEPS), str(CHECKPOINT_EVERY), "checkpoint", "small", str(step)], check=True, capture_output=True,
                   timeout=STEP_TIMEOUT_S)
    expected = export(context, f"127.0.0.1:{server.port}", step, work / "expected.safetensors")
    assert filecmp.cmp(export(context, address, step, work / "got.safetensors"), expected, shallow=False), "other bytes than without the runbook"


def end_and_check(context, lab, worker):
    last = worker.end()
    check(context, lab.address(serving(lab)[0]), last, lab.folder)


# ---- the runbooks ----

def test_every_block_is_run_by_a_test(context):
    code = pathlib.Path(__file__).read_text().replace("{OF_DIRECTORY}", OF_DIRECTORY)
    for title, blocks in runbooks().items():
        assert f'runbook("{title}")' in code, title
        assert blocks and all(f'"{where}"' in code for where in blocks), (title, [where for where in blocks if f'"{where}"' not in code])


OF_DIRECTORY = "not without --checkpoint-dir"


def back_up(lab, standbys, shards, has_directory=True):
    places = {"on each standby, then on each shard": standbys + shards, "on each shard, when all have stopped": shards,
              f"on one machine, when all have stopped; {OF_DIRECTORY}": shards[:has_directory],
              "on one machine, when all archives are there": shards[:1], "on each shard, then on each standby": shards + standbys}
    blocks = runbook("Backup")
    assert list(blocks) == list(places)
    for where, commands in blocks.items():
        on_each(lab, commands, places[where])


def restore(lab, saved, new, configure_new, before=(), has_directory=True, etcd=()):
    """Onto the machines `new`; `before`: those that have their old data; `etcd`: one that has served the cluster before."""
    blocks = runbook("Restore onto new machines")
    on_each(lab, blocks["on each machine of before"], before)
    on_each(lab, blocks[f"on one machine, where /srv is that of before; {OF_DIRECTORY}"], new[:has_directory])
    on_each(lab, blocks["on one machine"], new[:1])
    on_each(lab, blocks[f"on one machine; {OF_DIRECTORY}"], new[:has_directory])
    for name, source in zip(new, saved):
        lab.machines[name].run(blocks["on each new machine"].replace("/ampd1.", f"/{source}."))
        assert lab.machines[name].path("/etc/default/ampd").read_text() == lab.machines[source].path("/etc/default/ampd").read_text()
        configure_new(name)
    on_each(lab, blocks["on etcd1, only where etcd is the one of before"], etcd)
    on_each(lab, blocks["on each new machine, when all of the above is done"], new)
    lab.machines[new[0]].run(blocks["on one new machine"].replace("ampd11:7420,ampd12:7420", ",".join(f"{name}:7420" for name in new))
                             .replace("= 2 ]", f"= {len(new)} ]"))


def test_a_backup_is_restored_onto_new_machines(context):
    """The cluster trains on after the backup; new machines, with the same etcd, go on from the backup."""
    lab, new = begin(context, "ampd11", "ampd12"), ["ampd11", "ampd12"]
    worker = Worker(context, lab, SHARDS)
    worker.await_steps(25)
    standbys, shards = in_order(lab)
    back_up(lab, standbys, shards)
    await_serving(lab, 2)
    worker.await_steps(30)
    end_and_check(context, lab, worker)
    on_each(lab, "systemctl stop ampd", [*SHARDS, STANDBY])
    restore(lab, shards, new, lambda name: configure(lab, name), etcd=["etcd1"])
    worker = Worker(context, lab, new)
    worker.await_steps(20)
    end_and_check(context, lab, worker)


def test_a_backup_of_shards_without_etcd_is_restored_onto_new_machines(context):
    """One ampd alone, and two by --peers, with their checkpoints in their data directories."""
    for old, new in ((["ampd1"], ["ampd11"]), (SHARDS, ["ampd11", "ampd12"])):
        lab = Lab(context, [*old, *new])

        def configure_one(name, names):
            several = f" --peers {','.join(f'{each}:7420' for each in names)} --shard {names.index(name)}" if len(names) > 1 else ""
            lab.write(name, "/etc/default/ampd", f"AMPD_OPTIONS=--listen {name}:7420 --metrics-listen none{several}\n")

        for machine in lab.machines.values():
            machine.install(context.bin_dir)
        for name in old:
            configure_one(name, old)
            lab.machines[name].run("systemctl start --no-block ampd")
        worker = Worker(context, lab, old)
        worker.await_steps(25)
        back_up(lab, [], old, has_directory=False)
        worker.await_steps(15)
        last = worker.end()
        check(context, lab.address(old[0]), last, lab.folder)
        on_each(lab, "systemctl stop ampd", old)
        restore(lab, old, new, lambda name: configure_one(name, new), has_directory=False)
        worker = Worker(context, lab, new)
        worker.await_steps(25)
        check(context, lab.address(new[0]), worker.end(), lab.folder)


def bring(context, lab, version):
    """The programs that are to be installed, of that version; it has as many letters as the present one."""
    for machine in lab.machines.values():
        programs = machine.root / "build" / "release" / "bin"
        programs.mkdir(parents=True, exist_ok=True)
        for name in ("ampd", "ampctl"):
            data = (context.bin_dir / name).read_bytes()
            assert VERSION in data
            (programs / name).write_bytes(data.replace(VERSION, version))
            (programs / name).chmod(0o755)


def versions(lab):
    return {re.findall(r'msg="listening".* version=(\S+)', lab.machines[name].ampd.log())[-1].encode() for name in [*SHARDS, STANDBY]}


def check_no_step_was_lost(worker):
    """None was done again; of one that was decided when the shards ended the worker may not have been told."""
    steps = worker.steps()
    assert len(set(steps)) == len(steps), steps


def test_a_rolling_upgrade_and_its_way_back_lose_no_step(context):
    lab = begin(context)
    said = lab.machines["ampd1"].run("ampd --version").splitlines()
    assert [line.split(" format ")[0] for line in said[1:]] == ["shards:", "data:"], said
    worker = Worker(context, lab, SHARDS)
    worker.await_steps(10)
    blocks = runbook("Rolling upgrade")
    for version in (LATER, VERSION):
        bring(context, lab, version)
        standbys, shards = in_order(lab)
        for name in standbys + shards:
            lab.machines[name].run(blocks["on each standby, then on each shard, shard 0 last: one after the other"])
        assert versions(lab) == {version}
        worker.await_steps(10)
    check_no_step_was_lost(worker)
    end_and_check(context, lab, worker)


def raise_data_format(lab):
    """As a program with a higher number does when it opens them."""
    for name in [*SHARDS, STANDBY]:
        for store in lab.machines[name].path("/var/lib/ampd").glob("shard-*/ampd.db"):
            with contextlib.closing(sqlite3.connect(store)) as database:
                database.execute("PRAGMA user_version = 1000")


def test_an_upgrade_of_all_at_once_loses_no_step_and_its_way_back_is_the_backup(context):
    lab = begin(context)
    worker = Worker(context, lab, SHARDS)
    worker.await_steps(15)
    blocks = runbook("Rolling upgrade")
    bring(context, lab, LATER)
    standbys, saved = in_order(lab)
    back_up(lab, standbys, saved)
    await_serving(lab, 2)
    standbys, shards = in_order(lab)
    on_each(lab, blocks["on each standby, then on each shard"], standbys + shards)
    on_each(lab, blocks["on each shard, then on each standby, when all have stopped"], shards + standbys)
    await_serving(lab, 2)
    worker.await_steps(10)
    assert versions(lab) == {LATER}
    check_no_step_was_lost(worker)
    end_and_check(context, lab, worker)
    bring(context, lab, VERSION)
    standbys, shards = in_order(lab)
    on_each(lab, blocks["on each standby, then on each shard"], standbys + shards)
    raise_data_format(lab)
    lab.machines[saved[0]].run("! systemctl start ampd")
    assert lab.machines[saved[0]].ampd.code == DATA_DIR, lab.logs()
    restore(lab, saved, saved, lambda name: None, before=[*SHARDS, STANDBY], etcd=["etcd1"])
    lab.machines[standbys[0] if standbys[0] not in saved else STANDBY].run("systemctl start --no-block ampd")
    worker = Worker(context, lab, SHARDS)
    worker.await_steps(20)
    end_and_check(context, lab, worker)


def change_shards(lab, old, new):
    """By the runbook, from two to three, or with the numbers exchanged as it says."""
    blocks = runbook("Another number of shards")
    standbys, shards = in_order(lab)
    all_of_them = [*SHARDS, STANDBY]
    on_each(lab, blocks["on each standby, then on each shard"], standbys + shards)
    on_each(lab, blocks["on each standby and each shard, when all have stopped"].replace("OLD=2 NEW=3", f"OLD={old} NEW={new}"), all_of_them)
    lab.machines["etcd1"].run(blocks["on etcd1, when all have stopped"].replace("shards 3", f"shards {new}"))
    on_each(lab, blocks["on each shard, then on each standby and each new machine"], shards + standbys)
    await_serving(lab, new)
    lab.machines["ampd1"].run(blocks["on one machine"].replace("= 3 ]", f"= {new} ]"))


def test_a_cluster_goes_on_with_another_number_of_shards_and_back(context):
    """To three, where the standby is the third, to one, and to two; a worker that was not told ends with a sentence."""
    lab = begin(context)
    old = 2
    for new in (3, 1, 2):
        worker = Worker(context, lab, [*SHARDS, STANDBY])
        worker.await_steps(25)
        change_shards(lab, old, new)
        assert worker.process.wait(STEP_TIMEOUT_S) == 1 and f"the model is on {new} shards now" in worker.out.read_text()
        assert len(in_order(lab)[0]) == 3 - new
        old = new
    worker = Worker(context, lab, [*SHARDS, STANDBY])
    worker.await_steps(25)
    end_and_check(context, lab, worker)


def test_instances_go_on_with_another_number_of_shards(context):
    """By the names that the document has for them."""
    lab = begin(context, unit=INSTANCE)
    worker = Worker(context, lab, [*SHARDS, STANDBY])
    worker.await_steps(25)
    change_shards(lab, 2, 3)
    worker.process.wait(STEP_TIMEOUT_S)
    worker = Worker(context, lab, [*SHARDS, STANDBY])
    worker.await_steps(25)
    end_and_check(context, lab, worker)


def fail_over(lab):
    """The process of shard 0 is killed, and comes back when another one has its place: with a directory of before."""
    owner = lab.machines[serving(lab)[0]]
    owner.ampd.end(signal.SIGKILL)
    eventually(lambda: serving(lab).get(0) not in (None, owner.name) and len(serving(lab)) == 2, "a standby takes over", STEP_TIMEOUT_S)
    owner.ampd.start(block=False)
    eventually(lambda: "stands by" in owner.ampd.status, f"{owner.name} stands by", STEP_TIMEOUT_S)


def await_return(lab, begun):
    """Of all shards, after what began then."""
    await_serving(lab, 2)
    took_s = time.monotonic() - begun
    print(f"all shards serve again after {took_s:.1f} s")
    assert took_s < RETURN_S, lab.logs()


def test_a_cluster_goes_on_when_etcd_has_lost_all(context):
    """After a failover, so that one of the processes has an older directory of a shard."""
    lab = begin(context)
    worker = Worker(context, lab, [*SHARDS, STANDBY])
    worker.await_steps(25)
    fail_over(lab)
    worker.await_steps(15)
    blocks = runbook("etcd's data are lost")
    begun = time.monotonic()
    lab.machines["etcd1"].run(blocks["on etcd1, whose data are lost"])
    eventually(lambda: len(serving(lab)) < 2, "the shards end", STEP_TIMEOUT_S)
    await_return(lab, begun)
    on_each(lab, blocks["on each shard and each standby"], [*SHARDS, STANDBY])
    worker.await_steps(25)
    end_and_check(context, lab, worker)


def test_a_cluster_goes_on_when_one_member_of_etcd_is_left(context):
    lab = begin(context, "etcd2", "etcd3")
    worker = Worker(context, lab, [*SHARDS, STANDBY])
    worker.await_steps(25)
    for name in ("etcd2", "etcd3"):
        lab.machines[name].etcd.end(signal.SIGKILL)
    eventually(lambda: not serving(lab), "the shards end", STEP_TIMEOUT_S)
    begun = time.monotonic()
    lab.machines["etcd1"].run(runbook("etcd's data are lost")["on etcd1, the member that is left"])
    await_return(lab, begun)
    worker.await_steps(25)
    end_and_check(context, lab, worker)


def lose_all_places(lab):
    for machine in lab.machines.values():
        for service in machine.services.values():
            service.end(signal.SIGKILL)


def start_after_all(lab, names):
    """A second after one another."""
    blocks = runbook("All places are lost")
    lab.machines["etcd1"].run(blocks["on etcd1"])
    begun = time.monotonic()
    on_each(lab, blocks["on each shard and each standby"] + "sleep 1\n", names)
    await_return(lab, begun)
    lab.machines["ampd1"].run(blocks["on one machine"])


def test_a_cluster_goes_on_when_all_places_are_lost(context):
    """The machine with an empty directory is up first. Then it happens again, and the directory of a shard is lost, too."""
    lab = begin(context)
    worker = Worker(context, lab, [*SHARDS, STANDBY])
    worker.await_steps(25)
    lose_all_places(lab)
    start_after_all(lab, [STANDBY, *SHARDS])
    worker.await_steps(25)
    lost = serving(lab)[1]
    lose_all_places(lab)
    shutil.rmtree(lab.machines[lost].path("/var/lib/ampd"))
    start_after_all(lab, [lost, *(name for name in [*SHARDS, STANDBY] if name != lost)])
    worker.await_steps(25)
    end_and_check(context, lab, worker)


if __name__ == "__main__":
    run(globals())
