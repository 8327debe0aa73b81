#define _GNU_SOURCE /* sched_setaffinity */
#include "server/io/process/verify.h"

#include "amp/cpu.h"
#include "base/thread.h"

#include <sched.h>

struct verify {
    const struct amp_kernels *kernels;
    unsigned tested, wrong; /* processors */
    int first;              /* the first wrong one */
    struct amp_error error; /* and what it does */
};

static void verify_here(struct verify *verify, int processor)
{
    struct amp_error error;
    verify->tested++;
    if (amp_kernels_verify(verify->kernels, &error) == 0 || verify->wrong++ > 0)
        return;
    verify->first = processor;
    verify->error = error;
}

/* A thread of its own: one that was told which processors to use would not get those that are added later. */
static void *verify_each(void *arg)
{
    struct verify *verify = arg;
    cpu_set_t allowed, one;
    CPU_ZERO(&allowed);
    (void)sched_getaffinity(0, sizeof allowed, &allowed); /* not where there are more than CPU_SETSIZE */
    for (int i = 0; i < CPU_SETSIZE; i++) {
        CPU_ZERO(&one);
        CPU_SET(i, &one);
        if (CPU_ISSET(i, &allowed) && sched_setaffinity(0, sizeof one, &one) == 0) /* it is still there */
            verify_here(verify, i);
    }
    if (verify->tested == 0) /* a sandbox may allow no choice */
        verify_here(verify, sched_getcpu());
    return NULL;
}

int io_verify_kernels(const struct amp_kernels *kernels, struct amp_error *error)
{
    struct verify verify = {.kernels = kernels};
    pthread_t thread;
    if (amp_thread_start(&thread, NULL, verify_each, &verify) == 0)
        (void)pthread_join(thread, NULL); /* it can be joined */
    else
        verify_here(&verify, sched_getcpu());
    if (verify.wrong == 0)
        return 0;
    if (verify.wrong == verify.tested)
        return amp_error_set(error, AMP_EINTERNAL, NULL,
                             "%s on each processor: choose other kernels with AMPD_ISA, or take another build",
                             verify.error.text);
    return amp_error_set(
        error, AMP_EINTERNAL, NULL,
        "%s on processor %d (%u of %u are wrong): leave it out by taskset or CPUAffinity= of the unit, and "
        "have this machine examined",
        verify.error.text, verify.first, verify.wrong, verify.tested);
}
