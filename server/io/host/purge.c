/*
 * Removes what is left over: rows of deleted models on the writer's thread, and files that a crash or another process
 * of this shard has left, on the files' thread, or at a start off the loop.
 */
#include "server/io/host/purge.h"

#include "base/assert.h"
#include "server/io/base/counts.h"
#include "server/io/base/fatal.h"
#include "server/io/base/server.h"
#include "server/io/base/threads.h"
#include "server/io/host/model_files.h"
#include "server/io/host/watchers.h"
#include "storage/checkpoint.h"
#include "storage/checkpoint_remove.h"
#include "storage/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Rows of one transaction: a few milliseconds, for which a verdict may have to wait. */
#define PURGE_ROWS 2000

struct purge_task {
    struct io_task task;
    struct ampd_server *server;
    bool more; /* rows are left, and another portion may follow */
};

static void purge_run(struct io_task *base)
{
    struct purge_task *purge = AMP_CONTAINER(base, struct purge_task, task);
    struct amp_error error = {0};
    int rc = ampd_store_purge(purge->server->data.store, PURGE_ROWS, &purge->more, &error);
    if (rc == AMP_EIO || rc == AMP_EDATALOSS)
        io_fatal(purge->server->log, "the store failed", &error);
    if (rc == 0)
        return;
    purge->more = false; /* a full disk, or no memory: the next deletion or start goes on with it */
    amp_log(purge->server->log, AMP_LOG_WARN, "store", "msg=\"rows of deleted models stay for now\" err=\"%s\"",
            error.text);
}

static void purge_done(struct io_task *base)
{
    struct purge_task *purge = AMP_CONTAINER(base, struct purge_task, task);
    struct ampd_server *server = purge->server;
    bool more = purge->more && server->life.state < SERVER_DRAINING;
    free(purge);
    if (more)
        io_purge(server);
}

void io_purge(struct ampd_server *server)
{
    struct purge_task *purge = server->data.deletions == 0 ? calloc(1, sizeof *purge) : NULL;
    if (purge == NULL)
        return; /* paused, or no memory: the next call or start goes on */
    purge->task = (struct io_task){.run_cb = purge_run, .done_cb = purge_done};
    purge->server = server;
    io_threads_submit(server->pools.writer, &purge->task);
}

void io_purge_pause(struct ampd_server *server)
{
    server->data.deletions++;
}

void io_purge_resume(struct ampd_server *server)
{
    AMP_ASSERT(server->data.deletions > 0);
    server->data.deletions--;
}

void io_purge_model_deleted(struct ampd_server *server, const char *model)
{
    for (uint32_t i = 0; i < ampd_core_models_count(server->core); i++) {
        struct ampd_model_info info;
        ampd_core_model(server->core, i, &info);
        if (info.deleted || strcmp(info.spec->name, model) != 0)
            continue;
        io_watchers_deleted(server, i);
        io_counts_forget(&server->counts, i);
    }
}

/* ---- files in a directory that shards share ---- */

/* Removes this shard's files of one model that are not of the checkpoints in `keep`. */
struct sweep_task {
    struct io_task task;
    struct ampd_server *server;
    char model[AMPD_NAME_MAX];
    uint32_t count;
    struct ampd_checkpoint_record keep[];
};

/*
 * A part that is being written, or is not in the catalogue yet, belongs to a later step than the catalogue's newest:
 * files above that step stay.
 */
static void sweep_run(struct io_task *base)
{
    struct sweep_task *sweep = AMP_CONTAINER(base, struct sweep_task, task);
    const struct ampd_checkpoint_path place = io_model_files_place(sweep->server, sweep->model);
    struct amp_error error = {0};
    if (ampd_checkpoint_sweep(&place, sweep->keep, sweep->count, sweep->keep[sweep->count - 1].step, &error) != 0)
        amp_log(sweep->server->log, AMP_LOG_WARN, "checkpoint",
                "msg=\"files of an earlier model cannot be removed yet\" model=%s err=\"%s\"", sweep->model,
                error.text);
}

static void sweep_done(struct io_task *base)
{
    free(AMP_CONTAINER(base, struct sweep_task, task));
}

/* Finishes deletions, which marks in the shared directory name; `models` are the models that exist. */
struct marks_task {
    struct io_task task;
    struct ampd_server *server;
    uint32_t count;
    struct known_model {
        char name[AMPD_NAME_MAX];
        bool deleting;
    } models[];
};

