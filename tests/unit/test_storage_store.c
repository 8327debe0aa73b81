/* One suite for every implementation of the store: what store.h promises. */
#include "storage/store.h"
#include "tests/unit/storage_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct fixture {
    bool sqlite, draft;
    char directory[256];
    struct ampd_store *store;
};

static int open_store(struct fixture *fixture)
{
    if (fixture->draft)
        return ampd_store_sqlite_open_draft(fixture->directory, &fixture->store, NULL);
    return fixture->sqlite ? ampd_store_sqlite_open(fixture->directory, &fixture->store, NULL)
                           : ampd_store_memory_open(&fixture->store, NULL);
}

static int setup_with(void **state, bool sqlite, bool draft)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    fixture->sqlite = sqlite;
    fixture->draft = draft;
    strcpy(fixture->directory, storage_fixture_directory());
    *state = fixture;
    return open_store(fixture);
}

static int setup_memory(void **state)
{
    return setup_with(state, false, false);
}

static int setup_sqlite(void **state)
{
    return setup_with(state, true, false);
}

static int setup_draft(void **state)
{
    return setup_with(state, true, true);
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;
    ampd_store_close(fixture->store);
    storage_fixture_remove(fixture->directory);
    free(fixture);
    return 0;
}

/* Closes and opens again where that keeps anything: what was stored must still be there. */
static void reopen(struct fixture *fixture)
{
    if (!fixture->sqlite)
        return;
    ampd_store_close(fixture->store);
    assert_int_equal(open_store(fixture), 0);
}

static void put_model(struct ampd_store *store, const char *name)
{
    struct ampd_model_spec spec = storage_fixture_spec(name);
    assert_int_equal(ampd_store_put_model(store, &spec, 42, NULL), 0);
    ampd_model_spec_clear(&spec);
}

static int put_epoch(struct ampd_store *store, const char *name, uint64_t epoch, uint64_t base_epoch,
                     uint64_t base_step)
{
    struct ampd_epoch_record record = storage_fixture_epoch(epoch, base_epoch, base_step);
    struct ampd_step_row row = storage_fixture_first_row(&record);
    return ampd_store_put_epoch(store, name, &record, &row, NULL);
}

static int put_step(struct ampd_store *store, const char *name, uint64_t epoch, uint64_t step, bool overflow)
{
    struct ampd_step_row row = storage_fixture_step(epoch, step, overflow);
    return ampd_store_put_verdict(store, name, &row, step % 3 == 0, NULL);
}

static int put_checkpoint(struct ampd_store *store, const char *name, uint64_t epoch, uint64_t step)
{
    struct ampd_checkpoint_record record = {.epoch = epoch, .step = step, .version = step, .size_bytes = 1 + step};
    strcpy(record.file, "models/m/checkpoints/x");
    memset(record.manifest, (int)step, sizeof record.manifest);
    return ampd_store_put_checkpoint(store, name, &record, NULL);
}

/* A model "m" in epoch 1 with steps 1..count; every third one overflowed. */
static void put_history(struct ampd_store *store, uint64_t count)
{
    put_model(store, "m");
    assert_int_equal(put_epoch(store, "m", 1, 0, 0), 0);
    for (uint64_t step = 1; step <= count; step++)
        assert_int_equal(put_step(store, "m", 1, step, step % 3 == 0), 0);
}

#define SEEN_MAX 64

struct seen {
    size_t count, stop_at;
    uint64_t superseded_step; /* of epoch 1 */
    struct ampd_history_key keys[SEEN_MAX];
    struct ampd_step_row *rows; /* [SEEN_MAX] */
    struct ampd_overflow_row overflows[SEEN_MAX];
};

static int see_row(void *arg, const struct ampd_history_key *key, const struct ampd_step_row *row,
                   const struct ampd_epoch_record *epoch)
{
    struct seen *seen = arg;
    assert_true(seen->count < SEEN_MAX);
    assert_int_equal(epoch != NULL, row->kind == AMPD_ROW_EPOCH);
    if (epoch != NULL) {
        assert_int_equal(epoch->epoch, row->epoch);
        assert_int_equal(epoch->base_step, row->step);
        assert_string_equal(epoch->reason, row->epoch == 1 ? "CREATED" : "RESTART");
    }
    seen->keys[seen->count] = *key;
    if (seen->rows != NULL)
        seen->rows[seen->count] = *row;
    seen->count++;
    return seen->count == seen->stop_at ? AMP_ECANCELLED : 0;
}

static int see_overflow(void *arg, const struct ampd_history_key *key, const struct ampd_overflow_found *found)
{
    struct seen *seen = arg;
    assert_true(seen->count < SEEN_MAX);
    seen->keys[seen->count] = *key;
    assert_int_equal(found->at_us, INT64_C(1790000000123456));
    assert_int_equal(found->superseded, key->epoch == 1 && key->step == seen->superseded_step);
    seen->overflows[seen->count++] = found->row;
    return 0;
}

static void assert_keys(const struct seen *seen, const char *expected)
{
    char text[SEEN_MAX * 16] = "";
    for (size_t i = 0; i < seen->count; i++)
        sprintf(text + strlen(text), "%s%d.%d.%d", i > 0 ? " " : "", (int)seen->keys[i].epoch, (int)seen->keys[i].step,
                (int)seen->keys[i].sequence);
    assert_string_equal(text, expected);
}

