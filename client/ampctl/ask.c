/* Questions that several verbs ask. */
#include "client/ampctl/ctl.h"
#include "client/io/methods.h"

#include <inttypes.h>
#include <string.h>

/* HealthCheckResponse has one field, an enum: field 1, SERVING = 1. Absent is 0, UNKNOWN. */
#define STATUS_KEY     0x08
#define STATUS_SERVING 1

bool ampctl_is_serving(const struct amp_buf *body)
{
    return body->size >= 2 && body->data[0] == STATUS_KEY && body->data[1] == STATUS_SERVING;
}

int ampctl_get_status(struct ampctl *ctl, const char model[128], struct ampd_msg_get_status_response *response)
{
    struct ampd_msg_get_status_request request = {0};
    struct amp_buf body;
    struct ampclient_reply reply;
    struct amp_error error = {0};
    memcpy(request.model, model, sizeof request.model);
    amp_buf_init(&body, AMPD_MSG_SIZE_MAX);
    int code = ampctl_ask(ctl, AMPCLIENT_ADMIN_SERVICE "GetStatus", ampd_msg_get_status_request_encode(&request, &body),
                          &body, &reply);
    amp_buf_close(&body);
    if (code == 0 && ampd_msg_get_status_response_decode(response, reply.body.data, reply.body.size, &error) != 0)
        code = ampctl_bad_answer(&error);
    ampclient_reply_close(&reply);
    return code;
}

int ampctl_get_model(struct ampctl *ctl, const char model[128], struct ampd_msg_get_model_response *response)
{
    struct ampd_msg_get_model_request request = {0};
    struct amp_buf body;
    struct ampclient_reply reply;
    struct amp_error error = {0};
    memcpy(request.model, model, sizeof request.model);
    amp_buf_init(&body, AMPD_MSG_SIZE_MAX);
    int code = ampctl_ask(ctl, AMPCLIENT_PARAMETER_SERVICE "GetModel",
                          ampd_msg_get_model_request_encode(&request, &body), &body, &reply);
    amp_buf_close(&body);
    if (code == 0 && ampd_msg_get_model_response_decode(response, reply.body.data, reply.body.size, &error) != 0)
        code = ampctl_bad_answer(&error);
    ampclient_reply_close(&reply);
    return code;
}

/* Adds the rows of a page; the token of the next goes into request. */
static int add_models(struct ampctl *ctl, struct ampd_msg_list_models_request *request, json_t *rows)
{
    struct amp_buf body;
    amp_buf_init(&body, AMPD_MSG_SIZE_MAX);
    struct ampclient_reply reply;
    struct amp_error error = {0};
    int code = ampctl_ask(ctl, AMPCLIENT_PARAMETER_SERVICE "ListModels",
                          ampd_msg_list_models_request_encode(request, &body), &body, &reply);
    if (code == 0) {
        struct ampd_msg_list_models_response page;
        if (ampd_msg_list_models_response_decode(&page, reply.body.data, reply.body.size, &error) != 0) {
            code = ampctl_bad_answer(&error);
        } else {
            json_t *more = ampctl_model_rows(&page.models, false);
            if (json_array_extend(rows, more) != 0) /* also of NULL */
                code = AMPCTL_EXIT_FAILED;
            json_decref(more);
            (void)snprintf(request->page_token, sizeof request->page_token, "%s", page.next_page_token);
        }
        ampd_msg_list_models_response_free(&page);
    }
    ampclient_reply_close(&reply);
    amp_buf_close(&body);
    return code;
}

int ampctl_all_models(struct ampctl *ctl, json_t *rows)
{
    struct ampd_msg_list_models_request request = {0};
    int code;
    do {
        code = add_models(ctl, &request, rows);
    } while (code == 0 && request.page_token[0] != 0);
    return code;
}

/* The first checkpoint of a page that has what is given. */
static bool pick(const struct ampd_msg_checkpoint_info_list *page, struct ampctl_checkpoint_key *key)
{
    for (size_t i = 0; i < page->count; i++) {
        const struct ampd_msg_checkpoint_info *one = &page->items[i];
        if ((key->has_step && one->step != key->step) || (key->has_epoch && one->epoch != key->epoch))
            continue;
        *key = (struct ampctl_checkpoint_key){true, true, one->epoch, one->step};
        return true;
    }
    return false;
}

int ampctl_find_checkpoint(struct ampctl *ctl, const char model[128], struct ampctl_checkpoint_key *key)
{
    struct ampd_msg_list_checkpoints_request request = {0};
    memcpy(request.model, model, sizeof request.model);
    do {
        struct amp_buf body;
        struct ampclient_reply reply;
        struct ampd_msg_list_checkpoints_response page;
        struct amp_error error = {0};
        amp_buf_init(&body, AMPD_MSG_SIZE_MAX);
        int code = ampctl_ask(ctl, AMPCLIENT_ADMIN_SERVICE "ListCheckpoints",
                              ampd_msg_list_checkpoints_request_encode(&request, &body), &body, &reply);
        amp_buf_close(&body);
        bool read = code == 0, found = false;
        if (read && ampd_msg_list_checkpoints_response_decode(&page, reply.body.data, reply.body.size, &error) != 0) {
            code = ampctl_bad_answer(&error);
        } else if (read) {
            found = pick(&page.checkpoints, key);
            memcpy(request.page_token, page.next_page_token, sizeof request.page_token);
            ampd_msg_list_checkpoints_response_free(&page);
        }
        ampclient_reply_close(&reply);
        if (code != 0 || found)
            return code;
    } while (request.page_token[0] != 0);
    char of_epoch[48] = "";
    if (key->has_epoch)
        (void)snprintf(of_epoch, sizeof of_epoch, " of epoch %" PRIu64, key->epoch);
    if (key->has_epoch && !key->has_step)
        (void)ampctl_print(stderr, "ampctl: %s: %s has no checkpoint%s; ampctl checkpoints %s lists them", ctl->verb,
                           model, of_epoch, model);
    else if (key->has_step)
        (void)ampctl_print(stderr,
                           "ampctl: %s: %s has no checkpoint of step %" PRIu64 "%s; ampctl checkpoints %s lists them",
                           ctl->verb, model, key->step, of_epoch, model);
    else
        (void)ampctl_print(stderr, "ampctl: %s: %s has no such checkpoint; ampctl checkpoint %s writes one", ctl->verb,
                           model, model);
    return AMPCTL_EXIT_RPC + 5;
}
