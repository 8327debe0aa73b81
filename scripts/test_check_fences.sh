#!/usr/bin/env bash
# Proves that check_fences.py sees each kind of violation: plants one at a time in a clean tree of its own and expects
# the check to fail with the file, the line and the rule; and plants what is allowed, and expects silence.
set -euo pipefail

check=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/check_fences.py
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failures=0
cases=0

fail() {
    echo "FAILED: $1" >&2
    failures=$((failures + 1))
}

# plant PATH TEXT: the tree holds this one file, its text on line 2.
plant() {
    rm -rf "${tree:?}"/*
    mkdir -p "$tree/$(dirname "$1")"
    printf '/* planted */\n%s\n' "$2" >"$tree/$1"
    cases=$((cases + 1))
}

# refused PATH TEXT RULE [LINE]: a violation, on line 2 unless told, whose text contains RULE.
refused() {
    plant "$1" "$2"
    local out at="$1:${4:-2}: "
    if out=$("$check" "$tree"); then
        fail "$1 with '$2' was let through"
    elif ! grep -F "$at" <<<"$out" | grep -qF "$3"; then
        fail "$1 with '$2': expected '$at' and '$3', got: $out"
    fi
}

allowed() {
    plant "$1" "$2"
    local out
    out=$("$check" "$tree") || fail "$1 with '$2' was refused: $out"
}

# Who may include whom: one foreign room for each room.
refused base/a.c '#include "amp/dtype.h"' 'base/ may include only'
refused amp/a.c '#include "rpc/call.h"' 'amp/ may include only'
refused proto/a.c '#include "rpc/call.h"' 'proto/ may include only'
refused rpc/a.c '#include "proto/ampd/v1/codec.h"' 'rpc/ may include only'
refused rpc/a.c '#include "ampd/v1/scale.pb.h"' 'rpc/ may include only'
refused rpc/a.c '#include "amp/dtype.h"' 'rpc/ may include only'
refused storage/a.c '#include "server/core/core.h"' 'storage/ may include only'
refused server/core/a.c '#include "storage/store.h"' 'server/core/ may include only'
refused server/core/a.c '#include "server/io/loop.h"' 'server/core/ may include only'
refused server/core/a.c '#include "rpc/call.h"' 'server/core/ may include only'
refused server/io/a.c '#include "client/io/client.h"' 'server/io/ may include only'
refused server/main.c '#include "client/ampclient.h"' 'server/ may include only'
refused client/core/a.c '#include "server/core/core.h"' 'client/core/ may include only'
refused client/core/a.c '#include "rpc/call.h"' 'client/core/ may include only'
refused client/io/a.c '#include "server/io/loop.h"' 'client/io/ may include only'
refused client/ampctl/a.c '#include "storage/store_sqlite.h"' 'client/ampctl/ may include only'
refused client/ampclient.h '#include "client/io/client.h"' 'client/ may include only'
refused examples/digits/a.c '#include "client/io/client.h"' 'examples/ may include only'
refused examples/digits/a.c '#include "base/err.h"' 'examples/ may include only'
refused amp/a.c '#include "dtype.h"' 'written from the root'
refused amp/a.c '#include "../base/err.h"' 'written from the root'
refused oddments/a.c 'int a;' 'outside the rooms' 1
allowed server/core/a.c '#include "storage/records.h"'
allowed rpc/a.c '#include "proto/grpc/health.h"'
allowed server/main.c '#include "server/io/loop.h"'
allowed client/ampctl/main.c '#include "client/io/client.h"'
allowed client/ampctl/main.c '#include "storage/checkpoint.h"'
allowed tests/sim/a.c '#include "server/core/core.h"'
allowed bench/a.c '#include "rpc/call.h"'

