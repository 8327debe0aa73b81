/* The invariants, named in sim.h; each ends the run if it does not hold. Numbers are those of docs/architecture.md section 2. */
#include "server/core/base/model.h"
#include "server/core/base/process.h"
#include "server/core/shard/shard.h"
#include "tests/sim/sim.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* 1 and 5: one row per step and epoch, no gap; it follows from the one before. */
static void check_no_gap(struct sim *sim, const struct sim_store *store, const struct ampd_step_row *row)
{
    if (row->epoch != store->epoch || row->step != store->last_step + 1)
        sim_fail(sim, SIM_SCALE_HISTORY, "the row of epoch %llu, step %llu follows epoch %llu, step %llu",
                 (unsigned long long)row->epoch, (unsigned long long)row->step, (unsigned long long)store->epoch,
                 (unsigned long long)store->last_step);
}

/* 5: the scale is finite and within its bounds. */
static void check_scale(struct sim *sim, float scale)
{
    const struct amp_scaler_config *config = &sim->model.spec.scaler;
    if (!isfinite(scale) || scale < config->min_scale || scale > config->max_scale)
        sim_fail(sim, SIM_SCALE_HISTORY, "the scale is %g", (double)scale);
}

/* What the row at (epoch, step) hands on: of an epoch's base, the row that the checkpoint belongs to. */
static const struct ampd_carry *carry_at(const struct sim *sim, uint64_t epoch, uint64_t step)
{
    for (; epoch != 0 && sim->epochs[epoch].base_step >= step; epoch = sim->epochs[epoch].base_epoch) {
        if (sim->epochs[epoch].base_epoch == 0 && sim->epochs[epoch].base_step == step && step != 0)
            return &sim->model.base.carry; /* of a full load */
    }
    if (step == 0 || epoch == 0 || sim->ledger[epoch][step] == NULL)
        return NULL;
    return &sim->ledger[epoch][step]->after;
}

bool sim_same_carry(const struct ampd_carry *left, const struct ampd_carry *right)
{
    const struct amp_scaler_state *a = &left->scaler, *b = &right->scaler;
    return memcmp(&a->scale, &b->scale, sizeof(a->scale)) == 0 && a->scale_id == b->scale_id &&
           a->growth_tracker == b->growth_tracker && a->hysteresis_left == b->hysteresis_left &&
           a->consecutive_overflows == b->consecutive_overflows && a->total_overflows == b->total_overflows &&
           a->steps_since_overflow == b->steps_since_overflow && a->attempted == b->attempted &&
           a->applied == b->applied && a->skipped == b->skipped && memcmp(&left->lr, &right->lr, sizeof(left->lr)) == 0;
}

/* 5: the row is computed once more from what is before it, by the scaler's machine alone. */
static void check_record(struct sim *sim, const struct ampd_step_row *row)
{
    struct ampd_carry carry = sim->newest;
    const struct ampd_carry *before = carry_at(sim, row->epoch, row->step - 1);
    const struct ampd_carry first = ampd_load_base_first(&sim->model.spec).carry;
    if (before == NULL && row->step != 1)
        sim_fail(sim, SIM_SCALE_HISTORY, "epoch %llu, step %llu: there is no row before it",
                 (unsigned long long)row->epoch, (unsigned long long)row->step);
    const struct ampd_carry *act = sim_act_in_force(sim, row->epoch, row->step);
    before = act != NULL ? act : before != NULL ? before : &first;
    if (memcmp(&row->scale, &before->scaler.scale, sizeof(before->scaler.scale)) != 0 || row->scale_id != before->scaler.scale_id)
        sim_fail(sim, SIM_SCALE_HISTORY, "epoch %llu, step %llu: its scale is %g, but what is before it says %g",
                 (unsigned long long)row->epoch, (unsigned long long)row->step, (double)row->scale,
                 (double)before->scaler.scale);
    enum amp_scaler_outcome outcome = row->verdict == AMPD_VERDICT_APPLIED            ? AMP_SCALER_CLEAN
                                      : row->verdict == AMPD_VERDICT_SKIPPED_OVERFLOW ? AMP_SCALER_OVERFLOW
                                                                                      : AMP_SCALER_EMPTY;
    if (row->scale_id == carry.scaler.scale_id)
        amp_scaler_update(&sim->model.spec.scaler, &carry.scaler, outcome);
    else
        amp_scaler_count(&carry.scaler, outcome); /* set by hand while the step was open */
    if (!sim_same_carry(&carry, &row->after))
        sim_fail(sim, SIM_SCALE_HISTORY, "epoch %llu, step %llu: the record does not follow from the one before",
                 (unsigned long long)row->epoch, (unsigned long long)row->step);
    check_scale(sim, row->after.scaler.scale);
    sim->newest = row->after;
}

