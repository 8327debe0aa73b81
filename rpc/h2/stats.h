/* Counts the calls of a server by method (arpc_stats.h). Internal to rpc/h2. */
#ifndef ARPC_H2_STATS_H
#define ARPC_H2_STATS_H

#include "rpc/h2/call.h"

/* Counts a call that has a valid head as begun. Does nothing on a client. */
void arpc_stats_begin(struct arpc_call *call);
/* Counts a call that has begun as over, with its status and duration; once. Does nothing if it was not begun. */
void arpc_stats_end(struct arpc_call *call);

#endif
