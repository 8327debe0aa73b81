#define _GNU_SOURCE /* SCHED_BATCH, nice */
#include "server/io/base/threads.h"

#include "base/assert.h"
#include "base/spin.h"
#include "base/thread.h"
#include "server/io/base/wake.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

/* How long a thread polls for another task: the loop may be asleep, and takes about as long to wake. */
#define THREAD_SPIN_NS UINT64_C(100000)
/*
 * How long the loop polls for finished tasks: eight rows in the store take 200 us, and 350 us with the sync of a fast
 * disk.
 */
#define LOOP_SPIN_NS UINT64_C(400000)

/*
 * For this long a patient pool does not wake the loop again for finished tasks, as long as tasks are queued: ten jobs
 * of an apply pass for each thread. A loop that was woken for every task took a fifth of the threads' time.
 */
#define PATIENCE_NS UINT64_C(1000000)

/* Added to the nice value of background threads, as by the command nice: the kernel weighs them 215 to 1024. */
#define BACKGROUND_NICE 7

struct io_threads {
    struct io_wake wake; /* sent when tasks are done and the loop does not poll */
    pthread_mutex_t lock;
    pthread_cond_t more;         /* signalled when `queue` grows and when `stop` is set */
    struct amp_list queue, done; /* tasks that wait for a thread, and those that wait for the loop */
    /* Whether `queue` and `done` have tasks: written with the lock, and read also without it. */
    atomic_bool has_more, has_done;
    /* When the thread began with what io_threads_busy_ms counts, or 0. Not PATIENT. */
    atomic_uint_least64_t begun_ns;
    bool spins;        /* the loop polls for `done` */
    uint64_t woken_ns; /* PATIENT: when the loop was woken last */
    bool stop;         /* io_threads_close was called: threads end when `queue` is empty */
    bool low;          /* the thread has a low priority, or gives itself one before the task in its hand */
    bool raised;       /* io_threads_raise was called */
    unsigned urgent;   /* tasks in `queue` that are */
    bool heir;         /* a thread of ordinary priority is to replace this one, and waits for its end */
    /* The following are used by the loop's thread only. */
    struct amp_list held; /* tasks submitted by a done_cb, not queued yet */
    bool giving_back;     /* done_cb are being called */
    unsigned out;         /* tasks that were submitted and not given back */
    uv_idle_t idle;       /* runs while the loop polls, which keeps it from sleeping */
    uv_check_t check;     /* runs while the loop polls, once in each turn */
    struct amp_spin spin;
    uint64_t spin_end_ns; /* when polling ends */
    unsigned handles;     /* that are open */
    enum io_threads_kind kind;
    pthread_t before; /* with `heir`: the thread that ends */
    unsigned count;   /* of threads that run */
    pthread_t threads[];
};

static void move_all(struct amp_list *from, struct amp_list *to)
{
    for (struct amp_list *node; (node = amp_list_shift(from)) != NULL;)
        amp_list_push(to, node);
}

static void *heir_main(void *arg);

/* With the lock, on the loop's thread, whose priority the new thread has. Without it tasks are only slower. */
static void replace_low(struct io_threads *pool)
{
    pthread_t heir;
    if (!pool->low || pool->heir)
        return;
    pool->before = pool->threads[0];
    if (amp_thread_start(&heir, NULL, heir_main, pool) != 0)
        return;
    pool->threads[0] = heir;
    pool->heir = true;
    (void)pthread_cond_signal(&pool->more);
}

/* With the lock. */
static void enqueue(struct io_threads *pool, struct io_task *task)
{
    amp_list_push(task->first ? pool->queue.next : &pool->queue, &task->node);
    pool->urgent += task->urgent ? 1 : 0;
    if (task->urgent || pool->raised)
        replace_low(pool);
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
        pool->urgent -= task->urgent ? 1 : 0;
        amp_list_push(tasks, amp_list_shift(&pool->queue));
    }
    atomic_store(&pool->has_more, !amp_list_empty(&pool->queue));
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

