/*
 * The push of the step in hand: what the user has handed in, which blocks each shard has been sent, and what the shards
 * answered. Private to client/core; all functions are for a handle that has joined, unless they say otherwise.
 */
#ifndef AMPCLIENT_CORE_PUSH_H
#define AMPCLIENT_CORE_PUSH_H

#include "base/err.h"
#include "client/core/client_events.h"
#include "client/core/client_metrics.h"

struct ampclient_core;

/* Arrays of blocks and parameters are indexed as the flat space; arrays of shards by the shard. */
struct ampclient_push {
    uint64_t calls[AMPCLIENT_SHARDS_MAX];  /* number of the Push stream; 0: none is open */
    uint64_t states[AMPCLIENT_SHARDS_MAX]; /* number of the GetPushState call; 0: none is under way */
    bool asked[AMPCLIENT_SHARDS_MAX];      /* before a stream opens: it is known which blocks the shard has */
    bool ended[AMPCLIENT_SHARDS_MAX];      /* the trailer was sent on the present stream */
    bool outdated[AMPCLIENT_SHARDS_MAX];   /* the present stream's header may have an older user state than the core */
    bool answered[AMPCLIENT_SHARDS_MAX];   /* the shard has answered with the step's result */
    uint32_t resends;     /* streams that began again since a block came damaged; at most AMPCLIENT_BLOCK_RESENDS_MAX */
    enum amp_dtype dtype; /* of the gradients, F32 if they are accumulated; AMP_DTYPE_NONE: none was pushed yet */
    const void **gradients; /* [parameters] the user's, borrowed, or in sums; NULL: not pushed, or let go */
    uint32_t *given;        /* [parameters] pushes so far */
    uint32_t *missing;      /* [blocks] number of its parameters that are not fully pushed yet */
    uint8_t *sent;          /* [blocks] 1: named on the present stream, or the shard has it already */
    /* Each shard's blocks that may be ready and not sent; all its other blocks are sent, or not ready. */
    struct ampclient_range due[AMPCLIENT_SHARDS_MAX];
    float *sums;          /* accumulate > 1: the sums of the gradients, as a flat space; else NULL */
    uint8_t **edges;      /* units: [blocks] a copy of what was pushed of a block with several parameters, or NULL */
    uint64_t edges_bytes; /* bytes of all edges */
    uint8_t *gone;        /* units: [blocks] 1: the block was sent, and its bytes are the user's again */
    bool drained[AMPCLIENT_SHARDS_MAX]; /* units: all blocks named on the present stream have left this process */
    uint32_t *absent;                   /* [parameters] indices for the trailer, once the step is closed */
    uint32_t absent_count;
    struct ampclient_core_metrics metrics; /* loss and metrics for the trailer */
    bool closed;                           /* step_end was called: nothing more is pushed */
    struct ampclient_core_result result;   /* from a shard that has answered */
    struct amp_error error;                /* code not 0: a failure that ends the push; step_end returns it */
};

/* At the first Join, once core->flat is set: allocates the arrays. 0; AMP_ENOMEM (call _close then). */
int ampclient_core_push_init(struct ampclient_core *core);
/* Frees the arrays; also of a core that has not joined. No stream may read gradients any more. */
void ampclient_core_push_close(struct ampclient_core *core);
/* A new step is in hand: cancels the streams and forgets all that belongs to the step before. */
void ampclient_core_push_reset(struct ampclient_core *core);
/* After a Join within the step: cancels the streams, which then send everything again under the new incarnation. */
void ampclient_core_push_restart(struct ampclient_core *core);
/* For step_end: nothing more is pushed, and parameters of which nothing was pushed are absent. */
void ampclient_core_push_close_step(struct ampclient_core *core);
/* After each event, and in any state: sends blocks that are ready, asks for push states, and sends trailers. */
void ampclient_core_push_drive(struct ampclient_core *core);
/* The event PUSH_STATE: marks the blocks that the shard has as sent. Ignores other calls than GetPushState. */
void ampclient_core_push_state(struct ampclient_core *core, uint64_t call, const struct ampclient_event *event);
/* The end of a call. False: it is neither a Push stream nor a GetPushState, and nothing is done. */
bool ampclient_core_push_ended(struct ampclient_core *core, uint64_t call, const struct ampclient_ended *ended);
/* Cancels the streams and GetPushState calls; all else stays. */
void ampclient_core_push_cancel(struct ampclient_core *core);
/*
 * Whether a gradient may be pushed now. 0; AMP_EABORTED (rank taken), AMP_ESTATE (no step, closed, or pushed before),
 * AMP_ERANGE (parameter), AMP_EINVAL (NULL, or a wrong or other dtype) with a text.
 */
int ampclient_core_push_check(const struct ampclient_core *core, uint32_t parameter, const void *gradient,
                              enum amp_dtype dtype, struct amp_error *error);
/* Units: allocates edges for the blocks that the parameter shares with others. 0; AMP_ENOMEM (some may be made). */
int ampclient_core_push_make_edges(struct ampclient_core *core, uint32_t parameter);
/* Units, the event PUSH_DRAINED: the blocks named on this stream have left. */
void ampclient_core_push_drained(struct ampclient_core *core, uint64_t call);
/*
 * Units, for DRAIN: if all blocks that could be sent have left (the rest is in edges), gives the gradients back, which
 * are not read any more, and returns true. False: something has not left yet.
 */
bool ampclient_core_push_let_go(struct ampclient_core *core);
/*
 * The step is decided, and no further shard will answer: marks all shards as answered, with the result of one that did
 * answer, else with the verdict LATE.
 */
void ampclient_core_push_too_late(struct ampclient_core *core);
bool ampclient_core_push_answered(const struct ampclient_core *core);     /* whether all shards have answered */
bool ampclient_core_push_any_answered(const struct ampclient_core *core); /* whether at least one shard has */

#endif
