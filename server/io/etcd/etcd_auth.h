/*
 * The token that calls to etcd carry where a user is configured. It is requested with name and password, which are read
 * from the file each time: when a call needs a token and there is none, and again after etcd has rejected it (it has
 * expired, or etcd was restarted). Internal to etcd.c; on the loop's thread.
 *
 *   NONE -> ASKING -> KNOWN -> NONE (etcd has rejected the token)
 *           ASKING -> NONE (no token was given)
 *
 * With an etcd that does not require authentication the state is KNOWN and the token "".
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
    const char *user_file; /* NULL: no token is needed; must outlive it */
    enum io_etcd_auth_state state;
    char token[IO_ETCD_TOKEN_MAX]; /* "": none */
    int64_t asked_ms;              /* when it was last requested, by io_etcd_now_ms; 0: never */
    uv_timer_t timer;              /* until the next request may be made */
    /* ASKING has ended: error->code 0 and KNOWN, or an error and NONE. Waiting calls go on or end. From the loop. */
    void (*done_cb)(struct io_etcd *etcd, const struct amp_error *error);
};

/* Initialises a zeroed *auth and opens its timer, which the caller closes at the end (uv_close). */
void io_etcd_auth_init(struct io_etcd_auth *auth, struct io_etcd *etcd, const char *user_file,
                       void (*done_cb)(struct io_etcd *etcd, const struct amp_error *error));

/* Whether a call must wait for a token: there is a user, and the state is not KNOWN. */
bool io_etcd_auth_lacks(const struct io_etcd_auth *auth);

/* The token to send with a call; NULL: none. Valid until the loop's next turn. */
const char *io_etcd_auth_token(const struct io_etcd_auth *auth);

/* Requests a token, if the state is NONE. done_cb comes within IO_ETCD_CALL_MS and a pause of up to 1 s. */
void io_etcd_auth_ask(struct io_etcd_auth *auth);

/*
 * To be called when a call with the token has ended: forgets the token if this gRPC status may mean that it is invalid.
 */
void io_etcd_auth_judge(struct io_etcd_auth *auth, int status);

/* Like io_etcd_call, but sends no token and does not wait for one. In etcd.c. */
int io_etcd_call_plain(struct io_etcd *etcd, const char *path, const struct amp_buf *request, io_etcd_done_cb done_cb,
                       void *arg);

#endif
