/*
 * Pull (docs/step-protocol.md section 3): the cast copy of one version, sent block by block as apply publishes it.
 *
 * Two copies exist, of the even and of the odd versions. Before apply writes one of them, pulls of the version that was
 * in it are revoked, and apply waits until the I/O loops have let go of it. Those are this process's own loops, which
 * let go within one turn, however slow their client is. So no stream ever sends a block of another version than its
 * own.
 */
#include "server/core/shard/pull.h"

#include "base/assert.h"
#include "server/core/base/calls.h"
#include "server/core/base/model.h"
#include "server/core/base/out.h"
#include "server/core/base/process.h"
#include "server/core/base/ranks.h"
#include "server/core/model/tensors.h"
#include "server/core/shard/push.h"
#include "server/core/shard/push_answer.h"
#include "server/core/shard/shard.h"

#include <stdlib.h>

/* The version that the open step computes on: the one being written if a step is being applied. */
static uint64_t newest_version(const struct ampd_shard *shard)
{
    bool applying =
        shard->decided.state == AMPD_DECIDED_APPLYING && shard->decided.verdict->row.verdict == AMPD_VERDICT_APPLIED;
    return applying ? shard->version + 1 : shard->version;
}

static void list_blocks(struct ampd_model *model, const struct ampd_call *call, uint64_t first, uint64_t count)
{
    struct ampd_output *output = ampd_out(model->core, AMPD_OUT_PULL_BLOCKS, call->id);
    output->u.blocks = (struct ampd_blocks){.first = model->tensors.first + first, .count = count};
}

/* Lists the blocks that are there already: all of a complete version, else those that apply has published. */
static void list_published(struct ampd_model *model, const struct ampd_call *call)
{
    const struct ampd_shard *shard = model->shard;
    uint64_t count = model->tensors.count;
    if (call->version == shard->version || call->version + 1 == shard->version) {
        if (count > 0)
            list_blocks(model, call, 0, count);
        return;
    }
    for (uint64_t local = 0; local < count; local++) {
        if (shard->apply.published[local] != 0)
            list_blocks(model, call, local, 1);
    }
}

/*
 * Names the step that computes on the version, with its scale. The version before the newest is that of the last
 * decided step, if that was applied. In any other case the step is not known here: it stays 0, with a scale id that no
 * push can have.
 */
static void name_step(const struct ampd_model *model, struct ampd_pull_grant *grant)
{
    const struct ampd_shard *shard = model->shard;
    const struct ampd_step_row *row = shard->decided.verdict == NULL ? NULL : &shard->decided.verdict->row;
    bool open = shard->step.state != AMPD_STEP_NONE;
    if (grant->version == newest_version(shard)) {
        grant->step = ampd_shard_next_step(model);
        grant->scale_id = open ? shard->step.open.scale_id : shard->carry.scaler.scale_id;
        grant->scale = open ? shard->step.open.scale : shard->carry.scaler.scale;
    } else if (row != NULL && row->verdict == AMPD_VERDICT_APPLIED && grant->version + 1 == row->version) {
        grant->step = row->step;
        grant->scale_id = row->scale_id;
        grant->scale = row->scale;
    }
}

static void grant(struct ampd_model *model, struct ampd_call *call, uint64_t version)
{
    const struct ampd_shard *shard = model->shard;
    const struct ampd_tensors *tensors = &model->tensors;
    call->version = version;
    call->copy = (unsigned)(version % AMPD_COPIES);
    call->unchanged = call->pull.have_epoch == shard->epoch && call->pull.have_version == version;
    struct ampd_output *output = ampd_out(model->core, AMPD_OUT_PULL_GRANT, call->id);
    output->u.pull = (struct ampd_pull_grant){
        .model = model->index,
        .layout = model->layout,
        .epoch = shard->epoch,
        .version = version,
        .dtype = tensors->cast,
        .unchanged = call->unchanged,
        .first = tensors->first,
        .count = tensors->count,
        .memory = tensors->copies[call->copy],
        .stride = (size_t)(tensors->layout->block_elements * amp_dtype_size(tensors->cast)),
        .crcs = tensors->has_crcs[call->copy] ? tensors->crcs[call->copy] : NULL,
    };
    /*
     * A version that is granted before its apply has begun gets the place where the checksums of an older version lie.
     * The apply writes this version's there, since it sees in `streamed` that they are wanted.
     */
    if (!call->unchanged && !call->pull.in_memory && version == newest_version(shard))
        model->shard->apply.streamed = version;
    name_step(model, &output->u.pull);
    ampd_call_set(call, AMPD_CALL_STREAMING);
    if (!call->unchanged)
        list_published(model, call);
}

