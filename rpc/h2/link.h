/*
 * One HTTP/2 connection without I/O, and the calls on it. Internal to rpc/.
 *
 * A link takes received bytes, gives bytes to send, and asks for the time; who owns it (io/conn.c, or a test that joins
 * two links in memory) moves the bytes. It never acts by itself: what a call asks for is noted, the owner is woken, and
 * arpc_link_flush does it. So nghttp2 is never re-entered from its own callbacks, and no callback of a user
 * runs inside arpc_call_*.
 *
 * Order of use, as often as needed: arpc_link_receive, arpc_link_tick; then arpc_link_flush until it says that nothing is
 * left; then arpc_link_produce and, when those bytes have gone, arpc_batch_done.
 */
#ifndef ARPC_H2_LINK_H
#define ARPC_H2_LINK_H

#include "base/err.h"
#include "base/list.h"
#include "base/random.h"
#include "rpc/arpc_call.h"
#include "rpc/arpc_limits.h"
#include "rpc/arpc_peer.h"
#include "rpc/h2/watch.h"
#include "rpc/wire/retry.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct nghttp2_session;
struct arpc_out;
struct arpc_health;
struct arpc_reflection;
struct arpc_method_stats;

/* A row, and what is counted of its calls. */
struct arpc_method_row {
    const struct arpc_method *method;
    struct arpc_method_stats *stats; /* owned by the table */
};

/* The rows of a server, sorted by name. */
struct arpc_method_table {
    struct arpc_method_row *rows;
    size_t count;
};

/* Adds rows. 0, AMP_ENOMEM, AMP_EINVAL (a name twice, a handler without `closed`): the table is as before. */
int arpc_method_table_add(struct arpc_method_table *table, const struct arpc_method *methods, size_t count,
                          struct amp_error *error);
void arpc_method_table_close(struct arpc_method_table *table);
/* The row of "/service/name", or NULL. The match is exact. Valid until rows are added; what it points to longer. */
const struct arpc_method_row *arpc_method_table_find(const struct arpc_method_table *table, const uint8_t *path,
                                                     size_t size);

/* What all links of one server or channel share. */
struct arpc_link_config {
    bool server;
    int64_t (*now_cb)(void *clock);    /* milliseconds of a clock that never goes back */
    int64_t (*now_us_cb)(void *clock); /* microseconds, for durations of calls; NULL: from now_cb */
    void *clock;
    void *arg;                  /* arpc_call_server_arg */
    struct arpc_health *health; /* the state of the services that come with a server */
    struct arpc_reflection *reflection;
    struct arpc_method_table methods;
    int (*admit_cb)(struct arpc_call *call, void *arg, struct amp_error *error);
    const char *const *keep_metadata;
    size_t max_streams;
    size_t max_metadata_bytes;
    size_t max_metadata_count;
    size_t max_queued;
    size_t stream_window;
    bool compress;   /* server: answers go compressed to clients that accept it */
    int64_t idle_ms; /* 0: none */
    int64_t keepalive_ms;
    int64_t keepalive_timeout_ms; /* 0: ARPC_PING_TIMEOUT_MS */
    int64_t min_ping_interval_ms; /* server; 0: PINGs are not counted */
    int64_t max_age_ms;           /* server; 0: none. Each link's own is this +-10 % */
    int64_t max_age_grace_ms;     /* server; 0: none */
    uint64_t jitter;              /* of the ages: the state of a generator */
    bool keepalive_without_calls; /* client */
    struct arpc_link *parking;    /* client: where calls go that are to begin again; NULL: none does */
    struct arpc_retry_throttle throttle;
    struct amp_random *random; /* of the waits before calls begin again */
    size_t retained;           /* bytes that calls keep to send them again */
    size_t max_retained;       /* of all calls */
    size_t max_retained_call;  /* of each */
    int64_t write_stall_ms;
    const struct arpc_limits *limits; /* NULL: arpc_limits_default; what has a field above is taken from there */
    void (*abuse_cb)(const char *peer, enum arpc_abuse cause, uint64_t unreported, void *arg);
    void (*retired_cb)(const char *peer, const char *why, void *arg);
    struct arpc_bucket reports; /* calls of abuse_cb */
    uint64_t unreported;        /* since the last of them */
    uint64_t abuses[ARPC_ABUSE_COUNT];
    void *memory; /* nghttp2_mem for its sessions: tests let it run out; NULL: the C library's */
    uint64_t calls_total;
    size_t calls;
};

/* Longest name of a peer, with the final zero: a host name of 255 bytes, brackets and a port. */
#define ARPC_PEER_SIZE 272

