/*
 * The journals of votes have a thread of their own: a vote must not wait until a checkpoint file is written, and
 * verdicts of other models must not wait until a vote's gradient is written. A full disk is waited for, like in
 * persist.c; any other failure of a write ends the process.
 */
#include "server/io/host/write_journal.h"

#include "base/assert.h"
#include "base/failpoint.h"
#include "server/io/base/clock.h"
#include "server/io/base/core_event.h"
#include "server/io/base/counts.h"
#include "server/io/base/fatal.h"
#include "server/io/base/server.h"
#include "server/io/base/storage_alert.h"
#include "server/io/base/threads.h"
#include "server/io/host/model_files.h"
#include "storage/vote_journal.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Time between two tries on a full disk, in slices of which the end of the process is noticed. */
#define RETRY_MS       500
#define RETRY_SLICE_MS 20

enum journal_work { JOURNAL_WRITE, JOURNAL_READ, JOURNAL_PRUNE, JOURNAL_CLOSE };

struct journal_task {
    struct io_task task;
    struct ampd_server *server;
    enum journal_work work;
    uint32_t model; /* index */
    char name[AMPD_NAME_MAX];
    uint64_t token;
    struct ampd_vote_journal_record record; /* notes are owned */
    uint64_t epoch, step;
    float *g; /* READ: the memory for the gradient, borrowed */
    uint64_t elements;
    int code;
};

/* The journal of a model, which is opened at its first use. On the journal's thread. */
static int handle_of(const struct journal_task *task, struct ampd_vote_journal **journal, struct amp_error *error)
{
    struct ampd_vote_journal **slot = &task->server->write_journal->journals[task->model];
    const struct ampd_checkpoint_path place = io_model_files_journal(task->server, task->name);
    int rc = *slot != NULL ? 0 : ampd_vote_journal_open(&place, slot, error);
    *journal = *slot;
    return rc;
}

static int write_once(const struct journal_task *task, struct amp_error *error)
{
    struct ampd_vote_journal *journal;
    int rc = handle_of(task, &journal, error);
    return rc != 0 ? rc : ampd_vote_journal_write(journal, &task->record, error);
}

/* Waits RETRY_MS. False: the process is to end, and waiting is over. */
static bool wait_a_little(const struct ampd_server *server)
{
    struct timespec slice = {.tv_nsec = RETRY_SLICE_MS * 1000000L};
    for (int waited = 0; waited < RETRY_MS; waited += RETRY_SLICE_MS) {
        if (atomic_load(&server->pools.stop_waiting))
            return false;
        (void)nanosleep(&slice, NULL); /* an early end is as good */
    }
    return true;
}

static void write_at_last(struct journal_task *task)
{
    struct ampd_server *server = task->server;
    struct amp_error error = {0};
    bool told = false;
    for (;;) {
        uint64_t begun_us = io_clock_now_us();
        int rc = write_once(task, &error);
        if (rc == 0) {
            io_timing_add(&server->counts.journal, begun_us);
            break;
        }
        if (rc != AMP_EEXHAUSTED && rc != AMP_ENOMEM)
            io_fatal(server->log, "the journal failed", &error);
        if (!told)
            amp_log(server->log, AMP_LOG_ERROR, "journal", "msg=\"cannot write, trying again\" model=%s err=\"%s\"",
                    task->name, error.text);
        io_storage_alert_set(server->storage_alert, IO_STORAGE_ALERT_JOURNAL, error.text);
        told = true;
        if (!wait_a_little(server))
            io_fatal(server->log, "the journal failed", &error);
    }
    if (!told)
        return;
    io_storage_alert_set(server->storage_alert, IO_STORAGE_ALERT_JOURNAL, "");
    amp_log(server->log, AMP_LOG_INFO, "journal", "msg=\"written at last\" model=%s", task->name);
}

static void read_once(struct journal_task *task)
{
    struct amp_error error = {0};
    struct ampd_vote_journal *journal;
    task->code = handle_of(task, &journal, &error);
    if (task->code == 0)
        task->code =
            ampd_vote_journal_read(journal, task->epoch, task->step, task->g, task->elements, &task->record, &error);
    if (task->code != 0 && task->code != AMP_ENOTFOUND)
        amp_log(task->server->log, AMP_LOG_ERROR, "journal", "msg=\"cannot read\" model=%s err=\"%s\"", task->name,
                error.text);
}

