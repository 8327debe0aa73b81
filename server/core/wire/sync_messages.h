/* What messages about epochs and checkpoints carry: SYNC, RESTORE, EPOCH, PARTS, STATE (messages.h). */
#ifndef AMPD_SYNC_MESSAGES_H
#define AMPD_SYNC_MESSAGES_H

#include "server/core/model/load_base.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * Checkpoints of one model that a shard names in SYNCED, the newest ones. The lists of the shards differ by the few
 * that were under way; where none of this many is common to all, the model is refused as if none were left (sync.c:
 * has_base).
 */
#define AMPD_SYNC_CHECKPOINTS_MAX 1024

/* SYNCED: what the sender holds of one model. */
struct ampd_sync_state {
    struct ampd_model_spec spec; /* owned; for a coordinator that lost its store */
    int64_t created_us;          /* UTC microseconds, for such a coordinator, too */
    bool waits;             /* the sender's disk cannot be read now: another answer with the rest comes when it can */
    bool lost;              /* the memory of the sender is lost */
    uint64_t highest_epoch; /* that the sender has stored or, with `lost`, was started with (--epoch-above) */
    uint64_t durable_step;  /* up to which its store names checkpoints that all shards hold; 0: none */
    /* Without `waits`: where the sender stands. Only `durability: step` goes on from it after a start. */
    bool ready;     /* its memory has values */
    bool has_last;  /* `last` is set */
    uint64_t voted; /* the hash of the contributors that it has voted on in the step after `decided`; 0: it has not */
    uint64_t decided, version; /* last decided step, and the version after it */
    struct ampd_carry carry;   /* loss-scale record and set learning rate after `decided` */
    struct ampd_step_row last; /* the row of `decided`, if that was in this epoch */
    uint32_t checkpoints_count;
    struct ampd_checkpoint_record *checkpoints; /* [checkpoints_count] ascending; owned */
};

/* What several messages say about a checkpoint: ampd_message.u.restore names them. */
struct ampd_restore {
    /* The checkpoint. Epoch 0: none, and a load is to come that goes on from this step, version and record. */
    uint64_t epoch, step;
    bool ok;    /* RESTORED: it is in memory; HELD: it is here; PART_DONE: the store knows all its parts */
    bool waits; /* RESTORED, not ok: the file cannot be read now; another RESTORED comes when it can */
    /*
     * RESTORED, not ok: the sender has no such checkpoint any more, so its answer to SYNC is out of date. With `waits`:
     * the file is not there.
     */
    bool absent;
    uint64_t version;        /* of the checkpoint */
    struct ampd_carry carry; /* its loss-scale record and set learning rate */
    uint8_t manifest[16];    /* PART_DONE, HELD: hash of the manifest of the sender's part */
};

/* LOAD_WANT: a load that waits for the grant, or has it and goes on. */
struct ampd_load_want {
    uint64_t loader;            /* the number that its client gave it */
    struct ampd_load_base base; /* what its values go on from */
};

/* PARTS: all parts of a checkpoint. */
struct ampd_parts {
    uint64_t epoch, step;
    uint32_t count;                        /* of shards */
    uint8_t manifests[AMPD_PARTS_MAX][16]; /* [count] hash of the manifest of each part */
};

/* EPOCH: a new epoch to store. */
struct ampd_epoch_message {
    struct ampd_epoch_record record;
    int64_t created_us;    /* when the model was created, UTC microseconds: for a shard that has not stored it */
    uint64_t parent_step;  /* last step that was decided in the epoch before; 0: none */
    struct ampd_note note; /* who asked for a rollback, and why; in the first epoch, who created the model */
};

/* STATE: what the coordinator's model is doing. */
struct ampd_state_message {
    uint64_t sequence; /* rises within an epoch: an older one has no effect */
    enum ampd_model_state state;
    uint32_t missing_rank; /* STALLED: the rank that is waited for */
    bool frozen;           /* no step opens before an operator acts */
    bool trouble;          /* the model cannot be brought back now; then nothing else here counts */
};

#endif
