/*
 * Raises numbers in etcd that never fall: epochs, fences, the base of the fences. Each raise is retried until it
 * succeeds or the place is lost. cluster_raise.c also has io_cluster_raise_epoch, io_cluster_raise_fences,
 * io_cluster_serves and io_cluster_no_models (cluster.h). Internal to cluster_*.c; on the loop's thread.
 */
#ifndef AMPD_IO_CLUSTER_RAISE_H
#define AMPD_IO_CLUSTER_RAISE_H

struct io_cluster;

/* Sends again all raises that have failed, which are those with no request under way. */
void cluster_raise_again(struct io_cluster *cluster);

/* Gives up all raises; their done_cb do not come. To be called when the place is lost or given back. */
void cluster_raise_drop(struct io_cluster *cluster);

#endif
