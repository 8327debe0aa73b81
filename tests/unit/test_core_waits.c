/* Who waits for what, and for how long: stalls, ranks that leave, calls that nobody can answer. */
#include "server/core/model/spec.h"
#include "tests/unit/core_fixture.h"
#include "tests/whole_spec.h"

#include <string.h>

static struct core_host host;
static struct ampd_incarnation incarnations[2];

static int setup(void **state)
{
    (void)state;
    core_host_init(&host, 7);
    return 0;
}

static int setup_running(void **state)
{
    (void)setup(state);
    core_running(&host, incarnations);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    core_host_close(&host);
    return 0;
}

static uint64_t next_call(void)
{
    return ++host.last_call;
}

static uint64_t checkpoint(void)
{
    struct ampd_event event = {.type = AMPD_EVENT_CHECKPOINT, .call = next_call(), .u.named = {"model"}};
    core_event(&host, &event);
    return event.call;
}

static uint64_t of_worker(enum ampd_event_type type, uint32_t rank, struct ampd_incarnation incarnation)
{
    struct ampd_event event = {.type = type, .call = next_call(), .u.worker = {"model", rank, incarnation}};
    core_event(&host, &event);
    return event.call;
}

static uint64_t join(const char *name, bool replace)
{
    struct ampd_event event = {.type = AMPD_EVENT_JOIN,
                               .call = next_call(),
                               .u.join = {.model = "model", .worker = name, .rank = -1, .replace = replace}};
    core_event(&host, &event);
    return event.call;
}

/* ---- STALLED ---- */

/* Rank 0 loses its lease a second before rank 1 does, and stalls the model. */
static void stall_for_rank_0(void)
{
    core_tick(&host, host.now_ms + 1000);
    (void)of_worker(AMPD_EVENT_KEEP_ALIVE, 1, incarnations[1]);
    core_tick(&host, host.now_ms + AMPD_LEASE_MS - 1000);
    core_tick(&host, host.now_ms + 1000);
    core_tick(&host, host.now_ms + 600000 - 1000);
    assert_int_equal(AMPD_MODEL_STALLED, core_info(&host).state);
    assert_int_equal(0, core_info(&host).waits.missing_rank);
}

static void a_model_that_waits_for_another_rank_by_now_is_not_stalled_for_the_first(void **state)
{
    (void)state;
    stall_for_rank_0();
    incarnations[0] = core_joined(&host, core_join(&host, "w0", 0));
    assert_int_equal(AMPD_MODEL_RUNNING, core_info(&host).state); /* rank 1 has been gone for less than loss_timeout */
    uint64_t push = core_push_all(&host, 1, 0, incarnations[0], 1);
    assert_false(core_call(&host, push)->answered);
    core_tick(&host, host.now_ms + 1000);
    assert_int_equal(AMPD_MODEL_STALLED, core_info(&host).state);
    core_assert_failed(&host, push, AMP_EUNAVAILABLE, "MODEL_STALLED", "rank 1");
}

static void a_stalled_model_names_the_rank_that_is_still_gone(void **state)
{
    (void)state;
    stall_for_rank_0();
    core_tick(&host, host.now_ms + 2000); /* rank 1 has been gone too long, too */
    incarnations[0] = core_joined(&host, core_join(&host, "w0", 0));
    assert_int_equal(AMPD_MODEL_STALLED, core_info(&host).state);
    assert_int_equal(1, core_info(&host).waits.missing_rank);
    core_assert_failed(&host, core_push_all(&host, 1, 0, incarnations[0], 1), AMP_EUNAVAILABLE, "MODEL_STALLED",
                       "rank 1");
}

static void a_rank_that_left_is_gone_at_once(void **state)
{
    (void)state;
    uint64_t push = core_push_all(&host, 1, 0, incarnations[0], 1);
    assert_int_equal(0, core_call(&host, of_worker(AMPD_EVENT_LEAVE, 1, incarnations[1]))->reply.error.code);
    for (unsigned i = 0; i < 60; i++) { /* rank 0 keeps its lease */
        core_tick(&host, host.now_ms + 10000 - (i == 59 ? 1 : 0));
        struct ampd_event renew = {.type = AMPD_EVENT_RENEW, .u.worker = {"model", 0, incarnations[0]}};
        core_event(&host, &renew);
    }
    assert_int_equal(AMPD_MODEL_RUNNING, core_info(&host).state);
    core_tick(&host, host.now_ms + 1); /* loss_timeout after it left, not after its lease */
    assert_int_equal(AMPD_MODEL_STALLED, core_info(&host).state);
    core_assert_failed(&host, push, AMP_EUNAVAILABLE, "MODEL_STALLED", "rank 1");
}

