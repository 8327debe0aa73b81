/* ReplayPolicy: a page of stored steps, which are read and replayed on the reader's thread. */
#include "server/io/base/handlers.h"

#include "server/io/base/message_buf.h"
#include "server/io/base/threads.h"
#include "server/io/calls/check_spec.h"
#include "server/io/calls/convert.h"
#include "server/io/calls/convert_spec.h"
#include "server/io/calls/pages.h"
#include "server/io/calls/server_call.h"
#include "server/io/history/replay_policy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A filter for rows of steps alone: scales set by hand are left out of another policy's run. */
#define STEP_VERDICTS                                                                                                  \
    (1u << AMPD_VERDICT_APPLIED | 1u << AMPD_VERDICT_SKIPPED_OVERFLOW | 1u << AMPD_VERDICT_SKIPPED_EMPTY)

#define NOTE                                                                                                           \
    "Every step is assumed to end as it did: how many steps would have overflowed under the other scale cannot be "    \
    "known, "                                                                                                          \
    "since gradients are not kept; the uncertain steps are those that might have ended differently."

struct replay {
    struct io_server_call call;
    struct io_task task;
    const struct ampd_model_spec *spec;
    struct ampd_history_filter filter;
    struct io_replay machine;
    uint32_t size; /* rows that the page may have; one more is read, to know whether another page follows */
    struct ampd_msg_replay_policy_response response;
    struct amp_error error;
    int code;
};

static struct replay *replay_of(struct io_server_call *call)
{
    return AMP_CONTAINER(call, struct replay, call);
}

static int take_row(void *arg, const struct ampd_history_key *key, const struct ampd_step_row *row,
                    const struct ampd_epoch_record *epoch)
{
    struct replay *replay = arg;
    struct ampd_msg_replay_policy_response *response = &replay->response;
    if (response->rows.count == replay->size) {
        io_replay_token_write(&replay->machine, key, response->next_page_token, sizeof response->next_page_token);
        return 0;
    }
    struct ampd_msg_replayed_step *to = &response->rows.items[response->rows.count++];
    io_replay_step(&replay->machine, row, to);
    response->differing_steps += memcmp(&to->stored_scale, &to->replayed_scale, sizeof to->stored_scale) != 0;
    response->uncertain_steps += to->uncertain;
    return 0;
}

static void replay_run(struct io_task *task)
{
    struct replay *replay = AMP_CONTAINER(task, struct replay, task);
    struct ampd_store *reader = replay->call.server->data.reader;
    const struct ampd_history_filter *filter = &replay->filter;
    uint64_t first = filter->from.epoch != 0 ? filter->from.step : filter->step_min;
    replay->response.rows.items = calloc(replay->size, sizeof *replay->response.rows.items);
    if (replay->response.rows.items == NULL) {
        replay->code = amp_error_set(&replay->error, AMP_ENOMEM, NULL, "out of memory for this page");
        return;
    }
    /* The replay begins where the model began, or at from_step: if those rows were removed, it cannot begin. */
    replay->code = io_history_check_gone(reader, replay->spec->name, filter->epoch, "from_step", first, &replay->error);
    if (replay->code != 0)
        return;
    replay->code = ampd_store_page_history(reader, replay->spec->name, &replay->filter, replay->size + 1, replay,
                                           &replay->error, take_row);
    if (replay->code == 0 && replay->response.rows.count == 0)
        replay->code = io_page_past_end(reader, replay->spec->name, &replay->filter, &replay->error);
    replay->response.final_scale = replay->machine.state.scale;
    (void)snprintf(replay->response.note, sizeof replay->response.note, "%s", NOTE);
}

static void replay_done(struct io_task *task)
{
    struct replay *replay = AMP_CONTAINER(task, struct replay, task);
    struct amp_buf buf = io_message_buf();
    io_server_call_was_read(&replay->call);
    if (replay->code != 0)
        io_server_call_fail(&replay->call, &replay->error);
    else
        io_server_call_reply_buf(&replay->call, &buf, ampd_msg_replay_policy_response_encode(&replay->response, &buf));
    ampd_msg_replay_policy_response_free(&replay->response); /* the answer may be long in leaving */
    io_server_call_unref(&replay->call);
}

static const struct io_server_call_ops replay_ops = {NULL, NULL, NULL};

static int prepare(struct replay *replay, struct ampd_msg_replay_policy_request *request, struct amp_error *error)
{
    struct amp_scaler_config config;
    if (!request->has_scaler)
        return amp_error_set(error, AMP_EINVAL, "INVALID_FIELD", "scaler: it is missing; give the policy to try");
    int rc = io_check_scaler(&request->scaler, error);
    if (rc == 0) {
        config = io_scaler_from_msg(&request->scaler);
        amp_scaler_config_defaults(&config);
        rc = amp_scaler_config_check(&config, error);
    }
    if (rc == 0)
        rc = io_page_size(request->page_size, &replay->size, error);
    if (rc == 0)
        rc = io_page_steps(&replay->filter, request->from_step, request->has_to_step, request->to_step, error);
    if (rc != 0)
        return rc;
    replay->filter.epoch = request->has_epoch ? request->epoch : 0;
    replay->filter.superseded_too = request->has_epoch;
    replay->filter.verdicts = STEP_VERDICTS;
    io_replay_init(&replay->machine, &config);
    bool given = request->page_token[0] != 0;
    return given && !io_replay_token_parse(request->page_token, &replay->machine, &replay->filter.from)
               ? io_page_token_refuse(error)
               : 0;
}

static void replay_message(struct arpc_call *rpc, const uint8_t *data, size_t size)
{
    struct ampd_msg_replay_policy_request request;
    struct ampd_model_info info;
    struct amp_error error = {0};
    uint32_t index;
    struct io_server_call *call = io_server_call_open(rpc, sizeof(struct replay), &replay_ops);
    if (call == NULL)
        return;
    struct replay *replay = replay_of(call);
    int rc = ampd_msg_replay_policy_request_decode(&request, data, size, &error);
    if (rc == 0 && !io_find_model(call, request.model, &index, &info))
        return;
    if (rc == 0)
        rc = prepare(replay, &request, &error);
    if (rc != 0) {
        io_server_call_fail(call, &error);
        return;
    }
    replay->spec = info.spec;
    replay->task = (struct io_task){.run_cb = replay_run, .done_cb = replay_done};
    io_server_call_read(call, &replay->task);
}

const struct arpc_handler ampd_handle_replay_policy = {.message = replay_message, .closed = io_server_call_closed};
