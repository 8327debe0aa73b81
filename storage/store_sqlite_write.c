/* The SQLite store's writing calls: each is one transaction. */
#include "storage/spec_json.h"
#include "storage/store_sqlite.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A contributor in the blob: rank u32, fence u64, counter u64, weight as fp32 bits; little-endian. */
#define CONTRIBUTOR_BYTES 24

static int run_bound(struct sqlite_store *store, const struct store_cursor *binder, const char *what,
                     struct amp_error *error)
{
    if (binder->rc != SQLITE_OK)
        return store_failure(store, binder->rc, what, error);
    return store_run(store, binder->statement, what, error);
}

/* The first column of the first row as a number, `absent` if there is none or it is NULL. */
static int query_number(struct sqlite_store *store, const struct store_cursor *binder, uint64_t absent, uint64_t *value,
                        struct amp_error *error)
{
    int rc = binder->rc == SQLITE_OK ? sqlite3_step(binder->statement) : binder->rc;
    *value = absent;
    if (rc == SQLITE_ROW && sqlite3_column_type(binder->statement, 0) != SQLITE_NULL)
        *value = (uint64_t)sqlite3_column_int64(binder->statement, 0);
    int result = rc == SQLITE_ROW || rc == SQLITE_DONE ? 0 : store_failure(store, rc, "reading", error);
    (void)sqlite3_reset(binder->statement); /* repeats the error of the step */
    return result;
}

static int put_fence(struct sqlite_store *store, uint32_t shard, uint64_t counter, const uint8_t *boot_id,
                     struct amp_error *error)
{
    struct store_cursor put = store_binder(store, STMT_FENCE_PUT);
    store_bind_u64(&put, shard);
    store_bind_u64(&put, counter);
    store_bind_blob(&put, boot_id, AMPD_BOOT_ID_BYTES);
    return run_bound(store, &put, "storing a fence", error);
}

static int boot_in_transaction(struct sqlite_store *store, uint32_t shard, const uint8_t *boot_id, uint64_t *counter,
                               struct amp_error *error)
{
    struct store_cursor get = store_binder(store, STMT_FENCE_GET);
    store_bind_u64(&get, shard);
    int rc = query_number(store, &get, 0, counter, error);
    if (rc != 0)
        return rc;
    (*counter)++;
    return put_fence(store, shard, *counter, boot_id, error);
}

int store_sqlite_boot(struct ampd_store *base, uint32_t shard, const uint8_t *boot_id, struct ampd_fence *fence,
                      struct amp_error *error)
{
    struct sqlite_store *store = store_of(base);
    uint64_t counter = 0;
    int rc = store_begin(store, true, error);
    if (rc != 0)
        return rc;
    rc = store_end(store, boot_in_transaction(store, shard, boot_id, &counter, error), error);
    if (rc != 0)
        return rc;
    fence->counter = counter;
    memcpy(fence->boot_id, boot_id, AMPD_BOOT_ID_BYTES);
    return 0;
}

int store_sqlite_get_fence(struct ampd_store *base, uint32_t shard, struct ampd_fence *fence, struct amp_error *error)
{
    struct sqlite_store *store = store_of(base);
    struct store_cursor get = store_binder(store, STMT_FENCE_GET);
    store_bind_u64(&get, shard);
    int rc = get.rc == SQLITE_OK ? sqlite3_step(get.statement) : get.rc;
    if (rc == SQLITE_ROW) {
        fence->counter = (uint64_t)sqlite3_column_int64(get.statement, 0);
        const void *id = sqlite3_column_blob(get.statement, 1);
        if (id != NULL && sqlite3_column_bytes(get.statement, 1) == AMPD_BOOT_ID_BYTES)
            memcpy(fence->boot_id, id, AMPD_BOOT_ID_BYTES);
    }
    int result = rc == SQLITE_ROW || rc == SQLITE_DONE ? 0 : store_failure(store, rc, "reading a fence", error);
    (void)sqlite3_reset(get.statement); /* repeats the error of the step */
    return result;
}

int store_sqlite_put_fence(struct ampd_store *base, uint32_t shard, const struct ampd_fence *fence,
                           struct amp_error *error)
{
    struct sqlite_store *store = store_of(base);
    int rc = store_begin(store, true, error);
    return rc != 0 ? rc : store_end(store, put_fence(store, shard, fence->counter, fence->boot_id, error), error);
}

/* ---- models ---- */

