/* A copy of memory that is not read again soon. Any thread. */
#ifndef AMP_COPY_H
#define AMP_COPY_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * As memcpy, but writes past the caches where the processor can: the cache lines of `to` are neither fetched from
 * memory nor kept. That is two to three times as fast if they are in no cache, and slower if they are or if `to` is
 * read right after. For large tensors. A thread that synchronises with the caller in the usual way (mutex, release and
 * acquire) sees the bytes.
 */
void amp_copy_streamed(void *to, const void *from, size_t size);

#ifdef __cplusplus
}
#endif

#endif
