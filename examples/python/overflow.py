#!/usr/bin/python3
"""A worker pushes a gradient with an Inf: the step is skipped on every worker, and the scale halves. numpy alone.

    ampd --data-dir D & examples/python/overflow.py            a worker alone, with a server at 127.0.0.1:7420
    python3 -m ampd.launch -n 2 examples/python/overflow.py    two workers; the last one has the Inf
"""
import ampd
import numpy as np


def show(job, step):
    print("step %d: scale %g, parameters %s" % (step.number, step.scale, job.parameters["w"]))


with ampd.join(None, "hello", {"w": [1, 2, 3, 4]}, optimizer=ampd.SGD(lr=0.5),
               scaler=ampd.DynamicScaler(init_scale=1024)) as job:
    step = job.begin()
    show(job, step)
    before = job.parameters["w"].copy()
    gradient = np.zeros(4, np.float16)
    if job.rank == job.world_size - 1:
        gradient[0] = np.inf
    step.push("w", gradient)
    result = step.end()
    print("step %d: pushed an Inf: %s, scale %g -> %g" % (result.step, result.verdict, result.scale, result.new_scale))
    for one in result.overflows:
        print("  parameter %s, worker %s: %d Inf, first at %d"
              % (one.parameter, one.worker, one.inf_count, one.first_index))
    print(result.explain())
    assert result.skipped and result.new_scale == max(result.scale / 2, 1)  # 1 is the floor

    step = job.begin()
    show(job, step)
    assert (job.parameters["w"] == before).all()
    step.push("w", np.full(4, step.scale, np.float16))  # ones, times the scale
    result = step.end()
    print("step %d: pushed ones: %s, norm %g" % (result.step, result.verdict, result.norm))
    assert result.applied and result.norm == 2

    step = job.begin()
    show(job, step)
    assert (job.parameters["w"] == before - 0.5).all()
