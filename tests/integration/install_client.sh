#!/usr/bin/env bash
# install_client.sh BUILD COMPILER: installs the component "ampclient" of a build, moves the install, builds examples/worker.c
# outside the tree against it, by find_package and by pkg-config, and runs both with one ampd.
set -euo pipefail
build=$1 compiler=$2
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
version=$(sed -n 's/^project(ampd VERSION \([0-9.]*\) .*/\1/p' "$here/../../CMakeLists.txt")
if ! command -v pkg-config >/dev/null; then
	echo "SKIPPED: pkg-config is not installed"
	exit 77
fi
work=$(mktemp -d)
ampd=''
trap '[ -z "$ampd" ] || kill "$ampd"; wait; rm -rf "$work"' EXIT

cmake --install "$build" --component ampclient --prefix "$work/first" >/dev/null
mv "$work/first" "$work/prefix"
cp -r "$here/outside_client" "$work/source"
cp "$here/../../examples/worker.c" "$work/source"

echo "find_package"
cmake -S "$work/source" -B "$work/cmake" -DCMAKE_C_COMPILER="$compiler" -DCMAKE_PREFIX_PATH="$work/prefix" -DWANTED="$version" >/dev/null
cmake --build "$work/cmake" >/dev/null

echo "pkg-config"
pc=$(find "$work/prefix" -name ampclient.pc)
export PKG_CONFIG_PATH=${pc%/*}
pkg-config --exact-version="$version" ampclient
# shellcheck disable=SC2046 # lists of flags
"$compiler" -std=c17 -Wall -Wextra -Werror $(pkg-config --cflags ampclient) "$work/source/worker.c" -o "$work/worker" \
	$(pkg-config --libs ampclient)

socket=$work/ampd.sock
"$build/bin/ampd" --data-dir "$work/data" --listen "unix:$socket" --metrics-listen none >"$work/ampd.log" 2>&1 &
ampd=$!
for _ in $(seq 600); do
	[ -S "$socket" ] && break
	sleep 0.1
done
LD_LIBRARY_PATH=$(pkg-config --variable=libdir ampclient)
export LD_LIBRARY_PATH WORLD_SIZE=2
RANK=1 "$work/cmake/worker" "unix:$socket" &
RANK=0 "$work/worker" "unix:$socket" | tee "$work/said"
wait $!
[ "$(wc -l <"$work/said")" -eq 21 ] && [ "$(grep -c skipped "$work/said")" -eq 1 ]
grep -qx 'step 3: w 0.875, scale 65536, skipped' "$work/said"
grep -qx '  w of rank-1: 1 Inf, 0 NaN' "$work/said"
grep -q '^step 20: w 1.98.*, scale 32768, applied$' "$work/said"
# Once more with the model that is done.
RANK=1 "$work/cmake/worker" "unix:$socket" &
RANK=0 "$work/worker" "unix:$socket" >"$work/said"
wait $!
grep -q 'done already: `ampctl delete line`' "$work/said"
