/*
 * The entrance of the core: each event goes to the state machine that it is for; then the messages that the process has
 * sent to itself are handled, until there is none.
 */
#include "server/core/core.h"

#include "base/assert.h"
#include "server/core/base/calls.h"
#include "server/core/base/limits.h"
#include "server/core/base/model.h"
#include "server/core/base/out.h"
#include "server/core/base/process.h"
#include "server/core/base/ranks.h"
#include "server/core/base/worker.h"
#include "server/core/coordinator/actions.h"
#include "server/core/coordinator/checkpoints.h"
#include "server/core/coordinator/coord.h"
#include "server/core/coordinator/coord_load.h"
#include "server/core/coordinator/delete.h"
#include "server/core/coordinator/epochs.h"
#include "server/core/coordinator/health.h"
#include "server/core/coordinator/rollback.h"
#include "server/core/coordinator/sync.h"
#include "server/core/coordinator/workers.h"
#include "server/core/model/layout.h"
#include "server/core/model/spec.h"
#include "server/core/model/tensors.h"
#include "server/core/process/invariants.h"
#include "server/core/process/leave.h"
#include "server/core/process/receive.h"
#include "server/core/process/resend.h"
#include "server/core/process/sweep.h"
#include "server/core/shard/alive.h"
#include "server/core/shard/bulk.h"
#include "server/core/shard/catalogue.h"
#include "server/core/shard/checkpoint_part.h"
#include "server/core/shard/journal.h"
#include "server/core/shard/load.h"
#include "server/core/shard/memory.h"
#include "server/core/shard/pull.h"
#include "server/core/shard/push.h"
#include "server/core/shard/push_answer.h"
#include "server/core/shard/shard.h"
#include "server/core/shard/shard_delete.h"
#include "server/core/shard/sync_answer.h"
#include "server/core/wire/bus.h"
#include "server/core/wire/fences.h"
#include "server/core/wire/messages.h"

#include <stdlib.h>
#include <string.h>

/* ---- life ---- */

int ampd_core_new(const struct ampd_core_config *config, struct ampd_core **core)
{
    *core = NULL;
    uint32_t shards = config->shards == 0 ? 1 : config->shards;
    uint64_t block = config->block_elements == 0 ? AMPD_BLOCK_ELEMENTS : config->block_elements;
    if (config->shard >= shards || shards > AMPD_SHARDS_MAX || block % AMPD_ALIGN_ELEMENTS != 0)
        return AMP_EINVAL;
    struct ampd_core *made = calloc(1, sizeof *made);
    if (made == NULL)
        return AMP_ENOMEM;
    made->config = *config;
    made->config.shards = shards;
    made->config.block_elements = block;
    made->deleted_epoch = config->epoch_above; /* a lost store may have had a model of any name */
    if (made->config.lease_ms == 0)
        made->config.lease_ms = AMPD_LEASE_MS;
    if (made->config.checkpoint_memory == 0)
        made->config.checkpoint_memory = AMPD_CHECKPOINT_MEMORY;
    amp_list_init(&made->outputs);
    amp_list_init(&made->inbox);
    amp_list_init(&made->pendings);
    amp_list_init(&made->replaced);
    for (unsigned b = 0; b < AMPD_CALL_BUCKETS; b++)
        amp_list_init(&made->calls[b]);
    *core = made;
    return 0;
}

void ampd_core_free(struct ampd_core *core)
{
    if (core == NULL)
        return;
    ampd_out_close(core);
    ampd_bus_close(core);
    ampd_calls_close(core);
    ampd_fences_close(core);
    for (struct amp_list *node; (node = amp_list_shift(&core->pendings)) != NULL;)
        free(AMP_CONTAINER(node, struct ampd_pending, node));
    for (uint32_t i = 0; i < core->models_count; i++)
        ampd_model_free(core->models[i]);
    for (struct amp_list *node; (node = amp_list_shift(&core->replaced)) != NULL;)
        ampd_model_free(AMP_CONTAINER(node, struct ampd_model, replaced));
    free(core);
}

/* ---- models ---- */

bool ampd_core_synced(const struct ampd_core *core)
{
    return core->config.shard != 0 || !core->sync.running;
}

