#!/usr/bin/env bash
# run.sh SECONDS [TARGET...]: builds the fuzz targets and runs each, two at a time, for SECONDS. New inputs go to
# build/fuzz/found/TARGET, and one that breaks a target to build/fuzz/broken/TARGET-*; both are kept for the next run.
# With 0 seconds it only builds. Exit 77: this machine has no libFuzzer.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
[[ ${1-} =~ ^[0-9]+$ ]] || { echo "usage: tests/fuzz/run.sh SECONDS [TARGET...]" >&2 && exit 2; }
seconds=$1
shift
[ $# -gt 0 ] || set -- http2_server http2_client grpc_frame block_reader messages text peer core etcd config

command -v clang >/dev/null || { echo "SKIPPED: fuzz: no clang (package clang)" && exit 77; }
runtime=$(clang -print-runtime-dir)/libclang_rt.fuzzer-$(uname -m).a
[ -e "$runtime" ] || { echo "SKIPPED: fuzz: no libFuzzer (package libclang-rt-14-dev)" && exit 77; }

build=build/fuzz programs=build/asan/tests/fuzz
mkdir -p "$build/broken"
{ cmake --preset asan && cmake --build --preset fuzz; } >"$build/build.log" 2>&1 || {
	tail -n 40 "$build/build.log"
	echo "[  FAILED  ] fuzz: the targets do not build; the whole output is in $build/build.log"
	exit 1
}
[ "$seconds" -gt 0 ] || exit 0

one() { # target: one line, as the test programs write it
	local target=$1 corpus=tests/fuzz/corpus/$1 log=$build/$1.log words=()
	mkdir -p "$build/found/$target"
	[ -e "tests/fuzz/${target%_*}.dict" ] && words=("-dict=tests/fuzz/${target%_*}.dict")
	if "$programs/fuzz_$target" -max_total_time="$seconds" -max_len=8192 -timeout=20 -rss_limit_mb=2048 \
		-print_final_stats=1 -artifact_prefix="$build/broken/$target-" "${words[@]}" "$build/found/$target" "$corpus" \
		>"$log" 2>&1; then
		printf '[       OK ] fuzz %s: %s runs, %s a second, %s places\n' "$target" \
			"$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")" \
			"$(sed -n 's/^stat::average_exec_per_sec: *//p' "$log")" \
			"$(grep -o 'cov: [0-9]*' "$log" | tail -n 1 | cut -d' ' -f2)"
		return 0
	fi
	grep -E 'broken invariant|runtime error|^==[0-9]+==ERROR|SUMMARY|Test unit written' "$log" | cut -c 1-300
	printf '[  FAILED  ] fuzz %s: the whole output is in %s\n' "$target" "$log"
	return 1
}

broken=0
for target; do
	while [ "$(jobs -pr | wc -l)" -ge 2 ]; do wait -n || broken=1; done
	one "$target" &
done
while [ -n "$(jobs -p)" ]; do wait -n || broken=1; done
exit "$broken"
