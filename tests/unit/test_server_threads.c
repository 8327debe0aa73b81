/* Threads that take tasks from a queue: order, and tasks that run together. */
#include "server/io/threads.h"

#include "base/assert.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
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
    assert_int_equal(io_threads_new(&loop, 1, false, &threads), 0);
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tasks_of_one_group_run_together_and_in_order),
    };
    return cmocka_run_group_tests_name("server_threads", tests, NULL, NULL);
}
