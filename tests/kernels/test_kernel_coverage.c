/*
 * Every operation of a variant against the reference over the inputs that could tell them apart: all 16-bit values, all
 * ties and their neighbours, random bit patterns biased to extremes, lengths 0 to 257 with each pointer alone and all
 * together at every offset in bytes within a cache line; and nothing written outside.
 *
 * Arguments: ISA [native | emulated]. Emulated processors take fewer patterns, and offsets at one length.
 * AMPD_TEST_LONG in the environment asks for 10^8 patterns.
 */
#include "amp/pass.h"
#include "tests/kernels/inputs.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#ifdef __SSE__
#include <xmmintrin.h>
#define FLUSH 0x8040u /* FTZ and DAZ of MXCSR */
#endif

#ifdef AMP_KERNELS_SMALL /* beside sanitizers: a chunk for each set of scalars */
#define PATTERNS (SCALARS * CHUNK)
#else
#define PATTERNS 1000000
#endif
#define PATTERNS_LONG   100000000
#define LONGEST         257
#define EMULATED_LENGTH 129 /* the one length at which an emulated processor sees all offsets */
#define OFFSET_END      64
#define GUARD           64 /* bytes behind the end that must stay as they are */
#define ROOM            (OFFSET_END + LONGEST * 4 + GUARD)
#define POINTERS        4
#define CHUNK           65536 /* every 16-bit value once */
#define SCALARS         3     /* sets of scalars that operations are run with */
#define WEIGHT          0.3f

static const struct amp_kernels *variant;
static const struct amp_kernels *reference = &amp_kernels_ref;
static bool emulated;

/* What an operation returns besides what it writes. */
struct result {
    uint32_t bits;
    struct amp_check check;
    double lanes[2][AMP_SQUARE_LANES];
};

struct op;
typedef void call_fn(const struct amp_kernels *kernels, const struct op *op, unsigned set, void *const *at, size_t n,
                     struct result *result);

/* An operation: the dtype of what each pointer leads to (NONE: not used), and how it is called. */
struct op {
    const char *name;
    call_fn *call;
    enum amp_dtype pointers[POINTERS];
    enum amp_dtype dtype;
    enum amp_optimizer optimizer;
    double momentum;
    bool centered;
    bool any_nan; /* sums may leave any NaN */
};

static void call_load(const struct amp_kernels *kernels, const struct op *op, unsigned set, void *const *at, size_t n,
                      struct result *result)
{
    kernels->load[op->dtype](at[0], at[1], n);
}

static void call_store(const struct amp_kernels *kernels, const struct op *op, unsigned set, void *const *at, size_t n,
                       struct result *result)
{
    result->bits = kernels->store[op->dtype](at[0], at[1], n);
}

static void call_load_stream(const struct amp_kernels *kernels, const struct op *op, unsigned set, void *const *at,
                             size_t n, struct result *result)
{
    kernels->load_stream[op->dtype](at[0], at[1], n);
}

static void call_store_stream(const struct amp_kernels *kernels, const struct op *op, unsigned set, void *const *at,
                              size_t n, struct result *result)
{
    result->bits = kernels->store_stream[op->dtype](at[0], at[1], n);
}

static void call_check(const struct amp_kernels *kernels, const struct op *op, unsigned set, void *const *at, size_t n,
                       struct result *result)
{
    kernels->check[op->dtype](at[0], n, 1000 * set, &result->check);
}

static void call_largest(const struct amp_kernels *kernels, const struct op *op, unsigned set, void *const *at,
                         size_t n, struct result *result)
{
    result->bits = kernels->largest[op->dtype](at[0], n);
}

static void call_sum_set(const struct amp_kernels *kernels, const struct op *op, unsigned set, void *const *at,
                         size_t n, struct result *result)
{
    kernels->sum_set[op->dtype](at[0], at[1], set == 0 ? 1.0f : WEIGHT, n);
}

static void call_sum_add(const struct amp_kernels *kernels, const struct op *op, unsigned set, void *const *at,
                         size_t n, struct result *result)
{
    kernels->sum_add[op->dtype](at[0], at[1], set == 0 ? 1.0f : WEIGHT, n);
}

static void call_scale(const struct amp_kernels *kernels, const struct op *op, unsigned set, void *const *at, size_t n,
                       struct result *result)
{
    static const float factors[SCALARS] = {0x1p-16f, 1.0f / 3, 0x1p40f};
    result->bits = kernels->scale(at[0], at[1], factors[set], n);
}

