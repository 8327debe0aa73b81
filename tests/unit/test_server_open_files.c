/* How many descriptors are open: of this process, and by a folder of another one's as a temporary folder plays it. */
#include "server/io/base/open_files.h"
#include "tests/temp_folder.h"

#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <unistd.h>

/* cmocka needs the headers above. */
#include <cmocka.h>

/* More than any walk over some files holds for. */
#define LATER_US ((uint64_t)3600 * 1000000)

static void put(const char *folder, const char *name)
{
    char path[128];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(close(fd), 0);
}

static void every_descriptor_counts_but_the_one_that_counts(void **state)
{
    (void)state;
    uint64_t before = io_open_files_walk(IO_OPEN_FILES_FOLDER);
    assert_true(before >= 1);
    int fds[20];
    for (size_t i = 0; i < 20; i++)
        assert_true((fds[i] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0);
    assert_int_equal(io_open_files_walk(IO_OPEN_FILES_FOLDER), before + 20);
    for (size_t i = 0; i < 20; i++)
        assert_int_equal(close(fds[i]), 0);
    assert_int_equal(io_open_files_walk(IO_OPEN_FILES_FOLDER), before);
}

static void where_none_is_left_all_are_open(void **state)
{
    (void)state;
    struct rlimit before;
    struct rlimit none;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before;
    none.rlim_cur = 3; /* the three that every process has */
    int fd = dup(STDERR_FILENO);
    assert_true(fd >= 3);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    uint64_t open_now = io_open_files_walk(IO_OPEN_FILES_FOLDER), most = io_open_files_max();
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(most, 3);
    assert_int_equal(open_now, 3);
    assert_int_equal(close(fd), 0);
}

static void what_the_system_does_not_say_is_0(void **state)
{
    (void)state;
    struct io_open_files known = {0};
    assert_int_equal(io_open_files_walk("/nowhere/at/all"), 0);
    assert_int_equal(io_open_files_count(&known, "/nowhere/at/all", 1), 0);
}

static void who_asks_again_at_once_gets_what_was_counted(void **state)
{
    (void)state;
    char folder[TEMP_FOLDER_MAX];
    assert_true(temp_folder(folder, "open-files"));
    put(folder, "100");
    put(folder, "101");
    struct io_open_files known = {0};
    uint64_t now_us = 5000000;
    assert_int_equal(io_open_files_count(&known, folder, now_us), 2);
    put(folder, "102");
    assert_int_equal(io_open_files_count(&known, folder, now_us + IO_OPEN_FILES_HOLD_US - 1), 2);
    assert_int_equal(io_open_files_count(&known, folder, now_us + LATER_US), 3);
    char command[TEMP_FOLDER_MAX + 16];
    (void)snprintf(command, sizeof command, "rm -r '%s'", folder);
    assert_int_equal(system(command), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_descriptor_counts_but_the_one_that_counts),
        cmocka_unit_test(where_none_is_left_all_are_open),
        cmocka_unit_test(what_the_system_does_not_say_is_0),
        cmocka_unit_test(who_asks_again_at_once_gets_what_was_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
