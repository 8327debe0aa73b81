/* Large files, read by threads ahead of their caller, and small ones without. */
#define _DEFAULT_SOURCE /* truncate, mkdtemp */
#include "base/random.h"
#include "storage/bulk_reader.h"
#include "tests/unit/storage_faults.h"
#include "tests/unit/storage_fixture.h"

#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define COUNT(array) (sizeof array / sizeof *(array))

/* Far more windows than are read ahead, and no multiple of a page. */
#define MIB  ((uint64_t)1 << 20)
#define SIZE (40 * MIB + 4321)

struct fixture {
    char directory[256], path[300];
    uint8_t *bytes; /* [SIZE] what is in the file */
    struct bulk_reader *reader;
};

static void write_file(const char *path, const uint8_t *bytes, uint64_t size)
{
    FILE *stream = fopen(path, "wb");
    assert_non_null(stream);
    assert_int_equal(fwrite(bytes, 1, size, stream), size);
    assert_int_equal(fclose(stream), 0);
}

static int setup(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    struct amp_random random;
    strcpy(fixture->directory, storage_fixture_directory());
    (void)snprintf(fixture->path, sizeof fixture->path, "%s/file", fixture->directory);
    fixture->bytes = malloc(SIZE + 1);
    amp_random_init(&random, 7);
    for (uint64_t i = 0; i < SIZE; i++)
        fixture->bytes[i] = (uint8_t)(amp_random_next(&random) >> 32);
    storage_faults_clear();
    write_file(fixture->path, fixture->bytes, SIZE);
    *state = fixture;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;
    storage_faults_clear();
    bulk_reader_close(fixture->reader);
    storage_fixture_remove(fixture->directory);
    free(fixture->bytes);
    free(fixture);
    return 0;
}

static void open_file(struct fixture *fixture)
{
    bulk_reader_close(fixture->reader);
    assert_int_equal(bulk_reader_open(fixture->path, &fixture->reader, NULL), 0);
}

/* One call, whose bytes are those of the file; how many there were, or 0 with what went wrong in *error. */
static uint64_t get(struct fixture *fixture, uint64_t offset, uint64_t size, struct amp_error *error)
{
    const uint8_t *data;
    uint64_t got = 0;
    int rc = bulk_reader_get(fixture->reader, offset, size, &data, &got, error);
    if (rc != 0) {
        assert_int_equal(error->code, rc);
        return 0;
    }
    assert_true(got > 0 && got <= size);
    assert_memory_equal(data, fixture->bytes + offset, got);
    return got;
}

/* The offset from `begin` on at which there is an error, or `end`. */
static uint64_t get_all(struct fixture *fixture, uint64_t begin, uint64_t end, uint64_t most, struct amp_error *error)
{
    struct amp_random random;
    amp_random_init(&random, most);
    while (begin < end) {
        uint64_t size = 1 + amp_random_next(&random) % most;
        uint64_t got = get(fixture, begin, size < end - begin ? size : end - begin, error);
        if (got == 0)
            break;
        begin += got;
    }
    return begin;
}

static void a_file_comes_in_any_pieces(void **state)
{
    struct fixture *fixture = *state;
    static const uint64_t most[] = {20000, 300000, 5 * MIB}, begin[] = {0, 12345, 2 * MIB - 1};
    for (size_t i = 0; i < COUNT(most); i++) {
        open_file(fixture);
        assert_int_equal(bulk_reader_size(fixture->reader), SIZE);
        assert_int_equal(get_all(fixture, begin[i], SIZE, most[i], NULL), SIZE);
    }
}

static void a_file_comes_also_in_jumps(void **state)
{
    struct fixture *fixture = *state;
    struct amp_random random;
    amp_random_init(&random, 11);
    open_file(fixture);
    for (unsigned i = 0; i < 60; i++) {
        uint64_t begin = amp_random_next(&random) % SIZE, end = begin + 1 + amp_random_next(&random) % (3 * MIB);
        end = end < SIZE ? end : SIZE;
        assert_int_equal(get_all(fixture, begin, end, MIB, NULL), end);
    }
    for (unsigned from = 0; from < 4; from++) /* back and forth, without a wait for what is read ahead */
        for (uint64_t at = from; at < SIZE; at += (1 + at % 3) * MIB) {
            assert_true(get(fixture, at, 1, NULL) == 1);
            assert_true(get(fixture, SIZE - 1 - at, 1, NULL) == 1);
        }
}

