/*
 * The way of a process to its place in etcd, and from there to serving. The flags of struct io_membership form these
 * states, in this order; `models` says beside them that data here had models at the start:
 *
 *   OPENED    no flag is set: the data directory is locked, and all stores below it have been looked into
 *   ASKED     still none: io_membership_take has made the cluster, which has not reported yet
 *   WAITING   waits: the cluster has said why there is no place yet. lacks is "" where this process could take one as
 *             soon as it is free (it stands by), else it says why not: for its data, because etcd refuses it, or since
 *             other shards have no process after etcd has lost its data
 *   REFUSED   why.code is not 0: there will never be a place; io_membership_take returns the reason, and the process
 *             ends
 *   TAKEN     taken: there is a place. The shard's store is then opened, which gives one of three cases:
 *               neither doubt nor bare   nobody else has been the shard since, or the cluster is new
 *               doubt                    the store has models, and another process has been the shard since
 *               bare                     the same of a store without a model, where the cluster has models
 *             refill.c deals with the last two. `has`: the store that is to be served has models
 *   SERVING   taken and noted, doubt is false: etcd knows that this process serves
 *   CLOSING   closing: the place is being given back, and is not checked any more
 *
 *   OPENED -> ASKED -> WAITING -> TAKEN -> SERVING -> CLOSING
 *             ASKED -> TAKEN, REFUSED       WAITING -> REFUSED         OPENED, ASKED, WAITING, TAKEN -> CLOSING
 *
 * No way leads back: a place that is lost in TAKEN or SERVING ends the process with exit code 4. `bare` is not reset by
 * serving; nothing reads it then.
 *
 * Without etcd there is no struct io_membership: the process is the shard that its command line names, and its fence is
 * a counter of starts in its own store. If two processes are started as the same shard of a list, the other shards
 * refuse the one with the lower fence (server/core/wire/fences.c).
 */
#define _DEFAULT_SOURCE /* getrandom */
#include "server/io/cluster/membership.h"

#include "base/assert.h"
#include "base/failpoint.h"
#include "base/list.h"
#include "server/io/base/core_event.h"
#include "server/io/base/data.h"
#include "server/io/base/fatal.h"
#include "server/io/base/notify.h"
#include "server/io/base/off_loop.h"
#include "server/io/base/options.h"
#include "server/io/base/server.h"
#include "server/io/cluster/cluster.h"
#include "server/io/cluster/cluster_address.h"
#include "server/io/cluster/cluster_options.h"
#include "server/io/cluster/peers.h"
#include "server/io/cluster/refill.h"
#include "server/io/cluster/shared_dir.h"
#include "storage/plain_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

/* Longest content of the file LEASE, with the final zero. */
#define LEASE_TEXT_MAX 160

/*
 * An epoch of a model that is being raised: one at most for each model, since a later request replaces the earlier one.
 */
struct raise {
    struct amp_list node;
    struct ampd_server *server;
    uint64_t token, epoch;
    char model[AMPD_NAME_MAX];
};

struct io_membership {
    struct ampd_datadir dir; /* --data-dir, below which the shards' directories are */
    uint64_t local, filled;  /* `local` and `models` of struct io_cluster_options: bits of the stores found in `dir` */
    uint64_t served[IO_CLUSTER_SHARDS_MAX], known[IO_CLUSTER_SHARDS_MAX]; /* as in struct io_cluster_options */
    int64_t lease_before;           /* of the process that used the directory before; 0: not known */
    bool taken;                     /* it holds a place, that of options.shard, under server->fence */
    bool noted;                     /* etcd has confirmed that this process serves (io_membership_serve) */
    bool waits;                     /* it has asked for a place, and waiting_cb has said why it has none yet */
    char lacks[AMP_ERROR_TEXT_MAX]; /* while it waits: why it could take no place that is free; "": it could */
    bool models;                    /* a store below `dir` had models at the start */
    char other
        [AMPD_DATADIR_PATH_MAX]; /* a directory in `dir` whose models are split for `other_shards` shards; "": none */
    uint32_t other_shards;
    bool doubt; /* the shard's store has models, and another process has been this shard since they were stored */
    bool bare;  /* the shard's store has no model, the cluster has, and another process has been this shard since */
    bool has;   /* the store that io_membership_serve declares has models */
    struct amp_error why;   /* why there will never be a place; code 0: there may be */
    struct amp_list raises; /* struct raise, owned */
    bool closing;           /* io_membership_close was called */
};

