/* The invariants of DESIGN section 2, by number; each ends the run if it does not hold. */
#include "tests/sim/sim.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* 1 and 5: one row per step and epoch, no gap; it follows from the one before. */
static void check_no_gap(struct sim *sim, const struct sim_store *store, const struct ampd_step_row *row)
{
    if (row->epoch != store->epoch || row->step != store->last_step + 1)
        sim_fail(sim, "invariant 5: the row of epoch %llu, step %llu follows epoch %llu, step %llu",
                 (unsigned long long)row->epoch, (unsigned long long)row->step, (unsigned long long)store->epoch,
                 (unsigned long long)store->last_step);
}

/* 5: the scale is finite and within its bounds. */
static void check_scale(struct sim *sim, float scale)
{
    const struct amp_scaler_config *config = &sim->model.spec.scaler;
    if (!isfinite(scale) || scale < config->min_scale || scale > config->max_scale)
        sim_fail(sim, "invariant 5: the scale is %g", (double)scale);
}

/* 2: every rank counts at most once, in rank order; all of them, or a quorum. */
static void check_contributors(struct sim *sim, const struct ampd_step_row *row)
{
    const struct ampd_model_spec *spec = &sim->model.spec;
    uint32_t wanted = spec->sync == AMPD_SYNC_QUORUM ? spec->quorum : spec->world_size;
    if (row->contributors_count != wanted)
        sim_fail(sim, "invariant 2: %u contributors", row->contributors_count);
    for (uint32_t i = 0; i < row->contributors_count; i++) {
        bool rises = i == 0 || row->contributors[i].rank > row->contributors[i - 1].rank;
        if (!rises || row->contributors[i].rank >= spec->world_size || row->contributors[i].weight != 1)
            sim_fail(sim, "invariant 2: contributor %u is rank %u", i, row->contributors[i].rank);
    }
    float f = amp_coefficient(row->scale, (double)wanted);
    if (memcmp(&f, &row->coefficient, sizeof(f)) != 0)
        sim_fail(sim, "invariant 3: the coefficient is %g", (double)row->coefficient);
}

/* 1: what another shard stores is what the coordinator has stored before. */
static void check_same_row(struct sim *sim, const struct sim_shard *shard, const struct ampd_step_row *row)
{
    const struct sim_store *zero = &sim->shard[0].store;
    if (row->epoch < zero->epoch)
        return; /* the coordinator has gone on to another epoch, which makes it void */
    if (row->step > zero->last_step || memcmp(row, &zero->rows[row->step], sizeof(*row)) != 0)
        sim_fail(sim, "invariant 1: shard %u stores another verdict of step %llu than the coordinator", shard->index,
                 (unsigned long long)row->step);
}

/* 3: the row is what REF computes, bit for bit. */
void sim_check_row(struct sim *sim, const struct sim_shard *shard, const struct ampd_step_row *row)
{
    check_no_gap(sim, &shard->store, row);
    if (shard->index != 0) {
        check_same_row(sim, shard, row);
        return;
    }
    check_scale(sim, row->after.scale);
    check_contributors(sim, row);
    uint32_t actors[SIM_WORLD_MAX] = {0};
    for (uint32_t i = 0; i < row->contributors_count && sim->model.by_actor; i++) {
        struct ampd_incarnation incarnation = row->contributors[i].incarnation;
        if (incarnation.fence != sim->shard[0].store.boots || incarnation.counter >= 4096)
            sim_fail(sim, "invariant 2: an incarnation of another boot contributes");
        actors[i] = sim->actors[incarnation.counter];
    }
    sim_model_step(&sim->model, row, actors);
    sim->steps_decided++;
    sim->steps_skipped += row->verdict == AMPD_VERDICT_APPLIED ? 0 : 1;
    sim_trace(sim, row->step, (uint64_t)row->verdict);
}

