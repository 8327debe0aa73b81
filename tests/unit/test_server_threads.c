#define _GNU_SOURCE /* syscall */
/* Threads that take tasks from a queue: order, tasks that run together, and a loop that does not wait for who wakes it. */
#include "server/io/base/threads.h"

#include "base/assert.h"
#include "server/io/base/options.h"
#include "server/io/base/pools.h"

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <uv.h>

#include <cmocka.h>

#define TASKS 12

/* Every task notes its letter when it runs and when it is done; a group notes a bracket on both sides. */
struct notes {
    pthread_mutex_t gate; /* held by the test until everything is queued */
    char ran[64], done[64];
};

struct task {
    struct io_task task;
    struct notes *notes;
    char letter;
};

static void note(char *text, char letter)
{
    size_t size = strlen(text);
    text[size] = letter;
    text[size + 1] = 0;
}

static void run_one(struct io_task *base)
{
    struct task *task = AMP_CONTAINER(base, struct task, task);
    (void)pthread_mutex_lock(&task->notes->gate);
    note(task->notes->ran, task->letter);
    (void)pthread_mutex_unlock(&task->notes->gate);
}

static void run_group(struct amp_list *tasks)
{
    struct notes *notes = AMP_CONTAINER(tasks->next, struct task, task.node)->notes;
    (void)pthread_mutex_lock(&notes->gate);
    note(notes->ran, '(');
    AMP_LIST_EACH(it, safe, tasks)
    note(notes->ran, AMP_CONTAINER(it, struct task, task.node)->letter);
    note(notes->ran, ')');
    (void)pthread_mutex_unlock(&notes->gate);
}

/* Another one, so that two kinds of group stand beside each other. */
static void run_other(struct amp_list *tasks)
{
    run_group(tasks);
}

static void told(struct io_task *base)
{
    struct task *task = AMP_CONTAINER(base, struct task, task);
    note(task->notes->done, task->letter);
}

static void tasks_of_one_group_run_together_and_in_order(void **state)
{
    static const char letters[] = "abCDEfGHxyIJ"; /* small: alone; x and y: the other group */
    struct notes notes = {.gate = PTHREAD_MUTEX_INITIALIZER};
    struct task tasks[TASKS];
    struct io_threads *threads;
    uv_loop_t loop;
    (void)state;
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(io_threads_new(&loop, 1, IO_THREADS_PLAIN, &threads), 0);
    (void)pthread_mutex_lock(&notes.gate);
    for (int i = 0; i < TASKS; i++) {
        char letter = letters[i];
        bool other = letter == 'x' || letter == 'y', alone = !other && letter >= 'a';
        tasks[i] = (struct task){
            .task = {.run_cb = run_one, .done_cb = told, .group_cb = alone ? NULL : other ? run_other : run_group},
            .notes = &notes,
            .letter = letter};
        io_threads_submit(threads, &tasks[i].task);
    }
    (void)pthread_mutex_unlock(&notes.gate);
    io_threads_close(threads);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&loop), 0);
    assert_string_equal(notes.ran, "ab(CDE)f(GH)(xy)(IJ)");
    assert_string_equal(notes.done, letters);
}

struct niceness {
    struct io_task task;
    int found;
    bool told;
};

static void run_niceness(struct io_task *base)
{
    AMP_CONTAINER(base, struct niceness, task)->found = getpriority(PRIO_PROCESS, 0); /* on Linux: the thread's own */
}

static void tell_niceness(struct io_task *base)
{
    AMP_CONTAINER(base, struct niceness, task)->told = true;
}

static void skip_where_nice(int own)
{
    if (own <= 12)
        return;
    print_message("SKIPPED: this process has a nice value above 12 already, and 19 is the most\n");
    skip();
}

