/*
 * /api/status: the server, its shards and models, and what is wrong with them: for each trouble a sentence, with what
 * helps. Its data is that of GetStatus and GetCluster.
 */
#include "server/io/base/clock.h"
#include "server/io/base/options.h"
#include "server/io/base/server.h"
#include "server/io/base/storage_alert.h"
#include "server/io/calls/convert.h"
#include "server/io/calls/waiting.h"
#include "server/io/cluster/cluster.h"
#include "server/io/cluster/peers.h"
#include "server/io/history/explain_text.h"
#include "server/io/host/disk_share.h"
#include "server/io/page/page_impl.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

/*
 * Most models in the answer, as long as there is room for one with the longest names; the others are only counted. A
 * screen shows fewer, and ampctl lists all.
 */
#define MODELS_SHOWN 100
#define MODEL_ROOM   ((size_t)10 << 10)
/* Most sentences about troubles, and their bytes; the most important come first. */
#define TROUBLES_SHOWN 24
#define TROUBLES_UP_TO (IO_PAGE_STATUS_BYTES / 2)

/* ---- what is wrong ---- */

struct troubles {
    struct io_json *json;
    unsigned count, shown;
};

static void tell(struct troubles *troubles, const char *model, const char *remedy, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static void tell(struct troubles *troubles, const char *model, const char *remedy, const char *format, ...)
{
    char text[AMP_ERROR_TEXT_MAX];
    va_list args;
    troubles->count++;
    if (troubles->shown == TROUBLES_SHOWN || troubles->json->buf.size > TROUBLES_UP_TO)
        return;
    troubles->shown++;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args); /* a text that is too long is truncated */
    va_end(args);
    io_json_open(troubles->json, NULL, '{');
    io_json_text(troubles->json, "model", model);
    io_json_text(troubles->json, "text", text);
    io_json_text(troubles->json, "remedy", remedy);
    io_json_shut(troubles->json, '}');
}

static void tell_of_server(const struct ampd_server *server, struct troubles *troubles)
{
    char text[AMP_ERROR_TEXT_MAX];
    io_storage_alert_text(server->storage_alert, text, sizeof text);
    if (text[0] != 0)
        tell(troubles, "", "What waits goes on by itself once this is fixed.", "%s", text);
    io_peers_cluster_trouble(server, text, sizeof text);
    if (text[0] != 0)
        tell(troubles, "", "See docs/cluster.md: what happens at failures; ampctl cluster shows each shard.", "%s",
             text);
    io_storage_alert_share_text(server->storage_alert, text, sizeof text);
    if (text[0] != 0)
        tell(troubles, "", "Make room before the disk is full: then steps wait.", "%s", text);
    if (server->life.state >= SERVER_DRAINING)
        tell(troubles, "", "Start it again when it has ended; workers connect by themselves.",
             "This server is ending.");
    if (server->options->shard != 0)
        tell(troubles, "", "Open the page of shard 0, which decides steps and knows the workers.",
             "This is shard %u of %u: workers and what they wait for are known to shard 0.", server->options->shard,
             io_peers_shards(server));
}

static void tell_of_worker(const char *model, const struct ampd_worker_info *worker, uint32_t rank,
                           struct troubles *troubles)
{
    if (worker->quarantined)
        tell(troubles, model, "Look at its data and at its machine, then start it again.",
             "Steps go on without rank %u (%s): its gradients had Inf or NaN again and again.", rank, worker->name);
    else if (worker->nonfinite)
        tell(troubles, model, "Look at its data, its seed and its memory.",
             "Rank %u (%s) pushes Inf or NaN while others do not.", rank, worker->name);
    if (worker->straggles)
        tell(troubles, model, "See whether its machine is shared, hot or swapping, or its share of the data larger.",
             "All others wait for rank %u (%s) in each step.", rank, worker->name);
}

/* A loss that is no number is their cause: the same sentence as in ExplainStep. */
static void tell_of_overflows(const struct ampd_model_info *info, struct troubles *troubles)
{
    const char *loss = info->last != NULL ? io_explain_loss(info->last) : NULL;
    const char *remedy = info->frozen ? "Lower the learning rate or roll back, then ampctl scale set or reset."
                                      : "Lower the learning rate, or go back to a checkpoint: ampctl rollback.";
    tell(troubles, info->spec->name, remedy, "%s %u overflows in a row.%s%s%s",
         info->frozen ? "No step opens: the loss scale is at its floor after" : "Training is unstable:",
         info->scaler.consecutive_overflows, loss != NULL ? " " : "", loss != NULL ? loss : "",
         loss != NULL ? ": look at its data." : "");
}

