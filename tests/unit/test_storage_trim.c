/* The beginning of a history that goes, on every implementation of the store: what store_trim.h promises. */
#include "storage/store.h"
#include "tests/unit/storage_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

struct fixture {
    bool sqlite;
    char directory[256];
    struct ampd_store *store;
};

static int setup_with(void **state, bool sqlite)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    fixture->sqlite = sqlite;
    strcpy(fixture->directory, storage_fixture_directory());
    *state = fixture;
    return sqlite ? ampd_store_sqlite_open(fixture->directory, &fixture->store, NULL)
                  : ampd_store_memory_open(&fixture->store, NULL);
}

static int setup_memory(void **state)
{
    return setup_with(state, false);
}

static int setup_sqlite(void **state)
{
    return setup_with(state, true);
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;
    ampd_store_close(fixture->store);
    storage_fixture_remove(fixture->directory);
    free(fixture);
    return 0;
}

static struct ampd_store *store_of_test(void **state)
{
    return ((struct fixture *)*state)->store;
}

static void put_epoch(struct ampd_store *store, uint64_t epoch, uint64_t base_epoch, uint64_t base_step)
{
    struct ampd_epoch_record record = storage_fixture_epoch(epoch, base_epoch, base_step);
    struct ampd_step_row row = storage_fixture_first_row(&record);
    assert_int_equal(ampd_store_put_epoch(store, "m", &record, &row, NULL), 0);
}

/* Decided `step` seconds after 1970. */
static int put_step(struct ampd_store *store, uint64_t epoch, uint64_t step)
{
    struct ampd_step_row row = storage_fixture_step(epoch, step, step % 3 == 0);
    row.at_us = (int64_t)step * 1000000;
    return ampd_store_put_verdict(store, "m", &row, false, NULL);
}

static void put_steps(struct ampd_store *store, uint64_t epoch, uint64_t first, uint64_t last)
{
    for (uint64_t step = first; step <= last; step++)
        assert_int_equal(put_step(store, epoch, step), 0);
}

static void put_act(struct ampd_store *store, uint64_t step, const char *request_id)
{
    struct ampd_step_row row = storage_fixture_step(1, step, false);
    row.kind = AMPD_ROW_SET;
    row.at_us = (int64_t)step * 1000000;
    strcpy(row.note.request_id, request_id);
    assert_int_equal(ampd_store_put_verdict(store, "m", &row, false, NULL), 0);
}

static void put_checkpoint(struct ampd_store *store, uint64_t epoch, uint64_t step)
{
    struct ampd_checkpoint_record record = {.epoch = epoch, .step = step, .version = step, .size_bytes = 1};
    strcpy(record.file, "models/m/checkpoints/x");
    assert_int_equal(ampd_store_put_checkpoint(store, "m", &record, NULL), 0);
}

/* A model "m" in epoch 1 with steps 1..count; every third one has two overflow rows. */
static void put_history(struct ampd_store *store, uint64_t count)
{
    struct ampd_model_spec spec = storage_fixture_spec("m");
    assert_int_equal(ampd_store_put_model(store, &spec, 42, NULL), 0);
    ampd_model_spec_clear(&spec);
    put_epoch(store, 1, 0, 0);
    put_steps(store, 1, 1, count);
}

static int see_row(void *arg, const struct ampd_history_key *key, const struct ampd_step_row *row,
                   const struct ampd_epoch_record *epoch)
{
    char *text = arg;
    sprintf(text + strlen(text), "%s%d.%d.%d", text[0] != 0 ? " " : "", (int)key->epoch, (int)key->step,
            (int)key->sequence);
    assert_int_equal(epoch != NULL, row->kind == AMPD_ROW_EPOCH);
    return 0;
}

static int see_overflow(void *arg, const struct ampd_history_key *key, const struct ampd_overflow_found *found)
{
    char *text = arg;
    sprintf(text + strlen(text), "%s%d.%d", text[0] != 0 ? " " : "", (int)key->epoch, (int)key->step);
    return 0;
}

/* All rows, also those that were superseded. */
static void assert_rows(struct ampd_store *store, const char *expected)
{
    const struct ampd_history_filter all = {.superseded_too = true};
    char text[4096] = "";
    assert_int_equal(ampd_store_page_history(store, "m", &all, 300, text, NULL, see_row), 0);
    assert_string_equal(text, expected);
}

static void assert_overflows(struct ampd_store *store, const char *expected)
{
    const struct ampd_history_filter all = {.superseded_too = true};
    char text[4096] = "";
    assert_int_equal(ampd_store_page_overflows(store, "m", &all, NULL, 300, text, NULL, see_overflow), 0);
    assert_string_equal(text, expected);
}

/* All portions of it; how many rows went. */
static uint64_t trim(struct ampd_store *store, struct ampd_history_limit limit)
{
    struct ampd_trimmed trimmed;
    uint64_t rows = 0;
    do {
        assert_int_equal(ampd_store_trim(store, "m", &limit, 3, &trimmed, NULL), 0);
        rows += trimmed.rows;
    } while (trimmed.more);
    return rows;
}

