/* What form is by the other kernels of a table: the reference's, and each variant's for inputs of several dtypes. */
#ifndef AMP_KERNELS_FORM_H
#define AMP_KERNELS_FORM_H

#include "amp/kernels.h"

/* amp_form_fn, one input after the other over the elements. */
static inline uint32_t form_in_turns(const struct amp_kernels *kernels, const struct amp_input *inputs, unsigned count,
                                     bool equal_weights, float factor, size_t start, size_t n, float *g)
{
    for (unsigned j = 0; j < count; j++) {
        enum amp_dtype dtype = inputs[j].dtype;
        const char *data = (const char *)inputs[j].data + start * amp_dtype_size(dtype);
        amp_sum_fn *sum = j == 0 ? kernels->sum_set[dtype] : kernels->sum_add[dtype];
        sum(g, data, equal_weights ? 1.0f : inputs[j].weight, n);
    }
    return kernels->scale(g, g, factor, n);
}

/* Whether all inputs have one dtype. */
static inline bool of_one_dtype(const struct amp_input *inputs, unsigned count)
{
    bool one = true;
    for (unsigned j = 1; j < count; j++)
        one = one && inputs[j].dtype == inputs[0].dtype;
    return one;
}

#endif
