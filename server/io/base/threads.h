/*
 * A pool of threads that take tasks from one queue, run them, and give them back to the loop. A pool of one thread runs
 * its tasks in the order of their submission (pools.h lists the pools). Functions run on the loop's thread.
 */
#ifndef AMPD_IO_THREADS_H
#define AMPD_IO_THREADS_H

#include "base/err.h"
#include "base/list.h"

#include <stdbool.h>
#include <uv.h>

struct io_threads;

/* One task, embedded in its owner, which must stay alive until done_cb. Zeroed members are defaults. */
struct io_task {
    struct amp_list node;
    void (*run_cb)(struct io_task *task);  /* does the work, on a thread of the pool */
    void (*done_cb)(struct io_task *task); /* called after that on the loop; it may free or submit the task */
    /*
     * If not NULL, called in place of run_cb, once for this task and those directly behind it in the queue that have
     * the same group_cb, at most IO_GROUP_MAX. `tasks` is a list of their nodes, which it must not change.
     */
    void (*group_cb)(struct amp_list *tasks);
    bool first;  /* queued before all that wait, because what it reads is still in the caches */
    bool urgent; /* BACKGROUND: it, and what is queued before it, runs with ordinary priority; not taken back */
    bool slow;   /* io_threads_busy_ms does not count it */
    bool queued; /* used by the pool */
};

/*
 * Most tasks of a group, which share a transaction of the store: more than there are models that wait for a verdict at
 * the same time.
 */
#define IO_GROUP_MAX 64

enum io_threads_kind {
    /* Threads sleep while there is no task. */
    IO_THREADS_PLAIN,
    /*
     * For compute: a thread that is woken on the loop's core waits for the end of the loop's time slice instead of
     * interrupting it for each task (SCHED_BATCH), and the loop is woken for several finished tasks at a time.
     */
    IO_THREADS_PATIENT,
    /*
     * For many short tasks: after a task the thread polls for the next one for a while before it sleeps, and the loop
     * polls for finished tasks (base/spin.h).
     */
    IO_THREADS_SPINNING,
    /*
     * For work that may take longer, one thread: about a sixth of a core where other threads of the same container or
     * session want it, and all that they leave (nice). Threads that a task starts are the same. As no thread can raise
     * its priority without privileges, urgent tasks get a new thread, which goes low behind the last of them.
     */
    IO_THREADS_BACKGROUND,
};

/* Starts `count` threads, 1 or more; 1 if BACKGROUND. *out is then the caller's (io_threads_close). AMP_ENOMEM. */
int io_threads_new(uv_loop_t *loop, unsigned count, enum io_threads_kind kind, struct io_threads **out);

/*
 * Queues a task. Tasks are begun in the order of the calls, except those that are `first`. It cannot fail, since the
 * queue links the tasks themselves. Tasks that are submitted from within done_cb are queued together, after the last
 * done_cb that is due, so that groups become as large as possible.
 */
void io_threads_submit(struct io_threads *threads, struct io_task *task);

/* From now on all tasks of a BACKGROUND pool run with ordinary priority, also those that are queued. */
void io_threads_raise(struct io_threads *threads);

/*
 * Takes back a task that no thread has begun: neither run_cb nor done_cb is called then. False: it is running, or has
 * run, and done_cb comes or has come.
 */
bool io_threads_take_back(struct io_threads *threads, struct io_task *task);

/*
 * For how many milliseconds the only thread of a pool has been running its present task or group of tasks. 0: it has
 * none, or a slow one, or the pool is PATIENT. Any thread.
 */
uint64_t io_threads_busy_ms(const struct io_threads *threads);

/*
 * Blocks until all queued tasks have run and the threads have ended, calls the done_cb that are due, and frees the pool
 * once the loop has closed its handles. Not from within a done_cb of this pool. No task may be submitted afterwards,
 * also not by these done_cb. NULL is allowed.
 */
void io_threads_close(struct io_threads *threads);

#endif
