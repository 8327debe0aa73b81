/* What a step does with gradients: overlap, absent parameters, overflows, weights, and readers of the copies. */
#include "amp/kernels.h"
#include "base/crc32c.h"
#include "server/core/model/passes.h"
#include "tests/unit/core_fixture.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static struct core_host host;
static struct ampd_incarnation incarnations[3];

static void begin(enum ampd_weighting weighting)
{
    core_host_init(&host, 7);
    struct ampd_model_spec spec;
    core_spec(&spec, 2);
    spec.weighting = weighting;
    assert_int_equal(0, core_call(&host, core_create(&host, &spec))->reply.error.code);
    assert_int_equal(0, core_call(&host, core_load(&host, 1))->reply.error.code);
    incarnations[0] = core_joined(&host, core_join(&host, "w0", 0));
    incarnations[1] = core_joined(&host, core_join(&host, "w1", 1));
}

/* So many that votes keep g for apply (AMP_PASS_KEEP_G). */
static int setup_three(void **state)
{
    (void)state;
    core_host_init(&host, 7);
    struct ampd_model_spec spec;
    core_spec(&spec, 3);
    assert_int_equal(0, core_call(&host, core_create(&host, &spec))->reply.error.code);
    assert_int_equal(0, core_call(&host, core_load(&host, 1))->reply.error.code);
    for (uint32_t r = 0; r < 3; r++) {
        const char *const names[] = {"w0", "w1", "w2"};
        incarnations[r] = core_joined(&host, core_join(&host, names[r], r));
    }
    return 0;
}

static int setup(void **state)
{
    (void)state;
    begin(AMPD_WEIGHTING_EQUAL);
    return 0;
}

static int setup_weights(void **state)
{
    (void)state;
    begin(AMPD_WEIGHTING_PUSHED);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    core_host_close(&host);
    return 0;
}

/* Element of a parameter in the newest copy, which is fp32 here. */
static float pulled(uint32_t parameter, uint64_t element)
{
    uint64_t call = core_pull_latest(&host);
    const struct ampd_pull_grant *grant = &core_call(&host, call)->pull;
    assert_true(core_call(&host, call)->granted);
    float value;
    memcpy(&value, grant->memory + (grant->layout->starts[parameter] + element) * sizeof(float), sizeof(value));
    core_close_call(&host, call);
    return value;
}

static unsigned jobs_of(uint32_t work)
{
    unsigned count = 0;
    for (unsigned i = 0; i < host.tasks_count; i++) {
        if (host.tasks[i].type == AMPD_OUT_JOB && (host.tasks[i].u.job.work & work) != 0)
            count++;
    }
    return count;
}

static void a_block_is_voted_on_as_soon_as_all_ranks_have_it(void **state)
{
    (void)state;
    host.hold_jobs = true;
    uint64_t first = core_push_header(&host, 1, 0, incarnations[0]);
    uint64_t second = core_push_header(&host, 1, 1, incarnations[1]);
    core_push_block(&host, first, 0, 1);
    core_push_block(&host, first, 1, 1);
    assert_int_equal(0, jobs_of(AMPD_JOB_VOTE));
    core_push_block(&host, second, 1, 1); /* the others are still on their way */
    assert_int_equal(1, jobs_of(AMPD_JOB_VOTE));
    assert_int_equal(1, host.tasks[0].u.job.block);
}

static void the_mean_is_applied_and_versions_rise(void **state)
{
    (void)state;
    (void)core_push_all(&host, 1, 0, incarnations[0], 1024);
    uint64_t push = core_push_all(&host, 1, 1, incarnations[1], 3072);
    const struct ampd_step_result *result = &core_call(&host, push)->reply.u.step;
    assert_int_equal(AMPD_VERDICT_APPLIED, result->verdict);
    assert_int_equal(1, result->version);
    assert_true(result->norm == sqrt(110.0 * 4));
    assert_true(pulled(0, 0) == -1 && pulled(0, 99) == -1 && pulled(1, 9) == -1); /* 1 - (1 + 3) / 2 */
}

