/*
 * Stores what the core asks for, on the writer's thread. On a full disk the task stays at the head of the queue and
 * tries again, so that the order is kept. Any other failure ends the process: nothing may be acknowledged after it.
 *
 * That thread works on the store alone, since the verdicts of all models wait for it; only where the disk is full does
 * a deletion remove its model's files there, as verdicts wait anyway. Else files of deleted models are marked and
 * removed on the files' thread, and the directories of journals are made on the journal's.
 */
#include "server/io/host/persist.h"

#include "base/assert.h"
#include "base/failpoint.h"
#include "server/io/base/clock.h"
#include "server/io/base/core_event.h"
#include "server/io/base/counts.h"
#include "server/io/base/fatal.h"
#include "server/io/base/server.h"
#include "server/io/base/storage_alert.h"
#include "server/io/base/threads.h"
#include "server/io/cluster/membership.h"
#include "server/io/host/model_files.h"
#include "server/io/host/purge.h"
#include "server/io/host/watchers.h"
#include "server/io/host/write_journal.h"
#include "storage/checkpoint.h"
#include "storage/checkpoint_remove.h"
#include "storage/store.h"
#include "storage/vote_journal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Time between two tries of a write that failed. */
#define RETRY_MS 500

/* One record, or a checkpoint that is to be removed. */
struct persist_task {
    struct io_task task;
    struct ampd_server *server;
    enum ampd_persist_kind kind;
    bool drop; /* instead of storing, removes a checkpoint and its file; no event comes */
    uint64_t token;
    char model[AMPD_NAME_MAX];
    int64_t at_us;
    bool full;     /* sync it in full (struct ampd_persist) */
    bool journals; /* MODEL, EPOCH: the model has a journal, whose directory is made next */
    bool long_log; /* the store's log is long: it is moved once this is told */
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
    struct ampd_store *store = task->server->data.store;
    int rc = ampd_store_put_model(store, &task->spec, task->at_us, error);
    if (rc == 0 || rc == AMP_EEXIST) /* AMP_EEXIST: an earlier try or process has stored the model without an epoch */
        rc = ampd_store_put_epoch(store, task->model, &task->epoch, task->row, error);
    return rc;
}

/* Removes a checkpoint from the catalogue. Its file is removed afterwards, see remove_files. */
static int drop_checkpoint(const struct persist_task *task, struct amp_error *error)
{
    const struct ampd_checkpoint_record *checkpoint = &task->checkpoint;
    int rc =
        ampd_store_drop_checkpoint(task->server->data.store, task->model, checkpoint->epoch, checkpoint->step, error);
    if (rc != 0 && rc != AMP_ENOTFOUND)
        return rc;
    AMP_FAILPOINT("checkpoint.uncatalogued");
    return 0;
}

/* Whether an error is a lack of room on the disk, which a deletion can end. */
static bool is_full(const struct amp_error *error)
{
    return strcmp(error->reason, "NO_SPACE") == 0;
}

/*
 * Removes the files of a model whose deletion waits for room in the store, where they are on the store's disk: they may
 * be all that can make some. After a crash before the deletion is stored the model is there without its files, and has
 * to be deleted again. What cannot be removed is told by the deletion itself.
 */
static void make_room(const struct persist_task *task)
{
    const struct ampd_server *server = task->server;
    const struct ampd_checkpoint_path place = io_model_files_place(server, task->model);
    (void)ampd_vote_journal_remove(server->data.dir.path, task->model, NULL);
    if (server->options->checkpoint_dir == NULL)
        (void)ampd_checkpoint_remove_model(&place, NULL);
}

/*
 * Removes a model from the store first, so that no start finds it again; only where the store has no room do the files
 * go before (make_room). The files are removed afterwards, see remove_files. If a crash leaves some, the next start
 * removes them: it finds the deletion in the store, or in a shared directory by the mark (prepare_run).
 */
