/*
 * The messages between shards (STEP section 2) as plain structs. With one shard they travel through a queue
 * in memory; with more, the host carries them.
 */
#ifndef AMPD_MESSAGES_H
#define AMPD_MESSAGES_H

#include "base/err.h"
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
    AMPD_MESSAGE_UNFIT = 23,       /* coordinator -> shards: the weight of a push differs from shard to shard */
    AMPD_MESSAGE_TOO_LOW = 24,     /* to the sender: a process with a higher fence has its place */
    AMPD_MESSAGE_NOT_CREATED = 25, /* shard -> coordinator: the model cannot be made there, and why */
    AMPD_MESSAGE_HOLDS = 26,   /* coordinator -> shards: do you hold this checkpoint? An operator would go back to it */
    AMPD_MESSAGE_HELD = 27,    /* shard -> coordinator: the answer */
    AMPD_MESSAGE_DELETE = 28,  /* coordinator -> shards, also to those that may not know the model */
    AMPD_MESSAGE_DELETED = 29, /* shard -> coordinator: it is stored nowhere here any more */
    AMPD_MESSAGE_LEAVE = 30,   /* shard -> coordinator, of no model: this process is about to end */
    AMPD_MESSAGE_MAY_LEAVE = 31, /* coordinator -> shards, of no model: round 1: it may; round 0: not yet */
    AMPD_MESSAGE_PARTS = 32, /* coordinator -> shards: the manifests of all parts of a checkpoint, which are there */
    AMPD_MESSAGE_ACTS = 33,  /* coordinator -> shards: acts that are stored behind the last decided step */
    AMPD_MESSAGE_ALIVE = 34, /* shard -> coordinator: workers that have been heard of here since the last one */
};

/*
 * Checkpoints of one model that a shard names in SYNCED: the newest ones. Shards differ by the few that were under way; where
 * none of so many is common to all, SYNC waits for what is missing (has_lost_all), as where none is left.
 */
#define AMPD_SYNC_CHECKPOINTS_MAX 1024

#define AMPD_ACTS_WAIT_MAX 4 /* acts between two verdicts: a person's hand is slower than a step, or the model stands */

/* An operator's act on the scale, as it is stored behind the last decided step. */
struct ampd_act {
    enum ampd_row_kind kind; /* SET or RESET */
    uint64_t from_step;      /* the first that uses the new scale */
    float scale;             /* the one before */
    uint64_t scale_id;
    struct amp_scaler_state after;
    uint64_t version, durable_step;
    struct ampd_note note;
    int64_t at_us;
};

/* A worker that a step expects. */
struct ampd_expected {
    uint32_t rank;
    struct ampd_incarnation incarnation;
};

/* ALIVE. One that is lost does no harm: the next is an eighth of a lease later. */
struct ampd_alive {
    uint32_t count; /* ascending ranks */
    struct ampd_expected workers[AMPD_WORLD_MAX];
};

/* OPEN; with `closed` it carries the CLOSE. */
struct ampd_open {
    uint64_t step, version;
    uint32_t try_number; /* from 0; ordered within the fence of the sender */
    float scale;
    uint64_t scale_id;
    uint32_t expected_count; /* ascending ranks */
    struct ampd_expected expected[AMPD_WORLD_MAX];
    bool closed; /* contributors = expected, each of weight 1 */
    float coefficient;
};

/* CLOSE of a try whose contributors were not known at OPEN. */
struct ampd_close {
    uint64_t step;
    uint32_t try_number;
    float coefficient;
    bool empty;                  /* all weights are 0: nothing is summed, SKIPPED_EMPTY */
    uint32_t contributors_count; /* ascending ranks */
    struct ampd_contributor contributors[AMPD_WORLD_MAX];
};

struct ampd_complete {
    uint64_t step;
    uint32_t try_number;
    struct ampd_contributor contributor;
};

/* The sum of squares of one maximal aligned subtree of the global block index of one parameter. */
struct ampd_subtree {
    uint32_t parameter;
    uint32_t level; /* 2^level leaves */
    uint64_t index; /* global index of its first block */
    double squares;
};

struct ampd_vote {
    uint64_t step;
    uint32_t try_number;
    uint64_t contributors_hash;
    uint64_t subtrees_count;
    struct ampd_subtree *subtrees; /* owned; ascending (parameter, position) */
    /* What follows, up to rows, is of the parameters that lie in the sender's blocks alone. */
    uint64_t overflow_params; /* (parameter, rank) pairs */
    uint64_t inf_total, nan_total;
    uint32_t rows_count; /* the first by (parameter, rank) */
    struct ampd_overflow_row rows[AMPD_OVERFLOW_ROWS_MAX];
    /*
     * What was found in the sender's blocks of those that reach into another shard's, two at most: of each rank, of the range and of
     * the sum, also where all is finite. Only all their parts together say which rows there are.
     */
    uint32_t shared_count;
    struct ampd_overflow_row *shared; /* owned; ascending parameters */
};

