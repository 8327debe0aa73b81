/* The insides of a call, shared by the files of rpc/h2. The essay is in call.c. */
#ifndef ARPC_H2_CALL_H
#define ARPC_H2_CALL_H

#include "base/buf.h"
#include "base/list.h"
#include "rpc/arpc_call.h"
#include "rpc/h2/fields.h"
#include "rpc/h2/link.h"
#include "rpc/wire/frame.h"

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

/* A message on its way out: the prefix, the copied head, then the body, borrowed or copied behind the head. */
struct arpc_out {
    struct amp_list node;
    struct arpc_call *call; /* referenced */
    arpc_release_cb release_cb;
    void *release_arg;
    const uint8_t *body;
    size_t head_size; /* with the prefix */
    size_t size;      /* head and body */
    size_t given;     /* bytes that are in batches, or were */
    unsigned pins;    /* batches that point into it */
    bool blank;       /* zeros go in place of the body that has not left */
    uint8_t head[];
};

/* Window of a new stream, where config.stream_window is not less: one Push header and some blocks. */
#define ARPC_INITIAL_WINDOW ((size_t)256 << 10)

/* Of grpc-encoding. */
enum arpc_encoding { ARPC_ENCODING_IDENTITY, ARPC_ENCODING_GZIP, ARPC_ENCODING_UNKNOWN };

/* Of grpc-accept-encoding: what this side reads. */
#define ARPC_ENCODINGS "identity,gzip"

/* What the header blocks of the peer said. */
struct arpc_head {
    size_t bytes; /* counted as RFC 9113 6.5.2 does: name + value + 32 */
    size_t count;
    bool too_large;
    bool bad_metadata;
    /* request */
    bool post;
    bool grpc_content;
    bool proto_content; /* it is application/grpc+proto, which the answer's is then too */
    bool accepts_gzip;
    bool bad_timeout;
    int64_t timeout_ns; /* INT64_MAX: none */
    /* both */
    enum arpc_encoding encoding;
    /* response */
    int http_status;
    int grpc_status;  /* -1: none yet */
    char *message;    /* of grpc-message, decoded; NULL: none */
    uint8_t *details; /* raw google.rpc.Status */
    size_t details_size;
    enum arpc_pushback pushback;
    int64_t pushback_ms;
};

/*
 * An inflated message is given to a handler of pieces as three callbacks, at each of which it may pause: which is next.
 */
enum arpc_stage { ARPC_STAGE_NONE, ARPC_STAGE_BEGIN, ARPC_STAGE_BYTES, ARPC_STAGE_END };

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

    /* receiving */
    struct arpc_deframer deframer;
    size_t max_message;
    struct amp_buf held;    /* received while paused */
    struct amp_buf message; /* being collected */
    const uint8_t *whole;   /* the message lies in one piece in the receive buffer */
    size_t message_size;
    struct arpc_inflate *inflate; /* of the compressed message that is being received, or NULL */
    enum arpc_stage stage;        /* what of a message that was inflated is to be told next */
    unsigned messages;            /* begun so far */
    bool single_inbound;          /* exactly one message is to come */
    bool paused;
    bool resumed; /* held bytes are to be delivered */
    bool window_grown;
    int64_t slow_since_ms; /* since when slow_bytes are counted; INT64_MAX: no message is awaited */
    size_t slow_bytes;
    size_t taken;     /* bytes that the user is done with */
    bool end_seen;    /* END_STREAM is here */
    bool stream_over; /* nghttp2 has closed the stream, or it never began and never will */

    /* sending */
    struct amp_list out;
    struct amp_list sent;     /* client: messages all of which is in batches, or was, kept to be sent again */
    size_t retained;          /* bytes of `sent` and of what has left of `out` */
    struct arpc_batch *batch; /* the one under way, if it has bytes of this call, also when GONE; else NULL */
    size_t unsent;            /* bytes not yet given to a batch */
    size_t queued;            /* bytes that have not left */
    bool was_high;            /* queued was above the low-water mark: `writable` is due when it falls */
    bool head_submitted;      /* response or request HEADERS are with nghttp2 */
    bool compress;            /* server: answers of some size go compressed */
    bool deferred;            /* nghttp2 waits for arpc_call's word that there is data */
    bool ended;               /* no more messages from this side */
    bool trailers_sent;
    bool reset; /* RST_STREAM is wanted */
    bool reset_done;
    uint32_t reset_code;
    int64_t progress_ms;         /* since when progress_bytes are counted: the queue was empty, or it went well */
    size_t progress_bytes;       /* given to batches since then */
    struct arpc_fields initial;  /* of the head; client: request metadata */
    struct arpc_fields trailing; /* server */

    /* client: attempts (park.c) */
    struct arpc_retry retry;
    bool head_left;   /* the request's HEADERS are in a batch, or were */
    bool again;       /* the attempt has failed; the next one begins when its stream is over and its bytes are gone */
    int64_t begin_ms; /* not before that; 0: at any time */

    /* the end */
    bool told;  /* `closed` was called */
    bool quiet; /* the user never heard of this call */
    bool wait_for_ready;
    bool from_peer;
    int status;              /* of arpc_call_finish, or of the result */
    char *status_message;    /* NULL: "" */
    uint8_t *status_details; /* server: serialized google.rpc.Status to send */
    size_t status_details_size;
    int64_t retry_ms; /* server: of grpc-retry-pushback-ms, 0: none */
    char *path;       /* client */
};

/* call.c */
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
bool arpc_call_is_over(const struct arpc_call *call); /* CLOSED or GONE */
/* What comes on the stream is of no interest: over, or beginning again. */
bool arpc_call_is_deaf(const struct arpc_call *call);

