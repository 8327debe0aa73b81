/*
 * Removes the beginning of a history in the SQLite store (ampd_store_trim). Which rows are kept is found in the
 * transaction that deletes, by a few searches in indices, so that the time of a portion depends on its own rows and not
 * on the length of the history.
 */
#include "storage/sqlite/sqlite_cursor.h"
#include "storage/sqlite/sqlite_known.h"
#include "storage/sqlite/sqlite_ops.h"
#include "storage/sqlite/sqlite_transaction.h"

static void bind_key(struct store_cursor *cursor, const struct ampd_history_key *key)
{
    store_bind_u64(cursor, key->epoch);
    store_bind_u64(cursor, key->step);
    store_bind_u64(cursor, key->sequence);
}

static bool is_before(const struct ampd_history_key *a, const struct ampd_history_key *b)
{
    return a->epoch != b->epoch ? a->epoch < b->epoch : a->step != b->step ? a->step < b->step : false;
}

/* Reads a key from a statement that gives one row, or none: then *key does not change. */
static int read_key(struct sqlite_store *store, const struct store_cursor *get, struct ampd_history_key *key,
                    struct amp_error *error)
{
    int rc = store_next_row(store, get, "finding the beginning of a history", error);
    if (rc == 1) {
        struct store_cursor read = {.statement = get->statement};
        key->epoch = store_column_u64(&read);
        key->step = store_column_u64(&read);
        key->sequence = (uint32_t)store_column_u64(&read);
    }
    (void)sqlite3_reset(get->statement); /* repeats the error of the step */
    return rc < 0 ? rc : 0;
}

/* The bounds of what may be removed. A member that is all zero is not found. */
struct bounds {
    struct ampd_history_key kept;   /* all rows from the start of this step on are kept whatever the limit is */
    struct ampd_history_key newest; /* rows before this one are beyond the limit of rows; all zero: none is */
    struct ampd_history_key acts;   /* rows with a request id are kept from this one on; all zero: all of them */
};

/* Finds the first of the newest `rows` steps that are not superseded; `last` is the newest row. */
static int find_newest(struct sqlite_store *store, uint64_t id, const struct ampd_history_key *last, uint64_t rows,
                       struct ampd_history_key *newest, struct amp_error *error)
{
    if (rows == 0 || last->step <= rows)
        return 0;
    struct store_cursor get = store_binder(store, STMT_TRIM_EPOCH);
    store_bind_u64(&get, id);
    store_bind_u64(&get, last->step - rows);
    newest->step = last->step - rows + 1;
    return store_query_number(store, &get, 0, &newest->epoch, error);
}

/* Moves kept->step back to where a replay of the journal begins; without a checkpoint to the epoch's first step. */
static int find_replayed(struct sqlite_store *store, uint64_t id, struct ampd_history_key *kept,
                         struct amp_error *error)
{
    uint64_t step = 0;
    struct store_cursor get = store_binder(store, STMT_TRIM_CHECKPOINT);
    store_bind_u64(&get, id);
    int rc = store_query_number(store, &get, 0, &step, error);
    step -= step > 0 ? 1 : 0;
    kept->step = step < kept->step ? step : kept->step;
    return rc;
}

static int find_bounds(struct sqlite_store *store, uint64_t id, const struct ampd_history_limit *limit,
                       struct bounds *bounds, struct amp_error *error)
{
    struct store_cursor last = store_binder(store, STMT_TRIM_LAST);
    store_bind_u64(&last, id);
    int rc = read_key(store, &last, &bounds->kept, error);
    if (rc == 0)
        rc = find_newest(store, id, &bounds->kept, limit->rows, &bounds->newest, error);
    if (rc == 0 && limit->replays)
        rc = find_replayed(store, id, &bounds->kept, error);
    if (rc != 0)
        return rc;
    struct store_cursor acts = store_binder(store, STMT_TRIM_ACT);
    store_bind_u64(&acts, id);
    store_bind_u64(&acts, AMPD_ACTIONS_MAX - 1);
    return read_key(store, &acts, &bounds->acts, error);
}

