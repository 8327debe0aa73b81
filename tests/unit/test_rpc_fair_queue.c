/* Who may use how much of a turn of the loop, with the time given. */
#include "rpc/io/fair_queue.h"

/* cmocka.h needs these three. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#define MS 1000000

static struct arpc_fair_queue queue;
static struct arpc_flow calm;
static struct arpc_flow busy[100];
static int64_t now_ns;

/* A crowd: one connection that has been there long enough to be calm, and a hundred new ones. */
static int setup(void **state)
{
    (void)state;
    now_ns = 1000 * MS;
    arpc_fair_queue_init(&queue, now_ns);
    arpc_flow_init(&calm, now_ns);
    now_ns += 1000 * MS;
    for (size_t i = 0; i < 100; i++)
        arpc_flow_init(&busy[i], now_ns);
    return 0;
}

/* One turn in which every one of the first `count` busy connections would read for so long; how many did. */
static unsigned turn(size_t count, int64_t each_ns)
{
    unsigned read = 0;
    for (size_t i = 0; i < count; i++) {
        while (arpc_fair_queue_may_read(&queue, &busy[i], now_ns)) {
            now_ns += each_ns;
            arpc_fair_queue_read(&queue, &busy[i], each_ns, now_ns, false);
            read++;
        }
    }
    arpc_fair_queue_turn(&queue, now_ns);
    return read;
}

static void a_new_connection_is_busy_and_calm_after_a_tenth_of_a_second(void **state)
{
    (void)state;
    assert_false(arpc_fair_queue_pump_first(&queue, &busy[0], now_ns));
    busy[0].unpumped = false;
    assert_false(arpc_fair_queue_pump_first(&queue, &busy[0], now_ns + 95 * MS));
    busy[0].unpumped = false;
    assert_true(arpc_fair_queue_pump_first(&queue, &busy[0], now_ns + 100 * MS));
}

static void all_busy_connections_together_take_no_more_than_the_budget_of_a_turn(void **state)
{
    (void)state;
    for (int i = 0; i < 50; i++) {
        int64_t begin_ns = now_ns;
        turn(100, 7000);
        assert_in_range(now_ns - begin_ns, ARPC_FAIR_BUDGET_NS - 7000, ARPC_FAIR_BUDGET_NS + 7000);
    }
}

static void every_busy_connection_reads_before_one_reads_its_next_slice(void **state)
{
    (void)state;
    int64_t before[100];
    for (int i = 0; i < 110; i++)
        turn(100, ARPC_FAIR_SLICE_NS); /* the first round's slices are those of one reader */
    for (size_t i = 0; i < 100; i++)
        before[i] = busy[i].credit_ns;
    for (int i = 0; i < 100; i++) {
        int64_t most = 0;
        int64_t least = INT64_MAX;
        turn(100, ARPC_FAIR_SLICE_NS);
        for (size_t k = 0; k < 100; k++) {
            int64_t paid = before[k] - busy[k].credit_ns;
            most = paid > most ? paid : most;
            least = paid < least ? paid : least;
        }
        assert_in_range(most - least, 0,
                        2 * ARPC_FAIR_SLICE_NS); /* counting began within a round, and ends within one */
    }
}

/* ---- addresses ---- */

static struct arpc_flow_group crowded, lonely;
static struct arpc_flow alone;

/* A hundred busy connections of one address, and one of another, which is new too. */
static void two_addresses(void)
{
    crowded = lonely = (struct arpc_flow_group){0};
    arpc_flow_init(&alone, now_ns);
    arpc_flow_join(&alone, &lonely);
    for (size_t i = 0; i < 100; i++)
        arpc_flow_join(&busy[i], &crowded);
}

static int64_t reads(struct arpc_flow *flow, int64_t each_ns)
{
    int64_t took_ns = 0;
    while (arpc_fair_queue_may_read(&queue, flow, now_ns)) {
        now_ns += each_ns;
        took_ns += each_ns;
        arpc_fair_queue_read(&queue, flow, each_ns, now_ns, false);
    }
    return took_ns;
}

static void who_comes_alone_reads_as_much_as_a_crowd_of_one_address(void **state)
{
    (void)state;
    two_addresses();
    int64_t crowd_ns = 0;
    int64_t alone_ns = 0;
    for (int i = 0; i < 200; i++) {
        for (size_t k = 0; k < 100; k++)
            crowd_ns += reads(&busy[k], 5000);
        alone_ns += reads(&alone, 5000);
        arpc_fair_queue_turn(&queue, now_ns);
    }
    assert_in_range(alone_ns * 100 / (alone_ns + crowd_ns), 45, 55);
    assert_true(crowd_ns + alone_ns > (int64_t)200 * ARPC_FAIR_BUDGET_NS * 9 / 10);
}

