#include "server/core/model/layout.h"

#include "base/assert.h"

#include <stdlib.h>

/* Elements of one parameter: the product of its shape. The specification must have been checked. Any thread. */
static uint64_t parameter_elements(const struct ampd_parameter_spec *parameter)
{
    uint64_t elements = 1;
    for (uint32_t d = 0; d < parameter->dimensions; d++)
        elements *= parameter->shape[d];
    return elements;
}

static uint64_t round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

/* Segments of all blocks: each parameter has one for each block that it touches. */
static uint64_t count_segments(const struct ampd_layout *layout)
{
    uint64_t count = 0;
    for (uint32_t p = 0; p < layout->parameters; p++) {
        uint64_t first = layout->starts[p] / layout->block_elements;
        uint64_t last = (layout->starts[p] + layout->sizes[p] - 1) / layout->block_elements;
        count += last - first + 1;
    }
    return count;
}

static void cut_segments(struct ampd_layout *layout)
{
    uint64_t n = 0;
    uint64_t block = 0;
    for (uint32_t p = 0; p < layout->parameters; p++) {
        for (uint64_t done = 0; done < layout->sizes[p];) {
            uint64_t at = layout->starts[p] + done;
            while (block < at / layout->block_elements)
                layout->block_segments[++block] = n;
            uint64_t room = layout->block_elements - at % layout->block_elements;
            uint64_t count = layout->sizes[p] - done < room ? layout->sizes[p] - done : room;
            layout->segments[n++] = (struct ampd_segment){.parameter = p,
                                                          .offset = (uint32_t)(at % layout->block_elements),
                                                          .count = (uint32_t)count,
                                                          .first = done};
            done += count;
        }
    }
    AMP_ASSERT(n == layout->segments_count);
    while (block < layout->blocks)
        layout->block_segments[++block] = n;
    for (uint64_t b = 0; b < layout->blocks; b++) {
        uint64_t count = layout->block_segments[b + 1] - layout->block_segments[b];
        if (count > layout->segments_max)
            layout->segments_max = (uint32_t)count;
    }
}

int ampd_layout_new(const struct ampd_model_spec *spec, uint64_t block_elements, struct ampd_layout **layout)
{
    AMP_ASSERT(block_elements > 0 && block_elements % AMPD_ALIGN_ELEMENTS == 0);
    *layout = NULL;
    struct ampd_layout *made = calloc(1, sizeof *made);
    if (made == NULL)
        return AMP_ENOMEM;
    made->block_elements = block_elements;
    made->parameters = spec->parameters_count;
    made->starts = calloc(spec->parameters_count, sizeof *made->starts);
    made->sizes = calloc(spec->parameters_count, sizeof *made->sizes);
    if (made->starts == NULL || made->sizes == NULL)
        goto fail;
    for (uint32_t p = 0; p < spec->parameters_count; p++) {
        made->starts[p] = made->elements;
        made->sizes[p] = parameter_elements(&spec->parameters[p]);
        made->elements += round_up(made->sizes[p], AMPD_ALIGN_ELEMENTS);
    }
    made->blocks = round_up(made->elements, block_elements) / block_elements;
    made->segments_count = count_segments(made);
    made->segments = calloc(made->segments_count, sizeof *made->segments);
    made->block_segments = calloc(made->blocks + 1, sizeof *made->block_segments);
    if (made->segments == NULL || made->block_segments == NULL)
        goto fail;
    cut_segments(made);
    *layout = made;
    return 0;
fail:
    ampd_layout_free(made);
    return AMP_ENOMEM;
}

void ampd_layout_free(struct ampd_layout *layout)
{
    if (layout == NULL)
        return;
    free(layout->starts);
    free(layout->sizes);
    free(layout->segments);
    free(layout->block_segments);
    free(layout);
}

uint32_t ampd_layout_block_elements(const struct ampd_layout *layout, uint64_t block)
{
    uint64_t left = layout->elements - block * layout->block_elements;
    return (uint32_t)(left < layout->block_elements ? left : layout->block_elements);
}

const struct ampd_segment *ampd_layout_block(const struct ampd_layout *layout, uint64_t block, uint32_t *count)
{
    *count = (uint32_t)(layout->block_segments[block + 1] - layout->block_segments[block]);
    return layout->segments + layout->block_segments[block];
}

void ampd_layout_shard(const struct ampd_layout *layout, uint32_t shard, uint32_t shards, uint64_t *first,
                       uint64_t *count)
{
    *first = layout->blocks * shard / shards;
    *count = layout->blocks * (shard + 1) / shards - *first;
}
