/* Names in serialized descriptors. Internal to rpc/services. */
#ifndef ARPC_SERVICES_DESCRIPTORS_H
#define ARPC_SERVICES_DESCRIPTORS_H

#include "rpc/services/reflection.h"

#include <stdbool.h>
#include <stdint.h>

/*
 * The next length-delimited field of a message, skipping others, and moves `rest` behind it. False at the end, or with
 * *broken if the bytes are not a message.
 */
bool arpc_descriptor_next(struct arpc_bytes *rest, uint32_t *tag, struct arpc_bytes *value, bool *broken);

/* The first field with this tag; data NULL if there is none. */
struct arpc_bytes arpc_descriptor_field(struct arpc_bytes message, uint32_t tag);

/* Whether a FileDescriptorProto declares a symbol, given by its full name. */
bool arpc_descriptor_file_declares(struct arpc_bytes file, const char *symbol);

#endif