/* 2: every rank counts at most once, in rank order; all of them, or a quorum. */
static void check_contributors(struct sim *sim, const struct ampd_step_row *row, const uint32_t *actors)
{
    const struct ampd_model_spec *spec = &sim->model.spec;
    bool quorum = spec->sync == AMPD_SYNC_QUORUM;
    bool shrinks = !quorum && spec->on_loss == AMPD_ON_LOSS_SHRINK;
    double sum = 0;
    uint32_t wanted = quorum ? spec->quorum : shrinks ? row->contributors_count : spec->world_size;
    if (row->contributors_count != wanted || wanted > spec->world_size || wanted < spec->min_workers)
        sim_fail(sim, SIM_COUNTED_ONCE, "%u contributors", row->contributors_count);
    for (uint32_t i = 0; i < row->contributors_count; i++) {
        bool rises = i == 0 || row->contributors[i].rank > row->contributors[i - 1].rank;
        if (!rises || row->contributors[i].rank >= spec->world_size)
            sim_fail(sim, SIM_COUNTED_ONCE, "contributor %u is rank %u", i, row->contributors[i].rank);
        struct sim_key key = {row->step, row->contributors[i].rank, sim->model.by_actor ? actors[i] : 0};
        if (row->contributors[i].weight != sim_model_weight(&sim->model, &key))
            sim_fail(sim, SIM_COUNTED_ONCE, "contributor %u, rank %u, has weight %g", i, row->contributors[i].rank,
                     (double)row->contributors[i].weight);
        sum += (double)row->contributors[i].weight;
    }
    float f = sum > 0 ? amp_coefficient(row->scale, sum) : 0;
    if (memcmp(&f, &row->coefficient, sizeof(f)) != 0)
        sim_fail(sim, SIM_BITWISE, "the coefficient is %g", (double)row->coefficient);
}

/* Which process of its rank each contributor is. */
static void find_actors(struct sim *sim, const struct ampd_step_row *row, uint32_t *actors)
{
    for (uint32_t i = 0; i < row->contributors_count && sim->model.by_actor; i++) {
        struct ampd_incarnation incarnation = row->contributors[i].incarnation;
        bool kept = sim->model.spec.durability == AMPD_DURABILITY_STEP; /* a restart ends no epoch */
        if ((!kept && incarnation.fence != sim->shard[0].store.boots) || incarnation.fence >= SIM_BOOTS_MAX ||
            incarnation.counter >= SIM_ACTORS_MAX)
            sim_fail(sim, SIM_COUNTED_ONCE, "an incarnation of another boot contributes");
        actors[i] = sim->actors[incarnation.fence][incarnation.counter];
    }
}

/* The parts of its time add up to that since the step before in the epoch, or it is not known where it went. */
static void check_times(struct sim *sim, const struct ampd_step_row *row)
{
    const struct ampd_step_row *before = row->step > 1 ? sim->ledger[row->epoch][row->step - 1] : NULL;
    uint64_t sum = 0;
    for (int i = 0; i < AMPD_STEP_TIMES; i++)
        sum += row->times_us[i];
    if (sum != 0 && (before == NULL || sum != (uint64_t)(row->at_us - before->at_us)))
        sim_fail(sim, SIM_SCALE_HISTORY, "the times of step %llu are %llu us", (unsigned long long)row->step,
                 (unsigned long long)sum);
}

