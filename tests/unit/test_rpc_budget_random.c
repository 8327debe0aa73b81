/*
 * Calls of several connections that share budgets of memory, and end in every way in any order: what each is charged
 * with is given back once, and there is never more than there may be. AMPD_TEST_SEED of the environment: which order.
 */
#include "tests/unit/rpc_frames.h"
#include "tests/unit/rpc_pair.h"

#include "base/random.h"
#include "rpc/h2/budget.h"

#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define SEED        18
#define STEPS       20000
#define SIDES       6
#define HOSTS       3
#define STREAMS     32
#define LIVE_MAX    (SIDES * 1024)
#define MOST        ((size_t)128 << 10)
#define MESSAGE_MAX ((size_t)64 << 10)

static struct amp_random rolls;
static int64_t now_ms;
static struct arpc_memory_budgets budgets;
static struct arpc_host hosts[HOSTS];

static struct side {
    struct rpc_side side;
    uint32_t next_stream;
    uint32_t streams[STREAMS]; /* the last ones that were begun, whatever became of them */
} sides[SIDES];

/* Calls that have begun and are not closed. */
static struct arpc_call *live[LIVE_MAX];
static size_t live_count;

static bool roll(uint64_t of)
{
    return amp_random_below(&rolls, of) == 0;
}

/* ---- the server's handlers ---- */

static void anything_to_one_of_them(void)
{
    if (live_count == 0)
        return;
    static const uint8_t answer[8 << 10];
    struct arpc_call *call = live[amp_random_below(&rolls, live_count)];
    switch (amp_random_below(&rolls, 6)) {
    case 0:
        arpc_call_finish(call, ARPC_STATUS_OK, NULL, NULL);
        break;
    case 1:
        arpc_call_cancel(call, ARPC_STATUS_ABORTED, "a test");
        break;
    case 2:
        arpc_call_pause(call);
        break;
    case 3:
        (void)arpc_call_send(call, answer, amp_random_below(&rolls, sizeof answer), NULL, 0, NULL, NULL);
        break;
    default:
        arpc_call_resume(call);
        break;
    }
}

static void on_started(struct arpc_call *call)
{
    assert_true(live_count < LIVE_MAX);
    live[live_count++] = call;
    if (roll(3))
        arpc_call_pause(call);
}

static void on_bytes(struct arpc_call *call, const uint8_t *data, size_t size)
{
    (void)data;
    (void)size;
    if (roll(2))
        arpc_call_holds(call, amp_random_below(&rolls, 32 << 10));
    if (roll(4))
        arpc_call_pause(call);
    if (roll(8))
        anything_to_one_of_them();
}

static void on_end(struct arpc_call *call)
{
    arpc_call_holds(call, 0);
    if (roll(8))
        anything_to_one_of_them();
}

static void on_message(struct arpc_call *call, const uint8_t *data, size_t size)
{
    uint8_t sum = 0;
    for (size_t i = 0; i < size; i++)
        sum ^= data[i];
    if (roll(3))
        arpc_call_pause(call);
    if (roll(2))
        (void)arpc_call_reply(call, &sum, 1);
}

static void on_closed(struct arpc_call *call, const struct arpc_result *result)
{
    (void)result;
    size_t at = 0;
    while (at < live_count && live[at] != call)
        at++;
    assert_true(at < live_count);
    live[at] = live[--live_count];
    if (roll(8))
        anything_to_one_of_them();
}

static const struct arpc_handler in_pieces = {
    .started = on_started, .message_bytes = on_bytes, .message_end = on_end, .closed = on_closed};
static const struct arpc_handler whole = {.started = on_started, .message = on_message, .closed = on_closed};

static const struct arpc_method methods[] = {
    {"t.T", "Pieces", ARPC_BIDI, false, 1, MESSAGE_MAX, &in_pieces},
    {"t.T", "Whole", ARPC_BIDI, false, 1, MESSAGE_MAX, &whole},
    {"t.T", "Unary", ARPC_UNARY, false, 1, MESSAGE_MAX, &whole},
};

static int admit(struct arpc_call *call, void *arg, struct amp_error *error)
{
    (void)call;
    (void)arg;
    return roll(16) ? amp_error_set(error, AMP_EUNAUTHENTICATED, NULL, "no") : 0;
}

/* ---- the clients ---- */

