/*
 * One variant against the reference, in the manner of checkasm: the same bits for every operation, dtype, length from 0
 * to 257, misalignment, and bit patterns biased to extremes; and nothing written behind the end.
 */
#include "tests/kernels/inputs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define LONGEST 257
#define OFFSETS 64                          /* bytes of misalignment of powers, which no variant has of its own */
#define GUARD   64                          /* bytes behind the end that must stay as they are */
#define ROOM    ((LONGEST + 4) * 4 + GUARD) /* with up to three elements of misalignment */

static const struct amp_kernels *variant;
static const struct amp_kernels *reference = &amp_kernels_ref;
static const enum amp_dtype dtypes[] = {AMP_F32, AMP_F16, AMP_BF16};
#define DTYPES (sizeof dtypes / sizeof dtypes[0])

/* Two equal buffers: what the variant writes and what the reference writes. */
struct pair {
    _Alignas(64) unsigned char ours[ROOM];
    _Alignas(64) unsigned char theirs[ROOM];
};

static void pair_fill(struct pair *pair, struct amp_random *random, enum amp_dtype dtype)
{
    input_fill(random, pair->ours, dtype, ROOM / amp_dtype_size(dtype));
    memcpy(pair->theirs, pair->ours, ROOM);
}

static float *at(void *buffer, size_t skip)
{
    return (float *)buffer + skip;
}

/* Sums and products may leave any NaN; all others are compared as bits. */
static void forgive_nan(float *x, size_t n)
{
    reference->load[AMP_F32](x, x, n);
}

/* Each length with each misalignment of source and destination, in elements. */
#define EACH_SHAPE(n, skip, random)                                                                                    \
    struct amp_random random;                                                                                          \
    amp_random_init(&random, 1);                                                                                       \
    for (size_t n = 0; n <= LONGEST; n++)                                                                              \
        for (size_t skip = 0; skip < 3; skip++)

static void load_gives_the_references_bits(void **state)
{
    for (size_t d = 0; d < DTYPES; d++) {
        EACH_SHAPE(n, skip, random)
        {
            struct pair out;
            _Alignas(64) unsigned char in[ROOM];
            pair_fill(&out, &random, AMP_F32);
            input_fill(&random, in, dtypes[d], ROOM / amp_dtype_size(dtypes[d]));
            const void *src = in + skip * amp_dtype_size(dtypes[d]);
            variant->load[dtypes[d]](at(out.ours, 2 - skip), src, n);
            reference->load[dtypes[d]](at(out.theirs, 2 - skip), src, n);
            assert_memory_equal(out.ours, out.theirs, ROOM);
        }
    }
}

static void load_agrees_on_every_16_bit_value(void **state)
{
    uint16_t *in = malloc(0x10000 * sizeof *in);
    float *ours = malloc(0x10000 * sizeof *ours);
    float *theirs = malloc(0x10000 * sizeof *theirs);
    assert_true(in && ours && theirs);
    for (size_t i = 0; i < 0x10000; i++)
        in[i] = (uint16_t)i;
    for (size_t d = 1; d < DTYPES; d++) {
        variant->load[dtypes[d]](ours, in, 0x10000);
        reference->load[dtypes[d]](theirs, in, 0x10000);
        assert_memory_equal(ours, theirs, 0x10000 * sizeof *ours);
    }
    free(theirs);
    free(ours);
    free(in);
}

static void store_gives_the_references_bits_and_largest(void **state)
{
    for (size_t d = 0; d < DTYPES; d++) {
        EACH_SHAPE(n, skip, random)
        {
            struct pair out;
            _Alignas(64) unsigned char in[ROOM];
            pair_fill(&out, &random, dtypes[d]);
            input_fill(&random, in, AMP_F32, ROOM / 4);
            size_t start = (2 - skip) * amp_dtype_size(dtypes[d]);
            uint32_t ours = variant->store[dtypes[d]](out.ours + start, at(in, skip), n);
            uint32_t theirs = reference->store[dtypes[d]](out.theirs + start, at(in, skip), n);
            assert_int_equal(ours, theirs);
            assert_memory_equal(out.ours, out.theirs, ROOM);
        }
    }
}

