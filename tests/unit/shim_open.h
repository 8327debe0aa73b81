/*
 * For a test program that stands in front of the C library's open: both names of it, which lead to `shim_open`, a
 * function that the file which includes this has defined before.
 */
#ifndef AMPD_TESTS_SHIM_OPEN_H
#define AMPD_TESTS_SHIM_OPEN_H

#include <fcntl.h>
#include <stdarg.h>

/* Only a call that may make a file has a mode. */
#define SHIM_OPEN(name)                                                                                                \
    __attribute__((visibility("default"))) int name(const char *path, int flags, ...)                                  \
    {                                                                                                                  \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode_t mode = (flags & O_CREAT) != 0 ? va_arg(rest, mode_t) : 0;                                               \
        va_end(rest);                                                                                                  \
        return shim_open(path, flags, mode);                                                                           \
    }

SHIM_OPEN(open64)
SHIM_OPEN(open)

#endif
