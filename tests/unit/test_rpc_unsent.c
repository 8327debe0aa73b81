/* Answers that have not left: what all connections of a server may take for them, and whose calls end beyond that. */
#include "tests/unit/rpc_frames.h"
#include "tests/unit/rpc_raw.h"

#include "rpc/h2/budget.h"

#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define COUNT(a)    (sizeof a / sizeof *(a))
#define KIB         ((size_t)1 << 10)
#define ANSWER      (16 * KIB)
#define MOST        (4 * ANSWER)
#define MESSAGE_MAX ((size_t)1 << 20)
#define CALLS_MAX   32

static uint8_t ones[ANSWER];
static struct arpc_memory_budgets budgets;
static struct arpc_host host;
static struct rpc_side other; /* another connection of the same host, whose turn comes when a test says so */

/* ---- the server's handlers ---- */

static struct arpc_call *begun[CALLS_MAX]; /* calls of Open, in order */
static size_t begun_count;
static int closed;

static void on_open(struct arpc_call *call)
{
    assert_true(begun_count < CALLS_MAX);
    begun[begun_count++] = call;
}

static void answer(struct arpc_call *call)
{
    (void)arpc_call_reply(call, ones, sizeof ones - ARPC_PREFIX_SIZE);
}

static void count_closed(struct arpc_call *call, const struct arpc_result *result)
{
    (void)call;
    (void)result;
    closed++;
}

static const struct arpc_handler working = {.half_close = answer, .closed = count_closed};
static const struct arpc_handler opening = {.started = on_open, .closed = count_closed};

static const struct arpc_method methods[] = {
    {"t.T", "Work", ARPC_BIDI, false, 1, MESSAGE_MAX, &working},
    {"t.T", "Open", ARPC_BIDI, false, 1, MESSAGE_MAX, &opening},
};

/* ---- the connections ---- */

static void request_of_other(uint32_t stream, const char *path, bool end)
{
    const char *const pairs[] = {":method",    "POST", ":scheme", "http",     ":path",        path,
                                 ":authority", "x",    "te",      "trailers", "content-type", "application/grpc",
                                 NULL};
    struct frames_out out = {.size = 0};
    frames_headers(&out, stream, end, pairs);
    assert_int_equal(arpc_link_receive(&other.link, out.bytes, out.size), 0);
}

static void flush_other(void)
{
    while (arpc_link_flush(&other.link))
        ;
}

/* The bytes that have left it by this turn. */
static size_t turn_of_other(void)
{
    flush_other();
    assert_int_equal(arpc_link_produce(&other.link, &other.batch), 0);
    size_t bytes = other.batch.bytes;
    arpc_batch_done(&other.link, &other.batch);
    flush_other();
    return bytes;
}

static void open_other(void)
{
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    struct frames_out out = {.size = 0};
    memset(&other, 0, sizeof other);
    rpc_side_config(&other, true, &raw.now_ms);
    assert_int_equal(arpc_method_table_add(&other.config.methods, methods, COUNT(methods), NULL), 0);
    assert_int_equal(rpc_side_open(&other), 0);
    other.link.host = &host;
    frames_settings(&out);
    frames_settings_ack(&out);
    assert_int_equal(arpc_link_receive(&other.link, (const uint8_t *)preface, sizeof preface - 1), 0);
    assert_int_equal(arpc_link_receive(&other.link, out.bytes, out.size), 0);
    (void)turn_of_other();
}

static void close_other(void)
{
    arpc_link_fail(&other.link, AMP_EUNAVAILABLE, "over");
    arpc_link_abort(&other.link, ARPC_STATUS_UNAVAILABLE, "the test is over");
    flush_other();
    arpc_link_close(&other.link);
    arpc_method_table_close(&other.config.methods);
}

static int setup(void **state)
{
    (void)state;
    struct arpc_limits limits = arpc_limits_default;
    limits.unsent = (int64_t)MOST;
    memset(ones, 1, sizeof ones);
    begun_count = 0;
    closed = 0;
    rpc_raw_open(methods, COUNT(methods), NULL);
    arpc_memory_budgets_init(&budgets, &limits);
    arpc_host_init(&host, &budgets, &limits, raw.now_ms);
    raw.server.link.host = &host;
    open_other();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    close_other();
    rpc_raw_close();
    assert_int_equal(budgets.open.used + budgets.unsent.used, 0);
    return 0;
}

/* The client opens no windows of streams. */
static void shut_windows(void)
{
    const nghttp2_settings_entry shut = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 0};
    assert_int_equal(nghttp2_submit_settings(raw.session, NGHTTP2_FLAG_NONE, &shut, 1), 0);
}

static void send_copy(struct arpc_call *call, size_t size)
{
    assert_int_equal(arpc_call_send(call, NULL, 0, ones, size - ARPC_PREFIX_SIZE, NULL, NULL), 0);
}

