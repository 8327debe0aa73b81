/*
 * The coordinator of a model: which workers may push a step, when it is decided, and what becomes of the model.
 *
 *   CREATING  -> CREATED, SYNCING, DELETING       the model is stored on all shards; a shard has no memory for it
 *   SYNCING   -> RESTORING                        sync.c: a shard has started, and memory is lost
 *   SYNCING   -> CREATED, LOADED, WAITING, RUNNING, STALLED, FINISHING, DONE   nothing is lost
 *   SYNCING   -> DELETING                         its checkpoints are out of reach, and an operator gives it up
 *   RESTORING -> RESTORING, STORING, SYNCING, DELETING
 *   STORING   -> CREATED, WAITING, DONE, SYNCING, DELETING  the new epoch is stored on all shards
 *   CREATED   -> LOADED, SYNCING, DELETING        all shards have every block
 *   CREATED   -> RESTORING                        a load broke off: the next one has an epoch of its own
 *   LOADED    -> WAITING, SYNCING, DELETING       its first checkpoint is written
 *   LOADED    -> DONE                             that is written, for a load from elsewhere, after max_steps
 *   WAITING   -> RUNNING, RESTORING, SYNCING, DELETING     all ranks have joined under the epoch
 *   RUNNING   -> STALLED, FINISHING               a rank is gone too long; after max_steps
 *   RUNNING   -> RESTORING, SYNCING, DELETING
 *   STALLED   -> RUNNING, RESTORING, SYNCING, DELETING     it came back
 *   FINISHING -> DONE, RESTORING, SYNCING, DELETING        the last checkpoint is written
 *   DONE      -> RESTORING, SYNCING, DELETING     RESTORING: an operator rolls back (rollback.c)
 *   DELETING  ->                                  delete.c
 *
 * Its step goes through NONE, OPEN, CLOSED and VOTED as on a shard (shard.c). VOTED means that all votes are in and the
 * verdict is being stored: from then on nothing can change it. Until then a newer incarnation of an expected rank opens
 * a new try.
 *
 * A model is frozen while its scale at the floor keeps steps from opening. That is no state, but what its record says
 * (ampd_coord_is_frozen), so that it ends with the row that sets the scale.
 */
#include "server/core/coordinator/coord.h"

#include "base/assert.h"
#include "server/core/base/calls.h"
#include "server/core/base/limits.h"
#include "server/core/base/local.h"
#include "server/core/base/model.h"
#include "server/core/base/out.h"
#include "server/core/base/process.h"
#include "server/core/base/worker.h"
#include "server/core/coordinator/actions.h"
#include "server/core/coordinator/checkpoints.h"
#include "server/core/coordinator/coord_load.h"
#include "server/core/coordinator/delete.h"
#include "server/core/coordinator/health.h"
#include "server/core/coordinator/rollback.h"
#include "server/core/coordinator/sync.h"
#include "server/core/coordinator/verdict.h"
#include "server/core/coordinator/workers.h"
#include "server/core/model/states.h"
#include "server/core/wire/bus.h"
#include "server/core/wire/messages.h"
#include "server/core/wire/verdict_rows.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Bytes of the list of ranks in a line of the log. */
#define RANKS_TEXT_MAX 256

void ampd_coord_set(struct ampd_model *model, enum ampd_coord_state state)
{
    AMP_ASSERT(ampd_machine_allows(&ampd_machine_coord, model->coord->state, state));
    model->coord->state = state;
    if (state == AMPD_COORD_DONE) /* the last row of the history is stored by now: watchers need not wait for more */
        ampd_out(model->core, AMPD_OUT_NOTIFY, 0)->u.notify.model = model->index;
}

void ampd_coord_set_step(struct ampd_coord *coord, enum ampd_step_state to)
{
    AMP_ASSERT(ampd_machine_allows(&ampd_machine_step, coord->step.state, to));
    coord->step.state = to;
}

void ampd_coord_set_decision(struct ampd_coord *coord, enum ampd_decided_state to)
{
    AMP_ASSERT(ampd_machine_allows(&ampd_machine_decided, coord->decision.state, to));
    coord->decision.state = to;
}

void ampd_coord_record(struct ampd_coord *coord, const struct ampd_carry *carry)
{
    coord->carry = *carry;
    coord->newest = *carry;
    coord->has_record = true;
}

void ampd_coord_close(struct ampd_model *model)
{
    struct ampd_coord *coord = model->coord;
    for (uint32_t k = 0; k < AMPD_SHARDS_MAX; k++) {
        ampd_message_free(coord->step.votes[k]);
        ampd_message_free(coord->sync.answers[k]);
    }
    free(coord->decision.verdict);
}

