/* The fake's calls with one request. */
#include "tests/integration/fake_internal.h"

#include "base/assert.h"
#include "base/crc32c.h"
#include "proto/msg_admin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- answers ---- */

static void spoil(struct fake *fake, struct amp_buf *message)
{
    if (fake_take(fake, &fake->faults.garbage))
        memset(message->data, 0xff, message->size);
}

void fake_reply(struct arpc_call *call, struct amp_buf *body)
{
    spoil(fake_of(call), body);
    (void)arpc_call_reply(call, body->data, body->size);
    amp_buf_close(body);
}

void fake_refuse(struct arpc_call *call, int status, const char *reason, const char *text)
{
    struct fake *fake = fake_of(call);
    char epoch[32], step[32];
    (void)snprintf(epoch, sizeof epoch, "%llu", (unsigned long long)fake->epoch);
    (void)snprintf(step, sizeof step, "%llu", (unsigned long long)fake->step);
    const struct arpc_pair pairs[] = {{"epoch", epoch}, {"step", step}};
    const struct arpc_details details = {.reason = reason, .pairs = pairs, .pair_count = 2};
    arpc_call_finish(call, status, text, &details);
}

static void closed(struct arpc_call *call, const struct arpc_result *result)
{
    (void)call;
    (void)result;
}

static void lay_out(struct fake *fake)
{
    fake->elements = 0;
    for (size_t i = 0; i < fake->spec.parameters.count; i++) {
        const struct ampd_msg_parameter_spec *parameter = &fake->spec.parameters.items[i];
        fake->sizes[i] = 1;
        for (uint32_t d = 0; d < parameter->shape_count; d++)
            fake->sizes[i] *= parameter->shape[d];
        fake->starts[i] = fake->elements;
        fake->elements += (fake->sizes[i] + FLAT_ALIGN - 1) / FLAT_ALIGN * FLAT_ALIGN;
    }
    fake->blocks = (fake->elements + BLOCK_ELEMENTS - 1) / BLOCK_ELEMENTS;
    AMP_ASSERT(fake->blocks <= BLOCKS_MAX);
    fake->values = calloc(fake->elements, sizeof(float));
    fake->initial = calloc(fake->elements, sizeof(float));
    fake->staged = calloc(fake->elements, sizeof(float));
    fake->scale = fake->spec.scaler.has_init_scale ? fake->spec.scaler.init_scale : 65536;
}

static void on_create(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct fake *fake = fake_of(call);
    struct ampd_msg_create_model_request request;
    struct amp_error error = {0};
    fake_count(fake, &fake->counts.creates);
    if (ampd_msg_create_model_request_decode(&request, data, size, &error) != 0) {
        arpc_call_fail(call, &error);
        return;
    }
    struct ampd_msg_create_model_response response = {.created = !fake->has_spec};
    bool same = !fake->has_spec || strcmp(request.spec.name, fake->spec.name) != 0 ||
                request.spec.parameters.count == fake->spec.parameters.count;
    if (!fake->has_spec) {
        fake->spec = request.spec;
        fake->spec.cast_dtype = AMPD_MSG_DTYPE_F32;
        fake->has_spec = true;
        lay_out(fake);
    } else {
        ampd_msg_create_model_request_free(&request);
    }
    if (!same) {
        fake_refuse(call, ARPC_STATUS_ALREADY_EXISTS, "MODEL_EXISTS",
                    "The model exists with another number of parameters.");
        return;
    }
    struct amp_buf out;
    amp_buf_init(&out, AMPD_MSG_SIZE_MAX);
    (void)ampd_msg_create_model_response_encode(&response, &out);
    fake_reply(call, &out);
}

bool fake_no_model(struct arpc_call *call, const char *name)
{
    struct fake *fake = fake_of(call);
    if (fake->has_spec && strcmp(fake->spec.name, name) == 0)
        return false;
    fake_refuse(call, ARPC_STATUS_NOT_FOUND, "MODEL_NOT_FOUND", "There is no such model; create it.");
    return true;
}

