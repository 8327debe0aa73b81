/*
 * The schema of the SQLite store, as the list of its migrations. Migration i takes a file from user_version i to i + 1.
 * A migration that was released is never edited: each change is a new one. 64-bit numbers are stored as SQLite's signed
 * integers: from 2^63 on, which no count but any hash may reach, they are negative (two's complement).
 */
#include "storage/sqlite/sqlite_schema.h"

#include "storage/sqlite/sqlite_transaction.h"

#include <stdio.h>

/* "ampd" in ASCII: marks a database as one of ampd (sqlite.org/pragma.html#pragma_application_id). */
#define APPLICATION_ID 0x616d7064

static const char *const migrations[] = {
    /* 0 -> 1: models, parameters, epochs, steps, overflows, workers, checkpoints, fences. */
    "CREATE TABLE fences(shard INTEGER PRIMARY KEY, counter INTEGER NOT NULL, boot_id BLOB NOT NULL);"
    "CREATE TABLE models(id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, spec TEXT NOT NULL,"
    "  created_us INTEGER NOT NULL);"
    "CREATE TABLE parameters(model_id INTEGER NOT NULL REFERENCES models(id), position INTEGER NOT NULL,"
    "  name TEXT NOT NULL, shape TEXT NOT NULL, group_index INTEGER NOT NULL,"
    "  PRIMARY KEY(model_id,position)) WITHOUT ROWID;"
    "CREATE TABLE epochs(model_id INTEGER NOT NULL REFERENCES models(id), epoch INTEGER NOT NULL,"
    "  parent INTEGER NOT NULL, base_epoch INTEGER NOT NULL, base_step INTEGER NOT NULL, reason TEXT NOT NULL,"
    "  at_us INTEGER NOT NULL, PRIMARY KEY(model_id,epoch)) WITHOUT ROWID;"
    "CREATE TABLE steps(model_id INTEGER NOT NULL REFERENCES models(id), epoch INTEGER NOT NULL,"
    "  step INTEGER NOT NULL, sequence INTEGER NOT NULL,"
    "  kind INTEGER NOT NULL, parent_epoch INTEGER NOT NULL, parent_step INTEGER NOT NULL,"
    "  verdict INTEGER NOT NULL, tries INTEGER NOT NULL, contributors_hash INTEGER NOT NULL,"
    "  contributors BLOB NOT NULL, scale REAL NOT NULL, scale_id INTEGER NOT NULL, after_scale REAL NOT NULL,"
    "  after_scale_id INTEGER NOT NULL, growth_tracker INTEGER NOT NULL, hysteresis_left INTEGER NOT NULL,"
    "  consecutive_overflows INTEGER NOT NULL, total_overflows INTEGER NOT NULL,"
    "  steps_since_overflow INTEGER NOT NULL, attempted INTEGER NOT NULL, applied INTEGER NOT NULL,"
    "  skipped INTEGER NOT NULL, coefficient REAL NOT NULL, norm REAL NOT NULL, clip REAL NOT NULL,"
    "  lr REAL NOT NULL, version INTEGER NOT NULL, overflow_params INTEGER NOT NULL, inf_total INTEGER NOT NULL,"
    "  nan_total INTEGER NOT NULL, rows_count INTEGER NOT NULL, durable_step INTEGER NOT NULL,"
    "  cut INTEGER NOT NULL, superseded INTEGER NOT NULL, at_us INTEGER NOT NULL,"
    "  PRIMARY KEY(model_id,epoch,step,sequence)) WITHOUT ROWID;"
    "CREATE TABLE overflows(model_id INTEGER NOT NULL REFERENCES models(id), epoch INTEGER NOT NULL,"
    "  step INTEGER NOT NULL, position INTEGER NOT NULL, parameter INTEGER NOT NULL, rank INTEGER NOT NULL,"
    "  inf_count INTEGER NOT NULL, nan_count INTEGER NOT NULL, first_index INTEGER NOT NULL,"
    "  largest REAL NOT NULL, PRIMARY KEY(model_id,epoch,step,position)) WITHOUT ROWID;"
    "CREATE TABLE workers(model_id INTEGER NOT NULL REFERENCES models(id), rank INTEGER NOT NULL,"
    "  name TEXT NOT NULL, fence INTEGER NOT NULL, counter INTEGER NOT NULL, has_left INTEGER NOT NULL,"
    "  PRIMARY KEY(model_id,rank)) WITHOUT ROWID;"
    "CREATE TABLE checkpoints(model_id INTEGER NOT NULL REFERENCES models(id), epoch INTEGER NOT NULL,"
    "  step INTEGER NOT NULL, version INTEGER NOT NULL, file TEXT NOT NULL, size_bytes INTEGER NOT NULL,"
    "  manifest BLOB NOT NULL, at_us INTEGER NOT NULL, void INTEGER NOT NULL,"
    "  PRIMARY KEY(model_id,epoch,step)) WITHOUT ROWID;",
    /*
     * 1 -> 2: the notes of operators' actions, the clip coefficient of each group, and models that are being deleted.
     */
    "ALTER TABLE steps ADD COLUMN from_step INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE steps ADD COLUMN actor TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE steps ADD COLUMN words TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE steps ADD COLUMN request_id TEXT NOT NULL DEFAULT '';"
    "ALTER TABLE steps ADD COLUMN clips BLOB NOT NULL DEFAULT x'';"
    "CREATE INDEX acts ON steps(model_id,epoch,step,sequence) WHERE request_id<>'';"
    "ALTER TABLE models ADD COLUMN deletion INTEGER NOT NULL DEFAULT 0;",
    /* 2 -> 3: the loss scale of a checkpoint, for older ones taken from the row of their step; 0: not known. */
    "ALTER TABLE checkpoints ADD COLUMN scale REAL NOT NULL DEFAULT 0;"
    "UPDATE checkpoints SET scale=ifnull((SELECT after_scale FROM steps WHERE steps.model_id=checkpoints.model_id"
    "  AND steps.epoch=checkpoints.epoch AND steps.step=checkpoints.step AND steps.sequence=0),0);",
    /* 3 -> 4: the manifests of all parts of a checkpoint, 16 bytes each; empty: not known. */
    "ALTER TABLE checkpoints ADD COLUMN parts BLOB NOT NULL DEFAULT x'';",
    /*
     * 4 -> 5: the loss and metrics that workers sent. SQLite stores NaN as NULL: with loss_workers > 0 a loss of NULL
     * is NaN. sqlite_rows.h has the format of metrics.
     */
    "ALTER TABLE steps ADD COLUMN loss REAL;"
    "ALTER TABLE steps ADD COLUMN loss_workers INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE steps ADD COLUMN metrics BLOB NOT NULL DEFAULT x'';",
    /* 5 -> 6: the times of a step (enum ampd_step_time); all 0: not known. */
    "ALTER TABLE steps ADD COLUMN apply_us INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE steps ADD COLUMN pull_us INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE steps ADD COLUMN wait_us INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE steps ADD COLUMN push_us INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE steps ADD COLUMN vote_us INTEGER NOT NULL DEFAULT 0;",
    /* 6 -> 7: the base learning rate after the row, if an operator has set one; 0: the specification's holds. */
    "ALTER TABLE steps ADD COLUMN after_lr REAL NOT NULL DEFAULT 0;",
    /* 7 -> 8: an index of the few rows that are not just an applied step with an unchanged scale. */
    "CREATE INDEX notable ON steps(model_id,epoch,step,sequence) WHERE kind<>1 OR verdict<>1 OR scale<>after_scale;",
};

