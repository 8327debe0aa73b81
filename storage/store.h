/*
 * The store: models, epochs, workers, one row per decided step, overflow rows and the catalogue of
 * checkpoints.
 *
 * One interface, two implementations: ampd_store_sqlite_open (a data directory) and ampd_store_memory_open
 * (the simulator and tests). Calls are synchronous and each is one transaction: after 0 all of it is stored,
 * after an error none of it is. What is stored survives the end of the process by any signal; a call marked
 * FULL survives power loss too.
 *
 * Threads: one handle is used by one thread at a time. A reader is a second handle of the same store, used by
 * a second thread, so that reading history never delays a verdict. (Handles of a memory store share one
 * lock.)
 *
 * Errors of every call that writes: AMP_EEXHAUSTED (reason NO_SPACE: the disk is full, NO_DESCRIPTORS: no more
 * files can be open, STORE_BUSY: another process is at the file; nothing was stored; try again), AMP_ENOMEM (likewise),
 * AMP_EIO (reason STORE_FAILED: a write or fsync failed and what the disk holds is not known; the handle refuses all
 * later writes; the server must end and acknowledge nothing more), AMP_EDATALOSS (STORE_DAMAGED: likewise, and the file
 * is no database any more; also of opening), AMP_ENOTFOUND (no such model). Errors of reads: AMP_ENOTFOUND, AMP_ENOMEM,
 * AMP_EIO, AMP_EDATALOSS (a row that this program cannot have written).
 */
#ifndef AMPD_STORE_H
#define AMPD_STORE_H

#include "base/err.h"
#include "storage/records.h"
#include "storage/records_memory.h"
#include "storage/store_page.h"
#include "storage/store_trim.h"

/* The schema of ampd.db (sqlite_schema.c). An older program does not open what one with a higher number has opened. */
#define AMPD_STORE_SCHEMA 8

/* ---- life ---- */

/*
 * Opens the store of a data directory that the caller holds (storage/datadir.h), creating or migrating its
 * file. On success *store is the caller's, to be closed. AMP_EVERSION: written by a newer ampd;
 * AMP_EDATALOSS: not a store; AMP_EIO, AMP_EEXHAUSTED, AMP_ENOMEM. On failure *store is NULL.
 */
int ampd_store_sqlite_open(const char *data_dir, struct ampd_store **store, struct amp_error *error);

/*
 * The same, of a store that is no one's yet: nothing waits for the disk, and a power loss may leave anything. Whoever
 * wants to keep it closes it, and syncs its file, in which all is then.
 */
int ampd_store_sqlite_open_draft(const char *data_dir, struct ampd_store **store, struct amp_error *error);

/* An empty store in memory, which lives until its last handle is closed. AMP_ENOMEM. */
int ampd_store_memory_open(struct ampd_store **store, struct amp_error *error);

/* A second handle that only reads. It sees each transaction once it is stored. Close it before the writer. */
int ampd_store_open_reader(struct ampd_store *store, struct ampd_store **reader, struct amp_error *error);

/* Closes a handle; NULL is allowed. */
void ampd_store_close(struct ampd_store *store);

/* ---- writing ---- */

/*
 * FULL. Starts a boot of `shard`: the stored boot counter rises by one, boot_id is stored with it, and *fence
 * is both. To be called once after opening, before anything else is written.
 */
int ampd_store_boot(struct ampd_store *store, uint32_t shard, const uint8_t boot_id[AMPD_BOOT_ID_BYTES],
                    struct ampd_fence *fence, struct amp_error *error);

/* What put_fence or boot stored last of a shard; counter 0: nothing was. */
int ampd_store_get_fence(struct ampd_store *store, uint32_t shard, struct ampd_fence *fence, struct amp_error *error);

/* FULL. A new model, with its parameters. AMP_EEXIST: the name is taken. The spec is copied. */
int ampd_store_put_model(struct ampd_store *store, const struct ampd_model_spec *spec, int64_t at_us,
                         struct amp_error *error);

/*
 * FULL. A new epoch with its first row (kind EPOCH, at its base step), and in the same transaction: rows above the base
 * step are marked superseded, checkpoints above it are void; if the epoch has no base, its base epoch being 0, all rows
 * above step 0 and all checkpoints, whatever its base step. AMP_ESTATE: not above the highest epoch stored.
 */
int ampd_store_put_epoch(struct ampd_store *store, const char *model, const struct ampd_epoch_record *epoch,
                         const struct ampd_step_row *first, struct amp_error *error);

/*
 * One decided step: row, contributors, overflow rows, scale record, durable step. FULL if `full` (durability:
 * step). A row of kind SET or RESET goes behind the rows that its (epoch, step) has; one with the same scale id after
 * it is that row, and stays as it is. AMP_EEXIST: the step has its row. AMP_ESTATE (STEP_GAP): the one before it has
 * none; but the first step of a draft may be any, as a history may have lost its beginning (store_trim.h).
 */
int ampd_store_put_verdict(struct ampd_store *store, const char *model, const struct ampd_step_row *row, bool full,
                           struct amp_error *error);

/*
 * The same for several rows, of any models, in order: with `full` one fsync makes all of them durable. 0: all are
 * stored. Else *stored says how many are, from the first on; none in SQLite. Errors as above.
 */
struct ampd_verdict_put {
    const char *model;
    const struct ampd_step_row *row;
};
int ampd_store_put_verdicts(struct ampd_store *store, const struct ampd_verdict_put *puts, uint32_t count, bool full,
                            uint32_t *stored, struct amp_error *error);

/* FULL. A finished checkpoint file enters the catalogue. AMP_ESTATE: its epoch is not the model's newest one.
 */
int ampd_store_put_checkpoint(struct ampd_store *store, const char *model,
                              const struct ampd_checkpoint_record *checkpoint, struct amp_error *error);

/*
 * FULL. The same for a checkpoint of any epoch that is not above the newest one: the part of a shard whose store is
 * lost, or one that was cut for another number of shards. Replaces what is stored of its epoch and step.
 */
int ampd_store_adopt_checkpoint(struct ampd_store *store, const char *model,
                                const struct ampd_checkpoint_record *checkpoint, struct amp_error *error);

/*
 * FULL. The parts of a checkpoint that is in the catalogue; nothing else of the record changes. AMP_ENOTFOUND: it is
 * not, or void.
 */
int ampd_store_put_parts(struct ampd_store *store, const char *model, const struct ampd_checkpoint_record *checkpoint,
                         struct amp_error *error);

/* What goes to the store as it is: the rows of storage/store_calls.def say what each does. */
#define AMPD_STORE_CALL(name, parameters, arguments) int ampd_store_##name parameters;
#define AMPD_STORE_OP(name, parameters)
#include "storage/store_calls.def"
#undef AMPD_STORE_CALL
#undef AMPD_STORE_OP

/* ---- reading ---- */

/*
 * All models, by name, with newest epoch and row, workers and valid checkpoints. On success *records is the
 * caller's, freed by ampd_model_records_free; on failure it is NULL and *count 0.
 */
int ampd_store_load(struct ampd_store *store, struct ampd_model_record **records, size_t *count,
                    struct amp_error *error);

#endif
