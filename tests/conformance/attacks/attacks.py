#!/usr/bin/python3
"""attacks.py BIN [--long [--runs=N] [--connections=N] [--realtime]] [--ampd] [ROW...]: each row of the attack table against a real server.

Plain: one attacking connection, deadlines of 100 ms; the attacker has to be ended or answered as EXPECTED says, an honest
client goes on, and the server's memory and descriptors come back.

--long: 1 and 100 attacking connections on one core, which come back as soon as they are ended; server and honest client on
another. The honest p99 may be at most max(twice the quiet p99, quiet + 2 ms), in 3 of 3 runs. What other processes had of the server's
core is told with each run ("others", percent, quiet/attacked): a run in which they had more than OTHERS_MOST is measured again, whatever came
out of it, up to AGAIN times in all of a row's runs. "cpu" is what the server had of its core, "attackers" what these had of theirs.

With --realtime (as root) server, honest client and the kernel's thread for packets are of the real-time class, so that nobody else's work delays them: what others do
on a machine that is not quiet is no reason then to measure again. The client still waits for the server, as on a core of their own.
STATE_ABUSE is passed over there: part of its work is threads', which would wait for the loop as they never do.

The server is echo_server, and without row names or with --ampd also ampd (AMPD_ROWS; without grpcio and protoc it is passed
over with a word). BIN is the folder with echo_server, ampd, attacker and latency.
"""
import concurrent.futures
import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time

# Against ampd itself: what floods, and calls that are valid and mean harm (ampd_target.py).
STATE_ABUSE = "state_abuse"
AMPD_ROWS = ("slow_read", "hpack_bomb", "http2_bomb", "priority_flood", "ping_flood", "settings_flood", "rapid_reset", "made_you_reset",
             "empty_names", "empty_data", "crumbs", "continuation_flood", "bad_metadata", "prefix_lie", "path_confusion",
             "window_update_flood", "unknown_flood", "too_many_streams", STATE_ABUSE)