static void assert_page(struct ampd_store *store, struct ampd_history_filter filter, uint32_t limit,
                        const char *expected)
{
    struct seen seen = {0};
    assert_int_equal(ampd_store_page_history(store, "m", &filter, limit, &seen, NULL, see_row), 0);
    assert_keys(&seen, expected);
}

/* ---- boots, models ---- */

static void each_boot_has_a_higher_fence_and_its_own_id(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_fence fence, other = {7, {9}};
    uint8_t first[AMPD_BOOT_ID_BYTES] = {1, 0, 2}, second[AMPD_BOOT_ID_BYTES] = {3};
    assert_int_equal(ampd_store_boot(fixture->store, 0, first, &fence, NULL), 0);
    assert_int_equal(fence.counter, 1);
    assert_memory_equal(fence.boot_id, first, sizeof first);
    reopen(fixture);
    assert_int_equal(ampd_store_boot(fixture->store, 0, second, &fence, NULL), 0);
    assert_int_equal(fence.counter, 2);
    assert_memory_equal(fence.boot_id, second, sizeof second);
    assert_int_equal(ampd_store_put_fence(fixture->store, 3, &other, NULL), 0);
    reopen(fixture);
    assert_int_equal(ampd_store_get_fence(fixture->store, 3, &fence, NULL), 0);
    assert_int_equal(fence.counter, 7);
    assert_memory_equal(fence.boot_id, other.boot_id, sizeof other.boot_id);
    assert_int_equal(ampd_store_get_fence(fixture->store, 2, &fence, NULL), 0);
    assert_int_equal(fence.counter, 0);
    assert_int_equal(ampd_store_boot(fixture->store, 3, second, &fence, NULL), 0);
    assert_int_equal(fence.counter, 8);
}

static void assert_same_spec(const struct ampd_model_spec *left, const struct ampd_model_spec *right)
{
    struct ampd_model_spec a = *left, b = *right;
    assert_int_equal(a.parameters_count, b.parameters_count);
    assert_memory_equal(a.parameters, b.parameters, a.parameters_count * sizeof *a.parameters);
    a.parameters = b.parameters = NULL;
    assert_memory_equal(a.groups, b.groups, a.groups_count * sizeof *a.groups);
    assert_memory_equal(&a.scaler, &b.scaler, sizeof a.scaler);
    assert_memory_equal(&a, &b, sizeof a);
}

static void a_model_comes_back_as_it_was_given(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_model_record *records;
    size_t count;
    put_model(fixture->store, "zebra");
    put_model(fixture->store, "ant");
    reopen(fixture);
    assert_int_equal(ampd_store_load(fixture->store, &records, &count, NULL), 0);
    assert_int_equal(records[0].created_us, 42);
    assert_int_equal(count, 2);
    struct ampd_model_spec spec = storage_fixture_spec("ant");
    assert_same_spec(&records[0].spec, &spec);
    assert_string_equal(records[1].spec.name, "zebra");
    assert_int_equal(records[0].epoch, 0);
    assert_null(records[0].last);
    assert_int_equal(records[0].workers_count + records[0].checkpoints_count, 0);
    ampd_model_spec_clear(&spec);
    ampd_model_records_free(records, count);
}

static void a_second_model_of_one_name_is_refused(void **state)
{
    struct fixture *fixture = *state;
    struct amp_error error = {0};
    struct ampd_model_spec spec = storage_fixture_spec("m");
    put_model(fixture->store, "m");
    assert_int_equal(ampd_store_put_model(fixture->store, &spec, 1, &error), AMP_EEXIST);
    assert_string_equal(error.reason, "MODEL_EXISTS");
    assert_non_null(strstr(error.text, "\"m\""));
    ampd_model_spec_clear(&spec);
}

static void every_call_on_an_unknown_model_says_not_found(void **state)
{
    struct ampd_store *store = ((struct fixture *)*state)->store;
    struct ampd_worker_record worker = {.name = "w"};
    struct ampd_history_filter filter = {0};
    struct seen seen = {0};
    assert_int_equal(put_epoch(store, "no", 1, 0, 0), AMP_ENOTFOUND);
    assert_int_equal(put_step(store, "no", 1, 1, false), AMP_ENOTFOUND);
    assert_int_equal(put_checkpoint(store, "no", 1, 1), AMP_ENOTFOUND);
    assert_int_equal(ampd_store_put_worker(store, "no", &worker, NULL), AMP_ENOTFOUND);
    assert_int_equal(ampd_store_drop_checkpoint(store, "no", 1, 1, NULL), AMP_ENOTFOUND);
    assert_int_equal(ampd_store_page_history(store, "no", &filter, 1, &seen, NULL, see_row), AMP_ENOTFOUND);
    assert_int_equal(ampd_store_page_overflows(store, "no", &filter, NULL, 1, &seen, NULL, see_overflow),
                     AMP_ENOTFOUND);
}

/* ---- rows ---- */

