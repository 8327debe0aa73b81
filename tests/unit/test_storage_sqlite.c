/* What only the store on disk has: migrations, failing disks, fsyncs that count. */
#include "storage/datadir.h"
#include "storage/sqlite/sqlite_statements.h"
#include "storage/store.h"
#include "tests/unit/storage_faults.h"
#include "tests/unit/storage_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>

struct fixture {
    char directory[256];
};

static int setup(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    strcpy(fixture->directory, storage_fixture_directory());
    storage_faults_clear();
    *state = fixture;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;
    storage_faults_clear();
    storage_fixture_remove(fixture->directory);
    free(fixture);
    return 0;
}

/* ---- the file ---- */

static void run_sql(const char *directory, const char *sql)
{
    char path[600];
    sqlite3 *db;
    (void)snprintf(path, sizeof path, "%s/ampd.db", directory);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    assert_int_equal(sqlite3_exec(db, sql, NULL, NULL, NULL), SQLITE_OK);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static void a_store_of_a_newer_schema_is_refused(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_store *store;
    struct amp_error error;
    assert_int_equal(ampd_store_sqlite_open(fixture->directory, &store, NULL), 0);
    ampd_store_close(store);
    run_sql(fixture->directory, "PRAGMA user_version=999");
    assert_int_equal(ampd_store_sqlite_open(fixture->directory, &store, &error), AMP_EVERSION);
    assert_non_null(strstr(error.text, "schema 999"));
    assert_null(store);
}

static void a_database_whose_version_is_below_0_is_told_as_damaged(void **state)
{
    struct fixture *fixture = *state;
    static const char *const damages[] = {"PRAGMA user_version=-1", "PRAGMA user_version=-2147483648"};
    struct ampd_store *store;
    struct amp_error error;
    assert_int_equal(ampd_store_sqlite_open(fixture->directory, &store, NULL), 0);
    ampd_store_close(store);
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        run_sql(fixture->directory, damages[i]);
        assert_int_equal(ampd_store_sqlite_open(fixture->directory, &store, &error), AMP_EDATALOSS);
        assert_non_null(strstr(error.text, "is damaged"));
        assert_null(store);
    }
}

static void a_database_of_another_program_is_refused(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_store *store;
    struct amp_error error;
    run_sql(fixture->directory, "CREATE TABLE t(x)");
    assert_int_equal(ampd_store_sqlite_open(fixture->directory, &store, &error), AMP_EDATALOSS);
    storage_fixture_write(fixture->directory, "ampd.db",
                          "this is no database, but a text of more than a hundred bytes, as the "
                          "header of a real one would have at its beginning.............");
    assert_int_not_equal(ampd_store_sqlite_open(fixture->directory, &store, &error), 0);
    assert_null(store);
}

static void the_file_is_private(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_store *store;
    struct stat info;
    char path[600];
    assert_int_equal(ampd_store_sqlite_open(fixture->directory, &store, NULL), 0);
    (void)snprintf(path, sizeof path, "%s/ampd.db", fixture->directory);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    ampd_store_close(store);
}

/* ---- durability ---- */

/* An open store with model "m" in epoch 1. */
static struct ampd_store *open_with_model(const struct fixture *fixture)
{
    struct ampd_store *store;
    struct ampd_model_spec spec = storage_fixture_spec("m");
    struct ampd_epoch_record epoch = storage_fixture_epoch(1, 0, 0);
    struct ampd_step_row row = storage_fixture_first_row(&epoch);
    assert_int_equal(ampd_store_sqlite_open(fixture->directory, &store, NULL), 0);
    assert_int_equal(ampd_store_put_model(store, &spec, 0, NULL), 0);
    assert_int_equal(ampd_store_put_epoch(store, "m", &epoch, &row, NULL), 0);
    ampd_model_spec_clear(&spec);
    storage_faults_clear();
    return store;
}

static int put_step(struct ampd_store *store, uint64_t step, bool full, struct amp_error *error)
{
    struct ampd_step_row row = storage_fixture_step(1, step, true);
    return ampd_store_put_verdict(store, "m", &row, full, error);
}