static void count_release(void *arg)
{
    (*(int *)arg)++;
}

/* ---- tests ---- */

static void answers_that_get_no_window_take_no_more_than_their_budget_and_the_oldest_go(void **state)
{
    (void)state;
    struct arpc_link *link = &raw.server.link;
    shut_windows();
    for (int i = 0; i < 20; i++) {
        (void)rpc_raw_request("/t.T/Work", NULL, NULL, NULL, 0, true);
        assert_int_equal(raw.ended, i >= 4);
        assert_in_range(budgets.unsent.used, 1, budgets.unsent.most);
        assert_int_equal(link->queued, budgets.unsent.used);
    }
    assert_string_equal(raw.grpc_status, "8");
    assert_non_null(strstr(raw.headers, "have not left"));
    assert_int_equal(raw.resets, 0);
    assert_int_equal(raw.server.config.abuses[ARPC_ABUSE_UNSENT], 16);
    assert_int_equal(link->call_count, 4);
    assert_int_equal(link->abuse, ARPC_ABUSE_NONE);
}

/* Else it would have to connect again, with all its other calls. */
static void a_connection_stays_however_many_of_its_answers_are_ended(void **state)
{
    (void)state;
    shut_windows();
    for (int i = 0; i < 300; i++)
        (void)rpc_raw_request("/t.T/Work", NULL, NULL, NULL, 0, true);
    assert_int_equal(raw.server.config.abuses[ARPC_ABUSE_UNSENT], 296);
    assert_int_equal(raw.server.config.abuses[ARPC_ABUSE_FAULTS], 0);
    assert_int_equal(raw.goaways, 0);
}

static nghttp2_nv field(const char *name, const char *value)
{
    return (nghttp2_nv){(uint8_t *)(uintptr_t)name, (uint8_t *)(uintptr_t)value, strlen(name), strlen(value),
                        NGHTTP2_NV_FLAG_NONE};
}

/* A request to a server whose socket takes nothing any more. */
static void request_unread(void)
{
    const nghttp2_nv nv[] = {field(":method", "POST"),    field(":scheme", "http"),
                             field(":path", "/t.T/Work"), field(":authority", "x"),
                             field("te", "trailers"),     field("content-type", "application/grpc")};
    const uint8_t *data;
    assert_true(nghttp2_submit_request(raw.session, NULL, nv, COUNT(nv), NULL, NULL) > 0);
    for (ssize_t size; (size = nghttp2_session_mem_send(raw.session, &data)) > 0;)
        rpc_raw_feed(data, (size_t)size);
}

/* No trailers leave either: the memory must not wait for them. */
static void answers_that_nobody_reads_take_no_more_than_their_budget(void **state)
{
    (void)state;
    struct arpc_link *link = &raw.server.link;
    rpc_raw_run();
    for (int i = 0; i < 20; i++) {
        request_unread();
        assert_int_equal(link->queued, (size_t)(i < 4 ? i + 1 : 4) * ANSWER);
    }
    assert_int_equal(link->call_count, 20);
    raw.ended = 0;
    rpc_raw_run();
    assert_int_equal(raw.ended, 20);
    assert_int_equal(budgets.unsent.used, 0);
}

static void what_an_ended_call_has_copied_goes_before_its_connection_has_its_turn(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 20; i++) {
        request_of_other(2 * i + 1, "/t.T/Work", true);
        assert_int_equal(other.link.queued, (size_t)(i < 4 ? i + 1 : 4) * ANSWER);
    }
    shut_windows();
    for (size_t i = 0; i < 4; i++) {
        (void)rpc_raw_request("/t.T/Work", NULL, NULL, NULL, 0, true);
        assert_int_equal(other.link.queued, (3 - i) * ANSWER);
        assert_int_equal(raw.server.link.queued, (i + 1) * ANSWER);
    }
    assert_int_equal(other.link.call_count, 20);
    assert_true(turn_of_other() > 0);
    assert_int_equal(other.link.call_count, 0);
    assert_int_equal(closed, 20);
}

