/*
 * Units of the library against a server that does wrong what it is told to: the values stay those of a worker that
 * holds all. Unit 0 is "large", two blocks and a part of the third; unit 1 the others, whose first shares that block.
 */
#include "tests/integration/client_fixture.h"

static const uint32_t unit_0[] = {0}, unit_1[] = {4, 1, 2, 3}; /* in an order of its own */

static int setup_units(void **state)
{
    if (fixture_setup(state) != 0)
        return -1;
    struct fixture *fixture = *state;
    uint32_t unit = 9;
    fixture_ok(fixture, fixture_create(fixture, 0, NULL));
    fixture_ok(fixture, fixture_load(fixture, NULL));
    struct ampclient_join_options join = AMPCLIENT_JOIN_OPTIONS_INIT;
    join.rank = 0;
    join.units = true;
    fixture_ok(fixture, ampclient_join(fixture->client, MODEL, &join, &fixture->model));
    fixture_ok(fixture, ampclient_unit_add(fixture->model, unit_0, 1, &unit));
    fixture_ok(fixture, ampclient_unit_add(fixture->model, unit_1, 4, &unit));
    assert_int_equal(unit, 1);
    return 0;
}

static int scatter(struct fixture *fixture, uint32_t unit)
{
    const void *gradients[4];
    for (uint32_t i = 0; i < (unit == 0 ? 1 : 4); i++)
        gradients[i] = fixture->gradients[(unit == 0 ? unit_0 : unit_1)[i]];
    return ampclient_scatter(fixture->model, unit, gradients, AMP_F32);
}

/* Begins a step, gathers all of it, and compares it with what so many steps have made of the first values. */
static void begin_and_check(struct fixture *fixture, unsigned steps)
{
    fixture_begin(fixture);
    assert_int_equal(ampclient_units_bytes(fixture->model), 0);
    for (uint32_t unit = 0; unit < 2; unit++)
        fixture_ok(fixture, ampclient_gather(fixture->model, unit));
    fixture_check(fixture, steps);
    for (uint32_t unit = 0; unit < 2; unit++)
        fixture_ok(fixture, ampclient_release(fixture->model, unit));
    assert_int_equal(ampclient_units_bytes(fixture->model), 0);
}

/* A step as often as it is void; how often that was. */
static unsigned train(struct fixture *fixture)
{
    for (unsigned voids = 0;; voids++) {
        int rc = scatter(fixture, 1);
        if (rc == 0)
            rc = scatter(fixture, 0);
        if (rc == 0)
            rc = ampclient_drain(fixture->model);
        if (rc != 0)
            assert_int_equal(rc, 1);
        fixture_end(fixture);
        if (fixture->result.verdict == AMPCLIENT_APPLIED)
            return voids;
        assert_int_equal(fixture->result.verdict, AMPCLIENT_ROLLED_BACK);
        fixture_begin(fixture);
    }
}

static void units_train_as_a_worker_that_holds_all(void **state)
{
    struct fixture *fixture = *state;
    for (unsigned steps = 0; steps < 3; steps++) {
        begin_and_check(fixture, steps);
        assert_int_equal(train(fixture), 0);
    }
    fixture_ok(fixture, ampclient_pull(fixture->model, NULL)); /* outside of a step */
    for (uint32_t unit = 0; unit < 2; unit++)
        fixture_ok(fixture, ampclient_gather(fixture->model, unit));
    fixture_check(fixture, 3);
}

static void a_gather_that_was_cut_off_or_damaged_is_repeated(void **state)
{
    struct fixture *fixture = *state;
    fixture_begin(fixture);
    fake_set(fixture->fake, &(struct fake_faults){.cut_pull_after = 2, .down_ms = 100});
    fixture_ok(fixture, ampclient_gather(fixture->model, 0));
    fake_set(fixture->fake, &(struct fake_faults){.damage_pull = true});
    fixture_ok(fixture, ampclient_gather(fixture->model, 1));
    fixture_check(fixture, 0);
    assert_int_equal(fake_counts(fixture->fake).cuts, 1);
    assert_int_equal(train(fixture), 0);
}

