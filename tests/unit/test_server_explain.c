/* Steps in words, and stored verdicts run through another policy. */
#include "base/random.h"
#include "server/io/calls/pages.h"
#include "server/io/history/explain_text.h"
#include "server/io/history/replay_policy.h"
#include "tests/unit/scaler_traces.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* cmocka needs the headers above. */
#include <cmocka.h>

#define SEED UINT64_C(20260102)

/* ---- explaining ---- */

static const struct ampd_model_spec spec = {
    .max_consecutive_overflows = 50,
    .scaler = {AMP_SCALER_DYNAMIC, 65536, 2, 0.5f, 2000, 2, 1, 16777216},
};

static struct ampd_step_row overflow_row(float scale, float after)
{
    return (struct ampd_step_row){.kind = AMPD_ROW_STEP,
                                  .epoch = 1,
                                  .step = 7,
                                  .verdict = AMPD_VERDICT_SKIPPED_OVERFLOW,
                                  .scale = scale,
                                  .after.scaler = {.scale = after, .consecutive_overflows = 1, .hysteresis_left = 1},
                                  .overflow_params = 1,
                                  .inf_total = 3};
}

static struct ampd_msg_overflow_row found_row(void)
{
    return (struct ampd_msg_overflow_row){.parameter = "conv1.weight",
                                          .source = AMPD_MSG_OVERFLOW_SOURCE_WORKER,
                                          .has_rank = true,
                                          .rank = 1,
                                          .worker_name = "trainer-1",
                                          .inf_count = 3,
                                          .nan_count = 2,
                                          .first_index = 17,
                                          .largest_finite = 61440};
}

/* The text must hold each of the words; the last is NULL. */
static void says(const struct ampd_model_spec *model, const struct ampd_step_row *row,
                 const struct ampd_msg_overflow_row *rows, size_t count, const char *const *words)
{
    char text[1024];
    io_explain_step(model, row, rows, count, text, sizeof text);
    for (; *words != NULL; words++)
        if (strstr(text, *words) == NULL)
            fail_msg("\"%s\" is not in \"%s\"", *words, text);
    assert_int_not_equal(text[strlen(text) - 1], ' ');
}

#define SAYS(model, row, rows, count, ...) says(model, row, rows, count, (const char *const[]){__VA_ARGS__, NULL})

static void an_overflow_names_worker_parameter_kind_place_and_why_the_scale_shrank(void **state)
{
    const struct ampd_step_row row = overflow_row(65536, 32768);
    const struct ampd_msg_overflow_row found = found_row();
    SAYS(&spec, &row, &found, 1, "Step 7 was skipped for overflow", "worker trainer-1 (rank 1)", "3 Inf and 2 NaN",
         "conv1.weight", "first at index 17", "61440", "shrank from 65536 to 32768", "backoff_factor 0.5", "dynamic",
         "Nothing needs to be done");
}

static void a_worker_whose_name_is_no_longer_known_is_named_by_its_rank(void **state)
{
    const struct ampd_step_row row = overflow_row(65536, 32768);
    struct ampd_msg_overflow_row found = found_row();
    found.worker_name[0] = 0;
    SAYS(&spec, &row, &found, 1, "overflow: the gradient of rank 1 had 3 Inf and 2 NaN in conv1.weight");
}

static void sums_and_ranges_are_told_from_workers(void **state)
{
    const struct ampd_step_row row = overflow_row(65536, 32768);
    struct ampd_msg_overflow_row found = found_row();
    found.source = AMPD_MSG_OVERFLOW_SOURCE_SUM;
    SAYS(&spec, &row, &found, 1, "the sum of gradients that were finite");
    found.source = AMPD_MSG_OVERFLOW_SOURCE_RANGE;
    SAYS(&spec, &row, &found, 1, "3 values too large for the optimizer to square", "clip the gradients");
}

static void nan_without_inf_points_to_the_data(void **state)
{
    struct ampd_step_row row = overflow_row(65536, 32768);
    const struct ampd_msg_overflow_row found = found_row();
    row.inf_total = 0;
    row.nan_total = 2;
    SAYS(&spec, &row, &found, 1, "look at the data");
}

