/*
 * Workers: ranks, incarnations and leases (docs/step-protocol.md section 1). Used by the coordinator alone.
 *
 * A rank is held by a worker's name. A Join gives its holder a new incarnation, which is stored before the Join is
 * answered, and a lease that every sign of life renews. A lease that has ended stays ended: only a Join brings the rank
 * back. Leave ends the lease.
 *
 * The holder of a rank is settled once its record is stored. While a record of a rank is being written, no other name
 * gets the rank. A coordinator that starts cannot know which workers live: every rank that it finds counts as live
 * until a lease has passed.
 *
 *   NONE  -> LIVE, LEFT            a Join is stored; or the rank is found at a start
 *   LIVE  -> LIVE, ENDED, LEFT     a newer Join; no sign of life, quarantine, a start in an epoch that had
 *                                  not begun; Leave is stored
 *   ENDED -> LIVE, ENDED, LEFT
 *   LEFT  -> LIVE, ENDED, LEFT     Leave came again; ENDED: an epoch, or quarantine, begins while a Join is stored
 */
#include "server/core/coordinator/workers.h"

#include "base/assert.h"
#include "server/core/base/calls.h"
#include "server/core/base/limits.h"
#include "server/core/base/local.h"
#include "server/core/base/model.h"
#include "server/core/base/out.h"
#include "server/core/base/process.h"
#include "server/core/base/ranks.h"
#include "server/core/base/worker.h"
#include "server/core/coordinator/checkpoints.h"
#include "server/core/coordinator/coord.h"
#include "server/core/model/states.h"

#include <stdio.h>
#include <string.h>

static void set_lease(struct ampd_worker *worker, enum ampd_lease_state to)
{
    AMP_ASSERT(ampd_machine_allows(&ampd_machine_lease, worker->lease, to));
    worker->lease = to;
}

/* on_loss WAIT: every rank. SHRINK: the ranks that have joined under the epoch and live. */
bool ampd_workers_expected(const struct ampd_model *model, uint32_t rank)
{
    const struct ampd_worker *worker = &model->workers[rank];
    AMP_ASSERT(rank < model->spec.world_size);
    if (model->spec.on_loss != AMPD_ON_LOSS_SHRINK)
        return true;
    return worker->joined_epoch == model->coord->epoch && worker->lease == AMPD_LEASE_LIVE;
}

uint32_t ampd_workers_least(const struct ampd_model *model)
{
    const struct ampd_model_spec *spec = &model->spec;
    if (spec->on_loss != AMPD_ON_LOSS_SHRINK)
        return spec->world_size;
    return spec->sync == AMPD_SYNC_QUORUM && spec->quorum > spec->min_workers ? spec->quorum : spec->min_workers;
}

/*
 * WAIT: before the first step of an epoch, all ranks must have joined under it and none may have left; later, always.
 * SHRINK: min_workers, and a quorum if there is one, are there.
 */
bool ampd_workers_enough(const struct ampd_model *model)
{
    const struct ampd_model_spec *spec = &model->spec;
    bool shrinks = spec->on_loss == AMPD_ON_LOSS_SHRINK;
    bool begins = model->coord->state == AMPD_COORD_WAITING;
    uint32_t count = 0;
    for (uint32_t r = 0; r < spec->world_size; r++) {
        const struct ampd_worker *worker = &model->workers[r];
        bool here = worker->joined_epoch == model->coord->epoch && worker->lease != AMPD_LEASE_LEFT;
        count += shrinks ? (ampd_workers_expected(model, r) ? 1 : 0) : (here || !begins ? 1 : 0);
    }
    return count >= ampd_workers_least(model);
}

bool ampd_workers_holds_lease(const struct ampd_model *model, uint32_t *rank)
{
    for (*rank = 0; *rank < model->spec.world_size; (*rank)++) {
        const struct ampd_worker *worker = &model->workers[*rank];
        if (ampd_ranks_is_running(model, worker) && worker->joined_epoch == model->coord->epoch)
            return true;
    }
    return false;
}

/* ---- quarantine ---- */

/*
 * Whether steps can go on without the rank: not where each waits for all ranks, and not if fewer workers than it needs
 * would be left.
 */
