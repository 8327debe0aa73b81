/*
 * Files and rows that are whole by their own account and wrong all the same: what they say of themselves is believed
 * only where it can be. Bits that flipped and files that were cut off are test_storage_checkpoint.c's.
 */
#include "storage/checkpoint.h"
#include "storage/checkpoint_remove.h"
#include "storage/vote_journal.h"
#include "storage/spec_json.h"
#include "storage/store.h"
#include "tests/unit/storage_fixture.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <sqlite3.h>
#include <xxhash.h>

#define COUNT(array) (sizeof array / sizeof *(array))
#define LONG_NAME                                                                                                      \
    "nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn" \
    "nnnnnnnnnnnnnnnn"

static const uint64_t shape[] = {2, 3}, vector[] = {5};

struct fixture {
    char directory[256];
    float w[6], b[3], back[6], back_b[3];
    struct ampd_checkpoint_record record;
    uint8_t *data; /* what follows the header, data_size of it */
    size_t data_size;
    json_t *header;
};

static int setup(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    (void)snprintf(fixture->directory, sizeof fixture->directory, "%s", storage_fixture_directory());
    *state = fixture;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;
    storage_fixture_remove(fixture->directory);
    json_decref(fixture->header);
    free(fixture->data);
    free(fixture);
    return 0;
}

/* ---- forged checkpoints ---- */

/* A small checkpoint with all that one can have: moments, a part, a user state. Its header is taken apart. */
static void write_good(struct fixture *fixture)
{
    static uint8_t user_state[] = "sample 7";
    struct {
        uint8_t *data;
        uint32_t size;
    } states[2] = {{user_state, sizeof user_state}, {NULL, 0}};
    const struct ampd_checkpoint_path place = {fixture->directory, "m", 0, 1};
    const struct ampd_checkpoint_tensor tensors[] = {{"w", 2, shape, fixture->w, fixture->w, fixture->w, false, 0, 0},
                                                     {"b", 1, vector, fixture->b, NULL, NULL, true, 1, 4}};
    struct ampd_checkpoint_state state = {
        .step = 1, .carry.scaler.scale = 2, .world_size = 2, .user_states = (void *)states};
    assert_int_equal(ampd_checkpoint_write(&place, tensors, 2, &state, NULL, &fixture->record, NULL), 0);
    char path[900];
    uint64_t size;
    (void)snprintf(path, sizeof path, "%s/%s", fixture->directory, fixture->record.file);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fread(&size, 1, 8, file), 8);
    char *text = malloc(size);
    assert_int_equal(fread(text, 1, size, file), size);
    fixture->header = json_loadb(text, size, 0, NULL);
    assert_non_null(fixture->header);
    free(text);
    fixture->data = malloc(4096);
    fixture->data_size = fread(fixture->data, 1, 4096, file);
    assert_int_equal(fclose(file), 0);
}

/* Writes a file whose header is this one, with the hash that it ought to have. */
static void write_forged(const struct fixture *fixture, json_t *header)
{
    char path[900], hash[33];
    json_t *metadata = json_object_get(header, "__metadata__");
    (void)json_object_del(metadata, "hash");
    char *text = json_dumps(header, JSON_SORT_KEYS | JSON_COMPACT);
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits(text, strlen(text)));
    free(text);
    for (size_t i = 0; i < sizeof canonical.digest; i++)
        (void)snprintf(hash + 2 * i, 3, "%02x", canonical.digest[i]);
    (void)json_object_set_new(metadata, "hash", json_string(hash));
    text = json_dumps(header, JSON_SORT_KEYS | JSON_COMPACT);
    uint64_t size = strlen(text);
    (void)snprintf(path, sizeof path, "%s/%s", fixture->directory, fixture->record.file);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(&size, 1, 8, file), 8);
    assert_int_equal(fwrite(text, 1, size, file), size);
    assert_int_equal(fwrite(fixture->data, 1, fixture->data_size, file), fixture->data_size);
    assert_int_equal(fclose(file), 0);
    free(text);
}

static int read_forged(struct fixture *fixture)
{
    const struct ampd_checkpoint_target targets[] = {
        {"w", 2, shape, fixture->back, fixture->back, fixture->back, false, 0, 0},
        {"b", 1, vector, fixture->back_b, NULL, NULL, true, 1, 4}};
    struct ampd_checkpoint_state state;
    int rc = ampd_checkpoint_read(fixture->directory, fixture->record.file, NULL, targets, 2, &state, NULL);
    if (rc == 0)
        ampd_checkpoint_state_clear(&state);
    return rc;
}

