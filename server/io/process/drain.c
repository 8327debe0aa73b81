/*
 * The end of the process, and the signals:
 *
 *   SIGTERM, SIGINT,  begins the drain: health is NOT_SERVING, new calls are refused (DRAINING), and the core takes the
 *   Drain             last checkpoints and answers the calls that wait
 *   AMPD_OUT_DRAINED  connections get GOAWAY, and calls under way their grace; then everything is closed, and the loop
 *                     ends
 *   a second SIGTERM  the process ends at once, as by kill -9; nothing that was reported as durable is lost
 *   or SIGINT
 *   SIGHUP            ends nothing: options, certificates and tokens are read again
 *
 * Before the loop is there, nothing has been begun that a signal could cut off: the first one ends the process at once
 * (io_drain_hold).
 *
 * The drain is bounded: after --drain-time and the grace the process ends, whatever it waits for. That holds, and so
 * does the second signal, also at the very end, where the loop does not run but waits for threads, and these for disks:
 * from then on signals have handlers that need no loop (end_without_loop).
 */
#include "server/io/process/drain.h"

#include "rpc/arpc_server.h"
#include "server/io/auth/admit.h"
#include "server/io/auth/auth_gate.h"
#include "server/io/base/core_event.h"
#include "server/io/base/fatal.h"
#include "server/io/base/notify.h"
#include "server/io/base/options.h"
#include "server/io/base/pools.h"
#include "server/io/base/server.h"
#include "server/io/base/storage_alert.h"
#include "server/io/base/threads.h"
#include "server/io/calls/alive.h"
#include "server/io/calls/attach_memory.h"
#include "server/io/calls/memory_socket.h"
#include "server/io/cluster/membership.h"
#include "server/io/cluster/peers.h"
#include "server/io/host/checkpoint_files.h"
#include "server/io/host/disk_share.h"
#include "server/io/host/disk_silence.h"
#include "server/io/host/history_limit.h"
#include "server/io/host/watchers.h"
#include "server/io/host/write_journal.h"
#include "server/io/http/http.h"
#include "server/io/process/server_health.h"
#include "server/io/process/trim.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

/* Grace after a signal, in which answers that are queued can be sent. The RPC Drain gives its own. */
#define GRACE_MS 1000

/*
 * Default of --drain-time. It is below the 90 s after which systemd ends a service (DefaultTimeoutStopSec), and writes
 * 6 GB to a disk of 100 MB/s. A last checkpoint that takes longer is lost.
 */
#define DRAIN_MS 60000

/* Enough for the process to end once its drain has taken too long. */
#define END_MS 10000

/* Longest time of the drain without its grace; also of a start that fails, which writes no checkpoint: the default. */
static uint64_t drain_ms(const struct ampd_server *server)
{
    return server->drain->time_ms != 0 ? server->drain->time_ms : DRAIN_MS;
}

static void on_drain_timeout(uv_timer_t *timer)
{
    const struct ampd_server *server = timer->data;
    struct amp_error error;
    (void)amp_error_set(&error, AMP_EDEADLINE, "DRAIN_TIMEOUT",
                        "not drained within %" PRIu64 " ms; where a last checkpoint takes longer, raise --drain-time",
                        drain_ms(server) + (uint64_t)server->drain->grace_ms);
    io_fatal(server->log, "the drain took too long", &error);
}

/* Milliseconds until all has to be over. */
static uint64_t left(const struct ampd_server *server)
{
    uint64_t now_ms = uv_now(&server->loop), due_ms = server->drain->due_ms;
    if (due_ms == 0)
        return drain_ms(server) + GRACE_MS;
    return due_ms > now_ms ? due_ms - now_ms : 0;
}

/* The store has this long to end what it has to do, before the log says what it waits for. */
static void on_still_draining(uv_timer_t *timer)
{
    const struct ampd_server *server = timer->data;
    uint64_t left_ms = left(server);
    char text[AMP_ERROR_TEXT_MAX];
    io_storage_alert_text(server->storage_alert, text, sizeof text);
    if (!server->life.core_drained && text[0] != 0)
        amp_log(server->log, AMP_LOG_WARN, "server",
                "msg=\"the drain waits for the disk; a second signal ends the process at once\" why=\"%s\" "
                "gives_up_in_ms=%" PRIu64,
                text, left_ms);
    (void)uv_timer_start(timer, on_drain_timeout, left_ms, 0); /* cannot fail */
}

