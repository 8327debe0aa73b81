/*
 * The server: listeners, connections, drain and close.
 *
 *     open -> draining -> (all connections gone) -> drained
 *     open or draining -> closing -> (listeners, connections, grace timer, deferred work closed) -> freed
 *
 * A listener or connection frees itself in its close callback and then asks for a look at what is left
 * (server_deferred).
 */
#include "rpc/io/server_state.h"

#include "base/assert.h"
#include "base/err.h"
#include "rpc/arpc_stats.h"
#include "rpc/h2/abuse.h"
#include "rpc/h2/serve.h"
#include "rpc/io/address.h"
#include "rpc/io/options.h"
#include "rpc/io/peer.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

/* Of the limits, rpc/arpc_limits.h has the defaults and their reasons. */
#define DEFAULT_KEEPALIVE_MS (2 * 60 * 60 * 1000) /* gRFC A8 */
#define DEFAULT_MIN_PING_MS  5000                 /* gRFC A8 has no client ask more often than every 10 s */
#define ACCEPTS_A_TURN       4                    /* each up to 30 us */
#define BACKLOG              512
#define REFUSED_AGAIN_MS     1   /* after as many were refused as may be */
#define ACCEPT_AGAIN_MS      100 /* after there was no memory for a connection */

static void on_connection(uv_stream_t *stream, int status);

/* libuv closes connections that it has no descriptor for, but storage needs some too. */
static size_t with_descriptors(size_t connections, const struct arpc_limits *limits)
{
    connections = arpc_or_size(connections, SIZE_MAX);
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur == RLIM_INFINITY)
        return connections;
    uint64_t room = arpc_limits_descriptors(limits, files.rlim_cur);
    return connections < room ? connections : (size_t)room;
}

/* Finer than the time of the loop, which stands still while a turn lasts. */
static int64_t clock_us(void *clock)
{
    return (int64_t)(uv_hrtime() / 1000);
}

static void set_config(struct arpc_server *server, const struct arpc_server_options *given)
{
    struct arpc_server_options options = {0};
    if (given != NULL)
        memcpy(&options, given, given->size < sizeof options ? given->size : sizeof options);
    struct arpc_limits *limits = &server->limits;
    *limits = options.limits != NULL ? *options.limits : arpc_limits_default;
    struct arpc_link_config *config = &server->config;
    config->limits = limits;
    config->abuse_cb = options.abuse_cb;
    config->retired_cb = options.retired_cb;
    arpc_bucket_init(&config->reports, limits->reports_burst, 0);
    config->server = true;
    config->now_cb = arpc_deferred_now;
    config->now_us_cb = clock_us;
    config->clock = &server->deferred;
    config->arg = options.arg;
    config->admit_cb = options.admit_cb;
    config->keep_metadata = options.keep_metadata;
    config->max_streams = arpc_or_size(options.max_streams, (size_t)limits->streams);
    config->max_metadata_bytes = arpc_or_size(options.max_metadata_bytes, (size_t)limits->metadata_bytes);
    config->max_metadata_count = arpc_or_size(options.max_metadata_count, (size_t)limits->metadata_count);
    config->max_queued = arpc_or_size(options.max_queued, (size_t)limits->queued);
    config->stream_window = arpc_or_window(options.stream_window);
    config->idle_ms = arpc_or_ms(options.idle_ms, limits->idle_ms);
    config->keepalive_ms = arpc_or_ms(options.keepalive_ms, DEFAULT_KEEPALIVE_MS);
    config->write_stall_ms = arpc_or_ms(options.write_stall_ms, limits->write_stall_ms);
    config->compress = options.compress;
    config->keepalive_timeout_ms = options.keepalive_timeout_ms;
    config->min_ping_interval_ms = arpc_or_ms(options.min_ping_interval_ms, DEFAULT_MIN_PING_MS);
    config->max_age_ms = options.max_age_ms;
    config->max_age_grace_ms = options.max_age_grace_ms;
    config->jitter = options.seed != 0 ? options.seed : uv_hrtime();
    server->handshake_failed_cb = options.handshake_failed_cb;
    size_t most = arpc_or_size(options.max_connections, (size_t)limits->connections);
    arpc_admission_init(&server->admission, limits, with_descriptors(most, limits));
    arpc_bucket_init(&server->refused, limits->refused_burst, 0);
}

