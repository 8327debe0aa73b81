/*
 * A named tensor in the caller's memory, and the few things that every utility does with one: check it, copy it,
 * multiply it. An array of them is what the specifications call a dictionary of named tensors.
 *
 * The library never keeps, allocates or frees a tensor's memory. All functions here are pure but for what they write
 * through `out`; any thread, on memory that no other thread writes meanwhile.
 */
#ifndef AMP_TENSOR_H
#define AMP_TENSOR_H

#include "amp/dtype.h"
#include "amp/kernels.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * `data` is borrowed: `count` elements of `dtype` (f32, f16 or bf16), aligned to one element. data NULL means that the
 * tensor is missing, as a gradient that backward did not compute; count and dtype are then not looked at. An empty
 * tensor has count 0.
 */
struct amp_tensor {
    const char *name; /* for reports; may be NULL */
    void *data;
    size_t count;
    enum amp_dtype dtype;
};

/* The name for a text: "(unnamed)" where there is none. Borrowed from the tensor. */
const char *amp_tensor_name(const struct amp_tensor *tensor);

/*
 * 0 if each of the n tensors is missing or well formed. AMP_EINVAL with a text that names the first that is not:
 * another dtype, a misaligned pointer, more bytes than memory can have, or `tensors` NULL while n > 0 (NULL and 0 is
 * the empty dictionary).
 */
int amp_tensors_check(const struct amp_tensor *tensors, size_t n, struct amp_error *error);

/*
 * As amp_tensors_check for both arrays, and out[i] fits in[i]: present where in[i] is, of as many elements (the dtype
 * may differ), and either the same memory with elements of the same size, or not overlapping it. AMP_EINVAL else.
 * Overlap between different entries is not looked for: entries are done in order, and a later one reads what an earlier
 * one wrote.
 */
int amp_tensors_check_pairs(const struct amp_tensor *in, const struct amp_tensor *out, size_t n,
                            struct amp_error *error);

/* 0 if a scale is usable: finite and at least 2^-126 (the reciprocal of a denormal may be Inf); AMP_EINVAL else. */
int amp_scale_check(float scale, struct amp_error *error);

/*
 * *out = *in * factor: the product rounded to fp32, then to out's dtype. Returns whether any stored value is Inf or NaN
 * (given a finite factor > 0: then also whenever an input is). The pair must have been checked; a missing `in` is left
 * out.
 */
bool amp_tensor_multiply(const struct amp_kernels *kernels, const struct amp_tensor *in, float factor,
                         const struct amp_tensor *out);

/*
 * *out = *in: the same bits if the dtypes are equal, else cast. The pair must have been checked; a missing `in` is left
 * out.
 */
void amp_tensor_copy(const struct amp_kernels *kernels, const struct amp_tensor *in, const struct amp_tensor *out);

#ifdef __cplusplus
}
#endif

#endif
