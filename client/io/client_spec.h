/* The caller's specification of a model as the message of CreateModel. Pure functions. */
#ifndef AMPCLIENT_SPEC_H
#define AMPCLIENT_SPEC_H

#include "base/buf.h"
#include "client/ampclient.h"
#include "proto/msg.h"

/*
 * Appends the encoded CreateModelRequest to *out. What only the server can judge is left to it; this side refuses with
 * AMP_EINVAL, and a text that names the field, what the message has no room for. AMP_ENOMEM.
 */
int ampclient_spec_encode(const struct ampclient_spec *spec, struct amp_buf *out, struct amp_error *error);

/* Elements of a parameter: the product of its extents. AMP_EINVAL when it is 0 or beyond 2^40. */
int ampclient_parameter_elements(const uint64_t *shape, uint32_t dimensions, uint64_t *elements);

/* Copies a name into a field of 128 bytes. AMP_EINVAL with a text that begins with `what`: NULL, empty, or too long. */
int ampclient_copy_name(char field[128], const char *name, const char *what, struct amp_error *error);

#endif
