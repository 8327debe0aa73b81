/*
 * What addresses share: places of connections without a call, memory of unfinished messages, and what messages inflate
 * to.
 */
#include "tests/unit/rpc_raw.h"

#include "rpc/h2/budget.h"
#include "rpc/io/admission.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define COUNT(a)    (sizeof a / sizeof *(a))
#define KIB         ((size_t)1 << 10)
#define MESSAGE_MAX ((size_t)1 << 20)

/* ---- a budget ---- */

static struct arpc_budget budget;

static void who_has_most_gives_way_with_the_oldest_and_nobody_else(void **state)
{
    (void)state;
    struct arpc_account large, small;
    struct arpc_charge charges[5] = {0};
    arpc_budget_init(&budget, 10, 0, 1000);
    arpc_account_init(&large, &budget);
    arpc_account_init(&small, &budget);
    for (size_t i = 0; i < 3; i++)
        arpc_charge_set(&charges[i], &large, 3, 0);
    arpc_charge_set(&charges[3], &small, 1, 0);
    assert_null(arpc_charge_excess(&charges[3], 0));
    arpc_charge_set(&charges[4], &small, 2, 0);
    assert_ptr_equal(arpc_charge_excess(&charges[4], 0), &charges[0]); /* however young */
    arpc_charge_set(&charges[0], &large, 0, 0);
    assert_null(arpc_charge_excess(&charges[4], 0));
    /* Now the other has most, and its own oldest is young: then the one that asks. */
    arpc_charge_set(&charges[4], &small, 8, 0);
    assert_ptr_equal(arpc_charge_excess(&charges[4], 999), &charges[4]);
    assert_ptr_equal(arpc_charge_excess(&charges[4], 1000), &charges[3]);
    assert_int_equal(budget.used, 15);
    for (size_t i = 0; i < COUNT(charges); i++)
        arpc_charge_set(&charges[i], i < 3 ? &large : &small, 0, 0);
    assert_int_equal(budget.used, 0);
    assert_true(amp_list_empty(&budget.accounts));
}

static void an_address_has_its_own_part_whatever_is_left(void **state)
{
    (void)state;
    struct arpc_account account;
    struct arpc_charge charges[3] = {0};
    arpc_budget_init(&budget, 100, 2, 0);
    arpc_account_init(&account, &budget);
    for (size_t i = 0; i < 2; i++)
        arpc_charge_set(&charges[i], &account, 1, 0);
    assert_null(arpc_charge_excess(&charges[1], 0));
    arpc_charge_set(&charges[2], &account, 1, 0);
    assert_ptr_equal(arpc_charge_excess(&charges[2], 0), &charges[0]);
}

static void without_a_budget_nothing_is_counted_and_0_is_no_limit(void **state)
{
    (void)state;
    struct arpc_account account;
    struct arpc_charge charge = {0};
    arpc_account_init(&account, NULL);
    arpc_charge_set(&charge, &account, INT64_MAX, 0);
    assert_null(arpc_charge_excess(&charge, 0));
    arpc_budget_init(&budget, 0, 0, 0);
    arpc_account_init(&account, &budget);
    arpc_charge_set(&charge, &account, INT64_MAX, 0);
    assert_null(arpc_charge_excess(&charge, 0));
}

/* ---- places ---- */

#define PLACES     1024
#define UNADMITTED 256 /* arpc_limits_default.unadmitted */

static struct arpc_admission admission;
static struct arpc_admission_conn admitted[PLACES];
static struct arpc_admission_conn honest;
static struct arpc_admission_conn *leaves;

static enum arpc_abuse enter(uint32_t address, int64_t now_ms, struct arpc_admission_conn *one)
{
    struct sockaddr_in four = {.sin_family = AF_INET};
    four.sin_addr.s_addr = htonl(0x0a000000 + address);
    struct arpc_admission_key key = arpc_admission_key_of_address((const struct sockaddr *)&four);
    return arpc_admission_enter(&admission, &key, now_ms, one, &leaves);
}