/* ---- events ---- */

/* A call reads or writes memory of the model no more: what waited for that goes on. */
static void let_go(struct ampd_model *model, enum ampd_call_kind kind, uint64_t id)
{
    if (kind == AMPD_CALL_PUSH)
        ampd_push_closed(model, id);
    else if (kind == AMPD_CALL_LOAD)
        ampd_load_closed(model, id);
    else if (kind == AMPD_CALL_PULL)
        ampd_shard_try_apply(model);
    ampd_memory_try_restore(model);
    ampd_local_delete_try(model);
}

/* A call has ended without the core's answer. */
static void call_closed(struct ampd_core *core, uint64_t id)
{
    struct ampd_call *call = ampd_call_find(core, id);
    if (call == NULL)
        return;
    struct ampd_model *model = call->model;
    enum ampd_call_kind kind = call->kind;
    if (kind == AMPD_CALL_PULL)
        ampd_pull_closed(call);
    ampd_call_forget(core, call);
    let_go(model, kind, id);
}

static void call_revoked(struct ampd_core *core, uint64_t id)
{
    struct ampd_call *call = ampd_call_find(core, id);
    if (call == NULL || call->state != AMPD_CALL_REVOKING)
        return;
    struct ampd_model *model = call->model;
    enum ampd_call_kind kind = call->kind;
    ampd_call_let_go(core, call);
    let_go(model, kind, id);
}

/* An event of a stream whose call was answered meanwhile has no effect. */
static void stream_event(struct ampd_core *core, const struct ampd_event *event)
{
    struct ampd_call *call = ampd_call_find(core, event->call);
    if (call == NULL)
        return;
    switch (event->type) {
    case AMPD_EVENT_LOAD_BLOCK:
        ampd_load_block(call, &event->u.block);
        break;
    case AMPD_EVENT_LOAD_STATE:
        ampd_load_state(call, &event->u.load_state);
        break;
    case AMPD_EVENT_LOAD_END:
        ampd_load_end(core, call);
        break;
    case AMPD_EVENT_PUSH_BLOCK:
        ampd_push_block(call, &event->u.block);
        break;
    default:
        ampd_push_end(core, call, &event->u.push_end);
        break;
    }
}

static void fence_stored(struct ampd_core *core, const struct ampd_pending *pending)
{
    struct ampd_message *first = ampd_fences_stored(core, pending);
    if (first != NULL)
        ampd_receive(core, first);
    ampd_message_free(first);
}

static void persisted(struct ampd_core *core, uint64_t token)
{
    AMP_LIST_EACH(it, next, &core->pendings)
    {
        struct ampd_pending *pending = AMP_CONTAINER(it, struct ampd_pending, node);
        if (pending->token != token)
            continue;
        amp_list_remove(&pending->node);
        struct ampd_model *model = pending->model;
        switch (pending->kind) {
        case AMPD_PERSIST_WORKER:
            ampd_workers_stored(model, pending);
            break;
        case AMPD_PERSIST_VERDICT:
            if (core->config.shard == 0) {
                ampd_coord_verdict_stored(model);
                ampd_actions_place(model);
            } else {
                ampd_decided_stored(model);
            }
            break;
        case AMPD_PERSIST_MODEL:
        case AMPD_PERSIST_EPOCH:
            ampd_memory_epoch_stored(model);
            break;
        case AMPD_PERSIST_CHECKPOINT:
            ampd_part_stored(model);
            break;
        case AMPD_PERSIST_PARTS:
            ampd_catalogue_parts_stored(model);
            break;
        case AMPD_PERSIST_FENCE:
            fence_stored(core, pending);
            break;
        case AMPD_PERSIST_ACT:
            ampd_actions_stored(model, pending);
            break;
        case AMPD_PERSIST_DELETING:
            ampd_delete_marked(model);
            break;
        case AMPD_PERSIST_DELETE:
            ampd_delete_stored(model);
            break;
        }
        free(pending);
        if (model != NULL) {
            ampd_local_delete_try(model);
            model->holds--;
        }
        ampd_sync_try_answer(core);
        return;
    }
}