static uint64_t last_step(struct ampd_store *store)
{
    struct ampd_model_record *records;
    size_t count;
    assert_int_equal(ampd_store_load(store, &records, &count, NULL), 0);
    uint64_t step = records[0].last->step;
    ampd_model_records_free(records, count);
    return step;
}

static void only_calls_marked_full_wait_for_the_disk(void **state)
{
    struct ampd_store *store = open_with_model(*state);
    assert_int_equal(put_step(store, 1, false, NULL), 0);
    assert_int_equal(put_step(store, 2, false, NULL), 0);
    assert_int_equal(storage_faults.fsyncs, 0);
    assert_int_equal(put_step(store, 3, true, NULL), 0);
    assert_int_equal(storage_faults.fsyncs, 1);
    struct ampd_checkpoint_record checkpoint = {.epoch = 1, .step = 3, .file = "x"};
    assert_int_equal(ampd_store_put_checkpoint(store, "m", &checkpoint, NULL), 0);
    assert_int_equal(storage_faults.fsyncs, 2);
    assert_int_equal(put_step(store, 4, false, NULL), 0);
    assert_int_equal(storage_faults.fsyncs, 2);
    ampd_store_close(store);
}

static void a_failed_fsync_is_final(void **state)
{
    struct ampd_store *store = open_with_model(*state);
    struct amp_error error;
    storage_faults.fail_fsync_at = 1;
    assert_int_equal(put_step(store, 1, true, &error), AMP_EIO);
    assert_string_equal(error.reason, "STORE_FAILED");
    storage_faults_clear();
    assert_int_equal(put_step(store, 1, false, &error), AMP_EIO);
    assert_string_equal(error.reason, "STORE_FAILED");
    ampd_store_close(store);
}

static void a_failed_fsync_of_the_logs_checkpoint_is_final_too(void **state)
{
    struct ampd_store *store = open_with_model(*state);
    storage_faults.fail_fsync_at = 1;
    int rc = 0;
    uint64_t step = 0;
    while (rc == 0 && step < 100000) /* NORMAL: the first fsync is that of the log's checkpoint */
        rc = put_step(store, ++step, false, NULL);
    assert_int_equal(rc, AMP_EIO);
    assert_int_equal(storage_faults.fsyncs, 1);
    storage_faults_clear();
    assert_int_equal(put_step(store, step + 1, false, NULL), AMP_EIO);
    ampd_store_close(store);
}

static void what_failed_first_is_told_ever_after(void **state)
{
    struct ampd_store *store = open_with_model(*state);
    struct amp_error error;
    storage_faults.fail_fsync_at = 1;
    assert_int_equal(put_step(store, 1, true, NULL), AMP_EIO); /* nobody has asked why */
    storage_faults_clear();
    assert_int_equal(put_step(store, 1, true, &error), AMP_EIO);
    assert_string_equal(error.reason, "STORE_FAILED");
    assert_non_null(strstr(error.text, "nothing more is stored"));
    assert_non_null(strstr(error.text, "disk I/O error"));
    ampd_store_close(store);
}

static void a_full_disk_stores_nothing_and_can_be_tried_again(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_store *store = open_with_model(fixture);
    struct amp_error error;
    assert_int_equal(put_step(store, 1, false, NULL), 0);
    unsigned refused = 0;
    for (unsigned at = 1; at < 100; at++) {
        storage_faults_clear();
        storage_faults.fail_write_at = at;
        storage_faults.write_errno = ENOSPC;
        int rc = put_step(store, 2, true, &error);
        if (rc == 0)
            break;
        assert_int_equal(rc, AMP_EEXHAUSTED);
        assert_string_equal(error.reason, "NO_SPACE");
        storage_faults_clear();
        assert_int_equal(last_step(store), 1);
        refused++;
    }
    assert_true(refused > 0);
    storage_faults_clear();
    assert_int_equal(last_step(store), 2);
    ampd_store_close(store);
    assert_int_equal(ampd_store_sqlite_open(fixture->directory, &store, NULL), 0);
    assert_int_equal(last_step(store), 2);
    ampd_store_close(store);
}

