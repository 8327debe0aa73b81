/*
 * The test that a program makes of its kernels when it starts: every variant passes it, and one wrong result of any
 * kernel is found.
 *
 * Argument: ISA.
 */
#include "amp/cpu.h"
#include "amp/pass.h"
#include "tests/kernels/inputs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const struct amp_kernels *real;
static unsigned row;  /* of the array in which a kernel is wrong */
static unsigned left; /* calls of it that are right before the one that is wrong */

/* One wrong bit in an element among the others, in one call. */
static bool due(void)
{
    return left > 0 && --left == 0;
}

static void damage(void *element)
{
    *(unsigned char *)element ^= 1;
}

static void wrong_load(float *dst, const void *src, size_t n)
{
    real->load[row](dst, src, n);
    if (due())
        damage(&dst[n / 2]);
}

static void wrong_load_stream(float *dst, const void *src, size_t n)
{
    real->load_stream[row](dst, src, n);
    real->store_fence();
    if (due())
        damage(&dst[n / 2]);
}

static uint32_t wrong_store(void *dst, const float *src, size_t n)
{
    uint32_t largest = real->store[row](dst, src, n);
    if (due())
        damage((char *)dst + n / 2 * amp_dtype_size(row));
    return largest;
}

static uint32_t wrong_store_stream(void *dst, const float *src, size_t n)
{
    uint32_t largest = real->store_stream[row](dst, src, n);
    real->store_fence();
    if (due())
        damage((char *)dst + n / 2 * amp_dtype_size(row));
    return largest;
}

static void wrong_check(const void *src, size_t n, uint64_t base, struct amp_check *check)
{
    real->check[row](src, n, base, check);
    check->first += due();
}

static void wrong_sum_set(float *sum, const void *src, float weight, size_t n)
{
    real->sum_set[row](sum, src, weight, n);
    if (due())
        damage(&sum[n / 2]);
}

static void wrong_sum_add(float *sum, const void *src, float weight, size_t n)
{
    real->sum_add[row](sum, src, weight, n);
    if (due())
        damage(&sum[n / 2]);
}

static uint32_t wrong_largest(const void *src, size_t n)
{
    return real->largest[row](src, n) ^ due();
}

static uint32_t wrong_scale(float *dst, const float *src, float factor, size_t n)
{
    uint32_t largest = real->scale(dst, src, factor, n);
    if (due())
        damage(&dst[n / 2]);
    return largest;
}

static uint32_t wrong_form(const struct amp_input *inputs, unsigned count, bool equal, float factor, size_t start,
                           size_t n, float *g)
{
    uint32_t largest = real->form(inputs, count, equal, factor, start, n, g);
    if (due())
        g[n / 2] = -g[n / 2]; /* its last bit may be lost where a step is rounded */
    return largest;
}

static void wrong_clip_value(float *g, float limit, size_t n)
{
    real->clip_value(g, limit, n);
    if (due())
        damage(&g[n / 2]);
}

/* A lane of doubles: in its last bit it would be lost where the lanes are added up. */
static void wrong_squares(const float *g, size_t n, double *lanes)
{
    real->squares(g, n, lanes);
    lanes[5] *= due() ? 1 + 0x1p-24 : 1;
}

static void wrong_magnitudes(const float *g, size_t n, double *lanes)
{
    real->magnitudes(g, n, lanes);
    lanes[5] *= due() ? 1 + 0x1p-24 : 1;
}

static void wrong_powers(const float *g, size_t n, double p, float unit, double *lanes)
{
    real->powers(g, n, p, unit, lanes);
    lanes[5] *= due() ? 1 + 0x1p-24 : 1;
}

static void wrong_lamb_squares(const struct amp_apply_scalars *scalars, size_t n, const float *g, const float *p,
                               const float *m, const float *v, double *masters, double *updates)
{
    real->lamb_squares(scalars, n, g, p, m, v, masters, updates);
    updates[5] *= due() ? 1 + 0x1p-24 : 1;
}

static uint32_t wrong_vote_pass(const struct amp_input *inputs, unsigned count, float factor, float limit, size_t start,
                                size_t n, double *lanes, float *kept)
{
    uint32_t most = real->vote_pass(inputs, count, factor, limit, start, n, lanes, kept);
    if (!due())
        return most;
    lanes[5] *= 1 + 0x1p-24;
    return 0; /* lanes have no meaning where this is not finite, nor then its lower bits */
}

