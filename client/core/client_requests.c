#include "client/core/client_requests.h"

#include "client/core/client_retry.h"
#include "client/core/machine.h"
#include "client/core/membership.h"
#include "client/core/outbox.h"

#include <stdlib.h>
#include <string.h>

void ampclient_core_finish(struct ampclient_core *core, int code, const struct amp_error *error,
                           enum ampclient_state state)
{
    if (core->state != state)
        ampclient_core_set_state(core, state);
    if (core->request == 0)
        return;
    core->done.request = core->request;
    core->done.code = code;
    core->done.error = error == NULL ? (struct amp_error){0} : *error;
    core->done_ready = true;
}

static void begin_request(struct ampclient_core *core, enum ampclient_event_type request, uint64_t timeout_ms)
{
    core->request = request;
    core->request_begun_ms = core->now_ms;
    /* reconnect_timeout_ms begins anew, unless the last request ended without an answer: then both wait together. */
    if (core->done.code != AMP_EDEADLINE && core->done.code != AMP_ECANCELLED)
        core->failures = 0;
    core->request_deadline_ms = core->now_ms + timeout_ms;
    core->done = (struct ampclient_user_done){0};
    core->done_ready = false;
    if (core->keep_alive_ms > core->now_ms + timeout_ms / 2) /* its answer says what the request waits for */
        core->keep_alive_ms = core->now_ms + timeout_ms / 2;
}

static void refuse(struct ampclient_core *core, const char *text)
{
    struct amp_error error;
    (void)amp_error_set(&error, AMP_ESTATE, NULL, "%s", text);
    ampclient_core_finish(core, AMP_ESTATE, &error, core->state);
}

static bool refuse_taken(struct ampclient_core *core)
{
    if (core->taken.code != 0)
        ampclient_core_finish(core, core->taken.code, &core->taken, core->state);
    return core->taken.code != 0;
}

/* What is left of a time limit, of which so much had passed before the request. */
static uint64_t rest_of(uint64_t limit_ms, uint64_t waited_ms)
{
    return limit_ms > waited_ms ? limit_ms - waited_ms : 0;
}

static void request_join(struct ampclient_core *core, uint64_t waited_ms)
{
    begin_request(core, AMPCLIENT_EVENT_JOIN, rest_of(core->config.reconnect_timeout_ms, waited_ms));
    if (core->state != AMPCLIENT_STATE_NEW) {
        refuse(core, "the handle has joined before");
        return;
    }
    ampclient_core_set_state(core, AMPCLIENT_STATE_JOINING);
    core->need_join = true;
}

/*
 * A step is begun again: gradients that were pushed before must not count, but the server would go on with them. A new
 * incarnation begins with nothing pushed; so join again, if no other process has the rank by now. (With units a step's
 * gradients are always the same, and may be mixed.)
 */
static void drop_pushed(struct ampclient_core *core)
{
    if (core->config.units || core->push.dtype == AMP_DTYPE_NONE || ampclient_core_push_answered(core))
        return;
    (void)amp_error_set(&core->last_error, AMP_EABORTED, "", "a step is begun again without what was pushed");
    ampclient_core_lose(core, true, core->last_error.text);
}

static void request_step_begin(struct ampclient_core *core, uint64_t waited_ms)
{
    begin_request(core, AMPCLIENT_EVENT_STEP_BEGIN, rest_of(core->config.step_timeout_ms, waited_ms));
    if (refuse_taken(core))
        return;
    switch (core->state) {
    case AMPCLIENT_STATE_DONE:
        break;
    case AMPCLIENT_STATE_COMPUTING:
        drop_pushed(core);
        ampclient_core_push_cancel(core);
        break;
    case AMPCLIENT_STATE_ROLLED_BACK:
        ampclient_core_push_cancel(core);
        break;
    case AMPCLIENT_STATE_READY:
        if (core->push.error.code != 0) /* the step was not decided */
            drop_pushed(core);
        break;
    default:
        refuse(core, "the model is not joined");
        return;
    }
    ampclient_core_units_forget(core);
    core->pull.resends = 0;
    ampclient_core_set_state(core, AMPCLIENT_STATE_PULLING); /* a pull that was begun ahead is that of this request */
}

/* Answers a step_end whose step is void. */
static void finish_rolled_back(struct ampclient_core *core)
{
    core->done.result =
        (struct ampclient_core_result){.epoch = core->epoch, .step = core->step, .verdict = AMPCLIENT_CORE_ROLLED_BACK};
    ampclient_core_finish(core, 0, NULL, AMPCLIENT_STATE_READY);
}

