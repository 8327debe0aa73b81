#!/usr/bin/env bash
# Trains the digits example in containers, and cleans up.
#
#   up.sh [CHECKPOINT]                            one ampd and two workers (docker-compose.yml)
#   up.sh cluster [--kill SERVICE] [CHECKPOINT]   three etcd, three shards, a standby, three workers, Prometheus (cluster.yml)
#
# Makes the base image where no registry is reachable, builds the images, starts everything in a compose project of its own
# with empty volumes, waits until the workers have ended, prints their result, drains ampd, copies the last checkpoint to the
# file CHECKPOINT (a path with a folder, ./FILE), and removes the containers, the network and the volumes. The images stay, each
# with a name: those of an older build are removed. With --kill that service (ampd1, worker2, etcd0..., or shard-K for the one
# that is shard K then) is killed once training goes on, and started again; before that, where it is a shard, training has to go
# on with the standby in its place. One up.sh runs at a time on a machine; another one is refused.
#
# From the environment: UP_TIMEOUT_S, the longest that training may take (900); AMPD_PORT, the port on this machine's
# loopback (7420), PROMETHEUS_PORT (9090); DIGITS_STEPS, DIGITS_DTYPE, DIGITS_SEED; UP_IMAGES=keep uses the images that exist.
# Exit code: 0 all workers and every ampd ended with 0 and the checkpoint is where it was wanted,
# 1 anything else, 2 wrong usage.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
file=docker-compose.yml project=ampd-up servers=(ampd) workers=(worker0 worker1) others=() killed='' shards=1
export AMPD_PORT=${AMPD_PORT:-7420} PROMETHEUS_PORT=${PROMETHEUS_PORT:-9090}
ports=(AMPD_PORT)
timeout_s=${UP_TIMEOUT_S:-900}
# From the start of the first container, once the images exist; what takes longer is reported, and what takes much longer ends the run.
healthy_goal_s=60 healthy_timeout_s=300
# Steps after which a service is killed.
kill_after_steps=20
data_dir=/var/lib/ampd
# How often a build says where it is: the packages, and the compiler, take minutes each.
progress_s=10
# Lines of each container's log that a failure shows.
tail_lines=30

say() {
    echo "up: $*"
}

fail() {
    echo "up: $*" >&2
    exit 1
}

usage() { # what is wrong
    echo "up: $1; see --help" >&2
    exit 2
}

if [[ ${1-} == --help || ${1-} == -h ]]; then
    sed -n '2,/^set/s/^#\( \|$\)//p' "${BASH_SOURCE[0]}"
    exit 0
fi
if [[ ${1-} == cluster ]]; then
    shift
    file=deploy/cluster.yml project=ampd-up-cluster
    servers=(ampd0 ampd1 ampd2 standby) workers=(worker0 worker1 worker2) others=(etcd0 etcd1 etcd2 prometheus) shards=3
    ports+=(PROMETHEUS_PORT)
    if [[ ${1-} == --kill ]]; then
        killed=${2-}
        [[ " ${servers[*]} ${workers[*]} ${others[*]} shard-0 shard-1 shard-2 " == *" ${killed:-none} "* ]] ||
            usage "--kill: give one of ${servers[*]} ${workers[*]} ${others[*]} shard-0 shard-1 shard-2, not \"$killed\""
        shift 2
    fi