static int delete_model(const struct persist_task *task, struct amp_error *error)
{
    int rc = ampd_store_delete_model(task->server->data.store, task->model, error);
    if (rc == AMP_EEXHAUSTED && is_full(error))
        make_room(task);
    if (rc != 0 && rc != AMP_ENOTFOUND)
        return rc;
    AMP_FAILPOINT("delete.unstored");
    return 0;
}

static int store_once(const struct persist_task *task, struct amp_error *error)
{
    struct ampd_store *store = task->server->data.store;
    int rc;
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
    case AMPD_PERSIST_PARTS:
        rc = ampd_store_put_parts(store, task->model, &task->checkpoint, error);
        return rc == AMP_ENOTFOUND ? 0 : rc; /* a checkpoint that is gone needs no parts */
    case AMPD_PERSIST_FENCE:
        return ampd_store_put_fence(store, task->shard, &task->fence, error);
    case AMPD_PERSIST_ACT:
        return ampd_store_put_verdict(store, task->model, task->row, task->full, error);
    case AMPD_PERSIST_DELETING:
        return ampd_store_mark_deleting(store, task->model, error);
    case AMPD_PERSIST_DELETE:
        return delete_model(task, error);
    }
    return amp_error_set(error, AMP_EINTERNAL, NULL, "unknown kind of record %d", (int)task->kind);
}

/* The failpoint before each kind of record. */
static const char *const places[] = {
    [AMPD_PERSIST_MODEL] = "persist.model",          [AMPD_PERSIST_EPOCH] = "persist.epoch",
    [AMPD_PERSIST_WORKER] = "persist.worker",        [AMPD_PERSIST_VERDICT] = "persist.verdict",
    [AMPD_PERSIST_CHECKPOINT] = "checkpoint.insert", [AMPD_PERSIST_PARTS] = "checkpoint.parts",
    [AMPD_PERSIST_FENCE] = "persist.fence",          [AMPD_PERSIST_ACT] = "persist.act",
    [AMPD_PERSIST_DELETING] = "persist.deleting",    [AMPD_PERSIST_DELETE] = "persist.delete"};

/*
 * Waits until a task that has failed may be tried again, with an alert; a failure that waiting cannot cure ends the
 * process. *logged: the failure is in the log, which has it once.
 */
static void wait_to_retry(const struct persist_task *task, int rc, const struct amp_error *error,
                          enum io_storage_alert_of alert, bool *logged)
{
    struct ampd_server *server = task->server;
    bool curable = io_storage_is_retried(rc);
    if (alert == IO_STORAGE_ALERT_STORE)
        atomic_store(&server->data.full, is_full(error));
    if (curable)
        io_storage_alert_set(server->storage_alert, alert, error->text);
    if (!curable || atomic_load(&server->pools.stop_waiting))
        io_fatal(server->log, "the store failed", error);
    if (!*logged)
        amp_log(server->log, AMP_LOG_ERROR, "store", "msg=\"cannot store, trying again\" model=%s err=\"%s\"",
                task->model, error->text);
    *logged = true;
    struct timespec pause = {.tv_nsec = RETRY_MS * 1000000L};
    (void)nanosleep(&pause, NULL); /* an early end is as good */
}

/* Ends the alert of a task that has waited. */
static void end_retries(const struct persist_task *task, enum io_storage_alert_of alert)
{
    if (alert == IO_STORAGE_ALERT_STORE)
        atomic_store(&task->server->data.full, false);
    io_storage_alert_set(task->server->storage_alert, alert, "");
    amp_log(task->server->log, AMP_LOG_INFO, "store", "msg=\"stored at last\" model=%s", task->model);
}

static void persist_run(struct io_task *base)
{
    struct persist_task *task = AMP_CONTAINER(base, struct persist_task, task);
    struct ampd_server *server = task->server;
    struct amp_error error = {0};
    bool logged = false;
    AMP_FAILPOINT(task->drop ? "checkpoint.drop" : places[task->kind]);
    for (;;) {
        uint64_t begun_us = io_clock_now_us();
        int rc = store_once(task, &error);
        if (rc == 0) {
            io_timing_add(&server->counts.commit, begun_us);
            break;
        }
        wait_to_retry(task, rc, &error, IO_STORAGE_ALERT_STORE, &logged);
    }
    AMP_FAILPOINT("persist.done");
    if (logged)
        end_retries(task, IO_STORAGE_ALERT_STORE);
    task->long_log = ampd_store_log_is_long(server->data.store);
}

