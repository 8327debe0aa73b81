# shellcheck shell=sh
# Sourced by the scripts of this folder: the foreign program, a server, and lines that test.sh counts. Sets tool, work, port.

# need TOOL: its path in $tool, or the end of the script with the reason.
need() {
    # shellcheck disable=SC2154 # the caller's folder
    if ! tool=$(sh "$here/fetch.sh" "$1"); then
        echo "$tool"
        exit 77
    fi
}

work=$(mktemp -d)
server=
stop() {
    [ -z "$server" ] || { kill "$server" && wait "$server"; } 2>/dev/null || true
    server=
}
trap 'stop; rm -rf "$work"' EXIT

# start PROGRAM ARGUMENTS...: it says "port N", which goes to $port.
start() {
    : >"$work/port"
    "$@" >"$work/port" &
    server=$!
    tries=0
    while [ ! -s "$work/port" ]; do
        tries=$((tries + 1))
        [ $tries -lt 1200 ] || { echo "$1 did not start"; exit 1; }
        sleep 0.05
    done
    # shellcheck disable=SC2034 # the caller's
    port=$(cut -d' ' -f2 "$work/port")
}

ok() { echo "[       OK ] $1"; }
failed=0
not_ok() { # NAME FILE
    echo "[  FAILED  ] $1"
    tail -n 40 "$2"
    # shellcheck disable=SC2034 # the caller's exit code
    failed=1
}
