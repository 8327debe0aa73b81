/* The insides of a call, shared by the files of rpc/h2. The essay is in call.c. */
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

/* Whether the table allows the step; and the name, for the test that reads the diagram in call.c. */
bool arpc_call_state_may(enum arpc_call_state from, enum arpc_call_state to);
const char *arpc_call_state_name(enum arpc_call_state state);

struct arpc_call {
    unsigned refs; /* one is the link's, until GONE; one is held by each arpc_out */
    enum arpc_call_state state;
    bool server;
    struct arpc_link *link; /* NULL when GONE */
    int32_t stream_id;      /* 0: no stream yet */
    struct amp_list in_link;
    struct amp_list in_dirty;
    struct amp_list in_events;
    struct amp_list in_waiting; /* client */
    struct amp_list in_refused; /* a message was refused for want of room on the connection: `writable` is due */
    const struct arpc_handler *handler;
    const struct arpc_method *method;  /* server */
    struct arpc_method_stats *stats;   /* server: of the method */
    struct arpc_method_stats *counted; /* the same while the call is begun and not over; else NULL */
    int64_t began_us;
    void *user;
    int64_t deadline_ms; /* INT64_MAX: none */
    struct arpc_head head;
    struct arpc_fields kept;

    bool stream_over; /* nghttp2 has closed the stream, or it never began and never will */

    struct arpc_inbound in;
    struct arpc_outbound out;
    struct arpc_call_attempt attempt; /* client */

    /* the end */
    bool told;     /* `closed` was called */
    bool admitted; /* server: its caller may make it, and so may stay as long as it lasts */
    bool quiet;    /* the user never heard of this call */
    bool wait_for_ready;
    bool from_peer;
    int status;              /* of arpc_call_finish, or of the result */
    char *status_message;    /* NULL: "" */
    uint8_t *status_details; /* server: serialized google.rpc.Status to send */
    size_t status_details_size;
    int64_t retry_ms; /* server: of grpc-retry-pushback-ms, 0: none */
    char *path;       /* client */
};

struct arpc_call *arpc_call_create(struct arpc_link *link, const struct arpc_handler *handler);
void arpc_call_set_state(struct arpc_call *call, enum arpc_call_state to);
/* The call is over for its user: `closed` becomes due. The first reason counts. */
void arpc_call_close(struct arpc_call *call, int status, const char *message);
/* The stream ended or never began: the call goes as soon as `closed` was told. */
void arpc_call_stream_over(struct arpc_call *call);
/* The peer, or nghttp2, ended the stream with this HTTP/2 error code. */
void arpc_call_stream_closed(struct arpc_call *call, uint32_t h2_code);
/* Asks for RST_STREAM. */
void arpc_call_reset(struct arpc_call *call, uint32_t h2_code);
/* A fault of the peer in its messages: server: the status is sent; client: the stream is reset. */
void arpc_call_fault(struct arpc_call *call, int status, const char *message);
void arpc_call_set_status(struct arpc_call *call, int status, const char *message);
void arpc_call_mark_dirty(struct arpc_call *call);
void arpc_call_mark_event(struct arpc_call *call);
void arpc_call_tell(struct arpc_call *call);
void arpc_call_deadline(struct arpc_call *call);
/* Ends it now, with this status if that can still be said. */
void arpc_call_abort(struct arpc_call *call, int status, const char *message);
/* Server: its caller may make it. */
void arpc_call_admit(struct arpc_call *call);
bool arpc_call_is_over(const struct arpc_call *call); /* CLOSED or GONE */
/* What comes on the stream is of no interest: over, or beginning again. */
bool arpc_call_ignores_input(const struct arpc_call *call);

/*
 * Reopens the connection's window for `size` bytes that are buffered no more, as far as it was not reopened for them.
 */
void arpc_link_credit(struct arpc_link *link, size_t size);
struct nghttp2_session *arpc_call_session(const struct arpc_call *call);
/* The link's next deadline is at most when_ms. */
void arpc_link_due(struct arpc_link *link, int64_t when_ms);

#endif
