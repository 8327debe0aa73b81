/*
 * The rows kernels_ of bench/run.sh: the numeric kernels, which should run at the speed of memory, each beside a peer
 * in this program.
 *
 *     bench_kernels --list    prints the names of the rows
 *     bench_kernels NAME      measures one row and prints it (see bench/run.sh)
 *     bench_kernels --serve ELEMENTS THREADS [apply|bound]
 *                             our side of the rows kernels_torch_: for each line on stdin makes vote and apply of one
 *                             worker and prints the seconds (torch_adamw.py is the peer, pairs.py lets them take
 *                             turns). `apply`: only what a shard does after the verdict, the apply and the checksum of
 *                             each block of the copy, for the bound of cluster_apply. `bound`: the loops of
 *                             kernel_bounds.h, for the bound of kernels_torch_2t
 *
 * Ours and peer take turns, A B A B, over the same arrays, which have at least 2 GB together and whose pages were all
 * written before. Threads are pinned; of two threads each has one half. Our side is the server's code: amp_pass_vote
 * and amp_pass_apply by blocks of 65,536 elements, with the kernels that AMPD_ISA names, or the fastest. GB/s are 10^9
 * bytes a second; the bytes an element that are counted are in the table, the same for both sides, so that the ratio is
 * that of the times. Reading a cache line before it is overwritten is never counted: a side that avoids it is faster.
 *
 *   row                        ours                                    peer
 *   kernels_adamw_1t, _2t      one worker's f16 gradient, AdamW, next  a loop that reads and writes the same arrays
 *                              f16 copy: reads g 2, p m v 12; writes   with one exclusive-or: the fastest of a plain
 *                              p m v 12, copy 2: 28 bytes              one, one with a non-temporal copy, and one with
 *                                                                      prefetch, too
 *   kernels_cast_A_to_B_1t,    amp_cast: 6 bytes                       the C library's memcpy of half as many bytes,
 *     _2t                                                              each read and written
 *   kernels_finite_test        unscale of fp32 in place with the test  the same without the test
 *                              for Inf and NaN: 8 bytes
 *   kernels_vote_apply_wW_1t,  the vote pass over W staged f16         each gradient is added to an fp32 sum when it
 *     _2t                      gradients, which keeps g, and the       comes (the first stored plainly or
 *                              apply pass from g: 2W + 34 bytes        non-temporally, the others with or without
 *                                                                      prefetch, whichever is fastest), then our apply
 *                                                                      pass from the sum: it moves 10W + 26 bytes
 *   kernels_fused_1t, _2t      vote and apply of one worker with clip  the same by our separate kernels, each one pass
 *                              by value: 30 bytes                      over all: unscale, finite test, clip, AdamW,
 *                                                                      cast: it moves 52 bytes
 *   kernels_autocast_..._ns    nanoseconds of a call, the median of    none; the goal is the most
 *                              10^7 calls
 *
 * All rows with GB/s but kernels_finite_test, whose peer is a bound itself, have a bound (kernel_bounds.h): loops with
 * the same reads and writes as ours and less arithmetic, the fastest of which takes turns with both sides. The goal is
 * then at most 0.95 of that loop's ratio to the peer, since no kernel is faster on this processor.
 *
 * The values are those of a training: masters of 0.02 and gradients of 0.001, both normally distributed, moments that
 * fit, lr 3e-4, step 1,000; each round has other gradients. About one element in sixty of AdamW is then computed in
 * double.
 */
#include "amp/autocast.h"
#include "amp/cpu.h"
#include "amp/pass.h"
#include "base/crc32c.h"
#include "bench/kernel_bounds.h"
#include "bench/kernel_peers.h"
#include "bench/measure.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK 65536 /* the server's */
#define MIB   ((size_t)1 << 20)

#define WORKERS_MAX 8
/* Each round takes its gradients from so many elements further on in the arrays. */
#define ROUND_SHIFT 64
#define ROUNDS_MAX  64

