#include "server/io/calls/convert.h"

#include "base/hex.h"
#include "server/io/base/counts.h"
#include "server/io/base/server.h"
#include "server/io/calls/waiting.h"
#include "server/io/cluster/peers.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Rows of a page if the request gives no page_size. */
#define PAGE_SIZE_DEFAULT 100

int io_check_shard(const struct ampd_server *server, uint32_t shard, struct amp_error *error)
{
    if (shard == server->options->shard)
        return 0;
    if (server->cluster != NULL && shard < io_peers_shards(server))
        return amp_error_set(
            error, AMP_EUNAVAILABLE, "SHARD_MOVED",
            "shard: %u is not here any more; this process is shard %u now, ask GetStatus where that one is", shard,
            server->options->shard);
    return amp_error_set(error, AMP_EINVAL, "INVALID_FIELD", "shard: %u is not here; this server is shard %u of %u",
                         shard, server->options->shard, io_peers_shards(server));
}

struct ampd_incarnation io_incarnation(bool given, const struct ampd_msg_incarnation *message)
{
    struct ampd_incarnation incarnation = {0, 0};
    bool fits =
        given && message->counter <= AMPD_INCARNATION_NUMBER_MAX && message->boot_id <= AMPD_INCARNATION_SECRET_MAX;
    if (fits)
        incarnation = (struct ampd_incarnation){message->fence,
                                                message->counter | message->boot_id << AMPD_INCARNATION_NUMBER_BITS};
    return incarnation;
}

struct ampd_msg_incarnation io_msg_incarnation(struct ampd_incarnation incarnation)
{
    return (struct ampd_msg_incarnation){.fence = incarnation.fence,
                                         .counter = incarnation.counter & AMPD_INCARNATION_NUMBER_MAX};
}

struct ampd_msg_scale_record io_scale_record(const struct ampd_model_spec *spec, const struct amp_scaler_state *scaler)
{
    return (struct ampd_msg_scale_record){.policy = (enum ampd_msg_scaler_policy)spec->scaler.policy,
                                          .scale = scaler->scale,
                                          .scale_id = scaler->scale_id,
                                          .growth_tracker = scaler->growth_tracker,
                                          .hysteresis_left = scaler->hysteresis_left,
                                          .consecutive_overflows = scaler->consecutive_overflows,
                                          .total_overflows = scaler->total_overflows,
                                          .steps_since_overflow = scaler->steps_since_overflow,
                                          .attempted = scaler->attempted,
                                          .applied = scaler->applied,
                                          .skipped = scaler->skipped};
}

struct amp_scaler_state io_scaler_state(const struct ampd_msg_scale_record *record)
{
    return (struct amp_scaler_state){.scale = record->scale,
                                     .scale_id = record->scale_id,
                                     .growth_tracker = record->growth_tracker,
                                     .hysteresis_left = record->hysteresis_left,
                                     .consecutive_overflows = record->consecutive_overflows,
                                     .total_overflows = record->total_overflows,
                                     .steps_since_overflow = record->steps_since_overflow,
                                     .attempted = record->attempted,
                                     .applied = record->applied,
                                     .skipped = record->skipped};
}

/* ---- how a model stands ---- */

static void fill_worker(const struct ampd_server *server, uint32_t model, uint32_t rank,
                        struct ampd_msg_worker_status *status)
{
    struct ampd_worker_info info;
    ampd_core_worker(server->core, model, rank, io_core_now(server), &info);
    memset(status, 0, sizeof *status);
    memcpy(status->name, info.name, sizeof status->name);
    status->rank = rank;
    status->live = io_worker_is_live(&info);
    status->has_incarnation = true;
    status->incarnation = io_msg_incarnation(info.incarnation);
    status->lease_left_ms = info.lease_left_ms;
    status->pushes = info.pushes;
    status->overflow_pushes = info.overflow_pushes;
    status->last_step = info.last_step;
    status->straggles = info.straggles;
    status->nonfinite = info.nonfinite;
    status->quarantined = info.quarantined;
    (void)snprintf(status->peer, sizeof status->peer, "%s", info.peer);
    status->joins = info.joins;
    status->replacements = info.replacements;
    status->slow_steps = info.slow_steps;
    status->slow_ms = info.slow_ms;
    status->leaves = info.leaves;
    status->fences = info.fences;
    status->blocks_present = (uint32_t)info.blocks_present;
    status->blocks_wanted = (uint32_t)info.blocks_wanted;
    status->join_time.us = io_counts_join_us(&server->counts, model, rank);
    status->has_join_time = status->join_time.us != 0;
}

