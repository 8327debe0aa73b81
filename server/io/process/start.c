#include "server/io/process/start.h"

#include "base/assert.h"
#include "base/failpoint.h"
#include "server/io/auth/admit.h"
#include "server/io/auth/auth_gate.h"
#include "server/io/auth/auth_options.h"
#include "server/io/base/core_event.h"
#include "server/io/base/counts.h"
#include "server/io/base/data.h"
#include "server/io/base/notify.h"
#include "server/io/base/off_loop.h"
#include "server/io/base/options.h"
#include "server/io/base/pools.h"
#include "server/io/base/server.h"
#include "server/io/base/storage_alert.h"
#include "server/io/calls/alive.h"
#include "server/io/calls/attach_memory.h"
#include "server/io/calls/server_call.h"
#include "server/io/cluster/membership.h"
#include "server/io/cluster/peers.h"
#include "server/io/cluster/refill.h"
#include "server/io/etcd/etcd_access.h"
#include "server/io/host/checkpoint_files.h"
#include "server/io/host/disk_share.h"
#include "server/io/host/disk_silence.h"
#include "server/io/host/free_memory.h"
#include "server/io/host/history_limit.h"
#include "server/io/host/recover.h"
#include "server/io/host/shared_copies.h"
#include "server/io/host/watchers.h"
#include "server/io/host/write_journal.h"
#include "server/io/http/http.h"
#include "server/io/process/core_outputs.h"
#include "server/io/process/drain.h"
#include "server/io/process/listen.h"
#include "server/io/process/trim.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int exit_code_of(int code)
{
    return code == AMP_EIO || code == AMP_ENOMEM || code == AMP_EEXHAUSTED ? AMPD_EXIT_FAILED : AMPD_EXIT_DATA_DIR;
}

/* ---- the loop and what hangs on it ---- */

static int open_handles(struct ampd_server *server, struct amp_error *error)
{
    if (io_pools_open(&server->pools, &server->loop, server->options, error) != 0)
        return AMP_ENOMEM;
    io_core_event_open(server, &io_core_outputs_ops);
    io_admit_open(server);
    io_trim_open(server);
    io_disk_share_open(server);
    io_disk_silence_open(server);
    io_history_limit_open(server);
    io_checkpoint_files_open(server);
    io_write_journal_open(server);
    io_alive_open(server);
    return io_drain_open(server) == 0 ? 0 : amp_error_set(error, AMP_EIO, NULL, "cannot watch signals");
}

static int make_core(struct ampd_server *server, struct amp_error *error)
{
    struct ampd_core_config config = {.shard = server->options->shard,
                                      .shards = io_peers_shards(server),
                                      .fence = server->fence,
                                      .lease_ms = (uint64_t)server->options->times_ms[AMPD_TIME_WORKER_LEASE],
                                      .memory_max = server->options->memory_max,
                                      .checkpoint_memory = server->options->checkpoint_memory,
                                      .checkpoint_dir = server->data.checkpoint_dir,
                                      .copy_memory = io_shared_copies_open(server),
                                      .large_memory = {io_large_memory_free, server},
                                      .epoch_above = server->options->epoch_above,
                                      .asks_epochs = server->cluster != NULL};
    int rc = ampd_core_new(&config, &server->core);
    return rc == 0 ? 0 : amp_error_set(error, rc, NULL, "cannot make the core: %s", amp_strerror(rc));
}

/* Reads the store, makes the core and starts it. 0: the server runs; AMP_ECANCELLED: a signal came meanwhile. */
static int open_core(struct ampd_server *server, struct amp_error *error)
{
    struct io_found found = {.server = server};
    int rc = io_off_loop(server, io_recover_find, &found, error);
    if (rc == 0 && server->life.signalled)
        rc = AMP_ECANCELLED;
    if (rc == 0) {
        server->life.state = SERVER_RUNNING;
        rc = make_core(server, error);
    }
    if (rc == 0)
        rc = io_recover(server, &found, error);
    if (rc == 0) {
        struct ampd_event begin = {.type = AMPD_EVENT_START};
        server->life.found = true;
        io_disk_share_start(server); /* its first look is queued before what the core has read of checkpoints */
        io_core_event(server, &begin);
    }
    ampd_model_records_free(found.records, found.count);
    return rc == 0 ? io_peers_start(server, error) : rc;
}

