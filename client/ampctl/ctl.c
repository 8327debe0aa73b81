#include "client/ampctl/ctl.h"

#include "client/io/follow.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

int ampctl_open(struct ampctl *ctl)
{
    struct amp_error error = {0};
    if (ctl->link != NULL)
        return 0;
    const struct ampclient_link_options options = {
        .secure = ctl->secure,
        .channel.connect_ms = (int64_t)(ctl->timeout_ms < AMPCTL_TIMEOUT_MS ? ctl->timeout_ms : AMPCTL_TIMEOUT_MS)};
    int rc = ampclient_link_open(ctl->endpoints, &options, &ctl->link, &error);
    if (rc == 0)
        return 0;
    (void)ampctl_print(stderr, "ampctl: %s", error.text);
    return rc == AMP_EINVAL ? AMPCTL_EXIT_USAGE : AMPCTL_EXIT_FAILED;
}

void ampctl_close(struct ampctl *ctl)
{
    if (ctl->link != NULL && ampclient_link_close(ctl->link))
        ampclient_link_free(ctl->link);
    ctl->link = NULL;
}

/*
 * Nothing listens there: any other trouble (TLS, a name, a time limit) is another than a server that was not started.
 */
static bool is_nobody(const char *text)
{
    return strstr(text, "connection refused") != NULL || strstr(text, "no such file or directory") != NULL;
}

bool ampctl_nobody(const struct ampclient_reply *reply)
{
    return !reply->from_peer && reply->code == AMP_EUNAVAILABLE && is_nobody(reply->error.text);
}

void ampctl_print_failure(const struct ampctl *ctl, const char *asked, const struct ampclient_reply *reply)
{
    if (reply->code == AMP_EDEADLINE)
        (void)ampctl_print(
            stderr,
            "ampctl: %s: %s has not answered within %g s; see whether it can be reached (ampctl ready) and "
            "what it waits for (ampctl status), or wait longer with --timeout",
            ctl->verb, asked, (double)ctl->timeout_ms / 1000);
    else
        (void)ampctl_print(stderr, "ampctl: %s: %s%s", ctl->verb, reply->error.text,
                           ampctl_nobody(reply) ? "; start the server, or name it with --endpoint"
                           : !reply->from_peer && strstr(reply->error.text, ARPC_USES_TLS) != NULL
                               ? "; give --cacert, the certificate of its authority"
                               : "");
}

static size_t addresses(const struct ampctl *ctl)
{
    size_t count = 1;
    for (const char *at = ctl->endpoints; *at != 0; at++)
        count += *at == ',';
    return count;
}

int ampctl_call(struct ampctl *ctl, const struct ampclient_request *request, struct ampclient_reply *reply)
{
    char told[AMP_ERROR_TEXT_MAX] = ""; /* several processes that stand by say the same */
    *reply = (struct ampclient_reply){0};
    int rc = ampctl_open(ctl);
    if (rc != 0)
        return rc;
    /* Each address is tried once, and the one that a server names; the link has changed to it when the call is over. */
    for (size_t left = addresses(ctl) + 1;; left--) {
        rc = ampclient_rpc(ctl->link, request, reply);
        if (rc == 0)
            return 0;
        if (ctl->here || left == 0 || !ampclient_follow_elsewhere(reply->error.reason))
            break;
        if (!ctl->quiet && strcmp(told, reply->error.text) != 0)
            (void)ampctl_print(stderr, "ampctl: %s: asking elsewhere: %s", ctl->verb, reply->error.text);
        memcpy(told, reply->error.text, sizeof told);
        ampclient_reply_close(reply);
    }
    ctl->failure = reply->error;
    ctl->nobody = ampctl_nobody(reply);
    /* A message_cb that has ended the call has said why. */
    bool explained = request->message_cb != NULL && reply->code == AMP_ECANCELLED && !reply->from_peer;
    if (!ctl->quiet && !explained)
        ampctl_print_failure(ctl, ctl->endpoints, reply);
    return AMPCTL_EXIT_RPC + amp_err_grpc_status(reply->code);
}

int ampctl_ask(struct ampctl *ctl, const char *path, int encoded, const struct amp_buf *request,
               struct ampclient_reply *reply)
{
    *reply = (struct ampclient_reply){0};
    if (encoded != 0) {
        (void)ampctl_print(stderr, "ampctl: %s: the request cannot be made: %s; names must be UTF-8", ctl->verb,
                           amp_strerror(encoded));
        return AMPCTL_EXIT_FAILED;
    }
    const struct ampclient_request call = {
        .path = path, .body = request, .timeout_ms = ctl->timeout_ms, .idempotent = ampclient_may_repeat(path)};
    return ampctl_call(ctl, &call, reply);
}

int ampctl_print_one(const struct ampctl *ctl, const struct ampctl_column *columns, json_t *row)
{
    json_t *rows = row == NULL ? NULL : json_pack("[o]", row);
    struct ampctl_list list = {.out = stdout, .csv = ctl->csv, .columns = columns};
    int rc = rows == NULL ? -1 : ctl->json ? ampctl_print_json(stdout, row) : ampctl_list_page(&list, rows);
    json_decref(rows);
    return rc == 0 ? 0 : AMPCTL_EXIT_FAILED;
}

int ampctl_print_rows(const struct ampctl *ctl, const struct ampctl_column *columns, json_t *rows)
{
    struct ampctl_list list = {.out = stdout, .json = ctl->json, .csv = ctl->csv, .columns = columns};
    bool ok = rows != NULL && ampctl_list_page(&list, rows) == 0 && ampctl_list_end(&list) == 0;
    json_decref(rows);
    return ok ? 0 : AMPCTL_EXIT_FAILED;
}

int ampctl_bad_answer(const struct amp_error *error)
{
    (void)ampctl_print(stderr, "ampctl: the server's answer cannot be read (%s); are versions mixed?", error->text);
    return AMPCTL_EXIT_FAILED;
}