/* A connection with the address that it is counted for. */
struct visit {
    struct arpc_conn conn;
    struct arpc_admission_conn admission;
    bool struck; /* its abuse is counted */
};

static void on_deferred_closed(struct arpc_deferred *deferred)
{
    struct arpc_server *server = AMP_CONTAINER(deferred, struct arpc_server, deferred);
    void (*closed_cb)(void *) = server->closed_cb;
    void *arg = server->closed_arg;
    arpc_admission_close(&server->admission);
    arpc_health_free(server->health);
    arpc_reflection_free(server->reflection);
    arpc_method_table_close(&server->config.methods);
    free(server);
    if (closed_cb != NULL)
        closed_cb(arg);
}

static void on_timer_closed(uv_handle_t *handle)
{
    struct arpc_server *server = handle->data;
    if (--server->timers > 0)
        return;
    arpc_deferred_remove(&server->item);
    arpc_deferred_close(&server->deferred, on_deferred_closed);
}

/* Connections that were not accepted are tried again: in the next turn, or when others have gone and left memory. */
static void accept_waiting(struct arpc_server *server)
{
    AMP_LIST_EACH(it, safe, &server->listeners)
    {
        struct arpc_listener *listener = AMP_CONTAINER(it, struct arpc_listener, in_server);
        if (listener->waiting)
            on_connection(&listener->socket.stream, 0);
    }
}

/* Whether something can be told or freed; runs at the end of a turn. */
static void server_deferred(struct arpc_deferred_item *item)
{
    struct arpc_server *server = AMP_CONTAINER(item, struct arpc_server, item);
    accept_waiting(server);
    if (server->conn_count > 0 || server->deferred_closing)
        return;
    if (server->draining && server->drained_cb != NULL) {
        void (*drained_cb)(void *) = server->drained_cb;
        server->drained_cb = NULL;
        (void)uv_timer_stop(&server->grace);
        drained_cb(server->drained_arg); /* may call arpc_server_close, which asks for another look */
    }
    if (!server->closing || server->listener_count > 0 || server->deferred_closing)
        return;
    server->deferred_closing = true;
    uv_close((uv_handle_t *)&server->grace, on_timer_closed);
    uv_close((uv_handle_t *)&server->again, on_timer_closed);
}

int arpc_server_new(struct uv_loop_s *loop, const struct arpc_server_options *options,
                    const struct arpc_method *methods, size_t count, struct arpc_server **out, struct amp_error *error)
{
    struct arpc_server *server = calloc(1, sizeof *server);
    if (server == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "no memory for a server");
    set_config(server, options);
    struct arpc_method_table *table = &server->config.methods;
    int rc = arpc_method_table_add(table, methods, count, error);
    if (rc == 0)
        rc = arpc_health_new(table->rows, table->count, &server->health);
    if (rc == 0)
        rc = arpc_method_table_add(table, arpc_health_methods, arpc_health_method_count, error);
    if (rc == 0)
        rc = arpc_deferred_init(&server->deferred, loop);
    if (rc != 0)
        goto failed;
    server->config.health = server->health;
    amp_list_init(&server->listeners);
    amp_list_init(&server->conns);
    arpc_deferred_item_init(&server->item, server_deferred);
    (void)uv_timer_init(loop, &server->grace); /* cannot fail */
    (void)uv_timer_init(loop, &server->again);
    server->grace.data = server;
    server->again.data = server;
    server->timers = 2;
    *out = server;
    return 0;
failed:
    if (rc == AMP_ENOMEM)
        (void)amp_error_set(error, AMP_ENOMEM, NULL, "no memory for a server");
    arpc_health_free(server->health);
    arpc_method_table_close(table);
    free(server);
    return rc;
}

