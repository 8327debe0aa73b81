/* What must not go wrong besides: slots with two writers, memory that keeps what it should not, numbers at their ends. */
#include "amp/kernels.h"
#include "server/core/base/model.h"
#include "server/core/model/passes.h"
#include "server/core/model/spec.h"
#include "server/core/base/process.h"
#include "server/core/shard/push.h"
#include "server/core/shard/shard.h"
#include "tests/unit/core_fixture.h"
#include "tests/whole_spec.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

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

static uint64_t checkpoint(void)
{
    struct ampd_event event = {.type = AMPD_EVENT_CHECKPOINT, .call = ++host.last_call, .u.named = {"model"}};
    core_event(&host, &event);
    return event.call;
}

static void begin(const struct ampd_model_spec *spec)
{
    assert_int_equal(0, core_call(&host, core_create(&host, spec))->reply.error.code);
    assert_int_equal(0, core_call(&host, core_load(&host, 1))->reply.error.code);
    for (uint32_t r = 0; r < spec->world_size; r++)
        incarnations[r] = core_joined(&host, core_join(&host, r == 0 ? "w0" : "w1", (int32_t)r));
}

static void decide(uint64_t step)
{
    uint64_t push = core_push_all(&host, step, 0, incarnations[0], 1);
    (void)core_push_all(&host, step, 1, incarnations[1], 1);
    assert_true(core_call(&host, push)->answered);
}

/* ---- restarts ---- */

static void find(const struct ampd_model_spec *spec, struct ampd_checkpoint_record *checkpoints, uint32_t count,
                 struct ampd_step_row *last)
{
    struct ampd_model_record record = {
        .spec = *spec, .epoch = 4, .checkpoints = checkpoints, .checkpoints_count = count, .last = last};
    whole_spec(&record.spec);
    struct ampd_event event = {.type = AMPD_EVENT_MODEL_FOUND, .u.found = &record};
    core_event(&host, &event);
    event = (struct ampd_event){.type = AMPD_EVENT_START};
    core_event(&host, &event);
}

static void moments_begin_at_zero_whatever_their_memory_held_before_the_load(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    core_spec(&spec, 1);
    spec.optimizer = AMPD_OPTIMIZER_ADAMW;
    whole_spec(&spec);
    assert_int_equal(0, core_call(&host, core_create(&host, &spec))->reply.error.code);
    const struct ampd_tensors *tensors = &host.core->models[0]->tensors;
    for (unsigned i = 0; i < 128; i++)
        tensors->m[i] = tensors->v[i] = 1e6f;
    assert_int_equal(0, core_call(&host, core_load(&host, 1))->reply.error.code);
    for (unsigned i = 0; i < 128; i++)
        assert_true(tensors->m[i] == 0 && tensors->v[i] == 0);
}

static struct ampd_model_info info_of(uint32_t index)
{
    struct ampd_model_info info;
    ampd_core_model(host.core, index, &info);
    return info;
}

/* Model `index` is recovering, for a reason that holds up nobody else; the other one goes on. */
static void assert_alone(uint32_t index)
{
    assert_true(info_of(index).recovering && info_of(index).trouble != NULL);
    assert_true(ampd_core_synced(host.core));
    assert_false(info_of(1 - index).recovering);
    assert_null(info_of(1 - index).trouble);
    assert_int_equal(AMPD_MODEL_WAITING, info_of(1 - index).state);
}