/*
 * Long enough for blocks that are gone through by their parts, with what is left over; NaN and Inf in the first block
 * alone.
 */
static void a_long_store_past_the_caches_gives_the_references_bits(void **state)
{
    enum { N = 2 * 65536 + 77, AHEAD = 40 };
    float *in = malloc((N + 4) * sizeof *in);
    unsigned char *ours = malloc(N * 4 + AHEAD + GUARD), *theirs = malloc(N * 4 + AHEAD + GUARD);
    assert_true(in && ours && theirs);
    struct amp_random random;
    amp_random_init(&random, 1);
    for (size_t i = 0; i < N + 4; i++)
        in[i] = i < 65536 ? input_any(&random) : input_spread(&random, -20, 20);
    for (size_t d = 0; d < DTYPES; d++) {
        size_t size = amp_dtype_size(dtypes[d]);
        for (size_t skip = 0; skip * size <= AHEAD; skip += 1 + skip * 2) {
            memset(ours, 1, N * 4 + AHEAD + GUARD);
            memset(theirs, 1, N * 4 + AHEAD + GUARD);
            uint32_t a = variant->store_stream[dtypes[d]](ours + skip * size, in + skip % 4, N);
            uint32_t b = reference->store_stream[dtypes[d]](theirs + skip * size, in + skip % 4, N);
            variant->store_fence();
            assert_int_equal(a, b);
            assert_memory_equal(ours, theirs, N * 4 + AHEAD + GUARD);
        }
    }
    free(theirs);
    free(ours);
    free(in);
}

static void a_long_load_past_the_caches_gives_the_references_bits(void **state)
{
    enum { N = 2 * 65536 + 77, AHEAD = 40 };
    uint16_t *in = malloc((N + 4) * sizeof *in);
    unsigned char *ours = malloc(N * 4 + AHEAD + GUARD), *theirs = malloc(N * 4 + AHEAD + GUARD);
    assert_true(in && ours && theirs);
    for (size_t i = 0; i < N + 4; i++)
        in[i] = (uint16_t)(i * 40503);
    for (size_t d = 1; d < DTYPES; d++) {
        for (size_t skip = 0; skip <= AHEAD; skip += 1 + skip * 2) {
            memset(ours, 1, N * 4 + AHEAD + GUARD);
            memset(theirs, 1, N * 4 + AHEAD + GUARD);
            variant->load_stream[dtypes[d]]((float *)(void *)(ours + skip), in + skip % 4, N);
            reference->load_stream[dtypes[d]]((float *)(void *)(theirs + skip), in + skip % 4, N);
            variant->store_fence();
            assert_memory_equal(ours, theirs, N * 4 + AHEAD + GUARD);
        }
    }
    free(theirs);
    free(ours);
    free(in);
}

/* Every exponent and every pattern of the bits that decide a rounding. */
static void store_agrees_on_a_sweep_of_all_exponents(void **state)
{
    enum { N = 1 << 16 };
    float *in = malloc(N * sizeof *in);
    uint16_t *ours = malloc(N * sizeof *ours);
    uint16_t *theirs = malloc(N * sizeof *theirs);
    assert_true(in && ours && theirs);
    /* 2^26 patterns: the 2^16 upper halves with 1,024 lower halves each. */
    for (uint32_t low = 0; low < 0x10000; low += 64 + low % 7) {
        for (uint32_t i = 0; i < N; i++) {
            uint32_t bits = i << 16 | low;
            memcpy(&in[i], &bits, 4);
        }
        for (size_t d = 1; d < DTYPES; d++) {
            (void)variant->store[dtypes[d]](ours, in, N);
            (void)reference->store[dtypes[d]](theirs, in, N);
            assert_memory_equal(ours, theirs, N * sizeof *ours);
        }
    }
    free(theirs);
    free(ours);
    free(in);
}

/* Only finite inputs, or with a few that are not: the fast look and the slow one. */
static void make_finite(void *data, enum amp_dtype dtype, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        float x;
        const float one = 1;
        char *element = (char *)data + i * amp_dtype_size(dtype);
        reference->load[dtype](&x, element, 1);
        if (!(x - x == 0))
            (void)reference->store[dtype](element, &one, 1);
    }
}

