/*
 * Units of the worker's state machine: sets of parameters that are pulled when they are needed and freed afterwards,
 * and whose gradients are pushed and not kept. With units the handle has no flat memory of all parameters.
 *
 *   ABSENT -> COMING    gather, prefetch: memory is allocated, its blocks are pulled
 *   COMING -> HERE      all blocks are in memory
 *   COMING -> ABSENT    release; the step is void; a failure that is not tried again
 *   HERE   -> ABSENT    release, and the requests that end a step's views: step_begin, pull
 *
 * Invariants. What is HERE is of the version in hand, that of the step or of the last PULL_LATEST, and is freed only
 * by the user's own calls. Memory that a cancelled stream may still write is freed when the stream has ended. A
 * gradient is read until DRAIN is answered, and not afterwards: where a server lacks a block whose bytes are gone, the
 * step in hand is void (ROLLED_BACK), and the user computes it again. See client_core.h.
 */
#ifndef AMPCLIENT_CORE_UNITS_H
#define AMPCLIENT_CORE_UNITS_H

#include "amp/dtype.h"
#include "base/err.h"
#include "client/core/client_events.h"

struct ampclient_core;

enum ampclient_unit_state {
    AMPCLIENT_UNIT_ABSENT,
    AMPCLIENT_UNIT_COMING,
    AMPCLIENT_UNIT_HERE,
    AMPCLIENT_UNIT_STATES_COUNT
};

/* Consecutive blocks of a unit on one shard: one Pull. */
struct ampclient_piece {
    uint32_t shard;
    uint64_t first, count;
    uint64_t at; /* the first one's place in the unit's memory, in blocks */
};

struct ampclient_unit {
    enum ampclient_unit_state state;
    uint64_t turn;   /* COMING: the lowest is pulled first */
    uint8_t *memory; /* its blocks; NULL: none. ABSENT with memory: freed as soon as no stream writes */
    uint64_t blocks;
    struct ampclient_piece *pieces;
    uint32_t pieces_count;
    uint32_t *parameters; /* in the order given */
    uint32_t parameters_count;
};

struct ampclient_units {
    struct ampclient_unit *list;
    uint32_t count;
    uint32_t *unit_of; /* [parameters] the unit plus 1; 0: none */
    uint64_t turns;
    uint32_t wanted;     /* by the GATHER under way */
    uint64_t held_bytes; /* memory of all units */
    bool has_version;    /* a PULL_LATEST has said which version is in hand, and no step was begun since */
    /* the unit that is being pulled: one at a time, so that the one that the user waits for has the whole link */
    struct ampclient_unit *pulled;
    uint32_t begun, ended; /* pieces of `pulled` whose Pull has begun, has ended */
    struct {
        uint64_t call; /* 0: free */
        uint32_t piece;
    } calls[AMPCLIENT_SHARDS_MAX];
    uint32_t resends; /* for blocks that came damaged */
};

/* ---- the user's thread, with the host's lock; drain the outputs afterwards ---- */

/*
 * A new unit of `count` parameters (copied); *unit gets its number, from 0. AMP_EINVAL (no parameter, one twice, or one
 * of another unit), AMP_ERANGE, AMP_ESTATE (a handle without units), AMP_ENOMEM: with a text, and nothing is changed.
 */
int ampclient_core_unit_add(struct ampclient_core *core, const uint32_t *parameters, uint32_t count, uint32_t *unit,
                            struct amp_error *error);
/*
 * Begins to pull a unit, if that has not begun. 0; 1 where the step in hand is void; AMP_ERANGE, AMP_ESTATE, AMP_ENOMEM
 * with a text.
 */
int ampclient_core_prefetch(struct ampclient_core *core, uint64_t now_ms, uint32_t unit, struct amp_error *error);
/* Frees a unit that is COMING or HERE. AMP_ERANGE, AMP_ESTATE with a text. */
int ampclient_core_release(struct ampclient_core *core, uint32_t unit, struct amp_error *error);
/*
 * Hands in the gradients of a unit, in the order of its parameters; NULL for one that has none. They are borrowed until
 * DRAIN or STEP_END is answered. 0; 1, and nothing is done, where the step in hand is void; AMP_EINVAL, AMP_ERANGE,
 * AMP_ESTATE, AMP_ENOMEM with a text, and nothing is done either.
 */
int ampclient_core_scatter(struct ampclient_core *core, uint64_t now_ms, uint32_t unit, const void *const *gradients,
                           enum amp_dtype dtype, struct amp_error *error);
/*
 * 0 if the user state may be set now. It is sent before the gradients; another one would need their streams to begin
 * anew, with bytes that are gone: AMP_ESTATE with a text after the first scatter of a step.
 */
int ampclient_core_check_user_state(const struct ampclient_core *core, struct amp_error *error);
/* Bytes of units, and of copies of blocks with several parameters (client_push.h). */
uint64_t ampclient_core_held(const struct ampclient_core *core);

const char *ampclient_unit_state_name(enum ampclient_unit_state state);
/* Whether `to` may follow `from`. */
bool ampclient_unit_state_allowed(enum ampclient_unit_state from, enum ampclient_unit_state to);

/* ---- private to client/core ---- */

int ampclient_core_units_init(struct ampclient_core *core); /* of the model that Join gave */
void ampclient_core_units_close(struct ampclient_core *core);
const void *ampclient_core_units_parameter(const struct ampclient_core *core, uint32_t parameter);
/* Each returns false if the call is not a Pull of a unit. */
bool ampclient_core_units_header(struct ampclient_core *core, uint64_t call,
                                 const struct ampclient_pull_header *header);
bool ampclient_core_units_block(struct ampclient_core *core, uint64_t call, uint64_t block);
bool ampclient_core_units_ended(struct ampclient_core *core, uint64_t call, const struct ampclient_ended *ended);
void ampclient_core_units_cancel(struct ampclient_core *core); /* what is COMING is pulled again later */
void ampclient_core_units_void(struct ampclient_core *core);   /* what is COMING is ABSENT */
void ampclient_core_units_forget(struct ampclient_core *core); /* so is what is HERE */
/* Ends the user's GATHER or DRAIN, if one is under way, with this error. */
void ampclient_core_units_fail(struct ampclient_core *core, const struct amp_error *error);
/* Pulls what is COMING; frees what was; answers GATHER and DRAIN. */
void ampclient_core_units_drive(struct ampclient_core *core);

#endif