/* Polls for a task for a while, if that has been worth it lately. Called with the lock, which it releases meanwhile. */
static void spin_for_more(struct io_threads *pool, struct amp_spin *spin)
{
    uint64_t now_ns = uv_hrtime();
    if (has_more(pool) || !amp_spin_begin(spin, now_ns)) /* a task that is there already says nothing about polling */
        return;
    uint64_t end_ns = now_ns + THREAD_SPIN_NS;
    (void)pthread_mutex_unlock(&pool->lock);
    for (; !atomic_load(&pool->has_more) && now_ns < end_ns; now_ns = uv_hrtime())
        (void)sched_yield(); /* it cannot fail */
    (void)pthread_mutex_lock(&pool->lock);
    if (has_more(pool))
        amp_spin_found(spin, end_ns, now_ns);
    else
        amp_spin_missed(spin, end_ns, now_ns);
}

/*
 * With the lock, when tasks are done: whether this thread must wake the loop. It must if these are the first in `done`
 * (`first`) and the loop does not poll. Patient threads do not if more tasks are queued and the loop was woken a moment
 * ago, since each time it takes a core from one of them; the thread that takes the last task wakes it, or
 * io_threads_take_back if that takes it.
 */
static bool is_to_wake(struct io_threads *pool, bool first)
{
    if (pool->spins || pool->kind != IO_THREADS_PATIENT)
        return first && !pool->spins;
    uint64_t now_ns = uv_hrtime();
    if (has_more(pool) && now_ns - pool->woken_ns < PATIENCE_NS)
        return false;
    pool->woken_ns = now_ns;
    return true;
}

/* With the lock: whether the thread gives itself a low priority now, since no task from this one on is urgent. */
static bool goes_low(struct io_threads *pool, const struct io_task *task)
{
    bool goes = pool->kind == IO_THREADS_BACKGROUND && !task->urgent && pool->urgent == 0;
    goes = goes && !pool->low && !pool->raised;
    pool->low = pool->low || goes;
    return goes;
}

/* Runs tasks until the pool is stopped or there is an heir. With the lock, which it releases meanwhile. */
static void serve(struct io_threads *pool)
{
    struct amp_spin spin = {0};
    for (;;) {
        if (pool->kind == IO_THREADS_SPINNING)
            spin_for_more(pool, &spin);
        while (!has_more(pool) && !pool->heir)
            (void)pthread_cond_wait(&pool->more, &pool->lock);
        if (amp_list_empty(&pool->queue) || pool->heir)
            break;
        struct amp_list tasks;
        take(pool, &tasks);
        const struct io_task *task = AMP_CONTAINER(tasks.next, struct io_task, node);
        bool low = goes_low(pool, task);
        if (pool->kind != IO_THREADS_PATIENT && !task->slow)
            atomic_store(&pool->begun_ns, uv_hrtime());
        (void)pthread_mutex_unlock(&pool->lock);
        if (low)
            (void)nice(BACKGROUND_NICE); /* on Linux the thread's own; a failure makes others slower */
        run(&tasks);
        atomic_store(&pool->begun_ns, 0);
        (void)pthread_mutex_lock(&pool->lock);
        bool first = amp_list_empty(&pool->done);
        move_all(&tasks, &pool->done);
        atomic_store(&pool->has_done, true);
        if (!is_to_wake(pool, first))
            continue;
        /* Without the lock: the loop that it wakes needs the lock, and may get this core at once. */
        (void)pthread_mutex_unlock(&pool->lock);
        io_wake_send(&pool->wake);
        (void)pthread_mutex_lock(&pool->lock);
    }
}

static void *thread_main(void *arg)
{
    struct io_threads *pool = arg;
    if (pool->kind == IO_THREADS_PATIENT) /* a failure only makes something slower */
        (void)pthread_setschedparam(pthread_self(), SCHED_BATCH, &(struct sched_param){0});
    (void)pthread_mutex_lock(&pool->lock); /* a plain mutex of our own: it cannot fail */
    serve(pool);
    (void)pthread_mutex_unlock(&pool->lock);
    return NULL;
}