/* 1: a step of an epoch is decided once, by the coordinator; what others store is that. */
static void check_ledger(struct sim *sim, const struct sim_shard *shard, const struct ampd_step_row *row)
{
    struct ampd_step_row **entry = &sim->ledger[row->epoch][row->step];
    if (shard->index == 0) {
        if (*entry != NULL)
            sim_fail(sim, SIM_ONE_VERDICT, "epoch %llu, step %llu is decided twice", (unsigned long long)row->epoch,
                     (unsigned long long)row->step);
        *entry = malloc(sizeof(*row));
        **entry = *row;
    } else if (*entry == NULL || memcmp(row, *entry, sizeof(*row)) != 0) {
        sim_fail(sim, SIM_ONE_VERDICT, "shard %u stores another verdict of step %llu than the coordinator",
                 shard->index, (unsigned long long)row->step);
    }
}

/* Shard 0 stores a verdict again that its copy of before lacks: it has it from another shard, bit for bit. */
static bool is_adopted(const struct sim *sim, const struct sim_shard *shard, const struct ampd_step_row *row)
{
    const struct ampd_step_row *entry = sim->ledger[row->epoch][row->step];
    return shard->index == 0 && entry != NULL && sim_has(sim->seed, SIM_SNAPSHOTS) &&
           memcmp(row, entry, sizeof(*row)) == 0;
}

/* What the apply before the step has found; 0 in the first step of an epoch, before which there is none. */
static uint64_t range_before(const struct sim_model *model, uint64_t step)
{
    uint64_t found = 0;
    const struct sim_state *state = &model->states[step - 1];
    for (uint32_t p = 0; p < model->spec.parameters_count; p++) {
        uint32_t cast[256];
        float back[256];
        const float *masters = state->master + model->layout->starts[p];
        (void)amp_kernels_ref.store[model->spec.cast](cast, masters, model->layout->sizes[p]);
        amp_kernels_ref.load[model->spec.cast](back, cast, model->layout->sizes[p]);
        for (uint64_t i = 0; i < model->layout->sizes[p]; i++)
            found += isfinite(masters[i]) && isinf(back[i]) ? 1 : 0;
    }
    return found;
}

/* 3 and 4: the row is what REF computes, bit for bit. */
void sim_check_row(struct sim *sim, const struct sim_shard *shard, const struct ampd_step_row *row)
{
    check_no_gap(sim, &shard->store, row);
    if (is_adopted(sim, shard, row))
        return;
    check_ledger(sim, shard, row);
    sim_check_acts_of(sim, shard, row);
    if (shard->index != 0)
        return;
    check_times(sim, row);
    sim_ends_row(sim);
    check_record(sim, row);
    uint32_t actors[SIM_WORLD_MAX] = {0};
    find_actors(sim, row, actors);
    check_contributors(sim, row, actors);
    sim_members_row(sim, row);
    sim->ranges[row->epoch][row->step] = range_before(&sim->model, row->step);
    const char *what = sim_model_step(&sim->model, row, actors);
    if (what != NULL)
        sim_fail(sim, strcmp(what, "verdict") == 0 ? SIM_FINITE : SIM_BITWISE,
                 "epoch %llu, step %llu: the %s of the row differs from REF's", (unsigned long long)row->epoch,
                 (unsigned long long)row->step, what);
    sim->steps_decided++;
    sim->steps_skipped += row->verdict == AMPD_VERDICT_APPLIED ? 0 : 1;
    sim_trace(sim, row->step, (uint64_t)row->verdict);
}