#define GRADIENT_SCALE 1024.0f
#define CLIP_VALUE     0.01f

/* The period of the random numbers in all arrays: longer than what a branch predictor can learn. */
#define PERIOD MIB

static const struct amp_kernels *kernels;

struct arrays {
    size_t n;
    unsigned workers;
    unsigned round;
    uint16_t *g[WORKERS_MAX];
    float *p, *m, *v, *sum;
    uint16_t *copy;
    struct amp_apply apply;
    peer_mix_fn *mix;
    bool stream, prefetch;
    const struct bound_loops *first, *second; /* of the two passes of a bound */
};

static size_t gradient_bytes(size_t n)
{
    return (n + (size_t)ROUND_SHIFT * ROUNDS_MAX) * sizeof(uint16_t);
}

/* Roughly normal, mean 0 and variance 1. */
static float *normal_period(void)
{
    float *x = bench_alloc(PERIOD * sizeof *x);
    uint64_t state = 1;
    for (size_t i = 0; i < PERIOD; i++) {
        float sum = 0;
        for (int j = 0; j < 4; j++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            sum += (float)(state >> 40) * 0x1p-24f - 0.5f;
        }
        x[i] = sum * 1.7320508f;
    }
    return x;
}

/* dst[i] = base + width * |normal or its magnitude|, from another place of the period for each array. */
static float *filled(const float *normal, size_t n, size_t offset, float base, float width)
{
    float *dst = bench_alloc(n * sizeof *dst);
    for (size_t i = 0; i < n; i++)
        dst[i] = base + width * normal[(i + offset) % PERIOD];
    return dst;
}

static uint16_t *filled_f16(const float *normal, size_t n, size_t offset, float width)
{
    uint16_t *dst = bench_alloc(gradient_bytes(n));
    float *period = filled(normal, PERIOD, offset, 0, width);
    for (size_t i = 0; i < gradient_bytes(n) / sizeof *dst; i += PERIOD) {
        size_t rest = gradient_bytes(n) / sizeof *dst - i;
        (void)kernels->store[AMP_F16](dst + i, period, rest < PERIOD ? rest : PERIOD);
    }
    bench_free(period, PERIOD * sizeof *period);
    return dst;
}

static void open_arrays(struct arrays *a, size_t n, unsigned workers, bool sum)
{
    const float sigma = 0.001f;
    float *normal = normal_period();
    struct amp_optim_config config;
    amp_optim_defaults(AMP_OPT_ADAMW, &config);
    *a = (struct arrays){.n = n, .workers = workers};
    amp_optim_scalars(&config, 1000, 3e-4, 1.0f, &a->apply);
    a->apply.cast = AMP_F16;
    for (unsigned w = 0; w < workers; w++)
        a->g[w] = filled_f16(normal, n, 1001 * w, sigma * GRADIENT_SCALE);
    a->p = filled(normal, n, 31, 0, 0.02f);
    a->m = filled(normal, n, 57, 0, 0.23f * sigma);
    a->v = filled(normal, n, 77, 0.63f * sigma * sigma, 0.1f * sigma * sigma);
    a->sum = sum ? filled(normal, n, 99, 0, sigma) : NULL;
    a->copy = bench_alloc(n * sizeof *a->copy);
    memset(a->copy, 1, n * sizeof *a->copy);
    bench_free(normal, PERIOD * sizeof *normal);
}

static void close_arrays(struct arrays *a)
{
    for (unsigned w = 0; w < a->workers; w++)
        bench_free(a->g[w], gradient_bytes(a->n));
    bench_free(a->p, a->n * sizeof *a->p);
    bench_free(a->m, a->n * sizeof *a->m);
    bench_free(a->v, a->n * sizeof *a->v);
    if (a->sum != NULL)
        bench_free(a->sum, a->n * sizeof *a->sum);
    bench_free(a->copy, a->n * sizeof *a->copy);
}

static void next_round(void *context)
{
    struct arrays *a = context;
    a->round = (a->round + 1) % ROUNDS_MAX;
}

