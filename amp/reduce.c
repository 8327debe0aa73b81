/*
 * Trees over an index, summed from left to right with a stack.
 *
 * Two neighbours A < B of the leaves in hand meet in the node whose level is the number of bits of A xor B. When a leaf
 * C comes, everything to its left that meets below the node where the last leaf and C meet is complete and is summed.
 * What is left on the stack has levels that fall from bottom to top, so one pass from the top ends the sum.
 */
#include "amp/reduce.h"

#include "base/assert.h"

/* The level of the node where two different leaves meet, less one: the highest bit in which they differ. */
static unsigned meet(uint64_t a, uint64_t b)
{
    return 63u - (unsigned)__builtin_clzll(a ^ b);
}

void amp_tree_init(struct amp_tree *tree)
{
    tree->depth = 0;
}

/* Joins the two topmost nodes; the right one's index goes on to name the node: all its leaves meet C at one level. */
static void join(struct amp_tree *tree)
{
    unsigned top = tree->depth - 1;
    tree->sum[top - 1] = tree->sum[top - 1] + tree->sum[top];
    tree->index[top - 1] = tree->index[top];
    tree->depth--;
}

void amp_tree_add(struct amp_tree *tree, uint64_t index, double value)
{
    if (tree->depth > 0) {
        AMP_ASSERT(index > tree->index[tree->depth - 1]);
        unsigned level = meet(tree->index[tree->depth - 1], index);
        while (tree->depth > 1 && meet(tree->index[tree->depth - 2], tree->index[tree->depth - 1]) < level)
            join(tree);
    }
    AMP_ASSERT(tree->depth < AMP_TREE_DEPTH);
    tree->index[tree->depth] = index;
    tree->sum[tree->depth] = value;
    tree->depth++;
}

double amp_tree_sum(const struct amp_tree *tree)
{
    if (tree->depth == 0)
        return 0;
    double sum = tree->sum[tree->depth - 1];
    for (unsigned i = tree->depth - 1; i > 0; i--)
        sum = tree->sum[i - 1] + sum;
    return sum;
}

size_t amp_tree_parts(uint64_t first, uint64_t end, struct amp_tree_part *parts)
{
    size_t n = 0;
    while (first < end) {
        /* As large as its alignment and the room behind it allow. */
        unsigned level = first == 0 ? 63 : (unsigned)__builtin_ctzll(first);
        unsigned room = 63u - (unsigned)__builtin_clzll(end - first);
        if (level > room)
            level = room;
        AMP_ASSERT(n < AMP_TREE_PARTS_MAX);
        parts[n++] = (struct amp_tree_part){.first = first, .level = level};
        first += UINT64_C(1) << level;
    }
    return n;
}

double amp_tree_lanes(const double lanes[16])
{
    double sum[16];
    for (unsigned i = 0; i < 16; i++)
        sum[i] = lanes[i];
    for (unsigned half = 8; half > 0; half /= 2)
        for (unsigned i = 0; i < half; i++)
            sum[i] = sum[i] + sum[i + half];
    return sum[0];
}