static void a_leave_that_comes_again_does_not_put_off_when_its_rank_is_missed(void **state)
{
    (void)state;
    (void)core_push_all(&host, 1, 0, incarnations[0], 1);
    for (unsigned i = 0; i < 60; i++) { /* rank 0 keeps its lease */
        assert_int_equal(AMPD_MODEL_RUNNING, core_info(&host).state);
        (void)of_worker(AMPD_EVENT_LEAVE, 1, incarnations[1]);
        core_tick(&host, host.now_ms + 10000);
        struct ampd_event renew = {.type = AMPD_EVENT_RENEW, .u.worker = {"model", 0, incarnations[0]}};
        core_event(&host, &renew);
    }
    assert_int_equal(AMPD_MODEL_STALLED, core_info(&host).state);
}

static void a_model_that_all_have_left_is_idle_and_not_stalled(void **state)
{
    (void)state;
    for (uint32_t r = 0; r < 2; r++)
        assert_int_equal(0, core_call(&host, of_worker(AMPD_EVENT_LEAVE, r, incarnations[r]))->reply.error.code);
    core_tick(&host, host.now_ms + 20000); /* the lines about the Leaves are of before */
    unsigned logged = host.logged_count;
    for (unsigned hours = 0; hours < 10; hours++) {
        core_tick(&host, host.now_ms + 3600000);
        assert_int_equal(AMPD_MODEL_RUNNING, core_info(&host).state);
        assert_true(host.timer_ms <= host.now_ms || host.timer_ms > host.now_ms + 1000); /* no turn after the other */
    }
    assert_int_equal(logged, host.logged_count);
    incarnations[0] = core_joined(&host, core_join(&host, "w0", 0)); /* in the morning: rank 1 is waited for from now */
    uint64_t push = core_push_all(&host, 1, 0, incarnations[0], 1);
    for (unsigned i = 0; i < 60; i++) {
        assert_int_equal(AMPD_MODEL_RUNNING, core_info(&host).state);
        core_tick(&host, host.now_ms + 10000);
        struct ampd_event renew = {.type = AMPD_EVENT_RENEW, .u.worker = {"model", 0, incarnations[0]}};
        core_event(&host, &renew);
    }
    core_assert_failed(&host, push, AMP_EUNAVAILABLE, "MODEL_STALLED", "rank 1");
    assert_int_equal(0, core_call(&host, of_worker(AMPD_EVENT_LEAVE, 0, incarnations[0]))->reply.error.code);
    assert_int_equal(AMPD_MODEL_RUNNING, core_info(&host).state); /* nobody waits any more */
}

/* ---- a rank that all others wait for ---- */

/* Time passes, the leases are kept, and ticks come when they were asked for. */
static void pass(uint64_t ms)
{
    uint64_t until = host.now_ms + ms;
    host.logged[0] = 0;
    while (host.now_ms < until) {
        uint64_t at = host.timer_ms > host.now_ms && host.timer_ms < until ? host.timer_ms : until;
        core_tick(&host, at < host.now_ms + 5000 ? at : host.now_ms + 5000);
        for (uint32_t r = 0; r < 2; r++) {
            struct ampd_event renew = {.type = AMPD_EVENT_RENEW, .u.worker = {"model", r, incarnations[r]}};
            core_event(&host, &renew);
        }
    }
}

static struct ampd_worker_info worker_info(uint32_t rank)
{
    struct ampd_worker_info info;
    ampd_core_worker(host.core, 0, rank, host.now_ms, &info);
    return info;
}

static void a_rank_that_keeps_another_waiting_is_named_once_a_step(void **state)
{
    (void)state;
    pass(20000); /* as long as no push is complete, nobody waits */
    (void)core_push_all(&host, 1, 0, incarnations[0], 1);
    assert_false(worker_info(0).awaited);
    assert_true(worker_info(1).awaited);
    assert_int_equal(host.now_ms + AMPD_AWAITED_MS, core_info(&host).waits.awaited_late_ms);
    pass(AMPD_AWAITED_MS - 1);
    assert_string_equal("", host.logged);
    pass(1);
    assert_string_equal("step 1 waits for rank 1 (w1): others have waited for 10 s", host.logged);
    pass(60000);
    assert_string_equal("", host.logged);
    (void)core_push_all(&host, 1, 1, incarnations[1], 1);
    (void)core_push_all(&host, 2, 1, incarnations[1], 1);
    pass(AMPD_AWAITED_MS);
    assert_string_equal("step 2 waits for rank 0 (w0): others have waited for 10 s", host.logged);
    (void)core_push_all(&host, 2, 0, incarnations[0], 1);
    assert_int_equal(0, core_info(&host).waits.awaited_late_ms);
}

