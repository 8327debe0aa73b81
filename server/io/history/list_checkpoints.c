/*
 * ListCheckpoints: the core's catalogue, newest first. A page token is the key of the next page's first checkpoint. If
 * that one has been dropped meanwhile, the page begins with the next older one.
 */
#include "server/io/base/handlers.h"

#include "server/io/base/message_buf.h"
#include "server/io/calls/convert.h"
#include "server/io/calls/pages.h"
#include "server/io/calls/server_call.h"

#include <math.h>
#include <stdlib.h>

static bool is_later(const struct ampd_checkpoint_record *record, const struct ampd_history_key *key)
{
    return record->epoch != key->epoch ? record->epoch > key->epoch : record->step > key->step;
}

/* A checkpoint whose scale is not known (0: an older ampd wrote it) does not match min_scale. */
static bool is_wanted(const struct ampd_msg_list_checkpoints_request *request,
                      const struct ampd_checkpoint_record *record)
{
    return !request->has_min_scale || (record->scale > 0 && record->scale >= request->min_scale);
}

/* Fills one page, newest first, beginning with `from`; all zero: with the newest checkpoint. */
static void fill_page(const struct ampd_model_info *info, const struct ampd_msg_list_checkpoints_request *request,
                      const struct ampd_history_key *from, uint32_t size,
                      struct ampd_msg_list_checkpoints_response *response)
{
    for (uint32_t i = info->checkpoints_whole; i-- > 0;) {
        const struct ampd_checkpoint_record *record = &info->checkpoints[i];
        if (!ampd_core_is_whole(info, i) || (from->epoch != 0 && is_later(record, from)) || !is_wanted(request, record))
            continue;
        if (response->checkpoints.count == size) {
            const struct ampd_history_key key = {record->epoch, record->step, 0};
            io_page_token_write(&key, response->next_page_token, sizeof response->next_page_token);
            return;
        }
        io_checkpoint_info(info->spec, record, &response->checkpoints.items[response->checkpoints.count++]);
    }
}

static void list(struct io_server_call *call, const struct ampd_msg_list_checkpoints_request *request)
{
    struct ampd_msg_list_checkpoints_response response = {0};
    struct ampd_model_info info;
    struct ampd_history_key from = {0};
    struct amp_error error = {0};
    uint32_t index, size = 0;
    if (!io_find_model(call, request->model, &index, &info))
        return;
    int rc = io_page_size(request->page_size, &size, &error);
    if (rc == 0 && request->page_token[0] != 0 && !io_page_token_parse(request->page_token, &from))
        rc = io_page_token_refuse(&error);
    if (rc == 0 && request->has_min_scale && !isfinite(request->min_scale))
        rc = amp_error_set(&error, AMP_EINVAL, "INVALID_FIELD", "min_scale: it is not finite; give a number");
    if (rc == 0) {
        response.checkpoints.items = calloc(size, sizeof *response.checkpoints.items);
        if (response.checkpoints.items == NULL)
            rc = amp_error_set(&error, AMP_ENOMEM, NULL, "out of memory for this page");
    }
    if (rc == 0) {
        struct amp_buf buf = io_message_buf();
        fill_page(&info, request, &from, size, &response);
        io_server_call_reply_buf(call, &buf, ampd_msg_list_checkpoints_response_encode(&response, &buf));
    } else {
        io_server_call_fail(call, &error);
    }
    ampd_msg_list_checkpoints_response_free(&response);
}

static const struct io_server_call_ops list_ops = {NULL, NULL, NULL};

static void list_message(struct arpc_call *rpc, const uint8_t *data, size_t size)
{
    struct ampd_msg_list_checkpoints_request request;
    struct amp_error error = {0};
    struct io_server_call *call = io_server_call_open(rpc, sizeof(struct io_server_call), &list_ops);
    if (call == NULL)
        return;
    if (ampd_msg_list_checkpoints_request_decode(&request, data, size, &error) != 0)
        io_server_call_fail(call, &error);
    else
        list(call, &request);
}

const struct arpc_handler ampd_handle_list_checkpoints = {.message = list_message, .closed = io_server_call_closed};
