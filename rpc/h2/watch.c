#include "rpc/h2/watch.h"

#include <string.h>

/* RFC 9113 3.4, 4.1 and 6. */
#define PREFACE_SIZE     24
#define HEAD_SIZE        9
#define FLAG_ACK         0x1
#define FLAG_END_STREAM  0x1
#define FLAG_END_HEADERS 0x4
#define FLAG_PADDED      0x8
enum frame_type {
    TYPE_DATA,
    TYPE_HEADERS,
    TYPE_PRIORITY,
    TYPE_RST_STREAM,
    TYPE_SETTINGS,
    TYPE_PUSH_PROMISE,
    TYPE_PING,
    TYPE_GOAWAY,
    TYPE_WINDOW_UPDATE,
    TYPE_CONTINUATION
};

#define TOKEN 1000
/* The prefix of a gRPC message: DATA in smaller pieces than this counts as a useless frame. */
#define SMALL_DATA 5
/* Nobody pads gRPC: a padded frame below this may hold nothing else. */
#define PADDED_SMALL_DATA (256 + SMALL_DATA)
/* What a frame with payload earns: an update of the stream's window and of the connection's. */
#define EARNED_BY_FRAME 2
/* Bytes that earn one frame more: receivers update their windows in larger steps. */
#define EARNING_BYTES 4096
/* What a new stream earns of PRIORITY frames. */
#define PRIORITIES_BY_STREAM 10

void arpc_bucket_init(struct arpc_bucket *bucket, int64_t burst, int64_t now_ms)
{
    bucket->level = burst * TOKEN;
    bucket->at_ms = now_ms;
}

static void add(struct arpc_bucket *bucket, int64_t burst, int64_t tokens)
{
    int64_t room = burst * TOKEN - bucket->level;
    bucket->level += tokens < room ? tokens : room;
}

void arpc_bucket_fill(struct arpc_bucket *bucket, int64_t burst, int64_t per_s, int64_t now_ms)
{
    int64_t passed_ms = now_ms - bucket->at_ms;
    bucket->at_ms = now_ms;
    if (passed_ms <= 0 || per_s <= 0)
        return;
    /* A second at this rate is TOKEN * per_s, a millisecond per_s. What fills it anyway need not be multiplied. */
    int64_t full_ms = burst * TOKEN / per_s + 1;
    add(bucket, burst, passed_ms >= full_ms ? burst * TOKEN : passed_ms * per_s);
}

void arpc_bucket_earn(struct arpc_bucket *bucket, int64_t burst, int64_t count)
{
    add(bucket, burst, count * TOKEN);
}

bool arpc_bucket_take(struct arpc_bucket *bucket, int64_t burst)
{
    if (burst == 0)
        return true;
    if (bucket->level < TOKEN)
        return false;
    bucket->level -= TOKEN;
    return true;
}

bool arpc_bucket_is_full(const struct arpc_bucket *bucket, int64_t burst)
{
    return bucket->level >= burst * TOKEN;
}

void arpc_bucket_spend(struct arpc_bucket *bucket, int64_t count)
{
    bucket->level -= count * TOKEN;
}

void arpc_watch_init(struct arpc_watch *watch, const struct arpc_limits *limits, bool server, int64_t now_ms)
{
    *watch = (struct arpc_watch){.limits = limits, .preface_left = server ? PREFACE_SIZE : 0};
    arpc_bucket_init(&watch->pings, limits->pings_burst, now_ms);
    arpc_bucket_init(&watch->settings, limits->settings_burst, now_ms);
    arpc_bucket_init(&watch->priorities, limits->priorities_burst, now_ms);
    arpc_bucket_init(&watch->frames, limits->frames_burst, now_ms);
    arpc_bucket_init(&watch->resets, limits->resets_burst, now_ms);
    arpc_bucket_init(&watch->faults, limits->faults_burst, now_ms);
    arpc_bucket_init(&watch->bad_requests, limits->bad_requests_burst, now_ms);
    arpc_bucket_init(&watch->refusals, limits->refusals_burst, now_ms);
}

static void earn(struct arpc_watch *watch, size_t size)
{
    arpc_bucket_earn(&watch->frames, watch->limits->frames_burst, EARNED_BY_FRAME + (int64_t)(size / EARNING_BYTES));
}

