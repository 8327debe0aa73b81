/* Inside of the SQLite store: the handle, statements and transactions that its files share. */
#ifndef AMPD_STORE_SQLITE_H
#define AMPD_STORE_SQLITE_H

#include "storage/store_impl.h"

#include <sqlite3.h>

/* Every statement of the store, prepared at its first use and kept: the set is fixed, so the cache is bounded. */
enum store_statement {
    STMT_BEGIN_WRITE,
    STMT_BEGIN_READ,
    STMT_COMMIT,
    STMT_ROLLBACK,
    STMT_FENCE_GET,
    STMT_FENCE_PUT,
    STMT_MODEL_FIND,
    STMT_MODEL_PUT,
    STMT_PARAMETER_PUT,
    STMT_EPOCH_PUT,
    STMT_ROWS_SUPERSEDE,
    STMT_CHECKPOINTS_VOID,
    STMT_ROW_PUT,
    STMT_ROW_EXISTS,
    STMT_ROW_LAST_SEQUENCE,
    STMT_ACT_EXISTS,
    STMT_OVERFLOW_PUT,
    STMT_WORKER_DROP_NAME,
    STMT_WORKER_PUT,
    STMT_CHECKPOINT_PUT,
    STMT_CHECKPOINT_PARTS,
    STMT_CHECKPOINT_DROP,
    STMT_MODELS_LIST,
    STMT_PARAMETERS_LIST,
    STMT_EPOCH_LAST,
    STMT_EPOCH_GET,
    STMT_ROW_LAST,
    STMT_OVERFLOWS_OF_ROW,
    STMT_WORKERS_LIST,
    STMT_CHECKPOINTS_LIST,
    STMT_HISTORY_UP,
    STMT_HISTORY_DOWN,
    STMT_OVERFLOWS_UP,
    STMT_OVERFLOWS_DOWN,
    STMT_ACTS_LIST,
    STMT_MODEL_DELETING,
    STMT_MODEL_DELETED,
    STMT_DELETED_FIND,
    STMT_DELETED_LIST,
    STMT_PURGE_OVERFLOWS, /* these in a row: store_sqlite_delete.c goes through them */
    STMT_PURGE_STEPS,
    STMT_PURGE_PARAMETERS,
    STMT_PURGE_EPOCHS,
    STMT_PURGE_WORKERS,
    STMT_PURGE_CHECKPOINTS,
    STMT_PURGE_MODEL,
    STMT_COUNT
};

/* Models that a writer keeps in mind; of two with one place the last one has it. A server has few that train at a time. */
#define STORE_KNOWN_MAX 64

/* What is true of a model while nothing but its verdicts is stored. */
struct store_known {
    char name[AMPD_NAME_MAX]; /* "": nobody */
    int64_t id;
    uint64_t epoch;
    bool has_step; /* the newest epoch has the row of `step`, the last that was stored */
    uint64_t step;
};

struct sqlite_store {
    struct ampd_store base;
    sqlite3 *db;
    char *path;
    bool reader;
    bool draft;  /* the connection's synchronous setting: OFF */
    bool full;   /* else: FULL, else NORMAL */
    bool failed; /* a write or fsync failed: what the disk holds is not known */
    char why[AMP_ERROR_TEXT_MAX]; /* of the first such failure */
    struct store_known known[STORE_KNOWN_MAX];
    sqlite3_stmt *statements[STMT_COUNT];
};

/* The columns of a row, in the order that row_bind and row_read walk them. */
#define STORE_ROW_COLUMNS                                                                                              \
    "kind,parent_epoch,parent_step,verdict,tries,contributors_hash,contributors,scale,scale_id,after_scale,"           \
    "after_scale_id,growth_tracker,hysteresis_left,consecutive_overflows,total_overflows,"                             \
    "steps_since_overflow,attempted,applied,skipped,coefficient,norm,clip,lr,version,overflow_params,"                 \
    "inf_total,nan_total,rows_count,durable_step,cut,superseded,at_us,from_step,actor,words,request_id,clips"
#define STORE_ROW_COLUMNS_COUNT 37

/* The handle of an interface pointer. */
struct sqlite_store *store_of(struct ampd_store *store);

/* The text of a statement. */
const char *store_sql(enum store_statement statement);

/*
 * The prepared statement, reset, without bindings; NULL if it cannot be prepared (then store_failure tells why). It
 * stays the store's; store_done after its last row.
 */
sqlite3_stmt *store_statement(struct sqlite_store *store, enum store_statement statement);

/* Turns what SQLite answered last into one of store.h's codes; marks a writer as failed where that says so. */
int store_failure(struct sqlite_store *store, int sqlite_rc, const char *what, struct amp_error *error);

/* Runs a statement that hands out no rows and resets it. 0 or an error. */
int store_run(struct sqlite_store *store, sqlite3_stmt *statement, const char *what, struct amp_error *error);

/*
 * Before a transaction: what ends one is prepared, so that memory is not needed for it, and one that could not be rolled
 * back is.
 */
int store_ready(struct sqlite_store *store, struct amp_error *error);

/* A write transaction, durable through power loss. AMP_EIO if the handle has failed before. */
int store_begin(struct sqlite_store *store, struct amp_error *error);

/* The same for what power loss may take: the next transaction of the other kind makes it durable. */
int store_begin_lightly(struct sqlite_store *store, struct amp_error *error);

