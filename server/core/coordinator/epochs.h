/* How an epoch begins (epochs.c). Private to server/core. */
#ifndef AMPD_CORE_EPOCHS_H
#define AMPD_CORE_EPOCHS_H

#include "storage/records.h"

#include <stdint.h>

struct ampd_coord;
struct ampd_core;
struct ampd_event_raised;
struct ampd_message;
struct ampd_model;

/* An epoch that begins. */
struct ampd_new_epoch {
    uint64_t epoch;          /* being stored on all shards; 0: none */
    uint64_t token;          /* of the number that it gets, which is asked for; 0: none is */
    uint64_t version;        /* of the checkpoint that is being restored, */
    struct ampd_carry carry; /* and what it carries: those of the model once the epoch is stored */
};

void ampd_epochs_create(struct ampd_model *model, uint32_t shard); /* CREATE: the shard may not know the model */
void ampd_epochs_send(struct ampd_model *model, uint32_t shard);   /* EPOCH */
void ampd_epochs_store(struct ampd_model *model);                  /* one begins: on all shards */
void ampd_epochs_reason(struct ampd_coord *coord, const char *reason);
void ampd_epochs_first(struct ampd_model *model); /* of a model that is created */
void ampd_epochs_raised(struct ampd_core *core, const struct ampd_event_raised *raised); /* the number of a new epoch */
void ampd_epochs_stored(struct ampd_model *model, const struct ampd_message *message);   /* EPOCH_STORED */

#endif
