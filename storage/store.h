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
 * files can be open, STORE_BUSY: another process is at the file; nothing was stored; try again), AMP_ENOMEM (likewise), AMP_EIO (reason STORE_FAILED: a write or fsync failed and what the disk
 * holds is not known; the handle refuses all later writes; the server must end and acknowledge nothing more),
 * AMP_ENOTFOUND (no such model). Errors of reads: AMP_ENOTFOUND, AMP_ENOMEM, AMP_EIO, AMP_EDATALOSS (a row
 * that this program cannot have written).
 */
#ifndef AMPD_STORE_H
#define AMPD_STORE_H

#include "base/err.h"
#include "storage/records.h"

/* Rows that one page call hands out at most, whatever limit is asked for: a page is one short transaction. */
#define AMPD_STORE_PAGE_MAX 4096

struct ampd_store; /* one handle */

/*
 * Where a row stands in a model's history. `sequence` is 0 for the row of a step (or of an epoch's start) and
 * counts the SET and RESET rows that follow it; rows are ordered by (epoch, step, sequence).
 */
struct ampd_history_key {
    uint64_t epoch, step;
    uint32_t sequence; /* of an overflow row: its index within the step */
};

/* Which rows a page has. All zero: every row that is not superseded, from the first one. */
struct ampd_history_filter {
    uint64_t epoch;               /* 0: all epochs */
    struct ampd_history_key from; /* first key of the page, inclusive; descending: the last; 0,0,0: no bound */
    uint64_t step_min, step_max;  /* of the key, inclusive; step_max 0: no bound */
    bool superseded_too;          /* rows that a later epoch took back */
    bool descending;              /* newest first */
    uint32_t verdicts;            /* bit v: rows of kind STEP with verdict v; 0: all rows */
    bool only_changes;            /* only rows after which the scale differs */
};

/* Which overflow rows of those steps: inclusive bounds. */
struct ampd_overflow_filter {
    uint32_t parameter_min, parameter_max;
    uint32_t rank_min, rank_max; /* AMPD_RANK_RANGE and AMPD_RANK_SUM are the two highest */
};

/* An overflow row with what is known of its step. */
struct ampd_overflow_found {
    struct ampd_overflow_row row;
    int64_t at_us;
    bool superseded;
};

/*
 * Gets one row, borrowed until it returns; `epoch` is not NULL for a row of kind EPOCH. Anything but 0 ends the page and is
 * returned by the page call.
 */
typedef int ampd_history_cb(void *arg, const struct ampd_history_key *key, const struct ampd_step_row *row,
                            const struct ampd_epoch_record *epoch);
typedef int ampd_overflows_cb(void *arg, const struct ampd_history_key *key, const struct ampd_overflow_found *found);

/* ---- life ---- */

/*
 * Opens the store of a data directory that the caller holds (storage/datadir.h), creating or migrating its
 * file. On success *store is the caller's, to be closed. AMP_EVERSION: written by a newer ampd;
 * AMP_EDATALOSS: not a store; AMP_EIO, AMP_EEXHAUSTED, AMP_ENOMEM. On failure *store is NULL.
 */
int ampd_store_sqlite_open(const char *data_dir, struct ampd_store **store, struct amp_error *error);

/*
 * The same, of a store that is no one's yet: nothing waits for the disk, and a power loss may leave anything. Whoever wants to keep
 * it closes it, and syncs its file, in which all is then.
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

/* FULL. The newest fence seen of a shard. Replaces what is stored of it. */
int ampd_store_put_fence(struct ampd_store *store, uint32_t shard, const struct ampd_fence *fence,
                         struct amp_error *error);

/* What put_fence or boot stored last of a shard; counter 0: nothing was. */
int ampd_store_get_fence(struct ampd_store *store, uint32_t shard, struct ampd_fence *fence, struct amp_error *error);

/* FULL. A new model, with its parameters. AMP_EEXIST: the name is taken. The spec is copied. */
int ampd_store_put_model(struct ampd_store *store, const struct ampd_model_spec *spec, int64_t at_us,
                         struct amp_error *error);

/*
 * FULL. A new epoch with its first row (kind EPOCH, at its base step), and in the same transaction: rows
 * above the base step are marked superseded, checkpoints above it are void (all of them, if the epoch has no base: its
 * base epoch is 0). AMP_ESTATE: not above the highest
 * epoch stored.
 */
int ampd_store_put_epoch(struct ampd_store *store, const char *model, const struct ampd_epoch_record *epoch,
                         const struct ampd_step_row *first, struct amp_error *error);

