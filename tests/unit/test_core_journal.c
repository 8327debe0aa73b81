/* durability STEP: the vote leaves after its record, and a restart goes on in the same epoch, bit for bit. */
#include "server/core/base/model.h"
#include "server/core/base/worker.h"
#include "server/core/coordinator/coord.h"
#include "server/core/coordinator/workers.h"
#include "server/core/base/process.h"
#include "server/core/shard/shard.h"
#include "tests/unit/core_fixture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static struct core_host host, back; /* before and after the restart */
static bool other_disk;             /* the store is there after it, filled by another shard; the journal is not */
static int disk_code;               /* what reading the journal ends with after it */
static enum ampd_on_loss on_loss;   /* of the model */
static bool has_left;               /* w1, before it */
static bool has_lost;               /* the record of w1 is not in the store after it */

static void begin_with(struct ampd_incarnation incarnations[2], enum ampd_schedule schedule)
{
    struct ampd_model_spec spec;
    core_spec(&spec, 2);
    spec.schedule = schedule;
    spec.durability = AMPD_DURABILITY_STEP;
    spec.momentum = 0.5;
    spec.on_loss = on_loss;
    spec.min_workers = on_loss == AMPD_ON_LOSS_SHRINK ? 2 : 0;
    spec.loss_timeout_ms = 20000;
    core_host_init(&host, 1);
    struct ampd_event start = {.type = AMPD_EVENT_START};
    core_event(&host, &start);
    (void)core_create(&host, &spec);
    (void)core_load(&host, 3);
    for (int32_t r = 0; r < 2; r++)
        incarnations[r] = core_joined(&host, core_join(&host, r == 0 ? "w0" : "w1", r));
}

static void begin(struct ampd_incarnation incarnations[2])
{
    begin_with(incarnations, AMPD_SCHEDULE_CONSTANT);
}

static void push_both(struct core_host *to, uint64_t step, const struct ampd_incarnation incarnations[2], float value)
{
    (void)core_push_all(to, step, 0, incarnations[0], value);
    (void)core_push_all(to, step, 1, incarnations[1], value);
}

/* The same model in a new process, with the store, the first checkpoint and the journal of the old one. */
static void restart_with(struct ampd_incarnation incarnations[2], struct ampd_step_row *stored, uint32_t rows)
{
    struct ampd_model_spec spec;
    core_spec(&spec, 2);
    spec = *core_info(&host).spec;
    struct ampd_checkpoint_record checkpoint = {.epoch = 1};
    struct ampd_worker_record workers[2] = {
        {.name = "w0", .rank = 0, .incarnation = incarnations[0]},
        {.name = "w1", .rank = 1, .incarnation = incarnations[1], .left = has_left}};
    struct ampd_model_record record = {.spec = spec,
                                       .epoch = 1,
                                       .last = rows > 0 ? &stored[rows - 1] : NULL,
                                       .rows_count = rows,
                                       .rows = stored,
                                       .workers_count = has_lost ? 1 : 2,
                                       .workers = workers,
                                       .checkpoints_count = 1,
                                       .checkpoints = &checkpoint,
                                       .no_journal = other_disk};
    core_host_init(&back, 2);
    memcpy(back.journal, host.journal, sizeof(back.journal));
    back.journal_count = other_disk ? 0 : host.journal_count;
    back.journal_code = disk_code;
    memcpy(back.file, host.file, sizeof(back.file));
    back.has_file = true;
    struct ampd_event event = {.type = AMPD_EVENT_MODEL_FOUND, .u.found = &record};
    core_event(&back, &event);
    event = (struct ampd_event){.type = AMPD_EVENT_START};
    core_event(&back, &event);
}

static void restart(struct ampd_incarnation incarnations[2], uint32_t rows)
{
    restart_with(incarnations, host.rows, rows);
}

static int close_hosts(void **state)
{
    (void)state;
    core_host_close(&host);
    core_host_close(&back);
    back.core = NULL;
    other_disk = has_left = has_lost = false;
    on_loss = (enum ampd_on_loss)0;
    disk_code = 0;
    return 0;
}

/* Every version that is pulled next must have the same bytes on both. */
static void assert_same_values(void)
{
    struct core_call *a = core_call(&host, core_pull_latest(&host)), *b = core_call(&back, core_pull_latest(&back));
    assert_true(a->granted && b->granted);
    assert_int_equal(a->pull.version, b->pull.version);
    assert_memory_equal(a->pull.memory, b->pull.memory, 110 * sizeof(float));
}

