/*
 * What a start does that waits for the disk: on a thread, while the loop goes on. The loop keeps the lease on a place
 * in etcd, and a store alone is opened by a dozen syncs: on a disk that is busy they take longer than the lease, in one
 * start as in the next.
 */
#ifndef AMPD_IO_OFF_LOOP_H
#define AMPD_IO_OFF_LOOP_H

#include "base/err.h"

struct ampd_server;

/*
 * Calls work_cb once, and returns what it does; runs the loop meanwhile, so not from within a callback of it, and
 * before the core is there. What work_cb touches nobody else may. Where no place is kept in etcd it is called at once,
 * and the loop stands still.
 */
int io_off_loop(struct ampd_server *server, int (*work_cb)(void *arg, struct amp_error *error), void *arg,
                struct amp_error *error);

#endif
