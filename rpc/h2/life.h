/* The life of a connection: PINGs, ages and GOAWAYs, explained in life.c. On the loop's thread. Internal to rpc/. */
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
    int64_t ping_ms;               /* since when the answer to a PING is awaited (life.c), or INT64_MAX */
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

/* The GOAWAY frames of both sides. */
struct arpc_goaway {
    bool received;          /* the peer has sent a GOAWAY */
    bool farewell;          /* the peer's GOAWAY was invalid: the peer leaves, which is no attack */
    int64_t leave_due_ms;   /* by when a client that has sent GOAWAY has to close; INT64_MAX: it has not */
    int64_t goodbye_due_ms; /* by when the peer has to take ours; INT64_MAX: none is to be taken */
    enum { ARPC_DRAIN_NO, ARPC_DRAIN_NOTICE, ARPC_DRAIN_FINAL } drain; /* how far arpc_link_drain is */
    const char *why;     /* debug data of the final GOAWAY, a constant; NULL: none */
    int32_t last_stream; /* last stream that the final GOAWAY promised to serve */
    int32_t late_stream; /* a request above last_stream that is to be refused; 0: none */
    bool expelled;       /* a GOAWAY with an error is queued: bytes of the peer are ignored */
    bool expulsion_sent; /* a GOAWAY with an error is in a batch: nothing more is produced */
};

/* Begins to refuse new streams: sends GOAWAY and PING, and after the answer to the PING the final GOAWAY. */
void arpc_link_drain(struct arpc_link *link);

/* Ends the connection: GOAWAY with an HTTP/2 error code and a text (a constant), then nothing more. */
void arpc_link_expel(struct arpc_link *link, uint32_t h2_code, const char *debug);

/* When the link will be drained because it has no calls; INT64_MAX: it has calls, or may stay without them. */
int64_t arpc_link_idle_due_ms(const struct arpc_link *link);

/* How long the peer has to answer a PING, in milliseconds. */
int64_t arpc_link_ping_timeout_ms(const struct arpc_link *link);
/* Sets keepalive and age of a new link from its config, once its other fields are set. */
void arpc_link_life_init(struct arpc_link *link);
/* Does what arpc_link_drain does, for a reason (a constant) that retired_cb and the final GOAWAY give; NULL: none. */
void arpc_link_retire(struct arpc_link *link, const char *why);
/* Gives the peer limits.goodbye_ms to take the GOAWAY that ends the connection; 0: as long as it likes. */
void arpc_link_goodbye(struct arpc_link *link);
/* Sends the keepalive's PING. */
void arpc_link_ask(struct arpc_link *link);
/* The peer has sent bytes: an answer may take longer. */
void arpc_link_received(struct arpc_link *link);
/* The peer has taken bytes, and others before which a PING cannot come are still on their way: the same. */
void arpc_link_taken(struct arpc_link *link);
/* The peer has sent a PING. Server: counts a strike if it came too early, and expels the peer for too many. */
void arpc_link_ping_received(struct arpc_link *link);
/* A PING was answered; `opaque` are its 8 bytes, which tell whether it was the keepalive's, the drain's or another. */
void arpc_link_ping_answered(struct arpc_link *link, const uint8_t *opaque);
/* The peer has sent GOAWAY. Client: after "too_many_pings" the channel's keepalive waits twice as long. */
void arpc_link_goaway_received(struct arpc_link *link, uint32_t h2_code, const uint8_t *debug, size_t size);
/* Whether a request with this id comes after the final GOAWAY, and so is not served. */
bool arpc_link_is_too_late(const struct arpc_link *link, int32_t stream_id);
/*
 * Refuses late_stream, if there is one, with RST_STREAM. To be called once nghttp2 is done with its header block:
 * before that nghttp2 takes the stream for idle.
 */
void arpc_link_refuse_late(struct arpc_link *link);

#endif
