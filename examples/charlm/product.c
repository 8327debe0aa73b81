#include "examples/charlm/product.h"

#include <cblas.h>
#include <dnnl.h>
#include <stdlib.h>

/*
 * A plan is a product of given form, sizes and dtypes. oneDNN generates machine code for each of them, which takes
 * milliseconds, so a plan is made when a product is first asked for, and is kept to the end.
 */
struct charlm_plan {
    enum charlm_form form;
    size_t m, n, k;
    enum amp_dtype in, out;
    bool accumulate;
    dnnl_primitive_t primitive; /* NULL: oneDNN has none on this processor, the operands are widened */
    dnnl_memory_t memory[3];    /* a, b, out: without data, which is set before each use */
};

/* Of OpenMP, which runs oneDNN's threads; declared here since not every compiler brings omp.h. */
void omp_set_num_threads(int threads);

static int failed(struct amp_error *error, int code, const char *what)
{
    return amp_error_set(error, code, NULL, "a matrix product: %s", what);
}

int charlm_products_open(struct charlm_products *products, const struct amp_kernels *kernels, struct amp_error *error)
{
    *products = (struct charlm_products){.kernels = kernels};
    openblas_set_num_threads(1);
    omp_set_num_threads(1);
    products->plans = calloc(CHARLM_PLANS_MAX, sizeof *products->plans);
    if (products->plans == NULL)
        return failed(error, AMP_ENOMEM, "out of memory");
    if (dnnl_engine_create(&products->engine, dnnl_cpu, 0) != dnnl_success ||
        dnnl_stream_create(&products->stream, products->engine, dnnl_stream_default_flags) != dnnl_success) {
        charlm_products_close(products);
        return failed(error, AMP_EUNIMPLEMENTED, "oneDNN does not run on this machine");
    }
    return 0;
}

void charlm_products_close(struct charlm_products *products)
{
    for (size_t i = 0; i < products->plans_count; i++) {
        struct charlm_plan *plan = &products->plans[i];
        for (size_t j = 0; j < 3; j++)
            if (plan->memory[j] != NULL)
                (void)dnnl_memory_destroy(plan->memory[j]);
        if (plan->primitive != NULL)
            (void)dnnl_primitive_destroy(plan->primitive);
    }
    free(products->plans);
    if (products->stream != NULL)
        (void)dnnl_stream_destroy(products->stream);
    if (products->engine != NULL)
        (void)dnnl_engine_destroy(products->engine);
    for (size_t i = 0; i < 3; i++)
        free(products->wide[i]);
    *products = (struct charlm_products){0};
}

void charlm_product_part(enum charlm_form form, size_t m, size_t n, size_t k, struct charlm_part a,
                         struct charlm_part b, float beta, float *out, size_t out_stride)
{
    cblas_sgemm(CblasRowMajor, form == CHARLM_TN ? CblasTrans : CblasNoTrans,
                form == CHARLM_NT ? CblasTrans : CblasNoTrans, (blasint)m, (blasint)n, (blasint)k, 1.0f, a.data,
                (blasint)a.stride, b.data, (blasint)b.stride, beta, out, (blasint)out_stride);
}

/* The product of whole fp32 matrices. */
static void multiply_f32(enum charlm_form form, size_t m, size_t n, size_t k, const float *a, const float *b,
                         bool accumulate, float *out)
{
    charlm_product_part(form, m, n, k, (struct charlm_part){a, form == CHARLM_TN ? m : k},
                        (struct charlm_part){b, form == CHARLM_NT ? k : n}, accumulate ? 1.0f : 0.0f, out, n);
}

static dnnl_data_type_t type_of(enum amp_dtype dtype)
{
    return dtype == AMP_F32 ? dnnl_f32 : dtype == AMP_F16 ? dnnl_f16 : dnnl_bf16;
}

/* A row-major matrix [rows][columns], or its transpose seen as such; false if oneDNN does not take it. */
static bool describe(dnnl_memory_desc_t *desc, size_t rows, size_t columns, bool transposed, enum amp_dtype dtype)
{
    dnnl_dims_t sizes = {(dnnl_dim_t)rows, (dnnl_dim_t)columns};
    dnnl_dims_t strides = {transposed ? 1 : (dnnl_dim_t)columns, transposed ? (dnnl_dim_t)rows : 1};
    return dnnl_memory_desc_init_by_strides(desc, 2, sizes, type_of(dtype), strides) == dnnl_success;
}