static void what_an_address_does_not_want_others_have(void **state)
{
    (void)state;
    two_addresses();
    int64_t took_ns = 0;
    for (int i = 0; i < 200; i++) {
        for (size_t k = 0; k < 100; k++)
            took_ns += reads(&busy[k], 5000);
        if (i % 10 == 0 && arpc_fair_queue_may_read(&queue, &alone, now_ns))
            arpc_fair_queue_read(&queue, &alone, 1000, now_ns, true);
        arpc_fair_queue_turn(&queue, now_ns);
    }
    /* It is waited for in a turn here and there, which then is a short one. */
    assert_true(took_ns > (int64_t)200 * ARPC_FAIR_BUDGET_NS * 3 / 4);
}

static void within_an_address_every_connection_has_its_slice(void **state)
{
    (void)state;
    two_addresses();
    int64_t before[100];
    for (int i = 0; i < 700; i++) {
        if (i == 300)
            for (size_t k = 0; k < 100; k++)
                before[k] = busy[k].credit_ns = -1; /* busy, and far from the floor of debts */
        for (size_t k = 0; k < 100; k++)
            (void)reads(&busy[k], ARPC_FAIR_SLICE_NS);
        (void)reads(&alone, ARPC_FAIR_SLICE_NS);
        arpc_fair_queue_turn(&queue, now_ns);
    }
    int64_t most = 0;
    int64_t least = INT64_MAX;
    for (size_t k = 0; k < 100; k++) {
        int64_t paid = before[k] - busy[k].credit_ns;
        most = paid > most ? paid : most;
        least = paid < least ? paid : least;
    }
    assert_true(least > 0);
    assert_in_range(most - least, 0, 2 * ARPC_FAIR_SLICE_NS);
}

/* Pumps as the turn does: those whose address has time left, then whoever waits. What each took. */
static void pumps(size_t count, int64_t each_ns, int64_t *crowd_ns, int64_t *alone_ns)
{
    for (int second = 0; second < 2; second++) {
        for (size_t k = 0; k <= count; k++) {
            struct arpc_flow *flow = k < count ? &busy[k] : &alone;
            if (second ? !arpc_fair_queue_may_pump(&queue) : !arpc_fair_queue_pump_next(&queue, flow))
                continue;
            int64_t most_ns = arpc_fair_queue_pump_ns(&queue, flow);
            int64_t took_ns = each_ns < most_ns ? each_ns : most_ns;
            now_ns += took_ns;
            arpc_fair_queue_pumped(&queue, flow, took_ns, now_ns, true);
            *(k < count ? crowd_ns : alone_ns) += took_ns;
        }
    }
    arpc_fair_queue_turn(&queue, now_ns);
}

static void who_comes_alone_is_pumped_in_each_turn_beside_a_crowd_of_one_address(void **state)
{
    (void)state;
    two_addresses();
    int64_t crowd_ns = 0;
    int64_t alone_ns = 0;
    pumps(100, 50000, &crowd_ns, &alone_ns); /* how many there are is not known yet */
    crowd_ns = alone_ns = 0;
    for (int i = 0; i < 100; i++) {
        int64_t before_ns = alone_ns;
        pumps(100, 50000, &crowd_ns, &alone_ns);
        assert_true(alone_ns > before_ns);
    }
    assert_true(crowd_ns > (int64_t)100 * ARPC_FAIR_BUDGET_NS / 3);
    alone_ns = 0;
    for (int i = 0; i < 10; i++)
        pumps(0, 500000, &crowd_ns, &alone_ns); /* nobody else wants any: the whole budget is there */
    assert_true(alone_ns > (int64_t)9 * ARPC_FAIR_BUDGET_NS / 2);
}

static void a_calm_connection_reads_whatever_the_busy_ones_took(void **state)
{
    (void)state;
    for (int i = 0; i < 100; i++) {
        turn(100, ARPC_FAIR_SLICE_NS);
        for (size_t k = 0; k < 100 && arpc_fair_queue_may_pump(&queue); k++)
            arpc_fair_queue_pumped(&queue, &busy[k], 50000, now_ns, false);
        assert_false(arpc_fair_queue_may_pump(&queue));
        assert_true(arpc_fair_queue_may_read(&queue, &calm, now_ns));
        arpc_fair_queue_read(&queue, &calm, 20000, now_ns, true);
        assert_true(arpc_fair_queue_pump_first(&queue, &calm, now_ns));
        arpc_fair_queue_pumped(&queue, &calm, 20000, now_ns, false);
    }
}

