#include "tests/integration/fake_ampd.h"

#include "base/assert.h"
#include "base/crc32c.h"
#include "base/list.h"
#include "proto/block.h"
#include "proto/msg.h"
#include "rpc/arpc_server.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#define BLOCK_ELEMENTS 65536
#define BLOCKS_MAX     64
#define FLAT_ALIGN     64
#define LEARNING_RATE  0.5f
#define LEASE_MS       3000
#define SERVICE        "ampd.v1.ParameterService"

struct fake {
    pthread_t thread;
    pthread_mutex_t mutex; /* faults, counts, values, user_state, wanted_* */
    uv_loop_t loop;
    uv_async_t async;
    uv_timer_t relisten, verdict;
    struct arpc_server *server;
    int port;
    char endpoint[64];
    bool stopping, cut_wanted, cutting;
    bool dead; /* between the event of a cut and the cut itself: nothing is done or answered */
    struct fake_faults faults;
    struct fake_counts counts;
    /* the model */
    struct ampd_msg_model_spec spec;
    bool has_spec, loaded, done;
    uint64_t sizes[16], starts[16], elements, blocks;
    float *values, *initial;
    uint64_t epoch, step, version, applied, skipped, scale_id;
    float scale;
    uint64_t counter; /* of incarnations */
    /* the push of the open step */
    float *staged;
    bool present[BLOCKS_MAX];
    bool complete;
    struct arpc_call *waiting; /* its answer is due */
    struct ampd_msg_step_result last;
    uint8_t user_state[AMPD_MSG_USER_STATE_MAX];
    size_t user_state_size;
};

/* A stream of blocks. */
struct stream {
    struct fake *fake;
    struct arpc_call *call;
    struct ampd_block_reader reader;
    bool push;
    bool ignore; /* answered already */
    bool trailer;
};

static struct fake *fake_of(struct arpc_call *call)
{
    return arpc_call_server_arg(call);
}

/* ---- faults ---- */

static void want_cut(struct fake *fake)
{
    (void)pthread_mutex_lock(&fake->mutex);
    fake->cut_wanted = true;
    (void)pthread_mutex_unlock(&fake->mutex);
    (void)uv_async_send(&fake->async);
}

static void cut(struct fake *fake)
{
    fake->dead = true;
    want_cut(fake);
}

/* Counts a fault's number down; true when it comes to 0 now. */
static bool comes(struct fake *fake, uint32_t *left)
{
    (void)pthread_mutex_lock(&fake->mutex);
    bool now = *left > 0 && --*left == 0;
    (void)pthread_mutex_unlock(&fake->mutex);
    return now;
}

static bool take_flag(struct fake *fake, bool *flag)
{
    (void)pthread_mutex_lock(&fake->mutex);
    bool was = *flag;
    *flag = false;
    (void)pthread_mutex_unlock(&fake->mutex);
    return was;
}

static void count(struct fake *fake, uint32_t *counter)
{
    (void)pthread_mutex_lock(&fake->mutex);
    ++*counter;
    (void)pthread_mutex_unlock(&fake->mutex);
}

static int admit(struct arpc_call *call, void *arg, struct amp_error *error)
{
    struct fake *fake = arg;
    (void)pthread_mutex_lock(&fake->mutex);
    bool refuse = fake->faults.unavailable > 0;
    if (refuse)
        fake->faults.unavailable--;
    (void)pthread_mutex_unlock(&fake->mutex);
    (void)call;
    return refuse ? amp_error_set(error, AMP_EUNAVAILABLE, "DRAINING", "not now") : 0;
}

/* ---- answers ---- */

static void reply(struct arpc_call *call, struct amp_buf *body)
{
    (void)arpc_call_reply(call, body->data, body->size);
    amp_buf_close(body);
}

static void refuse(struct arpc_call *call, int status, const char *reason, const char *text)
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
    count(fake, &fake->counts.creates);
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
        refuse(call, ARPC_STATUS_ALREADY_EXISTS, "MODEL_EXISTS", "The model exists with another number of parameters.");
        return;
    }
    struct amp_buf out;
    amp_buf_init(&out, AMPD_MSG_SIZE_MAX);
    (void)ampd_msg_create_model_response_encode(&response, &out);
    reply(call, &out);
}

