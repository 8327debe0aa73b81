/* Epochs and fences that are raised in etcd, tried until they are or the place is lost. Internal to cluster_*.c. */
#ifndef AMPD_IO_CLUSTER_RAISE_H
#define AMPD_IO_CLUSTER_RAISE_H

#include <stdbool.h>
#include <stdint.h>

struct etcd_cluster;
struct io_cluster;

int cluster_raise_epoch(struct io_cluster *base, const char *model, uint64_t epoch,
                        void (*done_cb)(void *arg, const char *model, uint64_t epoch), void *arg);
void cluster_raise_fences(struct io_cluster *base, uint64_t above, void (*done_cb)(void *arg), void *arg);
int cluster_serves(struct io_cluster *base, bool models, void (*done_cb)(void *arg), void *arg);
void cluster_no_models(struct io_cluster *base);

/* Tries again what is not under way. */
void cluster_raise_again(struct etcd_cluster *cluster);

/* Drops what has not been raised: nobody is told. */
void cluster_raise_drop(struct etcd_cluster *cluster);

#endif