static void a_loss_that_is_not_finite_points_to_the_data(void **state)
{
    struct ampd_step_row row = overflow_row(65536, 32768);
    const struct ampd_msg_overflow_row found = found_row();
    row.metrics = (struct ampd_metrics){.loss = INFINITY, .loss_workers = 1};
    SAYS(&spec, &row, &found, 1, "The loss itself that a worker reported is infinite", "look at its data");
    row.metrics.loss = NAN;
    SAYS(&spec, &row, &found, 1, "is NaN, which no loss scale can fix");
    row.after.scaler.consecutive_overflows = 50; /* the cause comes before the count */
    SAYS(&spec, &row, &found, 1, "is NaN, which no loss scale can fix", "go back to a checkpoint");
    row.after.scaler.consecutive_overflows = 1;
    row.metrics.loss = 1;
    SAYS(&spec, &row, &found, 1, "Nothing needs to be done");
}

static void a_scale_that_stays_has_its_reason(void **state)
{
    struct ampd_model_spec model = spec;
    struct ampd_step_row row = overflow_row(1, 1);
    const struct ampd_msg_overflow_row found = found_row();
    SAYS(&model, &row, &found, 1, "stayed at 1", "floor");
    row.after.scaler.consecutive_overflows = 50;
    SAYS(&model, &row, &found, 1, "number 50 in a row", "unstable");
    model.scaler.policy = AMP_SCALER_MEGATRON;
    model.scaler.hysteresis = 3;
    row = overflow_row(65536, 65536);
    row.after.scaler.hysteresis_left = 2;
    SAYS(&model, &row, &found, 1, "hysteresis of 3 forgave this overflow and forgives 1 more");
    row.after.scaler.hysteresis_left = 1;
    SAYS(&model, &row, &found, 1, "the next one shrinks the scale");
    model.scaler.policy = AMP_SCALER_STATIC;
    SAYS(&model, &row, &found, 1, "policy static never moves it");
    row.verdict = AMPD_VERDICT_SKIPPED_EMPTY;
    model.scaler.policy = AMP_SCALER_DYNAMIC;
    SAYS(&model, &row, NULL, 0, "no gradient that counts arrived", "policy dynamic does not count empty steps");
}

static void clean_steps_count_grow_and_reach_the_cap(void **state)
{
    struct ampd_step_row row = {.kind = AMPD_ROW_STEP,
                                .step = 9,
                                .verdict = AMPD_VERDICT_APPLIED,
                                .contributors_count = 2,
                                .norm = 1.5,
                                .scale = 1024,
                                .after.scaler = {.scale = 1024, .growth_tracker = 12}};
    SAYS(&spec, &row, NULL, 0, "Step 9 was applied", "2 workers", "norm 1.5", "12 clean steps of the 2000");
    row.after.scaler.growth_tracker = 1;
    SAYS(&spec, &row, NULL, 0, "1 clean step of the 2000 of growth_interval is counted");
    row.after.scaler = (struct amp_scaler_state){.scale = 2048};
    SAYS(&spec, &row, NULL, 0, "grew from 1024 to 2048", "growth_factor 2", "2000 clean steps");
    row.scale = row.after.scaler.scale = 16777216;
    SAYS(&spec, &row, NULL, 0, "stayed at 16777216", "cap, max_scale");
}

static void many_rows_of_long_names_are_cut_within_the_field(void **state)
{
    struct ampd_step_row row = overflow_row(65536, 32768);
    struct ampd_msg_overflow_row rows[8];
    row.overflow_params = 2000;
    for (size_t i = 0; i < 8; i++) {
        rows[i] = found_row();
        memset(rows[i].parameter, 'p', sizeof rows[i].parameter - 1);
        memset(rows[i].worker_name, 'w', sizeof rows[i].worker_name - 1);
        rows[i].inf_count = rows[i].nan_count = rows[i].first_index = UINT64_MAX;
        rows[i].largest_finite = 3.4e38f;
    }
    SAYS(&spec, &row, rows, 8, "and 1998 more", "shrank from 65536 to 32768");
    for (size_t size = 1; size < 1024; size++) {
        char *text = malloc(size); /* exactly: the sanitizer sees a byte beyond it */
        assert_non_null(text);
        io_explain_step(&spec, &row, rows, 8, text, size);
        assert_true(strlen(text) < size);
        free(text);
    }
}

/* ---- replaying ---- */

#define STEPS 400

