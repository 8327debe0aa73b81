/*
 * Writes the rows of the history in the SQLite store: one for each verdict, which is the most frequent write. Facts
 * about a model are cached after a verdict (sqlite_known.h), so that the verdict of the next step is a single INSERT.
 */
#include "storage/sqlite/sqlite_rows.h"

#include "storage/sqlite/sqlite_known.h"
#include "storage/sqlite/sqlite_ops.h"
#include "storage/sqlite/sqlite_transaction.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void put_le(uint8_t *at, uint64_t value, int bytes)
{
    for (int i = 0; i < bytes; i++)
        at[i] = (uint8_t)(value >> (8 * i));
}

static size_t encode_contributors(const struct ampd_step_row *row, uint8_t *out)
{
    for (uint32_t i = 0; i < row->contributors_count; i++) {
        const struct ampd_contributor *from = &row->contributors[i];
        uint32_t weight;
        memcpy(&weight, &from->weight, sizeof weight);
        put_le(out, from->rank, 4);
        put_le(out + 4, from->incarnation.fence, 8);
        put_le(out + 12, from->incarnation.counter, 8);
        put_le(out + 20, weight, 4);
        out += STORE_CONTRIBUTOR_BYTES;
    }
    return (size_t)row->contributors_count * STORE_CONTRIBUTOR_BYTES;
}

/* The blob of the groups' clip coefficients: the bits of each fp32, 4 bytes, little-endian. */
static size_t encode_clips(const struct ampd_step_row *row, uint8_t *out)
{
    for (uint32_t i = 0; i < row->clips_count; i++) {
        uint32_t bits;
        memcpy(&bits, &row->clips[i], sizeof bits);
        put_le(out + 4 * (size_t)i, bits, 4);
    }
    return 4 * (size_t)row->clips_count;
}

static size_t encode_metrics(const struct ampd_metrics *metrics, uint8_t *out)
{
    const uint8_t *begin = out;
    for (uint32_t i = 0; i < metrics->count; i++) {
        const struct ampd_metric *from = &metrics->items[i];
        size_t size = strnlen(from->name, sizeof from->name - 1);
        uint32_t bits;
        memcpy(&bits, &from->value, sizeof bits);
        put_le(out, bits, 4);
        put_le(out + 4, from->workers, 4);
        out[8] = (uint8_t)size;
        memcpy(out + STORE_METRIC_BYTES, from->name, size);
        out += STORE_METRIC_BYTES + size;
    }
    return (size_t)(out - begin);
}

/* The blobs of a row, which must stay valid until the statement has run. */
struct row_blobs {
    uint8_t contributors[AMPD_WORLD_MAX * STORE_CONTRIBUTOR_BYTES], clips[AMPD_GROUPS_MAX * 4];
    uint8_t metrics[AMPD_METRICS_MAX * (STORE_METRIC_BYTES + AMPD_METRIC_NAME_MAX - 1)];
};