static void an_overflow_skips_the_step_and_names_parameter_and_rank(void **state)
{
    (void)state;
    (void)core_push_all(&host, 1, 0, incarnations[0], 1);
    uint64_t push = core_push_header(&host, 1, 1, incarnations[1]);
    core_push_block(&host, push, 0, 7);
    core_push_block(&host, push, 1, INFINITY);
    core_push_block(&host, push, 2, NAN);
    core_push_end(&host, push, NULL, 0);
    const struct core_call *call = core_call(&host, push);
    const struct ampd_step_result *result = &call->reply.u.step;
    assert_int_equal(AMPD_VERDICT_SKIPPED_OVERFLOW, result->verdict);
    assert_int_equal(0, result->version);
    assert_true(result->scale == 1024 && result->new_scale == 512);
    assert_int_equal(result->scale_id + 1, result->new_scale_id);
    assert_int_equal(2, result->rows_count);
    assert_int_equal(0, call->rows[0].parameter);
    assert_int_equal(1, call->rows[0].rank);
    assert_int_equal(36, call->rows[0].inf_count); /* 100 - 64 */
    assert_int_equal(64, call->rows[0].first_index);
    assert_true(call->rows[0].largest == 7);
    assert_int_equal(1, call->rows[1].parameter);
    assert_int_equal(10, call->rows[1].nan_count);
    assert_int_equal(36, result->inf_total);
    assert_int_equal(10, result->nan_total);
    assert_true(pulled(0, 0) == 1);
}

static void a_sum_that_is_not_finite_is_blamed_on_the_sum(void **state)
{
    (void)state;
    (void)core_push_all(&host, 1, 0, incarnations[0], 3e38f);
    uint64_t push = core_push_all(&host, 1, 1, incarnations[1], 3e38f);
    const struct core_call *call = core_call(&host, push);
    assert_int_equal(AMPD_VERDICT_SKIPPED_OVERFLOW, call->reply.u.step.verdict);
    assert_int_equal(2, call->reply.u.step.rows_count);
    assert_int_equal(AMPD_RANK_SUM, call->rows[0].rank);
    assert_int_equal(100, call->rows[0].inf_count);
    assert_int_equal(0, call->rows[0].first_index);
}

static void absent_from_one_counts_as_zero_and_absent_from_all_is_untouched(void **state)
{
    (void)state;
    const uint32_t b[] = {1};
    uint64_t first = core_push_header(&host, 1, 0, incarnations[0]);
    core_push_block(&host, first, 0, 1024);
    core_push_block(&host, first, 1, 1024);
    core_push_end(&host, first, b, 1);
    uint64_t second = core_push_all(&host, 1, 1, incarnations[1], 1024);
    assert_int_equal(AMPD_VERDICT_APPLIED, core_call(&host, second)->reply.u.step.verdict);
    assert_true(pulled(0, 0) == 0 && pulled(1, 0) == 0.5f);
    const uint32_t both[] = {0, 1};
    (void)core_push_all(&host, 2, 0, incarnations[0], 1024);
    uint64_t push = core_push_header(&host, 2, 1, incarnations[1]);
    core_push_end(&host, push, both, 2);
    assert_true(pulled(0, 0) == -0.5f && pulled(1, 0) == 0);
}

