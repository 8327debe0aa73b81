#!/bin/sh
# grpc-health-probe, as Kubernetes uses it. Usage: probe.sh ECHO_SERVER
set -eu

here=$(dirname "$0")
# shellcheck source=start.sh
. "$here/start.sh"
need grpc-health-probe

start "$1"
# probe NAME EXIT_CODE ARGUMENTS...
probe() {
    name=$1 wanted=$2
    shift 2
    code=0
    "$tool" "-addr=127.0.0.1:$port" -connect-timeout 30s -rpc-timeout 30s "$@" >"$work/out" 2>&1 || code=$?
    if [ $code -eq "$wanted" ]; then ok "$name"; else not_ok "$name" "$work/out"; fi
}

probe probe_of_the_server 0
probe probe_of_a_service 0 -service=ampd.test.v1.Echo
probe probe_of_an_unknown_service_fails 3 -service=nobody
exit "$failed"
