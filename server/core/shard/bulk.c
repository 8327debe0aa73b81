/*
 * Jobs over all blocks of a shard: apply, and the casts after Load and restore. One kind is under way at a time.
 *
 * A block that a checkpoint has yet to write is copied to a buffer by the job that applies it; where no buffer is free,
 * its job is put off until the writer has the block (checkpoint_part.c). The blocks around it go on.
 */
#include "server/core/shard/bulk.h"

#include "base/assert.h"
#include "server/core/base/local.h"
#include "server/core/base/model.h"
#include "server/core/base/process.h"
#include "server/core/model/tensors.h"
#include "server/core/shard/checkpoint_part.h"
#include "server/core/shard/journal.h"
#include "server/core/shard/load.h"
#include "server/core/shard/memory.h"
#include "server/core/shard/pull.h"
#include "server/core/shard/push.h"
#include "server/core/shard/shard.h"
#include "server/core/wire/verdict_rows.h"

#include <string.h>

/* Gives the job of one block out. False: the block waits for the checkpoint's writer. */
static bool send_block(struct ampd_model *model, uint64_t local, uint32_t work, struct ampd_plan *plan)
{
    struct ampd_shard *shard = model->shard;
    struct ampd_job job = {
        .work = work, .block = model->tensors.first + local, .token = shard->jobs.bulk_serial, .plan = plan};
    AMP_ASSERT(local < model->tensors.count);
    if ((work & AMPD_JOB_APPLY) != 0 && !ampd_part_may_overwrite(model, local, &job))
        return false;
    for (uint32_t i = 0; i < plan->inputs_count; i++) {
        uint32_t rank = plan->inputs[i].rank;
        if (shard->slots[rank].states[local] == AMPD_BLOCK_PRESENT)
            job.present[rank / 64] |= (uint64_t)1 << (rank % 64);
    }
    ampd_shard_send_job(model, &job);
    return true;
}

void ampd_shard_watch_blocked(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    bool stands = shard->apply.blocked_count > 0 && shard->apply.blocked_count == shard->jobs.bulk_left;
    stands = stands || (shard->apply.waits && shard->next_part.waits && shard->jobs.bulk == AMPD_BULK_NONE);
    uint64_t now = model->core->now_ms;
    if (shard->apply.blocked_from_ms != 0)
        shard->part.blocked_ms += now - shard->apply.blocked_from_ms;
    shard->apply.blocked_from_ms = stands ? now : 0;
}

void ampd_shard_bulk(struct ampd_model *model, enum ampd_bulk kind, uint32_t work, struct ampd_plan *plan)
{
    struct ampd_shard *shard = model->shard;
    AMP_ASSERT(shard->jobs.bulk == AMPD_BULK_NONE && shard->apply.blocked_count == 0);
    AMP_ASSERT(kind == AMPD_BULK_APPLY || !ampd_part_reads(shard) || (work & AMPD_JOB_RESET) == 0);
    shard->jobs.bulk = kind;
    shard->jobs.bulk_left = model->tensors.count;
    shard->jobs.bulk_serial++;
    shard->apply.blocked_next = 0;
    for (uint64_t local = 0; local < model->tensors.count; local++) {
        if (send_block(model, local, work, plan))
            continue;
        shard->apply.blocked[local] = 1;
        shard->apply.blocked_count++;
    }
    ampd_shard_watch_blocked(model);
    if (shard->jobs.bulk_left == 0)
        ampd_shard_bulk_done(model);
}

/* g is formed from the slots, without what is absent; after a restart it is the journal's. */
static uint32_t apply_work(const struct ampd_shard *shard)
{
    return AMPD_JOB_APPLY | (shard->apply.plan->given ? AMPD_JOB_GIVEN : AMPD_JOB_ABSENT);
}

void ampd_shard_try_blocked(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    if (shard->apply.blocked_count == 0)
        return;
    AMP_ASSERT(shard->jobs.bulk == AMPD_BULK_APPLY);
    for (uint64_t local = shard->apply.blocked_next; local < model->tensors.count && shard->apply.blocked_count > 0;
         local++) {
        if (shard->apply.blocked[local] == 0)
            continue;
        if (!send_block(model, local, apply_work(shard), shard->apply.plan))
            break; /* the writer goes upwards, so the blocks above wait, too */
        shard->apply.blocked[local] = 0;
        shard->apply.blocked_count--;
        shard->apply.blocked_next = local + 1;
    }
    ampd_shard_watch_blocked(model);
}

void ampd_shard_forget_bulk(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    if (shard->jobs.bulk == AMPD_BULK_NONE)
        return;
    shard->jobs.bulk = AMPD_BULK_VOID;
    memset(shard->apply.blocked, 0, model->tensors.count);
    shard->jobs.bulk_left -= shard->apply.blocked_count;
    shard->apply.blocked_count = 0;
    ampd_shard_watch_blocked(model);
    if (shard->jobs.bulk_left == 0)
        ampd_shard_bulk_done(model);
}

