/*
 * Ends calls under way whose callers may no longer make them. A watch, or the session of another shard, lasts for days;
 * without this, a token that was removed from the file or has expired would be good until then. Who may call changes
 * with SIGHUP and with the clock.
 */
#include "server/io/auth/admit.h"

#include "base/assert.h"
#include "rpc/arpc_server.h"
#include "server/io/auth/auth_gate.h"
#include "server/io/base/server.h"

/* How long calls may go on after their token has expired. Checking a thousand rules takes microseconds. */
#define EXPIRY_LOOK_MS 1000

static int would_admit(struct arpc_call *call, void *arg, struct amp_error *error)
{
    const struct ampd_server *server = arg;
    return ampd_auth_admit_again(server->auth, call, error);
}

static void end_calls(struct ampd_server *server)
{
    unsigned ended = server->rpc != NULL ? arpc_server_admit_again(server->rpc, would_admit) : 0;
    if (ended > 0)
        amp_log(server->log, AMP_LOG_INFO, "auth",
                "msg=\"open calls were ended: their callers are no longer allowed\" count=%u", ended);
}

/* Runs each second rather than once at the next expiry, since the clock may be set forwards or back. */
static void on_look(uv_timer_t *timer)
{
    struct ampd_server *server = timer->data;
    size_t before = server->admit->tokens_expired;
    bool more;
    server->admit->tokens_expired = ampd_auth_expired(server->auth, &more);
    if (server->admit->tokens_expired != before)
        end_calls(server);
    if (!more)
        (void)uv_timer_stop(timer);
}

void io_admit_watch_tokens(struct ampd_server *server)
{
    bool more;
    server->admit->tokens_expired = ampd_auth_expired(server->auth, &more);
    end_calls(server);
    /* Starting and stopping cannot fail on an open handle. */
    if (more)
        (void)uv_timer_start(&server->admit->timer, on_look, EXPIRY_LOOK_MS, EXPIRY_LOOK_MS);
    else
        (void)uv_timer_stop(&server->admit->timer);
}

void io_admit_open(struct ampd_server *server)
{
    AMP_ASSERT(uv_timer_init(&server->loop, &server->admit->timer) == 0);
    server->admit->timer.data = server;
    io_admit_watch_tokens(server);
}

void io_admit_close(struct ampd_server *server)
{
    uv_close((uv_handle_t *)&server->admit->timer, NULL);
}
