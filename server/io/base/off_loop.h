/*
 * Runs a part of the start that waits for the disk on a thread, while the loop goes on. The loop keeps the lease in
 * etcd alive, and opening a store alone takes a dozen syncs: on a busy disk they would take longer than the lease, at
 * this start and at each further one.
 */
#ifndef AMPD_IO_OFF_LOOP_H
#define AMPD_IO_OFF_LOOP_H

#include "base/err.h"

struct ampd_server;

/*
 * Calls work_cb once on the writer's thread, runs the loop until it is done, and returns its result and error. Not from
 * within a callback of the loop, and only before the core exists. Nothing else may touch what work_cb uses meanwhile. A
 * server without a cluster in etcd calls it directly, and the loop stands still.
 */
int io_off_loop(struct ampd_server *server, int (*work_cb)(void *arg, struct amp_error *error), void *arg,
                struct amp_error *error);

#endif
