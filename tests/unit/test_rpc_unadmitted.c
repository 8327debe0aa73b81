/* What connections on which no call was let in take of the memory that calls share. */
#include "tests/unit/rpc_raw.h"

#include "rpc/h2/budget.h"

#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define COUNT(a)    (sizeof a / sizeof *(a))
#define KIB         ((size_t)1 << 10)
#define MESSAGE_MAX ((size_t)64 << 10)

static struct arpc_memory_budgets budgets;
static struct arpc_host host;
static int worked, closed;

static void note_work(struct arpc_call *call, const uint8_t *data, size_t size)
{
    worked++;
    (void)arpc_call_reply(call, data, size);
}

static void note_closed(struct arpc_call *call, const struct arpc_result *result)
{
    (void)call;
    (void)result;
    closed++;
}

static const struct arpc_handler handler = {.message = note_work, .closed = note_closed};

static const struct arpc_method methods[] = {
    {"t.T", "Health", ARPC_UNARY, false, 0, MESSAGE_MAX, &handler},
    {"t.T", "Work", ARPC_UNARY, false, 1, MESSAGE_MAX, &handler},
};

static int admit(struct arpc_call *call, void *arg, struct amp_error *error)
{
    (void)call;
    (void)arg;
    (void)error;
    return 0;
}

static void ask(struct arpc_link_config *config)
{
    config->admit_cb = admit;
}

static int setup(void **state)
{
    (void)state;
    struct arpc_limits limits = arpc_limits_default;
    worked = closed = 0;
    rpc_raw_open(methods, COUNT(methods), ask);
    limits.unfinished = 64 * (int64_t)KIB;
    limits.unfinished_per_address = 0;
    limits.unadmitted = 4;
    arpc_memory_budgets_init(&budgets, &limits);
    arpc_host_init(&host, &budgets, &limits, raw.now_ms);
    raw.server.link.host = &host;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    rpc_raw_close();
    assert_int_equal(budgets.unfinished.used + budgets.unadmitted.used + budgets.open.used, 0);
    return 0;
}

/* The first 16 KiB of a message of 32 KiB. */
static int32_t send_half(const char *path)
{
    static uint8_t body[MESSAGE_MAX];
    arpc_prefix_write(body, 0, 32 * KIB);
    return rpc_raw_request(path, NULL, NULL, body, ARPC_PREFIX_SIZE + 16 * KIB, false);
}

static void unfinished_messages_of_who_was_not_let_in_take_nothing_from_those_of_others(void **state)
{
    (void)state;
    (void)send_half("/t.T/Work");
    assert_int_equal(budgets.unfinished.used, 16 * KIB);
    raw.server.link.was_admitted = false; /* from here on as another connection of this address */
    for (int i = 0; i < 10; i++) {
        (void)send_half("/t.T/Health");
        assert_true(budgets.unadmitted.used <= 4 * 4 * (int64_t)KIB);
    }
    assert_int_equal(budgets.unfinished.used, 16 * KIB);
    assert_int_equal(closed, 9); /* the oldest ones, as soon as others came */
    assert_int_equal(raw.server.config.abuses[ARPC_ABUSE_UNFINISHED], 9);
    assert_int_equal(raw.server.link.call_count, 2);
}

static void a_message_gives_back_what_it_took_before_its_connection_was_let_in(void **state)
{
    (void)state;
    (void)send_half("/t.T/Health");
    assert_int_equal(budgets.unadmitted.used, 16 * KIB);
    (void)rpc_raw_request("/t.T/Work", NULL, NULL, "\0\0\0\0\5hello", 10, true);
    assert_int_equal(worked, 1);
    assert_true(raw.server.link.was_admitted);
    assert_int_equal(budgets.unadmitted.used, 16 * KIB);
    (void)send_half("/t.T/Health");
    assert_int_equal(budgets.unfinished.used, 16 * KIB);
    (void)nghttp2_submit_rst_stream(raw.session, NGHTTP2_FLAG_NONE, 1, NGHTTP2_CANCEL);
    rpc_raw_run();
    assert_int_equal(budgets.unadmitted.used, 0);
    assert_int_equal(budgets.unfinished.used, 16 * KIB);
}

int main(void)
{
#define WITH_RAW(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        WITH_RAW(unfinished_messages_of_who_was_not_let_in_take_nothing_from_those_of_others),
        WITH_RAW(a_message_gives_back_what_it_took_before_its_connection_was_let_in),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