static void check_finds_the_same(void **state)
{
    for (size_t d = 0; d < DTYPES; d++) {
        EACH_SHAPE(n, skip, random)
        {
            _Alignas(64) unsigned char in[ROOM];
            input_fill(&random, in, dtypes[d], ROOM / amp_dtype_size(dtypes[d]));
            if (n % 3 != 0)
                make_finite(in, dtypes[d], ROOM / amp_dtype_size(dtypes[d]));
            struct amp_check ours = AMP_CHECK_INIT;
            struct amp_check theirs = AMP_CHECK_INIT;
            const void *src = in + skip * amp_dtype_size(dtypes[d]);
            variant->check[dtypes[d]](src, n, 1000, &ours);
            reference->check[dtypes[d]](src, n, 1000, &theirs);
            assert_int_equal(ours.inf_count, theirs.inf_count);
            assert_int_equal(ours.nan_count, theirs.nan_count);
            assert_true(ours.first == theirs.first);
            assert_memory_equal(&ours.largest, &theirs.largest, sizeof ours.largest);
        }
    }
}

static void check_finds_one_bad_element_anywhere_in_a_long_input(void **state)
{
    enum { N = 5000 };
    static const uint16_t bad[] = {[AMP_F16] = 0xfc00, [AMP_BF16] = 0x7f81};
    uint16_t *in = malloc(N * sizeof *in);
    assert_non_null(in);
    for (size_t d = 1; d < DTYPES; d++) {
        for (size_t i = 0; i < N; i += 97) {
            for (size_t j = 0; j < N; j++)
                in[j] = 0x3c00;
            in[i] = bad[dtypes[d]];
            struct amp_check check = AMP_CHECK_INIT;
            variant->check[dtypes[d]](in, N, 0, &check);
            assert_int_equal(check.first, i);
            assert_int_equal(check.inf_count + check.nan_count, 1);
            assert_int_equal(check.inf_count, dtypes[d] == AMP_F16);
        }
    }
    free(in);
}

static void sums_give_the_references_bits(void **state)
{
    for (size_t d = 0; d < DTYPES; d++) {
        EACH_SHAPE(n, skip, random)
        {
            struct pair sum;
            _Alignas(64) unsigned char in[ROOM];
            pair_fill(&sum, &random, AMP_F32);
            input_fill(&random, in, dtypes[d], ROOM / amp_dtype_size(dtypes[d]));
            const void *src = in + skip * amp_dtype_size(dtypes[d]);
            float weight = n % 2 ? 1.0f : 0.3f * (float)n;
            variant->sum_set[dtypes[d]](at(sum.ours, skip), src, weight, n / 2);
            reference->sum_set[dtypes[d]](at(sum.theirs, skip), src, weight, n / 2);
            variant->sum_add[dtypes[d]](at(sum.ours, skip), src, weight, n);
            reference->sum_add[dtypes[d]](at(sum.theirs, skip), src, weight, n);
            forgive_nan(at(sum.ours, skip), n);
            forgive_nan(at(sum.theirs, skip), n);
            assert_memory_equal(sum.ours, sum.theirs, ROOM);
        }
    }
}

static void scale_gives_the_references_bits_and_largest(void **state)
{
    static const float factors[] = {1.0f, 0x1p-16f, 1.0f / 3, 0x1p40f, 0x1p-140f};
    EACH_SHAPE(n, skip, random)
    {
        struct pair out;
        _Alignas(64) unsigned char in[ROOM];
        pair_fill(&out, &random, AMP_F32);
        input_fill(&random, in, AMP_F32, ROOM / 4);
        float factor = factors[n % 5];
        uint32_t ours = variant->scale(at(out.ours, 2 - skip), at(in, skip), factor, n);
        uint32_t theirs = reference->scale(at(out.theirs, 2 - skip), at(in, skip), factor, n);
        assert_int_equal(ours, theirs);
        assert_memory_equal(out.ours, out.theirs, ROOM);
    }
}

