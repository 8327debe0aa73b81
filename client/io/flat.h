/*
 * The flat space of a model, as Load sends it: all parameters end to end, each padded with zeros to a multiple of 64
 * elements, cut into blocks of block_elements; the last block may be short. Pure functions.
 */
#ifndef AMPCLIENT_FLAT_H
#define AMPCLIENT_FLAT_H

#include <stdint.h>

/* Elements to a multiple of which each parameter is padded (docs/architecture.md section 1). */
#define AMPCLIENT_FLAT_ALIGN 64

struct ampclient_flat {
    uint32_t parameters;
    uint64_t *starts; /* [parameters] flat index of element 0 */
    uint64_t *sizes;  /* [parameters] elements without pads */
    uint64_t elements;
    uint64_t block_elements;
    uint64_t blocks;
};

/*
 * Lays out parameters of `sizes` elements (copied). 0, with the memory freed by ampclient_flat_close; AMP_EINVAL (no
 * parameter, an empty one, block_elements not a positive multiple of 64, more than 2^40 elements), AMP_ENOMEM: nothing
 * is held.
 */
int ampclient_flat_init(struct ampclient_flat *flat, const uint64_t *sizes, uint32_t parameters,
                        uint64_t block_elements);
/* Frees and zeroes a layout; also a zeroed one. */
void ampclient_flat_close(struct ampclient_flat *flat);

/* The number of elements of a block, pads included. `block` is less than flat->blocks (asserted). */
uint32_t ampclient_flat_block_elements(const struct ampclient_flat *flat, uint64_t block);

/*
 * The fp32 values of a block: a view into values[p] if the block lies in the elements of one parameter, else gathered
 * into scratch (block_elements floats), with zeros for pads.
 */
const float *ampclient_flat_block(const struct ampclient_flat *flat, const float *const *values, uint64_t block,
                                  float *scratch);

#endif
