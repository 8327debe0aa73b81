/*
 * The memory of a model on a shard: how it is brought back, and under which epoch it is written (memory.c). Private to
 * server/core.
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

/* A RESTORE, from the message to the memory. */
struct ampd_memory_restore {
    uint64_t round; /* of the last one, */
    bool refused;   /* which was of a checkpoint that is not here: the memory is as it was before */
    bool taken;     /* it has taken a memory that checkpoint and journal can bring back; no epoch has followed */
    bool waits;
    uint64_t retry_ms;             /* RESTORING, REPLAYING: when what could not be read is read again; 0: not */
    bool missing;                  /* the file was not there */
    char unread[AMPD_TROUBLE_MAX]; /* what cannot be read now, and what to do, as a sentence; "": nothing */
    uint64_t token;
    struct ampd_checkpoint_record record;
    struct ampd_carry carry;
    uint64_t step, version;
};

void ampd_memory_set(struct ampd_shard *shard, enum ampd_memory_state to); /* as the table allows */
void ampd_memory_restore(struct ampd_model *model, const struct ampd_message *message);
void ampd_memory_try_restore(struct ampd_model *model);
void ampd_memory_restored(struct ampd_model *model, const struct ampd_event_restored *restored);
void ampd_memory_tick(struct ampd_model *model);
/*
 * What is read at a start cannot be read now, as the sentence says: it is tried again, and the other models go on
 * meanwhile.
 */
void ampd_memory_read_later(struct ampd_model *model, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Of the step that the memory is after; size 0: the rank has none. The data are copied. */
void ampd_memory_take_user_state(struct ampd_model *model, uint32_t rank, const uint8_t *data, uint32_t size);
void ampd_memory_cast_done(struct ampd_model *model);
void ampd_memory_epoch(struct ampd_model *model, const struct ampd_message *message);
void ampd_memory_epoch_stored(struct ampd_model *model);
void ampd_memory_tell(struct ampd_model *model); /* RESTORED or EPOCH_STORED, if that is the present state */

void ampd_memory_give_back(struct ampd_model *model); /* SYNC: what a RESTORE without an epoch after it has taken */
void ampd_memory_begin_replay(struct ampd_model *model);
void ampd_memory_end_replay(struct ampd_model *model, bool ok);

#endif