/* Both sides change the same masters, one after the other, in the same way. */
static const uint16_t *gradient(const struct arrays *a, unsigned worker, size_t i)
{
    return a->g[worker] + (size_t)a->round * ROUND_SHIFT + i;
}

static struct amp_pass_in pass_in(const struct arrays *a, size_t i, size_t n, struct amp_input *inputs)
{
    for (unsigned w = 0; w < a->workers; w++)
        inputs[w] = (struct amp_input){.data = gradient(a, w, i), .dtype = AMP_F16, .weight = 1};
    return (struct amp_pass_in){.count = n,
                                .inputs = inputs,
                                .inputs_count = a->workers,
                                .equal_weights = true,
                                .coefficient = amp_coefficient(GRADIENT_SCALE, a->workers),
                                .squares = true};
}

static void apply_block(struct arrays *a, const struct amp_pass_in *in, size_t i)
{
    struct amp_apply_stats stats = {0};
    amp_pass_apply(kernels, in, &a->apply, a->p + i, a->m + i, a->v + i, a->copy + i, &stats);
    if (stats.not_finite != 0)
        bench_fail("a master is not finite any more");
}

/* Vote and apply as the server makes them. The vote keeps g in the array in which the peer has its sum. */
static bool keeps_g(const struct arrays *a)
{
    return a->workers >= AMP_PASS_KEEP_G;
}

static void vote_block(const struct amp_pass_in *in, float *g)
{
    struct amp_pass_vote vote;
    amp_pass_vote(kernels, in, g, &vote);
    if (vote.sum_inf + vote.sum_nan + vote.range_count != 0)
        bench_fail("a gradient is not finite");
}

static size_t part(size_t i, size_t end)
{
    return end - i < BLOCK ? end - i : BLOCK;
}

static void run_apply(void *context, size_t first, size_t count)
{
    struct arrays *a = context;
    struct amp_input inputs[WORKERS_MAX];
    for (size_t i = first; i < first + count; i += BLOCK) {
        struct amp_pass_in in = pass_in(a, i, part(i, first + count), inputs);
        apply_block(a, &in, i);
    }
}

static volatile uint32_t checksums;

static void run_apply_crc(void *context, size_t first, size_t count)
{
    struct arrays *a = context;
    uint32_t all = 0;
    for (size_t i = first; i < first + count; i += BLOCK) {
        size_t n = part(i, first + count);
        run_apply(a, i, n);
        all ^= amp_crc32c(0, a->copy + i, n * sizeof *a->copy);
    }
    checksums = all;
}

static void run_vote(struct arrays *a, size_t first, size_t count, bool clip)
{
    struct amp_input inputs[WORKERS_MAX];
    for (size_t i = first; i < first + count; i += BLOCK) {
        struct amp_pass_in in = pass_in(a, i, part(i, first + count), inputs);
        in.clip_value_set = clip;
        in.clip_value = CLIP_VALUE;
        vote_block(&in, keeps_g(a) ? a->sum + i : NULL);
    }
}

static void run_apply_g(void *context, size_t first, size_t count)
{
    struct arrays *a = context;
    for (size_t i = first; i < first + count; i += BLOCK) {
        struct amp_apply_stats stats = {0};
        amp_pass_apply_g(kernels, part(i, first + count), a->sum + i, &a->apply, a->p + i, a->m + i, a->v + i,
                         a->copy + i, &stats);
        if (stats.not_finite != 0)
            bench_fail("a master is not finite any more");
    }
}

static void run_vote_apply(void *context, size_t first, size_t count)
{
    run_vote(context, first, count, false);
    (keeps_g(context) ? run_apply_g : run_apply)(context, first, count);
}

static void run_mix(void *context, size_t first, size_t count)
{
    struct arrays *a = context;
    a->mix(gradient(a, 0, first), a->p + first, a->m + first, a->v + first, a->copy + first, count);
}

