/* Trees over an index: against the recursive definition, and cut into shards everywhere. */
#include "amp/reduce.h"
#include "base/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#define LEAVES 40

/* docs/numerics.md section 4 in its own words: the value of the node that covers [first, first + 2^level). */
static bool node(const double *leaf, const bool *present, uint64_t first, unsigned level, double *value)
{
    if (first >= LEAVES)
        return false;
    if (level == 0) {
        *value = leaf[first];
        return present[first];
    }
    double left, right;
    bool has_left = node(leaf, present, first, level - 1, &left);
    bool has_right = node(leaf, present, first + (UINT64_C(1) << (level - 1)), level - 1, &right);
    *value = has_left && has_right ? left + right : has_left ? left : right;
    return has_left || has_right;
}

static void fill(struct amp_random *random, double *leaf)
{
    for (size_t i = 0; i < LEAVES; i++)
        leaf[i] = amp_random_unit(random) * (i % 3 ? 1 : 1e6);
}

static void assert_same(double a, double b)
{
    assert_memory_equal(&a, &b, sizeof a);
}

static void sum_is_that_of_the_recursive_definition(void **state)
{
    struct amp_random random;
    amp_random_init(&random, 3);
    for (unsigned round = 0; round < 2000; round++) {
        double leaf[LEAVES];
        bool present[LEAVES];
        fill(&random, leaf);
        struct amp_tree tree;
        amp_tree_init(&tree);
        for (size_t i = 0; i < LEAVES; i++) {
            present[i] = amp_random_below(&random, 1 + round % 4) == 0;
            if (present[i])
                amp_tree_add(&tree, i, leaf[i]);
        }
        double expected;
        if (!node(leaf, present, 0, 6, &expected))
            expected = 0;
        assert_same(amp_tree_sum(&tree), expected);
    }
}

/* What a shard sends for its blocks of the parameter, added by the coordinator. */
static void add_shard(struct amp_tree *all, const double *leaf, uint64_t first, uint64_t end)
{
    struct amp_tree_part parts[AMP_TREE_PARTS_MAX];
    size_t n = amp_tree_parts(first, end, parts);
    for (size_t i = 0; i < n; i++) {
        struct amp_tree tree;
        amp_tree_init(&tree);
        for (uint64_t j = 0; j < UINT64_C(1) << parts[i].level; j++)
            amp_tree_add(&tree, parts[i].first + j, leaf[parts[i].first + j]);
        amp_tree_add(all, parts[i].first, amp_tree_sum(&tree));
    }
}

static void sum_does_not_depend_on_where_shards_cut(void **state)
{
    struct amp_random random;
    amp_random_init(&random, 4);
    double leaf[LEAVES];
    fill(&random, leaf);
    for (uint64_t first = 0; first < LEAVES; first += 3) {
        for (uint64_t end = first + 1; end <= LEAVES; end++) {
            struct amp_tree whole;
            amp_tree_init(&whole);
            for (uint64_t i = first; i < end; i++)
                amp_tree_add(&whole, i, leaf[i]);
            for (uint64_t cut = first; cut <= end; cut++) {
                struct amp_tree two, three;
                amp_tree_init(&two);
                amp_tree_init(&three);
                add_shard(&two, leaf, first, cut);
                add_shard(&two, leaf, cut, end);
                uint64_t second = cut + (end - cut) / 2;
                add_shard(&three, leaf, first, cut);
                add_shard(&three, leaf, cut, second);
                add_shard(&three, leaf, second, end);
                assert_same(amp_tree_sum(&two), amp_tree_sum(&whole));
                assert_same(amp_tree_sum(&three), amp_tree_sum(&whole));
            }
        }
    }
}

static void parts_cover_the_range_with_aligned_nodes_and_few(void **state)
{
    struct amp_tree_part parts[AMP_TREE_PARTS_MAX];
    for (uint64_t first = 0; first < 70; first++) {
        for (uint64_t end = first; end < 140; end++) {
            size_t n = amp_tree_parts(first, end, parts);
            uint64_t next = first;
            unsigned log2 = 0;
            while (UINT64_C(2) << log2 <= end - first)
                log2++;
            for (size_t i = 0; i < n; i++) {
                assert_int_equal(parts[i].first, next);
                assert_int_equal(parts[i].first % (UINT64_C(1) << parts[i].level), 0);
                next += UINT64_C(1) << parts[i].level;
            }
            assert_int_equal(next, end);
            assert_true(n <= 2 * log2 + 2);
        }
    }
    assert_true(amp_tree_parts(1, UINT64_MAX, parts) <= AMP_TREE_PARTS_MAX);
}

static void the_sum_of_nothing_is_zero(void **state)
{
    struct amp_tree tree;
    amp_tree_init(&tree);
    assert_same(amp_tree_sum(&tree), 0);
}

static void indices_far_apart_are_added_in_order(void **state)
{
    struct amp_tree tree;
    amp_tree_init(&tree);
    amp_tree_add(&tree, 0, 1);
    for (unsigned i = 0; i < 64; i++)
        amp_tree_add(&tree, UINT64_C(1) << i, 1);
    amp_tree_add(&tree, UINT64_MAX, 1);
    assert_same(amp_tree_sum(&tree), 66);
}

static void lanes_fold_from_sixteen_by_halves(void **state)
{
    double lanes[16] = {0};
    lanes[0] = 1e16;
    lanes[1] = 1;
    lanes[8] = -1e16;
    lanes[9] = 2;
    /* 0 meets 8 first, so that nothing is lost. */
    assert_same(amp_tree_lanes(lanes), 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sum_is_that_of_the_recursive_definition),
        cmocka_unit_test(sum_does_not_depend_on_where_shards_cut),
        cmocka_unit_test(parts_cover_the_range_with_aligned_nodes_and_few),
        cmocka_unit_test(the_sum_of_nothing_is_zero),
        cmocka_unit_test(indices_far_apart_are_added_in_order),
        cmocka_unit_test(lanes_fold_from_sixteen_by_halves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