static int put_parameters(struct sqlite_store *store, const struct ampd_model_spec *spec, uint64_t id,
                          struct amp_error *error)
{
    int rc = 0;
    for (uint32_t i = 0; rc == 0 && i < spec->parameters_count; i++) {
        char shape[AMPD_SHAPE_TEXT_MAX];
        ampd_shape_to_text(&spec->parameters[i], shape);
        struct store_cursor put = store_binder(store, STMT_PARAMETER_PUT);
        store_bind_u64(&put, id);
        store_bind_u64(&put, i);
        store_bind_text(&put, spec->parameters[i].name);
        store_bind_text(&put, shape);
        store_bind_u64(&put, spec->parameters[i].group);
        rc = run_bound(store, &put, "storing a parameter", error);
    }
    return rc;
}

static int put_model(struct sqlite_store *store, const struct ampd_model_spec *spec, const char *json, int64_t at_us,
                     struct amp_error *error)
{
    int64_t id;
    uint64_t epoch;
    int rc = store_find_model(store, spec->name, &id, &epoch, NULL);
    if (rc == 0)
        return ampd_store_model_exists(error, spec->name);
    if (rc != AMP_ENOTFOUND)
        return store_failure(store, sqlite3_errcode(store->db), "finding a model", error);
    struct store_cursor put = store_binder(store, STMT_MODEL_PUT);
    store_bind_text(&put, spec->name);
    store_bind_text(&put, json);
    store_bind_u64(&put, (uint64_t)at_us);
    rc = run_bound(store, &put, "storing a model", error);
    return rc != 0 ? rc : put_parameters(store, spec, (uint64_t)sqlite3_last_insert_rowid(store->db), error);
}

int store_sqlite_put_model(struct ampd_store *base, const struct ampd_model_spec *spec, int64_t at_us,
                           struct amp_error *error)
{
    struct sqlite_store *store = store_of(base);
    char *json;
    int rc = ampd_spec_to_json(spec, &json);
    if (rc != 0)
        return amp_error_set(error, rc, NULL, "the specification of \"%s\" cannot be stored: %s", spec->name,
                             amp_strerror(rc));
    rc = store_begin(store, true, error);
    if (rc == 0)
        rc = store_end(store, put_model(store, spec, json, at_us, error), error);
    free(json);
    return rc;
}

/* ---- rows ---- */

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
        out += CONTRIBUTOR_BYTES;
    }
    return (size_t)row->contributors_count * CONTRIBUTOR_BYTES;
}

/* The clip coefficients of the groups, 4 bytes each. */
static size_t encode_clips(const struct ampd_step_row *row, uint8_t *out)
{
    for (uint32_t i = 0; i < row->clips_count; i++) {
        uint32_t bits;
        memcpy(&bits, &row->clips[i], sizeof bits);
        put_le(out + 4 * (size_t)i, bits, 4);
    }
    return 4 * (size_t)row->clips_count;
}

/* Blobs of a row, which must stay until the statement ran. */
struct row_blobs {
    uint8_t contributors[AMPD_WORLD_MAX * CONTRIBUTOR_BYTES], clips[AMPD_GROUPS_MAX * 4];
};

/* Binds STORE_ROW_COLUMNS in order. */
static void bind_row(struct store_cursor *put, const struct ampd_step_row *row, struct row_blobs *blobs)
{
    const struct amp_scaler_state *after = &row->after;
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
        rc = run_bound(store, &put, "storing an overflow", error);
    }
    return rc;
}

static int put_row(struct sqlite_store *store, int64_t id, uint64_t sequence, const struct ampd_step_row *row,
                   struct amp_error *error)
{
    struct row_blobs blobs;
    struct store_cursor put = store_binder(store, STMT_ROW_PUT);
    store_bind_u64(&put, (uint64_t)id);
    store_bind_u64(&put, row->epoch);
    store_bind_u64(&put, row->step);
    store_bind_u64(&put, sequence);
    bind_row(&put, row, &blobs);
    int rc = run_bound(store, &put, "storing a step", error);
    return rc != 0 ? rc : put_overflows(store, id, row, error);
}

static int row_exists(struct sqlite_store *store, int64_t id, uint64_t epoch, uint64_t step, bool *exists,
                      struct amp_error *error)
{
    struct store_cursor get = store_binder(store, STMT_ROW_EXISTS);
    store_bind_u64(&get, (uint64_t)id);
    store_bind_u64(&get, epoch);
    store_bind_u64(&get, step);
    uint64_t found = 0;
    int rc = query_number(store, &get, 0, &found, error);
    *exists = found != 0;
    return rc;
}