/* How much lower the priority of the files' thread is than this one's. */
static int lower_of_files(uint32_t checkpoint_memory)
{
    const struct ampd_server_options options = {.compute_threads = 1, .checkpoint_memory = checkpoint_memory};
    struct niceness task = {.task = {.run_cb = run_niceness, .done_cb = tell_niceness}};
    struct io_pools pools;
    struct amp_error error;
    uv_loop_t loop;
    int before = getpriority(PRIO_PROCESS, 0);
    assert_int_equal(uv_loop_init(&loop), 0);
    io_pools_init(&pools);
    assert_int_equal(io_pools_open(&pools, &loop, &options, &error), 0);
    io_threads_submit(pools.files, &task.task);
    struct io_threads *all[] = {pools.files, pools.compute, pools.writer, pools.readers, pools.exports, pools.journal};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        io_threads_close(all[i]);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&loop), 0);
    assert_int_equal(getpriority(PRIO_PROCESS, 0), before);
    return task.found - before;
}

static void the_files_thread_gives_way_only_where_all_blocks_can_be_saved(void **state)
{
    (void)state;
    skip_where_nice(getpriority(PRIO_PROCESS, 0));
    assert_int_equal(lower_of_files(100), 7);
    assert_int_equal(lower_of_files(99), 0);
    assert_int_equal(lower_of_files(0), 0); /* the default */
}

static atomic_bool has_begun;

static void run_begun(struct io_task *base)
{
    atomic_store(&has_begun, true);
    run_one(base);
}

/* Waits until the loop was told that a task is done. */
static int niceness_of(uv_loop_t *loop, struct io_threads *threads, struct niceness *task)
{
    *task = (struct niceness){.task = {.run_cb = run_niceness, .done_cb = tell_niceness, .urgent = task->task.urgent}};
    io_threads_submit(threads, &task->task);
    while (!task->told)
        (void)uv_run(loop, UV_RUN_ONCE);
    return task->found;
}

static void an_urgent_task_and_those_before_it_have_ordinary_priority_and_those_behind_it_a_low_one(void **state)
{
    struct notes notes = {.gate = PTHREAD_MUTEX_INITIALIZER};
    struct task first = {.task = {.run_cb = run_begun, .done_cb = told}, .notes = &notes, .letter = 'a'};
    struct niceness tasks[3] = {{.found = 99}};
    int before = getpriority(PRIO_PROCESS, 0);
    struct io_threads *threads;
    uv_loop_t loop;
    (void)state;
    skip_where_nice(before);
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(io_threads_new(&loop, 1, IO_THREADS_BACKGROUND, &threads), 0);
    atomic_store(&has_begun, false);
    (void)pthread_mutex_lock(&notes.gate);
    io_threads_submit(threads, &first.task);
    while (!atomic_load(&has_begun))
        (void)sched_yield();
    for (int i = 0; i < 3; i++) {
        tasks[i].task = (struct io_task){.run_cb = run_niceness, .done_cb = tell_niceness, .urgent = i == 1};
        io_threads_submit(threads, &tasks[i].task);
    }
    (void)pthread_mutex_unlock(&notes.gate);
    for (int i = 0; i < 3; i++)
        while (!tasks[i].told)
            (void)uv_run(&loop, UV_RUN_ONCE);
    for (int i = 0; i < 3; i++)
        assert_int_equal(tasks[i].found, before + (i == 2 ? 7 : 0));
    tasks[0].task.urgent = true;
    assert_int_equal(niceness_of(&loop, threads, &tasks[0]), before);
    tasks[0].task.urgent = false;
    assert_int_equal(niceness_of(&loop, threads, &tasks[0]), before + 7);
    io_threads_raise(threads);
    for (int i = 0; i < 100; i++)
        assert_int_equal(niceness_of(&loop, threads, &tasks[0]), before);
    io_threads_close(threads);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&loop), 0);
    assert_string_equal(notes.done, "a");
}