int arpc_server_enable_reflection(struct arpc_server *server, const uint8_t *descriptors, size_t size,
                                  struct amp_error *error)
{
    AMP_ASSERT(server->reflection == NULL && amp_list_empty(&server->listeners));
    struct arpc_reflection *reflection;
    int rc = arpc_reflection_new(descriptors, size, &reflection, error);
    if (rc != 0)
        return rc;
    rc = arpc_method_table_add(&server->config.methods, arpc_reflection_methods, arpc_reflection_method_count, error);
    if (rc != 0) {
        arpc_reflection_free(reflection);
        return rc;
    }
    server->reflection = reflection;
    server->config.reflection = reflection;
    return 0;
}

/*
 * Abuse counts at once: until the connection is gone many more of its address might have been let in. That an
 * unadmitted one had to go is none: others of its address may be admitted.
 */
static void on_conn_pumped(struct arpc_conn *conn)
{
    struct arpc_server *server = conn->owner;
    struct visit *visit = AMP_CONTAINER(conn, struct visit, conn);
    enum arpc_abuse abuse = conn->link.abuse;
    if (conn->link.was_admitted)
        arpc_admission_admit(&server->admission, &visit->admission);
    if (visit->struck || abuse == ARPC_ABUSE_NONE || abuse == ARPC_ABUSE_UNADMITTED)
        return;
    visit->struck = true;
    arpc_admission_strike(&server->admission, visit->admission.source, arpc_deferred_now(&server->deferred));
}

static void on_conn_closed(struct arpc_conn *conn)
{
    struct arpc_server *server = conn->owner;
    struct visit *visit = AMP_CONTAINER(conn, struct visit, conn);
    amp_list_remove(&conn->in_owner);
    server->conn_count--;
    if (arpc_conn_no_tls(conn) && !server->closing) {
        server->handshakes_failed++;
        if (server->handshake_failed_cb != NULL)
            server->handshake_failed_cb(conn->link.peer, &conn->error, server->config.arg);
    }
    if (visit->admission.source != NULL)
        arpc_admission_leave(&server->admission, &visit->admission, arpc_deferred_now(&server->deferred));
    arpc_deferred_add(&server->deferred, &server->item);
    free(visit);
}

static void peer_name(struct arpc_conn *conn, bool is_unix, char *text, int size)
{
    struct sockaddr_storage address;
    int length = (int)sizeof address;
    if (!is_unix && uv_tcp_getpeername(&conn->socket.tcp, (struct sockaddr *)&address, &length) == 0)
        arpc_address_write((const struct sockaddr *)&address, text, size, NULL);
    else
        (void)snprintf(text, (size_t)size, "%s", is_unix ? "unix" : "?");
}

/* An unadmitted connection makes room, if no call on it was admitted in this turn of the loop. */
static void make_room(struct arpc_server *server, struct arpc_admission_conn *admission)
{
    struct arpc_conn *conn = &AMP_CONTAINER(admission, struct visit, admission)->conn;
    if (conn->link.was_admitted) {
        arpc_admission_admit(&server->admission, admission);
        return;
    }
    arpc_link_punish(&conn->link, ARPC_ABUSE_UNADMITTED);
    arpc_conn_dismiss(conn);
}

/* Whether the connection is let in: NONE, and it is counted. */
static enum arpc_abuse enter(struct arpc_server *server, struct visit *visit, bool is_unix)
{
    struct arpc_peer who = {.uid = -1};
    if (is_unix)
        arpc_peer_credentials(&visit->conn.socket.handle, &who);
    struct arpc_admission_key key = arpc_admission_key_of_user(who.uid);
    struct sockaddr_storage address;
    int length = (int)sizeof address;
    if (!is_unix && uv_tcp_getpeername(&visit->conn.socket.tcp, (struct sockaddr *)&address, &length) == 0)
        key = arpc_admission_key_of_address((const struct sockaddr *)&address);
    struct arpc_admission_conn *out;
    enum arpc_abuse cause =
        arpc_admission_enter(&server->admission, &key, arpc_deferred_now(&server->deferred), &visit->admission, &out);
    if (out != NULL)
        make_room(server, out);
    return cause;
}

