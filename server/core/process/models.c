/* The models of a process: how they are made and freed, and which of them a call may use now. */
#include "server/core/base/model.h"

#include "base/assert.h"
#include "server/core/base/calls.h"
#include "server/core/base/limits.h"
#include "server/core/base/process.h"
#include "server/core/base/worker.h"
#include "server/core/coordinator/coord.h"
#include "server/core/coordinator/sync.h"
#include "server/core/model/layout.h"
#include "server/core/model/passes.h"
#include "server/core/model/spec.h"
#include "server/core/model/tensors.h"
#include "server/core/shard/push.h"
#include "server/core/shard/shard.h"

#include <stdlib.h>
#include <string.h>

/*
 * The most memory that a model may come to take, counted before any of it is allocated: tensors and slots, the arrays
 * for their blocks and segments, user states (a slot's, those of held pushes, of the last step, of the base and of two
 * checkpoint parts), and with `durability: step` the rows of three times the distance between checkpoints.
 */
static uint64_t most_bytes(const struct ampd_core *core, const struct ampd_layout *layout,
                           const struct ampd_model_spec *spec, uint64_t count)
{
    uint64_t states = AMPD_HELD_PUSHES + 5;
    uint64_t per_rank = sizeof(struct ampd_slot) + sizeof(struct ampd_worker) + count + states * AMPD_USER_STATE_MAX +
                        spec->parameters_count * sizeof(struct ampd_segment_count);
    uint64_t rows = spec->durability == AMPD_DURABILITY_STEP ? (uint64_t)3 * AMPD_VOTE_JOURNAL_STEPS : 0;
    return rows * sizeof(struct ampd_step_row) +
           ampd_tensors_bytes(layout, spec, count, core->config.checkpoint_memory) +
           layout->segments_count * sizeof(struct ampd_segment) + count * AMPD_BLOCK_BYTES +
           spec->world_size * per_rank;
}

int ampd_model_most_bytes(const struct ampd_core *core, const struct ampd_model_spec *spec, uint64_t *bytes)
{
    struct ampd_layout *layout;
    if (ampd_layout_new(spec, core->config.block_elements, &layout) != 0)
        return AMP_ENOMEM;
    uint64_t first, count;
    ampd_layout_shard(layout, core->config.shard, AMPD_COUNT(core), &first, &count);
    *bytes = most_bytes(core, layout, spec, count);
    ampd_layout_free(layout);
    return 0;
}

/* The place of a model that is gone, or the first that was never used. */
static uint32_t free_place(const struct ampd_core *core)
{
    for (uint32_t i = 0; i < core->models_count; i++) {
        if (core->models[i]->gone)
            return i;
    }
    return core->models_count;
}

/*
 * A model in one piece of memory. model.h only declares the structs of its machines, so that a file which looks into
 * one has to include its header.
 */
struct whole_model {
    struct ampd_model model; /* first: its address is the whole's */
    struct ampd_shard shard;
    struct ampd_coord coord;
};

static struct ampd_model *allocate_model(void)
{
    struct whole_model *whole = calloc(1, sizeof *whole);
    if (whole == NULL)
        return NULL;
    whole->model.shard = &whole->shard;
    whole->model.coord = &whole->coord;
    return &whole->model;
}

int ampd_model_new(struct ampd_core *core, const struct ampd_model_spec *spec, struct ampd_model **model,
                   struct amp_error *error)
{
    *model = NULL;
    uint32_t index = free_place(core);
    if (index == AMPD_MODELS_MAX)
        return amp_error_set(error, AMP_EEXHAUSTED, "TOO_MANY_MODELS",
                             "this server has %d models, which is the most that it can have", AMPD_MODELS_MAX);
    struct ampd_model *made = allocate_model();
    if (made == NULL)
        goto fail;
    made->core = core;
    made->index = index;
    made->created_us = core->utc_us;
    amp_list_init(&made->pushes);
    amp_list_init(&made->pulls);
    amp_list_init(&made->loads);
    amp_list_init(&made->checkpoints);
    amp_list_init(&made->creates);
    amp_list_init(&made->rollbacks);
    amp_list_init(&made->deletes);
    if (ampd_spec_copy(&made->spec, spec) != 0)
        goto fail;
    if (ampd_layout_new(&made->spec, core->config.block_elements, &made->layout) != 0)
        goto fail;
    uint64_t first, count;
    ampd_layout_shard(made->layout, core->config.shard, AMPD_COUNT(core), &first, &count);
    uint64_t bytes = most_bytes(core, made->layout, &made->spec, count);
    if (core->config.memory_max != 0 && bytes > core->config.memory_max - core->memory_bytes) {
        ampd_model_free(made);
        return amp_error_set(
            error, AMP_EEXHAUSTED, "NO_MEMORY",
            "%s may need %llu bytes of memory, but %llu are left of this server's %llu; start ampd with a larger "
            "--memory-max, or delete models",
            spec->name, (unsigned long long)bytes, (unsigned long long)(core->config.memory_max - core->memory_bytes),
            (unsigned long long)core->config.memory_max);
    }
    if (ampd_tensors_init(&made->tensors, made->layout, &made->spec, first, count, core->config.checkpoint_memory,
                          core->config.copy_memory) != 0)
        goto fail;
    made->workers = calloc(spec->world_size, sizeof *made->workers);
    if (made->workers == NULL || ampd_shard_init(made) != 0)
        goto fail;
    made->memory_bytes = bytes;
    core->memory_bytes += bytes;
    if (index == core->models_count)
        core->models_count++;
    else
        amp_list_push(&core->replaced, &core->models[index]->replaced);
    core->models[index] = made;
    *model = made;
    return 0;
fail:
    ampd_model_free(made);
    return amp_error_set(error, AMP_EEXHAUSTED, "NO_MEMORY", "no memory for the model %s on this server", spec->name);
}

