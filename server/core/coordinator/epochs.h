/*
 * How an epoch begins: its number, and that all shards store it (epochs.c). All functions run on the thread that steps
 * the core, on shard 0. Private to server/core.
 */
#ifndef AMPD_CORE_EPOCHS_H
#define AMPD_CORE_EPOCHS_H

#include "storage/records.h"

#include <stdint.h>

struct ampd_coord;
struct ampd_core;
struct ampd_event_raised;
struct ampd_message;
struct ampd_model;

/* An epoch that begins, and what the model has once it is stored. */
struct ampd_new_epoch {
    uint64_t epoch;          /* its number, while the shards store it, and afterwards; 0: none yet */
    uint64_t token;          /* of RAISE_EPOCH, by which its number was asked for; 0: no answer is waited for */
    uint64_t version;        /* version of its base: of the checkpoint, or of the load that is to come */
    struct ampd_carry carry; /* loss-scale record and rate of its base */
};

/* Sends CREATE to a shard that may not know the model. */
void ampd_epochs_create(struct ampd_model *model, uint32_t shard);

/* Sends EPOCH to a shard, behind CREATE if the model is new. The number must be known. */
void ampd_epochs_send(struct ampd_model *model, uint32_t shard);

/*
 * Begins an epoch from coord.base_epoch and coord.base_step: sends EPOCH to all shards, after its number has been
 * raised outside of the stores if the core is configured with asks_epochs.
 */
void ampd_epochs_store(struct ampd_model *model);

/* Sets the reason that the next epoch's record has. */
void ampd_epochs_reason(struct ampd_coord *coord, const char *reason);

/* Begins the first epoch of a model that is being created. */
void ampd_epochs_first(struct ampd_model *model);

/* AMPD_EVENT_EPOCH_RAISED: sends EPOCH with this number, unless what asked for it is over. */
void ampd_epochs_raised(struct ampd_core *core, const struct ampd_event_raised *raised);

/* Handles EPOCH_STORED. After the last shard's the model goes on in the epoch: CREATED, WAITING or DONE. */
void ampd_epochs_stored(struct ampd_model *model, const struct ampd_message *message);

#endif