/* ---- the directories ---- */

const char *io_membership_directory(const struct ampd_server *server)
{
    return server->membership != NULL ? server->membership->dir.path : server->data.dir.path;
}

const char *io_membership_address(const struct ampd_server *server)
{
    return server->options->advertise != NULL ? server->options->advertise : server->endpoint;
}

/* Writes the path of a shard's directory, shard-k-of-K in the data directory. AMP_EINVAL: it is too long. */
static int shard_path(const struct ampd_server *server, uint32_t shard, char path[AMPD_DATADIR_PATH_MAX],
                      struct amp_error *error)
{
    int size = snprintf(path, AMPD_DATADIR_PATH_MAX, "%s/shard-%" PRIu32 "-of-%" PRIu32, server->membership->dir.path,
                        shard, server->options->shards);
    return size > 0 && size < AMPD_DATADIR_PATH_MAX
               ? 0
               : amp_error_set(error, AMP_EINVAL, NULL, "--data-dir %.200s: the path is too long",
                               server->options->data_dir);
}

/*
 * Opens the store of shard `own`, notes which fences it names (served, known) and whether it has models (filled,
 * *models), and closes it. With own IO_CLUSTER_ANY, for a store of another number of shards, only *models is set.
 */
static int look_into(struct ampd_server *server, uint32_t own, const char *path, bool *models, struct amp_error *error)
{
    struct ampd_datadir dir = {.lock_fd = -1};
    struct ampd_store *store = NULL;
    int rc = ampd_datadir_open(&dir, path, error);
    if (rc == 0)
        rc = ampd_store_sqlite_open(dir.path, &store, error);
    size_t count = 0;
    if (rc == 0)
        rc = ampd_store_count_models(store, &count, error);
    for (uint32_t k = 0; rc == 0 && own != IO_CLUSTER_ANY && k < server->options->shards; k++) {
        struct ampd_fence fence = {0};
        rc = ampd_store_get_fence(store, k, &fence, error);
        if (k == own)
            server->membership->served[k] = fence.counter;
        if (fence.counter > server->membership->known[k] && (k != own || count > 0)) /* see cluster_served */
            server->membership->known[k] = fence.counter;
    }
    *models = *models || count > 0;
    if (count > 0 && own != IO_CLUSTER_ANY)
        server->membership->filled |= (uint64_t)1 << own;
    ampd_store_close(store);
    ampd_datadir_close(&dir);
    return rc;
}

bool io_membership_has_models(const struct ampd_server *server)
{
    return server->membership != NULL && server->membership->models;
}

bool io_membership_is_bare(const struct ampd_server *server)
{
    return server->membership != NULL && server->membership->bare;
}

bool io_membership_in_doubt(const struct ampd_server *server)
{
    return server->membership != NULL && server->membership->doubt;
}

/* Whether a shard's directory has a store. */
static bool has_store(const char *path)
{
    char store[AMPD_DATADIR_PATH_MAX + 16];
    (void)snprintf(store, sizeof store, "%s/ampd.db", path);
    return access(store, F_OK) == 0;
}

static int cannot_read(const char *path, struct amp_error *error)
{
    return amp_error_set(error, AMP_EIO, NULL, "cannot read %s: %s", path, strerror(errno));
}

/*
 * Notes in `other` a directory shard-k-of-K with models whose K is not this cluster's; the first one found is enough.
 */
