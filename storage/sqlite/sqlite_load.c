/* Loads the records of all models from the SQLite store at start. */
#include "storage/spec_json.h"
#include "storage/sqlite/sqlite_ops.h"
#include "storage/sqlite/sqlite_rows.h"
#include "storage/sqlite/sqlite_transaction.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Grows an array of `count` items so that one more fits. NULL: out of memory, the old array stays. */
static void *grow(void *array, size_t count, size_t item_size)
{
    if (count != 0 && (count & (count - 1)) != 0)
        return array; /* capacities are powers of two: there is room until the next one */
    return realloc(array, (count == 0 ? 1 : count * 2) * item_size);
}

static int no_memory(struct amp_error *error)
{
    return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory loading the store");
}

static int load_parameters(struct sqlite_store *store, int64_t id, struct ampd_model_spec *spec,
                           struct amp_error *error)
{
    struct store_cursor list = store_binder(store, STMT_PARAMETERS_LIST);
    store_bind_u64(&list, (uint64_t)id);
    int rc;
    while ((rc = store_next_row(store, &list, "loading parameters", error)) == 1) {
        void *more = grow(spec->parameters, spec->parameters_count, sizeof *spec->parameters);
        if (more == NULL || spec->parameters_count == AMPD_PARAMETERS_MAX) {
            rc = more == NULL ? no_memory(error) : store_damaged_row(store, "parameter", error);
            break;
        }
        spec->parameters = more;
        struct ampd_parameter_spec *to = &spec->parameters[spec->parameters_count++];
        struct store_cursor get = {.statement = list.statement};
        char shape[AMPD_SHAPE_TEXT_MAX];
        memset(to, 0, sizeof *to);
        store_column_text(&get, to->name, sizeof to->name);
        store_column_text(&get, shape, sizeof shape);
        to->group = (uint32_t)store_column_u64(&get);
        rc = ampd_shape_from_text(shape, to);
        if (rc != 0) {
            rc = rc == AMP_ENOMEM ? no_memory(error) : store_damaged_row(store, "parameter", error);
            break;
        }
    }
    (void)sqlite3_reset(list.statement); /* repeats the error of the step */
    return rc;
}

static int load_workers(struct sqlite_store *store, int64_t id, struct ampd_model_record *record,
                        struct amp_error *error)
{
    struct store_cursor list = store_binder(store, STMT_WORKERS_LIST);
    store_bind_u64(&list, (uint64_t)id);
    int rc;
    while ((rc = store_next_row(store, &list, "loading workers", error)) == 1) {
        void *more = grow(record->workers, record->workers_count, sizeof *record->workers);
        if (more == NULL) {
            rc = no_memory(error);
            break;
        }
        record->workers = more;
        struct ampd_worker_record *to = &record->workers[record->workers_count++];
        struct store_cursor get = {.statement = list.statement};
        memset(to, 0, sizeof *to);
        to->rank = (uint32_t)store_column_u64(&get);
        store_column_text(&get, to->name, sizeof to->name);
        to->incarnation.fence = store_column_u64(&get);
        to->incarnation.counter = store_column_u64(&get);
        to->left = store_column_u64(&get) != 0;
    }
    (void)sqlite3_reset(list.statement); /* repeats the error of the step */
    return rc;
}

