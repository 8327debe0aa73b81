/*
 * A model and its step, as the coordinator runs them (coord.c). Shard 0 alone uses this; in other processes the struct
 * stays as the start left it. All functions run on the thread that steps the core. Private to server/core.
 */
#ifndef AMPD_CORE_COORD_H
#define AMPD_CORE_COORD_H

#include "server/core/base/limits.h"
#include "server/core/coordinator/actions.h"
#include "server/core/coordinator/checkpoints.h"
#include "server/core/coordinator/coord_load.h"
#include "server/core/coordinator/epochs.h"
#include "server/core/coordinator/rollback.h"
#include "server/core/coordinator/sync.h"
#include "server/core/model/states.h"
#include "server/core/wire/messages.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

struct ampd_model;

/* The step that collects gradients, of all shards. */
struct ampd_coord_step {
    enum ampd_step_state state;
    /* The newest try. With state NONE it is of an earlier step, unless ampd_coord_was_open is true. */
    struct ampd_open open;
    struct ampd_close close;           /* CLOSED and VOTED */
    uint64_t hash;                     /* CLOSED and VOTED: ampd_contributors_hash of `close` */
    uint64_t complete[AMPD_WORLD_MAX]; /* per rank: bit k is set when its push is whole on shard k */
    uint32_t complete_count;           /* ranks whose push is whole on all shards */
    float weights[AMPD_WORLD_MAX];     /* per rank with a bit in `complete`: the weight of its push */
    double rates[AMPD_WORLD_MAX]; /* per rank with a bit in `complete`: its learning rate (schedule WORKER, else 0) */
    double lr;                    /* CLOSED: the rate of all contributors (schedule WORKER, else 0) */
    uint64_t opened_ms, completed_ms[AMPD_WORLD_MAX]; /* when the try was opened, and each rank was whole last */
    int64_t whole_us;           /* UTC microseconds: when the last contributor was whole on all shards; 0: not yet */
    uint64_t awaited_logged_ms; /* when the log last named ranks that keep others waiting; 0: never */
    struct ampd_message *votes[AMPD_SHARDS_MAX]; /* [k] the VOTE of shard k, or NULL; owned */
    uint32_t votes_count;
};

/* The last verdict. */
struct ampd_decision {
    enum ampd_decided_state state;
    struct ampd_verdict_message *verdict; /* the one being stored (step VOTED), else the last one; owned, or NULL */
    uint64_t applied_bits;                /* APPLYING: bit k is set when shard k has applied it */
    /* Range warnings of the last load or apply, of all shards that have it by now: of all, when a verdict is made. */
    struct ampd_applied warnings;
    /* UTC microseconds: when it was made, and shard 0 had applied it; 0: not by this process, or not in this epoch. */
    int64_t made_us, applied_us;
};

/* A model as shard 0 runs it: a struct for each machine, owned by the file that declares it. */
struct ampd_coord {
    enum ampd_coord_state state;
    uint64_t epoch, base_epoch, base_step; /* the epoch, and the checkpoint it began from (base_epoch 0: none) */
    uint64_t parent_step;         /* last step that was decided in the epoch, for the row of the next epoch; 0: none */
    char reason[AMPD_REASON_MAX]; /* why the next epoch begins, as its record says: "RESTART", "ROLLBACK", ... */
    uint64_t decided;             /* last decided step */
    uint64_t version;             /* after it */
    struct ampd_carry carry;      /* loss-scale record and rate after the newest stored row: a step opens with them */
    struct ampd_carry newest; /* after the newest row that is stored or being stored: the next row follows from it */
    bool has_record;          /* both are known: not so after a start, until SYNC is over */
    uint64_t state_sequence;  /* of the last STATE */
    uint32_t missing_rank;    /* STALLED: the rank that is waited for */
    /* SYNCING: why the model is refused; DELETING: why its creation is taken back; as a sentence. "": it is not. */
    char trouble[AMPD_TROUBLE_MAX];
    uint64_t answered; /* bits of the shards that have answered the present RESTORE or EPOCH */
    uint64_t deleted;  /* bits of the shards that have deleted the model */
    /* The round of DELETE, which its answers name; 0: none yet, for the store has not marked the deletion. */
    uint64_t delete_round;
    struct ampd_coord_step step;
    struct ampd_decision decision;
    struct ampd_coord_actions actions;
    struct ampd_coord_checkpoints checkpoint;
    struct ampd_sync_found sync;
    struct ampd_coord_restore restore;
    struct ampd_new_epoch begins;
    struct ampd_coord_load load;
    struct ampd_rollback rollback;
};

