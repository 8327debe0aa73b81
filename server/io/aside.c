#include "server/io/aside.h"

#include "server/io/server.h"
#include "server/io/threads.h"

struct aside {
    struct io_task task;
    int (*work_cb)(void *arg, struct amp_error *error);
    void *arg;
    struct amp_error error;
    int code;
    bool done;
};

static void aside_run(struct io_task *task)
{
    struct aside *aside = AMP_CONTAINER(task, struct aside, task);
    aside->code = aside->work_cb(aside->arg, &aside->error);
}

static void aside_done(struct io_task *task)
{
    AMP_CONTAINER(task, struct aside, task)->done = true;
}

int io_aside(struct ampd_server *server, int (*work_cb)(void *arg, struct amp_error *error), void *arg,
             struct amp_error *error)
{
    if (server->options->cluster == NULL)
        return work_cb(arg, error);
    struct aside aside = {.task = {.run_cb = aside_run, .done_cb = aside_done}, .work_cb = work_cb, .arg = arg};
    io_threads_submit(server->writer, &aside.task);
    while (!aside.done) /* a signal waits for it, too */
        (void)uv_run(&server->loop, UV_RUN_ONCE);
    if (aside.code != 0)
        *error = aside.error;
    return aside.code;
}
