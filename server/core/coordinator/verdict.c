/*
 * From votes to a verdict (docs/step-protocol.md sections 2 and 4). The same votes and the same state of the
 * coordinator give the same bits, except times, however the model is split into shards.
 */
#include "server/core/coordinator/verdict.h"

#include "amp/reduce.h"
#include "base/assert.h"
#include "server/core/base/local.h"
#include "server/core/base/model.h"
#include "server/core/base/out.h"
#include "server/core/base/process.h"
#include "server/core/coordinator/coord.h"
#include "server/core/model/layout.h"
#include "server/core/model/spec.h"
#include "server/core/model/step_times.h"
#include "server/core/wire/findings.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The trees over parameters: of all of them, and of each group's. */
struct norms {
    const struct ampd_model_spec *spec;
    struct amp_tree all, groups[AMPD_GROUPS_MAX];
};

static void add_parameter(struct norms *norms, uint32_t parameter, const struct amp_tree *squares)
{
    double sum = amp_tree_sum(squares);
    amp_tree_add(&norms->all, parameter, sum);
    amp_tree_add(&norms->groups[norms->spec->parameters[parameter].group], parameter, sum);
}

/* Squares: subtrees per parameter, parameters by their index. Votes are in shard order, so both rise. */
static void gather_norms(const struct ampd_model *model, struct norms *norms)
{
    norms->spec = &model->spec;
    amp_tree_init(&norms->all);
    for (uint32_t g = 0; g < AMPD_GROUPS_MAX; g++)
        amp_tree_init(&norms->groups[g]);
    struct amp_tree one;
    uint32_t parameter = UINT32_MAX;
    for (uint32_t k = 0; k < AMPD_COUNT(model->core); k++) {
        const struct ampd_vote *vote = &model->coord->step.votes[k]->u.vote;
        for (uint64_t i = 0; i < vote->subtrees_count; i++) {
            const struct ampd_subtree *subtree = &vote->subtrees[i];
            if (subtree->parameter != parameter) {
                if (parameter != UINT32_MAX)
                    add_parameter(norms, parameter, &one);
                amp_tree_init(&one);
                parameter = subtree->parameter;
            }
            amp_tree_add(&one, subtree->index, subtree->squares);
        }
    }
    if (parameter != UINT32_MAX)
        add_parameter(norms, parameter, &one);
}

/* The norm above which gradients of a group are clipped: the group's own, or the model's. 0: they are not. */
static float max_norm_of(const struct ampd_model_spec *spec, uint32_t group)
{
    bool own = spec->clip_scope == AMPD_CLIP_GROUP && spec->groups[group].clip_max_norm > 0;
    return own ? spec->groups[group].clip_max_norm : spec->clip_max_norm;
}

/* Norm and clip coefficients, one per group; with scope GLOBAL all are the same. */
static void fill_clips(const struct ampd_model *model, struct ampd_step_row *row)
{
    const struct ampd_model_spec *spec = &model->spec;
    struct norms *norms = ampd_need(malloc(sizeof *norms));
    gather_norms(model, norms);
    row->norm = sqrt(amp_tree_sum(&norms->all));
    row->clip = 1;
    row->clips_count = spec->groups_count;
    for (uint32_t g = 0; g < spec->groups_count; g++) {
        double norm = spec->clip_scope == AMPD_CLIP_GROUP ? sqrt(amp_tree_sum(&norms->groups[g])) : row->norm;
        float max_norm = max_norm_of(spec, g);
        row->clips[g] = max_norm > 0 ? amp_clip_coefficient((double)max_norm, norm) : 1;
        row->clip = row->clips[g] < row->clip ? row->clips[g] : row->clip;
    }
    free(norms);
}

/* Keeps the first by (parameter, rank), whatever the order in which they come. */
static void keep_row(struct ampd_step_row *row, const struct ampd_overflow_row *from)
{
    uint32_t at = row->rows_count;
    while (at > 0 && (row->rows[at - 1].parameter > from->parameter ||
                      (row->rows[at - 1].parameter == from->parameter && row->rows[at - 1].rank > from->rank)))
        at--;
    if (at == AMPD_OVERFLOW_ROWS_MAX)
        return;
    uint32_t last = row->rows_count < AMPD_OVERFLOW_ROWS_MAX ? row->rows_count : AMPD_OVERFLOW_ROWS_MAX - 1;
    memmove(&row->rows[at + 1], &row->rows[at], (last - at) * sizeof row->rows[0]);
    row->rows[at] = *from;
    row->rows_count = last + 1;
}

/* Adds the rows of a parameter of several shards, all parts of which are here. */
static void merge_finding(const struct ampd_finding *finding, struct ampd_step_row *row)
{
    struct ampd_overflow_row rows[AMPD_WORLD_MAX + 2];
    uint32_t count = ampd_finding_rows(finding, rows);
    row->overflow_params += count;
    for (uint32_t i = 0; i < count; i++) {
        row->inf_total += rows[i].inf_count;
        row->nan_total += rows[i].nan_count;
        keep_row(row, &rows[i]);
    }
}

