"""ampd.progress: how far a training is, on stderr."""
from __future__ import annotations

import collections
import contextlib
import shutil
import sys
import time
from collections.abc import Iterable, Iterator

from ampd import errors
from ampd._client import shown as cut
from ampd.job import Step

TERMINAL_EVERY_S = 0.2
LINE_EVERY_S = 10.0
# The speed is that of the last so many lines: 10 s on a terminal, a minute elsewhere.
TERMINAL_LINES, LINES = 50, 6


def duration(seconds: float) -> str:
    """"0:07", "12:30", "3:05:00"."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return "%d:%02d:%02d" % (hours, minutes, seconds) if hours else "%d:%02d" % (minutes, seconds)


class _Shown:
    """The line, and what it is made of."""

    def __init__(self, file, clock):
        self.file, self.clock = file, clock
        self.terminal = False
        with contextlib.suppress(AttributeError, ValueError):  # a stream of the program's own, or one that is closed
            self.terminal = file.isatty()
        self.every_s = TERMINAL_EVERY_S if self.terminal else LINE_EVERY_S
        self.begun = self.shown = clock()
        self.last = None  # step
        self.done = self.done_shown = self.skipped = 0
        self.marks = collections.deque([(self.begun, 0)], TERMINAL_LINES if self.terminal else LINES)

    def ended(self, step) -> None:
        self.last = step
        self.done += 1
        self.skipped += step.result is not None and step.result.skipped
        now = self.clock()
        if now - self.shown >= self.every_s:
            self._show(now, self.marks[0])
            self.marks.append((now, self.done))

    def close(self) -> None:
        """The last line, with the mean speed."""
        if self.done > self.done_shown:
            self._show(self.clock(), (self.begun, 0))
        if self.terminal and self.done > 0:
            self._write("\n")

    def _show(self, now: float, since: tuple[float, int]) -> None:
        self.shown, self.done_shown = now, self.done
        line = self.line(now - since[0], self.done - since[1])
        if self.terminal:
            self._write("\r%s\x1b[K" % line[:max(shutil.get_terminal_size().columns - 1, 1)])
        else:
            self._write(line + "\n")

    def line(self, seconds: float, steps: int) -> str:
        step, wanted = self.last, self.last.job.max_steps
        said = ["step %d/%d" % (step.number, wanted) if wanted else "step %d" % step.number]
        if step.loss is not None:
            with contextlib.suppress(TypeError, ValueError, RuntimeError):  # Job warns of a loss that is no number
                said.append("loss %.4f" % float(step.loss))  # here alone: it waits for the device
        said.append("scale %.9g" % (step.result and step.result.new_scale or step.scale))
        said.append("skipped %d" % self.skipped)
        if seconds > 0:
            speed = steps / seconds
            said.append(("%.0f steps/s" if speed >= 100 else "%.3g steps/s") % speed)
            if wanted > step.number:
                said.append("%s left" % duration((wanted - step.number) / speed))
        return "  ".join(said)

    def _write(self, text: str) -> None:
        try:
            self.file.write(text)
            self.file.flush()
        except (AttributeError, OSError, ValueError):  # nobody looks (any more): no reason to end a training
            pass


def progress(steps: Iterable[Step], *, all_ranks: bool = False, file=None, clock=time.monotonic) -> Iterator[Step]:
    """The same steps, with a line that shows how far they are: step, loss, scale, skipped so far, speed, time left.

        for step in ampd.progress(job.steps()):

    On a terminal it is one line in place, else one each 10 s and at the end; on stderr, or `file`. Only rank 0 shows
    it, with all_ranks=True each. The loss is `step.loss`, which Step.backward sets (without a torch module set it
    yourself: a number); it is read when a line is shown, and not at each step. A step that the loop's body has not
    ended is ended here, as Job.steps does.
    """
    shown = None
    try:
        for step in steps if isinstance(steps, Iterable) else [steps]:
            if not hasattr(step, "job"):
                raise errors.InvalidArgument("ampd.progress was given %s, which is no step of a job; write "
                                             "ampd.progress(job.steps()), and enumerate or zip around that"
                                             % cut(step))
            if shown is None and (all_ranks or step.job.rank == 0):
                shown = _Shown(file if file is not None else sys.stderr, clock)
            yield step
            if step.result is None and step.job.in_hand(step):
                step.end()
            if shown is not None:
                shown.ended(step)
    finally:
        if shown is not None:
            shown.close()
