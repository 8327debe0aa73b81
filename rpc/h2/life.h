/* The life of a connection: PINGs, ages and GOAWAYs. The essay is in life.c. Internal to rpc/. */
#ifndef ARPC_H2_LIFE_H
#define ARPC_H2_LIFE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct arpc_link;

/* gRFC A8: time for the answer to a keepalive PING. */
#define ARPC_PING_TIMEOUT_MS 20000
/* gRFC A8: this many PINGs that come too early are forgiven, the next one is answered with GOAWAY. */
#define ARPC_PING_STRIKES_MAX 2
/* No keepalive sends PINGs this close together: gRFC A8 has 10 s as the least interval of a client. */
#define ARPC_PING_FLOOD_MS 1000

/* PINGs, of both sides (gRFC A8). */
struct arpc_keepalive {
    int64_t period_ms, timeout_ms; /* as the config has them, or as a call has asked for */
    int64_t received_ms;           /* when a byte was last received */
    int64_t ping_ms;               /* when the unanswered PING was sent, or INT64_MAX */
    int64_t asked_ms;              /* when a call last asked whether the peer lives; 0: none has */
    bool asked;                    /* a keepalive's PING is unanswered */
    int64_t peer_ping_ms;          /* server: when the peer last sent a PING, or INT64_MIN */
    unsigned ping_strikes;         /* PINGs that came too early, since the last HEADERS or DATA of ours */
    bool sent_since_ping;          /* HEADERS or DATA of ours */
};

/* How long the connection may stay. */
struct arpc_age {
    int64_t opened_ms;
    int64_t due_ms;        /* the connection is drained then; INT64_MAX: never */
    int64_t abort_due_ms;  /* the connection is aborted then; INT64_MAX: never */
    int64_t idle_since_ms; /* INT64_MAX while there are calls; of a server: that were let in */
};

/* The end of the connection, from either side. */
struct arpc_goaway {
    bool received;          /* the peer has said it */
    bool farewell;          /* the peer's was at fault: it goes, and it is no attack */
    int64_t leave_due_ms;   /* a client that said it closes the connection until then; INT64_MAX: none has said it */
    int64_t goodbye_due_ms; /* by when ours has to be taken; INT64_MAX: none is due */
    enum { ARPC_DRAIN_NO, ARPC_DRAIN_NOTICE, ARPC_DRAIN_FINAL } drain;
    const char *why;     /* debug data of the final one, a constant; NULL: none */
    int32_t last_stream; /* that the final one promised to serve */
    int32_t late_stream; /* a request that came after it and is to be refused; 0: none */
    bool expelled;       /* one with an error is queued: nothing of the peer is taken any more */
    bool expulsion_sent; /* one with an error is in a batch: nothing more is produced */
};

/* Begins to refuse new streams: GOAWAY, PING, and the final GOAWAY after its answer. */
void arpc_link_drain(struct arpc_link *link);

/* Ends the connection: GOAWAY with an HTTP/2 error code and a text (a constant), then nothing more. */
void arpc_link_expel(struct arpc_link *link, uint32_t h2_code, const char *debug);

/* When the link is drained for want of calls; INT64_MAX: it has some, or time without end. */
int64_t arpc_link_idle_due_ms(const struct arpc_link *link);

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
/*
 * Refuses late_stream. To be called once nghttp2 is done with its header block: before that the stream is idle to it.
 */
void arpc_link_refuse_late(struct arpc_link *link);

#endif
