/*
 * The channel: one target, one connection for new calls, and older ones that the server is draining.
 *
 *     IDLE       -> CONNECTING CLOSED
 *     CONNECTING -> READY BACKOFF CLOSED
 *     READY      -> IDLE CLOSED
 *     BACKOFF    -> CONNECTING IDLE CLOSED
 *     CLOSED     ->
 *
 * Calls without a connection are on the parking link, which has no session: there they keep their deadlines and can be
 * cancelled. When the server's SETTINGS are here, they move to the connection's link.
 *
 * An attempt resolves the name, then tries the addresses in turn; connect_ms bounds all of it, up to the first SETTINGS.
 * The channel is freed when its connections, the resolver, the timer and the turn are closed.
 */
#include "rpc/arpc_client.h"

#include "base/assert.h"
#include "base/err.h"
#include "base/random.h"
#include "rpc/h2/call.h"
#include "rpc/io/address.h"
#include "rpc/io/conn.h"

#include <stdlib.h>
#include <string.h>

#define DEFAULT_QUEUED         ((size_t)1 << 30)
#define DEFAULT_WINDOW         ((size_t)16 << 20)
#define WINDOW_MAX             ((size_t)1 << 30)
#define DEFAULT_CONNECT_MS     10000
#define DEFAULT_KEEPALIVE_MS   (5 * 60 * 1000) /* what servers tolerate without asking (gRFC A8) */
#define DEFAULT_WRITE_STALL_MS 30000
#define DEFAULT_BACKOFF_MIN_MS 100
#define DEFAULT_BACKOFF_MAX_MS 5000
#define BACKOFF_FACTOR         1.6 /* gRPC connection-backoff.md, with its jitter */
#define BACKOFF_JITTER         0.2
#define DEFAULT_MESSAGE        ((size_t)4 << 20)  /* as gRPC implementations */
#define METADATA_BYTES         ((size_t)16 << 10) /* of a response: our own details take up to 6 KiB */
#define METADATA_COUNT         64
#define CALLS_MAX              1024

struct arpc_channel {
    struct arpc_turn turn;
    struct arpc_turn_item item; /* the parking link, and what is left to do when closing */
    struct arpc_link_config config;
    struct arpc_link parking;
    enum arpc_channel_state state;
    void *arg;
    void (*state_cb)(struct arpc_channel *, enum arpc_channel_state, const struct amp_error *, void *);
    struct arpc_address address;
    char authority[ARPC_PEER_SIZE];
    int64_t connect_ms;
    int64_t backoff_min_ms;
    int64_t backoff_max_ms;
    int64_t backoff_ms;
    struct amp_random random;
    struct amp_error error; /* of the last attempt */
    struct amp_list conns;
    size_t conn_count;
    struct arpc_conn *current; /* being connected, or READY */
    bool resolving;
    bool resolve_stale; /* the attempt that asked is over */
    uv_getaddrinfo_t resolve;
    struct addrinfo *addresses; /* of the attempt */
    struct addrinfo *next_address;
    int64_t due_ms; /* of the attempt or of BACKOFF */
    uv_timer_t timer;
    int64_t armed_ms;
    bool connect_wanted;
    bool turn_closing;
    uint64_t bytes_received;
    uint64_t bytes_sent;
    void (*closed_cb)(void *arg);
    void *closed_arg;
};

static void connect_next(struct arpc_channel *channel);
static void begin_attempt(struct arpc_channel *channel);

static int64_t now_of(const struct arpc_channel *channel)
{
    return (int64_t)uv_now(channel->turn.loop);
}

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

static void drop_addresses(struct arpc_channel *channel)
{
    uv_freeaddrinfo(channel->addresses);
    channel->addresses = NULL;
    channel->next_address = NULL;
}

static void on_timer(uv_timer_t *timer)
{
    struct arpc_channel *channel = timer->data;
    channel->armed_ms = INT64_MAX;
    arpc_turn_add(&channel->turn, &channel->item);
}

