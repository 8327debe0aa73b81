#define _GNU_SOURCE /* sched_setaffinity */
#include "server/io/process/verify.h"

#include "amp/cpu.h"
#include "base/thread.h"

#include <sched.h>

struct verify {
    const struct amp_kernels *kernels;
    struct amp_error *error;
    int rc;
};

static int verify_here(const struct verify *verify, int processor)
{
    struct amp_error found;
    int rc = amp_kernels_verify(verify->kernels, &found);
    if (rc == 0)
        return 0;
    return amp_error_set(
        verify->error, rc, NULL,
        "on processor %d %s: leave that processor out (taskset, or CPUAffinity= of the unit); if it is "
        "so on all, choose other kernels with AMPD_ISA, or another build",
        processor, found.text);
}

/* A thread of its own: one that was told which processors to use would not get those that are added later. */
static void *verify_each(void *arg)
{
    struct verify *verify = arg;
    cpu_set_t allowed, one;
    CPU_ZERO(&allowed);
    (void)sched_getaffinity(0, sizeof allowed, &allowed); /* not where there are more than CPU_SETSIZE */
    verify->rc = verify_here(verify, sched_getcpu());     /* in any case: a sandbox may allow no choice */
    for (int i = 0; verify->rc == 0 && i < CPU_SETSIZE; i++) {
        CPU_ZERO(&one);
        CPU_SET(i, &one);
        if (CPU_ISSET(i, &allowed) && sched_setaffinity(0, sizeof one, &one) == 0) /* it is still there */
            verify->rc = verify_here(verify, i);
    }
    return NULL;
}

int io_verify_kernels(const struct amp_kernels *kernels, struct amp_error *error)
{
    struct verify verify = {.kernels = kernels, .error = error};
    pthread_t thread;
    if (amp_thread_start(&thread, NULL, verify_each, &verify) != 0)
        return verify_here(&verify, sched_getcpu());
    (void)pthread_join(thread, NULL); /* it can be joined */
    return verify.rc;
}
