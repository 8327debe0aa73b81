/* How the coordinator makes a model (CreateModel), and decides which load may write its first values. */
#include "server/core/coordinator/coord_load.h"

#include "base/assert.h"
#include "server/core/base/calls.h"
#include "server/core/base/limits.h"
#include "server/core/base/local.h"
#include "server/core/base/model.h"
#include "server/core/base/out.h"
#include "server/core/base/process.h"
#include "server/core/coordinator/checkpoints.h"
#include "server/core/coordinator/coord.h"
#include "server/core/coordinator/epochs.h"
#include "server/core/coordinator/sync.h"
#include "server/core/model/spec.h"
#include "server/core/wire/bus.h"

#include <stdio.h>
#include <string.h>

/* ---- CreateModel ---- */

static void hold_create(struct ampd_model *model, uint64_t id, bool existed)
{
    struct ampd_call *call = ampd_call_begin(model->core, id, AMPD_CALL_CREATE, model);
    if (call == NULL)
        ampd_call_fail(model->core, id, NULL, AMP_EEXHAUSTED, "TOO_MANY_CALLS", "too many calls wait on this server");
    else
        call->already_loaded = existed;
}

static void answer_create(struct ampd_model *model, uint64_t id, bool existed)
{
    struct ampd_reply *reply = ampd_call_reply(model->core, id, AMPD_REPLY_CREATE);
    reply->u.create.model = model->index;
    reply->u.create.existed = existed;
    reply->u.create.epoch = model->coord->epoch;
}

/* Whether the owner may have one more model, of this specification. AMP_EEXHAUSTED with a text. */
static int check_quota(const struct ampd_core *core, const struct ampd_event_create *create,
                       const struct ampd_model_spec *spec, struct amp_error *error)
{
    const struct ampd_quota *quota = &create->quota;
    uint64_t models = 0, used = 0, needed = 0;
    if (create->owner == NULL || create->owner[0] == 0)
        return 0;
    for (uint32_t i = 0; i < core->models_count; i++) {
        const struct ampd_model *model = core->models[i];
        if (model->gone || strncmp(model->owner, create->owner, sizeof model->owner - 1) != 0)
            continue;
        models++;
        used += model->memory_bytes;
    }
    if (quota->models != 0 && models >= quota->models)
        return amp_error_set(error, AMP_EEXHAUSTED, "QUOTA_MODELS",
                             "the quota of the %s is %llu models, and it has %llu: let an operator delete one of them, "
                             "or raise models= in the token file",
                             create->owner, (unsigned long long)quota->models, (unsigned long long)models);
    if (quota->memory_bytes == 0)
        return 0;
    if (ampd_model_most_bytes(core, spec, &needed) != 0)
        return amp_error_set(error, AMP_EEXHAUSTED, "NO_MEMORY", "no memory for the model %s on this server",
                             spec->name);
    if (used <= quota->memory_bytes && needed <= quota->memory_bytes - used)
        return 0;
    return amp_error_set(error, AMP_EEXHAUSTED, "QUOTA_MEMORY",
                         "the quota of the %s is %llu bytes of memory, of which its models may take %llu, and %s may "
                         "need %llu: let an operator %sraise memory= in the token file",
                         create->owner, (unsigned long long)quota->memory_bytes, (unsigned long long)used, spec->name,
                         (unsigned long long)needed, models > 0 ? "delete one of them, or " : "");
}

static void create_new(struct ampd_core *core, uint64_t id, const struct ampd_event_create *create,
                       const struct ampd_model_spec *spec)
{
    struct ampd_model *model;
    struct amp_error error = {0};
    if (core->sync.unlearned) { /* the name may be that of a model which another shard holds */
        ampd_call_fail(core, id, NULL, AMP_EEXHAUSTED, "NO_MEMORY",
                       "shard 0 has no room for a model that another shard holds, as its log says: start it with a "
                       "higher --memory-max, then create this one");
        return;
    }
    if (check_quota(core, create, spec, &error) != 0 || ampd_model_new(core, spec, &model, &error) != 0) {
        ampd_call_fail_with(core, id, NULL, &error);
        return;
    }
    if (create->owner != NULL)
        (void)snprintf(model->owner, sizeof model->owner, "%s", create->owner);
    model->coord->begins.carry = ampd_local_carry(model);
    hold_create(model, id, false);
    ampd_epochs_first(model);
}