static void call_form(const struct amp_kernels *kernels, const struct op *op, unsigned set, void *const *at, size_t n,
                      struct result *result)
{
    struct amp_input inputs[POINTERS - 1];
    for (unsigned i = 0; i < POINTERS - 1; i++)
        inputs[i] = (struct amp_input){at[1 + i], op->pointers[1 + i], WEIGHT * (float)(i + 1)};
    result->bits = kernels->form(inputs, POINTERS - 1, set == 0, 1.0f / 3, 0, n, at[0]);
}

static void call_clip_value(const struct amp_kernels *kernels, const struct op *op, unsigned set, void *const *at,
                            size_t n, struct result *result)
{
    static const float limits[SCALARS] = {1.0f, 0.0f, 0x1p63f};
    kernels->clip_value(at[0], limits[set], n);
}

static void call_squares(const struct amp_kernels *kernels, const struct op *op, unsigned set, void *const *at,
                         size_t n, struct result *result)
{
    kernels->squares(at[0], n, result->lanes[0]);
}

static void call_magnitudes(const struct amp_kernels *kernels, const struct op *op, unsigned set, void *const *at,
                            size_t n, struct result *result)
{
    kernels->magnitudes(at[0], n, result->lanes[0]);
}

static void make_scalars(const struct op *op, unsigned set, struct amp_apply_scalars *scalars)
{
    struct amp_optim_config config;
    struct amp_apply apply;
    amp_optim_defaults(op->optimizer, &config);
    config.weight_decay = set == 1 ? 0.01 : 0;
    config.momentum = op->momentum;
    config.centered = op->centered;
    config.nesterov = op->optimizer == AMP_OPT_SGD && op->momentum > 0 && set == 1;
    amp_optim_scalars(&config, set + 1, set == 2 ? 0.5 : config.lr, set == 1 ? 0.37f : 1, &apply);
    apply.first_step = set == 2;
    apply.trust = 1.5;
    amp_apply_prepare(&apply, scalars);
}

static void call_apply(const struct amp_kernels *kernels, const struct op *op, unsigned set, void *const *at, size_t n,
                       struct result *result)
{
    struct amp_apply_scalars scalars;
    make_scalars(op, set, &scalars);
    kernels->apply[op->optimizer](&scalars, n, at[0], at[1], at[2], at[3]);
}

static void call_lamb_squares(const struct amp_kernels *kernels, const struct op *op, unsigned set, void *const *at,
                              size_t n, struct result *result)
{
    struct amp_apply_scalars scalars;
    make_scalars(op, set, &scalars);
    kernels->lamb_squares(&scalars, n, at[0], at[1], at[2], at[3], result->lanes[0], result->lanes[1]);
}

#define F AMP_F32
#define H AMP_F16
#define B AMP_BF16

