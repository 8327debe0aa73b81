/*
 * RPCs that the user's thread waits for: create, load, status, and all that ampctl does. (Join, Pull, Push and their
 * like are driven by the core instead; see model.h.)
 *
 * All functions are for the user's thread.
 */
#ifndef AMPCLIENT_RPC_H
#define AMPCLIENT_RPC_H

#include "base/buf.h"
#include "client/io/link.h"

/* First pause between tries, and the longest; it doubles. */
#define AMPCLIENT_RPC_PAUSE_MS     100
#define AMPCLIENT_RPC_PAUSE_MAX_MS 2000
/* Tries after ABORTED and DATA_LOSS: a race lost or a bit flipped once is not lost three times. */
#define AMPCLIENT_RPC_REPEATS_MAX 3

/* How an RPC ended. `error` is set when code is not 0; code 0: `body` has the answer (of a stream: nothing). */
struct ampclient_reply {
    int code;
    int status;     /* of gRPC */
    bool from_peer; /* the server itself said so */
    uint64_t retry_ms;
    struct amp_error error;
    struct amp_buf body;
};

/* What to send and receive. All pointers are borrowed until the function returns. */
struct ampclient_request {
    const char *path;
    uint32_t shard;             /* of several */
    const struct amp_buf *body; /* the first message; NULL: an empty one */
    uint64_t timeout_ms;        /* of one try; 0: none (only for a server stream) */
    bool idempotent;            /* the channel may send it again within a try (gRFC A6), as proto/methods.def says */
    /*
     * Client stream: called on the loop's thread at first and each time the queue has run low. Sends more; returns 1
     * when all is sent, 0 to be called again, or a code.
     */
    int (*feed_cb)(void *arg, struct arpc_call *call);
    /* Server stream: called on the loop's thread with each message; not 0 ends the call. */
    int (*message_cb)(void *arg, const uint8_t *data, size_t size);
    void *arg;
};

/*
 * For feed_cb: sends a message whose body stays where it lies; the function that made the call does not return before
 * it has been sent, or never will be. As arpc_call_send.
 */
int ampclient_rpc_send_view(struct arpc_call *call, const void *head, size_t head_size, const void *body,
                            size_t body_size);

/* Frees the body. A zeroed reply is empty. */
void ampclient_reply_close(struct ampclient_reply *reply);

/* One try. Returns reply->code; *reply is the caller's to close in every case. */
int ampclient_rpc(struct ampclient_link *link, const struct ampclient_request *request, struct ampclient_reply *reply);

/*
 * Tries again while the server cannot be reached or says UNAVAILABLE, for up to wait_ms after the first such answer;
 * and a few times after ABORTED and DATA_LOSS. `restart_cb` (may be NULL) is called with request->arg before each try.
 */
int ampclient_rpc_retry(struct ampclient_link *link, const struct ampclient_request *request, uint64_t wait_ms,
                        void (*restart_cb)(void *arg), struct ampclient_reply *reply);

#endif
