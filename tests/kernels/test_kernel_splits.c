/*
 * Two steps of a small model, cut into K shards of whole blocks with T threads each, as a server does them: votes,
 * norm, clip, apply. Whatever K, T and the instruction set, all votes, norms, masters, moments and casts have one hash.
 */
#include "amp/norm.h"
#include "amp/pass.h"
#include "amp/reduce.h"
#include "base/crc32c.h"
#include "tests/kernels/inputs.h"

#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define BLOCK       4096
#define BLOCKS      37
#define FLAT        (BLOCK * BLOCKS)
#define PAD         64 /* parameters begin at multiples of this */
#define PARAMETERS  6
#define SEGMENTS    (BLOCKS + PARAMETERS)
#define WORKERS     3
#define STEPS       2
#define THREADS_MAX 4

/* The one hash. It changes only with docs/numerics.md. */
#define GOLDEN 0x9225814du

static const size_t counts[PARAMETERS] = {70001, 7, 20000, 4096, 33333, 1};

/* The part of one parameter in one block, and what its passes found. */
struct segment {
    size_t parameter, block, start, count;
    struct amp_pass_vote vote;
    struct amp_apply_stats stats;
    double cubes; /* of g, for the norm with p = 3 */
};

static struct segment segments[SEGMENTS];
static size_t segments_count;
static const struct amp_kernels *kernels;
static float p[FLAT], m[FLAT], v[FLAT], in32[FLAT], g[FLAT];
static uint16_t in16[FLAT], inb16[FLAT], cast[FLAT];

static void lay_out(void)
{
    size_t at = 0;
    segments_count = 0;
    for (size_t i = 0; i < PARAMETERS; i++) {
        for (size_t start = at, end = at + counts[i]; start < end;) {
            size_t rest = BLOCK - start % BLOCK;
            size_t n = end - start < rest ? end - start : rest;
            assert_true(segments_count < SEGMENTS);
            segments[segments_count++] =
                (struct segment){.parameter = i, .block = start / BLOCK, .start = start, .count = n};
            start += n;
        }
        at = (at + counts[i] + PAD - 1) / PAD * PAD;
    }
    assert_true(at <= FLAT);
}

static void fill(void)
{
    struct amp_random random;
    amp_random_init(&random, 77);
    for (size_t i = 0; i < FLAT; i++) {
        float a = input_spread(&random, -12, 10), b = input_spread(&random, -12, 10);
        in32[i] = input_spread(&random, -12, 10);
        (void)amp_kernels_ref.store[AMP_F16](&in16[i], &a, 1);
        (void)amp_kernels_ref.store[AMP_BF16](&inb16[i], &b, 1);
        p[i] = input_spread(&random, -12, 1);
        m[i] = v[i] = 0;
    }
    memset(cast, 0, sizeof cast);
    memset(g, 0, sizeof g);
}

/* One thread's work on a shard: every `threads`-th segment of its blocks. */
struct task {
    size_t first_block, end_block;
    unsigned thread, threads;
    const struct amp_apply *apply; /* NULL: vote */
    float unit;                    /* of the cubes */
};

static void run_segment(const struct task *task, struct segment *s)
{
    const struct amp_input inputs[WORKERS] = {
        {in16 + s->start, AMP_F16, 2.0f}, {inb16 + s->start, AMP_BF16, 0.5f}, {in32 + s->start, AMP_F32, 1.25f}};
    struct amp_pass_in in = {.count = s->count,
                             .inputs = inputs,
                             .inputs_count = WORKERS,
                             .coefficient = amp_coefficient(1024, 3.75),
                             .squares = true};
    if (task->apply != NULL) {
        amp_pass_apply(kernels, &in, task->apply, p + s->start, m + s->start, v + s->start, cast + s->start, &s->stats);
        return;
    }
    amp_pass_vote(kernels, &in, g + s->start, &s->vote);
    struct amp_span span = {g + s->start, s->count, AMP_F32};
    s->cubes = amp_norm_block(kernels, &span, 3, task->unit);
}

static void *run_task(void *argument)
{
    const struct task *task = argument;
    unsigned turn = 0;
    for (size_t i = 0; i < segments_count; i++) {
        struct segment *s = &segments[i];
        if (s->block >= task->first_block && s->block < task->end_block && turn++ % task->threads == task->thread)
            run_segment(task, s);
    }
    return NULL;
}

/* One pass of all K shards, each with its threads. */
static void run_pass(unsigned shards, unsigned threads, const struct amp_apply *apply)
{
    for (unsigned k = 0; k < shards; k++) {
        pthread_t ids[THREADS_MAX];
        struct task tasks[THREADS_MAX];
        for (unsigned t = 0; t < threads; t++) {
            tasks[t] = (struct task){.first_block = (size_t)BLOCKS * k / shards,
                                     .end_block = (size_t)BLOCKS * (k + 1) / shards,
                                     .thread = t,
                                     .threads = threads,
                                     .apply = apply,
                                     .unit = 1024};
            assert_int_equal(pthread_create(&ids[t], NULL, run_task, &tasks[t]), 0);
        }
        for (unsigned t = 0; t < threads; t++)
            assert_int_equal(pthread_join(ids[t], NULL), 0);
    }
}

