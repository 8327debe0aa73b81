/* What the core wants stored and read: rows, checkpoints, the journal of votes (outputs.h). */
#ifndef AMPD_STORE_OUTPUTS_H
#define AMPD_STORE_OUTPUTS_H

#include "server/core/model/layout.h"
#include "server/core/model/tensors.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

enum ampd_persist_kind {
    AMPD_PERSIST_MODEL = 1,  /* spec, then epoch with row: both or none is not asked for */
    AMPD_PERSIST_EPOCH,      /* epoch, row; voids checkpoints above the base, marks rows superseded */
    AMPD_PERSIST_WORKER,     /* worker; the power may take it */
    AMPD_PERSIST_VERDICT,    /* row (kind STEP); the power may take it, but with `durability: step` */
    AMPD_PERSIST_CHECKPOINT, /* checkpoint */
    AMPD_PERSIST_PARTS,      /* the parts of checkpoint, should it still be in the catalogue */
    AMPD_PERSIST_FENCE,      /* fence of shard `shard` */
    AMPD_PERSIST_ACT,        /* row (kind SET or RESET) */
    AMPD_PERSIST_DELETING,   /* the model is to be deleted, and goes on to be after a start */
    AMPD_PERSIST_DELETE,     /* the model and its files */
};

/*
 * Something to store. A full disk is tried again by the host until it goes or the process ends; a failed
 * fsync ends the process. So PERSISTED means stored, and there is no other answer.
 */
struct ampd_persist {
    uint64_t token;
    enum ampd_persist_kind kind;
    const char *model;
    int64_t at_us;
    const struct ampd_model_spec *spec;
    const struct ampd_epoch_record *epoch;
    const struct ampd_step_row *row;
    const struct ampd_worker_record *worker;
    const struct ampd_checkpoint_record *checkpoint;
    bool full; /* when it is answered, no loss of power takes it (out.c) */
    uint32_t shard;
    struct ampd_fence fence;
};

struct ampd_restore_order {
    uint64_t token;
    uint32_t model;
    const struct ampd_model_spec *spec;
    const struct ampd_layout *layout;
    const struct ampd_checkpoint_record *checkpoint;
    uint64_t first, count;           /* the blocks of this shard */
    struct ampd_tensor_view tensors; /* to be filled; from block `first` on */
};

struct ampd_part_order {
    uint64_t token;
    uint32_t model;
    const struct ampd_model_spec *spec;
    const struct ampd_layout *layout;
    uint64_t epoch, step;
    uint64_t first, count;                     /* the blocks of this shard; all come as PART_BLOCKS, in order */
    bool has_m, has_v;                         /* whether the optimizer has them */
    const struct ampd_checkpoint_state *state; /* stays as it is until PART_WRITTEN */
};

struct ampd_part_blocks {
    uint64_t token;                  /* of the cut */
    uint64_t first, count;           /* consecutive blocks: those after the ones given before */
    struct ampd_tensor_view tensors; /* of block `first`, and those behind it; stay as they are until PART_BLOCKS */
};

/*
 * A vote to be journalled. A full disk is tried again by the host until it goes or the process ends; a failed fsync
 * ends the process. g stays as it is until JOURNALLED.
 */
struct ampd_vote_journal_order {
    uint64_t token;
    const char *model;
    struct ampd_vote_journal_key key;
    const uint8_t *notes; /* the core's own, not to be looked into */
    uint64_t notes_size;
    const float *g; /* NULL: the step cannot be applied */
    uint64_t elements;
};

struct ampd_replay_order {
    uint64_t token;
    const char *model;
    uint64_t epoch, step;
    float *g; /* to be filled: `elements` floats */
    uint64_t elements;
};

#endif