struct arpc_link {
    struct arpc_link_config *config;
    struct arpc_memory *memory;              /* of the session */
    struct nghttp2_session *session;         /* NULL: a parking link, whose calls wait for a connection */
    void (*wake_cb)(struct arpc_link *link); /* please flush soon */
    char peer[ARPC_PEER_SIZE];
    struct arpc_peer peer_info; /* its address is `peer`; who owns the link fills in the rest */

    struct amp_list calls;   /* all that are not gone */
    struct amp_list dirty;   /* those that asked for something */
    struct amp_list events;  /* those that have something to tell their user */
    struct amp_list refused; /* those whose message found the queue full, in the order in which they are told of room */
    struct amp_list waiting; /* client: those that wait for a place among the streams that the peer allows */
    size_t stream_count;     /* client: streams begun and not over */
    size_t call_count;
    size_t queued;     /* unsent bytes of all calls */
    size_t held;       /* received bytes that paused calls keep */
    size_t uncredited; /* of held, what the connection's window was not reopened for */

    struct arpc_batch *batch; /* being filled */
    int error;                /* AMP_E: the connection is beyond use */
    const char *error_text;   /* why; a constant */
    bool peer_settings;       /* the peer's first SETTINGS are here */
    bool settings_acked;      /* the peer has taken ours */
    bool peer_goaway;
    bool farewell; /* the peer's GOAWAY was at fault: it goes, and it is no attack */
    struct arpc_watch watch;
    enum arpc_abuse abuse;  /* why the connection is being ended, or NONE */
    int64_t leave_due_ms;   /* a client that said GOAWAY closes the connection until then; INT64_MAX: none has said it */
    int64_t goodbye_due_ms; /* by when its GOAWAY has to be taken; INT64_MAX: none is due */
    enum { ARPC_DRAIN_NO, ARPC_DRAIN_NOTICE, ARPC_DRAIN_FINAL } drain;
    const char *drain_why; /* debug data of the final GOAWAY, a constant; NULL: none */
    int32_t last_stream;   /* that the final GOAWAY promised to serve */
    int32_t late_stream;   /* a request that came after it and is to be refused; 0: none */
    bool expelled;         /* a GOAWAY with an error is queued: nothing of the peer is taken any more */
    bool expulsion_sent;   /* ... and it is in a batch: nothing more is produced */
    int64_t peer_ping_ms;  /* server: when the peer last sent a PING, or INT64_MIN */
    unsigned ping_strikes; /* PINGs that came too early, since the last HEADERS or DATA of ours */
    bool sent_since_ping;  /* HEADERS or DATA of ours */
    int64_t next_due_ms;
    int64_t opened_ms;
    int64_t age_due_ms;      /* the connection is drained then; INT64_MAX: never */
    int64_t cut_due_ms;      /* the connection is cut then; INT64_MAX: never */
    int64_t received_ms;     /* when a byte was last received */
    int64_t ping_ms;         /* when the unanswered PING was sent, or INT64_MAX */
    int64_t asked_ms;        /* when a call last asked whether the peer lives; 0: none has */
    bool asked;              /* a keepalive's PING is unanswered */
    int64_t idle_since_ms;   /* INT64_MAX while there are calls */
    int32_t header_stream;   /* of the last header block */
    int64_t header_since_ms; /* when the header block under way began, or INT64_MAX */
};

/* The time now. */
static inline int64_t arpc_link_now(const struct arpc_link *link)
{
    return link->config->now_cb(link->config->clock);
}

/* A wait that begins at from_ms. INT64_MAX, which is never, stays it, and what would be later is it. */
static inline int64_t arpc_after(int64_t from_ms, int64_t wait_ms)
{
    return wait_ms > 0 && from_ms > INT64_MAX - wait_ms ? INT64_MAX : from_ms + wait_ms;
}

/* The link is beyond use, for this reason (a constant text). The first one counts. */
void arpc_link_fail(struct arpc_link *link, int code, const char *why);

/* 10 s for the preface and the first SETTINGS, and for each header block: a peer that is slower is not a gRPC peer. */
#define ARPC_HANDSHAKE_MS 10000
/* gRFC A8: time for the answer to a keepalive PING. */
#define ARPC_PING_TIMEOUT_MS 20000
/* gRFC A8: this many PINGs that come too early are forgiven, the next one is answered with GOAWAY. */
#define ARPC_PING_STRIKES_MAX 2
/* No keepalive sends PINGs this close together: gRFC A8 has 10 s as the least interval of a client. */
#define ARPC_PING_FLOOD_MS 1000

/*
 * An empty link; with `session` false a parking link. 0 or AMP_ENOMEM (nothing to close then).
 */
int arpc_link_init(struct arpc_link *link, struct arpc_link_config *config, void (*wake_cb)(struct arpc_link *),
                   bool session);

