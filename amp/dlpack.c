/* DLPack tensors: every field of a foreign struct is checked before the view is made, in the order of its layout. */
#include "amp/dlpack.h"

#include "amp/given.h"

#include <stdlib.h>
#include <string.h>

/* The layout is an ABI: these are the offsets of DLPack 1.x on a machine with 64-bit pointers. */
_Static_assert(sizeof(void *) != 8 ||
                   (offsetof(struct amp_dlpack_managed, manager_ctx) == 8 &&
                    offsetof(struct amp_dlpack_managed, flags) == 24 &&
                    offsetof(struct amp_dlpack_managed, tensor) == 32 &&
                    offsetof(struct amp_dlpack_tensor, ndim) == 16 && offsetof(struct amp_dlpack_tensor, dtype) == 20 &&
                    offsetof(struct amp_dlpack_tensor, shape) == 24 && sizeof(struct amp_dlpack_tensor) == 48 &&
                    offsetof(struct amp_dlpack_legacy, manager_ctx) == 48),
               "the layout of DLPack 1.x, and of the struct before it");

static enum amp_dtype dtype_of(const struct amp_dlpack_tensor *tensor)
{
    if (tensor->dtype.lanes != 1)
        return AMP_DTYPE_NONE;
    if (tensor->dtype.code == AMP_DLPACK_BFLOAT)
        return tensor->dtype.bits == 16 ? AMP_BF16 : AMP_DTYPE_NONE;
    if (tensor->dtype.code != AMP_DLPACK_FLOAT)
        return AMP_DTYPE_NONE;
    switch (tensor->dtype.bits) {
    case 16:
        return AMP_F16;
    case 32:
        return AMP_F32;
    case 64:
        return AMP_F64;
    default:
        return AMP_DTYPE_NONE;
    }
}

/* The product of the sizes, into *count; an element has `size` bytes. Sizes of 0 win over those that overflow. */
static int count_of(const int64_t *shape, size_t ndim, size_t size, size_t *count, struct amp_error *error)
{
    bool empty = false;
    for (size_t i = 0; i < ndim; i++) {
        if (shape[i] < 0)
            return amp_error_set(error, AMP_EINVAL, NULL, "dimension %zu has the size %lld: it must be at least 0", i,
                                 (long long)shape[i]);
        empty = empty || shape[i] == 0;
    }
    uint64_t product = empty ? 0 : 1;
    for (size_t i = 0; i < ndim && !empty; i++) {
        if (product > (uint64_t)PTRDIFF_MAX / size / (uint64_t)shape[i])
            return amp_error_set(error, AMP_EINVAL, NULL,
                                 "the shape has more elements than memory can hold: check its sizes");
        product *= (uint64_t)shape[i];
    }
    *count = (size_t)product;
    return 0;
}

/* Dense row-major; the stride of a dimension of size 1 is never used, and nothing is used of an empty tensor. */
static int check_strides(const struct amp_dlpack_tensor *tensor, size_t count, struct amp_error *error)
{
    if (tensor->strides == NULL || count == 0)
        return 0;
    int64_t expected = 1;
    for (int32_t i = tensor->ndim - 1; i >= 0; i--) {
        if (tensor->shape[i] != 1 && tensor->strides[i] != expected)
            return amp_error_set(error, AMP_EINVAL, NULL,
                                 "dimension %d has the stride %lld, not %lld: make the tensor contiguous first", (int)i,
                                 (long long)tensor->strides[i], (long long)expected);
        expected *= tensor->shape[i];
    }
    return 0;
}

static int check_head(const struct amp_dlpack_tensor *tensor, struct amp_error *error)
{
    if (tensor->device.type != AMP_DLPACK_CPU)
        return amp_error_set(error, AMP_EINVAL, NULL, "device type %d is not the CPU's: copy the tensor there first",
                             (int)tensor->device.type);
    if (tensor->ndim < 0 || tensor->ndim > AMP_DLPACK_NDIM_MAX || (tensor->ndim > 0 && tensor->shape == NULL))
        return amp_error_set(error, AMP_EINVAL, NULL, "%d dimensions: 0 to %d, with their sizes, are supported",
                             (int)tensor->ndim, AMP_DLPACK_NDIM_MAX);
    if (dtype_of(tensor) == AMP_DTYPE_NONE)
        return amp_error_set(error, AMP_EINVAL, NULL,
                             "type code %u of %u bits in %u lanes: only f32, f16, bf16 and f64 are supported",
                             tensor->dtype.code, tensor->dtype.bits, tensor->dtype.lanes);
    return 0;
}