static void the_vote_waits_for_its_record(void **state)
{
    (void)state;
    struct ampd_incarnation incarnations[2];
    begin(incarnations);
    host.hold_journal = true;
    push_both(&host, 1, incarnations, 2);
    assert_int_equal(0, host.notified);
    assert_int_equal(1, host.tasks_count);
    const struct ampd_vote_journal_order *order = &host.tasks[0].u.journal;
    assert_int_equal(AMPD_OUT_JOURNAL, host.tasks[0].type);
    assert_int_equal(1, order->key.epoch);
    assert_int_equal(1, order->key.step);
    assert_int_equal(1, order->key.fence);
    assert_true(order->g != NULL && order->g[0] == 2.0f / 1024);
    core_do_task(&host, 0);
    assert_int_equal(1, host.notified);
    assert_int_equal(1, core_info(&host).durable_step);
}

static void another_disk_has_lost_the_memory_though_no_step_after_the_checkpoint_is_known(void **state)
{
    (void)state;
    struct ampd_incarnation incarnations[2];
    begin(incarnations);
    push_both(&host, 1, incarnations, 2); /* decided, but the shard that fills the store has not heard of it */
    other_disk = true;
    restart(incarnations, 0);
    assert_int_equal(2, core_info(&back).epoch);
    assert_int_equal(0, core_info(&back).decided_step);
}

static void an_overflow_is_journalled_without_its_gradient(void **state)
{
    (void)state;
    struct ampd_incarnation incarnations[2];
    begin(incarnations);
    host.hold_journal = true;
    push_both(&host, 1, incarnations, 3.0e38f);
    assert_int_equal(1, host.tasks_count);
    assert_null(host.tasks[0].u.journal.g);
    core_do_task(&host, 0);
    assert_int_equal(AMPD_VERDICT_SKIPPED_OVERFLOW, host.row.verdict);
    host.hold_journal = false;
    push_both(&host, 2, incarnations, 1);
    restart(incarnations, 2);
    assert_int_equal(2, core_info(&back).decided_step);
    assert_same_values();
}

static void a_record_of_an_older_try_gives_no_vote(void **state)
{
    (void)state;
    struct ampd_incarnation incarnations[2];
    begin(incarnations);
    host.hold_journal = true;
    push_both(&host, 1, incarnations, 2);
    struct ampd_incarnation again = core_joined(&host, core_join(&host, "w1", 1)); /* a new try */
    core_do_task(&host, 0);
    assert_int_equal(0, host.notified);
    (void)core_push_all(&host, 1, 1, again, 4);
    assert_int_equal(1, host.tasks_count);
    assert_int_equal(1, host.tasks[0].u.journal.key.try_number);
    core_do_all(&host);
    assert_int_equal(1, host.notified);
    core_host_init(&back, 2);
}

static void a_restart_replays_the_steps_in_the_same_epoch(void **state)
{
    (void)state;
    struct ampd_incarnation incarnations[2];
    begin(incarnations);
    for (uint64_t step = 1; step <= 3; step++)
        push_both(&host, step, incarnations, (float)step);
    restart(incarnations, 3);
    struct ampd_model_info info = core_info(&back);
    assert_int_equal(1, info.epoch);
    assert_int_equal(3, info.decided_step);
    assert_int_equal(3, info.durable_step);
    assert_int_equal(AMPD_MODEL_RUNNING, info.state);
    assert_int_equal(0, back.persists[AMPD_PERSIST_EPOCH]);
    assert_same_values();
    /* The next step has the same bits too: moments and the record of the scale are what they were. */
    push_both(&host, 4, incarnations, 7);
    push_both(&back, 4, incarnations, 7);
    assert_same_values();
    host.row.at_us = back.row.at_us;
    assert_memory_equal(&host.row.after, &back.row.after, sizeof(host.row.after));
}

/* Steps 1 and 2 have records; the disk cannot read them at first, whether their verdicts are stored or not. */
static void restart_on_a_moody_disk(uint32_t decided)
{
    struct ampd_incarnation incarnations[2];
    begin(incarnations);
    push_both(&host, 1, incarnations, 1);
    host.hold_persists = decided == 1; /* the verdict of step 2 */
    push_both(&host, 2, incarnations, 5);
    core_do_all(&host);
    disk_code = AMP_EIO;
    restart(incarnations, decided);
    assert_non_null(strstr(back.logged, "move its file away"));
    core_tick(&back, back.now_ms + 4999);
    assert_int_equal(AMPD_MODEL_WAITING, core_info(&back).state);
    back.journal_code = 0;
    core_tick(&back, back.now_ms + 1);
    assert_int_equal(0, back.persists[AMPD_PERSIST_EPOCH]);
    assert_int_equal(1, core_info(&back).epoch);
    assert_int_equal(2, core_info(&back).decided_step);
    assert_same_values();
}