# In the plain test, one of a kind.
AMPD_PLAIN_ROWS = ("ping_flood", "rapid_reset", "made_you_reset", "empty_data", "prefix_lie", "path_confusion", STATE_ABUSE)
# Who sends more calls at once than are allowed is ended for that: on a slow machine before the first answer.
EXPECTED_OF_AMPD = {STATE_ABUSE: "answered or ended"}
# What ends a row with one connection: "calm" a GOAWAY that says ENHANCE_YOUR_CALM, "ended" any end of the connection,
# "answered" an answer or a reset, "goaway" a polite one, because the connection is idle.
EXPECTED = {
    "zero_window": "answered", "slow_read": "ended", "data_dribble": "answered",
    "hpack_bomb": "calm", "http2_bomb": "calm", "priority_flood": "calm",
    "ping_flood": "calm", "ping_flood_unread": "ended", "settings_flood": "calm", "settings_flood_unread": "ended",
    "rapid_reset": "calm", "made_you_reset": "calm", "empty_names": "calm",
    "empty_data": "calm", "empty_headers": "calm", "crumbs": "calm", "continuation_flood": "calm",
    "large_settings": "ended", "frame_size_zero": "ended", "window_flips": "calm", "after_goaway": "ended",
    "endless_varint": "ended", "connections": "goaway", "bad_metadata": "calm",
    "prefix_lie": "ended", "prefix_hold": "answered", "path_confusion": "ended",
    "slow_preface": "ended", "slow_headers": "ended", "slow_body": "answered", "idle": "goaway",
    "window_update_flood": "calm", "unknown_flood": "calm", "altsvc_flood": "calm", "priority_update_flood": "calm",
    "too_many_streams": "ended", "bad_calls": "answered",
}
# The number in the table of shared/reference/http2-attacks.md; "-": from the list of bad input.
NUMBER = {
    "zero_window": 1, "slow_read": 1, "data_dribble": 1, "hpack_bomb": 2, "http2_bomb": 3, "priority_flood": 4,
    "ping_flood": 5, "ping_flood_unread": 23, "settings_flood": 5, "settings_flood_unread": 23, "rapid_reset": 6,
    "made_you_reset": 7, "empty_names": 8, "empty_data": 9, "empty_headers": 9, "crumbs": 9, "continuation_flood": 10,
    "large_settings": 11, "frame_size_zero": 12, "window_flips": 12, "after_goaway": 13, "endless_varint": 15,
    "connections": 16, "bad_metadata": 17, "prefix_lie": 18, "prefix_hold": 18, "path_confusion": 19, "slow_preface": 20,
    "slow_headers": 20, "slow_body": 20, "idle": 20, "window_update_flood": 21, "unknown_flood": 21, "altsvc_flood": 21,
    "priority_update_flood": 21, "too_many_streams": 22, "bad_calls": "-", STATE_ABUSE: 25,
}
# The deadline that ends a row, set to 100 ms in the plain test. The others stay as they are, so that a busy machine is none.
SHORT = {
    "zero_window": "write_stall_ms", "slow_read": "write_stall_ms", "data_dribble": "write_stall_ms",
    "ping_flood_unread": "goodbye_ms", "settings_flood_unread": "goodbye_ms", "prefix_hold": "message_window_ms",
    "slow_preface": "preface_ms", "slow_headers": "headers_ms", "slow_body": "message_window_ms",
    "connections": "idle_ms", "idle": "idle_ms", "bad_calls": "message_window_ms",
}
PLAIN_MS = 6000
ROWS_AT_ONCE = 4  # each has a server of its own
# Memory that may stay: pages that the allocator keeps, or 5 % of what there was.
SLACK_KIB = 4096
# The same with a sanitizer, whose shadow and quarantine grow with what was ever touched: what it looks for is not this.
SANITIZER_SLACK_KIB = 256 << 10
QUIET_S = 1
ATTACK_S = 2
RATE = 2000  # honest calls a second
OTHERS_MOST = 3  # percent; without other work the kernel's threads and those of containers have about 1
AGAIN = 3
SERVER_CORE, ATTACK_CORE = "0", "1"
REALTIME = "--realtime" in sys.argv
REALTIME_PRIORITY = 5  # any: nothing else here is of that class
CALLS_FILE = tempfile.NamedTemporaryFile("w", prefix="ampd-attacks-", suffix=".calls")  # pylint: disable=consider-using-with


def slack_of(binaries):
    with open(os.path.join(binaries, "echo_server"), "rb") as program:
        text = program.read()
    return SANITIZER_SLACK_KIB if b"__tsan_init" in text or b"__asan_init" in text else SLACK_KIB


class Server:
    honest = []  # what the honest client calls, if not the usual
    name = "echo"

    def __init__(self, binaries, limits, core=None, files=None):
        command = [os.path.join(binaries, "echo_server"), "127.0.0.1:0"] + limits
        command = placed(core) + command
        if files is not None:
            command = ["prlimit", f"--nofile={files}"] + command
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.port = self.process.stdout.readline().split()[1]

    def memory_kib(self):
        """Without the free pages that malloc keeps: they are no leak, but would look like one."""
        self.process.send_signal(signal.SIGUSR1)
        time.sleep(0.05)
        with open(f"/proc/{self.process.pid}/status", encoding="ascii") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def end(self):
        self.process.terminate()
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


def fields(text):
    words = text.split()
    return {name: int(value) for name, value in zip(words[::2], words[1::2])}


def placed(core):
    """What goes before the command of a program that belongs on this core."""
    return ["taskset", "-c", core] if core is not None else []


def realtime(process):
    """The thread that the program began with, and none that it makes: the loop's, whom threads beside it must not hold up."""
    if REALTIME:
        os.sched_setscheduler(process.pid, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(REALTIME_PRIORITY))


