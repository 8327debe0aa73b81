/* Bodies that are taken back while they wait, lie in a batch, or have left in part: the memory is free at once. */
#include "tests/unit/rpc_pair.h"

#include <stdlib.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
/* cmocka needs the headers above. */
#include <cmocka.h>

#define KIB         ((size_t)1 << 10)
#define MIB         ((size_t)1 << 20)
#define MESSAGE_MAX (4 * MIB)
#define CALLS_MAX   2

/* What the memory holds while it is lent, and what its owner writes to it afterwards. */
#define LENT  0xAA
#define LATER 0x55

/* What a client got: bytes by value, and how it ended. */
struct reader {
    size_t bytes[256];
    int messages;
    int closed;
    int status;
};

static struct rpc_pair pair;
static struct reader readers[CALLS_MAX];
static struct arpc_call *served[CALLS_MAX];
static size_t served_count;
static uint8_t *memory;
static int released;

static void on_started(struct arpc_call *call)
{
    served[served_count++] = arpc_call_ref(call);
}

static void ignore_closed(struct arpc_call *call, const struct arpc_result *result)
{
    (void)call;
    (void)result;
}

static const struct arpc_handler serving = {.started = on_started, .closed = ignore_closed};

static void on_bytes(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct reader *reader = arpc_call_user(call);
    for (size_t i = 0; i < size; i++)
        reader->bytes[data[i]]++;
}

static void on_end(struct arpc_call *call)
{
    struct reader *reader = arpc_call_user(call);
    reader->messages++;
}

static void on_closed(struct arpc_call *call, const struct arpc_result *result)
{
    struct reader *reader = arpc_call_user(call);
    reader->closed++;
    reader->status = result->status;
}

static const struct arpc_handler reading = {.message_bytes = on_bytes, .message_end = on_end, .closed = on_closed};

static void count_release(void *arg)
{
    ++*(int *)arg;
}

/* A pair with two streams that the server may write to. */
static int setup(void **state)
{
    static const struct arpc_method methods[] = {{"t.T", "Read", ARPC_BIDI, false, 0, MESSAGE_MAX, &serving}};
    (void)state;
    memset(readers, 0, sizeof readers);
    served_count = 0;
    released = 0;
    memory = malloc(MESSAGE_MAX);
    assert_non_null(memory);
    memset(memory, LENT, MESSAGE_MAX);
    rpc_pair_open(&pair, methods, 1);
    for (size_t i = 0; i < CALLS_MAX; i++) {
        (void)rpc_pair_call(&pair, "Read", &reading, &readers[i]);
        rpc_pair_run(&pair);
    }
    assert_int_equal(served_count, CALLS_MAX);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    int before = released;
    rpc_pair_close(&pair);
    assert_int_equal(released, before); /* each was given back by then */
    for (size_t i = 0; i < CALLS_MAX; i++)
        arpc_call_unref(served[i]);
    free(memory);
    return 0;
}

static void lend(size_t call, size_t size)
{
    assert_int_equal(arpc_call_send(served[call], NULL, 0, memory, size, count_release, &released), 0);
}

/* Takes the memory of a call back, and uses it for something else. */
static void take_back(size_t call, int lent)
{
    arpc_call_blank(served[call]);
    assert_int_equal(released, lent);
    memset(memory, LATER, MESSAGE_MAX);
}

/* Fills the server's batch. */
static void produce(void)
{
    while (arpc_link_flush(&pair.server.link))
        ;
    assert_int_equal(arpc_link_produce(&pair.server.link, &pair.server.batch), 0);
    assert_true(pair.server.batch.bytes > 0);
}

/* Gives the client `size` bytes of the batch from `from` on, as a socket would take them. */
static void leave(size_t from, size_t size)
{
    for (size_t i = 0; i < pair.server.batch.count && size > 0; i++) {
        const struct iovec *slot = &pair.server.batch.slots[i];
        size_t skip = from < slot->iov_len ? from : slot->iov_len;
        size_t part = slot->iov_len - skip < size ? slot->iov_len - skip : size;
        from -= skip;
        size -= part;
        if (part > 0)
            assert_int_equal(arpc_link_receive(&pair.client.link, (const uint8_t *)slot->iov_base + skip, part), 0);
    }
}

