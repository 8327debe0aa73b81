/*
 * How long a connection lives and how it ends: PINGs of both sides, its age, and the GOAWAYs.
 *
 * The names of gRFC A8 and A9:
 *
 *   keepalive      nothing was received for keepalive_ms: PING; no answer within keepalive_timeout_ms: lost. That time
 *                  begins again when bytes come, and while the peer takes what is still on its way: the PING is behind
 *                  a whole batch and what the kernel has, for which a slow network may take long.
 *   ping strikes a PING of the client that comes sooner than min_ping_interval_ms after the one before is a strike.
 *                  What the server sends of a call (HEADERS, DATA) wipes the strikes out, because clients measure
 *                  bandwidth by PINGs while data comes. One strike above ARPC_PING_STRIKES_MAX ends the connection:
 *                  ENHANCE_YOUR_CALM, "too_many_pings". A client that is told so waits twice as long from then on.
 *   max_idle       no call for idle_ms: drained, "max_idle".
 *   max_age        max_age_ms +-10 % after the connection began: drained, "max_age"; aborted when its grace has passed.
 *
 * A drain is GOAWAY with the largest id (calls that are on their way are still served), PING, and when its answer is
 * here, which is after all calls that the client began before it knew, the final GOAWAY with the last id that is
 * served.
 */
#include "rpc/arpc_server.h"
#include "rpc/h2/abuse.h"
#include "rpc/h2/call.h"

#include <nghttp2/nghttp2.h>

#include <string.h>

static const uint8_t ping_drain[8] = {'d', 'r', 'a', 'i', 'n', 'i', 'n', 'g'};
static const uint8_t ping_alive[8] = {'k', 'e', 'e', 'p', 'a', 'l', 'i', 'v'};
static const uint8_t ping_waiting[8] = {'w', 'a', 'i', 't', 'i', 'n', 'g', 0};

/* gRFC A8: what a client adds to its wait when it is told that it asks too often. */
static const char too_many_pings[] = "too_many_pings";

/* A wait is not doubled beyond this: two hours, the longest that anyone asks for. */
#define KEEPALIVE_MS_MAX (2 * 60 * 60 * 1000)

int64_t arpc_link_ping_timeout_ms(const struct arpc_link *link)
{
    int64_t timeout_ms = link->keepalive.timeout_ms;
    return timeout_ms > 0 ? timeout_ms : ARPC_PING_TIMEOUT_MS;
}

/* The age with its jitter, so that connections that began together (a restart) do not all end together. */
static int64_t next_age_ms(struct arpc_link_config *config)
{
    int64_t tenth_ms = config->max_age_ms / 10;
    config->jitter = config->jitter * 6364136223846793005u + 1442695040888963407u;
    return config->max_age_ms - tenth_ms + (int64_t)((config->jitter >> 1) % ((uint64_t)tenth_ms * 2 + 1));
}

void arpc_link_life_init(struct arpc_link *link)
{
    struct arpc_link_config *config = link->config;
    link->keepalive.peer_ping_ms = INT64_MIN;
    link->keepalive.period_ms = config->keepalive_ms;
    link->keepalive.timeout_ms = config->keepalive_timeout_ms;
    link->age.due_ms = INT64_MAX;
    link->age.abort_due_ms = INT64_MAX;
    if (!config->server || config->max_age_ms <= 0)
        return;
    link->age.due_ms = arpc_after(link->age.opened_ms, next_age_ms(config));
}

static void goaway(struct arpc_link *link, uint32_t h2_code, const char *debug)
{
    size_t size = debug != NULL ? strlen(debug) : 0;
    if (link->goaway.drain != ARPC_DRAIN_FINAL)
        link->goaway.last_stream = nghttp2_session_get_last_proc_stream_id(link->session);
    link->goaway.drain = ARPC_DRAIN_FINAL;
    /* Without memory the answer to the next request says it, or the timeout ends the connection. */
    (void)nghttp2_submit_goaway(link->session, NGHTTP2_FLAG_NONE, link->goaway.last_stream, h2_code,
                                (const uint8_t *)debug, size);
}

