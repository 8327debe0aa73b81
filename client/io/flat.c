#include "client/io/flat.h"

#include "base/assert.h"
#include "base/err.h"

#include <stdlib.h>
#include <string.h>

/* Above what the server allows (2^36 elements); it keeps sums of 64 bits from wrapping. */
#define ELEMENTS_MAX ((uint64_t)1 << 40)

static int lay_out(struct ampclient_flat *flat, const uint64_t *sizes)
{
    for (uint32_t p = 0; p < flat->parameters; p++) {
        if (sizes[p] == 0 || sizes[p] > ELEMENTS_MAX)
            return AMP_EINVAL;
        flat->starts[p] = flat->elements;
        flat->sizes[p] = sizes[p];
        flat->elements += (sizes[p] + AMPCLIENT_FLAT_ALIGN - 1) / AMPCLIENT_FLAT_ALIGN * AMPCLIENT_FLAT_ALIGN;
        if (flat->elements > ELEMENTS_MAX)
            return AMP_EINVAL;
    }
    flat->blocks = (flat->elements + flat->block_elements - 1) / flat->block_elements;
    return 0;
}

int ampclient_flat_init(struct ampclient_flat *flat, const uint64_t *sizes, uint32_t parameters,
                        uint64_t block_elements)
{
    *flat = (struct ampclient_flat){.parameters = parameters, .block_elements = block_elements};
    if (parameters == 0 || block_elements == 0 || block_elements % AMPCLIENT_FLAT_ALIGN != 0)
        return AMP_EINVAL;
    flat->starts = calloc(parameters, sizeof *flat->starts);
    flat->sizes = calloc(parameters, sizeof *flat->sizes);
    int rc = flat->starts != NULL && flat->sizes != NULL ? lay_out(flat, sizes) : AMP_ENOMEM;
    if (rc != 0)
        ampclient_flat_close(flat);
    return rc;
}

void ampclient_flat_close(struct ampclient_flat *flat)
{
    free(flat->starts);
    free(flat->sizes);
    *flat = (struct ampclient_flat){0};
}

uint32_t ampclient_flat_block_elements(const struct ampclient_flat *flat, uint64_t block)
{
    AMP_ASSERT(block < flat->blocks);
    uint64_t rest = flat->elements - block * flat->block_elements;
    return (uint32_t)(rest < flat->block_elements ? rest : flat->block_elements);
}

/* The last parameter that starts at or before a flat index. */
static uint32_t parameter_at(const struct ampclient_flat *flat, uint64_t index)
{
    uint32_t low = 0, high = flat->parameters;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (flat->starts[middle] <= index)
            low = middle;
        else
            high = middle;
    }
    return low;
}

const float *ampclient_flat_block(const struct ampclient_flat *flat, const float *const *values, uint64_t block,
                                  float *scratch)
{
    uint64_t begin = block * flat->block_elements;
    uint64_t end = begin + ampclient_flat_block_elements(flat, block);
    uint32_t p = parameter_at(flat, begin);
    if (end <= flat->starts[p] + flat->sizes[p])
        return values[p] + (begin - flat->starts[p]);
    memset(scratch, 0, (size_t)(end - begin) * sizeof *scratch);
    for (; p < flat->parameters && flat->starts[p] < end; p++) {
        uint64_t from = flat->starts[p] > begin ? flat->starts[p] : begin;
        uint64_t to = flat->starts[p] + flat->sizes[p];
        to = to < end ? to : end;
        if (from < to)
            memcpy(scratch + (from - begin), values[p] + (from - flat->starts[p]),
                   (size_t)(to - from) * sizeof *scratch);
    }
    return scratch;
}
