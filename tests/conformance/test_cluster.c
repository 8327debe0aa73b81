/* Places are taken, given back and shown to all (server/io/cluster/cluster.h); test_cluster_etcd.c makes etcd fail. */
#include "tests/conformance/cluster_fixture.h"

#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

static void a_place_is_taken_under_a_fence(void **state)
{
    struct cluster_fixture *fixture = *state;
    struct part *part = &fixture->parts[0];
    cluster_open(fixture, 0, &(struct part_options){.shard = 1});
    assert_false(io_cluster_holds(part->cluster));
    assert_int_equal(part->taken, 0); /* not from inside */
    cluster_until(fixture, &part->taken, 1);
    assert_true(io_cluster_holds(part->cluster));
    assert_int_equal(part->shard, 1);
    assert_true(part->fence >= 1);
    cluster_run_ms(fixture, 100);
    assert_int_equal(part->taken, 1);
    assert_int_equal(part->lost, 0);
}

static void the_fence_of_a_place_is_above_those_before(void **state)
{
    struct cluster_fixture *fixture = *state;
    uint64_t before = 0;
    for (int i = 0; i < 3; i++) {
        cluster_join(fixture, 0, 2);
        assert_true(fixture->parts[0].fence > before);
        before = fixture->parts[0].fence;
        cluster_leave(fixture, 0);
    }
}

static void a_place_that_was_given_back_is_not_held(void **state)
{
    struct cluster_fixture *fixture = *state;
    struct part *part = &fixture->parts[0];
    cluster_join(fixture, 0, 0);
    cluster_join(fixture, 1, 1);
    io_cluster_leave(part->cluster, NULL, NULL);
    assert_false(io_cluster_holds(part->cluster));
    cluster_run_ms(fixture, 100);
    assert_int_equal(part->lost, 0);
    assert_true(io_cluster_holds(fixture->parts[1].cluster));
    cluster_kill(fixture, 0);
    cluster_join(fixture, 0, 0);
}

static void all_know_where_all_are(void **state)
{
    struct cluster_fixture *fixture = *state;
    for (uint32_t k = 0; k < SHARDS; k++)
        cluster_join(fixture, k, k);
    for (uint32_t i = 0; i < SHARDS; i++)
        for (uint32_t k = 0; k < SHARDS; k++)
            cluster_until_held(fixture, i, k, k);
    for (uint32_t k = 0; k < SHARDS; k++)
        assert_int_equal(io_cluster_member(fixture->parts[k].cluster, k)->fence, fixture->parts[k].fence);
}

static void on_done(void *arg)
{
    ++*(int *)arg;
}

static void a_cluster_may_be_closed_at_any_time(void **state)
{
    struct cluster_fixture *fixture = *state;
    cluster_open(fixture, 0, &(struct part_options){.shard = 0});
    cluster_kill(fixture, 0);
    for (int ms = 0; ms < 40; ms += 2) { /* in each state of taking */
        cluster_open(fixture, 0, &(struct part_options){.shard = 0, .local = 7});
        cluster_run_ms(fixture, ms);
        if (ms % 4 == 0)
            io_cluster_leave(fixture->parts[0].cluster, NULL, NULL);
        cluster_kill(fixture, 0);
    }
    cluster_join(fixture, 0, 0);
    for (int i = 0; i < 50; i++) {
        assert_int_equal(io_cluster_raise_epoch(fixture->parts[0].cluster, "m", 1, NULL, NULL), 0);
        io_cluster_raise_fences(fixture->parts[0].cluster, 7, NULL, NULL);
    }
    int none = 0;
    assert_int_equal(io_cluster_serves(fixture->parts[0].cluster, false, on_done, &none), 0);
    cluster_kill(fixture, 0); /* nobody is told */
    assert_int_equal(none, 0);
}

static void options_that_fit_no_cluster_are_refused(void **state)
{
    struct cluster_fixture *fixture = *state;
    static const struct io_cluster_events none;
    struct amp_error error = {0};
    struct io_cluster *cluster = NULL;
    struct io_cluster_options options = {.shards = SHARDS,
                                         .shard = SHARDS,
                                         .address = "127.0.0.1:7000",
                                         .log = &fixture->log,
                                         .events = &none,
                                         .url = &fixture->url};
    assert_int_equal(io_cluster_new(&fixture->loop, &options, &cluster, &error), AMP_EINVAL);
    assert_true(error.text[0] != 0);
    options.shard = 0;
    options.shards = 0;
    assert_int_equal(io_cluster_new(&fixture->loop, &options, &cluster, &error), AMP_EINVAL);
    options.shards = IO_CLUSTER_SHARDS_MAX + 1;
    assert_int_equal(io_cluster_new(&fixture->loop, &options, &cluster, &error), AMP_EINVAL);
    assert_null(cluster);
}

#define TEST(name)                                                                                                     \
    {                                                                                                                  \
#name, name, cluster_setup, cluster_teardown, NULL                                                             \
    }

int main(void)
{
    if (!etcd_available()) {
        (void)printf("SKIPPED: test_cluster: no etcd (package etcd-server)\n");
        return 77;
    }
    const struct CMUnitTest tests[] = {
        TEST(a_place_is_taken_under_a_fence),          TEST(the_fence_of_a_place_is_above_those_before),
        TEST(a_place_that_was_given_back_is_not_held), TEST(all_know_where_all_are),
        TEST(a_cluster_may_be_closed_at_any_time),     TEST(options_that_fit_no_cluster_are_refused),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    cluster_end();
    return failed;
}