/* A reader keeps the log from beginning anew, so that it grows beyond the first page of its index (ampd.db-shm). */
static void a_full_disk_without_room_for_the_index_of_the_log_is_waited_for(void **state)
{
    enum { FRAME = 4096 + 24, FRAMES_OF_PAGE = 4062, NEAR = 20, INDEX_PAGE = 32768 };
    struct fixture *fixture = *state;
    struct ampd_store *store = open_with_model(fixture);
    struct amp_error error = {0};
    struct stat log, index;
    char path[600];
    sqlite3 *reader = NULL;
    (void)snprintf(path, sizeof path, "%s/ampd.db", fixture->directory);
    assert_int_equal(sqlite3_open(path, &reader), SQLITE_OK);
    assert_int_equal(sqlite3_exec(reader, "BEGIN; SELECT count(*) FROM models", NULL, NULL, NULL), SQLITE_OK);
    uint64_t step = 0;
    do {
        assert_int_equal(put_step(store, ++step, false, NULL), 0);
        assert_int_equal(stat(storage_fixture_below(fixture->directory, "ampd.db-wal"), &log), 0);
    } while (log.st_size < (FRAMES_OF_PAGE - NEAR) * (off_t)FRAME);
    do {
        int rc = -1;
        step++;
        for (unsigned at = 1; rc != 0; at++) {
            storage_faults_clear();
            storage_faults.fail_write_at = at;
            storage_faults.write_errno = ENOSPC;
            rc = put_step(store, step, true, &error);
            if (rc != 0 && rc != AMP_EEXHAUSTED)
                fail_msg("step %d, write %u: %s", (int)step, at, error.text);
        }
        storage_faults_clear();
        assert_int_equal(last_step(store), step);
        assert_int_equal(stat(storage_fixture_below(fixture->directory, "ampd.db-shm"), &index), 0);
    } while (index.st_size == INDEX_PAGE);
    assert_int_equal(sqlite3_close(reader), SQLITE_OK);
    ampd_store_close(store);
}

/* Stores verdicts until the log is long. Returns the steps. */
static uint64_t lengthen_log(struct ampd_store *store, uint64_t step)
{
    while (!ampd_store_log_is_long(store))
        assert_int_equal(put_step(store, ++step, false, NULL), 0);
    return step;
}

static off_t database_size(const struct fixture *fixture)
{
    struct stat database;
    assert_int_equal(stat(storage_fixture_below(fixture->directory, "ampd.db"), &database), 0);
    return database.st_size;
}

static void a_long_log_is_moved_when_the_caller_has_time_and_no_commit_waits_for_it(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_store *store = open_with_model(fixture);
    off_t before = database_size(fixture);
    uint64_t step = lengthen_log(store, 0);
    assert_int_equal(database_size(fixture), before);
    assert_int_equal(ampd_store_move_log(store, NULL), 0);
    assert_true(database_size(fixture) > before);
    assert_int_equal(put_step(store, ++step, false, NULL), 0); /* the log begins anew */
    assert_false(ampd_store_log_is_long(store));
    ampd_store_close(store);
}

static void a_log_that_nobody_moves_is_moved_by_a_commit(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_store *store = open_with_model(fixture);
    off_t before = database_size(fixture);
    uint64_t long_at = lengthen_log(store, 0), step = long_at;
    while (database_size(fixture) == before && step < 3 * long_at)
        assert_int_equal(put_step(store, ++step, false, NULL), 0);
    assert_true(step > 2 * long_at - long_at / 4 && step < 2 * long_at + long_at / 4);
    ampd_store_close(store);
}

static void a_move_of_the_log_that_is_not_synced_fails_the_store_and_a_full_disk_does_not(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_store *store = open_with_model(fixture);
    struct amp_error error = {0};
    uint64_t step = lengthen_log(store, 0);
    storage_faults_clear();
    storage_faults.fail_write_at = 1;
    storage_faults.write_errno = ENOSPC;
    assert_int_equal(ampd_store_move_log(store, &error), 0);
    storage_faults_clear();
    step = lengthen_log(store, step);
    storage_faults.fail_fsync_at = 1;
    assert_int_equal(ampd_store_move_log(store, &error), AMP_EIO);
    storage_faults_clear();
    assert_int_equal(put_step(store, step + 1, false, &error), AMP_EIO);
    assert_string_equal(error.reason, "STORE_FAILED");
    ampd_store_close(store);
}