static bool no_model(struct arpc_call *call, const char *name)
{
    struct fake *fake = fake_of(call);
    if (fake->has_spec && strcmp(fake->spec.name, name) == 0)
        return false;
    refuse(call, ARPC_STATUS_NOT_FOUND, "MODEL_NOT_FOUND", "There is no such model; create it.");
    return true;
}

static void on_get(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct fake *fake = fake_of(call);
    struct ampd_msg_get_model_request request;
    if (ampd_msg_get_model_request_decode(&request, data, size, NULL) != 0 || no_model(call, request.model))
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
    reply(call, &out);
}

static void on_join(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct fake *fake = fake_of(call);
    struct ampd_msg_join_request request;
    count(fake, &fake->counts.joins);
    if (ampd_msg_join_request_decode(&request, data, size, NULL) != 0 || no_model(call, request.model))
        return;
    if (request.has_world_size && request.world_size != fake->spec.world_size) {
        refuse(call, ARPC_STATUS_INVALID_ARGUMENT, "WORLD_SIZE", "WORLD_SIZE differs from the model's world_size.");
        return;
    }
    struct ampd_msg_join_response response = {.rank = request.has_rank ? request.rank : 0,
                                              .world_size = fake->spec.world_size,
                                              .has_incarnation = true,
                                              .incarnation = {.fence = 1, .counter = ++fake->counter, .boot_id = 77},
                                              .lease_ms = LEASE_MS,
                                              .epoch = fake->epoch,
                                              .step = fake->step,
                                              .version = fake->version,
                                              .block_elements = BLOCK_ELEMENTS,
                                              .has_spec = true,
                                              .spec = fake->spec,
                                              .user_state = {fake->user_state, fake->user_state_size}};
    struct amp_buf out;
    amp_buf_init(&out, AMPD_MSG_SIZE_MAX);
    (void)ampd_msg_join_response_encode(&response, &out);
    reply(call, &out);
}

static void on_keep_alive(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct fake *fake = fake_of(call);
    struct ampd_msg_keep_alive_request request;
    count(fake, &fake->counts.keep_alives);
    if (ampd_msg_keep_alive_request_decode(&request, data, size, NULL) != 0 || no_model(call, request.model))
        return;
    struct ampd_msg_keep_alive_response response = {.epoch = fake->epoch,
                                                    .step = fake->step,
                                                    .incarnation_valid = request.incarnation.counter == fake->counter &&
                                                                         request.incarnation.boot_id == 77,
                                                    .lease_ms = LEASE_MS};
    struct amp_buf out;
    amp_buf_init(&out, AMPD_MSG_SIZE_MAX);
    (void)ampd_msg_keep_alive_response_encode(&response, &out);
    reply(call, &out);
}

static void on_leave(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct fake *fake = fake_of(call);
    (void)data;
    (void)size;
    count(fake, &fake->counts.leaves);
    (void)arpc_call_reply(call, NULL, 0);
}