/*
 * Stores verdicts that wait one behind the other in one transaction, with one fsync for all of them. Those that this
 * did not store are stored one by one, in the same order, where each waits or ends the process like any other record,
 * and the store reports for each what has failed.
 */
static void verdicts_run(struct amp_list *tasks)
{
    struct ampd_verdict_put puts[IO_GROUP_MAX];
    uint32_t count = 0, stored = 0;
    bool full = false;
    AMP_LIST_EACH(it, safe, tasks)
    {
        const struct persist_task *task = AMP_CONTAINER(it, struct persist_task, task.node);
        AMP_ASSERT(count < IO_GROUP_MAX && task->row != NULL);
        puts[count++] = (struct ampd_verdict_put){task->model, task->row};
        full = full || task->full;
    }
    if (count > 1) {
        struct ampd_server *server = AMP_CONTAINER(tasks->next, struct persist_task, task.node)->server;
        uint64_t begun_us = io_clock_now_us();
        AMP_FAILPOINT("persist.verdict");
        (void)ampd_store_put_verdicts(server->data.store, puts, count, full, &stored, NULL);
        AMP_FAILPOINT("persist.done");
        if (stored > 0)
            io_timing_add(&server->counts.commit, begun_us);
    }
    AMP_LIST_EACH(it, safe, tasks)
    {
        struct persist_task *task = AMP_CONTAINER(it, struct persist_task, task.node);
        if (stored == 0)
            persist_run(&task->task);
        else if (--stored == 0)
            task->long_log = ampd_store_log_is_long(task->server->data.store);
    }
}

static void free_task(struct persist_task *task)
{
    ampd_model_spec_clear(&task->spec);
    free(task->row);
    free(task);
}

/* Gives the core PERSISTED and frees the task; then notifies watchers and others that depend on the record. */
static void notify_stored(struct persist_task *task)
{
    struct ampd_server *server = task->server;
    struct ampd_event event = {.type = AMPD_EVENT_PERSISTED, .u.persisted.token = task->token};
    bool deleted = task->kind == AMPD_PERSIST_DELETE;
    if (deleted) {
        io_purge_resume(server);
        io_purge_model_deleted(server, task->model);
    }
    /* Epochs of rollbacks have a row; and on shards other than 0 only these two kinds tell watchers of new steps. */
    bool heard = task->kind == AMPD_PERSIST_CHECKPOINT || task->kind == AMPD_PERSIST_EPOCH;
    int64_t model = heard ? ampd_core_find(server->core, task->model) : -1;
    free_task(task);
    AMP_FAILPOINT("persist.told");
    io_core_event(server, &event);
    AMP_FAILPOINT("persist.done");
    if (deleted) {
        io_purge(server);
        io_membership_no_models(server);
    }
    if (model >= 0)
        io_watchers_row(server, (uint32_t)model);
}

static void remove_checkpoint(const struct persist_task *task)
{
    const struct ampd_server *server = task->server;
    struct amp_error error = {0};
    int rc = ampd_checkpoint_remove(server->data.checkpoint_dir, task->checkpoint.file, &error);
    if (rc == AMP_EIO && !ampd_checkpoint_only_stays(rc, &error))
        io_fatal(server->log, "a checkpoint cannot be removed", &error);
    if (rc != 0)
        amp_log(server->log, AMP_LOG_ERROR, "checkpoint",
                "msg=\"could not be removed; a start tries again once there is a checkpoint of a later step\" model=%s "
                "err=\"%s\"",
                task->model, error.text);
}

/*
 * Removes all files of a model; its deletion is answered only after that. A file that cannot be removed stays, and
 * CreateModel refuses the name then.
 */
