/*
 * From what the passes found to a vote (docs/step-protocol.md sections 2 and 4). Pure: the same tensors and lists give
 * the same bits, however the model is split into shards.
 */
#include "server/core/shard/vote.h"

#include "amp/reduce.h"
#include "server/core/base/model.h"
#include "server/core/base/out.h"
#include "server/core/base/process.h"
#include "server/core/model/layout.h"
#include "server/core/model/metrics.h"
#include "server/core/model/tensors.h"
#include "server/core/shard/push.h"
#include "server/core/shard/shard.h"
#include "server/core/wire/findings.h"

#include <stdlib.h>

static bool bit(const uint8_t *bits, uint32_t i)
{
    return bits != NULL && (bits[i / 8] >> (i % 8) & 1) != 0;
}

/* Adds what the contributions themselves hold of the parameter, over the blocks of this shard. */
static void find_inputs(const struct ampd_model *model, struct ampd_finding *finding)
{
    const struct ampd_close *close = &model->shard->step.close;
    for (uint32_t i = 0; i < close->contributors_count; i++) {
        uint32_t rank = close->contributors[i].rank;
        const struct ampd_slot *slot = &model->shard->slots[rank];
        const struct ampd_segment_count *count = &slot->counts[finding->parameter];
        struct ampd_overflow_row row = {finding->parameter, rank,          count->inf_count, count->nan_count,
                                        count->first_index, count->largest};
        if (!bit(slot->absent, finding->parameter))
            ampd_finding_add(finding, &row);
    }
}

/* Adds what the passes have found in the sum and its range, over the segments [from, to). */
static void find_sums(const struct ampd_model *model, uint64_t from, uint64_t to, struct ampd_finding *finding)
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
        ampd_finding_add(finding, &sum);
        ampd_finding_add(finding, &range);
    }
}

/* Whether this shard has found no overflow in the parameter whose segments are [from, to). */
static bool all_finite(const struct ampd_model *model, uint64_t from, uint64_t to)
{
    const struct ampd_close *close = &model->shard->step.close;
    uint32_t parameter = model->layout->segments[from].parameter;
    uint64_t base = ampd_tensors_segment_base(&model->tensors), found = 0;
    for (uint32_t i = 0; i < close->contributors_count; i++) {
        const struct ampd_segment_count *count = &model->shard->slots[close->contributors[i].rank].counts[parameter];
        found += count->inf_count + count->nan_count;
    }
    for (uint64_t s = from; s < to; s++) {
        const struct amp_pass_vote *vote = &model->tensors.votes[s - base];
        found += vote->sum_inf + vote->sum_nan + vote->range_count;
    }
    return found == 0;
}

/*
 * Adds the sums of squares of the segments [from, to) of one parameter, as whole nodes of the tree over global blocks.
 */
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
    const struct ampd_close *close = &model->shard->step.close;
    for (uint32_t i = 0; i < close->contributors_count; i++) {
        if (!bit(model->shard->slots[close->contributors[i].rank].absent, parameter))
            return false;
    }
    return true;
}

static void add_rows(const struct ampd_finding *finding, struct ampd_vote *vote)
{
    struct ampd_overflow_row rows[AMPD_WORLD_MAX + 2];
    uint32_t count = ampd_finding_rows(finding, rows);
    vote->overflow_params += count;
    for (uint32_t i = 0; i < count; i++) {
        vote->inf_total += rows[i].inf_count;
        vote->nan_total += rows[i].nan_count;
        if (vote->rows_count < AMPD_OVERFLOW_ROWS_MAX)
            vote->rows[vote->rows_count++] = rows[i];
    }
}

/*
 * Puts into the vote all that was found of a parameter that other shards have parts of: it may matter only together
 * with what they have found.
 */
static void share(const struct ampd_finding *finding, struct ampd_vote *vote)
{
    if (vote->shared == NULL)
        vote->shared = ampd_need(calloc(AMPD_SHARED_ROWS_MAX, sizeof *vote->shared));
    for (uint32_t i = 0; i < finding->count + 2; i++) {
        const struct ampd_overflow_row *row = &finding->rows[i];
        if (ampd_row_overflows(row) || row->largest > 0)
            vote->shared[vote->shared_count++] = *row;
    }
}

/* Adds in rank order, the order of contributors, so that the mean does not depend on the order in which pushes came. */
static void fill_metrics(const struct ampd_model *model, struct ampd_vote *vote)
{
    const struct ampd_close *close = &model->shard->step.close;
    struct ampd_metrics_mean mean = {0};
    for (uint32_t i = 0; i < close->contributors_count; i++)
        ampd_metrics_add(&mean, close->contributors[i].weight,
                         &model->shard->slots[close->contributors[i].rank].metrics);
    vote->metrics = ampd_metrics_result(&mean);
}

void ampd_vote_fill(struct ampd_model *model, struct ampd_vote *vote)
{
    const struct ampd_open_step *step = &model->shard->step;
    const struct ampd_layout *layout = model->layout;
    uint64_t segment = ampd_tensors_segment_base(&model->tensors);
    uint64_t end = layout->block_segments[model->tensors.first + model->tensors.count];
    vote->step = step->open.step;
    vote->try_number = step->open.try_number;
    vote->contributors_hash = step->hash;
    if (model->core->config.shard == 0) /* every shard gets the same trailers, so one mean is enough */
        fill_metrics(model, vote);
    if (step->close.empty || segment == end)
        return; /* nothing was summed */
    struct ampd_finding *finding = ampd_need(malloc(sizeof *finding));
    /* At most one node per segment: each node covers at least one. */
    vote->subtrees = ampd_need(calloc(end - segment, sizeof *vote->subtrees));
    while (segment < end) {
        uint32_t parameter = layout->segments[segment].parameter;
        uint64_t from = segment;
        while (segment < end && layout->segments[segment].parameter == parameter)
            segment++;
        if (ampd_vote_absent(model, parameter))
            continue;
        bool shared = ampd_vote_shares(model, model->core->config.shard, parameter);
        if (shared || !all_finite(model, from, segment)) {
            ampd_finding_init(finding, parameter, model->spec.world_size);
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
