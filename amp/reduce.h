/*
 * Sums of doubles whose order of additions is fixed by the index of each term, not by the order of arrival: binary
 * trees over an index. A tree is used by one thread at a time; no function allocates.
 *
 * A leaf has a global index (of its block, or of its parameter). Node (level, i) covers the indices [i * 2^level,
 * (i + 1) * 2^level). Its value is left + right; if only one child has leaves below it, that child's value; if none
 * has, it is absent. So the root depends only on the set of leaves, and not on how shards divide the range, as long as
 * each shard sends whole nodes (docs/numerics.md section 4).
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

/* A partial sum: a stack of pending nodes. Plain memory, which may be copied. */
struct amp_tree {
    unsigned depth;                 /* number of pending nodes */
    uint64_t index[AMP_TREE_DEPTH]; /* the index of a leaf below each of them */
    double sum[AMP_TREE_DEPTH];     /* their values */
};

/* An aligned node: the indices [first, first + 2^level). */
struct amp_tree_part {
    uint64_t first;
    unsigned level;
};

/* Begins a sum without a leaf. */
void amp_tree_init(struct amp_tree *tree);

/*
 * Adds a leaf, or the value of a whole aligned node that begins at `index`, as a shard sends it. Each index must be
 * higher than the one before: the caller goes through shards, blocks or parameters in order.
 */
void amp_tree_add(struct amp_tree *tree, uint64_t index, double value);

/* The value of the root; 0 if nothing was added. The tree does not change. */
double amp_tree_sum(const struct amp_tree *tree);

/*
 * Divides [first, end) into maximal aligned nodes, in ascending order, into parts[AMP_TREE_PARTS_MAX]; returns their
 * number, at most 2 * log2(end - first) + 2. A shard calls it with the blocks that it owns of one parameter, and sends
 * one sum for each node.
 */
size_t amp_tree_parts(uint64_t first, uint64_t end, struct amp_tree_part *parts);

/* The sum of a segment's 16 lanes, folded 16 -> 8 -> 4 -> 2 -> 1. */
double amp_tree_lanes(const double lanes[16]);

#ifdef __cplusplus
}
#endif

#endif
