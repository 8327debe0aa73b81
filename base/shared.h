/*
 * Memory that processes of one host share: a memfd whose size is sealed before anybody else has it, so that nobody can
 * shrink it under who reads it (that would be SIGBUS).
 */
#ifndef AMP_SHARED_H
#define AMP_SHARED_H

#include <stdbool.h>
#include <stddef.h>

struct amp_error;

/*
 * Makes one of `size` bytes, all zero. With `memory` it is mapped here to be written, and from then on nobody else can
 * map it but to read. Without, it is for others to write, and all its pages are there: they are of the caller's
 * account. 0, and *fd is the caller's (and *memory, by amp_shared_unmap); AMP_EUNIMPLEMENTED (this kernel cannot),
 * AMP_ENOMEM, AMP_EIO with a text: nothing is held. Any thread.
 */
int amp_shared_new(const char *name, size_t size, int *fd, void **memory, struct amp_error *error);

/*
 * Maps the first `size` bytes of one that another process has made, at `place` (a multiple of a page inside of memory
 * of the caller's, which is replaced). 0; AMP_EINVAL: its size is not sealed, or it is smaller; AMP_ENOMEM. Any thread.
 */
int amp_shared_map(int fd, void *place, size_t size, bool writable, struct amp_error *error);

/* NULL is allowed. */
void amp_shared_unmap(void *memory, size_t size);

/* Bytes rounded up to whole pages. */
size_t amp_shared_pages(size_t size);

#endif
