#include "client/core/flat_layout.h"

#include "base/err.h"

#include <stdlib.h>
#include <string.h>

#define ALIGN_ELEMENTS 64                  /* start of each parameter, as on the server */
#define ELEMENTS_MAX   ((uint64_t)1 << 36) /* of a model, the server's bound: sums of a false answer do not overflow */
#define PARAMETERS_MAX 8192                /* of a model, the server's bound */

static uint64_t round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

int ampclient_core_layout_init(struct ampclient_core_layout *flat, const struct ampclient_join_answer *answer)
{
    *flat = (struct ampclient_core_layout){.parameters = answer->parameters_count,
                                           .block_elements = answer->block_elements};
    if (answer->parameters_count == 0 || answer->parameters_count > PARAMETERS_MAX || answer->block_elements == 0 ||
        answer->block_elements > ELEMENTS_MAX || answer->block_elements % ALIGN_ELEMENTS != 0)
        return AMP_EDATALOSS;
    flat->starts = calloc(flat->parameters, sizeof *flat->starts);
    flat->sizes = calloc(flat->parameters, sizeof *flat->sizes);
    if (flat->starts == NULL || flat->sizes == NULL) {
        ampclient_core_layout_close(flat);
        return AMP_ENOMEM;
    }
    int rc = AMP_EDATALOSS;
    for (uint32_t p = 0; p < flat->parameters; p++) {
        if (answer->elements[p] == 0 || answer->elements[p] > ELEMENTS_MAX)
            goto fail;
        flat->starts[p] = flat->elements;
        flat->sizes[p] = answer->elements[p];
        flat->elements += round_up(answer->elements[p], ALIGN_ELEMENTS);
        if (flat->elements > ELEMENTS_MAX)
            goto fail;
    }
    rc = AMP_ENOMEM;
    flat->blocks = round_up(flat->elements, flat->block_elements) / flat->block_elements;
    flat->block_parameter = calloc(flat->blocks + 1, sizeof *flat->block_parameter);
    if (flat->block_parameter == NULL)
        goto fail;
    uint32_t p = 0;
    for (uint64_t b = 0; b < flat->blocks; b++) {
        while (p + 1 < flat->parameters && flat->starts[p] + flat->sizes[p] <= b * flat->block_elements)
            p++;
        flat->block_parameter[b] = p;
    }
    return 0;
fail:
    ampclient_core_layout_close(flat);
    return rc;
}

void ampclient_core_layout_close(struct ampclient_core_layout *flat)
{
    free(flat->starts);
    free(flat->sizes);
    free(flat->block_parameter);
    *flat = (struct ampclient_core_layout){0};
}

bool ampclient_core_layout_same(const struct ampclient_core_layout *flat, const struct ampclient_join_answer *answer)
{
    return flat->parameters == answer->parameters_count && flat->block_elements == answer->block_elements &&
           memcmp(flat->sizes, answer->elements, flat->parameters * sizeof *flat->sizes) == 0;
}

void ampclient_core_layout_shard(const struct ampclient_core_layout *flat, uint32_t shard, uint32_t shards,
                                 uint64_t *first, uint64_t *end)
{
    *first = flat->blocks * shard / shards;
    *end = flat->blocks * (shard + 1) / shards;
}

uint32_t ampclient_core_layout_block_elements(const struct ampclient_core_layout *flat, uint64_t block)
{
    uint64_t left = flat->elements - block * flat->block_elements;
    return (uint32_t)(left < flat->block_elements ? left : flat->block_elements);
}

bool ampclient_core_layout_in_block(const struct ampclient_core_layout *flat, uint32_t parameter, uint64_t block)
{
    return parameter < flat->parameters && flat->starts[parameter] < (block + 1) * flat->block_elements &&
           flat->starts[parameter] + flat->sizes[parameter] > block * flat->block_elements;
}

bool ampclient_core_layout_fills(const struct ampclient_core_layout *flat, uint32_t parameter, uint64_t block)
{
    uint64_t begin = block * flat->block_elements;
    return flat->starts[parameter] <= begin && flat->starts[parameter] + flat->sizes[parameter] >=
                                                   begin + ampclient_core_layout_block_elements(flat, block);
}

void ampclient_core_layout_put(const struct ampclient_core_layout *flat, uint32_t parameter, const void *values,
                               size_t size, uint64_t block, void *to)
{
    uint64_t begin = block * flat->block_elements, start = flat->starts[parameter];
    uint64_t end = begin + ampclient_core_layout_block_elements(flat, block);
    uint64_t from = start > begin ? start : begin;
    uint64_t until = start + flat->sizes[parameter] < end ? start + flat->sizes[parameter] : end;
    memcpy((uint8_t *)to + (from - begin) * size, (const uint8_t *)values + (from - start) * size,
           (size_t)(until - from) * size);
}

const void *ampclient_core_layout_values(const struct ampclient_core_layout *flat, const void *const *values,
                                         size_t size, uint64_t block, void *scratch)
{
    uint32_t p = flat->block_parameter[block];
    if (values[p] != NULL && ampclient_core_layout_fills(flat, p, block))
        return (const uint8_t *)values[p] + (block * flat->block_elements - flat->starts[p]) * size;
    memset(scratch, 0, ampclient_core_layout_block_elements(flat, block) * size);
    for (; ampclient_core_layout_in_block(flat, p, block); p++) {
        if (values[p] != NULL)
            ampclient_core_layout_put(flat, p, values[p], size, block, scratch);
    }
    return scratch;
}