static void end_and_run(size_t call)
{
    arpc_call_finish(served[call], ARPC_STATUS_ABORTED, "taken back", NULL);
    rpc_pair_run(&pair);
    assert_int_equal(readers[call].closed, 1);
    assert_int_equal(readers[call].status, ARPC_STATUS_ABORTED);
    assert_int_equal(readers[call].bytes[LATER], 0);
}

static void bodies_that_wait_are_given_back_and_zeros_go_instead(void **state)
{
    (void)state;
    lend(0, 1000);
    lend(0, 700 * KIB);
    lend(0, 3);
    take_back(0, 3);
    end_and_run(0);
    assert_int_equal(readers[0].messages, 3);
    assert_int_equal(readers[0].bytes[0], 1000 + 700 * KIB + 3);
}

static void a_body_in_a_batch_is_given_back_at_once(void **state)
{
    (void)state;
    lend(0, MIB);
    produce();
    assert_int_equal(released, 0);
    take_back(0, 1);
    leave(0, pair.server.batch.bytes);
    arpc_batch_done(&pair.server.link, &pair.server.batch);
    end_and_run(0);
    assert_int_equal(readers[0].messages, 1);
    assert_int_equal(readers[0].bytes[0], MIB); /* the part that was not in the batch too */
    assert_int_equal(released, 1);
}

/* Wherever the socket stopped: what has left was good, zeros follow, and nothing of what comes later. */
static void a_body_that_has_left_in_part_goes_on_with_zeros(void **state)
{
    (void)state;
    static const size_t stops[] = {1, 9, 14, 15, 1000, 16 * KIB, 65 * KIB, 100 * KIB + 20};
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        if (i > 0) {
            assert_int_equal(teardown(NULL), 0);
            assert_int_equal(setup(NULL), 0);
        }
        lend(0, 50 * KIB);
        lend(0, 300 * KIB);
        produce();
        leave(0, stops[i]);
        size_t good = readers[0].bytes[LENT];
        assert_true(good <= stops[i] && stops[i] - good < 64);
        take_back(0, 2);
        leave(stops[i], pair.server.batch.bytes - stops[i]);
        arpc_batch_done(&pair.server.link, &pair.server.batch);
        end_and_run(0);
        assert_int_equal(readers[0].messages, 2);
        assert_int_equal(readers[0].bytes[LENT], good);
        assert_int_equal(readers[0].bytes[0], 350 * KIB - good);
    }
}

static void another_call_with_the_same_memory_keeps_its_bytes(void **state)
{
    (void)state;
    for (size_t i = 0; i < CALLS_MAX; i++) {
        lend(i, 40 * KIB);
        lend(i, 40 * KIB);
    }
    produce();
    arpc_call_blank(served[0]);
    assert_int_equal(released, 2);
    leave(0, pair.server.batch.bytes);
    arpc_batch_done(&pair.server.link, &pair.server.batch);
    assert_int_equal(released, 4);
    arpc_call_finish(served[1], ARPC_STATUS_OK, NULL, NULL);
    end_and_run(0);
    assert_int_equal(readers[0].bytes[0], 80 * KIB);
    assert_int_equal(readers[1].bytes[LENT], 80 * KIB);
    assert_int_equal(readers[1].status, ARPC_STATUS_OK);
}

static void copied_bytes_go_as_they_are(void **state)
{
    (void)state;
    assert_int_equal(arpc_call_send(served[0], memory, 100, memory, 20 * KIB, NULL, NULL), 0);
    assert_int_equal(arpc_call_send(served[0], memory, 10, memory, 20 * KIB, count_release, &released), 0);
    take_back(0, 1);
    end_and_run(0);
    assert_int_equal(readers[0].messages, 2);
    assert_int_equal(readers[0].bytes[LENT], 110 + 20 * KIB);
    assert_int_equal(readers[0].bytes[0], 20 * KIB);
}

static void what_is_sent_afterwards_is_not_blank(void **state)
{
    (void)state;
    lend(0, 10 * KIB);
    arpc_call_blank(served[0]);
    arpc_call_blank(served[0]);
    assert_int_equal(released, 1);
    lend(0, 5 * KIB);
    end_and_run(0);
    assert_int_equal(readers[0].bytes[0], 10 * KIB);
    assert_int_equal(readers[0].bytes[LENT], 5 * KIB);
    assert_int_equal(released, 2);
    arpc_call_blank(served[0]);
    assert_int_equal(released, 2);
}

