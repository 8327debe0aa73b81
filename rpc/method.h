/*
 * A row of the table of RPCs: name, kind, largest message, handler. And the callbacks of a call, which are the same on
 * the server and on the client.
 */
#ifndef ARPC_METHOD_H
#define ARPC_METHOD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arpc_call;
struct arpc_result;

/* How many messages go each way: gRPC's four kinds of methods. */
enum arpc_kind { ARPC_UNARY, ARPC_CLIENT_STREAM, ARPC_SERVER_STREAM, ARPC_BIDI };

/*
 * The callbacks of a call. Any member but `closed` may be NULL. All run on the loop's thread, never inside another
 * callback of the same call, and in this order:
 *
 *   started, then messages, then half_close, and `closed` exactly once and last.
 *
 * Inside each of them every arpc_call_* function may be used on this or another call. After arpc_call_finish, _fail or
 * _cancel only `closed` follows. The call pointer is valid until `closed` returns, or as long as a reference is held
 * (arpc_call_ref).
 *
 * Messages come in one of two forms:
 *   - `message` is not NULL: each one is collected, in memory bounded by the row's max_message, and given
 *     whole. For a kind with one request it is called after the peer's end of stream, when it is known to be the only
 *     one.
 *   - else `message_begin` (after the size was checked against max_message, before anything is allocated), then
 *     `message_bytes` any number of times, with pointers that are valid during the callback only, then `message_end`. A
 *     message of size 0 has no message_bytes. `message_buffer`, if not NULL, may return memory for the next bytes of
 *     the message under way, and in *size how many at most (NULL: any memory will do): the connection may then read
 *     them straight into it, and gives them to message_bytes from there. The memory has to be valid only until the next
 *     callback of any call.
 */
struct arpc_handler {
    /* Server: the request's headers have come. Client: the response's headers have come (a Trailers-Only answer has
     * none). */
    void (*started)(struct arpc_call *call);
    void (*message)(struct arpc_call *call, const uint8_t *data, size_t size);
    void (*message_begin)(struct arpc_call *call, size_t size);
    void (*message_bytes)(struct arpc_call *call, const uint8_t *data, size_t size);
    uint8_t *(*message_buffer)(struct arpc_call *call, size_t *size);
    void (*message_end)(struct arpc_call *call);
    /* Server only: the client sends no more messages. A kind with one request has had exactly one by now. */
    void (*half_close)(struct arpc_call *call);
    /* arpc_call_queued has fallen to ARPC_LOW_WATER after it was above that; or there is room again after a send was
     * refused with AMP_EEXHAUSTED. */
    void (*writable)(struct arpc_call *call);
    /*
     * The call is over. Server: result->status is the one that was sent, or CANCELLED, DEADLINE_EXCEEDED or UNAVAILABLE
     * (connection lost) if the client may not have got it. Client: the status that the server sent, or that this side
     * has set. The result is valid during the callback only.
     */
    void (*closed)(struct arpc_call *call, const struct arpc_result *result);
};

/* A row. Names are exact and case-sensitive: the path is "/service/name". */
struct arpc_method {
    const char *service; /* "ampd.v1.ParameterService" */
    const char *name;    /* "Push" */
    enum arpc_kind kind;
    bool idempotent;                    /* a client may retry it without asking */
    uint32_t roles;                     /* who may call it: bits for admit_cb; 0: all, which keeps no link open */
    size_t max_message;                 /* largest request message in bytes */
    const struct arpc_handler *handler; /* NULL: the method answers UNIMPLEMENTED */
};

#endif