static void remove_model(const struct persist_task *task)
{
    struct amp_error error = {0};
    bool logged = false;
    for (int rc; (rc = io_model_files_remove(task->server, task->model, true, &error)) != 0;)
        wait_to_retry(task, rc, &error, IO_STORAGE_ALERT_REMOVAL, &logged);
    if (logged)
        end_retries(task, IO_STORAGE_ALERT_REMOVAL);
}

static void remove_run(struct io_task *base)
{
    const struct persist_task *task = AMP_CONTAINER(base, struct persist_task, task);
    if (task->drop)
        remove_checkpoint(task);
    else
        remove_model(task);
}

static void remove_done(struct io_task *base)
{
    struct persist_task *task = AMP_CONTAINER(base, struct persist_task, task);
    if (task->drop)
        free_task(task);
    else
        notify_stored(task);
}

/* Gives a task to another thread. A server that closes leaves the rest of a deletion to a later start. */
static void pass_on(struct persist_task *task, struct io_threads *pool, void (*run_cb)(struct io_task *),
                    void (*done_cb)(struct io_task *))
{
    if (task->server->life.state == SERVER_CLOSING) {
        free_task(task);
        return;
    }
    task->task = (struct io_task){.run_cb = run_cb, .done_cb = done_cb};
    io_threads_submit(pool, &task->task);
}

/*
 * Removes the file of a checkpoint that has left the catalogue, or all files of a model, on the files' thread: large
 * files take long, and no verdict may wait behind them. That thread writes parts that are made later only after this,
 * so a later file of the same name is safe.
 */
static void remove_files(struct persist_task *task)
{
    pass_on(task, task->server->pools.files, remove_run, remove_done);
}

/* Makes a task with a copy of what the core lent. Without memory a promise could not be kept, so the process ends. */
static struct persist_task *new_task(struct ampd_server *server, const char *model, void (*run_cb)(struct io_task *),
                                     void (*done_cb)(struct io_task *))
{
    struct persist_task *task = calloc(1, sizeof *task);
    AMP_NEED(task != NULL);
    AMP_ASSERT(strlen(model) < sizeof task->model);
    task->task = (struct io_task){.run_cb = run_cb, .done_cb = done_cb};
    task->server = server;
    memcpy(task->model, model, strlen(model) + 1);
    return task;
}

/* A move of the store's log that has failed has lost what was acknowledged, so the process ends. */
static void log_run(struct io_task *base)
{
    struct ampd_server *server = AMP_CONTAINER(base, struct persist_task, task)->server;
    struct amp_error error = {0};
    if (ampd_store_move_log(server->data.store, &error) != 0)
        io_fatal(server->log, "the store failed", &error);
}

static void forget(struct io_task *base)
{
    free(AMP_CONTAINER(base, struct persist_task, task));
}

/* Moves the store's log now that its newest record is told: only what comes meanwhile waits for it. */
static void move_log(struct ampd_server *server)
{
    io_threads_submit(server->pools.writer, &new_task(server, "", log_run, forget)->task);
}

/*
 * The epoch is stored; now the journal's directory is made, which says that the votes of this epoch are on this disk.
 * An epoch without it counts as one whose journal was lost.
 */
static void make_journal(struct persist_task *task)
{
    struct ampd_server *server = task->server;
    if (server->life.state != SERVER_CLOSING)
        io_write_journal_make(server, task->model, task->token);
    free_task(task);
}

static void persist_done(struct io_task *base)
{
    struct persist_task *task = AMP_CONTAINER(base, struct persist_task, task);
    struct ampd_server *server = task->server;
    bool long_log = task->long_log;
    if (task->drop)
        AMP_FAILPOINT("persist.done");
    if (task->drop || task->kind == AMPD_PERSIST_DELETE)
        remove_files(task);
    else if (task->journals)
        make_journal(task);
    else
        notify_stored(task);
    if (long_log && server->life.state != SERVER_CLOSING)
        move_log(server);
}

