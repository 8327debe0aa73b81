/*
 * The client's side of header blocks: requests are sent, responses are read. On the loop's thread; a fault of the
 * server ends the call (arpc_call_fault). Internal to rpc/.
 */
#ifndef ARPC_H2_REQUEST_H
#define ARPC_H2_REQUEST_H

#include "rpc/h2/call.h"

/* Takes one field of the response's header blocks into call->head. 0; AMP_ENOMEM. */
int arpc_request_field(struct arpc_call *call, const uint8_t *name, size_t name_size, const uint8_t *value,
                       size_t value_size);
/* The response's first header block is whole: calls `started`, or makes the call begin again or fail. */
void arpc_request_head(struct arpc_call *call);
/* For arpc_link_flush: queues a call without a stream in link->waiting, else has nghttp2 send what is queued. */
void arpc_request_flush(struct arpc_call *call);
/*
 * Begins the streams of calls in link->waiting, as many as the peer allows. If it takes no further calls, they begin
 * again elsewhere or end UNAVAILABLE.
 */
void arpc_request_begin(struct arpc_link *link);
/* The response has ended, and the user has had all messages before it: closes the call with its status. */
void arpc_request_end(struct arpc_call *call);
/* The response has ended. True: the call is retried, so the user gets no callback. */
bool arpc_request_again(struct arpc_call *call);
/*
 * A new call on the link, which owns it; *out is valid until `closed` returns. `handler` must outlive it; all else is
 * copied. 0; AMP_EINVAL (path or metadata), AMP_EEXHAUSTED (too much metadata), AMP_ENOMEM: no callback comes.
 */
int arpc_request_new(struct arpc_link *link, const char *path, const struct arpc_pair *metadata, size_t metadata_count,
                     const struct arpc_handler *handler, struct arpc_call **out, struct amp_error *error);

#endif