/* A model is found in the store: its ranks and checkpoints are known, and its memory is lost. */
static void model_found(struct ampd_core *core, const struct ampd_model_record *record)
{
    struct ampd_model *model;
    struct amp_error error = {0};
    if (ampd_model_new(core, &record->spec, &model, &error) != 0) {
        ampd_out_log(core, AMP_LOG_ERROR, NULL, "%s cannot be brought back: %s", record->spec.name, error.text);
        return;
    }
    struct ampd_shard *shard = model->shard;
    model->created_us = record->created_us;
    memcpy(model->owner, record->owner, sizeof model->owner);
    shard->epoch = record->epoch;
    shard->base_epoch = record->base_epoch;
    shard->base_step = record->base_step;
    ampd_coord_set(model, AMPD_COORD_SYNCING);
    model->coord->epoch = record->epoch;
    bool decided =
        record->last != NULL && (record->last->kind == AMPD_ROW_STEP ||
                                 (record->last->kind != AMPD_ROW_EPOCH && record->last->step > record->base_step));
    model->coord->actions.known_count = record->acts_count;
    memcpy(model->coord->actions.known, record->acts, record->acts_count * sizeof record->acts[0]);
    model->coord->parent_step = decided ? record->last->step : 0;
    shard->catalogue.found_durable_step = decided                   ? record->last->durable_step
                                          : record->base_epoch != 0 ? record->base_step
                                                                    : 0;
    for (uint32_t i = 0; i < record->checkpoints_count; i++)
        AMP_NEED(ampd_catalogue_add(shard, &record->checkpoints[i]) == 0);
    for (uint32_t i = 0; i < record->workers_count; i++) {
        const struct ampd_worker_record *worker = &record->workers[i];
        if (worker->rank >= model->spec.world_size)
            continue;
        ampd_workers_found(model, worker);
    }
    if (record->deleting)
        ampd_coord_set(model, AMPD_COORD_DELETING);
    ampd_actions_found(model, record);
    ampd_shard_journal_found(model, record);
}

static void start(struct ampd_core *core)
{
    core->started = true;
    for (uint32_t i = 0; i < core->models_count; i++)
        ampd_shard_journal_start(core->models[i]);
    if (core->config.shard == 0)
        ampd_sync_start(core);
    else
        ampd_sync_try_answer(core);
}

static void drain(struct ampd_core *core)
{
    for (uint32_t i = 0; i < core->models_count; i++) {
        struct ampd_model *model = core->models[i];
        if (model->gone)
            continue;
        struct amp_list *lists[] = {&model->pushes,  &model->pulls,     &model->loads,  &model->checkpoints,
                                    &model->creates, &model->rollbacks, &model->deletes};
        for (unsigned l = 0; l < sizeof lists / sizeof lists[0]; l++) {
            AMP_LIST_EACH(it, next, lists[l])
            {
                ampd_call_end(AMP_CONTAINER(it, struct ampd_call, node), AMP_EUNAVAILABLE, "DRAINING",
                              "the server is about to end; try again when it is back");
            }
        }
    }
    ampd_leave_drain(core);
}

static void tick(struct ampd_core *core)
{
    core->timer_ms = 0;
    ampd_leave_tick(core);
    ampd_resend_tick(core);
    for (uint32_t i = 0; i < core->models_count; i++) {
        if (core->models[i]->gone)
            continue;
        ampd_memory_tick(core->models[i]);
        if (core->config.shard == 0)
            ampd_workers_tick(core->models[i]);
        else
            ampd_alive_send(core->models[i]);
        if (core->config.shard == 0)
            ampd_health_tick(core->models[i]);
    }
    if (core->sweep_ms != 0 && core->sweep_ms <= core->now_ms) {
        core->sweep_ms = 0;
        ampd_calls_sweep(core);
    }
}

/* Refuses calls that begin while the process drains. */
static bool refused(struct ampd_core *core, const struct ampd_event *event)
{
    bool begins = (event->type >= AMPD_EVENT_SET_LR && event->type <= AMPD_EVENT_DELETE_MODEL) ||
                  event->type == AMPD_EVENT_LOAD_BEGIN || event->type == AMPD_EVENT_PULL ||
                  event->type == AMPD_EVENT_PUSH_BEGIN;
    if (!begins || !core->leave.draining)
        return false;
    ampd_call_fail(core, event->call, NULL, AMP_EUNAVAILABLE, "DRAINING",
                   "the server is about to end; try again when it is back");
    return true;
}