static void what_one_model_cannot_read_does_not_hold_up_another_one(void **state)
{
    (void)state;
    for (unsigned durability = 0; durability < 2; durability++) {
        struct ampd_checkpoint_record checkpoint = {.epoch = 4, .step = 5, .version = 5};
        for (unsigned i = 0; i < 2; i++) {
            struct ampd_model_record record = {.epoch = 4, .checkpoints = &checkpoint, .checkpoints_count = 1};
            core_spec(&record.spec, 1);
            whole_spec(&record.spec);
            record.spec.name[0] = (char)('a' + i);
            record.spec.durability = durability == 0 ? AMPD_DURABILITY_CHECKPOINT : AMPD_DURABILITY_STEP;
            struct ampd_event event = {.type = AMPD_EVENT_MODEL_FOUND, .u.found = &record};
            core_event(&host, &event);
        }
        host.restore_code = AMP_EIO; /* of the first that is read */
        struct ampd_event event = {.type = AMPD_EVENT_START};
        core_event(&host, &event);
        uint32_t index = info_of(0).trouble != NULL ? 0 : 1;
        assert_alone(index);
        host.restore_code = AMP_EIO;
        core_tick(&host, host.timer_ms);
        assert_alone(index);
        core_tick(&host, host.timer_ms);
        assert_false(info_of(index).recovering);
        assert_null(info_of(index).trouble);
        core_host_close(&host);
        core_host_init(&host, 8);
    }
}

static void a_model_that_cannot_be_read_now_goes_by_force_alone_and_its_name_is_free(void **state)
{
    (void)state;
    for (unsigned durability = 0; durability < 2; durability++) {
        struct ampd_checkpoint_record checkpoint = {.epoch = 4, .step = 5, .version = 5};
        struct ampd_model_spec spec;
        core_spec(&spec, 1);
        spec.durability = durability == 0 ? AMPD_DURABILITY_CHECKPOINT : AMPD_DURABILITY_STEP;
        host.restore_code = AMP_EIO;
        find(&spec, &checkpoint, 1, NULL);
        assert_non_null(info_of(0).trouble);
        core_assert_failed(&host, core_delete(&host, false), AMP_EUNAVAILABLE, "RECOVERING", "");
        uint64_t deleted = core_delete(&host, true);
        assert_true(core_call(&host, deleted)->answered);
        assert_int_equal(0, core_call(&host, deleted)->reply.error.code);
        begin(&spec);
        assert_int_equal(1, info_of(0).epoch);
        core_host_close(&host);
        core_host_init(&host, 8);
    }
}

static void a_checkpoint_that_cannot_be_read_now_is_read_again(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    core_spec(&spec, 2);
    struct ampd_checkpoint_record checkpoints[] = {{.epoch = 4, .step = 5, .version = 5},
                                                   {.epoch = 4, .step = 10, .version = 10}};
    const int passing[] = {AMP_ENOMEM, AMP_EIO};
    host.restore_code = passing[0];
    find(&spec, checkpoints, 2, NULL);
    assert_int_equal(1, host.restored_count);
    assert_true(core_info(&host).recovering);
    host.restore_code = passing[1];
    core_tick(&host, host.timer_ms);
    assert_int_equal(2, host.restored_count);
    assert_int_equal(0, host.persists[AMPD_PERSIST_EPOCH]);
    core_tick(&host, host.timer_ms);
    assert_int_equal(3, host.restored_count);
    for (unsigned i = 0; i < 3; i++)
        assert_int_equal(10, host.restored_steps[i]);
    assert_int_equal(10, core_info(&host).base_step);
    assert_false(core_info(&host).recovering);
}

static void the_row_of_a_new_epoch_names_the_last_step_of_the_one_before(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    core_spec(&spec, 2);
    struct ampd_checkpoint_record record = {.epoch = 4, .step = 3, .version = 3};
    struct ampd_step_row last = {.kind = AMPD_ROW_STEP, .epoch = 4, .step = 5};
    find(&spec, &record, 1, &last);
    assert_int_equal(5, host.epoch.epoch);
    assert_int_equal(3, host.epoch.base_step);
    assert_int_equal(3, host.epoch_row.step);
    assert_int_equal(4, host.epoch_row.parent_epoch);
    assert_int_equal(5, host.epoch_row.parent_step);
}

