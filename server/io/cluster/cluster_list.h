/* A cluster whose shards are a fixed list of addresses. */
#ifndef AMPD_IO_CLUSTER_LIST_H
#define AMPD_IO_CLUSTER_LIST_H

#include "server/io/cluster/cluster.h"

/* Makes one, as io_cluster_new_etcd does. */
int io_cluster_new_list(struct uv_loop_s *loop, const struct io_cluster_options *options, struct io_cluster **out,
                        struct amp_error *error);

#endif
