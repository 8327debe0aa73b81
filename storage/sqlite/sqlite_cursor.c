#include "storage/sqlite/sqlite_cursor.h"

#include <stdio.h>

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

int store_run_bound(struct sqlite_store *store, const struct store_cursor *binder, const char *what,
                    struct amp_error *error)
{
    if (binder->rc != SQLITE_OK)
        return store_failure(store, binder->rc, what, error);
    return store_run(store, binder->statement, what, error);
}

int store_query_number(struct sqlite_store *store, const struct store_cursor *binder, uint64_t absent, uint64_t *value,
                       struct amp_error *error)
{
    int rc = binder->rc == SQLITE_OK ? sqlite3_step(binder->statement) : binder->rc;
    *value = absent;
    if (rc == SQLITE_ROW && sqlite3_column_type(binder->statement, 0) != SQLITE_NULL)
        *value = (uint64_t)sqlite3_column_int64(binder->statement, 0);
    int result = rc == SQLITE_ROW || rc == SQLITE_DONE ? 0 : store_failure(store, rc, "reading", error);
    (void)sqlite3_reset(binder->statement); /* repeats the error of the step */
    return result;
}

int store_next_row(struct sqlite_store *store, const struct store_cursor *cursor, const char *what,
                   struct amp_error *error)
{
    int rc = cursor->rc == SQLITE_OK ? sqlite3_step(cursor->statement) : cursor->rc;
    if (rc == SQLITE_ROW)
        return 1;
    return rc == SQLITE_DONE ? 0 : store_failure(store, rc, what, error);
}
