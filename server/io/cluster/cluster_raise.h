/*
 * Raises numbers in etcd that never fall: epochs, fences, the base of the fences. Each raise is retried until it
 * succeeds or the place is lost. The first four functions implement the operations of struct io_cluster_ops for etcd.
 * Internal to cluster_*.c; on the loop's thread.
 */
#ifndef AMPD_IO_CLUSTER_RAISE_H
#define AMPD_IO_CLUSTER_RAISE_H

#include <stdbool.h>
#include <stdint.h>

struct etcd_cluster;
struct io_cluster;

/* See io_cluster_raise_epoch, io_cluster_raise_fences, io_cluster_serves and io_cluster_no_models in cluster.h. */
int cluster_raise_epoch(struct io_cluster *base, const char *model, uint64_t epoch,
                        void (*done_cb)(void *arg, const char *model, uint64_t epoch), void *arg);
void cluster_raise_fences(struct io_cluster *base, uint64_t above, void (*done_cb)(void *arg), void *arg);
int cluster_serves(struct io_cluster *base, bool models, void (*done_cb)(void *arg), void *arg);
void cluster_no_models(struct io_cluster *base);

/* Sends again all raises that have failed, which are those with no request under way. */
void cluster_raise_again(struct etcd_cluster *cluster);

/* Gives up all raises; their done_cb do not come. To be called when the place is lost or given back. */
void cluster_raise_drop(struct etcd_cluster *cluster);

#endif
