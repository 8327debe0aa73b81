#!/usr/bin/env bash
# Trains the language model on this machine, one ampd and two workers, and lets it write 400 characters of its own.
#
#   run.sh [--precision f32|bf16|f16] [--steps N] [--write N] [--kill] [--bin DIR] [--dir DIR] [--port P] [--quiet]
#          [--scaler dynamic|static|none] [--scale S] [--seed S] [--layers N] [--heads N] [--width N] [--context N]
#          [--batch N] [--text FILE] [--checkpoint-every N] [--units]
#
# --kill ends the server by SIGKILL after about half of the steps, and starts it again: the job ends with the same
# parameters, byte for byte. They are in DIR/parameters.safetensors at the end, and their SHA-256 is the last line. DIR
# of --dir (made if missing) also gets data/ (the server's), ampd.log, and steps.tsv (a line for each step: step, loss,
# scale, norm, skipped); given the same options again, a run that was broken off goes on there, with a new
# steps.tsv. Without --dir all of it is in a folder under /tmp, which is removed after a success and named after a
# failure. Port 0, the default, takes a free one. charlm --help explains the other options.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
bin=$root/build/release/bin dir='' port=0 kill='' precision=f32 steps=1000 write=400 workers=2
worker_args=()

usage() { # what is wrong
	echo "run.sh: $1; see --help" >&2
	exit 2
}

while [ $# -gt 0 ]; do
	case $1 in
	--help | -h) sed -n '2,/^set/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit 0 ;;
	--kill) kill=1 && shift ;;
	--quiet | --units) worker_args+=("$1") && shift ;;
	--bin | --dir | --port | --steps | --write | --precision | --scaler | --scale | --seed | --layers | --heads | --width | \
		--context | --batch | --text | --checkpoint-every)
		[ $# -gt 1 ] || usage "$1 needs a value"
		case $1 in
		--bin) bin=$2 ;;
		--dir) dir=$2 ;;
		--port) port=$2 ;;
		--steps) steps=$2 ;;
		--write) write=$2 ;;
		--precision) precision=$2 ;;
		*) worker_args+=("$1" "$2") ;;
		esac
		shift 2
		;;
	*) usage "no option is called \"$1\"" ;;
	esac
done
[[ $precision =~ ^(f32|bf16|f16)$ ]] || usage "--precision: \"$precision\" is not one of f32, bf16, f16"
[[ $steps =~ ^[1-9][0-9]{0,6}$ ]] || usage "--steps: \"$steps\" is not a number from 1 to 9999999"
[[ $port =~ ^[0-9]+$ ]] || usage "--port: \"$port\" is not a number"
for program in ampd ampctl charlm; do
	[ -x "$bin/$program" ] && continue
	echo "run.sh: no program $program in $bin; build first (./test.sh --build-only), or name the folder with --bin" >&2
	exit 1
done
temporary=''
if [ -z "$dir" ]; then
	dir=$(mktemp -d -t charlm.XXXXXX)
	temporary=1
fi
mkdir -p "$dir"
: >"$dir/steps.tsv"

ampd_pid='' worker_pids=()
stop_all() {
	[ -z "$ampd_pid" ] || kill -TERM "$ampd_pid" "${worker_pids[@]}" 2>/dev/null || true
	wait 2>/dev/null || true
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

# Starts ampd and waits until it listens; its port is then known.
start_ampd() {
	: >"$dir/ampd.log"
	"$bin/ampd" --data-dir "$dir/data" --listen "127.0.0.1:$port" >>"$dir/ampd.log" 2>&1 &
	ampd_pid=$!
	until grep -q 'msg="listening"' "$dir/ampd.log"; do
		kill -0 "$ampd_pid" 2>/dev/null || {
			echo "run.sh: ampd ended: $(tail -n 1 "$dir/ampd.log")" >&2
			exit 1
		}
		sleep 0.02
	done
	port=$(sed -n 's/.*msg="listening".*127\.0\.0\.1:\([0-9]*\).*/\1/p' "$dir/ampd.log" | head -n 1)
}

start_worker() { # rank, options
	local rank=$1
	shift
	RANK=$rank WORLD_SIZE=$workers OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 \
		"$bin/charlm" --connect "127.0.0.1:$port" --precision "$precision" --steps "$steps" "${worker_args[@]}" "$@" &
	worker_pids+=($!)
}

start_ampd
start_worker 0 --write "$write" --log "$dir/steps.tsv"
for ((rank = 1; rank < workers; rank++)); do
	start_worker "$rank"
done

if [ -n "$kill" ]; then
	# A little after half of the steps: not at a checkpoint, so that steps have to be done again.
	until [ "$(wc -l <"$dir/steps.tsv")" -ge $((steps * 11 / 20)) ]; do
		kill -0 "${worker_pids[0]}" 2>/dev/null || break
		sleep 0.01
	done
	kill -KILL "$ampd_pid"
	wait "$ampd_pid" 2>/dev/null || true
	echo "run.sh: ampd was killed after $(wc -l <"$dir/steps.tsv") steps, starting it again" >&2
	start_ampd
fi

# In whatever order they end: a worker whose peer has failed waits for it until loss_timeout_ms, ten minutes.
while [ "${#worker_pids[@]}" -gt 0 ]; do
	running=()
	for pid in "${worker_pids[@]}"; do
		if kill -0 "$pid" 2>/dev/null; then
			running+=("$pid")
		else
			wait "$pid" || { echo "run.sh: a worker ended with code $?" >&2 && exit 1; }
		fi
	done
	worker_pids=("${running[@]}")
	sleep 0.05
done
"$bin/ampctl" --endpoint "127.0.0.1:$port" checkpoint export --force charlm "$dir/parameters.safetensors" >/dev/null
kill -TERM "$ampd_pid"
wait "$ampd_pid" || { echo "run.sh: ampd ended with code $? after SIGTERM" >&2 && exit 1; }
ampd_pid=''
echo "charlm: parameters $(sha256sum "$dir/parameters.safetensors" | cut -d ' ' -f 1)"
