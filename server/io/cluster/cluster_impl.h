/*
 * What the two implementations of cluster.h share: each embeds struct io_cluster as its first member. Internal to
 * server/io/cluster/cluster*.c.
 */
#ifndef AMPD_IO_CLUSTER_IMPL_H
#define AMPD_IO_CLUSTER_IMPL_H

#include "server/io/cluster/cluster.h"

/* Most standbys that io_cluster_standbys reports; any further ones are left out. */
#define IO_CLUSTER_STANDBYS_MAX 16

/* The functions of an implementation, as cluster.h describes them under the same names. */
struct io_cluster_ops {
    struct io_cluster_abilities abilities;
    void (*take)(struct io_cluster *cluster);
    void (*leave)(struct io_cluster *cluster, void (*done_cb)(void *arg), void *arg);
    void (*close)(struct io_cluster *cluster); /* calls io_cluster_closed when all handles are closed */
    bool (*holds)(const struct io_cluster *cluster);
    int64_t (*lease_left_ms)(const struct io_cluster *cluster); /* NULL: places have no leases */
    const char *(*trouble)(const struct io_cluster *cluster);   /* NULL: no other service is asked */
    /* The next three are NULL if the cluster does not remember. */
    int (*raise_epoch)(struct io_cluster *cluster, const char *model, uint64_t epoch,
                       void (*done_cb)(void *arg, const char *model, uint64_t epoch), void *arg);
    void (*raise_fences)(struct io_cluster *cluster, uint64_t above, void (*done_cb)(void *arg), void *arg);
    int (*serves)(struct io_cluster *cluster, bool models, void (*done_cb)(void *arg), void *arg);
    void (*no_models)(struct io_cluster *cluster); /* NULL: it is not noted anywhere whether there are models */
    void (*reload)(struct io_cluster *cluster);
};

struct io_cluster {
    const struct io_cluster_ops *ops;
    struct io_cluster_options options; /* address and url point into this struct; list is NULL */
    char address[IO_CLUSTER_ADDRESS_MAX];
    struct io_cluster_url url;
    struct io_cluster_member members[IO_CLUSTER_SHARDS_MAX]; /* by shard */
    uint64_t last;                                           /* io_cluster_last */
    bool keeps;                                              /* io_cluster_keep was called, or io_cluster_serves */
    uint32_t models;                                         /* io_cluster_models */
    uint32_t standbys;                                       /* entries of standby[] in use */
    char standby[IO_CLUSTER_STANDBYS_MAX][IO_CLUSTER_ADDRESS_MAX];
    void (*closed_cb)(void *arg); /* of io_cluster_close; may be NULL */
    void *closed_arg;
};

/* Checks shard and shards of the options, and copies the options into *cluster. AMP_EINVAL. */
int io_cluster_init(struct io_cluster *cluster, const struct io_cluster_ops *ops,
                    const struct io_cluster_options *options, struct amp_error *error);

/* Frees the cluster, whose handles must all be closed, and then calls closed_cb. */
void io_cluster_closed(struct io_cluster *cluster);

#endif
