/*
 * A joined model: the host of one client core. It does what the core says, and tells it what came of it.
 *
 *     user's thread                       loop's thread
 *     request -> core_step, kick          ampclient_model_drain: core_next until empty, each output becomes an RPC,
 *     wait for `done`                     a message, a cancel, a timer, or `done`
 *                                         an RPC's callbacks -> core_step, drain
 *
 * The host holds no policy: whether to try again, when, and what the user is told are the core's.
 *
 * Memory of others. Gradients (the user's) and sums (the core's) are sent from where they lie. A request is not told to
 * be done while a piece of them may still be read (`borrowed`), so the user may change them from then on, and the core
 * may be freed once the host is detached. GATHER alone says nothing of gradients, and does not wait for them. With
 * units the core hears when nothing is borrowed and all blocks it has named on a stream have left (PUSH_DRAINED).
 */
#ifndef AMPCLIENT_MODEL_H
#define AMPCLIENT_MODEL_H

#include "base/buf.h"
#include "client/core/client_core.h"
#include "client/io/client.h"
#include "proto/msg.h"

/* As many overflow rows as a result has (common.proto). */
#define AMPCLIENT_MODEL_OVERFLOWS_MAX 64

/* A parameter, as the specification that came with the first Join has it. */
struct ampclient_model_parameter {
    char name[AMPCLIENT_NAME_MAX];
    uint32_t dimensions;
    uint64_t shape[8];
    uint64_t elements;
};

/* What a step's result tells of its overflows: the core needs none of it. */
struct ampclient_model_overflows {
    uint64_t epoch, step;
    uint32_t count;
    struct ampclient_overflow rows[AMPCLIENT_MODEL_OVERFLOWS_MAX];
    char workers[AMPCLIENT_MODEL_OVERFLOWS_MAX][AMPCLIENT_NAME_MAX];
};

struct ampclient_model {
    struct amp_list node; /* in client->models; loop's thread */
    struct ampclient *client;
    /* under the mutex */
    struct ampclient_core *core;
    struct ampclient_user_done done; /* of the request */
    bool done_ready;                 /* it is set, but something is still borrowed */
    bool done_told;                  /* the waiting thread may take it */
    uint64_t borrowed;               /* pieces of memory of the user or the core that are still being sent */
    struct ampclient_model_parameter *parameters; /* NULL before the first Join; then constant, readable without it */
    uint32_t parameters_count;
    enum amp_dtype cast;
    struct ampclient_attached *shared;    /* memory that is shared with the servers (attach.h); NULL: none */
    struct ampclient_incarnation boot_of; /* the incarnation that boot_id belongs to */
    uint64_t boot_id;
    struct ampclient_model_overflows heard; /* of the newest answer to a push */
    /* loop's thread */
    uv_timer_t timer;
    bool attached;
    bool timer_closed;
    bool stopped; /* events of calls are not told to the core any more */
    struct amp_list calls;
    struct amp_list attach_calls; /* of attach.h, until each is closed */
    struct amp_list lines;        /* for the log, told when the mutex is free */
    bool units;                   /* the join options'; constant */
    struct amp_list failed;       /* calls that could not begin: their end is told after the outputs at hand */
    uint64_t unborn;              /* number of one for which there was no memory at all; 0: none */
    uint8_t *scratch;             /* one block of a push, gathered */
    struct ampclient_job *detaching;
    /* user's thread */
    void *restore_arg; /* the join options' */
    void (*restore_cb)(void *arg, uint64_t step, const void *data, size_t size);
    void *shared_arg;
    void (*shared_cb)(void *arg, const struct ampclient_shared_memory *shared, bool mapped);
    struct ampclient_model_overflows told; /* those of the step that step_end has ended */
    uint8_t *user_state; /* what ampclient_user_state gave last; room for AMPCLIENT_USER_STATE_MAX bytes */
    uint8_t *places;     /* for gradients, where no slot is attached: the flat space in fp32's size; NULL: not needed */
    size_t places_size;
    struct ampclient_incarnation attach_tried; /* who has asked for shared memory last */
    enum amp_dtype attach_dtype;               /* and with room for which gradients */
    uint64_t attach_again_ms;                  /* when that may be tried again; 0: not by this incarnation */
    uint64_t attach_pause_ms;                  /* how long that is after the attempt; 0: it did not fail for now */
    char attach_said[AMP_ERROR_TEXT_MAX];      /* why not, as the log has it; "": nothing */
    enum amp_dtype gradients;                  /* widest dtype that has been pushed; NONE: none yet */
};

/* ---- the user's thread ---- */

/* Attaches the model to the loop. As ampclient_link_run. */
int ampclient_model_attach(struct ampclient_model *model);
/* Ends all calls of the model and takes it from the loop; then it may be freed. As ampclient_link_run. */
int ampclient_model_detach(struct ampclient_model *model);
/* Frees a model that is not attached, or whose loop has ended. */
void ampclient_model_free(struct ampclient_model *model);

/* Hands a request (AMPCLIENT_EVENT_JOIN to _LEAVE) to the core and waits for its end. done->code, or AMP_EINTERNAL. */
int ampclient_model_request(struct ampclient_model *model, enum ampclient_event_type type,
                            struct ampclient_user_done *done);
/* The same of one that has more to say (AMPCLIENT_EVENT_GATHER). */
int ampclient_model_ask(struct ampclient_model *model, const struct ampclient_event *request,
                        struct ampclient_user_done *done);

/* ---- the loop's thread ---- */

/* Does what the core wants. Without the mutex. */
void ampclient_model_drain(struct ampclient_model *model);
/* The link closes: the timer is closed, and the core hears nothing more. */
void ampclient_model_stop(struct ampclient_model *model);

/* Tells the core of an event and does what it wants then. Without the mutex. */
void ampclient_model_event(struct ampclient_model *model, const struct ampclient_event *event);

/* Ends a detachment that waited for the last call or the last piece of memory. */
void ampclient_model_detach_if_idle(struct ampclient_model *model);

/* arpc's release_cb for a view: arg is the model, whose `borrowed` was raised for it. */
void ampclient_model_sent(void *arg);

#endif
