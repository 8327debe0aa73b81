/* What the worker's machine is told: the user's requests, and what the servers answered. See client_core.h. */
#ifndef AMPCLIENT_CORE_EVENTS_H
#define AMPCLIENT_CORE_EVENTS_H

#include "amp/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AMPCLIENT_SHARDS_MAX     64    /* endpoints of one model, as the server's IO_CLUSTER_SHARDS_MAX */
#define AMPCLIENT_NAME_MAX       128   /* as the server's */
#define AMPCLIENT_USER_STATE_MAX 65536 /* as the server's */

/* One life of a worker, as the server gave it. */
struct ampclient_incarnation {
    uint64_t fence, counter;
};

/* Verdicts have the numbers of the wire. ROLLED_BACK is the client's own. */
enum ampclient_core_verdict {
    AMPCLIENT_CORE_APPLIED = 1,
    AMPCLIENT_CORE_SKIPPED_OVERFLOW = 2,
    AMPCLIENT_CORE_SKIPPED_EMPTY = 3,
    AMPCLIENT_CORE_LATE = 4,
    AMPCLIENT_CORE_ROLLED_BACK = 5,
};

struct ampclient_core_result {
    uint64_t epoch, step;
    enum ampclient_core_verdict verdict;
    uint64_t applied, version;
    double norm;
    float clip; /* of group 0 */
    float scale, new_scale;
    uint64_t scale_id, new_scale_id;
    uint64_t overflow_parameters;
    uint64_t range_warnings;
    uint64_t durable_step;
};

/* Answer of Join, with what GetModel or Join tells of the model. */
struct ampclient_join_answer {
    uint32_t rank, world_size;
    uint32_t shards; /* of the model; 0: not told */
    struct ampclient_incarnation incarnation;
    uint64_t epoch, step; /* the step to begin with */
    uint64_t lease_ms;
    uint32_t parameters_count;
    const uint64_t *elements; /* [parameters_count] */
    uint64_t block_elements;
    enum amp_dtype cast;    /* of pulls */
    uint64_t restored_step; /* last step of the checkpoint that the epoch began from */
    const uint8_t *user_state;
    uint32_t user_state_size;
};

struct ampclient_pull_header {
    uint64_t epoch, step, version;
    uint64_t scale_id;
    float scale;
    enum amp_dtype dtype;
    const void *place; /* of an in_memory pull: where the version lies, as long as it is a worker's; else NULL */
};

struct ampclient_range {
    uint64_t first, count;
};

enum ampclient_event_type {
    /* the user's requests; each but USER_STATE and INTERRUPT ends with AMPCLIENT_OUT_USER_DONE. One at a time */
    AMPCLIENT_EVENT_JOIN = 1,
    AMPCLIENT_EVENT_STEP_BEGIN,
    AMPCLIENT_EVENT_STEP_END,
    AMPCLIENT_EVENT_PULL_LATEST,
    AMPCLIENT_EVENT_LEAVE,
    AMPCLIENT_EVENT_USER_STATE, /* u.user_state, copied */
    AMPCLIENT_EVENT_GATHER,     /* u.unit: until its parameters are here */
    AMPCLIENT_EVENT_DRAIN,      /* units: until the gradients that were handed in are not read any more */
    AMPCLIENT_EVENT_INTERRUPT,  /* the user waits no longer: the request ends as at its deadline, AMP_ECANCELLED */
    /* from the network */
    AMPCLIENT_EVENT_PULL_HEADER = 20, /* u.header */
    AMPCLIENT_EVENT_PULL_BLOCK,       /* u.block is in memory and its checksum matched */
    AMPCLIENT_EVENT_PUSH_STATE,       /* u.push_state: before the ENDED (code 0) of that call */
    AMPCLIENT_EVENT_PUSH_DRAINED,     /* units: the blocks named on that call have left, their memory is free */
    AMPCLIENT_EVENT_ENDED,            /* u.ended */
    AMPCLIENT_EVENT_TICK,             /* the time of AMPCLIENT_OUT_TIMER has come */
};

/* How a call ended. Code 0: the member of u that belongs to the kind of call is set. */
struct ampclient_ended {
    int code;
    const char *reason;   /* ErrorInfo reason, or "" */
    const char *text;     /* or "" */
    uint64_t epoch, step; /* of the details of ABORTED; 0, 0 if not given */
    uint64_t retry_ms;    /* RetryInfo, or 0 */
    union {
        struct ampclient_join_answer join;
        struct {
            uint64_t epoch, step;
            bool valid;              /* incarnation_valid of the answer */
            const char *taken_by;    /* sentence on the other process that holds the rank; NULL or "": none does */
            const char *waiting_for; /* what the model waits for; NULL or "": nothing */
        } keep_alive;
        struct ampclient_core_result push;
    } u;
};

struct ampclient_event {
    enum ampclient_event_type type;
    uint64_t call; /* of network events */
    union {
        struct {
            const void *data;
            size_t size; /* at most AMPCLIENT_USER_STATE_MAX */
        } user_state;
        struct ampclient_pull_header header;
        uint64_t block;
        uint32_t unit;
        struct {
            const struct ampclient_range *ranges;
            uint64_t ranges_count;
            bool complete; /* the server has the trailer too */
        } push_state;
        struct ampclient_ended ended;
    } u;
};

#endif
