/*
 * Runs the core: one event in, all its outputs done, in order. The only place that calls ampd_core_step and _next.
 */
#include "base/assert.h"
#include "base/failpoint.h"
#include "rpc/arpc_server.h"
#include "server/io/call.h"
#include "server/io/notify.h"
#include "server/io/peers.h"
#include "server/io/place.h"
#include "storage/checkpoint.h"
#include "storage/journal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A job of the core on its way through the compute threads. Kept for reuse: a step of n blocks needs n of them. */
struct job_task {
    struct io_task task;
    struct ampd_server *server;
    struct ampd_job job;
};

/* The places of a job, by what it does. */
#define JOB_FAILPOINT(job, place)                                                                                      \
    AMP_FAILPOINT(((job)->work & AMPD_JOB_VOTE) != 0    ? "vote." place                                                \
                  : ((job)->work & AMPD_JOB_APPLY) != 0 ? "apply." place                                               \
                                                        : "checkpoint.job_" place)

static void job_run(struct io_task *task)
{
    struct job_task *job = AMP_CONTAINER(task, struct job_task, task);
    JOB_FAILPOINT(&job->job, "begin");
    ampd_job_run(&job->job, job->server->options->kernels);
    JOB_FAILPOINT(&job->job, "ran");
    AMP_FAILPOINT("job.done");
}

static void job_done(struct io_task *task)
{
    struct job_task *done = AMP_CONTAINER(task, struct job_task, task);
    struct ampd_server *server = done->server;
    struct ampd_event event = {.type = AMPD_EVENT_JOB_DONE, .u.job = done->job};
    amp_list_push(&server->idle_jobs, &task->node);
    JOB_FAILPOINT(&event.u.job, "told");
    ampd_server_event(server, &event);
    AMP_FAILPOINT("job.done");
}

static void submit_job(struct ampd_server *server, const struct ampd_job *job)
{
    struct amp_list *node = amp_list_shift(&server->idle_jobs);
    struct job_task *task = node != NULL ? AMP_CONTAINER(node, struct job_task, task.node) : malloc(sizeof *task);
    if (task == NULL) {
        /* No memory for a task: the loop does it itself. */
        struct ampd_event event = {.type = AMPD_EVENT_JOB_DONE, .u.job = *job};
        ampd_job_run(job, server->options->kernels);
        ampd_server_event(server, &event);
        return;
    }
    task->task = (struct io_task){.run_cb = job_run, .done_cb = job_done};
    task->server = server;
    task->job = *job;
    io_threads_submit(server->compute, &task->task);
}

static void on_core_timer(uv_timer_t *timer)
{
    struct ampd_server *server = timer->data;
    struct ampd_event event = {.type = AMPD_EVENT_TICK};
    ampd_server_event(server, &event);
}

static void arm(struct ampd_server *server, uint64_t at_ms)
{
    uint64_t now = uv_now(&server->loop);
    /* Cannot fail: the handle is open and has a callback. */
    (void)uv_timer_start(&server->core_timer, on_core_timer, at_ms > now ? at_ms - now : 0, 0);
}

static void log_line(const struct ampd_server *server, enum ampd_log_level level, const char *model, const char *text)
{
    enum amp_log_level to = level == AMPD_LOG_ERROR  ? AMP_LOG_ERROR
                            : level == AMPD_LOG_WARN ? AMP_LOG_WARN
                                                     : AMP_LOG_INFO;
    if (model != NULL && model[0] != 0)
        amp_log(server->log, to, "core", "msg=\"%s\" model=%s", text, model);
    else
        amp_log(server->log, to, "core", "msg=\"%s\"", text);
}

/* An output for a call; one for a call that is gone is of no use to anybody. */
static void call_output(struct ampd_server *server, const struct ampd_output *output)
{
    struct io_call *call = io_call_find(server, output->call);
    if (call == NULL)
        return;
    if (output->type == AMPD_OUT_REPLY)
        io_call_answer(call, &output->u.reply);
    else
        call->ops->output_cb(call, output);
}

