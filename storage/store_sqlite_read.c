/* The SQLite store's reading calls: on the writer or on a reader. */
#include "storage/spec_json.h"
#include "storage/store_sqlite.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define CONTRIBUTOR_BYTES 24 /* store_sqlite_rows.c */

static int damaged(struct sqlite_store *store, const char *what, struct amp_error *error)
{
    return amp_error_set(error, AMP_EDATALOSS, "STORE_DAMAGED", "%s: a stored %s makes no sense", store->path, what);
}

/* Steps a bound statement: 1 a row, 0 no more, negative an error. */
static int next_row(struct sqlite_store *store, const struct store_cursor *cursor, const char *what,
                    struct amp_error *error)
{
    int rc = cursor->rc == SQLITE_OK ? sqlite3_step(cursor->statement) : cursor->rc;
    if (rc == SQLITE_ROW)
        return 1;
    return rc == SQLITE_DONE ? 0 : store_failure(store, rc, what, error);
}

static uint64_t get_le(const uint8_t *at, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

static int decode_contributors(const uint8_t *data, size_t size, struct ampd_step_row *row)
{
    if (size % CONTRIBUTOR_BYTES != 0 || size / CONTRIBUTOR_BYTES > AMPD_WORLD_MAX)
        return AMP_EDATALOSS;
    row->contributors_count = (uint32_t)(size / CONTRIBUTOR_BYTES);
    for (uint32_t i = 0; i < row->contributors_count; i++, data += CONTRIBUTOR_BYTES) {
        struct ampd_contributor *to = &row->contributors[i];
        uint32_t weight = (uint32_t)get_le(data + 20, 4);
        to->rank = (uint32_t)get_le(data, 4);
        to->incarnation.fence = get_le(data + 4, 8);
        to->incarnation.counter = get_le(data + 12, 8);
        memcpy(&to->weight, &weight, sizeof weight);
    }
    return 0;
}

static int decode_clips(const uint8_t *data, size_t size, struct ampd_step_row *row)
{
    if (size % 4 != 0 || size / 4 > AMPD_GROUPS_MAX)
        return AMP_EDATALOSS;
    row->clips_count = (uint32_t)(size / 4);
    for (uint32_t i = 0; i < row->clips_count; i++) {
        uint32_t bits = (uint32_t)get_le(data + 4 * (size_t)i, 4);
        memcpy(&row->clips[i], &bits, sizeof bits);
    }
    return 0;
}

static void read_scaler(struct store_cursor *get, struct amp_scaler_state *after)
{
    after->scale = (float)store_column_f64(get);
    after->scale_id = store_column_u64(get);
    after->growth_tracker = (uint32_t)store_column_u64(get);
    after->hysteresis_left = (uint32_t)store_column_u64(get);
    after->consecutive_overflows = (uint32_t)store_column_u64(get);
    after->total_overflows = store_column_u64(get);
    after->steps_since_overflow = store_column_u64(get);
    after->attempted = store_column_u64(get);
    after->applied = store_column_u64(get);
    after->skipped = store_column_u64(get);
}

/* Reads epoch, step, sequence and STORE_ROW_COLUMNS from the first column on; overflow rows are apart. */
static int read_row(sqlite3_stmt *statement, struct ampd_history_key *key, struct ampd_step_row *row)
{
    struct store_cursor get = {.statement = statement};
    memset(row, 0, sizeof *row);
    row->epoch = key->epoch = store_column_u64(&get);
    row->step = key->step = store_column_u64(&get);
    key->sequence = (uint32_t)store_column_u64(&get);
    row->kind = (enum ampd_row_kind)store_column_u64(&get);
    row->parent_epoch = store_column_u64(&get);
    row->parent_step = store_column_u64(&get);
    row->verdict = (enum ampd_verdict)store_column_u64(&get);
    row->tries = (uint32_t)store_column_u64(&get);
    row->contributors_hash = store_column_u64(&get);
    size_t size;
    const uint8_t *contributors = store_column_blob(&get, &size);
    row->scale = (float)store_column_f64(&get);
    row->scale_id = store_column_u64(&get);
    read_scaler(&get, &row->after);
    row->coefficient = (float)store_column_f64(&get);
    row->norm = store_column_f64(&get);
    row->clip = (float)store_column_f64(&get);
    row->lr = store_column_f64(&get);
    row->version = store_column_u64(&get);
    row->overflow_params = store_column_u64(&get);
    row->inf_total = store_column_u64(&get);
    row->nan_total = store_column_u64(&get);
    row->rows_count = (uint32_t)store_column_u64(&get);
    row->durable_step = store_column_u64(&get);
    row->cut = store_column_u64(&get) != 0;
    row->superseded = store_column_u64(&get) != 0;
    row->at_us = (int64_t)store_column_u64(&get);
    row->from_step = store_column_u64(&get);
    store_column_text(&get, row->note.actor, sizeof row->note.actor);
    store_column_text(&get, row->note.words, sizeof row->note.words);
    store_column_text(&get, row->note.request_id, sizeof row->note.request_id);
    size_t clips_size;
    const uint8_t *clips = store_column_blob(&get, &clips_size);
    if (get.at != 3 + STORE_ROW_COLUMNS_COUNT || row->rows_count > AMPD_OVERFLOW_ROWS_MAX ||
        decode_clips(clips, clips_size, row) != 0)
        return AMP_EDATALOSS;
    return decode_contributors(contributors, size, row);
}

static void read_overflow(struct store_cursor *get, struct ampd_overflow_row *row)
{
    row->parameter = (uint32_t)store_column_u64(get);
    row->rank = (uint32_t)store_column_u64(get);
    row->inf_count = store_column_u64(get);
    row->nan_count = store_column_u64(get);
    row->first_index = store_column_u64(get);
    row->largest = (float)store_column_f64(get);
}

/* Fills row->rows of a row that has some. */
static int read_overflows_of(struct sqlite_store *store, int64_t id, struct ampd_step_row *row, struct amp_error *error)
{
    if (row->rows_count == 0)
        return 0;
    struct store_cursor list = store_binder(store, STMT_OVERFLOWS_OF_ROW);
    store_bind_u64(&list, (uint64_t)id);
    store_bind_u64(&list, row->epoch);
    store_bind_u64(&list, row->step);
    uint32_t count = 0;
    int rc;
    while ((rc = next_row(store, &list, "reading overflows", error)) == 1 && count < row->rows_count) {
        struct store_cursor get = {.statement = list.statement};
        read_overflow(&get, &row->rows[count++]);
    }
    (void)sqlite3_reset(list.statement); /* repeats the error of the step */
    if (rc < 0)
        return rc;
    return count == row->rows_count ? 0 : damaged(store, "step", error);
}

/* ---- pages ---- */

/* Counts are kept as signed: a bound above them is the largest. */
static void bind_bound(struct store_cursor *cursor, uint64_t value)
{
    store_bind_u64(cursor, value > INT64_MAX ? INT64_MAX : value);
}

static void bind_key(struct store_cursor *cursor, const struct ampd_history_key *key)
{
    bind_bound(cursor, key->epoch);
    bind_bound(cursor, key->step);
    store_bind_u64(cursor, key->sequence);
}

/* Binds the model, the bounds and what both kinds of pages filter steps by. */
static void bind_page(struct store_cursor *page, int64_t id, const struct ampd_history_filter *filter,
                      const struct ampd_history_key *lo, const struct ampd_history_key *hi)
{
    store_bind_u64(page, (uint64_t)id);
    bind_key(page, lo);
    bind_key(page, hi);
    bind_bound(page, filter->step_min);
    bind_bound(page, filter->step_max);
    store_bind_u64(page, filter->superseded_too);
}

/* The record of an epoch whose first row was read. */
static int read_epoch(struct sqlite_store *store, int64_t id, uint64_t number, struct ampd_epoch_record *epoch,
                      struct amp_error *error)
{
    struct store_cursor list = store_binder(store, STMT_EPOCH_GET);
    store_bind_u64(&list, (uint64_t)id);
    store_bind_u64(&list, number);
    int rc = next_row(store, &list, "reading an epoch", error);
    if (rc == 1) {
        struct store_cursor get = {.statement = list.statement};
        memset(epoch, 0, sizeof *epoch);
        epoch->epoch = number;
        epoch->parent = store_column_u64(&get);
        epoch->base_epoch = store_column_u64(&get);
        epoch->base_step = store_column_u64(&get);
        store_column_text(&get, epoch->reason, sizeof epoch->reason);
        epoch->at_us = (int64_t)store_column_u64(&get);
    }
    (void)sqlite3_reset(list.statement); /* repeats the error of the step */
    if (rc < 0)
        return rc;
    return rc == 1 ? 0 : damaged(store, "epoch", error);
}

/* Reads the row that `page` stands at, with what other tables have of it, and hands it out. */
static int give_row(struct sqlite_store *store, const struct store_cursor *page, int64_t id, void *arg,
                    struct amp_error *error, ampd_history_cb *row_cb)
{
    struct ampd_step_row row;
    struct ampd_history_key key;
    struct ampd_epoch_record epoch;
    int rc = read_row(page->statement, &key, &row) == 0 ? 0 : damaged(store, "step", error);
    if (rc == 0)
        rc = read_overflows_of(store, id, &row, error);
    bool is_epoch = row.kind == AMPD_ROW_EPOCH;
    if (rc == 0 && is_epoch)
        rc = read_epoch(store, id, row.epoch, &epoch, error);
    return rc != 0 ? rc : row_cb(arg, &key, &row, is_epoch ? &epoch : NULL);
}

int store_sqlite_page_history(struct ampd_store *base, const char *model, const struct ampd_history_filter *filter,
                              const struct ampd_history_key *lo, const struct ampd_history_key *hi, uint32_t limit,
                              void *arg, struct amp_error *error, ampd_history_cb *row_cb)
{
    struct sqlite_store *store = store_of(base);
    int64_t id = 0;
    uint64_t epoch = 0;
    int rc = store_find_model(store, model, &id, &epoch, error);
    if (rc != 0)
        return rc;
    struct store_cursor page = store_binder(store, filter->descending ? STMT_HISTORY_DOWN : STMT_HISTORY_UP);
    bind_page(&page, id, filter, lo, hi);
    store_bind_u64(&page, filter->verdicts);
    store_bind_u64(&page, filter->only_changes);
    store_bind_u64(&page, limit);
    while ((rc = next_row(store, &page, "reading history", error)) == 1) {
        rc = give_row(store, &page, id, arg, error, row_cb);
        if (rc != 0)
            break;
    }
    (void)sqlite3_reset(page.statement); /* repeats the error of the step */
    return rc;
}

int store_sqlite_page_overflows(struct ampd_store *base, const char *model, const struct ampd_history_filter *filter,
                                const struct ampd_overflow_filter *which, const struct ampd_history_key *lo,
                                const struct ampd_history_key *hi, uint32_t limit, void *arg, struct amp_error *error,
                                ampd_overflows_cb *row_cb)
{
    struct sqlite_store *store = store_of(base);
    int64_t id = 0;
    uint64_t epoch = 0;
    int rc = store_find_model(store, model, &id, &epoch, error);
    if (rc != 0)
        return rc;
    struct store_cursor page = store_binder(store, filter->descending ? STMT_OVERFLOWS_DOWN : STMT_OVERFLOWS_UP);
    bind_page(&page, id, filter, lo, hi);
    store_bind_u64(&page, which->parameter_min);
    store_bind_u64(&page, which->parameter_max);
    store_bind_u64(&page, which->rank_min);
    store_bind_u64(&page, which->rank_max);
    store_bind_u64(&page, limit);
    while ((rc = next_row(store, &page, "reading overflows", error)) == 1) {
        struct store_cursor get = {.statement = page.statement};
        struct ampd_history_key key;
        struct ampd_overflow_found found;
        key.epoch = store_column_u64(&get);
        key.step = store_column_u64(&get);
        key.sequence = (uint32_t)store_column_u64(&get);
        read_overflow(&get, &found.row);
        found.at_us = (int64_t)store_column_u64(&get);
        found.superseded = store_column_u64(&get) != 0;
        rc = row_cb(arg, &key, &found);
        if (rc != 0)
            break;
    }
    (void)sqlite3_reset(page.statement); /* repeats the error of the step */
    return rc;
}

/* ---- everything at start ---- */

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
    while ((rc = next_row(store, &list, "loading parameters", error)) == 1) {
        void *more = grow(spec->parameters, spec->parameters_count, sizeof *spec->parameters);
        if (more == NULL || spec->parameters_count == AMPD_PARAMETERS_MAX) {
            rc = more == NULL ? no_memory(error) : damaged(store, "parameter", error);
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
            rc = rc == AMP_ENOMEM ? no_memory(error) : damaged(store, "parameter", error);
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
    while ((rc = next_row(store, &list, "loading workers", error)) == 1) {
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
    while ((rc = next_row(store, &list, "loading checkpoints", error)) == 1) {
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
            rc = damaged(store, "checkpoint", error);
            break;
        }
        to->parts_count = (uint32_t)(size / sizeof to->parts[0]);
        if (size > 0)
            memcpy(to->parts, parts, size);
    }
    (void)sqlite3_reset(list.statement); /* repeats the error of the step */
    return rc;
}

/* The newest acts with a request id; they are read newest first and kept the other way round. */
static int load_acts(struct sqlite_store *store, int64_t id, struct ampd_model_record *record, struct amp_error *error)
{
    struct store_cursor list = store_binder(store, STMT_ACTS_LIST);
    store_bind_u64(&list, (uint64_t)id);
    store_bind_u64(&list, AMPD_ACTS_MAX);
    int rc;
    while ((rc = next_row(store, &list, "loading acts", error)) == 1 && record->acts_count < AMPD_ACTS_MAX) {
        memmove(record->acts + 1, record->acts, record->acts_count * sizeof *record->acts);
        struct ampd_act_record *to = &record->acts[0];
        struct store_cursor get = {.statement = list.statement};
        memset(to, 0, sizeof *to);
        to->kind = (enum ampd_row_kind)store_column_u64(&get);
        to->epoch = store_column_u64(&get);
        to->step = store_column_u64(&get);
        to->from_step = store_column_u64(&get);
        to->base_epoch = store_column_u64(&get);
        read_scaler(&get, &to->after);
        to->superseded = store_column_u64(&get) != 0;
        store_column_text(&get, to->request_id, sizeof to->request_id);
        record->acts_count++;
    }
    (void)sqlite3_reset(list.statement); /* repeats the error of the step */
    return rc < 0 ? rc : 0;
}

static int load_epoch(struct sqlite_store *store, int64_t id, struct ampd_model_record *record, struct amp_error *error)
{
    struct store_cursor list = store_binder(store, STMT_EPOCH_LAST);
    store_bind_u64(&list, (uint64_t)id);
    int rc = next_row(store, &list, "loading the epoch", error);
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
    int rc = next_row(store, &list, "loading the last step", error);
    if (rc == 1) {
        record->last = malloc(sizeof *record->last);
        if (record->last == NULL)
            rc = no_memory(error);
        else
            rc = read_row(list.statement, &key, record->last) == 0 ? 0 : damaged(store, "step", error);
    }
    (void)sqlite3_reset(list.statement); /* repeats the error of the step */
    if (rc == 0 && record->last != NULL)
        rc = read_overflows_of(store, id, record->last, error);
    return rc;
}

/* Fills a record from the row of STMT_MODELS_LIST that `list` stands at. */
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
        return damaged(store, "specification", error);
    memcpy(record->spec.name, name, strlen((const char *)name) + 1);
    record->created_us = sqlite3_column_int64(list->statement, 3);
    record->deleting = sqlite3_column_int64(list->statement, 4) != 0;
    int rc = load_parameters(store, id, &record->spec, error);
    if (rc == 0)
        rc = load_epoch(store, id, record, error);
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
    while ((rc = next_row(store, &list, "loading models", error)) == 1) {
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

int store_sqlite_load(struct ampd_store *base, struct ampd_model_record **records, size_t *count,
                      struct amp_error *error)
{
    struct sqlite_store *store = store_of(base);
    /* One read transaction, so that all tables are of one moment. */
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
