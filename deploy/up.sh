#!/usr/bin/env bash
# up.sh [CHECKPOINT]: trains the digits example in containers: one ampd and two workers (docker-compose.yml).
#
# Makes the base image where no registry is reachable, builds the image, starts everything in a compose project of its own
# with an empty volume, waits until both workers have ended, prints their result, drains ampd, copies the last checkpoint
# out of the volume to the file CHECKPOINT, and removes the containers, the network and the volume. The images stay.
#
# From the environment: UP_TIMEOUT_S, the longest that training may take (900); AMPD_PORT, the port on this machine's
# loopback (7420); DIGITS_STEPS, DIGITS_DTYPE, DIGITS_SEED.
# Exit code: 0 both workers and ampd ended with 0 and the checkpoint is where it was wanted, 1 anything else, 2 wrong use.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
project=ampd-up
timeout_s=${UP_TIMEOUT_S:-900}
data_dir=/var/lib/ampd
# Lines of each container's log that a failure shows.
tail_lines=30

say() {
    echo "up: $*"
}

fail() {
    echo "up: $*" >&2
    exit 1
}

if [[ $# -gt 1 || ${1-} == -* ]]; then
    echo "usage: up.sh [CHECKPOINT]" >&2
    exit 2
fi
checkpoint=${1-}
if [[ -n $checkpoint && ! -d $(dirname "$checkpoint") ]]; then
    echo "up: the folder of $checkpoint does not exist" >&2
    exit 2
fi
[[ -z $checkpoint ]] || checkpoint=$(cd "$(dirname "$checkpoint")" && pwd)/$(basename "$checkpoint")

if docker compose version >/dev/null 2>&1; then
    compose=(docker compose)
elif command -v docker-compose >/dev/null; then
    compose=(docker-compose)
else
    fail "neither 'docker compose' nor docker-compose is here; on Debian: apt-get install docker.io docker-compose"
fi
compose+=(--project-name "$project" --file "$root/docker-compose.yml")

take_down() {
    "${compose[@]}" down --volumes --remove-orphans --timeout 5 >/dev/null 2>&1 || true
}

container_of() { # SERVICE
    "${compose[@]}" ps -a -q "$1" 2>/dev/null
}

# "running", "restarting", "exited"...; "gone" where there is no such container.
state_of() { # CONTAINER
    docker inspect --format '{{.State.Status}}' "$1" 2>/dev/null || echo gone
}

code_of() { # CONTAINER
    docker inspect --format '{{.State.ExitCode}}' "$1"
}

show_logs() {
    "${compose[@]}" logs --no-color --tail "$tail_lines" >&2 || true
}

# Docker's own wait ends at a restart too, so the states are looked at. `exited` is final: the restart policy leaves it
# only to a container that ended with 0 or has used up its restarts.
await_workers() {
    local deadline=$((SECONDS + timeout_s)) worker ended
    while ((SECONDS < deadline)); do
        ended=0
        for worker in "${workers[@]}"; do
            case $(state_of "$worker") in
            exited | dead | gone) ended=$((ended + 1)) ;;
            esac
        done
        ((ended < ${#workers[@]})) || return 0
        case $(state_of "$server") in
        exited | dead | gone)
            say "ampd has ended before the workers" >&2
            return 1
            ;;
        esac
        sleep 0.5
    done
    say "the workers have not ended within $timeout_s s" >&2
    return 1
}

copy_checkpoint() {
    local path
    path=$(docker run --rm --network none --volumes-from "$server:ro" --entrypoint find ampd:local \
        "$data_dir" -path '*/step-*/shard-*-of-*.safetensors' | sort | tail -n 1)
    [[ -n $path ]] || fail "there is no checkpoint in the volume"
    docker cp "$server:$path" "$checkpoint" >/dev/null
    say "the last checkpoint, ${path#"$data_dir"/}, is in $checkpoint"
}

"$root/deploy/base-image.sh"
trap take_down EXIT
trap 'exit 130' INT TERM
# What an interrupted run may have left.
take_down

say "building the image"
"${compose[@]}" build >"${TMPDIR:-/tmp}/ampd-up-build.$$.log" 2>&1 || {
    tail -n "$tail_lines" "${TMPDIR:-/tmp}/ampd-up-build.$$.log" >&2
    fail "the image could not be built; the whole log is in ${TMPDIR:-/tmp}/ampd-up-build.$$.log"
}
rm -f "${TMPDIR:-/tmp}/ampd-up-build.$$.log"

say "starting ampd and two workers"
"${compose[@]}" up --detach --no-build || {
    show_logs
    fail "the containers could not be started"
}
server=$(container_of ampd)
workers=("$(container_of worker0)" "$(container_of worker1)")
await_workers || {
    show_logs
    exit 1
}
for worker in "${workers[@]}"; do
    code=$(code_of "$worker")
    if [[ $code -ne 0 ]]; then
        show_logs
        fail "a worker ended with code $code"
    fi
done
docker logs "${workers[0]}" 2>&1 | grep '^digits: ' || fail "the workers printed no result"

say "draining ampd"
"${compose[@]}" stop ampd >/dev/null 2>&1
code=$(code_of "$server")
if [[ $code -ne 0 ]]; then
    show_logs
    fail "ampd ended with code $code after SIGTERM"
fi
[[ -z $checkpoint ]] || copy_checkpoint
say "done; removing the containers, the network and the volume"