@contextlib.contextmanager
def realtime_network():
    """The kernel's thread that takes packets in where they are many: it would wait for everybody's work, and the server for it."""
    found = subprocess.run(["pgrep", "-x", f"ksoftirqd/{SERVER_CORE}"], stdout=subprocess.PIPE, check=False).stdout.split()
    for pid in found:
        os.sched_setscheduler(int(pid), os.SCHED_FIFO, os.sched_param(REALTIME_PRIORITY))
    try:
        yield
    finally:
        for pid in found:
            os.sched_setscheduler(int(pid), os.SCHED_OTHER, os.sched_param(0))


def run(command, core, timeout):
    process = start(command, core)
    text, _ = process.communicate(timeout=timeout)
    return process.returncode, fields(text)


def start(command, core):
    favoured = REALTIME and core == ATTACK_CORE
    process = subprocess.Popen(placed(core) + command, stdout=subprocess.PIPE, text=True, start_new_session=favoured)
    if core == SERVER_CORE:
        realtime(process)
    if favoured:
        weigh(process)
    return process


def weigh(process):
    """More of their core for attackers than other sessions have, where the kernel divides a core among sessions."""
    with contextlib.suppress(OSError), open(f"/proc/{process.pid}/autogroup", "w", encoding="ascii") as group:
        group.write("-10")


class Others:
    """What others than the server and the children that ended since had of its core, in percent; interrupts count, too."""

    def __init__(self, server):
        self.server = server
        self.before = self.read()

    def own_s(self):
        own_ns = 0
        for task in os.listdir(f"/proc/{self.server.process.pid}/task"):
            with open(f"/proc/{self.server.process.pid}/task/{task}/schedstat", encoding="ascii") as stat:
                own_ns += int(stat.read().split()[0])
        return own_ns / 1e9

    def read(self):
        with open("/proc/stat", encoding="ascii") as stat:
            words = next(line.split() for line in stat if line.startswith(f"cpu{SERVER_CORE} "))
        own_s = self.own_s()
        idle_s = (int(words[4]) + int(words[5])) / os.sysconf("SC_CLK_TCK")
        return time.monotonic(), idle_s + own_s + children_s(), own_s

    def percent(self):
        """What others had, and what the server had."""
        now, used, own_s = self.read()
        whole = now - self.before[0]
        return {"others": max(0, round(100 * (whole - (used - self.before[1])) / whole)),
                "cpu": round(100 * (own_s - self.before[2]) / whole)}


