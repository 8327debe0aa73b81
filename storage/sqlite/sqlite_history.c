/* Reads pages of the history in the SQLite store, on the writer's handle or on a reader's. */
#include "base/list.h"
#include "storage/sqlite/sqlite_known.h"
#include "storage/sqlite/sqlite_ops.h"
#include "storage/sqlite/sqlite_rows.h"

#include <math.h>
#include <string.h>

/* Binds an upper or lower bound. SQLite's integers are signed; a bound above INT64_MAX is bound as INT64_MAX. */
static void bind_bound(struct store_cursor *cursor, uint64_t value)
{
    store_bind_u64(cursor, value > INT64_MAX ? INT64_MAX : value);
}

/* ---- from epoch to epoch ---- */

/* A page of any kind: rows of several epochs, read by a statement that reads the rows of one epoch. */
struct page {
    struct sqlite_store *store;
    const char *model, *what; /* what: for the texts of errors */
    enum store_statement statement;
    bool descending, superseded_too;
    const struct ampd_history_key *lo, *hi; /* inclusive bounds of the key */
    uint64_t step_min, step_max;            /* inclusive bounds of the step */
    uint32_t limit;                         /* rows that may still be handed out */
    struct amp_error *error;
    int64_t id;                                                          /* of the model; set by page_run */
    void (*bind_cb)(struct page *page, struct store_cursor *cursor);     /* binds further parameters; may be NULL */
    int (*row_cb)(struct page *page, const struct store_cursor *cursor); /* hands out the statement's present row */
};

static int page_epoch(struct page *page, uint64_t epoch)
{
    const struct ampd_history_key first = {epoch, 0, 0}, last = {epoch, UINT64_MAX, UINT32_MAX};
    const struct ampd_history_key *lo = page->lo->epoch == epoch ? page->lo : &first;
    const struct ampd_history_key *hi = page->hi->epoch == epoch ? page->hi : &last;
    struct store_cursor rows = store_binder(page->store, page->statement);
    store_bind_u64(&rows, (uint64_t)page->id);
    bind_bound(&rows, epoch);
    bind_bound(&rows, lo->step);
    store_bind_u64(&rows, lo->sequence);
    bind_bound(&rows, hi->step);
    store_bind_u64(&rows, hi->sequence);
    bind_bound(&rows, page->step_min);
    bind_bound(&rows, page->step_max);
    store_bind_u64(&rows, page->superseded_too);
    store_bind_u64(&rows, page->limit);
    if (page->bind_cb != NULL)
        page->bind_cb(page, &rows);
    int rc;
    while ((rc = store_next_row(page->store, &rows, page->what, page->error)) == 1) {
        page->limit--;
        rc = page->row_cb(page, &rows);
        if (rc != 0)
            break;
    }
    (void)sqlite3_reset(rows.statement); /* repeats the error of the step */
    return rc;
}

/*
 * Reads a page epoch by epoch. One statement over all epochs would sort the rows, or read all steps before the page.
 * The statement that lists the epochs stays open meanwhile, so that all statements see the store as of one moment.
 */
static int page_run(struct page *page)
{
    uint64_t newest = 0;
    int rc = store_find_model(page->store, page->model, &page->id, &newest, page->error);
    if (rc != 0)
        return rc;
    struct store_cursor epochs = store_binder(page->store, page->descending ? STMT_EPOCHS_DOWN : STMT_EPOCHS_UP);
    store_bind_u64(&epochs, (uint64_t)page->id);
    bind_bound(&epochs, page->lo->epoch);
    bind_bound(&epochs, page->hi->epoch);
    while (page->limit > 0 && (rc = store_next_row(page->store, &epochs, page->what, page->error)) == 1) {
        rc = page_epoch(page, (uint64_t)sqlite3_column_int64(epochs.statement, 0));
        if (rc != 0)
            break;
    }
    (void)sqlite3_reset(epochs.statement); /* repeats the error of the step */
    return rc;
}

/* A page with the members that come from a filter; the caller sets the others. */
static struct page filtered(struct ampd_store *store, const char *model, const struct ampd_history_filter *filter,
                            const struct ampd_history_key *lo, const struct ampd_history_key *hi, uint32_t limit,
                            struct amp_error *error)
{
    return (struct page){.store = store_of(store),
                         .model = model,
                         .descending = filter->descending,
                         .superseded_too = filter->superseded_too,
                         .lo = lo,
                         .hi = hi,
                         .step_min = filter->step_min,
                         .step_max = filter->step_max,
                         .limit = limit,
                         .error = error};
}

/* ---- rows ---- */

/* Reads the record of an epoch. */
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

struct history_page {
    struct page base;
    const struct ampd_history_filter *filter;
    void *arg;
    ampd_history_cb *row_cb;
};

static void bind_history(struct page *base, struct store_cursor *cursor)
{
    const struct ampd_history_filter *filter = AMP_CONTAINER(base, struct history_page, base)->filter;
    store_bind_u64(cursor, filter->verdicts);
    store_bind_u64(cursor, filter->only_changes);
    store_bind_u64(cursor, filter->acts_before);
}

