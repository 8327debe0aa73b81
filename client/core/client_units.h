/*
 * Units of the worker's state machine: sets of parameters that are pulled when they are needed and freed afterwards,
 * and whose gradients are pushed and not kept. With units the handle has no flat memory of all parameters.
 *
 *   ABSENT -> COMING    gather, prefetch: memory is allocated, its blocks are pulled
 *   COMING -> HERE      all blocks are in memory
 *   COMING -> ABSENT    release; the step is void; a failure after which the pull is not made again
 *   HERE   -> ABSENT    release, and the requests that end the views of a step: step_begin, pull
 *
 * Invariants. A unit that is HERE has the version of the step in hand, or of the last PULL_LATEST, and is freed only by
 * the user's own calls. Memory that a cancelled stream may still write is freed when the stream has ended. A gradient
 * is read until DRAIN is answered, unless with AMP_EDEADLINE or AMP_ECANCELLED, and not afterwards: if a server lacks a
 * block whose bytes are gone, the step in hand is void (ROLLED_BACK), and the user computes it again.
 *
 * Threads: one at a time, with the lock of the I/O layer (client_core.h).
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

/* Consecutive blocks of a unit on one shard, which one Pull brings. */
struct ampclient_piece {
    uint32_t shard;
    uint64_t first, count; /* blocks of the flat space */
    uint64_t at;           /* place of the first block in the unit's memory, in blocks */
};

struct ampclient_unit {
    enum ampclient_unit_state state;
    uint64_t turn;   /* COMING: units are pulled in the order of this number, the lowest first */
    uint8_t *memory; /* room for its blocks; NULL: none. If ABSENT, it is freed as soon as no stream writes to it */
    uint64_t blocks; /* number of blocks that have elements of its parameters */
    struct ampclient_piece *pieces;
    uint32_t pieces_count;
    uint32_t *parameters; /* their indices, in the order that the user gave */
    uint32_t parameters_count;
    bool scattered; /* in the step in hand */
};

struct ampclient_units {
    struct ampclient_unit *list;
    uint32_t count;
    uint32_t *unit_of;   /* [parameters] number of the parameter's unit plus 1; 0: it is in none */
    uint64_t turns;      /* the last `turn` that was given */
    uint32_t wanted;     /* number of the unit that the GATHER under way waits for */
    uint64_t held_bytes; /* bytes of `memory` of all units */
    bool has_version;    /* a PULL_LATEST has fixed the version in hand, and no step was begun since */
    /* The unit that is being pulled: one at a time, so that the one that the user waits for has the whole link. */
    struct ampclient_unit *pulled;
    uint32_t begun, ended; /* number of pieces of `pulled` whose Pull has begun, and has ended */
    struct {
        uint64_t call;  /* number of the Pull; 0: this place is free */
        uint32_t piece; /* index of its piece in `pulled` */
    } calls[AMPCLIENT_SHARDS_MAX];
    uint32_t resends; /* Pulls that were made again since blocks came damaged; at most AMPCLIENT_BLOCK_RESENDS_MAX */
};

/* ---- the user's requests; take the outputs of the core after each ---- */

/*
 * Makes a unit of `count` parameters (copied), in any state after Join; *unit gets its number, from 0. AMP_EINVAL (no
 * parameter, one twice, or one of another unit), AMP_ERANGE, AMP_ESTATE (a handle without units), AMP_ENOMEM: with a
 * text, and nothing is changed.
 */
int ampclient_core_unit_add(struct ampclient_core *core, const uint32_t *parameters, uint32_t count, uint32_t *unit,
                            struct amp_error *error);
/*
 * Begins to pull a unit, unless it is COMING or HERE. 0; 1 if the step in hand is void; AMP_ERANGE (no such unit),
 * AMP_ESTATE (no version is in hand, or a handle without units), AMP_EABORTED (rank taken), AMP_ENOMEM with a text.
 */
int ampclient_core_prefetch(struct ampclient_core *core, uint64_t now_ms, uint32_t unit, struct amp_error *error);
/*
 * Makes a unit ABSENT that is COMING or HERE, and frees its memory as soon as no stream writes to it. AMP_ERANGE (no
 * such unit), AMP_ESTATE (it is ABSENT, or a handle without units) with a text.
 */
int ampclient_core_release(struct ampclient_core *core, uint32_t unit, struct amp_error *error);
/*
 * Hands in the gradients of a unit, in the order of its parameters; NULL for one that has none. They are borrowed until
 * DRAIN or STEP_END is answered, unless with AMP_EDEADLINE or AMP_ECANCELLED. 0; 1 if the step in hand is void;
 * AMP_EINVAL, AMP_ERANGE (no such unit), AMP_ESTATE (no step, scattered before, or a handle without units),
 * AMP_EABORTED (rank taken), AMP_ENOMEM with a text. Unless 0, nothing is borrowed or sent.
 */
int ampclient_core_scatter(struct ampclient_core *core, uint64_t now_ms, uint32_t unit, const void *const *gradients,
                           enum amp_dtype dtype, struct amp_error *error);
/* Bytes allocated for units, and for copies of blocks with several parameters (client_push.h). */
uint64_t ampclient_core_held(const struct ampclient_core *core);

/* The name of a state, such as "COMING"; "" for a number that is no state. */
const char *ampclient_unit_state_name(enum ampclient_unit_state state);
/* Whether `to` may follow `from`. */
bool ampclient_unit_state_allowed(enum ampclient_unit_state from, enum ampclient_unit_state to);

/* ---- private to client/core ---- */

/* At the first Join, once core->flat is set: room for `unit_of`. 0; AMP_ENOMEM. */
int ampclient_core_units_init(struct ampclient_core *core);
/* Frees all units and zeroes core->units; also of a core that has none. */
void ampclient_core_units_close(struct ampclient_core *core);
/* The elements of a parameter (a valid index) whose unit is HERE; else NULL. */
const void *ampclient_core_units_parameter(const struct ampclient_core *core, uint32_t parameter);
/* Handle PULL_HEADER, PULL_BLOCK and ENDED. False: the call is not a Pull of a unit, and nothing is done. */
bool ampclient_core_units_header(struct ampclient_core *core, uint64_t call,
                                 const struct ampclient_pull_header *header);
bool ampclient_core_units_block(struct ampclient_core *core, uint64_t call, uint64_t block);
bool ampclient_core_units_ended(struct ampclient_core *core, uint64_t call, const struct ampclient_ended *ended);
void ampclient_core_units_cancel(struct ampclient_core *core); /* cancels the Pulls; units stay COMING */
void ampclient_core_units_void(struct ampclient_core *core);   /* makes ABSENT the units that are COMING */
/* For a new step or version: makes all units ABSENT and not scattered; no version is in hand. */
void ampclient_core_units_forget(struct ampclient_core *core);
/* Ends the user's GATHER or DRAIN, if one is under way, with this error. */
void ampclient_core_units_fail(struct ampclient_core *core, const struct amp_error *error);
/* After each event: frees memory of ABSENT units, begins Pulls of the next COMING unit, answers GATHER and DRAIN. */
void ampclient_core_units_drive(struct ampclient_core *core);

#endif
