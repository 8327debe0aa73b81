/*
 * The SQLite store: connections, errors, statements and transactions.
 *
 * One writer connection in WAL mode, and read-only connections for readers. `synchronous` is set per transaction: FULL
 * fsyncs the log at each commit, NORMAL leaves that to the next checkpoint of the log, so that kill -9 loses nothing
 * and power loss at most the newest NORMAL commits, in order.
 *
 * The log is checkpointed by our own hook and not by SQLite's: the built-in one ignores errors, and after a failed
 * fsync a retry may succeed although pages are lost. Here any failed fsync or write marks the handle as failed for
 * good.
 */
#include "storage/store_sqlite.h"

#include "base/assert.h"
#include "base/failpoint.h"
#include "base/list.h"
#include "storage/store_schema.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* How long a statement waits for another process's lock (someone with the sqlite3 shell on the file). */
#define BUSY_TIMEOUT_MS 5000

/*
 * Pages of log that start a checkpoint of it: 16 MB at 4 KiB a page. Each one calls for three syncs, which every model waits for;
 * with SQLite's own 1,000 pages they were a third of the time of verdicts that are not synced themselves.
 */
#define WAL_CHECKPOINT_PAGES 4000

/* What the log's file is cut back to after a checkpoint, so that one long page does not leave it large. */
#define WAL_SIZE_LIMIT "67108864"

struct sqlite_store *store_of(struct ampd_store *store)
{
    return AMP_CONTAINER(store, struct sqlite_store, base);
}

/* ---- errors ---- */

/* The errno of the last call to the log (else the database itself) that failed, or 0. */
static int file_errno(struct sqlite_store *store, bool log)
{
    sqlite3_file *file = NULL;
    int cause = 0;
    int which = log ? SQLITE_FCNTL_JOURNAL_POINTER : SQLITE_FCNTL_FILE_POINTER;
    int rc = sqlite3_file_control(store->db, "main", which, &file);
    if (rc == SQLITE_OK && file != NULL && file->pMethods != NULL)
        (void)file->pMethods->xFileControl(file, SQLITE_FCNTL_LAST_ERRNO, &cause); /* 0 where it is not known */
    return cause;
}

/*
 * Why a file cannot be written. SQLite keeps no errno of a COMMIT that fails (sqlite3_system_errno is 0 then, or that of an error
 * before), but each of its files does. A commit writes the log; what moves the log into the database (`moves`) writes that.
 */
static int cause_of(struct sqlite_store *store, int sqlite_rc, bool moves)
{
    if (sqlite_rc != SQLITE_IOERR_WRITE || store->db == NULL)
        return sqlite3_system_errno(store->db);
    int cause = file_errno(store, !moves);
    return cause != 0 ? cause : file_errno(store, moves);
}

static bool disk_full(struct sqlite_store *store, int sqlite_rc, bool moves)
{
    if ((sqlite_rc & 0xff) == SQLITE_FULL)
        return true;
    bool sync = sqlite_rc == SQLITE_IOERR_FSYNC || sqlite_rc == SQLITE_IOERR_DIR_FSYNC;
    int cause = cause_of(store, sqlite_rc, moves);
    return (sqlite_rc & 0xff) == SQLITE_IOERR && !sync && (cause == ENOSPC || cause == EDQUOT);
}

/* SQLite opens files in the middle of a transaction too: what it keeps of a large statement. */
static bool no_descriptors(struct sqlite_store *store, int sqlite_rc)
{
    int cause = (sqlite_rc & 0xff) == SQLITE_CANTOPEN ? sqlite3_system_errno(store->db) : 0;
    return cause == EMFILE || cause == ENFILE;
}

