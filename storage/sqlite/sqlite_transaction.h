/*
 * The transactions of the SQLite store, and when its write-ahead log is synced and moved into the database file. Every
 * write is store_begin (or _relaxed, or _knowing), statements, store_end. Only store_ready may be used on a reader.
 */
#ifndef AMPD_SQLITE_TRANSACTION_H
#define AMPD_SQLITE_TRANSACTION_H

#include "storage/sqlite/sqlite_handle.h"

/*
 * Sets up a writer's connection after it was opened: its synchronous mode, and the hook that moves the log into the
 * database file if ampd_store_move_log has not been called in time. It first moves a log that it finds, for which it
 * may wait for other programs (BUSY_TIMEOUT_MS). 0 or an error.
 */
int store_transactions_init(struct sqlite_store *store, struct amp_error *error);

/*
 * Prepares COMMIT and ROLLBACK before a transaction, so that ending it needs no memory, and rolls back an earlier
 * transaction that could not be rolled back at its end. 0 or an error.
 */
int store_ready(struct sqlite_store *store, struct amp_error *error);

/*
 * Begins a write transaction that survives power loss once store_end has returned 0, and empties the cache of models.
 * AMP_EIO (STORE_FAILED) if the handle has failed before; or an error of a write.
 */
int store_begin(struct sqlite_store *store, struct amp_error *error);

/*
 * As store_begin, for a transaction that power loss may undo until the next one of store_begin has been committed. The
 * end of the process alone does not undo it.
 */
int store_begin_relaxed(struct sqlite_store *store, struct amp_error *error);

/*
 * Begins a write transaction for rows of verdicts only, which survives power loss if `full`. It keeps the cache of
 * models (sqlite_known.h), since such rows change nothing in it that the caller does not change itself. Errors:
 * store_begin's.
 */
int store_begin_knowing(struct sqlite_store *store, bool full, struct amp_error *error);

/*
 * Ends the transaction: commits it if rc is 0, else rolls it back. Returns rc, or the error of the commit. If the
 * result is not 0 nothing is stored, and the cache of models is emptied.
 */
int store_end(struct sqlite_store *store, int rc, struct amp_error *error);

#endif
