#include "server/io/server.h"

#include "base/assert.h"
#include "base/failpoint.h"
#include "proto/descriptors.h"
#include "rpc/arpc_server.h"
#include "server/io/alive.h"
#include "server/io/aside.h"
#include "server/io/handlers.h"
#include "server/io/http.h"
#include "server/io/join.h"
#include "server/io/notify.h"
#include "server/io/peers.h"
#include "server/io/place.h"
#include "server/io/trouble.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

int64_t ampd_utc_us(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_REALTIME, &now); /* cannot fail for this clock */
    return (int64_t)now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

_Noreturn void ampd_server_fatal(const struct ampd_server *server, const char *what, const struct amp_error *error)
{
    amp_log(server->log, AMP_LOG_ERROR, "server", "msg=\"%s, ending\" err=\"%s\"", what, error->text);
    _Exit(AMPD_EXIT_FAILED);
}

/* ---- storage ---- */

static int exit_code_of(int code)
{
    return code == AMP_EIO || code == AMP_ENOMEM || code == AMP_EEXHAUSTED ? AMPD_EXIT_FAILED : AMPD_EXIT_DATA_DIR;
}

/* Made if it is not there, as the data directory is. */
static int open_checkpoint_dir(struct ampd_server *server, struct amp_error *error)
{
    const char *path = server->options->checkpoint_dir;
    server->checkpoint_dir = path != NULL ? path : server->dir.path;
    return path != NULL ? ampd_datadir_make(path, "checkpoint directory", error) : 0;
}

int ampd_server_open_store(struct ampd_server *server, struct amp_error *error)
{
    int rc = ampd_store_sqlite_open(server->dir.path, &server->store, error);
    if (rc == 0)
        rc = ampd_store_open_reader(server->store, &server->reader, error);
    return rc;
}

int ampd_server_open_storage(struct ampd_server *server, const char *path, struct amp_error *error)
{
    int rc = ampd_datadir_open(&server->dir, path, error);
    if (rc == 0)
        rc = open_checkpoint_dir(server, error);
    if (rc == 0)
        rc = ampd_server_open_store(server, error);
    return rc;
}

static void close_storage(struct ampd_server *server)
{
    ampd_server_journals_close(server);
    ampd_store_close(server->reader);
    ampd_store_close(server->store);
    ampd_datadir_close(&server->dir);
}

/* ---- the loop and what hangs on it ---- */

static int open_handles(struct ampd_server *server, struct amp_error *error)
{
    struct {
        struct io_threads **pool;
        unsigned count;
        enum io_threads_kind kind;
    } pools[] = {{&server->compute, server->options->compute_threads, IO_THREADS_PATIENT},
                 {&server->writer, 1, IO_THREADS_LOOKING},
                 {&server->readers, 1, IO_THREADS_PLAIN},
                 {&server->files, 1, IO_THREADS_PLAIN},
                 {&server->journal, 1, IO_THREADS_PLAIN}};
    for (size_t i = 0; i < sizeof pools / sizeof *pools; i++)
        if (io_threads_new(&server->loop, pools[i].count, pools[i].kind, pools[i].pool) != 0)
            return amp_error_set(error, AMP_ENOMEM, NULL, "cannot start threads");
    if (uv_timer_init(&server->loop, &server->core_timer) != 0 ||
        uv_timer_init(&server->loop, &server->drain_timer) != 0 ||
        uv_timer_init(&server->loop, &server->expiry_timer) != 0 ||
        uv_timer_init(&server->loop, &server->trim_timer) != 0 ||
        uv_timer_init(&server->loop, &server->alive_timer) != 0 ||
        uv_signal_init(&server->loop, &server->on_term) != 0 || uv_signal_init(&server->loop, &server->on_int) != 0 ||
        uv_signal_init(&server->loop, &server->on_hup) != 0 || ampd_server_watch_signals(server) != 0)
        return amp_error_set(error, AMP_EIO, NULL, "cannot watch signals");
    server->handles_open = true;
    server->core_timer.data = server;
    server->drain_timer.data = server;
    server->expiry_timer.data = server;
    server->trim_timer.data = server;
    server->on_term.data = server;
    server->on_int.data = server;
    server->on_hup.data = server;
    ampd_server_watch_tokens(server);
    ampd_server_watch_memory(server);
    io_alive_start(server);
    return 0;
}