/*
 * What is changed: a key of an entry ("": of the metadata), taken away (NULL) or given a value; or the entry's name
 * (key NULL).
 */
struct change {
    const char *entry, *key, *value;
};

static void apply(json_t *header, const struct change *change)
{
    json_t *object = json_object_get(header, change->entry[0] != 0 ? change->entry : "__metadata__");
    assert_non_null(object);
    if (change->key == NULL) {
        json_incref(object);
        (void)json_object_del(header, change->entry);
        assert_int_equal(json_object_set_new(header, change->value, object), 0);
    } else if (change->value == NULL) {
        assert_int_equal(json_object_del(object, change->key), 0);
    } else {
        json_t *value = json_loads(change->value, JSON_DECODE_ANY, NULL);
        assert_non_null(value);
        assert_int_equal(json_object_set_new(object, change->key, value), 0);
    }
}

static void check_refused(struct fixture *fixture, const struct change *changes, size_t count)
{
    write_good(fixture);
    json_t *same = json_deep_copy(fixture->header);
    write_forged(fixture, same);
    json_decref(same);
    assert_int_equal(read_forged(fixture), 0); /* a forgery that changes nothing is none */
    for (size_t i = 0; i < count; i++) {
        json_t *header = json_deep_copy(fixture->header);
        apply(header, &changes[i]);
        write_forged(fixture, header);
        json_decref(header);
        int rc = read_forged(fixture);
        if (rc != AMP_EDATALOSS)
            fail_msg("%s %s %s: %d", changes[i].entry, changes[i].key != NULL ? changes[i].key : "", changes[i].value,
                     rc);
    }
}

static void numbers_that_make_no_sense_are_refused(void **state)
{
    static const struct change changes[] = {
        {"", "step", NULL},
        {"", "step", "\"\""},
        {"", "step", "\"-1\""},
        {"", "step", "\"1:\""},
        {"", "step", "7"},
        {"", "step", "\"18446744073709551616\""},
        {"", "growth_tracker", "\"4294967296\""},
        {"", "scale_bits", "\"0\""},
        {"", "scale_bits", "\"2139095040\""}, /* infinity */
        {"", "scale_bits", "\"3221225472\""}, /* -2 */
        {"", "world_size", "\"257\""},
        {"", "world_size", "\"0\""}, /* there is a user state */
        {"", "format", NULL},
        {"", "format", "\"pt\""},
        {"", "format", "\"ampd/0\""},
        {"", "format", "\"ampd/x\""},
    };
    check_refused(*state, changes, COUNT(changes));
}

static void names_of_nothing_in_the_model_are_refused(void **state)
{
    static const struct change changes[] = {
        {"w", NULL, "x"},
        {"w", NULL, "w#x"},
        {"w", NULL, "w#mm"},
        {"w", NULL, "w@"},
        {"w", NULL, LONG_NAME LONG_NAME},
        {"w", NULL, "w@0:6:" LONG_NAME LONG_NAME},
        {"w", NULL, "b#m"},
        {"w", NULL, "b#v"},
        {"b@1:4", NULL, "b"},
        {"b@1:4", NULL, "b@:4"},
        {"b@1:4", NULL, "b@1"},
        {"b@1:4", NULL, "b@1:"},
        {"b@1:4", NULL, "b@1:4 "},
        {"b@1:4", NULL, "b@4:1"},
        {"b@1:4", NULL, "b@99999999999999999999:4"},
        {"b@1:4", NULL, "b@3:6"},
        {"b@1:4", NULL, "b@0:3"},
        {"user_state#0", NULL, "user_state#"},
        {"user_state#0", NULL, "user_state#0x"},
        {"user_state#0", NULL, "user_state#256"},
        {"user_state#0", NULL, "user_state#5"},
    };
    check_refused(*state, changes, COUNT(changes));
}