static void without_descriptors_a_reader_is_opened_later(void **state)
{
    struct ampd_store *store = open_with_model(*state), *reader;
    struct amp_error error;
    storage_fixture_no_descriptors(true);
    int rc = ampd_store_open_reader(store, &reader, &error);
    storage_fixture_no_descriptors(false);
    assert_int_equal(rc, AMP_EEXHAUSTED);
    assert_string_equal(error.reason, "NO_DESCRIPTORS");
    assert_int_equal(ampd_store_open_reader(store, &reader, NULL), 0);
    ampd_store_close(reader);
    ampd_store_close(store);
}

static void a_killed_process_leaves_every_stored_step(void **state)
{
    struct fixture *fixture = *state;
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct ampd_store *store = open_with_model(fixture);
        for (uint64_t step = 1; step <= 50; step++)
            if (put_step(store, step, false, NULL) != 0)
                _exit(1);
        _exit(0); /* nothing is closed or flushed */
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    struct ampd_store *store;
    assert_int_equal(ampd_store_sqlite_open(fixture->directory, &store, NULL), 0);
    assert_int_equal(last_step(store), 50);
    ampd_store_close(store);
}

/* What schema 7 has brought; what schema 6 has, and those after it. */
#define DROP_SCHEMA_7 "DROP INDEX notable; ALTER TABLE steps DROP COLUMN after_lr;"
#define DROP_SCHEMA_6                                                                                                  \
    DROP_SCHEMA_7                                                                                                      \
    "ALTER TABLE steps DROP COLUMN apply_us; ALTER TABLE steps DROP COLUMN pull_us;"                                   \
    "ALTER TABLE steps DROP COLUMN wait_us; ALTER TABLE steps DROP COLUMN push_us;"                                    \
    "ALTER TABLE steps DROP COLUMN vote_us;"

/* What the first schema had: the store that ampd 0.1.0 left behind is taken up. */
static void a_store_of_the_first_schema_is_migrated(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_store *store = open_with_model(fixture);
    struct ampd_model_record *records;
    size_t count;
    ampd_store_close(store);
    run_sql(fixture->directory,
            "DROP INDEX acts; ALTER TABLE models DROP COLUMN deletion;"
            "ALTER TABLE steps DROP COLUMN from_step; ALTER TABLE steps DROP COLUMN actor;"
            "ALTER TABLE steps DROP COLUMN words; ALTER TABLE steps DROP COLUMN request_id;"
            "ALTER TABLE steps DROP COLUMN clips; ALTER TABLE checkpoints DROP COLUMN scale;"
            "ALTER TABLE checkpoints DROP COLUMN parts; ALTER TABLE steps DROP COLUMN loss;"
            "ALTER TABLE steps DROP COLUMN loss_workers; ALTER TABLE steps DROP COLUMN metrics;" DROP_SCHEMA_6
            "UPDATE models SET spec=json_remove(spec,'$.clip_scope','$.keep_every','$.groups[0].clip_max_norm',"
            "'$.groups[1].clip_max_norm'); PRAGMA user_version=1");
    assert_int_equal(ampd_store_sqlite_open(fixture->directory, &store, NULL), 0);
    assert_int_equal(ampd_store_load(store, &records, &count, NULL), 0);
    assert_int_equal(count, 1);
    assert_int_equal(records[0].spec.clip_scope, AMPD_CLIP_GLOBAL);
    assert_true(records[0].spec.groups[1].clip_max_norm == 0);
    assert_int_equal(records[0].acts_count, 0);
    assert_int_equal(records[0].last->clips_count, 0);
    ampd_model_records_free(records, count);
    ampd_store_close(store);
}

