/*
 * The vote pass and the apply pass, tile by tile.
 *
 * A tile is small enough that the sum, its test, its squares and the optimizer find it in the first cache level, and a
 * multiple of the 16 lanes, so that a segment's lanes do not depend on the tile size. Nothing else depends on it
 * either: every other operation is per element.
 */
#include "amp/pass.h"

#include "amp/kernels/unaligned.h"
#include "amp/reduce.h"
#include "base/assert.h"

#include <math.h>
#include <string.h>

/*
 * Elements of a tile, 4 KiB of g: with the tiles of master, moments and inputs it fits a first-level cache of 32 KiB.
 */
#define TILE 1024
_Static_assert(TILE % AMP_SQUARE_LANES == 0, "lanes go on from tile to tile");

/* Elements of a tile of a vote that keeps g: small, so that its writes overlap with the reads of the next tile. */
#define TILE_KEPT 512
_Static_assert(TILE_KEPT % AMP_SQUARE_LANES == 0, "lanes go on from tile to tile");
_Static_assert(TILE_KEPT <= TILE, "by parts it is formed in an array of TILE");

_Static_assert(TILE % AMP_VOTE_MULTIPLE == 0 && TILE_KEPT % AMP_VOTE_MULTIPLE == 0, "amp_vote_pass_fn goes by tiles");
_Static_assert(TILE_KEPT * sizeof(float) % AMP_VOTE_ALIGNMENT == 0, "each tile of g begins as the first one does");

/* The range test: below it, g * g and its sums stay far from overflow in single precision (docs/numerics.md). */
#define RANGE_LIMIT 0x1p63f

/* The smallest eps * sqrt(bias2) for which AdamW's single-precision form is accurate enough. */
#define ADAMW_GUARD_EPS 0x1p-40

/* Smallest magnitude, as bits, that rounds to Inf in each cast; none does in f32. And the largest finite values. */
static const uint32_t cast_limit[AMP_KERNEL_DTYPES] = {
    [AMP_F32] = AMP_F32_INF, [AMP_F16] = 0x477ff000u, [AMP_BF16] = 0x7f7f8000u};
static const uint16_t cast_largest[AMP_KERNEL_DTYPES] = {[AMP_F16] = 0x7bff, [AMP_BF16] = 0x7f7f};

static uint32_t magnitude(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x7fffffffu;
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Forms g = sum * f of n elements from `start`; returns the bits of the largest magnitude. */
static uint32_t form(const struct amp_kernels *kernels, const struct amp_pass_in *in, size_t start, size_t n, float *g)
{
    return kernels->form(in->inputs, in->inputs_count, in->equal_weights, in->coefficient, start, n, g);
}

static void count_range(const any_f32 *g, size_t start, size_t n, struct amp_pass_vote *vote)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t a = magnitude(g[i]);
        if (a < magnitude(RANGE_LIMIT) || a >= AMP_F32_INF)
            continue;
        vote->range_count++;
        if (start + i < vote->range_first)
            vote->range_first = start + i;
    }
}

/* Whether the variant has a kernel for the vote pass, and it takes these inputs. */
static bool votes_at_once(const struct amp_kernels *kernels, const struct amp_pass_in *in, const float *g_out)
{
    enum amp_dtype dtype = in->inputs[0].dtype;
    bool can = kernels->vote_pass != NULL && in->equal_weights && in->inputs_count <= AMP_VOTE_INPUTS &&
               (dtype != AMP_F32 || g_out == NULL) && (uintptr_t)g_out % AMP_VOTE_ALIGNMENT == 0;
    for (unsigned j = 1; can && j < in->inputs_count; j++)
        can = in->inputs[j].dtype == dtype;
    return can;
}

/* The vote of n elements from `start` by the separate kernels. Returns the bits of the largest magnitude. */
static uint32_t vote_by_parts(const struct amp_kernels *kernels, const struct amp_pass_in *in, size_t start, size_t n,
                              double *lanes, float *g_out)
{
    _Alignas(64) float tile[TILE];
    uint32_t most = form(kernels, in, start, n, tile);
    if (in->clip_value_set)
        kernels->clip_value(tile, in->clip_value, n);
    kernels->squares(tile, n, lanes);
    /*
     * Past the caches: nobody reads g before the vote has gone over much more than they hold. Not yet where look_again
     * stores it: it forms g of the inputs once more, and g_out may be one of them.
     */
    if (g_out != NULL && most < magnitude(RANGE_LIMIT))
        (void)kernels->store_stream[AMP_F32](g_out, tile, n);
    return most;
}

