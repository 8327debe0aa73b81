/* Large files, written by a thread behind their caller: what lies in them is test_storage_checkpoint.c's. */
#include "base/random.h"
#include "storage/bulk_writer.h"
#include "storage/checkpoint.h"
#include "storage/checkpoint_writer.h"
#include "tests/unit/storage_faults.h"
#include "tests/unit/storage_fixture.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* More windows than the writer has buffers, and no multiple of a page. */
#define SIZE    ((uint64_t)18 * 1024 * 1024 + 4321)
#define STREAMS 3

struct fixture {
    char directory[256], path[300];
    uint8_t *bytes;   /* [SIZE] what is to be in the file */
    unsigned refused; /* calls, for a full disk */
};

static int setup(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    struct amp_random random;
    strcpy(fixture->directory, storage_fixture_directory());
    (void)snprintf(fixture->path, sizeof fixture->path, "%s/file", fixture->directory);
    fixture->bytes = malloc(SIZE);
    amp_random_init(&random, 7);
    for (uint64_t i = 0; i < SIZE; i++)
        fixture->bytes[i] = (uint8_t)(amp_random_next(&random) >> 32);
    storage_faults_clear();
    *state = fixture;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;
    storage_faults_clear();
    storage_fixture_remove(fixture->directory);
    free(fixture->bytes);
    free(fixture);
    return 0;
}

/* What a caller does whose disk is full: it waits until it is not, and goes on with the rest. */
static void had_room(struct fixture *fixture, int rc, const struct amp_error *error)
{
    assert_int_equal(rc, AMP_EEXHAUSTED);
    assert_string_equal(error->reason, "NO_SPACE");
    fixture->refused++;
    storage_faults_clear();
}

static void put(struct fixture *fixture, struct bulk_writer *writer, uint64_t offset, uint64_t size)
{
    struct amp_error error;
    while (size > 0) {
        uint64_t taken;
        int rc = bulk_writer_put(writer, fixture->bytes + offset, size, offset, &taken, &error);
        assert_true(rc == 0 ? taken == size : taken < size);
        offset += taken;
        size -= taken;
        if (rc != 0)
            had_room(fixture, rc, &error);
    }
}

/* Puts the whole file in streams that take turns, in pieces of up to `most` bytes. */
static void write_file(struct fixture *fixture, uint64_t most)
{
    struct bulk_writer *writer;
    struct amp_error error;
    struct amp_random random;
    uint64_t at[STREAMS], end[STREAMS], left = SIZE;
    amp_random_init(&random, most);
    for (uint64_t i = 0; i < STREAMS; i++) {
        at[i] = i * (SIZE / STREAMS);
        end[i] = i + 1 < STREAMS ? (i + 1) * (SIZE / STREAMS) : SIZE;
    }
    assert_int_equal(bulk_writer_open(fixture->path, SIZE, &writer, NULL), 0);
    while (left > 0) {
        uint64_t i = amp_random_next(&random) % STREAMS, size = 1 + amp_random_next(&random) % most;
        size = size < end[i] - at[i] ? size : end[i] - at[i];
        put(fixture, writer, at[i], size);
        at[i] += size;
        left -= size;
    }
    for (int rc; (rc = bulk_writer_flush(writer, &error)) != 0;)
        had_room(fixture, rc, &error);
    assert_int_equal(bulk_writer_sync(writer), 0);
    assert_int_equal(bulk_writer_close(writer), 0);
}

static void check_file(const struct fixture *fixture)
{
    uint8_t *found = malloc(SIZE + 1);
    FILE *stream = fopen(fixture->path, "rb");
    assert_non_null(stream);
    assert_int_equal(fread(found, 1, SIZE + 1, stream), SIZE);
    assert_int_equal(fclose(stream), 0);
    assert_memory_equal(found, fixture->bytes, SIZE);
    free(found);
}

static void streams_in_any_pieces_make_the_file(void **state)
{
    struct fixture *fixture = *state;
    static const uint64_t most[] = {20000, (uint64_t)300 << 10, (uint64_t)5 << 20};
    for (unsigned i = 0; i < sizeof most / sizeof *most; i++) {
        write_file(fixture, most[i]);
        check_file(fixture);
    }
}

static void a_disk_that_refuses_direct_writes_gets_the_same_file(void **state)
{
    struct fixture *fixture = *state;
    storage_faults.refuse_direct = 1;
    write_file(fixture, (uint64_t)1 << 20);
    check_file(fixture);
}

