/* Loss and metrics: what workers tell with their pushes, and the mean that the step's row has. */
#include "server/core/model/metrics.h"
#include "tests/unit/core_fixture.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static struct core_host host;
static struct ampd_incarnation incarnations[3];

static void begin(const struct ampd_model_spec *spec)
{
    static const char *const names[] = {"w0", "w1", "w2"};
    core_host_init(&host, 7);
    assert_int_equal(0, core_call(&host, core_create(&host, spec))->reply.error.code);
    assert_int_equal(0, core_call(&host, core_load(&host, 1))->reply.error.code);
    for (uint32_t r = 0; r < spec->world_size; r++)
        incarnations[r] = core_joined(&host, core_join(&host, names[r], (int32_t)r));
}

static int setup(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    core_spec(&spec, 3);
    begin(&spec);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    core_host_close(&host);
    return 0;
}

static struct ampd_metrics loss_of(float loss)
{
    return (struct ampd_metrics){.loss = loss, .loss_workers = 1};
}

static void add(struct ampd_metrics *metrics, const char *name, float value)
{
    struct ampd_metric *to = &metrics->items[metrics->count++];
    (void)snprintf(to->name, sizeof to->name, "%s", name);
    to->value = value;
    to->workers = 1;
}

/* NULL: it tells nothing, as a client does that does not know how to. */
static uint64_t push(uint64_t step, uint32_t rank, const struct ampd_metrics *metrics, float value)
{
    host.metrics = metrics;
    return core_push_all(&host, step, rank, incarnations[rank], value);
}

static void push_losses(uint64_t step, const float losses[3], const uint32_t order[3])
{
    for (uint32_t i = 0; i < 3; i++) {
        struct ampd_metrics told = loss_of(losses[order[i]]);
        (void)push(step, order[i], &told, 1);
    }
    assert_int_equal(step, host.row.step);
}

static void the_row_has_the_mean_of_the_losses_in_double_whatever_their_order_of_arrival(void **state)
{
    (void)state;
    static const uint32_t orders[][3] = {{0, 1, 2}, {2, 1, 0}, {1, 2, 0}, {2, 0, 1}};
    const float losses[] = {1e8f, 0.1f, -1e8f}; /* in float, and in another order, they give other means */
    for (uint32_t i = 0; i < 4; i++) {
        push_losses(i + 1, losses, orders[i]);
        assert_int_equal(3, host.row.metrics.loss_workers);
        float wanted = (float)((((double)losses[0] + (double)losses[1]) + (double)losses[2]) / 3);
        assert_memory_equal(&wanted, &host.row.metrics.loss, sizeof wanted);
        assert_int_equal(AMPD_VERDICT_APPLIED, host.row.verdict);
    }
}

static void who_tells_no_loss_does_not_count_in_it(void **state)
{
    (void)state;
    struct ampd_metrics one = loss_of(3), other = loss_of(5), nothing = {0};
    (void)push(1, 0, &one, 1);
    (void)push(1, 1, NULL, 1);
    (void)push(1, 2, &other, 1);
    assert_true(host.row.metrics.loss == 4 && host.row.metrics.loss_workers == 2);
    (void)push(2, 0, NULL, 1);
    (void)push(2, 1, &nothing, 1);
    (void)push(2, 2, NULL, 1);
    assert_int_equal(2, host.row.step);
    assert_true(host.row.metrics.loss == 0 && host.row.metrics.loss_workers == 0 && host.row.metrics.count == 0);
}

static void the_loss_of_a_step_is_not_that_of_the_one_before(void **state)
{
    (void)state;
    const float losses[] = {1, 2, 3};
    static const uint32_t order[] = {0, 1, 2};
    push_losses(1, losses, order);
    struct ampd_metrics one = loss_of(7);
    (void)push(2, 0, NULL, 1);
    (void)push(2, 1, &one, 1);
    (void)push(2, 2, NULL, 1);
    assert_true(host.row.metrics.loss == 7 && host.row.metrics.loss_workers == 1);
}

static void a_loss_that_is_not_finite_is_told_as_it_is_and_moves_no_verdict(void **state)
{
    (void)state;
    static const uint32_t order[] = {0, 1, 2};
    const float infinite[] = {1, INFINITY, 2}, both[] = {INFINITY, 1, -INFINITY}, nans[] = {1, -NAN, 2};
    const float largest[] = {FLT_MAX, FLT_MAX, FLT_MAX};
    push_losses(1, infinite, order);
    assert_true(host.row.metrics.loss == INFINITY);
    push_losses(2, both, order);
    const float nan = NAN; /* of the same bits on every machine */
    assert_memory_equal(&nan, &host.row.metrics.loss, sizeof nan);
    push_losses(3, nans, order);
    assert_memory_equal(&nan, &host.row.metrics.loss, sizeof nan);
    push_losses(4, largest, order);
    assert_true(host.row.metrics.loss == FLT_MAX);
    assert_int_equal(AMPD_VERDICT_APPLIED, host.row.verdict);
    assert_int_equal(4, host.row.after.scaler.applied);
}

