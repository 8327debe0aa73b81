/*
 * Deletion of models in the SQLite store. The name is free at once; the rows, which may be millions, are removed in
 * portions between the writes of other models.
 */
#include "storage/sqlite/sqlite_cursor.h"
#include "storage/sqlite/sqlite_ops.h"
#include "storage/sqlite/sqlite_transaction.h"

/* Runs an UPDATE of one model's row in `models`. AMP_ENOTFOUND: there is no such model. */
static int update_model(struct sqlite_store *store, enum store_statement statement, const char *model,
                        struct amp_error *error)
{
    struct store_cursor put = store_binder(store, statement);
    store_bind_text(&put, model);
    int rc = put.rc == SQLITE_OK ? store_run(store, put.statement, "deleting a model", error)
                                 : store_failure(store, put.rc, "deleting a model", error);
    return rc == 0 && sqlite3_changes(store->db) == 0 ? ampd_store_no_model(error, model) : rc;
}

int store_sqlite_mark_deleting(struct ampd_store *base, const char *model, struct amp_error *error)
{
    struct sqlite_store *store = store_of(base);
    int rc = store_begin(store, error);
    return rc != 0 ? rc : store_end(store, update_model(store, STMT_MODEL_DELETING, model, error), error);
}

int store_sqlite_delete_model(struct ampd_store *base, const char *model, struct amp_error *error)
{
    struct sqlite_store *store = store_of(base);
    int rc = store_begin(store, error);
    return rc != 0 ? rc : store_end(store, update_model(store, STMT_MODEL_DELETED, model, error), error);
}

int store_sqlite_each_deleted(struct ampd_store *base, void *arg, struct amp_error *error,
                              int (*name_cb)(void *arg, const char *name))
{
    struct sqlite_store *store = store_of(base);
    struct store_cursor list = store_binder(store, STMT_DELETED_LIST);
    int rc = list.rc, result = 0;
    while (result == 0 && rc == SQLITE_OK && (rc = sqlite3_step(list.statement)) == SQLITE_ROW) {
        struct store_cursor get = {.statement = list.statement};
        char name[AMPD_NAME_MAX];
        store_column_text(&get, name, sizeof name);
        result = name_cb(arg, name);
        rc = SQLITE_OK;
    }
    if (result == 0 && rc != SQLITE_OK && rc != SQLITE_DONE)
        result = store_failure(store, rc, "finding deleted models", error);
    (void)sqlite3_reset(list.statement); /* repeats the error of the step */
    return result;
}

/* Finds the id of any deleted model; -1: there is none. */
static int find_deleted(struct sqlite_store *store, int64_t *id, struct amp_error *error)
{
    sqlite3_stmt *statement = store_statement(store, STMT_DELETED_FIND);
    int rc = statement == NULL ? SQLITE_NOMEM : sqlite3_step(statement);
    *id = rc == SQLITE_ROW ? sqlite3_column_int64(statement, 0) : -1;
    int result = rc == SQLITE_ROW || rc == SQLITE_DONE ? 0 : store_failure(store, rc, "finding a model", error);
    (void)sqlite3_reset(statement); /* repeats the error of the step */
    return result;
}

/*
 * Removes one portion: rows of overflows and steps up to `limit`, and if these are all, the rows of the smaller tables
 * and the model's own.
 */
static int purge(struct sqlite_store *store, int64_t id, uint32_t limit, struct amp_error *error)
{
    int rc = 0;
    int64_t gone = 0;
    for (int s = STMT_PURGE_OVERFLOWS; rc == 0 && s <= STMT_PURGE_MODEL && gone < limit; s++) {
        struct store_cursor drop = store_binder(store, (enum store_statement)s);
        store_bind_u64(&drop, (uint64_t)id);
        if (s <= STMT_PURGE_STEPS)
            store_bind_u64(&drop, (uint64_t)(limit - gone));
        rc = drop.rc == SQLITE_OK ? store_run(store, drop.statement, "purging a model", error)
                                  : store_failure(store, drop.rc, "purging a model", error);
        gone += s <= STMT_PURGE_STEPS ? sqlite3_changes(store->db) : 0;
    }
    return rc;
}

int store_sqlite_purge(struct ampd_store *base, uint32_t limit, bool *more, struct amp_error *error)
{
    struct sqlite_store *store = store_of(base);
    int64_t id = -1;
    *more = false;
    int rc = find_deleted(store, &id, error);
    if (rc != 0 || id < 0)
        return rc;
    rc = store_begin_relaxed(store, error);
    if (rc == 0)
        rc = store_end(store, purge(store, id, limit, error), error);
    if (rc == 0)
        rc = find_deleted(store, &id, error);
    *more = rc == 0 && id >= 0;
    return rc;
}
