/*
 * ExplainStep: one row of the history with all that belongs to it, read on the reader's thread, and sentences about it.
 */
#include "server/io/history/explain.h"

#include "server/io/base/handlers.h"
#include "server/io/base/message_buf.h"
#include "server/io/base/server.h"
#include "server/io/base/threads.h"
#include "server/io/calls/convert.h"
#include "server/io/calls/pages.h"
#include "server/io/calls/server_call.h"
#include "server/io/history/explain_text.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A filter for rows of steps alone. */
#define STEP_VERDICTS                                                                                                  \
    (1u << AMPD_VERDICT_APPLIED | 1u << AMPD_VERDICT_SKIPPED_OVERFLOW | 1u << AMPD_VERDICT_SKIPPED_EMPTY)

struct explain {
    struct io_server_call call;
    struct io_task task;
    uint32_t model; /* index in the core when the request came */
    const struct ampd_model_spec *spec;
    uint64_t epoch, step;      /* epoch 0: the one in which the step was not rolled back */
    struct ampd_step_row *row; /* from the read to the answer: of many calls that wait, none has one */
    struct amp_error error;
    int code;
};

static struct explain *explain_of(struct io_server_call *call)
{
    return AMP_CONTAINER(call, struct explain, call);
}

/* ---- reading ---- */

struct found {
    bool any;
    struct ampd_step_row *row;
};

static int take_row(void *arg, const struct ampd_history_key *key, const struct ampd_step_row *row,
                    const struct ampd_epoch_record *epoch)
{
    struct found *found = arg;
    found->any = true;
    *found->row = *row;
    return 0;
}

static int not_found(struct ampd_store *reader, const char *model, const struct ampd_history_filter *filter,
                     struct amp_error *error)
{
    struct amp_error past_end = {0};
    int rc = io_history_check_gone(reader, model, filter->epoch, "step", filter->step_min, error);
    if (rc != 0)
        return rc;
    rc = io_page_past_end(reader, model, filter, &past_end);
    if (rc == AMP_ERANGE || (rc == 0 && filter->step_min == 1 && filter->epoch == 0))
        return amp_error_set(error, AMP_ERANGE, "STEP_NOT_DECIDED", "step %" PRIu64 " has not been decided",
                             filter->step_min);
    return amp_error_set(error, rc != 0 ? rc : AMP_ENOTFOUND, "STEP_NOT_FOUND",
                         "step: there is no row of step %" PRIu64 "%s", filter->step_min,
                         filter->epoch != 0 ? " in this epoch; leave the epoch out for the one in which it counts"
                                            : "");
}

int io_explain_read(struct ampd_store *reader, const struct ampd_model_spec *spec, uint64_t epoch, uint64_t step,
                    struct ampd_step_row *row, struct amp_error *error)
{
    const struct ampd_history_filter filter = {.epoch = epoch,
                                               .step_min = step,
                                               .step_max = step,
                                               .superseded_too = epoch != 0,
                                               .descending = true,
                                               .verdicts = STEP_VERDICTS};
    struct found found = {false, row};
    int rc = ampd_store_page_history(reader, spec->name, &filter, 1, &found, error, take_row);
    return rc == 0 && !found.any ? not_found(reader, spec->name, &filter, error) : rc;
}

static void explain_run(struct io_task *task)
{
    struct explain *explain = AMP_CONTAINER(task, struct explain, task);
    explain->row = malloc(sizeof *explain->row);
    explain->code = explain->row == NULL
                        ? amp_error_set(&explain->error, AMP_ENOMEM, NULL, "out of memory for this step; ask again")
                        : io_explain_read(explain->call.server->data.reader, explain->spec, explain->epoch,
                                          explain->step, explain->row, &explain->error);
}

/* ---- answering ---- */

static int fill_contributors(const struct ampd_server *server, uint32_t model, const struct ampd_model_spec *spec,
                             const struct ampd_step_row *row, struct ampd_msg_step_contributor_list *list)
{
    struct ampd_model_info info;
    ampd_core_model(server->core, model, &info);
    bool is_there = !info.deleted && info.spec == spec; /* if not, another model may have its index */
    list->items = calloc(row->contributors_count + 1, sizeof *list->items);
    if (list->items == NULL)
        return AMP_ENOMEM;
    for (uint32_t i = 0; i < row->contributors_count; i++) {
        const struct ampd_contributor *from = &row->contributors[i];
        struct ampd_msg_step_contributor *to = &list->items[list->count++];
        to->rank = from->rank;
        to->has_incarnation = true;
        to->incarnation = io_msg_incarnation(from->incarnation);
        to->weight = from->weight;
        if (is_there && from->rank < spec->world_size)
            (void)snprintf(to->worker_name, sizeof to->worker_name, "%s",
                           ampd_core_worker_name(server->core, model, from->rank, from->incarnation));
    }
    return 0;
}