/* Reads a row, with its overflow rows and its epoch's record from their tables, and hands it out. */
static int give_row(struct page *base, const struct store_cursor *cursor)
{
    const struct history_page *page = AMP_CONTAINER(base, struct history_page, base);
    struct ampd_step_row row;
    struct ampd_history_key key;
    struct ampd_epoch_record epoch;
    int rc =
        store_read_row(cursor->statement, &key, &row) == 0 ? 0 : store_damaged_row(base->store, "step", base->error);
    if (rc == 0)
        rc = store_read_overflows_of(base->store, base->id, &row, base->error);
    bool is_epoch = row.kind == AMPD_ROW_EPOCH;
    if (rc == 0 && is_epoch)
        rc = read_epoch(base->store, base->id, row.epoch, &epoch, base->error);
    return rc != 0 ? rc : page->row_cb(page->arg, &key, &row, is_epoch ? &epoch : NULL);
}

static enum store_statement statement_of(const struct ampd_history_filter *filter)
{
    bool applied = filter->verdicts == 0 || (filter->verdicts >> AMPD_VERDICT_APPLIED & 1) != 0;
    if (applied && !filter->only_changes)
        return filter->descending ? STMT_HISTORY_DOWN : STMT_HISTORY_UP;
    return filter->descending ? STMT_NOTABLE_DOWN : STMT_NOTABLE_UP;
}

int store_sqlite_page_history(struct ampd_store *base, const char *model, const struct ampd_history_filter *filter,
                              const struct ampd_history_key *lo, const struct ampd_history_key *hi, uint32_t limit,
                              void *arg, struct amp_error *error, ampd_history_cb *row_cb)
{
    struct history_page page = {filtered(base, model, filter, lo, hi, limit, error), filter, arg, row_cb};
    page.base.what = "reading history";
    page.base.statement = statement_of(filter);
    page.base.bind_cb = bind_history;
    page.base.row_cb = give_row;
    return page_run(&page.base);
}

/* ---- points ---- */

struct points_page {
    struct page base;
    void *arg;
    ampd_points_cb *point_cb;
};

static int give_point(struct page *base, const struct store_cursor *cursor)
{
    const struct points_page *page = AMP_CONTAINER(base, struct points_page, base);
    struct store_cursor get = {.statement = cursor->statement};
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
    bool is_nan = sqlite3_column_type(cursor->statement, get.at) == SQLITE_NULL;
    point.loss = !point.has_loss ? 0 : is_nan ? NAN : (float)store_column_f64(&get);
    return page->point_cb(page->arg, &point);
}

int store_sqlite_page_points(struct ampd_store *base, const char *model, const struct ampd_history_key *from,
                             uint64_t step_min, uint64_t step_max, uint32_t limit, void *arg, struct amp_error *error,
                             ampd_points_cb *point_cb)
{
    static const struct ampd_history_key end = {UINT64_MAX, UINT64_MAX, UINT32_MAX};
    struct points_page page = {.base = {.store = store_of(base),
                                        .model = model,
                                        .what = "reading points of the history",
                                        .statement = STMT_POINTS,
                                        .lo = from,
                                        .hi = &end,
                                        .step_min = step_min,
                                        .step_max = step_max,
                                        .limit = limit,
                                        .error = error,
                                        .row_cb = give_point},
                               .arg = arg,
                               .point_cb = point_cb};
    return page_run(&page.base);
}

/* ---- overflows ---- */

struct overflows_page {
    struct page base;
    const struct ampd_overflow_filter *which;
    void *arg;
    ampd_overflows_cb *row_cb;
};

static void bind_overflows(struct page *base, struct store_cursor *cursor)
{
    const struct ampd_overflow_filter *which = AMP_CONTAINER(base, struct overflows_page, base)->which;
    store_bind_u64(cursor, which->parameter_min);
    store_bind_u64(cursor, which->parameter_max);
    store_bind_u64(cursor, which->rank_min);
    store_bind_u64(cursor, which->rank_max);
}

static int give_overflow(struct page *base, const struct store_cursor *cursor)
{
    const struct overflows_page *page = AMP_CONTAINER(base, struct overflows_page, base);
    struct store_cursor get = {.statement = cursor->statement};
    struct ampd_history_key key;
    struct ampd_overflow_found found = {0};
    key.epoch = store_column_u64(&get);
    key.step = store_column_u64(&get);
    key.sequence = (uint32_t)store_column_u64(&get);
    store_read_overflow(&get, &found.row);
    found.incarnation = store_read_incarnation(&get, found.row.rank);
    found.at_us = (int64_t)store_column_u64(&get);
    found.superseded = store_column_u64(&get) != 0;
    return page->row_cb(page->arg, &key, &found);
}

int store_sqlite_page_overflows(struct ampd_store *base, const char *model, const struct ampd_history_filter *filter,
                                const struct ampd_overflow_filter *which, const struct ampd_history_key *lo,
                                const struct ampd_history_key *hi, uint32_t limit, void *arg, struct amp_error *error,
                                ampd_overflows_cb *row_cb)
{
    struct overflows_page page = {filtered(base, model, filter, lo, hi, limit, error), which, arg, row_cb};
    page.base.what = "reading overflows";
    page.base.statement = filter->descending ? STMT_OVERFLOWS_DOWN : STMT_OVERFLOWS_UP;
    page.base.bind_cb = bind_overflows;
    page.base.row_cb = give_overflow;
    return page_run(&page.base);
}