static uint32_t wrong_vote_take(void *to, const void *from, enum amp_dtype dtype, float factor, float limit, size_t n,
                                double *lanes)
{
    uint32_t most = real->vote_take(to, from, dtype, factor, limit, n, lanes);
    real->store_fence();
    if (due())
        damage((char *)to + n / 2 * amp_dtype_size(dtype));
    return most;
}

static void wrong_apply(const struct amp_apply_scalars *scalars, size_t n, const float *g, float *p, float *m, float *v)
{
    real->apply[row](scalars, n, g, p, m, v);
    if (due())
        damage(&p[n / 2]);
}

static uint32_t wrong_apply_pass(const struct amp_apply_scalars *scalars, const struct amp_pass_in *in,
                                 enum amp_dtype cast, float *p, float *m, float *v, void *copy)
{
    uint32_t largest = real->apply_pass[row](scalars, in, cast, p, m, v, copy);
    if (due())
        damage(&v[in->count / 2]);
    return largest;
}

/* Calls of the wrong kernel in a test that passes, and whether a test finds that the last of them is wrong. */
static void expect_found(struct amp_kernels table, const char *kernel)
{
    struct amp_error error;
    left = UINT32_MAX;
    assert_int_equal(amp_kernels_verify(&table, &error), 0);
    unsigned calls = UINT32_MAX - left;
    for (unsigned call = 1; call <= calls; call += calls > 1 ? calls - 1 : 1) {
        left = call;
        int code = amp_kernels_verify(&table, &error);
        if (code != AMP_EINTERNAL)
            print_message("%s, row %u, call %u of %u\n", kernel, row, call, calls);
        assert_int_equal(code, AMP_EINTERNAL);
        assert_non_null(strstr(error.text, real->isa));
    }
    assert_true(calls > 0);
}

#define EXPECT_FOUND(MEMBER)                                                                                           \
    do {                                                                                                               \
        struct amp_kernels table = *real;                                                                              \
        table.MEMBER = wrong_##MEMBER;                                                                                 \
        expect_found(table, #MEMBER);                                                                                  \
    } while (0)

#define EXPECT_FOUND_IN(MEMBER)                                                                                        \
    do {                                                                                                               \
        struct amp_kernels table = *real;                                                                              \
        table.MEMBER[row] = wrong_##MEMBER;                                                                            \
        expect_found(table, #MEMBER);                                                                                  \
    } while (0)

static void the_kernels_of_this_processor_are_right(void **state)
{
    struct amp_error error = {0};
    int code = amp_kernels_verify(real, &error);
    if (code != 0)
        print_message("%s\n", error.text);
    assert_int_equal(code, 0);
}

static void one_wrong_result_of_a_kernel_is_found(void **state)
{
    EXPECT_FOUND(scale);
    EXPECT_FOUND(form);
    EXPECT_FOUND(clip_value);
    EXPECT_FOUND(squares);
    EXPECT_FOUND(magnitudes);
    EXPECT_FOUND(powers);
    EXPECT_FOUND(lamb_squares);
    if (real->vote_pass != NULL)
        EXPECT_FOUND(vote_pass);
    if (real->vote_take != NULL)
        EXPECT_FOUND(vote_take);
}

static void one_wrong_result_for_a_dtype_is_found(void **state)
{
    for (row = AMP_F32; row <= AMP_BF16; row++) {
        EXPECT_FOUND_IN(load);
        EXPECT_FOUND_IN(store);
        EXPECT_FOUND_IN(load_stream);
        EXPECT_FOUND_IN(store_stream);
        EXPECT_FOUND_IN(check);
        EXPECT_FOUND_IN(sum_set);
        EXPECT_FOUND_IN(sum_add);
        EXPECT_FOUND_IN(largest);
    }
}

static void one_wrong_result_of_an_optimizer_is_found(void **state)
{
    for (row = AMP_OPT_SGD; row < AMP_OPTIMIZERS; row++) {
        EXPECT_FOUND_IN(apply);
        if (real->apply_pass[row] != NULL)
            EXPECT_FOUND_IN(apply_pass);
    }
}

int main(int argc, char **argv)
{
    real = input_variant(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_kernels_of_this_processor_are_right),
        cmocka_unit_test(one_wrong_result_of_a_kernel_is_found),
        cmocka_unit_test(one_wrong_result_for_a_dtype_is_found),
        cmocka_unit_test(one_wrong_result_of_an_optimizer_is_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