/* 6: what was told to be durable is still there. */
void sim_check_epoch(struct sim *sim, const struct sim_shard *shard, const struct ampd_epoch_record *epoch)
{
    if (epoch->epoch >= SIM_EPOCHS_MAX)
        sim_fail(sim, "invariant 7: epoch %llu", (unsigned long long)epoch->epoch);
    struct ampd_epoch_record *first = &sim->epochs[epoch->epoch];
    if (first->epoch == 0)
        *first = *epoch;
    if (first->base_epoch != epoch->base_epoch || first->base_step != epoch->base_step)
        sim_fail(sim, "invariant 6: epoch %llu begins from another checkpoint on shard %u",
                 (unsigned long long)epoch->epoch, shard->index);
    if (shard->index != 0)
        return;
    if (epoch->base_step < sim->durable_told)
        sim_fail(sim, "invariant 6: step %llu was durable, but epoch %llu begins from step %llu",
                 (unsigned long long)sim->durable_told, (unsigned long long)epoch->epoch,
                 (unsigned long long)epoch->base_step);
    if (epoch->base_step > sim->model.decided)
        sim_fail(sim, "invariant 6: an epoch begins from a step that was never decided");
    sim->epochs_seen++;
    sim->model.decided = epoch->base_step;
    sim->durable_told = 0;
    sim_trace(sim, 700, epoch->epoch);
}

/* 1: every worker is told the verdict that is stored. */
void sim_check_result(struct sim *sim, const struct ampclient_core_result *result)
{
    if (result->epoch != sim->shard[0].store.epoch)
        return; /* told before a crash that took it back */
    const struct ampd_step_row *row = &sim->shard[0].store.rows[result->step];
    bool same = row->epoch == result->epoch && row->step == result->step && (int)row->verdict == (int)result->verdict &&
                row->version == result->version && memcmp(&row->norm, &result->norm, sizeof(row->norm)) == 0 &&
                row->scale_id == result->scale_id && row->after.scale == result->new_scale;
    if (!same)
        sim_fail(sim, "invariant 1: a worker is told another verdict of step %llu than is stored",
                 (unsigned long long)result->step);
    if (result->durable_step > sim->durable_told)
        sim->durable_told = result->durable_step;
}

/* 3: a pulled version has the bits of REF's masters, cast. */
void sim_check_pulled(struct sim *sim, const struct sim_worker *worker)
{
    const struct sim_model *model = &sim->model;
    const struct sim_state *state = NULL;
    for (uint64_t s = 0; s <= model->decided; s++) {
        if (model->states[s].version == worker->version)
            state = &model->states[s];
    }
    bool current = worker->epoch == sim->shard[0].store.epoch;
    if (state == NULL && current)
        sim_fail(sim, "invariant 3: version %llu was never reached", (unsigned long long)worker->version);
    if (state == NULL)
        return; /* pulled before a crash that took it back */
    for (uint32_t p = 0; p < model->spec.parameters_count && current; p++) {
        uint64_t elements;
        const void *pulled = ampclient_core_parameter(worker->core, p, &elements);
        uint32_t want[256];
        (void)amp_kernels_ref.store[model->spec.cast](want, state->master + model->layout->starts[p], elements);
        if (memcmp(pulled, want, elements * amp_dtype_size(model->spec.cast)) != 0)
            sim_fail(sim, "invariant 3: parameter %u of version %llu differs from REF", p,
                     (unsigned long long)worker->version);
    }
}

void sim_check_observed(struct sim *sim, const struct sim_call *call)
{
    const struct sim_model *model = &sim->model;
    if (call->seen.epoch != sim->shard[0].store.epoch)
        return; /* begun before a crash */
    const struct sim_state *state = NULL;
    for (uint64_t s = 0; s <= model->decided; s++) {
        if (model->states[s].version == call->seen.version)
            state = &model->states[s];
    }
    if (state == NULL)
        sim_fail(sim, "invariant 3: an onlooker got version %llu", (unsigned long long)call->seen.version);
    const struct sim_shard *shard = &sim->shard[call->shard];
    size_t size = amp_dtype_size(model->spec.cast);
    for (uint32_t p = 0; p < model->spec.parameters_count; p++) {
        uint32_t want[256];
        uint64_t start = model->layout->starts[p], end = start + model->layout->sizes[p];
        uint64_t from = start > shard->element ? start : shard->element;
        uint64_t to = end < shard->element + shard->elements ? end : shard->element + shard->elements;
        if (from >= to)
            continue;
        (void)amp_kernels_ref.store[model->spec.cast](want, state->master + from, to - from);
        if (memcmp(call->own + from * size, want, (to - from) * size) != 0)
            sim_fail(sim, "invariant 3: an onlooker's version %llu is mixed", (unsigned long long)call->seen.version);
    }
}

