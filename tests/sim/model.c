#include "tests/sim/sim.h"

#include "amp/pass.h"
#include "amp/reduce.h"
#include "server/core/spec.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A number that is a function of five. */
static uint64_t mix(uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e)
{
    struct amp_random random;
    amp_random_init(&random, a);
    uint64_t parts[] = {b, c, d, e};
    for (unsigned i = 0; i < 4; i++)
        amp_random_init(&random, amp_random_next(&random) ^ (parts[i] * 0x9e3779b97f4a7c15u));
    return amp_random_next(&random);
}

static uint32_t pick(struct amp_random *random, uint32_t count)
{
    return (uint32_t)amp_random_below(random, count);
}

bool sim_model_by_actor(uint64_t seed)
{
    return seed % 3 == 0;
}

bool sim_model_quorum(uint64_t seed)
{
    return seed % 6 == 5;
}

bool sim_model_shrinks(uint64_t seed)
{
    return seed % 7 == 3;
}

static void random_spec(struct ampd_model_spec *spec, uint64_t seed)
{
    struct amp_random random;
    amp_random_init(&random, seed ^ 0x5157ec);
    (void)snprintf(spec->name, sizeof(spec->name), "sim-%llu", (unsigned long long)seed);
    spec->parameters_count = 1 + pick(&random, 5);
    spec->parameters = calloc(spec->parameters_count, sizeof(*spec->parameters));
    for (uint32_t p = 0; p < spec->parameters_count; p++) {
        struct ampd_parameter_spec *parameter = &spec->parameters[p];
        (void)snprintf(parameter->name, sizeof(parameter->name), "p%u", p);
        parameter->dimensions = 1;
        parameter->shape[0] = 1 + pick(&random, 200);
    }
    static const uint32_t worlds[] = {1, 2, 2, 2, 2, 3};
    spec->world_size = worlds[pick(&random, 6)];
    bool quorum = spec->world_size > 1 && sim_model_quorum(seed);
    spec->sync = quorum ? AMPD_SYNC_QUORUM : AMPD_SYNC_ALL;
    spec->quorum = quorum ? 1 + (uint32_t)(seed / 6 % (spec->world_size - 1)) : 0;
    spec->optimizer = pick(&random, 2) == 0 ? AMPD_OPTIMIZER_ADAMW : AMPD_OPTIMIZER_SGD;
    if (seed % 8 == 1) /* one draw more would make other seeds of all that are known */
        spec->optimizer = AMPD_OPTIMIZER_ADAM + (enum ampd_optimizer)(seed / 8 % 4);
    spec->momentum = spec->optimizer == AMPD_OPTIMIZER_SGD && pick(&random, 2) == 0 ? 0.9 : 0;
    if (spec->optimizer == AMPD_OPTIMIZER_RMSPROP) {
        spec->centered = seed / 32 % 3 == 0;
        spec->momentum = seed / 32 % 3 == 1 ? 0.9 : 0;
    }
    spec->clip_max_norm = pick(&random, 2) == 0 ? 0.5f : 0;
    spec->clip_value = pick(&random, 4) == 0 ? 0.01f : 0;
    static const enum amp_dtype casts[] = {AMP_F16, AMP_BF16, AMP_F32};
    spec->cast = casts[pick(&random, 3)];
    spec->weighting = pick(&random, 4) == 0 ? AMPD_WEIGHTING_PUSHED : AMPD_WEIGHTING_EQUAL;
    spec->scaler.policy = pick(&random, 5) == 0 ? AMP_SCALER_STATIC : AMP_SCALER_DYNAMIC;
    spec->scaler.init_scale = (float)((uint32_t)1 << (10 + pick(&random, 15)));
    spec->scaler.growth_interval = 1 + pick(&random, 3);
    spec->max_steps = 2 + pick(&random, SIM_STEPS_MAX - 2);
    if (pick(&random, 3) == 0) /* models that stall after a worker's first absence */
        spec->loss_timeout_ms = 2000;
    if (sim_model_shrinks(seed))
        spec->on_loss = AMPD_ON_LOSS_SHRINK;
    spec->checkpoint_every = 1 + pick(&random, 4);
    spec->keep_last = 1 + pick(&random, 3);
    if (sim_rolls_back(seed))
        spec->checkpoint_every = 1, spec->keep_last = 1 + (seed / 16 % 4 == 0 ? 1 : 0);
    if (sim_takes_back(seed))
        spec->checkpoint_every = 1, spec->keep_last = 3;
    bool journal = seed % 5 < 2 || sim_restarts(seed);
    spec->durability = journal ? AMPD_DURABILITY_STEP : AMPD_DURABILITY_CHECKPOINT;
    if (pick(&random, 3) == 0)
        spec->schedule = AMPD_SCHEDULE_LINEAR_WARMUP, spec->warmup_steps = 3;
}

