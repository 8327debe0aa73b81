#include "client/ampctl/rows.h"

#include "base/log.h"

#include <math.h>
#include <string.h>

/* ---- names ---- */

static const char *name_of(const char *const *names, size_t count, unsigned value)
{
    return value < count ? names[value] : "unknown";
}

#define NAME_OF(names, value) name_of(names, sizeof(names) / sizeof *(names), (unsigned)(value))

static const char *const kinds[] = {"unknown", "step", "epoch", "scale_set", "scale_reset"};
static const char *const verdicts[] = {"unknown", "applied", "skipped_overflow", "skipped_empty", "late"};
static const char *const sources[] = {"unknown", "worker", "sum", "range"};
static const char *const states[] = {"unknown", "created", "loading", "waiting", "running", "stalled", "done"};
static const char *const policies[] = {
    "unknown",         "dynamic", "static", "none", "megatron", "deepspeed", "deepspeed_consecutive",
    "apex_hysteresis", "paddle"};
static const char *const optimizers[] = {"unknown", "sgd", "adamw", "adam", "adagrad", "rmsprop", "lion"};
static const char *const dtypes[] = {"unknown", "f32", "f16", "bf16"};

/* ---- values ---- */

static json_t *count_of(uint64_t value)
{
    return json_integer((json_int_t)value); /* counts stay far below 2^63 */
}