static int fill_overflows(const struct ampd_server *server, uint32_t model, const struct ampd_model_spec *spec,
                          const struct ampd_step_row *row, struct ampd_msg_overflow_row_list *list)
{
    list->items = calloc(row->rows_count + 1, sizeof *list->items);
    if (list->items == NULL)
        return AMP_ENOMEM;
    list->count = row->rows_count;
    for (uint32_t i = 0; i < row->rows_count; i++) {
        struct ampd_msg_overflow_row *to = &list->items[i];
        io_overflow_row(spec, row->epoch, row->step, &row->rows[i], to);
        to->has_decide_time = row->at_us != 0;
        to->decide_time.us = row->at_us;
        to->superseded = row->superseded;
    }
    io_name_workers(server, model, spec, list->items, list->count, row->contributors, row->contributors_count);
    return 0;
}

int io_explain_fill(const struct ampd_server *server, uint32_t model, const struct ampd_model_spec *spec,
                    const struct ampd_step_row *row, struct ampd_msg_explain_step_response *response)
{
    memset(response, 0, sizeof *response);
    response->has_row = true;
    io_history_row(spec, row, NULL, &response->row);
    response->has_overflow_totals = response->row.has_overflow_totals;
    response->overflow_totals = response->row.overflow_totals;
    int rc = fill_contributors(server, model, spec, row, &response->contributors);
    if (rc == 0)
        rc = fill_overflows(server, model, spec, row, &response->overflows);
    if (rc == 0)
        io_explain_step(spec, row, response->overflows.items, response->overflows.count, response->explanation,
                        sizeof response->explanation);
    return rc;
}

static int encode(const struct explain *explain, struct amp_buf *buf)
{
    struct ampd_msg_explain_step_response response;
    int rc = io_explain_fill(explain->call.server, explain->model, explain->spec, explain->row, &response);
    if (rc == 0)
        rc = ampd_msg_explain_step_response_encode(&response, buf);
    ampd_msg_explain_step_response_free(&response);
    return rc;
}

static void explain_done(struct io_task *task)
{
    struct explain *explain = AMP_CONTAINER(task, struct explain, task);
    struct amp_buf buf = io_message_buf();
    io_server_call_was_read(&explain->call);
    if (explain->code != 0)
        io_server_call_fail(&explain->call, &explain->error);
    else if (explain->call.rpc != NULL) /* if NULL, nobody waits, and the row may not have been read */
        io_server_call_reply_buf(&explain->call, &buf, encode(explain, &buf));
    free(explain->row);
    io_server_call_unref(&explain->call);
}

static void begin(struct explain *explain, const struct ampd_msg_explain_step_request *request)
{
    struct ampd_model_info info;
    if (!io_find_model(&explain->call, request->model, &explain->model, &info))
        return;
    if (request->step == 0) {
        io_server_call_refuse(&explain->call, AMP_EINVAL, "INVALID_FIELD", "step: it is 0; steps count from 1");
        return;
    }
    explain->spec = info.spec;
    explain->epoch = request->has_epoch ? request->epoch : 0;
    explain->step = request->step;
    explain->task = (struct io_task){.run_cb = explain_run, .done_cb = explain_done};
    io_server_call_read(&explain->call, &explain->task);
}

static void explain_message(struct arpc_call *rpc, const uint8_t *data, size_t size)
{
    struct ampd_msg_explain_step_request request;
    struct amp_error error = {0};
    struct io_server_call *call = io_server_call_open(rpc, sizeof(struct explain), &io_server_call_plain);
    if (call == NULL)
        return;
    if (ampd_msg_explain_step_request_decode(&request, data, size, &error) != 0)
        io_server_call_fail(call, &error);
    else
        begin(explain_of(call), &request);
}

const struct arpc_handler ampd_handle_explain_step = {.message = explain_message, .closed = io_server_call_closed};