/* Frees it. All its calls have been ended (arpc_link_abort, arpc_link_flush) and all batches are done. */
void arpc_link_close(struct arpc_link *link);

/* Takes received bytes; calls message callbacks. 0, or the link's error: nothing more may be received. */
int arpc_link_receive(struct arpc_link *link, const uint8_t *data, size_t size);

/*
 * Where the bytes that are received next belong, and in *size how many; NULL: anywhere. They may be put there and given to
 * arpc_link_receive from there. Valid until the link is used again.
 */
uint8_t *arpc_link_place(struct arpc_link *link, size_t *size);

/* Does what calls asked for and tells users what happened, for some of them. True if it has to be called again. */
bool arpc_link_flush(struct arpc_link *link);

/* Whether calls asked for something, or users are still to be told. */
bool arpc_link_has_news(const struct arpc_link *link);

/* Deadlines of calls and of the link. To be called when next_due_ms has come. */
void arpc_link_tick(struct arpc_link *link);

/* Ends every call with this status. The stream of each goes with the link. */
void arpc_link_abort(struct arpc_link *link, int status, const char *message);

/* The connection is lost: a client's calls begin again if they may; the others end with UNAVAILABLE. */
void arpc_link_lost(struct arpc_link *link, const char *message);

/* No connection can be made: ends all calls of a parking link that may begin and do not wait for ready. */
void arpc_link_fail_parked(struct arpc_link *link, const char *message);

/* Moves the calls of a parking link that may begin now to one with a session. */
void arpc_link_move(struct arpc_link *from, struct arpc_link *to);

/* Whether a parking link has calls that may begin now. */
bool arpc_link_has_parked(const struct arpc_link *link);

/* Begins to refuse new streams: GOAWAY, PING, and the final GOAWAY after its answer. */
void arpc_link_drain(struct arpc_link *link);

/* Ends the connection: GOAWAY with an HTTP/2 error code and a text (a constant), then nothing more. */
void arpc_link_expel(struct arpc_link *link, uint32_t h2_code, const char *debug);

/* Counts and reports what a peer did; nothing else happens to it. */
void arpc_link_count(struct arpc_link *link, enum arpc_abuse cause);

/* Fails the link for this cause: a peer that did not get as far as HTTP/2, or does not read. */
void arpc_link_drop(struct arpc_link *link, int code, enum arpc_abuse cause);

/* Client: whether further calls may begin: no GOAWAY has come, and stream ids are left. */
bool arpc_link_takes_calls(const struct arpc_link *link);

/* Whether there may be something to send. */
bool arpc_link_has_output(const struct arpc_link *link);

/* Whether nothing is left to do and the connection can be closed. */
bool arpc_link_is_over(const struct arpc_link *link);

/* ---- bytes to send ---- */

/* Slots of one writev, and what control frames and frame headers of one batch may take. */
#define ARPC_BATCH_SLOTS   512
#define ARPC_BATCH_SCRATCH ((size_t)64 << 10)
/* Scratch that the next frame may need: a whole header frame of 16 KiB, or the small pieces of a DATA frame. */
#define ARPC_FRAME_SCRATCH ((size_t)20 << 10)
/* A batch ends when it has this much: what is queued behind it in the socket delays every other stream. */
#define ARPC_BATCH_BYTES ((size_t)1 << 20)
/* Largest frame that is sent (nghttp2 keeps a buffer of that size even for NO_COPY); so no slot is longer. */
#define ARPC_FRAME_OUT_MAX ((size_t)256 << 10)

/* Bytes of one message in a batch: they lie in the slots from first_slot to the first_slot of the next pin. */
struct arpc_batch_pin {
    struct arpc_out *out;
    size_t bytes;
    size_t first_slot;
};

/*
 * Bytes to send, in order. The memory they lie in stays valid until arpc_batch_done; but arpc_call_blank may make slots
 * point elsewhere meanwhile, so who writes them reads each slot anew after anything else has run. A link has one batch
 * at a time.
 */
struct arpc_batch {
    size_t count;
    size_t bytes;
    size_t pin_count;
    size_t scratch_used;
    size_t most; /* bytes, after which it is full; at most ARPC_BATCH_BYTES; 0 is that too */
    struct iovec slots[ARPC_BATCH_SLOTS];
    struct arpc_batch_pin pins[ARPC_BATCH_SLOTS];
    uint8_t scratch[ARPC_BATCH_SCRATCH];
};

/* Fills an empty batch; it is empty afterwards if there is nothing to send. 0 or the link's error. */
int arpc_link_produce(struct arpc_link *link, struct arpc_batch *batch);

/* The batch has left, or never will; calls release callbacks. It is empty then. */
void arpc_batch_done(struct arpc_link *link, struct arpc_batch *batch);

#endif