static void on_again(uv_timer_t *timer)
{
    struct arpc_server *server = timer->data;
    arpc_deferred_add(&server->deferred, &server->item);
}

/* A flood of connections has its share of each turn, and of the time, and no more. */
static bool may_accept(struct arpc_listener *listener)
{
    struct arpc_server *server = listener->server;
    const struct arpc_limits *limits = &server->limits;
    arpc_bucket_fill(&server->refused, limits->refused_burst, limits->refused_per_s,
                     arpc_deferred_now(&server->deferred));
    if (limits->refused_burst > 0 && server->refused.level < 1000) {
        (void)uv_timer_start(&server->again, on_again, REFUSED_AGAIN_MS, 0);
        return false;
    }
    uint64_t turn = server->deferred.number;
    if (listener->turn != turn)
        listener->accepted = 0;
    listener->turn = turn;
    if (listener->accepted++ < ACCEPTS_A_TURN)
        return true;
    arpc_deferred_add(&server->deferred, &server->item);
    return false;
}

static void on_connection(uv_stream_t *stream, int status)
{
    struct arpc_listener *listener = stream->data;
    struct arpc_server *server = listener->server;
    if (status != 0) {
        server->config.abuses[ARPC_ABUSE_DESCRIPTORS]++; /* libuv has closed the connection by its spare one */
        return;
    }
    server->deferred.arrivals = true;
    /* A connection that is not accepted stays with libuv, which listens again once it is. */
    listener->waiting = true;
    if (!may_accept(listener))
        return;
    struct visit *visit = malloc(sizeof *visit);
    if (visit == NULL) { /* it may be other parts of the process that have it */
        (void)uv_timer_start(&server->again, on_again, ACCEPT_AGAIN_MS, 0);
        return;
    }
    listener->waiting = false;
    struct arpc_conn *conn = &visit->conn;
    visit->admission = (struct arpc_admission_conn){0};
    visit->struck = false;
    arpc_conn_init(conn, &server->deferred, listener->is_unix, server, on_conn_pumped, on_conn_closed);
    conn->bytes_received = &server->bytes_received;
    conn->bytes_sent = &server->bytes_sent;
    amp_list_push(&server->conns, &conn->in_owner);
    server->conn_count++;
    server->connections_total++;
    char peer[64];
    int rc = uv_accept(stream, &conn->socket.stream);
    enum arpc_abuse cause = rc == 0 ? enter(server, visit, listener->is_unix) : ARPC_ABUSE_NONE;
    server->config.abuses[cause]++;
    if (cause != ARPC_ABUSE_NONE) {
        /*
         * The kernel throws away what such a peer has sent already, which may be megabytes: one is enough for a turn.
         */
        (void)arpc_bucket_take(&server->refused, server->limits.refused_burst);
        listener->accepted = ACCEPTS_A_TURN;
    }
    if (rc == 0 && cause == ARPC_ABUSE_NONE) {
        arpc_flow_join(&conn->item.flow, &visit->admission.source->flows);
        peer_name(conn, listener->is_unix, peer, sizeof peer);
        rc = arpc_conn_start_tls(conn, &server->config, peer, listener->tls, NULL);
        conn->link.host = &visit->admission.source->host;
        conn->link.peer_info.source = arpc_admission_hash(&visit->admission.source->key);
        if (rc == 0 && listener->is_unix)
            arpc_peer_credentials(&conn->socket.handle, &conn->link.peer_info);
        if (rc == 0)
            return;
    }
    arpc_conn_close(conn, NULL);
}