/* What a shard sends for a parameter: the sums of its maximal aligned nodes; the coordinator adds them in order. */
static double sum_parameter(size_t parameter, unsigned shards, bool cubes)
{
    struct amp_tree whole;
    amp_tree_init(&whole);
    for (unsigned k = 0; k < shards; k++) {
        struct amp_tree_part parts[AMP_TREE_PARTS_MAX];
        size_t n = amp_tree_parts((size_t)BLOCKS * k / shards, (size_t)BLOCKS * (k + 1) / shards, parts);
        for (size_t i = 0; i < n; i++) {
            struct amp_tree part;
            bool any = false;
            amp_tree_init(&part);
            for (size_t s = 0; s < segments_count; s++) {
                uint64_t block = segments[s].block;
                if (segments[s].parameter != parameter || block < parts[i].first ||
                    (block - parts[i].first) >> parts[i].level != 0)
                    continue;
                amp_tree_add(&part, block, cubes ? segments[s].cubes : segments[s].vote.squares);
                any = true;
            }
            if (any)
                amp_tree_add(&whole, parts[i].first, amp_tree_sum(&part));
        }
    }
    return amp_tree_sum(&whole);
}

static double norm_of_model(unsigned shards, bool cubes)
{
    struct amp_tree model;
    amp_tree_init(&model);
    for (size_t i = 0; i < PARAMETERS; i++)
        amp_tree_add(&model, i, sum_parameter(i, shards, cubes));
    return amp_norm_of_sum(amp_tree_sum(&model), cubes ? 3 : 2, 1024);
}

static uint32_t hash_segments(uint32_t hash)
{
    for (size_t i = 0; i < segments_count; i++) {
        const struct segment *s = &segments[i];
        uint64_t found[] = {s->vote.sum_inf,     s->vote.sum_nan,     s->vote.sum_first,
                            s->vote.range_count, s->vote.range_first, s->stats.cast_overflows};
        hash = amp_crc32c(hash, &s->vote.squares, sizeof s->vote.squares);
        hash = amp_crc32c(hash, &s->vote.largest, sizeof s->vote.largest);
        hash = amp_crc32c(hash, found, sizeof found);
    }
    return hash;
}

static uint32_t hash_of_run(unsigned shards, unsigned threads, enum amp_optimizer optimizer)
{
    struct amp_optim_config config;
    uint32_t hash = 0;
    amp_optim_defaults(optimizer, &config);
    config.momentum = optimizer == AMP_OPT_SGD ? 0.9 : 0;
    fill();
    lay_out();
    for (uint64_t step = 1; step <= STEPS; step++) {
        struct amp_apply apply;
        run_pass(shards, threads, NULL);
        double norms[2] = {norm_of_model(shards, false), norm_of_model(shards, true)};
        assert_true(norms[0] > norms[1] && norms[1] > 0);
        amp_optim_scalars(&config, step, config.lr, amp_clip_coefficient(1, norms[0]), &apply);
        apply.cast = AMP_F16;
        apply.first_step = step == 1;
        run_pass(shards, threads, &apply);
        hash = hash_segments(amp_crc32c(hash, norms, sizeof norms));
    }
    hash = amp_crc32c(hash, p, sizeof p);
    hash = amp_crc32c(hash, m, sizeof m);
    hash = amp_crc32c(hash, v, sizeof v);
    hash = amp_crc32c(hash, g, sizeof g);
    return amp_crc32c(hash, cast, sizeof cast);
}

/* Two hashes in one, modulo 2^32. */
static uint32_t mix(uint32_t hash, uint32_t next)
{
    return (uint32_t)((uint64_t)hash * 31 + next);
}

static void every_split_into_shards_and_threads_has_the_one_hash(void **state)
{
    static const unsigned splits[] = {1, 2, 4};
    for (size_t k = 0; k < 3; k++) {
        for (size_t t = 0; t < 3; t++) {
            uint32_t hash = 0;
            hash = mix(hash, hash_of_run(splits[k], splits[t], AMP_OPT_ADAMW));
            hash = mix(hash, hash_of_run(splits[k], splits[t], AMP_OPT_SGD));
            hash = mix(hash, hash_of_run(splits[k], splits[t], AMP_OPT_ADAM));
            if (hash != GOLDEN)
                print_message("%s, %u shards, %u threads: 0x%08xu\n", kernels->isa, splits[k], splits[t], hash);
            assert_int_equal(hash, GOLDEN);
        }
    }
}

int main(int argc, char **argv)
{
    kernels = input_variant(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_split_into_shards_and_threads_has_the_one_hash),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
