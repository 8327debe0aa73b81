#!/bin/sh
# ghz: thousands of calls of a foreign load generator, by reflection, all of them answered OK. Usage: load.sh ECHO_SERVER
set -eu

here=$(dirname "$0")
# shellcheck source=start.sh
. "$here/start.sh"
need ghz

start "$1"
# load NAME ARGUMENTS...: all of the calls are OK.
load() {
    name=$1
    shift
    "$tool" --insecure --timeout 60s -O json "$@" "127.0.0.1:$port" >"$work/out" 2>&1 || true
    if /usr/bin/python3 -c '
import json, sys
report = json.load(sys.stdin)
print("%s: %d calls, %.0f a second, statuses %s" % (sys.argv[1], report["count"], report["rps"],
                                                     report["statusCodeDistribution"]))
sys.exit(report["statusCodeDistribution"] != {"OK": report["count"]})' "$name" <"$work/out"; then
        ok "$name"
    else
        not_ok "$name" "$work/out"
    fi
}

load ghz_unary_on_one_connection -n 5000 -c 50 --call ampd.test.v1.Echo.Unary -d '{"data":"aGFsbG8="}'
load ghz_unary_on_many_connections -n 5000 -c 50 --connections 20 --call ampd.test.v1.Echo.Unary -d '{"data":"aGFsbG8="}'
load ghz_server_streams -n 200 -c 20 --call ampd.test.v1.Echo.Repeat -d '{"messages":"20","size":"10000"}'
load ghz_health -n 500 -c 10 --call grpc.health.v1.Health.Check -d '{}'
exit "$failed"