static void log_start(const struct ampd_server *server)
{
    const struct ampd_auth_options *auth = server->options->auth;
    amp_log(server->log, AMP_LOG_INFO, "server",
            "msg=\"listening\" address=%s data_dir=%s version=%s isa=%s compute_threads=%u memory_max=%" PRIu64
            " boot=%" PRIu64 " tls=%s callers=%s",
            server->endpoint, io_membership_directory(server), AMPD_VERSION, server->options->isa,
            server->options->compute_threads, server->options->memory_max, server->fence.counter,
            server->auth->tls != NULL ? "yes" : "no", server->auth->policy.on ? "asked" : "all");
    const char *warning = ampd_auth_options_warning(auth, server->options->listen);
    if (warning != NULL)
        amp_log(server->log, AMP_LOG_WARN, "server", "msg=\"%s\" address=%s", warning, server->endpoint);
}

/*
 * Waits for a place in the cluster. Returns an exit code; AMPD_EXIT_OK with the state CLOSING: a signal has ended it.
 */
static int take_membership(struct ampd_server *server, struct amp_error *error)
{
    int rc = server->options->peers != NULL ? io_refill_if_due(server, error) : 0; /* before this boot is counted */
    if (rc == 0)
        rc = io_membership_take(server, error);
    server->life.taken_ms = uv_now(&server->loop);
    if (rc == 0 && server->options->cluster != NULL)
        rc = io_refill_if_due(server, error);
    if (rc == 0)
        rc = io_membership_serve(server, error);
    if (rc == 0 && server->life.signalled) /* the signal came in the same turn of the loop as the place */
        rc = AMP_ECANCELLED;
    if (rc == AMP_ECANCELLED) {
        io_drain_close(server);
        return AMPD_EXIT_OK;
    }
    if (rc == AMP_EUNAVAILABLE)
        return AMPD_EXIT_LOST;
    return rc == 0 ? AMPD_EXIT_OK : rc == AMP_EINVAL ? AMPD_EXIT_USAGE : exit_code_of(rc);
}

/* Adds to an error about the token file where the option is from, if its user may have set it for something else. */
static void add_source(const struct ampd_server_options *options, struct amp_error *error)
{
    const struct ampd_option_value *value = options->values, *end = value + options->values_count;
    char text[AMP_ERROR_TEXT_MAX];
    while (value < end && strcmp(value->name, "token-file") != 0)
        value++;
    if (value == end || strcmp(error->reason, "TOKEN_FILE") != 0 || strncmp(value->where, "--", 2) == 0)
        return;
    (void)snprintf(text, sizeof text, "%.300s (token-file is from %s%.100s)", error->text,
                   strncmp(value->where, "AMPD_", 5) == 0 ? "the environment, " : "", value->where);
    memcpy(error->text, text, sizeof text);
}

/* Everything from the data directory to the running loop. Returns an exit code; *error says why it is not 0. */
static int start(struct ampd_server *server, struct amp_error *error)
{
    if (ampd_auth_open(server->auth, server->options->auth, server->log, error) != 0) {
        add_source(server->options, error);
        return AMPD_EXIT_USAGE;
    }
    if (io_peers_new(server, error) != 0 ||
        (server->options->cluster != NULL && io_etcd_access_try(server->options->etcd, error) != 0))
        return AMPD_EXIT_USAGE;
    int rc = io_membership_open(server, error);
    if (rc != 0)
        return exit_code_of(rc);
    if (open_handles(server, error) != 0)
        return AMPD_EXIT_FAILED;
    int code = io_listen(server, error);
    if (code != AMPD_EXIT_OK)
        return code;
    server->life.started_ms = uv_now(&server->loop);
    bool waits = server->options->cluster != NULL; /* perhaps for long: /readyz and the log say so meanwhile */
    code = waits ? AMPD_EXIT_OK : take_membership(server, error);
    if (code != AMPD_EXIT_OK || server->life.state == SERVER_CLOSING)
        return code; /* what is opened from here on would not be closed, and the loop would never end */
    log_start(server);
    io_notify_status("starting: models are made ready");
    rc = io_http_open(server, error);
    if (rc != 0)
        return rc == AMP_EINVAL ? AMPD_EXIT_USAGE : AMPD_EXIT_FAILED;
    code = waits ? take_membership(server, error) : AMPD_EXIT_OK;
    if (code != AMPD_EXIT_OK || server->life.state == SERVER_CLOSING)
        return code;
    rc = open_core(server, error);
    AMP_FAILPOINT("start.done");
    if (rc == AMP_ECANCELLED)
        io_drain_close(server);
    return rc == 0 || rc == AMP_ECANCELLED ? AMPD_EXIT_OK : exit_code_of(rc);
}