static int open_admission(void **state)
{
    (void)state;
    arpc_admission_init(&admission, &arpc_limits_default, PLACES);
    memset(admitted, 0, sizeof admitted);
    honest = (struct arpc_admission_conn){0};
    return 0;
}

static int close_admission(void **state)
{
    (void)state;
    for (size_t i = 0; i < PLACES; i++)
        if (admitted[i].source != NULL)
            arpc_admission_leave(&admission, &admitted[i], 0);
    if (honest.source != NULL)
        arpc_admission_leave(&admission, &honest, 0);
    assert_int_equal(admission.admitted, 0);
    assert_int_equal(admission.unadmitted.used, 0);
    arpc_admission_close(&admission);
    return 0;
}

/* Those of 1,024 connections of 17 addresses that are not there come; how many more there are then. */
static size_t crowd(int64_t now_ms)
{
    size_t there = 0;
    for (size_t i = 0; i < PLACES; i++) {
        if (admitted[i].source != NULL)
            continue;
        there += enter((uint32_t)(i % 17), now_ms, &admitted[i]) == ARPC_ABUSE_NONE;
        if (leaves != NULL) {
            arpc_admission_leave(&admission, leaves, now_ms);
            there--;
        }
    }
    return there;
}

static void a_thousand_connections_without_a_call_keep_nobody_out(void **state)
{
    (void)state;
    assert_int_equal(crowd(0), UNADMITTED);
    /* At once, while all of them are young, and however often. */
    for (uint32_t i = 0; i < 10; i++) {
        assert_int_equal(enter(1000 + i, 1, &honest), ARPC_ABUSE_NONE);
        assert_non_null(leaves);
        arpc_admission_leave(&admission, leaves, 1);
        arpc_admission_admit(&admission, &honest);
        arpc_admission_leave(&admission, &honest, 1);
        assert_int_equal(crowd(1), 1); /* in the place that became free */
    }
}

static void who_shares_the_crowds_address_takes_the_place_of_its_oldest_after_a_while(void **state)
{
    (void)state;
    for (size_t i = 0; i < UNADMITTED; i++)
        assert_int_equal(enter(1, (int64_t)i, &admitted[i]), ARPC_ABUSE_NONE);
    assert_int_equal(enter(1, 999, &honest), ARPC_ABUSE_UNADMITTED);
    assert_null(leaves);
    assert_null(honest.source);
    assert_int_equal(enter(1, 1000, &honest), ARPC_ABUSE_NONE);
    assert_ptr_equal(leaves, &admitted[0]);
}

static void a_thousand_workers_of_one_address_are_let_in_and_none_has_to_go(void **state)
{
    (void)state;
    for (size_t i = 0; i < 1000; i++) {
        assert_int_equal(enter(1, 0, &admitted[i]), ARPC_ABUSE_NONE);
        assert_null(leaves);
        arpc_admission_admit(&admission, &admitted[i]);
    }
    /* What they leave is there for unadmitted ones, and the last place is an admitted one's. */
    for (size_t i = 1000; i < PLACES; i++)
        assert_int_equal(enter(2, 0, &admitted[i]), ARPC_ABUSE_NONE);
    assert_int_equal(enter(3, 0, &honest), ARPC_ABUSE_NONE);
    assert_ptr_equal(leaves, &admitted[1000]);
    arpc_admission_leave(&admission, leaves, 0);
    arpc_admission_admit(&admission, &honest);
    for (size_t i = 1001; i < PLACES; i++)
        arpc_admission_admit(&admission, &admitted[i]);
    struct arpc_admission_conn late;
    assert_int_equal(enter(4, 5000, &late), ARPC_ABUSE_CONNECTIONS);
    assert_null(leaves);
}

/*
 * As many addresses as places, each with one connection: a newcomer has as much as each of them, and is none too many.
 */
