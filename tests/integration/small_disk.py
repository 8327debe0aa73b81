"""A disk of a few pages, for tests that fill it."""
import contextlib
import os
import subprocess


@contextlib.contextmanager
def small_disk(path, kib, kind="tmpfs"):
    """Mounted on the folder `path`, which is made; yields it, or None where nothing can be mounted.

    A "ramfs" has no fallocate and no end.
    """
    path.mkdir(parents=True)
    if os.geteuid() != 0 or subprocess.run(["mount", "-t", kind, "-o", f"size={kib}k", "none", path],
                                           capture_output=True, check=False).returncode != 0:
        print("SKIPPED: a full disk: nothing can be mounted here")
        yield None
        return
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", path], check=True)


def fill_disk(disk):
    """Until nothing more can be written. The file, to be removed when there is to be room again."""
    ballast = disk / "ballast"
    with open(ballast, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 1024):
            pass
    return ballast
