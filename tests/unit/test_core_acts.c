/* What operators do to the scale of a model, and by which request. */
#include "server/core/model/spec.h"
#include "server/core/wire/step_messages.h"
#include "tests/unit/core_fixture.h"
#include "tests/whole_spec.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define START_SCALE 1024

static struct ampd_incarnation incarnations[2];

/* Both ranks push `value` for the step; returns the call of rank 0. */
static uint64_t push_step(struct core_host *host, uint64_t step, float value)
{
    uint64_t call = core_push_all(host, step, 0, incarnations[0], value);
    (void)core_push_all(host, step, 1, incarnations[1], value);
    return call;
}

static const struct ampd_step_result *result(struct core_host *host, uint64_t call)
{
    const struct core_call *made = core_call(host, call);
    assert_true(made->answered);
    assert_int_equal(0, made->reply.error.code);
    return &made->reply.u.step;
}

static void assert_set(struct core_host *host, uint64_t call, float scale, uint64_t from_step)
{
    const struct core_call *made = core_call(host, call);
    assert_true(made->answered);
    assert_int_equal(0, made->reply.error.code);
    assert_int_equal(AMPD_REPLY_SCALE, made->reply.kind);
    assert_true(made->reply.u.scale.record.scale == scale);
    assert_int_equal(from_step, made->reply.u.scale.from_step);
}

static int setup(void **state)
{
    static struct core_host host;
    core_host_init(&host, 1);
    *state = &host;
    return 0;
}

static int setup_running(void **state)
{
    (void)setup(state);
    core_running(*state, incarnations);
    return 0;
}

static int teardown(void **state)
{
    core_host_close(*state);
    return 0;
}

/* ---- when it counts ---- */

static void a_scale_set_while_a_step_is_open_is_that_of_the_next_step(void **state)
{
    struct core_host *host = *state;
    assert_set(host, core_set_scale(host, 8, ""), 8, 2);
    const struct ampd_step_result *first = result(host, push_step(host, 1, 1024));
    assert_true(first->scale == START_SCALE);
    assert_true(first->new_scale == 8);
    assert_int_equal(AMPD_VERDICT_APPLIED, first->verdict);
    assert_int_equal(2, first->new_scale_id);
    uint64_t pull = core_pull_step(host, 1, 2);
    assert_true(core_call(host, pull)->pull.scale == 8);
    assert_int_equal(2, core_call(host, pull)->pull.scale_id);
}

static void a_step_that_carries_another_scale_moves_the_counts_alone(void **state)
{
    struct core_host *host = *state;
    (void)core_set_scale(host, 8, "");
    const struct ampd_step_result *skipped = result(host, push_step(host, 1, INFINITY));
    assert_int_equal(AMPD_VERDICT_SKIPPED_OVERFLOW, skipped->verdict);
    assert_true(skipped->new_scale == 8); /* not 4: nothing is known of 8 */
    assert_int_equal(1, host->row.after.scaler.total_overflows);
    assert_int_equal(1, host->row.after.scaler.consecutive_overflows);
    assert_int_equal(0, host->row.after.scaler.growth_tracker);
    skipped = result(host, push_step(host, 2, INFINITY));
    assert_true(skipped->new_scale == 4);
}

static void a_new_try_of_the_open_step_keeps_its_first_scale(void **state)
{
    struct core_host *host = *state;
    (void)core_set_scale(host, 8, "");
    incarnations[1] = core_joined(host, core_join(host, "w1", 1)); /* a new try */
    uint64_t pull = core_pull_step(host, 1, 1);
    assert_true(core_call(host, pull)->pull.scale == START_SCALE);
    struct ampd_event_push push = {.model = "model",
                                   .epoch = 1,
                                   .step = 1,
                                   .rank = 0,
                                   .incarnation = incarnations[0],
                                   .scale_id = 2,
                                   .dtype = AMP_F32,
                                   .weight = 1};
    core_assert_failed(host, core_push_event(host, &push), AMP_ESTATE, "SCALE_ID", "scale id 1");
}

