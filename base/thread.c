#include "base/thread.h"

#include <signal.h>

int amp_thread_start(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *arg)
{
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = pthread_create(thread, attributes, run, arg);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}
