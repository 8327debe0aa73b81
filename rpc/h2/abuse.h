/*
 * What a link does about a hostile peer: counts what only nghttp2 sees, watches slow messages, ends the connection.
 * Internal.
 */
#ifndef ARPC_H2_ABUSE_H
#define ARPC_H2_ABUSE_H

#include "rpc/h2/call.h"

#include <nghttp2/nghttp2.h>

/*
 * Ends the connection for this cause: GOAWAY ENHANCE_YOUR_CALM, and nothing of the peer is taken any more. The first
 * counts.
 */
void arpc_link_punish(struct arpc_link *link, enum arpc_abuse cause);

/* Looks at bytes before nghttp2 does. How many it may be given at a time; 0: none, the connection is being ended. */
size_t arpc_link_watch(struct arpc_link *link, const uint8_t *data, size_t size);

/* nghttp2's callbacks, as far as limits are concerned. */
void arpc_link_watch_received(struct arpc_link *link, const nghttp2_frame *frame, const struct arpc_call *call);
void arpc_link_watch_sent(struct arpc_link *link, const nghttp2_frame *frame);
int arpc_link_watch_invalid(nghttp2_session *session, const nghttp2_frame *frame, int error, void *arg);

/* After nghttp2 has taken bytes: whether it wants to send more than a peer that reads would have left. */
void arpc_link_watch_queue(struct arpc_link *link);

/* DATA bytes of a call, `size` of them, were handled: begins or ends the time that its message has. */
void arpc_call_watch_message(struct arpc_call *call, size_t size);

/* The call is resumed: its message has a whole time again, for until now it was this side that kept it. */
void arpc_call_watch_anew(struct arpc_call *call);
/* When the time is over that the message or the data has, and what then happens. INT64_MAX: it has no limit. */
int64_t arpc_call_slow_ms(const struct arpc_call *call);
void arpc_call_slow(struct arpc_call *call, int64_t now_ms);
int64_t arpc_call_stall_ms(const struct arpc_call *call);
void arpc_call_stall(struct arpc_call *call, int64_t now_ms);

/* Server: counts a request that cannot be served. */
void arpc_call_nonsense(struct arpc_call *call);
/* The peer took this much of what waits. */
void arpc_call_progress(struct arpc_call *call, size_t size);

#endif
