/*
 * The test of a kernel table: every kernel on fixed inputs, and a hash of what it makes of them. The hashes follow from
 * docs/numerics.md alone, so that they are those of every table, and the reference is tested too, with the compiler
 * that has built it. An operation that is added to the kernels has to be called here.
 */
#include "amp/cpu.h"

#include "amp/given.h"
#include "amp/norm.h"
#include "amp/pass.h"
#include "base/random.h"
#include "base/wraps.h"

#include <stddef.h>
#include <string.h>

/* More elements than a span of Adam's or a tile of a vote, and a tail that fills neither a vector nor the 16 lanes. */
#define N 603

static const enum amp_dtype dtypes[] = {AMP_F32, AMP_F16, AMP_BF16};
#define DTYPES (sizeof dtypes / sizeof dtypes[0])

/* Inputs of each dtype: two of finite numbers, and one of any bits. */
#define SLOTS 3
#define ANY   2

/* What the kernels read and write. 16-bit elements are in the first half of their N words. */
struct room {
    const struct amp_kernels *kernels;
    struct amp_kernels parts; /* the same without the kernels that do a whole pass */
    uint64_t hash;
    _Alignas(AMP_VOTE_ALIGNMENT) float g[N];
    _Alignas(AMP_VOTE_ALIGNMENT) uint32_t copy[N];
    float p[N], m[N], v[N];
    uint32_t inputs[SLOTS][AMP_KERNEL_DTYPES][N];
};

/* The product wraps: a hash. */
AMP_WRAPS static void add(struct room *room, const void *data, size_t size)
{
    const char *at = data;
    while (size > 0) {
        uint64_t word = 0;
        size_t n = size < sizeof word ? size : sizeof word;
        memcpy(&word, at, n);
        room->hash = (room->hash ^ word) * 0x9e3779b97f4a7c15u;
        room->hash ^= room->hash >> 32;
        at += n;
        size -= n;
    }
}

