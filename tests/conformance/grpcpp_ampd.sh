#!/bin/sh
# The worker on grpc++ against ampd. Usage: grpcpp_ampd.sh AMPD GRPCPP_AMPD plaintext|tls
set -eu

ampd=$1 worker=$2
work=$(mktemp -d)
here=$(dirname "$0")
: >"$work/log"
set -- "$3"
if [ "$1" = tls ]; then
    sh "$here/certificates.sh" "$work"
    set -- tls --cert-file "$work/server.pem" --key-file "$work/server.key" --trusted-ca-file "$work/ca.pem" \
        --client-cert-auth --client-cert-role=worker
fi
kind=$1
shift
"$ampd" --data-dir "$work/data" --listen 127.0.0.1:0 "$@" >"$work/log" 2>&1 &
server=$!
trap 'kill $server 2>/dev/null && wait $server || true; rm -rf "$work"' EXIT
tries=0
# Metrics have an address of their own in the log.
until target=$(grep -o 'msg="listening" address=127.0.0.1:[0-9]*' "$work/log"); do
    tries=$((tries + 1))
    [ $tries -lt 200 ] || { cat "$work/log"; exit 1; }
    sleep 0.05
done
set -- "${target#*address=}"
[ "$kind" = plaintext ] || set -- "$@" "$work/ca.pem" "$work/client.pem" "$work/client.key"
timeout 240 "$worker" "$@"
