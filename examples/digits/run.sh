#!/usr/bin/env bash
# Trains the digits job on this machine: one ampd and two workers, supervised.
#
# A process that a signal ends is started again with the same data directory or RANK after 200 ms, at most 20 times in
# all; any other non-zero exit ends the run. At the end ampd gets SIGTERM, which drains it.
#
#   run.sh [--bin DIR] [--dir DIR] [--port P] [--steps N] [--dtype f16|bf16|f32] [--seed S] [--hidden H]
#          [--checkpoint-every N] [--quiet] [--picture] [--check]
#
# DIR of --dir (made if missing) gets data/ (the server's), ampd.log, and a file with the process id of each process
# (ampd.pid, worker-0.pid, worker-1.pid). Without --dir all of it is in a folder under /tmp, which is removed after a
# success and named after a failure. Port 0 takes a free one; its number is then in DIR/port. --check looks at the
# options only.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
bin=$root/build/release/bin dir='' port=7420 picture='' world=2 restarts_max=20
worker_args=() steps=300

usage() { # what is wrong
	echo "run.sh: $1; see --help" >&2
	exit 2
}

help() {
	sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}"
	exit 0
}

check_value() { # option, value
	case $1 in
	--dtype) [[ $2 =~ ^(f16|bf16|f32)$ ]] || usage "$1: \"$2\" is not one of f16, bf16, f32" ;;
	--bin | --dir) ;;
	--port | --seed) [[ $2 =~ ^[0-9]+$ ]] || usage "$1: \"$2\" is not a number" ;;
	*) [[ $2 =~ ^0*[1-9][0-9]*$ ]] || usage "$1: \"$2\" is not a number above 0" ;;
	esac
}

check_only=''
while [ $# -gt 0 ]; do
	case $1 in
	--bin | --dir | --port | --steps | --dtype | --seed | --hidden | --checkpoint-every)
		[ $# -gt 1 ] || usage "$1 needs a value"
		value=$2
		[ "$1" != --dtype ] || case $value in # as PyTorch has them
		fp16 | float16) value=f16 ;;
		bfloat16) value=bf16 ;;
		fp32 | float32) value=f32 ;;
		esac
		check_value "$1" "$value"
		case $1 in
		--bin) bin=$value ;;
		--dir) dir=$value ;;
		--port) port=$value ;;
		--steps) steps=$value ;;
		*) worker_args+=("$1" "$value") ;;
		esac
		shift 2
		;;
	--quiet) worker_args+=("$1") && shift ;;
	--picture) picture=1 && shift ;;
	--check) check_only=1 && shift ;;
	--help | -h) help ;;
	*) usage "no option is called \"$1\"" ;;
	esac
done
[ -n "$check_only" ] && exit 0

find_program() { # name
	[ -x "$bin/$1" ] && echo "$bin/$1" && return
	echo "run.sh: no program $1 in $bin; build first (./test.sh --build-only), or name the folder with --bin" >&2
	return 1
}
ampd=$(find_program ampd)
digits=$(find_program digits)
ampctl=$(find_program ampctl)

temporary=''
if [ -z "$dir" ]; then
	dir=$(mktemp -d -t digits.XXXXXX)
	temporary=1
fi
mkdir -p "$dir"

declare -A role=()
restarts=0

start_ampd() {
	"$ampd" --data-dir "$dir/data" --listen "127.0.0.1:$port" >>"$dir/ampd.log" 2>&1 &
	role[$!]=ampd
	echo $! >"$dir/ampd.pid"
	echo "$port" >"$dir/port"
}

start_worker() { # rank
	RANK=$1 WORLD_SIZE=$world "$digits" --connect "127.0.0.1:$port" --steps "$steps" "${worker_args[@]}" &
	role[$!]=worker-$1
	echo $! >"$dir/worker-$1.pid"
}