static void an_act_during_the_store_of_a_verdict_counts_one_step_later(void **state)
{
    struct core_host *host = *state;
    host->hold_persists = true;
    uint64_t push = push_step(host, 1, 1024);
    uint64_t set = core_set_scale(host, 8, "");
    assert_false(core_call(host, set)->answered);
    core_do_task(host, 0); /* the verdict */
    assert_true(result(host, push)->new_scale == START_SCALE);
    assert_false(core_call(host, set)->answered); /* stored before it is answered */
    core_do_task(host, 0);
    assert_set(host, set, 8, 3);
    assert_int_equal(1, host->act_row.step);
    host->hold_persists = false;
    uint64_t pull = core_pull_step(host, 1, 2);
    assert_true(core_call(host, pull)->pull.scale == START_SCALE);
    assert_true(result(host, push_step(host, 2, 1024))->new_scale == 8);
}

/* Rank 1 leaves while the verdict is stored: under `shrink` the step after it opens only when enough are there again. */
static void an_act_during_the_store_of_a_verdict_counts_at_once_if_no_step_opens_with_it(void **state)
{
    struct core_host *host = *state;
    struct ampd_model_spec spec;
    core_spec(&spec, 2);
    spec.on_loss = AMPD_ON_LOSS_SHRINK;
    spec.min_workers = 2;
    (void)core_create(host, &spec);
    (void)core_load(host, 1);
    incarnations[0] = core_joined(host, core_join(host, "w0", 0));
    incarnations[1] = core_joined(host, core_join(host, "w1", 1));
    host->hold_persists = true;
    (void)push_step(host, 1, 1024);
    uint64_t set = core_set_scale(host, 8, "id-1");
    core_tick(host, host->now_ms + 60000); /* leases end */
    core_do_task(host, 0);                 /* the verdict */
    core_assert_failed(host, core_set_scale(host, 8, "id-1"), AMP_EUNAVAILABLE, "RECOVERING", "being stored");
    core_do_all(host);
    assert_set(host, set, 8, 2);
    host->hold_persists = false;
    (void)core_join(host, "w0", 0);
    (void)core_join(host, "w1", 1);
    uint64_t pull = core_pull_step(host, 1, 2);
    assert_true(core_call(host, pull)->pull.scale == 8);
}

static void an_act_that_waits_for_a_verdict_is_under_way(void **state)
{
    struct core_host *host = *state;
    host->hold_persists = true;
    (void)push_step(host, 1, 1024);
    uint64_t set = core_set_scale(host, 8, "id-1");
    core_assert_failed(host, core_set_scale(host, 8, "id-1"), AMP_EUNAVAILABLE, "RECOVERING", "being stored");
    core_do_all(host);
    assert_set(host, set, 8, 3);
    assert_set(host, core_set_scale(host, 8, "id-1"), 8, 3);
    assert_int_equal(1, host->persists[AMPD_PERSIST_ACT]);
}

static void a_verdict_that_is_made_while_an_act_is_stored_follows_from_it(void **state)
{
    struct core_host *host = *state;
    host->hold_persists = true;
    uint64_t set = core_set_scale(host, 8, "");
    uint64_t push = push_step(host, 1, 1024);
    core_do_all(host); /* in the order that the core gave */
    assert_set(host, set, 8, 2);
    assert_true(result(host, push)->new_scale == 8);
}

static void the_first_step_waits_for_an_act_that_is_being_stored(void **state)
{
    struct core_host *host = *state;
    struct ampd_model_spec spec;
    core_spec(&spec, 1);
    (void)core_create(host, &spec);
    (void)core_load(host, 1);
    host->hold_persists = true;
    uint64_t set = core_set_scale(host, 8, "");
    uint64_t join = core_join(host, "w0", 0);
    core_do_task(host, 1); /* the join; the act is still being stored */
    assert_true(core_call(host, join)->answered);
    uint64_t pull = core_pull_step(host, 1, 1);
    core_assert_held(host, pull);
    core_do_all(host);
    assert_set(host, set, 8, 1);
    assert_true(core_call(host, pull)->pull.scale == 8);
}

static void a_reset_brings_the_policy_back_to_its_start_and_keeps_the_counts(void **state)
{
    struct core_host *host = *state;
    (void)push_step(host, 1, INFINITY);
    (void)push_step(host, 2, INFINITY);
    uint64_t call = core_reset_scale(host, "");
    assert_set(host, call, START_SCALE, 4);
    const struct amp_scaler_state *record = &core_call(host, call)->reply.u.scale.record;
    assert_int_equal(0, record->consecutive_overflows);
    assert_int_equal(2, record->total_overflows);
    assert_int_equal(2, record->attempted);
    assert_int_equal(4, record->scale_id);
}

/* ---- the history ---- */