/* SQLite has no NaN. */
static void a_loss_that_is_not_finite_comes_back_as_it_is_and_so_does_none(void **state)
{
    struct fixture *fixture = *state;
    const float losses[] = {NAN, INFINITY, -INFINITY, 0x1p-149f, 0};
    enum { COUNT = sizeof losses / sizeof losses[0] };
    for (uint64_t step = 1; step <= COUNT; step++) {
        struct ampd_store *store;
        if (step == 1)
            store = open_with_model(fixture);
        else
            assert_int_equal(ampd_store_sqlite_open(fixture->directory, &store, NULL), 0);
        struct ampd_step_row row = storage_fixture_step(1, step, false);
        row.metrics.loss = losses[step - 1];
        row.metrics.loss_workers = step < COUNT ? 1 : 0; /* the last: nobody has told one */
        row.metrics.items[0].value = losses[step - 1];
        assert_int_equal(ampd_store_put_verdict(store, "m", &row, true, NULL), 0);
        ampd_store_close(store);
        struct ampd_model_record *records;
        size_t count;
        assert_int_equal(ampd_store_sqlite_open(fixture->directory, &store, NULL), 0);
        assert_int_equal(ampd_store_load(store, &records, &count, NULL), 0);
        assert_memory_equal(&row.metrics, &records[0].last->metrics, sizeof row.metrics);
        ampd_model_records_free(records, count);
        ampd_store_close(store);
    }
}

/* What a store of ampd with schema 4 has: its steps have no loss, those that come have. */
static void a_store_from_before_the_loss_is_migrated(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_store *store = open_with_model(fixture);
    struct ampd_model_record *records;
    size_t count;
    assert_int_equal(put_step(store, 1, false, NULL), 0);
    ampd_store_close(store);
    run_sql(fixture->directory, "ALTER TABLE steps DROP COLUMN loss; ALTER TABLE steps DROP COLUMN loss_workers;"
                                "ALTER TABLE steps DROP COLUMN metrics;" DROP_SCHEMA_6 "PRAGMA user_version=4");
    for (uint64_t step = 1; step <= 2; step++) {
        assert_int_equal(ampd_store_sqlite_open(fixture->directory, &store, NULL), 0);
        assert_int_equal(ampd_store_load(store, &records, &count, NULL), 0);
        assert_int_equal(records[0].last->step, step);
        assert_int_equal(records[0].last->tries, 3);
        assert_int_equal(records[0].last->metrics.loss_workers, step == 1 ? 0 : 2);
        assert_true(records[0].last->metrics.loss == (step == 1 ? 0 : 0.1f));
        assert_int_equal(records[0].last->metrics.count, step == 1 ? 0 : 2);
        ampd_model_records_free(records, count);
        if (step == 1)
            assert_int_equal(put_step(store, 2, false, NULL), 0);
        ampd_store_close(store);
    }
}

/* What a store of ampd with schema 6 has: nobody has set a learning rate. */
static void a_store_from_before_a_rate_could_be_set_is_migrated(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_store *store = open_with_model(fixture);
    struct ampd_model_record *records;
    size_t count;
    assert_int_equal(put_step(store, 1, false, NULL), 0);
    ampd_store_close(store);
    run_sql(fixture->directory, DROP_SCHEMA_7 "PRAGMA user_version=6");
    for (uint64_t step = 1; step <= 2; step++) {
        const struct ampd_step_row wanted = storage_fixture_step(1, step, false);
        assert_int_equal(ampd_store_sqlite_open(fixture->directory, &store, NULL), 0);
        assert_int_equal(ampd_store_load(store, &records, &count, NULL), 0);
        assert_int_equal(records[0].last->step, step);
        assert_memory_equal(records[0].last->times_us, wanted.times_us, sizeof wanted.times_us);
        assert_true(records[0].last->after.lr == (step == 1 ? 0 : wanted.after.lr));
        ampd_model_records_free(records, count);
        if (step == 1)
            assert_int_equal(put_step(store, 2, false, NULL), 0);
        ampd_store_close(store);
    }
}

