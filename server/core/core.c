#include "server/core/core.h"

#include "base/assert.h"
#include "server/core/model.h"

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
    struct ampd_core *made = calloc(1, sizeof(*made));
    if (made == NULL)
        return AMP_ENOMEM;
    made->config = *config;
    made->config.shards = shards;
    made->config.block_elements = block;
    if (made->config.lease_ms == 0)
        made->config.lease_ms = AMPD_LEASE_MS;
    amp_list_init(&made->outputs);
    amp_list_init(&made->inbox);
    amp_list_init(&made->pendings);
    amp_list_init(&made->graves);
    for (unsigned b = 0; b < AMPD_CALL_BUCKETS; b++)
        amp_list_init(&made->calls[b]);
    *core = made;
    return 0;
}

const char *ampd_checkpoint_dir(const struct ampd_core *core)
{
    return core->config.checkpoint_dir == NULL ? "its directory" : core->config.checkpoint_dir;
}

void ampd_model_free(struct ampd_model *model)
{
    if (model == NULL)
        return;
    if (!model->gone) {
        ampd_shard_close(model);
        ampd_coord_close(model);
        ampd_tensors_close(&model->tensors);
    }
    ampd_layout_free(model->layout);
    ampd_spec_clear(&model->spec);
    free(model->workers);
    free(model);
}

void ampd_model_forget(struct ampd_model *model)
{
    AMP_ASSERT(!model->gone && model->shard.jobs_out == 0);
    model->gone = true;
    model->core->memory_bytes -= model->memory_bytes;
    ampd_shard_close(model);
    ampd_coord_close(model);
    ampd_tensors_close(&model->tensors);
    model->shard = (struct ampd_shard){.deleting = true};
    model->coord = (struct ampd_coord){.state = AMPD_COORD_DELETING};
}

void ampd_core_free_graves(struct ampd_core *core)
{
    AMP_LIST_EACH(it, next, &core->graves)
    {
        struct ampd_model *model = AMP_CONTAINER(it, struct ampd_model, grave);
        if (model->holds > 0)
            continue;
        amp_list_remove(&model->grave);
        ampd_model_free(model);
    }
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
    for (struct amp_list *node; (node = amp_list_shift(&core->graves)) != NULL;)
        ampd_model_free(AMP_CONTAINER(node, struct ampd_model, grave));
    free(core);
}

/* ---- models ---- */

bool ampd_incarnation_same(struct ampd_incarnation a, struct ampd_incarnation b)
{
    return a.fence == b.fence && a.counter == b.counter;
}

bool ampd_incarnation_newer(struct ampd_incarnation a, struct ampd_incarnation b)
{
    uint64_t numbers[2] = {a.counter & AMPD_INCARNATION_NUMBER_MAX, b.counter & AMPD_INCARNATION_NUMBER_MAX};
    return a.fence > b.fence || (a.fence == b.fence && numbers[0] > numbers[1]);
}

bool ampd_core_synced(const struct ampd_core *core)
{
    return core->config.shard != 0 || !core->sync.running;
}

int64_t ampd_core_find(const struct ampd_core *core, const char *name)
{
    for (uint32_t i = 0; i < core->models_count; i++) {
        if (!core->models[i]->gone && strcmp(core->models[i]->spec.name, name) == 0)
            return i;
    }
    return -1;
}

struct ampd_model *ampd_core_model_named(struct ampd_core *core, const char *name)
{
    int64_t index = ampd_core_find(core, name);
    return index < 0 ? NULL : core->models[index];
}