/* The sequence a verdict's row gets, or why it is refused. */
static int row_sequence(struct sqlite_store *store, int64_t id, const struct ampd_step_row *row, uint64_t *sequence,
                        struct amp_error *error)
{
    *sequence = 0;
    if (row->kind != AMPD_ROW_STEP) {
        struct store_cursor get = store_binder(store, STMT_ROW_LAST_SEQUENCE);
        store_bind_u64(&get, (uint64_t)id);
        store_bind_u64(&get, row->epoch);
        store_bind_u64(&get, row->step);
        int rc = query_number(store, &get, 0, sequence, error);
        (*sequence)++;
        return rc;
    }
    bool here = false, before = false;
    int rc = row_exists(store, id, row->epoch, row->step, &here, error);
    if (rc == 0)
        rc = row_exists(store, id, row->epoch, row->step - 1, &before, error);
    if (rc == 0 && here)
        rc = ampd_store_step_exists(error, row->epoch, row->step);
    else if (rc == 0 && !before)
        rc = ampd_store_step_gap(error, row->epoch, row->step);
    return rc;
}

static int put_verdict(struct sqlite_store *store, const char *model, const struct ampd_step_row *row,
                       struct amp_error *error)
{
    int64_t id = 0;
    uint64_t epoch = 0, sequence = 0;
    int rc = store_find_model(store, model, &id, &epoch, error);
    if (rc == 0 && row->epoch != epoch)
        rc = ampd_store_old_epoch(error, row->epoch, epoch);
    if (rc == 0)
        rc = row_sequence(store, id, row, &sequence, error);
    return rc != 0 ? rc : put_row(store, id, sequence, row, error);
}

int store_sqlite_put_verdicts(struct ampd_store *base, const struct ampd_verdict_put *puts, uint32_t count, bool full,
                              uint32_t *stored, struct amp_error *error)
{
    struct sqlite_store *store = store_of(base);
    int rc = store_begin(store, full, error);
    if (rc != 0)
        return rc;
    for (uint32_t i = 0; rc == 0 && i < count; i++)
        rc = put_verdict(store, puts[i].model, puts[i].row, error);
    rc = store_end(store, rc, error);
    *stored = rc == 0 ? count : 0;
    return rc;
}

/* ---- epochs ---- */

static int put_epoch(struct sqlite_store *store, const char *model, const struct ampd_epoch_record *epoch,
                     const struct ampd_step_row *first, struct amp_error *error)
{
    int64_t id = 0;
    uint64_t newest = 0;
    int rc = store_find_model(store, model, &id, &newest, error);
    if (rc == 0 && epoch->epoch <= newest)
        rc = ampd_store_old_epoch(error, epoch->epoch, newest);
    if (rc != 0)
        return rc;
    struct store_cursor put = store_binder(store, STMT_EPOCH_PUT);
    store_bind_u64(&put, (uint64_t)id);
    store_bind_u64(&put, epoch->epoch);
    store_bind_u64(&put, epoch->parent);
    store_bind_u64(&put, epoch->base_epoch);
    store_bind_u64(&put, epoch->base_step);
    store_bind_text(&put, epoch->reason);
    store_bind_u64(&put, (uint64_t)epoch->at_us);
    rc = run_bound(store, &put, "storing an epoch", error);
    if (rc != 0)
        return rc;
    struct store_cursor rows = store_binder(store, STMT_ROWS_SUPERSEDE);
    store_bind_u64(&rows, (uint64_t)id);
    store_bind_u64(&rows, epoch->epoch);
    store_bind_u64(&rows, epoch->base_step);
    rc = run_bound(store, &rows, "superseding rows", error);
    if (rc != 0)
        return rc;
    struct store_cursor files = store_binder(store, STMT_CHECKPOINTS_VOID);
    store_bind_u64(&files, (uint64_t)id);
    store_bind_u64(&files, epoch->base_step);
    store_bind_u64(&files, epoch->base_epoch);
    rc = run_bound(store, &files, "voiding checkpoints", error);
    return rc != 0 ? rc : put_row(store, id, 0, first, error);
}

