#!/usr/bin/env bash
# local-cluster.sh: a cluster on this machine without Docker: three etcd, the shards of ampd, a standby, workers that train
# the digits example, and Prometheus. As root each process has a network namespace of its own (isolated: nothing of it is seen
# in the machine's network), else they share the loopback interface.
#
#   local-cluster.sh up [OPTIONS]             starts it, and ends when it is healthy; the processes go on
#   local-cluster.sh hold [OPTIONS]           up; then goes on until its standard input ends, and takes all down
#   local-cluster.sh run [OPTIONS]            up; waits until the workers have ended, drains, and takes all down
#   local-cluster.sh down [--dir DIR]         drains, ends all processes and removes the namespaces; data and logs stay
#   local-cluster.sh status [--dir DIR]       NAME PID ADDRESS of each; PID is - where it does not run
#   local-cluster.sh start NAME [--dir DIR]   starts one again
#   local-cluster.sh kill NAME [SIGNAL] [--dir DIR]    default KILL; returns at once
#   local-cluster.sh exec NAME [--dir DIR] -- COMMAND...    runs a command where NAME is in the network; "operator" is anywhere
#
# OPTIONS, with the defaults in brackets:
#   --dir DIR          data, logs, process ids and cluster.env, which names all addresses [build/local-cluster]. A cluster that was
#                      there before goes on: with its data, at its addresses, and its logs are added to
#   --bin DIR          where ampd, ampctl and digits are [build/release/bin]
#   --shards K [3]  --standbys S [1]  --workers W [3]  --etcd N [3; 0: a fixed list, --peers, and no standby]
#   --no-prometheus    without Prometheus; it is also left out where the package is not installed
#   --loopback         no namespaces, also as root
#   --rate RATE        limits each link in both directions, as tc(8) writes it (1gbit); namespaces only
#   --ampd OPTION      one more option of every ampd; any number of times
#   --digits OPTION    one more option of every worker; any number of times
#
# Exit code: 0; 1: something did not come up, or a worker or an ampd ended with another code than 0; 2: wrong usage.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# From the first process to the last that is healthy; etcd needs a few seconds to elect.
start_timeout_s=60
# Workers of `run`; a drain takes at most a minute, unless --drain-time says otherwise.
run_timeout_s=${RUN_TIMEOUT_S:-900} drain_timeout_s=${DRAIN_TIMEOUT_S:-90}
# Ports below the range that the kernel takes for connections; each cluster on loopback has so many.
port_first=20000 port_last=30000 ports_each=512

command='' dir=$root/build/local-cluster bin=$root/build/release/bin
shards=3 standbys=1 workers=3 etcds=3 prometheus=1 mode='' rate='' ampd_options=() digits_options=()
name='' signal=KILL rest=() shared=0

say() { echo "local-cluster: $*"; }

fail() {
    echo "local-cluster: $*" >&2
    exit 1
}

help() {
    sed -n '2,/^set/s/^#\( \|$\)//p' "${BASH_SOURCE[0]}"
}

usage() { # what is wrong
    echo "local-cluster: $1; see --help" >&2
    exit 2
}

number() { # option, value, least, most
    [[ $2 =~ ^(0|[1-9][0-9]{0,2})$ && $2 -ge $3 && $2 -le $4 ]] || usage "$1: give a number from $3 to $4, not \"$2\""
}

parse() {
    [[ $# -gt 0 ]] || usage "give a command: up, hold, run, down, status, start, kill or exec"
    if [[ $1 == --help || $1 == -h ]]; then
        help
        exit 0
    fi
    command=$1 && shift
    case $command in
    up | hold | run | down | status) ;;
    start | exec)
        [[ $# -gt 0 && $1 != -* ]] || usage "$command: give the NAME of a process"
        name=$1 && shift
        ;;
    kill)
        [[ $# -gt 0 && $1 != -* ]] || usage "$command: give the NAME of a process"
        name=$1 && shift
        [[ $# -eq 0 || $1 == -* ]] || { signal=$1 && shift; }
        ;;
    *) usage "there is no command \"$command\"" ;;
    esac
    while [[ $# -gt 0 ]]; do
        case $1 in
        --) shift && rest=("$@") && break ;;
        --no-prometheus) prometheus=0 && shift && continue ;;
        --loopback) mode=loopback && shift && continue ;;
        --dir | --bin | --shards | --standbys | --workers | --etcd | --rate | --ampd | --digits) ;;
        *) usage "there is no option \"$1\"" ;;
        esac
        [[ $# -gt 1 ]] || usage "$1 needs a value"
        case $1 in
        --dir) dir=$2 ;;
        --bin) bin=$2 ;;
        --shards) number "$1" "$2" 1 64 && shards=$2 ;;
        --standbys) number "$1" "$2" 0 8 && standbys=$2 ;;
        --workers) number "$1" "$2" 0 64 && workers=$2 ;;
        --etcd) number "$1" "$2" 0 7 && etcds=$2 ;;
        --rate) rate=$2 ;;
        --ampd) ampd_options+=("$2") ;;
        --digits) digits_options+=("$2") ;;
        esac
        shift 2
    done
}