static void tensors_that_are_no_tensors_are_refused(void **state)
{
    static const struct change changes[] = {
        {"w", "dtype", NULL},
        {"w", "dtype", "\"U8\""},
        {"user_state#0", "dtype", "\"F32\""},
        {"w", "shape", NULL},
        {"w", "shape", "6"},
        {"w", "shape", "[6]"},
        {"w", "shape", "[3,2]"},
        {"w", "shape", "[2,3,1]"},
        {"w", "shape", "[2,\"3\"]"},
        {"w", "shape", "[2,-3]"},
        {"w", "shape", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,6]"},
        {"b@1:4", "shape", "[4]"},
        {"b@1:4", "shape", "[3,1]"},
        {"user_state#0", "shape", "[3,3]"},
        {"user_state#0", "shape", "[0]"},
        {"user_state#0", "shape", "[65537]"},
        {"w", "data_offsets", NULL},
        {"w", "data_offsets", "[0]"},
        {"w", "data_offsets", "[\"0\",24]"},
        {"w", "data_offsets", "[0,24.5]"},
        {"w", "data_offsets", "[-24,0]"},
        {"w", "data_offsets", "[24,0]"},
        {"w", "data_offsets", "[0,20]"},
        {"w", "data_offsets", "[1000,1024]"},
        {"w#m", "data_offsets", "[0,24]"},
        {"", "hash:w", NULL},
        {"", "hash:w", "\"00\""},
        {"", "hash:w", "\"0000000000000000000000000000000G\""},
        {"", "hash:w", "\"00000000000000000000000000000000\""},
        {"", "shape:b", NULL},
        {"", "shape:b", "\"6\""},
    };
    check_refused(*state, changes, COUNT(changes));
}

static void a_tensor_that_is_missing_is_told_by_its_kind(void **state)
{
    struct fixture *fixture = *state;
    static const char *const gone[][2] = {{"w", "\"w\""}, {"w#m", "first moment"}, {"w#v", "second moment"}};
    write_good(fixture);
    for (size_t i = 0; i < COUNT(gone); i++) {
        /* The file of a model without it: its data would leave a hole else. */
        const struct ampd_checkpoint_path place = {fixture->directory, "m", 0, 1};
        const struct ampd_checkpoint_tensor tensors[] = {{"w", 2, shape, fixture->w, i == 1 ? NULL : fixture->w,
                                                          i == 2 ? NULL : fixture->w, i == 0, 0, i == 0 ? 3 : 6},
                                                         {"b", 1, vector, fixture->b, NULL, NULL, true, 1, 4}};
        const struct ampd_checkpoint_target targets[] = {
            {"w", 2, shape, fixture->back, fixture->back, fixture->back, false, 0, 0},
            {"b", 1, vector, fixture->back_b, NULL, NULL, true, 1, 4}};
        struct ampd_checkpoint_state from = {.step = 1, .carry.scaler.scale = 2}, to;
        struct amp_error error = {0};
        assert_int_equal(ampd_checkpoint_write(&place, tensors, 2, &from, NULL, &fixture->record, NULL), 0);
        int rc = ampd_checkpoint_read(fixture->directory, fixture->record.file, NULL, targets, 2, &to, &error);
        assert_int_equal(rc, AMP_EDATALOSS);
        if (strstr(error.text, gone[i][1]) == NULL)
            fail_msg("%s: %s", gone[i][0], error.text);
    }
}

/* ---- paths ---- */

static void paths_that_are_too_long_are_refused(void **state)
{
    struct fixture *fixture = *state;
    static char longest[4200];
    memset(longest, 'd', sizeof longest - 1);
    const struct ampd_checkpoint_path place = {longest, "m", 0, 1};
    const struct ampd_checkpoint_tensor tensor = {"w", 2, shape, fixture->w, NULL, NULL, false, 0, 0};
    const struct ampd_checkpoint_target target = {"w", 2, shape, fixture->back, NULL, NULL, false, 0, 0};
    const struct ampd_checkpoint_state from = {.step = 1, .carry.scaler.scale = 2};
    struct ampd_checkpoint_record record;
    struct ampd_checkpoint_state to;
    struct ampd_vote_journal *journal;
    struct ampd_store *store;
    assert_int_equal(ampd_checkpoint_write(&place, &tensor, 1, &from, NULL, &record, NULL), AMP_EINVAL);
    assert_int_equal(ampd_checkpoint_read(longest, "f", NULL, &target, 1, &to, NULL), AMP_EINVAL);
    assert_int_equal(ampd_checkpoint_remove(longest, "f", NULL), AMP_EINVAL);
    assert_int_equal(ampd_checkpoint_sweep(&place, NULL, 0, UINT64_MAX, NULL), AMP_EINVAL);
    assert_int_equal(ampd_vote_journal_open(&place, &journal, NULL), AMP_EINVAL);
    assert_int_equal(ampd_vote_journal_remove(longest, "m", NULL), AMP_EINVAL);
    assert_int_equal(ampd_store_sqlite_open(longest, &store, NULL), AMP_EINVAL);
    for (size_t size = 4040; size < 4096; size++) { /* the longest that fits, without what is appended to it */
        longest[size] = 0;
        assert_int_not_equal(ampd_checkpoint_write(&place, &tensor, 1, &from, NULL, &record, NULL), 0);
        longest[size] = 'd';
    }
}