void ampd_shard_try_apply(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    if (shard->decided.state != AMPD_DECIDED_APPLYING || !shard->apply.waits || shard->jobs.bulk != AMPD_BULK_NONE)
        return;
    ampd_shard_watch_blocked(model);
    if (shard->next_part.waits)
        return; /* a second checkpoint waits: the masters must stay as they are until the first is on disk */
    const struct ampd_step_row *row = &shard->decided.verdict->row;
    uint64_t version = shard->version + 1;
    bool applied = row->verdict == AMPD_VERDICT_APPLIED;
    if (applied && !ampd_pull_revoke(model, (unsigned)(version % AMPD_COPIES), version))
        return;
    shard->apply.waits = false;
    if (applied) {
        /* Who had the version before as a stream will want this one; or was granted it while the apply waited. */
        bool streams = shard->apply.streamed == version - 1 || shard->apply.streamed == version;
        ampd_plan_copy(shard->apply.plan, (unsigned)(version % AMPD_COPIES), streams);
        ampd_verdict_plan(model, row, shard->apply.plan);
        ampd_shard_bulk(model, AMPD_BULK_APPLY, apply_work(shard), shard->apply.plan);
        return;
    }
    AMP_ASSERT(row->cut); /* skipped: else there was nothing to wait for */
    ampd_decided_applied(model);
    ampd_part_request(model);
    ampd_push_check_ends(model);
    ampd_shard_try_vote(model);
}

/* Gathers the values beyond the cast's range that the casts of this shard's masters have found, by parameter. */
static void gather_range(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    const struct ampd_tensors *tensors = &model->tensors;
    const struct ampd_layout *layout = model->layout;
    uint64_t base = ampd_tensors_segment_base(tensors);
    uint64_t end = layout->block_segments[tensors->first + tensors->count];
    struct ampd_applied *applied = &shard->apply.warnings;
    *applied = (struct ampd_applied){0};
    for (uint64_t s = base; s < end; s++) {
        uint64_t found = tensors->stats[s - base].cast_overflows;
        if (found == 0)
            continue;
        applied->range_total += found;
        uint32_t parameter = layout->segments[s].parameter;
        uint32_t last = applied->range_count;
        if (last > 0 && applied->range[last - 1].parameter == parameter)
            applied->range[last - 1].count += found;
        else if (last < AMPD_OVERFLOW_ROWS_MAX)
            applied->range[applied->range_count++] = (struct ampd_range_warning){parameter, found};
    }
}

static void apply_done(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    gather_range(model);
    shard->version++;
    AMP_ASSERT(shard->version == shard->decided.verdict->row.version);
    shard->apply.copy_valid[shard->version % AMPD_COPIES] = true;
    ampd_decided_applied(model);
    if (shard->decided.verdict->row.cut)
        ampd_part_request(model);
    ampd_push_check_ends(model);
    ampd_pull_retry(model);
    ampd_shard_try_vote(model);
}

void ampd_shard_bulk_done(struct ampd_model *model)
{
    struct ampd_shard *shard = model->shard;
    enum ampd_bulk kind = shard->jobs.bulk;
    shard->jobs.bulk = AMPD_BULK_NONE;
    switch (kind) {
    case AMPD_BULK_APPLY:
        apply_done(model);
        break;
    case AMPD_BULK_LOAD:
        gather_range(model);
        ampd_load_cast_done(model);
        break;
    case AMPD_BULK_RESTORE:
        gather_range(model);
        ampd_memory_cast_done(model);
        break;
    case AMPD_BULK_REPLAY:
        gather_range(model);
        ampd_shard_journal_applied(model);
        break;
    default:
        break;
    }
}

static void bulk_job_done(struct ampd_model *model, const struct ampd_job *job, uint64_t local)
{
    struct ampd_shard *shard = model->shard;
    AMP_ASSERT(local < model->tensors.count);
    if (job->token != shard->jobs.bulk_serial || shard->jobs.bulk == AMPD_BULK_NONE)
        return;
    if (shard->jobs.bulk == AMPD_BULK_APPLY) {
        ampd_decided_consume(model, local);
        shard->apply.published[local] = 1;
        ampd_pull_published(model, job->plan->copy, local);
    }
    shard->jobs.bulk_left--;
    ampd_shard_watch_blocked(model);
    if (shard->jobs.bulk_left == 0)
        ampd_shard_bulk_done(model);
}

void ampd_shard_job_done(struct ampd_model *model, const struct ampd_job *job)
{
    struct ampd_shard *shard = model->shard;
    uint64_t local = job->block - model->tensors.first;
    AMP_ASSERT(shard->jobs.busy[local] > 0 && shard->jobs.out > 0);
    shard->jobs.busy[local]--;
    shard->jobs.out--;
    struct ampd_plan *plan = job->plan;
    if ((job->work & AMPD_JOB_SAVE) != 0)
        ampd_part_saved(model, local);
    if ((job->work & AMPD_JOB_VOTE) != 0)
        ampd_shard_vote_done(model, job, local);
    else
        bulk_job_done(model, job, local);
    ampd_plan_unref(plan);
    if (shard->jobs.busy[local] == 0) {
        ampd_shard_try_block(model, local);
        ampd_push_unblock(model, local);
    }
    if (shard->jobs.out == 0)
        ampd_push_retry(model); /* a push of another dtype may have waited for these reads */
    ampd_shard_try_vote(model);
    ampd_memory_try_restore(model);
    ampd_local_delete_try(model);
}
