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
 * Most bytes of a batch that are copied and given to uv_write when the socket is full, so that libuv waits until it is
 * writable. The rest is not given to libuv, since its memory may be taken back (arpc_call_blank). A full socket becomes
 * writable again when a third of its buffer is free, which is far more than this.
 */
#define ARPC_PIECE_MAX ((size_t)16 << 10)

/* A batch on its way to the socket. */
struct arpc_sending {
    size_t at;         /* index of the next slot, which begins with its first byte that has not left */
    size_t left;       /* bytes from there on */
    size_t piece_size; /* bytes of `piece`, which uv_write is sending */
    uint8_t piece[ARPC_PIECE_MAX];
    struct arpc_batch batch;
};

/* How much is read, and where. */
struct arpc_conn_reading {
    size_t size;      /* estimate of how many bytes can be read and handled in slice_ns */
    int64_t slice_ns; /* the slice of the loop's time for which `size` was estimated */
    int64_t begun_ns; /* when the read under way began */
    bool limited;     /* its buffer was smaller than the read was allowed to be, so that a direct read may follow */
    bool direct;      /* the last read went, or the next one goes, straight into the memory of a large message */
};

/* What is on its way to the socket. */
struct arpc_conn_writing {
    struct arpc_sending *sending; /* NULL when nothing is under way */
    bool busy;                    /* uv_write is under way: the piece is libuv's until it calls back */
    bool failed;                  /* a write has failed, but there may still be something to read */
    size_t batch_size;            /* bytes of a batch while other connections wait */
    size_t tls_bytes;             /* bytes of the output of TLS that uv_write is sending */
    size_t left;                  /* bytes of the piece that was given to libuv */
    int64_t progress_ms;          /* when it was given, or the peer was last seen to take enough */
    int64_t acked;                /* arpc_conn_acked then */
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
    bool leaving;                 /* it is over, and waits for the peer to close: received bytes are dropped */
    int64_t sent;                 /* bytes that the socket has taken */
    int64_t acked;                /* bytes of these that the peer's kernel had at the last check (TIOCOUTQ) */
    bool heard;                   /* the peer has sent a byte */
    bool foreign;                 /* without TLS: the peer began with a TLS record */
    struct arpc_tls_session *tls; /* NULL: plaintext */
    unsigned handles;             /* socket and timer, while open */
    int64_t armed_ms;             /* the time that the timer is armed for; INT64_MAX: it is not armed */
    bool stood_still;             /* the timer was late by AMP_STOOD_STILL_MS, and is armed again for what was due */
    struct arpc_conn_reading reading;
    struct arpc_conn_writing writing;
    uint64_t *bytes_received; /* counters of the owner */
    uint64_t *bytes_sent;
    struct amp_error error;                    /* why it was closed; code 0: it was over */
    void (*pumped_cb)(struct arpc_conn *conn); /* called after each pump (conn.c); may be NULL */
    void (*closed_cb)(struct arpc_conn *conn); /* everything is closed: the owner frees it */
};

/* Initialises the handles on the loop of `deferred`; `pipe`: for a unix socket. Nothing can fail. */
void arpc_conn_init(struct arpc_conn *conn, struct arpc_deferred *deferred, bool pipe, void *owner,
                    void (*pumped_cb)(struct arpc_conn *), void (*closed_cb)(struct arpc_conn *));

/*
 * The socket is connected: begins TLS, unless `tls` is NULL, and HTTP/2. `host` as for arpc_tls_session_new. 0;
 * AMP_ENOMEM, AMP_EIO: the caller has to call arpc_conn_close.
 */
int arpc_conn_start_tls(struct arpc_conn *conn, struct arpc_link_config *config, const char *peer, struct arpc_tls *tls,
                        const char *host);

/* For a closed connection: whether it failed because only one side uses TLS; conn->error has the text. */
bool arpc_conn_no_tls(const struct arpc_conn *conn);

/* Sends what is due, such as a GOAWAY, if the socket takes it at once, and aborts the connection. */
void arpc_conn_dismiss(struct arpc_conn *conn);

/*
 * Aborts the connection: calls end UNAVAILABLE, and closed_cb comes later. `error` may be NULL. No effect if closing.
 */
void arpc_conn_close(struct arpc_conn *conn, const struct amp_error *error);

#endif
