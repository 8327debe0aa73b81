"""The language model of examples/python: torch's losses, and the same bytes after kills. charlm_long.py has more."""
from python_testing import folder, run  # (first: it finds the package)

import random

import charlm_long


def test_the_losses_are_those_of_plain_torch_with_the_same_steps_left_out():
    with folder() as made:
        apart, skipped = charlm_long.apart(made, "float16", 2, steps=20, batch=2)
        # One skipped step taken makes 0.05, one of the workers' batches left out 0.008, another clipping norm 0.004.
        assert apart < 0.002 and 0 < skipped < 10, (apart, skipped)


def test_a_killed_server_and_a_killed_worker_change_no_byte():
    with folder() as made:
        wanted, seed = charlm_long.undisturbed(made, 20), random.randrange(10 ** 9)
        assert charlm_long.killed(made, "killed", 20, wanted, seed) == "", seed


run(globals())
