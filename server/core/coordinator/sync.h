/*
 * SYNC: shard 0 asks all shards what they hold of each model, after a start of any of them, and decides where each
 * model goes on (sync.c). All functions run on the thread that steps the core, on shard 0. Private to server/core.
 */
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
struct ampd_load_base;
struct ampd_message;
struct ampd_model;

/* SYNC of a model: what its shards have answered. */
struct ampd_sync_found {
    struct ampd_message *answers[AMPD_SHARDS_MAX]; /* [k] SYNCED of shard k, or NULL; owned */
    uint64_t misfits;                              /* bits of the shards whose answer cannot be about this model */
    uint64_t started;             /* bits of the shards that have started since the model was last decided on */
    uint32_t untried;             /* how many checkpoints of shard 0's answer, the oldest first, have not been tried */
    enum ampd_coord_state before; /* the state that SYNC has interrupted, to which ampd_coord_resume goes back */
};

/* RESTORE on all shards. */
struct ampd_coord_restore {
    uint64_t round;             /* of the RESTORE; its answers name it */
    uint64_t unread;            /* bits of the shards that cannot read the checkpoint now */
    bool failed;                /* a shard's part is damaged, gone, or of another state than the others' */
    bool absent;                /* a shard has dropped the checkpoint since it answered SYNC */
    struct ampd_restore result; /* the first shard's answer, with which all others must agree */
};

/* Begins a new round of SYNC: all models that are not being deleted are SYNCING until all shards have answered. */
void ampd_sync_start(struct ampd_core *core);

/*
 * Handles HELLO. True: the sender's answer to SYNC counts already, so the caller sends again what was asked of it.
 * False: a new round was begun for it, or the core has not started yet.
 */
bool ampd_sync_hello(struct ampd_core *core, const struct ampd_message *message);

/* Whether the model cannot be brought back now: it was refused, or a shard's disk cannot be read. */
bool ampd_sync_troubled(const struct ampd_model *model);

/* Handles SYNCED of the present round. A model that shard 0 does not know is made from another shard's answer. */
void ampd_sync_answer(struct ampd_core *core, const struct ampd_message *message);

/* Whether shard k has named the checkpoint in its answer. */
bool ampd_sync_holds(const struct ampd_coord *coord, uint32_t k, uint64_t epoch, uint64_t step);

/* The record of the checkpoint in shard k's answer, or NULL. A view, valid until the next round. */
const struct ampd_checkpoint_record *ampd_sync_record_of(const struct ampd_coord *coord, uint32_t k, uint64_t epoch,
                                                         uint64_t step);

/* Handles SYNC_DONE. After the last shard's the round is over, and each model is decided on by itself. */
void ampd_sync_done(struct ampd_core *core, const struct ampd_message *message);

/* Handles NOT_CREATED: the model that is being created is taken back on all shards. */
void ampd_sync_not_created(struct ampd_model *model, const struct ampd_message *message);

/*
 * The model is CREATED, and a new epoch without values begins, in which another load may have the grant; a load there
 * must go on from `load`. NULL: from what the present epoch's had to.
 */
void ampd_sync_begin_anew(struct ampd_model *model, const struct ampd_load_base *load, const char *reason);

/* Sends RESTORE (with PARTS before it) or EPOCH again, as the state is, to a shard that has not answered it. */
void ampd_sync_resend(struct ampd_model *model, uint32_t shard);

/* Sends RESTORE of coord.rollback's checkpoint to all shards. */
void ampd_sync_roll_back(struct ampd_model *model);

/*
 * The process of a shard is gone, or its session is over. What it has answered to RESTORE or EPOCH counts again when it
 * says so: the next process may hold less. No effect on another shard than 0.
 */
void ampd_sync_gone(struct ampd_core *core, uint32_t shard);

/*
 * Handles RESTORED. After the last shard's the new epoch is stored; or, where a part cannot be used, the checkpoint
 * before is taken, SYNC begins again, or a rollback fails.
 */
void ampd_sync_restored(struct ampd_model *model, const struct ampd_message *message);

#endif
