/* A joined model (model.h): how it carries out outputs of its core, makes requests, and comes to the loop and goes. */
#include "client/io/model.h"

#include "base/large.h"
#include "client/io/attach.h"
#include "client/io/model_call.h"

#include <stdlib.h>
#include <string.h>

/* ---- outputs ---- */

/*
 * Whether the answer gives gradients back. Those to GATHER or PULL_LATEST have none; and after a STEP_END or DRAIN that
 * has passed its deadline or was interrupted the push goes on.
 */
static bool gives_back(const struct ampclient_user_done *done)
{
    bool in_vain = done->code == AMP_EDEADLINE || done->code == AMP_ECANCELLED;
    bool ends = done->request == AMPCLIENT_EVENT_STEP_END || done->request == AMPCLIENT_EVENT_DRAIN;
    bool none = done->request == AMPCLIENT_EVENT_GATHER || done->request == AMPCLIENT_EVENT_PULL_LATEST;
    return !none && !(ends && in_vain);
}

/* With the mutex: wakes the waiting thread if its answer is there and no memory that it gives back is in use. */
static void tell_done(struct ampclient_model *model)
{
    if (!model->done_ready || (model->borrowed > 0 && gives_back(&model->done)))
        return;
    model->done_ready = false;
    model->done_delivered = true;
    (void)pthread_cond_broadcast(&model->client->link->wake);
}

static void on_timer(uv_timer_t *timer)
{
    struct ampclient_model *model = timer->data;
    struct ampclient_event event = {.type = AMPCLIENT_EVENT_TICK};
    ampclient_model_event(model, &event);
}

static void set_timer(struct ampclient_model *model, uint64_t at_ms)
{
    uint64_t now = ampclient_now_ms();
    uv_update_time(&model->client->link->loop); /* timers count from the loop's own, older idea of now */
    /* One more: uv rounds down, and a tick that comes early would be set again at once. Never 0: libuv runs all timers
     * that are due before it looks at sockets, so a time in the past that is set again and again would starve them. */
    (void)uv_timer_start(&model->timer, on_timer, (at_ms > now ? at_ms - now : 0) + 1, 0);
}

/* A line for the user's log, which is written without the mutex. */
struct log_line {
    struct amp_list node;
    enum ampclient_log_level level;
    char text[AMP_ERROR_TEXT_MAX];
};

static void keep_line(struct ampclient_model *model, const struct ampclient_output *output)
{
    struct log_line *line = malloc(sizeof *line);
    if (line == NULL)
        return;
    line->level = (enum ampclient_log_level)output->u.log.level;
    memcpy(line->text, output->u.log.text, sizeof line->text);
    amp_list_push(&model->lines, &line->node);
}

static void tell_lines(struct ampclient_model *model)
{
    for (struct amp_list *node; (node = amp_list_shift(&model->lines)) != NULL;) {
        struct log_line *line = AMP_CONTAINER(node, struct log_line, node);
        ampclient_link_log(model->client->link, line->level, line->text);
        free(line);
    }
}

/* With the mutex. Calls no callback and never steps the core, so the views of the output stay valid. */
static void act(struct ampclient_model *model, const struct ampclient_output *output)
{
    struct ampclient_core_call *call;
    switch (output->type) {
    case AMPCLIENT_OUT_JOIN:
    case AMPCLIENT_OUT_KEEP_ALIVE:
    case AMPCLIENT_OUT_LEAVE:
    case AMPCLIENT_OUT_PULL:
    case AMPCLIENT_OUT_GET_PUSH_STATE:
    case AMPCLIENT_OUT_PUSH:
        ampclient_call_begin(model, output);
        break;
    case AMPCLIENT_OUT_PUSH_BLOCKS:
        if ((call = ampclient_call_find(model, output->call)) != NULL)
            ampclient_push_blocks(call, &output->u.blocks);
        break;
    case AMPCLIENT_OUT_PUSH_END:
        if ((call = ampclient_call_find(model, output->call)) != NULL)
            ampclient_push_end(call, output);
        break;
    case AMPCLIENT_OUT_CANCEL:
        if ((call = ampclient_call_find(model, output->call)) != NULL) {
            call->cancelled = true;
            arpc_call_cancel(call->call, ARPC_STATUS_CANCELLED, "cancelled by the client");
        }
        break;
    case AMPCLIENT_OUT_USER_DONE:
        model->done = output->u.done;
        model->done_ready = true;
        break;
    case AMPCLIENT_OUT_TIMER:
        set_timer(model, output->u.at_ms);
        break;
    case AMPCLIENT_OUT_LOG:
        keep_line(model, output);
        break;
    }
}

