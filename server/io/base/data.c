#include "server/io/base/data.h"

#include "base/assert.h"
#include "server/io/base/server.h"

#include <inttypes.h>
#include <stdio.h>
#include <unistd.h>

void io_data_init(struct io_data *data)
{
    *data = (struct io_data){.dir.lock_fd = -1, .checkpoint_lock_fd = -1};
}

/* Sets the checkpoint directory. If it is not the data directory, it is made and tried. */
static int open_checkpoint_dir(struct ampd_server *server, struct amp_error *error)
{
    const char *path = server->options->checkpoint_dir;
    server->data.checkpoint_dir = path != NULL ? path : server->data.dir.path;
    int rc = path != NULL ? ampd_datadir_make(path, "checkpoint directory", error) : 0;
    if (rc == 0 && path != NULL)
        rc = ampd_datadir_check_writable(path, "checkpoint directory", error);
    return rc;
}

/* Warns in the log if other users can change the directory. */
static void warn_of_others(const struct ampd_server *server, const char *what, const char *path)
{
    char doubt[128];
    if (ampd_datadir_writable_by_others(path, doubt, sizeof doubt))
        amp_log(server->log, AMP_LOG_WARN, "server", "msg=\"others can change the %s\" path=%s err=\"%s\"", what, path,
                doubt);
}

int io_data_open_store(struct ampd_server *server, struct amp_error *error)
{
    AMP_ASSERT(server->data.store == NULL && server->data.reader == NULL);
    int rc = ampd_store_sqlite_open(server->data.dir.path, &server->data.store, error);
    if (rc == 0)
        rc = ampd_store_open_reader(server->data.store, &server->data.reader, error);
    return rc;
}

int io_data_open(struct ampd_server *server, const char *path, struct amp_error *error)
{
    int rc = ampd_datadir_open(&server->data.dir, path, error);
    if (rc == 0)
        rc = open_checkpoint_dir(server, error);
    if (rc == 0)
        rc = io_data_open_store(server, error);
    if (rc != 0)
        return rc;
    warn_of_others(server, "data directory", server->data.dir.path);
    if (server->options->checkpoint_dir != NULL)
        warn_of_others(server, "checkpoint directory", server->data.checkpoint_dir);
    return 0;
}

int io_data_lock_checkpoints(struct ampd_server *server, uint32_t shards, struct amp_error *error)
{
    char name[64];
    const char *path = server->options->checkpoint_dir;
    if (path == NULL)
        return 0;
    (void)snprintf(name, sizeof name, "LOCK.shard-%" PRIu32 "-of-%" PRIu32, server->options->shard, shards);
    int rc = ampd_datadir_lock(path, name, "checkpoint directory", "--checkpoint-dir", &server->data.checkpoint_lock_fd,
                               error);
    if (rc == 0 || rc == AMP_ELOCKED)
        return rc;
    amp_log(server->log, AMP_LOG_WARN, "server",
            "msg=\"another server at this checkpoint directory would not be noticed\" path=%s err=\"%s\"", path,
            error->text);
    return 0;
}

void io_data_close_store(struct io_data *data)
{
    ampd_store_close(data->reader);
    ampd_store_close(data->store);
    data->reader = data->store = NULL;
}

void io_data_close(struct io_data *data)
{
    io_data_close_store(data);
    ampd_datadir_close(&data->dir);
    if (data->checkpoint_lock_fd >= 0)
        (void)close(data->checkpoint_lock_fd); /* lets the lock go */
    data->checkpoint_lock_fd = -1;
}