/*
 * Handles the mark of a deletion that a process of this shard has begun, and that a crash may have interrupted. If
 * there is no such model, its files are removed. A model that is being deleted removes them itself. A model that is not
 * being deleted has a mark only where older data were brought back, since a name becomes free only after the mark is
 * gone: then the mark is removed.
 */
static int take_mark(void *arg, const char *name)
{
    const struct marks_task *marks = arg;
    const struct ampd_checkpoint_path place = io_model_files_place(marks->server, name);
    for (uint32_t i = 0; i < marks->count; i++)
        if (strcmp(marks->models[i].name, name) == 0)
            return marks->models[i].deleting ? 0 : ampd_checkpoint_unmark_deleted(&place, NULL);
    amp_log(marks->server->log, AMP_LOG_INFO, "checkpoint",
            "msg=\"removing the files of an interrupted deletion\" model=%s", name);
    struct amp_error error = {0};
    int rc = ampd_checkpoint_remove_model(&place, &error);
    return io_model_files_removed(marks->server, name, rc, &error);
}

static void marks_run(struct io_task *base)
{
    struct marks_task *marks = AMP_CONTAINER(base, struct marks_task, task);
    const struct ampd_checkpoint_path any = io_model_files_place(marks->server, "");
    if (ampd_checkpoint_each_deleted(&any, marks, NULL, take_mark) != 0)
        amp_log(marks->server->log, AMP_LOG_WARN, "checkpoint", "msg=\"files of deleted models stay for now\"");
}

static void marks_done(struct io_task *base)
{
    free(AMP_CONTAINER(base, struct marks_task, task));
}

/* Submits the marks task. The files' thread does it before it writes files of models that are created from now on. */
static void sweep_marks(struct ampd_server *server)
{
    uint32_t count = ampd_core_models_count(server->core);
    struct marks_task *marks = calloc(1, sizeof *marks + count * sizeof *marks->models);
    if (marks == NULL)
        return;
    marks->task = (struct io_task){.run_cb = marks_run, .done_cb = marks_done};
    marks->server = server;
    for (uint32_t i = 0; i < count; i++) {
        struct ampd_model_info info;
        ampd_core_model(server->core, i, &info);
        if (info.deleted)
            continue;
        struct known_model *known = &marks->models[marks->count++];
        (void)snprintf(known->name, sizeof known->name, "%s", info.spec->name);
        known->deleting = info.deleting;
    }
    io_threads_submit(server->pools.files, &marks->task);
}

void io_purge_sweep(struct ampd_server *server)
{
    if (io_model_files_shared(server))
        sweep_marks(server);
    for (uint32_t i = 0; io_model_files_shared(server) && i < ampd_core_models_count(server->core); i++) {
        struct ampd_model_info info;
        ampd_core_model(server->core, i, &info);
        /* A model that cannot be restored may have the catalogue of an older directory: its files stay. */
        size_t size = info.deleted || info.trouble != NULL ? 0 : info.checkpoints_count * sizeof *info.checkpoints;
        struct sweep_task *sweep = size > 0 ? calloc(1, sizeof *sweep + size) : NULL;
        if (sweep == NULL)
            continue;
        sweep->task = (struct io_task){.run_cb = sweep_run, .done_cb = sweep_done};
        sweep->server = server;
        (void)snprintf(sweep->model, sizeof sweep->model, "%s", info.spec->name);
        sweep->count = info.checkpoints_count;
        memcpy(sweep->keep, info.checkpoints, size);
        io_threads_submit(server->pools.files, &sweep->task);
    }
}

/* ---- deleted models ---- */

/* What sweep_deleted needs to know. */
struct deleted_sweep {
    struct ampd_server *server;
    const struct ampd_model_record *records;
    size_t count;
    struct amp_error *error;
};

/*
 * Removes the journal and the files of a deleted model. If a model of that name exists, the name was given again, which
 * is possible only after the files were gone, or a journal that the new model does not need could not be removed: so
 * nothing is to be done. Checkpoint files in a shared directory stay, as they may belong to a model that another
 * process of this shard has created.
 */
static int sweep_deleted(void *arg, const char *name)
{
    const struct deleted_sweep *sweep = arg;
    for (size_t i = 0; i < sweep->count; i++)
        if (strcmp(sweep->records[i].spec.name, name) == 0)
            return 0;
    return io_model_files_remove(sweep->server, name, !io_model_files_shared(sweep->server), sweep->error);
}

int io_purge_sweep_deleted(struct ampd_server *server, const struct ampd_model_record *records, size_t count,
                           struct amp_error *error)
{
    struct deleted_sweep sweep = {server, records, count, error};
    return ampd_store_each_deleted(server->data.store, &sweep, error, sweep_deleted);
}