/* A random number whose exponent is one of `count` from `low` on; of either sign, or positive. */
static float spread(struct amp_random *random, int low, unsigned count, bool positive)
{
    uint64_t r = amp_random_next(random);
    uint32_t bits = (uint32_t)(r & (positive ? 0x7fffffu : 0x807fffffu));
    bits |= (uint32_t)(127 + low + (int)((r >> 32) % count)) << 23;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Makes the inputs without any kernel, so that a wrong one cannot change what the others are given. */
static void fill(struct room *room)
{
    struct amp_random random;
    amp_random_init(&random, 2026);
    for (unsigned slot = 0; slot < SLOTS; slot++) {
        for (size_t i = 0; i < N; i++) {
            float x = spread(&random, -10, 12, false);
            uint64_t r = amp_random_next(&random);
            uint32_t any = (uint32_t)(r >> 32);
            /* Without the exponent's first bit f16 is finite, and a denormal now and then; bf16 is from 2^-7 to 2. */
            uint16_t f16 = (uint16_t)(slot == ANY ? r : r & 0xbfffu);
            uint16_t bf16 = (uint16_t)(slot == ANY ? r >> 16 : (r >> 16 & 0x83ffu) | 0x3c00u);
            memcpy(&room->inputs[slot][AMP_F32][i], slot == ANY ? (const void *)&any : &x, sizeof x);
            memcpy((uint16_t *)room->inputs[slot][AMP_F16] + i, &f16, sizeof f16);
            memcpy((uint16_t *)room->inputs[slot][AMP_BF16] + i, &bf16, sizeof bf16);
        }
    }
    for (size_t i = 0; i < N; i++) {
        room->p[i] = i % 50 == 0 ? 0 : spread(&random, -12, 13, false);
        room->m[i] = spread(&random, -16, 10, true);
        room->v[i] = spread(&random, -30, 20, true);
    }
}

static void run_casts(struct room *room, enum amp_optimizer none)
{
    const struct amp_kernels *k = room->kernels;
    for (size_t j = 0; j < 2 * DTYPES; j++) {
        enum amp_dtype d = dtypes[j % DTYPES];
        unsigned slot = j < DTYPES ? 0 : ANY;
        size_t bytes = N * amp_dtype_size(d);
        const float *wide = (const void *)room->inputs[slot][AMP_F32];
        struct amp_check check = AMP_CHECK_INIT;
        k->load[d](room->g, room->inputs[slot][d], N);
        add(room, room->g, sizeof room->g);
        k->load_stream[d](room->g, room->inputs[slot][d], N);
        k->store_fence();
        add(room, room->g, sizeof room->g);
        uint32_t largest[3] = {k->store[d](room->copy, wide, N)};
        add(room, room->copy, bytes);
        largest[1] = k->store_stream[d](room->copy, wide, N);
        k->store_fence();
        add(room, room->copy, bytes);
        largest[2] = k->largest[d](room->inputs[slot][d], N);
        add(room, largest, sizeof largest);
        k->check[d](room->inputs[slot][d], N, 7, &check);
        add(room, &check, offsetof(struct amp_check, largest) + sizeof check.largest);
    }
}

static void run_sums(struct room *room, enum amp_optimizer none)
{
    const struct amp_kernels *k = room->kernels;
    for (size_t j = 0; j < DTYPES; j++) {
        k->sum_set[dtypes[j]](room->g, room->inputs[0][dtypes[j]], 0.3f, N);
        add(room, room->g, sizeof room->g);
        k->sum_add[dtypes[j]](room->g, room->inputs[1][dtypes[j]], 1.7f, N);
        add(room, room->g, sizeof room->g);
        uint32_t largest = k->scale(room->g, room->g, 1.0f / 3, N);
        add(room, &largest, sizeof largest);
        add(room, room->g, sizeof room->g);
    }
}

static void add_vote(struct room *room, const struct amp_pass_vote *vote)
{
    add(room, vote, offsetof(struct amp_pass_vote, largest) + sizeof vote->largest);
}

static void run_votes(struct room *room, enum amp_optimizer none)
{
    for (size_t j = 0; j < 2 * DTYPES; j++) {
        enum amp_dtype d = dtypes[j % DTYPES];
        const struct amp_input inputs[] = {{room->inputs[j < DTYPES ? 0 : ANY][d], d, 0.7f},
                                           {room->inputs[1][d], d, 1.3f}};
        struct amp_pass_in in = {.count = N,
                                 .inputs = inputs,
                                 .inputs_count = 2,
                                 .coefficient = 1.0f / 3,
                                 .clip_value_set = j % 2 == 1,
                                 .clip_value = 0.125f,
                                 .squares = true};
        struct amp_check check = AMP_CHECK_INIT;
        struct amp_pass_vote vote;
        for (int equal = 0; equal < 2; equal++) {
            in.equal_weights = equal;
            amp_pass_vote(room->kernels, &in, room->g, &vote);
            add(room, room->g, sizeof room->g);
            add_vote(room, &vote);
        }
        amp_pass_vote(room->kernels, &in, NULL, &vote);
        add_vote(room, &vote);
        in.inputs_count = 1;
        amp_pass_take(room->kernels, &in, room->copy, 7, &check, &vote);
        add(room, room->copy, N * amp_dtype_size(d));
        add(room, &check, offsetof(struct amp_check, largest) + sizeof check.largest);
        add_vote(room, &vote);
    }
}

static void run_norms(struct room *room, enum amp_optimizer none)
{
    for (int p = 1; p <= 3; p++) {
        for (size_t j = 0; j < DTYPES; j++) {
            const struct amp_span span = {room->inputs[0][dtypes[j]], N, dtypes[j]};
            double sum = amp_norm_sum(room->kernels, &span, p, 4);
            add(room, &sum, sizeof sum);
        }
    }
}

/* Step `t` of an optimizer; each `t` has other inputs, settings and another dtype of the copy. */
static void step(struct room *room, const struct amp_kernels *kernels, enum amp_optimizer optimizer, unsigned t)
{
    static const struct {
        unsigned count, first; /* inputs */
        enum amp_dtype cast;
    } rows[] = {{1, 0, AMP_F16}, {2, 1, AMP_BF16}, {1, 3, AMP_F16}, {4, 0, AMP_F32}};
    const struct amp_input all[] = {{room->inputs[0][AMP_F32], AMP_F32, 1},
                                    {room->inputs[0][AMP_F16], AMP_F16, 1},
                                    {room->inputs[1][AMP_F16], AMP_F16, 1},
                                    {room->inputs[0][AMP_BF16], AMP_BF16, 1}};
    const struct amp_pass_in in = {.count = N,
                                   .inputs = all + rows[t].first,
                                   .inputs_count = rows[t].count,
                                   .equal_weights = true,
                                   .coefficient = 1.0f / 3,
                                   .clip_value_set = t == 3,
                                   .clip_value = 0.25f};
    struct amp_optim_config config;
    struct amp_apply apply;
    struct amp_apply_stats stats = {0};
    amp_optim_defaults(optimizer, &config);
    config.weight_decay = t % 2 == 0 ? 0.01 : 0;
    config.momentum = (optimizer == AMP_OPT_SGD && t > 0) || (optimizer == AMP_OPT_RMSPROP && t % 2 == 1) ? 0.9 : 0;
    config.nesterov = optimizer == AMP_OPT_SGD && t == 1;
    config.centered = optimizer == AMP_OPT_RMSPROP && t == 2;
    amp_optim_scalars(&config, t + 1, config.lr, t == 1 ? 0.7f : 1, &apply);
    apply.cast = rows[t].cast;
    apply.first_step = t == 0;
    apply.trust = 0.8;
    unsigned moments = amp_optim_config_moments(&config);
    float *m = moments >= 1 ? room->m : NULL, *v = moments == 2 ? room->v : NULL;
    if (optimizer == AMP_OPT_LAMB) {
        struct amp_lamb_squares squares;
        amp_pass_lamb(kernels, &in, &apply, room->p, m, v, &squares);
        add(room, &squares, sizeof squares);
    }
    amp_pass_apply(kernels, &in, &apply, room->p, m, v, room->copy, &stats);
    add(room, room->p, sizeof room->p);
    add(room, room->m, sizeof room->m);
    add(room, room->v, sizeof room->v);
    add(room, room->copy, N * amp_dtype_size(apply.cast));
    add(room, &stats, offsetof(struct amp_apply_stats, largest) + sizeof stats.largest);
}

static void run_steps(struct room *room, enum amp_optimizer optimizer)
{
    for (unsigned t = 0; t < 4; t++) {
        step(room, room->kernels, optimizer, t);
        step(room, &room->parts, optimizer, t);
    }
}

static const struct stage {
    const char *name;
    void (*run)(struct room *room, enum amp_optimizer optimizer);
    enum amp_optimizer optimizer;
    uint64_t hash;
} stages[] = {
    {"casts", run_casts, 0, 0xac1e57ddca10702eu},
    {"sums", run_sums, 0, 0x797bcf9e5641cd07u},
    {"votes", run_votes, 0, 0x05195318cd0f3672u},
    {"norms", run_norms, 0, 0x43b648d745e20261u},
    {"sgd", run_steps, AMP_OPT_SGD, 0x22c5be5b8194214cu},
    {"adamw", run_steps, AMP_OPT_ADAMW, 0x552aa180790df4b8u},
    {"adam", run_steps, AMP_OPT_ADAM, 0x3797da98dd1740e8u},
    {"adagrad", run_steps, AMP_OPT_ADAGRAD, 0xc18ba3aedf1edb94u},
    {"rmsprop", run_steps, AMP_OPT_RMSPROP, 0x15b87bad2f27dc00u},
    {"lion", run_steps, AMP_OPT_LION, 0x05e92c2e12023052u},
    {"lamb", run_steps, AMP_OPT_LAMB, 0x7cbfc67613479583u},
};
#define STAGES (sizeof stages / sizeof stages[0])

int amp_kernels_verify(const struct amp_kernels *kernels, struct amp_error *error)
{
    int rc = amp_given(kernels, "kernels", error);
    if (rc != 0)
        return rc;
    struct room room = {.kernels = kernels, .parts = *kernels};
    room.parts.vote_pass = NULL;
    room.parts.vote_take = NULL;
    memset(room.parts.apply_pass, 0, sizeof room.parts.apply_pass);
    for (size_t i = 0; rc == 0 && i < STAGES; i++) {
        room.hash = i;
        fill(&room);
        stages[i].run(&room, stages[i].optimizer);
        if (room.hash != stages[i].hash)
            rc = amp_error_set(error, AMP_EINTERNAL, NULL, "the %s kernels compute %s wrongly (%016llx, not %016llx)",
                               kernels->isa, stages[i].name, (unsigned long long)room.hash,
                               (unsigned long long)stages[i].hash);
    }
    return rc;
}
