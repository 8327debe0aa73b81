#include "tests/sim/sim.h"

#include "amp/pass.h"
#include "amp/reduce.h"
#include "server/core/base/model.h"
#include "server/core/model/layout.h"
#include "server/core/model/spec.h"
#include "tests/whole_spec.h"

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
    return seed % 7 == 3 || (sim_has(seed, SIM_SICK) && seed % 3 != 2);
}

/* Long enough for a quarantine, and of workers whose pushes can be told apart. */
static void sick_spec(struct ampd_model_spec *spec, uint64_t seed)
{
    if (!sim_has(seed, SIM_SICK))
        return;
    spec->max_steps = SIM_STEPS_MAX;
    spec->world_size += spec->world_size == 1 ? 1 : 0;
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
    if (sim_has(seed, SIM_WEIGHTS))
        spec->weighting = AMPD_WEIGHTING_PUSHED;
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
    if (sim_has(seed, SIM_RATES))
        spec->schedule = AMPD_SCHEDULE_WORKER, spec->warmup_steps = 0;
    sim_floors_spec(spec, seed);
    sick_spec(spec, seed);
}

static void state_alloc(const struct sim_model *model, struct sim_state *state)
{
    state->master = calloc(model->layout->elements, sizeof(float));
    state->m = calloc(model->layout->elements, sizeof(float));
    state->v = calloc(model->layout->elements, sizeof(float));
}

/* As a server that has skipped the first step and applied the second one. */
static void make_base(struct sim_model *model)
{
    struct ampd_load_base *base = &model->base;
    amp_scaler_init(&model->spec.scaler, &base->carry.scaler);
    amp_scaler_update(&model->spec.scaler, &base->carry.scaler, AMP_SCALER_OVERFLOW);
    amp_scaler_update(&model->spec.scaler, &base->carry.scaler, AMP_SCALER_CLEAN);
    base->step = SIM_FULL_STEP;
    base->version = base->carry.scaler.applied;
}

void sim_model_init(struct sim_model *model, uint64_t seed)
{
    *model = (struct sim_model){.seed = seed, .by_actor = sim_model_by_actor(seed)};
    model->weights = sim_has(seed, SIM_WEIGHTS);
    model->rates = sim_has(seed, SIM_RATES);
    model->sums = sim_has(seed, SIM_SUMS);
    random_spec(&model->spec, seed);
    model->sick = sim_has(seed, SIM_SICK);
    model->sick_rank = (uint32_t)(seed / 3 % model->spec.world_size);
    model->sick_until = SIM_STEPS_MAX - seed / 16 % 4;
    whole_spec(&model->spec);
    (void)ampd_layout_new(&model->spec, AMPD_ALIGN_ELEMENTS * (1 + seed / 2 % 3), &model->layout);
    for (unsigned s = 0; s <= SIM_STEPS_MAX; s++)
        state_alloc(model, &model->states[s]);
    sim_model_first(model, 0, model->states[0].master);
    amp_scaler_init(&model->spec.scaler, &model->states[0].carry.scaler);
    model->full = sim_has(seed, SIM_FULL);
    make_base(model);
}

bool sim_model_is_full(const struct sim_model *model, uint64_t loader)
{
    return model->full && loader % 3 != 0;
}

