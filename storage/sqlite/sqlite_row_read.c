#include "storage/sqlite/sqlite_rows.h"

#include <math.h>
#include <string.h>

static uint64_t get_le(const uint8_t *at, int bytes)
{
    uint64_t value = 0;
    for (int i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

static int decode_contributors(const uint8_t *data, size_t size, struct ampd_step_row *row)
{
    if (size % STORE_CONTRIBUTOR_BYTES != 0 || size / STORE_CONTRIBUTOR_BYTES > AMPD_WORLD_MAX)
        return AMP_EDATALOSS;
    row->contributors_count = (uint32_t)(size / STORE_CONTRIBUTOR_BYTES);
    for (uint32_t i = 0; i < row->contributors_count; i++, data += STORE_CONTRIBUTOR_BYTES) {
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

static int decode_metrics(const uint8_t *data, size_t size, struct ampd_metrics *metrics)
{
    while (size > 0) {
        struct ampd_metric *to = &metrics->items[metrics->count];
        if (metrics->count == AMPD_METRICS_MAX || size < STORE_METRIC_BYTES || data[8] >= AMPD_METRIC_NAME_MAX ||
            size - STORE_METRIC_BYTES < data[8])
            return AMP_EDATALOSS;
        uint32_t bits = (uint32_t)get_le(data, 4);
        memcpy(&to->value, &bits, sizeof bits);
        to->workers = (uint32_t)get_le(data + 4, 4);
        memcpy(to->name, data + STORE_METRIC_BYTES, data[8]);
        metrics->count++;
        size -= STORE_METRIC_BYTES + (size_t)data[8];
        data += STORE_METRIC_BYTES + (size_t)data[8];
    }
    return 0;
}

void store_read_scaler(struct store_cursor *get, struct amp_scaler_state *after)
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

struct ampd_incarnation store_read_incarnation(struct store_cursor *get, uint32_t rank)
{
    size_t size;
    const uint8_t *at = store_column_blob(get, &size);
    for (; size >= STORE_CONTRIBUTOR_BYTES; at += STORE_CONTRIBUTOR_BYTES, size -= STORE_CONTRIBUTOR_BYTES)
        if (get_le(at, 4) == rank)
            return (struct ampd_incarnation){get_le(at + 4, 8), get_le(at + 12, 8)};
    return (struct ampd_incarnation){0, 0};
}

uint32_t store_read_first_rank(struct store_cursor *get)
{
    size_t size;
    const uint8_t *contributors = store_column_blob(get, &size);
    return size >= STORE_CONTRIBUTOR_BYTES ? (uint32_t)get_le(contributors, 4) : 0;
}

int store_read_row(sqlite3_stmt *statement, struct ampd_history_key *key, struct ampd_step_row *row)
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
    store_read_scaler(&get, &row->after.scaler);
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
    bool is_nan = sqlite3_column_type(statement, get.at) == SQLITE_NULL;
    float loss = (float)store_column_f64(&get);
    row->metrics.loss_workers = (uint32_t)store_column_u64(&get);
    if (row->metrics.loss_workers > 0)
        row->metrics.loss = is_nan ? NAN : loss;
    size_t metrics_size;
    const uint8_t *metrics = store_column_blob(&get, &metrics_size);
    for (int i = 0; i < AMPD_STEP_TIMES; i++)
        row->times_us[i] = store_column_u64(&get);
    row->after.lr = store_column_f64(&get);
    if (get.at != 3 + STORE_ROW_COLUMNS_COUNT || row->rows_count > AMPD_OVERFLOW_ROWS_MAX ||
        decode_clips(clips, clips_size, row) != 0 || decode_metrics(metrics, metrics_size, &row->metrics) != 0)
        return AMP_EDATALOSS;
    return decode_contributors(contributors, size, row);
}

void store_read_overflow(struct store_cursor *get, struct ampd_overflow_row *row)
{
    row->parameter = (uint32_t)store_column_u64(get);
    row->rank = (uint32_t)store_column_u64(get);
    row->inf_count = store_column_u64(get);
    row->nan_count = store_column_u64(get);
    row->first_index = store_column_u64(get);
    row->largest = (float)store_column_f64(get);
}

int store_read_overflows_of(struct sqlite_store *store, int64_t id, struct ampd_step_row *row, struct amp_error *error)
{
    if (row->rows_count == 0)
        return 0;
    struct store_cursor list = store_binder(store, STMT_OVERFLOWS_OF_ROW);
    store_bind_u64(&list, (uint64_t)id);
    store_bind_u64(&list, row->epoch);
    store_bind_u64(&list, row->step);
    uint32_t count = 0;
    int rc;
    while ((rc = store_next_row(store, &list, "reading overflows", error)) == 1 && count < row->rows_count) {
        struct store_cursor get = {.statement = list.statement};
        store_read_overflow(&get, &row->rows[count++]);
    }
    (void)sqlite3_reset(list.statement); /* repeats the error of the step */
    if (rc < 0)
        return rc;
    return count == row->rows_count ? 0 : store_damaged_row(store, "step", error);
}
