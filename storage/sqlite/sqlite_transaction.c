/*
 * Transactions of the SQLite store. `synchronous` is set for each one: FULL fsyncs the write-ahead log at each commit;
 * NORMAL leaves that to the next checkpoint of the log or FULL commit, so that kill -9 loses nothing, and power loss at
 * most the newest NORMAL commits, from the last one backwards.
 *
 * A checkpoint of the log moves its pages into the database file. It is done by our own hook and not by SQLite's: the
 * built-in one ignores errors, and after a failed fsync another try may succeed although pages are lost. Here any
 * failed fsync or write makes the handle refuse all later writes.
 *
 * After a failed fsync the system may show the next process pages of the log that the disk does not have. After a power
 * loss nothing in the log behind such a page would count. So opening a store moves the log that it finds into the
 * database file, and begins an empty one before the first write. Only while another program reads an old state, or
 * where the disk is full or memory short, does the log stay.
 */
#include "storage/sqlite/sqlite_transaction.h"

#include "base/assert.h"
#include "base/failpoint.h"
#include "storage/sqlite/sqlite_cursor.h"
#include "storage/sqlite/sqlite_known.h"
#include "storage/sqlite/sqlite_ops.h"

/*
 * The log is long when it has this many pages, which are 16 MB at 4 KiB a page. Each checkpoint needs three syncs, for
 * which every commit waits that comes meanwhile; with SQLite's default of 1,000 pages these took a third of the time of
 * verdicts that are not synced themselves. A commit does it itself only where nobody has called ampd_store_move_log.
 */
#define LOG_PAGES_LONG 4000
#define LOG_PAGES_MOST (2 * LOG_PAGES_LONG)

/* Sets `synchronous` (0: OFF, 1: NORMAL, 2: FULL) and reads it back, since SQLite ignores a pragma that it refuses. */
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

int store_begin_relaxed(struct sqlite_store *store, struct amp_error *error)
{
    store_forget(store);
    return store_begin_knowing(store, false, error);
}

int store_begin_knowing(struct sqlite_store *store, bool full, struct amp_error *error)
{
    AMP_ASSERT(!store->reader);
    if (store->failed)
        return amp_error_set(error, AMP_EIO, "STORE_FAILED",
                             "%s: nothing more is stored, because an earlier write failed: %s", store->path,
                             store->why);
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

/* Checkpoints the log. SQLITE_OK also where it stays and the next call tries again: busy, full or out of memory. */
static int move_log(struct sqlite_store *store, int mode)
{
    store->base.log_is_long = false; /* the next commit counts its pages */
    int rc = sqlite3_wal_checkpoint_v2(store->db, "main", mode, NULL, NULL);
    if ((rc & 0xff) != SQLITE_IOERR || store_disk_full(store, sqlite3_extended_errcode(store->db), true))
        return SQLITE_OK;
    return rc;
}

/* Called by SQLite after each commit. */
static int wal_hook(void *arg, sqlite3 *db, const char *name, int pages)
{
    struct sqlite_store *store = arg;
    store->base.log_is_long = pages >= LOG_PAGES_LONG;
    if (pages < LOG_PAGES_MOST || move_log(store, SQLITE_CHECKPOINT_PASSIVE) == SQLITE_OK)
        return SQLITE_OK;
    store->failed = true;
    return SQLITE_IOERR_FSYNC;
}

int store_sqlite_move_log(struct ampd_store *base, struct amp_error *error)
{
    struct sqlite_store *store = store_of(base);
    if (store->failed || !base->log_is_long)
        return 0;
    int rc = move_log(store, SQLITE_CHECKPOINT_PASSIVE);
    return rc == SQLITE_OK ? 0 : store_failure(store, rc, "moving the log", error);
}

int store_transactions_init(struct sqlite_store *store, struct amp_error *error)
{
    store->full = false;
    (void)sqlite3_wal_hook(store->db, wal_hook, store); /* returns the hook before it: none */
    int rc = store->draft ? set_level(store, 0, error) : set_synchronous(store, true, error);
    if (rc != 0 || store->draft)
        return rc;
    int moved = move_log(store, SQLITE_CHECKPOINT_TRUNCATE);
    return moved == SQLITE_OK ? 0 : store_failure(store, moved, "moving the log", error);
}