static void of_addresses_that_have_as_much_the_first_one_gives_way_and_not_the_newcomer(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < UNADMITTED; i++)
        assert_int_equal(enter(i, 0, &admitted[i]), ARPC_ABUSE_NONE);
    for (uint32_t i = 0; i < 10; i++) {
        assert_int_equal(enter(1000 + i, 1, &honest), ARPC_ABUSE_NONE);
        assert_ptr_equal(leaves, &admitted[i]);
        arpc_admission_leave(&admission, leaves, 1);
        arpc_admission_admit(&admission, &honest);
        arpc_admission_leave(&admission, &honest, 1);
        assert_int_equal(enter(2000 + i, 1, &admitted[i]), ARPC_ABUSE_NONE); /* they come back, of other addresses */
        assert_null(leaves);
    }
}

static void what_an_address_has_inflated_is_remembered_when_it_has_gone(void **state)
{
    (void)state;
    assert_int_equal(enter(1, 0, &honest), ARPC_ABUSE_NONE);
    arpc_host_inflated(&honest.source->host, 0, 17 << 20);
    arpc_admission_leave(&admission, &honest, 0);
    assert_int_equal(enter(1, 10, &honest), ARPC_ABUSE_NONE);
    assert_false(arpc_host_may_inflate(&honest.source->host, &arpc_limits_default, 10));
    assert_true(arpc_host_may_inflate(&honest.source->host, &arpc_limits_default, 1010));
    arpc_admission_leave(&admission, &honest, 10000);
    assert_int_equal(admission.idle_count, 0);
}

/* Neighbours differ in their last byte alone. */
static void neighbours_have_rows_of_their_own(void **state)
{
    (void)state;
    static bool taken[ARPC_ADMISSION_ROWS];
    size_t rows = 0;
    memset(taken, 0, sizeof taken);
    for (uint32_t i = 0; i < 256; i++) {
        struct sockaddr_in four = {.sin_family = AF_INET};
        four.sin_addr.s_addr = htonl(0x0a000000 + i);
        struct arpc_admission_key key = arpc_admission_key_of_address((const struct sockaddr *)&four);
        bool *row = &taken[arpc_admission_hash(&key) % ARPC_ADMISSION_ROWS];
        rows += !*row;
        *row = true;
    }
    assert_true(rows > 200);
}

/* ---- a connection ---- */

static struct arpc_handler noting, holding;

static const struct arpc_method methods[] = {
    {"t.T", "Watch", ARPC_BIDI, false, 0, MESSAGE_MAX, &noting},
    {"t.T", "Work", ARPC_BIDI, false, 1, MESSAGE_MAX, &noting},
    {"t.T", "Small", ARPC_BIDI, false, 1, 4 * KIB, &noting},
    {"t.T", "Unary", ARPC_UNARY, false, 1, MESSAGE_MAX, &holding},
};

static struct arpc_memory_budgets budgets;
static struct arpc_host host;

/* Messages may take so much; so may calls that wait. */
static void allow(size_t bytes)
{
    struct arpc_limits limits = arpc_limits_default;
    limits.unfinished = limits.waiting = (int64_t)bytes;
    limits.unfinished_per_address = 0;
    arpc_memory_budgets_init(&budgets, &limits);
    arpc_host_init(&host, &budgets, &limits, raw.now_ms);
    raw.server.link.host = &host;
}

static int admit(struct arpc_call *call, void *arg, struct amp_error *error)
{
    (void)call;
    (void)arg;
    (void)error;
    return 0;
}

static int refuse(struct arpc_call *call, void *arg, struct amp_error *error)
{
    (void)call;
    (void)arg;
    return amp_error_set(error, AMP_EUNAUTHENTICATED, NULL, "no");
}

static void ask(struct arpc_link_config *config)
{
    static const char *const keep[] = {"kept", NULL};
    config->admit_cb = admit;
    config->keep_metadata = keep;
}

static void reply(struct arpc_call *call, const uint8_t *data, size_t size)
{
    (void)arpc_call_reply(call, data, size);
}

