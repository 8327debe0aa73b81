/*
 * Matrix products: fp32 by OpenBLAS, bf16 by oneDNN, and f16 by oneDNN where it has that for the processor, else by
 * widening the operands to fp32. All of them sum in fp32 and compute on one thread. A struct charlm_products is used by
 * one thread at a time.
 */
#ifndef CHARLM_PRODUCT_H
#define CHARLM_PRODUCT_H

#include "amp/autocast.h"

#include <stdbool.h>
#include <stddef.h>

/* Which operand is transposed, as in BLAS: the first letter is of a, the second of b. All matrices are row-major. */
enum charlm_form {
    CHARLM_NT, /* out[m][n] = a[m][k] * b[n][k]^T */
    CHARLM_NN, /* out[m][n] = a[m][k] * b[k][n] */
    CHARLM_TN, /* out[m][n] = a[k][m]^T * b[k][n] */
};

/* The most combinations of form, sizes and dtypes in one program; each has a oneDNN primitive, made once. */
#define CHARLM_PLANS_MAX 64

struct charlm_plan;
struct dnnl_engine;
struct dnnl_stream;

struct charlm_products {
    const struct amp_kernels *kernels; /* borrowed */
    struct dnnl_engine *engine;
    struct dnnl_stream *stream;
    struct charlm_plan *plans;
    size_t plans_count;
    float *wide[3]; /* fp32 operands and result of a product that oneDNN does not have */
    size_t wide_count[3];
};

/*
 * Sets both libraries to one thread, for the whole process. 0, or AMP_ENOMEM or AMP_EUNIMPLEMENTED with a text; close
 * in both cases.
 */
int charlm_products_open(struct charlm_products *products, const struct amp_kernels *kernels, struct amp_error *error);
void charlm_products_close(struct charlm_products *products);

/*
 * out[m][n] of out_dtype = the product of a and b, both of one dtype. With `accumulate` it is added to what `out` has,
 * and out_dtype must be AMP_F32. 0, or AMP_ENOMEM, AMP_EEXHAUSTED (too many different products) or AMP_EIO with a text.
 */
int charlm_product(struct charlm_products *products, enum charlm_form form, size_t m, size_t n, size_t k,
                   const struct amp_tensor_view *a, const struct amp_tensor_view *b, void *out,
                   enum amp_dtype out_dtype, bool accumulate, struct amp_error *error);

/* out = product + beta * out, in fp32 on parts of matrices: `stride` is the distance between two rows, in elements. */
struct charlm_part {
    const float *data;
    size_t stride;
};
void charlm_product_part(enum charlm_form form, size_t m, size_t n, size_t k, struct charlm_part a,
                         struct charlm_part b, float beta, float *out, size_t out_stride);

#endif
