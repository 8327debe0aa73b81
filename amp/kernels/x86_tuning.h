/*
 * What is fastest, and differs in no bit: how functions are inlined, and which core this is. Only for AVX2's and
 * AVX-512's kernels. Tests define the latter themselves, to take the branches of other cores: in
 * tests/kernels/emulated, whose immintrin.h comes in the place of the compiler's, and in tests/kernels/other_core.h.
 */
#ifndef AMP_KERNELS_X86_TUNING_H
#define AMP_KERNELS_X86_TUNING_H

#include <immintrin.h>
#include <unistd.h>

/*
 * Which functions have it changes the order of instructions in Adam's loops, and their speed: measure. A build with
 * sanitizers has each loop once, not once for each kind of gradient: clang takes 19 s for all of Adam's for AVX-512.
 */
#ifndef AMP_KERNELS_SMALL
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif

#ifndef ON_AMD
#define ON_AMD (__builtin_cpu_is("amd") != 0)

/*
 * The first cache level has 48 KiB on Zen 5, on Intel's servers since Ice Lake and on its other large cores since then;
 * most others have 32. The C library has asked the processor when the process began; 0 if that does not say.
 */
#define SMALL_FIRST_LEVEL (sysconf(_SC_LEVEL1_DCACHE_SIZE) < 48 * 1024)

#define ON_ZEN5 (ON_AMD && !SMALL_FIRST_LEVEL)
#endif

/* The cores for which Adam has loops of their own; INTEL is whatever is not of AMD. */
enum core { ZEN5, OTHER_AMD, INTEL };

#endif
