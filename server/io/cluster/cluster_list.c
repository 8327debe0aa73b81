/*
 * A cluster whose shards and their addresses are a list on every process's command line. No service outside of the
 * processes keeps it: a process is the shard that its command line names, and its fence is a counter of starts in its
 * own store. If two processes are started as the same shard, the other shards refuse the one with the lower fence
 * (server/core/wire/fences.c).
 */
#include "server/io/cluster/cluster_list.h"

#include "server/io/cluster/cluster_address.h"
#include "server/io/cluster/cluster_impl.h"
#include "server/io/cluster/cluster_options.h"

#include <stdlib.h>
#include <uv.h>

struct list_cluster {
    struct io_cluster base;
    uv_timer_t soon;            /* runs what is due at the next turn of the loop */
    bool taking, holding, lost; /* taking: at the next turn of the loop. lost: boot_cb has failed */
    void (*left_cb)(void *arg); /* of a leave, which is answered at the next turn of the loop; or NULL */
    void *left_arg;
};

static void notify_left(struct list_cluster *cluster)
{
    void (*left_cb)(void *arg) = cluster->left_cb;
    cluster->left_cb = NULL;
    if (left_cb != NULL)
        left_cb(cluster->left_arg);
}

static void begin(struct list_cluster *cluster)
{
    const struct io_cluster_options *options = &cluster->base.options;
    struct ampd_fence fence = {0};
    struct amp_error error = {0};
    cluster->taking = false;
    if (options->boot_cb(options->arg, options->shard, &fence, &error) != 0) {
        cluster->lost = true;
        options->events->lost_cb(options->arg, &error);
        return;
    }
    cluster->holding = true;
    cluster->base.members[options->shard].fence = fence.counter;
    options->events->taken_cb(options->arg, options->shard, &fence);
}

static void on_soon(uv_timer_t *timer)
{
    struct list_cluster *cluster = timer->data;
    if (cluster->taking)
        begin(cluster);
    notify_left(cluster);
}

static void soon(struct list_cluster *cluster)
{
    (void)uv_timer_start(&cluster->soon, on_soon, 0, 0); /* cannot fail: it is open */
}

static void list_take(struct io_cluster *base)
{
    struct list_cluster *cluster = (struct list_cluster *)base;
    cluster->taking = !cluster->holding && !cluster->lost;
    soon(cluster);
}

static void list_leave(struct io_cluster *base, void (*done_cb)(void *arg), void *arg)
{
    struct list_cluster *cluster = (struct list_cluster *)base;
    cluster->holding = false;
    cluster->left_cb = done_cb;
    cluster->left_arg = arg;
    soon(cluster);
}

static void on_closed(uv_handle_t *handle)
{
    struct list_cluster *cluster = handle->data;
    io_cluster_closed(&cluster->base);
}

static void list_close(struct io_cluster *base)
{
    struct list_cluster *cluster = (struct list_cluster *)base;
    uv_close((uv_handle_t *)&cluster->soon, on_closed);
}

static bool list_holds(const struct io_cluster *base)
{
    return ((const struct list_cluster *)base)->holding;
}

/* A list has no files to read again. */
static void list_reload(struct io_cluster *base)
{
}

/* Epochs, fences and who serves are remembered by the stores of the shards alone. */
static const struct io_cluster_ops list_ops = {
    .take = list_take, .leave = list_leave, .close = list_close, .holds = list_holds, .reload = list_reload};

int io_cluster_new_list(struct uv_loop_s *loop, const struct io_cluster_options *options, struct io_cluster **out,
                        struct amp_error *error)
{
    if (io_cluster_list_count(options->list) != options->shards || options->shard == IO_CLUSTER_ANY)
        return amp_error_set(error, AMP_EINVAL, NULL,
                             "a list of shards has one address for each, and which of them this is must be given");
    struct list_cluster *cluster = calloc(1, sizeof *cluster);
    if (cluster == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory for the list of shards");
    int rc = io_cluster_init(&cluster->base, &list_ops, options, error);
    if (rc != 0) {
        free(cluster);
        return rc;
    }
    for (uint32_t k = 0; k < options->shards; k++) {
        cluster->base.members[k].held = true; /* whether a process runs there is not known */
        (void)io_cluster_list_address(options->list, k, cluster->base.members[k].address);
    }
    (void)uv_timer_init(loop, &cluster->soon); /* cannot fail */
    cluster->soon.data = cluster;
    *out = &cluster->base;
    return 0;
}
