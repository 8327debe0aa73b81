/*
 * The token that calls to etcd carry where a user is named: it is asked for by name and password, read from the file
 * each time, when a call needs one and there is none, and again when etcd does not take it any more (its time is up, or
 * etcd has started anew). Internal to etcd.c.
 *
 *   NONE -> ASKING -> KNOWN -> NONE (forgotten)
 *           ASKING -> NONE (refused)
 *
 * Of an etcd that asks nobody who he is, the token is "".
 */
#ifndef AMPD_IO_ETCD_AUTH_H
#define AMPD_IO_ETCD_AUTH_H

#include "server/io/etcd/etcd.h"

#include <stdbool.h>
#include <uv.h>

/* Longest token with the final zero; a signed one (JWT) with a large key has about 700 bytes. */
#define IO_ETCD_TOKEN_MAX 2048

enum io_etcd_auth_state { IO_ETCD_AUTH_NONE, IO_ETCD_AUTH_ASKING, IO_ETCD_AUTH_KNOWN };

struct io_etcd_auth {
    struct io_etcd *etcd;
    const char *user_file; /* NULL: no token is needed */
    enum io_etcd_auth_state state;
    char token[IO_ETCD_TOKEN_MAX];
    int64_t asked_ms; /* when it was asked for last; 0: never */
    uv_timer_t timer; /* to the next time */
    /* There is one, or error->code says why there is none: waiting calls go on. From the loop. */
    void (*done_cb)(struct io_etcd *etcd, const struct amp_error *error);
};

/* Opens the timer, which is closed by whoever ends it. */
void io_etcd_auth_init(struct io_etcd_auth *auth, struct io_etcd *etcd, const char *user_file,
                       void (*done_cb)(struct io_etcd *etcd, const struct amp_error *error));

/* Whether a call has to wait for a token. */
bool io_etcd_auth_lacks(const struct io_etcd_auth *auth);

/* The token to send; NULL: none. */
const char *io_etcd_auth_token(const struct io_etcd_auth *auth);

/* Asks for a token, if that is not under way; done_cb comes within IO_ETCD_CALL_MS and a pause. */
void io_etcd_auth_ask(struct io_etcd_auth *auth);

/* A call with the token has ended with this status: the token may be of no use any more. */
void io_etcd_auth_judge(struct io_etcd_auth *auth, int status);

/* Of etcd.c: io_etcd_call without a token. */
int io_etcd_call_plain(struct io_etcd *etcd, const char *path, const struct amp_buf *request, io_etcd_done_cb done_cb,
                       void *arg);

#endif