static void pump(struct side *side)
{
    struct arpc_link *link = &side->side.link;
    while (arpc_link_flush(link) || (link->error == 0 && arpc_link_has_output(link))) {
        (void)arpc_link_produce(link, &side->side.batch); /* its error is the link's */
        arpc_batch_done(link, &side->side.batch);
    }
}

static void feed(struct side *side, const void *data, size_t size)
{
    (void)arpc_link_receive(&side->side.link, data, size); /* its error is the link's */
}

static void open_side(size_t index)
{
    static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    struct side *side = &sides[index];
    struct frames_out out = {.size = 0};
    assert_int_equal(rpc_side_open(&side->side), 0);
    side->side.link.host = &hosts[index % HOSTS];
    side->next_stream = 1;
    memset(side->streams, 0, sizeof side->streams);
    frames_settings(&out);
    frames_settings_ack(&out);
    feed(side, preface, sizeof preface - 1);
    feed(side, out.bytes, out.size);
}

static void close_side(size_t index)
{
    struct arpc_link *link = &sides[index].side.link;
    arpc_link_fail(link, AMP_EUNAVAILABLE, "over");
    arpc_link_abort(link, ARPC_STATUS_UNAVAILABLE, "the connection is lost");
    while (arpc_link_flush(link))
        ;
    arpc_link_close(link);
}

static uint32_t begin_call(struct side *side, struct frames_out *out)
{
    static const char *const paths[] = {"/t.T/Pieces", "/t.T/Whole", "/t.T/Unary"};
    const char *pairs[] = {":method",      "POST",
                           ":scheme",      "http",
                           ":path",        paths[amp_random_below(&rolls, 3)],
                           ":authority",   "x",
                           "te",           "trailers",
                           "content-type", "application/grpc",
                           "grpc-timeout", roll(2) ? "1S" : "9S",
                           "grpc-encoding", "gzip",
                           NULL};
    uint32_t stream = side->next_stream;
    side->next_stream += 2;
    side->streams[amp_random_below(&rolls, STREAMS)] = stream;
    frames_headers(out, stream, roll(16), pairs);
    return stream;
}

static void do_frames(struct side *side)
{
    struct frames_out out = {.size = 0};
    uint8_t data[6000] = {0};
    size_t size = amp_random_below(&rolls, sizeof data);
    uint32_t stream = side->streams[amp_random_below(&rolls, STREAMS)];
    if (stream == 0 || roll(3)) {
        stream = begin_call(side, &out);
        arpc_prefix_write(data, roll(4), (uint32_t)amp_random_below(&rolls, MESSAGE_MAX));
        memcpy(data + 5, "\x1f\x8b\x08\0\0\0\0\0\0\3", 10); /* a compressed one begins well */
        size += 15;
        size = size < sizeof data ? size : sizeof data;
    }
    switch (amp_random_below(&rolls, 16)) {
    case 0:
        frames_rst(&out, stream, H2_CANCEL_CODE);
        break;
    case 1:
        frames_data(&out, stream, true, data, size);
        break;
    case 2:
        if (roll(20))
            frames_goaway(&out, 0, H2_NO_ERROR, "over");
        break;
    default:
        frames_data(&out, stream, false, data, size);
    }
    feed(side, out.bytes, out.size);
}

static void do_anything(void)
{
    size_t index = amp_random_below(&rolls, SIDES);
    struct side *side = &sides[index];
    uint64_t what = amp_random_below(&rolls, 100);
    if (side->side.link.error != 0 || arpc_link_is_over(&side->side.link) || what == 0) {
        close_side(index);
        open_side(index);
    } else if (what < 80) {
        do_frames(side);
    } else if (what < 90) {
        anything_to_one_of_them();
    } else if (what == 90) {
        arpc_link_drain(&side->side.link);
    } else {
        now_ms += (int64_t)amp_random_below(&rolls, 200);
        for (size_t i = 0; i < SIDES; i++)
            if (sides[i].side.link.error == 0)
                arpc_link_tick(&sides[i].side.link);
    }
    if (roll(2)) /* else what others asked for is still to be done when more comes */
        for (size_t i = 0; i < SIDES; i++)
            pump(&sides[i]);
}

