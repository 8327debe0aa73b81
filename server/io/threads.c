#define _GNU_SOURCE /* SCHED_BATCH */
#include "server/io/threads.h"

#include "base/assert.h"
#include "server/io/wake.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>

/*
 * To sleep and be woken takes a thread 50 to 80 us where its core stops meanwhile, as long as three rows take in the store. So
 * who is to look does so for the time of both; whoever else needs the core gets it meanwhile (as rpc/io/turn.h has it for the loop).
 */
#define LOOK_NS UINT64_C(100000)
/* So many times in vain, and it sleeps at once after so many tasks before it looks again. */
#define LOOK_MISSES     4
#define LOOK_REST_TASKS 64
/* The same after others kept the core for long: who sleeps is let in sooner than who yields. */
#define LOOK_CROWDED_TASKS 1024

/* Of one thread. */
struct look {
    unsigned misses; /* in a row */
    unsigned rest;   /* tasks after which it sleeps at once */
};

struct io_threads {
    struct io_wake wake; /* some task is done */
    pthread_mutex_t lock;
    pthread_cond_t more; /* `queue` grew, or `stop` */
    struct amp_list queue, done;
    struct amp_list held; /* the loop's alone: submitted by a done_cb, not queued yet */
    bool giving_back;     /* likewise: done_cb are being called */
    bool stop;
    enum io_threads_kind kind;
    unsigned count; /* of threads that run */
    pthread_t threads[];
};

static void move_all(struct amp_list *from, struct amp_list *to)
{
    for (struct amp_list *node; (node = amp_list_shift(from)) != NULL;)
        amp_list_push(to, node);
}

/* With the lock. Moves the task at the queue's head, and those that are to run with it, to `tasks`. */
static void take(struct io_threads *pool, struct amp_list *tasks)
{
    amp_list_init(tasks);
    const struct io_task *first = AMP_CONTAINER(pool->queue.next, struct io_task, node);
    void (*group_cb)(struct amp_list *) = first->group_cb;
    for (unsigned count = 0; count < IO_GROUP_MAX && !amp_list_empty(&pool->queue); count++) {
        struct io_task *task = AMP_CONTAINER(pool->queue.next, struct io_task, node);
        if (count > 0 && (group_cb == NULL || task->group_cb != group_cb))
            break;
        task->queued = false;
        amp_list_push(tasks, amp_list_shift(&pool->queue));
    }
}

static void run(struct amp_list *tasks)
{
    struct io_task *task = AMP_CONTAINER(tasks->next, struct io_task, node);
    if (task->group_cb != NULL)
        task->group_cb(tasks);
    else
        task->run_cb(task);
}

static bool has_more(const struct io_threads *pool)
{
    return !amp_list_empty(&pool->queue) || pool->stop;
}

/* With the lock, which others get meanwhile. */
static void look_for_more(struct io_threads *pool, struct look *look)
{
    if (look->rest > 0) {
        look->rest--;
        return;
    }
    uint64_t end_ns = uv_hrtime() + LOOK_NS, now_ns = 0;
    while (!has_more(pool) && (now_ns = uv_hrtime()) < end_ns) {
        (void)pthread_mutex_unlock(&pool->lock);
        (void)sched_yield(); /* it cannot fail */
        (void)pthread_mutex_lock(&pool->lock);
    }
    if (has_more(pool)) {
        look->misses = 0;
        return;
    }
    if (++look->misses < LOOK_MISSES)
        return;
    look->misses = LOOK_MISSES - 1; /* the next one in vain is one too many again */
    look->rest = now_ns - end_ns > LOOK_NS ? LOOK_CROWDED_TASKS : LOOK_REST_TASKS;
}

static void *thread_main(void *arg)
{
    struct io_threads *pool = arg;
    struct look look = {0};
    if (pool->kind == IO_THREADS_PATIENT) /* slower without, not wrong */
        (void)pthread_setschedparam(pthread_self(), SCHED_BATCH, &(struct sched_param){0});
    (void)pthread_mutex_lock(&pool->lock); /* a plain mutex of our own: it cannot fail */
    for (;;) {
        if (pool->kind == IO_THREADS_LOOKING)
            look_for_more(pool, &look);
        while (!has_more(pool))
            (void)pthread_cond_wait(&pool->more, &pool->lock);
        if (amp_list_empty(&pool->queue))
            break;
        struct amp_list tasks;
        take(pool, &tasks);
        (void)pthread_mutex_unlock(&pool->lock);
        run(&tasks);
        (void)pthread_mutex_lock(&pool->lock);
        bool first = amp_list_empty(&pool->done);
        move_all(&tasks, &pool->done);
        if (!first)
            continue;
        /* Without the lock: whom it wakes needs it, and may get this core at once. */
        (void)pthread_mutex_unlock(&pool->lock);
        io_wake_send(&pool->wake);
        (void)pthread_mutex_lock(&pool->lock);
    }
    (void)pthread_mutex_unlock(&pool->lock);
    return NULL;
}

