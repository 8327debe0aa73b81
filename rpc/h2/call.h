/*
 * The inner parts of a call, shared by the files of rpc/h2; its states and references are explained in call.c. All
 * functions run on the loop's thread. None calls a user's callback unless its comment says so: they put the call into
 * link->dirty or link->events, and arpc_link_flush does the work and calls the callbacks.
 */
#ifndef ARPC_H2_CALL_H
#define ARPC_H2_CALL_H

#include "base/list.h"
#include "rpc/arpc_call.h"
#include "rpc/h2/fields.h"
#include "rpc/h2/head.h"
#include "rpc/h2/link.h"
#include "rpc/h2/park.h"
#include "rpc/h2/receive.h"
#include "rpc/h2/send.h"

#include <stdbool.h>
#include <stdint.h>

/* X(name) */
#define ARPC_CALL_STATES(X) X(OPEN) X(REMOTE_ENDED) X(LOCAL_ENDED) X(BOTH_ENDED) X(CLOSED) X(GONE)

enum arpc_call_state {
#define ARPC_CALL_STATE_ENUM(name) ARPC_CALL_##name,
    ARPC_CALL_STATES(ARPC_CALL_STATE_ENUM)
#undef ARPC_CALL_STATE_ENUM
        ARPC_CALL_STATE_COUNT
};

/* Whether a call may go from one state to the other; and the name, for the test that reads the diagram in call.c. */
bool arpc_call_state_may(enum arpc_call_state from, enum arpc_call_state to);
const char *arpc_call_state_name(enum arpc_call_state state);

struct arpc_call {
    unsigned refs; /* one is the link's, until GONE; one is held by each arpc_out; the others are the user's */
    enum arpc_call_state state;
    bool server;                /* this side is the server */
    struct arpc_link *link;     /* NULL when GONE */
    int32_t stream_id;          /* 0: no stream yet */
    struct amp_list in_link;    /* in link->calls until GONE */
    struct amp_list in_dirty;   /* in link->dirty while the call has something for arpc_link_flush to do */
    struct amp_list in_events;  /* in link->events while a callback of the user's is due */
    struct amp_list in_waiting; /* client: in link->waiting until the peer allows one more stream */
    struct amp_list in_refused; /* in link->refused since a message found the queue full: `writable` is due */
    const struct arpc_handler *handler;
    const struct arpc_method *method;  /* server: the row of the call; NULL: an unknown method */
    struct arpc_method_stats *stats;   /* server: counts of the method */
    struct arpc_method_stats *counted; /* equal to `stats` from arpc_stats_begin to arpc_stats_end; else NULL */
    int64_t began_us;                  /* time of arpc_stats_begin */
    void *user;                        /* of arpc_call_set_user */
    int64_t deadline_ms;               /* INT64_MAX: none */
    struct arpc_head head;             /* what the peer's header blocks said */
    struct arpc_fields kept;           /* metadata of the peer that is listed in keep_metadata */
    struct arpc_charge open;           /* server: for the call and its metadata, until it is GONE */

    bool stream_over; /* nghttp2 has closed the stream, or it never began and never will */

    struct arpc_inbound in;
    struct arpc_outbound out;
    struct arpc_call_attempt attempt; /* client */

    /* The end of the call. */
    bool closed_done;        /* `closed` was called, or is not to be called (`quiet`) */
    bool admitted;           /* server: admit_cb has let the call in */
    bool quiet;              /* the call was refused before `started`, so the user gets no callback */
    bool wait_for_ready;     /* client: as in arpc_call_options */
    bool from_peer;          /* client: the status came from the server */
    int status;              /* server: of arpc_call_finish; else of the result */
    char *status_message;    /* NULL: "" */
    uint8_t *status_details; /* server: serialized google.rpc.Status to send */
    size_t status_details_size;
    int64_t retry_ms; /* server: value of grpc-retry-pushback-ms, which below 0 says never; 0: none */
    char *path;       /* client: "/package.Service/Method" */
};

/* A new call in state OPEN on the link, which holds its one reference. NULL: there is no memory. */
struct arpc_call *arpc_call_create(struct arpc_link *link, const struct arpc_handler *handler);
/* Changes the state; asserts that the table of call.c allows it. */
void arpc_call_set_state(struct arpc_call *call, enum arpc_call_state to);
/* The call is over for its user: `closed` becomes due with this result. Only the first call of it has an effect. */
void arpc_call_close(struct arpc_call *call, int status, const char *message);
/* The stream has ended or never began: the call becomes GONE as soon as `closed` was called. */
void arpc_call_stream_over(struct arpc_call *call);
/* The peer, or nghttp2, has ended the stream with this HTTP/2 error code: the call closes, or begins again. */
void arpc_call_stream_closed(struct arpc_call *call, uint32_t h2_code);
/*
 * The stream is to end with the next flush, unless it is over: a client's by RST_STREAM with this code; a server's by
 * the trailers, with the call's status, in place of what has not left. Until then no further frame of it begins.
 */
void arpc_call_reset(struct arpc_call *call, uint32_t h2_code);
/*
 * The peer's messages are at fault. Server: finishes the call with this status. Client: closes it and resets the
 * stream.
 */
void arpc_call_fault(struct arpc_call *call, int status, const char *message);
/*
 * Sets the status (a number that gRPC does not have becomes UNKNOWN) and a copy of the text, which is lost without
 * memory.
 */
void arpc_call_set_status(struct arpc_call *call, int status, const char *message);
/* Puts the call into link->dirty and wakes the link's owner. No effect if it is GONE or there already. */
void arpc_call_mark_dirty(struct arpc_call *call);
/* Puts the call into link->events and wakes the link's owner. No effect if it is GONE or there already. */
void arpc_call_mark_event(struct arpc_call *call);
/*
 * For arpc_link_flush: calls the user's callback that is due (`closed` or `writable`). Afterwards a call that is closed
 * and whose stream is over is GONE, so that it may be freed; a client's call may have moved to the parking link.
 */
void arpc_call_notify(struct arpc_call *call);
/* The deadline has come: arpc_call_cancel with DEADLINE_EXCEEDED. */
void arpc_call_deadline(struct arpc_call *call);
/* Server, once per call: admit_cb has let the call in, so that it keeps the connection from being idle. */
void arpc_call_admit(struct arpc_call *call);
/* Whether the call is CLOSED or GONE. */
bool arpc_call_is_over(const struct arpc_call *call);
/* Whether bytes and header blocks of the stream are to be ignored: the call is over, or begins again. */
bool arpc_call_ignores_input(const struct arpc_call *call);

/*
 * `size` bytes of a call are no longer buffered: reopens the connection's window for them, as far as it was not
 * reopened when they were received.
 */
void arpc_link_credit(struct arpc_link *link, size_t size);
/* The session of the call's link; the call is not GONE. NULL: a parking link. */
struct nghttp2_session *arpc_call_session(const struct arpc_call *call);
/* Sees to it that arpc_link_tick runs at when_ms or earlier. */
void arpc_link_due(struct arpc_link *link, int64_t when_ms);

#endif