/* Binds STORE_ROW_COLUMNS in order. */
static void bind_row(struct store_cursor *put, const struct ampd_step_row *row, struct row_blobs *blobs)
{
    const struct amp_scaler_state *after = &row->after.scaler;
    store_bind_u64(put, row->kind);
    store_bind_u64(put, row->parent_epoch);
    store_bind_u64(put, row->parent_step);
    store_bind_u64(put, row->verdict);
    store_bind_u64(put, row->tries);
    store_bind_u64(put, row->contributors_hash);
    store_bind_blob(put, blobs->contributors, encode_contributors(row, blobs->contributors));
    store_bind_f64(put, (double)row->scale);
    store_bind_u64(put, row->scale_id);
    store_bind_f64(put, (double)after->scale);
    store_bind_u64(put, after->scale_id);
    store_bind_u64(put, after->growth_tracker);
    store_bind_u64(put, after->hysteresis_left);
    store_bind_u64(put, after->consecutive_overflows);
    store_bind_u64(put, after->total_overflows);
    store_bind_u64(put, after->steps_since_overflow);
    store_bind_u64(put, after->attempted);
    store_bind_u64(put, after->applied);
    store_bind_u64(put, after->skipped);
    store_bind_f64(put, (double)row->coefficient);
    store_bind_f64(put, row->norm);
    store_bind_f64(put, (double)row->clip);
    store_bind_f64(put, row->lr);
    store_bind_u64(put, row->version);
    store_bind_u64(put, row->overflow_params);
    store_bind_u64(put, row->inf_total);
    store_bind_u64(put, row->nan_total);
    store_bind_u64(put, row->rows_count);
    store_bind_u64(put, row->durable_step);
    store_bind_u64(put, row->cut);
    store_bind_u64(put, row->superseded);
    store_bind_u64(put, (uint64_t)row->at_us);
    store_bind_u64(put, row->from_step);
    store_bind_text(put, row->note.actor);
    store_bind_text(put, row->note.words);
    store_bind_text(put, row->note.request_id);
    store_bind_blob(put, blobs->clips, encode_clips(row, blobs->clips));
    store_bind_f64(put, row->metrics.loss_workers > 0 ? (double)row->metrics.loss : (double)NAN); /* NaN: NULL */
    store_bind_u64(put, row->metrics.loss_workers);
    store_bind_blob(put, blobs->metrics, encode_metrics(&row->metrics, blobs->metrics));
    for (int i = 0; i < AMPD_STEP_TIMES; i++)
        store_bind_u64(put, row->times_us[i]);
    store_bind_f64(put, row->after.lr);
}

static int put_overflows(struct sqlite_store *store, int64_t id, const struct ampd_step_row *row,
                         struct amp_error *error)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < row->rows_count; i++) {
        const struct ampd_overflow_row *from = &row->rows[i];
        struct store_cursor put = store_binder(store, STMT_OVERFLOW_PUT);
        store_bind_u64(&put, (uint64_t)id);
        store_bind_u64(&put, row->epoch);
        store_bind_u64(&put, row->step);
        store_bind_u64(&put, i);
        store_bind_u64(&put, from->parameter);
        store_bind_u64(&put, from->rank);
        store_bind_u64(&put, from->inf_count);
        store_bind_u64(&put, from->nan_count);
        store_bind_u64(&put, from->first_index);
        store_bind_f64(&put, (double)from->largest);
        rc = store_run_bound(store, &put, "storing an overflow", error);
    }
    return rc;
}

int store_put_row(struct sqlite_store *store, int64_t id, uint64_t sequence, const struct ampd_step_row *row,
                  struct amp_error *error)
{
    struct row_blobs blobs;
    struct store_cursor put = store_binder(store, STMT_ROW_PUT);
    store_bind_u64(&put, (uint64_t)id);
    store_bind_u64(&put, row->epoch);
    store_bind_u64(&put, row->step);
    store_bind_u64(&put, sequence);
    bind_row(&put, row, &blobs);
    int rc = put.rc == SQLITE_OK ? sqlite3_step(put.statement) : put.rc;
    int result = 0;
    if (rc == SQLITE_CONSTRAINT_PRIMARYKEY)
        result = ampd_store_step_exists(error, row->epoch, row->step);
    else if (rc != SQLITE_DONE)
        result = store_failure(store, rc, "storing a step", error);
    (void)sqlite3_reset(put.statement); /* repeats the error of the step */
    return result != 0 ? result : put_overflows(store, id, row, error);
}

static int row_exists(struct sqlite_store *store, int64_t id, uint64_t epoch, uint64_t step, bool *exists,
                      struct amp_error *error)
{
    struct store_cursor get = store_binder(store, STMT_ROW_EXISTS);
    store_bind_u64(&get, (uint64_t)id);
    store_bind_u64(&get, epoch);
    store_bind_u64(&get, step);
    uint64_t found = 0;
    int rc = store_query_number(store, &get, 0, &found, error);
    *exists = found != 0;
    return rc;
}

/* ---- verdicts ---- */