static void who_waits_earns_nothing_and_who_wants_nothing_does(void **state)
{
    (void)state;
    arpc_fair_queue_read(&queue, &busy[0], 1000, now_ns, false);
    int64_t owed_ns = busy[0].credit_ns;
    now_ns += 1000 * MS;
    assert_true(arpc_fair_queue_may_read(&queue, &busy[0], now_ns));
    assert_int_equal(busy[0].credit_ns, owed_ns);
    arpc_fair_queue_read(&queue, &busy[0], 1000, now_ns, true);
    now_ns += 30 * MS;
    assert_true(arpc_fair_queue_may_read(&queue, &busy[0], now_ns));
    assert_int_equal(busy[0].credit_ns, owed_ns - 1000 + 10 * MS);
}

static void a_crowd_of_calm_ones_waits_as_busy_ones_do(void **state)
{
    (void)state;
    now_ns += 1000 * MS; /* all are calm now */
    turn(100, 50000);
    for (size_t i = 0; i < 100; i++)
        arpc_flow_init(&busy[i], now_ns);
    now_ns += 1000 * MS;
    arpc_fair_queue_turn(&queue, now_ns);
    int64_t begin_ns = now_ns;
    turn(100, 50000);
    assert_in_range(now_ns - begin_ns, ARPC_FAIR_CALM_NS, ARPC_FAIR_CALM_NS + ARPC_FAIR_ALONE_NS + (int64_t)2 * 50000);
}

static void a_debt_has_a_floor_and_savings_have_a_ceiling(void **state)
{
    (void)state;
    for (int i = 0; i < 1000; i++)
        arpc_fair_queue_read(&queue, &busy[0], 10 * MS, now_ns, false);
    assert_int_equal(busy[0].credit_ns, -ARPC_FAIR_DEBT_NS);
    assert_true(arpc_fair_queue_pump_first(&queue, &calm, now_ns + (int64_t)1000000 * MS));
    assert_int_equal(calm.credit_ns, ARPC_FAIR_CREDIT_NS);
}

static void one_that_is_alone_has_longer_turns_until_another_comes(void **state)
{
    (void)state;
    turn(1, 10000);
    now_ns += 21 * MS;
    arpc_fair_queue_turn(&queue, now_ns);
    assert_true(arpc_fair_queue_alone(&queue, now_ns));
    int64_t begin_ns = now_ns;
    turn(1, 10000);
    turn(1, 10000);
    assert_in_range(now_ns - begin_ns, ARPC_FAIR_ALONE_NS, 2 * ARPC_FAIR_ALONE_NS);
    arpc_fair_queue_read(&queue, &calm, 1000, now_ns, true);
    arpc_fair_queue_turn(&queue, now_ns);
    assert_int_equal(queue.budget_ns, ARPC_FAIR_BUDGET_NS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_new_connection_is_busy_and_calm_after_a_tenth_of_a_second, setup),
        cmocka_unit_test_setup(all_busy_connections_together_take_no_more_than_the_budget_of_a_turn, setup),
        cmocka_unit_test_setup(every_busy_connection_reads_before_one_reads_its_next_slice, setup),
        cmocka_unit_test_setup(who_comes_alone_reads_as_much_as_a_crowd_of_one_address, setup),
        cmocka_unit_test_setup(what_an_address_does_not_want_others_have, setup),
        cmocka_unit_test_setup(within_an_address_every_connection_has_its_slice, setup),
        cmocka_unit_test_setup(who_comes_alone_is_pumped_in_each_turn_beside_a_crowd_of_one_address, setup),
        cmocka_unit_test_setup(a_calm_connection_reads_whatever_the_busy_ones_took, setup),
        cmocka_unit_test_setup(who_waits_earns_nothing_and_who_wants_nothing_does, setup),
        cmocka_unit_test_setup(a_crowd_of_calm_ones_waits_as_busy_ones_do, setup),
        cmocka_unit_test_setup(a_debt_has_a_floor_and_savings_have_a_ceiling, setup),
        cmocka_unit_test_setup(one_that_is_alone_has_longer_turns_until_another_comes, setup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
