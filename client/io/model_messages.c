/* Requests and answers of the calls that the core makes: its plain structs as messages of ampd.v1, and back. */
#include "client/io/attach.h"
#include "client/io/model_call.h"
#include "client/io/client_spec.h"

#include "base/assert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- requests ---- */

struct ampd_msg_incarnation ampclient_incarnation_message(struct ampclient_incarnation incarnation)
{
    return (struct ampd_msg_incarnation){
        .fence = incarnation.fence, .counter = incarnation.counter, .boot_id = incarnation.boot_id};
}

/* Names of the core's outputs are bounded by its own limit, which is that of the message. */
static void put_name(char field[128], const char *name)
{
    _Static_assert(AMPCLIENT_NAME_MAX == 128, "names of the core fit the messages");
    (void)snprintf(field, 128, "%s", name);
}

static int encode_join(const struct ampclient_model *model, const struct ampclient_output *output, struct amp_buf *out)
{
    struct ampd_msg_join_request message = {.has_rank = output->rank >= 0,
                                            .rank = output->rank >= 0 ? (uint32_t)output->rank : 0,
                                            .has_world_size = output->world_size >= 0,
                                            .world_size = output->world_size >= 0 ? (uint32_t)output->world_size : 0,
                                            .replace = output->replace,
                                            .instance = model->instance};
    put_name(message.model, output->model);
    put_name(message.worker_name, output->worker);
    return ampd_msg_join_request_encode(&message, out);
}

static int encode_keep_alive(const struct ampclient_output *output, struct amp_buf *out)
{
    struct ampd_msg_keep_alive_request message = {.rank = (uint32_t)output->rank,
                                                  .has_incarnation = true,
                                                  .incarnation = ampclient_incarnation_message(output->incarnation)};
    put_name(message.model, output->model);
    return ampd_msg_keep_alive_request_encode(&message, out);
}

static int encode_leave(const struct ampclient_output *output, struct amp_buf *out)
{
    struct ampd_msg_leave_request message = {.rank = (uint32_t)output->rank,
                                             .has_incarnation = true,
                                             .incarnation = ampclient_incarnation_message(output->incarnation)};
    put_name(message.model, output->model);
    return ampd_msg_leave_request_encode(&message, out);
}

/* One that waits for a step names its worker, who is alive as long as it is open. The newest version is anybody's. */
static int encode_pull(const struct ampclient_output *output, struct amp_buf *out)
{
    const struct ampclient_out_pull *pull = &output->u.pull;
    bool waits = pull->by == AMPCLIENT_PULL_STEP;
    struct ampd_msg_pull_request message = {.epoch = pull->epoch,
                                            .has_step = waits,
                                            .step = waits ? pull->number : 0,
                                            .has_version = pull->by == AMPCLIENT_PULL_VERSION,
                                            .version = pull->by == AMPCLIENT_PULL_VERSION ? pull->number : 0,
                                            .latest = pull->by == AMPCLIENT_PULL_LATEST,
                                            .first_block = (uint32_t)pull->first_block,
                                            .block_count = (uint32_t)pull->block_count,
                                            .has_have_version = pull->have_epoch != 0,
                                            .have_version = {pull->have_epoch, pull->have_version},
                                            .shard = output->shard,
                                            .has_rank = waits,
                                            .rank = waits ? (uint32_t)output->rank : 0,
                                            .has_incarnation = waits,
                                            .in_memory = pull->in_memory};
    if (waits)
        message.incarnation = ampclient_incarnation_message(output->incarnation);
    put_name(message.model, output->model);
    return ampd_msg_pull_request_encode(&message, out);
}

static int encode_push_state(const struct ampclient_output *output, struct amp_buf *out)
{
    struct ampd_msg_get_push_state_request message = {.epoch = output->u.push.epoch,
                                                      .step = output->u.push.step,
                                                      .rank = (uint32_t)output->rank,
                                                      .has_incarnation = true,
                                                      .incarnation = ampclient_incarnation_message(output->incarnation),
                                                      .shard = output->shard};
    put_name(message.model, output->model);
    return ampd_msg_get_push_state_request_encode(&message, out);
}