int store_failure(struct sqlite_store *store, int sqlite_rc, const char *what, struct amp_error *error)
{
    const char *why = store->db != NULL ? sqlite3_errmsg(store->db) : sqlite3_errstr(sqlite_rc);
    int extended = store->db != NULL ? sqlite3_extended_errcode(store->db) : sqlite_rc;
    if ((extended & 0xff) != (sqlite_rc & 0xff))
        extended = sqlite_rc;
    if ((extended & 0xff) == SQLITE_NOMEM)
        return amp_error_set(error, AMP_ENOMEM, NULL, "%s: out of memory in the store", what);
    if (disk_full(store, extended, false))
        return amp_error_set(error, AMP_EEXHAUSTED, "NO_SPACE", "%s: the disk of %s is full", what, store->path);
    if (no_descriptors(store, extended))
        return amp_error_set(error, AMP_EEXHAUSTED, "NO_DESCRIPTORS",
                             "%s: %s: too many open files; raise their limit (ulimit -n)", what, store->path);
    if ((extended & 0xff) == SQLITE_BUSY)
        return amp_error_set(error, AMP_EEXHAUSTED, "STORE_BUSY", "%s: another process holds %s", what, store->path);
    bool damaged = (extended & 0xff) == SQLITE_CORRUPT || (extended & 0xff) == SQLITE_NOTADB;
    if (store->reader)
        return amp_error_set(error, damaged ? AMP_EDATALOSS : AMP_EIO, "STORE_FAILED", "%s: %s: %s (%d)", what,
                             store->path, why, extended);
    store->failed = true;
    if (store->why[0] == 0)
        (void)snprintf(store->why, sizeof store->why, "%s: %s (%d)", what, why, extended);
    return amp_error_set(error, AMP_EIO, "STORE_FAILED", "%s: %s: %s (%d)", what, store->path, why, extended);
}

/* ---- statements ---- */

sqlite3_stmt *store_statement(struct sqlite_store *store, enum store_statement statement)
{
    sqlite3_stmt **slot = &store->statements[statement];
    if (*slot == NULL &&
        sqlite3_prepare_v3(store->db, store_sql(statement), -1, SQLITE_PREPARE_PERSISTENT, slot, NULL) != SQLITE_OK)
        return NULL;
    (void)sqlite3_reset(*slot); /* repeats the error of the run before, which was answered then */
    (void)sqlite3_clear_bindings(*slot);
    return *slot;
}

int store_run(struct sqlite_store *store, sqlite3_stmt *statement, const char *what, struct amp_error *error)
{
    int rc = statement != NULL ? sqlite3_step(statement) : sqlite3_errcode(store->db);
    int result = rc == SQLITE_DONE || rc == SQLITE_ROW ? 0 : store_failure(store, rc, what, error);
    (void)sqlite3_reset(statement); /* repeats the error of the step */
    return result;
}

struct store_cursor store_binder(struct sqlite_store *store, enum store_statement statement)
{
    struct store_cursor cursor = {.statement = store_statement(store, statement), .at = 1};
    cursor.rc = cursor.statement != NULL ? SQLITE_OK : sqlite3_errcode(store->db);
    return cursor;
}

static void bound(struct store_cursor *cursor, int rc)
{
    if (cursor->rc == SQLITE_OK)
        cursor->rc = rc;
    cursor->at++;
}

void store_bind_u64(struct store_cursor *cursor, uint64_t value)
{
    bound(cursor, sqlite3_bind_int64(cursor->statement, cursor->at, (sqlite3_int64)value));
}

void store_bind_f64(struct store_cursor *cursor, double value)
{
    bound(cursor, sqlite3_bind_double(cursor->statement, cursor->at, value));
}

void store_bind_text(struct store_cursor *cursor, const char *text)
{
    bound(cursor, sqlite3_bind_text(cursor->statement, cursor->at, text, -1, SQLITE_STATIC));
}

void store_bind_blob(struct store_cursor *cursor, const void *data, size_t size)
{
    /* A null pointer would bind NULL; an empty blob is meant. */
    bound(cursor, sqlite3_bind_blob64(cursor->statement, cursor->at, size > 0 ? data : "", size, SQLITE_STATIC));
}