/* The primitive of a plan; it stays NULL where oneDNN has none for this processor. */
static void make_primitive(const struct charlm_products *products, struct charlm_plan *plan)
{
    dnnl_memory_desc_t desc[3];
    dnnl_matmul_desc_t matmul;
    dnnl_primitive_desc_t chosen = NULL;
    dnnl_primitive_attr_t attributes = NULL;
    dnnl_post_ops_t after = NULL;
    if (!describe(&desc[0], plan->m, plan->k, plan->form == CHARLM_TN, plan->in) ||
        !describe(&desc[1], plan->k, plan->n, plan->form == CHARLM_NT, plan->in) ||
        !describe(&desc[2], plan->m, plan->n, false, plan->out) ||
        dnnl_matmul_desc_init(&matmul, &desc[0], &desc[1], NULL, &desc[2]) != dnnl_success)
        return;
    bool ok = dnnl_primitive_attr_create(&attributes) == dnnl_success && dnnl_post_ops_create(&after) == dnnl_success;
    if (ok && plan->accumulate)
        ok = dnnl_post_ops_append_sum(after, 1.0f) == dnnl_success &&
             dnnl_primitive_attr_set_post_ops(attributes, after) == dnnl_success;
    ok = ok && dnnl_primitive_desc_create(&chosen, &matmul, attributes, products->engine, NULL) == dnnl_success;
    for (size_t i = 0; ok && i < 3; i++)
        ok = dnnl_memory_create(&plan->memory[i], &desc[i], products->engine, DNNL_MEMORY_NONE) == dnnl_success;
    if (ok && dnnl_primitive_create(&plan->primitive, chosen) != dnnl_success)
        plan->primitive = NULL;
    if (chosen != NULL)
        (void)dnnl_primitive_desc_destroy(chosen);
    if (after != NULL)
        (void)dnnl_post_ops_destroy(after);
    if (attributes != NULL)
        (void)dnnl_primitive_attr_destroy(attributes);
}

/* The plan of a product, found or made; NULL if there are too many. */
static struct charlm_plan *plan_of(struct charlm_products *products, const struct charlm_plan *wanted)
{
    for (size_t i = 0; i < products->plans_count; i++) {
        struct charlm_plan *plan = &products->plans[i];
        if (plan->form == wanted->form && plan->m == wanted->m && plan->n == wanted->n && plan->k == wanted->k &&
            plan->in == wanted->in && plan->out == wanted->out && plan->accumulate == wanted->accumulate)
            return plan;
    }
    if (products->plans_count == CHARLM_PLANS_MAX)
        return NULL;
    struct charlm_plan *plan = &products->plans[products->plans_count++];
    *plan = *wanted;
    make_primitive(products, plan);
    return plan;
}

static int execute(const struct charlm_products *products, const struct charlm_plan *plan, const void *a, const void *b,
                   void *out)
{
    /* oneDNN has no pointers to const; it only reads the first two. */
    void *data[3] = {(void *)(size_t)a, (void *)(size_t)b, out};
    for (size_t i = 0; i < 3; i++)
        if (dnnl_memory_set_data_handle(plan->memory[i], data[i]) != dnnl_success)
            return -1;
    const dnnl_exec_arg_t arguments[3] = {
        {DNNL_ARG_SRC, plan->memory[0]}, {DNNL_ARG_WEIGHTS, plan->memory[1]}, {DNNL_ARG_DST, plan->memory[2]}};
    return dnnl_primitive_execute(plan->primitive, products->stream, 3, arguments) == dnnl_success ? 0 : -1;
}

/* Scratch of at least `count` floats, or NULL. */
static float *wide_buffer(struct charlm_products *products, size_t index, size_t count)
{
    if (products->wide_count[index] < count) {
        free(products->wide[index]);
        products->wide[index] = malloc(count * sizeof(float));
        products->wide_count[index] = products->wide[index] != NULL ? count : 0;
    }
    return products->wide[index];
}

/* In fp32, which has every value of the operands; the result is rounded once. */
static int multiply_widened(struct charlm_products *products, const struct charlm_plan *plan,
                            const struct amp_tensor_view *a, const struct amp_tensor_view *b, void *out)
{
    float *wide_a = wide_buffer(products, 0, plan->m * plan->k), *wide_b = wide_buffer(products, 1, plan->k * plan->n);
    float *result = plan->out == AMP_F32 ? out : wide_buffer(products, 2, plan->m * plan->n);
    if (wide_a == NULL || wide_b == NULL || result == NULL)
        return -1;
    amp_cast(products->kernels, wide_a, AMP_F32, a->data, plan->in, plan->m * plan->k);
    amp_cast(products->kernels, wide_b, AMP_F32, b->data, plan->in, plan->k * plan->n);
    multiply_f32(plan->form, plan->m, plan->n, plan->k, wide_a, wide_b, plan->accumulate, result);
    if (plan->out != AMP_F32)
        amp_cast(products->kernels, out, plan->out, result, AMP_F32, plan->m * plan->n);
    return 0;
}

int charlm_product(struct charlm_products *products, enum charlm_form form, size_t m, size_t n, size_t k,
                   const struct amp_tensor_view *a, const struct amp_tensor_view *b, void *out,
                   enum amp_dtype out_dtype, bool accumulate, struct amp_error *error)
{
    if (a->dtype == AMP_F32 && out_dtype == AMP_F32) {
        multiply_f32(form, m, n, k, a->data, b->data, accumulate, out);
        return 0;
    }
    struct charlm_plan wanted = {
        .form = form, .m = m, .n = n, .k = k, .in = a->dtype, .out = out_dtype, .accumulate = accumulate};
    struct charlm_plan *plan = plan_of(products, &wanted);
    if (plan == NULL)
        return failed(error, AMP_EEXHAUSTED, "more different sizes than CHARLM_PLANS_MAX; raise it");
    if (plan->primitive == NULL)
        return multiply_widened(products, plan, a, b, out) == 0 ? 0 : failed(error, AMP_ENOMEM, "out of memory");
    return execute(products, plan, a->data, b->data, out) == 0 ? 0 : failed(error, AMP_EIO, "oneDNN failed");
}