/* Votes are in shard order, so the parameters that shards share rise, and the parts of each follow each other. */
static void merge_rows(const struct ampd_model *model, struct ampd_step_row *row)
{
    struct ampd_finding *finding = ampd_need(malloc(sizeof *finding));
    ampd_finding_init(finding, UINT32_MAX, model->spec.world_size);
    for (uint32_t k = 0; k < AMPD_COUNT(model->core); k++) {
        const struct ampd_vote *vote = &model->coord->step.votes[k]->u.vote;
        row->overflow_params += vote->overflow_params;
        row->inf_total += vote->inf_total;
        row->nan_total += vote->nan_total;
        for (uint32_t i = 0; i < vote->rows_count; i++)
            keep_row(row, &vote->rows[i]);
        for (uint32_t i = 0; i < vote->shared_count; i++) {
            if (vote->shared[i].parameter != finding->parameter) {
                merge_finding(finding, row);
                ampd_finding_init(finding, vote->shared[i].parameter, model->spec.world_size);
            }
            ampd_finding_add(finding, &vote->shared[i]);
        }
    }
    merge_finding(finding, row);
    free(finding);
}

static bool cut_here(const struct ampd_model *model, uint64_t step)
{
    const struct ampd_model_spec *spec = &model->spec;
    bool journal = spec->durability == AMPD_DURABILITY_STEP && step % AMPD_VOTE_JOURNAL_STEPS == 0;
    return model->coord->checkpoint.wanted || step % spec->checkpoint_every == 0 || journal ||
           (spec->max_steps != 0 && step == spec->max_steps);
}

/* Scalars that only an applied step has. */
static void fill_scalars(const struct ampd_model *model, struct ampd_step_row *row)
{
    const struct ampd_model_spec *spec = &model->spec;
    struct amp_schedule schedule = ampd_spec_schedule(spec);
    fill_clips(model, row);
    row->version = model->coord->version + 1;
    double base =
        spec->schedule == AMPD_SCHEDULE_WORKER ? model->coord->step.lr : ampd_spec_base_lr(spec, &model->coord->newest);
    row->lr = amp_schedule_lr(&schedule, base, model->coord->version);
}

/* Where the time since the decision before went. */
static void fill_times(const struct ampd_model *model, struct ampd_step_row *row)
{
    const struct ampd_coord *coord = model->coord;
    struct ampd_seen seen = ampd_local_seen(model);
    const struct ampd_step_moments moments = {.before = coord->decision.made_us,
                                              .applied = coord->decision.applied_us,
                                              .pulled = seen.pulled_us,
                                              .pushed = seen.pushed_us,
                                              .whole = coord->step.whole_us,
                                              .decided = row->at_us};
    ampd_step_times(&moments, row->times_us);
}

struct ampd_verdict_message *ampd_verdict_make(struct ampd_model *model)
{
    struct ampd_coord *coord = model->coord;
    struct ampd_verdict_message *verdict = ampd_need(calloc(1, sizeof *verdict));
    struct ampd_step_row *row = &verdict->row;
    AMP_ASSERT(model->core->config.shard == 0);
    row->kind = AMPD_ROW_STEP;
    row->epoch = coord->epoch;
    row->step = coord->step.open.step;
    row->tries = coord->step.open.try_number + 1;
    row->contributors_hash = coord->step.hash;
    row->contributors_count = coord->step.close.contributors_count;
    memcpy(row->contributors, coord->step.close.contributors, row->contributors_count * sizeof row->contributors[0]);
    row->scale = coord->step.open.scale;
    row->scale_id = coord->step.open.scale_id;
    row->metrics = coord->step.votes[0]->u.vote.metrics;
    row->coefficient = coord->step.close.coefficient;
    row->version = coord->version;
    row->clip = 0;
    row->at_us = model->core->utc_us;
    fill_times(model, row);
    row->durable_step = coord->checkpoint.durable_step;
    row->cut = cut_here(model, row->step);
    merge_rows(model, row);
    enum amp_scaler_outcome outcome = AMP_SCALER_CLEAN;
    row->verdict = AMPD_VERDICT_APPLIED;
    if (coord->step.close.empty) {
        row->verdict = AMPD_VERDICT_SKIPPED_EMPTY;
        outcome = AMP_SCALER_EMPTY;
    } else if (row->overflow_params > 0) {
        row->verdict = AMPD_VERDICT_SKIPPED_OVERFLOW;
        outcome = AMP_SCALER_OVERFLOW;
    } else {
        fill_scalars(model, row);
    }
    row->after = coord->newest;
    if (row->scale_id == row->after.scaler.scale_id)
        amp_scaler_update(&model->spec.scaler, &row->after.scaler, outcome);
    else
        amp_scaler_count(&row->after.scaler, outcome); /* set by hand meanwhile: it says nothing about that scale */
    verdict->range_total = coord->decision.warnings.range_total;
    verdict->range_count = coord->decision.warnings.range_count;
    memcpy(verdict->range, coord->decision.warnings.range,
           coord->decision.warnings.range_count * sizeof verdict->range[0]);
    return verdict;
}