static void do_output(struct ampd_server *server, const struct ampd_output *output)
{
    switch (output->type) {
    case AMPD_OUT_REPLY:
    case AMPD_OUT_LOAD_GRANT:
    case AMPD_OUT_PUSH_GRANT:
    case AMPD_OUT_PUSH_BLOCKS:
    case AMPD_OUT_PUSH_REVOKE:
    case AMPD_OUT_PULL_GRANT:
    case AMPD_OUT_PULL_BLOCKS:
    case AMPD_OUT_PULL_REVOKE:
        call_output(server, output);
        break;
    case AMPD_OUT_JOB:
        submit_job(server, &output->u.job);
        break;
    case AMPD_OUT_PERSIST:
        ampd_server_persist(server, &output->u.persist);
        break;
    case AMPD_OUT_RESTORE:
        ampd_server_restore(server, &output->u.restore);
        break;
    case AMPD_OUT_CUT:
        ampd_server_cut(server, &output->u.cut);
        break;
    case AMPD_OUT_CUT_BLOCKS:
        ampd_server_cut_blocks(server, &output->u.cut_blocks);
        break;
    case AMPD_OUT_CUT_CANCEL:
        ampd_server_cut_cancel(server, output->u.token);
        break;
    case AMPD_OUT_DROP_CHECKPOINT:
        ampd_server_drop_checkpoint(server, output->u.drop.model, output->u.drop.checkpoint);
        break;
    case AMPD_OUT_JOURNAL:
        ampd_server_journal(server, &output->u.journal);
        break;
    case AMPD_OUT_REPLAY:
        ampd_server_replay(server, &output->u.replay);
        break;
    case AMPD_OUT_JOURNAL_PRUNE:
        ampd_server_journal_prune(server, output->u.journal_prune.model, output->u.journal_prune.epoch,
                                  output->u.journal_prune.step);
        break;
    case AMPD_OUT_NOTIFY:
        if (output->u.notify.row != NULL)
            io_metrics_row(server, output->u.notify.model, output->u.notify.row);
        ampd_server_notify(server, output->u.notify.model);
        break;
    case AMPD_OUT_TIMER:
        arm(server, output->u.timer.at_ms);
        break;
    case AMPD_OUT_LOG:
        log_line(server, output->u.log.level, output->u.log.model, output->u.log.text);
        break;
    case AMPD_OUT_DRAINED:
        ampd_server_drained(server);
        break;
    case AMPD_OUT_FENCED:
        io_place_fenced(server, &output->u.fence);
        break;
    case AMPD_OUT_RAISE_EPOCH:
        io_place_raise(server, output->u.raise.token, output->u.raise.model, output->u.raise.epoch);
        break;
    case AMPD_OUT_SEND:
        io_peers_send(server, output->u.message);
        break;
    }
}

/* Health says SERVING once every model that was found is ready, except those that cannot be brought back now: the others are served. */
static void update_health(struct ampd_server *server)
{
    if (server->serving || server->state != SERVER_RUNNING || !server->found || !ampd_core_synced(server->core))
        return;
    for (uint32_t i = 0; i < ampd_core_models_count(server->core); i++) {
        struct ampd_model_info info;
        ampd_core_model(server->core, i, &info);
        if (info.recovering && !info.deleted && info.trouble == NULL)
            return;
    }
    server->serving = true;
    ampd_server_set_health(server, true);
    io_notify_ready();
    ampd_server_sweep(server);
    io_place_no_models(server);
    amp_log(server->log, AMP_LOG_INFO, "server", "msg=\"serving\" models=%u", ampd_core_models_count(server->core));
}

