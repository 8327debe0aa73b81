/*
 * Checkpoint files: one safetensors file per shard, readable by any reader of that format.
 *
 * Tensors: `name`, `name#m`, `name#v` (F32; m and v as the optimizer has them), then `user_state#<rank>` (U8), each kind
 * sorted by name without holes, as the format's own writer orders them. A parameter that a shard's border cuts is
 * one-dimensional there: `name@first:end`, `name#m@first:end`, elements of the whole; its shape is in the metadata.
 * `__metadata__` carries the format "ampd/1", step, version, the scale record, an XXH3-128 of each tensor and one of the
 * header. The file is a pure function of the state: equal states give equal bytes.
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

/* Largest header of a file: 8,192 parameters with moments need 8 MiB with short names; the format itself allows 100 MB. */
#define AMPD_CHECKPOINT_HEADER_MAX ((uint64_t)64 << 20)

/*
 * One parameter: what of it a file or a shard has. The floats are the caller's, without padding: those of [first, end) with
 * is_part, else all. m and v are NULL where there is none.
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
 * Which file: data_dir/models/<model>/checkpoints/step-<step>/shard-<shard>-of-<shards>.safetensors. All shards may have one
 * data_dir for these: each writes and removes its own files alone, and those of another number of shards that fall to it.
 */
struct ampd_checkpoint_place {
    const char *data_dir; /* the directory of checkpoints: the data directory, or one that shards share */
    const char *model;
    uint32_t shard, shards; /* 0, 0: those of every shard, to remove them */
};

/* The name of a step's file relative to data_dir. AMP_EINVAL: a bad model name, or it is too long. */
int ampd_checkpoint_file(const struct ampd_checkpoint_place *place, uint64_t step, char *file, size_t file_size,
                         struct amp_error *error);

/* Whose part a file is by its name. False: it is none of this format's names. */
bool ampd_checkpoint_file_shard(const char *file, uint32_t *shard, uint32_t *shards);

/* Whether a name, which may come from elsewhere, is one that ampd_checkpoint_file makes of model and step for any shard. */
bool ampd_checkpoint_file_is_of(const char *file, const char *model, uint64_t step);

/*
 * Writes the file of state->step, replacing one that is there. On success *record has step, version, file,
 * size_bytes and manifest (epoch and at_us are the caller's to set). `cancel` may be NULL; once it is true
 * the write ends with AMP_ECANCELLED and leaves nothing (looked at between tensors). AMP_EINVAL: a name or shape that a file cannot hold;
 * AMP_EEXHAUSTED (NO_SPACE, NO_DESCRIPTORS): the disk is full or no more files can be open, nothing is left; AMP_EIO (STORE_FAILED): a write or fsync
 * failed: the server must end; AMP_ENOMEM.
 */
int ampd_checkpoint_write(const struct ampd_checkpoint_place *place, const struct ampd_checkpoint_tensor *tensors,
                          uint32_t tensors_count, const struct ampd_checkpoint_state *state, const atomic_bool *cancel,
                          struct ampd_checkpoint_record *record, struct amp_error *error);

/*
 * A file in the making, for tensors that come bit by bit. Tell what will be in it: of tensors only name, shape, part and
 * whether m and v are NULL count, no float is read. Only the temporary file exists until ampd_checkpoint_end.
 * On success *writer is the caller's (ampd_checkpoint_end or ampd_checkpoint_abandon); *state stays the caller's and must not
 * change until then. Errors as ampd_checkpoint_write's.
 */
struct ampd_checkpoint_writer;
int ampd_checkpoint_begin(const struct ampd_checkpoint_place *place, const struct ampd_checkpoint_tensor *tensors,
                          uint32_t tensors_count, const struct ampd_checkpoint_state *state,
                          struct ampd_checkpoint_writer **writer, struct amp_error *error);

/*
 * The next `count` elements of a tensor (its index in ampd_checkpoint_begin), from element `first` of the parameter on. A
 * tensor's elements come in order, and one tensor is finished before the next begins; tensors in any order. The
 * memory is not read any more when the call returns. AMP_EEXHAUSTED: the disk is full; the call is to be repeated as it was;
 * AMP_EIO.
 */
int ampd_checkpoint_put(struct ampd_checkpoint_writer *writer, uint32_t tensor, uint64_t first, uint64_t count,
                        const float *master, const float *m, const float *v, struct amp_error *error);