# Third-party headers.
refused server/core/a.c '#include <uv.h>' '<uv.h> only in'
refused rpc/stream.c '#include <uv.h>' '<uv.h> only in'
refused tests/sim/a.c '#include <uv.h>' 'the simulator knows no uv'
refused rpc/stream.c '#include <nghttp2/nghttp2.h>' 'nghttp2 only in'
refused server/io/a.c '#include <nghttp2/nghttp2.h>' 'nghttp2 only in'
refused server/io/a.c '#include <openssl/ssl.h>' 'openssl only in'
refused rpc/io/conn.c '#include <openssl/err.h>' 'openssl only in'
refused rpc/io/tls.h '#include <openssl/ssl.h>' 'openssl only in'
refused tests/sim/a.c '#include <openssl/evp.h>' 'the simulator knows no openssl'
refused server/io/a.c '#include <sqlite3.h>' 'sqlite3 only in'
refused server/io/a.c '#include <pb_decode.h>' 'nanopb only in'
refused server/io/a.c '#include "proto/ampd/v1/scale.pb.h"' 'nanopb only in'
refused storage/a.c '#include <pb.h>' 'nanopb only in'
refused amp/finite.c '#include <immintrin.h>' 'intrinsics only in'
refused amp/kernels_ref.c '#include <immintrin.h>' 'intrinsics only in'
refused amp/kernels_double.h '#include <immintrin.h>' 'intrinsics only in'
refused amp/finite.c '#include <arm_neon.h>' 'intrinsics only in'
refused amp/finite.c 'int a(void) { return __builtin_ia32_stmxcsr(); }' 'intrinsics only in'
allowed server/io/a.c '#include <uv.h>'
allowed rpc/io/a.c '#include <uv.h>'
allowed server/main.c '#include <uv.h>'
allowed rpc/h2_session.c '#include <nghttp2/nghttp2.h>'
allowed rpc/io/tls_session.c '#include <openssl/ssl.h>'
allowed server/io/tokens.c '#include <openssl/evp.h>'
allowed storage/a.c '#include <sqlite3.h>'
allowed proto/a.c '#include "proto/ampd/v1/scale.pb.h"'
allowed amp/kernels_avx2.c '#include <immintrin.h>'
allowed amp/kernels_avx2_adam_parts.h '#include <immintrin.h>'

# What only the rim may ask of the system.
refused server/core/a.c 'int64_t a(void) { return clock_gettime(CLOCK_MONOTONIC, 0); }' 'clocks only in'
refused storage/a.c 'time_t a(void) { return time(NULL); }' 'clocks only in'
refused base/a.c 'void a(void) { gettimeofday(0, 0); }' 'clocks only in'
refused rpc/a.c 'uint64_t a(void) { return uv_hrtime(); }' 'clocks only in'
refused rpc/a.c 'uint64_t a(void) { return uv_now(loop); }' 'clocks only in'
refused server/core/a.c 'void a(void) { nanosleep(&t, 0); }' 'clocks only in'
refused server/core/a.c 'void a(void) { getrandom(b, 8, 0); }' 'randomness only in'
refused amp/a.c 'int a(void) { return rand(); }' 'randomness only in'
refused storage/a.c 'int a(void) { return open("/dev/urandom", 0); }' 'randomness only in'
refused amp/a.c 'char *a(void) { return getenv("AMPD_ISA"); }' 'the environment only in'
refused server/core/a.c 'void a(void) { exit(1); }' 'exit only in'
refused storage/a.c 'void a(void) { _exit(1); }' 'exit only in'
allowed server/io/a.c 'int64_t a(void) { return clock_gettime(CLOCK_MONOTONIC, 0); }'
allowed server/config.c 'char *a(void) { return getenv("AMPD_ISA"); }'
allowed server/main.c 'int main(void) { exit(1); }'
allowed client/ampctl/ready.c 'void a(void) { exit(1); }'
allowed server/core/a.c '/* exit(1), time(NULL) */ void a(void) { amp_autocast_exit(); clock->time(0); s.rand(); }'
allowed server/core/a.c 'const char *a = "exit(1) time(0) #include <uv.h>";'

# The schema's bounds.
refused proto/ampd/v1/scale.options 'ampd.v1.Row.name type:FT_POINTER' 'FT_POINTER'
allowed proto/ampd/v1/scale.options '# FT_POINTER is banned'

# In a work tree, what git does not track yet is judged too, and what it ignores is not.
git init -q "$tree"
refused amp/a.c '#include "rpc/call.h"' 'amp/ may include only'
echo '/amp/' >"$tree/.gitignore"
allowed amp/a.c '#include "rpc/call.h"'

if [[ $failures -ne 0 ]]; then
    echo "check_fences: $failures of $cases planted cases went wrong" >&2
    exit 1
fi
echo "check_fences: all $cases planted cases were judged rightly"