static int load_checkpoints(struct sqlite_store *store, int64_t id, struct ampd_model_record *record,
                            struct amp_error *error)
{
    struct store_cursor list = store_binder(store, STMT_CHECKPOINTS_LIST);
    store_bind_u64(&list, (uint64_t)id);
    int rc;
    while ((rc = store_next_row(store, &list, "loading checkpoints", error)) == 1) {
        void *more = grow(record->checkpoints, record->checkpoints_count, sizeof *record->checkpoints);
        if (more == NULL) {
            rc = no_memory(error);
            break;
        }
        record->checkpoints = more;
        struct ampd_checkpoint_record *to = &record->checkpoints[record->checkpoints_count++];
        struct store_cursor get = {.statement = list.statement};
        size_t size;
        memset(to, 0, sizeof *to);
        to->epoch = store_column_u64(&get);
        to->step = store_column_u64(&get);
        to->version = store_column_u64(&get);
        store_column_text(&get, to->file, sizeof to->file);
        to->size_bytes = store_column_u64(&get);
        const void *manifest = store_column_blob(&get, &size);
        to->at_us = (int64_t)store_column_u64(&get);
        if (size == sizeof to->manifest)
            memcpy(to->manifest, manifest, size);
        bool whole = size == sizeof to->manifest;
        to->scale = (float)store_column_f64(&get);
        const void *parts = store_column_blob(&get, &size);
        if (!whole || size > sizeof to->parts || size % sizeof to->parts[0] != 0) {
            rc = store_damaged_row(store, "checkpoint", error);
            break;
        }
        to->parts_count = (uint32_t)(size / sizeof to->parts[0]);
        if (size > 0)
            memcpy(to->parts, parts, size);
    }
    (void)sqlite3_reset(list.statement); /* repeats the error of the step */
    return rc;
}

/* Loads the newest operator actions with a request id. They are read newest first, and stored oldest first. */
static int load_acts(struct sqlite_store *store, int64_t id, struct ampd_model_record *record, struct amp_error *error)
{
    struct store_cursor list = store_binder(store, STMT_ACTS_LIST);
    store_bind_u64(&list, (uint64_t)id);
    store_bind_u64(&list, AMPD_ACTIONS_MAX);
    int rc;
    while ((rc = store_next_row(store, &list, "loading operators' actions", error)) == 1 &&
           record->acts_count < AMPD_ACTIONS_MAX) {
        memmove(record->acts + 1, record->acts, record->acts_count * sizeof *record->acts);
        struct ampd_act_record *to = &record->acts[0];
        struct store_cursor get = {.statement = list.statement};
        memset(to, 0, sizeof *to);
        to->kind = (enum ampd_row_kind)store_column_u64(&get);
        to->epoch = store_column_u64(&get);
        to->step = store_column_u64(&get);
        to->from_step = store_column_u64(&get);
        to->base_epoch = store_column_u64(&get);
        store_read_scaler(&get, &to->after.scaler);
        to->after.lr = store_column_f64(&get);
        to->superseded = store_column_u64(&get) != 0;
        store_column_text(&get, to->request_id, sizeof to->request_id);
        to->rank = to->kind == AMPD_ROW_EVICT ? store_read_first_rank(&get) : 0;
        record->acts_count++;
    }
    (void)sqlite3_reset(list.statement); /* repeats the error of the step */
    return rc < 0 ? rc : 0;
}

static int load_owner(struct sqlite_store *store, int64_t id, struct ampd_model_record *record, struct amp_error *error)
{
    struct store_cursor list = store_binder(store, STMT_MODEL_OWNER);
    store_bind_u64(&list, (uint64_t)id);
    int rc = store_next_row(store, &list, "loading a model's owner", error);
    if (rc == 1) {
        struct store_cursor get = {.statement = list.statement};
        store_column_text(&get, record->owner, sizeof record->owner);
    }
    (void)sqlite3_reset(list.statement); /* repeats the error of the step */
    return rc < 0 ? rc : 0;
}

static int load_epoch(struct sqlite_store *store, int64_t id, struct ampd_model_record *record, struct amp_error *error)
{
    struct store_cursor list = store_binder(store, STMT_EPOCH_LAST);
    store_bind_u64(&list, (uint64_t)id);
    int rc = store_next_row(store, &list, "loading the epoch", error);
    if (rc == 1) {
        struct store_cursor get = {.statement = list.statement};
        record->epoch = store_column_u64(&get);
        record->base_epoch = store_column_u64(&get);
        record->base_step = store_column_u64(&get);
    }
    (void)sqlite3_reset(list.statement); /* repeats the error of the step */
    return rc < 0 ? rc : 0;
}