# ---- where things are ----

# The names of all processes, in the order in which they are started.
names() {
    local i
    for ((i = 0; i < etcds; i++)); do echo "etcd$i"; done
    for ((i = 0; i < shards; i++)); do echo "ampd$i"; done
    for ((i = 0; i < standbys; i++)); do echo "standby$i"; done
    ((prometheus == 0)) || echo prometheus
    for ((i = 0; i < workers; i++)); do echo "worker$i"; done
}

# The last number of its address; on loopback, where its ports begin.
place_of() { # NAME
    local i=${1//[a-z]/}
    case $1 in
    etcd*) echo $((1 + i)) ;;
    standby*) echo $((10 + i)) ;;
    ampd*) echo $((20 + i)) ;;
    worker*) echo $((100 + i)) ;;
    prometheus) echo 200 ;;
    operator) echo 254 ;;
    esac
}

host_of() { # NAME
    if [[ $mode == loopback ]]; then echo 127.0.0.1; else echo "10.77.0.$(place_of "$1")"; fi
}

# KIND 0 is what clients connect to, 1 its second port (etcd's peers, ampd's metrics).
address_of() { # NAME KIND
    local ports=(7420 7421)
    case $1 in
    etcd*) ports=(2379 2380) ;;
    prometheus) ports=(9090 0) ;;
    esac
    if [[ $mode == loopback ]]; then ports=($((port_base + 2 * $(place_of "$1"))) $((port_base + 2 * $(place_of "$1") + 1))); fi
    echo "$(host_of "$1"):${ports[$2]}"
}

# ADDRESS,ADDRESS,... of all processes whose names begin with one of these.
addresses_of() { # KIND PREFIX...
    local kind=$1 prefix_of list=() node
    shift
    for prefix_of in "$@"; do
        for node in $(names); do
            [[ $node != "$prefix_of"[0-9]* ]] || list+=("$(address_of "$node" "$kind")")
        done
    done
    local IFS=,
    echo "${list[*]}"
}

are_free() { # BASE: of a run of ports none is in use just now
    local port
    for port in 2 3 20 21 40 41 42 43 400; do
        ! (: <"/dev/tcp/127.0.0.1/$(($1 + port))") 2>/dev/null || return 1
    done
}

free_ports() {
    local try base
    for ((try = 0; try < 50; try++)); do
        base=$((port_first + RANDOM % ((port_last - port_first) / ports_each) * ports_each))
        ! are_free "$base" || { echo "$base" && return; }
    done
    fail "no free ports between $port_first and $port_last"
}

# ---- the network ----

namespace_of() { echo "$prefix-$1"; }

can_have_namespaces() {
    [[ $(id -u) -eq 0 ]] && command -v ip >/dev/null && command -v nsenter >/dev/null || return 1
    ip netns add "$prefix-try" 2>/dev/null || return 1
    ip netns del "$prefix-try"
}

limit() { # NAMESPACE INTERFACE
    [[ -z $rate ]] || ip netns exec "$1" tc qdisc add dev "$2" root tbf rate "$rate" burst 256kb latency 100ms
}

# One namespace with a bridge, where the operator is, and one for each process with a link to it.
make_network() {
    local middle node space
    middle=$(namespace_of operator)
    ip netns add "$middle"
    ip -n "$middle" link set lo up
    ip -n "$middle" link add bridge type bridge
    ip -n "$middle" address add "$(host_of operator)/24" dev bridge
    ip -n "$middle" link set bridge up
    for node in $(names); do
        space=$(namespace_of "$node")
        ip netns add "$space"
        ip link add eth0 netns "$space" type veth peer name "$node" netns "$middle"
        ip -n "$middle" link set "$node" master bridge up
        ip -n "$space" link set lo up
        ip -n "$space" address add "$(host_of "$node")/24" dev eth0
        ip -n "$space" link set eth0 up
        limit "$space" eth0
        limit "$middle" "$node"
    done
}

remove_network() {
    local space
    [[ $mode == namespaces ]] || return 0
    for space in $(ip netns list | awk -v begin="$prefix-" 'index($1, begin) == 1 { print $1 }'); do
        ip netns del "$space" || true
    done
}

