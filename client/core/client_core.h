/*
 * The worker's side of one model as a state machine without I/O: what to call, what to send, when to try again.
 *
 * The I/O layer (client/io, or the simulator) has the connections and the user's thread; the core makes the decisions.
 * Events and the user's requests go in, outputs come out:
 *
 *     ampclient_core_step(core, now_ms, &event);
 *     while (ampclient_core_next(core, &output))
 *         ... do it ...
 *
 * Threads: one at a time; the I/O layer holds its lock around each call. The core has no clock and no randomness;
 * `now_ms` is monotonic.
 *
 * Calls. Each output that begins an RPC has a number, never used twice. The I/O layer answers each with exactly one
 * AMPCLIENT_EVENT_ENDED, also when the core has cancelled it (then its content does not matter).
 *
 * Failed calls come with an AMP_E code (amp_err_from_grpc_status), reason and details. The core makes a call again
 * after AMP_EUNAVAILABLE, AMP_EDEADLINE, AMP_ECANCELLED and AMP_EEXHAUSTED (after a pause), AMP_EABORTED (at the epoch
 * and step of the details) and AMP_EDATALOSS (a few times).
 *
 * A rank that another process has taken (RANK_TAKEN) is not taken back unless the configuration says so: step_begin,
 * push, step_end and pull then end with AMP_EABORTED and the server's sentence. When a call ends with FENCED, the core
 * asks shard 0 by KEEP_ALIVE whether another process has the rank, before it joins again.
 */
#ifndef AMPCLIENT_CORE_H
#define AMPCLIENT_CORE_H

#include "amp/dtype.h"
#include "base/err.h"
#include "client/core/client_events.h"
#include "client/core/client_outputs.h"
#include "client/core/client_units.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define AMPCLIENT_WEIGHT_MIN         0x1p-60f /* smaller ones would lose bits of the mean (docs/decisions.md) */
#define AMPCLIENT_WEIGHT_MAX         0x1p24f  /* docs/step-protocol.md section 4 */
#define AMPCLIENT_RECONNECT_MS       600000   /* longer than a shard takes to be back on another machine */
#define AMPCLIENT_STEP_TIMEOUT_MS    900000   /* one and a half times the default loss_timeout of 10 minutes */
#define AMPCLIENT_CALL_TIMEOUT_MS    60000
#define AMPCLIENT_BLOCK_RESENDS_MAX  3   /* after wrong checksums: more of them are no accident of the wire */
#define AMPCLIENT_BACKOFF_MS         100 /* first pause before a call is made again; it doubles */
#define AMPCLIENT_BACKOFF_MAX_MS     500 /* a shard that is back is to be found well within two seconds */
#define AMPCLIENT_KEEP_ALIVE_DIVISOR 3   /* a lease is renewed three times within its life */

struct ampclient_core;

/* The state of a handle. The table in client_core.c says which state may follow which. */
enum ampclient_state {
    AMPCLIENT_STATE_NEW,         /* not joined */
    AMPCLIENT_STATE_JOINING,     /* the first Join is under way */
    AMPCLIENT_STATE_READY,       /* joined, no step in hand */
    AMPCLIENT_STATE_PULLING,     /* step_begin waits for parameters */
    AMPCLIENT_STATE_COMPUTING,   /* the user has a step in hand; blocks are sent as they get ready */
    AMPCLIENT_STATE_WAITING,     /* step_end waits for the verdict */
    AMPCLIENT_STATE_ROLLED_BACK, /* the step in hand is void: pushes do nothing until step_end */
    AMPCLIENT_STATE_FETCHING,    /* ampclient_pull waits for parameters */
    AMPCLIENT_STATE_DONE,        /* the model is done: it opens no further step unless it is rolled back */
    AMPCLIENT_STATE_LEAVING,     /* ampclient_leave waits for Leave */
    AMPCLIENT_STATE_LEFT,        /* Leave has ended; no request is possible any more */
    AMPCLIENT_STATES_COUNT
};