static int encode_push(const struct ampclient_model *model, const struct ampclient_output *output, struct amp_buf *out)
{
    const struct ampclient_out_push *push = &output->u.push;
    struct ampd_msg_push_header header = {.epoch = push->epoch,
                                          .step = push->step,
                                          .rank = (uint32_t)output->rank,
                                          .has_incarnation = true,
                                          .incarnation = ampclient_incarnation_message(output->incarnation),
                                          .scale_id = push->scale_id,
                                          .dtype = (enum ampd_msg_dtype)push->dtype,
                                          .has_weight = true,
                                          .weight = push->weight,
                                          .has_learning_rate = push->has_lr && model->takes_rate,
                                          .learning_rate = push->lr,
                                          .shard = output->shard};
    put_name(header.model, output->model);
    struct amp_buf body;
    amp_buf_init(&body, AMPD_BLOCK_PART_MAX);
    int rc = 0;
    if (push->user_state_size > 0) {
        header.user_state.data = malloc(push->user_state_size); /* the message's bytes are not const */
        header.user_state.size = push->user_state_size;
        if (header.user_state.data == NULL)
            return AMP_ENOMEM;
        memcpy(header.user_state.data, push->user_state, push->user_state_size);
    }
    rc = ampd_msg_push_header_encode(&header, &body);
    if (rc == 0)
        rc = ampd_block_part_encode(AMPD_BLOCK_HEADER, &body, out);
    free(header.user_state.data);
    amp_buf_close(&body);
    return rc;
}

int ampclient_request_encode(const struct ampclient_model *model, const struct ampclient_output *output,
                             struct amp_buf *out)
{
    switch (output->type) {
    case AMPCLIENT_OUT_JOIN:
        return encode_join(model, output, out);
    case AMPCLIENT_OUT_KEEP_ALIVE:
        return encode_keep_alive(output, out);
    case AMPCLIENT_OUT_LEAVE:
        return encode_leave(output, out);
    case AMPCLIENT_OUT_PULL:
        return encode_pull(output, out);
    case AMPCLIENT_OUT_GET_PUSH_STATE:
        return encode_push_state(output, out);
    default:
        AMP_ASSERT(output->type == AMPCLIENT_OUT_PUSH);
        return encode_push(model, output, out);
    }
}

/* ---- answers ---- */

/* What is used of the specification, from the first answer. It never changes, or the worker ends (told_elements). */
static int take_parameters(struct ampclient_model *model, const struct ampd_msg_model_spec *spec)
{
    uint32_t count = (uint32_t)spec->parameters.count;
    struct ampclient_model_parameter *to = calloc(count, sizeof *to);
    if (to == NULL)
        return AMP_ENOMEM;
    for (uint32_t i = 0; i < count; i++) {
        const struct ampd_msg_parameter_spec *from = &spec->parameters.items[i];
        put_name(to[i].name, from->name);
        to[i].dimensions = from->shape_count;
        memcpy(to[i].shape, from->shape, sizeof to[i].shape);
        if (ampclient_parameter_elements(from->shape, from->shape_count, &to[i].elements) != 0) {
            free(to);
            return AMP_EINVAL;
        }
    }
    model->parameters = to;
    model->parameters_count = count;
    model->cast = (enum amp_dtype)spec->cast_dtype;
    return 0;
}

static int prepare_model(struct ampclient_model *model, const struct ampd_msg_join_response *response)
{
    if (!response->has_spec || !response->has_incarnation || response->spec.parameters.count == 0 ||
        response->block_elements == 0 || response->block_elements > AMPD_BLOCK_DATA_MAX / sizeof(float))
        return AMP_EINVAL;
    if (model->scratch == NULL)
        model->scratch = malloc(response->block_elements * sizeof(float));
    if (model->scratch == NULL)
        return AMP_ENOMEM;
    return model->parameters == NULL ? take_parameters(model, &response->spec) : 0;
}

/* Elements of a parameter as Join tells it; 0: it is another one than before, which the core makes an error. */
static uint64_t told_elements(const struct ampclient_model_parameter *known, const struct ampd_msg_parameter_spec *told)
{
    bool same = strcmp(known->name, told->name) == 0 && known->dimensions == told->shape_count;
    for (uint32_t d = 0; same && d < known->dimensions; d++)
        same = known->shape[d] == told->shape[d];
    return same ? known->elements : 0;
}