static void *heir_main(void *arg)
{
    struct io_threads *pool = arg;
    (void)pthread_join(pool->before, NULL); /* written before this thread began, and by no other while it is the heir */
    (void)pthread_mutex_lock(&pool->lock);
    pool->heir = pool->low = false;
    serve(pool);
    (void)pthread_mutex_unlock(&pool->lock);
    return NULL;
}

/* ---- the loop ---- */

/* Does nothing: an idle handle that is active keeps the loop from sleeping. */
static void on_idle(uv_idle_t *idle)
{
    (void)idle;
}

static void on_spin(uv_check_t *check);

/* With the lock. The loop begins to poll for tasks that are out, if that has been worth it lately. */
static void spin_begins(struct io_threads *pool)
{
    if (pool->kind != IO_THREADS_SPINNING || pool->spins)
        return;
    uint64_t now_ns = uv_hrtime();
    if (!amp_spin_begin(&pool->spin, now_ns))
        return;
    pool->spins = true;
    pool->spin_end_ns = now_ns + LOOP_SPIN_NS;
    (void)uv_idle_start(&pool->idle, on_idle);
    (void)uv_check_start(&pool->check, on_spin);
}

/* With the lock. Polling ends: from now on a thread wakes the loop again. */
static void spin_ends(struct io_threads *pool)
{
    pool->spins = false;
    (void)uv_idle_stop(&pool->idle);
    (void)uv_check_stop(&pool->check);
}

/*
 * Calls done_cb of all finished tasks. The tasks that these submit are queued at the end, all at once: then one wake-up
 * is enough, and tasks of a group run together. Queued one by one, a thread would wake up for the first one and contend
 * with the loop for the lock while the others are queued.
 */
static void give_back(struct io_threads *pool)
{
    struct amp_list done;
    amp_list_init(&done);
    (void)pthread_mutex_lock(&pool->lock);
    move_all(&pool->done, &done);
    atomic_store(&pool->has_done, false);
    (void)pthread_mutex_unlock(&pool->lock);
    pool->giving_back = true;
    for (struct amp_list *node; (node = amp_list_shift(&done)) != NULL;) {
        struct io_task *task = AMP_CONTAINER(node, struct io_task, node);
        pool->out--;
        task->done_cb(task);
    }
    pool->giving_back = false;
    if (pool->out == 0)
        return;
    (void)pthread_mutex_lock(&pool->lock);
    spin_begins(pool);
    if (!amp_list_empty(&pool->held)) {
        for (struct amp_list *node; (node = amp_list_shift(&pool->held)) != NULL;)
            enqueue(pool, AMP_CONTAINER(node, struct io_task, node));
        atomic_store(&pool->has_more, true);
        (void)(pool->count > 1 ? pthread_cond_broadcast(&pool->more) : pthread_cond_signal(&pool->more));
    }
    (void)pthread_mutex_unlock(&pool->lock);
}

/*
 * Polls for finished tasks once in each turn of the loop, after its poll for I/O, so that the answers that done_cb give
 * are sent in this turn, together with others (rpc/io/deferred.h).
 */
static void on_spin(uv_check_t *check)
{
    struct io_threads *pool = check->data;
    if (pool->out > 0 && !atomic_load(&pool->has_done))
        (void)sched_yield(); /* it cannot fail */
    uint64_t now_ns = uv_hrtime();
    if (pool->out > 0 && !atomic_load(&pool->has_done) && now_ns < pool->spin_end_ns)
        return;
    (void)pthread_mutex_lock(&pool->lock);
    bool found = !amp_list_empty(&pool->done);
    if (found)
        amp_spin_found(&pool->spin, pool->spin_end_ns, now_ns);
    else if (pool->out > 0)
        amp_spin_missed(&pool->spin, pool->spin_end_ns, now_ns);
    spin_ends(pool);
    (void)pthread_mutex_unlock(&pool->lock);
    if (found)
        give_back(pool);
}

static void on_wake(struct io_wake *wake)
{
    give_back(AMP_CONTAINER(wake, struct io_threads, wake));
}

/* ---- life ---- */

static void on_handle_closed(struct io_threads *pool)
{
    if (--pool->handles > 0)
        return;
    (void)pthread_cond_destroy(&pool->more);
    (void)pthread_mutex_destroy(&pool->lock);
    free(pool);
}

