#include "server/io/process/listen.h"

#include "proto/descriptors.h"
#include "rpc/arpc_server.h"
#include "server/io/auth/auth_gate.h"
#include "server/io/base/options.h"
#include "server/io/base/server.h"
#include "server/io/calls/memory_socket.h"
#include "server/io/cluster/membership.h"
#include "server/io/cluster/peers.h"
#include "server/io/process/memory_limit.h"
#include "server/io/process/methods.h"
#include "server/io/process/server_health.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

/* If callers are asked who they are, each call is checked, and the file's mode need not keep other users away. */
static void open_socket_mode(const struct ampd_server *server, const char *path)
{
    if (server->auth->policy.on && chmod(path, 0666) != 0)
        amp_log(server->log, AMP_LOG_WARN, "server", "msg=\"only this user can connect to the unix socket\" path=%s",
                path);
}

/*
 * Opens the unix sockets in the data directory, for clients of this machine. If the path is too long for a socket, the
 * server goes on without them.
 */
static void listen_unix(struct ampd_server *server)
{
    char address[AMPD_DATADIR_PATH_MAX + 32];
    struct amp_error error = {0};
    (void)snprintf(address, sizeof address, "unix:%s/ampd.sock", io_membership_directory(server));
    const char *path = address + strlen("unix:");
    if (strlen(path) >= sizeof((struct sockaddr_un *)0)->sun_path) {
        amp_log(server->log, AMP_LOG_WARN, "server", "msg=\"no unix socket: its path is too long\" path=%s", path);
        return;
    }
    (void)unlink(path); /* left by an earlier process: this one holds the directory's lock */
    if (arpc_server_listen(server->rpc, address, NULL, &error) != 0)
        amp_log(server->log, AMP_LOG_WARN, "server", "msg=\"no unix socket\" path=%s err=\"%s\"", path, error.text);
    else
        open_socket_mode(server, path);
    io_memory_socket_open(server, io_membership_directory(server));
}

static int admit(struct arpc_call *call, void *arg, struct amp_error *error)
{
    struct ampd_server *server = arg;
    return ampd_auth_admit(server->auth, call, error);
}

static void on_handshake_failed(const char *peer, const struct amp_error *error, void *arg)
{
    struct ampd_server *server = arg;
    ampd_auth_handshake_failed(server->auth, peer, error);
}

/* The rpc library calls this at most once a second in the long run. */
static void on_abuse(const char *peer, enum arpc_abuse cause, uint64_t unreported, void *arg)
{
    struct ampd_server *server = arg;
    amp_log(server->log, AMP_LOG_WARN, "rpc", "msg=\"%s\" cause=%s peer=%s unreported=%" PRIu64, arpc_abuse_text(cause),
            arpc_abuse_name(cause), peer, unreported);
}

/* Logged at debug level, since the end of an idle connection is not worth more. */
static void on_retired(const char *peer, const char *why, void *arg)
{
    struct ampd_server *server = arg;
    amp_log(server->log, AMP_LOG_DEBUG, "rpc", "msg=\"connection retired\" why=%s peer=%s", why, peer);
}

/* Listens at --listen, and fills in server->endpoint. Returns an exit code. */
static int listen_rpc(struct ampd_server *server, struct amp_error *error)
{
    const char *address = server->options->listen;
    int port = 0;
    int rc = server->auth->tls != NULL ? arpc_server_listen_tls(server->rpc, address, server->auth->tls, &port, error)
                                       : arpc_server_listen(server->rpc, address, &port, error);
    if (rc != 0) {
        struct amp_error why = *error;
        (void)amp_error_set(error, rc, NULL, "%s; %s", why.text,
                            rc == AMP_EINVAL       ? "give --listen an address of this machine"
                            : rc == AMP_EEXIST     ? "end what listens there, or give --listen another one"
                            : rc == AMP_ENOTFOUND  ? "make the directory of the socket, or give --listen another one"
                            : rc == AMP_EEXHAUSTED ? "raise their limit (ulimit -n)"
                                                   : "give --listen another one");
        return rc == AMP_EINVAL ? AMPD_EXIT_USAGE : AMPD_EXIT_FAILED;
    }
    bool is_unix = strncmp(address, "unix:", 5) == 0;
    const char *colon = strrchr(address, ':');
    if (is_unix)
        (void)snprintf(server->endpoint, sizeof server->endpoint, "%s", address);
    else
        (void)snprintf(server->endpoint, sizeof server->endpoint, "%.*s:%d", colon != NULL ? (int)(colon - address) : 0,
                       address, port);
    if (is_unix)
        open_socket_mode(server, address + 5);
    return AMPD_EXIT_OK;
}

int io_listen(struct ampd_server *server, struct amp_error *error)
{
    struct arpc_server_options options = {.size = sizeof options,
                                          .arg = server,
                                          .admit_cb = admit,
                                          .keep_metadata = ampd_auth_metadata,
                                          .handshake_failed_cb = on_handshake_failed,
                                          .abuse_cb = on_abuse,
                                          .retired_cb = on_retired};
    struct arpc_limits limits = arpc_limits_default;
    io_memory_bound_calls(server->options->memory_max, &limits);
    options.limits = &limits;
    const int64_t *times_ms = server->options->times_ms;
    options.keepalive_ms = times_ms[AMPD_TIME_KEEPALIVE];
    options.keepalive_timeout_ms = times_ms[AMPD_TIME_KEEPALIVE_TIMEOUT];
    options.min_ping_interval_ms = times_ms[AMPD_TIME_MIN_PING_INTERVAL];
    /* Other shards send PINGs every IO_PEERS_KEEPALIVE_MS, for which they must not be disconnected. */
    if (server->peers != NULL &&
        (options.min_ping_interval_ms == 0 || options.min_ping_interval_ms > IO_PEERS_KEEPALIVE_MS / 2))
        options.min_ping_interval_ms = IO_PEERS_KEEPALIVE_MS / 2;
    options.idle_ms = times_ms[AMPD_TIME_CONNECTION_IDLE];
    options.max_age_ms = times_ms[AMPD_TIME_CONNECTION_AGE];
    options.max_age_grace_ms = times_ms[AMPD_TIME_CONNECTION_AGE_GRACE];
    size_t count;
    const struct arpc_method *methods = ampd_methods(&count);
    int rc = arpc_server_new(&server->loop, &options, methods, count, &server->rpc, error);
    if (rc == 0)
        rc = arpc_server_enable_reflection(server->rpc, ampd_descriptor_set, ampd_descriptor_set_size, error);
    if (rc != 0)
        return AMPD_EXIT_FAILED;
    int code = listen_rpc(server, error);
    if (code != AMPD_EXIT_OK)
        return code;
    io_server_health_set(server, false); /* until recovery is done */
    listen_unix(server);
    return AMPD_EXIT_OK;
}
