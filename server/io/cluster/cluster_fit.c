/*
 * Who is fit for which place. What makes a process fit is how recently its data were the shard: `served`, the fence
 * under which they were that last, against the newest fence under which anybody knows the shard to have been served.
 * etcd keeps that (who/last-K); where it has lost what it held, the data of all processes that are there know it
 * together (who/data-ID), and who was there before remembers what it read: a standby without data would else begin an
 * empty cluster before the others are started again.
 *
 *   own         served is the newest one: the data are what the shard was last
 *   lacking     it is not, and there are models: to serve what is here would lose something. Another shard can fill the
 *               directory
 *   free to go  there are no models, or nobody knows of any: whoever comes may be the shard
 *
 * What holds of places, in whatever order processes come:
 *
 *   1. While a process waits whose data are a shard's own, no other claims its place; and one that holds it and does
 *      not serve yet gives it back. One that serves never does.
 *   2. A process whose data lack something takes a place only where another shard serves, which can fill it; else it
 *      stands by.
 *   3. Of a place that etcd knows nothing of any more, though data do, nothing is served before all places are held: by
 *      then those who know more were there.
 *
 * Waiting for others ends by itself: after a time (the two below), or with the lease of who is waited for.
 */
#include "server/io/cluster/cluster_fit.h"

#include "server/io/cluster/cluster_etcd.h"
#include "server/io/cluster/cluster_map.h"
#include "server/io/cluster/cluster_options.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/*
 * How long a process lets others go first for a place of which it has no data, while they may have: they need not
 * restore anything. Longer than a claim takes, and a small part of the time in which a place is to be taken over.
 */
#define COURTESY_MS 250

/*
 * And where those others may still have to start, or who holds the place is about to give it back: some restarts by a
 * service manager (deploy/systemd: after 1 s). Not below the lease's time, after which the place of a process that is
 * gone is free.
 */
#define PATIENCE_MS 5000

uint64_t cluster_newest(const struct etcd_cluster *cluster, uint32_t shard)
{
    uint64_t newest = cluster->last[shard], known = cluster->base.options.known[shard];
    newest = known > newest ? known : newest;
    newest = cluster->seen[shard] > newest ? cluster->seen[shard] : newest;
    for (uint32_t i = 0; i < cluster->processes; i++)
        if (cluster->process[i].known[shard] > newest)
            newest = cluster->process[i].known[shard];
    return newest;
}

uint64_t cluster_floor(const struct etcd_cluster *cluster)
{
    uint64_t floor = 0;
    for (uint32_t k = 0; k < cluster->base.options.shards; k++) {
        uint64_t newest = cluster_newest(cluster, k);
        floor = newest > floor ? newest : floor;
    }
    return floor;
}

bool cluster_forgotten(const struct etcd_cluster *cluster, uint32_t shard)
{
    return cluster->last[shard] == 0 && cluster_newest(cluster, shard) != 0;
}

/*
 * Versions before this one noted the fence of a place in an empty store when they took it, though it may never have
 * been served: such a fence is above the one that etcd has.
 */
uint64_t cluster_served(const struct etcd_cluster *cluster, uint32_t shard)
{
    const struct io_cluster_options *options = &cluster->base.options;
    bool models = (options->models >> shard & 1) != 0;
    return models || options->served[shard] <= cluster->last[shard] ? options->served[shard] : 0;
}

bool cluster_is_own(const struct etcd_cluster *cluster, uint32_t shard)
{
    const struct io_cluster_options *options = &cluster->base.options;
    return (options->local >> shard & 1) != 0 && cluster_served(cluster, shard) >= cluster_newest(cluster, shard);
}

const struct cluster_process *cluster_owner(const struct etcd_cluster *cluster, uint32_t shard)
{
    uint64_t newest = cluster_newest(cluster, shard);
    char own[CLUSTER_ID_MAX];
    (void)snprintf(own, sizeof own, "%" PRIx64, (uint64_t)cluster->showing);
    if (newest == 0 || cluster_is_own(cluster, shard))
        return NULL;
    for (uint32_t i = 0; i < cluster->processes; i++) {
        const struct cluster_process *process = &cluster->process[i];
        if (process->waits && process->served[shard] == newest && strcmp(process->id, own) != 0)
            return process;
    }
    return NULL;
}

bool cluster_lacks(const struct etcd_cluster *cluster, uint32_t shard)
{
    const struct io_cluster_options *options = &cluster->base.options;
    return cluster_served(cluster, shard) < cluster_newest(cluster, shard) &&
           ((options->models >> shard & 1) != 0 || cluster->models != 0);
}