static void state_alloc(const struct sim_model *model, struct sim_state *state)
{
    state->master = calloc(model->layout->elements, sizeof(float));
    state->m = calloc(model->layout->elements, sizeof(float));
    state->v = calloc(model->layout->elements, sizeof(float));
}

void sim_model_init(struct sim_model *model, uint64_t seed)
{
    *model = (struct sim_model){.seed = seed, .by_actor = sim_model_by_actor(seed)};
    random_spec(&model->spec, seed);
    ampd_spec_defaults(&model->spec);
    (void)ampd_layout_new(&model->spec, AMPD_ALIGN_ELEMENTS * (1 + seed / 2 % 3), &model->layout);
    for (unsigned s = 0; s <= SIM_STEPS_MAX; s++)
        state_alloc(model, &model->states[s]);
    for (uint32_t p = 0; p < model->spec.parameters_count; p++) {
        for (uint64_t i = 0; i < model->layout->sizes[p]; i++)
            model->states[0].master[model->layout->starts[p] + i] = sim_model_first(model, p, i);
    }
    amp_scaler_init(&model->spec.scaler, &model->states[0].scaler);
}

void sim_model_close(struct sim_model *model)
{
    for (unsigned s = 0; s <= SIM_STEPS_MAX; s++) {
        free(model->states[s].master);
        free(model->states[s].m);
        free(model->states[s].v);
    }
    ampd_layout_free(model->layout);
    ampd_spec_clear(&model->spec);
}

float sim_model_first(const struct sim_model *model, uint32_t parameter, uint64_t element)
{
    uint64_t bits = mix(model->seed, 1, parameter, element, 0);
    double large = sim_is_large(model->seed) && bits % 8 == 0 ? 0x1p18 : 1;
    return (float)(((double)(bits >> 40) * 0x1p-24 - 0.5) * large);
}

bool sim_model_absent(const struct sim_model *model, const struct sim_key *key, uint32_t parameter)
{
    return mix(model->seed, 2 + ((uint64_t)key->actor << 8), key->step, key->rank, parameter) % 8 == 0;
}

enum amp_dtype sim_model_dtype(const struct sim_model *model, const struct sim_key *key)
{
    static const enum amp_dtype dtypes[] = {AMP_F16, AMP_F16, AMP_BF16, AMP_F32};
    return dtypes[mix(model->seed, 3 + ((uint64_t)key->actor << 8), key->step, key->rank, 0) % 4];
}

void sim_model_gradient(const struct sim_model *model, const struct sim_key *key, float scale, uint32_t parameter,
                        void *gradient)
{
    uint64_t elements = model->layout->sizes[parameter];
    float *values = calloc(elements, sizeof(*values));
    uint64_t tag = 4 + ((uint64_t)key->actor << 8);
    for (uint64_t i = 0; i < elements; i++) {
        uint64_t bits = mix(model->seed, tag, key->step * 4096 + parameter, key->rank, i);
        values[i] = (float)((double)(int64_t)(bits >> 40) * 0x1p-24 - 0.5) * 0.05f * scale;
        if (bits % 64 == 0)
            values[i] = 0.0f * values[i]; /* zeros of both signs */
    }
    uint64_t fault = mix(model->seed, tag + 1, key->step, key->rank, parameter);
    if (fault % 16 == 0)
        values[fault / 16 % elements] = INFINITY;
    if (fault % 24 == 1)
        values[fault / 24 % elements] = NAN;
    (void)amp_kernels_ref.store[sim_model_dtype(model, key)](gradient, values, elements);
    free(values);
}

/* ---- REF: the step in a straight line ---- */

