/* What happens after a start: shard 0 asks all what they have (sync.c). Private to server/core. */
#ifndef AMPD_CORE_SYNC_H
#define AMPD_CORE_SYNC_H

#include "server/core/base/limits.h"
#include "server/core/model/states.h"
#include "server/core/wire/messages.h"

#include <stdbool.h>
#include <stdint.h>

struct ampd_checkpoint_record;
struct ampd_coord;
struct ampd_core;
struct ampd_event_raised;
struct ampd_load_base;
struct ampd_message;
struct ampd_model;

/* SYNC of a model: what its shards have answered. */
struct ampd_sync_found {
    struct ampd_message *answers[AMPD_SHARDS_MAX]; /* owned */
    uint64_t misfits;                              /* bits of the shards whose answer cannot be of this model */
    uint64_t started;                              /* bits of those that have started since it was last decided on */
    uint32_t untried;             /* how many checkpoints of shard 0's answer, oldest first, have not been tried */
    enum ampd_coord_state before; /* the state that it interrupted */
};

/* RESTORE on all shards. */
struct ampd_coord_restore {
    uint64_t round;  /* its answers have it */
    uint64_t unread; /* bits of those that cannot read the checkpoint now */
    bool failed;
    bool absent;                /* a shard has dropped what was asked for since it answered SYNC */
    struct ampd_restore result; /* what the first shard has told; all must agree */
};

void ampd_sync_start(struct ampd_core *core);
/* True: SYNC goes on, and what was asked of the shard is to be said again. */
bool ampd_sync_hello(struct ampd_core *core, const struct ampd_message *message);
bool ampd_sync_troubled(const struct ampd_model *model); /* shard 0: it cannot be brought back now */
void ampd_sync_answer(struct ampd_core *core, const struct ampd_message *message);
/* Whether shard k has told that it holds the checkpoint. */
bool ampd_sync_holds(const struct ampd_coord *coord, uint32_t k, uint64_t epoch, uint64_t step);
/* As it has told of it, or NULL. */
const struct ampd_checkpoint_record *ampd_sync_told(const struct ampd_coord *coord, uint32_t k, uint64_t epoch,
                                                    uint64_t step);
void ampd_sync_done(struct ampd_core *core, const struct ampd_message *message);
void ampd_sync_not_created(struct ampd_model *model, const struct ampd_message *message);
/*
 * CREATED: a new epoch without values, and another loader may. Its load is to be after the step of `load`; NULL: as in
 * the epoch before.
 */
void ampd_sync_begin_anew(struct ampd_model *model, const struct ampd_load_base *load, const char *reason);
void ampd_sync_resend(struct ampd_model *model, uint32_t shard); /* RESTORE or EPOCH, if it was not answered */
void ampd_sync_roll_back(struct ampd_model *model); /* RESTORE of coord.rollback's checkpoint on all shards */
/*
 * Shard 0: the process of a shard is gone, or cannot be heard. What it has answered to RESTORE or EPOCH counts again
 * when it says so: the next process may hold less.
 */
void ampd_sync_gone(struct ampd_core *core, uint32_t shard);
void ampd_sync_restored(struct ampd_model *model, const struct ampd_message *message);

#endif
