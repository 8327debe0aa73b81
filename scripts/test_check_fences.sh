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

# refused PATH TEXT RULE [LINE]: a violation, on line 2 or on LINE, whose text contains RULE.
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

# Who may include whom: one foreign folder for each folder.
refused base/a.c '#include "amp/dtype.h"' 'base/ may include only'
refused amp/a.c '#include "rpc/call.h"' 'amp/ may include only'
refused proto/a.c '#include "rpc/call.h"' 'proto/ may include only'
refused rpc/a.c '#include "proto/ampd/v1/codec.h"' 'rpc/ may include only'
refused rpc/a.c '#include "ampd/v1/scale.pb.h"' 'rpc/ may include only'
refused rpc/a.c '#include "amp/dtype.h"' 'rpc/ may include only'
refused storage/a.c '#include "server/core/core.h"' 'storage/ may include only'
refused server/core/a.c '#include "storage/store.h"' 'server/core/ may include only'
refused server/core/a.c '#include "server/io/process/loop.h"' 'server/core/ may include only'
refused server/core/a.c '#include "rpc/call.h"' 'server/core/ may include only'
refused server/io/http/a.c '#include "client/io/client.h"' 'server/io/ may include only'
refused server/main.c '#include "client/ampclient.h"' 'server/ may include only'
refused client/core/a.c '#include "server/core/core.h"' 'client/core/ may include only'
refused client/core/a.c '#include "rpc/call.h"' 'client/core/ may include only'
refused client/io/a.c '#include "server/io/process/loop.h"' 'client/io/ may include only'
refused client/ampctl/a.c '#include "storage/store_sqlite.h"' 'client/ampctl/ may include only'
refused client/ampctl/a.c '#include "client/ampctl/view/plot.h"' 'client/ampctl/./ may include only the folders below it: none'
refused client/ampctl/events/a.c '#include "client/ampctl/view/plot.h"' 'client/ampctl/events/ may include only the folders below it: .'
refused client/ampclient.h '#include "client/io/client.h"' 'client/ may include only'
refused examples/digits/a.c '#include "client/io/client.h"' 'examples/ may include only'
refused examples/digits/a.c '#include "base/err.h"' 'examples/ may include only'
refused amp/a.c '#include <cblas.h>' 'cblas and dnnl only in'
refused examples/charlm/pass.c '#include <dnnl.h>' 'cblas and dnnl only in'
refused amp/a.c '#include "dtype.h"' 'written from the root'
refused amp/a.c '#include "../base/err.h"' 'written from the root'
refused oddments/a.c 'int a;' 'outside the folders' 1
allowed server/core/a.c '#include "storage/records.h"'
allowed server/core/a.c '#include "storage/records_step.h"'
allowed rpc/a.c '#include "proto/grpc/health.h"'
allowed server/main.c '#include "server/io/process/loop.h"'
allowed client/ampctl/main.c '#include "client/io/client.h"'
allowed client/ampctl/main.c '#include "storage/checkpoint.h"'
allowed client/ampctl/files/a.c '#include "client/ampctl/view/history.h"'
allowed tests/sim/a.c '#include "server/core/core.h"'
allowed bench/a.c '#include "rpc/call.h"'
allowed examples/charlm/product.c '#include <cblas.h>'

# The folders of server/core, likewise: the shard and the coordinator never include each other.
refused server/core/shard/a.c '#include "server/core/coordinator/coord.h"' 'server/core/shard/ may include only'
refused server/core/coordinator/a.c '#include "server/core/shard/shard.h"' 'server/core/coordinator/ may include only'
refused server/core/wire/a.c '#include "server/core/shard/shard.h"' 'server/core/wire/ may include only'
refused server/core/wire/a.c '#include "server/core/coordinator/coord.h"' 'server/core/wire/ may include only'
refused server/core/base/a.c '#include "server/core/wire/bus.h"' 'server/core/base/ may include only'
refused server/core/model/a.c '#include "server/core/base/process.h"' 'server/core/model/ may include only'
refused server/core/events.h '#include "server/core/wire/messages.h"' 'server/core/./ may include only'
refused server/core/coordinator/a.c '#include "server/core/process/leave.h"' 'server/core/coordinator/ may include only'
refused server/core/odd/a.c 'int a;' 'outside its folders' 1
allowed server/core/shard/a.c '#include "server/core/base/local.h"'
allowed server/core/process/a.c '#include "server/core/coordinator/coord.h"'