/* Where callers are asked who they are, who may connect to a socket is decided call by call, not by the file's mode. */
static void open_socket_mode(const struct ampd_server *server, const char *path)
{
    if (server->auth.policy.on && chmod(path, 0666) != 0)
        amp_log(server->log, AMP_LOG_WARN, "server", "msg=\"only this user can connect to the unix socket\" path=%s",
                path);
}

/* The unix socket in the data directory, for clients of this machine; a path that is too long for one is done without. */
static void listen_unix(struct ampd_server *server)
{
    char address[AMPD_DATADIR_PATH_MAX + 32];
    struct amp_error error = {0};
    (void)snprintf(address, sizeof address, "unix:%s/ampd.sock", io_place_directory(server));
    const char *path = address + strlen("unix:");
    if (strlen(path) >= sizeof((struct sockaddr_un *)0)->sun_path) {
        amp_log(server->log, AMP_LOG_WARN, "server", "msg=\"no unix socket: its path is too long\" path=%s", path);
        return;
    }
    (void)unlink(path); /* of a process that is gone: this one holds the directory's lock */
    if (arpc_server_listen(server->rpc, address, NULL, &error) != 0)
        amp_log(server->log, AMP_LOG_WARN, "server", "msg=\"no unix socket\" path=%s err=\"%s\"", path, error.text);
    else
        open_socket_mode(server, path);
}

static int admit(struct arpc_call *call, void *arg, struct amp_error *error)
{
    struct ampd_server *server = arg;
    return ampd_auth_admit(&server->auth, call, error);
}

static void on_handshake_failed(const char *peer, const struct amp_error *error, void *arg)
{
    struct ampd_server *server = arg;
    ampd_auth_handshake_failed(&server->auth, peer, error);
}

/* The rpc library calls this at most once a second in the long run. */
static void on_abuse(const char *peer, enum arpc_abuse cause, uint64_t unreported, void *arg)
{
    struct ampd_server *server = arg;
    amp_log(server->log, AMP_LOG_WARN, "rpc", "msg=\"%s\" cause=%s peer=%s unreported=%" PRIu64, arpc_abuse_text(cause),
            arpc_abuse_name(cause), peer, unreported);
}

/* An idle client's is nothing to tell everybody about. */
static void on_retired(const char *peer, const char *why, void *arg)
{
    struct ampd_server *server = arg;
    amp_log(server->log, AMP_LOG_DEBUG, "rpc", "msg=\"connection retired\" why=%s peer=%s", why, peer);
}