static void arm_timer(struct arpc_channel *channel)
{
    int64_t due_ms = channel->due_ms < channel->parking.next_due_ms ? channel->due_ms : channel->parking.next_due_ms;
    if (due_ms >= channel->armed_ms || channel->state == ARPC_CHANNEL_CLOSED)
        return;
    int64_t now_ms = now_of(channel);
    channel->armed_ms = due_ms;
    (void)uv_timer_start(&channel->timer, on_timer, (uint64_t)(due_ms > now_ms ? due_ms - now_ms : 0), 0);
}

static int64_t next_backoff(struct arpc_channel *channel)
{
    int64_t base_ms = channel->backoff_ms != 0 ? channel->backoff_ms : channel->backoff_min_ms;
    double grown = (double)base_ms * BACKOFF_FACTOR;
    channel->backoff_ms = grown < (double)channel->backoff_max_ms ? (int64_t)grown : channel->backoff_max_ms;
    double jitter = 1.0 + BACKOFF_JITTER * (2.0 * amp_random_unit(&channel->random) - 1.0);
    double wait_ms = (double)base_ms * jitter + 1.0;
    return wait_ms < (double)INT64_MAX ? (int64_t)wait_ms : INT64_MAX;
}

/* The attempt is over without success: calls that do not wait fail, the others wait for the next one. */
static void attempt_failed(struct arpc_channel *channel, const char *why)
{
    channel->current = NULL;
    channel->resolve_stale = channel->resolving;
    drop_addresses(channel);
    (void)amp_error_set(&channel->error, AMP_EUNAVAILABLE, NULL, "cannot connect to %s: %s", channel->authority, why);
    arpc_link_fail_parked(&channel->parking, channel->error.text);
    channel->due_ms = arpc_after(now_of(channel), next_backoff(channel));
    set_state(channel, ARPC_CHANNEL_BACKOFF, &channel->error);
    arpc_turn_add(&channel->turn, &channel->item);
}

/* The connection of the channel is lost, or takes no further calls. */
static void leave_ready(struct arpc_channel *channel, const struct amp_error *error)
{
    channel->current = NULL;
    channel->due_ms = INT64_MAX;
    set_state(channel, ARPC_CHANNEL_IDLE, error);
    arpc_turn_add(&channel->turn, &channel->item); /* calls may have been parked since it ended */
}

static void on_conn_closed(struct arpc_conn *conn)
{
    struct arpc_channel *channel = conn->owner;
    amp_list_remove(&conn->in_owner);
    channel->conn_count--;
    if (channel->current == conn) {
        const char *why = conn->error.code != 0 ? conn->error.text : "the server closed the connection";
        if (channel->state == ARPC_CHANNEL_READY) {
            (void)amp_error_set(&channel->error, AMP_EUNAVAILABLE, NULL, "%s", why);
            leave_ready(channel, &channel->error);
        } else if (channel->state == ARPC_CHANNEL_CONNECTING) {
            channel->current = NULL;
            if (channel->next_address != NULL && !conn->has_link)
                connect_next(channel);
            else
                attempt_failed(channel, why);
        }
    }
    arpc_turn_add(&channel->turn, &channel->item);
    free(conn);
}

static void on_conn_pumped(struct arpc_conn *conn)
{
    struct arpc_channel *channel = conn->owner;
    if (channel->current != conn || conn->closing)
        return;
    if (channel->state == ARPC_CHANNEL_CONNECTING && conn->link.peer_settings) {
        channel->backoff_ms = 0;
        channel->due_ms = INT64_MAX;
        drop_addresses(channel);
        arpc_link_move(&channel->parking, &conn->link);
        set_state(channel, ARPC_CHANNEL_READY, NULL);
    } else if (channel->state == ARPC_CHANNEL_READY && !arpc_link_takes_calls(&conn->link)) {
        (void)amp_error_set(&channel->error, AMP_EUNAVAILABLE, NULL, "%s",
                            conn->link.peer_goaway ? "the server is going away"
                                                   : "the connection has no stream ids left");
        arpc_link_drain(&conn->link); /* it closes when its calls have ended */
        leave_ready(channel, &channel->error);
    }
}