static struct amp_apply_scalars bound_scalars(const struct arrays *a, float factor)
{
    struct amp_apply_scalars k;
    amp_apply_prepare(&a->apply, &k);
    k.rest1 *= factor;
    k.rest2 *= factor * factor;
    k.rest1_f *= factor;
    k.rest2_f *= factor * factor;
    return k;
}

static void run_bound_step(void *context, size_t first, size_t count)
{
    struct arrays *a = context;
    struct amp_apply_scalars k = bound_scalars(a, 1 / GRADIENT_SCALE);
    a->second->step_f16(&k, gradient(a, 0, first), a->p + first, a->m + first, a->v + first, a->copy + first, count);
}

static void run_bound_step_g(void *context, size_t first, size_t count)
{
    struct arrays *a = context;
    struct amp_apply_scalars k = bound_scalars(a, amp_coefficient(GRADIENT_SCALE, a->workers));
    a->second->step_f32(&k, a->sum + first, a->p + first, a->m + first, a->v + first, a->copy + first, count);
}

static void run_bound_vote(void *context, size_t first, size_t count)
{
    struct arrays *a = context;
    const uint16_t *g[WORKERS_MAX];
    for (unsigned w = 0; w < a->workers; w++)
        g[w] = gradient(a, w, first);
    a->first->vote(g, a->workers, a->sum + first, count);
}

static volatile uint32_t all_bits;

static void run_bound_read(void *context, size_t first, size_t count)
{
    struct arrays *a = context;
    all_bits = a->first->read(gradient(a, 0, first), count);
}

static void run_bound_vote_step(void *context, size_t first, size_t count)
{
    run_bound_vote(context, first, count);
    run_bound_step_g(context, first, count);
}

static void run_bound_read_step(void *context, size_t first, size_t count)
{
    run_bound_read(context, first, count);
    run_bound_step(context, first, count);
}

#define BOUND_LOOPS_MAX 8

/* The fastest bound loops for one pass over the arrays. NULL: there are none for this instruction set. */
static const struct bound_loops *fastest_loops(const struct bench_row *row, const struct arrays *shared,
                                               bench_work_fn *pass)
{
    struct arrays arrays[BOUND_LOOPS_MAX];
    struct bench_side sides[BOUND_LOOPS_MAX];
    size_t n = 0;
    for (size_t i = 0; i < bound_loops_count && n < BOUND_LOOPS_MAX; i++) {
        if (bound_loops[i].vector_bytes > bound_vector_bytes(kernels->isa))
            continue;
        arrays[n] = *shared;
        arrays[n].first = arrays[n].second = &bound_loops[i];
        sides[n] = (struct bench_side){bound_loops[i].name, pass, &arrays[n], next_round};
        n++;
    }
    return n == 0 ? NULL : ((const struct arrays *)bench_fastest("bound", sides, n, row)->context)->first;
}

/* The bound of a row with one pass or two. `a` is the context of the bound's side. NULL: there are no such loops. */
static struct bench_side *bound_of(struct bench_side *side, const struct bench_row *row, struct arrays *a,
                                   bench_work_fn *first, bench_work_fn *second, bench_work_fn *both)
{
    a->first = first != NULL ? fastest_loops(row, a, first) : NULL;
    a->second = fastest_loops(row, a, second);
    if (a->second == NULL)
        return NULL;
    *side = (struct bench_side){a->second->name, both, a, next_round};
    return side;
}

/* A side for each mix loop, with a context of its own that shares the arrays. */
static void measure_adamw(struct bench_row *row, unsigned workers)
{
    static peer_mix_fn *const loops[] = {peer_mix_plain, peer_mix_stream, peer_mix_prefetch};
    static const char *const names[] = {"plain", "non-temporal copy", "prefetch, non-temporal copy"};
    struct arrays a;
    struct arrays peers[3];
    struct bench_side sides[3];
    row->elements = 128 * MIB;
    row->bytes = 28.0 * (double)row->elements;
    open_arrays(&a, row->elements, 1, false);
    for (size_t i = 0; i < 3; i++) {
        peers[i] = a;
        peers[i].mix = loops[i];
        sides[i] = (struct bench_side){names[i], run_mix, &peers[i], NULL};
    }
    struct bench_side ours = {"ours", run_apply, &a, next_round};
    struct arrays least = a;
    struct bench_side side;
    const struct bench_side *bound = bound_of(&side, row, &least, NULL, run_bound_step, run_bound_step);
    bench_pairs(row, &ours, bench_fastest("peer", sides, 3, row), bound);
    close_arrays(&a);
}