static int look_for_others(struct ampd_server *server, struct amp_error *error)
{
    struct io_membership *membership = server->membership;
    DIR *dir = opendir(membership->dir.path);
    int rc = dir != NULL ? 0 : cannot_read(membership->dir.path, error);
    while (rc == 0 && membership->other[0] == 0) {
        errno = 0;
        const struct dirent *entry = readdir(dir);
        if (entry == NULL) {
            rc = errno != 0 ? cannot_read(membership->dir.path, error) : 0; /* or its end */
            break;
        }
        char path[AMPD_DATADIR_PATH_MAX];
        uint32_t shard, shards;
        int end = 0;
        bool models = false;
        if (sscanf(entry->d_name, "shard-%" SCNu32 "-of-%" SCNu32 "%n", &shard, &shards, &end) != 2 ||
            entry->d_name[end] != 0 || shards == server->options->shards)
            continue;
        int size = snprintf(path, sizeof path, "%s/%s", membership->dir.path, entry->d_name);
        if (size < 0 || (size_t)size >= sizeof path || !has_store(path))
            continue;
        rc = look_into(server, IO_CLUSTER_ANY, path, &models, error);
        if (rc != 0 || !models)
            continue;
        memcpy(membership->other, path, sizeof path);
        membership->other_shards = shards;
    }
    if (dir != NULL)
        (void)closedir(dir); /* only read */
    return rc;
}

/* ---- the lease of the process before ---- */

/*
 * The file LEASE in the data directory names the lease of the process that uses the directory. The next process revokes
 * it instead of waiting for its end: it has the directory's lock, so the process before is gone. This does not follow
 * in a copy of the directory, whose original process may live, here or on another machine. So the file also names the
 * boot of the machine and the lock file (device and inode), and counts only where both are the same.
 */
static int lease_text(const struct ampd_server *server, int64_t lease, char text[LEASE_TEXT_MAX])
{
    char boot[64] = "";
    struct stat lock;
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t size = fd >= 0 ? read(fd, boot, sizeof boot - 1) : -1;
    if (fd >= 0)
        (void)close(fd); /* only read */
    if (size <= 0 || fstat(server->membership->dir.lock_fd, &lock) != 0)
        return AMP_ENOTFOUND;
    boot[strcspn(boot, "\n")] = 0;
    (void)snprintf(text, LEASE_TEXT_MAX, "%016" PRIx64 " %s %" PRIuMAX " %" PRIuMAX "\n", (uint64_t)lease, boot,
                   (uintmax_t)lock.st_dev, (uintmax_t)lock.st_ino);
    return 0;
}

static int open_lease(const struct ampd_server *server, int flags)
{
    char path[AMPD_DATADIR_PATH_MAX + 16];
    (void)snprintf(path, sizeof path, "%s/LEASE", server->membership->dir.path);
    return ampd_plain_open(path, flags);
}

static void read_lease(const struct ampd_server *server)
{
    char text[LEASE_TEXT_MAX] = "", expected[LEASE_TEXT_MAX];
    int fd = open_lease(server, O_RDONLY);
    ssize_t size = fd >= 0 ? read(fd, text, sizeof text - 1) : -1;
    if (fd >= 0)
        (void)close(fd); /* only read */
    uint64_t lease = size > 0 ? strtoull(text, NULL, 16) : 0;
    if (lease <= INT64_MAX && lease_text(server, (int64_t)lease, expected) == 0 && strcmp(text, expected) == 0)
        server->membership->lease_before = (int64_t)lease;
}

/* Not synced, since after a power loss the boot id is another one. If it fails, the next start waits for the lease. */
static void note_lease(void *arg, int64_t lease)
{
    const struct ampd_server *server = arg;
    char text[LEASE_TEXT_MAX];
    int fd = lease_text(server, lease, text) == 0 ? open_lease(server, O_WRONLY | O_CREAT | O_TRUNC) : -1;
    if (fd >= 0 && write(fd, text, strlen(text)) < 0)
        amp_log(server->log, AMP_LOG_INFO, "cluster", "msg=\"the lease could not be noted\" err=\"%s\"",
                strerror(errno));
    if (fd >= 0)
        (void)close(fd); /* a loss is harmless, see above */
}

