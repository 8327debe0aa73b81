#!/usr/bin/env bash
# Installs what is missing, builds, and runs all tests; the last line gives the totals.
#
#   test.sh                 everything within the budget (12 minutes on two cores at most, from a fresh clone)
#   test.sh --build-only    stops after the build
#   test.sh --long [SUITE]  the large counts of one suite, or of all: digits crash power sim mutations kernels casts curves model coverage attacks fuzz faults containers cluster
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")" || exit 1

long='' suite='' build_only=''
while [ $# -gt 0 ]; do
	case $1 in
	--build-only) build_only=1 && shift ;;
	--long) long=1 && suite=${2:-all} && shift $(($# > 1 ? 2 : 1)) ;;
	--help) sed -n '2,7s/^# \{0,1\}//p' "$0" && exit 0 ;;
	*) echo "test.sh: no option is called \"$1\"; there are --build-only, --long [SUITE], --help" >&2 && exit 2 ;;
	esac
done

out=build/test
mkdir -p "$out"
log=$out/log.txt
: >"$log"

# Tests of the release build wait most of their time, and work little.
at_once=$((2 * $(nproc) + 1))

section() { printf '== %s (%d s)\n' "$1" "$SECONDS"; }

must() { # command...: ends the run when it fails
	"$@" >>"$log" 2>&1 && return
	tail -n 60 "$log" >&2
	echo "test.sh: failed: $*; the whole output is in $log" >&2
	exit 1
}

# Refused now, not after the build; tests/long.sh has the suites.
[ -z "$suite" ] || tests/long.sh --check "$suite" || exit 2

section packages
scripts/packages.sh run build test cluster cross || exit 1

section "build: release"
must cmake --preset release
must cmake --build --preset release
[ -n "$build_only" ] && exit 0

if [ -n "$long" ]; then
	exec tests/long.sh "$suite"
fi

broken=0
rm -f "$out"/results-*.txt
# A check that is no test program counts as one test.
check() { # name command...
	local name=$1
	shift
	section "$name"
	if "$@" >"$out/$name.log" 2>&1; then
		printf '0: [       OK ] %s\n' "$name" >>"$out/results-checks.txt"
	else
		cat "$out/$name.log"
		printf '0: [  FAILED  ] %s\n' "$name" >>"$out/results-checks.txt"
		broken=1
	fi
}

# Side by side: each test has its own directories and free ports.
suites() { # preset, tests at once, ctest's -L or -R, expression
	section "tests: $1 $4"
	ctest --test-dir "build/$1" -V -j "$2" --no-tests=error "$3" "$4" >"$out/ctest-$1.log" 2>&1 || {
		broken=1
		# What failed, without the noise of what passed.
		grep -E '\[  ERROR   \]|\[  FAILED  \]|\*\*\*|error: Failure|: error:|SUMMARY: |broken invariant|: again: ' "$out/ctest-$1.log" | head -n 60
		echo "test.sh: the whole output is in $out/ctest-$1.log"
	}
	# Test numbers of two presets must not be taken for one another.
	sed "s/^\([0-9]*\): /$1-\1: /" "$out/ctest-$1.log" >"$out/results-$1.txt"
}

# Beside the tests of the release build, in the processor time that they leave: all that is built with clang, and its tests. Fuzzing
# comes last, ten seconds of each target (--long fuzz has more): it gets further when nothing else runs.
background() {
	log=$out/log-background.txt
	local fuzz preset
	for preset in asan integer; do
		section "build: $preset"
		must cmake --preset "$preset"
		must cmake --build --preset "$preset"
	done
	section "build: fuzz"
	tests/fuzz/run.sh 0 >"$out/fuzz.log" 2>&1
	fuzz=$?
	local labels='unit|kernels|sim'
	[ "$fuzz" -eq 0 ] && labels+='|fuzz'
	suites asan "$(nproc)" -L "$labels"
	suites integer "$(nproc)" -R '^test_(amp|kernel)_'
	if [ "$fuzz" -eq 0 ]; then
		section fuzz
		tests/fuzz/run.sh 10 >"$out/fuzz.log" 2>&1
		fuzz=$?
	fi
	[ "$fuzz" -eq 0 ] || [ "$fuzz" -eq 77 ] || { broken=1 && cat "$out/fuzz.log"; }
	sed 's/^/fuzz: /' "$out/fuzz.log" >"$out/results-fuzzing.txt"
	exit "$broken"
}
# It has a process group of its own, which is killed as a whole when this script ends.
set -m
{ renice -n 5 "$BASHPID" >>"$log" && background; } >"$out/background.txt" 2>&1 &
background=$!
set +m
trap 'kill -- "-$background" 2>/dev/null' EXIT

check fences scripts/check_fences.py
check fences-self-test scripts/test_check_fences.sh
check style scripts/check_style.py
check style-self-test scripts/test_check_style.sh
suites release "$at_once" -L '.*'
section "waiting for the builds with clang and their tests"
wait "$background" || broken=1
cat "$out/background.txt"
cat "$out"/results-*.txt >"$out/ctest.log"

# Each line "N: [ OK ] name" is one test; the set of (N, name) counts, since a runner may repeat a name in its summary.
count() { grep -E "^[a-z0-9-]+: \[ *$1 *\]" "$out/ctest.log" | grep -v 'test(s)' | sort -u | wc -l; }
passed=$(count OK)
failed=$(count FAILED)
grep -hE '^[a-z0-9-]+: SKIPPED: ' "$out/ctest.log" | sed 's/^[a-z0-9-]*: //' | sort -u >"$out/skipped.txt"
skipped=$(wc -l <"$out/skipped.txt")
[ "$failed" -gt 0 ] && broken=1
# A program that crashed has no FAILED line of its own.
[ "$broken" -ne 0 ] && [ "$failed" -eq 0 ] && failed=1
section "done"
cat "$out/skipped.txt"
# Which seeds the simulator has drawn.
grep -h 'sim: the seeds begin with' "$out/ctest.log"
echo "ampd: $passed passed, $failed failed, $skipped skipped"
exit "$broken"