struct ref {
    const struct sim_model *model;
    const struct ampd_step_row *row;
    const uint32_t *actors; /* of each contributor */
    float *g;               /* flat, unscaled, clipped by value */
    bool *touched;          /* by parameter */
    double squares;
    uint64_t overflow_params, inf_total, nan_total;
};

static struct sim_key key_of(const struct ref *ref, uint32_t contributor)
{
    return (struct sim_key){ref->row->step, ref->row->contributors[contributor].rank,
                            ref->model->by_actor ? ref->actors[contributor] : 0};
}

/* One worker's gradient of a parameter in fp32; counts what is not finite. */
static void widen(struct ref *ref, uint32_t contributor, uint32_t p, float *to)
{
    struct sim_key key = key_of(ref, contributor);
    uint64_t elements = ref->model->layout->sizes[p];
    uint64_t raw[256];
    sim_model_gradient(ref->model, &key, ref->row->scale, p, raw);
    amp_kernels_ref.load[sim_model_dtype(ref->model, &key)](to, raw, elements);
    uint64_t inf = 0, nan = 0;
    for (uint64_t i = 0; i < elements; i++) {
        inf += isinf(to[i]) ? 1 : 0;
        nan += isnan(to[i]) ? 1 : 0;
    }
    ref->inf_total += inf;
    ref->nan_total += nan;
    ref->overflow_params += inf + nan > 0 ? 1 : 0;
}

/* g of one parameter: the sum in rank order times f. */
static void form(struct ref *ref, uint32_t p)
{
    const struct ampd_layout *layout = ref->model->layout;
    float *g = ref->g + layout->starts[p];
    float one[256];
    uint64_t before = ref->overflow_params;
    bool any = false;
    for (uint32_t c = 0; c < ref->row->contributors_count; c++) {
        struct sim_key key = key_of(ref, c);
        if (sim_model_absent(ref->model, &key, p))
            continue;
        widen(ref, c, p, one);
        for (uint64_t i = 0; i < layout->sizes[p]; i++)
            g[i] = any ? g[i] + one[i] : one[i];
        any = true;
    }
    ref->touched[p] = any;
    uint64_t inf = 0, nan = 0, range = 0;
    float limit = ref->model->spec.clip_value;
    for (uint64_t i = 0; any && i < layout->sizes[p]; i++) {
        g[i] = g[i] * ref->row->coefficient;
        inf += isinf(g[i]) ? 1 : 0;
        nan += isnan(g[i]) ? 1 : 0;
        if (limit > 0 && g[i] > limit)
            g[i] = limit;
        if (limit > 0 && g[i] < -limit)
            g[i] = -limit;
        range += isfinite(g[i]) && fabsf(g[i]) >= 0x1p63f && amp_optim_squares((enum amp_optimizer)ref->model->spec.optimizer) ? 1 : 0;
    }
    if (ref->overflow_params != before)
        return; /* the inputs are to blame */
    ref->inf_total += inf + range;
    ref->nan_total += nan;
    ref->overflow_params += (inf + nan > 0 ? 1 : 0) + (range > 0 ? 1 : 0);
}

/* Node (level, i) of the tree over global block indexes; false if it has no leaf. */
static bool node(const double *leaves, const bool *here, uint64_t count, unsigned level, uint64_t i, double *sum)
{
    if (level == 0) {
        if (i >= count || !here[i])
            return false;
        *sum = leaves[i];
        return true;
    }
    double left = 0, right = 0;
    bool l = node(leaves, here, count, level - 1, 2 * i, &left);
    bool r = node(leaves, here, count, level - 1, 2 * i + 1, &right);
    *sum = l && r ? left + right : l ? left : right;
    return l || r;
}

static double squares_of(const struct ref *ref, uint32_t p)
{
    const struct ampd_layout *layout = ref->model->layout;
    double leaves[64] = {0};
    bool here[64] = {false};
    for (uint64_t s = 0; s < layout->segments_count; s++) {
        const struct ampd_segment *segment = &layout->segments[s];
        if (segment->parameter != p)
            continue;
        uint64_t block = (layout->starts[p] + segment->first) / layout->block_elements;
        double lanes[AMP_SQUARE_LANES] = {0};
        for (uint32_t i = 0; i < segment->count; i++) {
            double x = (double)ref->g[layout->starts[p] + segment->first + i];
            lanes[i % AMP_SQUARE_LANES] += x * x;
        }
        leaves[block] = amp_tree_lanes(lanes);
        here[block] = true;
    }
    double sum = 0;
    (void)node(leaves, here, 64, 6, 0, &sum);
    return sum;
}