/* Calls that are open at the same time share what was seen of them. */
static void close_raw(void)
{
    arpc_link_fail(&raw.server.link, AMP_EUNAVAILABLE, "over");
    arpc_link_abort(&raw.server.link, ARPC_STATUS_UNAVAILABLE, "the test is over");
    while (arpc_link_flush(&raw.server.link))
        ;
    rpc_seen_of_server.after_closed = 0;
    rpc_raw_close();
}

static int setup(void **state)
{
    (void)state;
    noting = holding = rpc_noting;
    holding.message = reply;
    rpc_raw_open(methods, COUNT(methods), ask);
    allow(64 * KIB);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    close_raw();
    assert_int_equal(budgets.unfinished.used + budgets.waiting.used + budgets.open.used, 0);
    return 0;
}

static int64_t unadmitted_ms(void)
{
    return arpc_limits_default.unadmitted_ms;
}

static void a_connection_on_which_no_call_is_let_in_does_not_last(void **state)
{
    (void)state;
    struct arpc_link *link = &raw.server.link;
    (void)rpc_raw_request("/t.T/Watch", NULL, NULL, "", 0, false);
    raw.server.config.admit_cb = refuse;
    (void)rpc_raw_request("/t.T/Work", NULL, NULL, "", 0, true);
    assert_string_equal(raw.grpc_status, "16");
    rpc_raw_pass(unadmitted_ms() - 1);
    assert_int_equal(raw.goaways, 0);
    rpc_raw_pass(1);
    assert_true(raw.goaways > 0);
    assert_int_equal(raw.goaway_code, NGHTTP2_NO_ERROR);
    rpc_raw_pass(arpc_limits_default.goodbye_ms); /* the watch is still open */
    assert_int_equal(link->error, AMP_EDEADLINE);
}

static void a_connection_on_which_no_call_is_let_in_has_few_calls(void **state)
{
    (void)state;
    const size_t most = (size_t)arpc_limits_default.unadmitted_calls;
    for (size_t i = 0; i < most + 3; i++) {
        (void)rpc_raw_request("/t.T/Watch", NULL, NULL, "", 0, false);
        assert_int_equal(raw.resets, i < most ? 0 : 1);
    }
    assert_int_equal(raw.server.link.call_count, most);
    assert_int_equal(budgets.open.used, 0); /* they do not take what others share */
    assert_int_equal(raw.reset_code, NGHTTP2_REFUSED_STREAM);
    arpc_call_finish(rpc_seen_of_server.call, ARPC_STATUS_OK, NULL, NULL);
    rpc_raw_run();
    (void)rpc_raw_request("/t.T/Work", NULL, NULL, "", 0, false); /* it is let in */
    for (size_t i = 0; i < most; i++)
        (void)rpc_raw_request("/t.T/Watch", NULL, NULL, "", 0, false);
    assert_int_equal(raw.server.link.call_count, 2 * most);
}

static void a_call_that_was_let_in_keeps_its_connection_and_a_watch_beside_it_does_not(void **state)
{
    (void)state;
    struct arpc_link *link = &raw.server.link;
    (void)rpc_raw_request("/t.T/Work", NULL, NULL, "", 0, false);
    struct arpc_call *work = rpc_seen_of_server.call;
    assert_true(link->admitted);
    rpc_raw_pass(100 * unadmitted_ms());
    assert_int_equal(raw.goaways, 0);
    (void)rpc_raw_request("/t.T/Watch", NULL, NULL, "", 0, false);
    arpc_call_finish(work, ARPC_STATUS_OK, NULL, NULL);
    rpc_raw_run();
    int64_t idle_ms = raw.server.config.idle_ms;
    rpc_raw_pass(idle_ms - 1);
    assert_int_equal(raw.goaways, 0);
    rpc_raw_pass(1);
    assert_true(raw.goaways > 0);
    rpc_raw_pass(arpc_limits_default.goodbye_ms);
    assert_int_equal(link->error, AMP_EDEADLINE);
}

/* ---- messages ---- */