/* Locks the data directory, and looks into the store of each shard below it. */
static int look_around(struct ampd_server *server, struct amp_error *error)
{
    char path[AMPD_DATADIR_PATH_MAX];
    const char *shared = server->options->checkpoint_dir;
    int rc = ampd_datadir_open(&server->membership->dir, server->options->data_dir, error);
    if (rc == 0 && shared != NULL)
        rc = io_shared_dir_claim(shared, server->options->cluster->name, error);
    if (rc == 0)
        read_lease(server);
    for (uint32_t k = 0; rc == 0 && k < server->options->shards; k++) {
        rc = shard_path(server, k, path, error);
        if (rc != 0)
            break;
        if (!has_store(path))
            continue;
        server->membership->local |= (uint64_t)1 << k;
        rc = look_into(server, k, path, &server->membership->models, error);
    }
    return rc == 0 ? look_for_others(server, error) : rc;
}

int io_membership_open(struct ampd_server *server, struct amp_error *error)
{
    if (server->options->cluster == NULL) {
        int rc = io_data_open(server, server->options->data_dir, error);
        return rc == 0 ? io_data_lock_checkpoints(server, io_peers_shards(server), error) : rc;
    }
    server->membership = calloc(1, sizeof *server->membership);
    if (server->membership == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "out of memory for the cluster");
    amp_list_init(&server->membership->raises);
    server->membership->dir.lock_fd = -1;
    return look_around(server, error);
}

/*
 * Gives the fence of this start where etcd does not: a counter of starts kept in the store, and a random id of this
 * start. --fence-above can raise it.
 */
static int boot(struct ampd_server *server, struct amp_error *error)
{
    uint32_t shard = server->options->shard;
    struct ampd_fence *fence = &server->fence;
    uint8_t boot_id[AMPD_BOOT_ID_BYTES];
    if (getrandom(boot_id, sizeof boot_id, 0) != sizeof boot_id)
        return amp_error_set(error, AMP_EIO, NULL, "no random numbers from the system");
    int rc = ampd_store_boot(server->data.store, shard, boot_id, fence, error);
    /*
     * This may also lower the fence. Other shards refuse one that is more than AMPD_FENCE_LEAP above the highest they
     * know; so a --fence-above that was far too high is corrected by giving the right one.
     */
    uint64_t above = server->options->fence_above;
    if (rc == 0 && above != 0 && (fence->counter <= above || fence->counter - above > AMPD_FENCE_LEAP)) {
        fence->counter = above + 1;
        rc = ampd_store_put_fence(server->data.store, shard, fence, error);
    }
    AMP_FAILPOINT("start.booted");
    return rc;
}

/* ---- what the cluster reports ---- */

static void on_taken(void *arg, uint32_t shard, const struct ampd_fence *fence)
{
    struct ampd_server *server = arg;
    server->own_options.shard = shard;
    server->fence = *fence;
    server->membership->taken = true;
    server->membership->waits = false;
    server->membership->lacks[0] = 0;
    uv_stop(&server->loop); /* so that io_membership_take goes on */
}

static void on_waiting(void *arg, const struct amp_error *why)
{
    struct ampd_server *server = arg;
    server->membership->waits = true;
    (void)snprintf(server->membership->lacks, sizeof server->membership->lacks, "%s",
                   why->code != AMP_ESTATE ? why->text : "");
    amp_log(server->log, why->code == AMP_ESTATE ? AMP_LOG_INFO : AMP_LOG_WARN, "cluster", "msg=\"%s\"", why->text);
    bool ready = why->code == AMP_ESTATE && io_membership_stands_by(server); /* it may stand by for years */
    server->life.notified_ready |= ready;
    if (ready)
        io_notify_ready(why->text);
    else
        io_notify_status(why->text);
}

