/* What test_amp_dlpack.py calls by ctypes: amp/ is a static library without exported names. */
#include "amp/autocast.h"
#include "amp/cpu.h"
#include "amp/dlpack.h"

#include <stdlib.h>

#define EXPORTED __attribute__((visibility("default")))

EXPORTED int bridge_import(struct amp_dlpack_legacy *legacy, struct amp_dlpack_import *import, struct amp_error *error);
EXPORTED int bridge_export(const struct amp_tensor_view *view, const int64_t *shape, size_t ndim,
                           struct amp_dlpack_legacy **out, struct amp_error *error);
EXPORTED void bridge_release(struct amp_dlpack_import *import);
EXPORTED int bridge_cast(const struct amp_dlpack_import *import, int dtype, void *buffer, size_t buffer_bytes,
                         struct amp_error *error);
EXPORTED unsigned bridge_released(void);
EXPORTED size_t bridge_import_bytes(void);

static unsigned released;

static void count_release(void *context)
{
    released++;
}

int bridge_import(struct amp_dlpack_legacy *legacy, struct amp_dlpack_import *import, struct amp_error *error)
{
    return amp_dlpack_import_legacy(legacy, import, error);
}

int bridge_export(const struct amp_tensor_view *view, const int64_t *shape, size_t ndim, struct amp_dlpack_legacy **out,
                  struct amp_error *error)
{
    return amp_dlpack_export_legacy(view, shape, ndim, NULL, count_release, out, error);
}

void bridge_release(struct amp_dlpack_import *import)
{
    amp_dlpack_release(import);
}

/* The imported tensor in another dtype, by the fastest kernels. */
int bridge_cast(const struct amp_dlpack_import *import, int dtype, void *buffer, size_t buffer_bytes,
                struct amp_error *error)
{
    const struct amp_kernels *kernels;
    struct amp_tensor_view out;
    int code = amp_cpu_select(NULL, &kernels, error);
    if (code != 0)
        return code;
    return amp_autocast_cast_to(kernels, (enum amp_dtype)dtype, &import->view, buffer, buffer_bytes, &out, error);
}

unsigned bridge_released(void)
{
    return released;
}

size_t bridge_import_bytes(void)
{
    return sizeof(struct amp_dlpack_import);
}
