/*
 * What the shard and the coordinator of one process, and what lies below them, ask each other without a message. All
 * functions run on the thread that steps the core. Private to server/core.
 */
#ifndef AMPD_CORE_LOCAL_H
#define AMPD_CORE_LOCAL_H

#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

struct ampd_model;

/*
 * The shard and the coordinator of a process never look into each other's structs: what they have to do with each other
 * they say by messages, as in different processes. These functions are the exceptions: answers to a call that need
 * both, and what a coordinator that starts finds in its own store.
 */

/* ---- answered by the shard (shard/local.c, shard/shard_delete.c) ---- */

/* A worker's user state: `size` bytes that mean nothing to the server. */
struct ampd_bytes {
    uint8_t *data;
    uint32_t size;
};

/* What the start has found in the store of this shard. */
struct ampd_found {
    uint64_t base_epoch, base_step; /* the checkpoint that the epoch began from; base_epoch 0: none */
    bool has_carry;                 /* a row was found, and `carry` is what it hands on */
    struct ampd_carry carry;
    bool late_action;       /* an operator action came while a step was open, which keeps the scale before it */
    float open_scale;       /* late_action: the scale of that step */
    uint64_t open_scale_id; /* late_action: its id */
};

/* The epoch that this shard has stored last. */
uint64_t ampd_local_epoch(const struct ampd_model *model);

/* The open step, or the next one if none is open. */
uint64_t ampd_local_next_step(const struct ampd_model *model);

/* What the shard has seen of the open step, UTC microseconds; 0: nothing yet. For the records alone. */
struct ampd_seen {
    int64_t pulled_us; /* the last of its workers had all that it pulled before its push */
    int64_t pushed_us; /* its first push began */
};
struct ampd_seen ampd_local_seen(const struct ampd_model *model);

/* The open step, if its list of expected workers lacks the rank; else 0. */
uint64_t ampd_local_goes_without(const struct ampd_model *model, uint32_t rank);

/* What the start, or a replay of the journal, has found. */
struct ampd_found ampd_local_found(const struct ampd_model *model);

/* Loss-scale record and set learning rate after the last step that this shard has decided. */
struct ampd_carry ampd_local_carry(const struct ampd_model *model);

/* Whether a load has the grant and its values are not all here and cast. */
bool ampd_local_loads(const struct ampd_model *model);

/* Whether the store of this shard has the model, or an epoch of it is being stored. */
bool ampd_local_is_stored(const struct ampd_model *model);

/* This shard's record of a checkpoint, or NULL. A view, valid until the catalogue changes. */
const struct ampd_checkpoint_record *ampd_local_checkpoint(const struct ampd_model *model, uint64_t epoch,
                                                           uint64_t step);

/* The user state of a rank as of the step that the epoch, or a replay, went on from. A view; size 0: none. */
const struct ampd_bytes *ampd_local_user_state(const struct ampd_model *model, uint32_t rank);

/* The Load stream with this call number is over (ampd_load_closed). */
void ampd_local_load_closed(struct ampd_model *model, uint64_t call);

/* Another process is shard 0 now: it numbers RESTORE and STATE from the beginning. */
void ampd_local_new_coordinator(struct ampd_model *model);

/* Judges pulls and pushes that wait again, so that those of a worker which has lost its rank end. */
void ampd_local_retry(struct ampd_model *model);

/*
 * The shard begins to delete the model: ends its calls, streams, jobs and checkpoint parts. A second call does nothing.
 */
void ampd_local_delete(struct ampd_model *model);

/* Takes the model out of the store, once it is being deleted and nothing of it is under way any more. */
void ampd_local_delete_try(struct ampd_model *model);

/* ---- answered by the coordinator, on shard 0 (coord.c, delete.c, actions.c) ---- */

/* The epoch that the coordinator is in. */
uint64_t ampd_local_coord_epoch(const struct ampd_model *model);

/* Why a creation is taken back, or why the model is refused, as a sentence; "": neither. */
const char *ampd_local_trouble(const struct ampd_model *model);

/* Whether shard 0 has to wait with its own deletion for the other shards. False on another shard. */
bool ampd_local_delete_waits(const struct ampd_model *model);

/* The store of shard 0 has the epoch: what operators did after its base step counts as rolled back. */
void ampd_local_epoch_began(struct ampd_model *model, uint64_t new_epoch, uint64_t base_epoch, uint64_t base_step);

#endif
