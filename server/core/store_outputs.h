/*
 * What the core wants stored and read: rows of the store, checkpoints, the journal of votes. They are members of
 * ampd_output (outputs.h), which says how long what they point to is valid.
 */
#ifndef AMPD_STORE_OUTPUTS_H
#define AMPD_STORE_OUTPUTS_H

#include "server/core/model/layout.h"
#include "server/core/model/tensors.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

/* What is to be stored. The names in lower case are the fields of ampd_persist that are set. */
enum ampd_persist_kind {
    AMPD_PERSIST_MODEL = 1, /* a new model: spec, then its first epoch with epoch and row; not one transaction */
    AMPD_PERSIST_EPOCH,   /* an epoch: spec, epoch, row; with it checkpoints above its base are void, rows superseded */
    AMPD_PERSIST_WORKER,  /* a Join or Leave: worker. A loss of power may lose it */
    AMPD_PERSIST_VERDICT, /* a decided step: row. Without `durability: step` a loss of power may lose it */
    AMPD_PERSIST_CHECKPOINT, /* an entry of the catalogue: checkpoint */
    AMPD_PERSIST_PARTS,      /* the manifests of all parts: checkpoint, if it is still in the catalogue */
    AMPD_PERSIST_FENCE,      /* the highest fence of another shard: shard, fence */
    AMPD_PERSIST_ACT,        /* an operator action: row (kind SET, RESET, LR or EVICT) */
    AMPD_PERSIST_DELETING,   /* a mark that the model is being deleted, so that a start goes on with that */
    AMPD_PERSIST_DELETE,     /* the model's rows and files are to be deleted */
};

/*
 * Something to store. On a full disk the I/O layer tries again until it works or the process ends; a failed fsync ends
 * the process. So PERSISTED means stored, and there is no other answer.
 */
struct ampd_persist {
    uint64_t token; /* PERSISTED names it */
    enum ampd_persist_kind kind;
    const char *model; /* its name; "": it is the process's */
    int64_t at_us;     /* UTC microseconds: when it was asked for; MODEL and EPOCH: when the model was created */
    const struct ampd_model_spec *spec;
    const struct ampd_epoch_record *epoch;
    const struct ampd_step_row *row;
    const struct ampd_worker_record *worker;
    const struct ampd_checkpoint_record *checkpoint;
    bool full; /* PERSISTED is to be sent only when no loss of power can lose it */
    uint32_t shard;
    struct ampd_fence fence;
};

/* A checkpoint part to be read and verified; RESTORED names the token. */
struct ampd_restore_order {
    uint64_t token;
    uint32_t model; /* its index */
    const struct ampd_model_spec *spec;
    const struct ampd_layout *layout;
    const struct ampd_checkpoint_record *checkpoint;
    uint64_t first, count;           /* the blocks of this shard */
    struct ampd_tensor_view tensors; /* to be filled, from block `first` on; nothing else touches them meanwhile */
};

/* A checkpoint part to be written; PART_WRITTEN names the token. */
struct ampd_part_order {
    uint64_t token;
    uint32_t model; /* its index */
    const struct ampd_model_spec *spec;
    const struct ampd_layout *layout;
    uint64_t epoch, step;
    uint64_t first, count;                     /* the blocks of this shard; all follow as PART_BLOCKS, in order */
    bool has_m, has_v;                         /* whether the optimizer has these moments */
    const struct ampd_checkpoint_state *state; /* valid and unchanged until PART_WRITTEN */
};

/* Blocks of a part to be written; the event PART_BLOCKS answers when their memory is not read any more. */
struct ampd_part_blocks {
    uint64_t token;                  /* of the part */
    uint64_t first, count;           /* the blocks that follow those given before */
    struct ampd_tensor_view tensors; /* from block `first` on; unchanged until that event */
};

/*
 * A vote to be written to the journal and synced; JOURNALLED names the token. On a full disk the I/O layer tries again
 * until it works or the process ends; a failed fsync ends the process. g is unchanged until JOURNALLED.
 */
struct ampd_vote_journal_order {
    uint64_t token;
    const char *model;
    struct ampd_vote_journal_key key;
    const uint8_t *notes; /* bytes of the core's own format (shard/journal.c) */
    uint64_t notes_size;
    const float *g;    /* [elements] the gradient; NULL: the step cannot be applied, so nobody will ask for it */
    uint64_t elements; /* 0 without g */
};

/* A record of the journal to be read; REPLAYED names the token. */
struct ampd_replay_order {
    uint64_t token;
    const char *model;
    uint64_t epoch, step;
    float *g; /* [elements] to be filled */
    uint64_t elements;
};

#endif
