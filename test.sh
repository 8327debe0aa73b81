#!/usr/bin/env bash
# Installs what is missing, builds, and runs all tests; the last line gives the totals.
#
#   test.sh                 everything within the budget (12 minutes on two cores at most, from a fresh clone)
#   test.sh --build-only    installs what the build and its programs need, builds, and stops
#   test.sh --long [SUITE]  the large counts of one suite, or of all: digits crash power sim mutations kernels casts curves python model coverage attacks fuzz faults containers packages cluster units shared backup kubernetes soak
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
packages=(run build test cluster cross torch)
[ -n "$build_only" ] && packages=(run python build)
scripts/packages.sh "${packages[@]}" || exit 1

section "configure: release"
must cmake --preset release
section "build: release, some minutes the first time (how far it is: tail -f $log)"
must cmake --build --preset release
[ -n "$build_only" ] && section "built: the programs are in build/release/bin" && exit 0

if [ -n "$long" ]; then
	exec tests/long.sh "$suite"
fi

broken=0
rm -f "$out"/results-*.txt "$out/alone.txt"
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

# How many times slower than an ordinary machine this one is now, from 1 to 4: by the simulator on all cores at once.
slowness() {
	local ordinary_ms=2000 core begun_ns slow running=()
	begun_ns=$(date +%s%N)
	for core in $(seq "$(nproc)"); do
		build/release/bin/sim --seeds 600 --first "$core" >>"$log" 2>&1 &
		running+=($!)
	done
	wait "${running[@]}"
	slow=$((($(date +%s%N) - begun_ns) / 1000000 / ordinary_ms))
	echo $((slow < 1 ? 1 : slow > 4 ? 4 : slow))
}

# Processor time since the start of the machine, in ticks: what other guests of its host have taken, and all.
processor_time() { awk '$1 == "cpu" { for (i = 2; i <= 9; i++) all += $i; print $9, all }' /proc/stat; }

# What failed, without the noise of what passed; and of a program that has ended in the middle its last lines: in which of its tests.
tell_failures() { # a log of ctest's
	grep -E '\[  ERROR   \]|\[  FAILED  \]|\*\*\*|error: Failure|: error:|SUMMARY: |broken invariant|: again: ' "$1" | head -n 60
	awk '/^[0-9]+: / { told[$1 + 0] += /\[  FAILED  \]/; lines[$1 + 0, size[$1 + 0]++ % 12] = $0; next }
		/\*\*\*/ && !/\*\*\*Skipped/ && match($0, /#[0-9]+:/) {
			test = substr($0, RSTART + 1) + 0
			for (i = size[test] > 12 ? size[test] - 12 : 0; !told[test] && i < size[test]; i++)
				print lines[test, i % 12]
		}' "$1"
}

# Side by side: each test has its own directories and free ports.
suites() { # preset, tests at once, ctest's -L or -R, expression
	local log=$out/ctest-$1.log results=$out/results-$1.txt
	section "tests: $1 $4"
	# Test numbers of two presets must not be taken for one another.
	ctest --test-dir "build/$1" -V -j "$2" --no-tests=error "$3" "$4" >"$log" 2>&1
	local status=$?
	sed "s/^\([0-9]*\): /$1-\1: /" "$log" >"$results"
	[ "$status" -eq 0 ] && return
	tell_failures "$log"
	echo "test.sh: the whole output is in $log"
	return 1
}

# Whether what failed may run once more: where the machine was slow, anything. Elsewhere two programs at most, and only such as wait
# on real clocks beside real processes; a unit test or a seed that fails has failed.
may_run_again() { # preset
	[ "$slow" -gt 1 ] || [ "$stolen_per_mille" -ge 50 ] && return
	local most=2 failed=build/$1/Testing/Temporary/LastTestsFailed.log
	[ "$(wc -l <"$failed")" -le "$most" ] || return
	# Two folders may have tests of one name: these are told apart by their numbers, and the first has the labels of both.
	ctest --test-dir "build/$1" -N -L 'conformance|integration|crash|faults|scenarios' -LE unit |
		sed -n 's/^ *Test *#\([0-9]*\): /\1:/p' >"$out/clocked.txt"
	! grep -v -x -q -F -f "$out/clocked.txt" "$failed"
}

