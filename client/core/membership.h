/*
 * The membership of a worker: Join, KeepAlive, and the ways in which it is lost. Private to client/core.
 */
#ifndef AMPCLIENT_CORE_MEMBERSHIP_H
#define AMPCLIENT_CORE_MEMBERSHIP_H

#include "client/core/client_events.h"

struct ampclient_core;

/*
 * The membership is lost: a Join becomes due, which is made after this event, or after the Join that is under way.
 * `why` is a clause for the log, such as "the model has begun a new epoch". With `fenced` (and without take_back) shard
 * 0 is asked first by KeepAlive, and no Join follows if another process has the rank. Cancels no stream.
 */
void ampclient_core_lose(struct ampclient_core *core, bool fenced, const char *why);
/*
 * The KeepAlive under way has ended: the lease is renewed, the membership is lost (a new epoch, or a lease that has
 * ended), or another process has the rank, and the handle stops.
 */
void ampclient_core_keep_alive_ended(struct ampclient_core *core, const struct ampclient_ended *ended);
/*
 * The Join under way has ended. If it succeeded, takes rank, epoch and step from it; a step in hand is void if the
 * epoch is another one, else it is pushed again. If it failed for good, so does the user's request.
 */
void ampclient_core_join_ended(struct ampclient_core *core, const struct ampclient_ended *ended);

#endif
