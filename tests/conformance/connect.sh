#!/bin/sh
# connectrpc's conformance suite, gRPC server mode: with its own client and with grpc-go's. Usage: connect.sh CONNECT_SERVER
set -eu

here=$(dirname "$0")
# shellcheck source=start.sh
. "$here/start.sh"
need connectconformance

sed -n 's/^connect //p' "$here/exceptions.txt" >"$work/known-failing"
if timeout 600 "$tool" --mode server --conf "$here/connect.yaml" --known-failing "@$work/known-failing" --parallel 2 \
    -- "$1" >"$work/out" 2>&1; then
    grep -E '^Total cases|passed' "$work/out"
    ok "connect_conformance"
else
    not_ok "connect_conformance" "$work/out"
fi
exit "$failed"
