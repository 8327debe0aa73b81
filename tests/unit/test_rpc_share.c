/* The shares of a loop's turn, with the time given. */
#include "rpc/io/share.h"

/* cmocka.h needs these three. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define MS 1000000

static struct arpc_shares shares;
static struct arpc_share calm;
static struct arpc_share busy[100];
static int64_t now_ns;

/* A crowd: one connection that has been there long enough to be calm, and a hundred new ones. */
static int setup(void **state)
{
    (void)state;
    now_ns = 1000 * MS;
    arpc_shares_init(&shares, now_ns);
    arpc_share_init(&calm, now_ns);
    now_ns += 1000 * MS;
    for (size_t i = 0; i < 100; i++)
        arpc_share_init(&busy[i], now_ns);
    return 0;
}

/* One turn in which every one of the first `count` busy connections would read for so long; how many did. */
static unsigned turn(size_t count, int64_t each_ns)
{
    unsigned read = 0;
    for (size_t i = 0; i < count; i++) {
        while (arpc_shares_may_read(&shares, &busy[i], now_ns)) {
            now_ns += each_ns;
            arpc_shares_read(&shares, &busy[i], each_ns, now_ns, false);
            read++;
        }
    }
    arpc_shares_turn(&shares, now_ns);
    return read;
}

static void a_new_connection_is_busy_and_calm_after_a_tenth_of_a_second(void **state)
{
    (void)state;
    assert_false(arpc_shares_pump_first(&shares, &busy[0], now_ns));
    busy[0].unpumped = false;
    assert_false(arpc_shares_pump_first(&shares, &busy[0], now_ns + 95 * MS));
    busy[0].unpumped = false;
    assert_true(arpc_shares_pump_first(&shares, &busy[0], now_ns + 100 * MS));
}

static void all_busy_connections_together_take_no_more_than_the_budget_of_a_turn(void **state)
{
    (void)state;
    for (int i = 0; i < 50; i++) {
        int64_t begin_ns = now_ns;
        turn(100, 7000);
        assert_in_range(now_ns - begin_ns, ARPC_SHARE_BUDGET_NS - 7000, ARPC_SHARE_BUDGET_NS + 7000);
    }
}

static void every_busy_connection_reads_before_one_reads_its_next_slice(void **state)
{
    (void)state;
    turn(100, ARPC_SHARE_SLICE_NS); /* the first round's slices are those of one reader */
    for (int round = 0; round < 3; round++) {
        int64_t most = 0;
        int64_t least = INT64_MAX;
        int64_t before[100];
        for (size_t i = 0; i < 100; i++)
            before[i] = busy[i].credit_ns;
        for (uint64_t number = shares.round; shares.round == number;)
            (void)turn(100, ARPC_SHARE_SLICE_NS);
        for (size_t i = 0; i < 100; i++) {
            int64_t paid = before[i] - busy[i].credit_ns;
            most = paid > most ? paid : most;
            least = paid < least ? paid : least;
        }
        if (round == 0)
            continue; /* it may have begun before this test counted */
        assert_int_equal(least, ARPC_SHARE_SLICE_NS);
        assert_int_equal(most, ARPC_SHARE_SLICE_NS);
    }
}

static void a_calm_connection_reads_whatever_the_busy_ones_took(void **state)
{
    (void)state;
    for (int i = 0; i < 100; i++) {
        turn(100, ARPC_SHARE_SLICE_NS);
        for (size_t k = 0; k < 100 && arpc_shares_may_pump(&shares); k++)
            arpc_shares_pumped(&shares, &busy[k], 50000, now_ns, false);
        assert_false(arpc_shares_may_pump(&shares));
        assert_true(arpc_shares_may_read(&shares, &calm, now_ns));
        arpc_shares_read(&shares, &calm, 20000, now_ns, true);
        assert_true(arpc_shares_pump_first(&shares, &calm, now_ns));
        arpc_shares_pumped(&shares, &calm, 20000, now_ns, false);
    }
}

static void who_waits_earns_nothing_and_who_wants_nothing_does(void **state)
{
    (void)state;
    arpc_shares_read(&shares, &busy[0], 1000, now_ns, false);
    int64_t owed_ns = busy[0].credit_ns;
    now_ns += 1000 * MS;
    assert_true(arpc_shares_may_read(&shares, &busy[0], now_ns));
    assert_int_equal(busy[0].credit_ns, owed_ns);
    arpc_shares_read(&shares, &busy[0], 1000, now_ns, true);
    now_ns += 30 * MS;
    assert_true(arpc_shares_may_read(&shares, &busy[0], now_ns));
    assert_int_equal(busy[0].credit_ns, owed_ns - 1000 + 10 * MS);
}

static void a_crowd_of_calm_ones_waits_as_busy_ones_do(void **state)
{
    (void)state;
    now_ns += 1000 * MS; /* all are calm now */
    turn(100, 50000);
    for (size_t i = 0; i < 100; i++)
        arpc_share_init(&busy[i], now_ns);
    now_ns += 1000 * MS;
    arpc_shares_turn(&shares, now_ns);
    int64_t begin_ns = now_ns;
    turn(100, 50000);
    assert_in_range(now_ns - begin_ns, ARPC_SHARE_CALM_NS,
                    ARPC_SHARE_CALM_NS + ARPC_SHARE_ALONE_NS + (int64_t)2 * 50000);
}

static void a_debt_has_a_floor_and_savings_have_a_ceiling(void **state)
{
    (void)state;
    for (int i = 0; i < 1000; i++)
        arpc_shares_read(&shares, &busy[0], 10 * MS, now_ns, false);
    assert_int_equal(busy[0].credit_ns, -ARPC_SHARE_DEBT_NS);
    assert_true(arpc_shares_pump_first(&shares, &calm, now_ns + (int64_t)1000000 * MS));
    assert_int_equal(calm.credit_ns, ARPC_SHARE_CREDIT_NS);
}

static void one_that_is_alone_has_longer_turns_until_another_comes(void **state)
{
    (void)state;
    turn(1, 10000);
    now_ns += 21 * MS;
    arpc_shares_turn(&shares, now_ns);
    assert_true(arpc_shares_alone(&shares, now_ns));
    int64_t begin_ns = now_ns;
    turn(1, 10000);
    turn(1, 10000);
    assert_in_range(now_ns - begin_ns, ARPC_SHARE_ALONE_NS, 2 * ARPC_SHARE_ALONE_NS);
    arpc_shares_read(&shares, &calm, 1000, now_ns, true);
    arpc_shares_turn(&shares, now_ns);
    assert_int_equal(shares.budget_ns, ARPC_SHARE_BUDGET_NS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_new_connection_is_busy_and_calm_after_a_tenth_of_a_second, setup),
        cmocka_unit_test_setup(all_busy_connections_together_take_no_more_than_the_budget_of_a_turn, setup),
        cmocka_unit_test_setup(every_busy_connection_reads_before_one_reads_its_next_slice, setup),
        cmocka_unit_test_setup(a_calm_connection_reads_whatever_the_busy_ones_took, setup),
        cmocka_unit_test_setup(who_waits_earns_nothing_and_who_wants_nothing_does, setup),
        cmocka_unit_test_setup(a_crowd_of_calm_ones_waits_as_busy_ones_do, setup),
        cmocka_unit_test_setup(a_debt_has_a_floor_and_savings_have_a_ceiling, setup),
        cmocka_unit_test_setup(one_that_is_alone_has_longer_turns_until_another_comes, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