static json_t *real_of(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
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

/* json_object_set_new frees a value that it cannot keep, and takes NULL as a failure: one check at the end serves all. */
static void put(json_t **object, const char *key, json_t *value)
{
    if (json_object_set_new(*object, key, value) != 0) {
        json_decref(*object);
        *object = NULL;
    }
}

/* ---- messages ---- */

static void put_event(json_t **object, const struct ampd_msg_scale_history_row *row)
{
    if (row->kind == AMPD_MSG_HISTORY_KIND_EPOCH) {
        put(object, "parent_epoch", count_of(row->parent_epoch));
        put(object, "base_epoch", count_of(row->base_epoch));
        put(object, "base_step", count_of(row->base_step));
    } else {
        put(object, "from_step", count_of(row->from_step));
    }
    put(object, "actor", text_of(row->actor));
    put(object, "reason", text_of(row->reason));
}

json_t *ampctl_history_row(const struct ampd_msg_scale_history_row *row)
{
    json_t *object = json_object();
    bool step = row->kind == AMPD_MSG_HISTORY_KIND_STEP;
    put(&object, "epoch", count_of(row->epoch));
    put(&object, "step", count_of(row->step));
    put(&object, "kind", json_string(NAME_OF(kinds, row->kind)));
    put(&object, "verdict", step ? json_string(NAME_OF(verdicts, row->verdict)) : json_null());
    put(&object, "old_scale", real_of((double)row->old_scale));
    put(&object, "scale", row->has_record ? real_of((double)row->record.scale) : json_null());
    put(&object, "old_scale_id", count_of(row->old_scale_id));
    put(&object, "scale_id", count_of(row->record.scale_id));
    put(&object, "version", count_of(row->version));
    put(&object, "norm", real_of(row->norm));
    put(&object, "learning_rate", real_of(row->learning_rate));
    put(&object, "clip", real_of((double)row->clip_coefficient));
    put(&object, "contributors", count_of(row->contributors));
    put(&object, "overflow_rows", count_of(row->overflow_totals.rows));
    put(&object, "inf_count", count_of(row->overflow_totals.inf_count));
    put(&object, "nan_count", count_of(row->overflow_totals.nan_count));
    put(&object, "growth_tracker", count_of(row->record.growth_tracker));
    put(&object, "consecutive_overflows", count_of(row->record.consecutive_overflows));
    put(&object, "time", time_of(row->has_decide_time, row->decide_time));
    put(&object, "superseded", json_boolean(row->superseded));
    if (!step)
        put_event(&object, row);
    return object;
}

json_t *ampctl_overflow_row(const struct ampd_msg_overflow_row *row)
{
    json_t *object = json_object();
    put(&object, "epoch", count_of(row->epoch));
    put(&object, "step", count_of(row->step));
    put(&object, "parameter", json_string(row->parameter));
    put(&object, "parameter_index", count_of(row->parameter_index));
    put(&object, "source", json_string(NAME_OF(sources, row->source)));
    put(&object, "rank", row->has_rank ? count_of(row->rank) : json_null());
    put(&object, "worker", text_of(row->worker_name));
    put(&object, "inf_count", count_of(row->inf_count));
    put(&object, "nan_count", count_of(row->nan_count));
    put(&object, "first_index", count_of(row->first_index));
    put(&object, "largest_finite", real_of((double)row->largest_finite));
    put(&object, "time", time_of(row->has_decide_time, row->decide_time));
    put(&object, "superseded", json_boolean(row->superseded));
    return object;
}

json_t *ampctl_worker_row(const struct ampd_msg_worker_status *worker)
{
    json_t *object = json_object();
    put(&object, "name", json_string(worker->name));
    put(&object, "rank", count_of(worker->rank));
    put(&object, "live", json_boolean(worker->live));
    put(&object, "lease_left_ms", count_of(worker->lease_left_ms));
    put(&object, "last_step", count_of(worker->last_step));
    put(&object, "pushes", count_of(worker->pushes));
    put(&object, "overflow_pushes", count_of(worker->overflow_pushes));
    put(&object, "straggles", json_boolean(worker->straggles));
    put(&object, "nonfinite", json_boolean(worker->nonfinite));
    put(&object, "quarantined", json_boolean(worker->quarantined));
    put(&object, "join_time", time_of(worker->has_join_time, worker->join_time));
    return object;
}

static json_t *workers_of(const struct ampd_msg_model_status *model)
{
    json_t *workers = json_array();
    for (size_t i = 0; i < model->workers.count; i++)
        if (json_array_append_new(workers, ampctl_worker_row(&model->workers.items[i])) != 0) {
            json_decref(workers);
            return NULL;
        }
    return workers;
}

json_t *ampctl_model_row(const struct ampd_msg_model_status *model, bool with_workers)
{
    json_t *object = json_object();
    put(&object, "name", json_string(model->name));
    put(&object, "state", json_string(NAME_OF(states, model->state)));
    put(&object, "epoch", count_of(model->epoch));
    put(&object, "step", count_of(model->step));
    put(&object, "version", count_of(model->version));
    put(&object, "attempted", count_of(model->scale.attempted));
    put(&object, "applied", count_of(model->applied));
    put(&object, "skipped", count_of(model->scale.skipped));
    put(&object, "durable_step", count_of(model->durable_step));
    put(&object, "scale", model->has_scale ? real_of((double)model->scale.scale) : json_null());
    put(&object, "scale_id", count_of(model->scale.scale_id));
    put(&object, "scaler", json_string(NAME_OF(policies, model->scale.policy)));
    put(&object, "consecutive_overflows", count_of(model->scale.consecutive_overflows));
    put(&object, "world_size", count_of(model->world_size));
    put(&object, "parameters", count_of(model->parameter_count));
    put(&object, "elements", count_of(model->element_count));
    put(&object, "blocks", count_of(model->block_count));
    put(&object, "optimizer", json_string(NAME_OF(optimizers, model->optimizer)));
    put(&object, "cast", json_string(NAME_OF(dtypes, model->cast_dtype)));
    put(&object, "unstable", json_boolean(model->unstable));
    put(&object, "frozen", json_boolean(model->frozen));
    put(&object, "waiting_for", text_of(model->waiting_for));
    put(&object, "create_time", time_of(model->has_create_time, model->create_time));
    if (with_workers)
        put(&object, "workers", workers_of(model));
    return object;
}

json_t *ampctl_checkpoint_row(const struct ampd_msg_checkpoint_info *checkpoint)
{
    json_t *object = json_object();
    put(&object, "model", json_string(checkpoint->model));
    put(&object, "epoch", count_of(checkpoint->epoch));
    put(&object, "step", count_of(checkpoint->step));
    put(&object, "version", count_of(checkpoint->version));
    put(&object, "applied", count_of(checkpoint->applied));
    put(&object, "scale", real_of((double)checkpoint->scale));
    put(&object, "size_bytes", count_of(checkpoint->size_bytes));
    put(&object, "manifest_hash", text_of(checkpoint->manifest_hash));
    put(&object, "parts", count_of(checkpoint->parts));
    put(&object, "path", text_of(checkpoint->path));
    put(&object, "create_time", time_of(checkpoint->has_create_time, checkpoint->create_time));
    return object;
}

json_t *ampctl_cluster_row(const struct ampd_msg_cluster_shard *shard, bool one_model)
{
    const char *state = shard->leaving ? (shard->up ? "leaving" : "left") : (shard->up ? "up" : "down");
    json_t *object = json_object();
    put(&object, "shard", count_of(shard->index));
    put(&object, "address", json_string(shard->endpoint));
    put(&object, "state", json_string(state));
    put(&object, "since", time_of(shard->has_since, shard->since));
    put(&object, "fence", count_of(shard->fence));
    put(&object, "blocks", count_of(shard->block_count));
    put(&object, "behind", count_of(shard->behind_models));
    put(&object, "awaited", count_of(shard->awaited_models));
    if (!one_model)
        return object;
    put(&object, "decided_step", count_of(shard->decided_step));
    put(&object, "applied_step", count_of(shard->applied_step));
    put(&object, "lag", count_of(shard->decided_step - shard->applied_step));
    return object;
}

json_t *ampctl_replayed_row(const struct ampd_msg_replayed_step *step)
{
    json_t *object = json_object();
    put(&object, "epoch", count_of(step->epoch));
    put(&object, "step", count_of(step->step));
    put(&object, "verdict", json_string(NAME_OF(verdicts, step->verdict)));
    put(&object, "stored_scale", real_of((double)step->stored_scale));
    put(&object, "replayed_scale", real_of((double)step->replayed_scale));
    put(&object, "uncertain", json_boolean(step->uncertain));
    return object;
}

const char *ampctl_policy_name(enum ampd_msg_scaler_policy policy)
{
    return NAME_OF(policies, policy);
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
    {"epoch", "EPOCH", true},      {"step", "STEP", true},       {"kind", "KIND", false},
    {"verdict", "VERDICT", false}, {"old_scale", "SCALE", true}, {"scale", "NEW SCALE", true},
    {"version", "VERSION", true},  {"norm", "NORM", true},       {"learning_rate", "LR", true},
    {"clip", "CLIP", true},        {"inf_count", "INF", true},   {"nan_count", "NAN", true},
    {"time", "TIME", false},       {"reason", "REASON", false},  {NULL, NULL, false},
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
    {"straggles", "STRAGGLES", false},
    {"nonfinite", "NONFINITE", false},
    {"quarantined", "QUARANTINED", false},
    {"lease_left_ms", "LEASE LEFT MS", true},
    {NULL, NULL, false},
};

const struct ampctl_column ampctl_checkpoint_columns[] = {
    {"model", "MODEL", false}, {"epoch", "EPOCH", true},      {"step", "STEP", true},  {"applied", "APPLIED", true},
    {"scale", "SCALE", true},  {"size_bytes", "BYTES", true}, {"path", "PATH", false}, {NULL, NULL, false},
};