static bool can_do_without(struct ampd_model *model, uint32_t rank)
{
    struct ampd_worker *worker = &model->workers[rank];
    uint32_t others = 0;
    AMP_ASSERT(rank < model->spec.world_size);
    if (model->spec.on_loss == AMPD_ON_LOSS_SHRINK) {
        enum ampd_lease_state lease = worker->lease;
        worker->lease = AMPD_LEASE_ENDED; /* as if it had ended, to ask ampd_workers_enough */
        bool enough = ampd_workers_enough(model);
        worker->lease = lease;
        return enough;
    }
    for (uint32_t r = 0; r < model->spec.world_size; r++)
        others += r != rank && ampd_ranks_is_running(model, &model->workers[r]) ? 1 : 0;
    return model->spec.sync == AMPD_SYNC_QUORUM && others >= model->spec.quorum;
}

bool ampd_workers_quarantine(struct ampd_model *model, uint32_t rank)
{
    struct ampd_worker *worker = &model->workers[rank];
    AMP_ASSERT(rank < model->spec.world_size);
    if (worker->joined_epoch != model->coord->epoch || !can_do_without(model, rank))
        return false;
    if (worker->lease == AMPD_LEASE_LIVE) { /* its last push counts though it may have left since */
        set_lease(worker, AMPD_LEASE_ENDED);
        worker->lease_until_ms = model->core->now_ms;
    }
    worker->health.quarantined_until_ms = model->core->now_ms + AMPD_QUARANTINE_MS;
    worker->health.barred_epoch = model->coord->epoch;
    return true;
}

bool ampd_workers_quarantined(const struct ampd_model *model, uint32_t rank, uint64_t now_ms)
{
    const struct ampd_worker *worker = &model->workers[rank];
    AMP_ASSERT(rank < model->spec.world_size);
    return worker->health.quarantined_until_ms > now_ms && worker->health.barred_epoch == model->coord->epoch;
}

/* ---- Join ---- */

static bool is_free(const struct ampd_model *model, uint32_t rank)
{
    const struct ampd_worker *worker = &model->workers[rank];
    AMP_ASSERT(rank < model->spec.world_size);
    return !worker->storing && (!worker->has_holder || worker->record.left) &&
           !ampd_workers_quarantined(model, rank, model->core->now_ms);
}

/* Whether a Join with `replace` may take the rank: its lease has ended. */
static bool is_lost(const struct ampd_model *model, uint32_t rank)
{
    const struct ampd_worker *worker = &model->workers[rank];
    AMP_ASSERT(rank < model->spec.world_size);
    return !worker->storing && !ampd_ranks_is_running(model, worker) &&
           !ampd_workers_quarantined(model, rank, model->core->now_ms);
}

static uint32_t rank_of_name(const struct ampd_model *model, const char *name)
{
    for (uint32_t r = 0; r < model->spec.world_size; r++) {
        if (model->workers[r].has_holder && strcmp(model->workers[r].record.name, name) == 0)
            return r;
    }
    return AMPD_NO_RANK;
}

/* The rank of a new name: its RANK, or the lowest that is free, or with `replace` one whose lease has ended. */
static uint32_t rank_for_new(const struct ampd_model *model, const struct ampd_event_join *join)
{
    if (join->rank >= 0) {
        uint32_t rank = (uint32_t)join->rank;
        return is_free(model, rank) || (join->replace && is_lost(model, rank)) ? rank : AMPD_NO_RANK;
    }
    for (uint32_t r = 0; r < model->spec.world_size; r++) {
        if (is_free(model, r))
            return r;
    }
    for (uint32_t r = 0; join->replace && r < model->spec.world_size; r++) {
        if (is_lost(model, r))
            return r;
    }
    return AMPD_NO_RANK;
}

static int check_join(const struct ampd_model *model, const struct ampd_event_join *join, struct amp_error *error)
{
    if (join->world_size != 0 && join->world_size != model->spec.world_size)
        return amp_error_set(error, AMP_EINVAL, "WORLD_SIZE",
                             "world_size: %u here, but %s has %u; start that many workers", join->world_size,
                             model->spec.name, model->spec.world_size);
    if (join->rank >= 0 && (uint32_t)join->rank >= model->spec.world_size)
        return amp_error_set(error, AMP_EINVAL, "RANK", "rank: %d is not below the world_size of %s, %u", join->rank,
                             model->spec.name, model->spec.world_size);
    if (join->worker[0] == 0 && join->rank < 0)
        return amp_error_set(error, AMP_EINVAL, "WORKER_NAME",
                             "worker_name: give a name, or set RANK in the environment");
    if (strnlen(join->worker, AMPD_NAME_MAX) == AMPD_NAME_MAX)
        return amp_error_set(error, AMP_EINVAL, "WORKER_NAME", "worker_name: give at most %d bytes", AMPD_NAME_MAX - 1);
    return 0;
}