/* Inputs of one dtype or of several, up to more than twice what a variant sums in registers. */
static void form_gives_the_references_bits_and_largest(void **state)
{
    EACH_SHAPE(n, skip, random)
    {
        static _Alignas(64) unsigned char in[20][ROOM];
        struct amp_input inputs[20];
        struct pair out;
        unsigned count = n % 13 == 0 ? 17 + (unsigned)skip : n % 13 == 1 ? 6 + (unsigned)n % 11 : 1 + (unsigned)n % 5;
        for (unsigned j = 0; j < count; j++) {
            enum amp_dtype dtype = dtypes[n % 4 == 0 ? j % DTYPES : n % DTYPES];
            input_fill(&random, in[j], dtype, ROOM / amp_dtype_size(dtype));
            inputs[j] = (struct amp_input){in[j], dtype, 0.25f * (float)j};
        }
        pair_fill(&out, &random, AMP_F32);
        uint32_t ours = variant->form(inputs, count, n % 2, 1.0f / 3, 2 - skip, n, at(out.ours, skip));
        uint32_t theirs = reference->form(inputs, count, n % 2, 1.0f / 3, 2 - skip, n, at(out.theirs, skip));
        assert_int_equal(ours, theirs);
        assert_memory_equal(out.ours, out.theirs, ROOM);
    }
}

static void clip_by_value_gives_the_references_bits(void **state)
{
    static const float limits[] = {0.0f, 1.0f, 0x1p-140f, 0x1p63f, 3e38f};
    EACH_SHAPE(n, skip, random)
    {
        struct pair out;
        pair_fill(&out, &random, AMP_F32);
        variant->clip_value(at(out.ours, skip), limits[n % 5], n);
        reference->clip_value(at(out.theirs, skip), limits[n % 5], n);
        assert_memory_equal(out.ours, out.theirs, ROOM);
    }
}

static void squares_give_the_references_bits(void **state)
{
    EACH_SHAPE(n, skip, random)
    {
        _Alignas(64) unsigned char in[ROOM];
        input_fill(&random, in, AMP_F32, ROOM / 4);
        make_finite(in, AMP_F32, ROOM / 4);
        double ours[AMP_SQUARE_LANES];
        double theirs[AMP_SQUARE_LANES];
        for (size_t i = 0; i < AMP_SQUARE_LANES; i++)
            ours[i] = theirs[i] = (double)i * 0.1;
        variant->squares(at(in, skip), n, ours);
        reference->squares(at(in, skip), n, theirs);
        assert_memory_equal(ours, theirs, sizeof ours);
    }
}

static void largest_is_the_references(void **state)
{
    for (size_t d = 0; d < DTYPES; d++) {
        EACH_SHAPE(n, skip, random)
        {
            _Alignas(64) unsigned char in[ROOM];
            input_fill(&random, in, dtypes[d], ROOM / amp_dtype_size(dtypes[d]));
            if (n % 3 != 0)
                make_finite(in, dtypes[d], ROOM / amp_dtype_size(dtypes[d]));
            const void *src = in + skip * amp_dtype_size(dtypes[d]);
            assert_int_equal(variant->largest[dtypes[d]](src, n), reference->largest[dtypes[d]](src, n));
        }
    }
}

static void magnitudes_and_powers_give_the_references_bits(void **state)
{
    EACH_SHAPE(n, skip, random)
    {
        _Alignas(64) unsigned char in[ROOM];
        input_fill(&random, in, AMP_F32, ROOM / 4);
        make_finite(in, AMP_F32, ROOM / 4);
        double ours[AMP_SQUARE_LANES];
        double theirs[AMP_SQUARE_LANES];
        for (size_t i = 0; i < AMP_SQUARE_LANES; i++)
            ours[i] = theirs[i] = (double)i * 0.1;
        variant->magnitudes(at(in, skip), n, ours);
        reference->magnitudes(at(in, skip), n, theirs);
        variant->powers(at(in, skip), n, 1 + 0.1 * (double)n, 3.4028235e38f, ours);
        _Alignas(64) unsigned char moved[ROOM + OFFSETS];
        size_t bytes = (n * 3 + skip * 21) % OFFSETS;
        memcpy(moved + bytes, at(in, skip), n * 4);
        reference->powers((const float *)(const void *)(moved + bytes), n, 1 + 0.1 * (double)n, 3.4028235e38f, theirs);
        assert_memory_equal(ours, theirs, sizeof ours);
    }
}

