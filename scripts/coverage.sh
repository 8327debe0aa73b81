#!/usr/bin/env bash
# coverage.sh [OPTION]... FOLDER...: which lines and branches of the folders the tests run, with gcc's gcov.
#
#   --suites REGEX       the suites of ctest that are run (default: unit|kernels)
#   --tests REGEX        of these, the tests with such names
#   --target NAME        builds this target alone
#   --lines PERCENT      fails if the folders' lines together are covered less
#   --taken PERCENT      fails if the folders' branches together are
#   --branches FILE      fails if a branch of this file is not covered (may be repeated)
#   --missing            names each line and branch that is not covered
#
# A FOLDER is a folder of the tree, such as amp or server/core. Builds in build/coverage. What cannot be covered is named line by line,
# with the reason, in scripts/coverage_excluded.txt; branches of AMP_ASSERT and AMP_NEED do not count. Kernels that this processor
# cannot run are measured apart: NEON's on an emulated processor, AVX-512's with its intrinsics in C.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit 1

build=build/coverage suites='unit|kernels' tests=. target=all report=() folders=() broken=0
while [ $# -gt 0 ]; do
	case $1 in
	--suites) suites=$2 && shift 2 ;;
	--tests) tests=$2 && shift 2 ;;
	--target) target=$2 && shift 2 ;;
	--lines | --taken | --branches) report+=("$1" "$2") && shift 2 ;;
	--missing) report+=("$1") && shift ;;
	--help) sed -n '2,15s/^# \{0,1\}//p' "$0" && exit 0 ;;
	-*) echo "coverage.sh: no option is called \"$1\"; see --help" >&2 && exit 2 ;;
	*) [ -d "$1" ] || { echo "coverage.sh: there is no folder \"$1\"" >&2 && exit 2; } && folders+=("${1%/}") && shift ;;
	esac
done
[ ${#folders[@]} -gt 0 ] || { echo "usage: coverage.sh [OPTION]... FOLDER..., see --help" >&2 && exit 2; }

scripts/packages.sh build test cross
mkdir -p "$build"
log=$build/coverage.log
must() { # command...
	"$@" >"$log" 2>&1 || { tail -n 40 "$log" >&2 && echo "coverage.sh: failed: $*" >&2 && exit 1; }
}
must cmake --preset coverage
must cmake --build --preset coverage --target "$target"
# Without it nothing is known of the instruction sets, and of the suites there is little to run.
if [[ " ${folders[*]} " == *" amp "* && ! -x $build/tests/kernels/test_kernel_golden ]]; then
	echo "coverage.sh: --target $target does not build the tests: leave it out, or name one that does" >&2
	exit 2
fi
# Counts of earlier runs would add up.
find "$build" -name '*.gcda' -delete
rm -rf "$build/neon"
echo "coverage: tests of $suites"
ctest --test-dir "$build" -j "$(nproc)" --timeout 600 --no-tests=error -L "$suites" -R "$tests" --output-on-failure >"$log" 2>&1 || {
	broken=1 # reported below; what the others cover is counted all the same
	grep -E '\*\*\*(Failed|Exception|Timeout)|\[  FAILED|error: Failure|No tests' "$log" | head -n 20
}

for isa in avx2 avx512; do
	[[ " ${folders[*]} " == *" amp "* ]] || break
	if "$build/tests/kernels/test_kernel_golden" "$isa" >"$log" 2>&1; then continue; fi
	grep -q '^SKIPPED' "$log" || { cat "$log" && exit 1; }
	reason="this processor has no $isa: none of it was run"
	[ "$isa" = avx512 ] && reason="this processor has no avx512: its intrinsics in C, not part of the total"
	for file in amp/kernels/"$isa"*.c; do report+=(--apart "$file" "$reason"); done
done
if [[ " ${folders[*]} " == *" amp "* ]]; then
	echo "coverage: NEON under qemu"
	AMPD_NEON_FLAGS='-O1 --coverage -fprofile-update=atomic' tests/kernels/neon.sh "$PWD" "$PWD/$build" >"$log" 2>&1 || {
		tail -n 20 "$log" && grep -q '^SKIPPED' "$log" || exit 1
	}
	report+=(--objects aarch64-linux-gnu-gcov "$build/neon" amp/kernels/neon.c)
	report+=(--apart amp/kernels/neon.c "emulated by qemu, not part of the total")
fi
scripts/coverage_report.py --build "$build" "${report[@]}" "${folders[@]}" || broken=1
exit "$broken"
