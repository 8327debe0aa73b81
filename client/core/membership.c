/*
 * The membership of the handle: it begins with a Join; then it is kept alive, it is lost and begins again, or another
 * process takes the rank.
 */
#include "client/core/membership.h"

#include "client/core/client_requests.h"
#include "client/core/client_retry.h"
#include "client/core/machine.h"
#include "client/core/outbox.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Sets core->last_error for a code of take_model. */
static int cannot_take(struct ampclient_core *core, int code)
{
    return amp_error_set(&core->last_error, code, NULL, "%s",
                         code == AMP_ESTATE ? "the model was deleted, and created again with other parameters or "
                                              "another cast; start this process again"
                         : code == AMP_EDATALOSS ? "the server's parameters have impossible sizes; are versions mixed?"
                                                 : "there is no memory for the model; free some");
}

static int take_model(struct ampclient_core *core, const struct ampclient_join_answer *answer)
{
    /* There is a connection for each shard, made before the first Join. */
    if (answer->shards > 0 && answer->shards != core->config.shards)
        return amp_error_set(&core->last_error, AMP_ESTATE, NULL,
                             "the model is on %" PRIu32 " shards now, and this process began with %" PRIu32
                             "; start it again",
                             answer->shards, core->config.shards);
    if (core->has_model && (!ampclient_core_layout_same(&core->flat, answer) || core->cast != answer->cast))
        return cannot_take(core, AMP_ESTATE);
    if (core->has_model)
        return 0;
    int rc = ampclient_core_layout_init(&core->flat, answer);
    if (rc != 0)
        return cannot_take(core, rc);
    core->cast = answer->cast;
    core->pull.have = calloc(core->flat.blocks, 1);
    rc = ampclient_core_push_init(core);
    if (rc == 0 && core->config.units)
        rc = ampclient_core_units_init(core);
    if (rc != 0 || core->pull.have == NULL) {
        free(core->pull.have);
        ampclient_core_push_close(core);
        ampclient_core_units_close(core);
        ampclient_core_layout_close(&core->flat);
        core->pull.have = NULL;
        memset(&core->push, 0, sizeof core->push);
        return cannot_take(core, AMP_ENOMEM);
    }
    core->has_model = true;
    return 0;
}

static void take_base_state(struct ampclient_core *core, const struct ampclient_join_answer *answer)
{
    uint8_t *copy = malloc(answer->user_state_size + (size_t)1);
    free(core->base_state);
    core->base_state = copy;
    core->base_state_size = copy == NULL ? 0 : answer->user_state_size;
    if (core->base_state_size > 0)
        memcpy(copy, answer->user_state, answer->user_state_size);
}

/* A Join has failed for good, and so has the request that the user waits for. */
static void join_failed(struct ampclient_core *core)
{
    core->need_join = core->state != AMPCLIENT_STATE_JOINING;
    if (core->request == AMPCLIENT_EVENT_STEP_END || core->request == AMPCLIENT_EVENT_DRAIN) {
        core->push.error = core->last_error; /* these give the gradients back: no stream may read them any more */
        ampclient_core_push_cancel(core);
    }
    switch (core->state) {
    case AMPCLIENT_STATE_JOINING:
        ampclient_core_finish(core, core->last_error.code, &core->last_error, AMPCLIENT_STATE_NEW);
        break;
    case AMPCLIENT_STATE_PULLING:
    case AMPCLIENT_STATE_WAITING:
        ampclient_core_finish(core, core->last_error.code, &core->last_error, AMPCLIENT_STATE_READY);
        break;
    case AMPCLIENT_STATE_FETCHING:
        ampclient_core_finish(core, core->last_error.code, &core->last_error, core->fetch_from);
        break;
    default:
        ampclient_core_units_fail(core, &core->last_error);
        core->retry_ms = core->now_ms + AMPCLIENT_BACKOFF_MAX_MS;
        break;
    }
}

/*
 * What becomes of the step in hand after a new Join. In a new epoch it is void. Else, if a shard has answered the push,
 * that verdict stands; if none has, the new incarnation pushes again.
 */
static void rejoined(struct ampclient_core *core, uint64_t old_epoch, uint64_t next_step)
{
    if (!ampclient_core_has_step(core)) {
        core->step = next_step;
        return;
    }
    if (core->epoch == old_epoch) {
        if (ampclient_core_push_any_answered(core))
            ampclient_core_push_too_late(core); /* the new incarnation would get LATE for a gradient that has counted */
        else
            ampclient_core_push_restart(core);
        return;
    }
    core->step = next_step;
    ampclient_core_void_step(core);
}