/* What the calls are charged with is what the addresses have used, and that is what all have. */
static void look(void)
{
    int64_t unfinished[HOSTS] = {0};
    int64_t waiting[HOSTS] = {0};
    int64_t open[HOSTS] = {0};
    int64_t unsent[HOSTS] = {0};
    for (size_t i = 0; i < SIDES; i++) {
        struct arpc_link *link = &sides[i].side.link;
        for (struct amp_list *it = link->calls.next; it != &link->calls; it = it->next) {
            const struct arpc_call *call = AMP_CONTAINER(it, struct arpc_call, in_link);
            unfinished[i % HOSTS] += call->in.unfinished.amount;
            waiting[i % HOSTS] += call->in.waiting.amount;
            open[i % HOSTS] += call->open.amount;
            unsent[i % HOSTS] += call->out.copies.amount;
            assert_int_equal(call->in.unfinished.account != NULL, call->in.unfinished.amount > 0);
            assert_int_equal(call->in.waiting.account != NULL, call->in.waiting.amount > 0);
            assert_true(call->in.message.size == 0 || call->in.unfinished.amount > 0);
        }
    }
    int64_t all = 0;
    for (size_t i = 0; i < HOSTS; i++) {
        assert_int_equal(hosts[i].unfinished.used, unfinished[i]);
        assert_int_equal(hosts[i].waiting.used, waiting[i]);
        assert_int_equal(hosts[i].open.used, open[i]);
        assert_int_equal(hosts[i].unsent.used, unsent[i]);
        assert_true(unfinished[i] <= budgets.unfinished.most_per_address);
        all += unfinished[i];
    }
    assert_int_equal(budgets.unfinished.used, all);
    assert_true(all <= budgets.unfinished.most);
    assert_true(budgets.waiting.used <= budgets.waiting.most);
    assert_true(budgets.open.used <= budgets.open.most);
    assert_true(budgets.unsent.used <= budgets.unsent.most);
}

static void whatever_ends_a_call_gives_back_what_it_was_charged_with(void **state)
{
    (void)state;
    const char *text = getenv("AMPD_TEST_SEED");
    uint64_t seed = text != NULL ? strtoull(text, NULL, 10) : SEED;
    print_message("AMPD_TEST_SEED=%llu\n", (unsigned long long)seed);
    amp_random_init(&rolls, seed);
    now_ms = 1000;
    struct arpc_limits limits = arpc_limits_default;
    limits.unfinished = limits.waiting = limits.open = (int64_t)MOST;
    limits.unsent = (int64_t)MOST / 8;
    limits.unfinished_per_address = (int64_t)MOST / 2;
    arpc_memory_budgets_init(&budgets, &limits);
    for (size_t i = 0; i < HOSTS; i++)
        arpc_host_init(&hosts[i], &budgets, &limits, now_ms);
    for (size_t i = 0; i < SIDES; i++) {
        rpc_side_config(&sides[i].side, true, &now_ms);
        sides[i].side.config.admit_cb = admit;
        assert_int_equal(arpc_method_table_add(&sides[i].side.config.methods, methods, 3, NULL), 0);
        open_side(i);
    }
    uint64_t cut = 0;
    uint64_t crowded = 0;
    uint64_t unread = 0;
    for (size_t step = 0; step < STEPS; step++) {
        do_anything();
        look();
    }
    for (size_t i = 0; i < SIDES; i++) {
        close_side(i);
        cut += sides[i].side.config.abuses[ARPC_ABUSE_UNFINISHED] + sides[i].side.config.abuses[ARPC_ABUSE_WAITING];
        crowded += sides[i].side.config.abuses[ARPC_ABUSE_OPEN];
        unread += sides[i].side.config.abuses[ARPC_ABUSE_UNSENT];
        arpc_method_table_close(&sides[i].side.config.methods);
    }
    assert_int_equal(live_count, 0);
    assert_true(cut > 100 && crowded > 100 && unread > 10); /* the budgets were used up */
    assert_int_equal(budgets.unfinished.used + budgets.waiting.used + budgets.open.used + budgets.unsent.used, 0);
    assert_true(amp_list_empty(&budgets.unfinished.accounts) && amp_list_empty(&budgets.waiting.accounts) &&
                amp_list_empty(&budgets.open.accounts) && amp_list_empty(&budgets.unsent.accounts));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(whatever_ends_a_call_gives_back_what_it_was_charged_with)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