/* Whatever the threads have done yet: tasks run once and in order, and none is lost at the end. */
static void urgent_tasks_at_any_moment_keep_the_order(void **state)
{
    (void)state;
    for (int round = 0; round < 200; round++) {
        struct notes notes = {.gate = PTHREAD_MUTEX_INITIALIZER};
        struct task tasks[TASKS];
        struct io_threads *threads;
        uv_loop_t loop;
        assert_int_equal(uv_loop_init(&loop), 0);
        assert_int_equal(io_threads_new(&loop, 1, IO_THREADS_BACKGROUND, &threads), 0);
        for (int i = 0; i < TASKS; i++) {
            tasks[i] = (struct task){.task = {.run_cb = run_one, .done_cb = told, .urgent = (round >> i % 8 & 1) != 0},
                                     .notes = &notes,
                                     .letter = (char)('a' + i)};
            io_threads_submit(threads, &tasks[i].task);
            if (i % 3 == round % 4)
                (void)uv_run(&loop, UV_RUN_NOWAIT);
            if (i == round % 16)
                io_threads_raise(threads);
        }
        io_threads_close(threads);
        assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
        assert_int_equal(uv_loop_close(&loop), 0);
        assert_string_equal(notes.ran, "abcdefghijkl");
        assert_string_equal(notes.done, notes.ran);
    }
}

static void a_task_that_is_first_is_begun_before_those_that_wait(void **state)
{
    static const char letters[] = "abCdE"; /* large: first */
    struct notes notes = {.gate = PTHREAD_MUTEX_INITIALIZER};
    struct task tasks[sizeof letters - 1];
    struct io_threads *threads;
    uv_loop_t loop;
    (void)state;
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(io_threads_new(&loop, 1, IO_THREADS_PLAIN, &threads), 0);
    atomic_store(&has_begun, false);
    (void)pthread_mutex_lock(&notes.gate);
    for (size_t i = 0; i < sizeof letters - 1; i++) {
        tasks[i] = (struct task){
            .task = {.run_cb = i == 0 ? run_begun : run_one, .done_cb = told, .first = letters[i] < 'a'},
            .notes = &notes,
            .letter = letters[i]};
        io_threads_submit(threads, &tasks[i].task);
        while (!atomic_load(&has_begun))
            (void)sched_yield();
    }
    (void)pthread_mutex_unlock(&notes.gate);
    io_threads_close(threads);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&loop), 0);
    assert_string_equal(notes.ran, "aECbd");
}

static void a_task_that_no_thread_has_begun_can_be_taken_back(void **state)
{
    struct notes notes = {.gate = PTHREAD_MUTEX_INITIALIZER};
    struct task tasks[3];
    struct io_threads *threads;
    uv_loop_t loop;
    (void)state;
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(io_threads_new(&loop, 1, IO_THREADS_PLAIN, &threads), 0);
    (void)pthread_mutex_lock(&notes.gate);
    for (int i = 0; i < 3; i++) {
        tasks[i] = (struct task){
            .task = {.run_cb = run_one, .done_cb = told}, .notes = &notes, .letter = (char)('a' + i)};
        io_threads_submit(threads, &tasks[i].task);
    }
    assert_true(io_threads_take_back(threads, &tasks[1].task)); /* behind one that waits for the gate, or is not begun either */
    assert_false(io_threads_take_back(threads, &tasks[1].task));
    (void)pthread_mutex_unlock(&notes.gate);
    while (strlen(notes.done) < 2)
        (void)uv_run(&loop, UV_RUN_ONCE);
    assert_false(io_threads_take_back(threads, &tasks[0].task));
    io_threads_close(threads);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&loop), 0);
    assert_string_equal(notes.ran, "ac");
    assert_string_equal(notes.done, "ac");
}

/* What `first` submits when it is done. */
static struct {
    struct io_threads *threads;
    struct task *first; /* and the three behind it */
} follow;

static void submit_three(struct io_task *base)
{
    told(base);
    (void)pthread_mutex_lock(&follow.first->notes->gate);
    for (int i = 1; i <= 3; i++)
        io_threads_submit(follow.threads, &follow.first[i].task);
    assert_true(io_threads_take_back(follow.threads, &follow.first[1].task)); /* not queued yet */
}

