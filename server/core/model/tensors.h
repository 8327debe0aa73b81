/*
 * The memory of one model on one shard: masters, moments, the two cast copies, the staging slots, buffers for blocks
 * that a checkpoint needs as they were, and the per-segment results of passes. Memory only: who may touch which block
 * when is decided by shard.c and push.c.
 */
#ifndef AMPD_TENSORS_H
#define AMPD_TENSORS_H

#include "amp/pass.h"
#include "base/list.h"
#include "server/core/model/model_memory.h"
#include "server/core/model/layout.h"
#include "server/core/model/passes.h"
#include "storage/records.h"

#define AMPD_TENSOR_ALIGN 64 /* bytes: one cache line, one AVX-512 register */

/* The memory that ampd_large_memory is for. Smaller pieces take less than 0.1 ms to free, about what a task costs. */
#define AMPD_LARGE_BYTES ((size_t)1 << 20)

/* Two copies: readers of version v are left alone while v + 1 is written (docs/step-protocol.md section 3). */
#define AMPD_COPIES 2

struct ampd_tensors {
    const struct ampd_layout *layout;
    uint64_t first, count; /* the blocks of this shard */
    uint32_t world_size;
    enum amp_dtype cast;                        /* of the copies */
    unsigned moments;                           /* 0: neither m nor v; 1: m; 2: both */
    float *masters, *m, *v;                     /* [count * block_elements]; m, v: NULL where there is none */
    uint8_t *copies[AMPD_COPIES];               /* even and odd versions of the cast masters */
    const struct ampd_copy_memory *copy_memory; /* where the copies come from; NULL: from where all else does */
    size_t copy_bytes;                          /* of each copy */
    uint32_t *crcs[AMPD_COPIES];                /* [count] CRC32C of each block of the copy */
    bool has_crcs[AMPD_COPIES]; /* the jobs that wrote the copy have formed its checksums (ampd_plan_copy) */
    float *saved;               /* [saved_buffers] buffers: block_elements of each tensor, for blocks of a checkpoint */
    uint32_t saved_buffers;
    uint8_t **slots; /* [world_size] with room for fp32, whatever is pushed; blocks are ampd_tensors_stride apart */
    float *g; /* the gradient as voted on, for apply and the journal; NULL: apply forms it again from the slots */
    struct amp_pass_vote *votes;   /* [segments of this shard] results of vote passes */
    struct amp_apply_stats *stats; /* [segments of this shard] results of casts */
    uint64_t bytes;                /* of all of this together */
    struct amp_list plans;         /* ampd_plan.node: all plans that are alive */
};

/* How many moments the optimizer of a checked specification keeps. 0: none; 1: m; 2: m and v. */
unsigned ampd_tensors_moments(const struct ampd_model_spec *spec);

/*
 * Bytes that a model of this layout takes on a shard with `count` blocks, with buffers to save `saved_percent` of them
 * for a checkpoint in the background (AMPD_CHECKPOINT_MEMORY).
 */
uint64_t ampd_tensors_bytes(const struct ampd_layout *layout, const struct ampd_model_spec *spec, uint64_t count,
                            unsigned saved_percent);

/* Allocates all of it; masters and moments are zero. copy_memory may be NULL. AMP_ENOMEM: *tensors is empty. */
int ampd_tensors_init(struct ampd_tensors *tensors, const struct ampd_layout *layout,
                      const struct ampd_model_spec *spec, uint64_t first, uint64_t count, unsigned saved_percent,
                      const struct ampd_copy_memory *copy_memory);

/*
 * Frees everything, plans that jobs still hold included: no job may run any more. Tensors and slots of AMPD_LARGE_BYTES
 * and more are given to `large`, if that is not NULL and has a callback.
 */
void ampd_tensors_close(struct ampd_tensors *tensors, const struct ampd_large_memory *large);

/*
 * Replaces each copy that a worker may have mapped by a new one, which holds nothing yet: what is mapped then stays as
 * it is. Without copy_memory no copy can be mapped. AMP_ENOMEM: nothing has changed.
 */
int ampd_tensors_renew_copies(struct ampd_tensors *tensors);

/* Bytes from block to block in a slot with values of that dtype: no gaps, so that huge pages are filled. Any thread. */
size_t ampd_tensors_stride(const struct ampd_tensors *tensors, enum amp_dtype dtype);

/* The tensors of a block of this shard (a global index), and those of a buffer for a saved block. Any thread. */
struct ampd_tensor_view ampd_tensors_block(const struct ampd_tensors *tensors, uint64_t block);
struct ampd_tensor_view ampd_tensors_saved(const struct ampd_tensors *tensors, uint32_t place);

/* The first segment of this shard: votes and stats are indexed from it. */
uint64_t ampd_tensors_segment_base(const struct ampd_tensors *tensors);

/* One contribution as jobs see it. Written before the first job that reads it is handed out. */
struct ampd_plan_input {
    uint32_t rank;
    struct ampd_incarnation incarnation;
    enum amp_dtype dtype;
    float weight;
    uint8_t *absent; /* bit per parameter, or NULL: none is absent; owned by the plan */
};

/* What all jobs of one try or one apply share. */
struct ampd_plan {
    struct amp_list node; /* among the tensors' plans */
    uint32_t refs;        /* the owner's and one for each job that is out; touched by the core's thread alone */
    struct ampd_tensors *tensors;
    struct ampd_vote_terms terms;
    unsigned copy; /* apply, cast: index of the copy that is written */
    bool crcs;     /* apply, cast: the CRC32C of each block of the copy is formed, too */
    bool saturate; /* apply, cast: values beyond the cast's range become its largest finite value */
    const struct ampd_model_spec *spec;        /* apply: the model's */
    struct amp_apply applies[AMPD_GROUPS_MAX]; /* apply: scalars of each group of parameters */
    bool given;                                /* apply: g is in memory, from the journal; the slots hold nothing */
    uint8_t *given_absent; /* given: bit per parameter that is absent from all contributors; owned */
    uint32_t inputs_count;
    struct ampd_plan_input inputs[]; /* [inputs_count] ascending ranks */
};

/* A zeroed plan with room for `inputs_count` inputs and one reference, the caller's. NULL when memory is out. */
struct ampd_plan *ampd_plan_new(struct ampd_tensors *tensors, uint32_t inputs_count);

/* The jobs of the plan will write this copy, and form its CRCs or not; before the first of them is handed out. */
void ampd_plan_copy(struct ampd_plan *plan, unsigned copy, bool crcs);

/* Drops a reference; the last one frees the plan and its absent lists. NULL is allowed. */
void ampd_plan_unref(struct ampd_plan *plan);

#endif
