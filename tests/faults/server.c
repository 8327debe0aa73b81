/*
 * What turns an ampd into ampd_faults: it takes its orders from the file named by AMPD_FAULTS_FILE, and waits less
 * long.
 */
#define _GNU_SOURCE /* syscall */
#include "tests/faults/faults.h"

#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* ampd_faults.py reads and writes these. */
_Static_assert(offsetof(struct faults, left) == 16 && offsetof(struct faults, dir) == 40 &&
                   offsetof(struct faults, real_sync) == 328 && sizeof(struct faults) == 336,
               "the layout of ampd_faults.py");

__attribute__((constructor)) static void take_orders(void)
{
    const char *path = getenv("AMPD_FAULTS_FILE");
    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* nothing outlives a test that is ended */
    int fd = path != NULL ? (int)syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0)
        return;
    void *memory = mmap(NULL, sizeof *faults, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    (void)syscall(SYS_close, fd); /* the mapping stays */
    if (memory == MAP_FAILED)
        abort();
    faults_install();
    faults = memory;
}

/* Waits between two tries are made short: the clock of a test. */
__attribute__((visibility("default"))) int nanosleep(const struct timespec *time, struct timespec *left)
{
    unsigned speed = atomic_load(&faults->speed);
    long long ns = (time->tv_sec * 1000000000LL + time->tv_nsec) / (speed > 0 ? speed : 1);
    struct timespec shorter = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    return (int)syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &shorter, left);
}