# Once more and alone; both results are printed.
again_alone() { # preset
	local log=$out/ctest-$1-alone.log results=$out/results-$1.txt
	section "once more, alone: what failed"
	AMPD_TEST_PATIENCE=$((slow < 2 ? 2 : slow)) ctest --test-dir "build/$1" -V --rerun-failed >"$log" 2>&1 || {
		tell_failures "$log"
		return 1
	}
	sed -n 's/^ *[0-9]*\/[0-9]* Test *#[0-9]*: \([^ ]*\) .*Passed.*/ALONE: \1 failed beside other tests, and passed alone/p' "$log" | tee "$out/alone.txt"
	# The second result is the one that counts.
	sed -n "s/^\([0-9]*\): .*/$1-\1: /p" "$log" | sort -u >"$out/alone-numbers.txt"
	grep -v -F -f "$out/alone-numbers.txt" "$results" >"$results.first"
	sed "s/^\([0-9]*\): /$1-\1: /" "$log" | cat "$results.first" - >"$results"
	rm "$results.first"
}

# Beside the tests of the release build, in the processor time that they leave: all that is built with clang, and its tests. Fuzzing
# comes last, ten seconds of each target (--long fuzz has more): it gets further when nothing else runs.
background() {
	log=$out/log-background.txt
	local fuzz
	section "build: asan"
	must cmake --preset asan
	must cmake --build --preset asan
	section "build: fuzz"
	tests/fuzz/run.sh 0 >"$out/fuzz.log" 2>&1
	fuzz=$?
	local labels='unit|kernels|sim'
	[ "$fuzz" -eq 0 ] && labels+='|fuzz'
	suites asan "$(nproc)" -L "$labels" || broken=1
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
start_background() {
	set -m
	{ renice -n 5 "$BASHPID" >>"$log" && background; } >"$out/background.txt" 2>&1 &
	background=$!
	set +m
	trap 'kill -- "-$background" 2>/dev/null' EXIT
}

section "how fast this machine is"
slow=$(slowness)
export AMPD_TEST_PATIENCE=$slow
# Tests of the release build wait most of their time, and work little: three on each core, and all that is built with clang beside them. On
# a slow machine they would take each other's leases away; with five on two cores one three times as slow is half idle.
at_once=$((3 * $(nproc)))
[ "$slow" -gt 1 ] && at_once=$((2 * $(nproc) + 1)) &&
	echo "$slow times slower than an ordinary one: leases and deadlines of tests are so many times longer, and fewer run at once"
[ "$slow" -eq 1 ] && start_background

check fences scripts/check_fences.py
check fences-self-test scripts/test_check_fences.sh
check style scripts/check_style.py
check style-self-test scripts/test_check_style.sh
read -r stolen_before all_before < <(processor_time)
tests_broken=0
suites release "$at_once" -L '.*' || tests_broken=1
read -r stolen_after all_after < <(processor_time)
stolen_per_mille=$((1000 * (stolen_after - stolen_before) / (all_after - all_before + 1)))
[ "$slow" -gt 1 ] && start_background
section "waiting for the builds with clang and their tests"
wait "$background" || broken=1
cat "$out/background.txt"
# Beside nothing else.
if [ "$tests_broken" -ne 0 ] && may_run_again release; then
	echo "of the processor's time other guests took $stolen_per_mille of 1,000 parts during the tests"
	again_alone release && tests_broken=0
fi
[ "$tests_broken" -eq 0 ] || broken=1
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
cat "$out/alone.txt" 2>/dev/null
# Which seeds the simulator has drawn.
grep -h 'sim: the seeds begin with' "$out/ctest.log"
echo "ampd: $passed passed, $failed failed, $skipped skipped"
exit "$broken"