/* Gives the core the end of the call that could not begin. */
static void tell_unstarted(struct ampclient_model *model)
{
    struct ampclient_event event = {.type = AMPCLIENT_EVENT_ENDED, .call = model->unstarted};
    event.u.ended.code = model->start_error.code;
    event.u.ended.reason = "";
    event.u.ended.text = model->start_error.text;
    model->unstarted = 0;
    ampclient_core_step(model->core, ampclient_now_ms(), &event);
}

/* Gives the core PUSH_DRAINED for one stream whose named blocks have all left. False: there is none. */
static bool tell_drained(struct ampclient_model *model)
{
    if (!model->units || model->borrowed > 0)
        return false;
    AMP_LIST_EACH(node, next, &model->calls)
    {
        struct ampclient_core_call *call = AMP_CONTAINER(node, struct ampclient_core_call, node);
        if (!call->push.undrained || call->cancelled || call->push.next < call->push.count)
            continue;
        call->push.undrained = false;
        struct ampclient_event event = {.type = AMPCLIENT_EVENT_PUSH_DRAINED, .call = call->number};
        ampclient_core_step(model->core, ampclient_now_ms(), &event);
        return true;
    }
    return false;
}

/* Sends the blocks that the core has named, as far as there is room. */
static void feed_pushes(struct ampclient_model *model)
{
    AMP_LIST_EACH(node, next, &model->calls)
    {
        struct ampclient_core_call *call = AMP_CONTAINER(node, struct ampclient_core_call, node);
        if (call->kind == AMPCLIENT_OUT_PUSH)
            ampclient_push_feed(call);
    }
}

static void drain_locked(struct ampclient_model *model)
{
    struct ampclient_output output;
    for (;;) {
        while (model->unstarted == 0 && ampclient_core_next(model->core, &output))
            act(model, &output);
        feed_pushes(model);
        if (model->unstarted != 0)
            tell_unstarted(model);
        else if (!tell_drained(model))
            break;
    }
    tell_done(model);
}

void ampclient_model_drain(struct ampclient_model *model)
{
    if (model->stopped)
        return;
    (void)pthread_mutex_lock(&model->client->link->mutex);
    drain_locked(model);
    (void)pthread_mutex_unlock(&model->client->link->mutex);
    tell_lines(model);
}

void ampclient_model_event(struct ampclient_model *model, const struct ampclient_event *event)
{
    if (model->stopped)
        return;
    (void)pthread_mutex_lock(&model->client->link->mutex);
    ampclient_core_step(model->core, ampclient_now_ms(), event);
    drain_locked(model);
    (void)pthread_mutex_unlock(&model->client->link->mutex);
    tell_lines(model);
}

/* ---- adding and removing ---- */

static void run_add(struct ampclient_job *job)
{
    struct ampclient_model *model = AMP_CONTAINER(job, struct ampclient_model, job);
    (void)uv_timer_init(&model->client->link->loop, &model->timer); /* cannot fail */
    model->timer.data = model;
    amp_list_push(&model->client->models, &model->node);
    ampclient_link_finish(model->client->link, job);
}

void ampclient_model_remove_if_idle(struct ampclient_model *model)
{
    (void)pthread_mutex_lock(&model->client->link->mutex);
    bool idle = model->borrowed == 0;
    (void)pthread_mutex_unlock(&model->client->link->mutex);
    if (!model->removing || !idle || !amp_list_empty(&model->calls) || !amp_list_empty(&model->attach_calls) ||
        !model->timer_closed)
        return;
    model->removing = false;
    amp_list_remove(&model->node);
    ampclient_link_finish(model->client->link, &model->job);
}

void ampclient_model_sent(void *arg)
{
    struct ampclient_model *model = arg;
    (void)pthread_mutex_lock(&model->client->link->mutex);
    model->borrowed--;
    if (model->units && model->borrowed == 0)
        ampclient_link_kick(model->client->link); /* not from here: the stream may be in the middle of its own end */
    tell_done(model);
    (void)pthread_mutex_unlock(&model->client->link->mutex);
    ampclient_model_remove_if_idle(model);
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct ampclient_model *model = handle->data;
    model->timer_closed = true;
    ampclient_model_remove_if_idle(model);
}