static void a_step_comes_back_as_it_was_given(void **state)
{
    struct fixture *fixture = *state;
    put_history(fixture->store, 3);
    reopen(fixture);
    struct ampd_history_filter filter = {.from = {1, 2, 0}};
    struct seen seen = {.rows = calloc(SEEN_MAX, sizeof(struct ampd_step_row))};
    assert_int_equal(ampd_store_page_history(fixture->store, "m", &filter, 9, &seen, NULL, see_row), 0);
    assert_keys(&seen, "1.2.0 1.3.0");
    struct ampd_step_row applied = storage_fixture_step(1, 2, false), skipped = storage_fixture_step(1, 3, true);
    assert_memory_equal(&seen.rows[0], &applied, sizeof applied);
    assert_memory_equal(&seen.rows[1], &skipped, sizeof skipped);
    free(seen.rows);
}

static void a_row_without_the_one_before_it_is_refused(void **state)
{
    struct ampd_store *store = ((struct fixture *)*state)->store;
    put_history(store, 2);
    assert_int_equal(put_step(store, "m", 1, 4, false), AMP_ESTATE);
    assert_int_equal(put_step(store, "m", 1, 2, false), AMP_EEXIST);
    assert_int_equal(put_step(store, "m", 2, 3, false), AMP_ESTATE);
    assert_int_equal(put_step(store, "m", 1, 3, false), 0);
    assert_page(store, (struct ampd_history_filter){0}, 99, "1.0.0 1.1.0 1.2.0 1.3.0");
}

static void rows_that_are_stored_together_are_stored_in_order(void **state)
{
    const struct fixture *fixture = *state;
    struct ampd_store *store = fixture->store;
    put_history(store, 1);
    put_model(store, "n");
    assert_int_equal(put_epoch(store, "n", 1, 0, 0), 0);
    const struct ampd_step_row two = storage_fixture_step(1, 2, true), three = storage_fixture_step(1, 3, false),
                               one = storage_fixture_step(1, 1, false), five = storage_fixture_step(1, 5, false);
    const struct ampd_verdict_put good[] = {{"m", &two}, {"n", &one}, {"m", &three}};
    uint32_t stored = 99;
    assert_int_equal(ampd_store_put_verdicts(store, good, 3, true, &stored, NULL), 0);
    assert_int_equal(stored, 3);
    assert_page(store, (struct ampd_history_filter){0}, 99, "1.0.0 1.1.0 1.2.0 1.3.0");
    /* What is refused in the middle: as many are there as is said. */
    const struct ampd_verdict_put bad[] = {{"n", &two}, {"m", &five}, {"n", &three}};
    assert_int_equal(ampd_store_put_verdicts(store, bad, 3, true, &stored, NULL), AMP_ESTATE);
    assert_int_equal(stored, fixture->sqlite ? 0 : 1);
    assert_int_equal(put_step(store, "n", 1, 3, false), stored == 0 ? AMP_ESTATE : 0);
    assert_int_equal(put_step(store, "n", 1, 2, true), stored == 0 ? 0 : AMP_EEXIST);
    assert_int_equal(put_step(store, "n", 1, 3, false), stored == 0 ? 0 : AMP_EEXIST);
}

/* The store on disk keeps in mind what came last: no longer than it is true. */
static void a_model_is_known_until_its_epoch_or_its_life_ends(void **state)
{
    const struct fixture *fixture = *state;
    struct ampd_store *store = fixture->store;
    put_history(store, 3);
    assert_int_equal(put_step(store, "m", 1, 3, false), AMP_EEXIST);
    assert_int_equal(put_step(store, "m", 1, 4, false), 0);
    assert_int_equal(put_epoch(store, "m", 2, 1, 2), 0);
    assert_int_equal(put_step(store, "m", 1, 5, false), AMP_ESTATE);
    assert_int_equal(put_step(store, "m", 2, 5, false), AMP_ESTATE);
    assert_int_equal(put_step(store, "m", 2, 2, false), AMP_EEXIST); /* the epoch's own row */
    assert_int_equal(put_step(store, "m", 2, 3, false), 0);
    assert_int_equal(ampd_store_delete_model(store, "m", NULL), 0);
    assert_int_equal(put_step(store, "m", 2, 4, false), AMP_ENOTFOUND);
    put_history(store, 1);
    assert_int_equal(put_step(store, "m", 1, 3, false), AMP_ESTATE);
    assert_int_equal(put_step(store, "m", 1, 2, false), 0);
}

static void many_models_take_turns(void **state)
{
    const struct fixture *fixture = *state;
    struct ampd_store *store = fixture->store;
    char names[100][16];
    for (unsigned i = 0; i < 100; i++) {
        (void)snprintf(names[i], sizeof names[i], "model-%u", i);
        put_model(store, names[i]);
        assert_int_equal(put_epoch(store, names[i], 1, 0, 0), 0);
    }
    for (uint64_t step = 1; step <= 3; step++)
        for (unsigned i = 0; i < 100; i++) {
            assert_int_equal(put_step(store, names[i], 1, step, false), 0);
            assert_int_equal(put_step(store, names[i], 1, step + 2, false), AMP_ESTATE);
        }
}

static void set_and_reset_rows_follow_the_step_they_come_after(void **state)
{
    struct ampd_store *store = ((struct fixture *)*state)->store;
    put_history(store, 2);
    struct ampd_step_row set = storage_fixture_step(1, 1, false);
    set.kind = AMPD_ROW_SET;
    assert_int_equal(ampd_store_put_verdict(store, "m", &set, false, NULL), 0);
    set.kind = AMPD_ROW_RESET;
    set.after.scaler.scale_id++;
    assert_int_equal(ampd_store_put_verdict(store, "m", &set, true, NULL), 0);
    assert_page(store, (struct ampd_history_filter){0}, 99, "1.0.0 1.1.0 1.1.1 1.1.2 1.2.0");
}

