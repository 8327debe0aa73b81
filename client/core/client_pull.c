/* Pulling: one version of the parameters, from every shard, into the handle's memory. */
#include "client/core/client_pull.h"

#include "client/core/client_memory.h"
#include "client/core/client_requests.h"
#include "client/core/client_retry.h"
#include "client/core/machine.h"
#include "client/core/membership.h"
#include "client/core/outbox.h"

#include <string.h>

/* The state of the handle after a pull has failed. */
static enum ampclient_state after_failure(const struct ampclient_core *core)
{
    return core->state == AMPCLIENT_STATE_FETCHING ? core->fetch_from : AMPCLIENT_STATE_READY;
}

static void pull_complete(struct ampclient_core *core);

static bool all_done(const struct ampclient_core *core)
{
    for (uint32_t k = 0; k < core->config.shards; k++)
        if (!core->pull.done[k])
            return false;
    return true;
}

static bool under_way(const struct ampclient_core *core)
{
    for (uint32_t k = 0; k < core->config.shards; k++)
        if (core->pull.calls[k] != 0 || core->pull.done[k])
            return true;
    return false;
}

/*
 * Whether values in the server's copies are used there, and not copied to the user's memory. If the model may go on
 * without this worker, the server may overwrite the copies after the verdict, while the user relies on the memory
 * given.
 */
static bool used_in_place(const struct ampclient_core *core)
{
    return !core->parameters_given || (core->config.stays_shared && core->may_pull_ahead);
}

static void ask(struct ampclient_core *core, bool in_memory)
{
    struct ampclient_pull *pull = &core->pull;
    bool latest = core->state == AMPCLIENT_STATE_FETCHING;
    pull->has_header = false;
    pull->blocks_here = 0;
    pull->blocks_wanted = 0;
    memset(pull->have, 0, core->flat.blocks);
    for (uint32_t k = 0; k < core->config.shards; k++) {
        struct ampclient_output *output =
            ampclient_core_out(core, AMPCLIENT_OUT_PULL, k, ampclient_core_wait_ms(core), &pull->calls[k]);
        uint64_t first, end;
        ampclient_core_layout_shard(&core->flat, k, core->config.shards, &first, &end);
        /* Units are gathered later: only the header matters. One block is asked for, since 0 blocks would mean all. */
        bool part = core->config.units;
        pull->blocks_wanted += part ? 0 : end - first;
        output->u.pull = (struct ampclient_out_pull){
            .by = latest ? AMPCLIENT_PULL_LATEST : AMPCLIENT_PULL_STEP,
            .epoch = latest ? 0 : core->epoch,
            .number = core->step,
            .have_epoch = core->held_epoch,
            .have_version = core->held_version,
            .first_block = part ? first : 0,
            .block_count = part && end > first ? 1 : 0,
            .in_memory = in_memory,
            .memory = in_memory && used_in_place(core) ? NULL : core->parameters, /* NULL with units, too */
            .stride = (size_t)core->flat.block_elements * amp_dtype_size(core->cast),
            .dtype = core->cast,
        };
    }
}

void ampclient_core_pull_start(struct ampclient_core *core)
{
    bool in_memory = core->in_memory && core->state != AMPCLIENT_STATE_FETCHING;
    if (under_way(core)) {
        if (all_done(core))
            pull_complete(core);
        return;
    }
    if (!in_memory && ampclient_core_make_parameters(core) != 0) {
        struct amp_error error;
        (void)amp_error_set(&error, AMP_ENOMEM, NULL, "no memory for the parameters");
        ampclient_core_finish(core, AMP_ENOMEM, &error, after_failure(core));
        return;
    }
    if (!in_memory && core->values != core->parameters) { /* the version that is held does not lie in `parameters` */
        core->held_epoch = 0;
        core->held_version = 0;
    }
    ask(core, in_memory);
}

void ampclient_core_pull_ahead(struct ampclient_core *core)
{
    bool may = core->in_memory && core->may_pull_ahead && used_in_place(core);
    if (may && ampclient_core_may_call(core) && !under_way(core))
        ask(core, true);
}

void ampclient_core_pull_cancel(struct ampclient_core *core)
{
    for (uint32_t k = 0; k < core->config.shards; k++) {
        ampclient_core_cancel(core, &core->pull.calls[k], true);
        core->pull.done[k] = false;
    }
}

/* Whether two shards speak of the same version; where it is pulled for a step, of the same step, too. */
static bool same_header(const struct ampclient_core *core, const struct ampclient_pull_header *a,
                        const struct ampclient_pull_header *b)
{
    bool step = a->step == b->step && a->scale_id == b->scale_id && memcmp(&a->scale, &b->scale, sizeof a->scale) == 0;
    return a->epoch == b->epoch && a->version == b->version && a->place == b->place &&
           (step || core->state == AMPCLIENT_STATE_FETCHING);
}

