/* A process without memory: each request is answered, with AMP_ENOMEM if it failed, and goes on when there is some. */
#include "tests/unit/client_core_fixture.h"

/* ---- allocations fail from the n-th on (the linker's --wrap) ---- */

#define NEVER UINT64_MAX

static uint64_t left = NEVER; /* allocations until that */

static bool fails(void)
{
    if (left == NEVER || left == 0)
        return left == 0;
    left--;
    return false;
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t number, size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t number, size_t size);

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : __real_malloc(size);
}

void *__wrap_calloc(size_t number, size_t size)
{
    return fails() ? NULL : __real_calloc(number, size);
}

/* ---- a server that answers everything ---- */

static uint64_t open_step, incarnation;
static uint16_t first[100];

static void answer_call(const struct ampclient_output *output)
{
    switch (output->type) {
    case AMPCLIENT_OUT_JOIN:
        outputs[count++] = *output;
        answer_join(1, open_step, ++incarnation);
        break;
    case AMPCLIENT_OUT_KEEP_ALIVE:
        outputs[count++] = *output;
        answer_keep_alive(1, true, "");
        break;
    case AMPCLIENT_OUT_PULL:
        outputs[count++] = *output;
        answer_pull(1, open_step, open_step - 1);
        break;
    case AMPCLIENT_OUT_LEAVE:
        end_with(output->call, (struct ampclient_ended){0});
        break;
    case AMPCLIENT_OUT_PUSH_END:
        answer_push(output->call, 1, open_step++);
        break;
    case AMPCLIENT_OUT_CANCEL:
        fail_call(output->call, AMP_ECANCELLED, "", 0, 0);
        break;
    default:
        break;
    }
}

/* Answers all calls, and returns what the request is answered with: its code, or 9 if it is not. */
static int served(void)
{
    int code = 9;
    while (count > 0) {
        struct ampclient_output oldest = outputs[0];
        count--;
        memmove(&outputs[0], &outputs[1], count * sizeof outputs[0]);
        if (oldest.type == AMPCLIENT_OUT_USER_DONE)
            code = oldest.u.done.code;
        else
            answer_call(&oldest);
    }
    return code;
}

static int asked(enum ampclient_event_type type)
{
    request(type);
    return served();
}

/* A step: 0, or the code of the call that failed. */
static int step(void)
{
    struct amp_error error = {0};
    int rc = asked(AMPCLIENT_EVENT_STEP_BEGIN);
    if (rc == 0)
        rc = ampclient_core_push(core, now_ms, 1, second, AMP_F16, &error);
    if (rc == 0)
        rc = ampclient_core_push(core, now_ms, 0, first, AMP_F16, &error);
    drain();
    (void)served();
    return rc != 0 ? rc : asked(AMPCLIENT_EVENT_STEP_END);
}

/* ---- tests ---- */

static void make_member(void)
{
    const struct ampclient_core_config config = {.model = "m", .worker = "w", .rank = 1, .world_size = 2};
    now_ms = 1000;
    count = 0;
    shards = 1;
    open_step = incarnation = 1;
    assert_int_equal(0, ampclient_core_new(&config, &core));
    assert_int_equal(0, asked(AMPCLIENT_EVENT_JOIN));
}

static void a_step_without_memory_ends_and_the_next_one_with_it_succeeds(void **state)
{
    (void)state;
    bool failed = true;
    for (uint64_t n = 0; failed; n++) {
        make_member();
        left = n;
        int rc = step();
        failed = left == 0;
        left = NEVER;
        if (rc != 0 && rc != AMP_ENOMEM)
            fail_msg("%d with %d allocations", rc, (int)n);
        assert_int_equal(0, step());
        assert_int_equal(0, asked(AMPCLIENT_EVENT_LEAVE));
        ampclient_core_free(core);
    }
}

static void a_join_without_memory_fails_and_the_next_one_with_it_succeeds(void **state)
{
    (void)state;
    bool failed = true;
    for (uint64_t n = 0; failed; n++) {
        const struct ampclient_core_config config = {.model = "m", .worker = "w", .rank = 1, .world_size = 2};
        open_step = incarnation = 1;
        count = 0;
        shards = 1;
        left = n;
        int rc = ampclient_core_new(&config, &core);
        if (rc == 0)
            rc = asked(AMPCLIENT_EVENT_JOIN);
        failed = left == 0;
        left = NEVER;
        if (rc != 0 && rc != AMP_ENOMEM)
            fail_msg("%d with %d allocations", rc, (int)n);
        if (rc != 0 && core != NULL)
            assert_int_equal(0, asked(AMPCLIENT_EVENT_JOIN));
        ampclient_core_free(core);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_without_memory_ends_and_the_next_one_with_it_succeeds),
        cmocka_unit_test(a_join_without_memory_fails_and_the_next_one_with_it_succeeds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