static void what_the_votes_of_three_ranks_keep_is_what_is_applied(void **state)
{
    (void)state;
    const uint32_t b[] = {1};
    (void)core_push_all(&host, 1, 0, incarnations[0], 1024);
    (void)core_push_all(&host, 1, 1, incarnations[1], 2048);
    (void)core_push_all(&host, 1, 2, incarnations[2], 3072);
    assert_true(pulled(0, 99) == -1 && pulled(1, 9) == -1);
    (void)core_push_all(&host, 2, 0, incarnations[0], 512);
    (void)core_push_all(&host, 2, 1, incarnations[1], INFINITY); /* skipped: what was kept is nothing */
    (void)core_push_all(&host, 2, 2, incarnations[2], 512);
    assert_true(pulled(0, 99) == -1 && pulled(1, 9) == -1);
    for (uint32_t r = 0; r < 3; r++) { /* b absent from all: the scale is 512 now */
        uint64_t push = core_push_header(&host, 3, r, incarnations[r]);
        core_push_block(&host, push, 0, 512);
        core_push_block(&host, push, 1, 512);
        core_push_end(&host, push, b, 1);
    }
    assert_true(pulled(0, 99) == -2 && pulled(1, 9) == -1);
    uint64_t push = core_push_header(&host, 4, 0, incarnations[0]);
    core_push_block(&host, push, 0, 1536);
    core_push_block(&host, push, 1, 1536);
    core_push_end(&host, push, b, 1);
    (void)core_push_all(&host, 4, 1, incarnations[1], 1536);
    (void)core_push_all(&host, 4, 2, incarnations[2], 1536);
    assert_true(pulled(0, 99) == -5 && pulled(1, 9) == -3);
}

static void a_step_absent_from_all_is_applied_to_nothing(void **state)
{
    (void)state;
    const uint32_t both[] = {0, 1};
    uint64_t push = 0;
    for (uint32_t r = 0; r < 2; r++) {
        push = core_push_header(&host, 1, r, incarnations[r]);
        core_push_end(&host, push, both, 2);
    }
    const struct ampd_step_result *result = &core_call(&host, push)->reply.u.step;
    assert_int_equal(AMPD_VERDICT_APPLIED, result->verdict);
    assert_true(result->norm == 0);
    assert_true(pulled(0, 0) == 1 && pulled(1, 0) == 1);
}

/* ---- weights ---- */

static uint64_t push_weighted(uint32_t rank, float weight, float value)
{
    struct ampd_event_push push = {"model", 1, 1, rank, incarnations[rank], 1, AMP_F32, weight, false, 0, NULL, 0};
    uint64_t call = core_push_event(&host, &push);
    for (uint64_t b = 0; b < 3 && value != 0; b++)
        core_push_block(&host, call, b, value);
    const uint32_t both[] = {0, 1};
    core_push_end(&host, call, both, value == 0 ? 2 : 0);
    return call;
}

static void pushed_weights_make_a_weighted_mean(void **state)
{
    (void)state;
    (void)push_weighted(0, 3, 1024);
    uint64_t push = push_weighted(1, 1, 5120);
    assert_int_equal(AMPD_VERDICT_APPLIED, core_call(&host, push)->reply.u.step.verdict);
    assert_true(pulled(0, 0) == -1); /* 1 - (3 * 1 + 1 * 5) / 4 */
    assert_true(host.row.contributors[0].weight == 3);
}

static void all_weights_0_skip_the_step_and_leave_the_scale(void **state)
{
    (void)state;
    (void)push_weighted(0, 0, 0);
    uint64_t push = push_weighted(1, 0, 0);
    const struct ampd_step_result *result = &core_call(&host, push)->reply.u.step;
    assert_int_equal(AMPD_VERDICT_SKIPPED_EMPTY, result->verdict);
    assert_true(result->scale == result->new_scale);
    assert_int_equal(result->scale_id, result->new_scale_id);
    assert_true(pulled(0, 0) == 1);
}

static void a_weight_out_of_range_is_refused(void **state)
{
    (void)state;
    struct ampd_event_push push = {"model", 1, 1, 0, incarnations[0], 1, AMP_F32, -1, false, 0, NULL, 0};
    core_assert_failed(&host, core_push_event(&host, &push), AMP_EINVAL, "WEIGHT", "2^24");
    push.weight = NAN;
    core_assert_failed(&host, core_push_event(&host, &push), AMP_EINVAL, "WEIGHT", "2^24");
    push.weight = 0x1p25f;
    core_assert_failed(&host, core_push_event(&host, &push), AMP_EINVAL, "WEIGHT", "2^24");
}

/* ---- readers and writers while a step is applied ---- */

