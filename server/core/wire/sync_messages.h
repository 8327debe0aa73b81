/* What messages about epochs and checkpoints carry: SYNC, RESTORE, EPOCH, PARTS, STATE (messages.h). */
#ifndef AMPD_SYNC_MESSAGES_H
#define AMPD_SYNC_MESSAGES_H

#include "server/core/model/load_base.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * Checkpoints of one model that a shard names in SYNCED: the newest ones. Shards differ by the few that were under way;
 * where none of so many is common to all, SYNC waits for what is missing (has_lost_all), as where none is left.
 */
#define AMPD_SYNC_CHECKPOINTS_MAX 1024

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
    struct ampd_carry carry;
    struct ampd_step_row last; /* the row of `decided`, if that was in this epoch */
    uint32_t checkpoints_count;
    struct ampd_checkpoint_record *checkpoints; /* owned */
};

struct ampd_restore {
    uint64_t epoch, step; /* the checkpoint; epoch 0: there is none, and a load comes whose values are after this step,
                             of this version and with this record */
    bool ok;
    bool waits;  /* RESTORED, not ok: the file cannot be read now; another one comes when it can */
    bool absent; /* RESTORED, not ok: the sender has no such checkpoint any more, so that what it told in SYNC is out of
                    date; with `waits`: the file is not there */
    uint64_t version;
    struct ampd_carry carry;
    uint8_t manifest[16]; /* PART_DONE, HELD: of the sender's part */
};

/* WANT. */
struct ampd_load_want {
    uint64_t loader; /* its number */
    struct ampd_load_base base;
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

#endif
