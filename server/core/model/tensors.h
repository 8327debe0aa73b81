/*
 * The memory of one model on one shard: masters, moments, the two cast copies, the staging slots, buffers for blocks
 * that a checkpoint needs as they were, and the per-segment results of passes. Memory only: who may touch which block
 * when is decided by shard.c and push.c.
 */
#ifndef AMPD_TENSORS_H
#define AMPD_TENSORS_H

#include "amp/pass.h"
#include "base/list.h"
#include "server/core/model/copy_memory.h"
#include "server/core/model/layout.h"
#include "server/core/model/passes.h"
#include "storage/records.h"

#define AMPD_TENSOR_ALIGN 64 /* bytes: one cache line, one AVX-512 register */

/* Two copies: readers of version v are left alone while v + 1 is written (docs/step-protocol.md section 3). */
#define AMPD_COPIES 2

struct ampd_tensors {
    const struct ampd_layout *layout;
    uint64_t first, count; /* the blocks of this shard */
    uint32_t world_size;
    enum amp_dtype cast;
    unsigned moments; /* 0: neither m nor v; 1: m; 2: both */
    float *masters, *m, *v;
    uint8_t *copies[AMPD_COPIES];
    const struct ampd_copy_memory *copy_memory; /* where they come from; NULL: as all else */
    size_t copy_bytes;
    uint32_t *crcs[AMPD_COPIES]; /* [count] CRC32C of each block of the copy, */
    bool has_crcs[AMPD_COPIES];  /* where the jobs that wrote it have formed them: ampd_plan_copy */
    float *saved;                /* [saved_buffers] of block_elements of each tensor */
    uint32_t saved_buffers;
    uint8_t **slots;               /* [world_size], with room for fp32, whatever is pushed: ampd_tensors_stride */
    float *g;                      /* the gradient as voted on, for apply and the journal; NULL: apply forms it again */
    struct amp_pass_vote *votes;   /* by segment, from the first of this shard */
    struct amp_apply_stats *stats; /* likewise */
    uint64_t bytes;
    struct amp_list plans; /* all that are alive */
};

/* How many moments the optimizer of a checked specification keeps: 0; 1: m; 2: m and v. */
unsigned ampd_tensors_moments(const struct ampd_model_spec *spec);

/*
 * Bytes that a model of this layout takes on a shard with `count` blocks, of which `saved_percent` can be saved for a
 * checkpoint in the background.
 */
uint64_t ampd_tensors_bytes(const struct ampd_layout *layout, const struct ampd_model_spec *spec, uint64_t count,
                            unsigned saved_percent);

/* Allocates all of it; masters and moments are zero. copy_memory may be NULL. AMP_ENOMEM: *tensors is empty. */
int ampd_tensors_init(struct ampd_tensors *tensors, const struct ampd_layout *layout,
                      const struct ampd_model_spec *spec, uint64_t first, uint64_t count, unsigned saved_percent,
                      const struct ampd_copy_memory *copy_memory);

/* Frees everything, plans that jobs still hold included: no job may run any more. */
void ampd_tensors_close(struct ampd_tensors *tensors);

/* Bytes from block to block in a slot with values of that dtype: no gaps, so that huge pages are filled. Any thread. */
size_t ampd_tensors_stride(const struct ampd_tensors *tensors, enum amp_dtype dtype);

/* The tensors of a block of this shard, and of a buffer for a saved one. Any thread. */
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
    bool equal_weights;
    float coefficient;
    float clip_value; /* 0: off */
    bool squares;
    unsigned copy; /* index of the copy that is written (not by a vote), */
    bool crcs;     /* with the CRC32C of each block */
    /* apply alone */
    bool saturate;
    const struct ampd_model_spec *spec;
    struct amp_apply applies[AMPD_GROUPS_MAX];
    bool given;            /* g is in memory, from the journal: the slots hold nothing */
    uint8_t *given_absent; /* bit per parameter: absent from all; owned */
    uint32_t inputs_count;
    struct ampd_plan_input inputs[]; /* ascending ranks */
};

/* A plan with room for `inputs_count` inputs and one reference, or NULL when memory is out. */
struct ampd_plan *ampd_plan_new(struct ampd_tensors *tensors, uint32_t inputs_count);

/* The jobs of the plan will write this copy, and form its CRCs or not. */
void ampd_plan_copy(struct ampd_plan *plan, unsigned copy, bool crcs);

/* Drops a reference; the last one frees the plan and its absent lists. NULL is allowed. */
void ampd_plan_unref(struct ampd_plan *plan);

#endif