/* 6: what was told to be durable is still there. */
void sim_check_epoch(struct sim *sim, const struct sim_shard *shard, const struct ampd_epoch_record *epoch)
{
    if (epoch->epoch >= SIM_EPOCHS_MAX)
        sim_fail(sim, SIM_PROGRESS, "epoch %llu", (unsigned long long)epoch->epoch);
    if (sim_loses_disks(sim->seed) && epoch->epoch > sim->raised)
        sim_fail(sim, SIM_ONE_VERDICT, "epoch %llu was given to nobody", (unsigned long long)epoch->epoch);
    struct ampd_epoch_record *first = &sim->epochs[epoch->epoch];
    if (first->epoch == 0) {
        *first = *epoch;
        sim_values_epoch(sim, epoch);
    }
    if (sim->epochs_newest < epoch->epoch)
        sim->epochs_newest = epoch->epoch;
    if (first->base_epoch != epoch->base_epoch || first->base_step != epoch->base_step)
        sim_fail(sim, SIM_DURABLE, "epoch %llu begins from another checkpoint on shard %u",
                 (unsigned long long)epoch->epoch, shard->index);
    bool asked = strcmp(epoch->reason, "ROLLBACK") == 0;
    const struct sim_operator *who = &sim->operator;
    if (asked && (who->type != AMPD_EVENT_ROLLBACK || who->epoch != epoch->base_epoch || who->step != epoch->base_step))
        sim_fail(sim, SIM_DURABLE, "rolled back to step %llu, which nobody has asked for",
                 (unsigned long long)epoch->base_step);
    if (asked) { /* as soon as one shard has stored it: a restart in between goes on from there */
        sim->rolled_back = epoch->epoch;
        sim->durable_told = epoch->base_step;
    }
    if (shard->index != 0)
        return;
    if (epoch->base_step < sim->durable_told)
        sim_fail(sim, SIM_DURABLE, "step %llu was durable, but epoch %llu begins from step %llu",
                 (unsigned long long)sim->durable_told, (unsigned long long)epoch->epoch,
                 (unsigned long long)epoch->base_step);
    if (sim->loaded && epoch->base_epoch == 0 && !sim->destroyed)
        sim_fail(sim, SIM_DURABLE, "epoch %llu begins without a checkpoint, though the model was loaded",
                 (unsigned long long)epoch->epoch);
    bool full = sim->model.full && epoch->base_epoch == 0 && epoch->base_step == SIM_FULL_STEP;
    if (epoch->base_step > sim->model.decided && !full)
        sim_fail(sim, SIM_DURABLE, "an epoch begins from a step that was never decided");
    sim_values_epoch(sim, epoch);
    sim->epochs_seen++;
    sim->model.decided = epoch->base_step;
    const struct ampd_carry *base = carry_at(sim, epoch->epoch, epoch->base_step);
    sim->newest = base != NULL ? *base : ampd_load_base_first(&sim->model.spec).carry;
    sim_trace(sim, 700, epoch->epoch);
}

/* The row that begins an epoch: the same on all shards. */
void sim_check_epoch_row(struct sim *sim, const struct sim_shard *shard, const struct ampd_step_row *row)
{
    if (!sim_has(sim->seed, SIM_ROWS) || row->epoch >= SIM_EPOCHS_MAX)
        return;
    struct ampd_step_row **first = &sim->epoch_rows[row->epoch];
    struct ampd_step_row *copy = malloc(sizeof(*copy));
    *copy = *row;
    copy->at_us = 0; /* of its own clock */
    if (*first != NULL && memcmp(*first, copy, sizeof(*copy)) != 0)
        sim_fail(sim, SIM_ONE_VERDICT, "shard %u stores another row of epoch %llu than the one before it", shard->index,
                 (unsigned long long)row->epoch);
    free(*first);
    *first = copy;
}

/* 1 and 6: every worker is told the verdict that was stored, whatever has become of it since. */
void sim_check_result(struct sim *sim, const struct ampclient_core_result *result)
{
    const struct ampd_step_row *row = result->epoch < SIM_EPOCHS_MAX && result->step <= SIM_STEPS_MAX
                                          ? sim->ledger[result->epoch][result->step]
                                          : NULL;
    bool same = row != NULL && (int)row->verdict == (int)result->verdict && row->version == result->version &&
                memcmp(&row->norm, &result->norm, sizeof(row->norm)) == 0 && row->scale_id == result->scale_id &&
                row->after.scaler.scale == result->new_scale;
    if (!same)
        sim_fail(sim, SIM_ONE_VERDICT, "a worker is told another verdict of epoch %llu, step %llu than was stored",
                 (unsigned long long)result->epoch, (unsigned long long)result->step);
    if (result->range_warnings != 0 && result->range_warnings != sim->ranges[result->epoch][result->step])
        sim_fail(sim, SIM_BITWISE,
                 "a worker is told of %llu values beyond the cast's range in step %llu; they are %llu",
                 (unsigned long long)result->range_warnings, (unsigned long long)result->step,
                 (unsigned long long)sim->ranges[result->epoch][result->step]);
    sim->told = true;
    if (sim->destroyed || result->epoch < sim->rolled_back || result->epoch <= sim->lost_epoch)
        return;
    if (result->durable_step > sim->model.decided)
        sim_fail(sim, SIM_DURABLE, "a worker is told that step %llu is durable, but the model is at step %llu",
                 (unsigned long long)result->durable_step, (unsigned long long)sim->model.decided);
    if (result->durable_step > sim->durable_told)
        sim->durable_told = result->durable_step;
}