#define AMPD_SHARED_ROWS_MAX (2 * (AMPD_WORLD_MAX + 2))

/* Parameters whose masters are beyond the cast's range. */
struct ampd_range_warning {
    uint32_t parameter;
    uint64_t count;
};

/* Everything that apply needs, as bits, and the row as persisted. */
struct ampd_verdict_message {
    struct ampd_step_row row;
    double bias1, bias2;              /* 1 - beta^t; 0 where the optimizer has none */
    double group_lr[AMPD_GROUPS_MAX]; /* learning rate of each group */
    uint64_t range_total;             /* values beyond the cast's range in the previous apply, all shards together */
    uint32_t range_count;
    struct ampd_range_warning range[AMPD_OVERFLOW_ROWS_MAX];
    bool has_next;
    struct ampd_open next; /* OPEN of the next step */
    uint32_t acts_count;   /* that were stored after the verdict before: their rows come before this one's */
    struct ampd_act acts[AMPD_ACTS_WAIT_MAX];
};

/* ACTS: some of those that will be in the next verdict. */
struct ampd_acts_message {
    uint64_t step; /* behind which they are */
    uint32_t count;
    struct ampd_act acts[AMPD_ACTS_WAIT_MAX];
};

struct ampd_applied {
    uint64_t step, version;
    uint64_t range_total;
    uint32_t range_count;
    struct ampd_range_warning range[AMPD_OVERFLOW_ROWS_MAX];
};

struct ampd_sync_state {
    struct ampd_model_spec spec; /* owned; for a coordinator that lost its store */
    bool waits; /* the sender's disk cannot be read now: another answer with the rest comes when it can */
    bool lost;  /* the memory of the sender is lost */
    uint64_t highest_epoch;
    /* durability STEP: where the sender stands */
    bool ready;                /* its memory has values */
    bool voted;                /* on the step after `decided` */
    bool has_last;             /* `last` is set */
    uint64_t decided, version; /* last decided step, and the version after it */
    struct amp_scaler_state scaler;
    struct ampd_step_row last; /* the row of `decided`, if that was in this epoch */
    uint32_t checkpoints_count;
    struct ampd_checkpoint_record *checkpoints; /* owned */
};

struct ampd_restore {
    uint64_t epoch, step; /* the checkpoint; 0, 0: none is left */
    bool ok;
    bool waits;  /* RESTORED, not ok: the file cannot be read now; another one comes when it can */
    bool absent; /* RESTORED, not ok: the sender has no such checkpoint any more, so that what it told in SYNC is out of date; with
                    `waits`: the file is not there */
    uint64_t version;
    struct amp_scaler_state scaler;
    uint8_t manifest[16]; /* PART_DONE, HELD: of the sender's part */
};

/* PARTS. */
struct ampd_parts {
    uint64_t epoch, step;
    uint32_t count; /* of shards */
    uint8_t manifests[AMPD_PARTS_MAX][16];
};

/* EPOCH. */
struct ampd_epoch_message {
    struct ampd_epoch_record record;
    uint64_t parent_step;  /* last step that was decided in the epoch before; 0: none */
    struct ampd_note note; /* of a rollback */
};

struct ampd_state_message {
    uint64_t sequence; /* rises: an older one has no effect */
    enum ampd_model_state state;
    uint32_t missing_rank; /* STALLED */
    bool frozen;           /* no step opens before an operator acts */
    bool trouble;          /* the model cannot be brought back now; nothing else is said */
};

/* One message, about one model or none. The fences are those of STEP section 1. */
struct ampd_message {
    enum ampd_message_type type;
    uint32_t from, to; /* shard indexes */
    struct ampd_fence from_fence;
    struct ampd_fence to_fence; /* that the sender believes the receiver to have; counter 0: it does not know */
    char model[AMPD_NAME_MAX];  /* "": none */
    uint64_t epoch;
    uint64_t round; /* of SYNC: RESTORE, EPOCH, and the answers to all three belong to one */
    union {
        struct ampd_model_spec spec; /* CREATE; owned */
        struct ampd_open open;
        struct ampd_close close;
        struct ampd_complete complete;
        struct ampd_vote vote;
        struct ampd_verdict_message verdict;
        struct ampd_acts_message acts;
        struct ampd_applied applied;
        struct ampd_sync_state sync;
        struct ampd_restore
            restore; /* RESTORE, RESTORED; CUT, HOLDS: epoch and step; HELD: and ok; PART_DONE, see snapshot.c */
        struct ampd_parts parts;
        struct ampd_epoch_message epoch;
        struct ampd_state_message state;
        uint64_t load;                /* WANT, GRANT: the loader's number */
        struct ampd_complete unfit;   /* UNFIT */
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
