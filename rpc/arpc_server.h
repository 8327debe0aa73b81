/*
 * The server side: listens, finds the row of each call, and calls its handler.
 *
 *   arpc_server_new -> arpc_server_listen (any number) -> [arpc_server_drain] -> arpc_server_close
 *
 * All functions and callbacks run on the thread of the loop that was given. The program must ignore SIGPIPE (libuv
 * writes with plain writev).
 */
#ifndef ARPC_SERVER_H
#define ARPC_SERVER_H

#include "rpc/arpc_call.h"
#include "rpc/arpc_limits.h"
#include "rpc/arpc_peer.h"
#include "rpc/arpc_server_call.h"
#include "rpc/arpc_tls.h"

struct uv_loop_s;
struct arpc_server;

/* Every field's 0 or NULL means the default. */
struct arpc_server_options {
    size_t size; /* sizeof(struct arpc_server_options), so that fields can be added */
    void *arg;   /* what arpc_call_server_arg returns */

    /*
     * Called for each call of a known method, before `started`. 0 admits the call; anything else refuses it: it ends as
     * by arpc_call_fail with *error, and its handler gets no callback, not even `closed`. NULL: all are admitted. A
     * connection lasts for limits.unadmitted_ms at most until a call of a method with roles is admitted on it (without
     * admit_cb: a call of any method).
     */
    int (*admit_cb)(struct arpc_call *call, void *arg, struct amp_error *error);

    /*
     * Called, for a log, when a connection ended before its TLS handshake was done (a certificate that was refused,
     * plaintext, no "h2"). Any peer can cause this as often as it likes, so the log must limit its lines. The callback
     * must not close the server. May be NULL.
     */
    void (*handshake_failed_cb)(const char *peer, const struct amp_error *error, void *arg);

    /*
     * Called, for a log, when a peer is treated as hostile: its connection is being ended, or its call (SLOW_MESSAGE,
     * STALLED). At most once a second in the long run (limits.reports_burst and reports_per_s); `unreported` is the
     * number of cases since the last call of it that were only counted in the stats. It must not close the server. May
     * be NULL.
     */
    void (*abuse_cb)(const char *peer, enum arpc_abuse cause, uint64_t unreported, void *arg);
    const struct arpc_limits *limits; /* copied; NULL: arpc_limits_default. The fields below replace its own if given */

    const char *const *keep_metadata; /* NULL-terminated names of request metadata to keep; all others are dropped */
    size_t max_connections;           /* 1024: beyond it one without an admitted call is closed, or the new one */
    size_t max_streams;               /* 256 per connection */
    size_t max_metadata_bytes;        /* 8 KiB per header block, counted as RFC 9113 6.5.2 does */
    size_t max_metadata_count;        /* 64 fields per header block */
    size_t max_queued;                /* 64 MiB of unsent bytes per connection */
    size_t stream_window;             /* 16 MiB, also of the connection */
    int64_t idle_ms;                  /* 5 min: a connection without admitted calls is drained */
    int64_t keepalive_ms;             /* 2 h without a byte received: PING */
    int64_t write_stall_ms;           /* 30 s in which the peer takes less than 1 KiB/s of what waits: closed */
    int64_t keepalive_timeout_ms;     /* 20 s without an answer to the PING: closed */
    /*
     * 5 s: a PING that comes sooner than this after the one before is tolerated twice; after the third the client
     * gets GOAWAY ENHANCE_YOUR_CALM "too_many_pings". HEADERS or DATA that are sent to it reset the count. -1: any
     * number is tolerated.
     */
    int64_t min_ping_interval_ms;
    int64_t max_age_ms;       /* no limit: a connection that is this old, +-10 %, is drained */
    int64_t max_age_grace_ms; /* no limit: calls that are still open this long after that are aborted */
    uint64_t seed;            /* of the +-10 %; 0: from the clock */
    bool compress; /* answers of 1 KiB to 1 MiB are gzipped for clients that accept it, unless sent by reference */