/* A run as the server would have stored it: each row by amp/scaler.h from the one before. */
static void store_run(struct ampd_step_row *rows, const struct amp_scaler_config *config, uint64_t seed)
{
    static const enum ampd_verdict verdicts[] = {AMPD_VERDICT_APPLIED,          AMPD_VERDICT_APPLIED,
                                                 AMPD_VERDICT_APPLIED,          AMPD_VERDICT_APPLIED,
                                                 AMPD_VERDICT_SKIPPED_OVERFLOW, AMPD_VERDICT_SKIPPED_EMPTY};
    static const enum amp_scaler_outcome outcomes[] = {[AMPD_VERDICT_APPLIED] = AMP_SCALER_CLEAN,
                                                       [AMPD_VERDICT_SKIPPED_OVERFLOW] = AMP_SCALER_OVERFLOW,
                                                       [AMPD_VERDICT_SKIPPED_EMPTY] = AMP_SCALER_EMPTY};
    struct amp_random random;
    struct amp_scaler_state scaler;
    amp_random_init(&random, seed);
    amp_scaler_init(config, &scaler);
    memset(rows, 0, STEPS * sizeof *rows);
    for (uint64_t i = 0; i < STEPS; i++) {
        rows[i].kind = AMPD_ROW_STEP;
        rows[i].epoch = 1;
        rows[i].step = i + 1;
        rows[i].verdict = verdicts[amp_random_below(&random, 6)];
        rows[i].scale = scaler.scale;
        amp_scaler_update(config, &scaler, outcomes[rows[i].verdict]);
        rows[i].after.scaler = scaler;
    }
}

static struct amp_scaler_config policy(enum amp_scaler_policy number)
{
    struct amp_scaler_config config = {.policy = number, .growth_interval = 5, .hysteresis = 3};
    amp_scaler_config_defaults(&config);
    return config;
}

static void its_own_policy_gives_every_stored_scale_again(void **state)
{
    struct ampd_step_row *rows = calloc(STEPS, sizeof *rows);
    assert_non_null(rows);
    for (int number = AMP_SCALER_DYNAMIC; number <= AMP_SCALER_PADDLE; number++) {
        const struct amp_scaler_config config = policy((enum amp_scaler_policy)number);
        struct io_replay replay;
        struct ampd_msg_replayed_step step;
        store_run(rows, &config, SEED + (uint64_t)number);
        io_replay_init(&replay, &config);
        for (size_t i = 0; i < STEPS; i++) {
            io_replay_step(&replay, &rows[i], &step);
            assert_true(step.step == i + 1 && step.stored_scale == step.replayed_scale && !step.uncertain);
        }
        assert_memory_equal(&replay.state, &rows[STEPS - 1].after.scaler, sizeof replay.state);
    }
    free(rows);
}

/* Verdicts that were stored under a fixed scale, through each policy. */
static void every_policy_replays_its_golden_trace(void **state)
{
    for (size_t p = 0; p < GOLDEN_TRACES; p++) {
        struct amp_scaler_config config = {
            .policy = golden_traces[p].policy, .init_scale = 1024, .growth_interval = 4, .hysteresis = 2};
        struct io_replay replay;
        amp_scaler_config_defaults(&config);
        io_replay_init(&replay, &config);
        for (size_t i = 0; i < TRACE_STEPS; i++) {
            const struct ampd_step_row row = {.epoch = 1,
                                              .step = i + 1,
                                              .verdict = TRACE[i] == 'X' ? AMPD_VERDICT_SKIPPED_OVERFLOW
                                                                         : AMPD_VERDICT_APPLIED,
                                              .scale = 1024,
                                              .after.scaler.scale = 1024};
            struct ampd_msg_replayed_step step;
            io_replay_step(&replay, &row, &step);
            assert_true(step.replayed_scale == golden_traces[p].scales[i] && step.stored_scale == 1024);
        }
    }
}

/* torch's GradScaler from 8 with growth_interval 2: counted by hand. */
static void another_policy_moves_as_its_rules_say(void **state)
{
    static const enum ampd_verdict verdicts[] = {AMPD_VERDICT_APPLIED,          AMPD_VERDICT_APPLIED,
                                                 AMPD_VERDICT_SKIPPED_OVERFLOW, AMPD_VERDICT_SKIPPED_EMPTY,
                                                 AMPD_VERDICT_APPLIED,          AMPD_VERDICT_SKIPPED_OVERFLOW};
    static const float expected[] = {8, 16, 8, 8, 8, 4};
    static const bool uncertain[] = {false, false, false, false, false, true};
    struct amp_scaler_config config = {.policy = AMP_SCALER_DYNAMIC, .init_scale = 8, .growth_interval = 2};
    struct io_replay replay;
    amp_scaler_config_defaults(&config);
    io_replay_init(&replay, &config);
    for (size_t i = 0; i < 6; i++) {
        const struct ampd_step_row row = {
            .epoch = 1, .step = i + 1, .verdict = verdicts[i], .scale = i == 2 ? 16 : 10, .after.scaler.scale = 10};
        struct ampd_msg_replayed_step step;
        io_replay_step(&replay, &row, &step);
        assert_true(step.replayed_scale == expected[i] && step.stored_scale == 10);
        assert_int_equal(step.uncertain, uncertain[i]);
    }
}

