/*
 * A joined model: it carries out the outputs of one client core (client/core), and gives the core the events that
 * follow.
 *
 *     user's thread                       loop's thread
 *     request -> core_step, kick          ampclient_model_drain: core_next until empty, each output becomes an RPC,
 *     wait for `done`                     a message, a cancel, a timer, or `done`
 *                                         an RPC's callbacks -> core_step, drain
 *
 * There is no policy here: the core decides whether and when to try again, and what the user gets to know.
 *
 * Borrowed memory. Gradients (the user's) and sums (the core's) are sent from where they lie; `borrowed` counts the
 * pieces that are still being read. A request is answered only when it is 0, so the user may change gradients from then
 * on, and the core may be freed once the model is removed. Two kinds of answers do not wait: GATHER does not concern
 * gradients, and after AMP_EDEADLINE or AMP_ECANCELLED of STEP_END or DRAIN they stay borrowed and the push goes on.
 * With units the core gets PUSH_DRAINED when nothing is borrowed and all blocks it has named on a stream have left.
 */
#ifndef AMPCLIENT_MODEL_H
#define AMPCLIENT_MODEL_H

#include "base/buf.h"
#include "client/core/client_core.h"
#include "client/io/client.h"
#include "proto/msg.h"

/* Most overflow rows in a result (common.proto). */
#define AMPCLIENT_MODEL_OVERFLOWS_MAX 64

/* A parameter of the specification that came with the first Join. */
struct ampclient_model_parameter {
    char name[AMPCLIENT_NAME_MAX];
    uint32_t dimensions;
    uint64_t shape[8];
    uint64_t elements;
};

/* The overflows in a step's result. They do not pass through the core, which needs none of them. */
struct ampclient_model_overflows {
    uint64_t epoch, step;
    uint32_t count;
    struct ampclient_overflow rows[AMPCLIENT_MODEL_OVERFLOWS_MAX];
    char workers[AMPCLIENT_MODEL_OVERFLOWS_MAX][AMPCLIENT_NAME_MAX];
};

struct ampclient_model {
    struct amp_list node;     /* in client->models; the loop's thread */
    struct ampclient *client; /* constant */
    uint64_t instance;        /* random; tells the server Joins of this handle from those of others; constant */
    /* Under the mutex of client->link. */
    struct ampclient_core *core;
    struct ampclient_user_done done; /* the core's answer to the user's request */
    bool done_ready;                 /* `done` is set, but something is still borrowed */
    bool done_delivered;             /* the waiting thread may take `done` */
    uint64_t borrowed;               /* pieces of memory of the user or the core that are still being sent */
    struct ampclient_model_parameter *parameters; /* NULL before the first Join; then constant, read without mutex */
    uint32_t parameters_count;
    enum amp_dtype cast;                       /* dtype of pulled parameters */
    bool takes_rate;                           /* its schedule is WORKER, as the last Join has said */
    struct ampclient_attached *shared;         /* memory that is shared with the servers (attach.h); NULL: none */
    struct ampclient_model_overflows received; /* from the newest answer to a push */
    /* The loop's thread. */
    uv_timer_t timer;             /* the core's TIMER */
    bool timer_closed;            /* the timer's close callback has run */
    bool stopped;                 /* the core gets no further events */
    struct amp_list calls;        /* of struct ampclient_core_call: RPCs under way */
    struct amp_list attach_calls; /* calls of AttachMemory (attach.c), until each is closed */
    struct amp_list lines;        /* lines for the log, which are written when the mutex is free */
    bool units;                   /* as in the join options; constant */
    uint64_t unstarted;           /* number of a call that could not begin: the core gets its ENDED next; 0: none */
    struct amp_error start_error; /* why it could not */
    uint8_t *scratch;             /* room for one block of a push that has to be gathered */
    bool removing;                /* the user's thread waits for the removal */
    /* The user's thread. */
    struct ampclient_job job; /* of ampclient_model_run: one at a time */
    void *restore_arg;        /* restore and shared callbacks: as in the join options */
    void (*restore_cb)(void *arg, uint64_t step, const void *data, size_t size);
    void *shared_arg;
    void (*shared_cb)(void *arg, const struct ampclient_shared_memory *shared, bool mapped);
    struct ampclient_model_overflows returned; /* those that the last step_end has given to the user */
    uint8_t *user_state; /* what ampclient_user_state gave last; room for AMPCLIENT_USER_STATE_MAX bytes */
    uint8_t *places;     /* ampclient_gradient's memory without a slot: the flat space in fp32; NULL: not needed yet */
    size_t places_size;  /* bytes of `places` */
    struct ampclient_incarnation attach_tried; /* the incarnation that has asked for shared memory last */
    enum amp_dtype attach_dtype;               /* the dtype of gradients that it has asked for */
    uint64_t attach_again_ms;                  /* when the next attempt may be made; 0: not by this incarnation */
    uint64_t attach_pause_ms;             /* pause after the last attempt; 0: it succeeded, or is not to be repeated */
    char attach_said[AMP_ERROR_TEXT_MAX]; /* why memory is not shared, as the log says; "": the log has said nothing */
    enum amp_dtype gradients;             /* widest dtype that has been pushed; AMP_DTYPE_NONE: none yet */
};

