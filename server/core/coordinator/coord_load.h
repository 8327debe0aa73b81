/* How a model is created, and who may load its first values (coord_load.c). Private to server/core. */
#ifndef AMPD_CORE_COORD_LOAD_H
#define AMPD_CORE_COORD_LOAD_H

#include <stdbool.h>
#include <stdint.h>

struct ampd_core;
struct ampd_event_create;
struct ampd_message;
struct ampd_model;

/* Who may load. */
struct ampd_coord_load {
    uint64_t loader;        /* number of the loader that has the grant of this epoch, or 0 */
    uint64_t until_ms;      /* when another loader may take the grant, if no WANT comes before */
    uint64_t done_bits;     /* shards whose values are all there */
    uint64_t next;          /* number of the loader that the present epoch was begun for, or 0, */
    uint64_t next_until_ms; /* and when another one may come first */
};

void ampd_coord_create(struct ampd_core *core, uint64_t call, const struct ampd_event_create *create);
bool ampd_coord_creates(
    const struct ampd_model *model);               /* it has no values, and not all shards have stored its epoch */
void ampd_coord_created(struct ampd_model *model); /* answers those who wait for it */
void ampd_coord_sweep(struct ampd_model *model);   /* ends those who have waited for the time of a lease */
struct ampd_message *ampd_coord_grant(struct ampd_model *model, uint32_t shard);
void ampd_coord_want(struct ampd_model *model, const struct ampd_message *message);
void ampd_coord_gone(struct ampd_model *model, const struct ampd_message *message);
void ampd_coord_loaded(struct ampd_model *model, const struct ampd_message *message);

#endif
