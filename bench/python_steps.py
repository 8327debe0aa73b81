#!/usr/bin/python3
"""python_steps.py run|steps HOST:PORT BYTES: the modes run and steps of bench_pushpull with the Python package.

For each line on stdin it makes several whole steps, of one fp16 parameter of BYTES (run) or of ten that have BYTES
together (steps), and prints the seconds of one. At the end it fails if the package has copied a parameter or a
gradient.
"""
import sys
import time

import ampd
import numpy

STEPS, STEPS_PARAMETERS, RUN_STEPS = 200, 10, 5
CHECKPOINT_NEVER = 1000000000


def one_step(job, gradient):
    step = job.begin()
    for name in job.parameters:
        step.push(name, gradient)
    assert step.end().applied


def main():
    mode, endpoint, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
    parameters, steps = (STEPS_PARAMETERS, STEPS) if mode == "steps" else (1, RUN_STEPS)
    elements = size // 2 // parameters
    index = numpy.arange(elements, dtype=numpy.uint64)
    gradient = (0x1000 | (index * 2654435761 >> 7 & 0x8FFF)).astype(numpy.uint16).view(numpy.float16)
    values = {"w%d" % i: numpy.zeros(elements, numpy.float32) for i in range(parameters)}
    job = ampd.join(endpoint, "bench", values, optimizer=ampd.AdamW(), scaler=ampd.NoScaler(), cast="float16",
                    checkpoint_every=CHECKPOINT_NEVER)
    for _ in sys.stdin:
        if mode == "run":
            one_step(job, gradient)  # its apply is waited for by the next
        begin = time.perf_counter()
        for _ in range(steps):
            one_step(job, gradient)
        print("%.9f" % ((time.perf_counter() - begin) / steps), flush=True)
    assert job.copies == 0, job.copies
    job.leave()


if __name__ == "__main__":
    main()