static void try_version(struct ampd_model *model, struct ampd_call *call, uint64_t version)
{
    const struct ampd_shard *shard = model->shard;
    unsigned copy = (unsigned)(version % AMPD_COPIES);
    bool writing = version == newest_version(shard) && version != shard->version;
    bool held = shard->apply.copy_valid[copy] && (version == shard->version || version + 1 == shard->version);
    if (writing || held) {
        grant(model, call, version);
        return;
    }
    if (version > newest_version(shard))
        ampd_call_end(call, AMP_ESTATE, "VERSION_AHEAD", "version %llu does not exist yet; the newest is %llu",
                      (unsigned long long)version, (unsigned long long)newest_version(shard));
    else
        ampd_call_end(call, AMP_EABORTED, "STALE_VERSION",
                      "version %llu is no longer held; the newest is %llu: pull that", (unsigned long long)version,
                      (unsigned long long)newest_version(shard));
}

static void try_step(struct ampd_model *model, struct ampd_call *call)
{
    const struct ampd_shard *shard = model->shard;
    uint64_t next = ampd_shard_next_step(model);
    uint64_t wanted = call->pull.number;
    bool open = shard->step.state != AMPD_STEP_NONE;
    if (wanted < next) {
        ampd_call_end(call, AMP_EABORTED, "STALE_STEP", "step %llu is decided; the model is at step %llu",
                      (unsigned long long)wanted, (unsigned long long)next);
        return;
    }
    if (shard->announced.state == AMPD_MODEL_DONE) {
        ampd_call_end(call, AMP_ESTATE, "MODEL_DONE", "%s is done after step %llu: pull the latest version",
                      model->spec.name, (unsigned long long)shard->decided.step);
        return;
    }
    if (shard->announced.frozen) {
        ampd_call_frozen(call);
        return;
    }
    if (wanted > next + (open ? 1 : 0)) {
        ampd_call_end(call, AMP_ESTATE, "STEP_AHEAD", "step %llu is further ahead than the one after step %llu",
                      (unsigned long long)wanted, (unsigned long long)(open ? next : shard->decided.step));
        return;
    }
    if (open && wanted == next)
        grant(model, call, newest_version(shard));
    else if (shard->announced.state == AMPD_MODEL_STALLED)
        ampd_call_end(call, AMP_EUNAVAILABLE, "MODEL_STALLED", "%s waits for rank %u, which has been gone too long",
                      model->spec.name, shard->announced.missing_rank);
}

/* Grants or answers a pull, or leaves it held. */
static void try_pull(struct ampd_model *model, struct ampd_call *call)
{
    const struct ampd_shard *shard = model->shard;
    const struct ampd_event_pull *pull = &call->pull;
    struct amp_error error = {0};
    if (pull->has_worker && ampd_ranks_refuse(model, pull->rank, pull->incarnation, &error)) {
        ampd_call_end(call, error.code, error.reason, "%s", error.text);
        return;
    }
    if (pull->epoch != 0 && pull->epoch < shard->epoch) {
        ampd_call_end(call, AMP_EABORTED, "ROLLED_BACK", "epoch %llu is over; join again: the model is in epoch %llu",
                      (unsigned long long)pull->epoch, (unsigned long long)shard->epoch);
        return;
    }
    if (pull->epoch > shard->epoch) {
        ampd_call_end(call, AMP_ESTATE, "EPOCH_AHEAD", "epoch: %llu does not exist; the model is in epoch %llu",
                      (unsigned long long)pull->epoch, (unsigned long long)shard->epoch);
        return;
    }
    if (pull->by == AMPD_PULL_STEP) {
        try_step(model, call);
        return;
    }
    if (shard->memory != AMPD_MEMORY_READY) {
        ampd_call_end(call, AMP_ESTATE, "MODEL_NOT_LOADED", "%s has no values yet; load it first", model->spec.name);
        return;
    }
    try_version(model, call, pull->by == AMPD_PULL_LATEST ? newest_version(shard) : pull->number);
}

