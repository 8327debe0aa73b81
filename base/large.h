/* Large memory. */
#ifndef AMP_LARGE_H
#define AMP_LARGE_H

#include <stddef.h>

/*
 * Asks the kernel for huge pages (2 MiB) where [memory, memory + size) holds whole ones: for what is used from end to
 * end, as tensors are. A virtual machine walks two page tables for each page that the processor does not remember: with
 * huge ones a checkpoint was restored almost twice as quickly, and a push and its apply took a tenth less time. It
 * touches nothing, and is only advice: without huge pages all is as before. NULL is allowed. Any thread.
 */
void amp_large_advise(void *memory, size_t size);

#endif
