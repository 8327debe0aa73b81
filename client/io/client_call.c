/* Methods of the service by their names, for what the library has no function of its own for. */
#include "client/io/client.h"
#include "client/io/methods.h"

#include <string.h>

/* The caller's bytes as a message to be sent: only read. */
static struct amp_buf view_of(const void *request, size_t size)
{
    struct amp_buf view;
    amp_buf_init(&view, size);
    view.data = (uint8_t *)(uintptr_t)request;
    view.size = size;
    return view;
}

static int check(struct ampclient *client, const char *method, const void *request, size_t size)
{
    if (method == NULL || method[0] != '/')
        return amp_error_set(&client->error, AMP_EINVAL, NULL,
                             "method is \"%.80s\"; give a path like /ampd.v1.ScaleService/GetScale.",
                             method != NULL ? method : "");
    if (request == NULL && size > 0)
        return amp_error_set(&client->error, AMP_EINVAL, NULL,
                             "request is NULL, but has %zu bytes; give them, or a size of 0.", size);
    if (size > AMPD_MSG_SIZE_MAX)
        return amp_error_set(&client->error, AMP_EINVAL, NULL, "The request has %zu bytes; 0 to %d are possible.", size,
                             AMPD_MSG_SIZE_MAX);
    return 0;
}

int ampclient_call(struct ampclient *client, const char *method, const void *request, size_t size,
                   const void **response, size_t *response_size)
{
    if (client == NULL)
        return AMP_EINVAL;
    ampclient_begin(client);
    if (response == NULL || response_size == NULL)
        return amp_error_set(&client->error, AMP_EINVAL, NULL,
                             "response is NULL; pass the addresses of variables for the answer.");
    *response = NULL;
    *response_size = 0;
    int rc = check(client, method, request, size);
    if (rc != 0)
        return rc;
    struct amp_buf body = view_of(request, size);
    struct ampclient_reply reply;
    rc = ampclient_ask(client, method, &body, &reply);
    if (rc == 0) {
        amp_buf_close(&client->answer);
        client->answer = reply.body;
        *response = client->answer.data;
        *response_size = client->answer.size;
    } else {
        ampclient_reply_close(&reply);
    }
    return rc;
}

int ampclient_call_stream(struct ampclient *client, const char *method, const void *request, size_t size,
                          int (*message_cb)(void *arg, const uint8_t *data, size_t size), void *arg)
{
    if (client == NULL)
        return AMP_EINVAL;
    ampclient_begin(client);
    if (message_cb == NULL)
        return amp_error_set(&client->error, AMP_EINVAL, NULL, "message_cb is NULL; give what takes the messages.");
    int rc = check(client, method, request, size);
    if (rc != 0)
        return rc;
    struct amp_buf body = view_of(request, size);
    const struct ampclient_request call = {
        .path = method, .body = &body, .idempotent = true, .message_cb = message_cb, .arg = arg};
    struct ampclient_reply reply;
    rc = ampclient_rpc(client->link, &call, &reply);
    if (rc != 0)
        client->error = reply.error;
    ampclient_reply_close(&reply);
    return rc;
}