static void a_decided_step_that_cannot_be_read_now_is_read_again(void **state)
{
    (void)state;
    restart_on_a_moody_disk(2);
}

static void a_vote_that_cannot_be_read_now_is_read_again(void **state)
{
    (void)state;
    restart_on_a_moody_disk(1);
}

static void a_push_of_the_last_step_gets_its_result_after_a_restart(void **state)
{
    (void)state;
    struct ampd_incarnation incarnations[2];
    begin(incarnations);
    push_both(&host, 1, incarnations, 1);
    restart(incarnations, 1);
    uint64_t call = core_push_header(&back, 1, 1, incarnations[1]);
    /* (core_push_header asks with the present scale id, which a decided step does not look at) */
    assert_true(core_call(&back, call)->answered);
    assert_int_equal(0, core_call(&back, call)->reply.error.code);
    assert_int_equal(AMPD_VERDICT_APPLIED, core_call(&back, call)->reply.u.step.verdict);
    assert_int_equal(1, core_call(&back, call)->reply.u.step.durable_step);
}

/* Nobody leaves again after the restart, so loss_timeout begins with it. */
static void miss_who_has_left(enum ampd_on_loss loss)
{
    struct ampd_incarnation incarnations[2];
    on_loss = loss;
    begin(incarnations);
    push_both(&host, 1, incarnations, 1);
    has_left = true;
    restart(incarnations, 1);
    assert_int_equal(1, core_info(&back).epoch);
    core_tick(&back, back.now_ms + 19999);
    assert_int_equal(AMPD_MODEL_RUNNING, core_info(&back).state);
    core_tick(&back, back.timer_ms);
    assert_int_equal(AMPD_MODEL_STALLED, core_info(&back).state);
    assert_int_equal(1, back.core->models[0]->coord->missing_rank);
    assert_non_null(strstr(back.logged, "rank 1 (w1) has been gone"));
    assert_int_equal(AMPD_LEASE_LEFT, back.core->models[0]->workers[1].lease);
    incarnations[1] = core_joined(&back, core_join(&back, "w1", 1));
    push_both(&back, 2, incarnations, 1);
    assert_int_equal(2, core_info(&back).decided_step);
}

static void a_step_that_waits_for_all_misses_who_had_left_before_a_restart(void **state)
{
    (void)state;
    miss_who_has_left(AMPD_ON_LOSS_WAIT);
}

/* A power loss may take the last Joins, which are not synced, and the worker may not come back. */
static void a_step_that_waits_for_all_misses_a_rank_whose_record_was_lost(void **state)
{
    (void)state;
    struct ampd_incarnation incarnations[2];
    begin(incarnations);
    push_both(&host, 1, incarnations, 1);
    has_lost = true;
    restart(incarnations, 1);
    core_tick(&back, back.now_ms + 19999);
    assert_int_equal(AMPD_MODEL_RUNNING, core_info(&back).state);
    core_tick(&back, back.timer_ms);
    assert_int_equal(AMPD_MODEL_STALLED, core_info(&back).state);
    assert_non_null(strstr(back.logged, "rank 1 (unknown) has been gone"));
    incarnations[1] = core_joined(&back, core_join(&back, "w1", 1));
    push_both(&back, 2, incarnations, 1);
    assert_int_equal(2, core_info(&back).decided_step);
}

static void a_shrunk_model_without_enough_workers_misses_who_had_left_before_a_restart(void **state)
{
    (void)state;
    miss_who_has_left(AMPD_ON_LOSS_SHRINK);
}

static void a_vote_without_a_verdict_is_decided_after_a_restart(void **state)
{
    (void)state;
    struct ampd_incarnation incarnations[2];
    begin(incarnations);
    push_both(&host, 1, incarnations, 1);
    host.hold_persists = true; /* the verdict of step 2 is not stored */
    push_both(&host, 2, incarnations, 5);
    assert_int_equal(2, host.journal_count);
    restart(incarnations, 1);
    core_do_all(&host); /* what it would have become */
    assert_int_equal(2, core_info(&back).decided_step);
    assert_int_equal(2, back.row.step);
    assert_int_equal(AMPD_VERDICT_APPLIED, back.row.verdict);
    assert_true(back.row.norm == host.row.norm);
    assert_same_values();
}

