/*
 * The client side: a channel is a list of endpoints and at most one connection for new calls; calls are made on it.
 *
 * All functions and callbacks run on the thread of the loop that was given. SIGPIPE must be ignored by the program, or
 * blocked on the loop's thread.
 */
#ifndef ARPC_CLIENT_H
#define ARPC_CLIENT_H

#include "rpc/arpc_call.h"
#include "rpc/arpc_retry.h"
#include "rpc/arpc_tls.h"

/*
 * Words in the text of a call that is UNAVAILABLE for a reason that another try would meet again: the address is that
 * of something else, or a certificate or an option is wrong.
 */
#define ARPC_USES_TLS            "uses TLS: connect with TLS" /* the text names cacert */
#define ARPC_USES_NO_TLS         "does not use TLS: connect without it"
#define ARPC_SPEAKS_HTTP1        "speaks HTTP/1: give its gRPC port instead"
#define ARPC_HAS_NO_HTTP2        "does not offer HTTP/2 for TLS"
#define ARPC_CERTIFICATE         "the certificate of " /* whose, and why it is refused */
#define ARPC_DEMANDS_CERTIFICATE "demands a certificate: give one"
#define ARPC_CERTIFICATE_SHOWN   "the certificate that it was shown" /* the client's own */

struct uv_loop_s;
struct arpc_channel;

/*
 *   IDLE -> CONNECTING -> READY -> IDLE (the connection ended)
 *           CONNECTING -> BACKOFF -> CONNECTING (calls wait) or IDLE (no call waits)
 *   any -> CLOSED
 */
enum arpc_channel_state {
    ARPC_CHANNEL_IDLE,
    ARPC_CHANNEL_CONNECTING,
    ARPC_CHANNEL_READY,
    ARPC_CHANNEL_BACKOFF,
    ARPC_CHANNEL_CLOSED
};

/*
 * Every field's 0 or NULL means the default. 5 min is what servers allow a client's PINGs to be apart (gRFC A8); a
 * server that says "too_many_pings" makes the channel wait twice as long from then on.
 */
struct arpc_channel_options {
    size_t size; /* sizeof(struct arpc_channel_options) */
    void *arg;
    /*
     * Called after each change of state but to CLOSED. `error` says why for BACKOFF and for IDLE after READY, else
     * NULL.
     */
    void (*state_cb)(struct arpc_channel *channel, enum arpc_channel_state state, const struct amp_error *error,
                     void *arg);
    const char *const *keep_metadata; /* NULL-terminated names of response metadata to keep */
    size_t max_queued;                /* 1 GiB of unsent bytes per connection */
    size_t stream_window;             /* 16 MiB, also of the connection */
    int64_t connect_ms;               /* 10 s for lookup, connection and first SETTINGS, all endpoints together */
    int64_t idle_timeout_ms;          /* 30 min without a call: the connection is closed; the next call makes another */
    int64_t keepalive_time_ms;        /* 5 min (see above) without a byte received while calls are open: PING */
    int64_t keepalive_timeout_ms;     /* 20 s without an answer to the PING or any progress: the connection is lost */
    bool keepalive_permit_without_calls; /* PING without open calls too */
    int64_t write_stall_ms;              /* 30 s in which the peer takes less than 1 KiB/s of what waits: lost */
    int64_t initial_backoff_ms; /* 100 ms from the start of a failed attempt to the next; times 1.6 each, +-20 % */
    int64_t max_backoff_ms;     /* 5 s */
    uint64_t seed;              /* of the jitter; 0: from the clock */
    /* gRFC A6's throttling: a failed attempt takes one of max_tokens (10; 1000 at most), an OK gives token_ratio (0.1)
     * back; with half of them or fewer nothing is tried again. */
    unsigned retry_max_tokens;
    double retry_token_ratio;
    size_t retry_buffer_call; /* 256 KiB of a call's messages are kept for retries; beyond that it is committed */
    size_t retry_buffer;      /* 16 MiB of all calls */
    struct arpc_tls *tls;     /* a client's context, of which the channel takes a reference; NULL: plaintext */
    /*
     * TCP: for so long nothing acknowledges what was sent, or takes it: the connection is lost. The default is the
     * system's, about 15 min. For small messages alone: a server that is stopped with full buffers is lost, too.
     */
    int64_t unacknowledged_ms;
};