/* Gives the drain all of its time, with this grace. */
static void begin_time(struct ampd_server *server, int64_t grace_ms)
{
    server->drain->time_ms = (uint64_t)server->options->times_ms[AMPD_TIME_DRAIN];
    uint64_t time_ms = drain_ms(server) + (uint64_t)grace_ms;
    server->drain->grace_ms = grace_ms;
    server->drain->due_ms = uv_now(&server->loop) + time_ms;
    (void)uv_timer_start(&server->drain->timer, on_still_draining, GRACE_MS, 0); /* cannot fail: it is open */
}

void io_drain_begin(struct ampd_server *server, const char *cause, int64_t grace_ms)
{
    if (server->life.state != SERVER_RUNNING)
        return;
    server->life.state = SERVER_DRAINING;
    amp_log(server->log, AMP_LOG_INFO, "server", "msg=\"draining\" cause=\"%s\" grace_ms=%" PRId64, cause, grace_ms);
    begin_time(server, grace_ms);
    io_notify_status("draining: writing the last checkpoints");
    io_server_health_set(server, false);
    io_watchers_draining(server);
    io_threads_raise(server->pools.files); /* since drain_ms bounds the last checkpoints */
    struct ampd_event event = {.type = AMPD_EVENT_DRAIN};
    io_core_event(server, &event);
}

/* The first signal during a drain that the RPC began: checkpoints are still written, but the grace becomes GRACE_MS. */
static void hurry(struct ampd_server *server)
{
    if (server->drain->grace_ms <= GRACE_MS)
        return;
    begin_time(server, GRACE_MS);
    if (server->life.core_drained)
        io_drain_close(server);
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct ampd_server *server = handle->data;
    const char *name = number == SIGTERM ? "SIGTERM" : "SIGINT";
    if (server->life.state == SERVER_STARTING && !server->life.signalled) { /* a standby has nothing to drain */
        server->life.signalled = true;
        uv_stop(&server->loop);
        return;
    }
    if (!server->life.signalled) {
        server->life.signalled = true;
        io_drain_begin(server, name, GRACE_MS);
        hurry(server);
        /* Not when the RPC began it: a manager that is told so takes its signal for sent, and sends none any more. */
        io_notify_stopping(left(server) + END_MS);
        return;
    }
    amp_log(server->log, AMP_LOG_WARN, "server", "msg=\"second signal, ending at once\" signal=%s", name);
    _Exit(AMPD_EXIT_FAILED);
}

static void on_hup(uv_signal_t *handle, int number)
{
    struct ampd_server *server = handle->data;
    io_notify_reloading();
    if (server->options->reload_cb != NULL)
        server->options->reload_cb(server->options->reload_arg, &server->own_options);
    ampd_auth_reload(server->auth);
    io_admit_watch_tokens(server);
    io_peers_reload(server);
    io_membership_reload(server);
    if (server->life.notified_ready && server->life.state <= SERVER_RUNNING)
        io_notify_ready(NULL);
}

/* Blocks (SIG_BLOCK) or unblocks (SIG_UNBLOCK) the three for the calling thread. */
static void mask(int how)
{
    sigset_t signals;
    (void)sigemptyset(&signals);
    (void)sigaddset(&signals, SIGTERM);
    (void)sigaddset(&signals, SIGINT);
    (void)sigaddset(&signals, SIGHUP);
    (void)pthread_sigmask(how, &signals, NULL);
}

/* Only what may be called at any point of the program, as in on_signal_without_loop. */
static void on_signal_before_loop(int number)
{
    static const char text[] = "ampd: signal, ending before it has begun to serve\n";
    (void)write(STDERR_FILENO, text, sizeof text - 1);
    _exit(AMPD_EXIT_OK);
}

void io_drain_hold(void)
{
    const struct sigaction action = {.sa_handler = on_signal_before_loop};
    sigset_t hup;
    (void)sigemptyset(&hup);
    (void)sigaddset(&hup, SIGHUP);
    (void)pthread_sigmask(SIG_BLOCK, &hup, NULL); /* none of these can fail */
    (void)sigaction(SIGTERM, &action, NULL);
    (void)sigaction(SIGINT, &action, NULL);
}

static int watch_signals(struct io_drain *drain)
{
    int rc = uv_signal_start(&drain->on_term, on_signal, SIGTERM);
    if (rc == 0)
        rc = uv_signal_start(&drain->on_int, on_signal, SIGINT);
    if (rc == 0)
        rc = uv_signal_start(&drain->on_hup, on_hup, SIGHUP);
    mask(SIG_UNBLOCK); /* a SIGHUP that came meanwhile is delivered now, to its handler */
    return rc;
}

