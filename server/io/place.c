#define _DEFAULT_SOURCE /* getrandom */
#include "server/io/place.h"

#include "base/failpoint.h"
#include "base/list.h"
#include "server/io/aside.h"
#include "server/io/cluster.h"
#include "server/io/notify.h"
#include "server/io/peers.h"
#include "server/io/server.h"
#include "server/io/shared_dir.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

/* An epoch of a model that is being raised. One for each model: another request takes the place of the one before. */
struct raise {
    struct amp_list node;
    struct ampd_server *server;
    uint64_t token, epoch;
    char model[AMPD_NAME_MAX];
};

struct io_place {
    struct ampd_datadir dir; /* of all shards' data, where places are kept in etcd; else not held */
    uint64_t local, floor;   /* what is there (struct io_cluster_options) */
    uint64_t served[IO_CLUSTER_SHARDS_MAX];
    bool taken, over; /* over: it never will be */
    bool noted;       /* io_place_serve is done */
    bool models;      /* some shard's data below `dir` have models */
    char other
        [AMPD_DATADIR_PATH_MAX]; /* data with models of another number of shards, which is `other_shards`; "": none */
    uint32_t other_shards;
    bool bare; /* the shard's directory has no model, and is not the one that it served from last, when it had some */
    bool has;  /* what is served has models */
    struct amp_error why; /* of over */
    uint32_t shard;
    struct ampd_fence fence;
    struct amp_list raises;
    bool closing;
};

/* ---- the directories ---- */

const char *io_place_directory(const struct ampd_server *server)
{
    return server->options->cluster != NULL ? server->place->dir.path : server->dir.path;
}

const char *io_place_address(const struct ampd_server *server)
{
    return server->options->advertise != NULL ? server->options->advertise : server->endpoint;
}

/* AMP_EINVAL: the path is too long. */
static int shard_path(const struct ampd_server *server, uint32_t shard, char path[AMPD_DATADIR_PATH_MAX],
                      struct amp_error *error)
{
    int size = snprintf(path, AMPD_DATADIR_PATH_MAX, "%s/shard-%" PRIu32 "-of-%" PRIu32, server->place->dir.path, shard,
                        server->options->shards);
    return size > 0 && size < AMPD_DATADIR_PATH_MAX
               ? 0
               : amp_error_set(error, AMP_EINVAL, NULL, "--data-dir %.200s: the path is too long",
                               server->options->data_dir);
}

static int count_models(struct ampd_store *store, size_t *count, struct amp_error *error)
{
    struct ampd_model_record *records = NULL;
    int rc = ampd_store_load(store, &records, count, error);
    ampd_model_records_free(records, *count);
    return rc;
}

/*
 * What fences the data of shard `own` know of, and whether they have models. With own IO_CLUSTER_ANY, for data of another number of
 * shards, their fences are not looked at.
 */
static int look_into(struct ampd_server *server, uint32_t own, const char *path, bool *models, struct amp_error *error)
{
    struct ampd_datadir dir = {.lock_fd = -1};
    struct ampd_store *store = NULL;
    int rc = ampd_datadir_open(&dir, path, error);
    if (rc == 0)
        rc = ampd_store_sqlite_open(dir.path, &store, error);
    for (uint32_t k = 0; rc == 0 && own != IO_CLUSTER_ANY && k < server->options->shards; k++) {
        struct ampd_fence fence = {0};
        rc = ampd_store_get_fence(store, k, &fence, error);
        if (fence.counter > server->place->floor)
            server->place->floor = fence.counter;
        if (k == own)
            server->place->served[k] = fence.counter;
    }
    size_t count = 0;
    if (rc == 0)
        rc = count_models(store, &count, error);
    *models = *models || count > 0;
    ampd_store_close(store);
    ampd_datadir_close(&dir);
    return rc;
}

bool io_place_has_models(const struct ampd_server *server)
{
    return server->options->cluster != NULL && server->place->models;
}

bool io_place_is_bare(const struct ampd_server *server)
{
    return server->place != NULL && server->place->bare;
}