/*
 * It comes with a message that is said again, perhaps after a crash that has left it behind a step without the next
 * one.
 */
static void an_act_that_comes_again_is_stored_once(void **state)
{
    struct fixture *fixture = *state;
    put_history(fixture->store, 2);
    struct ampd_step_row set = storage_fixture_step(1, 2, false);
    set.kind = AMPD_ROW_SET;
    for (int i = 0; i < 6; i++) {
        set.note.request_id[0] = (char)('a' + i % 2); /* with the same scale id: it may do nothing to the scale */
        assert_int_equal(ampd_store_put_verdict(fixture->store, "m", &set, i % 3 == 0, NULL), 0);
        if (i == 2)
            reopen(fixture);
    }
    assert_int_equal(put_step(fixture->store, "m", 1, 3, false), 0);
    set.step = 3; /* the same scale id behind another step is another act */
    assert_int_equal(ampd_store_put_verdict(fixture->store, "m", &set, true, NULL), 0);
    assert_page(fixture->store, (struct ampd_history_filter){0}, 99, "1.0.0 1.1.0 1.2.0 1.2.1 1.2.2 1.3.0 1.3.1");
}

static void a_new_epoch_supersedes_rows_above_its_base(void **state)
{
    struct fixture *fixture = *state;
    put_history(fixture->store, 4);
    struct ampd_step_row set = storage_fixture_step(1, 2, false);
    set.kind = AMPD_ROW_SET;
    assert_int_equal(ampd_store_put_verdict(fixture->store, "m", &set, false, NULL), 0);
    assert_int_equal(put_epoch(fixture->store, "m", 2, 1, 2), 0);
    assert_int_equal(put_step(fixture->store, "m", 1, 5, false), AMP_ESTATE);
    assert_int_equal(put_step(fixture->store, "m", 2, 3, true), 0);
    reopen(fixture);
    struct ampd_store *store = fixture->store;
    assert_page(store, (struct ampd_history_filter){0}, 99, "1.0.0 1.1.0 1.2.0 2.2.0 2.3.0");
    assert_page(store, (struct ampd_history_filter){.superseded_too = true}, 99,
                "1.0.0 1.1.0 1.2.0 1.2.1 1.3.0 1.4.0 2.2.0 2.3.0");
    struct seen seen = {0};
    struct ampd_history_filter current = {0}, all = {.superseded_too = true};
    assert_int_equal(ampd_store_page_overflows(store, "m", &current, NULL, 99, &seen, NULL, see_overflow), 0);
    assert_keys(&seen, "2.3.0 2.3.1");
    seen.count = 0;
    seen.superseded_step = 3;
    assert_int_equal(ampd_store_page_overflows(store, "m", &all, NULL, 99, &seen, NULL, see_overflow), 0);
    assert_keys(&seen, "1.3.0 1.3.1 2.3.0 2.3.1");
}

static void an_epoch_not_above_the_newest_is_refused(void **state)
{
    struct ampd_store *store = ((struct fixture *)*state)->store;
    put_model(store, "m");
    assert_int_equal(put_epoch(store, "m", 3, 0, 0), 0);
    assert_int_equal(put_epoch(store, "m", 3, 0, 0), AMP_ESTATE);
    assert_int_equal(put_epoch(store, "m", 2, 0, 0), AMP_ESTATE);
    assert_page(store, (struct ampd_history_filter){0}, 99, "3.0.0");
}

/* ---- pages ---- */

static void pages_are_cut_by_limit_and_go_on_from_a_key(void **state)
{
    struct ampd_store *store = ((struct fixture *)*state)->store;
    put_history(store, 5);
    assert_page(store, (struct ampd_history_filter){0}, 2, "1.0.0 1.1.0");
    assert_page(store, (struct ampd_history_filter){.from = {1, 1, 1}}, 2, "1.2.0 1.3.0");
    assert_page(store, (struct ampd_history_filter){.from = {1, 5, 1}}, 2, "");
    assert_page(store, (struct ampd_history_filter){.descending = true}, 2, "1.5.0 1.4.0");
    assert_page(store, (struct ampd_history_filter){.descending = true, .from = {1, 3, 0}}, 9,
                "1.3.0 1.2.0 1.1.0 1.0.0");
    assert_page(store, (struct ampd_history_filter){0}, 0, "");
}

