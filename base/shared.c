#define _GNU_SOURCE /* memfd_create, F_ADD_SEALS, fallocate */
#include "base/shared.h"

#include "base/err.h"
#include "base/large.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE ((size_t)4096)

#ifndef F_SEAL_FUTURE_WRITE /* Linux 5.1 */
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

#define SIZE_SEALS (F_SEAL_SHRINK | F_SEAL_GROW)

size_t amp_shared_pages(size_t size)
{
    return (size + PAGE - 1) & ~(PAGE - 1);
}

static int failed(struct amp_error *error, const char *what)
{
    int code = errno == ENOMEM || errno == ENOSPC ? AMP_ENOMEM : errno == ENOSYS ? AMP_EUNIMPLEMENTED : AMP_EIO;
    return amp_error_set(error, code, NULL, "shared memory: %s: %s", what, strerror(errno));
}

int amp_shared_new(const char *name, size_t size, int *fd, void **memory, struct amp_error *error)
{
    size_t bytes = amp_shared_pages(size);
    int made = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (made < 0)
        return failed(error, "memfd_create");
    void *mapped = NULL;
    int rc = 0;
    if (ftruncate(made, (off_t)bytes) != 0)
        rc = failed(error, "ftruncate");
    if (rc == 0 && memory == NULL && fallocate(made, 0, 0, (off_t)bytes) != 0)
        rc = failed(error, "fallocate");
    if (rc == 0 && memory != NULL) {
        mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, made, 0);
        if (mapped == MAP_FAILED) {
            mapped = NULL;
            rc = failed(error, "mmap");
        }
    }
    if (rc == 0 && fcntl(made, F_ADD_SEALS, SIZE_SEALS | F_SEAL_SEAL | (memory != NULL ? F_SEAL_FUTURE_WRITE : 0)) != 0)
        rc = failed(error, "F_ADD_SEALS");
    if (rc != 0) {
        amp_shared_unmap(mapped, size);
        (void)close(made);
        return rc;
    }
    amp_large_advise(mapped, bytes);
    if (memory != NULL)
        *memory = mapped;
    *fd = made;
    return 0;
}

int amp_shared_map(int fd, void *place, size_t size, bool writable, struct amp_error *error)
{
    struct stat about;
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SIZE_SEALS) != SIZE_SEALS || fstat(fd, &about) != 0 || (size_t)about.st_size < size)
        return amp_error_set(error, AMP_EINVAL, NULL, "shared memory: a descriptor is not what it should be");
    void *mapped = mmap(place, amp_shared_pages(size), writable ? PROT_READ | PROT_WRITE : PROT_READ,
                        MAP_SHARED | MAP_FIXED, fd, 0);
    return mapped == MAP_FAILED ? failed(error, "mmap") : 0;
}

void amp_shared_unmap(void *memory, size_t size)
{
    if (memory != NULL)
        (void)munmap(memory, amp_shared_pages(size));
}