static bool refuse_barred(struct ampd_model *model, uint64_t id, uint32_t rank)
{
    const struct ampd_worker *worker = &model->workers[rank];
    uint64_t now = model->core->now_ms;
    AMP_ASSERT(rank < model->spec.world_size);
    if (!ampd_workers_quarantined(model, rank, now))
        return false;
    ampd_call_fail(model->core, id, model, AMP_ESTATE, "QUARANTINED",
                   "rank %u (%s) has pushed Inf or NaN again and again while others had none: look at its data, or its "
                   "machine, and join again in %llu s",
                   rank, worker->record.name,
                   (unsigned long long)((worker->health.quarantined_until_ms - now + 999) / 1000));
    return true;
}

/* One write of a rank at a time: else repeated calls would fill the queue of a store whose disk is full. */
static bool refuse_storing(struct ampd_model *model, uint64_t id, uint32_t rank)
{
    AMP_ASSERT(rank < model->spec.world_size);
    if (!model->workers[rank].storing)
        return false;
    ampd_call_fail(model->core, id, model, AMP_EUNAVAILABLE, "RECOVERING",
                   "a Join or Leave of rank %u is being stored; ask again in a moment", rank);
    return true;
}

static struct ampd_pending *store(struct ampd_model *model, uint64_t id, const struct ampd_worker_record *record)
{
    struct ampd_persist *persist;
    struct ampd_pending *pending = ampd_out_persist(model, AMPD_PERSIST_WORKER, id, &persist);
    pending->worker = *record;
    model->workers[record->rank].storing = true;
    struct ampd_worker_record *copy = ampd_need(ampd_copy(record, sizeof *record));
    persist->worker = ampd_out_own(model->core, copy);
    return pending;
}

void ampd_workers_join(struct ampd_core *core, uint64_t id, const struct ampd_event_join *join)
{
    struct ampd_model *model = ampd_core_coordinated(core, id, join->model);
    if (model == NULL)
        return;
    struct amp_error error = {0};
    if (check_join(model, join, &error) != 0) {
        ampd_call_fail_with(core, id, model, &error);
        return;
    }
    char name[AMPD_NAME_MAX];
    if (join->worker[0] != 0)
        (void)snprintf(name, sizeof name, "%s", join->worker);
    else
        (void)snprintf(name, sizeof name, "rank-%d", join->rank);
    uint32_t rank = rank_of_name(model, name);
    if (rank != AMPD_NO_RANK && refuse_barred(model, id, rank))
        return;
    if (rank == AMPD_NO_RANK)
        rank = rank_for_new(model, join);
    if (rank == AMPD_NO_RANK) {
        ampd_call_fail(core, id, model, AMP_ESTATE, "NO_FREE_RANK",
                       "%s: no rank of %s is free; let a worker leave, or join with replace once its lease has ended",
                       name, model->spec.name);
        return;
    }
    if (refuse_storing(model, id, rank))
        return;
    if (core->last_incarnation == AMPD_INCARNATION_NUMBER_MAX) {
        ampd_call_fail(core, id, model, AMP_EEXHAUSTED, "TOO_MANY_JOINS",
                       "this process has answered %llu Joins, and can number no more; start it again",
                       (unsigned long long)core->last_incarnation);
        return;
    }
    if (ampd_call_begin(core, id, AMPD_CALL_UNARY, model) == NULL) {
        ampd_call_fail(core, id, model, AMP_EEXHAUSTED, "TOO_MANY_CALLS", "too many calls wait on this server");
        return;
    }
    uint64_t secret = join->random & AMPD_INCARNATION_SECRET_MAX;
    struct ampd_worker_record record = {
        .rank = rank,
        .incarnation = {core->config.fence.counter, ++core->last_incarnation | secret << AMPD_INCARNATION_NUMBER_BITS}};
    memcpy(record.name, name, sizeof name);
    /* The name holds the rank from now on, so that another Join cannot be given it meanwhile. */
    if (strcmp(model->workers[rank].record.name, name) != 0) { /* another worker: nothing is known of its pushes */
        model->workers[rank].health.bad_pushes = model->workers[rank].health.slow_in_row = 0;
        model->workers[rank].health.nonfinite = model->workers[rank].health.straggles = false;
        model->workers[rank].health.bad_window = 0;
        model->workers[rank].health.finite_scale = 0;
        model->workers[rank].named = record.incarnation;
    }
    model->workers[rank].has_holder = true;
    memcpy(model->workers[rank].record.name, name, sizeof name);
    model->workers[rank].record.rank = rank;
    model->workers[rank].record.left = false;
    struct ampd_pending *pending = store(model, id, &record);
    pending->instance = join->instance;
    (void)snprintf(pending->peer, sizeof pending->peer, "%s", join->peer != NULL ? join->peer : ""); /* truncated */
}

