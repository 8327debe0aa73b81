/* The SQLite store while memory is out and the disk fails, at each allocation and call of each of its transactions. */
#include "storage/store.h"
#include "tests/faults/scenario.h"
#include "tests/unit/storage_fixture.h"

#include <setjmp.h>
#include <sqlite3.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#define PATH_MAX_BYTES 400

/* A closed store with everything that one can hold; each run works on a copy. */
static char template_dir[256];

static char dir[256];
static struct ampd_store *store;
static struct text seen; /* what a reading act was given */
static struct ampd_model_spec spec;

/* ---- the world ---- */

static void must(int rc)
{
    assert_int_equal(rc, 0);
}

static struct ampd_step_row act_row(uint64_t step)
{
    struct ampd_step_row row = storage_fixture_step(1, step, false);
    row.kind = AMPD_ROW_SET;
    row.contributors_count = 0;
    row.from_step = step + 1;
    (void)snprintf(row.note.request_id, sizeof row.note.request_id, "request-%d", (int)step);
    (void)snprintf(row.note.actor, sizeof row.note.actor, "operator");
    return row;
}

static struct ampd_checkpoint_record checkpoint_of(uint64_t step)
{
    struct ampd_checkpoint_record record = {.epoch = 1, .step = step, .version = step, .scale = 2, .size_bytes = 7};
    (void)snprintf(record.file, sizeof record.file, "models/m/checkpoints/step-%010d/shard-0-of-1.safetensors",
                   (int)step);
    record.manifest[3] = (uint8_t)step;
    return record;
}

static void put_model(struct ampd_store *to, const char *name)
{
    struct ampd_model_spec named = storage_fixture_spec(name);
    named.durability = AMPD_DURABILITY_STEP; /* its rows are loaded too */
    must(ampd_store_put_model(to, &named, 99, NULL));
    struct ampd_epoch_record epoch = storage_fixture_epoch(1, 0, 0);
    struct ampd_step_row first = storage_fixture_first_row(&epoch);
    must(ampd_store_put_epoch(to, name, &epoch, &first, NULL));
    for (uint64_t step = 1; step <= 5; step++) {
        struct ampd_step_row row = storage_fixture_step(1, step, step % 2 == 0);
        must(ampd_store_put_verdict(to, name, &row, false, NULL));
    }
    struct ampd_step_row act = act_row(5);
    must(ampd_store_put_verdict(to, name, &act, true, NULL));
    struct ampd_worker_record worker = {.name = "w", .rank = 1, .incarnation = {4, 17}};
    must(ampd_store_put_worker(to, name, &worker, NULL));
    struct ampd_checkpoint_record checkpoint = checkpoint_of(2);
    must(ampd_store_put_checkpoint(to, name, &checkpoint, NULL));
    ampd_model_spec_clear(&named);
}

static int make_template(void **state)
{
    struct ampd_store *made;
    struct ampd_fence fence;
    const uint8_t boot_id[AMPD_BOOT_ID_BYTES] = "0123456789abcde";
    (void)snprintf(template_dir, sizeof template_dir, "%s", storage_fixture_directory());
    must(ampd_store_sqlite_open(template_dir, &made, NULL));
    must(ampd_store_boot(made, 0, boot_id, &fence, NULL));
    put_model(made, "m");
    put_model(made, "gone");
    put_model(made, "goner");
    must(ampd_store_delete_model(made, "gone", NULL));
    ampd_store_close(made);
    spec = storage_fixture_spec("new");
    return 0;
}

static int remove_template(void **state)
{
    ampd_model_spec_clear(&spec);
    storage_fixture_remove(template_dir);
    return 0;
}

static void copy(const char *from_dir, const char *to_dir, const char *name)
{
    static char bytes[1 << 20];
    char path[PATH_MAX_BYTES];
    (void)snprintf(path, sizeof path, "%s/%s", from_dir, name);
    FILE *from = fopen(path, "rb");
    assert_non_null(from);
    size_t size = fread(bytes, 1, sizeof bytes, from);
    assert_true(size < sizeof bytes);
    (void)fclose(from);
    (void)snprintf(path, sizeof path, "%s/%s", to_dir, name);
    FILE *to = fopen(path, "wb");
    assert_non_null(to);
    assert_int_equal(fwrite(bytes, 1, size, to), size);
    assert_int_equal(fclose(to), 0);
}

