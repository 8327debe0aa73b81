#include "client/io/client.h"

#include "base/assert.h"
#include "client/io/methods.h"
#include "client/io/model.h"
#include "client/io/client_spec.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONNECT_TIMEOUT_MS 10000
/* A connection that is not made in time leaves this part of the time: then the end says why, not that time is over. */
#define CONNECT_REST 10

/* The reason where the others do not know yet where a shard is, and the pause until they are asked again. */
#define SHARD_AWAY    "SHARD_AWAY"
#define FIND_AGAIN_MS 500
/* Longer waits are as good as endless, and sums of a few of them do not wrap. */
#define TIMEOUT_MAX_MS ((uint64_t)1 << 40)
/* No version of the library will have a larger struct; Linux bounds structs that grow in the same way (openat2). */
#define STRUCT_MAX ((size_t)4096)

/* ---- structs of the caller ---- */

static bool all_zero(const unsigned char *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (bytes[i] != 0)
            return false;
    return true;
}

static int bad_struct(const char *what, struct amp_error *error)
{
    return amp_error_set(error, AMP_EINVAL, NULL,
                         "The %s were not initialized by the _INIT macro, or are of a newer version of the library.",
                         what);
}

int ampclient_take_struct(void *to, size_t to_size, const void *from, const char *what, struct amp_error *error)
{
    size_t size;
    int rc = ampclient_check_struct(from, what, error);
    if (rc != 0)
        return rc;
    memcpy(&size, from, sizeof size);
    if (size > to_size && !all_zero((const unsigned char *)from + to_size, size - to_size))
        return bad_struct(what, error);
    memcpy(to, from, size < to_size ? size : to_size);
    return 0;
}

int ampclient_check_struct(const void *given, const char *what, struct amp_error *error)
{
    size_t size;
    memcpy(&size, given, sizeof size);
    return size < sizeof size || size > STRUCT_MAX ? bad_struct(what, error) : 0;
}

int ampclient_give_struct(void *to, const void *from, size_t from_size, const char *what, struct amp_error *error)
{
    size_t size;
    int rc = ampclient_check_struct(to, what, error);
    if (rc != 0)
        return rc;
    memcpy(&size, to, sizeof size);
    memcpy(to, from, size < from_size ? size : from_size);
    memcpy(to, &size, sizeof size);
    return 0;
}

/* ---- life ---- */

void ampclient_begin(struct ampclient *client)
{
    client->error = (struct amp_error){0};
    ampclient_link_begin(client->link);
}

static uint64_t timeout_or(uint64_t given, uint64_t otherwise)
{
    if (given == 0)
        return otherwise;
    return given < TIMEOUT_MAX_MS ? given : TIMEOUT_MAX_MS;
}

static void print_line(void *arg, enum ampclient_log_level level, const char *text)
{
    (void)arg;
    (void)level;
    (void)fprintf(stderr, "ampclient: %s\n", text);
}

static int take_options(struct ampclient *client, const struct ampclient_options *options, struct amp_error *error)
{
    struct ampclient_options *to = &client->options;
    *to = (struct ampclient_options){0};
    if (options != NULL) {
        int rc = ampclient_take_struct(to, sizeof *to, options, "options", error);
        if (rc != 0)
            return rc;
    }
    to->connect_timeout_ms = timeout_or(to->connect_timeout_ms, CONNECT_TIMEOUT_MS);
    to->reconnect_timeout_ms = timeout_or(to->reconnect_timeout_ms, AMPCLIENT_RECONNECT_MS);
    to->call_timeout_ms = timeout_or(to->call_timeout_ms, AMPCLIENT_CALL_TIMEOUT_MS);
    to->step_timeout_ms = timeout_or(to->step_timeout_ms, AMPCLIENT_STEP_TIMEOUT_MS);
    if (to->log_cb == NULL)
        to->log_cb = print_line;
    if (to->log_level == 0)
        to->log_level = AMPCLIENT_LOG_WARN;
    return 0;
}

static void on_kick(void *arg)
{
    struct ampclient *client = arg;
    AMP_LIST_EACH(node, next, &client->models)
    ampclient_model_drain(AMP_CONTAINER(node, struct ampclient_model, node));
}

static void on_stop(void *arg)
{
    struct ampclient *client = arg;
    AMP_LIST_EACH(node, next, &client->models)
    ampclient_model_stop(AMP_CONTAINER(node, struct ampclient_model, node));
}

/*
 * Whether another try would end in the same way: the text says what has to be corrected. The text is about all
 * endpoints: if there are several, one of the others may be a server that is about to start.
 */
