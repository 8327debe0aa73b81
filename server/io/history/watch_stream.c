/*
 * WatchSteps: a stream of the rows of a model. All rows are read from the store, new ones too; a notice that a row was
 * stored only causes another read. So each watch gets every row once and in order, and a slow one has no rows in
 * memory. A watch has one read of a few rows under way, and none while its connection is full. It ends when the model
 * is done and all rows have been sent.
 */
#include "server/io/base/handlers.h"

#include "base/assert.h"
#include "server/io/base/message_buf.h"
#include "server/io/base/server.h"
#include "server/io/base/threads.h"
#include "server/io/calls/alive.h"
#include "server/io/calls/convert.h"
#include "server/io/calls/pages.h"
#include "server/io/calls/server_call.h"
#include "server/io/host/watchers.h"

#include <stdlib.h>
#include <string.h>

/* Rows of one read. A row takes 11 KiB from the read until it is sent; a watch that waits has none in memory. */
#define READ_ROWS 4

struct watch_row {
    struct ampd_history_key key;
    struct ampd_step_row row;
    bool is_epoch;
    struct ampd_epoch_record epoch;
};

struct watch {
    struct io_server_call call;
    struct io_watcher watcher;
    struct io_alive alive;
    struct io_task task;
    const struct ampd_model_spec *spec;
    struct ampd_history_filter filter; /* its `from` is the key of the next row */
    bool begins;            /* new rows only: the first read finds the last stored row of from's step, and skips it */
    bool reading;           /* a read is under way */
    bool more;              /* rows may have been stored since the read began */
    struct watch_row *rows; /* [READ_ROWS] that were read and have not been sent; NULL: none */
    size_t count;           /* how many of them there are */
    struct amp_error error;
    int code;
};

static struct watch *watch_of(struct io_server_call *call)
{
    return AMP_CONTAINER(call, struct watch, call);
}

static int take_row(void *arg, const struct ampd_history_key *key, const struct ampd_step_row *row,
                    const struct ampd_epoch_record *epoch)
{
    struct watch *watch = arg;
    AMP_ASSERT(watch->count < READ_ROWS);
    struct watch_row *to = &watch->rows[watch->count++];
    to->key = *key;
    to->row = *row;
    to->is_epoch = epoch != NULL;
    if (epoch != NULL)
        to->epoch = *epoch;
    return 0;
}

static int take_last(void *arg, const struct ampd_history_key *key, const struct ampd_step_row *row,
                     const struct ampd_epoch_record *epoch)
{
    struct ampd_history_key *from = arg;
    if (key->epoch == from->epoch && key->step == from->step)
        from->sequence = key->sequence + 1;
    return 0;
}

/* For a watch of new rows: sets the key behind the last row of the newest step, which may be that of an act. */
static int find_beginning(struct watch *watch)
{
    struct ampd_history_key *from = &watch->filter.from;
    const struct ampd_history_filter last = {
        .from = {from->epoch, from->step, UINT32_MAX}, .superseded_too = true, .descending = true};
    watch->begins = false;
    return ampd_store_page_history(watch->call.server->data.reader, watch->spec->name, &last, 1, from, &watch->error,
                                   take_last);
}

static void watch_run(struct io_task *task)
{
    struct watch *watch = AMP_CONTAINER(task, struct watch, task);
    if (watch->begins)
        watch->code = find_beginning(watch);
    if (watch->code != 0)
        return;
    watch->rows = calloc(READ_ROWS, sizeof *watch->rows);
    if (watch->rows == NULL) {
        watch->code = amp_error_set(&watch->error, AMP_ENOMEM, NULL, "out of memory for this watch");
        return;
    }
    watch->code = ampd_store_page_history(watch->call.server->data.reader, watch->spec->name, &watch->filter, READ_ROWS,
                                          watch, &watch->error, take_row);
}

static int encode_row(const struct watch *watch, const struct watch_row *row, struct amp_buf *buf)
{
    const struct ampd_server *server = watch->call.server;
    struct ampd_model_info info;
    struct ampd_msg_watch_steps_response response;
    ampd_core_model(server->core, watch->watcher.model, &info);
    memset(&response, 0, sizeof response);
    response.has_row = true;
    io_history_row(watch->spec, &row->row, row->is_epoch ? &row->epoch : NULL, &response.row);
    response.state = (enum ampd_msg_model_state)info.state;
    response.overflows.items = calloc(row->row.rows_count + 1, sizeof *response.overflows.items);
    if (response.overflows.items == NULL)
        return AMP_ENOMEM;
    response.overflows.count = row->row.rows_count;
    for (uint32_t i = 0; i < row->row.rows_count; i++)
        io_overflow_row(watch->spec, row->key.epoch, row->key.step, &row->row.rows[i], &response.overflows.items[i]);
    io_name_workers(server, watch->watcher.model, watch->spec, response.overflows.items, response.overflows.count,
                    row->row.contributors, row->row.contributors_count);
    int rc = ampd_msg_watch_steps_response_encode(&response, buf);
    free(response.overflows.items);
    return rc;
}