enum ampd_model_state ampd_coord_public(const struct ampd_model *model)
{
    switch (model->coord->state) {
    case AMPD_COORD_LOADED:
        return AMPD_MODEL_LOADING;
    case AMPD_COORD_SYNCING:
    case AMPD_COORD_RESTORING:
    case AMPD_COORD_STORING:
    case AMPD_COORD_WAITING:
        return AMPD_MODEL_WAITING;
    case AMPD_COORD_RUNNING:
    case AMPD_COORD_FINISHING:
        return AMPD_MODEL_RUNNING;
    case AMPD_COORD_STALLED:
        return AMPD_MODEL_STALLED;
    case AMPD_COORD_DONE:
        return AMPD_MODEL_DONE;
    default:
        return ampd_local_loads(model) ? AMPD_MODEL_LOADING : AMPD_MODEL_CREATED;
    }
}

bool ampd_coord_is_frozen(const struct ampd_model *model)
{
    const struct ampd_coord *coord = model->coord;
    bool over = coord->state == AMPD_COORD_FINISHING || coord->state == AMPD_COORD_DONE;
    return !over && ampd_floor_stops(&model->spec, &coord->carry.scaler);
}

static struct ampd_message *state_message(struct ampd_model *model, uint32_t shard)
{
    struct ampd_message *message = ampd_bus_message(model, AMPD_MESSAGE_STATE, shard);
    AMP_ASSERT(shard < AMPD_COUNT(model->core));
    message->u.state.sequence = ++model->coord->state_sequence;
    message->u.state.state = ampd_coord_public(model);
    message->u.state.missing_rank = model->coord->missing_rank;
    message->u.state.trouble = ampd_sync_troubled(model);
    message->u.state.frozen = ampd_coord_is_frozen(model);
    return message;
}

void ampd_coord_send_state(struct ampd_model *model)
{
    AMP_ASSERT(model->core->config.shard == 0);
    ampd_bus_send_all_take(model->core, state_message(model, 0));
}

/* ---- opening a step ---- */

/*
 * SHRINK: of those that the try before has listed, who is still there; how many are left. The step goes on with these
 * where they are enough: a worker that starts again and again would else have each try of it begin anew.
 */
static uint32_t keep_listed(const struct ampd_model *model, struct ampd_open *open)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < open->expected_count; i++) {
        struct ampd_expected was = open->expected[i];
        if (ampd_workers_expected(model, was.rank) &&
            ampd_incarnation_same(was.incarnation, model->workers[was.rank].record.incarnation))
            open->expected[kept++] = was;
    }
    return kept;
}

bool ampd_coord_was_open(const struct ampd_coord *coord)
{
    return coord->step.open.step == coord->decided + 1;
}

/* The step after the last decided one, in its first try, or in the next one if it was open before. */
static void fill_open(struct ampd_model *model)
{
    struct ampd_coord *coord = model->coord;
    struct ampd_open *open = &coord->step.open;
    bool first = !ampd_coord_was_open(coord);
    uint32_t kept = model->spec.on_loss == AMPD_ON_LOSS_SHRINK && !first ? keep_listed(model, open) : 0;
    bool keeps = kept >= ampd_workers_least(model);
    open->step = coord->decided + 1;
    open->try_number = first ? 0 : open->try_number + 1;
    if (first) { /* all tries have the scale of the first: gradients carry it */
        open->scale = coord->carry.scaler.scale;
        open->scale_id = coord->carry.scaler.scale_id;
    }
    open->coefficient = 0;
    open->expected_count = keeps ? kept : 0;
    for (uint32_t r = 0; !keeps && r < model->spec.world_size; r++) {
        if (ampd_workers_expected(model, r))
            open->expected[open->expected_count++] = (struct ampd_expected){r, model->workers[r].record.incarnation};
    }
    open->closed = model->spec.weighting == AMPD_WEIGHTING_EQUAL && model->spec.sync == AMPD_SYNC_ALL &&
                   model->spec.schedule != AMPD_SCHEDULE_WORKER; /* then rates are compared before anything is summed */
    if (open->closed)
        open->coefficient = amp_coefficient(open->scale, (double)open->expected_count);
}

/* "0, 1, 2" of `count` ranks that lie `stride` bytes apart; a list without room for all ends with an ellipsis. */
static const char *list_ranks(const uint32_t *first, uint32_t count, size_t stride, char text[RANKS_TEXT_MAX])
{
    size_t used = 0;
    text[0] = 0;
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t *rank = (const uint32_t *)((const char *)first + i * stride);
        bool last = used > RANKS_TEXT_MAX - sizeof "1234567890, ...";
        used +=
            (size_t)snprintf(text + used, RANKS_TEXT_MAX - used, last ? "%s..." : "%s%u", i == 0 ? "" : ", ", *rank);
        if (last)
            break;
    }
    return text;
}

