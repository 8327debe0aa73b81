#include "client/core/outbox.h"

#include "base/assert.h"
#include "client/core/machine.h"

#include <stdlib.h>

/*
 * Most outputs, other than PUSH_BLOCKS and LOG, that can wait to be taken at a time. A call and its cancellation are
 * two outputs, and the next call of its kind begins only when it has ended. SHARD: Pull, GetPushState, and Push with
 * its end, of each shard. UNITS: the Pulls of a unit. OTHER: Join, KeepAlive, Leave, answers and timers.
 */
#define SPARE_SHARD 7
#define SPARE_UNITS (2 * AMPCLIENT_SHARDS_MAX)
#define SPARE_OTHER 16

/* ---- memory ---- */

static uint32_t spare_max(const struct ampclient_core_config *config)
{
    return SPARE_SHARD * config->shards + (config->units ? SPARE_UNITS : 0) + SPARE_OTHER;
}

int ampclient_core_outbox_init(struct ampclient_core *core)
{
    amp_list_init(&core->outputs);
    amp_list_init(&core->spare);
    for (uint32_t i = 0; i < spare_max(&core->config); i++) {
        struct ampclient_out_node *node = calloc(1, sizeof *node);
        if (node == NULL)
            return AMP_ENOMEM;
        amp_list_push(&core->spare, &node->node);
        core->spare_count++;
    }
    return 0;
}

static void free_all(struct amp_list *list)
{
    for (struct amp_list *node; (node = amp_list_shift(list)) != NULL;)
        free(AMP_CONTAINER(node, struct ampclient_out_node, node));
}

void ampclient_core_outbox_close(struct ampclient_core *core)
{
    free(core->handed);
    free_all(&core->outputs);
    free_all(&core->spare);
}

/* The output is over: its memory replaces what was taken of the spare one. */
static void put_back(struct ampclient_core *core, struct ampclient_out_node *node)
{
    if (node == NULL)
        return;
    if (core->spare_count == spare_max(&core->config)) {
        free(node);
        return;
    }
    amp_list_push(&core->spare, &node->node);
    core->spare_count++;
}

static struct ampclient_out_node *take_spare(struct ampclient_core *core)
{
    struct amp_list *node = amp_list_shift(&core->spare);
    AMP_ASSERT(node != NULL);
    core->spare_count--;
    return AMP_CONTAINER(node, struct ampclient_out_node, node);
}

/* ---- outputs ---- */

static struct ampclient_output *append(struct ampclient_core *core, struct ampclient_out_node *node,
                                       enum ampclient_output_type type)
{
    *node = (struct ampclient_out_node){.output.type = type};
    amp_list_push(&core->outputs, &node->node);
    return &node->output;
}

struct ampclient_output *ampclient_core_push_output(struct ampclient_core *core, enum ampclient_output_type type)
{
    struct ampclient_out_node *node = malloc(sizeof *node);
    return append(core, node != NULL ? node : take_spare(core), type);
}

struct ampclient_output *ampclient_core_try_output(struct ampclient_core *core, enum ampclient_output_type type)
{
    struct ampclient_out_node *node = malloc(sizeof *node);
    return node != NULL ? append(core, node, type) : NULL;
}

struct ampclient_output *ampclient_core_out(struct ampclient_core *core, enum ampclient_output_type type,
                                            uint32_t shard, uint64_t deadline_ms, uint64_t *call)
{
    struct ampclient_output *output = ampclient_core_push_output(core, type);
    output->shard = shard;
    output->deadline_ms = deadline_ms;
    output->model = core->model;
    output->worker = core->worker;
    output->rank = core->has_model ? (int32_t)core->rank : core->config.rank;
    output->world_size = core->config.world_size;
    output->replace = core->config.replace;
    output->incarnation = core->incarnation;
    if (call != NULL) {
        *call = ++core->last_call;
        output->call = *call;
    }
    return output;
}

/* The user state that was the newest when the header was queued may have been freed since. */
static void put_user_state(struct ampclient_core *core, struct ampclient_output *header)
{
    header->u.push.user_state = core->user_state;
    header->u.push.user_state_size = core->user_state_size;
    core->push.outdated[header->shard] = false;
}

bool ampclient_core_next(struct ampclient_core *core, struct ampclient_output *output)
{
    put_back(core, core->handed);
    core->handed = NULL;
    struct amp_list *first = amp_list_shift(&core->outputs);
    if (first == NULL)
        return false;
    core->handed = AMP_CONTAINER(first, struct ampclient_out_node, node);
    if (core->handed->output.type == AMPCLIENT_OUT_PUSH)
        put_user_state(core, &core->handed->output);
    *output = core->handed->output;
    return true;
}

bool ampclient_core_has_output(const struct ampclient_core *core)
{
    return !amp_list_empty(&core->outputs);
}

bool ampclient_core_take_done(struct ampclient_core *core, struct ampclient_user_done *done)
{
    if (amp_list_empty(&core->outputs))
        return false;
    struct ampclient_out_node *first = AMP_CONTAINER(core->outputs.next, struct ampclient_out_node, node);
    if (first->output.type != AMPCLIENT_OUT_USER_DONE)
        return false;
    *done = first->output.u.done;
    amp_list_remove(&first->node);
    put_back(core, first);
    return true;
}

void ampclient_core_cancel(struct ampclient_core *core, uint64_t *call, bool stream)
{
    if (*call == 0)
        return;
    ampclient_core_push_output(core, AMPCLIENT_OUT_CANCEL)->call = *call;
    if (stream) {
        AMP_ASSERT(core->streams_dying < AMPCLIENT_DYING_MAX);
        core->dying[core->streams_dying++] = *call;
    }
    *call = 0;
}
