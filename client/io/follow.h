/*
 * Shards may move: a process that is gone is followed by another one at another address. Whenever a connection to a shard
 * cannot be made, another shard is asked where it is now. On the loop's thread.
 */
#ifndef AMPCLIENT_IO_FOLLOW_H
#define AMPCLIENT_IO_FOLLOW_H

#include "client/io/link.h"

/* Makes the connection to a shard at its endpoint, in the place of one to another endpoint. AMP_EINVAL, AMP_ENOMEM. */
int ampclient_follow_open(struct ampclient_link *link, uint32_t shard, const char *endpoint, struct amp_error *error);

#endif
