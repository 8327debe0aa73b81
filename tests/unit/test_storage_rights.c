/* Checkpoints whose folder is taken from ampd's user for a while: the call that could not go on is tried again. */
#include "storage/checkpoint.h"
#include "storage/checkpoint_writer.h"
#include "tests/unit/storage_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define NOBODY 65534
#define COUNT  6

static const uint64_t shape[] = {COUNT};
static float values[COUNT] = {1, 2, 3, 4, 5, 6}, back[COUNT];
static const struct ampd_checkpoint_tensor tensor = {"w", 1, shape, values, NULL, NULL, false, 0, 0};
static const struct ampd_checkpoint_state from = {.step = 7, .version = 7, .carry.scaler.scale = 2};

struct fixture {
    char directory[256];
    struct ampd_checkpoint_path place;
};

/* For root modes do not count: the test is another user meanwhile. */
static int setup(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    strcpy(fixture->directory, storage_fixture_directory());
    fixture->place = (struct ampd_checkpoint_path){fixture->directory, "m", 0, 1};
    assert_int_equal(geteuid() != 0 ? 0 : chown(fixture->directory, NOBODY, NOBODY), 0);
    assert_int_equal(geteuid() != 0 ? 0 : seteuid(NOBODY), 0);
    *state = fixture;
    return 0;
}

static int teardown(void **state)
{
    struct fixture *fixture = *state;
    assert_int_equal(seteuid(getuid()), 0);
    storage_fixture_remove(fixture->directory);
    free(fixture);
    return 0;
}

static void folder_mode(const struct fixture *fixture, mode_t mode)
{
    static const char folder[] = "models/m/checkpoints/step-0000000007";
    assert_int_equal(chmod(storage_fixture_below(fixture->directory, folder), mode), 0);
}

static struct ampd_checkpoint_writer *begin(const struct fixture *fixture)
{
    struct ampd_checkpoint_writer *writer;
    assert_int_equal(ampd_checkpoint_begin(&fixture->place, &tensor, 1, &from, &writer, NULL), 0);
    assert_int_equal(ampd_checkpoint_put(writer, 0, 0, COUNT, values, NULL, NULL, NULL), 0);
    return writer;
}

static void end(const struct fixture *fixture, struct ampd_checkpoint_writer *writer)
{
    const struct ampd_checkpoint_target target = {"w", 1, shape, back, NULL, NULL, false, 0, 0};
    struct ampd_checkpoint_record record;
    struct ampd_checkpoint_state to;
    memset(back, 0, sizeof back);
    assert_int_equal(ampd_checkpoint_end(writer, &record, NULL), 0);
    assert_int_equal(ampd_checkpoint_read(fixture->directory, record.file, record.manifest, &target, 1, &to, NULL), 0);
    assert_memory_equal(back, values, sizeof back);
    ampd_checkpoint_state_clear(&to);
}

static void a_part_whose_folder_may_not_be_changed_is_ended_once_it_may(void **state)
{
    struct fixture *fixture = *state;
    static const mode_t modes[] = {0555, 0, 0333}; /* no renaming, no finding, no syncing */
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        struct ampd_checkpoint_writer *writer = begin(fixture);
        struct ampd_checkpoint_record record;
        struct amp_error error = {0};
        folder_mode(fixture, modes[i]);
        for (int tries = 0; tries < 2; tries++) {
            assert_int_equal(ampd_checkpoint_end(writer, &record, &error), AMP_EDENIED);
            assert_string_equal(error.reason, "NO_ACCESS");
        }
        folder_mode(fixture, 0700);
        end(fixture, writer);
    }
}

static void what_a_kill_has_left_is_replaced_once_it_may_be(void **state)
{
    struct fixture *fixture = *state;
    static const char left[] = "models/m/checkpoints/step-0000000007/shard-0-of-1.safetensors.tmp";
    struct ampd_checkpoint_writer *writer = begin(fixture);
    struct amp_error error = {0};
    folder_mode(fixture, 0555);
    ampd_checkpoint_abandon(writer);
    assert_int_equal(access(storage_fixture_below(fixture->directory, left), F_OK), 0);
    for (int tries = 0; tries < 2; tries++) {
        assert_int_equal(ampd_checkpoint_begin(&fixture->place, &tensor, 1, &from, &writer, &error), AMP_EDENIED);
        assert_string_equal(error.reason, "NO_ACCESS");
    }
    folder_mode(fixture, 0700);
    end(fixture, begin(fixture));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_part_whose_folder_may_not_be_changed_is_ended_once_it_may, setup, teardown),
        cmocka_unit_test_setup_teardown(what_a_kill_has_left_is_replaced_once_it_may_be, setup, teardown),
    };
    return cmocka_run_group_tests_name("storage_rights", tests, NULL, NULL);
}
