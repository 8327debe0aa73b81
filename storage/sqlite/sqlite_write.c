/* The calls of the SQLite store that write, without verdicts, deletion and trimming: each is one transaction. */
#include "storage/spec_json.h"
#include "storage/sqlite/sqlite_cursor.h"
#include "storage/sqlite/sqlite_known.h"
#include "storage/sqlite/sqlite_ops.h"
#include "storage/sqlite/sqlite_rows.h"
#include "storage/sqlite/sqlite_transaction.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static int put_fence(struct sqlite_store *store, uint32_t shard, uint64_t counter, const uint8_t *boot_id,
                     struct amp_error *error)
{
    struct store_cursor put = store_binder(store, STMT_FENCE_PUT);
    store_bind_u64(&put, shard);
    store_bind_u64(&put, counter);
    store_bind_blob(&put, boot_id, AMPD_BOOT_ID_BYTES);
    return store_run_bound(store, &put, "storing a fence", error);
}

static int boot_in_transaction(struct sqlite_store *store, uint32_t shard, const uint8_t *boot_id, uint64_t *counter,
                               struct amp_error *error)
{
    struct store_cursor get = store_binder(store, STMT_FENCE_GET);
    store_bind_u64(&get, shard);
    int rc = store_query_number(store, &get, 0, counter, error);
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
    int rc = store_begin(store, error);
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
    int rc = store_next_row(store, &get, "reading a fence", error);
    if (rc == 1) {
        fence->counter = (uint64_t)sqlite3_column_int64(get.statement, 0);
        const void *id = sqlite3_column_blob(get.statement, 1);
        if (id != NULL && sqlite3_column_bytes(get.statement, 1) == AMPD_BOOT_ID_BYTES)
            memcpy(fence->boot_id, id, AMPD_BOOT_ID_BYTES);
    }
    (void)sqlite3_reset(get.statement); /* repeats the error of the step */
    return rc < 0 ? rc : 0;
}

int store_sqlite_put_fence(struct ampd_store *base, uint32_t shard, const struct ampd_fence *fence,
                           struct amp_error *error)
{
    struct sqlite_store *store = store_of(base);
    int rc = store_begin(store, error);
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
        rc = store_run_bound(store, &put, "storing a parameter", error);
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
    rc = store_run_bound(store, &put, "storing a model", error);
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
    rc = store_begin(store, error);
    if (rc == 0)
        rc = store_end(store, put_model(store, spec, json, at_us, error), error);
    free(json);
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
    rc = store_run_bound(store, &put, "storing an epoch", error);
    if (rc != 0)
        return rc;
    struct store_cursor rows = store_binder(store, STMT_ROWS_SUPERSEDE);
    store_bind_u64(&rows, (uint64_t)id);
    store_bind_u64(&rows, epoch->epoch);
    store_bind_u64(&rows, epoch->base_epoch == 0 ? 0 : epoch->base_step);
    rc = store_run_bound(store, &rows, "superseding rows", error);
    if (rc != 0)
        return rc;
    struct store_cursor files = store_binder(store, STMT_CHECKPOINTS_VOID);
    store_bind_u64(&files, (uint64_t)id);
    store_bind_u64(&files, epoch->base_step);
    store_bind_u64(&files, epoch->base_epoch);
    rc = store_run_bound(store, &files, "voiding checkpoints", error);
    return rc != 0 ? rc : store_put_row(store, id, 0, first, error);
}

int store_sqlite_put_epoch(struct ampd_store *base, const char *model, const struct ampd_epoch_record *epoch,
                           const struct ampd_step_row *first, struct amp_error *error)
{
    struct sqlite_store *store = store_of(base);
    int rc = store_begin(store, error);
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
    rc = store_run_bound(store, &drop, "storing a worker", error);
    if (rc != 0)
        return rc;
    struct store_cursor put = store_binder(store, STMT_WORKER_PUT);
    store_bind_u64(&put, (uint64_t)id);
    store_bind_u64(&put, worker->rank);
    store_bind_text(&put, worker->name);
    store_bind_u64(&put, worker->incarnation.fence);
    store_bind_u64(&put, worker->incarnation.counter);
    store_bind_u64(&put, worker->left);
    return store_run_bound(store, &put, "storing a worker", error);
}

int store_sqlite_put_worker(struct ampd_store *base, const char *model, const struct ampd_worker_record *worker,
                            struct amp_error *error)
{
    struct sqlite_store *store = store_of(base);
    int rc = store_begin_relaxed(store, error);
    return rc != 0 ? rc : store_end(store, put_worker(store, model, worker, error), error);
}

static void bind_parts(struct store_cursor *put, const struct ampd_checkpoint_record *checkpoint)
{
    store_bind_blob(put, checkpoint->parts, checkpoint->parts_count * sizeof checkpoint->parts[0]);
}

static int put_checkpoint(struct sqlite_store *store, const char *model,
                          const struct ampd_checkpoint_record *checkpoint, bool adopted, struct amp_error *error)
{
    int64_t id = 0;
    uint64_t epoch = 0;
    int rc = store_find_model(store, model, &id, &epoch, error);
    if (rc == 0 && (adopted ? checkpoint->epoch > epoch : checkpoint->epoch != epoch))
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
    bind_parts(&put, checkpoint);
    return store_run_bound(store, &put, "storing a checkpoint", error);
}

int store_sqlite_put_checkpoint(struct ampd_store *base, const char *model,
                                const struct ampd_checkpoint_record *checkpoint, bool adopted, struct amp_error *error)
{
    struct sqlite_store *store = store_of(base);
    int rc = store_begin(store, error);
    return rc != 0 ? rc : store_end(store, put_checkpoint(store, model, checkpoint, adopted, error), error);
}

static int put_parts(struct sqlite_store *store, const char *model, const struct ampd_checkpoint_record *checkpoint,
                     struct amp_error *error)
{
    int64_t id = 0;
    uint64_t newest = 0;
    int rc = store_find_model(store, model, &id, &newest, error);
    if (rc != 0)
        return rc;
    struct store_cursor put = store_binder(store, STMT_CHECKPOINT_PARTS);
    store_bind_u64(&put, (uint64_t)id);
    store_bind_u64(&put, checkpoint->epoch);
    store_bind_u64(&put, checkpoint->step);
    bind_parts(&put, checkpoint);
    rc = store_run_bound(store, &put, "storing the parts of a checkpoint", error);
    if (rc == 0 && sqlite3_changes(store->db) == 0)
        rc = ampd_store_no_checkpoint(error, checkpoint->epoch, checkpoint->step);
    return rc;
}

int store_sqlite_put_parts(struct ampd_store *base, const char *model, const struct ampd_checkpoint_record *checkpoint,
                           struct amp_error *error)
{
    struct sqlite_store *store = store_of(base);
    int rc = store_begin(store, error);
    return rc != 0 ? rc : store_end(store, put_parts(store, model, checkpoint, error), error);
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
    rc = store_run_bound(store, &drop, "dropping a checkpoint", error);
    if (rc == 0 && sqlite3_changes(store->db) == 0)
        rc = ampd_store_no_checkpoint(error, epoch, step);
    return rc;
}

int store_sqlite_drop_checkpoint(struct ampd_store *base, const char *model, uint64_t epoch, uint64_t step,
                                 struct amp_error *error)
{
    struct sqlite_store *store = store_of(base);
    int rc = store_begin(store, error);
    return rc != 0 ? rc : store_end(store, drop_checkpoint(store, model, epoch, step, error), error);
}