static void a_skipped_step_has_its_loss_too(void **state)
{
    (void)state;
    struct ampd_metrics one = loss_of(INFINITY), other = loss_of(2);
    (void)push(1, 0, &one, INFINITY);
    (void)push(1, 1, &other, 1);
    (void)push(1, 2, NULL, 1);
    assert_int_equal(AMPD_VERDICT_SKIPPED_OVERFLOW, host.row.verdict);
    assert_true(host.row.metrics.loss == INFINITY && host.row.metrics.loss_workers == 2);
}

static void push_weighted(uint64_t step, const float weights[3], const float losses[3])
{
    struct ampd_metrics told[3];
    for (uint32_t r = 0; r < 3; r++) {
        struct ampd_event_push header = {.model = "model",
                                         .epoch = 1,
                                         .step = step,
                                         .rank = r,
                                         .incarnation = incarnations[r],
                                         .scale_id = 1,
                                         .dtype = AMP_F32,
                                         .weight = weights[r]};
        uint64_t call = core_push_event(&host, &header);
        for (uint64_t b = 0; b < 3; b++)
            core_push_block(&host, call, b, 1);
        told[r] = loss_of(losses[r]);
        host.metrics = &told[r];
        core_push_end(&host, call, NULL, 0);
    }
    assert_int_equal(step, host.row.step);
}

static void the_mean_is_weighted_as_the_gradients_are(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    core_spec(&spec, 3);
    spec.weighting = AMPD_WEIGHTING_PUSHED;
    core_host_close(&host);
    begin(&spec);
    const float weights[] = {1, 3, 0}, losses[] = {2, 6, NAN}, none[] = {0, 0, 0};
    push_weighted(1, weights, losses);
    assert_int_equal(AMPD_VERDICT_APPLIED, host.row.verdict);
    assert_true(host.row.metrics.loss == 5 && host.row.metrics.loss_workers == 2);
    push_weighted(2, none, losses); /* nobody's gradients count, nor does anybody's loss */
    assert_int_equal(AMPD_VERDICT_SKIPPED_EMPTY, host.row.verdict);
    assert_int_equal(0, host.row.metrics.loss_workers);
}

static void a_push_that_comes_again_tells_nothing_new(void **state)
{
    (void)state;
    struct ampd_metrics one = loss_of(3), other = loss_of(5);
    add(&one, "accuracy", 1);
    (void)push(1, 0, &one, 1);
    uint64_t again = core_push_header(&host, 1, 0, incarnations[0]); /* the answer was lost with its connection */
    host.metrics = &other;
    core_push_end(&host, again, NULL, 0);
    host.metrics = NULL;
    uint64_t late = core_push_header(&host, 1, 0, incarnations[0]);
    core_push_end(&host, late, NULL, 0);
    (void)push(1, 1, NULL, 1);
    (void)push(1, 2, NULL, 1);
    assert_true(host.row.metrics.loss == 3 && host.row.metrics.loss_workers == 1 && host.row.metrics.count == 1);
    assert_int_equal(1, core_call(&host, again)->reply.u.step.step);
    assert_int_equal(1, core_call(&host, late)->reply.u.step.step);
}

static void a_push_that_is_refused_or_of_a_process_that_is_gone_has_told_nothing(void **state)
{
    (void)state;
    struct ampd_metrics one = loss_of(3), other = loss_of(5);
    uint64_t call = core_push_header(&host, 1, 0, incarnations[0]);
    host.metrics = &one;
    core_push_end(&host, call, NULL, 0); /* without its blocks */
    core_assert_failed(&host, call, AMP_EINVAL, "INCOMPLETE_PUSH", "missing");
    (void)push(1, 0, NULL, 1);
    (void)push(1, 1, &one, 1);
    incarnations[1] = core_joined(&host, core_join(&host, "w1", 1)); /* its push of before is void */
    (void)push(1, 1, &other, 1);
    (void)push(1, 2, NULL, 1);
    assert_true(host.row.metrics.loss == 5 && host.row.metrics.loss_workers == 1);
}