/* The view of a foreign tensor, or why there is none. */
static int view_of(const struct amp_dlpack_tensor *tensor, struct amp_tensor_view *view, struct amp_error *error)
{
    int code = check_head(tensor, error);
    if (code != 0)
        return code;
    enum amp_dtype dtype = dtype_of(tensor);
    size_t size = amp_dtype_size(dtype);
    size_t count = 0;
    code = count_of(tensor->shape, (size_t)tensor->ndim, size, &count, error);
    if (code == 0)
        code = check_strides(tensor, count, error);
    if (code != 0)
        return code;
    const char *data = NULL;
    if (count > 0) {
        if (tensor->data == NULL)
            return amp_error_set(error, AMP_EINVAL, NULL, "%zu elements without an address: give data that is not NULL",
                                 count);
        if (tensor->byte_offset > (uint64_t)PTRDIFF_MAX - count * size)
            return amp_error_set(error, AMP_EINVAL, NULL, "the byte offset is outside of memory: it counts from data");
        data = (const char *)tensor->data + tensor->byte_offset;
        if ((uintptr_t)data % size != 0)
            return amp_error_set(error, AMP_EINVAL, NULL,
                                 "the elements are not aligned to %zu bytes: copy the tensor first", size);
    }
    *view = (struct amp_tensor_view){data, count, dtype, 0, 0};
    return 0;
}

int amp_dlpack_import(struct amp_dlpack_managed *managed, struct amp_dlpack_import *import, struct amp_error *error)
{
    int code = amp_given(import, "import", error);
    if (code != 0)
        return code;
    *import = (struct amp_dlpack_import){.managed = NULL};
    code = amp_given(managed, "managed", error);
    if (code != 0)
        return code;
    /* Behind the version and the deleter nothing may be read of another major version. */
    if (managed->version.major != AMP_DLPACK_MAJOR)
        return amp_error_set(error, AMP_EVERSION, NULL,
                             "DLPack version %u is not %d: ask for the tensor with max_version (%d, %d)",
                             managed->version.major, AMP_DLPACK_MAJOR, AMP_DLPACK_MAJOR, AMP_DLPACK_MINOR);
    code = view_of(&managed->tensor, &import->view, error);
    if (code != 0)
        return code;
    import->read_only = (managed->flags & AMP_DLPACK_READ_ONLY) != 0;
    import->managed = managed;
    return 0;
}

int amp_dlpack_import_legacy(struct amp_dlpack_legacy *legacy, struct amp_dlpack_import *import,
                             struct amp_error *error)
{
    int code = amp_given(import, "import", error);
    if (code != 0)
        return code;
    *import = (struct amp_dlpack_import){.managed = NULL};
    code = amp_given(legacy, "legacy", error);
    if (code != 0)
        return code;
    code = view_of(&legacy->tensor, &import->view, error);
    if (code == 0)
        import->legacy = legacy;
    return code;
}

void amp_dlpack_release(struct amp_dlpack_import *import)
{
    struct amp_dlpack_managed *managed = import->managed;
    struct amp_dlpack_legacy *legacy = import->legacy;
    *import = (struct amp_dlpack_import){.managed = NULL};
    if (managed != NULL && managed->deleter != NULL)
        managed->deleter(managed);
    if (legacy != NULL && legacy->deleter != NULL)
        legacy->deleter(legacy);
}

/* One allocation: the struct that goes out, and behind it what it points to. */
struct outgoing {
    union {
        struct amp_dlpack_managed managed;
        struct amp_dlpack_legacy legacy;
    } as;
    void *context;
    void (*release_cb)(void *context);
    int64_t sizes[]; /* the shape, then the strides */
};

static void delete_outgoing(struct outgoing *outgoing)
{
    if (outgoing->release_cb != NULL)
        outgoing->release_cb(outgoing->context);
    free(outgoing);
}

static void delete_managed(struct amp_dlpack_managed *self)
{
    delete_outgoing(self->manager_ctx);
}

static void delete_legacy(struct amp_dlpack_legacy *self)
{
    delete_outgoing(self->manager_ctx);
}