static void many_overflows_in_a_row_are_unstable_after_a_restart_too(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    core_spec(&spec, 2);
    struct ampd_checkpoint_record record = {.epoch = 4, .step = 60};
    host.hold_files = true;
    find(&spec, &record, 1, NULL);
    struct ampd_checkpoint_state found = {.step = 60,
                                          .carry.scaler = {.scale = 1, .scale_id = 11, .consecutive_overflows = 50}};
    struct ampd_event event = {.type = AMPD_EVENT_RESTORED, .u.restored = {host.tasks[0].u.restore.token, 0, &found}};
    host.tasks_count = 0;
    core_event(&host, &event);
    assert_false(core_info(&host).recovering);
    assert_true(core_info(&host).unstable);
}

/* ---- slots ---- */

/* Step 1 is decided and its apply waits; a push of step 2 has its trailer, which lists `absent`, and breaks off. */
static uint64_t break_off_before_apply(uint32_t absent_count)
{
    const uint32_t absent[] = {0, 1};
    host.hold_jobs = true;
    (void)core_push_all(&host, 1, 0, incarnations[0], 1);
    (void)core_push_all(&host, 1, 1, incarnations[1], 1);
    for (unsigned i = 0; i < 3; i++)
        core_do_task(&host, 0); /* the votes; apply's jobs are held */
    assert_int_equal(1, core_info(&host).decided_step);
    uint64_t push = core_push_header(&host, 2, 0, incarnations[0]);
    core_push_end(&host, push, absent, absent_count);
    core_close_call(&host, push);
    uint64_t again = core_push_header(&host, 2, 0, incarnations[0]);
    assert_true(core_call(&host, again)->granted);
    for (unsigned b = 0; b < 3; b++)
        assert_int_equal(2, core_call(&host, again)->listed[b]); /* dropped: the push is whole as it is */
    return again;
}

static void a_slot_that_has_its_trailer_is_written_by_nobody(void **state)
{
    (void)state;
    uint64_t again = break_off_before_apply(2);
    host.hold_jobs = false;
    core_do_all(&host);
    (void)core_push_all(&host, 2, 1, incarnations[1], 1);
    assert_int_equal(2, core_info(&host).decided_step);
    assert_int_equal(AMPD_VERDICT_APPLIED, core_call(&host, again)->reply.u.step.verdict);
    uint64_t next = core_push_header(&host, 3, 0, incarnations[0]);
    for (unsigned b = 0; b < 3; b++)
        assert_int_equal(1, core_call(&host, next)->listed[b]);
}

static void a_refused_trailer_ends_the_stream_that_was_told_to_drop(void **state)
{
    (void)state;
    uint64_t again = break_off_before_apply(1); /* b is missing */
    host.hold_jobs = false;
    core_do_all(&host);
    assert_true(core_call(&host, again)->revoked);
    core_revoked(&host, again);
    core_assert_failed(&host, again, AMP_EABORTED, "REPLACED", "GetPushState");
    (void)core_push_all(&host, 2, 0, incarnations[0], 1);
    (void)core_push_all(&host, 2, 1, incarnations[1], 1);
    assert_int_equal(2, core_info(&host).decided_step);
}

/* ---- checkpoints ---- */

static void a_checkpoint_call_is_not_answered_with_an_older_cut(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    core_spec(&spec, 2);
    spec.checkpoint_every = 2;
    begin(&spec);
    host.hold_seal = true;
    for (uint64_t step = 1; step <= 3; step++)
        decide(step);
    uint64_t call = checkpoint(); /* the part of step 2 is being written */
    decide(4);
    core_cut_end(&host, 0);
    assert_int_equal(2, core_info(&host).durable_step);
    assert_false(core_call(&host, call)->answered);
    core_cut_end(&host, 0);
    assert_int_equal(4, core_call(&host, call)->reply.u.checkpoint.step);
}

static void a_checkpoint_call_during_a_cut_of_the_newest_step_gets_that(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    core_spec(&spec, 2);
    spec.checkpoint_every = 2;
    begin(&spec);
    host.hold_files = true;
    decide(1);
    decide(2);
    uint64_t call = checkpoint();
    decide(3);
    assert_false(host.row.cut); /* no other cut is wanted */
    core_do_all(&host);
    assert_int_equal(2, core_call(&host, call)->reply.u.checkpoint.step);
}