/* False: it waits for room on the connection, which the callback `writable` tells, or the call has ended. */
static bool send_row(struct watch *watch, const struct watch_row *row)
{
    struct amp_buf buf = io_message_buf();
    int encoded = encode_row(watch, row, &buf);
    int rc = encoded == 0 ? arpc_call_send(watch->call.rpc, NULL, 0, buf.data, buf.size, NULL, NULL) : encoded;
    if (rc != 0 && (encoded != 0 || rc != AMP_EEXHAUSTED))
        io_server_call_refuse(&watch->call, AMP_EEXHAUSTED, "SLOW_READER",
                              "step %llu cannot be sent (%s); watch again from it", (unsigned long long)row->key.step,
                              amp_strerror(rc));
    amp_buf_close(&buf);
    return rc == 0;
}

static void read_on(struct watch *watch);

/* All stored rows have been sent: ends the watch if the model is done, which it is only once its last row is stored. */
static void end_if_done(struct watch *watch)
{
    struct ampd_model_info info;
    ampd_core_model(watch->call.server->core, watch->watcher.model, &info);
    if (info.state == AMPD_MODEL_DONE)
        io_server_call_end(&watch->call);
}

static void watch_done(struct io_task *task)
{
    struct watch *watch = AMP_CONTAINER(task, struct watch, task);
    watch->reading = false;
    io_server_call_was_read(&watch->call);
    bool room = true;
    for (size_t i = 0; i < watch->count && !watch->call.finished; i++) {
        room = send_row(watch, &watch->rows[i]);
        if (!room)
            break;
        watch->filter.from = watch->rows[i].key;
        watch->filter.from.sequence++;
        watch->filter.step_min = 0; /* only the key counts now: after a rollback steps before from_step follow */
    }
    free(watch->rows);
    watch->rows = NULL;
    if (watch->code != 0)
        io_server_call_fail(&watch->call, &watch->error);
    watch->more = watch->more || !room || watch->count == READ_ROWS;
    if (watch->more && room)
        read_on(watch);
    else if (!watch->more)
        end_if_done(watch);
    io_server_call_unref(&watch->call);
}

/*
 * Begins a read from the next row on. If one is under way or the connection is full, its end or the callback `writable`
 * calls this again.
 */
static void read_on(struct watch *watch)
{
    watch->more = true;
    if (watch->reading || watch->call.finished || arpc_call_queued(watch->call.rpc) > ARPC_LOW_WATER)
        return;
    watch->more = false;
    watch->reading = true;
    watch->count = 0;
    watch->task = (struct io_task){.run_cb = watch_run, .done_cb = watch_done};
    io_server_call_read(&watch->call, &watch->task);
}

static struct watch *watch_of_watcher(struct io_watcher *watcher)
{
    return AMP_CONTAINER(watcher, struct watch, watcher);
}

static void on_row(struct io_watcher *watcher)
{
    read_on(watch_of_watcher(watcher));
}

static void on_draining(struct io_watcher *watcher)
{
    io_server_call_refuse(&watch_of_watcher(watcher)->call, AMP_EUNAVAILABLE, "DRAINING",
                          "the server is ending; watch again");
}

static void on_deleted(struct io_watcher *watcher)
{
    struct watch *watch = watch_of_watcher(watcher);
    io_server_call_refuse(&watch->call, AMP_ENOTFOUND, "MODEL_NOT_FOUND", "model: %s was deleted", watch->spec->name);
}

static const struct io_watcher_ops watcher_ops = {
    .row_cb = on_row, .draining_cb = on_draining, .deleted_cb = on_deleted};

static void watch_free(struct io_server_call *call)
{
    io_watchers_remove(&watch_of(call)->watcher);
    io_alive_end(&watch_of(call)->alive);
    free(watch_of(call)->rows);
}

static const struct io_server_call_ops watch_ops = {NULL, NULL, watch_free};

static void begin(struct watch *watch, const struct ampd_msg_watch_steps_request *request)
{
    struct ampd_model_info info;
    uint32_t model;
    if (!io_find_model(&watch->call, request->model, &model, &info))
        return;
    watch->spec = info.spec;
    if (request->has_rank)
        io_alive_begin(&watch->alive, &watch->call, request->model, request->rank,
                       io_incarnation(request->has_incarnation, &request->incarnation));
    if (request->has_from_step)
        watch->filter.step_min = request->from_step;
    else
        watch->filter.from = (struct ampd_history_key){info.epoch, info.decided_step, 1};
    watch->begins = !request->has_from_step;
    io_watchers_add(watch->call.server, &watch->watcher, model);
    read_on(watch);
}

static void watch_message(struct arpc_call *rpc, const uint8_t *data, size_t size)
{
    struct ampd_msg_watch_steps_request request;
    struct amp_error error = {0};
    struct io_server_call *call = io_server_call_open(rpc, sizeof(struct watch), &watch_ops);
    if (call == NULL)
        return;
    io_watchers_prepare(&watch_of(call)->watcher, &watcher_ops);
    if (ampd_msg_watch_steps_request_decode(&request, data, size, &error) != 0)
        io_server_call_fail(call, &error);
    else
        begin(watch_of(call), &request);
}

static void watch_writable(struct arpc_call *rpc)
{
    struct io_server_call *call = io_server_call_of(rpc);
    if (call != NULL && watch_of(call)->more)
        read_on(watch_of(call));
}

const struct arpc_handler ampd_handle_watch_steps = {
    .message = watch_message,
    .writable = watch_writable,
    .closed = io_server_call_closed,
};
