/*
 * The rows that say what was not finite: (parameter, rank) for each contribution with an Inf or NaN. SUM and RANGE rows
 * are given only for parameters whose contributions were all finite: with an Inf in a contribution the sum has one,
 * too, which says nothing new. If a parameter lies on several shards, none of them alone knows whether all were finite:
 * each votes with what it has found, and the coordinator puts the parts together.
 */
#include "server/core/wire/findings.h"

#include "server/core/base/model.h"
#include "server/core/base/process.h"
#include "server/core/model/layout.h"

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

void ampd_finding_init(struct ampd_finding *finding, uint32_t parameter, uint32_t world_size)
{
    finding->parameter = parameter;
    finding->count = world_size;
    for (uint32_t i = 0; i < world_size + 2; i++) {
        uint32_t rank = i < world_size ? i : i == world_size ? AMPD_RANK_RANGE : AMPD_RANK_SUM;
        finding->rows[i] = (struct ampd_overflow_row){.parameter = parameter, .rank = rank, .first_index = UINT64_MAX};
    }
}

void ampd_finding_add(struct ampd_finding *finding, const struct ampd_overflow_row *from)
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

uint32_t ampd_finding_rows(const struct ampd_finding *finding, struct ampd_overflow_row *rows)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < finding->count + 2; i++) {
        bool of_inputs = count > 0 && rows[0].rank < AMPD_RANK_RANGE;
        if (ampd_row_overflows(&finding->rows[i]) && (i < finding->count || !of_inputs))
            rows[count++] = finding->rows[i];
    }
    return count;
}