static void decide(uint64_t step)
{
    (void)core_push_all(&host, step, 0, incarnations[0], 1);
    (void)core_push_all(&host, step, 1, incarnations[1], 1);
}

/* Votes are run, applies are kept. */
static void run_votes(void)
{
    for (unsigned i = 0; i < host.tasks_count;) {
        if (host.tasks[i].type == AMPD_OUT_JOB && (host.tasks[i].u.job.work & AMPD_JOB_VOTE) != 0)
            core_do_task(&host, i), i = 0;
        else
            i++;
    }
}

static void a_pull_of_the_next_step_gets_blocks_as_apply_publishes_them(void **state)
{
    (void)state;
    host.hold_jobs = true;
    decide(1);
    run_votes();
    assert_int_equal(3, jobs_of(AMPD_JOB_APPLY));
    uint64_t pull = core_pull_step(&host, 1, 2);
    assert_true(core_call(&host, pull)->granted);
    assert_int_equal(1, core_call(&host, pull)->pull.version);
    assert_int_equal(0, core_call(&host, pull)->listed[0] + core_call(&host, pull)->listed[1]);
    core_do_task(&host, 1);
    assert_int_equal(1, core_call(&host, pull)->listed[1]);
    assert_int_equal(0, core_call(&host, pull)->listed[0]);
    core_do_all(&host);
    assert_int_equal(1, core_call(&host, pull)->listed[0]);
    assert_int_equal(1, core_call(&host, pull)->listed[2]);
}

static void a_push_for_the_next_step_is_granted_block_by_block_as_they_are_consumed(void **state)
{
    (void)state;
    host.hold_jobs = true;
    decide(1);
    run_votes();
    uint64_t push = core_push_header(&host, 2, 0, incarnations[0]);
    assert_true(core_call(&host, push)->granted);
    assert_int_equal(0, core_call(&host, push)->listed[1]);
    core_do_task(&host, 1);
    assert_int_equal(1, core_call(&host, push)->listed[1]);
    assert_int_equal(0, core_call(&host, push)->listed[0]);
    core_do_all(&host);
    assert_int_equal(1, core_call(&host, push)->listed[0]);
}

static void apply_takes_a_copy_back_from_its_readers_and_waits_until_they_have_let_go(void **state)
{
    (void)state;
    uint64_t slow = core_pull_latest(&host); /* version 0 */
    decide(1);                               /* writes the other copy */
    assert_false(core_call(&host, slow)->revoked);
    decide(2);
    assert_true(core_call(&host, slow)->revoked);
    assert_int_equal(1, core_info(&host).version); /* apply waits */
    core_revoked(&host, slow);
    core_assert_failed(&host, slow, AMP_EABORTED, "PULL_OUTRUN", "version 0");
    assert_int_equal(2, core_info(&host).version);
}

static void a_version_that_the_client_has_is_not_sent(void **state)
{
    (void)state;
    struct ampd_event event = {.type = AMPD_EVENT_PULL, .call = 40, .u.pull = {.model = "model", .by = AMPD_PULL_STEP, .epoch = 1, .number = 1, .have_epoch = 1}};
    core_event(&host, &event);
    assert_true(core_call(&host, 40)->pull.unchanged);
    assert_int_equal(0, core_call(&host, 40)->listed[0]);
    event.call = 41;
    event.u.pull.have_epoch = 2; /* the same number in another epoch is another version */
    core_event(&host, &event);
    assert_false(core_call(&host, 41)->pull.unchanged);
    assert_int_equal(1, core_call(&host, 41)->listed[0]);
}

/* Of what a pull was granted: NULL, or those of the bytes. */
static bool has_crcs(uint64_t pull)
{
    const struct ampd_pull_grant *grant = &core_call(&host, pull)->pull;
    assert_true(core_call(&host, pull)->granted);
    for (uint64_t local = 0; grant->crcs != NULL && local < grant->count; local++) {
        size_t size = ampd_layout_block_elements(grant->layout, grant->first + local) * amp_dtype_size(grant->dtype);
        assert_int_equal(amp_crc32c(0, grant->memory + local * grant->stride, size), grant->crcs[local]);
    }
    return grant->crcs != NULL;
}