static double norm_of(const struct ref *ref)
{
    double leaves[64] = {0};
    bool here[64] = {false};
    for (uint32_t p = 0; p < ref->model->spec.parameters_count; p++) {
        here[p] = ref->touched[p];
        leaves[p] = ref->touched[p] ? squares_of(ref, p) : 0;
    }
    double sum = 0;
    (void)node(leaves, here, 64, 6, 0, &sum);
    return sqrt(sum);
}

static void apply(const struct ref *ref, const struct sim_state *from, struct sim_state *to, double lr, float clip)
{
    const struct sim_model *model = ref->model;
    struct amp_optim_config config = ampd_spec_optim(&model->spec);
    struct amp_apply apply;
    amp_optim_scalars(&config, from->version + 1, lr, clip, &apply);
    apply.first_step = from->version == 0;
    struct amp_apply_scalars scalars;
    amp_apply_prepare(&apply, &scalars);
    unsigned moments = amp_optim_config_moments(&config);
    for (uint32_t p = 0; p < model->spec.parameters_count; p++) {
        uint64_t at = model->layout->starts[p];
        if (ref->touched[p])
            amp_kernels_ref.apply[config.optimizer](&scalars, model->layout->sizes[p], ref->g + at, to->master + at,
                                                    moments >= 1 ? to->m + at : NULL, moments >= 2 ? to->v + at : NULL);
    }
    to->version = from->version + 1;
}

/* NULL, or the name of what differs from the row. */
static const char *compare(const struct ref *ref, const struct sim_state *to, double norm, float clip)
{
    const struct ampd_step_row *row = ref->row;
    bool skipped = ref->overflow_params > 0;
    if ((row->verdict == AMPD_VERDICT_SKIPPED_OVERFLOW) != skipped)
        return "verdict";
    if (row->overflow_params != ref->overflow_params || row->inf_total != ref->inf_total ||
        row->nan_total != ref->nan_total)
        return "overflow totals";
    if (memcmp(&row->norm, &norm, sizeof(norm)) != 0)
        return "norm";
    if (memcmp(&row->clip, &clip, sizeof(clip)) != 0)
        return "clip coefficient";
    if (row->version != to->version)
        return "version";
    return NULL;
}

static void copy_state(const struct sim_model *model, const struct sim_state *from, struct sim_state *to)
{
    size_t bytes = model->layout->elements * sizeof(float);
    memcpy(to->master, from->master, bytes);
    memcpy(to->m, from->m, bytes);
    memcpy(to->v, from->v, bytes);
    to->version = from->version;
    to->scaler = from->scaler;
}

const char *sim_model_step(struct sim_model *model, const struct ampd_step_row *row, const uint32_t *actors)
{
    const struct sim_state *from = &model->states[row->step - 1];
    struct sim_state *to = &model->states[row->step];
    copy_state(model, from, to);
    struct ref ref = {.model = model, .row = row, .actors = actors};
    ref.g = calloc(model->layout->elements, sizeof(float));
    ref.touched = calloc(model->spec.parameters_count, sizeof(bool));
    for (uint32_t p = 0; p < model->spec.parameters_count; p++)
        form(&ref, p);
    double norm = 0;
    float clip = 0;
    if (ref.overflow_params == 0) {
        struct amp_schedule schedule = ampd_spec_schedule(&model->spec);
        norm = norm_of(&ref);
        clip = model->spec.clip_max_norm > 0 ? amp_clip_coefficient((double)model->spec.clip_max_norm, norm) : 1;
        apply(&ref, from, to, amp_schedule_lr(&schedule, model->spec.lr, from->version), clip);
    }
    to->scaler = row->after; /* which check.c has computed from the one before */
    const char *what = compare(&ref, to, norm, clip);
    model->decided = row->step;
    free(ref.g);
    free(ref.touched);
    return what;
}