/* For a tile with elements that are not finite or out of range: counts them, and writes g with the canonical NaN. */
static void look_again(const struct amp_kernels *kernels, const struct amp_pass_in *in, size_t start, size_t n,
                       float *g_out, struct amp_check *check, struct amp_pass_vote *vote)
{
    _Alignas(64) float tile[TILE];
    if (form(kernels, in, start, n, tile) >= AMP_F32_INF)
        kernels->check[AMP_F32](tile, n, start, check);
    if (in->clip_value_set)
        kernels->clip_value(tile, in->clip_value, n);
    if (in->squares)
        count_range(tile, start, n, vote);
    if (g_out != NULL)
        (void)kernels->store_stream[AMP_F32](g_out, tile, n);
}

void amp_pass_vote(const struct amp_kernels *kernels, const struct amp_pass_in *in, float *g_out,
                   struct amp_pass_vote *vote)
{
    AMP_ASSERT(in->inputs_count > 0);
    double lanes[AMP_SQUARE_LANES] = {0};
    struct amp_check check = AMP_CHECK_INIT;
    uint32_t largest = 0;
    size_t tile = g_out != NULL ? TILE_KEPT : TILE;
    size_t whole = votes_at_once(kernels, in, g_out) ? in->count - in->count % AMP_VOTE_MULTIPLE : 0;
    float limit = in->clip_value_set ? in->clip_value : INFINITY;

    *vote = (struct amp_pass_vote){.sum_first = UINT64_MAX, .range_first = UINT64_MAX};
    for (size_t start = 0, n; start < in->count; start += n) {
        size_t left = (start < whole ? whole : in->count) - start;
        n = left < tile ? left : tile;
        float *g = g_out != NULL ? g_out + start : NULL;
        uint32_t most =
            start < whole ? kernels->vote_pass(in->inputs, in->inputs_count, in->coefficient, limit, start, n, lanes, g)
                          : vote_by_parts(kernels, in, start, n, lanes, g);
        if (most >= magnitude(RANGE_LIMIT))
            look_again(kernels, in, start, n, g, &check, vote);
        if (most < AMP_F32_INF && most > largest)
            largest = most;
    }
    if (g_out != NULL)
        kernels->store_fence();
    vote->sum_inf = check.inf_count;
    vote->sum_nan = check.nan_count;
    vote->sum_first = check.first;
    vote->largest = magnitude(check.largest) > largest ? check.largest : float_of(largest);
    vote->squares = check.inf_count + check.nan_count > 0 ? 0 : amp_tree_lanes(lanes);
}

