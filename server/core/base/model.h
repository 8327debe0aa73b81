/*
 * One model of a process: what it is made of, its shard and its coordinator (process/models.c). Private to server/core.
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
    uint32_t index;
    struct ampd_model_spec spec;
    struct ampd_layout *layout;
    struct ampd_tensors tensors;
    struct ampd_shard *shard;
    struct ampd_coord *coord;                                                       /* used by shard 0 */
    struct ampd_worker *workers;                                                    /* [world_size], likewise */
    struct amp_list pushes, pulls, loads, checkpoints, creates, rollbacks, deletes; /* calls */
    int64_t created_us;                                                             /* UTC, for the records alone */
    char owner[AMPD_ACTOR_MAX]; /* who created it, for the owner's quota (shard 0); "": not known */
    uint64_t memory_bytes;      /* counted in the core's */
    uint64_t alive_due_ms;      /* another shard: when the next ALIVE is due; 0: none is */
    uint64_t alive_told_ms;     /* another shard: when the last ALIVE was sent */
    bool gone;                  /* deleted: its place is free, and nothing finds it */
    struct amp_list grave;      /* among the core's */
    uint32_t holds; /* calls, writes and the host that use it: specification and layout stay as long as it is not 0 */
};

/* A model with its memory, in the core's table. AMP_EEXHAUSTED with a text. */
int ampd_model_new(struct ampd_core *core, const struct ampd_model_spec *spec, struct ampd_model **model,
                   struct amp_error *error);
void ampd_model_free(struct ampd_model *model);

/* What a model of a checked specification would count for in the core's memory. AMP_ENOMEM. */
int ampd_model_most_bytes(const struct ampd_core *core, const struct ampd_model_spec *spec, uint64_t *bytes);
void ampd_model_forget(struct ampd_model *model); /* deleted: its memory is free; the place is for the next one */

#endif