#define MIGRATIONS_COUNT ((int)(sizeof migrations / sizeof *migrations))
_Static_assert(sizeof migrations / sizeof *migrations == AMPD_STORE_SCHEMA, "ampd --version tells the newest one");

static int read_pragma(struct sqlite_store *store, const char *sql, int *value, struct amp_error *error)
{
    sqlite3_stmt *statement = NULL;
    int rc = sqlite3_prepare_v2(store->db, sql, -1, &statement, NULL);
    if (rc == SQLITE_OK && (rc = sqlite3_step(statement)) == SQLITE_ROW) {
        *value = sqlite3_column_int(statement, 0);
        rc = SQLITE_OK;
    }
    int failed = rc == SQLITE_OK ? 0 : store_failure(store, rc, "reading the version", error);
    (void)sqlite3_finalize(statement); /* repeats the error of the step */
    return failed;
}

static int migrate_once(struct sqlite_store *store, int version, struct amp_error *error)
{
    char sql[96];
    int rc = store_begin(store, error);
    if (rc != 0)
        return rc;
    (void)snprintf(sql, sizeof sql, "PRAGMA application_id=%d; PRAGMA user_version=%d", APPLICATION_ID, version + 1);
    int done = sqlite3_exec(store->db, migrations[version], NULL, NULL, NULL);
    if (done == SQLITE_OK)
        done = sqlite3_exec(store->db, sql, NULL, NULL, NULL);
    if (done != SQLITE_OK)
        rc = store_failure(store, done, "migrating", error);
    return store_end(store, rc, error);
}

int store_migrate(struct sqlite_store *store, bool has_models, struct amp_error *error)
{
    int version = 0, application = 0, tables = 0;
    int rc = read_pragma(store, "PRAGMA user_version", &version, error);
    if (rc == 0)
        rc = read_pragma(store, "PRAGMA application_id", &application, error);
    if (rc == 0)
        rc = read_pragma(store, "SELECT count(*) FROM sqlite_schema", &tables, error);
    if (rc != 0)
        return rc;
    if (tables > 0 && application != APPLICATION_ID)
        return amp_error_set(error, AMP_EDATALOSS, "NOT_A_STORE", "%s is a database of another program", store->path);
    if (version < 0 || (version == 0 && has_models))
        return store_damaged(error, store->path, version < 0 ? "its schema is below 0" : "it has no tables");
    if (version > MIGRATIONS_COUNT)
        return amp_error_set(error, AMP_EVERSION, "STORE_NEWER",
                             "%s has schema %d, this ampd knows up to %d: use the newer ampd", store->path, version,
                             MIGRATIONS_COUNT);
    for (; rc == 0 && version < MIGRATIONS_COUNT; version++)
        rc = migrate_once(store, version, error);
    return rc;
}
