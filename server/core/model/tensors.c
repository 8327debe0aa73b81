#include "server/core/model/tensors.h"

#include "base/assert.h"
#include "base/large.h"
#include "server/core/model/spec.h"

#include <stdlib.h>
#include <string.h>

/*
 * Aligned memory on calloc and malloc, which ask the kernel for pages of large blocks and touch none of them:
 * CreateModel runs on the control loop, and zeroing gigabytes there would outlast leases. The first touch is the
 * compute threads'. Right before the aligned memory lie the pointer that malloc gave and the number of bytes.
 */
struct allocation {
    void *raw;
    size_t bytes;
};

/* malloc aligns to 16, so that there is always room for it before the next multiple of AMPD_TENSOR_ALIGN. */
_Static_assert(sizeof(struct allocation) <= 16, "it lies between malloc's pointer and the aligned one");

static void *align(void *raw, uint64_t bytes)
{
    if (raw == NULL)
        return NULL;
    amp_large_advise(raw, bytes);
    uintptr_t at = ((uintptr_t)raw + AMPD_TENSOR_ALIGN) / AMPD_TENSOR_ALIGN * AMPD_TENSOR_ALIGN;
    ((struct allocation *)at)[-1] = (struct allocation){raw, bytes};
    return (void *)at;
}

static void *alloc_zeroed(uint64_t bytes)
{
    return align(calloc(1, bytes + AMPD_TENSOR_ALIGN), bytes);
}

/* Not zeroed: every byte is written before it is read. */
static void *alloc_raw(uint64_t bytes)
{
    return align(malloc(bytes + AMPD_TENSOR_ALIGN), bytes);
}

static void free_aligned(void *memory, const struct ampd_large_memory *large)
{
    if (memory == NULL)
        return;
    struct allocation own = ((struct allocation *)memory)[-1];
    if (large != NULL && large->free_cb != NULL && own.bytes >= AMPD_LARGE_BYTES)
        large->free_cb(large->arg, own.raw, own.bytes);
    else
        free(own.raw);
}

unsigned ampd_tensors_moments(const struct ampd_model_spec *spec)
{
    struct amp_optim_config config = ampd_spec_optim(spec);
    return amp_optim_config_moments(&config);
}

/* Whether votes keep g: for the journal, or since apply is quicker from it. */
static bool keeps_g(const struct ampd_model_spec *spec)
{
    return spec->durability == AMPD_DURABILITY_STEP || spec->world_size >= AMP_PASS_KEEP_G;
}

/* Bytes of a model for each element, apart from the buffers for saved blocks; slots for fp32. */
static uint64_t bytes_each(const struct ampd_model_spec *spec)
{
    return 4 * (1 + ampd_tensors_moments(spec)) + AMPD_COPIES * amp_dtype_size(spec->cast) +
           sizeof(float) * spec->world_size;
}

/* Bytes of masters and moments of one block. */
static uint64_t state_bytes(const struct ampd_layout *layout, unsigned moments)
{
    return layout->block_elements * sizeof(float) * (1 + moments);
}

/* How many buffers for saved blocks there are on a shard with `count` blocks. */
static uint32_t saved_count(uint64_t count, unsigned percent)
{
    uint64_t places = count * percent / 100;
    return places == 0 && count > 0 ? 1 : (uint32_t)places;
}

uint64_t ampd_tensors_bytes(const struct ampd_layout *layout, const struct ampd_model_spec *spec, uint64_t count,
                            unsigned saved_percent)
{
    uint64_t elements = count * layout->block_elements;
    return elements * (bytes_each(spec) + (keeps_g(spec) ? sizeof(float) : 0)) +
           saved_count(count, saved_percent) * state_bytes(layout, ampd_tensors_moments(spec)) +
           layout->segments_count * (sizeof(struct amp_pass_vote) + sizeof(struct amp_apply_stats));
}

