/* Pages of the history in the SQLite store: on the writer or on a reader. */
#include "storage/sqlite/sqlite_known.h"
#include "storage/sqlite/sqlite_ops.h"
#include "storage/sqlite/sqlite_rows.h"

#include <math.h>
#include <string.h>

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
    int rc = store_next_row(store, &list, "reading an epoch", error);
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
    return rc == 1 ? 0 : store_damaged_row(store, "epoch", error);
}

/* Reads the row that `page` stands at, with what other tables have of it, and hands it out. */
static int give_row(struct sqlite_store *store, const struct store_cursor *page, int64_t id, void *arg,
                    struct amp_error *error, ampd_history_cb *row_cb)
{
    struct ampd_step_row row;
    struct ampd_history_key key;
    struct ampd_epoch_record epoch;
    int rc = store_read_row(page->statement, &key, &row) == 0 ? 0 : store_damaged_row(store, "step", error);
    if (rc == 0)
        rc = store_read_overflows_of(store, id, &row, error);
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
    store_bind_u64(&page, filter->acts_before);
    while ((rc = store_next_row(store, &page, "reading history", error)) == 1) {
        rc = give_row(store, &page, id, arg, error, row_cb);
        if (rc != 0)
            break;
    }
    (void)sqlite3_reset(page.statement); /* repeats the error of the step */
    return rc;
}

int store_sqlite_page_points(struct ampd_store *base, const char *model, const struct ampd_history_key *from,
                             uint64_t step_min, uint64_t step_max, uint32_t limit, void *arg, struct amp_error *error,
                             ampd_points_cb *point_cb)
{
    struct sqlite_store *store = store_of(base);
    int64_t id = 0;
    uint64_t epoch = 0;
    int rc = store_find_model(store, model, &id, &epoch, error);
    if (rc != 0)
        return rc;
    struct store_cursor page = store_binder(store, STMT_POINTS);
    store_bind_u64(&page, (uint64_t)id);
    bind_key(&page, from);
    bind_bound(&page, step_min);
    bind_bound(&page, step_max);
    store_bind_u64(&page, limit);
    while ((rc = store_next_row(store, &page, "reading points of the history", error)) == 1) {
        struct store_cursor get = {.statement = page.statement};
        struct ampd_history_point point;
        point.key.epoch = store_column_u64(&get);
        point.key.step = store_column_u64(&get);
        point.key.sequence = (uint32_t)store_column_u64(&get);
        point.kind = (enum ampd_row_kind)store_column_u64(&get);
        point.verdict = (enum ampd_verdict)store_column_u64(&get);
        point.scale = (float)store_column_f64(&get);
        point.after_scale = (float)store_column_f64(&get);
        point.norm = store_column_f64(&get);
        point.clip = (float)store_column_f64(&get);
        point.lr = store_column_f64(&get);
        point.at_us = (int64_t)store_column_u64(&get);
        for (int i = 0; i < AMPD_STEP_TIMES; i++)
            point.times_us[i] = store_column_u64(&get);
        point.has_loss = store_column_u64(&get) > 0;
        bool is_nan = sqlite3_column_type(page.statement, get.at) == SQLITE_NULL;
        point.loss = !point.has_loss ? 0 : is_nan ? NAN : (float)store_column_f64(&get);
        rc = point_cb(arg, &point);
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
    while ((rc = store_next_row(store, &page, "reading overflows", error)) == 1) {
        struct store_cursor get = {.statement = page.statement};
        struct ampd_history_key key;
        struct ampd_overflow_found found;
        key.epoch = store_column_u64(&get);
        key.step = store_column_u64(&get);
        key.sequence = (uint32_t)store_column_u64(&get);
        store_read_overflow(&get, &found.row);
        found.at_us = (int64_t)store_column_u64(&get);
        found.superseded = store_column_u64(&get) != 0;
        rc = row_cb(arg, &key, &found);
        if (rc != 0)
            break;
    }
    (void)sqlite3_reset(page.statement); /* repeats the error of the step */
    return rc;
}
