/*
 * Once in ROUND_MS a round goes through all models, on the writer's thread, and removes rows in portions. Verdicts that
 * come meanwhile are stored between two portions.
 */
#include "server/io/host/history_limit.h"

#include "base/assert.h"
#include "server/io/base/clock.h"
#include "server/io/base/fatal.h"
#include "server/io/base/server.h"
#include "server/io/base/threads.h"
#include "storage/store.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/*
 * Time between two rounds. A model without rows to remove costs a few lookups; a fast one adds some hundred rows in it.
 */
#define ROUND_MS 1000

/* Rows and overflow rows of one transaction: a few milliseconds, for which a verdict may have to wait. */
#define PORTION 500

/* One portion of one model; the task is reused for the whole round. */
struct trim_task {
    struct io_task task;
    struct ampd_server *server;
    uint32_t model; /* its index in the core */
    char name[AMPD_NAME_MAX];
    struct ampd_history_limit limit;
    struct ampd_trimmed trimmed;
    struct amp_error error; /* code 0: none */
};

static void trim_run(struct io_task *base)
{
    struct trim_task *trim = AMP_CONTAINER(base, struct trim_task, task);
    int rc = ampd_store_trim(trim->server->data.store, trim->name, &trim->limit, PORTION, &trim->trimmed, &trim->error);
    if (rc == AMP_EIO || rc == AMP_EDATALOSS)
        io_fatal(trim->server->log, "the store failed", &trim->error);
    atomic_fetch_add(&trim->server->counts.history_removed, trim->trimmed.rows);
}

static void trim_done(struct io_task *base);

/* Submits the next portion, of the model at `index` or the next one behind it. If there is none, ends the round. */
static void go_on(struct ampd_server *server, struct trim_task *trim, uint32_t index)
{
    const struct ampd_server_options *options = server->options;
    bool wanted = (options->history_rows != 0 || options->history_age_ms != 0) && server->history_limit->readers == 0;
    for (; wanted && server->life.state == SERVER_RUNNING && index < ampd_core_models_count(server->core); index++) {
        struct ampd_model_info info;
        ampd_core_model(server->core, index, &info);
        if (info.deleted || info.deleting || info.recovering)
            continue;
        *trim = (struct trim_task){
            .task = {.run_cb = trim_run, .done_cb = trim_done},
            .server = server,
            .model = index,
            .limit = {.rows = options->history_rows, .replays = info.spec->durability == AMPD_DURABILITY_STEP}};
        if (options->history_age_ms != 0) {
            int64_t now_us = io_clock_utc_us(), age_us = options->history_age_ms * 1000;
            trim->limit.before_us = now_us - age_us;
            trim->limit.after_us = now_us + age_us;
        }
        memcpy(trim->name, info.spec->name, sizeof trim->name);
        io_threads_submit(server->pools.writer, &trim->task);
        return;
    }
    server->history_limit->busy = false;
    server->history_limit->logged = server->history_limit->stay;
    free(trim);
}

/* A portion has failed, on a full disk or without memory: logs it once. The next round tries again. */
static void log_failure(const struct trim_task *trim)
{
    struct io_history_limit *limit = trim->server->history_limit;
    limit->stay = true;
    if (limit->logged)
        return;
    limit->logged = true;
    amp_log(trim->server->log, AMP_LOG_WARN, "store",
            "msg=\"rows beyond the history's limit stay for now\" model=%s err=\"%s\"", trim->name, trim->error.text);
}

static void trim_done(struct io_task *base)
{
    struct trim_task *trim = AMP_CONTAINER(base, struct trim_task, task);
    if (trim->error.code != 0 && trim->error.code != AMP_ENOTFOUND)
        log_failure(trim);
    go_on(trim->server, trim, trim->model + (trim->trimmed.more ? 0 : 1));
}

static void on_round(uv_timer_t *timer)
{
    struct ampd_server *server = timer->data;
    if (server->history_limit->busy || !server->life.serving)
        return;
    struct trim_task *trim = calloc(1, sizeof *trim);
    if (trim == NULL)
        return; /* no memory: the next round will do */
    server->history_limit->busy = true;
    server->history_limit->stay = false;
    go_on(server, trim, 0);
}

void io_history_limit_open(struct ampd_server *server)
{
    uv_timer_t *timer = &server->history_limit->timer;
    AMP_ASSERT(uv_timer_init(&server->loop, timer) == 0);
    timer->data = server;
    (void)uv_timer_start(timer, on_round, ROUND_MS, ROUND_MS); /* cannot fail on an open handle */
}

void io_history_limit_close(struct ampd_server *server)
{
    uv_close((uv_handle_t *)&server->history_limit->timer, NULL);
}

void io_history_limit_pause(struct ampd_server *server)
{
    server->history_limit->readers++;
}

void io_history_limit_resume(struct ampd_server *server)
{
    AMP_ASSERT(server->history_limit->readers > 0);
    server->history_limit->readers--;
}