static void blocks_that_were_not_asked_for_are_refused(void **state)
{
    struct fixture *fixture = *state;
    fixture_begin(fixture);
    fake_set(fixture->fake, &(struct fake_faults){.other_blocks = true});
    assert_int_equal(ampclient_gather(fixture->model, 0), AMP_EINTERNAL);
    assert_non_null(strstr(ampclient_error_text(fixture->client), "other blocks"));
    fixture_ok(fixture, ampclient_gather(fixture->model, 0)); /* that one was answered well */
}

static void a_scatter_whose_bytes_were_lost_is_computed_again_and_counts_once(void **state)
{
    struct fixture *fixture = *state;
    for (uint32_t cut = 1; cut <= 4; cut++) {
        begin_and_check(fixture, cut - 1);
        fake_set(fixture->fake, &(struct fake_faults){.cut_push_after = cut, .down_ms = 50});
        (void)train(fixture); /* whether bytes were lost is the network's to say */
    }
    begin_and_check(fixture, 4);
    assert_int_equal(fake_counts(fixture->fake).cuts, 4);
}

static void a_damaged_block_of_a_scatter_is_a_step_computed_again(void **state)
{
    struct fixture *fixture = *state;
    fixture_begin(fixture);
    fake_set(fixture->fake, &(struct fake_faults){.refuse_push_block = true});
    (void)train(fixture);
    begin_and_check(fixture, 1);
}

static void after_a_rollback_all_calls_say_that_the_step_is_void(void **state)
{
    struct fixture *fixture = *state;
    begin_and_check(fixture, 0);
    assert_int_equal(train(fixture), 0);
    fixture_begin(fixture);
    fixture_ok(fixture, ampclient_gather(fixture->model, 0));
    fake_set(fixture->fake, &(struct fake_faults){.roll_back = true});
    fake_cut(fixture->fake);
    assert_int_equal(ampclient_gather(fixture->model, 1), 1);
    assert_int_equal(ampclient_prefetch(fixture->model, 1), 1);
    assert_int_equal(scatter(fixture, 1), 1);
    assert_int_equal(ampclient_drain(fixture->model), 1);
    fixture_ok(fixture, ampclient_release(fixture->model, 0));
    fixture_end(fixture);
    assert_int_equal(fixture->result.verdict, AMPCLIENT_ROLLED_BACK);
    begin_and_check(fixture, 0);
    assert_int_equal(fixture->step.step, 1);
}

static void an_answer_before_the_gradients_came_makes_the_step_void(void **state)
{
    struct fixture *fixture = *state;
    fixture_begin(fixture);
    fake_set(fixture->fake, &(struct fake_faults){.answer_early = true});
    assert_int_equal(scatter(fixture, 0), 0);
    assert_int_equal(ampclient_drain(fixture->model), 1);
    fixture_end(fixture);
    assert_int_equal(fixture->result.verdict, AMPCLIENT_LATE);
}

/* Tools would see a read of freed memory. */
static void gradients_are_the_callers_again_after_the_drain(void **state)
{
    struct fixture *fixture = *state;
    fixture_begin(fixture);
    assert_int_equal(scatter(fixture, 0), 0);
    assert_int_equal(ampclient_drain(fixture->model), 0);
    free(fixture->gradients[0]);
    fixture->gradients[0] = calloc(fixture_sizes[0], sizeof(float));
    assert_int_equal(scatter(fixture, 1), 0);
    fixture_end(fixture);
    assert_int_equal(fixture->result.verdict, AMPCLIENT_APPLIED);
    begin_and_check(fixture, 1);
}

static void a_client_leaves_with_units_on_their_way(void **state)
{
    struct fixture *fixture = *state;
    fixture_begin(fixture);
    fixture_ok(fixture, ampclient_gather(fixture->model, 1));
    fixture_ok(fixture, ampclient_prefetch(fixture->model, 0));
    assert_int_equal(scatter(fixture, 1), 0);
    fixture_ok(fixture, ampclient_leave(fixture->model));
}

static void expect(const struct fixture *fixture, int rc, int code, const char *word)
{
    assert_int_equal(rc, code);
    if (strstr(ampclient_error_text(fixture->client), word) == NULL)
        fail_msg("\"%s\" is not in: %s", word, ampclient_error_text(fixture->client));
}