/* With the mutex: the user's thread reads the same fields. */
static int take_join(struct ampclient_model *model, const struct ampd_msg_join_response *response, uint64_t *elements)
{
    struct ampclient_link *link = model->client->link;
    (void)pthread_mutex_lock(&link->mutex);
    int rc = prepare_model(model, response);
    /* Of a model that was deleted and created again it may be another one. */
    model->takes_rate = response->spec.has_schedule && response->spec.schedule.kind == AMPD_MSG_SCHEDULE_KIND_WORKER;
    for (uint32_t i = 0; rc == 0 && i < model->parameters_count && i < response->spec.parameters.count; i++)
        elements[i] = told_elements(&model->parameters[i], &response->spec.parameters.items[i]);
    (void)pthread_mutex_unlock(&link->mutex);
    return rc;
}

static void answer_join(struct ampclient_core_call *call, struct ampclient_event *event)
{
    struct ampclient_model *model = call->model;
    struct ampclient_ended *ended = &event->u.ended;
    struct ampd_msg_join_response response;
    struct amp_error error = {0};
    uint64_t *elements = NULL;
    int rc = ampd_msg_join_response_decode(&response, call->reply.data, call->reply.size, &error);
    if (rc == 0 && (elements = calloc(response.spec.parameters.count + 1, sizeof *elements)) == NULL)
        rc = AMP_ENOMEM;
    if (rc == 0)
        rc = take_join(model, &response, elements);
    if (rc != 0) {
        (void)ampclient_bad_answer(&error, AMP_EINVAL, "Join");
        ended->code = rc == AMP_ENOMEM ? AMP_ENOMEM : AMP_EINTERNAL;
        ended->text = rc == AMP_ENOMEM ? "There is no memory for the model." : error.text;
    } else {
        ampclient_attach_lost(model); /* its slots were those of the incarnation before */
        ampclient_follow_use(&model->client->link->follow, &response.shards);
        ended->u.join = (struct ampclient_join_answer){
            .rank = response.rank,
            .world_size = response.world_size,
            .shards = (uint32_t)response.shards.count,
            .incarnation = {response.incarnation.fence, response.incarnation.counter, response.incarnation.boot_id},
            .epoch = response.epoch,
            .step = response.step,
            .lease_ms = response.lease_ms,
            .parameters_count = (uint32_t)response.spec.parameters.count,
            .elements = elements,
            .block_elements = response.block_elements,
            .cast = (enum amp_dtype)response.spec.cast_dtype,
            .restored_step = response.restored_step,
            .user_state = response.user_state.data,
            .user_state_size = (uint32_t)response.user_state.size,
        };
    }
    ampclient_model_event(model, event);
    free(elements);
    ampd_msg_join_response_free(&response);
}

static void answer_keep_alive(struct ampclient_core_call *call, struct ampclient_event *event)
{
    struct ampd_msg_keep_alive_response response;
    struct amp_error error = {0};
    if (ampd_msg_keep_alive_response_decode(&response, call->reply.data, call->reply.size, &error) != 0) {
        event->u.ended.code = ampclient_bad_answer(&error, AMP_EINVAL, "KeepAlive");
        event->u.ended.text = error.text;
    } else {
        event->u.ended.u.keep_alive.epoch = response.epoch;
        event->u.ended.u.keep_alive.step = response.step;
        event->u.ended.u.keep_alive.valid = response.incarnation_valid;
        event->u.ended.u.keep_alive.taken_by = response.taken_by;
        event->u.ended.u.keep_alive.waiting_for = response.waiting_for;
    }
    ampclient_model_event(call->model, event);
}

static void tell_push_state(struct ampclient_core_call *call, const struct ampd_msg_get_push_state_response *response)
{
    size_t count = response->present.count;
    struct ampclient_range *ranges = calloc(count + 1, sizeof *ranges);
    /* Without memory: as if nothing had come through; sending a block again is harmless. */
    for (size_t i = 0; ranges != NULL && i < count; i++)
        ranges[i] = (struct ampclient_range){response->present.items[i].first, response->present.items[i].count};
    struct ampclient_event state = {.type = AMPCLIENT_EVENT_PUSH_STATE, .call = call->number};
    state.u.push_state.ranges = ranges;
    state.u.push_state.ranges_count = ranges != NULL ? count : 0;
    ampclient_model_event(call->model, &state);
    free(ranges);
}

