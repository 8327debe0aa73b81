/*
 * Whether a message of another shard can be about this model: it names parameters, ranks and blocks that there are, in
 * the order in which a shard sends them. All later code uses them as indexes. Whether the message comes at the right
 * time is decided by each machine.
 */
#include "server/core/wire/fits.h"

#include "server/core/base/model.h"
#include "server/core/base/process.h"
#include "server/core/model/layout.h"
#include "server/core/model/metrics.h"
#include "server/core/model/spec.h"
#include "server/core/wire/bus.h"
#include "server/core/wire/findings.h"
#include "server/core/wire/messages.h"

#include <math.h>

static bool rows_fit(const struct ampd_model *model, const struct ampd_overflow_row *rows, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        bool of_all = rows[i].rank == AMPD_RANK_SUM || rows[i].rank == AMPD_RANK_RANGE;
        if (rows[i].parameter >= model->spec.parameters_count || (!of_all && rows[i].rank >= model->spec.world_size) ||
            !(rows[i].largest >= 0 && isfinite(rows[i].largest)))
            return false;
    }
    return true;
}

static bool range_fits(const struct ampd_model *model, const struct ampd_range_warning *range, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (range[i].parameter >= model->spec.parameters_count)
            return false;
    }
    return true;
}

static bool list_fits(const struct ampd_model *model, const struct ampd_contributor *list, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (list[i].rank >= model->spec.world_size || (i > 0 && list[i].rank <= list[i - 1].rank))
            return false;
    }
    return true;
}

static bool open_fits(const struct ampd_model *model, const struct ampd_open *open)
{
    for (uint32_t i = 0; i < open->expected_count; i++) {
        uint32_t rank = open->expected[i].rank;
        if (rank >= model->spec.world_size || (i > 0 && rank <= open->expected[i - 1].rank))
            return false;
    }
    return open->scale > 0 && isfinite(open->scale) && isfinite(open->coefficient);
}

/* Whether all rows that come as operator actions can be actions, since they are stored in the history. */
static bool acts_fit(const struct ampd_model *model, const struct ampd_action *acts, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        bool evicts = acts[i].kind == AMPD_ROW_EVICT && acts[i].rank < model->spec.world_size;
        bool rate = acts[i].kind == AMPD_ROW_LR && acts[i].after.lr > 0;
        if (acts[i].kind != AMPD_ROW_SET && acts[i].kind != AMPD_ROW_RESET && !evicts && !rate)
            return false;
        if (!ampd_spec_takes_carry(&model->spec, &acts[i].after))
            return false;
    }
    return true;
}

static bool alive_fits(const struct ampd_model *model, const struct ampd_alive *alive)
{
    for (uint32_t i = 0; i < alive->count; i++) {
        if (alive->workers[i].rank >= model->spec.world_size)
            return false;
    }
    return true;
}

/* Whether all numbers that a step computes with are finite; so is a rate of 0 or more times the factor of a group. */
static bool numbers_fit(const struct ampd_step_row *row)
{
    bool fit = isfinite(row->scale) && isfinite(row->coefficient) && isfinite(row->norm) && isfinite(row->clip) &&
               isfinite(row->lr) && row->lr >= 0;
    for (uint32_t i = 0; i < row->clips_count; i++)
        fit = fit && isfinite(row->clips[i]);
    return fit;
}

bool ampd_row_fits(const struct ampd_model *model, const struct ampd_step_row *row)
{
    return list_fits(model, row->contributors, row->contributors_count) &&
           rows_fit(model, row->rows, row->rows_count) && row->clips_count <= model->spec.groups_count &&
           numbers_fit(row) && ampd_spec_takes_carry(&model->spec, &row->after) &&
           ampd_metrics_fit(&row->metrics, row->contributors_count);
}

static bool verdict_fits(const struct ampd_model *model, const struct ampd_verdict_message *verdict)
{
    return ampd_row_fits(model, &verdict->row) && acts_fit(model, verdict->acts, verdict->acts_count) &&
           range_fits(model, verdict->range, verdict->range_count);
}