static void only_the_newest_steps_stay(void **state)
{
    struct ampd_store *store = store_of_test(state);
    put_history(store, 9);
    assert_int_equal(trim(store, (struct ampd_history_limit){0}), 0);
    assert_int_equal(trim(store, (struct ampd_history_limit){.rows = 9}), 0);
    assert_overflows(store, "1.3 1.3 1.6 1.6 1.9 1.9");
    assert_int_equal(trim(store, (struct ampd_history_limit){.rows = 4}), 5);
    assert_rows(store, "1.0.0 1.6.0 1.7.0 1.8.0 1.9.0");
    assert_overflows(store, "1.6 1.6 1.9 1.9");
    assert_int_equal(trim(store, (struct ampd_history_limit){.rows = 4}), 0);
}

static void steps_that_are_too_old_go_but_never_the_newest(void **state)
{
    struct ampd_store *store = store_of_test(state);
    put_history(store, 6);
    assert_int_equal(trim(store, (struct ampd_history_limit){.before_us = 4000000}), 3);
    assert_rows(store, "1.0.0 1.4.0 1.5.0 1.6.0");
    assert_int_equal(trim(store, (struct ampd_history_limit){.rows = 2, .before_us = 1}), 1);
    assert_int_equal(trim(store, (struct ampd_history_limit){.before_us = INT64_MAX}), 1);
    assert_rows(store, "1.0.0 1.6.0");
    assert_overflows(store, "1.6 1.6");
}

static void steps_of_a_clock_that_was_far_ahead_keep_nothing_behind_them(void **state)
{
    struct ampd_store *store = store_of_test(state);
    put_history(store, 0);
    for (uint64_t step = 1; step <= 9; step++) {
        struct ampd_step_row row = storage_fixture_step(1, step, false);
        row.at_us = (int64_t)(step <= 6 ? step + 3600 : step) * 1000000; /* then the clock was set right */
        assert_int_equal(ampd_store_put_verdict(store, "m", &row, false, NULL), 0);
    }
    struct ampd_history_limit limit = {.before_us = 1, .after_us = 3610 * (int64_t)1000000};
    assert_int_equal(trim(store, limit), 0);
    limit = (struct ampd_history_limit){.before_us = 8000000, .after_us = 20000000};
    assert_int_equal(trim(store, limit), 7);
    assert_rows(store, "1.0.0 1.8.0 1.9.0");
}

static void the_model_goes_on_behind_what_stays(void **state)
{
    struct ampd_store *store = store_of_test(state);
    struct ampd_model_record *records;
    size_t count;
    put_history(store, 5);
    trim(store, (struct ampd_history_limit){.rows = 1});
    assert_int_equal(put_step(store, 1, 7), AMP_ESTATE);
    put_steps(store, 1, 6, 7);
    assert_int_equal(put_step(store, 1, 6), AMP_EEXIST);
    assert_int_equal(ampd_store_load(store, &records, &count, NULL), 0);
    assert_int_equal(records[0].last->step, 7);
    ampd_model_records_free(records, count);
    put_epoch(store, 2, 1, 7);
    trim(store, (struct ampd_history_limit){.rows = 1, .before_us = INT64_MAX});
    put_steps(store, 2, 8, 8);
    assert_rows(store, "1.0.0 2.7.0 2.8.0");
}

static void rows_that_a_later_epoch_took_back_go_with_the_steps_around_them(void **state)
{
    struct ampd_store *store = store_of_test(state);
    put_history(store, 9);
    put_epoch(store, 2, 1, 5);
    put_steps(store, 2, 6, 7);
    assert_int_equal(trim(store, (struct ampd_history_limit){.rows = 4}), 3);
    assert_rows(store, "1.0.0 1.4.0 1.5.0 1.6.0 1.7.0 1.8.0 1.9.0 2.5.0 2.6.0 2.7.0");
    put_steps(store, 2, 8, 9);
    assert_int_equal(trim(store, (struct ampd_history_limit){.rows = 4}), 6);
    assert_rows(store, "1.0.0 2.5.0 2.6.0 2.7.0 2.8.0 2.9.0");
}

static void the_newest_acts_with_a_request_id_stay(void **state)
{
    struct ampd_store *store = store_of_test(state);
    struct ampd_model_record *records;
    size_t count;
    put_history(store, 2);
    put_act(store, 2, "");
    for (int i = 0; i < AMPD_ACTIONS_MAX + 1; i++) {
        char id[16];
        (void)snprintf(id, sizeof id, "id-%d", i);
        put_steps(store, 1, (uint64_t)i + 3, (uint64_t)i + 3);
        put_act(store, (uint64_t)i + 3, id);
    }
    put_steps(store, 1, AMPD_ACTIONS_MAX + 4, AMPD_ACTIONS_MAX + 9);
    assert_int_equal(trim(store, (struct ampd_history_limit){.rows = 1}), AMPD_ACTIONS_MAX + 8 + 2);
    assert_int_equal(ampd_store_load(store, &records, &count, NULL), 0);
    assert_int_equal(records[0].acts_count, AMPD_ACTIONS_MAX);
    assert_string_equal(records[0].acts[0].request_id, "id-1");
    assert_int_equal(records[0].acts[0].step, 4);
    ampd_model_records_free(records, count);
}