int ampd_core_count_memory(struct ampd_core *core, uint64_t bytes, struct amp_error *error)
{
    uint64_t left = core->config.memory_max - core->memory_bytes;
    if (core->config.memory_max != 0 && bytes > left)
        return amp_error_set(
            error, AMP_EEXHAUSTED, "NO_MEMORY", "%llu bytes are needed, but %llu are left of this server's %llu",
            (unsigned long long)bytes, (unsigned long long)left, (unsigned long long)core->config.memory_max);
    core->memory_bytes += bytes;
    return 0;
}

void ampd_core_uncount_memory(struct ampd_core *core, uint64_t bytes)
{
    AMP_ASSERT(core->memory_bytes >= bytes);
    core->memory_bytes -= bytes;
}

uint64_t ampd_core_memory_counted(const struct ampd_core *core)
{
    return core->memory_bytes;
}

void ampd_model_free(struct ampd_model *model)
{
    if (model == NULL)
        return;
    if (!model->gone) {
        ampd_shard_close(model);
        ampd_coord_close(model);
        ampd_tensors_close(&model->tensors, NULL);
    }
    ampd_layout_free(model->layout);
    ampd_spec_clear(&model->spec);
    free(model->workers);
    free(model);
}

static bool has_workers(const struct ampd_model *model)
{
    for (uint32_t rank = 0; rank < model->spec.world_size; rank++) {
        if (model->workers[rank].has_holder)
            return true;
    }
    return false;
}

void ampd_model_forget(struct ampd_model *model)
{
    AMP_ASSERT(!model->gone && model->shard->jobs.out == 0);
    model->gone = true;
    if (has_workers(model) && model->coord->epoch > model->core->deleted_epoch)
        model->core->deleted_epoch = model->coord->epoch;
    model->core->memory_bytes -= model->memory_bytes;
    ampd_shard_close(model);
    ampd_coord_close(model);
    ampd_tensors_close(&model->tensors, &model->core->config.large_memory);
    *model->shard = (struct ampd_shard){.announced.deleting = true};
    *model->coord = (struct ampd_coord){.state = AMPD_COORD_DELETING};
}

void ampd_core_free_replaced(struct ampd_core *core)
{
    AMP_LIST_EACH(it, next, &core->replaced)
    {
        struct ampd_model *model = AMP_CONTAINER(it, struct ampd_model, replaced);
        if (model->holds > 0)
            continue;
        amp_list_remove(&model->replaced);
        ampd_model_free(model);
    }
}

struct ampd_model *ampd_core_known(struct ampd_core *core, uint64_t call, const char *name)
{
    struct ampd_model *model = ampd_core_model_named(core, name);
    if (model == NULL) {
        ampd_call_fail(
            core, call, NULL, AMP_ENOTFOUND, "MODEL_NOT_FOUND",
            "model: there is none named %s on this server; ampctl models lists those that there are, or create it",
            name);
        return NULL;
    }
    if (model->shard->announced.deleting || model->coord->state == AMPD_COORD_DELETING) {
        ampd_call_fail(core, call, NULL, AMP_ENOTFOUND, "MODEL_NOT_FOUND", "model: %s is being deleted", name);
        return NULL;
    }
    const char *trouble = model->coord->trouble[0] != 0 ? model->coord->trouble : model->shard->restore.unread;
    if (trouble[0] != 0) {
        ampd_call_fail(core, call, NULL, AMP_EUNAVAILABLE, "RECOVERING", "%s", trouble);
        return NULL;
    }
    return model;
}

struct ampd_model *ampd_core_usable(struct ampd_core *core, uint64_t call, const char *name)
{
    struct ampd_model *model = ampd_core_known(core, call, name);
    if (model == NULL)
        return NULL;
    bool creating = core->config.shard == 0 && model->coord->state == AMPD_COORD_CREATING;
    if (creating || model->shard->memory <= AMPD_MEMORY_RESTORED) {
        ampd_call_fail(core, call, NULL, AMP_EUNAVAILABLE, "RECOVERING",
                       "%s is being made ready; try again in a moment", name);
        return NULL;
    }
    return model;
}

struct ampd_model *ampd_core_coordinated(struct ampd_core *core, uint64_t call, const char *name)
{
    struct ampd_model *model = core->config.shard == 0 ? ampd_core_usable(core, call, name) : NULL;
    if (model != NULL && model->coord->state <= AMPD_COORD_STORING) {
        ampd_call_fail(core, call, NULL, AMP_EUNAVAILABLE, "RECOVERING",
                       "%s: a shard has restarted, and the model resumes in a moment; try again then", name);
        return NULL;
    }
    if (core->config.shard == 0)
        return model;
    ampd_call_fail(core, call, NULL, AMP_EUNAVAILABLE, "NOT_COORDINATOR",
                   "this is shard %u; send the call to shard 0, which coordinates", core->config.shard);
    return NULL;
}