void ampclient_core_join_ended(struct ampclient_core *core, const struct ampclient_ended *ended)
{
    core->join_call = 0;
    if (ended->code != 0) {
        if (core->state == AMPCLIENT_STATE_LEAVING)
            return;
        core->need_join = true;
        if (ampclient_core_failed(core, ended))
            join_failed(core);
        return;
    }
    const struct ampclient_join_answer *answer = &ended->u.join;
    bool again = core->has_model;
    if (take_model(core, answer) != 0) {
        join_failed(core);
        return;
    }
    uint64_t old_epoch = core->step_epoch;
    core->need_join = core->fenced = false;
    ampclient_core_cancel(core, &core->keep_alive_call, false); /* its answer is about the old incarnation */
    core->rank = answer->rank;
    core->world_size = answer->world_size;
    core->incarnation = answer->incarnation;
    core->lease_ms = answer->lease_ms;
    core->epoch = answer->epoch;
    core->keep_alive_ms = core->now_ms + core->lease_ms / AMPCLIENT_KEEP_ALIVE_DIVISOR;
    take_base_state(core, answer);
    core->restored_step = answer->restored_step;
    rejoined(core, old_epoch, answer->step);
    ampclient_core_log_joined(core, again);
    ampclient_core_succeeded(core);
    if (core->state == AMPCLIENT_STATE_JOINING)
        ampclient_core_finish(core, 0, NULL, AMPCLIENT_STATE_READY);
}

void ampclient_core_lose(struct ampclient_core *core, bool fenced, const char *why)
{
    if (core->need_join || core->join_call != 0) {
        core->need_join = true; /* what fences the old incarnation may be a Join of ours whose answer was lost */
        return;
    }
    core->need_join = true;
    core->fenced = fenced && !core->config.take_back;
    if (core->fenced) /* a KeepAlive that is under way may have been answered before the rank was taken */
        ampclient_core_cancel(core, &core->keep_alive_call, false);
    else
        ampclient_core_log_lost(core, why);
}

/* This incarnation is over, as a KeepAlive or Join has shown: its streams are of no use. */
static void cancel_streams(struct ampclient_core *core)
{
    ampclient_core_units_cancel(core);
    ampclient_core_pull_cancel(core);
    ampclient_core_push_cancel(core);
}

/* Another process has the rank: the request that the user waits for, and all later ones, end with this error. */
static void rank_taken(struct ampclient_core *core, const char *text)
{
    (void)amp_error_set(&core->last_error, AMP_EABORTED, "RANK_TAKEN", "%s", text);
    core->taken = core->last_error;
    core->need_join = false;
    cancel_streams(core);
    if (ampclient_core_has_step(core))
        core->push.error = core->taken;
    else if (core->state == AMPCLIENT_STATE_PULLING)
        ampclient_core_finish(core, core->taken.code, &core->taken, AMPCLIENT_STATE_READY);
    else if (core->state == AMPCLIENT_STATE_FETCHING)
        ampclient_core_finish(core, core->taken.code, &core->taken, core->fetch_from);
    ampclient_core_units_fail(core, &core->taken);
}

void ampclient_core_keep_alive_ended(struct ampclient_core *core, const struct ampclient_ended *ended)
{
    bool fenced = core->fenced, over = ended->code == AMP_EABORTED || fenced;
    bool joins =
        core->join_call != 0 || (core->need_join && !core->fenced); /* then the other process may be this one */
    core->keep_alive_call = 0;
    core->keep_alive_ms = core->now_ms + core->lease_ms / AMPCLIENT_KEEP_ALIVE_DIVISOR;
    if (ended->code != 0 && ended->code != AMP_EABORTED) {
        core->keep_alive_ms = core->now_ms + AMPCLIENT_BACKOFF_MAX_MS;
        if (core->fenced && ampclient_core_failed(core, ended)) /* else it is asked again */
            join_failed(core);
        return;
    }
    core->fenced = false;
    if (ended->code == 0)
        (void)snprintf(core->waiting_for, sizeof core->waiting_for, "%s",
                       ampclient_core_is_text(ended->u.keep_alive.waiting_for) ? ended->u.keep_alive.waiting_for : "");
    if (ended->code == 0 && !core->config.take_back && !joins && ampclient_core_is_text(ended->u.keep_alive.taken_by)) {
        rank_taken(core, ended->u.keep_alive.taken_by);
        return;
    }
    bool valid = ended->code == 0 && ended->u.keep_alive.valid;
    if (valid && !over && ended->u.keep_alive.epoch == core->epoch) {
        ampclient_core_log_waits(core);
        return;
    }
    if (fenced)
        ampclient_core_log_lost(core, core->last_error.text);
    ampclient_core_lose(
        core, false, valid ? "the model has begun a new epoch" : "its lease has ended, or a later Join holds the rank");
    cancel_streams(core);
}