static void before_empty(void)
{
    (void)snprintf(dir, sizeof dir, "%s", storage_fixture_directory());
    store = NULL;
}

static void before_closed(void)
{
    before_empty();
    copy(template_dir, dir, "ampd.db");
}

static void before(void)
{
    before_closed();
    must(ampd_store_sqlite_open(dir, &store, NULL));
}

static void after(void)
{
    ampd_store_close(store);
    storage_fixture_remove(dir);
    text_clear(&seen);
}

static void reopen(void)
{
    ampd_store_close(store);
    must(ampd_store_sqlite_open(dir, &store, NULL));
}

static int add_columns(void *arg, int count, char **values, char **names)
{
    for (int i = 0; i < count; i++)
        text_add(arg, "%s|", values[i] != NULL ? values[i] : "NULL");
    text_add(arg, "\n");
    return 0;
}

/* All rows of all tables, through a connection of its own; and what was read. */
static void state(struct text *text)
{
    static const char *const tables[] = {"fences", "models",    "parameters", "epochs",
                                         "steps",  "overflows", "workers",    "checkpoints"};
    char path[PATH_MAX_BYTES], sql[64];
    struct stat info;
    sqlite3 *db;
    (void)snprintf(path, sizeof path, "%s/ampd.db", dir);
    if (stat(path, &info) == 0 && info.st_size > 0) {
        assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
        must(sqlite3_exec(db, "PRAGMA user_version", add_columns, text, NULL));
        for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
            (void)snprintf(sql, sizeof sql, "SELECT '%s',* FROM %s ORDER BY 1,2,3,4,5", tables[i], tables[i]);
            if (sqlite3_exec(db, sql, add_columns, text, NULL) != SQLITE_OK)
                text_add(text, "no %s\n", tables[i]);
        }
        assert_int_equal(sqlite3_close(db), SQLITE_OK);
    }
    text_add(text, "read: %s", seen.data != NULL ? seen.data : "");
}

/* ---- acts that write ---- */

static int boot(struct amp_error *error)
{
    const uint8_t boot_id[AMPD_BOOT_ID_BYTES] = "fedcba987654321";
    struct ampd_fence fence;
    return ampd_store_boot(store, 0, boot_id, &fence, error);
}

static int put_fence(struct amp_error *error)
{
    struct ampd_fence fence = {.counter = 77};
    return ampd_store_put_fence(store, 1, &fence, error);
}

static int put_new_model(struct amp_error *error)
{
    return ampd_store_put_model(store, &spec, 123, error);
}

/* Steps above 2 are superseded, and no checkpoint is void. */
static int put_epoch(struct amp_error *error)
{
    struct ampd_epoch_record epoch = storage_fixture_epoch(2, 1, 2);
    struct ampd_step_row first = storage_fixture_first_row(&epoch);
    return ampd_store_put_epoch(store, "m", &epoch, &first, error);
}

/* A rollback to nothing: all rows are superseded and all checkpoints void. */
static int put_first_epoch_again(struct amp_error *error)
{
    struct ampd_epoch_record epoch = storage_fixture_epoch(2, 0, 0);
    struct ampd_step_row first = storage_fixture_first_row(&epoch);
    return ampd_store_put_epoch(store, "m", &epoch, &first, error);
}

static int put_worker(struct amp_error *error)
{
    struct ampd_worker_record worker = {.name = "w", .rank = 0, .incarnation = {5, 1}};
    return ampd_store_put_worker(store, "m", &worker, error);
}

static int put_verdict(struct amp_error *error)
{
    struct ampd_step_row row = storage_fixture_step(1, 6, true);
    return ampd_store_put_verdict(store, "m", &row, false, error);
}

static int put_verdict_full(struct amp_error *error)
{
    struct ampd_step_row row = storage_fixture_step(1, 6, true);
    return ampd_store_put_verdict(store, "m", &row, true, error);
}

