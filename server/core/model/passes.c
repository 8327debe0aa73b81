/*
 * The passes of a step over one block, segment by segment (docs/step-protocol.md section 4, docs/numerics.md).
 *
 * A contribution is left out of a segment's sum where its parameter is absent from that worker. Until all trailers are
 * here that is not known, and a block may be voted on with the zeros that the worker sent instead: the sums of squares
 * are the same, since +0 and -0 have the same square. A block that has an absent parameter of its own is voted on again
 * once the lists are final (shard.c), so that what such bytes hold never matters.
 */
#include "server/core/model/passes.h"

#include "amp/copy.h"
#include "amp/pass.h"
#include "base/assert.h"
#include "base/crc32c.h"
#include "server/core/model/layout.h"
#include "server/core/model/tensors.h"

#include <string.h>

static bool bit(const uint8_t *bits, uint32_t i)
{
    return (bits[i / 8] >> (i % 8) & 1) != 0;
}

static bool present(const struct ampd_job *job, uint32_t rank)
{
    return (job->present[rank / 64] >> (rank % 64) & 1) != 0;
}

/* The contributions to one segment, in rank order; returns how many. */
static unsigned gather_inputs(const struct ampd_job *job, const struct ampd_segment *segment, struct amp_input *inputs)
{
    const struct ampd_plan *plan = job->plan;
    const struct ampd_tensors *tensors = plan->tensors;
    uint64_t local = job->block - tensors->first;
    unsigned count = 0;
    for (uint32_t i = 0; i < plan->inputs_count; i++) {
        const struct ampd_plan_input *input = &plan->inputs[i];
        if (!present(job, input->rank))
            continue;
        if ((job->work & AMPD_JOB_ABSENT) != 0 && input->absent != NULL && bit(input->absent, segment->parameter))
            continue;
        const uint8_t *block = tensors->slots[input->rank] + local * ampd_tensors_stride(tensors, input->dtype);
        inputs[count++] = (struct amp_input){.data = block + segment->offset * amp_dtype_size(input->dtype),
                                             .dtype = input->dtype,
                                             .weight = input->weight};
    }
    return count;
}

static struct amp_pass_in pass_in(const struct ampd_vote_terms *terms, const struct ampd_segment *segment,
                                  const struct amp_input *inputs, unsigned inputs_count)
{
    return (struct amp_pass_in){.count = segment->count,
                                .inputs = inputs,
                                .inputs_count = inputs_count,
                                .equal_weights = terms->equal_weights,
                                .coefficient = terms->coefficient,
                                .clip_value_set = terms->clip_value > 0,
                                .clip_value = terms->clip_value,
                                .squares = terms->squares};
}

/* Moments are NULL where the optimizer has none, and g where it is not kept. */
static float *at(float *base, uint64_t index)
{
    return base == NULL ? NULL : base + index;
}

static void vote_segment(const struct ampd_job *job, const struct amp_kernels *kernels,
                         const struct ampd_segment *segment, struct amp_pass_vote *vote)
{
    struct amp_input inputs[AMPD_WORLD_MAX];
    unsigned count = gather_inputs(job, segment, inputs);
    *vote = (struct amp_pass_vote){.sum_first = UINT64_MAX, .range_first = UINT64_MAX};
    if (count == 0)
        return;
    const struct ampd_tensors *tensors = job->plan->tensors;
    uint64_t index = (job->block - tensors->first) * tensors->layout->block_elements + segment->offset;
    struct amp_pass_in in = pass_in(&job->plan->terms, segment, inputs, count);
    amp_pass_vote(kernels, &in, at(tensors->g, index), vote);
}

static void apply_segment(const struct ampd_job *job, const struct amp_kernels *kernels,
                          const struct ampd_segment *segment, struct amp_apply_stats *stats)
{
    const struct ampd_plan *plan = job->plan;
    const struct ampd_tensors *tensors = plan->tensors;
    uint64_t index = (job->block - tensors->first) * tensors->layout->block_elements + segment->offset;
    void *cast = tensors->copies[plan->copy] + index * amp_dtype_size(tensors->cast);
    struct amp_input inputs[AMPD_WORLD_MAX];
    unsigned count = (job->work & AMPD_JOB_APPLY) != 0 ? gather_inputs(job, segment, inputs) : 0;
    *stats = (struct amp_apply_stats){0};
    const struct amp_apply *apply =
        plan->spec == NULL ? NULL : &plan->applies[plan->spec->parameters[segment->parameter].group];
    bool given = (job->work & AMPD_JOB_GIVEN) != 0 && !bit(plan->given_absent, segment->parameter);
    if (given || (count > 0 && tensors->g != NULL)) {
        amp_pass_apply_g(kernels, segment->count, tensors->g + index, apply, tensors->masters + index,
                         at(tensors->m, index), at(tensors->v, index), cast, stats);
        return;
    }
    if (count == 0) { /* absent from all, or only the copy is asked for: master and moments stay */
        amp_pass_cast(kernels, segment->count, tensors->masters + index, tensors->cast, plan->saturate, cast, stats);
        return;
    }
    struct amp_pass_in in = pass_in(&plan->terms, segment, inputs, count);
    amp_pass_apply(kernels, &in, apply, tensors->masters + index, at(tensors->m, index), at(tensors->v, index), cast,
                   stats);
}