/*
 * True for a model that is created for the first time, and for one that a start has found on some of the shards alone.
 */
bool ampd_coord_creates(const struct ampd_model *model)
{
    const struct ampd_coord *coord = model->coord;
    bool again = coord->state == AMPD_COORD_RESTORING || coord->state == AMPD_COORD_STORING;
    return coord->state == AMPD_COORD_CREATING || (again && !coord->checkpoint.exists);
}

/* A model that is being created, perhaps without success: the shards are asked again. */
static void create_again(struct ampd_model *model, uint64_t id)
{
    hold_create(model, id, true);
    for (uint32_t k = 1; k < AMPD_COUNT(model->core); k++)
        ampd_coord_resend(model, k);
}

void ampd_coord_create(struct ampd_core *core, uint64_t id, const struct ampd_event_create *create)
{
    if (core->config.shard != 0) {
        (void)ampd_core_coordinated(core, id, "");
        return;
    }
    if (core->sync.running) {
        ampd_call_fail(core, id, NULL, AMP_EUNAVAILABLE, "RECOVERING",
                       "not all %u shards have reported what they hold; try again in a moment", AMPD_COUNT(core));
        return;
    }
    struct ampd_model_spec spec;
    struct amp_error error = {0};
    if (ampd_spec_copy(&spec, create->spec) != 0) {
        ampd_call_fail(core, id, NULL, AMP_EEXHAUSTED, "NO_MEMORY", "no memory for the specification; try again");
        return;
    }
    int rc = ampd_spec_check(&spec, &error);
    struct ampd_model *model = rc == 0 ? ampd_core_model_named(core, spec.name) : NULL;
    if (model != NULL)
        rc = ampd_spec_compare(&model->spec, &spec, &error);
    if (rc != 0)
        ampd_call_fail_with(core, id, NULL, &error);
    else if (model == NULL)
        create_new(core, id, create, &spec);
    else if (model->coord->state == AMPD_COORD_DELETING)
        ampd_call_fail(core, id, NULL, AMP_EUNAVAILABLE, "RECOVERING",
                       "the last model called %s is still being deleted; try again in a moment", model->spec.name);
    else if (ampd_coord_creates(model))
        create_again(model, id);
    else
        answer_create(model, id, true);
    ampd_spec_clear(&spec);
}

void ampd_coord_created(struct ampd_model *model)
{
    AMP_LIST_EACH(it, next, &model->creates)
    {
        struct ampd_call *call = AMP_CONTAINER(it, struct ampd_call, node);
        answer_create(model, call->id, call->already_loaded);
    }
}

/* A shard that has not answered, preferably one that is away. AMPD_NO_RANK: all have answered. */
static uint32_t missing_shard(const struct ampd_model *model)
{
    const struct ampd_core *core = model->core;
    uint64_t answered = model->coord->state == AMPD_COORD_SYNCING ? core->sync.done : model->coord->answered;
    uint32_t missing = AMPD_NO_RANK;
    for (uint32_t k = AMPD_COUNT(core); k-- > 0;) {
        bool away = k != 0 && !core->peers[k].up;
        if ((answered & AMPD_BIT(k)) == 0 && (missing == AMPD_NO_RANK || away))
            missing = k;
    }
    return missing;
}

/*
 * A creation waits for shards, not for workers. It goes on when its caller has gone: a client that asks again waits for
 * the same creation.
 */
void ampd_coord_sweep(struct ampd_model *model)
{
    const struct ampd_core *core = model->core;
    const char *name = model->spec.name;
    uint32_t shard = missing_shard(model);
    AMP_LIST_EACH(it, next, &model->creates)
    {
        struct ampd_call *call = AMP_CONTAINER(it, struct ampd_call, node);
        if (core->now_ms - call->begun_ms < core->config.lease_ms)
            continue;
        if (model->coord->begins.token != 0)
            ampd_call_end(call, AMP_EUNAVAILABLE, "WAITED_TOO_LONG",
                          "%s waits for the number of its first epoch, which is kept in etcd: see that etcd is there, "
                          "then ask again",
                          name);
        else if (shard == AMPD_NO_RANK)
            ampd_call_end(call, AMP_EUNAVAILABLE, "WAITED_TOO_LONG",
                          "%s is not made yet: the log of shard 0 says why; ask again", name);
        else
            ampd_call_end(call, AMP_EUNAVAILABLE, "WAITED_TOO_LONG",
                          "shard %u %s: %s is made when it answers; ask again then, or delete the model", shard,
                          shard == 0 || core->peers[shard].up ? "has not answered yet" : "is away", name);
    }
}