static void renew(struct ampd_core *core, const struct ampd_event_worker *worker)
{
    struct ampd_model *model = ampd_core_model_named(core, worker->model);
    if (model != NULL && worker->rank < model->spec.world_size)
        (void)ampd_ranks_renew(model, worker->rank, worker->incarnation); /* an ended lease stays ended */
}

static void dispatch_call(struct ampd_core *core, const struct ampd_event *event)
{
    switch (event->type) {
    case AMPD_EVENT_CREATE_MODEL:
        ampd_coord_create(core, event->call, &event->u.create);
        break;
    case AMPD_EVENT_JOIN:
        ampd_workers_join(core, event->call, &event->u.join);
        break;
    case AMPD_EVENT_KEEP_ALIVE:
        renew(core, &event->u.worker); /* whatever its answer: SYNC may take longer than a lease */
        ampd_workers_keep_alive(core, event->call, &event->u.worker);
        break;
    case AMPD_EVENT_LEAVE:
        ampd_workers_leave(core, event->call, &event->u.worker);
        break;
    case AMPD_EVENT_GET_PUSH_STATE:
        ampd_push_state(core, event->call, &event->u.push_state);
        break;
    case AMPD_EVENT_CHECKPOINT:
        ampd_coord_checkpoint(core, event->call, &event->u.named);
        break;
    case AMPD_EVENT_SET_SCALE:
        ampd_actions_do(core, event->call, &event->u.act, AMPD_ROW_SET);
        break;
    case AMPD_EVENT_RESET_SCALE:
        ampd_actions_do(core, event->call, &event->u.act, AMPD_ROW_RESET);
        break;
    case AMPD_EVENT_SET_LR:
        ampd_actions_do(core, event->call, &event->u.act, AMPD_ROW_LR);
        break;
    case AMPD_EVENT_EVICT:
        ampd_actions_do(core, event->call, &event->u.act, AMPD_ROW_EVICT);
        break;
    case AMPD_EVENT_ROLLBACK:
        ampd_rollback_call(core, event->call, &event->u.act);
        break;
    case AMPD_EVENT_DELETE_MODEL:
        ampd_delete_call(core, event->call, &event->u.act);
        break;
    case AMPD_EVENT_LOAD_BEGIN:
        ampd_load_begin(core, event->call, &event->u.load);
        break;
    case AMPD_EVENT_PULL:
        ampd_pull_begin(core, event->call, &event->u.pull);
        break;
    default:
        ampd_push_begin(core, event->call, &event->u.push);
        break;
    }
}

static void job_done(struct ampd_core *core, const struct ampd_job *job)
{
    AMP_ASSERT(job->model < core->models_count);
    ampd_shard_job_done(core->models[job->model], job);
}

static void journal_event(struct ampd_core *core, const struct ampd_event *event)
{
    bool stored = event->type == AMPD_EVENT_JOURNALLED;
    uint64_t token = stored ? event->u.persisted.token : event->u.replayed.token;
    AMP_ASSERT(token != 0);
    for (uint32_t i = 0; i < core->models_count; i++) {
        struct ampd_model *model = core->models[i];
        if (model->gone)
            continue;
        if (stored && model->shard->journal.token == token)
            ampd_shard_journal_stored(model);
        else if (!stored && model->shard->journal.replay.token == token)
            ampd_shard_journal_replayed(model, &event->u.replayed);
        else
            continue;
        ampd_local_delete_try(model);
        return;
    }
}

