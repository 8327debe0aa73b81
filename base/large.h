/* Large memory. */
#ifndef AMP_LARGE_H
#define AMP_LARGE_H

#include <stddef.h>

/* Bytes of a page on the machines that ampd runs on, and of a huge one. */
#define AMP_PAGE      ((size_t)4096)
#define AMP_HUGE_PAGE ((size_t)2 << 20)

/* Bytes rounded up to whole pages. */
size_t amp_large_pages(size_t size);

/*
 * Asks the kernel for huge pages (2 MiB) where [memory, memory + size) holds whole ones: for what is used from end to
 * end, as tensors are. A virtual machine walks two page tables for each page that the processor does not remember: with
 * huge ones a checkpoint was restored almost twice as quickly, and a push and its apply took a tenth less time. It
 * touches nothing, and is only advice: without huge pages all is as before. NULL is allowed. Any thread.
 */
void amp_large_advise(void *memory, size_t size);

/*
 * Memory of its own pages, so advised, that goes back to the kernel when it is freed: for large pieces that come and
 * go. malloc may keep theirs, and glibc's aligned_alloc before 2.38 finds no use for it, so that a process that holds
 * two of 16 MiB at a time grew to 400. Zeros; NULL: there is none, or size is 0. Freed by amp_large_free with the same
 * size.
 */
void *amp_large_new(size_t size);
void amp_large_free(void *memory, size_t size);

/*
 * Addresses for `size` bytes, that of the first a multiple of AMP_HUGE_PAGE, for mappings of files: those have huge
 * pages only where address and offset are alike. Nothing can be read or written there. NULL: there are none. Freed by
 * amp_large_free, with what has been mapped there.
 */
void *amp_large_reserve(size_t size);

#endif