static bool has_crcs_in_memory(uint64_t step)
{
    static uint64_t call = 40;
    struct ampd_event event = {
        .type = AMPD_EVENT_PULL,
        .call = ++call,
        .u.pull = {.model = "model", .by = AMPD_PULL_STEP, .epoch = 1, .number = step, .in_memory = true}};
    core_event(&host, &event);
    bool has = has_crcs(call);
    core_close_call(&host, call);
    return has;
}

static bool has_crcs_as_sent(void)
{
    uint64_t call = core_pull_latest(&host);
    bool has = has_crcs(call);
    core_close_call(&host, call);
    return has;
}

static void apply_forms_checksums_where_blocks_of_the_version_before_were_sent(void **state)
{
    (void)state;
    assert_true(has_crcs_in_memory(1)); /* of a load they always are */
    decide(1);
    decide(2);
    assert_false(has_crcs_in_memory(3));
    assert_false(has_crcs_as_sent()); /* the first one to be sent: the host forms them */
    decide(3);
    assert_true(has_crcs_as_sent());
    decide(4);
    assert_true(has_crcs_in_memory(5));
    decide(5);
    assert_false(has_crcs_in_memory(6));
}

static void checksums_are_those_of_the_version_for_who_asks_before_its_apply_and_after_it(void **state)
{
    (void)state;
    for (uint64_t step = 1; step <= 6; step++) {
        uint64_t early = step % 2 == 0 ? core_pull_step(&host, 1, step + 1) : 0;
        decide(step);
        assert_true(early != 0 ? has_crcs(early) : has_crcs_as_sent());
        if (early != 0)
            core_close_call(&host, early);
    }
}

static void checksums_are_those_of_the_version_for_who_is_granted_it_while_its_apply_still_waits(void **state)
{
    (void)state;
    uint64_t slow = core_pull_latest(&host); /* version 0, whose copy version 2 will be written to */
    decide(1);
    uint64_t early = core_pull_step(&host, 1, 3);
    decide(2);
    assert_true(core_call(&host, early)->granted);
    assert_int_equal(1, core_info(&host).version); /* the apply waits for the slow one */
    core_revoked(&host, slow);
    assert_int_equal(2, core_info(&host).version);
    assert_true(has_crcs(early));
}

static void the_verdict_is_stored_before_anyone_is_told(void **state)
{
    (void)state;
    uint64_t first = core_push_all(&host, 1, 0, incarnations[0], 1);
    host.hold_persists = true;
    uint64_t second = core_push_all(&host, 1, 1, incarnations[1], 1);
    assert_int_equal(1, host.tasks_count);
    assert_int_equal(AMPD_PERSIST_VERDICT, host.tasks[0].u.persist.kind);
    assert_false(core_call(&host, first)->answered);
    assert_int_equal(0, host.notified);
    core_do_all(&host);
    assert_true(core_call(&host, first)->answered && core_call(&host, second)->answered);
    assert_int_equal(1, host.notified);
}
/* A whole push of a dtype of two bytes, each value of which has those bits. */
static void push_halves(uint64_t step, uint32_t rank, uint16_t bits)
{
    struct ampd_event_push push = {.model = "model",
                                   .epoch = 1,
                                   .step = step,
                                   .rank = rank,
                                   .incarnation = incarnations[rank],
                                   .scale_id = core_info(&host).step_scale_id,
                                   .dtype = AMP_F16,
                                   .weight = 1};
    uint64_t id = core_push_event(&host, &push);
    const struct core_call *call = core_call(&host, id);
    for (uint64_t b = 0; b < 3; b++) {
        uint16_t *to = (uint16_t *)(void *)(call->push.memory + b * call->push.stride);
        for (uint32_t i = 0; i < call->push.layout->block_elements; i++)
            to[i] = bits;
        struct ampd_segment_count counts[8];
        struct ampd_event event = {.type = AMPD_EVENT_PUSH_BLOCK, .call = id, .u.block.block = b};
        event.u.block.counts = counts;
        event.u.block.counts_count =
            ampd_receive_block(call->push.layout, b, AMP_F16, to, &amp_kernels_ref, counts);
        core_event(&host, &event);
    }
    core_push_end(&host, id, NULL, 0);
}