static void log_open(const struct ampd_model *model)
{
    const struct ampd_open *open = &model->coord->step.open;
    char ranks[RANKS_TEXT_MAX];
    if (model->core->debug)
        ampd_out_log(model->core, AMP_LOG_DEBUG, model, "step %llu is open, try %u, for ranks %s, at scale %.9g",
                     (unsigned long long)open->step, open->try_number,
                     list_ranks(&open->expected[0].rank, open->expected_count, sizeof open->expected[0], ranks),
                     (double)open->scale);
}

static void log_close(const struct ampd_model *model)
{
    const struct ampd_close *close = &model->coord->step.close;
    char ranks[RANKS_TEXT_MAX];
    if (model->core->debug)
        ampd_out_log(
            model->core, AMP_LOG_DEBUG, model, "step %llu is closed, try %u, with ranks %s",
            (unsigned long long)close->step, close->try_number,
            list_ranks(&close->contributors[0].rank, close->contributors_count, sizeof close->contributors[0], ranks));
}

/* Closes the step with its OPEN: every expected rank contributes, with weight 1. */
static void close_with_open(struct ampd_coord *coord)
{
    struct ampd_close *close = &coord->step.close;
    ampd_close_of_open(&coord->step.open, close);
    coord->step.hash = ampd_contributors_hash(close->contributors, close->contributors_count);
    ampd_coord_set_step(coord, AMPD_STEP_CLOSED);
}

bool ampd_coord_has_steps(const struct ampd_coord *coord)
{
    return coord->state == AMPD_COORD_RUNNING || coord->state == AMPD_COORD_STALLED ||
           coord->state == AMPD_COORD_FINISHING;
}

static void forget_votes(struct ampd_coord *coord)
{
    for (uint32_t k = 0; k < AMPD_SHARDS_MAX; k++) {
        ampd_message_free(coord->step.votes[k]);
        coord->step.votes[k] = NULL;
    }
    coord->step.votes_count = 0;
    coord->step.complete_count = 0;
    memset(coord->step.complete, 0, sizeof coord->step.complete);
}

static void open_step(struct ampd_model *model)
{
    struct ampd_coord *coord = model->coord;
    fill_open(model);
    forget_votes(coord);
    coord->step.opened_ms = model->core->now_ms;
    coord->step.whole_us = 0;
    ampd_coord_set_step(coord, AMPD_STEP_OPEN);
    log_open(model);
    if (!coord->step.open.closed)
        return;
    close_with_open(coord);
    log_close(model);
}

/* Whether nothing but a step that is open or being stored keeps the next one from opening. */
static bool may_open(const struct ampd_model *model)
{
    return !ampd_core_pauses(model->core) && !ampd_coord_is_frozen(model) && ampd_workers_enough(model);
}

static void send_open(struct ampd_model *model)
{
    struct ampd_message *message = ampd_bus_message(model, AMPD_MESSAGE_OPEN, 0);
    message->u.open = model->coord->step.open;
    ampd_bus_send_all_take(model->core, message);
}

bool ampd_coord_is_complete(const struct ampd_model *model, uint32_t rank)
{
    AMP_ASSERT(rank < model->spec.world_size);
    return model->coord->step.complete[rank] == AMPD_ALL_SHARDS(model->core);
}

/*
 * Whether the step needs a new try: an expected rank has another incarnation, or (SHRINK) is gone without having
 * pushed.
 */
static bool list_is_old(const struct ampd_model *model)
{
    const struct ampd_open *open = &model->coord->step.open;
    const struct ampd_close *close = model->coord->step.state == AMPD_STEP_CLOSED ? &model->coord->step.close : NULL;
    for (uint32_t i = 0; i < open->expected_count; i++) {
        uint32_t rank = open->expected[i].rank;
        if (close != NULL && ampd_contributor_of(close->contributors, close->contributors_count, rank) == NULL)
            continue; /* a quorum has closed without it: it comes in with the next step */
        const struct ampd_worker *worker = &model->workers[rank];
        bool lost = !ampd_workers_expected(model, rank) && !ampd_coord_is_complete(model, rank);
        if (lost || !ampd_incarnation_same(open->expected[i].incarnation, worker->record.incarnation))
            return true;
    }
    return false;
}

