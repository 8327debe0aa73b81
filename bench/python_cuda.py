#!/usr/bin/python3
"""python_cuda.py run ENDPOINT BYTES: for each line on stdin makes several whole steps of a torch module on a CUDA
device and prints the seconds of one. The module has 16 fp16 parameters of BYTES together; "run" is the only mode.
Exits with 77 if there is no device.
"""
import sys
import time

try:
    import torch
except ImportError as error:
    print("SKIPPED: %s" % error)
    sys.exit(77)
import ampd

PARAMETERS, STEPS = 16, 5
CHECKPOINT_NEVER = 1000000000


class Model(torch.nn.Module):
    """Its forward and backward are one pass over the parameters each, so that ampd takes most of a step."""

    def __init__(self, elements):
        super().__init__()
        self.values = torch.nn.ParameterList(
            [torch.nn.Parameter(torch.randn(elements) * 0.02) for _ in range(PARAMETERS)])

    def forward(self, x):
        return sum((value * x).sum() for value in self.values) * 1e-4


def main():
    if not torch.cuda.is_available():
        print("SKIPPED: no CUDA device (or a torch without CUDA)")
        sys.exit(77)
    endpoint, elements = sys.argv[2], int(sys.argv[3]) // 2 // PARAMETERS
    net = Model(elements).to("cuda", torch.float16)
    x = torch.ones(elements, device="cuda", dtype=torch.float16)
    job = ampd.join(endpoint, "bench", net, optimizer=ampd.AdamW(), scaler=ampd.NoScaler(), cast="float16",
                    checkpoint_every=CHECKPOINT_NEVER)
    print("ready", flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        for _ in range(STEPS):
            step = job.begin()
            step.backward(net(x))
            assert step.end().applied
        print("%.9f" % ((time.perf_counter() - begin) / STEPS), flush=True)
    assert job.copies == 0, job.copies
    job.leave()


if __name__ == "__main__":
    main()