static void a_push_that_has_waited_too_long_is_told_for_whom(void **state)
{
    (void)state;
    uint64_t push = core_push_all(&host, 1, 0, incarnations[0], 1);
    pass(AMPD_LEASE_MS + 600000 - 1);
    assert_false(core_call(&host, push)->answered);
    pass(5000); /* they are looked for so often */
    core_assert_failed(&host, push, AMP_EUNAVAILABLE, "WAITED_TOO_LONG", "as it waits for rank 1 (w1);");
}

static void a_rank_that_nobody_has_started_is_named_once(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    core_spec(&spec, 2);
    (void)core_create(&host, &spec);
    (void)core_load(&host, 1);
    pass(20000); /* nobody waits */
    assert_string_equal("", host.logged);
    incarnations[0] = core_joined(&host, core_join(&host, "w0", 0));
    incarnations[1] = (struct ampd_incarnation){0};
    pass(AMPD_AWAITED_MS - 1);
    assert_string_equal("", host.logged);
    pass(1);
    assert_string_equal("step 1 waits for rank 1 (never joined): others have waited for 10 s", host.logged);
    assert_true(worker_info(1).awaited && !worker_info(0).awaited);
    pass(60000);
    assert_string_equal("", host.logged);
    (void)core_join(&host, "w1", 1);
    assert_int_equal(0, core_info(&host).waits.awaited_late_ms);
}

static void a_step_that_takes_long_on_all_ranks_keeps_nobody_waiting(void **state)
{
    (void)state;
    pass(100000);
    assert_string_equal("", host.logged);
    assert_int_equal(0, core_info(&host).waits.awaited_since_ms);
    assert_int_equal(100000, host.now_ms - core_info(&host).waits.open_since_ms);
    assert_false(worker_info(0).awaited || worker_info(1).awaited);
}

static void a_push_by_an_incarnation_to_come_does_not_wait_at_all(void **state)
{
    (void)state;
    struct ampd_incarnation forged = {incarnations[0].fence, incarnations[0].counter + 1000};
    core_tick(&host, host.now_ms + AMPD_LEASE_MS);
    core_assert_failed(&host, core_push_header(&host, 1, 0, forged), AMP_EABORTED, "FENCED", "join again");
}

/* ---- Checkpoint, where no verdict comes ---- */

static void push_both(uint64_t step)
{
    (void)core_push_all(&host, step, 0, incarnations[0], 1);
    (void)core_push_all(&host, step, 1, incarnations[1], 1);
}

static void assert_checkpoint_of(uint64_t call, uint64_t step)
{
    assert_true(core_call(&host, call)->answered);
    assert_int_equal(0, core_call(&host, call)->reply.error.code);
    assert_int_equal(step, core_call(&host, call)->reply.u.checkpoint.step);
    assert_int_equal(step, core_call(&host, call)->reply.u.checkpoint.version);
}

static void while_the_workers_live_a_checkpoint_call_waits_for_their_step(void **state)
{
    (void)state;
    push_both(1);
    uint64_t call = checkpoint();
    (void)core_push_all(&host, 2, 0, incarnations[0], 1);
    assert_false(core_call(&host, call)->answered);
    (void)core_push_all(&host, 2, 1, incarnations[1], 1);
    assert_checkpoint_of(call, 2);
    assert_int_equal(2, host.cuts);
}

static void when_all_workers_have_left_the_last_step_can_be_checkpointed(void **state)
{
    (void)state;
    push_both(1);
    push_both(2);
    (void)of_worker(AMPD_EVENT_LEAVE, 0, incarnations[0]);
    (void)of_worker(AMPD_EVENT_LEAVE, 1, incarnations[1]);
    assert_checkpoint_of(checkpoint(), 2);
    assert_checkpoint_of(checkpoint(), 2);
    assert_int_equal(2, host.cuts); /* the first is of step 0 */
}

static void a_checkpoint_call_that_waits_is_answered_when_a_worker_leaves(void **state)
{
    (void)state;
    push_both(1);
    uint64_t call = checkpoint(), second = checkpoint();
    (void)of_worker(AMPD_EVENT_LEAVE, 1, incarnations[1]);
    assert_checkpoint_of(call, 1);
    assert_checkpoint_of(second, 1);
    /* Whoever comes back goes on, and no later verdict is cut for that call. */
    incarnations[1] = core_joined(&host, core_join(&host, "w1", 1));
    push_both(2);
    assert_int_equal(2, core_info(&host).decided_step);
    assert_int_equal(2, host.cuts);
}

