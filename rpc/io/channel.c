/*
 * The channel: a list of endpoints, one connection for new calls, and older ones that their servers are draining.
 *
 *     IDLE       -> CONNECTING CLOSED
 *     CONNECTING -> READY BACKOFF CLOSED
 *     READY      -> IDLE CLOSED
 *     BACKOFF    -> CONNECTING IDLE CLOSED
 *     CLOSED     ->
 *
 * Calls without a connection are on the parking link, which has no session: there they keep their deadlines and can be
 * cancelled. When a server's SETTINGS are here, they move to the connection's link. How a connection is found is in
 * connect.c.
 *
 * Back-off is that of grpc/grpc doc/connection-backoff.md: counted from the beginning of an attempt, reset by the
 * server's SETTINGS. A connection that is lost at once does not lead to a next one at once: RECONNECT_MS.
 *
 * The channel is freed when its connections, lookups, the timer and the deferred work are closed.
 */
#include "rpc/io/channel.h"

#include "base/assert.h"
#include "base/err.h"
#include "rpc/h2/request.h"
#include "rpc/io/options.h"

#include <stdlib.h>
#include <string.h>

#define DEFAULT_QUEUED               ((size_t)1 << 30)
#define DEFAULT_CONNECT_MS           10000
#define DEFAULT_KEEPALIVE_TIME_MS    (5 * 60 * 1000) /* what servers tolerate without asking (gRFC A8) */
#define DEFAULT_KEEPALIVE_TIMEOUT_MS ARPC_PING_TIMEOUT_MS
#define DEFAULT_IDLE_TIMEOUT_MS      1800000
#define DEFAULT_WRITE_STALL_MS       30000
#define DEFAULT_INITIAL_BACKOFF_MS   100
#define DEFAULT_MAX_BACKOFF_MS       5000
#define BACKOFF_MULTIPLIER           1.6 /* MULTIPLIER and JITTER of connection-backoff.md */
#define BACKOFF_JITTER               0.2
/*
 * A server that takes connections and drops them sooner than this is tried again after the initial back-off, then after
 * twice as long each time, up to this: its SETTINGS have reset the back-off, and calls that never left begin again
 * without end.
 */
#define RECONNECT_MS 1000
/*
 * gRFC A6 names the tokens and the ratio; the buffers are those of gRPC's C core (a call) and of grpc-java (a channel).
 */
#define DEFAULT_RETRY_TOKENS      10
#define DEFAULT_RETRY_RATIO       0.1
#define DEFAULT_RETRY_BUFFER_CALL ((size_t)256 << 10)
#define DEFAULT_RETRY_BUFFER      ((size_t)16 << 20)
#define DEFAULT_MESSAGE           ((size_t)4 << 20)  /* as gRPC implementations */
#define METADATA_BYTES            ((size_t)16 << 10) /* of a response: our own details take up to 6 KiB */
#define METADATA_COUNT            64
#define CALLS_MAX                 1024

static void set_state(struct arpc_channel *channel, enum arpc_channel_state state, const struct amp_error *error)
{
    static const unsigned allowed[] = {
        [ARPC_CHANNEL_IDLE] = 1u << ARPC_CHANNEL_CONNECTING | 1u << ARPC_CHANNEL_CLOSED,
        [ARPC_CHANNEL_CONNECTING] = 1u << ARPC_CHANNEL_READY | 1u << ARPC_CHANNEL_BACKOFF | 1u << ARPC_CHANNEL_CLOSED,
        [ARPC_CHANNEL_READY] = 1u << ARPC_CHANNEL_IDLE | 1u << ARPC_CHANNEL_CLOSED,
        [ARPC_CHANNEL_BACKOFF] = 1u << ARPC_CHANNEL_CONNECTING | 1u << ARPC_CHANNEL_IDLE | 1u << ARPC_CHANNEL_CLOSED,
        [ARPC_CHANNEL_CLOSED] = 0,
    };
    AMP_ASSERT((allowed[channel->state] >> state & 1u) != 0);
    channel->state = state;
    if (channel->state_cb != NULL)
        channel->state_cb(channel, state, error, channel->arg);
}

static void on_timer(uv_timer_t *timer)
{
    struct arpc_channel *channel = timer->data;
    channel->armed_ms = INT64_MAX;
    arpc_deferred_add(&channel->deferred, &channel->item);
}

