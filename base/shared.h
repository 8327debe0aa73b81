/*
 * Memory that processes of one host share: a memfd whose size is sealed before anybody else has it, so that nobody can
 * shrink it under who reads it (that would be SIGBUS).
 */
#ifndef AMP_SHARED_H
#define AMP_SHARED_H

#include "base/large.h"

#include <stdbool.h>
#include <stddef.h>

struct amp_error;

/*
 * Makes one of `size` bytes, all zero, and maps it to be written, at a multiple of AMP_HUGE_PAGE. With `sole_writer`
 * everybody else can map it to read alone. 0, and *fd (close) and *memory (amp_shared_unmap) are the caller's;
 * AMP_EUNIMPLEMENTED (this kernel cannot), AMP_ENOMEM (or a file may not be so large), AMP_EEXHAUSTED (descriptors),
 * AMP_EIO with a text: nothing is held. A process that is to live with a limit of file sizes ignores SIGXFSZ. Any
 * thread.
 */
int amp_shared_new(const char *name, size_t size, bool sole_writer, int *fd, void **memory, struct amp_error *error);

/*
 * Makes the pages of AMP_SHARED_FILL bytes at `at`, a multiple of AMP_SHARED_FILL, or of what is left from there on;
 * they are charged to the caller's cgroup. With *huge these are huge pages, where the kernel has them for shared memory
 * (madvise(2), MADV_COLLAPSE, Linux 6.1: also where shmem_enabled is "never"; a huge page made of one small page costs
 * a twentieth of one made of 512); *huge is false after the first that could not be had. What is in the memory stays,
 * also while others use it. 0; AMP_ENOMEM: pages are missing, those that were made stay. Any thread, one at a time.
 *
 * Each MADV_COLLAPSE waits for a kernel thread on every processor, up to 0.2 s where those are busy, however little it
 * is asked for: with 2 MiB a call 2 GiB took 3 to 26 s on a busy machine, with 32 MiB 0.5 to 1.4 s.
 */
#define AMP_SHARED_FILL (16 * AMP_HUGE_PAGE)
int amp_shared_fill(int fd, void *memory, size_t size, size_t at, bool *huge);

/*
 * Maps the first `size` bytes of one that another process has made, at `place` (a multiple of a page inside of memory
 * of the caller's, which is replaced). A writable mapping is not inherited by a forked child. 0; AMP_EINVAL: its size
 * is not sealed, or it is smaller; AMP_ENOMEM. Any thread.
 */
int amp_shared_map(int fd, void *place, size_t size, bool writable, struct amp_error *error);

/* NULL is allowed. */
void amp_shared_unmap(void *memory, size_t size);

#endif