int io_drain_open(struct ampd_server *server)
{
    struct io_drain *drain = server->drain;
    if (uv_timer_init(&server->loop, &drain->timer) != 0 || uv_signal_init(&server->loop, &drain->on_term) != 0 ||
        uv_signal_init(&server->loop, &drain->on_int) != 0 || uv_signal_init(&server->loop, &drain->on_hup) != 0)
        return AMP_EIO;
    drain->timer.data = server;
    drain->on_term.data = server;
    drain->on_int.data = server;
    drain->on_hup.data = server;
    drain->open = true;
    return watch_signals(drain) == 0 ? 0 : AMP_EIO;
}

static void on_connections_gone(void *arg)
{
    io_drain_close(arg);
}

void io_drain_core_done(struct ampd_server *server)
{
    if (server->life.state != SERVER_DRAINING)
        return;
    server->life.core_drained = true;
    amp_log(server->log, AMP_LOG_INFO, "server", "msg=\"drained\"");
    io_peers_close(server);
    io_attachments_end(server);
    arpc_server_drain(server->rpc, server->drain->grace_ms, on_connections_gone, server);
}

/* How many more of SIGTERM and SIGINT end the process, once the loop does not run. */
static volatile sig_atomic_t signals_left;

/* Only what may be called at any point of the program: so the sentence is no line of the log. */
static void on_signal_without_loop(int number)
{
    static const char late[] =
        "ampd: the drain took too long, ending: threads still wait, as for a disk that does not answer\n";
    static const char again[] = "ampd: second signal, ending at once\n";
    if (number != SIGALRM && --signals_left > 0)
        return;
    (void)write(STDERR_FILENO, number == SIGALRM ? late : again,
                number == SIGALRM ? sizeof late - 1 : sizeof again - 1);
    _exit(AMPD_EXIT_FAILED);
}

/* Closes the timer and the signals of the loop, which does not run any more, and takes their place. */
static void end_without_loop(struct ampd_server *server)
{
    struct io_drain *drain = server->drain;
    const struct sigaction action = {.sa_handler = on_signal_without_loop, .sa_flags = SA_RESTART};
    uint64_t left_ms = left(server), most_ms = drain_ms(server) + GRACE_MS;
    if (left_ms > most_ms) /* of a long grace, which nobody needs any more */
        left_ms = most_ms;
    mask(SIG_BLOCK);
    uv_close((uv_handle_t *)&drain->timer, NULL);
    uv_close((uv_handle_t *)&drain->on_term, NULL);
    uv_close((uv_handle_t *)&drain->on_int, NULL);
    uv_close((uv_handle_t *)&drain->on_hup, NULL);
    signals_left = server->life.signalled ? 1 : 2;
    (void)sigaction(SIGTERM, &action, NULL); /* none of these can fail */
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGALRM, &action, NULL);
    (void)signal(SIGHUP, SIG_IGN);
    mask(SIG_UNBLOCK);
    (void)alarm((unsigned)(left_ms / 1000) + 1);
}

/*
 * The rpc library has released every body, so no memory of the core is in use. Threads end when their queues are empty.
 */
static void on_rpc_closed(void *arg)
{
    struct ampd_server *server = arg;
    server->rpc = NULL;
    if (server->drain->open)
        end_without_loop(server);
    io_threads_close(server->pools.compute);
    io_threads_close(server->pools.files);
    io_checkpoint_files_drop(server);
    io_threads_close(server->pools.journal);
    io_threads_close(server->pools.readers);
    io_threads_close(server->pools.exports);
    io_threads_close(server->pools.writer);
    io_membership_close(server);
    if (!server->drain->open)
        return;
    io_core_event_close(server);
    io_admit_close(server);
    io_trim_close(server);
    io_disk_share_close(server);
    io_disk_silence_close(server);
    io_history_limit_close(server);
    io_checkpoint_files_close(server);
    io_write_journal_close_timer(server);
    io_alive_close(server);
    io_memory_socket_close(server);
}

void io_drain_close(struct ampd_server *server)
{
    if (server->life.state == SERVER_CLOSING)
        return;
    server->life.state = SERVER_CLOSING;
    io_pools_stop_waiting(&server->pools);
    io_http_close(server);
    io_peers_close(server);
    if (server->rpc != NULL)
        arpc_server_close(server->rpc, on_rpc_closed, server);
    else
        on_rpc_closed(server);
}
