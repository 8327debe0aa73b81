/*
 * The store: models, epochs, workers, one row per decided step, overflow rows and the catalogue of checkpoints.
 *
 * One interface with two implementations: ampd_store_sqlite_open (a data directory) and ampd_store_memory_open (for the
 * simulator and tests). Calls are synchronous, and each is one transaction: after 0 all of it is stored, after an error
 * none of it is. Stored data survives the end of the process by any signal; what a call marked FULL has stored survives
 * power loss, too.
 *
 * Threads: a handle is used by one thread at a time. A reader is a second handle of the same store for a second thread,
 * so that reading history never delays a verdict. (The handles of a memory store share one lock.)
 *
 * Errors of every call that writes: AMP_EEXHAUSTED (NO_SPACE: the disk is full; NO_DESCRIPTORS: no more files can be
 * open; STORE_BUSY: another process has locked the file) and AMP_ENOMEM: nothing was stored, and the call may be
 * repeated. AMP_EIO (STORE_FAILED): a write or fsync failed, so that it is not known what the disk holds; the handle
 * refuses all later writes, and the server must end without acknowledging anything more. AMP_EDATALOSS (STORE_DAMAGED):
 * the file is no valid database any more; else as AMP_EIO. AMP_ENOTFOUND (MODEL_NOT_FOUND): no such model.
 * Errors of calls that read: AMP_ENOTFOUND, AMP_ENOMEM, AMP_EEXHAUSTED, AMP_EIO, and AMP_EDATALOSS, also for a row that
 * this program cannot have written.
 */
#ifndef AMPD_STORE_H
#define AMPD_STORE_H

#include "base/err.h"
#include "storage/records.h"
#include "storage/records_memory.h"
#include "storage/store_page.h"
#include "storage/store_trim.h"

/* The version of ampd.db's schema (sqlite_schema.c). A program refuses a file whose version is higher than its own. */
#define AMPD_STORE_SCHEMA 8

/* ---- life ---- */

/*
 * Opens the store of a data directory that the caller has locked (storage/datadir.h); creates its file, or migrates it
 * from an older schema. On success *store is the caller's (ampd_store_close), on failure it is NULL. AMP_EVERSION:
 * written by a newer ampd; AMP_EDATALOSS: damaged, or no store of ampd; AMP_EINVAL: the path is too long, or a file of
 * it is not a regular one, or belongs to another user; AMP_EIO, AMP_EEXHAUSTED, AMP_ENOMEM.
 */
int ampd_store_sqlite_open(const char *data_dir, struct ampd_store **store, struct amp_error *error);

/*
 * Opens a draft: a store that is being filled from another one and that no server uses yet. Nothing is synced, so a
 * power loss may leave any content, whatever is marked FULL. To keep it, close it, which moves everything into the file
 * ampd.db, and fsync that file. Ownership and errors are those of ampd_store_sqlite_open.
 */
int ampd_store_sqlite_open_draft(const char *data_dir, struct ampd_store **store, struct amp_error *error);

/* Makes an empty store in memory, which lives until its last handle is closed. AMP_ENOMEM. */
int ampd_store_memory_open(struct ampd_store **store, struct amp_error *error);

/*
 * Opens a second handle that can only read; it sees each transaction once it is stored. On success *reader is the
 * caller's, to be closed before `store`; on failure it is NULL.
 */
int ampd_store_open_reader(struct ampd_store *store, struct ampd_store **reader, struct amp_error *error);

/* Closes a handle; NULL is allowed. */
void ampd_store_close(struct ampd_store *store);

/* ---- writing ---- */

/* Reads the fence that ampd_store_boot or ampd_store_put_fence stored last for a shard; counter 0: none is stored. */
int ampd_store_get_fence(struct ampd_store *store, uint32_t shard, struct ampd_fence *fence, struct amp_error *error);

/* FULL. Stores a new model with its parameters, created at at_us (UTC microseconds). AMP_EEXIST: the name is taken. */
int ampd_store_put_model(struct ampd_store *store, const struct ampd_model_spec *spec, int64_t at_us,
                         struct amp_error *error);