static void a_checkpoint_call_that_waits_is_answered_when_a_lease_ends(void **state)
{
    (void)state;
    push_both(1);
    uint64_t call = checkpoint();
    core_tick(&host, host.now_ms + AMPD_LEASE_MS - 1);
    assert_false(core_call(&host, call)->answered);
    core_tick(&host, host.now_ms + 1);
    assert_checkpoint_of(call, 1);
}

static void a_rank_that_has_pushed_may_go_and_the_step_is_waited_for(void **state)
{
    (void)state;
    push_both(1);
    (void)core_push_all(&host, 2, 0, incarnations[0], 1);
    (void)of_worker(AMPD_EVENT_LEAVE, 0, incarnations[0]);
    uint64_t call = checkpoint();
    assert_false(core_call(&host, call)->answered);
    (void)core_push_all(&host, 2, 1, incarnations[1], 1);
    assert_checkpoint_of(call, 2);
}

static void a_stalled_model_can_be_checkpointed(void **state)
{
    (void)state;
    push_both(1);
    core_tick(&host, host.now_ms + AMPD_LEASE_MS);
    core_tick(&host, host.now_ms + 600000);
    assert_int_equal(AMPD_MODEL_STALLED, core_info(&host).state);
    assert_checkpoint_of(checkpoint(), 1);
}

/* The call comes while its step's verdict is being stored, and the masters are not those of the step yet. */
static void a_step_that_is_being_applied_is_checkpointed_when_it_is(void **state)
{
    (void)state;
    (void)of_worker(AMPD_EVENT_LEAVE, 0, incarnations[0]);
    incarnations[0] = core_joined(&host, core_join(&host, "w0", 0));
    host.hold_persists = true;
    push_both(1);
    uint64_t storing = checkpoint();
    host.hold_jobs = true;
    host.hold_persists = false;
    core_do_task(&host, 0); /* the verdict */
    assert_int_equal(1, core_info(&host).decided_step);
    (void)of_worker(AMPD_EVENT_LEAVE, 0, incarnations[0]);
    uint64_t applying = checkpoint();
    assert_false(core_call(&host, storing)->answered || core_call(&host, applying)->answered);
    host.hold_jobs = false;
    core_do_all(&host);
    assert_checkpoint_of(storing, 1);
    assert_checkpoint_of(applying, 1);
    assert_int_equal(2, host.cuts);
}

/* Two of three. */
static void begin_quorum(struct ampd_model_spec *spec, struct ampd_incarnation ranks[3])
{
    core_spec(spec, 3);
    spec->sync = AMPD_SYNC_QUORUM;
    spec->quorum = 2;
    (void)core_create(&host, spec);
    (void)core_load(&host, 1);
    for (int32_t r = 0; r < 3; r++)
        ranks[r] = core_joined(&host, core_join(&host, (const char *[]){"w0", "w1", "w2"}[r], r));
}

static void a_late_worker_that_joins_again_takes_nothing_from_a_quorum_that_has_closed(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    struct ampd_incarnation ranks[3];
    begin_quorum(&spec, ranks);
    host.hold_jobs = true; /* both are whole, and what they sum to is being looked at */
    (void)core_push_all(&host, 1, 0, ranks[0], 1);
    (void)core_push_all(&host, 1, 1, ranks[1], 1);
    ranks[2] = core_joined(&host, core_join(&host, "w2", 2));
    uint64_t late = core_push_header(&host, 1, 2, ranks[2]);
    host.hold_jobs = false;
    core_do_all(&host);
    assert_int_equal(1, host.row.step);
    assert_int_equal(1, host.row.tries);
    assert_int_equal(AMPD_VERDICT_LATE, core_call(&host, late)->reply.u.step.verdict);
    (void)core_push_all(&host, 2, 2, ranks[2], 1);
    (void)core_push_all(&host, 2, 1, ranks[1], 1);
    assert_int_equal(2, host.row.step);
    assert_int_equal(2, host.row.contributors[1].rank);
}

static void a_quorum_that_lives_is_waited_for_and_one_that_does_not_is_not(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    struct ampd_incarnation ranks[3];
    begin_quorum(&spec, ranks);
    (void)core_push_all(&host, 1, 0, ranks[0], 1);
    (void)core_push_all(&host, 1, 1, ranks[1], 1);
    (void)of_worker(AMPD_EVENT_LEAVE, 2, ranks[2]);
    uint64_t call = checkpoint();
    assert_false(core_call(&host, call)->answered);
    (void)of_worker(AMPD_EVENT_LEAVE, 1, ranks[1]);
    assert_checkpoint_of(call, 1);
}

