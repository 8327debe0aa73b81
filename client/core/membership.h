/* The membership of the worker's machine: Join, KeepAlive, and what ends them. Private to client/core. */
#ifndef AMPCLIENT_CORE_MEMBERSHIP_H
#define AMPCLIENT_CORE_MEMBERSHIP_H

#include "client/core/client_events.h"

struct ampclient_core;

/*
 * Joins again; `why` is a clause for the log. With `fenced` shard 0 is asked first, and nothing joins if another
 * process has the rank.
 */
void ampclient_core_lose(struct ampclient_core *core, bool fenced, const char *why);
void ampclient_core_keep_alive_ended(struct ampclient_core *core, const struct ampclient_ended *ended);
void ampclient_core_join_ended(struct ampclient_core *core, const struct ampclient_ended *ended);

#endif
