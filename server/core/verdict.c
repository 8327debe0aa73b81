/*
 * From what the passes found to a vote, and from votes to a verdict (STEP sections 2 and 4). Pure: the same tensors and
 * lists give the same bits, however the model is cut into shards.
 *
 * Who is blamed: (parameter, rank) for each input that is not finite. SUM and RANGE rows are given for parameters whose
 * inputs were all finite: with an Inf in an input, the sum has one too and says nothing new. Of a parameter that lies on several
 * shards none of them knows that: each votes with what it has found, and the coordinator puts the parts together.
 */
#include "amp/reduce.h"
#include "base/assert.h"
#include "server/core/model.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool bit(const uint8_t *bits, uint32_t i)
{
    return bits != NULL && (bits[i / 8] >> (i % 8) & 1) != 0;
}

/* ---- the vote ---- */

bool ampd_vote_shares(const struct ampd_model *model, uint32_t shard, uint32_t parameter)
{
    const struct ampd_layout *layout = model->layout;
    uint64_t first, count, start = layout->starts[parameter];
    ampd_layout_shard(layout, shard, AMPD_COUNT(model->core), &first, &count);
    return start / layout->block_elements < first ||
           (start + layout->sizes[parameter] - 1) / layout->block_elements >= first + count;
}

bool ampd_row_overflows(const struct ampd_overflow_row *row)
{
    return row->inf_count + row->nan_count > 0;
}

bool ampd_vote_overflows(const struct ampd_vote *vote)
{
    bool any = vote->overflow_params > 0;
    for (uint32_t i = 0; i < vote->shared_count; i++)
        any = any || ampd_row_overflows(&vote->shared[i]);
    return any;
}

/* What was found of one parameter. Its rows: of ranks by their number, then the range's and the sum's. */
struct finding {
    uint32_t parameter;
    uint32_t count; /* of ranks */
    struct ampd_overflow_row rows[AMPD_WORLD_MAX + 2];
};

static void finding_init(struct finding *finding, uint32_t parameter, uint32_t world_size)
{
    finding->parameter = parameter;
    finding->count = world_size;
    for (uint32_t i = 0; i < world_size + 2; i++) {
        uint32_t rank = i < world_size ? i : i == world_size ? AMPD_RANK_RANGE : AMPD_RANK_SUM;
        finding->rows[i] = (struct ampd_overflow_row){.parameter = parameter, .rank = rank, .first_index = UINT64_MAX};
    }
}

static void finding_add(struct finding *finding, const struct ampd_overflow_row *from)
{
    uint32_t i = from->rank == AMPD_RANK_RANGE ? finding->count
                 : from->rank == AMPD_RANK_SUM ? finding->count + 1
                                               : from->rank;
    struct ampd_overflow_row *to = &finding->rows[i];
    to->inf_count += from->inf_count;
    to->nan_count += from->nan_count;
    if (from->first_index < to->first_index)
        to->first_index = from->first_index;
    if (from->largest > to->largest)
        to->largest = from->largest;
}

/* The inputs, over the blocks of this shard. */
static void find_inputs(const struct ampd_model *model, struct finding *finding)
{
    const struct ampd_close *close = &model->shard.step.close;
    for (uint32_t i = 0; i < close->contributors_count; i++) {
        uint32_t rank = close->contributors[i].rank;
        const struct ampd_slot *slot = &model->shard.slots[rank];
        const struct ampd_segment_count *count = &slot->counts[finding->parameter];
        struct ampd_overflow_row row = {finding->parameter, rank,          count->inf_count, count->nan_count,
                                        count->first_index, count->largest};
        if (!bit(slot->absent, finding->parameter))
            finding_add(finding, &row);
    }
}

/* The sum and its range, over the segments [from, to). */
static void find_sums(const struct ampd_model *model, uint64_t from, uint64_t to, struct finding *finding)
{
    const struct ampd_segment *segments = model->layout->segments;
    uint64_t base = ampd_tensors_segment_base(&model->tensors);
    for (uint64_t s = from; s < to; s++) {
        const struct amp_pass_vote *found = &model->tensors.votes[s - base];
        uint64_t first = segments[s].first;
        struct ampd_overflow_row sum = {finding->parameter, AMPD_RANK_SUM, found->sum_inf,
                                        found->sum_nan,     UINT64_MAX,    found->largest};
        struct ampd_overflow_row range = {finding->parameter, AMPD_RANK_RANGE, found->range_count, 0,
                                          UINT64_MAX,         found->largest};
        if (found->sum_first != UINT64_MAX)
            sum.first_index = first + found->sum_first;
        if (found->range_first != UINT64_MAX)
            range.first_index = first + found->range_first;
        finding_add(finding, &sum);
        finding_add(finding, &range);
    }
}