/* Opens the first step of an epoch, or the next one after a pause, when enough ranks are there. */
static void open_first(struct ampd_model *model)
{
    struct ampd_coord *coord = model->coord;
    if (!ampd_workers_enough(model) || coord->actions.storing > 0)
        return;
    if (coord->state == AMPD_COORD_WAITING) {
        ampd_coord_set(model, AMPD_COORD_RUNNING);
        ampd_coord_send_state(model);
    }
    if (ampd_coord_is_frozen(model))
        return;
    open_step(model);
    send_open(model);
}

void ampd_coord_ranks(struct ampd_model *model)
{
    struct ampd_coord *coord = model->coord;
    AMP_ASSERT(model->core->config.shard == 0);
    if (ampd_core_pauses(model->core))
        return;
    if (coord->state == AMPD_COORD_WAITING) {
        open_first(model);
        return;
    }
    bool open = coord->step.state == AMPD_STEP_OPEN || coord->step.state == AMPD_STEP_CLOSED;
    bool running = coord->state == AMPD_COORD_RUNNING || coord->state == AMPD_COORD_STALLED;
    if (running && coord->step.state == AMPD_STEP_NONE) {
        open_first(model);
    } else if (open && ampd_coord_has_steps(coord) && ampd_workers_enough(model) && list_is_old(model)) {
        open_step(model);
        send_open(model);
    }
    ampd_coord_review(model); /* last: a step that opens now may not wait for who is gone */
    ampd_checkpoints_try(model);
}

static void stall(struct ampd_model *model, uint32_t rank)
{
    struct ampd_coord *coord = model->coord;
    AMP_ASSERT(rank < model->spec.world_size);
    coord->missing_rank = rank;
    ampd_out_log(model->core, AMP_LOG_ERROR, model, "stalled at step %llu: rank %u (%s) has been gone for loss_timeout",
                 (unsigned long long)coord->step.open.step, rank,
                 model->workers[rank].has_holder ? model->workers[rank].record.name : "unknown");
    ampd_coord_send_state(model);
}

void ampd_coord_review(struct ampd_model *model)
{
    struct ampd_coord *coord = model->coord;
    if (coord->state != AMPD_COORD_RUNNING && coord->state != AMPD_COORD_STALLED)
        return;
    uint32_t gone = ampd_workers_gone(model);
    if (gone == AMPD_NO_RANK && coord->state == AMPD_COORD_STALLED) {
        ampd_coord_set(model, AMPD_COORD_RUNNING);
        ampd_coord_send_state(model);
    } else if (gone != AMPD_NO_RANK && coord->state == AMPD_COORD_RUNNING) {
        ampd_coord_set(model, AMPD_COORD_STALLED);
        stall(model, gone);
    } else if (gone != AMPD_NO_RANK && gone != coord->missing_rank) {
        stall(model, gone);
    }
}

/* ---- COMPLETE and CLOSE ---- */

static bool of_this_try(const struct ampd_model *model, const struct ampd_message *message, uint64_t step,
                        uint32_t try_number)
{
    const struct ampd_coord *coord = model->coord;
    return message->epoch == coord->epoch && step == coord->step.open.step && try_number == coord->step.open.try_number;
}

/* How many ranks contribute: all that are expected, or with a quorum of q the first q that are complete. */
static uint32_t contributors_wanted(const struct ampd_model *model)
{
    return model->spec.sync == AMPD_SYNC_QUORUM ? model->spec.quorum : model->coord->step.open.expected_count;
}

/* Closes a step whose contributors were not known at OPEN, as soon as enough ranks are complete on all shards. */
static void try_close(struct ampd_model *model)
{
    struct ampd_coord *coord = model->coord;
    if (coord->step.complete_count < contributors_wanted(model))
        return;
    struct ampd_close *close = &coord->step.close;
    *close = (struct ampd_close){.step = coord->step.open.step, .try_number = coord->step.open.try_number};
    double sum = 0; /* in rank order, in double */
    for (uint32_t i = 0; i < coord->step.open.expected_count; i++) {
        const struct ampd_expected *expected = &coord->step.open.expected[i];
        float weight = coord->step.weights[expected->rank];
        if (!ampd_coord_is_complete(model, expected->rank))
            continue;
        close->contributors[close->contributors_count++] =
            (struct ampd_contributor){expected->rank, expected->incarnation, weight};
        sum += (double)weight;
        coord->step.lr = coord->step.rates[expected->rank]; /* the same for all: ampd_coord_complete */
    }
    AMP_ASSERT(close->contributors_count == contributors_wanted(model)); /* each COMPLETE is looked at as it comes */
    close->empty = !(sum > 0);
    close->coefficient = sum > 0 ? amp_coefficient(coord->step.open.scale, sum) : 0;
    coord->step.hash = ampd_contributors_hash(close->contributors, close->contributors_count);
    ampd_coord_set_step(coord, AMPD_STEP_CLOSED);
    log_close(model);
    struct ampd_message *message = ampd_bus_message(model, AMPD_MESSAGE_CLOSE, 0);
    message->u.close = *close;
    ampd_bus_send_all_take(model->core, message);
}

