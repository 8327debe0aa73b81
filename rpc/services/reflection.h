/* grpc.reflection.v1 and v1alpha, one handler. Internal to rpc/. */
#ifndef ARPC_SERVICES_REFLECTION_H
#define ARPC_SERVICES_REFLECTION_H

#include "base/err.h"
#include "rpc/method.h"

#include <stddef.h>
#include <stdint.h>

struct arpc_reflection;

extern const struct arpc_method arpc_reflection_methods[];
extern const size_t arpc_reflection_method_count;

/*
 * Splits a serialized FileDescriptorSet, which must outlive the result. 0; AMP_EINVAL (it is none), AMP_ENOMEM.
 */
int arpc_reflection_new(const uint8_t *descriptors, size_t size, struct arpc_reflection **out, struct amp_error *error);
void arpc_reflection_free(struct arpc_reflection *reflection);

/* A view of one FileDescriptorProto, or size 0: by name, or by the full name of a symbol in it. */
struct arpc_bytes {
    const uint8_t *data;
    size_t size;
};
struct arpc_bytes arpc_reflection_file(const struct arpc_reflection *reflection, const char *name);
struct arpc_bytes arpc_reflection_symbol(const struct arpc_reflection *reflection, const char *symbol);

#endif