static int fill_workers(const struct ampd_server *server, uint32_t model, uint32_t world_size,
                        struct ampd_msg_worker_status_list *list)
{
    list->items = calloc(world_size, sizeof *list->items);
    if (list->items == NULL)
        return AMP_ENOMEM;
    for (uint32_t rank = 0; rank < world_size; rank++) {
        fill_worker(server, model, rank, &list->items[list->count]);
        if (list->items[list->count].name[0] != 0) /* a rank that nobody ever held is no worker */
            list->count++;
    }
    return 0;
}

int io_model_status(const struct ampd_server *server, uint32_t model, bool with_workers,
                    struct ampd_msg_model_status *status)
{
    struct ampd_model_info info;
    ampd_core_model(server->core, model, &info);
    memset(status, 0, sizeof *status);
    memcpy(status->name, info.spec->name, sizeof status->name);
    status->state = (enum ampd_msg_model_state)info.state;
    status->epoch = info.epoch;
    status->step = info.step;
    status->applied = info.scaler.applied;
    status->version = info.version;
    status->durable_step = info.durable_step;
    status->has_scale = true;
    status->scale = io_scale_record(info.spec, &info.scaler);
    status->learning_rate = info.lr;
    status->world_size = info.spec->world_size;
    status->parameter_count = info.spec->parameters_count;
    for (uint32_t i = 0; i < info.layout->parameters; i++)
        status->element_count += info.layout->sizes[i];
    status->block_count = (uint32_t)info.layout->blocks;
    status->unstable = info.unstable;
    status->frozen = info.frozen;
    status->recovering = info.recovering;
    status->has_create_time = info.created_us != 0;
    status->create_time.us = info.created_us;
    status->memory_bytes = info.memory_bytes;
    status->base_epoch = info.base_epoch;
    status->base_step = info.base_step;
    io_waiting_text(server, model, &info, status->waiting_for, sizeof status->waiting_for);
    status->waiting_ms = status->waiting_for[0] != 0 ? io_waiting_ms(server, model, &info) : 0;
    status->optimizer = (enum ampd_msg_optimizer_kind)info.spec->optimizer;
    status->cast_dtype = (enum ampd_msg_dtype)info.spec->cast;
    return with_workers ? fill_workers(server, model, info.spec->world_size, &status->workers) : 0;
}

struct ampd_msg_shard_list io_shards(const struct ampd_server *server, const struct ampd_layout *layout,
                                     struct ampd_msg_shard shards[IO_PEERS_MAX])
{
    uint32_t count = io_peers_shards(server);
    for (uint32_t k = 0; k < count; k++) {
        uint64_t first = 0, blocks = 0;
        if (layout != NULL)
            ampd_layout_shard(layout, k, count, &first, &blocks);
        shards[k] =
            (struct ampd_msg_shard){.index = k, .first_block = (uint32_t)first, .block_count = (uint32_t)blocks};
        const char *address = io_peers_address(server, k);
        (void)snprintf(shards[k].endpoint, sizeof shards[k].endpoint, "%s", address);
    }
    return (struct ampd_msg_shard_list){shards, count};
}

/* ---- rows ---- */

