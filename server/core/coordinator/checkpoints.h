/* When a checkpoint is made, and when it is durable (checkpoints.c). Private to server/core. */
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
    uint64_t bits;                          /* shards whose part is done, */
    uint8_t manifests[AMPD_SHARDS_MAX][16]; /* and what it is */
};

/* The checkpoints of a model. */
struct ampd_coord_checkpoints {
    bool wanted; /* by a Checkpoint call: at the next verdict, or at the last decided step if none is near */
    struct ampd_coord_writing writing[AMPD_CHECKPOINTS_WRITING_MAX];
    uint32_t writing_count;
    struct ampd_parts parts; /* that were told last; count 0: none */
    uint64_t parts_told;     /* 1 + the newest step of which all parts are there, so that PARTS has gone out; 0: none */
    uint64_t parts_known[AMPD_SHARDS_MAX]; /* 1 + the newest step of which the shard's store knows them; 0: none */
    uint64_t durable_step;
    bool exists; /* one is durable */
};

bool ampd_coord_drained(const struct ampd_model *model);
void ampd_checkpoints_expect(struct ampd_coord *coord, uint64_t step); /* PART_DONE of all shards */
bool ampd_checkpoints_under_way(const struct ampd_coord *coord, uint64_t step);
void ampd_checkpoints_begin(struct ampd_model *model); /* an epoch: its base, if it has one, is known to all stores */
/* Goes on in an epoch, with what the answers of SYNC say: how far all stores know the parts; 0: no checkpoint. */
uint64_t ampd_checkpoints_adopt(struct ampd_model *model, const struct ampd_checkpoint_record *newest);
/*
 * Shard 0: the process of a shard is gone, or cannot be heard. What its store knows beyond what is durable counts again
 * when it says so: the next process may have been filled from a store that did not know it yet.
 */
void ampd_checkpoints_gone(struct ampd_core *core, uint32_t shard);
void ampd_checkpoints_send(
    struct ampd_model *model); /* CUT at the last decided step: no verdict of a later one has been sent */
/*
 * The same if it is in no checkpoint, and is to be: steps pause, or a Checkpoint would wait for a verdict that is far.
 */
void ampd_checkpoints_try(struct ampd_model *model);
void ampd_checkpoints_resend(struct ampd_model *model, uint32_t shard);
void ampd_checkpoints_lost(struct ampd_model *model, uint64_t started); /* parts that these shards were writing */
void ampd_coord_part_done(struct ampd_model *model, const struct ampd_message *message);
void ampd_coord_checkpoint(struct ampd_core *core, uint64_t call, const struct ampd_event_named *named);

/* The parts of a checkpoint, to all: by their manifests, or as the answers of SYNC tell, to shard 0's record of it. */
void ampd_checkpoints_tell_parts(struct ampd_model *model, uint64_t epoch, uint64_t step,
                                 const uint8_t (*manifests)[16]);
void ampd_checkpoints_tell_synced(struct ampd_model *model, const struct ampd_checkpoint_record *newest);
/* And those that were told last, to a shard that may lack them. */
void ampd_checkpoints_resend_parts(struct ampd_model *model, uint32_t shard);

#endif
