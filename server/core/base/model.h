/*
 * One model of a process: its specification and memory, its shard and its coordinator (process/models.c). All functions
 * run on the thread that steps the core. Private to server/core.
 */
#ifndef AMPD_CORE_MODEL_H
#define AMPD_CORE_MODEL_H

#include "base/list.h"
#include "server/core/model/tensors.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

struct amp_error;
struct ampd_coord;
struct ampd_core;
struct ampd_layout;
struct ampd_shard;
struct ampd_worker;

struct ampd_model {
    struct ampd_core *core;
    uint32_t index; /* its place in core->models */
    struct ampd_model_spec spec;
    struct ampd_layout *layout;
    struct ampd_tensors tensors;
    struct ampd_shard *shard;
    struct ampd_coord *coord;                                                       /* used on shard 0 */
    struct ampd_worker *workers;                                                    /* [world_size] */
    struct amp_list pushes, pulls, loads, checkpoints, creates, rollbacks, deletes; /* calls (calls.h), oldest first */
    int64_t created_us;         /* UTC microseconds, for the records alone */
    char owner[AMPD_ACTOR_MAX]; /* who created it, for that owner's quota (shard 0); "": not known */
    uint64_t memory_bytes;      /* what it counts for in core->memory_bytes */
    uint64_t alive_due_ms;      /* another shard than 0: when the next ALIVE is due; 0: none is */
    uint64_t alive_sent_ms;     /* another shard than 0: when the last ALIVE was made; 0: never */
    bool gone;                  /* deleted: only specification and layout are left, and nothing finds it by its name */
    struct amp_list replaced;   /* gone, and another model has its place: in core->replaced */
    uint32_t holds; /* calls, writes and readers (ampd_core_hold) that use it: it is not freed before this is 0 */
};

/*
 * Makes a model of a checked specification, with all its memory, in the core's table. The core owns it. AMP_EEXHAUSTED
 * with a text (too many models, memory_max, or no memory): *model is NULL.
 */
int ampd_model_new(struct ampd_core *core, const struct ampd_model_spec *spec, struct ampd_model **model,
                   struct amp_error *error);

/* Frees a model with all it owns; it must not be in the table any more, or the core is being freed. NULL is allowed. */
void ampd_model_free(struct ampd_model *model);

/* Sets *bytes to what a model of a checked specification would count for in core->memory_bytes. AMP_ENOMEM. */
int ampd_model_most_bytes(const struct ampd_core *core, const struct ampd_model_spec *spec, uint64_t *bytes);

/*
 * The model is deleted: frees its memory and marks it `gone`. Specification and layout stay until another model takes
 * its place and nobody holds it. No job may be out.
 */
void ampd_model_forget(struct ampd_model *model);

#endif