void io_overflow_row(const struct ampd_model_spec *spec, uint64_t epoch, uint64_t step,
                     const struct ampd_overflow_row *row, struct ampd_msg_overflow_row *message)
{
    memset(message, 0, sizeof *message);
    message->epoch = epoch;
    message->step = step;
    message->parameter_index = row->parameter;
    if (row->parameter < spec->parameters_count)
        memcpy(message->parameter, spec->parameters[row->parameter].name, sizeof message->parameter);
    if (row->rank == AMPD_RANK_SUM)
        message->source = AMPD_MSG_OVERFLOW_SOURCE_SUM;
    else if (row->rank == AMPD_RANK_RANGE)
        message->source = AMPD_MSG_OVERFLOW_SOURCE_RANGE;
    else
        message->source = AMPD_MSG_OVERFLOW_SOURCE_WORKER;
    message->has_rank = message->source == AMPD_MSG_OVERFLOW_SOURCE_WORKER;
    message->rank = message->has_rank ? row->rank : 0;
    message->inf_count = row->inf_count;
    message->nan_count = row->nan_count;
    message->first_index = row->first_index;
    message->largest_finite = row->largest;
}

void io_name_workers(const struct ampd_server *server, uint32_t model, const struct ampd_model_spec *spec,
                     struct ampd_msg_overflow_row *rows, size_t count, const struct ampd_contributor *contributors,
                     size_t contributors_count)
{
    struct ampd_model_info info;
    ampd_core_model(server->core, model, &info);
    if (info.deleted || info.spec != spec)
        return; /* the model was deleted while the rows were read, and another one may have its index */
    for (size_t i = 0; i < count; i++) {
        const struct ampd_contributor *whose = ampd_contributor_of(contributors, contributors_count, rows[i].rank);
        if (rows[i].has_rank && rows[i].rank < spec->world_size && whose != NULL)
            (void)snprintf(rows[i].worker_name, sizeof rows[i].worker_name, "%s",
                           ampd_core_worker_name(server->core, model, rows[i].rank, whose->incarnation));
    }
}

const struct ampd_checkpoint_record *io_find_checkpoint(const struct ampd_model_info *info, uint64_t epoch,
                                                        uint64_t step)
{
    for (uint32_t i = info->checkpoints_whole; i-- > 0;)
        if (ampd_core_is_whole(info, i) && info->checkpoints[i].epoch <= epoch && info->checkpoints[i].step == step)
            return &info->checkpoints[i];
    return NULL;
}

void io_checkpoint_info(const struct ampd_model_spec *spec, const struct ampd_checkpoint_record *record,
                        struct ampd_msg_checkpoint_info *message)
{
    memset(message, 0, sizeof *message);
    memcpy(message->model, spec->name, sizeof message->model);
    message->epoch = record->epoch;
    message->step = record->step;
    message->version = record->version;
    message->applied = record->version; /* a version is made by each applied step, from 0 */
    message->scale = record->scale;
    message->size_bytes = record->size_bytes;
    amp_hex_write(record->manifest, sizeof record->manifest, message->manifest_hash);
    message->has_create_time = record->at_us != 0;
    message->create_time.us = record->at_us;
    const char *slash = strrchr(record->file, '/');
    (void)snprintf(message->path, sizeof message->path, "%.*s", slash != NULL ? (int)(slash - record->file) : 0,
                   record->file);
    const char *of = strstr(slash != NULL ? slash : record->file, "-of-"); /* shard-<k>-of-<K>.safetensors */
    message->parts = of != NULL ? (uint32_t)strtoul(of + strlen("-of-"), NULL, 10) : 1;
}

static const char *reason_text(const char *reason)
{
    if (strcmp(reason, "CREATED") == 0)
        return "the model was created";
    if (strcmp(reason, "RESTART") == 0)
        return "the server started again and went back to the last checkpoint";
    if (strcmp(reason, "ROLLBACK") == 0)
        return "rolled back";
    if (strcmp(reason, "IMPORT") == 0)
        return "the model came from elsewhere";
    return reason;
}