/* Sets the scale record and rate that the model goes on with, in a new epoch or after SYNC. */
void ampd_coord_record(struct ampd_coord *coord, const struct ampd_carry *carry);
/* SYNC begins: the model is SYNCING, unless it is being deleted, and Checkpoint calls end with UNAVAILABLE. */
void ampd_coord_interrupt(struct ampd_model *model);
/*
 * SYNC found nothing lost: back to sync.before. An open step is opened in a new try, and all that may be lost is sent.
 */
void ampd_coord_resume(struct ampd_model *model);
/* A new epoch: forgets the step, the last verdict's apply, and checkpoints, loads and actions that are under way. */
void ampd_coord_forget_step(struct ampd_model *model);
/* Sends a shard again all that a broken session may have lost, as the present state asks for it. */
void ampd_coord_resend(struct ampd_model *model, uint32_t shard);
/* Change a state; assert that its table allows it. DONE also ends the streams that watch the history. */
void ampd_coord_set(struct ampd_model *model, enum ampd_coord_state state);
void ampd_coord_set_step(struct ampd_coord *coord, enum ampd_step_state to);
void ampd_coord_set_decision(struct ampd_coord *coord, enum ampd_decided_state to);
/* A rank has joined or left, a lease has ended, or an action is stored: opens a step or a new try if that is due. */
void ampd_coord_ranks(struct ampd_model *model);
/*
 * Whether the step after the last decided one is open, or may have been before a start or SYNC: then gradients may
 * carry the scale in step.open.
 */
bool ampd_coord_was_open(const struct ampd_coord *coord);
/* Handles COMPLETE of the present try: closes the step after the last contributor, or sends UNFIT. */
void ampd_coord_complete(struct ampd_model *model, const struct ampd_message *message);
/* Whether the push of a rank is complete on all shards, for the present try. */
bool ampd_coord_is_complete(const struct ampd_model *model, uint32_t rank);
/* Whether a verdict will come without anybody joining: enough ranks of the open step have pushed or live. */
bool ampd_coord_decides_soon(const struct ampd_model *model);
/* Whether the step cannot go on before this rank pushes, or before it joins where none can open. */
bool ampd_coord_waits_for(const struct ampd_model *model, uint32_t rank);
/* Handles VOTE of the present try, once its sender has applied the step before. The last one makes the verdict. */
void ampd_coord_vote(struct ampd_model *model, const struct ampd_message *message);
/* Stores the row of decision.verdict; the step must be VOTED. */
void ampd_coord_store_verdict(struct ampd_model *model);
/* It is stored: the step is decided. Sends VERDICT, and OPEN of the next step if one opens. */
void ampd_coord_verdict_stored(struct ampd_model *model);
/* Handles APPLIED of the last decided step. */
void ampd_coord_applied(struct ampd_model *model, const struct ampd_message *message);
/* Whether steps have begun and the model is not done: RUNNING, STALLED or FINISHING. */
bool ampd_coord_has_steps(const struct ampd_coord *coord);
/* Whether a scale at its floor keeps steps from opening before an operator acts. After max_steps none opens anyway. */
bool ampd_coord_is_frozen(const struct ampd_model *model);
/* RUNNING becomes STALLED when a rank has been gone for loss_timeout, and RUNNING again when it is back. */
void ampd_coord_review(struct ampd_model *model);
/* Sends STATE to all shards. */
void ampd_coord_send_state(struct ampd_model *model);
/* The state as clients see it. */
enum ampd_model_state ampd_coord_public(const struct ampd_model *model);
/* Frees all that the coordinator of the model owns. */
void ampd_coord_close(struct ampd_model *model);

#endif
