/*
 * A disk that neither answers nor fails keeps a thread in one call: that of the store, of the journals or of the
 * checkpoint files, or the one that reads these for ReadCheckpoint and CreateModel. Nothing else would tell why no step
 * goes on, or no export. A thread that waits for room has an alert of its own. (A creation with durability step looks
 * below the data directory, too; the sentence names the directory of the checkpoints all the same.)
 */
#include "server/io/host/disk_silence.h"

#include "base/assert.h"
#include "server/io/base/server.h"
#include "server/io/base/storage_alert.h"
#include "server/io/base/threads.h"

#include <inttypes.h>

#define LOOK_MS 1000

/* Longer than a busy disk takes for what one task writes. */
#define SILENT_MS 10000

/* The sentence about the first disk that is silent; code 0: none is. */
static void find_silent(const struct ampd_server *server, struct amp_error *silent)
{
    const struct {
        const struct io_threads *pool;
        const char *what, *path;
        enum io_storage_alert_of room; /* the alert while the thread waits for room; COUNT: it never does */
    } places[] = {
        {server->pools.writer, "the store", server->data.dir.path, IO_STORAGE_ALERT_STORE},
        {server->pools.journal, "the journal of votes", server->data.dir.path, IO_STORAGE_ALERT_JOURNAL},
        {server->pools.files, "the file of a checkpoint", server->data.checkpoint_dir, IO_STORAGE_ALERT_REMOVAL},
        {server->pools.exports, "an export of a checkpoint or a new model", server->data.checkpoint_dir,
         IO_STORAGE_ALERT_COUNT}};
    for (size_t i = 0; i < sizeof places / sizeof *places && silent->code == 0; i++) {
        uint64_t busy_ms = io_threads_busy_ms(places[i].pool);
        bool waits =
            places[i].room != IO_STORAGE_ALERT_COUNT && io_storage_alert_is_on(server->storage_alert, places[i].room);
        if (busy_ms >= SILENT_MS && !waits)
            (void)amp_error_set(silent, AMP_EUNAVAILABLE, NULL,
                                "the disk of %.300s has not answered for %" PRIu64
                                " s, and %s waits for it: see whether it is mounted and can be reached, and what else "
                                "keeps it busy",
                                places[i].path, busy_ms / 1000, places[i].what);
    }
}

static void on_look(uv_timer_t *timer)
{
    struct ampd_server *server = timer->data;
    struct amp_error silent = {0};
    if (server->life.state != SERVER_RUNNING && server->life.state != SERVER_DRAINING)
        return;
    find_silent(server, &silent);
    bool was = io_storage_alert_is_on(server->storage_alert, IO_STORAGE_ALERT_SILENT), is = silent.code != 0;
    io_storage_alert_set(server->storage_alert, IO_STORAGE_ALERT_SILENT, silent.text);
    if (is && !was)
        amp_log(server->log, AMP_LOG_ERROR, "server", "msg=\"a disk does not answer\" err=\"%s\"", silent.text);
    else if (was && !is)
        amp_log(server->log, AMP_LOG_INFO, "server", "msg=\"the disk answers again\"");
}

void io_disk_silence_open(struct ampd_server *server)
{
    uv_timer_t *timer = &server->disk_silence->timer;
    AMP_ASSERT(uv_timer_init(&server->loop, timer) == 0);
    timer->data = server;
    (void)uv_timer_start(timer, on_look, LOOK_MS, LOOK_MS); /* cannot fail on an open handle */
}

void io_disk_silence_close(struct ampd_server *server)
{
    uv_close((uv_handle_t *)&server->disk_silence->timer, NULL);
}