stop_all() {
	local pid
	for pid in "${!role[@]}"; do
		kill -TERM "$pid" 2>/dev/null || true
	done
	for _ in $(seq 100); do
		local alive=''
		for pid in "${!role[@]}"; do
			kill -0 "$pid" 2>/dev/null && alive=1
		done
		[ -z "$alive" ] && break
		sleep 0.1
	done
	for pid in "${!role[@]}"; do
		kill -KILL "$pid" 2>/dev/null || true
	done
}
at_exit() {
	local code=$?
	stop_all
	[ -n "$temporary" ] || return 0
	if [ "$code" -eq 0 ]; then
		rm -rf "$dir"
	else
		echo "run.sh: what the run left is in $dir" >&2
	fi
}
trap at_exit EXIT
trap 'exit 130' INT TERM

# Says that a signal has ended a process, and ends the run if that was once too often.
count_restart() { # who, status
	restarts=$((restarts + 1))
	if [ "$restarts" -gt "$restarts_max" ]; then
		echo "run.sh: $1 was ended by signal $(($2 - 128)); restarted $restarts_max times already, giving up" >&2
		exit 1
	fi
	echo "run.sh: $1 was ended by signal $(($2 - 128)), starting it again" >&2
	sleep 0.2
}

# Starts ampd for the first time and waits until it listens, so that no worker meets another program's port. With
# --port 0 a used port (ampd ends with 1) means another try.
first_start() {
	local wanted=$port pid status
	for _ in $(seq "$restarts_max"); do
		[ "$wanted" = 0 ] && port=$((20000 + RANDOM % 12000))
		: >"$dir/ampd.log"
		start_ampd
		pid=$(<"$dir/ampd.pid")
		while kill -0 "$pid" 2>/dev/null; do
			grep -q 'msg="listening"' "$dir/ampd.log" && return
			sleep 0.02
		done
		status=0
		wait "$pid" || status=$?
		unset "role[$pid]"
		if [ "$status" -gt 128 ]; then
			count_restart ampd "$status"
		elif [ "$wanted" != 0 ] || [ "$status" != 1 ]; then
			break
		fi
	done
	echo "run.sh: ampd ended with code $status: $(tail -n 1 "$dir/ampd.log")" >&2
	exit "$((status == 0 ? 1 : status))"
}

first_start
for ((rank = 0; rank < world; rank++)); do
	start_worker "$rank"
done

# The id of a process that has ended. `wait -n` would not do: bash forgets a job that ended by a signal while the
# script was doing something else. `wait ID` knows the status of each child to the end.
next_ended() {
	while :; do
		for pid in "${!role[@]}"; do
			kill -0 "$pid" 2>/dev/null || return 0
		done
		sleep 0.05
	done
}

remaining=$world
while [ "$remaining" -gt 0 ]; do
	status=0
	next_ended
	wait "$pid" || status=$?
	who=${role[$pid]}
	unset "role[$pid]"
	if [ "$status" -gt 128 ]; then
		count_restart "$who" "$status"
		if [ "$who" = ampd ]; then start_ampd; else start_worker "${who#worker-}"; fi
	elif [ "$status" -ne 0 ] || [ "$who" = ampd ]; then
		echo "run.sh: $who ended with code $status" >&2
		[ "$who" = ampd ] && tail -n 3 "$dir/ampd.log" >&2
		exit "$((status == 0 ? 1 : status))"
	else
		remaining=$((remaining - 1))
	fi
done
[ -n "$picture" ] && "$ampctl" --endpoint "127.0.0.1:$port" history digits --plot

# Starts ampd again, and waits until it listens or has ended: a SIGTERM before that would end it undrained.
start_again() {
	local listened
	listened=$(grep -c 'msg="listening"' "$dir/ampd.log" || true)
	start_ampd
	while kill -0 "$(<"$dir/ampd.pid")" 2>/dev/null; do
		[ "$(grep -c 'msg="listening"' "$dir/ampd.log" || true)" -gt "$listened" ] && break
		sleep 0.02
	done
}

# ampd drains: it finishes its checkpoint and ends with 0. Killed meanwhile, it is started once more, to be drained.
while :; do
	pid=$(<"$dir/ampd.pid")
	kill -TERM "$pid" 2>/dev/null || true
	status=0
	wait "$pid" || status=$?
	unset "role[$pid]"
	[ "$status" -le 128 ] && break
	count_restart ampd "$status"
	start_again
done
[ "$status" -eq 0 ] || { echo "run.sh: ampd ended with code $status after SIGTERM" >&2 && exit 1; }