static void on_listener_closed(uv_handle_t *handle)
{
    struct arpc_listener *listener = handle->data;
    struct arpc_server *server = listener->server;
    server->listener_count--;
    arpc_deferred_add(&server->deferred, &server->item);
    arpc_tls_unref(listener->tls);
    free(listener);
}

static void close_listeners(struct arpc_server *server)
{
    AMP_LIST_EACH(it, safe, &server->listeners)
    {
        struct arpc_listener *listener = AMP_CONTAINER(it, struct arpc_listener, in_server);
        amp_list_remove(&listener->in_server);
        uv_close(&listener->socket.handle, on_listener_closed);
    }
}

static int bind_tcp(struct arpc_listener *listener, const struct arpc_address *address)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    uv_getaddrinfo_t req;
    /* Without a callback libuv resolves at once: this is the start of a program, on its own address. */
    int rc = uv_getaddrinfo(listener->server->deferred.loop, &req, NULL, address->host, address->port, &hints);
    if (rc != 0)
        return rc;
    rc = uv_tcp_bind(&listener->socket.tcp, req.addrinfo->ai_addr, 0);
    uv_freeaddrinfo(req.addrinfo);
    return rc;
}

static int bind_unix(struct arpc_listener *listener, const char *path)
{
    int rc = uv_pipe_bind(&listener->socket.pipe, path);
    if (rc == UV_EADDRINUSE && arpc_address_remove_stale(path))
        rc = uv_pipe_bind(&listener->socket.pipe, path);
    /* libuv calls that a missing right, too. */
    return rc == UV_EACCES && !arpc_address_has_directory(path) ? UV_ENOENT : rc;
}

static int amp_code_of(int uv_code)
{
    switch (uv_code) {
    case UV_EADDRINUSE:
        return AMP_EEXIST;
    case UV_ENOENT:
        return AMP_ENOTFOUND;
    case UV_EACCES:
    case UV_EPERM:
        return AMP_EDENIED;
    case UV_EAI_NONAME:
    case UV_EAI_ADDRFAMILY:
    case UV_EADDRNOTAVAIL:
        return AMP_EINVAL;
    case UV_ENOMEM:
        return AMP_ENOMEM;
    case UV_EMFILE:
    case UV_ENFILE:
        return AMP_EEXHAUSTED;
    default:
        return AMP_EIO;
    }
}

static void bound_port(struct arpc_listener *listener, int *port)
{
    struct sockaddr_storage address;
    char text[64];
    int length = (int)sizeof address;
    if (port == NULL)
        return;
    *port = 0;
    if (!listener->is_unix && uv_tcp_getsockname(&listener->socket.tcp, (struct sockaddr *)&address, &length) == 0)
        arpc_address_write((const struct sockaddr *)&address, text, sizeof text, port);
}

int arpc_server_listen(struct arpc_server *server, const char *address, int *port, struct amp_error *error)
{
    return arpc_server_listen_tls(server, address, NULL, port, error);
}

int arpc_server_listen_tls(struct arpc_server *server, const char *address, struct arpc_tls *tls, int *port,
                           struct amp_error *error)
{
    AMP_ASSERT(tls == NULL || tls->server);
    struct arpc_address parsed;
    int rc = arpc_address_parse(address, &parsed, error);
    if (rc != 0)
        return rc;
    struct arpc_listener *listener = calloc(1, sizeof *listener);
    if (listener == NULL)
        return amp_error_set(error, AMP_ENOMEM, NULL, "no memory to listen on %s", address);
    listener->server = server;
    listener->is_unix = parsed.is_unix;
    listener->tls = tls != NULL ? arpc_tls_ref(tls) : NULL;
    if (parsed.is_unix)
        (void)uv_pipe_init(server->deferred.loop, &listener->socket.pipe, 0); /* makes no system call */
    else
        (void)uv_tcp_init(server->deferred.loop, &listener->socket.tcp);
    listener->socket.handle.data = listener;
    server->listener_count++;
    rc = parsed.is_unix ? bind_unix(listener, parsed.host) : bind_tcp(listener, &parsed);
    if (rc == 0)
        rc = uv_listen(&listener->socket.stream, BACKLOG, on_connection); /* a used port shows only here */
    if (rc != 0) {
        uv_close(&listener->socket.handle, on_listener_closed);
        return amp_error_set(error, amp_code_of(rc), NULL, "cannot listen on %s: %s", address, uv_strerror(rc));
    }
    amp_list_push(&server->listeners, &listener->in_server);
    bound_port(listener, port);
    return 0;
}

