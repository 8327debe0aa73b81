#!/bin/sh
# grpc-go's interoperability test client against interop_server: every case of its interop_test.sh but the two of ORCA, a
# load report that ampd does not have. Usage: interop.sh INTEROP_SERVER plaintext|tls
set -eu

here=$(dirname "$0")
# shellcheck source=start.sh
. "$here/start.sh"
need interop_client

cases="empty_unary large_unary client_streaming server_streaming ping_pong empty_stream timeout_on_sleeping_server
    cancel_after_begin cancel_after_first_response status_code_and_message special_status_message custom_metadata
    unimplemented_method unimplemented_service rpc_soak channel_soak"

case $2 in
plaintext) start "$1" ;;
tls)
    sh "$here/certificates.sh" "$work" foo.test.google.fr
    start "$1" --tls --cert-file "$work/server.pem" --key-file "$work/server.key"
    set -- "$1" tls --use_tls --use_test_ca "--ca_file=$work/ca.pem" --server_host_override=foo.test.google.fr
    ;;
esac
kind=$2
shift 2

for name in $cases; do
    if timeout 120 "$tool" --server_host=127.0.0.1 "--server_port=$port" "$@" "--test_case=$name" >"$work/out" 2>&1; then
        ok "interop_${kind}_$name"
    else
        not_ok "interop_${kind}_$name" "$work/out"
    fi
done
exit "$failed"
