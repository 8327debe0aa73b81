/*
 * Checkpoints as the coordinator sees them (docs/step-protocol.md section 6): which steps become one, when one exists,
 * and which calls wait for it.
 *
 * A checkpoint exists when all shards hold their part, and the store of each shard knows the manifests of all parts.
 * For that all shards send PART_DONE, then PARTS goes to all, then all send PART_DONE once more, with `known`. Only
 * then is the checkpoint called durable, and only then may a shard drop older parts. So whichever shard has lost its
 * disk, and whichever shard's store it is filled from (server/io/cluster/refill.c), the newest checkpoint in that store
 * is one that all others still hold, and is not older than any that was called durable.
 */
#include "server/core/coordinator/checkpoints.h"

#include "base/assert.h"
#include "server/core/base/calls.h"
#include "server/core/base/limits.h"
#include "server/core/base/local.h"
#include "server/core/base/model.h"
#include "server/core/base/process.h"
#include "server/core/coordinator/coord.h"
#include "server/core/coordinator/rollback.h"
#include "server/core/coordinator/sync.h"
#include "server/core/wire/bus.h"

#include <string.h>

void ampd_checkpoints_expect(struct ampd_coord *coord, uint64_t step)
{
    AMP_ASSERT(coord->checkpoint.writing_count < AMPD_CHECKPOINTS_WRITING_MAX);
    memset(&coord->checkpoint.writing[coord->checkpoint.writing_count], 0, sizeof coord->checkpoint.writing[0]);
    coord->checkpoint.writing[coord->checkpoint.writing_count].step = step;
    coord->checkpoint.writing_count++;
}

bool ampd_checkpoints_under_way(const struct ampd_coord *coord, uint64_t step)
{
    for (uint32_t i = 0; i < coord->checkpoint.writing_count; i++) {
        if (coord->checkpoint.writing[i].step == step)
            return true;
    }
    return coord->checkpoint.parts_sent > step && (!coord->checkpoint.exists || coord->checkpoint.durable_step < step);
}

static void drop(struct ampd_coord *coord, uint32_t index)
{
    coord->checkpoint.writing_count--;
    memmove(&coord->checkpoint.writing[index], &coord->checkpoint.writing[index + 1],
            (coord->checkpoint.writing_count - index) * sizeof coord->checkpoint.writing[0]);
}

/*
 * Shards that have started again (`started`, as bits) hold what is in their catalogues, and go on from there in the
 * same epoch: parts that they were writing will never be complete. Only of the last decided step can a part still be
 * written.
 */
void ampd_checkpoints_lost(struct ampd_model *model, uint64_t started)
{
    struct ampd_coord *coord = model->coord;
    for (uint32_t i = coord->checkpoint.writing_count; i-- > 0;) {
        bool lost = false;
        for (uint32_t k = 0; k < AMPD_COUNT(model->core); k++)
            lost = lost || ((started & ~coord->checkpoint.writing[i].bits & AMPD_BIT(k)) != 0 &&
                            !ampd_sync_holds(coord, k, coord->epoch, coord->checkpoint.writing[i].step));
        if (lost && coord->checkpoint.writing[i].step != coord->decided)
            drop(coord, i);
    }
}

void ampd_checkpoints_send(struct ampd_model *model)
{
    AMP_ASSERT(model->core->config.shard == 0);
    ampd_checkpoints_expect(model->coord, model->coord->decided);
    struct ampd_message *message = ampd_bus_message(model, AMPD_MESSAGE_CUT, 0);
    message->u.restore.step = model->coord->decided;
    ampd_bus_send_all_take(model->core, message);
}

/* Answers the calls that wait for the checkpoint that is durable now, or for an earlier one. */
static void answer_checkpoints(struct ampd_model *model, uint64_t version)
{
    AMP_LIST_EACH(it, next, &model->checkpoints)
    {
        struct ampd_call *call = AMP_CONTAINER(it, struct ampd_call, node);
        if (call->step > model->coord->checkpoint.durable_step)
            continue;
        struct ampd_reply *reply = ampd_call_reply(model->core, call->id, AMPD_REPLY_CHECKPOINT);
        reply->u.checkpoint.epoch = model->coord->epoch;
        reply->u.checkpoint.step = model->coord->checkpoint.durable_step;
        reply->u.checkpoint.version = version;
    }
}

