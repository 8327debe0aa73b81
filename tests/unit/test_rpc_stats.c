/* What a server counts of its methods. */
#include "rpc/arpc_stats.h"

#include "base/err.h"
#include "tests/unit/rpc_pair.h"

#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

static struct rpc_pair pair;
static struct arpc_call *served; /* the newest call of the server, until it is over */

static void on_started(struct arpc_call *call)
{
    served = call;
}

static void on_message(struct arpc_call *call, const uint8_t *data, size_t size)
{
    (void)call;
    (void)data;
    (void)size;
}

static void on_closed(struct arpc_call *call, const struct arpc_result *result)
{
    (void)call;
    (void)result;
    served = NULL;
}

static const struct arpc_handler serving = {.started = on_started, .message = on_message, .closed = on_closed};
static const struct arpc_method methods[] = {{"t.T", "Talk", ARPC_BIDI, false, 0, 1024, &serving},
                                             {"t.T", "Ask", ARPC_UNARY, false, 0, 16, &serving}};

static int setup(void **state)
{
    (void)state;
    rpc_pair_open(&pair, methods, 2);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    rpc_pair_close(&pair);
    return 0;
}

static const struct arpc_method_stats *stats_of(const char *path)
{
    const struct arpc_method_row *row =
        arpc_method_table_find(&pair.server.config.methods, (const uint8_t *)path, strlen(path));
    assert_non_null(row);
    return row->stats;
}

static uint64_t sum(const uint64_t *counts, size_t count)
{
    uint64_t total = 0;
    for (size_t i = 0; i < count; i++)
        total += counts[i];
    return total;
}

static struct arpc_call *begin(const char *method, struct rpc_seen *seen)
{
    struct arpc_call *call = rpc_pair_call(&pair, method, &rpc_noting, seen);
    rpc_pair_run(&pair);
    return call;
}

static void a_call_is_counted_when_it_begins_and_when_it_is_over_with_its_messages(void **state)
{
    (void)state;
    struct rpc_seen seen = {0};
    const struct arpc_method_stats *stats = stats_of("/t.T/Talk");
    struct arpc_call *call = begin("Talk", &seen);
    assert_int_equal(stats->started, 1);
    assert_int_equal(sum(stats->handled, ARPC_STATUS_COUNT), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(arpc_call_send(call, "abc", 3, NULL, 0, NULL, NULL), 0);
    rpc_pair_run(&pair);
    assert_int_equal(stats->received, 3);
    assert_int_equal(arpc_call_send(served, "abc", 3, NULL, 0, NULL, NULL), 0);
    assert_int_equal(stats->sent, 1);
    rpc_pair_pass(&pair, 30); /* into the bucket up to 0.05 s */
    arpc_call_finish(served, ARPC_STATUS_ABORTED, "enough", NULL);
    rpc_pair_run(&pair);
    assert_int_equal(seen.status, ARPC_STATUS_ABORTED);
    assert_int_equal(stats->handled[ARPC_STATUS_ABORTED], 1);
    assert_int_equal(sum(stats->handled, ARPC_STATUS_COUNT), 1);
    assert_int_equal(stats->buckets[3], 1);
    assert_int_equal(sum(stats->buckets, ARPC_STATS_BUCKETS), 1);
    assert_int_equal(stats->total_us, 30000);
    assert_int_equal(stats_of("/t.T/Ask")->started, 0);
}

static void a_call_longer_than_all_bounds_is_in_the_last_bucket(void **state)
{
    (void)state;
    struct rpc_seen seen = {0};
    (void)begin("Talk", &seen);
    rpc_pair_pass(&pair, 11000);
    arpc_call_finish(served, ARPC_STATUS_OK, NULL, NULL);
    rpc_pair_run(&pair);
    assert_int_equal(stats_of("/t.T/Talk")->buckets[ARPC_STATS_BUCKETS - 1], 1);
}

static void a_cancelled_call_is_over_too(void **state)
{
    (void)state;
    struct rpc_seen seen = {0};
    struct arpc_call *call = begin("Talk", &seen);
    arpc_call_cancel(call, ARPC_STATUS_CANCELLED, "no more");
    rpc_pair_run(&pair);
    assert_int_equal(stats_of("/t.T/Talk")->handled[ARPC_STATUS_CANCELLED], 1);
}

static int refuse_all(struct arpc_call *call, void *arg, struct amp_error *error)
{
    (void)call;
    (void)arg;
    return amp_error_set(error, AMP_EDENIED, "NOBODY", "nobody may call");
}

static void a_call_that_was_not_admitted_counts_and_one_of_no_method_does_not(void **state)
{
    (void)state;
    struct rpc_seen seen[2] = {{0}, {0}};
    pair.server.config.admit_cb = refuse_all;
    (void)begin("Ask", &seen[0]);
    (void)begin("Nothing", &seen[1]);
    assert_int_equal(seen[0].status, ARPC_STATUS_PERMISSION_DENIED);
    assert_int_equal(seen[1].status, ARPC_STATUS_UNIMPLEMENTED);
    assert_int_equal(stats_of("/t.T/Ask")->started, 1);
    assert_int_equal(stats_of("/t.T/Ask")->handled[ARPC_STATUS_PERMISSION_DENIED], 1);
    assert_int_equal(stats_of("/t.T/Talk")->started, 0);
}

static void a_message_over_the_limit_does_not_count_as_received(void **state)
{
    (void)state;
    struct rpc_seen seen = {0};
    struct arpc_call *call = begin("Ask", &seen);
    assert_int_equal(arpc_call_send(call, "seventeen letters", 17, NULL, 0, NULL, NULL), 0);
    rpc_pair_run(&pair);
    assert_int_equal(seen.status, ARPC_STATUS_RESOURCE_EXHAUSTED);
    assert_int_equal(stats_of("/t.T/Ask")->received, 0);
    assert_int_equal(stats_of("/t.T/Ask")->handled[ARPC_STATUS_RESOURCE_EXHAUSTED], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_call_is_counted_when_it_begins_and_when_it_is_over_with_its_messages, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_call_longer_than_all_bounds_is_in_the_last_bucket, setup, teardown),
        cmocka_unit_test_setup_teardown(a_cancelled_call_is_over_too, setup, teardown),
        cmocka_unit_test_setup_teardown(a_call_that_was_not_admitted_counts_and_one_of_no_method_does_not, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_message_over_the_limit_does_not_count_as_received, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