/* The store in a directory of a shard. */
static bool has_store(const char *path)
{
    char store[AMPD_DATADIR_PATH_MAX + 16];
    (void)snprintf(store, sizeof store, "%s/ampd.db", path);
    return access(store, F_OK) == 0;
}

/* Notes a directory with models below the data directory that is a shard's of another number of shards. */
static int look_for_others(struct ampd_server *server, struct amp_error *error)
{
    struct io_place *place = server->place;
    DIR *dir = opendir(place->dir.path);
    int rc =
        dir != NULL ? 0 : amp_error_set(error, AMP_EIO, NULL, "cannot read %s: %s", place->dir.path, strerror(errno));
    for (struct dirent *entry; rc == 0 && place->other[0] == 0 && (entry = readdir(dir)) != NULL;) {
        char path[AMPD_DATADIR_PATH_MAX];
        uint32_t shard, shards;
        int end = 0;
        bool models = false;
        if (sscanf(entry->d_name, "shard-%" SCNu32 "-of-%" SCNu32 "%n", &shard, &shards, &end) != 2 ||
            entry->d_name[end] != 0 || shards == server->options->shards)
            continue;
        int size = snprintf(path, sizeof path, "%s/%s", place->dir.path, entry->d_name);
        if (size < 0 || (size_t)size >= sizeof path || !has_store(path))
            continue;
        rc = look_into(server, IO_CLUSTER_ANY, path, &models, error);
        if (rc != 0 || !models)
            continue;
        memcpy(place->other, path, sizeof path);
        place->other_shards = shards;
    }
    if (dir != NULL)
        (void)closedir(dir); /* only read */
    return rc;
}

/* All shards' data below the directory. */
static int look_around(struct ampd_server *server, struct amp_error *error)
{
    char path[AMPD_DATADIR_PATH_MAX];
    const char *shared = server->options->checkpoint_dir;
    int rc = ampd_datadir_open(&server->place->dir, server->options->data_dir, error);
    if (rc == 0 && shared != NULL)
        rc = io_shared_dir_claim(shared, server->options->cluster->name, error);
    for (uint32_t k = 0; rc == 0 && k < server->options->shards; k++) {
        rc = shard_path(server, k, path, error);
        if (rc != 0)
            break;
        if (!has_store(path))
            continue;
        server->place->local |= (uint64_t)1 << k;
        rc = look_into(server, k, path, &server->place->models, error);
    }
    return rc == 0 ? look_for_others(server, error) : rc;
}

int io_place_open(struct ampd_server *server, struct amp_error *error)
{
    const struct ampd_server_options *options = server->options;
    if (options->cluster != NULL || options->peers != NULL) {
        server->place = calloc(1, sizeof *server->place);
        if (server->place == NULL)
            return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory for the cluster");
        amp_list_init(&server->place->raises);
        server->place->dir.lock_fd = -1;
    }
    return options->cluster != NULL ? look_around(server, error)
                                    : ampd_server_open_storage(server, options->data_dir, error);
}

/* The fence of a shard that nobody outside of the process gives one: a counter of its starts, with an id of this one. */
static int boot(void *arg, uint32_t shard, struct ampd_fence *fence, struct amp_error *error)
{
    struct ampd_server *server = arg;
    uint8_t boot_id[AMPD_BOOT_ID_BYTES];
    if (getrandom(boot_id, sizeof boot_id, 0) != sizeof boot_id)
        return amp_error_set(error, AMP_EIO, NULL, "no random numbers from the system");
    int rc = ampd_store_boot(server->store, shard, boot_id, fence, error);
    AMP_FAILPOINT("start.booted");
    return rc;
}

/* ---- what the cluster tells ---- */

static void on_taken(void *arg, uint32_t shard, const struct ampd_fence *fence)
{
    struct ampd_server *server = arg;
    server->place->shard = shard;
    server->place->fence = *fence;
    server->place->taken = true;
    uv_stop(&server->loop); /* io_place_take goes on */
}

static void on_waiting(void *arg, const struct amp_error *why)
{
    const struct ampd_server *server = arg;
    amp_log(server->log, why->code == AMP_ESTATE ? AMP_LOG_INFO : AMP_LOG_WARN, "cluster", "msg=\"%s\"", why->text);
    io_notify_status(why->text);
}

