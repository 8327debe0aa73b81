#include "server/io/host/jobs.h"

#include "base/failpoint.h"
#include "server/io/base/core_event.h"
#include "server/io/base/server.h"
#include "server/io/base/threads.h"

#include <stdlib.h>

/* A job of the core on its way through the compute threads. */
struct job_task {
    struct io_task task;
    struct ampd_server *server;
    struct ampd_job job;
};

/* The failpoints of a job, by what it does. */
#define JOB_FAILPOINT(job, place)                                                                                      \
    AMP_FAILPOINT(((job)->work & AMPD_JOB_VOTE) != 0    ? "vote." place                                                \
                  : ((job)->work & AMPD_JOB_APPLY) != 0 ? "apply." place                                               \
                                                        : "checkpoint.job_" place)

static void job_run(struct io_task *task)
{
    struct job_task *job = AMP_CONTAINER(task, struct job_task, task);
    JOB_FAILPOINT(&job->job, "begin");
    ampd_job_run(&job->job, job->server->options->kernels);
    JOB_FAILPOINT(&job->job, "ran");
    AMP_FAILPOINT("job.done");
}

static void job_done(struct io_task *task)
{
    struct job_task *done = AMP_CONTAINER(task, struct job_task, task);
    struct ampd_server *server = done->server;
    struct ampd_event event = {.type = AMPD_EVENT_JOB_DONE, .u.job = done->job};
    free(done);
    JOB_FAILPOINT(&event.u.job, "told");
    io_core_event(server, &event);
    AMP_FAILPOINT("job.done");
}

void io_jobs_submit(struct ampd_server *server, const struct ampd_job *job)
{
    struct job_task *task = malloc(sizeof *task);
    if (task == NULL) {
        /* No memory for a task: the loop does the job itself. */
        struct ampd_event event = {.type = AMPD_EVENT_JOB_DONE, .u.job = *job};
        ampd_job_run(job, server->options->kernels);
        io_core_event(server, &event);
        return;
    }
    /*
     * A vote pass while pushes go on (without ABSENT) reads bytes that have just arrived and are still in the caches,
     * so it goes first. Other jobs read blocks that are in no cache.
     */
    bool is_early = (job->work & (AMPD_JOB_VOTE | AMPD_JOB_ABSENT)) == AMPD_JOB_VOTE;
    task->task = (struct io_task){.run_cb = job_run, .done_cb = job_done, .first = is_early};
    task->server = server;
    task->job = *job;
    io_threads_submit(server->pools.compute, &task->task);
}