/* How many elements, from the first on, the variant's kernel vote_take does. */
static size_t takes_at_once(const struct amp_kernels *kernels, const struct amp_pass_in *in, const void *to)
{
    enum amp_dtype dtype = in->inputs[0].dtype;
    bool can = kernels->vote_take != NULL && in->equal_weights && (dtype == AMP_F16 || dtype == AMP_BF16) &&
               (uintptr_t)to % AMP_VOTE_ALIGNMENT == 0;
    return can ? in->count - in->count % AMP_VOTE_MULTIPLE : 0;
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

void amp_pass_take(const struct amp_kernels *kernels, const struct amp_pass_in *in, void *to, uint64_t base,
                   struct amp_check *check, struct amp_pass_vote *vote)
{
    AMP_ASSERT(in->inputs_count == 1);
    struct amp_input copied = *in->inputs;
    struct amp_pass_in again = *in;
    const char *from = copied.data;
    copied.data = to;
    again.inputs = &copied;
    size_t whole = takes_at_once(kernels, in, to), rest = in->count - whole, size = amp_dtype_size(copied.dtype);
    double lanes[AMP_SQUARE_LANES] = {0};
    struct amp_check tail = AMP_CHECK_INIT;
    uint32_t most = 0; /* bits of the largest magnitude of the input; most_g: of g before the clip */
    if (whole > 0) {
        float limit = in->clip_value_set ? in->clip_value : INFINITY;
        most = kernels->vote_take(to, from, copied.dtype, in->coefficient, limit, whole, lanes);
        kernels->store_fence();
    }
    memcpy((char *)to + whole * size, from + whole * size, rest * size);
    /* The largest input gives the largest g: rounding keeps the order. */
    uint32_t most_g = magnitude(float_of(most) * in->coefficient);
    if (whole > 0 && rest > 0 && most_g < magnitude(RANGE_LIMIT)) {
        kernels->check[copied.dtype]((char *)to + whole * size, rest, base + whole, &tail);
        most_g = larger(most_g, vote_by_parts(kernels, &again, whole, rest, lanes, NULL));
    }
    if (whole == 0 || most_g >= magnitude(RANGE_LIMIT)) { /* passes over the copy, which also count */
        kernels->check[copied.dtype](to, in->count, base, check);
        amp_pass_vote(kernels, &again, NULL, vote);
        return;
    }
    check->largest = float_of(larger(larger(most, magnitude(tail.largest)), magnitude(check->largest)));
    *vote = (struct amp_pass_vote){.sum_first = UINT64_MAX,
                                   .range_first = UINT64_MAX,
                                   .largest = float_of(most_g),
                                   .squares = amp_tree_lanes(lanes)};
}

/* How far fp32(x) is from x, in units of 2^-24 of x: at most 1 within the range of fp32. */
static double rounding(double x)
{
    return x == 0 ? 0 : fabs((double)(float)x / x - 1) * 0x1p24;
}

/*
 * Sets the scalars of the test for single precision or double (docs/numerics.md section 6), from bounds of the
 * roundings of single precision in units of 2^-24. coupled: the gradient has weight_decay * p in it, and is rounded.
 */
static void set_guard(struct amp_apply_scalars *k, bool coupled)
{
    double terms = fmax(rounding(k->beta1), rounding(k->rest1) + coupled) + 1;
    double square = fmax(rounding(k->beta2) + 1, rounding(k->rest2) + 2 * coupled + 2) + 1;
    double divisor = fmax(square / 2 + 1, rounding(k->eps)) + 1;
    double update = terms + 1 + rounding(k->rate) + 1 + divisor + 1 + (k->decay != 0);
    double keep = (2 - 2 * (rounding(k->decay) + 2) * k->decay) / update;
    k->guard_fresh = (float)(2 * terms / update * k->rate);
    k->guard_keep = k->eps < ADAMW_GUARD_EPS || !(keep > 0) ? 0.0f : (float)keep;
}

void amp_apply_prepare(const struct amp_apply *apply, struct amp_apply_scalars *k)
{
    bool decoupled = apply->optimizer == AMP_OPT_ADAMW || apply->optimizer == AMP_OPT_LION;
    bool adams = apply->optimizer == AMP_OPT_ADAMW || apply->optimizer == AMP_OPT_ADAM;
    *k = (struct amp_apply_scalars){
        .clip = apply->clip,
        .nesterov = apply->nesterov,
        .first_step = apply->first_step,
        .lr = apply->lr,
        .weight_decay = apply->weight_decay,
        .momentum = apply->momentum,
        .keep = 1 - apply->dampening,
        .beta1 = apply->beta1,
        .rest1 = 1 - apply->beta1,
        .beta2 = apply->beta2,
        .rest2 = 1 - apply->beta2,
        .eps = apply->eps,
        .decay = decoupled ? apply->lr * apply->weight_decay : 0,
        .centered = apply->centered,
    };
    double root = sqrt(apply->bias2);
    if (apply->optimizer == AMP_OPT_RMSPROP) {
        k->beta2 = apply->alpha;
        k->rest2 = 1 - apply->alpha;
    }
    if (apply->optimizer == AMP_OPT_LAMB) {
        k->eps = apply->eps * root;
        k->rate = root / apply->bias1;
        k->lr = apply->lr * apply->trust;
    }
    if (!adams)
        return;
    k->eps = apply->eps * root;
    k->rate = apply->lr * root / apply->bias1;
    k->beta1_f = (float)k->beta1;
    k->rest1_f = (float)k->rest1;
    k->beta2_f = (float)k->beta2;
    k->rest2_f = (float)k->rest2;
    k->eps_f = (float)k->eps;
    k->rate_f = (float)k->rate;
    k->decay_f = (float)k->decay;
    set_guard(k, apply->optimizer == AMP_OPT_ADAM && apply->weight_decay != 0);
}

/* Saturates: a finite master beyond the cast's range becomes the largest finite value of its sign. */
static void saturate(const any_f32 *master, size_t n, enum amp_dtype cast, any_u16 *out)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t a = magnitude(master[i]);
        if (a >= cast_limit[cast] && a < AMP_F32_INF)
            out[i] = (uint16_t)((signbit(master[i]) ? 0x8000u : 0u) | cast_largest[cast]);
    }
}