static void a_step_has_the_rate_of_its_pushes_after_a_restart_too(void **state)
{
    (void)state;
    struct ampd_incarnation incarnations[2];
    begin_with(incarnations, AMPD_SCHEDULE_WORKER);
    host.lr = 0.1;
    push_both(&host, 1, incarnations, 1);
    host.lr = 0.05;
    push_both(&host, 2, incarnations, 3);
    host.lr = 1.0 / 3;
    host.hold_persists = true; /* the verdict of step 3 is not stored, its vote is in the journal */
    push_both(&host, 3, incarnations, 5);
    restart(incarnations, 2);
    core_do_all(&host);
    assert_int_equal(3, core_info(&back).decided_step);
    assert_true(back.row.lr == 1.0 / 3);
    assert_same_values();
}

static void a_step_has_the_loss_of_its_pushes_after_a_restart_too(void **state)
{
    (void)state;
    struct ampd_incarnation incarnations[2];
    struct ampd_metrics told = {.loss = NAN, .loss_workers = 1, .count = 1, .items = {{"accuracy", 0.1f, 1}}};
    begin(incarnations);
    host.hold_persists = true; /* the verdict of the step is not stored, its vote is in the journal */
    host.metrics = &told;
    (void)core_push_all(&host, 1, 0, incarnations[0], 5);
    host.metrics = NULL;
    (void)core_push_all(&host, 1, 1, incarnations[1], 5);
    restart(incarnations, 0);
    core_do_all(&host); /* what it would have become */
    assert_int_equal(1, core_info(&back).decided_step);
    assert_memory_equal(&host.row.metrics, &back.row.metrics, sizeof host.row.metrics);
    assert_int_equal(1, back.row.metrics.loss_workers);
    assert_true(isnan(back.row.metrics.loss));
    assert_true(back.row.metrics.items[0].value == 0.1f && back.row.metrics.items[0].workers == 1);
    back.metrics = &told; /* the next step's */
    push_both(&back, 2, incarnations, 5);
    assert_int_equal(2, back.row.metrics.loss_workers);
}

static void a_worker_that_joins_anew_takes_the_vote_back(void **state)
{
    (void)state;
    struct ampd_incarnation incarnations[2];
    begin(incarnations);
    host.hold_persists = true;
    push_both(&host, 1, incarnations, 5);
    host.hold_persists = false;
    incarnations[1].counter = 99; /* it was stored last before the crash */
    restart(incarnations, 0);
    assert_int_equal(0, core_info(&back).decided_step);
    uint64_t asked = core_push_state(&back, 1, 1, 0, incarnations[0]);
    assert_int_equal(0, core_call(&back, asked)->reply.u.push_state.ranges_count);
    push_both(&back, 1, incarnations, 5);
    assert_int_equal(1, core_info(&back).decided_step);
}

static void blocks_told_before_a_restart_are_asked_for_again(void **state)
{
    (void)state;
    struct ampd_incarnation incarnations[2];
    begin(incarnations);
    push_both(&host, 1, incarnations, 1);
    restart(incarnations, 1);
    uint64_t call = core_push_header(&back, 2, 0, incarnations[0]);
    core_push_end(&back, call, NULL, 0); /* it thinks that its blocks are here */
    core_assert_failed(&back, call, AMP_EABORTED, "REPLACED", "GetPushState");
    for (int i = 0; i < 3; i++) { /* a client that does not ask is told in the end what is wrong */
        call = core_push_header(&back, 2, 0, incarnations[0]);
        core_push_end(&back, call, NULL, 0);
    }
    core_assert_failed(&back, call, AMP_EINVAL, "INCOMPLETE_PUSH", "block");
}

static void a_missing_record_takes_the_model_back_to_its_checkpoint(void **state)
{
    (void)state;
    struct ampd_incarnation incarnations[2];
    begin(incarnations);
    push_both(&host, 1, incarnations, 1);
    push_both(&host, 2, incarnations, 1);
    memmove(&host.journal[0], &host.journal[1], sizeof(host.journal[0]));
    host.journal_count = 1;
    restart(incarnations, 2);
    assert_int_equal(2, core_info(&back).epoch);
    assert_int_equal(0, core_info(&back).decided_step);
}

static void a_record_that_is_not_of_the_decided_list_is_not_used(void **state)
{
    (void)state;
    struct ampd_incarnation incarnations[2];
    begin(incarnations);
    push_both(&host, 1, incarnations, 1);
    host.rows[0].contributors_hash ^= 1;
    restart(incarnations, 1);
    assert_int_equal(2, core_info(&back).epoch);
}

