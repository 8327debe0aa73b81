/*
 * Calls: the table of those that wait or stream, and their answers.
 *
 *   HELD      -> STREAMING            granted
 *   STREAMING -> ENDED, REVOKING      its body is here; or it must let go of memory before it is answered
 *   ENDED     ->                      answered when the step is decided
 *   REVOKING  ->                      answered when the host has let go
 *
 * A call leaves the table when it is answered or closed, from any state.
 */
#include "base/assert.h"
#include "server/core/model.h"

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
    struct ampd_call *call = calloc(1, sizeof(*call));
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

/* Details of an answer: where the model is, and when to come again. */
static void fill_details(struct ampd_reply *reply, const struct ampd_model *model)
{
    if (model != NULL) {
        reply->epoch = model->shard.epoch;
        reply->step = ampd_shard_next_step(model);
    }
    if (reply->error.code == AMP_EUNAVAILABLE)
        reply->retry_ms = AMPD_RETRY_MS;
}

void ampd_call_fail_with(struct ampd_core *core, uint64_t id, const struct ampd_model *model,
                         const struct amp_error *error)
{
    struct ampd_reply *reply = ampd_call_reply(core, id, AMPD_REPLY_NONE);
    reply->error = *error;
    fill_details(reply, model);
}

static void __attribute__((format(printf, 4, 0)))
set_error(struct amp_error *error, int code, const char *reason, const char *format, va_list arguments)
{
    char text[AMP_ERROR_TEXT_MAX];
    (void)vsnprintf(text, sizeof(text), format, arguments); /* a text that is too long is cut */
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
    if (call->state == AMPD_CALL_REVOKING)
        return; /* its answer is settled */
    if (call->state != AMPD_CALL_STREAMING) {
        struct ampd_model *model = call->model;
        enum ampd_call_kind kind = call->kind;
        uint64_t id = call->id;
        ampd_call_fail_with(core, id, model, &error);
        if (kind == AMPD_CALL_LOAD)
            ampd_load_closed(model, id);
        return;
    }
    call->later = ampd_need(calloc(1, sizeof(*call->later)));
    call->later->error = error;
    fill_details(call->later, call->model);
    ampd_call_set(call, AMPD_CALL_REVOKING);
    (void)ampd_out(core, call->kind == AMPD_CALL_PULL ? AMPD_OUT_PULL_REVOKE : AMPD_OUT_PUSH_REVOKE, call->id);
}

/* "fc1.weight, fc2.weight": those that overflowed in the last decided step. */
static void name_parameters(const struct ampd_model *model, char *text, size_t size)
{
    const struct ampd_step_row *row = model->shard.verdict == NULL ? NULL : &model->shard.verdict->row;
    size_t used = 0;
    uint32_t last = UINT32_MAX;
    text[0] = 0;
    for (uint32_t i = 0; row != NULL && i < row->rows_count && used < size; i++) {
        if (row->rows[i].parameter == last)
            continue;
        last = row->rows[i].parameter;
        used += (size_t)snprintf(text + used, size - used, "%s%s", used > 0 ? ", " : "",
                                 model->spec.parameters[last].name); /* what has no place is cut */
    }
}

void ampd_call_frozen(struct ampd_call *call)
{
    const struct ampd_model *model = call->model;
    char names[160];
    name_parameters(model, names, sizeof(names));
    bool fails = model->spec.floor_policy == AMPD_FLOOR_FAIL;
    ampd_call_end(
        call, AMP_ESTATE, fails ? "MODEL_UNSTABLE" : "MODEL_FROZEN",
        "%s: %u overflows in a row and the scale is at its floor, %g%s%s; set or reset the scale, or roll back",
        model->spec.name, model->shard.scaler.consecutive_overflows, (double)model->shard.scaler.scale,
        names[0] != 0 ? "; overflowing: " : "", names);
}

void ampd_call_let_go(struct ampd_core *core, struct ampd_call *call)
{
    AMP_ASSERT(call->state == AMPD_CALL_REVOKING);
    struct ampd_reply answer = *call->later;
    struct ampd_verdict_message *late = call->late;
    const struct ampd_model *model = call->model;
    uint64_t id = call->id;
    call->late = NULL;
    struct ampd_reply *reply = ampd_call_reply(core, id, AMPD_REPLY_NONE);
    *reply = answer;
    if (late != NULL)
        ampd_push_result(model, late, false, &reply->u.step);
    free(late);
}

void ampd_calls_refuse(struct ampd_model *model, const char *text)
{
    struct amp_list *lists[] = {&model->pushes, &model->pulls, &model->loads, &model->creates, &model->rollbacks};
    for (unsigned l = 0; l < sizeof(lists) / sizeof(lists[0]); l++) {
        AMP_LIST_EACH(it, next, lists[l])
        {
            ampd_call_end(AMP_CONTAINER(it, struct ampd_call, node), AMP_EUNAVAILABLE, "RECOVERING", "%s", text);
        }
    }
}

static void sweep_list(struct ampd_core *core, struct amp_list *list, uint64_t longest_ms)
{
    AMP_LIST_EACH(it, next, list)
    {
        struct ampd_call *call = AMP_CONTAINER(it, struct ampd_call, node);
        bool waits = call->state == AMPD_CALL_HELD || call->state == AMPD_CALL_ENDED;
        if (!waits || core->now_ms - call->begun_ms < longest_ms)
            continue;
        char ranks[AMPD_AWAITED_NAMES_MAX] = "";
        if (core->config.shard == 0)
            ampd_health_names(call->model, ranks, sizeof(ranks));
        ampd_call_end(call, AMP_EUNAVAILABLE, "WAITED_TOO_LONG",
                      "%s did not come to this in %llu ms%s%s; what you pushed is kept: ask again",
                      call->model->spec.name, (unsigned long long)longest_ms, ranks[0] != 0 ? ", as it waits for " : "",
                      ranks);
    }
}

void ampd_calls_sweep(struct ampd_core *core)
{
    for (uint32_t i = 0; i < core->models_count; i++) {
        struct ampd_model *model = core->models[i];
        if (model->gone)
            continue;
        struct amp_list *lists[] = {&model->pushes,      &model->pulls,     &model->loads,
                                    &model->checkpoints, &model->rollbacks, &model->deletes};
        uint64_t longest_ms = core->config.lease_ms + model->spec.loss_timeout_ms;
        for (unsigned l = 0; l < sizeof(lists) / sizeof(lists[0]); l++)
            sweep_list(core, lists[l], longest_ms);
        ampd_coord_sweep(model);
        ampd_load_wants(model);
    }
}

void ampd_calls_close(struct ampd_core *core)
{
    for (unsigned b = 0; b < AMPD_CALL_BUCKETS; b++) {
        while (!amp_list_empty(&core->calls[b]))
            ampd_call_forget(core, AMP_CONTAINER(core->calls[b].next, struct ampd_call, link));
    }
}
