#!/usr/bin/python3
"""Checkpoints that leave a server as one file: the values alone for other programs, or all that training goes on from.

    test_server_full.py BIN_DIR [NAME ...]
"""
import json
import struct
import subprocess

from ampd_testing import CALL_TIMEOUT_S, eventually, run
from test_server_reshard import Told
from test_server_shards import PARAMETERS, STEPS, WORLD, Cluster

try:
    import torch
except ImportError:
    torch = None


def ctl(context, cluster, *arguments, code=0):
    """stdout; with a code: stderr."""
    done = subprocess.run([context.bin_dir / "ampctl", "-e", cluster.addresses[-1], *map(str, arguments)],
                          capture_output=True, encoding="utf-8", timeout=CALL_TIMEOUT_S, check=False)
    assert done.returncode == code, (arguments, done.returncode, done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stderr


def header_of(path):
    """(the JSON of the header, the data)"""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + length]), data[8 + length:]


def trained(context, count, **fields):
    """A model whose last step is a checkpoint: (its cluster, its job)."""
    cluster = Cluster(context, count)
    job = Told(cluster, **fields)
    job.train([job.join(rank) for rank in range(WORLD)], 1, STEPS)
    eventually(lambda: cluster.api(0).GetModel(model="m").status.durable_step == STEPS, "the last step is durable")
    return cluster, job


def test_an_export_of_values_has_the_parameters_alone_for_any_program(context):
    files = []
    for count in (1, 3):
        cluster, _ = trained(context, count)
        whole, values = cluster.folder / "whole", cluster.folder / "values"
        ctl(context, cluster, "checkpoint", "export", "m", whole, "--full")
        told = ctl(context, cluster, "checkpoint", "export", "m", values, "--values-only")
        assert f"step {STEPS} of epoch 1, 3 tensors" in told, told
        header, data = header_of(values)
        full, all_data = header_of(whole)
        assert {name: header[name]["shape"] for name in header if name != "__metadata__"} == dict(PARAMETERS), header
        for name, _ in PARAMETERS:
            begin, end = header[name]["data_offsets"]
            first, last = full[name]["data_offsets"]
            assert header[name]["dtype"] == "F32" and data[begin:end] == all_data[first:last], name
        files.append((values.read_bytes(), whole.read_bytes()))
        said = ctl(context, cluster, "checkpoint", "export", "m", values, "--values-only", "--full", code=2)
        assert "give one of them" in said, said
    assert files[0] == files[1], "the number of shards shows in the files"
    if torch is None:
        print("SKIPPED: load_state_dict: no PyTorch (package python3-torch)")
        return
    header, data = header_of(values)
    tensors = {name: torch.frombuffer(bytearray(data[slice(*header[name]["data_offsets"])]), dtype=torch.float32)
               .reshape(shape) for name, shape in PARAMETERS}
    module = torch.nn.Module()
    for name, shape in PARAMETERS:
        module.register_parameter(name, torch.nn.Parameter(torch.zeros(shape)))
    told = module.load_state_dict(tensors, strict=True)
    assert not told.missing_keys and not told.unexpected_keys, told
    assert all(torch.equal(module.get_parameter(name), tensors[name]) for name, _ in PARAMETERS)


if __name__ == "__main__":
    run(globals())