void arpc_link_drain(struct arpc_link *link)
{
    arpc_link_retire(link, NULL);
}

void arpc_link_retire(struct arpc_link *link, const char *why)
{
    if (link->session == NULL || link->goaway.drain != ARPC_DRAIN_NO)
        return;
    link->goaway.drain = ARPC_DRAIN_NOTICE;
    link->goaway.why = why;
    if (why != NULL && link->config->retired_cb != NULL)
        link->config->retired_cb(link->peer, why, link->config->arg);
    (void)nghttp2_submit_shutdown_notice(link->session); /* without memory the timeout ends the connection */
    (void)nghttp2_submit_ping(link->session, NGHTTP2_FLAG_NONE, ping_drain);
    /* An older PING that is still unanswered keeps its own, earlier deadline. */
    if (link->keepalive.ping_ms == INT64_MAX)
        link->keepalive.ping_ms = arpc_link_now(link);
    arpc_link_due(link, arpc_after(link->keepalive.ping_ms, arpc_link_ping_timeout_ms(link)));
    link->wake_cb(link);
}

void arpc_link_expel(struct arpc_link *link, uint32_t h2_code, const char *debug)
{
    if (link->session == NULL || link->goaway.expelled || link->error != 0)
        return;
    link->goaway.expelled = true;
    goaway(link, h2_code, debug);
    arpc_link_goodbye(link);
    link->wake_cb(link);
}

void arpc_link_goodbye(struct arpc_link *link)
{
    int64_t wait_ms = link->watch.limits->goodbye_ms;
    if (wait_ms <= 0)
        return;
    link->goaway.goodbye_due_ms = arpc_after(arpc_link_now(link), wait_ms);
    arpc_link_due(link, link->goaway.goodbye_due_ms);
}

void arpc_link_ask(struct arpc_link *link)
{
    link->keepalive.ping_ms = arpc_link_now(link);
    link->keepalive.asked = true;
    (void)nghttp2_submit_ping(link->session, NGHTTP2_FLAG_NONE, ping_alive); /* else the timeout ends the link */
}

void arpc_link_received(struct arpc_link *link)
{
    link->keepalive.received_ms = arpc_link_now(link);
    /* A drain is for its answer alone: who sends other things does not stay for that. */
    if (link->keepalive.asked && link->goaway.drain == ARPC_DRAIN_NO)
        link->keepalive.ping_ms = link->keepalive.received_ms;
}

void arpc_link_taken(struct arpc_link *link)
{
    /* Without calls the PING is behind nothing but answers that the peer asks for. */
    if (link->keepalive.ping_ms != INT64_MAX && link->call_count > 0)
        link->keepalive.ping_ms = arpc_link_now(link);
}

int64_t arpc_call_silent_ms(const struct arpc_call *call)
{
    return call->link != NULL ? arpc_link_now(call->link) - call->link->keepalive.received_ms : INT64_MAX;
}

void arpc_call_ask(struct arpc_call *call, int64_t silent_ms)
{
    struct arpc_link *link = call->link;
    if (link == NULL || link->session == NULL || link->error != 0 || arpc_call_silent_ms(call) < silent_ms ||
        arpc_link_now(link) - link->keepalive.asked_ms < silent_ms)
        return;
    link->keepalive.asked_ms = arpc_link_now(link);
    (void)nghttp2_submit_ping(link->session, NGHTTP2_FLAG_NONE, ping_waiting); /* else it is asked the next time */
    link->wake_cb(link);
}

void arpc_call_keepalive(struct arpc_call *call, int64_t time_ms, int64_t timeout_ms)
{
    struct arpc_link *link = call->link;
    if (link == NULL || link->session == NULL)
        return;
    link->keepalive.period_ms = time_ms;
    link->keepalive.timeout_ms = timeout_ms;
    arpc_link_due(link, arpc_after(link->keepalive.received_ms, time_ms));
    link->wake_cb(link);
}