static struct amp_apply_scalars make_scalars(enum amp_optimizer optimizer, struct amp_random *random, size_t n)
{
    struct amp_apply_scalars k = {
        .clip = n % 3 ? 1.0f : 0.37f,
        .nesterov = n % 4 == 1,
        .first_step = n % 5 == 0,
        .centered = n % 4 == 2,
        .lr = 0.1 * amp_random_unit(random),
        .weight_decay = n % 2 ? 0.01 : 0,
        .momentum = 0.9,
        .keep = 1 - (n % 7 ? 0 : 0.25),
        .beta1 = 0.9,
        .rest1 = 1 - 0.9,
        .beta2 = 0.999,
        .rest2 = 1 - 0.999,
        .eps = 1e-8,
        .rate = 1e-3,
        .decay = 1e-5,
    };
    k.beta1_f = (float)k.beta1;
    k.rest1_f = (float)k.rest1;
    k.beta2_f = (float)k.beta2;
    k.rest2_f = (float)k.rest2;
    k.eps_f = (float)k.eps;
    k.rate_f = (float)k.rate;
    k.decay_f = (float)k.decay;
    k.guard_fresh = (float)(0.4 * k.rate);
    k.guard_keep = n % 6 ? 0.2f : 0;
    return k;
}

/* Bits of any kind for every second length, else numbers as in training, where both branches of AdamW are taken. */
static void fill_state(struct pair *pair, struct amp_random *random, bool any, int low, int high)
{
    pair_fill(pair, random, AMP_F32);
    if (any)
        return;
    for (size_t i = 0; i < ROOM / 4; i++)
        *at(pair->ours, i) = input_spread(random, low, high);
    memcpy(pair->theirs, pair->ours, ROOM);
}

static void check_apply(enum amp_optimizer optimizer, bool with_m, bool with_v)
{
    EACH_SHAPE(n, skip, random)
    {
        struct pair g, p, m, v;
        bool any = n % 2;
        fill_state(&g, &random, any, -20, 2);
        fill_state(&p, &random, any, -14, 1);
        fill_state(&m, &random, any, -20, 2);
        fill_state(&v, &random, any, -40, 4);
        for (size_t i = 0; i < ROOM / 4; i++) {
            *at(v.ours, i) = *at(v.ours, i) < 0 ? -*at(v.ours, i) : *at(v.ours, i);
            *at(v.theirs, i) = *at(v.ours, i);
        }
        struct amp_apply_scalars k = make_scalars(optimizer, &random, n);
        variant->apply[optimizer](&k, n, at(g.ours, skip), at(p.ours, 2 - skip), with_m ? at(m.ours, skip) : NULL,
                                  with_v ? at(v.ours, 1) : NULL);
        reference->apply[optimizer](&k, n, at(g.theirs, skip), at(p.theirs, 2 - skip),
                                    with_m ? at(m.theirs, skip) : NULL, with_v ? at(v.theirs, 1) : NULL);
        assert_memory_equal(p.ours, p.theirs, ROOM);
        assert_memory_equal(m.ours, m.theirs, ROOM);
        assert_memory_equal(v.ours, v.theirs, ROOM);
    }
}

static void sgd_gives_the_references_bits(void **state)
{
    check_apply(AMP_OPT_SGD, true, true);
    check_apply(AMP_OPT_SGD, false, false);
}

static void adamw_gives_the_references_bits(void **state)
{
    check_apply(AMP_OPT_ADAMW, true, true);
}

static void adam_gives_the_references_bits(void **state)
{
    check_apply(AMP_OPT_ADAM, true, true);
}

static void adagrad_gives_the_references_bits(void **state)
{
    check_apply(AMP_OPT_ADAGRAD, true, false);
    check_apply(AMP_OPT_ADAGRAD, true, true);
}

static void rmsprop_gives_the_references_bits(void **state)
{
    check_apply(AMP_OPT_RMSPROP, true, false);
    check_apply(AMP_OPT_RMSPROP, true, true);
}

