#include "server/core/wire/messages.h"

#include "base/assert.h"
#include "server/core/model/spec.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Room that is enough for the contents of most messages. */
#define SMALL_BYTES sizeof(struct ampd_vote)

_Static_assert(sizeof(struct ampd_model_spec) <= SMALL_BYTES && sizeof(struct ampd_unfit) <= SMALL_BYTES &&
                   sizeof(struct ampd_applied) <= SMALL_BYTES && sizeof(struct ampd_restore) <= SMALL_BYTES &&
                   sizeof(struct ampd_parts) <= SMALL_BYTES && sizeof(struct ampd_epoch_message) <= SMALL_BYTES &&
                   sizeof(struct ampd_state_message) <= SMALL_BYTES && sizeof(struct ampd_fence) <= SMALL_BYTES,
               "a message that says more has a case in size_of");

/*
 * Bytes of a message of this type. Most messages are small, and some come with every push: to clear and copy as many
 * bytes as the largest has would cost more than all that is done with them.
 */
static size_t size_of(enum ampd_message_type type)
{
    switch (type) {
    case AMPD_MESSAGE_VERDICT:
    case AMPD_MESSAGE_SYNCED:
    case AMPD_MESSAGE_OPEN:
    case AMPD_MESSAGE_CLOSE:
    case AMPD_MESSAGE_ACTS:
    case AMPD_MESSAGE_ALIVE:
        return sizeof(struct ampd_message);
    default:
        return offsetof(struct ampd_message, u) + SMALL_BYTES;
    }
}

struct ampd_message *ampd_message_new(enum ampd_message_type type)
{
    struct ampd_message *message = calloc(1, size_of(type));
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
    struct ampd_message *copy = malloc(size_of(message->type));
    if (copy == NULL)
        return NULL;
    memcpy(copy, message, size_of(message->type));
    void *items = NULL;
    bool ok = true;
    switch (message->type) {
    case AMPD_MESSAGE_CREATE:
        ok = ampd_spec_copy(&copy->u.spec, &message->u.spec) == 0;
        break;
    case AMPD_MESSAGE_VOTE:
        ok = copy_items(&items, message->u.vote.subtrees, message->u.vote.subtrees_count, sizeof(struct ampd_subtree));
        copy->u.vote.subtrees = items;
        if (ok && !copy_items(&items, message->u.vote.shared, message->u.vote.shared_count,
                              sizeof(struct ampd_overflow_row))) {
            free(copy->u.vote.subtrees);
            ok = false;
        }
        copy->u.vote.shared = items;
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
        free(message->u.vote.shared);
    } else if (message->type == AMPD_MESSAGE_SYNCED) {
        free(message->u.sync.checkpoints);
        ampd_spec_clear(&message->u.sync.spec);
    }
    free(message);
}

uint64_t ampd_contributors_hash(const struct ampd_contributor *contributors, uint32_t count)
{
    uint64_t words[AMPD_WORLD_MAX * 4] = {0};
    AMP_ASSERT(count <= AMPD_WORLD_MAX);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t *word = words + 4 * (size_t)i;
        word[0] = contributors[i].rank;
        word[1] = contributors[i].incarnation.fence;
        word[2] = contributors[i].incarnation.counter;
        memcpy(&word[3], &contributors[i].weight, sizeof contributors[i].weight);
    }
    return XXH3_64bits(words, 4 * (size_t)count * sizeof words[0]);
}

void ampd_close_of_open(const struct ampd_open *open, struct ampd_close *close)
{
    *close = (struct ampd_close){.step = open->step,
                                 .try_number = open->try_number,
                                 .coefficient = open->coefficient,
                                 .contributors_count = open->expected_count};
    for (uint32_t i = 0; i < open->expected_count; i++)
        close->contributors[i] = (struct ampd_contributor){open->expected[i].rank, open->expected[i].incarnation, 1};
}

const struct ampd_expected *ampd_open_find(const struct ampd_open *open, uint32_t rank)
{
    for (uint32_t i = 0; i < open->expected_count; i++) {
        if (open->expected[i].rank == rank)
            return &open->expected[i];
    }
    return NULL;
}
