#include "server/io/cluster_impl.h"

#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Plaintext, and TLS. */
#define SCHEME     "etcd://"
#define SCHEME_TLS "etcds://"

/* ---- what is said on the command line ---- */

bool io_cluster_list_address(const char *list, uint32_t index, char address[IO_CLUSTER_ADDRESS_MAX])
{
    for (; index > 0; index--) {
        list = strchr(list, ',');
        if (list == NULL)
            return false;
        list++;
    }
    size_t size = strcspn(list, ",");
    if (size == 0 || size >= IO_CLUSTER_ADDRESS_MAX)
        return false;
    memcpy(address, list, size);
    address[size] = 0;
    return true;
}

uint32_t io_cluster_list_count(const char *list)
{
    char address[IO_CLUSTER_ADDRESS_MAX];
    uint32_t count = 1;
    for (const char *comma = list; (comma = strchr(comma, ',')) != NULL; comma++)
        count++;
    for (uint32_t i = 0; i < count && i < IO_CLUSTER_SHARDS_MAX; i++)
        if (!io_cluster_list_address(list, i, address))
            return 0;
    return count <= IO_CLUSTER_SHARDS_MAX ? count : 0;
}

/* "HOST:PORT" with a host, and a port of 1 to 65535. */
static bool is_host_port(const char *text)
{
    const char *colon = strrchr(text, ':');
    size_t digits = colon != NULL ? strspn(colon + 1, "0123456789") : 0;
    if (colon == NULL || colon == text || digits == 0 || digits > 5 || colon[1 + digits] != 0)
        return false;
    long port = strtol(colon + 1, NULL, 10);
    return port >= 1 && port <= 65535 && strpbrk(text, " /\t\",") == NULL;
}

bool io_cluster_address_ok(const char *address)
{
    static const char *const everywhere[] = {"0.0.0.0:", "[::]:", "*:"};
    if (strlen(address) >= IO_CLUSTER_ADDRESS_MAX)
        return false;
    if (strncmp(address, "unix:", 5) == 0)
        return address[5] == '/' && strpbrk(address, " \t\",") == NULL;
    for (size_t i = 0; i < sizeof everywhere / sizeof *everywhere; i++)
        if (strncmp(address, everywhere[i], strlen(everywhere[i])) == 0)
            return false;
    return is_host_port(address);
}

static bool is_name(const char *text)
{
    static const char may[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
    size_t size = strlen(text);
    return size > 0 && size < IO_CLUSTER_NAME_MAX && strspn(text, may) == size && strchr("._-", text[0]) == NULL;
}

int io_cluster_url_parse(const char *text, struct io_cluster_url *url, struct amp_error *error)
{
    char address[IO_CLUSTER_ADDRESS_MAX];
    url->tls = strncmp(text, SCHEME_TLS, strlen(SCHEME_TLS)) == 0;
    const char *list = text + strlen(url->tls ? SCHEME_TLS : SCHEME);
    if (!url->tls && strncmp(text, SCHEME, strlen(SCHEME)) != 0)
        return amp_error_set(error, AMP_EINVAL, NULL,
                             "%.200s: give etcd://HOST:PORT,.../NAME, or etcds:// where etcd speaks TLS", text);
    const char *slash = strchr(list, '/');
    if (slash == NULL || !is_name(slash + 1))
        return amp_error_set(
            error, AMP_EINVAL, NULL,
            "%.200s: give a name for the cluster behind the addresses, as in etcd://HOST:PORT/NAME: up to %d "
            "letters, digits, '.', '_' and '-', and first a letter or digit",
            text, IO_CLUSTER_NAME_MAX - 1);
    size_t size = (size_t)(slash - list);
    if (size >= sizeof url->endpoints)
        return amp_error_set(error, AMP_EINVAL, NULL, "%.200s: too many addresses", text);
    memcpy(url->endpoints, list, size);
    url->endpoints[size] = 0;
    (void)snprintf(url->name, sizeof url->name, "%s", slash + 1);
    uint32_t count = size > 0 ? io_cluster_list_count(url->endpoints) : 0;
    for (uint32_t i = 0; i < count; i++) {
        (void)io_cluster_list_address(url->endpoints, i, address);
        if (!is_host_port(address))
            count = 0;
    }
    if (count == 0)
        return amp_error_set(error, AMP_EINVAL, NULL,
                             "%.200s: give the addresses of etcd's members as HOST:PORT with commas between them",
                             text);
    return 0;
}

/* ---- what both do ---- */

int io_cluster_init(struct io_cluster *cluster, const struct io_cluster_ops *ops,
                    const struct io_cluster_options *options, struct amp_error *error)
{
    if (options->shards == 0 || options->shards > IO_CLUSTER_SHARDS_MAX ||
        (options->shard != IO_CLUSTER_ANY && options->shard >= options->shards))
        return amp_error_set(error, AMP_EINVAL, NULL, "shard %u of %u: there are 1 to %d shards, from 0",
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
    return cluster->ops->raise_epoch(cluster, model, epoch, done_cb, arg);
}

void io_cluster_raise_fences(struct io_cluster *cluster, uint64_t above, void (*done_cb)(void *arg), void *arg)
{
    cluster->ops->raise_fences(cluster, above, done_cb, arg);
}

int io_cluster_serves(struct io_cluster *cluster, bool models, void (*done_cb)(void *arg), void *arg)
{
    return cluster->ops->serves(cluster, models, done_cb, arg);
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