static enum arpc_abuse useless(struct arpc_watch *watch)
{
    return arpc_bucket_take(&watch->frames, watch->limits->frames_burst) ? ARPC_ABUSE_NONE : ARPC_ABUSE_FRAMES;
}

static enum arpc_abuse empty(struct arpc_watch *watch)
{
    int64_t most = watch->limits->empty_frames;
    if (most > 0 && ++watch->empties > most)
        return ARPC_ABUSE_EMPTY_FRAMES;
    return useless(watch);
}

static enum arpc_abuse data_frame(struct arpc_watch *watch, uint32_t size, uint8_t flags)
{
    if (size == 0 && (flags & FLAG_END_STREAM) == 0)
        return empty(watch);
    watch->empties = 0;
    bool small = size < SMALL_DATA || ((flags & FLAG_PADDED) != 0 && size < PADDED_SMALL_DATA);
    if (small)
        return useless(watch);
    earn(watch, size);
    return ARPC_ABUSE_NONE;
}

/* HEADERS, PUSH_PROMISE and CONTINUATION: their bytes add up to a header block. */
static enum arpc_abuse block_frame(struct arpc_watch *watch, uint32_t size, uint8_t flags)
{
    watch->block += size;
    if (watch->limits->header_block > 0 && watch->block > (uint64_t)watch->limits->header_block)
        return ARPC_ABUSE_HEADER_BLOCK;
    if (size == 0 && (flags & FLAG_END_HEADERS) == 0)
        return empty(watch);
    return ARPC_ABUSE_NONE;
}

static enum arpc_abuse headers_frame(struct arpc_watch *watch, uint32_t size, uint8_t flags)
{
    watch->continuations = 0;
    watch->block = 0;
    if (size > 0) {
        watch->empties = 0;
        earn(watch, 0);
        arpc_bucket_earn(&watch->priorities, watch->limits->priorities_burst, PRIORITIES_BY_STREAM);
    }
    return block_frame(watch, size, flags);
}

static enum arpc_abuse continuation_frame(struct arpc_watch *watch, uint32_t size, uint8_t flags)
{
    int64_t most = watch->limits->continuations;
    if (most > 0 && ++watch->continuations > most)
        return ARPC_ABUSE_CONTINUATIONS;
    return block_frame(watch, size, flags);
}

/* nghttp2 takes memory for all of it as soon as it begins, whether or not it ever ends. */
static enum arpc_abuse goaway_frame(struct arpc_watch *watch, uint32_t size)
{
    bool fits = watch->limits->header_block == 0 || size <= (uint64_t)watch->limits->header_block;
    return fits ? useless(watch) : ARPC_ABUSE_HEADER_BLOCK;
}

static enum arpc_abuse take(struct arpc_bucket *bucket, int64_t burst, enum arpc_abuse cause)
{
    return arpc_bucket_take(bucket, burst) ? ARPC_ABUSE_NONE : cause;
}

static enum arpc_abuse look_at_frame(struct arpc_watch *watch)
{
    const struct arpc_limits *limits = watch->limits;
    uint32_t size = (uint32_t)watch->head[0] << 16 | (uint32_t)watch->head[1] << 8 | watch->head[2];
    uint8_t flags = watch->head[4];
    watch->payload_left = size;
    watch->frame_count++;
    switch (watch->head[3]) {
    case TYPE_DATA:
        return data_frame(watch, size, flags);
    case TYPE_HEADERS:
        return headers_frame(watch, size, flags);
    case TYPE_CONTINUATION:
        return continuation_frame(watch, size, flags);
    case TYPE_PRIORITY:
        return take(&watch->priorities, limits->priorities_burst, ARPC_ABUSE_PRIORITIES);
    case TYPE_SETTINGS:
        if ((flags & FLAG_ACK) == 0)
            return take(&watch->settings, limits->settings_burst, ARPC_ABUSE_SETTINGS);
        return useless(watch);
    case TYPE_PING:
        if ((flags & FLAG_ACK) == 0)
            return take(&watch->pings, limits->pings_burst, ARPC_ABUSE_PINGS);
        return useless(watch);
    case TYPE_GOAWAY:
        return goaway_frame(watch, size);
    default: /* also those that are not known */
        return useless(watch);
    }
}

