#!/usr/bin/env bash
# links.sh SIM: the simulator holds nothing of libuv, nghttp2, sqlite or openssl, linked or called.
set -uo pipefail
banned='uv_|nghttp2_|sqlite3_|SSL_|OPENSSL_'
status=0
if ldd "$1" | grep -E 'libuv|nghttp2|sqlite|libssl|libcrypto'; then
	echo "links.sh: the simulator is linked with one of these"
	status=1
fi
if nm "$1" | awk '{print $NF}' | grep -E "^($banned)"; then
	echo "links.sh: the simulator refers to one of these"
	status=1
fi
# A pattern that finds nothing anywhere would prove nothing.
# grep reads to the end: one that left early would break the pipe, which pipefail takes for a failure.
nm "$1" | awk '{print $NF}' | grep -x ampd_core_step >/dev/null || { echo "links.sh: $1 has no symbols to look at" && status=1; }
exit $status
