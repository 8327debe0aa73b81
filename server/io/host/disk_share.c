/*
 * Every few seconds the file system is asked, on the files' thread, since a network file system may keep its caller
 * waiting. While a checkpoint is being written, the alert stays as it is: then the disk also holds an older one that is
 * about to be removed.
 */
#include "server/io/host/disk_share.h"

#include "base/assert.h"
#include "server/io/base/server.h"
#include "server/io/base/storage_alert.h"
#include "server/io/base/threads.h"
#include "server/io/cluster/peers.h"
#include "server/io/host/checkpoint_files.h"
#include "server/io/host/model_files.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

/* Often enough to notice it between two checkpoints, seldom enough to cost nothing. */
#define LOOK_MS 5000

/* One question to the file system. */
struct look_task {
    struct io_task task;
    struct ampd_server *server;
    uint32_t share_max;        /* --checkpoint-disk-share, percent */
    char model[AMPD_NAME_MAX]; /* whose next checkpoint is the largest */
    struct io_disk_room room;
    bool alone; /* no checkpoint was being written when it was submitted; later ones wait behind it */
    bool known; /* the file system has answered */
};

uint32_t io_disk_share_after(const struct io_disk_room *room)
{
    double used = (double)(room->total_bytes - room->free_bytes) + (double)room->next_bytes;
    double percent = room->total_bytes == 0 ? 0 : used * 100 / (double)room->total_bytes;
    return percent > 1000 ? 1000 : (uint32_t)percent + ((double)(uint32_t)percent < percent);
}

static void look_run(struct io_task *base)
{
    struct look_task *look = AMP_CONTAINER(base, struct look_task, task);
    struct statvfs disk;
    if (statvfs(look->server->data.checkpoint_dir, &disk) != 0)
        return;
    uint64_t unit = disk.f_frsize != 0 ? disk.f_frsize : disk.f_bsize;
    uint64_t reserved = disk.f_bfree - disk.f_bavail; /* for root: df counts it as neither used nor free */
    look->room.total_bytes = (disk.f_blocks - reserved) * unit;
    look->room.free_bytes = disk.f_bavail * unit;
    look->known = true;
}

/* Sets or ends the alert, and logs a change. */
static void report(const struct look_task *look)
{
    const struct ampd_server *server = look->server;
    const struct io_disk_room *room = &look->room;
    uint32_t share = io_disk_share_after(room);
    struct amp_error wrong = {0};
    if (share > look->share_max && room->next_bytes > 0) /* 0: no checkpoint is expected */
        (void)amp_error_set(&wrong, AMP_EEXHAUSTED, "NO_SPACE",
                            "the next checkpoint of %s, %" PRIu64 " bytes, would fill the disk of %.200s to %u %%, "
                            "beyond checkpoint-disk-share, %u %%: %" PRIu64 " of %" PRIu64
                            " bytes are free; make room, lower keep_last, or give it a larger disk",
                            look->model, room->next_bytes, server->data.checkpoint_dir, share, look->share_max,
                            room->free_bytes, room->total_bytes);
    bool was_full = io_storage_alert_is_on(server->storage_alert, IO_STORAGE_ALERT_SHARE), is_full = wrong.code != 0;
    io_storage_alert_set(server->storage_alert, IO_STORAGE_ALERT_SHARE, wrong.text);
    if (is_full && !was_full)
        amp_log(server->log, AMP_LOG_WARN, "checkpoint", "msg=\"the disk is nearly full\" err=\"%s\"", wrong.text);
    else if (was_full && !is_full)
        amp_log(server->log, AMP_LOG_INFO, "checkpoint", "msg=\"the disk has room again\" path=%s",
                server->data.checkpoint_dir);
}

static void look_done(struct io_task *base)
{
    struct look_task *look = AMP_CONTAINER(base, struct look_task, task);
    struct ampd_server *server = look->server;
    server->disk_share->looking = false;
    if (look->known) {
        server->disk_share->total_bytes = look->room.total_bytes;
        server->disk_share->free_bytes = look->room.free_bytes;
    }
    if (look->known && look->alone)
        report(look);
    free(look);
}

/*
 * Assumes that the next checkpoint of each model is as large as its newest one, and takes the largest of all models. In
 * a directory that shards share, each of them writes a part that is as large as this one's.
 */
static void find_next(const struct ampd_server *server, struct look_task *look)
{
    uint64_t parts = io_model_files_shared(server) ? io_peers_shards(server) : 1;
    for (uint32_t i = 0; i < ampd_core_models_count(server->core); i++) {
        struct ampd_model_info info;
        ampd_core_model(server->core, i, &info);
        if (info.deleted || info.checkpoints_count == 0 || info.state == AMPD_MODEL_DONE)
            continue;
        uint64_t bytes = info.checkpoints[info.checkpoints_count - 1].size_bytes * parts;
        if (bytes <= look->room.next_bytes)
            continue;
        look->room.next_bytes = bytes;
        memcpy(look->model, info.spec->name, sizeof look->model);
    }
}

static void on_look(uv_timer_t *timer)
{
    struct ampd_server *server = timer->data;
    bool drains = server->life.state == SERVER_DRAINING;
    if ((server->life.state != SERVER_RUNNING && !drains) || server->disk_share->looking)
        return;
    struct look_task *look = calloc(1, sizeof *look);
    if (look == NULL)
        return; /* no memory: the next time will do */
    look->task = (struct io_task){.run_cb = look_run, .done_cb = look_done};
    look->server = server;
    look->share_max = server->options->checkpoint_disk_share;
    look->alone = !drains && amp_list_empty(&server->checkpoint_files->cuts);
    find_next(server, look);
    server->disk_share->looking = true;
    io_threads_submit(server->pools.files, &look->task);
}

void io_disk_share_open(struct ampd_server *server)
{
    uv_timer_t *timer = &server->disk_share->timer;
    AMP_ASSERT(uv_timer_init(&server->loop, timer) == 0);
    timer->data = server;
}

void io_disk_share_start(struct ampd_server *server)
{
    (void)uv_timer_start(&server->disk_share->timer, on_look, LOOK_MS, LOOK_MS); /* cannot fail on an open handle */
    on_look(&server->disk_share->timer);
}

void io_disk_share_close(struct ampd_server *server)
{
    uv_close((uv_handle_t *)&server->disk_share->timer, NULL);
}