static int listen_rpc(struct ampd_server *server, struct amp_error *error)
{
    const char *address = server->options->listen;
    int port = 0;
    int rc = server->auth.tls != NULL ? arpc_server_listen_tls(server->rpc, address, server->auth.tls, &port, error)
                                      : arpc_server_listen(server->rpc, address, &port, error);
    if (rc != 0) {
        struct amp_error why = *error;
        (void)amp_error_set(error, rc, NULL, "%s; %s", why.text,
                            rc == AMP_EINVAL   ? "give --listen an address of this machine"
                            : rc == AMP_EEXIST ? "end what listens there, or give --listen another one"
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

void ampd_server_set_health(struct ampd_server *server, bool serving)
{
    size_t count;
    const struct arpc_method *methods = ampd_methods(&count);
    /* None can fail: "" and the services of rows are always there. */
    (void)arpc_server_set_health(server->rpc, "", serving);
    for (size_t i = 0; i < count; i++)
        (void)arpc_server_set_health(server->rpc, methods[i].service, serving);
}

static int open_rpc(struct ampd_server *server, struct amp_error *error)
{
    struct arpc_server_options options = {.size = sizeof options,
                                          .arg = server,
                                          .admit_cb = admit,
                                          .keep_metadata = ampd_auth_metadata,
                                          .handshake_failed_cb = on_handshake_failed,
                                          .abuse_cb = on_abuse,
                                          .retired_cb = on_retired};
    const int64_t *times_ms = server->options->times_ms;
    options.keepalive_ms = times_ms[AMPD_TIME_KEEPALIVE];
    options.keepalive_timeout_ms = times_ms[AMPD_TIME_KEEPALIVE_TIMEOUT];
    options.min_ping_interval_ms = times_ms[AMPD_TIME_MIN_PING_INTERVAL];
    /* Other shards ask whether this one lives: that is no strike, whatever clients may do. */
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
    ampd_server_set_health(server, false); /* until recovery is done */
    listen_unix(server);
    return AMPD_EXIT_OK;
}

static int make_core(struct ampd_server *server, struct amp_error *error)
{
    struct ampd_core_config config = {.shard = server->options->shard,
                                      .shards = io_peers_shards(server),
                                      .fence = server->fence,
                                      .lease_ms = (uint64_t)server->options->times_ms[AMPD_TIME_WORKER_LEASE],
                                      .memory_max = server->options->memory_max,
                                      .checkpoint_dir = server->checkpoint_dir,
                                      .epoch_above = server->options->epoch_above,
                                      .asks_epochs =
                                          server->cluster != NULL && io_cluster_abilities(server->cluster).remembers};
    int rc = ampd_core_new(&config, &server->core);
    return rc == 0 ? 0 : amp_error_set(error, rc, NULL, "cannot make the core: %s", amp_strerror(rc));
}

/* The server runs, or AMP_ECANCELLED: a signal came while the store was read. */
static int open_core(struct ampd_server *server, struct amp_error *error)
{
    struct ampd_found found = {.server = server};
    int rc = io_aside(server, ampd_server_find, &found, error);
    if (rc == 0 && server->signalled)
        rc = AMP_ECANCELLED;
    if (rc == 0) {
        server->state = SERVER_RUNNING;
        rc = make_core(server, error);
    }
    if (rc == 0)
        rc = ampd_server_recover(server, &found, error);
    ampd_model_records_free(found.records, found.count);
    return rc == 0 ? io_peers_start(server, error) : rc;
}

static void log_start(const struct ampd_server *server)
{
    const struct ampd_auth_options *auth = &server->options->auth;
    amp_log(server->log, AMP_LOG_INFO, "server",
            "msg=\"listening\" address=%s data_dir=%s version=%s isa=%s compute_threads=%u memory_max=%" PRIu64
            " boot=%" PRIu64 " tls=%s callers=%s",
            server->endpoint, io_place_directory(server), AMPD_VERSION, server->options->isa,
            server->options->compute_threads, server->options->memory_max, server->fence.counter,
            server->auth.tls != NULL ? "yes" : "no", server->auth.policy.on ? "asked" : "all");
    const char *warning = ampd_auth_options_warning(auth, server->options->listen);
    if (warning != NULL)
        amp_log(server->log, AMP_LOG_WARN, "server", "msg=\"%s\" address=%s", warning, server->endpoint);
}

/* An exit code; AMPD_EXIT_OK with state CLOSING: a signal has ended the wait. */
static int take_place(struct ampd_server *server, struct amp_error *error)
{
    int rc = server->options->peers != NULL ? io_join_if_due(server, error) : 0; /* before this boot is counted */
    if (rc == 0)
        rc = io_place_take(server, error);
    if (rc == 0 && server->options->cluster != NULL)
        rc = io_join_if_due(server, error);
    if (rc == 0)
        rc = io_place_serve(server, error);
    if (rc == 0 && server->signalled) /* in the turn of the loop in which what was waited for came */
        rc = AMP_ECANCELLED;
    if (rc == AMP_ECANCELLED) {
        ampd_server_close(server);
        return AMPD_EXIT_OK;
    }
    if (rc == AMP_EUNAVAILABLE)
        return AMPD_EXIT_LOST;
    return rc == 0 ? AMPD_EXIT_OK : rc == AMP_EINVAL ? AMPD_EXIT_USAGE : exit_code_of(rc);
}

/* Everything from the data directory to the running loop. Returns an exit code; *error says why it is not 0. */
static int start(struct ampd_server *server, struct amp_error *error)
{
    if (ampd_auth_open(&server->auth, &server->options->auth, server->log, error) != 0)
        return AMPD_EXIT_USAGE;
    if (io_peers_new(server, error) != 0)
        return AMPD_EXIT_USAGE;
    int rc = io_place_open(server, error);
    if (rc != 0)
        return exit_code_of(rc);
    if (open_handles(server, error) != 0)
        return AMPD_EXIT_FAILED;
    int code = open_rpc(server, error);
    if (code != AMPD_EXIT_OK)
        return code;
    server->started_ms = uv_now(&server->loop);
    bool waits = server->options->cluster != NULL; /* maybe for long: it listens, and says so */
    code = waits ? AMPD_EXIT_OK : take_place(server, error);
    if (code != AMPD_EXIT_OK || server->state == SERVER_CLOSING)
        return code; /* what would be opened now nobody closed again, and the loop would never end */
    log_start(server);
    io_notify_status("starting: models are made ready");
    rc = io_http_open(server, error);
    if (rc != 0)
        return rc == AMP_EINVAL ? AMPD_EXIT_USAGE : AMPD_EXIT_FAILED;
    code = waits ? take_place(server, error) : AMPD_EXIT_OK;
    if (code != AMPD_EXIT_OK || server->state == SERVER_CLOSING)
        return code;
    rc = open_core(server, error);
    AMP_FAILPOINT("start.done");
    if (rc == AMP_ECANCELLED)
        ampd_server_close(server);
    return rc == 0 || rc == AMP_ECANCELLED ? AMPD_EXIT_OK : exit_code_of(rc);
}

int ampd_server_run(const struct ampd_server_options *options)
{
    struct amp_error error = {0};
    struct ampd_server *server = calloc(1, sizeof *server);
    struct io_trouble *trouble = io_trouble_new();
    if (server == NULL || trouble == NULL || uv_loop_init(&server->loop) != 0) {
        io_trouble_free(trouble);
        free(server);
        (void)fprintf(stderr, "ampd: out of memory\n");
        return AMPD_EXIT_FAILED;
    }
    server->own_options = *options;
    server->options = &server->own_options;
    server->log = options->log;
    server->trouble = trouble;
    server->dir.lock_fd = -1;
    atomic_init(&server->stop_waiting, false);
    amp_list_init(&server->watchers);
    amp_list_init(&server->alive);
    amp_list_init(&server->cuts);
    amp_list_init(&server->idle_jobs);
    for (size_t i = 0; i < SERVER_CALL_BUCKETS; i++)
        amp_list_init(&server->calls[i]);
    int code = start(server, &error);
    if (code != AMPD_EXIT_OK) {
        (void)fprintf(stderr, "ampd: %s\n", error.text);
        ampd_server_close(server);
    }
    (void)uv_run(&server->loop, UV_RUN_DEFAULT); /* until every handle is closed */
    ampd_core_free(server->core);
    for (struct amp_list *node; (node = amp_list_shift(&server->idle_jobs)) != NULL;)
        free(AMP_CONTAINER(node, struct io_task, node)); /* the first member of the job it is part of */
    for (size_t i = 0; i < AMPD_MODELS_MAX; i++)
        free(server->join_us[i]);
    close_storage(server);
    io_peers_free(server);
    io_http_free(server);
    io_place_free(server);
    ampd_auth_close(&server->auth);
    AMP_ASSERT(uv_loop_close(&server->loop) == 0);
    io_trouble_free(trouble);
    free(server);
    if (code == AMPD_EXIT_OK)
        amp_log(options->log, AMP_LOG_INFO, "server", "msg=\"ended\"");
    return code;
}