static int put_act(struct amp_error *error)
{
    struct ampd_step_row row = act_row(4);
    return ampd_store_put_verdict(store, "m", &row, true, error);
}

static int put_checkpoint(struct amp_error *error)
{
    struct ampd_checkpoint_record record = checkpoint_of(4);
    return ampd_store_put_checkpoint(store, "m", &record, error);
}

static int drop_checkpoint(struct amp_error *error)
{
    return ampd_store_drop_checkpoint(store, "m", 1, 2, error);
}

static int mark_deleting(struct amp_error *error)
{
    return ampd_store_mark_deleting(store, "m", error);
}

static int delete_model(struct amp_error *error)
{
    return ampd_store_delete_model(store, "m", error);
}

static int purge(struct amp_error *error)
{
    bool more = true;
    for (int rc; more;)
        if ((rc = ampd_store_purge(store, 3, &more, error)) != 0)
            return rc;
    return 0;
}

static int trim(struct amp_error *error)
{
    const struct ampd_history_limit limit = {.rows = 1};
    struct ampd_trimmed trimmed = {.more = true};
    for (int rc; trimmed.more;)
        if ((rc = ampd_store_trim(store, "m", &limit, 3, &trimmed, error)) != 0)
            return rc;
    return 0;
}

static int set_up(struct amp_error *error)
{
    int rc = store != NULL ? 0 : ampd_store_sqlite_open(dir, &store, error);
    return rc;
}

#define WRITES(act_of, done_of)                                                                                        \
    {                                                                                                                  \
        .name = #act_of, .before = before, .act = act_of, .reopen = reopen, .state = state, .after = after,            \
        .done = done_of                                                                                                \
    }

static const struct scenario writes[] = {
    WRITES(put_fence, 0),
    WRITES(put_new_model, AMP_EEXIST),
    WRITES(put_epoch, AMP_ESTATE),
    WRITES(put_first_epoch_again, AMP_ESTATE),
    WRITES(put_worker, 0),
    WRITES(put_verdict, AMP_EEXIST),
    WRITES(put_verdict_full, AMP_EEXIST),
    WRITES(put_checkpoint, 0),
    WRITES(drop_checkpoint, AMP_ENOTFOUND),
    WRITES(mark_deleting, 0),
    WRITES(delete_model, AMP_ENOTFOUND),
};

static const struct scenario counted[] = {
    {"boot", before, boot, reopen, state, after, .advances = true},
    {"put_act", before, put_act, reopen, state, after, .advances = true},
    {"trim", before, trim, reopen, state, after, .grows_old = true},   /* in portions */
    {"purge", before, purge, reopen, state, after, .grows_old = true}, /* likewise */
};

static const struct scenario opens[] = {
    {"create", before_empty, set_up, NULL, state, after, .grows_old = true}, /* by migrations, one after the other */
    {"open", before_closed, set_up, NULL, state, after, .done = 0},
};

static void each_write_fails_whole_when_memory_is_out(void **s)
{
    for (size_t i = 0; i < sizeof writes / sizeof *writes; i++)
        scenario_memory(&writes[i]);
    for (size_t i = 0; i < sizeof counted / sizeof *counted; i++)
        scenario_memory(&counted[i]);
}

static void each_write_fails_whole_when_the_disk_fails(void **s)
{
    for (size_t i = 0; i < sizeof writes / sizeof *writes; i++)
        scenario_disk(&writes[i]);
    for (size_t i = 0; i < sizeof counted / sizeof *counted; i++)
        scenario_disk(&counted[i]);
}

static void a_store_that_could_not_be_opened_can_be_opened_later(void **s)
{
    for (size_t i = 0; i < sizeof opens / sizeof *opens; i++) {
        scenario_memory(&opens[i]);
        scenario_disk(&opens[i]);
    }
}

/* ---- acts that read ---- */

