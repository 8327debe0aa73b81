/*
 * Matrix products: fp32 by OpenBLAS, bf16 by oneDNN, and f16 by oneDNN where it has that for the processor, else by
 * widening the operands to fp32. Sums are kept in fp32 in all of them. One thread.
 */
#ifndef CHARLM_PRODUCT_H
#define CHARLM_PRODUCT_H

#include "amp/autocast.h"

#include <stdbool.h>
#include <stddef.h>

/* Which operand is transposed: of the usual names the second is for b. All matrices are row-major. */
enum charlm_form {
    CHARLM_NT, /* out[m][n] = a[m][k] * b[n][k]^T */
    CHARLM_NN, /* out[m][n] = a[m][k] * b[k][n] */
    CHARLM_TN, /* out[m][n] = a[k][m]^T * b[k][n] */
};

/* Different (form, sizes, dtypes) that one program multiplies with; each has a primitive of oneDNN, made once. */
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
    float *wide[3]; /* operands and result of a product that has to be widened */
    size_t wide_count[3];
};

/* Sets both libraries to one thread. 0, or AMP_ENOMEM or AMP_EUNIMPLEMENTED with a text. */
int charlm_products_open(struct charlm_products *products, const struct amp_kernels *kernels, struct amp_error *error);
void charlm_products_close(struct charlm_products *products);

/*
 * out[m][n] of out_dtype = the product of a and b, both of one dtype. With `accumulate` it is added to what `out` has;
 * out_dtype is AMP_F32 then. 0, or AMP_ENOMEM, AMP_EEXHAUSTED (too many different products) or AMP_EIO with a text.
 */
int charlm_product(struct charlm_products *products, enum charlm_form form, size_t m, size_t n, size_t k,
                   const struct amp_tensor_view *a, const struct amp_tensor_view *b, void *out,
                   enum amp_dtype out_dtype, bool accumulate, struct amp_error *error);

/* The same in fp32 on parts of matrices: `stride` is the distance of two rows. out = product + beta * out. */
struct charlm_part {
    const float *data;
    size_t stride;
};
void charlm_product_part(enum charlm_form form, size_t m, size_t n, size_t k, struct charlm_part a,
                         struct charlm_part b, float beta, float *out, size_t out_stride);

#endif