static void what_a_done_task_submits_can_be_taken_back(void **state)
{
    struct notes notes = {.gate = PTHREAD_MUTEX_INITIALIZER};
    struct task tasks[4];
    uv_loop_t loop;
    (void)state;
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(io_threads_new(&loop, 1, IO_THREADS_PLAIN, &follow.threads), 0);
    follow.first = tasks;
    for (int i = 0; i < 4; i++)
        tasks[i] = (struct task){.task = {.run_cb = run_one, .done_cb = i == 0 ? submit_three : told},
                                 .notes = &notes,
                                 .letter = (char)('a' + i)};
    io_threads_submit(follow.threads, &tasks[0].task);
    while (notes.done[0] == 0)
        (void)uv_run(&loop, UV_RUN_ONCE);
    assert_true(io_threads_take_back(follow.threads, &tasks[3].task)); /* behind one that waits for the gate, or is not begun either */
    (void)pthread_mutex_unlock(&notes.gate);
    io_threads_close(follow.threads);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&loop), 0);
    assert_string_equal(notes.ran, "ac");
    assert_string_equal(notes.done, "ac");
}

/* ---- a thread that is stopped while it wakes the loop ---- */

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t change;
    atomic_bool holds;
    bool held, let_go;
    pthread_t loop;
    atomic_uint writes; /* of eight bytes by others than the loop */
} stop = {.mutex = PTHREAD_MUTEX_INITIALIZER, .change = PTHREAD_COND_INITIALIZER};

static void wait_for(const bool *what)
{
    (void)pthread_mutex_lock(&stop.mutex);
    while (!*what)
        (void)pthread_cond_wait(&stop.change, &stop.mutex);
    (void)pthread_mutex_unlock(&stop.mutex);
}

static void tell(bool *what)
{
    (void)pthread_mutex_lock(&stop.mutex);
    *what = true;
    (void)pthread_cond_broadcast(&stop.change);
    (void)pthread_mutex_unlock(&stop.mutex);
}

/* The C library's, for libuv too: another thread's write of eight bytes stays inside it, once they are written, until it is let go. */
ssize_t write(int fd, const void *data, size_t size)
{
    ssize_t rc = syscall(SYS_write, fd, data, size);
    bool wakes = size == sizeof(uint64_t) && !pthread_equal(pthread_self(), stop.loop);
    stop.writes += wakes ? 1 : 0;
    if (stop.holds && wakes) {
        tell(&stop.held);
        wait_for(&stop.let_go);
    }
    return rc;
}

static void told_alone(struct io_task *base)
{
    told(base);
    tell(&stop.let_go);
}

static void the_loop_goes_on_while_a_thread_that_has_woken_it_is_stopped(void **state)
{
    struct notes notes = {.gate = PTHREAD_MUTEX_INITIALIZER};
    struct task task = {.task = {.run_cb = run_one, .done_cb = told_alone}, .notes = &notes, .letter = 'a'};
    struct task second = {.task = {.run_cb = run_one, .done_cb = told}, .notes = &notes, .letter = 'b'};
    struct io_threads *threads;
    uv_loop_t loop;
    (void)state;
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(io_threads_new(&loop, 1, IO_THREADS_PLAIN, &threads), 0);
    stop.loop = pthread_self();
    stop.holds = true;
    io_threads_submit(threads, &task.task);
    wait_for(&stop.held);
    io_threads_submit(threads, &second.task); /* needs the lock that the thread takes */
    while (notes.done[0] == 0)                /* a loop that waits for the thread is cut off by the test's timeout */
        (void)uv_run(&loop, UV_RUN_ONCE);
    stop.holds = false;
    io_threads_close(threads);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&loop), 0);
    assert_string_equal(notes.done, "ab");
}

/* ---- tasks that follow tasks ---- */

struct chain {
    struct task task;
    struct io_threads *threads;
    unsigned *left; /* to be submitted by the done_cb of any */
    uv_loop_t *loop;
};

static void go_on(struct io_task *base)
{
    struct chain *chain = AMP_CONTAINER(base, struct chain, task.task);
    told(base);
    if (*chain->left == 0) {
        uv_stop(chain->loop);
        return;
    }
    (*chain->left)--;
    io_threads_submit(chain->threads, base);
}

