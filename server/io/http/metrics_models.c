/*
 * ampd_model_*: each row of the tables below is a metric, with one sample for each model (label `model`), or with
 * several that a second label tells apart. Names of workers and parameters are not used as labels: the status and the
 * history have them.
 */
#include "server/io/http/metrics_models.h"

#include "server/io/base/counts.h"
#include "server/io/base/server.h"
#include "server/io/calls/waiting.h"
#include "server/io/http/metrics.h"

#include <stdlib.h>

/* What is known of a model, for the rows of the tables. */
struct view {
    struct ampd_model_info info;
    uint64_t now_ms;
    int64_t awaited; /* the lowest rank that others wait for; -1: none */
    struct io_model_counts counts;
    uint32_t live, missing, left, straggling, nonfinite, quarantined;
    uint64_t joins, replacements, leaves, fences;
};

/* ---- one sample for each model ---- */

#define VALUE(name, expression)                                                                                        \
    static double name(const struct view *view)                                                                        \
    {                                                                                                                  \
        return (double)(expression);                                                                                   \
    }

VALUE(scale, view->info.scaler.scale)
VALUE(epoch, view->info.epoch)
VALUE(decided, view->info.decided_step)
VALUE(durable, view->info.durable_step)
VALUE(version, view->info.version)
VALUE(attempted, view->info.scaler.attempted)
VALUE(applied, view->info.scaler.applied)
VALUE(skipped, view->info.scaler.skipped)
VALUE(overflows, view->info.scaler.total_overflows)
VALUE(consecutive, view->info.scaler.consecutive_overflows)
VALUE(unstable, view->info.unstable)
VALUE(frozen, view->info.frozen)
VALUE(recovering, view->info.recovering)
VALUE(troubled, view->info.trouble != NULL)
VALUE(open_step,
      view->info.waits.open_since_ms != 0 ? (double)(view->now_ms - view->info.waits.open_since_ms) / 1e3 : 0)
VALUE(awaited, view->awaited)
VALUE(world, view->info.spec->world_size)
VALUE(out_of_range, view->info.range_total)
VALUE(memory, view->info.memory_bytes)
VALUE(checkpoints, ampd_core_count_whole(&view->info))

static const struct ampd_checkpoint_record *newest(const struct view *view)
{
    uint32_t count = view->info.checkpoints_whole;
    return count > 0 ? &view->info.checkpoints[count - 1] : NULL;
}

VALUE(checkpoint_step, newest(view) != NULL ? newest(view)->step : 0)
VALUE(checkpoint_bytes, newest(view) != NULL ? newest(view)->size_bytes : 0)
VALUE(checkpoint_at, newest(view) != NULL ? (double)newest(view)->at_us / 1e6 : 0)

VALUE(joins, view->joins)
VALUE(replacements, view->replacements)
VALUE(leaves, view->leaves)
VALUE(fences, view->fences)

#define COUNTER(name_, help_, value_)                                                                                  \
    {                                                                                                                  \
        {"ampd_model_" name_ "_total", AMP_METRIC_COUNTER, help_}, value_                                              \
    }
#define GAUGE(name_, help_, value_)                                                                                    \
    {                                                                                                                  \
        {"ampd_model_" name_, AMP_METRIC_GAUGE, help_}, value_                                                         \
    }