struct ampd_metrics io_metrics(const struct ampd_msg_push_trailer *trailer)
{
    struct ampd_metrics metrics = {.loss = trailer->has_loss ? trailer->loss : 0,
                                   .loss_workers = trailer->has_loss ? 1 : 0,
                                   .count = trailer->metrics_count};
    for (uint32_t i = 0; i < trailer->metrics_count; i++) {
        memcpy(metrics.items[i].name, trailer->metrics[i].name, sizeof metrics.items[i].name);
        metrics.items[i].value = trailer->metrics[i].value;
        metrics.items[i].workers = 1;
    }
    return metrics;
}

static void fill_metrics(const struct ampd_metrics *metrics, struct ampd_msg_scale_history_row *message)
{
    message->has_loss = metrics->loss_workers > 0;
    message->loss = metrics->loss;
    message->loss_workers = metrics->loss_workers;
    message->metrics_count = metrics->count;
    for (uint32_t i = 0; i < metrics->count; i++) {
        memcpy(message->metrics[i].name, metrics->items[i].name, sizeof message->metrics[i].name);
        message->metrics[i].value = metrics->items[i].value;
        message->metrics[i].workers = metrics->items[i].workers;
    }
}

static void fill_times(const uint64_t times_us[AMPD_STEP_TIMES], struct ampd_msg_scale_history_row *message)
{
    message->has_times = ampd_step_times_known(times_us);
    message->times = (struct ampd_msg_step_times){.apply_us = times_us[AMPD_STEP_TIME_APPLY],
                                                  .pull_us = times_us[AMPD_STEP_TIME_PULL],
                                                  .wait_us = times_us[AMPD_STEP_TIME_WAIT],
                                                  .push_us = times_us[AMPD_STEP_TIME_PUSH],
                                                  .vote_us = times_us[AMPD_STEP_TIME_VOTE]};
}

void io_history_row(const struct ampd_model_spec *spec, const struct ampd_step_row *row,
                    const struct ampd_epoch_record *epoch, struct ampd_msg_scale_history_row *message)
{
    memset(message, 0, sizeof *message);
    bool is_step = row->kind == AMPD_ROW_STEP;
    message->epoch = row->epoch;
    message->step = is_step ? row->step : row->step + 1;
    message->kind = (enum ampd_msg_history_kind)row->kind;
    message->verdict = is_step ? (enum ampd_msg_verdict)row->verdict : AMPD_MSG_VERDICT_UNSPECIFIED;
    message->old_scale = row->scale;
    message->old_scale_id = row->scale_id;
    message->has_record = true;
    message->record = io_scale_record(spec, &row->after.scaler);
    message->version = row->version;
    message->norm = row->norm;
    bool sets_lr = row->kind == AMPD_ROW_LR;
    message->learning_rate = sets_lr ? row->after.lr : row->lr;
    message->old_learning_rate = sets_lr ? row->lr : 0;
    message->clip_coefficient = row->clip;
    bool evicts = row->kind == AMPD_ROW_EVICT;
    message->contributors = evicts ? 0 : row->contributors_count;
    message->rank = evicts ? row->contributors[0].rank : 0;
    message->has_overflow_totals = row->overflow_params != 0;
    message->overflow_totals = (struct ampd_msg_overflow_totals){row->overflow_params, row->inf_total, row->nan_total};
    message->has_decide_time = row->at_us != 0;
    message->decide_time.us = row->at_us;
    message->superseded = row->superseded;
    message->from_step = row->from_step;
    fill_metrics(&row->metrics, message);
    fill_times(row->times_us, message);
    memcpy(message->actor, row->note.actor, sizeof message->actor);
    memcpy(message->reason, row->note.words, sizeof message->reason);
    if (epoch == NULL)
        return;
    message->parent_epoch = epoch->parent;
    message->base_epoch = epoch->base_epoch;
    message->base_step = epoch->base_step;
    message->parent_step = row->parent_step;
    if (message->actor[0] == 0)
        (void)snprintf(message->actor, sizeof message->actor, "server");
    if (message->reason[0] == 0)
        (void)snprintf(message->reason, sizeof message->reason, "%s", reason_text(epoch->reason));
}