/* A rank and who holds it; replaces what is stored of that rank, and of that name. */
int ampd_store_put_worker(struct ampd_store *store, const char *model, const struct ampd_worker_record *worker,
                          struct amp_error *error);

/*
 * One decided step: row, contributors, overflow rows, scale record, durable step. FULL if `full` (durability:
 * step). A row of kind SET or RESET goes behind the rows that its (epoch, step) has; one with the same scale id after it
 * is that row, and stays as it is. AMP_EEXIST: the step has its row.
 */
int ampd_store_put_verdict(struct ampd_store *store, const char *model, const struct ampd_step_row *row, bool full,
                           struct amp_error *error);

/*
 * The same for several rows, of any models, in order: with `full` one fsync makes all of them durable. 0: all are stored. Else
 * *stored says how many are, from the first on; none in SQLite. Errors as above.
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
 * FULL. The same for a checkpoint of any epoch that is not above the newest one: the part of a shard whose store is lost, or
 * one that was cut for another number of shards. Replaces what is stored of its epoch and step.
 */
int ampd_store_adopt_checkpoint(struct ampd_store *store, const char *model,
                                const struct ampd_checkpoint_record *checkpoint, struct amp_error *error);

/* FULL. The parts of a checkpoint that is in the catalogue; nothing else of the record changes. AMP_ENOTFOUND: it is not, or void. */
int ampd_store_put_parts(struct ampd_store *store, const char *model, const struct ampd_checkpoint_record *checkpoint,
                         struct amp_error *error);

/* FULL. Takes a checkpoint out of the catalogue; its file is removed by the caller, afterwards.
 * AMP_ENOTFOUND. */
int ampd_store_drop_checkpoint(struct ampd_store *store, const char *model, uint64_t epoch, uint64_t step,
                               struct amp_error *error);

/*
 * FULL. DeleteModel of a model that other shards have too begins: ampd_store_load says so of it, so that it goes on after a
 * start. AMP_ENOTFOUND.
 */
int ampd_store_mark_deleting(struct ampd_store *store, const char *model, struct amp_error *error);

/*
 * FULL. From now on there is no model of this name, whatever happens; its rows go little by little (ampd_store_purge), so
 * that a long history holds no verdict up. Its files are the caller's to remove. AMP_ENOTFOUND.
 */
int ampd_store_delete_model(struct ampd_store *store, const char *model, struct amp_error *error);

/* Hands the name of each deleted model that has rows left to name_cb. Anything but 0 ends the walk and is returned. */
int ampd_store_each_deleted(struct ampd_store *store, void *arg, struct amp_error *error,
                            int (*name_cb)(void *arg, const char *name));

/* Takes at most `limit` rows of deleted models out, in one short transaction; *more: some are left. */
int ampd_store_purge(struct ampd_store *store, uint32_t limit, bool *more, struct amp_error *error);

/* ---- reading ---- */

/*
 * All models, by name, with newest epoch and row, workers and valid checkpoints. On success *records is the
 * caller's, freed by ampd_model_records_free; on failure it is NULL and *count 0.
 */
int ampd_store_load(struct ampd_store *store, struct ampd_model_record **records, size_t *count,
                    struct amp_error *error);

/* Hands at most `limit` (bounded by AMPD_STORE_PAGE_MAX) rows that pass the filter to row_cb, in order. */
int ampd_store_page_history(struct ampd_store *store, const char *model, const struct ampd_history_filter *filter,
                            uint32_t limit, void *arg, struct amp_error *error, ampd_history_cb *row_cb);

/* The same for overflow rows, ordered by (epoch, step, index). `which` NULL: all. verdicts and only_changes have no effect. */
int ampd_store_page_overflows(struct ampd_store *store, const char *model, const struct ampd_history_filter *filter,
                              const struct ampd_overflow_filter *which, uint32_t limit, void *arg,
                              struct amp_error *error, ampd_overflows_cb *row_cb);

/* ---- memory of records ---- */

/* Copies a spec with its parameters. AMP_ENOMEM; *to is then empty. */
int ampd_model_spec_copy(struct ampd_model_spec *to, const struct ampd_model_spec *from);

/* Frees what a spec owns and makes it empty. */
void ampd_model_spec_clear(struct ampd_model_spec *spec);

/* Frees records of ampd_store_load, the array too; NULL is allowed. */
void ampd_model_records_free(struct ampd_model_record *records, size_t count);

/* Frees the user states of a checkpoint state and makes it empty. */
void ampd_checkpoint_state_clear(struct ampd_checkpoint_state *state);

#endif