struct cast {
    enum amp_dtype from, to;
    void *src, *dst;
    const struct bound_loops *loops;
};

static void run_cast(void *context, size_t first, size_t count)
{
    const struct cast *c = context;
    amp_cast(kernels, (char *)c->dst + first * amp_dtype_size(c->to), c->to,
             (const char *)c->src + first * amp_dtype_size(c->from), c->from, count);
}

/* memcpy of three bytes an element, so that it reads and writes six as the cast does. */
static void run_memcpy(void *context, size_t first, size_t count)
{
    const struct cast *c = context;
    memcpy((char *)c->dst + 3 * first, (const char *)c->src + 3 * first, 3 * count);
}

static void run_bound_move(void *context, size_t first, size_t count)
{
    const struct cast *c = context;
    (c->from == AMP_F32 ? c->loops->halve : c->loops->twice)(
        (char *)c->dst + first * amp_dtype_size(c->to), (const char *)c->src + first * amp_dtype_size(c->from), count);
}

/* As bound_of, of one pass. */
static const struct bench_side *bound_of_cast(struct bench_side *side, const struct bench_row *row, struct cast *least)
{
    struct cast casts[BOUND_LOOPS_MAX];
    struct bench_side sides[BOUND_LOOPS_MAX];
    size_t n = 0;
    for (size_t i = 0; i < bound_loops_count && n < BOUND_LOOPS_MAX; i++) {
        if (bound_loops[i].vector_bytes > bound_vector_bytes(kernels->isa))
            continue;
        casts[n] = *least;
        casts[n].loops = &bound_loops[i];
        sides[n] = (struct bench_side){bound_loops[i].name, run_bound_move, &casts[n], NULL};
        n++;
    }
    if (n == 0)
        return NULL;
    least->loops = ((const struct cast *)bench_fastest("bound", sides, n, row)->context)->loops;
    *side = (struct bench_side){least->loops->name, run_bound_move, least, NULL};
    return side;
}

static void measure_cast(struct bench_row *row, enum amp_dtype from, enum amp_dtype to)
{
    row->elements = 384 * MIB;
    row->bytes = 6.0 * (double)row->elements;
    size_t bytes = row->elements * sizeof(float);
    float *normal = normal_period();
    struct cast cast = {
        .from = from, .to = to, .src = filled(normal, row->elements, 0, 0, 1), .dst = bench_alloc(bytes)};
    memset(cast.dst, 1, bytes);
    if (from != AMP_F32)
        (void)kernels->store[from](cast.src, cast.src, row->elements);
    struct bench_side ours = {"ours", run_cast, &cast, NULL};
    struct bench_side peer = {"memcpy", run_memcpy, &cast, NULL};
    struct cast least = cast;
    struct bench_side side;
    bench_pairs(row, &ours, &peer, bound_of_cast(&side, row, &least));
    bench_free(cast.src, bytes);
    bench_free(cast.dst, bytes);
    bench_free(normal, PERIOD * sizeof *normal);
}

static void run_scale(void *context, size_t first, size_t count)
{
    float *g = context;
    if (kernels->scale(g + first, g + first, 1.0f, count) >= AMP_F32_INF)
        bench_fail("a gradient is not finite");
}

static void run_scale_untested(void *context, size_t first, size_t count)
{
    float *g = context;
    peer_scale(g + first, g + first, 1.0f, count);
}

