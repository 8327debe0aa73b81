/*
 * The journals of votes have a thread of their own: a vote must not wait until a checkpoint file is written, and
 * verdicts of other models must not wait until a vote's gradient is written. Any failure of a write but a lack of room,
 * memory or rights ends the process.
 *
 * A write that fails for lack of room, memory or rights goes back to the loop, whose timer gives it to the thread again
 * later: in between the thread serves other models, and may release a slot that the write can use.
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
#include "server/io/host/watchers.h"
#include "storage/vote_journal.h"

#include <stdlib.h>
#include <string.h>

/* Time between two tries of a write that failed. */
#define RETRY_MS 500

enum journal_work { JOURNAL_MAKE, JOURNAL_WRITE, JOURNAL_READ, JOURNAL_PRUNE, JOURNAL_CLOSE };

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
    int code;     /* READ: the result; MAKE, WRITE: not 0 while it is tried again */
    bool retried; /* MAKE, WRITE: it was logged that it failed, and is tried again; used by the journal's thread only */
    bool is_over; /* MAKE, WRITE: nothing needs it any more, so that nothing is made or written */
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

/* It is made or written, or need not be: ends the alert, unless that of another model still waits. */
static void end_retries(const struct journal_task *task)
{
    const struct ampd_server *server = task->server;
    if (!task->retried)
        return;
    if (--server->write_journal->retried == 0)
        io_storage_alert_set(server->storage_alert, IO_STORAGE_ALERT_JOURNAL, "");
    if (!task->is_over)
        amp_log(server->log, AMP_LOG_INFO, "journal", "msg=\"written at last\" model=%s", task->name);
}

/* Marks the task to be tried again (io_storage_is_retried); any other failure ends the process. */
static void begin_retries(struct journal_task *task, const struct amp_error *error)
{
    const struct ampd_server *server = task->server;
    if (!io_storage_is_retried(task->code))
        io_fatal(server->log, "the journal failed", error);
    if (!task->retried)
        amp_log(server->log, AMP_LOG_ERROR, "journal", "msg=\"cannot write, trying again\" model=%s err=\"%s\"",
                task->name, error->text);
    io_storage_alert_set(server->storage_alert, IO_STORAGE_ALERT_JOURNAL, error->text);
    server->write_journal->retried += task->retried ? 0 : 1;
    task->retried = true;
}

static int write_once(const struct journal_task *task, struct amp_error *error)
{
    struct ampd_vote_journal *journal;
    uint64_t begun_us = io_clock_now_us();
    int rc = handle_of(task, &journal, error);
    if (rc == 0)
        rc = ampd_vote_journal_write(journal, &task->record, error);
    if (rc == 0)
        io_timing_add(&task->server->counts.journal, begun_us);
    return rc;
}

static int make_once(const struct journal_task *task, struct amp_error *error)
{
    const struct ampd_checkpoint_path place = io_model_files_journal(task->server, task->name);
    return ampd_vote_journal_make(&place, error);
}

/* Makes the directory or writes the vote, unless nothing needs it any more. */
static void try_once(struct journal_task *task)
{
    struct amp_error error = {0};
    task->code = 0;
    if (!task->is_over)
        task->code = task->work == JOURNAL_MAKE ? make_once(task, &error) : write_once(task, &error);
    if (task->code != 0)
        begin_retries(task, &error);
    else
        end_retries(task);
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
    case JOURNAL_MAKE:
    case JOURNAL_WRITE:
        try_once(task);
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
static const char *const places[] = {[JOURNAL_MAKE] = "journal.made",
                                     [JOURNAL_WRITE] = "journal.told",
                                     [JOURNAL_READ] = "journal.replay",
                                     [JOURNAL_PRUNE] = "journal.pruned",
                                     [JOURNAL_CLOSE] = "journal.closed"};

static void free_task(struct journal_task *task)
{
    free(task->record.notes);
    free(task);
}

/* Whether nothing needs a task any more: a rollback or a deletion that waits for it makes room. */
static bool is_over(const struct journal_task *task)
{
    struct ampd_model_info info;
    if (task->work == JOURNAL_WRITE)
        return !ampd_core_wants_vote(task->server->core, task->model);
    ampd_core_model(task->server->core, task->model, &info);
    return info.deleting;
}

static void on_retry(uv_timer_t *timer)
{
    struct ampd_server *server = timer->data;
    struct amp_list *waiting = &server->write_journal->waiting;
    while (!amp_list_empty(waiting) && server->life.state != SERVER_CLOSING) {
        struct journal_task *task = AMP_CONTAINER(amp_list_shift(waiting), struct journal_task, task.node);
        task->is_over = is_over(task);
        io_threads_submit(server->pools.journal, &task->task);
    }
}

/*
 * Lets a task that has failed wait for the timer. A server that closes has none: io_write_journal_close_all
 * frees the task.
 */
static void rest(struct journal_task *task)
{
    struct io_write_journal *journal = task->server->write_journal;
    amp_list_push(&journal->waiting, &task->task.node);
    if (task->server->life.state != SERVER_CLOSING && uv_is_active((uv_handle_t *)&journal->timer) == 0)
        (void)uv_timer_start(&journal->timer, on_retry, RETRY_MS, 0); /* cannot fail on an open handle */
}

static void journal_done(struct io_task *base)
{
    struct journal_task *task = AMP_CONTAINER(base, struct journal_task, task);
    if ((task->work == JOURNAL_MAKE || task->work == JOURNAL_WRITE) && task->code != 0) {
        rest(task);
        return;
    }
    struct ampd_event event = {.type = task->work == JOURNAL_MAKE ? AMPD_EVENT_PERSISTED : AMPD_EVENT_JOURNALLED,
                               .u.persisted.token = task->token};
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
    if (task->work == JOURNAL_MAKE || task->work == JOURNAL_WRITE || task->work == JOURNAL_READ)
        io_core_event(task->server, &event);
    if (task->work == JOURNAL_MAKE)
        io_watchers_row(task->server, task->model); /* epochs have rows (persist.c) */
    AMP_FAILPOINT("journal.done");
    free_task(task);
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

void io_write_journal_init(struct io_write_journal *journal)
{
    amp_list_init(&journal->waiting);
}

void io_write_journal_open(struct ampd_server *server)
{
    uv_timer_t *timer = &server->write_journal->timer;
    AMP_ASSERT(uv_timer_init(&server->loop, timer) == 0);
    timer->data = server;
}

void io_write_journal_close_timer(struct ampd_server *server)
{
    uv_close((uv_handle_t *)&server->write_journal->timer, NULL);
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

void io_write_journal_make(struct ampd_server *server, const char *model, uint64_t token)
{
    struct journal_task *task = new_task(server, JOURNAL_MAKE, model);
    task->token = token;
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
    for (struct amp_list *node; (node = amp_list_shift(&server->write_journal->waiting)) != NULL;)
        free_task(AMP_CONTAINER(node, struct journal_task, task.node));
}