/* ---- Load ---- */

void ampd_coord_loaded(struct ampd_model *model, const struct ampd_message *message)
{
    struct ampd_coord *coord = model->coord;
    bool counts = coord->state == AMPD_COORD_CREATED && message->epoch == coord->epoch &&
                  (coord->load.done_bits & AMPD_BIT(message->from)) == 0;
    AMP_ASSERT(model->core->config.shard == 0 && message->from < AMPD_COUNT(model->core));
    if (!counts)
        return;
    coord->load.done_bits |= AMPD_BIT(message->from);
    coord->decision.warnings.range_total += message->u.applied.range_total;
    if (coord->load.done_bits != AMPD_ALL_SHARDS(model->core))
        return;
    if (coord->decision.warnings.range_total > 0)
        ampd_out_log(model->core, AMP_LOG_WARN, model, "%llu first values are beyond the range of %s",
                     (unsigned long long)coord->decision.warnings.range_total, amp_dtype_name(model->spec.cast));
    coord->load.done_bits = 0;
    coord->load.loader = 0;
    coord->load.next = 0;
    ampd_coord_set(model, AMPD_COORD_LOADED);
    ampd_checkpoints_send(model);
}

struct ampd_message *ampd_coord_grant(struct ampd_model *model, uint32_t shard)
{
    struct ampd_message *message = ampd_bus_message(model, AMPD_MESSAGE_LOAD_GRANT, shard);
    AMP_ASSERT(shard < AMPD_COUNT(model->core));
    message->u.load = model->coord->load.loader;
    return message;
}

/* Whether a load goes on from the step that the epoch began from. */
static bool has_base(const struct ampd_model *model, const struct ampd_load_base *base)
{
    const struct ampd_coord *coord = model->coord;
    const struct ampd_load_base epoch = {coord->base_step, coord->begins.version, coord->begins.carry};
    return ampd_load_base_same(&epoch, base);
}

/* A load that needs an epoch of its own has the time of a lease to come back in that epoch before any other may. */
static bool comes_first(const struct ampd_model *model, uint64_t loader)
{
    const struct ampd_coord_load *load = &model->coord->load;
    return load->next == 0 || load->next == loader || model->core->now_ms >= load->next_until_ms;
}

void ampd_coord_want(struct ampd_model *model, const struct ampd_message *message)
{
    struct ampd_coord *coord = model->coord;
    const struct ampd_load_want *want = &message->u.want;
    AMP_ASSERT(model->core->config.shard == 0 && message->from < AMPD_COUNT(model->core));
    if (coord->state != AMPD_COORD_CREATED || message->epoch != coord->epoch || want->loader == 0)
        return;
    bool other = coord->load.loader != 0 && coord->load.loader != want->loader;
    if (other && model->core->now_ms >= coord->load.until_ms)
        ampd_sync_begin_anew(model, &want->base, "LOAD_ENDED");
    if (other || !comes_first(model, want->loader))
        return;                                                     /* the loader asks again */
    if (coord->load.loader == 0 && !has_base(model, &want->base)) { /* else its streams differ: the shards see it */
        coord->load.next = want->loader;
        coord->load.next_until_ms = model->core->now_ms + model->core->config.lease_ms;
        ampd_sync_begin_anew(model, &want->base, "IMPORT");
        return;
    }
    coord->load.loader = want->loader;
    coord->load.until_ms = model->core->now_ms + model->core->config.lease_ms;
    ampd_bus_send_all_take(model->core, ampd_coord_grant(model, 0));
}

void ampd_coord_gone(struct ampd_model *model, const struct ampd_message *message)
{
    const struct ampd_coord *coord = model->coord;
    AMP_ASSERT(model->core->config.shard == 0 && message->from < AMPD_COUNT(model->core));
    if (coord->state == AMPD_COORD_CREATED && message->epoch == coord->epoch)
        ampd_sync_begin_anew(model, NULL, "LOAD_BROKEN");
}
