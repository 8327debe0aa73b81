#!/usr/bin/python3
"""Trains a network that reads digits, with numpy alone, in fp16.

    ampd --data-dir D & examples/python/digits.py            a worker alone, with a server at 127.0.0.1:7420
    python3 -m ampd.launch -n 2 examples/python/digits.py    two workers, and an ampd for them
"""
import pathlib

import ampd
import numpy as np

STEPS, BATCH = 200, 64

data = np.loadtxt(pathlib.Path(__file__).parents[1] / "digits" / "digits.csv", np.float32, delimiter=",")
pixels, digits = data[:, :64] / 16, data[:, 64].astype(int)
is_test = np.arange(len(data)) % 5 == 0
train = np.flatnonzero(~is_test)

random = np.random.default_rng(1)
first = {"w1": random.normal(0, 64 ** -0.5, (64, 64)), "b1": np.zeros(64),
         "w2": random.normal(0, 64 ** -0.5, (64, 10)), "b2": np.zeros(10)}


def forward(p, x):
    hidden = np.maximum(x @ p["w1"] + p["b1"], 0)
    scores = np.exp(hidden @ p["w2"] + p["b2"])
    return hidden, scores / scores.sum(1, keepdims=True)


with ampd.join(None, "digits", first, optimizer=ampd.AdamW(lr=3e-3), clip_norm=1.0, max_steps=STEPS) as job:
    for step in ampd.progress(job.steps()):
        rows = np.random.default_rng([step.number, job.rank]).choice(train, BATCH)  # the same if it is done again
        p = {name: array.astype(np.float32) for name, array in job.parameters.items()}
        hidden, shares = forward(p, pixels[rows])
        step.loss = -np.log(shares[np.arange(BATCH), digits[rows]]).mean()
        at_scores = (shares - np.eye(10)[digits[rows]]) * step.scale / BATCH  # the gradient of the scaled loss
        at_hidden = at_scores @ p["w2"].T * (hidden > 0)
        with np.errstate(over="ignore"):  # what is too large for fp16 becomes Inf: the server skips the step
            for name, gradient in (("w2", hidden.T @ at_scores), ("b2", at_scores.sum(0)),
                                   ("w1", pixels[rows].T @ at_hidden), ("b1", at_hidden.sum(0))):
                step.push(name, gradient.astype(np.float16))
        if step.end().skipped:
            print(step.result.explain())
    job.pull()
    _, shares = forward({name: array.astype(np.float32) for name, array in job.parameters.items()}, pixels[is_test])
    print("accuracy %.3f on %d digits that it has not seen"
          % ((shares.argmax(1) == digits[is_test]).mean(), is_test.sum()))