uint64_t store_column_u64(struct store_cursor *cursor)
{
    return (uint64_t)sqlite3_column_int64(cursor->statement, cursor->at++);
}

double store_column_f64(struct store_cursor *cursor)
{
    return sqlite3_column_double(cursor->statement, cursor->at++);
}

void store_column_text(struct store_cursor *cursor, char *text, size_t size)
{
    const unsigned char *value = sqlite3_column_text(cursor->statement, cursor->at++);
    (void)snprintf(text, size, "%s", value != NULL ? (const char *)value : "");
}

const void *store_column_blob(struct store_cursor *cursor, size_t *size)
{
    const void *data = sqlite3_column_blob(cursor->statement, cursor->at);
    *size = (size_t)sqlite3_column_bytes(cursor->statement, cursor->at++);
    return data;
}

/* ---- transactions ---- */

/* Sets `synchronous`, 0 to 2, and reads it back: SQLite ignores a pragma it does not like. */
static int set_level(struct sqlite_store *store, int wanted, struct amp_error *error)
{
    static const char *const pragmas[] = {"PRAGMA synchronous=OFF", "PRAGMA synchronous=NORMAL",
                                          "PRAGMA synchronous=FULL"};
    int rc = sqlite3_exec(store->db, pragmas[wanted], NULL, NULL, NULL);
    sqlite3_stmt *statement = NULL;
    if (rc == SQLITE_OK)
        rc = sqlite3_prepare_v2(store->db, "PRAGMA synchronous", -1, &statement, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(statement);
    int level = rc == SQLITE_ROW ? sqlite3_column_int(statement, 0) : -1;
    (void)sqlite3_finalize(statement); /* repeats the error of the step */
    return level == wanted ? 0
                           : store_failure(store, rc == SQLITE_ROW ? SQLITE_ERROR : rc, "setting synchronous", error);
}

static int set_synchronous(struct sqlite_store *store, bool full, struct amp_error *error)
{
    if (store->draft || store->full == full)
        return 0;
    int rc = set_level(store, full ? 2 : 1, error);
    store->full = rc == 0 ? full : store->full;
    return rc;
}

int store_ready(struct sqlite_store *store, struct amp_error *error)
{
    if (store_statement(store, STMT_COMMIT) == NULL || store_statement(store, STMT_ROLLBACK) == NULL)
        return store_failure(store, sqlite3_errcode(store->db), "preparing a transaction", error);
    if (sqlite3_get_autocommit(store->db) != 0)
        return 0;
    return store_run(store, store_statement(store, STMT_ROLLBACK), "rolling back", error);
}

int store_begin(struct sqlite_store *store, struct amp_error *error)
{
    store_forget(store);
    return store_begin_knowing(store, true, error);
}

int store_begin_lightly(struct sqlite_store *store, struct amp_error *error)
{
    store_forget(store);
    return store_begin_knowing(store, false, error);
}

int store_begin_knowing(struct sqlite_store *store, bool full, struct amp_error *error)
{
    AMP_ASSERT(!store->reader);
    if (store->failed)
        return amp_error_set(error, AMP_EIO, "STORE_FAILED", "%s: nothing more is stored, for it failed before: %s",
                             store->path, store->why);
    int rc = store_ready(store, error);
    if (rc == 0)
        rc = set_synchronous(store, full, error);
    if (rc != 0)
        return rc;
    return store_run(store, store_statement(store, STMT_BEGIN_WRITE), "beginning a transaction", error);
}

int store_end(struct sqlite_store *store, int rc, struct amp_error *error)
{
    AMP_FAILPOINT("persist.commit");
    if (rc == 0)
        rc = store_run(store, store_statement(store, STMT_COMMIT), "storing", error);
    /* Also after a failed commit, which may leave the transaction open; some errors have rolled back already. */
    if (rc != 0)
        store_forget(store);
    if (rc != 0 && sqlite3_get_autocommit(store->db) == 0)
        (void)store_run(store, store_statement(store, STMT_ROLLBACK), "rolling back", NULL);
    AMP_FAILPOINT("persist.committed");
    return rc;
}

/* Runs after a commit: moves the log into the file when it is long. */
static int wal_hook(void *arg, sqlite3 *db, const char *name, int pages)
{
    struct sqlite_store *store = arg;
    if (pages < WAL_CHECKPOINT_PAGES)
        return SQLITE_OK;
    int rc = sqlite3_wal_checkpoint_v2(db, name, SQLITE_CHECKPOINT_PASSIVE, NULL, NULL);
    /* Busy, full or out of memory: the log stays and the next commit tries again. */
    if (rc == SQLITE_OK || (rc & 0xff) != SQLITE_IOERR || disk_full(store, sqlite3_extended_errcode(db), true))
        return SQLITE_OK;
    store->failed = true;
    return SQLITE_IOERR_FSYNC;
}

int store_find_model(struct sqlite_store *store, const char *name, int64_t *id, uint64_t *epoch,
                     struct amp_error *error)
{
    struct store_cursor binder = store_binder(store, STMT_MODEL_FIND);
    store_bind_text(&binder, name);
    int rc = binder.rc == SQLITE_OK ? sqlite3_step(binder.statement) : binder.rc;
    int result = 0;
    if (rc == SQLITE_ROW) {
        *id = sqlite3_column_int64(binder.statement, 0);
        *epoch = (uint64_t)sqlite3_column_int64(binder.statement, 1); /* 0 where max is NULL */
    } else {
        result =
            rc == SQLITE_DONE ? ampd_store_no_model(error, name) : store_failure(store, rc, "finding a model", error);
    }
    (void)sqlite3_reset(binder.statement); /* repeats the error of the step */
    return result;
}

/* ---- life ---- */

static void sqlite_close(struct ampd_store *base)
{
    struct sqlite_store *store = store_of(base);
    for (int i = 0; i < STMT_COUNT; i++)
        (void)sqlite3_finalize(store->statements[i]); /* repeats errors that were answered */
    int rc = sqlite3_close(store->db);
    AMP_ASSERT(rc == SQLITE_OK); /* no statement is left */
    free(store->path);
    free(store);
}

static int sqlite_open_reader(struct ampd_store *base, struct ampd_store **reader, struct amp_error *error);

static const struct ampd_store_ops sqlite_ops = {
    .open_reader = sqlite_open_reader,
    .close = sqlite_close,
    .boot = store_sqlite_boot,
    .get_fence = store_sqlite_get_fence,
    .put_fence = store_sqlite_put_fence,
    .put_model = store_sqlite_put_model,
    .put_epoch = store_sqlite_put_epoch,
    .put_worker = store_sqlite_put_worker,
    .put_verdicts = store_sqlite_put_verdicts,
    .put_checkpoint = store_sqlite_put_checkpoint,
    .put_parts = store_sqlite_put_parts,
    .drop_checkpoint = store_sqlite_drop_checkpoint,
    .mark_deleting = store_sqlite_mark_deleting,
    .delete_model = store_sqlite_delete_model,
    .each_deleted = store_sqlite_each_deleted,
    .purge = store_sqlite_purge,
    .load = store_sqlite_load,
    .page_history = store_sqlite_page_history,
    .page_overflows = store_sqlite_page_overflows,
};

/* A handle with an open connection. On failure *out is NULL. */
static int connect(const char *path, bool reader, struct sqlite_store **out, struct amp_error *error)
{
    *out = NULL;
    struct sqlite_store *store = calloc(1, sizeof *store);
    char *copy = strdup(path);
    if (store == NULL || copy == NULL) {
        free(store);
        free(copy);
        return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory opening the store");
    }
    *store = (struct sqlite_store){.base.ops = &sqlite_ops, .path = copy, .reader = reader};
    int flags = (reader ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE) | SQLITE_OPEN_NOMUTEX;
    int rc = sqlite3_open_v2(path, &store->db, flags, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_extended_result_codes(store->db, 1);
    if (rc == SQLITE_OK)
        rc = sqlite3_busy_timeout(store->db, BUSY_TIMEOUT_MS);
    if (rc != SQLITE_OK) {
        int result = store_failure(store, rc, "opening the store", error);
        sqlite_close(&store->base);
        return result;
    }
    *out = store;
    return 0;
}

static int sqlite_open_reader(struct ampd_store *base, struct ampd_store **reader, struct amp_error *error)
{
    struct sqlite_store *store;
    int rc = connect(store_of(base)->path, true, &store, error);
    if (rc == 0)
        *reader = &store->base;
    return rc;
}

/* WAL mode, and what Debian's build sets otherwise: secure_delete rewrites freed pages with zeros. */
static int configure(struct sqlite_store *store, struct amp_error *error)
{
    sqlite3_stmt *statement = NULL;
    int rc = sqlite3_exec(store->db,
                          "PRAGMA secure_delete=OFF; PRAGMA foreign_keys=ON; PRAGMA trusted_schema=OFF;"
                          "PRAGMA journal_size_limit=" WAL_SIZE_LIMIT,
                          NULL, NULL, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_prepare_v2(store->db, "PRAGMA journal_mode=WAL", -1, &statement, NULL);
    if (rc == SQLITE_OK)
        rc = sqlite3_step(statement);
    const unsigned char *mode = rc == SQLITE_ROW ? sqlite3_column_text(statement, 0) : NULL;
    bool is_wal = mode != NULL && strcmp((const char *)mode, "wal") == 0;
    (void)sqlite3_finalize(statement); /* repeats the error of the step */
    if (rc != SQLITE_ROW)
        return store_failure(store, rc, "opening the store", error);
    if (!is_wal)
        return amp_error_set(error, AMP_EIO, "STORE_FAILED", "%s: the file system has no shared memory for the log",
                             store->path);
    store->full = false;
    int set = store->draft ? set_level(store, 0, error) : set_synchronous(store, true, error);
    (void)sqlite3_wal_hook(store->db, wal_hook, store); /* returns the hook before it: none */
    return set;
}

/* Makes the file, so that it has our mode and not the umask's. */
static int create_file(const char *path, struct amp_error *error)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return amp_error_set(error, errno == ENOSPC ? AMP_EEXHAUSTED : AMP_EIO, "STORE_FAILED", "cannot open %s: %s",
                             path, strerror(errno));
    (void)close(fd); /* nothing was written */
    return 0;
}

static int open_store(const char *data_dir, bool draft, struct ampd_store **out, struct amp_error *error)
{
    *out = NULL;
    char path[4096];
    int size = snprintf(path, sizeof path, "%s/ampd.db", data_dir);
    if (size < 0 || (size_t)size >= sizeof path)
        return amp_error_set(error, AMP_EINVAL, NULL, "the data directory's path is too long");
    struct sqlite_store *store;
    int rc = create_file(path, error);
    if (rc == 0)
        rc = connect(path, false, &store, error);
    if (rc != 0)
        return rc;
    store->draft = draft;
    rc = configure(store, error);
    if (rc == 0)
        rc = store_migrate(store, error);
    if (rc != 0) {
        sqlite_close(&store->base);
        return rc;
    }
    *out = &store->base;
    return 0;
}

int ampd_store_sqlite_open(const char *data_dir, struct ampd_store **out, struct amp_error *error)
{
    return open_store(data_dir, false, out, error);
}

int ampd_store_sqlite_open_draft(const char *data_dir, struct ampd_store **out, struct amp_error *error)
{
    return open_store(data_dir, true, out, error);
}