def children_s():
    """CPU time of the children that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def came_back(binaries, server, memory, descriptors):
    """Waits for the server to give back what the attack took; a text if it does not."""
    slack_kib = slack_of(binaries)
    for _ in range(100):
        now, files = server.memory_kib(), server.descriptors()
        if files <= descriptors and now <= max(memory * 1.05, memory + slack_kib):
            return ""
        time.sleep(0.1)
    return f"memory {memory} -> {now} KiB, descriptors {descriptors} -> {files}"


def as_expected(row, seen):
    what = EXPECTED_OF_AMPD.get(row) or EXPECTED[row]
    if what == "calm":
        return seen["calm"] > 0
    if what == "goaway":
        return seen["goaway"] > 0
    if what == "ended":
        return seen["ended"] > 0
    return seen["answers"] + seen["resets"] + (seen["ended"] if what == "answered or ended" else 0) > 0


def latency(binaries, server, seconds, rate):
    return [os.path.join(binaries, "latency"), server.port, str(seconds), str(rate)] + server.honest


def attacker(binaries, server, row, connections, milliseconds, *once):
    row = "@" + CALLS_FILE.name if row == STATE_ABUSE else row
    return [os.path.join(binaries, "attacker"), row, server.port, str(connections), str(milliseconds), server.name, *once]


def plain(binaries, row, make_server=None):
    server = make_server() if make_server else Server(binaries, [f"{SHORT[row]}=100"] if row in SHORT else [])
    warm(binaries, server, row)
    memory, descriptors = server.memory_kib(), server.descriptors()
    honest = start(latency(binaries, server, 2, 200), None)
    _, seen = run(attacker(binaries, server, row, 1, PLAIN_MS if waits(row) else 2000, "once"), None, 60)
    honest_text, _ = honest.communicate(timeout=60)
    problems = []
    if not as_expected(row, seen):
        problems.append(f"expected {EXPECTED.get(row)}, seen {seen}")
    if honest.returncode != 0:
        problems.append(f"the honest client: {honest_text.strip()}")
    problems.append(came_back(binaries, server, memory, descriptors))
    code, errors = server.end()
    if code != 0:
        problems.append(f"the server ended with {code}: {errors[-500:]}")
    problems = [text for text in problems if text]
    print(f"{'not ok' if problems else 'ok'} {server.name} {row}: {'; '.join(problems) or seen}", flush=True)
    return not problems


def waits(row):
    return EXPECTED.get(row) in ("calm", "ended")


def warm(binaries, server, row, connections=1):
    """What a server allocates once. ampd keeps the pages that an attack made it take, so that one comes before."""
    run(latency(binaries, server, 1, RATE), None, 60)
    row = row if server.name == "ampd" else "zero_window"
    run(attacker(binaries, server, row, connections, 200, "warm"), None, 60)


def attacked(binaries, row, connections, make_server):
    """One run: quiet p99, attacked p99, and what the attacker saw."""
    server = make_server()
    realtime(server.process)
    warm(binaries, server, row, connections)
    others = Others(server)
    _, quiet = run(latency(binaries, server, QUIET_S, RATE), SERVER_CORE, 60)
    quiet |= others.percent()
    memory, descriptors = server.memory_kib(), server.descriptors()
    others = Others(server)
    honest = start(latency(binaries, server, ATTACK_S, RATE), SERVER_CORE)
    time.sleep(0.2)
    attack = start(attacker(binaries, server, row, connections, ATTACK_S * 1000), ATTACK_CORE)
    honest_text, _ = honest.communicate(timeout=120)
    under = fields(honest_text) | others.percent()
    before_s = children_s()
    attack_text, _ = attack.communicate(timeout=60)
    under["attackers"] = round(100 * (children_s() - before_s) / ATTACK_S)
    allowed = max(2 * quiet["p99"], quiet["p99"] + 2000)
    left = came_back(binaries, server, memory, descriptors)
    code, errors = server.end()
    good = honest.returncode == 0 and under["failed"] == 0 and under["p99"] <= allowed and not left and code == 0
    return good, quiet, under, fields(attack_text), left or (errors[-300:] if code != 0 else "")


def long_row(binaries, row, runs, counts, name, make_server):
    good = True
    for connections in counts:
        results, again = [], 0
        while len(results) < runs:
            result = attacked(binaries, row, connections, make_server)
            if not REALTIME and again < AGAIN and max(result[1]["others"], result[2]["others"]) > OTHERS_MOST:
                again += 1
            else:
                results.append(result)
        good = good and all(result[0] for result in results)
        p99 = " ".join(f"{q['p99']}/{u['p99']}" for _, q, u, _, _ in results)
        most = " ".join(f"{u['max']}" for _, _, u, _, _ in results)
        others = " ".join(f"{q['others']}/{u['others']}" for _, q, u, _, _ in results)
        cpu = " ".join(f"{q['cpu']}/{u['cpu']}" for _, q, u, _, _ in results)
        attackers = " ".join(f"{u['attackers']}" for _, _, u, _, _ in results)
        failed = sum(u["failed"] for _, _, u, _, _ in results)
        seen = results[-1][3]
        notes = " ".join(note for *_, note in results if note)
        print(f"{'ok' if all(r[0] for r in results) else 'NOT OK'} {NUMBER[row]} {name} {row} x{connections}: "
              f"p99 quiet/attacked us {p99} max {most} others {others} again {again} cpu {cpu} attackers {attackers} failed {failed} attacker {seen} {notes}", flush=True)
    return good


def descriptors_run_out(binaries):
    """More connections than descriptors (row 16): those over it are closed, and the server goes on."""
    server = Server(binaries, ["connections_per_address=0", "preface_ms=60000"], files=80)
    warm(binaries, server, "connections")
    memory, descriptors = server.memory_kib(), server.descriptors()
    attack = start(attacker(binaries, server, "connections", 300, 1500, "once"), None)
    time.sleep(0.5)
    most = server.descriptors()
    attack_text, _ = attack.communicate(timeout=60)
    seen = fields(attack_text)
    left = came_back(binaries, server, memory, descriptors)
    code, _ = run(latency(binaries, server, 1, 100), None, 60)
    end, errors = server.end()
    good = code == 0 and end == 0 and not left and seen["ended"] >= 220 and most <= 80
    print(f"{'ok' if good else 'not ok'} descriptors run out: most {most} {seen} {left} {errors[-200:] if end else ''}", flush=True)
    return good


def options_of(arguments):
    """(is_long, runs, connection counts, whether only ampd, folder, rows); a text if they are wrong."""
    is_long, only_ampd, runs, counts, rest = False, False, 3, (1, 100), []
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name == "--long":
            is_long = True
        elif name == "--ampd":
            only_ampd = True
        elif name == "--runs":
            runs = int(value)
        elif name == "--connections":
            counts = (int(value),)
        elif name == "--realtime":
            pass  # REALTIME
        elif name.startswith("--"):
            return f"no option is called {name}; there are --long, --ampd, --realtime, --runs=N and --connections=N"
        else:
            rest.append(argument)
    known = list(EXPECTED) + [STATE_ABUSE]
    unknown = [row for row in rest[1:] if row not in known]
    if not rest or unknown:
        return f"no row is called {unknown[0]}; there are {' '.join(known)}" if unknown else "which folder has the programs?"
    return is_long, runs, counts, only_ampd, rest[0], rest[1:]


def ampd_target():
    """The module, or None where it cannot run; it says so itself."""
    try:
        import ampd_target as module
    except SystemExit:
        return None
    CALLS_FILE.write(module.calls())
    CALLS_FILE.flush()
    return module


def run_long(binaries, runs, counts, only_ampd, rows, target):
    plan = [] if only_ampd else [(row, "echo", lambda: Server(binaries, [], SERVER_CORE))
                                 for row in rows or EXPECTED if row != STATE_ABUSE]
    if target and (only_ampd or not rows or STATE_ABUSE in rows):
        plan += [(row, "ampd", lambda: target.Ampd(binaries, SERVER_CORE)) for row in rows or AMPD_ROWS
                 if (only_ampd or not rows or row == STATE_ABUSE) and not (REALTIME and row == STATE_ABUSE)]
    return all([long_row(binaries, row, runs, counts, name, make) for row, name, make in plan])


def run_plain(binaries, only_ampd, rows, target):
    good = True
    if not only_ampd:
        with concurrent.futures.ThreadPoolExecutor(ROWS_AT_ONCE) as pool:
            chosen = [row for row in rows or EXPECTED if row != STATE_ABUSE]
            good = all(list(pool.map(lambda row: plain(binaries, row), chosen)))
    if target and (only_ampd or not rows or STATE_ABUSE in rows):
        for row in rows or AMPD_PLAIN_ROWS:
            if only_ampd or not rows or row == STATE_ABUSE:
                good = plain(binaries, row, lambda: target.Ampd(binaries)) and good
        text = target.nan_for_ever(binaries)
        print(f"{'not ok' if text else 'ok'} ampd nan for ever: {text}", flush=True)
        good = good and not text
    if not rows and not only_ampd:
        good = descriptors_run_out(binaries) and good
    return good


def main():
    options = options_of(sys.argv[1:])
    if isinstance(options, str):
        print("attacks.py: " + options)
        return 2
    is_long, runs, counts, only_ampd, binaries, rows = options
    if is_long and (os.cpu_count() or 1) < 2:
        print("SKIPPED: attacks: attacker and server need a core each")
        return 77
    if REALTIME and os.geteuid() != 0:
        print("attacks.py: --realtime needs root")
        return 2
    target = ampd_target()
    if is_long:
        with realtime_network() if REALTIME else contextlib.nullcontext():
            good = run_long(binaries, runs, counts, only_ampd, rows, target)
    else:
        good = run_plain(binaries, only_ampd, rows, target)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
