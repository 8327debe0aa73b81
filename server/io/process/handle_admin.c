/* Drain, SetLogLevel and GetConfig. */
#include "server/io/base/handlers.h"

#include "base/text.h"
#include "proto/msg.h"
#include "server/io/auth/auth_gate.h"
#include "server/io/base/message_buf.h"
#include "server/io/base/server.h"
#include "server/io/calls/server_call.h"
#include "server/io/process/drain.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Drain ---- */

#define GRACE_DEFAULT_MS 10000
/* An hour. A longer grace would hardly be an end of the process. */
#define GRACE_MAX_MS 3600000

static void begin_drain(struct io_server_call *call, uint64_t grace_ms)
{
    struct ampd_server *server = call->server;
    char caller[128], cause[160];
    ampd_auth_name(server->auth, call->rpc, caller, sizeof caller);
    (void)snprintf(cause, sizeof cause, "Drain by %s", caller);
    struct amp_buf buf = io_message_buf(); /* DrainResponse has no field */
    io_server_call_reply_buf(call, &buf, 0);
    io_drain_begin(server, cause, (int64_t)grace_ms);
}

static void drain_message(struct arpc_call *rpc, const uint8_t *data, size_t size)
{
    struct ampd_msg_drain_request request;
    struct amp_error error = {0};
    struct io_server_call *call = io_server_call_open(rpc, sizeof *call, &io_server_call_plain);
    if (call == NULL)
        return;
    uint64_t grace_ms = GRACE_DEFAULT_MS;
    int rc = ampd_msg_drain_request_decode(&request, data, size, &error);
    if (rc == 0 && request.has_grace_ms)
        grace_ms = request.grace_ms;
    if (rc == 0 && grace_ms > GRACE_MAX_MS)
        rc = amp_error_set(&error, AMP_EINVAL, "INVALID_FIELD", "grace_ms: %llu is too long; give at most %d",
                           (unsigned long long)grace_ms, GRACE_MAX_MS);
    if (rc != 0)
        io_server_call_fail(call, &error);
    else
        begin_drain(call, grace_ms);
}

const struct arpc_handler ampd_handle_drain = {.message = drain_message, .closed = io_server_call_closed};

/* ---- SetLogLevel ---- */

static void level_message(struct arpc_call *rpc, const uint8_t *data, size_t size)
{
    struct ampd_msg_set_log_level_request request;
    struct amp_error error = {0};
    struct io_server_call *call = io_server_call_open(rpc, sizeof *call, &io_server_call_plain);
    if (call == NULL)
        return;
    struct amp_log *log = call->server->options->log;
    int rc = ampd_msg_set_log_level_request_decode(&request, data, size, &error);
    if (rc == 0 && (request.level < AMPD_MSG_LOG_LEVEL_DEBUG || request.level > AMPD_MSG_LOG_LEVEL_ERROR))
        rc = amp_error_set(&error, AMP_EINVAL, "INVALID_FIELD",
                           "level: %d is not a level; give DEBUG, INFO, WARN or ERROR", (int)request.level);
    if (rc != 0) {
        io_server_call_fail(call, &error);
        return;
    }
    enum amp_log_level old = amp_log_set_level(log, (enum amp_log_level)(request.level - AMPD_MSG_LOG_LEVEL_DEBUG));
    const struct ampd_msg_set_log_level_response response = {
        .old_level = (enum ampd_msg_log_level)((int)old + AMPD_MSG_LOG_LEVEL_DEBUG)};
    struct amp_buf buf = io_message_buf();
    io_server_call_reply_buf(call, &buf, ampd_msg_set_log_level_response_encode(&response, &buf));
}

const struct arpc_handler ampd_handle_set_log_level = {.message = level_message, .closed = io_server_call_closed};

/* ---- GetConfig ---- */

/* Replaces the value of log-level by the log's present level, which SetLogLevel may have changed since the start. */
static void level_in_force(const struct amp_log *log, struct ampd_msg_config_value *value)
{
    int level = AMP_LOG_DEBUG;
    while (level < AMP_LOG_ERROR && !amp_log_is_on(log, (enum amp_log_level)level))
        level++;
    const char *name = amp_log_level_name((enum amp_log_level)level);
    if (strcmp(value->name, "log-level") != 0 || strcmp(value->value, name) == 0)
        return;
    (void)snprintf(value->value, sizeof value->value, "%s", name);
    (void)snprintf(value->where, sizeof value->where, "ampctl log-level");
}

static void config_message(struct arpc_call *rpc, const uint8_t *data, size_t size)
{
    struct io_server_call *call = io_server_call_open(rpc, sizeof *call, &io_server_call_plain);
    if (call == NULL)
        return;
    const struct ampd_server_options *options = call->server->options;
    struct ampd_msg_get_config_response response = {
        .values.items = calloc(options->values_count + 1, sizeof *response.values.items)};
    for (size_t i = 0; response.values.items != NULL && i < options->values_count; i++) {
        struct ampd_msg_config_value *value = &response.values.items[response.values.count++];
        (void)snprintf(value->name, sizeof value->name, "%s", options->values[i].name);
        (void)snprintf(value->value, sizeof value->value, "%s", options->values[i].value);
        (void)snprintf(value->where, sizeof value->where, "%s", options->values[i].where);
        amp_text_repair(value->value); /* paths need not be UTF-8, and a long list is cut */
        amp_text_repair(value->where);
        value->reloads = options->values[i].reloads;
        level_in_force(options->log, value);
    }
    struct amp_buf buf = io_message_buf();
    int rc = response.values.items != NULL ? ampd_msg_get_config_response_encode(&response, &buf) : AMP_ENOMEM;
    io_server_call_reply_buf(call, &buf, rc);
    free(response.values.items);
}

const struct arpc_handler ampd_handle_get_config = {.message = config_message, .closed = io_server_call_closed};
