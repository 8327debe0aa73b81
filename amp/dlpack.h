/*
 * Tensors of other libraries, in and out, by DLPack, without a copy: 1.x (DLManagedTensorVersioned), and the
 * unversioned struct before it (DLManagedTensor), which is all that the NumPy and PyTorch of Debian 12 know.
 *
 * The structs are declared here, with DLPack's layouts and names of our own: the header that distributions carry (0.6)
 * has the unversioned struct alone, which cannot say that a tensor is read only. A pointer of a program's
 * DLManagedTensorVersioned or DLManagedTensor can be cast to ours and back. Only memory of the CPU, dense in row-major
 * order, of f32, f16, bf16 or f64 is taken; anything else is an error and leaves the tensor with its owner. A pointer
 * that is NULL, where that is not said to be allowed, is AMP_EINVAL.
 */
#ifndef AMP_DLPACK_H
#define AMP_DLPACK_H

#include "amp/autocast.h"
#include "base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version that is written; any minor version of the same major is read. */
#define AMP_DLPACK_MAJOR 1
#define AMP_DLPACK_MINOR 0

/* Bits of `flags`. */
#define AMP_DLPACK_READ_ONLY UINT64_C(1)
#define AMP_DLPACK_IS_COPIED UINT64_C(2)

/* The one device that is taken, and the type codes that have a dtype here. */
#define AMP_DLPACK_CPU    1
#define AMP_DLPACK_FLOAT  2
#define AMP_DLPACK_BFLOAT 4

/* Most dimensions of a tensor that is taken or given: NumPy's bound. */
#define AMP_DLPACK_NDIM_MAX 64

struct amp_dlpack_tensor {
    void *data;
    struct {
        int32_t type;
        int32_t id;
    } device;
    int32_t ndim;
    struct {
        uint8_t code;
        uint8_t bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL: dense row-major */
    uint64_t byte_offset;
};

struct amp_dlpack_managed {
    struct {
        uint32_t major;
        uint32_t minor;
    } version;
    void *manager_ctx;
    void (*deleter)(struct amp_dlpack_managed *self); /* may be NULL */
    uint64_t flags;
    struct amp_dlpack_tensor tensor;
};

/* DLManagedTensor: what Python's capsules named "dltensor" hold; "dltensor_versioned" is the struct above. */
struct amp_dlpack_legacy {
    struct amp_dlpack_tensor tensor;
    void *manager_ctx;
    void (*deleter)(struct amp_dlpack_legacy *self); /* may be NULL */
};

/* A tensor that was taken in. */
struct amp_dlpack_import {
    struct amp_tensor_view view; /* borrowed from the struct below; id and version are the caller's, 0 at first */
    bool read_only;              /* view.data must not be written to */
    struct amp_dlpack_managed *managed;
    struct amp_dlpack_legacy *legacy; /* one of the two is NULL; both: nothing was taken in */
};

/*
 * Takes `managed` over and fills *import; amp_dlpack_release gives it back. 0; AMP_EVERSION for another major version;
 * AMP_EINVAL for a device, dtype, shape, stride or address that cannot be taken. On failure `managed` stays with the
 * caller, its deleter not called, and *import is empty. Allocates nothing.
 */
int amp_dlpack_import(struct amp_dlpack_managed *managed, struct amp_dlpack_import *import, struct amp_error *error);

/* The same for the unversioned struct, which nobody can mark as read only: ask its owner before writing. */
int amp_dlpack_import_legacy(struct amp_dlpack_legacy *legacy, struct amp_dlpack_import *import,
                             struct amp_error *error);

/* Calls the deleter of what was taken in, once, and empties *import; an empty one is allowed. */
void amp_dlpack_release(struct amp_dlpack_import *import);

/*
 * A view as a DLPack tensor of one dimension with ndim 0, or of the ndim sizes in `shape` whose product is view->count,
 * into *out. The receiver owns it, and calls its deleter from any thread, once; that calls release_cb(context), if
 * there is one, when the elements may go, and frees the struct. The elements are not copied and must live until then.
 * read_only asks the receiver not to write. 0; AMP_EINVAL for a shape that does not fit, or a dtype that is no float;
 * AMP_ENOMEM. On failure release_cb is not called and *out is NULL.
 */
int amp_dlpack_export(const struct amp_tensor_view *view, const int64_t *shape, size_t ndim, bool read_only,
                      void *context, void (*release_cb)(void *context), struct amp_dlpack_managed **out,
                      struct amp_error *error);

/* The same as an unversioned struct, for receivers that know no other. */
int amp_dlpack_export_legacy(const struct amp_tensor_view *view, const int64_t *shape, size_t ndim, void *context,
                             void (*release_cb)(void *context), struct amp_dlpack_legacy **out,
                             struct amp_error *error);

#ifdef __cplusplus
}
#endif

#endif
