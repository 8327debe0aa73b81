/*
 * ListScaleHistory and ListOverflows: each page is read on the reader's thread, in a short transaction of its own, and
 * sent from the loop.
 */
#include "server/io/base/handlers.h"

#include "server/io/base/message_buf.h"
#include "server/io/base/threads.h"
#include "server/io/calls/convert.h"
#include "server/io/calls/pages.h"
#include "server/io/calls/server_call.h"

#include <stdlib.h>
#include <string.h>

/* A request for one page. Its rows are of one of the two kinds. */
struct page {
    struct io_server_call call;
    struct io_task task;
    uint32_t model; /* index in the core when the request came */
    const struct ampd_model_spec *spec;
    struct ampd_history_filter filter;
    struct ampd_overflow_filter which;
    uint32_t size; /* rows that the page may have; one more is read, to know whether another page follows */
    struct ampd_msg_scale_history_row *rows;
    struct ampd_msg_overflow_row *overflows;
    struct ampd_contributor *whose; /* [count] for each overflow row the rank and the incarnation of its worker */
    size_t count;
    bool more;
    struct ampd_history_key next;
    struct amp_error error;
    int code;
};

static struct page *page_of(struct io_server_call *call)
{
    return AMP_CONTAINER(call, struct page, call);
}

/* ---- tokens and filters ---- */

static void write_token(const struct page *page, char *text, size_t size)
{
    if (page->more)
        io_page_token_write(&page->next, text, size);
}

static int fill_page(struct page *page, uint32_t page_size, const char *token, struct amp_error *error)
{
    int rc = io_page_size(page_size, &page->size, error);
    if (rc == 0 && token[0] != 0 && !io_page_token_parse(token, &page->filter.from))
        rc = io_page_token_refuse(error);
    return rc;
}

static bool find_model(struct page *page, const char *name)
{
    struct ampd_model_info info;
    if (!io_find_model(&page->call, name, &page->model, &info))
        return false;
    page->spec = info.spec;
    return true;
}

/* Ends a read, on the reader's thread: turns an empty page into the error that explains it. */
static void check_end(struct page *page)
{
    if (page->code == 0 && page->count == 0)
        page->code = io_page_past_end(page->call.server->data.reader, page->spec->name, &page->filter, &page->error);
}

/* The last of done_cb. The rows go at once: the answer has what it needs of them, and may be long in leaving. */
static void end(struct page *page)
{
    free(page->rows);
    free(page->overflows);
    free(page->whose);
    io_server_call_unref(&page->call);
}

static const struct io_server_call_ops page_ops = {NULL, NULL, NULL};

/* Queues the read for the reader's thread. run_cb allocates the rows, so that a request that waits is small. */
static void submit(struct page *page, void (*run_cb)(struct io_task *), void (*done_cb)(struct io_task *))
{
    page->task = (struct io_task){.run_cb = run_cb, .done_cb = done_cb};
    io_server_call_read(&page->call, &page->task);
}

/* Allocates the rows. False: out of memory, and the page has that error. */
static bool make_room(struct page *page, void **rows, size_t row_size)
{
    *rows = calloc(page->size, row_size);
    if (*rows == NULL)
        page->code = amp_error_set(&page->error, AMP_ENOMEM, NULL, "out of memory for this page");
    return *rows != NULL;
}

/* Whether the page has room for this row; if not, the next page begins with it. */
static bool has_place(struct page *page, const struct ampd_history_key *key)
{
    if (page->count < page->size)
        return true;
    page->more = true;
    page->next = *key;
    return false;
}

/* ---- history ---- */

static int take_row(void *arg, const struct ampd_history_key *key, const struct ampd_step_row *row,
                    const struct ampd_epoch_record *epoch)
{
    struct page *page = arg;
    if (has_place(page, key))
        io_history_row(page->spec, row, epoch, &page->rows[page->count++]);
    return 0;
}

static void history_run(struct io_task *task)
{
    struct page *page = AMP_CONTAINER(task, struct page, task);
    void *rows;
    if (!make_room(page, &rows, sizeof *page->rows))
        return;
    page->rows = rows;
    /* Rows of epochs and acts stay where steps were removed. A request for such steps alone is refused even so. */
    page->code = io_page_check_gone(page->call.server->data.reader, page->spec->name, &page->filter, &page->error);
    if (page->code != 0)
        return;
    page->code = ampd_store_page_history(page->call.server->data.reader, page->spec->name, &page->filter,
                                         page->size + 1, page, &page->error, take_row);
    check_end(page);
}

