/*
 * The end of the process:
 *
 *   SIGTERM, SIGINT,  health NOT_SERVING, new calls UNAVAILABLE (DRAINING), the core cuts last checkpoints and answers
 *   Drain             what waits
 *   AMPD_OUT_DRAINED  GOAWAY; calls under way get their grace; then everything is closed and the loop runs empty
 *   a second signal   (of the kind that drains) the process ends at once, as by kill -9: nothing that was promised is lost
 *   SIGHUP            is no end: certificates and tokens are read anew
 *
 * All of it is bounded: DRAIN_MS and the grace later the process ends, whatever hangs.
 */
#include "rpc/arpc_server.h"
#include "server/io/call.h"
#include "server/io/http.h"
#include "server/io/notify.h"
#include "server/io/peers.h"
#include "server/io/place.h"
#include "server/io/server.h"

#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* After a signal, for answers that are written already to leave. Drain names its own. */
#define GRACE_MS 1000

/* Longest drain: a last checkpoint of a large model on a slow disk. */
#define DRAIN_MS 60000

static void on_drain_timeout(uv_timer_t *timer)
{
    const struct ampd_server *server = timer->data;
    struct amp_error error;
    (void)amp_error_set(&error, AMP_EDEADLINE, "DRAIN_TIMEOUT", "not drained within %" PRId64 " ms",
                        DRAIN_MS + server->grace_ms);
    ampd_server_fatal(server, "the drain took too long", &error);
}

void ampd_server_drain(struct ampd_server *server, const char *cause, int64_t grace_ms)
{
    if (server->state != SERVER_RUNNING)
        return;
    server->state = SERVER_DRAINING;
    server->grace_ms = grace_ms;
    amp_log(server->log, AMP_LOG_INFO, "server", "msg=\"draining\" cause=\"%s\" grace_ms=%" PRId64, cause, grace_ms);
    /* Cannot fail: the handle is open and has a callback. */
    (void)uv_timer_start(&server->drain_timer, on_drain_timeout, (uint64_t)(DRAIN_MS + grace_ms), 0);
    ampd_server_set_health(server, false);
    io_notify_stopping();
    ampd_server_end_watches(server);
    struct ampd_event event = {.type = AMPD_EVENT_DRAIN};
    ampd_server_event(server, &event);
}

/* A first signal while Drain's grace goes on: the checkpoints are still written, but nobody is waited for longer. */
static void hurry(struct ampd_server *server)
{
    if (server->grace_ms <= GRACE_MS)
        return;
    server->grace_ms = GRACE_MS;
    if (server->core_drained)
        ampd_server_close(server);
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct ampd_server *server = handle->data;
    const char *name = number == SIGTERM ? "SIGTERM" : "SIGINT";
    if (server->state == SERVER_STARTING && !server->signalled) { /* it stands by, and has nothing to drain */
        server->signalled = true;
        uv_stop(&server->loop);
        return;
    }
    if (!server->signalled) {
        server->signalled = true;
        ampd_server_drain(server, name, GRACE_MS);
        hurry(server);
        return;
    }
    amp_log(server->log, AMP_LOG_WARN, "server", "msg=\"second signal, ending at once\" signal=%s", name);
    _Exit(AMPD_EXIT_FAILED);
}

static void on_hup(uv_signal_t *handle, int number)
{
    struct ampd_server *server = handle->data;
    io_notify_reloading();
    ampd_auth_reload(&server->auth);
    ampd_server_watch_tokens(server);
    io_peers_reload(server);
    io_place_reload(server);
    if (server->serving && server->state == SERVER_RUNNING)
        io_notify_ready();
}

int ampd_server_watch_signals(struct ampd_server *server)
{
    int rc = uv_signal_start(&server->on_term, on_signal, SIGTERM);
    if (rc == 0)
        rc = uv_signal_start(&server->on_int, on_signal, SIGINT);
    if (rc == 0)
        rc = uv_signal_start(&server->on_hup, on_hup, SIGHUP);
    /* main blocked them until now; what came meanwhile is delivered here, to the handlers. */
    sigset_t signals;
    (void)sigemptyset(&signals);
    (void)sigaddset(&signals, SIGTERM);
    (void)sigaddset(&signals, SIGINT);
    (void)sigaddset(&signals, SIGHUP);
    (void)pthread_sigmask(SIG_UNBLOCK, &signals, NULL);
    return rc;
}

static void on_connections_gone(void *arg)
{
    ampd_server_close(arg);
}

void ampd_server_drained(struct ampd_server *server)
{
    if (server->state != SERVER_DRAINING)
        return;
    server->core_drained = true;
    amp_log(server->log, AMP_LOG_INFO, "server", "msg=\"drained\"");
    io_peers_close(server);
    arpc_server_drain(server->rpc, server->grace_ms, on_connections_gone, server);
}

static void close_handle(uv_handle_t *handle)
{
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

/* rpc has given back every body: no memory of the core is in use. The threads end when their queues are empty. */
static void on_rpc_closed(void *arg)
{
    struct ampd_server *server = arg;
    server->rpc = NULL;
    io_threads_close(server->compute);
    io_threads_close(server->files);
    ampd_server_drop_cuts(server);
    io_threads_close(server->journal);
    io_threads_close(server->readers);
    io_threads_close(server->writer);
    io_place_close(server);
    if (!server->handles_open)
        return;
    close_handle((uv_handle_t *)&server->core_timer);
    close_handle((uv_handle_t *)&server->drain_timer);
    close_handle((uv_handle_t *)&server->expiry_timer);
    close_handle((uv_handle_t *)&server->trim_timer);
    close_handle((uv_handle_t *)&server->alive_timer);
    /* Once their handles are closed the signals would end the process with a wrong code; the end is near anyway. */
    sigset_t ending;
    (void)sigemptyset(&ending);
    (void)sigaddset(&ending, SIGTERM);
    (void)sigaddset(&ending, SIGINT);
    (void)sigaddset(&ending, SIGHUP);
    (void)pthread_sigmask(SIG_BLOCK, &ending, NULL);
    close_handle((uv_handle_t *)&server->on_term);
    close_handle((uv_handle_t *)&server->on_int);
    close_handle((uv_handle_t *)&server->on_hup);
}

void ampd_server_close(struct ampd_server *server)
{
    if (server->state == SERVER_CLOSING)
        return;
    server->state = SERVER_CLOSING;
    atomic_store(&server->stop_waiting, true);
    io_http_close(server);
    io_peers_close(server);
    if (server->rpc != NULL)
        arpc_server_close(server->rpc, on_rpc_closed, server);
    else
        on_rpc_closed(server);
}
