/*
 * ListCheckpoints: the core's catalogue, newest first, with what the history knows of each (the scale, the applied steps), read
 * on the reader thread. A page token is the key of the first checkpoint of the next page; one that has been dropped meanwhile
 * is stood for by the next older one.
 */
#include "server/io/convert.h"
#include "server/io/handlers.h"
#include "server/io/pages.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct listing {
    struct io_call call;
    struct io_task task;
    const struct ampd_model_spec *spec;
    struct ampd_checkpoint_record *records; /* owned; newest first, from the token on */
    size_t records_count;
    bool has_min_scale;
    float min_scale;
    uint32_t size; /* rows asked for */
    struct ampd_msg_list_checkpoints_response response;
    struct amp_error error;
    int code;
};

static struct listing *listing_of(struct io_call *call)
{
    return AMP_CONTAINER(call, struct listing, call);
}

/* The row of the step that a checkpoint ends with. */
struct sought {
    const struct ampd_checkpoint_record *record;
    bool found;
    struct amp_scaler_state after;
};

static int take_row(void *arg, const struct ampd_history_key *key, const struct ampd_step_row *row,
                    const struct ampd_epoch_record *epoch)
{
    struct sought *sought = arg;
    sought->found = key->epoch == sought->record->epoch && key->step == sought->record->step;
    sought->after = row->after;
    return 0;
}

static int look_up(struct listing *listing, struct sought *sought)
{
    const struct ampd_checkpoint_record *record = sought->record;
    const struct ampd_history_filter filter = {
        .epoch = record->epoch, .from = {record->epoch, record->step, 0}, .superseded_too = true};
    return ampd_store_page_history(listing->call.server->reader, listing->spec->name, &filter, 1, sought,
                                   &listing->error, take_row);
}

static void list_run(struct io_task *task)
{
    struct listing *listing = AMP_CONTAINER(task, struct listing, task);
    struct ampd_msg_list_checkpoints_response *response = &listing->response;
    for (size_t i = 0; listing->code == 0 && i < listing->records_count; i++) {
        struct sought sought = {.record = &listing->records[i]};
        listing->code = look_up(listing, &sought);
        /* Without its row (which retention may have taken) a scale is not known, and not at least anything. */
        if (listing->code != 0 ||
            (listing->has_min_scale && !(sought.found && sought.after.scale >= listing->min_scale)))
            continue;
        if (response->checkpoints.count == listing->size) {
            const struct ampd_history_key key = {sought.record->epoch, sought.record->step, 0};
            io_page_token_write(&key, response->next_page_token, sizeof response->next_page_token);
            return;
        }
        struct ampd_msg_checkpoint_info *to = &response->checkpoints.items[response->checkpoints.count++];
        io_checkpoint_info(listing->spec, sought.record, to);
        to->scale = sought.found ? sought.after.scale : 0;
    }
}

static void list_done(struct io_task *task)
{
    struct listing *listing = AMP_CONTAINER(task, struct listing, task);
    struct amp_buf buf = io_message_buf();
    if (listing->code != 0)
        io_call_fail(&listing->call, &listing->error);
    else
        io_call_reply_buf(&listing->call, &buf, ampd_msg_list_checkpoints_response_encode(&listing->response, &buf));
    io_call_unref(&listing->call);
}

static void list_free(struct io_call *call)
{
    free(listing_of(call)->records);
    ampd_msg_list_checkpoints_response_free(&listing_of(call)->response);
}

static const struct io_call_ops list_ops = {NULL, NULL, list_free};

static bool is_later(const struct ampd_checkpoint_record *record, const struct ampd_history_key *key)
{
    return record->epoch != key->epoch ? record->epoch > key->epoch : record->step > key->step;
}

/* Copies the catalogue from `from` (all zero: the newest) on: it may change while the rows are read. AMP_ENOMEM. */
static int copy_records(struct listing *listing, const struct ampd_model_info *info,
                        const struct ampd_history_key *from)
{
    listing->records = calloc((size_t)info->checkpoints_count + 1, sizeof *listing->records);
    listing->response.checkpoints.items = calloc(listing->size, sizeof *listing->response.checkpoints.items);
    if (listing->records == NULL || listing->response.checkpoints.items == NULL)
        return AMP_ENOMEM;
    for (uint32_t i = info->checkpoints_count; i-- > 0;)
        if (from->epoch == 0 || !is_later(&info->checkpoints[i], from))
            listing->records[listing->records_count++] = info->checkpoints[i];
    return 0;
}

static void begin(struct listing *listing, const struct ampd_msg_list_checkpoints_request *request)
{
    struct ampd_model_info info;
    struct ampd_history_key from = {0};
    uint32_t index;
    if (!io_find_model(&listing->call, request->model, &index, &info))
        return;
    int rc = io_page_size(request->page_size, &listing->size, &listing->error);
    if (rc == 0 && request->page_token[0] != 0 && !io_page_token_parse(request->page_token, &from))
        rc = io_page_token_refuse(&listing->error);
    if (rc == 0 && request->has_min_scale && !isfinite(request->min_scale))
        rc = amp_error_set(&listing->error, AMP_EINVAL, "INVALID_FIELD", "min_scale: it is not finite; give a number");
    if (rc == 0 && copy_records(listing, &info, &from) != 0)
        rc = amp_error_set(&listing->error, AMP_ENOMEM, NULL, "out of memory for this page");
    if (rc != 0) {
        io_call_fail(&listing->call, &listing->error);
        return;
    }
    listing->spec = info.spec;
    listing->has_min_scale = request->has_min_scale;
    listing->min_scale = request->min_scale;
    listing->task = (struct io_task){.run_cb = list_run, .done_cb = list_done};
    io_call_ref(&listing->call);
    io_threads_submit(listing->call.server->readers, &listing->task);
}

static void list_message(struct arpc_call *rpc, const uint8_t *data, size_t size)
{
    struct ampd_msg_list_checkpoints_request request;
    struct amp_error error = {0};
    struct io_call *call = io_call_open(rpc, sizeof(struct listing), &list_ops);
    if (call == NULL)
        return;
    if (ampd_msg_list_checkpoints_request_decode(&request, data, size, &error) != 0)
        io_call_fail(call, &error);
    else
        begin(listing_of(call), &request);
}

const struct arpc_handler ampd_handle_list_checkpoints = {.message = list_message, .closed = io_call_closed};
