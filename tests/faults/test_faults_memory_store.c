/* The store in memory while memory is out, at each allocation of its life. */
#include "storage/store.h"
#include "tests/faults/faults.h"
#include "tests/unit/storage_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

static int pass_row(void *arg, const struct ampd_history_key *key, const struct ampd_step_row *row,
                    const struct ampd_epoch_record *epoch)
{
    (void)key;
    (void)row;
    (void)epoch;
    ++*(unsigned *)arg;
    return 0;
}

static int read_all(struct ampd_store *store, unsigned *rows)
{
    struct ampd_model_record *records;
    struct ampd_history_filter all = {0};
    struct ampd_store *reader;
    size_t count;
    int rc = ampd_store_open_reader(store, &reader, NULL);
    if (rc != 0)
        return rc;
    rc = ampd_store_page_history(reader, "m", &all, 99, rows, NULL, pass_row);
    if (rc == 0)
        rc = ampd_store_load(reader, &records, &count, NULL);
    if (rc == 0)
        ampd_model_records_free(records, count);
    ampd_store_close(reader);
    return rc;
}

static int write_some(struct ampd_store *store, const struct ampd_model_spec *spec)
{
    static const uint8_t boot_id[AMPD_BOOT_ID_BYTES] = "0123456789abcde";
    const struct ampd_epoch_record epoch = storage_fixture_epoch(1, 0, 0);
    const struct ampd_step_row first = storage_fixture_first_row(&epoch);
    const struct ampd_worker_record worker = {.name = "w", .rank = 1, .incarnation = {4, 17}};
    const struct ampd_checkpoint_record checkpoint = {.epoch = 1, .step = 1, .file = "f"};
    struct ampd_fence fence;
    int rc = ampd_store_boot(store, 0, boot_id, &fence, NULL);
    if (rc == 0)
        rc = ampd_store_put_fence(store, 1, &fence, NULL);
    if (rc == 0)
        rc = ampd_store_put_model(store, spec, 1, NULL);
    if (rc == 0)
        rc = ampd_store_put_epoch(store, "m", &epoch, &first, NULL);
    if (rc == 0)
        rc = ampd_store_put_worker(store, "m", &worker, NULL);
    if (rc == 0)
        rc = ampd_store_put_checkpoint(store, "m", &checkpoint, NULL);
    for (uint64_t step = 1; rc == 0 && step <= 3; step++) {
        const struct ampd_step_row row = storage_fixture_step(1, step, step == 2);
        rc = ampd_store_put_verdict(store, "m", &row, false, NULL);
    }
    return rc;
}

static int live(const struct ampd_model_spec *spec, unsigned *rows)
{
    struct ampd_store *store;
    int rc = ampd_store_memory_open(&store, NULL);
    if (rc != 0)
        return rc;
    rc = write_some(store, spec);
    if (rc == 0)
        rc = read_all(store, rows);
    ampd_store_close(store);
    return rc;
}

static void each_allocation_that_fails_is_told(void **state)
{
    struct ampd_model_spec spec = storage_fixture_spec("m");
    (void)state;
    spec.durability = AMPD_DURABILITY_STEP;
    for (int forever = 0; forever < 2; forever++) {
        uint64_t failed = 1, n = 1;
        for (; failed > 0; n++) {
            unsigned rows = 0;
            faults_arm(FAULTS_OURS, n, forever == 1, 0);
            int rc = live(&spec, &rows);
            failed = faults_disarm();
            assert_int_equal(rc, failed > 0 ? AMP_ENOMEM : 0);
            assert_true(rc != 0 || rows == 4);
        }
        assert_true(n > 10);
    }
    ampd_model_spec_clear(&spec);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_allocation_that_fails_is_told)};
    return cmocka_run_group_tests_name("faults_memory_store", tests, NULL, NULL);
}
