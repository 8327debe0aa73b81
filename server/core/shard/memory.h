/*
 * The memory of a model on a shard: how it is brought back, and under which epoch it is written (memory.c). All
 * functions run on the thread that steps the core. Private to server/core.
 */
#ifndef AMPD_CORE_MEMORY_H
#define AMPD_CORE_MEMORY_H

#include "server/core/base/limits.h"
#include "server/core/model/states.h"
#include "server/core/store_outputs.h"

#include <stdbool.h>

struct ampd_epoch_message;
struct ampd_event_restored;
struct ampd_message;
struct ampd_model;
struct ampd_shard;

/* A RESTORE, from the message until the checkpoint is in memory. */
struct ampd_memory_restore {
    uint64_t round; /* of the newest RESTORE; 0: none from the present coordinator */
    bool refused;   /* it named a checkpoint that is not here: the memory is as it was before */
    bool taken; /* `durability: step`: a memory that could be brought back was given up, and no epoch has followed */
    bool waits; /* `record` is to be read once nothing uses the tensors any more */
    uint64_t retry_ms;             /* RESTORING, REPLAYING: when a read that failed is tried again; 0: none is to be */
    bool missing;                  /* the file of the checkpoint was not there */
    char unread[AMPD_TROUBLE_MAX]; /* what cannot be read now, and what to do, as a sentence; "": nothing */
    uint64_t token;                /* of the read that the I/O layer is at; 0: none */
    struct ampd_checkpoint_record record; /* the checkpoint; epoch 0: none, and a load is to bring the values */
    struct ampd_carry carry;              /* as read from the checkpoint */
    uint64_t step, version;               /* as read from the checkpoint */
};

/* Changes the memory's state; asserts that the table allows it. */
void ampd_memory_set(struct ampd_shard *shard, enum ampd_memory_state to);

/*
 * Handles RESTORE: ends the model's streams and checkpoint parts and waits for its jobs, then reads the checkpoint into
 * the tensors, and answers RESTORED. One of a checkpoint that is not here is answered at once and leaves the memory as
 * it is. A repeated one is answered again; one of a SYNC before the newest is ignored.
 */
void ampd_memory_restore(struct ampd_model *model, const struct ampd_message *message);

/* Begins the read if one waits and nothing uses the tensors any more. Called whenever something has let go of them. */
void ampd_memory_try_restore(struct ampd_model *model);

/* AMPD_EVENT_RESTORED: casts what was read, tries again later, or answers that the checkpoint is damaged. */
void ampd_memory_restored(struct ampd_model *model, const struct ampd_event_restored *restored);

/* Reads again what could not be read before, if the time for that has come. */
void ampd_memory_tick(struct ampd_model *model);

/*
 * A checkpoint or a record of the journal cannot be read now, as the sentence says: logs it, and reads again in 5 s.
 * SYNC is answered with `waits` for this model, or RESTORE with `waits`, so that the other models go on meanwhile.
 */
void ampd_memory_read_later(struct ampd_model *model, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Sets the user state of a rank as of the step that the memory is after. Copies the data; size 0: the rank has none. */
void ampd_memory_take_user_state(struct ampd_model *model, uint32_t rank, const uint8_t *data, uint32_t size);

/* All blocks of a restored checkpoint are cast: RESTORED, or REPLAYING where the journal's steps follow. */
void ampd_memory_cast_done(struct ampd_model *model);

/*
 * Handles EPOCH: takes the restored checkpoint, or nothing, as the base of a new epoch, and stores it. Ignored unless
 * it is newer, fits what is in memory, and belongs to the newest SYNC. A repeated one is answered again.
 */
void ampd_memory_epoch(struct ampd_model *model, const struct ampd_message *message);

/* The epoch is stored: the memory becomes READY or EMPTY, and EPOCH_STORED is sent. */
void ampd_memory_epoch_stored(struct ampd_model *model);

/* Sends RESTORED or EPOCH_STORED again, if that is what the present state has to say. */
void ampd_memory_resend(struct ampd_model *model);

/* SYNC came, and a RESTORE before it has taken a memory without an epoch to follow: a replay brings that back. */
void ampd_memory_give_back(struct ampd_model *model);

/* Begins to read the newest checkpoint of the catalogue, which must have one, for a replay of the journal. */
void ampd_memory_begin_replay(struct ampd_model *model);

/* The replay is over: the memory is READY, or, if it has failed, LOST. */
void ampd_memory_end_replay(struct ampd_model *model, bool ok);

#endif