static void count_masters(const any_f32 *master, size_t n, enum amp_dtype cast, struct amp_apply_stats *stats)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t a = magnitude(master[i]);
        if (a >= AMP_F32_INF) {
            stats->not_finite++;
            continue;
        }
        if (a >= cast_limit[cast])
            stats->cast_overflows++;
        if (a > magnitude(stats->largest))
            stats->largest = float_of(a);
    }
}

/* Fills the statistics, and saturates if asked to, after n masters were cast; `largest`: the bits of their largest. */
static void judge_cast(uint32_t largest, const float *master, size_t n, enum amp_dtype cast, bool saturating, void *out,
                       struct amp_apply_stats *stats)
{
    if (largest < cast_limit[cast]) {
        if (largest > magnitude(stats->largest))
            stats->largest = float_of(largest);
        return;
    }
    count_masters(master, n, cast, stats);
    if (saturating && cast != AMP_F32)
        saturate(master, n, cast, out);
}

static void cast_tile(const struct amp_kernels *kernels, const float *master, size_t n, enum amp_dtype cast,
                      bool saturating, void *out, struct amp_apply_stats *stats)
{
    /* Past the caches: the copy is not read before the pass has moved much more data than the caches hold. */
    judge_cast(kernels->store_stream[cast](out, master, n), master, n, cast, saturating, out, stats);
}

void amp_pass_cast(const struct amp_kernels *kernels, size_t count, const float *master, enum amp_dtype cast,
                   bool saturating, void *cast_out, struct amp_apply_stats *stats)
{
    size_t size = amp_dtype_size(cast);
    for (size_t start = 0; start < count; start += TILE) {
        size_t n = count - start < TILE ? count - start : TILE;
        cast_tile(kernels, master + start, n, cast, saturating, (char *)cast_out + start * size, stats);
    }
    kernels->store_fence();
}

/* Applies one tile, whose g is given. */
static void apply_tile(const struct amp_kernels *kernels, const struct amp_apply *apply,
                       const struct amp_apply_scalars *scalars, size_t start, size_t n, const float *g, float *master,
                       float *m, float *v, void *cast_out, struct amp_apply_stats *stats)
{
    kernels->apply[apply->optimizer](scalars, n, g, master + start, m ? m + start : NULL, v ? v + start : NULL);
    cast_tile(kernels, master + start, n, apply->cast, apply->saturate,
              (char *)cast_out + start * amp_dtype_size(apply->cast), stats);
}

/* The whole pass by the variant's own kernel. False: it has none, and nothing was done. */
static bool apply_at_once(const struct amp_kernels *kernels, const struct amp_pass_in *in,
                          const struct amp_apply *apply, const struct amp_apply_scalars *scalars, float *master,
                          float *m, float *v, void *cast_out, struct amp_apply_stats *stats)
{
    amp_apply_pass_fn *pass = kernels->apply_pass[apply->optimizer];
    if (pass == NULL)
        return false;
    uint32_t largest = pass(scalars, in, apply->cast, master, m, v, cast_out);
    kernels->store_fence();
    judge_cast(largest, master, in->count, apply->cast, apply->saturate, cast_out, stats);
    return true;
}