static void history_done(struct io_task *task)
{
    struct page *page = AMP_CONTAINER(task, struct page, task);
    struct ampd_msg_list_scale_history_response response;
    struct amp_buf buf = io_message_buf();
    io_server_call_was_read(&page->call);
    memset(&response, 0, sizeof response);
    response.rows = (struct ampd_msg_scale_history_row_list){page->rows, page->count};
    write_token(page, response.next_page_token, sizeof response.next_page_token);
    if (page->code != 0)
        io_server_call_fail(&page->call, &page->error);
    else
        io_server_call_reply_buf(&page->call, &buf, ampd_msg_list_scale_history_response_encode(&response, &buf));
    end(page);
}

static int history_filter(struct page *page, const struct ampd_msg_list_scale_history_request *request,
                          struct amp_error *error)
{
    page->filter.epoch = request->has_epoch ? request->epoch : 0;
    page->filter.superseded_too = request->include_superseded || request->has_epoch;
    page->filter.descending = request->newest_first;
    page->filter.only_changes = request->only_changes;
    page->filter.acts_before = true; /* acts are listed with the step that follows them (io_history_row) */
    for (uint32_t i = 0; i < request->verdicts_count; i++) {
        if ((unsigned)request->verdicts[i] > (unsigned)AMPD_VERDICT_SKIPPED_EMPTY)
            return amp_error_set(error, AMP_EINVAL, "INVALID_FIELD",
                                 "verdicts: %d is not a verdict; use APPLIED, SKIPPED_OVERFLOW, SKIPPED_EMPTY, or "
                                 "UNSPECIFIED for rows of actions and epochs",
                                 (int)request->verdicts[i]);
        page->filter.verdicts |= 1u << request->verdicts[i];
    }
    int rc = io_page_steps(&page->filter, request->from_step, request->has_to_step, request->to_step, error);
    return rc != 0 ? rc : fill_page(page, request->page_size, request->page_token, error);
}

static void history_message(struct arpc_call *rpc, const uint8_t *data, size_t size)
{
    struct ampd_msg_list_scale_history_request request;
    struct amp_error error = {0};
    struct io_server_call *call = io_server_call_open(rpc, sizeof(struct page), &page_ops);
    if (call == NULL)
        return;
    struct page *page = page_of(call);
    int rc = ampd_msg_list_scale_history_request_decode(&request, data, size, &error);
    if (rc == 0)
        rc = history_filter(page, &request, &error);
    if (rc != 0) {
        io_server_call_fail(call, &error);
        return;
    }
    if (find_model(page, request.model))
        submit(page, history_run, history_done);
}

const struct arpc_handler ampd_handle_list_scale_history = {.message = history_message,
                                                            .closed = io_server_call_closed};

/* ---- overflows ---- */

static int take_overflow(void *arg, const struct ampd_history_key *key, const struct ampd_overflow_found *found)
{
    struct page *page = arg;
    if (!has_place(page, key))
        return 0;
    page->whose[page->count] = (struct ampd_contributor){.rank = found->row.rank, .incarnation = found->incarnation};
    struct ampd_msg_overflow_row *to = &page->overflows[page->count++];
    io_overflow_row(page->spec, key->epoch, key->step, &found->row, to);
    to->has_decide_time = found->at_us != 0;
    to->decide_time.us = found->at_us;
    to->superseded = found->superseded;
    return 0;
}

static void overflows_run(struct io_task *task)
{
    struct page *page = AMP_CONTAINER(task, struct page, task);
    void *rows, *whose;
    if (!make_room(page, &rows, sizeof *page->overflows))
        return;
    page->overflows = rows;
    if (!make_room(page, &whose, sizeof *page->whose))
        return;
    page->whose = whose;
    page->code = ampd_store_page_overflows(page->call.server->data.reader, page->spec->name, &page->filter,
                                           &page->which, page->size + 1, page, &page->error, take_overflow);
    check_end(page);
}