static void add_row(struct text *text, const struct ampd_step_row *row)
{
    text_add(text, "row %d %d:%d verdict %d %a scale %a %d %s by %s rows %d:", (int)row->kind, (int)row->epoch,
             (int)row->step, (int)row->verdict, row->norm, (double)row->after.scaler.scale,
             (int)row->contributors_count, row->note.request_id, row->note.actor, (int)row->rows_count);
    text_bytes(text, row->rows, row->rows_count * sizeof row->rows[0]);
    for (uint32_t i = 0; i < row->contributors_count; i++)
        text_add(text, "%d %d ", (int)row->contributors[i].rank, (int)row->contributors[i].incarnation.counter);
    for (uint32_t i = 0; i < row->clips_count; i++)
        text_add(text, "%a ", (double)row->clips[i]);
    text_bytes(text, &row->metrics, sizeof row->metrics); /* the pads are zero */
    text_bytes(text, row->times_us, sizeof row->times_us);
    text_add(text, "\n");
}

static void add_record(struct text *text, const struct ampd_model_record *record)
{
    struct ampd_model_spec whole = record->spec;
    whole.parameters = NULL; /* all fields but the address of these; the pads are zero */
    text_add(text, "model %s created %d epoch %d base %d:%d deleting %d\n", record->spec.name, (int)record->created_us,
             (int)record->epoch, (int)record->base_epoch, (int)record->base_step, record->deleting);
    text_bytes(text, &whole, sizeof whole);
    for (uint32_t i = 0; i < record->spec.parameters_count; i++)
        text_add(text, "parameter %s %d %d %d\n", record->spec.parameters[i].name,
                 (int)record->spec.parameters[i].dimensions, (int)record->spec.parameters[i].shape[0],
                 (int)record->spec.parameters[i].group);
    for (uint32_t i = 0; i < record->workers_count; i++)
        text_add(text, "worker %s %d %d\n", record->workers[i].name, (int)record->workers[i].rank,
                 (int)record->workers[i].incarnation.counter);
    for (uint32_t i = 0; i < record->checkpoints_count; i++) {
        text_add(text, "checkpoint %s %d ", record->checkpoints[i].file, (int)record->checkpoints[i].step);
        text_bytes(text, record->checkpoints[i].manifest, 16);
    }
    for (uint32_t i = 0; i < record->acts_count; i++)
        text_add(text, "act %s %d %a\n", record->acts[i].request_id, (int)record->acts[i].step,
                 (double)record->acts[i].after.scaler.scale);
    if (record->last != NULL)
        add_row(text, record->last);
    for (uint32_t i = 0; i < record->rows_count; i++)
        add_row(text, &record->rows[i]);
}

static int load(struct amp_error *error)
{
    struct ampd_model_record *records;
    size_t count;
    text_clear(&seen);
    int rc = ampd_store_load(store, &records, &count, error);
    if (rc != 0) {
        assert_null(records);
        assert_int_equal(count, 0);
        return rc;
    }
    unsigned what = atomic_exchange(&faults->what, 0u); /* the text is the test's own */
    for (size_t i = 0; i < count; i++)
        add_record(&seen, &records[i]);
    atomic_store(&faults->what, what);
    ampd_model_records_free(records, count);
    return 0;
}

static int on_row(void *arg, const struct ampd_history_key *key, const struct ampd_step_row *row,
                  const struct ampd_epoch_record *epoch)
{
    unsigned what = atomic_exchange(&faults->what, 0u);
    text_add(&seen, "%d:%d:%d %s ", (int)key->epoch, (int)key->step, (int)key->sequence,
             epoch != NULL ? epoch->reason : "");
    add_row(&seen, row);
    atomic_store(&faults->what, what);
    return 0;
}

static int page_history(struct amp_error *error)
{
    struct ampd_history_filter filter = {.superseded_too = true};
    text_clear(&seen);
    int rc = ampd_store_page_history(store, "m", &filter, 100, NULL, error, on_row);
    filter.descending = true;
    return rc != 0 ? rc : ampd_store_page_history(store, "m", &filter, 3, NULL, error, on_row);
}

