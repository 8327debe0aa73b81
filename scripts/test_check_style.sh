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

echo 'void f(void) { amp_log(log, AMP_LOG_WARN, "a", "msg=\"%s;\" n=%" PRIu64 " m=%zu", text, n, m); }' | allowed base/a.c
echo 'void f(void) { amp_log(log, AMP_LOG_WARN, "a", "msg=\"%s;\" n=%x", text, n); }' | refused base/a.c:1 'a line of the log'
echo 'void f(void) { amp_log(log, AMP_LOG_WARN, "a", "n=%" PRIx64, n); }' | refused base/a.c:1 'a line of the log'

# wide COUNT: a line of as many columns; its letters need two bytes each.
wide() {
    printf '/* %s */\n' "$(printf 'ö%.0s' $(seq $(($1 - 6))))"
}

for file in base/a.c base/a.h base/a.def base/a.inc bench/a.cc; do
    wide 120 | allowed "$file"
    { echo; wide 121; } | refused "$file:2" '121 columns, the limit is 120'
done
printf '# %s\n' "$(printf 'x%.0s' {1..118})" | allowed tests/a.py
printf '# %s\n' "$(printf 'x%.0s' {1..119})" | refused tests/a.py:1 '121 columns'
wide 200 | allowed docs/a.md

lines 150 | sed 's/.*/int a;/' | allowed base/a.h
lines 151 | sed 's/.*/int a;/' | refused base/a.h:1 '151 lines, the limit of a header is 150'
lines 151 | sed 's/.*/int a;/' | allowed client/ampclient.h
lines 151 | sed 's/.*/int a;/' | refused proto/codecs.h:1 '151 lines'

echo 'int a = sizeof(struct b) + sizeof(uint32_t) + sizeof(char *) + sizeof c + sizeof *c + sizeof c->d[0];' | allowed base/a.c
echo 'int a = sizeof(((struct b *)0)->c) + sizeof(c + d) + sizeof(TYPE) + sizeof(__m256i);' | allowed base/a.c
echo '/* sizeof(a) */ const char *a = "sizeof(a)";' | allowed base/a.c
for operand in a '*a' 'a->b' 'a[0]' 'a->b[c(d)].e' '&a'; do
    echo "int x = sizeof($operand);" | refused base/a.c:1 "sizeof of an expression has no parentheses: sizeof $operand"
done
printf '\nint x = sizeof (struct a);\n' | refused base/a.c:2 'sizeof of a type has no blank: sizeof(struct a)'
echo 'int x = sizeof (a);' | refused base/a.h:1 'sizeof of an expression has no parentheses'

# listed LIST < TEXT: what is said of base/a.h, where the lists of what is not done yet have it in LIST alone.
listed() {
    plant base/a.h
    mkdir -p "$tree/scripts"
    cp "$check" "$(dirname "$check")/c_source.py" "$tree/scripts/"
    printf 'WIDE = {}\nSIZEOF = {}\nHEADERS = {}\n%s["base/a.h"] = "not yet"\n' "$1" >"$tree/scripts/not_yet.py"
    "$tree/scripts/check_style.py" | grep -F base/a.h || true
}

{ wide 121; echo 'int a[sizeof(b)];'; lines 151 | sed 's/.*/int a;/'; } >"$tree.h"
for list in WIDE SIZEOF HEADERS; do
    said=$(listed $list <"$tree.h")
    [[ $(wc -l <<<"$said") -eq 2 ]] || fail "$list: one rule is lifted, two hold; got: $said"
    [[ $(echo 'int a;' | listed $list) == *'exemption of base/a.h is no longer needed'* ]] || fail "$list: it holds a file that is fine"
done
rm "$tree.h"

echo '/* See step-protocol.md section 6. */' | refused base/a.c:1 'docs/step-protocol.md has no section 6'
echo 'As step-protocol.md sections 1 and 2 say.' | refused docs/other.md:1 'docs/step-protocol.md has no section 2'
printf '## 1. Who\n\nSee step-protocol.md section 1.\n' | allowed docs/step-protocol.md
printf '## 1. Who\n\nSee step-protocol.md, sections 1 and 3.\n' | refused docs/step-protocol.md:3 'has no section 3'

if [[ $failures -ne 0 ]]; then
    echo "check_style: $failures of $cases planted cases went wrong" >&2
    exit 1
fi
echo "check_style: all $cases planted cases were judged rightly"
