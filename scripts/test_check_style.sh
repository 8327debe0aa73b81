#!/usr/bin/env bash
# Proves that check_style.py sees each kind of violation, by planting them one at a time in a tree of its own.
set -euo pipefail
# The judging end of a pipe runs in this shell, so that its counts are kept.
shopt -s lastpipe

check=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/check_style.py
tree=$(mktemp -d)
trap 'rm -rf "$tree"' EXIT
failures=0
cases=0

fail() {
    echo "FAILED: $1" >&2
    failures=$((failures + 1))
}

# plant PATH < TEXT: the tree holds this one file.
plant() {
    rm -rf "${tree:?}"/*
    mkdir -p "$tree/$(dirname "$1")"
    cat >"$tree/$1"
    cases=$((cases + 1))
}

# refused PATH:LINE RULE < TEXT
refused() {
    plant "${1%:*}"
    local out
    if out=$("$check" "$tree"); then
        fail "$1 was let through"
    elif ! grep -F "$1: " <<<"$out" | grep -qF "$2"; then
        fail "$1: expected '$2', got: $out"
    fi
}

allowed() {
    plant "$1"
    local out
    out=$("$check" "$tree") || fail "$1 was refused: $out"
}

# lines COUNT: as many statements.
lines() {
    for ((i = 0; i < $1; i++)); do
        echo "    a += 1;"
    done
}

# function_of COUNT: a definition that takes COUNT lines from brace to brace.
function_of() {
    printf 'static int f(int a,\n             void (*g_cb)(int (*h)(int)))\n{\n'
    lines $(($1 - 2))
    printf '}\n'
}

function_of 70 | allowed base/a.c
function_of 71 | refused base/a.c:3 'f has 71 lines'
{ printf '#ifdef __cplusplus\nextern "C" {\n#endif\n'; function_of 71; } | refused base/a.h:6 'f has 71 lines'
{ echo 'static const int table[] = {'; lines 100 | sed 's/.*/    1,/'; echo '};'; function_of 60; } | allowed base/a.c
{ echo 'struct big {'; lines 100 | sed 's/.*/    int a;/'; echo '};'; function_of 71; } | refused base/a.c:105 'f has 71'
{ echo '/* {{{ "'; echo "don't */"; function_of 71; } | refused base/a.c:5 'f has 71 lines'
lines 800 | sed 's/.*/int a;/' | allowed base/a.c
lines 801 | sed 's/.*/int a;/' | refused base/a.c:1 '801 lines'
lines 801 | sed 's/.*/true/' | refused scripts/a.sh:1 '801 lines'

for suite in unit sim kernels; do
    echo 'void f(void) { usleep(1); }' | refused "tests/$suite/a.c:1" 'sleep or timer'
    echo 'void f(void) { uv_tcp_bind(0, 0, 0); }' | refused "tests/$suite/a.c:1" 'port'
    echo 'void f(void) { connect(1, 0, 0); }' | refused "tests/$suite/a.c:1" 'port'
    echo 'void f(void) { clock_gettime(0, 0); }' | refused "tests/$suite/a.c:1" 'wall clock'
    echo 'void f(void) { time(NULL); }' | refused "tests/$suite/a.c:1" 'wall clock'
done
echo 'void f(void) { usleep(1); connect(1, 0, 0); time(0); }' | allowed tests/integration/a.c
echo '/* time(0) */ void f(void) { ampclient_connect("sleep(1)", 0, 0); s.time(); }' | allowed tests/unit/a.c

if [[ $failures -ne 0 ]]; then
    echo "check_style: $failures of $cases planted cases went wrong" >&2
    exit 1
fi
echo "check_style: all $cases planted cases were judged rightly"