/*
 * The same for verdicts alone, durable if `full`: they change nothing that is known of models; the two others forget it, and a
 * failed store_end.
 */
int store_begin_knowing(struct sqlite_store *store, bool full, struct amp_error *error);

/* Ends it: commits if rc is 0, else rolls back. Returns rc, or why the commit failed (nothing is stored then). */
int store_end(struct sqlite_store *store, int rc, struct amp_error *error);

/* Forgets what is known of models. */
void store_forget(struct sqlite_store *store);

/* The id and newest epoch (0: none) of a model. AMP_ENOTFOUND. */
int store_find_model(struct sqlite_store *store, const char *name, int64_t *id, uint64_t *epoch,
                     struct amp_error *error);

/* Walks the parameters or columns of a statement in order. The first failed bind is kept in rc. */
struct store_cursor {
    sqlite3_stmt *statement;
    int at; /* of the next parameter (from 1) or column (from 0) */
    int rc; /* of SQLite */
};

struct store_cursor store_binder(struct sqlite_store *store, enum store_statement statement);
void store_bind_u64(struct store_cursor *cursor, uint64_t value);
void store_bind_f64(struct store_cursor *cursor, double value);
void store_bind_text(struct store_cursor *cursor, const char *text); /* must stay until the statement ran */
void store_bind_blob(struct store_cursor *cursor, const void *data, size_t size); /* likewise */
uint64_t store_column_u64(struct store_cursor *cursor);
double store_column_f64(struct store_cursor *cursor);
/* Copies the text, cut to size - 1 bytes. */
void store_column_text(struct store_cursor *cursor, char *text, size_t size);
/* The blob, borrowed until the statement moves; its size in *size. */
const void *store_column_blob(struct store_cursor *cursor, size_t *size);

/* Runs what was bound, unless binding failed. */
int store_run_bound(struct sqlite_store *store, const struct store_cursor *binder, const char *what,
                    struct amp_error *error);

/* The first column of the first row as a number, `absent` if there is none or it is NULL. */
int store_query_number(struct sqlite_store *store, const struct store_cursor *binder, uint64_t absent, uint64_t *value,
                       struct amp_error *error);

/* store_sqlite_rows.c: a row with its overflows. AMP_EEXIST: the step has one of that sequence. */
int store_put_row(struct sqlite_store *store, int64_t id, uint64_t sequence, const struct ampd_step_row *row,
                  struct amp_error *error);

/* store_sqlite_read.c: the ops that a reader has too. */
int store_sqlite_load(struct ampd_store *store, struct ampd_model_record **records, size_t *count,
                      struct amp_error *error);
int store_sqlite_page_history(struct ampd_store *store, const char *model, const struct ampd_history_filter *filter,
                              const struct ampd_history_key *lo, const struct ampd_history_key *hi, uint32_t limit,
                              void *arg, struct amp_error *error, ampd_history_cb *row_cb);
int store_sqlite_page_overflows(struct ampd_store *store, const char *model, const struct ampd_history_filter *filter,
                                const struct ampd_overflow_filter *which, const struct ampd_history_key *lo,
                                const struct ampd_history_key *hi, uint32_t limit, void *arg, struct amp_error *error,
                                ampd_overflows_cb *row_cb);

/* store_sqlite_write.c: the ops of the writer. */
int store_sqlite_boot(struct ampd_store *store, uint32_t shard, const uint8_t *boot_id, struct ampd_fence *fence,
                      struct amp_error *error);
int store_sqlite_get_fence(struct ampd_store *base, uint32_t shard, struct ampd_fence *fence, struct amp_error *error);
int store_sqlite_put_fence(struct ampd_store *store, uint32_t shard, const struct ampd_fence *fence,
                           struct amp_error *error);
int store_sqlite_put_model(struct ampd_store *store, const struct ampd_model_spec *spec, int64_t at_us,
                           struct amp_error *error);
int store_sqlite_put_epoch(struct ampd_store *store, const char *model, const struct ampd_epoch_record *epoch,
                           const struct ampd_step_row *first, struct amp_error *error);
int store_sqlite_put_worker(struct ampd_store *store, const char *model, const struct ampd_worker_record *worker,
                            struct amp_error *error);
int store_sqlite_put_verdicts(struct ampd_store *store, const struct ampd_verdict_put *puts, uint32_t count, bool full,
                              uint32_t *stored, struct amp_error *error);
int store_sqlite_put_checkpoint(struct ampd_store *store, const char *model,
                                const struct ampd_checkpoint_record *checkpoint, bool adopted,
                                struct amp_error *error);
int store_sqlite_put_parts(struct ampd_store *base, const char *model, const struct ampd_checkpoint_record *checkpoint,
                           struct amp_error *error);
int store_sqlite_drop_checkpoint(struct ampd_store *store, const char *model, uint64_t epoch, uint64_t step,
                                 struct amp_error *error);

/* store_sqlite_delete.c: the end of a model. */
int store_sqlite_mark_deleting(struct ampd_store *store, const char *model, struct amp_error *error);
int store_sqlite_delete_model(struct ampd_store *store, const char *model, struct amp_error *error);
int store_sqlite_each_deleted(struct ampd_store *store, void *arg, struct amp_error *error,
                              int (*name_cb)(void *arg, const char *name));
int store_sqlite_purge(struct ampd_store *store, uint32_t limit, bool *more, struct amp_error *error);

#endif
