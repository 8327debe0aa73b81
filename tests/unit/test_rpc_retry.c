/* The retry machine against gRFC A6: one table row for each of its cases, and the throttle by itself. */
#include "rpc/wire/retry.h"

#include "rpc/arpc_call.h"

#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define CODE(name) (1u << ARPC_STATUS_##name)
#define STEPS_MAX  6
#define END        (-1)

/* One attempt's end, and what is to follow: a delay, or END. */
struct step {
    int status;
    enum arpc_reach reach;
    enum arpc_pushback pushback;
    int64_t pushback_ms;
    double unit;
    int64_t expected;
};

struct scenario {
    const char *name;
    struct arpc_retry_policy policy;
    bool no_policy;
    bool committed;
    int64_t time_left_ms; /* 0: no deadline */
    unsigned attempts;    /* grpc-previous-rpc-attempts at the end */
    struct step steps[STEPS_MAX];
};

#define NONE      ARPC_REACH_NONE
#define REFUSED   ARPC_REACH_REFUSED
#define SERVER    ARPC_REACH_SERVER
#define UNAVAIL   ARPC_STATUS_UNAVAILABLE
#define PLAIN     ARPC_PUSHBACK_NONE, 0
#define AFTER(ms) ARPC_PUSHBACK_AFTER, ms
#define NEVER     ARPC_PUSHBACK_NEVER, 0
#define MIDDLE    0.5 /* no jitter */

static const struct scenario scenarios[] = {
    {.name = "the default policy makes four attempts, with doubling waits",
     .attempts = 3,
     .steps = {{UNAVAIL, SERVER, PLAIN, MIDDLE, 100},
               {UNAVAIL, SERVER, PLAIN, MIDDLE, 200},
               {UNAVAIL, SERVER, PLAIN, MIDDLE, 400},
               {UNAVAIL, SERVER, PLAIN, MIDDLE, END}}},
    {.name = "jitter is a fifth to either side",
     .attempts = 2,
     .steps = {{UNAVAIL, SERVER, PLAIN, 0.0, 80}, {UNAVAIL, SERVER, PLAIN, 0.999999999, 239}}},
    {.name = "more than five attempts are five",
     .policy = {.max_attempts = 100, .initial_backoff_ms = 10, .backoff_multiplier = 1},
     .attempts = 4,
     .steps = {{UNAVAIL, SERVER, PLAIN, MIDDLE, 10},
               {UNAVAIL, SERVER, PLAIN, MIDDLE, 10},
               {UNAVAIL, SERVER, PLAIN, MIDDLE, 10},
               {UNAVAIL, SERVER, PLAIN, MIDDLE, 10},
               {UNAVAIL, SERVER, PLAIN, MIDDLE, END}}},
    {.name = "waits do not grow beyond max_backoff",
     .policy = {.initial_backoff_ms = 1000, .max_backoff_ms = 1500, .backoff_multiplier = 10},
     .attempts = 3,
     .steps = {{UNAVAIL, SERVER, PLAIN, MIDDLE, 1000},
               {UNAVAIL, SERVER, PLAIN, MIDDLE, 1500},
               {UNAVAIL, SERVER, PLAIN, MIDDLE, 1500}}},
    {.name = "one attempt is no retry",
     .policy = {.max_attempts = 1},
     .steps = {{UNAVAIL, SERVER, PLAIN, MIDDLE, END}}},
    {.name = "without a policy the server's answer stands",
     .no_policy = true,
     .steps = {{UNAVAIL, SERVER, PLAIN, MIDDLE, END}}},
    {.name = "a status that is not listed ends the call",
     .attempts = 1,
     .steps = {{UNAVAIL, SERVER, PLAIN, MIDDLE, 100}, {ARPC_STATUS_INTERNAL, SERVER, PLAIN, MIDDLE, END}}},
    {.name = "listed codes take the place of the default",
     .policy = {.retryable_status_codes = CODE(ABORTED) | CODE(RESOURCE_EXHAUSTED)},
     .attempts = 2,
     .steps = {{ARPC_STATUS_ABORTED, SERVER, PLAIN, MIDDLE, 100},
               {ARPC_STATUS_RESOURCE_EXHAUSTED, SERVER, PLAIN, MIDDLE, 200},
               {UNAVAIL, SERVER, PLAIN, MIDDLE, END}}},
    {.name = "a committed call is never tried again",
     .committed = true,
     .steps = {{UNAVAIL, NONE, PLAIN, MIDDLE, END}}},
    {.name = "what did not leave is tried again at once, any number of times, and is no attempt",
     .no_policy = true,
     .steps = {{UNAVAIL, NONE, PLAIN, MIDDLE, 0},
               {UNAVAIL, NONE, PLAIN, MIDDLE, 0},
               {UNAVAIL, NONE, PLAIN, MIDDLE, 0},
               {UNAVAIL, NONE, PLAIN, MIDDLE, 0},
               {UNAVAIL, NONE, PLAIN, MIDDLE, 0},
               {UNAVAIL, NONE, PLAIN, MIDDLE, 0}}},
    {.name = "a refused stream is tried again at once, but once",
     .no_policy = true,
     .steps = {{UNAVAIL, REFUSED, PLAIN, MIDDLE, 0}, {UNAVAIL, REFUSED, PLAIN, MIDDLE, END}}},
    {.name = "a second refusal falls to the policy",
     .attempts = 1,
     .steps = {{UNAVAIL, REFUSED, PLAIN, MIDDLE, 0}, {UNAVAIL, REFUSED, PLAIN, MIDDLE, 100}}},
    {.name = "pushback names the wait exactly, and the back-off begins anew after it",
     .attempts = 3,
     .steps = {{UNAVAIL, SERVER, PLAIN, MIDDLE, 100},
               {UNAVAIL, SERVER, AFTER(7), 0.9, 7},
               {UNAVAIL, SERVER, PLAIN, MIDDLE, 100}}},
    {.name = "pushback of nothing is a retry at once",
     .attempts = 1,
     .steps = {{UNAVAIL, SERVER, AFTER(0), MIDDLE, 0}}},
    {.name = "pushback may say no", .steps = {{UNAVAIL, SERVER, NEVER, MIDDLE, END}}},
    {.name = "pushback makes no other status retryable",
     .steps = {{ARPC_STATUS_INTERNAL, SERVER, AFTER(5), MIDDLE, END}}},
    {.name = "pushback allows no more attempts",
     .policy = {.max_attempts = 2},
     .attempts = 1,
     .steps = {{UNAVAIL, SERVER, AFTER(5), MIDDLE, 5}, {UNAVAIL, SERVER, AFTER(5), MIDDLE, END}}},
    {.name = "no wait is begun that the deadline would end",
     .time_left_ms = 150,
     .attempts = 1,
     .steps = {{UNAVAIL, SERVER, PLAIN, MIDDLE, 100}, {UNAVAIL, SERVER, PLAIN, MIDDLE, END}}},
    {.name = "a multiplier that overflows stays at max_backoff",
     .policy = {.max_attempts = 5, .initial_backoff_ms = INT64_MAX, .max_backoff_ms = 60, .backoff_multiplier = 1e300},
     .attempts = 3,
     .steps = {{UNAVAIL, SERVER, PLAIN, MIDDLE, 60},
               {UNAVAIL, SERVER, PLAIN, MIDDLE, 60},
               {UNAVAIL, SERVER, PLAIN, MIDDLE, 60}}},
};