fi
[[ ${1-} != -* ]] || usage "there is no option \"$1\""
[[ $# -le 1 ]] || usage "one CHECKPOINT is enough; \"$2\" is too much"
[[ ${1-./} == */* ]] || usage "there is no \"$1\": give cluster, or the file of the checkpoint with its folder, ./$1"
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

# "INDEX SERVICE" of every shard that is there, as any one of them tells it: its address is the name of its service.
owners() {
    local service found
    if [[ $shards -eq 1 ]]; then
        ! docker exec "$(container_of "${servers[0]}")" ampctl ready >/dev/null 2>&1 || echo "0 ${servers[0]}"
        return
    fi
    for service in "${servers[@]}"; do
        found=$(docker exec "$(container_of "$service")" ampctl cluster -o csv 2>/dev/null | awk -F, '
            NR == 1 { for (i = 1; i <= NF; i++) column[$i] = i; next }
            $column["state"] == "up" { sub(/:.*/, "", $column["address"]); print $column["shard"], $column["address"] }') || continue
        [[ -z $found ]] || break
    done
    [[ -z $found ]] || echo "$found"
}

prometheus_is_ready() {
    local answer
    exec 3<>"/dev/tcp/127.0.0.1/$PROMETHEUS_PORT" || return 1
    printf 'GET /-/ready HTTP/1.0\r\n\r\n' >&3
    read -r -t 10 answer <&3 || answer=''
    exec 3>&-
    [[ $answer == *' 200 '* ]]
}

# Docker's own view of the servers, in one call; then the shards themselves, since one that stands by is healthy, too. They are
# there when etcd is.
is_healthy() {
    local healthy
    healthy=$(docker ps --filter "label=com.docker.compose.project=$project" --format '{{.Status}}' | grep -c '(healthy)') || true
    [[ $healthy -eq ${#servers[@]} && $(owners | wc -l) -eq $shards ]] || return 1
    [[ ${#others[@]} -eq 0 ]] || prometheus_is_ready 2>/dev/null
}

await_health() {
    local deadline=$((SECONDS + healthy_timeout_s)) service
    until is_healthy; do
        ((SECONDS < deadline)) || fail "not healthy within $healthy_timeout_s s"
        for service in "${servers[@]}" "${others[@]}"; do
            ! has_ended "$service" || fail "$service has ended"
        done
        sleep 0.5
    done
}

# It prints some steps, not all: the number of the last one counts.
steps_of() { # SERVICE
    docker logs "$(container_of "$1")" 2>/dev/null | awk '/^step/ { n = $2 } END { print n + 0 }' || echo 0
}

await_steps() { # STEPS
    local deadline=$((SECONDS + timeout_s)) steps=0
    while ((steps < $1)); do
        ((SECONDS < deadline)) || fail "no $1 steps within $timeout_s s"
        ! has_ended "${workers[0]}" || return 0
        steps=$(steps_of "${workers[0]}")
        sleep 0.1
    done
}

# As Docker sees it: running, and healthy where it looks at that; a worker may have nothing left to do.
is_back() { # SERVICE
    case $(docker inspect --format '{{.State.Status}}{{with .State.Health}} {{.Status}}{{end}}' "$(container_of "$1")") in
    running | 'running healthy') return 0 ;;
    esac
    [[ " ${workers[*]} " == *" $1 "* ]] && has_ended "$1"
}

await_back() { # SERVICE
    local began=$SECONDS
    until is_back "$1"; do
        ((SECONDS - began < healthy_timeout_s)) || fail "$1 is not back within $healthy_timeout_s s"
        sleep 0.5
    done
    say "$1 is back after $((SECONDS - began)) s"
}

kill_one() {
    local steps before
    await_steps "$kill_after_steps"
    before=$(owners)
    [[ $killed != shard-* ]] || killed=$(awk -v shard="${killed#shard-}" '$1 == shard { print $2 }' <<<"$before")
    say "after $(steps_of "${workers[0]}") steps: killing $killed"
    "${compose[@]}" kill "$killed" >/dev/null 2>&1
    if [[ $'\n'$before$'\n' == *" $killed"$'\n'* ]]; then
        steps=$(steps_of "${workers[0]}")
        await_steps $((steps + kill_after_steps))
        ! has_ended "${workers[0]}" || fail "training was over before a standby had the place of $killed"
        [[ $(owners | wc -l) -eq $shards ]] || fail "no standby has taken the place of $killed"
        say "after $(steps_of "${workers[0]}") steps: a standby has its place; starting $killed again"
    fi
    "${compose[@]}" start "$killed" >/dev/null 2>&1
    await_back "$killed"
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

# Says the last line of what it reads, now and then.
show_progress() {
    local line='' last='' code=0 began=$SECONDS next=$((SECONDS + progress_s))
    until ((code == 1)); do # the end of the input; above 128: nothing came in time
        code=0
        IFS= read -r -t 1 line || code=$?
        last=${line:-$last}
        ((SECONDS >= next)) || continue
        say "building for $((SECONDS - began)) s: $(tr -dc '[:print:]' <<<"${last:0:100}")"
        next=$((SECONDS + progress_s))
    done
}

# Docker's older builder leaves the first stage of the image without a name. It is what the next build begins with: it gets one.
# Whatever of this project has none then is of an older build.
name_images() {
    local stage
    stage=$(docker images --quiet --filter dangling=true --filter label=ampd.image=build)
    stage=${stage%%$'\n'*} # the newest; head would end docker by SIGPIPE, and this script with it
    [[ -z $stage ]] || docker tag "$stage" ampd-build:local
    docker image prune --force --filter label=ampd.image >/dev/null
}

# What is left of an earlier run is taken down, so that no two may run at once, of whatever tree: names and images are the
# machine's. Runs with the same TMPDIR see each other.
lock=${TMPDIR:-/tmp}/ampd-up.lock
[[ -e $lock ]] || (umask 022 && : >"$lock")
exec 9<"$lock" || fail "$lock cannot be read: remove it, or chmod a+r it"
flock --nonblock 9 || fail "another deploy/up.sh runs: wait until it has ended, or end it"
"$root/deploy/base-image.sh"
trap take_down EXIT
trap 'exit 130' INT TERM
# What an interrupted run may have left.
take_down
# Said now, and not after the build.
for name in "${ports[@]}"; do
    port=${!name}
    ! (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null ||
        fail "port $port of this machine is in use: end what listens there, or name another one ($name=$((port + 10)) deploy/up.sh ...)"
done

if [[ ${UP_IMAGES-} != keep ]]; then
    log=${TMPDIR:-/tmp}/ampd-up-build.$$.log
    say "building the images; the first time takes a quarter of an hour on two cores ($log)"
    "${compose[@]}" build 2>&1 | tee "$log" | show_progress || {
        tail -n "$tail_lines" "$log" >&2
        fail "the images could not be built; the whole log is in $log"
    }
    rm -f "$log"
    name_images
fi

say "starting ${servers[*]} ${workers[*]} ${others[*]}"
began=$SECONDS
"${compose[@]}" up --detach --no-build >/dev/null || {
    show_logs
    fail "the containers could not be started; other ports are named by AMPD_PORT and PROMETHEUS_PORT"
}
created=$((SECONDS - began))
await_health
took=$((SECONDS - began))
say "healthy after $took s, of which $created s are docker's until all containers run$( ((took <= healthy_goal_s)) || echo ", later than the $healthy_goal_s s of an idle machine")"
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

mapfile -t owning < <(owners | cut -d ' ' -f 2)
[[ ${#owning[@]} -gt 0 ]] || fail "no ampd is ready any more"
[[ -z $checkpoint ]] || copy_checkpoint "${owning[0]}"
[[ ${#owning[@]} -eq $shards ]] || fail "not all $shards shards are ready"
# One that stands by would take the place of each that ends.
for service in "${servers[@]}"; do
    [[ " ${owning[*]} " == *" $service "* ]] || drain "$service"
done
say "draining ${owning[*]}"
for service in "${owning[@]}"; do
    drain "$service"
done
say "done; removing the containers, the network and the volumes"
