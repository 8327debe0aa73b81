/*
 * A call: one HTTP/2 stream with one RPC on it, seen from the server or from the client. What both sides can
 * do with it is here; arpc_server.h and arpc_client.h add what only one side can.
 *
 * Every function runs on the thread of the loop that the server or channel was made for. None of them calls a callback
 * itself, but arpc_call_blank: callbacks come from the loop, at the end of its iteration. A call that is over (closed)
 * stays a valid object for those who hold a reference, and every operation on it has no effect or returns AMP_ESTATE.
 */
#ifndef ARPC_CALL_H
#define ARPC_CALL_H

#include "base/err.h"
#include "rpc/method.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* google.rpc.Code */
enum arpc_status {
    ARPC_STATUS_OK = 0,
    ARPC_STATUS_CANCELLED = 1,
    ARPC_STATUS_UNKNOWN = 2,
    ARPC_STATUS_INVALID_ARGUMENT = 3,
    ARPC_STATUS_DEADLINE_EXCEEDED = 4,
    ARPC_STATUS_NOT_FOUND = 5,
    ARPC_STATUS_ALREADY_EXISTS = 6,
    ARPC_STATUS_PERMISSION_DENIED = 7,
    ARPC_STATUS_RESOURCE_EXHAUSTED = 8,
    ARPC_STATUS_FAILED_PRECONDITION = 9,
    ARPC_STATUS_ABORTED = 10,
    ARPC_STATUS_OUT_OF_RANGE = 11,
    ARPC_STATUS_UNIMPLEMENTED = 12,
    ARPC_STATUS_INTERNAL = 13,
    ARPC_STATUS_UNAVAILABLE = 14,
    ARPC_STATUS_DATA_LOSS = 15,
    ARPC_STATUS_UNAUTHENTICATED = 16
};

/* "NOT_FOUND" of 5; "UNKNOWN" of a number outside 0..16. */
const char *arpc_status_name(int status);

struct arpc_pair {
    const char *key;
    const char *value;
};

/* Most pairs in the metadata of an ErrorInfo, and their sizes with the final zero. Longer ones are cut on
 * sending. */
#define ARPC_DETAIL_PAIRS_MAX 16
#define ARPC_DETAIL_KEY_MAX   64
#define ARPC_DETAIL_VALUE_MAX 256

#define ARPC_STATUS_TEXT_MAX 1024 /* longest grpc-message, with the final zero */

/* What grpc-status-details-bin adds to a status (google.rpc.ErrorInfo, RetryInfo, BadRequest). Zeroed:
 * nothing. */
struct arpc_details {
    const char *reason;            /* ErrorInfo.reason, UPPER_SNAKE; NULL or "": no ErrorInfo */
    const char *domain;            /* ErrorInfo.domain; NULL: "ampd" */
    const struct arpc_pair *pairs; /* ErrorInfo.metadata */
    size_t pair_count;             /* at most ARPC_DETAIL_PAIRS_MAX; further ones are left out */
    int64_t retry_ms;              /* RetryInfo.retry_delay; 0: no RetryInfo; below 0: nor a retry here */
    const char *field;             /* BadRequest: path of the field at fault; NULL: no BadRequest */
    const char *field_text;        /* BadRequest: what is wrong with it */
};

/* How a call ended. All pointers are valid during the `closed` callback only; none is NULL but details'. */
struct arpc_result {
    int status;                  /* enum arpc_status */
    const char *message;         /* UTF-8 text, "" if none */
    struct arpc_details details; /* client: parsed from the trailers; server: zeroed */
    bool from_peer; /* the status came from the server; else this side set it (connection lost, deadline, cancel) */
};

/* The value that details.pairs has for key, or NULL. */
const char *arpc_details_find(const struct arpc_details *details, const char *key);

/* Gets the argument it was registered with. No call pointer: the call may be gone by then. */
typedef void (*arpc_release_cb)(void *arg);

/* Bytes. While arpc_call_queued is above this, a producer should wait for `writable` if it can. */
#define ARPC_HIGH_WATER ((size_t)1 << 20)
/* Bytes. `writable` comes when arpc_call_queued has fallen to this or below. */
#define ARPC_LOW_WATER ((size_t)256 << 10)

/*
 * Queues one message: `head` (copied) followed by `body`. With `release_cb`, body is sent from where it lies
 * and must not change until release_cb(release_arg) has been called: exactly once, from the loop (or from
 * inside arpc_call_blank), when its bytes have left this process or never will; that may be after `closed`.
 * Without one, body is copied too. 0: body is taken. On failure nothing is queued, release_cb will not be
 * called, and body stays the caller's: AMP_ESTATE (finished, half-closed or over), AMP_EEXHAUSTED (the
 * connection's max_queued bytes are reached; wait for `writable`; never while a server's call has nothing queued),
 * AMP_EINVAL (over 4 GiB), AMP_ENOMEM.
 */
int arpc_call_send(struct arpc_call *call, const void *head, size_t head_size, const void *body, size_t body_size,
                   arpc_release_cb release_cb, void *release_arg);

/* Bytes of this call that have not left the process. */
size_t arpc_call_queued(const struct arpc_call *call);

/*
 * Stop message callbacks (and half_close), and let them come again. While a call is paused the peer may fill the
 * stream's window and then has to wait; other streams of the connection go on. A pause inside a message callback holds
 * for all that follows. If the connection is lost meanwhile, a client's call whose whole answer has come still gets it
 * after the resume; any other call ends UNAVAILABLE. Repeating either has no effect.
 */
void arpc_call_pause(struct arpc_call *call);
void arpc_call_resume(struct arpc_call *call);

/*
 * Ends the call at once; what is queued is dropped, and `closed` comes with `status`. A server sends the status to the
 * client; a client sends only RST_STREAM (its status is usually CANCELLED). No effect if the call is over.
 */
void arpc_call_cancel(struct arpc_call *call, int status, const char *message);

/*
 * Takes back the memory of all bodies that were sent by reference (arpc_call_send with a release_cb) and have not left
 * the process, without waiting for a slow peer: zeros are sent in their place, and each release_cb that is due is
 * called before this returns. The peer gets wrong bytes: messages must have a checksum, and the call must end with an
 * error. Copies (heads, bodies without a release_cb, what TLS has encrypted) are sent unchanged. May also be called in
 * `closed` and after it, by the owner of a reference. No effect if nothing is left.
 */
void arpc_call_blank(struct arpc_call *call);

/* Set and get a pointer of the user's; NULL at first. */
void arpc_call_set_user(struct arpc_call *call, void *user);
void *arpc_call_user(const struct arpc_call *call);

/* Take and drop a reference, which keeps the object (not the stream) alive beyond `closed`. */
struct arpc_call *arpc_call_ref(struct arpc_call *call);
void arpc_call_unref(struct arpc_call *call);

/* Whether `closed` has been or is being called. */
bool arpc_call_is_closed(const struct arpc_call *call);

/* Milliseconds until the deadline, 0 if it has passed, INT64_MAX if there is none. */
int64_t arpc_call_time_left_ms(const struct arpc_call *call);

/*
 * The index-th value of a metadata key that the peer sent and that is listed in keep_metadata, or false.
 * Values of keys that end in "-bin" are decoded. Valid until `closed` returns.
 */
bool arpc_call_metadata(const struct arpc_call *call, const char *key, size_t index, const uint8_t **value,
                        size_t *size);

#endif