/* park.c: between connections */
/* The attempt has failed like this. True if the call begins again: the caller sees to it that the stream ends. */
bool arpc_call_try_again(struct arpc_call *call, int status, enum arpc_reach reach);
/* Moves a call that is to begin again to the parking link. */
void arpc_call_begin_again(struct arpc_call *call);
/* The call can not begin again from here on: what was kept for that goes. */
void arpc_call_commit(struct arpc_call *call);

/* receive.c */
/* Takes DATA bytes; returns how many are done with, the others are held. */
size_t arpc_call_receive(struct arpc_call *call, const uint8_t *data, size_t size);
/* Delivers held bytes after a resume; returns how many are done with. */
size_t arpc_call_receive_held(struct arpc_call *call);
/* Where the user wants the next bytes of the stream, and in *size how many; NULL: anywhere. */
uint8_t *arpc_call_place(struct arpc_call *call, size_t *size);
/* Tells the end of the peer's messages, if it has come and nothing is held. */
void arpc_call_receive_end(struct arpc_call *call);
/* Gives the collected message to the user. */
void arpc_call_deliver(struct arpc_call *call);

/* send.c */
/* Moves `size` unsent bytes into the batch. */
void arpc_out_give(struct arpc_call *call, struct arpc_batch *batch, size_t size);
/* How many bytes, at most `limit`, one DATA frame may take now; *slots: an upper bound of what arpc_out_give then adds. */
size_t arpc_out_slots(struct arpc_call *call, size_t limit, size_t *slots);
/* Whether messages that were refused for want of room may be tried again. */
bool arpc_link_has_room(const struct arpc_link *link);
bool arpc_call_has_room(const struct arpc_call *call);
/* Drops what is not in a batch. */
void arpc_out_drop(struct arpc_call *call);
/* Drops what was kept to be sent again. */
void arpc_out_forget(struct arpc_call *call);
/* Everything is to be sent once more; no batch has bytes of it. */
void arpc_out_rewind(struct arpc_call *call);
/* Adds bytes where they lie. */
void arpc_batch_add(struct arpc_batch *batch, const void *data, size_t size);
/* Adds a copy of the bytes, which fit. */
void *arpc_batch_scratch(struct arpc_batch *batch, const void *data, size_t size);

/* stats.c: server */
void arpc_stats_begin(struct arpc_call *call);
void arpc_stats_end(struct arpc_call *call);

/* abuse.c */
/* Server: counts a request that cannot be served. */
void arpc_call_nonsense(struct arpc_call *call);
/* The peer took this much of what waits. */
void arpc_call_progress(struct arpc_call *call, size_t size);

/* serve.c: the server's side of header blocks */
int arpc_serve_field(struct arpc_call *call, const uint8_t *name, size_t name_size, const uint8_t *value,
                     size_t value_size);
enum arpc_encoding arpc_encoding_of(const uint8_t *name, size_t size);
void arpc_serve_begin(struct arpc_call *call);
/* Ends the calls that have been handed over and would not be let in now; how many. */
unsigned arpc_link_admit_again(struct arpc_link *link,
                               int (*admit_cb)(struct arpc_call *call, void *arg, struct amp_error *error));
void arpc_serve_flush(struct arpc_call *call);
int arpc_serve_trailers(struct arpc_call *call);

/* request.c: the client's */
int arpc_request_field(struct arpc_call *call, const uint8_t *name, size_t name_size, const uint8_t *value,
                       size_t value_size);
void arpc_request_head(struct arpc_call *call);
void arpc_request_flush(struct arpc_call *call);
/* Begins the streams of calls that wait, as many as the peer allows. */
void arpc_request_begin(struct arpc_link *link);
void arpc_request_end(struct arpc_call *call);
/* The response has ended: whether the call begins again instead. */
bool arpc_request_again(struct arpc_call *call);
int arpc_request_new(struct arpc_link *link, const char *path, const struct arpc_pair *metadata, size_t metadata_count,
                     const struct arpc_handler *handler, struct arpc_call **out, struct amp_error *error);

/* life.c: PINGs, ages and GOAWAYs */
/* The time for the answer to a PING. */
int64_t arpc_link_ping_timeout_ms(const struct arpc_link *link);
/* Sets what a new link has of an age. */
void arpc_link_life_init(struct arpc_link *link);
/* arpc_link_drain for a reason that the final GOAWAY tells (a constant). */
void arpc_link_retire(struct arpc_link *link, const char *why);
/* Gives the peer goodbye_ms to take the GOAWAY that ends the connection. */
void arpc_link_goodbye(struct arpc_link *link);
/* Sends the keepalive's PING. */
void arpc_link_ask(struct arpc_link *link);
void arpc_link_ping_received(struct arpc_link *link);
void arpc_link_ping_answered(struct arpc_link *link, const uint8_t *opaque);
void arpc_link_goaway_received(struct arpc_link *link, uint32_t h2_code, const uint8_t *debug, size_t size);
/* Whether a request with this id comes after the final GOAWAY. */
bool arpc_link_is_too_late(const struct arpc_link *link, int32_t stream_id);
/* Refuses late_stream. To be called once nghttp2 is done with its header block: before that the stream is idle to it. */
void arpc_link_refuse_late(struct arpc_link *link);

/* link.c */
/* Reopens the connection's window for `size` bytes that are held no more, as far as it was not reopened for them. */
void arpc_link_credit(struct arpc_link *link, size_t size);
struct nghttp2_session *arpc_call_session(const struct arpc_call *call);
/* The link's next deadline is at most when_ms. */
void arpc_link_due(struct arpc_link *link, int64_t when_ms);
/* Keeps a field of the peer if its name is wanted. 0 or AMP_ENOMEM. */
int arpc_head_keep(struct arpc_call *call, const uint8_t *name, size_t name_size, const uint8_t *value,
                   size_t value_size);

#endif
