/*
 * Threads that take tasks from one queue and give them back to the loop: a pool for compute, and single threads that
 * keep the order of their tasks (the store's writer, its reader, checkpoint files).
 */
#ifndef AMPD_IO_THREADS_H
#define AMPD_IO_THREADS_H

#include "base/err.h"
#include "base/list.h"

#include <stdbool.h>
#include <uv.h>

struct io_threads;

/* Embedded in what is to be done. The owner keeps it alive until done_cb. */
struct io_task {
    struct amp_list node;
    void (*run_cb)(struct io_task *task);  /* on a thread of the pool */
    void (*done_cb)(struct io_task *task); /* afterwards, on the loop; the task may be freed in it */
    /*
     * NULL, or: called once for the task and all right behind it in the queue that have the same one, at most
     * IO_GROUP_MAX, instead of each one's run_cb. It leaves `tasks`, a list of their nodes, as it is.
     */
    void (*group_cb)(struct amp_list *tasks);
    bool first;  /* begun before all that wait: what it reads is still in the caches, or more depends on it */
    bool queued; /* the pool's */
};

/* What one transaction may hold: more tasks than models that wait for their verdicts at a time. */
#define IO_GROUP_MAX 64

enum io_threads_kind {
    IO_THREADS_PLAIN,
    /*
     * Where the loop is busy on the same core, they wait for the end of its time slice instead of interrupting it for
     * each task.
     */
    IO_THREADS_PATIENT,
    /*
     * For many short tasks: after one they spin for more for a while before they sleep, and so does the loop for what
     * they have done (base/spin.h).
     */
    IO_THREADS_SPINNING,
};

/* `count` threads, at least 1. On success *out is the caller's (io_threads_close). AMP_ENOMEM. */
int io_threads_new(uv_loop_t *loop, unsigned count, enum io_threads_kind kind, struct io_threads **out);

/*
 * Queues a task; tasks are begun in order, but for those that are `first`. On the loop. Never fails: the queue is in
 * the tasks. What a done_cb submits is queued when the last done_cb that is due has been called, so that groups are as
 * large as they can be.
 */
void io_threads_submit(struct io_threads *threads, struct io_task *task);

/*
 * Takes a task back that no thread has begun: neither run_cb nor done_cb is called. False: it is running, or done. On
 * the loop.
 */
bool io_threads_take_back(struct io_threads *threads, struct io_task *task);

/*
 * Waits until everything queued has run, ends the threads, calls what done_cb are due, and frees the pool once the loop
 * has closed its handles. On the loop, and not in a done_cb of its own; nothing may be submitted afterwards. NULL is
 * allowed.
 */
void io_threads_close(struct io_threads *threads);

#endif