static float *at(float *base, uint64_t index)
{
    return base == NULL ? NULL : base + index;
}

struct ampd_tensor_view ampd_tensors_block(const struct ampd_tensors *tensors, uint64_t block)
{
    uint64_t index = (block - tensors->first) * tensors->layout->block_elements;
    return (struct ampd_tensor_view){at(tensors->masters, index), at(tensors->m, index), at(tensors->v, index)};
}

struct ampd_tensor_view ampd_tensors_saved(const struct ampd_tensors *tensors, uint32_t place)
{
    AMP_ASSERT(place < tensors->saved_buffers);
    uint64_t size = tensors->layout->block_elements;
    float *masters = tensors->saved + place * size * (1 + tensors->moments);
    return (struct ampd_tensor_view){masters, tensors->moments >= 1 ? masters + size : NULL,
                                     tensors->moments >= 2 ? masters + 2 * size : NULL};
}

size_t ampd_tensors_stride(const struct ampd_tensors *tensors, enum amp_dtype dtype)
{
    return (size_t)tensors->layout->block_elements * amp_dtype_size(dtype);
}

uint64_t ampd_tensors_segment_base(const struct ampd_tensors *tensors)
{
    return tensors->layout->block_segments[tensors->first];
}

static int alloc_slots(struct ampd_tensors *tensors, uint64_t elements)
{
    tensors->slots = calloc(tensors->world_size, sizeof *tensors->slots);
    if (tensors->slots == NULL)
        return AMP_ENOMEM;
    for (uint32_t r = 0; r < tensors->world_size; r++) {
        tensors->slots[r] = alloc_raw(elements * sizeof(float));
        if (tensors->slots[r] == NULL)
            return AMP_ENOMEM;
    }
    return 0;
}

static uint8_t *new_copy(const struct ampd_tensors *tensors)
{
    const struct ampd_copy_memory *from = tensors->copy_memory;
    return from != NULL ? from->new_cb(from->arg, tensors->copy_bytes, NULL) : alloc_zeroed(tensors->copy_bytes);
}

static void free_copy(const struct ampd_tensors *tensors, uint8_t *copy, const struct ampd_large_memory *large)
{
    if (tensors->copy_memory == NULL)
        free_aligned(copy, large);
    else if (copy != NULL)
        tensors->copy_memory->free_cb(tensors->copy_memory->arg, copy, tensors->copy_bytes);
}

int ampd_tensors_init(struct ampd_tensors *tensors, const struct ampd_layout *layout,
                      const struct ampd_model_spec *spec, uint64_t first, uint64_t count, unsigned saved_percent,
                      const struct ampd_copy_memory *copy_memory)
{
    uint64_t elements = count * layout->block_elements;
    *tensors = (struct ampd_tensors){.layout = layout,
                                     .first = first,
                                     .count = count,
                                     .world_size = spec->world_size,
                                     .cast = spec->cast,
                                     .copy_memory = copy_memory,
                                     .copy_bytes = (size_t)(elements * amp_dtype_size(spec->cast)),
                                     .moments = ampd_tensors_moments(spec),
                                     .bytes = ampd_tensors_bytes(layout, spec, count, saved_percent)};
    amp_list_init(&tensors->plans);
    tensors->masters = alloc_zeroed(elements * sizeof(float));
    bool ok = tensors->masters != NULL;
    tensors->saved_buffers = saved_count(count, saved_percent);
    /* Untouched until a checkpoint meets an apply: the kernel gives no page before. */
    ok = (tensors->saved = alloc_raw(tensors->saved_buffers * state_bytes(layout, tensors->moments))) != NULL && ok;
    if (tensors->moments >= 1)
        ok = (tensors->m = alloc_zeroed(elements * sizeof(float))) != NULL && ok;
    if (tensors->moments >= 2)
        ok = (tensors->v = alloc_zeroed(elements * sizeof(float))) != NULL && ok;
    for (unsigned c = 0; c < AMPD_COPIES; c++) {
        ok = (tensors->copies[c] = new_copy(tensors)) != NULL && ok;
        ok = (tensors->crcs[c] = calloc(count + 1, sizeof(uint32_t))) != NULL && ok;
    }
    if (keeps_g(spec))
        ok = (tensors->g = alloc_zeroed(elements * sizeof(float))) != NULL && ok;
    uint64_t segments = layout->block_segments[first + count] - layout->block_segments[first];
    ok = (tensors->votes = calloc(segments + 1, sizeof *tensors->votes)) != NULL && ok;
    ok = (tensors->stats = calloc(segments + 1, sizeof *tensors->stats)) != NULL && ok;
    if (ok && alloc_slots(tensors, elements) == 0)
        return 0;
    ampd_tensors_close(tensors, NULL);
    return AMP_ENOMEM;
}

