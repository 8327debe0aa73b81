/*
 * Memory that processes on one host share: a memfd whose size is sealed before another process gets its descriptor, so
 * that no process can shrink it while another one reads it (which would then get SIGBUS). Any thread.
 */
#ifndef AMP_SHARED_H
#define AMP_SHARED_H

#include "base/large.h"

#include <stdbool.h>
#include <stddef.h>

struct amp_error;

/*
 * Creates a memfd of `size` bytes (rounded up to whole pages), all zero, and maps it for writing at a multiple of
 * AMP_HUGE_PAGE. With `sole_writer` no mapping that is made later can be written; without, `size` is a multiple of
 * AMP_HUGE_PAGE (amp_shared_keeps_pages says why). On success *fd (close) and *memory (amp_shared_unmap with the same
 * size) are the caller's. AMP_EUNIMPLEMENTED: the kernel has no memfd; AMP_ENOMEM: out of memory, or above the limit of
 * file sizes (RLIMIT_FSIZE; the process must ignore SIGXFSZ, or it is killed instead); AMP_EEXHAUSTED: too many open
 * files; AMP_EIO. After an error nothing is to be freed.
 */
int amp_shared_new(const char *name, size_t size, bool sole_writer, int *fd, void **memory, struct amp_error *error);

/*
 * Allocates the pages of the AMP_SHARED_FILL bytes at offset `at`, a multiple of AMP_SHARED_FILL, or of the bytes that
 * are left from there on. The pages are charged to the caller's cgroup. With *huge they become huge pages, where the
 * kernel has these for shared memory: MADV_COLLAPSE (madvise(2), Linux 6.1), which works even if shmem_enabled is
 * "never". (A huge page made from one small page costs a twentieth of one made from 512.) *huge becomes false after the
 * first failure of that. The content does not change, also while other processes use the memory. 0, or AMP_ENOMEM:
 * there were not enough pages; those that were allocated stay. One thread at a time for each memfd.
 *
 * From Linux 5.14 on it takes no lock of the file (amp_shared_keeps_pages says why).
 *
 * Each MADV_COLLAPSE waits for a kernel thread on every processor, up to 0.2 s if they are busy, whatever its size: on
 * a busy machine 2 GiB took 3 to 26 s with 2 MiB a call, and 0.5 to 1.4 s with 32 MiB.
 */
#define AMP_SHARED_FILL (16 * AMP_HUGE_PAGE)
int amp_shared_fill(int fd, void *memory, size_t size, size_t at, bool *huge);

/*
 * Whether a memfd that amp_shared_new has made without `sole_writer`, and amp_shared_fill has filled, has all its
 * pages, and no process can take one out any more, because one of the others has sealed it (amp_shared_map). Then a
 * mapping of it can be read without a fault, whatever other processes do. 0; AMP_EINVAL: it is not sealed, or pages are
 * missing; AMP_EIO.
 *
 * It takes no lock of the file's. To add the seal here would: a process that has the descriptor can hold that lock as
 * long as it likes, by a write(2) from memory whose pages do not come (userfaultfd, or a mapped file of FUSE). Pages
 * are counted, and MADV_COLLAPSE can add some behind the end of a file that ends within a huge page; hence its size.
 */
int amp_shared_keeps_pages(int fd, struct amp_error *error);

/*
 * Maps the first `size` bytes of a memfd that another process has created at `place`, a page boundary in memory of the
 * caller's (amp_large_reserve), whose content the mapping replaces. A forked child does not inherit a writable mapping,
 * and after one the memfd, if it takes seals, is sealed (F_SEAL_FUTURE_WRITE): no process can take pages out of it,
 * write to it by its descriptor, or map it for writing; mappings that exist stay as they are. 0; AMP_EINVAL: the
 * memfd's size is not sealed, or it is smaller than `size`; AMP_ENOMEM; AMP_EIO. After an error something may be mapped
 * at `place`.
 */
int amp_shared_map(int fd, void *place, size_t size, bool writable, struct amp_error *error);

/* Removes the mapping of amp_shared_new or amp_shared_map. NULL is allowed. */
void amp_shared_unmap(void *memory, size_t size);

#endif