static void wrong_calls_get_a_code_and_a_sentence(void **state)
{
    struct fixture *fixture = *state;
    struct ampclient_model *model = fixture->model;
    struct ampclient_tensor tensor;
    uint32_t unit, again = 0;
    expect(fixture, ampclient_gather(model, 0), AMP_ESTATE, "step_begin");
    expect(fixture, ampclient_drain(model), AMP_ESTATE, "step_begin");
    expect(fixture, scatter(fixture, 0), AMP_ESTATE, "step_begin");
    fixture_begin(fixture);
    expect(fixture, ampclient_unit_add(model, &again, 1, &unit), AMP_EINVAL, "in unit 0");
    expect(fixture, ampclient_unit_add(model, &again, 0, &unit), AMP_EINVAL, "at least one");
    expect(fixture, ampclient_unit_add(model, &again, 1, NULL), AMP_EINVAL, "unit is NULL");
    expect(fixture, ampclient_gather(model, 2), AMP_ERANGE, "no unit 2");
    expect(fixture, ampclient_release(model, 0), AMP_ESTATE, "not gathered");
    expect(fixture, ampclient_parameter(model, 0, &tensor), AMP_ESTATE, "ampclient_gather");
    expect(fixture, ampclient_push(model, 0, fixture->gradients[0], AMP_F32), AMP_ESTATE, "ampclient_scatter");
    expect(fixture, ampclient_scatter(model, 0, NULL, AMP_F32), AMP_EINVAL, "gradients is NULL");
    assert_int_equal(scatter(fixture, 0), 0);
    expect(fixture, scatter(fixture, 0), AMP_ESTATE, "scatter each unit once");
    expect(fixture, ampclient_set_user_state(model, "x", 1), AMP_ESTATE, "before the first scatter");
    fixture_end(fixture);
    assert_int_equal(ampclient_set_user_state(model, "x", 1), 0);
}

static void a_handle_without_units_is_told_so(void **state)
{
    struct fixture *fixture = *state;
    uint32_t unit, parameter = 0;
    expect(fixture, ampclient_unit_add(fixture->model, &parameter, 1, &unit), AMP_ESTATE, "join options");
    expect(fixture, ampclient_gather(fixture->model, 0), AMP_ESTATE, "join options");
    expect(fixture, ampclient_prefetch(fixture->model, 0), AMP_ESTATE, "join options");
    expect(fixture, ampclient_release(fixture->model, 0), AMP_ESTATE, "join options");
    expect(fixture, scatter(fixture, 0), AMP_ESTATE, "join options");
    struct ampclient_join_options join = AMPCLIENT_JOIN_OPTIONS_INIT;
    struct ampclient_model *other;
    join.rank = 0;
    join.units = true;
    join.accumulate = 2;
    expect(fixture, ampclient_join(fixture->client, MODEL, &join, &other), AMP_EINVAL, "with units at most 1");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(units_train_as_a_worker_that_holds_all, setup_units, fixture_teardown),
        cmocka_unit_test_setup_teardown(a_gather_that_was_cut_off_or_damaged_is_repeated, setup_units,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(blocks_that_were_not_asked_for_are_refused, setup_units, fixture_teardown),
        cmocka_unit_test_setup_teardown(a_scatter_whose_bytes_were_lost_is_computed_again_and_counts_once, setup_units,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(a_damaged_block_of_a_scatter_is_a_step_computed_again, setup_units,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(after_a_rollback_all_calls_say_that_the_step_is_void, setup_units,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(an_answer_before_the_gradients_came_makes_the_step_void, setup_units,
                                        fixture_teardown),
        cmocka_unit_test_setup_teardown(gradients_are_the_callers_again_after_the_drain, setup_units, fixture_teardown),
        cmocka_unit_test_setup_teardown(a_client_leaves_with_units_on_their_way, setup_units, fixture_teardown),
        cmocka_unit_test_setup_teardown(wrong_calls_get_a_code_and_a_sentence, setup_units, fixture_teardown),
        cmocka_unit_test_setup_teardown(a_handle_without_units_is_told_so, fixture_setup_joined, fixture_teardown),
    };
    return cmocka_run_group_tests_name("client_units", tests, NULL, NULL);
}