/* The model of a completion is the one that waits for its token. */
static void memory_event(struct ampd_core *core, const struct ampd_event *event)
{
    uint64_t token = event->type == AMPD_EVENT_RESTORED      ? event->u.restored.token
                     : event->type == AMPD_EVENT_PART_BLOCKS ? event->u.part_blocks.token
                                                             : event->u.part.token;
    AMP_ASSERT(token != 0);
    for (uint32_t i = 0; i < core->models_count; i++) {
        struct ampd_model *model = core->models[i];
        if (model->gone)
            continue;
        if (event->type == AMPD_EVENT_RESTORED && model->shard->restore.token == token)
            ampd_memory_restored(model, &event->u.restored);
        else if (event->type == AMPD_EVENT_PART_WRITTEN && model->shard->part.token == token)
            ampd_part_written(model, &event->u.part);
        else if (event->type == AMPD_EVENT_PART_BLOCKS && model->shard->part.token == token)
            ampd_part_blocks(model, &event->u.part_blocks);
        else
            continue;
        ampd_local_delete_try(model);
        return;
    }
}

/* The session with a shard is over, or another one has taken its place, perhaps of another process. */
static void peer_gone(struct ampd_core *core, uint32_t shard)
{
    ampd_checkpoints_gone(core, shard);
    ampd_sync_gone(core, shard);
}

static void peer_up(struct ampd_core *core, uint32_t shard)
{
    peer_gone(core, shard);
    core->peers[shard].up = true;
    core->hello.heard = false;
    core->hello.agains = 0;
    if (core->config.shard != 0 && shard == 0)
        ampd_resend_to_coordinator(core);
}

static void peer_down(struct ampd_core *core, uint32_t shard)
{
    ampd_leave_down(core, shard);
    peer_gone(core, shard);
}

static void dispatch(struct ampd_core *core, const struct ampd_event *event)
{
    switch (event->type) {
    case AMPD_EVENT_MODEL_FOUND:
        model_found(core, event->u.found);
        break;
    case AMPD_EVENT_START:
        start(core);
        break;
    case AMPD_EVENT_LOAD_BLOCK:
    case AMPD_EVENT_LOAD_STATE:
    case AMPD_EVENT_LOAD_END:
    case AMPD_EVENT_PUSH_BLOCK:
    case AMPD_EVENT_PUSH_END:
        stream_event(core, event);
        break;
    case AMPD_EVENT_CALL_CLOSED:
        call_closed(core, event->call);
        break;
    case AMPD_EVENT_REVOKED:
        call_revoked(core, event->call);
        break;
    case AMPD_EVENT_EPOCH_RAISED:
        ampd_epochs_raised(core, &event->u.raised);
        break;
    case AMPD_EVENT_RENEW:
        renew(core, &event->u.worker);
        break;
    case AMPD_EVENT_JOB_DONE:
        job_done(core, &event->u.job);
        break;
    case AMPD_EVENT_PERSISTED:
        persisted(core, event->u.persisted.token);
        break;
    case AMPD_EVENT_RESTORED:
    case AMPD_EVENT_PART_WRITTEN:
    case AMPD_EVENT_PART_BLOCKS:
        memory_event(core, event);
        break;
    case AMPD_EVENT_JOURNALLED:
    case AMPD_EVENT_REPLAYED:
        journal_event(core, event);
        break;
    case AMPD_EVENT_FENCE_FOUND:
        ampd_fences_found(core, &event->u.fence);
        break;
    case AMPD_EVENT_PEER:
        ampd_receive(core, event->u.message);
        break;
    case AMPD_EVENT_PEER_UP:
        peer_up(core, event->u.shard);
        break;
    case AMPD_EVENT_PEER_DOWN:
        peer_down(core, event->u.shard);
        break;
    case AMPD_EVENT_DRAIN:
        drain(core);
        break;
    case AMPD_EVENT_TICK:
        tick(core);
        break;
    default:
        if (!refused(core, event))
            dispatch_call(core, event);
        break;
    }
}

/* The earlier of two times; 0 is never. */
static uint64_t earlier(uint64_t a, uint64_t b)
{
    return a == 0 || (b != 0 && b < a) ? b : a;
}

static uint64_t sweep_every_ms(const struct ampd_core *core)
{
    uint64_t every_ms = core->config.lease_ms / AMPD_SWEEPS;
    if (every_ms > AMPD_SWEEP_MS)
        return AMPD_SWEEP_MS;
    return every_ms > 0 ? every_ms : 1;
}