/* One server does not tell where shards are. */
static void on_status(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct fake *fake = fake_of(call);
    struct ampd_msg_shard shards[2] = {{.index = 0}, {.index = 1}};
    struct ampd_msg_get_status_response response = {.shard_count = 2, .shards = {shards, 2}};
    struct amp_buf out;
    (void)data;
    (void)size;
    (void)pthread_mutex_lock(&fake->mutex);
    bool away = fake->faults.shard_away > 0;
    bool both = fake->faults.two_shards, refuses = fake->faults.no_status;
    fake->faults.shard_away -= away;
    (void)pthread_mutex_unlock(&fake->mutex);
    for (int k = 0; k < (both ? 2 : 1); k++)
        (void)snprintf(shards[k].endpoint, sizeof shards[k].endpoint, "%s", fake->endpoint);
    if (!away && !both) {
        arpc_call_finish(call, refuses ? ARPC_STATUS_UNAVAILABLE : ARPC_STATUS_UNIMPLEMENTED, "not here", NULL);
        return;
    }
    amp_buf_init(&out, AMPD_MSG_SIZE_MAX);
    (void)ampd_msg_get_status_response_encode(&response, &out);
    fake_reply(call, &out);
}

/* It drains already. */
static void on_drain(struct arpc_call *call, const uint8_t *data, size_t size)
{
    (void)data;
    (void)size;
    fake_count(fake_of(call), &fake_of(call)->counts.drains);
    fake_refuse(call, ARPC_STATUS_UNAVAILABLE, "DRAINING", "the server is ending; connect again");
}

static void on_get(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct fake *fake = fake_of(call);
    struct ampd_msg_get_model_request request;
    if (ampd_msg_get_model_request_decode(&request, data, size, NULL) != 0 || fake_no_model(call, request.model))
        return;
    struct ampd_msg_get_model_response response = {
        .has_spec = true,
        .spec = fake->spec,
        .has_status = true,
        .status = {.epoch = fake->epoch,
                   .step = fake->step,
                   .applied = fake->applied,
                   .version = fake->version,
                   .has_scale = true,
                   .scale = {.scale = fake->scale, .attempted = fake->step - 1, .skipped = fake->skipped}},
        .block_elements = BLOCK_ELEMENTS};
    response.status.state = fake->done     ? AMPD_MSG_MODEL_STATE_DONE
                            : fake->loaded ? AMPD_MSG_MODEL_STATE_RUNNING
                                           : AMPD_MSG_MODEL_STATE_CREATED;
    struct amp_buf out;
    amp_buf_init(&out, AMPD_MSG_SIZE_MAX);
    (void)ampd_msg_get_model_response_encode(&response, &out);
    fake_reply(call, &out);
}

static void on_join(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct fake *fake = fake_of(call);
    struct ampd_msg_join_request request;
    fake_count(fake, &fake->counts.joins);
    if (ampd_msg_join_request_decode(&request, data, size, NULL) != 0 || fake_no_model(call, request.model))
        return;
    (void)pthread_mutex_lock(&fake->mutex);
    fake->counts.instance = request.instance;
    (void)pthread_mutex_unlock(&fake->mutex);
    if (request.has_world_size && request.world_size != fake->spec.world_size) {
        fake_refuse(call, ARPC_STATUS_INVALID_ARGUMENT, "WORLD_SIZE",
                    "WORLD_SIZE differs from the model's world_size.");
        return;
    }
    struct ampd_msg_join_response response = {
        .rank = request.has_rank ? request.rank : 0,
        .world_size = fake->spec.world_size,
        .has_incarnation = true,
        .incarnation = {.fence = 1, .counter = ++fake->counter, .boot_id = BOOT_ID},
        .lease_ms = LEASE_MS,
        .epoch = fake->epoch,
        .step = fake->step,
        .version = fake->version,
        .block_elements = BLOCK_ELEMENTS,
        .has_spec = true,
        .spec = fake->spec,
        .user_state = {fake->user_state, fake->user_state_size}};
    if (fake_take(fake, &fake->faults.other_schedule)) {
        bool was = fake->spec.schedule.kind == AMPD_MSG_SCHEDULE_KIND_WORKER;
        fake->spec.schedule.kind = was ? AMPD_MSG_SCHEDULE_KIND_CONSTANT : AMPD_MSG_SCHEDULE_KIND_WORKER;
        response.spec.has_schedule = fake->spec.has_schedule = true;
        response.spec.schedule = fake->spec.schedule;
    }
    response.spec.parameters.count -= fake_take(fake, &fake->faults.fewer_parameters);
    struct amp_buf out;
    amp_buf_init(&out, AMPD_MSG_SIZE_MAX);
    (void)ampd_msg_join_response_encode(&response, &out);
    fake_reply(call, &out);
}