static void tell_of_model(const struct ampd_server *server, uint32_t index, const struct ampd_model_info *info,
                          struct troubles *troubles)
{
    const char *name = info->spec->name;
    if (info->trouble != NULL)
        tell(troubles, name, "See docs/operations.md, A directory that is not there; meanwhile nothing is deleted.",
             "%s", info->trouble);
    if (info->frozen || info->unstable)
        tell_of_overflows(info, troubles);
    if (info->range_total > 0)
        tell(troubles, name, "Use bf16 for the cast, or more weight decay: no loss scale can fix that.",
             "%llu values of the parameters are beyond the range of the cast.", (unsigned long long)info->range_total);
    for (uint32_t rank = 0; rank < info->spec->world_size && server->options->shard == 0; rank++) {
        struct ampd_worker_info worker;
        ampd_core_worker(server->core, index, rank, io_core_now(server), &worker);
        tell_of_worker(name, &worker, rank, troubles);
    }
}

/* ---- the server ---- */

static void write_shards(const struct ampd_server *server, struct io_json *json)
{
    io_json_open(json, "shards", '[');
    for (uint32_t k = 0; k < io_peers_shards(server); k++) {
        struct ampd_shard_info info;
        int64_t since_us = 0;
        ampd_core_shard(server->core, k, -1, &info);
        io_json_open(json, NULL, '{');
        io_json_count(json, "index", k);
        io_json_text(json, "endpoint", server->peers != NULL ? io_peers_address(server, k) : server->endpoint);
        io_json_truth(json, "known", io_peers_knows(server, k));
        io_json_truth(json, "up", io_peers_up(server, k, &since_us));
        io_json_count(json, "since_ms", (uint64_t)since_us / 1000);
        io_json_count(json, "behind", info.behind);
        io_json_shut(json, '}');
    }
    io_json_shut(json, ']');
}

static void write_server(const struct io_page *page, struct io_json *json)
{
    const struct ampd_server *server = page->server;
    io_json_text(json, "version", AMPD_VERSION);
    io_json_count(json, "time_ms", (uint64_t)io_clock_utc_us() / 1000);
    io_json_count(json, "uptime_ms", uv_now(&server->loop) - server->life.started_ms);
    io_json_text(json, "isa", server->options->isa);
    io_json_count(json, "shard", server->options->shard);
    io_json_truth(json, "serving", server->life.serving);
    io_json_count(json, "memory_max", server->options->memory_max);
    io_json_count(json, "disk_free", server->disk_share->free_bytes);
    io_json_count(json, "disk_size", server->disk_share->total_bytes);
    if (server->cluster != NULL)
        io_json_count(json, "standbys", io_cluster_standbys(server->cluster));
}

/* ---- models ---- */

/* Writes the workers whose pushes others wait for: the first few. */
static void write_awaited(const struct ampd_server *server, uint32_t index, const struct ampd_model_info *info,
                          struct io_json *json)
{
    enum { NAMED = 4 };
    uint64_t now_ms = io_core_now(server);
    uint32_t live = 0, awaited = 0;
    io_json_open(json, "awaited", '[');
    for (uint32_t rank = 0; rank < info->spec->world_size; rank++) {
        struct ampd_worker_info worker;
        ampd_core_worker(server->core, index, rank, now_ms, &worker);
        live += io_worker_is_live(&worker);
        if (!worker.awaited || awaited++ >= NAMED)
            continue;
        io_json_open(json, NULL, '{');
        io_json_count(json, "rank", rank);
        io_json_text(json, "name", worker.name);
        io_json_shut(json, '}');
    }
    io_json_shut(json, ']');
    io_json_count(json, "awaited_count", awaited);
    io_json_count(json, "live", live);
    uint64_t since_ms = info->waits.awaited_since_ms, open_ms = info->waits.open_since_ms;
    io_json_count(json, "awaited_ms", since_ms != 0 ? now_ms - since_ms : 0);
    io_json_count(json, "open_ms", open_ms != 0 ? now_ms - open_ms : 0);
}