static void a_full_disk_at_any_write_costs_no_byte(void **state)
{
    struct fixture *fixture = *state;
    unsigned writes = 0;
    for (unsigned at = 1;; at += 1 + at / 3) {
        fixture->refused = 0;
        storage_faults_clear();
        storage_faults.fail_write_at = at;
        storage_faults.write_errno = ENOSPC;
        write_file(fixture, (uint64_t)1 << 20);
        if (fixture->refused == 0)
            break;
        check_file(fixture);
        writes = at;
    }
    assert_true(writes > 5);
}

static void a_failed_write_is_told_and_stays(void **state)
{
    struct fixture *fixture = *state;
    struct bulk_writer *writer;
    struct amp_error error;
    uint64_t taken;
    assert_int_equal(bulk_writer_open(fixture->path, SIZE, &writer, NULL), 0);
    storage_faults.fail_write_at = 1;
    storage_faults.write_errno = EIO;
    assert_int_equal(bulk_writer_put(writer, fixture->bytes, SIZE, 0, &taken, &error), AMP_EIO);
    assert_string_equal(error.reason, "STORE_FAILED");
    storage_faults_clear();
    assert_int_equal(bulk_writer_flush(writer, &error), AMP_EIO);
    assert_int_equal(bulk_writer_close(writer), 0);
}

static void a_writer_that_is_closed_early_ends(void **state)
{
    struct fixture *fixture = *state;
    struct bulk_writer *writer;
    assert_int_equal(bulk_writer_open(fixture->path, SIZE, &writer, NULL), 0);
    put(fixture, writer, 0, SIZE / 2);
    assert_int_equal(bulk_writer_close(writer), 0);
    assert_int_equal(bulk_writer_close(NULL), 0);
    struct amp_error error;
    assert_int_equal(bulk_writer_open("/dev/null/none", SIZE, &writer, &error), AMP_EIO);
    assert_null(writer);
}

/* Every other piece of each window first: more of them than a window keeps apart. */
static void pieces_with_gaps_between_them_make_the_file(void **state)
{
    struct fixture *fixture = *state;
    static const uint64_t part = 100000;
    struct bulk_writer *writer;
    assert_int_equal(bulk_writer_open(fixture->path, SIZE, &writer, NULL), 0);
    for (unsigned odd = 0; odd < 2; odd++)
        for (uint64_t at = odd * part; at < SIZE; at += 2 * part)
            put(fixture, writer, at, SIZE - at < part ? SIZE - at : part);
    assert_int_equal(bulk_writer_flush(writer, NULL), 0);
    assert_int_equal(bulk_writer_close(writer), 0);
    check_file(fixture);
}

/* A checkpoint whose tensor is put bit by bit, as in the background, or at once. */
static void write_checkpoint(struct fixture *fixture, const float *values, uint64_t count, uint64_t part,
                             struct ampd_checkpoint_record *record)
{
    const struct ampd_checkpoint_path place = {fixture->directory, "m", 0, 1};
    const struct ampd_checkpoint_tensor tensor = {
        .name = "t", .dimensions = 1, .shape = &count, .master = values, .m = values, .v = values};
    const struct ampd_checkpoint_state state = {.step = 3, .carry.scaler.scale = 1, .world_size = 1};
    struct ampd_checkpoint_writer *writer;
    struct amp_error error;
    assert_int_equal(ampd_checkpoint_begin(&place, &tensor, 1, &state, &writer, &error), 0);
    for (uint64_t at = 0; at < count; at += part) {
        uint64_t now = count - at < part ? count - at : part;
        for (int rc;
             (rc = ampd_checkpoint_put(writer, 0, at, now, values + at, values + at, values + at, &error)) != 0;)
            had_room(fixture, rc, &error);
    }
    for (int rc; (rc = ampd_checkpoint_end(writer, record, &error)) != 0;)
        had_room(fixture, rc, &error);
}

static void a_checkpoint_on_a_disk_that_fills_up_is_read_back(void **state)
{
    struct fixture *fixture = *state;
    const uint64_t count = SIZE / STREAMS / sizeof(float);
    float *read = malloc(3 * count * sizeof *read), *values = malloc(count * sizeof *values);
    for (uint64_t i = 0; i < count; i++)
        values[i] = (float)fixture->bytes[i] / 7;
    const struct ampd_checkpoint_target target = {
        .name = "t", .dimensions = 1, .shape = &count, .master = read, .m = read + count, .v = read + 2 * count};
    for (unsigned at = 1, runs = 0;; at += 1 + at / 3, runs++) {
        struct ampd_checkpoint_record record;
        struct ampd_checkpoint_state found;
        fixture->refused = 0;
        storage_faults_clear();
        storage_faults.fail_write_at = at;
        storage_faults.write_errno = ENOSPC;
        write_checkpoint(fixture, values, count, runs % 2 == 0 ? 50000 : count, &record);
        if (fixture->refused == 0)
            break;
        assert_int_equal(
            ampd_checkpoint_read(fixture->directory, record.file, record.manifest, &target, 1, &found, NULL), 0);
        for (unsigned k = 0; k < 3; k++)
            assert_memory_equal(read + k * count, values, count * sizeof *values);
        ampd_checkpoint_state_clear(&found);
    }
    free(read);
    free(values);
}

