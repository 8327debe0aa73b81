/* The table of all RPC methods. */
#ifndef AMPD_IO_METHODS_H
#define AMPD_IO_METHODS_H

#include <stddef.h>

struct arpc_method;

/* The rows of proto/methods.def with their handlers, and how many there are. They are constants. */
const struct arpc_method *ampd_methods(size_t *count);

#endif
