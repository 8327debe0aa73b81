/*
 * RPCs that the user's thread waits for: create, load, status, and all that ampctl does. (The core drives Join,
 * KeepAlive, Leave, Pull and Push; see model.h.)
 *
 * All functions but ampclient_rpc_send_view are for the user's thread, or a thread that helps it, without the mutex.
 */
#ifndef AMPCLIENT_RPC_H
#define AMPCLIENT_RPC_H

#include "base/buf.h"
#include "client/io/link.h"

/* First pause between tries, and the longest; it doubles. */
#define AMPCLIENT_RPC_PAUSE_MS     100
#define AMPCLIENT_RPC_PAUSE_MAX_MS 2000
/* Further tries after ABORTED and DATA_LOSS: a race or a flipped bit does not happen three times in a row. */
#define AMPCLIENT_RPC_REPEATS_MAX 3

/* How an RPC ended. `error` is set when code is not 0; code 0: `body` has the answer (of a stream: nothing). */
struct ampclient_reply {
    int code;          /* 0 or AMP_E */
    int status;        /* of gRPC */
    bool from_peer;    /* the status came from the server; else this side found it (no connection, deadline, cancel) */
    uint64_t retry_ms; /* delay that the server's RetryInfo asks for; 0: none */
    struct amp_error error;
    struct amp_buf body;
};

/* What to send and receive. All pointers are borrowed until the function returns. */
struct ampclient_request {
    const char *path;           /* "/package.Service/Method" */
    const char *model;          /* NULL, or which model it is about, for the text of an error */
    uint32_t shard;             /* the shard to call, if there are several; else 0 */
    const struct amp_buf *body; /* the first message; NULL: an empty one */
    uint64_t timeout_ms;        /* of one try; 0: none (only for a server stream) */
    bool idempotent;            /* the channel may send it again within a try (gRFC A6), as proto/methods.def says */
    /*
     * Client stream, else NULL: called on the loop's thread at the beginning and each time the queue has run low. Sends
     * messages; returns 1 when all are sent, 0 to be called again, or an AMP_E code, which ends the call.
     */
    int (*feed_cb)(void *arg, struct arpc_call *call);
    /* Server stream, else NULL: called on the loop's thread with each message; another result than 0 ends the call. */
    int (*message_cb)(void *arg, const uint8_t *data, size_t size);
    void *arg;
    const bool *stop; /* NULL, or what ends the call like an interrupt once ampclient_link_stop has set it */
};

/*
 * Whether a method may be called again where it is not known what became of the first call. All of them may but Drain:
 * the process that has been drained is gone, and another call would end the one that has its place.
 */
bool ampclient_may_repeat(const char *path);

/*
 * For feed_cb, on the loop's thread: queues a message whose body is borrowed. The function that made the call does not
 * return before the body has been sent, or never will be. Codes as for arpc_call_send.
 */
int ampclient_rpc_send_view(struct arpc_call *call, const void *head, size_t head_size, const void *body,
                            size_t body_size);

/* Frees the body; also of a zeroed reply. */
void ampclient_reply_close(struct ampclient_reply *reply);

/* Makes one call and waits for its end. Returns reply->code; *reply is the caller's to close in every case. */
int ampclient_rpc(struct ampclient_link *link, const struct ampclient_request *request, struct ampclient_reply *reply);

/*
 * Makes a call, and makes it again while the server cannot be reached or answers UNAVAILABLE, for wait_ms after the
 * first such end, and AMPCLIENT_RPC_REPEATS_MAX times after ABORTED and DATA_LOSS. `restart_cb` (may be NULL) is called
 * with request->arg before each try. A try that took longer than timeout_ms ends it, with a text that tells to raise
 * call_timeout_ms. Returns reply->code of the last try; *reply is the caller's to close in every case.
 */
int ampclient_rpc_retry(struct ampclient_link *link, const struct ampclient_request *request, uint64_t wait_ms,
                        void (*restart_cb)(void *arg), struct ampclient_reply *reply);

#endif