/*
 * The answer has the epoch and the user state that it began with. While the next epoch is being prepared the two do not
 * belong together, so the worker is asked to come again.
 */
static void answer_join(struct ampd_model *model, uint64_t id, const struct ampd_worker_record *record)
{
    if (model->coord->state == AMPD_COORD_RESTORING || model->coord->state == AMPD_COORD_STORING) {
        ampd_call_fail(model->core, id, model, AMP_EUNAVAILABLE, "RECOVERING",
                       "%s is being made ready; join again in a moment", model->spec.name);
        return;
    }
    struct ampd_reply *reply = ampd_call_reply(model->core, id, AMPD_REPLY_JOIN);
    const struct ampd_bytes *state = ampd_local_user_state(model, record->rank);
    reply->u.join = (struct ampd_join_result){.model = model->index,
                                              .rank = record->rank,
                                              .world_size = model->spec.world_size,
                                              .incarnation = record->incarnation,
                                              .epoch = model->coord->epoch,
                                              .step = ampd_local_next_step(model),
                                              .lease_ms = model->core->config.lease_ms};
    if (state->size > 0) {
        reply->u.join.user_state_size = state->size;
        reply->u.join.user_state = ampd_out_own(model->core, ampd_need(ampd_copy(state->data, state->size)));
    }
}

/* Whether all ranks of the epoch have left in order: the model is idle, and no rank is waited for. */
static bool is_idle(const struct ampd_model *model)
{
    for (uint32_t r = 0; r < model->spec.world_size; r++) {
        const struct ampd_worker *worker = &model->workers[r];
        if (worker->joined_epoch == model->coord->epoch && worker->lease != AMPD_LEASE_LEFT)
            return false;
    }
    return true;
}

/* A worker has joined an idle model: loss_timeout of the ranks that have left begins now. */
static void end_idle(struct ampd_model *model)
{
    for (uint32_t r = 0; r < model->spec.world_size; r++) {
        if (model->workers[r].lease == AMPD_LEASE_LEFT)
            model->workers[r].lease_until_ms = model->core->now_ms;
    }
}

void ampd_workers_stored(struct ampd_model *model, const struct ampd_pending *pending)
{
    struct ampd_worker *worker = &model->workers[pending->worker.rank];
    bool wanted = pending->call != 0 && ampd_call_find(model->core, pending->call) != NULL;
    AMP_ASSERT(model->core->config.shard == 0);
    AMP_ASSERT(worker->storing);
    worker->storing = false;
    if (pending->worker.left) {
        worker->record = pending->worker;
        if (worker->lease != AMPD_LEASE_LEFT)             /* else the Leave has come again */
            worker->lease_until_ms = model->core->now_ms; /* loss_timeout begins now */
        set_lease(worker, AMPD_LEASE_LEFT);
        ampd_ranks_left(model, pending->worker.rank);
        if (wanted)
            (void)ampd_call_reply(model->core, pending->call, AMPD_REPLY_NONE);
        if (model->spec.on_loss == AMPD_ON_LOSS_SHRINK)
            ampd_coord_ranks(model);
        else
            ampd_coord_review(model);
        ampd_checkpoints_try(model);
        ampd_local_retry(model);
        return;
    }
    if (is_idle(model))
        end_idle(model);
    /* Writes are stored in order. */
    AMP_ASSERT(!worker->has_holder || !ampd_incarnation_newer(worker->record.incarnation, pending->worker.incarnation));
    ampd_ranks_joined(model, pending);
    worker->record = pending->worker;
    bool barred = ampd_workers_quarantined(model, worker->record.rank, model->core->now_ms); /* meanwhile */
    set_lease(worker, barred ? AMPD_LEASE_ENDED : AMPD_LEASE_LIVE);
    worker->joined_epoch = model->coord->epoch;
    worker->lease_until_ms = model->core->now_ms + (barred ? 0 : model->core->config.lease_ms);
    if (wanted && barred)
        (void)refuse_barred(model, pending->call, worker->record.rank);
    else if (wanted)
        answer_join(model, pending->call, &pending->worker);
    ampd_coord_ranks(model);
    ampd_local_retry(model);
}