static void journal_run(struct io_task *base)
{
    struct journal_task *task = AMP_CONTAINER(base, struct journal_task, task);
    struct ampd_vote_journal *journal;
    struct amp_error error = {0};
    switch (task->work) {
    case JOURNAL_WRITE:
        write_at_last(task);
        break;
    case JOURNAL_READ:
        read_once(task);
        break;
    case JOURNAL_PRUNE:
        if (handle_of(task, &journal, &error) == 0) /* else the next write finds out, and says so */
            ampd_vote_journal_prune(journal, task->epoch, task->step);
        break;
    case JOURNAL_CLOSE:
        ampd_vote_journal_close(task->server->write_journal->journals[task->model]);
        task->server->write_journal->journals[task->model] = NULL;
        break;
    }
    AMP_FAILPOINT("journal.done");
}

/* The failpoint before the event of each kind of work. */
static const char *const places[] = {[JOURNAL_WRITE] = "journal.told",
                                     [JOURNAL_READ] = "journal.replay",
                                     [JOURNAL_PRUNE] = "journal.pruned",
                                     [JOURNAL_CLOSE] = "journal.closed"};

static void journal_done(struct io_task *base)
{
    struct journal_task *task = AMP_CONTAINER(base, struct journal_task, task);
    struct ampd_event event = {.type = AMPD_EVENT_JOURNALLED, .u.persisted.token = task->token};
    if (task->work == JOURNAL_READ) {
        event.type = AMPD_EVENT_REPLAYED;
        event.u.replayed = (struct ampd_event_replayed){.token = task->token,
                                                        .code = task->code,
                                                        .key = task->record.key,
                                                        .notes = task->record.notes,
                                                        .notes_size = task->record.notes_size,
                                                        .has_g = task->record.g != NULL};
    }
    AMP_FAILPOINT(places[task->work]);
    if (task->work == JOURNAL_WRITE || task->work == JOURNAL_READ)
        io_core_event(task->server, &event);
    AMP_FAILPOINT("journal.done");
    free(task->record.notes);
    free(task);
}

/* Makes a task with a copy of what the core lent. Without memory a promise could not be kept, so the process ends. */
static struct journal_task *new_task(struct ampd_server *server, enum journal_work work, const char *model)
{
    struct journal_task *task = calloc(1, sizeof *task);
    int64_t index = ampd_core_find(server->core, model);
    AMP_NEED(task != NULL);
    AMP_ASSERT(index >= 0 && strlen(model) < sizeof task->name);
    task->task = (struct io_task){.run_cb = journal_run, .done_cb = journal_done};
    task->server = server;
    task->work = work;
    task->model = (uint32_t)index;
    memcpy(task->name, model, strlen(model) + 1);
    return task;
}

void io_write_journal(struct ampd_server *server, const struct ampd_vote_journal_order *order)
{
    struct journal_task *task = new_task(server, JOURNAL_WRITE, order->model);
    task->token = order->token;
    task->record = (struct ampd_vote_journal_record){.key = order->key,
                                                .notes = malloc(order->notes_size),
                                                .notes_size = order->notes_size,
                                                .g = order->g,
                                                .elements = order->elements};
    AMP_NEED(task->record.notes != NULL);
    memcpy(task->record.notes, order->notes, order->notes_size);
    io_threads_submit(server->pools.journal, &task->task);
}

void io_write_journal_replay(struct ampd_server *server, const struct ampd_replay_order *order)
{
    struct journal_task *task = new_task(server, JOURNAL_READ, order->model);
    task->token = order->token;
    task->epoch = order->epoch;
    task->step = order->step;
    task->g = order->g;
    task->elements = order->elements;
    io_threads_submit(server->pools.journal, &task->task);
}

void io_write_journal_prune(struct ampd_server *server, const char *model, uint64_t epoch, uint64_t step)
{
    struct journal_task *task = new_task(server, JOURNAL_PRUNE, model);
    task->epoch = epoch;
    task->step = step;
    io_threads_submit(server->pools.journal, &task->task);
}

void io_write_journal_close(struct ampd_server *server, const char *model)
{
    struct journal_task *task = new_task(server, JOURNAL_CLOSE, model);
    io_threads_submit(server->pools.journal, &task->task);
}

void io_write_journal_close_all(struct ampd_server *server)
{
    for (uint32_t i = 0; i < AMPD_MODELS_MAX; i++) {
        ampd_vote_journal_close(server->write_journal->journals[i]);
        server->write_journal->journals[i] = NULL;
    }
}