static void a_call_that_is_gone_gives_back_what_a_batch_still_has(void **state)
{
    (void)state;
    lend(0, 100 * KIB);
    produce();
    arpc_call_cancel(served[0], ARPC_STATUS_CANCELLED, "over");
    arpc_link_abort(&pair.server.link, ARPC_STATUS_UNAVAILABLE, "lost");
    while (arpc_link_flush(&pair.server.link))
        ;
    assert_int_equal(served[0]->state, ARPC_CALL_GONE);
    assert_int_equal(released, 0);
    take_back(0, 1);
    for (size_t i = 0; i < pair.server.batch.count; i++) {
        const uint8_t *base = pair.server.batch.slots[i].iov_base;
        assert_true(base < memory || base >= memory + MESSAGE_MAX);
    }
    arpc_batch_done(&pair.server.link, &pair.server.batch);
    assert_int_equal(released, 1);
}

/* As when the core, told that one reader is done, takes the copy back from the others. */
static void blank_the_other(void *arg)
{
    count_release(arg);
    arpc_call_blank(served[1]);
}

static void a_release_callback_may_take_another_calls_memory_back(void **state)
{
    (void)state;
    lend(0, 10 * KIB);
    lend(0, 10 * KIB);
    assert_int_equal(arpc_call_send(served[0], NULL, 0, memory, 10 * KIB, blank_the_other, &released), 0);
    lend(0, 10 * KIB);
    lend(1, 10 * KIB);
    lend(1, 400 * KIB); /* more than its window: the rest waits */
    produce();
    leave(0, pair.server.batch.bytes);
    assert_int_equal(released, 0);
    arpc_batch_done(&pair.server.link, &pair.server.batch);
    assert_int_equal(released, 6);
    memset(memory, LATER, MESSAGE_MAX);
    end_and_run(0);
    end_and_run(1);
    assert_int_equal(readers[0].bytes[LENT], 40 * KIB);
    assert_int_equal(readers[1].bytes[LENT] + readers[1].bytes[0], 410 * KIB);
    assert_true(readers[1].bytes[LENT] > 0 && readers[1].bytes[0] > 0);
}

/* A stream of the sizes of a pull, cut by a batch at every turn: whichever part lies where, it is given back once. */
static void at_every_turn_of_a_long_stream_all_is_given_back_once(void **state)
{
    (void)state;
    for (size_t turns = 0; turns < 12; turns++) {
        if (turns > 0) {
            assert_int_equal(teardown(NULL), 0);
            assert_int_equal(setup(NULL), 0);
        }
        for (size_t i = 0; i < 8; i++)
            lend(i % CALLS_MAX, 256 * KIB);
        for (size_t i = 0; i < turns; i++) {
            (void)rpc_pair_carry(&pair, &pair.server, &pair.client);
            while (arpc_link_flush(&pair.client.link))
                ;
            (void)rpc_pair_carry(&pair, &pair.client, &pair.server);
        }
        while (arpc_link_flush(&pair.server.link))
            ;
        assert_int_equal(arpc_link_produce(&pair.server.link, &pair.server.batch), 0);
        arpc_call_blank(served[1]);
        take_back(0, 8);
        leave(0, pair.server.batch.bytes);
        arpc_batch_done(&pair.server.link, &pair.server.batch);
        end_and_run(0);
        end_and_run(1);
        for (size_t i = 0; i < CALLS_MAX; i++)
            assert_int_equal(readers[i].bytes[0] + readers[i].bytes[LENT], MIB);
        assert_int_equal(released, 8);
    }
}

int main(void)
{
#define WITH_PAIR(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
    const struct CMUnitTest tests[] = {
        WITH_PAIR(bodies_that_wait_are_given_back_and_zeros_go_instead),
        WITH_PAIR(a_body_in_a_batch_is_given_back_at_once),
        WITH_PAIR(a_body_that_has_left_in_part_goes_on_with_zeros),
        WITH_PAIR(another_call_with_the_same_memory_keeps_its_bytes),
        WITH_PAIR(copied_bytes_go_as_they_are),
        WITH_PAIR(what_is_sent_afterwards_is_not_blank),
        WITH_PAIR(a_call_that_is_gone_gives_back_what_a_batch_still_has),
        WITH_PAIR(a_release_callback_may_take_another_calls_memory_back),
        WITH_PAIR(at_every_turn_of_a_long_stream_all_is_given_back_once),
    };
    return cmocka_run_group_tests_name("test_rpc_blank", tests, NULL, NULL);
}