static void arm_timer(struct arpc_channel *channel)
{
    int64_t due_ms = channel->due_ms < channel->parking.next_due_ms ? channel->due_ms : channel->parking.next_due_ms;
    if (due_ms >= channel->armed_ms || channel->state == ARPC_CHANNEL_CLOSED)
        return;
    int64_t now_ms = arpc_channel_now(channel);
    channel->armed_ms = due_ms;
    (void)uv_timer_start(&channel->timer, on_timer, (uint64_t)(due_ms > now_ms ? due_ms - now_ms : 0), 0);
}

static int64_t next_backoff(struct arpc_channel *channel)
{
    int64_t base_ms = channel->backoff_ms != 0 ? channel->backoff_ms : channel->initial_backoff_ms;
    double grown = (double)base_ms * BACKOFF_MULTIPLIER;
    channel->backoff_ms = grown < (double)channel->max_backoff_ms ? (int64_t)grown : channel->max_backoff_ms;
    double jitter = 1.0 + BACKOFF_JITTER * (2.0 * amp_random_unit(&channel->random) - 1.0);
    double wait_ms = (double)base_ms * jitter + 1.0;
    return wait_ms < (double)INT64_MAX ? (int64_t)wait_ms : INT64_MAX;
}

/* Calls that do not wait fail, the others wait for the next attempt. */
void arpc_channel_attempt_failed(struct arpc_channel *channel)
{
    channel->current = NULL;
    (void)amp_error_set(&channel->error, AMP_EUNAVAILABLE, NULL, "cannot connect to %s", channel->attempt.why);
    channel->due_ms = arpc_after(channel->attempt.started_ms, next_backoff(channel));
    arpc_link_fail_parked(&channel->parking, channel->error.text);
    set_state(channel, ARPC_CHANNEL_BACKOFF, &channel->error);
    arpc_deferred_add(&channel->deferred, &channel->item);
}

void arpc_channel_attempt_succeeded(struct arpc_channel *channel, struct arpc_link *link)
{
    arpc_connect_stop(channel);
    channel->backoff_ms = 0;
    channel->due_ms = INT64_MAX;
    if (link != NULL)
        arpc_link_move(&channel->parking, link);
    set_state(channel, ARPC_CHANNEL_READY, NULL);
}

void arpc_channel_leave_ready(struct arpc_channel *channel, const struct amp_error *error)
{
    bool brief = arpc_channel_now(channel) - channel->attempt.started_ms < RECONNECT_MS;
    int64_t hold_ms = brief && channel->hold_ms > 0 ? 2 * channel->hold_ms : channel->initial_backoff_ms;
    channel->hold_ms = hold_ms < RECONNECT_MS ? hold_ms : RECONNECT_MS;
    channel->current = NULL;
    channel->due_ms = arpc_after(channel->attempt.started_ms, channel->hold_ms);
    channel->first_endpoint = (channel->attempt.endpoint + 1) % channel->endpoints.count;
    set_state(channel, ARPC_CHANNEL_IDLE, error);
    arpc_deferred_add(&channel->deferred, &channel->item); /* calls may have been parked since it ended */
}

static void start_connecting(struct arpc_channel *channel)
{
    channel->connect_wanted = false;
    set_state(channel, ARPC_CHANNEL_CONNECTING, NULL);
    if (channel->state == ARPC_CHANNEL_CONNECTING) /* state_cb may have closed the channel */
        arpc_connect_start(channel);
}

static void advance(struct arpc_channel *channel)
{
    bool due = channel->due_ms <= arpc_channel_now(channel);
    if (channel->state == ARPC_CHANNEL_CONNECTING && due) {
        arpc_connect_timed_out(channel);
        return;
    }
    if (channel->state != ARPC_CHANNEL_IDLE && channel->state != ARPC_CHANNEL_BACKOFF)
        return;
    bool may = due || (channel->state == ARPC_CHANNEL_IDLE && channel->due_ms == INT64_MAX);
    if (channel->connect_wanted || (may && arpc_link_has_parked(&channel->parking))) {
        start_connecting(channel);
    } else if (due) {
        channel->due_ms = INT64_MAX;
        if (channel->state == ARPC_CHANNEL_BACKOFF)
            set_state(channel, ARPC_CHANNEL_IDLE, NULL);
    }
}

static void on_deferred_closed(struct arpc_deferred *deferred)
{
    struct arpc_channel *channel = AMP_CONTAINER(deferred, struct arpc_channel, deferred);
    void (*closed_cb)(void *) = channel->closed_cb;
    void *arg = channel->closed_arg;
    arpc_link_close(&channel->parking);
    arpc_tls_unref(channel->tls);
    free(channel);
    if (closed_cb != NULL)
        closed_cb(arg);
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct arpc_channel *channel = handle->data;
    arpc_deferred_remove(&channel->item);
    arpc_deferred_close(&channel->deferred, on_deferred_closed);
}