void ampclient_model_stop(struct ampclient_model *model)
{
    if (!model->stopped)
        uv_close((uv_handle_t *)&model->timer, on_timer_closed);
    model->stopped = true;
}

static void run_remove(struct ampclient_job *job)
{
    struct ampclient_model *model = AMP_CONTAINER(job, struct ampclient_model, job);
    model->removing = true;
    AMP_LIST_EACH(node, next, &model->calls)
    arpc_call_cancel(AMP_CONTAINER(node, struct ampclient_core_call, node)->call, ARPC_STATUS_CANCELLED,
                     "the client left the model");
    ampclient_attach_cancel(model);
    ampclient_model_stop(model);
}

int ampclient_model_run(struct ampclient_model *model, void (*run_cb)(struct ampclient_job *job), uint64_t timeout_ms,
                        struct amp_error *error)
{
    model->job.run_cb = run_cb;
    return ampclient_link_run(model->client->link, &model->job, timeout_ms, error);
}

int ampclient_model_add(struct ampclient_model *model)
{
    struct ampclient *client = model->client;
    return ampclient_model_run(model, run_add, client->options.call_timeout_ms, &client->error);
}

int ampclient_model_remove(struct ampclient_model *model)
{
    struct ampclient *client = model->client;
    return ampclient_model_run(model, run_remove, client->options.call_timeout_ms, &client->error);
}

void ampclient_model_free(struct ampclient_model *model)
{
    ampclient_core_free(model->core);
    ampclient_attach_free(model);
    amp_large_free(model->places, model->places_size);
    free(model->parameters);
    free(model->scratch);
    free(model->user_state);
    free(model);
}

/* ---- requests ---- */

int ampclient_model_lock(struct ampclient_model *model)
{
    struct ampclient *client = model->client;
    ampclient_begin(client);
    (void)pthread_mutex_lock(&client->link->mutex);
    return client->link->broken ? ampclient_link_break(client->link, &client->error) : 0;
}

int ampclient_model_unlock(struct ampclient_model *model, int rc)
{
    if (ampclient_core_has_output(model->core))
        ampclient_link_kick(model->client->link);
    (void)pthread_mutex_unlock(&model->client->link->mutex);
    return rc;
}

int ampclient_model_request(struct ampclient_model *model, enum ampclient_event_type type,
                            struct ampclient_user_done *done)
{
    const struct ampclient_event event = {.type = type};
    return ampclient_model_ask(model, &event, done);
}

int ampclient_model_ask(struct ampclient_model *model, const struct ampclient_event *request,
                        struct ampclient_user_done *done)
{
    struct ampclient *client = model->client;
    struct ampclient_link *link = client->link;
    /* The core ends each request in time; this deadline only passes if the loop stands still. */
    uint64_t deadline = ampclient_now_ms() + client->options.step_timeout_ms + client->options.reconnect_timeout_ms +
                        client->options.call_timeout_ms + AMPCLIENT_WAIT_SLACK_MS;
    (void)pthread_mutex_lock(&link->mutex);
    int rc = link->broken ? ampclient_link_break(link, &client->error) : 0;
    if (rc == 0) {
        model->done_delivered = false;
        ampclient_core_step(model->core, ampclient_now_ms(), request);
        /* An answer that is there already is taken here, which is faster than to wake the loop's thread. */
        model->done_ready = ampclient_core_take_done(model->core, &model->done);
        tell_done(model);
        if (ampclient_core_has_output(model->core))
            ampclient_link_kick(link);
    }
    for (bool interrupted = false; rc == 0 && !model->done_delivered;) {
        if (link->interrupted && !interrupted) { /* it may have happened before this wait, while memory was attached */
            const struct ampclient_event interrupt = {.type = AMPCLIENT_EVENT_INTERRUPT};
            interrupted = true;
            ampclient_core_step(model->core, ampclient_now_ms(), &interrupt);
            ampclient_link_kick(link);
        }
        if (!ampclient_link_wait(link, &deadline) && !model->done_delivered)
            rc = ampclient_link_break(link, &client->error);
    }
    if (rc == 0) {
        *done = model->done;
        rc = done->code;
    }
    (void)pthread_mutex_unlock(&link->mutex);
    if (rc < 0 && client->error.code == 0) {
        client->error = done->error;
        client->error.code = rc;
    }
    return rc;
}
