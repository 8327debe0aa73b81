/*
 * The checkpoints that a shard has its part of (catalogue.c). All functions run on the thread that steps the core.
 * Private to server/core.
 */
#ifndef AMPD_CORE_CATALOGUE_H
#define AMPD_CORE_CATALOGUE_H

#include <stdbool.h>
#include <stdint.h>

struct ampd_checkpoint_record;
struct ampd_epoch_record;
struct ampd_message;
struct ampd_model;
struct ampd_parts;
struct ampd_restore;
struct ampd_shard;

/* The checkpoints of a model on this shard. */
struct ampd_catalogue {
    struct ampd_checkpoint_record *records; /* [count] ascending steps; owned */
    uint32_t count, capacity;
    uint32_t parts_storing; /* writes of PARTS (the manifests of all shards' parts) that are not stored yet */
    struct ampd_checkpoint_record *voids; /* [voids_count] not in `records`, with files left; owned */
    uint32_t voids_count;
    bool voids_go; /* a rollback took them out: their files go once all shards have stored its epoch */
    /* The last that HOLDS or RESTORE has asked for: it is kept until the next epoch. held_epoch 0: none. */
    uint64_t held_epoch, held_step;
    uint64_t found_durable_step; /* the durable step when the process or the epoch began; 0: none is known */
};

/* The newest step up to which the store names checkpoints that all shards are known to hold. 0: it names none. */
uint64_t ampd_catalogue_durable(const struct ampd_shard *shard);

/* Adds a copy of a record, or replaces the one of the same epoch and step. AMP_ENOMEM: nothing has changed. */
int ampd_catalogue_add(struct ampd_shard *shard, const struct ampd_checkpoint_record *record);

/*
 * A new epoch begins: takes out the checkpoints above its base step, or all of them if it has no base (base_epoch 0).
 * The store does the same to its own catalogue (AMPD_PERSIST_EPOCH). The files stay until ampd_catalogue_remove_voids.
 */
void ampd_catalogue_void(struct ampd_shard *shard, const struct ampd_epoch_record *epoch);

/* Keeps a copy of a checkpoint that is void, for ampd_catalogue_remove_voids. */
void ampd_catalogue_add_void(struct ampd_shard *shard, const struct ampd_checkpoint_record *record);

/* Asks for the files of void checkpoints to be removed, unless the epoch is not stored yet; no answer comes. */
void ampd_catalogue_remove_voids(struct ampd_model *model);

/*
 * Drops what the specification need not keep (keep_last, keep_every), of the checkpoints that all shards are known to
 * hold. One that a restore reads, or that HELD has promised, stays.
 */
void ampd_catalogue_prune(struct ampd_model *model);

/*
 * Handles PARTS, the manifests of all parts of a checkpoint. Stores them if this shard has its part of it, with the
 * same manifest; if they are stored already, answers PART_DONE with `known` at once.
 */
void ampd_catalogue_parts(struct ampd_model *model, const struct ampd_parts *parts);

/* A write of PARTS is stored. After the last one PART_DONE goes to shard 0, and RESTORED if that waited for it. */
void ampd_catalogue_parts_stored(struct ampd_model *model);

/*
 * Whether the store knows all parts of a checkpoint, so that a shard whose disk is lost can be filled from it. With one
 * shard: always.
 */
bool ampd_catalogue_knows(const struct ampd_model *model, const struct ampd_checkpoint_record *record);

/* The record of a checkpoint, or NULL. A view, valid until the catalogue changes. */
const struct ampd_checkpoint_record *ampd_catalogue_find(const struct ampd_shard *shard, uint64_t epoch, uint64_t step);

/* Keeps the checkpoint, if it is here, until the next epoch, or until another one is asked for. */
void ampd_catalogue_hold(struct ampd_shard *shard, const struct ampd_restore *asked);

/* Handles HOLDS, before a rollback: answers HELD, which says whether the checkpoint is here, and its manifest. */
void ampd_catalogue_holds(struct ampd_model *model, const struct ampd_message *message);

#endif