void ampclient_core_void_step(struct ampclient_core *core)
{
    ampclient_core_push_cancel(core);
    ampclient_core_units_void(core);
    if (core->state == AMPCLIENT_STATE_WAITING)
        finish_rolled_back(core);
    else
        ampclient_core_set_state(core, AMPCLIENT_STATE_ROLLED_BACK);
}

static void request_step_end(struct ampclient_core *core)
{
    begin_request(core, AMPCLIENT_EVENT_STEP_END, core->config.step_timeout_ms);
    if (refuse_taken(core))
        return;
    if (core->state == AMPCLIENT_STATE_ROLLED_BACK) {
        finish_rolled_back(core);
        return;
    }
    if (core->state != AMPCLIENT_STATE_COMPUTING) {
        refuse(core, "no step has begun: call ampclient_step_begin first");
        return;
    }
    ampclient_core_push_close_step(core);
    ampclient_core_set_state(core, AMPCLIENT_STATE_WAITING);
}

static void request_pull(struct ampclient_core *core)
{
    begin_request(core, AMPCLIENT_EVENT_PULL_LATEST, core->config.step_timeout_ms);
    if (refuse_taken(core))
        return;
    if (core->state != AMPCLIENT_STATE_READY && core->state != AMPCLIENT_STATE_DONE) {
        refuse(core, "a pull is not possible between step_begin and step_end, or before the join");
        return;
    }
    ampclient_core_units_forget(core);
    ampclient_core_pull_cancel(core); /* one that was begun ahead */
    core->fetch_from = core->state;
    core->pull.resends = 0;
    ampclient_core_set_state(core, AMPCLIENT_STATE_FETCHING);
}

static void request_leave(struct ampclient_core *core)
{
    begin_request(core, AMPCLIENT_EVENT_LEAVE, core->config.call_timeout_ms);
    if (!ampclient_state_allowed(core->state, AMPCLIENT_STATE_LEAVING)) {
        refuse(core, "the handle is busy, or has left");
        return;
    }
    ampclient_core_pull_cancel(core);
    ampclient_core_units_void(core);
    if (core->has_model)
        ampclient_core_push_cancel(core);
    ampclient_core_set_state(core, AMPCLIENT_STATE_LEAVING);
    core->need_join = false;
    core->retry_ms = 0;
}

/* Waits for a Join that is under way, so that the newest incarnation leaves: a Leave of an older one is refused. */
static void drive_leave(struct ampclient_core *core)
{
    if (core->leave_call != 0 || core->join_call != 0 || core->retry_ms != 0 || core->done_ready)
        return;
    if (core->has_model && core->taken.code == 0)
        (void)ampclient_core_out(core, AMPCLIENT_OUT_LEAVE, 0, core->config.call_timeout_ms, &core->leave_call);
    else
        ampclient_core_finish(core, 0, NULL, AMPCLIENT_STATE_LEFT);
}

void ampclient_core_leave_ended(struct ampclient_core *core, const struct ampclient_ended *ended)
{
    core->leave_call = 0;
    bool recovers = ended->code == AMP_EUNAVAILABLE && strcmp(ended->reason, "RECOVERING") == 0;
    if (recovers && !ampclient_core_failed(core, ended))
        return; /* sent again: else nobody could have the rank before a lease has passed */
    ampclient_core_note(core, ended);
    ampclient_core_finish(core, ended->code, &core->last_error, AMPCLIENT_STATE_LEFT);
}

static void request_gather(struct ampclient_core *core, uint32_t unit)
{
    struct amp_error error = {0};
    begin_request(core, AMPCLIENT_EVENT_GATHER, core->config.step_timeout_ms);
    if (refuse_taken(core))
        return;
    core->units.wanted = unit;
    int rc = ampclient_core_prefetch(core, core->now_ms, unit, &error);
    if (rc != 0)
        ampclient_core_finish(core, rc, &error, core->state);
}

static void request_drain(struct ampclient_core *core)
{
    begin_request(core, AMPCLIENT_EVENT_DRAIN, core->config.step_timeout_ms);
    if (refuse_taken(core))
        return;
    if (!core->config.units)
        refuse(core, "this handle has no units: set units in the join options");
    else if (core->state != AMPCLIENT_STATE_COMPUTING && core->state != AMPCLIENT_STATE_ROLLED_BACK)
        refuse(core, "no step has begun: call ampclient_step_begin first");
}