static void plan_free(struct ampd_plan *plan)
{
    amp_list_remove(&plan->node);
    for (uint32_t i = 0; i < plan->inputs_count; i++)
        free(plan->inputs[i].absent);
    free(plan->given_absent);
    free(plan);
}

void ampd_tensors_close(struct ampd_tensors *tensors, const struct ampd_large_memory *large)
{
    while (tensors->plans.next != NULL && !amp_list_empty(&tensors->plans))
        plan_free(AMP_CONTAINER(tensors->plans.next, struct ampd_plan, node));
    free_aligned(tensors->masters, large);
    free_aligned(tensors->m, large);
    free_aligned(tensors->v, large);
    free_aligned(tensors->g, large);
    free_aligned(tensors->saved, large);
    for (unsigned c = 0; c < AMPD_COPIES; c++) {
        free_copy(tensors, tensors->copies[c], large);
        free(tensors->crcs[c]);
    }
    for (uint32_t r = 0; tensors->slots != NULL && r < tensors->world_size; r++)
        free_aligned(tensors->slots[r], large);
    free(tensors->slots);
    free(tensors->votes);
    free(tensors->stats);
    *tensors = (struct ampd_tensors){0};
}

int ampd_tensors_renew_copies(struct ampd_tensors *tensors)
{
    const struct ampd_copy_memory *from = tensors->copy_memory;
    uint8_t *copies[AMPD_COPIES];
    bool ok = true;
    for (unsigned c = 0; from != NULL && c < AMPD_COPIES; c++)
        ok = (copies[c] = from->new_cb(from->arg, tensors->copy_bytes, tensors->copies[c])) != NULL && ok;
    for (unsigned c = 0; from != NULL && c < AMPD_COPIES; c++) {
        if (copies[c] == tensors->copies[c])
            continue;
        free_copy(tensors, ok ? tensors->copies[c] : copies[c], NULL);
        if (ok)
            tensors->copies[c] = copies[c];
    }
    return ok ? 0 : AMP_ENOMEM;
}

struct ampd_plan *ampd_plan_new(struct ampd_tensors *tensors, uint32_t inputs_count)
{
    struct ampd_plan *plan = calloc(1, sizeof *plan + inputs_count * sizeof plan->inputs[0]);
    if (plan == NULL)
        return NULL;
    amp_list_push(&tensors->plans, &plan->node);
    plan->refs = 1;
    plan->tensors = tensors;
    plan->inputs_count = inputs_count;
    return plan;
}

void ampd_plan_copy(struct ampd_plan *plan, unsigned copy, bool crcs)
{
    AMP_ASSERT(copy < AMPD_COPIES);
    plan->copy = copy;
    plan->crcs = crcs;
    plan->tensors->has_crcs[copy] = crcs;
}

void ampd_plan_unref(struct ampd_plan *plan)
{
    if (plan == NULL)
        return;
    AMP_ASSERT(plan->refs > 0);
    if (--plan->refs == 0)
        plan_free(plan);
}
