#!/usr/bin/env bash
# run.sh [NAME]: measures ampd beside its peers on this machine, one row a measurement, tab-separated:
#
#   name  ours  peer  ratio  goal  ok|short
#
# NAME picks the rows whose names contain it. Installs what is missing, builds the release preset, and says on stderr on
# what machine. A row that falls short does not change the exit code: 0 measured, 1 something could not be, 2 wrong use.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
targets=(ampd ampctl tcp_pump bench_pushpull)

if [[ $# -gt 1 || ${1-} == -* ]]; then
    echo "usage: bench/run.sh [NAME]" >&2
    exit 2
fi

"$root/scripts/packages.sh" build run bench >&2
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