void arpc_link_ping_answered(struct arpc_link *link, const uint8_t *opaque)
{
    bool drains = link->goaway.drain == ARPC_DRAIN_NOTICE;
    if (drains && memcmp(opaque, ping_drain, sizeof ping_drain) == 0) {
        link->keepalive.ping_ms = INT64_MAX;
        goaway(link, NGHTTP2_NO_ERROR, link->goaway.why);
    } else if (link->keepalive.asked && memcmp(opaque, ping_alive, sizeof ping_alive) == 0) {
        link->keepalive.asked = false;
        link->keepalive.ping_ms =
            drains ? arpc_link_now(link) : INT64_MAX; /* the drain's own is still to be answered */
    }
    /* Others answer nothing: they must not put a deadline off. */
}

void arpc_link_ping_received(struct arpc_link *link)
{
    const struct arpc_link_config *config = link->config;
    int64_t now_ms = arpc_link_now(link);
    bool first = link->keepalive.peer_ping_ms == INT64_MIN;
    bool early = !first && now_ms - link->keepalive.peer_ping_ms < config->min_ping_interval_ms;
    bool flood = !first && now_ms - link->keepalive.peer_ping_ms < ARPC_PING_FLOOD_MS;
    link->keepalive.peer_ping_ms = now_ms;
    if (!config->server)
        return;
    if (link->keepalive.sent_since_ping) {
        link->keepalive.sent_since_ping = false;
        link->keepalive.ping_strikes = 0;
    } else if (early && ++link->keepalive.ping_strikes > ARPC_PING_STRIKES_MAX) {
        /* No strike for the address of a keepalive that was set too short: it is no attack. */
        if (flood && link->abuse == ARPC_ABUSE_NONE)
            link->abuse = ARPC_ABUSE_PINGS;
        arpc_link_count(link, ARPC_ABUSE_PINGS);
        arpc_link_expel(link, NGHTTP2_ENHANCE_YOUR_CALM, too_many_pings);
    }
}

void arpc_link_goaway_received(struct arpc_link *link, uint32_t h2_code, const uint8_t *debug, size_t size)
{
    struct arpc_link_config *config = link->config;
    link->goaway.received = true;
    if (config->server && link->goaway.leave_due_ms == INT64_MAX) {
        link->goaway.leave_due_ms = arpc_after(arpc_link_now(link), link->watch.limits->goodbye_ms);
        arpc_link_due(link, link->goaway.leave_due_ms);
    }
    bool pings = h2_code == NGHTTP2_ENHANCE_YOUR_CALM && size == sizeof too_many_pings - 1 &&
                 memcmp(debug, too_many_pings, size) == 0;
    if (config->server || !pings)
        return;
    config->keepalive_ms = config->keepalive_ms < KEEPALIVE_MS_MAX / 2 ? config->keepalive_ms * 2 : KEEPALIVE_MS_MAX;
}

bool arpc_link_is_too_late(const struct arpc_link *link, int32_t stream_id)
{
    return link->goaway.drain == ARPC_DRAIN_FINAL && stream_id > link->goaway.last_stream;
}

void arpc_link_refuse_late(struct arpc_link *link)
{
    int32_t stream_id = link->goaway.late_stream;
    link->goaway.late_stream = 0;
    if (stream_id == 0)
        return;
    /* nghttp2 passes such requests over in silence. Without memory the GOAWAY alone says the same. */
    (void)nghttp2_submit_rst_stream(link->session, NGHTTP2_FLAG_NONE, stream_id, NGHTTP2_REFUSED_STREAM);
    /* Those on their way are forgiven; who goes on makes work that no count of open streams bounds. */
    arpc_link_punish(link, arpc_watch_refusal(&link->watch, arpc_link_now(link)));
}
