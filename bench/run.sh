#!/usr/bin/env bash
# run.sh [NAME]: measures ampd beside other programs (its peers) on this machine and prints one row for each
# measurement, with tabs between the columns:
#
#   name    of the row
#   ours    the figure of ampd, the median of all rounds
#   peer    the figure of the peer in the same rounds; of several peers that of the best one; "-": there is none
#   ratio   the median of ours / peer over all rounds; "-": there is no peer
#   goal    what the ratio has to reach; without a peer what ours has to reach; "-": there is no goal
#   state   ok: the goal is reached; short: it is not; info: there is no goal; skipped: REASON
#
# Without NAME the rows marked with * are measured, else all rows whose names contain NAME. Each group is described in
# the file named last.
#
#   group                       ours and peer                                      goal is      file
#   rpc_push_, rpc_pull_ *      GB/s of bulk transfer, beside plain sockets        the least    rpc_rows.py
#                               (pump) and grpc++
#   rpc_unary_..._ns *          nanoseconds of a call, beside grpc++               the most     rpc_rows.py
#   rpc_rate *                  thousands of calls a second, beside nghttpd        the least    rpc_rows.py
#   rpc_idle_kib *              KiB of memory of an idle connection; no peer       the most     rpc_rows.py
#   kernels_ *                  GB/s of the numerics, beside other loops           the least    bench_kernels.c
#   kernels_torch_1t, _2t *     GB/s, beside PyTorch on the CPU in one process     the least    pairs.py
#   kernels_autocast_..._ns *   nanoseconds of a call; no peer                     the most     bench_kernels.c
#   kernels_guard_..._share *   milliseconds of the loss scaler's part, beside     the most     bench_grad.c,
#                               those of the training step it belongs to                        bench_guard.c
#   charlm_torch, _bf16, _f16 * steps a second of a language model                 the least    charlm_rows.py
#   charlm_share                milliseconds of the client's calls and of a step   none         charlm_rows.py
#   python_step *, _cuda        milliseconds of a step by the Python package,      the most     python_rows.py
#                               beside C, or beside TCP
#   python_small                microseconds; ratio is the difference to C         the most     python_rows.py
#   host_, host_checkpoint      times, memory and GB/s of workers that share       see the      host_rows.py,
#                               memory with their server, beside TCP               file         host_checkpoint_rows.py
#   page_                       times of a training with ten viewers of the        the most     page_rows.py
#                               page, beside the same with none
#   tail_step, _pause           milliseconds of the slowest of 10,000 steps,       the most     tail_rows.py
#                               beside their median
#   cluster_apply, _step        GB/s of two shards, beside one                     the least    cluster_rows.py
#   cluster_scale_              milliseconds, beside those of the cost model       none         cluster_rows.py
#   storage_verdicts_           thousands of verdicts a second                     the least    bench_store.c
#   storage_checkpoint_write,   GB/s of a checkpoint file, beside dd               the least    bench_store.c
#     _restore
#   storage_checkpoint_share,   milliseconds; what checkpoints add to a step,      the most     checkpoint_rows.py
#     storage_stall_share       or delay an apply; the ratio is a share
#   storage_memory              bytes a parameter, beside those of the tensors     the most     memory_row.py
#
# GB/s are 10^9 bytes a second. `storage` takes four minutes and `cluster` five; most rows of cluster need root.
#
# Some rows have a bound, which is measured in the same rounds: a program that does only the part of the row's work that
# no implementation can leave out (kernel_bounds.h; the bounds of cluster_apply, kernels_torch_2t, host_step_tcp,
# rpc_unary_, and of rpc_ over unix sockets and beside a pump are in the files above). As nothing is faster than the
# bound on this processor, the goal that is shown is at most 0.95 of the ratio of bound and peer (the upper end of its
# 95 % interval; of times the lower end divided by 0.95); "# NAME: bound X" on stderr says so. If the bound is measured
# beside the row's own peer (kernels_, rpc_, host_), a row is also ok if it reaches 0.95 of the bound itself, round by
# round: "# NAME: beside the bound Y" (reaches_bound in sides.py).
#
# Installs missing packages (PyTorch, 0.5 GB, only when rows that need it are measured), builds the release preset, and
# prints the machine on stderr. Exit code 0: all was measured, also if a row is short; 1: something could not be
# measured; 2: wrong usage.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
targets=(ampd ampctl tcp_pump bench_copy bench_pushpull bench_checkpoint bench_store bench_kernels bench_grad bench_guard bench_charlm charlm echo_server rpc_unary grpcpp_peer python_package)

if [[ ${1-} == --help || ${1-} == -h ]]; then
    sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
    exit 0
fi
if [[ $# -gt 1 || ${1-} == -* ]]; then
    echo "usage: bench/run.sh [NAME]; see --help" >&2
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
