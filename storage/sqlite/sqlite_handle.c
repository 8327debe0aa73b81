/* Errors of the SQLite store: translates those of SQLite and of the system into those of store.h. */
#include "storage/sqlite/sqlite_handle.h"

#include "base/list.h"

#include <errno.h>
#include <stdio.h>

struct sqlite_store *store_of(struct ampd_store *store)
{
    return AMP_CONTAINER(store, struct sqlite_store, base);
}

/* The errno of the last failed call to the write-ahead log (`log` true) or to the database file; 0: not known. */
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
 * The errno of a call to SQLite that failed. After a COMMIT that failed sqlite3_system_errno is 0 or that of an earlier
 * error, but each of SQLite's files keeps its own. A commit writes the log; a call that moves the log into the database
 * file (`moves`) writes the database file.
 */
static int cause_of(struct sqlite_store *store, int sqlite_rc, bool moves)
{
    if (sqlite_rc != SQLITE_IOERR_WRITE || store->db == NULL)
        return sqlite3_system_errno(store->db);
    int cause = file_errno(store, !moves);
    return cause != 0 ? cause : file_errno(store, moves);
}

bool store_disk_full(struct sqlite_store *store, int sqlite_rc, bool moves)
{
    if ((sqlite_rc & 0xff) == SQLITE_FULL)
        return true;
    if (sqlite_rc == SQLITE_IOERR_SHMSIZE) /* ampd.db-shm did not grow; SQLite keeps no errno, and nothing is lost */
        return true;
    bool sync = sqlite_rc == SQLITE_IOERR_FSYNC || sqlite_rc == SQLITE_IOERR_DIR_FSYNC;
    int cause = cause_of(store, sqlite_rc, moves);
    return (sqlite_rc & 0xff) == SQLITE_IOERR && !sync && (cause == ENOSPC || cause == EDQUOT);
}

/* Whether no more files could be open. */
static bool no_descriptors(struct sqlite_store *store, int sqlite_rc)
{
    int cause = (sqlite_rc & 0xff) == SQLITE_CANTOPEN ? sqlite3_system_errno(store->db) : 0;
    return cause == EMFILE || cause == ENFILE;
}

int store_damaged(struct amp_error *error, const char *path, const char *why)
{
    return amp_error_set(error, AMP_EDATALOSS, "STORE_DAMAGED",
                         "%s is damaged (%s): bring back the whole data directory from a copy; where there are other "
                         "shards, start this one on an empty directory with --epoch-above or --cluster: they fill it",
                         path, why);
}

int store_damaged_row(struct sqlite_store *store, const char *what, struct amp_error *error)
{
    return amp_error_set(error, AMP_EDATALOSS, "STORE_DAMAGED", "%s: a stored %s is invalid", store->path, what);
}

int store_failure(struct sqlite_store *store, int sqlite_rc, const char *what, struct amp_error *error)
{
    const char *why = store->db != NULL ? sqlite3_errmsg(store->db) : sqlite3_errstr(sqlite_rc);
    int extended = store->db != NULL ? sqlite3_extended_errcode(store->db) : sqlite_rc;
    if ((extended & 0xff) != (sqlite_rc & 0xff))
        extended = sqlite_rc;
    if ((extended & 0xff) == SQLITE_NOMEM)
        return amp_error_set(error, AMP_ENOMEM, NULL, "%s: out of memory in the store", what);
    if (store_disk_full(store, extended, false))
        return amp_error_set(error, AMP_EEXHAUSTED, "NO_SPACE", "%s: the disk of %s is full", what, store->path);
    if (no_descriptors(store, extended))
        return amp_error_set(error, AMP_EEXHAUSTED, "NO_DESCRIPTORS",
                             "%s: %s: too many open files; raise their limit (ulimit -n)", what, store->path);
    if ((extended & 0xff) == SQLITE_BUSY)
        return amp_error_set(error, AMP_EEXHAUSTED, "STORE_BUSY", "%s: another process holds %s", what, store->path);
    bool damaged = (extended & 0xff) == SQLITE_CORRUPT || (extended & 0xff) == SQLITE_NOTADB;
    if (!store->reader) {
        store->failed = true;
        if (store->why[0] == 0)
            (void)snprintf(store->why, sizeof store->why, "%s: %s (%d)", what, why, extended);
    }
    if (damaged)
        return store_damaged(error, store->path, why);
    return amp_error_set(error, AMP_EIO, "STORE_FAILED", "%s: %s: %s (%d)", what, store->path, why, extended);
}