static void on_connect(uv_connect_t *req, int status)
{
    struct arpc_conn *conn = req->data;
    struct arpc_channel *channel = conn->owner;
    if (conn->closing)
        return;
    struct amp_error error;
    if (status != 0) {
        (void)amp_error_set(&error, AMP_EUNAVAILABLE, NULL, "%s", uv_strerror(status));
        arpc_conn_close(conn, &error);
        return;
    }
    int rc = arpc_conn_start(conn, &channel->config, channel->authority);
    if (rc != 0) {
        (void)amp_error_set(&error, rc, NULL, "%s", amp_strerror(rc));
        arpc_conn_close(conn, &error);
    }
}

static struct arpc_conn *new_conn(struct arpc_channel *channel)
{
    struct arpc_conn *conn = malloc(sizeof *conn);
    if (conn == NULL)
        return NULL;
    arpc_conn_init(conn, &channel->turn, channel->address.is_unix, channel, on_conn_pumped, on_conn_closed);
    conn->bytes_received = &channel->bytes_received;
    conn->bytes_sent = &channel->bytes_sent;
    conn->connect.data = conn;
    amp_list_push(&channel->conns, &conn->in_owner);
    channel->conn_count++;
    channel->current = conn;
    return conn;
}

static void connect_next(struct arpc_channel *channel)
{
    struct arpc_conn *conn = new_conn(channel);
    if (conn == NULL) {
        attempt_failed(channel, "no memory");
        return;
    }
    if (channel->address.is_unix) {
        uv_pipe_connect(&conn->connect, &conn->socket.pipe, channel->address.host, on_connect);
        return;
    }
    const struct addrinfo *address = channel->next_address;
    channel->next_address = address->ai_next;
    int rc = uv_tcp_connect(&conn->connect, &conn->socket.tcp, address->ai_addr, on_connect);
    if (rc != 0) {
        struct amp_error error;
        (void)amp_error_set(&error, AMP_EUNAVAILABLE, NULL, "%s", uv_strerror(rc));
        arpc_conn_close(conn, &error);
    }
}

static void on_resolved(uv_getaddrinfo_t *req, int status, struct addrinfo *addresses)
{
    struct arpc_channel *channel = req->data;
    bool stale = channel->resolve_stale;
    channel->resolving = false;
    channel->resolve_stale = false;
    arpc_turn_add(&channel->turn, &channel->item);
    if (stale || channel->state != ARPC_CHANNEL_CONNECTING) {
        uv_freeaddrinfo(addresses);
        if (channel->state == ARPC_CHANNEL_CONNECTING)
            begin_attempt(channel); /* a newer attempt waited for the resolver */
        return;
    }
    if (status != 0) {
        attempt_failed(channel, uv_strerror(status));
        return;
    }
    channel->addresses = addresses;
    channel->next_address = addresses;
    connect_next(channel);
}

/* A numeric address needs no resolver, whose threads the whole process shares. */
static bool resolve_numeric(struct arpc_channel *channel)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | AI_NUMERICHOST};
    uv_getaddrinfo_t req;
    if (uv_getaddrinfo(channel->turn.loop, &req, NULL, channel->address.host, channel->address.port, &hints) != 0)
        return false;
    channel->addresses = req.addrinfo;
    channel->next_address = req.addrinfo;
    return true;
}

static void begin_attempt(struct arpc_channel *channel)
{
    if (channel->address.is_unix || resolve_numeric(channel)) {
        connect_next(channel);
        return;
    }
    if (channel->resolving)
        return; /* on_resolved of the older attempt begins this one */
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    channel->resolve.data = channel;
    int rc = uv_getaddrinfo(channel->turn.loop, &channel->resolve, on_resolved, channel->address.host,
                            channel->address.port, &hints);
    if (rc != 0)
        attempt_failed(channel, uv_strerror(rc));
    else
        channel->resolving = true;
}

