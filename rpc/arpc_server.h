/*
 * The server side: listens, finds the row of each call, and calls its handler.
 *
 *   arpc_server_new -> arpc_server_listen (any number) -> [arpc_server_drain] -> arpc_server_close
 *
 * One loop, one thread: all functions and callbacks are on the thread of the loop that was given. The program
 * must ignore SIGPIPE (libuv writes with plain writev).
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
    void *arg;   /* arpc_server_arg, arpc_call_server_arg */

    /*
     * Asked for each call of a known method before `started`. A call of a method with roles (any, without admit_cb)
     * that is let in makes its connection one that keeps its place; others last for limits.stranger_ms. Non-zero
     * refuses: the call fails as arpc_call_fail does with *error, and its handler never hears of it (not even
     * `closed`). NULL: all are admitted.
     */
    int (*admit_cb)(struct arpc_call *call, void *arg, struct amp_error *error);

    /*
     * A connection ended before its TLS handshake was done (a certificate that was refused, plaintext, no "h2"): for a
     * log. Any peer can bring this about as often as it likes, so a log must bound what it writes. It must not close
     * the server. NULL: nobody is told.
     */
    void (*handshake_failed_cb)(const char *peer, const struct amp_error *error, void *arg);

    /*
     * A peer was held to be hostile: its connection is being ended, or its call (SLOW_MESSAGE, STALLED). For a log: it
     * is called at most once a second in the long run (limits reports_*); `unreported` more were not told since the
     * last time. All are counted in the stats. It must not close the server. NULL: nobody is told.
     */
    void (*abuse_cb)(const char *peer, enum arpc_abuse cause, uint64_t unreported, void *arg);
    const struct arpc_limits *limits; /* copied; NULL: arpc_limits_default. What has a field here is taken from that */

    const char *const *keep_metadata; /* NULL-terminated names of request metadata to keep; all others are dropped */
    size_t max_connections;           /* 1024: above it one that has made no call goes, or the new one is closed */
    size_t max_streams;               /* 256 per connection */
    size_t max_metadata_bytes;        /* 8 KiB per header block, counted as RFC 9113 6.5.2 does */
    size_t max_metadata_count;        /* 64 fields per header block */
    size_t max_queued;                /* 64 MiB of unsent bytes per connection */
    size_t stream_window;             /* 16 MiB, also of the connection */
    int64_t idle_ms;                  /* 5 min: a connection without calls that were let in is closed by GOAWAY */
    int64_t keepalive_ms;             /* 2 h without a byte received: PING */
    int64_t write_stall_ms;           /* 30 s in which the peer takes no byte of what waits: closed */
    int64_t keepalive_timeout_ms;     /* 20 s without an answer to the PING: closed */
    /*
     * 5 min: a client's PINGs that come closer together than this, with nothing sent to it in between, are tolerated
     * twice; at the third it gets GOAWAY ENHANCE_YOUR_CALM "too_many_pings". -1: any number is tolerated.
     */
    int64_t min_ping_interval_ms;
    int64_t max_age_ms;       /* no limit: a connection that is this old, +-10 %, is drained */
    int64_t max_age_grace_ms; /* no limit: calls that are still open this long after that are aborted */
    uint64_t seed;            /* of the +-10 %; 0: from the clock */
    bool
        /* Answers of 1 KiB to 1 MiB, but not what is sent by reference, go by gzip to clients that accept it. */
        compress;

    /*
     * A connection is ended, or drained first, through no fault of its peer: `why` is "max_idle", "max_age" or
     * "keepalive" (no answer to a PING). For a log; once for each connection. It must not close the server. NULL:
     * nobody is told.
     */
    void (*retired_cb)(const char *peer, const char *why, void *arg);
};

/*
 * Makes a server for `count` rows, which must outlive it. The options are copied (keep_metadata too is only
 * pointed to). Health is served with one entry for each service of the rows and "" for the whole, all
 * SERVING. 0 and *out; AMP_ENOMEM, AMP_EINVAL (two rows of one name, a handler without `closed`).
 */
int arpc_server_new(struct uv_loop_s *loop, const struct arpc_server_options *options,
                    const struct arpc_method *methods, size_t count, struct arpc_server **out, struct amp_error *error);

/*
 * Starts to listen on "host:port", "[v6]:port" (port 0: one that is free) or "unix:/path" (at most 107 bytes;
 * a file that is there already is an error). *port (may be NULL) gets the port, 0 for a unix socket. 0;
 * AMP_EINVAL (address), AMP_EEXIST (in use), AMP_EDENIED, AMP_EIO. On failure the server is as before.
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

/* Sets the health of a service ("" is the whole server) and tells its watchers. AMP_ENOTFOUND. */
int arpc_server_set_health(struct arpc_server *server, const char *service, bool serving);

/*
 * Who may call has changed: each call that is open and was let in is asked about again, and those for which the answer
 * is not 0 end as arpc_call_fail ends them: `closed` comes later. Also those of which no message has come yet, and the
 * calls of reflection. How many ended.
 */
unsigned arpc_server_admit_again(struct arpc_server *server,
                                 int (*admit_cb)(struct arpc_call *call, void *arg, struct amp_error *error));

/*
 * Stops: no new connections, health NOT_SERVING, GOAWAY in two phases; calls under way go on until grace_ms,
 * then they are aborted. `drained_cb` is called once, when no connection is left. arpc_server_close is still
 * needed.
 */
void arpc_server_drain(struct arpc_server *server, int64_t grace_ms, void (*drained_cb)(void *arg), void *arg);

/*
 * Cuts everything now and frees the server: each open call gets `closed` (UNAVAILABLE), each release_cb is
 * called, then `closed_cb` (may be NULL), when the memory is gone. The loop must run until then. A drained_cb
 * that is still due is called first.
 */
void arpc_server_close(struct arpc_server *server, void (*closed_cb)(void *arg), void *arg);

/* options.arg */
void *arpc_server_arg(const struct arpc_server *server);

struct arpc_server_stats {
    uint64_t connections_total;
    uint64_t calls_total;
    uint64_t handshakes_failed; /* TLS handshakes that did not end well */
    uint64_t bytes_received;
    uint64_t bytes_sent;
    size_t connections;                /* open now */
    size_t calls;                      /* open now */
    uint64_t abuses[ARPC_ABUSE_COUNT]; /* by cause: connections ended or not taken, calls aborted */
};
void arpc_server_stats(const struct arpc_server *server, struct arpc_server_stats *stats);

#endif
