/* Jobs of the core, blocks of the vote and apply passes, on the compute threads. */
#ifndef AMPD_IO_JOBS_H
#define AMPD_IO_JOBS_H

#include "base/list.h"
#include "server/core/core.h"

struct ampd_server;

struct io_jobs {
    struct amp_list idle; /* tasks that are kept for reuse: a step of n blocks needs n of them. Owned */
};

void io_jobs_init(struct io_jobs *jobs);

/* Frees the tasks; none is under way. */
void io_jobs_free(struct io_jobs *jobs);

/* Does a job on a compute thread, and tells the core. */
void io_jobs_submit(struct ampd_server *server, const struct ampd_job *job);

#endif
