#include "client/ampctl/ask.h"

#include <inttypes.h>
#include <string.h>

/* Asks; *reply is the caller's to close in every case. */
static int ask(struct ampctl *ctl, const char *path, int encoded, struct amp_buf *body, struct ampclient_reply *reply)
{
    int code = ampctl_ask(ctl, path, encoded, body, reply);
    amp_buf_close(body);
    return code;
}

/* After the decoding of an answer, which is then done with. An exit code. */
static int finish(struct ampctl *ctl, int code, int decoded, const struct amp_error *error,
                  struct ampclient_reply *reply)
{
    ampclient_reply_close(reply);
    if (decoded == 0)
        return code;
    ctl->failure = *error;
    return ctl->quiet ? AMPCTL_EXIT_FAILED : ampctl_bad_answer(error);
}

#define ENCODE_PLAIN(name)  ampd_msg_##name##_request_encode(request, &body)
#define ENCODE_OWNING(name) ENCODE_PLAIN(name)
#define ENCODE_NONE(name)   0
#define DECODE_PLAIN(name)  ampd_msg_##name##_response_decode(response, reply.body.data, reply.body.size, &error)
#define DECODE_OWNING(name) DECODE_PLAIN(name)
#define DECODE_NONE(name)   0

#define DEFINE_CLIENT_STREAM(path, name, request_, response_)
#define DEFINE_SERVER_STREAM(path, name, request_, response_)
#define DEFINE_BIDI(path, name, request_, response_)
#define DEFINE_UNARY(path, name, request_, response_)                                                                  \
    AMPCTL_ASK(name, request_, response_)                                                                              \
    {                                                                                                                  \
        struct amp_buf body;                                                                                           \
        struct ampclient_reply reply;                                                                                  \
        struct amp_error error = {0};                                                                                  \
        amp_buf_init(&body, AMPD_MSG_SIZE_MAX);                                                                        \
        int code = ask(ctl, path, ENCODE_##request_(name), &body, &reply);                                             \
        int decoded = code == 0 ? DECODE_##response_(name) : 0;                                                        \
        return finish(ctl, code, decoded, &error, &reply);                                                             \
    }
#define AMPD_METHOD(service, rpc, name, request, response, kind, ...)                                                  \
    DEFINE_##kind("/ampd.v1." #service "/" #rpc, name, request, response)
#include "proto/methods.def"
#undef AMPD_METHOD

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
    memcpy(request.model, model, sizeof request.model);
    return ampctl_ask_get_status(ctl, &request, response);
}

int ampctl_get_model(struct ampctl *ctl, const char model[128], struct ampd_msg_get_model_response *response)
{
    struct ampd_msg_get_model_request request = {0};
    memcpy(request.model, model, sizeof request.model);
    return ampctl_ask_get_model(ctl, &request, response);
}

int ampctl_all_models(struct ampctl *ctl, json_t *rows)
{
    struct ampd_msg_list_models_request request = {0};
    int code;
    do {
        struct ampd_msg_list_models_response page;
        code = ampctl_ask_list_models(ctl, &request, &page);
        if (code != 0)
            return code;
        json_t *more = ampctl_model_rows(&page.models, false);
        code = json_array_extend(rows, more) == 0 ? 0 : AMPCTL_EXIT_FAILED; /* -1 for NULL, too */
        json_decref(more);
        memcpy(request.page_token, page.next_page_token, sizeof request.page_token);
        ampd_msg_list_models_response_free(&page);
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
        struct ampd_msg_list_checkpoints_response page;
        int code = ampctl_ask_list_checkpoints(ctl, &request, &page);
        if (code != 0)
            return code;
        bool found = pick(&page.checkpoints, key);
        memcpy(request.page_token, page.next_page_token, sizeof request.page_token);
        ampd_msg_list_checkpoints_response_free(&page);
        if (found)
            return 0;
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
    return AMPCTL_EXIT_RPC + ARPC_STATUS_NOT_FOUND;
}