int ampclient_core_set_user_state(struct ampclient_core *core, const void *data, size_t size, struct amp_error *error)
{
    bool pushed = core->state == AMPCLIENT_STATE_COMPUTING && core->push.dtype != AMP_DTYPE_NONE;
    if (data == NULL && size > 0)
        return amp_error_set(error, AMP_EINVAL, NULL,
                             "the user state is NULL, but has %zu bytes; give them, or a size of 0", size);
    if (size > AMPCLIENT_USER_STATE_MAX)
        return amp_error_set(error, AMP_EINVAL, NULL, "the user state has %zu bytes; give at most %d", size,
                             AMPCLIENT_USER_STATE_MAX);
    if (core->config.units && pushed)
        return amp_error_set(
            error, AMP_ESTATE, NULL,
            "step %llu has been scattered to with a user state; set it before the first scatter of a step",
            (unsigned long long)core->step);
    uint8_t *copy = malloc(size + 1);
    if (copy == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "there is no memory for a copy of the user state");
    if (size > 0)
        memcpy(copy, data, size);
    free(core->user_state);
    core->user_state = copy;
    core->user_state_size = (uint32_t)size;
    for (uint32_t k = 0; k < core->config.shards; k++)
        core->push.outdated[k] = true;
    return 0;
}

void ampclient_core_request(struct ampclient_core *core, const struct ampclient_event *event)
{
    switch (event->type) {
    case AMPCLIENT_EVENT_JOIN:
        request_join(core, event->u.waited_ms);
        break;
    case AMPCLIENT_EVENT_STEP_BEGIN:
        request_step_begin(core, event->u.waited_ms);
        break;
    case AMPCLIENT_EVENT_STEP_END:
        request_step_end(core);
        break;
    case AMPCLIENT_EVENT_PULL_LATEST:
        request_pull(core);
        break;
    case AMPCLIENT_EVENT_LEAVE:
        request_leave(core);
        break;
    case AMPCLIENT_EVENT_GATHER:
        request_gather(core, event->u.unit);
        break;
    case AMPCLIENT_EVENT_DRAIN:
        request_drain(core);
        break;
    default:
        break;
    }
}

void ampclient_core_request_stop(struct ampclient_core *core, int code)
{
    struct amp_error error;
    bool knows = core->waiting_for[0] != 0 && core->failures == 0;
    (void)amp_error_set(&error, code, NULL, "%s; last: %s%s",
                        code == AMP_ECANCELLED ? "interrupted" : "no answer in time",
                        knows                 ? "the model waits for "
                        : core->failures == 0 ? "still waiting"
                                              : core->last_error.text,
                        knows ? core->waiting_for : "");
    switch (core->state) {
    case AMPCLIENT_STATE_JOINING:
        ampclient_core_cancel(core, &core->join_call, false);
        core->need_join = false;
        if (code == AMP_EDEADLINE && core->failures > 0) { /* its time limit is that of a lost server */
            code = core->last_error.code = AMP_EUNAVAILABLE;
            error = core->last_error;
        }
        ampclient_core_finish(core, code, &error, AMPCLIENT_STATE_NEW);
        break;
    case AMPCLIENT_STATE_PULLING:
        ampclient_core_pull_cancel(core);
        ampclient_core_finish(core, code, &error, AMPCLIENT_STATE_READY);
        break;
    case AMPCLIENT_STATE_FETCHING:
        ampclient_core_pull_cancel(core);
        ampclient_core_finish(core, code, &error, core->fetch_from);
        break;
    case AMPCLIENT_STATE_WAITING: /* the push goes on; step_end may be called again */
        ampclient_core_finish(core, code, &error, AMPCLIENT_STATE_COMPUTING);
        break;
    case AMPCLIENT_STATE_LEAVING:
        ampclient_core_cancel(core, &core->join_call, false);
        ampclient_core_cancel(core, &core->leave_call, false);
        ampclient_core_finish(core, code, &error, AMPCLIENT_STATE_LEFT);
        break;
    default: /* what GATHER and DRAIN wait for goes on; they may be called again */
        ampclient_core_units_fail(core, &error);
        break;
    }
}

void ampclient_core_drive_request(struct ampclient_core *core)
{
    bool decided = false;
    if (core->state == AMPCLIENT_STATE_LEAVING)
        drive_leave(core);
    if (core->state == AMPCLIENT_STATE_WAITING && !core->done_ready) {
        if (core->push.error.code != 0) {
            ampclient_core_finish(core, core->push.error.code, &core->push.error, AMPCLIENT_STATE_READY);
        } else if (ampclient_core_push_answered(core)) {
            core->done.result = core->push.result;
            core->step = core->push.result.step + 1;
            ampclient_core_finish(core, 0, NULL, AMPCLIENT_STATE_READY);
            decided = true;
        }
    }
    if (!core->done_ready || core->streams_dying != 0)
        return;
    core->done_ready = false;
    ampclient_core_push_output(core, AMPCLIENT_OUT_USER_DONE)->u.done = core->done;
    core->request = 0;
    if (decided)
        ampclient_core_pull_ahead(core); /* after the answer, which the user waits for */
}
