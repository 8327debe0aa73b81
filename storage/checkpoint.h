/*
 * Checkpoint files: one safetensors file per shard, which any reader of that format can open.
 *
 * Tensors: `name`, `name#m`, `name#v` (F32; m and v if the optimizer has them), then `user_state#<rank>` (U8). Each of
 * the two types is sorted by name, and the data has no gaps, as the format's own writer does it. If a parameter lies
 * only partly in a shard, its tensors are one-dimensional and named `name@first:end`, `name#m@first:end` and so on,
 * where first and end count elements of the whole parameter; the parameter's shape is then in the metadata.
 * `__metadata__` has the format "ampd/1", step, version, the loss scaler's state, the optimizer's name, an XXH3-128 of
 * each tensor and one of the header. The file is a pure function of the state: equal states give equal bytes.
 *
 * A file appears whole or not at all: it is written under a name ending in ".tmp" in the same directory, fsynced and
 * renamed, and the directory is fsynced. Nothing that is read is trusted: header, sizes, offsets and hashes are
 * verified before the state is handed out.
 *
 * All functions may be called from any thread. Calls block on the disk.
 */
#ifndef AMPD_CHECKPOINT_H
#define AMPD_CHECKPOINT_H

#include "base/err.h"
#include "storage/records.h"

#include <stdatomic.h>

/*
 * The most bytes of a file's header: 8,192 parameters with moments need 8 MiB if their names are short. The format
 * itself allows 100 MB.
 */
#define AMPD_CHECKPOINT_HEADER_MAX ((uint64_t)64 << 20)

/*
 * One parameter to be written, all of it or the part that this shard has. The floats are the caller's, without padding:
 * the elements [first, end) with is_part, else all.
 */
struct ampd_checkpoint_tensor {
    const char *name; /* UTF-8, no '#' or '@', not "__metadata__" */
    uint32_t dimensions;
    const uint64_t *shape; /* [dimensions], of the whole parameter */
    const float *master;
    const float *m; /* first moment; NULL: the optimizer has none */
    const float *v; /* second moment; NULL: the optimizer has none */
    bool is_part;   /* only the elements [first, end) of the parameter, possibly none */
    uint64_t first, end;
};

/* One parameter to be read, with the memory that is filled. The members mean those of ampd_checkpoint_tensor. */
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
 * Names the files of one shard of a model: data_dir/models/<model>/checkpoints/step-<step>/shard-<shard>-of-<shards>
 * .safetensors. Shards may share one data_dir: each one writes and removes only its own files, and of files written by
 * another number of shards those whose index is its own modulo `shards`.
 */
struct ampd_checkpoint_path {
    const char *data_dir; /* the directory that has the checkpoints: the data directory, or one that shards share */
    const char *model;
    uint32_t shard, shards; /* 0, 0 in calls that remove files: those of all shards */
};

/* Makes the path of a step's file relative to data_dir. AMP_EINVAL: a bad name of a model, or the path is too long. */
int ampd_checkpoint_file(const struct ampd_checkpoint_path *where, uint64_t step, char *file, size_t file_size,
                         struct amp_error *error);

/* Takes shard and number of shards out of a file's name. False: it is not the name of a checkpoint file. */
bool ampd_checkpoint_file_shard(const char *file, uint32_t *shard, uint32_t *shards);

/*
 * Whether `file`, which may come from another process, is exactly the path that ampd_checkpoint_file makes for this
 * model and step and some shard.
 */
bool ampd_checkpoint_file_is_of(const char *file, const char *model, uint64_t step);

/*
 * Writes the file of state->step, in place of one that is there. On success *record has step, version, scale, file,
 * size_bytes and manifest; the caller sets epoch and at_us. `cancel` may be NULL; it is looked at between tensors, and
 * if it is true the result is AMP_ECANCELLED. AMP_EINVAL: a name or shape that a file cannot hold; AMP_EEXHAUSTED: the
 * disk is full (NO_SPACE) or no more files can be open (NO_DESCRIPTORS); AMP_EDENIED: this user may not write there
 * (NO_ACCESS); AMP_ENOMEM. After each of these no temporary file is left. AMP_EIO (STORE_FAILED): a write or fsync
 * failed, and the server must end.
 */
int ampd_checkpoint_write(const struct ampd_checkpoint_path *where, const struct ampd_checkpoint_tensor *tensors,
                          uint32_t tensors_count, const struct ampd_checkpoint_state *state, const atomic_bool *cancel,
                          struct ampd_checkpoint_record *record, struct amp_error *error);

/* One part of a checkpoint to be read. */
struct ampd_checkpoint_part {
    const char *data_dir;
    const char *file;        /* path relative to data_dir, as the catalogue has it */
    const uint8_t *manifest; /* [16], which the file's must equal; NULL: any file */
};

/* The reason of the error AMP_EDATALOSS for a file that never was a checkpoint of ampd. */
#define AMPD_CHECKPOINT_FOREIGN "CHECKPOINT_FOREIGN"

/*
 * Reads the parts of one checkpoint, whatever number of shards wrote it, into the targets. `targets` has all parameters
 * of the model; is_part says which elements of one are wanted here (none, for one that another shard owns). Parts
 * without a wanted element may be left out. On success *state is filled, and its user states are the caller's
 * (ampd_checkpoint_state_clear). Every tensor that is read is verified as a whole by its hash. AMP_EDATALOSS: a file is
 * damaged or is not what is asked for, with file and tensor in the text; AMP_EVERSION: a newer format; AMP_ENOTFOUND:
 * no such file; AMP_EINVAL, AMP_EDENIED, AMP_EIO, AMP_ENOMEM. After an error the targets' memory holds anything, and
 * *state is all zero.
 */
int ampd_checkpoint_read_parts(const struct ampd_checkpoint_part *parts, uint32_t parts_count,
                               const struct ampd_checkpoint_target *targets, uint32_t targets_count,
                               struct ampd_checkpoint_state *state, struct amp_error *error);

/* As ampd_checkpoint_read_parts, for a checkpoint of one part. */
int ampd_checkpoint_read(const char *data_dir, const char *file, const uint8_t manifest[16],
                         const struct ampd_checkpoint_target *targets, uint32_t targets_count,
                         struct ampd_checkpoint_state *state, struct amp_error *error);

#endif
