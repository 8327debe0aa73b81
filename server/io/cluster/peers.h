/*
 * The other shards: one session between each of them and shard 0, which carries what the cores say to each other. A
 * shard begins it and begins it anew when it breaks off; the cores then say again what counts, so that nothing is
 * acknowledged here, and a message for which there is no session is dropped.
 */
#ifndef AMPD_IO_PEERS_H
#define AMPD_IO_PEERS_H

#include "base/err.h"
#include "server/core/wire/messages.h"
#include "server/io/cluster/cluster.h"

#include <stdbool.h>
#include <stdint.h>

struct ampd_server;
struct arpc_channel;
struct arpc_handler;
struct io_peers;

/* A cluster has at most so many shards (server/core). */
#define IO_PEERS_MAX IO_CLUSTER_SHARDS_MAX

/* A session that is silent for so long is asked whether the other side lives. */
#define IO_PEERS_KEEPALIVE_MS 2000

/*
 * Makes what the options say: the list of addresses by shard, NULL for one shard alone. 0, or a code of
 * io_peer_secure_open with a sentence.
 */
int io_peers_new(struct ampd_server *server, struct amp_error *error);

/* SIGHUP: what is shown to other shards is read anew, for sessions that begin from now on. */
void io_peers_reload(struct ampd_server *server);

/*
 * Begins the session with shard 0, where this is another one. The core has started. AMP_EINVAL (address), AMP_ENOMEM.
 */
int io_peers_start(struct ampd_server *server, struct amp_error *error);

/* Another process holds the place of a shard: sessions with shard 0 go to the one that has it now. */
void io_peers_moved(struct ampd_server *server, uint32_t shard);

/* Sends a message of the core's to message->to. */
void io_peers_send(struct ampd_server *server, const struct ampd_message *message);

/* Ends all sessions; no new one begins. The loop frees what is left. */
void io_peers_close(struct ampd_server *server);

/* Frees the rest; the loop has ended. */
void io_peers_free(struct ampd_server *server);

/*
 * Whether a shard is there: this one, or one that this one has a session with; *since_us is the time (UTC) since when
 * it is or is not, 0: since this process started. shard < io_peers_shards.
 */
bool io_peers_up(const struct ampd_server *server, uint32_t shard, int64_t *since_us);

/* The first shard that this one should have a session with, and has not; UINT32_MAX: there is none. */
uint32_t io_peers_missing(const struct ampd_server *server);

/* Whether this one has, or should have, a session with that shard, or is it: of the others it knows nothing. */
bool io_peers_knows(const struct ampd_server *server, uint32_t shard);

/*
 * What is wrong with a shard by its own words, in one sentence: what keeps it from storing, or that etcd does not
 * answer it; "": nothing, or it has no session with this one.
 */
void io_peers_shard_trouble(const struct ampd_server *server, uint32_t shard, char *text, size_t size);

/*
 * The first thing that is wrong in the cluster, in one sentence: etcd does not answer this shard, then a shard that it
 * should have a session with and has not, then with another shard by its own words. "": nothing is.
 */
void io_peers_cluster_trouble(const struct ampd_server *server, char *text, size_t size);

/* Likewise, but first what keeps this shard from storing. */
void io_peers_trouble(const struct ampd_server *server, char *text, size_t size);

/* The channel to shard 0 and what is shown there, for calls of this shard's own; NULL: this is shard 0, or it ends. */
struct arpc_channel *io_peers_coordinator(const struct ampd_server *server, const char **authorization);

/*
 * A channel to another shard, as sessions have one, for a call of its own; and what such a call shows, valid until the
 * next reload. On success *channel is the caller's.
 */
int io_peers_channel(struct ampd_server *server, uint32_t shard, struct arpc_channel **channel,
                     struct amp_error *error);
const char *io_peers_authorization(const struct ampd_server *server);

/* How many shards there are, at least this one. */
uint32_t io_peers_shards(const struct ampd_server *server);

/* Whether the session with another shard stands: it has said something, and it is not over. */
bool io_peers_session_up(const struct ampd_server *server, uint32_t shard);

/* Where a shard's services are, as clients are told; "" where there is no such shard. */
const char *io_peers_address(const struct ampd_server *server, uint32_t shard);

#endif
