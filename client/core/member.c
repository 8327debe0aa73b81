/* What becomes of the membership between two Joins: it is kept alive, it is lost, or another process has taken the rank. */
#include "client/core/internal.h"

#include <stdio.h>

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
        ampclient_core_say_lost(core, why);
}

/* A call of membership found out that this incarnation is over: every stream of it is of no use. */
static void cancel_streams(struct ampclient_core *core)
{
    if (core->state == AMPCLIENT_STATE_PULLING || core->state == AMPCLIENT_STATE_FETCHING)
        ampclient_core_pull_cancel(core);
    if (core->state == AMPCLIENT_STATE_COMPUTING || core->state == AMPCLIENT_STATE_WAITING) {
        for (uint32_t k = 0; k < core->config.shards; k++) {
            ampclient_core_cancel(core, &core->push.calls[k], true);
            ampclient_core_cancel(core, &core->push.states[k], false);
            core->push.asked[k] = false;
            core->push.ended[k] = false;
        }
    }
}

/* Another process has the rank: whatever the user waits for ends with that, and so does what he asks for later. */
static void rank_taken(struct ampclient_core *core, const char *text)
{
    (void)amp_error_set(&core->last_error, AMP_EABORTED, "RANK_TAKEN", "%s", text);
    core->taken = core->last_error;
    core->need_join = false;
    cancel_streams(core);
    if (core->state == AMPCLIENT_STATE_COMPUTING || core->state == AMPCLIENT_STATE_WAITING)
        core->push.error = core->taken;
    else if (core->state == AMPCLIENT_STATE_PULLING)
        ampclient_core_finish(core, core->taken.code, &core->taken, AMPCLIENT_STATE_READY);
    else if (core->state == AMPCLIENT_STATE_FETCHING)
        ampclient_core_finish(core, core->taken.code, &core->taken, core->fetch_from);
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
            ampclient_core_join_failed(core);
        return;
    }
    core->fenced = false;
    if (ended->code == 0)
        (void)snprintf(core->waiting_for, sizeof(core->waiting_for), "%s",
                       ampclient_core_is_text(ended->u.keep_alive.waiting_for) ? ended->u.keep_alive.waiting_for : "");
    if (ended->code == 0 && !core->config.take_back && !joins && ampclient_core_is_text(ended->u.keep_alive.taken_by)) {
        rank_taken(core, ended->u.keep_alive.taken_by);
        return;
    }
    bool valid = ended->code == 0 && ended->u.keep_alive.valid;
    if (valid && !over && ended->u.keep_alive.epoch == core->epoch) {
        ampclient_core_say_waits(core);
        return;
    }
    if (fenced)
        ampclient_core_say_lost(core, core->last_error.text);
    ampclient_core_lose(
        core, false, valid ? "the model has begun a new epoch" : "its lease has ended, or a later Join holds the rank");
    cancel_streams(core);
}