/*
 * Makes a channel to "host:port", "[v6]:port" or "unix:/path", or up to 16 of them with commas. They, and all addresses
 * of a name, are tried in turn until one speaks HTTP/2, each with its share of connect_ms, of which TCP may use 1.3 s
 * if another is left; after a connection was lost, beginning with the next one. It connects when the first call is
 * made, or by arpc_channel_connect. On success *out is the caller's (arpc_channel_close). AMP_EINVAL (target),
 * AMP_ENOMEM.
 */
int arpc_channel_new(struct uv_loop_s *loop, const char *target, const struct arpc_channel_options *options,
                     struct arpc_channel **out, struct amp_error *error);

/* Starts to connect if IDLE, or at once if in BACKOFF. */
void arpc_channel_connect(struct arpc_channel *channel);

/*
 * Cancels all calls (`closed` with CANCELLED), closes the connection and frees the channel; then `closed_cb`
 * (may be NULL) is called. Every release_cb has been called before it. The loop must run until then. (A lookup of a
 * name that is still under way is left to a thread of its own, which ends when the system's resolver answers.)
 */
void arpc_channel_close(struct arpc_channel *channel, void (*closed_cb)(void *arg), void *arg);

enum arpc_channel_state arpc_channel_state(const struct arpc_channel *channel);

/* Every field's 0 or NULL means the default. */
struct arpc_call_options {
    size_t size;         /* sizeof(struct arpc_call_options) */
    int64_t deadline_ms; /* from now; 0: none (then the caller has to cancel a call that does not end) */
    size_t max_message;  /* 4 MiB: largest response message */
    /* Wait in BACKOFF for a connection, up to the deadline. Else a failed attempt to connect fails the call
     * (UNAVAILABLE). */
    bool wait_for_ready;
    bool idempotent;                       /* may be tried again, by the default policy (arpc_retry.h) */
    const struct arpc_retry_policy *retry; /* may be tried again, by this policy; copied */
    bool single_response;             /* unary, client stream: the call ends INTERNAL unless OK comes with exactly one
                             message */
    const struct arpc_pair *metadata; /* request metadata, copied; values of "-bin" keys are already base64 */
    size_t metadata_count;            /* at most 32, 4 KiB in all */
};

/*
 * Begins a call of "/package.Service/Method". `handler` must outlive it; `user` is what arpc_call_user
 * returns. Messages may be sent at once; they go out when there is a connection. The caller ends its side
 * with arpc_call_half_close. 0 and *out (may be NULL; the pointer is good until `closed` returns). Callbacks
 * come from the loop, never from inside this function; after 0, `closed` always comes. AMP_ESTATE (channel
 * closed), AMP_EINVAL (path, metadata), AMP_EEXHAUSTED (1024 calls), AMP_ENOMEM: no callback comes.
 *
 * Retries (gRFC A6). An attempt that the server's program has not seen is made again whatever the options say: the
 * connection was lost or drained before the request left, or the server refused the stream (transparent retries). Other
 * retries follow the policy, if there is one. The deadline covers all attempts. There is no retry once the response's
 * headers have come, once a byte of a message that is sent from the caller's memory (release_cb) has left, or once a
 * call has more messages than retry_buffer_call or retry_buffer can keep. The caller gets no callback for an attempt
 * that is followed by another; only time passes, and arpc_call_queued rises again.
 */
int arpc_channel_call(struct arpc_channel *channel, const char *path, const struct arpc_call_options *options,
                      const struct arpc_handler *handler, void *user, struct arpc_call **out, struct amp_error *error);

/* No further messages from this side, after those queued. No effect if done before. */
void arpc_call_half_close(struct arpc_call *call);

/* Whether the call is on a connection by a unix socket; from its first callback on until `closed`. */
bool arpc_call_is_by_unix(const struct arpc_call *call);

#endif
