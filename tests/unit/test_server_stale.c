/* Which store is of before, and what becomes of its directory. */
#include "server/io/cluster/stale.h"
#include "tests/temp_folder.h"

#include <dirent.h>
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

/* ---- which is older ---- */

static struct ampd_model_record model(const char *name, uint64_t epoch)
{
    struct ampd_model_record record = {.epoch = epoch};
    (void)snprintf(record.spec.name, sizeof record.spec.name, "%s", name);
    return record;
}

static void a_store_with_the_same_models_and_epochs_is_not_older(void **state)
{
    const struct ampd_model_record own[] = {model("a", 3), model("b", 1)}, now[] = {model("b", 1), model("a", 3)};
    assert_false(io_stale_is_older(own, 2, now, 2));
    assert_false(io_stale_is_older(NULL, 0, NULL, 0));
}

static void a_store_that_lacks_an_epoch_is_older(void **state)
{
    const struct ampd_model_record own[] = {model("a", 3), model("b", 1)}, now[] = {model("a", 3), model("b", 2)};
    assert_true(io_stale_is_older(own, 2, now, 2));
}

static void a_store_with_a_later_epoch_is_not_older(void **state)
{
    const struct ampd_model_record own[] = {model("a", 4)}, now[] = {model("a", 3)};
    assert_false(io_stale_is_older(own, 1, now, 1));
}

static void a_store_that_lacks_a_model_is_older(void **state)
{
    const struct ampd_model_record own[] = {model("a", 9)}, now[] = {model("a", 3), model("b", 1)};
    assert_true(io_stale_is_older(own, 1, now, 2));
    assert_true(io_stale_is_older(NULL, 0, now, 2));
}

static void a_store_with_a_model_that_was_deleted_is_older(void **state)
{
    const struct ampd_model_record own[] = {model("a", 3), model("b", 1)}, now[] = {model("a", 3)};
    assert_true(io_stale_is_older(own, 2, now, 1));
    assert_true(io_stale_is_older(own, 2, NULL, 0));
}

/* ---- setting aside ---- */

static unsigned fail_readdir_at; /* the n-th call, from 1, fails; 0: none */

struct dirent *__real_readdir(DIR *dir);
struct dirent *__wrap_readdir(DIR *dir);

struct dirent *__wrap_readdir(DIR *dir)
{
    if (fail_readdir_at == 0 || --fail_readdir_at > 0)
        return __real_readdir(dir);
    errno = EIO;
    return NULL;
}

struct place {
    char root[TEMP_FOLDER_MAX], path[TEMP_FOLDER_MAX + 32];
    struct ampd_datadir dir;
};

static int set_up(void **state)
{
    struct place *place = calloc(1, sizeof *place);
    struct amp_error error;
    assert_non_null(place);
    assert_true(temp_folder(place->root, "stale"));
    (void)snprintf(place->path, sizeof place->path, "%s/shard-0-of-3", place->root);
    assert_int_equal(ampd_datadir_open(&place->dir, place->path, &error), 0);
    *state = place;
    return 0;
}

static int tear_down(void **state)
{
    struct place *place = *state;
    char command[2 * TEMP_FOLDER_MAX + 64];
    ampd_datadir_close(&place->dir);
    (void)snprintf(command, sizeof command, "chmod -R u+rwx '%s'; rm -rf '%s'", place->root, place->root);
    assert_int_equal(system(command), 0);
    free(place);
    return 0;
}

