/*
 * Which process is fit for which place. A process is fit if its data are the shard's newest: `served`, the fence under
 * which they last were the shard, is compared with the newest fence under which the shard is known to have served. etcd
 * keeps that fence (who/last-K). If etcd has lost its data, the fence is known from the data of all processes that run
 * (who/data-ID), and from what a process has read of etcd before (`seen`): without the latter a standby without data
 * would begin an empty cluster before the other processes are started again.
 *
 * For a process and a shard one of these holds:
 *
 *   own         `served` is the newest fence: the data here are the shard's newest
 *   lacking     it is not, and there are models: serving the data here would lose something. Another shard can fill the
 *               directory
 *   free to go  there are no models, or no process knows of any: any process may be the shard
 *
 * Rules, which hold in whatever order processes are started:
 *
 *   1. While a process waits whose data are a shard's own, no other process claims that place; and a process that holds
 *      it without serving yet gives it back. One that serves never does.
 *   2. A process whose data are lacking takes a place only if another shard can fill its directory: it serves, or it
 *      will by rule 3, since a process is there with its newest data. Else it stands by, and gives back a place that it
 *      has taken. What it has read of etcd before counts until it ends, so that data may come as late as they like.
 *   3. Where etcd has no fence of a place, though one is known, nothing is served before all places are held: by then
 *      the processes that know more have been seen.
 *
 * A process that could take a place waits for no other one forever: the two times below bound it, or the lease of the
 * process it waits for. For data that are lacking an operator decides (cluster_what_lacks).
 */
#include "server/io/cluster/cluster_fit.h"

#include "server/io/cluster/cluster_impl.h"
#include "server/io/cluster/cluster_map.h"
#include "server/io/cluster/cluster_options.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/*
 * For this long a process leaves a free place of which it has no data to others, which may have the data and then need
 * not restore anything. It is longer than a claim takes, and a small part of the time that a takeover may take.
 */
#define COURTESY_MS 250

/*
 * For this long, or for the lease's time if that is longer, where those other processes may still have to be started,
 * or the holder of a place that suits this process better is about to give it back. It covers several restarts by a
 * service manager (deploy/systemd: after 1 s); the lease's time is that after which the place of a dead process is
 * free.
 */
#define PATIENCE_MS 5000

uint64_t cluster_newest(const struct io_cluster *cluster, uint32_t shard)
{
    uint64_t newest = cluster->last[shard], known = cluster->options.known[shard];
    newest = known > newest ? known : newest;
    newest = cluster->seen[shard] > newest ? cluster->seen[shard] : newest;
    for (uint32_t i = 0; i < cluster->processes; i++)
        if (cluster->process[i].known[shard] > newest)
            newest = cluster->process[i].known[shard];
    return newest;
}

uint64_t cluster_floor(const struct io_cluster *cluster)
{
    uint64_t floor = 0;
    for (uint32_t k = 0; k < cluster->options.shards; k++) {
        uint64_t newest = cluster_newest(cluster, k), served = cluster->options.served[k];
        floor = newest > floor ? newest : floor;
        floor = served > floor ? served : floor;
    }
    return floor;
}

bool cluster_forgotten(const struct io_cluster *cluster, uint32_t shard)
{
    return cluster->last[shard] == 0 && cluster_newest(cluster, shard) != 0;
}

/*
 * A store without models counts only if etcd's note is not below its fence: earlier versions of ampd stored the fence
 * of a place in an empty store as soon as they took it, though they may never have served as the shard.
 */
uint64_t cluster_served(const struct io_cluster *cluster, uint32_t shard)
{
    const struct io_cluster_options *options = &cluster->options;
    bool models = (options->models >> shard & 1) != 0;
    return models || options->served[shard] <= cluster->last[shard] ? options->served[shard] : 0;
}

bool cluster_is_own(const struct io_cluster *cluster, uint32_t shard)
{
    const struct io_cluster_options *options = &cluster->options;
    return (options->local >> shard & 1) != 0 && cluster_served(cluster, shard) >= cluster_newest(cluster, shard);
}

/* Another process that has the shard's newest data, and waits for a place if `waits`. NULL: none. */
static const struct cluster_process *find_newest(const struct io_cluster *cluster, uint32_t shard, bool waits)
{
    uint64_t newest = cluster_newest(cluster, shard);
    char own[CLUSTER_ID_MAX];
    (void)snprintf(own, sizeof own, "%" PRIx64, (uint64_t)cluster->showing);
    for (uint32_t i = 0; newest != 0 && i < cluster->processes; i++) {
        const struct cluster_process *process = &cluster->process[i];
        if ((process->waits || !waits) && process->served[shard] == newest && strcmp(process->id, own) != 0)
            return process;
    }
    return NULL;
}

