/*
 * One HTTP/2 connection without I/O, and the calls on it. Internal to rpc/.
 *
 * A link takes received bytes, gives bytes to send, and asks for the time; its owner (io/conn.c, or a test that joins
 * two links in memory) moves the bytes. It never acts by itself: what a call asks for is noted, the owner is woken, and
 * arpc_link_flush does it. So nghttp2 is never re-entered from its own callbacks, and no callback of a user runs inside
 * arpc_call_*. All functions run on the owner's thread.
 *
 * Order of use, as often as needed: arpc_link_receive, arpc_link_tick; then arpc_link_flush until it says that nothing
 * is left; then arpc_link_produce and, when those bytes have gone, arpc_batch_done.
 */
#ifndef ARPC_H2_LINK_H
#define ARPC_H2_LINK_H

#include "base/list.h"
#include "rpc/arpc_call.h"
#include "rpc/arpc_peer.h"
#include "rpc/h2/batch.h"
#include "rpc/h2/life.h"
#include "rpc/h2/link_config.h"
#include "rpc/h2/watch.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct nghttp2_session;

/* Client: for the server's first SETTINGS. A server has limits.preface_ms for the client's preface and SETTINGS. */
#define ARPC_HANDSHAKE_MS 10000
/* Longest name of a peer, with the final zero: a host name of 255 bytes, brackets and a port. */
#define ARPC_PEER_SIZE 272

/* What the peer has to send in time: preface and first SETTINGS, the acknowledgement of ours, and each header block. */
struct arpc_handshake {
    bool peer_settings;      /* the peer's first SETTINGS are here */
    bool acked;              /* the peer has acknowledged our SETTINGS */
    int32_t header_stream;   /* of the last header block */
    int64_t header_since_ms; /* when the header block under way began, or INT64_MAX */
};

struct arpc_link {
    struct arpc_link_config *config;
    struct arpc_memory *memory;              /* of the session */
    struct nghttp2_session *session;         /* NULL: a parking link, whose calls wait for a connection */
    void (*wake_cb)(struct arpc_link *link); /* asks the owner to call arpc_link_flush soon */
    char peer[ARPC_PEER_SIZE];
    struct arpc_peer peer_info; /* its address is `peer`; the owner fills in the rest */

    struct amp_list calls;   /* all calls that are not GONE */
    struct amp_list dirty;   /* calls that have something for arpc_link_flush to do */
    struct amp_list events;  /* calls whose user is to get a callback */
    struct amp_list refused; /* calls whose message found the queue full, in the order in which `writable` comes */
    struct amp_list waiting; /* client: calls that wait until the peer allows one more stream */
    size_t stream_count;     /* client: streams begun and not over */
    size_t call_count;       /* of `calls` */
    size_t admitted;         /* server: number of calls that admit_cb has let in and that are not GONE */
    bool was_admitted;       /* server: a call was let in, now or before */
    size_t queued;           /* bytes of all calls that have not left */
    size_t buffered;         /* received bytes that paused calls keep */
    size_t uncredited;       /* part of `buffered` for which the connection's window was not reopened */

    struct arpc_batch *batch; /* the batch that arpc_link_produce is filling; else NULL */
    int error;                /* AMP_E: the connection cannot be used any more; 0: it can */
    const char *error_text;   /* the reason, a constant */
    struct arpc_watch watch;
    struct arpc_host *host;    /* of the peer's address; the owner sets it before anything is received */
    struct arpc_host own_host; /* what `host` points to until then */
    enum arpc_abuse abuse;     /* why the connection is being ended, or NONE */
    int64_t next_due_ms;       /* when arpc_link_tick is due; INT64_MAX: never */
    struct arpc_handshake handshake;
    struct arpc_keepalive keepalive;
    struct arpc_age age;
    struct arpc_goaway goaway;
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

/* Makes the link unusable, for this reason (a constant text). Only the first call has an effect. */
void arpc_link_fail(struct arpc_link *link, int code, const char *why);

/*
 * An empty link; without `session` a parking link. `config` must outlive it. 0; AMP_ENOMEM: there is nothing to close.
 */
int arpc_link_init(struct arpc_link *link, struct arpc_link_config *config, void (*wake_cb)(struct arpc_link *),
                   bool session);

/* Frees the link. All its calls are GONE (arpc_link_abort, arpc_link_flush), and all batches are done. */
void arpc_link_close(struct arpc_link *link);

/* Takes received bytes; calls message callbacks. 0, or the link's error: nothing more may be received. */
int arpc_link_receive(struct arpc_link *link, const uint8_t *data, size_t size);

/*
 * Where the bytes that are received next belong, and in *size how many; NULL: anywhere. They may be put there and given
 * to arpc_link_receive from there. Valid until the link is used again.
 */
uint8_t *arpc_link_receive_buffer(struct arpc_link *link, size_t *size);

/* Does what calls asked for and calls users' callbacks, for some of the calls. True: it has to be called again. */
bool arpc_link_flush(struct arpc_link *link);

/* Whether arpc_link_flush has something to do. */
bool arpc_link_has_news(const struct arpc_link *link);

/* Acts on deadlines of calls and of the link. To be called when next_due_ms has come. */
void arpc_link_tick(struct arpc_link *link);

/* The link is about to be closed: ends every call with this status. */
void arpc_link_abort(struct arpc_link *link, int status, const char *message);

/* The connection is lost: a client's calls begin again if they may; all others end UNAVAILABLE. */
void arpc_link_lost(struct arpc_link *link, const char *message);

/* No connection can be made: ends all calls of a parking link that may begin and do not wait for ready. */
void arpc_link_fail_parked(struct arpc_link *link, const char *message);

/* Moves the calls of a parking link that may begin now to one with a session. */
void arpc_link_move(struct arpc_link *from, struct arpc_link *to);

/* Whether a parking link has calls that may begin now. */
bool arpc_link_has_parked(const struct arpc_link *link);

/* Counts and reports an abuse by the peer, without further consequences. */
void arpc_link_count(struct arpc_link *link, enum arpc_abuse cause);

/* Fails the link for an abuse by a peer to which no GOAWAY can be sent: it does not speak HTTP/2, or does not read. */
void arpc_link_drop(struct arpc_link *link, int code, enum arpc_abuse cause);

/* Client: whether further calls may begin: no GOAWAY has come, and stream ids are left. */
bool arpc_link_takes_calls(const struct arpc_link *link);

/* Whether there may be something to send. */
bool arpc_link_has_output(const struct arpc_link *link);

/* Whether nothing is left to do and the connection can be closed. */
bool arpc_link_is_over(const struct arpc_link *link);

#endif