/* Whether this shard has found no overflow in the parameter whose segments are [from, to). */
static bool all_finite(const struct ampd_model *model, uint64_t from, uint64_t to)
{
    const struct ampd_close *close = &model->shard.step.close;
    uint32_t parameter = model->layout->segments[from].parameter;
    uint64_t base = ampd_tensors_segment_base(&model->tensors), found = 0;
    for (uint32_t i = 0; i < close->contributors_count; i++) {
        const struct ampd_segment_count *count = &model->shard.slots[close->contributors[i].rank].counts[parameter];
        found += count->inf_count + count->nan_count;
    }
    for (uint64_t s = from; s < to; s++) {
        const struct amp_pass_vote *vote = &model->tensors.votes[s - base];
        found += vote->sum_inf + vote->sum_nan + vote->range_count;
    }
    return found == 0;
}

/* The rows that a parameter has, by all that was found of it: of ranks, or else of range and sum. */
static uint32_t finding_rows(const struct finding *finding, struct ampd_overflow_row *rows)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < finding->count + 2; i++) {
        bool of_inputs = count > 0 && rows[0].rank < AMPD_RANK_RANGE;
        if (ampd_row_overflows(&finding->rows[i]) && (i < finding->count || !of_inputs))
            rows[count++] = finding->rows[i];
    }
    return count;
}

/* The sums of squares of the segments [from, to) of one parameter, as whole nodes of the tree over global blocks. */
static void add_squares(const struct ampd_model *model, uint64_t from, uint64_t to, struct ampd_vote *vote)
{
    const struct ampd_layout *layout = model->layout;
    uint64_t base = ampd_tensors_segment_base(&model->tensors);
    uint32_t parameter = layout->segments[from].parameter;
    uint64_t first = (layout->starts[parameter] + layout->segments[from].first) / layout->block_elements;
    struct amp_tree_part parts[AMP_TREE_PARTS_MAX];
    size_t count = amp_tree_parts(first, first + (to - from), parts);
    for (size_t i = 0; i < count; i++) {
        struct amp_tree tree;
        amp_tree_init(&tree);
        uint64_t end = parts[i].first + ((uint64_t)1 << parts[i].level);
        for (uint64_t block = parts[i].first; block < end; block++)
            amp_tree_add(&tree, block, model->tensors.votes[from + (block - first) - base].squares);
        vote->subtrees[vote->subtrees_count++] =
            (struct ampd_subtree){parameter, parts[i].level, parts[i].first, amp_tree_sum(&tree)};
    }
}

bool ampd_vote_absent(const struct ampd_model *model, uint32_t parameter)
{
    const struct ampd_close *close = &model->shard.step.close;
    for (uint32_t i = 0; i < close->contributors_count; i++) {
        if (!bit(model->shard.slots[close->contributors[i].rank].absent, parameter))
            return false;
    }
    return true;
}

static void add_rows(const struct finding *finding, struct ampd_vote *vote)
{
    struct ampd_overflow_row rows[AMPD_WORLD_MAX + 2];
    uint32_t count = finding_rows(finding, rows);
    vote->overflow_params += count;
    for (uint32_t i = 0; i < count; i++) {
        vote->inf_total += rows[i].inf_count;
        vote->nan_total += rows[i].nan_count;
        if (vote->rows_count < AMPD_OVERFLOW_ROWS_MAX)
            vote->rows[vote->rows_count++] = rows[i];
    }
}

/* Votes with all that was found of a shared parameter: it may matter together with what other shards have found of it. */
static void share(const struct finding *finding, struct ampd_vote *vote)
{
    if (vote->shared == NULL)
        vote->shared = ampd_need(calloc(AMPD_SHARED_ROWS_MAX, sizeof(*vote->shared)));
    for (uint32_t i = 0; i < finding->count + 2; i++) {
        const struct ampd_overflow_row *row = &finding->rows[i];
        if (ampd_row_overflows(row) || row->largest > 0)
            vote->shared[vote->shared_count++] = *row;
    }
}