void ampd_server_event(struct ampd_server *server, struct ampd_event *event)
{
    if (server->state == SERVER_CLOSING)
        return; /* nothing that was promised is open, and the threads end: the core is not asked any more */
    io_place_check(server);
    event->utc_us = ampd_utc_us();
    ampd_core_step(server->core, uv_now(&server->loop), event);
    if (server->stepping)
        return;
    server->stepping = true;
    struct ampd_output output;
    while (ampd_core_next(server->core, &output))
        do_output(server, &output);
    server->stepping = false;
    update_health(server);
}

/* ---- recovery ---- */

/*
 * Removes files that the catalogue does not name: of writes that were cut off, and of void epochs. Files above the newest step that it
 * names stay: the catalogue of an older data directory that was brought back does not name them. Files in a shared directory are swept
 * later (purge.c).
 */
static int sweep(struct ampd_server *server, const struct ampd_model_record *record, struct amp_error *error)
{
    const struct ampd_checkpoint_place place = ampd_server_place(server, record->spec.name);
    uint32_t count = record->checkpoints_count;
    uint64_t newest = 0;
    if (ampd_server_shares_files(server) || count == 0)
        return 0;
    for (uint32_t i = 0; i < count; i++)
        newest = record->checkpoints[i].step > newest ? record->checkpoints[i].step : newest;
    return ampd_checkpoint_sweep(&place, record->checkpoints, count, newest, error);
}

/*
 * A stored model that the core has no room for ends the start. Without it its name would be free, and a new model of that
 * name would write over the old one's history.
 */
static int not_taken_up(const struct ampd_server *server, const char *model, struct amp_error *error)
{
    return amp_error_set(error, AMP_EEXHAUSTED, NULL,
                         "the stored model %s cannot be taken up, as the log says; --memory-max is %" PRIu64
                         " bytes: start with a higher one",
                         model, server->options->memory_max);
}

static int find_model(struct ampd_server *server, struct ampd_model_record *record, struct amp_error *error)
{
    int rc = ampd_server_take_up(server, record, error);
    if (rc == 0)
        rc = sweep(server, record, error);
    const struct ampd_checkpoint_place place = ampd_server_journal_place(server, record->spec.name);
    bool journal = true;
    if (rc == 0 && record->spec.durability == AMPD_DURABILITY_STEP)
        rc = ampd_journal_find(&place, &journal, error);
    record->no_journal = !journal;
    return rc;
}

int ampd_server_find(void *arg, struct amp_error *error)
{
    struct ampd_found *found = arg;
    struct ampd_server *server = found->server;
    int rc = ampd_store_load(server->store, &found->records, &found->count, error);
    for (size_t i = 0; rc == 0 && i < found->count; i++)
        rc = find_model(server, &found->records[i], error);
    if (rc == 0)
        rc = ampd_server_sweep_deleted(server, found->records, found->count, error);
    for (uint32_t k = 0; rc == 0 && k < io_peers_shards(server); k++)
        rc = ampd_store_get_fence(server->store, k, &found->fences[k], error);
    return rc;
}

int ampd_server_recover(struct ampd_server *server, const struct ampd_found *found, struct amp_error *error)
{
    for (size_t i = 0; i < found->count; i++) {
        const char *name = found->records[i].spec.name;
        struct ampd_event event = {.type = AMPD_EVENT_MODEL_FOUND, .u.found = &found->records[i]};
        ampd_server_event(server, &event);
        if (ampd_core_find(server->core, name) < 0)
            return not_taken_up(server, name, error);
    }
    ampd_server_purge(server);
    for (uint32_t k = 0; k < io_peers_shards(server); k++) {
        struct ampd_event event = {.type = AMPD_EVENT_FENCE_FOUND, .u.fence = {k, found->fences[k]}};
        if (found->fences[k].counter != 0)
            ampd_server_event(server, &event);
    }
    server->found = true;
    struct ampd_event start = {.type = AMPD_EVENT_START};
    ampd_server_event(server, &start);
    return 0;
}