static void pieces_that_are_skipped_cost_none_of_the_others(void **state)
{
    struct fixture *fixture = *state;
    for (uint64_t step = MIB / 2; step < 9 * MIB; step *= 2) {
        open_file(fixture);
        for (uint64_t at = 8; at < SIZE; at += step) {
            uint64_t end = SIZE - at < step / 3 ? SIZE : at + step / 3;
            assert_int_equal(get_all(fixture, at, end, MIB, NULL), end);
        }
    }
}

static void a_disk_that_refuses_direct_reads_gives_the_same_bytes(void **state)
{
    struct fixture *fixture = *state;
    storage_faults.refuse_direct = 1;
    open_file(fixture);
    assert_int_equal(get_all(fixture, 0, SIZE, MIB, NULL), SIZE);
}

static void a_file_in_memory_is_read(void **state)
{
    struct fixture *fixture = *state;
    char on_disk[sizeof fixture->path], folder[] = "/dev/shm/ampd-reader-XXXXXX";
    if (mkdtemp(folder) == NULL) {
        print_message("SKIPPED: no file system in memory at /dev/shm\n");
        skip();
    }
    strcpy(on_disk, fixture->path);
    (void)snprintf(fixture->path, sizeof fixture->path, "%s/file", folder);
    write_file(fixture->path, fixture->bytes, SIZE);
    open_file(fixture);
    assert_int_equal(get_all(fixture, 0, SIZE, MIB, NULL), SIZE);
    storage_fixture_remove(folder);
    strcpy(fixture->path, on_disk);
}

/* What was read ahead before the cut may still come, so what is asked for is far behind that. */
static void a_file_that_is_cut_off_meanwhile_is_told(void **state)
{
    struct fixture *fixture = *state;
    static const uint64_t cuts[] = {SIZE - 1, 40 * MIB, 39 * MIB + 4096, 38 * MIB + 1, 30 * MIB, 4097, 1, 0};
    for (size_t i = 0; i < COUNT(cuts); i++) {
        struct amp_error error;
        write_file(fixture->path, fixture->bytes, SIZE);
        open_file(fixture);
        assert_int_equal(truncate(fixture->path, (off_t)cuts[i]), 0);
        uint64_t whole = get_all(fixture, 0, SIZE, MIB, &error);
        assert_true(whole >= cuts[i] && whole < SIZE);
        assert_int_equal(error.code, AMP_EDATALOSS);
        assert_string_equal(error.reason, "CHECKPOINT_DAMAGED");
        assert_non_null(strstr(error.text, "the file is cut off"));
        assert_int_equal(get(fixture, SIZE - 1, 1, &error), 0);
        if (cuts[i] > 0)
            assert_true(get(fixture, cuts[i] - 1, 1, &error) == 1); /* what is there is there */
    }
}

static void a_file_that_grows_meanwhile_is_read_up_to_its_old_end(void **state)
{
    struct fixture *fixture = *state;
    open_file(fixture);
    assert_int_equal(truncate(fixture->path, (off_t)(SIZE + MIB)), 0);
    assert_int_equal(bulk_reader_size(fixture->reader), SIZE);
    assert_int_equal(get_all(fixture, 0, SIZE, 3 * MIB, NULL), SIZE);
}

static void a_failed_read_is_told_once_its_bytes_are_wanted(void **state)
{
    struct fixture *fixture = *state;
    unsigned reads = 0;
    for (unsigned at = 1;; at += 1 + at / 3) {
        struct amp_error error;
        bulk_reader_close(fixture->reader); /* its threads look at the faults too */
        storage_faults_clear();
        storage_faults.fail_read_at = at;
        assert_int_equal(bulk_reader_open(fixture->path, &fixture->reader, NULL), 0);
        uint64_t whole = get_all(fixture, 0, SIZE, MIB, &error);
        if (whole == SIZE)
            break;
        assert_int_equal(error.code, AMP_EIO);
        assert_non_null(strstr(error.text, strerror(EIO)));
        storage_faults_clear(); /* the disk is well again */
        assert_int_equal(get_all(fixture, whole, SIZE, MIB, &error), SIZE);
        reads = at;
    }
    assert_true(reads > 10);
}

static void a_reader_that_is_closed_early_ends(void **state)
{
    struct fixture *fixture = *state;
    for (unsigned i = 0; i < 20; i++) {
        storage_faults_clear();
        storage_faults.fail_read_at = i % 2 == 0 ? 0 : i;
        assert_int_equal(bulk_reader_open(fixture->path, &fixture->reader, NULL), 0);
        if (i % 4 > 1)
            (void)get(fixture, i * MIB, 1, &(struct amp_error){0});
        bulk_reader_close(fixture->reader);
    }
    bulk_reader_close(NULL);
    fixture->reader = NULL;
}

