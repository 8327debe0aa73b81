/*
 * The sessions with the other shards. Shard k has one session with shard 0, a call of PeerService.Session, which
 * carries the messages between their cores. Shard k begins it, and begins another one when it breaks. Nothing is
 * acknowledged here: the cores repeat what counts when a session begins, and a message without a session is dropped.
 *
 * All functions run on the loop's thread. server->peers is NULL without --peers and --cluster, which all functions
 * allow except io_peers_channel and io_peers_authorization.
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

/* Most shards of a cluster. */
#define IO_PEERS_MAX IO_CLUSTER_SHARDS_MAX

/* After this much silence on a session, each side asks by an HTTP/2 PING whether the other one lives. */
#define IO_PEERS_KEEPALIVE_MS 2000

/*
 * Makes server->peers, if the options name a list or a cluster in etcd, and reads the credentials. 0; AMP_ENOMEM, or a
 * code of io_peer_secure_open with a sentence.
 */
int io_peers_new(struct ampd_server *server, struct amp_error *error);

/* For SIGHUP: reads the credentials again, for sessions that begin from now on. */
void io_peers_reload(struct ampd_server *server);

/*
 * Begins the session with shard 0; no effect on shard 0 itself. The core must have got START. AMP_EINVAL (address),
 * AMP_ENOMEM.
 */
int io_peers_start(struct ampd_server *server, struct amp_error *error);

/* Reports that the holder of a place has changed: the session with shard 0 goes to the new holder's address. */
void io_peers_moved(struct ampd_server *server, uint32_t shard);

/* Sends a message of the core to message->to, or drops it if there is no session. The message stays the caller's. */
void io_peers_send(struct ampd_server *server, const struct ampd_message *message);

/* Ends all sessions and lets no new one begin. The loop must run on until its handles are closed. */
void io_peers_close(struct ampd_server *server);

/* Frees server->peers. The loop has ended. */
void io_peers_free(struct ampd_server *server);

/*
 * Whether a shard is connected: this one always is, another one if this shard has a session with it whose connection
 * stands. *since_us: UTC microseconds since when that is so, for this one since it is the shard; 0: since this process
 * started. shard < io_peers_shards.
 */
bool io_peers_up(const struct ampd_server *server, uint32_t shard, int64_t *since_us);

/* The first shard with which this one should have a session, and has none. UINT32_MAX: there is none. */
uint32_t io_peers_missing(const struct ampd_server *server);

/*
 * Whether this process can tell how that shard is: it is the same shard, or the two should have a session. Shards other
 * than 0 have none with each other.
 */
bool io_peers_knows(const struct ampd_server *server, uint32_t shard);

/*
 * The problem that a shard itself reports, in one sentence: what keeps it from storing, else that etcd does not answer
 * it, else that the disk of its checkpoints is nearly full. "": none, or it has no session with this one.
 */
void io_peers_shard_trouble(const struct ampd_server *server, uint32_t shard, char *text, size_t size);

/*
 * The first problem of the cluster, in one sentence: etcd does not answer this shard; else a session that should exist
 * is missing; else what another shard reports. "": none.
 */
void io_peers_cluster_trouble(const struct ampd_server *server, char *text, size_t size);

/*
 * What keeps this shard from storing, in one sentence; else the text of io_peers_cluster_trouble; else that the disk of
 * its checkpoints is nearly full. "": no problem.
 */
void io_peers_trouble(const struct ampd_server *server, char *text, size_t size);

/*
 * The channel to shard 0, for further calls of this shard, and the value of "authorization" for them (NULL: none), both
 * valid until the loop's next turn. NULL: this is shard 0, its address is not known, or this shard ends.
 */
struct arpc_channel *io_peers_coordinator(const struct ampd_server *server, const char **authorization);

/*
 * Makes a channel to another shard, with the settings of a session, for a call outside of the sessions. On success
 * *channel is the caller's. AMP_EUNAVAILABLE: no process holds the shard; AMP_EINVAL: not a usable address; AMP_ENOMEM.
 */
int io_peers_channel(struct ampd_server *server, uint32_t shard, struct arpc_channel **channel,
                     struct amp_error *error);

/* The value of "authorization" for a call on such a channel. NULL: none. Valid until the next io_peers_reload. */
const char *io_peers_authorization(const struct ampd_server *server);

/* The number of shards of the cluster, at least 1. */
uint32_t io_peers_shards(const struct ampd_server *server);

/* Whether there is a session with another shard on which that shard has said something. */
bool io_peers_session_up(const struct ampd_server *server, uint32_t shard);

/* The address of a shard's services, as clients get it. "": no such shard, or its address is not known. */
const char *io_peers_address(const struct ampd_server *server, uint32_t shard);

#endif