/* The server and those of its parts that every process has, in one piece of memory. */
struct process {
    struct ampd_server server;
    struct ampd_auth auth;
    struct io_admit admit;
    struct io_checkpoint_files checkpoint_files;
    struct io_write_journal write_journal;
    struct io_disk_share disk_share;
    struct io_disk_silence disk_silence;
    struct io_history_limit history_limit;
    struct io_watchers watchers;
    struct io_server_calls calls;
    struct io_alive_calls alive;
    struct io_attachments attachments;
    struct io_drain drain;
    struct io_trim trim;
};

static void init_parts(struct process *process)
{
    struct ampd_server *server = &process->server;
    server->auth = &process->auth;
    server->admit = &process->admit;
    server->checkpoint_files = &process->checkpoint_files;
    server->write_journal = &process->write_journal;
    server->disk_share = &process->disk_share;
    server->disk_silence = &process->disk_silence;
    server->history_limit = &process->history_limit;
    server->watchers = &process->watchers;
    server->calls = &process->calls;
    server->alive = &process->alive;
    server->attachments = &process->attachments;
    server->drain = &process->drain;
    server->trim = &process->trim;
    io_pools_init(&server->pools);
    io_data_init(&server->data);
    io_checkpoint_files_init(server->checkpoint_files);
    io_write_journal_init(server->write_journal);
    io_watchers_init(server->watchers);
    io_server_calls_init(server->calls);
    io_attachments_init(server->attachments);
}

/* Frees all parts. The loop has no handles any more, and the threads have ended. */
static void free_parts(struct ampd_server *server)
{
    ampd_core_free(server->core);
    io_shared_copies_close(server);
    io_counts_close(&server->counts);
    io_write_journal_close_all(server);
    io_data_close(&server->data);
    io_peers_free(server);
    io_http_free(server);
    io_membership_free(server);
    ampd_auth_close(server->auth);
    AMP_ASSERT(uv_loop_close(&server->loop) == 0);
    io_storage_alert_free(server->storage_alert);
}

int ampd_server_run(const struct ampd_server_options *options)
{
    struct amp_error error = {0};
    struct process *process = calloc(1, sizeof *process);
    struct io_storage_alert *alert = io_storage_alert_new();
    if (process == NULL || alert == NULL || uv_loop_init(&process->server.loop) != 0) {
        io_storage_alert_free(alert);
        free(process);
        (void)fprintf(stderr, "ampd: out of memory\n");
        return AMPD_EXIT_FAILED;
    }
    struct ampd_server *server = &process->server;
    server->own_options = *options;
    server->options = &server->own_options;
    server->log = options->log;
    server->storage_alert = alert;
    init_parts(process);
    int code = start(server, &error);
    if (code != AMPD_EXIT_OK) {
        bool is_full = strcmp(error.reason, "NO_SPACE") == 0; /* a server that runs would wait */
        (void)fprintf(stderr, "ampd: %s%s\n", error.text, is_full ? "; make room on it, and start ampd again" : "");
        io_drain_close(server);
    }
    (void)uv_run(&server->loop, UV_RUN_DEFAULT); /* until every handle is closed */
    free_parts(server);
    free(process);
    if (code == AMPD_EXIT_OK)
        amp_log(options->log, AMP_LOG_INFO, "server", "msg=\"ended\"");
    return code;
}
