/*
 * The messages between shards (docs/step-protocol.md section 2) as plain structs. With one shard they travel through a
 * queue in memory; with more, the host carries them.
 */
#ifndef AMPD_MESSAGES_H
#define AMPD_MESSAGES_H

#include "base/err.h"
#include "server/core/wire/step_messages.h"
#include "server/core/wire/sync_messages.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

enum ampd_message_type {
    AMPD_MESSAGE_CREATE = 1,   /* coordinator -> shards: a model that the shard may not know; EPOCH follows */
    AMPD_MESSAGE_LOADED = 2,   /* shard -> coordinator: every block has its first value */
    AMPD_MESSAGE_SYNC = 3,     /* coordinator -> shards, of no model: what do you hold? */
    AMPD_MESSAGE_SYNCED = 4,   /* shard -> coordinator: the answer, one for each model, */
    AMPD_MESSAGE_RESTORE = 5,  /* coordinator -> shards: read and verify this checkpoint */
    AMPD_MESSAGE_RESTORED = 6, /* shard -> coordinator: it is in memory, or it is damaged */
    AMPD_MESSAGE_EPOCH = 7,
    AMPD_MESSAGE_EPOCH_STORED = 8,
    AMPD_MESSAGE_OPEN = 9,
    AMPD_MESSAGE_COMPLETE = 10,
    AMPD_MESSAGE_CLOSE = 11,
    AMPD_MESSAGE_VOTE = 12,
    AMPD_MESSAGE_VERDICT = 13,
    AMPD_MESSAGE_APPLIED = 14,
    AMPD_MESSAGE_CUT = 15, /* coordinator -> shards: take your part now (after Load, before a drain) */
    AMPD_MESSAGE_PART_DONE = 16,
    AMPD_MESSAGE_STATE = 17, /* coordinator -> shards: STALLED and which rank, RUNNING, frozen, DONE */
    AMPD_MESSAGE_HELLO = 18, /* shard -> coordinator, of no model: a session begins; what was under way may be lost */
    AMPD_MESSAGE_SYNC_DONE = 19,   /* shard -> coordinator, of no model: after the last SYNCED */
    AMPD_MESSAGE_LOAD_WANT = 20,   /* shard -> coordinator: a loader waits */
    AMPD_MESSAGE_LOAD_GRANT = 21,  /* coordinator -> shards: who may load in this epoch */
    AMPD_MESSAGE_LOAD_GONE = 22,   /* shard -> coordinator: the loader's stream ended before the model was loaded */
    AMPD_MESSAGE_UNFIT = 23,       /* coordinator -> shards: a push has weights or rates that do not agree */
    AMPD_MESSAGE_TOO_LOW = 24,     /* to the sender: a process with a higher fence has its place */
    AMPD_MESSAGE_NOT_CREATED = 25, /* shard -> coordinator: the model cannot be made there, and why */
    AMPD_MESSAGE_HOLDS = 26,   /* coordinator -> shards: do you hold this checkpoint? An operator would go back to it */
    AMPD_MESSAGE_HELD = 27,    /* shard -> coordinator: the answer */
    AMPD_MESSAGE_DELETE = 28,  /* coordinator -> shards, also to those that may not know the model */
    AMPD_MESSAGE_DELETED = 29, /* shard -> coordinator: it is stored nowhere here any more */
    AMPD_MESSAGE_LEAVE = 30,   /* shard -> coordinator, of no model: this process is about to end */
    AMPD_MESSAGE_MAY_LEAVE = 31, /* coordinator -> shards, of no model: round 1: it may; round 0: not yet */
    AMPD_MESSAGE_PARTS = 32, /* coordinator -> shards: the manifests of all parts of a checkpoint, which are there */
    AMPD_MESSAGE_ACTS = 33,  /* coordinator -> shards: operator actions, stored behind the last decided step */
    AMPD_MESSAGE_ALIVE = 34, /* shard -> coordinator: workers that have been heard of here since the last one */
};

/* One message, about one model or none. The fences are those of docs/step-protocol.md section 1. */
struct ampd_message {
    enum ampd_message_type type;
    uint32_t from, to; /* shard indexes */
    struct ampd_fence from_fence;
    struct ampd_fence to_fence; /* that the sender believes the receiver to have; counter 0: it does not know */
    char model[AMPD_NAME_MAX];  /* "": none */
    uint64_t epoch;
    uint64_t round; /* of SYNC: RESTORE, EPOCH, and the answers to all three belong to one; of DELETE */
    union {
        struct ampd_model_spec spec; /* CREATE; owned */
        struct ampd_open open;
        struct ampd_close close;
        struct ampd_complete complete;
        struct ampd_vote vote;
        struct ampd_verdict_message verdict;
        struct ampd_actions_message acts;
        struct ampd_applied applied;
        struct ampd_sync_state sync;
        struct ampd_restore
            restore; /* RESTORE, RESTORED; CUT, HOLDS: epoch and step; HELD: and ok; PART_DONE, see checkpoint_part.c */
        struct ampd_parts parts;
        struct ampd_epoch_message epoch;
        struct ampd_state_message state;
        struct ampd_load_want want;
        uint64_t load;                /* GRANT: the loader's number */
        struct ampd_unfit unfit;      /* UNFIT */
        struct ampd_alive alive;      /* ALIVE */
        struct ampd_fence fence;      /* TOO_LOW: the higher one */
        char why[AMP_ERROR_TEXT_MAX]; /* NOT_CREATED */
    } u;
};

/* A zeroed message with room for what its type says, or NULL when memory is out. */
struct ampd_message *ampd_message_new(enum ampd_message_type type);

/* A copy with what it owns, or NULL when memory is out. */
struct ampd_message *ampd_message_copy(const struct ampd_message *message);

/* Frees a message and what it owns; NULL is allowed. */
void ampd_message_free(struct ampd_message *message);

#endif
