/* What only the server side of a call can do, beside rpc/arpc_call.h. */
#ifndef ARPC_SERVER_CALL_H
#define ARPC_SERVER_CALL_H

#include "rpc/arpc_call.h"

/*
 * Sends what is queued, then the status. `message` (NULL: "") is UTF-8; details may be NULL. If nothing has
 * been sent, the answer is one HEADERS frame (Trailers-Only). What the client still sends is dropped. No
 * effect if the call is finished or over.
 */
void arpc_call_finish(struct arpc_call *call, int status, const char *message, const struct arpc_details *details);

/*
 * For handlers that take a message in pieces: says that `size` bytes of the message under way are in the handler's own
 * memory, which it frees in `closed` at the latest. They count like the bytes that are collected here
 * (arpc_limits.unfinished) until the next call of this function gives another size; 0 at first. If that is too many,
 * the call may end RESOURCE_EXHAUSTED. Only inside a message callback.
 */
void arpc_call_holds(struct arpc_call *call, size_t size);

/* arpc_call_finish with the status, text and reason of an error. */
void arpc_call_fail(struct arpc_call *call, const struct amp_error *error);

/* Sends one message (copied) and OK: the answer of a unary method. On an error of arpc_call_send, which it returns, the
 * call ends with that error. */
int arpc_call_reply(struct arpc_call *call, const void *message, size_t size);

/*
 * Adds metadata to the response head (before the first message) or to the trailers. Values of "-bin" keys are
 * given raw. AMP_ESTATE (too late), AMP_EINVAL (not a metadata key or text), AMP_EEXHAUSTED (over 32 fields
 * or 4 KiB).
 */
int arpc_call_add_initial(struct arpc_call *call, const char *key, const void *value, size_t size);
int arpc_call_add_trailing(struct arpc_call *call, const char *key, const void *value, size_t size);

/* The row of the call; options.arg of the server; and the peer's address, as "127.0.0.1:40312" or "unix". */
const struct arpc_method *arpc_call_method(const struct arpc_call *call);
void *arpc_call_server_arg(const struct arpc_call *call);
const char *arpc_call_peer(const struct arpc_call *call);

/* Milliseconds since a byte last came on the call's connection; INT64_MAX: the connection is gone. */
int64_t arpc_call_silent_ms(const struct arpc_call *call);

/*
 * Sends a PING if no byte has come on the call's connection for silent_ms and none was sent by this function within
 * that time. An answer shows in arpc_call_silent_ms; a missing answer has no other effect.
 */
void arpc_call_ask(struct arpc_call *call, int64_t silent_ms);

/*
 * For a call whose peer's loss must be noticed soon: from now on a PING is sent on its connection after time_ms without
 * a received byte, and if that is not answered within timeout_ms, the connection is lost with all of its calls. For
 * this connection it replaces the keepalive of the server's options.
 */
void arpc_call_keepalive(struct arpc_call *call, int64_t time_ms, int64_t timeout_ms);

/* What is known of the peer; never NULL. Valid until `closed` returns; after that its address is "". */
const struct arpc_peer *arpc_call_peer_info(const struct arpc_call *call);

#endif
