/*
 * Checkpoint files: one safetensors file per shard, readable by any reader of that format.
 *
 * Tensors: `name`, `name#m`, `name#v` (F32; m and v as the optimizer has them), then `user_state#<rank>` (U8), each kind
 * sorted by name without holes, as the format's own writer orders them. `__metadata__` carries the format "ampd/1", step,
 * version, the scale record, an XXH3-128 of each tensor and one of the header. The file is a pure function of the
 * state: equal states give equal bytes.
 *
 * A file appears whole or not at all: written beside under a name ending in ".tmp", fsynced, renamed,
 * directory fsynced. Reading trusts nothing: header, sizes, offsets and hashes are verified before the state
 * is handed out.
 *
 * Any thread; no call keeps state of its own. Calls block on the disk.
 */
#ifndef AMPD_CHECKPOINT_H
#define AMPD_CHECKPOINT_H

#include "base/err.h"
#include "storage/records.h"

#include <stdatomic.h>

/* One parameter to write: `elements` floats each, without padding. m and v are NULL where there is none. */
struct ampd_checkpoint_tensor {
    const char *name; /* UTF-8, no '#' or '@', not "__metadata__" */
    uint32_t dimensions;
    const uint64_t *shape;
    const float *master;
    const float *m;
    const float *v;
};

/* One parameter to read into: destinations of `elements` floats, the caller's. m and v as when it was
 * written. */
struct ampd_checkpoint_target {
    const char *name;
    uint32_t dimensions;
    const uint64_t *shape;
    float *master;
    float *m;
    float *v;
};

/* Which file: data_dir/models/<model>/checkpoints/step-<step>/shard-<shard>-of-<shards>.safetensors. */
struct ampd_checkpoint_place {
    const char *data_dir;
    const char *model;
    uint32_t shard, shards;
};

/*
 * Writes the file of state->step, replacing one that is there. On success *record has step, version, file,
 * size_bytes and manifest (epoch and at_us are the caller's to set). `cancel` may be NULL; once it is true
 * the write ends with AMP_ECANCELLED and leaves nothing. AMP_EINVAL: a name or shape that a file cannot hold;
 * AMP_EEXHAUSTED (NO_SPACE): the disk is full, nothing is left; AMP_EIO (STORE_FAILED): a write or fsync
 * failed: the server must end; AMP_ENOMEM.
 */
int ampd_checkpoint_write(const struct ampd_checkpoint_place *place, const struct ampd_checkpoint_tensor *tensors,
                          uint32_t tensors_count, const struct ampd_checkpoint_state *state, const atomic_bool *cancel,
                          struct ampd_checkpoint_record *record, struct amp_error *error);

/*
 * Reads `file` (relative to data_dir, as in the catalogue) into the targets: each target must be in the file
 * with its shape, and the file must hold no other tensor. *state is filled; its user states are the caller's
 * (ampd_checkpoint_state_clear). If manifest is not NULL it must be the file's. AMP_EDATALOSS: damaged, or
 * not what is asked for; AMP_EVERSION: a newer format; AMP_ENOTFOUND: no such file; AMP_EIO, AMP_ENOMEM.
 * After a failure the destinations hold anything, and *state is empty.
 */
int ampd_checkpoint_read(const char *data_dir, const char *file, const uint8_t manifest[16],
                         const struct ampd_checkpoint_target *targets, uint32_t targets_count,
                         struct ampd_checkpoint_state *state, struct amp_error *error);

/* Removes a file (relative to data_dir) and its step directory if that is empty then. A missing file is
 * success. */
int ampd_checkpoint_remove(const char *data_dir, const char *file, struct amp_error *error);

/*
 * Removes what an interrupted write or a void epoch left below a model: files of this format's names that are
 * not among `keep` (relative to data_dir), "*.tmp", and step directories that are empty then. Other names are
 * left alone.
 */
int ampd_checkpoint_sweep(const struct ampd_checkpoint_place *place, const struct ampd_checkpoint_record *keep,
                          uint32_t keep_count, struct amp_error *error);

#endif
