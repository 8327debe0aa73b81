/*
 * Of which kind the core is, for what is fastest on one and not on another; the bits do not differ. Only for AVX2's and
 * AVX-512's kernels; tests/kernels/emulated defines these itself.
 */
#ifndef AMP_KERNELS_X86_CORES_H
#define AMP_KERNELS_X86_CORES_H

#include <immintrin.h>

#ifndef ON_AMD
#define ON_AMD (__builtin_cpu_is("amd") != 0)

/* Told by VP2INTERSECT, whichever kernels are used. */
#define ON_ZEN5 (ON_AMD && __builtin_cpu_supports("avx512vp2intersect") != 0)

/*
 * The first cache level has 48 KiB on Zen 5 and on Intel's since Ice Lake, the first of its server cores with VBMI2; on
 * others it is taken to have 32.
 */
#define SMALL_FIRST_LEVEL (ON_AMD ? !ON_ZEN5 : !__builtin_cpu_supports("avx512vbmi2"))
#endif

#endif
