/*
 * Counts the frames of a peer before nghttp2 sees them: it parses frame headers, and has a token bucket for each kind
 * of frame that makes this side work and carries no data. No I/O; the caller gives the time. Internal to rpc/.
 *
 * nghttp2 1.52 has no such limits, counts CONTINUATIONs by receive call instead of by frame, and does not report the
 * frames that it ignores.
 */
#ifndef ARPC_H2_WATCH_H
#define ARPC_H2_WATCH_H

#include "rpc/arpc_limits.h"

/* A token bucket. `level` is in thousandths of a token, so that a rate per second is a whole number per millisecond. */
struct arpc_bucket {
    int64_t level;
    int64_t at_ms;
};

/* A full bucket. */
void arpc_bucket_init(struct arpc_bucket *bucket, int64_t burst, int64_t now_ms);
/* Adds the tokens that have come back since the bucket was last filled. */
void arpc_bucket_fill(struct arpc_bucket *bucket, int64_t burst, int64_t per_s, int64_t now_ms);
/* Adds `count` tokens, up to the burst. */
void arpc_bucket_earn(struct arpc_bucket *bucket, int64_t burst, int64_t count);
/* Takes one token; false if there is none. A burst of 0 is no limit. */
bool arpc_bucket_take(struct arpc_bucket *bucket, int64_t burst);
/* Whether the bucket is full. */
bool arpc_bucket_is_full(const struct arpc_bucket *bucket, int64_t burst);
/* Takes `count` tokens, even below 0: for work that was done already. */
void arpc_bucket_spend(struct arpc_bucket *bucket, int64_t count);

struct arpc_watch {
    const struct arpc_limits *limits;
    struct arpc_bucket pings;
    struct arpc_bucket settings;
    struct arpc_bucket priorities;
    struct arpc_bucket frames;
    struct arpc_bucket resets;
    struct arpc_bucket faults;
    struct arpc_bucket refusals;
    struct arpc_bucket bad_requests;
    uint32_t preface_left; /* bytes of the client's preface that are still to come */
    uint32_t payload_left; /* of the frame under way */
    uint8_t head[9];
    uint8_t head_used;
    uint32_t continuations; /* of the header block under way */
    uint64_t block;         /* its bytes */
    uint32_t empties;       /* empty frames in a row */
    uint64_t frame_count;   /* all that were seen */
    uint64_t byte_count;
};

/* Full buckets; `limits` must outlive it. `server`: the peer sends the client's preface first. */
void arpc_watch_init(struct arpc_watch *watch, const struct arpc_limits *limits, bool server, int64_t now_ms);

/* Looks at received bytes. NONE, or the first limit that they break: the peer is not to be served any more. */
enum arpc_abuse arpc_watch_scan(struct arpc_watch *watch, const uint8_t *data, size_t size, int64_t now_ms);

/* Bytes still to come of the DATA frame under way, if it has no padding, and its stream; 0: there is no such frame. */
size_t arpc_watch_data_left(const struct arpc_watch *watch, int32_t *stream_id);

/* HEADERS or DATA of `size` bytes were sent: the peer gets tokens for PING and WINDOW_UPDATE in answer to them. */
void arpc_watch_sent(struct arpc_watch *watch, size_t size);

/*
 * Count what only nghttp2 sees: a call reset before its answer, a fault, a request that cannot be served, a refused
 * stream. NONE, or the cause if the limit is broken.
 */
enum arpc_abuse arpc_watch_reset(struct arpc_watch *watch, int64_t now_ms);
enum arpc_abuse arpc_watch_fault(struct arpc_watch *watch, int64_t now_ms);
enum arpc_abuse arpc_watch_bad_request(struct arpc_watch *watch, int64_t now_ms);
enum arpc_abuse arpc_watch_refusal(struct arpc_watch *watch, int64_t now_ms);

#endif