static int load_last_row(struct sqlite_store *store, int64_t id, struct ampd_model_record *record,
                         struct amp_error *error)
{
    struct store_cursor list = store_binder(store, STMT_ROW_LAST);
    store_bind_u64(&list, (uint64_t)id);
    struct ampd_history_key key;
    int rc = store_next_row(store, &list, "loading the last step", error);
    if (rc == 1) {
        record->last = malloc(sizeof *record->last);
        if (record->last == NULL)
            rc = no_memory(error);
        else
            rc = store_read_row(list.statement, &key, record->last) == 0 ? 0 : store_damaged_row(store, "step", error);
    }
    (void)sqlite3_reset(list.statement); /* repeats the error of the step */
    if (rc == 0 && record->last != NULL)
        rc = store_read_overflows_of(store, id, record->last, error);
    return rc;
}

/* Fills a record from the present row of STMT_MODELS_LIST and from the other tables. */
static int load_model(struct sqlite_store *store, const struct store_cursor *list, struct ampd_model_record *record,
                      struct amp_error *error)
{
    int64_t id = sqlite3_column_int64(list->statement, 0);
    const unsigned char *name = sqlite3_column_text(list->statement, 1);
    const unsigned char *spec = sqlite3_column_text(list->statement, 2);
    if (name == NULL || spec == NULL) /* the columns are NOT NULL */
        return no_memory(error);
    int parsed = ampd_spec_from_json((const char *)spec, &record->spec);
    if (parsed == AMP_ENOMEM)
        return no_memory(error);
    if (parsed != 0 || strlen((const char *)name) >= sizeof record->spec.name)
        return store_damaged_row(store, "specification", error);
    memcpy(record->spec.name, name, strlen((const char *)name) + 1);
    record->created_us = sqlite3_column_int64(list->statement, 3);
    record->deleting = sqlite3_column_int64(list->statement, 4) != 0;
    int rc = load_parameters(store, id, &record->spec, error);
    if (rc == 0)
        rc = load_epoch(store, id, record, error);
    if (rc == 0)
        rc = load_owner(store, id, record, error);
    if (rc == 0)
        rc = load_last_row(store, id, record, error);
    if (rc == 0)
        rc = load_workers(store, id, record, error);
    if (rc == 0)
        rc = load_acts(store, id, record, error);
    return rc != 0 ? rc : load_checkpoints(store, id, record, error);
}

static int load_models(struct sqlite_store *store, struct ampd_model_record **records, size_t *count,
                       struct amp_error *error)
{
    struct store_cursor list = store_binder(store, STMT_MODELS_LIST);
    int rc;
    while ((rc = store_next_row(store, &list, "loading models", error)) == 1) {
        void *more = grow(*records, *count, sizeof **records);
        if (more == NULL) {
            rc = no_memory(error);
            break;
        }
        *records = more;
        memset(&(*records)[*count], 0, sizeof **records);
        rc = load_model(store, &list, &(*records)[(*count)++], error);
        if (rc != 0)
            break;
    }
    (void)sqlite3_reset(list.statement); /* repeats the error of the step */
    return rc;
}

int store_sqlite_count_models(struct ampd_store *base, size_t *count, struct amp_error *error)
{
    struct sqlite_store *store = store_of(base);
    struct store_cursor get = store_binder(store, STMT_MODELS_COUNT);
    uint64_t number = 0;
    int rc = store_query_number(store, &get, 0, &number, error);
    *count = number;
    return rc;
}

int store_sqlite_load(struct ampd_store *base, struct ampd_model_record **records, size_t *count,
                      struct amp_error *error)
{
    struct sqlite_store *store = store_of(base);
    /* One read transaction, so that all tables are read as of one moment. */
    int rc = store_ready(store, error);
    if (rc == 0)
        rc = store_run(store, store_statement(store, STMT_BEGIN_READ), "loading", error);
    if (rc != 0)
        return rc;
    rc = load_models(store, records, count, error);
    (void)store_run(store, store_statement(store, STMT_ROLLBACK), "loading", NULL); /* only read: nothing to lose */
    if (rc != 0) {
        ampd_model_records_free(*records, *count);
        *records = NULL;
        *count = 0;
    }
    return rc;
}
