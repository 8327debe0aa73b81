#include "storage/sqlite/sqlite_known.h"

#include "storage/sqlite/sqlite_cursor.h"

#include <stdio.h>
#include <string.h>

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

static struct store_known *known_slot(struct sqlite_store *store, const char *model)
{
    uint32_t hash = 2166136261u; /* FNV-1a, 32 bits */
    for (const char *at = model; *at != 0; at++)
        hash = (hash ^ (uint8_t)*at) * 16777619u;
    return &store->known[hash % STORE_KNOWN_MAX];
}

int store_know(struct sqlite_store *store, const char *model, struct store_known **out, struct amp_error *error)
{
    struct store_known *known = known_slot(store, model);
    *out = known;
    if (strcmp(known->name, model) == 0)
        return 0;
    int64_t id = 0;
    uint64_t epoch = 0;
    int rc = store_find_model(store, model, &id, &epoch, error);
    if (rc != 0)
        return rc;
    *known = (struct store_known){.id = id, .epoch = epoch};
    (void)snprintf(known->name, sizeof known->name, "%s", model);
    return 0;
}

void store_forget(struct sqlite_store *store)
{
    memset(store->known, 0, sizeof store->known);
}
