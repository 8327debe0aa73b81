/*
 * Checkpoint files: one safetensors file per shard, readable by any reader of that format.
 *
 * Tensors: `name`, `name#m`, `name#v` (F32; m and v as the optimizer has them), then `user_state#<rank>` (U8), each
 * kind sorted by name without holes, as the format's own writer orders them. A parameter that a shard's border cuts is
 * one-dimensional there: `name@first:end`, `name#m@first:end`, elements of the whole; its shape is in the metadata.
 * `__metadata__` carries the format "ampd/1", step, version, the scale record, the optimizer's name, an XXH3-128 of
 * each tensor and one of the header. The file is a pure function of the state: equal states give equal bytes.
 *
 * A file appears whole or not at all: written beside under a name ending in ".tmp", fsynced, renamed,
 * directory fsynced. Reading trusts nothing: header, sizes, offsets and hashes are verified before the state
 * is handed out.
 *
 * Any thread; no call keeps state of its own but a writer, which is one thread's at a time. Calls block on the disk.
 */
#ifndef AMPD_CHECKPOINT_H
#define AMPD_CHECKPOINT_H

#include "base/err.h"
#include "storage/records.h"

#include <stdatomic.h>

/*
 * Largest header of a file: 8,192 parameters with moments need 8 MiB with short names; the format itself allows 100 MB.
 */
#define AMPD_CHECKPOINT_HEADER_MAX ((uint64_t)64 << 20)

/*
 * One parameter: what of it a file or a shard has. The floats are the caller's, without padding: those of [first, end)
 * with is_part, else all. m and v are NULL where there is none.
 */
struct ampd_checkpoint_tensor {
    const char *name; /* UTF-8, no '#' or '@', not "__metadata__" */
    uint32_t dimensions;
    const uint64_t *shape;
    const float *master;
    const float *m;
    const float *v;
    bool is_part; /* only elements [first, end) of it, possibly none */
    uint64_t first, end;
};

/* The same to read into. */
struct ampd_checkpoint_target {
    const char *name;
    uint32_t dimensions;
    const uint64_t *shape;
    float *master;
    float *m;
    float *v;
    bool is_part;
    uint64_t first, end;
};

/*
 * Which file: data_dir/models/<model>/checkpoints/step-<step>/shard-<shard>-of-<shards>.safetensors. All shards may
 * have one data_dir for these: each writes and removes its own files alone, and those of another number of shards that
 * fall to it.
 */
struct ampd_checkpoint_path {
    const char *data_dir; /* the directory of checkpoints: the data directory, or one that shards share */
    const char *model;
    uint32_t shard, shards; /* 0, 0: those of every shard, to remove them */
};

/* The name of a step's file relative to data_dir. AMP_EINVAL: a bad model name, or it is too long. */
int ampd_checkpoint_file(const struct ampd_checkpoint_path *where, uint64_t step, char *file, size_t file_size,
                         struct amp_error *error);

/* Whose part a file is by its name. False: it is none of this format's names. */
bool ampd_checkpoint_file_shard(const char *file, uint32_t *shard, uint32_t *shards);

/*
 * Whether a name, which may come from elsewhere, is one that ampd_checkpoint_file makes of model and step for any
 * shard.
 */
bool ampd_checkpoint_file_is_of(const char *file, const char *model, uint64_t step);

/*
 * Writes the file of state->step, replacing one that is there. On success *record has step, version, file,
 * size_bytes and manifest (epoch and at_us are the caller's to set). `cancel` may be NULL; once it is true
 * the write ends with AMP_ECANCELLED and leaves nothing (looked at between tensors). AMP_EINVAL: a name or shape that a
 * file cannot hold; AMP_EEXHAUSTED (NO_SPACE, NO_DESCRIPTORS): the disk is full or no more files can be open, nothing
 * is left; AMP_EIO (STORE_FAILED): a write or fsync failed: the server must end; AMP_ENOMEM.
 */
int ampd_checkpoint_write(const struct ampd_checkpoint_path *where, const struct ampd_checkpoint_tensor *tensors,
                          uint32_t tensors_count, const struct ampd_checkpoint_state *state, const atomic_bool *cancel,
                          struct ampd_checkpoint_record *record, struct amp_error *error);

/* One part of a checkpoint: `file` relative to data_dir, as in the catalogue; manifest may be NULL: not compared. */
struct ampd_checkpoint_part {
    const char *data_dir;
    const char *file;
    const uint8_t *manifest;
};

/* The reason of the error for a file that never was a checkpoint. */
#define AMPD_CHECKPOINT_FOREIGN "CHECKPOINT_FOREIGN"

/*
 * Reads the parts of one checkpoint, however many shards it was cut for, into the targets, which are all parameters of
 * the model; is_part says what of each is wanted here (nothing, for one that another shard owns). Parts that hold
 * nothing of it may be left out. *state is filled; its user states are the caller's (ampd_checkpoint_state_clear). A
 * tensor is verified whole before its elements count. AMP_EDATALOSS: damaged, or not what is asked for, with file and
 * tensor in the text; AMP_EVERSION: a newer format; AMP_ENOTFOUND: no such file; AMP_EIO, AMP_ENOMEM. After a failure
 * the destinations hold anything, and *state is empty.
 */
int ampd_checkpoint_read_parts(const struct ampd_checkpoint_part *parts, uint32_t parts_count,
                               const struct ampd_checkpoint_target *targets, uint32_t targets_count,
                               struct ampd_checkpoint_state *state, struct amp_error *error);

/* The same of a checkpoint with one part: the file must hold no other tensor than the targets'. */
int ampd_checkpoint_read(const char *data_dir, const char *file, const uint8_t manifest[16],
                         const struct ampd_checkpoint_target *targets, uint32_t targets_count,
                         struct ampd_checkpoint_state *state, struct amp_error *error);

#endif
