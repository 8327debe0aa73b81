#include "server/io/cluster/cluster.h"

#include "base/assert.h"
#include "server/io/cluster/cluster_address.h"
#include "server/io/cluster/cluster_impl.h"
#include "server/io/cluster/cluster_options.h"

#include <stdio.h>
#include <stdlib.h>

int io_cluster_init(struct io_cluster *cluster, const struct io_cluster_ops *ops,
                    const struct io_cluster_options *options, struct amp_error *error)
{
    if (options->shards == 0 || options->shards > IO_CLUSTER_SHARDS_MAX ||
        (options->shard != IO_CLUSTER_ANY && options->shard >= options->shards))
        return amp_error_set(error, AMP_EINVAL, NULL, "shard %u of %u: a cluster has 1 to %d shards, counted from 0",
                             options->shard, options->shards, IO_CLUSTER_SHARDS_MAX);
    cluster->ops = ops;
    cluster->options = *options;
    (void)snprintf(cluster->address, sizeof cluster->address, "%s", options->address);
    cluster->options.address = cluster->address;
    cluster->options.list = NULL;
    if (options->url != NULL)
        cluster->url = *options->url;
    cluster->options.url = &cluster->url;
    return 0;
}

void io_cluster_closed(struct io_cluster *cluster)
{
    void (*closed_cb)(void *arg) = cluster->closed_cb;
    void *arg = cluster->closed_arg;
    free(cluster);
    if (closed_cb != NULL)
        closed_cb(arg);
}

void io_cluster_take(struct io_cluster *cluster)
{
    cluster->ops->take(cluster);
}

void io_cluster_leave(struct io_cluster *cluster, void (*done_cb)(void *arg), void *arg)
{
    cluster->ops->leave(cluster, done_cb, arg);
}

void io_cluster_close(struct io_cluster *cluster, void (*closed_cb)(void *arg), void *arg)
{
    cluster->closed_cb = closed_cb;
    cluster->closed_arg = arg;
    cluster->ops->close(cluster);
}

bool io_cluster_holds(const struct io_cluster *cluster)
{
    return cluster->ops->holds(cluster);
}

int io_cluster_raise_epoch(struct io_cluster *cluster, const char *model, uint64_t epoch,
                           void (*done_cb)(void *arg, const char *model, uint64_t epoch), void *arg)
{
    AMP_ASSERT(cluster->ops->abilities.remembers);
    return cluster->ops->raise_epoch(cluster, model, epoch, done_cb, arg);
}

void io_cluster_raise_fences(struct io_cluster *cluster, uint64_t above, void (*done_cb)(void *arg), void *arg)
{
    AMP_ASSERT(cluster->ops->abilities.remembers);
    cluster->ops->raise_fences(cluster, above, done_cb, arg);
}

void io_cluster_keep(struct io_cluster *cluster)
{
    cluster->keeps = true;
}

int io_cluster_serves(struct io_cluster *cluster, bool models, void (*done_cb)(void *arg), void *arg)
{
    AMP_ASSERT(cluster->ops->abilities.remembers);
    int rc = cluster->ops->serves(cluster, models, done_cb, arg);
    cluster->keeps = cluster->keeps || rc == 0;
    return rc;
}

void io_cluster_no_models(struct io_cluster *cluster)
{
    if (cluster->ops->no_models != NULL)
        cluster->ops->no_models(cluster);
}

int64_t io_cluster_lease_left_ms(const struct io_cluster *cluster)
{
    return cluster->ops->lease_left_ms != NULL ? cluster->ops->lease_left_ms(cluster) : -1;
}

const char *io_cluster_trouble(const struct io_cluster *cluster)
{
    return cluster->ops->trouble != NULL ? cluster->ops->trouble(cluster) : "";
}

void io_cluster_reload(struct io_cluster *cluster)
{
    cluster->ops->reload(cluster);
}

struct io_cluster_abilities io_cluster_abilities(const struct io_cluster *cluster)
{
    return cluster->ops->abilities;
}

uint32_t io_cluster_shards(const struct io_cluster *cluster)
{
    return cluster->options.shards;
}

const struct io_cluster_member *io_cluster_member(const struct io_cluster *cluster, uint32_t shard)
{
    AMP_ASSERT(shard < cluster->options.shards);
    return &cluster->members[shard];
}

uint64_t io_cluster_last(const struct io_cluster *cluster)
{
    return cluster->last;
}

uint32_t io_cluster_models(const struct io_cluster *cluster)
{
    return cluster->models;
}

uint32_t io_cluster_standbys(const struct io_cluster *cluster)
{
    return cluster->standbys;
}

const char *io_cluster_standby(const struct io_cluster *cluster, uint32_t index)
{
    AMP_ASSERT(index < cluster->standbys);
    return cluster->standby[index];
}