/* As another number of shards does: the whole piece is hashed, and only its own part goes anywhere. */
static void of_a_large_tensor_only_the_part_that_is_wanted_is_written(void **state)
{
    struct fixture *fixture = *state;
    const uint64_t count = SIZE / STREAMS / sizeof(float), first = count / 3 + 1, wanted = count / 6, room = wanted + 2;
    float *values = malloc(count * sizeof *values), *read = malloc(3 * room * sizeof *read);
    const struct ampd_checkpoint_target target = {.name = "t",
                                                  .dimensions = 1,
                                                  .shape = &count,
                                                  .master = read + 1,
                                                  .m = read + room + 1,
                                                  .v = read + 2 * room + 1,
                                                  .is_part = true,
                                                  .first = first,
                                                  .end = first + wanted};
    struct ampd_checkpoint_record record;
    struct ampd_checkpoint_state found;
    for (uint64_t i = 0; i < count; i++)
        values[i] = (float)fixture->bytes[i] / 7;
    for (unsigned k = 0; k < 3; k++)
        read[k * room] = read[k * room + room - 1] = -1;
    write_checkpoint(fixture, values, count, count, &record);
    assert_int_equal(ampd_checkpoint_read(fixture->directory, record.file, record.manifest, &target, 1, &found, NULL),
                     0);
    for (unsigned k = 0; k < 3; k++) {
        assert_memory_equal(read + k * room + 1, values + first, wanted * sizeof *read);
        assert_true(read[k * room] == -1 && read[k * room + room - 1] == -1);
    }
    ampd_checkpoint_state_clear(&found);
    free(read);
    free(values);
}

static void a_checkpoint_that_fails_in_its_middle_is_given_up(void **state)
{
    struct fixture *fixture = *state;
    const uint64_t count = SIZE / sizeof(float);
    const struct ampd_checkpoint_path place = {fixture->directory, "m", 0, 1};
    const struct ampd_checkpoint_tensor tensor = {
        .name = "t", .dimensions = 1, .shape = &count, .master = (const float *)(const void *)fixture->bytes};
    const struct ampd_checkpoint_state from = {.step = 3, .carry.scaler.scale = 1, .world_size = 1};
    struct ampd_checkpoint_record record;
    struct amp_error error;
    char path[600];
    atomic_bool cancel = false;
    (void)snprintf(path, sizeof path, "%s/models/m/checkpoints/step-0000000003/shard-0-of-1.safetensors",
                   fixture->directory);
    storage_faults.fail_write_at = 2;
    storage_faults.write_errno = EIO;
    assert_int_equal(ampd_checkpoint_write(&place, &tensor, 1, &from, &cancel, &record, &error), AMP_EIO);
    assert_string_equal(error.reason, "STORE_FAILED");
    storage_faults_clear();
    assert_int_equal(access(path, F_OK), -1);
    atomic_store(&cancel, true);
    assert_int_equal(ampd_checkpoint_write(&place, &tensor, 1, &from, &cancel, &record, &error), AMP_ECANCELLED);
    assert_int_equal(access(path, F_OK), -1);
    atomic_store(&cancel, false);
    assert_int_equal(ampd_checkpoint_write(&place, &tensor, 1, &from, &cancel, &record, &error), 0);
    assert_int_equal(access(path, F_OK), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(streams_in_any_pieces_make_the_file, setup, teardown),
        cmocka_unit_test_setup_teardown(a_disk_that_refuses_direct_writes_gets_the_same_file, setup, teardown),
        cmocka_unit_test_setup_teardown(a_full_disk_at_any_write_costs_no_byte, setup, teardown),
        cmocka_unit_test_setup_teardown(a_failed_write_is_told_and_stays, setup, teardown),
        cmocka_unit_test_setup_teardown(a_writer_that_is_closed_early_ends, setup, teardown),
        cmocka_unit_test_setup_teardown(pieces_with_gaps_between_them_make_the_file, setup, teardown),
        cmocka_unit_test_setup_teardown(a_checkpoint_on_a_disk_that_fills_up_is_read_back, setup, teardown),
        cmocka_unit_test_setup_teardown(of_a_large_tensor_only_the_part_that_is_wanted_is_written, setup, teardown),
        cmocka_unit_test_setup_teardown(a_checkpoint_that_fails_in_its_middle_is_given_up, setup, teardown),
    };
    return cmocka_run_group_tests_name("storage_bulk", tests, NULL, NULL);
}
