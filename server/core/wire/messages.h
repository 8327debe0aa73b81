/*
 * The messages between shards (docs/step-protocol.md section 2) as plain structs. Those of a process to itself travel
 * through a queue in memory; the I/O layer (server/io/cluster) carries the others.
 */
#ifndef AMPD_MESSAGES_H
#define AMPD_MESSAGES_H

#include "base/err.h"
#include "server/core/wire/step_messages.h"
#include "server/core/wire/sync_messages.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

/* To shards: from the coordinator. To the coordinator: from a shard. The numbers are those on the wire. */
enum ampd_message_type {
    AMPD_MESSAGE_CREATE = 1,       /* to shards: a model that the shard may not know; EPOCH follows */
    AMPD_MESSAGE_LOADED = 2,       /* to the coordinator: every block has its first value */
    AMPD_MESSAGE_SYNC = 3,         /* to shards, about no model: what do you hold? */
    AMPD_MESSAGE_SYNCED = 4,       /* to the coordinator: the answer to SYNC, one for each model */
    AMPD_MESSAGE_RESTORE = 5,      /* to shards: read and verify this checkpoint */
    AMPD_MESSAGE_RESTORED = 6,     /* to the coordinator: the checkpoint is in memory, or damaged */
    AMPD_MESSAGE_EPOCH = 7,        /* to shards: store this new epoch */
    AMPD_MESSAGE_EPOCH_STORED = 8, /* to the coordinator: the epoch is stored */
    AMPD_MESSAGE_OPEN = 9,         /* to shards: the step is open for these workers */
    AMPD_MESSAGE_COMPLETE = 10,    /* to the coordinator: a worker's push is whole here */
    AMPD_MESSAGE_CLOSE = 11,       /* to shards: the contributors of the step are these */
    AMPD_MESSAGE_VOTE = 12,        /* to the coordinator: what the vote passes have found */
    AMPD_MESSAGE_VERDICT = 13,     /* to shards: the step is decided */
    AMPD_MESSAGE_APPLIED = 14,     /* to the coordinator: the decided step is applied here, or was skipped */
    AMPD_MESSAGE_CUT = 15,         /* to shards: write your part of a checkpoint now (after Load, before a drain) */
    AMPD_MESSAGE_PART_DONE = 16,   /* to the coordinator: the part is in the catalogue; again once PARTS is stored */
    AMPD_MESSAGE_STATE = 17,       /* to shards: STALLED and which rank, RUNNING, frozen, DONE */
    AMPD_MESSAGE_HELLO = 18, /* to the coordinator, about no model: a session begins; what was under way may be lost */
    AMPD_MESSAGE_SYNC_DONE = 19,   /* to the coordinator, about no model: the last SYNCED was sent */
    AMPD_MESSAGE_LOAD_WANT = 20,   /* to the coordinator: a load waits for the grant, or goes on with it */
    AMPD_MESSAGE_LOAD_GRANT = 21,  /* to shards: the load that may write in this epoch */
    AMPD_MESSAGE_LOAD_GONE = 22,   /* to the coordinator: the loader's stream ended before the model was loaded */
    AMPD_MESSAGE_UNFIT = 23,       /* to shards: a push has weights or rates that do not agree */
    AMPD_MESSAGE_TOO_LOW = 24,     /* to the sender of a message: a process with a higher fence has its place */
    AMPD_MESSAGE_NOT_CREATED = 25, /* to the coordinator: the model cannot be made here, and why */
    AMPD_MESSAGE_HOLDS = 26,       /* to shards: do you hold this checkpoint? An operator wants to go back to it */
    AMPD_MESSAGE_HELD = 27,        /* to the coordinator: the answer to HOLDS */
    AMPD_MESSAGE_DELETE = 28,      /* to shards, also to those that may not know the model: delete it */
    AMPD_MESSAGE_DELETED = 29,     /* to the coordinator: the model is stored nowhere here any more */
    AMPD_MESSAGE_LEAVE = 30,       /* to the coordinator, about no model: this process is about to end */
    AMPD_MESSAGE_MAY_LEAVE = 31,   /* to a shard, about no model: round 1: it may end; round 0: not yet */
    AMPD_MESSAGE_PARTS = 32,       /* to shards: the manifests of all parts of a checkpoint, which all are there */
    AMPD_MESSAGE_ACTS = 33,        /* to shards: operator actions, stored behind the last decided step */
    AMPD_MESSAGE_ALIVE = 34,       /* to the coordinator: workers that were heard from here since the last ALIVE */
};

/* One message, about one model or none. The fences are those of docs/step-protocol.md section 1. */
struct ampd_message {
    enum ampd_message_type type;
    uint32_t from, to; /* shard indexes */
    struct ampd_fence from_fence;
    struct ampd_fence to_fence; /* the one that the sender believes the receiver to have; counter 0: it does not know */
    char model[AMPD_NAME_MAX];  /* "": it is about no model */
    uint64_t epoch;             /* that the sender is in (PART_DONE: of the part); 0 about no model */
    uint64_t round; /* of SYNC, which RESTORE, EPOCH and the answers name too; of DELETE; MAY_LEAVE: 0 or 1 */
    union {
        struct ampd_model_spec spec; /* CREATE; owned */
        struct ampd_open open;
        struct ampd_close close;
        struct ampd_complete complete;
        struct ampd_vote vote;
        struct ampd_verdict_message verdict;
        struct ampd_actions_message acts;
        struct ampd_applied applied; /* APPLIED; LOADED: the range warnings alone */
        struct ampd_sync_state sync;
        /*
         * RESTORE and RESTORED; HOLDS: epoch and step; HELD: also ok and manifest; CUT: step; PART_DONE: step, manifest
         * and ok, which means `known`.
         */
        struct ampd_restore restore;
        struct ampd_parts parts;
        struct ampd_epoch_message epoch;
        struct ampd_state_message state;
        struct ampd_load_want want;
        uint64_t load;                /* LOAD_GRANT: the loader's number */
        struct ampd_unfit unfit;      /* UNFIT */
        struct ampd_alive alive;      /* ALIVE */
        struct ampd_fence fence;      /* TOO_LOW: the higher one */
        char why[AMP_ERROR_TEXT_MAX]; /* NOT_CREATED */
    } u;
};

/* A zeroed message with room for what its type says, or NULL when memory is out. The caller owns it. */
struct ampd_message *ampd_message_new(enum ampd_message_type type);

/* A copy with what it owns, or NULL when memory is out. */
struct ampd_message *ampd_message_copy(const struct ampd_message *message);

/* Frees a message and what it owns; NULL is allowed. */
void ampd_message_free(struct ampd_message *message);

#endif