static void pages_filter_by_epoch_and_by_verdict(void **state)
{
    struct ampd_store *store = ((struct fixture *)*state)->store;
    const uint32_t skipped = 1u << AMPD_VERDICT_SKIPPED_OVERFLOW | 1u << AMPD_VERDICT_SKIPPED_EMPTY;
    put_history(store, 7);
    assert_int_equal(put_epoch(store, "m", 2, 1, 4), 0);
    assert_page(store, (struct ampd_history_filter){.verdicts = 1u << AMPD_VERDICT_APPLIED}, 9, "1.1.0 1.2.0 1.4.0");
    assert_page(store, (struct ampd_history_filter){.step_min = 2, .step_max = 3}, 9, "1.2.0 1.3.0");
    assert_page(store, (struct ampd_history_filter){.step_min = 4}, 9, "1.4.0 2.4.0");
    assert_page(store, (struct ampd_history_filter){.step_min = 5}, 9, "");
    assert_page(store, (struct ampd_history_filter){.step_max = 1}, 9, "1.0.0 1.1.0");
    assert_page(store, (struct ampd_history_filter){.only_changes = true, .step_max = 2}, 9, "1.0.0 1.1.0 1.2.0");
    assert_page(store, (struct ampd_history_filter){.verdicts = skipped}, 9, "1.3.0");
    assert_page(store, (struct ampd_history_filter){.verdicts = 1 | skipped}, 9, "1.0.0 1.3.0 2.4.0");
    assert_page(store, (struct ampd_history_filter){.verdicts = skipped, .superseded_too = true}, 9, "1.3.0 1.6.0");
    assert_page(store, (struct ampd_history_filter){.epoch = 2}, 9, "2.4.0");
    assert_page(store, (struct ampd_history_filter){.epoch = 1, .from = {1, 3, 0}}, 9, "1.3.0 1.4.0");
    assert_page(store, (struct ampd_history_filter){.epoch = 1, .from = {0, 3, 0}}, 9, "1.3.0 1.4.0");
    assert_page(store, (struct ampd_history_filter){.epoch = 1, .from = {2, 1, 0}}, 9, "");
    assert_page(store, (struct ampd_history_filter){.epoch = 2, .from = {1, 1, 0}}, 9, "2.4.0");
    assert_page(store, (struct ampd_history_filter){.epoch = 1, .from = {2, 1, 0}, .descending = true}, 1, "1.4.0");
    assert_page(store, (struct ampd_history_filter){.epoch = 9}, 9, "");
}

static void overflow_rows_page_by_step_and_index(void **state)
{
    struct ampd_store *store = ((struct fixture *)*state)->store;
    put_history(store, 6);
    struct seen seen = {0};
    struct ampd_history_filter filter = {.from = {1, 3, 1}}, down = {.descending = true};
    assert_int_equal(ampd_store_page_overflows(store, "m", &filter, NULL, 2, &seen, NULL, see_overflow), 0);
    assert_keys(&seen, "1.3.1 1.6.0");
    struct ampd_step_row row = storage_fixture_step(1, 3, true);
    assert_memory_equal(&seen.overflows[0], &row.rows[1], sizeof row.rows[1]);
    assert_memory_equal(&seen.overflows[1], &row.rows[0], sizeof row.rows[0]);
    seen.count = 0;
    assert_int_equal(ampd_store_page_overflows(store, "m", &down, NULL, 3, &seen, NULL, see_overflow), 0);
    assert_keys(&seen, "1.6.1 1.6.0 1.3.1");
}

static void overflow_rows_filter_by_parameter_and_rank(void **state)
{
    struct ampd_store *store = ((struct fixture *)*state)->store;
    put_history(store, 6);
    struct seen seen = {0};
    struct ampd_history_filter filter = {.step_min = 4};
    struct ampd_overflow_filter workers = {0, UINT32_MAX, 0, AMPD_RANK_RANGE - 1};
    struct ampd_overflow_filter sum = {2, 2, AMPD_RANK_SUM, AMPD_RANK_SUM}, none = {5, 9, 0, UINT32_MAX};
    assert_int_equal(ampd_store_page_overflows(store, "m", &filter, &workers, 9, &seen, NULL, see_overflow), 0);
    assert_int_equal(ampd_store_page_overflows(store, "m", &filter, &none, 9, &seen, NULL, see_overflow), 0);
    assert_int_equal(ampd_store_page_overflows(store, "m", &filter, &sum, 9, &seen, NULL, see_overflow), 0);
    assert_keys(&seen, "1.6.0 1.6.1");
}

static void a_callback_ends_its_page_with_its_own_code(void **state)
{
    struct ampd_store *store = ((struct fixture *)*state)->store;
    put_history(store, 5);
    struct ampd_history_filter filter = {0};
    struct seen seen = {.stop_at = 2};
    assert_int_equal(ampd_store_page_history(store, "m", &filter, 9, &seen, NULL, see_row), AMP_ECANCELLED);
    assert_int_equal(seen.count, 2);
    assert_page(store, filter, 1, "1.0.0");
}

static void a_reader_sees_what_the_writer_stored(void **state)
{
    struct ampd_store *store = ((struct fixture *)*state)->store, *reader;
    put_history(store, 1);
    assert_int_equal(ampd_store_open_reader(store, &reader, NULL), 0);
    assert_page(reader, (struct ampd_history_filter){0}, 9, "1.0.0 1.1.0");
    assert_int_equal(put_step(store, "m", 1, 2, true), 0);
    assert_page(reader, (struct ampd_history_filter){0}, 9, "1.0.0 1.1.0 1.2.0");
    struct ampd_model_record *records;
    size_t count;
    assert_int_equal(ampd_store_load(reader, &records, &count, NULL), 0);
    assert_int_equal(records[0].last->step, 2);
    ampd_model_records_free(records, count);
    ampd_store_close(reader);
}

/* ---- what is found at start ---- */

