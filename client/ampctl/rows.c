#include "client/ampctl/rows.h"

#include "base/log.h"

#include <math.h>
#include <string.h>

/* ---- names ---- */

const char *ampctl_name_of(const char *const *names, size_t count, unsigned value)
{
    return value < count ? names[value] : "unknown";
}

static const char *const kinds[] = {"unknown",          "step", "epoch", "scale_set", "scale_reset", "evicted",
                                    "learning_rate_set"};
static const char *const verdicts[] = {"unknown", "applied", "skipped_overflow", "skipped_empty", "late"};
static const char *const sources[] = {"unknown", "worker", "sum", "range"};
static const char *const states[] = {"unknown", "created", "loading", "waiting", "running", "stalled", "done"};
static const char *const policies[] = {
    "unknown",         "dynamic", "static", "none", "megatron", "deepspeed", "deepspeed_consecutive",
    "apex_hysteresis", "paddle"};
static const char *const optimizers[] = {"unknown", "sgd", "adamw", "adam", "adagrad", "rmsprop", "lion"};
static const char *const dtypes[] = {"unknown", "f32", "f16", "bf16"};

const char *ampctl_state_name(enum ampd_msg_model_state state)
{
    return AMPCTL_NAME_OF(states, state);
}

/* ---- values ---- */

static json_t *count_of(uint64_t value)
{
    return json_integer((json_int_t)value); /* counts stay far below 2^63 */
}

