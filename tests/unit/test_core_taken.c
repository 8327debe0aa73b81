/* Blocks that come with a vote: when the core takes it, and when it makes a vote pass itself. */
#include "amp/kernels.h"
#include "amp/pass.h"
#include "tests/unit/core_fixture.h"

#include <math.h>
#include <string.h>

#define WRONG 12345.0 /* a sum of squares that no vote pass here finds, so that the norm tells whose vote has counted */

static struct core_host host;
static struct ampd_incarnation incarnation;

/* A model of one rank or two, with step 1 open. */
static void open_model(uint32_t world_size)
{
    struct ampd_model_spec spec;
    core_host_init(&host, 1);
    core_spec(&spec, world_size);
    assert_int_equal(0, core_call(&host, core_create(&host, &spec))->reply.error.code);
    assert_int_equal(0, core_call(&host, core_load(&host, 1))->reply.error.code);
    incarnation = core_joined(&host, core_join(&host, "w0", 0));
    if (world_size == 2)
        (void)core_joined(&host, core_join(&host, "w1", 1));
}

static int close_model(void **state)
{
    (void)state;
    core_host_close(&host);
    return 0;
}

/* Gives the core block b, whose values are all `value`, with the vote on it; `wrong`: its squares are WRONG. */
static void push_taken(uint64_t id, uint64_t b, float value, const struct ampd_vote_terms *terms, bool wrong)
{
    const struct core_call *call = core_call(&host, id);
    float from[AMPD_ALIGN_ELEMENTS];
    struct ampd_segment_count counts[8];
    struct amp_pass_vote votes[8];
    for (uint32_t i = 0; i < AMPD_ALIGN_ELEMENTS; i++)
        from[i] = value;
    struct ampd_event event = {.type = AMPD_EVENT_PUSH_BLOCK, .call = id, .u.block.block = b};
    event.u.block.counts = counts;
    event.u.block.terms = terms;
    event.u.block.votes = votes;
    event.u.block.counts_count =
        ampd_take_block(call->push.layout, b, AMP_F32, from, call->push.memory + b * call->push.stride,
                        &amp_kernels_ref, terms, counts, votes);
    if (wrong)
        votes[0].squares = WRONG;
    core_event(&host, &event);
}

static struct ampd_vote_terms terms_of_step(void)
{
    struct ampd_vote_terms terms;
    assert_true(ampd_core_vote_terms(host.core, 0, 0, &terms));
    return terms;
}

static void a_vote_that_came_with_the_block_is_not_made_again(void **state)
{
    (void)state;
    open_model(1);
    struct ampd_vote_terms terms = terms_of_step();
    host.hold_jobs = true;
    uint64_t push = core_push_header(&host, 1, 0, incarnation);
    for (uint64_t b = 0; b < 3; b++)
        push_taken(push, b, 2, &terms, false);
    assert_int_equal(0, host.tasks_count);
    core_push_end(&host, push, NULL, 0);
    core_do_all(&host);
    assert_int_equal(AMPD_VERDICT_APPLIED, host.row.verdict);
    struct ampd_step_row taken = host.row;
    core_host_close(&host);
    open_model(1);
    (void)core_push_all(&host, 1, 0, incarnation, 2);
    assert_true(host.row.norm == taken.norm && taken.norm > 0);
}

static void overflows_of_a_vote_that_came_with_the_block_skip_the_step(void **state)
{
    (void)state;
    open_model(1);
    struct ampd_vote_terms terms = terms_of_step();
    uint64_t push = core_push_header(&host, 1, 0, incarnation);
    for (uint64_t b = 0; b < 3; b++)
        push_taken(push, b, b == 1 ? INFINITY : 1, &terms, false);
    core_push_end(&host, push, NULL, 0);
    assert_int_equal(AMPD_VERDICT_SKIPPED_OVERFLOW, host.row.verdict);
}

/* Pushes step 1 of rank 0 with wrong votes by these terms: they do not count. */
static void assert_voted_again(const struct ampd_vote_terms *terms)
{
    uint64_t push = core_push_header(&host, 1, 0, incarnation);
    for (uint64_t b = 0; b < 3; b++)
        push_taken(push, b, 1, terms, true);
    core_push_end(&host, push, NULL, 0);
    assert_int_equal(AMPD_VERDICT_APPLIED, host.row.verdict);
    assert_true(host.row.norm < WRONG / 1000);
}

static void a_vote_with_another_coefficient_is_made_again(void **state)
{
    (void)state;
    open_model(1);
    struct ampd_vote_terms terms = terms_of_step();
    terms.coefficient /= 2;
    assert_voted_again(&terms);
}

static void a_vote_on_one_of_two_contributions_is_made_again(void **state)
{
    (void)state;
    open_model(2);
    struct ampd_vote_terms terms = {.equal_weights = true, .coefficient = 0.5f};
    assert_false(ampd_core_vote_terms(host.core, 0, 0, &terms));
    (void)core_push_all(&host, 1, 1, core_call(&host, host.last_call)->reply.u.join.incarnation, 1);
    assert_voted_again(&terms);
}

static void a_vote_on_a_parameter_that_the_trailer_leaves_out_is_made_again(void **state)
{
    (void)state;
    open_model(1);
    struct ampd_vote_terms terms = terms_of_step();
    uint64_t push = core_push_header(&host, 1, 0, incarnation);
    for (uint64_t b = 0; b < 3; b++)
        push_taken(push, b, b == 2 ? NAN : 1, &terms, false);
    core_push_end(&host, push, &(uint32_t){1}, 1);
    assert_int_equal(AMPD_VERDICT_APPLIED, host.row.verdict);
}

static void there_are_no_terms_before_a_step_is_open(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    struct ampd_vote_terms terms;
    core_host_init(&host, 1);
    core_spec(&spec, 1);
    (void)core_create(&host, &spec);
    assert_false(ampd_core_vote_terms(host.core, 0, 0, &terms));
    (void)core_load(&host, 1);
    assert_false(ampd_core_vote_terms(host.core, 0, 0, &terms));
}

int main(void)
{
#define FRESH(test) cmocka_unit_test_teardown(test, close_model)
    const struct CMUnitTest tests[] = {
        FRESH(a_vote_that_came_with_the_block_is_not_made_again),
        FRESH(overflows_of_a_vote_that_came_with_the_block_skip_the_step),
        FRESH(a_vote_with_another_coefficient_is_made_again),
        FRESH(a_vote_on_one_of_two_contributions_is_made_again),
        FRESH(a_vote_on_a_parameter_that_the_trailer_leaves_out_is_made_again),
        FRESH(there_are_no_terms_before_a_step_is_open),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