static void on_wake_closed(struct io_wake *wake)
{
    on_handle_closed(AMP_CONTAINER(wake, struct io_threads, wake));
}

static void on_spin_closed(uv_handle_t *handle)
{
    on_handle_closed(handle->data);
}

static int start_threads(struct io_threads *pool, unsigned count)
{
    int rc = 0;
    while (rc == 0 && pool->count < count) {
        rc = amp_thread_start(&pool->threads[pool->count], NULL, thread_main, pool);
        pool->count += rc == 0 ? 1 : 0;
    }
    return rc == 0 ? 0 : AMP_ENOMEM;
}

int io_threads_new(uv_loop_t *loop, unsigned count, enum io_threads_kind kind, struct io_threads **out)
{
    AMP_ASSERT(count > 0 && (count == 1 || kind != IO_THREADS_BACKGROUND)); /* replace_low knows one thread */
    *out = NULL;
    struct io_threads *pool = calloc(1, sizeof *pool + count * sizeof *pool->threads);
    if (pool == NULL || io_wake_init(&pool->wake, loop, on_wake) != 0) {
        free(pool);
        return AMP_ENOMEM;
    }
    (void)uv_idle_init(loop, &pool->idle); /* neither can fail */
    (void)uv_check_init(loop, &pool->check);
    pool->idle.data = pool->check.data = pool;
    pool->handles = 3;
    pool->kind = kind;
    atomic_init(&pool->has_more, false);
    atomic_init(&pool->has_done, false);
    atomic_init(&pool->begun_ns, 0);
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
    AMP_ASSERT(!pool->stop); /* only the loop's thread sets it, so no lock is needed */
    pool->out++;
    if (pool->giving_back) {
        task->queued = true; /* so that it can be taken back like one in the queue */
        amp_list_push(&pool->held, &task->node);
        return;
    }
    (void)pthread_mutex_lock(&pool->lock);
    task->queued = true;
    enqueue(pool, task);
    atomic_store(&pool->has_more, true);
    if (pool->out == 1) /* otherwise the loop polls already, or has polled without success */
        spin_begins(pool);
    (void)pthread_cond_signal(&pool->more);
    (void)pthread_mutex_unlock(&pool->lock);
}

void io_threads_raise(struct io_threads *pool)
{
    (void)pthread_mutex_lock(&pool->lock);
    pool->raised = true;
    replace_low(pool);
    (void)pthread_mutex_unlock(&pool->lock);
}

bool io_threads_take_back(struct io_threads *pool, struct io_task *task)
{
    AMP_ASSERT(!task->urgent); /* the pool counts them */
    (void)pthread_mutex_lock(&pool->lock);
    bool queued = task->queued;
    if (queued)
        amp_list_remove(&task->node);
    atomic_store(&pool->has_more, !amp_list_empty(&pool->queue));
    pool->out -= queued ? 1 : 0;
    task->queued = false;
    bool lies = !amp_list_empty(&pool->done);
    (void)pthread_mutex_unlock(&pool->lock);
    if (lies)
        io_wake_send(&pool->wake);
    return queued;
}

uint64_t io_threads_busy_ms(const struct io_threads *pool)
{
    uint64_t begun_ns = atomic_load(&pool->begun_ns), now_ns = uv_hrtime();
    return begun_ns == 0 || begun_ns > now_ns ? 0 : (now_ns - begun_ns) / 1000000;
}

void io_threads_close(struct io_threads *pool)
{
    if (pool == NULL)
        return;
    (void)pthread_mutex_lock(&pool->lock);
    pool->stop = true;
    atomic_store(&pool->has_more, true);
    (void)pthread_cond_broadcast(&pool->more);
    (void)pthread_mutex_unlock(&pool->lock);
    for (unsigned i = 0; i < pool->count; i++)
        (void)pthread_join(pool->threads[i], NULL); /* our own threads, joined once */
    give_back(pool);
    io_wake_close(&pool->wake, on_wake_closed);
    uv_close((uv_handle_t *)&pool->idle, on_spin_closed);
    uv_close((uv_handle_t *)&pool->check, on_spin_closed);
}
