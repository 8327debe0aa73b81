"""ampd.progress: what it writes, by a clock of the test's own, and that it leaves the steps as they are."""
from python_testing import raises, run  # noqa: F401 (first: it finds the package)

import io
import sys
import types

import ampd
import ampd.testing
import numpy


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Loss:
    """Counts how often it is read."""

    reads = 0

    def __float__(self):
        Loss.reads += 1
        return 2.5


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Job:
    """Steps that have ended when they come."""

    def __init__(self, max_steps=0, rank=0):
        self.max_steps, self.rank = max_steps, rank

    new_scale = 1024.0

    def steps(self, numbers, clock, seconds, skipped=()):
        for number in numbers:
            clock.now += seconds
            result = types.SimpleNamespace(skipped=number in skipped, new_scale=self.new_scale)
            yield types.SimpleNamespace(number=number, loss=Loss(), scale=2048.0, result=result, job=self)


def shown(job, numbers, seconds, file=None, skipped=(), **options):
    clock, file = Clock(), file or io.StringIO()
    for _ in ampd.progress(job.steps(numbers, clock, seconds, skipped), file=file, clock=clock, **options):
        pass
    return file.getvalue()


def test_a_line_comes_each_ten_seconds_and_at_the_end():
    said = shown(Job(max_steps=100), range(1, 31), 1.0, skipped=(2, 15)).splitlines()
    assert said == ["step 11/100  loss 2.5000  scale 1024  skipped 1  1.1 steps/s  1:21 left",
                    "step 21/100  loss 2.5000  scale 1024  skipped 2  1.05 steps/s  1:15 left",
                    "step 30/100  loss 2.5000  scale 1024  skipped 2  1.03 steps/s  1:08 left"], said


def test_a_large_scale_is_shown_with_all_its_digits():
    job = Job()
    for job.new_scale, words in ((2.0 ** 20, "scale 1048576 "), (2.0 ** 24, "scale 16777216 "), (0.5, "scale 0.5 ")):
        assert words in shown(job, range(1, 3), 1.0)


def test_the_end_is_told_once():
    said = shown(Job(max_steps=11), range(1, 12), 1.0).splitlines()
    assert len(said) == 1 and said[0].startswith("step 11/11 ") and "left" not in said[0], said


def test_without_max_steps_there_is_no_time_left():
    said = shown(Job(), range(1, 3), 1.0)
    assert said == "step 2  loss 2.5000  scale 1024  skipped 0  2 steps/s\n", said


def test_the_loss_is_read_only_for_a_line():
    Loss.reads = 0
    said = shown(Job(), range(1, 1001), 0.05)
    assert Loss.reads == len(said.splitlines()) == 5, (Loss.reads, said)


def test_a_loss_that_is_no_number_is_not_shown_and_ends_no_training():
    with ampd.testing.server() as server, ampd.join(server.endpoint, "m", {"w": numpy.zeros(3)}, max_steps=3) as job:
        said = io.StringIO()
        for step in ampd.progress(job.steps(), file=said):
            step.loss = numpy.ones(3)
        assert said.getvalue().startswith("step 3/3  scale 65536"), said.getvalue()


def test_on_a_terminal_it_is_one_line_in_place():
    said = shown(Job(max_steps=3), range(1, 4), 1.0, Terminal())
    assert said.count("\n") == 1 and said.endswith("\n"), said
    assert [part[:8] for part in said.split("\r")[1:]] == ["step 2/3", "step 3/3"], said
    assert said.count("\x1b[K") == 2, said


def test_rank_0_alone_shows_it_unless_all_are_wanted():
    assert shown(Job(rank=1), range(1, 4), 1.0) == ""
    assert shown(Job(rank=1), range(1, 4), 1.0, all_ranks=True).startswith("step 3 ")


def test_no_steps_no_line():
    assert shown(Job(), (), 1.0, Terminal()) == ""


def test_a_reader_who_is_gone_ends_no_training():
    file = io.StringIO()
    clock = Clock()
    seen = []
    for step in ampd.progress(Job().steps(range(1, 4), clock, 20.0), file=file, clock=clock):
        seen.append(step.number)
        file.close()
    assert seen == [1, 2, 3]


def test_a_stream_that_knows_of_no_terminal_gets_lines_and_a_process_without_stderr_trains_on():
    class Stream:
        text = ""

        def write(self, text):
            self.text += text

    file = Stream()
    assert len(list(ampd.progress(Job(max_steps=2).steps(range(1, 3), Clock(), 1.0), file=file))) == 2
    assert file.text.startswith("step 2/2  loss 2.5000"), file.text
    closed = io.StringIO()
    closed.close()
    own, sys.stderr = sys.stderr, None
    try:
        for options in ({}, {"file": closed}):
            assert len(list(ampd.progress(Job().steps(range(1, 4), Clock(), 1.0), **options))) == 3
    finally:
        sys.stderr = own


def test_what_is_not_an_iterable_of_steps_is_refused_with_what_to_give():
    steps = Job(max_steps=2).steps(range(1, 3), Clock(), 1.0)
    for wrong in (Job(), enumerate(steps), range(3), None):
        raises(ampd.InvalidArgument, lambda wrong=wrong: list(ampd.progress(wrong)), "ampd.progress(job.steps())")


def test_steps_of_a_job_are_all_there_and_ended():
    with ampd.testing.server() as server:
        values = {"w": numpy.zeros(3, numpy.float32)}
        with ampd.join(server.endpoint, "line", values, optimizer=ampd.SGD(), cast="float32", max_steps=4) as job:
            assert job.max_steps == 4
            file, steps = io.StringIO(), []
            for step in ampd.progress(job.steps(), file=file):
                steps.append(step)
                if step.number == 2:
                    step.end()
            assert [step.number for step in steps] == [1, 2, 3, 4]
            assert all(step.result is not None for step in steps)
            assert file.getvalue().startswith("step 4/4  scale 1  skipped "), file.getvalue()


def test_a_loop_that_breaks_off_gets_its_last_line():
    file, clock = io.StringIO(), Clock()
    for step in ampd.progress(Job().steps(range(1, 9), clock, 1.0), file=file, clock=clock):
        if step.number == 5:
            break
    assert file.getvalue().startswith("step 4 "), file.getvalue()


run(globals())