int arpc_server_set_health(struct arpc_server *server, const char *service, bool serving)
{
    return arpc_health_set(server->health, service, serving);
}

unsigned arpc_server_admit_again(struct arpc_server *server,
                                 int (*admit_cb)(struct arpc_call *call, void *arg, struct amp_error *error))
{
    unsigned ended = 0;
    AMP_LIST_EACH(it, safe, &server->conns)
    {
        struct arpc_conn *conn = AMP_CONTAINER(it, struct arpc_conn, in_owner);
        if (conn->has_link)
            ended += arpc_link_admit_again(&conn->link, admit_cb);
    }
    return ended;
}

static void close_conns(struct arpc_server *server, const char *why)
{
    struct amp_error error;
    (void)amp_error_set(&error, AMP_EUNAVAILABLE, NULL, "%s", why);
    AMP_LIST_EACH(it, safe, &server->conns)
    {
        arpc_conn_close(AMP_CONTAINER(it, struct arpc_conn, in_owner), &error);
    }
}

static void on_grace(uv_timer_t *timer)
{
    close_conns(timer->data, "the server has drained");
}

void arpc_server_drain(struct arpc_server *server, int64_t grace_ms, void (*drained_cb)(void *arg), void *arg)
{
    AMP_ASSERT(!server->draining && !server->closing);
    server->draining = true;
    server->drained_cb = drained_cb;
    server->drained_arg = arg;
    arpc_health_drain(server->health);
    close_listeners(server);
    AMP_LIST_EACH(it, safe, &server->conns)
    {
        struct arpc_conn *conn = AMP_CONTAINER(it, struct arpc_conn, in_owner);
        if (conn->has_link)
            arpc_link_drain(&conn->link);
    }
    (void)uv_timer_start(&server->grace, on_grace, (uint64_t)(grace_ms > 0 ? grace_ms : 0), 0);
    arpc_deferred_add(&server->deferred, &server->item);
}

void arpc_server_close(struct arpc_server *server, void (*closed_cb)(void *arg), void *arg)
{
    AMP_ASSERT(!server->closing);
    server->closing = true;
    server->closed_cb = closed_cb;
    server->closed_arg = arg;
    close_listeners(server);
    close_conns(server, "the server was closed");
    arpc_deferred_add(&server->deferred, &server->item);
}

void arpc_server_stats(const struct arpc_server *server, struct arpc_server_stats *stats)
{
    *stats = (struct arpc_server_stats){.connections_total = server->connections_total,
                                        .calls_total = server->config.calls_total,
                                        .handshakes_failed = server->handshakes_failed,
                                        .bytes_received = server->bytes_received,
                                        .bytes_sent = server->bytes_sent,
                                        .connections = server->conn_count,
                                        .calls = server->config.calls};
    memcpy(stats->abuses, server->config.abuses, sizeof stats->abuses);
    stats->abuses[ARPC_ABUSE_NONE] = 0;
}

size_t arpc_server_methods(const struct arpc_server *server)
{
    return server->config.methods.count;
}

const struct arpc_method *arpc_server_method(const struct arpc_server *server, size_t index,
                                             const struct arpc_method_stats **stats)
{
    AMP_ASSERT(index < server->config.methods.count);
    *stats = server->config.methods.rows[index].stats;
    return server->config.methods.rows[index].method;
}