static void other_things_in_place_of_files_are_refused(void **state)
{
    struct fixture *fixture = *state;
    write_good(fixture);
    char path[900];
    (void)snprintf(path, sizeof path, "%s/%s", fixture->directory, fixture->record.file);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(read_forged(fixture), AMP_EDATALOSS);
    assert_int_equal(ampd_checkpoint_remove(fixture->directory, fixture->record.file, NULL), AMP_EIO);
    const struct ampd_checkpoint_path place = {fixture->directory, "m", 0, 1}, bad = {fixture->directory, "../m", 0, 1};
    assert_int_equal(ampd_checkpoint_sweep(&place, NULL, 0, UINT64_MAX, NULL), AMP_EIO);
    assert_int_equal(ampd_checkpoint_remove_model(&place, NULL), AMP_EIO);
    assert_int_equal(ampd_checkpoint_sweep(&bad, NULL, 0, UINT64_MAX, NULL), AMP_EINVAL);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(ampd_checkpoint_remove_model(&place, NULL), 0);
    assert_int_equal(ampd_checkpoint_remove_model(&place, NULL), 0);
    struct ampd_checkpoint_state to;
    assert_int_equal(ampd_checkpoint_read_parts(NULL, 0, NULL, 0, &to, NULL), AMP_EINVAL);
}

/* ---- specifications ---- */

static void specifications_that_make_no_sense_are_refused(void **state)
{
    struct ampd_model_spec spec = storage_fixture_spec("m"), back = {0};
    char *text;
    (void)state;
    assert_int_equal(ampd_spec_to_json(&spec, &text), 0);
    json_t *good = json_loads(text, 0, NULL);
    free(text);
    static const char *const values[] = {"\"x\"", "null", "[]", "-1", "4294967296", "1.5", "true"};
    const char *key;
    json_t *value;
    unsigned refused = 0, missed = 0;
    json_object_foreach(good, key, value)
    {
        for (size_t i = 0; i < COUNT(values); i++) {
            json_t *bad = json_deep_copy(good);
            assert_int_equal(json_object_set_new(bad, key, json_loads(values[i], JSON_DECODE_ANY, NULL)), 0);
            text = json_dumps(bad, 0);
            refused += ampd_spec_from_json(text, &back) == AMP_EDATALOSS ? 1 : 0;
            free(text);
            json_decref(bad);
        }
        json_t *less = json_deep_copy(good);
        assert_int_equal(json_object_del(less, key), 0);
        text = json_dumps(less, 0);
        missed += ampd_spec_from_json(text, &back) == AMP_EDATALOSS ? 1 : 0;
        free(text);
        json_decref(less);
    }
    assert_true(missed > 20);                           /* but what came with later versions */
    assert_true(refused >= 3 * json_object_size(good)); /* of each: what is of another type */
    json_object_foreach(json_array_get(json_object_get(good, "groups"), 0), key, value)
    {
        json_t *bad = json_deep_copy(good);
        json_t *group = json_array_get(json_object_get(bad, "groups"), 0);
        assert_int_equal(json_object_set_new(group, key, json_array()), 0);
        text = json_dumps(bad, 0);
        assert_int_equal(ampd_spec_from_json(text, &back), AMP_EDATALOSS);
        free(text);
        if (json_is_string(value)) {
            assert_int_equal(json_object_set_new(group, key, json_string(LONG_NAME LONG_NAME)), 0);
            text = json_dumps(bad, 0);
            assert_int_equal(ampd_spec_from_json(text, &back), AMP_EDATALOSS);
            free(text);
        }
        json_decref(bad);
    }
    json_t *many = json_array();
    for (int i = 0; i <= AMPD_GROUPS_MAX; i++)
        (void)json_array_append(many, json_array_get(json_object_get(good, "groups"), 0));
    (void)json_object_set_new(good, "groups", many);
    text = json_dumps(good, 0);
    assert_int_equal(ampd_spec_from_json(text, &back), AMP_EDATALOSS);
    free(text);
    json_decref(good);
    assert_int_equal(ampd_spec_from_json("nonsense", &back), AMP_EDATALOSS);
    struct ampd_parameter_spec parameter;
    static const char *const no_shapes[] = {"x", "{}", "7", "[1,\"x\"]", "[1.5]", "[1,1,1,1,1,1,1,1,1]"};
    for (size_t i = 0; i < COUNT(no_shapes); i++)
        assert_int_equal(ampd_shape_from_text(no_shapes[i], &parameter), AMP_EDATALOSS);
    assert_int_equal(ampd_shape_from_text("[2,3]", &parameter), 0);
    assert_true(parameter.dimensions == 2 && parameter.shape[0] == 2 && parameter.shape[1] == 3);
    spec.groups[0].name[0] = (char)0xff; /* no text */
    assert_int_equal(ampd_spec_to_json(&spec, &text), AMP_EINVAL);
    ampd_model_spec_clear(&spec);
}