static void fill(struct arpc_watch *watch, int64_t now_ms)
{
    const struct arpc_limits *limits = watch->limits;
    if (now_ms == watch->frames.at_ms)
        return;
    arpc_bucket_fill(&watch->frames, limits->frames_burst, limits->frames_per_s, now_ms);
    arpc_bucket_fill(&watch->pings, limits->pings_burst, limits->pings_per_s, now_ms);
    arpc_bucket_fill(&watch->settings, limits->settings_burst, limits->settings_per_s, now_ms);
    arpc_bucket_fill(&watch->priorities, limits->priorities_burst, limits->priorities_per_s, now_ms);
}

enum arpc_abuse arpc_watch_scan(struct arpc_watch *watch, const uint8_t *data, size_t size, int64_t now_ms)
{
    fill(watch, now_ms);
    watch->byte_count += size;
    while (size > 0) {
        uint32_t *left = watch->preface_left > 0 ? &watch->preface_left : &watch->payload_left;
        size_t step = *left < size ? *left : size;
        if (step > 0) {
            *left -= (uint32_t)step;
        } else {
            step = HEAD_SIZE - (size_t)watch->head_used < size ? HEAD_SIZE - (size_t)watch->head_used : size;
            memcpy(watch->head + watch->head_used, data, step);
            watch->head_used = (uint8_t)(watch->head_used + step);
        }
        data += step;
        size -= step;
        if (watch->head_used < HEAD_SIZE)
            continue;
        watch->head_used = 0;
        enum arpc_abuse cause = look_at_frame(watch);
        if (cause != ARPC_ABUSE_NONE)
            return cause;
    }
    return ARPC_ABUSE_NONE;
}

size_t arpc_watch_data_left(const struct arpc_watch *watch, int32_t *stream_id)
{
    const uint8_t *head = watch->head;
    if (watch->preface_left > 0 || watch->payload_left == 0 || head[3] != TYPE_DATA || (head[4] & FLAG_PADDED) != 0)
        return 0;
    *stream_id =
        (int32_t)((uint32_t)(head[5] & 0x7f) << 24 | (uint32_t)head[6] << 16 | (uint32_t)head[7] << 8 | head[8]);
    return watch->payload_left;
}

void arpc_watch_sent(struct arpc_watch *watch, size_t size)
{
    earn(watch, size);
    arpc_bucket_earn(&watch->pings, watch->limits->pings_burst, 1);
}

enum arpc_abuse arpc_watch_reset(struct arpc_watch *watch, int64_t now_ms)
{
    const struct arpc_limits *limits = watch->limits;
    arpc_bucket_fill(&watch->resets, limits->resets_burst, limits->resets_per_s, now_ms);
    return take(&watch->resets, limits->resets_burst, ARPC_ABUSE_RESETS);
}

enum arpc_abuse arpc_watch_fault(struct arpc_watch *watch, int64_t now_ms)
{
    const struct arpc_limits *limits = watch->limits;
    arpc_bucket_fill(&watch->faults, limits->faults_burst, limits->faults_per_s, now_ms);
    return take(&watch->faults, limits->faults_burst, ARPC_ABUSE_FAULTS);
}

enum arpc_abuse arpc_watch_bad_request(struct arpc_watch *watch, int64_t now_ms)
{
    const struct arpc_limits *limits = watch->limits;
    arpc_bucket_fill(&watch->bad_requests, limits->bad_requests_burst, limits->bad_requests_per_s, now_ms);
    return take(&watch->bad_requests, limits->bad_requests_burst, ARPC_ABUSE_BAD_REQUESTS);
}

enum arpc_abuse arpc_watch_refusal(struct arpc_watch *watch, int64_t now_ms)
{
    const struct arpc_limits *limits = watch->limits;
    arpc_bucket_fill(&watch->refusals, limits->refusals_burst, limits->refusals_per_s, now_ms);
    return take(&watch->refusals, limits->refusals_burst, ARPC_ABUSE_REFUSALS);
}
