#!/bin/sh
# The NEON kernels, cross-compiled and run on an emulated processor: against the reference, with the golden hashes, and
# without fused instructions.  Usage: neon.sh SOURCE_DIRECTORY BUILD_DIRECTORY. AMPD_NEON_FLAGS adds flags of the compiler.
set -eu
source=$1 build=$2/neon
compiler=aarch64-linux-gnu-gcc
for tool in $compiler aarch64-linux-gnu-objdump qemu-aarch64; do
    command -v "$tool" >/dev/null || {
        echo "SKIPPED: kernels neon: $tool is not installed (section [cross] of deploy/packages.txt)"
        exit 77
    }
done
mkdir -p "$build"
cd "$source"
flags='-std=c17 -O2 -g -ffp-contract=off -fno-fast-math -fno-strict-aliasing -D_POSIX_C_SOURCE=200809L
    -DAMP_KERNELS_NEON -Wall -Wextra -Werror -Wno-unused-parameter -I. -Itests/kernels/cross'
plain=$flags
flags="$flags ${AMPD_NEON_FLAGS:-}"
objects=
for file in amp/kernels/ref.c amp/kernels/neon.c amp/kernels/copy.c amp/cast.c amp/clip.c amp/cpu.c amp/norm.c amp/optim.c \
    amp/pass.c amp/reduce.c amp/tensor.c amp/verify.c base/err.c base/assert.c tests/kernels/inputs.c \
    tests/kernels/cross/crc32c.c; do
    object=$build/$(basename "$file" .c).o
    # shellcheck disable=SC2086 # a list of flags
    $compiler $flags -c "$file" -o "$object"
    objects="$objects $object"
done
OBJDUMP=aarch64-linux-gnu-objdump tests/kernels/no_fused.sh "$build/neon.o"
OBJDUMP=aarch64-linux-gnu-objdump tests/kernels/no_fused.sh "$build/ref.o"
# The other compiler's objects: not contracted either, and the same hashes.
if command -v clang >/dev/null; then
    theirs=
    for file in amp/kernels/ref.c amp/kernels/neon.c amp/kernels/copy.c amp/cast.c amp/clip.c amp/cpu.c amp/norm.c amp/optim.c \
        amp/pass.c amp/reduce.c amp/tensor.c; do
        object=$build/$(basename "$file" .c)-clang.o
        # shellcheck disable=SC2086 # a list of flags
        clang --target=aarch64-linux-gnu $plain -c "$file" -o "$object"
        theirs="$theirs $object"
    done
    # shellcheck disable=SC2086 # a list of objects
    aarch64-linux-gnu-ld -r $theirs -o "$build/all-clang.o"
    OBJDUMP=aarch64-linux-gnu-objdump tests/kernels/no_fused.sh "$build/all-clang.o"
    # shellcheck disable=SC2086 # lists of flags and objects
    $compiler $flags -static tests/kernels/test_kernel_golden.c "$build/all-clang.o" "$build/err.o" "$build/assert.o" "$build/inputs.o" \
        "$build/crc32c.o" -o "$build/golden-clang" -lm
    qemu-aarch64 "$build/golden-clang" neon
fi
for program in coverage golden splits verify; do
    # shellcheck disable=SC2086 # lists of flags and objects
    $compiler $flags -static "tests/kernels/test_kernel_$program.c" $objects -o "$build/$program" -lm -pthread
done
for program in coverage golden splits verify; do
    qemu-aarch64 "$build/$program" neon emulated
done
qemu-aarch64 "$build/golden" ref
