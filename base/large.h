/* Large pieces of memory, in huge pages where the kernel has them. Any thread. */
#ifndef AMP_LARGE_H
#define AMP_LARGE_H

#include <stddef.h>

/* Bytes of a page and of a huge page on the machines that ampd runs on. */
#define AMP_PAGE      ((size_t)4096)
#define AMP_HUGE_PAGE ((size_t)2 << 20)

/* `size` rounded up to whole pages (AMP_PAGE). */
size_t amp_large_pages(size_t size);

/*
 * Asks the kernel for huge pages (2 MiB) in the part of [memory, memory + size) that consists of whole ones; for memory
 * that is used from end to end, as tensors are. On a virtual machine each TLB miss walks two page tables: with huge
 * pages a checkpoint was restored almost twice as fast, and a push and its apply took a tenth less time. The memory is
 * not touched. This is only advice: where there are no huge pages nothing changes. NULL is allowed.
 */
void amp_large_advise(void *memory, size_t size);

/*
 * Allocates zeroed memory in pages of its own, with amp_large_advise, that goes back to the kernel when it is freed:
 * for large pieces that are allocated and freed often. malloc may keep freed memory, and glibc's aligned_alloc before
 * 2.38 does not reuse it: a process that held two pieces of 16 MiB at a time grew to 400 MiB. NULL: out of memory, or
 * size is 0. The memory is the caller's, to be freed by amp_large_free with the same size (NULL is allowed).
 */
void *amp_large_new(size_t size);
void amp_large_free(void *memory, size_t size);

/*
 * Gives the whole pages (AMP_PAGE) of [memory, memory + size), which stays the caller's, back to the kernel. The
 * content of all bytes is undefined then. For private memory, not for a mapped file.
 */
void amp_large_drop(void *memory, size_t size);

/*
 * Reserves a range of addresses for `size` bytes that begins at a multiple of AMP_HUGE_PAGE, for file mappings: these
 * have huge pages only where address and file offset agree modulo a huge page. The range cannot be read or written
 * until something is mapped there. NULL: there is no such range. amp_large_free frees it together with the mappings in
 * it.
 */
void *amp_large_reserve(size_t size);

#endif
