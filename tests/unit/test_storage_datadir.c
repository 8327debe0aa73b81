/* The data directory: its lock, its version, and who may read it. */
#include "storage/datadir.h"
#include "tests/unit/storage_faults.h"
#include "tests/unit/storage_fixture.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

struct fixture {
    char directory[256];
    char data[512]; /* directory/data, made by the test */
};

static int setup(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    strcpy(fixture->directory, storage_fixture_directory());
    (void)snprintf(fixture->data, sizeof fixture->data, "%s/data", fixture->directory);
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

static void a_new_directory_is_private_and_has_its_version(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_datadir dir;
    struct stat info;
    assert_int_equal(ampd_datadir_open(&dir, fixture->data, NULL), 0);
    assert_int_equal(stat(fixture->data, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0700);
    char path[600], text[16] = "";
    (void)snprintf(path, sizeof path, "%s/VERSION", fixture->data);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof text, file));
    assert_int_equal(fclose(file), 0);
    assert_string_equal(text, "1\n");
    ampd_datadir_close(&dir);
}

static void a_held_directory_is_refused_with_the_holders_pid(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_datadir dir, second;
    struct amp_error error;
    char pid[64];
    assert_int_equal(ampd_datadir_open(&dir, fixture->data, NULL), 0);
    assert_int_equal(ampd_datadir_open(&second, fixture->data, &error), AMP_ELOCKED);
    (void)snprintf(pid, sizeof pid, "process %ld:", (long)getpid());
    assert_non_null(strstr(error.text, pid));
    ampd_datadir_close(&dir);
    assert_int_equal(ampd_datadir_open(&second, fixture->data, NULL), 0);
    ampd_datadir_close(&second);
}

static void a_directory_that_cannot_be_locked_is_refused_and_says_why(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_datadir dir;
    struct amp_error error;
    static const int causes[] = {ENOLCK, EIO, EBADF, ENOSYS};
    for (size_t i = 0; i < sizeof causes / sizeof *causes; i++) {
        storage_faults.fail_locks = 1;
        storage_faults.lock_errno = causes[i];
        assert_int_equal(ampd_datadir_open(&dir, fixture->data, &error), AMP_EINVAL);
        assert_non_null(strstr(error.text, fixture->data));
        assert_non_null(strstr(error.text, strerror(causes[i])));
        assert_non_null(strstr(error.text, "choose a --data-dir"));
    }
}

static void a_lock_that_a_signal_interrupts_is_asked_for_again(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_datadir dir, second;
    storage_faults.fail_locks = 3;
    storage_faults.lock_errno = EINTR;
    assert_int_equal(ampd_datadir_open(&dir, fixture->data, NULL), 0);
    assert_int_equal(storage_faults.fail_locks, 0);
    assert_int_equal(ampd_datadir_open(&second, fixture->data, NULL), AMP_ELOCKED);
    ampd_datadir_close(&dir);
}

static void a_full_disk_has_no_room_for_the_pid_and_the_lock_counts(void **state)
{
    struct fixture *fixture = *state;
    struct amp_error error;
    int first, second;
    assert_int_equal(mkdir(fixture->data, 0700), 0);
    storage_faults.fail_write_at = 1;
    storage_faults.write_errno = ENOSPC;
    assert_int_equal(ampd_datadir_lock(fixture->data, "LOCK", "directory", "--option", &first, NULL), 0);
    int rc = ampd_datadir_lock(fixture->data, "LOCK", "directory", "--option", &second, &error);
    assert_int_equal(rc, AMP_ELOCKED);
    assert_non_null(strstr(error.text, "is in use by another process:"));
    assert_int_equal(close(first), 0);
}

static void a_newer_or_foreign_directory_is_refused(void **state)
{
    struct fixture *fixture = *state;
    struct ampd_datadir dir;
    struct amp_error error;
    assert_int_equal(mkdir(fixture->data, 0755), 0);
    storage_fixture_write(fixture->data, "VERSION", "2\n");
    assert_int_equal(ampd_datadir_open(&dir, fixture->data, &error), AMP_EVERSION);
    assert_non_null(strstr(error.text, "layout 2"));
    storage_fixture_write(fixture->data, "VERSION", "hello\n");
    assert_int_equal(ampd_datadir_open(&dir, fixture->data, &error), AMP_EINVAL);
    assert_int_equal(ampd_datadir_open(&dir, "/nowhere/at/all", &error), AMP_EINVAL);
    assert_int_equal(ampd_datadir_open(&dir, "", &error), AMP_EINVAL);
}

static void only_plain_names_can_name_a_model(void **state)
{
    char longest[AMPD_NAME_MAX + 1];
    memset(longest, 'a', sizeof longest);
    longest[AMPD_NAME_MAX] = 0;
    assert_false(ampd_datadir_name_ok(longest));
    longest[AMPD_NAME_MAX - 1] = 0;
    assert_true(ampd_datadir_name_ok(longest));
    assert_true(ampd_datadir_name_ok("Digits-2.fp16_x"));
    assert_false(ampd_datadir_name_ok(""));
    assert_false(ampd_datadir_name_ok(".hidden"));
    assert_false(ampd_datadir_name_ok("a/b"));
    assert_false(ampd_datadir_name_ok("a b"));
    assert_false(ampd_datadir_name_ok("\xc3\xa4"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_new_directory_is_private_and_has_its_version, setup, teardown),
        cmocka_unit_test_setup_teardown(a_held_directory_is_refused_with_the_holders_pid, setup, teardown),
        cmocka_unit_test_setup_teardown(a_directory_that_cannot_be_locked_is_refused_and_says_why, setup, teardown),
        cmocka_unit_test_setup_teardown(a_lock_that_a_signal_interrupts_is_asked_for_again, setup, teardown),
        cmocka_unit_test_setup_teardown(a_full_disk_has_no_room_for_the_pid_and_the_lock_counts, setup, teardown),
        cmocka_unit_test_setup_teardown(a_newer_or_foreign_directory_is_refused, setup, teardown),
        cmocka_unit_test(only_plain_names_can_name_a_model),
    };
    return cmocka_run_group_tests_name("storage_datadir", tests, NULL, NULL);
}
