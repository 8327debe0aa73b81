/* Memory that is out: what nothing was promised to yet is refused, and leaves nothing behind. */
#include "server/core/base/limits.h"
#include "server/core/base/model.h"
#include "server/core/model/spec.h"
#include "server/core/base/process.h"
#include "server/core/shard/catalogue.h"
#include "server/core/shard/shard.h"
#include "server/core/wire/messages.h"
#include "tests/unit/core_fixture.h"
#include "tests/whole_spec.h"

#include <stdlib.h>
#include <string.h>

/* ---- the n-th allocation fails, once (the linker's --wrap) ---- */

static uint64_t left; /* allocations until that; 0: none fails */

static bool fails(void)
{
    return left > 0 && --left == 0;
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *data, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t count, size_t size);
void *__wrap_realloc(void *data, size_t size);

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    return fails() ? NULL : __real_calloc(count, size);
}

void *__wrap_realloc(void *data, size_t size)
{
    return fails() ? NULL : __real_realloc(data, size);
}

/* Disarms; whether the allocation was reached. */
static bool has_failed(void)
{
    bool failed = left == 0;
    left = 0;
    return failed;
}

/* ---- tests ---- */

static struct core_host host;
static struct ampd_incarnation incarnations[2];

static int close_host(void **state)
{
    (void)state;
    left = 0;
    core_host_close(&host);
    return 0;
}

static int run_host(void **state)
{
    (void)state;
    core_host_init(&host, 7);
    core_running(&host, incarnations);
    return 0;
}

static void a_core_is_made_whole_or_not_at_all(void **state)
{
    (void)state;
    struct ampd_core *core = NULL;
    struct ampd_core_config config = {0};
    left = 1;
    assert_int_equal(AMP_ENOMEM, ampd_core_new(&config, &core));
    assert_null(core);
    ampd_core_free(core);
    config.shard = 2;
    config.shards = 2;
    assert_int_equal(AMP_EINVAL, ampd_core_new(&config, &core));
    config = (struct ampd_core_config){.shards = AMPD_SHARDS_MAX + 1};
    assert_int_equal(AMP_EINVAL, ampd_core_new(&config, &core));
    config = (struct ampd_core_config){.block_elements = AMPD_ALIGN_ELEMENTS + 1};
    assert_int_equal(AMP_EINVAL, ampd_core_new(&config, &core));
    assert_null(core);
}

static void a_model_is_made_whole_or_not_at_all(void **state)
{
    (void)state;
    struct ampd_model_spec spec;
    core_spec(&spec, 2);
    spec.optimizer = AMPD_OPTIMIZER_ADAMW;
    spec.durability = AMPD_DURABILITY_STEP;
    whole_spec(&spec);
    core_host_init(&host, 7);
    uint64_t n = 1;
    for (struct ampd_model *model = NULL; model == NULL; n++) {
        struct amp_error error = {0};
        left = n;
        int rc = ampd_model_new(host.core, &spec, &model, &error);
        if (!has_failed())
            break;
        assert_int_equal(AMP_EEXHAUSTED, rc);
        assert_string_equal("NO_MEMORY", error.reason);
        assert_null(model);
        assert_int_equal(0, ampd_core_models_count(host.core));
        assert_int_equal(0, host.core->memory_bytes);
    }
    assert_true(n > 20);
    assert_int_equal(1, ampd_core_models_count(host.core));
}

static void a_specification_is_copied_whole_or_not_at_all(void **state)
{
    (void)state;
    struct ampd_model_spec spec, copy;
    struct amp_error error = {0};
    core_spec(&spec, 2);
    whole_spec(&spec);
    left = 1;
    assert_int_equal(AMP_ENOMEM, ampd_spec_copy(&copy, &spec));
    assert_null(copy.parameters);
    assert_int_equal(0, copy.parameters_count);
    left = 1;
    assert_int_equal(AMP_ENOMEM, ampd_spec_check(&spec, &error));
    assert_non_null(strstr(error.text, "no memory"));
    spec.parameters_count = 0;
    assert_int_equal(0, ampd_spec_copy(&copy, &spec));
    assert_null(copy.parameters);
}