_Noreturn static void end_without_place(const struct ampd_server *server, const char *why)
{
    amp_log(server->log, AMP_LOG_ERROR, "cluster",
            "msg=\"this process is no shard any more, ending; start it again\" shard=%" PRIu32 " fence=%" PRIu64
            " err=\"%s\"",
            server->options->shard, server->fence.counter, why);
    _Exit(AMPD_EXIT_LOST);
}

static void on_lost(void *arg, const struct amp_error *why)
{
    struct ampd_server *server = arg;
    if (server->state == SERVER_CLOSING)
        return; /* nothing is said in its name any more */
    if (server->state != SERVER_STARTING || server->place->taken)
        end_without_place(server, why->text);
    server->place->over = true;
    server->place->why = *why;
    uv_stop(&server->loop);
}

static void on_moved(void *arg, uint32_t shard)
{
    struct ampd_server *server = arg;
    const struct io_cluster_member *member = io_cluster_member(server->cluster, shard);
    amp_log(server->log, AMP_LOG_INFO, "cluster", "msg=\"%s\" shard=%" PRIu32 " address=%s fence=%" PRIu64,
            member->held ? "a shard has its process" : "a shard has no process", shard, member->address, member->fence);
    io_peers_moved(server, shard);
}

static const struct io_cluster_events events = {
    .taken_cb = on_taken, .waiting_cb = on_waiting, .lost_cb = on_lost, .moved_cb = on_moved};

void io_place_reload(struct ampd_server *server)
{
    if (server->cluster != NULL)
        io_cluster_reload(server->cluster);
}

void io_place_check(const struct ampd_server *server)
{
    if (server->place != NULL && server->place->taken && !server->place->closing && !io_cluster_holds(server->cluster))
        end_without_place(server, "the lease's time has passed; the process may have been stopped for a while");
}

/* ---- taking it ---- */

/*
 * Whether the store has models, and another process has been this shard since; or has none, though the cluster has models. The store
 * that the shard served from last holds all that there is, also where a first model was noted in etcd and never stored.
 */
static int doubt(struct ampd_server *server, const struct ampd_fence *before, struct amp_error *error)
{
    size_t count = 0;
    uint64_t last = io_cluster_last(server->cluster);
    if (before->counter >= last)
        return 0;
    int rc = count_models(server->store, &count, error);
    server->doubt = rc == 0 && count > 0;
    server->place->bare = rc == 0 && count == 0 && io_cluster_models(server->cluster) != 0;
    if (server->place->bare && io_peers_shards(server) < 2)
        rc = amp_error_set(
            error, AMP_ESTATE, NULL,
            "%s has no model, but cluster %s has models, as the key ampd/%s/who/shards in etcd says: is the right "
            "directory mounted there? Start the process whose data directory the only shard served from last, "
            "or bring that directory back; a new cluster begins under another --cluster name",
            server->dir.path, server->options->cluster->name, server->options->cluster->name);
    if (server->doubt)
        amp_log(server->log, AMP_LOG_WARN, "cluster",
                "msg=\"another process has been this shard since\" shard=%" PRIu32 " data_dir=%s under=%" PRIu64
                " since=%" PRIu64,
                server->options->shard, server->dir.path, before->counter, last);
    if (server->doubt && io_peers_shards(server) < 2)
        rc = amp_error_set(
            error, AMP_ESTATE, NULL,
            "%s is from before fence %" PRIu64 ", under which another process was the only shard of cluster %s: "
            "bring back the data directory of that one; or, where that is lost for good, go on with what is "
            "here: delete the key ampd/%s/who/last-0 in etcd",
            server->dir.path, last, server->options->cluster->name, server->options->cluster->name);
    return rc;
}

/*
 * The store of the shard that this process is now; it is to know the fence before anything is said under it. One that is in
 * doubt does not know it before it is known to be, or to be made, what the shard is (io_place_serve). Aside.
 */