/*
 * Sends UNFIT: the shards were given different headers, or `other` has another learning rate. The push counts nowhere.
 */
static void refuse_push(struct ampd_model *model, const struct ampd_complete *complete, uint32_t other)
{
    struct ampd_coord_step *step = &model->coord->step;
    step->complete_count -= ampd_coord_is_complete(model, complete->contributor.rank) ? 1 : 0;
    step->complete[complete->contributor.rank] = 0;
    struct ampd_message *message = ampd_bus_message(model, AMPD_MESSAGE_UNFIT, 0);
    message->u.unfit = (struct ampd_unfit){
        .push = *complete, .other = other, .other_weight = step->weights[other], .other_lr = step->rates[other]};
    ampd_bus_send_all_take(model->core, message);
}

/*
 * The rank whose push a COMPLETE does not agree with: its own, if another shard was given another weight or rate; or
 * one that is complete on all shards with another rate, once this push would be complete on all. AMPD_NO_RANK: none.
 */
static uint32_t disagrees_with(const struct ampd_model *model, const struct ampd_message *message)
{
    const struct ampd_coord_step *step = &model->coord->step;
    const struct ampd_complete *complete = &message->u.complete;
    uint32_t rank = complete->contributor.rank;
    if (step->complete[rank] != 0 &&
        (step->weights[rank] != complete->contributor.weight || step->rates[rank] != complete->lr))
        return rank;
    bool whole = (step->complete[rank] | AMPD_BIT(message->from)) == AMPD_ALL_SHARDS(model->core);
    if (!whole || step->state != AMPD_STEP_OPEN) /* CLOSED: the push counts already, or comes too late */
        return AMPD_NO_RANK;
    for (uint32_t i = 0; i < step->open.expected_count; i++) {
        uint32_t other = step->open.expected[i].rank;
        if (ampd_coord_is_complete(model, other) && step->rates[other] != complete->lr)
            return other;
    }
    return AMPD_NO_RANK;
}

void ampd_coord_complete(struct ampd_model *model, const struct ampd_message *message)
{
    struct ampd_coord *coord = model->coord;
    const struct ampd_complete *complete = &message->u.complete;
    uint32_t rank = complete->contributor.rank;
    const struct ampd_expected *expected = ampd_open_find(&coord->step.open, rank);
    bool open = coord->step.state == AMPD_STEP_OPEN || coord->step.state == AMPD_STEP_CLOSED;
    AMP_ASSERT(model->core->config.shard == 0 && message->from < AMPD_COUNT(model->core));
    if (!open || !ampd_coord_has_steps(coord) || expected == NULL ||
        !ampd_incarnation_same(expected->incarnation, complete->contributor.incarnation) ||
        !of_this_try(model, message, complete->step, complete->try_number))
        return;
    uint32_t other = disagrees_with(model, message);
    if (other != AMPD_NO_RANK) {
        refuse_push(model, complete, other);
        return;
    }
    if (coord->step.complete[rank] != AMPD_ALL_SHARDS(model->core)) {
        coord->step.complete[rank] |= AMPD_BIT(message->from);
        coord->step.complete_count += ampd_coord_is_complete(model, rank) ? 1 : 0;
        coord->step.completed_ms[rank] = model->core->now_ms;
        if (ampd_coord_is_complete(model, rank) && coord->step.complete_count == contributors_wanted(model))
            coord->step.whole_us = model->core->utc_us;
    }
    coord->step.weights[rank] = complete->contributor.weight;
    coord->step.rates[rank] = complete->lr;
    if (coord->step.state == AMPD_STEP_OPEN)
        try_close(model);
    if (coord->state == AMPD_COORD_STALLED)
        ampd_coord_review(model);
}

bool ampd_coord_decides_soon(const struct ampd_model *model)
{
    const struct ampd_coord *coord = model->coord;
    bool open = coord->step.state == AMPD_STEP_OPEN || coord->step.state == AMPD_STEP_CLOSED;
    uint32_t coming = 0;
    for (uint32_t i = 0; open && i < coord->step.open.expected_count; i++) {
        uint32_t rank = coord->step.open.expected[i].rank;
        coming += ampd_coord_is_complete(model, rank) || model->workers[rank].lease == AMPD_LEASE_LIVE ? 1 : 0;
    }
    return coord->step.state == AMPD_STEP_VOTED || (open && coming >= contributors_wanted(model));
}

