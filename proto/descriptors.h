/*
 * The schema itself, for the reflection service: a serialized google.protobuf.FileDescriptorSet, made at build
 * time.
 */
#ifndef AMPD_PROTO_DESCRIPTORS_H
#define AMPD_PROTO_DESCRIPTORS_H

#include <stddef.h>
#include <stdint.h>

/* All files of ampd/v1 and of the gRPC services, with what they import, each after its imports. */
extern const uint8_t ampd_descriptor_set[];
extern const size_t ampd_descriptor_set_size;

#endif