static void notes_that_are_cut_off_are_no_record(void **state)
{
    (void)state;
    struct ampd_incarnation incarnations[2];
    begin(incarnations);
    push_both(&host, 1, incarnations, 1);
    uint64_t whole = host.journal[0].notes_size;
    for (uint64_t size = 0; size < whole; size += 7) {
        host.journal[0].notes_size = size;
        restart(incarnations, 1);
        assert_int_equal(2, core_info(&back).epoch);
        core_host_close(&back);
    }
    core_host_init(&back, 3);
}

/* Writes `value` over a number of the notes of step 1, and brings the model back: the record must not be used. */
static void restart_with_note(struct ampd_incarnation incarnations[2], size_t offset, uint32_t value)
{
    uint32_t had;
    memcpy(&had, host.journal[0].notes + offset, sizeof(had));
    memcpy(host.journal[0].notes + offset, &value, sizeof(value));
    restart(incarnations, 1);
    assert_int_equal(2, core_info(&back).epoch);
    memcpy(host.journal[0].notes + offset, &had, sizeof(had));
    core_host_close(&back);
}

static void notes_of_another_model_or_a_newer_program_are_no_record(void **state)
{
    (void)state;
    enum { HEAD_BYTES = 88, STATE_SIZE = 28 }; /* of the notes, and where a contributor's state size is */
    struct ampd_incarnation incarnations[2];
    begin(incarnations);
    push_both(&host, 1, incarnations, 1);
    restart_with_note(incarnations, 0, 99);                          /* its version */
    restart_with_note(incarnations, 4, 3);                           /* contributors: more than ranks */
    restart_with_note(incarnations, 64, AMPD_OVERFLOW_ROWS_MAX + 1); /* overflow rows */
    restart_with_note(incarnations, 64, 60);                         /* more than there are */
    restart_with_note(incarnations, 68, 3);                          /* parameters */
    restart_with_note(incarnations, 56, 1u << 20);                   /* subtrees */
    restart_with_note(incarnations, HEAD_BYTES, 2);                  /* rank of the first contributor */
    restart_with_note(incarnations, HEAD_BYTES + STATE_SIZE, AMPD_USER_STATE_MAX + 1);
    restart_with_note(incarnations, HEAD_BYTES + STATE_SIZE, 8); /* longer than what is there */
    restart(incarnations, 1);
    assert_int_equal(1, core_info(&back).epoch);
    assert_same_values();
}

static void notes_without_a_rate_are_none_of_a_model_whose_workers_name_it(void **state)
{
    (void)state;
    struct ampd_incarnation incarnations[2];
    begin_with(incarnations, AMPD_SCHEDULE_WORKER);
    push_both(&host, 1, incarnations, 1);
    restart_with_note(incarnations, 0, 1);               /* the version of notes without one */
    restart_with_note(incarnations, 88 + 4, 0x7ff00000); /* the rate is Inf */
    restart(incarnations, 1);
    assert_int_equal(1, core_info(&back).epoch);
    assert_same_values();
}

static void notes_whose_metrics_are_none_are_no_record(void **state)
{
    (void)state;
    enum { LOSS_WORKERS = 88 + 4, COUNT = 88 + 8, NAME = 88 + 12, WORKERS = 88 + 12 + 40 };
    struct ampd_incarnation incarnations[2];
    struct ampd_metrics told = {.loss = 1, .loss_workers = 1, .count = 1, .items = {{"accuracy", 0.1f, 1}}};
    begin(incarnations);
    host.metrics = &told;
    push_both(&host, 1, incarnations, 1);
    restart_with_note(incarnations, 0, 1);            /* the version of notes without any */
    restart_with_note(incarnations, LOSS_WORKERS, 3); /* more than contributors */
    restart_with_note(incarnations, COUNT, 2);        /* one without a name */
    restart_with_note(incarnations, COUNT, AMPD_METRICS_MAX + 1);
    restart_with_note(incarnations, NAME, 0x3d3d3d3d); /* "====" */
    restart_with_note(incarnations, WORKERS, 0);
    restart(incarnations, 1);
    assert_int_equal(1, core_info(&back).epoch);
    assert_same_values();
}

static void a_checkpoint_prunes_the_journal(void **state)
{
    (void)state;
    struct ampd_incarnation incarnations[2];
    begin(incarnations);
    push_both(&host, 1, incarnations, 1);
    struct ampd_event event = {.type = AMPD_EVENT_CHECKPOINT, .call = ++host.last_call, .u.named = {"model"}};
    core_event(&host, &event);
    push_both(&host, 2, incarnations, 1);
    assert_int_equal(2, host.pruned);
    core_host_init(&back, 2);
}