/* What follows the gap would be taken for the rest of the message. */
static void an_ended_call_sends_nothing_behind_a_copy_that_was_dropped(void **state)
{
    (void)state;
    static const uint8_t windows[] = {0, 0, 4, 8, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 4, 8, 0, 0, 0, 0, 1, 0, 1, 0, 0};
    static uint8_t large[MOST];
    static int released;
    released = 0;
    request_of_other(1, "/t.T/Open", false);
    assert_int_equal(arpc_call_send(begun[0], NULL, 0, large, sizeof large - ARPC_PREFIX_SIZE, NULL, NULL), 0);
    assert_int_equal(arpc_call_send(begun[0], NULL, 0, ones, sizeof ones, count_release, &released), 0);
    while (turn_of_other() > 0)
        ;
    assert_int_equal(begun[0]->out.queued, 1 + ARPC_PREFIX_SIZE + sizeof ones); /* the first window is 65,535 */
    (void)rpc_raw_request("/t.T/Work", NULL, NULL, NULL, 0, true);
    assert_int_equal(begun[0]->out.queued, ARPC_PREFIX_SIZE + sizeof ones);
    assert_int_equal(arpc_link_receive(&other.link, windows, sizeof windows), 0);
    assert_int_equal(arpc_link_produce(&other.link, &other.batch), 0);
    assert_int_equal(other.batch.bytes, 0);
    assert_int_equal(released, 0);
    assert_true(turn_of_other() > 0);
    assert_int_equal(released, 1);
    assert_int_equal(other.link.call_count, 0);
}

/* It has had something to send since it began, and each of its messages has a prefix and a head of its own. */
static void a_stream_of_what_is_lent_goes_on_beside_answers_that_nobody_reads(void **state)
{
    (void)state;
    static int released;
    released = 0;
    shut_windows();
    (void)rpc_raw_request("/t.T/Open", NULL, NULL, "", 0, false);
    for (int i = 0; i < 8; i++)
        assert_int_equal(arpc_call_send(begun[0], "head", 4, ones, sizeof ones, count_release, &released), 0);
    rpc_raw_pass(1000);
    for (int i = 0; i < 20; i++)
        (void)rpc_raw_request("/t.T/Work", NULL, NULL, NULL, 0, true);
    assert_int_equal(raw.server.config.abuses[ARPC_ABUSE_UNSENT], 16);
    assert_int_equal(begun[0]->state, ARPC_CALL_OPEN);
    assert_int_equal(released, 0);
}

static void an_answer_that_has_left_is_charged_no_more_and_a_body_of_the_users_never(void **state)
{
    (void)state;
    static int released;
    released = 0;
    (void)rpc_raw_request("/t.T/Open", NULL, NULL, "", 0, false);
    assert_int_equal(arpc_call_send(begun[0], "head", 4, ones, sizeof ones, count_release, &released), 0);
    assert_int_equal(budgets.unsent.used, 0);
    assert_int_equal(arpc_call_send(begun[0], ones, 100, NULL, 0, NULL, NULL), 0);
    assert_int_equal(budgets.unsent.used, ARPC_PREFIX_SIZE + 100);
    rpc_raw_run();
    assert_int_equal(released, 1);
    assert_int_equal(budgets.unsent.used, 0);
}

static void fill_the_budget(void *arg)
{
    count_release(arg);
    if (*(int *)arg == 1)
        for (size_t i = 0; i < 4; i++)
            send_copy(begun[1], ANSWER);
}

/* Whoever drops messages of a call may so have others of its messages dropped. */
static void what_a_release_callback_sends_may_end_the_call_that_has_released(void **state)
{
    (void)state;
    static int released;
    for (int blank = 0; blank < 2; blank++) {
        begun_count = 0;
        released = 0;
        shut_windows();
        for (int i = 0; i < 2; i++)
            (void)rpc_raw_request("/t.T/Open", NULL, NULL, "", 0, false);
        for (int i = 0; i < 3; i++) {
            assert_int_equal(arpc_call_send(begun[0], NULL, 0, ones, KIB, fill_the_budget, &released), 0);
            send_copy(begun[0], KIB);
        }
        if (blank)
            arpc_call_blank(begun[0]);
        else
            arpc_call_cancel(begun[0], ARPC_STATUS_ABORTED, "a test");
        rpc_raw_run();
        assert_int_equal(released, 3);
        assert_int_equal(begun[1]->out.queued, MOST);
        arpc_call_cancel(begun[1], ARPC_STATUS_ABORTED, "a test");
        rpc_raw_run();
        assert_int_equal(raw.server.link.call_count, 0);
    }
}

int main(void)
{
#define WITH_RAW(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        WITH_RAW(answers_that_get_no_window_take_no_more_than_their_budget_and_the_oldest_go),
        WITH_RAW(a_connection_stays_however_many_of_its_answers_are_ended),
        WITH_RAW(answers_that_nobody_reads_take_no_more_than_their_budget),
        WITH_RAW(what_an_ended_call_has_copied_goes_before_its_connection_has_its_turn),
        WITH_RAW(an_ended_call_sends_nothing_behind_a_copy_that_was_dropped),
        WITH_RAW(a_stream_of_what_is_lent_goes_on_beside_answers_that_nobody_reads),
        WITH_RAW(an_answer_that_has_left_is_charged_no_more_and_a_body_of_the_users_never),
        WITH_RAW(what_a_release_callback_sends_may_end_the_call_that_has_released),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