/* ---- the answer of a push ---- */

static int fill_range(const struct ampd_model_spec *spec, const struct ampd_step_result *result,
                      struct ampd_msg_range_warning_list *list)
{
    list->items = calloc(result->range_count + 1, sizeof *list->items);
    if (list->items == NULL)
        return AMP_ENOMEM;
    list->count = result->range_count;
    for (uint32_t i = 0; i < result->range_count; i++) {
        struct ampd_msg_range_warning *to = &list->items[i];
        to->parameter_index = result->range[i].parameter;
        to->count = result->range[i].count;
        memcpy(to->parameter, spec->parameters[to->parameter_index].name, sizeof to->parameter);
    }
    return 0;
}

static int fill_overflows(const struct ampd_server *server, uint32_t model, const struct ampd_model_spec *spec,
                          const struct ampd_step_result *result, struct ampd_msg_overflow_row_list *list)
{
    list->items = calloc(result->rows_count + 1, sizeof *list->items);
    if (list->items == NULL)
        return AMP_ENOMEM;
    list->count = result->rows_count;
    for (uint32_t i = 0; i < result->rows_count; i++)
        io_overflow_row(spec, result->epoch, result->step, &result->rows[i], &list->items[i]);
    /* Shard 0 alone knows the names, and a result is the same from every shard: with several shards it has no names. */
    if (io_peers_shards(server) == 1)
        io_name_workers(server, model, spec, list->items, list->count, result->contributors,
                        result->contributors_count);
    return 0;
}

int io_encode_step_result(const struct ampd_server *server, uint32_t model, const struct ampd_step_result *result,
                          struct amp_buf *out)
{
    struct ampd_model_info info;
    ampd_core_model(server->core, model, &info);
    struct ampd_msg_push_response response;
    memset(&response, 0, sizeof response);
    response.has_result = true;
    struct ampd_msg_step_result *to = &response.result;
    to->epoch = result->epoch;
    to->step = result->step;
    to->verdict = (enum ampd_msg_verdict)result->verdict;
    to->applied = result->applied;
    to->version = result->version;
    to->norm = result->norm;
    to->clip_coefficients_count = result->clips_count;
    memcpy(to->clip_coefficients, result->clips, result->clips_count * sizeof *result->clips);
    to->old_scale = result->scale;
    to->old_scale_id = result->scale_id;
    to->new_scale = result->new_scale;
    to->new_scale_id = result->new_scale_id;
    to->has_overflow_totals = result->overflow_params != 0;
    to->overflow_totals =
        (struct ampd_msg_overflow_totals){result->overflow_params, result->inf_total, result->nan_total};
    to->durable_step = result->durable_step;
    to->learning_rate = (double)result->lr;
    to->consecutive_overflows = result->consecutive_overflows;
    to->unstable = result->unstable;
    to->frozen = result->frozen;
    to->failed = result->failed;
    to->range_total = result->range_total;
    int rc = fill_overflows(server, model, info.spec, result, &to->overflows);
    if (rc == 0)
        rc = fill_range(info.spec, result, &to->range_warnings);
    if (rc == 0)
        rc = ampd_msg_push_response_encode(&response, out);
    ampd_msg_push_response_free(&response);
    return rc;
}

int io_page_size(uint32_t given, uint32_t *size, struct amp_error *error)
{
    *size = given != 0 ? given : PAGE_SIZE_DEFAULT;
    if (*size <= AMPD_MSG_ROWS_MAX)
        return 0;
    return amp_error_set(error, AMP_EINVAL, "INVALID_FIELD", "page_size: %u is too many; ask for 1 to %d", given,
                         AMPD_MSG_ROWS_MAX);
}
