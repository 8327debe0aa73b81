#include "client/core/client_memory.h"

#include "base/large.h"
#include "client/core/machine.h"

#include <stdlib.h>
#include <string.h>

size_t ampclient_core_memory_size(const struct ampclient_core *core)
{
    return core->config.units ? 0 : (size_t)core->flat.elements * amp_dtype_size(core->cast);
}

int ampclient_core_use_memory(struct ampclient_core *core, void *memory, size_t size, struct amp_error *error)
{
    size_t wanted = ampclient_core_memory_size(core);
    if (wanted == 0 || core->parameters != NULL || core->begun_step != 0) /* shared memory leaves it NULL */
        return amp_error_set(error, AMP_ESTATE, NULL,
                             "memory for the parameters can be given once, after the join and before the first "
                             "step_begin or pull, and not with units");
    if (memory == NULL || (uintptr_t)memory % AMPCLIENT_MEMORY_ALIGN != 0 || size < wanted)
        return amp_error_set(error, AMP_EINVAL, NULL,
                             "give %zu bytes for the parameters, at an address that is a multiple of %d", wanted,
                             AMPCLIENT_MEMORY_ALIGN);
    core->parameters = memory;
    core->parameters_given = true;
    return 0;
}

int ampclient_core_make_parameters(struct ampclient_core *core)
{
    size_t size = ampclient_core_memory_size(core);
    if (size == 0 || core->parameters != NULL)
        return 0;
    core->parameters = aligned_alloc(AMPCLIENT_MEMORY_ALIGN,
                                     (size + AMPCLIENT_MEMORY_ALIGN - 1) & ~(size_t)(AMPCLIENT_MEMORY_ALIGN - 1));
    if (core->parameters == NULL)
        return AMP_ENOMEM;
    amp_large_advise(core->parameters, size);
    memset(core->parameters, 0, size);
    return 0;
}

void ampclient_core_set_in_memory(struct ampclient_core *core, bool in_memory, bool may_pull_ahead)
{
    ampclient_core_pull_cancel(core); /* one begun ahead: its header points into the copies that were mapped before */
    core->in_memory = in_memory && !core->config.units;
    core->may_pull_ahead = in_memory && may_pull_ahead;
    if (core->values == core->parameters)
        return;
    core->values = NULL;
    core->has_values = false;
    core->held_epoch = 0;
    core->held_version = 0;
}

void ampclient_core_leave_memory(struct ampclient_core *core)
{
    core->in_memory = false;
}

bool ampclient_core_in_memory(const struct ampclient_core *core)
{
    return core->in_memory;
}

uint64_t ampclient_core_whole_block(const struct ampclient_core *core)
{
    return core->flat.block_elements;
}

uint64_t ampclient_core_start(const struct ampclient_core *core, uint32_t parameter)
{
    return core->flat.starts[parameter];
}

struct ampclient_incarnation ampclient_core_incarnation(const struct ampclient_core *core)
{
    return core->incarnation;
}

enum amp_dtype ampclient_core_push_dtype(const struct ampclient_core *core)
{
    return core->push.dtype;
}

uint64_t ampclient_core_shard_first(const struct ampclient_core *core, uint64_t block)
{
    uint64_t first = 0, end = 0;
    for (uint32_t k = 0; k < core->config.shards && end <= block; k++)
        ampclient_core_layout_shard(&core->flat, k, core->config.shards, &first, &end);
    return first;
}

void ampclient_core_shard_blocks(const struct ampclient_core *core, uint32_t shard, uint64_t *first, uint64_t *end)
{
    ampclient_core_layout_shard(&core->flat, shard, core->config.shards, first, end);
}

void ampclient_core_name(const struct ampclient_core *core, char name[AMPCLIENT_NAME_MAX])
{
    memcpy(name, core->model, AMPCLIENT_NAME_MAX);
}
