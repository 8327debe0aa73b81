/*
 * An attempt to connect: pick_first of gRPC. The endpoints are tried in turn, from the one after the last that failed;
 * of each, all addresses that its name has. The first that speaks HTTP/2 is taken.
 *
 * connect_ms bounds all of it. What is left of it is divided by the endpoints that are left, and an endpoint's share by
 * its addresses: one that does not answer takes its share and no more, and what another does not use is for the others.
 * An address that takes no TCP connection (a machine that is off, IPv6 that leads nowhere) is left sooner.
 */
#define _DEFAULT_SOURCE /* TCP_USER_TIMEOUT */
#include "rpc/io/channel.h"

#include "base/err.h"

#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/*
 * Idle time after which the kernel asks a silent peer; ten seconds more without an answer, and the connection is lost.
 * It finds a dead host while a call waits for minutes, and no server counts it as it counts PINGs.
 */
#define TCP_KEEPALIVE_S 30

/* For a TCP connection, if another address is left: a lost SYN is sent again after 1 s (RFC 6298). */
#define TCP_CONNECT_MS 1300

static void try_endpoint(struct arpc_channel *channel);
static void try_address(struct arpc_channel *channel);

static const struct arpc_endpoint *endpoint_of(const struct arpc_channel *channel)
{
    return &channel->endpoints.list[channel->attempt.endpoint];
}

/* Now and a share of the time until due_ms. */
static int64_t share(int64_t now_ms, int64_t due_ms, size_t parts)
{
    if (due_ms == INT64_MAX)
        return INT64_MAX;
    int64_t left_ms = due_ms > now_ms ? due_ms - now_ms : 0;
    return now_ms + left_ms / (int64_t)parts;
}

static void drop_addresses(struct arpc_attempt *attempt)
{
    if (attempt->addresses != NULL)
        freeaddrinfo(attempt->addresses);
    attempt->addresses = NULL;
    attempt->next_address = NULL;
}

void arpc_connect_stop(struct arpc_channel *channel)
{
    struct arpc_attempt *attempt = &channel->attempt;
    drop_addresses(attempt);
    if (attempt->resolve != NULL)
        arpc_resolve_leave(attempt->resolve);
    attempt->resolve = NULL;
}

/* "a:1: connection refused; b:2: timed out": one clause for each step that failed, as far as there is room. */
static void note(struct arpc_channel *channel, const char *why)
{
    char *text = channel->attempt.why;
    size_t used = strlen(text);
    (void)snprintf(text + used, sizeof channel->attempt.why - used, "%s%s: %s", used > 0 ? "; " : "",
                   endpoint_of(channel)->text, why);
}

/* What is next after a step that failed. */
static void step_failed(struct arpc_channel *channel, const char *why)
{
    struct arpc_attempt *attempt = &channel->attempt;
    channel->current = NULL;
    note(channel, why);
    if (attempt->next_address != NULL) {
        try_address(channel);
        return;
    }
    arpc_connect_stop(channel);
    if (--attempt->endpoints_left == 0) {
        arpc_channel_attempt_failed(channel);
        return;
    }
    attempt->endpoint = (attempt->endpoint + 1) % channel->endpoints.count;
    try_endpoint(channel);
}

/* ---- one connection ---- */

static void on_conn_closed(struct arpc_conn *conn)
{
    struct arpc_channel *channel = conn->owner;
    amp_list_remove(&conn->in_owner);
    channel->conn_count--;
    if (channel->current == conn) {
        const char *why = conn->error.code != 0 ? conn->error.text : "the server closed the connection";
        /* Its server began to drain before the calls could move: it was a connection all the same. */
        if (channel->state == ARPC_CHANNEL_CONNECTING && conn->has_link && conn->link.goaway.received)
            arpc_channel_attempt_succeeded(channel, NULL);
        if (channel->state == ARPC_CHANNEL_READY) {
            (void)amp_error_set(&channel->error, AMP_EUNAVAILABLE, NULL, "%s", why);
            arpc_channel_leave_ready(channel, &channel->error);
        } else if (channel->state == ARPC_CHANNEL_CONNECTING) {
            step_failed(
                channel,
                conn->error.code != 0
                    ? why
                    : "the server closed the connection before it said anything in HTTP/2: is this its gRPC port?");
        }
    }
    arpc_deferred_add(&channel->deferred, &channel->item);
    free(conn);
}

