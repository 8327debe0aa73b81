/* What the programs of tests/specs share: the kernels, and tensors made from floats and read back as floats. */
#ifndef TESTS_SPECS_SPEC_H
#define TESTS_SPECS_SPEC_H

#include "amp/cpu.h"
#include "amp/tensor.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define COUNT(array) (sizeof array / sizeof((array)[0]))

/* Most elements of a tensor in these tests: the specifications' rules are those of an element or of a few. */
#define SPEC_ELEMENTS_MAX 16

extern const struct amp_kernels *kernels; /* the fastest of this machine: set by spec_setup */
extern struct amp_error fault;            /* the last error's text */

/* The setup of a group of tests. */
int spec_setup(void **state);

/* Memory of one tensor of any dtype. */
struct spec_memory {
    uint32_t words[SPEC_ELEMENTS_MAX];
};

/* A tensor of f32 in the memory of an array. */
struct amp_tensor spec_f32(const char *name, float *values, size_t count);

/* A gradient that backward did not compute: the null of the specifications. */
struct amp_tensor spec_null(const char *name);

/* A tensor of `dtype` in `memory`, of values that it rounds. */
struct amp_tensor spec_tensor(struct spec_memory *memory, enum amp_dtype dtype, const float *values, size_t count);

/* The i-th element as a float. */
float spec_at(const struct amp_tensor *tensor, size_t i);

/* Whether the elements are these, bit by bit once they are floats. */
bool spec_holds(const struct amp_tensor *tensor, const float *values);

/* Fails unless `code` is `expected` and its text tells something with `word` in it. */
void spec_refused(int code, int expected, const char *word);

#endif