static void check_tensor(struct sim *sim, const struct sim_shard *shard, const float *have, const float *want,
                         const char *name)
{
    if (have != NULL && memcmp(have, want + shard->element, shard->elements * sizeof(float)) != 0)
        sim_fail(sim, "invariant 3: %s of a checkpoint of shard %u differ from REF", name, shard->index);
}

/* 3 and 4: a checkpoint holds REF's state, and all masters are finite. */
void sim_check_file(struct sim *sim, const struct sim_shard *shard, const struct sim_file *file)
{
    const struct sim_state *state = &sim->model.states[file->step];
    if (shard->store.epoch < sim->shard[0].store.epoch)
        return; /* of an epoch that is over: it is void as soon as the shard hears of it */
    if (file->step > sim->model.decided)
        sim_fail(sim, "invariant 6: a checkpoint of a step that is not decided");
    check_tensor(sim, shard, file->master, state->master, "masters");
    check_tensor(sim, shard, file->m, state->m, "first moments");
    check_tensor(sim, shard, file->v, state->v, "second moments");
    if (file->state.version != state->version || file->state.scaler.scale_id != state->scaler.scale_id ||
        file->state.scaler.scale != state->scaler.scale || file->state.scaler.attempted != state->scaler.attempted)
        sim_fail(sim, "invariant 5: the scale record of a checkpoint differs from REF");
    for (uint64_t i = 0; i < shard->elements; i++) {
        if (!isfinite(file->master[i]))
            sim_fail(sim, "invariant 4: a master is not finite");
    }
}

static void check_shard(struct sim *sim, struct sim_shard *shard)
{
    if (shard->core == NULL || ampd_core_models_count(shard->core) == 0)
        return;
    struct ampd_model_info info;
    ampd_core_model(shard->core, 0, &info);
    check_scale(sim, info.scaler.scale);
    bool back =
        info.epoch < shard->seen_epoch || (info.epoch == shard->seen_epoch && info.decided_step < shard->seen_step);
    if (back && !info.recovering)
        sim_fail(sim, "invariant 1: epoch %llu, step %llu after epoch %llu, step %llu", (unsigned long long)info.epoch,
                 (unsigned long long)info.decided_step, (unsigned long long)shard->seen_epoch,
                 (unsigned long long)shard->seen_step);
    if (shard->index == 0 && info.durable_step > info.decided_step && !info.recovering)
        sim_fail(sim, "invariant 6: step %llu is durable before it is decided", (unsigned long long)info.durable_step);
    if (!info.recovering) {
        shard->seen_epoch = info.epoch;
        shard->seen_step = info.decided_step;
    }
}

/* After every event: epochs and steps never go back, the scale is in its bounds, and the run comes to its end. */
void sim_check_event(struct sim *sim)
{
    if (sim->events > SIM_EVENTS_MAX)
        sim_fail(sim, "invariant 7: no end after %d events", SIM_EVENTS_MAX);
    for (uint32_t k = 0; k < sim->shards; k++)
        check_shard(sim, &sim->shard[k]);
}

/* The model is done, and the last checkpoint, all its parts together, is the end of the straight line. */
void sim_check_end(struct sim *sim)
{
    uint64_t last = sim->model.spec.max_steps;
    if (sim->model.decided != last)
        sim_fail(sim, "invariant 7: ended at step %llu of %llu", (unsigned long long)sim->model.decided,
                 (unsigned long long)last);
    for (uint32_t k = 0; k < sim->shards; k++) {
        const struct sim_shard *shard = &sim->shard[k];
        const struct sim_file *file = &shard->store.files[last];
        if (shard->store.last_step != last || !file->used)
            sim_fail(sim, "invariant 6: shard %u has no checkpoint of the last step", k);
        sim_check_file(sim, shard, file);
    }
}