/* ---- what the parts are ---- */

/* With one shard there is no PARTS: its own catalogue says it all. */
static bool has_parts(const struct ampd_model *model)
{
    return AMPD_COUNT(model->core) > 1;
}

void ampd_checkpoints_send_parts(struct ampd_model *model, uint64_t epoch, uint64_t step,
                                 const uint8_t (*manifests)[16])
{
    if (!has_parts(model))
        return;
    struct ampd_parts *parts = &model->coord->checkpoint.parts;
    *parts = (struct ampd_parts){.epoch = epoch, .step = step, .count = AMPD_COUNT(model->core)};
    memcpy(parts->manifests, manifests, parts->count * sizeof manifests[0]);
    struct ampd_message *message = ampd_bus_message(model, AMPD_MESSAGE_PARTS, 0);
    message->u.parts = *parts;
    ampd_bus_send_all_take(model->core, message);
}

void ampd_checkpoints_send_synced(struct ampd_model *model, const struct ampd_checkpoint_record *newest)
{
    uint8_t manifests[AMPD_SHARDS_MAX][16];
    model->coord->checkpoint.parts.count = 0;
    for (uint32_t k = 0; newest->epoch != 0 && k < AMPD_COUNT(model->core); k++) {
        const struct ampd_checkpoint_record *told = ampd_sync_record_of(model->coord, k, newest->epoch, newest->step);
        AMP_ASSERT(told != NULL); /* the caller has looked */
        memcpy(manifests[k], told->manifest, sizeof told->manifest);
    }
    if (newest->epoch != 0)
        ampd_checkpoints_send_parts(model, newest->epoch, newest->step, (const uint8_t(*)[16])manifests);
}

void ampd_checkpoints_resend_parts(struct ampd_model *model, uint32_t shard)
{
    AMP_ASSERT(shard < AMPD_COUNT(model->core));
    if (model->coord->checkpoint.parts.count == 0)
        return;
    struct ampd_message *message = ampd_bus_message(model, AMPD_MESSAGE_PARTS, shard);
    message->u.parts = model->coord->checkpoint.parts;
    ampd_bus_send_take(model->core, message);
}

/* ---- when a checkpoint exists ---- */

void ampd_checkpoints_begin(struct ampd_model *model)
{
    struct ampd_coord *coord = model->coord;
    AMP_ASSERT(model->core->config.shard == 0);
    coord->checkpoint.parts_sent = coord->checkpoint.exists ? coord->base_step + 1 : 0;
    for (uint32_t k = 0; k < AMPD_COUNT(model->core); k++)
        coord->checkpoint.parts_known[k] = coord->checkpoint.parts_sent;
}

static uint64_t known_by_all(const struct ampd_model *model)
{
    uint64_t all = UINT64_MAX;
    for (uint32_t k = 0; k < AMPD_COUNT(model->core); k++)
        all = model->coord->checkpoint.parts_known[k] < all ? model->coord->checkpoint.parts_known[k] : all;
    return all;
}

void ampd_checkpoints_gone(struct ampd_core *core, uint32_t shard)
{
    AMP_ASSERT(shard < AMPD_COUNT(core));
    for (uint32_t i = 0; core->config.shard == 0 && i < core->models_count; i++) {
        struct ampd_coord_checkpoints *checkpoint = &core->models[i]->coord->checkpoint;
        uint64_t durable = checkpoint->exists ? checkpoint->durable_step + 1 : 0;
        if (checkpoint->parts_known[shard] > durable)
            checkpoint->parts_known[shard] = durable;
    }
}

static void adopt_known(struct ampd_model *model, uint32_t shard, const struct ampd_checkpoint_record *told)
{
    struct ampd_coord *coord = model->coord;
    bool known = !has_parts(model) || told->parts_count == AMPD_COUNT(model->core);
    AMP_ASSERT(shard < AMPD_COUNT(model->core));
    if (known && told->step < coord->checkpoint.parts_sent && told->step >= coord->checkpoint.parts_known[shard])
        coord->checkpoint.parts_known[shard] = told->step + 1;
}

