/*
 * What the implementations of cluster.h share: each embeds struct io_cluster first. Internal to
 * server/io/cluster/cluster*.c.
 */
#ifndef AMPD_IO_CLUSTER_IMPL_H
#define AMPD_IO_CLUSTER_IMPL_H

#include "server/io/cluster/cluster.h"

/* As many standbys as are told of. */
#define IO_CLUSTER_STANDBYS_MAX 16

struct io_cluster_ops {
    struct io_cluster_abilities abilities;
    void (*take)(struct io_cluster *cluster);
    void (*leave)(struct io_cluster *cluster, void (*done_cb)(void *arg), void *arg);
    void (*close)(struct io_cluster *cluster); /* ends in io_cluster_closed */
    bool (*holds)(const struct io_cluster *cluster);
    int64_t (*lease_left_ms)(const struct io_cluster *cluster); /* NULL: there are no leases */
    const char *(*trouble)(const struct io_cluster *cluster);   /* NULL: nobody is asked */
    /* These three are NULL where the cluster does not remember. */
    int (*raise_epoch)(struct io_cluster *cluster, const char *model, uint64_t epoch,
                       void (*done_cb)(void *arg, const char *model, uint64_t epoch), void *arg);
    void (*raise_fences)(struct io_cluster *cluster, uint64_t above, void (*done_cb)(void *arg), void *arg);
    int (*serves)(struct io_cluster *cluster, bool models, void (*done_cb)(void *arg), void *arg);
    void (*no_models)(struct io_cluster *cluster); /* NULL: nobody keeps it */
    void (*reload)(struct io_cluster *cluster);
};

struct io_cluster {
    const struct io_cluster_ops *ops;
    struct io_cluster_options options; /* its texts are those below, or NULL */
    char address[IO_CLUSTER_ADDRESS_MAX];
    struct io_cluster_url url;
    struct io_cluster_member members[IO_CLUSTER_SHARDS_MAX];
    uint64_t last;   /* io_cluster_last */
    bool keeps;      /* io_cluster_keep */
    uint32_t models; /* io_cluster_models */
    uint32_t standbys;
    char standby[IO_CLUSTER_STANDBYS_MAX][IO_CLUSTER_ADDRESS_MAX];
    void (*closed_cb)(void *arg);
    void *closed_arg;
};

/* Checks and copies the options. AMP_EINVAL. */
int io_cluster_init(struct io_cluster *cluster, const struct io_cluster_ops *ops,
                    const struct io_cluster_options *options, struct amp_error *error);

/* Frees the cluster and tells who closed it. Every handle of it is closed. */
void io_cluster_closed(struct io_cluster *cluster);

#endif
