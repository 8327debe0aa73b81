/* Where the cast copies of models come from: the host may have them in memory that other processes can map. */
#ifndef AMPD_COPY_MEMORY_H
#define AMPD_COPY_MEMORY_H

#include <stddef.h>

/* On the core's thread. */
struct ampd_copy_memory {
    void *(*new_cb)(void *arg, size_t size); /* zeroed, aligned to 64; NULL: there is none */
    void (*free_cb)(void *arg, void *memory, size_t size);
    void *arg;
};

#endif
