/* Two shards: leases while shard 0 asks what the shards hold (SYNC). */
#include "server/core/coordinator/sync.h"
#include "tests/unit/core_pair.h"

static struct core_call *keep_alive(void)
{
    struct ampd_event event = {.type = AMPD_EVENT_KEEP_ALIVE, .u.worker = {"model", 0, pair_incarnation}};
    return pair_call(0, &event);
}

static void tick(void)
{
    struct ampd_event event = {.type = AMPD_EVENT_TICK};
    pair_step(0, &event);
}

/* A shard that reads its journal again may answer later than a lease lasts. */
static void a_worker_that_computes_keeps_its_lease_while_the_shards_are_asked_what_they_hold(void **state)
{
    (void)state;
    pair_hold_messages = true;
    ampd_sync_start(pair_core[0]);
    tick();
    for (unsigned i = 0; i < 9; i++) {
        assert_int_equal(AMPD_COORD_SYNCING, pair_model(0)->coord->state);
        pair_now_ms += AMPD_LEASE_MS / 3;
        tick();
        assert_string_equal("RECOVERING", keep_alive()->reply.error.reason);
    }
    pair_hold_messages = false;
    pair_settle();
    assert_int_equal(AMPD_COORD_RUNNING, pair_model(0)->coord->state);
    assert_true(keep_alive()->reply.u.keep_alive.valid);
}

static void a_worker_that_is_not_heard_of_while_the_shards_are_asked_loses_its_lease(void **state)
{
    (void)state;
    pair_hold_messages = true;
    ampd_sync_start(pair_core[0]);
    tick();
    pair_now_ms += AMPD_LEASE_MS;
    tick();
    assert_string_equal("RECOVERING", keep_alive()->reply.error.reason);
    pair_hold_messages = false;
    pair_settle();
    assert_int_equal(AMPD_COORD_RUNNING, pair_model(0)->coord->state);
    assert_false(keep_alive()->reply.u.keep_alive.valid);
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, pair_setup, pair_teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_worker_that_computes_keeps_its_lease_while_the_shards_are_asked_what_they_hold),
        TEST(a_worker_that_is_not_heard_of_while_the_shards_are_asked_loses_its_lease),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