/* ---- the user's thread ---- */

/*
 * Runs run_cb on the loop's thread, with model->job, and waits for its ampclient_link_finish, as ampclient_link_run
 * does. AMP_EINTERNAL: the link is broken, and the model must not be freed.
 */
int ampclient_model_run(struct ampclient_model *model, void (*run_cb)(struct ampclient_job *job), uint64_t timeout_ms,
                        struct amp_error *error);

/* Adds the model to the loop, once. 0; AMP_EINTERNAL (the link is broken: the model must not be freed). */
int ampclient_model_add(struct ampclient_model *model);
/*
 * Ends all calls of the model and removes it from the loop. 0: it may be freed. AMP_EINTERNAL: the link is broken, and
 * the model must not be freed.
 */
int ampclient_model_remove(struct ampclient_model *model);
/* Frees a model that is not on the loop, or whose loop has ended; calls shared_cb for memory that is unmapped. */
void ampclient_model_free(struct ampclient_model *model);

/*
 * Gives the core a request without parameters (AMPCLIENT_EVENT_STEP_END to _LEAVE, _DRAIN) and waits for its answer,
 * which goes to *done. Returns done->code, or AMP_EINTERNAL (the link is broken). An error is also the client's.
 */
int ampclient_model_request(struct ampclient_model *model, enum ampclient_event_type type,
                            struct ampclient_user_done *done);
/* ampclient_model_request for a request with parameters (AMPCLIENT_EVENT_JOIN, _STEP_BEGIN, _GATHER). */
int ampclient_model_ask(struct ampclient_model *model, const struct ampclient_event *request,
                        struct ampclient_user_done *done);

/*
 * Begins one of the user's calls and takes the mutex, for what the core does at once. 0; AMP_EINTERNAL (the link is
 * broken). ampclient_model_unlock follows in both cases: it has the loop carry out the core's outputs, and returns rc.
 */
int ampclient_model_lock(struct ampclient_model *model);
int ampclient_model_unlock(struct ampclient_model *model, int rc);

/* ---- the loop's thread ---- */

/* Carries out all outputs of the core; does nothing once the model is stopped. Without the mutex. */
void ampclient_model_drain(struct ampclient_model *model);
/* Closes the timer and gives the core no further events. For a removal, and when the link closes. */
void ampclient_model_stop(struct ampclient_model *model);

/* Gives the core an event and carries out its outputs; does nothing once the model is stopped. Without the mutex. */
void ampclient_model_event(struct ampclient_model *model, const struct ampclient_event *event);

/* Completes the removal under way, if there is one and no call and no borrowed memory is left. */
void ampclient_model_remove_if_idle(struct ampclient_model *model);

/* The release_cb of arpc_call_send for borrowed memory: `arg` is the model, whose `borrowed` was raised for it. */
void ampclient_model_sent(void *arg);

#endif