static void lion_gives_the_references_bits(void **state)
{
    check_apply(AMP_OPT_LION, true, false);
    check_apply(AMP_OPT_LION, true, true);
}

static void lamb_gives_the_references_bits(void **state)
{
    check_apply(AMP_OPT_LAMB, true, true);
}

static void lamb_squares_give_the_references_bits(void **state)
{
    EACH_SHAPE(n, skip, random)
    {
        struct pair g, p, m, v;
        fill_state(&g, &random, false, -20, 2);
        fill_state(&p, &random, false, -14, 1);
        fill_state(&m, &random, false, -20, 2);
        fill_state(&v, &random, false, -40, 4);
        for (size_t i = 0; i < ROOM / 4; i++)
            *at(v.ours, i) = *at(v.ours, i) < 0 ? -*at(v.ours, i) : *at(v.ours, i);
        struct amp_apply_scalars k = make_scalars(AMP_OPT_LAMB, &random, n);
        double ours[2][AMP_SQUARE_LANES], theirs[2][AMP_SQUARE_LANES];
        for (size_t i = 0; i < AMP_SQUARE_LANES; i++)
            ours[0][i] = theirs[0][i] = ours[1][i] = theirs[1][i] = (double)i * 0.1;
        variant->lamb_squares(&k, n, at(g.ours, skip), at(p.ours, 2 - skip), at(m.ours, skip), at(v.ours, 1), ours[0],
                              ours[1]);
        reference->lamb_squares(&k, n, at(g.ours, skip), at(p.ours, 2 - skip), at(m.ours, skip), at(v.ours, 1),
                                theirs[0], theirs[1]);
        assert_memory_equal(ours, theirs, sizeof ours);
    }
}

static void every_operation_of_the_reference_is_there(void **state)
{
    for (size_t d = 0; d < DTYPES; d++) {
        enum amp_dtype t = dtypes[d];
        assert_true(variant->load[t] && variant->store[t] && variant->check[t]);
        assert_true(variant->load_stream[t] && variant->store_stream[t]);
        assert_true(variant->sum_set[t] && variant->sum_add[t] && variant->largest[t]);
    }
    for (size_t o = 0; o < AMP_OPTIMIZERS; o++)
        assert_int_equal(variant->apply[o] != NULL, reference->apply[o] != NULL);
    assert_true(variant->scale && variant->form && variant->clip_value && variant->squares);
    assert_true(variant->magnitudes && variant->powers && variant->lamb_squares);
}

int main(int argc, char **argv)
{
    variant = input_variant(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operation_of_the_reference_is_there),
        cmocka_unit_test(load_gives_the_references_bits),
        cmocka_unit_test(load_agrees_on_every_16_bit_value),
        cmocka_unit_test(store_gives_the_references_bits_and_largest),
        cmocka_unit_test(a_long_store_past_the_caches_gives_the_references_bits),
        cmocka_unit_test(a_long_load_past_the_caches_gives_the_references_bits),
        cmocka_unit_test(store_agrees_on_a_sweep_of_all_exponents),
        cmocka_unit_test(check_finds_the_same),
        cmocka_unit_test(check_finds_one_bad_element_anywhere_in_a_long_input),
        cmocka_unit_test(sums_give_the_references_bits),
        cmocka_unit_test(scale_gives_the_references_bits_and_largest),
        cmocka_unit_test(form_gives_the_references_bits_and_largest),
        cmocka_unit_test(clip_by_value_gives_the_references_bits),
        cmocka_unit_test(squares_give_the_references_bits),
        cmocka_unit_test(sgd_gives_the_references_bits),
        cmocka_unit_test(adamw_gives_the_references_bits),
        cmocka_unit_test(adam_gives_the_references_bits),
        cmocka_unit_test(adagrad_gives_the_references_bits),
        cmocka_unit_test(rmsprop_gives_the_references_bits),
        cmocka_unit_test(lion_gives_the_references_bits),
        cmocka_unit_test(lamb_gives_the_references_bits),
        cmocka_unit_test(lamb_squares_give_the_references_bits),
        cmocka_unit_test(largest_is_the_references),
        cmocka_unit_test(magnitudes_and_powers_give_the_references_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