/* What a store of ampd with schema 5 has: of its steps it is not known where their time went. */
static void a_store_from_before_the_times_of_a_step_is_migrated(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_store *store = open_with_model(fixture);
    struct ampd_model_record *records;
    size_t count;
    assert_int_equal(put_step(store, 1, false, NULL), 0);
    ampd_store_close(store);
    run_sql(fixture->directory, DROP_SCHEMA_6 "PRAGMA user_version=5");
    for (uint64_t step = 1; step <= 2; step++) {
        const struct ampd_step_row wanted = storage_fixture_step(1, step, false);
        const uint64_t unknown[AMPD_STEP_TIMES] = {0};
        assert_int_equal(ampd_store_sqlite_open(fixture->directory, &store, NULL), 0);
        assert_int_equal(ampd_store_load(store, &records, &count, NULL), 0);
        assert_int_equal(records[0].last->step, step);
        assert_int_equal(records[0].last->metrics.loss_workers, 2);
        assert_memory_equal(records[0].last->times_us, step == 1 ? unknown : wanted.times_us, sizeof unknown);
        ampd_model_records_free(records, count);
        if (step == 1)
            assert_int_equal(put_step(store, 2, false, NULL), 0);
        ampd_store_close(store);
    }
}

static void metrics_that_are_damaged_are_reported_and_not_believed(void **state)
{
    struct fixture *fixture = *state;
    static const char *const damages[] = {"x'00'", "x'0000000001000000' || x'21' || zeroblob(33)",
                                          "x'0000000001000000' || x'05' || x'414243'", "zeroblob(81)"};
    struct ampd_store *store = open_with_model(fixture);
    assert_int_equal(put_step(store, 1, false, NULL), 0);
    ampd_store_close(store);
    for (size_t i = 0; i < sizeof damages / sizeof *damages; i++) {
        struct ampd_model_record *records;
        struct amp_error error;
        size_t count;
        char sql[128];
        (void)snprintf(sql, sizeof sql, "UPDATE steps SET metrics=CAST(%s AS BLOB)", damages[i]);
        run_sql(fixture->directory, sql);
        assert_int_equal(ampd_store_sqlite_open(fixture->directory, &store, NULL), 0);
        assert_int_equal(ampd_store_load(store, &records, &count, &error), AMP_EDATALOSS);
        ampd_store_close(store);
    }
}

/* Appends what SQLite's planner makes of a statement. */
static void add_plan(sqlite3 *db, enum store_statement statement, char *plan, size_t size)
{
    char sql[4096];
    sqlite3_stmt *rows = NULL;
    assert_true(snprintf(sql, sizeof sql, "EXPLAIN QUERY PLAN %s", store_sql(statement)) < (int)sizeof sql);
    if (sqlite3_prepare_v2(db, sql, -1, &rows, NULL) != SQLITE_OK)
        fail_msg("%s: %s", sql, sqlite3_errmsg(db));
    while (sqlite3_step(rows) == SQLITE_ROW)
        (void)snprintf(plan + strlen(plan), size - strlen(plan), "%s\n", (const char *)sqlite3_column_text(rows, 3));
    (void)sqlite3_finalize(rows);
}

static void a_page_of_history_looks_at_no_step_before_or_behind_it(void **state)
{
    struct fixture *fixture = *state;
    static const enum store_statement pages[] = {STMT_HISTORY_UP,   STMT_HISTORY_DOWN,   STMT_POINTS,
                                                 STMT_OVERFLOWS_UP, STMT_OVERFLOWS_DOWN, STMT_NOTABLE_UP,
                                                 STMT_NOTABLE_DOWN};
    static const enum store_statement epochs[] = {STMT_EPOCHS_UP, STMT_EPOCHS_DOWN};
    char path[600], plan[4096];
    sqlite3 *db = NULL;
    ampd_store_close(open_with_model(fixture));
    (void)snprintf(path, sizeof path, "%s/ampd.db", fixture->directory);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    for (size_t i = 0; i < sizeof pages / sizeof *pages; i++) {
        plan[0] = 0;
        add_plan(db, pages[i], plan, sizeof plan);
        bool notable = pages[i] == STMT_NOTABLE_UP || pages[i] == STMT_NOTABLE_DOWN;
        if (strstr(plan, "(model_id=? AND epoch=? AND step>? AND step<?)") == NULL || strstr(plan, "TEMP") != NULL ||
            strstr(plan, notable ? "INDEX notable" : "PRIMARY KEY") == NULL)
            fail_msg("%s\n%s", store_sql(pages[i]), plan);
    }
    for (size_t i = 0; i < sizeof epochs / sizeof *epochs; i++) {
        plan[0] = 0;
        add_plan(db, epochs[i], plan, sizeof plan);
        if (strstr(plan, "SCAN steps") != NULL || strstr(plan, "PRIMARY KEY (model_id=? AND epoch") == NULL)
            fail_msg("%s\n%s", store_sql(epochs[i]), plan);
    }
    (void)sqlite3_close(db);
}

