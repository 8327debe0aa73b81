/*
 * Where the memory of models' cast copies comes from: the I/O layer may give memory that other processes can map; and
 * where large memory of models goes when they are deleted. The callbacks are called on the core's thread.
 */
#ifndef AMPD_MODEL_MEMORY_H
#define AMPD_MODEL_MEMORY_H

#include <stddef.h>

struct ampd_copy_memory {
    /*
     * `size` zeroed bytes, aligned to 64; NULL: no memory is left. `before` is NULL, or the copy that the caller
     * replaces: it is returned as it is, not zeroed, if no other process can have it mapped; if not, what is returned
     * can be mapped too, and the caller frees `before`.
     */
    void *(*new_cb)(void *arg, size_t size, void *before);
    void (*free_cb)(void *arg, void *memory, size_t size);
    void *arg;
};

/*
 * Takes over `memory` of malloc, of which `size` bytes may have been used, to free it on another thread: the kernel
 * needs up to 80 ms to take a GiB back. `free_cb` NULL: the core frees it.
 */
struct ampd_large_memory {
    void (*free_cb)(void *arg, void *memory, size_t size);
    void *arg;
};

#endif