static bool is_for_good(const char *endpoints, const struct ampclient_reply *reply)
{
    static const char *const words[] = {ARPC_USES_TLS,         ARPC_USES_NO_TLS, ARPC_SPEAKS_HTTP1,
                                        ARPC_HAS_NO_HTTP2,     ARPC_CERTIFICATE, ARPC_DEMANDS_CERTIFICATE,
                                        ARPC_CERTIFICATE_SHOWN};
    bool found = false;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
        found = found || strstr(reply->error.text, words[i]) != NULL;
    return found && reply->code == AMP_EUNAVAILABLE && strchr(endpoints, ',') == NULL;
}

/* Any answer of the server, refusals included, shows that it is one and can be reached. */
static int first_contact(struct ampclient *client, const char *endpoints, struct amp_error *error)
{
    struct ampclient_request request = {.path = AMPCLIENT_HEALTH_CHECK,
                                        .timeout_ms = client->options.connect_timeout_ms};
    uint64_t until = ampclient_now_ms() + client->options.connect_timeout_ms;
    uint64_t pause = AMPCLIENT_RPC_PAUSE_MS;
    struct amp_error why;
    (void)amp_error_set(&why, AMP_EDEADLINE, NULL, "it takes connections, but does not answer");
    for (;;) {
        struct ampclient_reply reply;
        (void)ampclient_rpc(client->link, &request, &reply);
        ampclient_reply_close(&reply);
        if (reply.code == 0 || reply.from_peer)
            return 0;
        uint64_t now = ampclient_now_ms();
        if (reply.code == AMP_ECANCELLED) {
            if (error != NULL)
                *error = reply.error;
            return reply.code;
        }
        if (is_for_good(endpoints, &reply))
            return amp_error_set(error, AMP_EUNAVAILABLE, NULL, "No connection to %.120s: %.350s.", endpoints,
                                 reply.error.text);
        if (reply.code != AMP_EDEADLINE) /* a last try may have had too little time to find out what the others did */
            why = reply.error;
        if (reply.code != AMP_EUNAVAILABLE || now + AMPCLIENT_RPC_PAUSE_MS >= until)
            return amp_error_set(
                error, AMP_EUNAVAILABLE, NULL,
                "No ampd answered at %.120s within %llu ms (%.220s); start the server or correct the address.",
                endpoints, (unsigned long long)client->options.connect_timeout_ms, why.text);
        uint64_t most = until - AMPCLIENT_RPC_PAUSE_MS - now; /* the last try comes shortly before the end */
        ampclient_link_pause(client->link, pause < most ? pause : most);
        pause = pause < AMPCLIENT_RPC_PAUSE_MAX_MS ? pause * 2 : pause;
        now = ampclient_now_ms();
        request.timeout_ms = now < until ? until - now : 1;
    }
}

int ampclient_connect(const char *endpoints, const struct ampclient_options *options, struct ampclient **client,
                      struct amp_error *error)
{
    if (client == NULL)
        return amp_error_set(error, AMP_EINVAL, NULL, "client is NULL; pass the address of a variable for the handle.");
    *client = NULL;
    if (endpoints == NULL || endpoints[0] == 0)
        return amp_error_set(error, AMP_EINVAL, NULL, "The address is missing; give host:port.");
    struct ampclient *made = calloc(1, sizeof *made);
    if (made == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "There is no memory for a client.");
    amp_list_init(&made->models);
    int rc = take_options(made, options, error);
    if (rc != 0)
        goto fail_free;
    uint64_t connect_ms = made->options.connect_timeout_ms - made->options.connect_timeout_ms / CONNECT_REST;
    struct ampclient_link_options link = {
        .channel.connect_ms = (int64_t)(connect_ms < CONNECT_TIMEOUT_MS ? connect_ms : CONNECT_TIMEOUT_MS),
        .secure = {.cacert = made->options.cacert,
                   .cert = made->options.cert,
                   .key = made->options.key,
                   .server_name = made->options.server_name,
                   .token_file = made->options.token_file,
                   .token_over_plaintext = made->options.token_over_plaintext},
        .callbacks = {.kick_cb = on_kick,
                      .stop_cb = on_stop,
                      .arg = made,
                      .log_cb = made->options.log_cb,
                      .log_arg = made->options.log_arg,
                      .log_level = made->options.log_level,
                      .interrupt_cb = made->options.interrupt_cb,
                      .interrupt_arg = made->options.interrupt_arg},
    };
    rc = ampclient_link_open(endpoints, &link, &made->link, error);
    if (rc != 0)
        goto fail_free;
    rc = first_contact(made, endpoints, error);
    if (rc != 0) {
        ampclient_close(made);
        return rc;
    }
    *client = made;
    return 0;
fail_free:
    free(made);
    return rc;
}