uint64_t ampd_checkpoints_adopt(struct ampd_model *model, const struct ampd_checkpoint_record *newest)
{
    struct ampd_coord *coord = model->coord;
    AMP_ASSERT(model->core->config.shard == 0);
    coord->checkpoint.parts_sent = newest->epoch != 0 ? newest->step + 1 : 0;
    for (uint32_t k = 0; k < AMPD_COUNT(model->core); k++) {
        const struct ampd_sync_state *sync = &coord->sync.answers[k]->u.sync;
        coord->checkpoint.parts_known[k] = coord->base_epoch != 0 ? coord->base_step + 1 : 0;
        for (uint32_t i = 0; i < sync->checkpoints_count; i++)
            adopt_known(model, k, &sync->checkpoints[i]);
    }
    return known_by_all(model);
}

static void checkpoint_exists(struct ampd_model *model, uint64_t step)
{
    struct ampd_coord *coord = model->coord;
    const struct ampd_checkpoint_record *record = ampd_local_checkpoint(model, coord->epoch, step);
    if (coord->checkpoint.exists && step <= coord->checkpoint.durable_step)
        return;
    coord->checkpoint.durable_step = step;
    coord->checkpoint.exists = true;
    answer_checkpoints(model, record != NULL ? record->version : coord->version);
    if (coord->state == AMPD_COORD_LOADED) {
        /* A load from elsewhere may be after max_steps. */
        bool done = model->spec.max_steps != 0 && coord->decided >= model->spec.max_steps;
        ampd_coord_set(model, done ? AMPD_COORD_DONE : AMPD_COORD_WAITING);
        ampd_coord_send_state(model);
        ampd_coord_ranks(model);
        ampd_rollback_try(model); /* all shards may have said already that they hold its checkpoint */
    } else if (coord->state == AMPD_COORD_FINISHING && step == coord->decided) {
        ampd_coord_set(model, AMPD_COORD_DONE);
        ampd_coord_send_state(model);
    }
}

/* A part is there. Once all parts are, PARTS goes to all shards. */
static void take_part(struct ampd_model *model, const struct ampd_message *message)
{
    struct ampd_coord *coord = model->coord;
    const struct ampd_restore *part = &message->u.restore;
    for (uint32_t i = 0; i < coord->checkpoint.writing_count; i++) {
        if (coord->checkpoint.writing[i].step != part->step)
            continue;
        coord->checkpoint.writing[i].bits |= AMPD_BIT(message->from);
        memcpy(coord->checkpoint.writing[i].manifests[message->from], part->manifest, sizeof part->manifest);
        if (coord->checkpoint.writing[i].bits != AMPD_ALL_SHARDS(model->core))
            return;
        ampd_checkpoints_send_parts(model, coord->epoch, part->step,
                                    (const uint8_t(*)[16])coord->checkpoint.writing[i].manifests);
        coord->checkpoint.parts_sent = part->step + 1;
        while (coord->checkpoint.writing_count > 0 && coord->checkpoint.writing[0].step < part->step)
            drop(coord, 0); /* parts are written in order: a shard that has this one will not end an older one */
        drop(coord, 0);
        ampd_checkpoints_try(model);
        return;
    }
}

/*
 * A shard's store knows all parts of a checkpoint. Of each shard the newest such checkpoint counts: a shard that knows
 * a newer one than others needs no older one.
 */
static void take_known(struct ampd_model *model, const struct ampd_message *message)
{
    struct ampd_coord *coord = model->coord;
    uint64_t step = message->u.restore.step + 1; /* 0, by overflow, for a number that cannot be a step */
    if (step > coord->checkpoint.parts_sent || step <= coord->checkpoint.parts_known[message->from])
        return;
    coord->checkpoint.parts_known[message->from] = step;
    if (known_by_all(model) != 0)
        checkpoint_exists(model, known_by_all(model) - 1);
}

void ampd_coord_part_done(struct ampd_model *model, const struct ampd_message *message)
{
    const struct ampd_coord *coord = model->coord;
    AMP_ASSERT(model->core->config.shard == 0 && message->from < AMPD_COUNT(model->core));
    if (message->epoch != coord->epoch || coord->state <= AMPD_COORD_STORING)
        return; /* while SYNC goes on, the answers to it count instead */
    take_part(model, message);
    if (message->u.restore.ok)
        take_known(model, message);
}