static void the_row_of_an_act_says_who_why_and_from_when(void **state)
{
    struct core_host *host = *state;
    (void)push_step(host, 1, 1024);
    (void)core_set_scale(host, 8, "id-1");
    const struct ampd_step_row *row = &host->act_row;
    assert_int_equal(AMPD_ROW_SET, row->kind);
    assert_int_equal(1, row->epoch);
    assert_int_equal(1, row->step);
    assert_int_equal(3, row->from_step);
    assert_true(row->scale == START_SCALE);
    assert_true(row->after.scaler.scale == 8);
    assert_string_equal("ann", row->note.actor);
    assert_string_equal("why not", row->note.words);
    assert_string_equal("id-1", row->note.request_id);
    (void)core_reset_scale(host, "");
    assert_int_equal(AMPD_ROW_RESET, host->act_row.kind);
    assert_true(host->act_row.scale == 8); /* it follows from the row before */
    assert_int_equal(3, host->act_row.after.scaler.scale_id);
    assert_int_equal(2, host->persists[AMPD_PERSIST_ACT]);
}

/* ---- evictions ---- */

static void assert_evicted(struct core_host *host, uint64_t call)
{
    const struct core_call *made = core_call(host, call);
    assert_true(made->answered);
    assert_int_equal(0, made->reply.error.code);
    assert_int_equal(AMPD_REPLY_EVICT, made->reply.kind);
}

static void an_eviction_ends_the_lease_and_says_nothing_about_the_scale(void **state)
{
    struct core_host *host = *state;
    assert_evicted(host, core_evict(host, 1, ""));
    assert_int_equal(AMPD_ROW_EVICT, host->act_row.kind);
    assert_int_equal(1, host->act_row.contributors[0].rank);
    assert_true(host->act_row.after.scaler.scale_id == host->act_row.scale_id);
    core_assert_failed(host, core_push_header(host, 1, 1, incarnations[1]), AMP_EABORTED, "RANK_TAKEN", "evicted");
    struct ampd_incarnation again = core_joined(host, core_join(host, "w1", 1));
    uint64_t call = core_push_all(host, 1, 0, incarnations[0], INFINITY);
    (void)core_push_all(host, 1, 1, again, 1024);
    assert_true(result(host, call)->new_scale == START_SCALE / 2);
}

/* What comes after it does not: the worker has lost its rank. */
static void a_push_that_had_begun_before_its_worker_was_evicted_counts(void **state)
{
    struct core_host *host = *state;
    uint64_t begun = core_push_header(host, 1, 1, incarnations[1]);
    assert_evicted(host, core_evict(host, 1, ""));
    core_push_block(host, begun, 0, 1024);
    core_push_block(host, begun, 1, 1024);
    core_push_block(host, begun, 2, 1024);
    core_push_end(host, begun, NULL, 0);
    uint64_t other = core_push_all(host, 1, 0, incarnations[0], 1024);
    assert_int_equal(AMPD_VERDICT_APPLIED, result(host, begun)->verdict);
    assert_int_equal(AMPD_VERDICT_APPLIED, result(host, other)->verdict);
    core_assert_failed(host, core_push_header(host, 2, 1, incarnations[1]), AMP_EABORTED, "RANK_TAKEN", "evicted");
}

static void a_push_of_an_evicted_worker_ends_when_another_one_joins_as_its_rank(void **state)
{
    struct core_host *host = *state;
    uint64_t begun = core_push_header(host, 1, 1, incarnations[1]);
    assert_evicted(host, core_evict(host, 1, ""));
    struct ampd_incarnation again = core_joined(host, core_join(host, "w2", 1));
    core_revoked(host, begun);
    core_assert_failed(host, begun, AMP_EABORTED, "RANK_TAKEN", "rank 1");
    (void)core_push_all(host, 1, 1, again, 1024);
    uint64_t call = core_push_all(host, 1, 0, incarnations[0], 1024);
    assert_int_equal(AMPD_VERDICT_APPLIED, result(host, call)->verdict);
}