static void run_scenario(const struct scenario *scenario)
{
    struct arpc_retry_throttle throttle;
    struct arpc_retry retry = {0};
    arpc_retry_throttle_init(&throttle, 1000, 0.1);
    if (!scenario->no_policy)
        arpc_retry_init(&retry, &scenario->policy);
    retry.committed = scenario->committed;
    for (size_t i = 0; i < STEPS_MAX && scenario->steps[i].status != 0; i++) {
        const struct step *step = &scenario->steps[i];
        const struct arpc_attempt_end end = {.status = step->status,
                                             .reach = step->reach,
                                             .pushback = step->pushback,
                                             .pushback_ms = step->pushback_ms,
                                             .time_left_ms =
                                                 scenario->time_left_ms != 0 ? scenario->time_left_ms : INT64_MAX};
        int64_t delay_ms = 12345;
        bool again = arpc_retry_decide(&retry, &throttle, &end, step->unit, &delay_ms);
        if (again != (step->expected != END) || (again && delay_ms != step->expected))
            fail_msg("%s: step %zu: again %d after %lld", scenario->name, i, again, (long long)delay_ms);
    }
    if (retry.attempts != scenario->attempts)
        fail_msg("%s: %u attempts", scenario->name, retry.attempts);
}

static void every_case_of_a6_is_decided_as_it_says(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof scenarios / sizeof *scenarios; i++)
        run_scenario(&scenarios[i]);
}

/* One failed attempt of a new call: whether it is tried again. */
static bool fails(struct arpc_retry_throttle *throttle, int status, enum arpc_pushback pushback)
{
    struct arpc_retry retry;
    const struct arpc_attempt_end end = {
        .status = status, .reach = ARPC_REACH_SERVER, .pushback = pushback, .time_left_ms = INT64_MAX};
    int64_t delay_ms;
    arpc_retry_init(&retry, NULL);
    return arpc_retry_decide(&retry, throttle, &end, MIDDLE, &delay_ms);
}

