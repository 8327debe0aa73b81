/*
 * The passes over blocks that the compute threads of the I/O layer run: functions from the memory of a model to the
 * memory of a model, one block each, without other state.
 *
 * A job names one block of one model and what to do with it. Jobs that are out at the same time touch
 * different blocks, or only read; so any number of threads may run any jobs in any order and the result has
 * the same bits. The core hands out no job whose memory a stream may still write or read.
 */
#ifndef AMPD_PASSES_H
#define AMPD_PASSES_H

#include "amp/dtype.h"
#include "server/core/model/layout.h"
#include "storage/records.h"

#include <stdbool.h>
#include <stdint.h>

struct amp_kernels;   /* amp/kernels.h */
struct amp_pass_vote; /* amp/pass.h */
struct ampd_plan;     /* what all jobs of one try or one apply share (tensors.h): for the core and ampd_job_run alone */

/* Tensors of consecutive blocks, from the first block's first element on. m, v: NULL if the optimizer has none. */
struct ampd_tensor_view {
    float *masters, *m, *v;
};

/* What a job does with its block; several bits may be set. SAVE and RESET come before what writes over the block. */
enum ampd_job_work {
    AMPD_JOB_VOTE = 1,  /* sum, test and square the contributions */
    AMPD_JOB_APPLY = 2, /* the optimizer's step, and the cast copy of the next version */
    AMPD_JOB_CAST = 4,  /* the cast copy of the masters as they are */
    AMPD_JOB_SAVE = 8,  /* masters and moments as they are go to a buffer (tensors.h): a checkpoint still needs them */
    AMPD_JOB_ABSENT = 16, /* (with VOTE, APPLY) the lists of absent parameters are final: leave those out */
    AMPD_JOB_RESET = 32,  /* moments become zero, whatever a checkpoint that could not be used has left there */
    AMPD_JOB_GIVEN = 64,  /* (with APPLY) g is in memory, from the journal: it is not formed from slots */
};

/* One unit of compute. Copied freely; given back whole in AMPD_EVENT_JOB_DONE. */
struct ampd_job {
    uint32_t model;                        /* index */
    uint32_t work;                         /* ampd_job_work bits */
    uint32_t saved;                        /* SAVE: index of the buffer that the block is copied to */
    uint64_t block;                        /* global index */
    uint64_t token;                        /* names the job in the core */
    uint64_t present[AMPD_WORLD_MAX / 64]; /* bit r: rank r pushed this block; else it counts as zero */
    struct ampd_plan *plan;                /* lives until the job is given back */
};

/* Does the work of one job. Any thread; writes only memory that the core set aside for it. */
void ampd_job_run(const struct ampd_job *job, const struct amp_kernels *kernels);

/* What is not finite in a received segment: counted at once, while it is in cache. */
struct ampd_segment_count {
    uint32_t parameter;
    uint64_t inf_count, nan_count;
    uint64_t first_index; /* the first element of the parameter that is not finite; UINT64_MAX: none */
    float largest;        /* largest finite magnitude of the segment; 0 if there is none */
};

/*
 * Checks a received block in place: sets pad elements to zero, and writes each segment's counts to `counts` (room for
 * layout->segments_max entries), in the order of the segments. Returns how many segments the block has. For pushes of
 * any dtype and, as AMP_F32, for Load. Any thread that owns the block's memory.
 */
uint32_t ampd_receive_block(const struct ampd_layout *layout, uint64_t block, enum amp_dtype dtype, void *data,
                            const struct amp_kernels *kernels, struct ampd_segment_count *counts);

/* All that a vote depends on, besides the contributions. */
struct ampd_vote_terms {
    bool equal_weights; /* every weight is 1 and multiplies nothing */
    float coefficient;  /* f of docs/step-protocol.md section 4 */
    float clip_value;   /* clip by value; 0: off */
    bool squares;       /* the optimizer squares g, so that g must stay below 2^63 */
};

/*
 * Copies a block from memory that another process may write meanwhile to `to`, which the caller owns, and checks the
 * copy as ampd_receive_block does. With `terms`, of equal weights, it also votes on it: `votes` (room for
 * layout->segments_max entries) gets what a vote pass finds that has this contribution alone. NULL: `votes` is
 * unchanged. Each element is read once, so that counts and votes are those of the copy. Returns how many segments the
 * block has. Any thread.
 */
uint32_t ampd_take_block(const struct ampd_layout *layout, uint64_t block, enum amp_dtype dtype, const void *from,
                         void *to, const struct amp_kernels *kernels, const struct ampd_vote_terms *terms,
                         struct ampd_segment_count *counts, struct amp_pass_vote *votes);

#endif
