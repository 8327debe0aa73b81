/* A push of the worker's machine. Private to client/core. */
#ifndef AMPCLIENT_CORE_PUSH_H
#define AMPCLIENT_CORE_PUSH_H

#include "base/err.h"
#include "client/core/client_events.h"
#include "client/core/client_metrics.h"

struct ampclient_core;

/* A push under way. */
struct ampclient_push {
    uint64_t calls[AMPCLIENT_SHARDS_MAX];  /* Push streams */
    uint64_t states[AMPCLIENT_SHARDS_MAX]; /* GetPushState calls */
    bool asked[AMPCLIENT_SHARDS_MAX];      /* what the shard has is known, or nothing was sent yet */
    bool ended[AMPCLIENT_SHARDS_MAX];      /* trailer sent on the present stream */
    bool answered[AMPCLIENT_SHARDS_MAX];
    uint32_t resends;
    enum amp_dtype dtype;   /* of the first gradient */
    const void **gradients; /* [parameters] */
    uint32_t *given;        /* [parameters] pushes so far */
    uint32_t *missing;      /* [blocks] parameters that are not complete */
    uint8_t *sent;          /* [blocks] on the present stream, or there already */
    float *sums;            /* accumulate > 1: flat */
    uint8_t **edges;      /* units: [blocks] a copy of what was handed in of a block with several parameters, or NULL */
    uint64_t edges_bytes; /* of all of them */
    uint8_t *gone;        /* units: [blocks] sent, and its bytes are the user's again */
    bool drained[AMPCLIENT_SHARDS_MAX]; /* units: the blocks named on the present stream have left */
    uint32_t *absent;                   /* [parameters] the trailer */
    uint32_t absent_count;
    struct ampclient_core_metrics metrics; /* in the trailer, too */
    bool closed;                           /* step_end has come */
    uint64_t user_state_serial;            /* of the header that was sent */
    struct ampclient_core_result result;
    struct amp_error error; /* a failure to be told at step_end */
};

int ampclient_core_push_init(struct ampclient_core *core);
void ampclient_core_push_close(struct ampclient_core *core);
void ampclient_core_push_reset(struct ampclient_core *core);      /* a new step is in hand */
void ampclient_core_push_restart(struct ampclient_core *core);    /* all streams of it begin anew */
void ampclient_core_push_close_step(struct ampclient_core *core); /* step_end: what was not pushed is absent */
void ampclient_core_push_drive(struct ampclient_core *core);
void ampclient_core_push_state(struct ampclient_core *core, uint64_t call, const struct ampclient_event *event);
bool ampclient_core_push_ended(struct ampclient_core *core, uint64_t call, const struct ampclient_ended *ended);
void ampclient_core_push_cancel(struct ampclient_core *core);
int ampclient_core_push_check(const struct ampclient_core *core, uint32_t parameter, const void *gradient,
                              enum amp_dtype dtype, struct amp_error *error);
/* Units: memory for the blocks of a parameter that others have elements in. AMP_ENOMEM. */
int ampclient_core_push_make_edges(struct ampclient_core *core, uint32_t parameter);
void ampclient_core_push_drained(struct ampclient_core *core, uint64_t call);
/* Units: all that was handed in has left or is kept in edges; from then on it is not read any more. */
bool ampclient_core_push_let_go(struct ampclient_core *core);
/* The step is decided, and no further shard will answer: the result is one that has, else the verdict LATE. */
void ampclient_core_push_too_late(struct ampclient_core *core);
bool ampclient_core_push_answered(const struct ampclient_core *core);     /* by all shards */
bool ampclient_core_push_any_answered(const struct ampclient_core *core); /* by one of them at least */

#endif