/*
 * Marks the files in a shared directory for removal, on the files' thread, as that directory may not answer; and if the
 * writer's thread waits for room, makes some. Where no mark can be made, or there is no room for it, the deletion goes
 * on without one: it may make room. A disk that is full only later is helped by no deletion that has begun.
 */
static void prepare_run(struct io_task *base)
{
    const struct persist_task *task = AMP_CONTAINER(base, struct persist_task, task);
    const struct ampd_server *server = task->server;
    const struct ampd_checkpoint_path place = io_model_files_place(server, task->model);
    struct amp_error error = {0};
    int rc = io_model_files_shared(server) ? ampd_checkpoint_mark_deleted(&place, &error) : 0;
    rc = io_model_files_removed(server, task->model, rc, &error);
    if (rc != 0 && !io_storage_is_retried(rc))
        io_fatal(server->log, "the files of a deleted model cannot be marked", &error);
    if (atomic_load(&server->data.full))
        make_room(task);
}

static void prepare_done(struct io_task *base)
{
    struct persist_task *task = AMP_CONTAINER(base, struct persist_task, task);
    pass_on(task, task->server->pools.writer, persist_run, persist_done);
}

static void begin_deletion(struct persist_task *task)
{
    io_write_journal_close(task->server, task->model);
    io_purge_pause(task->server); /* until its files are gone: after a crash the rows name them */
    pass_on(task, task->server->pools.files, prepare_run, prepare_done);
}

void io_persist(struct ampd_server *server, const struct ampd_persist *persist)
{
    const char *model = persist->model != NULL ? persist->model : "";
    struct persist_task *task = new_task(server, model, persist_run, persist_done);
    AMP_ASSERT((size_t)persist->kind < sizeof places / sizeof *places && places[persist->kind] != NULL);
    AMP_ASSERT(persist->kind != AMPD_PERSIST_VERDICT || persist->row != NULL); /* a verdict is a row */
    /* Only rows are stored with `full`. Of other records the store always syncs those that it calls FULL (store.h). */
    bool is_row = persist->kind == AMPD_PERSIST_VERDICT || persist->kind == AMPD_PERSIST_ACT;
    AMP_ASSERT(is_row || persist->full == (persist->kind != AMPD_PERSIST_WORKER));
    task->kind = persist->kind;
    task->token = persist->token;
    task->at_us = persist->at_us;
    task->full = persist->full;
    if (persist->kind == AMPD_PERSIST_VERDICT)
        task->task.group_cb = verdicts_run;
    task->shard = persist->shard;
    task->fence = persist->fence;
    if (persist->kind == AMPD_PERSIST_MODEL)
        AMP_NEED(ampd_model_spec_copy(&task->spec, persist->spec) == 0);
    if (persist->kind == AMPD_PERSIST_MODEL || persist->kind == AMPD_PERSIST_EPOCH) {
        task->epoch = *persist->epoch;
        task->journals = persist->spec->durability == AMPD_DURABILITY_STEP;
    }
    if (persist->row != NULL) {
        task->row = malloc(sizeof *task->row);
        AMP_NEED(task->row != NULL);
        *task->row = *persist->row;
    }
    if (persist->kind == AMPD_PERSIST_WORKER)
        task->worker = *persist->worker;
    if (persist->kind == AMPD_PERSIST_CHECKPOINT || persist->kind == AMPD_PERSIST_PARTS)
        task->checkpoint = *persist->checkpoint;
    if (persist->kind == AMPD_PERSIST_DELETE)
        begin_deletion(task);
    else
        io_threads_submit(server->pools.writer, &task->task);
}

void io_persist_drop_checkpoint(struct ampd_server *server, const char *model,
                                const struct ampd_checkpoint_record *checkpoint, bool file_only)
{
    struct persist_task *task = new_task(server, model, persist_run, persist_done);
    task->drop = true;
    task->checkpoint = *checkpoint;
    if (file_only)
        remove_files(task); /* at once: a part of the same step may be written next */
    else
        io_threads_submit(server->pools.writer, &task->task);
}
