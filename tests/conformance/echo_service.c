/* The handlers of the echo service: one of each kind, and one for each way a call can end. */
#include "tests/conformance/echo_service.h"

#include "base/crc32c.h"
#include "tests/conformance/echo_wire.h"

#include <stdlib.h>
#include <string.h>

#define MESSAGE_MAX ((size_t)4 << 20)
#define PATTERN     251 /* a prime, so that no power of two repeats it */
#define HOLD_MS     300

/* State of one call; each method uses a part of it. */
struct echo_call {
    struct arpc_call *call; /* NULL once it is closed */
    uv_timer_t timer;       /* of Sleep and Hold */
    bool has_timer;
    uint64_t messages;
    uint64_t bytes;
    uint32_t crc;
    uint64_t left;
    size_t size;
    uint8_t prefix[16]; /* of a Payload being received: tag and length */
    size_t prefix_used;
    size_t prefix_size;
};

static uint8_t *pattern; /* of MESSAGE_MAX bytes, made at the first use, freed at exit */

static void free_pattern(void)
{
    free(pattern);
}

static const uint8_t *shared_pattern(void)
{
    if (pattern != NULL)
        return pattern;
    pattern = malloc(MESSAGE_MAX);
    if (pattern == NULL)
        abort();
    for (size_t i = 0; i < MESSAGE_MAX; i++)
        pattern[i] = (uint8_t)(i % PATTERN);
    (void)atexit(free_pattern);
    return pattern;
}

static struct echo_state *state_of(const struct arpc_call *call)
{
    return arpc_call_server_arg(call);
}

static void on_timer_closed(uv_handle_t *handle)
{
    free(handle->data);
}

static void on_closed(struct arpc_call *call, const struct arpc_result *result)
{
    struct echo_call *echo = arpc_call_user(call);
    struct echo_state *state = state_of(call);
    state->open--;
    if (!result->from_peer &&
        (result->status == ARPC_STATUS_CANCELLED || result->status == ARPC_STATUS_DEADLINE_EXCEEDED ||
         result->status == ARPC_STATUS_UNAVAILABLE))
        state->cancelled++;
    echo->call = NULL;
    if (echo->has_timer)
        uv_close((uv_handle_t *)&echo->timer, on_timer_closed);
    else
        free(echo);
}

static void on_started(struct arpc_call *call)
{
    struct echo_call *echo = calloc(1, sizeof *echo);
    if (echo == NULL)
        abort();
    echo->call = call;
    state_of(call)->open++;
    arpc_call_set_user(call, echo);
    const uint8_t *value;
    size_t size;
    for (size_t i = 0; arpc_call_metadata(call, "x-echo-initial", i, &value, &size); i++)
        (void)arpc_call_add_initial(call, "x-echo-initial", value, size);
    for (size_t i = 0; arpc_call_metadata(call, "x-echo-trailing-bin", i, &value, &size); i++)
        (void)arpc_call_add_trailing(call, "x-echo-trailing-bin", value, size);
}

static void start_timer(struct echo_call *echo, uv_timer_cb cb, uint64_t ms)
{
    (void)uv_timer_init(state_of(echo->call)->loop, &echo->timer);
    echo->timer.data = echo;
    echo->has_timer = true;
    (void)uv_timer_start(&echo->timer, cb, ms, 0);
}

static void on_unary(struct arpc_call *call, const uint8_t *data, size_t size)
{
    (void)arpc_call_reply(call, data, size);
}

/* Collect: the bytes are summed where they lie; the head of each Payload is skipped by hand. */
static void collect_begin(struct arpc_call *call, size_t size)
{
    struct echo_call *echo = arpc_call_user(call);
    (void)size;
    echo->messages++;
    echo->prefix_used = 0;
    echo->prefix_size = 0;
}

static void collect_bytes(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct echo_call *echo = arpc_call_user(call);
    size_t i = 0;
    /* One byte of tag, then the varint of the length, which ends at a byte below 128. */
    while (echo->prefix_size == 0 && i < size) {
        uint8_t byte = data[i++];
        echo->prefix[echo->prefix_used++] = byte;
        if ((echo->prefix_used > 1 && byte < 128) || echo->prefix_used == sizeof echo->prefix)
            echo->prefix_size = echo->prefix_used;
    }
    echo->bytes += size - i;
    echo->crc = amp_crc32c(echo->crc, data + i, size - i);
}

static void collect_half_close(struct arpc_call *call)
{
    struct echo_call *echo = arpc_call_user(call);
    uint8_t out[64];
    size_t used = 0;
    echo_put_number(out, &used, 1, echo->messages);
    echo_put_number(out, &used, 2, echo->bytes);
    echo_put_number(out, &used, 3, echo->crc);
    (void)arpc_call_reply(call, out, used);
}

static void no_release(void *arg)
{
    (void)arg; /* the pattern lives until exit */
}

static void repeat_more(struct arpc_call *call)
{
    struct echo_call *echo = arpc_call_user(call);
    uint8_t head[16];
    size_t used = 0;
    echo_put_head(head, &used, 1, echo->size);
    while (echo->left > 0 && arpc_call_queued(call) < ARPC_HIGH_WATER) {
        if (arpc_call_send(call, head, used, shared_pattern(), echo->size, no_release, NULL) != 0)
            return;
        echo->left--;
    }
    if (echo->left == 0)
        arpc_call_finish(call, ARPC_STATUS_OK, NULL, NULL);
}