bool ampd_coord_waits_for(const struct ampd_model *model, uint32_t rank)
{
    const struct ampd_coord *coord = model->coord;
    bool open = coord->step.state == AMPD_STEP_OPEN || coord->step.state == AMPD_STEP_CLOSED;
    if (coord->step.state == AMPD_STEP_NONE) /* SHRINK: too few are left */
        return !ampd_core_pauses(model->core) && !ampd_coord_is_frozen(model) && !ampd_workers_enough(model) &&
               (coord->state == AMPD_COORD_RUNNING || coord->state == AMPD_COORD_STALLED);
    if (!open || ampd_open_find(&coord->step.open, rank) == NULL || ampd_coord_is_complete(model, rank))
        return false;
    uint32_t coming = 0; /* that are complete, or may be: a quorum of them moves the step without this rank */
    for (uint32_t r = 0; model->spec.sync == AMPD_SYNC_QUORUM && r < model->spec.world_size; r++)
        coming += ampd_coord_is_complete(model, r) || model->workers[r].lease == AMPD_LEASE_LIVE ? 1 : 0;
    return model->spec.sync != AMPD_SYNC_QUORUM || (coord->step.state == AMPD_STEP_OPEN && coming < model->spec.quorum);
}

/* ---- the verdict ---- */

void ampd_coord_vote(struct ampd_model *model, const struct ampd_message *message)
{
    struct ampd_coord *coord = model->coord;
    const struct ampd_vote *vote = &message->u.vote;
    bool applied =
        coord->decision.state != AMPD_DECIDED_APPLYING || (coord->decision.applied_bits & AMPD_BIT(message->from)) != 0;
    AMP_ASSERT(model->core->config.shard == 0 && message->from < AMPD_COUNT(model->core));
    if (!applied)
        return; /* its APPLIED was lost with a session: the shard sends both again, in order */
    bool counts = coord->step.state == AMPD_STEP_CLOSED && ampd_coord_has_steps(coord) &&
                  of_this_try(model, message, vote->step, vote->try_number) &&
                  vote->contributors_hash == coord->step.hash && coord->step.votes[message->from] == NULL;
    if (!counts || ampd_core_pauses(model->core))
        return;
    coord->step.votes[message->from] = ampd_need(ampd_message_copy(message));
    ampd_out_log(model->core, AMP_LOG_DEBUG, model, "shard %u has voted on step %llu, try %u", message->from,
                 (unsigned long long)vote->step, vote->try_number);
    if (++coord->step.votes_count < AMPD_COUNT(model->core))
        return;
    ampd_coord_set_step(coord, AMPD_STEP_VOTED);
    free(coord->decision.verdict);
    coord->decision.verdict = ampd_verdict_make(model);
    coord->newest = coord->decision.verdict->row.after;
    coord->decision.made_us = coord->decision.verdict->row.at_us;
    coord->decision.applied_us = 0;
    ampd_actions_take(coord, coord->decision.verdict);
    coord->checkpoint.wanted = coord->checkpoint.wanted && !coord->decision.verdict->row.cut;
    ampd_coord_store_verdict(model);
}

void ampd_coord_store_verdict(struct ampd_model *model)
{
    struct ampd_coord *coord = model->coord;
    struct ampd_persist *persist;
    AMP_ASSERT(model->core->config.shard == 0);
    (void)ampd_out_persist(model, AMPD_PERSIST_VERDICT, 0, &persist);
    persist->row = ampd_out_own(
        model->core, ampd_need(ampd_copy(&coord->decision.verdict->row, sizeof coord->decision.verdict->row)));
}

static void notify(struct ampd_model *model, const struct ampd_step_row *row)
{
    struct ampd_output *output = ampd_out(model->core, AMPD_OUT_NOTIFY, 0);
    output->u.notify.model = model->index;
    output->u.notify.row = ampd_out_own(model->core, ampd_need(ampd_copy(row, sizeof *row)));
}

/* Sends the last verdict to the shards whose bits are given. */
static void send_verdict(struct ampd_model *model, uint64_t shards)
{
    for (uint32_t k = AMPD_COUNT(model->core); k-- > 0;) {
        if ((shards & AMPD_BIT(k)) == 0)
            continue;
        struct ampd_message *message = ampd_bus_message(model, AMPD_MESSAGE_VERDICT, k);
        message->u.verdict = *model->coord->decision.verdict;
        ampd_bus_send_take(model->core, message);
    }
}