/* Asks for the next TICK, if its time is not the one asked for already. */
static void arm_timer(struct ampd_core *core)
{
    if (core->sweep_ms == 0 && core->calls_count > 0)
        core->sweep_ms = core->now_ms + sweep_every_ms(core);
    ampd_resend_arm(core);
    uint64_t next = earlier(earlier(core->sweep_ms, core->leave.alone_ms), core->hello.again_ms);
    for (uint32_t i = 0; i < core->models_count; i++) {
        if (core->models[i]->gone)
            continue;
        next = earlier(next, core->models[i]->shard->restore.retry_ms);
        if (core->config.shard == 0)
            next = earlier(next, earlier(ampd_workers_next_ms(core->models[i]), ampd_health_next_ms(core->models[i])));
        else
            next = earlier(next, core->models[i]->alive_due_ms);
    }
    if (next == 0 || next == core->timer_ms)
        return;
    core->timer_ms = next;
    ampd_out(core, AMPD_OUT_TIMER, 0)->u.timer.at_ms = next;
}

void ampd_core_step(struct ampd_core *core, uint64_t now_ms, const struct ampd_event *event)
{
    AMP_ASSERT(now_ms >= core->now_ms);
    core->now_ms = now_ms;
    core->utc_us = event->utc_us;
    dispatch(core, event);
    ampd_receive_own(core);
    ampd_leave_try(core);
    arm_timer(core);
    for (uint32_t i = 0; core->config.check && i < core->models_count; i++)
        ampd_model_check(core->models[i]);
}

bool ampd_core_refuse(struct ampd_core *core, uint32_t index, uint32_t rank, struct ampd_incarnation incarnation,
                      struct amp_error *error)
{
    AMP_ASSERT(index < core->models_count && rank < core->models[index]->spec.world_size);
    return ampd_ranks_refuse(core->models[index], rank, incarnation, error);
}

/* ---- query ---- */

uint32_t ampd_core_models_count(const struct ampd_core *core)
{
    return core->models_count;
}

struct ampd_model *ampd_core_hold(struct ampd_core *core, uint32_t index)
{
    AMP_ASSERT(index < core->models_count);
    core->models[index]->holds++;
    return core->models[index];
}

void ampd_core_let_go(struct ampd_model *held)
{
    AMP_ASSERT(held == NULL || held->holds > 0);
    if (held != NULL)
        held->holds--;
}

void ampd_core_worker(const struct ampd_core *core, uint32_t index, uint32_t rank, uint64_t now_ms,
                      struct ampd_worker_info *info)
{
    AMP_ASSERT(index < core->models_count && rank < core->models[index]->spec.world_size);
    const struct ampd_model *model = core->models[index];
    const struct ampd_worker *worker = &model->workers[rank];
    bool runs = ampd_ranks_is_running(model, worker);
    *info = (struct ampd_worker_info){
        .incarnation = worker->record.incarnation,
        .listed = worker->listed,
        .joined = worker->joined_epoch == model->shard->epoch && worker->joined_epoch != 0,
        .lease_left_ms =
            worker->lease == AMPD_LEASE_LIVE && worker->lease_until_ms > now_ms ? worker->lease_until_ms - now_ms : 0,
        .lost_since_ms = worker->lease == AMPD_LEASE_ENDED ? worker->lease_until_ms : 0,
        .left = worker->record.left,
        .pushes = worker->health.pushes,
        .overflow_pushes = worker->health.overflow_pushes,
        .straggles = runs && worker->health.straggles,
        .slow_steps = worker->health.slow_steps,
        .slow_ms = worker->health.slow_ms,
        .nonfinite = runs && worker->health.nonfinite,
        .quarantined = ampd_workers_quarantined(model, rank, now_ms),
        .last_step = worker->health.last_step,
        .blocks_present = model->shard->slots[rank].present,
        .blocks_wanted = model->tensors.count,
        .awaited = core->config.shard == 0 && ampd_health_awaits(model, rank),
        .peer = worker->peer,
        .joins = worker->counts.joins,
        .leaves = worker->counts.leaves,
        .fences = worker->counts.fences,
        .replacements = worker->counts.replacements,
    };
    memcpy(info->name, worker->record.name, sizeof info->name);
}