/* ---- KeepAlive, Leave ---- */

static bool check_rank(struct ampd_core *core, uint64_t id, const struct ampd_model *model, uint32_t rank)
{
    if (rank < model->spec.world_size)
        return true;
    ampd_call_fail(core, id, model, AMP_EINVAL, "RANK", "rank: %u is not below the world_size of %s, %u", rank,
                   model->spec.name, model->spec.world_size);
    return false;
}

void ampd_workers_keep_alive(struct ampd_core *core, uint64_t id, const struct ampd_event_worker *event)
{
    struct ampd_model *model = ampd_core_coordinated(core, id, event->model);
    if (model == NULL || !check_rank(core, id, model, event->rank))
        return;
    struct ampd_worker *worker = &model->workers[event->rank];
    bool holder = worker->has_holder && worker->joined_epoch == model->coord->epoch &&
                  ampd_incarnation_same(worker->record.incarnation, event->incarnation);
    bool valid = holder && ampd_ranks_is_running(model, worker); /* core.c has renewed it */
    struct amp_error error = {0};
    if (ampd_incarnation_is_guess(event->incarnation, worker->record.incarnation))
        (void)ampd_ranks_refuse(model, event->rank, event->incarnation, &error); /* counts and logs it */
    struct ampd_reply *reply = ampd_call_reply(core, id, AMPD_REPLY_KEEP_ALIVE);
    reply->u.keep_alive.model = model->index;
    reply->u.keep_alive.epoch = model->coord->epoch;
    reply->u.keep_alive.step = ampd_local_next_step(model);
    reply->u.keep_alive.state = ampd_coord_public(model);
    reply->u.keep_alive.valid = valid;
    reply->u.keep_alive.lease_ms = valid ? worker->lease_until_ms - core->now_ms : 0;
    char taken[AMP_ERROR_TEXT_MAX];
    ampd_ranks_taken(model, event->rank, event->incarnation, taken, sizeof taken);
    reply->u.keep_alive.taken_by = ampd_out_own(core, ampd_need(ampd_copy(taken, sizeof taken)));
}

void ampd_workers_leave(struct ampd_core *core, uint64_t id, const struct ampd_event_worker *event)
{
    struct ampd_model *model = ampd_core_coordinated(core, id, event->model);
    if (model == NULL || !check_rank(core, id, model, event->rank))
        return;
    if (refuse_storing(model, id, event->rank))
        return;
    struct ampd_worker *worker = &model->workers[event->rank];
    if (!worker->has_holder || !ampd_incarnation_same(worker->record.incarnation, event->incarnation)) {
        struct amp_error error = {0};
        (void)ampd_ranks_refuse(model, event->rank, event->incarnation, &error);
        ampd_call_fail_with(core, id, model, &error);
        return;
    }
    if (ampd_call_begin(core, id, AMPD_CALL_UNARY, model) == NULL) {
        ampd_call_fail(core, id, model, AMP_EEXHAUSTED, "TOO_MANY_CALLS", "too many calls wait on this server");
        return;
    }
    struct ampd_worker_record record = worker->record;
    record.left = true;
    (void)store(model, id, &record);
}

/* ---- EvictWorker: a Leave on an operator's behalf ---- */

bool ampd_workers_may_evict(struct ampd_model *model, uint64_t id, uint32_t rank)
{
    return check_rank(model->core, id, model, rank) && !refuse_storing(model, id, rank);
}

bool ampd_workers_evict(struct ampd_model *model, uint32_t rank, const struct ampd_note *note)
{
    struct ampd_worker *worker = &model->workers[rank];
    AMP_ASSERT(rank < model->spec.world_size);
    AMP_ASSERT(!worker->storing);
    ampd_out_log(model->core, AMP_LOG_WARN, model, "rank %u (%s) is evicted by %s: %s", rank,
                 worker->has_holder ? worker->record.name : "held by nobody", note->actor, note->words);
    if (!worker->has_holder || worker->record.left)
        return false;
    worker->evicted = worker->record.incarnation;
    worker->evicted_ms = model->core->now_ms;
    struct ampd_worker_record record = worker->record;
    record.left = true;
    (void)store(model, 0, &record);
    return true;
}

/* ---- a start ---- */

