#!/usr/bin/env bash
# Trains the digits example in containers, and cleans up.
#
#   up.sh [CHECKPOINT]                            one ampd and two workers (docker-compose.yml)
#   up.sh cluster [--kill SERVICE] [CHECKPOINT]   three shards, three workers, Prometheus (cluster.yml)
#
# Makes the base image where no registry is reachable, builds the images, starts everything in a compose project of its own
# with empty volumes, waits until the workers have ended, prints their result, drains ampd, copies the last checkpoint to the
# file CHECKPOINT, and removes the containers, the network and the volumes. The images stay. With --kill that service
# (ampd1, worker2...) is killed once training goes on, and started again.
#
# From the environment: UP_TIMEOUT_S, the longest that training may take (900); AMPD_PORT, the port on this machine's
# loopback (7420), PROMETHEUS_PORT (9090); DIGITS_STEPS, DIGITS_DTYPE, DIGITS_SEED.
# Exit code: 0 all workers and every ampd ended with 0 and the checkpoint is where it was wanted,
# 1 anything else, 2 wrong use.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
file=docker-compose.yml project=ampd-up servers=(ampd) workers=(worker0 worker1) others=() killed=''
timeout_s=${UP_TIMEOUT_S:-900}
# From the start of the first container, once the images exist; what takes longer is told.
healthy_goal_s=60
# Steps after which a service is killed.
kill_after_steps=20
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

usage() {
    sed -n '4,5s/^# *//p' "${BASH_SOURCE[0]}" >&2
    exit 2
}

if [[ ${1-} == cluster ]]; then
    shift
    file=deploy/cluster.yml project=ampd-up-cluster
    servers=(ampd0 ampd1 ampd2) workers=(worker0 worker1 worker2) others=(prometheus)
    if [[ ${1-} == --kill ]]; then
        killed=${2-}
        [[ " ${servers[*]} ${workers[*]} ${others[*]} " == *" ${killed:-none} "* ]] || usage
        shift 2
    fi
fi
[[ $# -le 1 && ${1-} != -* ]] || usage
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
compose+=(--project-name "$project" --file "$root/$file")

take_down() {
    "${compose[@]}" down --volumes --remove-orphans --timeout 5 >/dev/null 2>&1 || true
}

container_of() { # SERVICE
    docker ps --all --quiet --filter "label=com.docker.compose.project=$project" \
        --filter "label=com.docker.compose.service=$1" 2>/dev/null
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
has_ended() { # SERVICE
    case $(state_of "$(container_of "$1")") in
    exited | dead | gone) return 0 ;;
    esac
    return 1
}

await_workers() {
    local deadline=$((SECONDS + timeout_s)) service ended
    while ((SECONDS < deadline)); do
        ended=0
        for service in "${workers[@]}"; do
            ! has_ended "$service" || ended=$((ended + 1))
        done
        ((ended < ${#workers[@]})) || return 0
        for service in "${servers[@]}" "${others[@]}"; do
            if has_ended "$service"; then
                say "$service has ended before the workers" >&2
                return 1
            fi
        done
        sleep 0.5
    done
    say "the workers have not ended within $timeout_s s" >&2
    return 1
}

# Every server that is ready, by the index of its shard.
owners() {
    local service container shard
    for service in "${servers[@]}"; do
        container=$(container_of "$service")
        [[ $(state_of "$container") == running ]] || continue
        shard=$(docker exec "$container" ampctl status -o json 2>/dev/null | grep -o '"shard":[0-9]*' | head -n 1) || continue
        docker exec "$container" ampctl ready >/dev/null 2>&1 || continue
        echo "${shard#*:} $service"
    done | sort -n | cut -d ' ' -f 2
}

kill_one() {
    local deadline=$((SECONDS + timeout_s)) steps=0
    while ((steps < kill_after_steps)); do
        ((SECONDS < deadline)) || fail "no $kill_after_steps steps within $timeout_s s"
        # It prints some steps, not all: the number of the last one counts.
        steps=$(docker logs "$(container_of "${workers[0]}")" 2>/dev/null | awk '/^step/ { n = $2 } END { print n + 0 }') || steps=0
        sleep 0.1
    done
    say "after $steps steps: killing $killed"
    "${compose[@]}" kill "$killed" >/dev/null 2>&1
    "${compose[@]}" start "$killed" >/dev/null 2>&1
}

# As one file, whatever the number of shards.
copy_checkpoint() { # SERVICE
    local container exported=$data_dir/exported.safetensors
    container=$(container_of "$1")
    docker exec "$container" ampctl checkpoint export digits "$exported" >/dev/null || fail "no checkpoint could be exported"
    docker cp "$container:$exported" "$checkpoint" >/dev/null
    docker exec "$container" rm -f "$exported"
    say "the last checkpoint is in $checkpoint"
}

drain() { # SERVICE
    local code
    "${compose[@]}" stop "$1" >/dev/null 2>&1
    code=$(code_of "$(container_of "$1")")
    if [[ $code -ne 0 ]]; then
        show_logs
        fail "$1 ended with code $code after SIGTERM"
    fi
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

say "starting ${servers[*]} ${workers[*]} ${others[*]}"
began=$SECONDS
"${compose[@]}" up --detach --no-build >/dev/null || {
    show_logs
    fail "the containers could not be started"
}
# The workers are created when all servers that they need are healthy.
took=$((SECONDS - began))
say "healthy after $took s$( ((took <= healthy_goal_s)) || echo ", later than the $healthy_goal_s s of an idle machine")"
[[ -z $killed ]] || kill_one
await_workers || {
    show_logs
    exit 1
}
for service in "${workers[@]}"; do
    code=$(code_of "$(container_of "$service")")
    if [[ $code -ne 0 ]]; then
        show_logs
        fail "$service ended with code $code"
    fi
done
docker logs "$(container_of "${workers[0]}")" 2>&1 | grep '^digits: ' || fail "the workers printed no result"

mapfile -t owning < <(owners)
[[ ${#owning[@]} -gt 0 ]] || fail "no ampd is ready any more"
say "draining ${owning[*]}"
[[ -z $checkpoint ]] || copy_checkpoint "${owning[0]}"
[[ ${#owning[@]} -eq ${#servers[@]} ]] || fail "not all of ${servers[*]} are ready"
for service in "${owning[@]}"; do
    drain "$service"
done
say "done; removing the containers, the network and the volumes"
