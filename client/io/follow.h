/*
 * Shards may move: a process that is gone is followed by another one at another address. Whenever the connection to a
 * shard is lost or cannot be made, or who is there says that it is not that shard, another shard is asked where it is
 * now; and a Join's answer tells. On the loop's thread.
 */
#ifndef AMPCLIENT_IO_FOLLOW_H
#define AMPCLIENT_IO_FOLLOW_H

#include "client/io/channels.h"
#include "proto/msg_common.h"

struct ampclient_follow {
    struct ampclient_channels *channels;
    uint32_t ask_next; /* who is asked next: a shard, or behind them the endpoints of the user */
    uint64_t asked_ms; /* when somebody was last asked; 0: never */
    bool asking;       /* a question is under way */
};

/* From now on the channels are followed: whenever one to a shard is lost, another shard is asked. */
void ampclient_follow_init(struct ampclient_follow *follow, struct ampclient_channels *channels);

/*
 * Where the shards are now, as one of them says. Another number of shards is another cluster, and taken no notice of.
 */
void ampclient_follow_use(struct ampclient_follow *follow, const struct ampd_msg_shard_list *shards);

/*
 * Whether a call that ended for this reason (NULL: none) was made to the wrong process: another shard, or one that
 * stands by.
 */
bool ampclient_follow_elsewhere(const char *reason);

/*
 * A call has ended so. Where it was made to the wrong process, the right one is looked for: by a question, or, as long
 * as no shards are known, at the address that the answer names, and at the next endpoint that the user gave.
 */
void ampclient_follow_refused(struct ampclient_follow *follow, const struct arpc_details *details);

#endif
