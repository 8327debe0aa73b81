/*
 * Calls: the table of those that wait or stream, and their answers.
 *
 *   HELD      -> STREAMING            granted
 *   STREAMING -> ENDED, REVOKING      its body is here; or it must let go of memory before it is answered
 *   ENDED     ->                      answered when the step is decided
 *   REVOKING  ->                      answered when the I/O layer has let go
 *
 * A call leaves the table when it is answered or closed, from any state.
 */
#include "server/core/base/calls.h"

#include "base/assert.h"
#include "server/core/base/limits.h"
#include "server/core/base/local.h"
#include "server/core/base/model.h"
#include "server/core/base/out.h"
#include "server/core/base/process.h"
#include "server/core/model/states.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct amp_list *bucket(struct ampd_core *core, uint64_t id)
{
    return &core->calls[(id * 0x9e3779b97f4a7c15u >> 32) % AMPD_CALL_BUCKETS];
}

struct ampd_call *ampd_call_find(struct ampd_core *core, uint64_t id)
{
    AMP_LIST_EACH(it, next, bucket(core, id))
    {
        struct ampd_call *call = AMP_CONTAINER(it, struct ampd_call, link);
        if (call->id == id)
            return call;
    }
    return NULL;
}

static struct amp_list *list_of(struct ampd_model *model, enum ampd_call_kind kind)
{
    switch (kind) {
    case AMPD_CALL_PUSH:
        return &model->pushes;
    case AMPD_CALL_PULL:
        return &model->pulls;
    case AMPD_CALL_LOAD:
        return &model->loads;
    case AMPD_CALL_CHECKPOINT:
        return &model->checkpoints;
    case AMPD_CALL_CREATE:
        return &model->creates;
    case AMPD_CALL_ROLLBACK:
        return &model->rollbacks;
    case AMPD_CALL_DELETE:
        return &model->deletes;
    default:
        return NULL;
    }
}

struct ampd_call *ampd_call_begin(struct ampd_core *core, uint64_t id, enum ampd_call_kind kind,
                                  struct ampd_model *model)
{
    AMP_ASSERT(id != 0 && model != NULL && ampd_call_find(core, id) == NULL);
    if (core->calls_count >= AMPD_CALLS_MAX)
        return NULL;
    struct ampd_call *call = calloc(1, sizeof *call);
    if (call == NULL)
        return NULL;
    call->id = id;
    call->kind = kind;
    call->model = model;
    model->holds++;
    call->begun_ms = core->now_ms;
    amp_list_init(&call->node);
    amp_list_push(bucket(core, id), &call->link);
    struct amp_list *list = list_of(model, kind);
    if (list != NULL)
        amp_list_push(list, &call->node);
    core->calls_count++;
    return call;
}

void ampd_call_forget(struct ampd_core *core, struct ampd_call *call)
{
    AMP_ASSERT(core->calls_count > 0 && call->model->holds > 0);
    amp_list_remove(&call->link);
    amp_list_remove(&call->node);
    call->model->holds--;
    free(call->later);
    free(call->late);
    free(call->user_state);
    free(call);
    core->calls_count--;
}

void ampd_call_set(struct ampd_call *call, enum ampd_call_state state)
{
    AMP_ASSERT(ampd_machine_allows(&ampd_machine_call, call->state, state));
    call->state = state;
    if (state == AMPD_CALL_ENDED) /* it waits from now on; until now the client was sending */
        call->begun_ms = call->model->core->now_ms;
}

struct ampd_reply *ampd_call_reply(struct ampd_core *core, uint64_t id, enum ampd_reply_kind kind)
{
    struct ampd_call *call = ampd_call_find(core, id);
    if (call != NULL)
        ampd_call_forget(core, call);
    struct ampd_output *output = ampd_out(core, AMPD_OUT_REPLY, id);
    output->u.reply.kind = kind;
    return &output->u.reply;
}

/* Fills in the details of an error: where the model is, and when to come again. */
static void fill_details(struct ampd_reply *reply, const struct ampd_model *model)
{
    if (model != NULL) {
        reply->epoch = ampd_local_epoch(model);
        reply->step = ampd_local_next_step(model);
    }
    if (reply->error.code == AMP_EUNAVAILABLE)
        reply->retry_ms = AMPD_RETRY_MS;
}

void ampd_call_fail_with(struct ampd_core *core, uint64_t id, const struct ampd_model *model,
                         const struct amp_error *error)
{
    AMP_ASSERT(error->code != 0);
    struct ampd_reply *reply = ampd_call_reply(core, id, AMPD_REPLY_NONE);
    reply->error = *error;
    fill_details(reply, model);
}

static void __attribute__((format(printf, 4, 0)))
set_error(struct amp_error *error, int code, const char *reason, const char *format, va_list arguments)
{
    char text[AMP_ERROR_TEXT_MAX];
    (void)vsnprintf(text, sizeof text, format, arguments); /* a text that is too long is truncated */
    (void)amp_error_set(error, code, reason, "%s", text);
}

void ampd_call_fail(struct ampd_core *core, uint64_t id, const struct ampd_model *model, int code, const char *reason,
                    const char *format, ...)
{
    struct amp_error error = {0};
    va_list arguments;
    va_start(arguments, format);
    set_error(&error, code, reason, format, arguments);
    va_end(arguments);
    ampd_call_fail_with(core, id, model, &error);
}

void ampd_call_end(struct ampd_call *call, int code, const char *reason, const char *format, ...)
{
    struct ampd_core *core = call->model->core;
    struct amp_error error = {0};
    va_list arguments;
    va_start(arguments, format);
    set_error(&error, code, reason, format, arguments);
    va_end(arguments);
    AMP_ASSERT(code != 0);
    if (call->state == AMPD_CALL_REVOKING)
        return; /* it has its answer already: `later` */
    if (call->state != AMPD_CALL_STREAMING) {
        struct ampd_model *model = call->model;
        enum ampd_call_kind kind = call->kind;
        uint64_t id = call->id;
        ampd_call_fail_with(core, id, model, &error);
        if (kind == AMPD_CALL_LOAD)
            ampd_local_load_closed(model, id);
        return;
    }
    call->later = ampd_need(calloc(1, sizeof *call->later));
    call->later->error = error;
    fill_details(call->later, call->model);
    ampd_call_set(call, AMPD_CALL_REVOKING);
    (void)ampd_out(core, call->kind == AMPD_CALL_PULL ? AMPD_OUT_PULL_REVOKE : AMPD_OUT_PUSH_REVOKE, call->id);
}

void ampd_calls_refuse(struct ampd_model *model, const char *text)
{
    struct amp_list *lists[] = {&model->pushes, &model->pulls, &model->loads, &model->creates, &model->rollbacks};
    for (unsigned l = 0; l < sizeof lists / sizeof lists[0]; l++) {
        AMP_LIST_EACH(it, next, lists[l])
        {
            ampd_call_end(AMP_CONTAINER(it, struct ampd_call, node), AMP_EUNAVAILABLE, "RECOVERING", "%s", text);
        }
    }
}

void ampd_calls_close(struct ampd_core *core)
{
    for (unsigned b = 0; b < AMPD_CALL_BUCKETS; b++) {
        while (!amp_list_empty(&core->calls[b]))
            ampd_call_forget(core, AMP_CONTAINER(core->calls[b].next, struct ampd_call, link));
    }
}
