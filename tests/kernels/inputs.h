/* Inputs for kernel tests: bit patterns biased to extremes, and the choice of a variant by name. */
#ifndef TESTS_KERNELS_INPUTS_H
#define TESTS_KERNELS_INPUTS_H

#include "amp/kernels.h"
#include "base/random.h"

#include <stddef.h>
#include <stdint.h>

/* Any binary32 bit pattern; about half are zeros, denormals, limits of the dtypes, Inf, NaN and their neighbours. */
float input_any(struct amp_random *random);

/* A finite number whose exponent is spread evenly over [2^low, 2^high), either sign. */
float input_spread(struct amp_random *random, int low, int high);

/* Fills n elements of a dtype with bit patterns like input_any's. */
void input_fill(struct amp_random *random, void *data, enum amp_dtype dtype, size_t n);

/* The variant that a test program's first argument names; prints SKIPPED and exits with 77 if it cannot run here. */
const struct amp_kernels *input_variant(int argc, char **argv);

#endif