static bool calls_wait(const struct arpc_channel *channel)
{
    for (const struct amp_list *it = channel->parking.calls.next; it != &channel->parking.calls; it = it->next) {
        const struct arpc_call *call =
            (const struct arpc_call *)(const void *)((const char *)it - offsetof(struct arpc_call, in_link));
        if (!arpc_call_is_over(call))
            return true;
    }
    return false;
}

static void start_connecting(struct arpc_channel *channel)
{
    channel->connect_wanted = false;
    channel->due_ms = arpc_after(now_of(channel), channel->connect_ms);
    set_state(channel, ARPC_CHANNEL_CONNECTING, NULL);
    if (channel->state == ARPC_CHANNEL_CONNECTING) /* state_cb may have closed the channel */
        begin_attempt(channel);
}

static void advance(struct arpc_channel *channel)
{
    bool due = channel->due_ms <= now_of(channel);
    if (channel->state == ARPC_CHANNEL_CONNECTING && due) {
        struct arpc_conn *conn = channel->current;
        attempt_failed(channel, "timed out");
        if (conn != NULL)
            arpc_conn_close(conn, NULL);
        return;
    }
    if (channel->state == ARPC_CHANNEL_BACKOFF && due && !channel->connect_wanted && !calls_wait(channel)) {
        channel->due_ms = INT64_MAX;
        set_state(channel, ARPC_CHANNEL_IDLE, NULL);
        return;
    }
    bool idle = channel->state == ARPC_CHANNEL_IDLE && (channel->connect_wanted || calls_wait(channel));
    bool again = channel->state == ARPC_CHANNEL_BACKOFF && (channel->connect_wanted || due);
    if (idle || again)
        start_connecting(channel);
}

static void on_turn_closed(struct arpc_turn *turn)
{
    struct arpc_channel *channel = AMP_CONTAINER(turn, struct arpc_channel, turn);
    void (*closed_cb)(void *) = channel->closed_cb;
    void *arg = channel->closed_arg;
    arpc_link_close(&channel->parking);
    free(channel);
    if (closed_cb != NULL)
        closed_cb(arg);
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct arpc_channel *channel = handle->data;
    arpc_turn_remove(&channel->item);
    arpc_turn_close(&channel->turn, on_turn_closed);
}

static void channel_pump(struct arpc_turn_item *item)
{
    struct arpc_channel *channel = AMP_CONTAINER(item, struct arpc_channel, item);
    arpc_link_tick(&channel->parking);
    advance(channel);
    if (arpc_link_flush(&channel->parking))
        arpc_turn_add(&channel->turn, &channel->item);
    arm_timer(channel);
    bool nothing_left = channel->conn_count == 0 && !channel->resolving && channel->parking.call_count == 0;
    if (channel->state != ARPC_CHANNEL_CLOSED || !nothing_left || channel->turn_closing)
        return;
    channel->turn_closing = true;
    uv_close((uv_handle_t *)&channel->timer, on_timer_closed);
}

static void wake_parking(struct arpc_link *link)
{
    struct arpc_channel *channel = AMP_CONTAINER(link, struct arpc_channel, parking);
    arpc_turn_add(&channel->turn, &channel->item);
}

void arpc_channel_connect(struct arpc_channel *channel)
{
    if (channel->state != ARPC_CHANNEL_IDLE && channel->state != ARPC_CHANNEL_BACKOFF)
        return;
    channel->connect_wanted = true;
    arpc_turn_add(&channel->turn, &channel->item);
}

static size_t or_size(size_t value, size_t otherwise)
{
    return value != 0 ? value : otherwise;
}

static int64_t or_ms(int64_t value, int64_t otherwise)
{
    return value != 0 ? value : otherwise;
}

