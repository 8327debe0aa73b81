/* The table of all methods. */
#ifndef AMPD_IO_METHODS_H
#define AMPD_IO_METHODS_H

#include <stddef.h>

struct arpc_method;

/* The rows of proto/methods.def; *count is set. They live for ever. */
const struct arpc_method *ampd_methods(size_t *count);

#endif