static void measure_finite(struct bench_row *row, unsigned workers)
{
    row->elements = 512 * MIB;
    row->bytes = 8.0 * (double)row->elements;
    float *normal = normal_period();
    float *g = filled(normal, row->elements, 0, 0, 1);
    struct bench_side ours = {"ours", run_scale, g, NULL};
    struct bench_side peer = {"without the test", run_scale_untested, g, NULL};
    bench_pairs(row, &ours, &peer, NULL);
    bench_free(g, row->elements * sizeof *g);
    bench_free(normal, PERIOD * sizeof *normal);
}

/* The peer of vote and apply: adds the gradients to the sum, worker by worker; then one pass over the sum. */
static void run_accumulate_apply(void *context, size_t first, size_t count)
{
    struct arrays *a = context;
    (a->stream ? peer_accumulate_stream : peer_accumulate_set)(a->sum + first, gradient(a, 0, first), count);
    for (unsigned w = 1; w < a->workers; w++)
        (a->prefetch ? peer_accumulate_add_prefetch : peer_accumulate_add)(a->sum + first, gradient(a, w, first),
                                                                           count);
    for (size_t i = first; i < first + count; i += BLOCK) {
        struct amp_input sum = {.data = a->sum + i, .dtype = AMP_F32, .weight = 1};
        struct amp_pass_in in = {.count = part(i, first + count),
                                 .inputs = &sum,
                                 .inputs_count = 1,
                                 .equal_weights = true,
                                 .coefficient = amp_coefficient(GRADIENT_SCALE, a->workers),
                                 .squares = true};
        apply_block(a, &in, i);
    }
}

static void measure_vote(struct bench_row *row, unsigned workers)
{
    struct arrays a;
    struct arrays peers[3];
    row->elements = 80 * MIB;
    row->bytes = (2.0 * workers + 34.0) * (double)row->elements;
    open_arrays(&a, row->elements, workers, true);
    peers[0] = a;
    peers[1] = a;
    peers[1].stream = true;
    peers[2] = peers[1];
    peers[2].prefetch = true;
    struct bench_side ours = {"ours", run_vote_apply, &a, next_round};
    struct bench_side sides[] = {
        {"first one stored", run_accumulate_apply, &peers[0], next_round},
        {"first one stored non-temporally", run_accumulate_apply, &peers[1], next_round},
        {"first one stored non-temporally, others with prefetch", run_accumulate_apply, &peers[2], next_round}};
    struct arrays least = a;
    struct bench_side side;
    const struct bench_side *bound =
        bound_of(&side, row, &least, run_bound_vote, run_bound_step_g, run_bound_vote_step);
    bench_pairs(row, &ours, bench_fastest("peer", sides, 3, row), bound);
    close_arrays(&a);
}

static void run_fused(void *context, size_t first, size_t count)
{
    struct arrays *a = context;
    struct amp_input inputs[WORKERS_MAX];
    run_vote(a, first, count, true);
    for (size_t i = first; i < first + count; i += BLOCK) {
        struct amp_pass_in in = pass_in(a, i, part(i, first + count), inputs);
        in.clip_value_set = true;
        in.clip_value = CLIP_VALUE;
        apply_block(a, &in, i);
    }
}

static void run_separate(void *context, size_t first, size_t count)
{
    struct arrays *a = context;
    struct amp_input input = {.data = gradient(a, 0, first), .dtype = AMP_F16, .weight = 1};
    struct amp_apply_scalars scalars;
    struct amp_check check = AMP_CHECK_INIT;
    float *g = a->sum + first;
    (void)kernels->form(&input, 1, true, amp_coefficient(GRADIENT_SCALE, 1), 0, count, g);
    kernels->check[AMP_F32](g, count, 0, &check);
    if (check.inf_count + check.nan_count != 0)
        bench_fail("a gradient is not finite");
    kernels->clip_value(g, CLIP_VALUE, count);
    amp_apply_prepare(&a->apply, &scalars);
    kernels->apply[AMP_OPT_ADAMW](&scalars, count, g, a->p + first, a->m + first, a->v + first);
    amp_cast(kernels, a->copy + first, AMP_F16, a->p + first, AMP_F32, count);
}

