/*
 * What the two machines of one process, and what lies below them, ask each other without a message. Private to
 * server/core.
 */
#ifndef AMPD_CORE_LOCAL_H
#define AMPD_CORE_LOCAL_H

#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

struct ampd_model;

/*
 * The shard and the coordinator of a process never look into each other: what they have to do with each other they say
 * by messages, as in different processes. These are the exceptions: answers to a call that need both, and what a
 * coordinator that starts finds in its own store.
 */

/* ---- answered by the shard (shard/local.c, shard/shard_delete.c) ---- */

/* A worker's user state. */
struct ampd_bytes {
    uint8_t *data;
    uint32_t size;
};

/* What the start has found in the store of this shard. */
struct ampd_found {
    uint64_t base_epoch, base_step;
    bool has_carry; /* the record of the newest row, */
    struct ampd_carry carry;
    bool late_action; /* and whether a step was open then with another scale */
    float open_scale;
    uint64_t open_scale_id;
};

uint64_t ampd_local_epoch(const struct ampd_model *model);
uint64_t ampd_local_next_step(const struct ampd_model *model); /* the open step, or the next one */

/* What the shard has seen of the open step, UTC microseconds; 0: nothing yet. For the records alone. */
struct ampd_seen {
    int64_t pulled_us; /* the last of its workers had what it pulled before its push */
    int64_t pushed_us; /* its first push began */
};
struct ampd_seen ampd_local_seen(const struct ampd_model *model);

/* The open step, if it goes on without the rank; 0: no. */
uint64_t ampd_local_goes_without(const struct ampd_model *model, uint32_t rank);
struct ampd_found ampd_local_found(const struct ampd_model *model);
struct ampd_carry ampd_local_carry(const struct ampd_model *model);
bool ampd_local_loads(const struct ampd_model *model);     /* first values are on their way */
bool ampd_local_is_stored(const struct ampd_model *model); /* the store has the model, or is about to */
const struct ampd_checkpoint_record *ampd_local_checkpoint(const struct ampd_model *model, uint64_t epoch,
                                                           uint64_t step); /* NULL: it is not here */
const struct ampd_bytes *ampd_local_user_state(const struct ampd_model *model, uint32_t rank); /* of the base step */
void ampd_local_load_closed(struct ampd_model *model, uint64_t call); /* the loader's stream is gone */
void ampd_local_new_coordinator(struct ampd_model *model);            /* another process is shard 0: it counts anew */
/* Pulls and pushes that wait are judged again: those of a worker that has lost its rank end. */
void ampd_local_retry(struct ampd_model *model);
void ampd_local_delete(struct ampd_model *model);     /* the shard begins to forget the model, */
void ampd_local_delete_try(struct ampd_model *model); /* and does when nothing of it is under way any more */

/* ---- answered by the coordinator, on shard 0 (coord.c, delete.c, actions.c) ---- */

uint64_t ampd_local_coord_epoch(const struct ampd_model *model);
const char *ampd_local_trouble(const struct ampd_model *model); /* why it is taken back; "": it is not */
bool ampd_local_delete_waits(const struct ampd_model *model);   /* other shards have not forgotten the model yet */
/* The store of shard 0 has the epoch: what operators did after its base step is taken back. */
void ampd_local_epoch_began(struct ampd_model *model, uint64_t new_epoch, uint64_t base_epoch, uint64_t base_step);

#endif
