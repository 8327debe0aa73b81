"""The file that a test shares with ampd_crash: orders for its failpoints, and what they count (failpoint.c)."""
import mmap
import pathlib
import re
import struct

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NAME_BYTES, PLACES_MAX = 48, 96
PHASES = ("push", "vote", "persist", "apply", "checkpoint", "restore", "answer", "start", "journal")
KILL_IN_AT = NAME_BYTES
PAUSE_AT, SEED_AT = KILL_IN_AT + 8, KILL_IN_AT + 16
INSIDE_AT = KILL_IN_AT + 32
ENTERED_AT = INSIDE_AT + 8 * len(PHASES)
PLACES_AT = ENTERED_AT + 8 * len(PHASES)
SIZE = PLACES_AT + PLACES_MAX * (NAME_BYTES + 8)


def named_in_the_sources():
    """The names of all failpoints that the server's rooms have."""
    names = set()
    for room in ("server", "storage"):
        for path in (ROOT / room).rglob("*.c"):
            text = path.read_text()
            for call in re.findall(r"\bAMP_FAILPOINT\(([^;]*)\);", text):
                names.update(re.findall(r'"(\w+\.\w+)"', call))
            for place in re.findall(r'(?:return |\] = )"((?:persist|checkpoint|journal|peer)\.\w+)"[;,}]', text):
                names.add(place)
            jobs = re.findall(r'\bJOB_FAILPOINT\([^,;]*, "(\w+)"\);', text)
            names.update(prefix + job for job in jobs for prefix in ("vote.", "apply.", "checkpoint.job_"))
    return {name for name in names if not name.endswith((".done", "_"))}


class Failpoints:
    """Orders to the process of the moment, and its counts. Both outlive it."""

    def __init__(self, path, seed, pause_us):
        self.path = path
        path.write_bytes(bytes(SIZE))
        with open(path, "r+b") as file:
            self.memory = mmap.mmap(file.fileno(), SIZE)
        self._put(PAUSE_AT, pause_us)
        self._put(SEED_AT, seed)

    def _put(self, at, value):
        self.memory[at:at + 8] = struct.pack("<Q", value)

    def _get(self, at):
        return struct.unpack_from("<q", self.memory, at)[0]

    def close(self):
        self.memory.close()

    def kill_at(self, name, count):
        """The process ends when it passes that place for the count-th time from now; "": never."""
        self._put(KILL_IN_AT, 1 << 62)
        self.memory[:NAME_BYTES] = name.encode().ljust(NAME_BYTES, b"\0")
        self._put(KILL_IN_AT, count)

    def has_killed(self):
        """Whether the order was carried out."""
        return self._get(KILL_IN_AT) <= 0

    def inside(self):
        """The phases that a thread of the process is in, or was in when it ended."""
        return {phase for i, phase in enumerate(PHASES) if self._get(INSIDE_AT + 8 * i) > 0}

    def entered(self, phase):
        return self._get(ENTERED_AT + 8 * PHASES.index(phase))

    def is_inside(self, phase):
        return self._get(INSIDE_AT + 8 * PHASES.index(phase)) > 0

    def passed(self):
        """name -> how often."""
        counts = {}
        for i in range(PLACES_MAX):
            at = PLACES_AT + i * (NAME_BYTES + 8)
            name = self.memory[at:at + NAME_BYTES].rstrip(b"\0").decode()
            if name:
                counts[name] = self._get(at + NAME_BYTES)
        return counts