static void pages_joined_by_tokens_are_the_whole_replay(void **state)
{
    struct ampd_step_row *rows = calloc(STEPS, sizeof *rows);
    assert_non_null(rows);
    const struct amp_scaler_config stored = policy(AMP_SCALER_DYNAMIC);
    store_run(rows, &stored, SEED);
    for (int number = AMP_SCALER_DYNAMIC; number <= AMP_SCALER_PADDLE; number++) {
        const struct amp_scaler_config config = policy((enum amp_scaler_policy)number);
        struct io_replay whole, paged;
        struct ampd_msg_replayed_step one, other;
        io_replay_init(&whole, &config);
        io_replay_init(&paged, &config);
        for (size_t i = 0; i < STEPS; i++) {
            char token[192];
            struct ampd_history_key key = {1, rows[i].step, 0}, back;
            io_replay_token_write(&paged, &key, token, sizeof token);
            io_replay_init(&paged, &config);
            assert_true(io_replay_token_parse(token, &paged, &back));
            assert_true(back.epoch == 1 && back.step == rows[i].step && back.sequence == 0);
            io_replay_step(&whole, &rows[i], &one);
            io_replay_step(&paged, &rows[i], &other);
            assert_true(one.replayed_scale == other.replayed_scale && one.uncertain == other.uncertain);
        }
    }
    free(rows);
}

static void tokens_that_are_none_are_refused(void **state)
{
    static const char *const none[] = {"",
                                       "1.2",
                                       "1.2.3",
                                       "a",
                                       "1.2.0.x.0.1",
                                       "1.2.0.1166016512.0.1.",
                                       "-1.2.0.1.1.1",
                                       "1.2.0.2143289344.0.1" /* NaN */,
                                       "1.2.0.2139095040.0.1" /* Inf */,
                                       "1.2.0.1166016512.6.1" /* more clean steps than growth_interval */,
                                       "1.2.0.1166016512.0.0",
                                       "1.2.0.1166016512.0.4",
                                       "1.2.0.0.0.1"};
    const struct amp_scaler_config config = policy(AMP_SCALER_MEGATRON);
    struct io_replay replay;
    struct ampd_history_key key;
    io_replay_init(&replay, &config);
    for (size_t i = 0; i < sizeof none / sizeof *none; i++)
        if (io_replay_token_parse(none[i], &replay, &key))
            fail_msg("\"%s\" was taken", none[i]);
    assert_true(io_replay_token_parse("1.2.0.1166016512.5.3", &replay, &key));
    assert_false(io_page_token_parse("1.2", &key));
    assert_false(io_page_token_parse("1.2.3.4", &key));
    assert_true(io_page_token_parse("1.2.3", &key) && key.epoch == 1 && key.step == 2 && key.sequence == 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_overflow_names_worker_parameter_kind_place_and_why_the_scale_shrank),
        cmocka_unit_test(a_worker_whose_name_is_no_longer_known_is_named_by_its_rank),
        cmocka_unit_test(sums_and_ranges_are_told_from_workers),
        cmocka_unit_test(nan_without_inf_points_to_the_data),
        cmocka_unit_test(a_loss_that_is_not_finite_points_to_the_data),
        cmocka_unit_test(a_scale_that_stays_has_its_reason),
        cmocka_unit_test(clean_steps_count_grow_and_reach_the_cap),
        cmocka_unit_test(many_rows_of_long_names_are_cut_within_the_field),
        cmocka_unit_test(its_own_policy_gives_every_stored_scale_again),
        cmocka_unit_test(every_policy_replays_its_golden_trace),
        cmocka_unit_test(another_policy_moves_as_its_rules_say),
        cmocka_unit_test(pages_joined_by_tokens_are_the_whole_replay),
        cmocka_unit_test(tokens_that_are_none_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
