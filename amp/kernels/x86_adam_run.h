/*
 * What is around the loops of AVX2's and AVX-512's Adam: by spans, with what follows each; a loop for each kind of
 * source; tiles for what none of these can form. Included at the end of kernels/avx2_adam.c and kernels/avx512_adam.c,
 * behind their step_span, redo_few, redo_many, stream_16 and KERNELS, which is their table.
 */
#ifndef AMP_KERNELS_X86_ADAM_RUN_H
#define AMP_KERNELS_X86_ADAM_RUN_H

#include "amp/kernels/x86_adam_late.h"
#include "amp/kernels/x86_adam_parts.h"

#include <math.h>

/* Elements of g that are formed at once where the loop cannot form them. */
#define TILE 1024

static uint32_t cast_span(const struct target *t, size_t start, size_t n)
{
    const float *p = t->p + start;
    if (t->stream && n % (2 * (size_t)WIDTH) == 0 && t->cast != AMP_F32) {
        uint16_t *copy = (uint16_t *)t->copy + start;
        return t->cast == AMP_F16 ? stream_16(copy, AMP_F16, p, n) : stream_16(copy, AMP_BF16, p, n);
    }
    return KERNELS.store[t->cast]((char *)t->copy + start * amp_dtype_size(t->cast), p, n);
}

/* The copies of the elements from *cast to `end`, where there are any. */
INLINE void cast_to(const struct target *t, size_t end, size_t *cast, uint32_t *largest)
{
    if (t->copy != NULL && end > *cast)
        *largest = larger(*largest, cast_span(t, *cast, end - *cast));
    *cast = end;
}

/* n elements, a multiple of WIDTH. Returns the largest master as bits where there is a cast. */
INLINE uint32_t run(const struct source *s, struct kind kind, size_t n, const struct target *t)
{
    struct span old;
    uint32_t largest = 0;
    size_t cast = 0;
    for (size_t start = 0; start < n; start += SPAN) {
        size_t count = n - start < SPAN ? n - start : SPAN;
        step_span(s, kind, start, count, t, &old);
        if (CASTS_BEHIND)
            cast_to(t, start, &cast, &largest);
        redo_late(s, kind, start, count, t, &old);
        if (!CASTS_BEHIND)
            cast_to(t, start + count, &cast, &largest);
    }
    cast_to(t, n, &cast, &largest);
    return largest;
}

/* A loop for each kind of source and of core; those without a clip have the fewest products. */
#define RUN(...)                                                                                                       \
    (ON_ZEN5  ? run(s, (struct kind){__VA_ARGS__, .core = ZEN5}, n, t)                                                 \
     : ON_AMD ? run(s, (struct kind){__VA_ARGS__, .core = OTHER_AMD}, n, t)                                            \
              : run(s, (struct kind){__VA_ARGS__, .core = INTEL}, n, t))

static uint32_t run_f16(const struct source *s, bool clips, size_t n, const struct target *t)
{
    if (s->count > 1)
        return RUN(.dtype = AMP_F16, .scaled = true, .clamped = true, .many = true);
    return clips ? RUN(.dtype = AMP_F16, .scaled = true, .clamped = true) : RUN(.dtype = AMP_F16, .scaled = true);
}

static uint32_t run_bf16(const struct source *s, bool clips, size_t n, const struct target *t)
{
    if (s->count > 1)
        return RUN(.dtype = AMP_BF16, .scaled = true, .clamped = true, .many = true);
    return clips ? RUN(.dtype = AMP_BF16, .scaled = true, .clamped = true) : RUN(.dtype = AMP_BF16, .scaled = true);
}

static uint32_t run_f32(const struct source *s, bool clips, bool couple, size_t n, const struct target *t)
{
    if (couple)
        return RUN(.dtype = AMP_F32, .scaled = true, .clamped = true, .coupled = true);
    return clips ? RUN(.dtype = AMP_F32, .scaled = true, .clamped = true) : RUN(.dtype = AMP_F32);
}

static bool couples(const struct amp_apply_scalars *k, enum amp_optimizer optimizer)
{
    return optimizer == AMP_OPT_ADAM && k->weight_decay != 0;
}

static void apply(const struct amp_apply_scalars *k, enum amp_optimizer optimizer, size_t n, const float *g, float *p,
                  float *m, float *v)
{
    struct source source = {.data = {g}, .count = 1};
    struct target target = {.p = p, .m = m, .v = v};
    size_t whole = n - n % WIDTH;
    set_scalars(&source, k, 1, INFINITY);
    (void)run_f32(&source, k->clip != 1, couples(k, optimizer), whole, &target);
    amp_kernels_ref.apply[optimizer](k, n - whole, g + whole, p + whole, m + whole, v + whole);
}

/* The elements from `start` on, with g formed a tile at a time. */
static uint32_t step_tiles(const struct amp_apply_scalars *k, enum amp_optimizer optimizer,
                           const struct amp_pass_in *in, size_t start, const struct target *t)
{
    _Alignas(64) float g[TILE];
    uint32_t largest = 0;
    for (; start < in->count; start += TILE) {
        size_t n = in->count - start < TILE ? in->count - start : TILE;
        (void)KERNELS.form(in->inputs, in->inputs_count, in->equal_weights, in->coefficient, start, n, g);
        if (in->clip_value_set)
            KERNELS.clip_value(g, in->clip_value, n);
        apply(k, optimizer, n, g, t->p + start, t->m + start, t->v + start);
        largest = larger(largest, cast_span(t, start, n));
    }
    return largest;
}

/* Whether the loop can make g of the inputs itself. */
static bool direct(const struct amp_pass_in *in, bool couple)
{
    enum amp_dtype dtype = in->inputs[0].dtype;
    bool can = dtype == AMP_F32 ? in->inputs_count == 1 : in->inputs_count <= INPUTS_MAX && !couple;
    for (unsigned j = 0; j < in->inputs_count; j++)
        can = can && in->inputs[j].dtype == dtype && (in->equal_weights || in->inputs[j].weight == 1.0f);
    return can;
}

static uint32_t apply_pass(const struct amp_apply_scalars *k, enum amp_optimizer optimizer,
                           const struct amp_pass_in *in, enum amp_dtype cast, float *p, float *m, float *v, void *copy)
{
    struct target target = {
        .p = p, .m = m, .v = v, .copy = copy, .cast = cast, .stream = (uintptr_t)copy % (WIDTH * sizeof(float)) == 0};
    struct source source = {.count = in->inputs_count};
    bool couple = couples(k, optimizer), clips = in->clip_value_set || k->clip != 1;
    size_t whole = 0;
    uint32_t largest = 0;
    if (direct(in, couple)) {
        enum amp_dtype dtype = in->inputs[0].dtype;
        set_scalars(&source, k, in->coefficient, in->clip_value_set ? in->clip_value : INFINITY);
        for (unsigned j = 0; j < in->inputs_count; j++)
            source.data[j] = in->inputs[j].data;
        whole = in->count - in->count % WIDTH;
        if (dtype == AMP_F32)
            largest = run_f32(&source, clips || in->coefficient != 1, couple, whole, &target);
        else
            largest = (dtype == AMP_F16 ? run_f16 : run_bf16)(&source, clips, whole, &target);
    }
    return larger(largest, step_tiles(k, optimizer, in, whole, &target));
}

#endif