void ampd_workers_adopt(struct ampd_model *model, bool started, bool begun)
{
    for (uint32_t r = 0; r < model->spec.world_size; r++) {
        struct ampd_worker *worker = &model->workers[r];
        bool known = worker->lease == AMPD_LEASE_LIVE && worker->joined_epoch == model->coord->epoch;
        bool left = worker->record.left;
        if (!worker->has_holder && started && begun && model->spec.on_loss != AMPD_ON_LOSS_SHRINK) {
            worker->joined_epoch = model->coord->epoch; /* all had joined: its record was lost with the power */
            worker->lease_until_ms = model->core->now_ms;
        }
        if (!worker->has_holder || (!started && !known))
            continue; /* a lease that has ended stays ended */
        if (begun) {
            worker->joined_epoch = model->coord->epoch;
            set_lease(worker, left ? AMPD_LEASE_LEFT : AMPD_LEASE_LIVE);
            /* Whoever has left may be missed: loss_timeout begins now. */
            worker->lease_until_ms = model->core->now_ms + (left ? 0 : model->core->config.lease_ms);
        } else if (!known && !left) { /* no step waits for it: its next call is refused, and it joins again */
            set_lease(worker, AMPD_LEASE_ENDED);
            worker->lease_until_ms = model->core->now_ms;
        }
    }
}

/* ---- time ---- */

void ampd_workers_found(struct ampd_model *model, const struct ampd_worker_record *record)
{
    struct ampd_worker *worker = &model->workers[record->rank];
    worker->record = *record;
    worker->named = record->incarnation;
    worker->has_holder = true;
    set_lease(worker, record->left ? AMPD_LEASE_LEFT : AMPD_LEASE_LIVE);
    worker->lease_until_ms = model->core->now_ms + model->core->config.lease_ms;
}

void ampd_workers_tick(struct ampd_model *model)
{
    uint64_t now = model->core->now_ms;
    bool lost = false;
    for (uint32_t r = 0; r < model->spec.world_size; r++) {
        struct ampd_worker *worker = &model->workers[r];
        ampd_ranks_tick(model, r);
        if (worker->lease == AMPD_LEASE_LIVE && worker->lease_until_ms <= now) {
            set_lease(worker, AMPD_LEASE_ENDED);
            lost = true;
            if (model->coord->state == AMPD_COORD_DONE)
                continue; /* training is over: its worker may be gone */
            ampd_out_log(model->core, AMP_LOG_WARN, model, "the lease of rank %u (%s) has ended", r,
                         worker->record.name);
        }
    }
    if (lost && model->spec.on_loss == AMPD_ON_LOSS_SHRINK)
        ampd_coord_ranks(model);
    else
        ampd_coord_review(model);
    if (lost)
        ampd_checkpoints_try(model);
    if (lost)
        ampd_local_retry(model);
}

uint32_t ampd_workers_gone(const struct ampd_model *model)
{
    if (is_idle(model))
        return AMPD_NO_RANK;
    for (uint32_t r = 0; r < model->spec.world_size; r++) {
        const struct ampd_worker *worker = &model->workers[r];
        if (worker->lease != AMPD_LEASE_LIVE && worker->joined_epoch == model->coord->epoch &&
            ampd_coord_waits_for(model, r) &&
            model->core->now_ms >= worker->lease_until_ms + model->spec.loss_timeout_ms)
            return r;
    }
    return AMPD_NO_RANK;
}

uint64_t ampd_workers_next_ms(const struct ampd_model *model)
{
    uint64_t next = 0;
    bool idle = is_idle(model);
    for (uint32_t r = 0; r < model->spec.world_size; r++) {
        const struct ampd_worker *worker = &model->workers[r];
        uint64_t at = ampd_ranks_next_ms(worker);
        if (at != 0 && (next == 0 || at < next))
            next = at;
        if (worker->joined_epoch != model->coord->epoch || worker->joined_epoch == 0)
            continue;
        at = worker->lease_until_ms;
        if (worker->lease != AMPD_LEASE_LIVE) {
            if (idle || model->coord->state != AMPD_COORD_RUNNING || !ampd_coord_waits_for(model, r))
                continue;
            at += model->spec.loss_timeout_ms;
        }
        if (next == 0 || at < next)
            next = at;
    }
    return next;
}

void ampd_workers_alive(struct ampd_model *model, const struct ampd_alive *alive)
{
    AMP_ASSERT(model->core->config.shard == 0);
    for (uint32_t i = 0; i < alive->count; i++)
        (void)ampd_ranks_renew(model, alive->workers[i].rank, alive->workers[i].incarnation);
}
