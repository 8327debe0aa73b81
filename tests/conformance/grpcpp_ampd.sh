#!/bin/sh
# The worker on grpc++ against ampd, plaintext. Usage: grpcpp_ampd.sh AMPD GRPCPP_AMPD
set -eu

work=$(mktemp -d)
: >"$work/log"
"$1" --data-dir "$work/data" --listen 127.0.0.1:0 >"$work/log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null && wait $server || true; rm -rf "$work"' EXIT
tries=0
until target=$(grep -o 'address=127.0.0.1:[0-9]*' "$work/log"); do
    tries=$((tries + 1))
    [ $tries -lt 200 ] || { cat "$work/log"; exit 1; }
    sleep 0.05
done
timeout 60 "$2" "${target#address=}"