/* Its first block would be written over the second one of the halves, which is still to be applied. */
static void a_push_of_another_size_waits_until_nothing_of_the_one_before_is_read(void **state)
{
    (void)state;
    host.hold_jobs = true;
    push_halves(1, 0, 0x6400); /* 1024 */
    push_halves(1, 1, 0x6400);
    run_votes();
    uint64_t push = core_push_header(&host, 2, 0, incarnations[0]);
    core_do_task(&host, 0);
    assert_false(core_call(&host, push)->granted);
    core_do_all(&host);
    assert_true(core_call(&host, push)->granted);
    core_push_block(&host, push, 0, 3);
    assert_true(pulled(0, 0) == 0 && pulled(0, 64) == 0 && pulled(1, 9) == 0);
}

/* Gaps between them would be memory where pages are large. */
static void blocks_of_a_push_lie_without_gaps_in_its_dtype(void **state)
{
    static const enum amp_dtype dtypes[] = {AMP_F32, AMP_F16};
    (void)state;
    for (uint32_t r = 0; r < 2; r++) {
        struct ampd_event_push push = {.model = "model",
                                       .epoch = 1,
                                       .step = 1,
                                       .rank = r,
                                       .incarnation = incarnations[r],
                                       .scale_id = core_info(&host).step_scale_id,
                                       .dtype = dtypes[r],
                                       .weight = 1};
        const struct core_call *call = core_call(&host, core_push_event(&host, &push));
        assert_true(call->granted);
        assert_int_equal(call->push.stride, call->push.layout->block_elements * amp_dtype_size(dtypes[r]));
    }
}


int main(void)
{
#define STEP(test)   cmocka_unit_test_setup_teardown(test, setup, teardown)
#define WEIGHT(test) cmocka_unit_test_setup_teardown(test, setup_weights, teardown)
    const struct CMUnitTest tests[] = {
        STEP(a_block_is_voted_on_as_soon_as_all_ranks_have_it),
        STEP(the_mean_is_applied_and_versions_rise),
        STEP(an_overflow_skips_the_step_and_names_parameter_and_rank),
        STEP(a_sum_that_is_not_finite_is_blamed_on_the_sum),
        STEP(absent_from_one_counts_as_zero_and_absent_from_all_is_untouched),
        STEP(blocks_of_a_push_lie_without_gaps_in_its_dtype),
        STEP(a_push_of_another_size_waits_until_nothing_of_the_one_before_is_read),
        cmocka_unit_test_setup_teardown(what_the_votes_of_three_ranks_keep_is_what_is_applied, setup_three, teardown),
        STEP(a_step_absent_from_all_is_applied_to_nothing),
        WEIGHT(pushed_weights_make_a_weighted_mean),
        WEIGHT(all_weights_0_skip_the_step_and_leave_the_scale),
        WEIGHT(a_weight_out_of_range_is_refused),
        STEP(a_pull_of_the_next_step_gets_blocks_as_apply_publishes_them),
        STEP(a_push_for_the_next_step_is_granted_block_by_block_as_they_are_consumed),
        STEP(apply_takes_a_copy_back_from_its_readers_and_waits_until_they_have_let_go),
        STEP(a_version_that_the_client_has_is_not_sent),
        STEP(apply_forms_checksums_where_blocks_of_the_version_before_were_sent),
        STEP(checksums_are_those_of_the_version_for_who_asks_before_its_apply_and_after_it),
        STEP(checksums_are_those_of_the_version_for_who_is_granted_it_while_its_apply_still_waits),
        STEP(the_verdict_is_stored_before_anyone_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