struct ampd_model *ampd_core_known(struct ampd_core *core, uint64_t call, const char *name)
{
    struct ampd_model *model = ampd_core_model_named(core, name);
    if (model == NULL) {
        ampd_call_fail(core, call, NULL, AMP_ENOTFOUND, "MODEL_NOT_FOUND",
                       "model: there is none named %s on this server; create it first", name);
        return NULL;
    }
    if (model->shard.deleting || model->coord.state == AMPD_COORD_DELETING) {
        ampd_call_fail(core, call, NULL, AMP_ENOTFOUND, "MODEL_NOT_FOUND", "model: %s is being deleted", name);
        return NULL;
    }
    const char *trouble = model->coord.trouble[0] != 0 ? model->coord.trouble : model->shard.unread;
    if (trouble[0] != 0) {
        ampd_call_fail(core, call, NULL, AMP_EUNAVAILABLE, "RECOVERING", "%s", trouble);
        return NULL;
    }
    return model;
}

struct ampd_model *ampd_core_usable(struct ampd_core *core, uint64_t call, const char *name)
{
    struct ampd_model *model = ampd_core_known(core, call, name);
    if (model == NULL)
        return NULL;
    bool creating = core->config.shard == 0 && model->coord.state == AMPD_COORD_CREATING;
    if (creating || model->shard.memory <= AMPD_MEMORY_RESTORED) {
        ampd_call_fail(core, call, NULL, AMP_EUNAVAILABLE, "RECOVERING",
                       "%s is being made ready; try again in a moment", name);
        return NULL;
    }
    return model;
}

struct ampd_model *ampd_core_coordinated(struct ampd_core *core, uint64_t call, const char *name)
{
    struct ampd_model *model = core->config.shard == 0 ? ampd_core_usable(core, call, name) : NULL;
    if (model != NULL && model->coord.state <= AMPD_COORD_STORING) {
        ampd_call_fail(core, call, NULL, AMP_EUNAVAILABLE, "RECOVERING",
                       "%s: a shard has started, and the model goes on in a moment; try again then", name);
        return NULL;
    }
    if (core->config.shard == 0)
        return model;
    ampd_call_fail(core, call, NULL, AMP_EUNAVAILABLE, "NOT_COORDINATOR",
                   "this is shard %u; send the call to shard 0, which coordinates", core->config.shard);
    return NULL;
}

/*
 * What a model may come to take, counted before any of it is asked for: tensors and slots, what is known of their blocks
 * and segments, user states (a slot's, held pushes', those of the last step, of the base and of two cuts), and with
 * durability STEP the rows of two checkpoints' distance.
 */
static uint64_t most_bytes(const struct ampd_layout *layout, const struct ampd_model_spec *spec, uint64_t count)
{
    uint64_t states = AMPD_HELD_PUSHES + 5;
    uint64_t per_rank = sizeof(struct ampd_slot) + sizeof(struct ampd_worker) + count + states * AMPD_USER_STATE_MAX +
                        spec->parameters_count * sizeof(struct ampd_segment_count);
    uint64_t rows = spec->durability == AMPD_DURABILITY_STEP ? (uint64_t)2 * AMPD_JOURNAL_STEPS : 0;
    return rows * sizeof(struct ampd_step_row) + ampd_tensors_bytes(layout, spec, count) +
           layout->segments_count * sizeof(struct ampd_segment) + count * AMPD_BLOCK_BYTES +
           spec->world_size * per_rank;
}

/* The place of a model that is gone, or the next one. */
static uint32_t free_place(const struct ampd_core *core)
{
    for (uint32_t i = 0; i < core->models_count; i++) {
        if (core->models[i]->gone)
            return i;
    }
    return core->models_count;
}