static const struct op ops[] = {
    {"load f32", call_load, {F, F}, .dtype = F},
    {"load f16", call_load, {F, H}, .dtype = H},
    {"load bf16", call_load, {F, B}, .dtype = B},
    {"store f32", call_store, {F, F}, .dtype = F},
    {"store f16", call_store, {H, F}, .dtype = H},
    {"store bf16", call_store, {B, F}, .dtype = B},
    {"load f16 past the caches", call_load_stream, {F, H}, .dtype = H},
    {"load bf16 past the caches", call_load_stream, {F, B}, .dtype = B},
    {"store f32 past the caches", call_store_stream, {F, F}, .dtype = F},
    {"store f16 past the caches", call_store_stream, {H, F}, .dtype = H},
    {"store bf16 past the caches", call_store_stream, {B, F}, .dtype = B},
    {"check f32", call_check, {F}, .dtype = F},
    {"check f16", call_check, {H}, .dtype = H},
    {"check bf16", call_check, {B}, .dtype = B},
    {"largest f32", call_largest, {F}, .dtype = F},
    {"largest f16", call_largest, {H}, .dtype = H},
    {"largest bf16", call_largest, {B}, .dtype = B},
    {"sum_set f32", call_sum_set, {F, F}, .dtype = F, .any_nan = true},
    {"sum_set f16", call_sum_set, {F, H}, .dtype = H, .any_nan = true},
    {"sum_set bf16", call_sum_set, {F, B}, .dtype = B, .any_nan = true},
    {"sum_add f32", call_sum_add, {F, F}, .dtype = F, .any_nan = true},
    {"sum_add f16", call_sum_add, {F, H}, .dtype = H, .any_nan = true},
    {"sum_add bf16", call_sum_add, {F, B}, .dtype = B, .any_nan = true},
    {"scale", call_scale, {F, F}, .dtype = F},
    {"form f32", call_form, {F, F, F, F}, .dtype = F},
    {"form f16", call_form, {F, H, H, H}, .dtype = F},
    {"form bf16", call_form, {F, B, B, B}, .dtype = F},
    {"form mixed", call_form, {F, H, B, F}, .dtype = F},
    {"clip_value", call_clip_value, {F}, .dtype = F},
    {"squares", call_squares, {F}, .dtype = F},
    {"magnitudes", call_magnitudes, {F}, .dtype = F},
    {"sgd", call_apply, {F, F}, .optimizer = AMP_OPT_SGD},
    {"sgd, momentum", call_apply, {F, F, F}, .optimizer = AMP_OPT_SGD, .momentum = 0.9},
    {"adamw", call_apply, {F, F, F, F}, .optimizer = AMP_OPT_ADAMW},
    {"adam", call_apply, {F, F, F, F}, .optimizer = AMP_OPT_ADAM},
    {"adagrad", call_apply, {F, F, F}, .optimizer = AMP_OPT_ADAGRAD},
    {"rmsprop", call_apply, {F, F, F}, .optimizer = AMP_OPT_RMSPROP},
    {"rmsprop, momentum", call_apply, {F, F, F, F}, .optimizer = AMP_OPT_RMSPROP, .momentum = 0.9},
    {"rmsprop, centered", call_apply, {F, F, F, F}, .optimizer = AMP_OPT_RMSPROP, .centered = true},
    {"lion", call_apply, {F, F, F}, .optimizer = AMP_OPT_LION},
    {"lamb", call_apply, {F, F, F, F}, .optimizer = AMP_OPT_LAMB},
    {"lamb_squares", call_lamb_squares, {F, F, F, F}, .optimizer = AMP_OPT_LAMB},
};
#define OPS (sizeof ops / sizeof ops[0])

static void result_init(struct result *result)
{
    memset(result, 0, sizeof *result);
    result->check = AMP_CHECK_INIT;
    for (size_t i = 0; i < AMP_SQUARE_LANES; i++)
        result->lanes[0][i] = result->lanes[1][i] = 0.1 * (double)i;
}

/* Lanes may hold any NaN, since a segment with one reports 0. */
static void result_forgive_nan(struct result *result)
{
    for (size_t j = 0; j < 2; j++)
        for (size_t i = 0; i < AMP_SQUARE_LANES; i++)
            if (result->lanes[j][i] != result->lanes[j][i])
                result->lanes[j][i] = -1;
}

/* Buffers of one operation: what it starts from, and what the two make of it. */
struct buffers {
    unsigned char *start[POINTERS];
    unsigned char *ours[POINTERS];
    unsigned char *theirs[POINTERS];
    size_t size;
};

static unsigned char *get_aligned(size_t size)
{
    unsigned char *buffer = aligned_alloc(64, (size + 63) / 64 * 64);
    assert_non_null(buffer);
    return buffer;
}

static void buffers_init(struct buffers *b, size_t size)
{
    b->size = size;
    for (size_t i = 0; i < POINTERS; i++) {
        b->start[i] = get_aligned(size);
        b->ours[i] = get_aligned(size);
        b->theirs[i] = get_aligned(size);
    }
}

static void buffers_free(struct buffers *b)
{
    for (size_t i = 0; i < POINTERS; i++) {
        free(b->start[i]);
        free(b->ours[i]);
        free(b->theirs[i]);
    }
}

static void buffers_fill(struct buffers *b, const struct op *op, struct amp_random *random)
{
    for (size_t i = 0; i < POINTERS; i++)
        if (op->pointers[i] != AMP_DTYPE_NONE)
            input_fill(random, b->start[i], op->pointers[i], b->size / amp_dtype_size(op->pointers[i]));
}

/* Whether the variant runs in a thread that flushes denormals, as a host program may have set it. */
static bool flushing;

static unsigned flush_denormals(void)
{
#ifdef FLUSH
    unsigned before = _mm_getcsr();
    if (flushing)
        _mm_setcsr(before | FLUSH);
    return before;
#else
    return 0;
#endif
}