static void retries_stop_at_half_of_the_tokens_and_come_back_with_successes(void **state)
{
    (void)state;
    struct arpc_retry_throttle throttle;
    arpc_retry_throttle_init(&throttle, 10, 0.1);
    for (int i = 0; i < 4; i++)
        assert_true(fails(&throttle, UNAVAIL, ARPC_PUSHBACK_NONE)); /* 9, 8, 7, 6 left */
    assert_false(fails(&throttle, UNAVAIL, ARPC_PUSHBACK_NONE));    /* 5: not above half */
    for (int i = 0; i < 20; i++)
        assert_false(fails(&throttle, UNAVAIL, ARPC_PUSHBACK_NONE)); /* 0, never less */
    for (int i = 0; i < 60; i++)
        arpc_retry_succeeded(&throttle); /* 6 */
    assert_false(fails(&throttle, UNAVAIL, ARPC_PUSHBACK_NONE));
    for (int i = 0; i < 11; i++)
        arpc_retry_succeeded(&throttle); /* 6.1: 5.1 after the next failure */
    assert_true(fails(&throttle, UNAVAIL, ARPC_PUSHBACK_NONE));
    for (int i = 0; i < 1000; i++)
        arpc_retry_succeeded(&throttle);
    assert_int_equal(throttle.tokens, 10000); /* full, not more */
}

static void only_failures_that_may_be_retried_and_pushback_take_tokens(void **state)
{
    (void)state;
    struct arpc_retry_throttle throttle;
    arpc_retry_throttle_init(&throttle, 10, 0.1);
    assert_false(fails(&throttle, ARPC_STATUS_INTERNAL, ARPC_PUSHBACK_NONE));
    assert_false(fails(&throttle, ARPC_STATUS_INTERNAL, ARPC_PUSHBACK_AFTER));
    assert_int_equal(throttle.tokens, 10000);
    assert_false(fails(&throttle, ARPC_STATUS_INTERNAL, ARPC_PUSHBACK_NEVER));
    assert_int_equal(throttle.tokens, 9000);
    assert_false(fails(&throttle, UNAVAIL, ARPC_PUSHBACK_NEVER));
    assert_int_equal(throttle.tokens, 8000);
    /* The last attempt's failure counts too. */
    struct arpc_retry retry;
    const struct arpc_retry_policy policy = {.max_attempts = 2};
    const struct arpc_attempt_end end = {.status = UNAVAIL, .reach = ARPC_REACH_SERVER, .time_left_ms = INT64_MAX};
    int64_t delay_ms;
    arpc_retry_init(&retry, &policy);
    assert_true(arpc_retry_decide(&retry, &throttle, &end, MIDDLE, &delay_ms));
    assert_false(arpc_retry_decide(&retry, &throttle, &end, MIDDLE, &delay_ms));
    assert_int_equal(throttle.tokens, 6000);
}

static void transparent_retries_take_no_tokens(void **state)
{
    (void)state;
    struct arpc_retry_throttle throttle;
    struct arpc_retry retry = {0};
    struct arpc_attempt_end end = {.status = UNAVAIL, .reach = ARPC_REACH_NONE, .time_left_ms = INT64_MAX};
    int64_t delay_ms;
    arpc_retry_throttle_init(&throttle, 1, 0.1);
    throttle.tokens = 0;
    assert_true(arpc_retry_decide(&retry, &throttle, &end, MIDDLE, &delay_ms));
    end.reach = ARPC_REACH_REFUSED;
    assert_true(arpc_retry_decide(&retry, &throttle, &end, MIDDLE, &delay_ms));
    assert_int_equal(throttle.tokens, 0);
}

static void throttle_options_out_of_range_are_brought_into_it(void **state)
{
    (void)state;
    struct arpc_retry_throttle throttle;
    arpc_retry_throttle_init(&throttle, 0, -1);
    assert_int_equal(throttle.max_tokens, 1000);
    assert_int_equal(throttle.token_ratio, 1);
    arpc_retry_throttle_init(&throttle, 5000, 1e300);
    assert_int_equal(throttle.max_tokens, 1000000);
    assert_int_equal(throttle.token_ratio, 1000000);
    arpc_retry_throttle_init(&throttle, 10, 0.0126);
    assert_int_equal(throttle.token_ratio, 13); /* three decimals */
}

static void pushback_that_is_no_number_means_never(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "-1", "+1", "1.5", " 1", "1 ", "soon", "1234567890123456789", "0x10"};
    int64_t ms = -1;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(arpc_pushback_parse((const uint8_t *)bad[i], strlen(bad[i]), &ms), ARPC_PUSHBACK_NEVER);
    assert_int_equal(ms, -1);
    assert_int_equal(arpc_pushback_parse((const uint8_t *)"0", 1, &ms), ARPC_PUSHBACK_AFTER);
    assert_int_equal(ms, 0);
    assert_int_equal(arpc_pushback_parse((const uint8_t *)"999999999999999999", 18, &ms), ARPC_PUSHBACK_AFTER);
    assert_true(ms == 999999999999999999);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_case_of_a6_is_decided_as_it_says),
        cmocka_unit_test(retries_stop_at_half_of_the_tokens_and_come_back_with_successes),
        cmocka_unit_test(only_failures_that_may_be_retried_and_pushback_take_tokens),
        cmocka_unit_test(transparent_retries_take_no_tokens),
        cmocka_unit_test(throttle_options_out_of_range_are_brought_into_it),
        cmocka_unit_test(pushback_that_is_no_number_means_never),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