static void load_gives_the_newest_epoch_its_last_row_and_the_workers(void **state)
{
    struct fixture *fixture = *state;
    put_history(fixture->store, 6);
    struct ampd_worker_record workers[] = {{"second", 1, {3, 4}, false},
                                           {"first", 0, {3, 5}, true},
                                           {"second", 1, {3, 6}, false},
                                           {"first", 7, {4, 1}, false}};
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(ampd_store_put_worker(fixture->store, "m", &workers[i], NULL), 0);
    reopen(fixture);
    struct ampd_model_record *records;
    size_t count;
    assert_int_equal(ampd_store_load(fixture->store, &records, &count, NULL), 0);
    assert_int_equal(count, 1);
    assert_int_equal(records[0].epoch, 1);
    assert_int_equal(records[0].base_step, 0);
    struct ampd_step_row last = storage_fixture_step(1, 6, true);
    assert_memory_equal(records[0].last, &last, sizeof last);
    assert_int_equal(records[0].workers_count, 2); /* the name "first" moved from rank 0 to 7 */
    assert_string_equal(records[0].workers[0].name, "second");
    assert_int_equal(records[0].workers[0].incarnation.counter, 6);
    assert_int_equal(records[0].workers[1].rank, 7);
    assert_false(records[0].workers[1].left);
    ampd_model_records_free(records, count);
    assert_int_equal(put_epoch(fixture->store, "m", 5, 1, 4), 0);
    assert_int_equal(ampd_store_load(fixture->store, &records, &count, NULL), 0);
    assert_int_equal(records[0].epoch, 5);
    assert_int_equal(records[0].base_step, 4);
    assert_int_equal(records[0].last->kind, AMPD_ROW_EPOCH);
    assert_int_equal(records[0].last->parent_epoch, 4);
    ampd_model_records_free(records, count);
}

static void assert_checkpoints(struct ampd_store *store, const char *expected)
{
    struct ampd_model_record *records;
    size_t count;
    char text[256] = "";
    assert_int_equal(ampd_store_load(store, &records, &count, NULL), 0);
    for (uint32_t i = 0; i < records[0].checkpoints_count; i++) {
        const struct ampd_checkpoint_record *at = &records[0].checkpoints[i];
        sprintf(text + strlen(text), "%d.%d ", (int)at->epoch, (int)at->step);
        assert_int_equal(at->version, at->step);
        assert_int_equal(at->size_bytes, 1 + at->step);
        assert_int_equal(at->manifest[15], at->step);
        assert_string_equal(at->file, "models/m/checkpoints/x");
    }
    assert_string_equal(text, expected);
    ampd_model_records_free(records, count);
}

static void a_new_epoch_voids_checkpoints_above_its_base(void **state)
{
    struct fixture *fixture = *state;
    put_history(fixture->store, 1);
    for (uint64_t step = 0; step <= 6; step += 2)
        assert_int_equal(put_checkpoint(fixture->store, "m", 1, step), 0);
    assert_int_equal(put_checkpoint(fixture->store, "m", 1, 6), 0); /* again: no second one */
    assert_int_equal(put_epoch(fixture->store, "m", 2, 1, 4), 0);
    assert_int_equal(put_checkpoint(fixture->store, "m", 1, 8), AMP_ESTATE);
    assert_int_equal(put_checkpoint(fixture->store, "m", 2, 6), 0);
    reopen(fixture);
    assert_checkpoints(fixture->store, "1.0 1.2 1.4 2.6 ");
    assert_int_equal(ampd_store_drop_checkpoint(fixture->store, "m", 1, 2, NULL), 0);
    assert_int_equal(ampd_store_drop_checkpoint(fixture->store, "m", 1, 2, NULL), AMP_ENOTFOUND);
    reopen(fixture);
    assert_checkpoints(fixture->store, "1.0 1.4 2.6 ");
}

static void the_parts_of_a_checkpoint_are_kept_with_it(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_store *store = fixture->store;
    struct ampd_checkpoint_record record = {.epoch = 1, .step = 4, .parts_count = 3}, *found;
    struct ampd_model_record *records;
    size_t count;
    put_history(store, 1);
    assert_int_equal(put_checkpoint(store, "m", 1, 4), 0);
    memset(record.parts[2], 0x5a, sizeof record.parts[2]);
    assert_int_equal(ampd_store_put_parts(store, "m", &record, NULL), 0);
    record.step = 5;
    assert_int_equal(ampd_store_put_parts(store, "m", &record, NULL), AMP_ENOTFOUND);
    assert_int_equal(ampd_store_put_parts(store, "no", &record, NULL), AMP_ENOTFOUND);
    reopen(fixture);
    assert_int_equal(ampd_store_load(fixture->store, &records, &count, NULL), 0);
    found = records[0].checkpoints;
    assert_int_equal(records[0].checkpoints_count, 1);
    assert_int_equal(found->parts_count, 3);
    assert_memory_equal(found->parts, record.parts, 3 * sizeof record.parts[0]);
    assert_int_equal(found->size_bytes, 5); /* nothing else is another */
    ampd_model_records_free(records, count);
}

