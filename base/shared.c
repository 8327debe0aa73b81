#define _GNU_SOURCE /* memfd_create, F_ADD_SEALS, fallocate */
#include "base/shared.h"

#include "base/assert.h"
#include "base/err.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE /* Linux 5.1 */
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#ifndef MFD_NOEXEC_SEAL /* Linux 6.3 */
#define MFD_NOEXEC_SEAL 0x0008U
#endif

#ifndef MADV_POPULATE_WRITE /* Linux 5.14 */
#define MADV_POPULATE_WRITE 23
#endif

#ifndef MADV_COLLAPSE /* Linux 6.1 */
#define MADV_COLLAPSE 25
#endif

#define STAT_BLOCK 512 /* bytes: the unit of st_blocks */

#define SIZE_SEALS (F_SEAL_SHRINK | F_SEAL_GROW)

/* F_SEAL_FUTURE_WRITE forbids new writable mappings, write(2), and FALLOC_FL_PUNCH_HOLE, which MADV_REMOVE uses too. */
#define WRITE_SEALS (F_SEAL_FUTURE_WRITE | F_SEAL_SEAL)

static int failed(struct amp_error *error, const char *what)
{
    int why = errno, code = AMP_EIO;
    if (why == ENOMEM || why == ENOSPC || why == EFBIG)
        code = AMP_ENOMEM;
    else if (why == EMFILE || why == ENFILE)
        code = AMP_EEXHAUSTED;
    else if (why == ENOSYS)
        code = AMP_EUNIMPLEMENTED;
    return amp_error_set(error, code, NULL, "shared memory: %s: %s", what, strerror(why));
}

/* With vm.memfd_noexec=2, Linux 6.3 to 6.5 refuse a memfd without MFD_NOEXEC_SEAL; older kernels refuse the flag. */
static int create(const char *name)
{
    int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    return fd < 0 && errno == EINVAL ? memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING) : fd;
}

int amp_shared_new(const char *name, size_t size, bool sole_writer, int *fd, void **memory, struct amp_error *error)
{
    AMP_ASSERT(sole_writer || size % AMP_HUGE_PAGE == 0);
    size_t bytes = amp_large_pages(size);
    int made = create(name);
    if (made < 0)
        return failed(error, "memfd_create");
    void *place = amp_large_reserve(bytes);
    int rc = 0;
    if (ftruncate(made, (off_t)bytes) != 0)
        rc = failed(error, "ftruncate");
    else if (place == NULL || mmap(place, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, made, 0) == MAP_FAILED)
        rc = failed(error, "mmap");
    else if (fcntl(made, F_ADD_SEALS, SIZE_SEALS | (sole_writer ? WRITE_SEALS : 0)) != 0)
        rc = failed(error, "F_ADD_SEALS");
    if (rc != 0) {
        amp_large_free(place, bytes);
        (void)close(made);
        return rc;
    }
    *memory = place;
    *fd = made;
    return 0;
}

/* Through the mapping, as a write would do it; before Linux 5.14 by the descriptor, which takes the file's lock. */
static int allocate(int fd, void *memory, size_t at, size_t bytes)
{
    if (madvise((uint8_t *)memory + at, bytes, MADV_POPULATE_WRITE) == 0)
        return 0;
    return errno == EINVAL && fallocate(fd, 0, (off_t)at, (off_t)bytes) == 0 ? 0 : AMP_ENOMEM;
}

int amp_shared_fill(int fd, void *memory, size_t size, size_t at, bool *huge)
{
    size_t left = amp_large_pages(size) - at, end = at + (left < AMP_SHARED_FILL ? left : AMP_SHARED_FILL);
    size_t whole = *huge ? (end - at) / AMP_HUGE_PAGE * AMP_HUGE_PAGE : 0;
    for (size_t page = 0; page < whole; page += AMP_HUGE_PAGE) /* a huge page is made of one small page at least */
        if (allocate(fd, memory, at + page, AMP_PAGE) != 0)
            return AMP_ENOMEM;
    if (whole > 0 && madvise((uint8_t *)memory + at, whole, MADV_COLLAPSE) != 0) {
        *huge = false;
        whole = 0; /* some may be huge, and stay so */
    }
    int rc = 0;
    /* 2 MiB a call: during one no thread of this process can map memory. */
    for (size_t from = at + whole, next; rc == 0 && from < end; from = next) {
        next = end - from < AMP_HUGE_PAGE ? end : from + AMP_HUGE_PAGE;
        rc = allocate(fd, memory, from, next - from);
    }
    return rc;
}

int amp_shared_keeps_pages(int fd, struct amp_error *error)
{
    struct stat about;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || fstat(fd, &about) != 0) /* after the seals: they wait for the end of a call that takes pages out */
        return failed(error, "F_GET_SEALS");
    if ((seals & F_SEAL_FUTURE_WRITE) == 0)
        return amp_error_set(error, AMP_EINVAL, NULL,
                             "shared memory: it is not sealed; add F_SEAL_FUTURE_WRITE once it is mapped");
    if ((uint64_t)about.st_blocks * STAT_BLOCK < (uint64_t)about.st_size)
        return amp_error_set(
            error, AMP_EINVAL, NULL,
            "shared memory: a process has taken pages out of it; attach again, and punch no holes into a slot "
            "(fallocate, MADV_REMOVE)");
    return 0;
}

int amp_shared_map(int fd, void *place, size_t size, bool writable, struct amp_error *error)
{
    struct stat about;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SIZE_SEALS) != SIZE_SEALS || fstat(fd, &about) != 0 || (size_t)about.st_size < size)
        return amp_error_set(
            error, AMP_EINVAL, NULL,
            "shared memory: the descriptor is no memfd, too small, or can still be shrunk; see that the program "
            "at the socket is an ampd, and as new as this one");
    void *mapped = mmap(place, amp_large_pages(size), writable ? PROT_READ | PROT_WRITE : PROT_READ,
                        MAP_SHARED | MAP_FIXED, fd, 0);
    if (mapped == MAP_FAILED)
        return failed(error, "mmap");
    /* EPERM: it is of an older server, which has forbidden seals and reads it by its descriptor. */
    if (writable && fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE) != 0 && errno != EPERM)
        return failed(error, "F_ADD_SEALS");
    /*
     * A forked child would keep the pages of a slot that has ended, and could write to them. A failure changes nothing.
     */
    if (writable)
        (void)madvise(mapped, amp_large_pages(size), MADV_DONTFORK);
    return 0;
}

void amp_shared_unmap(void *memory, size_t size)
{
    if (memory != NULL)
        (void)munmap(memory, amp_large_pages(size));
}
