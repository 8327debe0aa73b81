/* The values of options of servers and channels, with defaults for those that are 0. Internal to rpc/io. */
#ifndef ARPC_IO_OPTIONS_H
#define ARPC_IO_OPTIONS_H

#include <stddef.h>
#include <stdint.h>

static inline size_t arpc_or_size(size_t value, size_t otherwise)
{
    return value != 0 ? value : otherwise;
}

static inline int64_t arpc_or_ms(int64_t value, int64_t otherwise)
{
    return value != 0 ? value : otherwise;
}

/*
 * The window of a stream in bytes. The default of 16 MiB is enough for 10 Gbit/s at a round trip of 13 ms; at most
 * 1 GiB, since RFC 9113 section 6.9.1 allows 2^31-1 bytes.
 */
static inline size_t arpc_or_window(size_t value)
{
    size_t most = (size_t)1 << 30;
    value = arpc_or_size(value, (size_t)16 << 20);
    return value < most ? value : most;
}

#endif
