/* A cluster whose shards and addresses are a fixed list (--peers). */
#ifndef AMPD_IO_CLUSTER_LIST_H
#define AMPD_IO_CLUSTER_LIST_H

#include "server/io/cluster/cluster.h"

/*
 * Makes a cluster of options->list, which must name options->shards addresses; options->shard must be an index. Copies
 * the options, except what they say must outlive the cluster. On success *out is the caller's (io_cluster_close).
 * AMP_EINVAL, AMP_ENOMEM. On the loop's thread.
 */
int io_cluster_new_list(struct uv_loop_s *loop, const struct io_cluster_options *options, struct io_cluster **out,
                        struct amp_error *error);

#endif
