#include "server/core/messages.h"

#include "server/core/spec.h"

#include <stdlib.h>
#include <string.h>

struct ampd_message *ampd_message_new(enum ampd_message_type type)
{
    struct ampd_message *message = calloc(1, sizeof(*message));
    if (message != NULL)
        message->type = type;
    return message;
}

/* Copies `count` items of `size` bytes; a copy of nothing is NULL. False when memory is out. */
static bool copy_items(void **to, const void *from, uint64_t count, size_t size)
{
    *to = NULL;
    if (count == 0)
        return true;
    *to = malloc(count * size);
    if (*to == NULL)
        return false;
    memcpy(*to, from, count * size);
    return true;
}

struct ampd_message *ampd_message_copy(const struct ampd_message *message)
{
    struct ampd_message *copy = malloc(sizeof(*copy));
    if (copy == NULL)
        return NULL;
    *copy = *message;
    void *items = NULL;
    bool ok = true;
    switch (message->type) {
    case AMPD_MESSAGE_CREATE:
        ok = ampd_spec_copy(&copy->u.spec, &message->u.spec) == 0;
        break;
    case AMPD_MESSAGE_VOTE:
        ok = copy_items(&items, message->u.vote.subtrees, message->u.vote.subtrees_count, sizeof(struct ampd_subtree));
        copy->u.vote.subtrees = items;
        break;
    case AMPD_MESSAGE_SYNCED:
        ok = copy_items(&items, message->u.sync.checkpoints, message->u.sync.checkpoints_count,
                        sizeof(struct ampd_checkpoint_record));
        copy->u.sync.checkpoints = items;
        if (ok && ampd_spec_copy(&copy->u.sync.spec, &message->u.sync.spec) != 0) {
            free(items);
            ok = false;
        }
        break;
    default:
        break;
    }
    if (!ok) {
        free(copy);
        return NULL;
    }
    return copy;
}

void ampd_message_free(struct ampd_message *message)
{
    if (message == NULL)
        return;
    if (message->type == AMPD_MESSAGE_CREATE) {
        ampd_spec_clear(&message->u.spec);
    } else if (message->type == AMPD_MESSAGE_VOTE) {
        free(message->u.vote.subtrees);
    } else if (message->type == AMPD_MESSAGE_SYNCED) {
        free(message->u.sync.checkpoints);
        ampd_spec_clear(&message->u.sync.spec);
    }
    free(message);
}
