/*
 * Shards may move: a process that is gone is followed by another one at another address. Whenever the connection to a shard is
 * lost or cannot be made, or who is there says that it is not that shard, another shard is asked where it is now; and a Join's
 * answer tells. On the loop's thread.
 */
#ifndef AMPCLIENT_IO_FOLLOW_H
#define AMPCLIENT_IO_FOLLOW_H

#include "client/io/link.h"
#include "proto/msg_common.h"

/* Makes the connection to a shard at its endpoint, in the place of one to another endpoint. AMP_EINVAL, AMP_ENOMEM. */
int ampclient_follow_open(struct ampclient_link *link, uint32_t shard, const char *endpoint, struct amp_error *error);

/* Where the shards are now, as one of them says. Another number of shards is another cluster, and taken no notice of. */
void ampclient_follow_use(struct ampclient_link *link, const struct ampd_msg_shard_list *shards);

/*
 * A call has ended for this reason. Where it says that the process there is another shard or waits for a place, the right one is
 * looked for: by a question, or, as long as no shards are known, at the next endpoint that the user gave.
 */
void ampclient_follow_refused(struct ampclient_link *link, const char *reason);

#endif