static void a_new_epoch_and_a_start_read_no_row_that_they_do_not_need(void **state)
{
    struct fixture *fixture = *state;
    char path[600], plan[4096] = "";
    sqlite3 *db = NULL;
    ampd_store_close(open_with_model(fixture));
    (void)snprintf(path, sizeof path, "%s/ampd.db", fixture->directory);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    add_plan(db, STMT_ROWS_SUPERSEDE, plan, sizeof plan);
    if (strstr(plan, "(model_id=? AND epoch=? AND (step,sequence)>(?,?))") == NULL)
        fail_msg("%s", plan);
    plan[0] = 0;
    add_plan(db, STMT_ACTS_LIST, plan, sizeof plan);
    if (strstr(plan, "INDEX acts (model_id=?)") == NULL || strstr(plan, "TEMP") != NULL)
        fail_msg("%s", plan);
    (void)sqlite3_close(db);
}

/* A copy of what is changed would need megabytes of memory, or a file, which cannot be opened. */
static void a_rollback_over_many_steps_keeps_no_copy_of_them(void **state)
{
    enum { STEPS = 10000, TOGETHER = 100, MEMORY = 1 << 20 };
    struct ampd_store *store = open_with_model(*state);
    struct ampd_step_row *rows = calloc(TOGETHER, sizeof *rows);
    struct ampd_verdict_put puts[TOGETHER];
    uint32_t stored;
    for (uint64_t first = 1; first <= STEPS; first += TOGETHER) {
        for (uint64_t i = 0; i < TOGETHER; i++) {
            rows[i] = storage_fixture_step(1, first + i, false);
            puts[i] = (struct ampd_verdict_put){"m", &rows[i]};
        }
        assert_int_equal(ampd_store_put_verdicts(store, puts, TOGETHER, false, &stored, NULL), 0);
    }
    free(rows);
    struct ampd_epoch_record epoch = storage_fixture_epoch(2, 1, 1);
    struct ampd_step_row row = storage_fixture_first_row(&epoch);
    int64_t before = sqlite3_memory_used();
    (void)sqlite3_memory_highwater(1);
    storage_fixture_no_descriptors(true);
    int rc = ampd_store_put_epoch(store, "m", &epoch, &row, NULL);
    storage_fixture_no_descriptors(false);
    assert_int_equal(rc, 0);
    assert_in_range(sqlite3_memory_highwater(0) - before, 0, MEMORY);
    ampd_store_close(store);
}

static void models_are_counted_as_they_are_loaded(void **state)
{
    struct ampd_store *store = open_with_model(*state), *memory;
    struct ampd_model_spec specs[] = {storage_fixture_spec("n"), storage_fixture_spec("o")};
    size_t count = 9, loaded;
    struct ampd_model_record *records;
    assert_int_equal(ampd_store_memory_open(&memory, NULL), 0);
    assert_int_equal(ampd_store_count_models(memory, &count, NULL), 0);
    assert_int_equal(count, 0);
    for (size_t i = 0; i < 2; i++) {
        assert_int_equal(ampd_store_put_model(memory, &specs[i], 0, NULL), 0);
        assert_int_equal(ampd_store_put_model(store, &specs[i], 0, NULL), 0);
        ampd_model_spec_clear(&specs[i]);
    }
    assert_int_equal(ampd_store_mark_deleting(store, "n", NULL), 0); /* goes on being one until it is deleted */
    assert_int_equal(ampd_store_delete_model(store, "o", NULL), 0);
    assert_int_equal(ampd_store_delete_model(memory, "o", NULL), 0);
    assert_int_equal(ampd_store_count_models(memory, &count, NULL), 0);
    assert_int_equal(count, 1);
    assert_int_equal(ampd_store_count_models(store, &count, NULL), 0);
    assert_int_equal(ampd_store_load(store, &records, &loaded, NULL), 0);
    assert_int_equal(loaded, 2);
    assert_int_equal(count, loaded);
    ampd_model_records_free(records, loaded);
    ampd_store_close(memory);
    ampd_store_close(store);
}