/* The row waits for the verdict, the lease does not; whoever repeats the request meanwhile comes again. */
static void an_eviction_that_waits_for_a_verdict_is_under_way(void **state)
{
    struct core_host *host = *state;
    host->hold_persists = true;
    (void)push_step(host, 1, 1024);
    unsigned workers = host->persists[AMPD_PERSIST_WORKER];
    uint64_t call = core_evict(host, 1, "id-1");
    assert_int_equal(workers + 1, host->persists[AMPD_PERSIST_WORKER]);
    assert_int_equal(0, host->persists[AMPD_PERSIST_ACT]);
    core_assert_failed(host, core_evict(host, 1, "id-1"), AMP_EUNAVAILABLE, "RECOVERING", "being stored");
    core_do_all(host);
    assert_evicted(host, call);
    assert_evicted(host, core_evict(host, 1, "id-1"));
    assert_int_equal(1, host->persists[AMPD_PERSIST_ACT]);
    core_assert_failed(host, core_evict(host, 0, "id-1"), AMP_EINVAL, "REQUEST_ID_USED", "id-1");
}

/* No step comes before all are evicted whom it waits for. */
static void all_workers_of_four_hosts_are_evicted_though_no_step_goes_on(void **state)
{
    enum { HUNG = 32 };
    struct core_host *host = *state;
    struct ampd_incarnation joined[HUNG + 1];
    struct ampd_model_spec spec;
    core_spec(&spec, HUNG + 1);
    spec.on_loss = AMPD_ON_LOSS_SHRINK;
    spec.min_workers = 1;
    (void)core_create(host, &spec);
    (void)core_load(host, 1);
    for (int32_t r = 0; r <= HUNG; r++) {
        char name[8];
        (void)snprintf(name, sizeof name, "w%d", r);
        joined[r] = core_joined(host, core_join(host, name, r));
    }
    (void)core_push_all(host, 1, 0, joined[0], 1024); /* it opened with the first that joined */
    for (uint32_t r = 0; r < HUNG; r++)
        assert_evicted(host, core_evict(host, r, ""));
    assert_int_equal(AMPD_VERDICT_APPLIED, result(host, core_push_all(host, 2, HUNG, joined[HUNG], 1024))->verdict);
}

/* What waits for a step that will not come without another worker ends at once, for it would wait for nobody. */
static void a_push_that_waits_ends_when_its_worker_is_evicted(void **state)
{
    struct core_host *host = *state;
    uint64_t waits = core_push_header(host, 2, 1, incarnations[1]);
    core_assert_held(host, waits);
    assert_evicted(host, core_evict(host, 1, ""));
    core_assert_failed(host, waits, AMP_EABORTED, "RANK_TAKEN", "evicted");
}

/* So is one whose worker is gone already, as after a crash between its two writes. */
static void an_eviction_of_nobody_stores_its_row_alone(void **state)
{
    struct core_host *host = *state;
    unsigned workers = host->persists[AMPD_PERSIST_WORKER];
    static const char *const ids[] = {"id-1", "id-1", "id-2"}; /* a request that comes again gets its answer again */
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        uint64_t call = core_evict(host, 1, ids[i]);
        assert_evicted(host, call);
        assert_int_equal(i == 2, core_call(host, call)->reply.u.nobody);
        assert_int_equal(1, host->persists[AMPD_PERSIST_WORKER] - workers);
    }
    assert_int_equal(2, host->persists[AMPD_PERSIST_ACT]);
}

static void a_rank_whose_join_is_being_stored_is_not_evicted(void **state)
{
    struct core_host *host = *state;
    host->hold_persists = true;
    uint64_t join = core_join(host, "w1", 1);
    core_assert_failed(host, core_evict(host, 1, ""), AMP_EUNAVAILABLE, "RECOVERING", "rank 1 is being stored");
    core_do_all(host);
    (void)core_joined(host, join);
    core_assert_failed(host, core_evict(host, 2, ""), AMP_EINVAL, "RANK", "world_size");
}

/* ---- requests ---- */

static void a_repeated_request_is_answered_and_not_done_again(void **state)
{
    struct core_host *host = *state;
    assert_set(host, core_set_scale(host, 8, "id-1"), 8, 2);
    assert_set(host, core_set_scale(host, 8, "id-1"), 8, 2);
    assert_int_equal(1, host->persists[AMPD_PERSIST_ACT]);
    assert_set(host, core_set_scale(host, 8, ""), 8, 2); /* without an id: another act */
    assert_int_equal(2, host->persists[AMPD_PERSIST_ACT]);
}

static void a_request_id_of_another_request_is_refused(void **state)
{
    struct core_host *host = *state;
    (void)core_set_scale(host, 8, "id-1");
    core_assert_failed(host, core_set_scale(host, 16, "id-1"), AMP_EINVAL, "REQUEST_ID_USED", "id-1");
    core_assert_failed(host, core_reset_scale(host, "id-1"), AMP_EINVAL, "REQUEST_ID_USED", "id-1");
}