/* The square of a finite float is below 2^256, and a step has one for each element, summed over ranks before. */
#define SQUARES_MAX ((double)AMPD_ELEMENTS_MAX * 0x1p256)

/* Subtrees must rise, and lie in the sender's blocks of their parameter, so that those of all shards rise, too. */
static bool vote_fits(const struct ampd_model *model, const struct ampd_vote *vote, uint32_t from)
{
    const struct ampd_layout *layout = model->layout;
    uint64_t first, count;
    ampd_layout_shard(layout, from, AMPD_COUNT(model->core), &first, &count);
    for (uint64_t i = 0; i < vote->subtrees_count; i++) {
        const struct ampd_subtree *tree = &vote->subtrees[i], *before = i > 0 ? tree - 1 : NULL;
        uint64_t size = (uint64_t)1 << tree->level, p = tree->parameter;
        if (p >= model->spec.parameters_count || (before != NULL && before->parameter > p) ||
            !(tree->squares >= 0 && tree->squares <= SQUARES_MAX))
            return false;
        uint64_t begin = layout->starts[p] / layout->block_elements;
        uint64_t end = (layout->starts[p] + layout->sizes[p] - 1) / layout->block_elements + 1;
        begin = begin > first ? begin : first;
        end = end < first + count ? end : first + count;
        if (before != NULL && before->parameter == p)
            begin = before->index + ((uint64_t)1 << before->level);
        if (tree->index < begin || tree->index % size != 0 || tree->index >= end || size > end - tree->index)
            return false;
    }
    for (uint32_t i = 0; i < vote->shared_count; i++) {
        const struct ampd_overflow_row *row = &vote->shared[i];
        if (row->parameter >= model->spec.parameters_count || !ampd_vote_shares(model, from, row->parameter) ||
            (i > 0 && row->parameter < row[-1].parameter))
            return false;
    }
    return rows_fit(model, vote->rows, vote->rows_count) && rows_fit(model, vote->shared, vote->shared_count) &&
           ampd_metrics_fit(&vote->metrics, model->spec.world_size);
}

static bool base_fits(const struct ampd_model *model, const struct ampd_load_base *base)
{
    const struct ampd_load_base first = ampd_load_base_first(&model->spec);
    struct amp_error error = {0};
    return ampd_load_base_same(base, &first) || ampd_load_base_check(&model->spec, base, &error) == 0;
}

bool ampd_message_fits(const struct ampd_model *model, const struct ampd_message *message)
{
    switch (message->type) {
    case AMPD_MESSAGE_OPEN:
        return open_fits(model, &message->u.open);
    case AMPD_MESSAGE_COMPLETE:
        return ampd_spec_takes_lr(message->u.complete.lr);
    case AMPD_MESSAGE_CLOSE:
        return isfinite(message->u.close.coefficient) &&
               list_fits(model, message->u.close.contributors, message->u.close.contributors_count);
    case AMPD_MESSAGE_VOTE:
        return vote_fits(model, &message->u.vote, message->from);
    case AMPD_MESSAGE_VERDICT:
        return verdict_fits(model, &message->u.verdict);
    case AMPD_MESSAGE_ACTS:
        return acts_fit(model, message->u.acts.acts, message->u.acts.count);
    case AMPD_MESSAGE_LOAD_WANT:
        return base_fits(model, &message->u.want.base);
    case AMPD_MESSAGE_RESTORE: /* without a checkpoint the model gets its record from this message */
        return message->u.restore.epoch != 0 || ampd_spec_takes_carry(&model->spec, &message->u.restore.carry);
    case AMPD_MESSAGE_EPOCH:
        return message->u.epoch.record.parent < message->u.epoch.record.epoch;
    case AMPD_MESSAGE_LOADED:
    case AMPD_MESSAGE_APPLIED:
        return range_fits(model, message->u.applied.range, message->u.applied.range_count);
    case AMPD_MESSAGE_ALIVE:
        return alive_fits(model, &message->u.alive);
    default:
        return true;
    }
}

bool ampd_fits_not(struct ampd_model *model, const struct ampd_message *message)
{
    bool fits = ampd_message_fits(model, message);
    if (!fits)
        ampd_bus_misfit(model, message, "");
    return !fits;
}