void ampd_vote_fill(struct ampd_model *model, struct ampd_vote *vote)
{
    const struct ampd_open_step *step = &model->shard.step;
    const struct ampd_layout *layout = model->layout;
    uint64_t segment = ampd_tensors_segment_base(&model->tensors);
    uint64_t end = layout->block_segments[model->tensors.first + model->tensors.count];
    vote->step = step->open.step;
    vote->try_number = step->open.try_number;
    vote->contributors_hash = step->hash;
    if (step->close.empty || segment == end)
        return; /* nothing was summed */
    struct finding *finding = ampd_need(malloc(sizeof(*finding)));
    /* At most one node per segment: each node covers at least one. */
    vote->subtrees = ampd_need(calloc(end - segment, sizeof(*vote->subtrees)));
    while (segment < end) {
        uint32_t parameter = layout->segments[segment].parameter;
        uint64_t from = segment;
        while (segment < end && layout->segments[segment].parameter == parameter)
            segment++;
        if (ampd_vote_absent(model, parameter))
            continue;
        bool shared = ampd_vote_shares(model, model->core->config.shard, parameter);
        if (shared || !all_finite(model, from, segment)) {
            finding_init(finding, parameter, model->spec.world_size);
            find_inputs(model, finding);
            find_sums(model, from, segment, finding);
            if (shared)
                share(finding, vote);
            else
                add_rows(finding, vote);
        }
        add_squares(model, from, segment, vote);
    }
    free(finding);
}

/* ---- the verdict ---- */

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
        const struct ampd_vote *vote = &model->coord.votes[k]->u.vote;
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

/* The greatest norm that is let pass: of the model, or of a group. 0: any. */
static float max_norm_of(const struct ampd_model_spec *spec, uint32_t group)
{
    bool own = spec->clip_scope == AMPD_CLIP_GROUP && spec->groups[group].clip_max_norm > 0;
    return own ? spec->groups[group].clip_max_norm : spec->clip_max_norm;
}