/*
 * FULL. Stores a new epoch with its first row (kind EPOCH, at the base step). In the same transaction it marks all rows
 * above the base step superseded, and voids all checkpoints above it. If the epoch has no base (base_epoch 0), it does
 * so with all rows above step 0 and all checkpoints, whatever base_step is. AMP_ESTATE (STALE_EPOCH): the epoch is not
 * above the highest one stored.
 */
int ampd_store_put_epoch(struct ampd_store *store, const char *model, const struct ampd_epoch_record *epoch,
                         const struct ampd_step_row *first, struct amp_error *error);

/*
 * Stores the row of a decided step with all that it holds, or the row of an operator's action. FULL if `full`, which
 * is for durability STEP. An action gets the next sequence number of its (epoch, step); if an action there has the same
 * scale id and request id it is the same one, and 0 is returned without a change. AMP_EEXIST: the step has its row.
 * AMP_ESTATE: the epoch is not the newest one (STALE_EPOCH), or the step before has no row (STEP_GAP); the first step
 * of a draft may be any, since the history that it is copied from may have lost its beginning (store_trim.h).
 */
int ampd_store_put_verdict(struct ampd_store *store, const char *model, const struct ampd_step_row *row, bool full,
                           struct amp_error *error);

/*
 * Stores several rows of any models, in order, each by the rules of ampd_store_put_verdict. With `full` one fsync makes
 * all of them durable. After an error *stored is the number of rows that are stored, from the first on; with SQLite it
 * is 0.
 */
struct ampd_verdict_put {
    const char *model;
    const struct ampd_step_row *row;
};
int ampd_store_put_verdicts(struct ampd_store *store, const struct ampd_verdict_put *puts, uint32_t count, bool full,
                            uint32_t *stored, struct amp_error *error);

/*
 * FULL. Enters a finished checkpoint file into the catalogue, in place of one of the same epoch and step. AMP_ESTATE
 * (STALE_EPOCH): its epoch is not the model's newest one.
 */
int ampd_store_put_checkpoint(struct ampd_store *store, const char *model,
                              const struct ampd_checkpoint_record *checkpoint, struct amp_error *error);

/*
 * FULL. As ampd_store_put_checkpoint, but for any epoch that is not above the newest one: for the part of a shard whose
 * store is lost, or for a checkpoint that was written by another number of shards.
 */
int ampd_store_adopt_checkpoint(struct ampd_store *store, const char *model,
                                const struct ampd_checkpoint_record *checkpoint, struct amp_error *error);

/*
 * FULL. Stores the manifests of all parts (parts_count, parts) of a checkpoint in the catalogue, named by epoch and
 * step; the rest of the entry stays as it is. AMP_ENOTFOUND: there is no such checkpoint, or it is void.
 */
int ampd_store_put_parts(struct ampd_store *store, const char *model, const struct ampd_checkpoint_record *checkpoint,
                         struct amp_error *error);

/*
 * ampd_store_boot, _put_fence, _count_models, _put_worker, _drop_checkpoint, _trim, _move_log, and the deletion of a
 * model (_mark_deleting, _delete_model, _each_deleted, _purge): see store_calls.def.
 */
#define AMPD_STORE_CALL(name, parameters, arguments) int ampd_store_##name parameters;
#define AMPD_STORE_OP(name, parameters)
#include "storage/store_calls.def"
#undef AMPD_STORE_CALL
#undef AMPD_STORE_OP

/* Whether ampd_store_move_log has something to do: never without a write-ahead log. From the thread that writes. */
bool ampd_store_log_is_long(const struct ampd_store *store);

/* ---- reading ---- */

/*
 * Loads all models that are not deleted, ordered by name: what struct ampd_model_record holds. On success *records is
 * the caller's (ampd_model_records_free); on failure it is NULL and *count 0.
 */
int ampd_store_load(struct ampd_store *store, struct ampd_model_record **records, size_t *count,
                    struct amp_error *error);

#endif