static const struct {
    struct amp_metric metric;
    double (*value)(const struct view *view);
} values[] = {
    GAUGE("loss_scale", "The loss scale of the next step", scale),
    GAUGE("epoch", "Rises with each restore and rollback", epoch),
    GAUGE("decided_step", "The last step that was decided", decided),
    GAUGE("durable_step", "The last step that no crash can take back", durable),
    GAUGE("version", "Applied steps, as pulls count them", version),
    GAUGE("steps_attempted", "Decided steps of the scale's record; goes back with a rollback", attempted),
    GAUGE("steps_applied", "Applied steps of the scale's record; goes back with a rollback", applied),
    GAUGE("steps_skipped", "Skipped steps of the scale's record; goes back with a rollback", skipped),
    GAUGE("overflows", "Steps of the scale's record with an Inf or NaN; goes back with a rollback", overflows),
    GAUGE("consecutive_overflows", "Overflows in a row up to the last step", consecutive),
    GAUGE("unstable", "1 while max_consecutive_overflows is reached", unstable),
    GAUGE("frozen", "1 while no step opens until an operator acts, since the scale is at its floor", frozen),
    GAUGE("recovering", "1 after a start until the model is ready", recovering),
    GAUGE("troubled", "1 while the model cannot be brought back until somebody acts or a disk can be read", troubled),
    GAUGE("open_step_seconds", "Seconds since the open step was opened; 0: none is open; shard 0 opens steps",
          open_step),
    GAUGE("awaited_rank", "The lowest rank whose push others have waited for, for at least 10 s; -1: none", awaited),
    GAUGE("world_size", "Ranks of the model", world),
    GAUGE("cast_out_of_range", "Master values beyond the cast's range in the last applied step", out_of_range),
    GAUGE("memory_bytes", "Memory of the model's tensors in this shard", memory),
    GAUGE("checkpoints", "Checkpoints that are kept", checkpoints),
    GAUGE("checkpoint_step", "Step of the newest checkpoint; 0: none", checkpoint_step),
    GAUGE("checkpoint_bytes", "Size of the newest checkpoint's part of this shard", checkpoint_bytes),
    GAUGE("checkpoint_timestamp_seconds", "When the newest checkpoint was written, since 1970 in UTC; 0: none",
          checkpoint_at),
    COUNTER("joins", "Joins of workers since this process started; shard 0 counts them", joins),
    COUNTER("replacements", "Joins that took a rank from another process while its lease had not ended", replacements),
    COUNTER("leaves", "Leaves of workers since this process started", leaves),
    COUNTER("fences",
            "Calls of workers that were refused, such as those of a worker that does not hold its rank any more",
            fences),
};

/* ---- several samples for each model, by a second label ---- */

VALUE(created, view->info.state == AMPD_MODEL_CREATED)
VALUE(loading, view->info.state == AMPD_MODEL_LOADING)
VALUE(waiting, view->info.state == AMPD_MODEL_WAITING)
VALUE(running, view->info.state == AMPD_MODEL_RUNNING)
VALUE(stalled, view->info.state == AMPD_MODEL_STALLED)
VALUE(done, view->info.state == AMPD_MODEL_DONE)
VALUE(live, view->live)
VALUE(missing, view->missing)
VALUE(left, view->left)
VALUE(straggling, view->straggling)
VALUE(nonfinite, view->nonfinite)
VALUE(quarantined, view->quarantined)
VALUE(counted_applied, view->counts.applied)
VALUE(counted_overflows, view->counts.overflows)
VALUE(counted_empty, view->counts.empty)
VALUE(apply_time, view->counts.times_us[AMPD_STEP_TIME_APPLY] / 1e6)
VALUE(pull_time, view->counts.times_us[AMPD_STEP_TIME_PULL] / 1e6)
VALUE(wait_time, view->counts.times_us[AMPD_STEP_TIME_WAIT] / 1e6)
VALUE(push_time, view->counts.times_us[AMPD_STEP_TIME_PUSH] / 1e6)
VALUE(vote_time, view->counts.times_us[AMPD_STEP_TIME_VOTE] / 1e6)

struct case_row {
    const char *name;
    double (*value)(const struct view *view);
};

#define CASES_MAX 6

static const struct {
    struct amp_metric metric;
    const char *label;
    struct case_row cases[CASES_MAX]; /* up to the first without a name */
} cases_table[] = {
    {{"ampd_model_state", AMP_METRIC_GAUGE, "1 for the state that the model is in"},
     "state",
     {{"created", created},
      {"loading", loading},
      {"waiting", waiting},
      {"running", running},
      {"stalled", stalled},
      {"done", done}}},
    {{"ampd_model_workers", AMP_METRIC_GAUGE,
      "Ranks by state: live ones have joined and hold a lease, left ones gave it back, missing ones did neither; the "
      "other states are as status names them"},
     "state",
     {{"live", live},
      {"missing", missing},
      {"left", left},
      {"straggling", straggling},
      {"nonfinite", nonfinite},
      {"quarantined", quarantined}}},
    {{"ampd_model_steps_total", AMP_METRIC_COUNTER, "Steps that this process has decided; shard 0 decides"},
     "verdict",
     {{"applied", counted_applied}, {"skipped_overflow", counted_overflows}, {"skipped_empty", counted_empty}}},
    {{"ampd_model_step_part_seconds_total", AMP_METRIC_COUNTER,
      "Time of the steps that this process has decided, by part of the step; shard 0 decides"},
     "part",
     {{"apply", apply_time}, {"pull", pull_time}, {"wait", wait_time}, {"push", push_time}, {"vote", vote_time}}},
};