static void write_file(const struct place *place, const char *name, const char *text)
{
    char path[192];
    (void)snprintf(path, sizeof path, "%s/%s", place->root, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void make_dir(const struct place *place, const char *name)
{
    char path[192];
    (void)snprintf(path, sizeof path, "%s/%s", place->root, name);
    assert_int_equal(mkdir(path, 0700), 0);
}

static bool is_there(const struct place *place, const char *name)
{
    char path[192];
    (void)snprintf(path, sizeof path, "%s/%s", place->root, name);
    return access(path, F_OK) == 0;
}

static void what_is_set_aside_is_whole_and_an_empty_directory_stands_in_its_place(void **state)
{
    struct place *place = *state;
    char aside[AMPD_DATADIR_PATH_MAX], expected[192];
    struct amp_error error;
    write_file(place, "shard-0-of-3/ampd.db", "old");
    assert_int_equal(io_stale_set_aside(&place->dir, aside, &error), 0);
    (void)snprintf(expected, sizeof expected, "%s.stale-1", place->path);
    assert_string_equal(aside, expected);
    assert_true(is_there(place, "shard-0-of-3.stale-1/ampd.db"));
    assert_true(is_there(place, "shard-0-of-3/VERSION"));
    assert_false(is_there(place, "shard-0-of-3/ampd.db"));
    assert_true(place->dir.lock_fd >= 0); /* and it is held */
    struct ampd_datadir other;
    assert_int_equal(ampd_datadir_open(&other, place->path, &error), AMP_ELOCKED);
}

static void the_newest_are_kept_and_nothing_else_is_touched(void **state)
{
    struct place *place = *state;
    char aside[AMPD_DATADIR_PATH_MAX], name[64];
    struct amp_error error;
    static const char *const others[] = {"shard-0-of-3.stale-",  "shard-0-of-3.stale-1x", "shard-0-of-30.stale-1",
                                         "shard-1-of-3.stale-1", "xshard-0-of-3.stale-1", "shard-0-of-3.stale-0"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        make_dir(place, others[i]);
    for (int round = 1; round <= 12; round++) {
        make_dir(place, "shard-0-of-3/deep");
        make_dir(place, "shard-0-of-3/deep/er");
        write_file(place, "shard-0-of-3/deep/er/file", "x");
        assert_int_equal(io_stale_set_aside(&place->dir, aside, &error), 0);
        for (int n = 1; n <= round; n++) {
            (void)snprintf(name, sizeof name, "shard-0-of-3.stale-%d", n);
            assert_int_equal(is_there(place, name), n > round - IO_STALE_KEPT);
        }
    }
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        assert_true(is_there(place, others[i]));
}

/* One that counted as ended would have its directory renamed to a name that is taken. */
static void a_parent_that_cannot_be_read_has_not_ended(void **state)
{
    struct place *place = *state;
    char aside[AMPD_DATADIR_PATH_MAX];
    struct amp_error error;
    make_dir(place, "shard-0-of-3.stale-1");
    for (unsigned n = 1;; n++) {
        fail_readdir_at = n;
        int rc = io_stale_set_aside(&place->dir, aside, &error);
        bool failed = fail_readdir_at == 0;
        fail_readdir_at = 0;
        if (!failed) {
            assert_int_equal(rc, 0);
            assert_true(n > 3);
            break;
        }
        assert_int_equal(rc, AMP_EIO);
        assert_non_null(strstr(error.text, "cannot read"));
        assert_true(place->dir.lock_fd >= 0); /* nothing was renamed */
    }
    assert_true(is_there(place, "shard-0-of-3.stale-2"));
}

static void a_link_that_was_set_aside_is_not_followed(void **state)
{
    struct place *place = *state;
    char aside[AMPD_DATADIR_PATH_MAX], link[192];
    struct amp_error error;
    make_dir(place, "elsewhere");
    write_file(place, "elsewhere/precious", "x");
    (void)snprintf(link, sizeof link, "%s/models", place->path);
    assert_int_equal(symlink("../elsewhere", link), 0);
    for (int round = 0; round <= IO_STALE_KEPT; round++)
        assert_int_equal(io_stale_set_aside(&place->dir, aside, &error), 0);
    assert_false(is_there(place, "shard-0-of-3.stale-1"));
    assert_true(is_there(place, "elsewhere/precious"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_store_with_the_same_models_and_epochs_is_not_older),
        cmocka_unit_test(a_store_that_lacks_an_epoch_is_older),
        cmocka_unit_test(a_store_with_a_later_epoch_is_not_older),
        cmocka_unit_test(a_store_that_lacks_a_model_is_older),
        cmocka_unit_test(a_store_with_a_model_that_was_deleted_is_older),
        cmocka_unit_test_setup_teardown(what_is_set_aside_is_whole_and_an_empty_directory_stands_in_its_place, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(the_newest_are_kept_and_nothing_else_is_touched, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_parent_that_cannot_be_read_has_not_ended, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_link_that_was_set_aside_is_not_followed, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
