/*
 * How a model is created, and who may load its first values (coord_load.c). All functions run on the thread that steps
 * the core, on shard 0 unless it is said otherwise. Private to server/core.
 */
#ifndef AMPD_CORE_COORD_LOAD_H
#define AMPD_CORE_COORD_LOAD_H

#include <stdbool.h>
#include <stdint.h>

struct ampd_core;
struct ampd_event_create;
struct ampd_message;
struct ampd_model;

/* Which load may write first values. A load is named by the number that its client gave it on every shard. */
struct ampd_coord_load {
    uint64_t loader;        /* the load that has the grant of this epoch, or 0 */
    uint64_t until_ms;      /* when another load may take the grant, if no LOAD_WANT of this one comes before */
    uint64_t done_bits;     /* bits of the shards whose values are all there */
    uint64_t next;          /* the load that the present epoch was begun for (reason IMPORT), or 0 */
    uint64_t next_until_ms; /* when another load may come before that one */
};

/*
 * CreateModel. Answered when all shards have stored the model's first epoch; at once if it exists with the same
 * specification. Fails on a shard other than 0, while SYNC runs, for a specification that cannot be or differs
 * (AMP_EINVAL, AMP_EUNIMPLEMENTED, AMP_EEXIST), and where memory or the owner's quota is used up (AMP_EEXHAUSTED).
 */
void ampd_coord_create(struct ampd_core *core, uint64_t call, const struct ampd_event_create *create);

/*
 * Whether the model is being created: it has no values, and not all shards have stored its epoch. True for a model that
 * is created for the first time, and for one that a start has found on some of the shards alone.
 */
bool ampd_coord_creates(const struct ampd_model *model);

/* All shards have stored the epoch: answers the CreateModel calls that wait. */
void ampd_coord_created(struct ampd_model *model);

/* Ends the CreateModel calls that have waited for the time of a lease; the creation itself goes on. Any shard. */
void ampd_coord_sweep(struct ampd_model *model);

/* A LOAD_GRANT for the load that has the grant, to this shard; the caller owns it. */
struct ampd_message *ampd_coord_grant(struct ampd_model *model, uint32_t shard);

/*
 * Handles LOAD_WANT of a model that is CREATED: grants that load, or renews its grant; or begins a new epoch, for a
 * load with another base or because the load with the grant has been silent too long.
 */
void ampd_coord_want(struct ampd_model *model, const struct ampd_message *message);

/* Handles LOAD_GONE: a load broke off with some values written, so that a new epoch begins, in which all are void. */
void ampd_coord_gone(struct ampd_model *model, const struct ampd_message *message);

/* Handles LOADED. After the last shard's the model is LOADED, and its first checkpoint is written. */
void ampd_coord_loaded(struct ampd_model *model, const struct ampd_message *message);

#endif
