/*
 * Follows shards that move: when a process is gone, another one takes its place at another address. If the connection
 * to a shard is lost or cannot be made, or the process there says that it is not that shard, another shard is asked
 * (GetStatus) for the new address; the answer of Join has the addresses, too. All functions run on the loop's thread.
 */
#ifndef AMPCLIENT_IO_FOLLOW_H
#define AMPCLIENT_IO_FOLLOW_H

#include "client/io/channels.h"
#include "proto/msg_common.h"

struct ampclient_follow {
    struct ampclient_channels *channels;
    uint32_t ask_next; /* index of the connection that is asked next: the shards, then the user's endpoints */
    uint64_t asked_ms; /* when the last question was sent, on the loop's clock; 0: never */
    bool asking;       /* a question is under way */
};

/*
 * Begins to follow: sets lost_cb of the channels, so that a question is asked when the connection to a shard is lost.
 */
void ampclient_follow_init(struct ampclient_follow *follow, struct ampclient_channels *channels);

/* Takes the addresses of the shards from an answer. An answer with another number of shards is ignored. */
void ampclient_follow_use(struct ampclient_follow *follow, const struct ampd_msg_shard_list *shards);

/* Whether a call that ended with this reason (NULL: none) reached the wrong process: another shard, or a standby. */
bool ampclient_follow_elsewhere(const char *reason);

/*
 * To be called with the details of each call that has ended. If the call reached the wrong process, this looks for the
 * right one: it asks a shard, or, as long as no shards are known, goes to the address that the details name and to the
 * next endpoint that the user gave.
 */
void ampclient_follow_refused(struct ampclient_follow *follow, const struct arpc_details *details);

#endif