# Sets mode and port_base. The members of an etcd know each other by the addresses that they were first started with: a cluster
# whose etcd has data is where it was before.
choose_network() {
    local was_mode='' was_base=0 was_etcds=0
    if [[ -d $dir/etcd0 && -f $dir/cluster.env ]] && ((etcds > 0)); then
        read -r was_mode was_base was_etcds < <(read_env && echo "$mode $port_base $etcds")
        [[ ${mode:-$was_mode} == "$was_mode" && $etcds == "$was_etcds" ]] ||
            fail "the cluster in $dir was made with --etcd $was_etcds ($was_mode); give the same, or another --dir"
        mode=$was_mode
    fi
    if [[ $mode != loopback ]] && can_have_namespaces; then
        mode=namespaces
    else
        [[ $was_mode != namespaces ]] ||
            fail "the cluster in $dir was made in namespaces, which root alone can make; give another --dir"
        mode=loopback
    fi
    [[ $mode == namespaces || -z $rate ]] || fail "--rate needs namespaces, which root alone can make"
    port_base=$was_base
    [[ $mode == loopback ]] || return 0
    ((was_base > 0)) || port_base=$(free_ports)
    are_free "$port_base" ||
        fail "the ports of the cluster in $dir ($port_base to $((port_base + ports_each - 1))) are in use; stop the programs that use them, or give another --dir"
}

# ---- processes ----

# Where a process of this name is in the network; the words in front of a command.
inside=()
set_inside() { # NAME
    inside=()
    [[ $mode != namespaces ]] || inside=(nsenter "--net=/run/netns/$(namespace_of "$1")" --)
}

# When the process began, in ticks since the machine did: with it an id is not taken for that of another one.
start_of() { # PID
    sed 's/^.*) //' "/proc/$1/stat" 2>/dev/null | cut -d ' ' -f 20
}

# The id of the process if it runs; nothing else.
pid_of() { # NAME
    local pid started
    [[ -f $dir/$1.pid ]] && read -r pid started <"$dir/$1.pid" || return 0
    [[ -n $pid && -n $started && $(start_of "$pid") == "$started" && $(sed 's/^.*) //' "/proc/$pid/stat" 2>/dev/null) != Z* ]] || return 0
    echo "$pid"
}

