/*
 * Sums whose order is fixed by names, never by arrival: binary trees over an index.
 *
 * A leaf has a global index (of its block, or of its parameter). Node (level, i) covers the indices [i * 2^level,
 * (i + 1) * 2^level). Its value is left + right; where only one child holds leaves, that child's value; where none
 * does, it is absent. The value of the whole depends on the set of leaves alone: not on who adds them, not on how
 * shards cut the range, as long as each part is a whole node (docs/numerics.md).
 */
#ifndef AMP_REDUCE_H
#define AMP_REDUCE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A path from leaf to root has at most one pending node per bit of the index. */
#define AMP_TREE_DEPTH 65

/* Maximal aligned nodes in any range of 64-bit indices. */
#define AMP_TREE_PARTS_MAX 128

/* A sum under way; plain memory, may be copied. */
struct amp_tree {
    unsigned depth;
    uint64_t index[AMP_TREE_DEPTH]; /* a leaf below each pending node */
    double sum[AMP_TREE_DEPTH];
};

/* An aligned node: the indices [first, first + 2^level). */
struct amp_tree_part {
    uint64_t first;
    unsigned level;
};

/* The sum of no leaf. */
void amp_tree_init(struct amp_tree *tree);

/*
 * Adds a leaf, or the sum of the leaves of a whole aligned node that begins at `index` (as a shard sends it). Indices
 * rise strictly: the caller goes through shards, blocks or parameters in order.
 */
void amp_tree_add(struct amp_tree *tree, uint64_t index, double value);

/* The sum of what was added; 0 if nothing was. */
double amp_tree_sum(const struct amp_tree *tree);

/*
 * Cuts [first, end) into maximal aligned nodes, in order, into parts[AMP_TREE_PARTS_MAX]; returns their number, at most
 * 2 * log2(end - first) + 2. A shard calls it with the blocks of one parameter that it owns and sends one sum for each.
 */
size_t amp_tree_parts(uint64_t first, uint64_t end, struct amp_tree_part *parts);

/* The 16 lanes of a segment's sum of squares, folded 16 -> 8 -> 4 -> 2 -> 1. */
double amp_tree_lanes(const double lanes[16]);

#ifdef __cplusplus
}
#endif

#endif