int store_sqlite_put_epoch(struct ampd_store *base, const char *model, const struct ampd_epoch_record *epoch,
                           const struct ampd_step_row *first, struct amp_error *error)
{
    struct sqlite_store *store = store_of(base);
    int rc = store_begin(store, true, error);
    return rc != 0 ? rc : store_end(store, put_epoch(store, model, epoch, first, error), error);
}

/* ---- workers and checkpoints ---- */

static int put_worker(struct sqlite_store *store, const char *model, const struct ampd_worker_record *worker,
                      struct amp_error *error)
{
    int64_t id = 0;
    uint64_t epoch = 0;
    int rc = store_find_model(store, model, &id, &epoch, error);
    if (rc != 0)
        return rc;
    struct store_cursor drop = store_binder(store, STMT_WORKER_DROP_NAME);
    store_bind_u64(&drop, (uint64_t)id);
    store_bind_text(&drop, worker->name);
    store_bind_u64(&drop, worker->rank);
    rc = run_bound(store, &drop, "storing a worker", error);
    if (rc != 0)
        return rc;
    struct store_cursor put = store_binder(store, STMT_WORKER_PUT);
    store_bind_u64(&put, (uint64_t)id);
    store_bind_u64(&put, worker->rank);
    store_bind_text(&put, worker->name);
    store_bind_u64(&put, worker->incarnation.fence);
    store_bind_u64(&put, worker->incarnation.counter);
    store_bind_u64(&put, worker->left);
    return run_bound(store, &put, "storing a worker", error);
}

int store_sqlite_put_worker(struct ampd_store *base, const char *model, const struct ampd_worker_record *worker,
                            struct amp_error *error)
{
    struct sqlite_store *store = store_of(base);
    int rc = store_begin(store, false, error);
    return rc != 0 ? rc : store_end(store, put_worker(store, model, worker, error), error);
}

static int put_checkpoint(struct sqlite_store *store, const char *model,
                          const struct ampd_checkpoint_record *checkpoint, struct amp_error *error)
{
    int64_t id = 0;
    uint64_t epoch = 0;
    int rc = store_find_model(store, model, &id, &epoch, error);
    if (rc == 0 && checkpoint->epoch != epoch)
        rc = ampd_store_old_epoch(error, checkpoint->epoch, epoch);
    if (rc != 0)
        return rc;
    struct store_cursor put = store_binder(store, STMT_CHECKPOINT_PUT);
    store_bind_u64(&put, (uint64_t)id);
    store_bind_u64(&put, checkpoint->epoch);
    store_bind_u64(&put, checkpoint->step);
    store_bind_u64(&put, checkpoint->version);
    store_bind_text(&put, checkpoint->file);
    store_bind_u64(&put, checkpoint->size_bytes);
    store_bind_blob(&put, checkpoint->manifest, sizeof checkpoint->manifest);
    store_bind_u64(&put, (uint64_t)checkpoint->at_us);
    store_bind_f64(&put, (double)checkpoint->scale);
    return run_bound(store, &put, "storing a checkpoint", error);
}

int store_sqlite_put_checkpoint(struct ampd_store *base, const char *model,
                                const struct ampd_checkpoint_record *checkpoint, struct amp_error *error)
{
    struct sqlite_store *store = store_of(base);
    int rc = store_begin(store, true, error);
    return rc != 0 ? rc : store_end(store, put_checkpoint(store, model, checkpoint, error), error);
}

static int drop_checkpoint(struct sqlite_store *store, const char *model, uint64_t epoch, uint64_t step,
                           struct amp_error *error)
{
    int64_t id = 0;
    uint64_t newest = 0;
    int rc = store_find_model(store, model, &id, &newest, error);
    if (rc != 0)
        return rc;
    struct store_cursor drop = store_binder(store, STMT_CHECKPOINT_DROP);
    store_bind_u64(&drop, (uint64_t)id);
    store_bind_u64(&drop, epoch);
    store_bind_u64(&drop, step);
    rc = run_bound(store, &drop, "dropping a checkpoint", error);
    if (rc == 0 && sqlite3_changes(store->db) == 0)
        rc = ampd_store_no_checkpoint(error, epoch, step);
    return rc;
}

int store_sqlite_drop_checkpoint(struct ampd_store *base, const char *model, uint64_t epoch, uint64_t step,
                                 struct amp_error *error)
{
    struct sqlite_store *store = store_of(base);
    int rc = store_begin(store, true, error);
    return rc != 0 ? rc : store_end(store, drop_checkpoint(store, model, epoch, step, error), error);
}
