/*
 * What the core wants stored, on the writer thread. A full disk is waited for: the task stays at the head of the queue and
 * tries again, so that the order holds. Any other failure ends the process: nothing may be acknowledged after it.
 */
#include "base/assert.h"
#include "server/io/server.h"
#include "server/io/trouble.h"
#include "storage/checkpoint.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Time between two tries on a full disk. */
#define RETRY_MS 500

struct persist_task {
    struct io_task task;
    struct ampd_server *server;
    enum ampd_persist_kind kind;
    bool drop; /* takes a checkpoint out, and its file; no answer */
    uint64_t token;
    char model[AMPD_NAME_MAX];
    int64_t at_us;
    bool full;
    uint32_t shard;
    struct ampd_fence fence;
    struct ampd_model_spec spec; /* owned */
    struct ampd_epoch_record epoch;
    struct ampd_step_row *row; /* owned, or NULL */
    struct ampd_worker_record worker;
    struct ampd_checkpoint_record checkpoint;
};

static int store_model(const struct persist_task *task, struct amp_error *error)
{
    struct ampd_store *store = task->server->store;
    int rc = ampd_store_put_model(store, &task->spec, task->at_us, error);
    if (rc == 0 || rc == AMP_EEXIST) /* of an earlier try that found the disk full in between */
        rc = ampd_store_put_epoch(store, task->model, &task->epoch, task->row, error);
    return rc;
}

static int drop_checkpoint(const struct persist_task *task, struct amp_error *error)
{
    const struct ampd_checkpoint_record *checkpoint = &task->checkpoint;
    int rc = ampd_store_drop_checkpoint(task->server->store, task->model, checkpoint->epoch, checkpoint->step, error);
    if (rc != 0 && rc != AMP_ENOTFOUND)
        return rc;
    return ampd_checkpoint_remove(task->server->dir.path, checkpoint->file, error);
}

static int store_once(const struct persist_task *task, struct amp_error *error)
{
    struct ampd_store *store = task->server->store;
    if (task->drop)
        return drop_checkpoint(task, error);
    switch (task->kind) {
    case AMPD_PERSIST_MODEL:
        return store_model(task, error);
    case AMPD_PERSIST_EPOCH:
        return ampd_store_put_epoch(store, task->model, &task->epoch, task->row, error);
    case AMPD_PERSIST_WORKER:
        return ampd_store_put_worker(store, task->model, &task->worker, error);
    case AMPD_PERSIST_VERDICT:
        return ampd_store_put_verdict(store, task->model, task->row, task->full, error);
    case AMPD_PERSIST_CHECKPOINT:
        return ampd_store_put_checkpoint(store, task->model, &task->checkpoint, error);
    case AMPD_PERSIST_FENCE:
        return ampd_store_put_fence(store, task->shard, &task->fence, error);
    }
    return amp_error_set(error, AMP_EINTERNAL, NULL, "unknown kind of record %d", (int)task->kind);
}

static void wait_a_little(void)
{
    struct timespec pause = {.tv_nsec = RETRY_MS * 1000000L};
    (void)nanosleep(&pause, NULL); /* an early end is as good */
}

static void persist_run(struct io_task *base)
{
    struct persist_task *task = AMP_CONTAINER(base, struct persist_task, task);
    struct ampd_server *server = task->server;
    struct amp_error error = {0};
    bool told = false;
    for (;;) {
        int rc = store_once(task, &error);
        if (rc == 0)
            break;
        if ((rc != AMP_EEXHAUSTED && rc != AMP_ENOMEM) || atomic_load(&server->stop_waiting))
            ampd_server_fatal(server, "the store failed", &error);
        if (!told)
            amp_log(server->log, AMP_LOG_ERROR, "store", "msg=\"cannot store, trying again\" model=%s err=\"%s\"",
                    task->model, error.text);
        io_trouble_set(server->trouble, IO_TROUBLE_STORE, error.text);
        told = true;
        wait_a_little();
    }
    if (!told)
        return;
    io_trouble_set(server->trouble, IO_TROUBLE_STORE, "");
    amp_log(server->log, AMP_LOG_INFO, "store", "msg=\"stored at last\" model=%s", task->model);
}

static void persist_done(struct io_task *base)
{
    struct persist_task *task = AMP_CONTAINER(base, struct persist_task, task);
    struct ampd_server *server = task->server;
    struct ampd_event event = {.type = AMPD_EVENT_PERSISTED, .u.persisted.token = task->token};
    bool drop = task->drop;
    /* The last checkpoint makes a model done, of which its watchers must hear. */
    int64_t model = task->kind == AMPD_PERSIST_CHECKPOINT && !drop ? ampd_core_find(server->core, task->model) : -1;
    ampd_model_spec_clear(&task->spec);
    free(task->row);
    free(task);
    if (!drop)
        ampd_server_event(server, &event);
    if (model >= 0)
        ampd_server_notify(server, (uint32_t)model);
}

/* Copies what the core lent; out of memory here would leave a promise open, and ends the process. */
static struct persist_task *new_task(struct ampd_server *server, const char *model)
{
    struct persist_task *task = calloc(1, sizeof *task);
    AMP_ASSERT(task != NULL && strlen(model) < sizeof task->model);
    task->task = (struct io_task){.run_cb = persist_run, .done_cb = persist_done};
    task->server = server;
    memcpy(task->model, model, strlen(model) + 1);
    return task;
}

void ampd_server_persist(struct ampd_server *server, const struct ampd_persist *persist)
{
    struct persist_task *task = new_task(server, persist->model != NULL ? persist->model : "");
    task->kind = persist->kind;
    task->token = persist->token;
    task->at_us = persist->at_us;
    task->full = persist->full;
    task->shard = persist->shard;
    task->fence = persist->fence;
    if (persist->kind == AMPD_PERSIST_MODEL)
        AMP_ASSERT(ampd_model_spec_copy(&task->spec, persist->spec) == 0);
    if (persist->kind == AMPD_PERSIST_MODEL || persist->kind == AMPD_PERSIST_EPOCH)
        task->epoch = *persist->epoch;
    if (persist->row != NULL) {
        task->row = malloc(sizeof *task->row);
        AMP_ASSERT(task->row != NULL);
        *task->row = *persist->row;
    }
    if (persist->kind == AMPD_PERSIST_WORKER)
        task->worker = *persist->worker;
    if (persist->kind == AMPD_PERSIST_CHECKPOINT)
        task->checkpoint = *persist->checkpoint;
    io_threads_submit(server->writer, &task->task);
}

void ampd_server_drop_checkpoint(struct ampd_server *server, const char *model,
                                 const struct ampd_checkpoint_record *checkpoint)
{
    struct persist_task *task = new_task(server, model);
    task->drop = true;
    task->checkpoint = *checkpoint;
    io_threads_submit(server->writer, &task->task);
}