static void a_request_that_is_being_stored_is_not_done_twice(void **state)
{
    struct core_host *host = *state;
    host->hold_persists = true;
    uint64_t first = core_set_scale(host, 8, "id-1");
    core_close_call(host, first); /* the connection breaks, and the operator asks again */
    core_assert_failed(host, core_set_scale(host, 8, "id-1"), AMP_EUNAVAILABLE, "RECOVERING", "being stored");
    core_do_all(host);
    assert_set(host, core_set_scale(host, 8, "id-1"), 8, 2);
    assert_int_equal(1, host->persists[AMPD_PERSIST_ACT]);
}

static void requests_of_the_store_are_known_after_a_start(void **state)
{
    struct core_host *host = *state;
    struct ampd_model_spec spec;
    core_spec(&spec, 2);
    struct ampd_model_record record = {.epoch = 3, .base_step = 0, .acts_count = 2};
    record.spec = spec;
    whole_spec(&record.spec);
    record.acts[0] = (struct ampd_act_record){
        .kind = AMPD_ROW_SET, .epoch = 3, .step = 4, .from_step = 5, .after.scaler = {.scale = 8}, .request_id = "set"};
    record.acts[1] =
        (struct ampd_act_record){.kind = AMPD_ROW_EPOCH, .epoch = 3, .step = 2, .base_epoch = 1, .request_id = "back"};
    struct ampd_event found = {.type = AMPD_EVENT_MODEL_FOUND, .u.found = &record};
    core_event(host, &found);
    struct ampd_event start = {.type = AMPD_EVENT_START};
    core_event(host, &start);
    core_assert_failed(host, core_set_scale(host, 8, "set"), AMP_ESTATE, "ACT_LOST", "step 4 of epoch 3");
    uint64_t back = core_rollback(host, 1, 2, "back");
    assert_int_equal(0, core_call(host, back)->reply.error.code);
    assert_int_equal(3, core_call(host, back)->reply.u.rollback.epoch);
    assert_int_equal(3, core_call(host, back)->reply.u.rollback.step);
}

static void the_oldest_request_ids_are_forgotten(void **state)
{
    struct core_host *host = *state;
    for (unsigned i = 0; i < AMPD_ACTIONS_MAX + 1; i++) {
        char id[8] = {'i', (char)('0' + i / 10), (char)('0' + i % 10), 0};
        (void)core_set_scale(host, 8, id);
        (void)push_step(host, 1 + i, 8);
    }
    unsigned stored = host->persists[AMPD_PERSIST_ACT];
    (void)core_set_scale(host, 8, "i01");
    assert_int_equal(stored, host->persists[AMPD_PERSIST_ACT]);
    (void)core_set_scale(host, 8, "i00");
    assert_int_equal(stored + 1, host->persists[AMPD_PERSIST_ACT]);
}

/* ---- what is refused ---- */

static void a_scale_out_of_its_range_is_refused(void **state)
{
    struct core_host *host = *state;
    const float wrong[] = {0, -1, 0.5f, 0x1p25f, INFINITY, NAN};
    for (unsigned i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++)
        core_assert_failed(host, core_set_scale(host, wrong[i], ""), AMP_EINVAL, "INVALID_FIELD", "scale: ");
    assert_int_equal(0, host->persists[AMPD_PERSIST_ACT]);
    assert_set(host, core_set_scale(host, 1, ""), 1, 2);
    assert_set(host, core_set_scale(host, 0x1p24f, ""), 0x1p24f, 2);
}

static void what_is_set_is_told_with_all_its_digits(void **state)
{
    struct core_host *host = *state;
    (void)core_set_scale(host, 1048577, "");
    assert_non_null(strstr(host->logged, "the scale is 1048577 from step 2 on"));
    (void)core_set_lr(host, 0.000123456789, "");
    assert_non_null(strstr(host->logged, "the learning rate is 0.000123456789 from step 1 on"));
    core_assert_failed(host, core_set_scale(host, 16777218, ""), AMP_EINVAL, "INVALID_FIELD",
                       "scale: 16777218 is not within [1, 16777216]");
}