/* Whether the version that a worker has in hand is not that of REF. Of one that REF does not have now, nothing is known. */
bool sim_pulled_differs(const struct sim *sim, const struct sim_worker *worker)
{
    const struct sim_model *model = &sim->model;
    const struct sim_state *state = NULL;
    bool differs = false;
    for (uint64_t s = 0; s <= model->decided && worker->epoch == sim->shard[0].store.epoch; s++) {
        if (model->states[s].version == worker->version)
            state = &model->states[s];
    }
    for (uint32_t p = 0; p < model->spec.parameters_count && state != NULL; p++) {
        uint64_t elements;
        const void *pulled = ampclient_core_parameter(worker->core, p, &elements);
        uint32_t want[256];
        (void)amp_kernels_ref.store[model->spec.cast](want, state->master + model->layout->starts[p], elements);
        differs = differs || memcmp(pulled, want, elements * amp_dtype_size(model->spec.cast)) != 0;
    }
    return differs;
}

/* 3: a pulled version has the bits of REF's masters, cast. */
void sim_check_pulled(struct sim *sim, const struct sim_worker *worker)
{
    const struct sim_model *model = &sim->model;
    const struct sim_state *state = NULL;
    for (uint32_t p = 0; p < model->spec.parameters_count && sim_values_are_new(sim, worker->epoch, worker->version);
         p++) {
        uint64_t elements, start = model->layout->starts[p];
        const void *pulled = ampclient_core_parameter(worker->core, p, &elements);
        sim_values_cast(sim, worker->epoch, start, start + elements, pulled);
    }
    for (uint64_t s = 0; s <= model->decided; s++) {
        if (model->states[s].version == worker->version)
            state = &model->states[s];
    }
    bool current = worker->epoch == sim->shard[0].store.epoch;
    if (state == NULL && current)
        sim_fail(sim, SIM_BITWISE, "version %llu was never reached", (unsigned long long)worker->version);
    if (state == NULL)
        return; /* pulled before a crash that took it back */
    for (uint32_t p = 0; p < model->spec.parameters_count && current; p++) {
        uint64_t elements;
        const void *pulled = ampclient_core_parameter(worker->core, p, &elements);
        uint32_t want[256];
        (void)amp_kernels_ref.store[model->spec.cast](want, state->master + model->layout->starts[p], elements);
        if (memcmp(pulled, want, elements * amp_dtype_size(model->spec.cast)) != 0)
            sim_fail(sim, SIM_BITWISE, "parameter %u of version %llu differs from REF", p,
                     (unsigned long long)worker->version);
    }
}

/* The elements of a parameter that a shard has. */
static bool part_of(const struct sim_model *model, const struct sim_shard *shard, uint32_t p, uint64_t *from,
                    uint64_t *to)
{
    uint64_t start = model->layout->starts[p], end = start + model->layout->sizes[p];
    *from = start > shard->element ? start : shard->element;
    *to = end < shard->element + shard->elements ? end : shard->element + shard->elements;
    return *from < *to;
}

