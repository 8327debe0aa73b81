/* The insides of a channel, shared by channel.c and connect.c. Internal to rpc/io. */
#ifndef ARPC_IO_CHANNEL_H
#define ARPC_IO_CHANNEL_H

#include "base/random.h"
#include "rpc/arpc_client.h"
#include "rpc/h2/call.h"
#include "rpc/io/conn.h"
#include "rpc/io/endpoints.h"
#include "rpc/io/resolve.h"

/* What "why it failed" of an attempt may hold: a clause for each of a few endpoints. */
#define ARPC_ATTEMPT_TEXT 384

/* One attempt to connect: each endpoint in turn, and each address of it. */
struct arpc_attempt {
    int64_t started_ms;
    int64_t due_ms;          /* of all of it */
    int64_t endpoint_due_ms; /* of the endpoint's share */
    int64_t address_due_ms;  /* of the address's share of that */
    size_t endpoint;         /* the one being tried */
    size_t endpoints_left;   /* with that one */
    struct arpc_resolve *resolve;
    struct addrinfo *addresses; /* of the endpoint; NULL: none yet, or a unix socket */
    struct addrinfo *next_address;
    char why[ARPC_ATTEMPT_TEXT];
};

struct arpc_channel {
    struct arpc_deferred deferred;
    struct arpc_deferred_item item; /* the parking link, and what is left to do when closing */
    struct arpc_link_config config;
    struct arpc_link parking;
    enum arpc_channel_state state;
    void *arg;
    void (*state_cb)(struct arpc_channel *, enum arpc_channel_state, const struct amp_error *, void *);
    struct arpc_tls *tls; /* NULL: plaintext */
    struct arpc_endpoints endpoints;
    size_t first_endpoint; /* where the next attempt begins */
    int64_t connect_ms, unacknowledged_ms;
    int64_t initial_backoff_ms;
    int64_t max_backoff_ms;
    int64_t backoff_ms; /* of the next attempt that fails; 0: initial_backoff_ms */
    int64_t hold_ms;    /* from the beginning of the last connection to the next one, if it was brief */
    struct amp_random random;
    struct amp_error error; /* of the last attempt */
    struct amp_list conns;
    size_t conn_count;
    struct arpc_conn *current; /* being connected, or READY */
    struct arpc_attempt attempt;
    size_t resolve_count; /* lookups whose handles are not closed yet */
    int64_t due_ms;       /* CONNECTING: of the step under way; BACKOFF: its end; IDLE: before that none begins */
    uv_timer_t timer;
    int64_t armed_ms;
    bool connect_wanted;
    bool deferred_closing;
    uint64_t bytes_received;
    uint64_t bytes_sent;
    void (*closed_cb)(void *arg);
    void *closed_arg;
};

static inline int64_t arpc_channel_now(const struct arpc_channel *channel)
{
    return (int64_t)uv_now(channel->deferred.loop);
}

/* channel.c */
/* The attempt is over without success; attempt.why says why. */
void arpc_channel_attempt_failed(struct arpc_channel *channel);
/* The server's SETTINGS are here: calls move to this link; NULL: it is over already. */
void arpc_channel_attempt_succeeded(struct arpc_channel *channel, struct arpc_link *link);
/* The connection of the channel is lost, or takes no further calls. */
void arpc_channel_leave_ready(struct arpc_channel *channel, const struct amp_error *error);

/* connect.c */
/* Begins an attempt. It ends with a call of one of the two arpc_channel_attempt_ functions, maybe at once. */
void arpc_connect_start(struct arpc_channel *channel);
/* The step under way has used up its share of the time. */
void arpc_connect_timed_out(struct arpc_channel *channel);
/* Drops what an attempt holds, but for its connection. */
void arpc_connect_stop(struct arpc_channel *channel);

#endif
