/* Element types of tensors. */
#ifndef AMP_DTYPE_H
#define AMP_DTYPE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Numbers are part of the wire and file formats: never reuse one. */
enum amp_dtype {
    AMP_DTYPE_NONE = 0,
    AMP_F32 = 1,  /* IEEE 754 binary32 */
    AMP_F16 = 2,  /* IEEE 754 binary16 */
    AMP_BF16 = 3, /* the upper half of a binary32 */
    AMP_F64 = 4,  /* known to autocast, which leaves it alone */
};

/* Bytes of one element; 0 for AMP_DTYPE_NONE and unknown values. */
static inline size_t amp_dtype_size(enum amp_dtype dtype)
{
    switch (dtype) {
    case AMP_F32:
        return 4;
    case AMP_F16:
    case AMP_BF16:
        return 2;
    case AMP_F64:
        return 8;
    default:
        return 0;
    }
}

/* "f32", "f16", "bf16", "f64"; "none" otherwise. */
static inline const char *amp_dtype_name(enum amp_dtype dtype)
{
    switch (dtype) {
    case AMP_F32:
        return "f32";
    case AMP_F16:
        return "f16";
    case AMP_BF16:
        return "bf16";
    case AMP_F64:
        return "f64";
    default:
        return "none";
    }
}

#ifdef __cplusplus
}
#endif

#endif