json_t *ampctl_real(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

/* json_object_set_new frees a value that it cannot keep, and takes NULL as a failure. */
void ampctl_put(json_t **object, const char *key, json_t *value)
{
    if (json_object_set_new(*object, key, value) != 0) {
        json_decref(*object);
        *object = NULL;
    }
}

/* JSON has no number for these, and what a worker told is told: the words of protobuf's JSON. */
static json_t *told_of(double value)
{
    if (isfinite(value))
        return json_real(value);
    return json_string(isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity");
}

static json_t *metrics_of(const struct ampd_msg_scale_history_row *row)
{
    json_t *metrics = json_object();
    for (uint32_t i = 0; i < row->metrics_count; i++)
        ampctl_put(&metrics, row->metrics[i].name, told_of((double)row->metrics[i].value));
    return metrics;
}

/* null where they are not known. */
static void put_times(json_t **object, const struct ampd_msg_scale_history_row *row)
{
    const struct ampd_msg_step_times *times = &row->times;
    ampctl_put(object, "apply_us", row->has_times ? count_of(times->apply_us) : json_null());
    ampctl_put(object, "pull_us", row->has_times ? count_of(times->pull_us) : json_null());
    ampctl_put(object, "wait_us", row->has_times ? count_of(times->wait_us) : json_null());
    ampctl_put(object, "push_us", row->has_times ? count_of(times->push_us) : json_null());
    ampctl_put(object, "vote_us", row->has_times ? count_of(times->vote_us) : json_null());
}

static json_t *time_of(bool has, struct ampd_msg_time time)
{
    char text[32];
    if (!has)
        return json_null();
    amp_log_time(time.us, text);
    return json_string(text);
}

static json_t *text_of(const char *text)
{
    return text[0] != 0 ? json_string(text) : json_null();
}

/* ---- messages ---- */

static void put_event(json_t **object, const struct ampd_msg_scale_history_row *row)
{
    if (row->kind == AMPD_MSG_HISTORY_KIND_EPOCH) {
        ampctl_put(object, "parent_epoch", count_of(row->parent_epoch));
        ampctl_put(object, "base_epoch", count_of(row->base_epoch));
        ampctl_put(object, "base_step", count_of(row->base_step));
    } else {
        ampctl_put(object, "from_step", count_of(row->from_step));
    }
    if (row->kind == AMPD_MSG_HISTORY_KIND_EVICTED)
        ampctl_put(object, "rank", count_of(row->rank));
    if (row->kind == AMPD_MSG_HISTORY_KIND_LEARNING_RATE_SET)
        ampctl_put(object, "old_learning_rate",
                   row->old_learning_rate > 0 ? ampctl_real(row->old_learning_rate) : json_null());
    ampctl_put(object, "actor", text_of(row->actor));
    ampctl_put(object, "reason", text_of(row->reason));
}

json_t *ampctl_history_row(const struct ampd_msg_scale_history_row *row)
{
    json_t *object = json_object();
    bool step = row->kind == AMPD_MSG_HISTORY_KIND_STEP;
    ampctl_put(&object, "epoch", count_of(row->epoch));
    ampctl_put(&object, "step", count_of(row->step));
    ampctl_put(&object, "kind", json_string(AMPCTL_NAME_OF(kinds, row->kind)));
    ampctl_put(&object, "verdict", step ? json_string(AMPCTL_NAME_OF(verdicts, row->verdict)) : json_null());
    ampctl_put(&object, "old_scale", ampctl_real((double)row->old_scale));
    ampctl_put(&object, "scale", row->has_record ? ampctl_real((double)row->record.scale) : json_null());
    ampctl_put(&object, "old_scale_id", count_of(row->old_scale_id));
    ampctl_put(&object, "scale_id", count_of(row->record.scale_id));
    ampctl_put(&object, "version", count_of(row->version));
    ampctl_put(&object, "norm", ampctl_real(row->norm));
    ampctl_put(&object, "learning_rate", ampctl_real(row->learning_rate));
    ampctl_put(&object, "clip", ampctl_real((double)row->clip_coefficient));
    ampctl_put(&object, "contributors", count_of(row->contributors));
    ampctl_put(&object, "loss", row->has_loss ? told_of((double)row->loss) : json_null());
    ampctl_put(&object, "loss_workers", count_of(row->loss_workers));
    ampctl_put(&object, "metrics", metrics_of(row));
    ampctl_put(&object, "overflow_rows", count_of(row->overflow_totals.rows));
    ampctl_put(&object, "inf_count", count_of(row->overflow_totals.inf_count));
    ampctl_put(&object, "nan_count", count_of(row->overflow_totals.nan_count));
    ampctl_put(&object, "growth_tracker", count_of(row->record.growth_tracker));
    ampctl_put(&object, "consecutive_overflows", count_of(row->record.consecutive_overflows));
    ampctl_put(&object, "time", time_of(row->has_decide_time, row->decide_time));
    ampctl_put(&object, "superseded", json_boolean(row->superseded));
    put_times(&object, row);
    if (!step)
        put_event(&object, row);
    return object;
}

json_t *ampctl_overflow_row(const struct ampd_msg_overflow_row *row)
{
    json_t *object = json_object();
    ampctl_put(&object, "epoch", count_of(row->epoch));
    ampctl_put(&object, "step", count_of(row->step));
    ampctl_put(&object, "parameter", json_string(row->parameter));
    ampctl_put(&object, "parameter_index", count_of(row->parameter_index));
    ampctl_put(&object, "source", json_string(AMPCTL_NAME_OF(sources, row->source)));
    ampctl_put(&object, "rank", row->has_rank ? count_of(row->rank) : json_null());
    ampctl_put(&object, "worker", text_of(row->worker_name));
    ampctl_put(&object, "inf_count", count_of(row->inf_count));
    ampctl_put(&object, "nan_count", count_of(row->nan_count));
    ampctl_put(&object, "first_index", count_of(row->first_index));
    ampctl_put(&object, "largest_finite", ampctl_real((double)row->largest_finite));
    ampctl_put(&object, "time", time_of(row->has_decide_time, row->decide_time));
    ampctl_put(&object, "superseded", json_boolean(row->superseded));
    return object;
}

static json_t *worker_row(const struct ampd_msg_worker_status *worker)
{
    json_t *object = json_object();
    ampctl_put(&object, "name", json_string(worker->name));
    ampctl_put(&object, "rank", count_of(worker->rank));
    ampctl_put(&object, "live", json_boolean(worker->live));
    ampctl_put(&object, "lease_left_ms", count_of(worker->lease_left_ms));
    ampctl_put(&object, "last_step", count_of(worker->last_step));
    ampctl_put(&object, "pushes", count_of(worker->pushes));
    ampctl_put(&object, "overflow_pushes", count_of(worker->overflow_pushes));
    ampctl_put(&object, "blocks_present", count_of(worker->blocks_present));
    ampctl_put(&object, "blocks_wanted", count_of(worker->blocks_wanted));
    ampctl_put(&object, "straggles", json_boolean(worker->straggles));
    ampctl_put(&object, "slow_steps", count_of(worker->slow_steps));
    ampctl_put(&object, "slow_ms", count_of(worker->slow_ms));
    ampctl_put(&object, "nonfinite", json_boolean(worker->nonfinite));
    ampctl_put(&object, "quarantined", json_boolean(worker->quarantined));
    ampctl_put(&object, "join_time", time_of(worker->has_join_time, worker->join_time));
    ampctl_put(&object, "peer", json_string(worker->peer));
    ampctl_put(&object, "joins", count_of(worker->joins));
    ampctl_put(&object, "replacements", count_of(worker->replacements));
    ampctl_put(&object, "leaves", count_of(worker->leaves));
    ampctl_put(&object, "fences", count_of(worker->fences));
    return object;
}

static json_t *workers_of(const struct ampd_msg_model_status *model)
{
    json_t *workers = json_array();
    for (size_t i = 0; i < model->workers.count; i++)
        if (json_array_append_new(workers, worker_row(&model->workers.items[i])) != 0) {
            json_decref(workers);
            return NULL;
        }
    return workers;
}

json_t *ampctl_model_row(const struct ampd_msg_model_status *model, bool with_workers)
{
    json_t *object = json_object();
    ampctl_put(&object, "name", json_string(model->name));
    ampctl_put(&object, "state", json_string(ampctl_state_name(model->state)));
    ampctl_put(&object, "epoch", count_of(model->epoch));
    ampctl_put(&object, "step", count_of(model->step));
    ampctl_put(&object, "version", count_of(model->version));
    ampctl_put(&object, "attempted", count_of(model->scale.attempted));
    ampctl_put(&object, "applied", count_of(model->applied));
    ampctl_put(&object, "skipped", count_of(model->scale.skipped));
    ampctl_put(&object, "durable_step", count_of(model->durable_step));
    ampctl_put(&object, "scale", model->has_scale ? ampctl_real((double)model->scale.scale) : json_null());
    ampctl_put(&object, "scale_id", count_of(model->scale.scale_id));
    ampctl_put(&object, "scaler", json_string(AMPCTL_NAME_OF(policies, model->scale.policy)));
    ampctl_put(&object, "consecutive_overflows", count_of(model->scale.consecutive_overflows));
    ampctl_put(&object, "learning_rate", model->learning_rate > 0 ? json_real(model->learning_rate) : json_null());
    ampctl_put(&object, "world_size", count_of(model->world_size));
    ampctl_put(&object, "parameters", count_of(model->parameter_count));
    ampctl_put(&object, "elements", count_of(model->element_count));
    ampctl_put(&object, "blocks", count_of(model->block_count));
    ampctl_put(&object, "optimizer", json_string(ampctl_optimizer_name(model->optimizer)));
    ampctl_put(&object, "cast", json_string(AMPCTL_NAME_OF(dtypes, model->cast_dtype)));
    ampctl_put(&object, "unstable", json_boolean(model->unstable));
    ampctl_put(&object, "frozen", json_boolean(model->frozen));
    ampctl_put(&object, "waiting_for", text_of(model->waiting_for));
    ampctl_put(&object, "create_time", time_of(model->has_create_time, model->create_time));
    if (with_workers)
        ampctl_put(&object, "workers", workers_of(model));
    return object;
}

json_t *ampctl_model_rows(const struct ampd_msg_model_status_list *models, bool with_workers)
{
    json_t *rows = json_array();
    for (size_t i = 0; i < models->count; i++)
        if (json_array_append_new(rows, ampctl_model_row(&models->items[i], with_workers)) != 0) {
            json_decref(rows);
            return NULL;
        }
    return rows;
}

json_t *ampctl_checkpoint_row(const struct ampd_msg_checkpoint_info *checkpoint)
{
    json_t *object = json_object();
    ampctl_put(&object, "model", json_string(checkpoint->model));
    ampctl_put(&object, "epoch", count_of(checkpoint->epoch));
    ampctl_put(&object, "step", count_of(checkpoint->step));
    ampctl_put(&object, "version", count_of(checkpoint->version));
    ampctl_put(&object, "applied", count_of(checkpoint->applied));
    ampctl_put(&object, "scale", checkpoint->scale > 0 ? ampctl_real((double)checkpoint->scale) : json_null());
    ampctl_put(&object, "size_bytes", count_of(checkpoint->size_bytes));
    ampctl_put(&object, "manifest_hash", text_of(checkpoint->manifest_hash));
    ampctl_put(&object, "parts", count_of(checkpoint->parts));
    ampctl_put(&object, "path", text_of(checkpoint->path));
    ampctl_put(&object, "create_time", time_of(checkpoint->has_create_time, checkpoint->create_time));
    return object;
}

json_t *ampctl_cluster_row(const struct ampd_msg_cluster_shard *shard, bool one_model)
{
    const char *state = shard->leaving ? (shard->up ? "leaving" : "left") : (shard->up ? "up" : "down");
    bool known = !shard->unknown; /* else only where it is and which blocks are its own */
    json_t *object = json_object();
    ampctl_put(&object, "shard", count_of(shard->index));
    ampctl_put(&object, "address", json_string(shard->endpoint));
    ampctl_put(&object, "state", json_string(known ? state : "unknown"));
    ampctl_put(&object, "since", time_of(known && shard->has_since, shard->since));
    ampctl_put(&object, "fence", known && shard->fence > 0 ? count_of(shard->fence) : json_null());
    ampctl_put(&object, "blocks", count_of(shard->block_count));
    ampctl_put(&object, "behind", known ? count_of(shard->behind_models) : json_null());
    ampctl_put(&object, "awaited", known ? count_of(shard->awaited_models) : json_null());
    ampctl_put(&object, "trouble", text_of(shard->trouble));
    if (!one_model)
        return object;
    ampctl_put(&object, "decided_step", known ? count_of(shard->decided_step) : json_null());
    ampctl_put(&object, "applied_step", known ? count_of(shard->applied_step) : json_null());
    ampctl_put(&object, "lag", known ? count_of(shard->decided_step - shard->applied_step) : json_null());
    return object;
}

json_t *ampctl_standby_row(const struct ampd_msg_cluster_standby *standby)
{
    json_t *object = json_object();
    ampctl_put(&object, "address", json_string(standby->endpoint));
    ampctl_put(&object, "state", json_string("standby"));
    return object;
}

json_t *ampctl_replayed_row(const struct ampd_msg_replayed_step *step)
{
    json_t *object = json_object();
    ampctl_put(&object, "epoch", count_of(step->epoch));
    ampctl_put(&object, "step", count_of(step->step));
    ampctl_put(&object, "verdict", json_string(AMPCTL_NAME_OF(verdicts, step->verdict)));
    ampctl_put(&object, "stored_scale", ampctl_real((double)step->stored_scale));
    ampctl_put(&object, "replayed_scale", ampctl_real((double)step->replayed_scale));
    ampctl_put(&object, "uncertain", json_boolean(step->uncertain));
    return object;
}

const char *ampctl_optimizer_name(enum ampd_msg_optimizer_kind kind)
{
    return AMPCTL_NAME_OF(optimizers, kind);
}

const char *ampctl_policy_name(enum ampd_msg_scaler_policy policy)
{
    return AMPCTL_NAME_OF(policies, policy);
}

enum ampd_msg_scaler_policy ampctl_policy(const char *name)
{
    for (size_t i = 1; i < sizeof policies / sizeof *policies; i++)
        if (strcmp(policies[i], name) == 0)
            return (enum ampd_msg_scaler_policy)i;
    return AMPD_MSG_SCALER_POLICY_UNSPECIFIED;
}

/* ---- columns ---- */

const struct ampctl_column ampctl_replay_columns[] = {
    {"epoch", "EPOCH", true},
    {"step", "STEP", true},
    {"verdict", "VERDICT", false},
    {"stored_scale", "STORED SCALE", true},
    {"replayed_scale", "REPLAYED SCALE", true},
    {"uncertain", "UNCERTAIN", false},
    {NULL, NULL, false},
};

const struct ampctl_column ampctl_history_columns[] = {
    {"epoch", "EPOCH", true},      {"step", "STEP", true},        {"kind", "KIND", false},
    {"verdict", "VERDICT", false}, {"old_scale", "SCALE", true},  {"scale", "NEW SCALE", true},
    {"version", "VERSION", true},  {"norm", "NORM", true},        {"learning_rate", "LR", true},
    {"clip", "CLIP", true},        {"inf_count", "INF", true},    {"nan_count", "NAN", true},
    {"loss", "LOSS", true},        {"metrics", "METRICS", false}, {"rank", "RANK", true},
    {"time", "TIME", false},       {"actor", "ACTOR", false},     {"reason", "REASON", false},
    {"apply_us", NULL, true},      {"pull_us", NULL, true},       {"wait_us", NULL, true},
    {"push_us", NULL, true},       {"vote_us", NULL, true},       {"old_learning_rate", NULL, true},
    {NULL, NULL, false},
};

const struct ampctl_column ampctl_overflow_columns[] = {
    {"epoch", "EPOCH", true},
    {"step", "STEP", true},
    {"parameter", "PARAMETER", false},
    {"source", "SOURCE", false},
    {"rank", "RANK", true},
    {"worker", "WORKER", false},
    {"inf_count", "INF", true},
    {"nan_count", "NAN", true},
    {"first_index", "FIRST INDEX", true},
    {"largest_finite", "LARGEST FINITE", true},
    {"time", "TIME", false},
    {NULL, NULL, false},
};

const struct ampctl_column ampctl_model_columns[] = {
    {"name", "MODEL", false},
    {"state", "STATE", false},
    {"epoch", "EPOCH", true},
    {"step", "STEP", true},
    {"applied", "APPLIED", true},
    {"skipped", "SKIPPED", true},
    {"durable_step", "DURABLE", true},
    {"scale", "SCALE", true},
    {"scaler", "SCALER", false},
    {"cast", "CAST", false},
    {"optimizer", "OPTIMIZER", false},
    {"elements", "ELEMENTS", true},
    {"waiting_for", "WAITING FOR", false},
    {NULL, NULL, false},
};

const struct ampctl_column ampctl_worker_columns[] = {
    {"rank", "RANK", true},
    {"name", "WORKER", false},
    {"live", "LIVE", false},
    {"last_step", "LAST STEP", true},
    {"pushes", "PUSHES", true},
    {"overflow_pushes", "WITH OVERFLOW", true},
    {"blocks_present", "BLOCKS HERE", true},
    {"blocks_wanted", "OF", true},
    {"straggles", "STRAGGLES", false},
    {"slow_steps", "SLOW STEPS", true},
    {"nonfinite", "NONFINITE", false},
    {"quarantined", "QUARANTINED", false},
    {"lease_left_ms", "LEASE LEFT MS", true},
    {"peer", "FROM", false},
    {"joins", "JOINS", true},
    {"replacements", "REPLACED", true},
    {"fences", "FENCED", true},
    {NULL, NULL, false},
};

const struct ampctl_column ampctl_checkpoint_columns[] = {
    {"model", "MODEL", false}, {"epoch", "EPOCH", true},      {"step", "STEP", true},  {"applied", "APPLIED", true},
    {"scale", "SCALE", true},  {"size_bytes", "BYTES", true}, {"path", "PATH", false}, {NULL, NULL, false},
};