/* Norm and clip coefficients, one per group; with scope GLOBAL all are the same. */
static void fill_clips(const struct ampd_model *model, struct ampd_step_row *row)
{
    const struct ampd_model_spec *spec = &model->spec;
    struct norms *norms = ampd_need(malloc(sizeof(*norms)));
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

bool ampd_floor_stops(const struct ampd_model_spec *spec, const struct amp_scaler_state *scaler)
{
    return spec->floor_policy != AMPD_FLOOR_CLAMP && scaler->consecutive_overflows >= spec->max_consecutive_overflows &&
           amp_scaler_at_floor(&spec->scaler, scaler);
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
    memmove(&row->rows[at + 1], &row->rows[at], (last - at) * sizeof(row->rows[0]));
    row->rows[at] = *from;
    row->rows_count = last + 1;
}

/* A parameter of several shards, of which all parts are here. */
static void merge_finding(const struct finding *finding, struct ampd_step_row *row)
{
    struct ampd_overflow_row rows[AMPD_WORLD_MAX + 2];
    uint32_t count = finding_rows(finding, rows);
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
    struct finding *finding = ampd_need(malloc(sizeof(*finding)));
    finding_init(finding, UINT32_MAX, model->spec.world_size);
    for (uint32_t k = 0; k < AMPD_COUNT(model->core); k++) {
        const struct ampd_vote *vote = &model->coord.votes[k]->u.vote;
        row->overflow_params += vote->overflow_params;
        row->inf_total += vote->inf_total;
        row->nan_total += vote->nan_total;
        for (uint32_t i = 0; i < vote->rows_count; i++)
            keep_row(row, &vote->rows[i]);
        for (uint32_t i = 0; i < vote->shared_count; i++) {
            if (vote->shared[i].parameter != finding->parameter) {
                merge_finding(finding, row);
                finding_init(finding, vote->shared[i].parameter, model->spec.world_size);
            }
            finding_add(finding, &vote->shared[i]);
        }
    }
    merge_finding(finding, row);
    free(finding);
}

static bool cut_here(const struct ampd_model *model, uint64_t step)
{
    const struct ampd_model_spec *spec = &model->spec;
    bool journal = spec->durability == AMPD_DURABILITY_STEP && step % AMPD_JOURNAL_STEPS == 0;
    return model->coord.cut_wanted || step % spec->checkpoint_every == 0 || journal ||
           (spec->max_steps != 0 && step == spec->max_steps);
}

/* What follows from the row of an applied step. */
static void fill_rates(const struct ampd_model *model, struct ampd_verdict_message *verdict)
{
    const struct ampd_model_spec *spec = &model->spec;
    const struct ampd_step_row *row = &verdict->row;
    for (uint32_t g = 0; g < spec->groups_count; g++)
        verdict->group_lr[g] = row->lr * spec->groups[g].lr_scale;
    struct amp_optim_config config = ampd_spec_optim(spec);
    struct amp_apply apply;
    amp_optim_scalars(&config, row->version, row->lr, row->clip, &apply);
    verdict->bias1 = apply.bias1;
    verdict->bias2 = apply.bias2;
}

void ampd_verdict_of_row(const struct ampd_model *model, const struct ampd_step_row *row,
                         struct ampd_verdict_message *verdict)
{
    *verdict = (struct ampd_verdict_message){.row = *row};
    if (row->verdict == AMPD_VERDICT_APPLIED)
        fill_rates(model, verdict);
}

/* Scalars that only an applied step has. */
static void fill_scalars(const struct ampd_model *model, struct ampd_verdict_message *verdict)
{
    const struct ampd_model_spec *spec = &model->spec;
    struct ampd_step_row *row = &verdict->row;
    struct amp_schedule schedule = ampd_spec_schedule(spec);
    fill_clips(model, row);
    row->version = model->coord.version + 1;
    row->lr = amp_schedule_lr(&schedule, spec->lr, model->coord.version);
    fill_rates(model, verdict);
}

struct ampd_verdict_message *ampd_verdict_make(struct ampd_model *model)
{
    struct ampd_coord *coord = &model->coord;
    struct ampd_verdict_message *verdict = ampd_need(calloc(1, sizeof(*verdict)));
    struct ampd_step_row *row = &verdict->row;
    row->kind = AMPD_ROW_STEP;
    row->epoch = coord->epoch;
    row->step = coord->open.step;
    row->tries = coord->open.try_number + 1;
    row->contributors_hash = coord->hash;
    row->contributors_count = coord->close.contributors_count;
    memcpy(row->contributors, coord->close.contributors, row->contributors_count * sizeof(row->contributors[0]));
    row->scale = coord->open.scale;
    row->scale_id = coord->open.scale_id;
    row->coefficient = coord->close.coefficient;
    row->version = coord->version;
    row->clip = 0;
    row->at_us = model->core->utc_us;
    row->durable_step = coord->durable_step;
    row->cut = cut_here(model, row->step);
    merge_rows(model, row);
    enum amp_scaler_outcome outcome = AMP_SCALER_CLEAN;
    row->verdict = AMPD_VERDICT_APPLIED;
    if (coord->close.empty) {
        row->verdict = AMPD_VERDICT_SKIPPED_EMPTY;
        outcome = AMP_SCALER_EMPTY;
    } else if (row->overflow_params > 0) {
        row->verdict = AMPD_VERDICT_SKIPPED_OVERFLOW;
        outcome = AMP_SCALER_OVERFLOW;
    } else {
        fill_scalars(model, verdict);
    }
    row->after = coord->newest;
    if (row->scale_id == row->after.scale_id)
        amp_scaler_update(&model->spec.scaler, &row->after, outcome);
    else
        amp_scaler_count(&row->after, outcome); /* set by hand meanwhile: this step says nothing about that scale */
    verdict->range_total = coord->applied.range_total;
    verdict->range_count = coord->applied.range_count;
    memcpy(verdict->range, coord->applied.range, coord->applied.range_count * sizeof(verdict->range[0]));
    return verdict;
}

void ampd_verdict_plan(const struct ampd_model *model, const struct ampd_verdict_message *verdict,
                       struct ampd_plan *plan)
{
    const struct ampd_model_spec *spec = &model->spec;
    uint64_t t = verdict->row.version;
    for (uint32_t g = 0; g < spec->groups_count; g++) {
        struct amp_optim_config config = ampd_spec_optim(spec);
        if (spec->groups[g].weight_decay_set)
            config.weight_decay = spec->groups[g].weight_decay;
        struct amp_apply *apply = &plan->applies[g];
        amp_optim_scalars(&config, t, verdict->group_lr[g], verdict->row.clips[g], apply);
        apply->bias1 = verdict->bias1; /* as bits from the coordinator, never derived a second time */
        apply->bias2 = verdict->bias2;
        apply->cast = spec->cast;
        apply->saturate = spec->cast_overflow == AMPD_CAST_SATURATE;
        apply->first_step = t == 1; /* of the model: a parameter that was absent then starts from a zero buffer */
    }
}