/* ---- pulls ---- */

static void the_header_of_a_pull_names_the_step_of_its_version(void **state)
{
    (void)state;
    host.hold_jobs = true;
    (void)core_push_all(&host, 1, 0, incarnations[0], 1);
    (void)core_push_all(&host, 1, 1, incarnations[1], 1);
    for (unsigned i = 0; i < 3; i++)
        core_do_task(&host, 0);
    assert_int_equal(1, core_info(&host).decided_step);
    uint64_t pull = core_pull_version(&host, 0);
    assert_int_equal(0, core_call(&host, pull)->pull.version);
    assert_int_equal(1, core_call(&host, pull)->pull.step);
    pull = core_pull_latest(&host); /* version 1 is not there yet: it comes as it is applied */
    assert_int_equal(1, core_call(&host, pull)->pull.version);
    assert_int_equal(2, core_call(&host, pull)->pull.step);
    uint64_t next = core_pull_step(&host, 1, 2);
    assert_int_equal(1, core_call(&host, next)->pull.version);
    assert_int_equal(2, core_call(&host, next)->pull.step);
}

/* ---- weights ---- */

static struct ampd_event_push weighted(uint32_t rank, float weight)
{
    return (struct ampd_event_push){.model = "model",
                                    .epoch = 1,
                                    .step = 1,
                                    .rank = rank,
                                    .incarnation = incarnations[rank],
                                    .scale_id = 1,
                                    .dtype = AMP_F32,
                                    .weight = weight};
}

static void a_push_of_weight_0_needs_no_blocks(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    core_spec(&spec, 2);
    spec.weighting = AMPD_WEIGHTING_PUSHED;
    begin(&spec);
    struct ampd_event_push header = weighted(0, 0);
    uint64_t none = core_push_event(&host, &header);
    core_push_block(&host, none, 0, 77); /* half of a: that counts as little as the rest */
    core_push_end(&host, none, NULL, 0);
    header = weighted(1, 2);
    uint64_t all = core_push_event(&host, &header);
    for (uint64_t b = 0; b < 3; b++)
        core_push_block(&host, all, b, 1024);
    core_push_end(&host, all, NULL, 0);
    assert_int_equal(AMPD_VERDICT_APPLIED, core_call(&host, none)->reply.u.step.verdict);
    assert_true(core_call(&host, all)->reply.u.step.norm == sqrt(110)); /* g is 1 in each of 110 elements */
}

static void a_push_of_weight_0_without_blocks_and_no_other_skips_the_step(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    core_spec(&spec, 1);
    spec.weighting = AMPD_WEIGHTING_PUSHED;
    begin(&spec);
    struct ampd_event_push header = weighted(0, 0);
    uint64_t none = core_push_event(&host, &header);
    core_push_end(&host, none, NULL, 0);
    assert_int_equal(AMPD_VERDICT_SKIPPED_EMPTY, core_call(&host, none)->reply.u.step.verdict);
    assert_true(core_info(&host).scaler.scale == 1024);
}

static void weights_and_scales_without_a_normal_coefficient_are_refused(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    core_spec(&spec, 1);
    spec.weighting = AMPD_WEIGHTING_PUSHED;
    spec.scaler.max_scale = 0x1p94f;
    core_assert_failed(&host, core_create(&host, &spec), AMP_EINVAL, "INVALID_SPEC", "scaler.max_scale");
    spec.scaler.max_scale = 0;
    spec.scaler.min_scale = 0x1p-61f;
    core_assert_failed(&host, core_create(&host, &spec), AMP_EINVAL, "INVALID_SPEC", "scaler.min_scale");
    spec.scaler.min_scale = 0;
    begin(&spec);
    struct ampd_event_push header = weighted(0, 0x1p-61f);
    core_assert_failed(&host, core_push_event(&host, &header), AMP_EINVAL, "WEIGHT", "2^-60");
    header.weight = 0x1p-60f;
    assert_true(core_call(&host, core_push_event(&host, &header))->granted);
}

/* ---- absent parameters ---- */

