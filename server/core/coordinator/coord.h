/* A model and its step, as the coordinator runs them (coord.c). Private to server/core. */
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

/* The step that collects, of all shards. */
struct ampd_coord_step {
    enum ampd_step_state state;
    struct ampd_open open;
    bool opened_before; /* NONE: it may have been open before a start or SYNC, with the scale that is in `open` */
    struct ampd_close close;
    uint64_t hash;
    uint64_t complete[AMPD_WORLD_MAX];                /* per rank: bit per shard */
    uint32_t complete_count;                          /* ranks that are complete on all shards */
    float weights[AMPD_WORLD_MAX];                    /* per rank, where it is complete on a shard; likewise */
    double rates[AMPD_WORLD_MAX];                     /* its learning rate (schedule WORKER, else 0) */
    double lr;                                        /* CLOSED: the rate of all contributors */
    uint64_t opened_ms, completed_ms[AMPD_WORLD_MAX]; /* of the present try; the latter where complete */
    int64_t whole_us;                                 /* UTC: when its last contributor was complete; 0: not yet */
    uint64_t awaited_told_ms;                    /* when ranks that keep others waiting were last logged; 0: never */
    struct ampd_message *votes[AMPD_SHARDS_MAX]; /* owned */
    uint32_t votes_count;
};

/* The last verdict. */
struct ampd_decision {
    enum ampd_decided_state state;
    struct ampd_verdict_message *verdict; /* being stored, then the last one; owned */
    uint64_t applied_bits;                /* shards that have applied `decided` */
    struct ampd_applied warnings;         /* merged range warnings of the apply before */
    struct ampd_applied gathers;          /* of the present one */
    bool unstable;
    /* UTC: when it was made, and shard 0 had applied it; 0: not by this process, or not in this epoch */
    int64_t made_us, applied_us;
};

/* A model as shard 0 runs it: a struct for each machine, owned by the file that declares it. */
struct ampd_coord {
    enum ampd_coord_state state;
    uint64_t epoch, base_epoch, base_step;
    uint64_t parent_step; /* last one decided in the epoch before a start; 0: none */
    char reason[AMPD_REASON_MAX];
    uint64_t decided;         /* last decided step */
    uint64_t version;         /* after it */
    struct ampd_carry carry;  /* what the newest row that is stored carries on: steps open with it */
    struct ampd_carry newest; /* of the newest one that is stored or being stored: the next row follows from it */
    bool has_record;          /* they are known: not so after a start, until SYNC is over */
    uint64_t state_sequence;  /* of the last STATE */
    uint32_t missing_rank;
    char trouble[AMPD_TROUBLE_MAX]; /* SYNCING: why the model is refused, DELETING: why it is taken back, as a sentence;
                                       "": it is not */
    uint64_t answered;              /* bits: of RESTORE, or of EPOCH */
    uint64_t deleted;               /* bits of the shards that have deleted the model */
    uint64_t delete_round; /* of DELETE: what answers another one does not count; 0: the store has no mark yet */
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

void ampd_coord_record(struct ampd_coord *coord, const struct ampd_carry *carry); /* the one of a new epoch */
void ampd_coord_interrupt(struct ampd_model *model);                              /* SYNC begins */
void ampd_coord_resume(struct ampd_model *model); /* SYNC found nothing lost: a new try */
void ampd_coord_forget_step(struct ampd_model *model);
void ampd_coord_resend(struct ampd_model *model, uint32_t shard);
/* All as their tables allow. */
void ampd_coord_set(struct ampd_model *model, enum ampd_coord_state state);
void ampd_coord_set_step(struct ampd_coord *coord, enum ampd_step_state to);
void ampd_coord_set_decision(struct ampd_coord *coord, enum ampd_decided_state to);
void ampd_coord_ranks(struct ampd_model *model); /* a rank joined, left, or its lease ended; or an operator action is
                                                    stored */
void ampd_coord_complete(struct ampd_model *model, const struct ampd_message *message);
bool ampd_coord_is_complete(const struct ampd_model *model, uint32_t rank); /* its push is whole on all shards */
bool ampd_coord_decides_soon(const struct ampd_model *model); /* enough ranks of the open step have pushed or live */
bool ampd_coord_waits_for(const struct ampd_model *model, uint32_t rank); /* only its push can move the step */
void ampd_coord_vote(struct ampd_model *model, const struct ampd_message *message);
void ampd_coord_store_verdict(struct ampd_model *model);
void ampd_coord_verdict_stored(struct ampd_model *model);
void ampd_coord_applied(struct ampd_model *model, const struct ampd_message *message);
bool ampd_coord_has_steps(const struct ampd_coord *coord); /* steps go on; not so while SYNC finds out from where */
void ampd_coord_review(struct ampd_model *model);          /* STALLED, and for whom, or RUNNING */
void ampd_coord_tell_state(struct ampd_model *model);
enum ampd_model_state ampd_coord_public(const struct ampd_model *model);
void ampd_coord_close(struct ampd_model *model);

#endif
