#include "storage/bulk.h"

#include "base/large.h"

#include <signal.h>
#include <stdlib.h>

uint8_t *bulk_memory(uint64_t windows)
{
    uint8_t *memory = aligned_alloc(BULK_WINDOW, windows * BULK_WINDOW);
    amp_large_advise(memory, windows * BULK_WINDOW);
    return memory;
}

int bulk_thread_start(pthread_t *thread, void *(*run)(void *), void *arg)
{
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(thread, NULL, run, arg);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}