void ampclient_close(struct ampclient *client)
{
    if (client == NULL)
        return;
    /* A loop that did not end may still use all of this. */
    if (!ampclient_link_close(client->link))
        return;
    for (struct amp_list *node; (node = amp_list_shift(&client->models)) != NULL;)
        ampclient_model_free(AMP_CONTAINER(node, struct ampclient_model, node));
    amp_buf_close(&client->answer);
    ampclient_link_free(client->link);
    free(client);
}

const char *ampclient_error_text(const struct ampclient *client)
{
    return client != NULL ? client->error.text : "";
}

const char *ampclient_error_reason(const struct ampclient *client)
{
    return client != NULL ? client->error.reason : "";
}

const char *ampclient_version(void)
{
    return AMPCLIENT_VERSION;
}

/* ---- calls about models ---- */

/* As ampclient_ask, but tries again for wait_ms. */
static int ask_for(struct ampclient *client, const char *path, const struct amp_buf *request, uint64_t wait_ms,
                   struct ampclient_reply *reply)
{
    struct ampclient_request call = {.path = path,
                                     .body = request,
                                     .timeout_ms = client->options.call_timeout_ms,
                                     .idempotent = ampclient_may_repeat(path)};
    int rc = call.idempotent ? ampclient_rpc_retry(client->link, &call, wait_ms, NULL, reply)
                             : ampclient_rpc(client->link, &call, reply);
    if (rc == AMP_EUNIMPLEMENTED && reply->error.reason[0] == 0) /* else the method's own answer: RESERVED_VALUE */
        return amp_error_set(&client->error, rc, NULL,
                             "The server has no method %.100s (%.200s); is it an ampd, of this version?", path,
                             reply->error.text);
    if (rc != 0)
        client->error = reply->error;
    return rc;
}

int ampclient_ask(struct ampclient *client, const char *path, const struct amp_buf *request,
                  struct ampclient_reply *reply)
{
    return ask_for(client, path, request, client->options.reconnect_timeout_ms, reply);
}

int ampclient_bad_answer(struct amp_error *error, int rc, const char *method)
{
    if (rc != AMP_EINVAL)
        return rc;
    return amp_error_set(error, AMP_EINTERNAL, NULL, "The server's answer to %s is invalid; are versions mixed?",
                         method);
}

static int use_shards(struct ampclient *client, const struct ampd_msg_get_status_response *status)
{
    const char *endpoints[AMPCLIENT_SHARDS_MAX];
    uint32_t count = (uint32_t)status->shards.count;
    for (uint32_t k = 0; k < count && k < AMPCLIENT_SHARDS_MAX; k++) {
        endpoints[k] = status->shards.items[k].endpoint;
        if (count >= 2 && endpoints[k][0] == 0)
            return amp_error_set(&client->error, AMP_EUNAVAILABLE, SHARD_AWAY,
                                 "Shard %" PRIu32 " of %" PRIu32 " has not come up, so nobody knows where it is; start "
                                 "it, or look at its log.",
                                 k, count);
    }
    return count < 2 ? 0 : ampclient_link_use_shards(client->link, endpoints, count, &client->error);
}

static int ask_shards(struct ampclient *client, uint64_t until_ms)
{
    struct ampclient_reply reply = {0};
    struct ampd_msg_get_status_response status;
    uint64_t now = ampclient_now_ms();
    int rc = ask_for(client, AMPCLIENT_ADMIN_SERVICE "GetStatus", NULL, now < until_ms ? until_ms - now : 0, &reply);
    if (rc == AMP_EUNIMPLEMENTED || rc == AMP_EDENIED) {
        ampclient_reply_close(&reply);
        ampclient_begin(client);
        client->shards_known = true; /* a server that does not say has no shards */
        return 0;
    }
    if (rc == 0)
        rc = ampclient_bad_answer(
            &client->error,
            ampd_msg_get_status_response_decode(&status, reply.body.data, reply.body.size, &client->error),
            "GetStatus");
    ampclient_reply_close(&reply);
    if (rc != 0)
        return rc;
    rc = use_shards(client, &status);
    ampd_msg_get_status_response_free(&status);
    client->shards_known = rc == 0;
    return rc;
}

