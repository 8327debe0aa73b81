#include "client/io/channels.h"

#include <stdio.h>

/*
 * A connection that is gone without a word (a link, a NAT, a machine that is off) is found by a PING when nothing has
 * come for so long while calls wait, and so much later is given up: before a worker's lease, 30 s, is over. gRFC A8 has
 * no client ask more often.
 */
#define KEEPALIVE_MS         10000
#define KEEPALIVE_TIMEOUT_MS 10000

/*
 * A process that was stopped, or whose machine is gone, is followed by another one after the lease on its place, 5 s if
 * nothing else is said (server/io/cluster/cluster.h). Its connection must not be waited on for longer: one that is
 * silent while calls wait is asked whether the other side lives, which servers of several shards allow each second, and
 * given up so much later.
 */
#define SHARD_KEEPALIVE_MS         2000
#define SHARD_KEEPALIVE_TIMEOUT_MS 4000
#define SHARD_CONNECT_MS           3000 /* room for a lost SYN and its answer */

int ampclient_channels_open(struct ampclient_channels *channels, uv_loop_t *loop, const char *endpoints,
                            const struct ampclient_secure_options *secure, const struct arpc_channel_options *options,
                            struct amp_error *error)
{
    channels->loop = loop;
    int rc = ampclient_secure_open(&channels->secure, endpoints, secure, error);
    if (rc != 0)
        return rc;
    channels->options = *options;
    channels->options.size = sizeof channels->options;
    channels->options.tls = channels->secure.tls;
    channels->options.keepalive_time_ms = KEEPALIVE_MS;
    channels->options.keepalive_timeout_ms = KEEPALIVE_TIMEOUT_MS;
    /* Whoever calls pauses between tries; pauses of the channel's own would come on top. */
    channels->options.initial_backoff_ms = 1;
    channels->options.max_backoff_ms = 1;
    return arpc_channel_new(loop, channels->secure.target, &channels->options, &channels->first, error);
}

static void on_channel_closed(void *arg)
{
    struct ampclient_channels *channels = arg;
    if (--channels->open == 0)
        channels->closed_cb(channels);
}

void ampclient_channels_close(struct ampclient_channels *channels,
                              void (*closed_cb)(struct ampclient_channels *channels))
{
    channels->closing = true;
    channels->closed_cb = closed_cb;
    channels->open = 1 + channels->shards_count;
    for (uint32_t i = 0; i < AMPCLIENT_CHANNELS_RETIRED_MAX; i++)
        if (channels->retired[i] != NULL)
            arpc_channel_close(channels->retired[i], NULL, NULL);
    arpc_channel_close(channels->first, on_channel_closed, channels);
    for (uint32_t k = 0; k < channels->shards_count; k++)
        arpc_channel_close(channels->shards[k], on_channel_closed, channels);
}

static void on_state(struct arpc_channel *channel, enum arpc_channel_state state, const struct amp_error *error,
                     void *arg)
{
    struct ampclient_channels *channels = arg;
    bool lost = state == ARPC_CHANNEL_BACKOFF || (state == ARPC_CHANNEL_IDLE && error != NULL);
    if (lost && !channels->closing && channels->lost_cb != NULL)
        channels->lost_cb(channels->lost_arg);
}

/*
 * What goes on over the connection before ends by itself; it is closed with the others, or when many more have
 * followed. Calls that wait for a connection to where the shard was are not let wait: they end UNAVAILABLE
 * (ampclient_channels_code), and are made again.
 */
static void retire(struct ampclient_channels *channels, struct arpc_channel *channel)
{
    if (arpc_channel_state(channel) != ARPC_CHANNEL_READY) {
        arpc_channel_close(channel, NULL, NULL);
        return;
    }
    uint32_t index = channels->retired_next++ % AMPCLIENT_CHANNELS_RETIRED_MAX;
    if (channels->retired[index] != NULL)
        arpc_channel_close(channels->retired[index], NULL, NULL);
    channels->retired[index] = channel;
}

int ampclient_channels_open_shard(struct ampclient_channels *channels, uint32_t shard, const char *endpoint,
                                  struct amp_error *error)
{
    struct arpc_channel *channel;
    struct arpc_channel_options options = channels->options;
    options.state_cb = on_state;
    options.arg = channels;
    options.keepalive_time_ms = SHARD_KEEPALIVE_MS;
    options.keepalive_timeout_ms = SHARD_KEEPALIVE_TIMEOUT_MS;
    if (options.connect_ms == 0 || options.connect_ms > SHARD_CONNECT_MS)
        options.connect_ms = SHARD_CONNECT_MS;
    int rc = ampclient_secure_shard(&channels->secure, endpoint, &options.tls, error);
    if (rc == 0)
        rc = arpc_channel_new(channels->loop, endpoint, &options, &channel, error);
    if (rc != 0)
        return rc;
    if (channels->shards[shard] != NULL)
        retire(channels, channels->shards[shard]);
    channels->shards[shard] = channel;
    (void)snprintf(channels->endpoints[shard], sizeof channels->endpoints[shard], "%s", endpoint);
    return 0;
}

bool ampclient_channels_go_to(struct ampclient_channels *channels, const char *endpoints)
{
    struct arpc_channel *channel;
    if (arpc_channel_new(channels->loop, endpoints, &channels->options, &channel, NULL) != 0)
        return false;
    retire(channels, channels->first);
    channels->first = channel;
    return true;
}

int ampclient_channels_call(struct ampclient_channels *channels, uint32_t shard, const char *path,
                            const struct arpc_call_options *options, const struct arpc_handler *handler, void *user,
                            struct arpc_call **out, struct amp_error *error)
{
    const char *authorization = ampclient_secure_authorization(&channels->secure, uv_hrtime() / 1000000);
    const struct arpc_pair pair = {"authorization", authorization};
    struct arpc_call_options with = *options;
    if (authorization != NULL) {
        with.metadata = &pair; /* callers have no metadata of their own */
        with.metadata_count = 1;
    }
    struct arpc_channel *channel = shard < channels->shards_count ? channels->shards[shard] : channels->first;
    return arpc_channel_call(channel, path, &with, handler, user, out, error);
}

int ampclient_channels_code(struct ampclient_channels *channels, int status, bool from_peer)
{
    if (status == ARPC_STATUS_CANCELLED && !from_peer)
        return AMP_EUNAVAILABLE; /* its channel has given way to one to another process */
    if (status == ARPC_STATUS_UNAUTHENTICATED && ampclient_secure_renewed(&channels->secure, uv_hrtime() / 1000000))
        return AMP_EUNAVAILABLE;
    return amp_err_from_grpc_status(status);
}
