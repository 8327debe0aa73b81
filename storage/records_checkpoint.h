/* Records of epochs, and of the checkpoints that epochs start from. See records.h. */
#ifndef AMPD_RECORDS_CHECKPOINT_H
#define AMPD_RECORDS_CHECKPOINT_H

#include "amp/optim.h"
#include "storage/records_model.h"

#include <stdint.h>

#define AMPD_USER_STATE_MAX 65536 /* bytes of the state that one rank may store in a checkpoint */
#define AMPD_REASON_MAX     64    /* bytes of an epoch's reason, with the final zero */
#define AMPD_PARTS_MAX      64    /* shards of one server: the core keeps one bit for each in a 64-bit set */

/* The start of an epoch: which state of the model it continues. */
struct ampd_epoch_record {
    uint64_t epoch;
    uint64_t parent; /* the epoch before; 0: this is the model's first */
    /* The checkpoint that the epoch starts from. base_epoch 0: none; a Load gives the values, as of step base_step. */
    uint64_t base_epoch, base_step;
    char reason[AMPD_REASON_MAX]; /* CREATED, RESTART, ROLLBACK, IMPORT, LOAD_BROKEN, LOAD_ENDED */
    int64_t at_us;                /* when it began, UTC microseconds */
};

/* One shard's part of a checkpoint, finished: an entry of the catalogue. */
struct ampd_checkpoint_record {
    uint64_t epoch, step, version; /* the state of the model that it holds */
    float scale;                   /* loss scale after that step; 0: not known (written by an older ampd) */
    char file[256];                /* path relative to the directory that has the checkpoints */
    uint64_t size_bytes;
    uint8_t manifest[16]; /* XXH3-128 over names, shapes and hashes of the file's tensors: identifies its content */
    int64_t at_us;        /* when it was finished, UTC microseconds */
    /*
     * The manifests of the checkpoint's parts, indexed by shard, once all shards have theirs; by them a shard checks
     * another one's file. After a start with another number of shards they are those of the number that wrote the
     * checkpoint, until PARTS gives the new ones; a single shard gets no PARTS. parts_count 0: not known.
     */
    uint32_t parts_count;
    uint8_t parts[AMPD_PARTS_MAX][16];
};

/* Whether RMSprop is centered, so that its v is the mean gradient. UNKNOWN: an older ampd's file, or not RMSprop. */
enum ampd_centered { AMPD_CENTERED_UNKNOWN, AMPD_CENTERED_NOT, AMPD_CENTERED };

/*
 * What a checkpoint file holds beside the tensors. Equal states must give equal files, so there is no epoch, time,
 * path, incarnation, try or number of restarts in it.
 */
struct ampd_checkpoint_state {
    uint64_t step, version;
    struct ampd_carry carry;      /* as it is after the step */
    enum amp_optimizer optimizer; /* the one whose moments m and v are; UNSET: not known (written by an older ampd) */
    enum ampd_centered centered;
    uint32_t world_size;
    struct { /* [world_size], the bytes that the worker of each rank stored with the step; NULL: none; owned */
        uint8_t *data;
        uint32_t size; /* bytes, at most AMPD_USER_STATE_MAX; 0: this rank stored none */
    } * user_states;
};

#endif