/* A message that claims to be of this size, of which half comes. */
static int32_t send_half(const char *path, size_t size)
{
    static uint8_t body[MESSAGE_MAX];
    arpc_prefix_write(body, 0, (uint32_t)size);
    memset(&rpc_seen_of_server, 0, sizeof rpc_seen_of_server);
    return rpc_raw_request(path, NULL, NULL, body, ARPC_PREFIX_SIZE + size / 2, false);
}

static void unfinished_messages_take_no_more_than_their_budget_and_the_oldest_go(void **state)
{
    (void)state;
    struct arpc_link *link = &raw.server.link;
    int gone = 0;
    for (int i = 0; i < 100; i++) {
        raw.closed = 0;
        (void)send_half("/t.T/Unary", 16 * KIB);
        gone += raw.closed;
        assert_true(budgets.unfinished.used <= budgets.unfinished.most);
    }
    assert_int_equal(gone, 100 - (int)(budgets.unfinished.most / (8 * (int64_t)KIB)));
    assert_int_equal(link->call_count, 100 - (size_t)gone);
    assert_string_equal(raw.grpc_status, "8");
    assert_int_equal(raw.server.config.abuses[ARPC_ABUSE_UNFINISHED], (uint64_t)gone);
    assert_int_equal(link->abuse, ARPC_ABUSE_NONE);
    /* A whole one comes through all the same. */
    (void)rpc_raw_request("/t.T/Unary", NULL, NULL, "\0\0\0\0\5hello", 10, true);
    assert_int_equal(raw.data_size, 10);
}

static void pause_at_once(struct arpc_call *call)
{
    rpc_noting.started(call);
    arpc_call_pause(call);
}

static void a_message_takes_as_much_as_its_call_however_little_of_it_has_come(void **state)
{
    (void)state;
    for (int i = 0; i < 100; i++)
        (void)send_half("/t.T/Unary", 2);
    assert_int_equal(raw.server.link.call_count, 64 / 4);
    assert_int_equal(budgets.unfinished.used, budgets.unfinished.most);
    noting.started = pause_at_once;
    for (int i = 0; i < 100; i++)
        (void)send_half("/t.T/Work", 2);
    assert_int_equal(raw.server.link.call_count, 2 * 64 / 4);
    assert_int_equal(budgets.waiting.used, budgets.waiting.most);
}

static void a_message_larger_than_the_budget_is_the_one_that_goes(void **state)
{
    (void)state;
    (void)send_half("/t.T/Unary", 512 * KIB);
    assert_string_equal(raw.grpc_status, "8");
    assert_int_equal(raw.server.link.call_count, 0);
    assert_int_equal(budgets.unfinished.used, 0);
}

static void keep_bytes(struct arpc_call *call, const uint8_t *data, size_t size)
{
    rpc_noting.message_bytes(call, data, size);
    arpc_call_holds(call, 48 * KIB);
}

static void keep_nothing(struct arpc_call *call)
{
    rpc_noting.message_end(call);
    arpc_call_holds(call, 0);
}

static void what_a_handler_holds_of_an_unfinished_message_counts_too(void **state)
{
    (void)state;
    noting.message_bytes = keep_bytes;
    noting.message_end = keep_nothing;
    (void)rpc_raw_request("/t.T/Work", NULL, NULL, "\0\0\0\0\5hello", 10, false);
    assert_int_equal(budgets.unfinished.used, 0);
    (void)rpc_raw_request("/t.T/Work", NULL, NULL, "\0\0\0\0\5hel", 8, false);
    assert_int_equal(budgets.unfinished.used, 48 * KIB);
    (void)rpc_raw_request("/t.T/Work", NULL, NULL, "\0\0\0\0\5hel", 8, false);
    assert_int_equal(budgets.unfinished.used, 48 * KIB);
    assert_string_equal(raw.grpc_status, "8");
    assert_int_equal(raw.server.link.call_count, 2);
}

