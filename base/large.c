#define _DEFAULT_SOURCE /* madvise */
#include "base/large.h"

#include <stdint.h>
#include <sys/mman.h>

#define HUGE_PAGE ((uintptr_t)2 << 20)

void amp_large_advise(void *memory, size_t size)
{
    /* Of a smaller one at most a page is inside. */
    if (memory == NULL || size < 2 * HUGE_PAGE)
        return;
    uintptr_t begin = ((uintptr_t)memory + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    uintptr_t end = ((uintptr_t)memory + size) / HUGE_PAGE * HUGE_PAGE;
    (void)madvise((char *)memory + (begin - (uintptr_t)memory), end - begin, MADV_HUGEPAGE);
}
