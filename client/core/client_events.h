/* The events of the worker's state machine (client_core.h): the user's requests, and what the servers answered. */
#ifndef AMPCLIENT_CORE_EVENTS_H
#define AMPCLIENT_CORE_EVENTS_H

#include "amp/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AMPCLIENT_SHARDS_MAX     64    /* shards of one model; equal to the server's limit */
#define AMPCLIENT_NAME_MAX       128   /* bytes of a name with the final zero; equal to the server's limit */
#define AMPCLIENT_USER_STATE_MAX 65536 /* bytes of a user state; equal to the server's limit */

/* Names one membership of a worker: the server gives a new incarnation at each Join. */
struct ampclient_incarnation {
    uint64_t fence, counter;
    uint64_t boot_id; /* its secret part (docs/protocol.md), which is only sent back */
};

/* Verdicts have the numbers of the wire; ROLLED_BACK exists only in the client. */
enum ampclient_core_verdict {
    AMPCLIENT_CORE_APPLIED = 1,
    AMPCLIENT_CORE_SKIPPED_OVERFLOW = 2,
    AMPCLIENT_CORE_SKIPPED_EMPTY = 3,
    AMPCLIENT_CORE_LATE = 4,
    AMPCLIENT_CORE_ROLLED_BACK = 5,
};

/* How a step ended: the fields of struct ampclient_result (ampclient.h) that the core needs or passes on. */
struct ampclient_core_result {
    uint64_t epoch, step;
    enum ampclient_core_verdict verdict;
    uint64_t applied, version; /* steps applied so far; the version of the parameters after this step */
    double norm;               /* global 2-norm of the unscaled gradient before clipping; 0 if skipped */
    float clip;                /* clip factor of group 0 */
    float scale, new_scale;    /* loss scale of this step and of the next */
    uint64_t scale_id, new_scale_id;
    uint64_t overflow_parameters; /* number of (parameter, worker) pairs with an overflow */
    uint64_t range_warnings;      /* values whose cast overflowed in the update before this step */
    uint64_t durable_step;        /* last step that survives a crash of the server */
};

/* The answer of Join, with what Join or GetModel says about the model. All pointers are borrowed during the event. */
struct ampclient_join_answer {
    uint32_t rank, world_size;
    uint32_t shards; /* number of shards of the model; 0: the server did not say */
    struct ampclient_incarnation incarnation;
    uint64_t epoch, step; /* the epoch of the model, and the step to begin with */
    uint64_t lease_ms;    /* length of the lease that this Join has begun */
    uint32_t parameters_count;
    const uint64_t *elements;  /* [parameters_count] */
    uint64_t block_elements;   /* elements of every block of the flat space but the last */
    enum amp_dtype cast;       /* dtype of pulled parameters */
    uint64_t restored_step;    /* last step of the checkpoint that the epoch began from */
    const uint8_t *user_state; /* of this rank in restored_step */
    uint32_t user_state_size;
};

/* The header of a Pull's answer: which version its blocks have. Their dtype is that of the ampclient_out_pull. */
struct ampclient_pull_header {
    uint64_t epoch, step, version;
    uint64_t scale_id;
    float scale;
    const void *place; /* in_memory pulls: the version in the mapped copy, while a worker may use it; else NULL */
};

/* Blocks first to first + count - 1 of the flat space. */
struct ampclient_range {
    uint64_t first, count;
};

enum ampclient_event_type {
    /* The user's requests, one at a time. Each but INTERRUPT is answered by AMPCLIENT_OUT_USER_DONE. */
    AMPCLIENT_EVENT_JOIN = 1,
    AMPCLIENT_EVENT_STEP_BEGIN,
    AMPCLIENT_EVENT_STEP_END,
    AMPCLIENT_EVENT_PULL_LATEST,
    AMPCLIENT_EVENT_LEAVE,
    AMPCLIENT_EVENT_GATHER,    /* answered when the parameters of u.unit are in memory */
    AMPCLIENT_EVENT_DRAIN,     /* units: answered with 0 when gradients that were handed in are not read any more */
    AMPCLIENT_EVENT_INTERRUPT, /* the user stops waiting: the request ends as at its deadline, with AMP_ECANCELLED */
    /* What comes from the network, and the timer. */
    AMPCLIENT_EVENT_PULL_HEADER = 20, /* u.header has arrived on a Pull */
    AMPCLIENT_EVENT_PULL_BLOCK,       /* block u.block is in memory and its checksum matched */
    AMPCLIENT_EVENT_PUSH_STATE,       /* u.push_state, the answer of GET_PUSH_STATE; comes before its ENDED (code 0) */
    AMPCLIENT_EVENT_PUSH_DRAINED,     /* units: all blocks named on that push were sent, and their memory is free */
    AMPCLIENT_EVENT_ENDED,            /* the call has ended as u.ended says */
    AMPCLIENT_EVENT_TICK,             /* the time of AMPCLIENT_OUT_TIMER has come */
};

/* How a call ended. With code 0 the member of u that belongs to the kind of call is set. */
struct ampclient_ended {
    int code;             /* 0 or AMP_E */
    const char *reason;   /* reason of the ErrorInfo, or "" */
    const char *text;     /* sentence of the server or of the I/O layer, or "" */
    uint64_t epoch, step; /* ABORTED: where the model is, from the details; 0, 0 if not given */
    uint64_t retry_ms;    /* delay of the RetryInfo; 0: none */
    union {
        struct ampclient_join_answer join;
        struct {
            uint64_t epoch, step;
            bool valid;              /* incarnation_valid of the answer */
            const char *taken_by;    /* sentence about the other process that holds the rank; NULL or "": none does */
            const char *waiting_for; /* what the model waits for; NULL or "": nothing */
        } keep_alive;
        struct ampclient_core_result push;
    } u;
};

/* All pointers are borrowed during ampclient_core_step. */
struct ampclient_event {
    enum ampclient_event_type type;
    uint64_t call; /* network events: the number of the call, from the output that began it */
    union {
        struct ampclient_pull_header header;
        uint64_t block;
        uint32_t unit;
        uint64_t waited_ms; /* JOIN, STEP_BEGIN: how much of its time limit had passed before the request */
        struct {
            const struct ampclient_range *ranges; /* blocks that the shard has */
            uint64_t ranges_count;
        } push_state;
        struct ampclient_ended ended;
    } u;
};

#endif
