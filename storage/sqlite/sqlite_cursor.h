/* Runs statements of the SQLite store: binds their parameters in order, and reads their columns in order. */
#ifndef AMPD_SQLITE_CURSOR_H
#define AMPD_SQLITE_CURSOR_H

#include "storage/sqlite/sqlite_handle.h"

/*
 * The prepared statement, reset, without bindings; NULL if it cannot be prepared (then store_failure tells why). It
 * stays the store's; store_done after its last row.
 */
sqlite3_stmt *store_statement(struct sqlite_store *store, enum store_statement statement);

/* Runs a statement that hands out no rows and resets it. 0 or an error. */
int store_run(struct sqlite_store *store, sqlite3_stmt *statement, const char *what, struct amp_error *error);

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

/* Steps a bound statement: 1 a row, 0 no more, negative an error. */
int store_next_row(struct sqlite_store *store, const struct store_cursor *cursor, const char *what,
                   struct amp_error *error);

#endif
