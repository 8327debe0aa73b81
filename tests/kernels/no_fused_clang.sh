#!/bin/sh
# clang's objects of the numerics, optimised, whatever compiler this build has: none is contracted. With AMPD_TEST_LONG=1 at -O2
# too, as in a release build; -O3 does what -O2 does and more.
# Usage: no_fused_clang.sh SOURCE_DIRECTORY BUILD_DIRECTORY
set -eu
build=$2/clang
command -v clang >/dev/null || {
    echo "SKIPPED: kernels: clang is not installed (section [test] of deploy/packages.txt)"
    exit 77
}
[ "$(uname -m)" = x86_64 ] || {
    echo "SKIPPED: kernels: clang's x86-64 objects need that processor"
    exit 77
}
mkdir -p "$build"
cd "$1"
for level in ${AMPD_TEST_LONG:+-O2} -O3; do
    objects=
    for file in amp/*.c amp/kernels/*.c; do
        # As in amp/CMakeLists.txt.
        case $file in
        */avx2*.c) isa='-mavx2 -mfma -mf16c -mbmi' ;;
        */avx512*.c) isa='-mavx512f -mavx512bw -mavx512dq -mavx512vl -mbmi' ;;
        */neon.c) continue ;;
        *) isa= ;;
        esac
        object=$build/$(basename "$file" .c).o
        # shellcheck disable=SC2086 # a list of flags
        clang -std=c17 $level -ffp-contract=off -fno-fast-math -fno-strict-aliasing -D_POSIX_C_SOURCE=200809L $isa -I. \
            -c "$file" -o "$object"
        objects="$objects $object"
    done
    # shellcheck disable=SC2086 # a list of objects
    ld -r $objects -o "$build/all$level.o"
    tests/kernels/no_fused.sh "$build/all$level.o"
done