static void measure_fused(struct bench_row *row, unsigned workers)
{
    struct arrays a;
    row->elements = 112 * MIB;
    row->bytes = 30.0 * (double)row->elements;
    open_arrays(&a, row->elements, 1, true);
    struct bench_side ours = {"ours", run_fused, &a, next_round};
    struct bench_side peer = {"separate passes", run_separate, &a, next_round};
    struct arrays least = a;
    struct bench_side side;
    const struct bench_side *bound = bound_of(&side, row, &least, run_bound_read, run_bound_step, run_bound_read_step);
    bench_pairs(row, &ours, &peer, bound);
    close_arrays(&a);
}

static void measure_f32_to_f16(struct bench_row *row, unsigned workers)
{
    measure_cast(row, AMP_F32, AMP_F16);
}

static void measure_f32_to_bf16(struct bench_row *row, unsigned workers)
{
    measure_cast(row, AMP_F32, AMP_BF16);
}

static void measure_f16_to_f32(struct bench_row *row, unsigned workers)
{
    measure_cast(row, AMP_F16, AMP_F32);
}

static void measure_bf16_to_f32(struct bench_row *row, unsigned workers)
{
    measure_cast(row, AMP_BF16, AMP_F32);
}

/* Reading the clock takes longer than a call, so batches of calls are timed; the median is that of the batches. */
#define BATCH   1000
#define BATCHES 10000

static volatile int sink;

static void decide_batch(void)
{
    static const char *const ops[] = {"linear", "softmax", "matmul", "conv2d", "layer_norm", "addmm", "exp", "bmm"};
    int sum = 0;
    for (int i = 0; i < BATCH; i++)
        sum += (int)amp_autocast_dtype(ops[i % 8], AMP_F32);
    sink = sum;
}

static void enter_leave_batch(void)
{
    for (int i = 0; i < BATCH; i++) {
        sink = amp_autocast_enter(AMP_AUTOCAST_BF16);
        amp_autocast_exit();
    }
}

static void measure_calls(struct bench_row *row, void (*batch)(void))
{
    static double ns[BATCHES];
    bench_pin(0);
    for (size_t i = 0; i < BATCHES; i++) {
        double begin = bench_now_s();
        batch();
        ns[i] = (bench_now_s() - begin) * 1e9 / BATCH;
    }
    double median = bench_median(ns, BATCHES);
    printf("%s\t%.1f\t-\t-\t<=%.0f\t%s\n", row->name, median, row->goal, median <= row->goal ? "ok" : "short");
}

static void measure_decision(struct bench_row *row, unsigned workers)
{
    if (amp_autocast_enter(AMP_AUTOCAST_FP16) != 0)
        bench_fail("autocast cannot be entered");
    measure_calls(row, decide_batch);
    amp_autocast_exit();
}

static void measure_enter(struct bench_row *row, unsigned workers)
{
    measure_calls(row, enter_leave_batch);
}