static const char *why_no_calls(const struct arpc_link *link)
{
    if (link->goaway.drain != ARPC_DRAIN_NO)
        return "the connection was idle";
    if (link->goaway.received)
        return "the server is going away";
    return arpc_link_takes_calls(link) ? NULL : "the connection has no stream ids left";
}

static void on_conn_pumped(struct arpc_conn *conn)
{
    struct arpc_channel *channel = conn->owner;
    if (channel->current != conn || conn->closing)
        return;
    if (channel->state == ARPC_CHANNEL_CONNECTING && conn->link.handshake.peer_settings)
        arpc_channel_attempt_succeeded(channel, &conn->link);
    const char *why = channel->state == ARPC_CHANNEL_READY ? why_no_calls(&conn->link) : NULL;
    if (why == NULL)
        return;
    (void)amp_error_set(&channel->error, AMP_EUNAVAILABLE, NULL, "%s", why);
    arpc_link_drain(&conn->link); /* it closes when its calls have ended */
    arpc_channel_leave_ready(channel, &channel->error);
}

/* Without this a dead host is found later. */
static void watch_peer(const struct arpc_channel *channel, uv_tcp_t *tcp)
{
    unsigned ms = (unsigned)channel->unacknowledged_ms;
    int fd;
    (void)uv_tcp_keepalive(tcp, 1, TCP_KEEPALIVE_S);
    if (ms > 0 && uv_fileno((uv_handle_t *)tcp, &fd) == 0)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &ms, sizeof ms);
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
    if (channel->current == conn)
        channel->due_ms = channel->attempt.address_due_ms;
    if (conn->socket.handle.type == UV_TCP)
        watch_peer(channel, &conn->socket.tcp);
    const struct arpc_endpoint *endpoint = endpoint_of(channel);
    bool is_unix = endpoint->address.is_unix;
    int rc = arpc_conn_start_tls(conn, &channel->config, is_unix ? "localhost" : endpoint->text, channel->tls,
                                 is_unix ? "localhost" : endpoint->address.host);
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
    arpc_conn_init(conn, &channel->deferred, endpoint_of(channel)->address.is_unix, channel, on_conn_pumped,
                   on_conn_closed);
    conn->bytes_received = &channel->bytes_received;
    conn->bytes_sent = &channel->bytes_sent;
    conn->connect.data = conn;
    amp_list_push(&channel->conns, &conn->in_owner);
    channel->conn_count++;
    channel->current = conn;
    return conn;
}

/* The next address of the endpoint, or its path. */
static void try_address(struct arpc_channel *channel)
{
    struct arpc_attempt *attempt = &channel->attempt;
    const struct addrinfo *address = attempt->next_address;
    size_t addresses_left = 0;
    for (const struct addrinfo *it = address; it != NULL; it = it->ai_next)
        addresses_left++;
    int64_t now_ms = arpc_channel_now(channel);
    attempt->address_due_ms = share(now_ms, attempt->endpoint_due_ms, addresses_left > 0 ? addresses_left : 1);
    channel->due_ms = attempt->address_due_ms;
    if (address != NULL)
        attempt->next_address = address->ai_next;
    if (address != NULL && addresses_left + attempt->endpoints_left > 2 && channel->due_ms > now_ms + TCP_CONNECT_MS)
        channel->due_ms = now_ms + TCP_CONNECT_MS;
    struct arpc_conn *conn = new_conn(channel);
    if (conn == NULL) {
        step_failed(channel, "no memory");
        return;
    }
    if (address == NULL) {
        uv_pipe_connect(&conn->connect, &conn->socket.pipe, endpoint_of(channel)->address.host, on_connect);
        return;
    }
    int rc = uv_tcp_connect(&conn->connect, &conn->socket.tcp, address->ai_addr, on_connect);
    if (rc != 0) {
        struct amp_error error;
        (void)amp_error_set(&error, AMP_EUNAVAILABLE, NULL, "%s", uv_strerror(rc));
        arpc_conn_close(conn, &error);
    }
}