int ampd_model_new(struct ampd_core *core, const struct ampd_model_spec *spec, struct ampd_model **model,
                   struct amp_error *error)
{
    *model = NULL;
    uint32_t index = free_place(core);
    if (index == AMPD_MODELS_MAX)
        return amp_error_set(error, AMP_EEXHAUSTED, "TOO_MANY_MODELS", "this server has %d models, its bound",
                             AMPD_MODELS_MAX);
    struct ampd_model *made = calloc(1, sizeof(*made));
    if (made == NULL)
        goto fail;
    made->core = core;
    made->index = index;
    made->created_us = core->utc_us;
    amp_list_init(&made->pushes);
    amp_list_init(&made->pulls);
    amp_list_init(&made->loads);
    amp_list_init(&made->checkpoints);
    amp_list_init(&made->creates);
    amp_list_init(&made->rollbacks);
    amp_list_init(&made->deletes);
    if (ampd_spec_copy(&made->spec, spec) != 0)
        goto fail;
    if (ampd_layout_new(&made->spec, core->config.block_elements, &made->layout) != 0)
        goto fail;
    uint64_t first, count;
    ampd_layout_shard(made->layout, core->config.shard, AMPD_COUNT(core), &first, &count);
    uint64_t bytes = most_bytes(made->layout, &made->spec, count);
    if (core->config.memory_max != 0 && bytes > core->config.memory_max - core->memory_bytes) {
        ampd_model_free(made);
        return amp_error_set(error, AMP_EEXHAUSTED, "NO_MEMORY",
                             "%s may need %llu bytes of memory, but %llu are left of this server's %llu", spec->name,
                             (unsigned long long)bytes,
                             (unsigned long long)(core->config.memory_max - core->memory_bytes),
                             (unsigned long long)core->config.memory_max);
    }
    if (ampd_tensors_init(&made->tensors, made->layout, &made->spec, first, count) != 0)
        goto fail;
    made->workers = calloc(spec->world_size, sizeof(*made->workers));
    if (made->workers == NULL || ampd_shard_init(made) != 0)
        goto fail;
    made->memory_bytes = bytes;
    core->memory_bytes += bytes;
    if (index == core->models_count)
        core->models_count++;
    else
        amp_list_push(&core->graves, &core->models[index]->grave);
    core->models[index] = made;
    *model = made;
    return 0;
fail:
    ampd_model_free(made);
    return amp_error_set(error, AMP_EEXHAUSTED, "NO_MEMORY", "no memory for the model %s on this server", spec->name);
}

/* ---- events ---- */

/* Ends whatever a closed stream held. */
static void call_closed(struct ampd_core *core, uint64_t id)
{
    struct ampd_call *call = ampd_call_find(core, id);
    if (call == NULL)
        return;
    struct ampd_model *model = call->model;
    enum ampd_call_kind kind = call->kind;
    ampd_call_forget(core, call);
    if (kind == AMPD_CALL_PUSH)
        ampd_push_closed(model, id);
    else if (kind == AMPD_CALL_LOAD)
        ampd_load_closed(model, id);
    else if (kind == AMPD_CALL_PULL)
        ampd_shard_try_apply(model);
    ampd_memory_try_restore(model);
    ampd_delete_try(model);
}

static void call_revoked(struct ampd_core *core, uint64_t id)
{
    struct ampd_call *call = ampd_call_find(core, id);
    if (call == NULL || call->state != AMPD_CALL_REVOKING)
        return;
    struct ampd_model *model = call->model;
    enum ampd_call_kind kind = call->kind;
    ampd_call_let_go(core, call);
    if (kind == AMPD_CALL_PUSH)
        ampd_push_closed(model, id);
    else if (kind == AMPD_CALL_LOAD)
        ampd_load_closed(model, id);
    else
        ampd_shard_try_apply(model);
    ampd_memory_try_restore(model);
    ampd_delete_try(model);
}