int ampclient_find_shards(struct ampclient *client)
{
    uint64_t until_ms = ampclient_now_ms() + client->options.reconnect_timeout_ms;
    int rc = client->shards_known ? 0 : ask_shards(client, until_ms);
    bool said = false;
    /* Waits for the missing shard as long as for a lost server. */
    while (rc != 0 && strcmp(client->error.reason, SHARD_AWAY) == 0 && ampclient_now_ms() < until_ms) {
        if (!said)
            ampclient_link_log_soon(client->link, AMPCLIENT_LOG_WARN, client->error.text);
        said = true;
        ampclient_link_pause(client->link, FIND_AGAIN_MS);
        client->error = (struct amp_error){0};
        rc = ask_shards(client, until_ms);
    }
    return rc;
}

uint32_t ampclient_shards(const struct ampclient *client)
{
    return client->link->channels.shards_count > 1 ? client->link->channels.shards_count : 1;
}

int ampclient_create(struct ampclient *client, const struct ampclient_spec *spec, bool *existed)
{
    if (client == NULL)
        return AMP_EINVAL;
    ampclient_begin(client);
    if (spec == NULL)
        return amp_error_set(&client->error, AMP_EINVAL, NULL, "spec is NULL; give the specification of the model.");
    struct ampclient_spec taken = {0};
    int rc = ampclient_take_struct(&taken, sizeof taken, spec, "fields of spec", &client->error);
    if (rc != 0)
        return rc;
    struct amp_buf request;
    amp_buf_init(&request, AMPD_MSG_SIZE_MAX);
    struct ampclient_reply reply = {0};
    rc = ampclient_spec_encode(&taken, &request, &client->error);
    if (rc == 0)
        rc = ampclient_find_shards(client);
    if (rc == 0)
        rc = ampclient_ask(client, AMPCLIENT_PARAMETER_SERVICE "CreateModel", &request, &reply);
    if (rc == 0) {
        struct ampd_msg_create_model_response response;
        rc = ampclient_bad_answer(
            &client->error,
            ampd_msg_create_model_response_decode(&response, reply.body.data, reply.body.size, &client->error),
            "CreateModel");
        if (rc == 0 && existed != NULL)
            *existed = !response.created;
        ampd_msg_create_model_response_free(&response);
    }
    ampclient_reply_close(&reply);
    amp_buf_close(&request);
    return rc;
}

int ampclient_get_model(struct ampclient *client, const char *name, struct ampd_msg_get_model_response *response)
{
    struct ampd_msg_get_model_request message = {0};
    int rc = ampclient_copy_name(message.model, name, "The name of the model", &client->error);
    if (rc != 0)
        return rc;
    struct amp_buf request;
    amp_buf_init(&request, AMPD_MSG_SIZE_MAX);
    struct ampclient_reply reply = {0};
    rc = ampd_msg_get_model_request_encode(&message, &request);
    if (rc != 0)
        (void)amp_error_set(&client->error, rc, NULL, "The name of the model must be UTF-8.");
    else
        rc = ampclient_ask(client, AMPCLIENT_PARAMETER_SERVICE "GetModel", &request, &reply);
    if (rc == 0)
        rc = ampclient_bad_answer(
            &client->error,
            ampd_msg_get_model_response_decode(response, reply.body.data, reply.body.size, &client->error), "GetModel");
    ampclient_reply_close(&reply);
    amp_buf_close(&request);
    return rc;
}

int ampclient_status(struct ampclient *client, const char *model_name, struct ampclient_status *status)
{
    if (client == NULL)
        return AMP_EINVAL;
    ampclient_begin(client);
    if (status == NULL)
        return amp_error_set(&client->error, AMP_EINVAL, NULL,
                             "status is NULL; pass the address of a variable for it.");
    struct ampd_msg_get_model_response response;
    int rc = ampclient_get_model(client, model_name, &response);
    if (rc != 0)
        return rc;
    const struct ampd_msg_model_status *from = &response.status;
    bool done = from->state == AMPD_MSG_MODEL_STATE_DONE;
    struct ampclient_status to = {.size = sizeof to,
                                  .epoch = from->epoch,
                                  .step =
                                      done && from->step > from->scale.attempted ? from->scale.attempted : from->step,
                                  .version = from->version,
                                  .attempted = from->scale.attempted,
                                  .applied = from->applied,
                                  .skipped = from->scale.skipped,
                                  .scale = from->scale.scale,
                                  .done = done};
    rc = ampclient_give_struct(status, &to, sizeof to, "fields of status", &client->error);
    ampd_msg_get_model_response_free(&response);
    return rc;
}