/* Another shard's part, or one of another number of shards, is taken up under a later epoch. */
static void a_checkpoint_of_an_earlier_epoch_can_be_adopted(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_store *store = fixture->store;
    struct ampd_checkpoint_record record = {
        .epoch = 1, .step = 4, .version = 4, .manifest[15] = 4, .file = "models/m/checkpoints/x", .size_bytes = 5};
    put_history(store, 1);
    assert_int_equal(put_checkpoint(store, "m", 1, 4), 0);
    assert_int_equal(put_epoch(store, "m", 2, 1, 4), 0);
    assert_int_equal(ampd_store_put_checkpoint(store, "m", &record, NULL), AMP_ESTATE);
    assert_int_equal(ampd_store_adopt_checkpoint(store, "m", &record, NULL), 0);
    record.epoch = 3;
    assert_int_equal(ampd_store_adopt_checkpoint(store, "m", &record, NULL), AMP_ESTATE);
    assert_int_equal(ampd_store_adopt_checkpoint(store, "no", &record, NULL), AMP_ENOTFOUND);
    assert_checkpoints(store, "1.4 ");
}

static void an_epoch_without_a_base_voids_every_checkpoint(void **state)
{
    struct ampd_store *store = ((struct fixture *)*state)->store;
    put_history(store, 2);
    assert_int_equal(put_checkpoint(store, "m", 1, 0), 0);
    assert_int_equal(put_epoch(store, "m", 2, 0, 0), 0);
    assert_checkpoints(store, "");
    assert_int_equal(put_checkpoint(store, "m", 2, 0), 0);
    assert_checkpoints(store, "2.0 ");
}

/* ---- operators' acts ---- */

static int put_act(struct ampd_store *store, enum ampd_row_kind kind, uint64_t step, const char *id)
{
    static uint64_t scale_id = 100;
    struct ampd_step_row row = storage_fixture_step(1, step, false);
    row.after.scaler.scale_id = ++scale_id;
    row.kind = kind;
    row.contributors[0].rank = 3;
    row.from_step = step + 2;
    strcpy(row.note.actor, "token:ann");
    strcpy(row.note.words, "loss spikes \xc3\xa4");
    strcpy(row.note.request_id, id);
    return ampd_store_put_verdict(store, "m", &row, true, NULL);
}

static void an_act_comes_back_with_who_asked_and_why(void **state)
{
    struct fixture *fixture = *state;
    put_history(fixture->store, 2);
    assert_int_equal(put_act(fixture->store, AMPD_ROW_SET, 2, "id-1"), 0);
    reopen(fixture);
    struct ampd_history_filter filter = {.from = {1, 2, 1}};
    struct seen seen = {.rows = calloc(SEEN_MAX, sizeof(struct ampd_step_row))};
    assert_int_equal(ampd_store_page_history(fixture->store, "m", &filter, 9, &seen, NULL, see_row), 0);
    assert_keys(&seen, "1.2.1");
    assert_int_equal(seen.rows[0].from_step, 4);
    assert_string_equal(seen.rows[0].note.actor, "token:ann");
    assert_string_equal(seen.rows[0].note.words, "loss spikes \xc3\xa4");
    assert_string_equal(seen.rows[0].note.request_id, "id-1");
    free(seen.rows);
}

static void load_gives_the_newest_acts_that_have_a_request_id(void **state)
{
    struct fixture *fixture = *state;
    put_history(fixture->store, 1);
    for (int i = 0; i < AMPD_ACTIONS_MAX + 3; i++) {
        char id[16];
        (void)snprintf(id, sizeof id, "id-%d", i);
        assert_int_equal(put_act(fixture->store, i % 2 == 0 ? AMPD_ROW_SET : AMPD_ROW_EVICT, 1, id), 0);
        assert_int_equal(put_act(fixture->store, AMPD_ROW_SET, 1, ""), 0);
    }
    struct ampd_epoch_record epoch = storage_fixture_epoch(2, 1, 1);
    struct ampd_step_row first = storage_fixture_first_row(&epoch);
    strcpy(first.note.request_id, "back");
    assert_int_equal(ampd_store_put_epoch(fixture->store, "m", &epoch, &first, NULL), 0);
    reopen(fixture);
    struct ampd_model_record *records;
    size_t count;
    assert_int_equal(ampd_store_load(fixture->store, &records, &count, NULL), 0);
    assert_int_equal(records[0].acts_count, AMPD_ACTIONS_MAX);
    const struct ampd_act_record *acts = records[0].acts;
    assert_string_equal(acts[0].request_id, "id-4");
    assert_int_equal(acts[0].kind, AMPD_ROW_SET);
    assert_true(acts[0].from_step == 3 && acts[0].after.lr == 0.1);
    assert_int_equal(acts[1].rank, acts[1].kind == AMPD_ROW_EVICT ? 3 : 0);
    assert_true(acts[0].superseded);
    assert_string_equal(acts[AMPD_ACTIONS_MAX - 1].request_id, "back");
    assert_int_equal(acts[AMPD_ACTIONS_MAX - 1].kind, AMPD_ROW_EPOCH);
    assert_int_equal(acts[AMPD_ACTIONS_MAX - 1].base_epoch, 1);
    assert_false(acts[AMPD_ACTIONS_MAX - 1].superseded);
    ampd_model_records_free(records, count);
}

/* A model from elsewhere is after step 9: what was here before is no part of that. */
static void an_epoch_without_a_checkpoint_goes_on_from_no_row_whatever_its_base_step(void **state)
{
    struct fixture *fixture = *state;
    put_history(fixture->store, 1);
    assert_int_equal(put_act(fixture->store, AMPD_ROW_SET, 1, "id-1"), 0);
    struct ampd_epoch_record epoch = storage_fixture_epoch(2, 0, 9);
    struct ampd_step_row first = storage_fixture_first_row(&epoch);
    assert_int_equal(ampd_store_put_epoch(fixture->store, "m", &epoch, &first, NULL), 0);
    assert_page(fixture->store, (struct ampd_history_filter){0}, 9, "1.0.0 2.9.0");
}

