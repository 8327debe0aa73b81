/*
 * Jobs of the core on the compute threads: the vote pass or apply pass over one block, or saving it for a checkpoint.
 * Functions run on the loop's thread.
 */
#ifndef AMPD_IO_JOBS_H
#define AMPD_IO_JOBS_H

#include "base/list.h"
#include "server/core/core.h"

struct ampd_server;

struct io_jobs {
    struct amp_list idle; /* tasks kept for reuse, since a step of n blocks needs n of them; owned */
};

/* Sets the struct up without any task. */
void io_jobs_init(struct io_jobs *jobs);

/* Frees the tasks. No job may be under way. */
void io_jobs_free(struct io_jobs *jobs);

/*
 * Does a job (which is copied) on a compute thread, and then gives the core JOB_DONE. Without memory for a task the
 * loop does it at once, and JOB_DONE comes from within this call.
 */
void io_jobs_submit(struct ampd_server *server, const struct ampd_job *job);

#endif