void ampd_coord_verdict_stored(struct ampd_model *model)
{
    struct ampd_coord *coord = model->coord;
    struct ampd_verdict_message *verdict = coord->decision.verdict;
    const struct ampd_step_row *row = &verdict->row;
    bool was_unstable = ampd_is_unstable(&model->spec, &coord->carry.scaler);
    AMP_ASSERT(model->core->config.shard == 0);
    coord->decided = row->step;
    coord->parent_step = row->step;
    coord->version = row->version;
    coord->carry = row->after;
    coord->decision.applied_bits = 0;
    coord->decision.warnings = (struct ampd_applied){0};
    AMP_ASSERT(coord->step.state == AMPD_STEP_VOTED);
    ampd_coord_set_step(coord, AMPD_STEP_NONE); /* from here on coord->decision has the step */
    ampd_coord_set_decision(coord, AMPD_DECIDED_APPLYING);
    if (!was_unstable && ampd_is_unstable(&model->spec, &row->after.scaler))
        ampd_out_log(model->core, AMP_LOG_WARN, model, "unstable: %u overflows in a row, scale %.9g",
                     row->after.scaler.consecutive_overflows, (double)row->after.scaler.scale);
    if (row->cut)
        ampd_checkpoints_expect(coord, row->step);
    ampd_health_count(model, row);
    notify(model, row);
    bool stalled = coord->state == AMPD_COORD_STALLED; /* what the missing rank had pushed before was enough */
    if (stalled)
        ampd_coord_set(model, AMPD_COORD_RUNNING);
    if (coord->state == AMPD_COORD_DELETING)
        return;
    bool interrupted = coord->state == AMPD_COORD_SYNCING; /* SYNC decides how the model goes on */
    bool last = model->spec.max_steps != 0 && row->step >= model->spec.max_steps;
    if (last && interrupted)
        coord->sync.before = AMPD_COORD_FINISHING;
    else if (last)
        ampd_coord_set(model, AMPD_COORD_FINISHING);
    else if (!interrupted && may_open(model))
        open_step(model);
    /* Shard 0 is told during SYNC, too: its rows must be those of its store, for they may have to be replayed. */
    send_verdict(model, interrupted ? AMPD_BIT(0) : AMPD_ALL_SHARDS(model->core));
    if (interrupted)
        return;
    if (coord->step.state != AMPD_STEP_NONE)
        send_open(model);
    if (stalled || ampd_coord_is_frozen(model))
        ampd_coord_send_state(model);
    ampd_rollback_try(model);
}

/*
 * Adds to the parameter's count. The parameters of the lowest indexes are kept, in whichever order shards have applied.
 */
static void add_range(struct ampd_applied *to, const struct ampd_range_warning *from)
{
    uint32_t at = to->range_count;
    while (at > 0 && to->range[at - 1].parameter > from->parameter)
        at--;
    if (at > 0 && to->range[at - 1].parameter == from->parameter) {
        to->range[at - 1].count += from->count;
        return;
    }
    if (at == AMPD_OVERFLOW_ROWS_MAX)
        return;
    uint32_t last = to->range_count < AMPD_OVERFLOW_ROWS_MAX ? to->range_count : AMPD_OVERFLOW_ROWS_MAX - 1;
    memmove(&to->range[at + 1], &to->range[at], (last - at) * sizeof *from);
    to->range[at] = *from;
    to->range_count = last + 1;
}

static void merge_range(struct ampd_applied *to, const struct ampd_applied *from)
{
    to->range_total += from->range_total;
    for (uint32_t i = 0; i < from->range_count; i++)
        add_range(to, &from->range[i]);
}

void ampd_coord_applied(struct ampd_model *model, const struct ampd_message *message)
{
    struct ampd_coord *coord = model->coord;
    uint64_t bit = AMPD_BIT(message->from);
    AMP_ASSERT(model->core->config.shard == 0 && message->from < AMPD_COUNT(model->core));
    if (message->epoch != coord->epoch || message->u.applied.step != coord->decided ||
        coord->decision.state != AMPD_DECIDED_APPLYING || (coord->decision.applied_bits & bit) != 0)
        return;
    coord->decision.applied_bits |= bit;
    if (message->from == 0)
        coord->decision.applied_us = model->core->utc_us;
    merge_range(&coord->decision.warnings, &message->u.applied);
    if (coord->decision.applied_bits != AMPD_ALL_SHARDS(model->core))
        return;
    ampd_coord_set_decision(coord, AMPD_DECIDED_APPLIED);
    ampd_checkpoints_try(model);
}

/* ---- SYNC, and sessions that broke ---- */

void ampd_coord_interrupt(struct ampd_model *model)
{
    struct ampd_coord *coord = model->coord;
    if (coord->state == AMPD_COORD_SYNCING || coord->state == AMPD_COORD_DELETING)
        return;
    coord->sync.before = coord->state;
    coord->begins.token = 0;
    ampd_coord_set(model, AMPD_COORD_SYNCING);
    AMP_LIST_EACH(it, next, &model->checkpoints)
    {
        ampd_call_end(AMP_CONTAINER(it, struct ampd_call, node), AMP_EUNAVAILABLE, "RECOVERING",
                      "%s is being made ready; ask again in a moment", model->spec.name);
    }
}