static void on_push_state(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct fake *fake = fake_of(call);
    struct ampd_msg_get_push_state_request request;
    count(fake, &fake->counts.push_states);
    if (ampd_msg_get_push_state_request_decode(&request, data, size, NULL) != 0 || no_model(call, request.model))
        return;
    if (request.epoch != fake->epoch || request.incarnation.counter != fake->counter) {
        refuse(call, ARPC_STATUS_ABORTED, request.epoch != fake->epoch ? "ROLLED_BACK" : "FENCED", "join again");
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
    reply(call, &out);
}

/* ---- Pull ---- */

static void send_part(struct arpc_call *call, const struct ampd_msg_pull_header *header)
{
    struct amp_buf body, out;
    amp_buf_init(&body, AMPD_MSG_SIZE_MAX);
    amp_buf_init(&out, AMPD_MSG_SIZE_MAX);
    (void)ampd_msg_pull_header_encode(header, &body);
    (void)ampd_block_part_encode(AMPD_BLOCK_HEADER, &body, &out);
    (void)arpc_call_send(call, out.data, out.size, NULL, 0, NULL, NULL);
    amp_buf_close(&body);
    amp_buf_close(&out);
}

static void send_values(struct arpc_call *call)
{
    struct fake *fake = fake_of(call);
    bool damage = take_flag(fake, &fake->faults.damage_pull);
    for (uint32_t b = 0; b < fake->blocks; b++) {
        uint64_t first = (uint64_t)b * BLOCK_ELEMENTS, left = fake->elements - first;
        uint32_t size = (uint32_t)((left < BLOCK_ELEMENTS ? left : BLOCK_ELEMENTS) * sizeof(float));
        const float *data = fake->values + first;
        struct ampd_block block = {.index = b, .crc32c = amp_crc32c(0, data, size) ^ damage, .size = size};
        uint8_t head[AMPD_BLOCK_HEAD_MAX];
        size_t head_size = ampd_block_head_encode(&block, head);
        damage = false;
        (void)arpc_call_send(call, head, head_size, data, size, NULL, NULL);
        if (comes(fake, &fake->faults.cut_pull_after)) {
            cut(fake); /* at the next turn of the loop: a part of it is on its way by then */
            return;
        }
    }
    arpc_call_finish(call, ARPC_STATUS_OK, NULL, NULL);
}

static void on_pull(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct fake *fake = fake_of(call);
    struct ampd_msg_pull_request request;
    count(fake, &fake->counts.pulls);
    if (ampd_msg_pull_request_decode(&request, data, size, NULL) != 0 || no_model(call, request.model))
        return;
    if (!request.latest && request.epoch != fake->epoch) {
        refuse(call, ARPC_STATUS_ABORTED, "ROLLED_BACK", "the epoch is over");
        return;
    }
    if (!request.latest && fake->done) {
        refuse(call, ARPC_STATUS_FAILED_PRECONDITION, "MODEL_DONE", "the model is done");
        return;
    }
    if (!request.latest && request.step != fake->step) {
        refuse(call, ARPC_STATUS_ABORTED, "STALE_STEP", "another step is open");
        return;
    }
    struct ampd_msg_pull_header header = {.epoch = fake->epoch,
                                          .step = fake->step,
                                          .version = fake->version,
                                          .scale_id = fake->scale_id,
                                          .scale = fake->scale,
                                          .dtype = AMPD_MSG_DTYPE_F32,
                                          .block_count = (uint32_t)fake->blocks};
    header.unchanged = request.has_have_version && request.have_version.epoch == fake->epoch &&
                       request.have_version.version == fake->version;
    if (header.unchanged)
        header.block_count = 0;
    send_part(call, &header);
    if (header.unchanged)
        arpc_call_finish(call, ARPC_STATUS_OK, NULL, NULL);
    else
        send_values(call);
}

/* ---- Load and Push ---- */

static void answer_push(struct fake *fake, struct arpc_call *call, const struct ampd_msg_step_result *result)
{
    struct ampd_msg_push_response response = {.has_result = true, .result = *result};
    struct amp_buf out;
    amp_buf_init(&out, AMPD_MSG_SIZE_MAX);
    (void)ampd_msg_push_response_encode(&response, &out);
    (void)fake;
    reply(call, &out);
}

/* One worker: its gradient is the mean. */
static void decide(struct fake *fake)
{
    struct ampd_msg_step_result result = {.epoch = fake->epoch,
                                          .step = fake->step,
                                          .verdict = AMPD_MSG_VERDICT_APPLIED,
                                          .old_scale = fake->scale,
                                          .old_scale_id = fake->scale_id};
    for (uint64_t i = 0; i < fake->elements; i++)
        if (!isfinite(fake->staged[i]))
            result.overflow_totals.inf_count++;
    (void)pthread_mutex_lock(&fake->mutex);
    if (result.overflow_totals.inf_count > 0) {
        result.verdict = AMPD_MSG_VERDICT_SKIPPED_OVERFLOW;
        result.has_overflow_totals = true;
        result.overflow_totals.rows = 1;
        fake->scale /= 2;
        fake->scale_id++;
        fake->skipped++;
    } else {
        for (uint64_t i = 0; i < fake->elements; i++)
            fake->values[i] -= LEARNING_RATE * fake->staged[i] / fake->scale;
        fake->version++;
        fake->applied++;
    }
    (void)pthread_mutex_unlock(&fake->mutex);
    result.applied = fake->applied;
    result.version = fake->version;
    result.new_scale = fake->scale;
    result.new_scale_id = fake->scale_id;
    fake->last = result;
    fake->done = fake->spec.max_steps > 0 && fake->step == fake->spec.max_steps;
    fake->step++;
    fake->complete = false;
    memset(fake->present, 0, sizeof fake->present);
    memset(fake->staged, 0, fake->elements * sizeof(float));
}

static void on_verdict(uv_timer_t *timer)
{
    struct fake *fake = timer->data;
    if (fake->dead)
        return;
    decide(fake);
    if (fake->waiting != NULL) {
        answer_push(fake, fake->waiting, &fake->last);
        arpc_call_unref(fake->waiting);
        fake->waiting = NULL;
    }
}

static int push_header(struct stream *stream, const uint8_t *data, size_t size, struct amp_error *error)
{
    struct fake *fake = stream->fake;
    struct ampd_msg_push_header header;
    int rc = ampd_msg_push_header_decode(&header, data, size, error);
    if (rc != 0)
        return rc;
    stream->ignore = true;
    if (take_flag(fake, &fake->faults.swallow_push)) {
    } else if (take_flag(fake, &fake->faults.answer_early)) {
        struct ampd_msg_step_result late = {
            .epoch = fake->epoch, .step = header.step, .verdict = AMPD_MSG_VERDICT_LATE};
        answer_push(fake, stream->call, &late);
        fake->step++;
    } else if (header.epoch != fake->epoch) {
        refuse(stream->call, ARPC_STATUS_ABORTED, "ROLLED_BACK", "the epoch is over");
    } else if (header.incarnation.counter != fake->counter) {
        refuse(stream->call, ARPC_STATUS_ABORTED, "FENCED", "join again");
    } else if (header.step + 1 == fake->step && fake->last.step == header.step) {
        answer_push(fake, stream->call, &fake->last);
    } else if (header.step != fake->step) {
        refuse(stream->call, ARPC_STATUS_ABORTED, "STALE_STEP", "another step is open");
    } else {
        stream->ignore = false;
        (void)pthread_mutex_lock(&fake->mutex);
        fake->user_state_size = header.user_state.size;
        if (header.user_state.size > 0)
            memcpy(fake->user_state, header.user_state.data, header.user_state.size);
        (void)pthread_mutex_unlock(&fake->mutex);
    }
    ampd_msg_push_header_free(&header);
    return 0;
}

static int on_part(void *arg, enum ampd_block_part part, const uint8_t *data, size_t size, struct amp_error *error)
{
    struct stream *stream = arg;
    if (part == AMPD_BLOCK_TRAILER) {
        stream->trailer = true;
        return 0;
    }
    if (stream->push)
        return push_header(stream, data, size, error);
    struct ampd_msg_load_header header;
    int rc = ampd_msg_load_header_decode(&header, data, size, error);
    if (rc == 0 && no_model(stream->call, header.model))
        stream->ignore = true;
    return rc;
}

static int on_begin(void *arg, const struct ampd_block *block, uint8_t **destination, struct amp_error *error)
{
    struct stream *stream = arg;
    struct fake *fake = stream->fake;
    if (stream->ignore || fake->dead)
        return 0;
    uint64_t first = (uint64_t)block->index * BLOCK_ELEMENTS;
    uint64_t left = block->index < fake->blocks ? fake->elements - first : 0;
    if (block->size != (left < BLOCK_ELEMENTS ? left : BLOCK_ELEMENTS) * sizeof(float))
        return amp_error_set(error, AMP_EINVAL, "BLOCK_SIZE", "block %u has a wrong size", block->index);
    if (stream->push && fake->present[block->index])
        return 0;
    *destination = (uint8_t *)((stream->push ? fake->staged : fake->values) + first);
    return 0;
}

static int on_end(void *arg, const struct ampd_block *block, bool intact, struct amp_error *error)
{
    struct stream *stream = arg;
    struct fake *fake = stream->fake;
    if (!intact || (stream->push && take_flag(fake, &fake->faults.refuse_push_block)))
        return amp_error_set(error, AMP_EDATALOSS, "BLOCK_CHECKSUM", "block %u is damaged", block->index);
    if (!stream->push) {
        if (comes(fake, &fake->faults.cut_load_after))
            cut(fake);
        return 0;
    }
    count(fake, &fake->counts.push_blocks);
    fake->present[block->index] = true;
    if (comes(fake, &fake->faults.cut_push_after))
        cut(fake);
    return 0;
}

static const struct ampd_block_reader_ops reader_ops = {.part_cb = on_part, .begin_cb = on_begin, .end_cb = on_end};

static void stream_started(struct arpc_call *call)
{
    struct fake *fake = fake_of(call);
    struct stream *stream = calloc(1, sizeof *stream);
    AMP_ASSERT(stream != NULL);
    stream->fake = fake;
    stream->call = call;
    stream->push = strcmp(arpc_call_method(call)->name, "Push") == 0;
    count(fake, stream->push ? &fake->counts.pushes : &fake->counts.loads);
    ampd_block_reader_init(&stream->reader, &reader_ops, stream, stream->push);
    arpc_call_set_user(call, stream);
}

static void stream_check(struct stream *stream, int rc, const struct amp_error *error)
{
    if (rc == 0 || stream->ignore || stream->fake->dead)
        return;
    stream->ignore = true;
    arpc_call_fail(stream->call, error);
}

static void stream_begin(struct arpc_call *call, size_t size)
{
    struct stream *stream = arpc_call_user(call);
    struct amp_error error = {0};
    stream_check(stream, ampd_block_reader_begin(&stream->reader, size, &error), &error);
}

static void stream_bytes(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct stream *stream = arpc_call_user(call);
    struct amp_error error = {0};
    stream_check(stream, ampd_block_reader_bytes(&stream->reader, data, size, &error), &error);
}

static void stream_end(struct arpc_call *call)
{
    struct stream *stream = arpc_call_user(call);
    struct amp_error error = {0};
    stream_check(stream, ampd_block_reader_end(&stream->reader, &error), &error);
}

static void push_complete(struct stream *stream)
{
    struct fake *fake = stream->fake;
    fake->complete = true;
    if (fake->waiting != NULL)
        arpc_call_unref(fake->waiting);
    fake->waiting = arpc_call_ref(stream->call);
    if (!uv_is_active((uv_handle_t *)&fake->verdict))
        (void)uv_timer_start(&fake->verdict, on_verdict, fake->faults.verdict_after_ms, 0);
}

static void stream_half_close(struct arpc_call *call)
{
    struct stream *stream = arpc_call_user(call);
    struct fake *fake = stream->fake;
    if (stream->ignore || fake->dead)
        return;
    if (stream->push) {
        push_complete(stream);
        return;
    }
    struct ampd_msg_load_response response = {.already_loaded = fake->loaded};
    memcpy(fake->initial, fake->values, fake->elements * sizeof(float));
    fake->loaded = true;
    struct amp_buf out;
    amp_buf_init(&out, AMPD_MSG_SIZE_MAX);
    (void)ampd_msg_load_response_encode(&response, &out);
    reply(call, &out);
}

static void stream_closed(struct arpc_call *call, const struct arpc_result *result)
{
    struct stream *stream = arpc_call_user(call);
    (void)result;
    if (stream->fake->waiting == call) {
        arpc_call_unref(call);
        stream->fake->waiting = NULL;
    }
    ampd_block_reader_close(&stream->reader);
    free(stream);
}

/* ---- the server ---- */

#define UNARY(name) static const struct arpc_handler name##_handler = {.message = on_##name, .closed = closed}
UNARY(create);
UNARY(get);
UNARY(join);
UNARY(keep_alive);
UNARY(leave);
UNARY(push_state);
UNARY(pull);
static const struct arpc_handler stream_handler = {.started = stream_started,
                                                   .message_begin = stream_begin,
                                                   .message_bytes = stream_bytes,
                                                   .message_end = stream_end,
                                                   .half_close = stream_half_close,
                                                   .closed = stream_closed};

static const struct arpc_method methods[] = {
    {SERVICE, "CreateModel", ARPC_UNARY, true, 0, 1 << 20, &create_handler},
    {SERVICE, "GetModel", ARPC_UNARY, true, 0, 1 << 20, &get_handler},
    {SERVICE, "Join", ARPC_UNARY, true, 0, 1 << 20, &join_handler},
    {SERVICE, "KeepAlive", ARPC_UNARY, true, 0, 1 << 16, &keep_alive_handler},
    {SERVICE, "Leave", ARPC_UNARY, true, 0, 1 << 16, &leave_handler},
    {SERVICE, "GetPushState", ARPC_UNARY, true, 0, 1 << 16, &push_state_handler},
    {SERVICE, "Pull", ARPC_SERVER_STREAM, true, 0, 1 << 16, &pull_handler},
    {SERVICE, "Load", ARPC_CLIENT_STREAM, true, 0, 1 << 20, &stream_handler},
    {SERVICE, "Push", ARPC_CLIENT_STREAM, true, 0, 1 << 20, &stream_handler},
};

static bool start_server(struct fake *fake)
{
    const struct arpc_server_options options = {.size = sizeof options, .arg = fake, .admit_cb = admit};
    struct amp_error error = {0};
    int port;
    if (arpc_server_new(&fake->loop, &options, methods, sizeof methods / sizeof *methods, &fake->server, &error) != 0 ||
        arpc_server_listen(fake->server, fake->endpoint, &port, &error) != 0) {
        (void)fprintf(stderr, "fake ampd: %s\n", error.text);
        return false;
    }
    if (fake->port == 0) {
        /* Before the thread starts; from then on the text is constant, and others read it. */
        fake->port = port;
        (void)snprintf(fake->endpoint, sizeof fake->endpoint, "127.0.0.1:%d", port);
    }
    return true;
}

static void on_relisten(uv_timer_t *timer)
{
    AMP_ASSERT(start_server(timer->data));
}

static void close_handles(struct fake *fake)
{
    uv_close((uv_handle_t *)&fake->relisten, NULL);
    uv_close((uv_handle_t *)&fake->verdict, NULL);
    uv_close((uv_handle_t *)&fake->async, NULL);
}

/* All is cut, as by kill -9; it starts again with or without what it had in memory. */
static void on_cut(void *arg)
{
    struct fake *fake = arg;
    (void)pthread_mutex_lock(&fake->mutex);
    fake->server = NULL;
    fake->cutting = fake->dead = false;
    fake->counts.cuts++;
    bool stopping = fake->stopping;
    if (fake->faults.roll_back) {
        fake->faults.roll_back = false;
        fake->epoch++;
        fake->step = 1;
        fake->version = fake->applied = 0;
        fake->complete = false;
        memset(fake->present, 0, sizeof fake->present);
        memset(&fake->last, 0, sizeof fake->last);
        memcpy(fake->values, fake->initial, fake->elements * sizeof(float));
    }
    uint64_t down_ms = fake->faults.down_ms;
    (void)pthread_mutex_unlock(&fake->mutex);
    if (stopping)
        close_handles(fake);
    else
        (void)uv_timer_start(&fake->relisten, on_relisten, down_ms, 0);
}

static void on_async(uv_async_t *async)
{
    struct fake *fake = async->data;
    (void)pthread_mutex_lock(&fake->mutex);
    bool stopping = fake->stopping, close_now = (fake->cut_wanted || stopping) && fake->server != NULL;
    bool under_way = fake->cutting; /* on_cut sees to the rest */
    fake->cut_wanted = false;
    fake->cutting = fake->cutting || close_now;
    (void)pthread_mutex_unlock(&fake->mutex);
    if (under_way)
        return;
    if (close_now)
        arpc_server_close(fake->server, on_cut, fake);
    else if (stopping)
        close_handles(fake);
}

static void *fake_main(void *arg)
{
    struct fake *fake = arg;
    (void)uv_run(&fake->loop, UV_RUN_DEFAULT);
    return NULL;
}

/* A port that is free now. */
static int free_port(uv_loop_t *loop)
{
    uv_tcp_t socket;
    struct sockaddr_in address;
    int size = sizeof address;
    AMP_ASSERT(uv_ip4_addr("127.0.0.1", 0, &address) == 0 && uv_tcp_init(loop, &socket) == 0 &&
               uv_tcp_bind(&socket, (const struct sockaddr *)&address, 0) == 0 &&
               uv_tcp_getsockname(&socket, (struct sockaddr *)&address, &size) == 0);
    uv_close((uv_handle_t *)&socket, NULL);
    (void)uv_run(loop, UV_RUN_DEFAULT);
    return (address.sin_port >> 8 | address.sin_port << 8) &
           0xffff; /* network order; little-endian only, as the wire */
}

struct fake *fake_new_later(uint64_t after_ms)
{
    struct fake *fake = calloc(1, sizeof *fake);
    AMP_ASSERT(fake != NULL && pthread_mutex_init(&fake->mutex, NULL) == 0 && uv_loop_init(&fake->loop) == 0);
    fake->epoch = fake->step = fake->scale_id = 1;
    fake->port = after_ms > 0 ? free_port(&fake->loop) : 0;
    (void)snprintf(fake->endpoint, sizeof fake->endpoint, "127.0.0.1:%d", fake->port);
    AMP_ASSERT(uv_async_init(&fake->loop, &fake->async, on_async) == 0);
    AMP_ASSERT(uv_timer_init(&fake->loop, &fake->relisten) == 0 && uv_timer_init(&fake->loop, &fake->verdict) == 0);
    fake->async.data = fake->relisten.data = fake->verdict.data = fake;
    if (after_ms > 0)
        (void)uv_timer_start(&fake->relisten, on_relisten, after_ms, 0);
    else if (!start_server(fake))
        return NULL;
    AMP_ASSERT(pthread_create(&fake->thread, NULL, fake_main, fake) == 0);
    return fake;
}

struct fake *fake_new(void)
{
    return fake_new_later(0);
}

void fake_free(struct fake *fake)
{
    (void)pthread_mutex_lock(&fake->mutex);
    fake->stopping = true;
    (void)pthread_mutex_unlock(&fake->mutex);
    (void)uv_async_send(&fake->async);
    (void)pthread_join(fake->thread, NULL);
    AMP_ASSERT(uv_loop_close(&fake->loop) == 0);
    ampd_msg_model_spec_free(&fake->spec);
    free(fake->values);
    free(fake->initial);
    free(fake->staged);
    (void)pthread_mutex_destroy(&fake->mutex);
    free(fake);
}

const char *fake_endpoint(const struct fake *fake)
{
    return fake->endpoint;
}

void fake_set(struct fake *fake, const struct fake_faults *faults)
{
    (void)pthread_mutex_lock(&fake->mutex);
    fake->faults = *faults;
    (void)pthread_mutex_unlock(&fake->mutex);
}

struct fake_counts fake_counts(struct fake *fake)
{
    (void)pthread_mutex_lock(&fake->mutex);
    struct fake_counts counts = fake->counts;
    (void)pthread_mutex_unlock(&fake->mutex);
    return counts;
}

void fake_cut(struct fake *fake)
{
    want_cut(fake);
}

float fake_value(struct fake *fake, uint64_t flat_index)
{
    (void)pthread_mutex_lock(&fake->mutex);
    float value = fake->values[flat_index];
    (void)pthread_mutex_unlock(&fake->mutex);
    return value;
}

size_t fake_user_state(struct fake *fake, void *data, size_t room)
{
    (void)pthread_mutex_lock(&fake->mutex);
    size_t size = fake->user_state_size;
    if (size <= room && size > 0)
        memcpy(data, fake->user_state, size);
    (void)pthread_mutex_unlock(&fake->mutex);
    return size;
}
