/*
 * A safetensors file as anybody's program writes it (github.com/huggingface/safetensors): eight bytes with the length
 * of the header, a JSON object of tensors with dtype, shape and data_offsets, and the data. Read only, from memory;
 * trusts nothing.
 */
#ifndef AMPCTL_SAFETENSORS_H
#define AMPCTL_SAFETENSORS_H

#include "base/err.h"

#include <jansson.h>
#include <stdint.h>

/* Largest header, as the format's own reader has it. */
#define AMPCTL_SAFETENSORS_HEADER_MAX 100000000u

struct ampctl_safetensors {
    const uint8_t *data; /* the bytes behind the header; borrowed */
    uint64_t size;
    json_t *header; /* owned */
};

/*
 * Takes a file's bytes, which must outlive it. 0, and the caller's to close; AMP_EDATALOSS with what is wrong;
 * AMP_ENOMEM.
 */
int ampctl_safetensors_open(const void *bytes, uint64_t size, struct ampctl_safetensors *file, struct amp_error *error);
void ampctl_safetensors_close(struct ampctl_safetensors *file);

/* Tensors in it. */
size_t ampctl_safetensors_count(const struct ampctl_safetensors *file);

/*
 * The values of the tensor `name` (F32, F16, BF16; F64 is rounded to the nearest), which must have this shape, into
 * `values`, one for each element. AMP_ENOTFOUND, AMP_EINVAL (another shape or type), AMP_EDATALOSS, each with a text.
 */
int ampctl_safetensors_read(const struct ampctl_safetensors *file, const char *name, const uint64_t *shape,
                            uint32_t dimensions, float *values, struct amp_error *error);

/* A tensor that can be a parameter of a model. */
struct ampctl_safetensors_tensor {
    const char *name; /* the file's */
    uint32_t dimensions;
    uint64_t shape[8];
};

/*
 * Lists the tensors that can be parameters of a model, in the order of the header: those of a type that
 * ampctl_safetensors_read reads, and of a checkpoint of ampd the parameters alone (its moments and user states have a
 * '#' in their names). *list is the caller's to free. AMP_EINVAL (more than 8 dimensions), AMP_EDATALOSS, AMP_ENOMEM.
 */
int ampctl_safetensors_list(const struct ampctl_safetensors *file, struct ampctl_safetensors_tensor **list,
                            uint32_t *count, struct amp_error *error);

#endif
