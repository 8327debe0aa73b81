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
#include <string.h>
#include <uv.h>

/* A callback that is due at the next turn of the loop. */
struct answer {
    struct answer *next;
    char model[AMPD_NAME_MAX];
    uint64_t epoch;
    void (*epoch_cb)(void *arg, const char *model, uint64_t epoch); /* of raise_epoch; else NULL */
    void (*done_cb)(void *arg);                                     /* of the others; may be NULL */
    void *arg;
};

struct list_cluster {
    struct io_cluster base;
    uv_timer_t soon;            /* runs what is due at the next turn of the loop */
    struct answer *answers;     /* owned, in order */
    bool taking, holding, lost; /* taking: at the next turn of the loop. lost: boot_cb has failed */
};

static void tell(struct list_cluster *cluster)
{
    while (cluster->answers != NULL) {
        struct answer *answer = cluster->answers;
        cluster->answers = answer->next;
        if (answer->epoch_cb != NULL)
            answer->epoch_cb(answer->arg, answer->model, answer->epoch);
        else if (answer->done_cb != NULL)
            answer->done_cb(answer->arg);
        free(answer);
    }
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
    tell(cluster);
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

static int queue(struct list_cluster *cluster, const struct answer *from)
{
    struct answer *answer = malloc(sizeof *answer), **end = &cluster->answers;
    if (answer == NULL)
        return AMP_ENOMEM;
    *answer = *from;
    answer->next = NULL;
    while (*end != NULL)
        end = &(*end)->next;
    *end = answer;
    soon(cluster);
    return 0;
}

static void list_leave(struct io_cluster *base, void (*done_cb)(void *arg), void *arg)
{
    struct list_cluster *cluster = (struct list_cluster *)base;
    struct answer answer = {.done_cb = done_cb, .arg = arg};
    cluster->holding = false;
    if (queue(cluster, &answer) != 0 && done_cb != NULL)
        done_cb(arg);
}

static void on_closed(uv_handle_t *handle)
{
    struct list_cluster *cluster = handle->data;
    while (cluster->answers != NULL) {
        struct answer *answer = cluster->answers;
        cluster->answers = answer->next;
        free(answer);
    }
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

/* Epochs are kept in the stores of the shards alone, and the caller has asked these already. */
static int list_raise_epoch(struct io_cluster *base, const char *model, uint64_t epoch,
                            void (*done_cb)(void *arg, const char *model, uint64_t epoch), void *arg)
{
    struct answer answer = {.epoch = epoch, .epoch_cb = done_cb, .arg = arg};
    (void)strncpy(answer.model, model, sizeof answer.model - 1);
    return queue((struct list_cluster *)base, &answer);
}

static void list_raise_fences(struct io_cluster *base, uint64_t above, void (*done_cb)(void *arg), void *arg)
{
    struct answer answer = {.done_cb = done_cb, .arg = arg};
    if (queue((struct list_cluster *)base, &answer) != 0 && done_cb != NULL)
        done_cb(arg);
}

/* Nothing is noted outside of the process's own store: done_cb just comes. */
static int list_serves(struct io_cluster *base, bool models, void (*done_cb)(void *arg), void *arg)
{
    struct answer answer = {.done_cb = done_cb, .arg = arg};
    return list_holds(base) ? queue((struct list_cluster *)base, &answer) : AMP_ESTATE;
}

/* A list has no files to read again. */
static void list_reload(struct io_cluster *base)
{
}

static const struct io_cluster_ops list_ops = {.take = list_take,
                                               .leave = list_leave,
                                               .close = list_close,
                                               .holds = list_holds,
                                               .raise_epoch = list_raise_epoch,
                                               .raise_fences = list_raise_fences,
                                               .serves = list_serves,
                                               .reload = list_reload};

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