/* Finds the last row of the portion. If nothing is to be removed *end stays all zero. */
static int find_end(struct sqlite_store *store, uint64_t id, const struct ampd_history_limit *limit, uint32_t portion,
                    const struct bounds *bounds, struct ampd_history_key *end, bool *more, struct amp_error *error)
{
    struct store_cursor list = store_binder(store, STMT_TRIM_LIST);
    store_bind_u64(&list, id);
    store_bind_u64(&list, bounds->kept.epoch);
    store_bind_u64(&list, bounds->kept.step);
    bind_key(&list, &bounds->acts);
    store_bind_u64(&list, (uint64_t)portion + 1);
    uint64_t used = 0;
    int rc;
    while ((rc = store_next_row(store, &list, "finding rows beyond a limit", error)) == 1) {
        struct store_cursor get = {.statement = list.statement};
        struct ampd_history_key key;
        key.epoch = store_column_u64(&get);
        key.step = store_column_u64(&get);
        key.sequence = (uint32_t)store_column_u64(&get);
        bool old = ampd_store_is_beyond(limit, (int64_t)store_column_u64(&get));
        *more = used >= portion;
        if (*more || (!old && !is_before(&key, &bounds->newest)))
            break;
        *end = key;
        used += 1 + store_column_u64(&get);
    }
    (void)sqlite3_reset(list.statement); /* repeats the error of the step */
    return rc < 0 ? rc : 0;
}

static int remove_rows(struct sqlite_store *store, uint64_t id, const struct bounds *bounds,
                       const struct ampd_history_key *end, uint64_t *rows, struct amp_error *error)
{
    struct store_cursor overflows = store_binder(store, STMT_TRIM_OVERFLOWS);
    store_bind_u64(&overflows, id);
    store_bind_u64(&overflows, end->epoch);
    store_bind_u64(&overflows, end->step);
    int rc = store_run_bound(store, &overflows, "removing overflows beyond a limit", error);
    if (rc != 0)
        return rc;
    struct store_cursor steps = store_binder(store, STMT_TRIM_STEPS);
    store_bind_u64(&steps, id);
    bind_key(&steps, end);
    bind_key(&steps, &bounds->acts);
    rc = store_run_bound(store, &steps, "removing rows beyond a limit", error);
    *rows = rc == 0 ? (uint64_t)sqlite3_changes(store->db) : 0;
    return rc;
}

static int trim(struct sqlite_store *store, const char *model, const struct ampd_history_limit *limit, uint32_t portion,
                struct ampd_trimmed *trimmed, struct amp_error *error)
{
    struct bounds bounds = {0};
    struct ampd_history_key end = {0};
    int64_t id = 0;
    uint64_t epoch = 0;
    int rc = store_find_model(store, model, &id, &epoch, error);
    if (rc == 0)
        rc = find_bounds(store, (uint64_t)id, limit, &bounds, error);
    if (rc == 0)
        rc = find_end(store, (uint64_t)id, limit, portion, &bounds, &end, &trimmed->more, error);
    return rc == 0 && end.epoch != 0 ? remove_rows(store, (uint64_t)id, &bounds, &end, &trimmed->rows, error) : rc;
}

int store_sqlite_trim(struct ampd_store *base, const char *model, const struct ampd_history_limit *limit,
                      uint32_t portion, struct ampd_trimmed *trimmed, struct amp_error *error)
{
    struct sqlite_store *store = store_of(base);
    *trimmed = (struct ampd_trimmed){0};
    int rc = store_begin_relaxed(store, error);
    if (rc == 0)
        rc = store_end(store, trim(store, model, limit, portion, trimmed, error), error);
    if (rc != 0)
        *trimmed = (struct ampd_trimmed){0};
    return rc;
}