static void on_repeat(struct arpc_call *call, const uint8_t *data, size_t size)
{
    struct echo_call *echo = arpc_call_user(call);
    echo->left = echo_get_number(data, size, 1);
    uint64_t each = echo_get_number(data, size, 2);
    if (each > MESSAGE_MAX) {
        arpc_call_finish(call, ARPC_STATUS_INVALID_ARGUMENT, "size is over 4 MiB", NULL);
        return;
    }
    echo->size = (size_t)each;
    repeat_more(call);
}

static void on_chat(struct arpc_call *call, const uint8_t *data, size_t size)
{
    if (arpc_call_send(call, data, size, NULL, 0, NULL, NULL) != 0)
        arpc_call_finish(call, ARPC_STATUS_RESOURCE_EXHAUSTED, "too much is queued", NULL);
    if (arpc_call_queued(call) > ARPC_HIGH_WATER)
        arpc_call_pause(call);
}

static void chat_half_close(struct arpc_call *call)
{
    arpc_call_finish(call, ARPC_STATUS_OK, NULL, NULL);
}

static void copy_field(const uint8_t *data, size_t size, uint32_t tag, char *out, size_t capacity)
{
    const uint8_t *bytes;
    size_t length = 0;
    if (echo_get_bytes(data, size, tag, &bytes, &length) && length < capacity)
        memcpy(out, bytes, length);
    else
        length = 0;
    out[length] = 0;
}

static void on_fail(struct arpc_call *call, const uint8_t *data, size_t size)
{
    char message[1024];
    char reason[64];
    static const struct arpc_pair pair = {"key", "value"};
    copy_field(data, size, 2, message, sizeof message);
    copy_field(data, size, 3, reason, sizeof reason);
    for (uint64_t after = echo_get_number(data, size, 5); after > 0; after--)
        if (arpc_call_send(call, NULL, 0, NULL, 0, NULL, NULL) != 0)
            return;
    struct arpc_details details = {.reason = reason,
                                   .pairs = &pair,
                                   .pair_count = reason[0] != 0,
                                   .retry_ms = (int64_t)echo_get_number(data, size, 4)};
    arpc_call_finish(call, (int)echo_get_number(data, size, 1), message, &details);
}

static void on_slept(uv_timer_t *timer)
{
    struct echo_call *echo = timer->data;
    if (echo->call != NULL)
        (void)arpc_call_reply(echo->call, NULL, 0);
}

static void on_sleep(struct arpc_call *call, const uint8_t *data, size_t size)
{
    start_timer(arpc_call_user(call), on_slept, echo_get_number(data, size, 1));
}

static void on_held(uv_timer_t *timer)
{
    struct echo_call *echo = timer->data;
    if (echo->call != NULL)
        arpc_call_resume(echo->call);
}

static void hold_started(struct arpc_call *call)
{
    on_started(call);
    arpc_call_pause(call);
    start_timer(arpc_call_user(call), on_held, HOLD_MS);
}

static void on_count(struct arpc_call *call, const uint8_t *data, size_t size)
{
    (void)data;
    (void)size;
    uint8_t out[32];
    size_t used = 0;
    echo_put_number(out, &used, 1, state_of(call)->cancelled);
    echo_put_number(out, &used, 2, state_of(call)->open);
    (void)arpc_call_reply(call, out, used);
}

static const struct arpc_handler unary = {.started = on_started, .message = on_unary, .closed = on_closed};
static const struct arpc_handler collect = {.started = on_started,
                                            .message_begin = collect_begin,
                                            .message_bytes = collect_bytes,
                                            .half_close = collect_half_close,
                                            .closed = on_closed};
static const struct arpc_handler hold = {.started = hold_started,
                                         .message_begin = collect_begin,
                                         .message_bytes = collect_bytes,
                                         .half_close = collect_half_close,
                                         .closed = on_closed};
static const struct arpc_handler repeat = {
    .started = on_started, .message = on_repeat, .writable = repeat_more, .closed = on_closed};
static const struct arpc_handler chat = {.started = on_started,
                                         .message = on_chat,
                                         .half_close = chat_half_close,
                                         .writable = arpc_call_resume,
                                         .closed = on_closed};
static const struct arpc_handler fail = {.started = on_started, .message = on_fail, .closed = on_closed};
static const struct arpc_handler sleep_handler = {.started = on_started, .message = on_sleep, .closed = on_closed};
static const struct arpc_handler count = {.started = on_started, .message = on_count, .closed = on_closed};

#define SERVICE "ampd.test.v1.Echo"

const struct arpc_method echo_methods[] = {
    {SERVICE, "Unary", ARPC_UNARY, true, 0, MESSAGE_MAX, &unary},
    {SERVICE, "Collect", ARPC_CLIENT_STREAM, false, 0, MESSAGE_MAX, &collect},
    {SERVICE, "Repeat", ARPC_SERVER_STREAM, true, 0, 1024, &repeat},
    {SERVICE, "Chat", ARPC_BIDI, false, 0, MESSAGE_MAX, &chat},
    {SERVICE, "Fail", ARPC_SERVER_STREAM, true, 0, 4096, &fail},
    {SERVICE, "Sleep", ARPC_UNARY, true, 0, 1024, &sleep_handler},
    {SERVICE, "Hold", ARPC_CLIENT_STREAM, false, 0, MESSAGE_MAX, &hold},
    {SERVICE, "Count", ARPC_UNARY, true, 0, 1024, &count},
    {SERVICE, "Missing", ARPC_UNARY, true, 0, 1024, NULL},
};
const size_t echo_method_count = sizeof echo_methods / sizeof *echo_methods;

const char *const echo_metadata[] = {"x-echo-initial", "x-echo-trailing-bin", NULL};
