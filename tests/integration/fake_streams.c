/* The fake's streams of blocks: Load and Push, and the verdict. */
#include "tests/integration/fake_internal.h"

#include "base/assert.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A stream of blocks. */
struct stream {
    struct fake *fake;
    struct arpc_call *call;
    struct ampd_block_reader reader;
    bool push;
    bool ignore; /* answered already */
    bool trailer;
};

static void answer_push(struct fake *fake, struct arpc_call *call, const struct ampd_msg_step_result *result)
{
    struct ampd_msg_push_response response = {.has_result = true, .result = *result};
    struct amp_buf out;
    amp_buf_init(&out, AMPD_MSG_SIZE_MAX);
    (void)ampd_msg_push_response_encode(&response, &out);
    (void)fake;
    fake_reply(call, &out);
}

/* The row of the first value that is not finite; the fake has one worker, and counts in one parameter. */
static void put_row(struct fake *fake, uint64_t at, struct ampd_msg_step_result *result)
{
    uint32_t p = (uint32_t)fake->spec.parameters.count - 1;
    while (fake->starts[p] > at)
        p--;
    fake->row = (struct ampd_msg_overflow_row){.parameter_index = p,
                                               .source = AMPD_MSG_OVERFLOW_SOURCE_WORKER,
                                               .has_rank = true,
                                               .worker_name = "rank-0",
                                               .inf_count = result->overflow_totals.inf_count,
                                               .first_index = at - fake->starts[p]};
    (void)snprintf(fake->row.parameter, sizeof fake->row.parameter, "%s", fake->spec.parameters.items[p].name);
    result->overflows = (struct ampd_msg_overflow_row_list){&fake->row, 1};
}

/* One worker: its gradient is the mean. */
static void decide(struct fake *fake)
{
    struct ampd_msg_step_result result = {.epoch = fake->epoch,
                                          .step = fake->step,
                                          .verdict = AMPD_MSG_VERDICT_APPLIED,
                                          .old_scale = fake->scale,
                                          .old_scale_id = fake->scale_id};
    uint64_t first = fake->elements;
    for (uint64_t i = 0; i < fake->elements; i++) {
        if (isfinite(fake->staged[i]))
            continue;
        first = first < i ? first : i;
        result.overflow_totals.inf_count++;
    }
    (void)pthread_mutex_lock(&fake->mutex);
    if (result.overflow_totals.inf_count > 0) {
        result.verdict = AMPD_MSG_VERDICT_SKIPPED_OVERFLOW;
        result.has_overflow_totals = true;
        result.overflow_totals.rows = 1;
        put_row(fake, first, &result);
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

void fake_on_verdict(uv_timer_t *timer)
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
    if (fake_take(fake, &fake->faults.swallow_push)) {
    } else if (fake_take(fake, &fake->faults.answer_early)) {
        struct ampd_msg_step_result late = {
            .epoch = fake->epoch, .step = header.step, .verdict = AMPD_MSG_VERDICT_LATE};
        answer_push(fake, stream->call, &late);
        fake->step++;
    } else if (header.epoch != fake->epoch) {
        fake_refuse(stream->call, ARPC_STATUS_ABORTED, "ROLLED_BACK", "the epoch is over");
    } else if (header.incarnation.counter != fake->counter) {
        fake_refuse(stream->call, ARPC_STATUS_ABORTED, "FENCED", "join again");
    } else if (header.step + 1 == fake->step && fake->last.step == header.step) {
        answer_push(fake, stream->call, &fake->last);
    } else if (header.step != fake->step) {
        fake_refuse(stream->call, ARPC_STATUS_ABORTED, "STALE_STEP", "another step is open");
    } else if (header.has_learning_rate != (fake->spec.schedule.kind == AMPD_MSG_SCHEDULE_KIND_WORKER)) {
        fake_refuse(stream->call, ARPC_STATUS_INVALID_ARGUMENT, "LEARNING_RATE",
                    "the schedule gives it, or the worker");
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
    if (rc == 0 && (fake_no_model(stream->call, header.model) ||
                    (header.shard == 1 && fake_take(stream->fake, &stream->fake->faults.swallow_load))))
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
    if (!intact || (stream->push && fake_take(fake, &fake->faults.refuse_push_block)))
        return amp_error_set(error, AMP_EDATALOSS, "BLOCK_CHECKSUM", "block %u is damaged", block->index);
    fake_stand(fake);
    if (!stream->push) {
        if (fake_comes(fake, &fake->faults.cut_load_after))
            fake_die(fake);
        return 0;
    }
    fake_count(fake, &fake->counts.push_blocks);
    fake->present[block->index] = true;
    if (fake_comes(fake, &fake->faults.cut_push_after))
        fake_die(fake);
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
    fake_count(fake, stream->push ? &fake->counts.pushes : &fake->counts.loads);
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
        (void)uv_timer_start(&fake->verdict, fake_on_verdict, fake->faults.verdict_after_ms, 0);
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
    fake_reply(call, &out);
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

const struct arpc_handler fake_stream = {.started = stream_started,
                                         .message_begin = stream_begin,
                                         .message_bytes = stream_bytes,
                                         .message_end = stream_end,
                                         .half_close = stream_half_close,
                                         .closed = stream_closed};
