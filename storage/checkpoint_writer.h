/*
 * Writes one checkpoint file (checkpoint.h) piece by piece: begin, then put until every element has been given, then
 * end or abandon. The caller never has to hold the whole model in memory.
 *
 * A writer is used by one thread at a time. Calls block on the disk.
 */
#ifndef AMPD_CHECKPOINT_WRITER_H
#define AMPD_CHECKPOINT_WRITER_H

#include "storage/checkpoint.h"

/* A file that is being written. */
struct ampd_checkpoint_writer;

/*
 * Begins the file of state->step. Of each tensor only the name, the shape, the part (is_part, first, end) and whether m
 * and v are NULL are used; no float is read. The array `tensors` need not outlive the call, but the names and shapes
 * that it points to, and *state, must stay unchanged until the writer is ended or abandoned. Until ampd_checkpoint_end
 * only a temporary file exists. On success *writer is the caller's, to be given to ampd_checkpoint_end or
 * ampd_checkpoint_abandon; on failure it is NULL and no file is left. Error codes: those of ampd_checkpoint_write.
 */
int ampd_checkpoint_begin(const struct ampd_checkpoint_path *where, const struct ampd_checkpoint_tensor *tensors,
                          uint32_t tensors_count, const struct ampd_checkpoint_state *state,
                          struct ampd_checkpoint_writer **writer, struct amp_error *error);

/*
 * Gives the next `count` elements of one tensor. `tensor` is its index in the array given to ampd_checkpoint_begin;
 * `first` is the index of the first element, counted in the whole parameter. m and v are NULL exactly where they were
 * NULL in ampd_checkpoint_begin. The elements of a tensor come in ascending order without gaps, and a tensor is
 * finished before the next one begins; the tensors themselves may come in any order. The caller may reuse the memory
 * when the call returns. AMP_EEXHAUSTED (NO_SPACE): the disk is full; repeat the call with the same arguments. AMP_EIO
 * (STORE_FAILED): the file can no longer be written.
 */
int ampd_checkpoint_put(struct ampd_checkpoint_writer *writer, uint32_t tensor, uint64_t first, uint64_t count,
                        const float *master, const float *m, const float *v, struct amp_error *error);

/*
 * Finishes the file after all elements have been given: user states and header are written, the file is fsynced and
 * gets its name. On success the file survives power loss, *record is filled as by ampd_checkpoint_write, and the writer
 * is freed. After a failure the writer is still the caller's. AMP_EEXHAUSTED (NO_SPACE, NO_DESCRIPTORS), AMP_EDENIED
 * (NO_ACCESS: the directory is another user's by now), AMP_ENOMEM: the call may be repeated. AMP_EIO (STORE_FAILED):
 * the server must end; this is also the result of an fsync that finds the disk full, since an fsync that failed must
 * not be tried again.
 */
int ampd_checkpoint_end(struct ampd_checkpoint_writer *writer, struct ampd_checkpoint_record *record,
                        struct amp_error *error);

/* Gives the file up: removes it, also where it has its name already, and frees the writer. NULL is allowed. */
void ampd_checkpoint_abandon(struct ampd_checkpoint_writer *writer);

#endif