static void calls_that_wait_take_no_more_than_their_budget_and_the_oldest_go(void **state)
{
    (void)state;
    struct arpc_link *link = &raw.server.link;
    noting.started = pause_at_once;
    for (int i = 0; i < 20; i++) {
        raw.closed = 0;
        (void)send_half("/t.T/Work", 32 * KIB);
        assert_int_equal(raw.closed, i >= 3); /* 16 KiB and a prefix each */
        assert_true(link->buffered <= 64 * KIB);
        assert_int_equal(budgets.waiting.used, link->buffered);
    }
    assert_string_equal(raw.grpc_status, "8");
    assert_int_equal(raw.server.config.abuses[ARPC_ABUSE_WAITING], 17);
    assert_int_equal(link->call_count, 3);
    arpc_call_resume(rpc_seen_of_server.call);
    rpc_raw_run();
    assert_int_equal(budgets.waiting.used, 2 * (16 * KIB + ARPC_PREFIX_SIZE));
    assert_int_equal(rpc_seen_of_server.bytes, 16 * KIB);
}

static void pause_after_bytes(struct arpc_call *call, const uint8_t *data, size_t size)
{
    rpc_noting.message_bytes(call, data, size);
    if (rpc_seen_of_server.bytes >= 200 * KIB)
        arpc_call_pause(call);
}

static void pause_after_five(struct arpc_call *call, const uint8_t *data, size_t size)
{
    rpc_noting.message_bytes(call, data, size);
    if (rpc_seen_of_server.bytes == 5)
        arpc_call_pause(call);
}

/* The end of the message is still to be told to the handler, which has let it go on, when the stream ends. */
static void a_stream_that_ends_before_a_resumed_call_goes_on_is_whole(void **state)
{
    (void)state;
    noting.message_bytes = pause_after_five;
    int32_t id = rpc_raw_request("/t.T/Work", NULL, NULL, "\0\0\0\0\5hello", 10, false);
    assert_int_equal(rpc_seen_of_server.bytes, 5);
    assert_int_equal(rpc_seen_of_server.ended, 0);
    arpc_call_resume(rpc_seen_of_server.call);
    const uint8_t end[] = {0, 0, 0, NGHTTP2_DATA, NGHTTP2_FLAG_END_STREAM, 0, 0, 0, (uint8_t)id};
    rpc_raw_feed(end, sizeof end);
    assert_int_equal(rpc_seen_of_server.half_closed, 1);
    assert_int_equal(rpc_seen_of_server.ended, 1);
    assert_int_equal(rpc_seen_of_server.closed, 0);
}

/* A first message of `first` bytes, and half of a large one behind it. */
static void send_two(size_t first)
{
    static uint8_t body[2 * MESSAGE_MAX];
    arpc_prefix_write(body, 0, (uint32_t)first);
    arpc_prefix_write(body + ARPC_PREFIX_SIZE + first, 0, (uint32_t)MESSAGE_MAX);
    memset(&rpc_seen_of_server, 0, sizeof rpc_seen_of_server);
    (void)rpc_raw_request("/t.T/Work", NULL, NULL, body, 2 * ARPC_PREFIX_SIZE + first + MESSAGE_MAX / 2, false);
}

static void what_a_call_holds_that_moves_bulk_data_is_its_window(void **state)
{
    (void)state;
    noting.message_bytes = pause_after_bytes;
    send_two(0);
    assert_int_equal(raw.closed, 0);
    assert_true(raw.server.link.buffered > 100 * KIB);
    assert_int_equal(budgets.waiting.used, 0);
}

/* A header may be long, or have fields in front of it that nobody knows. */
static void a_call_that_waits_after_its_first_message_has_its_first_window_however_large_that_message_was(void **state)
{
    (void)state;
    allow(512 * KIB);
    noting.message_bytes = pause_after_bytes;
    send_two(200 * KIB);
    assert_int_equal(rpc_seen_of_server.ended, 0);
    assert_in_range(raw.server.link.buffered, 100 * KIB, ARPC_INITIAL_WINDOW);
    assert_int_equal(budgets.waiting.used, raw.server.link.buffered);
}

