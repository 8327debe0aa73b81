/* Writes a checkpoint file (checkpoint.h) whose tensors come bit by bit. */
#ifndef AMPD_CHECKPOINT_WRITER_H
#define AMPD_CHECKPOINT_WRITER_H

#include "storage/checkpoint.h"

/*
 * A file in the making, for tensors that come bit by bit. Tell what will be in it: of tensors only name, shape, part
 * and whether m and v are NULL count, no float is read. Only the temporary file exists until ampd_checkpoint_end. On
 * success *writer is the caller's (ampd_checkpoint_end or ampd_checkpoint_abandon); *state stays the caller's and must
 * not change until then. Errors as ampd_checkpoint_write's.
 */
struct ampd_checkpoint_writer;
int ampd_checkpoint_begin(const struct ampd_checkpoint_path *where, const struct ampd_checkpoint_tensor *tensors,
                          uint32_t tensors_count, const struct ampd_checkpoint_state *state,
                          struct ampd_checkpoint_writer **writer, struct amp_error *error);

/*
 * The next `count` elements of a tensor (its index in ampd_checkpoint_begin), from element `first` of the parameter on.
 * A tensor's elements come in order, and one tensor is finished before the next begins; tensors in any order. The
 * memory is not read any more when the call returns. AMP_EEXHAUSTED: the disk is full; the call is to be repeated as it
 * was; AMP_EIO.
 */
int ampd_checkpoint_put(struct ampd_checkpoint_writer *writer, uint32_t tensor, uint64_t first, uint64_t count,
                        const float *master, const float *m, const float *v, struct amp_error *error);

/*
 * Finishes the file, when all elements are in: it is durable then, and *record filled as by ampd_checkpoint_write.
 * Frees the writer on success. AMP_EEXHAUSTED: the call may be repeated. AMP_EIO (STORE_FAILED), also for an fsync that
 * finds the disk full: the server must end. After a failure the writer is still the caller's.
 */
int ampd_checkpoint_end(struct ampd_checkpoint_writer *writer, struct ampd_checkpoint_record *record,
                        struct amp_error *error);

/* Removes the temporary file and frees the writer. NULL is allowed. */
void ampd_checkpoint_abandon(struct ampd_checkpoint_writer *writer);

#endif
