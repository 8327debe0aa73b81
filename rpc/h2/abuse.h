/*
 * What a link does about a hostile peer: it counts what only nghttp2 sees, watches slow messages, and ends the
 * connection. On the loop's thread. Internal to rpc/h2.
 */
#ifndef ARPC_H2_ABUSE_H
#define ARPC_H2_ABUSE_H

#include "rpc/h2/call.h"

#include <nghttp2/nghttp2.h>

/*
 * Ends the connection for this cause: GOAWAY ENHANCE_YOUR_CALM, after which all bytes of the peer are ignored. Does
 * nothing for NONE, or if the connection is being ended already.
 */
void arpc_link_punish(struct arpc_link *link, enum arpc_abuse cause);

/*
 * Scans received bytes before nghttp2 gets them, and punishes a broken limit. Returns how many bytes nghttp2 may be
 * given at a time; 0: none, for the connection is being ended.
 */
size_t arpc_link_watch(struct arpc_link *link, const uint8_t *data, size_t size);

/* To be called from nghttp2's callbacks for a received, a sent and an invalid frame: count them against the limits. */
void arpc_link_watch_received(struct arpc_link *link, const nghttp2_frame *frame, const struct arpc_call *call);
void arpc_link_watch_sent(struct arpc_link *link, const nghttp2_frame *frame);
int arpc_link_watch_invalid(nghttp2_session *session, const nghttp2_frame *frame, int error, void *arg);

/* After nghttp2 has taken bytes: drops the link if more frames wait to be sent than a peer that reads would leave. */
void arpc_link_watch_queue(struct arpc_link *link);

/* `size` DATA bytes of a call were handled: starts, continues or stops the timing of the peer's message. */
void arpc_call_watch_message(struct arpc_call *call, size_t size);

/* The call is resumed: the peer gets the whole time for its message again, for this side has held it up. */
void arpc_call_watch_anew(struct arpc_call *call);
/* When the time for the message is over; INT64_MAX: no message is awaited, or there is no limit. */
int64_t arpc_call_slow_ms(const struct arpc_call *call);
/*
 * If that time has come: ends the call UNAVAILABLE, or begins the time again if this side holds the bytes back.
 */
void arpc_call_slow(struct arpc_call *call, int64_t now_ms);
/* Server: when the time is over in which the peer has to take data; INT64_MAX: nothing waits, or there is no limit. */
int64_t arpc_call_stall_ms(const struct arpc_call *call);
/*
 * If that time has come: resets the stream, and counts a fault of the peer; or begins the time again if the peer has
 * opened its windows, and the call waits for the socket.
 */
void arpc_call_stall(struct arpc_call *call, int64_t now_ms);

/* Server: counts a request that cannot be served, and punishes too many of them. */
void arpc_call_bad_request(struct arpc_call *call);
/* Begins the time of arpc_call_stall_ms. */
void arpc_call_begin_progress(struct arpc_call *call);
/* `size` bytes of the call were put into a batch: begins the time of arpc_call_stall_ms again if they are enough. */
void arpc_call_progress(struct arpc_call *call, size_t size);

#endif