static void pause_after_many(struct arpc_call *call)
{
    rpc_noting.message_end(call);
    if (rpc_seen_of_server.ended >= 20000)
        arpc_call_pause(call);
}

static void a_call_whose_messages_are_small_has_its_first_window_however_many_they_are(void **state)
{
    (void)state;
    static const uint8_t body[MESSAGE_MAX]; /* of messages without a byte */
    allow(512 * KIB);
    noting.message_end = pause_after_many;
    (void)rpc_raw_request("/t.T/Small", NULL, NULL, body, sizeof body, false);
    assert_int_equal(rpc_seen_of_server.ended, 20000);
    assert_in_range(raw.server.link.buffered, 100 * KIB, ARPC_INITIAL_WINDOW);
    assert_int_equal(budgets.waiting.used, raw.server.link.buffered);
}

static void open_calls_take_no_more_than_their_budget_and_the_oldest_go(void **state)
{
    (void)state;
    char value[4 * KIB] = {0};
    memset(value, 'v', sizeof value - 1);
    budgets.open.most = 64 * KIB;
    for (int i = 0; i < 20; i++) {
        raw.closed = 0;
        (void)rpc_raw_request("/t.T/Work", "kept", value, "", 0, false);
        assert_int_equal(raw.closed, i >= 7); /* 8 KiB and some bytes each */
    }
    assert_string_equal(raw.grpc_status, "8");
    assert_int_equal(raw.server.config.abuses[ARPC_ABUSE_OPEN], 13);
    assert_int_equal(raw.server.link.call_count, 7);
}

static void greet(struct arpc_call *call)
{
    rpc_noting.started(call);
    assert_int_equal(arpc_call_send(call, "hello", 5, NULL, 0, NULL, NULL), 0);
}

static void an_open_call_that_has_sent_something_is_told_why_it_has_to_end(void **state)
{
    (void)state;
    budgets.open.most = 3 * ARPC_CALL_BYTES;
    noting.started = greet;
    for (int i = 0; i < 3; i++)
        (void)rpc_raw_request("/t.T/Work", NULL, NULL, "", 0, false);
    assert_string_equal(raw.grpc_status, "");
    (void)rpc_raw_request("/t.T/Work", NULL, NULL, "", 0, false);
    assert_int_equal(raw.closed, 1);
    assert_string_equal(raw.grpc_status, "8");
    assert_non_null(strstr(raw.headers, "have fewer open"));
    assert_int_equal(raw.reset_code, NGHTTP2_NO_ERROR);
}

/* A message of zeros, compressed. */
static size_t pack(uint8_t *body, size_t capacity, size_t size)
{
    uint8_t *zeros = calloc(1, size);
    z_stream stream = {0};
    assert_non_null(zeros);
    assert_int_equal(deflateInit2(&stream, 9, Z_DEFLATED, 15 + 16, 9, Z_DEFAULT_STRATEGY), Z_OK);
    stream.next_in = zeros;
    stream.avail_in = (uInt)size;
    stream.next_out = body + ARPC_PREFIX_SIZE;
    stream.avail_out = (uInt)(capacity - ARPC_PREFIX_SIZE);
    assert_int_equal(deflate(&stream, Z_FINISH), Z_STREAM_END);
    arpc_prefix_write(body, 1, (uint32_t)stream.total_out);
    size = ARPC_PREFIX_SIZE + stream.total_out;
    assert_int_equal(deflateEnd(&stream), Z_OK);
    free(zeros);
    return size;
}