const struct cluster_process *cluster_owner(const struct io_cluster *cluster, uint32_t shard)
{
    return cluster_is_own(cluster, shard) ? NULL : find_newest(cluster, shard, true);
}

/* Whether etcd has told of the shard what it does not know any more: it has lost its data since. */
static bool has_told(const struct io_cluster *cluster, uint32_t shard)
{
    return cluster->last[shard] < cluster->seen[shard];
}

/* Where etcd has lost its data, who/shards is gone, too: there may be models. */
bool cluster_lacks(const struct io_cluster *cluster, uint32_t shard)
{
    const struct io_cluster_options *options = &cluster->options;
    return cluster_served(cluster, shard) < cluster_newest(cluster, shard) &&
           ((options->models >> shard & 1) != 0 || cluster->models != 0 || has_told(cluster, shard));
}

/* The holder has put its own fence into who/last-K. */
bool cluster_serves_there(const struct io_cluster *cluster, uint32_t shard)
{
    const struct cluster_place *place = &cluster->places[shard];
    return place->held && !place->foreign && cluster->last[shard] != 0 && cluster->last[shard] == place->fence;
}

bool cluster_can_be_filled(const struct io_cluster *cluster, uint32_t shard)
{
    bool forgotten = cluster_forgotten(cluster, shard);
    for (uint32_t k = 0; k < cluster->options.shards; k++)
        if (k != shard && (cluster_serves_there(cluster, k) || (forgotten && find_newest(cluster, k, false) != NULL)))
            return true;
    return false;
}

static bool is_wanted(const struct io_cluster *cluster, uint32_t shard)
{
    uint32_t wanted = cluster->options.shard;
    return wanted == IO_CLUSTER_ANY || wanted == shard;
}

static bool may_claim(const struct io_cluster *cluster, uint32_t shard)
{
    if (cluster_is_own(cluster, shard))
        return true;
    return cluster_owner(cluster, shard) == NULL &&
           (!cluster_lacks(cluster, shard) || cluster_can_be_filled(cluster, shard));
}

/*
 * Whether a place whose newest data are here is held, but will be free soon: its holder does not serve yet and will
 * give it back, or it is this process itself before its restart, whose lease runs out.
 */
static bool has_one_to_come(const struct io_cluster *cluster)
{
    const struct io_cluster_options *options = &cluster->options;
    for (uint32_t k = 0; k < options->shards; k++)
        if (is_wanted(cluster, k) && cluster->places[k].held && cluster_is_own(cluster, k) &&
            cluster_served(cluster, k) != 0 &&
            (!cluster_serves_there(cluster, k) || cluster->places[k].fence == options->served[k]))
            return true;
    return false;
}

uint32_t cluster_served_older(const struct io_cluster *cluster)
{
    for (uint32_t k = 0; k < cluster->options.shards; k++)
        if (is_wanted(cluster, k) && cluster_serves_there(cluster, k) &&
            cluster_served(cluster, k) > cluster->places[k].fence)
            return k;
    return IO_CLUSTER_ANY;
}

uint32_t cluster_candidate(const struct io_cluster *cluster, int64_t *patience_ms)
{
    const struct io_cluster_options *options = &cluster->options;
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

void cluster_what_lacks(const struct io_cluster *cluster, uint32_t shard, char *text, size_t size)
{
    const struct io_cluster_options *options = &cluster->options;
    const char *name = cluster->options.url->name;
    char what[240], remedy[240];
    if ((options->models >> shard & 1) != 0)
        (void)snprintf(what, sizeof what,
                       "does not have the last data of shard %" PRIu32
                       " (another process has held it since, under fence %" PRIu64 ").",
                       shard, cluster_newest(cluster, shard));
    else if (cluster->models == 0)
        (void)snprintf(what, sizeof what, "has no model, but a process has held the shard, under fence %" PRIu64 ".",
                       cluster_newest(cluster, shard));
    else
        (void)snprintf(
            what, sizeof what,
            "has no model, but cluster %s has models, as ampd/%s/who/shards in etcd says: is the right directory "
            "mounted there?",
            name, name);
    if (cluster->last[shard] == 0)
        (void)snprintf(remedy, sizeof remedy,
                       "until that is back%s, with what is here, start %s again, since etcd has lost its data",
                       options->shards > 1 ? ", or another shard that can fill this one; to go on without them"
                                           : "; to go on without it",
                       options->shards > 1 ? "all processes" : "this process");
    else if (options->shards > 1)
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
