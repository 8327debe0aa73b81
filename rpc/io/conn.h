/* A socket with a link on it: moves bytes, arms the timer, closes. Internal to rpc/io. */
#ifndef ARPC_IO_CONN_H
#define ARPC_IO_CONN_H

#include "rpc/h2/link.h"
#include "rpc/io/tls.h"
#include "rpc/io/deferred.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

/*
 * What is copied out of a batch when the socket is full, so that libuv has something to wait with: the rest must not be
 * with libuv, since it may be taken back (arpc_call_blank). Small beside what a socket takes at once when it takes
 * something again, a third of its buffer.
 */
#define ARPC_PIECE_MAX ((size_t)16 << 10)

/* A batch on its way to the socket. */
struct arpc_sending {
    size_t at;         /* the slot that is next; what has left of it is cut off */
    size_t left;       /* bytes from there on */
    size_t piece_size; /* bytes that are with libuv */
    uint8_t piece[ARPC_PIECE_MAX];
    struct arpc_batch batch;
};

/* How much is read, and where. */
struct arpc_conn_reading {
    size_t size;      /* as much as can be read in slice_ns, as far as is known */
    int64_t slice_ns; /* a slice of the loop's time, as it was when `size` was learnt */
    int64_t begun_ns; /* when the read under way began */
    bool limited;     /* it was given less room than it may take, for the sake of direct reads */
    bool direct;      /* bytes of a large message went to their memory last, or go there next */
};

/* What is on its way to the socket. */
struct arpc_conn_writing {
    struct arpc_sending *sending; /* NULL when nothing is under way */
    bool busy;                    /* uv_write has not called back: the piece is libuv's */
    bool failed;                  /* nothing leaves any more, but there may be something to read */
    size_t batch_size;            /* of a batch where others wait */
    size_t tls_bytes;             /* bytes of the output of TLS that are with libuv */
    size_t left;                  /* of the piece, as far as is known */
    int64_t progress_ms;          /* when the peer last took a byte of it */
};

struct arpc_conn {
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } socket;
    uv_timer_t timer;
    uv_write_t write;
    uv_connect_t connect;
    uv_shutdown_t shutdown;
    struct arpc_deferred *deferred;
    struct arpc_deferred_item item;
    struct amp_list in_owner;
    void *owner;
    struct arpc_link link;
    bool has_link;
    bool closing;
    bool leaving;                 /* it is over, and waits for the peer to close: what still comes is thrown away */
    int left_bytes;               /* of what was said: not yet with the peer's kernel, when that was last looked at */
    bool heard;                   /* the peer has sent a byte */
    bool foreign;                 /* without TLS: it began with a record of TLS */
    struct arpc_tls_session *tls; /* NULL: plaintext */
    unsigned handles;             /* socket and timer, while open */
    int64_t armed_ms;             /* INT64_MAX: the timer is not armed */
    struct arpc_conn_reading reading;
    struct arpc_conn_writing writing;
    uint64_t *bytes_received; /* counters of the owner */
    uint64_t *bytes_sent;
    struct amp_error error;                    /* why it was closed; code 0: it was over */
    void (*pumped_cb)(struct arpc_conn *conn); /* after each pump: the owner looks at the link; may be NULL */
    void (*closed_cb)(struct arpc_conn *conn); /* everything is closed: the owner frees it */
};

/* Initialises the handles on the loop of `deferred`; `pipe`: for a unix socket. Nothing can fail. */
void arpc_conn_init(struct arpc_conn *conn, struct arpc_deferred *deferred, bool pipe, void *owner,
                    void (*pumped_cb)(struct arpc_conn *), void (*closed_cb)(struct arpc_conn *));

/* The socket is connected: begins HTTP/2. 0; AMP_ENOMEM, AMP_EIO: the caller has to call arpc_conn_close. */
int arpc_conn_start(struct arpc_conn *conn, struct arpc_link_config *config, const char *peer);

/* The socket is connected: begins TLS and HTTP/2. `host` as for arpc_tls_session_new; codes as for arpc_conn_start. */
int arpc_conn_start_tls(struct arpc_conn *conn, struct arpc_link_config *config, const char *peer, struct arpc_tls *tls,
                        const char *host);

/* For a closed connection: whether it failed since one side speaks TLS and the other does not; conn->error says why. */
bool arpc_conn_no_tls(const struct arpc_conn *conn);

/* Sends what is due, such as a GOAWAY, if the socket takes it at once, and aborts the connection. */
void arpc_conn_dismiss(struct arpc_conn *conn);

/*
 * Aborts the connection: calls end UNAVAILABLE, and closed_cb comes later. `error` may be NULL. No effect if closing.
 */
void arpc_conn_close(struct arpc_conn *conn, const struct amp_error *error);

#endif
