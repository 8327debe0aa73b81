/*
 * Jobs over all blocks of a shard: apply, snapshots outside of it, and the casts after Load and restore. One kind is under
 * way at a time.
 */
#include "base/assert.h"
#include "server/core/model.h"

void ampd_shard_bulk(struct ampd_model *model, enum ampd_bulk kind, uint32_t work, struct ampd_plan *plan)
{
    struct ampd_shard *shard = &model->shard;
    AMP_ASSERT(shard->bulk == AMPD_BULK_NONE);
    shard->bulk = kind;
    shard->bulk_left = model->tensors.count;
    shard->bulk_serial++;
    for (uint64_t local = 0; local < model->tensors.count; local++) {
        struct ampd_job job = {
            .work = work, .block = model->tensors.first + local, .token = shard->bulk_serial, .plan = plan};
        for (uint32_t i = 0; i < plan->inputs_count; i++) {
            uint32_t rank = plan->inputs[i].rank;
            if (shard->slots[rank].states[local] == AMPD_BLOCK_PRESENT)
                job.present[rank / 64] |= (uint64_t)1 << (rank % 64);
        }
        ampd_shard_send_job(model, &job);
    }
    if (shard->bulk_left == 0)
        ampd_shard_bulk_done(model);
}

void ampd_shard_try_apply(struct ampd_model *model)
{
    struct ampd_shard *shard = &model->shard;
    if (shard->decided_state != AMPD_STEP_DECIDED || !shard->apply_waits || shard->bulk != AMPD_BULK_NONE)
        return;
    const struct ampd_step_row *row = &shard->verdict->row;
    if (row->cut && shard->snapshot != AMPD_SNAPSHOT_FREE)
        return; /* one part at a time: the next apply waits for the disk */
    uint64_t version = shard->version + 1;
    bool applied = row->verdict == AMPD_VERDICT_APPLIED;
    if (applied && !ampd_pull_revoke(model, (unsigned)(version % AMPD_COPIES), version))
        return;
    shard->apply_waits = false;
    uint32_t work = 0;
    if (row->cut) {
        ampd_snapshot_begin(model);
        work |= AMPD_JOB_SNAPSHOT;
    }
    if (applied) {
        shard->apply_plan->copy = (unsigned)(version % AMPD_COPIES);
        ampd_verdict_plan(model, shard->verdict, shard->apply_plan);
        ampd_shard_bulk(model, AMPD_BULK_APPLY, work | AMPD_JOB_APPLY | AMPD_JOB_ABSENT, shard->apply_plan);
    } else {
        struct ampd_plan *plan = ampd_need(ampd_plan_new(&model->tensors, 0));
        ampd_shard_bulk(model, AMPD_BULK_SNAPSHOT, work, plan);
        ampd_plan_unref(plan);
    }
}

/* What the casts of this shard's masters showed, by parameter. */
static void gather_range(struct ampd_model *model)
{
    struct ampd_shard *shard = &model->shard;
    const struct ampd_tensors *tensors = &model->tensors;
    const struct ampd_layout *layout = model->layout;
    uint64_t base = ampd_tensors_segment_base(tensors);
    uint64_t end = layout->block_segments[tensors->first + tensors->count];
    struct ampd_applied *applied = &shard->applied;
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
    struct ampd_shard *shard = &model->shard;
    gather_range(model);
    shard->version++;
    AMP_ASSERT(shard->version == shard->verdict->row.version);
    shard->copy_valid[shard->version % AMPD_COPIES] = true;
    shard->copy_version[shard->version % AMPD_COPIES] = shard->version;
    ampd_shard_applied(model);
    if (shard->verdict->row.cut)
        ampd_snapshot_filled(model);
    ampd_push_check_ends(model);
    ampd_pull_retry(model);
    ampd_shard_try_vote(model);
}

void ampd_shard_bulk_done(struct ampd_model *model)
{
    struct ampd_shard *shard = &model->shard;
    enum ampd_bulk kind = shard->bulk;
    shard->bulk = AMPD_BULK_NONE;
    switch (kind) {
    case AMPD_BULK_APPLY:
        apply_done(model);
        break;
    case AMPD_BULK_SNAPSHOT:
        if (shard->decided_state == AMPD_STEP_DECIDED)
            ampd_shard_applied(model);
        ampd_snapshot_filled(model);
        ampd_push_check_ends(model);
        ampd_shard_try_vote(model);
        break;
    case AMPD_BULK_LOAD:
        gather_range(model);
        ampd_load_cast_done(model);
        break;
    case AMPD_BULK_RESTORE:
        gather_range(model);
        ampd_memory_cast_done(model);
        break;
    case AMPD_BULK_VOID:
        ampd_snapshot_drop(model);
        if (shard->memory == AMPD_MEMORY_LOADING) { /* the load that it belonged to is over */
            shard->memory = AMPD_MEMORY_EMPTY;
            ampd_load_next(model);
        }
        break;
    default:
        break;
    }
}

static void bulk_job_done(struct ampd_model *model, const struct ampd_job *job, uint64_t local)
{
    struct ampd_shard *shard = &model->shard;
    if (job->token != shard->bulk_serial || shard->bulk == AMPD_BULK_NONE)
        return;
    if (shard->bulk == AMPD_BULK_APPLY) {
        ampd_shard_consume(model, local);
        shard->published[local] = 1;
        ampd_pull_published(model, job->plan->copy, local);
    }
    if (--shard->bulk_left == 0)
        ampd_shard_bulk_done(model);
}

void ampd_shard_job_done(struct ampd_model *model, const struct ampd_job *job)
{
    struct ampd_shard *shard = &model->shard;
    uint64_t local = job->block - model->tensors.first;
    AMP_ASSERT(shard->busy[local] > 0 && shard->jobs_out > 0);
    shard->busy[local]--;
    shard->jobs_out--;
    struct ampd_plan *plan = job->plan;
    if ((job->work & AMPD_JOB_VOTE) != 0)
        ampd_shard_vote_done(model, job, local);
    else
        bulk_job_done(model, job, local);
    ampd_plan_unref(plan);
    if (shard->busy[local] == 0) {
        ampd_shard_try_block(model, local);
        ampd_push_unblock(model, local);
    }
    ampd_shard_try_vote(model);
    ampd_memory_try_restore(model);
}