# The folders of server/io, from the bottom up; two beside each other; a file in none of them.
refused server/io/base/a.c '#include "server/io/auth/auth.h"' 'server/io/base/ may include only the folders below it: none'
refused server/io/base/a.h '#include "server/io/process/start.h"' 'server/io/base/ may include only'
refused server/io/etcd/a.c '#include "server/io/auth/auth.h"' 'server/io/etcd/ may include only the folders below it: base'
refused server/io/auth/a.c '#include "server/io/etcd/etcd.h"' 'server/io/auth/ may include only the folders below it: base'
refused server/io/cluster/a.c '#include "server/io/host/persist.h"' 'server/io/cluster/ may include only'
refused server/io/host/a.c '#include "server/io/calls/server_call.h"' 'server/io/host/ may include only'
refused server/io/calls/a.c '#include "server/io/history/replay.h"' 'server/io/calls/ may include only'
refused server/io/history/a.c '#include "server/io/http/metrics.h"' 'server/io/history/ may include only'
refused server/io/http/a.c '#include "server/io/process/drain.h"' 'server/io/http/ may include only'
refused server/io/a.c 'int a;' 'outside its folders' 1
refused server/io/odd/a.c 'int a;' 'outside its folders' 1
refused server/io/http/a.c '#include "server/io/odd.h"' 'in none of the folders'
plant server/io/host/a0.c 'int a0;'
for i in $(seq 24); do echo "int a$i;" >"$tree/server/io/host/a$i.c"; done
out=$("$check" "$tree" || true)
grep -qF "server/io/host: 25 sources, at most 24" <<<"$out" || fail "a folder of 25 sources was let through"
rm "$tree/server/io/host/a24.c"
"$check" "$tree" >/dev/null || fail 'a folder of 24 sources was refused'
allowed server/io/process/a.c '#include "server/io/base/server.h"'
allowed server/io/cluster/a.c '#include "server/io/etcd/etcd.h"'
allowed server/io/calls/a.c '#include "server/io/calls/convert.h"'
allowed tests/unit/a.c '#include "server/io/cluster/stale.h"'

# Third-party headers.
refused server/core/a.c '#include <uv.h>' '<uv.h> only in'
refused rpc/stream.c '#include <uv.h>' '<uv.h> only in'
refused tests/sim/a.c '#include <uv.h>' 'the simulator knows no uv'
refused rpc/stream.c '#include <nghttp2/nghttp2.h>' 'nghttp2 only in'
refused server/io/http/a.c '#include <nghttp2/nghttp2.h>' 'nghttp2 only in'
refused server/io/http/a.c '#include <openssl/ssl.h>' 'openssl only in'
refused rpc/io/conn.c '#include <openssl/err.h>' 'openssl only in'
refused rpc/io/tls.h '#include <openssl/ssl.h>' 'openssl only in'
refused tests/sim/a.c '#include <openssl/evp.h>' 'the simulator knows no openssl'
refused server/io/http/a.c '#include <sqlite3.h>' 'sqlite3 only in'
refused server/io/http/a.c '#include <pb_decode.h>' 'nanopb only in'
refused server/io/http/a.c '#include "proto/ampd/v1/scale.pb.h"' 'nanopb only in'
refused storage/a.c '#include <pb.h>' 'nanopb only in'
refused amp/finite.c '#include <immintrin.h>' 'intrinsics only in'
refused amp/kernels/ref.c '#include <immintrin.h>' 'intrinsics only in'
refused amp/kernels/double.h '#include <immintrin.h>' 'intrinsics only in'
refused amp/finite.c '#include <arm_neon.h>' 'intrinsics only in'
refused amp/finite.c 'int a(void) { return __builtin_ia32_stmxcsr(); }' 'intrinsics only in'
allowed server/io/http/a.c '#include <uv.h>'
allowed rpc/io/a.c '#include <uv.h>'
allowed server/main.c '#include <uv.h>'
allowed rpc/h2_session.c '#include <nghttp2/nghttp2.h>'
allowed rpc/io/tls_session.c '#include <openssl/ssl.h>'
allowed rpc/io/tokens.c '#include <openssl/evp.h>'
allowed storage/a.c '#include <sqlite3.h>'
allowed proto/a.c '#include "proto/ampd/v1/scale.pb.h"'
allowed amp/kernels/avx2.c '#include <immintrin.h>'
allowed amp/kernels/avx2_parts.h '#include <immintrin.h>'

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
allowed server/io/http/a.c 'int64_t a(void) { return clock_gettime(CLOCK_MONOTONIC, 0); }'
allowed server/config.c 'char *a(void) { return getenv("AMPD_ISA"); }'
allowed server/main.c 'int main(void) { exit(1); }'
allowed client/ampctl/view/ready.c 'void a(void) { exit(1); }'
allowed server/core/a.c '/* exit(1), time(NULL) */ void a(void) { amp_autocast_exit(); clock->time(0); s.rand(); }'
refused client/ampctl/view/status.c 'void a(void) { printf("%s", name); }' 'ampctl prints with ampctl_print'
allowed client/ampctl/print.c 'void a(void) { printf("%s", name); }'
allowed client/ampctl/view/status.c 'void a(void) { snprintf(b, 9, "%s", name); ampctl_print(stdout, "%s", name); }'
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