static void a_damaged_row_is_reported_and_not_believed(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_store *store = open_with_model(fixture);
    struct amp_error error;
    struct ampd_model_record *records;
    size_t count;
    ampd_store_close(store);
    run_sql(fixture->directory, "UPDATE models SET spec=replace(spec,'\"lr\":','\"lr\":\"x\",\"old\":')");
    assert_int_equal(ampd_store_sqlite_open(fixture->directory, &store, NULL), 0);
    assert_int_equal(ampd_store_load(store, &records, &count, &error), AMP_EDATALOSS);
    assert_null(records);
    ampd_store_close(store);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_store_of_a_newer_schema_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(a_store_of_the_first_schema_is_migrated, setup, teardown),
        cmocka_unit_test_setup_teardown(a_store_from_before_a_rate_could_be_set_is_migrated, setup, teardown),
        cmocka_unit_test_setup_teardown(a_loss_that_is_not_finite_comes_back_as_it_is_and_so_does_none, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_store_from_before_the_loss_is_migrated, setup, teardown),
        cmocka_unit_test_setup_teardown(a_store_from_before_the_times_of_a_step_is_migrated, setup, teardown),
        cmocka_unit_test_setup_teardown(metrics_that_are_damaged_are_reported_and_not_believed, setup, teardown),
        cmocka_unit_test_setup_teardown(a_database_whose_version_is_below_0_is_told_as_damaged, setup, teardown),
        cmocka_unit_test_setup_teardown(a_database_of_another_program_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(the_file_is_private, setup, teardown),
        cmocka_unit_test_setup_teardown(only_calls_marked_full_wait_for_the_disk, setup, teardown),
        cmocka_unit_test_setup_teardown(a_failed_fsync_is_final, setup, teardown),
        cmocka_unit_test_setup_teardown(a_failed_fsync_of_the_logs_checkpoint_is_final_too, setup, teardown),
        cmocka_unit_test_setup_teardown(what_failed_first_is_told_ever_after, setup, teardown),
        cmocka_unit_test_setup_teardown(a_full_disk_stores_nothing_and_can_be_tried_again, setup, teardown),
        cmocka_unit_test_setup_teardown(a_full_disk_without_room_for_the_index_of_the_log_is_waited_for, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_long_log_is_moved_when_the_caller_has_time_and_no_commit_waits_for_it, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_log_that_nobody_moves_is_moved_by_a_commit, setup, teardown),
        cmocka_unit_test_setup_teardown(a_move_of_the_log_that_is_not_synced_fails_the_store_and_a_full_disk_does_not,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(without_descriptors_a_reader_is_opened_later, setup, teardown),
        cmocka_unit_test_setup_teardown(a_killed_process_leaves_every_stored_step, setup, teardown),
        cmocka_unit_test_setup_teardown(a_page_of_history_looks_at_no_step_before_or_behind_it, setup, teardown),
        cmocka_unit_test_setup_teardown(a_new_epoch_and_a_start_read_no_row_that_they_do_not_need, setup, teardown),
        cmocka_unit_test_setup_teardown(a_rollback_over_many_steps_keeps_no_copy_of_them, setup, teardown),
        cmocka_unit_test_setup_teardown(models_are_counted_as_they_are_loaded, setup, teardown),
        cmocka_unit_test_setup_teardown(a_damaged_row_is_reported_and_not_believed, setup, teardown),
    };
    return cmocka_run_group_tests_name("storage_sqlite", tests, NULL, NULL);
}