static void overflows_done(struct io_task *task)
{
    struct page *page = AMP_CONTAINER(task, struct page, task);
    struct ampd_msg_list_overflows_response response;
    struct amp_buf buf = io_message_buf();
    io_server_call_was_read(&page->call);
    memset(&response, 0, sizeof response);
    for (size_t i = 0; i < page->count; i++)
        io_name_workers(page->call.server, page->model, page->spec, &page->overflows[i], 1, &page->whose[i], 1);
    response.rows = (struct ampd_msg_overflow_row_list){page->overflows, page->count};
    write_token(page, response.next_page_token, sizeof response.next_page_token);
    if (page->code != 0)
        io_server_call_fail(&page->call, &page->error);
    else
        io_server_call_reply_buf(&page->call, &buf, ampd_msg_list_overflows_response_encode(&response, &buf));
    end(page);
}

static void source_bounds(enum ampd_msg_overflow_source source, struct ampd_overflow_filter *which)
{
    *which = (struct ampd_overflow_filter){0, UINT32_MAX, 0, UINT32_MAX};
    if (source == AMPD_MSG_OVERFLOW_SOURCE_WORKER)
        which->rank_max = AMPD_RANK_RANGE - 1;
    else if (source == AMPD_MSG_OVERFLOW_SOURCE_SUM)
        which->rank_min = which->rank_max = AMPD_RANK_SUM;
    else if (source == AMPD_MSG_OVERFLOW_SOURCE_RANGE)
        which->rank_min = which->rank_max = AMPD_RANK_RANGE;
}

static int parameter_bounds(const struct page *page, const char *name, struct ampd_overflow_filter *which,
                            struct amp_error *error)
{
    if (name[0] == 0)
        return 0;
    for (uint32_t i = 0; i < page->spec->parameters_count; i++) {
        if (strcmp(page->spec->parameters[i].name, name) == 0) {
            which->parameter_min = which->parameter_max = i;
            return 0;
        }
    }
    return amp_error_set(error, AMP_ENOTFOUND, "PARAMETER_NOT_FOUND", "parameter: %s has none named %s",
                         page->spec->name, name);
}

static int overflow_filter(struct page *page, const struct ampd_msg_list_overflows_request *request,
                           struct amp_error *error)
{
    page->filter.epoch = request->has_epoch ? request->epoch : 0;
    page->filter.superseded_too = request->include_superseded || request->has_epoch;
    page->filter.descending = request->newest_first;
    if ((unsigned)request->source > (unsigned)AMPD_MSG_OVERFLOW_SOURCE_RANGE)
        return amp_error_set(error, AMP_EINVAL, "INVALID_FIELD", "source: %d is not a source; use WORKER, SUM or RANGE",
                             (int)request->source);
    source_bounds(request->source, &page->which);
    if (request->has_rank && request->rank >= AMPD_WORLD_MAX)
        return amp_error_set(error, AMP_EINVAL, "INVALID_FIELD", "rank: %u is too large; ranks are below world_size",
                             request->rank);
    if (request->has_rank) {
        page->which.rank_min = request->rank > page->which.rank_min ? request->rank : page->which.rank_min;
        page->which.rank_max = request->rank < page->which.rank_max ? request->rank : page->which.rank_max;
    }
    int rc = io_page_steps(&page->filter, request->from_step, request->has_to_step, request->to_step, error);
    return rc != 0 ? rc : fill_page(page, request->page_size, request->page_token, error);
}

static void overflows_message(struct arpc_call *rpc, const uint8_t *data, size_t size)
{
    struct ampd_msg_list_overflows_request request;
    struct amp_error error = {0};
    struct io_server_call *call = io_server_call_open(rpc, sizeof(struct page), &page_ops);
    if (call == NULL)
        return;
    struct page *page = page_of(call);
    int rc = ampd_msg_list_overflows_request_decode(&request, data, size, &error);
    if (rc == 0)
        rc = overflow_filter(page, &request, &error);
    if (rc == 0 && !find_model(page, request.model))
        return;
    if (rc == 0)
        rc = parameter_bounds(page, request.parameter, &page->which, &error);
    if (rc != 0) {
        io_server_call_fail(call, &error);
        return;
    }
    submit(page, overflows_run, overflows_done);
}

const struct arpc_handler ampd_handle_list_overflows = {.message = overflows_message, .closed = io_server_call_closed};