static void restore_denormals(unsigned before)
{
#ifdef FLUSH
    _mm_setcsr(before);
#endif
}

/* Runs the operation with the variant and with the reference, pointers at their offsets, and compares all bytes. */
static void compare(const struct op *op, unsigned set, struct buffers *b, const size_t *offset, size_t n)
{
    void *ours[POINTERS] = {0}, *theirs[POINTERS] = {0};
    struct result our_result, their_result;
    result_init(&our_result);
    result_init(&their_result);
    for (size_t i = 0; i < POINTERS && op->pointers[i] != AMP_DTYPE_NONE; i++) {
        memcpy(b->ours[i], b->start[i], b->size);
        memcpy(b->theirs[i], b->start[i], b->size);
        ours[i] = b->ours[i] + offset[i];
        theirs[i] = b->theirs[i] + offset[i];
    }
    unsigned before = flush_denormals();
    op->call(variant, op, set, ours, n, &our_result);
    restore_denormals(before);
    op->call(reference, op, set, theirs, n, &their_result);
    if (op->any_nan) {
        reference->load[AMP_F32](ours[0], ours[0], n);
        reference->load[AMP_F32](theirs[0], theirs[0], n);
    }
    result_forgive_nan(&our_result);
    result_forgive_nan(&their_result);
    bool same = memcmp(&our_result, &their_result, sizeof our_result) == 0;
    for (size_t i = 0; i < POINTERS && op->pointers[i] != AMP_DTYPE_NONE; i++)
        same = same && memcmp(b->ours[i], b->theirs[i], b->size) == 0;
    if (!same)
        print_message("%s differs: scalars %u, %zu elements, offsets %zu %zu %zu %zu\n", op->name, set, n, offset[0],
                      offset[1], offset[2], offset[3]);
    assert_true(same);
}

/* Each offset in bytes within a cache line, odd ones too: each pointer alone, then all together. */
static void compare_offsets(const struct op *op, struct buffers *b, size_t n)
{
    for (size_t alone = 0; alone <= POINTERS; alone++) {
        if (alone < POINTERS && op->pointers[alone] == AMP_DTYPE_NONE)
            continue;
        for (size_t bytes = 0; bytes < OFFSET_END; bytes++) {
            size_t offset[POINTERS] = {0};
            for (size_t i = 0; i < POINTERS; i++)
                if (op->pointers[i] != AMP_DTYPE_NONE && (alone == POINTERS || alone == i))
                    offset[i] = bytes;
            compare(op, (unsigned)(n % SCALARS), b, offset, n);
        }
    }
}

static void every_length_at_every_offset_gives_the_references_bits(void **state)
{
    struct buffers b;
    struct amp_random random;
    amp_random_init(&random, 1);
    buffers_init(&b, ROOM);
    for (size_t o = 0; o < OPS; o++) {
        static const size_t none[POINTERS];
        for (size_t n = 0; n <= LONGEST; n++) {
            buffers_fill(&b, &ops[o], &random);
            if (emulated && n != EMULATED_LENGTH)
                compare(&ops[o], (unsigned)(n % SCALARS), &b, none, n);
            else
                compare_offsets(&ops[o], &b, n);
        }
    }
    buffers_free(&b);
}

static void all_16_bit_values_give_the_references_bits(void **state)
{
    static const size_t none[POINTERS];
    struct buffers b;
    struct amp_random random;
    amp_random_init(&random, 2);
    buffers_init(&b, CHUNK * 4);
    for (size_t o = 0; o < OPS; o++) {
        bool narrow = false;
        buffers_fill(&b, &ops[o], &random);
        for (size_t i = 0; i < POINTERS; i++) {
            if (amp_dtype_size(ops[o].pointers[i]) != 2)
                continue;
            narrow = true;
            for (uint32_t h = 0; h < CHUNK; h++) {
                uint16_t value = (uint16_t)(h * (2 * i + 1)); /* odd: every value, in another order for each pointer */
                memcpy(b.start[i] + (size_t)2 * h, &value, 2);
            }
        }
        for (unsigned set = 0; narrow && set < SCALARS; set++)
            compare(&ops[o], set, &b, none, CHUNK);
    }
    buffers_free(&b);
}

