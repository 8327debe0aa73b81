#!/bin/sh
# A fused multiply-add rounds once where docs/numerics.md rounds twice. Usage: no_fused.sh LIBRARY
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
fused=$(printf '%s\n' "$listing" | grep -cE '[[:space:]](vfn?m(add|sub)[0-9a-z]*|fn?m(add|sub)|fml[as])[[:space:]]')
if [ "$fused" -ne 0 ]; then
    echo "$fused fused instructions in $1"
    exit 1
fi
echo "no fused instruction in $1"
