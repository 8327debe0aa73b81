/* AdamW of kernel_bounds.c for one length of vectors: a part of kernel_bound_loops.h. */

/* The constants in registers, or a load away. */
struct NAME(constants) {
    NAME(vec) beta1, rest1, beta2, rest2, rate, eps, decay, guard_fresh, guard_keep, guard_min;
};

LOOP NAME(vec) NAME(size)(NAME(vec) x)
{
    return (NAME(vec))((NAME(bits))x & 0x7fffffffu);
}

/* Returns the new masters; those of late elements, which only doubles can give, are the old ones. */
LOOP NAME(vec) NAME(step_vector)(const struct NAME(constants) * c, NAME(vec) x, float *p, float *m, float *v)
{
    NAME(vec) p0 = NAME(load)(p);
    NAME(vec) old_m = c->beta1 * NAME(load)(m), new_m = c->rest1 * x;
    NAME(vec) m1 = old_m + new_m;
    NAME(vec) v1 = c->beta2 * NAME(load)(v) + c->rest2 * (x * x);
    NAME(vec) divisor = NAME(root)(v1) + c->eps;
    NAME(vec) rated = c->rate * m1;
    NAME(vec) p1 = p0 - (rated / divisor + c->decay * p0);
    NAME(vec) guard = (NAME(vec))((NAME(bits))p0 & 0x7f800000u) * divisor * c->guard_keep;
    NAME(vec) least = NAME(size)(rated) + c->guard_fresh * NAME(size)(new_m) + c->guard_min;
    p1 = NAME(not_below)(guard, least, p1, p0);
    NAME(store)(m, m1);
    NAME(store)(v, v1);
    NAME(store)(p, p1);
    return p1;
}

LOOP NAME(vec) NAME(gradient)(const void *g, bool f32, size_t i)
{
    return f32 ? NAME(load)((const float *)g + i) : NAME(widen)((const uint16_t *)g + i);
}

/* The new masters of the first LATE elements of a span, in double. */
LOOP void NAME(step_late)(const struct amp_apply_scalars *k, const float *x, const float *p, const float *m,
                          const float *v, float *out)
{
    for (size_t i = 0; i < LATE; i += LANES / 2) {
        NAME(wide) g = NAME(load_wide)(x + i), p0 = NAME(load_wide)(p + i);
        NAME(wide) m1 = k->beta1 * NAME(load_wide)(m + i) + k->rest1 * g;
        NAME(wide) v1 = k->beta2 * NAME(load_wide)(v + i) + k->rest2 * (g * g);
        NAME(store_wide)(out + i, p0 - (k->rate * m1 / (NAME(root_wide)(v1) + k->eps) + k->decay * p0));
    }
}

LOOP void NAME(step)(enum ahead ahead, bool f32, const struct amp_apply_scalars *k, const void *g, float *p, float *m,
                     float *v, uint16_t *copy, size_t n)
{
    const NAME(vec) none = {0};
    const struct NAME(constants) c = {.beta1 = none + k->beta1_f,
                                      .rest1 = none + k->rest1_f,
                                      .beta2 = none + k->beta2_f,
                                      .rest2 = none + k->rest2_f,
                                      .rate = none + k->rate_f,
                                      .eps = none + k->eps_f,
                                      .decay = none + k->decay_f,
                                      .guard_fresh = none + k->guard_fresh,
                                      .guard_keep = none + k->guard_keep,
                                      .guard_min = none + AMP_ADAMW_GUARD_MIN};
    for (size_t start = 0; start < n; start += SPAN) {
        float x[2 * LANES], late[LATE];
        NAME(store)(x, NAME(gradient)(g, f32, start));
        NAME(store)(x + LANES, NAME(gradient)(g, f32, start + LANES));
        NAME(step_late)(k, x, p + start, m + start, v + start, late);
        for (size_t i = start; i < start + SPAN; i += LINE) {
            ask(ahead, (const char *)g + i * (f32 ? 4 : 2), f32 ? 2 : 1);
            ask(ahead, p + i, 2);
            ask(ahead, m + i, 2);
            ask(ahead, v + i, 2);
            for (size_t j = i; j < i + LINE; j += 2 * LANES) {
                size_t next = j + LANES;
                NAME(vec) a = NAME(step_vector)(&c, NAME(gradient)(g, f32, j), p + j, m + j, v + j);
                NAME(vec) b = NAME(step_vector)(&c, NAME(gradient)(g, f32, next), p + next, m + next, v + next);
                NAME(stream_halves)(copy + j, a, b);
            }
        }
        memcpy(p + start, late, sizeof late);
    }
    _mm_sfence();
}