static int open_shard(void *arg, struct amp_error *error)
{
    struct ampd_server *server = arg;
    char path[AMPD_DATADIR_PATH_MAX];
    struct ampd_fence before = {0};
    int rc = shard_path(server, server->options->shard, path, error);
    if (rc == 0)
        rc = ampd_server_open_storage(server, path, error);
    if (rc == 0)
        rc = ampd_store_get_fence(server->store, server->options->shard, &before, error);
    if (rc == 0 && before.counter >= server->fence.counter)
        rc = amp_error_set(error, AMP_ESTATE, NULL,
                           "etcd gave the fence %" PRIu64 ", but %s has been shard %" PRIu32 " under %" PRIu64
                           "; start ampd again",
                           server->fence.counter, path, server->options->shard, before.counter);
    if (rc == 0)
        rc = doubt(server, &before, error);
    if (rc != 0 || server->doubt)
        return rc;
    return ampd_store_put_fence(server->store, server->options->shard, &server->fence, error);
}

static void on_noted(void *arg)
{
    ((struct io_place *)arg)->noted = true;
}

/* Aside. */
static int note_fence(void *arg, struct amp_error *error)
{
    const struct ampd_server *server = arg;
    struct ampd_fence known = {0};
    uint32_t shard = server->options->shard;
    size_t count = 0;
    int rc = count_models(server->store, &count, error);
    server->place->has = count > 0;
    if (rc == 0)
        rc = ampd_store_get_fence(server->store, shard, &known, error);
    if (rc == 0 && known.counter != server->fence.counter) /* it was in doubt, or another shard has filled it */
        rc = ampd_store_put_fence(server->store, shard, &server->fence, error);
    return rc;
}

int io_place_serve(struct ampd_server *server, struct amp_error *error)
{
    struct io_place *place = server->place;
    if (server->options->cluster == NULL)
        return 0;
    int rc = io_aside(server, note_fence, server, error);
    if (rc == 0 && (rc = io_cluster_serves(server->cluster, place->has, on_noted, place)) != 0)
        return amp_error_set(error, rc, NULL, "it cannot be noted in etcd who serves: %s", amp_strerror(rc));
    while (rc == 0 && !place->noted && !server->signalled)
        (void)uv_run(&server->loop, UV_RUN_ONCE); /* a place that is lost meanwhile ends the process */
    server->doubt = false;
    return rc != 0 ? rc : place->noted ? 0 : AMP_ECANCELLED;
}

static int make_cluster(struct ampd_server *server, struct amp_error *error)
{
    const struct ampd_server_options *given = server->options;
    struct io_cluster_options options = {.shards = given->shards,
                                         .shard = given->shard,
                                         .address = io_place_address(server),
                                         .log = server->log,
                                         .events = &events,
                                         .arg = server,
                                         .url = given->cluster,
                                         .access = &given->etcd,
                                         .lease_ms = given->times_ms[AMPD_TIME_CLUSTER_LEASE],
                                         .local = server->place->local,
                                         .floor = server->place->floor,
                                         .list = given->peers,
                                         .boot_cb = boot};
    memcpy(options.served, server->place->served, sizeof options.served);
    if (given->cluster == NULL)
        return io_cluster_new_list(&server->loop, &options, &server->cluster, error);
    if (server->place->other[0] != 0)
        return amp_error_set(error, AMP_EINVAL, NULL,
                             "%s has models of a cluster of %" PRIu32 " shards, and this process is for %" PRIu32
                             ": start it with --shards %" PRIu32 ", or give it another --data-dir",
                             server->place->other, server->place->other_shards, given->shards,
                             server->place->other_shards);
    amp_log(server->log, AMP_LOG_INFO, "cluster", "msg=\"waiting for a place\" cluster=%s etcd=%s shards=%" PRIu32,
            given->cluster->name, given->cluster->endpoints, given->shards);
    return io_cluster_new_etcd(&server->loop, &options, &server->cluster, error);
}