/* ---- rows ---- */

static void run_sql(const char *directory, const char *sql)
{
    char path[600], *why = NULL;
    sqlite3 *db;
    (void)snprintf(path, sizeof path, "%s/ampd.db", directory);
    assert_int_equal(sqlite3_open(path, &db), SQLITE_OK);
    if (sqlite3_exec(db, sql, NULL, NULL, &why) != SQLITE_OK)
        fail_msg("%s: %s", sql, why);
    assert_int_equal(sqlite3_close(db), SQLITE_OK);
}

static void open_with_steps(struct fixture *fixture, struct ampd_store **store)
{
    struct ampd_model_spec spec = storage_fixture_spec("m");
    const struct ampd_epoch_record epoch = storage_fixture_epoch(1, 0, 0);
    struct ampd_step_row first = storage_fixture_first_row(&epoch), row;
    struct ampd_checkpoint_record checkpoint = {.epoch = 1, .step = 1, .file = "f"};
    spec.durability = AMPD_DURABILITY_STEP;
    assert_int_equal(ampd_store_sqlite_open(fixture->directory, store, NULL), 0);
    assert_int_equal(ampd_store_put_model(*store, &spec, 1, NULL), 0);
    assert_int_equal(ampd_store_put_epoch(*store, "m", &epoch, &first, NULL), 0);
    for (uint64_t step = 1; step <= 3; step++) {
        row = storage_fixture_step(1, step, step == 3);
        assert_int_equal(ampd_store_put_verdict(*store, "m", &row, false, NULL), 0);
    }
    assert_int_equal(ampd_store_put_checkpoint(*store, "m", &checkpoint, NULL), 0);
    ampd_model_spec_clear(&spec);
}

static int count_rows(void *arg, const struct ampd_history_key *key, const struct ampd_step_row *row,
                      const struct ampd_epoch_record *epoch)
{
    (void)key;
    (void)row;
    (void)epoch;
    ++*(int *)arg;
    return 0;
}