static unsigned threads_now(void)
{
    unsigned count = 0;
    DIR *tasks = opendir("/proc/self/task");
    assert_non_null(tasks);
    for (struct dirent *entry = readdir(tasks); entry != NULL; entry = readdir(tasks))
        count += entry->d_name[0] != '.';
    assert_int_equal(closedir(tasks), 0);
    return count;
}

static void only_a_large_file_is_worth_threads(void **state)
{
    struct fixture *fixture = *state;
    static const uint64_t small[] = {0, 1, 4096, 300001, 4 * MIB};
    unsigned before = threads_now();
    for (size_t i = 0; i < COUNT(small); i++) {
        write_file(fixture->path, fixture->bytes, small[i]);
        open_file(fixture);
        assert_int_equal(threads_now(), before);
        assert_int_equal(bulk_reader_size(fixture->reader), small[i]);
        assert_int_equal(get_all(fixture, 0, small[i], MIB, NULL), small[i]);
    }
    write_file(fixture->path, fixture->bytes, 4 * MIB + 1);
    open_file(fixture);
    assert_true(threads_now() > before);
    assert_int_equal(get_all(fixture, 0, 4 * MIB + 1, MIB, NULL), 4 * MIB + 1);
    bulk_reader_close(fixture->reader);
    fixture->reader = NULL;
}

static void a_small_file_that_is_cut_off_or_unreadable_is_told_too(void **state)
{
    struct fixture *fixture = *state;
    struct amp_error error;
    write_file(fixture->path, fixture->bytes, 8192);
    open_file(fixture);
    storage_faults.fail_read_at = 1;
    assert_int_equal(get(fixture, 0, 8192, &error), 0);
    assert_int_equal(error.code, AMP_EIO);
    storage_faults_clear();
    assert_int_equal(truncate(fixture->path, 5000), 0);
    assert_int_equal(get_all(fixture, 0, 8192, 8192, &error), 5000);
    assert_int_equal(error.code, AMP_EDATALOSS);
}

static void what_cannot_be_opened_is_told(void **state)
{
    struct fixture *fixture = *state;
    static const struct {
        const char *path, *reason;
        int rc;
    } rows[] = {{"/tmp/nowhere/none", "CHECKPOINT_UNREADABLE", AMP_ENOTFOUND},
                {"/dev/null/none", "CHECKPOINT_UNREADABLE", AMP_EIO},
                {"/dev/null", "CHECKPOINT_DAMAGED", AMP_EDATALOSS},
                {"/tmp", "CHECKPOINT_DAMAGED", AMP_EDATALOSS}};
    for (size_t i = 0; i < COUNT(rows); i++) {
        struct amp_error error;
        assert_int_equal(bulk_reader_open(rows[i].path, &fixture->reader, &error), rows[i].rc);
        assert_null(fixture->reader);
        assert_string_equal(error.reason, rows[i].reason);
        assert_non_null(strstr(error.text, rows[i].path));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_file_comes_in_any_pieces, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_comes_also_in_jumps, setup, teardown),
        cmocka_unit_test_setup_teardown(pieces_that_are_skipped_cost_none_of_the_others, setup, teardown),
        cmocka_unit_test_setup_teardown(a_disk_that_refuses_direct_reads_gives_the_same_bytes, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_in_memory_is_read, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_that_is_cut_off_meanwhile_is_told, setup, teardown),
        cmocka_unit_test_setup_teardown(a_file_that_grows_meanwhile_is_read_up_to_its_old_end, setup, teardown),
        cmocka_unit_test_setup_teardown(a_failed_read_is_told_once_its_bytes_are_wanted, setup, teardown),
        cmocka_unit_test_setup_teardown(a_reader_that_is_closed_early_ends, setup, teardown),
        cmocka_unit_test_setup_teardown(only_a_large_file_is_worth_threads, setup, teardown),
        cmocka_unit_test_setup_teardown(a_small_file_that_is_cut_off_or_unreadable_is_told_too, setup, teardown),
        cmocka_unit_test_setup_teardown(what_cannot_be_opened_is_told, setup, teardown),
    };
    return cmocka_run_group_tests_name("storage_bulk_reader", tests, NULL, NULL);
}
