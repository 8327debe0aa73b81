/* Threads of our own. */
#ifndef AMP_THREAD_H
#define AMP_THREAD_H

#include <pthread.h>

/*
 * As pthread_create, with the same errors. Signals are for the threads that the program's user made, so that a handler
 * or a signalfd of theirs gets them: the new one takes none, nor do those that it makes. Any thread.
 */
int amp_thread_start(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *arg);

#endif