static void each_metric_has_the_mean_of_those_that_told_it(void **state)
{
    (void)state;
    struct ampd_metrics told[3] = {[1] = loss_of(1)};
    add(&told[0], "accuracy", 0.5f);
    add(&told[1], "perplexity", 30);
    add(&told[1], "accuracy", 1);
    add(&told[2], "perplexity", 10);
    add(&told[2], "grad/größe", INFINITY);
    for (uint32_t r = 3; r-- > 0;)
        (void)push(1, r, &told[r], 1);
    const struct ampd_metrics *row = &host.row.metrics;
    assert_int_equal(3, row->count);
    assert_string_equal("accuracy", row->items[0].name);
    assert_true(row->items[0].value == 0.75f && row->items[0].workers == 2);
    assert_string_equal("perplexity", row->items[1].name);
    assert_true(row->items[1].value == 20 && row->items[1].workers == 2);
    assert_string_equal("grad/größe", row->items[2].name);
    assert_true(row->items[2].value == INFINITY && row->items[2].workers == 1);
    assert_true(row->loss == 1 && row->loss_workers == 1);
}

static void of_more_names_than_a_row_has_room_for_those_of_the_lowest_ranks_are_kept(void **state)
{
    (void)state;
    struct ampd_metrics told[3] = {[0].count = 0};
    for (uint32_t i = 0; i < 15; i++) {
        char name[8];
        (void)snprintf(name, sizeof name, "m%u", i);
        add(&told[i / 5], name, (float)i);
    }
    add(&told[2], "m7", 9); /* which has a place already */
    for (uint32_t r = 3; r-- > 0;)
        (void)push(1, r, &told[r], 1);
    assert_int_equal(AMPD_METRICS_MAX, host.row.metrics.count);
    for (uint32_t i = 0; i < AMPD_METRICS_MAX; i++) {
        char name[8];
        (void)snprintf(name, sizeof name, "m%u", i);
        assert_string_equal(name, host.row.metrics.items[i].name);
        assert_true(host.row.metrics.items[i].value == (i == 7 ? 8 : (float)i));
    }
}

/* A push whose blocks are there already. */
static uint64_t push_again(const struct ampd_metrics *metrics)
{
    uint64_t call = core_push_header(&host, 1, 0, incarnations[0]);
    host.metrics = metrics;
    core_push_end(&host, call, NULL, 0);
    return call;
}

static void metrics_that_are_none_are_refused_with_a_sentence_and_the_push_may_come_again(void **state)
{
    (void)state;
    static const char *const bad[] = {"", "a=b", "a;b", "tab\t", "\xc2\x9b", "\xff", "\xc3"};
    struct ampd_metrics told = {0};
    uint64_t first = core_push_header(&host, 1, 0, incarnations[0]);
    for (uint64_t b = 0; b < 3; b++)
        core_push_block(&host, first, b, 1);
    core_close_call(&host, first);
    for (uint32_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        told.count = 0;
        add(&told, bad[i], 1);
        core_assert_failed(&host, push_again(&told), AMP_EINVAL, "METRIC", "1 to 32 bytes");
    }
    memset(told.items[0].name, 'x', sizeof told.items[0].name); /* which does not end */
    core_assert_failed(&host, push_again(&told), AMP_EINVAL, "METRIC", "33 bytes");
    told = (struct ampd_metrics){0};
    add(&told, "twice", 1);
    add(&told, "twice", 1);
    core_assert_failed(&host, push_again(&told), AMP_EINVAL, "METRIC", "twice");
    told.count = AMPD_METRICS_MAX + 1;
    core_assert_failed(&host, push_again(&told), AMP_EINVAL, "METRIC", "up to 8");
    told = (struct ampd_metrics){0};
    add(&told, "12345678901234567890123456789012", 4);
    (void)push_again(&told);
    (void)push(1, 1, NULL, 1);
    (void)push(1, 2, NULL, 1);
    assert_int_equal(1, host.row.metrics.count);
    assert_true(host.row.metrics.items[0].value == 4);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(the_row_has_the_mean_of_the_losses_in_double_whatever_their_order_of_arrival),
        TEST(who_tells_no_loss_does_not_count_in_it),
        TEST(the_loss_of_a_step_is_not_that_of_the_one_before),
        TEST(a_loss_that_is_not_finite_is_told_as_it_is_and_moves_no_verdict),
        TEST(a_skipped_step_has_its_loss_too),
        TEST(the_mean_is_weighted_as_the_gradients_are),
        TEST(a_push_that_comes_again_tells_nothing_new),
        TEST(a_push_that_is_refused_or_of_a_process_that_is_gone_has_told_nothing),
        TEST(each_metric_has_the_mean_of_those_that_told_it),
        TEST(of_more_names_than_a_row_has_room_for_those_of_the_lowest_ranks_are_kept),
        TEST(metrics_that_are_none_are_refused_with_a_sentence_and_the_push_may_come_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