void sim_check_observed(struct sim *sim, const struct sim_call *call)
{
    const struct sim_model *model = &sim->model;
    const struct sim_shard *shard = &sim->shard[call->shard];
    size_t size = amp_dtype_size(model->spec.cast);
    sim_values_pulled(sim, call->seen.epoch, call->seen.version, call->shard, call->own + shard->element * size);
    for (uint32_t p = 0; p < model->spec.parameters_count &&
                         sim_values_are_new(sim, call->seen.epoch, call->seen.version);
         p++) {
        uint64_t from, to;
        if (part_of(model, shard, p, &from, &to))
            sim_values_cast(sim, call->seen.epoch, from, to, call->own + from * size);
    }
    if (call->seen.epoch != sim->shard[0].store.epoch)
        return; /* begun before a crash */
    const struct sim_state *state = NULL;
    for (uint64_t s = 0; s <= model->decided; s++) {
        if (model->states[s].version == call->seen.version)
            state = &model->states[s];
    }
    if (state == NULL)
        sim_fail(sim, SIM_BITWISE, "an onlooker got version %llu", (unsigned long long)call->seen.version);
    for (uint32_t p = 0; p < model->spec.parameters_count; p++) {
        uint32_t want[256];
        uint64_t from, to;
        if (!part_of(model, shard, p, &from, &to))
            continue;
        (void)amp_kernels_ref.store[model->spec.cast](want, state->master + from, to - from);
        if (memcmp(call->own + from * size, want, (to - from) * size) != 0)
            sim_fail(sim, SIM_BITWISE, "an onlooker's version %llu is mixed", (unsigned long long)call->seen.version);
    }
}

static void check_tensor(struct sim *sim, const struct sim_shard *shard, const float *have, const float *want,
                         const char *name)
{
    if (have != NULL && memcmp(have, want + shard->element, shard->elements * sizeof(float)) != 0)
        sim_fail(sim, SIM_BITWISE, "%s of a checkpoint of shard %u differ from REF", name, shard->index);
}

/* A checkpoint holds the user state of each contributor of its step, as it was pushed with that step. */
static void check_user_states(struct sim *sim, const struct sim_shard *shard, const struct sim_file *file)
{
    const struct ampd_step_row *row = sim->ledger[shard->store.epoch][file->step];
    for (uint32_t i = 0; row != NULL && i < row->contributors_count; i++) {
        uint32_t rank = row->contributors[i].rank;
        uint64_t state[2] = {0, 0};
        if (file->state.user_states[rank].size == sizeof(state))
            memcpy(state, file->state.user_states[rank].data, sizeof(state));
        if (state[0] != file->step || state[1] != rank)
            sim_fail(sim, SIM_USER_STATE, "a checkpoint of step %llu lacks the user state of rank %u",
                     (unsigned long long)file->step, rank);
    }
}

/* 3 and 4: a checkpoint holds REF's state, and all masters are finite. */
void sim_check_file(struct sim *sim, const struct sim_shard *shard, const struct sim_file *file)
{
    const struct sim_state *state = &sim->model.states[file->step];
    if (shard->store.epoch < sim->shard[0].store.epoch)
        return; /* of an epoch that is over: it is void as soon as the shard hears of it */
    if (file->step > sim->model.decided)
        sim_fail(sim, SIM_DURABLE, "a checkpoint of a step that is not decided");
    if (sim_values_at(sim, shard->store.epoch, file->step) && shard->elements > 0)
        sim_values_masters(sim, shard->store.epoch, shard->element, shard->element + shard->elements, file->master);
    check_user_states(sim, shard, file);
    check_tensor(sim, shard, file->master, state->master, "masters");
    check_tensor(sim, shard, file->m, state->m, "first moments");
    check_tensor(sim, shard, file->v, state->v, "second moments");
    if (file->state.version != state->version || file->state.carry.scaler.scale_id != state->carry.scaler.scale_id ||
        file->state.carry.scaler.scale != state->carry.scaler.scale || file->state.carry.scaler.attempted != state->carry.scaler.attempted ||
        file->state.carry.lr != state->carry.lr)
        sim_fail(sim, SIM_SCALE_HISTORY, "the scale record or the learning rate of a checkpoint differs from REF");
    /* Gradients near the end of the range, which are finite, take masters beyond it, or momentum: REF's too. */
    for (uint64_t i = 0; i < shard->elements && !sim->model.sums; i++) {
        if (!isfinite(file->master[i]))
            sim_fail(sim, SIM_FINITE, "a master is not finite");
    }
}