int io_place_take(struct ampd_server *server, struct amp_error *error)
{
    struct io_place *place = server->place;
    if (place == NULL)
        return boot(server, 0, &server->fence, error);
    uv_update_time(&server->loop); /* to open what is here may have taken longer than a call may that begins now */
    int rc = make_cluster(server, error);
    if (rc != 0)
        return rc;
    io_cluster_take(server->cluster);
    while (!place->taken && !place->over && !server->signalled)
        (void)uv_run(&server->loop, UV_RUN_DEFAULT); /* until one of them stops it */
    if (place->over)
        return amp_error_set(error, place->why.code == AMP_ESTATE ? AMP_EINVAL : place->why.code, NULL, "%s",
                             place->why.text);
    if (!place->taken)
        return AMP_ECANCELLED;
    server->own_options.shard = place->shard;
    server->fence = place->fence;
    return server->options->cluster != NULL ? io_aside(server, open_shard, server, error) : 0;
}

void io_place_no_models(struct ampd_server *server)
{
    for (uint32_t i = 0; i < ampd_core_models_count(server->core); i++) {
        struct ampd_model_info info;
        ampd_core_model(server->core, i, &info);
        if (!info.deleted)
            return;
    }
    if (server->cluster != NULL && server->options->shard == 0 && !server->place->closing)
        io_cluster_no_models(server->cluster);
}

/* ---- epochs and fences ---- */

static void on_raised(void *arg, const char *model, uint64_t epoch)
{
    struct raise *raise = arg;
    struct ampd_server *server = raise->server;
    struct ampd_event event = {.type = AMPD_EVENT_EPOCH_RAISED, .u.raised = {raise->token, epoch}};
    if (epoch < raise->epoch) { /* more was asked for meanwhile */
        if (io_cluster_raise_epoch(server->cluster, model, raise->epoch, on_raised, raise) != 0)
            end_without_place(server, "an epoch cannot be raised");
        return;
    }
    amp_list_remove(&raise->node);
    free(raise);
    ampd_server_event(server, &event);
}

static struct raise *find_raise(struct io_place *place, const char *model)
{
    AMP_LIST_EACH(it, safe, &place->raises)
    {
        struct raise *raise = AMP_CONTAINER(it, struct raise, node);
        if (strcmp(raise->model, model) == 0)
            return raise;
    }
    return NULL;
}

void io_place_raise(struct ampd_server *server, uint64_t token, const char *model, uint64_t epoch)
{
    struct raise *raise = find_raise(server->place, model);
    bool under_way = raise != NULL;
    if (!under_way)
        raise = calloc(1, sizeof *raise);
    if (raise == NULL)
        end_without_place(server, "out of memory for a new epoch");
    raise->server = server;
    raise->token = token;
    raise->epoch = epoch;
    if (under_way)
        return;
    (void)snprintf(raise->model, sizeof raise->model, "%s", model);
    amp_list_push(&server->place->raises, &raise->node);
    /* It fails without memory, or when the place is lost: the one or the other ends the process. */
    if (io_cluster_raise_epoch(server->cluster, model, epoch, on_raised, raise) != 0)
        end_without_place(server, "a new epoch cannot be asked for");
}

static void on_fences_raised(void *arg)
{
    const struct ampd_server *server = arg;
    end_without_place(server, "other shards know of a higher fence for it, as the line before says; etcd may have lost "
                              "what it held, and gives higher ones from now on");
}

void io_place_fenced(struct ampd_server *server, const struct ampd_fence *fence)
{
    if (server->place == NULL || !io_cluster_abilities(server->cluster).remembers)
        ampd_server_fatal(server, "another process has this shard's place",
                          &(struct amp_error){.text = "see the line before"});
    io_cluster_raise_fences(server->cluster, fence->counter, on_fences_raised, server);
}

/* ---- the end ---- */

static void on_left(void *arg)
{
    struct ampd_server *server = arg;
    io_cluster_close(server->cluster, NULL, NULL);
    server->cluster = NULL;
}

void io_place_close(struct ampd_server *server)
{
    if (server->place == NULL || server->place->closing)
        return;
    server->place->closing = true;
    if (server->cluster != NULL)
        io_cluster_leave(server->cluster, on_left, server);
}

void io_place_free(struct ampd_server *server)
{
    struct io_place *place = server->place;
    if (place == NULL)
        return;
    for (struct amp_list *node; (node = amp_list_shift(&place->raises)) != NULL;)
        free(AMP_CONTAINER(node, struct raise, node));
    ampd_datadir_close(&place->dir);
    free(place);
    server->place = NULL;
}
