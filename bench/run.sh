#!/usr/bin/env bash
# run.sh [NAME]: measures ampd beside its peers on this machine, one row a measurement, tab-separated:
#
#   name  ours  peer  ratio  goal  ok|short|info|skipped: reason
#
# ours and peer are GB/s and ratio is ours to peer, but for names in _ns (nanoseconds of a call, the goal is a limit),
# in _share (milliseconds, the ratio is a share and the goal a limit) and in _kib (KiB of a connection, the goal is a limit),
# and for rpc_rate and storage_verdicts_ (thousands a second), charlm_torch, charlm_bf16 and charlm_f16 (steps a second), and storage_memory (bytes a parameter, the goal is a limit). `info` has no goal. Of several peers the best is shown.
# Some rows have a bound, measured in the same run: what is left of the row's work where all that another way could leave out is left out
# (kernel_bounds.h; cluster_apply, kernels_torch_2t, host_step_tcp, rpc_ over unix sockets and beside a pump). Nothing reaches more on the processor at hand, so the goal shown is then at most
# 0.95 of what the bound has beside the peer (the upper end of its interval; of times the lower one, by 0.95); stderr has "# NAME: bound X". Where the bound is beside the row's own peer (kernels_torch_2t, rpc_, host_), a row
# is ok, too, that has 0.95 of the bound itself, pair by pair: "# NAME: beside the bound Y" (sides.py, reaches_bound).
# NAME picks the rows whose names contain it: `rpc` those of rpc_rows.py; `storage` those of checkpoint_rows.py, memory_row.py and
# bench_store.c (four minutes, only when asked for: storage_checkpoint_share, storage_stall_share, storage_memory,
# storage_verdicts_full_8, storage_verdicts_full_1, storage_verdicts_normal, storage_verdicts_normal_call, storage_checkpoint_write,
# storage_checkpoint_restore); `cluster` those of cluster_rows.py (two shards beside one, and the cost model, five minutes, only when asked for; most need
# root); `charlm` those of the language model, of which charlm_rows.py says what each compares; `kernels` those of the numerics library, of which
# bench_kernels.c says what each compares (kernels_torch_1t and _2t are also those beside CPU offload in one process); `host` those of workers that share
# memory with their server (host_rows.py; but for host_bytes and host_bytes_copied times or memory, and the goal a limit), and their steps while a checkpoint is written
# (host_checkpoint_rows.py); `python` what the Python package costs beside the C client (python_rows.py); `page` what ten viewers of the page cost a training (page_rows.py); torch is installed when its rows are asked for,
# which takes 0.5 GB.
# Installs what is missing, builds the release preset, and says on stderr on
# what machine. A row that falls short does not change the exit code: 0 measured, 1 something could not be, 2 wrong use.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
targets=(ampd ampctl tcp_pump bench_copy bench_pushpull bench_checkpoint bench_store bench_kernels bench_grad bench_guard bench_charlm charlm echo_server rpc_unary grpcpp_peer python_package)

if [[ $# -gt 1 || ${1-} == -* ]]; then
    echo "usage: bench/run.sh [NAME]" >&2
    exit 2
fi

"$root/scripts/packages.sh" build run bench >&2
# Without it the rows beside torch say that they are skipped.
if [[ kernels_torch_1t == *"${1-}"* || kernels_torch_2t == *"${1-}"* || charlm_torch == *"${1-}"* ]]; then
    "$root/scripts/packages.sh" torch >&2 || true
fi
cd "$root"
build() {
    cmake --preset release && cmake --build --preset release --target "${targets[@]}"
}
log=$(mktemp)
trap 'rm -f "$log"' EXIT
build >"$log" 2>&1 || {
    tail -n 30 "$log" >&2
    echo "bench: the release preset could not be built" >&2
    exit 1
}

commit=$(git describe --always --dirty 2>/dev/null || echo unknown)
cpu=$(lscpu | sed -n 's/^Model name: *//p' | head -n 1)
echo "# $(nproc) cores, ${cpu:-unknown CPU}, $(uname -sr), commit $commit" >&2
/usr/bin/python3 bench/pairs.py build/release/bin "$@"