static void a_shrinking_model_without_enough_workers_can_be_checkpointed(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    struct ampd_incarnation third;
    core_spec(&spec, 3);
    spec.on_loss = AMPD_ON_LOSS_SHRINK;
    spec.min_workers = 2;
    (void)core_create(&host, &spec);
    (void)core_load(&host, 1);
    incarnations[0] = core_joined(&host, core_join(&host, "w0", 0));
    incarnations[1] = core_joined(&host, core_join(&host, "w1", 1));
    third = core_joined(&host, core_join(&host, "w2", 2));
    push_both(1); /* it had opened with two */
    push_both(2);
    (void)core_push_all(&host, 2, 2, third, 1);
    (void)of_worker(AMPD_EVENT_LEAVE, 2, third);
    uint64_t call = checkpoint();
    assert_false(core_call(&host, call)->answered); /* two go on by themselves */
    (void)of_worker(AMPD_EVENT_LEAVE, 1, incarnations[1]);
    assert_checkpoint_of(call, 2);
}

/* A step that shrinks has opened without whoever left. */
static void a_rank_that_left_a_shrinking_model_stalls_nobody(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    core_spec(&spec, 2);
    spec.on_loss = AMPD_ON_LOSS_SHRINK;
    spec.min_workers = 1;
    (void)core_create(&host, &spec);
    (void)core_load(&host, 1);
    incarnations[0] = core_joined(&host, core_join(&host, "w0", 0));
    incarnations[1] = core_joined(&host, core_join(&host, "w1", 1));
    (void)of_worker(AMPD_EVENT_LEAVE, 1, incarnations[1]);
    for (unsigned i = 0; i < 100; i++) {
        core_tick(&host, host.now_ms + 10000);
        struct ampd_event renew = {.type = AMPD_EVENT_RENEW, .u.worker = {"model", 0, incarnations[0]}};
        core_event(&host, &renew);
        assert_int_equal(AMPD_MODEL_RUNNING, core_info(&host).state);
    }
}

static void a_loaded_model_that_has_had_no_step_has_its_checkpoint(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    core_spec(&spec, 2);
    (void)core_create(&host, &spec);
    (void)core_load(&host, 1);
    assert_checkpoint_of(checkpoint(), 0);
    incarnations[0] = core_joined(&host, core_join(&host, "w0", 0));
    assert_checkpoint_of(checkpoint(), 0);
}

/* ---- calls that nobody can answer ---- */

static void a_call_waits_as_long_as_a_missing_rank_may_and_no_longer(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    core_spec(&spec, 2);
    spec.loss_timeout_ms = 20000;
    (void)core_create(&host, &spec);
    (void)core_load(&host, 1);
    incarnations[0] = core_joined(&host, core_join(&host, "w0", 0));
    uint64_t pull = core_pull_step(&host, 1, 1); /* rank 1 never comes: no step opens, and nothing stalls */
    uint64_t push = core_push_header(&host, 1, 0, incarnations[0]);
    uint64_t end = host.now_ms + AMPD_LEASE_MS + 20000;
    core_assert_held(&host, pull);
    assert_true(host.timer_ms != 0);
    while (host.now_ms < end) {
        core_assert_held(&host, pull);
        core_assert_held(&host, push);
        core_tick(&host, host.now_ms + 5000);
        struct ampd_event renew = {.type = AMPD_EVENT_RENEW, .u.worker = {"model", 0, incarnations[0]}};
        core_event(&host, &renew); /* its connection lives */
    }
    core_assert_failed(&host, pull, AMP_EUNAVAILABLE, "WAITED_TOO_LONG", "50000 ms");
    core_assert_failed(&host, push, AMP_EUNAVAILABLE, "WAITED_TOO_LONG", "50000 ms");
    assert_true(core_call(&host, pull)->reply.retry_ms > 0);
}

static void held_pushes_of_one_rank_are_four(void **state)
{
    (void)state;
    uint64_t calls[5];
    for (unsigned i = 0; i < 5; i++)
        calls[i] = core_push_header(&host, 2, 0, incarnations[0]);
    uint64_t other = core_push_header(&host, 2, 1, incarnations[1]);
    core_assert_failed(&host, calls[0], AMP_EABORTED, "REPLACED", "rank 0");
    for (unsigned i = 1; i < 5; i++)
        core_assert_held(&host, calls[i]);
    core_assert_held(&host, other);
}

static void an_older_incarnation_is_aborted_for_the_next_step_too(void **state)
{
    (void)state;
    struct ampd_incarnation old = incarnations[0];
    incarnations[0] = core_joined(&host, core_join(&host, "w0", 0));
    core_assert_failed(&host, core_push_header(&host, 2, 0, old), AMP_EABORTED, "FENCED", "join again");
    core_assert_held(&host, core_push_header(&host, 2, 0, incarnations[0]));
}