/* 0 means the default of a number; strings are copied. */
struct ampclient_core_config {
    const char *model;   /* name, 1 to 127 bytes */
    const char *worker;  /* name, at most 127 bytes; NULL: the server makes one from the rank */
    int32_t rank;        /* -1: the server gives one */
    int32_t world_size;  /* -1: not checked */
    bool replace;        /* take the rank of a worker whose lease has ended */
    bool take_back;      /* join again if another process has taken the rank; else the handle stops */
    uint32_t accumulate; /* pushes of each parameter in a step; default 1 */
    uint32_t shards;     /* number of shards, at most AMPCLIENT_SHARDS_MAX; default 1 */
    bool units;          /* parameters and gradients are moved unit by unit (client_units.h); accumulate is 1 then */
    bool stays_shared;   /* if the model waits for its workers, use the servers' copies even if the user gave memory */
    uint64_t reconnect_timeout_ms, step_timeout_ms, call_timeout_ms; /* as in ampclient.h */
};

/* ---- life ---- */

/* Makes a core in state NEW, which is the caller's. AMP_EINVAL (config), AMP_ENOMEM: *core is NULL. */
int ampclient_core_new(const struct ampclient_core_config *config, struct ampclient_core **core);

/* Frees a core (NULL is allowed). No stream may read or write gradients or parameters any more. */
void ampclient_core_free(struct ampclient_core *core);

/* ---- operate ---- */

/*
 * Handles one event in any state; now_ms must not go back (asserted). All that the event points to is borrowed during
 * the call. Ends the views of the last output; new outputs are taken by ampclient_core_next.
 */
void ampclient_core_step(struct ampclient_core *core, uint64_t now_ms, const struct ampclient_event *event);
/* Takes the oldest output, whose views are valid until the next _next or _step. False: there is none. */
bool ampclient_core_next(struct ampclient_core *core, struct ampclient_output *output);
/*
 * Takes the answer to the user's request if it is the oldest output, for the thread that made the request. False: other
 * outputs come before it, or there is no answer yet.
 */
bool ampclient_core_take_done(struct ampclient_core *core, struct ampclient_user_done *done);
bool ampclient_core_has_output(const struct ampclient_core *core); /* whether ampclient_core_next gives one */

/*
 * Hands in the gradient of one parameter, all its elements. It is borrowed until STEP_END is answered with another code
 * than AMP_EDEADLINE or AMP_ECANCELLED (with accumulate > 1 only during the call). Take the outputs afterwards.
 * AMP_EINVAL, AMP_ERANGE, AMP_ESTATE, AMP_EABORTED (rank taken) with a text; 0, and nothing done, after a rollback.
 */
int ampclient_core_push(struct ampclient_core *core, uint64_t now_ms, uint32_t parameter, const void *gradient,
                        enum amp_dtype dtype, struct amp_error *error);

/*
 * Set the weight of this worker's gradients (1 before), and the learning rate that its pushes name (none before), from
 * the next step to which nothing was pushed yet. AMP_EINVAL (out of range), AMP_ESTATE (pushed to) with a text.
 */
int ampclient_core_weight(struct ampclient_core *core, float weight, struct amp_error *error);
int ampclient_core_learning_rate(struct ampclient_core *core, double lr, struct amp_error *error);

/*
 * The bytes of a block that PUSH_BLOCKS has named, in the push's dtype: a view if they lie in one piece, else gathered
 * into scratch (block_elements * 4 bytes). *size gets their number. Valid until scratch is used again or STEP_END is
 * answered.
 */
const void *ampclient_core_block(const struct ampclient_core *core, uint64_t block, void *scratch, size_t *size);

/* ---- query ---- */

enum ampclient_state ampclient_core_state(const struct ampclient_core *core);
const char *ampclient_state_name(enum ampclient_state state); /* "READY"; "" for a number that is no state */
bool ampclient_state_allowed(enum ampclient_state from, enum ampclient_state to); /* whether `to` may follow `from` */

/* What the last Join gave; 0 before the first. */
uint32_t ampclient_core_rank(const struct ampclient_core *core);
uint32_t ampclient_core_world_size(const struct ampclient_core *core);

/*
 * The last pulled values of a parameter, in the cast's dtype, and in *elements how many. NULL if nothing is pulled, a
 * pull has broken off and left parts of two versions, the unit is not gathered, or there is no such parameter.
 */
const void *ampclient_core_parameter(const struct ampclient_core *core, uint32_t parameter, uint64_t *elements);

/* The user state of this rank in the step that the last Join restored; *size 0: none. Valid until the next Join. */
const uint8_t *ampclient_core_user_state(const struct ampclient_core *core, size_t *size);

/* After Join: the number of blocks of the flat space, and the number of elements of one of them. */
uint64_t ampclient_core_blocks(const struct ampclient_core *core);
uint32_t ampclient_core_block_elements(const struct ampclient_core *core, uint64_t block);

#endif
