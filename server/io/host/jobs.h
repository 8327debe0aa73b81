/*
 * Jobs of the core on the compute threads: the vote pass or apply pass over one block, or saving it for a checkpoint.
 * Functions run on the loop's thread.
 */
#ifndef AMPD_IO_JOBS_H
#define AMPD_IO_JOBS_H

#include "server/core/core.h"

struct ampd_server;

/*
 * Does a job (which is copied) on a compute thread, and then gives the core JOB_DONE. Without memory for a task the
 * loop does it at once, and JOB_DONE comes from within this call.
 */
void io_jobs_submit(struct ampd_server *server, const struct ampd_job *job);

#endif