static void on_keep_alive(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct fake *fake = fake_of(call);
    struct ampd_msg_keep_alive_request request;
    fake_count(fake, &fake->counts.keep_alives);
    if (ampd_msg_keep_alive_request_decode(&request, data, size, NULL) != 0 || fake_no_model(call, request.model))
        return;
    struct ampd_msg_keep_alive_response response = {.epoch = fake->epoch,
                                                    .step = fake->step,
                                                    .incarnation_valid = request.incarnation.counter == fake->counter &&
                                                                         request.incarnation.boot_id == BOOT_ID,
                                                    .lease_ms = LEASE_MS};
    struct amp_buf out;
    amp_buf_init(&out, AMPD_MSG_SIZE_MAX);
    (void)ampd_msg_keep_alive_response_encode(&response, &out);
    fake_reply(call, &out);
}

static void on_leave(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct fake *fake = fake_of(call);
    (void)data;
    (void)size;
    fake_count(fake, &fake->counts.leaves);
    (void)arpc_call_reply(call, NULL, 0);
}

static void on_push_state(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct fake *fake = fake_of(call);
    struct ampd_msg_get_push_state_request request;
    fake_count(fake, &fake->counts.push_states);
    if (ampd_msg_get_push_state_request_decode(&request, data, size, NULL) != 0 || fake_no_model(call, request.model))
        return;
    if (request.epoch != fake->epoch || request.incarnation.counter != fake->counter) {
        fake_refuse(call, ARPC_STATUS_ABORTED, request.epoch != fake->epoch ? "ROLLED_BACK" : "FENCED", "join again");
        return;
    }
    struct ampd_msg_block_range ranges[BLOCKS_MAX];
    struct ampd_msg_get_push_state_response response = {.present = {ranges, 0}, .complete = fake->complete};
    for (uint32_t b = 0; b < fake->blocks; b++)
        if (fake->present[b] && request.step == fake->step)
            ranges[response.present.count++] = (struct ampd_msg_block_range){b, 1};
    struct amp_buf out;
    amp_buf_init(&out, AMPD_MSG_SIZE_MAX);
    (void)ampd_msg_get_push_state_response_encode(&response, &out);
    fake_reply(call, &out);
}

/* It shares no memory. */
static void on_attach(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct fake *fake = fake_of(call);
    struct ampd_msg_attach_memory_response response = {.block_count = 1, .copy_bytes = 1, .slot_bytes = 1};
    uint64_t bytes = fake->blocks * BLOCK_ELEMENTS * sizeof(float);
    struct amp_buf out;
    (void)data;
    (void)size;
    if (fake_take(fake, &fake->faults.swallow_attach))
        return;
    if (fake->faults.memory_socket != NULL) {
        response = (struct ampd_msg_attach_memory_response){
            .block_count = (uint32_t)fake->blocks, .copy_bytes = bytes, .slot_bytes = bytes};
        (void)snprintf(response.socket, sizeof response.socket, "%s", fake->faults.memory_socket);
    } else if (fake_take(fake, &fake->faults.no_memory_blocks)) {
        response = (struct ampd_msg_attach_memory_response){.block_count = 0};
    } else if (!fake_take(fake, &fake->faults.odd_memory)) {
        arpc_call_finish(call, ARPC_STATUS_UNIMPLEMENTED, "not here", NULL);
        return;
    }
    amp_buf_init(&out, AMPD_MSG_SIZE_MAX);
    (void)ampd_msg_attach_memory_response_encode(&response, &out);
    (void)arpc_call_send(call, out.data, out.size, NULL, 0, NULL, NULL);
    amp_buf_close(&out);
}

/* ---- Pull ---- */