/* Whether a model has a row of kind STEP. */
static int has_steps(struct sqlite_store *store, int64_t id, bool *has, struct amp_error *error)
{
    struct store_cursor get = store_binder(store, STMT_STEP_ANY);
    store_bind_u64(&get, (uint64_t)id);
    uint64_t found = 0;
    int rc = store_query_number(store, &get, 0, &found, error);
    *has = found != 0;
    return rc;
}

/*
 * Whether the row of a step may be stored: the step before has its row, and this one has none. The first step of a
 * draft may be any, since the history that it is copied from may have lost its beginning, but has no gaps after that.
 */
static int check_step(struct sqlite_store *store, const struct store_known *known, const struct ampd_step_row *row,
                      struct amp_error *error)
{
    bool here = false, before = known->has_step && known->step + 1 == row->step;
    if (before)
        return 0; /* if this step has a row, the INSERT fails by the primary key */
    int rc = row_exists(store, known->id, row->epoch, row->step - 1, &before, error);
    if (rc != 0 || before)
        return rc;
    rc = row_exists(store, known->id, row->epoch, row->step, &here, error);
    bool follows = true;
    if (rc == 0 && !here && store->draft)
        rc = has_steps(store, known->id, &follows, error);
    if (rc != 0 || !follows)
        return rc;
    return here ? ampd_store_step_exists(error, row->epoch, row->step)
                : ampd_store_step_gap(error, row->epoch, row->step);
}

/* The sequence for the row of an operator's action: the next one of its step; 0: the same action is stored already. */
static int next_sequence(struct sqlite_store *store, int64_t id, const struct ampd_step_row *row, uint64_t *sequence,
                         struct amp_error *error)
{
    uint64_t had = 0;
    struct store_cursor same = store_binder(store, STMT_ACT_EXISTS);
    store_bind_u64(&same, (uint64_t)id);
    store_bind_u64(&same, row->epoch);
    store_bind_u64(&same, row->step);
    store_bind_u64(&same, row->after.scaler.scale_id);
    store_bind_text(&same, row->note.request_id); /* the scale id is not enough: not every action changes it */
    int rc = store_query_number(store, &same, 0, &had, error);
    *sequence = 0;
    if (rc != 0 || had != 0)
        return rc;
    struct store_cursor get = store_binder(store, STMT_ROW_LAST_SEQUENCE);
    store_bind_u64(&get, (uint64_t)id);
    store_bind_u64(&get, row->epoch);
    store_bind_u64(&get, row->step);
    rc = store_query_number(store, &get, 0, sequence, error);
    (*sequence)++;
    return rc;
}

static int put_verdict(struct sqlite_store *store, const char *model, const struct ampd_step_row *row,
                       struct amp_error *error)
{
    struct store_known *known;
    uint64_t sequence = 0;
    int rc = store_know(store, model, &known, error);
    if (rc == 0 && row->epoch != known->epoch)
        rc = ampd_store_old_epoch(error, row->epoch, known->epoch);
    if (rc == 0 && row->kind == AMPD_ROW_STEP)
        rc = check_step(store, known, row, error);
    else if (rc == 0)
        rc = next_sequence(store, known->id, row, &sequence, error);
    if (rc == 0 && (row->kind == AMPD_ROW_STEP || sequence != 0))
        rc = store_put_row(store, known->id, sequence, row, error);
    if (rc == 0 && row->kind == AMPD_ROW_STEP) {
        known->has_step = true;
        known->step = row->step;
    }
    return rc;
}

int store_sqlite_put_verdicts(struct ampd_store *base, const struct ampd_verdict_put *puts, uint32_t count, bool full,
                              uint32_t *stored, struct amp_error *error)
{
    struct sqlite_store *store = store_of(base);
    int rc = store_begin_knowing(store, full, error);
    if (rc != 0)
        return rc;
    for (uint32_t i = 0; rc == 0 && i < count; i++)
        rc = put_verdict(store, puts[i].model, puts[i].row, error);
    rc = store_end(store, rc, error);
    *stored = rc == 0 ? count : 0;
    return rc;
}