void ampd_pull_begin(struct ampd_core *core, uint64_t id, const struct ampd_event_pull *pull)
{
    struct ampd_model *model = ampd_core_usable(core, id, pull->model);
    if (model == NULL)
        return;
    if (pull->has_worker && pull->rank >= model->spec.world_size) {
        ampd_call_fail(core, id, model, AMP_EINVAL, "RANK", "rank: %u is not below the world_size of %s, %u",
                       pull->rank, model->spec.name, model->spec.world_size);
        return;
    }
    bool is_worker = pull->has_worker && ampd_ranks_holds(model, pull->rank, pull->incarnation);
    bool has_place = is_worker || core->calls_count < AMPD_CALLS_WITHOUT_RANK_MAX;
    struct ampd_call *call = has_place ? ampd_call_begin(core, id, AMPD_CALL_PULL, model) : NULL;
    if (call == NULL) {
        ampd_call_fail(core, id, model, AMP_EEXHAUSTED, "TOO_MANY_CALLS", "too many calls wait on this server%s",
                       has_place ? "" : ", and its other places are kept for workers; pull again later");
        return;
    }
    call->pull = *pull;
    call->pull.model = model->spec.name;
    if (pull->has_worker)
        (void)ampd_ranks_renew(model, pull->rank, pull->incarnation);
    try_pull(model, call);
}

void ampd_pull_closed(const struct ampd_call *call)
{
    struct ampd_shard *shard = call->model->shard;
    const struct ampd_event_pull *pull = &call->pull;
    bool of_step = call->state == AMPD_CALL_STREAMING && pull->has_worker && pull->by == AMPD_PULL_STEP &&
                   shard->step.state != AMPD_STEP_NONE && pull->number == shard->step.open.step;
    const struct ampd_expected *expected = of_step ? ampd_shard_expected(call->model, pull->rank) : NULL;
    if (expected != NULL && ampd_incarnation_same(expected->incarnation, pull->incarnation) &&
        !shard->slots[pull->rank].has_header)
        shard->step.seen.pulled_us = call->model->core->utc_us;
}

void ampd_pull_retry(struct ampd_model *model)
{
    AMP_LIST_EACH(it, next, &model->pulls)
    {
        struct ampd_call *call = AMP_CONTAINER(it, struct ampd_call, node);
        if (call->state == AMPD_CALL_HELD)
            try_pull(model, call);
    }
}

void ampd_pull_published(struct ampd_model *model, unsigned copy, uint64_t local)
{
    AMP_LIST_EACH(it, next, &model->pulls)
    {
        struct ampd_call *call = AMP_CONTAINER(it, struct ampd_call, node);
        if (call->state == AMPD_CALL_STREAMING && call->copy == copy && !call->unchanged)
            list_blocks(model, call, local, 1);
    }
}

bool ampd_pull_revoke(struct ampd_model *model, unsigned copy, uint64_t version)
{
    bool free_now = true;
    AMP_LIST_EACH(it, next, &model->pulls)
    {
        struct ampd_call *call = AMP_CONTAINER(it, struct ampd_call, node);
        if (call->state == AMPD_CALL_HELD || call->copy != copy || call->version >= version)
            continue;
        free_now = false;
        ampd_call_end(call, AMP_EABORTED, "PULL_OUTRUN",
                      "version %llu was overtaken while it was read; pull the present step",
                      (unsigned long long)call->version);
    }
    return free_now;
}
