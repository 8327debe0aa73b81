#define _DEFAULT_SOURCE /* getrandom */
#include "server/io/server.h"

#include "base/assert.h"
#include "proto/descriptors.h"
#include "rpc/arpc_server.h"
#include "server/io/handlers.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
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

static int open_storage(struct ampd_server *server, struct amp_error *error)
{
    uint8_t boot_id[AMPD_BOOT_ID_BYTES];
    int rc = ampd_datadir_open(&server->dir, server->options->data_dir, error);
    if (rc == 0)
        rc = ampd_store_sqlite_open(server->dir.path, &server->store, error);
    if (rc == 0)
        rc = ampd_store_open_reader(server->store, &server->reader, error);
    if (rc == 0 && getrandom(boot_id, sizeof boot_id, 0) != sizeof boot_id)
        rc = amp_error_set(error, AMP_EIO, NULL, "no random numbers from the system");
    if (rc == 0)
        rc = ampd_store_boot(server->store, 0, boot_id, &server->fence, error);
    if (rc == 0)
        return AMPD_EXIT_OK;
    return exit_code_of(rc);
}

static void close_storage(struct ampd_server *server)
{
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
    } pools[] = {{&server->compute, server->options->compute_threads},
                 {&server->writer, 1},
                 {&server->readers, 1},
                 {&server->files, 1}};
    for (size_t i = 0; i < sizeof pools / sizeof *pools; i++)
        if (io_threads_new(&server->loop, pools[i].count, pools[i].pool) != 0)
            return amp_error_set(error, AMP_ENOMEM, NULL, "cannot start threads");
    if (uv_timer_init(&server->loop, &server->core_timer) != 0 ||
        uv_timer_init(&server->loop, &server->drain_timer) != 0 ||
        uv_signal_init(&server->loop, &server->on_term) != 0 || uv_signal_init(&server->loop, &server->on_int) != 0 ||
        ampd_server_watch_signals(server) != 0)
        return amp_error_set(error, AMP_EIO, NULL, "cannot watch signals");
    server->handles_open = true;
    server->core_timer.data = server;
    server->drain_timer.data = server;
    server->on_term.data = server;
    server->on_int.data = server;
    return 0;
}

/* The unix socket in the data directory, for clients of this machine; a path that is too long for one is done without. */
static void listen_unix(struct ampd_server *server)
{
    char address[AMPD_DATADIR_PATH_MAX + 32];
    struct amp_error error = {0};
    (void)snprintf(address, sizeof address, "unix:%s/ampd.sock", server->dir.path);
    const char *path = address + strlen("unix:");
    if (strlen(path) >= sizeof((struct sockaddr_un *)0)->sun_path) {
        amp_log(server->log, AMP_LOG_WARN, "server", "msg=\"no unix socket: its path is too long\" path=%s", path);
        return;
    }
    (void)unlink(path); /* of a process that is gone: this one holds the directory's lock */
    if (arpc_server_listen(server->rpc, address, NULL, &error) != 0)
        amp_log(server->log, AMP_LOG_WARN, "server", "msg=\"no unix socket\" path=%s err=\"%s\"", path, error.text);
}

static int open_rpc(struct ampd_server *server, struct amp_error *error)
{
    struct arpc_server_options options = {.size = sizeof options, .arg = server};
    size_t count;
    const struct arpc_method *methods = ampd_methods(&count);
    int rc = arpc_server_new(&server->loop, &options, methods, count, &server->rpc, error);
    if (rc == 0)
        rc = arpc_server_enable_reflection(server->rpc, ampd_descriptor_set, ampd_descriptor_set_size, error);
    if (rc != 0)
        return AMPD_EXIT_FAILED;
    int port = 0;
    rc = arpc_server_listen(server->rpc, server->options->listen, &port, error);
    if (rc != 0)
        return rc == AMP_EINVAL ? AMPD_EXIT_USAGE : AMPD_EXIT_FAILED;
    const char *colon = strrchr(server->options->listen, ':');
    (void)snprintf(server->endpoint, sizeof server->endpoint, "%.*s:%d",
                   colon != NULL ? (int)(colon - server->options->listen) : 0, server->options->listen, port);
    (void)arpc_server_set_health(server->rpc, "", false); /* until recovery is done; "" is always there */
    listen_unix(server);
    return AMPD_EXIT_OK;
}

static int open_core(struct ampd_server *server, struct amp_error *error)
{
    struct ampd_core_config config = {.shards = 1, .fence = server->fence, .memory_max = server->options->memory_max};
    int rc = ampd_core_new(&config, &server->core);
    if (rc != 0)
        return amp_error_set(error, rc, NULL, "cannot make the core: %s", amp_strerror(rc));
    return ampd_server_recover(server, error);
}

static void log_start(const struct ampd_server *server)
{
    amp_log(server->log, AMP_LOG_INFO, "server",
            "msg=\"listening\" address=%s data_dir=%s version=%s isa=%s compute_threads=%u memory_max=%" PRIu64
            " boot=%" PRIu64,
            server->endpoint, server->dir.path, AMPD_VERSION, server->options->isa, server->options->compute_threads,
            server->options->memory_max, server->fence.counter);
    if (server->options->insecure)
        amp_log(server->log, AMP_LOG_WARN, "server",
                "msg=\"--insecure: everybody who reaches this address can read and change every model\" address=%s",
                server->endpoint);
}

/* Everything from the data directory to the running loop. Returns an exit code; *error says why it is not 0. */
static int start(struct ampd_server *server, struct amp_error *error)
{
    int code = open_storage(server, error);
    if (code != AMPD_EXIT_OK)
        return code;
    if (open_handles(server, error) != 0)
        return AMPD_EXIT_FAILED;
    code = open_rpc(server, error);
    if (code != AMPD_EXIT_OK)
        return code;
    log_start(server);
    server->started_ms = uv_now(&server->loop);
    server->state = SERVER_RUNNING;
    int rc = open_core(server, error);
    return rc == 0 ? AMPD_EXIT_OK : exit_code_of(rc);
}

int ampd_server_run(const struct ampd_server_options *options)
{
    struct amp_error error = {0};
    struct ampd_server *server = calloc(1, sizeof *server);
    if (server == NULL || uv_loop_init(&server->loop) != 0) {
        free(server);
        (void)fprintf(stderr, "ampd: out of memory\n");
        return AMPD_EXIT_FAILED;
    }
    server->options = options;
    server->log = options->log;
    server->dir.lock_fd = -1;
    atomic_init(&server->stop_waiting, false);
    amp_list_init(&server->watchers);
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
    AMP_ASSERT(uv_loop_close(&server->loop) == 0);
    free(server);
    if (code == AMPD_EXIT_OK)
        amp_log(options->log, AMP_LOG_INFO, "server", "msg=\"ended\"");
    return code;
}