static void a_waiting_push_of_an_older_incarnation_is_aborted_when_the_step_opens_without_it(void **state)
{
    (void)state;
    uint64_t push = core_push_all(&host, 1, 0, incarnations[0], 1);
    assert_false(core_call(&host, push)->answered);
    (void)core_joined(&host, core_join(&host, "w0", 0));
    core_assert_failed(&host, push, AMP_EABORTED, "FENCED", "join again");
}

/* ---- ranks ---- */

static void a_sign_of_life_of_a_rank_out_of_range_is_passed_over(void **state)
{
    (void)state;
    const uint32_t ranks[] = {2, 255, 4000000000u, UINT32_MAX};
    for (unsigned i = 0; i < 4; i++) {
        struct ampd_event renew = {.type = AMPD_EVENT_RENEW, .u.worker = {"model", ranks[i], {0, 0}}};
        core_event(&host, &renew);
    }
    assert_int_equal(AMPD_MODEL_RUNNING, core_info(&host).state);
}

static void a_rank_that_is_being_stored_goes_to_no_other_name(void **state)
{
    (void)state;
    (void)of_worker(AMPD_EVENT_LEAVE, 1, incarnations[1]);
    host.hold_persists = true;
    uint64_t again = join("w1", false);
    uint64_t other = join("w2", false);
    uint64_t replacing = join("w3", true);
    core_assert_failed(&host, other, AMP_ESTATE, "NO_FREE_RANK", "w2");
    core_assert_failed(&host, replacing, AMP_ESTATE, "NO_FREE_RANK", "w3");
    host.hold_persists = false;
    core_do_all(&host);
    assert_int_equal(1, core_call(&host, again)->reply.u.join.rank);
}

/* On a full disk the model would stall, instead of saying that it waits for workers. */
static void a_rank_that_has_left_counts_as_here_when_its_next_join_is_stored(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    core_spec(&spec, 2);
    (void)core_create(&host, &spec);
    (void)core_load(&host, 1);
    incarnations[0] = core_joined(&host, core_join(&host, "w0", 0));
    (void)of_worker(AMPD_EVENT_LEAVE, 0, incarnations[0]);
    host.hold_persists = true;
    (void)core_join(&host, "w1", 1);
    (void)core_join(&host, "w0", 0);
    core_do_task(&host, 0);
    assert_int_equal(AMPD_MODEL_WAITING, core_info(&host).state);
    core_do_task(&host, 0);
    assert_int_equal(AMPD_MODEL_RUNNING, core_info(&host).state);
}

static void of_a_rank_one_join_or_leave_is_stored_at_a_time_however_many_come(void **state)
{
    (void)state;
    host.hold_persists = true; /* as while the disk is full */
    core_close_call(&host, join("w1", false));
    for (unsigned i = 0; i < 2 * CORE_TASKS_MAX; i++) {
        core_assert_failed(&host, join("w1", false), AMP_EUNAVAILABLE, "RECOVERING", "rank 1");
        uint64_t leave = of_worker(AMPD_EVENT_LEAVE, 1, incarnations[1]);
        core_assert_failed(&host, leave, AMP_EUNAVAILABLE, "RECOVERING", "rank 1");
    }
    assert_int_equal(1, host.tasks_count);
    host.hold_persists = false;
    core_do_all(&host);
    incarnations[1] = core_joined(&host, join("w1", false)); /* who asks again is in at once */
    (void)core_push_all(&host, 1, 0, incarnations[0], 1);
    assert_int_equal(0, core_call(&host, core_push_all(&host, 1, 1, incarnations[1], 1))->reply.error.code);
    assert_int_equal(3, host.row.tries); /* the first list, and two Joins that were stored */
}

static void of_two_that_replace_one_rank_one_gets_it(void **state)
{
    (void)state;
    core_tick(&host, host.now_ms + 1000);
    (void)of_worker(AMPD_EVENT_KEEP_ALIVE, 1, incarnations[1]);
    core_tick(&host, host.now_ms + AMPD_LEASE_MS - 1000); /* the lease of rank 0 has ended */
    host.hold_persists = true;
    uint64_t first = join("w2", true);
    uint64_t second = join("w3", true);
    core_assert_failed(&host, second, AMP_ESTATE, "NO_FREE_RANK", "w3");
    core_do_all(&host);
    assert_int_equal(0, core_call(&host, first)->reply.u.join.rank);
}