void ampclient_core_pull_header(struct ampclient_core *core, uint64_t call, const struct ampclient_pull_header *header)
{
    struct ampclient_pull *pull = &core->pull;
    if (ampclient_core_shard_of(core, core->pull.calls, call) < 0)
        return;
    if (pull->has_header && !same_header(core, &pull->header, header)) {
        struct ampclient_ended ended = {.code = AMP_EUNAVAILABLE, .text = "shards are at different steps"};
        ampclient_core_pull_cancel(core);
        if (core->state == AMPCLIENT_STATE_READY) /* the pull that step_begin makes reports what is wrong */
            return;
        /* The newest version is another one a moment later, if the model goes on without this worker. */
        if (core->state == AMPCLIENT_STATE_FETCHING && pull->resends++ < AMPCLIENT_BLOCK_RESENDS_MAX)
            return;
        (void)ampclient_core_failed(core, &ended); /* asked again after a pause */
        return;
    }
    pull->has_header = true;
    pull->header = *header;
    pull->unchanged = core->held_version == header->version && core->held_epoch == header->epoch && core->has_values &&
                      core->held_epoch != 0;
    if (!pull->unchanged && header->place == NULL) { /* the parameters in memory are about to be overwritten */
        core->held_epoch = 0;
        core->held_version = 0;
    }
}

void ampclient_core_pull_block(struct ampclient_core *core, uint64_t call, uint64_t block)
{
    struct ampclient_pull *pull = &core->pull;
    if (ampclient_core_shard_of(core, core->pull.calls, call) < 0 || block >= core->flat.blocks ||
        pull->have[block] != 0)
        return;
    pull->have[block] = 1;
    pull->blocks_here++;
}

/* Every shard has sent what it has. */
static void pull_complete(struct ampclient_core *core)
{
    struct ampclient_pull *pull = &core->pull;
    for (uint32_t k = 0; k < core->config.shards; k++)
        pull->done[k] = false;
    if (!pull->has_header || (!pull->unchanged && pull->blocks_here != pull->blocks_wanted)) {
        struct ampclient_ended ended = {.code = AMP_EUNAVAILABLE, .text = "a pull ended before all blocks came"};
        (void)ampclient_core_failed(core, &ended);
        return;
    }
    const struct ampclient_pull_header *header = &pull->header;
    core->held_epoch = header->epoch;
    core->held_version = header->version;
    core->has_values = true;
    if (header->place != NULL)
        core->values = header->place;
    else if (!pull->unchanged)
        core->values = core->parameters;
    ampclient_core_succeeded(core);
    pull->resends = 0;
    core->done.step.epoch = header->epoch;
    core->done.step.step = header->step;
    core->done.step.version = header->version;
    core->done.step.scale = header->scale;
    core->done.step.scale_id = header->scale_id;
    core->done.step.rolled_back = false;
    if (core->state == AMPCLIENT_STATE_FETCHING) {
        core->units.has_version = true;
        ampclient_core_finish(core, 0, NULL, core->fetch_from);
        return;
    }
    core->done.step.rolled_back = header->epoch != core->begun_epoch && header->step <= core->begun_step;
    core->done.step.restored = header->epoch != core->begun_epoch && header->step == core->restored_step + 1;
    if (header->epoch != core->begun_epoch || header->step > core->begun_step)
        core->begun_step = header->step;
    core->begun_epoch = header->epoch;
    core->step_epoch = header->epoch;
    core->scale_id = header->scale_id;
    ampclient_core_push_reset(core);
    ampclient_core_finish(core, 0, NULL, AMPCLIENT_STATE_COMPUTING);
}

/* Whether the model has moved on meanwhile; if so, the step it is at is pulled instead. */
static bool moved(struct ampclient_core *core, const struct ampclient_ended *ended)
{
    bool mine = ended->code == AMP_EABORTED && ended->epoch == core->epoch &&
                (strcmp(ended->reason, "STALE_STEP") == 0 || strcmp(ended->reason, "PULL_OUTRUN") == 0 ||
                 strcmp(ended->reason, "STALE_VERSION") == 0);
    if (mine && ended->step > core->step)
        core->step = ended->step;
    return mine;
}

static void pull_failed(struct ampclient_core *core, const struct ampclient_ended *ended)
{
    ampclient_core_pull_cancel(core);
    if (core->state == AMPCLIENT_STATE_PULLING && ended->code == AMP_ESTATE &&
        strcmp(ended->reason, "MODEL_DONE") == 0) {
        ampclient_core_finish(core, 1, NULL, AMPCLIENT_STATE_DONE);
        return;
    }
    if (moved(core, ended))
        return;
    if (core->state == AMPCLIENT_STATE_PULLING && ended->code == AMP_ESTATE &&
        strcmp(ended->reason, "MODEL_UNSTABLE") == 0) {
        struct amp_error error;
        (void)amp_error_set(&error, AMP_EUNSTABLE, ended->reason, "%s", ended->text);
        ampclient_core_finish(core, AMP_EUNSTABLE, &error, AMPCLIENT_STATE_READY);
        return;
    }
    if (ended->code == AMP_EDATALOSS && core->pull.resends < AMPCLIENT_BLOCK_RESENDS_MAX) {
        core->pull.resends++;
        return; /* asked for again at once */
    }
    if (ampclient_core_failed(core, ended))
        ampclient_core_finish(core, core->last_error.code, &core->last_error, after_failure(core));
}

bool ampclient_core_pull_ended(struct ampclient_core *core, uint64_t call, const struct ampclient_ended *ended)
{
    int k = ampclient_core_shard_of(core, core->pull.calls, call);
    if (k < 0)
        return false;
    bool ahead = core->state == AMPCLIENT_STATE_READY;
    core->pull.calls[k] = 0;
    if (ended->code != 0) {
        if (ahead)
            ampclient_core_pull_cancel(core);
        else
            pull_failed(core, ended);
        return true;
    }
    core->pull.done[k] = true;
    if (!ahead && all_done(core))
        pull_complete(core);
    return true;
}