/* Its holder has noted its fence as that of the last process that was the shard. */
bool cluster_serves_there(const struct etcd_cluster *cluster, uint32_t shard)
{
    const struct cluster_place *place = &cluster->places[shard];
    return place->held && !place->strange && cluster->last[shard] != 0 && cluster->last[shard] == place->fence;
}

/* Whether there is a shard that could fill the directory of this one. */
static bool can_be_filled(const struct etcd_cluster *cluster, uint32_t shard)
{
    for (uint32_t k = 0; k < cluster->base.options.shards; k++)
        if (k != shard && cluster_serves_there(cluster, k))
            return true;
    return false;
}

static bool is_wanted(const struct etcd_cluster *cluster, uint32_t shard)
{
    uint32_t wanted = cluster->base.options.shard;
    return wanted == IO_CLUSTER_ANY || wanted == shard;
}

static bool may_claim(const struct etcd_cluster *cluster, uint32_t shard)
{
    if (cluster_is_own(cluster, shard))
        return true;
    return cluster_owner(cluster, shard) == NULL &&
           (!cluster_lacks(cluster, shard) || cluster_forgotten(cluster, shard) || can_be_filled(cluster, shard));
}

/*
 * A place whose data are here is held by who gives it back, or by this process before it was started anew: it will be
 * free.
 */
static bool has_one_to_come(const struct etcd_cluster *cluster)
{
    const struct io_cluster_options *options = &cluster->base.options;
    for (uint32_t k = 0; k < options->shards; k++)
        if (is_wanted(cluster, k) && cluster->places[k].held && cluster_is_own(cluster, k) &&
            cluster_served(cluster, k) != 0 &&
            (!cluster_serves_there(cluster, k) || cluster->places[k].fence == options->served[k]))
            return true;
    return false;
}

uint32_t cluster_served_older(const struct etcd_cluster *cluster)
{
    for (uint32_t k = 0; k < cluster->base.options.shards; k++)
        if (is_wanted(cluster, k) && cluster_serves_there(cluster, k) &&
            cluster_served(cluster, k) > cluster->places[k].fence)
            return k;
    return IO_CLUSTER_ANY;
}

uint32_t cluster_candidate(const struct etcd_cluster *cluster, int64_t *patience_ms)
{
    const struct io_cluster_options *options = &cluster->base.options;
    uint32_t found = IO_CLUSTER_ANY;
    for (uint32_t k = options->shards; k-- > 0;) {
        if (cluster->places[k].held || !is_wanted(cluster, k) || !may_claim(cluster, k))
            continue;
        if (found == IO_CLUSTER_ANY || cluster_is_own(cluster, k) || !cluster_is_own(cluster, found))
            found = k;
    }
    if (found == IO_CLUSTER_ANY)
        return found;
    bool own = cluster_is_own(cluster, found);
    *patience_ms = COURTESY_MS;
    if (cluster_forgotten(cluster, found) || (!own && has_one_to_come(cluster)))
        *patience_ms = options->lease_ms > PATIENCE_MS ? options->lease_ms : PATIENCE_MS;
    else if (own)
        *patience_ms = 0;
    return found;
}

void cluster_what_lacks(const struct etcd_cluster *cluster, uint32_t shard, char *text, size_t size)
{
    const struct io_cluster_options *options = &cluster->base.options;
    const char *name = cluster->base.url.name;
    char what[240], remedy[240];
    if ((options->models >> shard & 1) != 0)
        (void)snprintf(what, sizeof what,
                       "does not have the last data of shard %" PRIu32
                       " (another process has held it since, under fence %" PRIu64 ").",
                       shard, cluster_newest(cluster, shard));
    else
        (void)snprintf(
            what, sizeof what,
            "has no model, but cluster %s has models, as ampd/%s/who/shards in etcd says: is the right directory "
            "mounted there?",
            name, name);
    if (options->shards > 1)
        (void)snprintf(remedy, sizeof remedy,
                       "until that is back, or another shard that can fill this one; to go on without them, with what "
                       "is here, delete ampd/%s/who/last-k in etcd of each shard k that has no process",
                       name);
    else
        (void)snprintf(remedy, sizeof remedy,
                       "until that is back; to go on without it, with what is here, delete ampd/%s/who/last-0 in etcd",
                       name);
    (void)snprintf(
        text, size,
        "%.120s/shard-%" PRIu32 "-of-%" PRIu32
        " %s Start the process that held the shard last, or bring back its directory: this process stands by %s",
        options->data_dir != NULL ? options->data_dir : "", shard, options->shards, what, remedy);
}