static void what_a_replay_of_the_journal_needs_stays(void **state)
{
    struct ampd_store *store = store_of_test(state);
    put_history(store, 4);
    assert_int_equal(trim(store, (struct ampd_history_limit){.rows = 1, .replays = true}), 0);
    put_checkpoint(store, 1, 4);
    put_steps(store, 1, 5, 9);
    assert_int_equal(trim(store, (struct ampd_history_limit){.rows = 1, .before_us = INT64_MAX, .replays = true}), 2);
    assert_rows(store, "1.0.0 1.3.0 1.4.0 1.5.0 1.6.0 1.7.0 1.8.0 1.9.0");
    assert_int_equal(trim(store, (struct ampd_history_limit){.rows = 1}), 6);
}

static void a_portion_is_bounded_and_says_whether_more_may_go(void **state)
{
    struct ampd_store *store = store_of_test(state);
    const struct ampd_history_limit limit = {.rows = 1};
    struct ampd_trimmed trimmed;
    put_history(store, 6);
    assert_int_equal(ampd_store_trim(store, "m", &limit, 2, &trimmed, NULL), 0);
    assert_int_equal(trimmed.rows, 2);
    assert_true(trimmed.more);
    assert_int_equal(ampd_store_trim(store, "m", &limit, 2, &trimmed, NULL), 0);
    assert_int_equal(trimmed.rows, 1); /* step 3 with its two overflow rows */
    assert_true(trimmed.more);
    assert_int_equal(ampd_store_trim(store, "m", &limit, 9, &trimmed, NULL), 0);
    assert_int_equal(trimmed.rows, 2);
    assert_false(trimmed.more);
    assert_int_equal(ampd_store_trim(store, "no", &limit, 9, &trimmed, NULL), AMP_ENOTFOUND);
}

static void a_draft_may_lack_the_beginning_and_nothing_behind_it(void **state)
{
    struct fixture *fixture = *state;
    ampd_store_close(fixture->store);
    assert_int_equal(ampd_store_sqlite_open_draft(fixture->directory, &fixture->store, NULL), 0);
    put_history(fixture->store, 0);
    put_epoch(fixture->store, 2, 1, 4);
    assert_int_equal(put_step(fixture->store, 2, 8), 0);
    assert_int_equal(put_step(fixture->store, 2, 10), AMP_ESTATE);
    put_steps(fixture->store, 2, 9, 10);
    put_epoch(fixture->store, 3, 2, 10);
    assert_int_equal(put_step(fixture->store, 3, 12), AMP_ESTATE);
    assert_int_equal(put_step(fixture->store, 3, 11), 0);
    assert_rows(fixture->store, "1.0.0 2.4.0 2.8.0 2.9.0 2.10.0 3.10.0 3.11.0");
}

static void a_store_that_is_no_draft_refuses_a_gap_at_the_beginning(void **state)
{
    struct ampd_store *store = store_of_test(state);
    put_history(store, 0);
    assert_int_equal(put_step(store, 1, 2), AMP_ESTATE);
}

#define ON_BOTH(test)                                                                                                  \
    {#test " (memory)", test, setup_memory, teardown, NULL},                                                           \
    {                                                                                                                  \
#test " (sqlite)", test, setup_sqlite, teardown, NULL                                                          \
    }

int main(void)
{
    const struct CMUnitTest tests[] = {
        ON_BOTH(only_the_newest_steps_stay),
        ON_BOTH(steps_that_are_too_old_go_but_never_the_newest),
        ON_BOTH(steps_of_a_clock_that_was_far_ahead_keep_nothing_behind_them),
        ON_BOTH(the_model_goes_on_behind_what_stays),
        ON_BOTH(rows_that_a_later_epoch_took_back_go_with_the_steps_around_them),
        ON_BOTH(the_newest_acts_with_a_request_id_stay),
        ON_BOTH(what_a_replay_of_the_journal_needs_stays),
        ON_BOTH(a_portion_is_bounded_and_says_whether_more_may_go),
        ON_BOTH(a_store_that_is_no_draft_refuses_a_gap_at_the_beginning),
        cmocka_unit_test_setup_teardown(a_draft_may_lack_the_beginning_and_nothing_behind_it, setup_sqlite, teardown),
    };
    return cmocka_run_group_tests_name("storage_trim", tests, NULL, NULL);
}