void amp_pass_apply(const struct amp_kernels *kernels, const struct amp_pass_in *in, const struct amp_apply *apply,
                    float *master, float *m, float *v, void *cast_out, struct amp_apply_stats *stats)
{
    AMP_ASSERT(in->inputs_count > 0);
    _Alignas(64) float g[TILE];
    struct amp_apply_scalars scalars;
    amp_apply_prepare(apply, &scalars);
    if (apply_at_once(kernels, in, apply, &scalars, master, m, v, cast_out, stats))
        return;
    for (size_t start = 0; start < in->count; start += TILE) {
        size_t n = in->count - start < TILE ? in->count - start : TILE;
        (void)form(kernels, in, start, n, g); /* judged by the vote pass */
        if (in->clip_value_set)
            kernels->clip_value(g, in->clip_value, n);
        apply_tile(kernels, apply, &scalars, start, n, g, master, m, v, cast_out, stats);
    }
    kernels->store_fence();
}

static void lamb_tile(const struct amp_kernels *kernels, const struct amp_apply_scalars *scalars, size_t start,
                      size_t n, const float *g, const float *master, const float *m, const float *v,
                      double lanes[2][AMP_SQUARE_LANES])
{
    kernels->lamb_squares(scalars, n, g, master + start, m + start, v + start, lanes[0], lanes[1]);
}

void amp_pass_lamb(const struct amp_kernels *kernels, const struct amp_pass_in *in, const struct amp_apply *apply,
                   const float *master, const float *m, const float *v, struct amp_lamb_squares *squares)
{
    AMP_ASSERT(in->inputs_count > 0);
    _Alignas(64) float g[TILE];
    double lanes[2][AMP_SQUARE_LANES] = {{0}};
    struct amp_apply_scalars scalars;
    amp_apply_prepare(apply, &scalars);
    for (size_t start = 0; start < in->count; start += TILE) {
        size_t n = in->count - start < TILE ? in->count - start : TILE;
        (void)form(kernels, in, start, n, g); /* judged by the vote pass */
        if (in->clip_value_set)
            kernels->clip_value(g, in->clip_value, n);
        lamb_tile(kernels, &scalars, start, n, g, master, m, v, lanes);
    }
    *squares = (struct amp_lamb_squares){amp_tree_lanes(lanes[0]), amp_tree_lanes(lanes[1])};
}

void amp_pass_lamb_g(const struct amp_kernels *kernels, size_t count, const float *g, const struct amp_apply *apply,
                     const float *master, const float *m, const float *v, struct amp_lamb_squares *squares)
{
    double lanes[2][AMP_SQUARE_LANES] = {{0}};
    struct amp_apply_scalars scalars;
    amp_apply_prepare(apply, &scalars);
    lamb_tile(kernels, &scalars, 0, count, g, master, m, v, lanes);
    *squares = (struct amp_lamb_squares){amp_tree_lanes(lanes[0]), amp_tree_lanes(lanes[1])};
}

/*
 * Prefetches the next tile of g, which has `left` elements: the optimizer's kernel prefetches only its other arrays.
 */
static void ask_for_tile(const float *g, size_t left)
{
    for (size_t i = 0; i < TILE && i < left; i += 16)
        __builtin_prefetch(g + i);
}

void amp_pass_apply_g(const struct amp_kernels *kernels, size_t count, const float *g, const struct amp_apply *apply,
                      float *master, float *m, float *v, void *cast_out, struct amp_apply_stats *stats)
{
    struct amp_apply_scalars scalars;
    amp_apply_prepare(apply, &scalars);
    const struct amp_input input = {.data = g, .dtype = AMP_F32, .weight = 1};
    const struct amp_pass_in in = {
        .count = count, .inputs = &input, .inputs_count = 1, .equal_weights = true, .coefficient = 1};
    if (apply_at_once(kernels, &in, apply, &scalars, master, m, v, cast_out, stats))
        return;
    for (size_t start = 0; start < count; start += TILE) {
        size_t n = count - start < TILE ? count - start : TILE;
        ask_for_tile(g + start + n, count - start - n);
        apply_tile(kernels, apply, &scalars, start, n, g + start, master, m, v, cast_out, stats);
    }
    kernels->store_fence();
}