/* 3: as soon as a shard has applied a step, its tensors are REF's. */
static void check_applied(struct sim *sim, struct sim_shard *shard, const struct ampd_model_info *info)
{
    const struct ampd_model *model = shard->core->models[0];
    bool applied = model->shard->memory == AMPD_MEMORY_READY && model->shard->decided.state == AMPD_DECIDED_APPLIED &&
                   info->epoch == sim->shard[0].store.epoch && shard->seen_applied != info->decided_step;
    if (!applied || info->decided_step > sim->model.decided)
        return;
    const struct sim_state *state = &sim->model.states[info->decided_step];
    shard->seen_applied = info->decided_step;
    if (info->version != state->version)
        sim_fail(sim, SIM_ONE_VERDICT, "shard %u: version %llu after step %llu", shard->index,
                 (unsigned long long)info->version, (unsigned long long)info->decided_step);
    const float *tensors[] = {model->tensors.masters, model->tensors.m, model->tensors.v};
    const float *wanted[] = {state->master, state->m, state->v};
    for (unsigned i = 0; i < 3; i++) {
        if (tensors[i] != NULL && memcmp(tensors[i], wanted[i] + shard->element, shard->elements * sizeof(float)) != 0)
            sim_fail(sim, SIM_BITWISE, "shard %u: its tensors differ from REF's after step %llu", shard->index,
                     (unsigned long long)info->decided_step);
    }
}

/* 6: all shards have written their part of each checkpoint that users are told of. */
static void check_told(const struct sim *sim, const struct sim_shard *shard, const struct ampd_model_info *info)
{
    for (uint32_t i = 0; i < info->checkpoints_count && sim->end < SIM_DELETING; i++) {
        uint64_t step = info->checkpoints[i].step;
        for (uint32_t k = 0; ampd_core_is_whole(info, i) && k < sim->shards; k++) {
            if (!sim->shard[k].store.files[step].used)
                sim_fail(sim, SIM_DURABLE, "shard %u names checkpoint %llu, of which shard %u has no part",
                         shard->index, (unsigned long long)step, k);
        }
    }
}

static bool has_part(const struct sim_store *store, const struct ampd_checkpoint_record *record)
{
    bool has = false;
    for (uint32_t i = 0; i < store->checkpoints_count; i++)
        has = has || (store->checkpoints[i].epoch == record->epoch && store->checkpoints[i].step == record->step);
    return has;
}

/*
 * keep_last of them, if so many are named, can be gone back to on all shards: where no disk is another than before, and
 * no rollback takes away what others were dropped for.
 */
static void check_kept(const struct sim *sim, const struct sim_shard *zero, const struct ampd_model_info *info)
{
    uint32_t named = 0, common = 0;
    bool other_disks = sim_loses_disks(sim->seed) || sim_has(sim->seed, SIM_SNAPSHOTS);
    if (other_disks || sim_has_operator(sim->seed) || sim->end >= SIM_DELETING)
        return;
    for (uint32_t i = 0; i < info->checkpoints_count; i++) {
        bool all = true;
        named += ampd_core_is_whole(info, i) ? 1 : 0;
        for (uint32_t k = 1; k < sim->shards; k++)
            all = all && (sim->shard[k].store.epoch != zero->store.epoch ||
                          has_part(&sim->shard[k].store, &info->checkpoints[i]));
        common += all ? 1 : 0;
    }
    uint32_t wanted = named < sim->model.spec.keep_last ? named : sim->model.spec.keep_last;
    if (common < wanted)
        sim_fail(sim, SIM_DURABLE, "%u checkpoints are named, but only %u are on all shards", named, common);
}

static void check_shard(struct sim *sim, struct sim_shard *shard)
{
    if (!sim_server_knows(shard))
        return;
    struct ampd_model_info info;
    ampd_core_model(shard->core, 0, &info);
    if (info.deleting)
        return; /* nobody is told anything of it any more */
    check_scale(sim, info.scaler.scale);
    check_told(sim, shard, &info);
    bool back =
        info.epoch < shard->seen_epoch || (info.epoch == shard->seen_epoch && info.decided_step < shard->seen_step);
    if (back && !info.recovering)
        sim_fail(sim, SIM_ONE_VERDICT, "epoch %llu, step %llu after epoch %llu, step %llu",
                 (unsigned long long)info.epoch, (unsigned long long)info.decided_step,
                 (unsigned long long)shard->seen_epoch, (unsigned long long)shard->seen_step);
    if (shard->index == 0 && info.durable_step > info.decided_step && !info.recovering)
        sim_fail(sim, SIM_DURABLE, "step %llu is durable before it is decided", (unsigned long long)info.durable_step);
    if (info.recovering)
        return;
    if (shard->index == 0)
        check_kept(sim, shard, &info);
    if (shard->seen_epoch != info.epoch)
        shard->seen_applied = 0;
    shard->seen_epoch = info.epoch;
    shard->seen_step = info.decided_step;
    check_applied(sim, shard, &info);
}

