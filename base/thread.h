/* Starts the threads of ampd and its libraries. */
#ifndef AMP_THREAD_H
#define AMP_THREAD_H

#include <pthread.h>

/*
 * As pthread_create, with the same errors, but the new thread and all that it starts have every signal blocked. In a
 * program that uses the library, signals are then delivered to the program's own threads, to its handlers or signalfds.
 * Any thread.
 */
int amp_thread_start(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *arg);

#endif
