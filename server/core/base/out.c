/* The queue of outputs. What an output points to is owned by its node until the next one is asked for. */
#include "server/core/base/out.h"

#include "base/assert.h"
#include "server/core/base/model.h"
#include "server/core/base/process.h"
#include "server/core/core.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OWNED_MAX 6 /* most pointers of one output: those of a PERSIST */

struct ampd_out_node {
    struct amp_list node;
    struct ampd_output output;
    void *owned[OWNED_MAX];
    struct ampd_message *message;
    void (*free_message)(struct ampd_message *message);
};

void *ampd_need(void *memory)
{
    AMP_NEED(memory != NULL);
    return memory;
}

void *ampd_copy(const void *from, size_t size)
{
    void *copy = malloc(size == 0 ? 1 : size);
    if (copy != NULL && size > 0)
        memcpy(copy, from, size);
    return copy;
}

static void node_free(struct ampd_out_node *node)
{
    if (node == NULL)
        return;
    for (unsigned i = 0; i < OWNED_MAX; i++)
        free(node->owned[i]);
    if (node->message != NULL)
        node->free_message(node->message);
    free(node);
}

struct ampd_output *ampd_out(struct ampd_core *core, enum ampd_output_type type, uint64_t call)
{
    struct ampd_out_node *node = ampd_need(calloc(1, sizeof *node));
    node->output.type = type;
    node->output.call = call;
    amp_list_push(&core->outputs, &node->node);
    return &node->output;
}

void *ampd_out_own(struct ampd_core *core, void *memory)
{
    struct ampd_out_node *last = AMP_CONTAINER(core->outputs.prev, struct ampd_out_node, node);
    AMP_ASSERT(memory != NULL && !amp_list_empty(&core->outputs));
    for (unsigned i = 0; i < OWNED_MAX; i++) {
        if (last->owned[i] == NULL) {
            last->owned[i] = memory;
            return memory;
        }
    }
    AMP_ASSERT(!"an output owns more than OWNED_MAX pointers");
    return memory;
}

struct ampd_pending *ampd_out_persist_plain(struct ampd_core *core, enum ampd_persist_kind kind,
                                            struct ampd_persist **persist)
{
    struct ampd_pending *pending = ampd_need(calloc(1, sizeof *pending));
    pending->token = ++core->last_token;
    pending->kind = kind;
    amp_list_push(&core->pendings, &pending->node);
    struct ampd_output *output = ampd_out(core, AMPD_OUT_PERSIST, 0);
    output->u.persist.token = pending->token;
    output->u.persist.kind = kind;
    output->u.persist.model = "";
    output->u.persist.at_us = core->utc_us;
    output->u.persist.full = true;
    *persist = &output->u.persist;
    return pending;
}

/*
 * Whether a write must survive a loss of power before it is answered. Rows (VERDICT, ACT) are stored as this says. For
 * all other kinds the store decides (storage/store.h), and this repeats it for the simulator; io_persist checks that.
 */
static bool is_full(const struct ampd_model *model, enum ampd_persist_kind kind)
{
    if (kind == AMPD_PERSIST_VERDICT)
        return model->spec.durability == AMPD_DURABILITY_STEP;
    return kind != AMPD_PERSIST_WORKER;
}

struct ampd_pending *ampd_out_persist(struct ampd_model *model, enum ampd_persist_kind kind, uint64_t call,
                                      struct ampd_persist **persist)
{
    struct ampd_pending *pending = ampd_out_persist_plain(model->core, kind, persist);
    pending->model = model;
    model->holds++;
    pending->call = call;
    (*persist)->model = model->spec.name;
    (*persist)->full = is_full(model, kind);
    return pending;
}

void ampd_out_log(struct ampd_core *core, enum amp_log_level level, const struct ampd_model *model, const char *format,
                  ...)
{
    char text[AMP_ERROR_TEXT_MAX];
    va_list arguments;
    if (level == AMP_LOG_DEBUG && !core->debug)
        return;
    va_start(arguments, format);
    (void)vsnprintf(text, sizeof text, format, arguments); /* a text that is too long is truncated */
    va_end(arguments);
    struct ampd_output *output = ampd_out(core, AMPD_OUT_LOG, 0);
    output->u.log.level = level;
    output->u.log.model = model == NULL ? "" : model->spec.name;
    char *copy = ampd_need(malloc(sizeof text));
    (void)snprintf(copy, sizeof text, "%s", text);
    output->u.log.text = ampd_out_own(core, copy);
}

void ampd_core_set_debug(struct ampd_core *core, bool on)
{
    core->debug = on;
}

bool ampd_core_next(struct ampd_core *core, struct ampd_output *output)
{
    node_free(core->handed);
    core->handed = NULL;
    struct amp_list *first = amp_list_shift(&core->outputs);
    if (first == NULL) {
        ampd_core_free_replaced(core);
        return false;
    }
    core->handed = AMP_CONTAINER(first, struct ampd_out_node, node);
    *output = core->handed->output;
    return true;
}

void ampd_out_message_take(struct ampd_core *core, struct ampd_message *message,
                           void (*free_message)(struct ampd_message *message))
{
    AMP_ASSERT(message != NULL);
    struct ampd_output *output = ampd_out(core, AMPD_OUT_SEND, 0);
    output->u.message = message;
    struct ampd_out_node *last = AMP_CONTAINER(core->outputs.prev, struct ampd_out_node, node);
    last->message = message;
    last->free_message = free_message;
}

void ampd_out_close(struct ampd_core *core)
{
    node_free(core->handed);
    for (struct amp_list *node; (node = amp_list_shift(&core->outputs)) != NULL;)
        node_free(AMP_CONTAINER(node, struct ampd_out_node, node));
}