static void under_the_policy_none_the_scale_is_one(void **state)
{
    struct core_host *host = *state;
    struct ampd_model_spec spec;
    core_spec(&spec, 1);
    spec.scaler = (struct amp_scaler_config){.policy = AMP_SCALER_NONE};
    (void)core_create(host, &spec);
    (void)core_load(host, 1);
    core_assert_failed(host, core_set_scale(host, 2, ""), AMP_EINVAL, "INVALID_FIELD", "none");
    assert_set(host, core_set_scale(host, 1, ""), 1, 1);
}

static void more_acts_than_a_verdict_carries_wait_for_it(void **state)
{
    struct core_host *host = *state;
    for (unsigned i = 0; i < AMPD_ACTIONS_WAIT_MAX; i++)
        assert_set(host, core_set_scale(host, i % 2 == 0 ? 8 : 64, ""), i % 2 == 0 ? 8 : 64, 2);
    core_assert_failed(host, core_set_scale(host, 2, ""), AMP_EEXHAUSTED, "TOO_MANY_CALLS", "next step");
    assert_true(result(host, push_step(host, 1, 1024))->new_scale == 64);
    assert_set(host, core_set_scale(host, 2, ""), 2, 3);
}

static void a_model_that_is_done_or_unknown_has_no_scale_to_set(void **state)
{
    struct core_host *host = *state;
    core_assert_failed(host, core_set_scale(host, 8, ""), AMP_ENOTFOUND, "MODEL_NOT_FOUND", "create it");
    struct ampd_model_spec spec;
    core_spec(&spec, 2);
    spec.max_steps = 1;
    (void)core_create(host, &spec);
    (void)core_load(host, 1);
    incarnations[0] = core_joined(host, core_join(host, "w0", 0));
    incarnations[1] = core_joined(host, core_join(host, "w1", 1));
    (void)push_step(host, 1, 1);
    core_assert_failed(host, core_set_scale(host, 8, ""), AMP_ESTATE, "MODEL_DONE", "step 1");
}

#define RUNNING(test) cmocka_unit_test_setup_teardown(test, setup_running, teardown)
#define EMPTY(test)   cmocka_unit_test_setup_teardown(test, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        RUNNING(a_scale_set_while_a_step_is_open_is_that_of_the_next_step),
        RUNNING(a_step_that_carries_another_scale_moves_the_counts_alone),
        RUNNING(a_new_try_of_the_open_step_keeps_its_first_scale),
        RUNNING(an_act_during_the_store_of_a_verdict_counts_one_step_later),
        EMPTY(an_act_during_the_store_of_a_verdict_counts_at_once_if_no_step_opens_with_it),
        RUNNING(an_act_that_waits_for_a_verdict_is_under_way),
        RUNNING(an_eviction_ends_the_lease_and_says_nothing_about_the_scale),
        RUNNING(a_push_that_had_begun_before_its_worker_was_evicted_counts),
        RUNNING(a_push_of_an_evicted_worker_ends_when_another_one_joins_as_its_rank),
        RUNNING(an_eviction_that_waits_for_a_verdict_is_under_way),
        EMPTY(all_workers_of_four_hosts_are_evicted_though_no_step_goes_on),
        RUNNING(a_push_that_waits_ends_when_its_worker_is_evicted),
        RUNNING(an_eviction_of_nobody_stores_its_row_alone),
        RUNNING(a_rank_whose_join_is_being_stored_is_not_evicted),
        RUNNING(a_verdict_that_is_made_while_an_act_is_stored_follows_from_it),
        EMPTY(the_first_step_waits_for_an_act_that_is_being_stored),
        RUNNING(a_reset_brings_the_policy_back_to_its_start_and_keeps_the_counts),
        RUNNING(the_row_of_an_act_says_who_why_and_from_when),
        RUNNING(a_repeated_request_is_answered_and_not_done_again),
        RUNNING(a_request_id_of_another_request_is_refused),
        RUNNING(a_request_that_is_being_stored_is_not_done_twice),
        EMPTY(requests_of_the_store_are_known_after_a_start),
        RUNNING(the_oldest_request_ids_are_forgotten),
        RUNNING(a_scale_out_of_its_range_is_refused),
        RUNNING(what_is_set_is_told_with_all_its_digits),
        EMPTY(under_the_policy_none_the_scale_is_one),
        RUNNING(more_acts_than_a_verdict_carries_wait_for_it),
        EMPTY(a_model_that_is_done_or_unknown_has_no_scale_to_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