/* A second moment, or a sum of squares, is not negative; of RMSProp the first one is that. */
float sim_model_moment(uint32_t plane, float value)
{
    return fabsf(value) / (float)(8 << plane);
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

static float first_value(const struct sim_model *model, uint64_t loader, uint32_t parameter, uint64_t element)
{
    uint64_t bits = mix(model->seed, 1, parameter, element, loader);
    double large = sim_is_large(model->seed) && bits % 8 == 0 ? 0x1p18 : 1;
    return (float)(((double)(bits >> 40) * 0x1p-24 - 0.5) * large);
}

void sim_model_first(const struct sim_model *model, uint64_t loader, float *master)
{
    for (uint32_t p = 0; p < model->spec.parameters_count; p++) {
        for (uint64_t i = 0; i < model->layout->sizes[p]; i++)
            master[model->layout->starts[p] + i] = first_value(model, loader, p, i);
    }
}

float sim_model_weight(const struct sim_model *model, const struct sim_key *key)
{
    static const float weights[] = {0, 1, 1, 0.5f, 3, 0x1p-20f, 100000, 0};
    uint64_t bits = mix(model->seed, 6 + ((uint64_t)key->actor << 8), key->step, key->rank, 0);
    return model->weights ? weights[bits % 8] : 1;
}

double sim_model_rate(const struct sim_model *model, uint64_t step)
{
    static const double rates[] = {0, 0.1, 0.05, 1.0 / 3, 1e-3, 0.1, 2, 0x1p-40};
    return model->rates ? rates[mix(model->seed, 7, step, 0, 0) % 8] : 0;
}

uint64_t sim_model_bits(const struct sim_model *model, uint64_t kind, const struct sim_key *key, uint64_t place)
{
    return mix(model->seed, kind + ((uint64_t)key->actor << 8), key->step, key->rank, place);
}

bool sim_model_absent(const struct sim_model *model, const struct sim_key *key, uint32_t parameter)
{
    if (model->sick && key->rank == model->sick_rank) /* its Inf is in each parameter */
        return false;
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
    /* The same element of all ranks: finite in each of them, not so their sum, or their mean where it is squared. */
    uint64_t large = model->sums ? mix(model->seed, 7, key->step, 0, parameter) : 1;
    bool wide = sim_model_dtype(model, key) != AMP_F16;
    if (large % 6 == 0 && wide)
        values[large / 6 % elements] = large / 6 % 5 == 0 ? -3e38f : 3e38f;
    if (large % 6 == 2 && wide && scale < 1e18f)
        values[large / 6 % elements] = 4e19f * scale;
    uint64_t fault = mix(model->seed, tag + 1, key->step, key->rank, parameter);
    bool sick = model->sick && key->rank == model->sick_rank && key->step <= model->sick_until;
    if (sick)
        values[fault % elements] = INFINITY;
    fault = model->sick ? 2 : fault; /* that of nobody else */
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
    uint32_t rows_count;
    struct ampd_overflow_row rows[SIM_WORLD_MAX * 16];
};

static struct sim_key key_of(const struct ref *ref, uint32_t contributor)
{
    return (struct sim_key){ref->row->step, ref->row->contributors[contributor].rank,
                            ref->model->by_actor ? ref->actors[contributor] : 0};
}

static void add_row(struct ref *ref, const struct ampd_overflow_row *row)
{
    if (row->inf_count + row->nan_count == 0)
        return;
    ref->inf_total += row->inf_count;
    ref->nan_total += row->nan_count;
    ref->overflow_params++;
    ref->rows[ref->rows_count++] = *row;
}

/* Of one element. */
static void look_at(struct ampd_overflow_row *row, float x, uint64_t index)
{
    row->inf_count += isinf(x) ? 1 : 0;
    row->nan_count += isnan(x) ? 1 : 0;
    if (!isfinite(x) && row->first_index == UINT64_MAX)
        row->first_index = index;
    if (isfinite(x) && fabsf(x) > row->largest)
        row->largest = fabsf(x);
}

/* One worker's gradient of a parameter in fp32; counts what is not finite. */
static void widen(struct ref *ref, uint32_t contributor, uint32_t p, float *to)
{
    struct sim_key key = key_of(ref, contributor);
    uint64_t elements = ref->model->layout->sizes[p];
    uint64_t raw[256];
    sim_model_gradient(ref->model, &key, ref->row->scale, p, raw);
    amp_kernels_ref.load[sim_model_dtype(ref->model, &key)](to, raw, elements);
    struct ampd_overflow_row row = {.parameter = p, .rank = key.rank, .first_index = UINT64_MAX};
    for (uint64_t i = 0; i < elements; i++)
        look_at(&row, to[i], i);
    add_row(ref, &row);
}

/* The sum and its mean: who has pushed nothing but finite values is not to blame for theirs. */
static void look_at_mean(struct ref *ref, uint32_t p, float *g)
{
    struct ampd_overflow_row sum = {.parameter = p, .rank = AMPD_RANK_SUM, .first_index = UINT64_MAX};
    struct ampd_overflow_row range = {.parameter = p, .rank = AMPD_RANK_RANGE, .first_index = UINT64_MAX};
    float limit = ref->model->spec.clip_value;
    bool squares = amp_optim_squares((enum amp_optimizer)ref->model->spec.optimizer);
    for (uint64_t i = 0; i < ref->model->layout->sizes[p]; i++) {
        g[i] = g[i] * ref->row->coefficient;
        look_at(&sum, g[i], i);
        if (limit > 0 && g[i] > limit)
            g[i] = limit;
        if (limit > 0 && g[i] < -limit)
            g[i] = -limit;
        if (!squares || !isfinite(g[i]) || fabsf(g[i]) < 0x1p63f)
            continue;
        range.inf_count++;
        if (range.first_index == UINT64_MAX)
            range.first_index = i;
    }
    range.largest = sum.largest;
    add_row(ref, &range);
    add_row(ref, &sum);
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
        float weight = ref->row->contributors[c].weight;
        if (weight == 0 || sim_model_absent(ref->model, &key, p))
            continue;
        widen(ref, c, p, one);
        for (uint64_t i = 0; i < layout->sizes[p]; i++) {
            one[i] = weight * one[i];
            g[i] = any ? g[i] + one[i] : one[i];
        }
        any = true;
    }
    ref->touched[p] = any;
    if (any && ref->overflow_params == before)
        look_at_mean(ref, p, g);
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
static const char *compare(const struct ref *ref, const struct sim_state *to, double norm, float clip, double lr)
{
    const struct ampd_step_row *row = ref->row;
    bool skipped = ref->overflow_params > 0;
    if ((row->verdict == AMPD_VERDICT_SKIPPED_OVERFLOW) != skipped ||
        (row->verdict == AMPD_VERDICT_SKIPPED_EMPTY) != (row->coefficient == 0))
        return "verdict";
    if (row->overflow_params != ref->overflow_params || row->inf_total != ref->inf_total ||
        row->nan_total != ref->nan_total)
        return "overflow totals";
    for (uint32_t i = 0; i < ref->rows_count || i < row->rows_count; i++) {
        const struct ampd_overflow_row *a = &ref->rows[i], *b = &row->rows[i];
        if (i >= ref->rows_count || i >= row->rows_count || a->parameter != b->parameter || a->rank != b->rank ||
            a->inf_count != b->inf_count || a->nan_count != b->nan_count || a->first_index != b->first_index ||
            memcmp(&a->largest, &b->largest, sizeof(a->largest)) != 0)
            return "overflow rows";
    }
    if (memcmp(&row->norm, &norm, sizeof(norm)) != 0)
        return "norm";
    if (memcmp(&row->clip, &clip, sizeof(clip)) != 0)
        return "clip coefficient";
    if (memcmp(&row->lr, &lr, sizeof(lr)) != 0)
        return "learning rate";
    if (row->version != to->version)
        return "version";
    struct sim_key keys[AMPD_WORLD_MAX];
    for (uint32_t c = 0; c < row->contributors_count; c++)
        keys[c] = key_of(ref, c);
    return sim_told_differs(ref->model, row, keys);
}

static void copy_state(const struct sim_model *model, const struct sim_state *from, struct sim_state *to)
{
    size_t bytes = model->layout->elements * sizeof(float);
    memcpy(to->master, from->master, bytes);
    memcpy(to->m, from->m, bytes);
    memcpy(to->v, from->v, bytes);
    to->version = from->version;
    to->carry = from->carry;
}

const char *sim_model_step(struct sim_model *model, const struct ampd_step_row *row, const uint32_t *actors)
{
    const struct sim_state *from = &model->states[row->step - 1];
    struct sim_state *to = &model->states[row->step];
    copy_state(model, from, to);
    struct ref ref = {.model = model, .row = row, .actors = actors};
    ref.g = calloc(model->layout->elements, sizeof(float));
    ref.touched = calloc(model->spec.parameters_count, sizeof(bool));
    bool empty = row->coefficient == 0; /* all weights are 0, as check.c has seen */
    for (uint32_t p = 0; p < model->spec.parameters_count && !empty; p++)
        form(&ref, p);
    double norm = 0, lr = 0;
    float clip = 0;
    if (ref.overflow_params == 0 && !empty) {
        struct amp_schedule schedule = ampd_spec_schedule(&model->spec);
        double base = row->after.lr != 0 ? row->after.lr : model->spec.lr; /* check.c has compared it */
        norm = norm_of(&ref);
        clip = model->spec.clip_max_norm > 0 ? amp_clip_coefficient((double)model->spec.clip_max_norm, norm) : 1;
        lr = model->rates ? sim_model_rate(model, row->step)
                          : amp_schedule_lr(&schedule, base, from->version);
        apply(&ref, from, to, lr, clip);
    }
    to->carry = row->after; /* which check.c has computed from the one before */
    const char *what = compare(&ref, to, norm, clip, lr);
    model->decided = row->step;
    free(ref.g);
    free(ref.touched);
    return what;
}