/* An event of a stream whose call was answered meanwhile has no effect. */
static void stream_event(struct ampd_core *core, const struct ampd_event *event)
{
    struct ampd_call *call = ampd_call_find(core, event->call);
    if (call == NULL)
        return;
    switch (event->type) {
    case AMPD_EVENT_LOAD_BLOCK:
        ampd_load_block(core, call, &event->u.block);
        break;
    case AMPD_EVENT_LOAD_END:
        ampd_load_end(core, call);
        break;
    case AMPD_EVENT_PUSH_BLOCK:
        ampd_push_block(core, call, &event->u.block);
        break;
    default:
        ampd_push_end(core, call, &event->u.push_end);
        break;
    }
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
                ampd_acts_place(model);
            } else {
                ampd_shard_verdict_stored(model);
            }
            break;
        case AMPD_PERSIST_MODEL:
        case AMPD_PERSIST_EPOCH:
            ampd_memory_epoch_stored(model);
            break;
        case AMPD_PERSIST_CHECKPOINT:
            ampd_snapshot_stored(model);
            break;
        case AMPD_PERSIST_PARTS:
            ampd_catalogue_parts_stored(model);
            break;
        case AMPD_PERSIST_FENCE:
            ampd_fences_stored(core, pending);
            break;
        case AMPD_PERSIST_ACT:
            ampd_acts_stored(model, pending);
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
            ampd_delete_try(model);
            model->holds--;
        }
        ampd_sync_try_answer(core);
        return;
    }
}

/* A model of the store: its memory is lost, its ranks and checkpoints are known. */
static void model_found(struct ampd_core *core, const struct ampd_model_record *record)
{
    struct ampd_model *model;
    struct amp_error error = {0};
    if (ampd_model_new(core, &record->spec, &model, &error) != 0) {
        ampd_out_log(core, AMPD_LOG_ERROR, NULL, "%s cannot be brought back: %s", record->spec.name, error.text);
        return;
    }
    struct ampd_shard *shard = &model->shard;
    model->created_us = record->created_us;
    shard->stored = true;
    shard->epoch = record->epoch;
    shard->base_epoch = record->base_epoch;
    shard->base_step = record->base_step;
    model->coord.state = AMPD_COORD_SYNCING;
    model->coord.epoch = record->epoch;
    bool decided =
        record->last != NULL && (record->last->kind == AMPD_ROW_STEP ||
                                 (record->last->kind != AMPD_ROW_EPOCH && record->last->step > record->base_step));
    model->coord.known_count = record->acts_count;
    memcpy(model->coord.known, record->acts, record->acts_count * sizeof(record->acts[0]));
    model->coord.parent_step = decided ? record->last->step : 0;
    for (uint32_t i = 0; i < record->checkpoints_count; i++)
        AMP_NEED(ampd_catalogue_add(shard, &record->checkpoints[i]) == 0);
    for (uint32_t i = 0; i < record->workers_count; i++) {
        const struct ampd_worker_record *worker = &record->workers[i];
        if (worker->rank >= model->spec.world_size)
            continue;
        ampd_workers_found(model, worker);
    }
    if (record->deleting)
        model->coord.state = AMPD_COORD_DELETING;
    ampd_acts_found(model, record);
    ampd_sums_found(model, record);
}

static void start(struct ampd_core *core)
{
    core->started = true;
    for (uint32_t i = 0; i < core->models_count; i++)
        ampd_sums_start(core->models[i]);
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
        for (unsigned l = 0; l < sizeof(lists) / sizeof(lists[0]); l++) {
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
            ampd_ranks_tell_alive(core->models[i]);
        if (core->config.shard == 0)
            ampd_health_tick(core->models[i]);
    }
    if (core->sweep_ms != 0 && core->sweep_ms <= core->now_ms) {
        core->sweep_ms = 0;
        ampd_calls_sweep(core);
    }
}