static const struct {
    const char *name;
    void (*measure)(struct bench_row *row, unsigned workers);
    double goal;
    unsigned threads;
    unsigned workers;
} rows[] = {
    {"kernels_adamw_1t", measure_adamw, 0.90, 1, 1},
    {"kernels_adamw_2t", measure_adamw, 0.90, 2, 1},
    {"kernels_cast_f32_to_f16_1t", measure_f32_to_f16, 0.95, 1, 0},
    {"kernels_cast_f32_to_f16_2t", measure_f32_to_f16, 0.95, 2, 0},
    {"kernels_cast_f32_to_bf16_1t", measure_f32_to_bf16, 0.95, 1, 0},
    {"kernels_cast_f32_to_bf16_2t", measure_f32_to_bf16, 0.95, 2, 0},
    {"kernels_cast_f16_to_f32_1t", measure_f16_to_f32, 0.95, 1, 0},
    {"kernels_cast_f16_to_f32_2t", measure_f16_to_f32, 0.95, 2, 0},
    {"kernels_cast_bf16_to_f32_1t", measure_bf16_to_f32, 0.95, 1, 0},
    {"kernels_cast_bf16_to_f32_2t", measure_bf16_to_f32, 0.95, 2, 0},
    {"kernels_finite_test", measure_finite, 0.95, 1, 0},
    {"kernels_vote_apply_w4_1t", measure_vote, 1.3, 1, 4},
    {"kernels_vote_apply_w4_2t", measure_vote, 1.3, 2, 4},
    {"kernels_vote_apply_w8_1t", measure_vote, 1.7, 1, 8},
    {"kernels_vote_apply_w8_2t", measure_vote, 1.7, 2, 8},
    {"kernels_fused_1t", measure_fused, 1.5, 1, 1},
    {"kernels_fused_2t", measure_fused, 1.5, 2, 1},
    {"kernels_autocast_decision_ns", measure_decision, 20, 1, 0},
    {"kernels_autocast_enter_leave_ns", measure_enter, 50, 1, 0},
};
#define ROWS (sizeof rows / sizeof rows[0])

/* work: NULL for the bound of a vote and an apply (kernel_bounds.h). */
static int serve(const char *elements, const char *threads, bench_work_fn *work)
{
    struct arrays a;
    struct bench_side ours = {"ours", work, &a, next_round};
    struct bench_row row = {
        .elements = strtoull(elements, NULL, 10), .grain = BLOCK, .threads = (unsigned)strtoul(threads, NULL, 10)};
    if (row.elements == 0 || row.elements % BLOCK != 0 || row.threads == 0 || row.threads > BENCH_THREADS_MAX)
        bench_fail("--serve takes a multiple of 65536 elements and 1 or 2 threads");
    open_arrays(&a, row.elements, 1, false);
    if (work == NULL && bound_of(&ours, &row, &a, run_bound_read, run_bound_step, run_bound_read_step) == NULL)
        puts("SKIPPED: this processor has no loops for the bound (kernel_bounds.h)");
    puts("ready");
    (void)fflush(stdout);
    for (int c = getchar(); c != EOF; c = getchar()) {
        if (c != '\n')
            continue;
        printf("%.9f\n", bench_run(&ours, row.elements, BLOCK, row.threads));
        (void)fflush(stdout);
    }
    close_arrays(&a);
    return 0;
}

static void list(void)
{
    for (size_t i = 0; i < ROWS; i++)
        puts(rows[i].name);
}

int main(int argc, char **argv)
{
    struct amp_error error = {0};
    bool applies = argc == 5 && strcmp(argv[4], "apply") == 0;
    bool bounds = argc == 5 && strcmp(argv[4], "bound") == 0;
    bool serves = (argc == 4 || applies || bounds) && strcmp(argv[1], "--serve") == 0;
    if (argc != 2 && !serves) {
        (void)fprintf(stderr, "usage: bench_kernels --list | NAME | --serve ELEMENTS THREADS [apply|bound]\n");
        return 2;
    }
    if (amp_cpu_select(getenv("AMPD_ISA"), &kernels, &error) != 0)
        bench_fail(error.text);
    if (serves)
        return serve(argv[2], argv[3], bounds ? NULL : applies ? run_apply_crc : run_vote_apply);
    if (strcmp(argv[1], "--list") == 0) {
        list();
        return 0;
    }
    for (size_t i = 0; i < ROWS; i++) {
        if (strcmp(argv[1], rows[i].name) != 0)
            continue;
        struct bench_row row = {.name = rows[i].name, .goal = rows[i].goal, .grain = BLOCK, .threads = rows[i].threads};
        rows[i].measure(&row, rows[i].workers);
        return 0;
    }
    (void)fprintf(stderr, "bench_kernels: no row is named \"%s\"; see --list\n", argv[1]);
    return 2;
}