static void a_rollback_to_a_damaged_checkpoint_costs_no_step(void **state)
{
    (void)state;
    struct ampd_incarnation incarnations[2];
    begin(incarnations);
    push_both(&host, 1, incarnations, 2);
    push_both(&host, 2, incarnations, 1);
    restart(incarnations, 2); /* the same model undisturbed, to compare with */
    assert_int_equal(0, core_call(&host, core_set_scale(&host, 64, ""))->reply.error.code);
    assert_float_equal(64, core_info(&host).scaler.scale, 0);
    uint32_t written = host.journal_count;
    host.has_file = true;
    host.restore_code = AMP_EDATALOSS;
    uint64_t call = core_rollback(&host, 1, 0, "");
    core_assert_failed(&host, call, AMP_EDATALOSS, "CHECKPOINT_DAMAGED", "where it was");
    assert_int_equal(1, core_info(&host).epoch);
    assert_int_equal(2, core_info(&host).decided_step);
    assert_int_equal(written, host.journal_count);
    assert_float_equal(64, core_info(&host).scaler.scale, 0);
    assert_same_values();
    push_both(&host, 3, incarnations, 1); /* which was open with the scale before that */
    assert_int_equal(3, core_info(&host).decided_step);
    assert_int_equal(1, host.row.epoch);
    assert_true(host.row.after.scaler.scale == 64);
}

/* Removed behind an entry of the catalogue it would wait for the store, and then take the newer file of that name. */
static void a_part_that_a_rollback_could_not_stop_is_removed_before_its_step_is_written_again(void **state)
{
    (void)state;
    struct ampd_incarnation incarnations[2];
    begin(incarnations);
    push_both(&host, 1, incarnations, 2);
    host.hold_seal = true;
    (void)core_checkpoint(&host);
    push_both(&host, 2, incarnations, 2);
    host.restore_code = AMP_EDATALOSS;
    uint64_t call = core_rollback(&host, 1, 0, "");
    assert_int_equal(1, host.cancelled);
    core_cut_end(&host, 0);
    core_assert_failed(&host, call, AMP_EDATALOSS, "CHECKPOINT_DAMAGED", "where it was");
    assert_int_equal(2, core_info(&host).decided_step);
    host.hold_seal = false;
    struct ampd_event event = {.type = AMPD_EVENT_DRAIN};
    core_event(&host, &event);
    assert_int_equal(2, core_info(&host).durable_step);
    assert_int_equal(0, host.dropped);
    assert_int_equal(1, host.removed_first);
}

static void the_first_step_of_an_epoch_keeps_its_scale_over_an_act_and_a_restart(void **state)
{
    (void)state;
    struct ampd_incarnation incarnations[2];
    begin(incarnations);
    uint64_t set = core_set_scale(&host, 64, "");
    assert_int_equal(2, core_call(&host, set)->reply.u.scale.from_step); /* step 1 is open */
    restart_with(incarnations, &host.act_row, 1);
    push_both(&back, 1, incarnations, 2);
    assert_int_equal(1, back.row.step);
    assert_float_equal(1024, back.row.scale, 0);
    push_both(&back, 2, incarnations, 2);
    assert_float_equal(64, back.row.scale, 0);
}

static void a_scale_set_while_a_restart_waits_for_the_workers_is_for_the_step_after_the_open_one(void **state)
{
    (void)state;
    struct ampd_incarnation incarnations[2];
    begin(incarnations);
    struct ampd_event_push push = {.model = "model", .epoch = 1, .step = 1, .dtype = AMP_F32, .weight = 1};
    push.scale_id = core_info(&host).step_scale_id; /* what the workers have in hand */
    restart(incarnations, 0);
    uint64_t set = core_set_scale(&back, 64, "");
    assert_int_equal(2, core_call(&back, set)->reply.u.scale.from_step);
    for (int32_t r = 0; r < 2; r++)
        incarnations[r] = core_joined(&back, core_join(&back, r == 0 ? "w0" : "w1", r));
    push.incarnation = incarnations[0];
    assert_true(core_call(&back, core_push_event(&back, &push))->granted);
    assert_float_equal(64, core_info(&back).scaler.scale, 0);
}

static void fail_to_roll_back(void)
{
    host.restore_code = AMP_EDATALOSS;
    core_assert_failed(&host, core_rollback(&host, 1, 0, ""), AMP_EDATALOSS, "CHECKPOINT_DAMAGED", "from where it was");
    assert_int_equal(1, core_info(&host).epoch);
}