static void answer_push_state(struct ampclient_core_call *call, struct ampclient_event *event)
{
    struct ampd_msg_get_push_state_response response;
    struct amp_error error = {0};
    if (ampd_msg_get_push_state_response_decode(&response, call->reply.data, call->reply.size, &error) != 0) {
        event->u.ended.code = ampclient_bad_answer(&error, AMP_EINVAL, "GetPushState");
        event->u.ended.text = error.text;
    } else {
        tell_push_state(call, &response);
    }
    ampclient_model_event(call->model, event);
    ampd_msg_get_push_state_response_free(&response);
}

static struct ampclient_core_result result_of(const struct ampd_msg_step_result *from)
{
    struct ampclient_core_result to = {.epoch = from->epoch,
                                       .step = from->step,
                                       .verdict = (enum ampclient_core_verdict)from->verdict,
                                       .applied = from->applied,
                                       .version = from->version,
                                       .norm = from->norm,
                                       .clip = from->clip_coefficients_count > 0 ? from->clip_coefficients[0] : 0,
                                       .scale = from->old_scale,
                                       .new_scale = from->new_scale,
                                       .scale_id = from->old_scale_id,
                                       .new_scale_id = from->new_scale_id,
                                       .overflow_parameters = from->overflow_totals.rows,
                                       .durable_step = from->durable_step};
    for (size_t i = 0; i < from->range_warnings.count; i++)
        to.range_warnings += from->range_warnings.items[i].count;
    return to;
}

/* Shard 0 alone knows the names of workers; where it has answered, the others have nothing to add. */
static void hear_overflows(struct ampclient_core_call *call, const struct ampd_msg_step_result *from)
{
    struct ampclient_model *model = call->model;
    struct ampclient_model_overflows *received = &model->received;
    (void)pthread_mutex_lock(&model->client->link->mutex);
    if (call->shard == 0 || received->epoch != from->epoch || received->step != from->step) {
        received->epoch = from->epoch;
        received->step = from->step;
        received->count = 0;
        for (size_t i = 0; i < from->overflows.count && received->count < AMPCLIENT_MODEL_OVERFLOWS_MAX; i++) {
            const struct ampd_msg_overflow_row *row = &from->overflows.items[i];
            if (row->parameter_index >= model->parameters_count)
                continue;
            put_name(received->workers[received->count], row->worker_name);
            received->rows[received->count++] =
                (struct ampclient_overflow){.parameter = model->parameters[row->parameter_index].name,
                                            .parameter_index = row->parameter_index,
                                            .rank = row->has_rank ? (int32_t)row->rank : -1,
                                            .inf_count = row->inf_count,
                                            .nan_count = row->nan_count,
                                            .first_index = row->first_index,
                                            .largest_finite = row->largest_finite};
        }
    }
    (void)pthread_mutex_unlock(&model->client->link->mutex);
}

static void answer_push(struct ampclient_core_call *call, struct ampclient_event *event)
{
    struct ampd_msg_push_response response;
    struct amp_error error = {0};
    int rc = ampd_msg_push_response_decode(&response, call->reply.data, call->reply.size, &error);
    if (rc != 0 || !response.has_result || response.result.verdict < AMPD_MSG_VERDICT_APPLIED ||
        response.result.verdict > AMPD_MSG_VERDICT_LATE) {
        event->u.ended.code = ampclient_bad_answer(&error, AMP_EINVAL, "Push");
        event->u.ended.text = error.text;
    } else {
        event->u.ended.u.push = result_of(&response.result);
        hear_overflows(call, &response.result);
    }
    ampclient_model_event(call->model, event);
    ampd_msg_push_response_free(&response);
}

void ampclient_answer(struct ampclient_core_call *call, struct ampclient_event *event)
{
    switch (call->kind) {
    case AMPCLIENT_OUT_JOIN:
        answer_join(call, event);
        break;
    case AMPCLIENT_OUT_KEEP_ALIVE:
        answer_keep_alive(call, event);
        break;
    case AMPCLIENT_OUT_GET_PUSH_STATE:
        answer_push_state(call, event);
        break;
    case AMPCLIENT_OUT_PUSH:
        answer_push(call, event);
        break;
    default: /* Leave and Pull have nothing more to say */
        ampclient_model_event(call->model, event);
        break;
    }
}