command_of() { # NAME: its words, one a line
    local i=${1//[a-z]/} self node list=()
    self=$(address_of "$1" 0)
    case $1 in
    etcd*)
        for node in $(names); do
            [[ $node != etcd* ]] || list+=("$node=http://$(address_of "$node" 1)")
        done
        printf '%s\n' etcd --name "$1" --data-dir "$dir/$1" --log-outputs stderr --logger zap --pre-vote \
            --initial-cluster "$(IFS=, && echo "${list[*]}")" --initial-cluster-token "$prefix" \
            --listen-client-urls "http://$self" --advertise-client-urls "http://$self" \
            --listen-peer-urls "http://$(address_of "$1" 1)" --initial-advertise-peer-urls "http://$(address_of "$1" 1)"
        ;;
    ampd* | standby*)
        printf '%s\n' "$bin/ampd" --data-dir "$dir/$1" --listen "$self" --metrics-listen "$(address_of "$1" 1)"
        if ((etcds > 0)); then
            printf '%s\n' --cluster "etcd://$(addresses_of 0 etcd)/$cluster_name" --shards "$shards"
            [[ $shared != 1 ]] || printf '%s\n' --checkpoint-dir "$dir/checkpoints"
        elif ((shards > 1)); then
            printf '%s\n' --peers "$(addresses_of 0 ampd)" --shard "$i"
        fi
        [[ $mode == loopback ]] || echo --insecure
        ((${#ampd_options[@]} == 0)) || printf '%s\n' "${ampd_options[@]}"
        ;;
    worker*)
        printf '%s\n' env "RANK=$i" "WORLD_SIZE=$workers" "$bin/digits" --connect "$(addresses_of 0 ampd standby)" \
            --data "$root/examples/digits/digits.csv"
        ((${#digits_options[@]} == 0)) || printf '%s\n' "${digits_options[@]}"
        ;;
    prometheus)
        printf '%s\n' prometheus "--config.file=$dir/prometheus/prometheus.yml" \
            "--storage.tsdb.path=$dir/prometheus/data" "--web.listen-address=$self"
        ;;
    esac
}

start() { # NAME
    local words
    mapfile -t words < <(command_of "$1")
    set_inside "$1"
    # A session of its own, so that no terminal ends it.
    setsid "${inside[@]}" "${words[@]}" >>"$dir/$1.log" 2>&1 </dev/null &
    echo "$! $(start_of $!)" >"$dir/$1.pid"
    # What is killed at the end is not worth a word.
    case $1 in etcd* | prometheus | standby*) disown "$!" ;; esac
}

end_all() {
    local node pid deadline=$((SECONDS + 10))
    for node in $(names); do
        pid=$(pid_of "$node")
        [[ -z $pid ]] || kill -KILL "$pid" 2>/dev/null || true
    done
    for node in $(names); do
        while [[ -n $(pid_of "$node") ]] && ((SECONDS < deadline)); do sleep 0.05; done
        rm -f "$dir/$node.pid"
    done
}

take_down() {
    end_all
    remove_network
}

# ---- healthy ----

await() { # what, seconds, command...: until the command succeeds
    local what=$1 deadline=$((SECONDS + $2)) node
    shift 2
    until "$@"; do
        for node in $(names); do
            if [[ -f $dir/$node.pid && -z $(pid_of "$node") && $node != worker* ]]; then
                tail -n 5 "$dir/$node.log" >&2
                fail "$node has ended; its log is $dir/$node.log"
            fi
        done
        ((SECONDS < deadline)) || fail "$what: not reached in time; the logs are in $dir"
        sleep 0.1
    done
}

is_ready() { # NAME
    set_inside operator
    "${inside[@]}" timeout 5 "$bin/ampctl" --endpoint "$(address_of "$1" 0)" ready >/dev/null 2>&1
}

write_targets() { # FILE PREFIX KIND...
    local file=$1 kind=$2 list
    shift 2
    list=$(addresses_of "$kind" "$@")
    printf '[{"targets": [%s], "labels": {"cluster": "%s"}}]\n' \
        "$([[ -z $list ]] || printf '"%s"' "${list//,/\", \"}")" "$cluster_name" >"$dir/prometheus/targets/$file"
}

configure_prometheus() {
    mkdir -p "$dir/prometheus/targets"
    cp "$root/deploy/prometheus/prometheus.yml" "$root/deploy/prometheus/rules.yml" "$dir/prometheus/"
    write_targets ampd.json 1 ampd standby
    write_targets etcd.json 0 etcd
}

# For `down` and others, and for who wants to know the addresses. Values are plain words.
write_env() {
    local node
    {
        printf '%s=%q\n' prefix "$prefix" mode "$mode" port_base "$port_base" bin "$bin" shards "$shards" \
            standbys "$standbys" workers "$workers" etcds "$etcds" prometheus "$prometheus" shared "$shared" cluster_name "$cluster_name"
        declare -p ampd_options digits_options | sed 's|^declare -a|declare -ga|' # read inside a function
        for node in $(names); do
            [[ $node == worker* ]] || printf 'ADDRESS_%s=%s\n' "$node" "$(address_of "$node" 0)"
        done
        printf 'ENDPOINTS=%s\n' "$(addresses_of 0 ampd standby)"
    } >"$dir/cluster.env"
}

read_env() {
    [[ -f $dir/cluster.env ]] || fail "there is no cluster in $dir"
    # shellcheck disable=SC1091
    source "$dir/cluster.env"
}

look_for_programs() {
    local program options
    for program in ampd ampctl digits; do
        [[ -x $bin/$program ]] || fail "no program $program in $bin; build first (./test.sh --build-only), or give --bin"
    done
    options=$("$bin/ampd" --help)
    if ((etcds > 0)) && [[ $options != *" --cluster="* ]]; then
        say "this ampd has no --cluster: the shards get a fixed list, without etcd and standby"
        etcds=0
    fi
    # Without it a standby has nothing to restore a lost shard's part from.
    if [[ $options == *" --checkpoint-dir="* ]]; then shared=1; fi
    if ((etcds > 0)); then
        command -v etcd >/dev/null || fail "there is no etcd here; scripts/packages.sh cluster installs it, and --etcd 0 does without"
    else
        standbys=0
    fi
    if ((prometheus == 1)) && ! command -v prometheus >/dev/null; then
        say "there is no prometheus here (scripts/packages.sh cluster installs it); going on without"
        prometheus=0
    fi
}

up() {
    local node
    look_for_programs
    mkdir -p "$dir"
    dir=$(cd "$dir" && pwd) bin=$(cd "$bin" && pwd)
    if [[ -f $dir/cluster.env ]] && (read_env && for node in $(names); do [[ -z $(pid_of "$node") ]] || exit 0; done && exit 1); then
        fail "a cluster runs in $dir; take it down first"
    fi
    # Short, and another one for each folder: interfaces and namespaces are named by it.
    prefix=ac$(printf '%s' "$dir" | cksum | cut -d ' ' -f 1) port_base=0 cluster_name=digits
    choose_network
    write_env
    remove_network
    [[ $mode == loopback ]] || make_network
    mkdir -p "$dir/checkpoints"
    for node in $(names); do
        [[ $node != etcd* && $node != ampd* ]] || start "$node"
    done
    for ((node = 0; node < shards; node++)); do
        await "ampd$node is ready" "$start_timeout_s" is_ready "ampd$node"
    done
    ((prometheus == 0)) || configure_prometheus
    for node in $(names); do
        [[ $node == etcd* || $node == ampd* ]] || start "$node"
    done
    say "$shards shards are ready ($mode) at $(addresses_of 0 ampd); data, logs and addresses: $dir"
}

# ---- run ----

workers_have_ended() {
    local i
    for ((i = 0; i < workers; i++)); do
        [[ -z $(pid_of "worker$i") ]] || return 1
    done
}

code=0
collect() { # NAME: its exit code, if this script has started it
    local pid status=0
    read -r pid _ <"$dir/$1.pid"
    wait "$pid" 2>/dev/null || status=$?
    if [[ $status -ne 0 ]]; then
        tail -n 5 "$dir/$1.log" >&2
        echo "local-cluster: $1 ended with $status; its log is $dir/$1.log" >&2
        code=1
    fi
}

is_gone() { [[ -z $(pid_of "$1") ]]; }

drain() { # NAME
    local deadline=$((SECONDS + drain_timeout_s))
    kill -TERM "$(pid_of "$1")" 2>/dev/null || true
    until is_gone "$1" || ((SECONDS >= deadline)); do sleep 0.1; done
    is_gone "$1" || fail "$1 has not drained within $drain_timeout_s s; DRAIN_TIMEOUT_S of the environment gives it longer"
}

# First whoever stands by, which may be another one than at the beginning: it would take the place of each that ends.
drain_all() {
    local node serving=()
    for node in $(names); do
        [[ $node == ampd* || $node == standby* ]] || continue
        [[ -n $(pid_of "$node") ]] || continue
        if is_ready "$node"; then serving+=("$node"); else drain "$node"; fi
    done
    for node in "${serving[@]}"; do
        drain "$node"
        [[ $node == standby* || $command == down ]] || collect "$node" # those are not waited for as children
    done
}

run() {
    local i deadline said=0
    [[ ! -f $dir/worker0.log ]] || said=$(stat --format %s "$dir/worker0.log") # by a run before
    trap take_down EXIT
    trap 'exit 130' INT TERM
    up
    deadline=$((SECONDS + run_timeout_s))
    until workers_have_ended; do
        ((SECONDS < deadline)) || fail "the workers have not ended within $run_timeout_s s"
        sleep 0.2
    done
    for ((i = 0; i < workers; i++)); do
        collect "worker$i"
    done
    tail -c "+$((said + 1))" "$dir/worker0.log" | grep '^digits: ' || code=1
    drain_all
    exit "$code"
}

hold() {
    trap take_down EXIT
    trap 'exit 130' INT TERM
    up
    echo ready
    cat >/dev/null # until whoever holds it ends
}

status() {
    local node pid
    for node in $(names); do
        pid=$(pid_of "$node")
        printf '%s %s %s\n' "$node" "${pid:--}" "$(address_of "$node" 0)"
    done
}

is_name() { # NAME
    [[ $'\n'$(names)$'\n' == *$'\n'"$1"$'\n'* ]] # no grep -q: `names` would be ended while it writes
}

parse "$@"
case $command in
up)
    trap '[[ $? -eq 0 ]] || take_down' EXIT
    up
    trap - EXIT
    ;;
hold) hold ;;
run) run ;;
*)
    read_env
    dir=$(cd "$dir" && pwd)
    ;;&
down)
    trap take_down EXIT
    drain_all
    ;;
status) status ;;
start | kill | exec)
    is_name "$name" || [[ $command == exec && $name == operator ]] || fail "there is no $name in this cluster"
    ;;&
start)
    [[ -z $(pid_of "$name") ]] || fail "$name runs already"
    start "$name"
    ;;
kill)
    [[ -n $(pid_of "$name") ]] || fail "$name does not run"
    kill -s "$signal" "$(pid_of "$name")"
    ;;
exec)
    [[ ${#rest[@]} -gt 0 ]] || usage "exec: give a command after --"
    set_inside "$name"
    exec "${inside[@]}" "${rest[@]}"
    ;;
esac
