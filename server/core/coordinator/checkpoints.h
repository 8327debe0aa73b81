/*
 * Which steps become a checkpoint, and when one is durable, as the coordinator decides it (checkpoints.c). All
 * functions run on the thread that steps the core, on shard 0. Private to server/core.
 */
#ifndef AMPD_CORE_CHECKPOINTS_H
#define AMPD_CORE_CHECKPOINTS_H

#include "server/core/base/limits.h"
#include "server/core/wire/messages.h"

#include <stdbool.h>
#include <stdint.h>

struct ampd_checkpoint_record;
struct ampd_coord;
struct ampd_core;
struct ampd_event_named;
struct ampd_message;
struct ampd_model;

/* A checkpoint that is being written on all shards. */
struct ampd_coord_writing {
    uint64_t step;
    uint64_t bits;                          /* bit k: shard k has its part */
    uint8_t manifests[AMPD_SHARDS_MAX][16]; /* [k], with bit k: the hash of that part's manifest */
};

/* The checkpoints of a model. */
struct ampd_coord_checkpoints {
    bool wanted; /* a Checkpoint call waits for one: at the next verdict, or at the last step if no verdict is near */
    struct ampd_coord_writing writing[AMPD_CHECKPOINTS_WRITING_MAX]; /* [writing_count] steps rise */
    uint32_t writing_count;
    struct ampd_parts parts; /* the newest PARTS that was sent; count 0: none */
    uint64_t parts_sent;     /* 1 + the newest step of which all parts are there, so that PARTS was sent; 0: none */
    uint64_t parts_known[AMPD_SHARDS_MAX]; /* 1 + the newest step whose parts the store of shard k knows; 0: none */
    uint64_t durable_step; /* of the newest durable checkpoint; the base step where there is none in the epoch */
    bool exists;           /* a checkpoint is durable */
};

/*
 * Whether a process may end as far as this model is concerned: the last decided step is in a durable checkpoint, or
 * there is nothing that one could be waited for.
 */
bool ampd_coord_drained(const struct ampd_model *model);

/* The shards begin a part of this step: PART_DONE is awaited of all. At most AMPD_CHECKPOINTS_WRITING_MAX at a time. */
void ampd_checkpoints_expect(struct ampd_coord *coord, uint64_t step);

/* Whether a checkpoint of this step is being written, or all its parts are there and it is not durable yet. */
bool ampd_checkpoints_under_way(const struct ampd_coord *coord, uint64_t step);

/* A new epoch is stored on all shards: the stores of all know the parts of its base, if it has one. */
void ampd_checkpoints_begin(struct ampd_model *model);

/*
 * SYNC has found nothing lost: takes from the answers what each store knows. `newest`: the newest checkpoint that all
 * hold (epoch 0: none). Returns 1 + the step of the newest one whose parts all stores know; 0: there is none.
 */
uint64_t ampd_checkpoints_adopt(struct ampd_model *model, const struct ampd_checkpoint_record *newest);

/*
 * The process of a shard is gone, or its session is over. What its store knows beyond what is durable counts again when
 * it says so: the next process may have been filled from a store that did not know it yet. No effect on another shard.
 */
void ampd_checkpoints_gone(struct ampd_core *core, uint32_t shard);

/* Sends CUT at the last decided step to all shards. No verdict of a later step may have been sent. */
void ampd_checkpoints_send(struct ampd_model *model);

/*
 * Sends CUT at the last decided step if that is in no checkpoint, all shards have applied it, and no verdict is near:
 * steps pause because a shard is about to end, or a Checkpoint call waits and too few workers are there. It also does
 * so where the journal needs a checkpoint and the parts of the last ones were lost. While too many are under way, it
 * does so when one of these is there.
 */
void ampd_checkpoints_try(struct ampd_model *model);

/* Sends CUT again for each checkpoint under way of which the shard has not reported its part. */
void ampd_checkpoints_resend(struct ampd_model *model, uint32_t shard);

/* `started`, bits of shards whose process is new: parts that they were writing will not come, so they are given up. */
void ampd_checkpoints_lost(struct ampd_model *model, uint64_t started);

/* Handles PART_DONE: sends PARTS after the last part, and calls the checkpoint durable once all stores know them. */
void ampd_coord_part_done(struct ampd_model *model, const struct ampd_message *message);

/* The RPC Checkpoint: answered when a checkpoint of the last decided step or a later one is durable. */
void ampd_coord_checkpoint(struct ampd_core *core, uint64_t call, const struct ampd_event_named *named);

/* Sends PARTS of a checkpoint to all shards: manifests[k] is that of shard k's part. No effect with one shard. */
void ampd_checkpoints_send_parts(struct ampd_model *model, uint64_t epoch, uint64_t step,
                                 const uint8_t (*manifests)[16]);

/*
 * Sends PARTS of a checkpoint that all answers to SYNC name, by shard 0's record of it; epoch 0: forgets the last
 * PARTS.
 */
void ampd_checkpoints_send_synced(struct ampd_model *model, const struct ampd_checkpoint_record *newest);

/* Sends the newest PARTS again to a shard whose session may have lost it. */
void ampd_checkpoints_resend_parts(struct ampd_model *model, uint32_t shard);

#endif
