/*
 * The worker's side of one model as a machine without I/O: what to call, what to send, when to try again.
 *
 * The host (client/io) owns connections and the user's thread; this owns the decisions. Events and the user's
 * requests go in, outputs come out:
 *
 *     ampclient_core_step(core, now_ms, &event);
 *     while (ampclient_core_next(core, &output))
 *         ... do it ...
 *
 * One thread at a time (the host locks). No clock, no randomness. `now_ms` is monotonic and does not go back.
 *
 * Calls. Each output that begins an RPC has a number, never used twice. The host answers each with exactly
 * one AMPCLIENT_EVENT_ENDED, also when the core has cancelled it (then its content does not matter).
 *
 * Errors of calls are AMP_E codes (amp_err_from_grpc_status) with reason and details. The core tries again by
 * itself what can be tried again: AMP_EUNAVAILABLE, AMP_EDEADLINE, AMP_ECANCELLED and AMP_EEXHAUSTED after a
 * pause, AMP_EABORTED by moving to the epoch and step in the details, AMP_EDATALOSS a few times.
 *
 * A rank that another process has taken (RANK_TAKEN) is not taken back unless the configuration says so: step_begin,
 * push and step_end end AMP_EABORTED then, with the server's sentence. Whoever is told FENCED asks shard 0 by
 * KEEP_ALIVE which of the two it is before it joins again.
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
#define AMPCLIENT_STEP_TIMEOUT_MS    900000   /* the default loss_timeout of 10 minutes and a half of it */
#define AMPCLIENT_CALL_TIMEOUT_MS    60000
#define AMPCLIENT_BLOCK_RESENDS_MAX  3   /* of one block with a wrong checksum: more is no accident of the wire */
#define AMPCLIENT_BACKOFF_MS         100 /* first pause; doubles */
#define AMPCLIENT_BACKOFF_MAX_MS     500 /* a shard that is back is to be found well within two seconds */
#define AMPCLIENT_KEEP_ALIVE_DIVISOR 3   /* a lease is renewed three times within its life */

struct ampclient_core;

/* Where a handle is. The table in client_core.c says which follows which. */
enum ampclient_state {
    AMPCLIENT_STATE_NEW,         /* not joined */
    AMPCLIENT_STATE_JOINING,     /* Join is under way (first or again) with no step in hand */
    AMPCLIENT_STATE_READY,       /* joined, no step in hand */
    AMPCLIENT_STATE_PULLING,     /* step_begin waits for parameters */
    AMPCLIENT_STATE_COMPUTING,   /* the user has a step; blocks go out as they get ready */
    AMPCLIENT_STATE_WAITING,     /* step_end waits for the verdict */
    AMPCLIENT_STATE_ROLLED_BACK, /* the step in hand is void: pushes do nothing until step_end */
    AMPCLIENT_STATE_FETCHING,    /* ampclient_pull waits for parameters */
    AMPCLIENT_STATE_DONE,        /* the model is done */
    AMPCLIENT_STATE_LEAVING,
    AMPCLIENT_STATE_LEFT,
    AMPCLIENT_STATES_COUNT
};

/* Zero means the default; strings are copied. */
struct ampclient_core_config {
    const char *model;  /* name */
    const char *worker; /* name, or NULL: the server makes one from the rank */
    int32_t rank;       /* -1: the server gives one */
    int32_t world_size; /* -1: not checked */
    bool replace;
    bool take_back;      /* join again where another process has taken the rank; else the handle stops */
    uint32_t accumulate; /* pushes of each parameter a step, 1 */
    uint32_t shards;     /* K, 1 */
    bool units;          /* parameters and gradients come and go unit by unit (client_units.h); accumulate is 1 */
    bool stays_shared;   /* also where the user has given memory, if the model waits for its workers */
    uint64_t reconnect_timeout_ms, step_timeout_ms, call_timeout_ms;
};

/* ---- life ---- */

/* A handle that has not joined. On success *core is the caller's. AMP_EINVAL, AMP_ENOMEM. */
int ampclient_core_new(const struct ampclient_core_config *config, struct ampclient_core **core);

/* Frees it: no stream may read or write its memory any more. NULL is allowed. */
void ampclient_core_free(struct ampclient_core *core);

/* ---- operate ---- */

void ampclient_core_step(struct ampclient_core *core, uint64_t now_ms, const struct ampclient_event *event);
bool ampclient_core_next(struct ampclient_core *core, struct ampclient_output *output);
/*
 * Takes the answer to the user's request if that is the next output: for a request made on another thread than the one
 * that carries the outputs out. False: other outputs come before it, or there is no answer yet.
 */
bool ampclient_core_take_done(struct ampclient_core *core, struct ampclient_user_done *done);
/* Whether there are outputs to carry out. */
bool ampclient_core_has_output(const struct ampclient_core *core);

/*
 * The gradient of one parameter, all its elements. Borrowed until STEP_END is done with another code than
 * AMP_EDEADLINE, which leaves the step as it is (with accumulate > 1 it is added up at once and not kept). Drain the
 * outputs afterwards. AMP_EINVAL, AMP_ERANGE, AMP_ESTATE with a text; 0, and nothing done, after a rollback.
 */
int ampclient_core_push(struct ampclient_core *core, uint64_t now_ms, uint32_t parameter, const void *gradient,
                        enum amp_dtype dtype, struct amp_error *error);

/*
 * The weight of this worker's gradients, from the step on whose first push has not been made. AMP_EINVAL, AMP_ESTATE
 * with a text.
 */
int ampclient_core_weight(struct ampclient_core *core, float weight, struct amp_error *error);

/* The learning rate that this worker's pushes name; likewise. Until the first call they name none. */
int ampclient_core_learning_rate(struct ampclient_core *core, double lr, struct amp_error *error);

/*
 * The bytes of one block of the push, in its dtype: a view if they lie in one piece, else gathered into
 * scratch (block_elements * 4 bytes). *size gets their number. The result is valid until scratch is used
 * again, and no longer than until STEP_END is done. The block must have been named by PUSH_BLOCKS.
 */
const void *ampclient_core_block(const struct ampclient_core *core, uint64_t block, void *scratch, size_t *size);

/* ---- query ---- */

enum ampclient_state ampclient_core_state(const struct ampclient_core *core);
const char *ampclient_state_name(enum ampclient_state state);

/* Whether `to` may follow `from`. */
bool ampclient_state_allowed(enum ampclient_state from, enum ampclient_state to);

/* After Join: rank, world size, parameters. */
uint32_t ampclient_core_rank(const struct ampclient_core *core);
uint32_t ampclient_core_world_size(const struct ampclient_core *core);

/*
 * The last pulled values of a parameter, in the cast's dtype; NULL before the first pull, or where its unit is not
 * gathered. *elements: how many.
 */
const void *ampclient_core_parameter(const struct ampclient_core *core, uint32_t parameter, uint64_t *elements);

/* The user state of this rank in the restored step (of the last Join); *size 0 if there is none. */
const uint8_t *ampclient_core_user_state(const struct ampclient_core *core, size_t *size);

/* Blocks of the flat space, and elements of one of them, after Join. */
uint64_t ampclient_core_blocks(const struct ampclient_core *core);
uint32_t ampclient_core_block_elements(const struct ampclient_core *core, uint64_t block);

#endif