static void a_leave_that_a_newer_join_has_overtaken_gives_nothing_back(void **state)
{
    (void)state;
    host.hold_persists = true;
    uint64_t again = join("w1", false);
    uint64_t leave = of_worker(AMPD_EVENT_LEAVE, 1, incarnations[1]);
    core_assert_failed(&host, leave, AMP_EUNAVAILABLE, "RECOVERING", "ask again");
    core_do_all(&host);
    (void)core_joined(&host, again);
    core_assert_failed(&host, of_worker(AMPD_EVENT_LEAVE, 1, incarnations[1]), AMP_EABORTED, "RANK_TAKEN", "w1");
    core_assert_failed(&host, join("w2", false), AMP_ESTATE, "NO_FREE_RANK", "w2");
}

static void ranks_found_at_a_start_are_live_for_one_lease(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    core_spec(&spec, 1);
    whole_spec(&spec);
    struct ampd_checkpoint_record checkpoint_record = {.epoch = 4, .step = 5, .version = 5};
    struct ampd_worker_record worker = {.name = "alice", .incarnation = {6, 3}};
    struct ampd_model_record record = {.spec = spec,
                                       .epoch = 4,
                                       .checkpoints = &checkpoint_record,
                                       .checkpoints_count = 1,
                                       .workers = &worker,
                                       .workers_count = 1};
    struct ampd_event event = {.type = AMPD_EVENT_MODEL_FOUND, .u.found = &record};
    core_event(&host, &event);
    event = (struct ampd_event){.type = AMPD_EVENT_START};
    core_event(&host, &event);
    core_tick(&host, host.now_ms + AMPD_LEASE_MS - 1);
    core_assert_failed(&host, join("bob", true), AMP_ESTATE, "NO_FREE_RANK", "bob");
    core_tick(&host, host.now_ms + 1);
    assert_int_equal(0, core_call(&host, join("bob", true))->reply.error.code);
}

/* It lives for a lease, and its calls renew that; but no step lists it before it has joined. */
static void a_rank_found_at_a_start_is_told_to_join_where_steps_go_on_without_it(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    core_spec(&spec, 2);
    spec.on_loss = AMPD_ON_LOSS_SHRINK;
    spec.min_workers = 1;
    spec.durability = AMPD_DURABILITY_STEP;
    whole_spec(&spec);
    struct ampd_checkpoint_record checkpoint_record = {.epoch = 4, .step = 5, .version = 5};
    struct ampd_worker_record workers[] = {{.name = "alice", .incarnation = {6, 3}},
                                           {.name = "bob", .rank = 1, .incarnation = {6, 4}}};
    struct ampd_model_record record = {.spec = spec,
                                       .epoch = 4,
                                       .checkpoints = &checkpoint_record,
                                       .checkpoints_count = 1,
                                       .workers = workers,
                                       .workers_count = 2};
    struct ampd_event event = {.type = AMPD_EVENT_MODEL_FOUND, .u.found = &record};
    core_event(&host, &event);
    event = (struct ampd_event){.type = AMPD_EVENT_START};
    core_event(&host, &event);
    assert_int_equal(4, core_info(&host).epoch);
    struct ampd_incarnation alice = core_joined(&host, core_join(&host, "alice", 0));
    uint64_t scale_id = core_info(&host).step_scale_id;
    struct ampd_event_push push = {"model", 4, 6, 0, alice, scale_id, AMP_F32, 1, false, 0, NULL, 0};
    uint64_t id = core_push_event(&host, &push);
    for (uint64_t b = 0; b < 3; b++)
        core_push_block(&host, id, b, 1);
    core_push_end(&host, id, NULL, 0);
    assert_int_equal(6, core_info(&host).decided_step);
    push.rank = 1;
    push.incarnation = workers[1].incarnation;
    for (unsigned step = 6; step < 8; step++) {
        push.step = step;
        core_assert_failed(&host, core_push_event(&host, &push), AMP_EABORTED, "FENCED", "has not joined");
    }
}

