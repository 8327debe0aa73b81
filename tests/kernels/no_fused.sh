#!/bin/sh
# A fused multiply-add rounds once where docs/numerics.md rounds twice. Only the vote adds squares so: the square of a
# float is exact in double, and nothing is rounded but the sum. Usage: no_fused.sh LIBRARY
# OBJDUMP names the program for a foreign processor.
set -u
objdump=${OBJDUMP:-objdump}
command -v "$objdump" >/dev/null || {
    echo "SKIPPED: objdump is not installed"
    exit 77
}
listing=$("$objdump" -d "$1") || exit 1
lines=$(printf '%s\n' "$listing" | grep -c 'ret')
if [ "$lines" -lt 10 ]; then
    echo "the listing of $1 has no functions: nothing was looked at"
    exit 1
fi
# x86: vfmadd, vfmsub, vfnmadd, vfnmsub; ARM: fmadd, fmsub, fnmadd, fmla, fmls.
fused=$(printf '%s\n' "$listing" | awk '
    /^[0-9a-f]+ <.*>:$/ { vote = $2 ~ /^<(vote|take|add_squares?|amp_avx(2|512)_vote_(pass|take))(\.[a-z0-9.]+)?>:$/ }
    /[ \t](vfn?m(add|sub)[0-9a-z]*|fn?m(add|sub)|fml[as])[ \t]/ && !(vote && /[ \t]vfmadd(132|213|231)pd[ \t]/) { n++ }
    END { print n + 0 }') || exit 1
if [ "$fused" -ne 0 ]; then
    echo "$fused fused instructions in $1"
    exit 1
fi
echo "no fused instruction but for the squares of the vote in $1"