/* Past the caches, which have the block itself for apply; the writer comes to the copy much later. */
static void save_block(const struct ampd_tensors *tensors, uint64_t block, uint32_t place)
{
    struct ampd_tensor_view from = ampd_tensors_block(tensors, block), to = ampd_tensors_saved(tensors, place);
    size_t bytes = (size_t)ampd_layout_block_elements(tensors->layout, block) * sizeof(float);
    amp_copy_streamed(to.masters, from.masters, bytes);
    if (to.m != NULL)
        amp_copy_streamed(to.m, from.m, bytes);
    if (to.v != NULL)
        amp_copy_streamed(to.v, from.v, bytes);
}

static void reset_block(const struct ampd_tensors *tensors, uint64_t block)
{
    uint64_t index = (block - tensors->first) * tensors->layout->block_elements;
    size_t bytes = (size_t)ampd_layout_block_elements(tensors->layout, block) * sizeof(float);
    if (tensors->m != NULL)
        memset(tensors->m + index, 0, bytes);
    if (tensors->v != NULL)
        memset(tensors->v + index, 0, bytes);
}

static void form_crc(const struct ampd_tensors *tensors, unsigned copy, uint64_t block)
{
    uint64_t local = block - tensors->first;
    size_t size = amp_dtype_size(tensors->cast);
    tensors->crcs[copy][local] = amp_crc32c(0, tensors->copies[copy] + local * tensors->layout->block_elements * size,
                                            ampd_layout_block_elements(tensors->layout, block) * size);
}

void ampd_job_run(const struct ampd_job *job, const struct amp_kernels *kernels)
{
    const struct ampd_tensors *tensors = job->plan->tensors;
    uint64_t base = tensors->layout->block_segments[job->block] - ampd_tensors_segment_base(tensors);
    uint32_t count;
    const struct ampd_segment *segments = ampd_layout_block(tensors->layout, job->block, &count);
    if ((job->work & AMPD_JOB_SAVE) != 0)
        save_block(tensors, job->block, job->saved);
    if ((job->work & AMPD_JOB_RESET) != 0)
        reset_block(tensors, job->block);
    if ((job->work & AMPD_JOB_VOTE) != 0) {
        for (uint32_t i = 0; i < count; i++)
            vote_segment(job, kernels, &segments[i], &tensors->votes[base + i]);
    }
    if ((job->work & (AMPD_JOB_APPLY | AMPD_JOB_CAST)) != 0) {
        for (uint32_t i = 0; i < count; i++)
            apply_segment(job, kernels, &segments[i], &tensors->stats[base + i]);
        if (job->plan->crcs)
            form_crc(tensors, job->plan->copy, job->block);
    }
}

static struct ampd_segment_count count_of(const struct ampd_segment *segment, const struct amp_check *check)
{
    return (struct ampd_segment_count){.parameter = segment->parameter,
                                       .inf_count = check->inf_count,
                                       .nan_count = check->nan_count,
                                       .first_index = check->first,
                                       .largest = check->largest};
}

/* Sets the pad elements of a block to zero. */
static void clear_pad(const struct ampd_layout *layout, uint64_t block, size_t size, uint8_t *bytes)
{
    uint32_t count, end = 0; /* end: of the segment before */
    const struct ampd_segment *segments = ampd_layout_block(layout, block, &count);
    for (uint32_t i = 0; i < count; i++) {
        memset(bytes + end * size, 0, (segments[i].offset - end) * size);
        end = segments[i].offset + segments[i].count;
    }
    memset(bytes + end * size, 0, (ampd_layout_block_elements(layout, block) - end) * size);
}

uint32_t ampd_receive_block(const struct ampd_layout *layout, uint64_t block, enum amp_dtype dtype, void *data,
                            const struct amp_kernels *kernels, struct ampd_segment_count *counts)
{
    size_t size = amp_dtype_size(dtype);
    uint8_t *bytes = data;
    uint32_t count;
    const struct ampd_segment *segments = ampd_layout_block(layout, block, &count);
    for (uint32_t i = 0; i < count; i++) {
        const struct ampd_segment *segment = &segments[i];
        struct amp_check check = AMP_CHECK_INIT;
        kernels->check[dtype](bytes + segment->offset * size, segment->count, segment->first, &check);
        counts[i] = count_of(segment, &check);
    }
    clear_pad(layout, block, size, bytes);
    return count;
}

uint32_t ampd_take_block(const struct ampd_layout *layout, uint64_t block, enum amp_dtype dtype, const void *from,
                         void *to, const struct amp_kernels *kernels, const struct ampd_vote_terms *terms,
                         struct ampd_segment_count *counts, struct amp_pass_vote *votes)
{
    size_t size = amp_dtype_size(dtype);
    if (terms == NULL) {
        memcpy(to, from, ampd_layout_block_elements(layout, block) * size);
        return ampd_receive_block(layout, block, dtype, to, kernels, counts);
    }
    uint32_t count;
    const struct ampd_segment *segments = ampd_layout_block(layout, block, &count);
    for (uint32_t i = 0; i < count; i++) {
        const struct ampd_segment *segment = &segments[i];
        size_t at = segment->offset * size;
        struct amp_check check = AMP_CHECK_INIT;
        struct amp_input input = {(const uint8_t *)from + at, dtype, 1};
        struct amp_pass_in in = pass_in(terms, segment, &input, 1);
        amp_pass_take(kernels, &in, (uint8_t *)to + at, segment->first, &check, &votes[i]);
        counts[i] = count_of(segment, &check);
    }
    clear_pad(layout, block, size, to);
    return count;
}
