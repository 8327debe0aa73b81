/* Checks of tensors that come from a caller, and the passes over them that go through fp32 tile by tile. */
#include "amp/tensor.h"

#include "amp/cast.h"

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* Elements of a tile on the stack: 4 KiB of fp32, which stays in the first cache level. */
#define TILE 1024

/* Smallest magnitudes (bits of binary32) that are stored as Inf or NaN (docs/numerics.md, section 2). */
static const uint32_t overflows_from[AMP_KERNEL_DTYPES] = {
    [AMP_F32] = AMP_F32_INF, [AMP_F16] = 0x477ff000u, [AMP_BF16] = 0x7f7f8000u};

const char *amp_tensor_name(const struct amp_tensor *tensor)
{
    return tensor->name != NULL ? tensor->name : "(unnamed)";
}

static int bad(struct amp_error *error, const struct amp_tensor *tensor, const char *fault)
{
    return amp_error_set(error, AMP_EINVAL, NULL, "tensor \"%.100s\" %s", amp_tensor_name(tensor), fault);
}

static int check_one(const struct amp_tensor *tensor, struct amp_error *error)
{
    if (tensor->data == NULL)
        return 0;
    if (tensor->dtype != AMP_F32 && tensor->dtype != AMP_F16 && tensor->dtype != AMP_BF16)
        return bad(error, tensor, "has another dtype than f32, f16 or bf16: cast it first");
    size_t size = amp_dtype_size(tensor->dtype);
    if (tensor->count > 0 && (uintptr_t)tensor->data % size != 0)
        return bad(error, tensor, "is not aligned to its elements: copy it first");
    if (tensor->count > (size_t)PTRDIFF_MAX / size)
        return bad(error, tensor, "has more elements than memory can hold: check its count");
    return 0;
}

int amp_tensors_check(const struct amp_tensor *tensors, size_t n, struct amp_error *error)
{
    if (tensors == NULL && n > 0)
        return amp_error_set(error, AMP_EINVAL, NULL, "the array of %zu tensors is NULL: give it, or no tensors", n);
    for (size_t i = 0; i < n; i++) {
        int rc = check_one(&tensors[i], error);
        if (rc != 0)
            return rc;
    }
    return 0;
}

static bool overlap(const struct amp_tensor *a, const struct amp_tensor *b)
{
    uintptr_t a0 = (uintptr_t)a->data;
    uintptr_t b0 = (uintptr_t)b->data;
    return a0 < b0 + b->count * amp_dtype_size(b->dtype) && b0 < a0 + a->count * amp_dtype_size(a->dtype);
}

static int check_pair(const struct amp_tensor *in, const struct amp_tensor *out, struct amp_error *error)
{
    if (in->data == NULL)
        return 0;
    if (out->data == NULL)
        return bad(error, in, "has no place for its result: give memory for it");
    if (in->count != out->count)
        return amp_error_set(error, AMP_EINVAL, NULL,
                             "tensor \"%.100s\" has %zu elements, its result %zu: give as many", amp_tensor_name(in),
                             in->count, out->count);
    bool in_place = in->data == out->data && amp_dtype_size(in->dtype) == amp_dtype_size(out->dtype);
    if (!in_place && overlap(in, out))
        return bad(error, in, "overlaps its result: give the same memory, or another");
    return 0;
}

int amp_tensors_check_pairs(const struct amp_tensor *in, const struct amp_tensor *out, size_t n,
                            struct amp_error *error)
{
    int rc = amp_tensors_check(in, n, error);
    if (rc == 0 && out != in)
        rc = amp_tensors_check(out, n, error);
    for (size_t i = 0; rc == 0 && out != in && i < n; i++)
        rc = check_pair(&in[i], &out[i], error);
    return rc;
}

int amp_scale_check(float scale, struct amp_error *error)
{
    if (isfinite(scale) && scale >= FLT_MIN)
        return 0;
    return amp_error_set(error, AMP_EINVAL, NULL, "the scale is %g, must be finite and at least 2^-126", (double)scale);
}

bool amp_tensor_multiply(const struct amp_kernels *kernels, const struct amp_tensor *in, float factor,
                         const struct amp_tensor *out)
{
    if (in->data == NULL)
        return false;
    uint32_t largest = 0;
    if (in->dtype == AMP_F32 && out->dtype == AMP_F32)
        return kernels->scale(out->data, in->data, factor, in->count) >= overflows_from[AMP_F32];
    size_t in_size = amp_dtype_size(in->dtype);
    size_t out_size = amp_dtype_size(out->dtype);
    for (size_t done = 0; done < in->count; done += TILE) {
        float tile[TILE];
        size_t n = in->count - done < TILE ? in->count - done : TILE;
        const char *src = (const char *)in->data + done * in_size;
        char *dst = (char *)out->data + done * out_size;
        kernels->load[in->dtype](tile, src, n);
        uint32_t here = kernels->scale(tile, tile, factor, n);
        (void)kernels->store[out->dtype](dst, tile, n);
        largest = here > largest ? here : largest;
    }
    return largest >= overflows_from[out->dtype];
}

void amp_tensor_copy(const struct amp_kernels *kernels, const struct amp_tensor *in, const struct amp_tensor *out)
{
    if (in->data == NULL || (in->data == out->data && in->dtype == out->dtype))
        return;
    if (in->dtype == out->dtype)
        memcpy(out->data, in->data, in->count * amp_dtype_size(in->dtype));
    else
        amp_cast(kernels, out->data, out->dtype, in->data, in->dtype, in->count);
}
