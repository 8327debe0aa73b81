/*
 * The deadlines of a link and of its calls. One time is kept, the earliest; when it comes, all are looked at. A link
 * has at most some hundred calls, so that a heap would save nothing.
 */
#include "rpc/h2/abuse.h"
#include "rpc/h2/body.h"
#include "rpc/h2/call.h"

static int64_t after(int64_t from_ms, int64_t wait_ms)
{
    return from_ms == INT64_MAX || wait_ms <= 0 ? INT64_MAX : arpc_after(from_ms, wait_ms);
}

static int64_t handshake_ms(const struct arpc_link *link)
{
    const struct arpc_limits *limits = link->watch.limits;
    if (!link->handshake.peer_settings)
        return after(link->age.opened_ms, link->config->server ? limits->preface_ms : ARPC_HANDSHAKE_MS);
    return link->handshake.acked ? INT64_MAX : after(link->age.opened_ms, limits->settings_ack_ms);
}

static int64_t headers_ms(const struct arpc_link *link)
{
    return after(link->handshake.header_since_ms, link->watch.limits->headers_ms);
}

/* A client asks only while calls are open, if it is not told otherwise; a server always: it may hold a dead peer's
 * connection. */
static int64_t keepalive_ms(const struct arpc_link *link)
{
    bool wanted = link->config->server || link->call_count > 0 || link->config->keepalive_without_calls;
    return wanted && link->keepalive.ping_ms == INT64_MAX
               ? after(link->keepalive.received_ms, link->keepalive.period_ms)
               : INT64_MAX;
}

int64_t arpc_link_idle_due_ms(const struct arpc_link *link)
{
    int64_t wait_ms = link->config->idle_ms;
    int64_t unadmitted_ms = link->watch.limits->unadmitted_ms;
    if (link->config->server && !link->was_admitted && unadmitted_ms > 0 && (wait_ms <= 0 || unadmitted_ms < wait_ms))
        wait_ms = unadmitted_ms;
    return after(link->age.idle_since_ms, wait_ms);
}

static int64_t idle_ms(const struct arpc_link *link)
{
    return link->goaway.drain == ARPC_DRAIN_NO ? arpc_link_idle_due_ms(link) : INT64_MAX;
}

/* Calls that everybody may make, a watch of the health, do not keep what is idle: they are aborted. */
static int64_t outstayed_ms(const struct arpc_link *link)
{
    bool lingers = link->config->server && link->goaway.drain != ARPC_DRAIN_NO && link->call_count > 0;
    return lingers ? after(arpc_link_idle_due_ms(link), link->watch.limits->goodbye_ms) : INT64_MAX;
}

static void earlier(int64_t *due_ms, int64_t when_ms)
{
    if (when_ms < *due_ms)
        *due_ms = when_ms;
}

static void reckon(struct arpc_link *link, int64_t now_ms)
{
    int64_t due_ms = INT64_MAX;
    for (struct amp_list *it = link->calls.next; it != &link->calls; it = it->next) {
        struct arpc_call *call = AMP_CONTAINER(it, struct arpc_call, in_link);
        earlier(&due_ms, call->deadline_ms);
        earlier(&due_ms, arpc_call_stall_ms(call));
        earlier(&due_ms, arpc_call_slow_ms(call));
        if (call->attempt.begin_ms > now_ms)
            earlier(&due_ms, call->attempt.begin_ms);
    }
    if (link->session != NULL) {
        earlier(&due_ms, handshake_ms(link));
        earlier(&due_ms, headers_ms(link));
        earlier(&due_ms, link->goaway.goodbye_due_ms);
        earlier(&due_ms, keepalive_ms(link));
        earlier(&due_ms, after(link->keepalive.ping_ms, arpc_link_ping_timeout_ms(link)));
        earlier(&due_ms, idle_ms(link));
        earlier(&due_ms, outstayed_ms(link));
        earlier(&due_ms, link->age.due_ms);
        earlier(&due_ms, link->age.abort_due_ms);
        if (link->goaway.leave_due_ms > now_ms)
            earlier(&due_ms, link->goaway.leave_due_ms);
    }
    link->next_due_ms = due_ms;
}

static void tick_calls(struct arpc_link *link, int64_t now_ms)
{
    AMP_LIST_EACH(it, safe, &link->calls)
    {
        struct arpc_call *call = AMP_CONTAINER(it, struct arpc_call, in_link);
        if (call->deadline_ms <= now_ms)
            arpc_call_deadline(call);
        arpc_call_slow(call, now_ms);
        arpc_call_stall(call, now_ms);
    }
}

static void unanswered(struct arpc_link *link)
{
    const struct arpc_link_config *config = link->config;
    if (link->goaway.drain == ARPC_DRAIN_NO && config->retired_cb != NULL)
        config->retired_cb(link->peer, "keepalive", config->arg);
    arpc_link_fail(link, AMP_EDEADLINE,
                   "the peer did not answer a PING in time; look at the way there: links, firewalls, the MTU");
}

static void tick_link(struct arpc_link *link, int64_t now_ms)
{
    if (handshake_ms(link) <= now_ms)
        arpc_link_drop(link, AMP_EDEADLINE, ARPC_ABUSE_SLOW_PREFACE);
    else if (headers_ms(link) <= now_ms)
        arpc_link_drop(link, AMP_EDEADLINE, ARPC_ABUSE_SLOW_HEADERS);
    else if (link->goaway.goodbye_due_ms <= now_ms)
        arpc_link_fail(link, AMP_EDEADLINE, "the peer did not take the GOAWAY in time");
    else if (after(link->keepalive.ping_ms, arpc_link_ping_timeout_ms(link)) <= now_ms)
        unanswered(link);
    else if (link->age.abort_due_ms <= now_ms)
        arpc_link_fail(link, AMP_EUNAVAILABLE, "the connection's largest age and its grace have passed");
    else if (outstayed_ms(link) <= now_ms)
        arpc_link_fail(link, AMP_EDEADLINE, "no call was accepted in time");
    if (link->error != 0)
        return;
    if (keepalive_ms(link) <= now_ms)
        arpc_link_ask(link);
    if (idle_ms(link) <= now_ms) {
        link->age.idle_since_ms += now_ms - idle_ms(link); /* what a late look has added does not count against it */
        arpc_link_retire(link, "max_idle");
    }
    if (link->age.due_ms <= now_ms) {
        link->age.due_ms = INT64_MAX;
        arpc_link_retire(link, "max_age"); /* it may be draining already, and is aborted all the same */
        link->age.abort_due_ms = after(now_ms, link->config->max_age_grace_ms);
    }
}

void arpc_link_tick(struct arpc_link *link)
{
    int64_t now_ms = arpc_link_now(link);
    if (now_ms < link->next_due_ms)
        return;
    tick_calls(link, now_ms);
    if (link->session != NULL && link->error == 0)
        tick_link(link, now_ms);
    reckon(link, now_ms);
    link->wake_cb(link);
}