static void a_rollback_that_comes_to_nothing_opens_the_first_step_of_an_epoch_in_a_new_try(void **state)
{
    (void)state;
    struct ampd_incarnation incarnations[2];
    begin(incarnations);
    fail_to_roll_back();
    const struct ampd_model *model = host.core->models[0];
    assert_int_equal(AMPD_COORD_RUNNING, model->coord->state);
    assert_int_equal(1, model->coord->step.open.try_number);
    assert_int_equal(1, model->shard->step.open.try_number);
    incarnations[0] = core_joined(&host, core_join(&host, "w0", 0)); /* another list, and no try has two */
    assert_int_equal(2, model->shard->step.open.try_number);
    push_both(&host, 1, incarnations, 2);
    assert_int_equal(1, core_info(&host).decided_step);
}

static void a_rollback_that_comes_to_nothing_revives_no_lease(void **state)
{
    (void)state;
    struct ampd_incarnation incarnations[2];
    begin(incarnations);
    push_both(&host, 1, incarnations, 2);
    core_tick(&host, host.now_ms + AMPD_LEASE_MS);
    fail_to_roll_back();
    assert_int_equal(AMPD_LEASE_ENDED, host.core->models[0]->workers[0].lease);
    incarnations[0] = core_joined(&host, core_join(&host, "w0", 0));
    incarnations[1] = core_joined(&host, core_join(&host, "w1", 1));
    push_both(&host, 2, incarnations, 2);
    assert_int_equal(2, core_info(&host).decided_step);
}

/* ---- copies that workers have mapped ---- */

static void *mapped[8]; /* all that there have been: a worker keeps what it has mapped */
static unsigned mapped_count;
static bool no_more; /* there is no memory for another one */

static void *map_copy(void *arg, size_t size, void *before)
{
    (void)arg, (void)before;
    if (no_more)
        return NULL;
    assert_true(mapped_count < sizeof(mapped) / sizeof(mapped[0]));
    void *copy =
        aligned_alloc(AMPD_TENSOR_ALIGN, (size + AMPD_TENSOR_ALIGN - 1) / AMPD_TENSOR_ALIGN * AMPD_TENSOR_ALIGN);
    memset(copy, 0, size);
    return mapped[mapped_count++] = copy;
}

static void keep_copy(void *arg, void *copy, size_t size)
{
    (void)arg;
    (void)copy;
    (void)size;
}

static const struct ampd_copy_memory copy_memory = {map_copy, keep_copy, NULL};

static int share(void **state)
{
    (void)state;
    core_copy_memory = &copy_memory;
    return 0;
}

static int close_all(void **state);

static int unmap_all(void **state)
{
    int rc = close_all(state);
    while (mapped_count > 0)
        free(mapped[--mapped_count]);
    core_copy_memory = NULL;
    no_more = false;
    return rc;
}

/* Two steps, and what is in hand for the third: version 2, where the version of the checkpoint, 0, was before. */
static void begin_third(struct ampd_incarnation incarnations[2], uint8_t *bytes)
{
    begin(incarnations);
    host.has_file = true;
    push_both(&host, 1, incarnations, 2);
    push_both(&host, 2, incarnations, 2);
    memcpy(bytes, mapped[0], core_info(&host).copy_bytes);
}

static void what_a_worker_computes_on_does_not_change_while_a_rollback_comes_to_nothing(void **state)
{
    (void)state;
    struct ampd_incarnation incarnations[2];
    uint8_t bytes[CORE_BLOCKS_MAX * AMPD_ALIGN_ELEMENTS * sizeof(float)];
    begin_third(incarnations, bytes);
    host.hold_jobs = true;
    host.restore_code = AMP_EDATALOSS;
    uint64_t call = core_rollback(&host, 1, 0, "");
    assert_true(host.tasks_count > 0);
    while (host.tasks_count > 0) {
        core_do_task(&host, 0);
        assert_memory_equal(bytes, mapped[0], core_info(&host).copy_bytes);
    }
    host.hold_jobs = false;
    core_assert_failed(&host, call, AMP_EDATALOSS, "CHECKPOINT_DAMAGED", "from where it was");
    assert_int_equal(1, core_info(&host).epoch); /* and its push counts */
    push_both(&host, 3, incarnations, 2);
    assert_int_equal(3, core_info(&host).decided_step);
}