/* The one block of both parameters, with NaN where b is. */
static void push_block_with_nan_in_b(uint64_t id)
{
    const struct ampd_push_grant *grant = &core_call(&host, id)->push;
    float *to = (float *)(void *)grant->memory;
    uint64_t b = grant->layout->starts[1];
    for (uint64_t i = 0; i < grant->layout->elements; i++)
        to[i] = i < b ? 1024 : NAN;
    struct ampd_segment_count counts[8];
    struct ampd_event event = {.type = AMPD_EVENT_PUSH_BLOCK, .call = id};
    event.u.block.counts = counts;
    event.u.block.counts_count = ampd_receive_block(grant->layout, 0, AMP_F32, to, &amp_kernels_ref, counts);
    core_event(&host, &event);
}

/* Rank 0 lists b as absent; which trailer comes first is the caller's. Returns the norm. */
static double absent_in_a_shared_block(bool absent_first)
{
    core_host_close(&host);
    core_host_init(&host, 7);
    ampd_core_free(host.core);
    struct ampd_core_config config = {.fence = {.counter = 7}, .block_elements = 3 * (uint64_t)AMPD_ALIGN_ELEMENTS};
    assert_int_equal(0, ampd_core_new(&config, &host.core));
    core_running(&host, incarnations);
    const uint32_t b = 1;
    uint64_t first = core_push_header(&host, 1, 0, incarnations[0]);
    uint64_t second = core_push_header(&host, 1, 1, incarnations[1]);
    push_block_with_nan_in_b(first);
    core_push_block(&host, second, 0, 1024); /* now every rank has the block */
    core_push_end(&host, absent_first ? first : second, absent_first ? &b : NULL, absent_first ? 1 : 0);
    core_push_end(&host, absent_first ? second : first, absent_first ? NULL : &b, absent_first ? 0 : 1);
    assert_int_equal(AMPD_VERDICT_APPLIED, core_call(&host, first)->reply.u.step.verdict);
    assert_int_equal(0, host.row.rows_count);
    return host.row.norm;
}

static void what_an_absent_parameter_holds_never_matters_whatever_comes_first(void **state)
{
    (void)state;
    double expected = sqrt(100 + 10 * 0.25); /* a: the mean of 1 and 1; b: of 1 and nothing */
    assert_true(absent_in_a_shared_block(true) == expected);
    assert_true(absent_in_a_shared_block(false) == expected);
}

/* ---- numbers and memory ---- */

static void defaults_are_the_doubles_of_the_schema(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    core_spec(&spec, 1);
    spec.optimizer = AMPD_OPTIMIZER_ADAMW;
    spec.lr = 0;
    whole_spec(&spec);
    struct amp_optim_config config = ampd_spec_optim(&spec);
    assert_true(config.lr == 0.001 && config.beta1 == 0.9 && config.beta2 == 0.999 && config.eps == 1e-8);
    assert_true(config.weight_decay == 0.01 && spec.groups[0].lr_scale == 1);
}

static void a_rate_that_no_float_has_reaches_the_row(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    core_spec(&spec, 2);
    spec.lr = 0.1;
    begin(&spec);
    decide(1);
    assert_true(host.row.lr == 0.1);
}

static void a_model_beyond_the_bound_of_memory_is_refused_with_both_figures(void **state)
{
    (void)state;
    core_host_close(&host);
    struct ampd_core_config config = {
        .fence = {.counter = 7}, .block_elements = AMPD_ALIGN_ELEMENTS, .memory_max = (uint64_t)1 << 20};
    assert_int_equal(0, ampd_core_new(&config, &host.core));
    struct ampd_model_spec spec;
    core_spec(&spec, 1);
    struct ampd_parameter_spec large = {.name = "a", .dimensions = 1, .shape = {(uint64_t)1 << 30}};
    spec.parameters = &large;
    spec.parameters_count = 1;
    core_assert_failed(&host, core_create(&host, &spec), AMP_EEXHAUSTED, "NO_MEMORY", "1048576");
    struct ampd_model_spec many; /* small tensors, but user states of many ranks */
    core_spec(&many, 256);
    core_assert_failed(&host, core_create(&host, &many), AMP_EEXHAUSTED, "NO_MEMORY", "1048576");
    core_spec(&spec, 1);
    assert_int_equal(0, core_call(&host, core_create(&host, &spec))->reply.error.code);
}

