/*
 * Exchanges tensors with other libraries by DLPack, without copies, in both directions: DLPack 1.x
 * (DLManagedTensorVersioned), and the older unversioned struct (DLManagedTensor), which is the only one that the NumPy
 * and PyTorch of Debian 12 support.
 *
 * The structs are declared here, with the layouts of DLPack and names of our own, because the header in distributions
 * (0.6) has only the unversioned struct, which cannot mark a tensor as read only. A pointer to a program's
 * DLManagedTensorVersioned or DLManagedTensor can be cast to ours and back. Only CPU memory, dense in row-major order,
 * of f32, f16, bf16 or f64 is accepted; anything else is an error, and the tensor stays with its owner. A NULL pointer
 * is AMP_EINVAL unless it is said to be allowed.
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

/* The version of exported tensors. Tensors of any minor version of the same major version can be imported. */
#define AMP_DLPACK_MAJOR 1
#define AMP_DLPACK_MINOR 0

/* Bits of `flags`. */
#define AMP_DLPACK_READ_ONLY UINT64_C(1)
#define AMP_DLPACK_IS_COPIED UINT64_C(2)

/* The only device type that is accepted, and the type codes that have a dtype here. */
#define AMP_DLPACK_CPU    1
#define AMP_DLPACK_FLOAT  2
#define AMP_DLPACK_BFLOAT 4

/* The most dimensions of an imported or exported tensor, which is NumPy's limit. */
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

/* An imported tensor. */
struct amp_dlpack_import {
    struct amp_tensor_view view; /* borrowed from the struct below; id and version are the caller's, 0 at first */
    bool read_only;              /* view.data must not be written to */
    struct amp_dlpack_managed *managed;
    struct amp_dlpack_legacy *legacy; /* one of these two is NULL; if both are, the struct is empty */
};

/*
 * Takes ownership of `managed` and fills *import, to be given to amp_dlpack_release. AMP_EVERSION for another major
 * version; AMP_EINVAL for a device, dtype, shape, stride or address that is not accepted. On failure `managed` stays
 * the caller's, its deleter is not called, and *import is empty. Allocates nothing.
 */
int amp_dlpack_import(struct amp_dlpack_managed *managed, struct amp_dlpack_import *import, struct amp_error *error);

/* As amp_dlpack_import, for the unversioned struct. It cannot be marked as read only: ask its owner before writing. */
int amp_dlpack_import_legacy(struct amp_dlpack_legacy *legacy, struct amp_dlpack_import *import,
                             struct amp_error *error);

/* Calls the deleter of an imported tensor, once, and empties *import. An empty one is allowed. */
void amp_dlpack_release(struct amp_dlpack_import *import);

/*
 * Makes a DLPack tensor of a view. Its shape has the ndim sizes in `shape`, whose product must be view->count; with
 * ndim 0 it has one dimension. *out is for the receiver, which calls its deleter once, from any thread; the deleter
 * calls release_cb(context), unless that is NULL, and frees the struct. The elements are not copied and must stay valid
 * until then. read_only asks the receiver not to write. 0; AMP_EINVAL for a shape that does not fit, or a dtype that is
 * no float; AMP_ENOMEM. On failure release_cb is not called and *out is NULL.
 */
int amp_dlpack_export(const struct amp_tensor_view *view, const int64_t *shape, size_t ndim, bool read_only,
                      void *context, void (*release_cb)(void *context), struct amp_dlpack_managed **out,
                      struct amp_error *error);

/* As amp_dlpack_export, as an unversioned struct, for receivers that support no other. */
int amp_dlpack_export_legacy(const struct amp_tensor_view *view, const int64_t *shape, size_t ndim, void *context,
                             void (*release_cb)(void *context), struct amp_dlpack_legacy **out,
                             struct amp_error *error);

#ifdef __cplusplus
}
#endif

#endif