static void a_message_is_copied_whole_or_not_at_all(void **state)
{
    (void)state;
    struct ampd_checkpoint_record checkpoint = {.epoch = 1};
    struct ampd_message synced = {.type = AMPD_MESSAGE_SYNCED};
    core_spec(&synced.u.sync.spec, 1);
    synced.u.sync.checkpoints = &checkpoint;
    synced.u.sync.checkpoints_count = 1;
    for (uint64_t n = 1; n <= 3; n++) { /* the message, its checkpoints, its parameters */
        left = n;
        assert_null(ampd_message_copy(&synced));
        assert_true(has_failed());
    }
    struct ampd_message *copy = ampd_message_copy(&synced);
    assert_int_equal(1, copy->u.sync.checkpoints[0].epoch);
    ampd_message_free(copy);
    left = 1;
    assert_null(ampd_message_new(AMPD_MESSAGE_OPEN));
}

static void a_catalogue_that_cannot_grow_stays_as_it_is(void **state)
{
    (void)state;
    struct ampd_shard shard = {0};
    struct ampd_checkpoint_record record = {.epoch = 1, .step = 4};
    left = 1;
    assert_int_equal(AMP_ENOMEM, ampd_catalogue_add(&shard, &record));
    assert_int_equal(0, shard.catalogue.count);
    assert_int_equal(0, ampd_catalogue_add(&shard, &record));
    record.version = 3; /* the same one again takes its place */
    assert_int_equal(0, ampd_catalogue_add(&shard, &record));
    assert_int_equal(1, shard.catalogue.count);
    assert_int_equal(3, shard.catalogue.records[0].version);
    free(shard.catalogue.records);
}

/* A call's own record is its first allocation. */
static void assert_refused(uint64_t call)
{
    assert_true(has_failed());
    core_assert_failed(&host, call, AMP_EEXHAUSTED, "TOO_MANY_CALLS", "too many calls");
}

static void a_call_without_memory_is_refused_and_may_come_again(void **state)
{
    (void)state;
    struct ampd_model_info before = core_info(&host);
    left = 1;
    assert_refused(core_join(&host, "w0", 0));
    left = 1;
    assert_refused(core_pull_latest(&host));
    left = 1;
    assert_refused(core_push_header(&host, 1, 0, incarnations[0]));
    left = 2; /* the copy of its user state */
    assert_refused(core_push_header(&host, 1, 0, incarnations[0]));
    left = 1;
    assert_refused(core_load(&host, 1));
    left = 1;
    assert_refused(core_set_scale(&host, 8, ""));
    left = 1;
    assert_refused(core_rollback(&host, 1, 0, ""));
    left = 1;
    assert_refused(core_checkpoint(&host));
    left = 1;
    assert_refused(core_delete(&host, true));
    struct ampd_event leave = {.type = AMPD_EVENT_LEAVE,
                               .call = ++host.last_call,
                               .u.worker = {.model = "model", .rank = 0, .incarnation = incarnations[0]}};
    left = 1;
    core_event(&host, &leave);
    assert_refused(leave.call);
    assert_int_equal(before.step, core_info(&host).step);
    (void)core_push_all(&host, 1, 0, incarnations[0], 1);
    (void)core_push_all(&host, 1, 1, incarnations[1], 1);
    assert_int_equal(1, core_info(&host).decided_step);
}

static void a_model_of_the_store_without_memory_for_it_is_named(void **state)
{
    (void)state;
    struct ampd_model_record record = {.epoch = 1};
    core_spec(&record.spec, 1);
    core_host_init(&host, 7);
    struct ampd_event found = {.type = AMPD_EVENT_MODEL_FOUND, .u.found = &record};
    left = 1;
    core_event(&host, &found);
    assert_non_null(strstr(host.logged, "model cannot be brought back"));
    assert_int_equal(0, ampd_core_models_count(host.core));
}

int main(void)
{
#define TEST_OF(name) cmocka_unit_test_teardown(name, close_host)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_core_is_made_whole_or_not_at_all),
        TEST_OF(a_model_is_made_whole_or_not_at_all),
        cmocka_unit_test(a_specification_is_copied_whole_or_not_at_all),
        cmocka_unit_test(a_message_is_copied_whole_or_not_at_all),
        cmocka_unit_test(a_catalogue_that_cannot_grow_stays_as_it_is),
        cmocka_unit_test_setup_teardown(a_call_without_memory_is_refused_and_may_come_again, run_host, close_host),
        TEST_OF(a_model_of_the_store_without_memory_for_it_is_named),
    };
#undef TEST_OF
    return cmocka_run_group_tests(tests, NULL, NULL);
}