static int on_overflow(void *arg, const struct ampd_history_key *key, const struct ampd_overflow_found *found)
{
    unsigned what = atomic_exchange(&faults->what, 0u);
    text_add(&seen, "%d:%d:%d %d %d %d %d\n", (int)key->epoch, (int)key->step, (int)key->sequence,
             (int)found->row.parameter, (int)found->row.rank, (int)found->row.inf_count, found->superseded);
    atomic_store(&faults->what, what);
    return 0;
}

static int page_overflows(struct amp_error *error)
{
    const struct ampd_history_filter filter = {.superseded_too = true};
    text_clear(&seen);
    return ampd_store_page_overflows(store, "m", &filter, NULL, 100, NULL, error, on_overflow);
}

static int on_point(void *arg, const struct ampd_history_point *point)
{
    unsigned what = atomic_exchange(&faults->what, 0u);
    text_add(&seen, "%d.%d %g\n", (int)point->key.epoch, (int)point->key.step, point->norm);
    atomic_store(&faults->what, what);
    return 0;
}

static int page_points(struct amp_error *error)
{
    const struct ampd_history_key first = {0};
    text_clear(&seen);
    return ampd_store_page_points(store, "m", &first, 0, UINT64_MAX, 100, NULL, error, on_point);
}

static int get_fence(struct amp_error *error)
{
    struct ampd_fence fence;
    text_clear(&seen);
    int rc = ampd_store_get_fence(store, 0, &fence, error);
    if (rc == 0) {
        unsigned what = atomic_exchange(&faults->what, 0u);
        text_add(&seen, "fence %d ", (int)fence.counter);
        text_bytes(&seen, fence.boot_id, sizeof fence.boot_id);
        atomic_store(&faults->what, what);
    }
    return rc;
}

static int on_name(void *arg, const char *name)
{
    unsigned what = atomic_exchange(&faults->what, 0u);
    text_add(&seen, "%s\n", name);
    atomic_store(&faults->what, what);
    return 0;
}

static int each_deleted(struct amp_error *error)
{
    text_clear(&seen);
    return ampd_store_each_deleted(store, NULL, error, on_name);
}

/* All the reading calls on a reader's handle, which is opened and closed on the way. */
static int read_all(struct amp_error *error)
{
    struct ampd_store *writer = store, *reader;
    text_clear(&seen);
    int rc = ampd_store_open_reader(writer, &reader, error);
    if (rc != 0)
        return rc;
    store = reader;
    rc = page_history(error);
    if (rc == 0)
        rc = page_overflows(error);
    if (rc == 0)
        rc = load(error);
    store = writer;
    ampd_store_close(reader);
    return rc;
}

#define READS(act_of)                                                                                                  \
    {                                                                                                                  \
        .name = #act_of, .before = before, .act = act_of, .reopen = reopen, .state = state, .after = after,            \
        .grows_old = true                                                                                              \
    }

static const struct scenario reads[] = {READS(load),        READS(page_history), READS(page_overflows),
                                        READS(page_points), READS(get_fence),    READS(each_deleted),
                                        READS(read_all)};

static void what_is_read_is_whole_or_an_error_when_memory_is_out(void **s)
{
    for (size_t i = 0; i < sizeof reads / sizeof *reads; i++)
        scenario_memory(&reads[i]);
}

static void what_is_read_is_whole_or_an_error_when_the_disk_fails(void **s)
{
    for (size_t i = 0; i < sizeof reads / sizeof *reads; i++) {
        scenario_disk(&reads[i]);
        (void)scenario_run(&reads[i], FAULTS_READ, false, 5);
        (void)scenario_run(&reads[i], FAULTS_READ, true, 5);
    }
}

int main(void)
{
    faults_install();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_write_fails_whole_when_memory_is_out),
        cmocka_unit_test(each_write_fails_whole_when_the_disk_fails),
        cmocka_unit_test(a_store_that_could_not_be_opened_can_be_opened_later),
        cmocka_unit_test(what_is_read_is_whole_or_an_error_when_memory_is_out),
        cmocka_unit_test(what_is_read_is_whole_or_an_error_when_the_disk_fails),
    };
    return cmocka_run_group_tests(tests, make_template, remove_template);
}