/* The middle between two neighbours of a 16-bit dtype and the binary32 values beside it, both signs. */
static size_t fill_ties(enum amp_dtype dtype, uint16_t infinity, float *out)
{
    size_t n = 0;
    for (uint32_t sign = 0; sign <= 0x8000; sign += 0x8000) {
        for (uint32_t h = 0; h + 1 < infinity; h++) {
            uint16_t pair[2] = {(uint16_t)(sign | h), (uint16_t)(sign | (h + 1))};
            float x[2];
            reference->load[dtype](x, pair, 2);
            float tie = (float)(((double)x[0] + (double)x[1]) / 2);
            uint32_t bits;
            memcpy(&bits, &tie, 4);
            for (uint32_t d = 0; d < 3; d++, bits = d == 1 ? bits - 1 : bits + 2)
                memcpy(&out[n++], &bits, 4);
        }
    }
    return n;
}

static void all_ties_and_their_neighbours_give_the_references_bits(void **state)
{
    enum { ROOM_FOR_TIES = 2 * 0x8000 * 3 };
    static const size_t none[POINTERS];
    struct buffers b;
    struct amp_random random;
    amp_random_init(&random, 3);
    buffers_init(&b, (size_t)ROOM_FOR_TIES * 4);
    for (size_t o = 0; o < OPS; o++) {
        if (ops[o].call != call_store)
            continue;
        buffers_fill(&b, &ops[o], &random);
        compare(&ops[o], 0, &b, none, fill_ties(AMP_F16, 0x7c00, (float *)(void *)b.start[1]));
        compare(&ops[o], 0, &b, none, fill_ties(AMP_BF16, 0x7f80, (float *)(void *)b.start[1]));
    }
    buffers_free(&b);
}

static void random_bit_patterns_give_the_references_bits(void **state)
{
    static const size_t none[POINTERS];
    bool large = getenv("AMPD_TEST_LONG") != NULL && !emulated;
    size_t patterns = large ? PATTERNS_LONG : PATTERNS;
    struct buffers b;
    struct amp_random random;
    amp_random_init(&random, 4);
    buffers_init(&b, CHUNK * 4);
    for (size_t o = 0; o < OPS; o++) {
        for (size_t done = 0; done < patterns; done += CHUNK) {
            buffers_fill(&b, &ops[o], &random);
            compare(&ops[o], (unsigned)(done / CHUNK % SCALARS), &b, none, CHUNK);
        }
    }
    buffers_free(&b);
}

/* Arithmetic is refused in such a thread (amp_fp_env_check); what only moves bits does not notice. */
static void casts_and_finite_tests_are_the_same_where_denormals_are_flushed(void **state)
{
    static const size_t none[POINTERS];
    struct buffers b;
    struct amp_random random;
    amp_random_init(&random, 5);
    buffers_init(&b, CHUNK * 4);
    flushing = true;
    for (size_t o = 0; o < OPS; o++) {
        if (ops[o].call != call_load && ops[o].call != call_store && ops[o].call != call_check &&
            ops[o].call != call_largest)
            continue;
        for (uint32_t round = 0; round < 4; round++) {
            buffers_fill(&b, &ops[o], &random);
            for (uint32_t h = 0; ops[o].dtype != AMP_F32 && ops[o].call != call_store && h < CHUNK; h++)
                memcpy(b.start[ops[o].call == call_load] + (size_t)2 * h, &(uint16_t){(uint16_t)h}, 2);
            /* Of the bits behind f16's and bf16's denormals, and all fp32 denormals' upper halves. */
            for (uint32_t h = 0; ops[o].call == call_store && round > 0 && h < CHUNK; h++)
                memcpy(b.start[1] + (size_t)4 * h, &(uint32_t){h << 16 | (round * 0x4fffu)}, 4);
            compare(&ops[o], 0, &b, none, CHUNK - round);
        }
    }
    flushing = false;
    buffers_free(&b);
}

int main(int argc, char **argv)
{
    variant = input_variant(argc, argv);
    emulated = argc > 2 && strcmp(argv[2], "emulated") == 0;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_length_at_every_offset_gives_the_references_bits),
        cmocka_unit_test(all_16_bit_values_give_the_references_bits),
        cmocka_unit_test(all_ties_and_their_neighbours_give_the_references_bits),
        cmocka_unit_test(random_bit_patterns_give_the_references_bits),
        cmocka_unit_test(casts_and_finite_tests_are_the_same_where_denormals_are_flushed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