/* ---- the end of a model ---- */

static void a_deletion_that_has_begun_is_told_after_a_start(void **state)
{
    struct fixture *fixture = *state;
    put_history(fixture->store, 1);
    put_model(fixture->store, "n");
    assert_int_equal(ampd_store_mark_deleting(fixture->store, "m", NULL), 0);
    assert_int_equal(ampd_store_mark_deleting(fixture->store, "x", NULL), AMP_ENOTFOUND);
    reopen(fixture);
    struct ampd_model_record *records;
    size_t count;
    assert_int_equal(ampd_store_load(fixture->store, &records, &count, NULL), 0);
    assert_int_equal(count, 2);
    assert_true(records[0].deleting);
    assert_false(records[1].deleting);
    ampd_model_records_free(records, count);
}

static int count_name(void *arg, const char *name)
{
    assert_string_equal(name, "m");
    ++*(int *)arg;
    return 0;
}

static void a_deleted_model_is_gone_at_once_and_its_rows_in_portions(void **state)
{
    struct fixture *fixture = *state;
    put_history(fixture->store, 9);
    assert_int_equal(put_checkpoint(fixture->store, "m", 1, 0), 0);
    assert_int_equal(ampd_store_delete_model(fixture->store, "m", NULL), 0);
    assert_int_equal(ampd_store_delete_model(fixture->store, "m", NULL), AMP_ENOTFOUND);
    reopen(fixture);
    struct ampd_store *store = fixture->store;
    struct ampd_model_record *records;
    size_t count;
    assert_int_equal(ampd_store_load(store, &records, &count, NULL), 0);
    assert_int_equal(count, 0);
    ampd_model_records_free(records, count);
    put_history(store, 2); /* the name is free */
    int deleted = 0;
    assert_int_equal(ampd_store_each_deleted(store, &deleted, NULL, count_name), 0);
    assert_int_equal(deleted, fixture->sqlite ? 1 : 0);
    bool more = true;
    int portions = 0;
    while (more) {
        assert_int_equal(ampd_store_purge(store, 4, &more, NULL), 0);
        portions++;
    }
    assert_int_equal(portions, fixture->sqlite ? 5 : 1); /* 6 overflow rows and 10 rows, 4 at a time */
    assert_page(store, (struct ampd_history_filter){0}, 99, "1.0.0 1.1.0 1.2.0");
}

#define ON_ALL(test)                                                                                                   \
    {#test " (memory)", test, setup_memory, teardown, NULL}, {#test " (sqlite)", test, setup_sqlite, teardown, NULL},  \
    {                                                                                                                  \
#test " (draft)", test, setup_draft, teardown, NULL                                                            \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_ALL(each_boot_has_a_higher_fence_and_its_own_id),
        ON_ALL(a_model_comes_back_as_it_was_given),
        ON_ALL(a_second_model_of_one_name_is_refused),
        ON_ALL(every_call_on_an_unknown_model_says_not_found),
        ON_ALL(a_step_comes_back_as_it_was_given),
        ON_ALL(a_row_without_the_one_before_it_is_refused),
        ON_ALL(rows_that_are_stored_together_are_stored_in_order),
        ON_ALL(a_model_is_known_until_its_epoch_or_its_life_ends),
        ON_ALL(many_models_take_turns),
        ON_ALL(an_act_that_comes_again_is_stored_once),
        ON_ALL(set_and_reset_rows_follow_the_step_they_come_after),
        ON_ALL(a_new_epoch_supersedes_rows_above_its_base),
        ON_ALL(an_epoch_not_above_the_newest_is_refused),
        ON_ALL(pages_are_cut_by_limit_and_go_on_from_a_key),
        ON_ALL(pages_filter_by_epoch_and_by_verdict),
        ON_ALL(overflow_rows_page_by_step_and_index),
        ON_ALL(overflow_rows_filter_by_parameter_and_rank),
        ON_ALL(a_callback_ends_its_page_with_its_own_code),
        ON_ALL(a_reader_sees_what_the_writer_stored),
        ON_ALL(load_gives_the_newest_epoch_its_last_row_and_the_workers),
        ON_ALL(a_new_epoch_voids_checkpoints_above_its_base),
        ON_ALL(the_parts_of_a_checkpoint_are_kept_with_it),
        ON_ALL(a_checkpoint_of_an_earlier_epoch_can_be_adopted),
        ON_ALL(an_epoch_without_a_base_voids_every_checkpoint),
        ON_ALL(an_act_comes_back_with_who_asked_and_why),
        ON_ALL(load_gives_the_newest_acts_that_have_a_request_id),
        ON_ALL(an_epoch_without_a_checkpoint_goes_on_from_no_row_whatever_its_base_step),
        ON_ALL(a_deletion_that_has_begun_is_told_after_a_start),
        ON_ALL(a_deleted_model_is_gone_at_once_and_its_rows_in_portions),
    };
    return cmocka_run_group_tests_name("storage_store", tests, NULL, NULL);
}
