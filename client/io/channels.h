/*
 * The client's connections: one to an endpoint of the user's, and one to each shard once they are known. On the loop's
 * thread. When one is replaced, since a shard has moved, what goes on over it ends by itself.
 */
#ifndef AMPCLIENT_CHANNELS_H
#define AMPCLIENT_CHANNELS_H

#include "base/err.h"
#include "client/core/client_events.h"
#include "client/io/secure.h"
#include "rpc/arpc_client.h"

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

/*
 * Connections to processes that were shards; by the time that so many more have moved, nothing waits for the oldest
 * one.
 */
#define AMPCLIENT_CHANNELS_RETIRED_MAX 16

struct ampclient_channels {
    uv_loop_t *loop; /* the owner's */
    struct ampclient_secure secure;
    struct arpc_channel_options options;
    struct arpc_channel *first;                                 /* to the endpoints that the user gave */
    struct arpc_channel *shards[AMPCLIENT_SHARDS_MAX]; /* one each, where there are several; else none */
    uint32_t shards_count;
    char endpoints[AMPCLIENT_SHARDS_MAX][256];           /* of shards */
    struct arpc_channel *retired[AMPCLIENT_CHANNELS_RETIRED_MAX]; /* to processes that are no shards any more; a ring */
    uint32_t retired_next;
    uint32_t open;              /* while closing: how many are not closed yet */
    bool closing;               /* no new connection is made */
    void (*lost_cb)(void *arg); /* one to a shard is lost or cannot be made; may be NULL */
    void *lost_arg;
    void (*closed_cb)(struct ampclient_channels *channels);
};

/*
 * Prepares the connection to the endpoints, as ampclient_secure_open has them; connects nowhere yet. 0; AMP_EINVAL,
 * AMP_ENOMEM with a text. After a failure `first` is NULL, and ampclient_secure_close is still to be called.
 */
int ampclient_channels_open(struct ampclient_channels *channels, uv_loop_t *loop, const char *endpoints,
                            const struct ampclient_secure_options *secure, const struct arpc_channel_options *options,
                            struct amp_error *error);

/* Cuts all calls; closed_cb is called when all connections are closed. */
void ampclient_channels_close(struct ampclient_channels *channels,
                              void (*closed_cb)(struct ampclient_channels *channels));

/* Makes the connection to a shard at its endpoint, in the place of one to another endpoint. AMP_EINVAL, AMP_ENOMEM. */
int ampclient_channels_open_shard(struct ampclient_channels *channels, uint32_t shard, const char *endpoint,
                                  struct amp_error *error);

/* Makes the first connection anew, to these endpoints. False: it stays as it is. */
bool ampclient_channels_go_to(struct ampclient_channels *channels, const char *endpoints);

/*
 * Begins a call to a shard (0 where there is one alone), as arpc_channel_call, with the client's token; it fails when
 * no endpoint can be connected to.
 */
int ampclient_channels_call(struct ampclient_channels *channels, uint32_t shard, const char *path,
                            const struct arpc_call_options *options, const struct arpc_handler *handler, void *user,
                            struct arpc_call **out, struct amp_error *error);

/*
 * The AMP_E code of how a call ended that its owner has not cancelled. UNAUTHENTICATED is AMP_EUNAVAILABLE, to be tried
 * again, where the client has got a new token meanwhile.
 */
int ampclient_channels_code(struct ampclient_channels *channels, int status, bool from_peer);

#endif
