/* The checkpoints that a shard has (catalogue.c). Private to server/core. */
#ifndef AMPD_CORE_CATALOGUE_H
#define AMPD_CORE_CATALOGUE_H

#include <stdbool.h>
#include <stdint.h>

struct ampd_checkpoint_record;
struct ampd_message;
struct ampd_model;
struct ampd_parts;
struct ampd_shard;

/* The checkpoints of a model on this shard, ascending. */
struct ampd_catalogue {
    struct ampd_checkpoint_record *records;
    uint32_t count, capacity;
    uint32_t parts_storing; /* PARTS of it that are not stored yet */
};

int ampd_catalogue_add(struct ampd_shard *shard, const struct ampd_checkpoint_record *record);
void ampd_catalogue_void(struct ampd_shard *shard, uint64_t base_epoch, uint64_t base_step);
/* Of the checkpoints that exist on all shards, those that nothing keeps go. */
void ampd_catalogue_prune(struct ampd_model *model);
void ampd_catalogue_parts(struct ampd_model *model, const struct ampd_parts *parts); /* PARTS came */
void ampd_catalogue_parts_stored(struct ampd_model *model);
/* Whether the store knows all parts of a checkpoint, so that a shard whose disk is lost can be filled from it. */
bool ampd_catalogue_knows(const struct ampd_model *model, const struct ampd_checkpoint_record *record);
/* Out of the catalogue of the store, and its file. */
void ampd_catalogue_drop(struct ampd_model *model, const struct ampd_checkpoint_record *record);
const struct ampd_checkpoint_record *ampd_catalogue_find(const struct ampd_shard *shard, uint64_t epoch, uint64_t step);
/* HOLDS: an operator would go back to a checkpoint. */
void ampd_catalogue_holds(struct ampd_model *model, const struct ampd_message *message);

#endif