/*
 * Finishes the file, when all elements are in: it is durable then, and *record filled as by ampd_checkpoint_write. Frees the
 * writer on success. AMP_EEXHAUSTED: the call may be repeated. AMP_EIO (STORE_FAILED), also for an fsync that finds the disk
 * full: the server must end. After a failure the writer is still the caller's.
 */
int ampd_checkpoint_end(struct ampd_checkpoint_writer *writer, struct ampd_checkpoint_record *record,
                        struct amp_error *error);

/* Removes the temporary file and frees the writer. NULL is allowed. */
void ampd_checkpoint_abandon(struct ampd_checkpoint_writer *writer);

/* One part of a checkpoint: `file` relative to data_dir, as in the catalogue; manifest may be NULL: not compared. */
struct ampd_checkpoint_part {
    const char *data_dir;
    const char *file;
    const uint8_t *manifest;
};

/*
 * Reads the parts of one checkpoint, however many shards it was cut for, into the targets, which are all parameters of the
 * model; is_part says what of each is wanted here (nothing, for one that another shard owns). Parts that hold nothing of it
 * may be left out. *state is filled; its user states are the caller's (ampd_checkpoint_state_clear). A tensor is
 * verified whole before its elements count. AMP_EDATALOSS: damaged, or not what is asked for, with file and tensor in
 * the text; AMP_EVERSION: a newer format; AMP_ENOTFOUND: no such file; AMP_EIO, AMP_ENOMEM. After a failure the
 * destinations hold anything, and *state is empty.
 */
int ampd_checkpoint_read_parts(const struct ampd_checkpoint_part *parts, uint32_t parts_count,
                               const struct ampd_checkpoint_target *targets, uint32_t targets_count,
                               struct ampd_checkpoint_state *state, struct amp_error *error);

/* The same of a checkpoint with one part: the file must hold no other tensor than the targets'. */
int ampd_checkpoint_read(const char *data_dir, const char *file, const uint8_t manifest[16],
                         const struct ampd_checkpoint_target *targets, uint32_t targets_count,
                         struct ampd_checkpoint_state *state, struct amp_error *error);

/* Removes a file (relative to data_dir) and its step directory if that is empty then. A missing file is
 * success. */
int ampd_checkpoint_remove(const char *data_dir, const char *file, struct amp_error *error);

/*
 * Removes what an interrupted write or a void epoch left below a model: files of this shard that are not among `keep`
 * (relative to data_dir), its "*.tmp", and step directories that are empty then. Files of another number of shards stay until
 * `keep` begins with a later step: then file i goes by the shard i modulo shards. Other names are left alone, and so are steps
 * above `up_to`.
 */
int ampd_checkpoint_sweep(const struct ampd_checkpoint_place *place, const struct ampd_checkpoint_record *keep,
                          uint32_t keep_count, uint64_t up_to, struct amp_error *error);

/*
 * Removes the files of a shard (or all) below a model that is deleted, of any number of shards as above, and the model's
 * directories if they are empty then. What is not there is success.
 */
int ampd_checkpoint_remove_model(const struct ampd_checkpoint_place *place, struct amp_error *error);

/*
 * A whole checkpoint file of a model, of any step, that falls to this shard, also one of another number of shards: its name relative
 * to data_dir in `file`, or "" where there is none, or where a mark says that the files are to go. For a model that the store does
 * not know.
 */
int ampd_checkpoint_any(const struct ampd_checkpoint_place *place, char *file, size_t file_size, struct amp_error *error);

/*
 * Notes beside the files of a shard that they are to go, before the store forgets the model; ampd_checkpoint_remove_model takes
 * the mark away, too. AMP_EEXHAUSTED: there is no room for one. Without files there is nothing to note.
 */
int ampd_checkpoint_mark_deleted(const struct ampd_checkpoint_place *place, struct amp_error *error);

/* Takes the mark away alone: the model is there again. */
int ampd_checkpoint_unmark_deleted(const struct ampd_checkpoint_place *place, struct amp_error *error);

/* Models with a mark that falls to the shard of `of`, whose model is not looked at. Ends with a callback's code that is not 0. */
int ampd_checkpoint_each_deleted(const struct ampd_checkpoint_place *of, void *arg, struct amp_error *error,
                                 int (*found_cb)(void *arg, const char *model));

#endif