void ampd_coord_forget_step(struct ampd_model *model)
{
    struct ampd_coord *coord = model->coord;
    forget_votes(coord);
    if (coord->step.state != AMPD_STEP_NONE)
        ampd_coord_set_step(coord, AMPD_STEP_NONE);
    coord->step.open.step = 0;
    ampd_coord_set_decision(coord, AMPD_DECIDED_NONE);
    coord->decision.applied_bits = 0;
    coord->decision.warnings = (struct ampd_applied){0};
    coord->decision.made_us = coord->decision.applied_us = 0;
    coord->parent_step = 0;
    coord->checkpoint.writing_count = 0;
    coord->checkpoint.parts_sent = 0;
    memset(coord->checkpoint.parts_known, 0, sizeof coord->checkpoint.parts_known);
    coord->checkpoint.wanted = false;
    coord->load.loader = 0;
    coord->load.done_bits = 0;
    ampd_actions_forget(coord);
}

void ampd_coord_resume(struct ampd_model *model)
{
    struct ampd_coord *coord = model->coord;
    AMP_ASSERT(model->core->config.shard == 0);
    ampd_coord_set(model, coord->sync.before);
    /* What shards sent about an open try may be lost. The next try waits until there are enough workers for it. */
    if (coord->step.state == AMPD_STEP_OPEN || coord->step.state == AMPD_STEP_CLOSED)
        ampd_coord_set_step(coord, AMPD_STEP_NONE);
    bool running = coord->state == AMPD_COORD_RUNNING || coord->state == AMPD_COORD_STALLED;
    if (running && coord->step.state == AMPD_STEP_NONE && may_open(model))
        open_step(model);
    for (uint32_t k = AMPD_COUNT(model->core); k-- > 0;)
        ampd_coord_resend(model, k);
    ampd_coord_ranks(model);
    ampd_rollback_try(model); /* what the rollback waited for may have come meanwhile */
}

static void resend_step(struct ampd_model *model, uint32_t shard)
{
    const struct ampd_coord *coord = model->coord;
    AMP_ASSERT(shard < AMPD_COUNT(model->core));
    if (coord->decision.state == AMPD_DECIDED_APPLYING && (coord->decision.applied_bits & AMPD_BIT(shard)) == 0)
        send_verdict(model, AMPD_BIT(shard));
    ampd_actions_resend(model, shard);
    if (coord->step.state != AMPD_STEP_OPEN && coord->step.state != AMPD_STEP_CLOSED)
        return;
    struct ampd_message *message = ampd_bus_message(model, AMPD_MESSAGE_OPEN, shard);
    message->u.open = coord->step.open;
    ampd_bus_send_take(model->core, message);
    if (coord->step.state != AMPD_STEP_CLOSED || coord->step.open.closed)
        return;
    message = ampd_bus_message(model, AMPD_MESSAGE_CLOSE, shard);
    message->u.close = coord->step.close;
    ampd_bus_send_take(model->core, message);
}

void ampd_coord_resend(struct ampd_model *model, uint32_t shard)
{
    struct ampd_coord *coord = model->coord;
    if (ampd_sync_troubled(model))
        ampd_bus_send_take(model->core, state_message(model, shard));
    if (coord->state == AMPD_COORD_SYNCING)
        return; /* SYNC goes to the process as a whole, and is sent again by itself */
    if (coord->state <= AMPD_COORD_STORING) {
        ampd_sync_resend(model, shard);
        return;
    }
    if (coord->state == AMPD_COORD_DELETING) {
        ampd_delete_send(model, shard);
        return;
    }
    ampd_bus_send_take(model->core, state_message(model, shard));
    ampd_rollback_resend(model, shard);
    if (coord->state == AMPD_COORD_CREATED && coord->load.loader != 0)
        ampd_bus_send_take(model->core, ampd_coord_grant(model, shard));
    ampd_checkpoints_resend_parts(model, shard);
    ampd_checkpoints_resend(
        model,
        shard); /* before the step: of what is being cut no more than AMPD_CHECKPOINTS_WRITING_MAX is ever open */
    resend_step(model, shard);
}

/* ---- what the shard of this process asks (base/local.h) ---- */

uint64_t ampd_local_coord_epoch(const struct ampd_model *model)
{
    return model->coord->epoch;
}

const char *ampd_local_trouble(const struct ampd_model *model)
{
    return model->coord->trouble;
}
