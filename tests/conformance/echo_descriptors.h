/* The FileDescriptorSet of echo.proto and of gRPC's own services, made at build time. */
#ifndef ECHO_DESCRIPTORS_H
#define ECHO_DESCRIPTORS_H

#include <stddef.h>
#include <stdint.h>

extern const uint8_t echo_descriptors[];
extern const size_t echo_descriptors_size;

#endif