/* After every event: epochs and steps never go back, the scale is in its bounds, and the run comes to its end. */
void sim_check_event(struct sim *sim)
{
    if (sim->events > SIM_EVENTS_MAX)
        sim_fail(sim, SIM_PROGRESS, "no end after %d events", SIM_EVENTS_MAX);
    for (uint32_t k = 0; k < sim->shards; k++)
        check_shard(sim, &sim->shard[k]);
    sim_ends_event(sim);
    sim_floors_check(sim);
}

/* After the answer to DeleteModel, and after a restart of all shards. */
void sim_check_gone(struct sim *sim)
{
    for (uint32_t k = 0; k < sim->shards; k++) {
        const struct sim_shard *shard = &sim->shard[k];
        bool file = false;
        for (unsigned s = 0; s <= SIM_STEPS_MAX; s++)
            file = file || shard->store.files[s].used || shard->store.journal[s].used;
        if (shard->store.has_model || sim_server_knows(shard) || file)
            sim_fail(sim, SIM_GONE, "shard %u holds %s of a deleted model", k,
                     shard->store.has_model ? "the record"
                     : file                 ? "a file"
                                            : "the memory");
    }
}

/* The model is done, and the last checkpoint, all its parts together, is the end of the straight line. */
void sim_check_end(struct sim *sim)
{
    if (sim->end == SIM_DELETED) {
        sim_check_gone(sim);
        return;
    }
    uint64_t last = sim->model.spec.max_steps;
    if (sim->model.decided != last)
        sim_fail(sim, SIM_PROGRESS, "ended at step %llu of %llu", (unsigned long long)sim->model.decided,
                 (unsigned long long)last);
    for (uint32_t k = 0; k < sim->shards; k++) {
        const struct sim_shard *shard = &sim->shard[k];
        const struct sim_file *file = &shard->store.files[last];
        if (shard->store.last_step != last || !file->used)
            sim_fail(sim, SIM_DURABLE, "shard %u has no checkpoint of the last step", k);
        sim_check_file(sim, shard, file);
    }
}

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t size)
{
    const uint8_t *bytes = data;
    for (size_t i = 0; i < size; i++) {
        struct amp_random random;
        amp_random_init(&random, hash ^ bytes[i]);
        hash = amp_random_next(&random);
    }
    return hash;
}

uint64_t sim_check_result_hash(const struct sim *sim)
{
    uint64_t hash = 0;
    for (uint32_t k = 0; k < sim->shards; k++) {
        const struct sim_shard *shard = &sim->shard[k];
        const struct sim_file *file = &shard->store.files[sim->model.spec.max_steps];
        const float *tensors[] = {file->master, file->m, file->v};
        for (unsigned i = 0; i < 3; i++) {
            if (tensors[i] != NULL)
                hash = hash_bytes(hash, tensors[i], shard->elements * sizeof(float));
        }
    }
    const struct sim_file *first = &sim->shard[0].store.files[sim->model.spec.max_steps];
    const struct amp_scaler_state *record = &first->state.carry.scaler;
    uint64_t rest[] = {first->state.version, record->scale_id, record->attempted, record->applied, record->skipped};
    hash = hash_bytes(hash, rest, sizeof(rest));
    return hash_bytes(hash, &record->scale, sizeof(record->scale));
}

void sim_check_close(struct sim *sim)
{
    for (unsigned e = 0; e < SIM_EPOCHS_MAX; e++) {
        for (unsigned s = 0; s <= SIM_STEPS_MAX; s++)
            free(sim->ledger[e][s]);
        free(sim->epoch_rows[e]);
    }
}