/* Where a new call goes: the connection if there is one, else it is parked. */
static struct arpc_link *link_for_call(struct arpc_channel *channel)
{
    struct arpc_conn *conn = channel->current;
    bool ready = channel->state == ARPC_CHANNEL_READY && !conn->closing && arpc_link_takes_calls(&conn->link);
    return ready ? &conn->link : &channel->parking;
}

static void channel_pump(struct arpc_deferred_item *item)
{
    struct arpc_channel *channel = AMP_CONTAINER(item, struct arpc_channel, item);
    arpc_link_tick(&channel->parking);
    advance(channel);
    struct arpc_link *to = link_for_call(channel);
    if (to != &channel->parking)
        arpc_link_move(&channel->parking, to); /* those whose wait is over */
    if (arpc_link_flush(&channel->parking))
        arpc_deferred_add(&channel->deferred, &channel->item);
    arm_timer(channel);
    bool nothing_left = channel->conn_count == 0 && channel->resolve_count == 0 && channel->parking.call_count == 0;
    if (channel->state != ARPC_CHANNEL_CLOSED || !nothing_left || channel->deferred_closing)
        return;
    channel->deferred_closing = true;
    uv_close((uv_handle_t *)&channel->timer, on_timer_closed);
}

static void wake_parking(struct arpc_link *link)
{
    struct arpc_channel *channel = AMP_CONTAINER(link, struct arpc_channel, parking);
    arpc_deferred_add(&channel->deferred, &channel->item);
}

void arpc_channel_connect(struct arpc_channel *channel)
{
    if (channel->state != ARPC_CHANNEL_IDLE && channel->state != ARPC_CHANNEL_BACKOFF)
        return;
    channel->connect_wanted = true;
    arpc_deferred_add(&channel->deferred, &channel->item);
}

static void set_limits(struct arpc_channel *channel, const struct arpc_channel_options *options)
{
    struct arpc_link_config *config = &channel->config;
    config->keep_metadata = options->keep_metadata;
    config->max_streams = CALLS_MAX;
    config->max_metadata_bytes = METADATA_BYTES;
    config->max_metadata_count = METADATA_COUNT;
    config->max_queued = arpc_or_size(options->max_queued, DEFAULT_QUEUED);
    config->stream_window = arpc_or_window(options->stream_window);
}

static void set_times(struct arpc_channel *channel, const struct arpc_channel_options *options)
{
    struct arpc_link_config *config = &channel->config;
    config->idle_ms = arpc_or_ms(options->idle_timeout_ms, DEFAULT_IDLE_TIMEOUT_MS);
    config->keepalive_ms = arpc_or_ms(options->keepalive_time_ms, DEFAULT_KEEPALIVE_TIME_MS);
    config->keepalive_timeout_ms = arpc_or_ms(options->keepalive_timeout_ms, DEFAULT_KEEPALIVE_TIMEOUT_MS);
    config->keepalive_without_calls = options->keepalive_permit_without_calls;
    config->write_stall_ms = arpc_or_ms(options->write_stall_ms, DEFAULT_WRITE_STALL_MS);
    channel->connect_ms = arpc_or_ms(options->connect_ms, DEFAULT_CONNECT_MS);
    channel->unacknowledged_ms = options->unacknowledged_ms;
    channel->initial_backoff_ms = arpc_or_ms(options->initial_backoff_ms, DEFAULT_INITIAL_BACKOFF_MS);
    channel->max_backoff_ms = arpc_or_ms(options->max_backoff_ms, DEFAULT_MAX_BACKOFF_MS);
}

static void set_retries(struct arpc_channel *channel, const struct arpc_channel_options *options)
{
    struct arpc_link_config *config = &channel->config;
    unsigned max_tokens = options->retry_max_tokens != 0 ? options->retry_max_tokens : DEFAULT_RETRY_TOKENS;
    double ratio = options->retry_token_ratio > 0 ? options->retry_token_ratio : DEFAULT_RETRY_RATIO;
    config->parking = &channel->parking;
    config->random = &channel->random;
    config->max_retained_call = arpc_or_size(options->retry_buffer_call, DEFAULT_RETRY_BUFFER_CALL);
    config->max_retained = arpc_or_size(options->retry_buffer, DEFAULT_RETRY_BUFFER);
    arpc_retry_throttle_init(&config->throttle, max_tokens, ratio);
}