static void send_part(struct arpc_call *call, const struct ampd_msg_pull_header *header)
{
    struct amp_buf body, out;
    amp_buf_init(&body, AMPD_MSG_SIZE_MAX);
    amp_buf_init(&out, AMPD_MSG_SIZE_MAX);
    (void)ampd_msg_pull_header_encode(header, &body);
    (void)ampd_block_part_encode(AMPD_BLOCK_HEADER, &body, &out);
    spoil(fake_of(call), &out);
    (void)arpc_call_send(call, out.data, out.size, NULL, 0, NULL, NULL);
    amp_buf_close(&body);
    amp_buf_close(&out);
}

static void send_values(struct arpc_call *call, uint32_t from, uint32_t count)
{
    struct fake *fake = fake_of(call);
    bool damage = fake_take(fake, &fake->faults.damage_pull);
    for (uint32_t b = from; b < from + count; b++) {
        uint64_t first = (uint64_t)b * BLOCK_ELEMENTS, left = fake->elements - first;
        uint32_t size = (uint32_t)((left < BLOCK_ELEMENTS ? left : BLOCK_ELEMENTS) * sizeof(float));
        const float *data = fake->values + first;
        struct ampd_block block = {.index = b, .crc32c = amp_crc32c(0, data, size) ^ damage, .size = size};
        uint8_t head[AMPD_BLOCK_HEAD_MAX];
        size_t head_size = ampd_block_head_encode(&block, head);
        damage = false;
        (void)arpc_call_send(call, head, head_size, data, size, NULL, NULL);
        if (fake_comes(fake, &fake->faults.cut_pull_after)) {
            fake_die(fake); /* at the next turn of the loop: a part of it is on its way by then */
            return;
        }
    }
    arpc_call_finish(call, ARPC_STATUS_OK, NULL, NULL);
}

static void on_pull(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct fake *fake = fake_of(call);
    struct ampd_msg_pull_request request;
    fake_count(fake, &fake->counts.pulls);
    if (ampd_msg_pull_request_decode(&request, data, size, NULL) != 0 || fake_no_model(call, request.model) ||
        fake_take(fake, &fake->faults.swallow_pull))
        return;
    if (!request.latest && request.epoch != fake->epoch) {
        fake_refuse(call, ARPC_STATUS_ABORTED, "ROLLED_BACK", "the epoch is over");
        return;
    }
    if (request.has_step && fake->done) {
        fake_refuse(call, ARPC_STATUS_FAILED_PRECONDITION, "MODEL_DONE", "the model is done");
        return;
    }
    if (request.has_step && request.step != fake->step) {
        fake_refuse(call, ARPC_STATUS_ABORTED, "STALE_STEP", "another step is open");
        return;
    }
    if (request.has_version && request.version != fake->version) {
        fake_refuse(call, ARPC_STATUS_ABORTED, "STALE_VERSION", "another version is held");
        return;
    }
    bool other = fake_take(fake, &fake->faults.other_blocks);
    uint32_t count = request.block_count != 0 ? request.block_count : (uint32_t)fake->blocks - request.first_block;
    struct ampd_msg_pull_header header = {.epoch = fake->epoch,
                                          .step = fake->step,
                                          .version = fake->version,
                                          .scale_id = fake->scale_id,
                                          .scale = fake->scale,
                                          .dtype = AMPD_MSG_DTYPE_F32,
                                          .first_block = request.first_block,
                                          .block_count = count + (other ? 1 : 0)};
    header.unchanged = request.has_have_version && request.have_version.epoch == fake->epoch &&
                       request.have_version.version == fake->version;
    if (header.unchanged)
        header.block_count = 0;
    send_part(call, &header);
    if (header.unchanged)
        arpc_call_finish(call, ARPC_STATUS_OK, NULL, NULL);
    else
        send_values(call, request.first_block, count);
}

#define UNARY(name) const struct arpc_handler fake_##name = {.message = on_##name, .closed = closed}
UNARY(status);
UNARY(drain);
UNARY(create);
UNARY(get);
UNARY(join);
UNARY(keep_alive);
UNARY(leave);
UNARY(push_state);
UNARY(attach);
UNARY(pull);
