#!/bin/sh
# grpcurl with no .proto at hand: lists, describes and calls echo_server by reflection. Usage: grpcurl.sh ECHO_SERVER
set -eu

here=$(dirname "$0")
# shellcheck source=start.sh
. "$here/start.sh"
need grpcurl

start "$1"
target=127.0.0.1:$port

# expect WHAT PATTERN ARGUMENTS...: the output of grpcurl has a line that matches.
expect() {
    what=$1 pattern=$2
    shift 2
    "$tool" -plaintext -max-time 60 "$@" >"$work/out" 2>&1 || true
    if ! grep -q -- "$pattern" "$work/out"; then
        echo "no \"$pattern\" in"
        not_ok "grpcurl: $what" "$work/out"
        return
    fi
    ok "grpcurl: $what"
}

expect "services are listed" '^ampd.test.v1.Echo$' "$target" list
expect "health is listed" '^grpc.health.v1.Health$' "$target" list
expect "methods are listed" '^ampd.test.v1.Echo.Collect$' "$target" list ampd.test.v1.Echo
expect "a service is described" 'rpc Collect ( stream .ampd.test.v1.Payload )' "$target" describe ampd.test.v1.Echo
expect "a message is described" 'uint32 crc32c = 3;' "$target" describe ampd.test.v1.Summary
expect "an enum value's enum is described" 'NOT_SERVING = 2' "$target" \
    describe grpc.health.v1.HealthCheckResponse.ServingStatus
expect "an unknown symbol is an error" 'Symbol not found' "$target" describe no.such.Thing
expect "a unary call" '"data": "aGFsbG8="' -d '{"data":"aGFsbG8="}' "$target" ampd.test.v1.Echo/Unary
expect "a server stream" '"data": "AAEC"' -d '{"messages":2,"size":3}' "$target" ampd.test.v1.Echo/Repeat
expect "a client stream" '"messages": "2"' -d '{"data":"AA=="} {"data":"AQ=="}' "$target" ampd.test.v1.Echo/Collect
expect "a status" 'Code: FailedPrecondition' -d '{"code":9,"message":"no"}' "$target" ampd.test.v1.Echo/Fail
expect "an ErrorInfo" '"reason": "MODEL_DONE"' -d '{"code":9,"reason":"MODEL_DONE"}' "$target" ampd.test.v1.Echo/Fail
expect "an unimplemented row" 'Code: Unimplemented' -d '{}' "$target" ampd.test.v1.Echo/Missing
expect "health" '"status": "SERVING"' "$target" grpc.health.v1.Health/Check

# What grpc-go says of trailers that cut a message, which docs/grpc.md tells.
stop
start "$1" 127.0.0.1:0 write_stall_ms=1000
"$tool" -plaintext -max-time 60 -d '{"messages":100,"size":1048576}' "127.0.0.1:$port" ampd.test.v1.Echo/Repeat \
    2>"$work/out" | { sleep 4; cat >/dev/null; } || true
if grep -q 'Code: Internal' "$work/out" && grep -q 'Message: unexpected EOF' "$work/out"; then
    ok "grpcurl: a stream that it has not read ends inside a message"
else
    not_ok "grpcurl: a stream that it has not read ends inside a message" "$work/out"
fi
exit "$failed"