static void set_options(struct arpc_channel *channel, const struct arpc_channel_options *given)
{
    struct arpc_channel_options options = {0};
    if (given != NULL)
        memcpy(&options, given, given->size < sizeof options ? given->size : sizeof options);
    struct arpc_link_config *config = &channel->config;
    channel->arg = options.arg;
    channel->state_cb = options.state_cb;
    config->now_cb = arpc_turn_now;
    config->clock = &channel->turn;
    config->keep_metadata = options.keep_metadata;
    config->max_streams = CALLS_MAX;
    config->max_metadata_bytes = METADATA_BYTES;
    config->max_metadata_count = METADATA_COUNT;
    config->max_queued = or_size(options.max_queued, DEFAULT_QUEUED);
    config->stream_window = or_size(options.stream_window, DEFAULT_WINDOW);
    if (config->stream_window > WINDOW_MAX)
        config->stream_window = WINDOW_MAX;
    config->keepalive_ms = or_ms(options.keepalive_ms, DEFAULT_KEEPALIVE_MS);
    config->write_stall_ms = or_ms(options.write_stall_ms, DEFAULT_WRITE_STALL_MS);
    channel->connect_ms = or_ms(options.connect_ms, DEFAULT_CONNECT_MS);
    channel->backoff_min_ms = or_ms(options.backoff_min_ms, DEFAULT_BACKOFF_MIN_MS);
    channel->backoff_max_ms = or_ms(options.backoff_max_ms, DEFAULT_BACKOFF_MAX_MS);
    amp_random_init(&channel->random, options.seed != 0 ? options.seed : uv_hrtime());
}

int arpc_channel_new(struct uv_loop_s *loop, const char *target, const struct arpc_channel_options *options,
                     struct arpc_channel **out, struct amp_error *error)
{
    struct arpc_channel *channel = calloc(1, sizeof *channel);
    if (channel == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "no memory for a channel");
    int rc = arpc_address_parse(target, &channel->address, error);
    if (rc != 0)
        goto failed;
    rc = arpc_turn_init(&channel->turn, loop);
    if (rc != 0) {
        (void)amp_error_set(error, rc, NULL, "no memory for a channel");
        goto failed;
    }
    set_options(channel, options);
    (void)snprintf(channel->authority, sizeof channel->authority, "%s",
                   channel->address.is_unix ? "localhost" : target);
    /* A parking link allocates nothing. */
    (void)arpc_link_init(&channel->parking, &channel->config, wake_parking, false);
    arpc_turn_item_init(&channel->item, channel_pump);
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
    drop_addresses(channel);
    if (channel->resolving)
        (void)uv_cancel((uv_req_t *)&channel->resolve); /* one that is under way has to be waited for */
    arpc_link_abort(&channel->parking, ARPC_STATUS_CANCELLED, "the channel was closed");
    AMP_LIST_EACH(it, safe, &channel->conns)
    {
        struct arpc_conn *conn = AMP_CONTAINER(it, struct arpc_conn, in_owner);
        if (conn->has_link)
            arpc_link_abort(&conn->link, ARPC_STATUS_CANCELLED, "the channel was closed");
        arpc_conn_close(conn, NULL);
    }
    arpc_turn_add(&channel->turn, &channel->item);
}

enum arpc_channel_state arpc_channel_state(const struct arpc_channel *channel)
{
    return channel->state;
}

/* Where a new call goes: the connection if there is one, else it is parked. */
static struct arpc_link *link_for_call(struct arpc_channel *channel)
{
    struct arpc_conn *conn = channel->current;
    bool ready = channel->state == ARPC_CHANNEL_READY && !conn->closing && arpc_link_takes_calls(&conn->link);
    return ready ? &conn->link : &channel->parking;
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
    call->max_message = or_size(options.max_message, DEFAULT_MESSAGE);
    call->wait_for_ready = options.wait_for_ready;
    call->single_inbound = options.single_response;
    if (options.deadline_ms > 0) {
        call->deadline_ms = arpc_after(now_of(channel), options.deadline_ms);
        arpc_link_due(link, call->deadline_ms);
    }
    if (channel->state == ARPC_CHANNEL_BACKOFF && !call->wait_for_ready)
        arpc_call_close(call, ARPC_STATUS_UNAVAILABLE, channel->error.text);
    if (out != NULL)
        *out = call;
    return 0;
}