static void groups_of_done_tasks(enum io_threads_kind kind)
{
    static const char letters[] = "ABCD";
    struct notes notes = {.gate = PTHREAD_MUTEX_INITIALIZER};
    struct task first = {.task = {.run_cb = run_one, .done_cb = told}, .notes = &notes, .letter = 'f'};
    struct chain chains[4];
    struct io_threads *threads;
    unsigned left = 8;
    uv_loop_t loop;
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(io_threads_new(&loop, 1, kind, &threads), 0);
    (void)pthread_mutex_lock(&notes.gate);
    io_threads_submit(threads, &first.task); /* the thread waits in it until all are queued */
    for (int i = 0; i < 4; i++) {
        chains[i] = (struct chain){
            .task = {.task = {.done_cb = go_on, .group_cb = run_group}, .notes = &notes, .letter = letters[i]},
            .threads = threads,
            .left = &left,
            .loop = &loop};
        io_threads_submit(threads, &chains[i].task.task);
    }
    (void)pthread_mutex_unlock(&notes.gate);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 1); /* stopped */
    io_threads_close(threads);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&loop), 0);
    assert_string_equal(notes.ran, "f(ABCD)(ABCD)(ABCD)");
    assert_string_equal(notes.done, "fABCDABCDABCD");
}

static void what_done_tasks_submit_is_one_group(void **state)
{
    (void)state;
    groups_of_done_tasks(IO_THREADS_PLAIN);
}

static void a_thread_that_looks_for_more_runs_the_same_groups(void **state)
{
    (void)state;
    groups_of_done_tasks(IO_THREADS_SPINNING);
}

/* More of them than it sleeps for after looks in vain, so that some find it looking and some asleep. */
static void tasks_one_by_one_reach_a_thread_that_looks_or_sleeps(void **state)
{
    struct notes notes = {.gate = PTHREAD_MUTEX_INITIALIZER};
    struct io_threads *threads;
    uv_loop_t loop;
    (void)state;
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(io_threads_new(&loop, 1, IO_THREADS_SPINNING, &threads), 0);
    for (int i = 0; i < 150; i++) {
        struct task task = {.task = {.run_cb = run_one, .done_cb = told}, .notes = &notes, .letter = 'a'};
        notes.ran[0] = notes.done[0] = 0;
        io_threads_submit(threads, &task.task);
        while (notes.done[0] == 0) /* cut off by the test's timeout */
            (void)uv_run(&loop, UV_RUN_ONCE);
        assert_string_equal(notes.ran, "a");
        assert_int_not_equal(uv_backend_timeout(&loop), 0); /* nothing is out: the loop does not spin, and would sleep */
    }
    io_threads_close(threads);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&loop), 0);
}

/* Such a task is done after the loop has stopped looking, or nothing would wake it. */
static void a_loop_that_has_stopped_looking_is_woken(void **state)
{
    struct notes notes = {.gate = PTHREAD_MUTEX_INITIALIZER};
    struct task tasks[2];
    struct io_threads *threads;
    uv_loop_t loop;
    (void)state;
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(io_threads_new(&loop, 1, IO_THREADS_SPINNING, &threads), 0);
    for (int i = 0; i < 10; i++) {
        notes.ran[0] = notes.done[0] = 0;
        (void)pthread_mutex_lock(&notes.gate);
        for (int k = 0; k < 2; k++) {
            tasks[k] = (struct task){
                .task = {.run_cb = run_one, .done_cb = told}, .notes = &notes, .letter = (char)('a' + k)};
            io_threads_submit(threads, &tasks[k].task);
        }
        assert_true(io_threads_take_back(threads, &tasks[1].task));
        while (uv_backend_timeout(&loop) == 0) /* it looks; cut off by the test's timeout */
            (void)uv_run(&loop, UV_RUN_NOWAIT);
        assert_string_equal(notes.done, "");
        (void)pthread_mutex_unlock(&notes.gate);
        while (notes.done[0] == 0)
            (void)uv_run(&loop, UV_RUN_ONCE);
        assert_string_equal(notes.ran, "a");
        assert_int_not_equal(uv_backend_timeout(&loop), 0);
    }
    io_threads_close(threads);
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&loop), 0);
}

