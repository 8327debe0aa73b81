/*
 * The client's connections: one to an endpoint that the user gave, and one to each shard once the shards are known. All
 * functions run on the loop's thread. When a connection is replaced, because a shard has moved, the calls on the old
 * one end by themselves.
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
 * How many replaced connections are kept: when this many more shards have moved, no call waits on the oldest one any
 * more.
 */
#define AMPCLIENT_CHANNELS_RETIRED_MAX 16

struct ampclient_channels {
    uv_loop_t *loop; /* the owner's */
    struct ampclient_secure secure;
    struct arpc_channel_options options;
    struct arpc_channel *first;                        /* to the endpoints that the user gave */
    struct arpc_channel *shards[AMPCLIENT_SHARDS_MAX]; /* by shard, if there are several; else none */
    uint32_t shards_count;
    char endpoints[AMPCLIENT_SHARDS_MAX][256];                    /* of shards */
    struct arpc_channel *retired[AMPCLIENT_CHANNELS_RETIRED_MAX]; /* to processes that are no shards any more; a ring */
    uint32_t retired_next;
    uint32_t open;              /* while closing: number of connections that are not closed yet */
    bool closing;               /* no new connection is made */
    void (*lost_cb)(void *arg); /* the connection to a shard is lost or cannot be made; may be NULL */
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

/* Ends all calls and closes all connections; closed_cb is called from the loop when all are closed. */
void ampclient_channels_close(struct ampclient_channels *channels,
                              void (*closed_cb)(struct ampclient_channels *channels));

/*
 * Makes the connection to a shard at this endpoint; it replaces one to another endpoint. 0; AMP_EINVAL (also: the token
 * would cross a network unencrypted), AMP_ENOMEM with a text: the connection that was there stays.
 */
int ampclient_channels_open_shard(struct ampclient_channels *channels, uint32_t shard, const char *endpoint,
                                  struct amp_error *error);

/* Replaces the connection `first` by one to these endpoints (comma-separated). False: it stays as it is. */
bool ampclient_channels_go_to(struct ampclient_channels *channels, const char *endpoints);

/*
 * Begins a call to a shard (0 if there is only one), as arpc_channel_call does, with the client's token. A `shard` that
 * is not known goes to the user's endpoints. The call ends UNAVAILABLE when no endpoint can be connected to.
 */
int ampclient_channels_call(struct ampclient_channels *channels, uint32_t shard, const char *path,
                            const struct arpc_call_options *options, const struct arpc_handler *handler, void *user,
                            struct arpc_call **out, struct amp_error *error);

/*
 * The AMP_E code for the end of a call that its owner has not cancelled. Two statuses become AMP_EUNAVAILABLE, so that
 * the call is made again: UNAUTHENTICATED if the client has read a new token meanwhile, and CANCELLED by this side,
 * which means that the connection was replaced.
 */
int ampclient_channels_code(struct ampclient_channels *channels, int status, bool from_peer);

#endif