/* JSON has no number for what is not finite, and what a worker told is told: the words of ampctl --json. */
static void write_told(struct io_json *json, const char *name, double value)
{
    if (isfinite(value))
        io_json_number(json, name, value);
    else
        io_json_text(json, name, isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity");
}

void io_page_metrics_write(const struct ampd_metrics *metrics, struct io_json *json)
{
    if (metrics->loss_workers > 0)
        write_told(json, "loss", (double)metrics->loss);
    if (metrics->count == 0)
        return;
    io_json_open(json, "metrics", '{');
    for (uint32_t i = 0; i < metrics->count; i++)
        write_told(json, metrics->items[i].name, (double)metrics->items[i].value);
    io_json_shut(json, '}');
}

static void write_last(const struct ampd_step_row *row, struct io_json *json)
{
    if (row == NULL) {
        io_json_none(json, "last");
        return;
    }
    io_json_open(json, "last", '{');
    io_json_count(json, "step", row->step);
    io_json_truth(json, "applied", row->verdict == AMPD_VERDICT_APPLIED);
    io_json_count(json, "at_ms", (uint64_t)row->at_us / 1000);
    io_json_number(json, "norm", row->norm);
    io_json_number(json, "rate", row->lr);
    io_page_metrics_write(&row->metrics, json);
    io_json_shut(json, '}');
}

void io_page_model_status_write(const struct ampd_server *server, uint32_t index, const struct ampd_model_info *info,
                                const char *key, struct io_json *json)
{
    static const char *const states[] = {"", "created", "loading", "waiting", "running", "stalled", "done"};
    struct ampd_msg_model_status status;
    (void)io_model_status(server, index, false, &status); /* without workers it takes no memory */
    uint32_t count = info->checkpoints_whole;
    io_json_open(json, key, '{');
    io_json_text(json, "name", status.name);
    io_json_text(json, "state", status.recovering ? "recovering" : states[info->state]);
    io_json_truth(json, "frozen", status.frozen);
    io_json_truth(json, "unstable", status.unstable);
    io_json_text(json, "waiting_for", status.waiting_for);
    io_json_count(json, "waiting_ms", status.waiting_ms);
    io_json_count(json, "epoch", status.epoch);
    io_json_count(json, "step", status.step);
    io_json_count(json, "decided", info->decided_step);
    io_json_count(json, "durable", status.durable_step);
    io_json_count(json, "attempted", status.scale.attempted);
    io_json_count(json, "applied", status.applied);
    io_json_count(json, "skipped", status.scale.skipped);
    io_json_number(json, "scale", (double)status.scale.scale);
    io_json_count(json, "max_steps", info->spec->max_steps);
    io_json_count(json, "world_size", status.world_size);
    io_json_count(json, "parameters", status.parameter_count);
    io_json_count(json, "elements", status.element_count);
    io_json_count(json, "memory_bytes", status.memory_bytes);
    io_json_count(json, "checkpoints", ampd_core_count_whole(info));
    io_json_count(json, "checkpoint_step", count > 0 ? info->checkpoints[count - 1].step : 0);
    io_json_count(json, "checkpoint_ms", count > 0 ? (uint64_t)info->checkpoints[count - 1].at_us / 1000 : 0);
    write_awaited(server, index, info, json);
    write_last(info->last, json);
    io_json_shut(json, '}');
}

/* Writes the sums over all models, of which write_models may leave some out. */
static void write_totals(const struct ampd_server *server, struct io_json *json)
{
    uint64_t running = 0, live = 0, wanted = 0;
    struct ampd_model_info info;
    for (uint32_t i = 0; i < ampd_core_models_count(server->core); i++) {
        ampd_core_model(server->core, i, &info);
        if (info.deleted)
            continue;
        bool done = info.state == AMPD_MODEL_DONE && !info.recovering; /* it needs no workers */
        running += info.state == AMPD_MODEL_RUNNING && !info.recovering && !info.frozen && !info.unstable;
        for (uint32_t rank = 0; rank < info.spec->world_size && !done; rank++) {
            struct ampd_worker_info worker;
            ampd_core_worker(server->core, i, rank, io_core_now(server), &worker);
            live += io_worker_is_live(&worker);
            wanted++;
        }
    }
    io_json_open(json, "totals", '{');
    io_json_count(json, "memory_counted", ampd_core_memory_counted(server->core));
    io_json_count(json, "running", running);
    io_json_count(json, "live", live);
    io_json_count(json, "world_size", wanted);
    io_json_shut(json, '}');
}

/* Those that are done come last: of many models they are the ones that nobody waits for. */
static void write_models(const struct ampd_server *server, struct io_json *json)
{
    uint32_t shown = 0, total = 0, count = ampd_core_models_count(server->core);
    struct ampd_model_info info;
    io_json_open(json, "models", '[');
    for (uint32_t i = 0; i < 2 * count; i++) {
        ampd_core_model(server->core, i % count, &info);
        bool done = info.state == AMPD_MODEL_DONE && !info.recovering;
        if (info.deleted || done != (i >= count) || total++ >= MODELS_SHOWN ||
            json->buf.size > IO_PAGE_STATUS_BYTES - MODEL_ROOM)
            continue;
        shown++;
        io_page_model_status_write(server, i % count, &info, NULL, json);
    }
    io_json_shut(json, ']');
    io_json_count(json, "models_hidden", total - shown);
}

static void write_troubles(const struct ampd_server *server, struct io_json *json)
{
    struct troubles troubles = {.json = json};
    struct ampd_model_info info;
    io_json_open(json, "troubles", '[');
    tell_of_server(server, &troubles);
    for (uint32_t i = 0; i < ampd_core_models_count(server->core); i++) {
        ampd_core_model(server->core, i, &info);
        if (!info.deleted)
            tell_of_model(server, i, &info, &troubles);
    }
    io_json_shut(json, ']');
    io_json_count(json, "troubles_hidden", troubles.count - troubles.shown);
}

void io_page_status_write(struct io_page *page, struct io_json *json)
{
    io_json_init(json, IO_PAGE_STATUS_BYTES);
    io_json_open(json, NULL, '{');
    write_server(page, json);
    write_shards(page->server, json);
    write_troubles(page->server, json);
    write_totals(page->server, json);
    write_models(page->server, json);
    io_json_shut(json, '}');
}

void io_page_status(struct io_page_ask *ask, const struct io_page_request *request)
{
    struct io_json json;
    io_page_status_write(ask->page, &json);
    io_page_answer_json(ask, IO_PAGE_OK, &json);
}