void ampd_coord_checkpoint(struct ampd_core *core, uint64_t id, const struct ampd_event_named *named)
{
    struct ampd_model *model = ampd_core_coordinated(core, id, named->model);
    if (model == NULL)
        return;
    struct ampd_coord *coord = model->coord;
    if (coord->state <= AMPD_COORD_CREATED) {
        ampd_call_fail(core, id, model, AMP_ESTATE, "MODEL_NOT_LOADED", "%s has no values yet; load it first",
                       model->spec.name);
        return;
    }
    bool storing = coord->step.state == AMPD_STEP_VOTED; /* a verdict that is being stored counts as decided */
    uint64_t newest = storing ? coord->step.open.step : coord->decided;
    bool exists = coord->checkpoint.exists && coord->checkpoint.durable_step == newest;
    struct ampd_call *call = ampd_call_begin(core, id, AMPD_CALL_CHECKPOINT, model);
    if (call == NULL) {
        ampd_call_fail(core, id, model, AMP_EEXHAUSTED, "TOO_MANY_CALLS", "too many calls wait on this server");
        return;
    }
    call->step = newest;
    bool coming = ampd_checkpoints_under_way(coord, newest) || (storing && coord->decision.verdict->row.cut);
    if (exists)
        answer_checkpoints(model, coord->version);
    coord->checkpoint.wanted = coord->checkpoint.wanted || (!exists && !coming);
    ampd_checkpoints_try(model);
}

/* ---- between two verdicts ---- */

/*
 * Whether a checkpoint should be under way and is not: with `durability: step` one is cut at least every
 * AMPD_VOTE_JOURNAL_STEPS steps, but a process that ends, or a RESTORE, may have taken the parts that were being
 * written. Until a checkpoint is stored the journal keeps every step, and no vote follows when it is full.
 */
static bool is_overdue(const struct ampd_model *model)
{
    const struct ampd_coord_checkpoints *checkpoint = &model->coord->checkpoint;
    uint64_t after = checkpoint->parts_sent; /* the first step that is in none */
    if (checkpoint->writing_count > 0)
        after = checkpoint->writing[checkpoint->writing_count - 1].step + 1;
    return model->spec.durability == AMPD_DURABILITY_STEP &&
           model->coord->decided + 1 >= after + AMPD_VOTE_JOURNAL_STEPS;
}

void ampd_checkpoints_try(struct ampd_model *model)
{
    struct ampd_coord *coord = model->coord;
    bool pauses = ampd_core_pauses(model->core) || (coord->checkpoint.wanted && !ampd_coord_decides_soon(model)) ||
                  is_overdue(model);
    AMP_ASSERT(model->core->config.shard == 0);
    if (!pauses || !ampd_coord_has_steps(coord) || coord->step.state == AMPD_STEP_VOTED ||
        coord->decision.state == AMPD_DECIDED_APPLYING)
        return;
    bool needed =
        coord->checkpoint.durable_step != coord->decided && !ampd_checkpoints_under_way(coord, coord->decided);
    if (needed && coord->checkpoint.writing_count >= AMPD_CHECKPOINTS_ASKED_MAX)
        return; /* skipped steps wait for no part: again when the oldest is there */
    coord->checkpoint.wanted = false;
    if (needed)
        ampd_checkpoints_send(model);
}

bool ampd_coord_drained(const struct ampd_model *model)
{
    const struct ampd_coord *coord = model->coord;
    if (coord->state <= AMPD_COORD_STORING)
        return true; /* SYNC begins again when the shards are back, from what they hold by then */
    if (!ampd_coord_has_steps(coord))
        return coord->checkpoint.writing_count == 0 && !ampd_checkpoints_under_way(coord, coord->decided);
    return coord->step.state != AMPD_STEP_VOTED && coord->decision.state != AMPD_DECIDED_APPLYING &&
           coord->checkpoint.writing_count == 0 && coord->checkpoint.durable_step == coord->decided;
}

void ampd_checkpoints_resend(struct ampd_model *model, uint32_t shard)
{
    const struct ampd_coord *coord = model->coord;
    AMP_ASSERT(shard < AMPD_COUNT(model->core));
    for (uint32_t i = 0; i < coord->checkpoint.writing_count; i++) {
        if ((coord->checkpoint.writing[i].bits & AMPD_BIT(shard)) != 0)
            continue;
        struct ampd_message *message = ampd_bus_message(model, AMPD_MESSAGE_CUT, shard);
        message->u.restore.step = coord->checkpoint.writing[i].step;
        ampd_bus_send_take(model->core, message);
    }
}
