/* The transactions of the SQLite store, and when its log is synced and moved into the file. */
#ifndef AMPD_SQLITE_TRANSACTION_H
#define AMPD_SQLITE_TRANSACTION_H

#include "storage/sqlite/sqlite_handle.h"

/* A connection is open: how it syncs, and our own checkpoints of the log. 0 or an error. */
int store_transactions_init(struct sqlite_store *store, struct amp_error *error);

/*
 * Before a transaction: what ends one is prepared, so that memory is not needed for it, and one that could not be
 * rolled back is.
 */
int store_ready(struct sqlite_store *store, struct amp_error *error);

/* A write transaction, durable through power loss. AMP_EIO if the handle has failed before. */
int store_begin(struct sqlite_store *store, struct amp_error *error);

/* The same for what power loss may take: the next transaction of the other kind makes it durable. */
int store_begin_lightly(struct sqlite_store *store, struct amp_error *error);

/*
 * The same for verdicts alone, durable if `full`: they change nothing that is known of models; the two others forget
 * it, and a failed store_end.
 */
int store_begin_knowing(struct sqlite_store *store, bool full, struct amp_error *error);

/* Ends it: commits if rc is 0, else rolls back. Returns rc, or why the commit failed (nothing is stored then). */
int store_end(struct sqlite_store *store, int rc, struct amp_error *error);

#endif
