/* Epochs, and the checkpoints that they start from. See records.h. */
#ifndef AMPD_RECORDS_CHECKPOINT_H
#define AMPD_RECORDS_CHECKPOINT_H

#include "amp/optim.h"
#include "storage/records_model.h"

#include <stdint.h>

#define AMPD_USER_STATE_MAX 65536 /* bytes per rank */
#define AMPD_REASON_MAX     64    /* bytes of a reason, with the final zero */
#define AMPD_PARTS_MAX      64    /* shards that one checkpoint is cut for; completion of a push is a bit per shard */

/* The start of an epoch: what it continues. */
struct ampd_epoch_record {
    uint64_t epoch;
    uint64_t parent;                /* 0: the first */
    uint64_t base_epoch, base_step; /* the checkpoint it starts from; base_epoch 0: none, a load is after that step */
    char reason[AMPD_REASON_MAX];   /* CREATED, RESTART, ROLLBACK, IMPORT, LOAD_BROKEN, LOAD_ENDED */
    int64_t at_us;
};

/* One finished checkpoint part. */
struct ampd_checkpoint_record {
    uint64_t epoch, step, version;
    float scale;    /* loss scale in it; 0: not known (written by an older ampd) */
    char file[256]; /* relative to the directory of checkpoints */
    uint64_t size_bytes;
    uint8_t manifest[16]; /* XXH3-128 over names, shapes and hashes of the tensors */
    int64_t at_us;
    /*
     * The manifests of all its parts by shard, once it exists on all: so each shard knows which file of another one is
     * the right one. After a start with another number of shards they are those of the number before. 0: not known.
     */
    uint32_t parts_count;
    uint8_t parts[AMPD_PARTS_MAX][16];
};

/* Whether RMSprop has the mean gradient for a second moment; UNKNOWN: written by an older ampd, or not RMSprop's. */
enum ampd_centered { AMPD_CENTERED_UNKNOWN, AMPD_CENTERED_NOT, AMPD_CENTERED };

/*
 * What a checkpoint file carries beside tensors. Equal states give equal files: no epoch, time, path,
 * incarnation, try or count of restarts.
 */
struct ampd_checkpoint_state {
    uint64_t step, version;
    struct ampd_carry carry;
    enum amp_optimizer optimizer; /* whose moments the tensors are; UNSET: not known (written by an older ampd) */
    enum ampd_centered centered;  /* of RMSprop: which second moment it has */
    uint32_t world_size;
    struct { /* one per rank; owned */
        uint8_t *data;
        uint32_t size;
    } * user_states;
};

#endif
