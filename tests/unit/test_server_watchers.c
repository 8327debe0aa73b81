/* Who hears that a row was stored, that the server ends, or that a model is deleted. */
#include "server/io/host/watchers.h"

#include "server/io/base/server.h"

#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define MODELS 3

struct watch {
    struct io_watcher watcher;
    unsigned rows, drained, deleted;
    bool leaves; /* with the next row */
};

static struct ampd_server server;
static struct io_watchers watchers;
static struct watch first, second, other; /* of models 1, 1 and 2 */

uint32_t __wrap_ampd_core_models_count(const struct ampd_core *core);
uint32_t __wrap_ampd_core_models_count(const struct ampd_core *core)
{
    return MODELS;
}

static struct watch *watch_of(struct io_watcher *watcher)
{
    return AMP_CONTAINER(watcher, struct watch, watcher);
}

static void on_row(struct io_watcher *watcher)
{
    watch_of(watcher)->rows++;
    if (watch_of(watcher)->leaves)
        io_watchers_remove(watcher);
}

static void on_draining(struct io_watcher *watcher)
{
    watch_of(watcher)->drained++;
    io_watchers_remove(watcher);
}

static void on_deleted(struct io_watcher *watcher)
{
    watch_of(watcher)->deleted++;
    io_watchers_remove(watcher);
}

static const struct io_watcher_ops ops = {.row_cb = on_row, .draining_cb = on_draining, .deleted_cb = on_deleted};

static void add(struct watch *watch, uint32_t model)
{
    memset(watch, 0, sizeof *watch);
    io_watchers_prepare(&watch->watcher, &ops);
    io_watchers_add(&server, &watch->watcher, model);
}

static int begin(void **state)
{
    memset(&server, 0, sizeof server);
    server.watchers = &watchers;
    io_watchers_init(&watchers);
    add(&first, 1);
    add(&second, 1);
    add(&other, 2);
    return 0;
}

static void a_row_is_told_to_who_watches_its_model(void **state)
{
    io_watchers_row(&server, 1);
    io_watchers_row(&server, 1);
    io_watchers_row(&server, 0);
    assert_int_equal(first.rows, 2);
    assert_int_equal(second.rows, 2);
    assert_int_equal(other.rows, 0);
}

static void one_that_leaves_while_it_is_told_hears_no_more_and_the_others_do(void **state)
{
    first.leaves = true;
    io_watchers_row(&server, 1);
    io_watchers_row(&server, 1);
    assert_int_equal(first.rows, 1);
    assert_int_equal(second.rows, 2);
}

static void a_deletion_ends_those_of_one_model_and_a_drain_the_rest(void **state)
{
    io_watchers_deleted(&server, 1);
    io_watchers_draining(&server);
    io_watchers_row(&server, 1);
    assert_true(first.deleted == 1 && second.deleted == 1 && other.deleted == 0);
    assert_true(first.drained == 0 && second.drained == 0 && other.drained == 1);
    assert_int_equal(first.rows, 0);
}

static void one_that_was_prepared_and_not_added_may_be_removed(void **state)
{
    struct watch late = {0};
    io_watchers_prepare(&late.watcher, &ops);
    io_watchers_remove(&late.watcher);
    io_watchers_row(&server, 1);
    assert_int_equal(late.rows, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_row_is_told_to_who_watches_its_model, begin),
        cmocka_unit_test_setup(one_that_leaves_while_it_is_told_hears_no_more_and_the_others_do, begin),
        cmocka_unit_test_setup(a_deletion_ends_those_of_one_model_and_a_drain_the_rest, begin),
        cmocka_unit_test_setup(one_that_was_prepared_and_not_added_may_be_removed, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
