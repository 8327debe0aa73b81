#include "server/io/etcd/etcd_auth.h"

#include "proto/msg_etcd.h"
#include "rpc/arpc_call.h"
#include "rpc/arpc_token.h"
#include "server/io/etcd/etcd.h"
#include "server/io/etcd/etcd_access.h"

#include <string.h>

/* Least time from one request for a token to the next: each makes etcd hash the password for a tenth of a second. */
#define AGAIN_MS 1000

/* Part of etcd's error where it does not require authentication. */
#define NOT_ENABLED "authentication is not enabled"

void io_etcd_auth_init(struct io_etcd_auth *auth, struct io_etcd *etcd, const char *user_file,
                       void (*done_cb)(struct io_etcd *etcd, const struct amp_error *error))
{
    auth->etcd = etcd;
    auth->user_file = user_file;
    auth->done_cb = done_cb;
    (void)uv_timer_init(io_etcd_loop(etcd), &auth->timer); /* cannot fail */
    auth->timer.data = auth;
}

bool io_etcd_auth_lacks(const struct io_etcd_auth *auth)
{
    return auth->user_file != NULL && auth->state != IO_ETCD_AUTH_KNOWN;
}

const char *io_etcd_auth_token(const struct io_etcd_auth *auth)
{
    return auth->token[0] != 0 ? auth->token : NULL;
}

static void end(struct io_etcd_auth *auth, enum io_etcd_auth_state state, const struct amp_error *error)
{
    auth->state = state;
    auth->done_cb(auth->etcd, error);
}

static int take_token(struct io_etcd_auth *auth, const uint8_t *data, size_t size, struct amp_error *error)
{
    struct ampd_etcd_authenticate_response answer;
    int rc = ampd_etcd_authenticate_response_decode(&answer, data, size, error);
    if (rc == 0 && (answer.token.size == 0 || answer.token.size >= sizeof auth->token))
        rc = amp_error_set(error, AMP_EINTERNAL, NULL, "etcd gave a token of %zu bytes; it must have 1 to %zu",
                           answer.token.size, sizeof auth->token - 1);
    if (rc == 0) {
        memcpy(auth->token, answer.token.data, answer.token.size);
        auth->token[answer.token.size] = 0;
    }
    ampd_etcd_authenticate_response_free(&answer);
    return rc;
}

static void on_answer(void *arg, const struct amp_error *error, const uint8_t *data, size_t size)
{
    struct io_etcd_auth *auth = arg;
    struct amp_error wrong = *error;
    if (error->code != 0 && strstr(error->text, NOT_ENABLED) != NULL) {
        amp_log(io_etcd_log(auth->etcd), AMP_LOG_WARN, "etcd",
                "msg=\"etcd does not require authentication, though a user is named\"");
        wrong.code = 0;
        auth->token[0] = 0;
    } else if (error->code == 0) {
        (void)take_token(auth, data, size, &wrong); /* the error is in `wrong` */
    }
    end(auth, wrong.code == 0 ? IO_ETCD_AUTH_KNOWN : IO_ETCD_AUTH_NONE, &wrong);
}

static int ask(struct io_etcd_auth *auth, struct amp_error *error)
{
    struct io_etcd_user user;
    struct amp_buf buf;
    int rc = io_etcd_user_read(auth->user_file, &user, error);
    if (rc != 0)
        return rc;
    struct ampd_etcd_authenticate_request request = {.name = {(uint8_t *)user.name, strlen(user.name)},
                                                     .password = {(uint8_t *)user.password, strlen(user.password)}};
    amp_buf_init(&buf, IO_ETCD_MESSAGE_MAX);
    rc = ampd_etcd_authenticate_request_encode(&request, &buf);
    if (rc == 0)
        rc = io_etcd_call_plain(auth->etcd, IO_ETCD_AUTHENTICATE, &buf, on_answer, auth);
    if (rc != 0)
        (void)amp_error_set(error, rc, NULL, "no memory to ask etcd for a token");
    if (buf.size > 0)
        arpc_token_wipe(buf.data, buf.size);
    amp_buf_close(&buf);
    arpc_token_wipe(&user, sizeof user);
    return rc;
}

static void on_timer(uv_timer_t *timer)
{
    struct io_etcd_auth *auth = timer->data;
    struct amp_error error = {0};
    auth->asked_ms = io_etcd_now_ms();
    if (ask(auth, &error) != 0)
        end(auth, IO_ETCD_AUTH_NONE, &error);
}

void io_etcd_auth_ask(struct io_etcd_auth *auth)
{
    if (auth->state != IO_ETCD_AUTH_NONE)
        return;
    auth->state = IO_ETCD_AUTH_ASKING;
    int64_t wait_ms = auth->asked_ms != 0 ? auth->asked_ms + AGAIN_MS - io_etcd_now_ms() : 0;
    (void)uv_timer_start(&auth->timer, on_timer, wait_ms > 0 ? (uint64_t)wait_ms : 0, 0); /* cannot fail: it is open */
}

void io_etcd_auth_judge(struct io_etcd_auth *auth, int status)
{
    /*
     * etcd answers UNAUTHENTICATED for an expired token, UNKNOWN for one from before a change of users or roles, and
     * INVALID_ARGUMENT where a token is needed and none was sent.
     */
    bool doubtful = status == ARPC_STATUS_UNAUTHENTICATED || status == ARPC_STATUS_UNKNOWN ||
                    status == ARPC_STATUS_INVALID_ARGUMENT;
    if (doubtful && auth->state == IO_ETCD_AUTH_KNOWN) {
        auth->state = IO_ETCD_AUTH_NONE;
        auth->token[0] = 0;
    }
}
