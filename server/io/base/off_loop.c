#include "server/io/base/off_loop.h"

#include "server/io/base/server.h"
#include "server/io/base/threads.h"

struct off_loop {
    struct io_task task;
    int (*work_cb)(void *arg, struct amp_error *error);
    void *arg;
    struct amp_error error;
    int code;
    bool done;
};

static void off_loop_run(struct io_task *task)
{
    struct off_loop *work = AMP_CONTAINER(task, struct off_loop, task);
    work->code = work->work_cb(work->arg, &work->error);
}

static void off_loop_done(struct io_task *task)
{
    AMP_CONTAINER(task, struct off_loop, task)->done = true;
}

int io_off_loop(struct ampd_server *server, int (*work_cb)(void *arg, struct amp_error *error), void *arg,
                struct amp_error *error)
{
    if (server->options->cluster == NULL)
        return work_cb(arg, error);
    struct off_loop work = {.task = {.run_cb = off_loop_run, .done_cb = off_loop_done}, .work_cb = work_cb, .arg = arg};
    io_threads_submit(server->pools.writer, &work.task);
    while (!work.done) /* also after a signal: work_cb cannot be interrupted */
        (void)uv_run(&server->loop, UV_RUN_ONCE);
    if (work.code != 0)
        *error = work.error;
    return work.code;
}