/* ---- names ---- */

static void take_addresses(struct arpc_channel *channel, struct addrinfo *addresses)
{
    channel->attempt.addresses = addresses;
    channel->attempt.next_address = addresses;
    try_address(channel);
}

static void on_resolved(void *arg, int status, struct addrinfo *addresses)
{
    struct arpc_channel *channel = arg;
    arpc_resolve_leave(channel->attempt.resolve);
    channel->attempt.resolve = NULL;
    if (status == 0 && addresses != NULL)
        take_addresses(channel, addresses);
    else
        step_failed(channel, status != 0 ? gai_strerror(status) : "the name has no address");
    arpc_deferred_add(&channel->deferred, &channel->item);
}

static void on_resolve_gone(void *arg)
{
    struct arpc_channel *channel = arg;
    channel->resolve_count--;
    arpc_deferred_add(&channel->deferred, &channel->item);
}

static void resolve_name(struct arpc_channel *channel, const struct arpc_address *address)
{
    const struct arpc_resolve_calls calls = {.done_cb = on_resolved, .gone_cb = on_resolve_gone, .arg = channel};
    channel->due_ms = channel->attempt.endpoint_due_ms;
    int rc =
        arpc_resolve_start(channel->deferred.loop, address->host, address->port, &calls, &channel->attempt.resolve);
    if (rc == 0)
        channel->resolve_count++;
    else
        step_failed(channel, rc == AMP_EEXHAUSTED ? "too many names are being resolved" : "no memory");
}

/* ---- the attempt ---- */

/* Recurses, by way of step_failed, at most once for each endpoint. */
static void try_endpoint(struct arpc_channel *channel)
{
    struct arpc_attempt *attempt = &channel->attempt;
    const struct arpc_address *address = &endpoint_of(channel)->address;
    attempt->endpoint_due_ms = share(arpc_channel_now(channel), attempt->due_ms, attempt->endpoints_left);
    if (address->is_unix) {
        try_address(channel);
        return;
    }
    struct addrinfo *numeric = arpc_resolve_numeric(address->host, address->port);
    if (numeric != NULL)
        take_addresses(channel, numeric);
    else
        resolve_name(channel, address);
}

void arpc_connect_start(struct arpc_channel *channel)
{
    struct arpc_attempt *attempt = &channel->attempt;
    attempt->started_ms = arpc_channel_now(channel);
    attempt->due_ms = arpc_after(attempt->started_ms, channel->connect_ms);
    attempt->endpoint = channel->first_endpoint;
    attempt->endpoints_left = channel->endpoints.count;
    attempt->why[0] = 0;
    try_endpoint(channel);
}

static const char *why_timed_out(const struct arpc_conn *conn)
{
    if (conn == NULL || !conn->has_link)
        return "timed out";
    return conn->tls != NULL && !arpc_tls_is_ready(conn->tls)
               ? "the TLS handshake did not end in time: is this its gRPC port?"
               : "the server takes the connection, but says nothing in HTTP/2: is this its gRPC port?";
}

void arpc_connect_timed_out(struct arpc_channel *channel)
{
    struct arpc_conn *conn = channel->current;
    if (channel->attempt.resolve != NULL)
        arpc_resolve_leave(channel->attempt.resolve);
    channel->attempt.resolve = NULL;
    step_failed(channel, why_timed_out(conn));
    if (conn != NULL)
        arpc_conn_close(conn, NULL);
}