static void fill_tensor(struct outgoing *outgoing, struct amp_dlpack_tensor *tensor, const struct amp_tensor_view *view,
                        const int64_t *shape, size_t ndim)
{
    tensor->data = view->count > 0 ? (void *)(uintptr_t)view->data : NULL;
    tensor->device.type = AMP_DLPACK_CPU;
    tensor->ndim = (int32_t)ndim;
    tensor->dtype.code = view->dtype == AMP_BF16 ? AMP_DLPACK_BFLOAT : AMP_DLPACK_FLOAT;
    tensor->dtype.bits = (uint8_t)(8 * amp_dtype_size(view->dtype));
    tensor->dtype.lanes = 1;
    tensor->shape = outgoing->sizes;
    tensor->strides = outgoing->sizes + ndim;
    memcpy(tensor->shape, shape, ndim * sizeof *shape);
    /* An empty tensor's strides are never used; with sizes of 0 as 1 they cannot overflow for any sane shape. */
    uint64_t stride = 1;
    for (size_t i = ndim; i > 0; i--) {
        tensor->strides[i - 1] = view->count > 0 ? (int64_t)stride : 1;
        stride *= view->count > 0 ? (uint64_t)shape[i - 1] : 1;
    }
}

/* What both structs have in common; which is the caller's to say. NULL with the error's code in *code. */
static struct outgoing *make_outgoing(const struct amp_tensor_view *view, const int64_t *shape, size_t ndim,
                                      bool versioned, void *context, void (*release_cb)(void *context), int *code,
                                      struct amp_error *error)
{
    *code = amp_given(view, "view", error);
    if (*code == 0 && view->count > 0)
        *code = amp_given(view->data, "view->data", error);
    if (*code != 0)
        return NULL;
    *code = AMP_EINVAL;
    size_t size = amp_dtype_size(view->dtype);
    if (size == 0) {
        (void)amp_error_set(error, AMP_EINVAL, NULL,
                            "only f32, f16, bf16 and f64 can be given out: cast the tensor first");
        return NULL;
    }
    int64_t flat = (int64_t)view->count;
    if (ndim == 0) {
        shape = &flat;
        ndim = 1;
    }
    if (ndim > AMP_DLPACK_NDIM_MAX) {
        (void)amp_error_set(error, AMP_EINVAL, NULL, "%zu dimensions: at most %d", ndim, AMP_DLPACK_NDIM_MAX);
        return NULL;
    }
    *code = amp_given(shape, "shape", error);
    if (*code != 0)
        return NULL;
    size_t count = 0;
    *code = count_of(shape, ndim, size, &count, error);
    if (*code != 0)
        return NULL;
    if (count != view->count) {
        *code = amp_error_set(error, AMP_EINVAL, NULL, "the shape has %zu elements, the view %zu: give one of as many",
                              count, view->count);
        return NULL;
    }
    struct outgoing *outgoing = calloc(1, sizeof *outgoing + 2 * ndim * sizeof *shape);
    if (outgoing == NULL) {
        *code = amp_error_set(error, AMP_ENOMEM, NULL, "no memory for a DLPack tensor");
        return NULL;
    }
    outgoing->context = context;
    outgoing->release_cb = release_cb;
    fill_tensor(outgoing, versioned ? &outgoing->as.managed.tensor : &outgoing->as.legacy.tensor, view, shape, ndim);
    return outgoing;
}

int amp_dlpack_export(const struct amp_tensor_view *view, const int64_t *shape, size_t ndim, bool read_only,
                      void *context, void (*release_cb)(void *context), struct amp_dlpack_managed **out,
                      struct amp_error *error)
{
    int code = amp_given(out, "out", error);
    if (code != 0)
        return code;
    *out = NULL;
    struct outgoing *outgoing = make_outgoing(view, shape, ndim, true, context, release_cb, &code, error);
    if (outgoing == NULL)
        return code;
    struct amp_dlpack_managed *managed = &outgoing->as.managed;
    managed->version.major = AMP_DLPACK_MAJOR;
    managed->version.minor = AMP_DLPACK_MINOR;
    managed->manager_ctx = outgoing;
    managed->deleter = delete_managed;
    managed->flags = read_only ? AMP_DLPACK_READ_ONLY : 0;
    *out = managed;
    return 0;
}

int amp_dlpack_export_legacy(const struct amp_tensor_view *view, const int64_t *shape, size_t ndim, void *context,
                             void (*release_cb)(void *context), struct amp_dlpack_legacy **out, struct amp_error *error)
{
    int code = amp_given(out, "out", error);
    if (code != 0)
        return code;
    *out = NULL;
    struct outgoing *outgoing = make_outgoing(view, shape, ndim, false, context, release_cb, &code, error);
    if (outgoing == NULL)
        return code;
    outgoing->as.legacy.manager_ctx = outgoing;
    outgoing->as.legacy.deleter = delete_legacy;
    *out = &outgoing->as.legacy;
    return 0;
}
