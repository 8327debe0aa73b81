/* Chooses the kernels that this processor can run, and tests them and the floating-point environment that they need. */
#ifndef AMP_CPU_H
#define AMP_CPU_H

#include "amp/kernels.h"
#include "base/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Chooses a kernel table: `isa` is "ref", "avx2", "avx512" or "neon"; NULL or "" means the fastest that this processor
 * has. 0; AMP_EINVAL for an unknown name, AMP_EUNIMPLEMENTED for one that this processor or build lacks, with a text
 * that names those it has. *out is constant and always valid. Programs pass the environment variable AMPD_ISA. Any
 * thread.
 */
int amp_cpu_select(const char *isa, const struct amp_kernels **out, struct amp_error *error);

/* The name of the i-th variant, whether this processor can run it or not; NULL after the last. For tests and bench/. */
const char *amp_cpu_isa(size_t i);

/*
 * Tests a kernel table, for a program's start: runs each kernel on fixed inputs, in less than a millisecond and 50 KiB
 * of stack, and compares the results with those that docs/numerics.md gives. 0; AMP_EINTERNAL with a text that names
 * what is wrong, because of this processor or of the compiler or flags of this build. A processor that computes wrongly
 * now and then may pass. The floating-point environment must be the default one. Any thread, which tests the processor
 * that it is on.
 */
int amp_kernels_verify(const struct amp_kernels *kernels, struct amp_error *error);

/*
 * 0 if this thread rounds to nearest and keeps denormals (neither flush-to-zero nor denormals-are-zero), else
 * AMP_ESTATE with a text. Threads inherit the mode at their creation; a library loaded with -ffast-math may change it.
 * The functions of amp/grad.h, amp/clip.h, the scalers and amp/fsdp.h need no such test: they set the mode for a call.
 * (But a scale times a factor that is no power of two is rounded as the thread rounds.)
 */
int amp_fp_env_check(struct amp_error *error);

#ifdef __cplusplus
}
#endif

#endif
