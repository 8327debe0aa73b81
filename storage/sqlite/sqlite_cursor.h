/*
 * Runs the statements of the SQLite store: binds their parameters in order, and reads their columns in order. Errors
 * are made by store_failure (sqlite_handle.h); `what` says in the text of an error what the statement was for.
 */
#ifndef AMPD_SQLITE_CURSOR_H
#define AMPD_SQLITE_CURSOR_H

#include "storage/sqlite/sqlite_handle.h"

/*
 * The prepared statement, reset and without bindings. NULL: it cannot be prepared, for the reason in
 * sqlite3_errcode(store->db). It stays the store's. The caller resets it (sqlite3_reset) after the last row it reads,
 * since an open statement keeps its transaction open.
 */
sqlite3_stmt *store_statement(struct sqlite_store *store, enum store_statement statement);

/* Runs a statement whose rows, if any, are not needed, and resets it. NULL is an error. 0 or an error. */
int store_run(struct sqlite_store *store, sqlite3_stmt *statement, const char *what, struct amp_error *error);

/*
 * A position among the parameters or the columns of a statement. Each store_bind_ and store_column_ call handles the
 * next one. A cursor to read columns is {.statement = ...}.
 */
struct store_cursor {
    sqlite3_stmt *statement;
    int at; /* index of the next parameter (from 1) or column (from 0) */
    int rc; /* SQLite's code of the first bind that failed, or of preparing the statement; else SQLITE_OK */
};

/* A cursor at the first parameter of a statement. A failure is in its rc, which the functions below check. */
struct store_cursor store_binder(struct sqlite_store *store, enum store_statement statement);
void store_bind_u64(struct store_cursor *cursor, uint64_t value);
void store_bind_f64(struct store_cursor *cursor, double value);
/* Texts and blobs are not copied: they must stay valid until the statement has run. */
void store_bind_text(struct store_cursor *cursor, const char *text);
void store_bind_blob(struct store_cursor *cursor, const void *data, size_t size);
uint64_t store_column_u64(struct store_cursor *cursor);
double store_column_f64(struct store_cursor *cursor);
/* Copies the text into text[0..size), cut to size - 1 bytes; NULL becomes "". */
void store_column_text(struct store_cursor *cursor, char *text, size_t size);
/* The blob and its size in bytes; valid until the statement is stepped or reset. */
const void *store_column_blob(struct store_cursor *cursor, size_t *size);

/* Runs a bound statement whose rows, if any, are not needed, and resets it. 0 or an error, also of binding. */
int store_run_bound(struct sqlite_store *store, const struct store_cursor *binder, const char *what,
                    struct amp_error *error);

/*
 * Runs a bound statement and gives the first column of its first row as a number, or `absent` if there is no row or the
 * column is NULL; resets the statement. 0 or an error.
 */
int store_query_number(struct sqlite_store *store, const struct store_cursor *binder, uint64_t absent, uint64_t *value,
                       struct amp_error *error);

/* Moves a bound statement to its next row: 1: there is one, 0: there are no more, negative: an error. */
int store_next_row(struct sqlite_store *store, const struct store_cursor *cursor, const char *what,
                   struct amp_error *error);

#endif