/* ThreadSanitizer keeps a shadow of all memory, so that pages in memory say nothing of the program's own. */
#ifdef __has_feature
#if __has_feature(thread_sanitizer)
#define SHADOWED 1
#endif
#endif
#ifndef SHADOWED
#define SHADOWED 0
#endif

/* Bytes of this process that are in memory now. */
static uint64_t resident(void)
{
    unsigned long long all = 0;
    unsigned long long here = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(2, fscanf(file, "%llu %llu", &all, &here));
    (void)fclose(file);
    return here * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void a_model_touches_none_of_its_tensors_when_it_is_made(void **state)
{
    (void)state;
    if (SHADOWED) {
        print_message("SKIPPED: a_model_touches_none_of_its_tensors_when_it_is_made: ThreadSanitizer shadows memory\n");
        skip();
    }
    core_host_close(&host);
    struct ampd_core_config config = {.fence = {.counter = 7}};
    assert_int_equal(0, ampd_core_new(&config, &host.core));
    struct ampd_model_spec spec;
    core_spec(&spec, 1);
    spec.optimizer = AMPD_OPTIMIZER_ADAMW;
    struct ampd_parameter_spec large = {.name = "a", .dimensions = 1, .shape = {(uint64_t)1 << 25}};
    spec.parameters = &large;
    spec.parameters_count = 1;
    uint64_t before = resident();
    assert_int_equal(0, core_call(&host, core_create(&host, &spec))->reply.error.code);
    assert_true(resident() - before < core_info(&host).memory_bytes / 4);
}

int main(void)
{
#define TEST_OF(name)    cmocka_unit_test_setup_teardown(name, setup, teardown)
#define RUNNING_OF(name) cmocka_unit_test_setup_teardown(name, setup_running, teardown)
    const struct CMUnitTest tests[] = {
        TEST_OF(moments_begin_at_zero_whatever_their_memory_held_before_the_load),
        TEST_OF(what_one_model_cannot_read_does_not_hold_up_another_one),
        TEST_OF(a_model_that_cannot_be_read_now_goes_by_force_alone_and_its_name_is_free),
        TEST_OF(a_checkpoint_that_cannot_be_read_now_is_read_again),
        TEST_OF(the_row_of_a_new_epoch_names_the_last_step_of_the_one_before),
        TEST_OF(many_overflows_in_a_row_are_unstable_after_a_restart_too),
        RUNNING_OF(a_slot_that_has_its_trailer_is_written_by_nobody),
        RUNNING_OF(a_refused_trailer_ends_the_stream_that_was_told_to_drop),
        TEST_OF(a_checkpoint_call_is_not_answered_with_an_older_cut),
        TEST_OF(a_checkpoint_call_during_a_cut_of_the_newest_step_gets_that),
        RUNNING_OF(the_header_of_a_pull_names_the_step_of_its_version),
        TEST_OF(a_push_of_weight_0_needs_no_blocks),
        TEST_OF(a_push_of_weight_0_without_blocks_and_no_other_skips_the_step),
        TEST_OF(weights_and_scales_without_a_normal_coefficient_are_refused),
        TEST_OF(what_an_absent_parameter_holds_never_matters_whatever_comes_first),
        TEST_OF(defaults_are_the_doubles_of_the_schema),
        TEST_OF(a_rate_that_no_float_has_reaches_the_row),
        TEST_OF(a_model_beyond_the_bound_of_memory_is_refused_with_both_figures),
        TEST_OF(a_model_touches_none_of_its_tensors_when_it_is_made),
    };
#undef TEST_OF
#undef RUNNING_OF
    return cmocka_run_group_tests(tests, NULL, NULL);
}