/* No row and no vote says that it had joined under the epoch. A call that waited would renew its lease for ever. */
static void a_worker_of_before_a_start_whom_no_step_waits_for_is_told_to_join_again(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    core_spec(&spec, 1);
    whole_spec(&spec);
    spec.durability = AMPD_DURABILITY_STEP;
    struct ampd_checkpoint_record checkpoint_record = {.epoch = 4, .step = 5, .version = 5};
    struct ampd_worker_record worker = {.name = "alice", .incarnation = {6, 3}};
    struct ampd_model_record record = {.spec = spec,
                                       .epoch = 4,
                                       .base_epoch = 4,
                                       .base_step = 5,
                                       .checkpoints = &checkpoint_record,
                                       .checkpoints_count = 1,
                                       .workers = &worker,
                                       .workers_count = 1};
    struct ampd_event event = {.type = AMPD_EVENT_MODEL_FOUND, .u.found = &record};
    core_event(&host, &event);
    event = (struct ampd_event){.type = AMPD_EVENT_START};
    core_event(&host, &event);
    assert_int_equal(4, core_info(&host).epoch); /* it goes on in it */
    event = (struct ampd_event){.type = AMPD_EVENT_PULL,
                                .call = next_call(),
                                .u.pull = {.model = "model",
                                           .by = AMPD_PULL_STEP,
                                           .epoch = 4,
                                           .number = 6,
                                           .has_worker = true,
                                           .incarnation = worker.incarnation}};
    core_event(&host, &event);
    core_assert_failed(&host, event.call, AMP_EABORTED, "FENCED", "join again");
}

int main(void)
{
#define TEST_OF(name) cmocka_unit_test_setup_teardown(name, setup_running, teardown)
    const struct CMUnitTest tests[] = {
        TEST_OF(a_model_that_waits_for_another_rank_by_now_is_not_stalled_for_the_first),
        TEST_OF(a_stalled_model_names_the_rank_that_is_still_gone),
        TEST_OF(a_rank_that_left_is_gone_at_once),
        TEST_OF(a_rank_that_keeps_another_waiting_is_named_once_a_step),
        TEST_OF(a_push_that_has_waited_too_long_is_told_for_whom),
        TEST_OF(a_step_that_takes_long_on_all_ranks_keeps_nobody_waiting),
        cmocka_unit_test_setup_teardown(a_rank_that_nobody_has_started_is_named_once, setup, teardown),
        TEST_OF(a_leave_that_comes_again_does_not_put_off_when_its_rank_is_missed),
        TEST_OF(a_model_that_all_have_left_is_idle_and_not_stalled),
        TEST_OF(a_push_by_an_incarnation_to_come_does_not_wait_at_all),
        TEST_OF(while_the_workers_live_a_checkpoint_call_waits_for_their_step),
        TEST_OF(when_all_workers_have_left_the_last_step_can_be_checkpointed),
        TEST_OF(a_checkpoint_call_that_waits_is_answered_when_a_worker_leaves),
        TEST_OF(a_checkpoint_call_that_waits_is_answered_when_a_lease_ends),
        TEST_OF(a_rank_that_has_pushed_may_go_and_the_step_is_waited_for),
        TEST_OF(a_stalled_model_can_be_checkpointed),
        TEST_OF(a_step_that_is_being_applied_is_checkpointed_when_it_is),
        cmocka_unit_test_setup_teardown(a_late_worker_that_joins_again_takes_nothing_from_a_quorum_that_has_closed,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(a_quorum_that_lives_is_waited_for_and_one_that_does_not_is_not, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_shrinking_model_without_enough_workers_can_be_checkpointed, setup, teardown),
        cmocka_unit_test_setup_teardown(a_rank_that_left_a_shrinking_model_stalls_nobody, setup, teardown),
        cmocka_unit_test_setup_teardown(a_loaded_model_that_has_had_no_step_has_its_checkpoint, setup, teardown),
        cmocka_unit_test_setup_teardown(a_call_waits_as_long_as_a_missing_rank_may_and_no_longer, setup, teardown),
        TEST_OF(held_pushes_of_one_rank_are_four),
        TEST_OF(an_older_incarnation_is_aborted_for_the_next_step_too),
        TEST_OF(a_waiting_push_of_an_older_incarnation_is_aborted_when_the_step_opens_without_it),
        TEST_OF(a_sign_of_life_of_a_rank_out_of_range_is_passed_over),
        TEST_OF(a_rank_that_is_being_stored_goes_to_no_other_name),
        cmocka_unit_test_setup_teardown(a_rank_that_has_left_counts_as_here_when_its_next_join_is_stored, setup,
                                        teardown),
        TEST_OF(of_a_rank_one_join_or_leave_is_stored_at_a_time_however_many_come),
        TEST_OF(of_two_that_replace_one_rank_one_gets_it),
        TEST_OF(a_leave_that_a_newer_join_has_overtaken_gives_nothing_back),
        cmocka_unit_test_setup_teardown(ranks_found_at_a_start_are_live_for_one_lease, setup, teardown),
        cmocka_unit_test_setup_teardown(a_worker_of_before_a_start_whom_no_step_waits_for_is_told_to_join_again, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(a_rank_found_at_a_start_is_told_to_join_where_steps_go_on_without_it, setup,
                                        teardown),
    };
#undef TEST_OF
    return cmocka_run_group_tests(tests, NULL, NULL);
}