/* Calls that are refused in any state: the server drains. */
static bool refused(struct ampd_core *core, const struct ampd_event *event)
{
    bool begins = (event->type >= AMPD_EVENT_CREATE_MODEL && event->type <= AMPD_EVENT_DELETE_MODEL) ||
                  event->type == AMPD_EVENT_LOAD_BEGIN || event->type == AMPD_EVENT_PULL ||
                  event->type == AMPD_EVENT_PUSH_BEGIN;
    if (!begins || !core->draining)
        return false;
    ampd_call_fail(core, event->call, NULL, AMP_EUNAVAILABLE, "DRAINING",
                   "the server is about to end; try again when it is back");
    return true;
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
        ampd_acts_scale(core, event->call, &event->u.act, AMPD_ROW_SET);
        break;
    case AMPD_EVENT_RESET_SCALE:
        ampd_acts_scale(core, event->call, &event->u.act, AMPD_ROW_RESET);
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

static void renew(struct ampd_core *core, const struct ampd_event_worker *worker)
{
    struct ampd_model *model = ampd_core_model_named(core, worker->model);
    if (model != NULL && worker->rank < model->spec.world_size)
        (void)ampd_workers_renew(model, worker->rank, worker->incarnation); /* an ended lease stays ended */
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
        if (stored && model->shard.journal_token == token)
            ampd_sums_stored(model);
        else if (!stored && model->shard.replay.token == token)
            ampd_sums_replayed(model, &event->u.replayed);
        else
            continue;
        ampd_delete_try(model);
        return;
    }
}

/* The completions of memory.c carry a token: the model is the one that waits for it. */
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
        if (event->type == AMPD_EVENT_RESTORED && model->shard.restore_token == token)
            ampd_memory_restored(model, &event->u.restored);
        else if (event->type == AMPD_EVENT_PART_WRITTEN && model->shard.snapshot_token == token)
            ampd_snapshot_written(model, &event->u.part);
        else if (event->type == AMPD_EVENT_PART_BLOCKS && model->shard.snapshot_token == token)
            ampd_snapshot_blocks(model, &event->u.part_blocks);
        else
            continue;
        ampd_delete_try(model);
        return;
    }
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
        ampd_sync_raised(core, &event->u.raised);
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
        ampd_bus_receive(core, event->u.message);
        break;
    case AMPD_EVENT_PEER_UP:
        core->peers[event->u.shard].up = true;
        core->hello_heard = false;
        core->hello_agains = 0;
        if (core->config.shard != 0 && event->u.shard == 0)
            ampd_resend_to_coordinator(core);
        break;
    case AMPD_EVENT_PEER_DOWN:
        ampd_leave_down(core, event->u.shard);
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

/* Asks for the next tick if it is another one than before. */
static void arm_timer(struct ampd_core *core)
{
    if (core->sweep_ms == 0 && core->calls_count > 0)
        core->sweep_ms = core->now_ms + AMPD_SWEEP_MS;
    ampd_resend_arm(core);
    uint64_t next = earlier(earlier(core->sweep_ms, core->alone_ms), core->hello_ms);
    for (uint32_t i = 0; i < core->models_count; i++) {
        if (core->models[i]->gone)
            continue;
        next = earlier(next, core->models[i]->shard.restore_retry_ms);
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
    ampd_bus_drain(core);
    ampd_leave_try(core);
    arm_timer(core);
    for (uint32_t i = 0; core->config.check && i < core->models_count; i++)
        ampd_model_check(core->models[i]);
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
    *info = (struct ampd_worker_info){
        .incarnation = worker->record.incarnation,
        .joined = worker->joined_epoch == model->shard.epoch && worker->joined_epoch != 0,
        .lease_left_ms =
            worker->lease == AMPD_LEASE_LIVE && worker->lease_until_ms > now_ms ? worker->lease_until_ms - now_ms : 0,
        .left = worker->record.left,
        .pushes = worker->pushes,
        .overflow_pushes = worker->overflow_pushes,
        .straggles = worker->straggles,
        .nonfinite = worker->nonfinite,
        .quarantined = ampd_workers_barred(model, rank, now_ms),
        .last_step = worker->last_step,
        .blocks_present = model->shard.slots[rank].present,
        .blocks_wanted = model->tensors.count,
        .awaited = core->config.shard == 0 && ampd_health_awaits(model, rank),
        .peer = worker->peer,
        .joins = worker->joins,
        .leaves = worker->leaves,
        .fences = worker->fences,
        .replacements = worker->replacements,
    };
    memcpy(info->name, worker->record.name, sizeof(info->name));
}
