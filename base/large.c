#define _DEFAULT_SOURCE /* madvise, MAP_ANONYMOUS */
#include "base/large.h"

#include <stdint.h>
#include <sys/mman.h>

#define HUGE_PAGE ((uintptr_t)AMP_HUGE_PAGE)

size_t amp_large_pages(size_t size)
{
    return (size + AMP_PAGE - 1) / AMP_PAGE * AMP_PAGE;
}

void amp_large_advise(void *memory, size_t size)
{
    /* A smaller piece holds at most one whole huge page. */
    if (memory == NULL || size < 2 * HUGE_PAGE)
        return;
    uintptr_t begin = ((uintptr_t)memory + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    uintptr_t end = ((uintptr_t)memory + size) / HUGE_PAGE * HUGE_PAGE;
    (void)madvise((char *)memory + (begin - (uintptr_t)memory), end - begin, MADV_HUGEPAGE);
}

void *amp_large_new(size_t size)
{
    void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    amp_large_advise(memory, size);
    return memory;
}

void *amp_large_reserve(size_t size)
{
    size_t pages = amp_large_pages(size), room = pages + HUGE_PAGE;
    char *place = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (place == MAP_FAILED)
        return NULL;
    size_t before = (HUGE_PAGE - (uintptr_t)place % HUGE_PAGE) % HUGE_PAGE;
    if (before > 0)
        (void)munmap(place, before);
    (void)munmap(place + before + pages, room - before - pages); /* at least a page */
    return place + before;
}

void amp_large_drop(void *memory, size_t size)
{
    size_t before = (AMP_PAGE - (uintptr_t)memory % AMP_PAGE) % AMP_PAGE;
    if (size < before + AMP_PAGE)
        return;
    size_t pages = (size - before) / AMP_PAGE * AMP_PAGE;
    (void)madvise((char *)memory + before, pages, MADV_DONTNEED); /* a failure, as on locked pages, keeps them */
}

void amp_large_free(void *memory, size_t size)
{
    if (memory != NULL)
        (void)munmap(memory, size);
}