static void connections_of_one_address_pay_together_for_what_their_messages_inflate_to(void **state)
{
    (void)state;
    static uint8_t body[2048];
    size_t size = pack(body, sizeof body, MESSAGE_MAX);
    int served = 0;
    allow(0);
    for (int i = 0; i < 40; i++) { /* each on a connection of its own */
        close_raw();
        rpc_raw_open(methods, COUNT(methods), ask);
        raw.server.link.host = &host;
        (void)rpc_raw_request("/t.T/Work", "grpc-encoding", "gzip", body, size, false);
        served += rpc_seen_of_server.ended;
        if (rpc_seen_of_server.ended == 0) {
            assert_string_equal(raw.grpc_status, "8");
            assert_int_equal(raw.server.config.abuses[ARPC_ABUSE_INFLATED], 1);
        }
    }
    assert_in_range(served, 16, 18);
    allow(0);
    (void)rpc_raw_request("/t.T/Work", "grpc-encoding", "gzip", body, size, false); /* of another address */
    assert_int_equal(rpc_seen_of_server.ended, 1);
}

static void what_inflates_counts_with_what_inflates_it_from_its_first_byte_on(void **state)
{
    (void)state;
    static uint8_t body[2048];
    size_t size = pack(body, sizeof body, 4 * KIB);
    (void)rpc_raw_request("/t.T/Unary", "grpc-encoding", "gzip", body, ARPC_PREFIX_SIZE, false);
    assert_in_range(budgets.unfinished.used, 40 * KIB, 64 * KIB);
    (void)rpc_raw_request("/t.T/Unary", "grpc-encoding", "gzip", body, size - 4, false);
    assert_in_range(budgets.unfinished.used, 40 * KIB, 64 * KIB);
    assert_int_equal(raw.server.link.call_count, 1);
}

int main(void)
{
#define WITH_ADMISSION(test) cmocka_unit_test_setup_teardown(test, open_admission, close_admission)
#define WITH_RAW(test)       cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_has_most_gives_way_with_the_oldest_and_nobody_else),
        cmocka_unit_test(an_address_has_its_own_part_whatever_is_left),
        cmocka_unit_test(without_a_budget_nothing_is_counted_and_0_is_no_limit),
        WITH_ADMISSION(a_thousand_connections_without_a_call_keep_nobody_out),
        WITH_ADMISSION(who_shares_the_crowds_address_takes_the_place_of_its_oldest_after_a_while),
        WITH_ADMISSION(a_thousand_workers_of_one_address_are_let_in_and_none_has_to_go),
        WITH_ADMISSION(of_addresses_that_have_as_much_the_first_one_gives_way_and_not_the_newcomer),
        WITH_ADMISSION(what_an_address_has_inflated_is_remembered_when_it_has_gone),
        cmocka_unit_test(neighbours_have_rows_of_their_own),
        WITH_RAW(a_connection_on_which_no_call_is_let_in_does_not_last),
        WITH_RAW(a_connection_on_which_no_call_is_let_in_has_few_calls),
        WITH_RAW(a_call_that_was_let_in_keeps_its_connection_and_a_watch_beside_it_does_not),
        WITH_RAW(unfinished_messages_take_no_more_than_their_budget_and_the_oldest_go),
        WITH_RAW(a_message_takes_as_much_as_its_call_however_little_of_it_has_come),
        WITH_RAW(a_message_larger_than_the_budget_is_the_one_that_goes),
        WITH_RAW(what_a_handler_holds_of_an_unfinished_message_counts_too),
        WITH_RAW(calls_that_wait_take_no_more_than_their_budget_and_the_oldest_go),
        WITH_RAW(a_stream_that_ends_before_a_resumed_call_goes_on_is_whole),
        WITH_RAW(what_a_call_holds_that_moves_bulk_data_is_its_window),
        WITH_RAW(a_call_that_waits_after_its_first_message_has_its_first_window_however_large_that_message_was),
        WITH_RAW(a_call_whose_messages_are_small_has_its_first_window_however_many_they_are),
        WITH_RAW(open_calls_take_no_more_than_their_budget_and_the_oldest_go),
        WITH_RAW(an_open_call_that_has_sent_something_is_told_why_it_has_to_end),
        WITH_RAW(connections_of_one_address_pay_together_for_what_their_messages_inflate_to),
        WITH_RAW(what_inflates_counts_with_what_inflates_it_from_its_first_byte_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
