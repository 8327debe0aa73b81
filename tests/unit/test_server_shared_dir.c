/* Whose a directory of checkpoints is. */
#include "server/io/cluster/shared_dir.h"
#include "tests/temp_folder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

struct place {
    char root[TEMP_FOLDER_MAX], dir[TEMP_FOLDER_MAX + 16], file[TEMP_FOLDER_MAX + 32];
};

static int set_up(void **state)
{
    struct place *place = calloc(1, sizeof *place);
    assert_non_null(place);
    assert_true(temp_folder(place->root, "shared"));
    (void)snprintf(place->dir, sizeof place->dir, "%s/here", place->root);
    (void)snprintf(place->file, sizeof place->file, "%s/CLUSTER", place->dir);
    *state = place;
    return 0;
}

static int tear_down(void **state)
{
    struct place *place = *state;
    char command[TEMP_FOLDER_MAX + 16];
    (void)snprintf(command, sizeof command, "rm -rf '%s'", place->root);
    assert_int_equal(system(command), 0);
    free(place);
    return 0;
}

static void the_first_cluster_has_it_for_good(void **state)
{
    struct place *place = *state;
    struct amp_error error = {0};
    assert_int_equal(io_shared_dir_claim(place->dir, "one", &error), 0);
    assert_int_equal(access(place->file, F_OK), 0);
    assert_int_equal(io_shared_dir_claim(place->dir, "one", &error), 0);
    assert_int_equal(io_shared_dir_claim(place->dir, "two", &error), AMP_ESTATE);
    assert_non_null(strstr(error.text, "\"one\""));
    assert_non_null(strstr(error.text, place->file));
    assert_int_equal(io_shared_dir_claim(place->dir, "on", &error), AMP_ESTATE);
    assert_int_equal(io_shared_dir_claim(place->dir, "one1", &error), AMP_ESTATE);
    assert_int_equal(unlink(place->file), 0); /* an operator may give it to another one */
    assert_int_equal(io_shared_dir_claim(place->dir, "two", &error), 0);
    assert_int_equal(io_shared_dir_claim(place->dir, "one", &error), AMP_ESTATE);
}

static void one_that_cannot_be_made_or_written_is_an_error(void **state)
{
    struct place *place = *state;
    struct amp_error error = {0};
    char deep[TEMP_FOLDER_MAX + 16], endless[5000];
    (void)snprintf(deep, sizeof deep, "%s/not/there", place->root);
    assert_int_equal(io_shared_dir_claim(deep, "one", &error), AMP_EINVAL);
    assert_non_null(strstr(error.text, deep));
    assert_non_null(strstr(error.text, "checkpoint directory"));
    memset(endless, 'x', sizeof endless);
    endless[sizeof endless - 1] = 0;
    assert_int_equal(io_shared_dir_claim(endless, "one", &error), AMP_EINVAL);
    FILE *file = fopen(place->dir, "w"); /* no directory */
    assert_non_null(file);
    assert_int_equal(fclose(file), 0);
    assert_true(io_shared_dir_claim(place->dir, "one", &error) < 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_first_cluster_has_it_for_good, set_up, tear_down),
        cmocka_unit_test_setup_teardown(one_that_cannot_be_made_or_written_is_an_error, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