static void set_options(struct arpc_channel *channel, const struct arpc_channel_options *given)
{
    struct arpc_channel_options options = {0};
    if (given != NULL)
        memcpy(&options, given, given->size < sizeof options ? given->size : sizeof options);
    channel->arg = options.arg;
    channel->state_cb = options.state_cb;
    AMP_ASSERT(options.tls == NULL || !options.tls->server);
    channel->tls = options.tls != NULL ? arpc_tls_ref(options.tls) : NULL;
    channel->config.now_cb = arpc_deferred_now;
    channel->config.clock = &channel->deferred;
    set_limits(channel, &options);
    set_times(channel, &options);
    set_retries(channel, &options);
    amp_random_init(&channel->random, options.seed != 0 ? options.seed : uv_hrtime());
}

int arpc_channel_new(struct uv_loop_s *loop, const char *target, const struct arpc_channel_options *options,
                     struct arpc_channel **out, struct amp_error *error)
{
    struct arpc_channel *channel = calloc(1, sizeof *channel);
    if (channel == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "no memory for a channel");
    int rc = arpc_endpoints_parse(target, &channel->endpoints, error);
    if (rc != 0)
        goto failed;
    rc = arpc_deferred_init(&channel->deferred, loop);
    if (rc != 0) {
        (void)amp_error_set(error, rc, NULL, "no memory for a channel");
        goto failed;
    }
    set_options(channel, options);
    /* A parking link allocates nothing. */
    (void)arpc_link_init(&channel->parking, &channel->config, wake_parking, false);
    arpc_deferred_item_init(&channel->item, channel_pump);
    amp_list_init(&channel->conns);
    channel->due_ms = INT64_MAX;
    channel->armed_ms = INT64_MAX;
    (void)uv_timer_init(loop, &channel->timer); /* cannot fail */
    channel->timer.data = channel;
    *out = channel;
    return 0;
failed:
    free(channel);
    return rc;
}

void arpc_channel_close(struct arpc_channel *channel, void (*closed_cb)(void *arg), void *arg)
{
    AMP_ASSERT(channel->state != ARPC_CHANNEL_CLOSED);
    channel->state = ARPC_CHANNEL_CLOSED;
    channel->closed_cb = closed_cb;
    channel->closed_arg = arg;
    channel->current = NULL;
    arpc_connect_stop(channel);
    arpc_link_abort(&channel->parking, ARPC_STATUS_CANCELLED, "the channel was closed");
    AMP_LIST_EACH(it, safe, &channel->conns)
    {
        struct arpc_conn *conn = AMP_CONTAINER(it, struct arpc_conn, in_owner);
        if (conn->has_link)
            arpc_link_abort(&conn->link, ARPC_STATUS_CANCELLED, "the channel was closed");
        arpc_conn_close(conn, NULL);
    }
    arpc_deferred_add(&channel->deferred, &channel->item);
}

enum arpc_channel_state arpc_channel_state(const struct arpc_channel *channel)
{
    return channel->state;
}

int arpc_channel_call(struct arpc_channel *channel, const char *path, const struct arpc_call_options *given,
                      const struct arpc_handler *handler, void *user, struct arpc_call **out, struct amp_error *error)
{
    struct arpc_call_options options = {0};
    if (given != NULL)
        memcpy(&options, given, given->size < sizeof options ? given->size : sizeof options);
    AMP_ASSERT(handler->closed != NULL);
    if (channel->state == ARPC_CHANNEL_CLOSED)
        return amp_error_set(error, AMP_ESTATE, NULL, "the channel is closed");
    if (channel->config.calls >= CALLS_MAX)
        return amp_error_set(error, AMP_EEXHAUSTED, NULL, "%d calls are open on the channel", CALLS_MAX);
    struct arpc_link *link = link_for_call(channel);
    struct arpc_call *call;
    int rc = arpc_request_new(link, path, options.metadata, options.metadata_count, handler, &call, error);
    if (rc != 0)
        return rc;
    call->user = user;
    call->in.max_message = arpc_or_size(options.max_message, DEFAULT_MESSAGE);
    call->wait_for_ready = options.wait_for_ready;
    call->in.single_inbound = options.single_response;
    if (options.retry != NULL || options.idempotent)
        arpc_retry_init(&call->attempt.retry, options.retry);
    if (options.deadline_ms > 0) {
        call->deadline_ms = arpc_after(arpc_channel_now(channel), options.deadline_ms);
        arpc_link_due(link, call->deadline_ms);
    }
    if (channel->state == ARPC_CHANNEL_BACKOFF && !call->wait_for_ready &&
        !arpc_call_try_again(call, ARPC_STATUS_UNAVAILABLE, ARPC_REACH_SERVER))
        arpc_call_close(call, ARPC_STATUS_UNAVAILABLE, channel->error.text);
    if (out != NULL)
        *out = call;
    return 0;
}