static void what_is_pulled_after_a_rollback_that_came_to_nothing_is_what_was_there_before(void **state)
{
    (void)state;
    struct ampd_incarnation incarnations[2];
    uint8_t bytes[CORE_BLOCKS_MAX * AMPD_ALIGN_ELEMENTS * sizeof(float)];
    begin_third(incarnations, bytes);
    fail_to_roll_back();
    const struct core_call *pull = core_call(&host, core_pull_step(&host, 1, 3));
    assert_true(pull->granted);
    assert_int_equal(2, pull->pull.version);
    assert_ptr_equal(core_info(&host).copies[0], pull->pull.memory);
    assert_memory_equal(bytes, pull->pull.memory, core_info(&host).copy_bytes);
}

static void a_rollback_waits_for_memory_for_copies_that_nobody_has_mapped(void **state)
{
    (void)state;
    struct ampd_incarnation incarnations[2];
    uint8_t bytes[CORE_BLOCKS_MAX * AMPD_ALIGN_ELEMENTS * sizeof(float)];
    begin_third(incarnations, bytes);
    no_more = true;
    uint64_t call = core_rollback(&host, 1, 0, "");
    core_assert_held(&host, call);
    assert_memory_equal(bytes, mapped[0], core_info(&host).copy_bytes);
    no_more = false;
    core_tick(&host, host.now_ms + 5000);
    assert_int_equal(2, core_info(&host).epoch);
    assert_true(core_call(&host, call)->answered);
    assert_int_equal(0, core_call(&host, call)->reply.error.code);
    assert_memory_equal(bytes, mapped[0], core_info(&host).copy_bytes);
}

static int init_back(void **state)
{
    (void)state;
    if (back.core == NULL)
        core_host_init(&back, 9);
    return 0;
}

static int close_all(void **state)
{
    (void)init_back(state);
    return close_hosts(state);
}

#define TEST(name)   cmocka_unit_test_teardown(name, close_all)
#define MAPPED(name) cmocka_unit_test_setup_teardown(name, share, unmap_all)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_vote_waits_for_its_record),
        TEST(another_disk_has_lost_the_memory_though_no_step_after_the_checkpoint_is_known),
        TEST(an_overflow_is_journalled_without_its_gradient),
        TEST(a_record_of_an_older_try_gives_no_vote),
        TEST(a_restart_replays_the_steps_in_the_same_epoch),
        TEST(a_decided_step_that_cannot_be_read_now_is_read_again),
        TEST(a_vote_that_cannot_be_read_now_is_read_again),
        TEST(a_push_of_the_last_step_gets_its_result_after_a_restart),
        TEST(a_step_that_waits_for_all_misses_who_had_left_before_a_restart),
        TEST(a_step_that_waits_for_all_misses_a_rank_whose_record_was_lost),
        TEST(a_shrunk_model_without_enough_workers_misses_who_had_left_before_a_restart),
        TEST(a_vote_without_a_verdict_is_decided_after_a_restart),
        TEST(a_step_has_the_rate_of_its_pushes_after_a_restart_too),
        TEST(a_step_has_the_loss_of_its_pushes_after_a_restart_too),
        TEST(a_worker_that_joins_anew_takes_the_vote_back),
        TEST(blocks_told_before_a_restart_are_asked_for_again),
        TEST(a_missing_record_takes_the_model_back_to_its_checkpoint),
        TEST(a_record_that_is_not_of_the_decided_list_is_not_used),
        TEST(notes_that_are_cut_off_are_no_record),
        TEST(notes_of_another_model_or_a_newer_program_are_no_record),
        TEST(notes_without_a_rate_are_none_of_a_model_whose_workers_name_it),
        TEST(notes_whose_metrics_are_none_are_no_record),
        TEST(a_checkpoint_prunes_the_journal),
        TEST(a_rollback_to_a_damaged_checkpoint_costs_no_step),
        TEST(a_rollback_that_comes_to_nothing_opens_the_first_step_of_an_epoch_in_a_new_try),
        TEST(a_rollback_that_comes_to_nothing_revives_no_lease),
        TEST(a_part_that_a_rollback_could_not_stop_is_removed_before_its_step_is_written_again),
        TEST(a_scale_set_while_a_restart_waits_for_the_workers_is_for_the_step_after_the_open_one),
        TEST(the_first_step_of_an_epoch_keeps_its_scale_over_an_act_and_a_restart),
        MAPPED(what_a_worker_computes_on_does_not_change_while_a_rollback_comes_to_nothing),
        MAPPED(what_is_pulled_after_a_rollback_that_came_to_nothing_is_what_was_there_before),
        MAPPED(a_rollback_waits_for_memory_for_copies_that_nobody_has_mapped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