static void rows_that_make_no_sense_are_reported(void **state)
{
    static const char *const damages[] = {
        "UPDATE steps SET contributors=x'0011' WHERE step=3",
        "UPDATE steps SET contributors=zeroblob(24*257) WHERE step=3",
        "UPDATE steps SET clips=x'00' WHERE step=3",
        "UPDATE steps SET clips=zeroblob(4*1000) WHERE step=3",
        "UPDATE steps SET rows_count=100000 WHERE step=3",
        "UPDATE steps SET rows_count=rows_count+1 WHERE step=3",
        "UPDATE checkpoints SET manifest=x'00'",
        "UPDATE parameters SET shape='x'",
        "UPDATE parameters SET shape='[1,\"a\"]'",
        "UPDATE parameters SET shape='[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]'",
        "UPDATE models SET spec='{}'",
        "PRAGMA foreign_keys=OFF; UPDATE models SET name=hex(zeroblob(200))",
    };
    for (size_t i = 0; i < COUNT(damages); i++) {
        struct fixture *fixture = *state;
        struct ampd_store *store;
        struct ampd_model_record *records;
        struct amp_error error = {0};
        size_t count;
        open_with_steps(fixture, &store);
        assert_int_equal(ampd_store_load(store, &records, &count, NULL), 0);
        assert_int_equal(count, 1);
        ampd_model_records_free(records, count);
        run_sql(fixture->directory, damages[i]);
        int rc = ampd_store_load(store, &records, &count, &error);
        if (rc != AMP_EDATALOSS || count != 0 || records != NULL)
            fail_msg("%s: %d %s", damages[i], rc, error.text);
        struct ampd_history_filter all = {0};
        int seen = 0;
        rc = ampd_store_page_history(store, "m", &all, 99, &seen, &error, count_rows);
        assert_true(rc == 0 || rc == AMP_EDATALOSS || rc == AMP_ENOTFOUND);
        ampd_store_close(store);
        storage_fixture_remove(fixture->directory);
        assert_int_equal(mkdir(fixture->directory, 0700), 0);
    }
}

static void an_epoch_without_its_row_is_reported(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_store *store;
    struct amp_error error = {0};
    struct ampd_history_filter all = {0};
    int seen = 0;
    open_with_steps(fixture, &store);
    run_sql(fixture->directory, "DELETE FROM epochs");
    assert_int_equal(ampd_store_page_history(store, "m", &all, 99, &seen, &error, count_rows), AMP_EDATALOSS);
    ampd_store_close(store);
}

static void a_boot_id_of_another_size_is_none(void **state)
{
    struct fixture *fixture = *state;
    static const uint8_t boot_id[AMPD_BOOT_ID_BYTES] = "0123456789abcde", none[AMPD_BOOT_ID_BYTES] = {0};
    static const char *const damages[] = {"UPDATE fences SET boot_id=x'0011'", "UPDATE fences SET boot_id=x''"};
    struct ampd_store *store;
    struct ampd_fence fence;
    open_with_steps(fixture, &store);
    assert_int_equal(ampd_store_boot(store, 0, boot_id, &fence, NULL), 0);
    for (size_t i = 0; i < COUNT(damages); i++) {
        run_sql(fixture->directory, damages[i]);
        assert_int_equal(ampd_store_get_fence(store, 0, &fence, NULL), 0);
        assert_int_equal(fence.counter, 1);
        assert_memory_equal(fence.boot_id, none, sizeof none);
    }
    ampd_store_close(store);
}

static void a_store_that_another_process_holds_is_waited_for(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_store *store;
    struct amp_error error = {0};
    char path[600];
    sqlite3 *other;
    open_with_steps(fixture, &store);
    (void)snprintf(path, sizeof path, "%s/ampd.db", fixture->directory);
    assert_int_equal(sqlite3_open(path, &other), SQLITE_OK);
    assert_int_equal(sqlite3_exec(other, "BEGIN IMMEDIATE", NULL, NULL, NULL), SQLITE_OK);
    struct ampd_step_row row = storage_fixture_step(1, 4, false);
    assert_int_equal(ampd_store_put_verdict(store, "m", &row, false, &error), AMP_EEXHAUSTED);
    assert_string_equal(error.reason, "STORE_BUSY");
    assert_int_equal(sqlite3_close(other), SQLITE_OK);
    assert_int_equal(ampd_store_put_verdict(store, "m", &row, false, NULL), 0);
    ampd_store_close(store);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(numbers_that_make_no_sense_are_refused),
        TEST(names_of_nothing_in_the_model_are_refused),
        TEST(tensors_that_are_no_tensors_are_refused),
        TEST(a_tensor_that_is_missing_is_told_by_its_kind),
        TEST(paths_that_are_too_long_are_refused),
        TEST(other_things_in_place_of_files_are_refused),
        TEST(specifications_that_make_no_sense_are_refused),
        TEST(rows_that_make_no_sense_are_reported),
        TEST(an_epoch_without_its_row_is_reported),
        TEST(a_boot_id_of_another_size_is_none),
        TEST(a_store_that_another_process_holds_is_waited_for),
    };
    return cmocka_run_group_tests_name("storage_damage", tests, NULL, NULL);
}