    /*
     * Called, for a log, when a connection is drained or ended without a fault of its peer: `why` is "max_idle",
     * "max_age" or "keepalive" (no answer to a PING). Once for each connection. It must not close the server. May be
     * NULL.
     */
    void (*retired_cb)(const char *peer, const char *why, void *arg);
};

/*
 * Makes a server for `count` rows, which must outlive it, as must options->keep_metadata; the other options are
 * copied. Health is served with one entry for each service of the rows, and "" for the whole server, all SERVING. On
 * success *out is the caller's (arpc_server_close). AMP_ENOMEM, AMP_EINVAL (two rows of one name, a handler without
 * `closed`).
 */
int arpc_server_new(struct uv_loop_s *loop, const struct arpc_server_options *options,
                    const struct arpc_method *methods, size_t count, struct arpc_server **out, struct amp_error *error);

/*
 * Starts to listen on "host:port", "[v6]:port" (port 0: one that is free) or "unix:/path" (at most 107 bytes;
 * a file that is there already is an error). *port (may be NULL) gets the port, 0 for a unix socket. 0;
 * AMP_EINVAL (address), AMP_EEXIST (in use), AMP_EDENIED, AMP_EEXHAUSTED (open files), AMP_EIO. On failure the server
 * is as before.
 */
int arpc_server_listen(struct arpc_server *server, const char *address, int *port, struct amp_error *error);

/* The same with TLS: `tls` is a server's context, of which the listener takes a reference; NULL: plaintext. */
int arpc_server_listen_tls(struct arpc_server *server, const char *address, struct arpc_tls *tls, int *port,
                           struct amp_error *error);

/*
 * Serves grpc.reflection.v1 and v1alpha from a serialized google.protobuf.FileDescriptorSet (which must
 * outlive the server; made by protoc --include_imports). list_services names the rows' services. Before the
 * first listen. 0; AMP_EINVAL (not a descriptor set), AMP_ENOMEM.
 */
int arpc_server_enable_reflection(struct arpc_server *server, const uint8_t *descriptors, size_t size,
                                  struct amp_error *error);

/* Sets the health of a service ("" is the whole server) and notifies its watchers. AMP_ENOTFOUND: no such service. */
int arpc_server_set_health(struct arpc_server *server, const char *service, bool serving);

/*
 * For when the rules of who may call have changed: calls admit_cb again for each open call that was admitted, also for
 * those of which no message has come yet and for calls of reflection. Where it does not return 0 the call ends as by
 * arpc_call_fail; `closed` comes later. Returns how many ended.
 */
unsigned arpc_server_admit_again(struct arpc_server *server,
                                 int (*admit_cb)(struct arpc_call *call, void *arg, struct amp_error *error));

/*
 * Drains the server: accepts no connections, sets health to NOT_SERVING, and sends GOAWAY in two phases. Calls under
 * way may go on for grace_ms, then they are aborted. `drained_cb` is called once, when no connection is left.
 * arpc_server_close is still needed.
 */
void arpc_server_drain(struct arpc_server *server, int64_t grace_ms, void (*drained_cb)(void *arg), void *arg);

/*
 * Ends everything at once and frees the server: each open call gets `closed` (UNAVAILABLE), each release_cb that is due
 * is called, and, once the memory is freed, `closed_cb` (may be NULL). The loop must run until then. A drained_cb that
 * is still due is called first.
 */
void arpc_server_close(struct arpc_server *server, void (*closed_cb)(void *arg), void *arg);

struct arpc_server_stats {
    uint64_t connections_total;
    uint64_t calls_total;
    uint64_t handshakes_failed; /* TLS handshakes */
    uint64_t bytes_received;
    uint64_t bytes_sent;
    size_t connections;                /* open now */
    size_t calls;                      /* open now */
    uint64_t abuses[ARPC_ABUSE_COUNT]; /* by cause: connections ended or not taken, calls aborted */
};
void arpc_server_stats(const struct arpc_server *server, struct arpc_server_stats *stats);

#endif