/* Or a slow disk and many models would keep it from sleeping for ever. */
static void what_is_submitted_meanwhile_does_not_prolong_a_look(void **state)
{
    struct notes notes = {.gate = PTHREAD_MUTEX_INITIALIZER};
    struct task first = {.task = {.run_cb = run_one, .done_cb = told}, .notes = &notes, .letter = 'a'}, more = first;
    struct io_threads *threads;
    uv_loop_t loop;
    (void)state;
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(io_threads_new(&loop, 1, IO_THREADS_SPINNING, &threads), 0);
    (void)pthread_mutex_lock(&notes.gate);
    io_threads_submit(threads, &first.task);
    do { /* cut off by the test's timeout */
        io_threads_submit(threads, &more.task);
        (void)uv_run(&loop, UV_RUN_NOWAIT);
        assert_true(io_threads_take_back(threads, &more.task));
    } while (uv_backend_timeout(&loop) == 0);
    (void)pthread_mutex_unlock(&notes.gate);
    io_threads_close(threads);
    assert_string_equal(notes.done, "a");
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&loop), 0);
}

static void a_loop_that_looks_is_not_woken(void **state)
{
    (void)state;
    for (int looks = 0; looks < 2; looks++) {
        struct notes notes = {.gate = PTHREAD_MUTEX_INITIALIZER};
        struct task task = {.task = {.run_cb = run_one, .done_cb = told}, .notes = &notes, .letter = 'a'};
        struct io_threads *threads;
        uv_loop_t loop;
        assert_int_equal(uv_loop_init(&loop), 0);
        assert_int_equal(io_threads_new(&loop, 1, looks != 0 ? IO_THREADS_SPINNING : IO_THREADS_PLAIN, &threads), 0);
        stop.loop = pthread_self();
        stop.writes = 0;
        io_threads_submit(threads, &task.task);
        io_threads_close(threads); /* waits for the thread */
        assert_int_equal(stop.writes, looks != 0 ? 0 : 1);
        assert_string_equal(notes.done, "a");
        assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
        assert_int_equal(uv_loop_close(&loop), 0);
    }
}

static void threads_end_while_the_loop_looks(void **state)
{
    struct notes notes = {.gate = PTHREAD_MUTEX_INITIALIZER};
    struct task task = {.task = {.run_cb = run_one, .done_cb = told}, .notes = &notes, .letter = 'a'};
    struct io_threads *threads;
    uv_loop_t loop;
    (void)state;
    assert_int_equal(uv_loop_init(&loop), 0);
    assert_int_equal(io_threads_new(&loop, 1, IO_THREADS_SPINNING, &threads), 0);
    (void)uv_run(&loop, UV_RUN_NOWAIT); /* before its first turn a loop would not sleep in any case */
    assert_int_not_equal(uv_backend_timeout(&loop), 0);
    io_threads_submit(threads, &task.task);
    assert_int_equal(uv_backend_timeout(&loop), 0);
    io_threads_close(threads);
    assert_string_equal(notes.done, "a");
    assert_int_equal(uv_run(&loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&loop), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_loop_that_has_stopped_looking_is_woken),
        cmocka_unit_test(what_is_submitted_meanwhile_does_not_prolong_a_look),
        cmocka_unit_test(a_loop_that_looks_is_not_woken),
        cmocka_unit_test(threads_end_while_the_loop_looks),
        cmocka_unit_test(tasks_of_one_group_run_together_and_in_order),
        cmocka_unit_test(what_done_tasks_submit_is_one_group),
        cmocka_unit_test(a_thread_that_looks_for_more_runs_the_same_groups),
        cmocka_unit_test(tasks_one_by_one_reach_a_thread_that_looks_or_sleeps),
        cmocka_unit_test(the_files_thread_gives_way_only_where_all_blocks_can_be_saved),
        cmocka_unit_test(an_urgent_task_and_those_before_it_have_ordinary_priority_and_those_behind_it_a_low_one),
        cmocka_unit_test(urgent_tasks_at_any_moment_keep_the_order),
        cmocka_unit_test(a_task_that_is_first_is_begun_before_those_that_wait),
        cmocka_unit_test(a_task_that_no_thread_has_begun_can_be_taken_back),
        cmocka_unit_test(what_a_done_task_submits_can_be_taken_back),
        cmocka_unit_test(the_loop_goes_on_while_a_thread_that_has_woken_it_is_stopped),
    };
    return cmocka_run_group_tests_name("server_threads", tests, NULL, NULL);
}
