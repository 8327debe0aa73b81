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
    int rc = store_run_bound(store, &put, "deleting a model", error);
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
    int rc = 0;
    while (rc == 0 && (rc = store_next_row(store, &list, "finding deleted models", error)) == 1) {
        struct store_cursor get = {.statement = list.statement};
        char name[AMPD_NAME_MAX];
        store_column_text(&get, name, sizeof name);
        rc = name_cb(arg, name);
    }
    (void)sqlite3_reset(list.statement); /* repeats the error of the step */
    return rc;
}

/* Finds the id of any deleted model; 0, which no model has: there is none. */
static int find_deleted(struct sqlite_store *store, uint64_t *id, struct amp_error *error)
{
    struct store_cursor find = store_binder(store, STMT_DELETED_FIND);
    return store_query_number(store, &find, 0, id, error);
}

/*
 * Removes one portion: rows of overflows and steps up to `limit`, and if these are all, the rows of the smaller tables
 * and the model's own.
 */
static int purge(struct sqlite_store *store, uint64_t id, uint32_t limit, struct amp_error *error)
{
    int rc = 0;
    int64_t gone = 0;
    for (int s = STMT_PURGE_OVERFLOWS; rc == 0 && s <= STMT_PURGE_MODEL && gone < limit; s++) {
        struct store_cursor drop = store_binder(store, (enum store_statement)s);
        store_bind_u64(&drop, id);
        if (s <= STMT_PURGE_STEPS)
            store_bind_u64(&drop, (uint64_t)(limit - gone));
        rc = store_run_bound(store, &drop, "purging a model", error);
        gone += s <= STMT_PURGE_STEPS ? sqlite3_changes(store->db) : 0;
    }
    return rc;
}

int store_sqlite_purge(struct ampd_store *base, uint32_t limit, bool *more, struct amp_error *error)
{
    struct sqlite_store *store = store_of(base);
    uint64_t id;
    *more = false;
    int rc = find_deleted(store, &id, error);
    if (rc != 0 || id == 0)
        return rc;
    rc = store_begin_relaxed(store, error);
    if (rc == 0)
        rc = store_end(store, purge(store, id, limit, error), error);
    if (rc == 0)
        rc = find_deleted(store, &id, error);
    *more = rc == 0 && id != 0;
    return rc;
}