/* ---- filling the views ---- */

/* Counts workers by their states. Only shard 0 knows leases: on other shards no worker counts as live or missing. */
static void count_workers(const struct ampd_server *server, uint32_t index, struct view *view)
{
    uint64_t now_ms = io_core_now(server);
    for (uint32_t rank = 0; rank < view->info.spec->world_size; rank++) {
        struct ampd_worker_info worker;
        ampd_core_worker(server->core, index, rank, now_ms, &worker);
        view->joins += worker.joins;
        view->replacements += worker.replacements;
        view->leaves += worker.leaves;
        view->fences += worker.fences;
        if (server->options->shard != 0)
            continue;
        bool is_live = io_worker_is_live(&worker);
        view->live += is_live ? 1 : 0;
        view->left += worker.left ? 1 : 0;
        view->missing += is_live || worker.left ? 0 : 1;
        view->straggling += worker.straggles ? 1 : 0;
        view->nonfinite += worker.nonfinite ? 1 : 0;
        view->quarantined += worker.quarantined ? 1 : 0;
        bool late = view->info.waits.awaited_late_ms != 0 && now_ms >= view->info.waits.awaited_late_ms;
        if (late && worker.awaited && view->awaited < 0)
            view->awaited = rank;
    }
}

/* Fills in the first IO_METRICS_MODELS_MAX models, and returns their number; *models is that of all models. */
static size_t fill_views(const struct ampd_server *server, struct view *views, size_t *models)
{
    size_t count = 0;
    *models = 0;
    for (uint32_t i = 0; i < ampd_core_models_count(server->core); i++) {
        struct ampd_model_info info;
        ampd_core_model(server->core, i, &info);
        if (info.deleted)
            continue;
        (*models)++;
        if (count == IO_METRICS_MODELS_MAX)
            continue;
        views[count] = (struct view){
            .info = info, .counts = server->counts.models[i], .now_ms = io_core_now(server), .awaited = -1};
        count_workers(server, i, &views[count]);
        count++;
    }
    return count;
}

/* ---- writing ---- */

static void write_values(struct amp_metric_text *text, const struct view *views, size_t count)
{
    for (size_t row = 0; row < sizeof values / sizeof *values; row++) {
        amp_metric_head(text, &values[row].metric);
        for (size_t i = 0; i < count; i++) {
            struct amp_metric_label label = {"model", views[i].info.spec->name};
            amp_metric_put(text, &values[row].metric, &label, 1, values[row].value(&views[i]));
        }
    }
}

static void write_cases(struct amp_metric_text *text, const struct view *views, size_t count)
{
    for (size_t row = 0; row < sizeof cases_table / sizeof *cases_table; row++) {
        const struct case_row *cases = cases_table[row].cases;
        amp_metric_head(text, &cases_table[row].metric);
        for (size_t i = 0; i < count; i++) {
            for (size_t c = 0; c < CASES_MAX && cases[c].name != NULL; c++) {
                struct amp_metric_label labels[] = {{"model", views[i].info.spec->name},
                                                    {cases_table[row].label, cases[c].name}};
                amp_metric_put(text, &cases_table[row].metric, labels, 2, cases[c].value(&views[i]));
            }
        }
    }
}

void io_metrics_write_models(const struct ampd_server *server, struct amp_metric_text *text)
{
    static const struct amp_metric models = {"ampd_models", AMP_METRIC_GAUGE, "Number of models"};
    static const struct amp_metric left_out = {"ampd_models_without_metrics", AMP_METRIC_GAUGE,
                                               "Models beyond the first 256, which have no rows of their own here"};
    _Static_assert(IO_METRICS_MODELS_MAX == 256, "the text above says so");
    size_t total = 0, count = 0;
    if (server->core == NULL)
        return; /* the server starts */
    struct view *views = calloc(IO_METRICS_MODELS_MAX, sizeof *views);
    if (views == NULL) {
        text->error = AMP_ENOMEM;
        return;
    }
    count = fill_views(server, views, &total);
    amp_metric_one(text, &models, (double)total);
    amp_metric_one(text, &left_out, (double)(total - count));
    write_values(text, views, count);
    write_cases(text, views, count);
    free(views);
}