/*
 * What done_cb submit is queued at the end, all of it at once: one wake-up, and what may run together does. One by one, a
 * thread would wake up for the first and be in the way of the others.
 */
static void give_back(struct io_threads *pool)
{
    struct amp_list done;
    amp_list_init(&done);
    (void)pthread_mutex_lock(&pool->lock);
    move_all(&pool->done, &done);
    (void)pthread_mutex_unlock(&pool->lock);
    pool->giving_back = true;
    for (struct amp_list *node; (node = amp_list_shift(&done)) != NULL;) {
        struct io_task *task = AMP_CONTAINER(node, struct io_task, node);
        task->done_cb(task);
    }
    pool->giving_back = false;
    if (amp_list_empty(&pool->held))
        return;
    bool many = pool->count > 1;
    (void)pthread_mutex_lock(&pool->lock);
    move_all(&pool->held, &pool->queue);
    (void)(many ? pthread_cond_broadcast(&pool->more) : pthread_cond_signal(&pool->more));
    (void)pthread_mutex_unlock(&pool->lock);
}

static void on_wake(struct io_wake *wake)
{
    give_back(AMP_CONTAINER(wake, struct io_threads, wake));
}

static void on_closed(struct io_wake *wake)
{
    struct io_threads *pool = AMP_CONTAINER(wake, struct io_threads, wake);
    (void)pthread_cond_destroy(&pool->more);
    (void)pthread_mutex_destroy(&pool->lock);
    free(pool);
}

/* Signals are the loop's: a thread that inherits a full mask never takes one. */
static int start_threads(struct io_threads *pool, unsigned count)
{
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_SETMASK, &all, &before);
    int rc = 0;
    while (rc == 0 && pool->count < count) {
        rc = pthread_create(&pool->threads[pool->count], NULL, thread_main, pool);
        pool->count += rc == 0 ? 1 : 0;
    }
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc == 0 ? 0 : AMP_ENOMEM;
}

int io_threads_new(uv_loop_t *loop, unsigned count, enum io_threads_kind kind, struct io_threads **out)
{
    AMP_ASSERT(count > 0);
    *out = NULL;
    struct io_threads *pool = calloc(1, sizeof *pool + count * sizeof *pool->threads);
    if (pool == NULL || io_wake_init(&pool->wake, loop, on_wake) != 0) {
        free(pool);
        return AMP_ENOMEM;
    }
    pool->kind = kind;
    amp_list_init(&pool->queue);
    amp_list_init(&pool->done);
    amp_list_init(&pool->held);
    (void)pthread_mutex_init(&pool->lock, NULL); /* cannot fail with default attributes on Linux */
    (void)pthread_cond_init(&pool->more, NULL);
    if (start_threads(pool, count) != 0) {
        io_threads_close(pool);
        return AMP_ENOMEM;
    }
    *out = pool;
    return 0;
}

void io_threads_submit(struct io_threads *pool, struct io_task *task)
{
    AMP_ASSERT(!pool->stop); /* the loop's alone set it */
    if (pool->giving_back) {
        task->queued = true; /* it can be taken back like any other */
        amp_list_push(&pool->held, &task->node);
        return;
    }
    (void)pthread_mutex_lock(&pool->lock);
    task->queued = true;
    amp_list_push(&pool->queue, &task->node);
    (void)pthread_cond_signal(&pool->more);
    (void)pthread_mutex_unlock(&pool->lock);
}

bool io_threads_take_back(struct io_threads *pool, struct io_task *task)
{
    (void)pthread_mutex_lock(&pool->lock);
    bool queued = task->queued;
    if (queued)
        amp_list_remove(&task->node);
    task->queued = false;
    (void)pthread_mutex_unlock(&pool->lock);
    return queued;
}

void io_threads_close(struct io_threads *pool)
{
    if (pool == NULL)
        return;
    (void)pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    (void)pthread_cond_broadcast(&pool->more);
    (void)pthread_mutex_unlock(&pool->lock);
    for (unsigned i = 0; i < pool->count; i++)
        (void)pthread_join(pool->threads[i], NULL); /* our own threads, joined once */
    give_back(pool);
    io_wake_close(&pool->wake, on_closed);
}
