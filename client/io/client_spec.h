/* The caller's specification of a model as the message of CreateModel. Pure functions. */
#ifndef AMPCLIENT_SPEC_H
#define AMPCLIENT_SPEC_H

#include "base/buf.h"
#include "client/ampclient.h"
#include "proto/msg.h"

/*
 * Appends the encoded CreateModelRequest to *out. 0; AMP_EINVAL, with a text that names the field, for what the message
 * has no room for (the server checks all else); AMP_ENOMEM.
 */
int ampclient_spec_encode(const struct ampclient_spec *spec, struct amp_buf *out, struct amp_error *error);

/* Sets *elements to the product of the extents (1 of a scalar). 0; AMP_EINVAL: an extent is 0, or it is above 2^40. */
int ampclient_parameter_elements(const uint64_t *shape, uint32_t dimensions, uint64_t *elements);

/* Copies a name of 1 to 127 bytes. 0; AMP_EINVAL (NULL, empty or too long) with a text that begins with `what`. */
int ampclient_copy_name(char field[128], const char *name, const char *what, struct amp_error *error);

#endif