const char *io_membership_missing(const struct ampd_server *server)
{
    const char *trouble = server->cluster != NULL ? io_cluster_trouble(server->cluster) : "";
    if (trouble[0] != 0)
        return trouble;
    bool lacks = server->membership != NULL && server->membership->lacks[0] != 0;
    return lacks ? server->membership->lacks : io_refill_waits(server);
}

bool io_membership_stands_by(const struct ampd_server *server)
{
    return server->membership != NULL && server->membership->waits && io_membership_missing(server)[0] == 0;
}

_Noreturn static void end_without_place(const struct ampd_server *server, const char *why)
{
    amp_log(server->log, AMP_LOG_ERROR, "cluster",
            "msg=\"this process is not a shard any more and ends; start it again\" shard=%" PRIu32 " fence=%" PRIu64
            " err=\"%s\"",
            server->options->shard, server->fence.counter, why);
    _Exit(AMPD_EXIT_LOST);
}

static void on_lost(void *arg, const struct amp_error *why)
{
    struct ampd_server *server = arg;
    if (server->life.state == SERVER_CLOSING)
        return; /* nothing is said in the shard's name any more */
    if (server->life.state != SERVER_STARTING || server->membership->taken)
        end_without_place(server, why->text);
    server->membership->why = *why;
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

void io_membership_reload(struct ampd_server *server)
{
    if (server->cluster != NULL)
        io_cluster_reload(server->cluster);
}

void io_membership_check(const struct ampd_server *server)
{
    if (server->membership != NULL && server->membership->taken && !server->membership->closing &&
        !io_cluster_holds(server->cluster))
        end_without_place(server, "the lease's time has passed; the process may have been stopped for a while");
}

/* ---- taking a place ---- */

/*
 * Sets doubt and bare, if another process has been this shard since: its fence, io_cluster_last, is above `before`, the
 * one under which this store last served. Otherwise the store holds all that there is, even if it has no model and etcd
 * says that there are models: a first model may have been noted in etcd and never stored.
 */
static int doubt(struct ampd_server *server, const struct ampd_fence *before, struct amp_error *error)
{
    size_t count = 0;
    uint64_t last = io_cluster_last(server->cluster);
    if (before->counter >= last)
        return 0;
    int rc = ampd_store_count_models(server->data.store, &count, error);
    server->membership->doubt = rc == 0 && count > 0;
    server->membership->bare = rc == 0 && count == 0 && io_cluster_models(server->cluster) != 0;
    if (server->membership->doubt)
        amp_log(server->log, AMP_LOG_WARN, "cluster",
                "msg=\"another process has held this shard since\" shard=%" PRIu32 " data_dir=%s under=%" PRIu64
                " since=%" PRIu64,
                server->options->shard, server->data.dir.path, before->counter, last);
    /* Where no other shard could fill the store, cluster.c does not report the place. */
    AMP_ASSERT(io_peers_shards(server) > 1 || !(server->membership->doubt || server->membership->bare));
    return rc;
}

/*
 * Opens the store of the shard whose place was taken. The new fence is not stored in it yet: the fence in a store is
 * that under which it last served, so it is stored by io_membership_serve, once the store is, or has been made, the
 * shard's newest. Off the loop.
 */
static int open_shard(void *arg, struct amp_error *error)
{
    struct ampd_server *server = arg;
    char path[AMPD_DATADIR_PATH_MAX];
    struct ampd_fence before = {0};
    int rc = shard_path(server, server->options->shard, path, error);
    if (rc == 0)
        rc = io_data_open(server, path, error);
    if (rc == 0)
        rc = ampd_store_get_fence(server->data.store, server->options->shard, &before, error);
    if (rc == 0 && before.counter >= server->fence.counter)
        rc = amp_error_set(error, AMP_ESTATE, NULL,
                           "etcd gave the fence %" PRIu64 ", but %s has been shard %" PRIu32 " under %" PRIu64
                           "; start ampd again",
                           server->fence.counter, path, server->options->shard, before.counter);
    return rc == 0 ? doubt(server, &before, error) : rc;
}

static void on_noted(void *arg)
{
    ((struct io_membership *)arg)->noted = true;
}

/* Stores the fence, and sets `has`. Off the loop. */
static int note_fence(void *arg, struct amp_error *error)
{
    const struct ampd_server *server = arg;
    size_t count = 0;
    int rc = ampd_store_count_models(server->data.store, &count, error);
    server->membership->has = count > 0;
    return rc == 0 ? ampd_store_put_fence(server->data.store, server->options->shard, &server->fence, error) : rc;
}

int io_membership_serve(struct ampd_server *server, struct amp_error *error)
{
    struct io_membership *membership = server->membership;
    if (membership == NULL)
        return 0;
    io_membership_check(server); /* the place may be on its way back to a process with newer data; a kept one stays */
    io_cluster_keep(server->cluster);
    int rc = io_off_loop(server, note_fence, server, error);
    if (rc == 0 && (rc = io_cluster_serves(server->cluster, membership->has, on_noted, membership)) != 0)
        return amp_error_set(error, rc, NULL, "it cannot be noted in etcd which process serves: %s", amp_strerror(rc));
    while (rc == 0 && !membership->noted && !server->life.signalled)
        (void)uv_run(&server->loop, UV_RUN_ONCE); /* if the place is lost meanwhile, the process ends */
    membership->doubt = false;
    return rc != 0 ? rc : membership->noted ? 0 : AMP_ECANCELLED;
}

static int make_cluster(struct ampd_server *server, struct amp_error *error)
{
    const struct ampd_server_options *given = server->options;
    struct io_cluster_options options = {.shards = given->shards,
                                         .shard = given->shard,
                                         .address = io_membership_address(server),
                                         .log = server->log,
                                         .events = &events,
                                         .arg = server,
                                         .url = given->cluster,
                                         .access = given->etcd,
                                         .lease_ms = given->times_ms[AMPD_TIME_CLUSTER_LEASE],
                                         .local = server->membership->local,
                                         .models = server->membership->filled,
                                         .data_dir = server->membership->dir.path,
                                         .lease_before = server->membership->lease_before,
                                         .lease_cb = note_lease};
    memcpy(options.served, server->membership->served, sizeof options.served);
    memcpy(options.known, server->membership->known, sizeof options.known);
    if (server->membership->other[0] != 0)
        return amp_error_set(error, AMP_EINVAL, NULL,
                             "%s has models of a cluster of %" PRIu32
                             " shards, and this process was started for %" PRIu32 ": start it with --shards %" PRIu32
                             ", or give it another --data-dir; docs/runbooks.md says how the number is changed",
                             server->membership->other, server->membership->other_shards, given->shards,
                             server->membership->other_shards);
    amp_log(server->log, AMP_LOG_INFO, "cluster", "msg=\"waiting for a place\" cluster=%s etcd=%s shards=%" PRIu32,
            given->cluster->name, given->cluster->endpoints, given->shards);
    return io_cluster_new(&server->loop, &options, &server->cluster, error);
}

int io_membership_take(struct ampd_server *server, struct amp_error *error)
{
    struct io_membership *membership = server->membership;
    uv_update_time(&server->loop); /* opening the stores may have taken longer than the deadline of a call to etcd */
    if (membership == NULL)
        return boot(server, error);
    int rc = make_cluster(server, error);
    if (rc != 0)
        return rc;
    while (!membership->taken && membership->why.code == 0 && !server->life.signalled)
        (void)uv_run(&server->loop, UV_RUN_DEFAULT); /* returns when on_taken, on_lost or a signal stops it */
    if (membership->why.code != 0)
        return amp_error_set(error, membership->why.code == AMP_ESTATE ? AMP_EINVAL : membership->why.code,
                             membership->why.reason, "%s", membership->why.text);
    return membership->taken ? io_off_loop(server, open_shard, server, error) : AMP_ECANCELLED;
}

void io_membership_no_models(struct ampd_server *server)
{
    for (uint32_t i = 0; i < ampd_core_models_count(server->core); i++) {
        struct ampd_model_info info;
        ampd_core_model(server->core, i, &info);
        if (!info.deleted)
            return;
    }
    if (server->cluster != NULL && server->options->shard == 0 && !server->membership->closing)
        io_cluster_no_models(server->cluster);
}

/* ---- epochs and fences ---- */

static void on_raised(void *arg, const char *model, uint64_t epoch)
{
    struct raise *raise = arg;
    struct ampd_server *server = raise->server;
    struct ampd_event event = {.type = AMPD_EVENT_EPOCH_RAISED, .u.raised = {raise->token, epoch}};
    if (epoch < raise->epoch) { /* a later request, made meanwhile, asks for more */
        if (io_cluster_raise_epoch(server->cluster, model, raise->epoch, on_raised, raise) != 0)
            end_without_place(server, "an epoch cannot be raised");
        return;
    }
    amp_list_remove(&raise->node);
    free(raise);
    io_core_event(server, &event);
}

static struct raise *find_raise(struct io_membership *membership, const char *model)
{
    AMP_LIST_EACH(it, safe, &membership->raises)
    {
        struct raise *raise = AMP_CONTAINER(it, struct raise, node);
        if (strcmp(raise->model, model) == 0)
            return raise;
    }
    return NULL;
}

void io_membership_raise(struct ampd_server *server, uint64_t token, const char *model, uint64_t epoch)
{
    struct raise *raise = find_raise(server->membership, model);
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
    amp_list_push(&server->membership->raises, &raise->node);
    /* It fails where memory is out or the place is lost; either ends the process. */
    if (io_cluster_raise_epoch(server->cluster, model, epoch, on_raised, raise) != 0)
        end_without_place(server, "a new epoch cannot be requested");
}

static void on_fences_raised(void *arg)
{
    const struct ampd_server *server = arg;
    end_without_place(server, "other shards know of a higher fence for it, as the line before says; etcd may have lost "
                              "its data, and gives higher ones from now on");
}

/* With a list only the operator knows which of two processes is the right one, so the log asks for a decision. */
_Noreturn static void end_for_another(const struct ampd_server *server, const struct ampd_fence *fence)
{
    struct amp_error error;
    (void)amp_error_set(&error, AMP_ESTATE, NULL,
                        "one with fence %" PRIu64 "; end it, or, if it does not belong to this cluster, start "
                        "this one with --fence-above %" PRIu64 " and see who has the role peer",
                        fence->counter, fence->counter);
    io_fatal(server->log, "another process has this shard's place", &error);
}

void io_membership_fenced(struct ampd_server *server, const struct ampd_fence *fence)
{
    if (server->membership == NULL)
        end_for_another(server, fence);
    io_cluster_raise_fences(server->cluster, fence->counter, on_fences_raised, server);
}

/* ---- the end ---- */

static void on_left(void *arg)
{
    struct ampd_server *server = arg;
    io_cluster_close(server->cluster, NULL, NULL);
    server->cluster = NULL;
}

void io_membership_close(struct ampd_server *server)
{
    if (server->membership == NULL || server->membership->closing)
        return;
    server->membership->closing = true;
    if (server->cluster != NULL)
        io_cluster_leave(server->cluster, on_left, server);
}

void io_membership_free(struct ampd_server *server)
{
    struct io_membership *membership = server->membership;
    if (membership == NULL)
        return;
    for (struct amp_list *node; (node = amp_list_shift(&membership->raises)) != NULL;)
        free(AMP_CONTAINER(node, struct raise, node));
    ampd_datadir_close(&membership->dir);
    free(membership);
    server->membership = NULL;
}
