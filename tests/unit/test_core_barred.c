/* A quarantine that meets a Join or a Leave of the same rank. */
#include "server/core/model/spec.h"
#include "tests/unit/core_fixture.h"

#include <math.h>
#include <string.h>

static struct core_host host;
static struct ampd_incarnation incarnations[2];

/* Two workers, of whom one is enough. The second has pushed NaN, and one more is enough for a quarantine. */
static int setup(void **state)
{
    (void)state;
    core_host_init(&host, 1);
    struct ampd_model_spec spec;
    core_spec(&spec, 2);
    spec.on_loss = AMPD_ON_LOSS_SHRINK;
    spec.min_workers = 1;
    spec.loss_timeout_ms = 5000;
    assert_int_equal(0, core_call(&host, core_create(&host, &spec))->reply.error.code);
    (void)core_load(&host, 1);
    incarnations[0] = core_joined(&host, core_join(&host, "w0", 0));
    incarnations[1] = core_joined(&host, core_join(&host, "w1", 1));
    (void)core_push_all(&host, 1, 0, incarnations[0], 1); /* it opened with the first that joined */
    for (uint64_t step = 2; step < 1 + AMPD_QUARANTINE_PUSHES; step++) {
        (void)core_push_all(&host, step, 0, incarnations[0], 1);
        (void)core_push_all(&host, step, 1, incarnations[1], NAN);
    }
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    core_host_close(&host);
    return 0;
}

static struct ampd_worker_info worker(uint32_t rank)
{
    struct ampd_worker_info info;
    ampd_core_worker(host.core, 0, rank, host.now_ms, &info);
    return info;
}

static uint64_t leave(uint32_t rank)
{
    struct ampd_event event = {.type = AMPD_EVENT_LEAVE, .call = ++host.last_call};
    event.u.worker = (struct ampd_event_worker){"model", rank, incarnations[rank]};
    core_event(&host, &event);
    return event.call;
}

/* The last NaN is there; the verdict on it and a Join of its worker are being stored, in this order. */
static void a_join_that_is_being_stored_when_the_quarantine_begins_is_refused(void **state)
{
    (void)state;
    const uint64_t step = 1 + AMPD_QUARANTINE_PUSHES;
    (void)core_push_all(&host, step, 1, incarnations[1], NAN);
    host.hold_persists = true;
    (void)core_push_all(&host, step, 0, incarnations[0], 1);
    uint64_t join = core_join(&host, "w1", 1);
    core_do_all(&host);
    host.hold_persists = false;
    assert_true(worker(1).quarantined);
    core_assert_failed(&host, join, AMP_ESTATE, "QUARANTINED", "join again in 60 s");
    assert_int_equal(0, worker(1).lease_left_ms);
    (void)core_push_all(&host, step + 1, 0, incarnations[0], 1);
    assert_int_equal(step + 1, host.row.step);
    assert_int_equal(1, host.row.contributors_count);
}

/* Its last push counts though it has left since; so the quarantine begins when nobody holds the rank. */
static void a_worker_that_has_left_stays_so_in_quarantine(void **state)
{
    (void)state;
    const uint64_t step = 1 + AMPD_QUARANTINE_PUSHES;
    (void)core_push_all(&host, step, 1, incarnations[1], NAN);
    assert_int_equal(0, core_call(&host, leave(1))->reply.error.code);
    (void)core_push_all(&host, step, 0, incarnations[0], 1);
    assert_true(worker(1).quarantined);
    assert_int_equal(0, worker(1).lost_since_ms);
    assert_int_equal(0, core_call(&host, leave(0))->reply.error.code);
    core_tick(&host, host.now_ms + 5000); /* loss_timeout */
    assert_int_equal(AMPD_MODEL_RUNNING, core_info(&host).state);
}

#define TEST(test) cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_join_that_is_being_stored_when_the_quarantine_begins_is_refused),
        TEST(a_worker_that_has_left_stays_so_in_quarantine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
